//! Why the kernel does not let one process reach another's memory: what ptrace(2) asks under "Ptrace access mode checking", looked for in /proc.
//!
//! The kernel answers EPERM for all of it. It asks in this order: users, whether the target is dumpable, user namespaces and capabilities, then Yama
//! and other security modules; a seccomp filter is asked before all of them. Who may look at `/proc/PID/ns/user` has been let through all but Yama.
//! Read once for each peer that is refused, never while messages go.

use super::limits;
use crate::mem::remote;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, dumpable_behavior};
use std::fmt;
use std::os::unix::fs::MetadataExt;

/// What the kernel was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// process_vm_readv(2).
    Read,
    /// process_vm_writev(2).
    Write,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Read => "process_vm_readv",
            Call::Write => "process_vm_writev",
        }
    }

    /// What the kernel says of this process's own memory, which it forbids nobody.
    fn of_own(self) -> Result<(), Errno> {
        let word = [0u64];
        match self {
            Call::Read => remote::ask(std::process::id(), word.as_ptr().addr() as u64),
            Call::Write => remote::ask_to_write(std::process::id()),
        }
    }
}

/// Why this process could not reach the memory of process `pid`, for which the kernel answered `errno`: a sentence for people, with what helps.
pub fn to_this_process(pid: u32, errno: Errno, call: Call) -> String {
    let name = match errno {
        Errno::PERM | Errno::ACCESS => "EPERM".into(),
        Errno::NOSYS => "ENOSYS".into(),
        Errno::SRCH => {
            return "ESRCH: no process with this number is seen from here: it has ended, or its PID namespace is another one \
                    (containers of one job need a common one, as with --pid=host)"
                .into();
        }
        other => format!("error {}", other.raw_os_error()),
    };
    let caller = Facts::own();
    let seccomp = caller.as_ref().map_or(0, |own| own.seccomp);
    if let Err(errno) = call.of_own() {
        return format!("{name}: {}", Cause::Call { call, errno, seccomp });
    }
    let looks = std::fs::read_link(format!("/proc/{pid}/ns/user")).is_ok();
    let causes = match (caller, Facts::of(pid)) {
        (Some(caller), Some(target)) => judge(&caller, &target, &Seen { looks: Some(looks), ..Seen::now(&caller, &target) }),
        _ => vec![Cause::Hidden(pid)],
    };
    format!("{name}: {}", listed(&causes))
}

/// Why process `pid` could not reach the memory of this one.
pub fn to_process(pid: u32) -> String {
    let (Some(caller), Some(mut target)) = (Facts::of(pid), Facts::own()) else { return Cause::Hidden(pid).to_string() };
    target.dumpable = dumpable_behavior().ok().map(|how| how == DumpableBehavior::Dumpable);
    let mut causes = judge(&caller, &target, &Seen::now(&caller, &target));
    causes.retain(|cause| *cause != Cause::Module);
    if causes.is_empty() {
        return format!("nothing that forbids it is seen from here: FI_RUSTMX_CMA=never of process {pid}, or a security module");
    }
    listed(&causes)
}

fn listed(causes: &[Cause]) -> String {
    causes.iter().map(Cause::to_string).collect::<Vec<_>>().join("; or ")
}

/// What /proc tells of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    pid: u32,
    parent: u32,
    /// Real, effective, saved.
    users: [u32; 3],
    groups: [u32; 3],
    permitted: u64,
    effective: u64,
    /// 0: no filter.
    seccomp: u32,
    /// `/proc/PID/ns/user`, if this process may look at it.
    namespace: Option<String>,
    /// `/proc/PID/uid_map`, which everybody may read.
    map: String,
    /// Whether its memory may be looked at; not known of who is root anyway.
    dumpable: Option<bool>,
    /// What a security module calls it.
    label: Option<String>,
}

impl Facts {
    /// Of this thread, whose rights count where it asks.
    fn own() -> Option<Facts> {
        let facts = Facts::read("thread-self")?;
        // The others know this thread by its process.
        Some(Facts { pid: std::process::id(), ..facts })
    }

    fn of(pid: u32) -> Option<Facts> {
        Facts::read(&pid.to_string())
    }

    fn read(who: &str) -> Option<Facts> {
        let path = |name: &str| format!("/proc/{who}/{name}");
        let status = std::fs::read_to_string(path("status")).ok()?;
        let owner = std::fs::metadata(path("status")).ok().map(|file| (file.uid(), file.gid()));
        let mut facts = Facts::parse(&status)?;
        facts.namespace = std::fs::read_link(path("ns/user")).ok().map(|link| link.to_string_lossy().into_owned());
        facts.map = std::fs::read_to_string(path("uid_map")).unwrap_or_default();
        let label = std::fs::read_to_string(path("attr/current")).unwrap_or_default();
        facts.label = Some(label.trim_end_matches(['\0', '\n']).to_string()).filter(|label| !label.is_empty());
        facts.dumpable = owner.and_then(|owner| facts.is_dumpable(owner));
        Some(facts)
    }

