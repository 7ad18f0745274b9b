//! `fid_mr`: memory that peers may reach. Local buffers need no registration; descriptors are ignored.
//!
//! `mr_mode` 0: the client chooses the key, and peers name bytes by their offset. A domain opened with `FI_MR_BASIC` chooses keys
//! itself and takes virtual addresses. Closing is final when the call returns, but for transfers under way.
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; vouches for the memory that clients register.

use super::cell::DomainCell;
use super::cntr::Cntr;
use super::domain::Domain;
use super::{Uses, fid as slots};
use crate::abi::domain::{fi_mr_attr, fi_ops_mr, fid_mr};
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Object, attr_prefix, class_of, hand_out, object, reclaim, refuse, status};
use core::mem::offset_of;
use libc::{c_int, c_void, iovec};
use parking_lot::Mutex;
use rustmx::{Access, CntrEvents, Region, UserSeg};
use std::sync::Arc;

/// Rights that may be named. Those of our own side need no grant.
const RIGHTS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// The table of every domain.
pub(crate) static OPS: fi_ops_mr = fi_ops_mr { size: size_of::<fi_ops_mr>(), reg, regv, regattr };

/// A registered region.
#[repr(C)]
struct Mr {
    head: fid_mr,
    cell: Arc<DomainCell>,
    key: u64,
    /// Keeps bound counters from being closed.
    bound: Mutex<Vec<Uses>>,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_mr whose class is set in `open`.
unsafe impl Object for Mr {
    const CLASS: usize = FI_CLASS_MR;
}

static FID: fi_ops = slots::ops(close, bind, control);

/// What the three calls ask for.
struct Asked {
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    context: *mut c_void,
}

impl Mr {
    /// # Safety
    /// `asked.iov` holds `count` entries; the memory stays until the region is closed (fi_mr(3)).
    unsafe fn open(domain: &Domain, asked: &Asked) -> Answer<Mr> {
        if asked.flags & !FI_RMA_EVENT != 0 {
            return refuse(FI_EBADFLAGS);
        }
        // One piece, as `mr_iov_limit` says; an offset is reserved for the future (fi_mr(3)).
        if asked.iov.is_null() || asked.count != 1 || asked.offset != 0 || asked.access & !RIGHTS != 0 {
            return refuse(FI_EINVAL);
        }
        // SAFETY: one entry, and what it names is there until closing (caller).
        let memory = unsafe { UserSeg::new((*asked.iov).iov_base.cast(), (*asked.iov).iov_len) };
        let region = Region { memory, access: Access::from_bits_truncate(asked.access), by_address: domain.basic_regions };
        let key = (!domain.basic_regions).then_some(asked.key);
        let key = domain.cell.control()?.mr_register(key, region)?;
        Ok(Mr {
            head: fid_mr { fid: slots::header(FI_CLASS_MR, asked.context, &FID), mem_desc: core::ptr::null_mut(), key },
            cell: domain.cell.clone(),
            key,
            bound: Mutex::default(),
            _domain: domain.uses.clone(),
        })
    }

    unsafe fn bind(&self, other: *mut fid, flags: u64) -> Answer<()> {
        // SAFETY: a live object (caller).
        match unsafe { class_of(other)? } {
            // Regions belong to the domain: every endpoint of it serves them.
            FI_CLASS_EP => Ok(()),
            FI_CLASS_CNTR => {
                if flags & !(FI_REMOTE_WRITE | FI_REMOTE_READ) != 0 {
                    return refuse(FI_EBADFLAGS);
                }
                // SAFETY: a live counter by its class.
                let counter = unsafe { object::<Cntr, _>(other)? };
                if !Arc::ptr_eq(&counter.cell, &self.cell) {
                    return refuse(FI_EDOMAIN);
                }
                // Without a flag: whatever peers do.
                let flags = if flags == 0 { FI_REMOTE_WRITE | FI_REMOTE_READ } else { flags };
                self.cell.control()?.mr_bind_cntr(self.key, counter.id, CntrEvents::from_bits_truncate(flags))?;
                self.bound.lock().push(counter.uses.clone());
                Ok(())
            }
            _ => refuse(FI_EINVAL),
        }
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live region.
    let answer = unsafe { object::<Mr, _>(fid) }.and_then(|mr| {
        mr.cell.let_go(|d| d.mr_close(mr.key))?;
        // SAFETY: the engine has let go of it, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Mr>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_mr(3): two live objects.
    unsafe { status(object::<Mr, _>(fid).and_then(|mr| mr.bind(other, flags))) }
}

/// `fi_mr_enable` and `fi_mr_refresh` have nothing to do: a region works from its registration on, and nothing is cached.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    // SAFETY: fi_mr(3): a live region.
    let answer = unsafe { object::<Mr, _>(fid) }.and_then(|_| match command {
        FI_ENABLE | FI_REFRESH => Ok(()),
        _ => refuse(FI_ENOSYS),
    });
    status(answer)
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: fi_mr(3): a live domain, memory that stays until closing, a place for the handle.
    unsafe { regv(domain, &raw const iov, 1, access, offset, key, flags, out, context) }
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let asked = Asked { iov, count, access, offset, key, flags, context };
    // SAFETY: fi_mr(3): a live domain, memory that stays until closing, a place for the handle.
    unsafe { status(object::<Domain, _>(domain).and_then(|d| hand_out(out, Mr::open(d, &asked)?))) }
}

unsafe extern "C" fn regattr(domain: *mut fid, attributes: *const fi_mr_attr, flags: u64, out: *mut *mut fid_mr) -> c_int {
    // SAFETY: fi_mr(3): a live domain, attributes that have at least the fields of 1.0, a place for the handle. What later
    // versions added (keys of authorization, device memory) a client of ours has no use for.
    unsafe {
        let answer = object::<Domain, _>(domain).and_then(|d| {
            let Some(a) = attr_prefix(attributes, offset_of!(fi_mr_attr, auth_key_size)) else { return refuse(FI_EINVAL) };
            let asked = Asked {
                iov: a.mr_iov,
                count: a.iov_count,
                access: a.access,
                offset: a.offset,
                key: a.requested_key,
                flags,
                context: a.context,
            };
            hand_out(out, Mr::open(d, &asked)?)
        });
        status(answer)
    }
}
