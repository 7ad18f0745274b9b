//! Both queues against the naive oracle, and what they may cost.

use std::cell::Cell;
use std::hash::BuildHasher;

use proptest::prelude::*;
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

fn key(tag: u64, ignore: u64, source: Option<u32>) -> Key {
    Key {
        tag,
        ignore,
        source: source.map(PeerId),
    }
}

/// More masks than [`MAX_CLASSES`], most tags equal under some of them.
fn any_key() -> impl Strategy<Value = Key> {
    let ignore = prop::sample::select(vec![0, 0, 0, 1, 2, 3, 6, !0]);
    let source = prop::option::of(0..3u32);
    (0..6u64, ignore, source).prop_map(|(tag, ignore, source)| key(tag, ignore, source))
}

fn any_message() -> impl Strategy<Value = (u64, PeerId)> {
    (0..6u64, (0..3u32).prop_map(PeerId))
}

#[derive(Clone, Debug)]
enum Op {
    /// Posts a receive, or looks for a message and takes it.
    Receive(Key),
    /// The same for many at once, to get past the thresholds.
    Receives(Vec<Key>),
    /// Pushes a message, or looks for a receive and takes it.
    Message((u64, PeerId)),
    Messages(Vec<(u64, PeerId)>),
    /// Looks without taking.
    Peek(Key, (u64, PeerId)),
    /// Removes what was added this many entries ago, whether or not it is still there.
    Remove(usize),
    /// Removes the oldest that is a multiple of this.
    Cancel(u32),
    RemoveSource(PeerId),
    Rename(PeerId, PeerId),
    Drain,
}

fn any_op() -> impl Strategy<Value = Op> {
    let peer = || (0..3u32).prop_map(PeerId);
    prop_oneof![
        12 => any_key().prop_map(Op::Receive),
        2 => prop::collection::vec(any_key(), 1..12).prop_map(Op::Receives),
        12 => any_message().prop_map(Op::Message),
        2 => prop::collection::vec(any_message(), 1..12).prop_map(Op::Messages),
        4 => (any_key(), any_message()).prop_map(|(key, message)| Op::Peek(key, message)),
        4 => (0..30usize).prop_map(Op::Remove),
        2 => (1..5u32).prop_map(Op::Cancel),
        1 => peer().prop_map(Op::RemoveSource),
        1 => (peer(), peer()).prop_map(|(from, to)| Op::Rename(from, to)),
        1 => Just(Op::Drain),
    ]
}

/// Takes the first element that satisfies a predicate.
fn take<X>(all: &mut Vec<X>, pred: impl FnMut(&X) -> bool) -> Option<X> {
    all.iter().position(pred).map(|at| all.remove(at))
}

/// Takes all elements that satisfy a predicate.
fn take_all<X>(all: &mut Vec<X>, mut pred: impl FnMut(&X) -> bool) -> Vec<X> {
    let (taken, left) = std::mem::take(all).into_iter().partition(|x| pred(x));
    *all = left;
    taken
}

/// [`Posted`] and its oracle; items are serial numbers.
#[derive(Default)]
struct PostedModel {
    real: Posted<u32>,
    naive: Vec<(Key, u32)>,
    ids: Vec<PostId>,
}

impl PostedModel {
    fn post(&mut self, key: Key) {
        let item = self.ids.len() as u32;
        self.ids.push(self.real.post(key, item));
        self.naive.push((key, item));
    }

    fn message(&mut self, (tag, src): (u64, PeerId)) {
        let found = self.real.find(tag, src);
        let item = found.and_then(|id| self.real.remove(id));
        let want = take(&mut self.naive, |(key, _)| key.matches(tag, src));
        assert_eq!(item, want.map(|(_, item)| item));
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Receive(key) => self.post(key),
            Op::Receives(keys) => keys.into_iter().for_each(|key| self.post(key)),
            Op::Message(message) => self.message(message),
            Op::Messages(all) => all.into_iter().for_each(|message| self.message(message)),
            Op::Peek(_, (tag, src)) => {
                let found = self.real.find(tag, src);
                let item = found.and_then(|id| self.real.get_mut(id).copied());
                let want = self.naive.iter().find(|(key, _)| key.matches(tag, src));
                assert_eq!(item, want.map(|&(_, item)| item));
            }
            Op::Remove(back) => {
                let Some(serial) = self.ids.len().checked_sub(back + 1) else {
                    return;
                };
                let want = take(&mut self.naive, |&(_, item)| item == serial as u32);
                let item = self.real.remove(self.ids[serial]);
                assert_eq!(item, want.map(|(_, item)| item));
                assert_eq!(self.real.get_mut(self.ids[serial]), None);
            }
            Op::Cancel(divisor) => {
                let found = self.real.find_by(|_, item| item % divisor == 0);
                let item = found.and_then(|id| self.real.remove(id));
                let want = take(&mut self.naive, |(_, item)| item % divisor == 0);
                assert_eq!(item, want.map(|(_, item)| item));
            }
            Op::RemoveSource(src) => {
                let want = take_all(&mut self.naive, |(key, _)| key.source == Some(src));
                let want: Vec<u32> = want.into_iter().map(|(_, item)| item).collect();
                assert_eq!(self.real.remove_source(src), want);
            }
            Op::Rename(from, to) => {
                self.real.rename_source(from, to);
                for (key, _) in &mut self.naive {
                    if key.source == Some(from) {
                        key.source = Some(to);
                    }
                }
            }
            Op::Drain => {
                let want: Vec<u32> = self.naive.drain(..).map(|(_, item)| item).collect();
                assert_eq!(self.real.drain(), want);
            }
        }
    }

    fn check(&self) {
        let mut seen = Vec::new();
        self.real.find_by(|&key, &item| {
            seen.push((key, item));
            false
        });
        assert_eq!(seen, self.naive);
        assert_eq!(self.real.len(), self.naive.len());
        let (_, chains, indexed) = self.real.footprint();
        assert!(chains <= if indexed { self.real.len() } else { 0 });
    }
}

