//! What leaves by a connection: a hello, then the lines of our ring as they are written, payload from where the application has it, and
//! the news of what we read.

pub(super) mod ring;

use super::Bulk;
use super::stream::Stream;
use super::zerocopy::{Way, ZeroCopy};
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::{UserIov, UserSeg, total_len, window};
use crate::shm::layout::LINE;
use crate::sys::tcp::{self, FLAT, MAX_PIECES, Piece};
use crate::sys::zerocopy;
use crate::wire::frame::{Body, FRAME_HEAD, Frame, PAYLOAD_MAX};
use ring::{Ring, Run};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Most pieces of application memory in one system call.
const SEGMENTS: usize = 32;

/// Bytes of records, and of payload, for which nothing waits any more.
pub const ENOUGH: [usize; 2] = [16 << 10, 256 << 10];
/// Bytes of payload after which no further one is put into a batch.
const BATCH: usize = 256 << 10;

/// Bytes that were lent to the other side after which it is asked to tell soon what it has read, though more follows.
const TELL: usize = 512 << 10;

/// Bytes of a batch with payload that is a little more than one packet inside of a host (65 483 bytes): there two halves leave, so that
/// the other side copies one while we copy the other, and not a packet and then a scrap.
const HALVED: RangeInclusive<usize> = 65_484..=96 << 10;

/// Where a part of a batch is. (Not [`Piece`], which borrows.)
enum Part {
    /// In the scratch memory for heads and hellos.
    Scratch(usize, usize),
    /// In the ring.
    Ring(usize, usize),
    /// The application's.
    User(UserSeg),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Scratch(_, len) | Part::Ring(_, len) => *len,
            Part::User(seg) => seg.len(),
        }
    }
}

/// What payload is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    /// The message.
    pub id: u32,
    /// One of several of a part.
    pub is_piece: bool,
}

/// Payload on its way.
struct Payload {
    name: Posted,
    iov: UserIov,
    sent: usize,
    total: usize,
    offset: u64,
    /// It may have to be elsewhere soon: nothing of it is lent.
    fickle: bool,
}

/// How far a lane is from its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Open,
    /// The goodbye is still to be said.
    Closing,
    Closed,
}

/// The outgoing half of a connection.
pub(super) struct Outgoing {
    ring: Option<Ring>,
    /// It carries pieces only, and no ring.
    lane: Option<Lane>,
    /// A word about lanes that is to be said.
    lanes: Option<(u32, u64)>,
    scratch: SharedMem,
    /// Frames that were lent to us and that we have read, and of how many of these the other side knows.
    read: u32,
    read_told: u32,
    /// Bytes that we lent since we last asked to hear soon.
    pub(super) untold: usize,
    batch: SmallVec<[Part; 8]>,
    /// Bytes of the batch that have left.
    left: usize,
    payloads: VecDeque<Payload>,
    /// Bytes of the first payloads in the batch.
    in_batch: SmallVec<[usize; 4]>,
    /// Bytes of payload that have not left.
    posted: usize,
    /// How the payload in the batch leaves, if that was considered: then it is one payload.
    way: Option<Way>,
    /// Whether the next payload leaves alone, if that was asked already: to ask counts.
    alone: Option<bool>,
    /// Which payload leaves without a copy, and what is on loan for that.
    pub zerocopy: ZeroCopy,
    /// Messages of which all has left, and nothing is on loan.
    pub done: VecDeque<u32>,
    /// Messages of which a piece has left, one for each.
    pub pieces: VecDeque<u32>,
    /// The socket took less than there was.
    pub blocked: bool,
}

/// Heads of one batch: one of records or news, the others of payload. A hello is sent before there are heads.
const HEADS: usize = 16;
/// Behind them the one that says what we have read, and the one of records behind a skip.
const READ_HEAD: usize = HEADS * FRAME_HEAD;
const SKIP_HEAD: usize = (HEADS + 1) * FRAME_HEAD;
const SCRATCH: usize = (HEADS + 2) * FRAME_HEAD;

impl Outgoing {
    pub fn new(zerocopy: ZeroCopy) -> Outgoing {
        Outgoing {
            ring: None,
            lane: None,
            lanes: None,
            scratch: SharedMem::new(Heap::new(SCRATCH)),
            read: 0,
            read_told: 0,
            untold: 0,
            batch: SmallVec::new(),
            left: 0,
            payloads: VecDeque::new(),
            in_batch: SmallVec::new(),
            posted: 0,
            way: None,
            alone: None,
            zerocopy,
            done: VecDeque::new(),
            pieces: VecDeque::new(),
            blocked: false,
        }
    }

