//! An endpoint (fi_endpoint(3)): a name, peers, posted receives, and the rings that it polls. One verb per file.
//!
//! | file | what it does |
//! |---|---|
//! | [`send`](self) `send.rs` | the hot way down: route, choose, start |
//! | `short.rs` | both hot ways for what most messages are: one record, in one piece, to a peer that is there, for the oldest receive |
//! | `rma.rs` | memory of peers, and what peers do to ours |
//! | `recv.rs` | post, peek, claim, discard, cancel |
//! | `arrive.rs` | the hot way up: poll rings, match, deliver |
//! | `progress.rs` | one turn: hot rings, the bell, streams, acknowledgements, sockets |
//! | `sleep.rs` | what must be so before a thread may sleep, and for how long |
//! | `contact.rs` | first contact, from both sides |
//! | `ask.rs` | whether those live from which a receive waits for a first word |
//! | `depart.rs` | a peer is gone; this endpoint closes |
//! | `peers.rs` | the peer table and the routes from address handles |
//! | `plan.rs` | how an operation would go, and why |
//! | `tally.rs`, `explain.rs`, `history.rs`, `circumstances.rs` | what went which way to a peer; why; both told at the end, with what else decided |
//! | `report.rs` | the one place where operations become completions |
//! | `lend.rs`, `private.rs` | memory that peers may map, and what they let us map; buffers that are known to be no such memory |
//! | `crowd.rs` | whether ranks outnumber the cores they share |
//! | `books.rs`, `shared.rs` | posted receives and unexpected messages; those of a shared receive context |
//!
//! Everything is `&mut self`: the lock, if there is one, is around the domain. Completions go to queues that the
//! domain owns and lends in ([`Out`]).

mod arrive;
mod ask;
mod books;
mod circumstances;
mod contact;
mod crowd;
mod depart;
mod explain;
mod history;
mod invite;
mod lend;
mod peers;
mod plan;
mod private;
mod progress;
mod recv;
mod report;
mod rma;
mod send;
mod shared;
mod short;
mod sleep;
mod tally;

pub use circumstances::{Told, lending};
pub use history::Telling;
pub use plan::{Movement, Plan};
pub use progress::SOCKETS_EVERY;
pub use recv::RecvArgs;
pub use report::Out;
pub use rma::{AtomicArgs, RmaArgs};
pub use send::SendArgs;
pub(crate) use shared::SharedRx;
pub(crate) use sleep::{Patience, UNFENCED};

use crate::config::Config;
use crate::config::network::Secret;
use crate::error::{Error, Result};
use crate::log::{Log, Seldom};
use crate::mem::atomic::AtomicU64;
use crate::mem::pool::Pool;
use crate::mem::shared::{SharedMem, SharedWord};
use crate::peer::av::{AddressVector, BoundVector};
use crate::peer::here::Here;
use crate::peer::name::{Name, Service};
use crate::request::{Aside, RecvReq, Special};
use crate::select::network::{self, FarTable};
use crate::select::profile::Profiles;
use crate::select::{Selection, record_max};
use crate::shm::bell::Bell;
use crate::shm::segment::{self, Shape};
use crate::stats::Stats;
use crate::sys::absence::Absence;
use crate::sys::clock::Clock;
use crate::sys::{cpu, host, shortage};
use crate::transport::{Door, Event, Guessed, Handed, Reach, Venue};
use crate::types::{CntrEvents, CntrId, CompFlags, CqId, INJECT_MAX, INLINE_MAX, OpFlags, PeerId, UserCtx};
use books::{Books, HeldMsg, Matcher};
use crowd::Crowd;
pub(crate) use crowd::Yields;
use lend::Terms;
use peers::{Peer, Peers};
use private::Private;
use report::Reporter;
use shared::Member;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

