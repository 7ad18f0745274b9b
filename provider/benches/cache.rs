//! What the registration cache costs: looking up, finding out, watching, and what a thread pays that unmaps watched memory.
//!
//! Figures for `docs/adr/0015-registration-cache.md`. Instructions of a hit and of a first miss: `benches/hotpath.rs`.
#![expect(unsafe_code)]
// UNSAFETY: maps and unmaps memory that only the bench knows.

use core::ptr::null_mut;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustmx::cache::Oversight;
use rustmx::cache::exports::{BUDGET, Exports};
use rustmx::cache::monitor::Monitor;
use std::hint::black_box;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: [usize; 5] = [1, 16, 64, 256, 4096];
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn memfd(pages: usize) -> OwnedFd {
    let fd = rustix::fs::memfd_create("bench", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&fd, (pages * PAGE) as u64).expect("size");
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
    fd
}

/// A mapping with all its pages there.
fn map(fd: &OwnedFd, pages: usize) -> usize {
    // SAFETY: a fresh mapping.
    unsafe { rustix::mm::mmap(null_mut(), pages * PAGE, RW, MapFlags::SHARED | MapFlags::POPULATE, fd, 0) }.expect("map") as usize
}

fn unmap(at: usize, pages: usize) {
    // SAFETY: mapped by `map`; nothing is held there.
    unsafe { rustix::mm::munmap(at as *mut _, pages * PAGE) }.expect("unmap");
}

/// Looks until it is cached.
fn sure(exports: &mut Exports, at: usize, len: usize) {
    while exports.look(at, len).is_none() {}
}

fn look(c: &mut Criterion) {
    let mut group = c.benchmark_group("look");
    for ranges in [1usize, 16, 256] {
        let mut exports = Exports::new(BUDGET, Oversight::Monitored);
        let fd = memfd(16);
        // Mappings of one file never become one here: each begins where it begins.
        let places: Vec<usize> = (0..ranges).map(|_| map(&fd, 16)).collect();
        places.iter().for_each(|at| sure(&mut exports, *at, 16 * PAGE));
        let mut n = 0usize;
        group.bench_function(BenchmarkId::new("hit, any of", ranges), |b| {
            b.iter(|| {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = places[(n >> 33) & (ranges - 1)]; // A power of two.
                exports.look(black_box(at + 64), black_box(8192)).map(|export| (export.id, export.offset))
            });
        });
        drop(exports);
        places.iter().for_each(|at| unmap(*at, 16));
    }
    let mut exports = Exports::new(BUDGET, Oversight::Monitored);
    let mut at = 0x1000_0000_0000usize;
    group.bench_function("miss, never seen", |b| {
        b.iter(|| {
            at += PAGE;
            exports.look(black_box(at), black_box(8192)).is_some()
        });
    });
    let private = vec![0u8; 1 << 20];
    group.bench_function("miss, known to be private", |b| {
        b.iter(|| exports.look(black_box(private.as_ptr() as usize), black_box(8192)).is_some());
    });
    group.bench_function("settled", |b| b.iter(|| exports.settled()));
    group.finish();
}

fn search(c: &mut Criterion) {
    let mut group = c.benchmark_group("search");
    let fd = memfd(16);
    let at = map(&fd, 16);
    let mut exports = Exports::new(BUDGET, Oversight::Monitored);
    group.bench_function("found out, cached, forgotten", |b| {
        b.iter(|| {
            sure(&mut exports, at, PAGE);
            exports.clear();
        });
    });
    group.bench_function("found to be private", |b| {
        let private = vec![0u8; 1 << 20];
        b.iter(|| exports.explain(private.as_ptr() as usize, 8192).is_err());
    });
    group.finish();
    unmap(at, 16);
}

fn watch(c: &mut Criterion) {
    let monitor = Monitor::get().expect("monitor");
    let mut group = c.benchmark_group("watch + unwatch");
    for pages in PAGES {
        let fd = memfd(pages);
        let at = map(&fd, pages);
        group.bench_function(BenchmarkId::from_parameter(pages), |b| {
            b.iter(|| {
                let watch = monitor.watch(at..at + pages * PAGE).expect("watched");
                monitor.unwatch(&watch);
            });
        });
        unmap(at, pages);
    }
    group.finish();
}

/// The time of munmap(2) alone.
fn unmapping(c: &mut Criterion) {
    let monitor = Monitor::get().expect("monitor");
    for watched in [false, true] {
        let mut group = c.benchmark_group(if watched { "munmap, watched" } else { "munmap" });
        for pages in PAGES {
            let fd = memfd(pages);
            group.bench_function(BenchmarkId::from_parameter(pages), |b| {
                b.iter_custom(|rounds| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        let at = map(&fd, pages);
                        let watch = watched.then(|| {
                            loop {
                                if let Some(watch) = monitor.watch(at..at + pages * PAGE) {
                                    break watch;
                                }
                            }
                        });
                        let start = Instant::now();
                        unmap(at, pages);
                        spent += start.elapsed();
                        watch.iter().for_each(|watch| monitor.unwatch(watch));
                    }
                    spent
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(20);
    targets = look, search, watch, unmapping
}
criterion_main!(benches);
