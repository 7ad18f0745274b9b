//! `eventfd(2)`: a descriptor that one side makes readable.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// A counter with a descriptor that is readable while it is not zero.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Not readable yet.
    pub fn new() -> Result<EventFd, Errno> {
        Ok(EventFd { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Makes it readable; to those who watch for edges, an edge.
    pub fn raise(&self) {
        // It fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn lower(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
