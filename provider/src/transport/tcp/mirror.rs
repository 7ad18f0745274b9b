//! The other side's ring as it is here: a private copy, written by the connection, read by the engine as if the peer were on this host.

use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::shm::layout::{CLOSED, CONSUMED, CONTROL_LINES, CREDIT, HOT, LINE, LINE_WORDS, STATE, ring_lines};
use crate::shm::ring::skip_word;
use crate::shm::stance::Stance;
use crate::sys::tcp::Piece;
use crate::wire::frame::{FRAME_HEAD, Frame};
use crate::wire::header::Header;
use smallvec::SmallVec;

/// The mirror of the other side's segment.
pub(super) struct Mirror {
    pub theirs: SharedMem,
    lines: SharedMem,
    /// Our segment: what our reader has given back stands there.
    mine: SharedMem,
    pub count: u32,
    /// Position behind the last line that came, and the line there.
    pub position: u32,
    pub at: u32,
    /// Lines up to the end that the frame at hand skips: its own begin with the first one.
    skipped: u32,
    /// Of a frame that is not all there: its first word.
    withheld: u64,
}

impl Mirror {
    /// The private copy of a segment that `theirs` is, next to our own.
    pub fn new(theirs: SharedMem, mine: SharedMem) -> Mirror {
        let count = ring_lines(theirs.bytes());
        let lines = theirs.slice(CONTROL_LINES * LINE, count as usize * LINE);
        // Whoever writes to the other side must hear of it each time: there is a system call to be made.
        Stance { hot: true, nap: 1 }.show(&theirs);
        Mirror { theirs, lines, mine, count, position: 0, at: 0, skipped: 0, withheld: 0 }
    }

    /// A head came: what the other side has read of ours, and how much more it takes.
    #[inline]
    pub fn hear(&self, frame: &Frame) {
        self.theirs.word(CONSUMED).store(u64::from(frame.consumed), Ordering::Release);
        self.theirs.word(CREDIT).store(frame.credit, Ordering::Relaxed);
    }

    /// The other side has closed in good order.
    pub fn close(&self) {
        self.theirs.word(STATE).store(CLOSED, Ordering::Release);
    }

    /// Whether a frame may bring the lines from this position on: behind all others, and no more than there is room for. What it skips is the rest of the ring. If so, it is the frame at hand.
    #[inline]
    pub fn takes(&mut self, position: u32, skipped: u32, lines: u32) -> bool {
        let sound = position == self.position && lines <= self.room() && (skipped == 0 || self.may_skip(skipped, lines));
        if sound {
            self.skipped = skipped;
        }
        sound
    }

    #[cold]
    fn may_skip(&self, skipped: u32, lines: u32) -> bool {
        skipped == self.to_end() && lines <= self.room().saturating_sub(skipped)
    }

    /// Lines to the end of the ring.
    pub fn to_end(&self) -> u32 {
        self.count - self.at
    }

    /// The line with which the frame at hand begins; between frames, or where its head is not read, the next line.
    #[inline]
    pub fn first(&self) -> u32 {
        if self.skipped == 0 { self.at } else { 0 }
    }

    /// Lines that may come: what the reader has given back, and the one that stays free.
    #[inline]
    pub fn room(&self) -> u32 {
        let consumed = self.mine.word(CONSUMED).load(Ordering::Relaxed) as u32;
        (self.count - 1).saturating_sub(self.position.wrapping_sub(consumed))
    }

    /// The places of `bytes` bytes from byte `from` of a frame on that begins with line `first`.
    pub fn name<'a>(&'a self, first: u32, from: usize, bytes: usize, pieces: &mut SmallVec<[Piece<'a>; 8]>) {
        let (at, end) = self.place(first, from);
        let first = bytes.min(end - at);
        pieces.extend([(at, first), (0, bytes - first)].iter().filter(|p| p.1 > 0).map(|p| Piece::Own(&self.lines, p.0, p.1)));
    }

