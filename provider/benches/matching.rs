//! What matching costs: nanoseconds per message, for the few entries that are usual and for the
//! many that must not hurt.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rustmx::matching::{Key, Posted, Unexpected};
use rustmx::types::PeerId;

/// About the size of a receive in the engine.
type Item = [u64; 6];
const ITEM: Item = [7; 6];
const PEER: PeerId = PeerId(3);
const MANY: u64 = 100_000;

/// A receive as Open MPI posts it: two bits of protocol are ignored.
fn key(tag: u64, source: Option<PeerId>) -> Key {
    Key { tag, ignore: 0b11 << 62, source }
}

/// 0 .. n in an order without pattern.
fn shuffled(n: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..n).collect();
    let mut state = 1u64;
    for last in (1..all.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        all.swap(last, (state >> 33) as usize % (last + 1));
    }
    all
}

/// Post, find, remove, with `others` older receives that do not match.
fn ping_pong(c: &mut Criterion) {
    let mut group = c.benchmark_group("ping-pong");
    for others in [0, 1, 4, 16, 31, 64, 1000] {
        let mut posted = Posted::new();
        for tag in 0..others {
            posted.post(key(1000 + tag, Some(PEER)), ITEM);
        }
        group.bench_function(format!("posted/{others}"), |b| {
            b.iter(|| {
                posted.post(key(black_box(5), Some(PEER)), ITEM);
                let id = posted.find(black_box(5), black_box(PEER)).expect("posted");
                posted.remove(id).map(|item| item[0])
            });
        });
        let mut held = Unexpected::new();
        for tag in 0..others {
            held.push(1000 + tag, PEER, ITEM);
        }
        group.bench_function(format!("unexpected/{others}"), |b| {
            b.iter(|| {
                held.push(black_box(5), black_box(PEER), ITEM);
                let id = held.find(&key(black_box(5), Some(PEER))).expect("held");
                held.remove(id).map(|item| item[0])
            });
        });
        group.bench_function(format!("miss/{others}"), |b| {
            b.iter(|| held.find(&key(black_box(5), Some(PEER))));
        });
    }
    group.finish();
}

/// The orders in which tags below `n` are asked for.
fn orders(n: u64) -> [(&'static str, Vec<u64>); 3] {
    [("in order", (0..n).collect()), ("reverse", (0..n).rev().collect()), ("random", shuffled(n))]
}

/// Everything posted, then everything matched; the time is for all of it.
fn posted(c: &mut Criterion) {
    let mut group = c.benchmark_group("posted");
    for n in [1000, MANY] {
        group.throughput(Throughput::Elements(n));
        let orders = orders(n);
        for (name, order) in &orders {
            let mut posted = Posted::new();
            group.bench_function(format!("{n}/{name}"), |b| {
                b.iter(|| {
                    for tag in 0..n {
                        posted.post(key(tag, Some(PEER)), ITEM);
                    }
                    for &tag in order {
                        let id = posted.find(tag, PEER).expect("posted");
                        black_box(posted.remove(id).map(|item| item[0]));
                    }
                });
            });
        }
        let mut posted = Posted::new();
        group.bench_function(format!("{n}/four classes, random"), |b| {
            b.iter(|| {
                for tag in 0..n {
                    let source = (tag & 1 == 0).then_some(PEER);
                    let mut key = key(tag, source);
                    key.ignore |= (tag & 2) << 40;
                    posted.post(key, ITEM);
                }
                for &tag in &orders[2].1 {
                    let id = posted.find(tag, PEER).expect("posted");
                    black_box(posted.remove(id).map(|item| item[0]));
                }
            });
        });
    }
    group.finish();
}

/// All messages come before their receives; the time is for all of it.
fn unexpected(c: &mut Criterion) {
    let mut group = c.benchmark_group("unexpected");
    for n in [1000, MANY] {
        group.throughput(Throughput::Elements(n));
        let orders = orders(n);
        for (name, order) in &orders {
            let mut held = Unexpected::new();
            group.bench_function(format!("{n}/{name}"), |b| {
                b.iter(|| {
                    for tag in 0..n {
                        held.push(tag, PEER, ITEM);
                    }
                    for &tag in order {
                        let id = held.find(&key(tag, Some(PEER))).expect("held");
                        black_box(held.remove(id).map(|item| item[0]));
                    }
                });
            });
        }
        let mut held = Unexpected::new();
        group.bench_function(format!("{n}/reverse, directed or not"), |b| {
            b.iter(|| {
                for tag in 0..n {
                    held.push(tag, PEER, ITEM);
                }
                for &tag in &orders[1].1 {
                    let source = (tag & 1 == 0).then_some(PEER);
                    let id = held.find(&key(tag, source)).expect("held");
                    black_box(held.remove(id).map(|item| item[0]));
                }
            });
        });
        // A first burst: no memory yet.
        group.bench_function(format!("{n}/reverse, fresh"), |b| {
            b.iter_batched(
                Unexpected::new,
                |mut held| {
                    for tag in 0..n {
                        held.push(tag, PEER, ITEM);
                    }
                    for tag in (0..n).rev() {
                        let id = held.find(&key(tag, Some(PEER))).expect("held");
                        black_box(held.remove(id).map(|item| item[0]));
                    }
                    held
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = ping_pong, posted, unexpected
}
criterion_main!(benches);
