//! Syscall: a long message is copied once, by the kernel, from the sender's buffer to the receiver's; by the receiver, by the sender, or
//! by both at the same time.
//!
//! ```text
//! sender                                     receiver
//!   OFFER [total, id | where it is]  ─▶       match? no: keep the envelope, no byte moves
//!                                             yes, short: process_vm_readv
//!         ◀─ ACCEPT [number | where it goes]  yes, long: share it out, and begin at the front
//!   process_vm_writev from the back           process_vm_readv from the front, chunk by chunk (`shm::split`)
//!   DONE [chunks] ─▶                          what is left where they met
//!         ◀───────────── FIN ───────────────  all is there: the sender's buffer is free
//! ```
//! * Whoever comes round takes chunks: a peer that computes leaves all to the other, and two that wait take half the time.
//! * A turn copies at most [`TURN`] bytes, so that others get theirs.
//! * The kernel may refuse at any time (ptrace scope, seccomp, namespaces, memory that cannot be reached this way). What one side may
//!   not, the other may; if neither may, the receiver answers CTS instead, as for a stream, and the message goes by `stream.rs`
//!   from its first byte. Nothing of it was completed before. The sender then sends no further offers to this peer.
//! * Process ids are used again. The receiver reads the root of the sender's region table (which has a tag of its own) by the same system
//!   calls as the bytes: they came from that very process. The sender looks there before it writes to a receiver of which it has heard
//!   nothing for a while.
//!
//! States. Sender: offered → (sharing) → FIN, or a stream. Receiver: held → matched → copying ⇄ waiting for DONE → done, or a stream.

use super::{Aborted, Announced, Delivery, Placed, Protocol, Refused, Started, Target, Wire, envelope_of, flags_of};
use crate::mem::remote::{self, Also, NoAccess};
use crate::mem::user::{UserIov, UserSeg};
use crate::region::table::{LINE_WORDS, Line, Root};
use crate::request::{Envelope, Held, Message, Received, RecvReq, SendReq};
use crate::shm::split::{MAX_CHUNKS, MAX_NUMBER, Share};
use crate::transport::link::{Class, Corrupt, Draft, Link, NotSent};
use crate::types::ProtoId;
use crate::wire::header::{Header, Kind, MAX_PIECES, flag};
use crate::wire::offer::{Offer, Pieces, emit_pieces, parse_pieces, pieces_of};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Bytes that one side copies in one turn, at least a chunk.
pub const TURN: usize = 256 << 10;
/// Shortest and longest chunk of a shared message.
const CHUNKS: (usize, usize) = (16 << 10, 512 << 10);
/// Chunks of a shared message, within these limits: the fewer, the longer one side waits for the other's last.
const PARTS: usize = 4;
const PAGE: usize = 4096;

/// The protocol.
pub struct Syscall;

/// What an OFFER says.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    id: u32,
    words: [u64; 2 * MAX_PIECES],
    count: usize,
}

impl Said {
    fn pieces(&self, total: usize) -> Result<Pieces, Corrupt> {
        parse_pieces(&self.words[..self.count], total).map_err(|_| Corrupt)
    }
}

/// The sender's share of a message.
struct Part {
    share: Share,
    wanted: usize,
    chunk: usize,
    to: Pieces,
    /// Whether the receiver is known to be the process that it was.
    known: bool,
}

struct Offered {
    iov: UserIov,
    total: usize,
    req: SendReq,
    part: Option<Part>,
}

/// Where the receiver's copying stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It copies up to here and needs no claims: all of it, or what the sender left.
    Alone(usize),
    /// It claims chunks from the front.
    Claiming(Share),
    /// The sender must say where it ended.
    Waiting(Share),
}

struct Copying {
    req: RecvReq,
    wanted: usize,
    chunk: usize,
    /// Bytes copied from the front.
    next: usize,
    stage: Stage,
}

enum State {
    /// Its receive is being handed over ([`Copies::adopt`]).
    Matched,
    /// Nobody asked yet.
    Held,
    Copying(Copying),
}

struct Coming {
    env: Envelope,
    from: Pieces,
    state: State,
}

