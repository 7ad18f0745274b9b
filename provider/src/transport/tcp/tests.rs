//! Two connections and a relay between them that passes on as many bytes at a time as a test says: whatever way the stream is cut,
//! records arrive in order and payload where it belongs, guesses right or wrong.

#![expect(unsafe_code, reason = "buffers of the tests as the application's")]

use super::connection::{Connection, Read};
use super::proof::Guard;
use super::stream::Stream;
use super::{NOBODY, Office};
use crate::config::network::ZeroCopy;
use crate::mem::atomic::Words;
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::UserSeg;
use crate::shm::bell::{self, Bell};
use crate::shm::layout::{MIN_SEGMENT, WRITTEN};
use crate::shm::segment;
use crate::sys::clock::Clock;
use crate::sys::tcp::{self, Piece};
use crate::transport::link::{Class, Draft, Link, NotSent};
use crate::transport::{Bulk, Greeting, Handed, InPlace, Line, Moved, Reply};
use crate::wire::frame::{Body, Frame};
use crate::wire::header::{Header, Kind};
use crate::wire::hello::{Hello, NAME};
use crate::wire::key::Key;
use proptest::prelude::*;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn sockets() -> [OwnedFd; 2] {
    let listener = tcp::listen(([127, 0, 0, 1], 0).into()).expect("listen");
    let a = tcp::connect(tcp::own_address(&listener).expect("name"), None, 0).expect("connect");
    while !tcp::connected(&a).expect("connecting") {}
    [a, tcp::accept(&listener).expect("accept").0]
}

/// The first of them takes little at a time, and of more than 2240 bytes often a part. (Not of TCP: there much would wait for timers.)
fn narrow() -> [OwnedFd; 2] {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt::set_socket_send_buffer_size};
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).expect("sockets");
    set_socket_send_buffer_size(&a, 1).expect("SO_SNDBUF");
    [a, b]
}

/// Its time stands still, but for what a test makes of it.
fn office() -> Arc<Office> {
    let mut office = Office::new(10_000, ZeroCopy::Auto).expect("poller");
    office.clock = Clock::Manual(Arc::default());
    Arc::new(office)
}

fn connection(stream: impl Into<Stream>) -> Arc<Connection> {
    let connection = Connection::new(stream, 0, office(), None);
    assert_eq!(connection.peer.load(Ordering::Relaxed), NOBODY);
    Arc::new(connection)
}

/// Carries bytes from one socket to another.
pub(super) struct Relay {
    pub from: OwnedFd,
    pub to: OwnedFd,
    memory: SharedMem,
}

impl Relay {
    /// At most `n` bytes. Returns how many.
    pub fn pass(&self, n: usize) -> usize {
        match tcp::recv(&self.from, &[Piece::Own(&self.memory, 0, n.min(self.memory.bytes()))]) {
            Ok(got) => {
                let mut sent = 0;
                while sent < got {
                    match tcp::send(&self.to, &[Piece::Own(&self.memory, sent, got - sent)]) {
                        Ok(n) => sent += n,
                        Err(why) => assert_eq!(why, Errno::AGAIN),
                    }
                }
                got
            }
            Err(why) => {
                assert_eq!(why, Errno::AGAIN);
                0
            }
        }
    }
}

/// One side: a link as the engine has it, and its connection.
pub(super) struct Side {
    pub connection: Arc<Connection>,
    pub link: Link,
}

impl Side {
    fn new(stream: impl Into<Stream>, guard: Option<&Guard>, calls: bool) -> Side {
        let mine = segment::private(MIN_SEGMENT);
        let connection = connection(stream);
        guard.into_iter().for_each(|guard| connection.guard(guard, calls).expect("random numbers"));
        let mut link = Link::new(mine.clone(), 1 << 20).far();
        let hello = Hello::new([1; NAME], [2; NAME], MIN_SEGMENT as u32, 0, [0; 16]);
        let bell = Handed::Own(SharedMem::new(Heap::new(bell::BYTES)));
        connection.greet(&hello, &Handed::Own(mine), &bell).expect("hello");
        link.set_waker(Some(connection.clone()));
        link.set_away(Some(connection.clone()));
        Side { connection, link }
    }

    fn meet(&mut self, greeting: &Greeting) {
        let theirs = greeting.segment.segment(MIN_SEGMENT, false).expect("segment");
        let bell = Bell::new(greeting.bell.bell().expect("bell"));
        self.link.attach(theirs, Some((bell, 0)));
        self.connection.begin(self.link.mine());
        self.link.set_home(Some(self.connection.clone()));
    }
}

