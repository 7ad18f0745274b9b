//! The lock of a domain: the one place where several threads meet the engine, which has no lock of its own.
//!
//! * Data calls (posting, reading completions and counters) take [`DomainCell::data`], everything else [`DomainCell::control`].
//! * Threading models other than `FI_THREAD_DOMAIN`: both take one mutex.
//! * `FI_THREAD_DOMAIN`: the application lets one thread at a time make data calls, but may make control calls from any other
//!   thread meanwhile (fi_domain(3)). The data side then costs two plain stores and a load; the control side pays for both: it
//!   announces itself, makes every thread of the process pass a full fence with membarrier(2), and waits until the data side
//!   is outside. Where membarrier is missing, `FI_THREAD_DOMAIN` falls back to the mutex.
//!
//! Ordering pairs of the second form. D1 `inside = true` before D2 load of `wanted`, C1 `wanted = true` before C3 load of
//! `inside`, with a full fence on both sides (C2, membarrier, supplies the data side's): at least one of them sees the other.
//! D3 (release) `inside = false` pairs with C3 (acquire): control sees all that data did. C4 (release) `wanted = false` pairs
//! with D2 (acquire): data sees all that control did.
//!
//! In a forked child the lock may be held by a thread that does not exist there: whoever finds it held looks whether this
//! process is the one that opened the domain, and gives up if not. Who only reads what has come, of a queue, a counter or a
//! poll set, finds nothing then ([`DomainCell::reading`]), as in a child of whose parent no other thread was here.
#![expect(unsafe_code)]
// UNSAFETY: hands out `&mut Domain` from a shared cell.

use super::Deadline;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use parking_lot::lock_api::RawMutex as _;
use rustmx::{Domain, Error, Nap, Waiter, membarrier};
use std::time::Duration;

/// Longest sleep of a thread for which there are no descriptors: nothing wakes it.
const BLIND: Duration = Duration::from_millis(1);
/// Waiters that are kept for the next thread that has none.
const KEPT: usize = 16;

/// The engine of one domain with its lock.
pub(crate) struct DomainCell {
    engine: UnsafeCell<Domain>,
    mutex: parking_lot::RawMutex,
    /// Whether the application serialises data calls itself.
    serialised: bool,
    /// The data side is in the engine (serialised form only).
    inside: AtomicBool,
    /// The control side wants, or has, the engine (serialised form only).
    wanted: AtomicBool,
    owner: u32,
    /// For threads that find the waiter of their queue or counter taken.
    spare: parking_lot::Mutex<Vec<Waiter>>,
}

// SAFETY: `Domain` is Send, and `data`/`control` let one thread at a time at it (module header); in the serialised form this
// rests on the application's promise of FI_THREAD_DOMAIN not to make two data calls at once.
unsafe impl Sync for DomainCell {}
const _: fn() = || {
    fn needs_send<T: Send>() {}
    needs_send::<Domain>();
};

/// What leaving the engine must undo.
enum Held {
    Mutex,
    Inside,
    MutexAndWanted,
}

/// Access to the engine until dropped.
pub(crate) struct Entered<'a> {
    cell: &'a DomainCell,
    held: Held,
}

impl DomainCell {
    /// Wraps an engine. `serialised`: the domain was opened with `FI_THREAD_DOMAIN`.
    pub(crate) fn new(engine: Domain, serialised: bool) -> DomainCell {
        DomainCell {
            engine: UnsafeCell::new(engine),
            mutex: parking_lot::RawMutex::INIT,
            serialised: serialised && membarrier::register_here(),
            inside: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            owner: std::process::id(),
            spare: parking_lot::Mutex::default(),
        }
    }

