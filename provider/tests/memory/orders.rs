//! Operations that follow each other without anybody's waiting: what a domain says of their order (`FI_ORDER_WAR`, `RAW`, `WAW`, of any length).

use super::{all_rights, both_ways, one, pair, region, rma};
use crate::common::{Deadline, all_ok, pattern, seg, watchdog};
use rustmx::{Error, Region, RemoteSeg, UserSeg};

const LEN: usize = 3_000_000;

/// A read, two writes over all of what is read, another read, a write over the middle, a read: each sees what its place in the row says. In a region of that memory,
/// and in one of all memory.
#[test]
fn each_sees_what_came_before_it() {
    let _dog = watchdog("orders", 60);
    for cma in both_ways() {
        // The target goes on between the calls, while nobody takes its answers, or it does not.
        for (len, turns) in [100, 5_000, 70_000, LEN].into_iter().flat_map(|len| [0, 1, 3, 10].map(|turns| (len, turns))) {
            for everything in [false, true] {
                each_in_turn(cma, len, turns, everything);
            }
        }
    }
}

fn each_in_turn(cma: bool, len: usize, turns: usize, everything: bool) {
    let (mut a, mut b, to) = pair(cma);
    let mut theirs = pattern(len, 1);
    // SAFETY: peers are given addresses of live memory.
    #[expect(unsafe_code)]
    let all_memory = unsafe { UserSeg::new(std::ptr::null_mut(), usize::MAX) };
    let (memory, base) = if everything { (all_memory, theirs.as_ptr() as u64) } else { (seg(&mut theirs), 0) };
    b.domain.mr_register(Some(7), Region { memory, access: all_rights(), by_address: false }).expect("registered");
    let [mut first, mut second, mut third] = [(); 3].map(|()| vec![0; len]);
    let [mut early, mut all, mut middle] = [(len, 4), (len, 2), (len / 3, 3)].map(|(len, seed)| pattern(len, seed));
    let calls = [
        (false, seg(&mut first), 0),
        (true, seg(&mut early), 0),
        (true, seg(&mut all), 0),
        (false, seg(&mut second), 0),
        (true, seg(&mut middle), len / 3),
        (false, seg(&mut third), 0),
    ];
    for (ctx, (write, memory, at)) in calls.into_iter().enumerate() {
        let (memory, places) = ([memory], [RemoteSeg { addr: base + at as u64, len: memory.len(), key: 7 }]);
        a.domain.rma(a.ep, &rma(to, write, &memory, &places, ctx)).expect("started");
        (0..turns).for_each(|_| b.domain.progress());
    }
    let (until, mut done) = (Deadline::new(20), 0);
    while done < calls.len() {
        done += all_ok(&a.poll());
        b.domain.progress();
        until.check(|| format!("{done} operations ended"));
    }
    let mut end = pattern(len, 2);
    end[len / 3..len / 3 + len / 3].copy_from_slice(&middle);
    let how = format!("{len} bytes, the kernel {cma}, {turns} turns, all memory {everything}");
    assert!(first == pattern(len, 1), "{how}: a read sees what was written after it");
    assert!(second == pattern(len, 2), "{how}: between two writes");
    assert!(third == end && theirs == end, "{how}: after all");
}

/// Who overwrites more than is kept of what he has not got yet is told so, and nothing grows without end.
#[test]
fn what_is_kept_of_overwritten_memory_has_a_limit() {
    let _dog = watchdog("kept", 60);
    const MUCH: usize = 40_000_000;
    let (mut a, mut b, to) = pair(false);
    let mut theirs = pattern(MUCH, 1);
    b.domain.mr_register(Some(7), region(&mut theirs, all_rights())).expect("registered");
    let (mut first, mut second, mut new) = (vec![0; MUCH], vec![0; MUCH], pattern(MUCH, 2));
    let places = [RemoteSeg { addr: 0, len: MUCH, key: 7 }];
    let calls = [(false, seg(&mut first)), (true, seg(&mut new)), (false, seg(&mut second)), (true, seg(&mut new))];
    for (ctx, (write, memory)) in calls.into_iter().enumerate() {
        a.domain.rma(a.ep, &rma(to, write, &[memory], &places, ctx)).expect("started");
    }
    let (until, mut ended) = (Deadline::new(30), Vec::new());
    while ended.len() < calls.len() {
        b.domain.progress();
        ended.extend(a.poll());
        until.check(|| format!("{ended:?}"));
    }
    // Each is right, or it failed for that reason; writes are done in any case.
    for end in &ended {
        match end {
            Ok(done) if done.ctx.0 == 0 => assert!(first == pattern(MUCH, 1)),
            Ok(done) if done.ctx.0 == 2 => assert!(second == pattern(MUCH, 2)),
            Ok(_) => {}
            Err(failed) => assert_eq!((failed.c.ctx.0 % 2, failed.error), (0, Error::NoResources)),
        }
    }
    assert!(theirs == pattern(MUCH, 2));
}

