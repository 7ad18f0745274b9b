//! Operations that may not start: behind a fence, when too many are under way, and those that make no sense.

use crate::common::{Deadline, Msg, Node, Want, acquaint, all_ok, contact, fresh_port, pattern, seg, watchdog};
use crate::{all_rights, atomic, both_ways, kernel_allows, one, pair, region, rma};
use rustmx::{
    ATOMIC_MAX, AtomicForm, AtomicOp, AtomicType, Error, INJECT_MAX, MAX_PLACES, OpFlags, Order, RemoteSeg, RmaArgs, UserCtx,
};

#[test]
fn a_fence_waits_for_what_came_before() {
    let _dog = watchdog("fence", 30);
    let (mut a, mut b, to) = pair(false);
    let mut theirs = vec![0u8; 8];
    let memory = region(&mut theirs, all_rights());
    b.domain.mr_register(Some(1), memory).expect("registered");
    let mut ours = [1u8; 8];
    let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 8, key: 1 }]);
    a.domain.rma(a.ep, &rma(to, true, &iov, &place, 1)).expect("write");
    let fenced = RmaArgs { flags: Some(OpFlags::COMPLETION | OpFlags::FENCE), ..rma(to, false, &iov, &place, 2) };
    assert_eq!(a.domain.rma(a.ep, &fenced), Err(Error::Again));
    one(&mut a, &mut b).expect("written");
    a.domain.rma(a.ep, &fenced).expect("the fence is open");
    one(&mut a, &mut b).expect("read");
}

/// Whatever the message still waits for: its receiver's answer, an acknowledgement, room.
#[test]
fn a_fence_waits_for_messages_too() {
    let _dog = watchdog("fence and messages", 60);
    let eight = |flags| (8, OpFlags::COMPLETION | flags);
    for (what, cma, (n, flags)) in [
        ("a stream", false, (1 << 20, OpFlags::COMPLETION)),
        ("an offer", true, (1 << 20, OpFlags::COMPLETION)),
        ("an acknowledgement", false, eight(OpFlags::DELIVERY_COMPLETE)),
        ("room", false, eight(OpFlags::empty())),
    ] {
        if cma && !kernel_allows() {
            continue;
        }
        // They outlive those who may still have them in hand.
        let (mut theirs, mut ours) = (vec![0u8; 8], [1u8; 8]);
        let (mut out, mut into) = (pattern(1 << 20, 1), vec![0u8; 1 << 20]);
        let (mut a, mut b, to) = pair(cma);
        b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
        acquaint(&mut a, &mut b);
        let most = if what == "room" { 1_000_000 } else { 1 };
        let sent = (0..most).take_while(|_| a.send(Msg { flags, ..Msg::new(to, 1) }, &mut out[..n]).is_ok()).count();
        assert!(sent > 0 && sent < most.max(2), "{what}");
        let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 8, key: 1 }]);
        let fenced = RmaArgs { flags: Some(OpFlags::COMPLETION | OpFlags::FENCE), ..rma(to, false, &iov, &place, 2) };
        assert_eq!(a.domain.rma(a.ep, &fenced), Err(Error::Again), "{what}");
        let (until, mut posted, mut received, mut completed) = (Deadline::new(20), 0, 0, 0);
        while a.domain.rma(a.ep, &fenced) == Err(Error::Again) {
            if posted == received {
                b.recv(Want::tag(1), &mut into[..n]).expect("recv");
                posted += 1;
            }
            received += all_ok(&b.poll());
            completed += all_ok(&a.poll());
            until.check(|| format!("{what}: {received} of {sent}"));
        }
        // The read may be complete, too.
        assert!(completed + all_ok(&a.poll()) >= sent, "{what}: it was open too early");
    }
}

/// A message that counts as sent may still be in the ring, for a buffer that the fenced operation reaches for.
#[test]
fn what_is_behind_a_fence_does_not_overtake_a_message() {
    let _dog = watchdog("fence and ring", 30);
    for (cma, write) in both_ways().into_iter().flat_map(|cma| [(cma, true), (cma, false)]) {
        let (mut theirs, mut ours, mut out) = (vec![0u8; 64], [3u8; 64], [2u8; 64]);
        let (mut a, mut b, to) = pair(cma);
        acquaint(&mut a, &mut b);
        b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
        b.recv(Want::tag(1), &mut theirs).expect("recv");
        a.send(Msg::new(to, 1), &mut out).expect("send");
        assert_eq!(all_ok(&a.poll()), 1, "sent, and nobody has read it");
        let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 64, key: 1 }]);
        let fenced = RmaArgs { flags: Some(OpFlags::COMPLETION | OpFlags::FENCE), ..rma(to, write, &iov, &place, 2) };
        a.domain.rma(a.ep, &fenced).expect("started");
        let (until, mut done) = (Deadline::new(10), [0, 0]);
        while done != [1, 1] {
            done[0] += all_ok(&a.poll());
            done[1] += all_ok(&b.poll());
            until.check(|| format!("{done:?}"));
        }
        let (at, want) = if write { (&theirs[..], 3) } else { (&ours[..], 2) };
        assert!(at.iter().all(|byte| *byte == want), "cma {cma}, write {write}: {at:?}");
    }
}

