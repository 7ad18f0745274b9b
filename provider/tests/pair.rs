//! Endpoints of one process over real sockets and real segments: what the public API promises for messages. Who is reached, and what
//! it costs, is in `contact.rs`.

mod common;

use common::{Deadline, Event, Msg, Node, Rng, Want, all_ok, attr, pattern, process, push, run, seg, watchdog};
use rustmx::{Addr, CompFlags, Completion, Config, Error, INJECT_MAX, IOV_LIMIT, OpFlags, UserSeg};

/// One size of each protocol, and one that takes many turns of the ring.
const SIZES: [usize; 5] = [0, 40, 3000, 60_000, 1_000_000];

fn pair() -> (Node, Node, Addr, Addr) {
    let (a, b) = (Node::new(), Node::new());
    let (to_b, from_a) = (a.knows(&b), b.knows(&a));
    (a, b, to_b, from_a)
}

#[track_caller]
fn ok(e: &Event) -> Completion {
    match e {
        Ok(c) => *c,
        Err(e) => panic!("{e:?}"),
    }
}

/// Lets what was sent arrive, where nothing is to complete on `b`.
fn settle(a: &mut Node, b: &mut Node, unexpected: u64) {
    let until = Deadline::new(10);
    while b.stats().unexpected < unexpected {
        b.quiet(1);
        a.domain.progress();
        until.check(|| format!("{:?}", b.stats()));
    }
    for _ in 0..50 {
        b.quiet(1);
        a.domain.progress();
    }
}

#[test]
fn every_size_posted_and_unexpected_at_every_level() {
    let _dog = watchdog("every_size", 60);
    let (mut a, mut b, to_b, from_a) = pair();
    let sizes = [
        0usize, 1, 39, 40, 41, 103, 104, 105, 231, 232, 233, 1000, 4095, 4096, 4097, 8192, 16384, 16385, 65536, 131_073, 300_000,
        5_000_000,
    ];
    let mut unexpected = 0;
    for (i, n) in sizes.into_iter().enumerate() {
        for level in [OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE] {
            for early in [true, false] {
                let mut out = pattern(n, i);
                let mut into = vec![0xeeu8; n + 8];
                let tag = (i as u64) << 40 | n as u64;
                let want = Want::tag(tag).ctx(7);
                if early {
                    b.recv(want.from(from_a), &mut into).expect("recv");
                }
                a.send(Msg::new(to_b, tag).data(tag ^ 7).ctx(5).with(level), &mut out).expect("send");
                if !early {
                    unexpected += 1;
                    settle(&mut a, &mut b, unexpected);
                    b.recv(want, &mut into).expect("recv");
                }
                let got = run(&mut [&mut a, &mut b], &[1, 1]);
                let (s, r) = (ok(&got[0][0]), ok(&got[1][0]));
                assert_eq!((s.ctx.0, s.flags), (5, CompFlags::SEND | CompFlags::TAGGED));
                assert_eq!((r.len, r.tag, r.data, r.src, r.ctx.0), (n, tag, tag ^ 7, from_a, 7));
                assert_eq!(r.flags, CompFlags::RECV | CompFlags::TAGGED | CompFlags::REMOTE_CQ_DATA);
                assert_eq!(&into[..n], &out[..], "{n} bytes, {level:?}, early {early}");
                assert!(into[n..].iter().all(|b| *b == 0xee), "past the message: {n} bytes, {level:?}, early {early}");
            }
        }
    }
}

/// Delivery-complete means that the peer has taken the message out of the ring, not that somebody sent it.
#[test]
fn delivery_waits_for_the_peer_and_transmit_does_not() {
    let _dog = watchdog("delivery_waits", 30);
    let (mut a, mut b, to_b, _) = pair();
    let mut buf = [7u8; 16];
    a.send(Msg::new(to_b, 1).with(OpFlags::TRANSMIT_COMPLETE), &mut buf).expect("send");
    a.send(Msg::new(to_b, 2).with(OpFlags::DELIVERY_COMPLETE), &mut buf).expect("send");
    let mut got = Vec::new();
    for _ in 0..2000 {
        got.extend(a.poll());
    }
    assert_eq!(got.iter().map(|e| ok(e).ctx.0).collect::<Vec<_>>(), [1], "the peer has not polled yet");
    // Unexpected or not: taken is taken.
    let got = run(&mut [&mut a, &mut b], &[1, 0]);
    assert_eq!(ok(&got[0][0]).ctx.0, 2);
}

/// An acknowledgement is looked for even if there is always something else to do.
#[test]
fn a_busy_endpoint_still_sees_acknowledgements() {
    let _dog = watchdog("busy_acks", 30);
    let (mut a, mut b, mut c) = (Node::new(), Node::new(), Node::new());
    let (to_b, to_a) = (a.knows(&b), c.knows(&a));
    let (mut out, mut noise) = ([1u8; 8], [2u8; 8]);
    a.send(Msg::new(to_b, 5).with(OpFlags::DELIVERY_COMPLETE), &mut out).expect("send");
    let until = Deadline::new(5);
    while a.poll().is_empty() {
        let _ = c.send(Msg::new(to_a, 1).inject(), &mut noise);
        assert!(c.poll().is_empty() && b.poll().is_empty());
        until.check(|| "no acknowledgement".into());
    }
}

