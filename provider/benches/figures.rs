//! The figures of `docs/adr/0004-ring.md`, measured in one go on this machine: two pinned processes, medians of rounds, the
//! bare hand-over of a cache line before and after. `cargo bench --bench figures [-- latency|poll]`.

mod node;

use node::{Node, partner};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::SharedMem;
use rustmx::{Addr, Config, CqRead, Name, OpFlags};
use std::io::{BufRead, Write};
use std::time::Instant;

fn node(tx_flags: OpFlags) -> Node {
    Node::new(Config { yield_when_idle: 1, ..Config::default() }, tx_flags)
}

fn wait(node: &mut Node, mut n: usize) {
    while n > 0 {
        match node.domain.cq_read(node.cq, n, &mut |_| {}) {
            CqRead::Got(k) => n -= k,
            CqRead::Empty => {}
            CqRead::ErrorPending => panic!("{:?}", node.domain.cq_read_error(node.cq)),
        }
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

fn line(r: &mut impl BufRead) -> String {
    let mut s = String::new();
    r.read_line(&mut s).expect("partner speaks");
    s.trim().to_string()
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

const SIZES: [usize; 16] = [0, 8, 32, 40, 41, 64, 104, 232, 256, 512, 1024, 4096, 8192, 65536, 1 << 20, 4 << 20];

fn iterations(n: usize) -> usize {
    (20_000_000 / (n + 1000)).clamp(20, 20_000)
}

fn pingpong(node: &mut Node, peer: Addr, n: usize, iters: usize, first: bool, delivery: bool) {
    let (mut tx, mut rx) = (vec![1u8; n], vec![0u8; n]);
    let inject = n <= 232 && !delivery;
    let sends = usize::from(!inject);
    for _ in 0..iters {
        node.recv(&mut rx);
        if first {
            node.send(peer, &mut tx, inject);
            wait(node, 1 + sends);
        } else {
            wait(node, 1);
            node.send(peer, &mut tx, inject);
            wait(node, sends);
        }
    }
}

fn level(delivery: bool) -> OpFlags {
    if delivery { OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE } else { OpFlags::COMPLETION }
}

fn latency(delivery: bool) -> Vec<f64> {
    let (mut child, mut out) = partner(["--role=pong", &delivery.to_string()]);
    pin(0);
    let mut node = node(level(delivery));
    let theirs: Name = line(&mut out).parse().expect("name");
    writeln!(child.stdin.as_mut().expect("stdin"), "{}", node.name()).expect("partner listens");
    let peer = node.av.insert(&theirs);
    let mut rows = Vec::new();
    for n in SIZES {
        let iters = iterations(n);
        pingpong(&mut node, peer, n, iters / 10 + 1, true, delivery);
        let times = (0..5).map(|_| {
            let t = Instant::now();
            pingpong(&mut node, peer, n, iters, true, delivery);
            t.elapsed().as_secs_f64() * 1e9 / iters as f64 / 2.0
        });
        rows.push(median(times.collect()));
    }
    child.wait().expect("partner");
    rows
}

fn pong(delivery: bool) {
    pin(1);
    let mut node = node(level(delivery));
    println!("{}", node.name());
    let peer = node.av.insert(&line(&mut std::io::stdin().lock()).parse().expect("name"));
    for n in SIZES {
        let iters = iterations(n);
        pingpong(&mut node, peer, n, iters / 10 + 1, false, delivery);
        for _ in 0..5 {
            pingpong(&mut node, peer, n, iters, false, delivery);
        }
    }
    node.domain.ep_close(node.ep).expect("close");
}

/// Two words on lines of their own in memory that both processes map.
fn handover(first: bool, mem: &SharedMem) -> f64 {
    const N: u64 = 200_000;
    let (a, b) = (mem.word(0), mem.word(64));
    let t = Instant::now();
    for i in 1..=N {
        if first {
            a.store(i, Ordering::Release);
            while b.load(Ordering::Acquire) != i {}
        } else {
            while a.load(Ordering::Acquire) != i {}
            b.store(i, Ordering::Release);
        }
    }
    t.elapsed().as_secs_f64() * 1e9 / N as f64 / 2.0
}

fn bare_handover() -> f64 {
    let (fd, map) = rustmx::sys::memfd::create("bench", 4096, false).expect("memfd");
    let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&fd));
    let (mut child, mut out) = partner(["--role=line", &path]);
    pin(0);
    line(&mut out);
    let ns = handover(true, &SharedMem::new(map));
    child.wait().expect("partner");
    ns
}

fn other_line(path: &str) {
    pin(1);
    let fd = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("memfd");
    let map = rustmx::sys::memfd::attach(&fd, 4096, true).expect("map");
    println!("ready");
    handover(false, &SharedMem::new(map));
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    text.split_whitespace().nth(1).and_then(|p| p.parse::<usize>().ok()).expect("pages") * 4096
}

/// Connects `peers` endpoints of this process to one, fills the rings both ways, and measures an idle poll and memory.
fn poll_and_memory(peers: usize) {
    pin(0);
    let mut hub = node(OpFlags::COMPLETION);
    let hub_name = hub.name();
    let mut others: Vec<Node> = (0..peers).map(|_| node(OpFlags::COMPLETION)).collect();
    let before = resident();
    let (mut tx, mut rx) = (vec![1u8; 4096], vec![0u8; 4096]);
    for other in &mut others {
        let hub_addr = other.av.insert(&hub_name);
        let back = hub.av.insert(&other.name());
        for _ in 0..12 {
            hub.recv(&mut rx);
            other.send(hub_addr, &mut tx, false);
            while hub.domain.cq_read(hub.cq, 1, &mut |_| {}) == CqRead::Empty {
                other.domain.progress();
            }
            wait(other, 1);
            other.recv(&mut rx);
            hub.send(back, &mut tx, false);
            wait(&mut hub, 1);
            wait(other, 1);
        }
    }
    let after = resident();
    let ns = median(
        (0..9)
            .map(|_| {
                let t = Instant::now();
                for _ in 0..100_000 {
                    hub.domain.cq_read(hub.cq, 1, &mut |_| {});
                }
                t.elapsed().as_secs_f64() * 1e9 / 100_000.0
            })
            .collect(),
    );
    let per_peer = if peers > 0 { (after - before) as f64 / peers as f64 / 1024.0 / 2.0 } else { 0.0 };
    println!("{peers:>6} {ns:>12.1} {per_peer:>24.1}");
    for other in &mut others {
        other.domain.ep_close(other.ep).expect("close");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = args.first().and_then(|a| a.strip_prefix("--role=")) {
        match role {
            "pong" => pong(args[1] == "true"),
            _ => other_line(&args[1]),
        }
        return;
    }
    let wanted = |what: &str| args.iter().all(|a| a.starts_with('-')) || args.iter().any(|a| a == what);
    if wanted("latency") {
        let before = bare_handover();
        let plain = latency(false);
        let delivery = latency(true);
        let after = bare_handover();
        println!("bare hand-over of a line: {before:.0} ns before, {after:.0} ns after");
        println!("{:>9} {:>12} {:>30}", "bytes", "one-way ns", "every send delivery-complete");
        for ((n, plain), delivery) in SIZES.iter().zip(&plain).zip(&delivery) {
            println!("{n:>9} {plain:>12.0} {delivery:>30.0}");
        }
    }
    if wanted("poll") {
        println!("{:>6} {:>12} {:>24}", "peers", "idle poll ns", "resident KiB a peer");
        for peers in [0, 1, 16, 256] {
            poll_and_memory(peers);
        }
    }
}
