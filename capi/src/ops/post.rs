//! What the slots of `msg` and `tagged` share: from the unpacked arguments of a call to the engine and back to a C status.
#![expect(unsafe_code)]
// UNSAFETY: casts endpoint handles (through boundary.rs) and passes on the client's buffers.

use crate::abi::endpoint::fid_ep;
use crate::boundary::{Answer, Errno, object};
use crate::convert;
use crate::object::ep::Ep;
use libc::{c_void, iovec};
use rustmx::{Addr, OpFlags, RecvArgs, SendArgs, UserCtx};

/// A send without its buffers.
pub(super) struct Send {
    pub(super) to: u64,
    /// `None`: an untagged message.
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    /// `None`: the endpoint's default flags.
    pub(super) flags: Option<OpFlags>,
    pub(super) inject: bool,
}

/// A receive without its buffers.
pub(super) struct Recv {
    pub(super) from: u64,
    /// Tag and ignored bits; `None`: an untagged message.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) context: *mut c_void,
    /// `None`: the endpoint's default flags.
    pub(super) flags: Option<OpFlags>,
}

#[inline]
fn result(answer: Answer<()>) -> isize {
    match answer {
        Ok(()) => 0,
        Err(Errno(e)) => -(e as isize),
    }
}

/// Sends one buffer.
///
/// # Safety
/// `ep` is a live endpoint; `buf` holds `len` bytes until the operation completes (fi_msg(3)).
#[inline]
pub(super) unsafe fn send(ep: *mut fid_ep, buf: *const c_void, len: usize, what: Send) -> isize {
    // SAFETY: as the caller promises.
    let (ep, segment) = unsafe { (object::<Ep, _>(ep), convert::segment(buf, len)) };
    result(ep.and_then(|ep| send_segments(ep, &[segment], what)))
}

/// Sends a scatter list.
///
/// # Safety
/// `ep` is a live endpoint; `iov` holds `count` entries during the call, the memory they name lives until completion.
#[inline]
pub(super) unsafe fn sendv(ep: *mut fid_ep, iov: *const iovec, count: usize, what: Send) -> isize {
    // SAFETY: as the caller promises.
    result(unsafe { object::<Ep, _>(ep).and_then(|ep| convert::with_segments(iov, count, |s| send_segments(ep, s, what))) })
}

#[inline]
fn send_segments(ep: &Ep, iov: &[rustmx::UserSeg], what: Send) -> Answer<()> {
    ep.send(SendArgs {
        to: Addr(what.to),
        tagged: what.tag.is_some(),
        tag: what.tag.unwrap_or(0),
        data: what.data,
        iov,
        ctx: UserCtx(what.context as usize),
        flags: what.flags,
        inject: what.inject,
    })
}

/// Posts one buffer.
///
/// # Safety
/// `ep` is a live endpoint; `buf` holds `len` bytes until the operation completes (fi_msg(3)).
#[inline]
pub(super) unsafe fn recv(ep: *mut fid_ep, buf: *mut c_void, len: usize, what: Recv) -> isize {
    // SAFETY: as the caller promises.
    let (ep, segment) = unsafe { (object::<Ep, _>(ep), convert::segment(buf, len)) };
    result(ep.and_then(|ep| recv_segments(ep, &[segment], what)))
}

/// Posts a scatter list.
///
/// # Safety
/// `ep` is a live endpoint; `iov` holds `count` entries during the call, the memory they name lives until completion.
#[inline]
pub(super) unsafe fn recvv(ep: *mut fid_ep, iov: *const iovec, count: usize, what: Recv) -> isize {
    // SAFETY: as the caller promises.
    result(unsafe { object::<Ep, _>(ep).and_then(|ep| convert::with_segments(iov, count, |s| recv_segments(ep, s, what))) })
}

#[inline]
fn recv_segments(ep: &Ep, iov: &[rustmx::UserSeg], what: Recv) -> Answer<()> {
    let (tag, ignore) = what.tag.unwrap_or((0, 0));
    ep.recv(RecvArgs {
        from: Addr(what.from),
        tagged: what.tag.is_some(),
        tag,
        ignore,
        iov,
        ctx: UserCtx(what.context as usize),
        flags: what.flags,
    })
}

/// The C status of a call whose flags were refused.
pub(super) fn refused(e: Errno) -> isize {
    result(Err(e))
}
