//! Messages that wait for a receive. See the module's header for the method.

use super::chains::{ChainKey, Chains};
use super::ordered::{Id, Ordered};
use super::{Class, DROP_AT, Key, MAX_CLASSES, SCAN_LIMIT};
use crate::types::PeerId;

/// Names one held message, and after its removal nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldId(Id);

/// Messages that came before their receive, found in the order of arrival.
pub struct Unexpected<U> {
    queue: Ordered<Held<U>>,
    /// For each class that receives had to search deeply with, chains of all messages.
    indexes: Vec<Index>,
    /// Emptied chains, kept for their memory.
    spare: Vec<Chains>,
}

struct Held<U> {
    tag: u64,
    src: PeerId,
    item: U,
}

/// All messages, chained by what a receive of this class compares.
struct Index {
    class: Class,
    chains: Chains,
}

impl Index {
    #[inline]
    fn chain(&self, tag: u64, src: PeerId) -> ChainKey {
        ChainKey::new(0, self.class.common(tag, src))
    }

    #[inline]
    fn append(&mut self, tag: u64, src: PeerId, slot: u32) {
        self.chains.append(self.chain(tag, src), slot);
    }
}

impl<U> Default for Unexpected<U> {
    fn default() -> Self {
        Self::new()
    }
}

impl<U> Unexpected<U> {
    /// No messages; allocates nothing.
    pub fn new() -> Self {
        Unexpected { queue: Ordered::new(), indexes: Vec::new(), spare: Vec::new() }
    }

    /// How many messages are held.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no message is held.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Holds a message, the youngest now.
    #[inline]
    pub fn push(&mut self, tag: u64, src: PeerId, item: U) -> HeldId {
        let id = self.queue.push(Held { tag, src, item });
        for index in &mut self.indexes {
            index.append(tag, src, id.slot);
        }
        HeldId(id)
    }

    /// The oldest message that fits a receive. Does not remove it.
    #[inline]
    pub fn find(&mut self, key: &Key) -> Option<HeldId> {
        let class = Class::of(key);
        if let Some(index) = self.indexes.iter().find(|index| index.class == class) {
            return self.probe(index, key);
        }
        for (id, held) in self.queue.iter().take(SCAN_LIMIT) {
            if key.matches(held.tag, held.src) {
                return Some(HeldId(id));
            }
        }
        if self.len() <= SCAN_LIMIT {
            return None;
        }
        self.find_far(key)
    }

    /// The search in a long queue that has no index for this class yet.
    #[cold]
    fn find_far(&mut self, key: &Key) -> Option<HeldId> {
        if self.indexes.len() < MAX_CLASSES {
            let index = self.build_index(Class::of(key));
            let found = self.probe(&index, key);
            self.indexes.push(index);
            return found;
        }
        self.queue.iter().skip(SCAN_LIMIT).find(|(_, held)| key.matches(held.tag, held.src)).map(|(id, _)| HeldId(id))
    }

    #[inline]
    fn probe(&self, index: &Index, key: &Key) -> Option<HeldId> {
        let src = key.source.unwrap_or(PeerId(0));
        let slot = index.chains.head(index.chain(key.tag, src))?;
        self.queue.at(slot).map(|(id, _)| HeldId(id))
    }

    /// The item of a message, unless it is gone.
    #[inline]
    pub fn get(&self, id: HeldId) -> Option<&U> {
        Some(&self.queue.get(id.0)?.item)
    }

    /// The item of a message to change it, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, id: HeldId) -> Option<&mut U> {
        Some(&mut self.queue.get_mut(id.0)?.item)
    }

    /// The tag and the source of a message, unless it is gone.
    #[inline]
    pub fn tag_and_source(&self, id: HeldId) -> Option<(u64, PeerId)> {
        let held = self.queue.get(id.0)?;
        Some((held.tag, held.src))
    }

    /// Removes a message, unless it is gone already.
    #[inline]
    pub fn remove(&mut self, id: HeldId) -> Option<U> {
        let held = self.queue.remove(id.0)?;
        if !self.indexes.is_empty() {
            for index in &mut self.indexes {
                let chain = index.chain(held.tag, held.src);
                index.chains.unlink(chain, id.0.slot);
            }
            if self.len() <= DROP_AT {
                self.drop_indexes();
            }
        }
        Some(held.item)
    }

    /// Removes the messages from this source; returns them oldest first.
    pub fn remove_source(&mut self, src: PeerId) -> Vec<U> {
        let doomed: Vec<Id> = self.queue.iter().filter(|(_, held)| held.src == src).map(|(id, _)| id).collect();
        doomed.into_iter().filter_map(|id| self.remove(HeldId(id))).collect()
    }

    /// Removes all messages; returns them oldest first.
    pub fn drain(&mut self) -> Vec<U> {
        self.clear_indexes();
        let all = self.queue.drain();
        all.into_iter().map(|held| held.item).collect()
    }

    /// Source `from` turned out to be `to`: its messages are now that peer's. Ids and the order
    /// of arrival stay.
    pub fn rename_source(&mut self, from: PeerId, to: PeerId) {
        let mut renamed = false;
        for held in self.queue.values_mut() {
            if held.src == from {
                held.src = to;
                renamed = true;
            }
        }
        if renamed {
            // The next search that needs one builds it anew.
            self.clear_indexes();
        }
    }

    #[cold]
    fn build_index(&mut self, class: Class) -> Index {
        let chains = self.spare.pop().unwrap_or_default();
        let mut index = Index { class, chains };
        for (id, held) in self.queue.iter() {
            index.append(held.tag, held.src, id.slot);
        }
        index
    }

    /// Gives up all indexes when few entries are left.
    #[cold]
    fn drop_indexes(&mut self) {
        for index in &mut self.indexes {
            for (_, held) in self.queue.iter() {
                let chain = index.chain(held.tag, held.src);
                index.chains.forget(chain);
            }
        }
        // The chains are empty now, so that this costs nothing, however large the maps are.
        self.clear_indexes();
    }

    fn clear_indexes(&mut self) {
        for mut index in self.indexes.drain(..) {
            index.chains.clear();
            self.spare.push(index.chains);
        }
    }

    /// Slots, chains of all indexes, and the number of indexes.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> (usize, usize, usize) {
        let chains = self.indexes.iter().map(|index| index.chains.len()).sum();
        (self.queue.slots(), chains, self.indexes.len())
    }
}
