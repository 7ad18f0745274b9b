//! Memory registration: needed for remote access only, which this version does not offer. `fi_getinfo` answers with
//! `mr_mode` 0, under which `desc` is ignored and local buffers need no registration.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures, which are unsafe to call; nothing is dereferenced here.

use crate::abi::domain::{fi_mr_attr, fi_ops_mr, fid_mr};
use crate::abi::errno::FI_ENOSYS;
use crate::abi::fabric::fid;
use libc::{c_int, c_void, iovec};

/// The table of every domain.
pub(crate) static OPS: fi_ops_mr = fi_ops_mr { size: size_of::<fi_ops_mr>(), reg, regv, regattr };

unsafe extern "C" fn reg(
    _domain: *mut fid,
    _buf: *const c_void,
    _len: usize,
    _access: u64,
    _offset: u64,
    _key: u64,
    _flags: u64,
    _out: *mut *mut fid_mr,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn regv(
    _domain: *mut fid,
    _iov: *const iovec,
    _count: usize,
    _access: u64,
    _offset: u64,
    _key: u64,
    _flags: u64,
    _out: *mut *mut fid_mr,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn regattr(_domain: *mut fid, _attr: *const fi_mr_attr, _flags: u64, _out: *mut *mut fid_mr) -> c_int {
    -FI_ENOSYS
}
