//! `rdma/fi_cm.h`: names and connections.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::endpoint::fid_ep;
use super::fabric::{fid, opaque};
use libc::{c_int, c_void};

c_structs! {
    struct fi_ops_cm {
        size: usize,
        setname: unsafe extern "C" fn(*mut fid, *mut c_void, usize) -> c_int,
        getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int,
        getpeer: unsafe extern "C" fn(*mut fid_ep, *mut c_void, *mut usize) -> c_int,
        connect: unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int,
        listen: unsafe extern "C" fn(*mut opaque) -> c_int,
        accept: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int,
        reject: unsafe extern "C" fn(*mut opaque, *mut fid, *const c_void, usize) -> c_int,
        shutdown: unsafe extern "C" fn(*mut fid_ep, u64) -> c_int,
        join: unsafe extern "C" fn(*mut fid_ep, *const c_void, u64, *mut *mut opaque, *mut c_void) -> c_int,
    }
}
