//! Where callers from other hosts arrive: one listener for all endpoints of a process that listen on the same [`Terms`].
//!
//! A call says in its hello which endpoint it is for. Until then it belongs to nobody, and nobody may have to wait for somebody else's thread, which may
//! compute for a minute. So the listener, those who have called and not said whom they want ([`Stranger`]), and the poller that watches both belong to the
//! reception: any endpoint that looks serves all of them, and puts each call into the *inbox* of its endpoint. That one finds the caller's socket in its own
//! poller, as output that is possible, until it has [taken](Place::arrivals) it out: so a call wakes a sleeper as any connection's news do, and who has no
//! calls pays nothing.
//!
//! ```text
//! listener ─┐                         any endpoint of it            the endpoint that is meant
//!           ├─ poller of the ──────▶ serve: accept, hear ─────────▶ inbox ─ take ─▶ Connection
//! strangers ┘  reception                    (lock: hall)            (lock: seats)
//! ```
//! *Whoever looks* goes on if another one is serving just now: what that one leaves is still to be seen, for the poller watches levels. *Whoever closes* gives
//! its seat back under the lock under which calls are put into inboxes: a call either finds the seat, and is in the inbox that is emptied then, or finds
//! none; either way the caller hears that this endpoint is no more. *The last one that closes* lets go of the reception under the lock of the list under which
//! others find it: whoever opens an endpoint meanwhile either shares the port or finds it free.
//!
//! **Sleepers.** The poller of the reception is nested in those of a few endpoints only ([`WATCHERS`]): the kernel limits by how many ways a file may wake
//! pollers of pollers (10, five deep), and an application may add two of its own. All of these few wake (no poller in a poller can be woken exclusively), one serves, the others find nothing. Endpoints
//! beyond these look now and then by themselves, also while they sleep ([`Place::longest_nap`]).
//!
//! **Children** have let go of the sockets (`sys/inherited.rs`; those by raw clone(2) have not) and use none of the other descriptors: they touch no lock of theirs, which may have been held when they were
//! made, and take nothing out of pollers, which are their parent's, too.

use super::office::Office;
use super::strangers::{Arrival, Said, Stranger, What};
use super::{CALL_PATIENCE, Event, Terms};
use crate::peer::name::{Identity, Name};
use crate::sys::poller::Poller;
use crate::sys::{fork, host, limits, ports, shortage, tcp};
use crate::wire::hello::{Hello, Refusal};
use crate::wire::version;
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use slab::Slab;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Nanoseconds that a caller may take between connecting and saying hello, from the first look at it on.
const HELLO_PATIENCE: u64 = 4_000_000_000;
/// Strangers that may be connected at a time. Further ones wait in the backlog.
const MOST_STRANGERS: usize = 1024;
/// Calls that may wait for an endpoint that does not look. Who calls then is told to call again.
const MOST_WAITING: usize = 1024;
/// Endpoints whose sleepers wake when somebody calls.
const WATCHERS: usize = 4;
/// Nanoseconds after which the others look, asleep, and awake at the least.
const NAP: u64 = 20_000_000;
const LOOK_EVERY: u64 = 1_000_000;
/// Nanoseconds that may be slept while there is somebody whose patience may end, or who must wait until there is a place.
const BUSY_NAP: u64 = 250_000_000;

/// Microseconds that are slept at most between tries of all ports of a range: 50 ms in all, on average, before none is left.
const SWEEPS: [u64; 12] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 15_000, 15_000, 15_000, 20_000];

/// Ports of the kernel's choice that are tried, if there are several addresses.
const TRIES: usize = 100;

const LISTENER: u64 = u64::MAX;
/// What the poller of an endpoint says as long as there is a call in its inbox.
pub(super) const ARRIVED: u64 = u64::MAX - 2;

/// The receptions of this process that are shared. Only under this lock is one of them given up.
static ALL: Mutex<Vec<Weak<Reception>>> = Mutex::new(Vec::new());

/// What is known of an endpoint.
struct Seat {
    who: Identity,
    office: Arc<Office>,
    inbox: Vec<Arrival>,
}

/// What only one looks at at a time.
struct Hall {
    strangers: Slab<Stranger>,
    tokens: Vec<u64>,
    /// The listener is not watched: there is no place for a caller now.
    deaf: bool,
    /// Something is lacking to take callers, and that was said.
    is_short: bool,
}

