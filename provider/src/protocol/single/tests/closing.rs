//! One side closes its endpoint at any moment: what the sender's buffers hold afterwards is received by nobody, and the receiver's are written by nobody.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::shm::layout::FRONT;
use crate::shm::split::{MAX_CHUNKS, MAX_NUMBER};

/// Two sides with messages under way, and what they are.
struct Scene {
    a: Side,
    b: Side,
    from: Vec<Buffer>,
    to: Vec<Buffer>,
    late: Vec<(usize, RecvReq)>,
    _table: Table,
}

impl Scene {
    fn new(plans: &[Plan], share_min: usize, lent: [Lent; 2]) -> Scene {
        let (mut a, mut b) = sides(share_min);
        let table = Table::default();
        for side in [&mut a, &mut b] {
            aim(side, Reach::Everything, &table);
        }
        lend(&mut a, &mut b, lent[0]);
        lend(&mut b, &mut a, lent[1]);
        let (mut at_a, mut at_b) = (0, 0);
        let from: Vec<_> = plans
            .iter()
            .map(|p| Buffer::new(p.len, p.arenas.0.then_some((&a.arena, &mut at_a))).fill(|k| (k % 251) as u8))
            .collect();
        let to: Vec<_> =
            plans.iter().map(|p| Buffer::new(p.cap, p.arenas.1.then_some((&b.arena, &mut at_b))).fill(|_| 0xee)).collect();
        let mut late = Vec::new();
        for (i, (p, to)) in plans.iter().zip(&to).enumerate() {
            let want = want(i, &cut(to.whole, p.pieces.1));
            b.posted.push(if p.early {
                Some(want)
            } else {
                late.push((i, want));
                None
            });
        }
        for (i, (p, from)) in plans.iter().zip(&from).enumerate() {
            let iov = cut(from.whole, p.pieces.0);
            let lent = if a.copies.takes_loans() { a.arena.lend(&iov, false) } else { 0 };
            let message = Message { lent, presumed: p.presumed, ..message(i, &iov) };
            Single::start(&mut a.wire(), &message, &req(i)).expect("offered");
        }
        Scene { a, b, from, to, late, _table: table }
    }

    fn turn(&mut self, which: u8) {
        match which {
            0 => self.a.push(),
            1 => self.b.push(),
            2 => _ = self.a.drain().expect("sound"),
            3 => _ = self.b.drain().expect("sound"),
            _ => {
                let late = std::mem::take(&mut self.late);
                self.late = late.into_iter().filter_map(|(i, want)| self.b.receive_held(i, want).map(|want| (i, want))).collect();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_sender(
        plans in proptest::collection::vec(plan(), 1..4), turns in proptest::collection::vec(0u8..5, 0..30), share_min in 1usize..200_000,
        lent in (lent(), lent()),
    ) {
        if !kernel_allows() {
            return Ok(());
        }
        let mut scene = Scene::new(&plans, share_min, [lent.0, lent.1]);
        turns.into_iter().for_each(|turn| scene.turn(turn));
        scene.a.link.close();
        scene.from = std::mem::take(&mut scene.from).into_iter().map(|buffer| buffer.fill(|_| 0xdd)).collect();
        for turn in [3, 4, 1].repeat(20) {
            scene.turn(turn);
        }
        for r in &scene.b.received {
            let to = scene.to[r.req.ctx.0].bytes();
            prop_assert!(to[..r.placed].iter().enumerate().all(|(k, byte)| *byte == (k % 251) as u8), "message {}", r.req.ctx.0);
        }
        // What was not received is still known, and fails when the end of the sender is heard.
        let failed = scene.b.copies.abort().recvs.len() + scene.b.streams.abort().recvs.len();
        let unmatched = scene.b.posted.iter().flatten().count() + scene.late.len();
        prop_assert_eq!(scene.b.received.len() + failed + unmatched, plans.len());
    }

    #[test]
    fn the_receiver(
        plans in proptest::collection::vec(plan(), 1..4), turns in proptest::collection::vec(0u8..5, 0..30), share_min in 1usize..200_000,
        lent in (lent(), lent()), helped in any::<bool>(),
    ) {
        if !kernel_allows() {
            return Ok(());
        }
        let mut scene = Scene::new(&plans, share_min, [lent.0, lent.1]);
        scene.b.copies.help_from(if helped { 1 } else { usize::MAX });
        turns.into_iter().for_each(|turn| scene.turn(turn));
        scene.b.copies.share_no_more(&scene.b.link);
        prop_assert!(!scene.b.copies.is_being_written(&scene.b.link), "nobody is at it");
        scene.b.link.close();
        let before: Vec<_> = scene.to.iter().map(Buffer::bytes).collect();
        for turn in [2, 0].repeat(20) {
            scene.turn(turn);
        }
        for (i, (to, before)) in scene.to.iter().zip(before).enumerate() {
            prop_assert!(to.bytes() == before, "message {}", i);
        }
    }
}

/// Another thread is in the middle of writing its part: the receiver waits for it, and for nothing that comes after.
#[test]
fn a_sender_that_is_writing() {
    for _ in 0..60 {
        let Some((mut a, mut b, _from, mut to, _table)) = shared(2 << 20) else { return };
        b.push();
        while a.drain().expect("sound") {}
        let (stop, begun) = (&std::sync::atomic::AtomicBool::new(false), &std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                begun.wait();
                while a.copies.has_work() && !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    a.push();
                }
                a
            });
            begun.wait();
            std::thread::yield_now();
            b.copies.share_no_more(&b.link);
            let begun = std::time::Instant::now();
            while b.copies.is_being_written(&b.link) {
                assert!(begun.elapsed().as_secs() < 60, "it is never through");
                std::thread::yield_now();
            }
            to.fill(0xaa);
            std::thread::sleep(std::time::Duration::from_millis(1));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(to.iter().all(|byte| *byte == 0xaa), "it writes still");
        });
    }
}

/// The helper thread is in the middle of it: it claims nothing more, which would undo that the sender may not.
#[test]
fn a_helper_that_is_copying() {
    let Some((_a, mut b, _from, _to, _table)) = shared(64 << 20) else { return };
    b.copies.help_from(1);
    let begun = std::time::Instant::now();
    let waited = |what: &str| {
        assert!(begun.elapsed().as_secs() < 60, "{what}");
        std::thread::yield_now();
    };
    // Those of other tests may be all that there are at the moment.
    while b.copies.help.id.is_none() {
        waited("nobody helps");
        b.copies.call_helper(1, &b.link);
    }
    let claimed = |b: &Side| b.mine.word(FRONT).load(Ordering::Relaxed);
    while claimed(&b) & u64::from(MAX_CHUNKS) == 0 {
        waited("it claims nothing");
    }
    b.copies.share_no_more(&b.link);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(claimed(&b), MAX_NUMBER << MAX_CHUNKS.count_ones());
}
