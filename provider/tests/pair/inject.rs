//! Buffers that are given back at once: what is sent is what was in them, however long it waits, and however much nobody receives.

use crate::common::{Deadline, Msg, Node, Want, attr, closing_in, pattern, process, push, run, watchdog};
use crate::{memory, ok, pair, settle};
use rustmx::sys::clock::Clock;
use rustmx::{Config, Error, INJECT_MAX, INLINE_MAX, OpFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn inject_takes_the_bytes_at_once_and_has_a_limit() {
    let _dog = watchdog("inject", 30);
    let (mut a, mut b, to_b, _) = pair();
    let mut into = vec![0u8; INJECT_MAX + 100];
    for n in [0usize, 1, INLINE_MAX, INLINE_MAX + 1, INJECT_MAX] {
        for call in [true, false] {
            let mut out = pattern(n, 9);
            let want = out.clone();
            let m = Msg::new(to_b, 1);
            let m = if call { m.inject() } else { m.with(OpFlags::INJECT) };
            push(&mut a, &mut b, m, &mut out);
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

/// A client may wait inside its send until its message is taken (MPICH does, also where MPI lets nobody wait): each one gets away, but whoever sends more than is received is held back. What is
/// asked for gets past, and all come in order. Also through rings in which envelopes do not fit beside that.
#[test]
fn a_flood_that_nobody_receives_is_slowed_down_and_gets_through() {
    process::alone("inject::a_flood_that_nobody_receives_is_slowed_down_and_gets_through", || {
        let _dog = watchdog("injected", 120);
        const COUNT: usize = 2500;
        const LEN: usize = INJECT_MAX;
        for (ring_size, tcp_ring_size) in [(256 << 10, 128 << 10), (20 << 10, 16 << 10)] {
            let config = Config { ring_size, tcp_ring_size, ..Config::default() };
            // A's microseconds are its turns: how soon more may be kept is a matter of time.
            let now = Arc::new(AtomicU64::new(1));
            let (mut a, mut b) = (Node::open(config.clone(), attr(), Clock::Manual(now.clone())), Node::with(config, attr()));
            let turn = |a: &mut Node| {
                now.fetch_add(1000, Ordering::Relaxed);
                assert!(a.poll().is_empty());
            };
            let to_b = a.knows(&b);
            let before = memory::in_use();
            let (mut buf, mut held_back_at) = (Vec::new(), None);
            let until = Deadline::new(90);
            for i in 0..COUNT {
                buf = pattern(LEN, i);
                let mut refused = 0;
                while a.send(Msg::new(to_b, 5).data(i as u64).inject(), &mut buf) == Err(Error::Again) {
                    refused += 1;
                    turn(&mut a);
                    assert!(b.poll().is_empty());
                    until.check(|| format!("message {i} is not taken: {:?}", a.stats()));
                }
                buf.fill(0x55);
                turn(&mut a);
                b.quiet(1);
                if refused > 100 {
                    held_back_at.get_or_insert(memory::in_use() - before);
                }
            }
            // 16 MiB are kept in any case, and a window of the receiver's.
            let at = held_back_at.expect("nothing holds it back");
            assert!(at > 16 << 20 && at < 20 << 20, "held back at {at} bytes");
            let (mut out, mut into) = (pattern(LEN, 777), vec![0u8; LEN]);
            b.recv(Want::tag(6), &mut into).expect("recv");
            let mut got = Vec::new();
            while a.send(Msg::new(to_b, 6).inject(), &mut out) == Err(Error::Again) {
                turn(&mut a);
                got.extend(b.poll());
                until.check(|| "the wanted message is not taken".into());
            }
            while got.is_empty() {
                turn(&mut a);
                got = b.poll();
                until.check(|| "the wanted message does not get past".into());
            }
            assert!(ok(&got[0]).tag == 6 && into == out);
            for i in 0..COUNT {
                b.recv(Want::any(), &mut into).expect("recv");
                let mut got = b.poll();
                while got.is_empty() {
                    turn(&mut a);
                    got = b.poll();
                    until.check(|| format!("message {i} does not come"));
                }
                assert!(ok(&got[0]).data == i as u64 && into == pattern(LEN, i), "message {i}");
            }
            // All copies are given back, and the next flood is as free as this one was.
            let left = memory::in_use() - before - 2 * LEN as i64;
            assert!(left < 4 << 20, "{left} bytes are left");
            for _ in 0..1000 {
                push(&mut a, &mut b, Msg::new(to_b, 5).inject(), &mut buf);
                turn(&mut a);
            }
        }
    });
}

/// An endpoint that closes does not wait for one of the same process for longer than for other things: perhaps it is its own thread that should receive.
#[test]
fn closing_does_not_wait_for_its_own_process() {
    let _dog = watchdog("closing", 60);
    let (mut a, mut b) = (Node::with(closing_in(100, false), attr()), Node::new());
    let (to_b, from_a) = (a.knows(&b), b.knows(&a));
    for i in 0..200 {
        push(&mut a, &mut b, Msg::new(to_b, i).inject(), &mut pattern(INJECT_MAX, 1));
    }
    assert!(a.stats().stream > 0, "all of it fits into the window");
    drop(a);
    let (until, mut into) = (Deadline::new(10), vec![0u8; INJECT_MAX]);
    let last = |b: &mut Node, into: &mut [u8]| match b.recv(Want::tag(199).from(from_a), into) {
        Ok(()) => loop {
            if let Some(event) = b.poll().pop() {
                return event.map(drop).map_err(|e| e.error);
            }
            until.check(|| "the last one neither comes nor is lost".into());
        },
        Err(why) => Err(why),
    };
    assert_eq!(last(&mut b, &mut into), Err(Error::PeerGone));
}
