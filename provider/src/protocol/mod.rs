//! The ways a message can go. One protocol is one file with both its sides.
//!
//! | file | when | sender | receiver |
//! |---|---|---|---|
//! | [`inline`] | up to 232 bytes | header and payload in one record | copies out at once |
//! | [`eager`] | up to `eager_max`, while the window lasts | one record | copies out at once |
//! | [`stream`] | longer ones | envelope, then fragments | copies each fragment while the next is written |
//! | [`single`] | long ones: by the kernel where it allows that, by the processes themselves in memory that was lent | envelope; copies from the back if it has time | copies from the front |
//! | [`direct`] | reads and writes of memory, where the kernel allows it | moves the bytes | sleeps |
//! | [`one_sided`] | other reads and writes, atomics | request records | carries them out, answers |
//!
//! A protocol gets the [`Wire`] to one peer and returns what happened; it knows no completion queue, no matching and no other
//! protocol, compares no sizes to choose, and never waits. Dispatch is by exhaustive `match` in `endpoint`.
//! A new protocol is one file, one [`crate::types::ProtoId`], its record kinds, and a row in `select`.

pub mod direct;
pub mod eager;
pub mod inline;
pub mod one_sided;
pub mod single;
pub mod stream;

use crate::mem::pool::Pool;
use crate::mem::user::UserSeg;
use crate::region::table::Locator;
use crate::request::{Envelope, Held, Message, Received, RecvReq, SendReq};
use crate::transport::link::{Corrupt, Draft, Link, NotSent};
use crate::types::ProtoId;
use crate::wire::header::{Header, Kind, flag};
use single::Copies;
use stream::Streams;

/// A process whose memory the kernel may let us reach.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its process id, as this process sees it.
    pub pid: u32,
    /// Its table of regions, which tells it from another process with that id.
    pub table: Locator,
}

/// Lends memory of this process to one peer.
pub trait Lender {
    /// The number under which the peer can map memory in which all of `iov` lies; 0 if there is none. The peer has been handed that memory when
    /// this returns. `written`: it is of use only if the peer may write there.
    fn lend(&mut self, iov: &[UserSeg], written: bool) -> u32;
}

/// The connection to one peer, with the streams that are under way on it.
pub struct Wire<'a> {
    /// The rings.
    pub link: &'a mut Link,
    /// Streams in both directions.
    pub streams: &'a mut Streams,
    /// Offered messages in both directions.
    pub copies: &'a mut Copies,
    /// Recycled buffers for unexpected payload.
    pub pool: &'a mut Pool,
}

/// What is left when a peer is gone.
#[derive(Default)]
pub struct Aborted {
    /// Sends that were under way.
    pub sends: Vec<SendReq>,
    /// Receives that had part of their message.
    pub recvs: Vec<(RecvReq, Envelope)>,
}

/// What `start` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The whole message is in the ring, up to this position.
    Sent(u32),
    /// Under way; [`Streams::push`] will say when it is in the ring, or the receiver when it has it all ([`Copies::on_fin`]).
    Streaming,
}

/// Why `start` did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring has no room at the moment.
    Full,
    /// The receiver's window is used up: another protocol must carry the message.
    Window,
    /// This protocol cannot carry it: another one must.
    Unable,
    /// The peer wrote garbage.
    Corrupt,
}

impl From<NotSent> for Refused {
    fn from(n: NotSent) -> Refused {
        match n {
            NotSent::Full => Refused::Full,
            NotSent::Corrupt => Refused::Corrupt,
        }
    }
}

/// What placing the record at the head of the ring did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The whole message is here; so many bytes are in the buffer.
    Whole(usize),
    /// The rest follows: [`Streams::adopt`] takes the receive.
    Part(u32),
    /// It is still with the sender: [`Copies::adopt`] takes the receive.
    Offered(u32),
}

/// What delivering a held message did.
#[derive(Debug)]
pub enum Delivery {
    /// All bytes are in place.
    Done(Received),
    /// The protocol keeps the receive until the rest comes.
    Pending,
}

/// What the record at the head of the ring announces: copied out of the ring once, and validated.
#[derive(Clone, Copy)]
pub struct Announced<B> {
    /// What matching needs of it.
    pub env: Envelope,
    /// What else its body says.
    pub body: B,
}

/// Both sides of one way to carry a message. Called by the endpoint only.
pub trait Protocol {
    /// What the body of its first record says besides the envelope.
    type Body: Copy;
    /// Its name in tables.
    const ID: ProtoId;
    /// What it does, for people.
    const WHAT: &'static str;

    /// Sender: starts a message. On `Err` nothing has happened.
    fn start(wire: &mut Wire<'_>, msg: &Message<'_>, req: &SendReq) -> Result<Started, Refused>;

