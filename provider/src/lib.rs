//! rustmx: the engine of a libfabric provider for MPI jobs. It moves tagged messages between processes: of one host through
//! shared-memory rings, of several by TCP; it knows no libfabric type (the C ABI is the crate `rustmx-fi` in `capi/`).
//!
//! Reading order: [`types`] and [`error`] (words), [`shm::ring`] (how two processes hand over a record), [`transport::link`]
//! (a connection), [`protocol`] (the ways a message can go), [`matching`], [`endpoint`], [`domain`]. `ARCHITECTURE.md` traces one message.
//!
//! Floors, lowest first; a module imports only lower ones (`ci/check-floors.py`):
//!
//! | floor | modules |
//! |---|---|
//! | 0 words | `types` `error` `config` `stats` `log` |
//! | 1 machine | `sys` `mem` |
//! | 2 formats | `shm` `wire` |
//! | 3 bookkeeping, transport | `peer` `completion` `matching` `region` `cache` · `transport` |
//! | 4 protocols | `request` `protocol` |
//! | 5 choice | `select` |
//! | 6 engine | `endpoint` `domain` |

// Several processes share a standard error: `log::tell` writes whole lines.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod cache;
pub mod mem;
pub mod shm;

// Under loom only the lock-free parts are built.
macro_rules! engine {
    ($($name:ident)*) => { $( #[cfg(not(loom))] pub mod $name; )* };
}

engine! {
    types error config stats log
    sys
    wire
    peer completion matching region transport
    request protocol
    select
    endpoint domain
}

#[cfg(not(loom))]
pub use self::{
    completion::cq::{Completion, CqRead, ErrorEntry},
    completion::waiter::Waiter,
    config::Config,
    domain::{Deferral, Domain, Movement, Nap, Plan, Tell, Telling, Work, lending},
    endpoint::{AtomicArgs, EpAttr, RecvArgs, RmaArgs, SendArgs},
    error::{Error, Result},
    log::{Log, LogLevel, LogSink, LogSubsystem},
    mem::user::UserSeg,
    peer::av::AddressVector,
    peer::name::{NAME_FORMAT, NAME_LEN, Name, Service},
    protocol::one_sided::MAX_PLACES,
    region::Region,
    select::inject_max,
    select::profile::Profiles,
    stats::Stats,
    sys::absence::{Absence, Attended},
    sys::cpu::{wait_a_little, yield_core},
    sys::event::EventFd,
    sys::membarrier,
    sys::poller::Poller,
    transport::Venue,
    types::{
        Access, Addr, AtomicForm, AtomicOp, AtomicType, CntrEvents, CntrId, CompFlags, CqId, EpId, INJECT_MAX, INLINE_MAX,
        IOV_LIMIT, MAX_MSG, OpFlags, RemoteSeg, SrxId, UserCtx,
    },
    wire::order::{MAX_BYTES as ATOMIC_MAX, Order, is_valid as is_valid_atomic},
    wire::version::differs as version_differs,
};
