//! Programs that leave something behind and do not call for a moment.

use crate::common::{Deadline, Msg, Node, Want};
use crate::flow::pair_with;
use crate::scene::network;
use rustmx::{Addr, Attended};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    let until = Deadline::new(60);
    let before = times.load(Ordering::SeqCst);
    while times.load(Ordering::SeqCst) < before + 20 {
        two_messages(&mut a, &mut b, to_b, Duration::from_millis(5));
        // As long as it takes until the clock is read.
        (0..200).for_each(|_| drop(a.poll()));
        until.check(|| format!("nobody looked after him but {} times", times.load(Ordering::SeqCst) - before));
    }
}
