//! What carries a connection's bytes: the socket as it is, or encrypted. What is above names pieces of memory and knows no difference.

use super::session::Session;
use crate::mem::shared::{Heap, SharedMem};
use crate::sys::tcp::{self, Piece};
use crate::wire::hello::Hello;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::OnceLock;
use zerocopy::IntoBytes;

/// A socket, and what encrypts it. Plain, it costs one branch for each system call.
pub(super) struct Stream {
    fd: OwnedFd,
    near: bool,
    segment: usize,
    session: OnceLock<Box<Mutex<Session>>>,
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Stream {
        Stream::new(fd)
    }
}

impl Stream {
    /// Over a socket that is connected.
    pub fn new(fd: OwnedFd) -> Stream {
        let near = tcp::is_near(&fd);
        let segment = tcp::segment(&fd).unwrap_or(usize::MAX);
        Stream { fd, near, segment, session: OnceLock::new() }
    }

    /// Whether both ends are on this host, as far as their addresses tell.
    pub fn is_near(&self) -> bool {
        self.near
    }

    /// Most bytes that come in one segment.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// The same, as if the other end were on another host.
    pub fn far_away(self) -> Stream {
        Stream { near: false, ..self }
    }

    /// The same, as if it had segments of so many bytes.
    #[cfg(test)]
    pub fn of_segments(self, segment: usize) -> Stream {
        Stream { segment, ..self }
    }

    /// The address of the other side, for people.
    pub fn other_end(&self) -> String {
        tcp::peer_address(&self.fd).map_or_else(|| "somebody".into(), |a| a.to_string())
    }

    /// Says so much and no more, as far as there is room for it.
    pub fn say(&self, hello: &Hello) {
        let bytes = hello.as_bytes();
        let memory = SharedMem::new(Heap::new(bytes.len()));
        memory.fill_bytes(0, bytes);
        let _ = self.send(&[Piece::Own(&memory, 0, bytes.len())]).and_then(|_| self.push());
    }

    /// From now on everything is encrypted.
    pub fn encrypt(&self, session: Session) {
        let first = self.session.set(Box::new(Mutex::new(session)));
        debug_assert!(first.is_ok(), "encrypted twice");
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.session.get().is_some()
    }

    /// The socket, for what is not its bytes.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// As [`tcp::send`]; what was taken may still lie here ([`push`](Self::push)).
    pub fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        match self.session.get() {
            None => tcp::send(&self.fd, pieces),
            Some(session) => session.lock().send(&self.fd, pieces),
        }
    }

    /// The socket, if what is on it is what is above, byte by byte.
    #[inline]
    pub fn plain(&self) -> Option<&OwnedFd> {
        if self.is_encrypted() { None } else { Some(&self.fd) }
    }

    /// As [`tcp::recv`]; `EBADMSG` if it was altered on the way.
    pub fn recv(&self, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        match self.session.get() {
            None => tcp::recv(&self.fd, pieces),
            Some(session) => session.lock().recv(&self.fd, pieces),
        }
    }

    /// Sends what was taken. Whether the socket has all of it.
    #[inline]
    pub fn push(&self) -> Result<bool, Errno> {
        match self.session.get() {
            None => Ok(true),
            Some(session) => session.lock().push(&self.fd),
        }
    }

    /// Whether there is something to be received that the socket does not tell of.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.session.get().is_some_and(|session| session.lock().has_more())
    }
}
