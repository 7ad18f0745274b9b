//! Who copies what of a message that both share.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::protocol::single::receiver::{Copying, Stage};
use crate::shm::layout::{BACK, COPIED};
use crate::shm::split::MAX_NUMBER;

#[test]
fn both_sides_copy_if_both_are_there() {
    const LEN: usize = 8 << 20;
    let Some((mut a, mut b, from, to, _table)) = shared(LEN) else { return };
    let (mut fetched, mut stored) = (0, 0);
    while b.received.is_empty() {
        for side in [&mut b, &mut a] {
            let mut ended = Ended::default();
            side.copies.push(&mut side.link, &mut side.arena, &mut ended).expect("sound");
            fetched += ended.fetched;
            stored += ended.stored;
            side.take(ended);
            while side.drain().expect("sound") {}
        }
    }
    assert_eq!(fetched + stored, LEN as u64);
    assert!(fetched.abs_diff(stored) <= 2 * TURN.max(CHUNKS.1) as u64, "{fetched} and {stored}");
    assert!(from == to);
    b.push();
    a.drain().expect("sound");
    assert_eq!(a.sent, [0]);
}

#[test]
fn one_side_copies_all_if_the_other_computes() {
    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    while b.received.is_empty() {
        b.push();
    }
    assert!(from == to);
    // The sender comes back: it must not touch what is the application's again.
    drop(to);
    while a.sent.is_empty() {
        assert!(a.drain().expect("sound"));
        a.push();
    }
    while b.drain().expect("sound") {}

    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    b.copies.write_notes(&mut b.link, Some(&mut b.arena)).expect("room");
    let mut stored = 0;
    for _ in 0..100 {
        a.drain().expect("sound");
        let mut ended = Ended::default();
        a.copies.push(&mut a.link, &mut a.arena, &mut ended).expect("sound");
        stored += ended.stored;
    }
    assert_eq!(stored, 1 << 20);
    b.push();
    assert!(b.received.len() == 1 && from == to, "all is there, said or not");
}

/// It copied what one turn allows, and computes since: its part is there, and nobody need wait for its word.
#[test]
fn a_sender_that_leaves_in_the_middle() {
    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    b.copies.write_notes(&mut b.link, Some(&mut b.arena)).expect("room");
    a.drain().expect("sound");
    a.push();
    assert!(a.moved > 0 && a.moved < 1 << 20, "{} in one turn", a.moved);
    for _ in 0..10 {
        b.push();
    }
    assert!(b.received.len() == 1 && b.moved == (1 << 20) - a.moved);
    assert!(from == to);
    // It comes back to a buffer that is the application's.
    drop(to);
    let before = a.moved;
    for _ in 0..3 {
        a.push();
        while a.drain().expect("sound") {}
        while b.drain().expect("sound") {}
    }
    assert!(a.moved == before && a.sent == [0] && !a.copies.has_work() && !b.copies.has_work());
}

#[test]
fn a_refusal_is_remembered_by_both() {
    let Some((mut a, mut b, mut from, to, _table)) = shared(100_000) else { return };
    a.copies.no_write = true;
    // What the kernel would answer: nobody here can make it.
    b.copies.no_read = true;
    b.copies.decline(1, true, &mut Ended::default());
    b.push();
    assert!(a.drain().expect("sound"), "the ACCEPT of a message that was declined since is not written");
    assert!(a.copies.is_refused());
    let again = Single::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(1));
    assert_eq!(again, Err(Refused::Unable));
    drop(to);
}

/// A sender that claims everything, copies nothing and says nothing holds up its own message only.
#[test]
fn a_sender_that_claims_and_never_comes() {
    let Some((a, mut b, _from, _to, _table)) = shared(100_000) else { return };
    a.mine.word(BACK).store(1 << 24 | 4, Ordering::Relaxed);
    for _ in 0..10 {
        b.push();
    }
    assert!(b.received.is_empty() && b.copies.copying.is_empty());
    assert!(b.copies.has_work(), "it may still come");
    let mut ended = Ended::default();
    assert_eq!(b.copies.push(&mut b.link, &mut b.arena, &mut ended), Ok(0), "who waits may give its core away");
}

#[test]
fn messages_are_shared_between_borders() {
    let (_, mut b) = sides(100_000);
    let copies = &mut b.copies;
    assert_eq!([99_999, 100_000].map(|n| copies.is_shared(n, false)), [false, true]);
    copies.share_between(&[1, 50_000, 60_000], &[]);
    assert_eq!([49_999, 50_000, 59_999, 60_000].map(|n| copies.is_shared(n, false)), [true, false, false, true]);
    assert!(!copies.is_shared(70_000, true));
    share(copies, Some(Sharing::WhereItPays));
    assert_eq!([LEAST_CHUNK, LEAST_CHUNK + 1].map(|n| copies.is_shared(n, false)), [false, true], "one chunk is not worth it");
    share(copies, Some(Sharing::Never));
    assert!(!copies.is_shared(70_000, false));
}

