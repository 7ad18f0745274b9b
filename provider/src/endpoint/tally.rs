//! What went which way to one peer: for each row of the select table how many messages and bytes, and what of that could not go as the
//! table says. The counters of an endpoint ([`Stats`]) are sums of these, so a message costs two additions.

use crate::select::model::{Mover, Operation};
use crate::select::one_sided::MOST_DEEDS;
use crate::select::{MAX_ROWS, Selection};
use crate::stats::Stats;
use crate::transport::NotLendable;
use crate::types::ProtoId;

/// Messages or other operations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub count: u64,
    pub bytes: u64,
}

impl Tally {
    #[inline]
    pub fn add(&mut self, len: usize) {
        self.count += 1;
        self.bytes += len as u64;
    }

    pub fn plus(self, other: Tally) -> Tally {
        Tally { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }

    fn minus(self, other: Tally) -> Tally {
        Tally { count: self.count - other.count, bytes: self.bytes - other.bytes }
    }
}

/// Why a message went another way than the table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The receiver's window was used up.
    Window,
    /// The ring towards the peer is too short.
    Ring,
    /// The peer had not answered yet.
    Early,
    /// The kernel lets neither side reach the other's memory.
    Kernel,
    /// This message's memory, here or there, cannot be reached that way.
    Memory,
    /// The buffer lies in more pieces than an offer can name.
    Pieces,
    /// Nothing says where the peer's memory is.
    Unknown,
    /// The caller took its buffer back at once.
    AtOnce,
    /// The receiver could not map what was lent to it.
    Unmapped,
    /// What the target's engine was asked for before comes first.
    Order,
    /// Its buffer looked as it did when it was last sent.
    Again,
}

/// Why a message was not lent although it is long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlent {
    /// The peer is this endpoint, or gone, or there are no bytes: no question.
    Itself,
    /// The peer had not answered yet.
    Early,
    /// The peer could not map what was lent to it before.
    Peer,
    /// The peer has been lent as much as it may.
    TooMany,
    /// It lies in more memory than may be lent.
    TooLong,
    /// It lies in several places.
    Scattered,
    /// No descriptor of the memory could be had or handed over.
    NotHanded,
    /// The peer may not write there.
    ReadOnly,
    /// The receiver does not find such messages in its own cache.
    Rewritten,
    /// Of its memory peers know nothing.
    Memory(NotLendable),
}

/// Messages that were not lent and went another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub to: ProtoId,
    pub why: Unlent,
    pub tally: Tally,
}

/// Why an offer came back, or went otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The kernel forbids all of them; it comes as a stream.
    Forbidden,
    /// This one could not be reached; it comes as a stream.
    Unreachable,
    /// The receiver had the kernel copy it.
    Unmapped,
}

/// Messages of one row that went another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turned {
    pub row: u8,
    pub to: ProtoId,
    pub why: Why,
    pub tally: Tally,
}

/// Reads or writes of one row that the target's engine was asked for, although they were to be direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handed {
    pub row: u8,
    pub why: Why,
    pub tally: Tally,
}

/// What went to one peer.
#[derive(Clone, Default)]
pub(super) struct Tallies {
    rows: [Tally; MAX_ROWS],
    turned: Vec<Turned>,
    /// Messages that could have been lent by their size, and were not; each went as a row says, or was turned.
    missed: Vec<Missed>,
    /// Why the message that is being started is not lent.
    unlent: Option<Unlent>,
    /// Reads, writes and atomics, by the row that they were to go by, and what of that went otherwise.
    deeds: [Tally; MOST_DEEDS],
    handed: Vec<Handed>,
    /// Offers that came back: bytes of the message, whether it lay in memory that was lent, whether it was presumed to be in the receiver's cache, and why.
    returned: Vec<(usize, bool, bool, Back)>,
}

impl Tallies {
    /// A message went, as the table says.
    #[inline]
    pub fn count(&mut self, row: u8, len: usize) {
        self.rows[usize::from(row) % MAX_ROWS].add(len);
    }

