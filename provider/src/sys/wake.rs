//! How a sleeping endpoint is woken: through a descriptor that its poller watches.

use super::event::EventFd;
use super::socket;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// The packet that only wakes. Whoever gets it has nothing to do but to look at its rings.
pub const WAKE: [u8; 1] = *b"!";

/// What wakes one endpoint.
#[derive(Clone, Debug)]
pub enum Waker {
    /// A connection to it.
    Socket(Arc<OwnedFd>),
    /// An event of its own: for what it sends to itself.
    Event(Arc<EventFd>),
}

impl Waker {
    /// Wakes it. A socket that is full is readable at the other end, and one that is broken is so, too: nothing can go wrong
    /// that the sleeper would not wake from.
    pub fn wake(&self) {
        match self {
            Waker::Socket(fd) => drop(socket::send(fd, &WAKE, &[])),
            Waker::Event(event) => event.raise(),
        }
    }
}
