//! MPI-style message matching: receives that wait for messages ([`Posted`]) and messages that
//! wait for receives ([`Unexpected`]).
//!
//! A message fits a receive when their tags agree in the bits that the receive does not ignore
//! and the receive names either no source or this one ([`Key::matches`]). A message takes the
//! *oldest* receive that it fits; a receive takes the *oldest* message that fits it. Untagged
//! traffic uses instances of its own with tag 0 and `ignore` !0.
//!
//! # How
//!
//! Entries live in a slab and are strung in order of age (`ordered.rs`). Almost every search
//! ends within the first entries, so a search reads them oldest first. When searches go past
//! `SCAN_LIMIT` entries, a tuple-space index is built (`chains.rs`): receives
//! with one (`ignore`, directed or not) form a *class*; within a class, matching is equality of
//! (`tag & !ignore`, source), so a hash map leads to the chain of equal entries, oldest first.
//! [`Posted`] builds it only once such searches have cost as much as the index will (each adds `BUILD_COST`
//! compares an entry), because every later operation pays for its upkeep; [`Unexpected`] builds it at once.
//!
//! * [`Posted`]: a receive is in one class. A message probes every class and takes the oldest head.
//! * [`Unexpected`]: a message is in every class that receives have searched with so far.
//!
//! # Invariants
//!
//! * Age is a sequence number that is never reused; it also makes stale ids harmless.
//! * Every chain is sorted by age: only appended to, and rebuilt when a source is renamed.
//! * All lists are doubly linked and an entry leaves all of them when it is removed: there are no
//!   tombstones, hence nothing to skip, nothing to compact, and memory follows the high-water mark.
//! * An index lives until at most `DROP_AT` entries are left. It pays for itself: building costs
//!   O(entries), and all but `DROP_AT` of those came in since it was dropped last. (Renaming a
//!   source drops it early: O(entries) for each peer that turns out to be another.)
//! * Nothing is allocated once the queue has been as long as it gets.
//!
//! # Costs
//!
//! n: entries; c: classes in use, at most `MAX_CLASSES`.
//!
//! | operation | [`Posted`] | [`Unexpected`] |
//! |---|---|---|
//! | post, push; remove | O(1) | O(1); O(c) hash operations when indexed |
//! | find within the oldest `SCAN_LIMIT` | that many compares | that many compares |
//! | find beyond, index there | O(c) probes | 1 probe |
//! | find beyond, no index yet | O(n); amortised as often as an index costs | O(n), once per class |
//! | find with more than `MAX_CLASSES` masks | + the receives of the surplus masks | O(n) for the surplus masks |
//! | get by id | O(1) | O(1) |
//! | `find_by`, `remove_source`, `rename_source`, `drain` | O(n) | O(n) |

#![forbid(unsafe_code)]

mod chains;
mod ordered;
mod posted;
mod unexpected;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

pub use posted::{PostId, Posted};
pub use unexpected::{HeldId, Unexpected};

use crate::types::PeerId;

/// A search that reads this many entries in vain turns to an index. About where the two cost
/// the same (`benches/matching.rs`).
const SCAN_LIMIT: usize = if cfg!(test) { 4 } else { 32 };

/// What one entry adds to the cost of an index, in compares (`benches/matching.rs`).
const BUILD_COST: usize = if cfg!(test) { 2 } else { 8 };

/// An index is given up when no more entries than this are left.
const DROP_AT: usize = if cfg!(test) { 1 } else { 4 };

/// Masks that one index tells apart; what goes beyond is scanned.
const MAX_CLASSES: usize = if cfg!(test) { 3 } else { 8 };

/// What a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The tag wanted.
    pub tag: u64,
    /// The bits of the tag that are not compared.
    pub ignore: u64,
    /// The only peer to receive from; none: any.
    pub source: Option<PeerId>,
}

impl Key {
    /// Whether a message with this tag from this peer fits.
    #[inline]
    pub fn matches(&self, tag: u64, src: PeerId) -> bool {
        #[cfg(test)]
        tests::count_compare();
        (self.tag ^ tag) & !self.ignore == 0 && self.source.is_none_or(|only| only == src)
    }
}

/// Receives that can share hash chains: same mask, and all directed or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    ignore: u64,
    directed: bool,
}

impl Class {
    /// The class of a receive.
    #[inline]
    fn of(key: &Key) -> Self {
        Class { ignore: key.ignore, directed: key.source.is_some() }
    }

    /// What receives of this class and the messages that fit them have in common: the compared
    /// bits of the tag, and the source if it counts.
    #[inline]
    fn common(self, tag: u64, src: PeerId) -> (u64, u32) {
        (tag & !self.ignore, if self.directed { src.0 } else { 0 })
    }
}
