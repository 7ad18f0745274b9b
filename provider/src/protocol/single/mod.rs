//! Single copy: a long message is copied once, from the sender's buffer to the receiver's; by the receiver, by the sender, or by both at
//! the same time. Who copies uses the kernel (`process_vm_readv`, `process_vm_writev`), or, if the other's memory is mapped here because
//! its owner has lent it, plain loads and stores ([`means`]).
//!
//! ```text
//! sender                                     receiver
//!   OFFER [total, id | where it is]  ─▶       match? no: keep the envelope (see below)
//!                                             yes, short: copy it
//!         ◀─ ACCEPT [number | where it goes]  yes, long: share it out, and begin at the front
//!   copy from the back                        copy from the front, chunk by chunk (`shm::split`)
//!   DONE [chunks] ─▶                          what is left where they met
//!         ◀───────────── FIN ───────────────  all is there: the sender's buffer is free
//! ```
//! * Whoever comes round takes chunks: a peer that computes leaves all to the other, and two that wait take half the time. The receiver
//!   sees for itself when all is copied; DONE tells it only of what nobody has.
//! * A turn copies at most [`TURN`] bytes, so that others get theirs.
//! * OFFER and ACCEPT may name memory that was lent, by its number ([`Lender`]); the peer was handed it before, through the socket.
//!   If the peer could not map it, it says so in FIN, and what follows is left to the kernel. When its owner does not lend it any more (a DONE of
//!   its own, behind all records that name it), it is unmapped, as soon as no message needs it.
//! * An OFFER may say that its message would else have been a record. Then it is fetched and kept, within limits, also if no receive waits for it: its sender
//!   waits for a peer that makes progress, not for one that asks for just this message.
//! * A helper thread may take chunks, too, while the application computes ([`copier`]).
//! * The kernel may refuse at any time (ptrace scope, seccomp, namespaces, memory that cannot be reached this way), or find nobody, or another process,
//!   under the peer's number: then it is not asked for this peer any more. What one side may not, the other may; if neither may, the receiver answers CTS instead, as for a stream, and the message goes by `stream.rs`
//!   from its first byte. Nothing of it was completed before. The sender then sends no further offers to this peer.
//! * Process ids are used again. From a sender of which it has heard nothing for a millisecond ([`FRESH`]) the receiver reads the root of its
//!   region table (which has a tag of its own), too, by the same system calls as the bytes: they came from that very process. The sender looks
//!   there before it writes to such a receiver. Lent memory needs neither: the mapping is of that file and no other.
//!
//! States. Sender: offered → (sharing) → FIN, or a stream. Receiver: held → matched → copying ⇄ waiting for the sender → done, or a stream.

mod copier;
mod invited;
mod kept;
mod means;
mod pace;
mod receiver;
mod sender;

use super::{
    Aborted, Announced, Delivery, Lender, Placed, Protocol, Refused, Started, Target, Wire, bare, envelope_of, flags_of,
};
use crate::cache::attached::Attached;
use crate::mem::atomic::AtomicU64;
use crate::mem::user::UserIov;
use crate::request::{Envelope, Held, Message, Received, RecvReq, SendReq};
use crate::sys::clock::Clock;
use crate::transport::link::{Class, Corrupt, Draft, Link, NotSent};
use crate::types::ProtoId;
use crate::wire::header::{Header, Kind, MAX_PIECES, flag};
use crate::wire::offer::{Named, Offer, Pieces, emit_pieces, parse_pieces, pieces_of};
use copier::Helping;
use invited::Inviting;
pub use invited::SHORTEST;
pub use kept::LONGEST_KEPT;
pub(super) use kept::{deliver_kept, discard_kept};
use means::Loans;
pub use means::{Engines, Lent, Loan};
use pace::Pace;
pub use pace::Worth;
use receiver::{Coming, State};
use rustc_hash::FxHashMap;
pub use sender::{Finished, Told};
use sender::{Offered, Part};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that one side copies in one turn, at least a chunk.
pub const TURN: usize = 256 << 10;
/// Shortest chunk of a shared message; one that is no longer is not worth sharing.
pub const LEAST_CHUNK: usize = 16 << 10;
/// Shortest and longest chunk.
const CHUNKS: (usize, usize) = (LEAST_CHUNK, 512 << 10);
/// Chunks of a shared message, within these limits: the fewer, the longer one side waits for the other's last.
const PARTS: usize = 4;
/// Messages of such lengths that the kernel copies have six: with four the sender, who reads its own cache, gets through two or three, and half the time a side waits for the last.
const SIX_PARTS: std::ops::Range<usize> = 768 << 10..2 << 20;
/// Messages that the kernel copies have two chunks up to here: another system call costs more than waiting for the other's half.
const HALVES: usize = 256 << 10;
const PAGE: usize = 4096;

