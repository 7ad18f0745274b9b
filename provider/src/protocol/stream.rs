//! Stream: a message of any length in fragments, so that the two copies overlap.
//!
//! ```text
//! sender                                receiver
//!   RTS [total, id, promise | fragment] ─▶ match?  yes: CTS(min(total, buffer)) if promise < total; copy out
//!   DATA up to the promise, unasked     ─▶         no:  keep (the promise was taken from the window)
//!                       ◀─ CTS(wanted) ──  when somebody asks
//!   DATA up to max(promise, wanted)     ─▶ copy out; done at the last byte
//! ```
//! * The sender *promises* what the window allows, so the pipeline fills while the CTS is on its way, and a message that fits
//!   the window needs none. With none left, or a scrap, the promise is 0: an envelope always gets through.
//! * Both sides know the last byte: `max(promise, wanted)`. A buffer that is too short makes `wanted` smaller; what
//!   was promised beyond it is dropped.
//! * Between hosts nothing of it goes through the rings but RTS and CTS: what is promised and what is asked for leaves from the sender's
//!   buffer and lands in the receiver's, or, as long as there is none, what is promised in one of ours
//!   ([`InPlace`](crate::transport::InPlace)). A sender that must know that it landed asks for that by a flag of the RTS, and a second CTS says it.
//! * Fragments leave room for envelopes (`Class::Fragment`); ready streams go first in, first out.
//!
//! States. Sender: promised → (asked) → sent. Receiver: held → matched → done, or matched at once.
#![expect(unsafe_code)]
// UNSAFETY: gives a buffer of its own to system calls, as an application does.

use super::{Aborted, Announced, Delivery, Placed, Protocol, Refused, Started, Wire, bare, envelope_of, first};
use crate::mem::pool::Pool;
use crate::mem::user::{UserIov, landing_place, scatter_bytes, sending_place};
use crate::request::kept::Copied;
use crate::request::{Envelope, Held, Message, Received, RecvReq, SendReq};
use crate::transport::link::{Class, Corrupt, Draft, Link, NotSent};
use crate::transport::{Bulk, Moved};
use crate::types::{Level, ProtoId};
use crate::wire::header::{Header, Kind, Part, Rts, flag};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// Bytes below which a part of a message is not promised: it costs as much to send as a long one, and the rest waits for its CTS anyway.
const SCRAP: usize = 4 << 10;

/// The protocol.
pub struct Stream;

struct TxStream {
    iov: UserIov,
    /// What that is of, if it is no memory of the application's.
    own: Option<Copied>,
    total: usize,
    sent: usize,
    promise: usize,
    /// Bytes that may go now: the promise, then what was asked for.
    goal: usize,
    /// Whether the goal is final.
    asked: bool,
    /// Parts on their way past the ring.
    under_way: u16,
    /// The receiver has said that all is there.
    landed: bool,
    req: SendReq,
}

enum Dest {
    /// Its receive is being handed over ([`Streams::adopt`]).
    Matched,
    /// Nobody asked yet; bytes so far.
    Held(Vec<u8>),
    /// A buffer.
    Recv(RecvReq),
    /// Discarded.
    Sink,
}

struct RxStream {
    env: Envelope,
    promise: usize,
    arrived: usize,
    goal: usize,
    dest: Dest,
}

impl RxStream {
    /// Copies what is there of the fragment at the head, the next one, if there is a buffer. Whether all of it is there.
    fn follow(&self, link: &mut Link, header: &Header) -> bool {
        match &self.dest {
            Dest::Recv(req) => link.follow(header, &req.iov, self.arrived, req.cap.saturating_sub(self.arrived)),
            _ => false,
        }
    }
}

/// The streams of one link, both directions.
#[derive(Default)]
pub struct Streams {
    tx: FxHashMap<u32, TxStream>,
    ready: VecDeque<u32>,
    next_id: u32,
    rx: FxHashMap<u32, RxStream>,
    /// Messages, the bytes that are wanted of them, and flags.
    cts: VecDeque<(u32, u64, u8)>,
    fragment: usize,
    /// Ours go past the ring.
    in_place: bool,
    /// Of which the sender wants to know when all is there, and does not see it by a position in the ring.
    tell: FxHashSet<u32>,
    /// What is to become of held ones that are still landing.
    later: FxHashMap<u32, Dest>,
}

