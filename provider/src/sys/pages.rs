//! Sending the pages of the application's memory themselves, by way of a pipe (vmsplice(2), splice(2)).
//!
//! The socket's queue names the pages instead of holding a copy of them, and so does, within one host, that of the other end: whoever receives copies straight
//! out of the sender's memory. What the sender writes there meanwhile arrives. So the memory is its owner's again when the *receiver* says that it has read it;
//! the kernel says nothing of that.
#![expect(unsafe_code)]
// UNSAFETY: vmsplice(2), and the signal mask and pending signals of the calling thread.

use super::tcp::Piece;
use core::mem::MaybeUninit;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Bytes that a pipe is asked to have room for: pages that are looked up for nothing, at most, when the socket has room for none of them. The pages of all pipes
/// of an ordinary user are counted (`/proc/sys/fs/pipe-user-pages-soft`, 64 MiB); beyond that a pipe stays as small as the kernel makes it, and serves as well.
const ROOM: usize = 256 << 10;

/// What pages go through on their way to a socket. Empty between two calls.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Where pages go that the socket had no room for.
    away: OwnedFd,
    is_broken: bool,
}

impl Pipe {
    /// A pipe, if pages can go that way at all.
    ///
    /// # Errors
    /// What pipe(2), open(2) of `/dev/null`, vmsplice(2) and splice(2) say: without descriptors, or where a filter does not let such calls pass (`ENOSYS`, `EPERM`).
    pub fn open() -> Result<Pipe, Errno> {
        static PROBE: [u8; 64] = [0; 64];
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&write, ROOM);
        let away = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut pipe = Pipe { read, write, away, is_broken: false };
        let probe = libc::iovec { iov_base: PROBE.as_ptr().cast_mut().cast(), iov_len: PROBE.len() };
        let taken = pipe.take(&probe)?;
        pipe.empty(taken)?;
        Ok(pipe)
    }

    /// Something is in it that belongs nowhere: it is of no use any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Puts pages into the pipe. Bytes that it took.
    fn take(&mut self, memory: &libc::iovec) -> Result<usize, Errno> {
        // SAFETY: the kernel reads `memory`, and looks up the pages that it names: of the application's, by the contract of `UserSeg::new`, or of the probe. What is not
        // mapped is EFAULT. They are only read, by whoever splices out of the pipe, and the owner leaves them as they are until he hears that this is done.
        let taken = unsafe { libc::vmsplice(self.write.as_raw_fd(), memory, 1, libc::SPLICE_F_NONBLOCK) };
        usize::try_from(taken).map_err(|_| forbidden(last()))
    }

    /// Lets go of `bytes` that are in the pipe.
    fn empty(&mut self, mut bytes: usize) -> Result<(), Errno> {
        while bytes > 0 {
            match splice(&self.read, None, &self.away, None, bytes, SpliceFlags::NONBLOCK)? {
                0 => return Err(Errno::PIPE),
                gone => bytes -= gone,
            }
        }
        Ok(())
    }

    /// Sends as much of the pieces as the socket, which must be a non-blocking one, takes now.
    ///
    /// # Errors
    /// `EAGAIN`: it takes nothing. `EFAULT`: there is no such memory, or none that has pages (of a device, say). `EOPNOTSUPP`:
    /// such calls are not let pass any more. `EBADF`: the pipe [is broken](Self::is_broken). `EPIPE` and others: of the connection; no signal is raised.
    pub fn send(&mut self, fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        let all: usize = pieces.iter().map(Piece::len).sum();
        let mut sent = 0;
        for piece in pieces {
            let mut left = piece.slice();
            while left.iov_len > 0 {
                match self.send_some(fd, &left, |taken| sent + taken < all) {
                    Ok((taken, gone)) => {
                        sent += gone;
                        if gone < taken {
                            return Ok(sent);
                        }
                        left.iov_base = left.iov_base.wrapping_byte_add(gone);
                        left.iov_len -= gone;
                    }
                    // What has left has left; the error comes again.
                    Err(_) if sent > 0 => return Ok(sent),
                    Err(why) => return Err(why),
                }
            }
        }
        Ok(sent)
    }

    /// As much of `memory` as the pipe takes. Bytes that it took, and those of them that the socket took, at least one.
    fn send_some(&mut self, fd: &OwnedFd, memory: &libc::iovec, more: impl Fn(usize) -> bool) -> Result<(usize, usize), Errno> {
        if self.is_broken {
            return Err(Errno::BADF);
        }
        let taken = self.take(memory)?;
        let flags = if more(taken) { SpliceFlags::NONBLOCK | SpliceFlags::MORE } else { SpliceFlags::NONBLOCK };
        let gone = silently(taken, || splice(&self.read, None, fd, None, taken, flags)).map_err(forbidden);
        self.is_broken = self.empty(taken - gone.unwrap_or(0)).is_err();
        match gone {
            Ok(0) => Err(Errno::AGAIN),
            gone => gone.map(|gone| (taken, gone)),
        }
    }
}

/// Does what may raise SIGPIPE, which ends a process that has no handler: send(2) can be told not to, splice(2) cannot. Nobody hears of the one that this
/// causes, which may be behind some of the `all` bytes that were to go.
fn silently(all: usize, what: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let (mut pipe, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: sigemptyset fills the set in, sigaddset puts a signal that there is into it; pthread_sigmask reads it and writes the old one. None of them fails with such arguments.
    let (pipe, before) = unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
        (pipe.assume_init(), before.assume_init())
    };
    let waited = is_pending(&before);
    let done = what();
    if done != Ok(all) && !waited {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: reads both, and takes a signal that waits for this thread, if one does.
        unsafe { libc::sigtimedwait(&raw const pipe, core::ptr::null_mut(), &raw const at_once) };
    }
    // SAFETY: reads the set that was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut()) };
    done
}

