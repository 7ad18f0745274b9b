//! Kernels that refuse to send without a copy, wholly or for the moment: little memory that may be locked, io_uring forbidden or missing. Messages arrive all the
//! same, by another way, and which one is off is told once, with why. Each in a process of its own, as another user where this one is root: limits are
//! a user's, and who may lock memory has none.

use crate::common::process::{Copy, command_by, role, say, spawn};
use crate::common::{Deadline, Msg, Node, Want, all_ok, pattern, watchdog};
use crate::filter::{self, URING};
use crate::flow::pair_with;
use crate::scene::registering;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustmx::sys::uring::Uring;
use rustmx::{Addr, Stats, Telling};
use std::sync::atomic::{AtomicU32, Ordering};

/// A user that nobody is, most likely: what it has locked is counted apart. Each role has its own, since tests run at the same time, and those of each run are
/// others, since the kernel lets go of a ring some time after its process has ended.
fn nobody() -> u32 {
    const FIRST: u32 = 61_000;
    const ROLES: u32 = 10;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
    assert!(taken < ROLES, "more roles than users: raise ROLES");
    FIRST + std::process::id() % 400 * ROLES + taken
}

/// Two endpoints, and memory that messages come out of again and again.
struct Talk {
    a: Node,
    b: Node,
    to_b: Addr,
    out: Vec<Vec<u8>>,
    into: Vec<u8>,
    rounds: usize,
}

impl Talk {
    fn new() -> Talk {
        let (a, b, to_b, _) = pair_with(&registering());
        let out: Vec<Vec<u8>> = [100_000, 300_000, 1_500_000].into_iter().map(|len| vec![0; len]).collect();
        Talk { a, b, to_b, out, into: vec![0; 1_500_000], rounds: 0 }
    }

    /// Each of the buffers, so many times, with other bytes each time.
    fn on(&mut self, rounds: usize) {
        let until = Deadline::new(100);
        for _ in 0..rounds {
            for n in 0..self.out.len() {
                let len = self.out[n].len();
                self.rounds += 1;
                self.out[n].copy_from_slice(&pattern(len, self.rounds));
                self.b.recv(Want::tag(1), &mut self.into[..len]).expect("recv");
                self.a.send(Msg::new(self.to_b, 1), &mut self.out[n]).expect("send");
                let (mut left, mut came) = (0, 0);
                while (left, came) != (1, 1) {
                    left += all_ok(&self.a.poll());
                    came += all_ok(&self.b.poll());
                    until.check(|| format!("message {}: {left} left, {came} came, {:?}", self.rounds, self.a.stats()));
                }
                assert!(self.into[..len] == pattern(len, self.rounds), "message {} was altered", self.rounds);
            }
        }
    }

    fn stats(&self) -> Stats {
        self.a.stats()
    }

    /// What is told of registered buffers: once.
    fn told(&self) -> String {
        let told = self.a.domain.ep_history(self.a.ep, Telling::All).expect("told");
        let lines: Vec<&str> = told.lines().filter(|line| line.contains("registered buffers:")).collect();
        let [line] = lines[..] else { panic!("{told}") };
        line.into()
    }

    /// Nothing leaves out of registered buffers, for a reason that is told.
    #[track_caller]
    fn is_without(&mut self, why: &str) {
        self.on(30);
        let (stats, told) = (self.stats(), self.told());
        assert_eq!(stats.zerocopy_registered, 0, "{told}");
        assert!(told.contains("off for 1 of the connections to other hosts") && told.contains(why), "{told}");
    }
}

fn limit(bytes: u64) {
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: Some(bytes) }).expect("less is always allowed");
}