pub(super) struct Scene {
    pub a: Side,
    pub b: Side,
    pub there: Relay,
    pub back: Relay,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::guarded(None)
    }

    pub fn guarded(guard: Option<&Guard>) -> Scene {
        Scene::over(sockets(), guard)
    }

    fn over(first: [OwnedFd; 2], guard: Option<&Guard>) -> Scene {
        let [b, rb] = sockets();
        Scene::between(first, (b.into(), rb), guard)
    }

    /// A's socket takes little at a time.
    pub fn narrow() -> Scene {
        Scene::over(narrow(), None)
    }

    /// B's network has segments of so many bytes.
    pub fn of_segments(bytes: usize) -> Scene {
        let [b, rb] = sockets();
        Scene::between(sockets(), (Stream::new(b).of_segments(bytes), rb), None)
    }

    fn between([a, ra]: [OwnedFd; 2], (b, rb): (Stream, OwnedFd), guard: Option<&Guard>) -> Scene {
        let clone = |fd: &OwnedFd| fd.try_clone().expect("clone");
        let memory = || SharedMem::new(Heap::new(1 << 16));
        let there = Relay { from: clone(&ra), to: clone(&rb), memory: memory() };
        let back = Relay { from: rb, to: ra, memory: memory() };
        let mut scene = Scene { a: Side::new(a, guard, true), b: Side::new(b, guard, false), there, back };
        let (mut met_a, mut met_b) = (false, false);
        while !(met_a && met_b) {
            scene.there.pass(100);
            scene.back.pass(1000);
            for (side, met) in [(&mut scene.a, &mut met_a), (&mut scene.b, &mut met_b)] {
                side.connection.read(true);
                if let Reply::Greeting(greeting) = side.connection.hear() {
                    side.meet(&greeting);
                    *met = true;
                }
            }
        }
        scene
    }

    /// The network passes on what B said.
    pub fn back(&self) {
        while self.back.pass(1 << 16) > 0 {}
    }

    /// A hears what B has read.
    pub fn answer(&mut self) {
        self.b.connection.pay(true);
        self.back();
        self.a.connection.read(true);
        self.a.link.refresh().expect("sound");
    }

    /// The next record that B finds, once it is there.
    pub fn record(&mut self) -> Header {
        for _ in 0..1_000_000 {
            self.there.pass(1 << 16);
            self.b.connection.read(true);
            if let Some(header) = self.b.link.peek().expect("sound") {
                return header;
            }
        }
        panic!("nothing came");
    }

    /// A's turn.
    pub fn turn(&self) {
        self.a.connection.office().turn.fetch_add(1, Ordering::Relaxed);
        self.a.connection.flush();
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A writes a record of so many bytes.
    Record(usize),
    /// A posts payload of so many bytes, which B expects only so many bytes of, at once or when it has read all records.
    Payload(usize, usize, bool),
    /// B writes a record, so that acknowledgements travel.
    Reply,
    /// A's turn.
    Turn,
    /// The network passes on so many bytes.
    Pass(usize),
    /// B reads its socket, and then so many records.
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..900).prop_map(Step::Record),
        2 => (prop_oneof![3 => 1usize..40_000, 1 => 30_000usize..120_000], 0usize..60_000, any::<bool>()).prop_map(|(len, room, early)| Step::Payload(len, room, early)),
        1 => Just(Step::Reply),
        1 => Just(Step::Turn),
        4 => prop_oneof![Just(1usize), Just(31), Just(32), Just(33), Just(95), Just(96), 1usize..5000, Just(1 << 16)].prop_map(Step::Pass),
        3 => (0usize..20).prop_map(Step::Read),
    ]
}

fn fill(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed * 7) >> 2) as u8 ^ seed as u8).collect()
}

/// Payload on its way: the source, the place, and whether it arrived.
struct Message {
    source: Vec<u8>,
    place: Vec<u8>,
    /// The record that says that it comes.
    envelope: u64,
    expected: bool,
    left: bool,
    landed: bool,
}

pub(super) fn seg(bytes: &mut [u8]) -> UserSeg {
    // SAFETY: the tests keep their buffers as long as the scene.
    unsafe { UserSeg::new(bytes.as_mut_ptr(), bytes.len()) }
}

