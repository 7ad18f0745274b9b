//! Memory of peers: reads, writes, atomics; by the initiator alone and by the target's engine.
//!
//! Loops are seeded; `RUSTMX_SEED` repeats one.

#[path = "../common/mod.rs"]
mod common;
mod orders;
mod refusals;
mod told;

use common::left_out::left_out;
use common::{Deadline, Event, Node, Rng, attr, by_network, by_network_only, pattern, seg, watchdog};
use rustmx::region::execute;
use rustmx::{
    ATOMIC_MAX, Access, Addr, AddressVector, AtomicArgs, AtomicForm, AtomicOp, AtomicType, CntrEvents, CompFlags, Config, Domain,
    Error, Log, OpFlags, Order, Region, RemoteSeg, RmaArgs, UserCtx, UserSeg,
};
use std::sync::Arc;

/// Whether the kernel lets this process use process_vm_readv at all.
fn kernel_allows() -> bool {
    let mut word = [0u64];
    let at = 1u64;
    // It does so on this host only.
    !by_network_only() && rustmx::mem::remote::fetch_words(std::process::id(), &raw const at as u64, &mut word).is_ok()
}

fn config(cma: bool) -> Config {
    Config { cma: u64::from(!cma), ..Config::default() }
}

fn both_ways() -> Vec<bool> {
    if kernel_allows() { vec![true, false] } else { vec![false] }
}

fn all_rights() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE
}

fn region(buf: &mut [u8], access: Access) -> Region {
    Region { memory: seg(buf), access, by_address: false }
}

/// An initiator, a target, and the target's handle.
fn pair(cma: bool) -> (Node, Node, Addr) {
    let (a, b) = (Node::with(config(cma), attr()), Node::with(config(cma), attr()));
    let to = a.knows(&b);
    (a, b, to)
}

fn rma<'a>(to: Addr, write: bool, iov: &'a [UserSeg], places: &'a [RemoteSeg], ctx: usize) -> RmaArgs<'a> {
    RmaArgs { to, write, iov, places, data: None, ctx: UserCtx(ctx), flags: Some(OpFlags::COMPLETION), inject: false }
}

/// Drives both until the initiator has an event.
#[track_caller]
#[expect(clippy::result_large_err, reason = "the engine hands it out by value")]
fn one(a: &mut Node, b: &mut Node) -> Event {
    let until = Deadline::new(5);
    loop {
        let mut got = a.poll();
        if let Some(e) = got.pop() {
            assert!(got.is_empty(), "{got:?}");
            return e;
        }
        b.domain.progress();
        until.check(|| "no completion".into());
    }
}

#[test]
fn bytes_go_and_come_in_pieces_of_every_size() {
    let _dog = watchdog("bytes", 60);
    for cma in both_ways() {
        let (mut a, mut b, to) = pair(cma);
        let mut theirs = pattern(300_000, 1);
        let memory = region(&mut theirs, all_rights());
        b.domain.mr_register(Some(u64::MAX - 5), memory).expect("registered");
        let mut rng = Rng(7);
        for (round, n) in [0usize, 1, 8, 200, 232, 233, 1000, 4096, 6000, 65_537, 250_000].into_iter().enumerate() {
            let mut ours = pattern(n, round + 2);
            let (left, right) = ours.split_at_mut(rng.range(0, n + 1).min(n));
            let iov = [seg(left), seg(right)];
            let cut = rng.range(0, n + 1).min(n);
            let key = u64::MAX - 5;
            // The first piece lies behind the second one.
            let places = [RemoteSeg { addr: 30_000, len: cut, key }, RemoteSeg { addr: 11, len: n - cut, key }];
            let places =
                if cut + 11 > 30_000 || n - cut > 29_000 { vec![RemoteSeg { addr: 3, len: n, key }] } else { places.to_vec() };
            a.domain.rma(a.ep, &rma(to, true, &iov, &places, round)).expect("write");
            let c = one(&mut a, &mut b).expect("written");
            assert_eq!((c.ctx.0, c.flags), (round, CompFlags::RMA | CompFlags::WRITE));
            let mut at = 0;
            for p in &places {
                let there = &theirs[p.addr as usize..p.addr as usize + p.len];
                assert!(there == &pattern(n, round + 2)[at..at + p.len], "cma {cma}, {n} bytes");
                at += p.len;
            }
            let mut back = vec![0u8; n];
            a.domain.rma(a.ep, &rma(to, false, &[seg(&mut back)], &places, round)).expect("read");
            let c = one(&mut a, &mut b).expect("read");
            assert_eq!((c.ctx.0, c.flags), (round, CompFlags::RMA | CompFlags::READ));
            assert!(back == pattern(n, round + 2), "cma {cma}, {n} bytes");
        }
        let s = a.stats();
        assert_eq!((s.direct > 0, s.one_sided > 0), (cma, !cma), "{s:?}");
    }
}

