//! Who gets which message: tags and masks, sources, peeks and claims, cancelled receives.

use crate::common::{Deadline, Event, Msg, Node, Rng, Want, all_ok, pattern, push, run, seg, watchdog};
use crate::{SIZES, ok, pair, settle};
use rustmx::{Addr, CompFlags, Completion, Error, OpFlags};

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