#[test]
fn a_short_buffer_truncates_that_message_only() {
    let _dog = watchdog("truncation", 30);
    let (mut a, mut b, to_b, from_a) = pair();
    let mut unexpected = 0;
    for (n, cap) in
        [(100, 40), (100, 0), (3000, 1000), (3000, 0), (60_000, 100), (60_000, 0), (1_000_000, 999_999), (1_000_000, 200_000)]
    {
        for early in [true, false] {
            let (mut out, mut next) = (pattern(n, 1), pattern(n, 2));
            let (mut into, mut whole) = (vec![0xeeu8; n], vec![0u8; n]);
            if early {
                b.recv(Want::tag(1), &mut into[..cap]).expect("recv");
                b.recv(Want::tag(1).ctx(2), &mut whole).expect("recv");
            }
            let mut sent = Vec::new();
            sent.extend(push(&mut a, &mut b, Msg::new(to_b, 1), &mut out).0);
            sent.extend(push(&mut a, &mut b, Msg::new(to_b, 1), &mut next).0);
            if !early {
                unexpected += 2;
                settle_any(&mut a, &mut b, unexpected, &mut sent);
                b.recv(Want::tag(1), &mut into[..cap]).expect("recv");
                b.recv(Want::tag(1).ctx(2), &mut whole).expect("recv");
            }
            let left = 2 - sent.len();
            let got = run(&mut [&mut a, &mut b], &[left, 2]);
            assert!(got[0].iter().chain(&sent).all(Result::is_ok), "the sender is not concerned: {:?}", got[0]);
            let e = got[1].iter().find_map(|e| e.err()).expect("truncated");
            assert_eq!((e.error, e.c.len, e.olen, e.c.ctx.0, e.c.tag), (Error::Truncated, cap, n - cap, 1, 1), "{n} into {cap}");
            assert_eq!(e.c.flags, CompFlags::RECV | CompFlags::TAGGED);
            assert_eq!(&into[..cap], &out[..cap]);
            assert!(into[cap..].iter().all(|b| *b == 0xee), "{n} into {cap}: written past the buffer");
            let c = got[1].iter().find_map(|e| e.ok()).expect("the next one");
            assert_eq!((c.len, c.ctx.0, c.src), (n, 2, from_a));
            assert_eq!(whole, next);
        }
    }
}

/// As [`settle`], where sends complete meanwhile.
fn settle_any(a: &mut Node, b: &mut Node, unexpected: u64, sent: &mut Vec<Event>) {
    let until = Deadline::new(10);
    while b.stats().unexpected < unexpected {
        b.quiet(1);
        sent.extend(a.poll());
        until.check(|| format!("{:?}", b.stats()));
    }
    for _ in 0..50 {
        b.quiet(1);
        sent.extend(a.poll());
    }
}

#[test]
fn peek_claim_discard() {
    let _dog = watchdog("peek_claim_discard", 30);
    for n in SIZES {
        let (mut a, mut b, to_b, from_a) = pair();
        let none = b.peek(Want::tag(1).ctx(99)).expect_err("nothing there");
        assert_eq!((none.error, none.c.ctx.0), (Error::NoMessage, 99));
        let mut bufs: Vec<Vec<u8>> = (0..6).map(|i| pattern(n, i)).collect();
        let mut sent = 0;
        for (i, buf) in bufs.iter_mut().enumerate() {
            sent += push(&mut a, &mut b, Msg::new(to_b, i as u64).data(i as u64), buf).0.len();
        }
        let until = Deadline::new(10);
        while b.stats().unexpected < 6 {
            b.quiet(1);
            sent += a.poll().len();
            until.check(|| "not all came".into());
        }
        // A peek tells everything and takes nothing, however often.
        for _ in 0..3 {
            let c = ok(&b.peek(Want::tag(2).ctx(50)));
            assert_eq!((c.len, c.tag, c.data, c.src, c.ctx.0), (n, 2, 2, from_a, 50));
        }
        // Claimed: nobody else sees it; two are claimed at once and received in the other order.
        for (tag, ctx) in [(2, 60), (4, 61)] {
            let c = ok(&b.peek(Want::tag(tag).ctx(ctx).with(OpFlags::CLAIM)));
            assert!(c.flags.contains(CompFlags::CLAIM) && c.len == n, "{c:?}");
            assert_eq!(b.peek(Want::tag(tag)).expect_err("claimed").error, Error::NoMessage);
        }
        let mut first_free = vec![0u8; n];
        // Peek and discard: the message is gone, its sender completes.
        assert_eq!(ok(&b.peek(Want::tag(0).with(OpFlags::DISCARD))).len, n);
        assert_eq!(b.peek(Want::tag(0)).expect_err("gone").error, Error::NoMessage);
        let mut into = vec![0u8; n];
        b.recv(Want::tag(0).ctx(61).with(OpFlags::CLAIM), &mut into).expect("claim");
        let mut events = Vec::new();
        drive(&mut a, &mut b, &mut sent, &mut events, 1);
        assert_eq!((ok(&events[0]).tag, ok(&events[0]).ctx.0), (4, 61));
        assert_eq!(into, bufs[4], "claims go by context, not by tag");
        // A claimed one that is discarded.
        b.recv(Want::tag(2).ctx(60).with(OpFlags::CLAIM | OpFlags::DISCARD), &mut []).expect("discard");
        drive(&mut a, &mut b, &mut sent, &mut events, 1);
        assert_eq!(b.recv(Want::tag(2).ctx(60).with(OpFlags::CLAIM), &mut []).expect_err("gone"), Error::NoMessage);
        assert_eq!(b.recv(Want::tag(2).ctx(77).with(OpFlags::CLAIM), &mut []).expect_err("never peeked"), Error::NoMessage);
        // The rest, in order of arrival.
        for tag in [1u64, 3, 5] {
            b.recv(Want::any().ctx(70), &mut first_free).expect("recv");
            drive(&mut a, &mut b, &mut sent, &mut events, 1);
            assert_eq!(ok(&events[0]).tag, tag);
            assert_eq!(first_free, bufs[tag as usize]);
        }
        let until = Deadline::new(10);
        while sent < 6 {
            sent += all_ok(&a.poll());
            b.quiet(1);
            until.check(|| format!("{n} bytes: {sent} of 6 sends completed, also those that were discarded"));
        }
        assert_eq!(b.peek(Want::any()).expect_err("nothing left").error, Error::NoMessage);
    }
}

