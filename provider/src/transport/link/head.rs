//! The record at the head of the inbound ring: what it is, where its payload is, and that it is done with.

use super::cell::{LONG_STEP, STEP};
use super::{Corrupt, Link};
use crate::mem::atomic::{Ordering, Words};
use crate::mem::engine::Engine;
use crate::mem::shared::SharedMem;
use crate::mem::user::{UserSeg, total_len};
use crate::shm::layout::LINE;
use crate::shm::ring::Peeked;
use crate::wire::header::{HEAD, Header, Kind};

/// Lines of a record that are asked for as soon as its header is seen: a core waits for about as many at a time.
pub(super) const AT_ONCE: usize = 16;

/// Lines of so many bytes of payload in the ring are taken when they are read. Shorter records wait for their header only.
const TAKEN: usize = 512;

impl Link {
    /// The inbound ring and the index of the word that the next record will make non-zero.
    pub fn watch(&self) -> Option<(&SharedMem, usize)> {
        self.inbound.as_ref().map(|i| (&i.ring, i.rx.offset() / 8))
    }

    /// Whether a record waits: one load.
    #[inline]
    pub fn ready(&self) -> bool {
        self.inbound.as_ref().is_some_and(|i| i.rx.ready())
    }

    /// The record at the head of the inbound ring, validated.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Header>, Corrupt> {
        let Some(inbound) = &mut self.inbound else { return Ok(None) };
        match inbound.rx.peek() {
            Peeked::Empty => Ok(None),
            Peeked::Corrupt => Err(Corrupt),
            Peeked::Record(words) => {
                let header = Header::parse(words, inbound.rx.consumed(), inbound.rx.contiguous()).map_err(|_| Corrupt)?;
                self.tx.ack(header.ack).map_err(|_| Corrupt)?;
                Ok(Some(header))
            }
        }
    }

    /// The record at the head, validated, if it is an inline message. `None`: [`peek`](Self::peek) tells what is there.
    #[inline]
    pub fn peek_inline(&mut self) -> Option<Header> {
        let rx = &self.inbound.as_ref()?.rx;
        let header = Header::parse_inline(rx.words(), rx.consumed(), rx.contiguous())?;
        self.tx.ack(header.ack).ok()?;
        Some(header)
    }

    /// The record at the head, validated, if it is an eager message. `None`: [`peek`](Self::peek) tells what is there. `waited`: its reader had nothing to do until it
    /// came; then the first lines of its payload are asked for.
    #[inline]
    pub fn peek_eager(&mut self, waited: bool) -> Option<Header> {
        let rx = &self.inbound.as_ref()?.rx;
        let header = Header::parse_eager(rx.words(), rx.consumed(), rx.contiguous())?;
        self.tx.ack(header.ack).ok()?;
        self.find_cell(&header).ok()?;
        if waited && let Some((memory, at)) = self.place(&header) {
            // Others would be taken from who writes them.
            memory.fetch(at, self.there(&header).min(AT_ONCE * LINE));
        }
        Some(header)
    }

    /// [`payload_to`](Self::payload_to) of an inline message.
    #[inline]
    pub fn inline_payload_to(&self, header: &Header, iov: &[UserSeg], max: usize) -> usize {
        let n = usize::from(header.len).min(max);
        match &self.inbound {
            Some(inbound) if n > 0 => inbound.ring.drain(inbound.rx.offset() + HEAD, iov, 0, n),
            _ => 0,
        }
    }

    /// Asks for the lines of the record at the head, `lines` long, behind the first one: they come while its message is matched. Worth it only for who has waited: else the
    /// processor has seen the records come in a row, and runs ahead by itself.
    #[inline(never)]
    pub fn fetch(&self, lines: u32) {
        if let Some(inbound) = &self.inbound {
            let lines = (lines as usize - 1).min(AT_ONCE);
            inbound.ring.fetch(inbound.rx.offset() + LINE, lines * LINE);
        }
    }

    pub(super) fn place(&self, header: &Header) -> Option<(&SharedMem, usize)> {
        if header.is_in_cell() {
            return self.place_in_cell();
        }
        self.inbound.as_ref().map(|i| (&i.ring, i.rx.offset() + header.payload_at()))
    }

    /// Body words of the record at the head.
    pub fn body(&self) -> [u64; 2] {
        self.inbound.as_ref().map_or([0; 2], |i| {
            let word = (i.rx.offset() + HEAD) / 8;
            [i.ring.word(word).load(Ordering::Relaxed), i.ring.word(word + 1).load(Ordering::Relaxed)]
        })
    }

    /// Copies the first words of the payload of the record at the head, which must begin on a word. Returns how many.
    pub fn payload_words(&self, header: &Header, words: &mut [u64]) -> usize {
        let n = (header.len as usize / 8).min(words.len());
        if let Some((ring, at)) = self.place(header) {
            for (i, word) in words[..n].iter_mut().enumerate() {
                *word = ring.word(at / 8 + i).load(Ordering::Relaxed);
            }
        }
        n
    }

    /// Whether the lines of so many bytes of payload are to be taken. Not those of a cell: its next writer is whoever has just read it, whose copies they are.
    #[inline]
    fn takes(&self, header: &Header, bytes: usize) -> bool {
        self.taking && bytes >= TAKEN && !header.is_in_cell()
    }

    /// Copies the payload of the record at the head to `iov` from `skip` on, at most `max` bytes. Returns the bytes placed.
    #[inline]
    pub fn payload_to(&self, header: &Header, iov: &[UserSeg], skip: usize, max: usize) -> usize {
        let n = (header.len as usize).min(max);
        if n == 0 {
            return 0;
        }
        let copied = self.inbound.as_ref().map_or(0, |i| i.copied).min(n);
        self.place(header).map_or(0, |(ring, at)| match self.takes(header, n) {
            true => ring.drain_taking(self.engine, at, iov, skip, n),
            false => {
                let (engine, mut done) = (self.reads_by(header, iov), copied);
                // Two stretches are the better the longer they are.
                if n - done > LONG_STEP && engine != Engine::Abreast && self.has_next(header) {
                    let half = (n - done) / 2;
                    done += ring.drain_by(engine, at + done, iov, skip + done, half);
                    self.fetch_next(header, half);
                }
                done + ring.drain_by(engine, at + done, iov, skip + done, n - done)
            }
        })
    }

    /// Whether another part of its message follows the record at the head.
    fn has_next(&self, header: &Header) -> bool {
        matches!(header.kind, Kind::Rts | Kind::Data) && header.is_in_cell()
    }

    /// Asks for the first line of the next record, if another part of the same message follows that at the head, whose last `bytes` are about to be copied: who copies so long
    /// waits for nothing else meanwhile. Not earlier, or it would be taken from who writes it.
    #[inline]
    pub(super) fn fetch_next(&self, header: &Header, bytes: usize) {
        if bytes >= STEP
            && self.has_next(header)
            && let Some(inbound) = &self.inbound
            && inbound.rx.contiguous() > header.lines()
        {
            inbound.ring.fetch(inbound.rx.offset() + header.lines() as usize * LINE, LINE);
        }
    }

    /// How payload of the record at the head is copied to `iov`.
    #[inline]
    pub(super) fn reads_by(&self, header: &Header, iov: &[UserSeg]) -> Engine {
        // The receive of a stream is as long as its message, mostly.
        let total = if header.kind == Kind::Eager { header.len.into() } else { total_len(iov) };
        let engine = self.engine.for_message(total);
        match header.is_in_cell() {
            true if self.goes_by_string(total) => Engine::Plain,
            true => engine,
            false => engine.for_ring(),
        }
    }

    /// Appends the payload of the record at the head to `out`.
    pub fn payload_append(&self, header: &Header, out: &mut Vec<u8>) {
        if let Some((ring, at)) = self.place(header) {
            let len = header.len as usize;
            ring.append_to(at, len, out);
            if self.takes(header, len) {
                ring.take(at, len);
            }
        }
    }

    /// Gives the record at the head, `lines` long, back to the writer; it learns of it from the next record we send or [`tell`](Self::tell).
    #[inline]
    pub fn consume(&mut self, lines: u32) {
        if let Some(inbound) = &mut self.inbound {
            inbound.rx.release(lines);
            inbound.copied = 0;
            if inbound.cell.is_some()
                && let (Some((cell, came)), Some(cells)) = (inbound.cell.take(), &mut self.cells)
            {
                cells.put(cell, came);
            }
            // Long records: let the writer go on while we copy the next one.
            if inbound.rx.consumed().wrapping_sub(self.told) >= self.tx.lines() / 8 {
                self.tell_sleeper();
            }
        }
    }

    /// Lines of the inbound ring consumed since the start (wrapping).
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.inbound.as_ref().map_or(0, |i| i.rx.consumed())
    }
}