/// What is read later is not older than what was read before (`FI_ORDER_RAR`), though it is little and the other much, and the target changes all of it meanwhile.
#[test]
fn little_that_is_read_behind_much_is_not_older() {
    let _dog = watchdog("little behind much", 60);
    // More than sockets hold, and not so much more that the target would not come to the second.
    for (len, turns) in (3..11).flat_map(|million| [1, 3, 50].map(|turns| (million * 1_000_000, turns))) {
        let (mut a, mut b, to) = pair(false);
        let mut theirs = vec![1; len];
        b.domain.mr_register(Some(7), region(&mut theirs, all_rights())).expect("registered");
        let (mut much, mut little) = (vec![0; len], vec![0; 8]);
        for (ctx, (memory, at)) in
            [(seg(&mut little), 0), (seg(&mut much), 0), (seg(&mut little), len - 8)].into_iter().enumerate()
        {
            let (memory, places) = ([memory], [RemoteSeg { addr: at as u64, len: memory.len(), key: 7 }]);
            a.domain.rma(a.ep, &rma(to, false, &memory, &places, ctx)).expect("started");
            if ctx == 0 {
                one(&mut a, &mut b).expect("they have met");
            }
        }
        (0..turns).for_each(|_| b.domain.progress());
        theirs.fill(2);
        let (until, mut done) = (Deadline::new(20), 0);
        while done < 2 {
            done += all_ok(&a.poll());
            b.domain.progress();
            until.check(|| format!("{done} operations ended"));
        }
        assert!(little == [2; 8] || much.iter().all(|byte| *byte == 1), "{len} bytes, after {turns} turns: {little:?}");
    }
}

/// However far it got: nothing lands in a region once it is closed, and nothing is read there. The initiator hears of it, and its next operations are done.
#[test]
fn regions_that_are_closed_amid() {
    let _dog = watchdog("closed amid", 120);
    const FULL: usize = 16_000_000;
    for write in [true, false] {
        let (mut amid, mut turns) = (0, 0);
        while turns < 12 || amid < 2 {
            assert!(turns < 1000, "it is always all or nothing, write {write}");
            let (mut a, mut b, to) = pair(false);
            let (mut theirs, mut other) = (pattern(FULL, 1), pattern(5000, 2));
            b.domain.mr_register(Some(7), region(&mut theirs, all_rights())).expect("registered");
            b.domain.mr_register(Some(8), region(&mut other, all_rights())).expect("registered");
            let mut ours = if write { pattern(FULL, 3) } else { vec![0; FULL] };
            let (iov, places) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: FULL, key: 7 }]);
            let mut before = vec![0; 5000];
            let (small, there) = ([seg(&mut before)], [RemoteSeg { addr: 0, len: 5000, key: 8 }]);
            // They have met.
            a.domain.rma(a.ep, &rma(to, false, &small, &there, 0)).expect("started");
            one(&mut a, &mut b).expect("read");
            a.domain.rma(a.ep, &rma(to, write, &iov, &places, 1)).expect("started");
            a.domain.rma(a.ep, &rma(to, false, &small, &there, 2)).expect("started");
            let mut ended = Vec::new();
            for _ in 0..turns {
                b.domain.progress();
                ended.extend(a.poll());
            }
            b.domain.mr_close(7).expect("closed");
            let kept = theirs.clone();
            if !write {
                theirs.fill(0xee);
            }
            let until = Deadline::new(20);
            while ended.len() < 2 {
                b.domain.progress();
                ended.extend(a.poll());
                until.check(|| format!("{ended:?}"));
            }
            for _ in 0..20 {
                b.domain.progress();
            }
            // Completions come in any order.
            ended.sort_by_key(|end| end.as_ref().map_or_else(|failed| failed.c.ctx.0, |done| done.ctx.0));
            let (first, second) = (&ended[0], &ended[1]);
            assert!(second.as_ref().is_ok_and(|done| done.ctx.0 == 2) && before == other, "{second:?}");
            match first {
                Ok(done) => {
                    assert!(done.ctx.0 == 1 && (if write { &kept } else { &ours }) == &pattern(FULL, if write { 3 } else { 1 }))
                }
                Err(failed) => assert_eq!((failed.c.ctx.0, failed.error), (1, Error::NoKey)),
            }
            // What has not come is whatever it is; but it is nothing that was there after the end.
            assert!(!write || theirs == kept, "after {turns} turns something lands in a region that is closed");
            let late = ours.chunks_exact(64).filter(|piece| **piece == [0xee; 64]).count();
            assert!(write || late == 0, "after {turns} turns {late} pieces are read of a region that is closed");
            let (moved, initial) = if write { (&theirs, pattern(FULL, 1)) } else { (&ours, vec![0; FULL]) };
            amid += usize::from(first.is_err() && *moved != initial);
            turns += 1;
        }
    }
}
