//! Messages whose buffer looks as it did when it was last sent: where the receiver finds them in its cache, the kernel copies what would else be a record.

use crate::common::{Deadline, Msg, Node, Want, all_ok, attr, not_by_network, pattern, run, watchdog};
use crate::{ok, settle_any};
use rustmx::{Addr, Config, Telling};

/// Of a size that a record would carry.
const N: usize = 20_000;
/// More idle polls than a sender makes before it takes its receiver for busy.
const LONG: usize = 2_000;

/// Whoever copies finds everything in its cache, however slow this machine is, and all have a core.
fn config() -> Config {
    Config { again_min: 16 << 10, cached_pace: 1_000_000, yield_when_idle: 1, ..Config::default() }
}

fn pair() -> (Node, Node, Addr, Addr) {
    pair_of(config(), config())
}

fn pair_of(a: Config, b: Config) -> (Node, Node, Addr, Addr) {
    let (mut a, mut b) = (Node::with(a, attr()), Node::with(b, attr()));
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    // Until both know each other nothing is left to the kernel.
    for _ in 0..2 {
        message(&mut a, &mut b, to_b, &mut [1]);
        message(&mut b, &mut a, to_a, &mut [1]);
    }
    (a, b, to_b, to_a)
}

/// A message from A to B, whose receive is posted before.
fn message(a: &mut Node, b: &mut Node, to_b: Addr, bytes: &mut [u8]) {
    let mut into = vec![0; bytes.len()];
    b.recv(Want::tag(1), &mut into).expect("recv");
    a.send(Msg::new(to_b, 1), bytes).expect("send");
    run(&mut [a, b], &[1, 1]);
    assert!(into == bytes, "what was received is not what was sent");
}

#[test]
fn only_what_looks_the_same_is_the_kernels() {
    if not_by_network("nothing is copied once there") {
        return;
    }
    let _dog = watchdog("again", 60);
    let (mut a, mut b, to_b, _) = pair();
    let (mut bytes, mut rewritten) = (pattern(N, 1), pattern(N, 2));
    for seed in 0..40 {
        rewritten.copy_from_slice(&pattern(N, 10 + seed));
        message(&mut a, &mut b, to_b, &mut rewritten);
        message(&mut a, &mut b, to_b, &mut bytes);
    }
    // The first one is new.
    assert_eq!((a.stats().syscall, a.stats().eager, b.stats().fetched), (39, 41, 39 * N as u64));
    let told = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    assert!(told.contains("their buffers look as they did when they were last sent"), "{told}");
    // Too short, too long, and in two pieces.
    let mut others = (pattern(16_383, 3), pattern(64 << 10, 4));
    let before = a.stats();
    for _ in 0..3 {
        message(&mut a, &mut b, to_b, &mut others.0);
        message(&mut a, &mut b, to_b, &mut others.1);
    }
    assert_eq!(a.stats().eager - before.eager, 3);
    assert_eq!(a.stats().syscall - before.syscall, 3, "those are the table's");
}

/// Both send before they receive, as MPI forbids and many programs do: it goes on if messages are short, and goes on if they look the same.
#[test]
fn two_that_send_first_do_not_wait_for_each_other() {
    let _dog = watchdog("crosswise", 60);
    crosswise(config(), |stats| stats.syscall > 10);
    // Who may not copy out of the other's memory says so, and nothing is left to it.
    crosswise(Config { cma: 1, ..config() }, |stats| stats.syscall == 0);
}

fn crosswise(of_b: Config, as_wanted: fn(&rustmx::stats::Stats) -> bool) {
    let (mut a, mut b, to_b, to_a) = pair_of(config(), of_b);
    let (mut from_a, mut from_b, mut into_a, mut into_b) = (pattern(N, 1), pattern(N, 2), vec![0; N], vec![0; N]);
    for round in 0..20 {
        a.send(Msg::new(to_b, round), &mut from_a).expect("send");
        b.send(Msg::new(to_a, round), &mut from_b).expect("send");
        run(&mut [&mut a, &mut b], &[1, 1]);
        // The buffers are the callers' again.
        let (was_a, was_b) = (from_a[5], from_b[5]);
        (from_a[5], from_b[5]) = (!was_a, !was_b);
        a.recv(Want::tag(round), &mut into_a).expect("recv");
        b.recv(Want::tag(round), &mut into_b).expect("recv");
        run(&mut [&mut a, &mut b], &[1, 1]);
        (from_a[5], from_b[5]) = (was_a, was_b);
        assert!(into_a == from_b && into_b == from_a, "round {round}");
    }
    let stats = [a.stats(), b.stats()];
    assert!(not_by_network("nothing is copied once there") || stats.iter().all(as_wanted), "{stats:?}");
}

