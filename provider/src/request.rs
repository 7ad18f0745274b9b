//! One operation in flight, as protocols see it: what is to be sent, where received bytes go, and what the
//! endpoint needs back when it is done. Protocols carry these; only the endpoint turns them into completions.

use crate::mem::user::{UserIov, UserSeg};
use crate::types::{CntrId, CompFlags, Level, UserCtx};
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
}

/// What a finished send needs for its completion.
#[derive(Clone, Copy, Debug)]
pub struct SendReq {
    /// The application's context.
    pub ctx: UserCtx,
    /// When it counts as complete.
    pub level: Level,
    /// Whether a completion entry is wanted; errors are reported anyway, unless `quiet`.
    pub report: bool,
    /// An inject call: never an entry.
    pub quiet: bool,
    /// What the entry says it was.
    pub flags: CompFlags,
    /// Deferred work.
    pub aside: Option<Aside>,
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
    /// The multi-receive buffer that this is a part of.
    pub multi: Option<MultiId>,
    /// Deferred work.
    pub aside: Option<Aside>,
}

/// Of deferred work (fi_trigger(3)): it counts in a counter of its own or nowhere, and as an operation of the endpoint only if an
/// entry was asked for, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside(NonZeroU32);

impl Aside {
    /// Counted in `cntr`.
    pub fn new(cntr: Option<CntrId>) -> Aside {
        let number = cntr.map_or(1, |c| c.0 + 2);
        Aside(u32::try_from(number).ok().and_then(NonZeroU32::new).expect("fewer than 2^32 counters are open"))
    }

    /// The counter.
    pub fn cntr(self) -> Option<CntrId> {
        (self.0.get() as usize).checked_sub(2).map(CntrId)
    }
}

/// A multi-receive buffer of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiId(NonZeroU32);

impl MultiId {
    /// The buffer at `index` of the endpoint's table.
    pub fn new(index: usize) -> MultiId {
        MultiId(u32::try_from(index + 1).ok().and_then(NonZeroU32::new).expect("fewer than 2^32 buffers are posted"))
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
