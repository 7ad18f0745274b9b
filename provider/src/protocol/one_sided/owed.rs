//! What a target owes for what it was asked: outcomes, old values, and bytes of its regions.
//!
//! Bytes are read when there is room to send them. What the peer that asked for them writes meanwhile, it does not see (`FI_ORDER_WAR`): of the memory that it is about
//! to write a copy is made, once, for all that it has asked for before ([`Debts::keep`]).

use super::parts::{Parts, SHORT, part_of};
use crate::error::Error;
use crate::mem::user::UserSeg;
use crate::protocol::bare;
use crate::region::Regions;
use crate::transport::link::{Class, Draft, Link, NotSent};
use crate::types::Access;
use crate::wire::header::{Kind, flag};
use crate::wire::order::Ending;
use std::collections::VecDeque;

/// Bytes of copies for one peer, and how many copies. Who overwrites more of what he has not got yet is told so, instead of that.
const KEPT: usize = 64 << 20;
const COPIES: usize = 4096;

/// What one answer says.
pub(super) enum Owed {
    /// Bytes of a region, as far as sent.
    Bytes { key: u64, addr: u64, len: usize, sent: usize },
    /// Old values.
    Values(Vec<u8>),
    /// Nothing but the outcome.
    Outcome(Result<(), Error>),
}

struct Debt {
    id: u32,
    piece: u16,
    what: Owed,
    number: u64,
}

impl Debt {
    /// The memory that is still to be read, if it is there.
    fn unread(&self, regions: &Regions) -> Option<UserSeg> {
        let Owed::Bytes { key, addr, len, sent } = self.what else { return None };
        regions.reach(key, addr.wrapping_add(sent as u64), len - sent, Access::REMOTE_READ).ok()
    }

    /// Whether it has to wait until parts that are leaving have left: as a part, until they are fewer; else it would overtake them, and tell of memory as it was before they are read.
    fn waits(&self, parts: &Parts) -> bool {
        match self.what {
            Owed::Bytes { len, sent, .. } if len - sent > SHORT || sent > 0 => !parts.may_answer(),
            Owed::Bytes { .. } | Owed::Values(_) => !parts.have_been_read(),
            Owed::Outcome(_) => false,
        }
    }
}

/// Memory as it was before it was written.
struct Snapshot {
    address: usize,
    bytes: Vec<u8>,
    /// For answers with numbers below this one.
    before: u64,
}

impl Snapshot {
    fn end(&self) -> usize {
        self.address + self.bytes.len()
    }
}

/// All that is owed to one peer, in the order in which it asked.
#[derive(Default)]
pub(super) struct Debts {
    queue: VecDeque<Debt>,
    next_number: u64,
    /// The older first.
    copies: VecDeque<Snapshot>,
    kept: usize,
}

impl Debts {
    /// How many answers.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// An operation, or a piece of one, is to be answered.
    pub fn owe(&mut self, id: u32, piece: u16, what: Owed) {
        self.queue.push_back(Debt { id, piece, what, number: self.next_number });
        self.next_number += 1;
    }

    /// This memory is about to be written by the same peer, in a region of this key.
    #[inline]
    pub fn keep(&mut self, regions: &Regions, key: u64, written: UserSeg) {
        if !self.queue.is_empty() {
            self.keep_all(regions, key, written);
        }
    }

    #[inline(never)]
    fn keep_all(&mut self, regions: &Regions, key: u64, written: UserSeg) {
        let asks = |debt: &Debt| debt.unread(regions).is_some_and(|unread| unread.touches(&written));
        let (start, end) = (written.address(), written.address() + written.len());
        // Nothing was asked for since.
        let is_kept = |copy: &Snapshot| copy.before == self.next_number && copy.address <= start && end <= copy.end();
        if self.copies.iter().any(is_kept) || !self.queue.iter().any(asks) {
            return;
        }
        if self.kept + written.len() > KEPT || self.copies.len() == COPIES {
            for debt in self.queue.iter_mut().filter(|debt| asks(debt)) {
                debt.what = Owed::Outcome(Err(Error::NoResources));
            }
            return;
        }
        // What cannot be read now cannot be read when its turn comes, either.
        if let Ok(bytes) = regions.read_out(key, written) {
            self.kept += bytes.len();
            self.copies.push_back(Snapshot { address: start, bytes, before: self.next_number });
        }
    }

