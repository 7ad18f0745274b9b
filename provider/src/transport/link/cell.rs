//! Payload that goes into a cell (`shm/cells.rs`): both sides of it. A long message is announced before it is there, and its reader copies behind its writer
//! (`docs/adr/0004-ring.md`, "Announced before it is written").

use super::head::AT_ONCE;
use super::{Class, Corrupt, Draft, Inbound, Link, NotSent};
use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::mem::user::{UserSeg, total_len};
use crate::shm::cells::{Cell, Own};
use crate::shm::layout::{CELL, LINE, LINE_WORDS};
use crate::types::INLINE_MAX;
use crate::wire::header::{Header, Kind, flag};

/// Payload of so many bytes goes into a cell, if there is one: what is too long for an inline message.
pub(super) const CELLED: usize = INLINE_MAX + 1;
/// The word of a record's first line that names its cell.
const CELL_NAME: usize = LINE_WORDS - 1;
/// The one that says how many bytes of the payload are in it.
const CELL_FILLED: usize = LINE_WORDS - 2;
/// Of a longer message only the first fragment is announced before it is in its cell: its reader falls behind, and what then comes as a whole is written sooner where nobody reads
/// beside.
pub(super) const EARLY_UP_TO: usize = 64 << 10;
/// After so many bytes at least the reader is told how many are there: some hundreds of instructions, so that it seldom waits, and the line seldom goes to and fro.
pub(super) const STEP: usize = 4 << 10;
/// After so many bytes of a later fragment of a stream the reader is told how many are there: it is still busy with those before.
pub(super) const LONG_STEP: usize = 16 << 10;

/// Looks at how much of a payload is there since the last line of it came, before the turn ends: half a microsecond or so. Its writer is at it, unless somebody took its core away.
const LOOKS: u32 = 32;

/// When payload is announced before it is in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    /// Of so many bytes in one record.
    pub min: usize,
    /// In at most so many pieces, after each of which the reader is told.
    pub pieces: usize,
}

/// Whether a record is announced before its payload is in its cell: one of a message of some length, out of the application's memory, if that is not [handed on](Link::handing_on).
pub(super) fn goes_early(draft: &Draft<'_>, announce: Announce, hand_on: usize) -> bool {
    let of_message = matches!(draft.kind, Kind::Eager | Kind::Rts | Kind::Data);
    let has_begun = draft.kind == Kind::Data && total_len(draft.iov) > EARLY_UP_TO;
    let is_handed_on = draft.kind == Kind::Eager && draft.len <= hand_on;
    of_message && !has_begun && !is_handed_on && draft.len >= announce.min && draft.bytes.is_empty()
}

impl Link {
    /// [`send`](Self::send) of a message in one piece that is one record.
    #[inline]
    pub fn send_eager(&mut self, (flags, tag, data): (u8, u64, u64), piece: &UserSeg) -> Result<u32, NotSent> {
        let (iov, len) = (std::slice::from_ref(piece), piece.len());
        if (CELLED..=CELL).contains(&len)
            && (len < self.announce.min || len <= self.hand_on)
            && let Some(own) = self.cells.as_mut().and_then(|cells| cells.take(len))
        {
            let engine = self.fills_by(iov);
            let (memory, at, offset) = self.line_for(own, Class::Envelope)?;
            memory.fill_by(engine, at, iov, 0, len);
            self.name_cell(offset, own.cell, len);
            let flags = flags | flag::IN_CELL;
            let awaited = self.is_awaited(len);
            let position = self.publish(1, Header { kind: Kind::Eager, flags, len: len as u16, ack: 0, tag, data });
            if awaited {
                self.hand_on_cell(own.cell, len);
            }
            return Ok(position);
        }
        self.send(&Draft { kind: Kind::Eager, flags, tag, data, body: [0; 2], iov, skip: 0, len, bytes: &[] }, Class::Envelope)
    }

    /// A free line for a record with this cell: where the cell is, and the offset of the line. Without one the cell stays ours.
    #[inline]
    fn line_for(&mut self, own: Own, class: Class) -> Result<(&SharedMem, usize, usize), NotSent> {
        let room = self.room_for(1, class);
        let Some(cells) = &mut self.cells else { return Err(NotSent::Full) };
        match room {
            Ok(offset) => {
                let (memory, at) = cells.place(own.cell);
                Ok((memory, at, offset))
            }
            Err(why) => {
                cells.keep(own);
                Err(why)
            }
        }
    }

    /// The record at `offset` says where its payload is, and how much of it is there.
    #[inline]
    fn name_cell(&self, offset: usize, cell: Cell, filled: usize) {
        self.ring.word(offset / 8 + CELL_NAME).store(cell.name(), Ordering::Relaxed);
        self.ring.word(offset / 8 + CELL_FILLED).store(filled as u64, Ordering::Relaxed);
    }

    /// A cell for the payload of a record, if there is one and it may go there.
    #[inline(never)]
    pub(super) fn cell_for(&mut self, draft: &Draft<'_>) -> Option<Own> {
        let cells = self.cells.as_mut()?;
        if draft.kind.may_be_in_cell() && draft.len <= CELL { cells.take(draft.len) } else { None }
    }

