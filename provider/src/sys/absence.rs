//! What was accepted leaves, also if the application does not call again.
//!
//! A send by the inject family has ended when the call returns, and a program may then wait for something that we know nothing of: a file, a
//! process manager, an hour of arithmetic. Its bytes may still be here: put off to the next turn, so that they leave with others; behind a call that the
//! peer has not answered; or behind a socket without room. An MPI that stands in such a wait while its peer stands in a receive would stand for ever.
//!
//! So whoever keeps something back *notes* it, and a thread that was begun by the first note looks now and then whether there was a turn meanwhile. If
//! there was none, nobody is there, and it takes one itself, under the domain's lock like everybody else. Who calls has turns, and is
//! only asked, [`DROWSY`] looks after his last note, whether all is settled; then the thread sleeps until the next note. Who keeps nothing back does not wake it.
//!
//! *Who has always been there is looked after seldom.* A look takes a core that mostly is the program's own away from it, for 30 µs on a virtual machine
//! (the timer, two switches, caches): each millisecond that is a twentieth of all that two ranks send each other. So the looks are further apart the longer everybody was there, up to
//! [`RARE`] ticks, and close together once somebody was not while something of his was here ([`Pace`]). Who is away for less than it takes such looks to notice tells of that himself when he is back.
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
use std::time::{Duration, Instant};

/// Between looks at somebody who has been away. What was put off leaves after two, if nothing else waits for longer.
const TICK: Duration = Duration::from_millis(1);
/// Nanoseconds without a turn after which a program was away.
pub const AWAY: u64 = TICK.as_nanos() as u64;
/// Most ticks between looks at somebody who is always there: what he leaves behind when he goes all the same leaves after as many, or twice as many.
const RARE: u32 = 8;
/// Looks in a row that found somebody there, before they are twice as far apart: while he has never been away, and since. (Who was away before, is there for a while, and goes again, waits at most a twentieth of
/// that while longer than by looks at each tick.)
const TRUSTED: u32 = 8;
const PROVED: u32 = 64;
/// Looks without a note after which it is asked whether all is settled; then nobody looks until the next one. If it is not it is asked again after twice as many, and so on, up to so many:
/// to ask takes the domain's lock.
const DROWSY: u32 = 4;
const ASKED_AT_LAST: u32 = 256;
/// A sleep after which nobody knows any more whether cores are scarce.
const LONG_AGO: Duration = Duration::from_millis(500);
/// What turns do not help is looked at more and more seldom, until something else is noted: most ticks between two of these.
const LONGEST: u32 = 64;
/// Most ticks between looks while cores are scarce. 64 ranks on two cores wait for 32 slices of theirs.
const CROWDED: u32 = 32;
/// Looks after which it is asked again whether cores are scarce: to ask takes ten times as long as to look.
const CENSUS: u32 = 16;

