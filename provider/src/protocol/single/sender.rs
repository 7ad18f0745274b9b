//! The sender of offered messages: it copies from the back what the receiver shares out.

use super::means::{Loan, Means, is_fresh};
use super::{Copies, Note, PAGE, Returned};
use crate::mem::engine::Engine;
use crate::mem::remote::NoAccess;
use crate::mem::user::UserIov;
use crate::protocol::Target;
use crate::request::SendReq;
use crate::shm::split::{MAX_CHUNKS, MAX_NUMBER, Share};
use crate::transport::link::{Corrupt, Link};
use crate::types::Presumed;
use crate::wire::header::{Header, MAX_PIECES, flag};
use crate::wire::offer::{Named, Pieces, parse_pieces};

/// A message that was offered.
pub(super) struct Offered {
    pub iov: UserIov,
    pub total: usize,
    pub req: SendReq,
    /// The receiver can map the memory that it lies in.
    pub lent: bool,
    /// Of a message that was presumed to be in the receiver's cache.
    pub presumed: Option<Presumed>,
    /// The receiver has shared it out: there is a part for us.
    pub shared: bool,
}

/// The sender's share of a message.
pub(super) struct Part {
    share: Share,
    wanted: usize,
    chunk: usize,
    to: Pieces,
    /// The receiver's memory, if it is mapped here.
    loan: Option<Loan>,
    engine: Engine,
    /// The receiver lived after this time.
    since: u64,
    /// Whether the receiver is known to be the process that it was.
    known: bool,
}

/// The receiver has all it wants of a message.
pub struct Finished {
    /// What its completion needs.
    pub req: SendReq,
    /// Its bytes, if it was offered in memory that the receiver turned out to be unable to map.
    pub unmapped: Option<usize>,
    /// What became of a message that was presumed to be in its cache.
    pub told: Option<Told>,
}

/// What became of a message that was presumed to be in the receiver's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Bytes of the message.
    pub len: usize,
    /// The receiver had mapped it; else the kernel copied.
    pub lent: bool,
    /// What was presumed.
    pub presumed: Presumed,
    /// Nanoseconds that the copy took; 0: that was not told.
    pub ns: u64,
}

impl Part {
    /// Claims the next chunk and copies it. Returns its bytes; 0: there is none for us.
    fn write(&mut self, link: &Link, target: Option<Target>, iov: &UserIov) -> Result<usize, NoAccess> {
        let means = match (&self.loan, target) {
            (Some(loan), _) => Means::Mapped(loan, self.engine),
            (None, Some(target)) => {
                if !self.known {
                    target.find()?;
                    self.known = true;
                }
                Means::Kernel(target, true)
            }
            (None, None) => return Err(NoAccess::Forbidden),
        };
        if !link.claim_back(&mut self.share) {
            return Ok(0);
        }
        let from = (self.share.chunks() - self.share.claimed()) as usize * self.chunk;
        let len = self.chunk.min(self.wanted - from);
        means.store(&self.to, iov, from, len)?;
        link.tell_copied(&self.share);
        Ok(len)
    }
}

impl Copies {
    /// Takes the next chunk of the oldest message that is shared. Returns the bytes copied.
    pub(super) fn copy_back(&mut self, link: &Link) -> usize {
        let Some((id, part)) = self.parts.front_mut() else { return 0 };
        let id = *id;
        let Some(Offered { iov, .. }) = self.tx.get(&id) else {
            self.parts.pop_front();
            return 0;
        };
        part.known |= is_fresh(self.clock.as_ref(), part.since);
        let done = part.share.claimed();
        match part.write(link, self.target.filter(|_| !self.no_write), iov) {
            Ok(n) if n > 0 => {
                self.timed = None;
                self.past_caches += part.engine.past_caches(n);
                return n;
            }
            Err(NoAccess::Forbidden | NoAccess::Gone) => self.no_write = true,
            _ => {}
        }
        // What was tried: in memory that is mapped here the kernel was not asked.
        let forbidden = part.loan.is_none() && self.no_write;
        link.end_back(&part.share, done);
        self.parts.pop_front();
        self.notes.push_back(Note::Done(id, done, forbidden));
        0
    }

    /// The receiver shares out a message.
    pub fn on_accept(&mut self, link: &Link, header: &Header) -> Result<(), Corrupt> {
        let Named { id, lent } = Named::of(header.tag);
        let Offered { total, shared, .. } = self.tx.get_mut(&id).ok_or(Corrupt)?;
        let wanted = usize::try_from(header.data).map_err(|_| Corrupt)?;
        let [number, chunk] = link.body();
        let chunk = usize::try_from(chunk).map_err(|_| Corrupt)?;
        if *shared || wanted == 0 || wanted > *total || chunk < PAGE {
            return Err(Corrupt);
        }
        let chunks = u32::try_from(wanted.div_ceil(chunk)).map_err(|_| Corrupt)?;
        if chunks > MAX_CHUNKS || number <= self.accepted || number > MAX_NUMBER {
            return Err(Corrupt);
        }
        let mut words = [0; 2 * MAX_PIECES];
        let n = link.payload_words(header, &mut words);
        let to = parse_pieces(&words[..n], wanted).map_err(|_| Corrupt)?;
        let loan = self.loans.get(lent).filter(|loan| loan.is_writable()).cloned();
        if loan.as_ref().is_some_and(|loan| !loan.holds(&to)) {
            return Err(Corrupt);
        }
        self.accepted = number;
        let engine = self.engines.of(wanted, loan.is_some());
        let share = Share::new(number, chunks);
        *shared = true;
        self.parts.push_back((id, Part { share, wanted, chunk, to, loan, engine, since: self.since, known: false }));
        Ok(())
    }

    /// Takes back a message that was offered: the receiver has done with it.
    fn take_offered(&mut self, id: u32) -> Option<Offered> {
        let offered = self.tx.remove(&id)?;
        if offered.shared {
            self.parts.retain(|(part, _)| *part != id);
        }
        Some(offered)
    }

    /// The receiver has all it wants: the send is complete.
    pub fn on_fin(&mut self, header: &Header) -> Result<Finished, Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        let Offered { total, req, lent, presumed, .. } = self.take_offered(id).ok_or(Corrupt)?;
        let unmapped = (lent && header.flags & flag::UNMAPPED != 0).then_some(total);
        self.no_loans |= unmapped.is_some();
        // Of memory that it could not map nothing is presumed any more.
        let presumed = presumed.filter(|_| unmapped.is_none());
        let told = presumed.map(|presumed| Told { len: total, lent, presumed, ns: header.data });
        Ok(Finished { req, unmapped, told })
    }

    /// The receiver wants a message as a stream: `None` if this is not one of those offered.
    pub fn on_cts(&mut self, header: &Header) -> Result<Option<Returned>, Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        let Some(offered) = self.tx.get(&id) else { return Ok(None) };
        let wanted = usize::try_from(header.data).map_err(|_| Corrupt)?;
        if wanted > offered.total {
            return Err(Corrupt);
        }
        let Some(Offered { iov, total, req, lent, presumed, .. }) = self.take_offered(id) else { return Ok(None) };
        // Had the receiver mapped what was lent, it would not have come back.
        self.no_loans |= lent;
        self.no_offers |= header.flags & flag::FORBIDDEN != 0;
        Ok(Some(Returned { iov, total, wanted, lent, presumed: presumed.is_some(), req }))
    }
}
