//! How a sleeping endpoint is woken: through something that its poller watches.

use super::event::EventFd;

/// The packet that only wakes. Whoever gets it has nothing to do but to look at its rings.
pub const WAKE: [u8; 1] = *b"!";

/// What wakes one endpoint: a connection to it, or an event of its own (for what it sends to itself).
pub trait Wake: Send + Sync {
    /// Wakes it. Cannot fail: what is full or broken is readable at the other end, so the sleeper wakes from that, too.
    fn wake(&self);
}

impl Wake for EventFd {
    fn wake(&self) {
        self.raise();
    }
}
