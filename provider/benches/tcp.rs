//! The figures of `docs/adr/0019-tcp.md` for short messages: a tagged message of some bytes to and fro over the loopback interface, beside two
//! plain sockets that spin and do nothing else. Two processes on two cores, rounds of both in turn.
//!
//! Each side waits a little before it speaks, not as long each time, and both know how long: an answer that always comes at the same moment after its
//! question is always just behind a look at the socket, or just before one, and that is luck. The time waited is not counted. A receive is posted
//! when the message before it has left, as in programs that send and then receive.
//! `cargo bench -p rustmx-benches --bench tcp [-- BYTES [ROUNDS]]`.

mod node;

use node::{Node, partner};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustmx::config::network::Iface;
use rustmx::types::INLINE_MAX;
use rustmx::{Addr, Config, CqRead, Name, OpFlags};
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Most that a message may take of the time of plain sockets.
const GOAL: f64 = 1.05;
/// Messages of one kind in a round.
const TURNS: usize = 3000;

/// The loopback interface, and nothing else.
fn node() -> Node {
    Node::new(Config { shm: 0, tcp: 1, iface: Iface::parse("127.0.0.1").0, ..Config::default() }, OpFlags::default())
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).expect("two cores are needed");
}

/// One side of both.
struct Side {
    node: Node,
    to: Addr,
    raw: TcpStream,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Side {
    fn new(node: Node, to: Addr, raw: TcpStream, len: usize) -> Side {
        raw.set_nodelay(true).and_then(|()| raw.set_nonblocking(true)).expect("socket");
        Side { node, to, raw, out: vec![1; len], into: vec![0; len] }
    }

    fn say_raw(&mut self) {
        assert_eq!(self.raw.write(&self.out).expect("room"), self.out.len());
    }

    fn hear_raw(&mut self) {
        let mut got = 0;
        while got < self.into.len() {
            match self.raw.read(&mut self.into[got..]) {
                Ok(n) if n > 0 => got += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                end => panic!("plain socket: {end:?}"),
            }
        }
    }

    fn say(&mut self) {
        let inject = self.out.len() <= INLINE_MAX;
        self.node.send(self.to, &mut self.out, inject);
    }

    fn hear(&mut self) {
        while self.node.domain.cq_read(self.node.cq, 1, &mut |_| {}) == CqRead::Empty {}
    }

    /// To and fro, `TURNS` times: the median of half of it, in nanoseconds.
    fn ask(&mut self, raw: bool) -> f64 {
        let mut took: Vec<_> = (0..TURNS)
            .map(|turn| {
                wait(pause(turn, 1));
                let begun = Instant::now();
                if raw {
                    self.say_raw();
                    self.hear_raw();
                } else {
                    self.say();
                    self.node.recv(&mut self.into);
                    self.hear();
                }
                (begun.elapsed() - pause(turn, 2)).as_nanos() as f64 / 2.0
            })
            .collect();
        median(&mut took)
    }

    fn answer(&mut self, raw: bool) {
        for turn in 0..TURNS {
            if raw {
                self.hear_raw();
                wait(pause(turn, 2));
                self.say_raw();
            } else {
                self.node.recv(&mut self.into);
                self.hear();
                wait(pause(turn, 2));
                self.say();
            }
        }
    }
}

/// What a side waits before it speaks: up to a microsecond, some times as long as a look at a socket takes.
fn pause(turn: usize, side: u64) -> Duration {
    Duration::from_nanos((turn as u64 * 2 + side).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54)
}

fn wait(pause: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < pause {}
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of[of.len() / 2]
}

/// `what`: bytes, rounds, port, name.
fn second(what: &str) {
    let words: Vec<_> = what.split_whitespace().collect();
    let (len, rounds): (usize, usize) = (words[0].parse().expect("bytes"), words[1].parse().expect("rounds"));
    // Who polls does not see that nobody is there any more.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("prctl");
    pin(1);
    let raw = TcpStream::connect(("127.0.0.1", words[2].parse::<u16>().expect("port"))).expect("plain socket");
    let node = node();
    let to = node.av.insert(&words[3].parse::<Name>().expect("name"));
    println!("{}", node.name());
    let mut side = Side::new(node, to, raw, len);
    for _ in 0..rounds {
        side.answer(true);
        side.answer(false);
    }
    // The last answer leaves.
    let _ = std::io::stdin().read(&mut [0]);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|a| a == "--second") {
        return second(&args[at + 1]);
    }
    let numbers: Vec<usize> = args.iter().filter_map(|a| a.parse().ok()).collect();
    let (len, rounds) = (numbers.first().copied().unwrap_or(8), numbers.get(1).copied().unwrap_or(20));
    pin(0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let node = node();
    let port = listener.local_addr().expect("address").port();
    let (mut child, mut out) = partner(["--second", &format!("{len} {rounds} {port} {}", node.name())]);
    let raw = listener.accept().expect("plain socket").0;
    let mut line = String::new();
    out.read_line(&mut line).expect("partner");
    let to = node.av.insert(&line.trim().parse::<Name>().expect("name"));
    let mut side = Side::new(node, to, raw, len);
    let (mut plain, mut ours, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (a, b) = (side.ask(true), side.ask(false));
        if round > 0 {
            plain.push(a);
            ours.push(b);
            ratio.push(b / a);
        }
    }
    let (a, b, c) = (median(&mut plain), median(&mut ours), median(&mut ratio));
    let (low, high) = (ratio[ratio.len() / 4], ratio[ratio.len() * 3 / 4]);
    let verdict = if c <= GOAL { "met" } else { "missed" };
    println!(
        "{len} bytes: plain sockets {a:.0} ns, rustmx {b:.0} ns, ratio of a round {c:.3} (middle half {low:.3}..{high:.3}); at most {GOAL}: {verdict}"
    );
    drop(child.stdin.take());
    let _ = child.wait();
}
