//! `FI_PROGRESS_AUTO`: one thread per domain that makes progress while the application does not. It exists only for clients
//! that ask for it, sleeps while there is nothing to do, and takes the domain's lock like everybody else.
#![expect(unsafe_code)]
// UNSAFETY: blocks signals while the thread is made (pthread_sigmask(3)).

use super::Deadline;
use super::cell::DomainCell;
use crate::abi::errno::FI_ENOMEM;
use crate::boundary::{Answer, Errno};
use rustmx::{Attended, Waiter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The thread of one domain. Stopped by [`stop`](Self::stop), which waits for it.
pub(crate) struct Progress {
    waiter: Arc<Waiter>,
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Starts it.
    pub(crate) fn start(cell: &Arc<DomainCell>) -> Answer<Progress> {
        let waiter = Arc::new(cell.control()?.waiter()?);
        let stopped = Arc::new(AtomicBool::new(false));
        let (its_cell, its_waiter, its_stopped) = (cell.clone(), waiter.clone(), stopped.clone());
        let spawn = || {
            let thread = std::thread::Builder::new().name("rustmx".into());
            thread.spawn(move || run(&its_cell, &its_waiter, &its_stopped))
        };
        let thread = without_signals(spawn).map_err(|_| Errno(FI_ENOMEM))?;
        Ok(Progress { waiter, stopped, thread })
    }

    /// Ends it.
    pub(crate) fn stop(self) {
        self.stopped.store(true, Ordering::Release);
        self.waiter.wake_all();
        let _ = self.thread.join();
    }
}

/// Without it: turns for an application that has not called for long, and left something here.
pub(crate) fn attend(cell: &Arc<DomainCell>) {
    let its_cell = Arc::downgrade(cell);
    let turn = move || {
        let cell = its_cell.upgrade();
        cell.and_then(|cell| cell.control().ok().map(|mut engine| engine.turn_for_absent())).unwrap_or(Attended::Over)
    };
    if let Ok(engine) = cell.control() {
        engine.attend_by(turn);
    }
}

fn run(cell: &DomainCell, waiter: &Waiter, stopped: &AtomicBool) {
    let forever = Deadline::after(-1);
    while !stopped.load(Ordering::Acquire) {
        if cell.doze(Some(waiter), &forever, |_| !stopped.load(Ordering::Acquire)).is_err() {
            // Not the process that started it.
            return;
        }
        // While there is work, the application's threads want the lock, too.
        rustmx::yield_core();
    }
}

/// Makes a thread that leaves all signals to those of the application.
fn without_signals<R>(make: impl FnOnce() -> R) -> R {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills the set in; pthread_sigmask reads it and writes the old one, or fails and writes nothing.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let made = make();
    if blocked {
        // SAFETY: `before` was written by the call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    }
    made
}
