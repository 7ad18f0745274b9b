//! The answer: the offer with the client's values echoed, in memory that libfabric can free.
#![expect(unsafe_code)]
// UNSAFETY: allocates with calloc and fills C structures.

use super::check::Asked;
use super::*;
use core::mem::ManuallyDrop;
use rustmx::config::network::Secret;
use rustmx::{IOV_LIMIT, MAX_MSG, MAX_PLACES, inject_max};

/// Bytes of each block: more than any version of any structure has. What lies beyond our mirror stays 0.
const BLOCK: usize = 512;
const _: () = assert!(size_of::<fi_info>() <= BLOCK && size_of::<fi_domain_attr>() <= BLOCK && KEY_MAX <= BLOCK);

/// A block from calloc that is freed unless it reaches the client.
struct Block<T>(*mut T);

impl<T> Block<T> {
    fn new(value: T) -> Answer<Block<T>> {
        // SAFETY: calloc gives null or BLOCK zeroed bytes aligned for anything.
        let p = unsafe { libc::calloc(1, BLOCK) }.cast::<T>();
        if p.is_null() {
            return refuse(FI_ENOMEM);
        }
        // SAFETY: BLOCK bytes hold a T (const assertion for the largest).
        unsafe { p.write(value) };
        Ok(Block(p))
    }

    fn give(self) -> *mut T {
        ManuallyDrop::new(self).0
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        // SAFETY: from calloc, and not given away.
        unsafe { libc::free(self.0.cast()) };
    }
}

/// A value the client may choose: its own if it has one, else ours.
fn or<T: Copy + PartialEq + Default>(asked: Option<T>, ours: T) -> T {
    asked.filter(|v| *v != T::default()).unwrap_or(ours)
}

/// The capabilities of the answer (contract 9, "caps rule").
pub(super) fn caps(asked: u64) -> u64 {
    if asked == 0 {
        // FI_SOURCE costs a look-up per message: only for those who ask.
        return CAPS & !FI_SOURCE;
    }
    let mut caps = asked & (PRIMARY_CAPS | FI_SOURCE | DIRECTIONS) | SECONDARY_CAPS;
    for (users, directions) in [(FI_MSG | FI_TAGGED, MESSAGE_DIRECTIONS), (FI_RMA | FI_ATOMIC, MEMORY_DIRECTIONS)] {
        if caps & users != 0 && caps & directions == 0 {
            caps |= directions;
        }
    }
    caps
}

/// Builds the one info.
pub(super) fn info(asked: &Asked<'_>, version: u32, addresses: &Addresses) -> Answer<*mut fi_info> {
    let caps = caps(asked.caps());
    let name = || Block::new(*b"rustmx\0");
    let (domain_name, fabric_name) = (name()?, name()?);
    let (tx, rx) = (Block::new(tx(asked, caps))?, Block::new(rx(asked, caps))?);
    let (ep, domain) = (Block::new(ep(asked))?, Block::new(domain(asked, version))?);
    let fabric = Block::new(fi_fabric_attr {
        fabric: core::ptr::null_mut(),
        name: fabric_name.0.cast(),
        // libfabric fills this in, and the version (contract 1.3).
        prov_name: core::ptr::null_mut(),
        prov_version: crate::entry::VERSION,
        api_version: version,
    })?;
    let src = Block::new(addresses.0)?;
    let dest = addresses.1.map(Block::new).transpose()?;
    // SAFETY: the hints are checked, and live during the call.
    let (ep_key, domain_key) = unsafe {
        let of_ep = asked.ep.map(|e| key_of(e.auth_key, e.auth_key_size));
        let of_domain = asked.domain.as_ref().map(|d| key_of(d.auth_key, d.auth_key_size));
        (key(of_ep)?, key(of_domain)?)
    };
    // From here on nothing fails: the blocks change hands.
    let info = Block::new(fi_info {
        next: core::ptr::null_mut(),
        caps,
        mode: 0,
        addr_format: NAME_FORMAT,
        src_addrlen: NAME_LEN,
        dest_addrlen: if dest.is_some() { NAME_LEN } else { 0 },
        src_addr: src.0.cast(),
        dest_addr: dest.as_ref().map_or(core::ptr::null_mut(), |d| d.0.cast()),
        handle: core::ptr::null_mut(),
        tx_attr: tx.0,
        rx_attr: rx.0,
        ep_attr: ep.0,
        domain_attr: domain.0,
        fabric_attr: fabric.0,
        nic: core::ptr::null_mut(),
    })?;
    // SAFETY: a domain block that is still ours.
    unsafe { (*domain.0).name = domain_name.give().cast() };
    if let Some((key, size)) = ep_key {
        // SAFETY: an endpoint block that is still ours; libfabric frees the key with it.
        unsafe { ((*ep.0).auth_key, (*ep.0).auth_key_size) = (key.give().cast(), size) };
    }
    if let Some((key, size)) = domain_key {
        // SAFETY: the same for a domain.
        unsafe { ((*domain.0).auth_key, (*domain.0).auth_key_size) = (key.give().cast(), size) };
    }
    fabric_name.give();
    tx.give();
    rx.give();
    ep.give();
    domain.give();
    fabric.give();
    src.give();
    dest.map(Block::give);
    Ok(info.give())
}

