//! The hot path, one call at a time: `ci/budget.sh` runs this under callgrind and compares the instructions of each
//! function below with `docs/hot-paths.md`. An endpoint sends to itself, so that one process shows both sides.

mod node;

use node::{Node, seg};
use rustmx::cache::Oversight;
use rustmx::cache::exports::{BUDGET, Exports};
use rustmx::config::network::Iface;
use rustmx::config::processor::Processor;
use rustmx::mem::shared::Backing;
use rustmx::sys::clock::Clock;
use rustmx::{Addr, Config, CqId, CqRead, Domain, EpId, OpFlags, RecvArgs, SendArgs, UserCtx, UserSeg};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An endpoint that knows itself.
struct Loop {
    domain: Domain,
    ep: EpId,
    cq: CqId,
    to: Addr,
}

#[inline(never)]
fn budget_inject(n: &mut Loop, iov: &[UserSeg]) {
    let args = SendArgs { to: n.to, tagged: true, tag: 5, data: Some(1), iov, ctx: UserCtx(1), flags: None, inject: true };
    n.domain.send(n.ep, &args).expect("room");
}

#[inline(never)]
fn budget_send(n: &mut Loop, iov: &[UserSeg]) {
    let args = SendArgs { to: n.to, tagged: true, tag: 5, data: Some(1), iov, ctx: UserCtx(1), flags: None, inject: false };
    n.domain.send(n.ep, &args).expect("room");
}

#[inline(never)]
fn budget_post(n: &mut Loop, iov: &[UserSeg]) {
    let args = RecvArgs { from: n.to, tagged: true, tag: 5, ignore: 0, iov, ctx: UserCtx(2), flags: None };
    n.domain.recv(n.ep, &args).expect("posted");
}

#[inline(never)]
fn budget_receive(n: &mut Loop) -> CqRead {
    n.domain.cq_read(n.cq, 1, &mut |c| {
        black_box(c.len);
    })
}

#[inline(never)]
fn budget_completion(n: &mut Loop) -> CqRead {
    n.domain.cq_read(n.cq, 1, &mut |c| {
        black_box(c.flags); // Not the body of `budget_receive`: the linker would make them one.
    })
}

#[inline(never)]
fn budget_idle(n: &mut Loop) -> CqRead {
    n.domain.cq_read(n.cq, 1, &mut |_| {})
}

#[inline(never)]
fn budget_cached(exports: &mut Exports, at: usize) -> u64 {
    exports.look(at, 8192).map_or(0, |export| export.offset + u64::from(export.id))
}

#[inline(never)]
fn budget_uncached(exports: &mut Exports, at: usize) -> bool {
    exports.look(at, 8192).is_none()
}

/// Buffers in the registration cache: one that is known, and ones that never come again.
fn buffers(rounds: u32) {
    let (fd, mapping) = rustmx::sys::memfd::create("hotpath", 1 << 16, false).expect("memfd");
    let at = mapping.base().as_ptr() as usize;
    let mut exports = Exports::default();
    if let Some(why) = exports.refusal() {
        // Under callgrind there may be no userfaultfd; what a hit costs does not depend on it.
        println!("not watched: {why}");
        exports = Exports::new(BUDGET, Oversight::Blind);
    }
    assert!((0..100_000).any(|_| exports.look(at, 8192).is_some()), "{:?}", exports.explain(at, 8192));
    let t = Instant::now();
    for round in 0..rounds {
        assert!(budget_cached(&mut exports, at + 64 * (round as usize & 63)) > 0);
    }
    println!("buffer that is cached: {:.1} ns", t.elapsed().as_nanos() as f64 / f64::from(rounds));
    let t = Instant::now();
    for round in 0..rounds {
        assert!(budget_uncached(&mut exports, (round as usize + 1) << 20));
    }
    println!("buffer seen once: {:.1} ns", t.elapsed().as_nanos() as f64 / f64::from(rounds));
    drop(fd);
}

/// Short messages to another endpoint by TCP, until the kernel has them.
#[inline(never)]
fn budget_network_send(n: &mut Node, to: Addr, buf: &mut [u8]) {
    n.send(to, buf, true);
}

/// The poll that finds one.
#[inline(never)]
fn budget_network_receive(n: &mut Node) -> CqRead {
    n.domain.cq_read(n.cq, 1, &mut |c| _ = black_box(c.len))
}