#[test]
fn a_fence_waits_for_first_contact() {
    let mut ours = [1u8; 8];
    let mut a = Node::new();
    // Nobody is there yet.
    let to = a.av.insert(&contact(fresh_port()));
    a.send(Msg::new(to, 1), &mut ours).expect("send");
    let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 8, key: 1 }]);
    let fenced = RmaArgs { flags: Some(OpFlags::COMPLETION | OpFlags::FENCE), ..rma(to, false, &iov, &place, 2) };
    assert_eq!(a.domain.rma(a.ep, &fenced), Err(Error::Again));
    assert_eq!(a.domain.rma(a.ep, &rma(to, false, &iov, &place, 2)), Ok(()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let _dog = watchdog("no sense", 30);
    for cma in both_ways() {
        let (mut a, mut b, to) = pair(cma);
        let mut theirs = vec![0u8; 100_000];
        b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
        let (mut ours, mut compared) = (pattern(2 * INJECT_MAX, 2), pattern(2 * ATOMIC_MAX, 2));
        let [mut x, mut y] = [&mut ours, &mut compared].map(|buf| move |n: usize| [seg(&mut buf[..n])]);
        let place = |len| [RemoteSeg { addr: 0, len, key: 1 }];
        let pieces: Vec<RemoteSeg> = (0..=MAX_PLACES as u64).map(|i| RemoteSeg { addr: 2 * i, len: 1, key: 1 }).collect();
        for write in [true, false] {
            for (n, want) in [(MAX_PLACES + 1, Err(Error::Invalid)), (MAX_PLACES, Ok(()))] {
                assert_eq!(a.domain.rma(a.ep, &rma(to, write, &x(n), &pieces[..n], 1)), want, "{n} pieces");
            }
            one(&mut a, &mut b).expect("done");
            for n in [7, 9] {
                assert_eq!(a.domain.rma(a.ep, &rma(to, write, &x(n), &place(8), 1)), Err(Error::Invalid), "{n} bytes for 8");
            }
        }
        // What is injected is short, and no completion tells of it.
        for (n, want) in [(INJECT_MAX + 1, Err(Error::TooLong)), (INJECT_MAX, Ok(()))] {
            assert_eq!(a.domain.rma(a.ep, &RmaArgs { inject: true, ..rma(to, true, &x(n), &place(n), 3) }), want);
        }
        a.domain.rma(a.ep, &rma(to, false, &y(8), &place(8), 4)).expect("read");
        assert_eq!(one(&mut a, &mut b).expect("read").ctx, UserCtx(4));
        let order = Order { op: AtomicOp::Swap, kind: AtomicType::U64, form: AtomicForm::Compare };
        let mut results = vec![0u8; 2 * ATOMIC_MAX];
        let mut z = |n: usize| [seg(&mut results[..n])];
        for (lens, n, want) in [
            ([8, 8, 8], 8, Ok(())),
            ([16, 8, 8], 8, Err(Error::Invalid)),
            ([8, 16, 8], 8, Err(Error::Invalid)),
            ([8, 8, 16], 8, Err(Error::Invalid)),
            ([ATOMIC_MAX; 3], ATOMIC_MAX, Ok(())),
            ([ATOMIC_MAX + 8; 3], ATOMIC_MAX + 8, Err(Error::TooLong)),
        ] {
            let (place, iovs) = (place(n), [x(lens[0]), y(lens[1]), z(lens[2])]);
            let args = atomic(to, order, iovs.each_ref().map(|iov| &iov[..]), &place);
            assert_eq!(a.domain.atomic(a.ep, &args), want, "{lens:?} for {n}");
            if want.is_ok() {
                one(&mut a, &mut b).expect("done");
            }
        }
    }
}

/// The caller has to come again, and nothing is lost.
#[test]
fn operations_that_a_target_does_not_get_round_to_have_a_limit() {
    let _dog = watchdog("limit", 60);
    let (mut a, mut b, to) = pair(false);
    let (mut theirs, mut ours) = (vec![0u8; 8], [1u8; 8]);
    b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
    let (iov, place) = ([seg(&mut ours)], [RemoteSeg { addr: 0, len: 8, key: 1 }]);
    let started = (0..100_000).take_while(|i| a.domain.rma(a.ep, &rma(to, true, &iov, &place, *i)).is_ok()).count();
    assert!((1000..10_000).contains(&started), "{started} at once");
    let (until, mut done) = (Deadline::new(30), 0);
    while done < started {
        done += all_ok(&a.poll());
        b.domain.progress();
        until.check(|| format!("{done} of {started}"));
    }
}