impl Hall {
    /// A caller could not be taken.
    fn falls_short(&mut self, why: Errno, events: &mut Vec<Event>) {
        if shortage::lack(why).is_some() && !self.is_short {
            self.is_short = true;
            events.push(Event::Lacking("a caller, until that is mended".into(), why));
        }
    }
}

/// See above. The lock of the hall is taken before that of the seats, and that before any of an endpoint's.
struct Reception {
    terms: Terms,
    /// At one port: of all addresses, or of each that is to be listened at.
    listeners: Vec<OwnedFd>,
    poller: Poller,
    hall: Mutex<Hall>,
    /// Oldest first.
    seats: Mutex<Vec<Seat>>,
    watchers: AtomicUsize,
    /// There are strangers, or it is deaf.
    busy: AtomicBool,
}

impl Reception {
    /// The reception where an endpoint is found on these terms from now on, until it [leaves](Self::leave). With a `port` it is one of its own:
    /// who calls a service says only where it is, not who.
    ///
    /// # Errors
    /// `EADDRINUSE`, and what else the kernel says.
    fn join(terms: &Terms, port: u16, random: u16, seat: Seat) -> Result<Arc<Reception>, Errno> {
        if port != 0 || fork::in_child() {
            return Reception::open(terms, port, random, seat).map(Arc::new);
        }
        let mut all = ALL.lock();
        if let Some(found) = all.iter().filter_map(Weak::upgrade).find(|reception| reception.terms == *terms) {
            found.seats.lock().push(seat);
            return Ok(found);
        }
        let reception = Arc::new(Reception::open(terms, port, random, seat)?);
        all.retain(|weak| weak.strong_count() > 0);
        all.push(Arc::downgrade(&reception));
        Ok(reception)
    }

    fn open(terms: &Terms, port: u16, random: u16, seat: Seat) -> Result<Reception, Errno> {
        let poller = limits::with_descriptors(Poller::new)?;
        let listeners = limits::with_descriptors(|| listen(terms, port, random))?;
        for listener in &listeners {
            if terms.ports.is_some() {
                // Only now: else others could listen there, too.
                ports::share(listener)?;
            }
            poller.add(listener, LISTENER)?;
        }
        let hall = Hall { strangers: Slab::new(), tokens: Vec::new(), deaf: false, is_short: false };
        Ok(Reception {
            terms: terms.clone(),
            listeners,
            poller,
            hall: Mutex::new(hall),
            seats: Mutex::new(vec![seat]),
            watchers: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
        })
    }

    /// The endpoint closes: calls that it has not taken are refused.
    fn leave(&self, who: Identity) {
        let mut seats = self.seats.lock();
        let Some(at) = seats.iter().position(|seat| seat.who == who) else { return };
        let Seat { office, inbox, .. } = seats.remove(at);
        for arrival in inbox {
            office.poller.remove(arrival.stream.fd());
            arrival.refuse(Refusal::WrongEndpoint);
        }
    }

    /// Hears whoever has called or says something. On behalf of all endpoints; `own` is the one that looks.
    fn serve(&self, own: Identity, events: &mut Vec<Event>) {
        let Some(mut hall) = self.hall.try_lock() else { return };
        let mut tokens = std::mem::take(&mut hall.tokens);
        self.poller.ready(&mut tokens);
        for &token in &tokens {
            match token {
                LISTENER => self.accept_all(&mut hall, own, events),
                slot => self.hear(&mut hall, slot as usize, own, events),
            }
        }
        hall.tokens = tokens;
        self.note(&hall);
    }

    fn note(&self, hall: &Hall) {
        self.busy.store(hall.deaf || !hall.strangers.is_empty(), Ordering::Relaxed);
    }

    /// Takes the calls that wait.
    fn accept_all(&self, hall: &mut Hall, own: Identity, events: &mut Vec<Event>) {
        if !self.listeners.iter().all(|listener| self.accept_from(listener, hall, own, events)) {
            // Those that wait in the backlog must neither keep us busy nor awake.
            self.listeners.iter().for_each(|listener| self.poller.remove(listener));
            hall.deaf = true;
        }
    }