/// A test as it stands.
struct Run {
    scene: Scene,
    records: VecDeque<Vec<u8>>,
    written: u64,
    taken: u64,
    messages: Vec<Message>,
}

impl Run {
    fn take(&mut self, step: Step) {
        match step {
            Step::Record(len) => _ = self.record(len),
            Step::Payload(len, room, early) => self.payload(len, room, early),
            Step::Reply => {
                let draft = draft(&[9; 16]);
                let _ = self.scene.b.link.send(&draft, Class::Envelope);
                self.scene.b.connection.flush();
            }
            Step::Turn => self.scene.turn(),
            Step::Pass(n) => _ = self.scene.there.pass(n),
            Step::Read(n) => self.read(n),
        }
    }

    /// Whether there was room.
    fn record(&mut self, len: usize) -> bool {
        let bytes = fill(self.written, len);
        match self.scene.a.link.send(&draft(&bytes), Class::Envelope) {
            Ok(_) => {
                self.written += 1;
                self.records.push_back(bytes);
                true
            }
            Err(why) => {
                assert_eq!(why, NotSent::Full);
                false
            }
        }
    }

    fn payload(&mut self, len: usize, room: usize, early: bool) {
        let id = self.messages.len() as u32;
        let mut message = Message {
            source: fill(id.into(), len),
            place: vec![0; room.min(len)],
            envelope: 0,
            expected: false,
            left: false,
            landed: false,
        };
        if !self.record(8) {
            return;
        }
        message.envelope = self.written;
        if early {
            expect(&self.scene.b.connection, id, &mut message);
        }
        let bulk = Bulk { id, iov: &[seg(&mut message.source)], skip: 0, len, promised: len };
        message.left = self.scene.a.connection.post(bulk) == Moved::AtOnce;
        self.messages.push(message);
    }

    /// B's turn; what it takes must be what A wrote.
    fn read(&mut self, records: usize) {
        self.scene.a.connection.flush();
        self.scene.b.connection.read(true);
        let link = &mut self.scene.b.link;
        for _ in 0..records {
            let Some(header) = link.peek().expect("sound") else { break };
            let mut bytes = Vec::new();
            link.payload_append(&header, &mut bytes);
            assert_eq!(Some(bytes), self.records.pop_front());
            link.consume(header.lines());
            self.taken += 1;
            // If that was an envelope somebody knows now where payload belongs, and the next look at the ring is one at what that lets in.
            for (id, message) in self.messages.iter_mut().enumerate() {
                if !message.expected && message.envelope <= self.taken {
                    expect(&self.scene.b.connection, id as u32, message);
                }
            }
        }
        link.tell();
        self.listen();
        self.scene.b.connection.pay(true);
        self.scene.back.pass(1 << 16);
        self.scene.a.connection.read(true);
        let link = &mut self.scene.a.link;
        while let Some(header) = link.peek().expect("sound") {
            link.consume(header.lines());
        }
        link.tell();
        link.refresh().expect("sound");
    }

    fn listen(&mut self) {
        loop {
            match self.scene.b.connection.hear() {
                Reply::Landed(id) => {
                    assert!(!std::mem::replace(&mut self.messages[id as usize].landed, true), "told twice");
                }
                Reply::Nothing => break,
                _ => panic!("B's connection ended"),
            }
        }
        loop {
            match self.scene.a.connection.hear() {
                Reply::Left(id) => {
                    assert!(!std::mem::replace(&mut self.messages[id as usize].left, true), "told twice");
                }
                Reply::Nothing => break,
                _ => panic!("A's connection ended"),
            }
        }
    }

    fn finish(mut self) {
        for _ in 0..10_000 {
            self.scene.there.pass(1 << 16);
            self.read(1000);
            if self.records.is_empty() && self.messages.iter().all(|m| m.landed && m.left) {
                for m in &self.messages {
                    assert_eq!(m.place[..], m.source[..m.place.len()]);
                }
                return;
            }
        }
        panic!("{} records and some payload never came", self.records.len());
    }
}

fn expect(connection: &Connection, id: u32, message: &mut Message) {
    message.expected = true;
    let len = message.source.len();
    let bulk = Bulk { id, iov: &[seg(&mut message.place)], skip: 0, len, promised: len };
    message.landed = connection.expect(bulk) == Moved::AtOnce;
    // Not later than that it is there.
    assert!(!message.landed || message.place == message.source[..message.place.len()]);
}

