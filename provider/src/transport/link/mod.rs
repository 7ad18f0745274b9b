//! A link: the two rings between this endpoint and one peer, with acknowledgements, credit and the bell.
//!
//! Protocols send and receive records through it and see neither lines nor memory. What the peer wrote is validated
//! here (positions, headers) before anybody acts on it; [`Corrupt`] means that this peer must be disconnected.
//! `head.rs` has what is done with a record that arrived, `cell.rs` payload in cells, `away.rs` what goes past the rings to another host, `copies.rs` what the two sides say of messages that they copy from buffer to buffer.

mod away;
mod cell;
#[cfg(test)]
mod cells_tests;
mod copies;
mod head;
mod invitations;

use crate::mem::atomic::{Ordering, Words, fence};
use crate::mem::engine::Engine;
use crate::mem::shared::SharedMem;
use crate::mem::user::{UserSeg, total_len};
use crate::shm::bell::Bell;
use crate::shm::cells::{Cell, Cells};
use crate::shm::layout::{CARD_FENCED, CLOSED, CONSUMED, CREDIT, LINE, OPEN, STATE, WRITTEN, ring_lines};
use crate::shm::ring::{Consumer, Producer};
use crate::shm::segment::{self, Parts};
use crate::shm::stance::{self, Stance};
use crate::sys::wake::Wake;
use crate::transport::InPlace;
use crate::wire::header::{HEAD, Header, Kind};
use crate::wire::hello::FIRST_CREDIT;
use cell::CELLED;

pub use cell::Announce;
use std::sync::Arc;

/// The peer wrote what no rustmx writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Why a record did not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// No room until the peer reads.
    Full,
    /// The peer's position made no sense.
    Corrupt,
}

/// How much room a record must leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// May take the last line: the peer waits for it.
    Control,
    /// A new message: leaves room for control records.
    Envelope,
    /// A fragment of a stream: leaves a quarter of the ring to the others.
    Fragment,
}

/// A record to be sent.
pub struct Draft<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Bits of `wire::header::flag`.
    pub flags: u8,
    /// Header word 1.
    pub tag: u64,
    /// Header word 2.
    pub data: u64,
    /// Body words of an RTS.
    pub body: [u64; 2],
    /// Where the payload is, if it is the application's.
    pub iov: &'a [UserSeg],
    /// Bytes of `iov` to leave out at its start.
    pub skip: usize,
    /// Payload bytes.
    pub len: usize,
    /// The payload, if it is ours; else empty.
    pub bytes: &'a [u8],
}

impl Draft<'_> {
    /// Its header, without acknowledgement.
    #[inline]
    fn header(&self) -> Header {
        Header { kind: self.kind, flags: self.flags, len: self.len as u16, ack: 0, tag: self.tag, data: self.data }
    }
}

struct Inbound {
    rx: Consumer<SharedMem>,
    ring: SharedMem,
    theirs: SharedMem,
    /// That of the record at the head, if its payload is in one, and of how many bytes that is.
    cell: Option<(Cell, u16)>,
    /// Bytes of the record at the head that have been copied to where they belong.
    copied: usize,
}

/// Payload in a cell that may be handed on is copied by `memcpy` from so many bytes on, whatever copies else: a string instruction there, which has it sooner.
const BY_STRING: usize = 10 << 10;
/// Lines that envelopes leave to control records.
const CONTROL_KEEP: u32 = 4;

/// Both directions of a connection. The inbound one may be missing until the peer's hello comes.
pub struct Link {
    tx: Producer<SharedMem>,
    ring: SharedMem,
    mine: SharedMem,
    inbound: Option<Inbound>,
    /// Ours, and both sides' once the peer's segment is here.
    own_cells: SharedMem,
    cells: Option<Cells>,
    bell: Option<(Bell<SharedMem>, u32)>,
    /// What the peer was told of our position, by a header or by the progress line.
    told: u32,
    /// Our position when the last record was published.
    answered: u32,
    /// Messages that were said to the peer, and that were heard from it.
    said: u64,
    heard: u64,
    credit_told: u64,
    spent: u64,
    limit: u64,
    window: u64,
    taken: u64,
    released: u64,
    /// What we tell the peer of how we notice its records.
    stance: Stance,
    /// What wakes the peer.
    waker: Option<Arc<dyn Wake>>,
    /// The nap of the peer for which it was woken last.
    woken: u64,
    /// What carries payload past the rings to another host, and from there.
    away: Option<Arc<dyn InPlace>>,
    home: Option<Arc<dyn InPlace>>,
    in_place: bool,
    /// It is to hear of what was read.
    pub(super) owes_room: bool,
    /// More follows at once: the record need not be carried by itself.
    quiet: bool,
    /// Most lines that are asked for ahead of the next record.
    most_ahead: u32,
    /// Lines that were read are taken.
    taking: bool,
    /// How long payload is copied into cells and out of them, and some of it out of rings.
    engine: Engine,
    announce: Announce,
    /// Longest payload whose lines are handed on.
    hand_on: usize,
}

