//! Sockets that a forked child lets go of.
//!
//! The kernel tells the other side that this process ended once nobody has the connection's descriptor any more. A child by fork(2) has
//! all of them, and one that lives on without exec(2) would keep a dead process's connections up for as long as it lives: peers would wait for somebody who
//! never answers, and callers queue up at a listener that nobody serves. So a handler of `pthread_atfork` replaces what was [noted](let_go) here by a descriptor that means nothing,
//! in every child. The number stays taken, unless the child may have no other descriptor or none so high: whatever the child does with what it inherited of our objects, it cannot hit a file of its own.
//!
//! A note is the socket's inode, at the place of its descriptor's number. It is never taken back: the child compares, and a number that was closed and is something else by now is left
//! alone. So closing needs no care, and nobody takes a lock. A number's last two notes count, for fork copies the descriptors before the memory, and another thread may close one socket
//! and make the next in between. Not covered: children by raw clone(2) or `_Fork`, which run no handlers; a socket that another thread is just making; descriptors from 65536 on.
#![expect(unsafe_code)]
// UNSAFETY: registers a C function; borrows descriptors by their number, and replaces and closes them in a child.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::FileType;
use std::sync::Once;

/// Descriptors that can be noted.
const NUMBERS: usize = 1 << 16;

/// The lower halves (sockets' inodes have no other) of the last inode and of the one before, by a descriptor's number; 0 is none. In no allocator's memory: a heap whose copy for the child was made
/// before the fork (`heap/`) would give it old ones. Pages of it that nobody writes to are none.
static NOTES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Where notes end.
static END: AtomicU32 = AtomicU32::new(0);

/// Notes a socket: children let go of it.
pub fn let_go(socket: OwnedFd) -> OwnedFd {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded (capi/build.rs). It fails for want of memory only; children keep the sockets then, as ever before.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let number = socket.as_raw_fd() as u32;
    if let (Some(note), Some(inode)) = (NOTES.get(number as usize), inode(&socket)) {
        // Nobody else has this number.
        note.store(note.load(Ordering::Relaxed) << 32 | u64::from(inode), Ordering::Relaxed);
        END.fetch_max(number + 1, Ordering::Relaxed);
    }
    socket
}

/// Of a socket, its lower half; none if it is something else.
fn inode(fd: &impl AsFd) -> Option<u32> {
    let is = rustix::fs::fstat(fd).ok()?;
    (FileType::from_raw_mode(is.st_mode) == FileType::Socket).then_some(is.st_ino as u32)
}

/// Whether this descriptor is a socket of ours.
fn is_noted(fd: BorrowedFd<'_>) -> bool {
    let note = NOTES.get(fd.as_raw_fd() as usize).map_or(0, |note| note.load(Ordering::Relaxed));
    note != 0 && inode(&fd).is_some_and(|inode| [note as u32, (note >> 32) as u32].contains(&inode))
}

/// What stands in for sockets: nobody ever raises it.
fn nothing() -> Option<RawFd> {
    Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?.into_raw_fd())
}

