//! Our ring, as one connection carries it away: which of its lines have left, and what was told beside them.

use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::shm::layout::{CLOSED, CONSUMED, CONTROL_LINES, CREDIT, LINE, STATE, WRITTEN, ring_lines};
use crate::wire::frame::FRAME_HEAD;

const _: () = assert!(FRAME_HEAD <= LINE);

/// What goes into one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::tcp) struct Run {
    /// The line with which it begins.
    at: u32,
    /// Lines up to the end of the ring that do not travel.
    pub skipped: u32,
    /// Lines behind them, which do.
    pub lines: u32,
}

/// Our ring, as one connection carries it away.
pub(in crate::transport::tcp) struct Ring {
    mine: SharedMem,
    pub lines: SharedMem,
    /// Position up to which lines have been put into frames, and the line there.
    pub framed: u32,
    at: u32,
    /// Where the last one of the skips began that went into frames. (Positions go round: it may look like one to come, once in 2^32 lines.)
    passed: u32,
    pub count: u32,
    /// What the other side was told of our reading last.
    pub told: (u32, u64),
    /// What there was to be told at the last look at what is owed.
    pub seen: (u32, u64),
    pub window: u64,
    pub said_goodbye: bool,
}

impl Ring {
    pub fn new(mine: SharedMem) -> Ring {
        let count = ring_lines(mine.bytes());
        let lines = mine.slice(CONTROL_LINES * LINE, count as usize * LINE);
        let told = (0, mine.word(CREDIT).load(Ordering::Relaxed));
        Ring { mine, lines, framed: 0, at: 0, passed: 0, count, told, seen: told, window: told.1, said_goodbye: false }
    }

    /// Lines that have not been put into frames, those of a skip among them.
    #[inline]
    pub fn waiting(&self) -> u32 {
        (self.mine.word(WRITTEN).load(Ordering::Relaxed) as u32).wrapping_sub(self.framed)
    }

    /// The next frame, and whether there is nothing for another one behind it: lines of whole records up to a skip, or a skip and the lines behind it. What is skipped travels as a number.
    #[inline]
    pub fn next(&self) -> (Run, bool) {
        let word = self.mine.word(WRITTEN).load(Ordering::Relaxed);
        let lines = (word as u32).wrapping_sub(self.framed);
        match (word >> 32) as u32 {
            passed if passed == self.passed => (Run { at: self.at, skipped: 0, lines }, true),
            skipped => self.next_at_skip(skipped.wrapping_sub(self.framed), lines),
        }
    }

    /// There is a skip behind `before` of `all` lines that wait, if these are so many: they are fewer than the ring has, so there is one at most.
    #[cold]
    fn next_at_skip(&self, before: u32, all: u32) -> (Run, bool) {
        let skipped = self.count - self.at;
        match before {
            0 => (Run { at: 0, skipped, lines: all.saturating_sub(skipped) }, true),
            lines if lines < all => (Run { at: self.at, skipped: 0, lines }, false),
            _ => (Run { at: self.at, skipped: 0, lines: all }, true),
        }
    }

    /// What we read of the other direction, and the credit we give.
    pub fn now(&self) -> (u32, u64) {
        (self.mine.word(CONSUMED).load(Ordering::Relaxed) as u32, self.mine.word(CREDIT).load(Ordering::Relaxed))
    }

    /// Whether the endpoint has closed and that is still to be told.
    pub fn closes(&self) -> bool {
        !self.said_goodbye && self.mine.word(STATE).load(Ordering::Relaxed) == CLOSED
    }

    /// Where its lines are, in bytes: from and how many, in two parts, of which the second may be empty.
    pub fn spans(&self, run: Run) -> [(usize, usize); 2] {
        let first = run.lines.min(self.count - run.at);
        [(run.at, first), (0, run.lines - first)].map(|(at, lines)| (at as usize * LINE, lines as usize * LINE))
    }

    /// Whether our writer has gone over lines that have not left. An honest peer acknowledges what it got, and then there is always a line free.
    #[inline]
    pub fn is_overrun(&self) -> bool {
        self.waiting() >= self.count
    }

    /// Puts a head right before the lines of a frame, if these follow one another there and have a line before them. All that was put into frames must have left: so that line has, and
    /// our writer, who goes on when it is acknowledged, touches no more of it than its first word. (From then on another connection could not carry this ring from its beginning. None does: while two calls
    /// cross, and one is given up, what has been written leaves behind a hello, as a batch.) Returns where the head is, in bytes.
    pub fn headed(&self, head: &[u8; FRAME_HEAD], run: Run) -> Option<usize> {
        let fits = run.at > 0 && run.lines <= self.count - run.at;
        let at = run.at as usize * LINE;
        fits.then(|| {
            self.lines.fill_bytes(at - FRAME_HEAD, head);
            at - FRAME_HEAD
        })
    }

    /// They are in a frame.
    pub fn pass(&mut self, run: Run) {
        if run.skipped > 0 {
            self.passed = self.framed;
        }
        self.framed = self.framed.wrapping_add(run.skipped + run.lines);
        let behind = run.at + run.lines;
        self.at = if behind < self.count { behind } else { behind - self.count };
    }
}