/// Registers memory with a ring of somebody else of this user: all that may be locked but so many bytes, or as much as the kernel takes.
fn use_up(most: usize, but: usize) -> Option<Uring> {
    let ring = Uring::open(256).map_err(|why| println!("not tried: {why}")).ok()?;
    let may = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh memory, to the end of the process.
    #[expect(unsafe_code)]
    let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), most, may, MapFlags::PRIVATE) }.expect("map") as usize;
    let (mut slot, mut from) = (0, at);
    for step in [64 << 10, 4 << 10] {
        while from + step <= at + most - but && ring.register(slot, &(from..from + step)).is_ok() {
            (slot, from) = (slot + 1, from + step);
        }
    }
    Some(ring)
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn refused() {
    let Some(words) = role() else { return };
    let _dog = watchdog("refused", 150);
    let [setup, register, enter] = URING;
    match words[0].as_str() {
        "may-lock" => {
            let most: u64 = words[1].parse().expect("bytes");
            limit(most);
            if most < 1 << 20 {
                Talk::new().is_without("raise the limit of locked memory (ulimit -l)");
            } else {
                let mut talk = Talk::new();
                talk.on(30);
                let (stats, told) = (talk.stats(), talk.told());
                assert!(
                    stats.zerocopy_registered > 10 << 20 && told.contains("on for 1 of the connections"),
                    "{stats:?}: {told}"
                );
            }
        }
        // All that may be locked others have, before there is a ring, or when there is one already; and then they have not any more.
        "used-up" => {
            const MOST: usize = 8 << 20;
            limit(MOST as u64);
            let but = words[1].parse().expect("bytes");
            let Some(others) = use_up(MOST, but) else { return say("done") };
            let mut talk = Talk::new();
            talk.is_without("raise the limit of locked memory (ulimit -l)");
            drop(others);
            let until = Deadline::new(100);
            while talk.stats().zerocopy_registered == 0 {
                talk.on(10);
                until.check(|| format!("it is never tried again: {}", talk.told()));
            }
            assert!(talk.told().contains("on for 1 of the connections"), "{}", talk.told());
        }
        "forbidden" => {
            filter::refuse(&[(setup, Errno::PERM)]);
            let mut talk = Talk::new();
            talk.is_without("io_uring is forbidden here (kernel.io_uring_disabled, or a container's filter of system calls)");
            assert!(talk.stats().zerocopy > 0, "{:?}", talk.stats());
        }
        "missing" => {
            filter::refuse(&[(setup, Errno::NOSYS)]);
            let mut talk = Talk::new();
            talk.is_without("this kernel has no io_uring");
            assert!(talk.stats().zerocopy > 0, "{:?}", talk.stats());
        }
        // As a kernel that has io_uring and cannot be asked what it can do.
        "poor" => {
            filter::refuse(&[(register, Errno::INVAL)]);
            Talk::new().is_without("io_uring cannot be had");
        }
        // A program that locks itself up when everything is going.
        "forbidden-later" => {
            let mut talk = Talk::new();
            talk.on(5);
            if talk.stats().zerocopy_registered == 0 {
                println!("not tried: {}", talk.told());
                return say("done");
            }
            filter::refuse(&[(register, Errno::PERM), (enter, Errno::PERM)]);
            let before = talk.stats();
            talk.on(20);
            let (stats, told) = (talk.stats(), talk.told());
            assert_eq!(stats.zerocopy_registered, before.zerocopy_registered);
            assert!(stats.zerocopy > before.zerocopy && told.contains("off for 1"), "{stats:?}: {told}");
            assert!(told.contains("it is asked no more"), "{told}");
        }
        _ => panic!("no such role: {words:?}"),
    }
    say("done");
}

/// Runs roles at the same time, each as a user of its own.
#[track_caller]
fn run(roles: &[&str]) {
    let _dog = watchdog("refusals", 200);
    let is_root = rustix::process::geteuid().is_root();
    let started: Vec<(&str, Copy)> = roles
        .iter()
        .map(|words| {
            let (mut command, _copy) = command_by(is_root.then(nobody), "refusals::refused", words);
            (*words, spawn(&mut command))
        })
        .collect();
    for (words, mut copy) in started {
        let status = copy.ended_within(150);
        assert!(status.success(), "{words}: {status}");
        assert_eq!(copy.heard_last().as_deref(), Some("done"), "{words} did not run");
    }
}

#[test]
fn little_memory_may_be_locked() {
    let most = getrlimit(Resource::Memlock).maximum;
    let roles = ["may-lock 0", "may-lock 65536", "may-lock 8388608"];
    run(&roles[..if most.is_some_and(|most| most < 8 << 20) { 2 } else { 3 }]);
}

#[test]
fn others_have_locked_what_may_be() {
    if getrlimit(Resource::Memlock).maximum.is_some_and(|most| most < 8 << 20) {
        return println!("less may be locked than this needs: not tried");
    }
    if !rustix::process::geteuid().is_root() {
        return println!("what this user has locked is not known: not tried");
    }
    run(&["used-up 0", "used-up 65536"]);
}

#[test]
fn no_io_uring() {
    run(&["forbidden", "missing", "poor", "forbidden-later"]);
}
