//! What was accepted leaves, also if the application does not call again.
//!
//! A send by the inject family has ended when the call returns, and a program may then wait for something that we know nothing of: a file, a
//! process manager, an hour of arithmetic. Its bytes may still be here: put off to the next turn, so that they leave with others; behind a call that the
//! peer has not answered; or behind a socket without room. An MPI that stands in such a wait while its peer stands in a receive would stand for ever.
//!
//! So whoever keeps something back *notes* it, and a thread that was begun by the first note looks each [`TICK`] whether there was a turn meanwhile. If
//! there was none, nobody is there, and it takes one itself, under the domain's lock like everybody else. Who calls has turns, and is
//! only asked, [`DROWSY`] looks after his last note, whether all is settled; then the thread sleeps until the next note. Who keeps nothing back does not wake it.
//!
//! *Who does not get a core is not absent*: ranks that outnumber their cores many times all seem to be, all the time, and looking after each of them takes the
//! cores away from them. So while the thread that notes waits for a core more than it runs, the looks are further apart, up to [`CROWDED`] ticks.
//!
//! ```text
//! note     notes += 1; unwatched? ─▶ begin or wake the thread
//! thread   turns since the last tick: somebody is there · else a turn; settled: as many notes · no new notes for some ticks: unwatched, and sleep
//! ```
//! *No note is lost.* N1 `notes += 1` before N2 load of `unwatched`; T1 `unwatched = true` before T2 load of `notes`; all of them sequentially
//! consistent, so that N2 sees T1 or T2 sees N1.

use super::runqueue::RunQueue;
use super::thread::quiet;
use rustix::thread::{Pid, gettid};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Thread, park, park_timeout};
use std::time::Duration;

/// Between looks. What was put off leaves after two, if nothing else waits for longer. To wake for a look takes some microseconds of a core, and happens only
/// while things are put off.
const TICK: Duration = Duration::from_millis(1);
/// Looks without a note after which nobody looks until the next one.
const DROWSY: u32 = 200;
/// What turns do not help is looked at more and more seldom, until something else is noted: most ticks between two of these.
const LONGEST: u32 = 64;
/// Most ticks between looks while cores are scarce. 64 ranks on two cores wait for 32 slices of theirs.
const CROWDED: u32 = 32;
/// Looks after which it is asked again whether cores are scarce: to ask takes ten times as long as to look.
const CENSUS: u32 = 16;

/// What a turn for somebody who is not there found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// Nothing is kept back any more.
    Settled,
    /// Something is, and something was done.
    GoesOn,
    /// Something is, and there was nothing to be done.
    Waits,
    /// There will be no turns any more.
    Over,
}

type Turn = Box<dyn Fn() -> Attended + Send + Sync>;

/// Whether somebody takes turns, and something is kept back until they do.
pub struct Absence {
    turns: AtomicU64,
    notes: AtomicU64,
    /// Who notes something must call the thread, or begin it.
    unwatched: AtomicBool,
    watcher: OnceLock<Thread>,
    /// The thread that noted something while nobody looked; its number, or 0.
    noter: AtomicI32,
    turn: OnceLock<Turn>,
    is_over: AtomicBool,
}

impl Default for Absence {
    fn default() -> Absence {
        Absence {
            turns: AtomicU64::new(0),
            notes: AtomicU64::new(0),
            unwatched: AtomicBool::new(true),
            watcher: OnceLock::new(),
            noter: AtomicI32::new(0),
            turn: OnceLock::new(),
            is_over: AtomicBool::new(false),
        }
    }
}

impl Absence {
    /// From now on `turn` is called when nobody is there and something is kept back. Without that nobody is called: who drives the engine himself knows
    /// when he does not.
    pub fn attend_by(&self, turn: impl Fn() -> Attended + Send + Sync + 'static) {
        let _ = self.turn.set(Box::new(turn));
    }

    /// Somebody takes a turn.
    #[inline]
    pub fn turned(&self) {
        // Only under the domain's lock.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Something is kept back until the next turn, or longer.
    pub fn note(self: &Arc<Self>) {
        self.notes.fetch_add(1, Ordering::SeqCst); // N1
        if self.unwatched.load(Ordering::SeqCst) {
            // N2
            self.call();
        }
    }

    #[cold]
    fn call(self: &Arc<Self>) {
        if self.turn.get().is_none() || !self.unwatched.swap(false, Ordering::SeqCst) {
            return;
        }
        self.noter.store(gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        match self.watcher.get() {
            Some(thread) => thread.unpark(),
            None => {
                let this = self.clone();
                if quiet("rustmx-absence", move || this.watch()).is_err() {
                    // The next note may have more luck.
                    self.unwatched.store(true, Ordering::SeqCst);
                }
            }
        }
    }

    /// There are no turns any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.watcher.get() {
            thread.unpark();
        }
    }

