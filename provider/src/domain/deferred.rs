//! Operations that wait until a counter reaches a threshold (fi_trigger(3)): triggered operations of endpoints, and the deferred work
//! queue of the domain. Both are the same book; they differ in how the operation is reported.
//!
//! Whatever counts does so without looking here; the domain looks at the end of each of its turns ([`Domain::progress`]), and when the
//! client itself changes a counter.

use super::Domain;
use crate::endpoint::{AtomicArgs, Out, RecvArgs, RmaArgs, SendArgs};
use crate::error::{Error, Result};
use crate::mem::user::UserIov;
use crate::request::Aside;
use crate::types::{Addr, AtomicForm, CntrId, CompFlags, EpId, OpFlags, RemoteSeg, UserCtx};
use crate::wire::order::Order;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// When deferred work is done, and who hears of it.
#[derive(Clone, Copy, Debug)]
pub struct Deferral {
    /// The counter that is watched.
    pub cntr: CntrId,
    /// The work is done when it has reached this.
    pub threshold: u64,
    /// Who hears of its end.
    pub tell: Tell,
}

/// Who hears of the end of deferred work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// The endpoint, as if it had been started at once: a triggered operation. Its threshold counts successes.
    Endpoint,
    /// This counter, if any; the endpoint only if the operation has the completion flag: work of the domain's queue. Its threshold counts
    /// successes and failures.
    Counter(Option<CntrId>),
}