pub(super) fn draft(bytes: &[u8]) -> Draft<'_> {
    Draft { kind: Kind::Eager, flags: 0, tag: 1, data: 2, body: [0; 2], iov: &[], skip: 0, len: bytes.len(), bytes }
}

/// One look at the socket for a short message that nobody has announced: the first shows that such come.
#[test]
fn short_payload_is_read_along_with_its_envelope() {
    let mut run = Run { scene: Scene::new(), records: VecDeque::new(), written: 0, taken: 0, messages: Vec::new() };
    for id in 0..3usize {
        run.payload(9000, 9000, false);
        run.scene.a.connection.flush();
        while run.scene.there.pass(1 << 16) > 0 {}
        let b = &mut run.scene.b;
        while b.link.peek().expect("sound").is_none() {
            b.connection.read(true);
        }
        let in_socket = rustix::io::ioctl_fionread(b.connection.stream().fd()).expect("a socket");
        assert_eq!(in_socket == 0, id > 0, "message {id}: {in_socket} bytes left");
        run.read(1);
        run.read(0);
        assert!(run.messages[id].landed);
    }
    run.finish();
}

/// Of payload that was too long for that the rest is in the socket when its place is known: it is read then, and not in the next turn.
#[test]
fn what_waits_in_the_socket_is_read_when_its_place_is_known() {
    for (len, at_once) in [(20_000, false), (40_000, true)] {
        let mut run = Run { scene: Scene::new(), records: VecDeque::new(), written: 0, taken: 0, messages: Vec::new() };
        run.payload(len, len, false);
        run.scene.a.connection.flush();
        let mut passed = 0;
        assert!((0..1_000_000).any(|_| {
            passed += run.scene.there.pass(1 << 16);
            passed >= len
        }));
        let header = run.scene.record();
        let b = &mut run.scene.b;
        // The first call took up to 9 KiB.
        let rest = || rustix::io::ioctl_fionread(b.connection.stream().fd()).expect("a socket");
        assert!((0..1_000_000).any(|_| rest() >= len as u64 - (9 << 10)), "{len} bytes: there are {}", rest());
        b.link.consume(header.lines());
        b.link.tell();
        expect(&b.connection, 0, &mut run.messages[0]);
        assert_eq!(run.messages[0].landed, at_once, "{len} bytes");
        assert_eq!(b.connection.read(false), Read { any: true, long: false, parked: false, quiet: at_once });
        run.listen();
        run.records.clear();
        run.finish();
    }
}

/// Of few records that leave by one call for one place the socket takes a part: the rest follows, once.
#[test]
fn the_rest_of_few_records_follows() {
    let mut cut = 0;
    for len in (1..900).step_by(50) {
        let mut run = Run { scene: Scene::narrow(), records: VecDeque::new(), written: 0, taken: 0, messages: Vec::new() };
        while run.scene.there.pass(1 << 16) > 0 {}
        // The first leaves at once, the others together, in 32 bytes and 35 lines.
        run.record(len);
        let waits = |run: &Run| rustix::io::ioctl_fionread(&run.scene.there.from).expect("a socket");
        let first = waits(&run);
        for _ in 0..5 {
            assert!(run.record(7 * 64 - 40));
        }
        run.scene.a.connection.flush();
        let more = waits(&run) - first;
        assert!(more <= 32 + 35 * 64, "{more} bytes");
        cut += usize::from(more > 0 && more < 32 + 35 * 64);
        // What is written behind such a rest leaves with it, at the next opportunity.
        assert!(run.record(8));
        while run.scene.there.pass(1 << 16) > 0 {}
        run.scene.a.connection.flush();
        assert_eq!(waits(&run), 32 + 35 * 64 - more + 32 + 64, "and nothing is forgotten");
        run.finish();
    }
    assert!(cut > 0, "the socket always took all or nothing");
}

/// Who acknowledges what he never got would have us write over what has not left, and send that: the connection ends.
#[test]
fn who_acknowledges_what_has_not_left_is_corrupt() {
    let scene = Scene::new();
    let mine = scene.a.link.mine();
    let lines = crate::shm::layout::ring_lines(mine.bytes());
    let written = mine.word(WRITTEN);
    written.store(u64::from(lines - 1), Ordering::Relaxed);
    scene.turn();
    assert!(matches!(scene.a.connection.hear(), Reply::Nothing), "so much may wait");
    written.store(u64::from(lines - 1 + lines), Ordering::Relaxed);
    scene.turn();
    assert!(matches!(scene.a.connection.hear(), Reply::Refused(crate::error::Error::Corrupt)));
}

