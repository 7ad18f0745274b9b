//! What a target owes for what it was asked: outcomes, old values, and bytes of its regions.

use super::parts::{Parts, part_of};
use crate::error::Error;
use crate::mem::user::UserSeg;
use crate::protocol::bare;
use crate::region::Regions;
use crate::transport::link::{Class, Draft, Link, NotSent};
use crate::types::Access;
use crate::wire::header::{Kind, flag};
use crate::wire::order::Ending;
use std::collections::VecDeque;

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
    /// What was copied out of the region before somebody wrote there: where in the answer each copy belongs, in order.
    kept: VecDeque<(usize, Vec<u8>)>,
}

/// All that is owed to one peer, in the order in which it asked.
#[derive(Default)]
pub(super) struct Debts(VecDeque<Debt>);

impl Debts {
    /// How many answers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// An operation, or a piece of one, is to be answered.
    pub fn owe(&mut self, id: u32, piece: u16, what: Owed) {
        self.0.push_back(Debt { id, piece, what, kept: VecDeque::new() });
    }

    /// This memory is about to be written by the same peer, which asked for what is owed before: what of that is there is copied.
    #[inline]
    pub fn keep(&mut self, regions: &Regions, written: UserSeg) {
        if !self.0.is_empty() {
            self.keep_all(regions, written);
        }
    }

    #[inline(never)]
    fn keep_all(&mut self, regions: &Regions, written: UserSeg) {
        for debt in &mut self.0 {
            let Owed::Bytes { key, addr, len, sent } = debt.what else { continue };
            let Ok(read) = regions.reach(key, addr, len, Access::REMOTE_READ) else { continue };
            let (start, end) = (read.address(), read.address().saturating_add(len));
            let from = written.address().max(start + sent);
            let to = written.address().saturating_add(written.len()).min(end);
            if from < to {
                debt.copy_out(regions, (key, read), from - start, to - start);
            }
        }
    }

    /// Sends the next record of the first answer. `None`: nothing is owed.
    pub fn pay(&mut self, link: &mut Link, regions: &Regions, parts: &mut Parts, fragment: usize) -> Option<Result<(), NotSent>> {
        let debt = self.0.front_mut()?;
        Some(debt.pay(link, regions, parts, fragment).map(|all| {
            if all {
                self.0.pop_front();
            }
        }))
    }
}

impl Debt {
    /// Copies what is read from `from` to `to`, but for what was copied before.
    fn copy_out(&mut self, regions: &Regions, (key, read): (u64, UserSeg), from: usize, to: usize) {
        let (mut at, mut i) = (from, 0);
        while at < to {
            let next = self.kept.get(i).map(|(start, bytes)| (*start, *start + bytes.len()));
            match next {
                Some((_, end)) if end <= at => i += 1,
                Some((start, end)) if start <= at => (at, i) = (end, i + 1),
                _ => {
                    let end = next.map_or(to, |(start, _)| start.min(to));
                    // What cannot be read now will not be there when its turn comes, either.
                    let Ok(bytes) = regions.read_out(key, read.part(at, end - at)) else { return };
                    self.kept.insert(i, (at, bytes));
                    (at, i) = (end, i + 1);
                }
            }
        }
    }

    /// The next of `n` bytes that are at one place, and these bytes if they were copied.
    fn next(&mut self, sent: usize, n: usize) -> (usize, Option<&[u8]>) {
        while self.kept.front().is_some_and(|(start, bytes)| start + bytes.len() <= sent) {
            self.kept.pop_front();
        }
        match self.kept.front() {
            Some((start, bytes)) if *start <= sent => {
                let rest = &bytes[sent - start..];
                let n = n.min(rest.len());
                (n, Some(&rest[..n]))
            }
            Some((start, _)) => (n.min(start - sent), None),
            None => (n, None),
        }
    }

    /// Sends the next record of an answer. Whether it was the last.
    fn pay(&mut self, link: &mut Link, regions: &Regions, parts: &mut Parts, fragment: usize) -> Result<bool, NotSent> {
        let (id, piece) = (self.id, self.piece);
        let answer = |flags, outcome, data| Draft { flags, ..bare(Kind::Answer, Ending { id, piece, outcome }.emit(), data) };
        let (key, addr, len, sent) = match &self.what {
            Owed::Outcome(outcome) => {
                link.send(&answer(flag::LAST, *outcome, 0), Class::Control)?;
                return Ok(true);
            }
            // Values would overtake what was asked for before and is leaving, and perhaps not read yet.
            Owed::Values(_) if !parts.have_been_read() => return Err(NotSent::Full),
            Owed::Values(values) => {
                let draft = Draft { len: values.len(), bytes: values, ..answer(flag::LAST, Ok(()), 0) };
                link.send(&draft, Class::Envelope)?;
                return Ok(true);
            }
            Owed::Bytes { key, addr, len, sent } => (*key, *addr, *len, *sent),
        };
        let part = part_of(link, len - sent, sent);
        let waits = if part.is_some() { !parts.may_answer() } else { !parts.have_been_read() };
        if waits {
            return Err(NotSent::Full);
        }
        let most = part.unwrap_or((len - sent).min(fragment).min(link.max_payload(Kind::Answer)));
        let (n, kept) = self.next(sent, most);
        let draft = answer(if sent + n == len { flag::LAST } else { 0 }, Ok(()), sent as u64);
        // Looked up again each time: the region may be closed meanwhile.
        let seg = regions.reach(key, addr.wrapping_add(sent as u64), n, Access::REMOTE_READ);
        let sent_now = seg.map_or_else(
            |why| Ok(Err(why)),
            |seg| match kept {
                Some(bytes) if part.is_some() => parts.answer_copied(link, &draft, bytes.to_vec()).map(Ok),
                Some(bytes) => link.send(&Draft { len: n, bytes, ..draft }, Class::Fragment).map(|_| Ok(())),
                None if part.is_some() && !regions.is_everything(key) => {
                    regions.lend(key);
                    parts.answer(link, &draft, (key, seg)).map(Ok)
                }
                None if !regions.is_everything(key) => {
                    link.send(&Draft { len: n, iov: &[seg], ..draft }, Class::Fragment).map(|_| Ok(()))
                }
                None => match regions.read_out(key, seg) {
                    Ok(bytes) if part.is_some() => parts.answer_copied(link, &draft, bytes).map(Ok),
                    Ok(bytes) => link.send(&Draft { len: n, bytes: &bytes, ..draft }, Class::Fragment).map(|_| Ok(())),
                    Err(why) => Ok(Err(why)),
                },
            },
        )?;
        match (sent_now, &mut self.what) {
            (Ok(()), Owed::Bytes { sent, .. }) => *sent += n,
            (Ok(()), _) => {}
            (Err(why), what) => {
                *what = Owed::Outcome(Err(why));
                return Ok(false);
            }
        }
        Ok(sent + n == len)
    }
}
