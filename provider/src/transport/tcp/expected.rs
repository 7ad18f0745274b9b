//! Payload that is expected: where it goes, which of it has been begun and how much is there, by whichever connection of the pair it comes.
//!
//! What was only promised comes in order by the first connection. What was asked for may come in pieces by all of them, in any order; but no byte
//! of it twice, and none beside it. Each frame of payload *claims* its place before a byte of it is read.

use super::Bulk;
use crate::mem::user::{UserIov, total_len, window};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Places that may be begun while there is something missing between each two of them. With pieces of [`PIECE`](super::bundle::PIECE) bytes and eight
/// connections these are 32 MiB on the way in each; more than that no rustmx has.
const MOST_CLAIMS: usize = 1024;

/// The other side sends what was not asked for, or the same twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong;

/// By whom payload comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The first connection of the pair.
    First,
    /// Another one: only what was asked for.
    Lane,
}

/// A part of a message that will come.
pub(super) struct Expected {
    iov: UserIov,
    /// Bytes of that: what comes behind them is dropped.
    room: usize,
    /// Where in the message the part begins.
    from: u64,
    len: usize,
    /// Its first bytes, which were promised and not asked for.
    promised: usize,
    arrived: usize,
    /// Where the first connection would go on.
    next: usize,
    /// What has been begun: from and to, in order, never touching each other.
    claims: SmallVec<[(usize, usize); 1]>,
    /// Others look at its place: nothing is written there by a guess.
    exact: bool,
}

impl Expected {
    /// Bytes that come next if they come in order; none if others come by other connections.
    fn next(&self) -> Option<(usize, usize)> {
        let in_order = match self.claims[..] {
            [] => self.next == 0,
            [(0, end)] => self.next == end,
            _ => false,
        };
        (in_order && self.next < self.len).then(|| (self.next, self.len - self.next))
    }

    fn claim(&mut self, offset: u64, len: usize, by: By) -> Result<usize, Wrong> {
        let at = offset.checked_sub(self.from).and_then(|at| usize::try_from(at).ok()).ok_or(Wrong)?;
        let end = at.checked_add(len).filter(|end| *end <= self.len).ok_or(Wrong)?;
        let allowed = match by {
            By::First => at >= self.promised || at == self.next,
            // What is asked for, there is room for.
            By::Lane => at >= self.promised && end <= self.room,
        };
        let behind = self.claims.partition_point(|claim| claim.0 < at);
        let free = behind.checked_sub(1).is_none_or(|before| self.claims[before].1 <= at)
            && self.claims.get(behind).is_none_or(|next| end <= next.0);
        if !allowed || !free {
            return Err(Wrong);
        }
        self.insert(behind, at, end)?;
        if by == By::First {
            self.next = end;
        }
        Ok(at)
    }

    fn insert(&mut self, behind: usize, at: usize, end: usize) -> Result<(), Wrong> {
        let joins_before = behind > 0 && self.claims[behind - 1].1 == at;
        let joins_next = self.claims.get(behind).is_some_and(|next| next.0 == end);
        match (joins_before, joins_next) {
            (true, true) => {
                self.claims[behind - 1].1 = self.claims[behind].1;
                self.claims.remove(behind);
            }
            (true, false) => self.claims[behind - 1].1 = end,
            (false, true) => self.claims[behind].0 = at,
            (false, false) if self.claims.len() < MOST_CLAIMS => self.claims.insert(behind, (at, end)),
            (false, false) => return Err(Wrong),
        }
        Ok(())
    }

    /// The application's memory for the bytes from `at` on, as far as there is some.
    pub fn place(&self, at: usize, bytes: usize) -> UserIov {
        window(&self.iov, at, self.room.saturating_sub(at).min(bytes))
    }

    /// Bytes of these for which there is memory.
    pub fn placed(&self, at: usize, bytes: usize) -> usize {
        self.room.saturating_sub(at).min(bytes)
    }
}

/// All parts that are expected of one peer.
#[derive(Default)]
pub(super) struct Expectations(FxHashMap<u32, Expected>);

impl Expectations {
    /// The part goes to `bulk`. Whether there is memory for all of it.
    pub fn insert(&mut self, bulk: Bulk<'_>, exact: bool) -> bool {
        let Bulk { id, iov, skip, len, promised } = bulk;
        let iov = window(iov, skip, len);
        let room = total_len(&iov);
        let claims = SmallVec::new();
        self.0.insert(id, Expected { iov, room, from: skip as u64, len, promised, arrived: 0, next: 0, claims, exact });
        room >= len
    }