impl Streams {
    /// With fragments of at most `fragment` bytes.
    pub fn new(fragment: usize) -> Streams {
        Streams { fragment, ..Streams::default() }
    }

    /// Whether [`push`](Self::push) would have something to do if there were room.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.cts.is_empty()
    }

    /// Whether sends of ours are under way, asked for or not.
    pub fn sending(&self) -> bool {
        !self.tx.is_empty() || !self.cts.is_empty()
    }

    /// Writes as many control records and fragments as there is room for. `sent` gets each send whose last byte went
    /// into the ring, with the position behind it. Returns how many records were written.
    pub fn push(&mut self, link: &mut Link, mut sent: impl FnMut(SendReq, u32)) -> Result<usize, Corrupt> {
        let mut records = self.push_requests(link)?;
        if !self.cts.is_empty() {
            return Ok(records);
        }
        while let Some(&id) = self.ready.front() {
            let Some(s) = self.tx.get_mut(&id) else {
                self.ready.pop_front();
                continue;
            };
            if link.is_in_place() && s.sent < s.goal {
                let promised = s.promise.saturating_sub(s.sent);
                let Some(moved) = link.post(Bulk { id, iov: &s.iov, skip: s.sent, len: s.goal - s.sent, promised }) else {
                    return Ok(records);
                };
                s.sent = s.goal;
                s.under_way += u16::from(moved == Moved::Later);
                records += 1;
            }
            while s.sent < s.goal {
                let part = Bulk { id, iov: &s.iov, skip: s.sent, len: s.goal - s.sent, promised: 0 };
                match fragment(link, self.fragment, &part) {
                    Ok(len) => s.sent += len,
                    Err(NotSent::Full) => return Ok(records),
                    Err(NotSent::Corrupt) => return Err(Corrupt),
                }
                records += 1;
            }
            self.ready.pop_front();
            let done = match link.is_in_place() {
                true => self.end_if_whole(id),
                false if s.asked => self.tx.remove(&id).map(|s| s.req),
                false => None,
            };
            if let Some(req) = done {
                sent(req, link.position());
            }
        }
        Ok(records)
    }

    /// [`push`](Self::push) of control records only.
    fn push_requests(&mut self, link: &mut Link) -> Result<usize, Corrupt> {
        let mut records = 0;
        while let Some(&(id, wanted, flags)) = self.cts.front() {
            match link.send(&Draft { flags, ..control(Kind::Cts, id, wanted) }, Class::Control) {
                Ok(_) => self.cts.pop_front(),
                Err(NotSent::Full) => break,
                Err(NotSent::Corrupt) => return Err(Corrupt),
            };
            records += 1;
        }
        Ok(records)
    }

    /// The receiver asks for (the rest of) a stream.
    ///
    /// Returns the send if its receiver has it all, and that is all it waits for.
    pub fn on_cts(&mut self, header: &Header) -> Result<Option<SendReq>, Corrupt> {
        let id = stream_id(header)?;
        let s = self.tx.get_mut(&id).ok_or(Corrupt)?;
        if header.flags & flag::LAST != 0 {
            if !s.asked || s.landed {
                return Err(Corrupt);
            }
            s.landed = true;
            return Ok(self.end_if_whole(id));
        }
        let wanted = usize::try_from(header.data).map_err(|_| Corrupt)?;
        if s.asked || wanted > s.total {
            return Err(Corrupt);
        }
        s.asked = true;
        // Still in `ready` if the promise is not fulfilled yet; then that entry serves.
        if s.sent == s.goal {
            self.ready.push_back(id);
        }
        s.goal = s.goal.max(wanted);
        Ok(self.end_if_whole(id))
    }

    /// A part that went past the ring has left. Returns the send if that is all it waits for.
    pub fn left(&mut self, id: u32) -> Option<SendReq> {
        let s = self.tx.get_mut(&id)?;
        s.under_way = s.under_way.saturating_sub(1);
        self.end_if_whole(id)
    }

    fn end_if_whole(&mut self, id: u32) -> Option<SendReq> {
        let s = self.tx.get(&id)?;
        let whole = self.in_place && s.asked && s.sent == s.goal && s.under_way == 0;
        if whole && (s.landed || s.req.level != Level::Delivery) { self.tx.remove(&id).map(|s| s.req) } else { None }
    }

    /// A part that went past the ring is in its place. Returns the receive if that was the last one of a message that has a buffer.
    pub fn landed(&mut self, link: &mut Link, pool: &mut Pool, id: u32) -> Option<Received> {
        let s = self.rx.get_mut(&id)?;
        s.arrived = s.goal;
        // It counts as delivered although nobody has asked for it.
        if s.arrived == s.env.total && self.tell.remove(&id) {
            self.cts.push_back((id, 0, flag::LAST));
        }
        match self.later.remove(&id) {
            Some(dest) => self.matched(link, pool, id, dest),
            None => self.finish(id),
        }
    }

    /// Whether a fragment that is still being written makes sense, and its message has a buffer, so that it can be [followed](Self::follow).
    pub fn takes(&self, header: &Header) -> Result<bool, Corrupt> {
        Ok(matches!(self.next(header)?.dest, Dest::Recv(_)))
    }

    /// Copies what is there of a fragment that is still being written. Whether all of it is there.
    pub fn follow(&self, link: &mut Link, header: &Header) -> Result<bool, Corrupt> {
        Ok(self.next(header)?.follow(link, header))
    }

    /// The stream of which this is the next fragment.
    fn next(&self, header: &Header) -> Result<&RxStream, Corrupt> {
        let s = self.rx.get(&stream_id(header)?).ok_or(Corrupt)?;
        let fits = header.data == s.arrived as u64 && header.len as usize <= s.goal - s.arrived;
        if fits { Ok(s) } else { Err(Corrupt) }
    }

    /// A stream whose first fragment is still being written has a receive of `cap` bytes, and asks for what it wants. Returns its name, by which the receive is
    /// to be [led](Self::lead) to it, and it [`lands`](Self::land) then.
    pub fn begin(wire: &mut Wire<'_>, header: &Header, cap: usize) -> Result<u32, Corrupt> {
        let said = Stream::announced(wire, header)?;
        let id = open(wire, header, &said, Dest::Matched)?;
        if let Some(s) = wire.streams.rx.get_mut(&id) {
            s.arrived = 0;
        }
        wire.streams.ask(wire.link, id, cap.min(said.env.total), 0);
        wire.streams.push_requests(wire.link)?;
        Ok(id)
    }

    /// The receive of a stream that has [begun](Self::begin).
    pub fn lead(&mut self, id: u32, req: RecvReq) {
        if let Some(s) = self.rx.get_mut(&id) {
            s.dest = Dest::Recv(req);
        }
    }

    /// Copies what is there of the first fragment of a stream. `None`: not all of it yet; else what [`on_data`](Self::on_data) returns.
    pub fn land(&mut self, link: &mut Link, id: u32, header: &Header) -> Result<Option<Option<Received>>, Corrupt> {
        let s = self.rx.get_mut(&id).ok_or(Corrupt)?;
        if !s.follow(link, header) {
            return Ok(None);
        }
        s.arrived = header.len.into();
        Ok(Some(self.finish(id)))
    }

    /// A fragment. Returns the receive if it was the last one of a stream that has a buffer.
    pub fn on_data(&mut self, link: &mut Link, header: &Header) -> Result<Option<Received>, Corrupt> {
        // What is expected from buffer to buffer has been told where to go: nothing else goes there.
        if link.is_in_place() {
            return Err(Corrupt);
        }
        self.next(header)?;
        let (id, len) = (stream_id(header)?, header.len as usize);
        let s = self.rx.get_mut(&id).ok_or(Corrupt)?;
        match &mut s.dest {
            Dest::Held(bytes) => link.payload_append(header, bytes),
            Dest::Recv(req) => {
                link.payload_to(header, &req.iov, s.arrived, req.cap.saturating_sub(s.arrived));
                link.release(len.min(s.promise.saturating_sub(s.arrived)));
            }
            Dest::Sink | Dest::Matched => link.release(len.min(s.promise.saturating_sub(s.arrived))),
        }
        s.arrived += len;
        Ok(self.finish(id))
    }

    /// Takes the stream out if nothing more will come for it, and returns its receive, if it has one.
    fn finish(&mut self, id: u32) -> Option<Received> {
        let s = self.rx.get(&id)?;
        if s.arrived < s.goal || matches!(s.dest, Dest::Held(_) | Dest::Matched) {
            return None;
        }
        let s = self.rx.remove(&id)?;
        if self.tell.remove(&id) {
            self.cts.push_back((id, 0, flag::LAST));
        }
        match s.dest {
            Dest::Recv(req) => Some(Received { placed: s.arrived.min(req.cap), req, env: s.env }),
            _ => None,
        }
    }

    /// A name for a message, unique among the live ones of this link.
    pub fn next_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1) % Part::NAMES;
        self.next_id
    }

    /// Whether a message of this name is coming.
    pub fn knows(&self, id: u32) -> bool {
        self.rx.contains_key(&id)
    }

    /// A message that another protocol could not carry, and its receiver wants `wanted` bytes of: all of it goes from here.
    pub fn start_asked(&mut self, id: u32, iov: UserIov, total: usize, wanted: usize, req: SendReq) {
        let (own, goal, asked) = (None, wanted, true);
        self.tx.insert(id, TxStream { iov, own, total, sent: 0, promise: 0, goal, asked, under_way: 0, landed: false, req });
        self.ready.push_back(id);
    }

    /// The message that was started last, and is under way, was one of `own`.
    pub fn keep(&mut self, own: Copied) {
        if let Some(s) = self.tx.get_mut(&self.next_id) {
            s.own = Some(own);
        }
    }

    /// The receiver's side of that.
    pub fn expect(&mut self, id: u32, env: Envelope, req: RecvReq) {
        let goal = req.cap.min(env.total);
        self.rx.insert(id, RxStream { env, promise: 0, arrived: 0, goal, dest: Dest::Recv(req) });
    }

    /// Takes the receive of a stream whose first fragment was placed; returns it if that was all.
    pub fn adopt(&mut self, link: &Link, id: u32, req: RecvReq) -> Option<Received> {
        let s = self.rx.get_mut(&id)?;
        let wanted = req.cap.min(s.env.total);
        s.dest = Dest::Recv(req);
        // Through the ring it has been asked for already.
        if link.is_in_place() {
            self.ask(link, id, wanted, 0);
        }
        self.finish(id)
    }

    /// A held stream got a buffer, or a sink: copies what is there, asks for the rest.
    fn matched(&mut self, link: &mut Link, pool: &mut Pool, id: u32, dest: Dest) -> Option<Received> {
        let s = self.rx.get_mut(&id)?;
        if s.arrived < s.promise && link.is_in_place() {
            self.later.insert(id, dest);
            return None;
        }
        let wanted = match &dest {
            Dest::Recv(req) => req.cap.min(s.env.total),
            _ => 0,
        };
        if let Dest::Held(bytes) = std::mem::replace(&mut s.dest, dest) {
            if let Dest::Recv(req) = &s.dest {
                scatter_bytes(&req.iov, 0, &bytes[..bytes.len().min(req.cap)]);
            }
            link.release(bytes.len());
            link.tell();
            pool.give(bytes);
        }
        let have = self.rx.get(&id).map_or(0, |s| s.promise);
        self.ask(link, id, wanted, have);
        self.finish(id)
    }

    /// Asks for what is wanted beyond the promise. `have` bytes are here, if they do not come through the ring.
    fn ask(&mut self, link: &Link, id: u32, wanted: usize, have: usize) {
        let Some(s) = self.rx.get_mut(&id) else { return };
        let more = s.promise < s.env.total;
        if more {
            s.goal = s.promise.max(wanted);
            self.cts.push_back((id, wanted as u64, 0));
        }
        if link.is_in_place()
            && s.goal > have
            && let Dest::Recv(req) = &s.dest
        {
            let promised = s.promise.saturating_sub(have);
            if link.expect(Bulk { id, iov: &req.iov, skip: have, len: s.goal - have, promised }) == Some(Moved::AtOnce) {
                s.arrived = s.goal;
            }
        }
    }

    /// Whether a held stream has arrived as far as it will without being asked, to its end.
    pub fn is_whole(&self, id: u32) -> bool {
        self.rx.get(&id).is_some_and(|s| s.arrived == s.env.total)
    }

    /// The peer is gone. Held streams that are whole stay receivable; the rest is returned or dropped.
    pub fn abort(&mut self) -> Aborted {
        let mut out = Aborted::default();
        let mut sends: Vec<(u32, TxStream)> = self.tx.drain().collect();
        sends.sort_by_key(|(id, _)| *id);
        out.sends = sends.into_iter().map(|(_, s)| s.req).collect();
        self.ready.clear();
        self.cts.clear();
        for (id, s) in self.rx.extract_if(|_, s| !matches!(s.dest, Dest::Held(_)) || s.arrived < s.env.total) {
            if let Dest::Recv(req) = self.later.remove(&id).unwrap_or(s.dest) {
                out.recvs.push((req, s.env));
            }
        }
        out
    }
}