/// Chunks of a shared message of so many bytes, as far as their limits let that be.
fn parts(bytes: usize, mapped: bool) -> usize {
    match bytes {
        _ if mapped => PARTS,
        ..=HALVES => 2,
        n if SIX_PARTS.contains(&n) => 6,
        _ => PARTS,
    }
}

/// The protocol.
pub struct Single;

/// What an OFFER says.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    id: u32,
    /// The number of the memory that the message lies in, if that was lent; else 0.
    lent: u32,
    words: [u64; 2 * MAX_PIECES],
    count: usize,
    timed: bool,
    /// If nobody waits for it, it is to be kept.
    kept: bool,
    /// The sender writes a part of it.
    invited: bool,
}

impl Said {
    fn pieces(&self, total: usize) -> Result<Pieces, Corrupt> {
        parse_pieces(&self.words[..self.count], total).map_err(|_| Corrupt)
    }
}

/// A control record to be written.
enum Note {
    /// All is here; whether what was lent could not be mapped; how long the copy took, if that was asked and is known ([`pace`]).
    Fin(u32, bool, u64),
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
    /// It was offered in memory that the receiver should have been able to map.
    pub lent: bool,
    /// It was presumed to be in the receiver's cache.
    pub presumed: bool,
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
    /// Of `fetched`, those that the helper thread copied.
    pub helped: u64,
}

/// Which of the messages that the table shares out are, if the user does not [force](Copies::force_between) it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// None.
    Never,
    /// Those that take one side so long that help is worth its price, as seen of this peer.
    #[default]
    WhereItPays,
}

/// Whether a size lies between the first and the second of these, between the third and the fourth, and so on.
fn is_between(borders: &[usize], bytes: usize) -> bool {
    borders.iter().filter(|from| bytes >= **from).count() % 2 == 1
}

/// Offered messages of one link, both directions.
#[derive(Default)]
pub struct Copies {
    /// Whether this process may ask the kernel at all.
    on: bool,
    target: Option<Target>,
    /// The kernel does not let us read the peer's memory, or does not find it under the number that we know.
    no_read: bool,
    /// The same of writing it.
    no_write: bool,
    /// The peer cannot write ours.
    peer_no_write: bool,
    /// The peer can do nothing with offers.
    no_offers: bool,
    /// The peer cannot map what we lend.
    no_loans: bool,
    /// The peer does not write what we lend.
    no_stores: bool,
    /// What the peer has lent.
    loans: Loans,
    /// Sizes at which the answer to "do both sides copy?" changes; below the first it is no. By the kernel; in mapped memory.
    share_borders: [SmallVec<[usize; 2]>; 2],
    /// The same of those that are shared without asking whether it pays.
    forced_borders: [SmallVec<[usize; 2]>; 2],
    sharing: Sharing,
    engines: Engines,
    help: Helping,
    pace: Pace,
    clock: Option<Clock>,
    /// The shared message that is being timed, for nothing else is under way, and when it was shared out.
    timed: Option<(u32, u64)>,
    /// The record that is being looked at was written after this time, so the peer lived; 0: it is not known.
    since: u64,
    tx: FxHashMap<u32, Offered>,
    /// Our parts of messages of ours whose copying is shared, in the order of their numbers.
    parts: VecDeque<(u32, Part)>,
    /// The number of the last one.
    accepted: u64,
    rx: FxHashMap<u32, Coming>,
    copying: VecDeque<u32>,
    /// Of those that were shared out: where we have met the sender, and it may still be copying.
    waiting: Vec<u32>,
    /// The number of the last message of the peer's that was shared out.
    shared: u64,
    notes: VecDeque<Note>,
    inviting: Inviting,
    /// Messages of the peer's of which it wrote a part where it was invited to.
    pub invited: u64,
    /// Bytes that we wrote to the peer's memory where it had invited us to.
    pub stored: u64,
    /// Bytes that we copied from the peer's memory as soon as their message was there.
    pub fetched: u64,
    /// Bytes that we wrote past the caches.
    pub past_caches: u64,
    /// Bytes of messages that we fetched and keep, for nobody has asked for them.
    kept: usize,
}

impl Copies {
    /// The kernel may be asked.
    pub fn allow_kernel(&mut self) {
        self.on = true;
    }

