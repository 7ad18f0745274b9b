//! `fid_ep`: a reliable-datagram endpoint. The data path goes through [`Ep::send`] and [`Ep::recv`]; the tables are in `ops`.
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::cell::DomainCell;
use super::domain::Domain;
use super::options::{Limits, limits};
use super::{Uses, ext, fid as slots};
use crate::abi::endpoint::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Errno, Object, attr, copy_out, count, hand_out, object, reclaim, refuse, status};
use crate::ops::later::{self, Later};
use crate::{info, ops};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rustmx::{
    Addr, AtomicArgs, EpAttr, EpId, Error, INJECT_MAX, INLINE_MAX, Movement, OpFlags, Plan, RecvArgs, RmaArgs, SendArgs, Stats,
    UserCtx, Work, inject_max, wait_a_little,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether calls of an endpoint must look closer, for each direction: the usual one tests one word.
pub(super) struct Adjusted {
    pub starts: AtomicBool,
    pub receives: AtomicBool,
}

impl Clone for Adjusted {
    fn clone(&self) -> Adjusted {
        let copy = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::Acquire));
        Adjusted { starts: copy(&self.starts), receives: copy(&self.receives) }
    }
}

/// An opened endpoint.
#[repr(C)]
pub(crate) struct Ep {
    head: fid_ep,
    pub(super) cell: Arc<DomainCell>,
    pub(crate) id: EpId,
    /// The default operation flags, (transmit, receive). The engine has those of the opening; once the client changes them,
    /// every call passes them on.
    op_flags: Mutex<(u64, u64)>,
    /// Of what it starts, and of receives: the default flags were changed, or it is not for that, or (receives) a shared context gets them.
    pub(super) adjusted: Adjusted,
    /// Whether its capabilities have it send, or reach for memory of peers, and receive.
    directions: (bool, bool),
    /// Contexts that it must have before it is enabled, as it was opened with FI_SHARED_CONTEXT: (transmit, receive).
    wants_shared: (bool, bool),
    /// Contexts that it has.
    pub(super) has_shared: (AtomicBool, AtomicBool),
    /// Opened with FI_TRIGGER.
    triggers: bool,
    /// `size` of the attributes it was opened with, (transmit, receive).
    pub(super) sizes: (usize, usize),
    /// Longest message that may be injected.
    pub(super) inject_max: usize,
    pub(super) limits: Mutex<Limits>,
    /// This is an alias (fi_ep_alias): another handle of the endpoint that this keeps from being closed.
    alias_of: Option<Uses>,
    /// Its aliases.
    aliases: Uses,
    /// Keeps what is bound to it, and its domain, from being closed.
    pub(super) bound: Mutex<Vec<Uses>>,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_ep whose class is set in `open`.
unsafe impl Object for Ep {
    const CLASS: usize = FI_CLASS_EP;
}

static FID: fi_ops = slots::extended_ops(close, bind, control, ext::open);
static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: slots::no_context,
    rx_ctx: slots::no_context,
    rx_size_left,
    tx_size_left,
};

