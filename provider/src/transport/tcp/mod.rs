//! Peers on other hosts: one TCP connection, mirrored rings, payload in place (`docs/adr/0019-tcp.md`).
//!
//! Between hosts a ring cannot be shared, so it is *mirrored*: the sender writes records into its own segment as it does for a peer of the same
//! host, and the connection carries whole records away, as many as there are, in one frame; the receiver's end writes them into
//! a private copy, from which the engine reads as ever. Acknowledgements and credit, which processes of one host read in each other's
//! segment, stand in every frame's head. So inline, eager, streamed, one-sided and atomic records work unchanged, small messages
//! coalesce by themselves, and nothing above this module has a second way to do things. Long messages are the exception: what the
//! receiver has asked for goes from the application's buffer to the application's buffer ([`InPlace`]).
//!
//! ```text
//! caller                                listener
//!   connect ──────────────────────────▶ accept
//!   hello ────────────────────────────▶ who is it? a ring for it
//!         ◀──────────────────────────── hello, or a refusal
//!   frame, frame … ───────────────────▶ frames of records, payload, news (`wire/frame.rs`)
//!         ◀──────────────────────────── frames
//! ```
//! Rings are carried once both hellos are said. If both call at once, the call of the smaller identity counts, and the other one is refused.
//!
//! | file | what it does |
//! |---|---|
//! | `mod.rs` | connections, whose turn it is |
//! | `reception.rs` | where callers arrive: one listener for the endpoints of a process |
//! | `strangers.rs` | who called and has not said whom he wants |
//! | `dial.rs` | whom we call |
//! | `call.rs` | one call: one address after the other |
//! | `connection/` | one connection: a [`Line`](super::Line) |
//! | `outgoing/`, `incoming/` | its two halves |
//! | `favourite.rs` | who is read without asking |
//! | `greeting.rs` | hellos as they come |
//! | `expected.rs` | where payload goes, and which of it is there |
//! | `bursts.rs` | whether a message waits for those behind it |
//! | `bundle.rs`, `lane.rs` | long messages in pieces by several connections |
//! | `lanes.rs`, `meter.rs` | by how many: as many as were measured to pay |
//! | `lessons.rs` | what connections found out about their link, for the next ones |
//! | `guesses.rs` | whether guessing where bytes belong pays |
//! | `office.rs` | what they share |
//! | `stream.rs`, `session.rs` | the socket, plain or encrypted |
//! | `proof.rs` | that both know the job's key |
//! | `zerocopy/` | payload that the kernel does not copy |
//! | `mirror.rs` | the other side's ring as it is here |

mod bundle;
mod bursts;
#[cfg(test)]
mod bursts_tests;
mod call;
mod connection;
mod dial;
mod doubt;
mod expected;
mod favourite;
mod greeting;
mod guesses;
mod haste;
mod incoming;
mod lane;
mod lanes;
#[cfg(test)]
mod laps_tests;
mod lessons;
#[cfg(test)]
mod little_tests;
mod meter;
mod mirror;
mod office;
mod outgoing;
mod proof;
#[cfg(test)]
mod proof_tests;
mod reception;
mod session;
mod stop;
mod strangers;
mod stream;
#[cfg(test)]
mod tests;
mod zerocopy;

use super::{Bulk, Event, NoCall};
use crate::config::network::ZeroCopy;
use crate::error::Error;
use crate::peer::name::{Addresses, Identity, Name};
use crate::sys::absence::Absence;
use crate::sys::clock::Clock;
use crate::sys::poller::Poller;
use crate::sys::tcp;
use crate::types::PeerId;
use crate::wire::version;
use call::Call;
use connection::{Connection, Origin, Read};
use dial::CALL_PATIENCE;
use favourite::Favourite;
use guesses::Guesses;
pub use lessons::{By, Copies, Lanes, Lesson, Lessons, MOST_LANES, MOST_LINKS, SIZES, WAYS};
use office::Office;
pub use outgoing::ENOUGH;
pub use proof::Guard;
pub use reception::no_port;
use reception::{ARRIVED, Place};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use slab::Slab;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use stream::Stream;
pub use zerocopy::Sums;

/// Nanoseconds between looks at the health of connections, at most.
pub const HEALTH_EVERY: u64 = 500_000_000;
/// Nanoseconds that may be slept while there are connections: whoever sleeps looks so much later.
pub const HEALTH_NAP: u64 = 250_000_000;
/// What a shorter patience is divided by for that.
const LOOKS: u64 = 8;
/// Nanoseconds within which something of ours usually follows that tells the other side what we have read.
pub const OWED_FOR: u64 = 100_000;
/// Nanoseconds between looks at what is owed to all.
const SWEEP_EVERY: u64 = 2_000_000;

