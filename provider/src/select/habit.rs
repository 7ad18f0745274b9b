//! What a peer's receives show of our sources: whether it finds them in its own cache.
//!
//! A buffer that is sent again unchanged is in the receiver's cache from the last time, and to copy it once, straight from there, takes half of what a
//! record through the ring takes, or less. One that was rewritten is in this core's cache, and then the ring is quicker, for its lines are claimed
//! ahead. So where the table has one way for both kinds of source, and the other way is better for one of them, a peer and a class of size have a habit:
//! they go the other way as long as copies show that it pays.
//!
//! **Who tells.** The sender sees whether a buffer *looks* as it did when it was last sent to this peer ([`Sources`]), at once and for little; but one that was rewritten
//! with the same numbers looks the same, too, and one of which a line was changed does not look the same, and is in the receiver's cache but for that line. The receiver alone can tell for sure: it says how
//! long its copy took if it is asked to. So there is a habit for what looks the same, and another for what does not.
//!
//! **Where the way is another**: messages in lent memory are mapped as long as that pays. All others are never given to the kernel unless they look the same, for its copy
//! of a rewritten source costs much more than a record.
//!
//! Nothing is lost by guessing wrong but time, and little of that: what goes by the ring is tried the other way three messages in a row (the first
//! fetches the source, the others tell), after 32 messages, and ever more seldom, up to 8192, as long as that brings nothing. A message that is copied once is its sender's until its receiver
//! has made progress, where a record would be done with. So where a sender that does nothing else has waited long for one, they go by the ring as well: the receiver computes.

use super::sources::Sources;
use super::{Origin, Row};
use crate::mem::user::UserSeg;
use crate::protocol::single::{LONGEST_KEPT, Told};
use crate::types::{Presumed, ProtoId};
use std::ops::Range;

/// Sizes of which habits decide in lent memory: longer ones both copy if that takes long, and then mapping is always quicker.
pub const SIZES: Range<usize> = 4 << 10..32 << 10;
/// First sizes of the classes.
const FIRST: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];

/// Those of these sizes that the rows for lent memory leave to habits: the user has not said anything about them.
pub(super) fn sizes(rows: &[Row]) -> Range<usize> {
    let free = |row: &&Row| is_free(row) && row.proto == ProtoId::Mapped;
    let overlaps = |row: &&Row| row.from < SIZES.end && row.up_to >= SIZES.start;
    let mut rows = rows.iter().filter(overlaps).skip_while(|row| !free(row)).take_while(free);
    let Some(first) = rows.next() else { return 0..0 };
    let last = rows.last().unwrap_or(first);
    first.from.max(SIZES.start)..last.up_to.saturating_add(1).min(SIZES.end)
}

/// Sizes from `from` on that the rows for all memory send through the ring, and leave to habits: below those of which the user has said something, or that go by another
/// way anyway.
pub(super) fn sizes_again(rows: &[Row], from: usize) -> Range<usize> {
    let free = |row: &&Row| is_free(row) && matches!(row.proto, ProtoId::Eager | ProtoId::Stream);
    let last = rows.iter().skip_while(|row| row.up_to < from).take_while(free).last();
    let end = last.map_or(from, |row| row.up_to.saturating_add(1).min(LONGEST_KEPT + 1));
    from..end.max(from)
}

fn is_free(row: &Row) -> bool {
    matches!(row.origin, Origin::Shipped | Origin::Profile)
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
/// Polls in a row that found nothing, before a sender hears of a message, from which on it has waited long: tens of microseconds, many times what such a copy takes.
pub const LATE: u64 = 1_000;

/// What a message is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Go through the ring.
    Ring,
    /// Be copied once.
    Once(Presumed),
}

/// Nanoseconds of two readings of a clock that a hypervisor may keep.
const CLOCK: u64 = 60;
/// Nanoseconds that a call takes by which the kernel copies, beside the copy: on Granite Rapids some 450.
const CALL: u64 = 600;

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
    /// Goes up with each change.
    era: u8,
}

impl Habit {
    /// Messages go by the one copy at first.
    const NEW: Habit = Habit { once: true, against: 0, count: 0, pause: PAUSE.0, era: 0 };

