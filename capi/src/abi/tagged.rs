//! `rdma/fi_tagged.h`: tagged messages.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::endpoint::fid_ep;
use super::fabric::fi_addr_t;
use libc::{c_void, iovec};

c_structs! {
    struct fi_msg_tagged {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
        data: u64,
    }

    struct fi_ops_tagged {
        size: usize,
        recv: unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize,
        recvv: unsafe extern "C" fn(
            *mut fid_ep,
            *const iovec,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            *mut c_void,
        ) -> isize,
        recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
        send: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, *mut c_void) -> isize,
        sendv: unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, *mut c_void) -> isize,
        sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64) -> isize,
        senddata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, *mut c_void) -> isize,
        injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64) -> isize,
    }
}
