//! How many files this process may open, and how much memory it may lock (getrlimit(2)).

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

/// Does what makes a descriptor. If the process may not have more (`EMFILE`), but might if it asked, it asks, and does it again.
///
/// The soft limit is usually 1024, so that programs live that keep descriptors in bit sets of 1024 (select(2)); a connection a peer does not fit
/// into that in a job of a thousand ranks. Such a program would break by a higher limit only if it had more descriptors than that; without, this
/// one breaks for sure. So the limit is raised when it is reached, not before. Children inherit it.
pub fn with_descriptors<T>(mut make: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::MFILE) if raise() => make(),
        done => done,
    }
}

/// Raises the soft limit to the hard one. Whether it was lower.
fn raise() -> bool {
    let limit = getrlimit(Resource::Nofile);
    limit.current != limit.maximum && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_ok()
}

/// Whether less than half of the descriptors that this process may have are in use, by the number of one that was just made: the kernel gives the
/// lowest one that is free.
pub fn has_plenty(fd: &OwnedFd) -> bool {
    getrlimit(Resource::Nofile).current.is_none_or(|most| (fd.as_raw_fd() as u64) < most / 2)
}

/// That a file of `len` bytes may be made: who makes one that is longer than a process may have (`ulimit -f`) is killed by SIGXFSZ (setrlimit(2)). Shared memory
/// counts.
///
/// # Errors
/// `EFBIG`, which is what the kernel says where that signal is ignored.
pub fn may_be_as_long(len: u64) -> Result<(), Errno> {
    let most = getrlimit(Resource::Fsize).current;
    if most.is_some_and(|most| len > most) { Err(Errno::FBIG) } else { Ok(()) }
}

/// What to say when it may not.
pub(super) fn no_file_as_long() -> String {
    let most = getrlimit(Resource::Fsize).current.map_or_else(|| "unlimited".into(), |n| format!("{n} bytes"));
    format!(
        "this process may have no file as long as that, and shared memory is one ({most}); raise the limit on every host (`ulimit -f`)"
    )
}

/// Bytes of memory that processes of this user may lock, all together; `None`: as many as there are.
pub fn lockable() -> Option<usize> {
    let able = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    // Root of a container's user namespace is able to do much there, but the kernel asks whether it is root of the machine.
    let may = able && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_all(&map));
    let most = getrlimit(Resource::Memlock).current;
    most.filter(|_| !may).map(|most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Whether users of this namespace are those of the machine, by what user_namespaces(7) says of `uid_map`.
pub(super) fn is_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// What to say when there is none left.
pub(super) fn no_descriptors() -> String {
    let limit = getrlimit(Resource::Nofile);
    let shown = |n: Option<u64>| n.map_or_else(|| "unlimited".into(), |n| n.to_string());
    format!(
        "this process has all file descriptors that it may have ({}; a peer on another host takes one); raise the limit on every host, \
         as with `ulimit -Hn`, LimitNOFILE= of systemd, or --ulimit nofile= of a container",
        shown(limit.current)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn namespaces_of_users() {
        let maps = ["         0          0 4294967295\n", "0 1000 1\n", "0 0 65536\n", "0 1000 1\n1 100000 65536\n", ""];
        assert_eq!(maps.map(is_all), [true, false, false, false, false]);
    }

    #[test]
    fn the_limit_is_raised_when_it_is_reached() {
        fork::alone("sys::limits::tests::the_limit_is_raised_when_it_is_reached", || {
            const SOFT: u64 = 64;
            let hard = getrlimit(Resource::Nofile).maximum;
            let limit = |maximum| setrlimit(Resource::Nofile, Rlimit { current: Some(SOFT), maximum }).expect("lowered");
            limit(hard);
            let open = || rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty());
            let mut all = vec![open().expect("one of many")];
            assert!(has_plenty(&all[0]));
            let refused = loop {
                match open() {
                    Ok(fd) => all.push(fd),
                    Err(why) => break why,
                }
            };
            assert_eq!(refused, Errno::MFILE);
            assert!(all.len() as u64 <= SOFT && !all.last().is_some_and(has_plenty));
            if hard.is_none_or(|hard| hard > SOFT) {
                all.push(with_descriptors(open).expect("one more"));
                assert_eq!(getrlimit(Resource::Nofile).current, hard);
            }
            limit(Some(SOFT));
            assert_eq!(with_descriptors(open).err(), Some(Errno::MFILE));
            assert!(no_descriptors().contains("(64;"), "{}", no_descriptors());
        });
    }
}
