//! What both queues may cost and may keep, and examples; `oracle.rs` has what they answer.

use std::cell::Cell;
use std::hash::BuildHasher;

use rustc_hash::FxBuildHasher;

use super::chains::ChainKey;
use super::*;

thread_local! {
    static COMPARES: Cell<u64> = const { Cell::new(0) };
}

/// Called by [`Key::matches`].
pub(super) fn count_compare() {
    COMPARES.set(COMPARES.get() + 1);
}

/// Compares that `work` needed.
fn compares(work: impl FnOnce()) -> u64 {
    let before = COMPARES.get();
    work();
    COMPARES.get() - before
}

const MANY: u64 = 100_000;
const PEER: PeerId = PeerId(1);

/// A receive.
pub(super) fn key(tag: u64, ignore: u64, source: Option<u32>) -> Key {
    Key { tag, ignore, source: source.map(PeerId) }
}

/// 0 .. [`MANY`] in the orders that matter.
fn orders() -> [Vec<u64>; 3] {
    let jumping = (0..MANY).map(|n| n * 37_777 % MANY);
    [(0..MANY).collect(), (0..MANY).rev().collect(), jumping.collect()]
}

/// What a receive for tag `n` may look like: directed or not, bits ignored that are all 0 anyway.
fn mixed(n: u64) -> Key {
    let ignore = if n.is_multiple_of(3) { 3 << 62 } else { 0 };
    key(n, ignore, (n % 3 == 1).then_some(PEER.0))
}

#[test]
fn many_posted_receives_cost_little() {
    for order in orders() {
        let spent = compares(|| {
            let mut posted = Posted::new();
            for n in 0..MANY {
                posted.post(mixed(n), n);
            }
            for n in order {
                assert_eq!(posted.find(n + MANY, PEER), None);
                let id = posted.find(n, PEER);
                assert_eq!(id.and_then(|id| posted.remove(id)), Some(n));
            }
        });
        assert!(spent <= 10 * MANY, "{spent} compares");
    }
}

#[test]
fn many_unexpected_messages_cost_little() {
    for order in orders() {
        let spent = compares(|| {
            let mut held = Unexpected::new();
            for n in 0..MANY {
                held.push(n, PEER, n);
            }
            for n in order {
                assert_eq!(held.find(&mixed(n + MANY)), None);
                let id = held.find(&mixed(n));
                assert_eq!(id.and_then(|id| held.remove(id)), Some(n));
            }
        });
        assert!(spent <= 10 * MANY, "{spent} compares");
    }
}

/// Keys that differ in few, in the uppermost, or in widely spread bits fill the places of a hash
/// map of their size like random ones, which put up to about 9 into one place.
#[test]
fn keys_of_any_shape_are_spread() {
    let shapes: [fn(u64) -> (u64, u32); 8] = [
        |n| (n, 3),
        |n| (n << 16, 3),
        |n| (n << 32, 3),
        |n| (n << 47, 3),
        |n| ((n & 0xff) << 56 | n >> 8, 3),
        |n| ((n & 0xff) << 56 | (n >> 8 & 0xff) << 32 | n >> 16, 3),
        |n| (0, n as u32),
        |n| (n >> 8 << 48, (n & 0xff) as u32),
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        let mut places = vec![0u8; 1 << 17];
        for n in 0..MANY {
            let hash = FxBuildHasher.hash_one(ChainKey::new(number, shape(n)));
            let place = &mut places[hash as usize & 0x1_ffff];
            *place = place.saturating_add(1);
        }
        let fullest = places.into_iter().max().unwrap_or(0);
        assert!(fullest <= 16, "shape {number}: {fullest} in one place");
    }
}

/// An index is given up once few entries are left, and comes back when there are many again.
/// Long searches, until they have cost what an index costs.
fn search_in_vain(posted: &mut Posted<u64>) {
    for _ in 0..=BUILD_COST * posted.len() / (posted.len() - SCAN_LIMIT) {
        assert!(posted.find(99, PEER).is_none());
    }
    assert!(posted.footprint().2, "no index after many long searches");
}

