//! Memory of peers against plain bytes: puts, gets and atomics of one engine on a region of another, both ways at once, in
//! any mixture of direct access and the target's engine; the kernel may stop to allow it in the middle.
//!
//! The oracle: records of one initiator are carried out in the order of its calls, so the bytes are those of a plain array that the
//! calls were applied to. A get reads some time between its call and its completion, so nothing is put where one is
//! under way.

use crate::common::{Event, Node, Rng, attr, pattern, seg, watchdog};
use crate::net::{Shared, Weather};
use crate::wires::Wires;
use crate::world;
use crate::{seeds, variable};
use rustmx::{
    Access, Addr, AtomicArgs, AtomicForm, AtomicOp, AtomicType, Error, INJECT_MAX, OpFlags, Order, Region, RemoteSeg, RmaArgs,
    UserCtx,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BYTES: usize = 40_000;
const KEY: u64 = 77;
/// Atomics go to the last bytes.
const WORDS: usize = 64;
const PLAIN: usize = BYTES - WORDS * 8;

/// An operation under way.
struct Op {
    /// What it must find: bytes of a get, old values of an atomic.
    want: Vec<u8>,
    buf: Vec<u8>,
    /// What a get may be reading.
    reads: Range<usize>,
    open: bool,
}

struct Half {
    node: Node,
    to: Addr,
    region: Vec<u8>,
    /// What the other one's region should be.
    oracle: Vec<u8>,
    ops: Vec<Op>,
}

struct Pair {
    halves: [Half; 2],
    net: Shared,
    wires: Wires,
    clock: Arc<AtomicU64>,
    rng: Rng,
    seed: u64,
    alive: [bool; 2],
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nRUSTMX_SEED={} repeats this.", self.seed);
            self.net.lock().trace.print();
        }
    }
}

impl Pair {
    /// By TCP, or inside a host.
    fn new(seed: u64, wired: bool) -> Pair {
        let mut rng = Rng(seed);
        let clock = Arc::new(AtomicU64::new(1));
        let weather =
            Weather { delay: rng.pick(&[0, 1_000, 30_000]), deaf: 0, busy: rng.pick(&[0, 3]), mute: rng.pick(&[0, 3]), thin: 0 };
        let net = Shared::new(seed, weather, clock.clone());
        let key = (wired && rng.one_in(3)).then(|| rng.next());
        let nodes = [0, 1].map(|number| match wired {
            true => world::open(world::wired(&mut rng, key), attr(), &clock, &net, Some(number)),
            false => world::open(world::config(&mut rng), attr(), &clock, &net, None),
        });
        let mut wires = Wires::default();
        let ways = [0, 1].map(|a| match wired {
            true => nodes[a].av.insert(&wires.plug(a, 1 - a, &nodes[1 - a])),
            false => nodes[a].knows(&nodes[1 - a]),
        });
        let mut at = 0;
        let halves = nodes.map(|mut node| {
            let mut region = pattern(BYTES, at);
            let memory = seg(&mut region);
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let region_of = Region { memory, access, by_address: false };
            node.domain.mr_register(Some(KEY), region_of).expect("registered");
            let half = Half { node, to: ways[at], oracle: pattern(BYTES, 1 - at), region, ops: Vec::new() };
            at += 1;
            half
        });
        Pair { halves, net, wires, clock, rng, seed, alive: [true; 2] }
    }

    fn with<T>(&mut self, s: usize, f: impl FnOnce(&mut Node) -> T) -> T {
        self.net.lock().deliver();
        let did = f(&mut self.halves[s].node);
        self.wires.pass(&mut self.rng);
        let mut net = self.net.lock();
        if !net.is_empty() {
            net.collect(s);
        }
        did
    }

    fn turn(&mut self, s: usize) {
        if !self.alive[s] {
            return;
        }
        self.clock.fetch_add(self.rng.range(1_000, 20_000) as u64, Ordering::Relaxed);
        for e in self.with(s, Node::poll) {
            self.event(s, &e);
        }
    }

