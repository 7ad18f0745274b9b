//! A lock that a forked child can release, needs no thread-local storage and never allocates.
#![expect(unsafe_code)]
// UNSAFETY: calls pthread_mutex_lock(3), and hands out what the mutex guards.

use core::cell::UnsafeCell;

/// A value behind a mutex of the C library.
pub(crate) struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `with` and `held`, under the mutex.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Unlocked.
    pub(crate) const fn new(value: T) -> Self {
        Lock { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Calls `f` under the lock. `f` must not come back here: the mutex is not recursive.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.acquire();
        // SAFETY: the mutex is ours until `release` below.
        let result = f(unsafe { &mut *self.value.get() });
        self.release();
        result
    }

    /// As [`with`](Self::with), or nothing if somebody else is there.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: an initialised mutex that never moves (all are statics).
        if unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } != 0 {
            return None;
        }
        // SAFETY: as in `with`.
        let result = f(unsafe { &mut *self.value.get() });
        self.release();
        Some(result)
    }

    /// Takes the lock and keeps it.
    pub(crate) fn acquire(&self) {
        // SAFETY: an initialised mutex that never moves (all are statics).
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    /// Releases what this thread, or the one it was forked from, acquired.
    pub(crate) fn release(&self) {
        // SAFETY: locked by this thread or its image in the parent; a normal mutex of the C library has no owner.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// The value, between `acquire` and `release`.
    ///
    /// # Safety
    /// The caller holds the lock, and drops the reference before it releases it or asks again.
    #[allow(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }
}