/// The target makes no call after it registered its memory; first contact is not even answered.
#[test]
fn a_sleeping_target_is_read_and_written() {
    let _dog = watchdog("asleep", 30);
    if !kernel_allows() {
        return left_out("cma", "the kernel does not allow process_vm_readv here");
    }
    let (mut a, mut b, to) = pair(true);
    let mut theirs = pattern(5000, 1);
    let mut ours = pattern(5000, 2);
    let memory = region(&mut theirs, all_rights());
    b.domain.mr_register(Some(1), memory).expect("registered");
    let place = [RemoteSeg { addr: 0, len: 5000, key: 1 }];
    let mut back = vec![0u8; 5000];
    a.domain.rma(a.ep, &rma(to, false, &[seg(&mut back)], &place, 1)).expect("read");
    a.domain.rma(a.ep, &rma(to, true, &[seg(&mut ours)], &place, 2)).expect("write");
    assert_eq!(a.poll().iter().filter(|e| e.is_ok()).count(), 2);
    assert!(back == pattern(5000, 1) && theirs == ours);
}

#[test]
fn the_target_decides_what_may_be_done() {
    let _dog = watchdog("rights", 30);
    for cma in both_ways() {
        let (mut a, mut b, to) = pair(cma);
        let (mut read_only, mut write_only, mut ours) = (pattern(100, 1), pattern(100, 2), pattern(100, 3));
        let first = region(&mut read_only, Access::REMOTE_READ);
        b.domain.mr_register(Some(1), first).expect("registered");
        b.domain.mr_register(Some(2), region(&mut write_only, Access::REMOTE_WRITE)).expect("registered");
        assert_eq!(b.domain.mr_register(Some(1), first), Err(Error::KeyInUse));
        let iov = [seg(&mut ours)];
        for (what, write, key, addr, want) in [
            ("read", false, 1, 0, None),
            ("write", true, 2, 0, None),
            ("write a read-only one", true, 1, 0, Some(Error::NoRight)),
            ("read a write-only one", false, 2, 0, Some(Error::NoRight)),
            ("one byte too far", false, 1, 1, Some(Error::OutOfBounds)),
            ("far out", true, 2, u64::MAX - 50, Some(Error::OutOfBounds)),
            ("no such key", true, 3, 0, Some(Error::NoKey)),
        ] {
            let place = [RemoteSeg { addr, len: 100, key }];
            a.domain.rma(a.ep, &rma(to, write, &iov, &place, 1)).expect(what);
            let got = one(&mut a, &mut b);
            assert_eq!(got.as_ref().err().map(|e| e.error), want, "cma {cma}: {what}");
            assert!(got.err().is_none_or(|e| e.peer == Some(b.name())), "nobody is named");
        }
        assert_eq!(read_only, pattern(100, 1));
        // The key gets other memory; the initiator knew the old one.
        let mut other = pattern(50, 9);
        b.domain.mr_close(1).expect("closed");
        let place = [RemoteSeg { addr: 0, len: 50, key: 1 }];
        let mut back = vec![0u8; 50];
        a.domain.rma(a.ep, &rma(to, false, &[seg(&mut back)], &place, 1)).expect("read");
        assert_eq!(one(&mut a, &mut b).expect_err("closed").error, Error::NoKey);
        let memory = region(&mut other, all_rights());
        b.domain.mr_register(Some(1), memory).expect("registered");
        a.domain.rma(a.ep, &rma(to, false, &[seg(&mut back)], &place, 1)).expect("read");
        one(&mut a, &mut b).expect("read");
        assert_eq!(back, other, "cma {cma}");
        // Once more, without a look at the gap: the old region was too short for this.
        let mut longer = pattern(80, 10);
        b.domain.mr_close(1).expect("closed");
        let memory = region(&mut longer, all_rights());
        b.domain.mr_register(Some(1), memory).expect("registered");
        let (mut all, whole) = (vec![0u8; 80], [RemoteSeg { addr: 0, len: 80, key: 1 }]);
        a.domain.rma(a.ep, &rma(to, false, &[seg(&mut all)], &whole, 1)).expect("read");
        one(&mut a, &mut b).expect("read");
        assert_eq!(all, longer, "cma {cma}");
        // Different lengths make no sense, whatever the target says.
        assert_eq!(
            a.domain.rma(a.ep, &rma(to, false, &[seg(&mut back)], &[RemoteSeg { len: 49, ..place[0] }], 1)),
            Err(Error::Invalid)
        );
    }
}