#[test]
fn the_longer_the_more_chunks() {
    let kib = [64, 256, 257, 767, 768, 2047, 2048, 4096];
    assert_eq!(kib.map(|n| parts(n << 10, false)), [2, 2, 4, 4, 6, 6, 4, 4]);
    assert_eq!(kib.map(|n| parts(n << 10, true)), [4; 8]);
    let Some((_a, b, ..)) = shared(1 << 20) else { return };
    let chunks: Vec<usize> =
        b.copies.rx.values().filter_map(|c| if let State::Copying(c) = &c.state { Some(c.chunk) } else { None }).collect();
    assert_eq!(chunks, [((1usize << 20) / 6).next_multiple_of(PAGE)], "whole pages");
}

/// Where both take longer than one alone would, help is not asked for any more, unless the user wants it. What waits behind others in a window tells nothing.
#[test]
fn help_that_costs_too_much_is_given_up() {
    const N: u64 = 48;
    let shared = |together: u64, fixed: bool, window: usize| {
        let (mut a, mut b) = sides(1);
        let now = Arc::new(AtomicU64::new(1_000_000));
        // What one alone needs for 64 KiB is taken for 6.4 us as long as the clock stands still while it copies.
        b.copies.set_clock(Clock::Manual(now.clone()), [Worth { ns: 6_000, fixed }; 2]);
        share(&mut b.copies, Some(Sharing::WhereItPays));
        lend(&mut a, &mut b, Lent::ToWrite);
        let (iov, mut to) = ([a.arena.memory.as_user(0, 64 << 10)], vec![0; 64 << 10]);
        for first in (0..N as usize).step_by(window) {
            for i in first..first + window {
                b.posted.push(Some(want(i, &[of_slice(&mut to)])));
                Single::start(&mut a.wire(), &Message { lent: 1, ..message(i, &iov) }, &req(i)).expect("offered");
            }
            while b.drain().expect("sound") {}
            while a.sent.len() < first + window {
                now.fetch_add(together, Ordering::Relaxed);
                b.push();
                a.push();
                while a.drain().expect("sound") {}
                while b.drain().expect("sound") {}
            }
        }
        b.copies.shared
    };
    assert_eq!(shared(3_500, false, 1), N, "it pays");
    let few = shared(20_000, false, 1);
    assert!((1..N / 2).contains(&few), "{few}");
    assert_eq!(shared(20_000, true, 1), N, "the user wants it");
    for window in [2, 16] {
        assert_eq!(shared(20_000, false, window), N, "nobody knows what it costs");
    }
}

#[test]
fn what_fits_a_turn_is_copied_at_once() {
    for (len, at_once) in [(TURN, 1), (TURN + 1, 0)] {
        let (mut a, mut b) = sides(usize::MAX);
        lend(&mut a, &mut b, Lent::ToRead);
        let (iov, mut to) = ([a.arena.memory.as_user(0, len)], vec![0; len]);
        b.posted.push(Some(want(0, &[of_slice(&mut to)])));
        Single::start(&mut a.wire(), &Message { lent: 1, ..message(0, &iov) }, &req(0)).expect("offered");
        assert!(b.drain().expect("sound"));
        assert_eq!(b.received.len(), at_once, "{len}");
    }
}

/// Chunks are shared out from the first byte on: what one side has begun alone and may not end is sent anew.
#[test]
fn what_was_begun_alone_is_not_shared_later() {
    let Some((mut a, mut b, from, to, _table)) = expected(2 << 20, Some(Sharing::Never)) else { return };
    b.push();
    assert!(b.moved > 0 && b.received.is_empty());
    b.copies.no_read = true;
    until_received(&mut a, &mut b, 1);
    assert!(from == to && a.moved == 0);
}

/// The receiver has claimed a chunk, and the kernel does not let it read: that the sender has copied all others does not end the message.
#[test]
fn a_chunk_that_was_claimed_and_not_read_is_not_taken_for_copied() {
    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    b.copies.write_notes(&mut b.link, Some(&mut b.arena)).expect("room");
    b.copies.copying.clear();
    let Some(Coming { state: State::Copying(Copying { stage: Stage::Claiming(share), .. }), .. }) = b.copies.rx.get_mut(&1)
    else {
        panic!("not shared")
    };
    assert!(b.link.claim_front(share));
    b.copies.no_read = true;
    b.copies.leave_to_sender(1, &mut Ended::default());
    assert!(a.drain().expect("sound"));
    for _ in 0..10 {
        a.push();
        b.push();
    }
    assert!(a.moved > 0 && b.received.is_empty());
    until_received(&mut a, &mut b, 1);
    assert!(from == to);
}