/// What nobody has asked for is kept up to the window, found by a peek, claimed, and cut to its receive.
#[test]
fn what_is_kept_is_a_message_as_any_other() {
    if not_by_network("nothing is copied once there") {
        return;
    }
    let _dog = watchdog("kept", 60);
    let (mut a, mut b, to_b, _) = pair();
    let mut bytes = pattern(N, 1);
    message(&mut a, &mut b, to_b, &mut bytes);
    let many = 20;
    for i in 0..many {
        a.send(Msg::new(to_b, i).ctx(i as usize), &mut bytes).expect("send");
    }
    let mut sent = Vec::new();
    settle_any(&mut a, &mut b, many, &mut sent);
    let window = Config::default().eager_window as usize / N;
    assert_eq!(all_ok(&sent), window, "the others wait for their receives");
    assert_eq!(ok(&b.peek(Want::tag(3))).len, N);
    let mut into = vec![0; N];
    for i in (0..many).rev() {
        let cap = if i % 2 == 0 { N } else { N / 2 };
        into.fill(0);
        b.recv(Want::tag(i), &mut into[..cap]).expect("recv");
        let until = Deadline::new(10);
        let got = loop {
            let mut got = b.poll();
            sent.extend(a.poll());
            if !got.is_empty() {
                break got.remove(0);
            }
            until.check(|| format!("message {i}"));
        };
        assert_eq!(got.map_or_else(|cut| (cut.c.len, cut.olen), |c| (c.len, 0)), (cap, N - cap), "message {i}");
        assert!(into[..cap] == bytes[..cap], "message {i}");
    }
    let until = Deadline::new(10);
    while sent.len() < many as usize {
        b.quiet(1);
        sent.extend(a.poll());
        until.check(|| format!("{} of {many} sent", sent.len()));
    }
    assert_eq!(all_ok(&sent), many as usize);
}

/// A receiver that computes: one message waits for it, and those after it do not.
#[test]
fn a_sender_does_not_wait_twice() {
    if not_by_network("nothing is copied once there") {
        return;
    }
    let _dog = watchdog("late", 60);
    let (mut a, mut b, to_b, _) = pair();
    let (mut bytes, mut into) = (pattern(N, 1), vec![vec![0; N]; 5]);
    message(&mut a, &mut b, to_b, &mut bytes);
    a.quiet(LONG);
    message(&mut a, &mut b, to_b, &mut bytes);
    b.recv(Want::tag(0), &mut into[0]).expect("recv");
    a.send(Msg::new(to_b, 0), &mut bytes).expect("send");
    a.quiet(LONG);
    run(&mut [&mut a, &mut b], &[1, 1]);
    // What it did before it sent is not the receiver's fault.
    assert_eq!(a.stats().syscall, 2);
    let before = a.stats();
    for (tag, into) in (1..).zip(&mut into[1..]) {
        b.recv(Want::tag(tag), into).expect("recv");
        a.send(Msg::new(to_b, tag), &mut bytes).expect("send");
        a.complete(1);
    }
    assert_eq!((a.stats().eager - before.eager, a.stats().syscall - before.syscall), (4, 0));
    b.complete(4);
    assert!(into.iter().all(|into| *into == bytes));
}

/// A full ring: what waits for room is looked at once, and does not look the same as itself.
#[test]
fn what_waits_for_room_is_looked_at_once() {
    if not_by_network("nothing is copied once there") {
        return;
    }
    let _dog = watchdog("room", 60);
    let small = || Config { ring_size: 8 << 10, eager_max: 1 << 10, eager_window: 1 << 30, rings: 0, ..config() };
    let (mut a, mut b, to_b, _) = pair_of(small(), small());
    const SHORT: usize = 1000;
    let (mut short, mut bytes) = (pattern(SHORT, 1), pattern(N, 2));
    let (mut into_short, mut into) = (vec![0; SHORT], vec![0; N]);
    for round in 0..10 {
        bytes.copy_from_slice(&pattern(N, 10 + round));
        // Until the ring has no room for the next one, or for this one.
        let before = a.stats().ring_full;
        let mut shorts = 0;
        while a.stats().ring_full == before && shorts < round {
            a.send(Msg::new(to_b, 7), &mut short).expect("send");
            shorts += 1;
        }
        a.send(Msg::new(to_b, 8), &mut bytes).expect("send");
        // It is tried again and again.
        let mut sent = 0;
        for _ in 0..10 {
            sent += all_ok(&a.poll());
        }
        let (mut came, until) = (0, Deadline::new(10));
        for _ in 0..shorts {
            b.recv(Want::tag(7), &mut into_short).expect("recv");
            let all = came + 1;
            while came < all {
                sent += all_ok(&a.poll());
                came += all_ok(&b.poll());
                until.check(|| format!("{came} came"));
            }
        }
        b.recv(Want::tag(8), &mut into).expect("recv");
        while sent + came < 2 * (shorts + 1) {
            sent += all_ok(&a.poll());
            came += all_ok(&b.poll());
            until.check(|| format!("{sent} sent, {came} came"));
        }
        assert!(into == bytes, "round {round}");
    }
    assert!(a.stats().ring_full > 0, "there was always room");
    assert_eq!(a.stats().syscall, 0, "rewritten each time");
}
