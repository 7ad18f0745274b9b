//! The only file that knows whether atomics are the machine's or loom's.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

/// Memory seen as an array of atomic 64-bit words: all that lock-free code may touch.
pub trait Words {
    /// Word `index`. Out of range is a bug of the caller (never of a peer: positions are ours) and panics.
    fn word(&self, index: usize) -> &AtomicU64;
}

#[cfg(loom)]
impl Words for loom::sync::Arc<Vec<AtomicU64>> {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self[index]
    }
}