#[test]
fn all_memory_can_be_a_region_and_holes_are_errors() {
    let _dog = watchdog("everything", 30);
    for cma in both_ways() {
        let (mut a, mut b, to) = pair(cma);
        let (mut theirs, mut ours) = (pattern(70_000, 1), pattern(70_000, 2));
        // SAFETY: peers are given addresses of live memory, or of nothing.
        #[expect(unsafe_code)]
        let memory = unsafe { UserSeg::new(std::ptr::null_mut(), usize::MAX) };
        b.domain.mr_register(Some(9), Region { memory, access: all_rights(), by_address: false }).expect("registered");
        let place = [RemoteSeg { addr: theirs.as_ptr() as u64, len: 70_000, key: 9 }];
        let mut back = vec![0u8; 70_000];
        let iov = [seg(&mut back)];
        a.domain.rma(a.ep, &rma(to, false, &iov, &place, 1)).expect("read");
        one(&mut a, &mut b).expect("read");
        assert!(back == theirs, "cma {cma}");
        a.domain.rma(a.ep, &rma(to, true, &[seg(&mut ours)], &place, 1)).expect("write");
        one(&mut a, &mut b).expect("written");
        assert!(ours == theirs, "cma {cma}");
        theirs[0] = 1;
        for write in [false, true] {
            let hole = [RemoteSeg { addr: 4096, len: 70_000, key: 9 }];
            a.domain.rma(a.ep, &rma(to, write, &iov, &hole, 1)).expect("started");
            assert_eq!(one(&mut a, &mut b).expect_err("a hole").error, Error::Unmapped, "cma {cma}, write {write}");
        }
    }
}

