//! A victim with its log, a well-behaved peer of it that must notice nothing, and what the kernel knows of their connections.

use crate::common::{Deadline, Event, Msg, Node, Want, attr, pattern};
use rustmx::config::network::Iface;
use rustmx::log::{LogLevel, LogSink, LogSubsystem};
use rustmx::sys::clock::Clock;
use rustmx::{Addr, Config, Domain, Log};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Whatever is said.
#[derive(Default)]
pub struct Lines(Mutex<Vec<String>>);

impl LogSink for Lines {
    fn enabled(&self, level: LogLevel, _: LogSubsystem) -> bool {
        level == LogLevel::Warn
    }

    fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
        self.0.lock().expect("lines").push(text.into());
    }
}

impl Lines {
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("lines").clone()
    }
}

/// What is told although the log shows nothing.
#[derive(Default)]
pub struct Insisted(Mutex<Vec<String>>);

impl LogSink for Insisted {
    fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
        false
    }

    fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
        panic!("nobody would see: {text}");
    }

    fn insist(&self, text: &str) {
        self.0.lock().expect("lines").push(text.into());
    }
}

impl Insisted {
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("lines").clone()
    }
}

/// An endpoint of a process whose log is not shown.
pub fn quiet(config: Config) -> (Node, Arc<Insisted>) {
    let said = Arc::new(Insisted::default());
    let domain = Domain::with_clock(Arc::new(config), Log::new(said.clone()), Clock::machine());
    (Node::enabled(domain, attr()), said)
}

/// Peers of these endpoints are reached by TCP only. Endpoints that are opened by clones of one of these have one port; those of different calls have
/// different terms, and with them different ports, as those of other processes would: the tests of a program must not hear each other's strangers.
pub fn network() -> Config {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let peer_timeout = Config::default().peer_timeout + CALLS.fetch_add(1, Ordering::Relaxed);
    Config { shm: 0, iface: Iface::parse("127.0.0.1").0, peer_timeout, ..Config::default() }
}

/// The same, and the kernel reads long messages where they are, wherever it takes them so.
pub fn lending() -> Config {
    Config { tcp_zerocopy: 1, ..network() }
}

/// The same out of registered buffers, where messages come out of the same memory again.
pub fn registering() -> Config {
    Config { tcp_zerocopy: 3, ..network() }
}

/// The same as pages that the receiver reads.
pub fn paging() -> Config {
    Config { tcp_zerocopy: 4, ..network() }
}

/// An endpoint whose warnings are kept.
pub fn open(config: Config) -> (Node, Arc<Lines>) {
    let lines = Arc::new(Lines::default());
    let domain = Domain::with_clock(Arc::new(config), Log::new(lines.clone()), Clock::machine());
    (Node::enabled(domain, attr()), lines)
}

/// Where an endpoint listens.
pub fn place(node: &Node) -> SocketAddr {
    let name = node.name();
    // Names keep IPv4 addresses in IPv6 ones.
    SocketAddr::new(name.ip().to_canonical(), name.port())
}

pub struct Scene {
    pub victim: Node,
    pub lines: Arc<Lines>,
    pub good: Node,
    to_good: Addr,
    to_victim: Addr,
    rounds: usize,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::with(network())
    }

    pub fn with(config: Config) -> Scene {
        let ((victim, lines), good) = (open(config), Node::with(network(), attr()));
        let (to_good, to_victim) = (victim.knows(&good), good.knows(&victim));
        let mut scene = Scene { victim, lines, good, to_good, to_victim, rounds: 0 };
        scene.exchange();
        scene
    }

    /// A verified message each way between the victim and its peer.
    #[track_caller]
    pub fn exchange(&mut self) {
        const TAG: u64 = 1 << 40;
        let n = [8usize, 500, 30_000, 300_000][self.rounds % 4];
        self.rounds += 1;
        let (mut out, mut back) = (pattern(n, self.rounds), pattern(n, self.rounds + 1));
        let (mut into, mut into_good) = (vec![0u8; n], vec![0u8; n]);
        self.good.recv(Want::tag(TAG), &mut into_good).expect("recv");
        self.victim.recv(Want::tag(TAG).from(self.to_good), &mut into).expect("recv");
        self.good.send(Msg::new(self.to_victim, TAG), &mut out).expect("send");
        self.victim.send(Msg::new(self.to_good, TAG), &mut back).expect("send");
        let until = Deadline::new(10);
        let (mut of_victim, mut of_good) = (0, 0);
        let ours = |events: Vec<Event>| events.iter().filter(|e| e.is_ok_and(|c| c.ctx.0 as u64 == TAG)).count();
        while (of_victim, of_good) != (2, 2) {
            of_victim += ours(self.victim.poll());
            of_good += ours(self.good.poll());
            until.check(|| format!("the well-behaved peer is cut off: {of_victim}, {of_good}"));
        }
        assert!(into == out && into_good == back, "round {}", self.rounds);
    }

    /// A caller that the victim does not know yet.
    pub fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(place(&self.victim)).expect("connect");
        stream.set_nonblocking(true).expect("nonblocking");
        stream
    }

    /// The victim hangs up on `stream`, within `seconds`. Returns what it said before.
    #[track_caller]
    pub fn hangs_up(&mut self, stream: &mut TcpStream, seconds: u64, what: &str) -> Vec<u8> {
        let (mut said, until) = (Vec::new(), Deadline::new(seconds));
        loop {
            self.victim.domain.progress();
            if is_hung_up(stream, &mut said) {
                return said;
            }
            until.check(|| format!("{what}: still connected after {seconds} s"));
        }
    }
}

/// Whether the other side has hung up; what it said before is added to `said`.
pub fn is_hung_up(stream: &mut TcpStream, said: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(n) => said.extend(&bytes[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            // Reset: it had not read everything.
            Err(_) => return true,
        }
    }
}

/// A row of the kernel's table of IPv4 connections: the ports of this side and the other one.
pub struct Row {
    pub ports: [u16; 2],
    pub state: State,
}

impl Row {
    pub fn established(&self) -> bool {
        self.state == State::Established
    }

    /// The other side has not answered this call yet.
    pub fn calls(&self) -> bool {
        self.state == State::SynSent
    }
}

/// Of those of tcp(7) what tests ask for. One that has been closed stays in the table for a minute, and a later listener may get the port that it led to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Established,
    SynSent,
    Other,
}

/// All connections over IPv4, of whatever process of this network namespace, seen from both sides. Sockets of IPv6 carry them, too.
pub fn connections() -> Vec<Row> {
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().expect("port"), 16).expect("port");
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (v4, v6) = (read("/proc/net/tcp"), read("/proc/net/tcp6"));
    let lines = v4.lines().skip(1).chain(v6.lines().skip(1));
    // Of a table that changes while it is read the kernel says some rows again.
    let rows: BTreeMap<[&str; 2], Row> = lines
        .map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let ends = [columns[1], columns[2]];
            let state = match columns[3] {
                "01" => State::Established,
                "02" => State::SynSent,
                _ => State::Other,
            };
            (ends, Row { ports: ends.map(port), state })
        })
        .collect();
    rows.into_values().collect()
}
