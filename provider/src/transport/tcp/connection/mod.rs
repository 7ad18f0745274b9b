//! One connection: a line of the endpoint's, with what leaves by it and what arrives.

mod line;

use super::bundle::Bundle;
use super::bursts::Bursts;
use super::call::Call;
use super::doubt::Doubt;
use super::haste::Haste;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::proof::{Guard, Handshake, Unproved};
use super::stream::Stream;
use super::zerocopy::Sums;
use super::{NOBODY, Office, peer_of};
use crate::error::Error;
use crate::mem::shared::SharedMem;
use crate::peer::name::Name;
use crate::sys::tcp::{self, Health};
use crate::transport::Greeting;
use crate::types::PeerId;
use crate::wire::hello::{Hello, NAME};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Records between looks whether enough waits to leave at once.
const FEW: u64 = 4;
/// Bits of a word for how many were put off, and the most that are counted.
const COUNT: u32 = 16;
const MOST: u64 = (1 << COUNT) - 1;
/// Milliseconds without a word of a peer's kernel before its host is asked besides.
const QUIET: u32 = 1000;

/// What a read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// There was something.
    pub any: bool,
    /// It was a message of more than a segment.
    pub long: bool,
    /// There is more, once the engine has read what came before.
    pub parked: bool,
    /// The endpoint need not be told of anything.
    pub quiet: bool,
}

/// The call by which a connection came about.
pub(super) struct Origin {
    pub name: Name,
    /// The address that answered.
    pub to: SocketAddr,
    /// What is left of it, if this is somebody else.
    pub call: Call,
    /// Who calls, once that is said.
    pub by: Option<Name>,
    /// It left from the port that we listen at. Then the other side may have called at the same moment, and both calls are this connection.
    pub from_listener: bool,
}

impl Origin {
    /// Whether this is no answer to our call, but a call between two others of both processes: neither goes on by this connection.
    pub fn crosses(&self, hello: &Hello) -> bool {
        let is = |said: &[u8; NAME], meant: &Name| {
            Name::from_bytes(said)
                .is_ok_and(|said| meant.is_contact() || said.is_contact() || said.identity() == meant.identity())
        };
        self.from_listener && !(is(&hello.from, &self.name) && self.by.is_none_or(|by| is(&hello.to, &by)))
    }
}

/// What is behind the lock: it is taken by the endpoint's turns and sends, which come one after the other.
pub(super) struct Halves {
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    /// The lanes, where there may be some.
    pub bundle: Option<Box<Bundle>>,
    /// The mirror that a hello announced, until the endpoint says where frames are to go.
    pub theirs: Option<SharedMem>,
    /// The job's key is being proved: until that is done nothing is said, nor heard.
    proof: Option<Box<Handshake>>,
    /// That took so long that the other side may have hung up meanwhile: then a new call may go through.
    pub late: bool,
    /// Our segment, until both hellos are said.
    mine: Option<SharedMem>,
    said_hello: bool,
    /// The hello, until it is heard.
    pub greeting: Option<Box<Greeting>>,
    /// The other side's call counts.
    pub crossed: bool,
    /// Until the hello of whom we called is heard.
    pub origin: Option<Box<Origin>>,
    /// Why nothing more comes.
    pub ended: Option<Error>,
    /// The turn in which something was written last.
    written_in: u64,
    bursts: Bursts,
    /// The poller watches for room, too.
    awaits_room: bool,
    /// It does not watch at all.
    unwatched: bool,
    /// When it was first seen that something of ours is not answered; 0: it is.
    waits_since: u64,
    /// The kernel does not ask often enough whether a peer has room.
    asks_besides: bool,
    /// So its host is asked.
    doubt: Option<Box<Doubt>>,
    pub haste: Haste,
    /// It is in the list of those that have something to send.
    is_dirty: bool,
}

impl Halves {
    /// Our ring is carried once both hellos are said: before, the other side may still call, too, and one of the two connections is given up.
    /// `at_once`: ours would not be, or there is no time left.
    fn start(&mut self, at_once: bool) {
        if self.said_hello
            && (at_once || self.incoming.has_begun())
            && let Some(mine) = self.mine.take()
        {
            self.outgoing.carry(mine);
        }
    }

    /// Whether the endpoint is to be told of something.
    fn speak(&self) -> bool {
        self.ended.is_some()
            || self.greeting.is_some()
            || !self.outgoing.done.is_empty()
            || !self.incoming.done.is_empty()
            || self.incoming.has_unseen()
    }
}