    fn parse(status: &str) -> Option<Facts> {
        let words = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::split_whitespace);
        let number = |name: &str| words(name)?.next()?.parse::<u32>().ok();
        let mask = |name: &str| u64::from_str_radix(words(name)?.next()?, 16).ok();
        let three = |name: &str| {
            let all: Vec<u32> = words(name)?.take(3).filter_map(|w| w.parse().ok()).collect();
            <[u32; 3]>::try_from(all).ok()
        };
        Some(Facts {
            pid: number("Pid")?,
            parent: number("PPid")?,
            users: three("Uid")?,
            groups: three("Gid")?,
            permitted: mask("CapPrm")?,
            effective: mask("CapEff")?,
            // A kernel without filters does not name them.
            seccomp: number("Seccomp").unwrap_or(0),
            namespace: None,
            map: String::new(),
            dumpable: None,
            label: None,
        })
    }

    /// The kernel gives the files of a process to root if it is not dumpable. That tells something if they would be somebody else's.
    fn is_dumpable(&self, owner: (u32, u32)) -> Option<bool> {
        // Users that this namespace has no number for.
        const NOBODY: u32 = 65_534;
        let whose = (self.users[1], self.groups[1]);
        let all_known = limits::is_all(&self.map);
        match owner == whose {
            false => Some(false),
            true if whose == (0, 0) || (!all_known && whose.0 == NOBODY) => None,
            true => Some(true),
        }
    }

    fn is_same_user(&self, target: &Facts) -> bool {
        target.users == [self.users[0]; 3] && target.groups == [self.groups[0]; 3]
    }

    /// Whether both are in one user namespace; `None`: that cannot be seen.
    fn is_same_namespace(&self, other: &Facts) -> Option<bool> {
        const FIRST: &str = "user:[4026531837]";
        match (&self.namespace, &other.namespace) {
            (Some(a), Some(b)) => Some(a == b),
            _ if self.map != other.map => Some(false),
            // Only the first one has all users.
            (known, other) if known.as_ref().or(other.as_ref()).is_some_and(|n| n == FIRST) && limits::is_all(&self.map) => {
                Some(true)
            }
            _ => None,
        }
    }

    fn may_trace(&self) -> bool {
        const SYS_PTRACE: u32 = 19;
        self.effective & 1 << SYS_PTRACE != 0
    }
}

/// What else counts.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Whether the caller may look at the target in /proc, if that could be tried.
    looks: Option<bool>,
    /// Yama's ptrace_scope.
    scope: Option<u8>,
    /// The caller descends from the target's parent, which launchers are.
    kin: bool,
}

impl Seen {
    fn now(caller: &Facts, target: &Facts) -> Seen {
        let scope = super::tracer::scope();
        let parent_of = |pid: u32| Facts::of(pid).map_or(0, |facts| facts.parent);
        // Trees of processes are not deep.
        let mut ancestors =
            std::iter::successors(Some(caller.parent), |pid| Some(parent_of(*pid))).take(64).take_while(|pid| *pid > 1);
        let kin = scope == Some(1) && ancestors.any(|pid| pid == target.parent);
        Seen { looks: None, scope, kin }
    }
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// The call fails for everything.
    Call {
        call: Call,
        errno: Errno,
        seccomp: u32,
    },
    /// Caller and target run as other users or groups.
    Users([(u32, u32, u32); 2]),
    Dumpable(u32),
    /// Of caller and target, as far as known.
    Namespaces([(u32, Option<String>); 2]),
    /// The target has some that the caller lacks.
    Capabilities {
        caller: u32,
        target: u32,
        mask: u64,
    },
    /// `ptrace_scope` 1, between children of different parents.
    NotKin([(u32, u32); 2]),
    /// `ptrace_scope` 1, of a target that named nobody.
    LetsInNobody(u32),
    /// `ptrace_scope` 2 or 3.
    Scope(u8),
    Labels([(u32, String); 2]),
    /// The caller has a seccomp filter.
    Filter(u32),
    /// A security module that leaves no trace, or something new.
    Module,
    /// /proc shows nothing of it.
    Hidden(u32),
}

