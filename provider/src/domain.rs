//! A domain (fi_domain(3)): completion queues, counters and endpoints, driven together. The root of everything a client holds the
//! domain's lock for; it has no lock itself.
//!
//! Any read of a queue or counter makes progress for the whole domain, because clients may sit in only one of their queues.

use crate::completion::counter::Counters;
use crate::completion::cq::{Completion, Cq, CqRead, ErrorEntry};
use crate::config::Config;
use crate::endpoint::{AtomicArgs, Endpoint, EpAttr, Out, RecvArgs, RmaArgs, SendArgs, SharedRx, Surroundings, Yields};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::peer::av::AddressVector;
use crate::peer::name::Name;
use crate::region::{Region, Regions};
use crate::select::profile::Profiles;
use crate::stats::Stats;
use crate::sys::absence::Attended;
use crate::sys::clock::Clock;
use crate::sys::cpu::{wait_a_little, yield_core};
use crate::sys::{fork, membarrier};
use crate::transport::Venue;
use crate::types::{CntrEvents, CntrId, CqId, EpId, UserCtx};
use slab::Slab;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT_INDEX: AtomicU32 = AtomicU32::new(0);

/// A domain.
pub struct Domain {
    owner: fork::Owner,
    config: Arc<Config>,
    log: Log,
    around: Surroundings,
    cqs: Slab<Cq>,
    cntrs: Counters,
    eps: Slab<Endpoint>,
    contexts: Slab<SharedRx>,
    regions: Regions,
    deferred: Deferred,
    /// There are shared contexts or deferred work: turns are longer.
    unusual: bool,
    idle: u64,
    yields: Yields,
    /// The last turn was idle, and others wait for the core.
    tired: bool,
    bed: sleep::Bed,
}

macro_rules! lend {
    ($self:ident) => {
        &mut Out { cqs: &mut $self.cqs, cntrs: &mut $self.cntrs, regions: &$self.regions }
    };
}

mod access;
mod counters;
mod deferred;
mod explain;
mod machine;
mod shared;
mod sleep;

pub use deferred::{Deferral, Tell, Work};
pub use explain::{Movement, Plan, Telling, Told, lending};
pub use sleep::Nap;

use deferred::Deferred;
pub use machine::{Machine, let_in};

impl Domain {
    /// An empty domain.
    pub fn new(config: Arc<Config>, log: Log) -> Domain {
        Domain::with_clock(config, log, Clock::of_process())
    }

    /// An empty domain that takes its time from `clock`.
    pub fn with_clock(config: Arc<Config>, log: Log, clock: Clock) -> Domain {
        let machine = Machine::new(&config, log.clone());
        Domain::at_venue(config, log, clock, Arc::new(machine))
    }

    /// The same domain, the tables of its endpoints made by what was measured here, if something was.
    pub fn with_profiles(mut self, profiles: Arc<Profiles>) -> Domain {
        self.around.profiles = profiles;
        self
    }

    /// An empty domain that takes its time from `clock`, and whose endpoints meet others at `venue`.
    pub fn at_venue(config: Arc<Config>, log: Log, clock: Clock, venue: Arc<dyn Venue>) -> Domain {
        let owner = fork::own();
        let yields = Yields::of(&config);
        let around = Surroundings { clock, venue, profiles: Arc::new(Profiles::off()), absence: Arc::default() };
        Domain {
            owner,
            config,
            log,
            around,
            cqs: Slab::new(),
            cntrs: Counters::default(),
            eps: Slab::new(),
            contexts: Slab::new(),
            regions: Regions::default(),
            deferred: Deferred::default(),
            unusual: false,
            idle: 0,
            yields,
            tired: false,
            bed: Default::default(),
        }
    }

    /// One turn of every endpoint. Never waits; see [`take_tired`](Self::take_tired).
    #[inline]
    pub fn progress(&mut self) {
        if self.owner.is_elsewhere() {
            return;
        }
        self.around.absence.turned();
        let mut work = 0;
        if self.unusual {
            work = self.unusual_turn();
        } else {
            for (_, ep) in &mut self.eps {
                work += ep.progress(lend!(self));
            }
        }
        if work > 0 {
            self.idle = 0;
            return;
        }
        self.idle += 1;
        if self.idle > self.config.spin {
            self.idle_turn();
        }
    }