    /// Puts bytes there, of the frame at hand.
    #[inline]
    pub fn put(&self, from: usize, bytes: &[u8]) {
        let (at, end) = self.place(self.first(), from);
        let (first, rest) = bytes.split_at(bytes.len().min(end - at));
        self.lines.fill_bytes(at, first);
        if !rest.is_empty() {
            self.lines.fill_bytes(0, rest);
        }
    }

    /// Where byte `from` of it is, and where the lines end. (A frame is shorter than the ring: no division is needed.)
    #[inline]
    fn place(&self, first: u32, from: usize) -> (usize, usize) {
        let (at, end) = (first as usize * LINE + from, self.lines.bytes());
        (if at < end { at } else { at - end }, end)
    }

    /// The byte of the [lines](Self::lines) to which a head is received along with `bytes` bytes of lines so that these come to stand where the next ones belong. `None`: they
    /// go round the end, or begin at it, or not all lines before them have been read.
    #[inline]
    pub fn place_with_head(&self, bytes: usize) -> Option<usize> {
        let at = self.at as usize * LINE;
        let fits = at > 0 && bytes <= self.lines.bytes() - at;
        (fits && self.is_drained()).then(|| at - FRAME_HEAD)
    }

    /// Bytes of payload that the first one of the last lines, so many bytes of them, says it begins.
    pub fn said_payload(&self, bytes: usize) -> usize {
        let lines = (bytes / LINE) as u32;
        let first = if self.at >= lines { self.at - lines } else { self.at + self.count - lines };
        Header::said_payload(self.word(first).load(Ordering::Relaxed))
    }

    /// The head that was received to that place.
    #[inline]
    pub fn head_at(&self, place: usize) -> [u8; FRAME_HEAD] {
        let words = self.lines.quad(place / size_of::<u64>());
        zerocopy::transmute!(words.map(|word| word.load(Ordering::Relaxed)))
    }

    /// All of them.
    pub fn lines(&self) -> &SharedMem {
        &self.lines
    }

    /// Whether the reader has read all that came.
    pub fn is_drained(&self) -> bool {
        self.mine.word(CONSUMED).load(Ordering::Relaxed) as u32 == self.position
    }

    /// Whether there are lines that the engine finds only if it is told of them, for it does not look into this ring in each turn.
    pub fn waits(&self) -> bool {
        !Stance::of(self.mine.word(HOT).load(Ordering::Relaxed)).hot && !self.is_drained()
    }

    fn word(&self, line: u32) -> &core::sync::atomic::AtomicU64 {
        self.lines.word(line as usize * LINE_WORDS)
    }

    /// The frame at hand is not all there: nobody sees its beginning. (Where the reader looks before a skip stands nothing until all is there.)
    pub fn withhold(&mut self) {
        if self.skipped > 0 {
            return;
        }
        let word = self.word(self.at).load(Ordering::Relaxed);
        self.withheld |= word;
        self.clear_head();
    }

    /// Where the reader looks is nothing.
    pub fn clear_head(&mut self) {
        self.word(self.at).store(0, Ordering::Relaxed);
    }

    /// The `lines` lines of the frame at hand are all there.
    #[inline]
    pub fn show(&mut self, lines: u32) {
        let behind = self.first() + lines;
        let behind = if behind < self.count { behind } else { behind - self.count };
        self.word(behind).store(0, Ordering::Relaxed);
        if self.skipped == 0 {
            let head = self.word(self.at);
            let word = head.load(Ordering::Relaxed) | self.withheld;
            head.store(word, Ordering::Release);
            self.withheld = 0;
        } else {
            self.show_skip();
        }
        self.position = self.position.wrapping_add(lines);
        self.at = behind;
    }

    /// Where the reader looks stands what its writer put there: that the rest is skipped. He finds the frame behind it.
    #[cold]
    fn show_skip(&mut self) {
        let skipped = std::mem::take(&mut self.skipped);
        self.word(self.at).store(skip_word(self.position, skipped), Ordering::Release);
        self.position = self.position.wrapping_add(skipped);
    }
}