    /// Puts bytes (a hello, a refusal) before everything else.
    pub fn say(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= SCRATCH && self.batch.is_empty());
        self.scratch.fill_bytes(0, bytes);
        self.batch.push(Part::Scratch(0, bytes.len()));
    }

    /// From now on what is written to `mine` leaves by this connection.
    pub fn carry(&mut self, mine: SharedMem) {
        self.ring = Some(Ring::new(mine));
    }

    /// Payload to be sent when its turn comes; `is_piece`: of a part that others send other pieces of.
    pub fn post(&mut self, bulk: Bulk<'_>, is_piece: bool) {
        let Bulk { id, iov, skip, len, .. } = bulk;
        self.posted += len;
        let iov = window(iov, skip, len);
        let name = Posted { id, is_piece };
        self.payloads.push_back(Payload { name, iov, sent: 0, total: len, offset: skip as u64, fickle: false });
    }

    /// The same for one of one piece, of which nothing is lent: it may be [relocated](Self::relocate).
    pub fn post_fickle(&mut self, bulk: Bulk<'_>) {
        self.post(bulk, false);
        self.payloads.iter_mut().next_back().into_iter().for_each(|payload| payload.fickle = true);
    }

    /// All of the memory of payload `id`, which is one piece, is `there` as well, and is read there from now on.
    pub fn relocate(&mut self, id: u32, there: UserSeg) {
        // Payloads stand in the batch in the order of the queue.
        let mut parts = self.batch.iter_mut().filter_map(|part| if let Part::User(seg) = part { Some(seg) } else { None });
        for (at, payload) in self.payloads.iter_mut().enumerate() {
            let in_batch = self.in_batch.get(at).copied().unwrap_or(0);
            let here = (payload.name == Posted { id, is_piece: false }).then_some(&mut payload.iov);
            let mut seen = 0;
            while seen < in_batch
                && let Some(seg) = parts.next()
            {
                if here.is_some() {
                    *seg = there.part(payload.sent + seen, seg.len());
                }
                seen += seg.len();
            }
            if let Some(iov) = here {
                *iov = UserIov::from(&[there][..]);
                return;
            }
        }
    }

    /// Bytes of payload that have not left.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// From now on pieces leave by this connection, and nothing else.
    pub fn become_lane(&mut self) {
        self.lane = Some(Lane::Open);
    }

    /// Nothing is posted any more: says goodbye when all has left.
    pub fn close_lane(&mut self) {
        self.lane = self.lane.map(|lane| if lane == Lane::Open { Lane::Closing } else { lane });
    }

    /// Says a word about lanes, once there is room.
    pub fn say_lanes(&mut self, count: u32, token: u64) {
        self.lanes = Some((count, token));
    }

    /// Whether there is something to be sent, news left aside.
    pub fn has_work(&self) -> bool {
        !self.batch.is_empty()
            || !self.payloads.is_empty()
            || self.read != self.read_told
            || self.lane == Some(Lane::Closing)
            || self.ring.as_ref().is_some_and(|r| r.next().0.lines > 0)
    }

    /// Whether there is so much that nothing is to be waited for.
    pub fn has_enough(&self) -> bool {
        self.posted >= ENOUGH[1] || self.ring.as_ref().is_some_and(|r| r.waiting() as usize * LINE >= ENOUGH[0])
    }

    /// Whether the other side is to be told at once of what we read: a quarter of the ring, or half of the window.
    #[inline]
    pub fn owes_much(&self) -> bool {
        self.ring.as_ref().is_some_and(|r| {
            let (consumed, credit) = r.now();
            consumed.wrapping_sub(r.told.0) >= r.count / 4 || credit - r.told.1 >= r.window / 2
        })
    }

    /// Whether it does not know something of what we read, and whether that was so at the last look already: mostly an answer tells it meanwhile.
    pub fn look_at_debts(&mut self) -> (bool, bool) {
        self.ring.as_mut().map_or((false, false), |r| {
            let old = r.seen.0.wrapping_sub(r.told.0) as i32 > 0 || r.seen.1 > r.told.1;
            r.seen = r.now();
            let read = self.read != self.read_told;
            (r.seen != r.told || read, old || read)
        })
    }

    /// So many frames that were lent to us have been read. Whether the other side does not know that.
    #[inline]
    pub fn owes_read(&mut self, frames: u32) -> bool {
        self.read = frames;
        self.read != self.read_told
    }

    /// The other side has read so many of the frames that were lent to it. Whether it was lent so many.
    pub fn returned(&mut self, frames: u32) -> bool {
        let mut free = VecDeque::new();
        let sound = self.zerocopy.returned(frames, &mut free);
        free.into_iter().for_each(|name| self.has_left(name));
        sound
    }

    /// The kernel may have said that it is through with what is on loan.
    #[inline]
    pub fn hear(&mut self, stream: &Stream) {
        if self.zerocopy.awaits_kernel() {
            self.hear_kernel(stream);
        }
    }

    #[cold]
    fn hear_kernel(&mut self, stream: &Stream) {
        let mut free = VecDeque::new();
        self.zerocopy.hear(stream.fd(), &mut free);
        free.into_iter().for_each(|name| self.has_left(name));
    }

    fn has_left(&mut self, name: Posted) {
        if name.is_piece { &mut self.pieces } else { &mut self.done }.push_back(name.id);
    }

    /// Sends what there is, as far as the socket takes it; `news`: also if that is only what we read.
    ///
    /// # Errors
    /// The connection is broken; `EBADMSG`: the other side said that it read what has not left.
    pub fn flush(&mut self, stream: &Stream, mut news: bool) -> Result<(), Errno> {
        self.blocked = false;
        if self.ring.as_ref().is_some_and(Ring::is_overrun) {
            return Err(Errno::BADMSG);
        }
        if self.send_records(stream)? {
            return Ok(());
        }
        // What waited since the last time says nothing of what was written meanwhile.
        let mut fresh = false;
        loop {
            if self.batch.is_empty() {
                self.fill_batch(stream, news);
                (news, fresh) = (false, true);
            }
            if self.batch.is_empty() {
                return Ok(());
            }
            match self.send(stream) {
                Ok(true) if fresh && self.is_done() => return Ok(()),
                Ok(true) => {}
                // Without memory for it the kernel has room later, too.
                Ok(false) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Records and nothing else, by one call for bytes at one place: in the ring, where the head is put before them, or, of few that have no place for it there, put together
    /// ([`FLAT`]). Whether that was all there was, or what is left of it waits for room.
    fn send_records(&mut self, stream: &Stream) -> Result<bool, Errno> {
        let only_records = self.batch.is_empty() && self.payloads.is_empty() && self.read == self.read_told;
        let (Some(ring), Some(fd), true) = (&mut self.ring, stream.plain(), only_records) else {
            return Ok(false);
        };
        let (run @ Run { skipped, lines, .. }, is_all) = ring.next();
        // Two frames leave by one call for a list.
        if lines == 0 || !is_all {
            return Ok(false);
        }
        let all = FRAME_HEAD + lines as usize * LINE;
        let (consumed, credit) = ring.now();
        let head = Frame { consumed, credit, body: Body::Records { position: ring.framed, skipped, lines } }.emit();
        let sent = match ring.headed(&head, run) {
            Some(at) => tcp::send_own(fd, &ring.lines, at, all),
            None if all > FLAT => return Ok(false),
            None => tcp::send_flat(fd, &head, &ring.lines, &ring.spans(run)),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => 0,
            Err(why) => return Err(why),
        };
        if sent == all {
            ring.told = (consumed, credit);
            ring.pass(run);
            return Ok(self.is_done());
        }
        // The same frame again, as a batch of which so much has left.
        self.fill_batch(stream, false);
        self.left = sent;
        self.blocked = true;
        Ok(true)
    }

    /// A batch that was just made has left: whether there is nothing for another one. All records that there are were in it.
    fn is_done(&self) -> bool {
        self.payloads.is_empty()
            && self.lanes.is_none()
            && self.lane != Some(Lane::Closing)
            && self.ring.as_ref().is_some_and(|ring| !ring.closes())
    }

    /// Sends the rest of the batch; whether that was all.
    fn send(&mut self, stream: &Stream) -> Result<bool, Errno> {
        let all = match self.way {
            None => self.send_copied(stream),
            Some(way) => self.send_considered(stream, way),
        }?;
        if all {
            self.batch.clear();
            self.left = 0;
            self.finish_payload();
        }
        Ok(all)
    }

    fn send_copied(&mut self, stream: &Stream) -> Result<bool, Errno> {
        let all = self.batch.iter().map(Part::len).sum();
        if self.left == 0 && stream.is_near() && HALVED.contains(&all) && !self.send_up_to(stream, all / 2)? {
            return Ok(false);
        }
        self.send_up_to(stream, all)
    }

    /// Sends the batch up to this byte. Whether the socket took all of that.
    fn send_up_to(&mut self, stream: &Stream, end: usize) -> Result<bool, Errno> {
        let sent = stream.send(&self.pieces(&self.batch, self.left, end - self.left))?;
        self.left += sent;
        Ok(self.left == end)
    }

    /// The same with one payload, by the way that it is to go, and with an eye on the time.
    fn send_considered(&mut self, stream: &Stream, way: Way) -> Result<bool, Errno> {
        let began = self.zerocopy.now();
        let all = if way == Way::Copied { self.send_copied(stream) } else { self.send_lent(stream, way) };
        self.zerocopy.spent_since(began);
        all
    }

    /// Sends what is ours, which is written again soon, by one call, and the application's memory by another, without a copy.
    fn send_lent(&mut self, stream: &Stream, way: Way) -> Result<bool, Errno> {
        let first = self.batch.iter().position(|part| matches!(part, Part::User(_))).unwrap_or(self.batch.len());
        let (ours, payload) = self.batch.split_at(first);
        let head: usize = ours.iter().map(Part::len).sum();
        if self.left < head {
            let sent = zerocopy::send_before(stream.fd(), &self.pieces(ours, self.left, head - self.left))?;
            self.left += sent;
            if self.left < head {
                return Ok(false);
            }
        }
        let users = payload.iter().filter_map(|part| if let Part::User(seg) = part { Some(*seg) } else { None });
        let users: SmallVec<[UserSeg; 8]> = users.collect();
        let all = head + total_len(&users);
        while self.left < all {
            let rest = window(&users, self.left - head, usize::MAX);
            let most = rest.first().map_or(0, |first| self.zerocopy.at_once(way, *first));
            let pieces: SmallVec<[Piece<'static>; 8]> = window(&rest, 0, most).iter().map(|seg| Piece::User(*seg)).collect();
            let wanted: usize = pieces.iter().map(Piece::len).sum();
            match self.zerocopy.lend(stream.fd(), way, &pieces) {
                Ok(sent) => {
                    self.left += sent;
                    if sent < wanted {
                        return Ok(false);
                    }
                }
                Err(why) if self.zerocopy.is_refusal(way, why) => {
                    // What that cost says nothing of any way.
                    self.way = None;
                    return self.send_copied(stream);
                }
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }

    /// What is left of some parts of the batch, `most` bytes of it.
    fn pieces<'a>(&'a self, parts: &'a [Part], mut skip: usize, mut most: usize) -> SmallVec<[Piece<'a>; 8]> {
        let mut pieces = SmallVec::new();
        for part in parts {
            let len = part.len();
            if skip >= len {
                skip -= len;
                continue;
            }
            let bytes = (len - skip).min(most);
            if bytes == 0 {
                break;
            }
            pieces.push(match part {
                Part::Scratch(at, _) => Piece::Own(&self.scratch, at + skip, bytes),
                Part::Ring(at, _) => match &self.ring {
                    Some(ring) => Piece::Own(&ring.lines, at + skip, bytes),
                    None => continue,
                },
                Part::User(seg) => Piece::User(seg.part(skip, bytes)),
            });
            (skip, most) = (0, most - bytes);
        }
        pieces
    }

    /// The payload in the batch has left.
    fn finish_payload(&mut self) {
        for len in std::mem::take(&mut self.in_batch) {
            self.posted -= len;
            if let Some(way) = self.way.take() {
                self.zerocopy.took(way, len);
            }
            if let Some(payload) = self.payloads.front_mut() {
                payload.sent += len;
                if payload.sent == payload.total {
                    let name = payload.name;
                    self.payloads.pop_front();
                    if self.zerocopy.is_free(name) {
                        self.has_left(name);
                    }
                }
            }
        }
    }

    /// The next frames: all records that are there, then payloads; a long one by itself.
    fn fill_batch(&mut self, stream: &Stream, news: bool) {
        let Some(ring) = &mut self.ring else { return self.fill_lane(stream) };
        let (consumed, credit) = ring.now();
        let closes = ring.closes();
        if self.read != self.read_told {
            let body = Body::Read { frames: self.read };
            self.scratch.fill_bytes(READ_HEAD, &Frame { consumed, credit, body }.emit());
            self.batch.push(Part::Scratch(READ_HEAD, FRAME_HEAD));
            ring.told = (consumed, credit);
            self.read_told = self.read;
        }
        let before = self.batch.len();
        // What is behind a skip, too: payload does not leave before its envelope.
        for at in [0, SKIP_HEAD] {
            let (run @ Run { skipped, lines, .. }, _) = ring.next();
            if lines == 0 {
                break;
            }
            let body = Body::Records { position: ring.framed, skipped, lines };
            self.scratch.fill_bytes(at, &Frame { consumed, credit, body }.emit());
            self.batch.push(Part::Scratch(at, FRAME_HEAD));
            let spans = ring.spans(run).into_iter().filter(|span| span.1 > 0);
            self.batch.extend(spans.map(|(at, len)| Part::Ring(at, len)));
            ring.pass(run);
        }
        let word = match self.batch.len() - before {
            1.. => None,
            _ if closes => Some(Body::Goodbye),
            _ if self.lanes.is_some() => self.lanes.take().map(|(count, token)| Body::Lanes { count, token }),
            _ if news && ring.told != (consumed, credit) => Some(Body::News),
            _ => None,
        };
        if let Some(body) = word {
            self.scratch.fill_bytes(0, &Frame { consumed, credit, body }.emit());
            self.batch.push(Part::Scratch(0, FRAME_HEAD));
            ring.said_goodbye |= body == Body::Goodbye;
        }
        if self.batch.len() > before {
            ring.told = (consumed, credit);
        }
        if self.batch_payload(stream, consumed, credit)
            && let Some(ring) = &mut self.ring
        {
            ring.told = (consumed, credit);
        }
    }

    /// The same for a lane.
    fn fill_lane(&mut self, stream: &Stream) {
        let Some(lane) = self.lane else { return };
        if !self.batch_payload(stream, 0, 0) && lane == Lane::Closing {
            self.scratch.fill_bytes(0, &Frame { consumed: 0, credit: 0, body: Body::Goodbye }.emit());
            self.batch.push(Part::Scratch(0, FRAME_HEAD));
            self.lane = Some(Lane::Closed);
        }
    }

    /// Puts payloads into the batch. Whether there are any.
    fn batch_payload(&mut self, stream: &Stream, consumed: u32, credit: u64) -> bool {
        let mut bytes = 0;
        let mut behind = self.payloads.len();
        for (payload, head) in self.payloads.iter().zip(1..HEADS) {
            behind -= 1;
            let len = (payload.total - payload.sent).min(PAYLOAD_MAX);
            let asked = self.alone.take();
            let alone = asked.unwrap_or_else(|| !payload.fickle && self.zerocopy.considers(len, behind > 0 || bytes > 0));
            if bytes > 0 && (alone || bytes + len > BATCH || self.batch.len() + payload.iov.len() >= MAX_PIECES) {
                self.alone = Some(alone);
                break;
            }
            let segments = window(&payload.iov, payload.sent, len);
            let segments = &segments[..segments.len().min(SEGMENTS)];
            let len: usize = segments.iter().map(UserSeg::len).sum();
            let (name, offset) = (payload.name, payload.offset + payload.sent as u64);
            let mut lent = false;
            if alone {
                let whole = |piece: &UserSeg| payload.iov.iter().find(|seg| seg.holds(piece)).copied();
                let piece = if let [piece] = segments { whole(piece).map(|whole| [*piece, whole]) } else { None };
                self.zerocopy.begin(stream, self.lane.is_some());
                let way = self.zerocopy.way(name, len, piece);
                (self.way, lent) = (way.map(|(way, _)| way), way.is_some_and(|(_, by_pages)| by_pages));
            }
            self.untold += if lent { len } else { 0 };
            // One word for many, if many follow one another: each takes both sides a system call. What is last asks for it, however it leaves.
            let last = behind == 0 && payload.sent + len == payload.total;
            let tell = self.untold >= TELL || self.untold > 0 && last;
            self.untold = if tell { 0 } else { self.untold };
            let body = Body::Payload { id: name.id, offset, len: len as u32, lent, tell };
            self.scratch.fill_bytes(head * FRAME_HEAD, &Frame { consumed, credit, body }.emit());
            self.batch.push(Part::Scratch(head * FRAME_HEAD, FRAME_HEAD));
            self.batch.extend(segments.iter().copied().map(Part::User));
            self.in_batch.push(len);
            bytes += len;
            if alone || payload.sent + len < payload.total {
                break;
            }
        }
        bytes > 0
    }
}
