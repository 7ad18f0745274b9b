//! Our ring, as one connection carries it away: which of its lines have left, and what was told beside them.

use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::shm::layout::{CLOSED, CONSUMED, CONTROL_LINES, CREDIT, LINE, STATE, WRITTEN, ring_lines};
use crate::wire::frame::FRAME_HEAD;

const _: () = assert!(FRAME_HEAD <= LINE);

/// Our ring, as one connection carries it away.
pub(super) struct Ring {
    mine: SharedMem,
    pub lines: SharedMem,
    /// Position up to which lines have been put into frames, and the line there.
    pub framed: u32,
    at: u32,
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
        Ring { mine, lines, framed: 0, at: 0, count, told, seen: told, window: told.1, said_goodbye: false }
    }

    /// Lines of whole records that have not been put into frames.
    #[inline]
    pub fn waiting(&self) -> u32 {
        (self.mine.word(WRITTEN).load(Ordering::Relaxed) as u32).wrapping_sub(self.framed)
    }

    /// What we read of the other direction, and the credit we give.
    pub fn now(&self) -> (u32, u64) {
        (self.mine.word(CONSUMED).load(Ordering::Relaxed) as u32, self.mine.word(CREDIT).load(Ordering::Relaxed))
    }

    /// Whether the endpoint has closed and that is still to be told.
    pub fn closes(&self) -> bool {
        !self.said_goodbye && self.mine.word(STATE).load(Ordering::Relaxed) == CLOSED
    }

    /// Where the next `lines` lines are, in bytes: from and how many, in two parts, of which the second may be empty.
    pub fn spans(&self, lines: u32) -> [(usize, usize); 2] {
        let first = lines.min(self.count - self.at);
        [(self.at, first), (0, lines - first)].map(|(at, lines)| (at as usize * LINE, lines as usize * LINE))
    }

    /// Whether our writer has gone over lines that have not left. An honest peer acknowledges what it got, and then there is always a line free.
    #[inline]
    pub fn is_overrun(&self) -> bool {
        self.waiting() >= self.count
    }

    /// Puts a head right before the next `lines` lines, if these follow one another there and have a line before them. All that was put into frames must have left: so that line has, and
    /// our writer, who goes on when it is acknowledged, touches no more of it than its first word. (From then on another connection could not carry this ring from its beginning. None does: while two calls
    /// cross, and one is given up, what has been written leaves behind a hello, as a batch.) Returns where the head is, in bytes.
    pub fn headed(&self, head: &[u8; FRAME_HEAD], lines: u32) -> Option<usize> {
        let fits = self.at > 0 && lines <= self.count - self.at;
        let at = self.at as usize * LINE;
        fits.then(|| {
            self.lines.fill_bytes(at - FRAME_HEAD, head);
            at - FRAME_HEAD
        })
    }

    /// They are in a frame.
    pub fn pass(&mut self, lines: u32) {
        self.framed = self.framed.wrapping_add(lines);
        let behind = self.at + lines;
        self.at = if behind < self.count { behind } else { behind - self.count };
    }
}