/// How an endpoint is opened.
#[derive(Clone, Debug)]
pub struct EpAttr {
    /// Default flags of sends.
    pub tx_flags: OpFlags,
    /// Default flags of receives.
    pub rx_flags: OpFlags,
    /// Report the sender of each message (FI_SOURCE).
    pub source: bool,
    /// Receives may name a source (FI_DIRECTED_RECV); else it is ignored.
    pub directed_recv: bool,
    /// It sends messages: something must report that.
    pub sends: bool,
    /// It reaches for memory of peers: something must report that.
    pub reaches: bool,
    /// It receives: something must report that.
    pub receives: bool,
    /// Untagged messages are used.
    pub msg: bool,
    /// Tagged messages are used.
    pub tagged: bool,
    /// Listen at this service, so that peers can find the endpoint by address and port.
    pub service: Option<Service>,
    /// The job's key, if the application has one; empty: that of the configuration, if there is one.
    pub auth_key: Secret,
    /// Longest message whose buffer is the caller's again at once (`INLINE_MAX` to `INJECT_MAX`; what is less or more counts as these).
    pub inject_max: usize,
}

/// The bell that peers ring for this endpoint, made at first contact.
struct OwnBell {
    handed: Handed,
    bell: Bell<SharedMem>,
}

/// A ring that every poll looks at: the word that will become non-zero, without a detour through the peer table.
struct Watch {
    id: PeerId,
    /// The word that its next record will make non-zero.
    word: SharedWord,
}

/// Polling state: which rings are looked at directly, which by bell and turn.
#[derive(Default)]
struct Poll {
    hot: Vec<Watch>,
    cold: Vec<PeerId>,
    turn: usize,
    tick: u64,
    idle: u64,
    /// The core pauses for a moment in idle turns.
    pauses: bool,
    /// When the clock was read last, and the tick at which it will be read again.
    looked_at: u64,
    /// What was noted up to then, the tick, and whether a thread slept in this domain since.
    notes: u64,
    clock_tick: u64,
    slept: bool,
    /// A time after which all hot rings were seen empty: what is in one was written since. 0: none is known.
    empty_at: u64,
    clock_at: u64,
    sockets_at: u64,
    /// When its sockets are looked at again, and how far such looks are apart.
    door_at: u64,
    door_every: u64,
    /// Epoch of the address vector at the last census.
    census: u64,
    /// Peers with control records or fragments to write.
    busy: Vec<PeerId>,
    /// Peers with sends that wait for an acknowledgement.
    ack_waiters: Vec<PeerId>,
    /// Peers still to be called.
    dialing: Vec<PeerId>,
    /// Peers that a receive names and nobody has heard of, and since when; oldest first.
    awaited: VecDeque<(u64, PeerId)>,
    /// When some of them may be called.
    ask_at: u64,
    /// Peers whose socket ended; gone once their ring is drained.
    ending: Vec<PeerId>,
    /// There are peers on other hosts: the door has something to do in each turn.
    network: bool,
    /// Of what came from other hosts something is still to be read.
    behind: bool,
    /// Memory for what happens at the door.
    events: Vec<Event>,
    /// Peers that must hear that something is not lent to them any more, or have not read it.
    recalling: Vec<PeerId>,
}

/// What an endpoint has around it: the machine, or a simulation.
#[derive(Clone)]
pub(crate) struct Surroundings {
    /// Its time.
    pub clock: Clock,
    /// Where it meets others.
    pub venue: Arc<dyn Venue>,
    /// What was measured on it.
    pub profiles: Arc<Profiles>,
    /// Whoever keeps something back says so there.
    pub absence: Arc<Absence>,
}

/// An endpoint. See the module documentation.
pub struct Endpoint {
    attr: EpAttr,
    config: Arc<Config>,
    log: Log,
    complaints: Seldom,
    /// What was insisted on: once of each kind.
    insisted: Vec<Error>,
    /// What the kernel refuses was told once.
    kernel_told: bool,
    clock: Clock,
    av: Option<BoundVector>,
    name: Option<Name>,
    here: Option<Here>,
    index: u32,
    venue: Arc<dyn Venue>,
    absence: Arc<Absence>,
    door: Option<Box<dyn Door>>,
    bell: Option<OwnBell>,
    selection: Selection,
    /// The tables for peers on other hosts; a peer knows its own.
    far: Vec<FarTable>,
    /// Counts uses of what peers lent.
    uses: Arc<AtomicU64>,
    profiles: Arc<Profiles>,
    terms: Terms,
    private: Private,
    peers: Peers,
    books: Books,
    /// Bound to a shared receive context, whose books it works with while they are lent.
    member: Option<Member>,
    report: Reporter,
    pool: Pool,
    poll: Poll,
    /// The nap that peers are told of; 0: awake (`sleep.rs`).
    nap: u64,
    /// A copy was made of what a client takes for sent, and since then it was not seen that none is here.
    copied: Cell<bool>,
    /// Since when its closing waits for receivers; `None` once that was told.
    lingers: Option<u64>,
    crowd: Crowd,
    /// What is not counted by peer.
    stats: Stats,
}

