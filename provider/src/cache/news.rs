//! The board on which the monitor says what happened to watched memory, and every cache reads at its own pace.
//!
//! ```text
//! word 0        the sequence: 2 x (changes ever told + 1), plus 1 while the monitor is reading ("in doubt"); 0: not here (a child)
//! words 8..     the last SLOTS changes, two words each: start | kind, end
//! ```
//!
//! **A look-up is one load of the sequence**: as it was when the cache last took the changes, or else slow. One writer, any
//! number of readers, who write nothing.
//!
//! **Why that is enough.** A thread X that unmaps watched memory waits in the kernel until its event is *read*. The monitor stores "in
//! doubt" (M1), reads (M2), writes the changes down (M3), stores the next even number (M4). X returns from the kernel (X1), and then some
//! thread L, told by X or X itself, looks up: loads the sequence (L1). M1 comes before M2 in the monitor; M2 releases X through the
//! kernel's locks and its scheduler, which order what was before with what comes after; X1 comes before L1 by the program's own
//! synchronisation. So L1 reads M1's value or a later one, never the one before: in doubt (a miss), or M4's, another than the cache has,
//! and by acquire/release with M4 the changes are there to be read. Were the sequence raised after M2, X could run on between the two and
//! hit.
//!
//! **Overwritten slots.** The monitor writes slots only while the sequence is odd, behind a fence; a reader loads the sequence, copies
//! the slots, and loads it again behind a fence. The same even number twice: nobody wrote between (a seqlock). Otherwise it is in doubt.
//! More changes than slots since a reader's last visit: it has lost some, and must take everything for changed.
//!
//! **A thread that has not been told of X1** may see the old number as long as X is in the kernel. For the addresses that X unmaps that
//! is fatal only if somebody maps something else there meanwhile; then [`Monitor::settled`](super::monitor::Monitor::settled) decides:
//! the kernel counts the change under the lock that the mapping needs, too, and counts it back after M2. Whoever mapped (after the
//! unmapping) and reads a count of 0 comes after M2, so its next load of the sequence reads M1 or later. The models below are this, with
//! the kernel's lock as a lock.

use crate::mem::atomic::{AtomicU64, Ordering, Words, fence};
use core::ops::Range;

/// Changes on the board.
const SLOTS: usize = if cfg!(loom) { 2 } else { 256 };
const SEQUENCE: usize = 0;
/// Slots begin in the second line.
const FIRST: usize = 8;
/// Words of a board.
pub const WORDS: usize = FIRST + 2 * SLOTS;

/// Addresses are whole pages: there is room for a kind below.
const KINDS: u64 = 3;

/// What happened to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is not mapped any more as it was, and not watched.
    Gone,
    /// Its pages were given back; it is still watched.
    Emptied,
    /// Watched memory was moved there.
    Came,
}

/// What the board says since some sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// So many changes were handed over, and this is the number to come back with.
    Told(u64),
    /// Some changes cannot be read any more: everything may have changed. The number to come back with.
    Lost(u64),
    /// The monitor is reading: come again.
    InDoubt,
    /// This process has no monitor: it is a child of the one that has.
    Elsewhere,
}

fn count(sequence: u64) -> u64 {
    (sequence >> 1) - 1
}

fn slot(n: u64) -> usize {
    FIRST + 2 * (n % SLOTS as u64) as usize
}

/// A board in memory that is zeroed at first, and in every child.
#[derive(Clone)]
pub struct News<M: Words> {
    words: M,
}

impl<M: Words> News<M> {
    /// Over [`WORDS`] zeroed words, with nothing on it.
    pub fn new(words: M) -> News<M> {
        words.word(SEQUENCE).store(2, Ordering::Release);
        News { words }
    }

    /// The sequence: what a look-up loads.
    pub fn sequence(&self) -> &AtomicU64 {
        self.words.word(SEQUENCE)
    }