/// Polls both until exactly `want` events came on `b`.
fn drive(a: &mut Node, b: &mut Node, sent: &mut usize, events: &mut Vec<Event>, want: usize) {
    events.clear();
    let until = Deadline::new(10);
    while events.len() < want {
        events.extend(b.poll());
        *sent += all_ok(&a.poll());
        until.check(|| format!("{events:?}"));
    }
    assert_eq!(events.len(), want, "{events:?}");
}

#[test]
fn cancel() {
    let _dog = watchdog("cancel", 30);
    let (mut a, mut b, to_b, from_a) = pair();
    let (mut one, mut two, mut out) = ([0u8; 8], [0u8; 8], *b"payload!");
    b.recv(Want::tag(3).ctx(31), &mut one).expect("recv");
    b.recv(Want::tag(3).ctx(32).from(from_a), &mut two).expect("recv");
    b.domain.cancel(b.ep, rustmx::UserCtx(31)).expect("cancel");
    let got = b.poll();
    let e = got[0].expect_err("cancelled");
    assert_eq!((got.len(), e.error, e.c.ctx.0), (1, Error::Cancelled, 31));
    assert_eq!(b.domain.cancel(b.ep, rustmx::UserCtx(31)), Err(Error::NoMessage), "twice");
    a.send(Msg::new(to_b, 3), &mut out).expect("send");
    let got = run(&mut [&mut a, &mut b], &[1, 1]);
    assert_eq!((ok(&got[1][0]).ctx.0, two), (32, out));
    assert_eq!(one, [0; 8], "a cancelled buffer is the application's again");
    assert_eq!(b.domain.cancel(b.ep, rustmx::UserCtx(32)), Err(Error::NoMessage), "it has its message");
    // A multi-receive buffer, cancelled after a message.
    let mut multi = vec![0u8; 4096];
    b.recv(Want::tag(3).ctx(33).with(OpFlags::MULTI_RECV), &mut multi).expect("recv");
    a.send(Msg::new(to_b, 3), &mut out).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    b.domain.cancel(b.ep, rustmx::UserCtx(33)).expect("cancel");
    assert_eq!(b.poll()[0].expect_err("cancelled").c.ctx.0, 33);
    a.send(Msg::new(to_b, 3), &mut out).expect("send");
    settle(&mut a, &mut b, 1);
}