    /// There is no memory for it any more.
    pub fn disown(&mut self, id: u32) {
        if let Some(expected) = self.0.get_mut(&id) {
            (expected.iov, expected.room) = (window(&[], 0, 0), 0);
        }
    }

    /// A part.
    pub fn get(&self, id: u32) -> Option<&Expected> {
        self.0.get(&id)
    }

    /// A frame brings `len` bytes that belong at `offset` of message `id`. Where in the part that is; `None`: nobody expects that message.
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn claim(&mut self, id: u32, offset: u64, len: usize, by: By) -> Result<Option<usize>, Wrong> {
        self.0.get_mut(&id).map(|expected| expected.claim(offset, len, by)).transpose()
    }

    /// `n` bytes of a place that was claimed are there. Whether that was the rest of the part.
    pub fn came(&mut self, id: u32, n: usize) -> bool {
        let Some(expected) = self.0.get_mut(&id) else { return false };
        expected.arrived += n;
        let whole = expected.arrived == expected.len;
        if whole {
            self.0.remove(&id);
        }
        whole
    }

    /// Where the first connection would go on with message `id`, and how many bytes there are; `None`: that cannot be known, or is not to be guessed.
    pub fn next(&self, id: u32) -> Option<(usize, usize)> {
        self.0.get(&id).filter(|expected| !expected.exact)?.next()
    }

    /// Whether pieces of message `id` come by several connections.
    pub fn is_striped(&self, id: u32) -> bool {
        self.0.get(&id).is_some_and(|expected| expected.next < expected.len && expected.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expected(len: usize, promised: usize, room: usize) -> Expected {
        let (iov, claims) = (window(&[], 0, 0), SmallVec::new());
        Expected { iov, room, from: 100, len, promised, arrived: 0, next: 0, claims, exact: false }
    }

    #[test]
    fn what_was_promised_comes_in_order_by_the_first_connection() {
        let mut part = expected(1000, 500, 1000);
        assert_eq!(part.claim(100, 50, By::Lane), Err(Wrong), "not asked for");
        assert_eq!(part.claim(108, 50, By::First), Err(Wrong), "not the beginning");
        assert_eq!(part.claim(99, 50, By::First), Err(Wrong), "before the part");
        assert_eq!(part.claim(100, 50, By::First), Ok(0));
        assert_eq!(part.next(), Some((50, 950)));
        assert_eq!(part.claim(100, 50, By::First), Err(Wrong), "twice");
        assert_eq!(part.claim(600, 100, By::Lane), Ok(500));
        assert_eq!(part.next(), None, "who knows what comes next");
        assert_eq!(part.claim(150, 450, By::First), Ok(50));
        assert_eq!(part.claim(650, 10, By::Lane), Err(Wrong), "inside of another one");
        assert_eq!(part.claim(1000, 101, By::Lane), Err(Wrong), "beyond the end");
        assert_eq!(part.claim(u64::MAX, usize::MAX, By::Lane), Err(Wrong));
        assert_eq!(part.claim(700, 400, By::First), Ok(600));
        assert_eq!(part.claims[..], [(0, 1000)]);
        assert_eq!(expected(1000, 0, 900).claim(950, 100, By::Lane), Err(Wrong), "there is no room for it");
    }

    #[test]
    fn crumbs_have_an_end() {
        let mut part = expected(1 << 20, 0, 1 << 20);
        let crumbs = (0..).map(|i| part.claim(100 + 2 * i, 1, By::Lane)).take_while(Result::is_ok).count();
        assert_eq!(crumbs, MOST_CLAIMS);
    }

    proptest! {
        /// Beside a list of all bytes.
        #[test]
        fn no_byte_is_claimed_twice(claims in proptest::collection::vec((0usize..64, 1usize..24), 1..60)) {
            let (mut part, mut taken) = (expected(64, 0, 64), [false; 64]);
            for (at, len) in claims {
                let free = at + len <= 64 && !taken[at..at + len].contains(&true);
                prop_assert_eq!(part.claim(100 + at as u64, len, By::Lane).is_ok(), free);
                if free {
                    taken[at..at + len].fill(true);
                }
                let sound = part.claims.windows(2).all(|pair| pair[0].1 < pair[1].0);
                prop_assert!(sound && part.claims.iter().map(|c| c.1 - c.0).sum::<usize>() == taken.iter().filter(|t| **t).count());
            }
        }
    }
}
