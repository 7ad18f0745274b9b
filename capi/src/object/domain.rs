//! `fid_domain`: one engine, and whatever is opened in it.
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::av::Av;
use super::cell::DomainCell;
use super::cntr::Cntr;
use super::cq::Cq;
use super::ep::Ep;
use super::eq::Eq;
use super::fabric::Fabric;
use super::poll::PollSet;
use super::progress::{Progress, attend};
use super::shared::{Srx, Stx};
use super::{Uses, ext, fid as slots};
use crate::abi::atomic::{FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC, fi_atomic_attr};
use crate::abi::domain::*;
use crate::abi::endpoint::{fid_ep, fid_stx};
use crate::abi::eq::{fi_cntr_attr, fi_cq_attr, fi_poll_attr, fid_cntr, fid_cq, fid_poll};
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Object, attr, class_of, hand_out, object, reclaim, refuse, status};
use crate::object::mr;
use crate::{info, ops};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rustmx::config::network::Secret;
use rustmx::{AtomicForm, Error};
use std::sync::Arc;

/// An opened domain.
#[repr(C)]
pub(crate) struct Domain {
    head: fid_domain,
    pub(crate) cell: Arc<DomainCell>,
    pub(crate) api_version: u32,
    /// `FI_MR_BASIC`: we choose the keys of regions, and peers name bytes by virtual address.
    pub(crate) basic_regions: bool,
    /// The authorization key of endpoints that have none of their own; mostly empty.
    pub(super) key: Secret,
    /// What is opened in it.
    pub(crate) uses: Uses,
    /// Keeps the fabric, and a bound event queue, from being closed.
    _fabric: Uses,
    eq: Mutex<Option<Uses>>,
    /// The thread of `FI_PROGRESS_AUTO`.
    progress: Mutex<Option<Progress>>,
}

// SAFETY: repr(C), starts with a fid_domain whose class is set in `open`.
unsafe impl Object for Domain {
    const CLASS: usize = FI_CLASS_DOMAIN;
}

static FID: fi_ops = slots::extended_ops(close, bind, control, ext::open);
static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep,
    cntr_open,
    poll_open,
    stx_ctx,
    srx_ctx,
    query_atomic,
    query_collective,
    endpoint2,
};

impl Domain {
    /// # Safety
    /// `asked` is null or lives during the call, with the blocks it points to.
    pub(super) unsafe fn open(fabric: &Fabric, asked: *const fi_info, context: *mut c_void) -> Answer<Domain> {
        // SAFETY: as the caller promises. Of the domain block fields are read that it has since 1.5: a copy that an old libfabric
        // made is shorter than our mirror.
        let (threading, progress, mr_mode, key) = unsafe {
            match attr(asked) {
                Some(i) if !i.domain_attr.is_null() => {
                    let d = i.domain_attr;
                    // fi_domain(3): ignored before 1.5.
                    let size = if fabric.api_version < version(1, 5) { 0 } else { (*d).auth_key_size };
                    let key = info::key_of((*d).auth_key, size);
                    if key.is_empty() && size != 0 {
                        return refuse(FI_EINVAL);
                    }
                    ((*d).threading, (*d).data_progress, (*d).mr_mode, key)
                }
                _ => return refuse(FI_EINVAL),
            }
        };
        let start = crate::entry::start();
        let config = start.profiles.applied(&start.config, &start.log);
        let engine = rustmx::Domain::new(config, start.log.clone()).with_profiles(start.profiles.clone());
        // A thread of ours keeps no promise that the application gives for its own.
        let auto = progress == FI_PROGRESS_AUTO;
        let cell = Arc::new(DomainCell::new(engine, threading == FI_THREAD_DOMAIN && !auto));
        let progress = if auto {
            Some(Progress::start(&cell)?)
        } else {
            attend(&cell);
            None
        };
        Ok(Domain {
            head: fid_domain { fid: slots::header(FI_CLASS_DOMAIN, context, &FID), ops: &OPS, mr: &mr::OPS },
            cell,
            api_version: fabric.api_version,
            basic_regions: mr_mode == FI_MR_BASIC,
            key,
            uses: Uses::default(),
            _fabric: fabric.uses.clone(),
            eq: Mutex::new(None),
            progress: Mutex::new(progress),
        })
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live domain.
    let answer = unsafe { object::<Domain, _>(fid) }.and_then(|d| {
        if d.uses.any() {
            return refuse(FI_EBUSY);
        }
        if d.cell.elsewhere() {
            // A forked child: what the engine holds belongs to the parent (contract 8.15), so the engine stays.
            std::mem::forget(d.cell.clone());
            std::mem::forget(d.progress.lock().take());
        } else if let Some(progress) = d.progress.lock().take() {
            progress.stop();
        }
        // SAFETY: nothing opened in it is left, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Domain>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_domain(3): both handles are live.
    let answer = unsafe { object::<Domain, _>(fid).and_then(|d| Ok((d, class_of(other)?))) }.and_then(|(d, class)| {
        // Only asynchronous registration would use the queue, and FI_REG_MR asks for that: not offered.
        if class != FI_CLASS_EQ || flags != 0 {
            return refuse(FI_EINVAL);
        }
        // SAFETY: a live event queue.
        *d.eq.lock() = Some(unsafe { object::<Eq, _>(other)? }.uses.clone());
        Ok(())
    });
    status(answer)
}

/// The deferred work queue (fi_trigger(3)). `FI_FLUSH_WORK` takes the counter whose work is meant, or null for all.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: fi_domain(3): a live domain, an argument that suits the command.
    let answer = unsafe { object::<Domain, _>(fid) }.and_then(|d| match command {
        // SAFETY: a work request as fi_trigger(3) wants it.
        FI_QUEUE_WORK => unsafe { ops::later::queue(d, arg.cast_const().cast()) },
        FI_CANCEL_WORK => match d.cell.control()?.cancel_deferred(arg as usize) {
            Err(Error::NoMessage) => refuse(FI_ENOENT),
            other => Ok(other?),
        },
        FI_FLUSH_WORK => {
            // SAFETY: null or a live counter.
            let cntr = if arg.is_null() { None } else { Some(unsafe { object::<Cntr, _>(arg) }?.id) };
            d.cell.control()?.flush_deferred(cntr);
            Ok(())
        }
        _ => refuse(FI_ENOSYS),
    });
    status(answer)
}

unsafe extern "C" fn av_open(d: *mut fid_domain, asked: *mut fi_av_attr, out: *mut *mut fid_av, context: *mut c_void) -> c_int {
    // SAFETY: fi_av(3): a live domain, attributes that live during the call (we write the type), a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, Av::open(d, asked, context)?))) }
}

unsafe extern "C" fn cq_open(d: *mut fid_domain, asked: *mut fi_cq_attr, out: *mut *mut fid_cq, context: *mut c_void) -> c_int {
    // SAFETY: fi_cq(3): a live domain, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, Cq::open(d, asked, context)?))) }
}

unsafe extern "C" fn cntr_open(
    d: *mut fid_domain,
    asked: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_cntr(3): a live domain, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, Cntr::open(d, attr(asked), context)?))) }
}