#[test]
fn multi_receive_buffers() {
    let _dog = watchdog("multi_recv", 60);
    for early in [true, false] {
        let (mut a, mut b, to_b, _) = pair();
        b.domain.ep_set_min_multi_recv(b.ep, 1000);
        assert_eq!(b.domain.ep_min_multi_recv(b.ep), 1000);
        let (mut first, mut second, mut third) = (vec![0u8; 10_000], vec![0u8; 300_000], vec![0u8; 5000]);
        // Into the first: 5000 (5008 used), 100 (5120 used), 3900 (9024 used; 976 left: less than 1000, given back).
        // Into the second: 200 000 (streamed); 150 000 does not fit the rest and goes on to the third, which is too short: truncated.
        let sizes = [5000usize, 100, 3900, 200_000, 150_000];
        let mut bufs: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, n)| pattern(*n, i)).collect();
        let mut post = |b: &mut Node| {
            for (ctx, buf) in [(1, &mut first), (2, &mut second), (3, &mut third)] {
                b.recv(Want::tag(9).ctx(ctx).with(OpFlags::MULTI_RECV), buf).expect("post");
            }
        };
        let mut events = Vec::new();
        if early {
            post(&mut b);
        }
        let mut sent = 0;
        for buf in &mut bufs {
            let (s, r) = push(&mut a, &mut b, Msg::new(to_b, 9), buf);
            sent += s.len();
            events.extend(r);
        }
        if !early {
            let until = Deadline::new(10);
            while b.stats().unexpected < 5 {
                b.quiet(1);
                sent += a.poll().len();
                until.check(|| "not all came".into());
            }
            post(&mut b);
        }
        let until = Deadline::new(10);
        let given_back = |e: &&Event| e.map_or_else(|e| e.c, |c| c).flags.contains(CompFlags::MULTI_RECV);
        while sent < 5 || events.iter().filter(given_back).count() < 3 {
            sent += a.poll().len();
            events.extend(b.poll());
            until.check(|| format!("{events:?}"));
        }
        for _ in 0..100 {
            assert!(a.poll().is_empty() && b.poll().is_empty());
        }
        // Truncated streams and the second buffer's release may come in either order; within a buffer the order is that of sending.
        let of = |ctx: usize| -> Vec<Event> {
            let context = |e: &Event| e.map_or_else(|e| e.c.ctx.0, |c| c.ctx.0);
            events.iter().filter(|e| context(e) == ctx).copied().collect()
        };
        let one: Vec<Completion> = of(1).iter().map(ok).collect();
        assert_eq!(one.iter().map(|c| c.len).collect::<Vec<_>>(), [5000, 100, 3900]);
        for (c, want) in one.iter().zip(&bufs) {
            assert_eq!(c.buf % 16, first.as_ptr() as usize % 16, "messages are aligned");
            let at = c.buf - first.as_ptr() as usize;
            assert_eq!(&first[at..at + c.len], &want[..]);
        }
        assert_eq!(
            one.iter().map(|c| c.flags.contains(CompFlags::MULTI_RECV)).collect::<Vec<_>>(),
            [false, false, true],
            "given back with the last message"
        );
        let two: Vec<Completion> = of(2).iter().map(ok).collect();
        let message = two.iter().find(|c| c.flags.contains(CompFlags::RECV)).expect("the message");
        assert_eq!((message.len, message.buf), (200_000, second.as_ptr() as usize));
        assert_eq!(&second[..200_000], &bufs[3][..]);
        let released = two.iter().filter(|c| c.flags.contains(CompFlags::MULTI_RECV)).count();
        assert_eq!(released, 1, "the second buffer comes back once: {two:?}");
        assert!(two.last().expect("two").flags.contains(CompFlags::MULTI_RECV), "and nothing follows: {two:?}");
        let three = of(3);
        let e = three[0].expect_err("too long for a whole buffer");
        assert_eq!((three.len(), e.error, e.c.len, e.olen), (1, Error::Truncated, 5000, 145_000));
        assert!(e.c.flags.contains(CompFlags::MULTI_RECV));
        assert_eq!(&third[..], &bufs[4][..5000]);
    }
}

/// A buffer that a message does not fit any more is given back by an entry of its own if its last message was read long ago.
#[test]
fn a_multi_receive_buffer_is_released_without_a_message() {
    let _dog = watchdog("multi_release", 30);
    let (mut a, mut b, to_b, _) = pair();
    let mut out = pattern(600, 1);
    let (mut first, mut second) = (vec![0u8; 1000], vec![0u8; 1000]);
    b.recv(Want::tag(9).ctx(1).with(OpFlags::MULTI_RECV), &mut first).expect("post");
    b.recv(Want::tag(9).ctx(2).with(OpFlags::MULTI_RECV), &mut second).expect("post");
    a.send(Msg::new(to_b, 9), &mut out).expect("send");
    let got = run(&mut [&mut a, &mut b], &[1, 1]);
    assert_eq!((ok(&got[1][0]).ctx.0, ok(&got[1][0]).flags.contains(CompFlags::MULTI_RECV)), (1, false));
    a.send(Msg::new(to_b, 9), &mut out).expect("send");
    let got = run(&mut [&mut a, &mut b], &[1, 2]);
    let (release, message) = (ok(&got[1][0]), ok(&got[1][1]));
    assert_eq!((release.ctx.0, release.flags, release.len), (1, CompFlags::MULTI_RECV, 0));
    assert_eq!((message.ctx.0, message.len), (2, 600));
}

#[test]
fn wildcards_take_the_oldest_and_each_source_keeps_its_order() {
    let _dog = watchdog("wildcards", 30);
    let mut b = Node::new();
    let mut senders: Vec<Node> = (0..3).map(|_| Node::new()).collect();
    let from: Vec<Addr> = senders.iter().map(|a| b.knows(a)).collect();
    let mut rng = Rng(7);
    let sizes = [0usize, 30, 500, 5000, 40_000];
    let mut bufs: Vec<Vec<Vec<u8>>> = (0..3).map(|s| (0..60).map(|i| pattern(sizes[i % 5], s * 100 + i)).collect()).collect();
    let (mut next, mut seen) = ([0usize; 3], [0u64; 3]);
    let mut into = vec![0u8; 40_000];
    let until = Deadline::new(15);
    let mut received = 0;
    let mut posted = None;
    let mut sent = 0;
    while received < 180 || sent < 180 {
        let s = rng.range(0, 3);
        if next[s] < 60 && rng.one_in(2) {
            let to = senders[s].knows(&b);
            let i = next[s];
            match senders[s].send(Msg::new(to, i as u64).data(s as u64), &mut bufs[s][i]) {
                Ok(()) => next[s] += 1,
                Err(Error::Again) => {}
                Err(e) => panic!("{e}"),
            }
        }
        for a in &mut senders {
            sent += all_ok(&a.poll());
        }
        if posted.is_none() && received < 180 {
            // Any source and any tag; or any tag of one source that still has something.
            let only = rng.range(0, 3);
            let directed = rng.one_in(2) && seen[only] < 60;
            let want = if directed { Want::any().from(from[only]) } else { Want::any() };
            posted = Some(directed.then_some(only));
            b.recv(want, &mut into).expect("recv");
        }
        for c in b.poll().iter().map(ok) {
            let only = posted.take().expect("one was posted");
            let src = c.data as usize;
            assert!(only.is_none_or(|o| o == src), "directed at {only:?}, from {src}");
            assert_eq!((c.src, c.tag), (from[src], seen[src]), "source {src} out of order");
            assert_eq!(&into[..c.len], &bufs[src][c.tag as usize][..]);
            seen[src] += 1;
            received += 1;
        }
        until.check(|| format!("{received} received, {seen:?}"));
    }
}