    /// Whether the next message goes by the one copy, and, if so, whether it tells.
    fn turn(&mut self) -> Option<bool> {
        if self.once {
            self.count = (self.count + 1).min(SETTLED + TELLS_EVERY);
            if self.count == SETTLED + TELLS_EVERY {
                (self.count, self.pause) = (SETTLED, PAUSE.0);
            }
            return Some(self.count.is_multiple_of(TELLS_EVERY));
        }
        self.count = self.count.saturating_sub(1);
        let left = self.count;
        if left == 0 {
            self.waits_longer();
        }
        (left < TRIALS).then_some(left + 1 < TRIALS)
    }

    fn waits_longer(&mut self) {
        self.pause = (self.pause * 2).min(PAUSE.1);
        self.count = self.pause;
    }

    fn told(&mut self, from_cache: bool) {
        self.against = if from_cache == self.once { 0 } else { self.against + 1 };
        if self.against == CONVINCED {
            self.change();
        }
    }

    /// The sender had to wait long for a message.
    fn was_late(&mut self) {
        if self.once {
            self.change();
        } else if self.count < TRIALS {
            self.waits_longer();
        }
    }

    fn change(&mut self) {
        (self.once, self.against, self.era) = (!self.once, 0, self.era.wrapping_add(1));
        self.count = if self.once { 0 } else { self.pause };
    }
}

/// The habits of one peer.
pub struct Habits {
    /// Of lent memory: what does not look the same, and what does.
    lent: [[Habit; FIRST.len()]; 2],
    /// Of all other memory: what looks the same.
    again: [Habit; FIRST.len()],
    sources: Sources,
    pace: u64,
}

impl Habits {
    /// Of a peer that takes at most `pace` nanoseconds for a KiB of a source in its own cache.
    pub fn new(pace: u64) -> Habits {
        let new = [Habit::NEW; FIRST.len()];
        Habits { lent: [new; 2], again: new, sources: Sources::default(), pace }
    }

    /// What the next message is to do, which lies in lent memory; `tick`: the number of the next poll.
    pub fn turn_lent(&mut self, iov: &[UserSeg], len: usize, tick: u64) -> Turn {
        let same = matches!(iov, [one] if self.sources.are_same(one));
        turn(&mut self.lent[usize::from(same)][class(len)], same, tick)
    }

    /// The same of one that lies elsewhere.
    pub fn turn_again(&mut self, source: &UserSeg, tick: u64) -> Turn {
        if !self.sources.are_same(source) {
            return Turn::Ring;
        }
        turn(&mut self.again[class(source.len())], true, tick)
    }

    /// What became of such a message; `late`: its sender, which had nothing else to do, has waited long for that.
    pub fn told(&mut self, told: Told, late: bool) {
        let Told { len, lent, presumed, ns } = told;
        let habit = match lent {
            true => &mut self.lent[usize::from(presumed.same)][class(len)],
            false => &mut self.again[class(len)],
        };
        if presumed.era != habit.era {
            return;
        }
        if late {
            habit.was_late();
        } else if ns != 0 {
            let ns = if lent { ns } else { ns.saturating_sub(CALL) };
            habit.told(is_from_cache(len, ns, self.pace));
        }
    }
}

fn turn(habit: &mut Habit, same: bool, sent_at: u64) -> Turn {
    match habit.turn() {
        Some(tells) => Turn::Once(Presumed { same, tells, era: habit.era, sent_at }),
        None => Turn::Ring,
    }
}

