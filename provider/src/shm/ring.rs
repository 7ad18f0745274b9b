//! The record ring: one writer, one reader, lines of 64 bytes, records of consecutive lines.
//!
//! ```text
//!            head (reader)          tail (writer)
//!              v                      v
//!   ... free | record | record       | 0 | 0 | free ...
//!              ^ first word != 0       ^ first word == 0: "nothing here yet"
//! ```
//!
//! * `Producer` and `Consumer` hold all positions privately; the shared memory holds only the records. A record is
//!   valid when the first word of its first line is not zero.
//! * Before a record is published the first word of the line after it is zero (`clean`), so payload of an earlier lap is never
//!   taken for a header. Clearing runs one line ahead of the tail when there is room, and, where long records are answered one by one, as many lines
//!   as the last one had.
//! * A record never wraps: [`SKIP`] covers the lines up to the end.
//! * Who needs little room goes round in *short laps*, and the rest of the memory is never touched: at their end the writer skips all the rest, if the
//!   reader has left it so much room, and goes on to the end of the ring if not, or if a record is long. The reader sees a skip like any other.
//! * Positions count lines and wrap at 2^32; a ring is far smaller.
//!
//! Ordering pairs: `R1` (publish, release) ↔ `A1` (peek, acquire): a header that is seen has all its lines behind it, and the
//! zero after it. `R2` (the reader's position, stored by the link with release after its copies) ↔ `A2` (loaded by the
//! link with acquire before [`Producer::acked`]): the writer reuses lines only after the reader's copies from them.

use super::layout::{LINE, LINE_WORDS};
use crate::mem::atomic::{Ordering, Words};

/// First byte of a header word that covers the rest of a lap. Bits 8..16: low byte of the position; bits 16..32: lines.
pub const SKIP: u64 = 1;

/// The header of a skip of `lines` lines at `position`.
#[inline]
pub const fn skip_word(position: u32, lines: u32) -> u64 {
    SKIP | (position as u64 & 0xff) << 8 | (lines as u64) << 16
}

/// The reader's position is past what was written: the peer is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct BadPosition;

/// Lines that a record of `bytes` (header, body, payload) takes.
#[inline]
pub const fn lines_for(bytes: usize) -> u32 {
    bytes.div_ceil(LINE) as u32
}

/// The writing end.
pub struct Producer<M> {
    mem: M,
    lines: u32,
    tail: u32,
    written: u32,
    /// Where the last skip began.
    skipped: u32,
    acked: u32,
    clean: u32,
    /// The first word of the line so many behind the tail is zero, too; 0: nothing is known of another one.
    cleared: u32,
    /// Lines of a short lap, and the line at which the present lap ends.
    short: u32,
    end: u32,
    /// Laps that go on to the end of the ring, because there was no room.
    long_laps: u32,
}

/// Laps after a lack of room that are long.
const LONG_LAPS: u32 = 8;

impl<M: Words> Producer<M> {
    /// Over `lines` lines of zeroed memory.
    pub fn new(mem: M, lines: u32) -> Self {
        Producer {
            mem,
            lines,
            tail: 0,
            written: 0,
            skipped: 0,
            acked: 0,
            clean: lines,
            cleared: 0,
            short: lines,
            end: lines,
            long_laps: 0,
        }
    }

    /// Goes round in laps of `short` lines where that is enough. Said before the first record.
    pub fn set_short_laps(&mut self, short: u32) {
        self.short = short.min(self.lines);
        self.end = self.short;
    }

    /// Lines written since the start (wrapping).
    #[inline]
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Position at which the rest of a lap was skipped last, up to the end of the ring; 0 before that.
    #[inline]
    pub fn skipped(&self) -> u32 {
        self.skipped
    }

    /// Lines known to be consumed (wrapping).
    #[inline]
    pub fn acked(&self) -> u32 {
        self.acked
    }

    /// Lines of the ring.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// Lines not in the reader's hands, as far as known.
    #[inline]
    pub fn free(&self) -> u32 {
        self.lines - self.written.wrapping_sub(self.acked)
    }

    /// Takes note of the reader's position (loaded with acquire: A2). It comes by two ways that overtake each
    /// other (headers and the progress line), so an older one is no news and no error.
    #[inline]
    pub fn ack(&mut self, position: u32) -> Result<(), BadPosition> {
        let ahead = position.wrapping_sub(self.acked);
        if ahead > self.written.wrapping_sub(self.acked) {
            return if ahead.cast_signed() < 0 { Ok(()) } else { Err(BadPosition) };
        }
        self.acked = position;
        Ok(())
    }

    /// Room for a record of `need` lines while `keep` lines stay free besides: the byte offset of the
    /// record in the ring, or `None`. May publish a skip record. Nothing is visible until [`publish`](Self::publish).
    #[inline]
    pub fn reserve(&mut self, need: u32, keep: u32) -> Option<usize> {
        let to_end = self.end - self.tail;
        if need > to_end && self.end < self.lines {
            return self.reserve_at_the_turn(need, keep);
        }
        let skip = if need > to_end { to_end } else { 0 };
        // One line more than the record: the cleared word behind it.
        if self.free() < skip + need + 1 + keep {
            self.long_laps = LONG_LAPS;
            return None;
        }
        if skip > 0 {
            self.skip(skip, need);
        }
        Some(self.tail as usize * LINE)
    }

    /// The short lap is over.
    #[cold]
    #[inline(never)]
    fn reserve_at_the_turn(&mut self, need: u32, keep: u32) -> Option<usize> {
        let rest = self.lines - self.tail;
        if self.long_laps == 0 && need <= self.short / 4 && self.free() > rest + need + keep {
            self.skip(rest, need);
            return Some(self.tail as usize * LINE);
        }
        self.end = self.lines;
        self.reserve(need, keep)
    }