#[test]
fn indexes_go_and_come() {
    let mut posted = Posted::new();
    let mut held = Unexpected::new();
    for _ in 0..3 {
        for n in 0..10 {
            posted.post(key(n, 0, None), n);
            held.push(n, PEER, n);
        }
        assert!(posted.find(99, PEER).is_none() && !posted.footprint().2, "one odd message is no reason for an index");
        search_in_vain(&mut posted);
        assert!(held.find(&key(99, 0, None)).is_none() && held.footprint().2 == 1);
        for n in 0..10 {
            let indexed = 10 - n > DROP_AT as u64;
            assert_eq!(posted.footprint().2, indexed);
            assert_eq!(held.footprint().2, usize::from(indexed));
            let id = posted.find(n, PEER);
            assert_eq!(id.and_then(|id| posted.remove(id)), Some(n));
            let id = held.find(&key(n, 0, None));
            assert_eq!(id.and_then(|id| held.remove(id)), Some(n));
        }
    }
}

#[test]
fn the_mask_decides_and_post_order_goes_across_masks() {
    let mut posted = Posted::new();
    let wild = posted.post(key(0, !0, Some(2)), "wild, other peer");
    let exact = posted.post(key(0x15, 0, None), "exact");
    let masked = posted.post(key(0x1f, 0xf, None), "masked");
    assert_eq!(posted.find(0x15, PEER), Some(exact));
    assert_eq!(posted.find(0x16, PEER), Some(masked));
    assert_eq!(posted.find(0x25, PEER), None);
    assert_eq!(posted.find(0x15, PeerId(2)), Some(wild));
    assert_eq!(posted.remove(exact), Some("exact"));
    assert_eq!(posted.find(0x15, PEER), Some(masked));
}

#[test]
fn stale_ids_name_nothing_even_when_the_slot_is_used_again() {
    let mut posted = Posted::new();
    let old = posted.post(key(1, 0, None), 'a');
    posted.remove(old);
    posted.post(key(1, 0, None), 'b');
    assert_eq!(posted.get_mut(old), None);
    assert_eq!(posted.remove(old), None);
    assert_eq!(posted.len(), 1);
}

/// Posted and cancelled for ever, next to others that keep the index alive.
#[test]
fn cancelled_receives_leave_nothing_behind() {
    let mut posted = Posted::new();
    for n in 0..20 {
        posted.post(key(n, 0, None), n);
    }
    search_in_vain(&mut posted);
    for n in 0..10_000 {
        let same = posted.post(key(5, 0, None), n);
        let fresh = posted.post(key(1000 + n, 0, Some(7)), n);
        posted.remove(fresh);
        posted.remove(same);
        let (slots, chains, indexed) = posted.footprint();
        assert!(indexed && slots <= 22 && chains <= 20);
    }
}

/// Class A takes all the messages, class B has searched once and never comes again.
#[test]
fn messages_taken_by_another_class_leave_nothing_behind() {
    let mut held = Unexpected::new();
    for n in 0..20 {
        held.push(n, PEER, n);
    }
    assert_eq!(held.find(&key(99, 0, None)), None);
    assert_eq!(held.find(&key(99, 0, Some(PEER.0))), None);
    for n in 0..10_000 {
        held.push(1000 + n, PEER, n);
        let id = held.find(&key(1000 + n, 0, Some(PEER.0)));
        assert_eq!(id.and_then(|id| held.remove(id)), Some(n));
        assert!(matches!(held.footprint(), (..=21, 40, 2)));
    }
    while let Some(id) = held.find(&key(0, !0, None)) {
        held.remove(id);
    }
    assert_eq!(held.footprint().2, 0);
}

/// More masks than classes: still right, and masks that are gone make room.
#[test]
fn surplus_masks_are_scanned_and_classes_change_hands() {
    let mut posted = Posted::new();
    let ids: Vec<PostId> = (0..16).map(|bit| posted.post(key(0, 1 << bit, None), bit)).collect();
    for bit in (1..16).rev() {
        let want = (bit > 0).then_some(ids[bit as usize]);
        assert_eq!(posted.find(1 << bit, PEER), want);
    }
    for id in &ids[..8] {
        posted.remove(*id);
    }
    let spent = compares(|| {
        for n in 0..1000 {
            let id = posted.post(key(n, 1 << 40, None), 0);
            assert_eq!(posted.find(n | 1 << 40, PEER), Some(id));
            posted.remove(id);
        }
    });
    assert!(spent <= 9 * 1000, "{spent} compares"); // the oldest, and the eight surplus ones
}
