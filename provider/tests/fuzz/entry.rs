//! What is done with bytes that a fuzzer makes up (`fuzz/`), and that `main.rs` replays: an engine hears them from outside. Only what everybody may
//! use of the library is used, so nothing in it is there for fuzzing's sake.
//!
//! Each run has a victim of its own, an honest peer that speaks with it before and after, and a clock of its own. What must hold: nothing panics,
//! every loop ends, memory around buffers is as it was, who speaks no rustmx is hung up on, and the honest peer goes on.

#[path = "keyed.rs"]
pub mod keyed;
#[path = "liar.rs"]
mod liar;

use crate::common::{Msg, Node, Want, attr};
use liar::{BYTES, Liar, Voice, Writer};
use rustix::fd::AsFd;
use rustmx::config::network::Iface;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::region::Region;
use rustmx::shm::layout::{CONTROL_LINES, LINE, LINE_WORDS};
use rustmx::shm::{
    bell,
    segment::{self, Shape},
};
use rustmx::sys::clock::Clock;
use rustmx::sys::{host, memfd, socket};
use rustmx::wire::frame::{FRAME_HEAD, Frame};
use rustmx::wire::header::{Header, Place, Rts};
use rustmx::wire::hello::{HELLO_LEN, Hello, NAME};
use rustmx::wire::loan::Loan;
use rustmx::wire::offer::{Named, Offer, parse_pieces};
use rustmx::wire::order::{Ending, Order};
use rustmx::wire::version::PROTOCOL;
use rustmx::{Access, Addr, Config, Name, UserSeg};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use zerocopy::IntoBytes;

/// Bytes around each buffer that nobody may write, and what is in them.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xee;
/// Room of the victim's receives, by their tags.
const ROOMS: [usize; 4] = [0, 100, 5000, 100_000];
const REGION: usize = 4096;
const HONEST: u64 = 1 << 40;
/// Turns within which everything must have happened.
const TURNS: usize = 50_000;