/// What the kernel says of registered buffers.
const RING: u64 = u64::MAX - 1;

/// How the network is used. Endpoints of a process for which all of this is the same have one port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// Where to listen, at one port of all of these; nothing: at all addresses.
    pub at: Addresses,
    /// Ports to listen at, and to call from, also from the one that is listened at; `None`: any.
    pub ports: Option<RangeInclusive<u16>>,
    /// Milliseconds without a sign of life after which a peer counts as gone.
    pub patience: u64,
    /// Connections of a pair for long messages; 0: as many as are measured to pay.
    pub lanes: usize,
    /// The job's key, which everybody must prove to know; `None`: nobody is asked.
    pub guard: Option<Guard>,
    /// Which payload leaves without a copy.
    pub zerocopy: ZeroCopy,
    /// Connections within this host count as such to others. **For tests only**: they find nothing out else.
    pub afar: bool,
}

/// The network side of one endpoint's door.
pub struct Tcp {
    office: Arc<Office>,
    place: Place,
    terms: Terms,
    /// By slot; who owns a connection is its peer.
    connections: Slab<Weak<Connection>>,
    /// By names of others' choice: the map is keyed.
    calls: HashMap<Name, Call>,
    clock: Clock,
    /// Connections with payload that waited for the engine when they were read last. Each is read once more, also if the engine has taken it meanwhile: what that
    /// completed besides is told then.
    parked: Vec<u32>,
    /// Read lately, and when: the other side may have to be told what of it was consumed.
    owing: Vec<(u32, u64)>,
    sweep_at: u64,
    tokens: Vec<u64>,
    favourite: Favourite,
    health_at: u64,
    redial_at: u64,
    random: u16,
}

impl Tcp {
    /// The endpoint `who` listens: at `port`, by itself; if that is 0, with the others of this process that listen on the same terms.
    ///
    /// # Errors
    /// `EADDRINUSE`, and what else the kernel says.
    pub fn open(terms: Terms, who: Identity, port: u16, random: u64) -> Result<Tcp, Errno> {
        let office = Arc::new(Office::new(terms.patience, terms.zerocopy)?);
        let place = Place::take(&terms, port, random as u16, who, &office)?;
        Ok(Tcp {
            office,
            place,
            terms,
            connections: Slab::new(),
            calls: HashMap::new(),
            clock: Clock::machine(),
            parked: Vec::new(),
            owing: Vec::new(),
            sweep_at: 0,
            tokens: Vec::new(),
            favourite: Favourite::default(),
            health_at: 0,
            redial_at: 0,
            random: random as u16,
        })
    }

    /// The port that it listens at.
    pub fn port(&self) -> u16 {
        self.place.port()
    }

    /// Whether it listens at this address, if it was told at which.
    pub fn listens_at(&self, ip: IpAddr) -> bool {
        self.place.listens_at(ip)
    }

    /// Endpoints of this process that listen there, this one included.
    pub fn endpoints(&self) -> usize {
        self.place.endpoints()
    }

    /// Whether there is a connection, or one is being made.
    pub fn has_connections(&self) -> bool {
        !self.connections.is_empty() || !self.calls.is_empty()
    }

    /// Has the place where strangers arrive watched by `watch`, if that is to be and is possible.
    pub fn watch_strangers(&mut self, watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) {
        self.place.watch(watch);
    }

    /// Hears strangers, for all endpoints that listen here: if they are `ready`, or it is time to look. `now` in nanoseconds.
    pub fn hear_strangers(&mut self, now: u64, ready: bool, events: &mut Vec<Event>) {
        if self.place.serve(now, ready, events) {
            self.take_in(events);
        }
    }

    /// Nanoseconds after which strangers must be looked after again.
    pub fn longest_nap(&self) -> Option<u64> {
        self.place.longest_nap()
    }