/// A connection.
pub struct Connection {
    stream: Stream,
    slot: u32,
    office: Arc<Office>,
    /// Whose it is.
    pub(super) peer: AtomicU32,
    /// The version of the protocol that the other side speaks, if that is another one, until somebody asks; else 0.
    pub(super) foreign: AtomicU32,
    /// A lane is to be called for.
    pub(super) wants_lanes: AtomicBool,
    /// The one that this is a lane of.
    pub(super) first: OnceLock<Weak<Connection>>,
    /// The link by which it leaves, once somebody asked.
    pub(super) link: OnceLock<Option<Arc<str>>>,
    /// It is in the list of those that were read lately.
    pub(super) is_owing: AtomicBool,
    /// It counts as one that is held up ([`Office::held_up`]).
    is_held_up: AtomicBool,
    /// The last turn in which something was put off to the next, and how often in that one ([`COUNT`]).
    put_off: AtomicU64,
    pub(super) halves: Mutex<Halves>,
}

impl Connection {
    pub(super) fn new(stream: impl Into<Stream>, slot: u32, office: Arc<Office>, origin: Option<Origin>) -> Connection {
        let halves = Halves {
            outgoing: Outgoing::new(office.zerocopy.at(slot)),
            incoming: Incoming::new(),
            bundle: None,
            theirs: None,
            proof: None,
            late: false,
            mine: None,
            said_hello: false,
            greeting: None,
            crossed: false,
            origin: origin.map(Box::new),
            ended: None,
            written_in: 0,
            bursts: Bursts::new(),
            awaits_room: false,
            unwatched: false,
            waits_since: 0,
            asks_besides: false,
            doubt: None,
            haste: Haste::default(),
            is_dirty: false,
        };
        let (peer, foreign) = (AtomicU32::new(NOBODY), AtomicU32::new(0));
        let (is_owing, is_held_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let (wants_lanes, first, link) = (AtomicBool::new(false), OnceLock::new(), OnceLock::new());
        let (stream, halves, put_off) = (stream.into(), Mutex::new(halves), AtomicU64::new(0));
        Connection { stream, slot, office, peer, foreign, wants_lanes, first, link, is_owing, is_held_up, put_off, halves }
    }

    /// The job's key is proved before anything is said; `calls`: by us first.
    ///
    /// # Errors
    /// [`Error::NoResources`].
    pub(super) fn guard(&self, guard: &Guard, calls: bool) -> Result<(), Error> {
        let mut halves = self.halves.lock();
        halves.proof = Some(Box::new(Handshake::new(guard, calls)?));
        self.prove(&mut halves);
        Ok(())
    }

    /// Long messages may go by several connections: `lanes` as in `FI_RUSTMX_TCP_LANES`, `reached` whom we called.
    pub(super) fn may_stripe(&self, lanes: usize, reached: Option<SocketAddr>) {
        self.halves.lock().bundle = Some(Box::new(Bundle::new(lanes, reached)));
    }

    /// Goes on with the proof. Whether it is made, or there is none to be made.
    #[inline]
    pub(super) fn prove(&self, halves: &mut Halves) -> bool {
        halves.proof.is_none() || self.go_on_proving(halves)
    }

    #[cold]
    fn go_on_proving(&self, halves: &mut Halves) -> bool {
        let Some(proof) = &mut halves.proof else { return true };
        if halves.ended.is_some() {
            return false;
        }
        match proof.step(self.stream.fd()) {
            Ok(None) => return false,
            Ok(Some(session)) => {
                if let Some(session) = session {
                    self.stream.encrypt(session);
                }
                halves.late = proof.is_late();
                halves.proof = None;
                // What was to be said meanwhile.
                self.send(halves, false);
                return true;
            }
            Err(Unproved::Ended) => halves.ended = Some(Error::PeerGone),
            Err(Unproved::TooLate) => {
                halves.crossed = true;
                halves.ended = Some(Error::PeerGone);
            }
            Err(Unproved::Garbage) => halves.ended = Some(Error::Corrupt),
            Err(Unproved::Error(why)) => halves.ended = Some(why),
        }
        false
    }

    /// What carries it.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// What it shares with the others of its endpoint.
    pub(super) fn office(&self) -> &Office {
        &self.office
    }

    /// Whether something came that the socket does not tell of.
    pub(super) fn has_more(&self) -> bool {
        self.stream.has_more()
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether its endpoint has given it up, or never had it.
    pub(super) fn is_forgotten(&self) -> bool {
        self.peer.load(Ordering::Relaxed) == NOBODY
    }

    /// The address of the other side, for people.
    pub(super) fn other_end(&self) -> String {
        self.stream.other_end()
    }

    /// The version of the protocol that the other side speaks, if that is another one; told once.
    pub(super) fn foreign_version(&self) -> Option<u32> {
        // One load, as long as there is nothing to be told.
        (self.foreign.load(Ordering::Relaxed) != 0).then(|| self.foreign.swap(0, Ordering::Relaxed))
    }

    /// Ended before whom we called said anything: whether another address of its name may be its own.
    fn went_astray(&self, halves: &mut Halves, why: Error) -> bool {
        let Some(origin) = halves.origin.take() else { return false };
        let Origin { name, to, mut call, .. } = *origin;
        let stranger = matches!(why, Error::Refused | Error::PeerGone | Error::Corrupt | Error::Silent);
        if halves.crossed || !stranger || !call.was_stranger(tcp::own_address(self.stream.fd()).ok(), to) {
            return false;
        }
        self.office.astray.lock().push((name, call));
        true
    }

    /// Its peer, if [`hear`](Line::hear) would answer something, or there are records in a ring that the endpoint does not watch.
    pub(super) fn speaks(&self) -> Option<PeerId> {
        let halves = self.halves.lock();
        if halves.speak() { peer_of(self.peer.load(Ordering::Relaxed)) } else { None }
    }

    /// Sends what there is.
    pub(super) fn flush(&self) {
        let mut halves = self.halves.lock();
        halves.is_dirty = false;
        // Also what could not be told when there was no room.
        let news = halves.outgoing.owes_much();
        self.send(&mut halves, news);
        self.hand_out(&mut halves);
    }

    /// Sends, and comes back to it in the next turn if the socket is full.
    pub(super) fn send(&self, halves: &mut Halves, news: bool) {
        if halves.ended.is_some() || halves.proof.is_some() {
            return;
        }
        halves.bursts.left();
        self.hurry_if_much(halves);
        let flushed = halves.outgoing.flush(&self.stream, news);
        match flushed.and_then(|()| if self.stream.is_encrypted() { self.stream.push() } else { Ok(true) }) {
            Ok(all) if halves.outgoing.blocked || !all => self.come_back(halves),
            Ok(_) => {
                self.await_room(halves, false);
                if !halves.outgoing.pieces.is_empty() {
                    self.come_back(halves);
                }
            }
            // The application's memory is not there, and half a frame is out.
            Err(Errno::FAULT) => halves.ended = Some(Error::Invalid),
            // More of our lines were acknowledged than have left: our writer wrote over them.
            Err(Errno::BADMSG) => halves.ended = Some(Error::Corrupt),
            // Nobody knows how much of it: to send on would send some of it twice, or not at all.
            Err(Errno::TIME) => halves.ended = Some(Error::Unanswered),
            // What arrived before is still read; the end is seen there.
            Err(_) if halves.incoming.has_begun() || self.first.get().is_some() => {}
            Err(_) => {
                // Perhaps it has said why.
                if halves.theirs.is_none() {
                    self.take_hello(halves);
                }
                halves.ended.get_or_insert(Error::PeerGone);
            }
        }
    }

    /// Something was written, a record if it is `short`, else there is payload. The first after a turn leaves at once, if it is not held ([`Bursts`]); what follows before the endpoint's next turn
    /// leaves together in that turn, or when there is enough: then the application is ahead of the wire.
    fn send_in_time(&self, halves: &mut Halves, short: bool) {
        if halves.outgoing.blocked {
            return;
        }
        let turn = self.office.turn.load(Ordering::Relaxed);
        let (begun, put_off) = Self::put_off(self.put_off.load(Ordering::Relaxed));
        let clock = || self.office.clock.now();
        let first = halves.written_in != turn;
        let at_once = if first {
            let behind = if begun == halves.written_in { put_off } else { 0 };
            halves.written_in = turn;
            !halves.bursts.begin(behind, short)
        } else {
            halves.bursts.goes_on(short, clock)
        };
        let news = halves.outgoing.owes_much();
        let asleep = self.office.asleep.load(Ordering::Relaxed);
        if at_once || news || asleep || halves.outgoing.has_enough() {
            if first {
                halves.bursts.withdraw();
            }
            self.send(halves, news);
        } else {
            self.come_back(halves);
            // The first one of a burst is not counted, held or not.
            let count = if begun == turn { put_off + 1 } else { u64::from(!first) };
            self.put_off.store(turn << COUNT | count.min(MOST), Ordering::Relaxed);
        }
        if first {
            halves.bursts.begun(clock);
        }
    }

    /// The turn in which something was put off, and how much.
    fn put_off(word: u64) -> (u64, u64) {
        (word >> COUNT, word & MOST)
    }

    /// A record was written. Whether it leaves in the next turn with others, as is settled, and it is one of few since somebody looked whether there is
    /// enough. A program that sends many short messages is spared a lock for each.
    fn is_put_off(&self) -> bool {
        // The endpoint's lock is held: nobody changes either.
        let word = self.put_off.load(Ordering::Relaxed);
        let (begun, count) = Self::put_off(word);
        let settled = begun == self.office.turn.load(Ordering::Relaxed) && count != 0 && count % FEW != 1 && count < MOST;
        let is = settled && !self.office.asleep.load(Ordering::Relaxed);
        if is {
            self.put_off.store(word + 1, Ordering::Relaxed);
        }
        is
    }

    /// Something waits for the engine, or nothing does.
    pub(super) fn hold_up(&self, on: bool) {
        // The endpoint's lock is held: nobody else counts.
        if self.is_held_up.load(Ordering::Relaxed) != on {
            self.is_held_up.store(on, Ordering::Relaxed);
            let others = self.office.held_up.load(Ordering::Relaxed);
            self.office.held_up.store(if on { others + 1 } else { others.saturating_sub(1) }, Ordering::Relaxed);
        }
    }

    pub(super) fn await_room(&self, halves: &mut Halves, on: bool) {
        if halves.awaits_room != on {
            halves.awaits_room = on;
            if !halves.unwatched {
                self.office.poller.watch_output(self.stream.fd(), self.slot.into(), on);
            }
        }
    }

    /// From now on it is read in every turn. Whether that may be: it is in use, and nothing has ended it.
    pub(super) fn unwatch(&self) -> bool {
        let mut halves = self.halves.lock();
        let may = halves.ended.is_none() && peer_of(self.peer.load(Ordering::Relaxed)).is_some();
        if may && !halves.unwatched {
            halves.unwatched = true;
            self.office.poller.remove(self.stream.fd());
        }
        may
    }

    /// The end of that.
    pub(super) fn watch_again(&self) {
        let mut halves = self.halves.lock();
        if std::mem::take(&mut halves.unwatched) && self.office.poller.add(self.stream.fd(), self.slot.into()).is_ok() {
            let awaits = std::mem::take(&mut halves.awaits_room);
            self.await_room(&mut halves, awaits);
        }
    }

    pub(super) fn come_back(&self, halves: &mut Halves) {
        if !halves.is_dirty {
            halves.is_dirty = true;
            self.office.is_dirty(self.slot);
        }
        if self.office.asleep.load(Ordering::Relaxed) {
            self.await_room(halves, true);
        }
    }

    /// Nobody takes turns any more: if there is something for the next one, the socket must wake somebody as soon as it has room.
    pub(super) fn lie_down(&self) {
        let mut halves = self.halves.lock();
        if halves.is_dirty && halves.proof.is_none() {
            self.await_room(&mut halves, true);
        }
    }

    /// Reads what is there. `ready`: the poller says that there is something.
    #[inline(always)]
    pub(super) fn read(&self, ready: bool) -> Read {
        if let Some(first) = self.first() {
            return first.read_lane(self, ready);
        }
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return Read::default();
        }
        halves.outgoing.hear(&self.stream);
        if !halves.outgoing.pieces.is_empty() {
            self.hand_out(&mut halves);
        }
        if !self.prove(&mut halves) {
            return Read { any: halves.ended.is_some(), ..Read::default() };
        }
        if !halves.incoming.has_begun() {
            let any = halves.theirs.is_none() && self.take_hello(&mut halves);
            return Read { any, parked: self.stream.has_more(), ..Read::default() };
        }
        match halves.incoming.pump(&self.stream, ready) {
            Ok(any) => {
                if any && halves.outgoing.owes_much() {
                    self.send(&mut halves, true);
                }
                self.settle_loans(&mut halves);
                self.hear_of_lanes(&mut halves);
                let parked = halves.incoming.is_parked() || self.stream.has_more();
                Read { any, long: any && halves.incoming.long, parked, quiet: !halves.speak() }
            }
            Err(stop) => {
                // The last word may have been that what we lent is ours again.
                self.settle_loans(&mut halves);
                halves.ended.get_or_insert(stop.into());
                Read { any: true, ..Read::default() }
            }
        }
    }

    /// What was lent has been read, by either side: the other one hears of that at the latest in the next turn, mostly along with an answer, and the
    /// application's memory is its own again.
    #[inline]
    pub(super) fn settle_loans(&self, halves: &mut Halves) {
        if let Some(frames) = halves.incoming.returned.take() {
            if !halves.outgoing.returned(frames) {
                halves.ended = Some(Error::Corrupt);
                return;
            }
            self.hand_out(halves);
        }
        if halves.outgoing.owes_read(halves.incoming.lent_read) && std::mem::take(&mut halves.incoming.tells) {
            self.come_back(halves);
        }
    }

    /// Tells what the other side does not know of our reading, if nothing has told it since the last look; `now`: in any case. Whether there
    /// is something left to be told.
    pub(super) fn pay(&self, now: bool) -> bool {
        let mut halves = self.halves.lock();
        let (owes, long) = halves.outgoing.look_at_debts();
        let pays = owes && (long || now);
        if pays {
            self.send(&mut halves, true);
        }
        if !halves.outgoing.done.is_empty() {
            // Payload has left, too: the endpoint hears of it in its next turn.
            self.come_back(&mut halves);
        }
        owes && !pays
    }

    /// A peer whose kernel does not answer is gone. `now` in nanoseconds.
    pub(super) fn look_at_health(&self, now: u64) {
        let Some(health) = tcp::health(self.stream.fd()) else { return };
        let mut halves = self.halves.lock();
        self.look_at_haste(&mut halves, &health);
        self.teach(&mut halves, &health);
        if self.is_deserted(&mut halves, &health, now) {
            halves.ended.get_or_insert(Error::Silent);
        }
        if !health.waits {
            halves.waits_since = 0;
            return;
        }
        if halves.waits_since == 0 {
            halves.waits_since = now.max(1);
        }
        // It need not have said anything before we asked: then it has a moment to answer.
        let waited = now.saturating_sub(halves.waits_since) / 1_000_000;
        let limit = self.office.limit();
        if u64::from(health.silent) >= limit && waited >= limit / 4 {
            halves.ended.get_or_insert(Error::Silent);
        }
    }

    /// The kernel does not ask often enough: hosts of peers without room are asked besides.
    pub(super) fn ask_besides(&self) {
        self.halves.lock().asks_besides = true;
    }

    /// Whether the host of a peer that has no room is silent for too long, by what was asked besides.
    fn is_deserted(&self, halves: &mut Halves, health: &Health, now: u64) -> bool {
        if !halves.asks_besides || !health.no_room {
            halves.doubt = None;
            return false;
        }
        if halves.doubt.is_none() && health.silent < QUIET {
            return false;
        }
        let doubt = halves.doubt.get_or_insert_with(|| Box::new(Doubt::about(self.stream.fd())));
        let limit = self.office.limit();
        doubt.look(now).is_some_and(|silence| silence >= limit) && u64::from(health.silent) >= limit
    }

    /// Sends what is left. Whether all of it is with the other side's kernel.
    pub(super) fn part(&self) -> bool {
        let lanes = self.close_lanes();
        // What is not read when we go resets the connection, with what is still on its way; and only who reads sees that the other one is gone.
        self.read(true);
        let mut halves = self.halves.lock();
        halves.start(true);
        self.send(&mut halves, true);
        let all = !halves.outgoing.has_work() && self.stream.push() == Ok(true);
        let all = all && !halves.outgoing.zerocopy.waits();
        self.teach(&mut halves, &Health::default());
        halves.ended.is_some() || lanes && all && tcp::unacknowledged(self.stream.fd()) == 0
    }

    /// What left without a copy, and by how many connections, is told to `sums`.
    pub(super) fn add_to(&self, sums: &mut Sums) {
        // Whoever is forgotten has told already.
        if self.peer.load(Ordering::Relaxed) != NOBODY {
            self.tell(&self.halves.lock(), sums);
        }
    }

    pub(super) fn tell(&self, halves: &Halves, sums: &mut Sums) {
        let link = self.link().map(|(_, link)| link.clone());
        let zerocopy = &halves.outgoing.zerocopy;
        sums.add(zerocopy, link.as_ref());
        match &halves.bundle {
            Some(bundle) => bundle.tell(sums, link),
            None if self.stream.is_near() && zerocopy.was_asked() => sums.tell_near(),
            None => {}
        }
    }
}