/// A poll before one has left: nothing is there.
#[inline(never)]
fn budget_network_idle(n: &mut Node) -> CqRead {
    n.domain.cq_read(n.cq, 1, &mut |c| _ = black_box((c.len, c.tag)))
}

/// Messages that fill a cell, to another endpoint of this host.
#[inline(never)]
fn budget_record_send(n: &mut Node, to: Addr, buf: &mut [u8]) {
    n.send(to, buf, false);
}

/// The same of a buffer that is given back at once.
#[inline(never)]
fn budget_record_inject(n: &mut Node, to: Addr, buf: &mut [u8]) {
    n.send(to, buf, true);
}

#[inline(never)]
fn budget_record_receive(n: &mut Node) {
    assert_eq!(n.domain.cq_read(n.cq, 1, &mut |c| _ = black_box((c.len, c.flags))), CqRead::Got(1));
}

/// Ones that go from buffer to buffer.
#[inline(never)]
fn budget_network_long_send(n: &mut Node, to: Addr, buf: &mut [u8]) {
    n.send(to, buf, false);
}

#[inline(never)]
fn budget_network_long_receive(n: &mut Node) -> CqRead {
    n.domain.cq_read(n.cq, 1, &mut |c| _ = black_box(c.flags))
}

/// What time it is for endpoints whose calls are counted. Some of what a poll does it does by the clock, and how much of that falls to one message should
/// not be told by how slow the machine is.
struct Time(Option<Arc<AtomicU64>>);

impl Time {
    fn machine() -> Time {
        Time(None)
    }

    fn counted() -> Time {
        Time(Some(Arc::default()))
    }

    fn clock(&self) -> Clock {
        self.0.clone().map_or_else(Clock::of_process, Clock::Manual)
    }

    /// The kernel delivers what it has; how many polls would come too early is no matter of ours. For the endpoints that was `ns`.
    fn pass(&self, ns: u64) {
        if let Some(now) = &self.0 {
            std::thread::sleep(Duration::from_micros(20));
            now.fetch_add(ns, Ordering::Relaxed);
        }
    }
}

/// One message, short or long.
fn exchange(from: &mut Node, at: &mut Node, to: Addr, out: &mut [u8], into: &mut [u8], time: &Time) {
    const TRIP: u64 = 5_000;
    at.recv(into);
    let found = if out.len() <= 8 {
        if time.0.is_some() {
            assert_eq!(budget_network_idle(at), CqRead::Empty);
        }
        budget_network_send(from, to, out);
        time.pass(TRIP);
        budget_network_receive(at)
    } else {
        budget_network_long_send(from, to, out);
        time.pass(TRIP);
        budget_network_long_receive(at)
    };
    // On the machine's time, or the kernel took longer than anybody expects.
    if found == CqRead::Empty {
        while at.domain.cq_read(at.cq, 1, &mut |_| {}) == CqRead::Empty {}
    }
}

/// A message with which both sides have patience: first contact.
fn meet(from: &mut Node, at: &mut Node, to: Addr, out: &mut [u8], into: &mut [u8], time: &Time) {
    at.recv(into);
    from.send(to, out, false);
    while at.domain.cq_read(at.cq, 1, &mut |_| {}) == CqRead::Empty {
        time.pass(20_000);
        from.domain.progress();
    }
}

/// To and fro between two endpoints of this process by shared memory, in cells.
fn records(rounds: u32) {
    const LEN: usize = 1024;
    let [mut a, mut b] = [(); 2].map(|()| Node::new(Config::on(Processor::Zen5), OpFlags::empty()));
    let (to_a, to_b) = (b.av.insert(&a.name()), a.av.insert(&b.name()));
    let (mut out, mut into) = (vec![1; LEN], vec![0; LEN]);
    // First contact: until both have the other's cells.
    for _ in 0..64 {
        meet(&mut a, &mut b, to_b, &mut out, &mut into, &Time::machine());
        meet(&mut b, &mut a, to_a, &mut out, &mut into, &Time::machine());
    }
    let t = Instant::now();
    for _ in 0..rounds {
        b.recv(&mut into);
        budget_record_send(&mut a, to_b, &mut out);
        budget_record_receive(&mut b);
        a.recv(&mut into);
        budget_record_send(&mut b, to_a, &mut out);
        budget_record_receive(&mut a);
        b.recv(&mut into);
        budget_record_inject(&mut a, to_b, &mut out);
        budget_record_receive(&mut b);
        a.recv(&mut into);
        budget_record_inject(&mut b, to_a, &mut out);
        budget_record_receive(&mut a);
    }
    println!("{LEN} bytes in a cell, one thread: {:.1} ns", t.elapsed().as_nanos() as f64 / 4.0 / f64::from(rounds));
}