/// A control record to be written.
enum Note {
    Fin(u32),
    Done(u32, u32, bool),
    Accept(u32, u64),
    /// The message must come as a stream; whether the kernel forbids everything else.
    Decline(u32, usize, bool),
}

/// A message that must come as a stream.
pub struct Declined {
    /// Its id, as that of a stream.
    pub id: u32,
    /// Its envelope.
    pub env: Envelope,
    /// Its receive.
    pub req: RecvReq,
}

/// A message that the receiver wants as a stream.
pub struct Returned {
    /// The payload.
    pub iov: UserIov,
    /// Its bytes.
    pub total: usize,
    /// Bytes that the receiver wants.
    pub wanted: usize,
    /// What its completion needs.
    pub req: SendReq,
}

/// What [`Copies::push`] brought to an end.
#[derive(Default)]
pub struct Ended {
    /// Receives that have all their bytes.
    pub received: Vec<Received>,
    /// Receives whose message will come as a stream.
    pub declined: Vec<Declined>,
    /// Bytes that we copied from the peer's memory.
    pub fetched: u64,
    /// Bytes that we copied to the peer's memory.
    pub stored: u64,
}

/// Offered messages of one link, both directions.
#[derive(Default)]
pub struct Copies {
    /// Whether this process may ask the kernel at all.
    on: bool,
    target: Option<Target>,
    /// The kernel does not let us read the peer's memory.
    no_read: bool,
    /// The kernel does not let us write it.
    no_write: bool,
    /// The peer cannot write ours.
    peer_no_write: bool,
    /// The peer can do nothing with offers.
    no_offers: bool,
    /// Sizes at which the answer to "do both sides copy?" changes; below the first it is no.
    share_borders: SmallVec<[usize; 2]>,
    /// Ranks outnumber cores.
    crowded: bool,
    tx: FxHashMap<u32, Offered>,
    /// Messages of ours whose copying is shared, in the order of their numbers.
    sharing: VecDeque<u32>,
    /// The number of the last one.
    accepted: u64,
    rx: FxHashMap<u32, Coming>,
    copying: VecDeque<u32>,
    /// The number of the last message of the peer's that was shared out.
    shared: u64,
    notes: VecDeque<Note>,
    /// Bytes that we copied from the peer's memory as soon as their message was there.
    pub fetched: u64,
}

impl Part {
    /// Claims the next chunk and copies it. Returns its bytes; 0: there is none for us.
    fn write(&mut self, link: &Link, target: Target, iov: &UserIov) -> Result<usize, NoAccess> {
        self.known = self.known || target.is_there()?;
        if !self.known || !link.claim_back(&mut self.share) {
            return Ok(0);
        }
        let from = (self.share.chunks() - self.share.claimed()) as usize * self.chunk;
        let len = self.chunk.min(self.wanted - from);
        remote::store_part(target.pid, &self.to, iov, from, len).map(|()| len)
    }
}

impl Target {
    /// Whether the process of this id is the one that the table is of.
    fn is_there(self) -> Result<bool, NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        remote::fetch_words(self.pid, self.table.address, &mut line)?;
        Ok(Root::parse(&line, self.table).is_some())
    }

    /// Copies bytes `at..at + len` of a message from there, if it is that process.
    fn fetch(self, from: &Pieces, to: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        let also = Also { at: self.table.address, words: &mut line };
        remote::fetch_part(self.pid, from, to, at, len, Some(also))?;
        Root::parse(&line, self.table).map(|_| ()).ok_or(NoAccess::Gone)
    }
}

impl Copies {
    /// The kernel may be asked. Both sides copy messages from the first of these sizes on, no more from the second on, again from the third
    /// on, and so on.
    pub fn share_between(&mut self, borders: &[usize]) {
        self.on = true;
        self.share_borders = borders.into();
    }

    /// Nothing is shared as long as ranks outnumber cores.
    #[inline]
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    fn is_shared(&self, bytes: usize) -> bool {
        !self.crowded && self.share_borders.iter().filter(|from| bytes >= **from).count() % 2 == 1
    }