    /// Receiver: what the record at the head of the ring announces.
    fn announced(wire: &mut Wire<'_>, header: &Header) -> Result<Announced<Self::Body>, Corrupt>;

    /// Receiver: the message at the head of the ring has a buffer; copies what is here.
    fn place(wire: &mut Wire<'_>, header: &Header, said: &Announced<Self::Body>, req: &RecvReq) -> Result<Placed, Corrupt>;

    /// Receiver: the message at the head of the ring has no buffer; keeps it.
    fn hold(wire: &mut Wire<'_>, header: &Header, said: &Announced<Self::Body>) -> Result<Held, Corrupt>;
}

/// A protocol whose messages are one record, as the common case needs it (`endpoint/short.rs`): a message in one piece, and one for which a receive waits. What these do
/// not take on, [`Protocol`] does.
pub trait OneRecord {
    /// Whether such a message may be there before its payload.
    const BEGINS: bool;

    /// Sender: [`Protocol::start`] of a message in one piece, of a length that the protocol has by the table. Returns the position behind it. On `Err` nothing has happened.
    fn send(link: &mut Link, flags: u8, tag: u64, data: u64, piece: &UserSeg) -> Result<u32, Refused>;

    /// Receiver: the record at the head of the ring, if it is such a message. `waited`: its reader had nothing to do until it came.
    fn at_head(link: &mut Link, waited: bool) -> Option<(Header, Envelope)>;

    /// Receiver: [`Protocol::place`] of that message.
    fn place_at_head(link: &mut Link, header: &Header, req: &RecvReq) -> Taken;
}

/// What became of the message at the head of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many bytes are in their place, and the record is done with.
    Whole(usize),
    /// Its sender still writes it. What is there is in its place, and the rest will follow ([`Link::follow`]).
    Begun,
    /// It goes against the window, as [`Protocol::announced`] will say. Nothing was copied.
    Not,
}

/// Header flags of a message.
#[inline]
pub fn flags_of(tagged: bool, has_data: bool) -> u8 {
    (if tagged { flag::TAGGED } else { 0 }) | (if has_data { flag::CQ_DATA } else { 0 })
}

/// A record of header words only; body and payload are still to be filled in.
#[inline]
fn bare(kind: Kind, tag: u64, data: u64) -> Draft<'static> {
    Draft { kind, flags: 0, tag, data, body: [0; 2], iov: &[], skip: 0, len: 0, bytes: &[] }
}

/// The first record of a message, with the first `len` bytes of its payload.
#[inline]
fn first<'a>(kind: Kind, msg: &Message<'a>, body: [u64; 2], len: usize) -> Draft<'a> {
    let data = msg.data.unwrap_or(0);
    Draft {
        flags: flags_of(msg.tagged, msg.data.is_some()),
        body,
        iov: msg.iov,
        len,
        bytes: msg.bytes,
        ..bare(kind, msg.tag, data)
    }
}

/// The envelope in a header whose message has `total` bytes.
#[inline]
fn envelope_of(header: &Header, total: usize) -> Envelope {
    Envelope {
        tagged: header.flags & flag::TAGGED != 0,
        tag: header.tag,
        data: (header.flags & flag::CQ_DATA != 0).then_some(header.data),
        total,
    }
}

/// Copies the payload of a one-record message to its buffer.
#[inline]
fn place_whole(wire: &mut Wire<'_>, header: &Header, req: &RecvReq) -> Placed {
    Placed::Whole(wire.link.payload_to(header, &req.iov, 0, req.cap))
}

/// The payload of a one-record message that nobody has asked for yet.
fn hold_whole(wire: &mut Wire<'_>, header: &Header) -> Vec<u8> {
    let mut bytes = wire.pool.take();
    wire.link.payload_append(header, &mut bytes);
    bytes
}

/// Copies held bytes to the buffer that came at last.
fn place_held(bytes: &[u8], env: Envelope, req: RecvReq) -> Received {
    let placed = crate::mem::user::scatter_bytes(&req.iov, 0, &bytes[..bytes.len().min(req.cap)]);
    Received { req, env, placed }
}

/// A held message and the buffer that came at last.
pub fn deliver_held(wire: &mut Wire<'_>, held: Held, env: Envelope, req: RecvReq) -> Delivery {
    match held {
        Held::Inline(bytes) => inline::deliver_held(wire, bytes, env, req),
        Held::Eager(bytes) => eager::deliver_held(wire, bytes, env, req),
        Held::Stream(id) => stream::deliver_held(wire, id, req),
        Held::Offer(id) => single::deliver_held(wire, id, req),
        Held::Fetched(bytes) => single::deliver_kept(wire, bytes, env, req),
    }
}

/// Drops a held message; its sender completes as if it had been received.
pub fn discard_held(wire: &mut Wire<'_>, held: Held) {
    match held {
        Held::Inline(bytes) => wire.pool.give(bytes),
        Held::Eager(bytes) => eager::discard_held(wire, bytes),
        Held::Stream(id) => stream::discard_held(wire, id),
        Held::Offer(id) => single::discard_held(wire, id),
        Held::Fetched(bytes) => single::discard_kept(wire, bytes),
    }
}