/// Lines in which a ring goes round while short messages are answered: 20 KiB with the control lines. Measured: what is saved is memory, and no time is
/// lost (`docs/adr/0004-ring.md`).
const SHORT_LAP: u32 = ring_lines(20 << 10);

impl Link {
    /// A link that can send: `mine` is our fresh segment; the peer may leave `window` bytes unmatched here.
    pub fn new(mine: SharedMem, window: u64) -> Link {
        // Before a peer may have it.
        let Parts { ring, lines, cells } = segment::parts(&mine);
        mine.word(CREDIT).store(window, Ordering::Relaxed);
        let stance = Stance { hot: true, nap: 0 };
        stance.show(&mine);
        mine.word(STATE).store(OPEN, Ordering::Release);
        let mut tx = Producer::new(ring.clone(), lines);
        tx.set_short_laps(SHORT_LAP);
        Link {
            tx,
            ring,
            mine,
            inbound: None,
            own_cells: cells,
            cells: None,
            bell: None,
            told: 0,
            answered: 0,
            said: 0,
            heard: 0,
            credit_told: window,
            spent: 0,
            limit: u64::from(FIRST_CREDIT),
            window,
            taken: 0,
            released: 0,
            stance,
            waker: None,
            woken: 0,
            away: None,
            home: None,
            in_place: false,
            owes_room: false,
            quiet: false,
            most_ahead: 0,
            taking: false,
            engine: Engine::Plain,
            announce: Announce { min: usize::MAX, pieces: 1 },
            hand_on: 0,
        }
    }

    /// Passes the lines of payload of at most so many bytes on to the cache that all cores share, once they are published: on some processors their reader has
    /// them sooner from there (`docs/adr/0004-ring.md`, "Handed on"). None, if nobody says anything.
    pub fn handing_on(mut self, bytes: usize) -> Link {
        self.hand_on = bytes;
        self
    }

    /// Asks for so many lines at most ahead of the next record. None if nobody says anything.
    pub fn fetching_ahead(mut self, lines: u32) -> Link {
        self.most_ahead = lines;
        self
    }

    /// Takes the lines of long records in the ring that it reads for itself, where it may write to them: on some processors their writer gets them back sooner
    /// from a cache that has them alone (`docs/adr/0004-ring.md`, "Lines that the reader takes"). No, if nobody says anything.
    pub fn taking(mut self, yes: bool) -> Link {
        self.taking = yes;
        self
    }

    /// Copies long payload by `engine`. By `memcpy`, if nobody says anything.
    pub fn copying_by(mut self, engine: Engine) -> Link {
        self.engine = engine;
        self
    }

    /// Announces payload before it is there. Not, if nobody says anything.
    pub fn announcing(mut self, announce: Announce) -> Link {
        self.announce = announce;
        self
    }

    /// Adds the peer's segment: now the link can receive, too.
    pub fn attach(&mut self, theirs: SharedMem, bell: Option<(Bell<SharedMem>, u32)>) {
        // What the card says is read once.
        let Parts { ring, lines, cells } = segment::parts(&theirs);
        // Who has none cannot write to ours, and would keep what it is given.
        if !self.in_place && bell.is_some() && self.own_cells.bytes() > 0 && cells.bytes() > 0 {
            self.cells = Some(Cells::new(self.own_cells.clone(), cells));
        }
        self.taking &= ring.is_writable();
        self.inbound = Some(Inbound { rx: Consumer::new(ring.clone(), lines), ring, theirs, cell: None, copied: 0 });
        self.bell = bell;
    }

    /// Gives the peer's segment up: nothing more is received, whatever is in it.
    pub fn hear_no_more(&mut self) {
        (self.inbound, self.cells) = (None, None);
    }

