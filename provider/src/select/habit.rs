//! What a peer's receives show of our sources: whether it finds them in its own cache.
//!
//! A buffer that is sent again unchanged is in the receiver's cache from the last time, and to copy it once, straight from there, takes half of what a
//! record through the ring takes, or less. One that was rewritten is in this core's cache, and then the ring is quicker, for its lines are claimed
//! ahead. Nobody but the receiver can tell which: it says how long its copy took if it is asked to. So where the table has one way for both kinds of
//! source, and the other way is better for one of them, a peer and a class of size have a habit: they go the other way as long as copies show that it pays.
//!
//! Nothing is lost by guessing wrong but time, and little of that: what goes by the ring is tried the other way three messages in a row (the first
//! fetches the source, the others tell), after 32 messages, and ever more seldom, up to 8192, as long as that brings nothing.

use super::{Origin, Row};
use crate::types::ProtoId;
use std::ops::Range;

/// Sizes of which habits decide: longer ones both copy if that takes long, and then mapping is always quicker.
pub const SIZES: Range<usize> = 4 << 10..32 << 10;
/// First sizes of the classes.
const FIRST: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];

/// Those of these sizes that the rows for lent memory leave to habits: the user has not said anything about them.
pub(super) fn sizes(rows: &[Row]) -> Range<usize> {
    let free = |row: &&Row| matches!(row.origin, Origin::Shipped | Origin::Profile) && row.proto == ProtoId::Mapped;
    let overlaps = |row: &&Row| row.from < SIZES.end && row.up_to >= SIZES.start;
    let mut rows = rows.iter().filter(overlaps).skip_while(|row| !free(row)).take_while(free);
    let Some(first) = rows.next() else { return 0..0 };
    let last = rows.last().unwrap_or(first);
    first.from.max(SIZES.start)..last.up_to.saturating_add(1).min(SIZES.end)
}

/// Messages that are tried in a row.
const TRIALS: u16 = 3;
/// Messages between trials.
const PAUSE: (u16, u16) = (32, 8192);
/// Of messages that go by the one copy, one in so many is to tell.
const TELLS_EVERY: u16 = 8;
/// Told so often in a row that the habit is wrong, it changes.
const CONVINCED: u8 = 2;
/// After so many messages by the one copy the pauses begin anew, should the program change.
const SETTLED: u16 = 1024;

/// What a message is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Go through the ring.
    Ring,
    /// Be copied once; `tells`: the receiver is to say how long that took.
    Once {
        /// See there.
        tells: bool,
    },
}

/// Nanoseconds of two readings of a clock that a hypervisor may keep.
const CLOCK: u64 = 60;

/// Whether a copy of so many bytes that took so long is one of a source that lay in the cache of who copied: such take `pace` nanoseconds for a KiB at
/// most. On Sapphire Rapids 40 were seen, and 70 at a bad time, out of the other one's cache 160 to 250; on Zen 5 2 to 4, and 7 to 10 where cores share a
/// level 3 cache; on Zen 4 13 to 18, and 25 or more; on Granite Rapids, of 4 KiB, some 30 and 130.
fn is_from_cache(bytes: usize, ns: u64, pace: u64) -> bool {
    u128::from(ns.saturating_sub(CLOCK)) * 1024 <= u128::from(pace) * bytes as u128
}

#[derive(Clone, Copy, Debug)]
struct Habit {
    once: bool,
    /// Tellings in a row that speak against it.
    against: u8,
    /// Messages until the end of the next trial; or by the one copy so far.
    count: u16,
    pause: u16,
}

impl Habit {
    /// Messages in lent memory go by the one copy at first.
    const fn new() -> Habit {
        Habit { once: true, against: 0, count: 0, pause: PAUSE.0 }
    }

    fn turn(&mut self) -> Turn {
        if self.once {
            self.count = (self.count + 1).min(SETTLED + TELLS_EVERY);
            if self.count == SETTLED + TELLS_EVERY {
                (self.count, self.pause) = (SETTLED, PAUSE.0);
            }
            return Turn::Once { tells: self.count.is_multiple_of(TELLS_EVERY) };
        }
        self.count = self.count.saturating_sub(1);
        let left = self.count;
        if left == 0 {
            self.pause = (self.pause * 2).min(PAUSE.1);
            self.count = self.pause;
        }
        if left < TRIALS { Turn::Once { tells: left + 1 < TRIALS } } else { Turn::Ring }
    }

    fn told(&mut self, from_cache: bool) {
        self.against = if from_cache == self.once { 0 } else { self.against + 1 };
        if self.against == CONVINCED {
            *self = Habit { once: from_cache, against: 0, count: if from_cache { 0 } else { self.pause }, pause: self.pause };
        }
    }
}

/// The habits of one peer.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    of: [Habit; FIRST.len()],
    pace: u64,
}

impl Habits {
    /// Of a peer that takes at most `pace` nanoseconds for a KiB of a source in its own cache.
    pub fn new(pace: u64) -> Habits {
        Habits { of: [Habit::new(); FIRST.len()], pace }
    }

    fn of(&mut self, len: usize) -> &mut Habit {
        &mut self.of[FIRST.partition_point(|first| *first <= len).saturating_sub(1)]
    }

    /// What the next message of so many bytes is to do.
    pub fn turn(&mut self, len: usize) -> Turn {
        self.of(len).turn()
    }

    /// The receiver's copy of such a message took so many nanoseconds.
    pub fn told(&mut self, len: usize, ns: u64) {
        let from_cache = is_from_cache(len, ns, self.pace);
        self.of(len).told(from_cache);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Config, Selection};
    use proptest::prelude::*;

