//! `librustmx_heap.so`: a preloadable `malloc` whose long blocks other processes of this user can map by descriptor.
//!
//! Long blocks lie in arenas (`arena`: a sealed memfd mapped shared, and a book of its pages in `extent`); short ones are the C
//! library's (`under`). `table` says without a lock whose an address is, `heap` is the lock and what it guards, `fork` gives a
//! child its own copy (`files` is a lock that comes before ours there), `abi` is the C interface, `query` the one for the provider
//! (`include/rustmx/heap.h`). Why it is so, the promises and their exceptions: `provider/docs/adr/0013-heap.md`.
//!
//! Rules of this crate: nothing allocates, nothing uses thread-local storage, nothing changes `errno` unless it is the result.

pub mod abi;
mod arena;
mod config;
mod extent;
mod files;
mod fork;
mod heap;
mod lock;
mod message;
pub mod query;
mod start;
mod table;
mod under;

/// Bytes of a page. The heap stays off where the kernel has others (`start`).
pub(crate) const PAGE: usize = 4096;