impl Endpoint {
    /// A new endpoint, the `index`-th of its process. It cannot be reached before [`enable`](Self::enable).
    pub(crate) fn new(mut attr: EpAttr, index: u32, config: Arc<Config>, log: Log, surroundings: Surroundings) -> Endpoint {
        let Surroundings { clock, venue, profiles, absence } = surroundings;
        attr.inject_max = attr.inject_max.clamp(INLINE_MAX, INJECT_MAX);
        Endpoint {
            selection: Selection::tuned(&config, record_max(&config), profiles.standing(&config, &log).tuned()),
            uses: Arc::default(),
            far: network::tables(&config, profiles.standing(&config, &log)),
            profiles,
            terms: Terms::of(&config),
            private: Private::default(),
            report: Reporter::new(attr.source, index),
            poll: Poll { pauses: config.pause != 0, ..Poll::default() },
            copied: Cell::new(false),
            attr,
            config,
            log,
            complaints: Seldom::default(),
            insisted: Vec::new(),
            kernel_told: false,
            clock,
            av: None,
            name: None,
            here: None,
            index,
            venue,
            absence,
            door: None,
            bell: None,
            peers: Peers::default(),
            books: Books::new(),
            member: None,
            pool: Pool::default(),
            nap: 0,
            lingers: Some(0),
            crowd: Crowd::default(),
            stats: Stats::default(),
        }
    }

    /// Uses `av` to resolve handles.
    pub(crate) fn bind_av(&mut self, av: &Arc<AddressVector>) -> Result<()> {
        if self.av.is_some() || self.name.is_some() {
            return Err(Error::BadState);
        }
        self.av = Some(av.bind());
        Ok(())
    }

    /// Reports sends or receives (or both) to `cq`. Not twice for one direction, not after enable.
    pub(crate) fn bind_cq(&mut self, cq: CqId, transmit: bool, recv: bool, selective: bool) -> Result<()> {
        if self.name.is_some() {
            return Err(Error::BadState);
        }
        self.report.bind_cq(cq, transmit, recv, selective)
    }

    /// Counts events of this endpoint in `cntr`.
    pub(crate) fn bind_cntr(&mut self, cntr: CntrId, events: CntrEvents) -> Result<()> {
        if self.name.is_some() {
            return Err(Error::BadState);
        }
        self.report.bind_cntr(cntr, events);
        Ok(())
    }

    /// The queues and counters that it is bound to.
    pub(crate) fn bindings(&self) -> (impl Iterator<Item = CqId>, impl Iterator<Item = CntrId>) {
        self.report.bindings()
    }

    /// Gives the endpoint its name and starts to listen.
    pub(crate) fn enable(&mut self, table: u64) -> Result<()> {
        if self.name.is_some() {
            return Ok(());
        }
        let (starts, receives) = self.directions();
        // Receives of a shared context are reported here, too.
        if (self.attr.sends || self.attr.reaches) && !starts || (self.attr.receives || self.member.is_some()) && !receives {
            return Err(Error::NoQueue);
        }
        if self.av.is_none() {
            return Err(Error::NoAddresses);
        }
        let named = |service| Name::new(self.venue.random() | 1, self.index, host::id(), service).with_table(table);
        let mut name = named(self.attr.service);
        let key = &self.attr.auth_key;
        let mut door = match self.venue.open_with_key(&name, key) {
            Err(Error::AddressInUse) if contact::own_service(self.attr.service) => {
                // Another endpoint of this process was opened from the same info and has the service; this one
                // can be reached by its name.
                name = named(None);
                self.venue.open_with_key(&name, key)?
            }
            other => other?,
        };
        if let Some(service) = name.service() {
            contact::claim_service(service);
        }
        if let Some(place) = door.place() {
            name = name.at(&place.addresses, place.port);
        }
        if self.config.shm == 0 {
            name = name.network_only();
        }
        door.note_at(&self.absence);
        if self.config.tcp != 0
            && let Some(lessons) = self.profiles.lessons(&self.config, &self.log)
        {
            door.learn(lessons);
        }
        self.door = Some(door);
        self.here = name.identity().map(Here::note);
        self.name = Some(name);
        self.crowd = Crowd::new(cpu::allowed());
        self.log.info(|| {
            let s = &self.selection;
            format!(
                "endpoint {name} is open; at most {} bytes of ring for each peer and direction; protocols by size:\n{s}",
                segment::bytes_for(self.config.ring_size)
            )
        });
        self.tell_of_loans();
        Ok(())
    }

