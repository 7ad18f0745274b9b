//! Whether two should copy a message, by how fast one does: observed, because only that tells whether the source lies in a cache.
//!
//! A source that is sent again unchanged is in the receiver's cache, or on its way there for the second time; one that was rewritten is in its
//! writer's. The same 64 KiB take a receiver 2.8 or 10.6 us (mapped, `docs/adr/0017-lending.md`). Help halves the time, and costs
//! a few hand-overs and a sender that writes to lines which are the receiver's. So it is worth its price from some *time* on, not from some size on.
//!
//! From which, is observed, too, for the price goes with the distance of the two cores, which a hypervisor may change: what both took together, less half of
//! what one alone would have, is the price of that message, and twice the price is the time from which on help pays.

/// What is assumed of a peer at first, in nanoseconds for a KiB: between what is seen of cached sources and of others.
const FIRST: [u32; 2] = [180, 100];
/// Nanoseconds of a copy that its length has nothing to do with: a system call that finds another process's memory. A first part that is a quarter of a
/// message would else make the whole look twice as long.
const START: [u64; 2] = [1_200, 0];
/// Shorter copies say more of their overhead than of the pace.
pub(super) const TELLING: usize = 16 << 10;
const KIB: u64 = 1024;
/// From how many nanoseconds on help by invitation is taken to be worth it, before anything was seen: no ACCEPT, and no claims.
const INVITED: u64 = 1_000;
/// The new one among what was seen of the price of help: a quarter.
const NEW: u64 = 4;
/// What was seen of it goes back to where it began by this part with each message that one side copies alone for it, so that help is tried again, if rarely.
const FORGETS: u64 = 2048;
/// It is never further from where it began than by this factor, nor a sample from what it is: a side that computes takes long.
const FAR: u64 = 4;
/// A message beside which nothing is under way begins with this part of what was said: it is corrected soon, and from below.
const BEGINS: (u64, u64) = (3, 8);
/// Of the messages of a class that are shared in a row, one in so many is timed, and the first one.
const TIMED_EVERY: u8 = 4;

/// From how many nanoseconds on that one side must need alone help is worth it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Worth {
    /// That number; for messages beside which none goes the other way, what is seen takes its place.
    pub ns: u64,
    /// It stays that, whatever is seen.
    pub fixed: bool,
}

/// First sizes of the classes of which the price of help is seen by itself: long messages hide part of it.
const CLASSES: [usize; 4] = [0, 64 << 10, 128 << 10, 256 << 10];

/// What was said of the worth of help, and what was seen of it since for messages of each class.
#[derive(Clone, Copy, Default)]
struct Seen {
    said: Worth,
    now: [u64; CLASSES.len()],
    /// Shared messages, counted up to the next that is timed.
    count: [u8; CLASSES.len()],
}

impl Seen {
    fn new(said: Worth) -> Seen {
        let mut seen = Seen { said, ..Seen::default() };
        seen.now = [seen.begins(); CLASSES.len()];
        seen
    }

    /// Where it begins, and where it goes back to.
    fn begins(&self) -> u64 {
        if self.said.fixed { self.said.ns } else { self.said.ns.saturating_mul(BEGINS.0) / BEGINS.1 }
    }

    fn of(&mut self, bytes: usize) -> &mut u64 {
        &mut self.now[class(bytes)]
    }

    /// A message that would have taken one side `alone` so long took both `ns`.
    fn see(&mut self, bytes: usize, ns: u64, alone: u64) {
        if self.said.fixed || ns == 0 {
            return;
        }
        let (begins, now) = (self.begins(), self.of(bytes));
        let worth = ns.saturating_mul(2).saturating_sub(alone).min(now.saturating_mul(FAR));
        *now = (*now - *now / NEW + worth / NEW).clamp(begins / FAR, begins.saturating_mul(FAR));
    }

    /// Help for such a message did not pay.
    fn forget(&mut self, bytes: usize) {
        let (begins, now) = (self.begins(), self.of(bytes));
        let step = now.abs_diff(begins).div_ceil(FORGETS);
        *now = if *now < begins { *now + step } else { *now - step };
    }
}

fn class(bytes: usize) -> usize {
    CLASSES.partition_point(|first| *first <= bytes) - 1
}

/// How fast this side copies what one peer sends, in nanoseconds for a KiB: by the kernel, and in mapped memory.
pub(super) struct Pace {
    of: [u32; 2],
    /// The last message was copied by both: the destination's lines are in two caches.
    shared: [bool; 2],
    worth: [Seen; 2],
    /// The same of messages that the sender is invited to copy a part of.
    invited: Seen,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { of: FIRST, shared: [false; 2], worth: Default::default(), invited: Seen::new(Worth { ns: INVITED, fixed: false }) }
    }
}

