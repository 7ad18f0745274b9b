//! The hints against the offer. One function per block, each `-FI_ENODATA` with a sentence in the log.
#![expect(unsafe_code)]
// UNSAFETY: follows the pointers in the client's hints.

use super::*;
use crate::log;
use rustmx::{INJECT_MAX, IOV_LIMIT, LogSubsystem, MAX_MSG, MAX_PLACES};

/// The hints, block by block.
pub(super) struct Asked<'a> {
    pub(super) info: Option<&'a fi_info>,
    pub(super) fabric: Option<&'a fi_fabric_attr>,
    pub(super) domain: Option<fi_domain_attr>,
    pub(super) ep: Option<&'a fi_ep_attr>,
    pub(super) rx: Option<&'a fi_rx_attr>,
    pub(super) tx: Option<&'a fi_tx_attr>,
}

/// Refuses with a sentence unless `fine`.
fn want(fine: bool, what: &str) -> Answer<()> {
    if fine {
        return Ok(());
    }
    log::info(LogSubsystem::Core, || format!("fi_getinfo: not offered: {what}"));
    refuse(FI_ENODATA)
}

/// Bytes of a `fi_domain_attr` that a client of this API version has for certain. libfabric itself refuses versions above its
/// own, so an old libfabric never claims more than it has (contract 2.3).
fn domain_attr_len(version: u32) -> usize {
    use core::mem::offset_of;
    match version {
        v if v >= super::version(2, 5) => size_of::<fi_domain_attr>(),
        v if v >= super::version(2, 0) => offset_of!(fi_domain_attr, max_cntr_value),
        v if v >= super::version(1, 20) => offset_of!(fi_domain_attr, max_group_id),
        _ => offset_of!(fi_domain_attr, max_ep_auth_key),
    }
}

