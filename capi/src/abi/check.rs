//! Compile-time proof that the mirror has the sizes and offsets that all four libfabric versions share (contract 2.1), and that
//! the engine's flag bits are libfabric's.

use super::{atomic::*, cm::*, domain::*, endpoint::*, eq::*, fabric::*, prov::*, rma::*, tagged::*, trigger::*};
use core::mem::offset_of;
use rustmx::{CntrEvents, CompFlags, OpFlags};

macro_rules! sizes {
    ($( $name:ident $size:literal ),* $(,)?) => { $( const _: () = assert!(size_of::<$name>() == $size, stringify!($name)); )* };
}

macro_rules! offsets {
    ($( $name:ident.$field:ident $at:literal ),* $(,)?) => {
        $( const _: () = assert!(offset_of!($name, $field) == $at, stringify!($name.$field)); )*
    };
}

macro_rules! same_bits {
    ($( $engine:expr, $c:expr ; )*) => { $( const _: () = assert!($engine.bits() == $c, stringify!($c)); )* };
}

sizes! {
    fi_info 120, fi_tx_attr 80, fi_rx_attr 64, fi_ep_attr 96, fi_fabric_attr 32, fid 24, fi_ops 56, fid_fabric 40,
    fi_ops_fabric 56, fid_domain 40, fi_ops_domain 96, fi_ops_mr 32, fid_ep 80, fi_ops_ep 64, fi_ops_cm 80, fi_ops_msg 80,
    fi_ops_tagged 80, fi_ops_rma 80, fi_ops_atomic 112, fid_av 32, fi_av_attr 48, fid_mr 40, fid_cq 32, fi_ops_cq 64,
    fi_cq_attr 40, fi_cq_entry 8, fi_cq_msg_entry 24, fi_cq_data_entry 40, fi_cq_tagged_entry 48, fid_eq 32, fi_ops_eq 48,
    fi_eq_attr 32, fi_eq_entry 24, fi_eq_err_entry 48, fid_cntr 32, fi_ops_cntr 64, fi_cntr_attr 24, fid_wait 32,
    fi_ops_wait 16, fi_wait_attr 16, fi_wait_pollfd 24, fid_poll 32, fi_ops_poll 32, fi_poll_attr 8, fi_context 32, fi_msg 48, fi_msg_tagged 64, fi_msg_rma 64, fi_msg_atomic 72,
    fi_rma_ioc 24, fi_ioc 16, fi_rma_iov 24, fi_provider 72, fid_stx 32, fi_deferred_work 104, fi_context2 64,
    fi_triggered_context 32,
    // Grown since 1.17: these are the 2.6 sizes.
    fi_domain_attr 224, fi_ops_av 88, fi_mr_attr 112, fi_cq_err_entry 88,
}

offsets! {
    fi_info.caps 8, fi_info.mode 16, fi_info.addr_format 24, fi_info.src_addrlen 32, fi_info.dest_addrlen 40,
    fi_info.src_addr 48, fi_info.dest_addr 56, fi_info.handle 64, fi_info.tx_attr 72, fi_info.rx_attr 80, fi_info.ep_attr 88,
    fi_info.domain_attr 96, fi_info.fabric_attr 104, fi_info.nic 112,
    fi_domain_attr.domain 0, fi_domain_attr.name 8, fi_domain_attr.threading 16, fi_domain_attr.control_progress 20,
    fi_domain_attr.data_progress 24, fi_domain_attr.resource_mgmt 28, fi_domain_attr.av_type 32, fi_domain_attr.mr_mode 36,
    fi_domain_attr.mr_key_size 40, fi_domain_attr.cq_data_size 48, fi_domain_attr.max_ep_srx_ctx 112,
    fi_domain_attr.cntr_cnt 120, fi_domain_attr.mr_iov_limit 128, fi_domain_attr.caps 136, fi_domain_attr.mode 144,
    fi_domain_attr.auth_key 152, fi_domain_attr.auth_key_size 160, fi_domain_attr.max_err_data 168,
    fi_domain_attr.mr_cnt 176, fi_domain_attr.tclass 184, fi_domain_attr.max_ep_auth_key 192,
    fi_domain_attr.max_group_id 200, fi_domain_attr.max_cntr_value 208, fi_domain_attr.max_err_cntr_value 216,
    fi_ep_attr.mem_tag_format 56, fi_ep_attr.auth_key 88, fi_fabric_attr.prov_name 16, fi_fabric_attr.api_version 28,
    fi_cq_err_entry.err 56, fi_cq_err_entry.err_data 64, fi_cq_err_entry.err_data_size 72, fi_cq_err_entry.src_addr 80,
    fi_mr_attr.requested_key 32, fi_mr_attr.iface 64, fi_mr_attr.device 72, fi_mr_attr.hmem_data 80,
    fi_mr_attr.page_size 88, fi_mr_attr.base_mr 96, fi_mr_attr.sub_mr_cnt 104,
    fi_ops_av.insert_auth_key 64, fi_ops_av.lookup_auth_key 72, fi_ops_av.set_user_id 80,
    fi_provider.fi_version 4, fi_provider.context 8, fi_provider.name 40, fi_provider.getinfo 48, fi_provider.fabric 56,
    fi_provider.cleanup 64,
}

same_bits! {
    CompFlags::MSG, FI_MSG;
    CompFlags::TAGGED, FI_TAGGED;
    CompFlags::RECV, FI_RECV;
    CompFlags::SEND, FI_SEND;
    CompFlags::MULTI_RECV, FI_MULTI_RECV;
    CompFlags::REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA;
    CompFlags::CLAIM, FI_CLAIM;
    OpFlags::MULTI_RECV, FI_MULTI_RECV;
    OpFlags::REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA;
    OpFlags::MORE, FI_MORE;
    OpFlags::PEEK, FI_PEEK;
    OpFlags::FENCE, FI_FENCE;
    OpFlags::COMPLETION, FI_COMPLETION;
    OpFlags::INJECT, FI_INJECT;
    OpFlags::INJECT_COMPLETE, FI_INJECT_COMPLETE;
    OpFlags::TRANSMIT_COMPLETE, FI_TRANSMIT_COMPLETE;
    OpFlags::DELIVERY_COMPLETE, FI_DELIVERY_COMPLETE;
    OpFlags::DISCARD, FI_DISCARD;
    OpFlags::CLAIM, FI_CLAIM;
    CntrEvents::READ, FI_READ;
    CntrEvents::WRITE, FI_WRITE;
    CntrEvents::RECV, FI_RECV;
    CntrEvents::SEND, FI_SEND;
    CntrEvents::REMOTE_READ, FI_REMOTE_READ;
    CntrEvents::REMOTE_WRITE, FI_REMOTE_WRITE;
}

const _: () = assert!(rustmx::Addr::UNSPEC.0 == FI_ADDR_UNSPEC && rustmx::NAME_LEN <= FI_NAME_MAX);
const _: () = assert!(rustmx::NAME_FORMAT >> 31 == 1, "a private addr_format has the top bit set (fi_getinfo(3))");