    /// From now on `turn` is called by a thread when the application has not called for a while and something that it may take for sent is still here;
    /// it is to enter the domain's lock and call [`turn_for_absent`](Self::turn_for_absent), and to say [`Attended::Over`] when there is no domain any more.
    pub fn attend_by(&self, turn: impl Fn() -> Attended + Send + Sync + 'static) {
        self.around.absence.attend_by(turn);
    }

    /// One turn for an application that does not call.
    pub fn turn_for_absent(&mut self) -> Attended {
        if self.owner.is_elsewhere() {
            return Attended::Over;
        }
        let kept = self.eps.iter().any(|(_, ep)| ep.keeps_back());
        // Who sleeps is woken by whatever there is to do.
        let work = if self.bed.is_empty() {
            self.around.absence.turned();
            // Calls are looked at now and then only, by the count of turns: here there are few.
            self.each(|ep, out| ep.progress(out) + ep.look_around(out))
        } else {
            0
        };
        match self.eps.iter().any(|(_, ep)| ep.keeps_back()) {
            false if !kept => Attended::Idle,
            false => Attended::Settled,
            true if work > 0 => Attended::GoesOn,
            true if self.bed.is_empty() => Attended::Waits,
            true => Attended::Asleep,
        }
    }

    /// The turn of a domain with shared contexts or deferred work.
    #[cold]
    fn unusual_turn(&mut self) -> usize {
        let work = self.each(|ep, out| ep.progress(out));
        work + if self.deferred.is_empty() { 0 } else { self.run_deferred() }
    }

    fn look_for_the_unusual(&mut self) {
        self.unusual = !self.contexts.is_empty() || !self.deferred.is_empty();
    }

    #[inline(never)]
    fn idle_turn(&mut self) {
        let crowded = self.yields.now(|| self.eps.iter().any(|(_, ep)| ep.is_crowded()));
        self.tired = crowded;
        if crowded && let Some((_, ep)) = self.eps.iter_mut().next() {
            ep.yielded();
        }
    }

    /// Whether the caller should now give up the core ([`yield_core`](crate::yield_core)), after it has left the domain's
    /// lock: the last turns were idle, and ranks outnumber the cores they share. Asking clears it.
    #[inline]
    pub fn take_tired(&mut self) -> bool {
        std::mem::take(&mut self.tired)
    }

    /// Opens a completion queue.
    pub fn cq_open(&mut self) -> CqId {
        CqId(self.cqs.insert(Cq::default()))
    }

    /// Closes a queue.
    ///
    /// # Errors
    /// [`Error::Busy`] while an endpoint is bound to it.
    pub fn cq_close(&mut self, cq: CqId) -> Result<()> {
        match self.cqs.get(cq.0) {
            Some(q) if q.bound > 0 => Err(Error::Busy),
            Some(_) => {
                self.cqs.remove(cq.0);
                Ok(())
            }
            None => Err(Error::Invalid),
        }
    }

    /// Hands out up to `max` completions, making progress first if fewer are waiting.
    #[inline]
    pub fn cq_read(&mut self, cq: CqId, max: usize, sink: &mut dyn FnMut(&Completion)) -> CqRead {
        if self.cqs.get(cq.0).is_none_or(|q| q.len() < max || max == 0) {
            self.progress();
        }
        let got = self.cqs.get_mut(cq.0).map_or(CqRead::Empty, |q| q.read(max, sink));
        if got != CqRead::Empty {
            self.tired = false;
        }
        got
    }

    /// Takes the error entry at the front of a queue.
    pub fn cq_read_error(&mut self, cq: CqId) -> Option<ErrorEntry> {
        self.cqs.get_mut(cq.0)?.read_error()
    }