    fn event(&mut self, s: usize, e: &Event) {
        let seed = self.seed;
        let (ctx, error) = match e {
            Ok(c) => (c.ctx.0, None),
            Err(e) => (e.c.ctx.0, Some(e)),
        };
        let flags = e.as_ref().map_or_else(|e| e.c.flags, |c| c.flags);
        self.net.lock().note(format_args!("{s} completes {ctx}: {:?} {flags:?}", error.map(|e| e.error)));
        let other = self.halves[1 - s].node.name();
        let op = &mut self.halves[s].ops[ctx];
        assert!(std::mem::take(&mut op.open), "seed {seed}: completed twice: {e:?}");
        match error {
            None => assert!(op.buf[..op.want.len()] == op.want, "seed {seed}: operation {ctx} found other bytes"),
            Some(e) => {
                assert!(!self.alive[1 - s] && matches!(e.error, Error::PeerGone | Error::Refused), "seed {seed}: {e:?}");
                assert_eq!(e.peer, Some(other), "seed {seed}: names somebody else");
            }
        }
    }

    fn step(&mut self, s: usize) {
        let words = self.rng.one_in(3);
        let (start, len) = if words {
            (PLAIN + 8 * self.rng.range(0, WORDS - 8), 8 * self.rng.range(1, 9))
        } else {
            let len = match self.rng.below(3) {
                0 => self.rng.range(0, 100),
                1 => self.rng.range(100, 3000),
                _ => self.rng.range(3000, 20_000),
            };
            // Near the words, too: what is direct must not overtake an atomic.
            let start = if self.rng.one_in(2) { BYTES - len } else { self.rng.range(0, PLAIN - len) };
            (start, len)
        };
        let range = start..start + len;
        let place = [RemoteSeg { addr: start as u64, len, key: KEY }];
        let number = self.halves[s].ops.len();
        let overlaps = |o: &Op| o.open && o.reads.start < range.end && range.start < o.reads.end;
        let is_read = self.halves[s].ops.iter().any(overlaps);
        if words {
            if is_read {
                return;
            }
            self.atomic(s, range, &place);
        } else {
            let write = self.rng.one_in(2);
            let half = &mut self.halves[s];
            if write && is_read {
                return;
            }
            let before = half.oracle[range.clone()].to_vec();
            let buf = if write { pattern(len, number + s * 1000) } else { vec![0; len] };
            let inject = write && len <= INJECT_MAX && self.rng.one_in(3);
            let (want, reads) = if write { (Vec::new(), 0..0) } else { (before.clone(), range.clone()) };
            half.ops.push(Op { want, buf, reads, open: !inject });
            let iov = [seg(&mut half.ops[number].buf)];
            let flags = Some(OpFlags::COMPLETION);
            let args = RmaArgs { to: half.to, write, iov: &iov, places: &place, data: None, ctx: UserCtx(number), flags, inject };
            let done = self.with(s, |node| node.domain.rma(node.ep, &args));
            let half = &mut self.halves[s];
            match done {
                Ok(()) if write => half.oracle[range].copy_from_slice(&pattern(len, number + s * 1000)),
                Ok(()) => {}
                Err(e) => self.refused(s, e),
            }
        }
        self.net.lock().note(format_args!("{s} does {number} to {start}+{len}, words: {words}"));
    }

    fn atomic(&mut self, s: usize, range: Range<usize>, place: &[RemoteSeg]) {
        let half = &mut self.halves[s];
        let (number, len) = (half.ops.len(), range.len());
        let (op, form) = self.rng.pick(&[
            (AtomicOp::Sum, AtomicForm::Base),
            (AtomicOp::Sum, AtomicForm::Fetch),
            (AtomicOp::Write, AtomicForm::Fetch),
            (AtomicOp::Swap, AtomicForm::Compare),
        ]);
        let old = half.oracle[range.clone()].to_vec();
        let value = |b: &[u8], i: usize| u64::from_le_bytes(b[i * 8..i * 8 + 8].try_into().expect("8"));
        let mut operands: Vec<u8> = (0..len / 8).flat_map(|_| self.rng.next().to_le_bytes()).collect();
        // Every other value is expected.
        let mut comparands: Vec<u8> = (0..len / 8).flat_map(|i| (value(&old, i) ^ (i as u64 & 1)).to_le_bytes()).collect();
        let new: Vec<u8> = (0..len / 8)
            .flat_map(|i| {
                let (o, n) = (value(&old, i), value(&operands, i));
                let v = match op {
                    AtomicOp::Sum => o.wrapping_add(n),
                    AtomicOp::Write => n,
                    _ if i & 1 == 0 => n,
                    _ => o,
                };
                v.to_le_bytes()
            })
            .collect();
        let fetches = form != AtomicForm::Base;
        half.ops.push(Op { want: if fetches { old } else { Vec::new() }, buf: vec![0; len], reads: 0..0, open: true });
        let (mine, theirs, results) = ([seg(&mut operands)], [seg(&mut comparands)], [seg(&mut half.ops[number].buf)]);
        let args = AtomicArgs {
            to: half.to,
            order: Order { op, kind: AtomicType::U64, form },
            operands: &mine,
            comparands: if form == AtomicForm::Compare { &theirs } else { &[] },
            results: if fetches { &results } else { &[] },
            places: place,
            ctx: UserCtx(number),
            flags: Some(OpFlags::COMPLETION),
            inject: false,
        };
        match self.with(s, |node| node.domain.atomic(node.ep, &args)) {
            Ok(()) => self.halves[s].oracle[range].copy_from_slice(&new),
            Err(e) => self.refused(s, e),
        }
    }