    /// A message that was counted in `row` went, or goes after all, another way.
    #[cold]
    pub fn turn(&mut self, row: u8, to: ProtoId, why: Why, len: usize) {
        let known = self.turned.iter_mut().find(|t| (t.row, t.to, t.why) == (row, to, why));
        match known {
            Some(turned) => turned.tally.add(len),
            None => {
                let mut turned = Turned { row, to, why, tally: Tally::default() };
                turned.tally.add(len);
                self.turned.push(turned);
            }
        }
    }

    /// The message that is being started is not lent; `None`: it is.
    #[inline]
    pub fn note_unlent(&mut self, why: Option<Unlent>) {
        self.unlent = why.filter(|why| *why != Unlent::Itself);
    }

    /// It went by `to`.
    #[inline]
    pub fn count_unlent(&mut self, to: ProtoId, len: usize) {
        let Some(why) = self.unlent.take() else { return };
        match self.missed.iter_mut().find(|m| (m.to, m.why) == (to, why)) {
            Some(missed) => missed.tally.add(len),
            None => self.missed.push(Missed { to, why, tally: Tally { count: 1, bytes: len as u64 } }),
        }
    }

    /// What was not lent.
    pub fn missed(&self) -> &[Missed] {
        &self.missed
    }

    /// An offered message did not go as it was offered.
    #[cold]
    pub fn came_back(&mut self, total: usize, lent: bool, presumed: bool, why: Back) {
        self.returned.push((total, lent, presumed, why));
    }

    /// Whether [`take_returned`](Self::take_returned) has something.
    #[inline]
    pub fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Books what came back. Whether the kernel forbids offers.
    pub fn take_returned(&mut self, selection: &Selection) -> bool {
        let mut any = false;
        for (total, lent, presumed, back) in std::mem::take(&mut self.returned) {
            let pick = selection.choose_lent(total).filter(|_| lent).unwrap_or_else(|| selection.choose(total, false));
            let (to, why) = match back {
                Back::Forbidden => (ProtoId::Stream, Why::Kernel),
                Back::Unreachable => (ProtoId::Stream, Why::Memory),
                Back::Unmapped => (ProtoId::Syscall, Why::Unmapped),
            };
            // It was turned once already.
            if presumed
                && !lent
                && let Some(again) = self.turned.iter_mut().find(|t| (t.row, t.why) == (pick.row, Why::Again))
            {
                again.tally = again.tally.minus(Tally { count: 1, bytes: total as u64 });
            }
            self.turn(pick.row, to, why, total);
            any |= back == Back::Forbidden;
        }
        any
    }

    /// A read, a write or an atomic was started, as its row says.
    #[inline]
    pub fn deed(&mut self, row: u8, len: usize) {
        self.deeds[usize::from(row) % MOST_DEEDS].add(len);
    }

    /// One that was to be direct was handed to the target's engine.
    #[cold]
    pub fn deed_handed(&mut self, row: u8, why: Why, len: usize) {
        self.deed(row, len);
        match self.handed.iter_mut().find(|h| (h.row, h.why) == (row, why)) {
            Some(handed) => handed.tally.add(len),
            None => self.handed.push(Handed { row, why, tally: Tally { count: 1, bytes: len as u64 } }),
        }
    }

    /// What went as a row says.
    pub fn of_deed(&self, row: usize) -> Tally {
        self.deeds[row].minus(self.of_handed(row))
    }

    /// What should have, and was handed over.
    pub fn of_handed(&self, row: usize) -> Tally {
        let these = self.handed.iter().filter(|h| usize::from(h.row) == row);
        these.fold(Tally::default(), |sum, h| sum.plus(h.tally))
    }

    /// Of all rows.
    pub fn handed(&self) -> &[Handed] {
        &self.handed
    }