/// Whom we call has another key, and says so before we have said hello.
#[test]
fn who_was_turned_away_before_his_hello_hears_why() {
    use super::call::Call;
    use super::connection::Origin;
    use crate::error::Error;
    let guard = |text: &[u8]| Guard { key: Key::new(text), encrypt: false };
    let ([ours, theirs], office) = (sockets(), office());
    let name = crate::peer::name::Name::new(2, 0, 1, None);
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let origin = Origin { name, to, call: Call::new(&name), by: None, from_listener: false };
    let caller = Connection::new(ours, 3, office.clone(), Some(origin));
    caller.guard(&guard(b"a key"), true).expect("random numbers");
    let called = connection(theirs);
    called.guard(&guard(b"another"), false).expect("random numbers");
    while !matches!(called.hear(), Reply::Refused(Error::KeyDiffers)) {
        called.read(true);
    }
    while caller.read(true).quiet {}
    assert!(!office.has_dirty());
    let hello = Hello::new([1; NAME], [2; NAME], MIN_SEGMENT as u32, 0, [0; 16]);
    let bell = Handed::Own(SharedMem::new(Heap::new(bell::BYTES)));
    assert!(caller.greet(&hello, &Handed::Own(segment::private(MIN_SEGMENT)), &bell).is_ok());
    caller.watch(crate::types::PeerId(7));
    assert_eq!(office.take_dirty(), [3], "somebody looks at it again");
    caller.flush();
    assert_eq!(caller.speaks(), Some(crate::types::PeerId(7)));
    assert!(matches!(caller.hear(), Reply::Refused(Error::KeyDiffers)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn however_the_stream_is_cut_everything_arrives(steps in proptest::collection::vec(step(), 1..120)) {
        let mut run = Run { scene: Scene::new(), records: VecDeque::new(), written: 0, taken: 0, messages: Vec::new() };
        for step in steps {
            run.take(step);
        }
        run.finish();
    }

    #[test]
    fn however_little_the_socket_takes_everything_arrives(steps in proptest::collection::vec(step(), 1..120)) {
        let mut run = Run { scene: Scene::narrow(), records: VecDeque::new(), written: 0, taken: 0, messages: Vec::new() };
        for step in steps {
            run.take(step);
        }
        run.finish();
    }

    #[test]
    fn and_so_it_does_encrypted(steps in proptest::collection::vec(step(), 1..120), encrypt in any::<bool>()) {
        let scene = Scene::guarded(Some(&Guard { key: Key::new(b"a key"), encrypt }));
        let mut run = Run { scene, records: VecDeque::new(), written: 0, taken: 0, messages: Vec::new() };
        for step in steps {
            run.take(step);
        }
        run.finish();
    }

    /// Garbage ends the connection and nothing else.
    #[test]
    fn garbage_ends_a_connection(mut bytes in proptest::collection::vec(any::<u8>(), 32..2000), near in 0u8..4, late in any::<bool>()) {
        let mut scene = Scene::new();
        if late {
            // Behind a record that was read a head may stand where the next lines belong.
            scene.a.link.send(&draft(&[1; 8]), Class::Envelope).expect("room");
            scene.turn();
            let header = scene.record();
            scene.b.link.consume(header.lines());
            scene.b.link.tell();
        }
        if near > 0 {
            // A sound head with another body than is possible.
            let body = match near {
                1 => Body::Records { position: 5, skipped: 0, lines: 2 },
                2 => Body::Records { position: 0, skipped: 0, lines: 10_000 },
                _ => Body::Payload { id: 77, offset: 0, len: 100, lent: false, tell: false },
            };
            bytes[..32].copy_from_slice(&Frame { consumed: 0, credit: 0, body }.emit());
        }
        let memory = SharedMem::new(Heap::new(bytes.len()));
        memory.fill_bytes(0, &bytes);
        let mut sent = 0;
        while sent < bytes.len() {
            sent += tcp::send(&scene.there.to, &[Piece::Own(&memory, sent, bytes.len() - sent)]).expect("send");
        }
        for _ in 0..1000 {
            scene.b.connection.read(true);
            prop_assert!(scene.b.link.peek().is_ok_and(|r| r.is_none()), "a record of garbage");
            if let Reply::Refused(why) = scene.b.connection.hear() {
                prop_assert_eq!(why, crate::error::Error::Corrupt);
                return Ok(());
            }
        }
        prop_assert!(false, "garbage was taken");
    }
}