    /// Both sides copy messages from the first of these sizes on, no more from the second on, again from the third on, and so on: those that
    /// the kernel copies, and those in mapped memory.
    pub fn share_between(&mut self, kernel: &[usize], mapped: &[usize]) {
        self.share_borders = [kernel.into(), mapped.into()];
    }

    /// Of these sizes, given like those of [`share_between`](Copies::share_between), both copy without asking whether it pays.
    pub fn force_between(&mut self, kernel: &[usize], mapped: &[usize]) {
        self.forced_borders = [kernel.into(), mapped.into()];
    }

    /// How sizes that are to be shared are, of which nothing is forced.
    #[inline]
    pub fn set_sharing(&mut self, sharing: Sharing) {
        self.sharing = sharing;
    }

    /// What time is taken by, and what help is worth: by the kernel, and in mapped memory.
    pub fn set_clock(&mut self, clock: Clock, worth: [Worth; 2]) {
        self.clock = Some(clock);
        self.pace.set_worth(worth);
    }

    /// Whether an offered message of this name is coming.
    pub fn expects(&self, id: u32) -> bool {
        self.rx.contains_key(&id)
    }

    /// How messages in mapped memory are copied.
    pub fn copy_by(&mut self, engines: Engines) {
        self.engines = engines;
    }

    /// The next OFFER or ACCEPT was written after this time; 0: perhaps long ago.
    #[inline]
    pub fn heard(&mut self, since: u64) {
        self.since = since;
    }

    /// Whether the table lets both copy so many bytes.
    fn may_be_shared(&self, bytes: usize, mapped: bool) -> bool {
        is_between(&self.share_borders[usize::from(mapped)], bytes)
    }

    fn is_forced(&self, bytes: usize, mapped: bool) -> bool {
        is_between(&self.forced_borders[usize::from(mapped)], bytes)
    }

    fn is_shared(&mut self, bytes: usize, mapped: bool) -> bool {
        let beside = !self.tx.is_empty();
        self.may_be_shared(bytes, mapped)
            && (self.is_forced(bytes, mapped)
                || match self.sharing {
                    Sharing::Never => false,
                    Sharing::WhereItPays => bytes > LEAST_CHUNK && self.pace.wants_help(bytes, mapped, beside),
                })
    }

    /// Whether the peer may lend so many bytes more under this number.
    pub fn may_lend(&self, number: u32, bytes: usize) -> bool {
        self.loans.has_room(number, bytes)
    }

    /// The peer has lent memory; `None`: it cannot be mapped here. Whether that is remembered: an honest peer does not lend so much.
    pub fn lent(&mut self, number: u32, lent: Option<(Lent, Loan)>) -> bool {
        self.loans.insert(number, lent)
    }

    /// Uses of what this peer lent are counted together with those of others.
    pub fn count_uses_by(&mut self, clock: Arc<AtomicU64>) {
        self.loans.count_by(clock);
    }

    /// What is mapped of the memory that the peer lent.
    pub fn attached(&self) -> impl Iterator<Item = Attached<u32>> {
        self.loans.attached()
    }

    /// Maps memory again of which it was heard. Whether it is mapped.
    pub fn attach(&mut self, number: u32) -> bool {
        self.loans.attach(number)
    }

    /// Unmaps memory that no message needs, until one names it.
    pub fn detach(&mut self, number: u32) {
        self.loans.detach(number);
    }

    /// Whether memory of this number is mapped, or cannot be.
    pub fn is_ready(&self, number: u32) -> bool {
        self.loans.is_ready(number)
    }

    /// Whether it was heard of memory of this number.
    pub fn knows(&self, number: u32) -> bool {
        self.loans.knows(number)
    }

    /// The number of the memory that the record at the head of the ring, an OFFER, an ACCEPT or the end of a loan, names, if nothing was heard
    /// of it yet, or it is not mapped and is to be.
    #[inline]
    pub fn news(&self, link: &Link, header: &Header) -> Option<u32> {
        let lent = match header.kind {
            Kind::Accept => Named::of(header.tag).lent,
            Kind::Done => return Some(header.tag as u32).filter(|lent| *lent != 0 && !self.loans.knows(*lent)),
            _ => Offer::parse(link.body()).map_or(0, |offer| offer.lent),
        };
        (lent != 0 && !self.loans.is_ready(lent)).then_some(lent)
    }