/// Bytes as a script: small numbers, one after the other.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number whose first byte says how many follow, so that both small and huge ones are short.
    fn number(&mut self) -> u64 {
        match self.byte() {
            254 => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
            255 => u64::MAX - u64::from(self.byte()),
            253 => u64::from(u32::from_le_bytes([0; 4].map(|_: u8| self.byte()))),
            252 => u64::from(u16::from_le_bytes([0; 2].map(|_: u8| self.byte()))),
            small => small.into(),
        }
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// A buffer between guards.
struct Guarded(Vec<u8>);

impl Guarded {
    fn new(room: usize) -> Guarded {
        Guarded(vec![UNTOUCHED; room + 2 * GUARD])
    }

    fn inside(&mut self) -> &mut [u8] {
        let end = self.0.len() - GUARD;
        &mut self.0[GUARD..end]
    }

    fn check(&self) {
        let (before, after) = (&self.0[..GUARD], &self.0[self.0.len() - GUARD..]);
        assert!(before.iter().chain(after).all(|b| *b == UNTOUCHED), "written beside a buffer of {}", self.0.len() - 2 * GUARD);
    }
}

/// The victim and its honest peer.
struct Scene {
    // Engines go before the memory that they were given.
    victim: Node,
    good: Node,
    to_good: Addr,
    to_victim: Addr,
    clock: Arc<AtomicU64>,
    buffers: Vec<Guarded>,
    /// What the victim says to whoever is to be told something.
    message: Vec<u8>,
    config: Config,
    rounds: u64,
}

impl Scene {
    fn new(by_network: bool) -> Scene {
        Scene::with(by_network, Config::default())
    }

    fn with(by_network: bool, special: Config) -> Scene {
        let iface = Iface::parse("127.0.0.1").0;
        let (shm, tcp) = (u64::from(!by_network), u64::from(by_network));
        // Terms of its own, and with them a port: scenes of other threads have another time, and strangers of theirs.
        static SCENES: AtomicU64 = AtomicU64::new(0);
        let peer_timeout = Config::default().peer_timeout + SCENES.fetch_add(1, Ordering::Relaxed) % 1000;
        let config = Config { shm, tcp, iface, peer_timeout, yield_when_idle: 1, close_timeout: 0, ..special };
        let clock = Arc::new(AtomicU64::new(1));
        let open = || Node::open(config.clone(), attr(), Clock::Manual(clock.clone()));
        let (victim, good) = (open(), open());
        let (to_good, to_victim) = (victim.knows(&good), good.knows(&victim));
        let (buffers, message) = (Vec::new(), vec![7; 20_000]);
        let mut scene = Scene { victim, good, to_good, to_victim, clock, buffers, message, config, rounds: 0 };
        scene.exchange();
        scene.offer_memory();
        scene
    }

    /// Receives that a stranger can match, and a region that it can reach.
    fn offer_memory(&mut self) {
        self.buffers = ROOMS.iter().chain([&REGION]).map(|room| Guarded::new(*room)).collect();
        for (tag, buffer) in self.buffers[..ROOMS.len()].iter_mut().enumerate() {
            self.victim.recv(Want::tag(tag as u64), buffer.inside()).expect("recv");
        }
        let inside = self.buffers[ROOMS.len()].inside();
        // SAFETY: the region's memory lives as long as the victim.
        #[expect(unsafe_code)]
        let memory = unsafe { UserSeg::new(inside.as_mut_ptr(), inside.len()) };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.victim.domain.mr_register(Some(1), Region { memory, access, by_address: false }).expect("region");
    }

    fn turns(&mut self, n: usize) {
        for _ in 0..n {
            self.clock.fetch_add(1_000, Ordering::Relaxed);
            drop(self.victim.poll());
        }
    }

    fn wait(&mut self, ns: u64) {
        self.clock.fetch_add(ns, Ordering::Relaxed);
        self.turns(150);
    }

    /// A message each way between the victim and the honest peer.
    fn exchange(&mut self) {
        self.rounds += 1;
        let (tag, word) = (HONEST + self.rounds, self.rounds.to_le_bytes());
        let (mut out, mut back, mut into, mut into_good) = (word, word, [0; 8], [0; 8]);
        self.good.recv(Want::tag(tag), &mut into_good).expect("recv");
        self.victim.recv(Want::tag(tag).from(self.to_good), &mut into).expect("recv");
        self.good.send(Msg::new(self.to_victim, tag), &mut out).expect("send");
        self.victim.send(Msg::new(self.to_good, tag), &mut back).expect("send");
        let (mut open, mut turns) = (4, 0);
        while open > 0 {
            self.clock.fetch_add(1_000, Ordering::Relaxed);
            for node in [&mut self.victim, &mut self.good] {
                open -= node.poll().iter().filter(|e| e.is_ok_and(|c| c.ctx.0 as u64 == tag)).count();
            }
            turns += 1;
            assert!(turns < TURNS, "the honest peer is cut off");
        }
        assert_eq!((into, into_good), (word, word));
    }

    /// From now on another peer is the honest one. It has not spoken with the victim yet.
    fn another_good(&mut self) {
        self.good = Node::open(self.config.clone(), attr(), Clock::Manual(self.clock.clone()));
        (self.to_good, self.to_victim) = (self.victim.knows(&self.good), self.good.knows(&self.victim));
    }

    /// The victim says something. It may be refused, of course.
    fn tell(&mut self, to: Addr, n: usize) {
        let n = n.min(self.message.len());
        let _ = self.victim.send(Msg::new(to, 5), &mut self.message[..n]);
    }

    fn end(mut self) {
        self.turns(100);
        self.exchange();
        self.buffers.iter().for_each(Guarded::check);
    }

    fn stranger(&self) -> TcpStream {
        let name = self.victim.name();
        let stream = TcpStream::connect(SocketAddr::new(name.ip().to_canonical(), name.port())).expect("connect");
        stream.set_nonblocking(true).expect("nonblocking");
        stream.set_nodelay(true).expect("nodelay");
        stream
    }

    /// Writes all of it, as far as it is wanted. Whether somebody still listens.
    fn write(&mut self, stream: &mut TcpStream, mut bytes: &[u8]) -> bool {
        for _ in 0..TURNS {
            match stream.write(bytes) {
                Ok(n) if n == bytes.len() => return true,
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    // It may wait for something that will never come.
                    if self.victim.stats().lost > 0 {
                        return false;
                    }
                    self.turns(1);
                }
                Err(_) => return false,
            }
        }
        false
    }
}