/// What the sender could not write is not counted as copied, and is no refusal: another buffer may well be there.
#[test]
fn a_chunk_that_cannot_be_written_is_left_to_the_receiver() {
    let Some((mut a, mut b, _from, _to, _table)) = shared(100_000) else { return };
    let bytes = emit_pieces(&[remote::Piece { addr: 8, len: 100_000 }]);
    let accept = Draft { body: [1, 1 << 15], len: bytes.len(), bytes: &bytes, ..bare(Kind::Accept, 1, 100_000) };
    b.link.send(&accept, Class::Control).expect("room");
    assert!(a.drain().expect("sound"));
    a.push();
    assert_eq!(a.mine.word(COPIED).load(Ordering::Relaxed), 0);
    let done = b.link.peek().expect("sound").expect("where it ended");
    assert_eq!((done.kind, done.tag, done.data, done.flags), (Kind::Done, 1, 0, 0));
}

#[test]
fn who_may_not_read_and_cannot_be_written_gets_a_stream() {
    let Some((mut a, mut b, from, to, table)) = expected(1 << 20, Some(Sharing::Never)) else { return };
    aim(&mut a, Reach::Forbidden, &table);
    aim(&mut b, Reach::Forbidden, &table);
    b.copies.peer_no_write = true;
    until_received(&mut a, &mut b, 1);
    assert!(from == to && a.moved + b.moved == 0);
}

#[test]
fn after_the_last_number_nothing_is_shared() {
    let Some((mut a, mut b, from, to, _table)) = shared(100_000) else { return };
    let (mut more, mut room) = (vec![7; 100_000], vec![0; 100_000]);
    b.copies.shared = MAX_NUMBER;
    b.posted.push(Some(want(1, &[of_slice(&mut room)])));
    Single::start(&mut a.wire(), &message(1, &[of_slice(&mut more)]), &req(1)).expect("offered");
    until_received(&mut a, &mut b, 2);
    assert!(from == to && more == room && b.copies.shared == MAX_NUMBER);
}

/// A peer that has mapped what was lent to be read, and asks the kernel in vain, is lent nothing to be written any more; and the other way round.
#[test]
fn a_refusal_is_about_what_was_tried() {
    if !kernel_allows() {
        return;
    }
    let refusal = Header { kind: Kind::Done, flags: flag::FORBIDDEN, len: 0, ack: 0, tag: 1, data: 0 };
    for lent in [true, false] {
        let (mut a, mut b) = sides(1);
        let table = Table::default();
        aim(&mut a, Reach::Everything, &table);
        aim(&mut b, Reach::Everything, &table);
        b.arena.lent = lent;
        let mut from = vec![1; 100_000];
        for tag in 0..2 {
            b.posted.push(Some(want(tag, &[b.arena.memory.as_user(tag * 100_000, 100_000)])));
            Single::start(&mut a.wire(), &message(tag, &[of_slice(&mut from)]), &req(tag)).expect("offered");
            assert!(b.drain().expect("sound"));
        }
        let named = |b: &mut Side, id| b.copies.shared_out(id, &mut b.arena).map(|(named, _)| named.lent);
        assert_eq!(named(&mut b, 1), Some(lent.into()));
        b.copies.on_done(&b.link, &refusal, &mut Ended::default()).expect("sound");
        assert_eq!((b.copies.no_stores, b.copies.peer_no_write), (lent, !lent));
        assert_eq!(named(&mut b, 2), lent.then_some(0), "alone, if there is no other way");
    }
}

/// A system call holds the other process's memory map: of a long message each takes a chunk, whoever copies it.
#[test]
fn no_system_call_takes_more_than_a_chunk() {
    for sharing in [Some(Sharing::Never), None] {
        remote::longest::take();
        let Some((mut a, mut b, from, to, _table)) = expected(16 << 20, sharing) else { return };
        until_received(&mut a, &mut b, 1);
        let (longest, table) = (remote::longest::take(), 64);
        assert!((1..=CHUNKS.1 + table).contains(&longest), "{sharing:?}: {longest} bytes");
        assert!(from == to && b.moved > 0 && (a.moved > 0) == (sharing.is_none()));
    }
}

/// What the kernel refused once is not told of a part that lies in mapped memory, for which it was not asked.
#[test]
fn a_refusal_is_not_told_of_what_is_mapped() {
    if !kernel_allows() {
        return;
    }
    for mapped in [true, false] {
        let (mut a, mut b) = sides(1);
        let table = Table::default();
        aim(&mut a, Reach::Everything, &table);
        aim(&mut b, Reach::Everything, &table);
        lend(&mut b, &mut a, if mapped { Lent::ToWrite } else { Lent::No });
        a.copies.no_write = true;
        let mut from = vec![1; 400_000];
        b.posted.push(Some(want(0, &[b.arena.memory.as_user(0, from.len())])));
        Single::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(0)).expect("offered");
        assert!(b.drain().expect("sound"));
        b.push();
        assert!(a.drain().expect("sound"), "it is shared out");
        b.push();
        a.push();
        let header = b.link.peek().expect("sound").expect("it has ended its part");
        assert_eq!((header.kind, header.flags & flag::FORBIDDEN != 0), (Kind::Done, !mapped));
    }
}