#[test]
fn data_of_a_write_arrive_behind_it_and_counters_count() {
    let _dog = watchdog("data", 30);
    for cma in both_ways() {
        let (mut a, mut b, to) = pair(cma);
        let (ours_cntr, theirs_cntr) = (a.domain.cntr_open(), b.domain.cntr_open());
        let mut theirs = vec![0u8; 20_000];
        let mut ours = pattern(20_000, 2);
        let memory = region(&mut theirs, all_rights());
        b.domain.mr_register(Some(1), memory).expect("registered");
        b.domain.mr_bind_cntr(1, theirs_cntr, CntrEvents::REMOTE_READ | CntrEvents::REMOTE_WRITE).expect("bound");
        // One is bound in two steps, and one of them twice: each access counts once.
        b.domain.mr_bind_cntr(1, theirs_cntr, CntrEvents::REMOTE_WRITE).expect("bound");
        let of_one = [CntrEvents::REMOTE_READ, CntrEvents::REMOTE_WRITE].map(|events| {
            let cntr = b.domain.cntr_open();
            b.domain.mr_bind_cntr(1, cntr, events).expect("bound");
            b.domain.mr_bind_cntr(1, cntr, events).expect("bound");
            cntr
        });
        let place = [RemoteSeg { addr: 0, len: 20_000, key: 1 }];
        let iov = [seg(&mut ours)];
        a.domain.rma(a.ep, &RmaArgs { data: Some(0xfeed), ..rma(to, true, &iov, &place, 1) }).expect("write");
        let until = Deadline::new(5);
        let mut got = Vec::new();
        while got.is_empty() {
            got = b.poll();
            a.domain.progress();
            until.check(|| "no entry at the target".into());
        }
        let c = got[0].expect("an entry");
        let flags = CompFlags::RMA | CompFlags::REMOTE_WRITE | CompFlags::REMOTE_CQ_DATA;
        assert_eq!((c.flags, c.data, c.len), (flags, 0xfeed, 20_000));
        assert!(theirs == ours, "the data came before the bytes");
        one(&mut a, &mut b).expect("written");
        // Without data: no entry, but counted.
        a.domain.rma(a.ep, &rma(to, false, &iov, &place, 1)).expect("read");
        one(&mut a, &mut b).expect("read");
        b.quiet(50);
        assert_eq!((b.domain.cntr_read(theirs_cntr), a.domain.cntr_read(ours_cntr)), (2, 0), "cma {cma}");
        a.domain.rma(a.ep, &rma(to, true, &iov, &place, 1)).expect("write");
        one(&mut a, &mut b).expect("written");
        b.quiet(50);
        assert_eq!(of_one.map(|cntr| b.domain.cntr_read(cntr)), [1, 2], "cma {cma}");
    }
}

/// An operation counts once, however many pieces it has, and atomics that fetch count as reads where endpoints do, and as writes where regions do
/// (fi_endpoint(3), fi_mr(3)).
#[test]
fn each_operation_counts_once_and_as_what_it_is() {
    let _dog = watchdog("what_counts", 30);
    for cma in both_ways() {
        let mut domain = Domain::new(Arc::new(by_network(config(cma))), Log::silent());
        let (cq, ep, av) = (domain.cq_open(), domain.ep_open(attr()).expect("endpoint"), Arc::new(AddressVector::new()));
        let kinds = [CntrEvents::REMOTE_READ, CntrEvents::REMOTE_WRITE];
        let of_endpoint = kinds.map(|events| {
            let cntr = domain.cntr_open();
            domain.ep_bind_cntr(ep, cntr, events).expect("bound");
            cntr
        });
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
        domain.ep_enable(ep).expect("enable");
        let (mut a, mut b) = (Node::with(config(cma), attr()), Node { domain, ep, cq, av });
        let to = a.knows(&b);
        let (mut theirs, mut ours, mut back) = (vec![0u8; 96], [1u8; 48], [0u8; 48]);
        b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
        let of_region = kinds.map(|events| {
            let cntr = b.domain.cntr_open();
            b.domain.mr_bind_cntr(1, cntr, events).expect("bound");
            cntr
        });
        let places: Vec<_> = (0..3).map(|i| RemoteSeg { addr: 32 * i, len: 16, key: 1 }).collect();
        let mut expected = [[0; 2]; 2];
        for what in 0..5 {
            let (from, into) = ([seg(&mut ours)], [seg(&mut back)]);
            let order = |op, form| Order { op, kind: AtomicType::U64, form };
            let by = match what {
                0 => a.domain.rma(a.ep, &rma(to, false, &into, &places, 1)).map(|()| ([1, 0], [1, 0])),
                1 => a.domain.rma(a.ep, &rma(to, true, &from, &places, 1)).map(|()| ([0, 1], [0, 1])),
                2 => {
                    let sum = atomic(to, order(AtomicOp::Sum, AtomicForm::Base), [&from, &[], &[]], &places);
                    a.domain.atomic(a.ep, &sum).map(|()| ([0, 1], [0, 1]))
                }
                3 => {
                    let fetch = atomic(to, order(AtomicOp::Sum, AtomicForm::Fetch), [&from, &[], &into], &places);
                    a.domain.atomic(a.ep, &fetch).map(|()| ([1, 0], [0, 1]))
                }
                _ => {
                    let read = atomic(to, order(AtomicOp::Read, AtomicForm::Fetch), [&[], &[], &into], &places);
                    a.domain.atomic(a.ep, &read).map(|()| ([1, 0], [1, 0]))
                }
            };
            let (endpoint, region) = by.expect("started");
            one(&mut a, &mut b).expect("done");
            for i in 0..2 {
                expected[0][i] += endpoint[i];
                expected[1][i] += region[i];
            }
            let until = Deadline::new(5);
            let mut counted = || [of_endpoint, of_region].map(|both| both.map(|cntr| b.domain.cntr_read(cntr)));
            while counted() != expected {
                a.domain.progress();
                until.check(|| format!("cma {cma}, {what}: {:?}, not {expected:?}", counted()));
            }
            a.domain.progress();
            assert_eq!(counted(), expected, "cma {cma}, {what}");
        }
    }
}

