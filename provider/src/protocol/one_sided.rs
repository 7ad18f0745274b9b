//! One-sided operations that the target's engine carries out: puts and gets where the kernel lets nobody reach into the other's
//! memory, and all atomics, so that there is one executor per region.
//!
//! ```text
//! initiator                              target
//!   PUT  [key, addr | bytes] …  LAST ─▶   check each, copy in            ─▶ ANSWER [status]
//!   GET  [key, addr, bytes]          ─▶   check, copy out in fragments   ─▶ ANSWER [bytes] … LAST
//!   ATOMIC [key, addr | operands]    ─▶   check, execute                 ─▶ ANSWER [status | old values]
//!   EVENT [data]                     ─▶   (a direct transfer is done; nothing is answered)
//! ```
//! * Records of one initiator are carried out in the order of its calls, which is what the orderings of atomics promise.
//! * The target keeps nothing of an operation but the answers that it owes; an initiator has at most [`MAX_OPEN`] operations
//!   unanswered, so their number is bounded.
//! * The last record of a failed put is answered with the first failure; its event does not happen.
//!
//! States of an operation. Queued → open (its last record is in the ring) → answered.

use super::bare;
use crate::error::Error;
use crate::mem::user::UserIov;
use crate::region::{Regions, execute};
use crate::request::{Finished, Payload, SendReq, Task, Touched};
use crate::transport::link::{Class, Corrupt, Draft, Link, NotSent};
use crate::types::{Access, AtomicForm, RemoteSeg};
use crate::wire::header::{Header, Kind, Place, flag};
use crate::wire::order::{Ending, Order};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Operations that wait for their answer, per link.
pub const MAX_OPEN: usize = 256;
/// Operations that wait for room, per link, before the caller must wait.
pub const MAX_QUEUED: usize = 1024;
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
    left: usize,
    failed: Option<Error>,
}

/// What touched our memory, with the last record of an operation.
type Served = Option<Touched>;

/// Whether a record is of an operation's last piece: an operation counts once, however many it has.
fn is_last(header: &Header) -> bool {
    header.flags & flag::LAST != 0
}

enum Owed {
    /// Bytes of a region, as far as sent.
    Bytes { key: u64, addr: u64, len: usize, sent: usize },
    /// Old values.
    Values(Vec<u8>),
    /// Nothing but the outcome.
    Outcome(Result<(), Error>),
}

struct Debt {
    id: u32,
    piece: u16,
    what: Owed,
}

/// One-sided operations of one link, both directions.
#[derive(Default)]
pub struct OneSided {
    queue: VecDeque<Job>,
    open: FxHashMap<u32, Open>,
    next_id: u32,
    debts: VecDeque<Debt>,
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

