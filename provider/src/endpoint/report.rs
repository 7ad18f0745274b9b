//! The one place where finished operations become completions and counts.

use crate::completion::counter::Counters;
use crate::completion::cq::{Completion, Cq, ErrorEntry};
use crate::completion::waiter::News;
use crate::error::{Error, Result};
use crate::peer::name::Name;
use crate::region::Regions;
use crate::request::{Aside, Envelope, RecvReq, SendReq, Special, Touched};
use crate::types::{Addr, CntrEvents, CntrId, CompFlags, CqId, Level, OpFlags, UserCtx};
use slab::Slab;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;

/// The domain's queues and counters, lent to an endpoint for one call.
pub struct Out<'a> {
    /// Completion queues.
    pub cqs: &'a mut Slab<Cq>,
    /// Counters.
    pub cntrs: &'a mut Counters,
    /// Memory that peers may reach.
    pub regions: &'a Regions,
}

#[derive(Clone, Copy)]
struct Binding {
    cq: CqId,
    selective: bool,
}

/// Who failed, for error entries.
#[derive(Clone, Copy, Default)]
pub(super) struct Culprit {
    pub name: Option<Name>,
    pub pid: u32,
}

/// A receive that will get nothing (more).
pub(super) struct FailedRecv {
    ctx: UserCtx,
    env: Envelope,
    more: CompFlags,
    /// Of deferred work, and whether an entry is wanted.
    aside: Option<(Aside, bool)>,
}

impl FailedRecv {
    /// One that was not matched. `buffer_back`: a multi-receive buffer, which goes back to the application.
    pub fn unmatched(ctx: UserCtx, tagged: bool, buffer_back: bool) -> FailedRecv {
        let more = if buffer_back { CompFlags::MULTI_RECV } else { CompFlags::empty() };
        FailedRecv { ctx, env: Envelope { tagged, tag: 0, data: None, total: 0 }, more, aside: None }
    }

    /// One whose message broke off. `more` is added to the entry's flags.
    pub fn broken_off(ctx: UserCtx, env: Envelope, more: CompFlags) -> FailedRecv {
        FailedRecv { ctx, env, more, aside: None }
    }

    /// The same, of deferred work, of which an entry may be wanted.
    pub fn aside(self, aside: Option<(Aside, bool)>) -> FailedRecv {
        FailedRecv { aside, ..self }
    }
}

/// What a finished operation of ours counts as.
fn initiated(req: &SendReq) -> CntrEvents {
    if req.flags.contains(CompFlags::READ) {
        CntrEvents::READ
    } else if req.flags.contains(CompFlags::WRITE) {
        CntrEvents::WRITE
    } else {
        CntrEvents::SEND
    }
}

/// Bindings of one endpoint.
pub(super) struct Reporter {
    tx: Option<Binding>,
    rx: Option<Binding>,
    cntrs: SmallVec<[(CntrId, CntrEvents); 2]>,
    source: bool,
    /// Receives are those of a context that several endpoints share: whether they were posted for an entry in any case is known, but not to whose queue it would go.
    shares: bool,
    /// The endpoint's.
    index: u32,
    /// Somebody besides the queues wants to hear of what happens: counters are bound, there is deferred work, or a thread sleeps.
    /// The one word that the hot path tests for all.
    attended: Cell<bool>,
    /// A thread sleeps until there are news.
    listening: Cell<bool>,
    /// There was deferred work.
    asides: Cell<bool>,
    news: Arc<News>,
}

impl Reporter {
    pub fn new(source: bool, index: u32) -> Reporter {
        Reporter {
            tx: None,
            rx: None,
            cntrs: SmallVec::new(),
            source,
            shares: false,
            index,
            attended: Cell::new(false),
            listening: Cell::new(false),
            asides: Cell::new(false),
            news: Arc::default(),
        }
    }

    /// From now on it receives with the books of a context.
    pub fn share(&mut self) {
        self.shares = true;
    }

    /// Whether a message that has come to a receive produces an entry.
    #[inline]
    pub fn tells(&self, req: &RecvReq) -> bool {
        req.report || self.shares && self.wants_recv(OpFlags::empty())
    }

