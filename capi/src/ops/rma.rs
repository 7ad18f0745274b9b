//! `fi_ops_rma`: reads and writes of peers' memory.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures; handles and buffers are passed on as C gave them.

use super::later::{self, Later};
use super::post::refused;
use crate::abi::endpoint::fid_ep;
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::fi_addr_t;
use crate::abi::rma::{fi_msg_rma, fi_ops_rma, fi_rma_iov};
use crate::boundary::{Answer, Errno, attr, object, refuse, status};
use crate::convert;
use crate::object::ep::Ep;
use libc::{c_void, iovec};
use rustmx::{Addr, MAX_PLACES, OpFlags, RemoteSeg, RmaArgs, UserCtx, UserSeg, Work};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_rma =
    fi_ops_rma { size: size_of::<fi_ops_rma>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

/// An operation without its memory.
struct What {
    to: fi_addr_t,
    write: bool,
    data: Option<u64>,
    context: *mut c_void,
    /// `None`: the endpoint's default flags.
    flags: Option<OpFlags>,
    inject: bool,
    /// Not now.
    later: Option<Later>,
}

impl What {
    fn plain(to: fi_addr_t, write: bool, context: *mut c_void) -> What {
        What { to, write, data: None, context, flags: None, inject: false, later: None }
    }
}

fn start(ep: &Ep, iov: &[UserSeg], places: &[RemoteSeg], what: What) -> Answer<()> {
    let What { to, write, data, context, flags, inject, later } = what;
    let args = RmaArgs { to: Addr(to), write, iov, places, data, ctx: UserCtx(context as usize), flags, inject };
    match later {
        None => ep.rma(args),
        Some(later) => ep.defer(later, &Work::Rma(ep.id, args)),
    }
}

/// One buffer and one place.
///
/// # Safety
/// `ep` is a live endpoint; `buf` holds `len` bytes until completion (fi_rma(3)).
unsafe fn simple(ep: *mut fid_ep, buf: *const c_void, len: usize, (addr, key): (u64, u64), what: What) -> isize {
    // SAFETY: as the caller promises.
    let (ep, segment) = unsafe { (object::<Ep, _>(ep), convert::segment(buf, len)) };
    status(ep.and_then(|ep| start(ep, &[segment], &[RemoteSeg { addr, len, key }], what))) as isize
}

/// A scatter list and one place.
///
/// # Safety
/// `ep` is a live endpoint; `iov` holds `count` entries during the call, what they name lives until completion.
unsafe fn listed(ep: *mut fid_ep, (iov, count): (*const iovec, usize), (addr, key): (u64, u64), what: What) -> isize {
    // SAFETY: as the caller promises.
    let answer = unsafe {
        object::<Ep, _>(ep).and_then(|ep| {
            convert::with_segments(iov, count, |s| {
                let len = s.iter().map(UserSeg::len).sum();
                start(ep, s, &[RemoteSeg { addr, len, key }], what)
            })
        })
    };
    status(answer) as isize
}

/// Runs `post` with the places of an array.
///
/// # Safety
/// `iov` holds `count` entries during the call.
unsafe fn with_places<R>(iov: *const fi_rma_iov, count: usize, post: impl FnOnce(&[RemoteSeg]) -> Answer<R>) -> Answer<R> {
    if count > MAX_PLACES || (count > 0 && iov.is_null()) {
        return refuse(FI_EINVAL);
    }
    let mut places = [RemoteSeg { addr: 0, len: 0, key: 0 }; MAX_PLACES];
    for (i, place) in places.iter_mut().enumerate().take(count) {
        // SAFETY: `count` entries (caller).
        let one = unsafe { &*iov.add(i) };
        *place = RemoteSeg { addr: one.addr, len: one.len, key: one.key };
    }
    post(&places[..count])
}

/// An operation from a message structure whose flags are known to be offered; they may defer it (`FI_TRIGGER`).
///
/// # Safety
/// The message's arrays live during the call, its buffers until completion.
pub(super) unsafe fn prepared(ep: &Ep, m: &fi_msg_rma, flags: OpFlags, write: bool, later: Option<Later>) -> Answer<()> {
    let data = flags.contains(OpFlags::REMOTE_CQ_DATA).then_some(m.data);
    let what = What { data, flags: Some(flags), later, ..What::plain(m.addr, write, m.context) };
    // SAFETY: as the caller promises.
    unsafe {
        with_places(m.rma_iov, m.rma_iov_count, |places| {
            convert::with_segments(m.msg_iov, m.iov_count, |s| start(ep, s, places, what))
        })
    }
}

/// An operation from a message structure.
///
/// # Safety
/// `ep` is a live endpoint; `msg` is null or lives during the call with its arrays; buffers live until completion.
unsafe fn message(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64, write: bool) -> isize {
    // SAFETY: as the caller promises.
    let answer = unsafe {
        object::<Ep, _>(ep).and_then(|ep| {
            let m = attr(msg).ok_or(Errno(FI_EINVAL))?;
            let (flags, later) = later::flags_of(ep, flags, m.context)?;
            prepared(ep, m, flags, write, later)
        })
    };
    match answer {
        Ok(()) => 0,
        Err(e) => refused(e),
    }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_rma(3): a live endpoint, a buffer that lives until completion.
    unsafe { simple(ep, buf, len, (addr, key), What::plain(src, false, context)) }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_rma(3): a live endpoint, buffers that live until completion.
    unsafe { listed(ep, (iov, count), (addr, key), What::plain(src, false, context)) }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: fi_rma(3): a live endpoint, a message that lives during the call, buffers that live until completion.
    unsafe { message(ep, msg, flags, false) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_rma(3): a live endpoint, a buffer that lives until completion.
    unsafe { simple(ep, buf, len, (addr, key), What::plain(dest, true, context)) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_rma(3): a live endpoint, buffers that live until completion.
    unsafe { listed(ep, (iov, count), (addr, key), What::plain(dest, true, context)) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: fi_rma(3): a live endpoint, a message that lives during the call, buffers that live until completion.
    unsafe { message(ep, msg, flags, true) }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t, addr: u64, key: u64) -> isize {
    let what = What { inject: true, ..What::plain(dest, true, core::ptr::null_mut()) };
    // SAFETY: fi_rma(3): a live endpoint, a buffer that is read during the call.
    unsafe { simple(ep, buf, len, (addr, key), what) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let what = What { data: Some(data), ..What::plain(dest, true, context) };
    // SAFETY: fi_rma(3): a live endpoint, a buffer that lives until completion.
    unsafe { simple(ep, buf, len, (addr, key), what) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let what = What { data: Some(data), inject: true, ..What::plain(dest, true, core::ptr::null_mut()) };
    // SAFETY: fi_rma(3): a live endpoint, a buffer that is read during the call.
    unsafe { simple(ep, buf, len, (addr, key), what) }
}