    fn watch(&self) {
        let Some(turn) = self.turn.get() else { return };
        let _ = self.watcher.set(std::thread::current());
        let (mut turns, mut noted, mut settled, mut idle, mut pause) = (0, 0, 0, 0, 1);
        let mut crowd = Crowd::default();
        while !self.is_over.load(Ordering::SeqCst) {
            match pause {
                1 => park_timeout(TICK * crowd.ticks),
                _ => self.doze(noted, TICK * pause.max(crowd.ticks)),
            }
            let (now, notes) = (self.turns.load(Ordering::Relaxed), self.notes.load(Ordering::SeqCst));
            idle = if notes == noted { idle + 1 } else { 0 };
            if notes == settled && idle >= DROWSY {
                self.sleep(notes);
                (idle, pause, crowd) = (0, 1, Crowd::default());
            }
            // Who polls is asked now and then whether he has settled what he noted: then nobody looks after him any more.
            let away = now == turns && notes == noted || idle > 0 && idle.is_multiple_of(DROWSY);
            crowd.look(self.noter.load(Ordering::SeqCst));
            if notes == settled || !away {
                (turns, noted, pause) = (now, notes, 1);
                continue;
            }
            match turn() {
                Attended::Settled => (settled, pause) = (notes, 1),
                Attended::GoesOn => pause = 1,
                Attended::Waits => pause = (pause * 2).min(LONGEST),
                Attended::Over => return,
            }
            // That was ours, and what it kept back again is no news.
            turns = self.turns.load(Ordering::Relaxed);
            noted = self.notes.load(Ordering::SeqCst);
        }
    }

    /// For so long, or until there are more notes than so many: who notes something calls the thread (N2, T2).
    fn doze(&self, notes: u64, pause: Duration) {
        self.unwatched.store(true, Ordering::SeqCst); // T1
        if self.notes.load(Ordering::SeqCst) == notes && !self.is_over.load(Ordering::SeqCst) {
            park_timeout(pause);
        }
        self.unwatched.store(false, Ordering::SeqCst);
    }

    /// Until there are more notes than so many.
    fn sleep(&self, notes: u64) {
        self.unwatched.store(true, Ordering::SeqCst); // T1
        // T2
        while self.notes.load(Ordering::SeqCst) == notes && !self.is_over.load(Ordering::SeqCst) {
            park();
        }
        self.unwatched.store(false, Ordering::SeqCst);
    }
}

/// How far looks are apart, by how scarce cores are.
struct Crowd {
    ticks: u32,
    /// Since it was asked last.
    looks: u32,
    noter: i32,
    queue: Option<RunQueue>,
}

impl Default for Crowd {
    fn default() -> Crowd {
        Crowd { ticks: 1, looks: 0, noter: 0, queue: None }
    }
}

impl Crowd {
    /// A look at what that thread keeps back.
    fn look(&mut self, noter: i32) {
        if self.noter != noter {
            (self.noter, self.queue) = (noter, Pid::from_raw(noter).map(RunQueue::of));
        }
        self.looks += 1;
        if self.looks < CENSUS {
            return;
        }
        self.looks = 0;
        let long = self.queue.as_mut().map_or(Some(false), RunQueue::is_long);
        self.ticks = paced(self.ticks, long);
    }
}

