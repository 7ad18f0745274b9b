//! One connection: a line of the endpoint's, with what leaves by it and what arrives.

use super::call::Call;
use super::incoming::{Incoming, Stop};
use super::outgoing::Outgoing;
use super::proof::{self, Guard, Handshake, Unproved};
use super::stream::Stream;
use super::zerocopy::Sums;
use super::{Bulk, Guesses, NOBODY, Office, peer_of};
use crate::error::Error;
use crate::mem::shared::SharedMem;
use crate::peer::name::Name;
use crate::shm::layout::{MAX_SEGMENT, MIN_SEGMENT, PAGE};
use crate::shm::{bell, segment};
use crate::sys::wake::Wake;
use crate::sys::{fork, tcp};
use crate::transport::{Greeting, Handed, InPlace, Line, NoCall, Reach, Reply};
use crate::types::PeerId;
use crate::wire::hello::{BadHello, Hello, NAME, Refusal};
use crate::wire::key::Proof;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use zerocopy::IntoBytes;

/// What a read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// There was something.
    pub any: bool,
    /// There is more, once the engine has read what came before.
    pub parked: bool,
}

/// The call by which a connection came about.
pub(super) struct Origin {
    pub name: Name,
    /// The address that answered.
    pub to: SocketAddr,
    /// What is left of it, if this is somebody else.
    pub call: Call,
}

/// What is behind the lock: it is taken by the endpoint's turns and sends, which come one after the other.
struct Halves {
    outgoing: Outgoing,
    incoming: Incoming,
    /// The mirror that a hello announced, until the endpoint says where frames are to go.
    theirs: Option<SharedMem>,
    /// The job's key is being proved: until that is done nothing is said, nor heard.
    proof: Option<Box<Handshake>>,
    /// That took so long that the other side may have hung up meanwhile: then a new call may go through.
    late: bool,
    /// Our segment, until both hellos are said.
    mine: Option<SharedMem>,
    said_hello: bool,
    /// The hello, until it is heard.
    greeting: Option<Box<Greeting>>,
    /// The other side's call counts.
    crossed: bool,
    /// Until the hello of whom we called is heard.
    origin: Option<Box<Origin>>,
    /// Why nothing more comes.
    ended: Option<Error>,
    /// The turn in which something was sent last.
    sent_in: u64,
    /// The poller watches for room, too.
    awaits_room: bool,
    /// When it was first seen that something of ours is not answered; 0: it is.
    waits_since: u64,
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
}