#[test]
fn tags_and_ignore_masks_choose_among_posted_receives() {
    let _dog = watchdog("masks", 30);
    let (mut a, mut b, to_b, _) = pair();
    let mut into = vec![[0u8; 8]; 4];
    let posts = [(u64::MAX, 0u64), (0xff00, 0xff), (0, u64::MAX), (0xff01, 0)];
    for (i, ((tag, ignore), buf)) in posts.iter().zip(&mut into).enumerate() {
        b.recv(Want { tag: *tag, ignore: *ignore, ..Want::any() }.ctx(i), buf).expect("recv");
    }
    // 0xff01 fits the second before the fourth; then the third, being older, before the fourth.
    for (tag, fits) in [(0xff01u64, 1usize), (0xff01, 2), (0xff01, 3), (u64::MAX, 0)] {
        a.send(Msg::new(to_b, tag), &mut [tag as u8; 8]).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!((ok(&got[1][0]).ctx.0, ok(&got[1][0]).tag), (fits, tag));
    }
}

#[test]
fn untagged_messages_are_a_world_of_their_own() {
    let _dog = watchdog("untagged", 30);
    let (mut a, mut b, to_b, from_a) = pair();
    for n in SIZES {
        let (mut plain, mut tagged) = (pattern(n, 1), pattern(n, 2));
        let (mut into_plain, mut into_tagged) = (vec![0u8; n], vec![0u8; n]);
        b.recvv(Want::any().ctx(1), &[seg(&mut into_plain)], false).expect("recv");
        b.recvv(Want::any().ctx(2), &[seg(&mut into_tagged)], true).expect("recv");
        a.sendv(Msg::new(to_b, 0).ctx(3), &[seg(&mut tagged)], true).expect("tagged");
        let early = push_untagged(&mut a, &mut b, to_b, &mut plain);
        let mut got = run(&mut [&mut a, &mut b], &[2 - early.0.len(), 2 - early.1.len()]);
        got[1].extend(early.1);
        let on_b: Vec<Completion> = got[1].iter().map(ok).collect();
        for c in on_b {
            let want = if c.ctx.0 == 1 { CompFlags::MSG } else { CompFlags::TAGGED };
            assert_eq!((c.flags, c.len, c.src), (CompFlags::RECV | want, n, from_a));
        }
        assert!(into_plain == plain && into_tagged == tagged, "{n} bytes");
    }
}

fn push_untagged(a: &mut Node, b: &mut Node, to: Addr, buf: &mut [u8]) -> (Vec<Event>, Vec<Event>) {
    let until = Deadline::new(10);
    let (mut on_a, mut on_b) = (Vec::new(), Vec::new());
    while a.sendv(Msg::new(to, 0).ctx(4), &[seg(buf)], false) == Err(Error::Again) {
        on_a.extend(a.poll());
        on_b.extend(b.poll());
        until.check(|| "no room".into());
    }
    (on_a, on_b)
}

#[test]
fn messages_to_oneself() {
    let _dog = watchdog("self", 30);
    let mut a = Node::new();
    let me = a.av.insert(&a.name());
    for n in [0usize, 8, 232, 233, 4096, 5000, 70_000, 3_000_000] {
        for level in [OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE] {
            for early in [true, false] {
                let mut out = pattern(n, 3);
                let mut into = vec![0u8; n];
                if early {
                    a.recv(Want::tag(1).from(me), &mut into).expect("recv");
                }
                a.send(Msg::new(me, 1).with(level), &mut out).expect("send");
                let mut got = Vec::new();
                if !early {
                    for _ in 0..50 {
                        got.extend(a.poll());
                    }
                    a.recv(Want::tag(1), &mut into).expect("recv");
                }
                let until = Deadline::new(10);
                while got.len() < 2 {
                    got.extend(a.poll());
                    until.check(|| format!("{n} bytes, {level:?}, early {early}: {got:?}"));
                }
                assert_eq!(got.len(), 2);
                assert!(got.iter().map(ok).any(|c| c.flags.contains(CompFlags::RECV) && c.len == n && c.src == me));
                assert_eq!(into, out);
            }
        }
    }
}

/// Cuts `buf` into `parts` uneven segments, empty ones among them.
fn cut(buf: &mut [u8], parts: usize, rng: &mut Rng) -> Vec<UserSeg> {
    let mut ends: Vec<usize> = (1..parts).map(|_| rng.range(0, buf.len() + 1)).collect();
    ends.push(buf.len());
    ends.sort_unstable();
    let mut rest = buf;
    let mut at = 0;
    ends.into_iter()
        .map(|end| {
            let (a, b) = std::mem::take(&mut rest).split_at_mut(end - at);
            (rest, at) = (b, end);
            seg(a)
        })
        .collect()
}