/// Who has been there before knows the region already, and must hear of it all the same that from now on somebody counts.
#[test]
fn a_counter_that_comes_after_the_first_access_counts_the_next_one() {
    let _dog = watchdog("late_counter", 30);
    for (cma, other_region) in both_ways().into_iter().flat_map(|cma| [(cma, false), (cma, true)]) {
        let (mut a, mut b, to) = pair(cma);
        let (mut theirs, mut ours) = ([0u8; 64], pattern(64, 2));
        b.domain.mr_register(Some(1), region(&mut theirs[..32], all_rights())).expect("registered");
        let mut write = |a: &mut Node, b: &mut Node, key: u64, n: u64| {
            let (iov, place) = ([seg(&mut ours[..32])], [RemoteSeg { addr: 0, len: 32, key }]);
            a.domain.rma(a.ep, &rma(to, n != 2, &iov, &place, n as usize)).expect("started");
            one(a, b).expect("done");
        };
        write(&mut a, &mut b, 1, 1);
        let key = if other_region { 2 } else { 1 };
        if other_region {
            b.domain.mr_register(Some(key), region(&mut theirs[32..], all_rights())).expect("registered");
        }
        let cntr = b.domain.cntr_open();
        b.domain.mr_bind_cntr(key, cntr, CntrEvents::REMOTE_READ | CntrEvents::REMOTE_WRITE).expect("bound");
        // A read, and a write.
        for n in [2, 3] {
            write(&mut a, &mut b, key, n);
        }
        let until = Deadline::new(5);
        while b.domain.cntr_read(cntr) < 2 {
            a.domain.progress();
            until.check(|| format!("cma {cma}, another region {other_region}: {} of 2", b.domain.cntr_read(cntr)));
        }
        b.quiet(20);
        assert_eq!(b.domain.cntr_read(cntr), 2, "cma {cma}");
    }
}

#[test]
fn data_arrive_where_nobody_counts() {
    let _dog = watchdog("uncounted", 30);
    for cma in both_ways() {
        let (mut theirs, mut ours) = ([0u8; 8], [1u8; 8]);
        let (mut a, mut b, to) = pair(cma);
        b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
        let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 8, key: 1 }]);
        a.domain.rma(a.ep, &RmaArgs { data: Some(7), ..rma(to, true, &iov, &place, 2) }).expect("write");
        let until = Deadline::new(5);
        let c = loop {
            if let Some(e) = b.poll().pop() {
                break e.expect("an entry");
            }
            a.domain.progress();
            until.check(|| "no entry at the target".into());
        };
        assert_eq!((c.data, c.len), (7, 8), "cma {cma}");
    }
}

fn atomic<'a>(to: Addr, order: Order, iovs: [&'a [UserSeg]; 3], places: &'a [RemoteSeg]) -> AtomicArgs<'a> {
    let [operands, comparands, results] = iovs;
    AtomicArgs {
        to,
        order,
        operands,
        comparands,
        results,
        places,
        ctx: UserCtx(5),
        flags: Some(OpFlags::COMPLETION),
        inject: false,
    }
}

