//! Buffers that were seen lately but are not cached: one that comes again is worth a try, one that cannot be cached less and less often.
//! And so is one whose values ended before they had served: a program that maps memory, sends it and unmaps it gets the same addresses again and again
//! (`malloc` of long blocks does that), and each registration would die with its mapping.

/// Sets of four: a buffer has four places.
const SETS: usize = 64;
const WAYS: usize = 4;
/// Uses between two tries in the end.
const PATIENCE: u32 = 1024;
/// Uses before the first try; twice as many for each value in a row that ended in vain.
const FIRST: u32 = 2;

#[derive(Clone, Copy, Default)]
struct Candidate {
    /// Number of its first page; 0: none.
    page: usize,
    seen: u32,
    /// Tried when seen so often.
    due: u32,
}

/// A fixed table; newcomers push out any of their set. (To look for the one that came least costs five times as much.)
pub struct Recent {
    sets: Box<[[Candidate; WAYS]; SETS]>,
    /// Why candidates were refused, apart: a set is a cache line. 0: it was not.
    reasons: [[u8; WAYS]; SETS],
    /// How many values of theirs ended in vain, one after the other.
    wasted: [[u8; WAYS]; SETS],
    chance: u32,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent {
            sets: Box::new([[Candidate::default(); WAYS]; SETS]),
            reasons: [[0; WAYS]; SETS],
            wasted: [[0; WAYS]; SETS],
            chance: 0,
        }
    }
}

impl Recent {
    fn place(page: usize) -> usize {
        // Fibonacci hashing, by the upper bits: neighbours and multiples of powers of two spread.
        let hash = (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SETS.ilog2());
        hash as usize
    }

    fn set(&mut self, page: usize) -> &mut [Candidate; WAYS] {
        &mut self.sets[Recent::place(page)]
    }

    /// Notes that a buffer which starts in page `page` was used. Whether it is worth a try now: never the first time.
    #[inline]
    pub fn again(&mut self, page: usize) -> bool {
        for candidate in self.set(page) {
            if candidate.page == page {
                candidate.seen = candidate.seen.saturating_add(1);
                return candidate.seen >= candidate.due;
            }
        }
        self.newcomer(Candidate { page, seen: 1, due: FIRST });
        false
    }

    /// Counts uses of a buffer before they come, at most so many, and none of which [`again`](Self::again) would say that it is worth a try. Returns how many.
    pub fn uses_ahead(&mut self, page: usize, most: u32) -> u32 {
        let Some(candidate) = self.set(page).iter_mut().find(|candidate| candidate.page == page) else { return 0 };
        let uses = candidate.due.saturating_sub(candidate.seen).saturating_sub(1).min(most);
        candidate.seen += uses;
        uses
    }

    /// Puts a candidate in the place of another one, and returns which place of its set.
    fn newcomer(&mut self, candidate: Candidate) -> usize {
        // By chance (a linear congruence): in turn, a loop over five buffers of a set would push each out before it comes again.
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let way = (self.chance >> (u32::BITS - WAYS.ilog2())) as usize;
        let place = Recent::place(candidate.page);
        self.sets[place][way] = candidate;
        (self.reasons[place][way], self.wasted[place][way]) = (0, 0);
        way
    }

    fn way(&self, page: usize) -> Option<usize> {
        self.sets[Recent::place(page)].iter().position(|candidate| candidate.page == page)
    }

    /// It was tried in vain, for a reason of the caller's numbering (less than 255).
    pub fn refused(&mut self, page: usize, why: u8) {
        let place = Recent::place(page);
        for (candidate, reason) in self.sets[place].iter_mut().zip(&mut self.reasons[place]) {
            if candidate.page == page {
                candidate.due = candidate.seen.saturating_add(candidate.seen.min(PATIENCE));
                *reason = why.saturating_add(1);
            }
        }
    }

    /// Why it was refused last, if it was and is still known.
    pub fn reason(&self, page: usize) -> Option<u8> {
        self.reasons[Recent::place(page)][self.way(page)?].checked_sub(1)
    }

    /// It is cached: when it comes again it has been lost.
    pub fn done(&mut self, page: usize) {
        if let Some(way) = self.way(page) {
            self.again_from(page, way);
        }
    }

    /// A value that was kept for it has ended; `served`: often enough to be worth what it cost.
    pub fn ended(&mut self, page: usize, served: bool) {
        let place = Recent::place(page);
        let way = match self.way(page) {
            Some(way) => way,
            None if served => return,
            None => self.newcomer(Candidate { page, seen: 0, due: FIRST }),
        };
        let wasted = &mut self.wasted[place][way];
        *wasted = if served { 0 } else { wasted.saturating_add(1) };
        self.again_from(page, way);
    }

