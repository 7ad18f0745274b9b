//! `fid_cntr`: completion counters.
//!
//! `fi_cntr_wait` is a loop of progress and `sched_yield` until the threshold, an error or the timeout, whatever wait object was
//! asked for among those accepted (none, unspecified, yield).
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::cell::DomainCell;
use super::domain::Domain;
use super::{Deadline, Uses, fid as slots};
use crate::abi::eq::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Object, object, reclaim, refuse, status};
use libc::{c_int, c_void};
use rustmx::{CntrId, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An opened counter.
#[repr(C)]
pub(crate) struct Cntr {
    head: fid_cntr,
    pub(crate) cell: Arc<DomainCell>,
    pub(crate) id: CntrId,
    /// The failures that the client knows of: a wait ends when there are others. (Comparing with the count at the start of the
    /// wait would sleep through a failure that happened just before it.)
    known_errors: AtomicU64,
    /// What it is bound to.
    pub(crate) uses: Uses,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_cntr whose class is set in `open`.
unsafe impl Object for Cntr {
    const CLASS: usize = FI_CLASS_CNTR;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, slots::no_control);
static OPS: fi_ops_cntr = fi_ops_cntr { size: size_of::<fi_ops_cntr>(), read, readerr, add, set, wait, adderr, seterr };

impl Cntr {
    pub(super) fn open(domain: &Domain, asked: Option<&fi_cntr_attr>, context: *mut c_void) -> Answer<Cntr> {
        if let Some(a) = asked {
            if a.flags != 0 {
                return refuse(FI_EINVAL);
            }
            let known = matches!(a.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD);
            if a.events != FI_CNTR_EVENTS_COMP || !known {
                return refuse(FI_ENOSYS);
            }
        }
        Ok(Cntr {
            head: fid_cntr { fid: slots::header(FI_CLASS_CNTR, context, &FID), ops: &OPS },
            id: domain.cell.control()?.cntr_open(),
            cell: domain.cell.clone(),
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
        match c.cell.control().and_then(|mut d| d.cntr_close(c.id)) {
            Ok(()) | Err(Error::Forked) => {}
            Err(e) => return Err(e.into()),
        }
        // SAFETY: the engine has let go of it, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Cntr>(fid) });
        Ok(())
    });
    status(answer)
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

unsafe extern "C" fn read(c: *mut fid_cntr) -> u64 {
    // SAFETY: fi_cntr(3): a live counter.
    unsafe { with(c, |c, d| d.cntr_read(c.id)) }.unwrap_or(0)
}

unsafe extern "C" fn readerr(c: *mut fid_cntr) -> u64 {
    // SAFETY: fi_cntr(3): a live counter.
    let errors = unsafe {
        with(c, |c, d| {
            let errors = d.cntr_read_err(c.id);
            c.known_errors.store(errors, Ordering::Relaxed);
            errors
        })
    };
    errors.unwrap_or(0)
}

unsafe extern "C" fn add(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    status(unsafe { with(c, |c, d| d.cntr_add(c.id, value)) })
}

unsafe extern "C" fn set(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    status(unsafe { with(c, |c, d| d.cntr_set(c.id, value)) })
}

unsafe extern "C" fn adderr(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    status(unsafe { with(c, |c, d| d.cntr_add_err(c.id, value)) })
}

unsafe extern "C" fn seterr(c: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr(3): a live counter.
    let answer = unsafe {
        with(c, |c, d| {
            d.cntr_set_err(c.id, value);
            c.known_errors.store(value, Ordering::Relaxed);
        })
    };
    status(answer)
}

unsafe extern "C" fn wait(c: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    loop {
        // SAFETY: fi_cntr(3): a live counter.
        let seen = unsafe {
            with(c, |c, d| {
                // In this order: successes that came before a failure count before it.
                let errors = d.cntr_read_err(c.id);
                if d.cntr_read(c.id) >= threshold {
                    return (true, false);
                }
                (false, c.known_errors.swap(errors, Ordering::Relaxed) != errors)
            })
        };
        match seen {
            Ok((true, _)) => return 0,
            Ok((_, true)) => return -FI_EAVAIL,
            Ok(_) if deadline.passed() => return -FI_ETIMEDOUT,
            Ok(_) => std::thread::yield_now(),
            Err(e) => return status(Err(e)),
        }
    }
}