#[test]
fn segments_of_any_number_and_length_on_both_sides() {
    let _dog = watchdog("iov", 60);
    let (mut a, mut b, to_b, _) = pair();
    let mut rng = Rng(11);
    for n in [0usize, 17, 232, 233, 4000, 4097, 50_000, 400_000] {
        for parts in 1..=IOV_LIMIT {
            let (mut out, mut into) = (pattern(n, parts), vec![0xee; n + 3]);
            let iov = cut(&mut out, parts, &mut rng);
            let target = cut(&mut into, IOV_LIMIT + 1 - parts, &mut rng);
            let early = rng.one_in(2);
            if early {
                b.recvv(Want::tag(1), &target, true).expect("recv");
            }
            a.sendv(Msg::new(to_b, 1).with(OpFlags::DELIVERY_COMPLETE), &iov, true).expect("send");
            let mut sent = Vec::new();
            if !early {
                let seen = b.stats().unexpected + 1;
                settle_any(&mut a, &mut b, seen, &mut sent);
                b.recvv(Want::tag(1), &target, true).expect("recv");
            }
            let got = run(&mut [&mut a, &mut b], &[1 - sent.len(), 1]);
            assert_eq!(ok(&got[1][0]).len, n);
            assert_eq!(&into[..n], &out[..], "{n} bytes in {parts} parts");
            assert_eq!(&into[n..], [0xee; 3]);
        }
    }
}

#[test]
fn inject_takes_the_bytes_at_once_and_has_a_limit() {
    let _dog = watchdog("inject", 30);
    let (mut a, mut b, to_b, _) = pair();
    let mut into = vec![0u8; 300];
    for n in [0usize, 1, INJECT_MAX] {
        for call in [true, false] {
            let mut out = pattern(n, 9);
            let want = out.clone();
            let m = Msg::new(to_b, 1);
            let m = if call { m.inject() } else { m.with(OpFlags::INJECT) };
            a.send(m, &mut out).expect("inject");
            out.fill(0x55);
            b.recv(Want::tag(1), &mut into).expect("recv");
            let got = run(&mut [&mut a, &mut b], &[usize::from(!call), 1]);
            assert_eq!(&into[..ok(&got[1][0]).len], &want[..]);
            a.quiet(100);
        }
    }
    let mut long = vec![0u8; INJECT_MAX + 1];
    assert_eq!(a.send(Msg::new(to_b, 1).inject(), &mut long), Err(Error::TooLong));
    assert_eq!(a.send(Msg::new(to_b, 1).with(OpFlags::INJECT), &mut long), Err(Error::TooLong));
    settle(&mut a, &mut b, 0);
    assert!(b.stats().sent == 0 && b.peek(Want::any()).is_err(), "a refused message is not sent");
}

/// 10 000 messages that nobody asked for: order kept, the receiver's memory bounded by its window, and what somebody does ask for gets past.
#[test]
fn a_flood_of_unexpected_messages() {
    process::alone("a_flood_of_unexpected_messages", || {
        let _dog = watchdog("flood", 60);
        const COUNT: usize = 10_000;
        for n in [4096usize, 200, 9000] {
            let (mut a, mut b, to_b, _) = pair();
            let mut bufs: Vec<Vec<u8>> = (0..64).map(|i| pattern(n, i)).collect();
            let before = memory::in_use();
            let (mut sent, mut came) = (Vec::new(), 0usize);
            for i in 0..COUNT {
                let (s, r) = push(&mut a, &mut b, Msg::new(to_b, 5).data(i as u64).ctx(i), &mut bufs[i % 64]);
                sent.extend(s);
                came += r.len();
            }
            let until = Deadline::new(20);
            while b.stats().unexpected < COUNT as u64 {
                came += b.poll().len();
                sent.extend(a.poll());
                until.check(|| format!("envelopes are stuck: {:?}", b.stats()));
            }
            assert_eq!(came, 0);
            // Both endpoints live here: envelopes (and stream states of the sender) for 10 000, payload for one window.
            let grown = memory::in_use().saturating_sub(before) - (sent.capacity() * size_of::<Event>()) as i64;
            let payload = if n <= INJECT_MAX { COUNT * n.next_multiple_of(512) } else { 1 << 20 };
            assert!(grown < (payload + COUNT * 800) as i64, "{grown} bytes for {COUNT} envelopes of {n} bytes");
            // What is wanted gets past.
            let (mut out, mut into) = (pattern(n, 777), vec![0u8; n]);
            b.recv(Want::tag(6), &mut into).expect("recv");
            let (s, mut got) = push(&mut a, &mut b, Msg::new(to_b, 6).ctx(COUNT), &mut out);
            sent.extend(s);
            while got.is_empty() {
                sent.extend(a.poll());
                got.extend(b.poll());
                until.check(|| "the wanted message does not get past".into());
            }
            assert_eq!(ok(&got[0]).tag, 6);
            assert_eq!(into, out);
            // And then all the others, in order.
            for i in 0..COUNT {
                b.recv(Want::any(), &mut into).expect("recv");
                let mut got = b.poll();
                while got.is_empty() {
                    sent.extend(a.poll());
                    got.extend(b.poll());
                    until.check(|| format!("message {i}"));
                }
                assert_eq!((ok(&got[0]).data, got.len()), (i as u64, 1), "order");
                assert_eq!(into, bufs[i % 64], "message {i}");
            }
            while sent.len() < COUNT + 1 {
                sent.extend(a.poll());
                b.quiet(1);
                until.check(|| format!("{} of {COUNT} sends completed", sent.len()));
            }
            assert!(sent.iter().all(Result::is_ok));
            // All of the window came back: an eager message is possible again.
            let eager = a.stats().eager;
            a.send(Msg::new(to_b, 7), &mut bufs[0][..n.min(4096)]).expect("send");
            assert!(n <= INJECT_MAX || a.stats().eager == eager + 1, "the window leaks");
        }
    });
}