    /// How many of `n` bytes at an address stand in one place for the first answer, and these bytes if that is a copy. (It was owed before any of the copies was made: others are gone.)
    fn find(copies: &VecDeque<Snapshot>, address: usize, n: usize) -> (usize, Option<&[u8]>) {
        let mut end = address + n;
        for copy in copies {
            if copy.address <= address && address < copy.end() {
                let n = end.min(copy.end()) - address;
                return (n, Some(&copy.bytes[address - copy.address..][..n]));
            }
            if address < copy.address {
                end = end.min(copy.address);
            }
        }
        (end - address, None)
    }

    /// Whether something is owed that need not wait for parts.
    pub fn may_be_paid(&self, parts: &Parts) -> bool {
        self.queue.front().is_some_and(|debt| !debt.waits(parts))
    }

    /// Sends the next record of the first answer, if [that may be](Self::may_be_paid).
    pub fn pay(&mut self, link: &mut Link, regions: &Regions, parts: &mut Parts, fragment: usize) -> Result<(), NotSent> {
        let Some(debt) = self.queue.front_mut() else { return Ok(()) };
        if debt.pay(&self.copies, link, regions, parts, fragment)? {
            self.queue.pop_front();
            let oldest = self.queue.front().map_or(self.next_number, |debt| debt.number);
            while self.copies.front().is_some_and(|copy| copy.before <= oldest) {
                self.kept -= self.copies.pop_front().map_or(0, |copy| copy.bytes.len());
            }
        }
        Ok(())
    }
}

impl Debt {
    /// Sends the next record of an answer. Whether it was the last.
    fn pay(
        &mut self,
        copies: &VecDeque<Snapshot>,
        link: &mut Link,
        regions: &Regions,
        parts: &mut Parts,
        fragment: usize,
    ) -> Result<bool, NotSent> {
        let (id, piece) = (self.id, self.piece);
        let answer = |flags, outcome, data| Draft { flags, ..bare(Kind::Answer, Ending { id, piece, outcome }.emit(), data) };
        let (key, addr, len, sent) = match &self.what {
            Owed::Outcome(outcome) => {
                link.send(&answer(flag::LAST, *outcome, 0), Class::Control)?;
                return Ok(true);
            }
            Owed::Values(values) => {
                let draft = Draft { len: values.len(), bytes: values, ..answer(flag::LAST, Ok(()), 0) };
                link.send(&draft, Class::Envelope)?;
                return Ok(true);
            }
            Owed::Bytes { key, addr, len, sent } => (*key, *addr, *len, *sent),
        };
        let part = part_of(link, len - sent, sent);
        let most = part.unwrap_or((len - sent).min(fragment).min(link.max_payload(Kind::Answer)));
        // Looked up again each time: the region may be closed meanwhile.
        let sent_now = match regions.reach(key, addr.wrapping_add(sent as u64), most, Access::REMOTE_READ) {
            Err(why) => Err(why),
            Ok(seg) => {
                let (n, copy) = Debts::find(copies, seg.address(), most);
                let seg = seg.part(0, n);
                let draft = answer(if sent + n == len { flag::LAST } else { 0 }, Ok(()), sent as u64);
                let read = match copy {
                    Some(_) => Ok(None),
                    None if regions.is_everything(key) => regions.read_out(key, seg).map(Some),
                    None => Ok(None),
                };
                match (part, copy, read) {
                    (_, _, Err(why)) => Err(why),
                    (Some(_), Some(bytes), _) => parts.answer_copied(link, &draft, bytes.to_vec()).map(|()| Ok(n))?,
                    (Some(_), None, Ok(Some(bytes))) => parts.answer_copied(link, &draft, bytes).map(|()| Ok(n))?,
                    (Some(_), None, Ok(None)) => {
                        regions.lend(key);
                        parts.answer(link, &draft, (key, seg)).map(|()| Ok(n))?
                    }
                    (None, Some(bytes), _) => link.send(&Draft { len: n, bytes, ..draft }, Class::Fragment).map(|_| Ok(n))?,
                    (None, None, Ok(Some(bytes))) => {
                        link.send(&Draft { len: n, bytes: &bytes, ..draft }, Class::Fragment).map(|_| Ok(n))?
                    }
                    (None, None, Ok(None)) => {
                        link.send(&Draft { len: n, iov: &[seg], ..draft }, Class::Fragment).map(|_| Ok(n))?
                    }
                }
            }
        };
        match (sent_now, &mut self.what) {
            (Ok(n), Owed::Bytes { sent, .. }) => {
                *sent += n;
                Ok(*sent == len)
            }
            (Ok(_), _) => Ok(true),
            (Err(why), what) => {
                *what = Owed::Outcome(Err(why));
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
#[path = "owed_tests.rs"]
mod tests;
