//! Several that sleep whenever they find nothing, under random traffic: whatever is to happen does without anybody else's looking, and no wake-up is lost.
//!
//! `RUSTMX_SEED` repeats one seed (threads take turns as they like, though); `RUSTMX_SEEDS` runs so many.

mod common;

use common::{Event, Msg, Node, Rng, Want, pattern, watchdog};
use rustmx::config::network::Iface;
use rustmx::{Addr, CompFlags, Config, Error, Nap, OpFlags, Waiter};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Nobody sleeps so long who is woken, though he may have to wait for a core on a busy machine.
const LONG: Duration = Duration::from_secs(40);
/// Messages from each to each.
const COUNT: usize = 40;
/// Sends of one that are under way.
const AHEAD: usize = 6;
/// The longest message.
const MOST: usize = 300_000;

fn config(rng: &mut Rng, network: bool) -> Config {
    let config = Config {
        ring_size: rng.pick(&[8 << 10, 24 << 10, 256 << 10]),
        eager_max: rng.pick(&[232, 4096, 32 << 10]),
        fragment: rng.pick(&[1000, 8 << 10]),
        eager_window: rng.pick(&[16 << 10, 128 << 10]),
        hot_peers: rng.pick(&[1, 8]),
        syscall_min: rng.pick(&[4 << 10, 64 << 10]),
        cma: rng.pick(&[0, 0, 1]),
        copy_thread: rng.pick(&[0, 0, 2]),
        copy_thread_min: 64 << 10,
        spin: rng.pick(&[0, 0, 20]),
        tcp_ring_size: rng.pick(&[8 << 10, 128 << 10]),
        tcp_eager_max: rng.pick(&[232, 8 << 10]),
        tcp_window: rng.pick(&[16 << 10, 1 << 20]),
        tcp_lanes: rng.pick(&[0, 1, 3]),
        tcp_zerocopy: rng.pick(&[0, 1, 3, 4]),
        ..Config::default()
    };
    if network { Config { shm: 0, iface: Iface::parse("127.0.0.1").0, ..config } } else { config }
}

fn size(rng: &mut Rng) -> usize {
    match rng.below(5) {
        0 => rng.range(0, 300),
        1 | 2 => rng.range(0, 6000),
        3 => rng.range(6000, 70_000),
        _ => rng.range(70_000, MOST),
    }
}

/// What one does with another one.
struct Peer {
    addr: Addr,
    /// Sent so far, and what of that is under way.
    sent: usize,
    out: Vec<Option<Vec<u8>>>,
    /// Where the next message goes.
    got: usize,
    into: Vec<u8>,
}

struct Sleeper {
    node: Node,
    waiter: Waiter,
    me: usize,
    peers: Vec<Peer>,
    rng: Rng,
    under_way: usize,
    slept: usize,
    what: String,
}

/// The bytes of a message.
fn content(from: usize, to: usize, number: usize, n: usize) -> Vec<u8> {
    pattern(n, from * 31 + to * 7 + number * 3)
}

impl Sleeper {
    /// The receive for the next message of a peer always waits: everybody gets on whoever sleeps.
    fn post(&mut self, p: usize) {
        let peer = &mut self.peers[p];
        if peer.got < COUNT {
            peer.into = vec![0; MOST];
            let want = Want::tag(peer.got as u64).from(peer.addr).ctx(p);
            self.node.recv(want, &mut peer.into).expect("recv");
        }
    }

    fn send(&mut self, p: usize) {
        let (n, me, rng) = (size(&mut self.rng), self.me, &mut self.rng);
        let level =
            rng.pick(&[OpFlags::empty(), OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE]);
        let peer = &mut self.peers[p];
        let number = peer.sent;
        let mut buf = content(me, p, number, n);
        let ctx = 1 << 20 | p << 10 | number;
        match self.node.send(Msg::new(peer.addr, number as u64).ctx(ctx).with(level), &mut buf) {
            Ok(()) => {
                peer.out[number] = Some(buf);
                peer.sent += 1;
                self.under_way += 1;
            }
            Err(Error::Again) => {}
            Err(e) => panic!("{}: {e}", self.what),
        }
    }

    fn event(&mut self, e: &Event) {
        let c = e.as_ref().unwrap_or_else(|e| panic!("{}: {e:?}", self.what));
        if c.flags.contains(CompFlags::SEND) {
            let (p, number) = (c.ctx.0 >> 10 & 0x3ff, c.ctx.0 & 0x3ff);
            assert!(self.peers[p].out[number].take().is_some(), "{}: completed twice", self.what);
            self.under_way -= 1;
            return;
        }
        let (p, me) = (c.ctx.0, self.me);
        let peer = &mut self.peers[p];
        assert!(peer.into[..c.len] == content(p, me, peer.got, c.len)[..], "{}: other bytes", self.what);
        peer.got += 1;
        self.post(p);
    }