impl Pace {
    /// What help is worth: by the kernel, and in mapped memory.
    pub fn set_worth(&mut self, worth: [Worth; 2]) {
        self.worth = worth.map(Seen::new);
        let [_, Worth { ns, fixed }] = worth;
        self.invited = Seen::new(Worth { ns: ns.min(INVITED), fixed });
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

    /// A message that both copied, and beside which nothing was under way, was whole so long after it was shared out.
    pub fn saw_both(&mut self, bytes: usize, ns: u64, mapped: bool) {
        let alone = self.alone(bytes, mapped);
        self.worth[usize::from(mapped)].see(bytes, ns, alone);
    }

    /// Whether a message that is being shared out is to be [timed](Self::saw_both).
    pub fn is_to_be_timed(&mut self, bytes: usize, mapped: bool) -> bool {
        let first = !self.shared[usize::from(mapped)];
        let count = &mut self.worth[usize::from(mapped)].count[class(bytes)];
        *count = if first { 0 } else { (*count + 1) % TIMED_EVERY };
        *count == 0
    }

    /// Nanoseconds that this side would need alone.
    fn alone(&self, bytes: usize, mapped: bool) -> u64 {
        START[usize::from(mapped)] + u64::from(self.of[usize::from(mapped)]).saturating_mul(bytes as u64) / KIB
    }

    /// Bytes of the shortest and the longest message that are worth an invitation, as far as seen, among those about as long as one of `about` bytes. `None`: such a message is not.
    pub fn worth_inviting(&self, about: usize) -> Option<(usize, usize)> {
        let pace = u64::from(self.of[1].max(1));
        let from = |class: usize| CLASSES[class].max((self.invited.now[class].saturating_mul(KIB) / pace) as usize);
        let last = |class: usize| CLASSES.get(class + 1).map_or(usize::MAX, |next| next - 1);
        let (mut lowest, mut highest) = (class(about), class(about));
        if from(lowest) > about {
            return None;
        }
        while lowest > 0 && from(lowest) == CLASSES[lowest] && from(lowest - 1) <= last(lowest - 1) {
            lowest -= 1;
        }
        while highest + 1 < CLASSES.len() && from(highest + 1) == CLASSES[highest + 1] {
            highest += 1;
        }
        Some((from(lowest), last(highest)))
    }

    /// Whether a message that was invited, and beside which nothing is under way, is to be [timed](Self::saw_invited).
    pub fn times_invited(&mut self, bytes: usize) -> bool {
        let count = &mut self.invited.count[class(bytes)];
        *count = (*count + 1) % TIMED_EVERY;
        *count == 0
    }

    /// A message that was invited was whole so long after this side heard of it.
    pub fn saw_invited(&mut self, bytes: usize, ns: u64) {
        let alone = self.alone(bytes, true);
        self.invited.see(bytes, ns, alone);
    }

    /// A message came without an invitation: if that was thought not to pay, it is thought so a little less.
    pub fn forget_invited(&mut self, bytes: usize) {
        if self.alone(bytes, true) < *self.invited.of(bytes) {
            self.invited.forget(bytes);
        }
    }

    /// Whether a message of so many bytes, which is there, had better be copied by both sides. `beside`: one of ours is under way to the peer, who is copying it, then.
    pub fn wants_help(&mut self, bytes: usize, mapped: bool, beside: bool) -> bool {
        let alone = self.alone(bytes, mapped);
        let seen = &mut self.worth[usize::from(mapped)];
        if beside {
            return alone >= seen.said.ns;
        }
        let pays = alone >= *seen.of(bytes);
        if !pays {
            seen.forget(bytes);
        }
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        let mut pace = Pace::default();
        pace.set_worth([9_000, 4_500].map(|ns| Worth { ns, fixed: true }));
        pace
    }

    /// A program that sends so many messages of 128 KiB, which take a receiver `alone`, and both `half` of that and the `price` of help. Returns how many of the
    /// last half were copied by both.
    fn run(pace: &mut Pace, alone: u64, price: u64, n: usize) -> usize {
        let mut shared = 0;
        for i in 0..n {
            if pace.wants_help(128 << 10, true, false) {
                let timed = pace.is_to_be_timed(128 << 10, true);
                pace.saw(32 << 10, alone / 4, true, true);
                if timed {
                    pace.saw_both(128 << 10, alone / 2 + price, true);
                }
                shared += usize::from(i >= n / 2);
            } else {
                pace.saw(128 << 10, alone, true, false);
            }
        }
        shared
    }

    #[test]
    fn beside_one_of_ours_it_is_what_was_said() {
        let mut pace = Pace::default();
        pace.set_worth([Worth { ns: 9_000, fixed: false }; 2]);
        // 6.4 us.
        assert_eq!([false, true].map(|beside| pace.wants_help(64 << 10, true, beside)), [true, false]);
        assert!(pace.wants_help(128 << 10, true, true));
    }

    #[test]
    fn what_help_costs_is_seen() {
        let begin = |ns, fixed| {
            let mut pace = Pace::default();
            pace.set_worth([Worth { ns: 9_000, fixed }, Worth { ns, fixed }]);
            pace
        };
        // Zen 4, 128 KiB that are sent again unchanged; cores that share a cache, and others (docs/adr/0017-lending.md).
        let (near, far) = ((2_500, 900), (2_700, 1_850));
        let mut pace = begin(4_000, false);
        assert_eq!(run(&mut pace, near.0, near.1, 2_000), 1_000, "it pays");
        let tried = run(&mut pace, far.0, far.1, 2_000);
        assert!((1..20).contains(&tried), "it does not, and that is looked at again: {tried}");
        assert_eq!(run(&mut pace, near.0, near.1, 4_000), 2_000, "the hypervisor has moved us");
        // A sender that computes.
        assert!(run(&mut pace, near.0, 1_000_000, 2_000) < 20);
        assert_eq!(run(&mut pace, near.0, near.1, 20_000), 10_000, "and one that is back");
        let mut fixed = begin(2_000, true);
        assert_eq!(run(&mut fixed, far.0, far.1, 2_000), 1_000, "who says so has it so");
        assert_eq!(run(&mut begin(0, false), far.0, far.1, 2_000), 1_000, "always");
    }

    /// A program that sends 64 KiB again and again, which take the receiver `alone`, and `both` from the moment on that it hears of them. Returns how many of the last half
    /// were invited.
    fn invite(pace: &mut Pace, alone: u64, both: u64, n: usize) -> usize {
        let mut invited = 0;
        for i in 0..n {
            if pace.worth_inviting(64 << 10).is_some() {
                pace.saw(16 << 10, alone / 4, true, true);
                if pace.times_invited(64 << 10) {
                    pace.saw_invited(64 << 10, both);
                }
                invited += usize::from(i >= n / 2);
            } else {
                pace.saw(64 << 10, alone, true, false);
                pace.forget_invited(64 << 10);
            }
        }
        invited
    }

    #[test]
    fn what_an_invitation_gains_is_seen() {
        let mut pace = Pace::default();
        pace.set_worth([Worth { ns: 9_000, fixed: false }, Worth { ns: 4_000, fixed: false }]);
        // Zen 5, near and far, sources that were rewritten.
        assert_eq!(invite(&mut pace, 780, 450, 400), 200);
        assert_eq!(invite(&mut pace, 2_600, 1_200, 400), 200);
        let tried = invite(&mut pace, 700, 1_200, 4_000);
        assert!((1..40).contains(&tried), "it takes longer than alone, and that is looked at again: {tried}");
        assert_eq!(invite(&mut pace, 780, 450, 4_000), 2_000, "and pays again");
        // As long as a class is not seen it is taken to be as at first; what is between two that pay is invited.
        pace.of[1] = 12;
        pace.invited.now = [375, 375, 9_000, 375];
        assert_eq!(pace.worth_inviting(128 << 10), None);
        let sizes = |kib: usize| pace.worth_inviting(kib << 10).map(|(least, most)| (least >> 10, most >> 10));
        assert_eq!([40, 64, 300].map(sizes), [Some((31, 127)), Some((31, 127)), Some((256, usize::MAX >> 10))]);
        let mut pace = Pace::default();
        pace.set_worth([Worth { ns: 0, fixed: true }; 2]);
        assert_eq!(invite(&mut pace, 700, 1_200, 400), 200, "who says so has it so");
    }

    #[test]
    fn help_goes_by_time() {
        let mut pace = pace();
        assert!(!pace.wants_help(16 << 10, true, false) && pace.wants_help(64 << 10, true, false));
        assert!(!pace.wants_help(32 << 10, false, false) && pace.wants_help(64 << 10, false, false));
        for _ in 0..20 {
            pace.saw(64 << 10, 2_700, true, false);
        }
        assert!(!pace.wants_help(64 << 10, true, false) && pace.wants_help(128 << 10, true, false), "out of the cache");
        assert!(pace.wants_help(128 << 10, false, false), "the other means is another matter");
        for _ in 0..20 {
            pace.saw(16 << 10, 2_600, true, false);
        }
        assert!(pace.wants_help(32 << 10, true, false), "the sender rewrites it");
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
            assert!(!pace.wants_help(64 << 10, true, false));
            pace.saw(64 << 10, 9_000, true, false);
            assert!(!pace.wants_help(64 << 10, true, false), "and now it is here");
        }
        pace.saw(64 << 10, 9_000, true, false);
        assert!(pace.wants_help(64 << 10, true, false), "twice is no move");
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
            assert_eq!(parts.wants_help(kib << 10, false, false), wholes.wants_help(kib << 10, false, false), "{kib}");
        }
        assert!(!parts.wants_help(64 << 10, false, false) && parts.wants_help(66 << 10, false, false));
    }

    #[test]
    fn one_interruption_is_no_pace() {
        let mut pace = pace();
        for _ in 0..20 {
            pace.saw(32 << 10, 1_300, true, false);
        }
        pace.saw(32 << 10, 10_000_000, true, false);
        assert!(!pace.wants_help(24 << 10, true, false));
        pace.saw(32 << 10, 0, true, false);
        pace.saw(0, u64::MAX, true, false);
        for _ in 0..20 {
            pace.saw(usize::MAX, 1, false, false);
        }
        assert!(!pace.wants_help(0, true, false));
    }
}