    /// The endpoint's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// News go to those who sleep on this.
    pub fn set_news(&mut self, news: Arc<News>) {
        self.news = news;
    }

    /// Whether somebody sleeps, or will in a moment, until there are news.
    pub fn listen(&self, on: bool) {
        self.listening.set(on);
        self.attended.set(on || self.asides.get() || !self.cntrs.is_empty());
    }

    /// There will be operations that are deferred work.
    pub fn expect_asides(&self) {
        self.asides.set(true);
        self.attended.set(true);
    }

    /// Something happened that a sleeper may wait for.
    pub fn rouse(&self) {
        if self.listening.get() {
            // Each sleeper has its edge now; who sleeps again listens again.
            self.listen(false);
            self.news.raise();
        }
    }

    pub fn bind_cq(&mut self, cq: CqId, transmit: bool, recv: bool, selective: bool) -> Result<()> {
        if !(transmit || recv) || (transmit && self.tx.is_some()) || (recv && self.rx.is_some()) {
            return Err(Error::Invalid);
        }
        let binding = Some(Binding { cq, selective });
        if transmit {
            self.tx = binding;
        }
        if recv {
            self.rx = binding;
        }
        Ok(())
    }

    pub fn bind_cntr(&mut self, cntr: CntrId, events: CntrEvents) {
        self.cntrs.push((cntr, events));
        self.attended.set(true);
    }

    pub fn bindings(&self) -> (impl Iterator<Item = CqId>, impl Iterator<Item = CntrId>) {
        let rx = self.rx.filter(|r| self.tx.is_none_or(|t| t.cq != r.cq));
        (self.tx.into_iter().chain(rx).map(|b| b.cq), self.cntrs.iter().map(|c| c.0))
    }

    /// Whether what goes out, and what comes in, has a queue or a counter; of what does not send `messages`, one of what it does to memory of peers will do.
    pub fn directions(&self, messages: bool) -> (bool, bool) {
        let counted = |e| self.cntrs.iter().any(|c| c.1.intersects(e));
        let outward = if messages { CntrEvents::SEND } else { CntrEvents::SEND | CntrEvents::READ | CntrEvents::WRITE };
        (self.tx.is_some() || counted(outward), self.rx.is_some() || counted(CntrEvents::RECV))
    }

    /// Whether the source of messages is wanted.
    #[inline]
    pub fn wants_source(&self) -> bool {
        self.source
    }

    /// Whether a send with these flags produces an entry.
    #[inline]
    pub fn wants_send(&self, flags: OpFlags) -> bool {
        self.tx.is_some_and(|b| !b.selective || flags.contains(OpFlags::COMPLETION))
    }

    /// Whether a receive with these flags produces an entry.
    #[inline]
    pub fn wants_recv(&self, flags: OpFlags) -> bool {
        self.rx.is_some_and(|b| !b.selective || flags.contains(OpFlags::COMPLETION))
    }

    /// Counts, and tells those who sleep. Called for everything that happens if [`attended`](Self::attended).
    #[inline]
    fn count(&self, out: &mut Out<'_>, event: CntrEvents, failed: bool) {
        for (id, events) in &self.cntrs {
            if events.contains(event)
                && let Some(c) = out.cntrs.get_mut(id.0)
            {
                if failed { c.err += 1 } else { c.ok += 1 }
            }
        }
        self.rouse();
    }

    /// Counts an operation of ours; deferred work as [`Aside`] says.
    #[inline]
    fn count_own(&self, out: &mut Out<'_>, event: CntrEvents, failed: bool, report: bool, aside: Option<Aside>) {
        match aside {
            None => self.count(out, event, failed),
            Some(aside) => self.count_aside(out, event, failed, report, aside),
        }
    }

    #[cold]
    fn count_aside(&self, out: &mut Out<'_>, event: CntrEvents, failed: bool, report: bool, aside: Aside) {
        if report {
            self.count(out, event, failed);
        }
        if let Some(c) = aside.cntr().and_then(|id| out.cntrs.get_mut(id.0)) {
            if failed { c.err += 1 } else { c.ok += 1 }
        }
        self.rouse();
    }

