//! `fi_ops_msg`: untagged messages.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures; handles and buffers are passed on as C gave them.

use super::later;
use super::post::{Recv, Send, recv as post_recv, recvv as post_recvv, refused, send as post_send, sendv as post_sendv};
use crate::abi::endpoint::{fi_msg, fi_ops_msg, fid_ep};
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{FI_REMOTE_CQ_DATA, fi_addr_t};
use crate::boundary::{Errno, attr};
use crate::convert;
use libc::{c_void, iovec};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_msg =
    fi_ops_msg { size: size_of::<fi_ops_msg>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };

/// A plain send with default flags.
#[inline]
fn to(to: fi_addr_t, context: *mut c_void) -> Send {
    Send { to, tag: None, data: None, context, flags: None, inject: false }
}

/// A plain receive with default flags.
#[inline]
fn from(from: fi_addr_t, context: *mut c_void) -> Recv {
    Recv { from, tag: None, context, flags: None }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, a buffer that lives until completion.
    unsafe { post_recv(ep, buf, len, from(src, context)) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, buffers that live until completion.
    unsafe { post_recvv(ep, iov, count, from(src, context)) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: fi_msg(3): a message structure that lives during the call.
    let Some(m) = (unsafe { attr(msg) }) else { return refused(Errno(FI_EINVAL)) };
    match convert::flags(flags) {
        // SAFETY: fi_msg(3): a live endpoint, buffers that live until completion.
        Ok(f) => unsafe { post_recvv(ep, m.msg_iov, m.iov_count, Recv { flags: Some(f), ..from(m.addr, m.context) }) },
        // SAFETY: as above.
        Err(_) => unsafe { later::message(ep, m, flags, false) },
    }
}

pub(super) unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, a buffer that lives until completion.
    unsafe { post_send(ep, buf, len, to(dest, context)) }
}

pub(super) unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, buffers that live until completion.
    unsafe { post_sendv(ep, iov, count, to(dest, context)) }
}

pub(super) unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: fi_msg(3): a message structure that lives during the call.
    let Some(m) = (unsafe { attr(msg) }) else { return refused(Errno(FI_EINVAL)) };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
    match convert::flags(flags) {
        // SAFETY: fi_msg(3): a live endpoint, buffers that live until completion.
        Ok(f) => unsafe { post_sendv(ep, m.msg_iov, m.iov_count, Send { flags: Some(f), data, ..to(m.addr, m.context) }) },
        // SAFETY: as above.
        Err(_) => unsafe { later::message(ep, m, flags, true) },
    }
}

pub(super) unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, a buffer that lives during the call.
    unsafe { post_send(ep, buf, len, Send { inject: true, ..to(dest, core::ptr::null_mut()) }) }
}

pub(super) unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, a buffer that lives until completion.
    unsafe { post_send(ep, buf, len, Send { data: Some(data), ..to(dest, context) }) }
}

pub(super) unsafe extern "C" fn injectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest: fi_addr_t) -> isize {
    // SAFETY: fi_msg(3): a live endpoint, a buffer that lives during the call.
    unsafe { post_send(ep, buf, len, Send { data: Some(data), inject: true, ..to(dest, core::ptr::null_mut()) }) }
}