    /// From here on it is counted anew when it comes.
    fn again_from(&mut self, page: usize, way: usize) {
        let place = Recent::place(page);
        // Few enough that no bit is pushed out.
        let doublings = self.wasted[place][way].min(PATIENCE.ilog2() as u8);
        let due = (FIRST << doublings).min(PATIENCE);
        self.sets[place][way] = Candidate { page, seen: 0, due };
        self.reasons[place][way] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_is_not_again() {
        let mut recent = Recent::default();
        for page in 1..100_000 {
            assert!(!recent.again(page), "page {page} was never seen");
        }
    }

    #[test]
    fn uses_may_be_counted_ahead() {
        let (mut plain, mut ahead) = (Recent::default(), Recent::default());
        assert_eq!(ahead.uses_ahead(7, 15), 0, "never seen");
        let (mut skip, mut skipped) = (0, 0);
        for _ in 0..10_000 {
            let tried = plain.again(7);
            if skip > 0 {
                assert!(!tried, "a try was missed");
                skip -= 1;
            } else {
                assert_eq!(ahead.again(7), tried);
                if tried {
                    plain.refused(7, 0);
                    ahead.refused(7, 0);
                }
                skip = ahead.uses_ahead(7, 15);
                skipped += skip;
            }
        }
        assert!(skipped > 9_000, "{skipped}");
    }

    #[test]
    fn the_second_time_counts_and_refusals_get_rare() {
        let mut recent = Recent::default();
        assert!(!recent.again(7));
        assert!(recent.again(7));
        recent.done(7);
        assert!(!recent.again(7));
        let mut tries = Vec::new();
        for n in 2..10_000u32 {
            if recent.again(7) {
                tries.push(n);
                recent.refused(7, 3);
            }
        }
        assert_eq!((recent.reason(7), recent.reason(8)), (Some(3), None));
        recent.done(7);
        assert!(recent.reason(7).is_none() && !recent.again(7) && recent.reason(7).is_none(), "a new one");
        assert_eq!(tries[..6], [2, 4, 8, 16, 32, 64]);
        assert!(tries.windows(2).all(|w| w[1] - w[0] <= PATIENCE) && tries.len() < 20, "{tries:?}");
    }

    /// How many of `uses` of a buffer find it worth a try if each value ends after it `served`.
    fn tries(recent: &mut Recent, page: usize, uses: usize, served: bool) -> usize {
        let mut tries = 0;
        for _ in 0..uses {
            if recent.again(page) {
                tries += 1;
                recent.done(page);
                recent.ended(page, served);
            }
        }
        tries
    }

    #[test]
    fn what_ended_in_vain_is_tried_more_and_more_seldom() {
        let mut recent = Recent::default();
        assert_eq!(
            tries(&mut recent, 7, 10_000, false),
            9 + (10_000 - 1022) / 1024,
            "2, 4, 8, … 512, and each 1024th use from there on"
        );
        assert_eq!(tries(&mut recent, 9, 300_000, false), 9 + (300_000 - 1022) / 1024, "however often it was in vain");
        assert_eq!(tries(&mut recent, 8, 1000, true), 500, "another one has no such habit");
        let untried = (1..).find(|_| recent.again(7)).expect("ever");
        assert!((2..=1024).contains(&untried), "it must earn a new trust: {untried}");
        recent.ended(7, true);
        assert_eq!(tries(&mut recent, 7, 1000, true), 500, "and has it");
    }

    /// Also of those that were pushed out while they were cached.
    #[test]
    fn habits_outlive_a_crowd() {
        let mut recent = Recent::default();
        let mut tries = 0;
        for n in 0..1000 {
            if recent.again(7) {
                tries += 1;
                recent.done(7);
                for page in 0..2000 {
                    recent.again(1000 + n * 2000 + page);
                }
                recent.ended(7, false);
            }
        }
        // Who is pushed out while it is cached has only its last failure.
        assert!(tries <= 250, "{tries}");
    }

    #[test]
    fn newcomers_were_refused_for_nothing() {
        let mut recent = Recent::default();
        for page in 1..1000 {
            assert_eq!((recent.again(page), recent.reason(page)), (false, None), "page {page}");
            recent.refused(page, 5);
        }
    }

    /// A working set that fits is recognised, also after something else filled the table.
    #[test]
    fn a_working_set_comes_through() {
        let mut recent = Recent::default();
        for page in 1..1000 {
            for _ in 0..50 {
                recent.again(page);
                recent.refused(page, 0);
            }
        }
        let mut found = 0;
        for _ in 0..20 {
            for n in 0..16usize {
                if recent.again((1 << 20) + n * 513) {
                    found |= 1 << n;
                    recent.refused((1 << 20) + n * 513, 0);
                }
            }
        }
        assert_eq!(found, (1 << 16) - 1, "{found:b}");
    }
}
