//! Words every floor uses: small newtypes and plain records. Imports nothing.

use bitflags::bitflags;

/// Index of a peer in one endpoint's peer table. Never crosses a process border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    /// The table index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A handle that an address vector gave out: 0, 1, 2 … in insertion order (fi_av(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addr(pub u64);

impl Addr {
    /// `FI_ADDR_UNSPEC`: any source; also `FI_ADDR_NOTAVAIL`.
    pub const UNSPEC: Addr = Addr(u64::MAX);
}

/// The application's operation context: an opaque pointer that comes back in the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct UserCtx(pub usize);

/// When a send counts as complete (fi_cq(3), "Completion levels").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// The source buffer may be reused.
    Inject,
    /// The message left for the peer endpoint; nothing local is needed any more.
    #[default]
    Transmit,
    /// The peer endpoint has taken the message out of the ring.
    Delivery,
}

bitflags! {
    /// What a completion record says about its operation. The bit values are libfabric's
    /// (`FI_MSG`, `FI_TAGGED` …), so that the C side converts at no cost; `capi/src/abi/check.rs`
    /// proves that they agree.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CompFlags: u64 {
        /// An untagged message.
        const MSG = 1 << 1;
        /// A tagged message.
        const TAGGED = 1 << 3;
        /// A receive.
        const RECV = 1 << 10;
        /// A send.
        const SEND = 1 << 11;
        /// A multi-receive buffer was given back to the application.
        const MULTI_RECV = 1 << 16;
        /// `data` holds what the sender attached.
        const REMOTE_CQ_DATA = 1 << 17;
        /// The message was claimed by a peek.
        const CLAIM = 1 << 59;
    }
}
