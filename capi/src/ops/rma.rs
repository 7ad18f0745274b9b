//! `fi_ops_rma`: remote memory access. `FI_RMA` is not among the capabilities of this version; every slot says so.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures, which are unsafe to call; nothing is dereferenced here.

use crate::abi::endpoint::fid_ep;
use crate::abi::errno::FI_ENOSYS;
use crate::abi::fabric::fi_addr_t;
use crate::abi::rma::{fi_msg_rma, fi_ops_rma};
use libc::{c_void, iovec};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_rma =
    fi_ops_rma { size: size_of::<fi_ops_rma>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

unsafe extern "C" fn read(
    _: *mut fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn readv(
    _: *mut fid_ep,
    _: *const iovec,
    _: *mut *mut c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn readmsg(_: *mut fid_ep, _: *const fi_msg_rma, _: u64) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn write(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn writev(
    _: *mut fid_ep,
    _: *const iovec,
    _: *mut *mut c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn writemsg(_: *mut fid_ep, _: *const fi_msg_rma, _: u64) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn inject(_: *mut fid_ep, _: *const c_void, _: usize, _: fi_addr_t, _: u64, _: u64) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn writedata(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn injectdata(_: *mut fid_ep, _: *const c_void, _: usize, _: u64, _: fi_addr_t, _: u64, _: u64) -> isize {
    -(FI_ENOSYS as isize)
}