    /// Sends the next record. Whether it was the last.
    fn step(&mut self, link: &mut Link, fragment: usize) -> Result<bool, NotSent> {
        let place = self.places.get(self.piece).copied().unwrap_or(RemoteSeg { addr: 0, len: 0, key: 0 });
        let last_piece = self.piece + 1 >= self.places.len();
        let last_piece_flag = if last_piece { flag::LAST } else { 0 };
        let left = place.len - self.sent;
        let at = self.place(place.addr.wrapping_add(self.sent as u64));
        let mut moved = left;
        match &self.task {
            Task::Put(payload, data) => {
                moved = left.min(fragment).min(link.max_payload(Kind::Put));
                let last = last_piece && moved == left;
                let flags = if last { flag::LAST } else { 0 } | if last && data.is_some() { flag::CQ_DATA } else { 0 };
                let draft = Draft { flags, len: moved, ..record(Kind::Put, place.key, data.unwrap_or(0), at) };
                let from = self.before + self.sent;
                match payload {
                    Payload::Lent(iov) => link.send(&Draft { iov, skip: from, ..draft }, Class::Fragment)?,
                    Payload::Own(bytes) => link.send(&Draft { bytes: &bytes[from..from + moved], ..draft }, Class::Envelope)?,
                };
            }
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
                return Ok(true);
            }
        }
        self.sent += moved;
        if self.sent == place.len {
            self.before += place.len;
            (self.piece, self.sent) = (self.piece + 1, 0);
            return Ok(last_piece);
        }
        Ok(false)
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
        !self.queue.is_empty() || !self.debts.is_empty()
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
            self.open.insert(id, Open { req, to, starts, left, failed: None });
        }
        self.queue.push_back(Job { id, task, places: places.into(), piece: 0, sent: 0, before: 0 });
    }

    /// Writes as many answers and records as there is room for. Returns how many.
    pub fn push(&mut self, link: &mut Link, regions: &Regions, fragment: usize) -> Result<usize, Corrupt> {
        let mut records = 0;
        let stop = |e, records| if e == NotSent::Full { Ok(records) } else { Err(Corrupt) };
        while let Some(debt) = self.debts.front_mut() {
            match debt.pay(link, regions, fragment) {
                Ok(true) => drop(self.debts.pop_front()),
                Ok(false) => {}
                Err(e) => return stop(e, records),
            }
            records += 1;
        }
        loop {
            let waiting = self.queue.len();
            let Some(job) = self.queue.front_mut() else { break };
            // What is in the queue is open, too.
            if self.open.len().saturating_sub(waiting) > MAX_OPEN {
                break;
            }
            match job.step(link, fragment) {
                Ok(true) => drop(self.queue.pop_front()),
                Ok(false) => {}
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
        let len = header.len as usize;
        let wrote = regions.reach(header.tag, place.addr, len, Access::REMOTE_WRITE).and_then(|seg| {
            if regions.is_everything(header.tag) {
                let mut bytes = Vec::new();
                link.payload_append(header, &mut bytes);
                return regions.write_anywhere(seg, &bytes);
            }
            link.payload_to(header, &[seg], 0, len);
            Ok(())
        });
        let failed_before = self.failed_put.filter(|(id, _)| *id == place.id).map(|(_, why)| why);
        let outcome = failed_before.map_or(wrote, Err);
        if header.flags & flag::LAST == 0 {
            self.failed_put = outcome.err().map(|why| (place.id, why));
            return Ok(None);
        }
        self.failed_put = None;
        self.debts.push_back(Debt { id: place.id, piece: 0, what: Owed::Outcome(outcome) });
        let data = (header.flags & flag::CQ_DATA != 0).then_some(header.data);
        Ok(outcome.ok().map(|()| Touched { write: true, fetch: false, len: place.total(), key: header.tag, data }))
    }

    /// Target: a GET is at the head of the ring.
    pub fn on_get(&mut self, link: &Link, header: &Header, regions: &Regions) -> Result<Served, Corrupt> {
        let place = Place::parse(link.body());
        self.may_owe()?;
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
        self.debts.push_back(Debt { id: place.id, piece: place.extra[0], what });
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
        let key = header.tag;
        let done = regions.reach(key, place.addr, bytes, order.access()).and_then(|seg| {
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
        self.debts.push_back(Debt { id: place.id, piece: place.extra[0], what });
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
        let (piece, open) = (usize::from(piece), self.open.get_mut(&id).ok_or(Corrupt)?);
        if let Err(why) = outcome {
            open.failed.get_or_insert(why);
        }
        if header.len > 0 {
            let (Some(&start), Some(&end)) = (open.starts.get(piece), open.starts.get(piece + 1)) else { return Err(Corrupt) };
            let offset = usize::try_from(header.data).map_err(|_| Corrupt)?;
            let room = (end - start).checked_sub(offset).ok_or(Corrupt)?;
            if header.len as usize > room {
                return Err(Corrupt);
            }
            link.payload_to(header, &open.to, start + offset, room);
        }
        if header.flags & flag::LAST == 0 {
            return Ok(None);
        }
        open.left -= 1;
        if open.left > 0 {
            return Ok(None);
        }
        // Numbers follow each other: what is not all in the ring yet cannot have been carried out, and its buffer is still needed.
        if self.queue.front().is_some_and(|job| id.wrapping_sub(job.id) < 1 << 31) {
            return Err(Corrupt);
        }
        Ok(self.open.remove(&id).map(|o| Finished { req: o.req, failed: o.failed }))
    }

    /// A peer of ours does not have more operations open than this.
    fn may_owe(&self) -> Result<(), Corrupt> {
        if self.debts.len() > (MAX_OPEN + MAX_QUEUED + 1) * MAX_PLACES { Err(Corrupt) } else { Ok(()) }
    }

    /// The peer is gone: what waited for it, in the order of the calls.
    pub fn abort(&mut self) -> Vec<SendReq> {
        self.queue.clear();
        self.debts.clear();
        let mut open: Vec<(u32, Open)> = self.open.drain().collect();
        open.sort_by_key(|(id, _)| *id);
        open.into_iter().map(|(_, o)| o.req).collect()
    }
}

impl Debt {
    /// Sends the next record of an answer. Whether it was the last.
    fn pay(&mut self, link: &mut Link, regions: &Regions, fragment: usize) -> Result<bool, NotSent> {
        let (id, piece) = (self.id, self.piece);
        let answer = |flags, outcome, data| Draft { flags, ..bare(Kind::Answer, Ending { id, piece, outcome }.emit(), data) };
        match &mut self.what {
            Owed::Outcome(outcome) => {
                link.send(&answer(flag::LAST, *outcome, 0), Class::Control)?;
                Ok(true)
            }
            Owed::Values(values) => {
                let draft = Draft { len: values.len(), bytes: values, ..answer(flag::LAST, Ok(()), 0) };
                link.send(&draft, Class::Envelope)?;
                Ok(true)
            }
            Owed::Bytes { key, addr, len, sent } => {
                let n = (*len - *sent).min(fragment).min(link.max_payload(Kind::Answer));
                let last = *sent + n == *len;
                let flags = if last { flag::LAST } else { 0 };
                // Looked up again for each fragment: the region may be closed meanwhile.
                let seg = regions.reach(*key, addr.wrapping_add(*sent as u64), n, Access::REMOTE_READ);
                let draft = answer(flags, Ok(()), *sent as u64);
                let sent_now = match seg {
                    Ok(seg) if !regions.is_everything(*key) => {
                        link.send(&Draft { len: n, iov: &[seg], ..draft }, Class::Fragment).map(|_| Ok(()))
                    }
                    Ok(seg) => match regions.read_out(*key, seg) {
                        Ok(bytes) => link.send(&Draft { len: n, bytes: &bytes, ..draft }, Class::Fragment).map(|_| Ok(())),
                        Err(why) => Ok(Err(why)),
                    },
                    Err(why) => Ok(Err(why)),
                }?;
                if let Err(why) = sent_now {
                    self.what = Owed::Outcome(Err(why));
                    return Ok(false);
                }
                *sent += n;
                Ok(last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;
    use crate::request::Special;
    use crate::shm::segment;
    use crate::types::{CompFlags, Level, UserCtx};

    fn links() -> (Link, Link) {
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