    /// Takes those that wait at one of the listeners. Whether there was place for all.
    fn accept_from(&self, listener: &OwnedFd, hall: &mut Hall, own: Identity, events: &mut Vec<Event>) -> bool {
        while hall.strangers.len() < MOST_STRANGERS {
            let (fd, _) = match limits::with_descriptors(|| tcp::accept(listener)) {
                Ok(both) => both,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(why) => {
                    hall.falls_short(why, events);
                    break;
                }
            };
            let slot = hall.strangers.vacant_key();
            if let Err(why) = self.poller.add(&fd, slot as u64) {
                hall.falls_short(why, events);
                break;
            }
            hall.is_short = false;
            let entry = hall.strangers.vacant_entry();
            match Stranger::new(fd, self.terms.guard.as_ref()) {
                Ok(stranger) => _ = entry.insert(stranger),
                Err(_) => break,
            }
            self.hear(hall, slot, own, events);
        }
        false
    }

    fn listen_again(&self, hall: &mut Hall) {
        hall.deaf = !self.listeners.iter().all(|listener| self.poller.add(listener, LISTENER).is_ok());
        if hall.deaf {
            self.listeners.iter().for_each(|listener| self.poller.remove(listener));
        }
    }

    /// Hears what a stranger says.
    fn hear(&self, hall: &mut Hall, slot: usize, own: Identity, events: &mut Vec<Event>) {
        let Some(stranger) = hall.strangers.get_mut(slot) else { return };
        let who = stranger.other_end();
        let said = stranger.hear();
        if matches!(said, Said::Nothing) {
            return;
        }
        let stranger = hall.strangers.remove(slot);
        // Before it is closed, or watched by somebody else: a child by raw clone(2) may have it, too.
        self.poller.remove(stranger.fd());
        match said {
            Said::What(what) => {
                let arrival = stranger.arrives(what);
                self.hand_over(arrival, own, events);
                // Peers that all call at once are heard as fast as they speak.
                if hall.deaf && hall.strangers.len() <= MOST_STRANGERS / 2 && !hall.is_short {
                    self.listen_again(hall);
                }
            }
            Said::Refused(why, theirs) => {
                let text = theirs.map_or_else(|| why.to_string(), version::differs);
                events.push(Event::TurnedAway(format!("{who}: {text}"), Some(why)));
                stranger.hang_up();
            }
            Said::Nothing | Said::Ended => stranger.hang_up(),
        }
    }

    /// Puts a call into the inbox of its endpoint, and sees to it that this one notices.
    fn hand_over(&self, arrival: Arrival, own: Identity, events: &mut Vec<Event>) {
        let mut seats = self.seats.lock();
        let seat_of = |who| seats.iter().position(|seat| Some(seat.who) == who);
        let at = match &arrival.what {
            What::Call(greeting) => match Name::from_bytes(&greeting.hello.to) {
                // Whoever listens here.
                Ok(to) if to.is_contact() => Some(0),
                // Who means nobody here is refused by the one that looks, as by any endpoint that is not meant.
                Ok(to) => seat_of(to.identity()).or_else(|| seat_of(Some(own))),
                Err(_) => seat_of(Some(own)),
            },
            What::Lane(token) => seats.iter().position(|seat| seat.office.tokens.lock().contains_key(token)),
        };
        let Some(seat) = at.and_then(|at| seats.get_mut(at)) else {
            let why = format!("{}: a further connection of a pair that there is not", arrival.other_end());
            events.push(Event::TurnedAway(why, None));
            return arrival.refuse(Refusal::WrongEndpoint);
        };
        if seat.inbox.len() >= MOST_WAITING && seat.who != own {
            return arrival.refuse(Refusal::Crossed);
        }
        // Ready at once and for as long as it is not taken: what has been sent so far is little.
        if let Err(why) = seat.office.poller.add_with_output(arrival.stream.fd(), ARRIVED) {
            events.push(Event::Lacking("a caller".into(), why));
            return arrival.refuse(Refusal::NoResources);
        }
        seat.inbox.push(arrival);
    }

    /// The calls for an endpoint. Their sockets are in its poller.
    fn take(&self, who: Identity) -> Vec<Arrival> {
        let mut seats = self.seats.lock();
        seats.iter_mut().find(|seat| seat.who == who).map(|seat| std::mem::take(&mut seat.inbox)).unwrap_or_default()
    }