/// A copy of an authorization key, and its size.
fn key(asked: Option<Secret>) -> Answer<Option<(Block<[u8; KEY_MAX]>, usize)>> {
    let Some(secret) = asked.filter(|s| !s.is_empty()) else { return Ok(None) };
    let (bytes, mut copy) = (secret.reveal(), [0; KEY_MAX]);
    copy[..bytes.len()].copy_from_slice(bytes);
    Ok(Some((Block::new(copy)?, bytes.len())))
}

fn tx(asked: &Asked<'_>, caps: u64) -> fi_tx_attr {
    let a = asked.tx;
    fi_tx_attr {
        caps: caps & TX_CAPS,
        mode: 0,
        op_flags: a.map_or(0, |a| a.op_flags),
        msg_order: or(a.map(|a| a.msg_order), MSG_ORDER),
        comp_order: 0,
        // Who asks for more gets it.
        inject_size: inject_max(&crate::entry::start().config).max(a.map_or(0, |a| a.inject_size)),
        size: or(a.map(|a| a.size), DEFAULT_SIZE),
        iov_limit: IOV_LIMIT,
        rma_iov_limit: MAX_PLACES,
        tclass: a.map_or(0, |a| a.tclass),
    }
}

fn rx(asked: &Asked<'_>, caps: u64) -> fi_rx_attr {
    let a = asked.rx;
    fi_rx_attr {
        caps: caps & RX_CAPS,
        mode: 0,
        op_flags: a.map_or(0, |a| a.op_flags),
        msg_order: or(a.map(|a| a.msg_order), MSG_ORDER),
        comp_order: 0,
        total_buffered_recv: 0,
        size: or(a.map(|a| a.size), DEFAULT_SIZE),
        iov_limit: IOV_LIMIT,
    }
}

fn ep(asked: &Asked<'_>) -> fi_ep_attr {
    let a = asked.ep;
    fi_ep_attr {
        r#type: FI_EP_RDM,
        protocol: PROTOCOL,
        protocol_version: PROTOCOL_VERSION,
        max_msg_size: MAX_MSG,
        msg_prefix_size: 0,
        max_order_raw_size: or(a.map(|a| a.max_order_raw_size), usize::MAX),
        max_order_war_size: or(a.map(|a| a.max_order_war_size), usize::MAX),
        max_order_waw_size: or(a.map(|a| a.max_order_waw_size), usize::MAX),
        mem_tag_format: TAG_FORMAT,
        // Who asks for shared contexts is told to use them; else there is one of each.
        tx_ctx_cnt: a.map(|a| a.tx_ctx_cnt).filter(|n| *n == FI_SHARED_CONTEXT).unwrap_or(1),
        rx_ctx_cnt: a.map(|a| a.rx_ctx_cnt).filter(|n| *n == FI_SHARED_CONTEXT).unwrap_or(1),
        auth_key_size: 0,
        auth_key: core::ptr::null_mut(),
    }
}

fn domain(asked: &Asked<'_>, version: u32) -> fi_domain_attr {
    let a = asked.domain.as_ref();
    let asked_mr_mode = a.map_or(FI_MR_UNSPEC, |a| a.mr_mode);
    let old_api = version < super::version(1, 5);
    fi_domain_attr {
        domain: core::ptr::null_mut(),
        name: core::ptr::null_mut(),
        threading: or(a.map(|a| a.threading), FI_THREAD_SAFE),
        control_progress: or(a.map(|a| a.control_progress), FI_PROGRESS_MANUAL),
        data_progress: or(a.map(|a| a.data_progress), FI_PROGRESS_MANUAL),
        resource_mgmt: or(a.map(|a| a.resource_mgmt), FI_RM_ENABLED),
        // Both types are there (fi_domain(3)): naming one would make clients that test for it take indices for handles.
        av_type: or(a.map(|a| a.av_type), FI_AV_UNSPEC),
        // Nothing is required of registrations; clients of before 1.5 want it said in the old way, and who asks for
        // `FI_MR_BASIC` alone gets keys and addresses as it knows them.
        mr_mode: match asked_mr_mode {
            FI_MR_BASIC => FI_MR_BASIC,
            FI_MR_SCALABLE => FI_MR_SCALABLE,
            _ if old_api => FI_MR_SCALABLE,
            _ => 0,
        },
        mr_key_size: 8,
        cq_data_size: 8,
        cq_cnt: MANY,
        ep_cnt: MANY,
        tx_ctx_cnt: MANY,
        rx_ctx_cnt: MANY,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: MANY,
        max_ep_srx_ctx: MANY,
        cntr_cnt: MANY,
        mr_iov_limit: MR_IOV_LIMIT,
        caps: DOMAIN_CAPS,
        mode: 0,
        auth_key: core::ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: NAME_LEN,
        mr_cnt: MANY,
        tclass: a.map_or(0, |a| a.tclass),
        max_ep_auth_key: 0,
        max_group_id: 0,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
    }
}
