//! Process ids are used again: who is asked for its table, and who is not.

use super::*;
use crate::protocol::single::means::FRESH;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Messages of 3000 bytes, the first of which is expected: what becomes of it and of the second if the table at hand is not the sender's.
fn of_a_process_that_may_be_another(since: u64, waited: u64) -> (bool, bool) {
    let (mut a, mut b) = sides(usize::MAX);
    let (table, now) = (Table::default(), Arc::new(AtomicU64::new(5 * FRESH)));
    aim(&mut a, Reach::Everything, &table);
    aim(&mut b, Reach::Other, &table);
    b.copies.set_clock(Clock::Manual(now.clone()), Default::default());
    let (mut from, mut to) = (vec![7u8; 3000], [vec![0u8; 3000], vec![0u8; 3000]]);
    let [first, second] = &mut to;
    b.posted = vec![Some(want(0, &[of_slice(first)])), None];
    for i in 0..2 {
        Single::start(&mut a.wire(), &message(i, &[of_slice(&mut from)]), &req(i)).expect("offered");
    }
    b.copies.heard(since);
    while b.drain().expect("sound") {}
    b.push();
    let at_once = b.received.len() == 1;
    now.fetch_add(waited, Ordering::Relaxed);
    // What is heard meanwhile says nothing of when that message was written.
    b.copies.heard(now.load(Ordering::Relaxed));
    assert!(b.receive_held(1, want(1, &[of_slice(second)])).is_none());
    b.push();
    (at_once, b.received.len() == 1 + usize::from(at_once))
}

#[test]
fn who_was_heard_of_a_moment_ago_is_not_asked_for_its_table() {
    if !kernel_allows() {
        return;
    }
    let now = 5 * FRESH;
    for (since, waited, copied) in [
        (0, 0, (false, false)),
        (now - FRESH, 0, (false, false)),
        (now - FRESH + 1, 0, (true, true)),
        (now - FRESH + 1, 1, (true, false)),
        (now, FRESH - 1, (true, true)),
        (now, FRESH, (true, false)),
    ] {
        assert_eq!(of_a_process_that_may_be_another(since, waited), copied, "{since} {waited}");
    }
}

#[test]
fn a_sender_asks_for_the_table_unless_it_heard_of_the_receiver_a_moment_ago() {
    let now = 5 * FRESH;
    for (since, writes) in [(0, false), (now - FRESH, false), (now - FRESH + 1, true)] {
        let Some((mut a, mut b, from, to, table)) = shared(1 << 20) else { return };
        b.push();
        aim(&mut a, Reach::Other, &table);
        a.copies.set_clock(Clock::Manual(Arc::new(AtomicU64::new(now))), Default::default());
        a.copies.heard(since);
        a.drain().expect("sound");
        a.push();
        assert_eq!(a.moved > 0, writes, "{since}");
        drop((b, from, to));
    }
}