/// Ticks to the next look after so many, if the thread waits for cores longer than it runs, does not, or that is not known yet.
fn paced(ticks: u32, long: Option<bool>) -> u32 {
    match long {
        Some(true) => (ticks * 2).min(CROWDED),
        Some(false) => (ticks / 2).max(1),
        None => ticks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Instant;

    /// What turns of the thread found, one after the other, and how many there were.
    fn attended(found: &'static [Attended]) -> (Arc<Absence>, Arc<AtomicUsize>) {
        let (absence, turns) = (Arc::new(Absence::default()), Arc::new(AtomicUsize::new(0)));
        let (its_turns, its_absence) = (turns.clone(), Arc::downgrade(&absence));
        absence.attend_by(move || {
            if let Some(absence) = its_absence.upgrade() {
                absence.turned();
            }
            let turn = its_turns.fetch_add(1, SeqCst);
            found[turn.min(found.len() - 1)]
        });
        (absence, turns)
    }

    fn wait_for(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_keeps_something_back_and_goes_gets_turns_until_it_is_settled() {
        let (absence, turns) = attended(&[Attended::GoesOn, Attended::Waits, Attended::Settled]);
        std::thread::sleep(4 * TICK);
        assert_eq!(turns.load(SeqCst), 0, "nothing was noted");
        absence.note();
        wait_for(|| turns.load(SeqCst) == 3);
        std::thread::sleep(8 * TICK);
        assert_eq!(turns.load(SeqCst), 3, "it was settled");
        absence.note();
        wait_for(|| turns.load(SeqCst) == 4);
        // It falls asleep.
        wait_for(|| absence.unwatched.load(SeqCst));
        absence.note();
        wait_for(|| turns.load(SeqCst) == 5);
        // Its end is heard in its sleep.
        wait_for(|| absence.unwatched.load(SeqCst));
        std::thread::sleep(4 * TICK);
        absence.end();
        wait_for(|| Arc::strong_count(&absence) == 1);
    }

    #[test]
    fn what_turns_do_not_help_gets_fewer_of_them() {
        let (absence, turns) = attended(&[Attended::Waits]);
        let begun = Instant::now();
        absence.note();
        std::thread::sleep(400 * TICK);
        let (found, ticks) = (turns.load(SeqCst) as u128, begun.elapsed().as_nanos() / TICK.as_nanos());
        assert!(found <= ticks / u128::from(LONGEST) + 8, "{found} turns in {ticks} ticks");
        // While it dozes it is called by a note.
        wait_for(|| absence.unwatched.load(SeqCst));
        absence.note();
        wait_for(|| turns.load(SeqCst) as u128 > found);
        absence.end();
    }

    #[test]
    fn looks_are_further_apart_while_cores_are_scarce() {
        let scarce: Vec<_> = std::iter::successors(Some(1), |&ticks| Some(paced(ticks, Some(true)))).take(8).collect();
        assert_eq!(scarce, [1, 2, 4, 8, 16, 32, 32, 32]);
        let again: Vec<_> = std::iter::successors(Some(32), |&ticks| Some(paced(ticks, Some(false)))).take(8).collect();
        assert_eq!(again, [32, 16, 8, 4, 2, 1, 1, 1]);
        assert_eq!(paced(8, None), 8);
    }

    #[test]
    fn whether_cores_are_scarce_is_asked_seldom() {
        // Nobody noted anything, so nobody waits.
        let mut crowd = Crowd { ticks: 32, ..Crowd::default() };
        for ticks in [32, 16, 8] {
            (1..CENSUS).for_each(|_| crowd.look(0));
            assert_eq!(crowd.ticks, ticks);
            crowd.look(0);
            assert_eq!(crowd.ticks, ticks / 2);
        }
    }

    #[test]
    fn who_takes_turns_is_left_alone() {
        let (absence, turns) = attended(&[Attended::Settled]);
        let (mut most, mut last) = (Duration::ZERO, Instant::now());
        let end = last + 20 * TICK;
        while Instant::now() < end {
            absence.turned();
            absence.note();
            most = most.max(last.elapsed());
            last = Instant::now();
        }
        // A busy machine may have taken the core away for long.
        assert!(turns.load(SeqCst) == 0 || most > TICK, "{} turns, {most:?} between two of ours at most", turns.load(SeqCst));
        // Who polls, and keeps nothing back any more, is not looked after for ever.
        wait_for(|| {
            absence.turned();
            absence.unwatched.load(SeqCst)
        });
        absence.end();
    }

    #[test]
    fn without_somebody_to_call_nothing_happens() {
        let absence = Arc::new(Absence::default());
        absence.note();
        assert_eq!(Arc::strong_count(&absence), 1, "a thread has it");
    }

    #[test]
    fn it_ends_with_the_domain() {
        let (absence, turns) = attended(&[Attended::Over]);
        absence.note();
        wait_for(|| Arc::strong_count(&absence) == 1);
        assert_eq!(turns.load(SeqCst), 1);
    }
}
