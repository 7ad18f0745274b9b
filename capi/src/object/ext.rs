//! Our extension of the API (fi_open_ops(3)): `include/rustmx/fi_ext_rustmx.h`, which says what the calls do.
#![expect(unsafe_code)]
// UNSAFETY: receives C handles and writes the client's structures.

use super::domain::Domain;
use super::ep::Ep;
use crate::abi::endpoint::fid_ep;
use crate::abi::errno::*;
use crate::abi::ext::*;
use crate::abi::fabric::*;
use crate::boundary::{self, Answer, Errno, class_of, copy_text, object, refuse, status};
use libc::{c_char, c_int, c_void};
use rustmx::{Addr, Movement, Stats};

static OPS_1: fi_rustmx_ops_1 = fi_rustmx_ops_1 { size: size_of::<fi_rustmx_ops_1>(), counters, plan };

/// `fi_open_ops` of domains and endpoints.
pub(super) unsafe extern "C" fn open(
    _fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: fi_open_ops: a C string, a place for the table.
    let answer = unsafe {
        match boundary::text(name) {
            _ if flags != 0 => refuse(FI_EBADFLAGS),
            Some("rustmx_ops_1") if !ops.is_null() => {
                ops.write(core::ptr::from_ref(&OPS_1).cast_mut().cast());
                Ok(())
            }
            Some("rustmx_ops_1") | None => refuse(FI_EINVAL),
            Some(_) => refuse(FI_ENOSYS),
        }
    };
    status(answer)
}

/// # Safety
/// A live object.
unsafe fn stats(fid: *mut fid) -> Answer<Stats> {
    // SAFETY: live (caller), of the class found.
    unsafe {
        match class_of(fid)? {
            FI_CLASS_DOMAIN => Ok(object::<Domain, _>(fid)?.cell.control()?.stats()),
            FI_CLASS_EP => object::<Ep, _>(fid)?.stats(),
            _ => refuse(FI_EINVAL),
        }
    }
}

unsafe extern "C" fn counters(fid: *mut fid, counters: *mut fi_rustmx_counter, count: *mut usize) -> c_int {
    // SAFETY: the header: a live object, `*count` places.
    let answer = unsafe {
        stats(fid).and_then(|stats| {
            let count = count.as_mut().ok_or(Errno(FI_EINVAL))?;
            let rows = stats.rows();
            let room = if counters.is_null() { 0 } else { core::mem::replace(count, rows.len()) };
            *count = rows.len();
            for (i, ((_, value), name)) in rows.iter().zip(Stats::NAMES).enumerate().take(room) {
                counters.add(i).write(fi_rustmx_counter { name: name.as_ptr().cast(), value: *value });
            }
            if room < rows.len() { refuse(FI_ETOOSMALL) } else { Ok(()) }
        })
    };
    status(answer)
}

unsafe extern "C" fn plan(ep: *mut fid_ep, peer: fi_addr_t, what: c_enum, len: usize, out: *mut fi_rustmx_plan) -> c_int {
    // SAFETY: the header: a live endpoint, a place for the answer.
    let answer = unsafe { object::<Ep, _>(ep) }.and_then(|ep| {
        let what = match what {
            FI_RUSTMX_MSG => Movement::Message,
            FI_RUSTMX_READ => Movement::Read,
            FI_RUSTMX_WRITE => Movement::Write,
            FI_RUSTMX_ATOMIC => Movement::Atomic,
            _ => return refuse(FI_EINVAL),
        };
        // SAFETY: as above.
        let out = unsafe { out.as_mut() }.ok_or(Errno(FI_EINVAL))?;
        let plan = ep.plan(Addr(peer), what, len)?;
        (out.first, out.last) = (plan.sizes.0 as u64, plan.sizes.1 as u64);
        // SAFETY: two arrays of that size.
        unsafe {
            copy_text(plan.how, out.how.as_mut_ptr(), out.how.len());
            copy_text(&plan.why, out.why.as_mut_ptr(), out.why.len());
        }
        Ok(())
    });
    status(answer)
}
