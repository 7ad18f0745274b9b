//! Nobody, or another process, is under the number of the peer, at any moment: that message arrives, and no later one asks the kernel again.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::protocol::single::receiver::{Copying, Stage, State};
use crate::shm::layout::FRONT;
use crate::shm::split::MAX_CHUNKS;

const LEN: usize = 4 << 20;

/// A further message, as long as the first. Whether it was offered.
fn another(a: &mut Side, b: &mut Side, tag: usize) -> bool {
    let (mut from, mut to) = (vec![9; LEN], vec![0; LEN]);
    let iov = [of_slice(&mut from)];
    if Single::start(&mut a.wire(), &message(tag, &iov), &req(tag)) == Err(Refused::Unable) {
        return false;
    }
    b.posted.resize_with(tag, || None);
    b.posted.push(Some(want(tag, &[of_slice(&mut to)])));
    until_received(a, b, tag + 1);
    assert!(from == to);
    true
}

/// Turns of both sides before the change.
fn turns(a: &mut Side, b: &mut Side, n: usize) {
    for _ in 0..n {
        b.push();
        while a.drain().expect("sound") {}
        a.push();
    }
}

/// The receiver does not find the sender: what can still be, the sender writes.
#[test]
fn a_sender_that_is_not_there_under_its_number() {
    for (reach, sharing, before) in [
        (Reach::Nobody, Some(Sharing::Never), 0),
        (Reach::Nobody, Some(Sharing::Never), 1),
        (Reach::Other, Some(Sharing::Never), 0),
        (Reach::Other, Some(Sharing::Never), 1),
        (Reach::Nobody, None, 0),
        (Reach::Nobody, None, 1),
        (Reach::Other, None, 0),
        (Reach::Other, None, 2),
    ] {
        let Some((mut a, mut b, from, to, table)) = expected(LEN, sharing) else { return };
        turns(&mut a, &mut b, before);
        assert!(b.received.is_empty() && (before == 0 || b.moved > 0));
        aim(&mut b, reach, &table);
        until_received(&mut a, &mut b, 1);
        assert!(from == to && b.copies.no_read, "{reach:?} {sharing:?} {before}");
        let (fetched, stored, offers) = (b.moved, a.moved, !a.copies.is_refused());
        // Begun alone, it could not be shared any more: then both go on by streams.
        assert_eq!(offers, sharing.is_none() || before == 0, "{reach:?} {sharing:?} {before}");
        assert_eq!(another(&mut a, &mut b, 1), offers);
        assert_eq!((b.moved - fetched, a.moved - stored), (0, if offers { LEN as u64 } else { 0 }));
    }
}

/// The sender does not find the receiver: that copies all of it, and shares nothing with it any more.
#[test]
fn a_receiver_that_is_not_there_under_its_number() {
    for (reach, before) in [(Reach::Nobody, 0), (Reach::Nobody, 1), (Reach::Other, 0)] {
        let Some((mut a, mut b, from, to, table)) = shared(LEN) else { return };
        turns(&mut a, &mut b, before);
        assert!(b.received.is_empty() && (before == 0 || a.moved > 0));
        aim(&mut a, reach, &table);
        until_received(&mut a, &mut b, 1);
        assert!(from == to && a.copies.no_write && !a.copies.is_refused(), "{reach:?} {before}");
        while b.drain().expect("sound") {}
        let (fetched, stored) = (b.moved, a.moved);
        assert!(another(&mut a, &mut b, 1));
        assert_eq!((b.moved - fetched, a.moved - stored), (LEN as u64, 0), "{reach:?} {before}");
        assert_eq!(a.copies.accepted, 1, "it was shared with who cannot write");
    }
}

/// Neither finds the other: streams from then on, this message from its first byte.
#[test]
fn both_are_not_there_under_their_numbers() {
    for (reach, before) in [(Reach::Nobody, 0), (Reach::Nobody, 1), (Reach::Other, 0)] {
        let Some((mut a, mut b, from, to, table)) = shared(LEN) else { return };
        turns(&mut a, &mut b, before);
        [&mut a, &mut b].into_iter().for_each(|side| aim(side, reach, &table));
        until_received(&mut a, &mut b, 1);
        assert!(from == to && a.copies.is_refused(), "{reach:?} {before}");
        assert!(!another(&mut a, &mut b, 1), "it was offered again");
    }
}

/// The helper thread finds nobody: it does not say why it failed, and yet nobody asks for the next message.
#[test]
fn a_sender_that_the_helper_does_not_find() {
    let Some((mut a, mut b, from, to, table)) = shared(LEN) else { return };
    b.copies.help_from(1);
    aim(&mut b, Reach::Nobody, &table);
    b.copies.call_helper(1, &b.link);
    assert!(b.copies.help.id.is_some());
    b.copies.copying.clear();
    // The helper claims a chunk, in vain; nobody else takes any meanwhile.
    while b.mine.word(FRONT).load(Ordering::Relaxed) & u64::from(MAX_CHUNKS) == 0 {
        std::thread::yield_now();
    }
    b.copies.waiting.push(1);
    while b.copies.help.id.is_some() {
        b.push();
        std::thread::yield_now();
    }
    until_received(&mut a, &mut b, 1);
    assert!(from == to && b.copies.no_read && b.copies.help.id.is_none());
}

/// An address that cannot be reached under a number that is another process's is no matter of that one message.
#[test]
fn an_address_that_another_process_does_not_have() {
    let Some((mut a, mut b, from, to, table)) = expected(LEN, Some(Sharing::Never)) else { return };
    aim(&mut b, Reach::Other, &table);
    b.copies.rx.get_mut(&1).expect("offered").from = [remote::Piece { addr: 8, len: LEN }].into_iter().collect();
    until_received(&mut a, &mut b, 1);
    assert!(from == to && b.copies.no_read);
}

/// The sender finds nobody, and ends its share with nothing, before it was the turn of this message at the receiver; then that finds nobody either. The sender
/// was asked once, and that is enough.
#[test]
fn who_was_asked_to_copy_is_not_asked_again() {
    let Some((mut a, mut b, from, to, table)) = shared(LEN) else { return };
    let others = std::mem::take(&mut b.copies.copying);
    aim(&mut a, Reach::Nobody, &table);
    b.push();
    while a.drain().expect("sound") {}
    a.push();
    while b.drain().expect("sound") {}
    assert!(matches!(b.copies.rx[&1].state, State::Copying(Copying { stage: Stage::Alone(LEN), next: 0, .. })), "not begun");
    aim(&mut b, Reach::Nobody, &table);
    b.copies.copying = others;
    until_received(&mut a, &mut b, 1);
    assert!(from == to && a.copies.is_refused());
}
