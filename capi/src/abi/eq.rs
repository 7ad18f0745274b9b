//! `rdma/fi_eq.h`: event queues, completion queues, counters.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::fabric::{c_enum, fi_addr_t, fid};
use libc::{c_char, c_int, c_void, pollfd};

c_constants! { CONSTANTS:
    FI_WAIT_NONE: c_enum = 0;
    FI_WAIT_UNSPEC: c_enum = 1;
    FI_WAIT_SET: c_enum = 2;
    FI_WAIT_FD: c_enum = 3;
    FI_WAIT_MUTEX_COND: c_enum = 4;
    FI_WAIT_YIELD: c_enum = 5;
    FI_WAIT_POLLFD: c_enum = 6;
    FI_NOTIFY: u32 = 0;
    FI_AV_COMPLETE: u32 = 5;
    FI_CQ_FORMAT_UNSPEC: c_enum = 0;
    FI_CQ_FORMAT_CONTEXT: c_enum = 1;
    FI_CQ_FORMAT_MSG: c_enum = 2;
    FI_CQ_FORMAT_DATA: c_enum = 3;
    FI_CQ_FORMAT_TAGGED: c_enum = 4;
    FI_CQ_COND_NONE: c_enum = 0;
    FI_CQ_COND_THRESHOLD: c_enum = 1;
    FI_CNTR_EVENTS_COMP: c_enum = 0;
}

c_structs! {
    struct fi_wait_attr {
        wait_obj: c_enum,
        flags: u64,
    }

    struct fi_ops_wait {
        size: usize,
        wait: unsafe extern "C" fn(*mut fid_wait, c_int) -> c_int,
    }

    struct fid_wait {
        fid: fid,
        ops: *const fi_ops_wait,
    }

    struct fi_wait_pollfd {
        change_index: u64,
        nfds: usize,
        fd: *mut pollfd,
    }

    struct fi_poll_attr {
        flags: u64,
    }

    struct fi_ops_poll {
        size: usize,
        poll: unsafe extern "C" fn(*mut fid_poll, *mut *mut c_void, c_int) -> c_int,
        poll_add: unsafe extern "C" fn(*mut fid_poll, *mut fid, u64) -> c_int,
        poll_del: unsafe extern "C" fn(*mut fid_poll, *mut fid, u64) -> c_int,
    }

    struct fid_poll {
        fid: fid,
        ops: *const fi_ops_poll,
    }

    struct fi_eq_attr {
        size: usize,
        flags: u64,
        wait_obj: c_enum,
        signaling_vector: c_int,
        wait_set: *mut fid_wait,
    }

    struct fi_eq_entry {
        fid: *mut fid,
        context: *mut c_void,
        data: u64,
    }

    struct fi_eq_err_entry {
        fid: *mut fid,
        context: *mut c_void,
        data: u64,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }

    struct fi_ops_eq {
        size: usize,
        read: unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize,
        readerr: unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize,
        write: unsafe extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> isize,
        sread: unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
        strerror: unsafe extern "C" fn(*mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }

    struct fid_eq {
        fid: fid,
        ops: *const fi_ops_eq,
    }

    struct fi_cq_entry {
        op_context: *mut c_void,
    }

    struct fi_cq_msg_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
    }

    struct fi_cq_data_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
    }

    struct fi_cq_tagged_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
    }

    struct fi_cq_err_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
        src_addr: fi_addr_t,
    }

    struct fi_cq_attr {
        size: usize,
        flags: u64,
        format: c_enum,
        wait_obj: c_enum,
        signaling_vector: c_int,
        wait_cond: c_enum,
        wait_set: *mut fid_wait,
    }

    struct fi_ops_cq {
        size: usize,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
        readfrom: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> isize,
        readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize,
        sread: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize,
        sreadfrom: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int) -> isize,
        signal: unsafe extern "C" fn(*mut fid_cq) -> c_int,
        strerror: unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }

    struct fid_cq {
        fid: fid,
        ops: *const fi_ops_cq,
    }

    struct fi_cntr_attr {
        events: c_enum,
        wait_obj: c_enum,
        wait_set: *mut fid_wait,
        flags: u64,
    }

    struct fi_ops_cntr {
        size: usize,
        read: unsafe extern "C" fn(*mut fid_cntr) -> u64,
        readerr: unsafe extern "C" fn(*mut fid_cntr) -> u64,
        add: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
        set: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
        wait: unsafe extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int,
        adderr: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
        seterr: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
    }

    struct fid_cntr {
        fid: fid,
        ops: *const fi_ops_cntr,
    }
}