/// What is deferred. Nothing that a buffer holds is read before it is done.
pub enum Work<'a> {
    /// A send.
    Send(EpId, SendArgs<'a>),
    /// A receive.
    Recv(EpId, RecvArgs<'a>),
    /// A read or write of a peer's memory.
    Rma(EpId, RmaArgs<'a>),
    /// An atomic operation.
    Atomic(EpId, AtomicArgs<'a>),
    /// Sets a counter's successes.
    Set(CntrId, u64),
    /// Adds to a counter's successes.
    Add(CntrId, u64),
}

/// The same, independent of the caller.
enum Kept {
    Send {
        ep: EpId,
        to: Addr,
        tag: Option<u64>,
        data: Option<u64>,
        iov: UserIov,
        ctx: UserCtx,
        flags: Option<OpFlags>,
    },
    Recv {
        ep: EpId,
        from: Addr,
        tag: Option<(u64, u64)>,
        iov: UserIov,
        ctx: UserCtx,
        flags: Option<OpFlags>,
    },
    Rma {
        ep: EpId,
        to: Addr,
        write: bool,
        iov: UserIov,
        places: Vec<RemoteSeg>,
        data: Option<u64>,
        ctx: UserCtx,
        flags: Option<OpFlags>,
    },
    Atomic {
        ep: EpId,
        to: Addr,
        order: Order,
        lists: [UserIov; 3],
        places: Vec<RemoteSeg>,
        ctx: UserCtx,
        flags: Option<OpFlags>,
    },
    Set(CntrId, u64),
    Add(CntrId, u64),
}

impl Kept {
    fn new(work: &Work<'_>) -> Kept {
        match *work {
            Work::Send(ep, ref a) => {
                let (tag, iov) = (a.tagged.then_some(a.tag), a.iov.into());
                Kept::Send { ep, to: a.to, tag, data: a.data, iov, ctx: a.ctx, flags: a.flags }
            }
            Work::Recv(ep, ref a) => {
                let tag = a.tagged.then_some((a.tag, a.ignore));
                Kept::Recv { ep, from: a.from, tag, iov: a.iov.into(), ctx: a.ctx, flags: a.flags }
            }
            Work::Rma(ep, ref a) => {
                let (iov, places) = (a.iov.into(), a.places.to_vec());
                Kept::Rma { ep, to: a.to, write: a.write, iov, places, data: a.data, ctx: a.ctx, flags: a.flags }
            }
            Work::Atomic(ep, ref a) => {
                let lists = [a.operands.into(), a.comparands.into(), a.results.into()];
                let (order, places) = (a.order, a.places.to_vec());
                Kept::Atomic { ep, to: a.to, order, lists, places, ctx: a.ctx, flags: a.flags }
            }
            Work::Set(cntr, n) => Kept::Set(cntr, n),
            Work::Add(cntr, n) => Kept::Add(cntr, n),
        }
    }

    /// The endpoint that it is for, and its context there.
    fn endpoint(&self) -> Option<(EpId, UserCtx)> {
        match *self {
            Kept::Send { ep, ctx, .. }
            | Kept::Recv { ep, ctx, .. }
            | Kept::Rma { ep, ctx, .. }
            | Kept::Atomic { ep, ctx, .. } => Some((ep, ctx)),
            Kept::Set(..) | Kept::Add(..) => None,
        }
    }

    /// What its completion says it was.
    fn kind(&self) -> CompFlags {
        let message = |tagged| if tagged { CompFlags::TAGGED } else { CompFlags::MSG };
        match self {
            Kept::Send { tag, .. } => CompFlags::SEND | message(tag.is_some()),
            Kept::Recv { tag, .. } => CompFlags::RECV | message(tag.is_some()),
            Kept::Rma { write, .. } => CompFlags::RMA | if *write { CompFlags::WRITE } else { CompFlags::READ },
            Kept::Atomic { order, .. } => {
                CompFlags::ATOMIC | if order.form == AtomicForm::Base { CompFlags::WRITE } else { CompFlags::READ }
            }
            Kept::Set(..) | Kept::Add(..) => CompFlags::empty(),
        }
    }

    /// Whether the endpoint's entry was asked for.
    fn wants_entry(&self) -> bool {
        match self {
            Kept::Send { flags, .. } | Kept::Recv { flags, .. } | Kept::Rma { flags, .. } | Kept::Atomic { flags, .. } => {
                flags.is_some_and(|flags| flags.contains(OpFlags::COMPLETION))
            }
            Kept::Set(..) | Kept::Add(..) => false,
        }
    }

    /// The counter that it changes itself.
    fn changes(&self) -> Option<CntrId> {
        match *self {
            Kept::Set(cntr, _) | Kept::Add(cntr, _) => Some(cntr),
            _ => None,
        }
    }
}

struct Item {
    work: Kept,
    tell: Tell,
    /// What the client calls it.
    mark: usize,
}

impl Item {
    /// The counters that it needs besides the one that it waits for, for as long as it waits. (Once it is started nothing keeps them: a client may close what it is still to be told by.)
    fn counters(&self) -> impl Iterator<Item = CntrId> + use<> {
        let told = match self.tell {
            Tell::Counter(cntr) => cntr,
            Tell::Endpoint => None,
        };
        told.into_iter().chain(self.work.changes())
    }
}

/// The place of an item among those of one counter: threshold first, then the order of submission (fi_trigger(3)).
type Place = (u64, u64);

/// All that is deferred in a domain. The key says whether failures count towards the threshold.
#[derive(Default)]
pub(super) struct Deferred {
    queues: FxHashMap<(CntrId, bool), BTreeMap<Place, Item>>,
    submitted: u64,
    /// The last attempt found no room: there is something to do, though nothing happened.
    pub stuck: bool,
}

impl Deferred {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    fn take(&mut self, key: (CntrId, bool), place: Place) -> Option<Item> {
        let queue = self.queues.get_mut(&key)?;
        let item = queue.remove(&place);
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        item
    }

    /// Takes out what `gone` says, oldest first.
    fn take_if(&mut self, gone: impl Fn(CntrId, &Item) -> bool) -> Vec<(CntrId, Item)> {
        let mut doomed: Vec<((CntrId, bool), Place)> = Vec::new();
        for (key, queue) in &self.queues {
            doomed.extend(queue.iter().filter(|(_, item)| gone(key.0, item)).map(|(place, _)| (*key, *place)));
        }
        doomed.sort_by_key(|(_, (_, seq))| *seq);
        doomed.into_iter().filter_map(|(key, place)| Some((key.0, self.take(key, place)?))).collect()
    }
}

impl Domain {
    /// Does `work` when the counter says so; `mark` is what [`cancel_deferred`](Self::cancel_deferred) knows it by.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such counter or endpoint; [`Error::Unsupported`] for receives of the queue that are not for one
    /// message. What is wrong with the operation itself shows when it is done.
    pub fn defer(&mut self, when: Deferral, work: &Work<'_>, mark: usize) -> Result<()> {
        let Deferral { cntr, threshold, tell } = when;
        let work = Kept::new(work);
        let known = match &work {
            Kept::Set(c, _) | Kept::Add(c, _) => self.cntrs.contains(c.0),
            other => other.endpoint().is_some_and(|(ep, _)| self.eps.contains(ep.0)),
        };
        if !known || !self.cntrs.contains(cntr.0) {
            return Err(Error::Invalid);
        }
        let bound_to_shared = |ep: &EpId| self.eps.get(ep.0).is_some_and(|e| e.context().is_some());
        if matches!(&work, Kept::Recv { ep, .. } if bound_to_shared(ep)) {
            // Receives are the context's.
            return Err(Error::Invalid);
        }
        let probing = OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD;
        if let Kept::Recv { flags: Some(flags), .. } = &work
            && (flags.intersects(probing) || (tell != Tell::Endpoint && flags.contains(OpFlags::MULTI_RECV)))
        {
            return Err(Error::Unsupported);
        }
        let item = Item { work, tell, mark };
        if item.counters().any(|cntr| !self.cntrs.contains(cntr.0)) {
            return Err(Error::Invalid);
        }
        for cntr in item.counters().chain([cntr]) {
            self.count_binding(cntr);
        }
        self.deferred.submitted += 1;
        let place = (threshold, self.deferred.submitted);
        let queue = self.deferred.queues.entry((cntr, tell != Tell::Endpoint)).or_default();
        queue.insert(place, item);
        self.run_deferred();
        Ok(())
    }

    /// Does what is due. Returns how much. What finds no room holds up what waits for the same counter behind it, and nothing else: others may have to leave first.
    pub(super) fn run_deferred(&mut self) -> usize {
        let mut done = 0;
        let mut stuck: SmallVec<[(CntrId, bool); 2]> = SmallVec::new();
        while let Some((key, place)) = self.due(&stuck) {
            let Some(item) = self.deferred.take(key, place) else { break };
            match self.start_deferred(&item) {
                Err(Error::Again) => {
                    self.deferred.queues.entry(key).or_default().insert(place, item);
                    stuck.push(key);
                    continue;
                }
                Err(why) => self.fail_deferred(&item, why),
                Ok(()) => {}
            }
            self.unbind(key.0, &item);
            done += 1;
        }
        self.deferred.stuck = !stuck.is_empty();
        self.look_for_the_unusual();
        done
    }

    /// An item that waited for this counter waits no more.
    fn unbind(&mut self, cntr: CntrId, item: &Item) {
        for cntr in item.counters().chain([cntr]) {
            self.count_unbinding(cntr);
        }
    }

    /// The next item whose counter has reached its threshold, but for those of `stuck`.
    fn due(&self, stuck: &[(CntrId, bool)]) -> Option<((CntrId, bool), Place)> {
        self.deferred.queues.iter().filter(|(key, _)| !stuck.contains(key)).find_map(|(key, queue)| {
            let (cntr, with_failures) = *key;
            let c = self.cntrs.get(cntr.0)?;
            let reached = if with_failures { c.ok.wrapping_add(c.err) } else { c.ok };
            let (place, _) = queue.first_key_value()?;
            (place.0 <= reached).then_some((*key, *place))
        })
    }

    fn start_deferred(&mut self, item: &Item) -> Result<()> {
        let aside = match item.tell {
            Tell::Endpoint => None,
            Tell::Counter(cntr) => Some(Aside::new(cntr)),
        };
        let out = lend!(self);
        match &item.work {
            &Kept::Set(cntr, n) => {
                self.cntr(cntr, |c| c.ok = n);
                Ok(())
            }
            &Kept::Add(cntr, n) => {
                self.cntr(cntr, |c| c.ok = c.ok.wrapping_add(n));
                Ok(())
            }
            Kept::Send { ep, to, tag, data, iov, ctx, flags } => {
                let (tagged, tag) = (tag.is_some(), tag.unwrap_or(0));
                let args = SendArgs { to: *to, tagged, tag, data: *data, iov, ctx: *ctx, flags: *flags, inject: false };
                let ep = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?;
                match aside {
                    None => ep.send(out, &args),
                    Some(aside) => ep.send_aside(out, &args, aside),
                }
            }
            Kept::Recv { ep, from, tag, iov, ctx, flags } => {
                let (tagged, (tag, ignore)) = (tag.is_some(), tag.unwrap_or((0, 0)));
                let args = RecvArgs { from: *from, tagged, tag, ignore, iov, ctx: *ctx, flags: *flags };
                let ep = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?;
                match aside {
                    None => ep.recv(out, &args),
                    Some(aside) => ep.recv_aside(out, &args, aside),
                }
            }
            Kept::Rma { ep, to, write, iov, places, data, ctx, flags } => {
                let (ctx, flags) = (*ctx, *flags);
                let args = RmaArgs { to: *to, write: *write, iov, places, data: *data, ctx, flags, inject: false };
                self.eps.get_mut(ep.0).ok_or(Error::Invalid)?.rma(out, &args, aside)
            }
            Kept::Atomic { ep, to, order, lists, places, ctx, flags } => {
                let [operands, comparands, results] = lists;
                let (to, order, ctx, flags) = (*to, *order, *ctx, *flags);
                let args = AtomicArgs { to, order, operands, comparands, results, places, ctx, flags, inject: false };
                self.eps.get_mut(ep.0).ok_or(Error::Invalid)?.atomic(out, &args, aside)
            }
        }
    }

    /// Work that could not be started ends like work that fails.
    fn fail_deferred(&mut self, item: &Item, why: Error) {
        let aside = match item.tell {
            Tell::Endpoint => None,
            Tell::Counter(cntr) => Some((Aside::new(cntr), item.work.wants_entry())),
        };
        let out = lend!(self);
        if let Some((ep, ctx)) = item.work.endpoint()
            && let Some(ep) = self.eps.get_mut(ep.0)
        {
            ep.never_started(out, ctx, item.work.kind(), aside, why);
        }
        self.rouse();
    }

    /// Takes back what was submitted as `mark` and has not been started. It is not reported.
    ///
    /// # Errors
    /// [`Error::NoMessage`] if there is nothing of that name.
    pub fn cancel_deferred(&mut self, mark: usize) -> Result<()> {
        match self.drop_deferred(|_, item| item.mark == mark) {
            0 => Err(Error::NoMessage),
            _ => Ok(()),
        }
    }

    /// Takes back all that waits in the domain's queue, or all that waits for one counter. It is not reported.
    pub fn flush_deferred(&mut self, cntr: Option<CntrId>) {
        self.drop_deferred(|c, item| item.tell != Tell::Endpoint && cntr.is_none_or(|only| only == c));
    }

    /// An endpoint closes.
    pub(super) fn forget_deferred(&mut self, ep: EpId) {
        if !self.deferred.is_empty() {
            self.drop_deferred(|_, item| item.work.endpoint().is_some_and(|(e, _)| e == ep));
        }
    }

    fn drop_deferred(&mut self, gone: impl Fn(CntrId, &Item) -> bool) -> usize {
        let dropped = self.deferred.take_if(gone);
        for (cntr, item) in &dropped {
            self.unbind(*cntr, item);
        }
        self.look_for_the_unusual();
        dropped.len()
    }

    /// Cancels a triggered operation that has not been started; it completes with [`Error::Cancelled`].
    pub(super) fn cancel_triggered(&mut self, ep: EpId, ctx: UserCtx) -> Result<()> {
        let wanted = |_, item: &Item| item.tell == Tell::Endpoint && item.work.endpoint() == Some((ep, ctx));
        let cancelled = self.deferred.take_if(wanted);
        for (cntr, item) in &cancelled {
            self.unbind(*cntr, item);
            self.fail_deferred(item, Error::Cancelled);
        }
        self.look_for_the_unusual();
        if cancelled.is_empty() { Err(Error::NoMessage) } else { Ok(()) }
    }
}
