//! The tables of a shared receive context: the receives of `fi_ops_msg` and `fi_ops_tagged`. The sends are those of endpoints, which
//! refuse a context with `-FI_EINVAL`.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures; handles and buffers are passed on as C gave them.

use super::{msg, tagged};
use crate::abi::endpoint::{fi_msg, fi_ops_msg, fid_ep};
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::fi_addr_t;
use crate::abi::tagged::{fi_msg_tagged, fi_ops_tagged};
use crate::boundary::{Answer, Errno, attr, object, status};
use crate::convert;
use crate::object::shared::Srx;
use libc::{c_void, iovec};
use rustmx::{Addr, OpFlags, RecvArgs, UserCtx};

/// Untagged messages.
pub(crate) static MSG: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv,
    recvv,
    recvmsg,
    send: msg::send,
    sendv: msg::sendv,
    sendmsg: msg::sendmsg,
    inject: msg::inject,
    senddata: msg::senddata,
    injectdata: msg::injectdata,
};

/// Tagged messages.
pub(crate) static TAGGED: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    send: tagged::send,
    sendv: tagged::sendv,
    sendmsg: tagged::sendmsg,
    inject: tagged::inject,
    senddata: tagged::senddata,
    injectdata: tagged::injectdata,
};

/// A receive without its memory.
struct What {
    from: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
    flags: Option<OpFlags>,
}

/// # Safety
/// `ep` is a live context; `iov` holds `count` entries during the call, the memory they name lives until completion.
unsafe fn post(ep: *mut fid_ep, iov: *const iovec, count: usize, what: Answer<What>) -> isize {
    let answer = what.and_then(|What { from, tag, context, flags }| {
        let (tagged, (tag, ignore), ctx) = (tag.is_some(), tag.unwrap_or((0, 0)), UserCtx(context as usize));
        // SAFETY: as the caller promises.
        unsafe {
            let srx = object::<Srx, _>(ep)?;
            convert::with_segments(iov, count, |iov| {
                srx.recv(&RecvArgs { from: Addr(from), tagged, tag, ignore, iov, ctx, flags })
            })
        }
    });
    status(answer) as isize
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let one = iovec { iov_base: buf, iov_len: len };
    // SAFETY: fi_msg(3): a live context, a buffer that lives until completion.
    unsafe { post(ep, &one, 1, Ok(What { from, tag: None, context, flags: None })) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_msg(3): a live context, buffers that live until completion.
    unsafe { post(ep, iov, count, Ok(What { from, tag: None, context, flags: None })) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: fi_msg(3): a live context, a message structure that lives during the call, buffers that live until completion.
    unsafe {
        let Some(m) = attr(msg) else { return status(Err(Errno(FI_EINVAL))) as isize };
        let what = convert::flags(flags).map(|f| What { from: m.addr, tag: None, context: m.context, flags: Some(f) });
        post(ep, m.msg_iov, m.iov_count, what)
    }
}

unsafe extern "C" fn trecv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let one = iovec { iov_base: buf, iov_len: len };
    // SAFETY: fi_tagged(3): a live context, a buffer that lives until completion.
    unsafe { post(ep, &one, 1, Ok(What { from, tag: Some((tag, ignore)), context, flags: None })) }
}

unsafe extern "C" fn trecvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_tagged(3): a live context, buffers that live until completion.
    unsafe { post(ep, iov, count, Ok(What { from, tag: Some((tag, ignore)), context, flags: None })) }
}

unsafe extern "C" fn trecvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: fi_tagged(3): a live context, a message structure that lives during the call, buffers that live until completion.
    unsafe {
        let Some(m) = attr(msg) else { return status(Err(Errno(FI_EINVAL))) as isize };
        let tag = Some((m.tag, m.ignore));
        let what = convert::flags(flags).map(|f| What { from: m.addr, tag, context: m.context, flags: Some(f) });
        post(ep, m.msg_iov, m.iov_count, what)
    }
}