/// [`Unexpected`] and its oracle; items are serial numbers.
#[derive(Default)]
struct UnexpectedModel {
    real: Unexpected<u32>,
    naive: Vec<(u64, PeerId, u32)>,
    ids: Vec<HeldId>,
}

impl UnexpectedModel {
    fn push(&mut self, (tag, src): (u64, PeerId)) {
        let item = self.ids.len() as u32;
        self.ids.push(self.real.push(tag, src, item));
        self.naive.push((tag, src, item));
    }

    fn receive(&mut self, key: Key) {
        let found = self.real.find(&key);
        let item = found.and_then(|id| self.real.remove(id));
        let want = take(&mut self.naive, |&(tag, src, _)| key.matches(tag, src));
        assert_eq!(item, want.map(|(_, _, item)| item));
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Receive(key) => self.receive(key),
            Op::Receives(keys) => keys.into_iter().for_each(|key| self.receive(key)),
            Op::Message(message) => self.push(message),
            Op::Messages(all) => all.into_iter().for_each(|message| self.push(message)),
            Op::Peek(key, _) => {
                let found = self.real.find(&key);
                let all = found.and_then(|id| {
                    let (tag, src) = self.real.tag_and_source(id)?;
                    Some((tag, src, *self.real.get(id)?))
                });
                let mut naive = self.naive.iter();
                let want = naive.find(|&&(tag, src, _)| key.matches(tag, src));
                assert_eq!(all, want.copied());
            }
            Op::Remove(back) => {
                let Some(serial) = self.ids.len().checked_sub(back + 1) else {
                    return;
                };
                let want = take(&mut self.naive, |&(_, _, item)| item == serial as u32);
                let item = self.real.remove(self.ids[serial]);
                assert_eq!(item, want.map(|(_, _, item)| item));
                assert_eq!(self.real.get(self.ids[serial]), None);
                assert_eq!(self.real.get_mut(self.ids[serial]), None);
                assert_eq!(self.real.tag_and_source(self.ids[serial]), None);
            }
            Op::Cancel(_) => {}
            Op::RemoveSource(dead) => {
                let want = take_all(&mut self.naive, |&(_, src, _)| src == dead);
                let want: Vec<u32> = want.into_iter().map(|(_, _, item)| item).collect();
                assert_eq!(self.real.remove_source(dead), want);
            }
            Op::Rename(from, to) => {
                self.real.rename_source(from, to);
                for (_, src, _) in &mut self.naive {
                    if *src == from {
                        *src = to;
                    }
                }
            }
            Op::Drain => {
                let want: Vec<u32> = self.naive.drain(..).map(|(_, _, item)| item).collect();
                assert_eq!(self.real.drain(), want);
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.real.len(), self.naive.len());
        assert_eq!(self.real.is_empty(), self.naive.is_empty());
        let (_, chains, indexes) = self.real.footprint();
        assert!(indexes <= MAX_CLASSES);
        assert!(chains <= indexes * self.real.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn posted_is_the_oracle(ops in prop::collection::vec(any_op(), 1..150)) {
        let mut model = PostedModel::default();
        for op in ops {
            model.apply(op);
            model.check();
        }
    }

    #[test]
    fn unexpected_is_the_oracle(ops in prop::collection::vec(any_op(), 1..150)) {
        let mut model = UnexpectedModel::default();
        for op in ops {
            model.apply(op);
            model.check();
        }
        let want: Vec<u32> = model.naive.iter().map(|&(_, _, item)| item).collect();
        prop_assert_eq!(model.real.drain(), want);
    }
}

/// 0 .. [`MANY`] in the orders that matter.
fn orders() -> [Vec<u64>; 3] {
    let jumping = (0..MANY).map(|n| n * 37_777 % MANY);
    [
        (0..MANY).collect(),
        (0..MANY).rev().collect(),
        jumping.collect(),
    ]
}

/// What a receive for tag `n` may look like: directed or not, bits ignored that are all 0 anyway.
fn mixed(n: u64) -> Key {
    let ignore = if n % 3 == 0 { 3 << 62 } else { 0 };
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
#[test]
fn indexes_go_and_come() {
    let mut posted = Posted::new();
    let mut held = Unexpected::new();
    for _ in 0..3 {
        for n in 0..10 {
            posted.post(key(n, 0, None), n);
            held.push(n, PEER, n);
        }
        assert!(posted.find(99, PEER).is_none() && posted.footprint().2);
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
    assert_eq!(posted.find(99, PEER), None);
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
    let ids: Vec<PostId> = (0..16)
        .map(|bit| posted.post(key(0, 1 << bit, None), bit))
        .collect();
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
    assert!(spent <= 8 * 1000, "{spent} compares");
}