/// Random operations of every type and form, in one or two pieces, against the same function on a copy.
#[test]
fn atomics_do_to_the_target_what_they_do_to_a_copy() {
    let _dog = watchdog("atomics", 60);
    let (mut a, mut b, to) = pair(true);
    let mut theirs = pattern(4096, 1);
    let mut copy = theirs.clone();
    let memory = region(&mut theirs, all_rights());
    b.domain.mr_register(Some(1), memory).expect("registered");
    let mut rng = Rng(common_seed());
    let mut done = 0;
    for _ in 0..4000 {
        let (Some(op), Some(kind)) = (AtomicOp::from_number(rng.below(20) as u32), AtomicType::from_number(rng.below(17) as u32))
        else {
            continue;
        };
        let form = rng.pick(&[AtomicForm::Base, AtomicForm::Fetch, AtomicForm::Compare]);
        let most = ATOMIC_MAX / kind.bytes();
        let counts = [rng.range(1, most + 1).min(most), rng.range(1, 4)];
        let lens = counts.map(|n| n * kind.bytes());
        let pieces = rng.range(1, 3).min(2);
        let total: usize = lens[..pieces].iter().sum();
        let starts = [rng.range(0, 800), rng.range(2000, 3000)];
        let places: Vec<RemoteSeg> = (0..pieces).map(|i| RemoteSeg { addr: starts[i] as u64, len: lens[i], key: 1 }).collect();
        let (mut operands, mut results) = (pattern(total, rng.range(0, 1000)), vec![0u8; total]);
        // Comparisons that hold now and then.
        let mut comparands: Vec<u8> =
            places.iter().flat_map(|p| copy[p.addr as usize..p.addr as usize + p.len].to_vec()).collect();
        if rng.one_in(2) {
            comparands[0] ^= 1;
        }
        let order = Order { op, kind, form };
        let (x, y, z) = ([seg(&mut operands)], [seg(&mut comparands)], [seg(&mut results)]);
        let args = atomic(to, order, [&x, &y, &z], &places);
        match a.domain.atomic(a.ep, &args) {
            Err(Error::Unsupported) => {
                assert!(!rustmx::is_valid_atomic(op, kind, form));
                continue;
            }
            other => other.expect("started"),
        }
        let c = one(&mut a, &mut b).expect("done");
        let way = if form == AtomicForm::Base { CompFlags::WRITE } else { CompFlags::READ };
        assert_eq!((c.ctx.0, c.flags), (5, CompFlags::ATOMIC | way));
        let mut at = 0;
        for p in &places {
            let target = &mut copy[p.addr as usize..p.addr as usize + p.len];
            if form != AtomicForm::Base {
                assert_eq!(results[at..at + p.len], *target, "{order:?}");
            }
            execute::execute(op, kind, target, &operands[at..at + p.len], &comparands[at..at + p.len]);
            at += p.len;
        }
        assert!(theirs == copy, "{order:?} {places:?}");
        done += 1;
    }
    assert!(done > 500, "{done} operations made sense");
}

fn common_seed() -> u64 {
    let seed = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(4_711);
    println!("seed {seed}");
    seed
}

/// Two initiators and the target itself add to one word.
#[test]
fn nobodys_addition_is_lost() {
    let _dog = watchdog("adding", 60);
    let mut b = Node::new();
    let (mut x, mut y) = (Node::new(), Node::new());
    let handles = [x.knows(&b), y.knows(&b), b.knows(&b)];
    let mut theirs = vec![0u8; 8];
    let memory = region(&mut theirs, all_rights());
    b.domain.mr_register(Some(1), memory).expect("registered");
    let place = [RemoteSeg { addr: 0, len: 8, key: 1 }];
    let order = Order { op: AtomicOp::Sum, kind: AtomicType::U64, form: AtomicForm::Fetch };
    let (mut ones, mut old) = (1u64.to_ne_bytes(), vec![[0u8; 8]; 3 * 500]);
    let one = [seg(&mut ones)];
    for round in 0..500 {
        for (i, node) in [&mut x, &mut y, &mut b].into_iter().enumerate() {
            let to_old = [seg(&mut old[round * 3 + i])];
            loop {
                match node.domain.atomic(node.ep, &atomic(handles[i], order, [&one, &[], &to_old], &place)) {
                    Err(Error::Again) => node.domain.progress(),
                    other => break other.expect("started"),
                }
            }
        }
    }
    let until = Deadline::new(20);
    let mut done = 0;
    while done < 1500 {
        for node in [&mut x, &mut y, &mut b] {
            done += node.poll().iter().filter(|e| e.is_ok()).count();
        }
        until.check(|| format!("{done} of 1500"));
    }
    assert_eq!(u64::from_ne_bytes(theirs.try_into().expect("8 bytes")), 1500);
    let mut seen: Vec<u64> = old.iter().map(|b| u64::from_ne_bytes(*b)).collect();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..1500), "two operations saw the same value");
}