    /// Who has not said hello in time is hung up on. Called now and then by every endpoint, of which `own` is the one that looks; `now` is of the clock that all of them go by.
    fn look_after(&self, now: u64, own: Identity, events: &mut Vec<Event>) {
        if !self.busy.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut hall) = self.hall.try_lock() else { return };
        let many = hall.strangers.len() > MOST_STRANGERS / 2;
        let is_late = |stranger: &mut Stranger| {
            // Counted from here: nobody may have looked for long.
            let since = *stranger.since.get_or_insert(now);
            // Who knows the key, as it seems, may compute. (Or he repeats what he heard; then he shares half of the places with his like.)
            let patience = if !many && stranger.seems_to_know() { CALL_PATIENCE } else { HELLO_PATIENCE };
            now.saturating_sub(since) >= patience
        };
        let late: Vec<usize> = hall.strangers.iter_mut().filter_map(|(slot, s)| is_late(s).then_some(slot)).collect();
        for slot in late {
            // Nobody may have looked since, either: what he has said by now counts.
            self.hear(&mut hall, slot, own, events);
            if hall.strangers.get_mut(slot).is_some_and(is_late) {
                let stranger = hall.strangers.remove(slot);
                self.poller.remove(stranger.fd());
                stranger.hang_up();
            }
        }
        if hall.deaf && hall.strangers.len() < MOST_STRANGERS {
            self.listen_again(&mut hall);
        }
        self.note(&hall);
    }
}

/// An endpoint's place at a reception. Dropped, the endpoint is not found there any more; who is the last one closes the listener.
pub(super) struct Place {
    /// `None`: it is being dropped.
    reception: Option<Arc<Reception>>,
    who: Identity,
    /// Strangers wake whoever sleeps here.
    watches: bool,
    /// When one that does not watch looks again.
    look_at: u64,
}

impl Place {
    /// The endpoint `who` is found from now on, at `port`; if that is 0, where others of its process are that listen on the same terms, or else
    /// where the terms say.
    ///
    /// # Errors
    /// `EADDRINUSE`, and what else the kernel says.
    pub fn take(terms: &Terms, port: u16, random: u16, who: Identity, office: &Arc<Office>) -> Result<Place, Errno> {
        let seat = Seat { who, office: office.clone(), inbox: Vec::new() };
        let reception = Some(Reception::join(terms, port, random, seat)?);
        Ok(Place { reception, who, watches: false, look_at: 0 })
    }

    /// The port that it listens at.
    pub fn port(&self) -> u16 {
        self.addresses().next().map_or(0, |a| a.port())
    }

    /// Whether it listens at this address, if it was told at which.
    pub fn listens_at(&self, ip: IpAddr) -> bool {
        self.addresses().any(|a| a.ip() == ip)
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.reception.iter().flat_map(|r| &r.listeners).filter_map(|listener| tcp::own_address(listener).ok())
    }

    /// Endpoints that listen there.
    pub fn endpoints(&self) -> usize {
        self.reception.as_ref().map_or(0, |r| r.seats.lock().len())
    }