    /// A link of an endpoint to itself: what it sends it receives.
    pub fn to_self(segment: SharedMem, window: u64) -> Link {
        let mut link = Link::new(segment.clone(), window);
        link.attach(segment, None);
        link
    }

    /// Whether the peer's segment is here.
    pub fn can_receive(&self) -> bool {
        self.inbound.is_some()
    }

    /// Most payload that one record of `kind` may carry on this link: a quarter of the ring.
    pub fn max_payload(&self, kind: Kind) -> usize {
        (self.tx.lines() as usize / 4 * LINE - Header::payload_offset(kind, usize::MAX)).min(usize::from(u16::MAX))
    }

    /// Position behind the last record sent.
    pub fn position(&self) -> u32 {
        self.tx.written()
    }

    /// Whether the peer has consumed everything up to `position`, as far as known.
    #[inline]
    pub fn reached(&self, position: u32) -> bool {
        // Positions in flight are within one ring of each other.
        self.tx.written().wrapping_sub(position) >= self.tx.written().wrapping_sub(self.tx.acked())
    }

    /// Whether the peer has consumed everything, as far as known.
    #[inline]
    pub fn all_consumed(&self) -> bool {
        self.tx.written() == self.tx.acked()
    }

    /// Reads the peer's progress line: a cache miss when the peer wrote it meanwhile.
    pub fn refresh(&mut self) -> Result<(), Corrupt> {
        let Some(inbound) = &self.inbound else { return Ok(()) };
        let consumed = inbound.theirs.word(CONSUMED).load(Ordering::Acquire); // A2
        self.limit = self.limit.max(inbound.theirs.word(CREDIT).load(Ordering::Relaxed));
        self.tx.ack(consumed as u32).map_err(|_| Corrupt)
    }

    /// Sends a record, or says why not. Returns the position behind it.
    #[inline]
    pub fn send(&mut self, draft: &Draft<'_>, class: Class) -> Result<u32, NotSent> {
        if draft.len >= CELLED
            && let Some(own) = self.cell_for(draft)
        {
            return self.send_by_cell(draft, class, own);
        }
        let payload = Header::payload_offset(draft.kind, draft.len);
        let need = (payload + draft.len).div_ceil(LINE) as u32;
        let offset = self.room_for(need, class)?;
        self.put_body(offset, draft);
        let at = offset + payload;
        if !draft.bytes.is_empty() {
            self.ring.fill_bytes(at, draft.bytes);
        } else if draft.len != 0 {
            self.ring.fill_by(Engine::Plain, at, draft.iov, draft.skip, draft.len);
        }
        let header = draft.header();
        Ok(if need > 1 { self.publish_lines(need, header, offset) } else { self.publish(need, header) })
    }

    /// [`publish`](Self::publish) of a record of several lines, at `offset` in the ring.
    #[inline(never)]
    fn publish_lines(&mut self, need: u32, header: Header, offset: usize) -> u32 {
        let len = usize::from(header.len);
        // What is longer is in a cell where answers are as long, and where it is not, many come in a row.
        let awaited = len < CELLED && self.is_awaited(len);
        let position = self.publish(need, header);
        if awaited {
            // The first one its reader has already: it looks at it all the time.
            self.ring.hand_on(offset + LINE, (need as usize - 1) * LINE);
        }
        self.claim_ahead(need);
        position
    }

    /// Whether the peer waits for the record that is to be published, as far as known, so that its payload is to be handed on: it has read all before it, and said something since. In a
    /// row of records that would cost far more than it gains.
    #[inline(always)]
    fn is_awaited(&self, len: usize) -> bool {
        len <= self.hand_on
            && self.all_consumed()
            && self.inbound.as_ref().is_some_and(|inbound| inbound.rx.consumed() != self.answered)
    }

    /// [`send`](Self::send) of an inline message: `len` bytes of the application's.
    #[inline]
    pub fn send_inline(&mut self, (flags, tag, data): (u8, u64, u64), iov: &[UserSeg], len: usize) -> Result<u32, NotSent> {
        let need = Header::inline_lines(len);
        let offset = self.room_for(need, Class::Envelope)?;
        if len != 0 {
            self.ring.fill(offset + HEAD, iov, 0, len);
        }
        let header = Header { kind: Kind::Inline, flags, len: len as u16, ack: 0, tag, data };
        Ok(if need > 1 { self.publish_lines(need, header, offset) } else { self.publish(need, header) })
    }

