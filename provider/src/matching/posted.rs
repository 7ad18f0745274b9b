//! Receives that wait for a message. See the module's header for the method.

use smallvec::SmallVec;

use super::chains::{ChainKey, Chains};
use super::ordered::{Id, Ordered};
use super::{BUILD_COST, Class, DROP_AT, Key, MAX_CLASSES, SCAN_LIMIT};
use crate::types::PeerId;

/// Names one posted receive, and after its removal nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostId(Id);

/// Posted receives, matched in the order of posting.
pub struct Posted<T> {
    queue: Ordered<Receive<T>>,
    index: Index,
    /// Compares past [`SCAN_LIMIT`] since there was an index last, or few entries.
    owed: usize,
}

struct Receive<T> {
    key: Key,
    /// The place of its class in [`Index::classes`], or [`SURPLUS`]; nothing while there is no
    /// index.
    class: u8,
    item: T,
}

/// The "class" of receives for whose mask there was no class left: one chain, to be scanned.
const SURPLUS: u8 = MAX_CLASSES as u8;

/// For each class, the chains of receives that want the same.
#[derive(Default)]
struct Index {
    /// Whether it is kept; if not, it is empty.
    live: bool,
    /// Classes with their number of receives; a class without any gives way to another mask.
    classes: SmallVec<[(Class, usize); MAX_CLASSES]>,
    surplus: usize,
    chains: Chains,
}

impl Index {
    /// The chain that a receive of this class is in.
    #[inline]
    fn chain(class: u8, key: &Key) -> ChainKey {
        if class == SURPLUS {
            return ChainKey::new(class.into(), (0, 0));
        }
        let common = Class::of(key).common(key.tag, key.source.unwrap_or(PeerId(0)));
        ChainKey::new(class.into(), common)
    }

    /// Counts a receive in and says which class it is in.
    #[inline]
    fn join(&mut self, key: &Key) -> u8 {
        let wanted = Class::of(key);
        let mut place = self.classes.iter().position(|&(class, _)| class == wanted);
        if place.is_none() {
            place = self.classes.iter().position(|&(_, members)| members == 0);
            match place {
                Some(at) => self.classes[at].0 = wanted,
                None if self.classes.len() < MAX_CLASSES => {
                    place = Some(self.classes.len());
                    self.classes.push((wanted, 0));
                }
                None => {}
            }
        }
        match place {
            Some(at) => {
                self.classes[at].1 += 1;
                at as u8
            }
            None => {
                self.surplus += 1;
                SURPLUS
            }
        }
    }

    /// Takes a receive out.
    #[inline]
    fn leave(&mut self, class: u8, key: &Key, slot: u32) {
        match self.classes.get_mut(usize::from(class)) {
            Some((_, members)) => *members -= 1,
            None => self.surplus -= 1,
        }
        self.chains.unlink(Self::chain(class, key), slot);
    }

    fn clear(&mut self) {
        self.live = false;
        self.classes.clear();
        self.surplus = 0;
        self.chains.clear();
    }
}

impl<T> Default for Posted<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Posted<T> {
    /// No receives; allocates nothing.
    pub fn new() -> Self {
        Posted { queue: Ordered::new(), index: Index::default(), owed: 0 }
    }

    /// How many receives are posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no receive is posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts a receive, the youngest now.
    #[inline]
    pub fn post(&mut self, key: Key, item: T) -> PostId {
        let indexed = self.index.live;
        let class = if indexed { self.index.join(&key) } else { 0 };
        let id = self.queue.push(Receive { key, class, item });
        if indexed {
            let chain = Index::chain(class, &key);
            self.index.chains.append(chain, id.slot);
        }
        PostId(id)
    }

    /// The oldest receive that this message fits. Does not remove it.
    #[inline]
    pub fn find(&mut self, tag: u64, src: PeerId) -> Option<PostId> {
        // What most searches find; no index is faster than this.
        match self.queue.first() {
            None => return None,
            Some((id, receive)) if receive.key.matches(tag, src) => return Some(PostId(id)),
            Some(_) => {}
        }
        self.find_further(tag, src)
    }

    /// Lets `serve` have the oldest receive of all, if this message fits it: most do. Removes the receive if `serve` says that it is done, and returns whether
    /// that was so. [`find`](Self::find) looks at the others, too.
    #[inline(always)]
    pub fn serve_oldest(&mut self, tag: u64, src: PeerId, serve: impl FnOnce(&mut T) -> bool) -> bool {
        let Some((slot, receive)) = self.queue.first_mut() else { return false };
        let (class, key) = (receive.class, receive.key);
        let done = key.matches(tag, src) && serve(&mut receive.item);
        if done {
            self.queue.remove_first();
            self.removed(class, &key, slot);
        }
        done
    }

    /// Removes the oldest receive of all.
    pub fn take_oldest(&mut self) -> Option<T> {
        let id = self.queue.first().map(|(id, _)| PostId(id))?;
        self.remove(id)
    }

