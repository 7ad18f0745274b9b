//! One-sided operations that the target's engine carries out: puts and gets where the kernel lets nobody reach into the other's
//! memory, and all atomics, so that there is one executor per region.
//!
//! ```text
//! initiator                              target
//!   PUT  [key, addr | bytes] …  LAST ─▶   check each, copy in            ─▶ ANSWER [status]
//!   GET  [key, addr, bytes]          ─▶   check, send in fragments       ─▶ ANSWER [bytes] … LAST
//!   ATOMIC [key, addr | operands]    ─▶   check, execute                 ─▶ ANSWER [status | old values]
//!   EVENT [data]                     ─▶   (a direct transfer is done; nothing is answered)
//! ```
//! * Between hosts the bytes of long puts and gets go past the ring (`parts.rs`).
//! * Records of one initiator are carried out in the order of its calls, which is what the orderings promise (`FI_ORDER_RAW`, `WAR`, `WAW`). Bytes that are owed
//!   for a get, and that a later operation is about to change, are copied before (`owed.rs`).
//! * The target keeps nothing of an operation but the answers that it owes, and which parts of it are coming; an initiator has at most [`MAX_OPEN`] operations
//!   unanswered, so their number is bounded. So is what it keeps of memory that is overwritten before it was sent.
//! * The last record of a failed put is answered with the first failure; its event does not happen.
//!
//! States of an operation. Queued → open (its last record is in the ring) → answered.

mod owed;
mod parts;

use super::bare;
use crate::error::Error;
use crate::mem::user::{UserIov, UserSeg, window};
use crate::region::{Regions, execute};
use crate::request::{Finished, Payload, SendReq, Task, Touched};
use crate::transport::link::{Class, Corrupt, Draft, Link, NotSent};
use crate::types::{Access, AtomicForm, RemoteSeg};
use crate::wire::header::{Header, Kind, Place, flag};
use crate::wire::order::{Ending, Order};
use owed::{Debts, Owed};
pub use parts::SHORT;
use parts::{Coming, Parts, part_of};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Operations that wait for their answer, per link.
pub const MAX_OPEN: usize = 256;
/// Operations that wait for room, per link, before the caller must wait.
pub const MAX_QUEUED: usize = 1024;
/// Records that one peer gets in a turn: with a part each, to one that keeps up, these are 64 MiB, for which others wait.
const TURN: usize = 64;
/// Pieces of remote memory that one operation may name.
pub const MAX_PLACES: usize = 16;

struct Job {
    id: u32,
    task: Task,
    places: SmallVec<[RemoteSeg; 1]>,
    /// The piece that is to be sent next, and what of it is in the ring.
    piece: usize,
    sent: usize,
    /// Bytes of the pieces before.
    before: usize,
}

struct Open {
    req: SendReq,
    to: UserIov,
    /// First byte of each piece in `to`, and the total at the end.
    starts: SmallVec<[usize; 2]>,
    /// Answers that are still to come.
    left: usize,
    /// Parts that are on their way past the ring.
    parts: usize,
    failed: Option<Error>,
}

/// What touched our memory, with the last record of an operation.
type Served = Option<Touched>;

/// Whether a record is of an operation's last piece: an operation counts once, however many it has.
fn is_last(header: &Header) -> bool {
    header.flags & flag::LAST != 0
}

/// One-sided operations of one link, both directions.
#[derive(Default)]
pub struct OneSided {
    queue: VecDeque<Job>,
    open: FxHashMap<u32, Open>,
    next_id: u32,
    debts: Debts,
    parts: Parts,
    /// The peer's put that failed, until its last record.
    failed_put: Option<(u32, Error)>,
}

/// A record about memory; its payload is still to be filled in.
fn record(kind: Kind, key: u64, data: u64, place: Place) -> Draft<'static> {
    Draft { body: place.emit(), ..bare(kind, key, data) }
}

impl Job {
    fn place(&self, addr: u64) -> Place {
        let extra = match self.task {
            Task::Put(..) | Task::Event(..) => Place::extra_of(self.places.iter().map(|p| p.len).sum()),
            Task::Get(_) | Task::Atomic(..) => [self.piece as u16, 0],
        };
        Place { addr, id: self.id, extra }
    }

