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
#[path = "absence_tests.rs"]
mod tests;
