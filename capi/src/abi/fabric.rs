//! `rdma/fabric.h`: the info structures, the object header, capability bits.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::domain::fid_domain;
use super::eq::{fi_eq_attr, fi_wait_attr, fid_eq, fid_wait};
use libc::{c_char, c_int, c_void};

/// A C `enum` without negative values.
pub type c_enum = u32;
pub type fi_addr_t = u64;

/// A type that we only ever see a pointer to.
#[repr(C)]
pub struct opaque {
    _private: [u8; 0],
}

pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

c_constants! { CONSTANTS:
    FI_MSG: u64 = 1 << 1;
    FI_RMA: u64 = 1 << 2;
    FI_TAGGED: u64 = 1 << 3;
    FI_ATOMIC: u64 = 1 << 4;
    FI_MULTICAST: u64 = 1 << 5;
    FI_COLLECTIVE: u64 = 1 << 6;
    FI_READ: u64 = 1 << 8;
    FI_WRITE: u64 = 1 << 9;
    FI_RECV: u64 = 1 << 10;
    FI_SEND: u64 = 1 << 11;
    FI_TRANSMIT: u64 = FI_SEND;
    FI_REMOTE_READ: u64 = 1 << 12;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_MULTI_RECV: u64 = 1 << 16;
    FI_REMOTE_CQ_DATA: u64 = 1 << 17;
    FI_MORE: u64 = 1 << 18;
    FI_PEEK: u64 = 1 << 19;
    FI_TRIGGER: u64 = 1 << 20;
    FI_FENCE: u64 = 1 << 21;
    FI_COMPLETION: u64 = 1 << 24;
    FI_EVENT: u64 = FI_COMPLETION;
    FI_INJECT: u64 = 1 << 25;
    FI_INJECT_COMPLETE: u64 = 1 << 26;
    FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_AFFINITY: u64 = 1 << 29;
    FI_COMMIT_COMPLETE: u64 = 1 << 30;
    FI_MATCH_COMPLETE: u64 = 1 << 31;
    FI_AV_USER_ID: u64 = 1 << 41;
    FI_PEER: u64 = 1 << 43;
    FI_HMEM: u64 = 1 << 47;
    FI_SOURCE_ERR: u64 = 1 << 50;
    FI_LOCAL_COMM: u64 = 1 << 51;
    FI_REMOTE_COMM: u64 = 1 << 52;
    FI_SHARED_AV: u64 = 1 << 53;
    FI_NUMERICHOST: u64 = 1 << 55;
    FI_RMA_EVENT: u64 = 1 << 56;
    FI_SOURCE: u64 = 1 << 57;
    FI_NAMED_RX_CTX: u64 = 1 << 58;
    FI_DIRECTED_RECV: u64 = 1 << 59;
    FI_CLAIM: u64 = 1 << 59;
    FI_DISCARD: u64 = 1 << 58;
    FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
    FI_NAME_MAX: usize = 64;
    FI_FORMAT_UNSPEC: u32 = 0;
    FI_ADDR_UNSPEC: u64 = u64::MAX;
    FI_ADDR_NOTAVAIL: u64 = u64::MAX;
    FI_SHARED_CONTEXT: usize = usize::MAX;
    FI_AV_UNSPEC: c_enum = 0;
    FI_AV_MAP: c_enum = 1;
    FI_AV_TABLE: c_enum = 2;
    FI_MR_UNSPEC: c_int = 0;
    FI_MR_BASIC: c_int = 1;
    FI_MR_SCALABLE: c_int = 2;
    FI_PROGRESS_UNSPEC: c_enum = 0;
    FI_PROGRESS_AUTO: c_enum = 1;
    FI_PROGRESS_MANUAL: c_enum = 2;
    FI_THREAD_UNSPEC: c_enum = 0;
    FI_THREAD_SAFE: c_enum = 1;
    FI_THREAD_FID: c_enum = 2;
    FI_THREAD_DOMAIN: c_enum = 3;
    FI_THREAD_COMPLETION: c_enum = 4;
    FI_THREAD_ENDPOINT: c_enum = 5;
    FI_RM_UNSPEC: c_enum = 0;
    FI_RM_DISABLED: c_enum = 1;
    FI_RM_ENABLED: c_enum = 2;
    FI_ORDER_RAR: u64 = 1 << 0;
    FI_ORDER_RAW: u64 = 1 << 1;
    FI_ORDER_RAS: u64 = 1 << 2;
    FI_ORDER_WAR: u64 = 1 << 3;
    FI_ORDER_WAW: u64 = 1 << 4;
    FI_ORDER_WAS: u64 = 1 << 5;
    FI_ORDER_SAR: u64 = 1 << 6;
    FI_ORDER_SAW: u64 = 1 << 7;
    FI_ORDER_SAS: u64 = 1 << 8;
    FI_ORDER_DATA: u64 = 1 << 16;
    FI_ORDER_RMA_RAR: u64 = 1 << 32;
    FI_ORDER_RMA_RAW: u64 = 1 << 33;
    FI_ORDER_RMA_WAR: u64 = 1 << 34;
    FI_ORDER_RMA_WAW: u64 = 1 << 35;
    FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
    FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
    FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
    FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;
    FI_EP_UNSPEC: c_enum = 0;
    FI_EP_RDM: c_enum = 3;
    FI_PROTO_UNSPEC: u32 = 0;
    FI_CLASS_FABRIC: usize = 1;
    FI_CLASS_DOMAIN: usize = 2;
    FI_CLASS_EP: usize = 3;
    FI_CLASS_SRX_CTX: usize = 6;
    FI_CLASS_STX_CTX: usize = 8;
    FI_CLASS_AV: usize = 11;
    FI_CLASS_MR: usize = 12;
    FI_CLASS_EQ: usize = 13;
    FI_CLASS_CQ: usize = 14;
    FI_CLASS_CNTR: usize = 15;
    FI_CLASS_WAIT: usize = 16;
    FI_CLASS_POLL: usize = 17;
    FI_GETOPSFLAG: c_int = 2;
    FI_SETOPSFLAG: c_int = 3;
    FI_ALIAS: c_int = 4;
    FI_GETWAIT: c_int = 5;
    FI_ENABLE: c_int = 6;
    FI_QUEUE_WORK: c_int = 11;
    FI_CANCEL_WORK: c_int = 12;
    FI_FLUSH_WORK: c_int = 13;
    FI_REFRESH: c_int = 14;
    FI_GETWAITOBJ: c_int = 16;
    FI_PARAM_STRING: c_enum = 0;
}

