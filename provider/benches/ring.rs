//! The ring (publish and consume of one record, by lines) and the copies in and out of a segment, by bytes; one thread, so
//! without the hand-over between cores, which `figures` measures.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustmx::UserSeg;
use rustmx::mem::shared::{Heap, SharedMem};
use rustmx::shm::ring::{Consumer, Peeked, Producer};
use std::hint::black_box;

fn ring(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring: publish, peek, release, ack");
    for lines in [1u32, 4, 64] {
        const LINES: u32 = 380;
        let mem = SharedMem::new(Heap::new(LINES as usize * 64));
        let (mut tx, mut rx) = (Producer::new(mem.clone(), LINES), Consumer::new(mem, LINES));
        group.bench_function(BenchmarkId::new("lines", lines), |b| {
            b.iter(|| {
                black_box(tx.reserve(lines, 0)).expect("room");
                tx.publish(lines, [2, 0, 0]);
                assert!(matches!(rx.peek(), Peeked::Record(_)));
                rx.release(lines);
                tx.ack(rx.consumed()).expect("own position");
            });
        });
    }
    group.finish();
}

fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy: application to segment and back");
    for n in [8usize, 40, 232, 4096] {
        let mem = SharedMem::new(Heap::new(n));
        let mut buf = vec![1u8; n];
        // SAFETY: `buf` outlives the benchmark.
        #[expect(unsafe_code)]
        let iov = [unsafe { UserSeg::new(buf.as_mut_ptr(), n) }];
        group.throughput(Throughput::Bytes(2 * n as u64));
        group.bench_function(BenchmarkId::new("bytes", n), |b| {
            b.iter(|| {
                mem.fill(0, black_box(&iov), 0, n);
                mem.drain(0, black_box(&iov), 0, n)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, ring, copy);
criterion_main!(benches);
