//! Slots of `fi_ops` that no, or only some, objects of ours offer. All are listed in each object's table.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures, which are unsafe to call; nothing is dereferenced here.

use crate::abi::endpoint::fid_ep;
use crate::abi::errno::FI_ENOSYS;
use crate::abi::fabric::{fi_ops, fid, opaque};
use libc::{c_char, c_int, c_void};

/// Nothing can be bound to it.
pub(crate) unsafe extern "C" fn no_bind(_fid: *mut fid, _other: *mut fid, _flags: u64) -> c_int {
    -FI_ENOSYS
}

/// It has no contexts to open: those are of scalable endpoints (fi_endpoint(3)).
pub(crate) unsafe extern "C" fn no_context(
    _ep: *mut fid_ep,
    _index: c_int,
    _asked: *mut opaque,
    _out: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// It knows no control command.
pub(crate) unsafe extern "C" fn no_control(_fid: *mut fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_ops_open(
    _fid: *mut fid,
    _name: *const c_char,
    _flags: u64,
    _ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_tostr(_fid: *const fid, _buf: *mut c_char, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_ops_set(
    _fid: *mut fid,
    _name: *const c_char,
    _flags: u64,
    _ops: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

type Close = unsafe extern "C" fn(*mut fid) -> c_int;
type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;
type Control = unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int;

type OpsOpen = unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;

/// The table of an object: what differs is given, the rest is refused.
pub(crate) const fn ops(close: Close, bind: Bind, control: Control) -> fi_ops {
    extended_ops(close, bind, control, no_ops_open)
}

/// The table of an object that has an extension, too.
pub(crate) const fn extended_ops(close: Close, bind: Bind, control: Control, ops_open: OpsOpen) -> fi_ops {
    fi_ops { size: size_of::<fi_ops>(), close, bind, control, ops_open, tostr: no_tostr, ops_set: no_ops_set }
}

/// The header of a new object.
pub(crate) fn header(fclass: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass, context, ops }
}
