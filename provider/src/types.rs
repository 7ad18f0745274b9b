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
        /// Remote memory access.
        const RMA = 1 << 2;
        /// An atomic operation.
        const ATOMIC = 1 << 4;
        /// Memory of a peer was read.
        const READ = 1 << 8;
        /// Memory of a peer was written.
        const WRITE = 1 << 9;
        /// A receive.
        const RECV = 1 << 10;
        /// A send.
        const SEND = 1 << 11;
        /// A peer read our memory.
        const REMOTE_READ = 1 << 12;
        /// A peer wrote our memory.
        const REMOTE_WRITE = 1 << 13;
        /// A multi-receive buffer was given back to the application.
        const MULTI_RECV = 1 << 16;
        /// `data` holds what the sender attached.
        const REMOTE_CQ_DATA = 1 << 17;
        /// The message was claimed by a peek.
        const CLAIM = 1 << 59;
    }
}

bitflags! {
    /// Operation flags as libfabric passes them (fi_msg(3), fi_tagged(3), fi_endpoint(3)); same bit values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpFlags: u64 {
        /// The buffer takes many messages.
        const MULTI_RECV = 1 << 16;
        /// Remote CQ data is attached.
        const REMOTE_CQ_DATA = 1 << 17;
        /// More operations follow; a hint.
        const MORE = 1 << 18;
        /// Look for a message without receiving it.
        const PEEK = 1 << 19;
        /// Order after everything before.
        const FENCE = 1 << 21;
        /// Report the completion.
        const COMPLETION = 1 << 24;
        /// The buffer may be reused when the call returns.
        const INJECT = 1 << 25;
        /// Complete when the buffer may be reused.
        const INJECT_COMPLETE = 1 << 26;
        /// Complete when the message left for the peer.
        const TRANSMIT_COMPLETE = 1 << 27;
        /// Complete when the peer has taken the message.
        const DELIVERY_COMPLETE = 1 << 28;
        /// With PEEK or CLAIM: drop the message.
        const DISCARD = 1 << 58;
        /// Reserve the message found by a peek; or receive the reserved one.
        const CLAIM = 1 << 59;
    }
}

bitflags! {
    /// What a counter counts (fi_endpoint(3), fi_ep_bind); libfabric's bit values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CntrEvents: u64 {
        /// RMA reads.
        const READ = 1 << 8;
        /// RMA writes.
        const WRITE = 1 << 9;
        /// Receives.
        const RECV = 1 << 10;
        /// Sends.
        const SEND = 1 << 11;
        /// RMA reads by others.
        const REMOTE_READ = 1 << 12;
        /// RMA writes by others.
        const REMOTE_WRITE = 1 << 13;
    }
}

bitflags! {
    /// What peers may do with a region (fi_mr(3)); libfabric's bit values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u64 {
        /// Read it.
        const REMOTE_READ = 1 << 12;
        /// Write it.
        const REMOTE_WRITE = 1 << 13;
        /// Not a right: peers name it by virtual address, not by offset.
        const BY_ADDRESS = 1 << 63;
    }
}

/// A piece of a peer's memory, as fi_rma(3) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSeg {
    /// Offset from the region's start, or virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// The region's key.
    pub key: u64,
}