mod memory {
    //! Bytes that this process has allocated.
    #![expect(unsafe_code)]
    // UNSAFETY: a counting allocator around the system's.

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicI64, Ordering};

    static IN_USE: AtomicI64 = AtomicI64::new(0);

    struct Counting;

    // SAFETY: passes everything on to the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            IN_USE.fetch_add(layout.size() as i64, Ordering::Relaxed);
            // SAFETY: as the caller promised.
            unsafe { System.alloc(layout) }
        }
        unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
            IN_USE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
            // SAFETY: as the caller promised.
            unsafe { System.dealloc(p, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    pub fn in_use() -> i64 {
        IN_USE.load(Ordering::Relaxed)
    }
}

/// A receiver's window that is used up by messages for one tag does not hold up streams for another, in both directions at once.
#[test]
fn both_sides_stream_at_each_other() {
    let _dog = watchdog("both_stream", 60);
    let (mut a, mut b, to_b, from_a) = pair();
    const N: usize = 8 << 20;
    let (mut out_a, mut out_b) = (pattern(N, 1), pattern(N, 2));
    for early in [true, false] {
        let (mut in_a, mut in_b) = (vec![0u8; N], vec![0u8; N]);
        let level = OpFlags::DELIVERY_COMPLETE;
        if early {
            a.recv(Want::tag(1), &mut in_a).expect("recv");
            b.recv(Want::tag(1), &mut in_b).expect("recv");
        }
        a.send(Msg::new(to_b, 1).with(level), &mut out_a).expect("send");
        b.send(Msg::new(from_a, 1).with(level), &mut out_b).expect("send");
        if !early {
            for _ in 0..1000 {
                a.quiet(1);
                b.quiet(1);
            }
            a.recv(Want::tag(1), &mut in_a).expect("recv");
            b.recv(Want::tag(1), &mut in_b).expect("recv");
        }
        let got = run(&mut [&mut a, &mut b], &[2, 2]);
        assert!(got.iter().flatten().all(Result::is_ok));
        assert!(in_a == out_b && in_b == out_a);
    }
}

/// Many small ones, many streams and back, all at once: no order of rings filling up may stop it.
#[test]
fn both_sides_flood_and_stream_through_small_rings() {
    let _dog = watchdog("small_rings", 60);
    for ring_size in [8 << 10, 24 << 10] {
        for eager_window in [16 << 10, 128 << 10] {
            let config = Config { ring_size, eager_window, ..Config::default() };
            let mut n = [Node::with(config.clone(), attr()), Node::with(config, attr())];
            let to = [n[0].knows(&n[1]), n[1].knows(&n[0])];
            let sizes = [100usize, 20_000, 3000, 8, 150_000, 0, 600];
            let mut out: Vec<Vec<u8>> = (0..70).map(|i| pattern(sizes[i % 7], i)).collect();
            let mut into: Vec<Vec<Vec<u8>>> = (0..2).map(|_| (0..70).map(|i| vec![0u8; sizes[i % 7]]).collect()).collect();
            let (mut next, mut sent, mut got, mut posted) = ([0; 2], [0; 2], [0; 2], [0; 2]);
            let until = Deadline::new(20);
            while sent != [70; 2] || got != [70; 2] {
                for i in 0..2 {
                    while next[i] < 70 && n[i].send(Msg::new(to[i], next[i] as u64), &mut out[next[i]]).is_ok() {
                        next[i] += 1;
                    }
                    // Receives come late, and in another order than the messages.
                    if next[i] == 70 && posted[i] < 70 {
                        let tag = 69 - posted[i];
                        n[i].recv(Want::tag(tag as u64), &mut into[i][tag]).expect("recv");
                        posted[i] += 1;
                    }
                    for c in n[i].poll().iter().map(ok) {
                        if c.flags.contains(CompFlags::RECV) { got[i] += 1 } else { sent[i] += 1 }
                    }
                }
                until.check(|| format!("{next:?} {sent:?} {posted:?} {got:?}"));
            }
            assert!(into[0] == out && into[1] == out);
        }
    }
}

/// More peers than are polled directly, for every number of those: nothing is lost, every peer's order is kept, and answers find back.
#[test]
fn many_peers() {
    let _dog = watchdog("many_peers", 60);
    for hot_peers in [1u64, 2, 3, 5, 8] {
        let mut b = Node::with(Config { hot_peers, ..Config::default() }, attr());
        let mut senders: Vec<Node> = (0..70).map(|_| Node::new()).collect();
        let to_b: Vec<Addr> = senders.iter().map(|a| a.knows(&b)).collect();
        let back: Vec<Addr> = senders.iter().map(|a| b.knows(a)).collect();
        let sizes = [8usize, 300, 0, 6000];
        const EACH: usize = 12;
        let mut out: Vec<Vec<Vec<u8>>> =
            (0..70).map(|s| (0..EACH).map(|i| pattern(sizes[(i + s) % 4], s * 50 + i)).collect()).collect();
        let (mut next, mut seen, mut done) = (vec![0usize; 70], vec![0usize; 70], vec![0usize; 70]);
        let (mut into, mut reply, mut replies) = (vec![0u8; 6000], [1u8; 4], vec![[0u8; 4]; 70]);
        for (a, buf) in senders.iter_mut().zip(&mut replies) {
            a.recv(Want::tag(1000), buf).expect("recv");
        }
        b.recv(Want::any(), &mut into).expect("recv");
        let mut rng = Rng(hot_peers);
        let until = Deadline::new(20);
        let mut answered = 0;
        while done.iter().any(|d| *d < EACH) || answered < 70 {
            let s = rng.range(0, 70);
            if next[s] < EACH && senders[s].send(Msg::new(to_b[s], next[s] as u64).data(s as u64), &mut out[s][next[s]]).is_ok() {
                next[s] += 1;
            }
            for (s, a) in senders.iter_mut().enumerate() {
                for c in a.poll().iter().map(ok) {
                    if c.flags.contains(CompFlags::RECV) { answered += 1 } else { done[s] += 1 }
                }
            }
            for c in b.poll().iter().map(ok) {
                if c.flags.contains(CompFlags::SEND) {
                    continue;
                }
                let s = c.data as usize;
                assert_eq!((c.tag, c.src), (seen[s] as u64, back[s]), "order of peer {s} with {hot_peers} hot peers");
                assert_eq!(&into[..c.len], &out[s][seen[s]][..]);
                seen[s] += 1;
                if seen[s] == EACH {
                    b.send(Msg::new(back[s], 1000), &mut reply).expect("reply");
                }
                b.recv(Want::any(), &mut into).expect("recv");
            }
            until.check(|| format!("{hot_peers} hot peers: {seen:?}"));
        }
    }
}

/// A buffer of a receive that was posted for a peer goes back with an error when that peer closes; others stay.
#[test]
fn a_directed_receive_fails_when_its_peer_closes() {
    let _dog = watchdog("directed_close", 30);
    let (mut a, mut b, to_b, from_a) = pair();
    let a_name = a.name();
    let (mut x, mut y, mut z, mut hello) = ([0u8; 4], [0u8; 4], [0u8; 4], [5u8; 4]);
    b.recv(Want::tag(1).from(from_a), &mut x).expect("recv");
    a.send(Msg::new(to_b, 1), &mut hello).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    b.recv(Want::tag(2).from(from_a), &mut y).expect("recv");
    b.recv(Want::tag(3), &mut z).expect("recv");
    let ep = a.ep;
    a.domain.ep_close(ep).expect("close");
    let got = run(&mut [&mut b], &[1]);
    let e = got[0][0].expect_err("its peer closed");
    assert_eq!((e.error, e.c.ctx.0, e.peer, e.detail), (Error::PeerGone, 2, Some(a_name), std::process::id()));
    let mut c = Node::new();
    let to_b = c.knows(&b);
    c.send(Msg::new(to_b, 3), &mut hello).expect("send");
    let got = run(&mut [&mut c, &mut b], &[1, 1]);
    assert_eq!(ok(&got[1][0]).tag, 3);
    assert_eq!(b.send(Msg::new(from_a, 1), &mut hello), Err(Error::PeerGone));
    assert_eq!(b.recv(Want::tag(9).from(from_a), &mut x), Err(Error::PeerGone));
}

/// A client may wait inside its send (MPICH does) and must then not wait for a peer that computes: messages far beyond the ring
/// are accepted, keep their order and bytes, and an inject call's buffer is free at once.
#[test]
fn sends_do_not_wait_for_a_peer_that_computes() {
    let _dog = watchdog("computes", 60);
    let (mut a, mut b) = (Node::new(), Node::new());
    let to = a.knows(&b);
    let lens = [400usize, 100, 40_000, 4_000, 232, 400_000, 8];
    let mut out: Vec<Vec<u8>> = (0..500).map(|i| pattern(lens[i % lens.len()], i)).collect();
    for (i, bytes) in out.iter_mut().enumerate() {
        let m = Msg::new(to, 7).ctx(i);
        if bytes.len() <= 232 && i % 2 == 0 {
            a.send(m.inject(), bytes).expect("injected");
            bytes.fill(0);
        } else {
            a.send(m, bytes).expect("sent");
        }
    }
    assert!(a.stats().ring_full > 0, "the ring was never full");
    let (mut sent, until) = (Vec::new(), Deadline::new(30));
    for i in 0..500 {
        let mut into = vec![0u8; lens[i % lens.len()]];
        b.recv(Want::tag(7).ctx(i), &mut into).expect("recv");
        let mut got = Vec::new();
        while got.is_empty() {
            got = b.poll();
            sent.extend(a.poll());
            until.check(|| format!("message {i} does not come"));
        }
        assert_eq!(all_ok(&got), 1);
        assert!(into == pattern(lens[i % lens.len()], i), "message {i}");
    }
    sent.extend(a.poll());
    let injected = (0..500).filter(|i| i % 2 == 0 && lens[i % lens.len()] <= 232).count();
    assert_eq!(all_ok(&sent), 500 - injected);
    // There is an end to it.
    let mut bytes = pattern(200, 1);
    let refused = (0..100_000).find(|_| a.send(Msg::new(to, 8), &mut bytes) == Err(Error::Again));
    assert!(refused.is_some_and(|n| n > 1000), "{refused:?}");
}