    /// Reads what happened since the number `seen`, oldest first.
    pub fn since(&self, seen: u64, mut each: impl FnMut(Kind, Range<usize>)) -> Since {
        let now = self.sequence().load(Ordering::Acquire);
        if now == 0 {
            return Since::Elsewhere;
        }
        if now & 1 == 1 {
            return Since::InDoubt;
        }
        let (from, to) = (count(seen), count(now));
        if to - from > SLOTS as u64 {
            return Since::Lost(now);
        }
        let mut read = [(0u64, 0u64); SLOTS];
        let read = &mut read[..(to - from) as usize];
        for (n, pair) in (from..to).zip(read.iter_mut()) {
            let at = slot(n);
            *pair = (self.words.word(at).load(Ordering::Relaxed), self.words.word(at + 1).load(Ordering::Relaxed));
        }
        fence();
        if self.sequence().load(Ordering::Relaxed) != now {
            return Since::InDoubt;
        }
        for (start, end) in read {
            let kind = match *start & KINDS {
                0 => Kind::Gone,
                1 => Kind::Emptied,
                _ => Kind::Came,
            };
            each(kind, (*start & !KINDS) as usize..*end as usize);
        }
        Since::Told(now)
    }
}

/// The one who writes on it.
pub struct Teller<M: Words> {
    news: News<M>,
    /// Changes ever told.
    told: u64,
}

impl<M: Words> Teller<M> {
    /// Of a board on which nothing stands yet. There must be no other.
    pub fn new(news: News<M>) -> Teller<M> {
        Teller { news, told: 0 }
    }

    /// From here on look-ups miss: before the events are read (M1).
    pub fn doubt(&mut self) {
        self.news.sequence().store((self.told + 1) << 1 | 1, Ordering::Relaxed);
        // Before the slots that are written next, for readers (a seqlock's), and before the system call.
        fence();
    }

    /// Writes a change down (M3). Between [`doubt`](Self::doubt) and [`calm`](Self::calm) only.
    pub fn tell(&mut self, kind: Kind, range: Range<usize>) {
        let kind = match kind {
            Kind::Gone => 0,
            Kind::Emptied => 1,
            Kind::Came => 2,
        };
        let at = slot(self.told);
        self.news.words.word(at).store(range.start as u64 & !KINDS | kind, Ordering::Relaxed);
        self.news.words.word(at + 1).store(range.end as u64, Ordering::Relaxed);
        self.told += 1;
    }

    /// All that was read is written down (M4).
    pub fn calm(&mut self) {
        self.news.sequence().store((self.told + 1) << 1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A board for ever; kept where a leak checker finds it.
    fn board() -> &'static [AtomicU64] {
        static KEPT: parking_lot::Mutex<Vec<&[AtomicU64]>> = parking_lot::Mutex::new(Vec::new());
        let board: &'static [AtomicU64] = (0..WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        KEPT.lock().push(board);
        board
    }

    proptest! {
        /// A reader that comes now and then gets every change once, in order, or is told that it lost some.
        #[test]
        fn readers_get_all_or_know(steps in proptest::collection::vec((0usize..400, any::<bool>()), 1..20)) {
            let news = News::new(board());
            let mut teller = Teller::new(news.clone());
            let (mut seen, mut told, mut heard) = (2, 0usize, 0usize);
            for (changes, look) in steps {
                teller.doubt();
                prop_assert_eq!(news.since(seen, |_, _| ()), Since::InDoubt);
                for _ in 0..changes {
                    let kind = [Kind::Gone, Kind::Emptied, Kind::Came][told % 3];
                    teller.tell(kind, told << 12..(told + 1) << 12);
                    told += 1;
                }
                teller.calm();
                if !look {
                    continue;
                }
                let mut got = Vec::new();
                match news.since(seen, |kind, range| got.push((kind, range))) {
                    Since::Told(now) => {
                        let expect: Vec<_> = (heard..told)
                            .map(|n| ([Kind::Gone, Kind::Emptied, Kind::Came][n % 3], n << 12..(n + 1) << 12)).collect();
                        prop_assert_eq!(got, expect);
                        seen = now;
                    }
                    Since::Lost(now) => {
                        prop_assert!(told - heard > SLOTS);
                        seen = now;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
                heard = told;
            }
        }
    }

    #[test]
    fn a_wiped_board_is_elsewhere() {
        let words = board();
        let news = News::new(words);
        words[SEQUENCE].store(0, Ordering::Relaxed);
        assert_eq!(news.since(2, |_, _| ()), Since::Elsewhere);
    }
}

#[cfg(all(test, loom))]
#[path = "news_loom.rs"]
mod loom_tests;
