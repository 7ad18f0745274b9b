//! The helper thread.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::protocol::single::copier::Task;
use crate::protocol::single::receiver::Stage;
use crate::shm::layout::FRONT;
use crate::shm::split::MAX_CHUNKS;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

#[test]
fn the_helper_copies_what_the_receiver_does_not_get_round_to() {
    const LEN: usize = 8 << 20;
    let Some((a, mut b, from, to, _table)) = shared(LEN) else { return };
    b.copies.help_from(LEN);
    let mut ended = Ended::default();
    b.copies.push(&mut b.link, &mut b.arena, &mut ended).expect("sound");
    let chunks = (LEN / CHUNKS.1) as u64;
    // The receiver computes; the sender is not there.
    let claimed = |b: &Side| b.mine.word(FRONT).load(Ordering::Relaxed) & u64::from(MAX_CHUNKS);
    while claimed(&b) < chunks {
        std::thread::yield_now();
    }
    while ended.received.is_empty() {
        b.copies.push(&mut b.link, &mut b.arena, &mut ended).expect("sound");
    }
    assert_eq!((ended.fetched, from == to), (LEN as u64, true));
    assert!(ended.helped >= LEN as u64 - 2 * TURN.max(CHUNKS.1) as u64, "{} helped", ended.helped);
    assert!(b.copies.help.id.is_none() && !b.copies.has_work());
    // It keeps nothing of a message that is through: its places are few.
    let until = Instant::now() + Duration::from_secs(20);
    while Arc::strong_count(&b.copies.help.job) > 1 {
        assert!(Instant::now() < until, "the helper still has it in hand");
        std::thread::yield_now();
    }
    drop(a);
}

#[test]
fn the_helper_lets_go_when_the_peer_is_gone() {
    // Slices are compared at once, where a loop over them is slow without optimization.
    let untouched = vec![0xee; 8 << 20];
    for closes in [false, true, false, true, false, true] {
        let Some((a, mut b, _from, mut to, _table)) = shared(8 << 20) else { return };
        b.copies.help_from(1);
        b.push();
        // It may have been so quick that nothing is left to be broken off.
        let in_hand = usize::from(b.copies.help.id.is_some());
        if closes {
            drop(b);
        } else {
            assert_eq!((b.copies.abort().recvs.len(), b.received.len()), (in_hand, 1 - in_hand));
        }
        // The application has its buffer again.
        to.fill(0xee);
        for _ in 0..100 {
            std::thread::yield_now();
        }
        assert!(to == untouched, "something was written later");
        drop(a);
    }
}

#[test]
fn a_sender_that_leaves_the_rest_to_receiver_and_helper() {
    let Some((mut a, mut b, from, to, _table)) = shared(8 << 20) else { return };
    b.copies.help_from(1);
    b.push();
    a.drain().expect("sound");
    // One turn, then its process may not write any more.
    a.push();
    let stored = a.moved;
    a.copies.no_write = true;
    while b.received.is_empty() {
        a.push();
        b.push();
        while b.drain().expect("sound") {}
    }
    assert_eq!((a.moved, b.moved + a.moved, from == to), (stored, 8 << 20, true));
}

/// The receiver has copied the last chunk, and the helper, whose part is played here, is in the middle of an earlier one.
#[test]
fn a_message_is_complete_when_the_helpers_chunk_is_there() {
    let Some((a, mut b, from, to, _table)) = shared(8 << 20) else { return };
    let Copies { rx, help, target, engines, .. } = &mut b.copies;
    let Some(Coming { from: pieces, state: State::Copying(c), .. }) = rx.get_mut(&1) else { panic!("not matched") };
    let Stage::Claiming(share) = c.stage else { panic!("not shared") };
    let (mine, theirs) = b.link.claim_words().expect("both segments");
    let task = Task {
        from: pieces.clone(),
        to: (&*c.req.iov).into(),
        wanted: c.wanted,
        chunk: c.chunk,
        target: *target,
        loan: None,
        engines: *engines,
        words: (mine.clone(), theirs.clone()),
    };
    assert!(help.job.offer(task, share));
    (help.id, c.stage) = (Some(1), Stage::Helped);
    let job = help.job.clone();
    let stage = AtomicU32::new(0);
    let reach = |n| {
        while stage.load(Ordering::Acquire) < n {
            std::thread::yield_now();
        }
    };
    let early = std::thread::scope(|scope| {
        scope.spawn(|| {
            job.work(
                |task| (&task.words.0, &task.words.1),
                |task, chunk| {
                    stage.store(1, Ordering::Release);
                    reach(2);
                    task.copy(chunk)
                },
            )
        });
        reach(1);
        for _ in 0..100 {
            b.push();
        }
        let early = b.received.len();
        stage.store(2, Ordering::Release);
        while b.received.is_empty() {
            b.push();
        }
        early
    });
    assert_eq!((early, from == to), (0, true));
    drop(a);
}
