//! Why the kernel lets one process not reach another's memory: real refusals, and what is said of them on both sides.

use crate::common::left_out::left_out;
use crate::common::process::{self, Copy, hear, say};
use crate::common::watchdog;
use crate::{filter, start};
use rustix::io::Errno;
use rustmx::mem::remote;
use rustmx::sys::refusal::{self, Call};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A process that makes itself what the words say, tells its number and an address, and answers questions about another one.
pub fn asked(how: &[&str]) {
    for word in how {
        match *word {
            "undumpable" => process::keep_out(),
            "meek" => process::give_up_tracing(),
            "filtered" => filter::refuse(&[(libc::SYS_process_vm_readv, Errno::PERM)]),
            "unwriting" => filter::refuse(&[(libc::SYS_process_vm_writev, Errno::NOSYS)]),
            // Of the whole process from then on, as a container's is.
            "again" => panic!("{}", process::command("role", "asked plain").exec()),
            "plain" => {}
            other => panic!("no such way: {other}"),
        }
    }
    let word = Box::new([1u64; 1]);
    say(&format!("{} {}", std::process::id(), word.as_ptr().addr()));
    loop {
        let line = hear();
        let words: Vec<&str> = line.split(' ').collect();
        let pid: u32 = words[1].parse().expect("a number");
        let answer =
            |said: Result<(), Errno>, call| said.map_or_else(|e| refusal::to_this_process(pid, e, call), |()| "yes".into());
        say(&match words[0] {
            "read" => answer(remote::ask(pid, words[2].parse().expect("an address")), Call::Read),
            "write" => answer(remote::ask_to_write(pid), Call::Write),
            "back" => refusal::to_process(pid),
            other => panic!("no such question: {other}"),
        });
    }
}

struct Asked {
    copy: Copy,
    place: String,
}

impl Asked {
    fn new(mut copy: Copy) -> Asked {
        let place = copy.hear();
        Asked { copy, place }
    }

    /// As an ordinary user.
    fn user(how: &str, user: u32) -> Asked {
        let (mut command, _copy) = process::command_by(Some(user), "role", &format!("asked {how}"));
        Asked::new(process::spawn(&mut command))
    }

    /// Behind a program that changes what may be done.
    fn behind(before: &[&str], how: &str, user: u32) -> Asked {
        let (inner, _copy) = process::command_by(Some(user), "role", &format!("asked {how}"));
        let mut command = Command::new(before[0]);
        command.args(&before[1..]).arg(inner.get_program()).args(inner.get_args());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.uid(user).gid(user);
        Asked::new(process::spawn(&mut command))
    }

    /// In a user namespace of its own, with nobody in it but this user.
    fn apart(how: &str, user: u32) -> Asked {
        Asked::behind(&["unshare", "--user", "--map-current-user"], how, user)
    }

    fn reads(&mut self, other: &Asked) -> String {
        self.copy.tell(&format!("read {}", other.place));
        self.copy.hear()
    }

    fn writes(&mut self, other: &Asked) -> String {
        self.copy.tell(&format!("write {}", other.place));
        self.copy.hear()
    }

    /// Why the other one may not reach it.
    fn keeps_out(&mut self, other: &Asked) -> String {
        self.copy.tell(&format!("back {}", other.place));
        self.copy.hear()
    }

