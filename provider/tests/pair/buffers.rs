//! Where the bytes go: short buffers, multi-receive buffers, lists of segments.

use crate::common::{Deadline, Event, Msg, Node, Rng, Want, attr, by_network, pattern, push, run, seg, watchdog};
use crate::{ok, pair, settle_any};
use rustmx::{AddressVector, CompFlags, Completion, Config, Domain, Error, IOV_LIMIT, Log, OpFlags, UserCtx, UserSeg};
use std::sync::Arc;

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

/// What is cancelled while a message is coming in is the client's when the message is whole, and not before.
#[test]
fn a_multi_receive_buffer_that_is_cancelled_amid_a_message() {
    const LEN: usize = 4 << 20;
    let _dog = watchdog("multi_cancelled", 30);
    // In pieces, for each of which the sender must turn.
    let config = || Config { cma: 1, ..Config::default() };
    let (mut a, mut b) = (Node::with(config(), attr()), Node::with(config(), attr()));
    let to_b = a.knows(&b);
    let (mut out, mut into) = (pattern(LEN, 1), vec![0u8; 2 * LEN]);
    let (mut short, mut other) = (pattern(100, 2), vec![0u8; 1000]);
    b.recv(Want::tag(9).ctx(1).with(OpFlags::MULTI_RECV), &mut into).expect("post");
    a.send(Msg::new(to_b, 9), &mut out).expect("send");
    let until = Deadline::new(10);
    while into[..64].iter().all(|byte| *byte == 0) {
        until.check(|| "nothing comes".into());
        assert!(a.poll().is_empty());
        b.quiet(1);
    }
    b.domain.cancel(b.ep, UserCtx(1)).expect("posted");
    b.quiet(10);
    assert_eq!(b.domain.cancel(b.ep, UserCtx(1)), Err(Error::NoMessage), "once");
    b.recv(Want::tag(9).ctx(2), &mut other).expect("post");
    a.send(Msg::new(to_b, 9).ctx(3), &mut short).expect("send");
    let got = run(&mut [&mut a, &mut b], &[2, 3]);
    let of = |ctx| got[1].iter().filter(move |e| e.map_or_else(|e| e.c.ctx.0, |c| c.ctx.0) == ctx).collect::<Vec<_>>();
    let (one, two) = (of(1), of(2));
    assert_eq!((ok(one[0]).len, ok(one[0]).flags), (LEN, CompFlags::RECV | CompFlags::TAGGED), "{one:?}");
    let back = one[1].expect_err("cancelled");
    assert_eq!((back.error, back.c.flags), (Error::Cancelled, CompFlags::RECV | CompFlags::TAGGED | CompFlags::MULTI_RECV));
    assert!(into[..LEN] == out, "the message is whole");
    assert_eq!((ok(two[0]).len, &other[..100]), (100, &short[..]), "the next one went elsewhere");
}

/// Where entries are for those who ask, messages may have none, but the end of their buffer has (fi_msg(3)).
#[test]
fn the_end_of_a_multi_receive_buffer_is_told_also_where_its_messages_are_not() {
    let _dog = watchdog("multi_selective", 30);
    let mut domain = Domain::new(Arc::new(by_network(Config::default())), Log::silent());
    let (cq, ep, av) = (domain.cq_open(), domain.ep_open(attr()).expect("endpoint"), Arc::new(AddressVector::new()));
    domain.ep_bind_av(ep, av.clone()).expect("av");
    domain.ep_bind_cq(ep, cq, true, true, true).expect("cq");
    domain.ep_enable(ep).expect("enable");
    let (mut a, mut b) = (Node::new(), Node { domain, ep, cq, av });
    let to_b = a.knows(&b);
    for (n, early) in [(512, true), (512, false), (320_000, true), (320_000, false)] {
        // Both fill it.
        let (mut out, mut into) = (pattern(n, 1), vec![0u8; 2 * n]);
        let silent = Want { flags: OpFlags::MULTI_RECV, ..Want::tag(9).ctx(1) };
        let (before, mut sent, mut told) = (b.stats().unexpected, 0, Vec::new());
        if early {
            b.recv(silent, &mut into).expect("post");
        }
        for _ in 0..2 {
            let (s, r) = push(&mut a, &mut b, Msg::new(to_b, 9), &mut out);
            sent += s.len();
            told.extend(r);
        }
        let until = Deadline::new(10);
        while !early && b.stats().unexpected < before + 2 {
            b.quiet(1);
            sent += a.poll().len();
            until.check(|| "not all came".into());
        }
        if !early {
            b.recv(silent, &mut into).expect("post");
        }
        let got = run(&mut [&mut a, &mut b], &[2 - sent, 1 - told.len()]);
        told.extend(&got[1]);
        let end = ok(&told[0]);
        assert_eq!((end.ctx.0, end.flags, end.len), (1, CompFlags::MULTI_RECV, 0), "{n}, early {early}");
        assert!(into[..n] == out && into[n..] == out, "{n}, early {early}");
    }
}