    /// Whether something reports what it starts, and what it receives.
    pub(crate) fn directions(&self) -> (bool, bool) {
        self.report.directions(self.attr.sends)
    }

    /// Whether a counter of it counts what peers do to our memory.
    pub(crate) fn counts_remote(&self) -> bool {
        self.report.counts_remote()
    }

    /// Its name, once enabled.
    pub(crate) fn name(&self) -> Result<Name> {
        self.name.ok_or(Error::BadState)
    }

    /// Smallest rest of a multi-receive buffer that is still used.
    pub(crate) fn min_multi_recv(&self) -> usize {
        self.books.min_multi_recv
    }

    /// Sets it; applies to buffers posted later.
    pub(crate) fn set_min_multi_recv(&mut self, bytes: usize) {
        self.books.min_multi_recv = bytes;
    }

    /// A triggered operation, or deferred work, which would have been what `flags` say, could not be started: it completes with why. `aside`: who hears of deferred work, and whether an entry
    /// is wanted, too.
    pub(crate) fn never_started(
        &self,
        out: &mut Out<'_>,
        ctx: UserCtx,
        flags: CompFlags,
        aside: Option<(Aside, bool)>,
        why: Error,
    ) {
        self.report.never_started(out, ctx, flags, aside, why);
    }

    /// What it did so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        (stats.lanes, stats.striped) = self.door.as_ref().map_or((0, 0), |door| door.lanes());
        [stats.zerocopy, stats.zerocopy_registered, stats.zerocopy_copied] =
            self.door.as_ref().map_or([0; 3], |door| door.zerocopy());
        for id in self.peers.ids() {
            let peer = self.peers.get(id);
            peer.tally.add_to(&mut stats, self.table(peer));
            let Guessed { right, wrong, placed, moved, stops, paused: _ } = peer.guessed();
            stats.guessed += right;
            stats.misguessed += wrong;
            stats.guess_placed += placed;
            stats.guess_moved += moved;
            stats.guess_stops += stops;
        }
        stats
    }

    /// The table for a peer.
    fn table(&self, peer: &Peer) -> &Selection {
        table(&self.selection, &self.far, peer)
    }

    /// What a new segment for a kind of peer consists of.
    fn shape(&mut self, reach: Reach) -> Shape {
        match reach {
            Reach::Host => {
                self.take_census();
                Shape::for_one_of(self.crowd.others(), self.config.ring_size, self.config.ring_memory, self.config.opens_rings())
            }
            Reach::Network => Shape::without_cells(segment::bytes_for(self.config.tcp_ring_size)),
        }
    }

    fn own_bell(&mut self) -> Result<&OwnBell> {
        if self.bell.is_none() {
            let door = self.door.as_mut().ok_or(Error::BadState)?;
            let (handed, mem) = door.bell().map_err(|why| {
                shortage::tell_of_memory(&self.log, why, || "no memory for what wakes this endpoint".into());
                Error::NoResources
            })?;
            self.bell = Some(OwnBell { handed, bell: Bell::new(mem) });
        }
        self.bell.as_ref().ok_or(Error::NoResources)
    }
}

/// The table for a peer.
#[inline]
fn table<'a>(selection: &'a Selection, far: &'a [FarTable], peer: &Peer) -> &'a Selection {
    if peer.reach == Reach::Host { selection } else { &far[usize::from(peer.far)].selection }
}

/// A request for a plain buffer.
#[inline]
fn request(ctx: UserCtx, report: bool, iov: crate::mem::user::UserIov, aside: Option<Aside>) -> RecvReq {
    let cap = crate::mem::user::total_len(&iov);
    RecvReq { ctx, report, iov, cap, special: aside.map_or(Special::NOTHING, Special::from) }
}
