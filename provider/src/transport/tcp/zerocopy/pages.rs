//! What the connections of an endpoint share to send pages that the receiver reads: one pipe, made when the first of them wants to.

use crate::sys::pages::Pipe;
use crate::sys::tcp::Piece;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// See above. Its lock is the last one that is taken: by connections that have their own.
#[derive(Default)]
pub(super) struct Pages(Mutex<Option<Pipe>>);

impl Pages {
    /// Whether pages can be sent at all.
    ///
    /// # Errors
    /// As [`Pipe::open`].
    pub fn open(&self) -> Result<(), Errno> {
        Pages::pipe(&mut self.0.lock()).map(drop)
    }

    fn pipe(pipe: &mut Option<Pipe>) -> Result<&mut Pipe, Errno> {
        if pipe.as_ref().is_none_or(Pipe::is_broken) {
            // The old one's descriptors are free before new ones are asked for.
            *pipe = None;
            *pipe = Some(Pipe::open()?);
        }
        pipe.as_mut().ok_or(Errno::BADF)
    }

    /// As [`Pipe::send`], and nothing follows at once.
    ///
    /// # Errors
    /// As there; `EOPNOTSUPP`: there is no pipe any more.
    pub fn send(&self, fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        let mut pipe = self.0.lock();
        Pages::pipe(&mut pipe).map_err(|_| Errno::OPNOTSUPP)?.send(fd, pieces, false)
    }
}