fn control(kind: Kind, id: u32, data: u64) -> Draft<'static> {
    bare(kind, id.into(), data)
}

fn stream_id(header: &Header) -> Result<u32, Corrupt> {
    u32::try_from(header.tag).map_err(|_| Corrupt)
}

/// Sends the first bytes of a part of a stream, as many as one record carries. Returns how many that were.
fn fragment(link: &mut Link, longest: usize, part: &Bulk<'_>) -> Result<usize, NotSent> {
    let Bulk { id, iov, skip, .. } = *part;
    let len = longest.min(part.len).min(link.max_payload(Kind::Data));
    link.send(&Draft { iov, skip, len, ..control(Kind::Data, id, skip as u64) }, Class::Fragment).map(|_| len)
}

/// Registers the stream that the RTS at the head of the ring announces, with its first fragment.
fn open(wire: &mut Wire<'_>, header: &Header, said: &Announced<Rts>, dest: Dest) -> Result<u32, Corrupt> {
    let Announced { env, body: rts } = *said;
    let (promise, len) = (rts.promise as usize, header.len as usize);
    // Before anything lands under this name.
    if Part::has_name(rts.stream) || wire.streams.knows(rts.stream) || wire.copies.expects(rts.stream) {
        return Err(Corrupt);
    }
    // From buffer to buffer an envelope has no payload with it.
    if wire.link.is_in_place() && len > 0 {
        return Err(Corrupt);
    }
    wire.link.take(promise)?;
    let mut there = false;
    if header.flags & flag::LAST != 0 && wire.link.is_in_place() {
        wire.streams.tell.insert(rts.stream);
    }
    let mut s = RxStream { env, promise, arrived: len, goal: promise, dest };
    match &mut s.dest {
        Dest::Held(bytes) if wire.link.is_in_place() => {
            if promise > 0 {
                // SAFETY: the stream's own buffer, on the heap wherever the stream goes. `matched` looks at it once `landed` has said that all that was promised is there;
                // `abort` drops it when the peer's lines are forgotten, which put nothing anywhere after that (`endpoint/depart.rs`).
                let iov = &[unsafe { landing_place(bytes, promise) }];
                let bulk = Bulk { id: rts.stream, iov, skip: 0, len: promise, promised: promise };
                there = wire.link.expect(bulk) == Some(Moved::AtOnce);
            }
        }
        Dest::Held(bytes) => wire.link.payload_append(header, bytes),
        _ if wire.link.is_in_place() => wire.link.release(promise),
        _ => wire.link.release(len),
    }
    wire.streams.rx.insert(rts.stream, s);
    if there {
        // Nobody has asked for it: there is no receive to be completed.
        let received = wire.streams.landed(wire.link, wire.pool, rts.stream);
        debug_assert!(received.is_none(), "held, and received");
    }
    Ok(rts.stream)
}

