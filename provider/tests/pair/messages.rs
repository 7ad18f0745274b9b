//! One message at a time: every size at every level of completion, to others and to oneself; a peer that closes.

use crate::common::{Deadline, Msg, Node, Want, acquaint, number_of, pattern, run, watchdog};
use crate::{ok, pair, settle};
use rustmx::{CompFlags, Error, OpFlags};

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

/// Who hears an answer has been told before that the question was delivered: the answer comes with the acknowledgement.
#[test]
fn a_delivery_is_told_before_the_answer() {
    let _dog = watchdog("answers", 30);
    let (mut a, mut b) = (Node::new(), Node::new());
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    acquaint(&mut a, &mut b);
    // By the short way and by the general one.
    for n in [0usize, 8, 200, 3000, 20_000] {
        let (mut out, mut back, mut asked, mut answered) = (pattern(8, 1), pattern(n, 2), [0; 8], vec![0; n]);
        b.recv(Want::tag(1), &mut asked).expect("recv");
        a.recv(Want::tag(2).ctx(9), &mut answered).expect("recv");
        a.send(Msg::new(to_b, 1).ctx(5).with(OpFlags::DELIVERY_COMPLETE), &mut out).expect("send");
        let until = Deadline::new(10);
        while b.poll().is_empty() {
            until.check(|| "no question".into());
        }
        b.send(Msg::new(to_a, 2), &mut back).expect("send");
        let mut told = Vec::new();
        while told.len() < 2 {
            told.extend(a.poll().iter().map(|e| ok(e).ctx.0));
            b.domain.progress();
            until.check(|| format!("{n} bytes: {told:?}"));
        }
        assert_eq!((told, answered), (vec![5, 9], pattern(n, 2)), "{n} bytes");
        while b.poll().is_empty() {
            until.check(|| "the answer did not leave".into());
        }
    }
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
    let number = number_of(std::process::id());
    assert_eq!((e.error, e.c.ctx.0, e.peer, e.detail), (Error::PeerGone, 2, Some(a_name), number));
    let mut c = Node::new();
    let to_b = c.knows(&b);
    c.send(Msg::new(to_b, 3), &mut hello).expect("send");
    let got = run(&mut [&mut c, &mut b], &[1, 1]);
    assert_eq!(ok(&got[1][0]).tag, 3);
    assert_eq!(b.send(Msg::new(from_a, 1), &mut hello), Err(Error::PeerGone));
    assert_eq!(b.recv(Want::tag(9).from(from_a), &mut x), Err(Error::PeerGone));
    let many = Want::tag(9).from(from_a).with(OpFlags::MULTI_RECV);
    assert_eq!(b.recv(many, &mut vec![0; 4096]), Err(Error::PeerGone));
}

/// What came from a peer before it closed goes to a buffer for many, and then the buffer goes back: nobody will fill the rest.
#[test]
fn a_directed_buffer_for_many_goes_back_when_its_peer_has_closed() {
    let _dog = watchdog("directed_multi", 30);
    for lens in [[4, 4], [0, 0]] {
        let (mut a, mut b, to_b, from_a) = pair();
        let a_name = a.name();
        let (mut buf, mut hello) = (vec![0u8; 4096], [5u8; 4]);
        for len in lens {
            a.send(Msg::new(to_b, 1), &mut hello[..len]).expect("send");
        }
        let until = Deadline::new(20);
        while b.stats().unexpected < 2 {
            b.quiet(1);
            a.poll();
            until.check(|| "they do not come".into());
        }
        let ep = a.ep;
        a.domain.ep_close(ep).expect("close");
        while b.send(Msg::new(from_a, 1), &mut hello) != Err(Error::PeerGone) {
            b.poll();
            until.check(|| "its end is not heard".into());
        }
        b.poll();
        b.recv(Want::any().from(from_a).ctx(7).with(OpFlags::MULTI_RECV), &mut buf).expect("posted");
        let got = b.poll();
        assert_eq!(got.len(), 3, "{got:?}");
        assert!(got[..2].iter().zip(lens).all(|(e, len)| ok(e).ctx.0 == 7 && ok(e).len == len));
        let e = got[2].expect_err("the rest");
        assert_eq!((e.error, e.c.ctx.0, e.c.flags.contains(CompFlags::MULTI_RECV)), (Error::PeerGone, 7, true));
        assert_eq!((e.peer, e.detail), (Some(a_name), number_of(std::process::id())));
    }
}