    fn refused(&mut self, s: usize, e: Error) {
        assert!(e == Error::Again || !self.alive[1 - s], "seed {}: {e}", self.seed);
        self.halves[s].ops.pop();
    }

    fn is_open(&self, s: usize) -> bool {
        self.alive[s] && self.halves[s].ops.iter().any(|o| o.open)
    }

    /// Everything ends.
    fn settle(&mut self) {
        for round in 0..5000 {
            if !self.is_open(0) && !self.is_open(1) && self.agrees() {
                return;
            }
            if round > 2500 && self.wires.any() {
                std::thread::sleep(Duration::from_millis(2));
            }
            self.turn(0);
            self.turn(1);
        }
        assert!(!self.is_open(0) && !self.is_open(1), "seed {}: something never completes", self.seed);
        panic!("seed {}: the memory is not what was put there", self.seed);
    }

    /// Whether both regions are what was put there. (Injected puts say nothing when they are done.)
    fn agrees(&self) -> bool {
        let [a, b] = &self.halves;
        let dead = self.alive.contains(&false);
        dead || a.region == b.oracle && b.region == a.oracle
    }
}

#[test]
fn memory_is_what_was_put_there() {
    let _dog = watchdog("memory", 300);
    let (mut direct, mut one_sided, mut atomics, mut both) = (0, 0, 0, 0);
    for seed in seeds(60) {
        let mut pair = Pair::new(seed, false);
        let closes = pair.rng.below(300);
        for step in 0..200 {
            let s = pair.rng.range(0, 2);
            if step == closes {
                // From now on the other one's engine does it, after what was done without.
                let net = pair.net.clone();
                net.lock().close_to_kernel(s);
            }
            if pair.rng.one_in(2) { pair.step(s) } else { pair.turn(s) }
        }
        pair.settle();
        for half in &pair.halves {
            let stats = half.node.stats();
            direct += stats.direct;
            one_sided += stats.one_sided;
            atomics += stats.atomics;
            both += u64::from(stats.direct > 0 && stats.one_sided > 0);
        }
    }
    println!("{direct} direct, {one_sided} by the target, {atomics} atomics; {both} changed from one to the other or mixed them");
    assert!(variable("RUSTMX_SEED").is_some() || one_sided > 0 && atomics > 0);
}

/// The same by TCP.
#[test]
fn memory_that_is_elsewhere_is_what_was_put_there() {
    let _dog = watchdog("memory by TCP", 300);
    let (mut one_sided, mut atomics) = (0, 0);
    for seed in seeds(30) {
        let mut pair = Pair::new(seed, true);
        for _ in 0..200 {
            let s = pair.rng.range(0, 2);
            if pair.rng.one_in(2) { pair.step(s) } else { pair.turn(s) }
        }
        pair.settle();
        for half in &pair.halves {
            one_sided += half.node.stats().one_sided;
            atomics += half.node.stats().atomics;
        }
    }
    println!("{one_sided} by the target, {atomics} atomics");
    assert!(variable("RUSTMX_SEED").is_some() || one_sided > 0 && atomics > 0);
}

#[test]
fn the_target_dies() {
    let _dog = watchdog("memory of the dead", 300);
    for seed in seeds(100) {
        let mut pair = Pair::new(seed, false);
        if pair.rng.one_in(2) {
            let net = pair.net.clone();
            net.lock().close_to_kernel(0);
        }
        for _ in 0..pair.rng.range(1, 150) {
            let s = pair.rng.range(0, 2);
            if pair.rng.one_in(2) { pair.step(s) } else { pair.turn(s) }
        }
        pair.net.lock().kill(0);
        pair.alive[0] = false;
        for _ in 0..20 {
            if pair.rng.one_in(2) { pair.step(1) } else { pair.turn(1) }
        }
        pair.settle();
    }
}
