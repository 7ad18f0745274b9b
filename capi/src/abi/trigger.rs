//! `rdma/fi_trigger.h`: triggered operations and deferred work.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::atomic::{fi_ioc, fi_msg_atomic};
use super::endpoint::{fi_msg, fid_ep};
use super::eq::fid_cntr;
use super::fabric::{c_enum, opaque};
use super::rma::fi_msg_rma;
use super::tagged::fi_msg_tagged;
use libc::c_void;

c_constants! { CONSTANTS:
    FI_TRIGGER_THRESHOLD: c_enum = 0;
    FI_OP_RECV: c_enum = 0;
    FI_OP_SEND: c_enum = 1;
    FI_OP_TRECV: c_enum = 2;
    FI_OP_TSEND: c_enum = 3;
    FI_OP_READ: c_enum = 4;
    FI_OP_WRITE: c_enum = 5;
    FI_OP_ATOMIC: c_enum = 6;
    FI_OP_FETCH_ATOMIC: c_enum = 7;
    FI_OP_COMPARE_ATOMIC: c_enum = 8;
    FI_OP_CNTR_SET: c_enum = 9;
    FI_OP_CNTR_ADD: c_enum = 10;
}

c_structs! {
    struct fi_trigger_threshold {
        cntr: *mut fid_cntr,
        threshold: usize,
    }

    struct fi_triggered_context {
        event_type: c_enum,
        // A union: a fi_trigger_threshold, for the one event type that is offered.
        trigger: [*mut c_void; 3],
    }

    struct fi_msg_fetch {
        msg_iov: *mut fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
    }

    struct fi_msg_compare {
        msg_iov: *const fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
    }

    struct fi_op_msg {
        ep: *mut fid_ep,
        msg: fi_msg,
        flags: u64,
    }

    struct fi_op_tagged {
        ep: *mut fid_ep,
        msg: fi_msg_tagged,
        flags: u64,
    }

    struct fi_op_rma {
        ep: *mut fid_ep,
        msg: fi_msg_rma,
        flags: u64,
    }

    struct fi_op_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        flags: u64,
    }

    struct fi_op_fetch_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        fetch: fi_msg_fetch,
        flags: u64,
    }

    struct fi_op_compare_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        fetch: fi_msg_fetch,
        compare: fi_msg_compare,
        flags: u64,
    }

    struct fi_op_cntr {
        cntr: *mut fid_cntr,
        value: u64,
    }

    struct fi_deferred_work {
        context: fi_context2,
        threshold: u64,
        triggering_cntr: *mut fid_cntr,
        completion_cntr: *mut fid_cntr,
        op_type: c_enum,
        // A union of pointers: to one of the above, as `op_type` says.
        op: *mut opaque,
    }

    struct fi_context2 {
        internal: [*mut c_void; 8],
    }
}
