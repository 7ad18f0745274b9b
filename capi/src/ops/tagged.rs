//! `fi_ops_tagged`: tagged messages. Peek, claim and discard arrive as flags of `recvmsg`.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures; handles and buffers are passed on as C gave them.

use super::later;
use super::post::{Recv, Send, recv as post_recv, recvv as post_recvv, refused, send as post_send, sendv as post_sendv};
use crate::abi::endpoint::fid_ep;
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{FI_REMOTE_CQ_DATA, fi_addr_t};
use crate::abi::tagged::{fi_msg_tagged, fi_ops_tagged};
use crate::boundary::{Errno, attr};
use crate::convert;
use libc::{c_void, iovec};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_tagged =
    fi_ops_tagged { size: size_of::<fi_ops_tagged>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };

/// A tagged send with default flags.
#[inline]
fn to(to: fi_addr_t, tag: u64, context: *mut c_void) -> Send {
    Send { to, tag: Some(tag), data: None, context, flags: None, inject: false }
}

/// A tagged receive with default flags.
#[inline]
fn from(from: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> Recv {
    Recv { from, tag: Some((tag, ignore)), context, flags: None }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, a buffer that lives until completion.
    unsafe { post_recv(ep, buf, len, from(src, tag, ignore, context)) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, buffers that live until completion.
    unsafe { post_recvv(ep, iov, count, from(src, tag, ignore, context)) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: fi_tagged(3): a message structure that lives during the call.
    let Some(m) = (unsafe { attr(msg) }) else { return refused(Errno(FI_EINVAL)) };
    let plain = from(m.addr, m.tag, m.ignore, m.context);
    match convert::flags(flags) {
        // SAFETY: fi_tagged(3): a live endpoint, buffers that live until completion.
        Ok(f) => unsafe { post_recvv(ep, m.msg_iov, m.iov_count, Recv { flags: Some(f), ..plain }) },
        // SAFETY: as above.
        Err(_) => unsafe { later::tagged(ep, m, flags, false) },
    }
}

pub(super) unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, a buffer that lives until completion.
    unsafe { post_send(ep, buf, len, to(dest, tag, context)) }
}

pub(super) unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, buffers that live until completion.
    unsafe { post_sendv(ep, iov, count, to(dest, tag, context)) }
}

pub(super) unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: fi_tagged(3): a message structure that lives during the call.
    let Some(m) = (unsafe { attr(msg) }) else { return refused(Errno(FI_EINVAL)) };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
    match convert::flags(flags) {
        // SAFETY: fi_tagged(3): a live endpoint, buffers that live until completion.
        Ok(f) => unsafe { post_sendv(ep, m.msg_iov, m.iov_count, Send { flags: Some(f), data, ..to(m.addr, m.tag, m.context) }) },
        // SAFETY: as above.
        Err(_) => unsafe { later::tagged(ep, m, flags, true) },
    }
}

pub(super) unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t, tag: u64) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, a buffer that lives during the call.
    unsafe { post_send(ep, buf, len, Send { inject: true, ..to(dest, tag, core::ptr::null_mut()) }) }
}

pub(super) unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, a buffer that lives until completion.
    unsafe { post_send(ep, buf, len, Send { data: Some(data), ..to(dest, tag, context) }) }
}

pub(super) unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: fi_tagged(3): a live endpoint, a buffer that lives during the call.
    unsafe { post_send(ep, buf, len, Send { data: Some(data), inject: true, ..to(dest, tag, core::ptr::null_mut()) }) }
}