    #[inline]
    pub fn sent(&self, out: &mut Out<'_>, req: &SendReq) {
        if self.attended.get() {
            self.count_own(out, initiated(req), false, req.report, req.special.aside());
        }
        if req.report
            && let Some(b) = self.tx
            && let Some(cq) = out.cqs.get_mut(b.cq.0)
        {
            cq.push(Completion { ctx: req.ctx, flags: req.flags, len: 0, buf: 0, data: 0, tag: 0, src: Addr::UNSPEC });
        }
    }

    #[cold]
    pub fn send_failed(&self, out: &mut Out<'_>, req: &SendReq, error: Error, culprit: Culprit) {
        let aside = req.special.aside();
        self.count_own(out, initiated(req), true, req.report, aside);
        if req.special.is_quiet() || (aside.is_some() && !req.report) {
            return;
        }
        let c = Completion { ctx: req.ctx, flags: req.flags, len: 0, buf: 0, data: 0, tag: 0, src: Addr::UNSPEC };
        let entry = ErrorEntry { c, olen: 0, error, peer: culprit.name, detail: culprit.pid };
        if let Some(cq) = self.tx.and_then(|b| out.cqs.get_mut(b.cq.0)) {
            cq.push_error(entry);
        }
    }

    /// A triggered operation, or deferred work, could not be started. `flags`: what it would have been.
    #[cold]
    pub fn never_started(&self, out: &mut Out<'_>, ctx: UserCtx, flags: CompFlags, aside: Option<(Aside, bool)>, why: Error) {
        if flags.contains(CompFlags::RECV) {
            let failed = FailedRecv::unmatched(ctx, flags.contains(CompFlags::TAGGED), false).aside(aside);
            self.recv_failed(out, failed, why, Culprit::default());
        } else {
            let (special, report) = aside.map_or((Special::NOTHING, true), |(aside, report)| (aside.into(), report));
            let req = SendReq { ctx, level: Level::Transmit, report, special, flags };
            self.send_failed(out, &req, why, Culprit::default());
        }
    }

    fn record(ctx: UserCtx, env: &Envelope, len: usize, src: Addr) -> Completion {
        let mut flags = CompFlags::RECV | if env.tagged { CompFlags::TAGGED } else { CompFlags::MSG };
        if env.data.is_some() {
            flags |= CompFlags::REMOTE_CQ_DATA;
        }
        Completion { ctx, flags, len, buf: 0, data: env.data.unwrap_or(0), tag: env.tag, src }
    }

    /// A receive finished with `placed` bytes. `more` is added to its flags; `buf` is where a multi-receive message begins.
    #[inline]
    pub fn received(&self, out: &mut Out<'_>, req: &RecvReq, env: &Envelope, placed: usize, src: Addr, more: CompFlags) {
        let mut c = Self::record(req.ctx, env, placed, src);
        c.flags |= more;
        if let Some(first) = req.iov.first() {
            c.buf = first.address();
        }
        if placed < env.total {
            self.truncated(out, c, env.total - placed, req);
            return;
        }
        if self.attended.get() {
            self.count_own(out, CntrEvents::RECV, false, req.report, req.special.aside());
        }
        if self.tells(req)
            && let Some(cq) = self.rx.and_then(|b| out.cqs.get_mut(b.cq.0))
        {
            cq.push(c);
        }
    }

    #[cold]
    fn truncated(&self, out: &mut Out<'_>, c: Completion, olen: usize, req: &RecvReq) {
        self.recv_error(out, ErrorEntry { c, olen, error: Error::Truncated, peer: None, detail: 0 }, req.aside());
    }