/// What a turn for somebody who is not there found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// Nothing was kept back.
    Idle,
    /// Nothing is any more.
    Settled,
    /// Something is, and something was done.
    GoesOn,
    /// Something is, and there was nothing to be done.
    Waits,
    /// Something is, and a thread sleeps until there is something to be done.
    Asleep,
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
    /// Somebody was away since the last look, and is back.
    was_away: AtomicBool,
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
            was_away: AtomicBool::new(false),
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

    /// How often something was noted.
    #[inline]
    pub fn notes(&self) -> u64 {
        self.notes.load(Ordering::Relaxed)
    }

    /// Something was noted, and for [`AWAY`] there was no turn.
    #[cold]
    pub fn was_away(&self) {
        self.was_away.store(true, Ordering::Relaxed);
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
        let (mut crowd, mut looks) = (Crowd::default(), Looks::default());
        while !self.is_over.load(Ordering::SeqCst) {
            if looks.are_over() {
                let begun = Instant::now();
                self.sleep(looks.noted);
                if begun.elapsed() > LONG_AGO {
                    crowd = Crowd::default();
                }
                looks.woken(self.turns.load(Ordering::Relaxed), self.notes.load(Ordering::SeqCst));
                continue;
            }
            let apart = TICK * looks.apart().max(crowd.ticks);
            match looks.pause {
                1 => rest(apart, || self.is_over.load(Ordering::SeqCst)),
                _ => self.doze(looks.noted, apart),
            }
            crowd.look(self.noter.load(Ordering::SeqCst));
            if self.was_away.swap(false, Ordering::Relaxed) {
                looks.told();
            }
            if !looks.look(self.turns.load(Ordering::Relaxed), self.notes.load(Ordering::SeqCst)) {
                continue;
            }
            let found = turn();
            if found == Attended::Over {
                return;
            }
            looks.found(found, self.turns.load(Ordering::Relaxed), self.notes.load(Ordering::SeqCst));
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

/// So long, unless it is over. A call that came when nobody slept any more ends the next park at once: then it would be found that nobody took a turn since the
/// last look, which was just now.
fn rest(pause: Duration, is_over: impl Fn() -> bool) {
    let begun = Instant::now();
    while let Some(left) = pause.checked_sub(begun.elapsed())
        && !left.is_zero()
        && !is_over()
    {
        park_timeout(left);
    }
}

/// What looks have seen, and when the next one is.
struct Looks {
    /// At the last one.
    turns: u64,
    noted: u64,
    /// Notes of which nothing is left.
    settled: u64,
    /// Looks without a further note, and of how many the last one asks.
    idle: u32,
    ask_every: u32,
    /// Ticks to the next one because turns did not help; 1: they did.
    pause: u32,
    pace: Pace,
    /// The last one found nobody.
    away: bool,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { turns: 0, noted: 0, settled: 0, idle: 0, ask_every: DROWSY, pause: 1, pace: Pace::default(), away: false }
    }
}

impl Looks {
    /// No further one before the next note.
    fn are_over(&self) -> bool {
        self.noted == self.settled && self.idle >= DROWSY
    }

    /// Ticks to the next one.
    fn apart(&self) -> u32 {
        self.pause.max(self.pace.ticks)
    }

    /// A note has ended a sleep: there were so many turns and notes by then.
    fn woken(&mut self, turns: u64, notes: u64) {
        (self.turns, self.noted) = (turns, notes);
        (self.idle, self.ask_every, self.pause) = (0, DROWSY, 1);
    }

    /// Somebody says that he was away.
    fn told(&mut self) {
        self.pace = Pace::AWAY;
    }

    /// There were so many turns and notes. Whether one is to be taken, since nobody is there, or to ask who polls whether he has settled what he noted: then nobody looks after him any more.
    fn look(&mut self, turns: u64, notes: u64) -> bool {
        (self.idle, self.ask_every) = if notes == self.noted { (self.idle + 1, self.ask_every) } else { (0, DROWSY) };
        self.away = turns == self.turns && notes == self.noted;
        if !self.away {
            self.pace.there();
        }
        let asks = self.idle > 0 && self.idle.is_multiple_of(self.ask_every);
        let takes = notes != self.settled && (self.away || asks);
        if !takes {
            self.pause = 1;
        }
        (self.turns, self.noted) = (turns, notes);
        takes
    }

    /// What that turn found, and how many turns and notes there are now: that was ours, and what it kept back again is no news.
    fn found(&mut self, found: Attended, turns: u64, notes: u64) {
        if self.away && !matches!(found, Attended::Idle | Attended::Asleep) {
            self.pace = Pace::AWAY;
        }
        match found {
            Attended::Idle | Attended::Settled => (self.settled, self.pause) = (self.noted, 1),
            Attended::GoesOn => self.pause = 1,
            Attended::Waits | Attended::Asleep if self.away => self.pause = (self.pause * 2).min(LONGEST),
            Attended::Waits | Attended::Asleep => self.ask_every = (self.ask_every * 2).min(ASKED_AT_LAST),
            Attended::Over => {}
        }
        (self.turns, self.noted) = (turns, notes);
    }
}

/// How far looks are apart, by whether those that are looked after were there.
struct Pace {
    ticks: u32,
    /// Looks in a row that found somebody, at this pace, and how many it takes.
    found: u32,
    needed: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { ticks: 1, found: 0, needed: TRUSTED }
    }
}

impl Pace {
    /// Somebody was not there, and something of his was here.
    const AWAY: Pace = Pace { ticks: 1, found: 0, needed: PROVED };