macro_rules! numbered {
    ($(#[doc = $help:literal])+ $name:ident: $( $(#[doc = $what:literal])+ $variant:ident = $number:literal, )*) => {
        $(#[doc = $help])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[doc = $what])+ $variant = $number, )* }

        impl $name {
            /// The one with libfabric's number `n`.
            pub fn from_number(n: u32) -> Option<$name> {
                match n {
                    $( $number => Some($name::$variant), )*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// What an atomic operation does (fi_atomic(3)). The numbers are those of `enum fi_op`.
    AtomicOp:
    /// The smaller value.
    Min = 0,
    /// The larger value.
    Max = 1,
    /// Their sum; integers wrap.
    Sum = 2,
    /// Their product; integers wrap.
    Prod = 3,
    /// 1 if one of them is not zero, else 0.
    LogicalOr = 4,
    /// 1 if both are not zero, else 0.
    LogicalAnd = 5,
    /// The union of their bits.
    BitOr = 6,
    /// Their common bits.
    BitAnd = 7,
    /// 1 if exactly one of them is not zero, else 0.
    LogicalXor = 8,
    /// The bits in which they differ.
    BitXor = 9,
    /// Nothing; the value is fetched.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand if the comparand equals the value.
    Swap = 12,
    /// The operand if the comparand differs.
    SwapNe = 13,
    /// The operand if comparand <= value.
    SwapLe = 14,
    /// The operand if comparand < value.
    SwapLt = 15,
    /// The operand if comparand >= value.
    SwapGe = 16,
    /// The operand if comparand > value.
    SwapGt = 17,
    /// The operand in the bits that the comparand sets.
    MaskedSwap = 18,
}

numbered! {
    /// What an atomic operation works on. The numbers are those of `enum fi_datatype`.
    AtomicType:
    /// 8-bit integer.
    I8 = 0,
    /// 8-bit natural number.
    U8 = 1,
    /// 16-bit integer.
    I16 = 2,
    /// 16-bit natural number.
    U16 = 3,
    /// 32-bit integer.
    I32 = 4,
    /// 32-bit natural number.
    U32 = 5,
    /// 64-bit integer.
    I64 = 6,
    /// 64-bit natural number.
    U64 = 7,
    /// Single precision.
    F32 = 8,
    /// Double precision.
    F64 = 9,
    /// Complex number of single precision.
    ComplexF32 = 10,
    /// Complex number of double precision.
    ComplexF64 = 11,
    /// 128-bit integer.
    I128 = 14,
    /// 128-bit natural number.
    U128 = 15,
}

impl AtomicType {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            AtomicType::I8 | AtomicType::U8 => 1,
            AtomicType::I16 | AtomicType::U16 => 2,
            AtomicType::I32 | AtomicType::U32 | AtomicType::F32 => 4,
            AtomicType::I64 | AtomicType::U64 | AtomicType::F64 | AtomicType::ComplexF32 => 8,
            AtomicType::ComplexF64 | AtomicType::I128 | AtomicType::U128 => 16,
        }
    }
}

/// What an atomic operation gives back (fi_atomic(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicForm {
    /// Nothing.
    Base = 0,
    /// The value before.
    Fetch = 1,
    /// The value before; changed only if a comparison says so.
    Compare = 2,
}

/// A completion queue of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub usize);

/// A counter of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CntrId(pub usize);

/// An endpoint of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpId(pub usize);

/// A shared receive context of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrxId(pub usize);

/// The ways a message can go, in order of preference within their reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtoId {
    /// Payload beside the header.
    Inline,
    /// One record, counted against the receiver's window.
    Eager,
    /// Fragments through the ring.
    Stream,
    /// One copy by the kernel, without the ring.
    Syscall,
    /// One copy in memory that both processes have mapped.
    Mapped,
}

impl ProtoId {
    /// All of them.
    pub const ALL: [ProtoId; 5] = [ProtoId::Inline, ProtoId::Eager, ProtoId::Stream, ProtoId::Syscall, ProtoId::Mapped];

    /// Its name, as counters and tables have it.
    pub fn name(self) -> &'static str {
        match self {
            ProtoId::Inline => "inline",
            ProtoId::Eager => "eager",
            ProtoId::Stream => "stream",
            ProtoId::Syscall => "syscall",
            ProtoId::Mapped => "mapped",
        }
    }
}

/// Of a message that goes by one copy because it is presumed to be in the receiver's cache, as such ones were (`select/habit.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presumed {
    /// Its buffer looks as it did when it was last sent to this peer.
    pub same: bool,
    /// The receiver is asked how long its copy takes.
    pub tells: bool,
    /// Which time it is that the habit is as it is: what was told of an earlier time says nothing.
    pub era: u8,
    /// The poll of its endpoint before which it was sent.
    pub sent_at: u64,
}

/// Longest message of an inline record: what fits beside its header.
pub const INLINE_MAX: usize = 232;
/// Longest message of the inject calls, which give its buffer back at once.
pub const INJECT_MAX: usize = 8 << 10;
/// Segments that one call may name.
pub const IOV_LIMIT: usize = 16;
/// Longest message.
pub const MAX_MSG: usize = 1 << 62;