    /// Readable while there is something to be polled for.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.office.poller.as_fd()
    }

    /// A connection, made or taken; `watch` puts it into our poller.
    fn add(
        &mut self,
        stream: Stream,
        origin: Option<Origin>,
        watch: impl FnOnce(&Poller, &OwnedFd, u64) -> Result<(), Errno>,
    ) -> Result<Arc<Connection>, Errno> {
        let stream = if self.terms.afar { stream.far_away() } else { stream };
        let asks = tcp::set_patience(stream.fd(), self.terms.patience);
        if stream.is_near() {
            tcp::hurry(stream.fd());
        }
        let entry = self.connections.vacant_entry();
        let slot = entry.key() as u32;
        if let Err(why) = watch(&self.office.poller, stream.fd(), slot.into()) {
            tcp::finish(stream.fd());
            return Err(why);
        }
        let connection = Arc::new(Connection::new(stream, slot, self.office.clone(), origin));
        if asks == Ok(false) {
            connection.ask_besides();
        }
        entry.insert(Arc::downgrade(&connection));
        Ok(connection)
    }

    fn connection(&self, slot: u32) -> Option<Arc<Connection>> {
        self.connections.get(slot as usize)?.upgrade()
    }

    /// One turn: sends what was put off, and, if it is to `look`, reads what is there. Returns how much there was.
    pub fn turn(&mut self, now: u64, look: bool, events: &mut Vec<Event>) -> usize {
        // Only here: no addition that others take part in.
        self.office.turn.store(self.office.turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut work = 0;
        for slot in self.office.take_dirty() {
            if let Some(connection) = self.connection(slot) {
                connection.flush();
                self.hand_up(&connection, events);
                if connection.wants_lanes.load(Ordering::Relaxed) {
                    self.dial_lanes(&connection);
                }
            }
        }
        if !self.parked.is_empty() {
            work += self.go_on(now, events);
        }
        if look { work + self.look(now, events) } else { work }
    }

    /// Reads what waited for the engine. How much there was.
    fn go_on(&mut self, now: u64, events: &mut Vec<Event>) -> usize {
        let mut work = 0;
        let mut parked = std::mem::take(&mut self.parked);
        for slot in parked.drain(..) {
            if let Some(connection) = self.connection(slot) {
                let read = self.read_apart(&connection, false, now, events);
                if read.any {
                    work += 1;
                    self.favourite.heard(read.long);
                }
            }
        }
        // The memory serves again; what waits still is in another.
        parked.append(&mut self.parked);
        self.parked = parked;
        work
    }

    /// Notes there from now on what is put off to the next turn.
    pub fn note_at(&mut self, absence: &Arc<Absence>) {
        let _ = self.office.absence.set(absence.clone());
    }

    /// From now on connections begin with what `lessons` says of their link, and write down there what they find out.
    pub fn learn(&mut self, lessons: &Arc<Lessons>) {
        let _ = self.office.lessons.set(lessons.clone());
    }

    /// Whether something waits for the next turn to be sent.
    pub fn keeps_back(&self) -> bool {
        self.office.has_dirty()
    }

    /// Whether payload waits for the engine to read its envelope.
    pub fn is_held_up(&self) -> bool {
        self.office.held_up.load(Ordering::Relaxed) > 0
    }

    /// As [`read`](Self::read), for whoever is in no hurry.
    #[inline(never)]
    fn read_apart(&mut self, connection: &Connection, ready: bool, now: u64, events: &mut Vec<Event>) -> Read {
        self.read(connection, ready, now, events)
    }

    /// Reads a connection. (A part of its callers: the less there is to come back from behind the system call, the
    /// sooner a message is told. `docs/hot-paths.md`.)
    #[inline(always)]
    fn read(&mut self, connection: &Connection, ready: bool, now: u64, events: &mut Vec<Event>) -> Read {
        let read = connection.read(ready);
        connection.hold_up(read.parked);
        if read.parked && !self.parked.contains(&connection.slot()) {
            self.parked.push(connection.slot());
        }
        if read.any {
            self.owe(connection, now);
        }
        if !read.quiet {
            self.hand_up(connection, events);
        }
        read
    }

    /// Reads every connection that has something, and takes calls; mostly only the favourite.
    #[inline(always)]
    pub fn look(&mut self, now: u64, events: &mut Vec<Event>) -> usize {
        let mut work = 0;
        if let Some(connection) = self.favourite.take() {
            let read = self.read(&connection, true, now, events);
            self.favourite.keep(connection);
            if read.any {
                work = 1;
                self.favourite.heard(read.long);
            }
            if !self.favourite.asks(read.any) {
                return work;
            }
        }
        work + self.ask(now, events)
    }

    /// Reads whoever has something, by what the poller says. How much there was.
    #[inline(never)]
    pub fn ask(&mut self, now: u64, events: &mut Vec<Event>) -> usize {
        let mut work = 0;
        let mut tokens = std::mem::take(&mut self.tokens);
        self.office.poller.ready(&mut tokens);
        if let Some(slot) = self.favourite.found(&tokens)
            && !self.office.asleep.load(Ordering::Relaxed)
            && let Some(connection) = self.connection(slot)
        {
            self.favourite.choose(&connection);
        }
        for &token in &tokens {
            work += 1;
            if token == ARRIVED {
                self.take_in(events);
                continue;
            }
            if token == RING {
                for slot in self.office.zerocopy.news() {
                    if let Some(connection) = self.connection(slot) {
                        self.read_apart(&connection, false, now, events);
                    }
                }
                continue;
            }
            let slot = token as u32;
            if let Some(connection) = self.connection(slot) {
                let read = self.read_apart(&connection, true, now, events);
                if read.any {
                    self.favourite.heard(read.long);
                }
            }
        }
        self.tokens = tokens;
        work
    }

    fn owe(&mut self, connection: &Connection, now: u64) {
        // The endpoint's lock is held: nobody changes it meanwhile.
        if !connection.is_owing.load(Ordering::Relaxed) {
            connection.is_owing.store(true, Ordering::Relaxed);
            self.owing.push((connection.slot(), now));
        }
    }

    /// Tells others what we have read of theirs, if nothing has told them by now.
    fn pay(&mut self, now: u64) {
        if now >= self.sweep_at {
            // What the engine has read long after it came is in no list.
            self.sweep_at = now + SWEEP_EVERY;
            self.pay_all(false);
            return;
        }
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|(slot, since)| {
            if now.saturating_sub(*since) < OWED_FOR {
                return true;
            }
            let Some(connection) = self.connection(*slot) else { return false };
            let stays = connection.pay(false);
            connection.is_owing.store(stays, Ordering::Relaxed);
            stays
        });
        self.owing = owing;
    }

    fn pay_all(&mut self, now: bool) {
        if now {
            self.owing.clear();
        }
        for connection in self.connections.iter().filter_map(|(_, weak)| weak.upgrade()) {
            if now {
                connection.is_owing.store(false, Ordering::Relaxed);
            }
            connection.pay(now);
        }
    }

    /// Somebody is about to sleep on [`as_fd`](Self::as_fd): others hear now what they are owed, and what is sent from now on leaves at once, or as
    /// soon as there is room.
    pub fn arm(&mut self) {
        self.office.asleep.store(true, Ordering::Relaxed);
        self.favourite.dismiss();
        self.pay_all(true);
        self.office.dirty().into_iter().filter_map(|slot| self.connection(slot)).for_each(|connection| connection.lie_down());
    }

    /// Nobody sleeps any more: turns follow.
    pub fn disarm(&mut self) {
        self.office.asleep.store(false, Ordering::Relaxed);
    }

    /// Tells the endpoint if a connection has something to say.
    fn hand_up(&self, connection: &Connection, events: &mut Vec<Event>) {
        if let Some(first) = connection.first() {
            first.go_on();
            return self.hand_up(&first, events);
        }
        if let Some(theirs) = connection.foreign_version() {
            let who = format!("{}, which we called: {}", connection.other_end(), version::differs(theirs));
            events.push(Event::TurnedAway(who, Some(Error::Version)));
        }
        if let Some(peer) = connection.speaks() {
            events.push(Event::Peer(peer));
        }
    }

    /// What need not be done in each turn: who has not said hello in time, who is silent, what is owed.
    pub fn look_after(&mut self, now: u64, events: &mut Vec<Event>) {
        self.pay(now);
        self.redial(now);
        if now < self.health_at {
            return;
        }
        self.health_at = now + self.office.health_every();
        self.place.look_after(now, events);
        self.connections.retain(|_, weak| weak.strong_count() > 0);
        self.office.zerocopy.tend();
        let connections: Vec<_> = self.connections.iter().filter_map(|(_, weak)| weak.upgrade()).collect();
        for connection in connections {
            connection.look_at_health(now);
            connection.look_after_lanes(now);
            self.hand_up(&connection, events);
        }
    }

    /// Sends what is left. Whether all of it is with the other sides' kernels.
    pub fn part(&mut self) -> bool {
        let mut all = true;
        for (_, weak) in &self.connections {
            if let Some(connection) = weak.upgrade() {
                // Lanes are waited for by their first connection, those that are open.
                all &= connection.part() || connection.first().is_some();
            }
        }
        all
    }

    /// Lanes that there are or were, and bytes that left by them.
    pub fn lanes(&self) -> (u64, u64) {
        (self.office.lanes.load(Ordering::Relaxed), self.office.striped.load(Ordering::Relaxed))
    }
}

/// No peer yet.
const NOBODY: u32 = u32::MAX;

/// The peer in a word.
fn peer_of(word: u32) -> Option<PeerId> {
    (word != NOBODY).then_some(PeerId(word))
}
