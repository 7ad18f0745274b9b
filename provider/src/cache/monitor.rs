//! The one thread of the process that reads what happened to watched memory, and what all caches share around it.
//!
//! The thread allocates nothing and takes no lock: whoever unmaps memory, perhaps with the allocator's lock in its hands, waits for it.
//! To begin it does allocate (its stack's guard, what the standard library keeps of a thread), so nothing is watched before it has begun.
//! It is started for the first watch and never ends: a userfaultfd that is closed here may be open in a child, and events that
//! nobody reads would stop every thread that unmaps.

use super::news::{Kind, News, Since, Teller, WORDS};
use super::watches::{Watch, Watches};
use crate::mem::atomic::{AtomicU64, Ordering, fence};
use crate::sys::userfault::{Batch, Change, Userfault};
use crate::sys::{fork, thread};
use core::ops::Range;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::{Condvar, Mutex as Flag, OnceLock, PoisonError};
use std::time::Duration;

type Board = &'static [AtomicU64];

/// Most ranges that are watched in a process.
const WATCHES: usize = 2048;
/// Each can make three mappings of one; what is left is the program's.
const SHARE_OF_MAPPINGS: usize = 32;
/// How long whoever asks for the thread first waits until it has begun. It may need a lock that this very caller holds (the loader's, in a library's
/// constructor); then nothing is watched until it has it.
const PATIENCE: Duration = Duration::from_secs(1);

/// See above.
pub struct Monitor {
    fault: Userfault,
    news: News<Board>,
    watched: Mutex<Watched>,
    /// Whether the thread runs, once somebody has asked for it.
    runs: OnceLock<Result<(), String>>,
    /// Whether it has begun; of the standard library, whose waiting does not allocate.
    begun: Flag<bool>,
    bell: Condvar,
}

/// What is watched, and up to which change that is true. Locked by threads that watch and unwatch, never by the monitor's.
struct Watched {
    watches: Watches,
    seen: u64,
}

fn open() -> Result<Monitor, String> {
    let words = fork::wiped(WORDS).ok_or("this kernel cannot hide memory from children (MADV_WIPEONFORK)")?;
    let fault = Userfault::open()?;
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|s| s.trim().parse().ok());
    let limit = WATCHES.min(mappings.unwrap_or(usize::MAX) / SHARE_OF_MAPPINGS);
    let watched = Mutex::new(Watched { watches: Watches::new(limit), seen: 2 });
    let (begun, bell) = (Flag::new(false), Condvar::new());
    Ok(Monitor { fault, news: News::new(words), watched, runs: OnceLock::new(), begun, bell })
}

const CHILD: &str = "this process is a child, by fork, of the one that uses rustmx";

impl Monitor {
    /// That of this process; or why there is none, in words.
    pub fn get() -> Result<&'static Monitor, &'static str> {
        static MONITOR: OnceLock<Result<Monitor, String>> = OnceLock::new();
        // Before the lock of the OnceLock, which a child may have inherited locked.
        if fork::in_child() {
            return Err(CHILD);
        }
        fork::own();
        MONITOR.get_or_init(open).as_ref().map_err(String::as_str)
    }

    /// The sequence (`news.rs`). 0 in a child.
    pub fn sequence(&self) -> &AtomicU64 {
        self.news.sequence()
    }

    /// What happened since `seen`.
    pub fn since(&self, seen: u64, each: impl FnMut(Kind, Range<usize>)) -> Since {
        self.news.since(seen, each)
    }

    fn is_elsewhere(&self) -> bool {
        self.sequence().load(Ordering::Relaxed) == 0
    }

    /// Why nothing can be watched although there is a userfaultfd.
    pub fn refusal(&self) -> Option<&str> {
        if self.is_elsewhere() {
            return Some(CHILD);
        }
        self.runs.get().and_then(|runs| runs.as_ref().err()).map(String::as_str)
    }

    fn runs(&'static self) -> bool {
        let start = || {
            thread::quiet("rustmx-monitor", move || run(self)).map_err(|e| format!("its thread cannot be started: {e}"))?;
            let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.bell.wait_timeout_while(begun, PATIENCE, |begun| !*begun);
            Ok(())
        };
        self.runs.get_or_init(start).is_ok() && *self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread needs nobody's lock from here on.
    fn begins(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Watches whole pages. `None`: they cannot be watched, there are too many, changes are just coming in, or the thread has not begun.
    pub fn watch(&'static self, range: Range<usize>) -> Option<Watch> {
        if self.is_elsewhere() || !self.runs() {
            return None;
        }
        let mut watched = self.watched.lock();
        if !self.catch_up(&mut watched) {
            // What is moved to these very addresses right now would be unwatched by the next to catch up.
            return None;
        }
        let watch = watched.watches.begin(range)?;
        let why = match self.fault.watch(watch.range()) {
            Ok(()) => return Some(watch),
            Err(why) => why,
        };
        // The kernel looks at all of it before it watches any, and before Linux 6.17 takes away what is somebody else's, too: a range that is not free is left alone.
        // Without memory it may stop half-way.
        watched.watches.end(&watch, |part| {
            if why == Errno::NOMEM {
                self.fault.unwatch(&part);
            }
        });
        None
    }

    /// Ends a watch. In a child, nothing: the descriptor is about the parent's memory.
    pub fn unwatch(&self, watch: &Watch) {
        if self.is_elsewhere() {
            return;
        }
        let mut watched = self.watched.lock();
        // In doubt: at worst some memory is unwatched that is not watched.
        let _ = self.catch_up(&mut watched);
        watched.watches.end(watch, |part| self.fault.unwatch(&part));
    }

    fn catch_up(&self, watched: &mut Watched) -> bool {
        let Watched { watches, seen } = watched;
        let since = self.news.since(*seen, |kind, range| match kind {
            Kind::Gone => watches.gone(&range),
            Kind::Emptied => {}
            Kind::Came => {
                // Nobody has asked to watch it there.
                watches.gone(&range);
                self.fault.unwatch(&range);
            }
        });
        match since {
            // Lost: what is gone counts as watched until its cache ends it. Nothing may be unwatched for that: the caches may know better.
            Since::Told(now) | Since::Lost(now) => {
                *seen = now;
                true
            }
            Since::InDoubt | Since::Elsewhere => false,
        }
    }

    /// Whether no change to watched memory is under way in any thread; and, if `true`, every change before that can be read on the
    /// board or has put it in doubt. One system call.
    pub fn settled(&self) -> bool {
        let settled = !self.is_elsewhere() && self.fault.settled();
        // The next load of the sequence comes after the kernel's.
        fence();
        settled
    }
}

/// The thread.
fn run(monitor: &'static Monitor) {
    let (mut teller, mut batch) = (Teller::new(monitor.news.clone()), Batch::default());
    monitor.begins();
    loop {
        monitor.fault.wait();
        teller.doubt();
        for change in monitor.fault.read(&mut batch) {
            match change {
                Change::Unmapped(range) => teller.tell(Kind::Gone, range),
                Change::Emptied(range) => teller.tell(Kind::Emptied, range),
                Change::Moved(from, to) => {
                    teller.tell(Kind::Gone, from);
                    teller.tell(Kind::Came, to);
                }
            }
        }
        teller.calm();
    }
}
