//! What the connections of an endpoint share to send pages that the receiver reads: one pipe, as long as one of them may.

use crate::sys::pages::Pipe;
use crate::sys::tcp::Piece;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::{Arc, Weak};

/// Where the connections of an endpoint find what they share.
#[derive(Default)]
pub(super) struct Pages(Mutex<Weak<Shared>>);

/// What they share. Its lock is the last one that is taken: by connections that have their own.
pub(super) struct Shared(Mutex<Option<Pipe>>);

impl Pages {
    /// For one that may send pages: what others have already, or a pipe for all.
    ///
    /// # Errors
    /// As [`Pipe::open`]: pages cannot be sent at all.
    pub fn open(&self) -> Result<Arc<Shared>, Errno> {
        let mut known = self.0.lock();
        if let Some(shared) = known.upgrade() {
            return Ok(shared);
        }
        let shared = Arc::new(Shared(Mutex::new(Some(Pipe::open()?))));
        *known = Arc::downgrade(&shared);
        Ok(shared)
    }
}

impl Shared {
    /// As [`Pipe::send`].
    ///
    /// # Errors
    /// As there; `EOPNOTSUPP`: the pipe was of no use any more, and there is no other one.
    pub fn send(&self, fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        let mut pipe = self.0.lock();
        if pipe.as_ref().is_none_or(Pipe::is_broken) {
            // The old one's descriptors are free before new ones are asked for.
            *pipe = None;
            *pipe = Pipe::open().ok();
        }
        pipe.as_mut().ok_or(Errno::OPNOTSUPP)?.send(fd, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_for_all_as_long_as_one_may() {
        let pages = Pages::default();
        let Ok(first) = pages.open() else { return };
        let second = pages.open().expect("the same");
        assert!(Arc::ptr_eq(&first, &second));
        let gone = Arc::downgrade(&first);
        drop((first, second));
        assert!(gone.upgrade().is_none(), "no descriptor is kept");
        assert!(pages.open().is_ok());
    }
}