// Appended in 2.x; the values are those of the 2.6 header.
pub const FI_PROGRESS_CONTROL_UNIFIED: c_enum = 3;
/// Set in the flags of `getinfo` when ofi_rxm, ofi_rxd or ofi_mrail look for a provider to sit on (`include/ofi.h`, private).
pub const OFI_CORE_PROV_ONLY: u64 = 1 << 59;

c_structs! {
    struct fi_alias {
        fid: *mut *mut fid,
        flags: u64,
    }

    struct fi_tx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
        tclass: u32,
    }

    struct fi_rx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }

    struct fi_ep_attr {
        r#type: c_enum,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
        msg_prefix_size: usize,
        max_order_raw_size: usize,
        max_order_war_size: usize,
        max_order_waw_size: usize,
        mem_tag_format: u64,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        auth_key_size: usize,
        auth_key: *mut u8,
    }

    struct fi_domain_attr {
        domain: *mut fid_domain,
        name: *mut c_char,
        threading: c_enum,
        control_progress: c_enum,
        data_progress: c_enum,
        resource_mgmt: c_enum,
        av_type: c_enum,
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
        mr_iov_limit: usize,
        caps: u64,
        mode: u64,
        auth_key: *mut u8,
        auth_key_size: usize,
        max_err_data: usize,
        mr_cnt: usize,
        tclass: u32,
        max_ep_auth_key: usize,
        max_group_id: u32,
        max_cntr_value: u64,
        max_err_cntr_value: u64,
    }

    struct fi_fabric_attr {
        fabric: *mut fid_fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }

    struct fi_info {
        next: *mut fi_info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut fid,
        tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr,
        ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr,
        nic: *mut opaque,
    }

    struct fi_ops {
        size: usize,
        close: unsafe extern "C" fn(*mut fid) -> c_int,
        bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
        control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
        ops_open: unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
        tostr: unsafe extern "C" fn(*const fid, *mut c_char, usize) -> c_int,
        ops_set: unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
    }

    /// The header that every object starts with.
    struct fid {
        fclass: usize,
        context: *mut c_void,
        ops: *const fi_ops,
    }

    struct fi_ops_fabric {
        size: usize,
        domain: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int,
        passive_ep: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut opaque, *mut c_void) -> c_int,
        eq_open: unsafe extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int,
        wait_open: unsafe extern "C" fn(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) -> c_int,
        trywait: unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
        domain2: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, u64, *mut c_void) -> c_int,
    }

    struct fid_fabric {
        fid: fid,
        ops: *const fi_ops_fabric,
        api_version: u32,
    }
}