    /// Where the peer's memory is, if the kernel can be asked for it.
    #[inline]
    pub fn reach(&mut self, target: Option<Target>) {
        self.target = target;
    }

    /// Whether the peer has answered that offers are of no use.
    pub fn is_refused(&self) -> bool {
        self.no_offers
    }

    /// Whether [`push`](Self::push) would have something to do.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.notes.is_empty() || !self.copying.is_empty() || !self.sharing.is_empty()
    }

    /// Whether messages of ours are not with the peer, or it has not heard of what became of its own.
    pub fn sending(&self) -> bool {
        !self.tx.is_empty() || !self.notes.is_empty()
    }

    /// Writes control records as there is room, and copies what fits a turn. `fresh`: what the peer said was said a moment ago, so that
    /// its process id cannot be somebody else's yet. Returns how much there was to do.
    pub fn push(&mut self, link: &mut Link, fresh: bool, ended: &mut Ended) -> Result<usize, Corrupt> {
        let mut work = self.write_notes(link)?;
        let mut left = TURN;
        while left > 0 && !self.sharing.is_empty() {
            let n = self.copy_back(link, fresh);
            ended.stored += n as u64;
            left = left.saturating_sub(n);
            work += 1;
        }
        while left > 0 && !self.copying.is_empty() {
            left = left.saturating_sub(self.copy_front(link, ended));
            work += 1;
        }
        if work > 0 {
            self.write_notes(link)?;
        }
        Ok(work)
    }

    fn write_notes(&mut self, link: &mut Link) -> Result<usize, Corrupt> {
        let mut written = 0;
        while let Some(note) = self.notes.front() {
            let plain = |kind, id, data, forbidden| (kind, id, data, if forbidden { flag::FORBIDDEN } else { 0 });
            let (mut body, mut bytes) = ([0; 2], Default::default());
            let (kind, id, data, flags) = match *note {
                Note::Fin(id) => plain(Kind::Fin, id, 0, false),
                Note::Done(id, chunks, forbidden) => plain(Kind::Done, id, chunks.into(), forbidden),
                Note::Decline(id, wanted, forbidden) => plain(Kind::Cts, id, wanted as u64, forbidden),
                Note::Accept(id, number) => {
                    // It may have been copied meanwhile; FIN follows then.
                    let Some(Coming { state: State::Copying(copying), .. }) = self.rx.get(&id) else {
                        self.notes.pop_front();
                        continue;
                    };
                    body = [number, copying.chunk as u64];
                    bytes = emit_pieces(&pieces_of(&copying.req.iov).unwrap_or_default());
                    plain(Kind::Accept, id, copying.wanted as u64, false)
                }
            };
            let draft = Draft { kind, flags, tag: id.into(), data, body, iov: &[], skip: 0, len: bytes.len(), bytes: &bytes };
            match link.send(&draft, Class::Control) {
                Ok(_) => self.notes.pop_front(),
                Err(NotSent::Full) => break,
                Err(NotSent::Corrupt) => return Err(Corrupt),
            };
            written += 1;
        }
        Ok(written)
    }

    // The sender's side.

    /// Takes the next chunk of the oldest message that is shared. Returns the bytes copied.
    fn copy_back(&mut self, link: &Link, fresh: bool) -> usize {
        let Some(&id) = self.sharing.front() else { return 0 };
        let Some(Offered { iov, part: Some(part), .. }) = self.tx.get_mut(&id) else {
            // The receiver has done all of it.
            self.sharing.pop_front();
            return 0;
        };
        part.known |= fresh;
        let done = part.share.claimed();
        let written = match self.target.filter(|_| !self.no_write) {
            Some(target) => part.write(link, target, iov),
            None => Err(NoAccess::Forbidden),
        };
        match written {
            Ok(n) if n > 0 => return n,
            Err(NoAccess::Forbidden) => self.no_write = true,
            _ => {}
        }
        self.sharing.pop_front();
        self.notes.push_back(Note::Done(id, done, self.no_write));
        0
    }

    /// The receiver shares out a message.
    pub fn on_accept(&mut self, link: &Link, header: &Header) -> Result<(), Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        let offered = self.tx.get_mut(&id).ok_or(Corrupt)?;
        let wanted = usize::try_from(header.data).map_err(|_| Corrupt)?;
        let [number, chunk] = link.body(header);
        let chunk = usize::try_from(chunk).map_err(|_| Corrupt)?;
        if offered.part.is_some() || wanted == 0 || wanted > offered.total || chunk < PAGE {
            return Err(Corrupt);
        }
        let chunks = u32::try_from(wanted.div_ceil(chunk)).map_err(|_| Corrupt)?;
        if chunks > MAX_CHUNKS || number <= self.accepted || number > MAX_NUMBER {
            return Err(Corrupt);
        }
        let mut words = [0; 2 * MAX_PIECES];
        let n = link.payload_words(header, &mut words);
        let to = parse_pieces(&words[..n], wanted).map_err(|_| Corrupt)?;
        self.accepted = number;
        offered.part = Some(Part { share: Share::new(number, chunks), wanted, chunk, to, known: false });
        self.sharing.push_back(id);
        Ok(())
    }

    /// The receiver has all it wants. Returns the send, which is complete.
    pub fn on_fin(&mut self, header: &Header) -> Result<SendReq, Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        self.tx.remove(&id).map(|o| o.req).ok_or(Corrupt)
    }

    /// The receiver wants a message as a stream: `None` if this is not one of those offered.
    pub fn on_cts(&mut self, header: &Header) -> Result<Option<Returned>, Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        let Some(Offered { iov, total, req, .. }) = self.tx.remove(&id) else { return Ok(None) };
        let wanted = usize::try_from(header.data).map_err(|_| Corrupt)?;
        self.no_offers |= header.flags & flag::FORBIDDEN != 0;
        if wanted > total { Err(Corrupt) } else { Ok(Some(Returned { iov, total, wanted, req })) }
    }

    // The receiver's side.

    /// Copies a message that is short enough for one turn, and shared with nobody, as soon as it is matched. Returns its bytes; `None` if
    /// it must take the long way.
    fn fetch_at_once(&mut self, link: &mut Link, said: &Announced<Said>, req: &RecvReq) -> Result<Option<usize>, Corrupt> {
        let Announced { env, body } = said;
        let wanted = req.cap.min(env.total);
        let Some(target) = self.target.filter(|_| wanted <= TURN && !self.is_shared(wanted) && !self.no_read) else {
            return Ok(None);
        };
        if self.rx.contains_key(&body.id) {
            return Err(Corrupt);
        }
        if wanted > 0 && target.fetch(&body.pieces(env.total)?, &req.iov, 0, wanted).is_err() {
            return Ok(None);
        }
        self.fetched += wanted as u64;
        self.notes.push_back(Note::Fin(body.id));
        self.write_notes(link)?;
        Ok(Some(wanted))
    }

    /// Takes the next chunk of the oldest message that has something to be copied. Returns the bytes copied.
    fn copy_front(&mut self, link: &Link, ended: &mut Ended) -> usize {
        let Some(id) = self.copying.pop_front() else { return 0 };
        let Some(Coming { from, state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return 0 };
        let Some(target) = self.target.filter(|_| !self.no_read) else {
            // A process that this one cannot even name may see this one.
            self.no_read = true;
            self.leave_to_sender(id, ended);
            return 0;
        };
        let end = match &mut c.stage {
            Stage::Alone(end) => *end,
            Stage::Claiming(share) => {
                if !link.claim_front(share) {
                    c.stage = Stage::Waiting(*share);
                    return 0;
                }
                (share.claimed() as usize * c.chunk).min(c.wanted)
            }
            Stage::Waiting(_) => return 0,
        };
        let len = c.chunk.min(end - c.next);
        match target.fetch(from, &c.req.iov, c.next, len) {
            Ok(()) => {
                c.next += len;
                ended.fetched += len as u64;
                let over = match c.stage {
                    Stage::Alone(end) => c.next == end,
                    _ => c.next == c.wanted,
                };
                if over {
                    self.finish(id, ended)
                } else {
                    self.copying.push_front(id)
                }
                len
            }
            Err(NoAccess::Forbidden) => {
                self.no_read = true;
                self.leave_to_sender(id, ended);
                0
            }
            Err(NoAccess::Fault | NoAccess::Gone) => {
                self.decline(id, false, ended);
                0
            }
        }
    }

    /// We may not read: the sender may be able to write.
    fn leave_to_sender(&mut self, id: u32, ended: &mut Ended) {
        let Some(Coming { state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return };
        if let Stage::Claiming(share) | Stage::Waiting(share) = c.stage {
            c.stage = Stage::Waiting(share);
        } else if !self.on || c.next > 0 || !self.share_out(id) {
            self.decline(id, true, ended);
        }
    }

    /// Offers to share the copying of a message. Whether that can be.
    fn share_out(&mut self, id: u32) -> bool {
        let Some(Coming { state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return false };
        if self.peer_no_write || self.shared == MAX_NUMBER || pieces_of(&c.req.iov).is_none() {
            return false;
        }
        let most = c.wanted.div_ceil(MAX_CHUNKS as usize).max(CHUNKS.1);
        c.chunk = (c.wanted / PARTS).clamp(CHUNKS.0, most).next_multiple_of(PAGE);
        let Ok(chunks) = u32::try_from(c.wanted.div_ceil(c.chunk)) else { return false };
        self.shared += 1;
        let share = Share::new(self.shared, chunks);
        c.stage = if self.no_read { Stage::Waiting(share) } else { Stage::Claiming(share) };
        self.notes.push_back(Note::Accept(id, self.shared));
        true
    }

    /// Takes the receive of a message that has just been matched; returns it if nothing is to be copied.
    pub fn adopt(&mut self, id: u32, req: RecvReq) -> Option<Received> {
        let coming = self.rx.get_mut(&id)?;
        let env = coming.env;
        let wanted = req.cap.min(env.total);
        if wanted == 0 {
            self.rx.remove(&id);
            self.notes.push_back(Note::Fin(id));
            return Some(Received { req, env, placed: 0 });
        }
        coming.state = State::Copying(Copying { req, wanted, chunk: CHUNKS.1, next: 0, stage: Stage::Alone(wanted) });
        let shared = self.on && (self.is_shared(wanted) || self.no_read) && self.share_out(id);
        // What may not be read and not be shared is found out there.
        if !(shared && self.no_read) {
            self.copying.push_back(id);
        }
        None
    }

    /// The sender has done its share.
    pub fn on_done(&mut self, header: &Header, ended: &mut Ended) -> Result<(), Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        self.peer_no_write |= header.flags & flag::FORBIDDEN != 0;
        // It may have crossed our FIN, or our wish for a stream.
        let Some(Coming { state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return Ok(()) };
        let (Stage::Claiming(share) | Stage::Waiting(share)) = c.stage else { return Err(Corrupt) };
        let left = share.chunks().checked_sub(u32::try_from(header.data).map_err(|_| Corrupt)?).ok_or(Corrupt)?;
        let end = (left as usize * c.chunk).min(c.wanted);
        if end < c.next {
            return Err(Corrupt);
        }
        let waiting = matches!(c.stage, Stage::Waiting(_));
        c.stage = Stage::Alone(end);
        if c.next == end {
            if waiting {
                self.finish(id, ended);
            }
        } else if self.no_read {
            self.decline(id, self.peer_no_write, ended);
        } else if waiting {
            self.copying.push_front(id);
        }
        Ok(())
    }

    /// All bytes are there.
    fn finish(&mut self, id: u32, ended: &mut Ended) {
        let Some(Coming { env, state: State::Copying(c), .. }) = self.rx.remove(&id) else { return };
        self.notes.push_back(Note::Fin(id));
        ended.received.push(Received { placed: c.wanted, req: c.req, env });
    }

    /// The message must come as a stream.
    fn decline(&mut self, id: u32, forbidden: bool, ended: &mut Ended) {
        let Some(Coming { env, state: State::Copying(c), .. }) = self.rx.remove(&id) else { return };
        self.notes.push_back(Note::Decline(id, c.wanted, forbidden));
        ended.declined.push(Declined { id, env, req: c.req });
    }

    /// The peer is gone.
    pub fn abort(&mut self) -> Aborted {
        let mut out = Aborted::default();
        let mut sends: Vec<(u32, Offered)> = self.tx.drain().collect();
        sends.sort_by_key(|(id, _)| *id);
        out.sends = sends.into_iter().map(|(_, o)| o.req).collect();
        let mut recvs: Vec<(u32, Coming)> = self.rx.drain().collect();
        recvs.sort_by_key(|(id, _)| *id);
        for (_, coming) in recvs {
            if let State::Copying(c) = coming.state {
                out.recvs.push((c.req, coming.env));
            }
        }
        self.sharing.clear();
        self.copying.clear();
        self.notes.clear();
        out
    }

    /// Registers the message that the OFFER at the head of the ring announces.
    fn open(&mut self, said: &Announced<Said>, state: State) -> Result<u32, Corrupt> {
        let Announced { env, body } = *said;
        let from = body.pieces(env.total)?;
        match self.rx.entry(body.id) {
            std::collections::hash_map::Entry::Occupied(_) => return Err(Corrupt),
            std::collections::hash_map::Entry::Vacant(v) => v.insert(Coming { env, from, state }),
        };
        Ok(body.id)
    }
}

impl Protocol for Syscall {
    type Body = Said;
    const ID: ProtoId = ProtoId::Syscall;
    const WHAT: &'static str = "one copy by the kernel, long ones by both sides at once";

    fn start(wire: &mut Wire<'_>, msg: &Message<'_>, req: &SendReq) -> Result<Started, Refused> {
        let copies = &mut *wire.copies;
        if copies.target.is_none() || copies.no_offers || !msg.bytes.is_empty() || !wire.link.can_receive() {
            return Err(Refused::Unable);
        }
        let Some(pieces) = pieces_of(msg.iov) else { return Err(Refused::Unable) };
        let id = wire.streams.next_id();
        let bytes = emit_pieces(&pieces);
        let draft = Draft {
            kind: Kind::Offer,
            flags: flags_of(msg),
            tag: msg.tag,
            data: msg.data.unwrap_or(0),
            body: Offer { total: msg.len as u64, id }.emit(),
            iov: &[],
            skip: 0,
            len: bytes.len(),
            bytes: &bytes,
        };
        wire.link.send(&draft, Class::Envelope)?;
        copies.tx.insert(id, Offered { iov: msg.iov.into(), total: msg.len, req: *req, part: None });
        Ok(Started::Streaming)
    }

    fn announced(wire: &mut Wire<'_>, header: &Header) -> Result<Announced<Said>, Corrupt> {
        let offer = Offer::parse(wire.link.body(header)).map_err(|_| Corrupt)?;
        let total = usize::try_from(offer.total).map_err(|_| Corrupt)?;
        let mut words = [0; 2 * MAX_PIECES];
        let count = wire.link.payload_words(header, &mut words);
        Ok(Announced { env: envelope_of(header, total), body: Said { id: offer.id, words, count } })
    }

    fn place(wire: &mut Wire<'_>, _: &Header, said: &Announced<Said>, req: &RecvReq) -> Result<Placed, Corrupt> {
        match wire.copies.fetch_at_once(wire.link, said, req)? {
            Some(placed) => Ok(Placed::Whole(placed)),
            None => Ok(Placed::Offered(wire.copies.open(said, State::Matched)?)),
        }
    }

    fn hold(wire: &mut Wire<'_>, _: &Header, said: &Announced<Said>) -> Result<Held, Corrupt> {
        Ok(Held::Offer(wire.copies.open(said, State::Held)?))
    }
}

pub(super) fn deliver_held(wire: &mut Wire<'_>, id: u32, req: RecvReq) -> Delivery {
    wire.copies.adopt(id, req).map_or(Delivery::Pending, Delivery::Done)
}

pub(super) fn discard_held(wire: &mut Wire<'_>, id: u32) {
    if wire.copies.rx.remove(&id).is_some() {
        wire.copies.notes.push_back(Note::Fin(id));
    }
}

#[cfg(test)]
#[path = "syscall_tests.rs"]
mod tests;
