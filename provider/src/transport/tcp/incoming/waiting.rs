//! Payload that came before it was known where it goes: it waits, and everything behind it, until the engine has read its envelope.

use super::{AHEAD, AT_ONCE, At, Incoming, Loan, SINK, Stop, TURN};
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::{scatter_bytes, total_len};
use crate::transport::tcp::stream::Stream;
use crate::transport::{Bulk, Moved};

impl Incoming {
    /// The part of a message that the other side is about to be asked for, or has promised, goes to `bulk`; `exact`: and nothing else does, by a guess.
    ///
    /// # Errors
    /// [`Stop`]: what waited for that is not what it should be.
    pub fn expect(&mut self, stream: &Stream, bulk: Bulk<'_>, exact: bool) -> Result<Moved, Stop> {
        let moved = self.expect_in(stream, bulk, exact);
        self.leave(moved)
    }

    #[inline]
    fn expect_in(&mut self, stream: &Stream, bulk: Bulk<'_>, exact: bool) -> Result<Moved, Stop> {
        let waited = self.is_parked();
        if self.place_at_once(&bulk) {
            self.read_again()?;
            self.confirm(stream)?;
            return Ok(Moved::AtOnce);
        }
        let id = bulk.id;
        if !self.expected.insert(bulk, exact) {
            self.open_sink();
        }
        self.resume()?;
        self.confirm(stream)?;
        // The socket has more, as far as is known: what was waited for, and mostly all of it. To leave that to the next turn takes as long as to look at a
        // socket in vain. (Of much only the beginning is there by now. Little is read along with its envelope, unless many follow one another, and then it is
        // better if some more have come.)
        if let At::Payload { len, .. } = self.at
            && waited
            && !self.is_dry
            && self.early < TURN
            && (AHEAD + 1..=AT_ONCE).contains(&len)
        {
            self.early += self.receive_more(stream)?;
            self.confirm(stream)?;
        }
        let done = self.done.iter().position(|other| *other == id).and_then(|at| self.done.remove(at));
        Ok(if done.is_some() { Moved::AtOnce } else { Moved::Later })
    }

    /// There is no place any more for what was expected: it is read to nowhere.
    pub fn disown(&mut self, id: u32) {
        self.expected.disown(id);
        self.open_sink();
    }

    /// Where bytes go for which there is no place.
    fn open_sink(&mut self) {
        self.sink.get_or_insert_with(|| SharedMem::new(Heap::new(SINK)));
    }

    /// If it is all of this that waits for the engine, and is here: it need not be remembered that it is expected. (A message of up to [`AHEAD`] bytes that
    /// comes along with its envelope.)
    fn place_at_once(&mut self, bulk: &Bulk<'_>) -> bool {
        let At::Waiting { id, offset, len, loan: Loan { lent: false, tell: false } } = self.at else { return false };
        let here = &self.carried[self.read..];
        if (id, offset, len) != (bulk.id, bulk.skip as u64, bulk.len) || here.len() < len {
            return false;
        }
        if total_len(bulk.iov) < bulk.skip + len {
            return false;
        }
        scatter_bytes(bulk.iov, bulk.skip, &here[..len]);
        self.read += len;
        self.remember(id, 0, len);
        self.at = At::Head(0);
        true
    }

    /// Goes on with payload that had to wait for the engine. Whether anything can be read.
    #[inline]
    pub(super) fn resume(&mut self) -> Result<bool, Stop> {
        let At::Waiting { id, offset, len, loan } = self.at else { return Ok(true) };
        self.resume_with(id, offset, len, loan)
    }

    fn resume_with(&mut self, id: u32, offset: u64, len: usize, loan: Loan) -> Result<bool, Stop> {
        let Some(mirror) = &self.mirror else { return Err(Stop::Garbage) };
        if self.expected.get(id).is_none() {
            // All records that came before it have been read, and none was its envelope.
            return if mirror.is_drained() { Err(Stop::Garbage) } else { Ok(false) };
        }
        self.payload_begins(id, offset, len, loan)?;
        self.read_again()?;
        Ok(!matches!(self.at, At::Waiting { .. }))
    }
}