    /// Opens an endpoint.
    pub fn ep_open(&mut self, attr: EpAttr) -> Result<EpId> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        // Before the first segment says so, and not on a data path.
        membarrier::register();
        let index = NEXT_INDEX.fetch_add(1, Ordering::Relaxed);
        let mut ep = Endpoint::new(attr, index, self.config.clone(), self.log.clone(), self.around.clone());
        ep.set_news(self.bed.news.clone());
        Ok(EpId(self.eps.insert(ep)))
    }

    fn ep(&mut self, ep: EpId) -> Result<&mut Endpoint> {
        self.eps.get_mut(ep.0).ok_or(Error::Invalid)
    }

    /// Binds an address vector.
    pub fn ep_bind_av(&mut self, ep: EpId, av: Arc<AddressVector>) -> Result<()> {
        self.ep(ep)?.bind_av(&av)
    }

    /// Binds a completion queue; `selective`: only operations with the completion flag produce entries.
    pub fn ep_bind_cq(&mut self, ep: EpId, cq: CqId, transmit: bool, recv: bool, selective: bool) -> Result<()> {
        if !self.cqs.contains(cq.0) {
            return Err(Error::Invalid);
        }
        let before = self.ep(ep)?.bindings().0.filter(|c| *c == cq).count();
        self.ep(ep)?.bind_cq(cq, transmit, recv, selective)?;
        if before == 0 {
            self.cqs[cq.0].bound += 1;
        }
        Ok(())
    }

    /// Binds a counter.
    pub fn ep_bind_cntr(&mut self, ep: EpId, cntr: CntrId, events: CntrEvents) -> Result<()> {
        if !self.cntrs.contains(cntr.0) {
            return Err(Error::Invalid);
        }
        self.ep(ep)?.bind_cntr(cntr, events)?;
        self.count_binding(cntr);
        Ok(())
    }

    /// Names the endpoint and starts to listen.
    pub fn ep_enable(&mut self, ep: EpId) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        self.check_vectors(ep)?;
        let table = self.regions.locator();
        let endpoint = self.ep(ep)?;
        endpoint.enable(table)?;
        if endpoint.counts_remote() {
            self.regions.want_events();
        }
        self.hang_door(ep.0)
    }

    /// Whether something reports what an endpoint sends, and what it receives.
    pub fn ep_directions(&self, ep: EpId) -> (bool, bool) {
        self.eps.get(ep.0).map_or((false, false), Endpoint::directions)
    }

    /// The endpoint's name.
    pub fn ep_name(&self, ep: EpId) -> Result<Name> {
        self.eps.get(ep.0).ok_or(Error::Invalid)?.name()
    }

    /// What an endpoint did so far.
    pub fn ep_stats(&self, ep: EpId) -> Result<Stats> {
        Ok(self.eps.get(ep.0).ok_or(Error::Invalid)?.stats())
    }

    /// A turn before an endpoint is [closed](Self::ep_close): whether to come back for another one, since receivers still live of what clients take for sent. [`ep_close`](Self::ep_close) waits for them, too, but
    /// whoever calls it keeps the domain to himself meanwhile.
    pub fn ep_lingers(&mut self, ep: EpId) -> bool {
        let lingers = !self.owner.is_elsewhere() && self.with_books(ep.0, |closing, out| closing.lingers(out)) == Some(true);
        if lingers {
            self.around.absence.turned();
            self.each(|ep, out| ep.progress(out) + ep.look_around(out));
            self.run_deferred();
        }
        lingers
    }

    /// A turn of all endpoints but one, by whoever waits for something that does not come by itself.
    fn turn_of_all_but(&mut self, but: Option<EpId>) {
        let others: SmallVec<[usize; 4]> = self.eps.iter().map(|(at, _)| at).filter(|at| but != Some(EpId(*at))).collect();
        let turn = |domain: &mut Domain, f: fn(&mut Endpoint, &mut Out<'_>) -> usize| -> usize {
            others.iter().filter_map(|at| domain.with_books(*at, f)).sum()
        };
        if turn(self, |ep, out| ep.progress(out)) == 0 {
            turn(self, |ep, out| ep.look_around(out));
            yield_core();
        }
    }

    /// Delivers what was accepted (within `close_timeout`; if the user has not said that, what clients take for sent as long as its receivers live), says goodbye, forgets posted receives.
    pub fn ep_close(&mut self, ep: EpId) -> Result<()> {
        if !self.eps.contains(ep.0) {
            return Err(Error::Invalid);
        }
        let mut turns = 0;
        while self.ep_lingers(ep) {
            wait_a_little(&mut turns);
        }
        self.forget_deferred(ep);
        if !self.owner.is_elsewhere() {
            let until = self.eps.get(ep.0).map_or(0, Endpoint::may_close_until);
            // The others go on: whoever is to take what this one sends may himself wait for one of them.
            while self.eps.get(ep.0).is_some_and(|closing| closing.delivers(until)) {
                self.turn_of_all_but(None);
            }
            self.with_books(ep.0, |closing, _| closing.say_goodbye());
            while self.eps.get_mut(ep.0).is_some_and(|closing| closing.parts(until)) {
                self.turn_of_all_but(Some(ep));
            }
            self.with_books(ep.0, |closing, out| {
                closing.close();
                if closing.context().is_some() {
                    closing.leave(out);
                }
            });
        }
        let Some(closing) = self.eps.get_mut(ep.0) else { return Err(Error::Invalid) };
        if let Some(context) = closing.context().and_then(|c| self.contexts.get_mut(c)) {
            context.members -= 1;
        }
        let (cqs, cntrs) = closing.bindings();
        for cq in cqs {
            self.cqs[cq.0].bound -= 1;
        }
        for cntr in cntrs {
            if let Some(c) = self.cntrs.get_mut(cntr.0) {
                c.bound -= 1;
            }
        }
        self.eps.remove(ep.0);
        Ok(())
    }

    /// Smallest rest of a multi-receive buffer that is still used, in bytes.
    pub fn ep_min_multi_recv(&self, ep: EpId) -> usize {
        self.eps.get(ep.0).map_or(0, Endpoint::min_multi_recv)
    }

    /// Sets it.
    pub fn ep_set_min_multi_recv(&mut self, ep: EpId, bytes: usize) {
        if let Ok(ep) = self.ep(ep) {
            ep.set_min_multi_recv(bytes);
        }
    }

    /// A lower bound of the sends, reads, writes and atomics that [`Error::Again`] will not answer, whichever peer they go to.
    ///
    /// # Errors
    /// [`Error::BadState`] before the endpoint is enabled.
    pub fn ep_send_room(&self, ep: EpId) -> Result<usize> {
        self.eps.get(ep.0).ok_or(Error::Invalid)?.send_room()
    }

    /// Sends a message.
    #[inline]
    pub fn send(&mut self, ep: EpId, args: &SendArgs<'_>) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let ep = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?;
        ep.send(lend!(self), args)
    }

    /// Posts a receive, or peeks, claims, discards by its flags.
    #[inline]
    pub fn recv(&mut self, ep: EpId, args: &RecvArgs<'_>) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let ep = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?;
        ep.recv(lend!(self), args)
    }

    /// Reads or writes memory of a peer (fi_rma(3)).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn rma(&mut self, ep: EpId, args: &RmaArgs<'_>) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let ep = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?;
        ep.rma(lend!(self), args, None)
    }

    /// Combines values in memory of a peer with ours (fi_atomic(3)).
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Unsupported`] for what fi_atomicvalid denies.
    pub fn atomic(&mut self, ep: EpId, args: &AtomicArgs<'_>) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let ep = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?;
        ep.atomic(lend!(self), args, None)
    }

    /// Lets peers reach memory under a key, or under an unused key if none is given (fi_mr(3)). Returns the key.
    ///
    /// # Errors
    /// [`Error::KeyInUse`].
    pub fn mr_register(&mut self, key: Option<u64>, region: Region) -> Result<u64> {
        let key = key.unwrap_or_else(|| self.regions.free_key());
        self.regions.register(key, region)?;
        Ok(key)
    }

    /// Withdraws a region.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none.
    pub fn mr_close(&mut self, key: u64) -> Result<()> {
        if self.regions.close(key)? {
            self.eps.iter_mut().for_each(|(_, ep)| ep.region_closed(key));
        }
        Ok(())
    }

    /// Counts what peers do to a region (fi_mr_bind): what of [`CntrEvents::REMOTE_READ`] and [`CntrEvents::REMOTE_WRITE`] is named.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such region or counter.
    pub fn mr_bind_cntr(&mut self, key: u64, cntr: CntrId, events: CntrEvents) -> Result<()> {
        if !self.cntrs.contains(cntr.0) {
            return Err(Error::Invalid);
        }
        self.regions.bind_counter(key, cntr, events)
    }

    /// Cancels a posted receive, or a triggered operation that was not started.
    pub fn cancel(&mut self, ep: EpId, ctx: UserCtx) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let posted = self.eps.get_mut(ep.0).ok_or(Error::Invalid)?.cancel(lend!(self), ctx);
        match posted {
            Err(Error::NoMessage) if !self.deferred.is_empty() => self.cancel_triggered(ep, ctx),
            other => other,
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.around.absence.end();
        let open: Vec<usize> = self.eps.iter().map(|(i, _)| i).collect();
        for i in open {
            let _ = self.ep_close(EpId(i));
        }
    }
}