/// To and fro between two endpoints of this process that take each other for other hosts.
fn network(rounds: u32, len: usize, time: &Time) {
    let config = || Config { shm: 0, iface: Iface::parse("127.0.0.1").0, tcp_eager_max: 232, ..Config::default() };
    let [mut a, mut b] = [(); 2].map(|()| Node::on(time.clock(), config(), OpFlags::empty()));
    let (to_a, to_b) = (b.av.insert(&a.name()), a.av.insert(&b.name()));
    let (mut out, mut into) = (vec![1; len], vec![0; len]);
    meet(&mut a, &mut b, to_b, &mut out, &mut into, time);
    let mut spent = Duration::ZERO;
    for round in 0..rounds + 100 {
        let t = Instant::now();
        exchange(&mut b, &mut a, to_a, &mut out, &mut into, time);
        exchange(&mut a, &mut b, to_b, &mut out, &mut into, time);
        if round >= 100 {
            spent += t.elapsed();
        }
    }
    println!("{len} bytes by TCP, one thread: {:.0} ns", spent.as_nanos() as f64 / 2.0 / f64::from(rounds));
}

fn main() {
    let rounds = if std::env::args().any(|a| a == "--count") { 2_000u32 } else { 300_000 };
    // System calls are counted in all of a run: one that has a network is a run of its own.
    if let Some(path) = std::env::args().find(|a| a.starts_with("budget_network")) {
        return network(rounds, if path.starts_with("budget_network_long") { 1024 } else { 8 }, &Time::counted());
    }
    if std::env::args().any(|a| a.starts_with("budget_record")) {
        return records(rounds);
    }
    let counts = std::env::args().any(|a| a.starts_with("budget_"));
    let Node { domain, ep, cq, av } = Node::new(Config { yield_when_idle: 1, ..Config::default() }, OpFlags::COMPLETION);
    let to = av.insert(&domain.ep_name(ep).expect("name"));
    let mut n = Loop { domain, ep, cq, to };
    let mut buf = [0u8; 8];
    let iov = [seg(&mut buf)];
    // First contact makes rings and tables; that is no hot path.
    let first = RecvArgs { from: n.to, tagged: true, tag: 5, ignore: 0, iov: &iov, ctx: UserCtx(2), flags: None };
    n.domain.recv(n.ep, &first).expect("posted");
    let first = SendArgs { to: n.to, tagged: true, tag: 5, data: None, iov: &iov, ctx: UserCtx(1), flags: None, inject: true };
    n.domain.send(n.ep, &first).expect("room");
    assert_eq!(n.domain.cq_read(n.cq, 1, &mut |_| {}), CqRead::Got(1));
    let mut spent = [Duration::ZERO; 2];
    for round in 0..rounds + 100 {
        let t = Instant::now();
        budget_post(&mut n, &iov);
        budget_inject(&mut n, &iov);
        assert_eq!(budget_receive(&mut n), CqRead::Got(1));
        if round >= 100 {
            spent[0] += t.elapsed();
        }
        budget_post(&mut n, &iov);
        budget_send(&mut n, &iov);
        assert_eq!(budget_completion(&mut n), CqRead::Got(1));
        assert_eq!(budget_receive(&mut n), CqRead::Got(1));
    }
    let t = Instant::now();
    for _ in 0..rounds {
        budget_idle(&mut n);
    }
    spent[1] = t.elapsed();
    println!("post + inject + receive: {:.1} ns", spent[0].as_nanos() as f64 / f64::from(rounds));
    println!("idle poll: {:.1} ns", spent[1].as_nanos() as f64 / f64::from(rounds));
    buffers(rounds);
    if !counts {
        records(rounds);
    }
    for len in [8, 1024].into_iter().filter(|_| !counts) {
        network(rounds.min(30_000), len, &Time::machine());
    }
}
