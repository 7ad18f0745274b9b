//! `fi_getinfo`: what we offer against what was asked; at most one answer (contract 3.2).
//!
//! The constants here are the offer. The hints are checked against it in the order of the stock checks (contract 9), then echoed
//! where a client expects its own values back. Blocks are made with libc's `calloc`, since libfabric frees them with `free`, and
//! larger than any known version of their structure, since `fi_dupinfo` copies as much as *its* structure holds (contract 2.4).
#![expect(unsafe_code)]
// UNSAFETY: reads the client's hints and builds structures in C memory.

mod build;
mod check;

use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{self, Answer, attr, refuse, status};
use crate::resolve;
use libc::{c_char, c_int, c_void};
use rustmx::config::network::Secret;
use rustmx::{NAME_FORMAT, NAME_LEN, Name, Service};
use std::net::Ipv6Addr;

/// Name of provider, fabric and domain: one of each.
pub(crate) const NAME: &str = "rustmx";

/// What an endpoint can do.
const CAPS: u64 = PRIMARY_CAPS | DIRECTIONS | SECONDARY_CAPS | FI_SOURCE;
/// Returned only when asked for, if anything is asked for.
const PRIMARY_CAPS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_TRIGGER;
/// Which way messages and memory go; all of them unless some are asked for.
const DIRECTIONS: u64 = MESSAGE_DIRECTIONS | MEMORY_DIRECTIONS;
const MESSAGE_DIRECTIONS: u64 = FI_SEND | FI_RECV;
const MEMORY_DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Always returned: they cost nothing unless used.
const SECONDARY_CAPS: u64 = FI_MULTI_RECV | FI_RMA_EVENT | FI_FENCE | DOMAIN_CAPS;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
/// The parts of `CAPS` that concern one side.
const TX_CAPS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_FENCE | FI_TRIGGER;
const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_RMA_EVENT
    | FI_TRIGGER
    | FI_SOURCE;

/// Default operation flags that may be asked for.
pub(crate) const TX_OP_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MORE;
/// As [`TX_OP_FLAGS`], for receives.
pub(crate) const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV | FI_MORE;

/// Messages of one sender arrive in the order sent. Operations on memory take effect in the order of their calls among
/// themselves: each is done before its call returns, or stands in one queue with the atomics. Between messages and memory
/// there is no order (a direct write overtakes a message in the ring): a client that needs one uses `FI_FENCE`.
const MSG_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;
/// Orders that may be asked for. `FI_ORDER_DATA` went in 2.0, but old clients ask for it: bytes within a message arrive in order.
const MSG_ORDER_ASKED: u64 = MSG_ORDER | FI_ORDER_DATA;

/// `ep_attr.protocol`: private (top bit), version 1.
const PROTOCOL: u32 = NAME_FORMAT;
const PROTOCOL_VERSION: u32 = 1;
/// All 64 bits of a tag are the client's, in any grouping.
const TAG_FORMAT: u64 = u64::MAX;

/// Sizes we give when none are asked for, and the largest that may be asked for. Queues grow: the limits are plausibility.
pub(crate) const DEFAULT_SIZE: usize = 1024;
const MAX_SIZE: usize = 1 << 20;
/// Objects in a domain: limited by memory only.
const MANY: usize = 1 << 16;
/// Pieces of a memory region.
const MR_IOV_LIMIT: usize = 1;

/// Bytes of an authorization key: a job's key, of endpoints or of a domain (fi_endpoint(3), fi_domain(3)).
const KEY_MAX: usize = 512;

/// An authorization key; empty: none was given, or one that is too long.
///
/// # Safety
/// `key` is null or points to `size` bytes.
pub(crate) unsafe fn key_of(key: *const u8, size: usize) -> Secret {
    if key.is_null() || !(1..=KEY_MAX).contains(&size) {
        return Secret::default();
    }
    // SAFETY: as the caller promises.
    Secret::new(unsafe { core::slice::from_raw_parts(key, size) })
}

/// Whether an endpoint of these capabilities sends, whether it reaches for memory of peers, and whether it receives (fi_getinfo(3)).
/// Without any: all of these.
pub(crate) fn directions(caps: u64) -> [bool; 3] {
    let messages = caps & (FI_MSG | FI_TAGGED) != 0;
    let memory = caps & (FI_RMA | FI_ATOMIC) != 0;
    // Where none is named all are meant.
    let goes = |all: u64, these: u64| caps & all == 0 || caps & these != 0;
    let sends = messages && goes(MESSAGE_DIRECTIONS, FI_SEND);
    let reaches = memory && goes(MEMORY_DIRECTIONS, FI_READ | FI_WRITE);
    let receives = messages && goes(MESSAGE_DIRECTIONS, FI_RECV);
    if messages || memory { [sends, reaches, receives] } else { [true; 3] }
}