/// The reason; or those that remain, if it cannot be seen which it is.
fn judge(caller: &Facts, target: &Facts, seen: &Seen) -> Vec<Cause> {
    let same = caller.is_same_namespace(target);
    let able = caller.may_trace() && same == Some(true);
    let namespaces = || Cause::Namespaces([caller, target].map(|p| (p.pid, p.namespace.clone())));
    let mut left = Vec::new();
    if seen.looks != Some(true) && !able {
        let mask = target.permitted & !caller.permitted;
        if same == Some(false) {
            return vec![namespaces()];
        }
        if !caller.is_same_user(target) {
            return vec![Cause::Users([caller, target].map(|p| (p.pid, p.users[0], p.groups[0])))];
        }
        if target.dumpable == Some(false) {
            return vec![Cause::Dumpable(target.pid)];
        }
        if same == Some(true) && mask != 0 {
            return vec![Cause::Capabilities { caller: caller.pid, target: target.pid, mask }];
        }
        left.extend(target.dumpable.is_none().then_some(Cause::Dumpable(target.pid)));
        left.extend(same.is_none().then(namespaces));
    }
    // Yama forbids nobody to look.
    if seen.looks != Some(false) {
        match seen.scope {
            Some(scope @ 3..) => return vec![Cause::Scope(scope)],
            Some(2) if !able => return vec![Cause::Scope(2)],
            Some(1) if !able && !seen.kin => return vec![Cause::NotKin([caller, target].map(|p| (p.pid, p.parent)))],
            Some(1) if !able && seen.looks == Some(true) => return vec![Cause::LetsInNobody(target.pid)],
            Some(1) if !able => left.push(Cause::LetsInNobody(target.pid)),
            _ => {}
        }
        // Of this process's own filter more is known.
        left.extend((seen.looks.is_none() && caller.seccomp != 0).then_some(Cause::Filter(caller.pid)));
    }
    match (&caller.label, &target.label) {
        (Some(a), Some(b)) if a != b => left.push(Cause::Labels([(caller.pid, a.clone()), (target.pid, b.clone())])),
        (Some(a), _) if a != "unconfined" => left.push(Cause::Module),
        _ if left.is_empty() => left.push(Cause::Module),
        _ => {}
    }
    left
}

/// A clause for people, and what helps.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Call { call, seccomp: 1.., .. } => write!(
                f,
                "a seccomp filter forbids {}, even within a process: in a container allow process_vm_readv and process_vm_writev",
                call.name()
            ),
            Cause::Call { call, errno, .. } if *errno == Errno::NOSYS => {
                write!(f, "this kernel has no {} (CONFIG_CROSS_MEMORY_ATTACH)", call.name())
            }
            Cause::Call { call, errno, .. } => {
                write!(f, "{} fails even within a process (error {}), as in sandboxes", call.name(), errno.raw_os_error())
            }
            Cause::Users([(p, pu, pg), (q, qu, qg)]) => write!(
                f,
                "process {p} runs as user {pu} and group {pg}, process {q} as user {qu} and group {qg}: run all ranks of a host as one user"
            ),
            Cause::Dumpable(pid) => write!(
                f,
                "process {pid} is not dumpable: it said so itself (prctl, PR_SET_DUMPABLE), changed its user or capabilities after it \
                 was started, or its user may not read its program"
            ),
            Cause::Namespaces([(p, of_p), (q, of_q)]) => {
                f.write_str("user namespaces differ")?;
                if let (Some(a), Some(b)) = (of_p, of_q) {
                    write!(f, " (process {p}: {a}, process {q}: {b})")?;
                }
                f.write_str(": run all ranks of a host in one container, or in containers with a common user namespace")
            }
            Cause::Capabilities { caller, target, mask } => write!(
                f,
                "process {target} has capabilities that process {caller} lacks ({mask:#x}; capsh --decode={mask:x} names them): start \
                 all ranks of a host with the same"
            ),
            Cause::NotKin([(p, of_p), (q, of_q)]) => write!(
                f,
                "/proc/sys/kernel/yama/ptrace_scope is 1, and process {q} lets in at most children of its own parent {of_q}, but process \
                 {p} is a child of {of_p}: where each rank is started by a script of its own `exec` in it helps; FI_RUSTMX_YAMA=any lets \
                 in all processes of this user"
            ),
            Cause::LetsInNobody(pid) => write!(
                f,
                "/proc/sys/kernel/yama/ptrace_scope is 1, and process {pid} lets in nobody (FI_RUSTMX_YAMA=none, or the program's own \
                 prctl): FI_RUSTMX_YAMA=launcher or any helps"
            ),
            Cause::Scope(2) => f.write_str(
                "/proc/sys/kernel/yama/ptrace_scope is 2, which keeps ranks out of each other's memory: root may set it to 1 \
                 (sysctl kernel.yama.ptrace_scope=1)",
            ),
            Cause::Scope(scope) => write!(
                f,
                "/proc/sys/kernel/yama/ptrace_scope is {scope}, which keeps ranks out of each other's memory until the machine starts \
                 again with another"
            ),
            Cause::Labels([(p, of_p), (q, of_q)]) => write!(
                f,
                "a security module keeps processes of different profiles apart (process {p}: {of_p}, process {q}: {of_q}): run all ranks \
                 of a host under one"
            ),
            Cause::Filter(pid) => write!(
                f,
                "process {pid} has a seccomp filter: in a container allow process_vm_readv and process_vm_writev"
            ),
            Cause::Module => f.write_str(
                "neither users, user namespaces, capabilities nor ptrace_scope forbid it: a security module (AppArmor, SELinux, Landlock)",
            ),
            Cause::Hidden(pid) => {
                write!(f, "/proc shows nothing of process {pid} (mounted with hidepid, or another user's): run all ranks of a host as one user")
            }
        }
    }
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