    const LEN: usize = 20_000;

    fn took(found: bool) -> u64 {
        if found { 100 } else { 100_000 }
    }

    #[test]
    fn where_a_source_was_is_told_by_the_time() {
        use crate::config::processor::Processor;
        // As measured: reused and rewritten. At a bad time all takes twice as long where copies are as slow as that.
        let intel = [(4096, 150, 1_060), (8192, 320, 1_500), (16384, 700, 2_600)];
        let amd = [(4096, 70, 90), (8192, 80, 131), (16384, 125, 215)];
        // Of Zen 4: time stamps around the copy, near, and 55 ns for what the two readings of a clock take of it.
        let zen4 = [(8192, 165, 290), (16384, 355, 465)];
        // Of Granite Rapids: half a round trip in lent memory less one of an empty message.
        let granite = [(4096, 280, 690), (8192, 300, 920), (16384, 520, 1_450)];
        for (processor, spare, rows) in [
            (Processor::Usual, 2, &intel[..]),
            (Processor::Granite, 1, &granite),
            (Processor::Zen5, 1, &amd),
            (Processor::Zen4, 1, &zen4),
        ] {
            let pace = Config::on(processor).cached_pace;
            for &(bytes, quick, slow) in rows {
                assert!(is_from_cache(bytes, spare * quick, pace) && !is_from_cache(bytes, slow, pace), "{processor:?} {bytes}");
            }
            assert!(!is_from_cache(4096, u64::MAX, pace) && is_from_cache(usize::MAX, 1_000_000, pace));
        }
    }

    /// A program that sends `n` messages, all rewritten or none. Told is what was asked, `late` messages after. Returns the time: 1 by the
    /// ring; by the one copy 1.3 if the source is in the wrong cache, which it is the first time in any case, and 0.4 if it is in the right one.
    fn run(habits: &mut Habits, n: usize, rewritten: bool, late: usize) -> f64 {
        let (mut time, mut fetched, mut answers) = (0.0, false, std::collections::VecDeque::new());
        for i in 0..n {
            while answers.front().is_some_and(|(at, _)| *at <= i) {
                let (_, found) = answers.pop_front().expect("seen");
                habits.told(LEN, took(found));
            }
            match habits.turn(LEN) {
                Turn::Ring => time += 1.0,
                Turn::Once { tells } => {
                    let found = fetched && !rewritten;
                    time += if found { 0.4 } else { 1.3 };
                    fetched = true;
                    if tells {
                        answers.push_back((i + late, found));
                    }
                }
            }
        }
        time
    }

    #[test]
    fn each_kind_of_source_gets_its_way() {
        for late in [0, 64] {
            let time = run(&mut Habits::new(130), 10_000, true, late);
            assert!(time < 10_050.0, "rewritten, {late}: {time}");
            let time = run(&mut Habits::new(130), 10_000, false, late);
            assert!(time < 4_010.0, "reused, {late}: {time}");
        }
    }

    #[test]
    fn a_program_that_changes_is_followed() {
        let mut habits = Habits::new(130);
        run(&mut habits, 100_000, true, 3);
        let time = run(&mut habits, 100_000, false, 3);
        assert!(time < 45_000.0, "after a pause of at most 8192: {time}");
        let time = run(&mut habits, 100_000, true, 3);
        assert!(time < 100_100.0, "at once: {time}");
    }

    #[test]
    fn classes_do_not_mix() {
        let mut habits = Habits::new(130);
        habits.told(4096, took(false));
        habits.told(8191, took(false));
        assert_eq!(habits.turn(5000), Turn::Ring);
        for other in [8192, 16_383, 16_384, usize::MAX] {
            assert!(matches!(habits.turn(other), Turn::Once { .. }), "{other}");
        }
        // Once is no habit.
        for found in [true, false, true, false, true] {
            habits.told(8192, took(found));
        }
        assert!(matches!(habits.turn(8192), Turn::Once { .. }));
    }

    #[test]
    fn what_the_user_says_is_no_matter_of_habit() {
        let sizes = |set: fn(&mut Config)| {
            let mut config = Config::default();
            set(&mut config);
            Selection::new(&config, 60 << 10).by_habit()
        };
        let default = Config::default();
        assert_eq!(sizes(|_| ()), default.mapped_min as usize..SIZES.end);
        assert_eq!(sizes(|c| c.adapt = 1), 0..0);
        assert_eq!(sizes(|c| c.lend = 2), 0..0);
        assert_eq!(sizes(|c| c.protocol = crate::config::force::Forced::parse("mapped").0), 0..0);
        assert_eq!(sizes(|c| c.mapped_min = 8 << 10), 0..0);
        assert_eq!(Selection::for_network(&default, None).by_habit(), 0..0);
    }

    proptest! {
        /// Whatever is told, and when (of one turn in twenty, on average): trials are few, and there is never none for longer than the longest pause.
        #[test]
        fn trials_are_few_and_never_end(gaps in proptest::collection::vec(0usize..=40, 1500)) {
            let (mut habits, mut rings, mut tried) = (Habits::new(130), 0, 0);
            habits.told(LEN, took(false));
            for gap in gaps {
                habits.told(LEN, took(false));
                for _ in 0..gap {
                    match habits.turn(LEN) {
                        Turn::Ring => rings += 1,
                        Turn::Once { .. } => {
                            tried += 1;
                            rings = 0;
                        }
                    }
                    prop_assert!(rings <= PAUSE.1);
                }
            }
            prop_assert!((TRIALS as usize * 5..=TRIALS as usize * 12).contains(&tried), "{tried}");
        }
    }
}