    /// What the peer lent under a number, which it did, is not lent any more: it is unmapped here, once no message needs it.
    pub fn on_recalled(&mut self, header: &Header) -> Result<(), Corrupt> {
        let number = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        if header.flags == flag::RECALLED && header.data == 0 && self.loans.remove(number) { Ok(()) } else { Err(Corrupt) }
    }

    /// The record that ends a loan of ours. None that names it may follow.
    pub fn recall(number: u32) -> Draft<'static> {
        Draft { flags: flag::RECALLED, ..bare(Kind::Done, number.into(), 0) }
    }

    /// Whether the peer can map what is lent to it, as far as known.
    #[inline]
    pub fn takes_loans(&self) -> bool {
        !self.no_loans
    }

    /// Where the peer's memory is, if the kernel can be asked for it.
    #[inline]
    pub fn reach(&mut self, target: Option<Target>) {
        self.target = target;
    }

    /// Whether the kernel can be asked for the peer's memory, and the peer has not answered that this is of no use.
    #[inline]
    pub fn can_ask_kernel(&self) -> bool {
        self.target.is_some() && !self.no_offers
    }

    /// Whether the peer has answered that offers are of no use.
    pub fn is_refused(&self) -> bool {
        self.no_offers
    }

    /// Whether [`push`](Self::push) would have something to do.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.notes.is_empty() || !self.copying.is_empty() || !self.parts.is_empty() || !self.waiting.is_empty()
    }

    /// Whether messages of ours are not with the peer, or it has not heard of what became of its own.
    pub fn sending(&self) -> bool {
        !self.tx.is_empty() || !self.notes.is_empty()
    }

    /// Writes control records as there is room, and copies what fits a turn. Returns how much there was to do.
    pub fn push(&mut self, link: &mut Link, lender: &mut dyn Lender, ended: &mut Ended) -> Result<usize, Corrupt> {
        let mut work = self.write_notes(link, Some(lender))?;
        let mut left = TURN;
        while left > 0 && !self.parts.is_empty() {
            let n = self.copy_back(link);
            ended.stored += n as u64;
            left = left.saturating_sub(n);
            work += 1;
        }
        while left > 0 && !self.copying.is_empty() {
            left = left.saturating_sub(self.copy_front(link, ended));
            work += 1;
        }
        if !self.waiting.is_empty() {
            let before = ended.received.len();
            self.look_at_waiting(link, ended);
            work += ended.received.len() - before;
        }
        if work > 0 {
            self.write_notes(link, Some(lender))?;
        }
        Ok(work)
    }

    /// Writes control records as there is room; without a lender none that names our memory.
    fn write_notes(&mut self, link: &mut Link, mut lender: Option<&mut dyn Lender>) -> Result<usize, Corrupt> {
        let mut written = 0;
        while let Some(note) = self.notes.front() {
            let bit = |on, flag| if on { flag } else { 0 };
            let (mut body, mut bytes) = ([0; 2], Default::default());
            let (kind, tag, data, flags) = match *note {
                Note::Fin(id, unmapped, ns) => (Kind::Fin, id.into(), ns, bit(unmapped, flag::UNMAPPED)),
                Note::Done(id, chunks, forbidden) => (Kind::Done, id.into(), chunks.into(), bit(forbidden, flag::FORBIDDEN)),
                Note::Decline(id, wanted, forbidden) => (Kind::Cts, id.into(), wanted as u64, bit(forbidden, flag::FORBIDDEN)),
                Note::Accept(id, number) => {
                    let Some(lender) = &mut lender else { break };
                    match self.shared_out(id, &mut **lender) {
                        Some((named, copying)) => {
                            body = [number, copying.chunk as u64];
                            bytes = emit_pieces(&pieces_of(&copying.req.iov).unwrap_or_default());
                            (Kind::Accept, named.emit(), copying.wanted as u64, 0)
                        }
                        None => {
                            self.notes.pop_front();
                            continue;
                        }
                    }
                }
            };
            let draft = Draft { kind, flags, tag, data, body, iov: &[], skip: 0, len: bytes.len(), bytes: &bytes };
            match link.send(&draft, Class::Control) {
                Ok(_) => self.notes.pop_front(),
                Err(NotSent::Full) => break,
                Err(NotSent::Corrupt) => return Err(Corrupt),
            };
            written += 1;
        }
        Ok(written)
    }

    /// The peer is gone.
    pub fn abort(&mut self) -> Aborted {
        self.call_off();
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
        self.parts.clear();
        self.timed = None;
        self.copying.clear();
        self.waiting.clear();
        self.notes.clear();
        self.inviting = Inviting::default();
        self.loans = Loans::default();
        self.kept = 0;
        out
    }
}