    /// What went as a row says.
    pub fn of_row(&self, row: usize) -> Tally {
        let turned = self.turned.iter().filter(|t| usize::from(t.row) == row);
        turned.fold(self.rows[row], |sum, t| sum.minus(t.tally))
    }

    /// What should have gone as a row says, and went by `to`.
    pub fn of_turned(&self, row: usize, to: ProtoId) -> Tally {
        let these = self.turned.iter().filter(|t| (usize::from(t.row), t.to) == (row, to));
        these.fold(Tally::default(), |sum, t| sum.plus(t.tally))
    }

    /// What went otherwise.
    pub fn turned(&self) -> &[Turned] {
        &self.turned
    }

    /// Adds all of it to the counters of an endpoint.
    pub fn add_to(&self, stats: &mut Stats, selection: &Selection) {
        for (at, row) in selection.rows().iter().enumerate() {
            stats.add_sent(row.proto, self.of_row(at).count);
        }
        for t in &self.turned {
            stats.add_sent(t.to, t.tally.count);
            stats.window_full += if t.why == Why::Window { t.tally.count } else { 0 };
        }
        for (at, row) in selection.deeds().rows().iter().enumerate() {
            let counter = match (row.operation, row.mover) {
                (Operation::Atomic, _) => &mut stats.atomics,
                (_, Mover::Direct) => &mut stats.direct,
                (_, Mover::Target) => &mut stats.one_sided,
            };
            *counter += self.of_deed(at).count;
            stats.one_sided += self.of_handed(at).count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::select::Pick;

    #[test]
    fn what_was_turned_is_not_counted_twice() {
        let selection = Selection::new(&Config { syscall_min: 32 << 10, ..Config::default() }, 6000);
        let mut t = Tallies::default();
        for len in [10, 3000, 3000, 8000, 40_000, 1 << 20] {
            let Pick { row, .. } = selection.choose(len, false);
            t.count(row, len);
        }
        let Pick { row: eager, .. } = selection.choose(3000, false);
        t.turn(eager, ProtoId::Stream, Why::Window, 3000);
        t.came_back(1 << 20, false, false, Back::Forbidden);
        assert!(t.has_returned() && t.take_returned(&selection) && !t.has_returned());
        let deed = |operation| selection.deeds().choose(operation, 5).row;
        t.deed_handed(deed(Operation::Write), Why::Kernel, 5);
        t.deed(deed(Operation::Write), 5);
        t.deed(deed(Operation::Write), 6);
        t.deed(deed(Operation::Atomic), 8);
        let mut stats = Stats::default();
        t.add_to(&mut stats, &selection);
        assert_eq!((stats.sent, stats.inline, stats.eager, stats.stream, stats.syscall), (6, 1, 1, 3, 1));
        assert_eq!((stats.window_full, stats.one_sided, stats.direct, stats.atomics), (1, 1, 2, 1));
        assert_eq!(t.of_deed(usize::from(deed(Operation::Write))), Tally { count: 2, bytes: 11 });
        assert_eq!(t.of_row(usize::from(eager)), Tally { count: 1, bytes: 3000 });
        assert_eq!(t.turned().len(), 2);
        t.turn(eager, ProtoId::Stream, Why::Ring, 2000);
        assert_eq!(t.of_turned(usize::from(eager), ProtoId::Stream), Tally { count: 2, bytes: 5000 }, "for two reasons");
        assert_eq!(t.of_turned(usize::from(eager), ProtoId::Syscall), Tally::default());
        // One that was left to the kernel and came back was turned once.
        t.count(eager, 4000);
        t.turn(eager, ProtoId::Syscall, Why::Again, 4000);
        t.came_back(4000, false, true, Back::Unreachable);
        assert!(!t.take_returned(&selection));
        assert_eq!(t.of_turned(usize::from(eager), ProtoId::Syscall), Tally::default());
        assert_eq!(t.of_turned(usize::from(eager), ProtoId::Stream), Tally { count: 3, bytes: 9000 });
    }
}