    /// Sends the next record. Whether it was the last, and how many parts it has set on their way.
    fn step(&mut self, link: &mut Link, parts: &mut Parts, fragment: usize) -> Result<(bool, usize), NotSent> {
        let place = self.places.get(self.piece).copied().unwrap_or(RemoteSeg { addr: 0, len: 0, key: 0 });
        let last_piece = self.piece + 1 >= self.places.len();
        let last_piece_flag = if last_piece { flag::LAST } else { 0 };
        let left = place.len - self.sent;
        let at = self.place(place.addr.wrapping_add(self.sent as u64));
        let (mut moved, mut under_way) = (left, 0);
        match &self.task {
            Task::Put(payload, data) => {
                let part = part_of(link, left, self.sent).filter(|_| matches!(payload, Payload::Lent(_)));
                if part.is_none() && !parts.have_left() {
                    return Err(NotSent::Full);
                }
                moved = part.unwrap_or(left.min(fragment).min(link.max_payload(Kind::Put)));
                let last = last_piece && moved == left;
                let flags = if last { flag::LAST } else { 0 } | if last && data.is_some() { flag::CQ_DATA } else { 0 };
                let draft = Draft { flags, len: moved, ..record(Kind::Put, place.key, data.unwrap_or(0), at) };
                let from = self.before + self.sent;
                match payload {
                    Payload::Lent(iov) if part.is_some() => {
                        under_way = usize::from(!parts.put(link, self.id, &draft, (iov, from, moved))?);
                    }
                    Payload::Lent(iov) => drop(link.send(&Draft { iov, skip: from, ..draft }, Class::Fragment)?),
                    Payload::Own(bytes) => {
                        link.send(&Draft { bytes: &bytes[from..from + moved], ..draft }, Class::Envelope)?;
                    }
                }
            }
            _ if !parts.have_left() => return Err(NotSent::Full),
            Task::Get(_) => {
                let draft = record(Kind::Get, place.key, place.len as u64, at);
                link.send(&Draft { flags: last_piece_flag, ..draft }, Class::Envelope)?;
            }
            Task::Atomic(order, operands, comparands, _) => {
                let part = |of: &[u8]| of.get(self.before..self.before + place.len).unwrap_or(&[]).to_vec();
                let mut bytes = part(operands);
                bytes.extend(part(comparands));
                let draft = record(Kind::Atomic, place.key, order.emit(place.len), at);
                link.send(&Draft { flags: last_piece_flag, len: bytes.len(), bytes: &bytes, ..draft }, Class::Envelope)?;
            }
            Task::Event(write, data) => {
                let flags = flag::LAST | if data.is_some() { flag::CQ_DATA } else { 0 } | if *write { 0 } else { flag::READ };
                // As what the target's engine does is told: once, of the region of the last piece.
                let key = self.places.last().map_or(place.key, |last| last.key);
                link.send(&Draft { flags, ..record(Kind::Event, key, data.unwrap_or(0), at) }, Class::Envelope)?;
                return Ok((true, 0));
            }
        }
        self.sent += moved;
        if self.sent == place.len {
            self.before += place.len;
            (self.piece, self.sent) = (self.piece + 1, 0);
            return Ok((last_piece, under_way));
        }
        Ok((false, under_way))
    }
}