/// Whether a SIGPIPE waits already, which can be only where it was blocked: that one is the program's.
fn is_pending(blocked: &libc::sigset_t) -> bool {
    // SAFETY: reads the set.
    if unsafe { libc::sigismember(blocked, libc::SIGPIPE) } != 1 {
        return false;
    }
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigpending writes the set or fails; it is read only if it was written.
    unsafe { libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 }
}

/// What a filter of system calls that came later says, in one word: else it would look like the connection's own error.
fn forbidden(why: Errno) -> Errno {
    if matches!(why, Errno::PERM | Errno::ACCESS | Errno::NOSYS) { Errno::OPNOTSUPP } else { why }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::apart;
    use crate::mem::user::of_slice;
    use crate::sys::tcp;
    use std::io::Read;

    /// A non-blocking end that holds little, and the other one.
    fn ends() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let fd = tcp::connect(listener.local_addr().expect("name"), None, 0).expect("connect");
        let other = listener.accept().expect("accept").0;
        while !tcp::connected(&fd).expect("connecting") {}
        rustix::net::sockopt::set_socket_send_buffer_size(&fd, 64 << 10).expect("SO_SNDBUF");
        (fd, other)
    }

    /// Bytes of any lengths from any places, by a socket that is mostly full: all arrive, in order, and none of what went through the pipe for nothing.
    #[test]
    fn all_arrives_in_order() {
        let (fd, mut other) = ends();
        let mut bytes: Vec<u8> = (0..3 << 20u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
        let expected = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            let end = other.read_to_end(&mut got);
            (got, end.is_ok())
        });
        let (mut pipe, whole) = (Pipe::open().expect("a pipe"), of_slice(&mut bytes));
        let (mut sent, mut full, mut turn) = (0, 0, 1);
        while sent < whole.len() {
            turn = turn * 48271 % 0x7fff_ffff;
            let (first, second) = (1 + turn % 70_001, turn % 600_011);
            let pieces = [Piece::User(whole.part(sent, first)), Piece::User(whole.part(sent + first, second))];
            match pipe.send(&fd, &pieces) {
                Ok(n) => {
                    assert!(n > 0);
                    full += usize::from(n < pieces.iter().map(Piece::len).sum());
                    sent += n;
                }
                Err(why) => assert_eq!(why, Errno::AGAIN),
            }
        }
        assert!(full > 0, "the socket was never full");
        // The pages are read before they go.
        rustix::net::shutdown(&fd, rustix::net::Shutdown::Write).expect("shutdown");
        let (got, ended) = reader.join().expect("reader");
        assert!(ended && got == expected);
    }

    /// The test's thread has the signal blocked: what is raised waits, also where the process ignores it.
    #[test]
    fn a_connection_that_is_gone_raises_no_signal() {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is filled in before it is read; no old one is asked for. This thread ends with the test.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), core::ptr::null_mut());
            set.assume_init()
        };
        let (fd, other) = ends();
        drop(other);
        let (mut pipe, mut bytes) = (Pipe::open().expect("a pipe"), vec![7; 100_000]);
        let mut send = || {
            let whole = of_slice(&mut bytes);
            (0..1000).map(|_| pipe.send(&fd, &[Piece::User(whole)])).find(|sent| *sent == Err(Errno::PIPE))
        };
        assert!(send().is_some(), "it is gone");
        assert!(!is_pending(&set), "and that was no signal");
        // SAFETY: sends a signal to this thread, which has it blocked.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        assert!(send().is_some() && is_pending(&set), "the program's own one waits on");
    }

    /// What is there of memory of which half is missing leaves, and no more; nothing of it stays in the pipe.
    #[test]
    fn memory_that_is_not_there() {
        use rustix::mm::{MapFlags, ProtFlags};
        const HALF: usize = 16 << 10;
        let (fd, mut other) = ends();
        let mut pipe = Pipe::open().expect("a pipe");
        // SAFETY: fresh memory, of which nothing but the first half is used once the second one is unmapped.
        let bytes = unsafe {
            let at = rustix::mm::mmap_anonymous(
                apart::room(2 * HALF),
                2 * HALF,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE,
            );
            let at = at.expect("map");
            rustix::mm::munmap(at.byte_add(HALF), HALF).expect("unmap");
            core::slice::from_raw_parts_mut(at.cast::<u8>(), HALF)
        };
        bytes.fill(3);
        // SAFETY: the kernel looks for the pages, and says which are missing; nobody else reads them.
        let (whole, missing) = unsafe {
            let at = bytes.as_mut_ptr();
            (crate::mem::user::UserSeg::new(at, 2 * HALF), crate::mem::user::UserSeg::new(at.wrapping_add(HALF), HALF))
        };
        assert_eq!(pipe.send(&fd, &[Piece::User(whole)]), Ok(HALF));
        assert_eq!(pipe.send(&fd, &[Piece::User(missing)]), Err(Errno::FAULT));
        let mut more = [4; 100];
        assert_eq!(pipe.send(&fd, &[Piece::User(of_slice(&mut more))]), Ok(100));
        assert!(!pipe.is_broken());
        let mut got = [0; HALF + 100];
        other.read_exact(&mut got).expect("all of it");
        assert!(got[..HALF] == *bytes && got[HALF..] == more);
    }
}