/// Hears what there is. Whether the other side has hung up.
fn hear(stream: &mut TcpStream, heard: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(n) => heard.extend(&bytes[..n]),
            Err(e) => return e.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The name of whoever writes the bytes.
fn somebody(host: u64) -> Name {
    Name::new(0x5eed | 1, 0, host, None)
}

/// The version of the protocol in a name, if that is 0 and should not be.
fn mend_name(name: &mut [u8]) {
    if let [b'r', b'm', b'x', _, flags, version @ 0, ..] = name
        && *flags & 1 == 0
    {
        *version = PROTOCOL as u8;
    }
}

/// The version of the protocol in a hello, if that is 0: else every new version would leave a corpus of hellos that are turned away. In its names, too.
fn mend_version(hello: &mut [u8]) {
    for at in [16, 16 + NAME] {
        hello.get_mut(at..).into_iter().for_each(mend_name);
    }
    if let Some(version) = hello.get_mut(8..12)
        && version == [0; 4]
    {
        version.copy_from_slice(&PROTOCOL.to_le_bytes());
    }
}

/// Bytes on the listening port: first where they are cut, then all that is said. A version and names that are zeros are replaced by sound ones.
pub fn stranger(bytes: &[u8]) {
    let Some((&cut, said)) = bytes.split_first() else { return };
    let mut scene = Scene::new(true);
    let mut said = said.to_vec();
    mend_version(&mut said);
    if said.len() >= HELLO_LEN {
        for (at, name) in [(16, somebody(host::id() ^ 1)), (16 + NAME, scene.victim.name())] {
            if said[at..at + NAME] == [0; NAME] {
                said[at..at + NAME].copy_from_slice(&name.to_bytes());
            }
        }
    }
    let mut stream = scene.stranger();
    let (first, rest) = said.split_at(usize::from(cut).min(said.len()));
    if scene.write(&mut stream, first) {
        scene.turns(70);
        scene.write(&mut stream, rest);
    }
    scene.turns(100);
    if said.len() < HELLO_LEN || Hello::parse(&said[..HELLO_LEN]).is_err() {
        // Who has not said hello in time goes, whatever he has said.
        scene.wait(1_000_000_000);
        scene.wait(6_000_000_000);
        scene.wait(1_000_000_000);
        assert!(hear(&mut stream, &mut Vec::new()), "{} bytes that are no hello, and still connected", said.len());
    }
    drop(stream);
    scene.end();
}

/// A sound hello by network, and then a script of frames ([`Liar`]).
pub fn frames(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut scene = Scene::new(true);
    let name = somebody(host::id() ^ 1);
    let mut liar = Liar::new(&scene, name, Voice::plain(scene.stranger()));
    let hello = liar.hello(&scene);
    let mut listens = liar.voice.say(&mut scene, hello.as_bytes());
    scene.turns(100);
    while listens && !script.is_over() {
        listens = liar.act(&mut scene, &mut script);
    }
    scene.turns(100);
    drop(liar);
    scene.end();
}

/// What a process of this host says on the control socket, and what it then writes into its ring: packets, hellos that lie, loans, records, raw words.
pub fn control(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut scene = Scene::new(false);
    let own = scene.victim.name();
    let (segment_fd, mem) = segment::create(Shape::without_cells(BYTES), false).expect("segment");
    let (bell_fd, _) = memfd::create("rustmx-bell", bell::BYTES, false).expect("bell");
    let mut writer = Writer::new(mem);
    let fd = socket::connect(&own.socket_name()).expect("connect");
    let fds = [segment_fd.as_fd(), bell_fd.as_fd()];
    let name = somebody(host::id());
    while !script.is_over() {
        let _ = match script.byte() % 7 {
            0 => {
                let (n, with) = (script.number() as usize, script.byte() as usize % 3);
                socket::send(&fd, script.bytes(n), &fds[..with])
            }
            1 => {
                let sizes = [BYTES as u64, 4096, 0, 1 << 20, BYTES as u64 + 4096];
                let (size, slot, lie) = (sizes[script.byte() as usize % 5], script.number(), script.byte());
                let to = if lie & 1 != 0 { name } else { own };
                let from = if lie & 2 != 0 { own } else { name };
                let hello = Hello::new(from.to_bytes(), to.to_bytes(), size as u32, slot as u32, [1; 16]);
                let mine = if lie & 4 != 0 { [fds[1], fds[0]] } else { fds };
                socket::send(&fd, hello.as_bytes(), &mine)
            }
            2 => {
                let [number, base, offset, length] = [0; 4].map(|_: u8| script.number());
                let flags = script.byte();
                let loan = Loan::new(number as u32, base, offset, length).to_write(flags & 1 != 0);
                socket::send(&fd, loan.as_bytes(), &fds[..usize::from(flags & 2 != 0)])
            }
            3 => {
                let (line, n) = (script.number() as usize % (BYTES / LINE), script.number() as usize);
                let raw = script.bytes(n);
                let at = CONTROL_LINES * LINE + line * LINE;
                if at + raw.len() <= BYTES {
                    writer.mem.fill_bytes(at, raw);
                }
                Ok(())
            }
            4 => {
                let (word, value) = (script.byte() as usize % (CONTROL_LINES * LINE_WORDS), script.number());
                writer.mem.word(word).store(value, Ordering::Release);
                Ok(())
            }
            5 => {
                let n = script.byte();
                scene.turns(usize::from(n));
                Ok(())
            }
            _ => {
                let _ = writer.record(&mut script);
                Ok(())
            }
        };
    }
    scene.turns(200);
    drop(fd);
    scene.end();
}

/// All that reads bytes or words of a peer into a value: what is taken says the same again.
pub fn parsers(bytes: &[u8]) {
    let mut script = Script(bytes);
    match script.byte() % 7 {
        0 => {
            let mut said = script.0.to_vec();
            mend_version(&mut said);
            if let Ok(hello) = Hello::parse(&said) {
                assert_eq!(hello.as_bytes(), said);
            }
        }
        1 => {
            if let Some(raw) = script.0.first_chunk::<FRAME_HEAD>()
                && let Ok(frame) = Frame::parse(*raw)
            {
                assert_eq!(&frame.emit(), raw);
                assert!(frame.length() <= u32::MAX as usize);
            }
        }
        2 => {
            let words = [0; 3].map(|_: u8| script.number());
            let (position, room) = (script.number() as u32, script.number() as u32 % 2048);
            if let Ok(header) = Header::parse(words, position, room) {
                assert!(header.lines() <= room && header.emit(position) == words);
            }
        }
        3 => {
            let (words, len) = ([0; 2].map(|_: u8| script.number()), script.number() as u16);
            if let Ok(rts) = Rts::parse(words, len) {
                assert!(rts.emit() == words && u64::from(rts.promise) <= rts.total && u32::from(len) <= rts.promise);
            }
            assert_eq!(Place::parse(words).emit(), words);
        }
        4 => {
            if let Ok(offer) = Offer::parse([0; 2].map(|_: u8| script.number())) {
                assert!(Offer::parse(offer.emit()).is_ok());
            }
            let named = Named::of(script.number());
            assert_eq!(Named::of(named.emit()), named);
            let words: Vec<u64> = (0..script.byte() % 20).map(|_| script.number()).collect();
            let said = script.number() as usize;
            if let Ok(pieces) = parse_pieces(&words, said) {
                assert!(pieces.len() <= words.len());
            }
        }
        5 => {
            let word = script.number();
            if let Some((order, bytes)) = Order::parse(word) {
                assert!(bytes <= rustmx::ATOMIC_MAX && Order::parse(order.emit(bytes)) == Some((order, bytes)));
            }
            if let Some(ending) = Ending::parse(word) {
                assert_eq!(Ending::parse(ending.emit()), Some(ending));
            }
        }
        _ => {
            let _ = Loan::parse(script.0);
            let mut bytes = script.0.to_vec();
            mend_name(&mut bytes);
            if let Ok(name) = Name::from_bytes(&bytes) {
                assert_eq!(name.to_bytes()[..], bytes);
                // Text says no scope of an IPv4 address, and of a contact no more than where it is.
                let whole = !name.is_contact() && name.addresses().iter().all(|(ip, scope)| *scope == 0 || ip.is_ipv6());
                assert!(!whole || name.to_string().parse::<Name>() == Ok(name), "{name}");
            }
            if let Ok(text) = std::str::from_utf8(script.0) {
                let _ = text.parse::<Name>();
            }
        }
    }
}
