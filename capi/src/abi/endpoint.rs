//! `rdma/fi_endpoint.h`: endpoints and untagged messages.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::atomic::fi_ops_atomic;
use super::cm::fi_ops_cm;
use super::fabric::{fi_addr_t, fid, opaque};
use super::rma::fi_ops_rma;
use super::tagged::fi_ops_tagged;
use libc::{c_int, c_void, iovec};

c_constants! { CONSTANTS:
    FI_OPT_ENDPOINT: c_int = 0;
    FI_OPT_MIN_MULTI_RECV: c_int = 0;
    FI_OPT_CM_DATA_SIZE: c_int = 1;
    FI_OPT_TX_SIZE: c_int = 6;
    FI_OPT_RX_SIZE: c_int = 7;
    FI_OPT_FI_HMEM_P2P: c_int = 8;
    FI_HMEM_P2P_DISABLED: c_int = 3;
}

// Appended in 2.x; the values are those of the 2.6 header.
c_constants! { APPENDED:
    FI_OPT_CUDA_API_PERMITTED: c_int = 10;
    FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
    FI_OPT_MAX_MSG_SIZE: c_int = 12;
    FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
    FI_OPT_MAX_RMA_SIZE: c_int = 14;
    FI_OPT_MAX_ATOMIC_SIZE: c_int = 15;
    FI_OPT_INJECT_MSG_SIZE: c_int = 16;
    FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;
    FI_OPT_INJECT_RMA_SIZE: c_int = 18;
    FI_OPT_INJECT_ATOMIC_SIZE: c_int = 19;
}

c_structs! {
    struct fi_msg {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        context: *mut c_void,
        data: u64,
    }

    struct fi_ops_ep {
        size: usize,
        cancel: unsafe extern "C" fn(*mut fid, *mut c_void) -> isize,
        getopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
        setopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *const c_void, usize) -> c_int,
        tx_ctx: unsafe extern "C" fn(*mut fid_ep, c_int, *mut opaque, *mut *mut fid_ep, *mut c_void) -> c_int,
        rx_ctx: unsafe extern "C" fn(*mut fid_ep, c_int, *mut opaque, *mut *mut fid_ep, *mut c_void) -> c_int,
        rx_size_left: unsafe extern "C" fn(*mut fid_ep) -> isize,
        tx_size_left: unsafe extern "C" fn(*mut fid_ep) -> isize,
    }

    struct fi_ops_msg {
        size: usize,
        recv: unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize,
        recvv: unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize,
        recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
        send: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize,
        sendv: unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize,
        sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize,
        senddata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, *mut c_void) -> isize,
        injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize,
    }

    struct fid_stx {
        fid: fid,
        ops: *const fi_ops_ep,
    }

    struct fid_ep {
        fid: fid,
        ops: *const fi_ops_ep,
        cm: *const fi_ops_cm,
        msg: *const fi_ops_msg,
        rma: *const fi_ops_rma,
        tagged: *const fi_ops_tagged,
        atomic: *const fi_ops_atomic,
        collective: *const opaque,
    }
}