/// A connection.
pub struct Connection {
    stream: Stream,
    slot: u32,
    office: Arc<Office>,
    /// Whose it is.
    pub(super) peer: AtomicU32,
    /// The version of the protocol that the other side speaks, if that is another one, until somebody asks; else 0.
    foreign: AtomicU32,
    /// It is in the list of those that were read lately.
    pub(super) is_owing: AtomicBool,
    halves: Mutex<Halves>,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, slot: u32, office: Arc<Office>, origin: Option<Origin>) -> Connection {
        let halves = Halves {
            outgoing: Outgoing::new(office.zerocopy),
            incoming: Incoming::new(),
            theirs: None,
            proof: None,
            late: false,
            mine: None,
            said_hello: false,
            greeting: None,
            crossed: false,
            origin: origin.map(Box::new),
            ended: None,
            sent_in: 0,
            awaits_room: false,
            waits_since: 0,
            is_dirty: false,
        };
        let (peer, foreign) = (AtomicU32::new(NOBODY), AtomicU32::new(0));
        let is_owing = AtomicBool::new(false);
        Connection { stream: Stream::new(fd), slot, office, peer, foreign, is_owing, halves: Mutex::new(halves) }
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

    /// Goes on with the proof. Whether it is made, or there is none to be made.
    fn prove(&self, halves: &mut Halves) -> bool {
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

    /// Whether the other side has said what only who knows the job's key can say for the first time.
    pub(super) fn seems_to_know(&self) -> bool {
        self.halves.lock().proof.as_ref().is_some_and(|proof| proof.is_half_made())
    }

    /// Whether something came that the socket does not tell of.
    pub(super) fn has_more(&self) -> bool {
        self.stream.has_more()
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// The address of the other side, for people.
    pub(super) fn other_end(&self) -> String {
        tcp::peer_address(self.stream.fd()).map_or_else(|| "somebody".into(), |a| a.to_string())
    }

    /// The version of the protocol that the other side speaks, if that is another one; told once.
    pub(super) fn foreign_version(&self) -> Option<u32> {
        // One load, as long as there is nothing to be told.
        (self.foreign.load(Ordering::Relaxed) != 0).then(|| self.foreign.swap(0, Ordering::Relaxed))
    }

    /// Ended before whom we called said anything: whether another address of its name may be its own.
    fn went_astray(&self, halves: &mut Halves, why: Error) -> bool {
        let Some(origin) = halves.origin.take() else { return false };
        let Origin { name, to, mut call } = *origin;
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
        let speaks = halves.ended.is_some()
            || halves.greeting.is_some()
            || !halves.outgoing.done.is_empty()
            || !halves.incoming.done.is_empty()
            || halves.incoming.has_unseen();
        if speaks { peer_of(self.peer.load(Ordering::Relaxed)) } else { None }
    }

    /// Sends what there is.
    pub(super) fn flush(&self) {
        let mut halves = self.halves.lock();
        halves.is_dirty = false;
        self.send(&mut halves, false);
    }

    /// Sends, and comes back to it in the next turn if the socket is full.
    fn send(&self, halves: &mut Halves, news: bool) {
        if halves.ended.is_some() || halves.proof.is_some() {
            return;
        }
        match halves.outgoing.flush(&self.stream, news).and_then(|()| self.stream.push()) {
            Ok(all) if halves.outgoing.blocked || !all => self.come_back(halves),
            Ok(_) => self.await_room(halves, false),
            // The application's memory is not there, and half a frame is out.
            Err(Errno::FAULT) => halves.ended = Some(Error::Invalid),
            // What arrived before is still read; the end is seen there.
            Err(_) if halves.incoming.has_begun() => {}
            Err(_) => {
                // Perhaps it has said why.
                if halves.theirs.is_none() {
                    self.take_hello(halves);
                }
                halves.ended.get_or_insert(Error::PeerGone);
            }
        }
    }

    /// Something was written or posted. The first after a turn leaves at once; what follows before the endpoint's next turn leaves together
    /// in that turn, or when there is enough: then the application is ahead of the wire.
    fn send_in_time(&self, halves: &mut Halves) {
        if halves.outgoing.blocked {
            return;
        }
        let turn = self.office.turn.load(Ordering::Relaxed);
        let news = halves.outgoing.owes_much();
        let asleep = self.office.asleep.load(Ordering::Relaxed);
        if halves.sent_in != turn || news || asleep || halves.outgoing.has_enough() {
            halves.sent_in = turn;
            self.send(halves, news);
        } else {
            self.come_back(halves);
        }
    }

    fn await_room(&self, halves: &mut Halves, on: bool) {
        if halves.awaits_room != on {
            halves.awaits_room = on;
            self.office.poller.watch_output(self.stream.fd(), self.slot.into(), on);
        }
    }

    fn come_back(&self, halves: &mut Halves) {
        if !halves.is_dirty {
            halves.is_dirty = true;
            self.office.dirty.lock().push(self.slot);
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
    pub(super) fn read(&self, ready: bool) -> Read {
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return Read::default();
        }
        halves.outgoing.hear(&self.stream);
        if !self.prove(&mut halves) {
            return Read { any: halves.ended.is_some(), parked: false };
        }
        if !halves.incoming.has_begun() {
            let any = halves.theirs.is_none() && self.take_hello(&mut halves);
            return Read { any, parked: self.stream.has_more() };
        }
        match halves.incoming.pump(&self.stream, ready) {
            Ok(any) => {
                if any && halves.outgoing.owes_much() {
                    self.send(&mut halves, true);
                }
                Read { any, parked: halves.incoming.is_parked() || self.stream.has_more() }
            }
            Err(stop) => {
                halves.ended = Some(error_of(stop));
                Read { any: true, parked: false }
            }
        }
    }

    /// Reads the hello; whether that is done.
    fn take_hello(&self, halves: &mut Halves) -> bool {
        match halves.incoming.hello(&self.stream) {
            Ok(None) => return false,
            Ok(Some(bytes)) => match greeting(&bytes) {
                Ok(greeting) => {
                    if let Handed::Own(theirs) = &greeting.segment {
                        halves.theirs = Some(theirs.clone());
                    }
                    halves.greeting = Some(greeting);
                    halves.origin = None;
                }
                Err(why) => {
                    self.foreign.store(Hello::foreign(&bytes).unwrap_or(0), Ordering::Relaxed);
                    halves.crossed = why.is_none();
                    halves.ended = Some(why.unwrap_or(Error::PeerGone));
                }
            },
            Err(stop) => {
                halves.crossed = stop == Stop::Ended && halves.late;
                halves.ended = Some(error_of(stop));
            }
        }
        true
    }

    /// What a stranger says.
    pub(super) fn read_hello(&self) -> Reply {
        let mut halves = self.halves.lock();
        if !self.prove(&mut halves) {
            // Who is refused knows it already.
            return match halves.ended {
                None => Reply::Nothing,
                Some(Error::PeerGone) => Reply::Ended,
                Some(why) => Reply::Refused(why),
            };
        }
        if !self.take_hello(&mut halves) {
            return Reply::Nothing;
        }
        match (halves.greeting.take(), halves.ended) {
            (Some(greeting), _) => Reply::Greeting(greeting),
            (None, None | Some(Error::PeerGone)) => Reply::Ended,
            (None, Some(why)) => {
                match why {
                    // It does not read hellos yet.
                    Error::KeyMissing => proof::refuse(self.stream.fd(), &Proof::Refused(Refusal::KeyUnknown).emit()),
                    Error::Version => self.refuse(&mut halves, Refusal::Version),
                    _ => self.refuse(&mut halves, Refusal::Malformed),
                }
                Reply::Refused(why)
            }
        }
    }

    fn refuse(&self, halves: &mut Halves, why: Refusal) {
        let hello = Hello::new([0; NAME], [0; NAME], 0, 0, [0; 16]).refuse(why);
        halves.outgoing.say(hello.as_bytes());
        let _ = halves.outgoing.flush(&self.stream, false);
        tcp::finish(self.stream.fd());
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

    /// Sends what is left. Whether all of it is with the other side's kernel.
    pub(super) fn part(&self) -> bool {
        // What is not read when we go resets the connection, with what is still on its way; and only who reads sees that the other one is gone.
        self.read(true);
        let mut halves = self.halves.lock();
        halves.start(true);
        self.send(&mut halves, true);
        let all = !halves.outgoing.has_work() && self.stream.push() == Ok(true);
        let all = all && !halves.outgoing.zerocopy.waits();
        halves.ended.is_some() || all && tcp::unacknowledged(self.stream.fd()) == 0
    }

    pub(super) fn guesses(&self) -> Guesses {
        self.halves.lock().incoming.guesses
    }

    /// What left without a copy is told to `sums`.
    pub(super) fn add_zerocopy(&self, sums: &mut Sums) {
        // Whoever is forgotten has told already.
        if self.peer.load(Ordering::Relaxed) != NOBODY {
            sums.add(&self.halves.lock().outgoing.zerocopy);
        }
    }
}

fn error_of(stop: Stop) -> Error {
    match stop {
        Stop::Ended => Error::PeerGone,
        Stop::Garbage => Error::Corrupt,
        Stop::Keyed => Error::KeyMissing,
        Stop::Altered => Error::Altered,
    }
}

/// Validates a hello, and makes the mirror that it asks for. Else why not; `None`: the other side's call counts.
fn greeting(bytes: &[u8]) -> Result<Box<Greeting>, Option<Error>> {
    let hello = match Hello::parse(bytes) {
        Ok(hello) => hello,
        Err(BadHello::Refused(Refusal::Crossed)) => return Err(None),
        Err(BadHello::Version(_)) => return Err(Some(Error::Version)),
        Err(BadHello::Refused(why)) => return Err(Some(why.error())),
        Err(BadHello::Malformed) => return Err(Some(Error::Corrupt)),
    };
    let size = hello.segment.get() as usize;
    if !(MIN_SEGMENT..=MAX_SEGMENT).contains(&size) || !size.is_multiple_of(PAGE) {
        return Err(Some(Error::Corrupt));
    }
    let segment = Handed::Own(segment::private(size));
    // Nobody rings it, frames wake by themselves: it takes no memory.
    let bell = Handed::Own(segment::pages(bell::BYTES));
    Ok(Box::new(Greeting { hello, segment, bell }))
}

/// Whether a call with this hello counts if the other side calls, too.
fn wins(hello: &Hello) -> bool {
    Name::from_bytes(&hello.to).is_ok_and(|to| to.is_contact() || Name::call_counts(&hello.from, &hello.to))
}

impl Wake for Connection {
    /// A record was written.
    fn wake(&self) {
        self.send_in_time(&mut self.halves.lock());
    }
}

impl Line for Connection {
    fn greet(&self, hello: &Hello, segment: &Handed, _bell: &Handed) -> Result<(), NoCall> {
        let Handed::Own(mine) = segment else { return Err(NoCall::Never(Error::Unsupported)) };
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return Err(NoCall::Never(Error::PeerGone));
        }
        halves.outgoing.say(hello.as_bytes());
        halves.said_hello = true;
        halves.mine = Some(mine.clone());
        halves.start(wins(hello));
        self.send(&mut halves, false);
        Ok(())
    }

    fn reach(&self) -> Reach {
        Reach::Network
    }

    fn begin(&self, mine: &SharedMem) {
        let mut halves = self.halves.lock();
        if let Some(theirs) = halves.theirs.take() {
            halves.incoming.begin(theirs, mine.clone());
        }
        halves.start(false);
        self.send(&mut halves, false);
    }

    fn in_place(self: Arc<Self>) -> Option<Arc<dyn InPlace>> {
        Some(self)
    }

    fn hear(&self) -> Reply {
        let mut halves = self.halves.lock();
        if let Some(id) = halves.incoming.done.pop_front() {
            return Reply::Landed(id);
        }
        if let Some(id) = halves.outgoing.done.pop_front() {
            return Reply::Left(id);
        }
        if let Some(greeting) = halves.greeting.take() {
            return Reply::Greeting(greeting);
        }
        let ended = halves.ended;
        match ended {
            None => Reply::Nothing,
            Some(why) if self.went_astray(&mut halves, why) => Reply::Elsewhere,
            _ if halves.crossed => Reply::Crossed,
            Some(Error::PeerGone) => Reply::Ended,
            Some(why) => Reply::Refused(why),
        }
    }

    fn turn_away(&self, why: Refusal) {
        self.refuse(&mut self.halves.lock(), why);
    }

    fn watch(&self, peer: PeerId) {
        self.peer.store(peer.0, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.office.poller.remove(self.stream.fd());
        self.peer.store(NOBODY, Ordering::Relaxed);
        // The application's memory is its own again.
        let mut halves = self.halves.lock();
        halves.ended.get_or_insert(Error::PeerGone);
        self.office.guesses.lock().add(halves.incoming.guesses);
        halves.outgoing.zerocopy.take_back(self.stream.fd());
        self.office.zerocopies.lock().add(&halves.outgoing.zerocopy);
        halves.outgoing = Outgoing::new(self.office.zerocopy);
        halves.incoming = Incoming::new();
    }
}

/// Closing is not enough: a child (fork(2)) may have the socket, too, and there it would stay open, and ready for our poller. A child
/// that gives up its copy must do no such thing to its parent.
impl Drop for Connection {
    fn drop(&mut self) {
        if !fork::in_child() {
            self.office.poller.remove(self.stream.fd());
            self.halves.get_mut().outgoing.zerocopy.take_back(self.stream.fd());
            tcp::finish(self.stream.fd());
        }
    }
}

impl InPlace for Connection {
    fn post(&self, bulk: Bulk<'_>) {
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return;
        }
        halves.outgoing.post(bulk);
        self.send_in_time(&mut halves);
        if !halves.outgoing.done.is_empty() {
            // The endpoint hears of it in its next turn.
            self.come_back(&mut halves);
        }
    }

    fn expect(&self, bulk: Bulk<'_>) {
        self.halves.lock().incoming.expect(bulk);
    }
}