    fn is_done(&self) -> bool {
        let me = self.me;
        self.under_way == 0 && self.peers.iter().enumerate().all(|(p, peer)| p == me || peer.sent == COUNT && peer.got == COUNT)
    }

    /// Sleeps until something comes.
    fn wait(&mut self) -> Vec<Event> {
        let start = Instant::now();
        loop {
            let got = self.node.poll();
            if !got.is_empty() {
                // A last look would find what was slept through.
                assert!(start.elapsed() < LONG - Duration::from_secs(5), "{}: slept through it", self.what);
                return got;
            }
            assert!(start.elapsed() < LONG, "{}: nothing comes: {:?}", self.what, self.node.stats());
            if let Nap::Sleep(limit) = self.node.domain.doze().expect("no fork") {
                self.slept += 1;
                self.waiter.sleep(Some(limit.map_or(LONG, |l| l.min(LONG))));
                self.node.domain.awake();
            }
        }
    }

    fn work(&mut self) {
        (0..self.peers.len()).filter(|p| *p != self.me).collect::<Vec<_>>().into_iter().for_each(|p| self.post(p));
        while !self.is_done() {
            let p = self.rng.range(0, self.peers.len());
            let may_send = p != self.me && self.peers[p].sent < COUNT && self.under_way < AHEAD;
            match self.rng.below(4) {
                0 | 1 if may_send => self.send(p),
                2 if self.rng.one_in(3) => std::thread::sleep(Duration::from_micros(self.rng.below(300))),
                // Whoever has sent all, or as much as may be under way, sleeps; others do now and then.
                _ if self.under_way == AHEAD || self.has_sent() || self.under_way > 0 && self.rng.one_in(3) => {
                    for e in self.wait() {
                        self.event(&e);
                    }
                }
                _ => {}
            }
        }
    }

    /// Others may still wait for what this one has to say.
    fn attend(&mut self, ended: &AtomicUsize, all: usize) {
        ended.fetch_add(1, Ordering::Relaxed);
        while ended.load(Ordering::Relaxed) < all {
            assert!(self.node.poll().is_empty(), "{}: something comes behind the end", self.what);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_sent(&self) -> bool {
        let me = self.me;
        self.peers.iter().enumerate().all(|(p, peer)| p == me || peer.sent == COUNT)
    }
}

fn run(seed: u64, network: bool) -> usize {
    let mut rng = Rng(seed);
    let n = rng.range(2, 5);
    let config = config(&mut rng, network);
    let nodes: Vec<Node> = (0..n).map(|_| Node::with(config.clone(), common::attr())).collect();
    let names: Vec<_> = nodes.iter().map(Node::name).collect();
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .into_iter()
            .enumerate()
            .map(|(me, mut node)| {
                let (names, ended, rng) = (&names, &ended, Rng(seed * 100 + me as u64));
                let what = format!("RUSTMX_SEED={seed}, {n} sleepers, number {me}");
                scope.spawn(move || {
                    let waiter = node.domain.waiter().expect("waiter");
                    let peer =
                        |name| Peer { addr: node.av.insert(name), sent: 0, out: vec![None; COUNT], got: 0, into: Vec::new() };
                    let peers = names.iter().map(peer).collect();
                    let mut sleeper = Sleeper { node, waiter, me, peers, rng, under_way: 0, slept: 0, what };
                    sleeper.work();
                    sleeper.attend(ended, n);
                    sleeper.slept
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("ends")).sum()
    })
}

fn seeds(n: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match variable("RUSTMX_SEED") {
        Some(one) => one..one + 1,
        None => 1..variable("RUSTMX_SEEDS").unwrap_or(n) + 1,
    }
}

#[test]
fn of_one_host() {
    if common::not_by_network("the other test is") {
        return;
    }
    let _dog = watchdog("sleepers", 600);
    let slept: usize = seeds(6).map(|seed| run(seed, false)).sum();
    println!("slept {slept} times");
    assert!(slept > 0);
}

#[test]
fn by_the_network() {
    let _dog = watchdog("sleepers by the network", 600);
    let slept: usize = seeds(20).map(|seed| run(seed, true)).sum();
    println!("slept {slept} times");
    assert!(slept > 0);
}
