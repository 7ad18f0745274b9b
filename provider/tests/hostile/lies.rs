//! One lie in a ring at a time: it is noticed, and what the liar had begun ends with its name.

use crate::BYTES;
use crate::common::{Deadline, Msg, Want, pattern, run, watchdog};
use crate::liar::{BASE, Liar, payload, pieces};
use crate::scene::{SEND, Scene};
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::protocol::single::Copies;
use rustmx::shm::layout::{CONTROL_LINES, LINE, LINE_WORDS, STATE};
use rustmx::transport::link::Class;
use rustmx::wire::header::{Header, Kind, Rts};
use rustmx::{CompFlags, Error, OpFlags};

/// What a liar may write, one thing each; each must get it disconnected.
#[test]
fn each_lie_in_a_ring_is_noticed() {
    let _dog = watchdog("each_lie", 60);
    type Lie = fn(&mut Liar);
    let lies: &[(&str, Lie)] = &[
        ("an unknown kind", |l| l.ring(0).store(0xf, Ordering::Release)),
        ("kind zero with a length", |l| l.ring(0).store(0xff00_0000, Ordering::Release)),
        ("a skip of the wrong length", |l| l.ring(0).store(1 | 5 << 16, Ordering::Release)),
        ("a skip at the wrong position", |l| {
            let lines = (BYTES / LINE - CONTROL_LINES) as u64;
            l.ring(0).store(1 | 7 << 8 | lines << 16, Ordering::Release);
        }),
        ("two skips in a row", |l| {
            let lines = (BYTES / LINE - CONTROL_LINES) as u64;
            // The position after the first one is the ring's length; its low byte is what the second must carry.
            l.ring(0).store(1 | lines << 16, Ordering::Release);
        }),
        ("another position", |l| l.ring(0).store(2 | 3 << 8, Ordering::Release)),
        ("inline, too long", |l| l.ring(0).store(2 | 233 << 16, Ordering::Release)),
        ("eager past the end of the ring", |l| l.ring(0).store(3 | 0xffff << 16, Ordering::Release)),
        ("an acknowledgement of what was never sent", |l| l.ring(0).store(2 | 1000 << 32, Ordering::Release)),
        ("an unknown flag", |l| l.ring(0).store(2 | 1 << 6, Ordering::Release)),
        ("a fragment of no stream", |l| {
            l.write(Kind::Data, 77, 0, [0; 2], &mut payload(100));
        }),
        ("a request for no stream", |l| {
            l.write(Kind::Cts, 77, 100, [0; 2], &mut []);
        }),
        ("a stream id that is none", |l| {
            l.write(Kind::Cts, 1 << 40, 100, [0; 2], &mut []);
        }),
        ("a promise past the total", |l| {
            l.write(Kind::Rts, 50, 0, [10, 20 << 32], &mut []);
        }),
        ("a first fragment past the promise", |l| {
            l.write(Kind::Rts, 50, 0, [1000, 10 << 32], &mut payload(20));
        }),
        ("a total out of range", |l| {
            l.write(Kind::Rts, 50, 0, [u64::MAX, 0], &mut []);
        }),
        ("a promise past the window, unexpected", |l| {
            l.write(Kind::Rts, 50, 0, Rts { total: 1 << 30, stream: 1, promise: 1 << 20 }.emit(), &mut payload(100));
        }),
        ("a promise past the window, expected", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 1 << 30, stream: 1, promise: 1 << 20 }.emit(), &mut payload(100));
        }),
        ("a stream twice, unexpected", |l| {
            for _ in 0..2 {
                l.write(Kind::Rts, 50, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        }),
        ("a stream twice, the second one expected", |l| {
            for tag in [50, 3] {
                l.write(Kind::Rts, tag, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        }),
        ("a stream twice, both expected", |l| {
            for tag in [2, 3] {
                l.write(Kind::Rts, tag, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        }),
        ("a stream and then an offer of its name, both expected", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            l.write(Kind::Offer, 2, 0, [4000, 1], &mut pieces(&[(1, 4000)]));
        }),
        ("a stream and then an offer of its name, unexpected", |l| {
            l.write(Kind::Rts, 50, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            l.write(Kind::Offer, 50, 0, [4000, 1], &mut pieces(&[(1, 4000)]));
        }),
        ("an offer and then a stream of its name", |l| {
            l.write(Kind::Offer, 50, 0, [4000, 1], &mut pieces(&[(1, 4000)]));
            l.write(Kind::Rts, 3, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
        }),
        ("a fragment past the promise", |l| {
            l.write(Kind::Rts, 50, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            l.write(Kind::Data, 1, 100, [0; 2], &mut payload(500));
        }),
        ("a fragment that leaves a hole", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            l.write(Kind::Data, 1, 101, [0; 2], &mut payload(100));
        }),
        ("a fragment after the last", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 200, stream: 1, promise: 200 }.emit(), &mut payload(200));
            l.write(Kind::Data, 1, 200, [0; 2], &mut payload(100));
        }),
        ("an offer of less than it says", |l| {
            l.write(Kind::Offer, 3, 0, [10_000, 1], &mut pieces(&[(1, 4000), (2, 5999)]));
        }),
        ("an offer with half a piece", |l| {
            l.write(Kind::Offer, 3, 0, [10, 1], &mut pieces(&[(1, 4000)])[..8]);
        }),
        ("an offer in memory that was never lent", |l| {
            l.write(Kind::Offer, 3, 0, [10, 1 << 32 | 1], &mut pieces(&[(1, 4000)]));
        }),
        ("an end of a loan that there was not", |l| {
            assert!(l.link.send(&Copies::recall(7), Class::Control).is_ok());
        }),
        ("an end of a loan twice", |l| {
            l.lend(7);
            l.write(Kind::Offer, 50, 0, [10, 7 << 32 | 1], &mut pieces(&[(BASE, 4000)]));
            for _ in 0..2 {
                assert!(l.link.send(&Copies::recall(7), Class::Control).is_ok());
            }
        }),
        ("two loans of one number", |l| {
            for number in [7, 7, 8] {
                l.lend(number);
            }
            l.write(Kind::Offer, 50, 0, [10, 8 << 32 | 1], &mut pieces(&[(BASE, 4000)]));
        }),
        ("an offer in memory that is not lent any more", |l| {
            l.lend(7);
            assert!(l.link.send(&Copies::recall(7), Class::Control).is_ok());
            l.write(Kind::Offer, 50, 0, [10, 7 << 32 | 1], &mut pieces(&[(BASE, 4000)]));
        }),
        ("an offer past what was lent", |l| {
            l.lend(7);
            l.write(Kind::Offer, 50, 0, [4001, 7 << 32 | 1], &mut pieces(&[(BASE + 4096 - 4000, 4001)]));
        }),
        ("two offers of one id", |l| {
            l.write(Kind::Offer, 50, 0, [10, 1], &mut pieces(&[(1, 4000)]));
            l.write(Kind::Offer, 50, 0, [10, 1], &mut pieces(&[(1, 4000)]));
        }),
        ("an offer and a stream of one id", |l| {
            l.write(Kind::Offer, 3, 0, [10_000, 1], &mut pieces(&[(1, 10_000)]));
            l.write(Kind::Data, 1, 10_001, [0; 2], &mut payload(100));
        }),
        ("a share of what was not offered", |l| {
            l.write(Kind::Accept, 1, 10_000, [1, 1 << 16], &mut pieces(&[(1, 10_000)]));
        }),
        ("an end of what was not offered", |l| {
            l.write(Kind::Fin, 1, 0, [0; 2], &mut []);
        }),
        ("an answer to nothing", |l| {
            l.write(Kind::Answer, 77, 0, [0; 2], &mut payload(8));
        }),
        ("an atomic operation that does not exist", |l| {
            l.write(Kind::Atomic, 1, 0xff | 8 << 32, [0; 2], &mut payload(8));
        }),
        ("an atomic operation that its type does not have", |l| {
            l.write(Kind::Atomic, 1, 6 | 9 << 8 | 8 << 32, [0; 2], &mut payload(8));
        }),
        ("an atomic operation with half an operand", |l| {
            l.write(Kind::Atomic, 1, 2 | 7 << 8 | 8 << 32, [0; 2], &mut payload(4));
        }),
        ("an atomic operation on too many values", |l| {
            l.write(Kind::Atomic, 1, 2 | 1 << 20 << 32, [0; 2], &mut payload(100));
        }),
        ("more eager payload than the window", |l| {
            // All of it unexpected; the window is 128 KiB, the ring holds 5 at a time, so this goes on in the loop below.
            l.mem.word(STATE).store(77, Ordering::Release);
        }),
    ];
    let mut scene = Scene::new();
    for (what, lie) in lies {
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        let lost = scene.victim.stats().lost;
        if what.starts_with("more eager") {
            let until = Deadline::new(5);
            while !liar.ended() {
                let _ = liar.link.refresh();
                liar.write(Kind::Eager, 50, 0, [0; 2], &mut payload(4096));
                scene.turns(1);
                until.check(|| format!("{what}: held without limit: {:?}", scene.victim.stats()));
            }
        } else {
            lie(&mut liar);
        }
        if what.starts_with("two skips") {
            scene.turns(20);
            let lines = (BYTES / LINE - CONTROL_LINES) as u64;
            liar.ring(0).store(1 | (lines & 0xff) << 8 | (lines - 1) << 16, Ordering::Release);
        }
        scene.gone(lost + 1, what);
        assert!(liar.ended(), "{what}: the connection is still there");
        scene.nothing_was_swallowed(what);
        scene.exchange();
        scene.clean();
    }
}

/// A multi-receive buffer that garbage was matched with takes the messages of others, and comes back when it is full.
#[test]
fn a_lie_in_a_multi_receive_buffer() {
    let _dog = watchdog("multi_lie", 30);
    let lies: [fn(&mut Liar); 4] = [
        |l| {
            l.write(Kind::Rts, 61, 0, Rts { total: 1 << 30, stream: 1, promise: 1 << 20 }.emit(), &mut payload(100));
        },
        |l| {
            for tag in [50, 61] {
                l.write(Kind::Rts, tag, 0, Rts { total: 600, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        },
        |l| {
            for _ in 0..2 {
                l.write(Kind::Rts, 61, 0, Rts { total: 500, stream: 1, promise: 400 }.emit(), &mut payload(100));
            }
        },
        |l| {
            l.write(Kind::Rts, 61, 0, Rts { total: 500, stream: 1, promise: 400 }.emit(), &mut payload(100));
            l.write(Kind::Data, 1, 99, [0; 2], &mut payload(100));
        },
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let mut scene = Scene::new();
        let mut multi = vec![0u8; 4000];
        scene.victim.recv(Want::tag(61).ctx(61).with(OpFlags::MULTI_RECV), &mut multi).expect("recv");
        let mut liar = Liar::connected(&mut scene.victim);
        lie(&mut liar);
        let until = Deadline::new(5);
        let (mut got, mut released) = (Vec::new(), 0);
        while scene.victim.stats().lost == 0 {
            got.extend(scene.victim.poll());
            until.check(|| format!("lie {i} is believed"));
        }
        // Enough to fill it, whatever the liar left of it.
        let mut out = pattern(900, 1);
        for _ in 0..6 {
            scene.good.send(Msg::new(scene.to_victim, 61).ctx(SEND), &mut out).expect("send");
        }
        while released == 0 {
            got.extend(scene.victim.poll());
            scene.good.poll();
            released = got.iter().filter(|e| e.map_or_else(|e| e.c, |c| c).flags.contains(CompFlags::MULTI_RECV)).count();
            until.check(|| format!("lie {i}: the buffer never comes back: {got:?}"));
        }
        for _ in 0..200 {
            got.extend(scene.victim.poll());
        }
        let last = got.last().expect("some");
        assert!(
            last.map_or_else(|e| e.c, |c| c).flags.contains(CompFlags::MULTI_RECV),
            "lie {i}: used after it was given back: {got:?}"
        );
        for e in &got {
            match e {
                Ok(c) if c.len == 900 => assert_eq!(&multi[c.buf - multi.as_ptr() as usize..][..900], &out[..], "lie {i}"),
                Ok(c) => assert_eq!((c.len, c.flags), (0, CompFlags::MULTI_RECV), "lie {i}"),
                Err(e) => assert_eq!((e.error, e.peer), (Error::Corrupt, Some(liar.name)), "lie {i}"),
            }
        }
        // The first one claims all of the buffer; the others leave most of it.
        let whole = got.iter().filter(|e| e.is_ok_and(|c| c.len == 900)).count();
        assert!(whole >= 2 || i == 0, "lie {i}: {got:?}");
    }
}

/// What a lie cuts off in the middle ends with an error that names the liar.
#[test]
fn what_a_liar_began_ends_with_its_name() {
    let _dog = watchdog("began", 30);
    let mut scene = Scene::new();
    let mut liar = Liar::connected(&mut scene.victim);
    let to_liar = scene.victim.av.insert(&liar.name);
    let mut into = vec![0u8; 50_000];
    scene.victim.recv(Want::tag(60).ctx(60), &mut into).expect("recv");
    let mut multi = vec![0u8; 50_000];
    scene.victim.recv(Want::tag(61).ctx(61).with(OpFlags::MULTI_RECV), &mut multi).expect("recv");
    let mut small = [0u8; 4];
    scene.victim.recv(Want::tag(62).ctx(62).from(to_liar), &mut small).expect("recv");
    // More than the ring takes.
    let mut out = pattern(400_000, 1);
    scene.victim.send(Msg::new(to_liar, 63).ctx(63), &mut out).expect("send");
    scene.victim.send(Msg::new(to_liar, 64).ctx(64).with(OpFlags::DELIVERY_COMPLETE), &mut out[..10]).expect("send");
    liar.write(Kind::Rts, 60, 0, Rts { total: 20_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
    liar.write(Kind::Rts, 61, 0, Rts { total: 20_000, stream: 2, promise: 500 }.emit(), &mut payload(100));
    let mut got = Vec::new();
    for _ in 0..100 {
        got.extend(scene.victim.poll());
    }
    assert!(got.is_empty(), "{got:?}");
    liar.ring(0).store(0, Ordering::Relaxed);
    // At the reader's position: past the two records of three lines each.
    let at = 2 * Header::lines_of(Kind::Rts, 100) as usize * LINE_WORDS;
    liar.ring(at).store(0xff, Ordering::Release);
    let until = Deadline::new(5);
    while got.len() < 5 {
        got.extend(scene.victim.poll());
        until.check(|| format!("{got:?}"));
    }
    let mut failed: Vec<usize> = got.iter().map(|e| e.expect_err("cut off").c.ctx.0).collect();
    failed.sort_unstable();
    assert_eq!(failed, [60, 61, 62, 63, 64]);
    for e in &got {
        let e = e.expect_err("cut off");
        assert_eq!((e.error, e.peer, e.detail), (Error::Corrupt, Some(liar.name), std::process::id()));
        assert!(e.describe().contains(&liar.name.to_string()));
    }
    // The rest of the multi-receive buffer is still posted for others.
    let mut word = *b"still there";
    scene.good.send(Msg::new(scene.to_victim, 61).inject(), &mut word).expect("send");
    let got = run(&mut [&mut scene.victim, &mut scene.good], &[1, 0]);
    let c = got[0][0].expect("received");
    let at = c.buf - multi.as_ptr() as usize;
    assert_eq!((c.ctx.0, &multi[at..at + c.len]), (61, &word[..]));
}