impl Protocol for Stream {
    type Body = Rts;
    const ID: ProtoId = ProtoId::Stream;
    const WHAT: &'static str = "fragments through the ring, both copies overlapping";

    fn start(wire: &mut Wire<'_>, msg: &Message<'_>, req: &SendReq) -> Result<Started, Refused> {
        // SAFETY: what was copied is on the heap wherever it goes, and whoever started it out of there keeps it: until this returns that nothing of it is under way, or else here
        // (`Streams::keep`; `endpoint/send.rs`), until all of it has left, or the peer's lines are forgotten, which read nothing after that (`abort`; `endpoint/depart.rs`).
        let own = [unsafe { sending_place(msg.bytes) }];
        let msg = &Message { iov: if msg.bytes.is_empty() { msg.iov } else { &own }, bytes: &[], ..*msg };
        // A long message takes at most half of what is left of the window, so that others still pass. What we know of that may be old; of a
        // peer on another host it stands in no other process's cache line, and may always be looked at.
        if wire.link.is_in_place() || wire.link.credit() / 2 < msg.len {
            wire.link.refresh().map_err(|Corrupt| Refused::Corrupt)?;
        }
        let credit = wire.link.credit();
        let promise = match credit / 2 {
            half if msg.len <= half => msg.len,
            half if half < SCRAP => 0,
            half => half,
        };
        let promise = promise.min(u32::MAX as usize);
        let promise = if wire.link.spend(promise) { promise } else { 0 };
        let len = match wire.link.is_in_place() {
            true => 0,
            false => wire.streams.fragment.min(promise).min(wire.link.max_payload(Kind::Rts)),
        };
        wire.streams.in_place = wire.link.is_in_place();
        let id = wire.streams.next_id();
        let rts = Rts { total: msg.len as u64, stream: id, promise: promise as u32 };
        let mut draft = first(Kind::Rts, msg, rts.emit(), len);
        if req.level == Level::Delivery {
            draft.flags |= flag::LAST;
        }
        // What is promised follows at once.
        wire.link.set_quiet(promise > 0);
        let sent = wire.link.send(&draft, Class::Envelope);
        wire.link.set_quiet(false);
        if let Err(e) = sent {
            wire.link.unspend(promise);
            return Err(e.into());
        }
        let asked = promise == msg.len;
        let mut sent = len;
        if asked && !wire.link.is_in_place() {
            // All of it goes out now, if the ring has room: nothing is left to be remembered.
            while sent < promise {
                let part = Bulk { id, iov: msg.iov, skip: sent, len: promise - sent, promised: 0 };
                match fragment(wire.link, wire.streams.fragment, &part) {
                    Ok(len) => sent += len,
                    Err(_) => break,
                }
            }
            if sent == promise {
                return Ok(Started::Sent(wire.link.position()));
            }
        }
        let streams = &mut *wire.streams;
        let mut posted = None;
        if asked && promise > 0 && wire.link.is_in_place() && streams.ready.is_empty() {
            posted = wire.link.post(Bulk { id, iov: msg.iov, skip: 0, len: promise, promised: promise });
            if posted == Some(Moved::AtOnce) && req.level != Level::Delivery {
                // Nothing is left to be remembered.
                return Ok(Started::Sent(wire.link.position()));
            }
        }
        if posted.is_some() {
            sent = promise;
        }
        let under_way = u16::from(posted == Some(Moved::Later));
        let iov = msg.iov.into();
        let (own, total, goal) = (None, msg.len, promise);
        streams.tx.insert(id, TxStream { iov, own, total, sent, promise, goal, asked, under_way, landed: false, req: *req });
        if posted.is_none() && (promise > len || asked) {
            streams.ready.push_back(id);
        }
        Ok(Started::Streaming)
    }

