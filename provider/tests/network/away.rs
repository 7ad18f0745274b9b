//! Programs that leave something behind and do not call for a moment.

use crate::common::{Deadline, Msg, Node, Want, attr};
use crate::flow::pair_with;
use crate::scene::network;
use rustmx::sys::clock::Clock;
use rustmx::{Addr, Attended};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Two messages from `a`, of which the second one waits for the next turn, `nap` later.
fn two_messages(a: &mut Node, b: &mut Node, to_b: Addr, nap: Duration) {
    let mut into = [[0u8; 8]; 2];
    for (tag, buf) in into.iter_mut().enumerate() {
        b.recv(Want::tag(tag as u64), buf).expect("recv");
    }
    for tag in 0..2 {
        a.send(Msg::new(to_b, tag).inject(), &mut [tag as u8 + 1; 8]).expect("send");
    }
    if !nap.is_zero() {
        std::thread::sleep(nap);
    }
    let (until, mut came) = (Deadline::new(20), 0);
    while came < 2 {
        a.poll();
        came += b.poll().len();
        until.check(|| "a message is missing".into());
    }
    assert_eq!(into, [[1; 8], [2; 8]]);
}

/// Who was always there is looked after seldom. When he begins to go for moments that are shorter than what is between looks, he is looked after
/// more closely all the same.
#[test]
fn who_goes_for_a_moment_again_and_again_is_noticed() {
    let (mut a, mut b, to_b, _) = pair_with(&network());
    let times = Arc::new(AtomicUsize::new(0));
    let count = times.clone();
    a.domain.attend_by(move || {
        count.fetch_add(1, Ordering::SeqCst);
        // What is there leaves when he is back; and it is no news that he was away.
        Attended::Idle
    });
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        two_messages(&mut a, &mut b, to_b, Duration::ZERO);
    }
    let until = Deadline::new(100);
    let before = times.load(Ordering::SeqCst);
    let mut rounds = 0;
    while times.load(Ordering::SeqCst) < before + 20 {
        // On a machine whose cores are scarce looks are up to 32 ms apart: then he has to go for longer.
        rounds += 1;
        two_messages(&mut a, &mut b, to_b, Duration::from_millis(5 + rounds / 40));
        // As long as it takes until the clock is read.
        (0..200).for_each(|_| drop(a.poll()));
        until.check(|| format!("nobody looked after him but {} times", times.load(Ordering::SeqCst) - before));
    }
}

/// It counts if there was no turn for long, and something had been put off.
#[test]
fn who_left_something_and_went_is_told_from_others() {
    let clock = Arc::new(AtomicU64::new(1_000_000_000));
    let open = || Node::open(network(), attr(), Clock::Manual(clock.clone()));
    let (mut a, mut b) = (open(), open());
    let (to_b, _) = (a.knows(&b), b.knows(&a));
    let turns = |a: &mut Node, nanos: u64| {
        for _ in 0..300 {
            clock.fetch_add(nanos, Ordering::Relaxed);
            a.poll();
        }
    };
    for _ in 0..40 {
        two_messages(&mut a, &mut b, to_b, Duration::ZERO);
        turns(&mut a, 200);
    }
    assert_eq!(a.stats().absences, 0, "all the time here");
    // `gone` nanoseconds after having put something off, or nothing; turns before and after that take so long.
    for (puts_off, gone, turn, counts) in [
        (true, 5_000_000, 200, 1),
        (false, 5_000_000, 200, 0),
        (true, 900_000, 200, 0),
        (true, 2_000_000, 100_000, 1),
        // The clock is looked at more often where turns are long: they do not add up.
        (true, 0, 100_000, 0),
        (true, 0, 900_000, 0),
        (true, 1_100_000, 100_000, 1),
    ] {
        turns(&mut a, turn);
        let before = a.stats().absences;
        if puts_off {
            for tag in 0..2 {
                a.send(Msg::new(to_b, tag).inject(), &mut [1; 8]).expect("send");
            }
        }
        clock.fetch_add(gone, Ordering::Relaxed);
        turns(&mut a, turn);
        assert_eq!(a.stats().absences - before, counts, "puts off {puts_off}, {gone} ns, turns of {turn}");
        if puts_off {
            let mut into = [[0u8; 8]; 2];
            for (tag, buf) in into.iter_mut().enumerate() {
                b.recv(Want::tag(tag as u64), buf).expect("recv");
            }
            let (until, mut came) = (Deadline::new(20), 0);
            while came < 2 {
                came += b.poll().len();
                until.check(|| "a message is missing".into());
            }
        }
        turns(&mut a, 200);
    }
}

#[test]
fn a_turn_for_who_is_away_says_whether_something_was_left() {
    let (mut a, mut b, to_b, _) = pair_with(&network());
    two_messages(&mut a, &mut b, to_b, Duration::ZERO);
    let mut until_idle = |a: &mut Node| {
        let until = Deadline::new(20);
        while a.domain.turn_for_absent() != Attended::Idle {
            b.poll();
            until.check(|| "something is kept back".into());
        }
    };
    until_idle(&mut a);
    for tag in 5..7 {
        a.send(Msg::new(to_b, tag).inject(), &mut [1; 8]).expect("send");
    }
    assert_ne!(a.domain.turn_for_absent(), Attended::Idle, "the second one was put off");
    until_idle(&mut a);
}