/// Only what is async-signal-safe (signal-safety(7)): other threads of the parent may have held any lock.
extern "C" fn in_child() {
    let mut instead = None;
    for fd in 0..END.load(Ordering::Relaxed) as RawFd {
        // SAFETY: used for a question only, to which "no such descriptor" is an answer.
        if !is_noted(unsafe { BorrowedFd::borrow_raw(fd) }) {
            continue;
        }
        instead = instead.or_else(nothing);
        // SAFETY: two numbers. What is closed is this process's own reference to a socket that nothing in it uses: every entry point is inert in a child.
        if instead.is_none_or(|instead| unsafe { libc::dup3(instead, fd, libc::O_CLOEXEC) } < 0) {
            // No number is left, or none so high may be had any more (`RLIMIT_NOFILE`): better a number that is free than a connection that never ends.
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
    if let Some(instead) = instead {
        // SAFETY: made above, and in nobody's hands.
        unsafe { libc::close(instead) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// A child by fork that lives until it is killed, at the end.
    struct Child(libc::pid_t);

    impl Child {
        fn new(first: impl FnOnce()) -> Child {
            // SAFETY: the child runs system calls only.
            match unsafe { libc::fork() } {
                0 => {
                    first();
                    loop {
                        // SAFETY: always.
                        unsafe { libc::pause() };
                    }
                }
                pid => Child(pid),
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: a child of this process, waited for nowhere else.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, core::ptr::null_mut(), 0);
            }
        }
    }

    fn ends_within(millis: u64, mut of: &UnixStream) -> bool {
        of.set_read_timeout(Some(std::time::Duration::from_millis(millis))).expect("a time-out");
        matches!(of.read(&mut [0; 8]), Ok(0))
    }

    #[test]
    fn the_end_of_the_parent_s_socket_is_heard_while_a_child_lives() {
        fork::alone("sys::inherited::tests::the_end_of_the_parent_s_socket_is_heard_while_a_child_lives", || {
            let [(own, other), (kept, of_kept)] = [(); 2].map(|()| UnixStream::pair().expect("a pair"));
            let own = let_go(own.into());
            let child = Child::new(|| {});
            assert!(!ends_within(100, &other), "the parent's descriptor is its own");
            drop((own, kept));
            assert!(ends_within(10_000, &other), "the child has the connection");
            assert!(!ends_within(100, &of_kept), "what was not noted is the child's, too, or this test proves nothing");
            drop(child);
        });
    }

    #[test]
    fn a_number_that_is_something_else_by_now_is_left_alone() {
        fork::alone("sys::inherited::tests::a_number_that_is_something_else_by_now_is_left_alone", || {
            let (own, _other) = UnixStream::pair().expect("a pair");
            let own = let_go(own.into());
            let number = own.as_raw_fd();
            drop(own);
            let (mut later, mut end) = UnixStream::pair().expect("a pair");
            assert_eq!(later.as_raw_fd(), number, "the lowest number is given out first (open(2))");
            let child = Child::new(|| {
                let _ = later.write(b"mine");
            });
            let mut said = [0; 4];
            end.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a time-out");
            end.read_exact(&mut said).expect("the child writes");
            assert_eq!(&said, b"mine");
            drop(child);
        });
    }

    #[test]
    fn the_child_cannot_hit_a_file_of_its_own() {
        fork::alone("sys::inherited::tests::the_child_cannot_hit_a_file_of_its_own", || {
            let (own, _other) = UnixStream::pair().expect("a pair");
            let own = let_go(own.into());
            let (mut tell, mut told) = UnixStream::pair().expect("a pair");
            let child = Child::new(|| {
                let is_taken = rustix::io::fcntl_getfd(&own).is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC));
                let is_socket = inode(&own).is_some();
                let _ = tell.write(&[u8::from(is_taken), u8::from(is_socket)]);
            });
            let mut said = [9; 2];
            told.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a time-out");
            told.read_exact(&mut said).expect("the child tells");
            assert_eq!(said, [1, 0], "taken, and no socket");
            drop(child);
        });
    }

    /// Closed and made anew between the kernel's copies of the descriptors and of the memory: the child has the one and the note of the other.
    #[test]
    fn the_note_before_counts_too() {
        let (a, _a) = UnixStream::pair().expect("a pair");
        let a = let_go(a.into());
        let (inode, note) = (inode(&a).expect("a socket"), &NOTES[a.as_raw_fd() as usize]);
        assert!(is_noted(a.as_fd()));
        note.store(note.load(Ordering::Relaxed) << 32 | u64::from(inode + 1), Ordering::Relaxed);
        assert!(is_noted(a.as_fd()));
        note.store(note.load(Ordering::Relaxed) << 32 | u64::from(inode + 2), Ordering::Relaxed);
        assert!(!is_noted(a.as_fd()));
    }

    /// The limit of descriptors was lowered below what is open: no copy can be put there (dup2(2)).
    #[test]
    fn what_lies_above_the_limit_is_closed() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        fork::alone("sys::inherited::tests::what_lies_above_the_limit_is_closed", || {
            let (own, other) = UnixStream::pair().expect("a pair");
            let high = let_go(rustix::io::fcntl_dupfd_cloexec(&own, 500).expect("a number from 500 on"));
            drop(own);
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(400), maximum }).expect("less may always be had");
            let child = Child::new(|| {});
            drop(high);
            assert!(ends_within(10_000, &other), "the child has the connection");
            drop(child);
        });
    }

    #[test]
    fn all_kinds_of_sockets_are_noted() {
        use crate::sys::{socket, tcp};
        use std::net::{Ipv4Addr, SocketAddr};
        let name = format!("rustmx-test-noted-{}", std::process::id());
        let listener = socket::listen(&name).expect("listen");
        let caller = socket::connect(&name).expect("connect");
        let called = socket::accept(&listener).expect("accept");
        let at = tcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("listen");
        let there = tcp::connect(tcp::own_address(&at).expect("an address"), None, 0).expect("connect");
        let here = loop {
            match tcp::accept(&at) {
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                accepted => break accepted.expect("accept").0,
            }
        };
        for fd in [listener, caller, called, at, there, here] {
            assert!(is_noted(fd.as_fd()));
        }
    }
}