    fn announced(wire: &mut Wire<'_>, header: &Header) -> Result<Announced<Rts>, Corrupt> {
        let rts = Rts::parse(wire.link.body(), header.len).map_err(|_| Corrupt)?;
        let total = usize::try_from(rts.total).map_err(|_| Corrupt)?;
        Ok(Announced { env: envelope_of(header, total), body: rts })
    }

    fn place(wire: &mut Wire<'_>, header: &Header, said: &Announced<Rts>, req: &RecvReq) -> Result<Placed, Corrupt> {
        let id = open(wire, header, said, Dest::Matched)?;
        if !wire.link.is_in_place() {
            // Before the first bytes are copied: the request is on its way meanwhile, and what is asked for comes in time.
            wire.streams.ask(wire.link, id, req.cap.min(said.env.total), 0);
            wire.streams.push_requests(wire.link)?;
        }
        wire.link.payload_to(header, &req.iov, 0, req.cap);
        Ok(Placed::Part(id))
    }

    fn hold(wire: &mut Wire<'_>, header: &Header, said: &Announced<Rts>) -> Result<Held, Corrupt> {
        let buffer = wire.pool.take();
        Ok(Held::Stream(open(wire, header, said, Dest::Held(buffer))?))
    }
}

pub(super) fn deliver_held(wire: &mut Wire<'_>, id: u32, req: RecvReq) -> Delivery {
    let done = wire.streams.matched(wire.link, wire.pool, id, Dest::Recv(req));
    done.map_or(Delivery::Pending, Delivery::Done)
}

pub(super) fn discard_held(wire: &mut Wire<'_>, id: u32) {
    wire.streams.matched(wire.link, wire.pool, id, Dest::Sink);
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