impl Protocol for Single {
    type Body = Said;
    const ID: ProtoId = ProtoId::Syscall;
    const WHAT: &'static str = "one copy, long ones by both sides at once";

    fn start(wire: &mut Wire<'_>, msg: &Message<'_>, req: &SendReq) -> Result<Started, Refused> {
        let copies = &mut *wire.copies;
        let lent = msg.lent != 0;
        let can_offer = if lent { !copies.no_loans } else { copies.can_ask_kernel() };
        if !can_offer || !msg.bytes.is_empty() || !wire.link.can_receive() {
            return Err(Refused::Unable);
        }
        let Some(pieces) = pieces_of(msg.iov) else { return Err(Refused::Unable) };
        let id = wire.streams.next_id();
        let bytes = emit_pieces(&pieces);
        let taken = copies.take_up(wire.link, msg);
        let tells = msg.presumed.is_some_and(|presumed| presumed.tells);
        let draft = Draft {
            kind: Kind::Offer,
            flags: flags_of(msg.tagged, msg.data.is_some()) | if tells { flag::TIMED } else { 0 },
            tag: msg.tag,
            data: msg.data.unwrap_or(0),
            body: Offer {
                total: msg.len as u64,
                id,
                lent: msg.lent,
                invited: taken.is_some(),
                // Else it would have been a record.
                kept: msg.presumed.is_some(),
            }
            .emit(),
            iov: &[],
            skip: 0,
            len: bytes.len(),
            bytes: &bytes,
        };
        if let Err(why) = wire.link.send(&draft, Class::Envelope) {
            if taken.is_some() {
                wire.link.give_back();
            }
            return Err(why.into());
        }
        copies
            .tx
            .insert(id, Offered { iov: msg.iov.into(), total: msg.len, req: *req, lent, presumed: msg.presumed, shared: false });
        if let Some(taken) = taken {
            copies.write_invited(wire.link, &taken, msg.iov, msg.len);
        }
        Ok(Started::Streaming)
    }

    fn announced(wire: &mut Wire<'_>, header: &Header) -> Result<Announced<Said>, Corrupt> {
        let Offer { total, id, lent, invited, kept } = Offer::parse(wire.link.body()).map_err(|_| Corrupt)?;
        let total = usize::try_from(total).map_err(|_| Corrupt)?;
        let mut words = [0; 2 * MAX_PIECES];
        let count = wire.link.payload_words(header, &mut words);
        Ok(Announced {
            env: envelope_of(header, total),
            body: Said { id, lent, words, count, timed: header.flags & flag::TIMED != 0, kept, invited },
        })
    }

    fn place(wire: &mut Wire<'_>, _: &Header, said: &Announced<Said>, req: &RecvReq) -> Result<Placed, Corrupt> {
        // It may have to come as a stream after all.
        if wire.streams.knows(said.body.id) {
            return Err(Corrupt);
        }
        if said.body.invited {
            return wire.copies.place_invited(wire.link, said, req);
        }
        if said.body.lent != 0 {
            wire.copies.saw_uninvited(said.env.total, &req.iov);
        }
        let wanted = req.cap.min(said.env.total);
        match wire.copies.fetch_at_once(wire.link, said, wanted, &req.iov)? {
            true => Ok(Placed::Whole(wanted)),
            false => Ok(Placed::Offered(wire.copies.open(said, State::Matched)?)),
        }
    }

    fn hold(wire: &mut Wire<'_>, _: &Header, said: &Announced<Said>) -> Result<Held, Corrupt> {
        // Who was invited has a receive.
        if said.body.invited || wire.streams.knows(said.body.id) {
            return Err(Corrupt);
        }
        if said.body.kept
            && let Some(bytes) = wire.copies.fetch_to_keep(wire.link, said, wire.pool)?
        {
            return Ok(Held::Fetched(bytes));
        }
        Ok(Held::Offer(wire.copies.open(said, State::Held)?))
    }
}

pub(super) fn deliver_held(wire: &mut Wire<'_>, id: u32, req: RecvReq) -> Delivery {
    wire.copies.adopt(id, req).map_or(Delivery::Pending, Delivery::Done)
}

pub(super) fn discard_held(wire: &mut Wire<'_>, id: u32) {
    if wire.copies.rx.remove(&id).is_some() {
        wire.copies.notes.push_back(Note::Fin(id, false, 0));
    }
}

#[cfg(test)]
mod tests;