    /// How payload of a message that lies there is put into a record.
    #[inline]
    fn fills_by(&self, iov: &[UserSeg]) -> Engine {
        let total = total_len(iov);
        if self.goes_by_string(total) { Engine::Plain } else { self.engine.for_own().for_message(total) }
    }

    /// Whether a message of so many bytes is one that may be handed on, and so long that `memcpy` is the quickest way into a cell and out of it.
    #[inline]
    fn goes_by_string(&self, total: usize) -> bool {
        (BY_STRING..=self.hand_on).contains(&total)
    }

    /// The offset of `need` free lines.
    #[inline(always)]
    fn room_for(&mut self, need: u32, class: Class) -> Result<usize, NotSent> {
        let keep = match class {
            Class::Control => 0,
            Class::Envelope => CONTROL_KEEP,
            Class::Fragment => self.tx.lines() / 4,
        };
        match self.tx.reserve(need, keep) {
            Some(offset) => Ok(offset),
            None => self.reserve_after_refresh(need, keep),
        }
    }

    #[inline(always)]
    fn put_body(&self, offset: usize, draft: &Draft<'_>) {
        if draft.kind.body() != 0 {
            let body = (offset + HEAD) / 8;
            self.ring.word(body).store(draft.body[0], Ordering::Relaxed);
            self.ring.word(body + 1).store(draft.body[1], Ordering::Relaxed);
        }
    }

    /// The record is there, but for its header, whose acknowledgement is put in here. Returns the position behind it.
    #[inline(always)]
    fn publish(&mut self, lines: u32, header: Header) -> u32 {
        let ack = self.inbound.as_ref().map_or(0, |i| i.rx.consumed());
        (self.told, self.answered) = (ack, ack);
        self.said += u64::from(header.kind.is_message());
        let header = Header { ack, ..header };
        let position = self.tx.publish(lines, header.emit(self.tx.written()));
        match &self.inbound {
            Some(inbound) => {
                let word = stance::look(&inbound.theirs);
                if word != stance::POLLED {
                    self.announce(word);
                }
            }
            None => self.wake(),
        }
        position
    }

    /// The peer has read the lines ahead when the ring came round the last time, and its core still has them: writing to them takes as long as
    /// fetching them. They are asked for now, while the peer reads what was just written, for a next record that is as long as this one.
    #[inline(never)]
    fn claim_ahead(&mut self, lines: u32) {
        if !self.in_place {
            self.tx.clear_behind_next(lines);
            let (at, bytes) = self.tx.ahead(lines.min(self.most_ahead));
            self.ring.claim(at, bytes);
        }
    }

    #[cold]
    fn reserve_after_refresh(&mut self, need: u32, keep: u32) -> Result<usize, NotSent> {
        self.refresh().map_err(|Corrupt| NotSent::Corrupt)?;
        self.tx.reserve(need, keep).ok_or(NotSent::Full)
    }

    /// The peer does not look at this ring all the time: its bell, and a packet if it sleeps.
    #[cold]
    #[inline(never)]
    fn announce(&mut self, word: u64) {
        let Stance { hot, nap } = Stance::of(word);
        if let Some((bell, slot)) = &self.bell
            && !hot
        {
            bell.ring(*slot);
        }
        // To another host each record must be carried.
        if nap != 0 && (nap != self.woken || self.in_place) {
            self.woken = nap;
            self.wake();
        }
    }