    /// Has the poller of the reception watched by `watch`, if there are not enough that do, and that is possible.
    pub fn watch(&mut self, watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) {
        let Some(reception) = self.reception.as_ref().filter(|_| !self.watches) else { return };
        let more = |n: usize| (n < WATCHERS).then_some(n + 1);
        if reception.watchers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            self.watches = watch(reception.poller.as_fd()).is_ok();
            if !self.watches {
                reception.watchers.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Nanoseconds that an endpoint may sleep here; `None`: as long as it likes.
    pub fn longest_nap(&self) -> Option<u64> {
        if !self.watches {
            return Some(NAP);
        }
        self.reception.as_ref().is_some_and(|r| r.busy.load(Ordering::Relaxed)).then_some(BUSY_NAP)
    }

    /// Hears strangers if there is something of theirs (`ready`), or it is time to look. Whether it did: then there may be [arrivals](Self::arrivals).
    pub fn serve(&mut self, now: u64, ready: bool, events: &mut Vec<Event>) -> bool {
        let looks = ready || !self.watches && now >= self.look_at;
        if let Some(reception) = self.reception.as_ref().filter(|_| looks) {
            self.look_at = now + LOOK_EVERY;
            reception.serve(self.who, events);
        }
        looks
    }

    /// The calls for this endpoint. Their sockets are in its poller.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.reception.as_ref().map(|r| r.take(self.who)).unwrap_or_default()
    }

    /// Who has not said hello in time is hung up on. Called now and then by every endpoint.
    pub fn look_after(&self, now: u64, events: &mut Vec<Event>) {
        if let Some(reception) = &self.reception {
            reception.look_after(now, self.who, events);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(reception) = self.reception.take().filter(|_| !fork::in_child()) else { return };
        // Who has called this endpoint and was not heard is told now, if nobody else is at it.
        reception.serve(self.who, &mut Vec::new());
        // Until the listener is closed nobody finds that there is none, and that its port is in use.
        let all = ALL.lock();
        if self.watches {
            reception.watchers.fetch_sub(1, Ordering::Relaxed);
        }
        reception.leave(self.who);
        drop(reception);
        drop(all);
    }
}

/// As with connections, closing is not enough if a child by raw clone(2) has the socket, too: callers would wait in a backlog that nobody looks at.
impl Drop for Reception {
    fn drop(&mut self) {
        if !fork::in_child() {
            self.listeners.iter().for_each(tcp::stop_listening);
            self.hall.get_mut().strangers.iter().for_each(|(_, stranger)| stranger.hang_up());
        }
    }
}

impl Arrival {
    /// Tells the caller why it is not wanted.
    pub fn refuse(self, why: Refusal) {
        self.stream.say(&Hello::refusal(why));
        tcp::finish(self.stream.fd());
    }
}

/// Takes a port: the one that is asked for, or one of the range, or any.
fn listen(terms: &Terms, port: u16, random: u16) -> Result<Vec<OwnedFd>, Errno> {
    let at = |port| listen_at(&terms.at, port);
    match &terms.ports {
        Some(range) if port == 0 => among(range, random, at),
        // What the kernel gives is free at the first of several addresses, and mostly at the others.
        _ if port == 0 && terms.at.len() > 1 => {
            (1..TRIES).map(|_| at(0)).find(|r| !matches!(r, Err(Errno::ADDRINUSE))).unwrap_or_else(|| at(0))
        }
        _ => at(port),
    }
}

/// Listens at one port of all of these addresses, or of all that there are; of any port, if it is 0.
fn listen_at(at: &[(IpAddr, u32)], mut port: u16) -> Result<Vec<OwnedFd>, Errno> {
    if at.is_empty() {
        return match tcp::listen(SocketAddr::new(IpAddr::from([0; 16]), port)) {
            // A host without IPv6 has no such socket.
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => tcp::listen(SocketAddr::new(IpAddr::from([0; 4]), port)),
            other => other,
        }
        .map(|fd| vec![fd]);
    }
    let mut listeners = Vec::new();
    for &(ip, scope) in at {
        match tcp::listen(tcp::scoped(ip, scope, port)) {
            Ok(fd) => {
                port = tcp::own_address(&fd)?.port();
                listeners.push(fd);
            }
            // One of IPv6 that is new counts only when nobody else has been found to have it, and one may have gone since it was seen.
            Err(Errno::ADDRNOTAVAIL) => {}
            Err(why) => return Err(why),
        }
    }
    if listeners.is_empty() { Err(Errno::ADDRNOTAVAIL) } else { Ok(listeners) }
}

/// Tries the ports of a range, from some place on.
///
/// That each was in use when it was tried does not mean that all are: a process that closes one endpoint and opens another, as MPIs do when they start,
/// may have been met at both its ports; and of two that begin to listen at one port at the same moment the kernel refuses both. So all are tried again,
/// after pauses that differ between processes.
fn among<T>(range: &RangeInclusive<u16>, start: u16, mut at: impl FnMut(u16) -> Result<T, Errno>) -> Result<T, Errno> {
    let count = u32::from(range.end() - range.start()) + 1;
    for pause in SWEEPS {
        let mut ports = (0..count).map(|i| range.start() + ((u32::from(start) + i) % count) as u16);
        if let Some(done) = ports.find_map(|port| Some(at(port)).filter(|r| !matches!(r, Err(Errno::ADDRINUSE)))) {
            return done;
        }
        std::thread::sleep(Duration::from_micros(host::random() % pause));
    }
    Err(Errno::ADDRINUSE)
}

/// What to say when a range is used up.
pub fn no_port(range: &RangeInclusive<u16>, what: &str) -> String {
    format!("FI_RUSTMX_PORT_RANGE={}-{}: all of them are in use, none is left {what}; give more", range.start(), range.end())
}

#[cfg(test)]
#[path = "reception_tests.rs"]
mod tests;
