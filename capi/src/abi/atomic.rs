//! `rdma/fi_atomic.h`: remote atomics.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::endpoint::fid_ep;
use super::fabric::{c_enum, fi_addr_t};
use libc::{c_int, c_void};

c_structs! {
    struct fi_ioc {
        addr: *mut c_void,
        count: usize,
    }

    struct fi_rma_ioc {
        addr: u64,
        count: usize,
        key: u64,
    }

    struct fi_msg_atomic {
        msg_iov: *const fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        rma_iov: *const fi_rma_ioc,
        rma_iov_count: usize,
        datatype: c_enum,
        op: c_enum,
        context: *mut c_void,
        data: u64,
    }

    struct fi_atomic_attr {
        count: usize,
        size: usize,
    }

    struct fi_ops_atomic {
        size: usize,
        write: unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, c_enum, c_enum, *mut c_void,
        ) -> isize,
        writev: unsafe extern "C" fn(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, fi_addr_t, u64, u64, c_enum, c_enum, *mut c_void,
        ) -> isize,
        writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, u64) -> isize,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64, c_enum, c_enum) -> isize,
        readwrite: unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, u64, u64, c_enum, c_enum,
            *mut c_void,
        ) -> isize,
        readwritev: unsafe extern "C" fn(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc, *mut *mut c_void, usize, fi_addr_t, u64, u64,
            c_enum, c_enum, *mut c_void,
        ) -> isize,
        readwritemsg: unsafe extern "C" fn(
            *mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, *mut *mut c_void, usize, u64,
        ) -> isize,
        compwrite: unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            u64, u64, c_enum, c_enum, *mut c_void,
        ) -> isize,
        compwritev: unsafe extern "C" fn(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc,
            *mut *mut c_void, usize, fi_addr_t, u64, u64, c_enum, c_enum, *mut c_void,
        ) -> isize,
        compwritemsg: unsafe extern "C" fn(
            *mut fid_ep, *const fi_msg_atomic, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc, *mut *mut c_void, usize,
            u64,
        ) -> isize,
        writevalid: unsafe extern "C" fn(*mut fid_ep, c_enum, c_enum, *mut usize) -> c_int,
        readwritevalid: unsafe extern "C" fn(*mut fid_ep, c_enum, c_enum, *mut usize) -> c_int,
        compwritevalid: unsafe extern "C" fn(*mut fid_ep, c_enum, c_enum, *mut usize) -> c_int,
    }
}

c_constants! {
    CONSTANTS:
    FI_FETCH_ATOMIC: u64 = 1 << 58;
    FI_COMPARE_ATOMIC: u64 = 1 << 59;
}