unsafe extern "C" fn endpoint(d: *mut fid_domain, info: *mut fi_info, out: *mut *mut fid_ep, context: *mut c_void) -> c_int {
    // SAFETY: fi_endpoint(3): a live domain, an info that lives during the call, a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, Ep::open(d, info, context)?))) }
}

unsafe extern "C" fn endpoint2(
    d: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // Every flag asks for a peer object or a feature we do not have.
    if flags != 0 {
        return -FI_EOPNOTSUPP;
    }
    // SAFETY: the same call without flags.
    unsafe { endpoint(d, info, out, context) }
}

/// Not offered; fi_getinfo says so with max_ep_tx_ctx = 1.
unsafe extern "C" fn scalable_ep(
    _d: *mut fid_domain,
    _info: *mut fi_info,
    _out: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn poll_open(d: *mut fid_domain, asked: *mut fi_poll_attr, out: *mut *mut fid_poll) -> c_int {
    // SAFETY: fi_poll(3): a live domain, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, PollSet::open(d, attr(asked))?))) }
}

unsafe extern "C" fn stx_ctx(d: *mut fid_domain, asked: *mut fi_tx_attr, out: *mut *mut fid_stx, context: *mut c_void) -> c_int {
    // SAFETY: fi_endpoint(3): a live domain, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, Stx::open(d, attr(asked), context)?))) }
}

unsafe extern "C" fn srx_ctx(d: *mut fid_domain, asked: *mut fi_rx_attr, out: *mut *mut fid_ep, context: *mut c_void) -> c_int {
    // SAFETY: fi_endpoint(3): a live domain, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Domain, _>(d).and_then(|d| hand_out(out, Srx::open(d, attr(asked), context)?))) }
}

unsafe extern "C" fn query_atomic(
    _d: *mut fid_domain,
    datatype: c_enum,
    op: c_enum,
    out: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let form = match flags {
        0 => AtomicForm::Base,
        FI_FETCH_ATOMIC => AtomicForm::Fetch,
        FI_COMPARE_ATOMIC => AtomicForm::Compare,
        // Atomics on tagged buffers are not offered.
        _ => return -FI_EINVAL,
    };
    let answer = ops::atomic::order(datatype, op, form).and_then(|order| {
        if out.is_null() {
            return refuse(FI_EINVAL);
        }
        let answer = fi_atomic_attr { count: ops::atomic::most(order), size: order.kind.bytes() };
        // SAFETY: fi_atomic(3): a place for the answer.
        unsafe { out.write(answer) };
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn query_collective(_d: *mut fid_domain, _op: c_enum, _attr: *mut opaque, _flags: u64) -> c_int {
    -FI_EOPNOTSUPP
}
