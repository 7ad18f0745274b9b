//! Messages out of buffers of which the registration cache still knows some, and some not: sealed memfds that the program maps, unmaps and maps
//! again, as a cache of the papers is measured (`mpi-tests/papers/cache.c`).
//!
//! Two endpoints of one process, one copy each, in turn from 32 buffers (a peer is lent 64 at most, and what was unmapped counts until it has read
//! so). Before some messages the buffer is unmapped and mapped again: that is timed, too. If it comes back at its address the engine takes it for one
//! that comes again, and registers it anew; at an address that it never saw it lends nothing before the second message.
//!
//! One JSON object a line: `{"figure": "map-N", "series": "engine", "x": hits of 100, "value": MB/s}` of messages of N bytes; series `engine-new`: what is
//! mapped again lies elsewhere; `lent` and `lent-new`: of 100 messages those that were really read in the sender's memory. `--quick`: fewer sizes and
//! turns.
#![expect(unsafe_code)]
// UNSAFETY: maps and unmaps memory that only the bench knows.

mod node;

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use node::Node;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustmx::config::force::{Forced, Way};
use rustmx::{Addr, Config, CqRead, OpFlags};
use std::time::Instant;

const BUFFERS: usize = 32;
const MESSAGES: usize = 256;
const BATCHES: usize = 3;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Memory of a descriptor, mapped somewhere.
struct Source {
    fd: OwnedFd,
    at: usize,
    len: usize,
}

impl Source {
    fn new(len: usize) -> Source {
        let fd = rustix::fs::memfd_create("bench", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&fd, len as u64).expect("size");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
        let mut source = Source { fd, at: 0, len };
        source.map(null_mut());
        source.bytes().fill(1);
        source
    }

    /// At an address of the kernel's choice if `at` is null.
    fn map(&mut self, at: *mut c_void) {
        // SAFETY: a fresh mapping; where something is already the kernel chooses.
        self.at = unsafe { rustix::mm::mmap(at, self.len, RW, MapFlags::SHARED, &self.fd, 0) }.expect("map") as usize;
    }

    /// Unmaps it, and maps it again: where it was, or where nothing was before.
    fn renew(&mut self, elsewhere: bool) {
        /// Low in the address space, where no mapping without a wish comes to lie.
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let at = if elsewhere { NEXT.fetch_add(2 * self.len, Ordering::Relaxed) } else { self.at };
        self.unmap();
        self.map(at as *mut _);
    }

    fn unmap(&self) {
        // SAFETY: mapped by `map`; no slice of it is held, and no message out of it is under way.
        unsafe { rustix::mm::munmap(self.at as *mut _, self.len) }.expect("unmap");
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, and borrowed from here only.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u8, self.len) }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.unmap();
    }
}

struct Pair {
    a: Node,
    b: Node,
    to: Addr,
}

impl Pair {
    fn open() -> Pair {
        // Who copies is one side: there is one thread.
        let config = Config { cma: 1, protocol: Forced::only(Way::MappedAlone), ..Config::default() };
        let (mut a, mut b) = (Node::new(config.clone(), OpFlags::COMPLETION), Node::new(config, OpFlags::COMPLETION));
        let (to, back) = (a.av.insert(&b.name()), b.av.insert(&a.name()));
        // Both have answered before anything is measured.
        message(&mut a, to, &mut b, &mut [1], &mut [0]);
        message(&mut b, back, &mut a, &mut [1], &mut [0]);
        Pair { a, b, to }
    }

    fn lent(&self) -> u64 {
        self.a.domain.ep_stats(self.a.ep).expect("stats").mapped
    }

    fn message(&mut self, from: &mut [u8], into: &mut [u8]) {
        message(&mut self.a, self.to, &mut self.b, from, into);
    }
}

/// Completions of one look.
fn done(node: &mut Node) -> usize {
    let mut done = 0;
    match node.domain.cq_read(node.cq, 4, &mut |_| done += 1) {
        CqRead::ErrorPending => panic!("an error entry"),
        _ => done,
    }
}

fn message(from: &mut Node, to: Addr, receiver: &mut Node, out: &mut [u8], into: &mut [u8]) {
    receiver.recv(into);
    from.send(to, out, false);
    let mut left = 2;
    while left > 0 {
        left -= done(from) + done(receiver);
    }
}

fn point(len: usize, series: &str, hits: usize, value: f64) {
    println!("{{\"figure\": \"map-{len}\", \"series\": \"{series}\", \"x\": {hits}, \"value\": {value:.6}}}");
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn sweep(len: usize, step: usize) {
    for hits in (0..=100).step_by(step) {
        run(len, hits, false, ["engine", "lent"]);
        run(len, hits, true, ["engine-new", "lent-new"]);
    }
}

fn run(len: usize, hits: usize, elsewhere: bool, [speed, lent]: [&str; 2]) {
    let (mut pair, mut into) = (Pair::open(), vec![0u8; len]);
    let mut sources: Vec<Source> = (0..BUFFERS).map(|_| Source::new(len)).collect();
    for _ in 0..3 {
        sources.iter_mut().for_each(|source| pair.message(source.bytes(), &mut into));
    }
    let (mut state, before) = (1u32, pair.lent());
    let mut times = [0.0; BATCHES];
    for time in &mut times {
        let start = Instant::now();
        for i in 0..MESSAGES {
            let source = &mut sources[i % BUFFERS];
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (state >> 8) as usize % 100 >= hits {
                source.renew(elsewhere);
            }
            pair.message(source.bytes(), &mut into);
        }
        *time = start.elapsed().as_nanos() as f64;
    }
    point(len, speed, hits, (len * MESSAGES) as f64 * 1e3 / median(&mut times));
    point(len, lent, hits, (pair.lent() - before) as f64 * 100.0 / (MESSAGES * BATCHES) as f64);
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    if let Some(why) = rustmx::cache::own::unwatched() {
        return println!("{{\"figure\": \"map-4096\", \"series\": \"engine\", \"missing\": \"{why}\"}}");
    }
    // The first core that may be used; who watches the memory stays where it is.
    let all = sched_getaffinity(None).expect("affinity");
    let mut one = CpuSet::new();
    if let Some(first) = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)) {
        one.set(first);
        sched_setaffinity(None, &one).expect("pinned");
    }
    for len in [4096, 65_536, 1 << 20] {
        if !quick || len <= 65_536 {
            sweep(len, if quick { 50 } else { 10 });
        }
    }
}