/// What a call of `fi_getinfo` asks for, besides the hints.
struct Query<'a> {
    version: u32,
    node: Option<&'a str>,
    service: Option<&'a str>,
    flags: u64,
}

/// Names to put in the answer, as bytes: (source, destination).
type Addresses = ([u8; NAME_LEN], Option<[u8; NAME_LEN]>);

/// `fi_provider.getinfo`.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    // ofi_rxm, ofi_rxd and ofi_mrail look for something to sit on, several times per process (contract 1.5).
    if flags & OFI_CORE_PROV_ONLY != 0 {
        return -FI_ENODATA;
    }
    if out.is_null() {
        return -FI_EINVAL;
    }
    // SAFETY: fi_getinfo(3): strings, hints with the blocks they point to, and a place for the answer.
    unsafe {
        let query = Query { version, node: boundary::text(node), service: boundary::text(service), flags };
        status(answer(&query, attr(hints)).map(|info| out.write(info)))
    }
}

/// # Safety
/// The hints point to live blocks, as long as a client of `query.version` makes them.
unsafe fn answer(query: &Query<'_>, hints: Option<&fi_info>) -> Answer<*mut fi_info> {
    // SAFETY: as the caller promises.
    unsafe {
        let asked = check::Asked::new(hints, query.version);
        asked.check(query.version)?;
        let addresses = addresses(query, hints)?;
        build::info(&asked, query.version, &addresses)
    }
}

/// Source and destination. What the caller names wins over what the hints carry.
///
/// # Safety
/// As for [`answer`].
unsafe fn addresses(query: &Query<'_>, hints: Option<&fi_info>) -> Answer<Addresses> {
    // SAFETY: addresses in hints are as long as they say (caller).
    let (mut src, mut dest) = unsafe {
        match hints {
            Some(h) => (name_at(h.src_addr, h.src_addrlen)?, name_at(h.dest_addr, h.dest_addrlen)?),
            None => (None, None),
        }
    };
    let numeric = query.flags & FI_NUMERICHOST != 0;
    let source = query.flags & FI_SOURCE != 0;
    if source {
        src = None; // "ignored in hints if FI_SOURCE flag is set" (fi_getinfo(3))
    }
    let unknown = |name: Option<Name>| name.map(Some).map_or_else(|| refuse(FI_ENODATA), Ok);
    match (query.node, query.service) {
        (None, None) if source => return refuse(FI_EINVAL),
        (None, None) => {}
        (node, Some(service)) if source => src = unknown(resolve::service(node, service, numeric))?,
        (Some(node), None) if source && resolve::is_name(node) => src = unknown(resolve::contact(node, None, numeric))?,
        (Some(node), service) if service.is_some() || resolve::is_name(node) => {
            dest = unknown(resolve::contact(node, service, numeric))?
        }
        // A host without a service, ours or another: names no endpoint, so there is nothing to carry; it must exist, though.
        (Some(node), _) => resolve::address(node, numeric).map_or_else(|| refuse(FI_ENODATA), |_| Ok(()))?,
        // Only a service, and not as a source: on this host.
        (None, Some(service)) => dest = unknown(resolve::contact("127.0.0.1", Some(service), true))?,
    }
    Ok((src.map_or_else(no_service, |n| n.to_bytes()), dest.map(|n| n.to_bytes())))
}

/// The source address of an endpoint that listens at no service: its name is made when it is enabled.
fn no_service() -> [u8; NAME_LEN] {
    Name::contact(Ipv6Addr::UNSPECIFIED.into(), 0, 0).to_bytes()
}

/// A name that an info carries; `None` if it carries none, or the one that stands for none.
///
/// # Safety
/// `addr` is null or holds `len` bytes.
unsafe fn name_at(addr: *const c_void, len: usize) -> Answer<Option<Name>> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), len) };
    if bytes == no_service() {
        return Ok(None);
    }
    Name::from_bytes(bytes).map(Some).or_else(|_| refuse(FI_ENODATA))
}

/// The service that an endpoint opened with `info` shall listen at.
///
/// # Safety
/// `info.src_addr` is null or holds `info.src_addrlen` bytes.
pub(crate) unsafe fn service_of(info: &fi_info) -> Answer<Option<Service>> {
    // SAFETY: as the caller promises.
    let name = unsafe { name_at(info.src_addr, info.src_addrlen) }.or_else(|_| refuse(FI_EINVAL))?;
    Ok(name.and_then(|n| n.service()))
}
