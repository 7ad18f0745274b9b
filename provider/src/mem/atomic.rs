//! The only file that knows whether atomics and locks are the machine's or loom's.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

/// The fence between a store and a later load in code that must not pay for one: nothing but an order for the compiler. The
/// other side makes it a full fence with membarrier(2) (`sys/membarrier.rs`). Under loom it is the fence that this amounts to.
#[inline(always)]
pub fn light_fence() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Loads before it come before all that follows.
#[inline]
pub fn acquire() {
    #[cfg(not(loom))]
    core::sync::atomic::fence(Ordering::Acquire);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::Acquire);
}

/// A full fence.
#[inline(always)]
pub fn fence() {
    #[cfg(not(loom))]
    core::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(not(loom))]
pub use parking_lot::Mutex;

/// A lock with the calls of parking_lot's.
#[cfg(loom)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
#[expect(missing_docs, reason = "as parking_lot's")]
impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics while it is locked")
    }

    pub fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Memory seen as an array of atomic 64-bit words: all that lock-free code may touch.
pub trait Words {
    /// Word `index`. Out of range is a bug of the caller (never of a peer: positions are ours) and panics.
    fn word(&self, index: usize) -> &AtomicU64;

    /// Words `index..index + 4`, which lie in one line. As above.
    fn quad(&self, index: usize) -> [&AtomicU64; 4] {
        [self.word(index), self.word(index + 1), self.word(index + 2), self.word(index + 3)]
    }

    /// Stores to each line that holds one of the words `from..to` what it loads there. Whoever else writes to these lines must have left them to us: nothing changes
    /// then, but they are in this core's cache alone, as if it had written them.
    #[inline]
    fn take_lines(&self, from: usize, to: usize) {
        for first in (from / 8 * 8..to).step_by(8) {
            let word = self.word(first);
            word.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Words for &'static [AtomicU64] {
    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self[index]
    }
}

#[cfg(loom)]
impl Words for loom::sync::Arc<Vec<AtomicU64>> {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self[index]
    }
}