    /// Wakes the peer. As long as its segment is not here we cannot see whether it sleeps, and wake it for each record. What carries records to another host is told how many
    /// there are, each time.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        if self.in_place {
            let word = u64::from(self.tx.written()) | u64::from(self.tx.skipped()) << 32;
            self.mine.word(WRITTEN).store(word, Ordering::Relaxed);
        }
        if let Some(waker) = &self.waker
            && !self.quiet
        {
            waker.wake();
        }
    }

    /// The peer may sleep because its ring is full: tells it of the room, and wakes it. One on another host is told when all records of this turn have been read
    /// ([`Link::tell_of_room`]): each word is a system call.
    #[cold]
    #[inline(never)]
    fn tell_sleeper(&mut self) {
        self.tell();
        if self.home.is_some() {
            self.owes_room = true;
            return;
        }
        let Some(inbound) = &self.inbound else { return };
        let word = stance::look(&inbound.theirs);
        if Stance::of(word).nap != 0 {
            self.announce(word);
        }
    }

    /// Our segment.
    pub fn mine(&self) -> &SharedMem {
        &self.mine
    }

    /// The peer is on another host: long messages go past the rings.
    pub fn far(mut self) -> Link {
        self.in_place = true;
        // The end of a lap has its price: a frame's head finds no place before the first line, and a skip of nearly all the ring is more than a quarter that was read,
        // of which the other side is told by a frame of its own.
        self.tx.set_short_laps(self.tx.lines());
        self
    }

    /// How the peer can be woken; `None` when it is gone.
    pub fn set_waker(&mut self, waker: Option<Arc<dyn Wake>>) {
        self.waker = waker;
    }

    /// Whether we are both ends of it.
    pub fn is_to_self(&self) -> bool {
        self.inbound.is_some() && self.bell.is_none()
    }

    /// Whether the peer is sure to wake us when we sleep: it takes part in the fences (`shm/stance.rs`). We
    /// ourselves need a waker, which is made before the first sleep.
    pub fn wakes_us(&self) -> bool {
        if self.is_to_self() {
            return self.waker.is_some();
        }
        self.inbound.as_ref().is_none_or(|i| i.theirs.word(CARD_FENCED).load(Ordering::Relaxed) == 1)
    }

    /// Takes `bytes` of the peer's window, or says that it is used up.
    pub fn spend(&mut self, bytes: usize) -> bool {
        if self.spent + bytes as u64 > self.limit && self.refresh().is_err() {
            return false;
        }
        if self.spent + bytes as u64 > self.limit {
            return false;
        }
        self.spent += bytes as u64;
        true
    }

    /// Gives back what [`spend`](Self::spend) took, when the record did not go out.
    pub fn unspend(&mut self, bytes: usize) {
        self.spent -= bytes as u64;
    }

    /// What is left of the peer's window.
    pub fn credit(&self) -> usize {
        usize::try_from(self.limit - self.spent).unwrap_or(usize::MAX)
    }

    /// Publishes our position and the peer's credit, if it does not know them yet.
    #[inline]
    pub fn tell(&mut self) {
        let Some(inbound) = &self.inbound else { return };
        let consumed = inbound.rx.consumed();
        if consumed != self.told {
            self.told = consumed;
            self.mine.word(CONSUMED).store(u64::from(consumed), Ordering::Release); // R2
        }
        if self.credit_told != self.window + self.released {
            self.credit_told = self.window + self.released;
            self.mine.word(CREDIT).store(self.credit_told, Ordering::Relaxed);
        }
    }

    /// Bytes that the peer may leave here without a receive.
    pub fn window(&self) -> usize {
        usize::try_from(self.window).unwrap_or(usize::MAX)
    }

    /// The peer used `bytes` of its window here. An error if it had no right to.
    pub fn take(&mut self, bytes: usize) -> Result<(), Corrupt> {
        self.taken += bytes as u64;
        if self.taken - self.released > self.window.max(u64::from(FIRST_CREDIT)) {
            return Err(Corrupt);
        }
        Ok(())
    }

    /// `bytes` that the peer used of its window reached their place.
    pub fn release(&mut self, bytes: usize) {
        self.released += bytes as u64;
        debug_assert!(self.released <= self.taken);
    }

    /// Tells the peer whether its ring is polled directly.
    pub fn set_hot(&mut self, hot: bool) {
        self.stance.hot = hot;
        self.stance.show(&self.mine);
    }

    /// Tells the peer that we sleep, and the number of this nap; 0: that we are awake.
    pub fn set_nap(&mut self, nap: u64) {
        self.stance.nap = nap;
        self.stance.show(&self.mine);
    }

    /// Tells the peer that nothing will follow.
    pub fn close(&self) {
        self.mine.word(STATE).store(CLOSED, Ordering::Release);
        // Before the application's next store to a buffer that it has back: `is_still_offered` of the peer.
        fence();
    }

    /// Whether the peer closed in good order.
    pub fn peer_closed(&self) -> bool {
        self.inbound.as_ref().is_some_and(|i| i.theirs.word(STATE).load(Ordering::Acquire) == CLOSED)
    }
}
