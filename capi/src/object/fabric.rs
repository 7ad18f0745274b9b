//! `fid_fabric`: opens domains and event queues.
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::domain::Domain;
use super::eq::Eq;
use super::wait::{self, Wait};
use super::{Uses, fid as slots};
use crate::abi::domain::fid_domain;
use crate::abi::eq::{fi_eq_attr, fi_wait_attr, fid_eq, fid_wait};
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{self, Object, attr, hand_out, object, reclaim, refuse, status};
use crate::info::NAME;
use libc::{c_int, c_void};

/// An opened fabric.
#[repr(C)]
pub(crate) struct Fabric {
    head: fid_fabric,
    /// Who is opened in it: domains and event queues.
    pub(crate) uses: Uses,
    /// What the client asked for in fi_getinfo; some replies depend on it (contract 2.3).
    pub(crate) api_version: u32,
}

// SAFETY: repr(C), starts with a fid_fabric whose class is set in `open`.
unsafe impl Object for Fabric {
    const CLASS: usize = FI_CLASS_FABRIC;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, slots::no_control);
static OPS: fi_ops_fabric =
    fi_ops_fabric { size: size_of::<fi_ops_fabric>(), domain, passive_ep, eq_open, wait_open, trywait, domain2 };

/// `fi_provider.fabric`.
pub(crate) unsafe extern "C" fn open(asked: *mut fi_fabric_attr, out: *mut *mut fid_fabric, context: *mut c_void) -> c_int {
    // SAFETY: libfabric passes an attribute structure that lives during the call, and strings in it.
    let (asked, name) = unsafe {
        let asked = attr(asked);
        (asked, asked.and_then(|a| boundary::text(a.name)))
    };
    let Some(asked) = asked else { return -FI_EINVAL };
    if name != Some(NAME) {
        return -FI_ENODATA;
    }
    let head = fid_fabric {
        fid: slots::header(FI_CLASS_FABRIC, context, &FID),
        ops: &OPS,
        // libfabric writes its own value here after we return (contract 1.3).
        api_version: asked.api_version,
    };
    let fabric = Fabric { head, uses: Uses::default(), api_version: asked.api_version };
    // SAFETY: `out` is where the caller wants the handle (fi_fabric(3)).
    status(unsafe { hand_out(out, fabric) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live fabric.
    let answer = unsafe { object::<Fabric, _>(fid) }.and_then(|f| {
        if f.uses.any() {
            return refuse(FI_EBUSY);
        }
        // SAFETY: nothing opened in it is left, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Fabric>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_domain(3): a live fabric, an info that lives during the call, a place for the handle.
    unsafe { status(object::<Fabric, _>(fabric).and_then(|f| hand_out(out, Domain::open(f, info, context)?))) }
}

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // Every flag asks for a peer object or a feature we do not have.
    if flags != 0 {
        return -FI_EOPNOTSUPP;
    }
    // SAFETY: the same call without flags.
    unsafe { domain(fabric, info, out, context) }
}

unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    asked: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_eq(3): a live fabric, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Fabric, _>(fabric).and_then(|f| hand_out(out, Eq::open(f, attr(asked), context)?))) }
}

/// Connected endpoints are not offered.
unsafe extern "C" fn passive_ep(
    _fabric: *mut fid_fabric,
    _info: *mut fi_info,
    _out: *mut *mut opaque,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn wait_open(fabric: *mut fid_fabric, asked: *mut fi_wait_attr, out: *mut *mut fid_wait) -> c_int {
    // SAFETY: fi_poll(3): a live fabric, attributes that live during the call, a place for the handle.
    unsafe { status(object::<Fabric, _>(fabric).and_then(|f| hand_out(out, Wait::open(f, attr(asked))?))) }
}

unsafe extern "C" fn trywait(_fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    // SAFETY: fi_poll(3): `count` live objects.
    unsafe { status(wait::trywait(fids, count)) }
}