    /// A look found somebody.
    fn there(&mut self) {
        self.found += 1;
        if self.found == self.needed {
            (self.found, self.ticks) = (0, (self.ticks * 2).min(RARE));
        }
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

    /// A program that takes a turn and notes something each tick while it is `there`, until the tick in which what it left is attended to. That one, and how many looks there were.
    fn attend(looks: &mut Looks, mut now: u64, there: u64) -> (u64, u64) {
        let (began, mut count, mut ours) = (now, 0, 0);
        while !looks.are_over() && count < 1_000_000 {
            now += u64::from(looks.apart());
            count += 1;
            let done = (now - began).min(there);
            if !looks.look(began + done + ours, began + done) {
                continue;
            }
            ours += 1;
            let left = done == there;
            looks.found(if left { Attended::Settled } else { Attended::Idle }, began + done + ours, began + done);
            if left {
                break;
            }
        }
        (now, count)
    }

    #[test]
    fn who_is_always_there_is_looked_at_seldom() {
        let (_, count) = attend(&mut Looks::default(), 0, 100_000);
        let least = 100_000 / u64::from(RARE);
        assert!((least..least + 40).contains(&count), "{count} looks");
    }

    #[test]
    fn what_is_left_behind_waits_the_longer_the_longer_somebody_was_there() {
        for there in [1, 5, 20, 50, 200, 1000, 100_000] {
            let (first, _) = attend(&mut Looks::default(), 0, there);
            assert!(first - there <= 2 * u64::from(RARE), "{} ticks after {there}", first - there);
            // Who has been away is looked after well for a while.
            let mut looks = Looks { pace: Pace::AWAY, ..Looks::default() };
            let (again, _) = attend(&mut looks, 0, there);
            let late = (again - there).saturating_sub(2);
            assert!(late <= there / 20, "{late} ticks more after {there}");
            assert_eq!(looks.apart(), 1, "{there}");
        }
    }

    #[test]
    fn who_polls_and_has_settled_is_left_alone_soon() {
        let (mut looks, mut turns, mut count) = (Looks::default(), 0, 0);
        looks.look(1, 1);
        while !looks.are_over() {
            (turns, count) = (turns + 100, count + 1);
            if looks.look(turns, 1) {
                looks.found(Attended::Idle, turns + 1, 1);
            }
        }
        assert_eq!((count, looks.apart()), (DROWSY, 1), "it was no proof that he goes away");
        // What a turn does not help is asked after more and more seldom.
        let asked: Vec<_> = (0..1500)
            .filter(|i| {
                let takes = looks.look(turns + 2 * i, 2);
                if takes {
                    looks.found(Attended::Waits, turns + 2 * i + 1, 2);
                }
                takes
            })
            .collect();
        assert_eq!(asked, [4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280]);
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
    fn a_call_that_comes_late_does_not_cut_the_next_rest_short() {
        let begun = Instant::now();
        std::thread::current().unpark();
        rest(TICK, || false);
        assert!(begun.elapsed() >= TICK);
        let begun = Instant::now();
        rest(Duration::from_secs(60), || true);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn who_takes_turns_is_left_alone() {
        let (absence, turns) = attended(&[Attended::Settled]);
        let (mut most, mut last) = (Duration::ZERO, Instant::now());
        let end = last + 20 * TICK;
        while Instant::now() < end {
            absence.turned();
            absence.note();
            // Read once: what lies between two readings would be in neither of them.
            let now = Instant::now();
            (most, last) = (most.max(now - last), now);
        }
        let taken = turns.load(SeqCst);
        // A busy machine may have taken the core away for long, also since the last one.
        most = most.max(last.elapsed());
        assert!(taken == 0 || most > TICK, "{taken} turns, {most:?} between two of ours at most");
        // Who polls, and keeps nothing back any more, is not looked after for ever.
        wait_for(|| {
            absence.turned();
            absence.unwatched.load(SeqCst)
        });
        absence.end();
    }

    #[test]
    fn who_tells_that_he_was_away_is_looked_at_soon() {
        let mut looks = Looks::default();
        (1..100).for_each(|i| _ = looks.look(i, i));
        assert_eq!(looks.apart(), RARE);
        looks.told();
        assert_eq!(looks.apart(), 1);
        // And is heard.
        let (absence, _) = attended(&[Attended::Settled]);
        absence.was_away();
        absence.note();
        wait_for(|| !absence.was_away.load(SeqCst));
        absence.end();
    }

    #[test]
    fn who_sleeps_is_woken_by_others() {
        let mut looks = Looks::default();
        (1..100).for_each(|i| _ = looks.look(i, i));
        assert!(looks.look(99, 99));
        looks.found(Attended::Asleep, 99, 99);
        assert_eq!((looks.pace.ticks, looks.pause), (RARE, 2), "he is not away");
    }

    #[test]
    fn what_is_left_behind_right_after_a_note_that_woke_leaves_at_the_first_look() {
        let mut looks = Looks { idle: DROWSY, ..Looks::default() };
        assert!(looks.are_over());
        looks.woken(50, 1);
        assert!(!looks.are_over() && looks.look(50, 1));
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