    /// Sends a record of one line, whose last word names the cell in which the payload is. A long message is announced first: while its payload goes into the cell
    /// the line is on its way, the receiver finds out where it belongs, and copies what is there.
    #[inline(never)]
    pub(super) fn send_by_cell(&mut self, draft: &Draft<'_>, class: Class, own: Own) -> Result<u32, NotSent> {
        let (engine, early) = (self.fills_by(draft.iov), goes_early(draft, self.announce, self.hand_on));
        let (memory, at, offset) = self.line_for(own, class)?;
        match draft.bytes {
            _ if early => {}
            [] => memory.fill_by(engine, at, draft.iov, draft.skip, draft.len),
            bytes => memory.fill_bytes(at, bytes),
        }
        let filled = if early { 0 } else { draft.len };
        self.put_body(offset, draft);
        self.name_cell(offset, own.cell, filled);
        let header = draft.header();
        let awaited = !early && self.is_awaited(draft.len);
        let position = self.publish(1, Header { flags: header.flags | flag::IN_CELL, ..header });
        if early {
            self.fill_behind(offset, own.cell, draft);
        } else if awaited {
            self.hand_on_cell(own.cell, draft.len);
        }
        Ok(position)
    }

    /// Hands on the payload in a cell, which was published.
    #[inline]
    fn hand_on_cell(&self, cell: Cell, len: usize) {
        if let Some((memory, at)) = self.cells.as_ref().map(|cells| cells.place(cell)) {
            memory.hand_on(at, len);
        }
    }

    /// Puts payload into the cell of a record that has been announced.
    fn fill_behind(&self, offset: usize, cell: Cell, draft: &Draft<'_>) {
        let Some((memory, at)) = self.cells.as_ref().map(|cells| cells.place(cell)) else { return };
        let most = if draft.kind == Kind::Data {
            LONG_STEP
        } else {
            STEP.max(draft.len.div_ceil(self.announce.pieces).next_multiple_of(LINE))
        };
        let mut filled = 0;
        while filled < draft.len {
            let step = most.min(draft.len - filled);
            memory.fill_by(self.fills_by(draft.iov), at + filled, draft.iov, draft.skip + filled, step);
            filled += step;
            self.ring.word(offset / 8 + CELL_FILLED).store(filled as u64, Ordering::Release);
        }
    }

    /// Asks for the first lines of the cell of the record at the head, if its payload is in one: before anything else is done with it, for they take as long to come as the record
    /// did. Worth it only for who has waited. What the record says is checked for that only, and again when it is taken.
    #[inline(never)]
    pub fn foresee(&self) {
        let (Some(inbound), Some(cells)) = (&self.inbound, &self.cells) else { return };
        let rx = &inbound.rx;
        let Ok(header) = Header::parse(rx.words(), rx.consumed(), rx.contiguous()) else { return };
        if header.is_in_cell()
            && usize::from(header.len) <= CELL
            && let Ok(cell) = cells.hear(self.name_of_cell(inbound))
        {
            let (memory, at) = cells.place(cell);
            // Others would be taken from who writes them.
            memory.fetch(at, self.there(&header).min(AT_ONCE * LINE));
        }
    }

    fn name_of_cell(&self, inbound: &Inbound) -> u64 {
        inbound.ring.word(inbound.rx.offset() / 8 + CELL_NAME).load(Ordering::Relaxed)
    }

    /// Finds the cell of the record at the head, if its payload is in one.
    #[inline]
    pub fn find_cell(&mut self, header: &Header) -> Result<(), Corrupt> {
        if header.is_in_cell() { self.hear_of_cell(header.len) } else { Ok(()) }
    }

    #[inline(never)]
    fn hear_of_cell(&mut self, bytes: u16) -> Result<(), Corrupt> {
        let (Some(inbound), Some(cells)) = (&self.inbound, &self.cells) else { return Err(Corrupt) };
        if usize::from(bytes) > CELL {
            return Err(Corrupt);
        }
        let cell = cells.hear(self.name_of_cell(inbound)).map_err(|_| Corrupt)?;
        if let Some(inbound) = &mut self.inbound {
            inbound.cell = Some((cell, bytes));
        }
        Ok(())
    }

    /// Payload bytes of the record at the head that are there.
    #[inline]
    pub(super) fn there(&self, header: &Header) -> usize {
        let len = usize::from(header.len);
        match &self.inbound {
            Some(inbound) if header.is_in_cell() => {
                let said = inbound.ring.word(inbound.rx.offset() / 8 + CELL_FILLED).load(Ordering::Acquire);
                usize::try_from(said).map_or(len, |said| said.min(len))
            }
            _ => len,
        }
    }

    /// Whether all payload of the record at the head is there.
    #[inline]
    pub fn is_all_there(&self, header: &Header) -> bool {
        !header.is_in_cell() || self.there(header) == usize::from(header.len)
    }

    /// Copies what comes of the payload of the record at the head to `iov` from `skip` on, at most `max` bytes of it, as long as it comes. Returns whether all of it is there: then
    /// [`payload_to`](Self::payload_to) the same place copies no more than what is missing, and tells how many bytes were placed.
    pub fn follow(&mut self, header: &Header, iov: &[UserSeg], skip: usize, max: usize) -> bool {
        let (mut looks, engine) = (0, self.reads_by(header, iov));
        loop {
            let (there, copied) = (self.there(header), self.inbound.as_ref().map_or(0, |i| i.copied));
            if there > copied {
                if there == usize::from(header.len) {
                    self.fetch_next(header, there - copied);
                }
                if let Some((memory, at)) = self.place(header) {
                    memory.drain_by(engine, at + copied, iov, skip + copied, there.min(max).saturating_sub(copied));
                }
                if let Some(inbound) = &mut self.inbound {
                    inbound.copied = there;
                }
                // Who writes byte by byte does not hold the turn.
                if there - copied >= LINE {
                    looks = 0;
                }
            }
            if there == usize::from(header.len) {
                return true;
            }
            if looks == LOOKS {
                return false;
            }
            looks += 1;
            core::hint::spin_loop();
        }
    }

    #[inline(never)]
    pub(super) fn place_in_cell(&self) -> Option<(&SharedMem, usize)> {
        Some(self.cells.as_ref()?.place(self.inbound.as_ref()?.cell?.0))
    }
}
