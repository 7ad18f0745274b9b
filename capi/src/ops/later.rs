//! Operations that wait for a counter: calls with `FI_TRIGGER`, and the work of `FI_QUEUE_WORK` (fi_trigger(3)). None of it is on a
//! hot path: the calls of the other tables come here when they have found the flag.
#![expect(unsafe_code)]
// UNSAFETY: reads the client's trigger and message structures; casts handles through boundary.rs only.

use super::atomic::{self, Described};
use super::rma;
use super::values::Values;
use crate::abi::endpoint::{fi_msg, fid_ep};
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::abi::tagged::fi_msg_tagged;
use crate::abi::trigger::*;
use crate::boundary::{Answer, Errno, attr, object, refuse, status};
use crate::convert;
use crate::object::cntr::Cntr;
use crate::object::domain::Domain;
use crate::object::ep::Ep;
use libc::c_void;
use rustmx::{Addr, AtomicForm, Deferral, OpFlags, RecvArgs, SendArgs, Tell, UserCtx, Work};

/// When, and the name under which it can be taken back.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    pub(crate) when: Deferral,
    pub(crate) mark: usize,
}

/// What the flags of a call with a trigger say; refuses flags that stand for something that is not offered.
///
/// # Safety
/// With `FI_TRIGGER` in the flags, `context` is null or points to a `fi_triggered_context` that names a live counter.
#[cold]
pub(crate) unsafe fn triggered(ep: &Ep, flags: u64, context: *mut c_void) -> Answer<(Later, OpFlags)> {
    if flags & FI_TRIGGER == 0 || !ep.triggers() {
        return refuse(FI_EOPNOTSUPP);
    }
    // SAFETY: as the caller promises; the union holds a threshold if the event type says so.
    unsafe {
        let asked = attr(context.cast::<fi_triggered_context>()).ok_or(Errno(FI_EINVAL))?;
        if asked.event_type != FI_TRIGGER_THRESHOLD {
            return refuse(FI_ENOSYS);
        }
        let threshold = &*asked.trigger.as_ptr().cast::<fi_trigger_threshold>();
        let cntr = object::<Cntr, _>(threshold.cntr)?;
        ep.same_domain(&cntr.cell)?;
        let when = Deferral { cntr: cntr.id, threshold: threshold.threshold as u64, tell: Tell::Endpoint };
        Ok((Later { when, mark: context as usize }, convert::flags(flags & !FI_TRIGGER)?))
    }
}

/// What the flags of a call on a peer's memory say, and until when they defer it, if they do.
///
/// # Safety
/// As for [`triggered`].
#[inline]
pub(super) unsafe fn flags_of(ep: &Ep, flags: u64, context: *mut c_void) -> Answer<(OpFlags, Option<Later>)> {
    match convert::flags(flags) {
        Ok(flags) => Ok((flags, None)),
        Err(_) => {
            // SAFETY: as the caller promises.
            let (later, flags) = unsafe { triggered(ep, flags, context)? };
            Ok((flags, Some(later)))
        }
    }
}

/// The untagged and tagged messages in one form.
struct Message<'a> {
    msg: &'a fi_msg,
    tag: Option<(u64, u64)>,
}

/// The untagged part of a tagged message.
fn untagged(m: &fi_msg_tagged) -> fi_msg {
    let fi_msg_tagged { msg_iov, desc, iov_count, addr, context, data, .. } = *m;
    fi_msg { msg_iov, desc, iov_count, addr, context, data }
}

/// # Safety
/// The message's arrays live during the call, its buffers until completion.
unsafe fn send(ep: &Ep, m: &Message<'_>, later: Later, flags: OpFlags) -> Answer<()> {
    let data = flags.contains(OpFlags::REMOTE_CQ_DATA).then_some(m.msg.data);
    let (to, tag, ctx) = (Addr(m.msg.addr), m.tag.unwrap_or((0, 0)).0, UserCtx(m.msg.context as usize));
    // SAFETY: as the caller promises.
    unsafe {
        convert::with_segments(m.msg.msg_iov, m.msg.iov_count, |iov| {
            let args = SendArgs { to, tagged: m.tag.is_some(), tag, data, iov, ctx, flags: Some(flags), inject: false };
            ep.defer(later, &Work::Send(ep.id, args))
        })
    }
}

/// # Safety
/// As for [`send`].
unsafe fn recv(ep: &Ep, m: &Message<'_>, later: Later, flags: OpFlags) -> Answer<()> {
    let (tag, ignore) = m.tag.unwrap_or((0, 0));
    let (from, ctx) = (Addr(m.msg.addr), UserCtx(m.msg.context as usize));
    // SAFETY: as the caller promises.
    unsafe {
        convert::with_segments(m.msg.msg_iov, m.msg.iov_count, |iov| {
            let args = RecvArgs { from, tagged: m.tag.is_some(), tag, ignore, iov, ctx, flags: Some(flags) };
            ep.defer(later, &Work::Recv(ep.id, args))
        })
    }
}

/// `fi_sendmsg` or `fi_recvmsg` with a flag that defers it (`FI_TRIGGER`).
///
/// # Safety
/// `ep` is a live endpoint, the message as for the call.
#[cold]
pub(super) unsafe fn message(ep: *mut fid_ep, msg: &fi_msg, flags: u64, sends: bool) -> isize {
    // SAFETY: as the caller promises.
    status(unsafe { triggered_message(ep, &Message { msg, tag: None }, flags, sends) }) as isize
}