impl<'a> Asked<'a> {
    /// # Safety
    /// The blocks that the hints point to live during `'a`, as long as a client of this API version makes them.
    pub(super) unsafe fn new(info: Option<&'a fi_info>, version: u32) -> Asked<'a> {
        let Some(i) = info else {
            return Asked { info, fabric: None, domain: None, ep: None, rx: None, tx: None };
        };
        // SAFETY: as the caller promises.
        unsafe {
            Asked {
                info,
                fabric: attr(i.fabric_attr),
                domain: boundary::attr_prefix(i.domain_attr, domain_attr_len(version)),
                ep: attr(i.ep_attr),
                rx: attr(i.rx_attr),
                tx: attr(i.tx_attr),
            }
        }
    }

    /// Capabilities asked for; 0: any.
    pub(super) fn caps(&self) -> u64 {
        self.info.map_or(0, |i| i.caps)
    }

    /// # Safety
    /// Strings in the hints are C strings.
    pub(super) unsafe fn check(&self, version: u32) -> Answer<()> {
        let kind = self.ep.map_or(FI_EP_UNSPEC, |e| e.r#type);
        want(matches!(kind, FI_EP_UNSPEC | FI_EP_RDM), "an endpoint type other than FI_EP_RDM")?;
        want(self.caps() & !CAPS == 0, "a capability")?;
        // No mode bit is required of the client, so none can be missing.
        let format = self.info.map_or(FI_FORMAT_UNSPEC, |i| i.addr_format);
        want(matches!(format, FI_FORMAT_UNSPEC | NAME_FORMAT), "an address format other than rustmx's own")?;
        // SAFETY: as the caller promises.
        unsafe {
            self.fabric.map_or(Ok(()), |f| fabric(f))?;
            self.domain.as_ref().map_or(Ok(()), |d| domain(d, version))?;
        }
        self.ep.map_or(Ok(()), ep)?;
        self.rx.map_or(Ok(()), rx)?;
        self.tx.map_or(Ok(()), tx)
    }
}

/// # Safety
/// The strings are C strings.
unsafe fn fabric(a: &fi_fabric_attr) -> Answer<()> {
    // SAFETY: as the caller promises.
    let (name, prov) = unsafe { (boundary::text(a.name), boundary::text(a.prov_name)) };
    want(name.is_none_or(|n| n == NAME), "a fabric name other than rustmx")?;
    want(prov.is_none_or(|n| n.eq_ignore_ascii_case(NAME)), "a provider name other than rustmx")?;
    want(a.prov_version <= crate::entry::VERSION, "a later provider version")
    // An opened fabric in `fabric` was found through the name: Open MPI 5 passes its own back (contract 3.1).
}

/// # Safety
/// The name is a C string.
unsafe fn domain(a: &fi_domain_attr, version: u32) -> Answer<()> {
    // SAFETY: as the caller promises.
    let name = unsafe { boundary::text(a.name) };
    want(name.is_none_or(|n| n == NAME), "a domain name other than rustmx")?;
    want(a.threading <= FI_THREAD_ENDPOINT, "a threading model")?;
    want(a.data_progress <= FI_PROGRESS_MANUAL, "a data progress model")?;
    want(a.control_progress <= FI_PROGRESS_CONTROL_UNIFIED, "a control progress model")?;
    want(a.resource_mgmt <= FI_RM_ENABLED, "a resource management model")?;
    want(a.av_type <= FI_AV_TABLE, "an address vector type")?;
    want(a.cq_data_size <= 8, "remote CQ data of more than 8 bytes")?;
    want(mr_mode_fits(a.mr_mode, version), "this combination of memory registration modes")?;
    want(a.mr_key_size <= 8, "memory keys of more than 8 bytes")?;
    want(a.max_ep_stx_ctx <= MANY && a.max_ep_srx_ctx <= MANY, "so many shared contexts")?;
    want(a.max_ep_tx_ctx <= 1 && a.max_ep_rx_ctx <= 1, "scalable endpoints")?;
    want(a.cntr_cnt <= MANY && a.cq_cnt <= MANY && a.ep_cnt <= MANY, "so many objects")?;
    want(a.tx_ctx_cnt <= MANY && a.rx_ctx_cnt <= MANY, "so many contexts")?;
    want(a.mr_iov_limit <= MR_IOV_LIMIT, "memory regions of several pieces")?;
    want(a.mr_cnt <= MANY, "so many memory regions")?;
    want(a.caps & !DOMAIN_CAPS == 0, "a domain capability")?;
    want(a.max_err_data <= NAME_LEN, "error data that long")?;
    want(a.max_ep_auth_key == 0, "authorization keys by address vector")?;
    want(key_fits(a.auth_key, a.auth_key_size), "an authorization key of the domain that is that long, or not there")
    // max_cntr_value, max_err_cntr_value: counters have 64 bits, nothing can be too large. max_group_id: no groups.
}

/// The two old words stand alone; everything else is a list of what the client could cope with, and we need nothing of
/// it (contract 2.3).
fn mr_mode_fits(mode: c_int, version: u32) -> bool {
    if version < super::version(1, 5) {
        matches!(mode, FI_MR_UNSPEC | FI_MR_BASIC | FI_MR_SCALABLE)
    } else if mode & (FI_MR_BASIC | FI_MR_SCALABLE) != 0 {
        matches!(mode, FI_MR_BASIC | FI_MR_SCALABLE)
    } else {
        true
    }
}

/// Whether an authorization key can be used. (`FI_AV_AUTH_KEY`, that each address has its own, is a size that no key has.)
fn key_fits(key: *const u8, size: usize) -> bool {
    size == 0 || size <= KEY_MAX && !key.is_null()
}

fn ep(a: &fi_ep_attr) -> Answer<()> {
    want(matches!(a.protocol, FI_PROTO_UNSPEC | PROTOCOL), "an endpoint protocol")?;
    want(a.protocol_version <= PROTOCOL_VERSION, "a later version of the endpoint protocol")?;
    want(a.max_msg_size <= MAX_MSG, "messages that long")?;
    let one = |n| n <= 1 || n == FI_SHARED_CONTEXT;
    want(one(a.tx_ctx_cnt) && one(a.rx_ctx_cnt), "scalable endpoints")?;
    want(key_fits(a.auth_key, a.auth_key_size), "an authorization key that is that long, or not there")
    // mem_tag_format: any, since all 64 bits are there. max_order_*: ours are the largest there are. msg_prefix_size: 0 is
    // returned, as FI_MSG_PREFIX is not used.
}

fn rx(a: &fi_rx_attr) -> Answer<()> {
    // Capabilities of the other side are ignored, as old clients fill in all.
    want(a.caps & !(RX_CAPS | CAPS) == 0, "a receive capability")?;
    want(a.op_flags & !RX_OP_FLAGS == 0, "a default receive flag")?;
    want(a.msg_order & !MSG_ORDER_ASKED == 0, "a receive order")?;
    want(a.comp_order == 0, "an order of receive completions")?;
    want(a.total_buffered_recv == 0, "a guaranteed amount of buffering")?;
    want(a.size <= MAX_SIZE, "so many receives")?;
    want(a.iov_limit <= IOV_LIMIT, "so many segments in a receive")
}

fn tx(a: &fi_tx_attr) -> Answer<()> {
    want(a.caps & !(TX_CAPS | CAPS) == 0, "a transmit capability")?;
    want(a.op_flags & !TX_OP_FLAGS == 0, "a default transmit flag")?;
    want(a.msg_order & !MSG_ORDER_ASKED == 0, "a transmit order")?;
    want(a.comp_order == 0, "an order of transmit completions")?;
    want(a.inject_size <= INJECT_MAX, "injected messages that long")?;
    want(a.size <= MAX_SIZE, "so many sends")?;
    want(a.iov_limit <= IOV_LIMIT, "so many segments in a send")?;
    want(a.rma_iov_limit <= MAX_PLACES, "so many pieces of remote memory")
}