impl OneSided {
    /// Whether [`push`](Self::push) would have something to do if there were room.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.debts.is_empty() || !self.queue.is_empty()
    }

    /// Whether operations of ours are not complete.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.open.is_empty()
    }

    /// Whether something of ours has not reached the peer.
    pub fn sending(&self) -> bool {
        !self.queue.is_empty() || !self.debts.is_empty() || self.parts.are_leaving()
    }

    /// Whether the caller must wait before it starts another operation.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Operations that may still be queued.
    pub fn room(&self) -> usize {
        MAX_QUEUED.saturating_sub(self.queue.len())
    }

    /// Queues an operation. An event has no `req` that waits.
    pub fn start(&mut self, task: Task, places: &[RemoteSeg], req: SendReq) {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let mut starts: SmallVec<[usize; 2]> = SmallVec::new();
        let mut end = 0;
        for place in places {
            starts.push(end);
            end += place.len;
        }
        starts.push(end);
        let to = |iov: &UserIov| UserIov::from(&**iov);
        let (to, left) = match &task {
            Task::Put(payload, _) => {
                debug_assert_eq!(payload.len(), end);
                (UserIov::from(&[][..]), 1)
            }
            Task::Get(iov) | Task::Atomic(_, _, _, iov) => (to(iov), places.len().max(1)),
            Task::Event(..) => (UserIov::from(&[][..]), 0),
        };
        if left > 0 {
            self.open.insert(id, Open { req, to, starts, left, parts: 0, failed: None });
        }
        self.queue.push_back(Job { id, task, places: places.into(), piece: 0, sent: 0, before: 0 });
    }

    /// Writes as many answers and records as there is room for. Returns how many.
    pub fn push(&mut self, link: &mut Link, regions: &Regions, fragment: usize) -> Result<usize, Corrupt> {
        let mut records = 0;
        let stop = |e, records| if e == NotSent::Full { Ok(records) } else { Err(Corrupt) };
        while self.debts.may_be_paid(&self.parts) {
            if let Err(e) = self.debts.pay(link, regions, &mut self.parts, fragment) {
                return stop(e, records);
            }
            records += 1;
            if records > TURN {
                return Ok(records);
            }
        }
        loop {
            let waiting = self.queue.len();
            let Some(job) = self.queue.front_mut() else { break };
            // What is in the queue is open, too.
            if self.open.len().saturating_sub(waiting) > MAX_OPEN || records > TURN {
                break;
            }
            let id = job.id;
            match job.step(link, &mut self.parts, fragment) {
                Ok((last, under_way)) => {
                    if let Some(open) = self.open.get_mut(&id) {
                        open.parts += under_way;
                    }
                    if last {
                        self.queue.pop_front();
                    }
                }
                Err(e) => return stop(e, records),
            }
            records += 1;
        }
        Ok(records)
    }

    /// Target: a PUT is at the head of the ring.
    pub fn on_put(&mut self, link: &Link, header: &Header, regions: &Regions) -> Result<Served, Corrupt> {
        let place = Place::parse(link.body());
        self.may_owe()?;
        let part = self.parts.announced(link, header)?;
        if part.is_none() {
            // Its sender knows that all parts before it have left, and they are read in that order.
            self.parts.settle(regions);
        }
        let len = part.map_or(header.len as usize, |part| part.len as usize);
        let reached = regions.reach(header.tag, place.addr, len, Access::REMOTE_WRITE);
        if let Ok(seg) = reached {
            self.keep(link, regions, header.tag, seg);
        }
        let last = header.flags & flag::LAST != 0;
        let data = (last && header.flags & flag::CQ_DATA != 0).then_some(header.data);
        let touched = Touched { write: true, fetch: false, len: place.total(), key: header.tag, data };
        let failed_before = self.failed_put.filter(|(id, _)| *id == place.id).map(|(_, why)| why);
        if let Some(part) = part {
            self.parts.begin(place.id, failed_before.or(reached.err()))?;
            if last {
                self.failed_put = None;
                self.parts.closes(place.id, touched, None);
            }
            if regions.is_everything(header.tag) || self.parts.are_held() {
                let held = self.parts.hold(link, regions, part, (place.id, header.tag, place.addr))?;
                return Ok(held.and_then(|mut held| self.part_ends(place.id, held.write(regions))));
            }
            let to = reached.as_ref().map_or(&[][..], std::slice::from_ref);
            regions.lend(header.tag);
            let there = self.parts.expect(link, part, to, Coming::Put(place.id, header.tag))?;
            return Ok(if there { self.part_ends(place.id, Ok(())) } else { None });
        }
        let wrote = reached.and_then(|seg| {
            if regions.is_everything(header.tag) {
                let mut bytes = Vec::new();
                link.payload_append(header, &mut bytes);
                return regions.write_anywhere(seg, &bytes);
            }
            link.payload_to(header, &[seg], 0, len);
            Ok(())
        });
        let outcome = failed_before.map_or(wrote, Err);
        if !last {
            self.failed_put = outcome.err().map(|why| (place.id, why));
            return Ok(None);
        }
        self.failed_put = None;
        if self.parts.closes(place.id, touched, outcome.err()) {
            return Ok(self.put_ends(place.id));
        }
        self.debts.owe(place.id, 0, Owed::Outcome(outcome));
        Ok(outcome.ok().map(|()| touched))
    }

    /// This memory is about to be written by the peer: what it has asked for before, and is still to get, is as it was then.
    #[inline]
    fn keep(&mut self, link: &Link, regions: &Regions, key: u64, written: UserSeg) {
        self.debts.keep(regions, key, written);
        if self.parts.are_leaving() {
            self.parts.keep(link, |_, seg| seg.touches(&written));
        }
    }

    /// A part of a peer's put has come, and is where it belongs, or why not.
    fn part_ends(&mut self, id: u32, outcome: Result<(), Error>) -> Served {
        self.parts.ends_one(id, outcome);
        self.put_ends(id)
    }

    /// Answers a put of parts if it is over.
    fn put_ends(&mut self, id: u32) -> Served {
        let (touched, outcome) = self.parts.outcome(id)?;
        self.debts.owe(id, 0, Owed::Outcome(outcome));
        outcome.ok().map(|()| touched)
    }

    /// Target: a GET is at the head of the ring.
    pub fn on_get(&mut self, link: &Link, header: &Header, regions: &Regions) -> Result<Served, Corrupt> {
        let place = Place::parse(link.body());
        self.may_owe()?;
        self.parts.settle(regions);
        let key = header.tag;
        let reached = usize::try_from(header.data)
            .map_err(|_| Error::OutOfBounds)
            .and_then(|len| regions.reach(key, place.addr, len, Access::REMOTE_READ));
        let (what, served) = match reached {
            Ok(seg) => (
                Owed::Bytes { key, addr: place.addr, len: seg.len(), sent: 0 },
                is_last(header).then_some(Touched { write: false, fetch: true, len: seg.len(), key, data: None }),
            ),
            Err(why) => (Owed::Outcome(Err(why)), None),
        };
        self.debts.owe(place.id, place.extra[0], what);
        Ok(served)
    }

    /// Target: an ATOMIC is at the head of the ring.
    pub fn on_atomic(&mut self, link: &Link, header: &Header, regions: &Regions) -> Result<Served, Corrupt> {
        let place = Place::parse(link.body());
        self.may_owe()?;
        let (order, bytes) = Order::parse(header.data).ok_or(Corrupt)?;
        let mut given = Vec::new();
        link.payload_append(header, &mut given);
        let operands = if order.has_operands() { bytes } else { 0 };
        let comparands = if order.form == AtomicForm::Compare { bytes } else { 0 };
        if given.len() != operands + comparands {
            return Err(Corrupt);
        }
        let (operands, comparands) = given.split_at(operands);
        self.parts.settle(regions);
        let key = header.tag;
        let done = regions.reach(key, place.addr, bytes, order.access()).and_then(|seg| {
            if order.has_operands() {
                self.keep(link, regions, key, seg);
            }
            let old = regions.read_out(key, seg)?;
            let mut new = old.clone();
            execute::execute(order.op, order.kind, &mut new, operands, comparands);
            if order.has_operands() {
                regions.write_in(key, seg, &new)?;
            }
            Ok(old)
        });
        let (write, fetch) = (order.has_operands(), order.form != AtomicForm::Base);
        let served = (done.is_ok() && is_last(header)).then_some(Touched { write, fetch, len: bytes, key, data: None });
        let what = match done {
            Ok(old) if order.form != AtomicForm::Base => Owed::Values(old),
            other => Owed::Outcome(other.map(drop)),
        };
        self.debts.owe(place.id, place.extra[0], what);
        Ok(served)
    }

    /// Target: an EVENT is at the head of the ring.
    pub fn on_event(link: &Link, header: &Header) -> Touched {
        let place = Place::parse(link.body());
        let data = (header.flags & flag::CQ_DATA != 0).then_some(header.data);
        let fetch = header.flags & flag::READ != 0;
        Touched { write: !fetch, fetch, len: place.total(), key: header.tag, data }
    }

    /// Initiator: an ANSWER is at the head of the ring.
    pub fn on_answer(&mut self, link: &Link, header: &Header) -> Result<Option<Finished>, Corrupt> {
        let Ending { id, piece, outcome } = Ending::parse(header.tag).ok_or(Corrupt)?;
        let part = self.parts.announced(link, header)?;
        let (piece, open) = (usize::from(piece), self.open.get_mut(&id).ok_or(Corrupt)?);
        if let Err(why) = outcome {
            open.failed.get_or_insert(why);
        }
        if header.len > 0 {
            let (Some(&start), Some(&end)) = (open.starts.get(piece), open.starts.get(piece + 1)) else { return Err(Corrupt) };
            let offset = usize::try_from(header.data).map_err(|_| Corrupt)?;
            let room = (end - start).checked_sub(offset).ok_or(Corrupt)?;
            let len = part.map_or(header.len as usize, |part| part.len as usize);
            if len > room {
                return Err(Corrupt);
            }
            match part {
                Some(part) => {
                    let to = window(&open.to, start + offset, len);
                    open.parts += usize::from(!self.parts.expect(link, part, &to, Coming::Answer(id))?);
                }
                None => drop(link.payload_to(header, &open.to, start + offset, room)),
            }
        }
        if header.flags & flag::LAST == 0 {
            return Ok(None);
        }
        open.left = open.left.checked_sub(1).ok_or(Corrupt)?;
        // Numbers follow each other: what is not all in the ring yet cannot have been carried out, and its buffer is still needed.
        if open.left == 0 && self.queue.front().is_some_and(|job| id.wrapping_sub(job.id) < 1 << 31) {
            return Err(Corrupt);
        }
        Ok(self.end_if_whole(id))
    }

    /// An operation of ours is over once it was answered and nothing of it is on its way.
    fn end_if_whole(&mut self, id: u32) -> Option<Finished> {
        self.open.get(&id).filter(|open| open.left == 0 && open.parts == 0)?;
        self.open.remove(&id).map(|open| Finished { req: open.req, failed: open.failed })
    }

    fn part_of_ours_ends(&mut self, id: u32) -> Option<Finished> {
        self.open.get_mut(&id)?.parts -= 1;
        self.end_if_whole(id)
    }

    /// A part has left that was posted.
    pub fn left(&mut self, name: u32) -> Option<Finished> {
        let id = self.parts.left(name)?;
        self.part_of_ours_ends(id)
    }

    /// A part has come that was expected: what that means for our memory, or for an operation of ours.
    pub fn landed(&mut self, name: u32, regions: &Regions) -> (Served, Option<Finished>) {
        match self.parts.came(regions, name) {
            Some(Coming::Put(id, _)) => (self.part_ends(id, Ok(())), None),
            Some(Coming::Anywhere(mut held)) => (self.part_ends(held.op, held.write(regions)), None),
            Some(Coming::Answer(id)) => (None, self.part_of_ours_ends(id)),
            None => (None, None),
        }
    }

    /// A region is closed: nothing lands there any more, which is answered so, and nothing leaves out of it.
    pub fn withdraw(&mut self, link: &Link, key: u64) {
        self.parts.withdraw(link, key);
    }

    /// A peer of ours does not have more operations open than this.
    fn may_owe(&self) -> Result<(), Corrupt> {
        if self.debts.len() > (MAX_OPEN + MAX_QUEUED + 1) * MAX_PLACES { Err(Corrupt) } else { Ok(()) }
    }

    /// The peer is gone: what waited for it, in the order of the calls.
    pub fn abort(&mut self) -> Vec<SendReq> {
        self.queue.clear();
        self.debts = Debts::default();
        self.parts.abort();
        let mut open: Vec<(u32, Open)> = self.open.drain().collect();
        open.sort_by_key(|(id, _)| *id);
        open.into_iter().map(|(_, o)| o.req).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;
    use crate::request::Special;
    use crate::shm::segment;
    use crate::types::{CompFlags, Level, UserCtx};

    pub(super) fn links() -> (Link, Link) {
        let (a, b) = (segment::private(1 << 14), segment::private(1 << 14));
        let (mut here, mut there) = (Link::new(a.clone(), 1 << 16), Link::new(b.clone(), 1 << 16));
        here.attach(b, None);
        there.attach(a, None);
        (here, there)
    }

    /// A target says that a put is done of which it has only the beginning; then of one that waits behind it; and then what is true.
    #[test]
    fn an_answer_to_what_was_not_sent_yet() {
        for (id, records) in [(0, 1), (1, 1), (0, 100)] {
            let ((mut link, mut liar), mut one_sided, regions) = (links(), OneSided::default(), Regions::default());
            let mut bytes = vec![7; 100_000];
            for ctx in 0..2 {
                let req = SendReq {
                    ctx: UserCtx(ctx),
                    level: Level::Delivery,
                    report: true,
                    special: Special::NOTHING,
                    flags: CompFlags::RMA,
                };
                let payload = Payload::Lent((&[of_slice(&mut bytes)][..]).into());
                one_sided.start(Task::Put(payload, None), &[RemoteSeg { addr: 0, len: 100_000, key: 1 }], req);
            }
            for _ in 0..records {
                one_sided.push(&mut link, &regions, 4096).expect("sound");
                while let Some(header) = liar.peek().expect("sound") {
                    liar.consume(header.lines());
                    if records == 1 {
                        break;
                    }
                }
                liar.tell();
            }
            assert_eq!(one_sided.queue.is_empty(), records > 1);
            let tag = Ending { id, piece: 0, outcome: Ok(()) }.emit();
            liar.send(&Draft { flags: flag::LAST, ..bare(Kind::Answer, tag, 0) }, Class::Control).expect("room");
            let header = link.peek().expect("sound").expect("an answer");
            let told = one_sided.on_answer(&link, &header);
            assert_eq!(
                told.is_ok_and(|finished| finished.is_some_and(|f| f.req.ctx == UserCtx(0))),
                records > 1,
                "{id} {records}"
            );
        }
    }
}
