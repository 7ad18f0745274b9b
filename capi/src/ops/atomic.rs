//! `fi_ops_atomic`: remote atomics. `FI_ATOMIC` is not among the capabilities of this version; every slot says so.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures, which are unsafe to call; nothing is dereferenced here.

use crate::abi::atomic::{fi_ioc, fi_msg_atomic, fi_ops_atomic};
use crate::abi::endpoint::fid_ep;
use crate::abi::errno::{FI_ENOSYS, FI_EOPNOTSUPP};
use crate::abi::fabric::{c_enum, fi_addr_t};
use libc::{c_int, c_void};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

unsafe extern "C" fn write(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn writev(
    _: *mut fid_ep,
    _: *const fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn writemsg(_: *mut fid_ep, _: *const fi_msg_atomic, _: u64) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn inject(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn readwrite(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn readwritev(
    _: *mut fid_ep,
    _: *const fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: *mut fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn readwritemsg(
    _: *mut fid_ep,
    _: *const fi_msg_atomic,
    _: *mut fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: u64,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn compwrite(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: *const c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn compwritev(
    _: *mut fid_ep,
    _: *const fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: *const fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: *mut fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: c_enum,
    _: c_enum,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn compwritemsg(
    _: *mut fid_ep,
    _: *const fi_msg_atomic,
    _: *const fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: *mut fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: u64,
) -> isize {
    -(FI_ENOSYS as isize)
}

// fi_atomicvalid and its relatives: clients ask for every operation and type at start (contract 4.6).

unsafe extern "C" fn writevalid(_: *mut fid_ep, _: c_enum, _: c_enum, _: *mut usize) -> c_int {
    -FI_EOPNOTSUPP
}

unsafe extern "C" fn readwritevalid(_: *mut fid_ep, _: c_enum, _: c_enum, _: *mut usize) -> c_int {
    -FI_EOPNOTSUPP
}

unsafe extern "C" fn compwritevalid(_: *mut fid_ep, _: c_enum, _: c_enum, _: *mut usize) -> c_int {
    -FI_EOPNOTSUPP
}