    #[cold]
    #[inline(never)]
    fn skip(&mut self, lines: u32, need: u32) {
        self.skipped = self.written;
        self.publish_first(lines, skip_word(self.written, lines));
        self.end = if self.long_laps > 0 { self.lines } else { self.short.max(need) };
        self.long_laps = self.long_laps.saturating_sub(1);
    }

    /// Publishes the record that was written at the reserved offset: `lines` long, `head` its first three words
    /// (`head[0]` must not be zero). Returns the position behind it: it is consumed once [`acked`](Self::acked) reaches that.
    #[inline]
    pub fn publish(&mut self, lines: u32, head: [u64; 3]) -> u32 {
        let [_, second, third, _] = self.mem.quad(self.tail as usize * LINE_WORDS);
        second.store(head[1], Ordering::Relaxed);
        third.store(head[2], Ordering::Relaxed);
        self.publish_first(lines, head[0]);
        self.written
    }

    #[inline]
    fn publish_first(&mut self, lines: u32, word: u64) {
        debug_assert!(word != 0 && lines > 0 && lines <= self.lines - self.tail);
        if self.clean <= lines {
            if self.cleared != lines {
                self.clear(lines);
            }
            self.clean = lines + 1;
        }
        self.cleared = 0;
        // R1
        self.mem.word(self.tail as usize * LINE_WORDS).store(word, Ordering::Release);
        self.tail = self.line_after(lines);
        self.written = self.written.wrapping_add(lines);
        self.clean -= lines;
        // Off the critical path: the next one-line record will find its successor cleared.
        if self.clean < 2 && self.free() >= 2 {
            self.clear(1);
            self.clean = 2;
        }
    }

    /// A record of `lines` lines may be next: if nothing else waits for the reader, the line behind it is cleared now, while there is time for it. Whoever sends
    /// many in a row has none.
    #[inline]
    pub fn clear_behind_next(&mut self, lines: u32) {
        if self.written.wrapping_sub(self.acked) <= lines && self.end - self.tail > lines && self.free() > lines {
            self.clear(lines);
            self.cleared = lines;
        }
    }

    /// Where the next `lines` lines are, as far as they are free and lie together: offset of the first byte, and bytes.
    #[inline]
    pub fn ahead(&self, lines: u32) -> (usize, usize) {
        let lines = lines.min(self.free()).min(self.end - self.tail) as usize;
        (self.tail as usize * LINE, lines * LINE)
    }

    #[inline]
    fn clear(&self, ahead: u32) {
        let line = self.line_after(ahead);
        self.mem.word(line as usize * LINE_WORDS).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn line_after(&self, n: u32) -> u32 {
        let at = self.tail + n;
        if at >= self.lines { at - self.lines } else { at }
    }
}

/// What [`Consumer::peek`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Peeked {
    /// Nothing new.
    Empty,
    /// A record: its first three words, copied once.
    Record([u64; 3]),
    /// A skip record that no writer of ours writes.
    Corrupt,
}

/// The reading end.
pub struct Consumer<M> {
    mem: M,
    lines: u32,
    head: u32,
    consumed: u32,
}

impl<M: Words> Consumer<M> {
    /// Over the memory that a [`Producer`] of `lines` lines writes.
    pub fn new(mem: M, lines: u32) -> Self {
        Consumer { mem, lines, head: 0, consumed: 0 }
    }

    /// Lines consumed since the start (wrapping): to be published with release (R2).
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Lines from the head to the end of the lap: no record is longer.
    #[inline]
    pub fn contiguous(&self) -> u32 {
        self.lines - self.head
    }

    /// Byte offset of the record at the head.
    #[inline]
    pub fn offset(&self) -> usize {
        self.head as usize * LINE
    }

    /// Whether a poll would find something: one load.
    #[inline]
    pub fn ready(&self) -> bool {
        self.mem.word(self.head as usize * LINE_WORDS).load(Ordering::Relaxed) != 0
    }

    /// What lies at the head: the first three words of a record, copied once, or the first one of a [`SKIP`], or nothing but zeros.
    #[inline]
    pub fn words(&self) -> [u64; 3] {
        let [first, second, third, _] = self.mem.quad(self.head as usize * LINE_WORDS);
        let first = first.load(Ordering::Acquire); // A1
        if first == 0 || first & 0xff == SKIP {
            return [first, 0, 0];
        }
        [first, second.load(Ordering::Relaxed), third.load(Ordering::Relaxed)]
    }

    /// Looks at the head.
    #[inline]
    pub fn peek(&mut self) -> Peeked {
        // A ring holds at most one skip between two records.
        for _ in 0..2 {
            let words @ [first, ..] = self.words();
            if first == 0 {
                return Peeked::Empty;
            }
            if first & 0xff != SKIP {
                return Peeked::Record(words);
            }
            if first >> 8 != u64::from(self.consumed & 0xff) | u64::from(self.lines - self.head) << 8 {
                return Peeked::Corrupt;
            }
            self.release(self.lines - self.head);
        }
        Peeked::Corrupt
    }

    /// Gives back the record at the head, `lines` long (validated by the caller: at least 1, at most
    /// [`contiguous`](Self::contiguous)).
    #[inline]
    pub fn release(&mut self, lines: u32) {
        debug_assert!(lines > 0 && lines <= self.contiguous());
        self.head += lines;
        if self.head == self.lines {
            self.head = 0;
        }
        self.consumed = self.consumed.wrapping_add(lines);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