    fn pid(&self) -> u32 {
        self.copy.pid()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether processes of one user may reach each other here at all: else none of these refusals says anything.
fn are_let_in() -> bool {
    let (mut a, b) = (Asked::new(start("asked plain")), Asked::new(start("asked plain")));
    let said = a.reads(&b);
    if said != "yes" {
        left_out("cma", &format!("the kernel does not allow process_vm_readv here at all: {said}"));
    }
    said == "yes"
}

#[test]
fn a_process_that_is_not_dumpable() {
    let _dog = watchdog("not dumpable", 60);
    if !are_let_in() {
        return;
    }
    let (mut a, mut b) = (Asked::new(start("asked meek")), Asked::new(start("asked undumpable")));
    let wanted = format!("process {} is not dumpable: ", b.pid());
    for said in [a.reads(&b), a.writes(&b)] {
        assert!(said.starts_with(&format!("EPERM: {wanted}")) && !said.contains("; or "), "{said}");
    }
    assert!(a.keeps_out(&b).starts_with("nothing that forbids it"), "the other way nothing does");
    if is_root() {
        // Whose files turn root's with it.
        (a, b) = (Asked::user("plain", 65_533), Asked::user("undumpable", 65_533));
    }
    let (said, wanted) = (a.reads(&b), format!("process {} is not dumpable: ", b.pid()));
    assert!(said.starts_with(&format!("EPERM: {wanted}")) && !said.contains("; or "), "{said}");
    let said = b.keeps_out(&a);
    assert!(said.starts_with(&wanted) && !said.contains("; or "), "{said}");
}

#[test]
fn processes_of_two_users() {
    let _dog = watchdog("two users", 60);
    if !is_root() || !are_let_in() {
        return;
    }
    let (mut a, mut b) = (Asked::user("plain", 65_532), Asked::user("plain", 65_533));
    let said = a.reads(&b);
    let users = |a: &Asked, b: &Asked| {
        format!(
            "process {} runs as user 65532 and group 65532, process {} as user 65533 and group 65533: run all ranks",
            a.pid(),
            b.pid()
        )
    };
    assert!(said.starts_with(&format!("EPERM: {}", users(&a, &b))) && !said.contains("; or "), "{said}");
    assert!(b.keeps_out(&a).starts_with(&users(&a, &b)));
}

#[test]
fn processes_of_two_user_namespaces() {
    let _dog = watchdog("two namespaces", 60);
    if !is_root() || !are_let_in() {
        return;
    }
    let able = Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|status| status.success());
    if !able {
        return left_out("user_namespaces", "no user namespaces here");
    }
    // Two containers, and one process outside of them.
    let (mut a, mut b) = (Asked::apart("plain", 65_533), Asked::apart("plain", 65_533));
    let outside = Asked::user("plain", 65_533);
    for said in [a.reads(&b), b.reads(&a), a.writes(&outside), a.reads(&outside)] {
        assert!(said.starts_with("EPERM: user namespaces differ") && !said.contains("; or "), "{said}");
    }
    for said in [a.keeps_out(&b), b.keeps_out(&a)] {
        assert!(said.starts_with("user namespaces differ"), "{said}");
    }
    // Of root's containers it cannot be seen which of two reasons it is.
    let (mut a, b) = (Asked::apart("plain", 0), Asked::apart("plain", 0));
    let said = a.reads(&b);
    assert!(said.contains("is not dumpable") && said.contains("; or user namespaces differ"), "{said}");
}

#[test]
fn processes_with_fewer_capabilities() {
    let _dog = watchdog("capabilities", 60);
    if !is_root() || !are_let_in() {
        return;
    }
    let (mut a, mut b) = (Asked::behind(&["setpriv", "--bounding-set=-all"], "plain", 0), Asked::new(start("asked plain")));
    let wanted = format!("process {} has capabilities that process {} lacks (0x", b.pid(), a.pid());
    let said = a.reads(&b);
    assert!(said.starts_with(&format!("EPERM: {wanted}")) && !said.contains("; or "), "{said}");
    assert!(b.keeps_out(&a).starts_with(&wanted));
    assert_eq!(b.reads(&a), "yes", "the other way");
}

#[test]
fn a_process_with_a_filter() {
    let _dog = watchdog("filter", 60);
    if !are_let_in() {
        return;
    }
    let (mut a, mut b) = (Asked::new(start("asked filtered again")), Asked::new(start("asked plain")));
    let said = a.reads(&b);
    assert!(said.starts_with("EPERM: a seccomp filter forbids process_vm_readv, even within a process"), "{said}");
    assert_eq!(a.writes(&b), "yes");
    let said = b.keeps_out(&a);
    assert!(said.starts_with(&format!("process {} has a seccomp filter", a.pid())), "{said}");
    let mut c = Asked::new(start("asked unwriting again"));
    assert_eq!(c.reads(&b), "yes");
    let said = c.writes(&b);
    assert!(said.starts_with("ENOSYS: a seccomp filter forbids process_vm_writev"), "{said}");
}

#[test]
fn a_process_that_is_gone() {
    let _dog = watchdog("gone", 60);
    if !are_let_in() {
        return;
    }
    let (mut a, mut b) = (Asked::new(start("asked plain")), Asked::new(start("asked plain")));
    b.copy.kill();
    assert!(a.reads(&b).starts_with("ESRCH: "));
}