    /// `aside`: deferred work, and whether it wants an entry.
    #[cold]
    fn recv_error(&self, out: &mut Out<'_>, entry: ErrorEntry, aside: Option<(Aside, bool)>) {
        let report = aside.is_none_or(|(_, report)| report);
        self.count_own(out, CntrEvents::RECV, true, report, aside.map(|a| a.0));
        if report && let Some(cq) = self.rx.and_then(|b| out.cqs.get_mut(b.cq.0)) {
            cq.push_error(entry);
        }
    }

    /// A receive failed, before or after it was matched.
    #[cold]
    pub fn recv_failed(&self, out: &mut Out<'_>, failed: FailedRecv, error: Error, culprit: Culprit) {
        let c = Self::record(failed.ctx, &failed.env, 0, Addr::UNSPEC);
        let c = Completion { flags: c.flags | failed.more, ..c };
        let entry = ErrorEntry { c, olen: 0, error, peer: culprit.name, detail: culprit.pid };
        self.recv_error(out, entry, failed.aside);
    }

    /// A peer read or wrote our memory; with data, that is an entry.
    pub fn touched(&self, out: &mut Out<'_>, touched: &Touched) {
        let Touched { write, fetch, len, key, data } = *touched;
        let event = |write| if write { CntrEvents::REMOTE_WRITE } else { CntrEvents::REMOTE_READ };
        // fi_endpoint(3): fetching atomics count as reads; fi_mr(3): as what changes the region.
        self.count(out, event(!fetch), false);
        for cntr in out.regions.counters(key, event(write)) {
            if let Some(c) = out.cntrs.get_mut(cntr.0) {
                c.ok += 1;
            }
        }
        if let Some(data) = data
            && let Some(cq) = self.rx.and_then(|b| out.cqs.get_mut(b.cq.0))
        {
            let flags = CompFlags::RMA | CompFlags::REMOTE_WRITE | CompFlags::REMOTE_CQ_DATA;
            cq.push(Completion { ctx: UserCtx(0), flags, len, buf: 0, data, tag: 0, src: Addr::UNSPEC });
        }
    }

    /// Whether some counter counts what peers do.
    pub fn counts_remote(&self) -> bool {
        self.cntrs.iter().any(|c| c.1.intersects(CntrEvents::REMOTE_READ | CntrEvents::REMOTE_WRITE))
    }

    /// A peek found (and perhaps claimed or dropped) a message.
    pub fn peeked(&self, out: &mut Out<'_>, ctx: UserCtx, report: bool, env: &Envelope, src: Addr, more: CompFlags) {
        let mut c = Self::record(ctx, env, env.total, src);
        c.flags |= more;
        self.rouse();
        if report && let Some(cq) = self.rx.and_then(|b| out.cqs.get_mut(b.cq.0)) {
            cq.push(c);
        }
    }

    /// A peek found nothing: that is no receive, so it counts nowhere.
    pub fn nothing_found(&self, out: &mut Out<'_>, ctx: UserCtx, tagged: bool) {
        let env = Envelope { tagged, tag: 0, data: None, total: 0 };
        let c = Self::record(ctx, &env, 0, Addr::UNSPEC);
        self.rouse();
        if let Some(cq) = self.rx.and_then(|b| out.cqs.get_mut(b.cq.0)) {
            cq.push_error(ErrorEntry { c, olen: 0, error: Error::NoMessage, peer: None, detail: 0 });
        }
    }

    /// A multi-receive buffer that was cancelled while messages were coming in goes back to the application.
    #[cold]
    pub fn buffer_cancelled(&self, out: &mut Out<'_>, ctx: UserCtx, tagged: bool) {
        self.recv_failed(out, FailedRecv::unmatched(ctx, tagged, true), Error::Cancelled, Culprit::default());
    }

    /// A multi-receive buffer goes back to the application without a message.
    pub fn buffer_released(&self, out: &mut Out<'_>, ctx: UserCtx) {
        let flags = CompFlags::MULTI_RECV;
        self.rouse();
        let c = Completion { ctx, flags, len: 0, buf: 0, data: 0, tag: 0, src: Addr::UNSPEC };
        if let Some(cq) = self.rx.and_then(|b| out.cqs.get_mut(b.cq.0)) {
            cq.push(c);
        }
    }
}
