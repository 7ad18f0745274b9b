//! `rdma/fi_domain.h`: domains, address vectors, memory regions.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::atomic::fi_atomic_attr;
use super::endpoint::{fid_ep, fid_stx};
use super::eq::{fi_cntr_attr, fi_cq_attr, fi_poll_attr, fid_cntr, fid_cq, fid_poll};
use super::fabric::{c_enum, fi_addr_t, fi_info, fi_rx_attr, fi_tx_attr, fid, opaque};
use libc::{c_char, c_int, c_void, iovec};

c_constants! { CONSTANTS:
    FI_SYMMETRIC: u64 = 1 << 59;
    FI_SYNC_ERR: u64 = 1 << 58;
}

c_structs! {
    struct fi_av_attr {
        r#type: c_enum,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }

    struct fi_ops_av {
        size: usize,
        insert: unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64, *mut c_void) -> c_int,
        insertsvc: unsafe extern "C" fn(*mut fid_av, *const c_char, *const c_char, *mut fi_addr_t, u64, *mut c_void) -> c_int,
        insertsym: unsafe extern "C" fn(
            *mut fid_av,
            *const c_char,
            usize,
            *const c_char,
            usize,
            *mut fi_addr_t,
            u64,
            *mut c_void,
        ) -> c_int,
        remove: unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, usize, u64) -> c_int,
        lookup: unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int,
        straddr: unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char,
        av_set: unsafe extern "C" fn(*mut fid_av, *mut opaque, *mut *mut opaque, *mut c_void) -> c_int,
        insert_auth_key: unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int,
        lookup_auth_key: unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int,
        set_user_id: unsafe extern "C" fn(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int,
    }

    struct fid_av {
        fid: fid,
        ops: *const fi_ops_av,
    }

    struct fid_mr {
        fid: fid,
        mem_desc: *mut c_void,
        key: u64,
    }

    struct fi_mr_attr {
        mr_iov: *const iovec,
        iov_count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: *mut c_void,
        auth_key_size: usize,
        auth_key: *mut u8,
        iface: c_enum,
        device: u64,
        hmem_data: *mut c_void,
        page_size: usize,
        base_mr: *const fid_mr,
        sub_mr_cnt: usize,
    }

    struct fi_ops_domain {
        size: usize,
        av_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int,
        cq_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int,
        endpoint: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
        scalable_ep: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
        cntr_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, *mut c_void) -> c_int,
        poll_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) -> c_int,
        stx_ctx: unsafe extern "C" fn(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) -> c_int,
        srx_ctx: unsafe extern "C" fn(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int,
        query_atomic: unsafe extern "C" fn(*mut fid_domain, c_enum, c_enum, *mut fi_atomic_attr, u64) -> c_int,
        query_collective: unsafe extern "C" fn(*mut fid_domain, c_enum, *mut opaque, u64) -> c_int,
        endpoint2: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, u64, *mut c_void) -> c_int,
    }

    struct fi_ops_mr {
        size: usize,
        reg: unsafe extern "C" fn(*mut fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void) -> c_int,
        regv: unsafe extern "C" fn(*mut fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void) -> c_int,
        regattr: unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int,
    }

    struct fid_domain {
        fid: fid,
        ops: *const fi_ops_domain,
        mr: *const fi_ops_mr,
    }
}