#[test]
fn what_waits_for_a_peer_that_ends_fails_with_its_name() {
    let _dog = watchdog("ends", 30);
    let (mut a, mut b, to) = pair(false);
    let mut theirs = vec![0u8; 1000];
    let memory = region(&mut theirs, all_rights());
    b.domain.mr_register(Some(1), memory).expect("registered");
    let mut ours = pattern(1000, 1);
    let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 1000, key: 1 }]);
    a.domain.rma(a.ep, &rma(to, true, &iov, &place, 1)).expect("write");
    one(&mut a, &mut b).expect("written");
    let name = b.name();
    for ctx in 0..10 {
        a.domain.rma(a.ep, &rma(to, ctx % 2 == 0, &iov, &place, ctx)).expect("started");
    }
    drop(b);
    let until = Deadline::new(5);
    let mut got = Vec::new();
    while got.len() < 10 {
        got.extend(a.poll());
        until.check(|| format!("{} of 10 ended", got.len()));
    }
    // What the target did before it closed counts; the rest fails, in order.
    let failed: Vec<usize> = got.iter().filter_map(|e| e.as_ref().err()).map(|e| e.c.ctx.0).collect();
    assert!(failed.is_sorted() && got.iter().all(|e| e.as_ref().err().is_none_or(|e| e.peer == Some(name))), "{got:?}");
    assert!(a.domain.rma(a.ep, &rma(to, true, &iov, &place, 1)).is_err());
}

/// Many operations of all kinds at once, both ways, among messages; the bytes of each slot are those of its last write.
#[test]
fn a_crowd_of_operations_completes_once_each() {
    let _dog = watchdog("crowd", 60);
    let (mut a, mut b, to) = pair(false);
    let back_to = b.knows(&a);
    let (mut at_a, mut at_b) = (vec![0u8; 64 << 10], vec![0u8; 64 << 10]);
    let (ra, rb) = (region(&mut at_a, all_rights()), region(&mut at_b, all_rights()));
    a.domain.mr_register(Some(1), ra).expect("registered");
    b.domain.mr_register(Some(1), rb).expect("registered");
    let mut ours = pattern(64 << 10, 3);
    let mut into = vec![0u8; 64 << 10];
    let (from, to_me) = ([seg(&mut ours)], [seg(&mut into)]);
    let (mut started, mut done) = (0, [0usize; 300]);
    let until = Deadline::new(30);
    let mut rng = Rng(common_seed());
    while started < 300 || done.iter().sum::<usize>() < 600 {
        if started < 300 {
            let n = rng.range(0, 60_000);
            let place = [RemoteSeg { addr: 0, len: n, key: 1 }];
            let write = rng.one_in(2);
            let iov = if write { from } else { to_me }.map(|s| s.part(0, n));
            let sent_a = a.domain.rma(a.ep, &rma(to, write, &iov, &place, started));
            let sent_b = b.domain.rma(b.ep, &rma(back_to, true, &from.map(|s| s.part(0, n)), &place, started));
            assert!(sent_a.is_ok() && sent_b.is_ok());
            started += 1;
        }
        for node in [&mut a, &mut b] {
            for e in node.poll() {
                done[e.expect("done").ctx.0] += 1;
            }
        }
        until.check(|| format!("{started} started, {} done", done.iter().sum::<usize>()));
    }
    assert!(done.iter().all(|n| *n == 2), "{done:?}");
    let _ = CntrEvents::READ;
}