impl Ep {
    /// # Safety
    /// `asked` is null or lives during the call, with the blocks it points to.
    pub(super) unsafe fn open(domain: &Domain, asked: *const fi_info, context: *mut c_void) -> Answer<Ep> {
        // SAFETY: as the caller promises.
        let (i, ep, tx, rx) = unsafe {
            let i = attr(asked).ok_or(Errno(FI_EINVAL))?;
            (i, attr(i.ep_attr), attr(i.tx_attr), attr(i.rx_attr))
        };
        if ep.is_some_and(|e| !matches!(e.r#type, FI_EP_UNSPEC | FI_EP_RDM)) {
            return refuse(FI_EINVAL);
        }
        // SAFETY: as the caller promises.
        let own = ep.map(|e| unsafe { info::key_of(e.auth_key, e.auth_key_size) });
        if own.as_ref().is_some_and(|key| key.is_empty()) && ep.is_some_and(|e| e.auth_key_size != 0) {
            return refuse(FI_EINVAL);
        }
        let (tx_flags, rx_flags) = (tx.map_or(0, |t| t.op_flags), rx.map_or(0, |r| r.op_flags));
        let inject_max = tx.map_or(inject_max(&crate::entry::start().config), |t| t.inject_size).clamp(INLINE_MAX, INJECT_MAX);
        let [sends, reaches, receives] = info::directions(i.caps);
        let directions = (sends || reaches, receives);
        let wanted = EpAttr {
            tx_flags: OpFlags::from_bits_retain(tx_flags),
            rx_flags: OpFlags::from_bits_retain(rx_flags),
            source: i.caps & FI_SOURCE != 0,
            directed_recv: i.caps & FI_DIRECTED_RECV != 0,
            sends,
            reaches,
            receives,
            msg: i.caps & FI_MSG != 0,
            tagged: i.caps & FI_TAGGED != 0,
            // SAFETY: as the caller promises.
            service: unsafe { info::service_of(i)? },
            auth_key: own.filter(|key| !key.is_empty()).unwrap_or_else(|| domain.key.clone()),
            inject_max,
        };
        Ok(Ep {
            head: Self::head(context),
            id: domain.cell.control()?.ep_open(wanted)?,
            cell: domain.cell.clone(),
            op_flags: Mutex::new((tx_flags, rx_flags)),
            adjusted: Adjusted { starts: AtomicBool::new(!directions.0), receives: AtomicBool::new(!directions.1) },
            directions,
            wants_shared: ep.map_or((false, false), |e| (e.tx_ctx_cnt == FI_SHARED_CONTEXT, e.rx_ctx_cnt == FI_SHARED_CONTEXT)),
            has_shared: Default::default(),
            triggers: i.caps & FI_TRIGGER != 0,
            sizes: (
                tx.map(|t| t.size).filter(|n| *n > 0).unwrap_or(info::DEFAULT_SIZE),
                rx.map(|r| r.size).filter(|n| *n > 0).unwrap_or(info::DEFAULT_SIZE),
            ),
            inject_max,
            limits: Mutex::new(limits(inject_max)),
            alias_of: None,
            aliases: Uses::default(),
            bound: Mutex::default(),
            _domain: domain.uses.clone(),
        })
    }

    fn head(context: *mut c_void) -> fid_ep {
        fid_ep {
            fid: slots::header(FI_CLASS_EP, context, &FID),
            ops: &OPS,
            cm: &ops::cm::OPS,
            msg: &ops::msg::OPS,
            rma: &ops::rma::OPS,
            tagged: &ops::tagged::OPS,
            atomic: &ops::atomic::OPS,
            // FI_COLLECTIVE is not offered; libfabric tests this pointer before it calls through it.
            collective: core::ptr::null(),
        }
    }

    /// Another handle of this endpoint, with other default flags for one direction (fi_endpoint(3), fi_ep_alias).
    fn alias(&self, flags: u64) -> Answer<Ep> {
        let alias = Ep {
            head: Self::head(self.head.fid.context),
            cell: self.cell.clone(),
            id: self.id,
            op_flags: Mutex::new(*self.op_flags.lock()),
            adjusted: self.adjusted.clone(),
            directions: self.directions,
            wants_shared: self.wants_shared,
            has_shared: (
                AtomicBool::new(self.has_shared.0.load(Ordering::Acquire)),
                AtomicBool::new(self.has_shared.1.load(Ordering::Acquire)),
            ),
            triggers: self.triggers,
            sizes: self.sizes,
            inject_max: self.inject_max,
            limits: Mutex::new(*self.limits.lock()),
            alias_of: Some(self.alias_of.as_ref().unwrap_or(&self.aliases).clone()),
            aliases: Uses::default(),
            bound: Mutex::default(),
            _domain: self._domain.clone(),
        };
        alias.set_op_flags(flags)?;
        Ok(alias)
    }

    pub(super) fn min_multi_recv(&self) -> Answer<usize> {
        Ok(self.cell.control()?.ep_min_multi_recv(self.id))
    }

    pub(super) fn set_min_multi_recv(&self, bytes: usize) -> Answer<()> {
        self.cell.control()?.ep_set_min_multi_recv(self.id, bytes);
        Ok(())
    }

    /// Posts a send.
    #[inline]
    pub(crate) fn send(&self, mut args: SendArgs<'_>) -> Answer<()> {
        if self.adjusted.starts.load(Ordering::Acquire)
            && let Some(later) = self.adjust_send(args.ctx, &mut args.flags)?
        {
            return self.defer(later, &Work::Send(self.id, args));
        }
        Ok(self.cell.data()?.send(self.id, &args)?)
    }

    /// Sets the flags of a call that has none of its own; they may defer it (`FI_TRIGGER`).
    #[cold]
    fn default_flags(&self, transmit: bool, ctx: UserCtx, flags: &mut Option<OpFlags>) -> Answer<Option<Later>> {
        let (tx, rx) = *self.op_flags.lock();
        let default = if transmit { tx } else { rx };
        if default & FI_TRIGGER == 0 {
            *flags = Some(OpFlags::from_bits_retain(default));
            return Ok(None);
        }
        // SAFETY: with this flag the context is a fi_triggered_context that names a live counter (fi_trigger(3)).
        let (later, rest) = unsafe { later::triggered(self, default, ctx.0 as *mut c_void)? };
        *flags = Some(rest);
        Ok(Some(later))
    }

    /// Reads or writes a peer's memory.
    pub(crate) fn rma(&self, mut args: RmaArgs<'_>) -> Answer<()> {
        if self.adjusted.starts.load(Ordering::Acquire)
            && let Some(later) = self.adjust_send(args.ctx, &mut args.flags)?
        {
            return self.defer(later, &Work::Rma(self.id, args));
        }
        Ok(self.cell.data()?.rma(self.id, &args)?)
    }

    /// Combines values in a peer's memory with ours.
    pub(crate) fn atomic(&self, mut args: AtomicArgs<'_>) -> Answer<()> {
        if self.adjusted.starts.load(Ordering::Acquire)
            && let Some(later) = self.adjust_send(args.ctx, &mut args.flags)?
        {
            return self.defer(later, &Work::Atomic(self.id, args));
        }
        Ok(self.cell.data()?.atomic(self.id, &args)?)
    }

    /// Posts a receive.
    #[inline]
    pub(crate) fn recv(&self, mut args: RecvArgs<'_>) -> Answer<()> {
        if self.adjusted.receives.load(Ordering::Acquire)
            && let Some(later) = self.adjust_recv(&mut args)?
        {
            return self.defer(later, &Work::Recv(self.id, args));
        }
        Ok(self.cell.data()?.recv(self.id, &args)?)
    }

    /// What a call that starts something needs of an endpoint that is not as it was opened, or not for both directions.
    #[cold]
    fn adjust_send(&self, ctx: UserCtx, flags: &mut Option<OpFlags>) -> Answer<Option<Later>> {
        self.may(true)?;
        if flags.is_some() { Ok(None) } else { self.default_flags(true, ctx, flags) }
    }

    /// What an endpoint is not for is refused, for nothing would report it; what has a queue or a counter all the same is not.
    fn may(&self, transmit: bool) -> Answer<()> {
        let this = |(sends, receives): (bool, bool)| if transmit { sends } else { receives };
        if this(self.directions) || this(self.cell.control()?.ep_directions(self.id)) { Ok(()) } else { refuse(FI_EOPNOTSUPP) }
    }

    #[cold]
    fn adjust_recv(&self, args: &mut RecvArgs<'_>) -> Answer<Option<Later>> {
        self.may(false)?;
        if self.has_shared.1.load(Ordering::Acquire) {
            // Its receives are posted to the context (fi_endpoint(3)).
            return refuse(FI_EOPBADSTATE);
        }
        if args.flags.is_some() { Ok(None) } else { self.default_flags(false, args.ctx, &mut args.flags) }
    }

    /// Whether calls with FI_TRIGGER are allowed.
    pub(crate) fn triggers(&self) -> bool {
        self.triggers
    }

    /// Does something later.
    #[cold]
    pub(crate) fn defer(&self, later: Later, work: &Work<'_>) -> Answer<()> {
        match work {
            Work::Recv(..) => self.may(false)?,
            Work::Send(..) | Work::Rma(..) | Work::Atomic(..) => self.may(true)?,
            Work::Set(..) | Work::Add(..) => {}
        }
        Ok(self.cell.control()?.defer(later.when, work, later.mark)?)
    }

    /// What it did so far.
    pub(super) fn stats(&self) -> Answer<Stats> {
        Ok(self.cell.control()?.ep_stats(self.id)?)
    }

    /// How an operation would go.
    pub(super) fn plan(&self, to: Addr, what: Movement, len: usize) -> Answer<Plan> {
        Ok(self.cell.control()?.ep_plan(self.id, to, what, len)?)
    }

    /// The endpoint's name, to a buffer.
    ///
    /// # Safety
    /// As for [`copy_out`].
    pub(crate) unsafe fn name(&self, buf: *mut c_void, len: *mut usize) -> Answer<()> {
        let name = self.cell.control()?.ep_name(self.id)?;
        // SAFETY: as the caller promises.
        unsafe { copy_out(&name.to_bytes(), buf, len) }
    }

    /// One that was opened for shared contexts has them.
    fn enable(&self) -> Answer<()> {
        let has = (self.has_shared.0.load(Ordering::Acquire), self.has_shared.1.load(Ordering::Acquire));
        if self.wants_shared.0 && !has.0 || self.wants_shared.1 && !has.1 {
            return refuse(FI_EOPBADSTATE);
        }
        Ok(self.cell.control()?.ep_enable(self.id)?)
    }

    /// # Safety
    /// `arg` is what fi_endpoint(3) says for the command.
    unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Answer<()> {
        let flags = arg.cast::<u64>();
        match command {
            FI_ENABLE => self.enable(),
            FI_GETOPSFLAG | FI_SETOPSFLAG if flags.is_null() => refuse(FI_EINVAL),
            FI_GETOPSFLAG => {
                let (tx, rx) = *self.op_flags.lock();
                // SAFETY: a `uint64_t` that names the direction on entry (fi_endpoint(3)).
                unsafe {
                    match *flags & (FI_TRANSMIT | FI_RECV) {
                        FI_TRANSMIT => *flags = tx,
                        FI_RECV => *flags = rx,
                        _ => return refuse(FI_EINVAL),
                    }
                }
                Ok(())
            }
            FI_SETOPSFLAG => {
                // SAFETY: a `uint64_t` (fi_endpoint(3)).
                self.set_op_flags(unsafe { *flags })
            }
            FI_ALIAS => {
                // SAFETY: a structure that lives during the call (fi_endpoint(3)).
                let asked = unsafe { attr(arg.cast::<fi_alias>()) }.ok_or(Errno(FI_EINVAL))?;
                // SAFETY: a place for the handle (fi_endpoint(3)).
                unsafe { hand_out(asked.fid, self.alias(asked.flags)?) }
            }
            _ => refuse(FI_ENOSYS),
        }
    }

    fn set_op_flags(&self, asked: u64) -> Answer<()> {
        let mut now = self.op_flags.lock();
        let new = asked & !(FI_TRANSMIT | FI_RECV);
        let trigger = if self.triggers { FI_TRIGGER } else { 0 };
        let adjusted = if asked & FI_RECV != 0 { &self.adjusted.receives } else { &self.adjusted.starts };
        let (tx, rx) = match asked & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT if new & !(info::TX_OP_FLAGS | trigger) == 0 => (new, now.1),
            FI_RECV if new & !(info::RX_OP_FLAGS | trigger) == 0 => (now.0, new),
            FI_TRANSMIT | FI_RECV => return refuse(FI_EBADFLAGS),
            _ => return refuse(FI_EINVAL),
        };
        *now = (tx, rx);
        adjusted.store(true, Ordering::Release);
        Ok(())
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live endpoint.
    let answer = unsafe { object::<Ep, _>(fid) }.and_then(|ep| {
        if ep.aliases.any() {
            return refuse(FI_EBUSY);
        }
        if ep.alias_of.is_some() {
            // SAFETY: the client gives the handle up (fi_close(3)); the endpoint stays.
            drop(unsafe { reclaim::<Ep>(fid) });
            return Ok(());
        }
        // Others may use the domain meanwhile: perhaps it is they whom the receivers wait for.
        let mut turns = 0;
        while ep.cell.control().is_ok_and(|mut d| d.ep_lingers(ep.id)) {
            wait_a_little(&mut turns);
        }
        ep.cell.let_go(|d| d.ep_close(ep.id))?;
        // SAFETY: the engine has let go of it, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Ep>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_endpoint(3): two live objects.
    unsafe { status(object::<Ep, _>(fid).and_then(|ep| ep.bind(other, flags))) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: fi_endpoint(3): a live endpoint, an argument that suits the command.
    unsafe { status(object::<Ep, _>(fid).and_then(|ep| ep.control(command, arg))) }
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: fi_endpoint(3): a live endpoint.
    let answer = unsafe { object::<Ep, _>(fid) }.and_then(|ep| match ep.cell.data()?.cancel(ep.id, UserCtx(context as usize)) {
        // Already complete, or never posted. After 0 Open MPI would wait for the cancellation for ever.
        Err(Error::NoMessage) => refuse(FI_ENOENT),
        other => Ok(other?),
    });
    status(answer) as isize
}

unsafe extern "C" fn getopt(fid: *mut fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: fi_endpoint(3): a live endpoint, a buffer of `*len` bytes.
    unsafe { status(object::<Ep, _>(fid).and_then(|ep| ep.get_option(level, name, value, len))) }
}

unsafe extern "C" fn setopt(fid: *mut fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    // SAFETY: fi_endpoint(3): a live endpoint, a value of `len` bytes.
    unsafe { status(object::<Ep, _>(fid).and_then(|ep| ep.set_option(level, name, value, len))) }
}

// Deprecated queries (fi_endpoint(3)): lower bounds of what may be posted before -FI_EAGAIN.

unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: fi_endpoint(3): a live endpoint. Posted receives are limited by memory only: the size that it was opened with.
    count(
        unsafe { object::<Ep, _>(ep) }
            .and_then(|ep| ep.cell.control()?.ep_send_room(ep.id).map(|_| ep.sizes.1).map_err(Errno::from)),
    )
}

unsafe extern "C" fn tx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: fi_endpoint(3): a live endpoint.
    count(unsafe { object::<Ep, _>(ep) }.and_then(|ep| Ok(ep.cell.control()?.ep_send_room(ep.id)?)))
}
