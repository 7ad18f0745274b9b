//! `fi_ops_cm`: an endpoint's name. The rest belongs to connected or multicast endpoints, which are not offered.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures; handles and buffers are passed on as C gave them.

use crate::abi::cm::fi_ops_cm;
use crate::abi::endpoint::fid_ep;
use crate::abi::errno::FI_ENOSYS;
use crate::abi::fabric::{fid, opaque};
use crate::boundary::{object, status};
use crate::object::ep::Ep;
use libc::{c_int, c_void};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_cm =
    fi_ops_cm { size: size_of::<fi_ops_cm>(), setname, getname, getpeer, connect, listen, accept, reject, shutdown, join };

unsafe extern "C" fn getname(fid: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: fi_cm(3): a live endpoint, a buffer of `*len` bytes.
    unsafe { status(object::<Ep, _>(fid).and_then(|ep| ep.name(addr, len))) }
}

/// A name is the endpoint's identity; a service is chosen with `fi_info.src_addr` instead.
unsafe extern "C" fn setname(_fid: *mut fid, _addr: *mut c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn getpeer(_ep: *mut fid_ep, _addr: *mut c_void, _len: *mut usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn connect(_ep: *mut fid_ep, _addr: *const c_void, _param: *const c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn listen(_pep: *mut opaque) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn accept(_ep: *mut fid_ep, _param: *const c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn reject(_pep: *mut opaque, _handle: *mut fid, _param: *const c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn shutdown(_ep: *mut fid_ep, _flags: u64) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn join(
    _ep: *mut fid_ep,
    _addr: *const c_void,
    _flags: u64,
    _out: *mut *mut opaque,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
