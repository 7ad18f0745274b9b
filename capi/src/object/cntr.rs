//! `fid_cntr`: completion counters.
//!
//! `fi_cntr_wait` polls until the threshold, an error or the timeout, and between polls sleeps or gives the core away, as the
//! wait object says (`wait.rs`; with `FI_WAIT_NONE`, too).
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::cell::DomainCell;
use super::domain::Domain;
use super::wait::{Joined, Look, Sleeper, Waitable, Wish};
use super::{Deadline, Uses, fid as slots};
use crate::abi::eq::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Object, object, reclaim, refuse, status};
use libc::{c_int, c_void};
use rustmx::CntrId;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An opened counter.
#[repr(C)]
pub(crate) struct Cntr {
    head: fid_cntr,
    pub(crate) cell: Arc<DomainCell>,
    pub(crate) id: CntrId,
    pub(crate) source: Arc<Source>,
    /// Poll sets that it is in.
    pub(crate) uses: Uses,
    joined: Joined,
    /// The failures that the client knows of: a wait that begins now ends when there are others. (Comparing with the count at the
    /// start of the wait would sleep through a failure that happened just before it.)
    known_errors: AtomicU64,
    _domain: Uses,
}

/// What the blocking call, wait sets and poll sets look at; the fast calls need no detour through it.
pub(crate) struct Source {
    pub(crate) id: CntrId,
    sleeper: Sleeper,
    /// The counts that the client knows of: others are something to read.
    read: Counts,
    /// The counts at the last fi_poll, or that the client set.
    polled: Counts,
}

/// Successes and failures.
#[derive(Default)]
struct Counts(AtomicU64, AtomicU64);

impl Counts {
    /// Takes note of counts; whether they are others than before.
    fn update(&self, (ok, err): (u64, u64)) -> bool {
        let before = (self.0.swap(ok, Ordering::Relaxed), self.1.swap(err, Ordering::Relaxed));
        before != (ok, err)
    }

    fn get(&self) -> (u64, u64) {
        (self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed))
    }
}

impl Source {
    /// Whether the counts are others than at the last call, or than the client set since.
    pub(crate) fn changed_since_poll(&self, engine: &rustmx::Domain) -> bool {
        self.polled.update(engine.cntr_counts(self.id))
    }

    /// The client sets the counter: that is no change for fi_poll(3). Who waits may be another thread, and looks at it.
    fn set(&self, engine: &rustmx::Domain) {
        self.polled.update(engine.cntr_counts(self.id));
    }
}

impl Waitable for Source {
    fn look(&self) -> Answer<Look> {
        self.sleeper.look(|engine| engine.cntr_counts(self.id) != self.read.get())
    }

    fn fd(&self) -> Answer<BorrowedFd<'_>> {
        self.sleeper.fd()
    }

    fn wake(&self) {
        self.sleeper.wake_all();
    }
}

// SAFETY: repr(C), starts with a fid_cntr whose class is set in `open`.
unsafe impl Object for Cntr {
    const CLASS: usize = FI_CLASS_CNTR;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, control);
static OPS: fi_ops_cntr = fi_ops_cntr { size: size_of::<fi_ops_cntr>(), read, readerr, add, set, wait, adderr, seterr };