fn class(len: usize) -> usize {
    FIRST.partition_point(|first| *first <= len).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::processor::Processor;
    use crate::mem::user::of_slice;
    use crate::select::{Config, Selection};
    use proptest::prelude::*;

    const LEN: usize = 20_000;

    fn took(found: bool) -> u64 {
        if found { 100 } else { 100_000 }
    }

    #[test]
    fn where_a_source_was_is_told_by_the_time() {
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

    /// What becomes of a source between two messages.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Program {
        /// Nothing.
        Reuses,
        /// It is filled with new numbers.
        Rewrites,
        /// It is filled with the numbers that were there.
        Repeats,
        /// One number changes.
        Counts,
    }

    /// A program that sends `n` messages out of lent memory or other. Told is what was asked, `late` messages after. Returns the time: 1 by the
    /// ring; by the one copy 1.3 if the source is in the wrong cache, which it is the first time in any case, and 0.4 if it is in the right one.
    fn run(habits: &mut Habits, buffer: &mut [u8], lent: bool, n: usize, program: Program, late: usize) -> f64 {
        let (mut time, mut fetched, mut answers) = (0.0, false, std::collections::VecDeque::new());
        for i in 0..n {
            while answers.front().is_some_and(|(at, _)| *at <= i) {
                let (_, told) = answers.pop_front().expect("seen");
                habits.told(told, false);
            }
            match program {
                Program::Rewrites => buffer.fill(buffer[1].wrapping_add(1)),
                Program::Counts => buffer[0] = buffer[0].wrapping_add(1),
                Program::Reuses | Program::Repeats => {}
            }
            let source = of_slice(buffer);
            let turn = if lent { habits.turn_lent(&[source], LEN, 0) } else { habits.turn_again(&source, 0) };
            match turn {
                Turn::Ring => time += 1.0,
                Turn::Once(presumed) => {
                    let found = fetched && matches!(program, Program::Reuses | Program::Counts);
                    time += if found { 0.4 } else { 1.3 };
                    fetched = true;
                    let told = Told { len: LEN, lent, presumed, ns: if presumed.tells { took(found) } else { 0 } };
                    answers.push_back((i + late, told));
                }
            }
        }
        time
    }

    #[test]
    fn each_kind_of_source_gets_its_way() {
        for (lent, late) in [(true, 0), (true, 64), (false, 0), (false, 64)] {
            let time = |program| run(&mut Habits::new(130), &mut [0; LEN], lent, 10_000, program, late);
            assert!(time(Program::Rewrites) < if lent { 10_050.0 } else { 10_000.1 }, "{lent} {late}");
            assert!(time(Program::Repeats) < 10_050.0, "{lent} {late}");
            assert!(time(Program::Reuses) < 4_010.0, "{lent} {late}");
            // Only in lent memory what looks new is tried.
            assert!(time(Program::Counts) < if lent { 4_010.0 } else { 10_000.1 }, "{lent} {late}");
        }
    }

    #[test]
    fn a_program_that_changes_is_followed() {
        let (mut habits, mut buffer) = (Habits::new(130), [0; LEN]);
        let mut run = |n, program| run(&mut habits, &mut buffer, true, n, program, 3);
        run(100_000, Program::Rewrites);
        assert!(run(1_000, Program::Reuses) < 410.0, "it looks the same at once");
        assert!(run(1_000, Program::Rewrites) < 1_000.1, "and does not");
        run(100_000, Program::Repeats);
        let time = run(100_000, Program::Reuses);
        assert!(time < 45_000.0, "after a pause of at most 8192: {time}");
        let time = run(100_000, Program::Repeats);
        assert!(time < 100_100.0, "at once: {time}");
    }

    fn turn(habits: &mut Habits, len: usize) -> Turn {
        habits.turn_lent(&[], len, 0)
    }

    /// Of a message as the habit is now.
    fn told(habits: &mut Habits, len: usize, found: bool) {
        let era = habits.lent[0][class(len)].era;
        let presumed = Presumed { same: false, tells: true, era, sent_at: 0 };
        habits.told(Told { len, lent: true, presumed, ns: took(found) }, false);
    }

    #[test]
    fn classes_do_not_mix() {
        let mut habits = Habits::new(130);
        told(&mut habits, 4096, false);
        told(&mut habits, 8191, false);
        assert_eq!(turn(&mut habits, 5000), Turn::Ring);
        for other in [8192, 16_383, 16_384, usize::MAX] {
            assert!(matches!(turn(&mut habits, other), Turn::Once(_)), "{other}");
        }
        // Once is no habit.
        for found in [true, false, true, false, true] {
            told(&mut habits, 8192, found);
        }
        assert!(matches!(turn(&mut habits, 8192), Turn::Once(_)));
    }

    /// A receiver that computes: what goes by one copy waits for it, a record does not. One message of very many is tried.
    #[test]
    fn a_sender_that_waits_goes_through_the_ring() {
        let (mut habits, mut buffer) = (Habits::new(130), [0; LEN]);
        let source = of_slice(&mut buffer);
        let mut waited = Vec::new();
        for i in 0..100_000 {
            if let Turn::Once(presumed) = habits.turn_again(&source, 0) {
                habits.told(Told { len: LEN, lent: false, presumed, ns: 0 }, true);
                waited.push(i);
            }
        }
        // The first time it does not look the same yet.
        assert_eq!(waited[..3], [1, 31, 93]);
        assert!(waited.len() < 25, "{waited:?}");
        // When the receiver waits again they are as before, after one trial.
        let once = (0..20_000).filter(|_| {
            let Turn::Once(presumed) = habits.turn_again(&source, 0) else { return false };
            habits.told(Told { len: LEN, lent: false, presumed, ns: if presumed.tells { 100 } else { 0 } }, false);
            true
        });
        assert!(once.count() > 10_000);
    }

    /// What is still under way when a habit changes was presumed before: it says nothing.
    #[test]
    fn what_was_presumed_before_does_not_count() {
        let (mut habits, mut buffer) = (Habits::new(130), [0; LEN]);
        let source = of_slice(&mut buffer);
        habits.turn_again(&source, 0);
        let window: Vec<Turn> = (0..64).map(|_| habits.turn_again(&source, 0)).collect();
        for (i, turn) in window.into_iter().enumerate() {
            let Turn::Once(presumed) = turn else { panic!("all at first") };
            habits.told(Told { len: LEN, lent: false, presumed, ns: 100 }, i == 0);
        }
        assert!((0..20).all(|_| habits.turn_again(&source, 0) == Turn::Ring));
    }

    #[test]
    fn a_call_by_which_the_kernel_copies_is_not_taken_for_a_slow_cache() {
        let mut habits = Habits::new(60);
        let mut told = |len, ns| {
            for _ in 0..CONVINCED {
                let presumed = Presumed { same: true, tells: true, era: habits.again[class(len)].era, sent_at: 0 };
                habits.told(Told { len, lent: false, presumed, ns }, false);
            }
            habits.again[class(len)].once
        };
        // Of Granite Rapids: one way less what an offer and its answer take.
        for (len, reused, fresh) in [(16 << 10, 820, 2_500), (32 << 10, 1_570, 4_600)] {
            assert!(told(len, reused) && !told(len, fresh) && told(len, reused), "{len}");
        }
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

    #[test]
    fn what_goes_through_the_ring_may_be_the_kernels() {
        let sizes = |set: fn(&mut Config)| {
            let mut config = Config::on(Processor::Granite);
            set(&mut config);
            Selection::new(&config, 60 << 10).again()
        };
        let shipped = Config::on(Processor::Granite);
        assert_eq!(sizes(|_| ()), shipped.again_min as usize..shipped.syscall_min as usize);
        assert_eq!(sizes(|c| c.again_min = 5000), 5000..shipped.syscall_min as usize);
        assert!(Selection::new(&Config::default(), 60 << 10).again().is_empty(), "where it was not measured");
        for none in [
            sizes(|c| c.adapt = 1),
            sizes(|c| c.cma = 1),
            sizes(|c| c.again_min = 1 << 20),
            sizes(|c| c.syscall_min = 8 << 10),
            sizes(|c| c.protocol = crate::config::force::Forced::parse("stream").0),
            Selection::for_network(&shipped, None).again(),
        ] {
            assert!(none.is_empty(), "{none:?}");
        }
        // Where the kernel begins late, what is kept for nobody is still short.
        let zen3 = Config { again_min: 16 << 10, ..Config::on(Processor::Zen3) };
        assert_eq!(Selection::new(&zen3, 60 << 10).again(), 16 << 10..LONGEST_KEPT + 1);
    }

    proptest! {
        /// Whatever is told, and when (of one turn in twenty, on average): trials are few, and there is never none for longer than the longest pause.
        #[test]
        fn trials_are_few_and_never_end(gaps in proptest::collection::vec(0usize..=40, 1500)) {
            let (mut habits, mut rings, mut tried) = (Habits::new(130), 0, 0);
            told(&mut habits, LEN, false);
            for gap in gaps {
                told(&mut habits, LEN, false);
                for _ in 0..gap {
                    match turn(&mut habits, LEN) {
                        Turn::Ring => rings += 1,
                        Turn::Once(_) => {
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
