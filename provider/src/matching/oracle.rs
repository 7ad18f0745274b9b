//! Both queues against the naive oracle, a list that is searched from the start. Few tags, sources
//! and masks, so that most entries collide; low thresholds (see `mod.rs`), so that indexes come
//! and go all the time.

use proptest::prelude::*;

use super::tests::key;
use super::*;

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
        let want = take(&mut self.naive, |(key, _)| key.matches(tag, src)).map(|(_, item)| item);
        // Both ways to take it, in turn.
        let (mut oldest, all, serve) = (None, self.real.len(), self.naive.len().is_multiple_of(2));
        let served = self.real.serve_oldest(tag, src, |item| {
            oldest = Some(*item);
            serve
        });
        assert_eq!(served, oldest.is_some() && serve);
        assert_eq!(self.real.len(), all - usize::from(served));
        if served {
            assert_eq!(oldest, want);
            return;
        }
        if oldest.is_some() {
            // It was looked at and left; now it is taken.
            assert_eq!((self.real.take_oldest(), self.real.len()), (want, all - 1));
            return;
        }
        let found = self.real.find(tag, src);
        let item = found.and_then(|id| self.real.remove(id));
        assert_eq!(item, want);
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
