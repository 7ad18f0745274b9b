//! Whether two should copy a message, by how fast one does: observed, because only that tells whether the source lies in a cache.
//!
//! A source that is sent again unchanged is in the receiver's cache, or on its way there for the second time; one that was rewritten is in its
//! writer's. The same 64 KiB take a receiver 2.8 or 10.6 us (mapped, `docs/adr/0017-lending.md`). Help halves the time, and costs
//! a few hand-overs and a sender that writes to lines which are the receiver's. So it is worth its price from some *time* on, not from some size on.

/// What is assumed of a peer at first, in nanoseconds for a KiB: between what is seen of cached sources and of others.
const FIRST: [u32; 2] = [180, 100];
/// Nanoseconds of a copy that its length has nothing to do with: a system call that finds another process's memory. A first part that is a quarter of a
/// message would else make the whole look twice as long.
const START: [u64; 2] = [1_200, 0];
/// Shorter copies say more of their overhead than of the pace.
pub(super) const TELLING: usize = 16 << 10;
const KIB: u64 = 1024;

/// How fast this side copies what one peer sends, in nanoseconds for a KiB: by the kernel, and in mapped memory.
pub(super) struct Pace {
    of: [u32; 2],
    /// The last message was copied by both: the destination's lines are in two caches.
    shared: [bool; 2],
    /// Nanoseconds that one side must need alone, before help is worth it.
    worth: [u64; 2],
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { of: FIRST, shared: [false; 2], worth: [0; 2] }
    }
}

impl Pace {
    /// Help is worth it from so many nanoseconds on that one side needs alone: by the kernel, and in mapped memory.
    pub fn set_worth(&mut self, worth: [u64; 2]) {
        self.worth = worth;
    }

    /// A copy of so many bytes from one end took so long. 0 ns says nothing: a clock that stands still. `shared`: they are the first part of a
    /// message that both copy.
    pub fn saw(&mut self, bytes: usize, ns: u64, mapped: bool, shared: bool) {
        // Who copies alone after both did fetches the other one's half of the destination, and the next time does not: taken for its pace, that
        // would bring help back at once, and so on in turn.
        let settles = std::mem::replace(&mut self.shared[usize::from(mapped)], shared) && !shared;
        let pace = &mut self.of[usize::from(mapped)];
        let seen = ns
            .saturating_sub(START[usize::from(mapped)])
            .max(u64::from(ns > 0))
            .saturating_mul(KIB)
            .div_ceil(bytes.max(1) as u64);
        if seen > 0 && !settles {
            // Who lost its core in the middle saw nothing of the memory.
            let seen = seen.min(4 * u64::from(*pace)) as u32;
            *pace = (*pace / 2 + seen / 2).max(1);
        }
    }

    /// Whether a message of so many bytes had better be copied by both sides.
    pub fn wants_help(&self, bytes: usize, mapped: bool) -> bool {
        let alone = START[usize::from(mapped)] + u64::from(self.of[usize::from(mapped)]).saturating_mul(bytes as u64) / KIB;
        alone >= self.worth[usize::from(mapped)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        let mut pace = Pace::default();
        pace.set_worth([9_000, 4_500]);
        pace
    }

    #[test]
    fn help_goes_by_time() {
        let mut pace = pace();
        assert!(!pace.wants_help(16 << 10, true) && pace.wants_help(64 << 10, true));
        assert!(!pace.wants_help(32 << 10, false) && pace.wants_help(64 << 10, false));
        for _ in 0..20 {
            pace.saw(64 << 10, 2_700, true, false);
        }
        assert!(!pace.wants_help(64 << 10, true) && pace.wants_help(128 << 10, true), "out of the cache");
        assert!(pace.wants_help(128 << 10, false), "the other means is another matter");
        for _ in 0..20 {
            pace.saw(16 << 10, 2_600, true, false);
        }
        assert!(pace.wants_help(32 << 10, true), "the sender rewrites it");
    }

    #[test]
    fn who_copies_alone_again_fetches_the_others_half_first() {
        let mut pace = pace();
        for _ in 0..20 {
            pace.saw(16 << 10, 700, true, true);
        }
        for _ in 0..20 {
            // Out of the cache, but the destination of what the other one copied is in the other one's.
            pace.saw(16 << 10, 700, true, true);
            assert!(!pace.wants_help(64 << 10, true));
            pace.saw(64 << 10, 9_000, true, false);
            assert!(!pace.wants_help(64 << 10, true), "and now it is here");
        }
        pace.saw(64 << 10, 9_000, true, false);
        assert!(pace.wants_help(64 << 10, true), "twice is no move");
    }

    #[test]
    fn a_part_tells_of_the_whole_what_a_whole_would() {
        let (mut parts, mut wholes) = (pace(), pace());
        // 120 ns for a KiB, and the system call.
        for _ in 0..20 {
            parts.saw(16 << 10, 1_200 + 120 * 16, false, true);
            wholes.saw(64 << 10, 1_200 + 120 * 64, false, false);
        }
        for kib in [40, 64, 66, 200] {
            assert_eq!(parts.wants_help(kib << 10, false), wholes.wants_help(kib << 10, false), "{kib}");
        }
        assert!(!parts.wants_help(64 << 10, false) && parts.wants_help(66 << 10, false));
    }

    #[test]
    fn one_interruption_is_no_pace() {
        let mut pace = pace();
        for _ in 0..20 {
            pace.saw(32 << 10, 1_300, true, false);
        }
        pace.saw(32 << 10, 10_000_000, true, false);
        assert!(!pace.wants_help(24 << 10, true));
        pace.saw(32 << 10, 0, true, false);
        pace.saw(0, u64::MAX, true, false);
        for _ in 0..20 {
            pace.saw(usize::MAX, 1, false, false);
        }
        assert!(!pace.wants_help(0, true));
    }
}