impl Cntr {
    /// # Safety
    /// The wait set that `asked` names, if any, is live.
    pub(super) unsafe fn open(domain: &Domain, asked: Option<&fi_cntr_attr>, context: *mut c_void) -> Answer<Cntr> {
        let (wait, set) = asked.map_or((FI_WAIT_NONE, core::ptr::null_mut()), |a| (a.wait_obj, a.wait_set));
        if asked.is_some_and(|a| a.flags != 0) {
            return refuse(FI_EINVAL);
        }
        if asked.is_some_and(|a| a.events != FI_CNTR_EVENTS_COMP) {
            return refuse(FI_ENOSYS);
        }
        // SAFETY: as the caller promises.
        let wish = unsafe { Wish::new(wait, set)? };
        let sleeper = Sleeper::new(&domain.cell, &wish)?;
        let id = domain.cell.control()?.cntr_open();
        let (read, polled) = (Counts::default(), Counts::default());
        let source = Arc::new(Source { id, sleeper, read, polled });
        let joined = wish.join(source.clone()).inspect_err(|_| {
            let _ = domain.cell.let_go(|d| d.cntr_close(id));
        })?;
        Ok(Cntr {
            head: fid_cntr { fid: slots::header(FI_CLASS_CNTR, context, &FID), ops: &OPS },
            cell: domain.cell.clone(),
            id,
            source,
            joined,
            known_errors: AtomicU64::new(0),
            uses: Uses::default(),
            _domain: domain.uses.clone(),
        })
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live counter.
    let answer = unsafe { object::<Cntr, _>(fid) }.and_then(|c| {
        if c.uses.any() {
            return refuse(FI_EBUSY);
        }
        c.cell.let_go(|d| d.cntr_close(c.id))?;
        // SAFETY: the engine has let go of it, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Cntr>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: fi_cntr(3): a live counter, an argument that suits the command.
    unsafe { status(object::<Cntr, _>(fid).and_then(|c| c.joined.control(&*c.source, command, arg))) }
}

/// Runs `f` on the engine's counter.
///
/// # Safety
/// `c` is a live counter.
unsafe fn with<R>(c: *mut fid_cntr, f: impl FnOnce(&Cntr, &mut rustmx::Domain) -> R) -> Answer<R> {
    // SAFETY: live (caller).
    let c = unsafe { object::<Cntr, _>(c)? };
    Ok(c.cell.turn(|engine| f(c, engine))?)
}

/// Runs `f`, by which the client sets the counter.
///
/// # Safety
/// `c` is a live counter.
unsafe fn set_by(c: *mut fid_cntr, f: impl FnOnce(&Cntr, &mut rustmx::Domain)) -> c_int {
    // SAFETY: live (caller).
    let answer = unsafe {
        with(c, |c, d| {
            f(c, d);
            c.source.set(d);
        })
    };
    status(answer)
}

unsafe extern "C" fn read(c: *mut fid_cntr) -> u64 {
    // SAFETY: fi_cntr(3): a live counter.
    let Ok(c) = (unsafe { object::<Cntr, _>(c) }) else { return 0 };
    let last = &c.source.read.0;
    // Kept under the domain's lock: who sets the counter does so, too.
    let read = |d: &mut rustmx::Domain| {
        let count = d.cntr_read(c.id);
        last.store(count, Ordering::Relaxed);
        count
    };
    c.cell.reading(last.load(Ordering::Relaxed), read).unwrap_or(0)
}

unsafe extern "C" fn readerr(c: *mut fid_cntr) -> u64 {
    // SAFETY: fi_cntr(3): a live counter.
    let Ok(c) = (unsafe { object::<Cntr, _>(c) }) else { return 0 };
    let last = &c.source.read.1;
    let read = |d: &mut rustmx::Domain| {
        let errors = d.cntr_read_err(c.id);
        c.known_errors.store(errors, Ordering::Relaxed);
        last.store(errors, Ordering::Relaxed);
        errors
    };
    c.cell.reading(last.load(Ordering::Relaxed), read).unwrap_or(0)
}

unsafe extern "C" fn add(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    unsafe { set_by(c, |c, d| d.cntr_add(c.id, value)) }
}

unsafe extern "C" fn set(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    unsafe { set_by(c, |c, d| d.cntr_set(c.id, value)) }
}

unsafe extern "C" fn adderr(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    unsafe { set_by(c, |c, d| d.cntr_add_err(c.id, value)) }
}

unsafe extern "C" fn seterr(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    unsafe {
        set_by(c, |c, d| {
            d.cntr_set_err(c.id, value);
            c.known_errors.store(value, Ordering::Relaxed);
        })
    }
}

unsafe extern "C" fn wait(c: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    // SAFETY: fi_cntr(3): a live counter.
    let answer = unsafe { object::<Cntr, _>(c) }.and_then(|c| {
        // What others learn meanwhile, or set, ends this wait, too.
        let known = c.known_errors.load(Ordering::Relaxed);
        loop {
            let (ok, errors, failed) = c.cell.turn(|d| {
                // In this order: successes that came before a failure count before it.
                let errors = d.cntr_read_err(c.id);
                let ok = d.cntr_read(c.id);
                let failed = ok < threshold && errors != known;
                if failed {
                    c.known_errors.store(errors, Ordering::Relaxed);
                }
                (ok, errors, failed)
            })?;
            if ok >= threshold {
                return Ok(());
            }
            if failed {
                return refuse(FI_EAVAIL);
            }
            if deadline.passed() {
                return refuse(FI_ETIMEDOUT);
            }
            c.source.sleeper.pause(&deadline, |d| d.cntr_counts(c.id) == (ok, errors))?;
        }
    });
    status(answer)
}
