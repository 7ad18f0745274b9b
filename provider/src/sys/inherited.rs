//! Sockets that a forked child lets go of.
//!
//! The kernel tells the other side that this process ended once nobody has the connection's descriptor any more. A child by fork(2) has
//! all of them, and one that lives on without exec(2) would keep a dead process's connections up for as long as it lives: peers would wait for somebody who
//! never answers, and callers queue up at a listener that nobody serves. So what was [noted](let_go) here is replaced in every child, before anything of
//! the program runs in it, by a descriptor that means nothing. The number stays taken: whatever the child does with what it inherited of our objects, it cannot hit a file of its own.
//!
//! A note is the number of a descriptor and the socket's inode. It is never taken back: the child compares, and a number that was closed and is something else by now is left
//! alone. So closing needs no care, and neither side takes a lock. Not covered: children by raw clone(2) or `_Fork`, which run no handlers; a socket that another thread is just
//! making while this one forks; and descriptors from 2^20 on.
#![expect(unsafe_code)]
// UNSAFETY: registers a C function; borrows descriptors by their number.

use core::sync::atomic::{AtomicU64, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::FileType;
use std::sync::OnceLock;

/// Descriptors by chunk.
const CHUNK: usize = 1 << 10;
/// Chunks: as many as are needed for what Linux allows a process at most, if nobody changed it (`fs.nr_open`, proc_sys_fs(5)).
const CHUNKS: usize = 1 << 10;

/// Inodes of the sockets by their descriptors' numbers; 0 is none. A `OnceLock` that is set is read without a lock, and one that another thread was setting at the fork reads as not set.
static NOTES: [OnceLock<Box<[AtomicU64]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// What children get in a socket's place. Made here since a child may have no number left for it. None: the handler could not be registered, or there is no descriptor to be had.
static NOTHING: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Notes a socket: children let go of it.
pub fn let_go(socket: OwnedFd) -> OwnedFd {
    if let (Some(_), Some(inode), Some(note)) = (NOTHING.get_or_init(register), inode(&socket), note(socket.as_raw_fd())) {
        note.store(inode, Ordering::Relaxed);
    }
    socket
}

fn register() -> Option<OwnedFd> {
    let nothing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    // SAFETY: a function of this library, which is never unloaded (capi/build.rs).
    (unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0).then_some(nothing)
}

fn note(fd: RawFd) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    NOTES.get(fd / CHUNK)?.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect()).get(fd % CHUNK)
}

/// Of a socket; none if it is something else.
fn inode(fd: &impl rustix::fd::AsFd) -> Option<u64> {
    let is = rustix::fs::fstat(fd).ok()?;
    (FileType::from_raw_mode(is.st_mode) == FileType::Socket).then_some(is.st_ino)
}

/// Only what is async-signal-safe (signal-safety(7)): other threads of the parent may have held any lock.
extern "C" fn in_child() {
    let Some(Some(nothing)) = NOTHING.get() else { return };
    for (chunk, notes) in NOTES.iter().enumerate() {
        for (at, note) in notes.get().into_iter().flatten().enumerate() {
            let (fd, noted) = ((chunk * CHUNK + at) as RawFd, note.load(Ordering::Relaxed));
            // SAFETY: used for a question only, to which "no such descriptor" is an answer.
            if noted != 0 && inode(&unsafe { BorrowedFd::borrow_raw(fd) }) == Some(noted) {
                // SAFETY: two numbers. What is closed is this process's own reference to a socket that nothing in it uses: every entry point is inert in a child.
                unsafe { libc::dup3(nothing.as_raw_fd(), fd, libc::O_CLOEXEC) };
            }
        }
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

    fn ends(mut of: UnixStream) -> bool {
        of.set_read_timeout(Some(std::time::Duration::from_millis(200))).expect("a time-out");
        matches!(of.read(&mut [0; 8]), Ok(0))
    }

    #[test]
    fn the_end_of_the_parent_s_socket_is_heard_while_a_child_lives() {
        fork::alone("sys::inherited::tests::the_end_of_the_parent_s_socket_is_heard_while_a_child_lives", || {
            let [(own, other), (kept, of_kept)] = [(); 2].map(|()| UnixStream::pair().expect("a pair"));
            let own = let_go(own.into());
            let child = Child::new(|| {});
            assert!(!ends(other.try_clone().expect("a copy")), "the parent's descriptor is its own");
            drop((own, kept));
            assert!(ends(other), "the child has the connection");
            assert!(!ends(of_kept), "what was not noted is the child's, too, or this test proves nothing");
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
}
