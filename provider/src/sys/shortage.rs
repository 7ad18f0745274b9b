//! What there is none of any more, by what the kernel said when it refused something; for people, with what to do.

use super::limits;
use crate::log::{Kind, Log};
use rustix::io::Errno;

/// What is lacking: which kind of thing, and a sentence. `None`: the kernel said something else.
///
/// `ENOSPC` is taken for what epoll_ctl(2) means by it.
pub fn lack(why: Errno) -> Option<(Kind, String)> {
    Some(match why {
        Errno::MFILE => (Kind::Descriptors, limits::no_descriptors()),
        Errno::NFILE => {
            let most = setting("file-max");
            let text = format!(
                "this machine has all files open that it may have ({most}); end what holds them, or raise fs.file-max (sysctl)"
            );
            (Kind::Files, text)
        }
        Errno::NOMEM | Errno::NOBUFS => {
            let text = format!(
                "the kernel has no memory for it ({why}); raise the memory limit of the container or the job (memory.max of its cgroup), \
                 the one of this process (`ulimit -v`), mappings (vm.max_map_count), and for sockets net.ipv4.tcp_mem (sysctl)"
            );
            (Kind::Memory, text)
        }
        Errno::NOSPC => {
            let most = setting("epoll/max_user_watches");
            let text =
                format!("this user watches all files by epoll that he may ({most}); raise fs.epoll.max_user_watches (sysctl)");
            (Kind::Watches, text)
        }
        Errno::FBIG => (Kind::Length, limits::no_file_as_long()),
        _ => return None,
    })
}

/// The same of shared memory that was to be made: nothing but a filter of system calls refuses that.
fn lack_of_memory(why: Errno) -> Option<(Kind, String)> {
    match why {
        Errno::PERM | Errno::NOSYS | Errno::ACCESS => {
            let text = format!(
                "memfd_create is refused ({why}): let it pass in the filter of system calls (seccomp) of the container or the sandbox"
            );
            Some((Kind::Filter, text))
        }
        _ => lack(why),
    }
}

/// Whether less of what was asked for may be had.
pub fn is_of_size(why: Errno) -> bool {
    matches!(why, Errno::NOMEM | Errno::FBIG)
}

/// Why shared memory could not be made: what the kernel said if nothing is lacking.
pub fn told_of_memory(why: Errno) -> String {
    lack_of_memory(why).map_or_else(|| why.to_string(), |(_, text)| text)
}

/// The same of any error: what the kernel said if nothing is lacking.
pub fn told(why: Errno) -> String {
    lack(why).map_or_else(|| why.to_string(), |(_, text)| text)
}

/// Says that `what` failed for `why`: if something is lacking once of each kind, and also where the log is not shown, for a job fails by it and MPIs do not say
/// why.
pub fn tell(log: &Log, why: Errno, what: impl FnOnce() -> String) {
    insist(log, lack(why), why, what);
}

/// The same of shared memory that could not be made.
pub fn tell_of_memory(log: &Log, why: Errno, what: impl FnOnce() -> String) {
    insist(log, lack_of_memory(why), why, what);
}

fn insist(log: &Log, lack: Option<(Kind, String)>, why: Errno, what: impl FnOnce() -> String) {
    match lack {
        Some((kind, text)) => log.insist_once(kind, None, || format!("{}: {text}", what())),
        None => log.warn(|| format!("{}: {why}", what())),
    }
}

/// A limit of the machine, as /proc/sys/fs says it.
fn setting(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/fs/{name}")).map_or_else(|_| "how many is not known".into(), |n| n.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::Shown;
    use std::sync::Arc;

    #[test]
    #[cfg_attr(miri, ignore = "/proc")]
    fn each_thing_that_is_lacking_is_told_once_with_what_to_do() {
        let shown = Arc::new(Shown::default());
        let log = Log::new(shown.clone());
        let all = [Errno::NOBUFS, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOSPC, Errno::MFILE, Errno::CONNREFUSED];
        all.iter().enumerate().for_each(|(i, why)| tell(&log, *why, || format!("no call {i}")));
        let shown = shown.lines();
        let help = ["0: ", "memory.max", "1: ", "ulimit -Hn", "2: ", "fs.file-max", "4: ", "fs.epoll.max_user_watches"];
        assert_eq!(shown.len(), help.len() / 2, "{shown:?}");
        for (line, help) in shown.iter().zip(help.chunks(2)) {
            assert!(line.starts_with("no call ") && help.iter().all(|word| line.contains(word)), "{help:?}: {line}");
        }
        // The limits of this machine.
        assert!(shown[2..].iter().all(|line| line.split(['(', ')']).any(|part| part.parse::<u64>().is_ok())), "{shown:?}");
    }

    #[test]
    fn what_is_not_lacking_is_what_the_kernel_said() {
        assert_eq!(told(Errno::ADDRNOTAVAIL), Errno::ADDRNOTAVAIL.to_string());
        assert!(told(Errno::NOMEM).contains(&Errno::NOMEM.to_string()));
    }
}