/// `fi_tsendmsg` or `fi_trecvmsg` with a flag that defers it (`FI_TRIGGER`).
///
/// # Safety
/// `ep` is a live endpoint, the message as for the call.
#[cold]
pub(super) unsafe fn tagged(ep: *mut fid_ep, msg: &fi_msg_tagged, flags: u64, sends: bool) -> isize {
    let message = Message { msg: &untagged(msg), tag: Some((msg.tag, msg.ignore)) };
    // SAFETY: as the caller promises.
    status(unsafe { triggered_message(ep, &message, flags, sends) }) as isize
}

/// # Safety
/// As for [`message`].
unsafe fn triggered_message(ep: *mut fid_ep, message: &Message<'_>, flags: u64, sends: bool) -> Answer<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let ep = object::<Ep, _>(ep)?;
        let (later, flags) = triggered(ep, flags, message.msg.context)?;
        if sends { send(ep, message, later, flags) } else { recv(ep, message, later, flags) }
    }
}

/// The structure that a deferred operation is described by.
///
/// # Safety
/// `op` is null or points to a `T` that lives during the call.
unsafe fn described<'a, T>(op: *mut opaque) -> Answer<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { attr(op.cast::<T>()) }.ok_or(Errno(FI_EINVAL))
}

/// `FI_QUEUE_WORK`.
///
/// # Safety
/// `work` is null or a deferred work request as fi_trigger(3) wants it. Everything but buffers is copied.
pub(crate) unsafe fn queue(domain: &Domain, work: *const fi_deferred_work) -> Answer<()> {
    // SAFETY: as the caller promises; `op` points to what `op_type` says.
    unsafe {
        let w = attr(work).ok_or(Errno(FI_EINVAL))?;
        let counter = |c| {
            let cntr = object::<Cntr, _>(c)?;
            if std::sync::Arc::ptr_eq(&cntr.cell, &domain.cell) { Ok(cntr.id) } else { refuse(FI_EDOMAIN) }
        };
        let done = if w.completion_cntr.is_null() { None } else { Some(counter(w.completion_cntr)?) };
        let when = Deferral { cntr: counter(w.triggering_cntr)?, threshold: w.threshold, tell: Tell::Counter(done) };
        let later = Later { when, mark: work as usize };
        let endpoint = |ep| -> Answer<&Ep> {
            let ep = object::<Ep, _>(ep)?;
            ep.same_domain(&domain.cell)?;
            Ok(ep)
        };
        match w.op_type {
            FI_OP_RECV | FI_OP_SEND => {
                let op = described::<fi_op_msg>(w.op)?;
                let (ep, flags, message) = (endpoint(op.ep)?, convert::flags(op.flags)?, Message { msg: &op.msg, tag: None });
                if w.op_type == FI_OP_SEND { send(ep, &message, later, flags) } else { recv(ep, &message, later, flags) }
            }
            FI_OP_TRECV | FI_OP_TSEND => {
                let op = described::<fi_op_tagged>(w.op)?;
                let message = Message { msg: &untagged(&op.msg), tag: Some((op.msg.tag, op.msg.ignore)) };
                let (ep, flags) = (endpoint(op.ep)?, convert::flags(op.flags)?);
                if w.op_type == FI_OP_TSEND { send(ep, &message, later, flags) } else { recv(ep, &message, later, flags) }
            }
            FI_OP_READ | FI_OP_WRITE => {
                let op = described::<fi_op_rma>(w.op)?;
                let flags = convert::flags(op.flags)?;
                rma::prepared(endpoint(op.ep)?, &op.msg, flags, w.op_type == FI_OP_WRITE, Some(later))
            }
            FI_OP_ATOMIC => {
                let op = described::<fi_op_atomic>(w.op)?;
                let (msg, form) = (&op.msg, AtomicForm::Base);
                let what = Described { msg, form, comparands: Values::NONE, results: Values::NONE };
                let flags = convert::flags(op.flags)?;
                atomic::prepared(endpoint(op.ep)?, &what, flags, Some(later))
            }
            FI_OP_FETCH_ATOMIC => {
                let op = described::<fi_op_fetch_atomic>(w.op)?;
                let (msg, form) = (&op.msg, AtomicForm::Fetch);
                let results = Values::new(op.fetch.msg_iov, op.fetch.iov_count);
                let what = Described { msg, form, comparands: Values::NONE, results };
                let flags = convert::flags(op.flags)?;
                atomic::prepared(endpoint(op.ep)?, &what, flags, Some(later))
            }
            FI_OP_COMPARE_ATOMIC => {
                let op = described::<fi_op_compare_atomic>(w.op)?;
                let (msg, form) = (&op.msg, AtomicForm::Compare);
                let comparands = Values::new(op.compare.msg_iov, op.compare.iov_count);
                let results = Values::new(op.fetch.msg_iov, op.fetch.iov_count);
                let flags = convert::flags(op.flags)?;
                atomic::prepared(endpoint(op.ep)?, &Described { msg, form, comparands, results }, flags, Some(later))
            }
            FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
                if done.is_some() {
                    return refuse(FI_EINVAL);
                }
                let op = described::<fi_op_cntr>(w.op)?;
                let (cntr, value) = (counter(op.cntr)?, op.value);
                let work = if w.op_type == FI_OP_CNTR_SET { Work::Set(cntr, value) } else { Work::Add(cntr, value) };
                Ok(domain.cell.control()?.defer(later.when, &work, later.mark)?)
            }
            _ => refuse(FI_ENOSYS),
        }
    }
}
