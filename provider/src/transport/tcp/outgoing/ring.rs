//! Our ring, as one connection carries it away: which of its lines have left, and what was told beside them.

use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::shm::layout::{CLOSED, CONSUMED, CONTROL_LINES, CREDIT, LINE, STATE, ring_lines};
use crate::shm::ring::{Consumer, Peeked};
use crate::wire::header::Header;

/// Our ring, as one connection carries it away.
pub(super) struct Ring {
    mine: SharedMem,
    pub lines: SharedMem,
    /// Walks behind the writer, record by record.
    walk: Consumer<SharedMem>,
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
        let walk = Consumer::new(lines.clone(), count);
        Ring { mine, lines, walk, framed: 0, at: 0, count, told, seen: told, window: told.1, said_goodbye: false }
    }

    /// Lines of whole records that have not been put into frames.
    pub fn waiting(&mut self) -> u32 {
        // Our own writer's headers: they are sound.
        while let Peeked::Record(words) = self.walk.peek() {
            let (position, room) = (self.walk.consumed(), self.walk.contiguous());
            let lines = match Header::parse_inline(words, position, room) {
                Some(short) => Header::inline_lines(short.len.into()),
                None => match Header::parse(words, position, room) {
                    Ok(header) => header.lines(),
                    Err(_) => break,
                },
            };
            self.walk.release(lines);
        }
        self.walk.consumed().wrapping_sub(self.framed)
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

    /// They are in a frame.
    pub fn pass(&mut self, lines: u32) {
        self.framed = self.framed.wrapping_add(lines);
        let behind = self.at + lines;
        self.at = if behind < self.count { behind } else { behind - self.count };
    }
}