    /// Enters for a data call.
    #[inline]
    pub(crate) fn data(&self) -> Result<Entered<'_>, Error> {
        if self.serialised {
            self.inside.store(true, Ordering::Relaxed); // D1
            // The processor's fence between D1 and D2 is C2.
            compiler_fence(Ordering::SeqCst);
            if !self.wanted.load(Ordering::Acquire) {
                // D2
                return Ok(Entered { cell: self, held: Held::Inside });
            }
            self.inside.store(false, Ordering::Release);
        }
        self.lock()?;
        Ok(Entered { cell: self, held: Held::Mutex })
    }

    /// A data call that makes progress. If the engine is tired of idle turns, gives up the core afterwards: outside the lock,
    /// for the thread that others wait for may be one of this process.
    #[inline]
    pub(crate) fn turn<R>(&self, call: impl FnOnce(&mut Domain) -> R) -> Result<R, Error> {
        let mut entered = self.data()?;
        let answer = call(&mut entered);
        let tired = entered.take_tired();
        drop(entered);
        if tired {
            rustmx::yield_core();
        }
        Ok(answer)
    }

    /// A [`turn`](Self::turn) that reads what has come: `nothing`, in a forked child that finds the lock held.
    #[inline]
    pub(crate) fn reading<R>(&self, nothing: R, call: impl FnOnce(&mut Domain) -> R) -> Result<R, Error> {
        match self.turn(call) {
            Err(Error::Forked) => Ok(nothing),
            answer => answer,
        }
    }

    /// Sleeps until something may have happened, at most until `deadline`, outside the lock. Called when the caller has found
    /// nothing; `idle` says once more whether there is nothing, after the engine has told its peers to wake us. Returns without
    /// sleep when there is something to do, or when it is too early to sleep.
    ///
    /// `waiter` is this thread's alone meanwhile: of two that slept on one, only one would wake. `None`: one of ours is.
    pub(crate) fn doze(
        &self,
        waiter: Option<&Waiter>,
        deadline: &Deadline,
        idle: impl FnOnce(&Domain) -> bool,
    ) -> Result<(), Error> {
        let mut entered = self.data()?;
        let limit = match entered.doze()? {
            Nap::Sleep(limit) => limit,
            Nap::NotNow => {
                let tired = entered.take_tired();
                drop(entered);
                if tired {
                    rustmx::yield_core();
                }
                return Ok(());
            }
        };
        // Before the last look: what happens from now on reaches it.
        let own = if waiter.is_none() { self.spare_waiter(&mut entered) } else { None };
        if idle(&entered) {
            drop(entered);
            match waiter.or(own.as_ref()) {
                Some(waiter) => waiter.sleep(deadline.rest(limit)),
                None => std::thread::sleep(deadline.rest(limit).map_or(BLIND, |rest| rest.min(BLIND))),
            }
            entered = self.data()?;
        }
        entered.awake();
        drop(entered);
        if let Some(own) = own {
            let mut spare = self.spare.lock();
            if spare.len() < KEPT {
                spare.push(own);
            }
        }
        Ok(())
    }

    /// A waiter that nobody sleeps on; `None`: there are no descriptors for one.
    #[cold]
    fn spare_waiter(&self, engine: &mut Domain) -> Option<Waiter> {
        let spare = self.spare.lock().pop();
        spare.or_else(|| engine.waiter().ok())
    }

    /// Enters for any other call.
    pub(crate) fn control(&self) -> Result<Entered<'_>, Error> {
        self.lock()?;
        if !self.serialised {
            return Ok(Entered { cell: self, held: Held::Mutex });
        }
        self.wanted.store(true, Ordering::Relaxed); // C1
        membarrier::here(); // C2
        let entered = Entered { cell: self, held: Held::MutexAndWanted };
        while self.inside.load(Ordering::Acquire) {
            // C3
            if self.elsewhere() {
                return Err(Error::Forked);
            }
            std::thread::yield_now();
        }
        Ok(entered)
    }

    /// Closes something of the engine, which lets go of it. In a forked child there is nothing to close: the handle may go.
    pub(crate) fn let_go(&self, close: impl FnOnce(&mut Domain) -> Result<(), Error>) -> Result<(), Error> {
        match self.control().and_then(|mut engine| close(&mut engine)) {
            Err(Error::Forked) => Ok(()),
            answer => answer,
        }
    }

    /// Whether this process is not the one that opened the domain (it costs a syscall: slow paths only).
    pub(crate) fn elsewhere(&self) -> bool {
        std::process::id() != self.owner
    }

    #[inline]
    fn lock(&self) -> Result<(), Error> {
        if self.mutex.try_lock() { Ok(()) } else { self.lock_contended() }
    }

    #[cold]
    fn lock_contended(&self) -> Result<(), Error> {
        if self.elsewhere() {
            return Err(Error::Forked);
        }
        self.mutex.lock();
        Ok(())
    }
}

impl Deref for Entered<'_> {
    type Target = Domain;

    #[inline]
    fn deref(&self) -> &Domain {
        // SAFETY: while an Entered lives nobody else is in the engine (module header).
        unsafe { &*self.cell.engine.get() }
    }
}

impl DerefMut for Entered<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Domain {
        // SAFETY: while an Entered lives nobody else is in the engine (module header).
        unsafe { &mut *self.cell.engine.get() }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.held {
            Held::Inside => return self.cell.inside.store(false, Ordering::Release), // D3
            Held::MutexAndWanted => self.cell.wanted.store(false, Ordering::Release), // C4
            Held::Mutex => {}
        }
        // SAFETY: the mutex was locked when this was made, by this thread.
        unsafe { self.cell.mutex.unlock() };
    }
}
