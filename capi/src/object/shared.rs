//! Shared contexts: `fid_ep` of class `FI_CLASS_SRX_CTX`, which receives are posted to (`ops/srx.rs`), and `fid_stx`, which has no calls
//! of its own (fi_endpoint(3)).
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::cell::DomainCell;
use super::domain::Domain;
use super::{Uses, fid as slots};
use crate::abi::endpoint::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Object, copy_out, object, reclaim, refuse, status};
use crate::{info, ops};
use libc::{c_int, c_void};
use rustmx::{Error, OpFlags, RecvArgs, SrxId, UserCtx};
use std::sync::Arc;

/// An opened shared receive context.
#[repr(C)]
pub(crate) struct Srx {
    head: fid_ep,
    pub(super) cell: Arc<DomainCell>,
    pub(super) id: SrxId,
    size: usize,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_ep whose class is set in `open`.
unsafe impl Object for Srx {
    const CLASS: usize = FI_CLASS_SRX_CTX;
}

/// Queues and counters are those of the endpoints (fi_endpoint(3)): nothing can be bound.
static FID: fi_ops = slots::ops(close, slots::no_bind, control);
static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: slots::no_context,
    rx_ctx: slots::no_context,
    rx_size_left,
    tx_size_left,
};

impl Srx {
    pub(super) fn open(domain: &Domain, asked: Option<&fi_rx_attr>, context: *mut c_void) -> Answer<Srx> {
        let (flags, caps) = asked.map_or((0, 0), |a| (a.op_flags, a.caps));
        if flags & !info::RX_OP_FLAGS != 0 {
            return refuse(FI_EBADFLAGS);
        }
        Ok(Srx {
            head: fid_ep {
                fid: slots::header(FI_CLASS_SRX_CTX, context, &FID),
                ops: &OPS,
                // Of these, and of the sends in the other two, every call refuses what is no endpoint.
                cm: &ops::cm::OPS,
                rma: &ops::rma::OPS,
                atomic: &ops::atomic::OPS,
                msg: &ops::srx::MSG,
                tagged: &ops::srx::TAGGED,
                collective: core::ptr::null(),
            },
            id: domain.cell.control()?.srx_open(OpFlags::from_bits_retain(flags), caps & FI_DIRECTED_RECV != 0),
            cell: domain.cell.clone(),
            size: asked.map(|a| a.size).filter(|n| *n > 0).unwrap_or(info::DEFAULT_SIZE),
            _domain: domain.uses.clone(),
        })
    }

    /// Posts a receive.
    pub(crate) fn recv(&self, args: &RecvArgs<'_>) -> Answer<()> {
        Ok(self.cell.data()?.srx_recv(self.id, args)?)
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live context.
    let answer = unsafe { object::<Srx, _>(fid) }.and_then(|srx| {
        srx.cell.let_go(|d| d.srx_close(srx.id))?;
        // SAFETY: the engine has let go of it, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Srx>(fid) });
        Ok(())
    });
    status(answer)
}

/// There is nothing to enable.
unsafe extern "C" fn control(_fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: fi_endpoint(3): a live context.
    let answer =
        unsafe { object::<Srx, _>(fid) }.and_then(|srx| match srx.cell.data()?.srx_cancel(srx.id, UserCtx(context as usize)) {
            Err(Error::NoMessage) => refuse(FI_ENOENT),
            other => Ok(other?),
        });
    status(answer) as isize
}

unsafe extern "C" fn getopt(fid: *mut fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: fi_endpoint(3): a live context, a buffer of `*len` bytes.
    let answer = unsafe {
        object::<Srx, _>(fid).and_then(|srx| {
            let now = match (level, name) {
                (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) => srx.cell.control()?.srx_min_multi_recv(srx.id),
                (FI_OPT_ENDPOINT, FI_OPT_RX_SIZE) => srx.size,
                _ => return refuse(FI_ENOPROTOOPT),
            };
            copy_out(&now.to_ne_bytes(), value, len)
        })
    };
    status(answer)
}

unsafe extern "C" fn setopt(fid: *mut fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    // SAFETY: fi_endpoint(3): a live context, a value of `len` bytes.
    let answer = unsafe {
        object::<Srx, _>(fid).and_then(|srx| {
            if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
                return refuse(FI_ENOPROTOOPT);
            }
            let new = super::options::read(value, len)?;
            srx.cell.control()?.srx_set_min_multi_recv(srx.id, new);
            Ok(())
        })
    };
    status(answer)
}

/// Posted receives are limited by memory only: the size that it was opened with.
unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: fi_endpoint(3): a live context.
    crate::boundary::count(unsafe { object::<Srx, _>(ep) }.map(|srx| srx.size))
}

unsafe extern "C" fn tx_size_left(_ep: *mut fid_ep) -> isize {
    -(FI_EINVAL as isize)
}

/// An opened shared transmit context. Sends are posted to endpoints, and each has the queues of its own rings: there is nothing to share, and
/// binding one changes nothing.
#[repr(C)]
pub(crate) struct Stx {
    head: fid_stx,
    pub(super) cell: Arc<DomainCell>,
    /// Endpoints bound to it.
    pub(super) uses: Uses,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_stx whose class is set in `open`.
unsafe impl Object for Stx {
    const CLASS: usize = FI_CLASS_STX_CTX;
}

static STX_FID: fi_ops = slots::ops(close_stx, slots::no_bind, control);

impl Stx {
    pub(super) fn open(domain: &Domain, asked: Option<&fi_tx_attr>, context: *mut c_void) -> Answer<Stx> {
        if asked.is_some_and(|a| a.op_flags & !info::TX_OP_FLAGS != 0) {
            return refuse(FI_EBADFLAGS);
        }
        Ok(Stx {
            head: fid_stx { fid: slots::header(FI_CLASS_STX_CTX, context, &STX_FID), ops: &OPS },
            cell: domain.cell.clone(),
            uses: Uses::default(),
            _domain: domain.uses.clone(),
        })
    }
}

unsafe extern "C" fn close_stx(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live context.
    let answer = unsafe { object::<Stx, _>(fid) }.and_then(|stx| {
        if stx.uses.any() {
            return refuse(FI_EBUSY);
        }
        // SAFETY: no endpoint is bound to it any more, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Stx>(fid) });
        Ok(())
    });
    status(answer)
}