    #[inline(never)]
    fn find_further(&mut self, tag: u64, src: PeerId) -> Option<PostId> {
        if self.index.live {
            return self.probe(tag, src);
        }
        let mut scanned = 0;
        let found = self.queue.iter().inspect(|_| scanned += 1).find(|(_, receive)| receive.key.matches(tag, src));
        let found = found.map(|(id, _)| PostId(id));
        self.owe(scanned);
        found
    }

    /// A search read `scanned` entries. An index is built when such searches have cost as much as building it does, so that
    /// one odd message in a long queue does not make every other operation pay for it.
    #[inline]
    fn owe(&mut self, scanned: usize) {
        self.owed += scanned.saturating_sub(SCAN_LIMIT);
        if self.owed > BUILD_COST * self.len() {
            self.owed = 0;
            self.build_index();
        }
    }

    /// The oldest of what each class has for this message.
    #[inline(never)]
    fn probe(&self, tag: u64, src: PeerId) -> Option<PostId> {
        let index = &self.index;
        let mut best: Option<Id> = None;
        for (place, &(class, members)) in index.classes.iter().enumerate() {
            if members == 0 {
                continue;
            }
            let chain = ChainKey::new(place, class.common(tag, src));
            let head = index.chains.head(chain);
            match head.and_then(|slot| self.queue.at(slot)) {
                Some((id, _)) if best.is_none_or(|best| id.seq < best.seq) => best = Some(id),
                _ => {}
            }
        }
        if index.surplus > 0 {
            let mut slot = index.chains.head(ChainKey::new(SURPLUS.into(), (0, 0)));
            while let Some((id, receive)) = slot.and_then(|slot| self.queue.at(slot)) {
                if best.is_some_and(|best| best.seq < id.seq) {
                    break;
                }
                if receive.key.matches(tag, src) {
                    best = Some(id);
                    break;
                }
                slot = Some(index.chains.next(id.slot));
            }
        }
        best.map(PostId)
    }

    /// The item of a receive, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, id: PostId) -> Option<&mut T> {
        Some(&mut self.queue.get_mut(id.0)?.item)
    }

    /// Removes a receive, unless it is gone already.
    #[inline]
    pub fn remove(&mut self, id: PostId) -> Option<T> {
        let receive = self.queue.remove(id.0)?;
        self.removed(receive.class, &receive.key, id.0.slot);
        Some(receive.item)
    }

    /// A receive is not in the queue any more.
    #[inline]
    fn removed(&mut self, class: u8, key: &Key, slot: u32) {
        if self.index.live {
            self.leave_index(class, key, slot);
        } else if self.len() <= DROP_AT {
            self.owed = 0;
        }
    }

    #[inline(never)]
    fn leave_index(&mut self, class: u8, key: &Key, slot: u32) {
        self.index.leave(class, key, slot);
        if self.len() <= DROP_AT {
            self.drop_index();
        }
    }

    /// The oldest receive that satisfies a predicate.
    pub fn find_by(&self, mut pred: impl FnMut(&Key, &T) -> bool) -> Option<PostId> {
        self.queue.iter().find(|(_, receive)| pred(&receive.key, &receive.item)).map(|(id, _)| PostId(id))
    }

    /// Removes the receives that are directed at this source; returns them oldest first.
    pub fn remove_source(&mut self, src: PeerId) -> Vec<T> {
        let doomed: Vec<Id> =
            self.queue.iter().filter(|(_, receive)| receive.key.source == Some(src)).map(|(id, _)| id).collect();
        doomed.into_iter().filter_map(|id| self.remove(PostId(id))).collect()
    }

    /// Removes all receives; returns them oldest first.
    pub fn drain(&mut self) -> Vec<T> {
        self.index.clear();
        let all = self.queue.drain();
        all.into_iter().map(|receive| receive.item).collect()
    }

    /// Source `from` turned out to be `to`: receives directed at the one are now directed at the
    /// other. Ids and the order of posting stay.
    pub fn rename_source(&mut self, from: PeerId, to: PeerId) {
        let mut renamed = false;
        for receive in self.queue.values_mut() {
            if receive.key.source == Some(from) {
                receive.key.source = Some(to);
                renamed = true;
            }
        }
        if renamed && self.index.live {
            // The next search that needs it builds it anew.
            self.index.clear();
        }
    }

    #[cold]
    fn build_index(&mut self) {
        let ids: Vec<Id> = self.queue.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(receive) = self.queue.get_mut(id) {
                receive.class = self.index.join(&receive.key);
                let chain = Index::chain(receive.class, &receive.key);
                self.index.chains.append(chain, id.slot);
            }
        }
        self.index.live = true;
    }

    /// Gives up the index when few entries are left.
    #[cold]
    fn drop_index(&mut self) {
        for (_, receive) in self.queue.iter() {
            let chain = Index::chain(receive.class, &receive.key);
            self.index.chains.forget(chain);
        }
        // The chains are empty now, so that this costs nothing, however large the map is.
        self.index.clear();
    }

    /// Slots, chains, and whether there is an index.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> (usize, usize, bool) {
        let index = &self.index;
        (self.queue.slots(), index.chains.len(), index.live)
    }
}
