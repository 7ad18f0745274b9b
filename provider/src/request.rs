//! One operation in flight, as protocols see it: what is to be sent, where received bytes go, and what the
//! endpoint needs back when it is done. Protocols carry these; only the endpoint turns them into completions.

pub mod kept;

use crate::error::Error;
use crate::mem::user::{UserIov, UserSeg, total_len};
use crate::types::{CntrId, CompFlags, Level, Presumed, UserCtx};
use crate::wire::order::Order;
use std::num::NonZeroU32;

/// A message to be sent, borrowed from the caller.
pub struct Message<'a> {
    /// Tagged or untagged.
    pub tagged: bool,
    /// Tag; 0 if untagged.
    pub tag: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// The payload, if it is the application's.
    pub iov: &'a [UserSeg],
    /// The payload, if it was copied: an inject call's that had to wait. Else empty.
    pub bytes: &'a [u8],
    /// Its bytes.
    pub len: usize,
    /// The caller takes its buffer back when the call returns: what is not copied out of it by then is not sent.
    pub at_once: bool,
    /// The number of the memory in which all of it lies, if that was lent to the peer; else 0.
    pub lent: u32,
    /// It is copied once because the receiver is taken to have it in its cache.
    pub presumed: Option<Presumed>,
}

/// What a finished send needs for its completion.
#[derive(Clone, Copy, Debug)]
pub struct SendReq {
    /// The application's context.
    pub ctx: UserCtx,
    /// When it counts as complete.
    pub level: Level,
    /// Whether a completion entry is wanted; errors are reported anyway, unless it is quiet.
    pub report: bool,
    /// Whether it is quiet, or deferred work.
    pub special: Special,
    /// What the entry says it was.
    pub flags: CompFlags,
}

/// Where a matched message goes, and what its completion needs.
#[derive(Debug)]
pub struct RecvReq {
    /// The application's context.
    pub ctx: UserCtx,
    /// Whether a completion entry is wanted; errors are reported anyway.
    pub report: bool,
    /// The buffer.
    pub iov: UserIov,
    /// Its bytes.
    pub cap: usize,
    /// Whether it is part of a multi-receive buffer, or deferred work.
    pub special: Special,
}

impl RecvReq {
    /// Who hears of it, if it is deferred work, and whether an entry is wanted, too.
    pub fn aside(&self) -> Option<(Aside, bool)> {
        self.special.aside().map(|aside| (aside, self.report))
    }
}

/// What few operations are: one word, since all operations carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special(u32);

impl Special {
    /// Nothing of all this.
    pub const NOTHING: Special = Special(0);
    const ASIDE: u32 = 1 << 31;

    /// Of a call of the inject family, which never leaves an entry: quiet.
    #[inline]
    pub fn quiet(inject: bool) -> Special {
        Special(u32::from(inject))
    }

    /// Whether it never leaves an entry.
    #[inline]
    pub fn is_quiet(self) -> bool {
        self.0 == 1
    }

    /// The multi-receive buffer that it is a part of.
    #[inline]
    pub fn multi(self) -> Option<MultiId> {
        if self.0 & Special::ASIDE != 0 { None } else { self.0.checked_sub(1).and_then(NonZeroU32::new).map(MultiId) }
    }

    /// Who hears of it, if it is deferred work.
    #[inline]
    pub fn aside(self) -> Option<Aside> {
        (self.0 & Special::ASIDE != 0).then_some(Aside(self.0 & !Special::ASIDE))
    }
}

impl From<MultiId> for Special {
    fn from(id: MultiId) -> Special {
        Special(id.0.get() + 1)
    }
}

impl From<Aside> for Special {
    fn from(aside: Aside) -> Special {
        Special(aside.0 | Special::ASIDE)
    }
}

/// Of deferred work (fi_trigger(3)): it counts in a counter of its own or nowhere, and as an operation of the endpoint only if an
/// entry was asked for, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside(u32);

impl Aside {
    /// Counted in `cntr`.
    pub fn new(cntr: Option<CntrId>) -> Aside {
        let number = u32::try_from(cntr.map_or(0, |c| c.0 + 1)).ok().filter(|n| n & Special::ASIDE == 0);
        Aside(number.expect("fewer than 2^31 counters are open"))
    }

    /// The counter.
    pub fn cntr(self) -> Option<CntrId> {
        (self.0 as usize).checked_sub(1).map(CntrId)
    }
}

/// A multi-receive buffer of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiId(NonZeroU32);

impl MultiId {
    /// The buffer at `index` of the endpoint's table.
    pub fn new(index: usize) -> MultiId {
        MultiId(
            u32::try_from(index + 1)
                .ok()
                .filter(|n| *n < Special::ASIDE - 1)
                .and_then(NonZeroU32::new)
                .expect("fewer than 2^31 buffers are posted"),
        )
    }

    /// Its index.
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What matching needs to know of a message, whatever protocol brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Tagged or untagged.
    pub tagged: bool,
    /// Tag; 0 if untagged.
    pub tag: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Bytes of the whole message.
    pub total: usize,
}

/// A message that nobody has asked for yet.
#[derive(Debug)]
pub enum Held {
    /// Complete, came inline.
    Inline(Vec<u8>),
    /// Complete, counted against the window.
    Eager(Vec<u8>),
    /// A stream of the peer, by its id.
    Stream(u32),
    /// Still with the sender, by the id of its offer.
    Offer(u32),
    /// Complete, was offered and fetched although nobody had asked for it.
    Fetched(Vec<u8>),
}

/// A receive that got its message.
#[derive(Debug)]
pub struct Received {
    /// The receive.
    pub req: RecvReq,
    /// The message.
    pub env: Envelope,
    /// Bytes placed; less than `env.total` if the buffer was too short.
    pub placed: usize,
}

/// Bytes to be sent: the application's until completion, or copied.
pub enum Payload {
    /// Lent.
    Lent(UserIov),
    /// An inject call's.
    Own(Vec<u8>),
}

impl Payload {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Payload::Lent(iov) => total_len(iov),
            Payload::Own(bytes) => bytes.len(),
        }
    }
}

/// A one-sided operation for the target's engine.
pub enum Task {
    /// Write, and tell the target's application if there are data.
    Put(Payload, Option<u64>),
    /// Read.
    Get(UserIov),
    /// Operands and comparands of all values, and where the old values go.
    Atomic(Order, Vec<u8>, Vec<u8>, UserIov),
    /// A direct transfer is done: whether it wrote, and the data for the target's application.
    Event(bool, Option<u64>),
}

/// A one-sided operation that the target has answered.
pub struct Finished {
    /// What its completion needs.
    pub req: SendReq,
    /// Why it failed, if it did.
    pub failed: Option<Error>,
}

/// What a peer did to our memory.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// Whether it changed the memory: what counters of regions tell apart.
    pub write: bool,
    /// Whether it got something back: what counters of endpoints tell apart.
    pub fetch: bool,
    /// Bytes of the whole operation, as far as they fit a number of 32 bits.
    pub len: usize,
    /// The region; of its last piece, if there are several.
    pub key: u64,
    /// Data for our application.
    pub data: Option<u64>,
}
