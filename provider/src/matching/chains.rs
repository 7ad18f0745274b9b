//! Hash chains over the slots of a queue: for each [`ChainKey`] the slots that share it, oldest
//! first. A slot is in at most one chain, and a chain without slots is not in the map.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use super::ordered::{Ends, Links, Was};

/// What the slots of one chain have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainKey {
    tag: u64,
    /// The class in the upper half, the source in the lower.
    rest: u64,
}

impl ChainKey {
    /// The chain of a class for what [`super::Class::common`] says.
    #[inline]
    pub(super) fn new(class: usize, (tag, source): (u64, u32)) -> Self {
        ChainKey { tag, rest: (class as u64) << 32 | u64::from(source) }
    }
}

impl Hash for ChainKey {
    /// Applications put ranks and contexts into any part of the tag, often only the uppermost
    /// bits differ. Fx alone turns such keys into few hash values; the folded multiply does not.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Digits of pi, as good as any.
        let tag = u128::from(self.tag ^ 0x2438_6a88_85a3_08d3);
        let rest = u128::from(self.rest ^ 0x1319_8a2e_0370_7344);
        let wide = tag * rest;
        state.write_u64((wide as u64) ^ (wide >> 64) as u64);
    }
}

/// The chains of one index.
#[derive(Default)]
pub(super) struct Chains {
    ends: FxHashMap<ChainKey, Ends>,
    links: Links,
}

impl Chains {
    /// Appends a slot that is in no chain.
    #[inline]
    pub(super) fn append(&mut self, key: ChainKey, slot: u32) {
        let ends = self.ends.entry(key).or_insert(Ends::EMPTY);
        self.links.append(ends, slot);
    }

    /// Takes a slot out of the chain that it is in.
    #[inline]
    pub(super) fn unlink(&mut self, key: ChainKey, slot: u32) {
        match self.links.unlink(slot) {
            Was::Alone => {
                self.ends.remove(&key);
            }
            Was::End(gap) => {
                if let Some(ends) = self.ends.get_mut(&key) {
                    ends.closed(gap);
                }
            }
            Was::Inside => {}
        }
    }

    /// The oldest slot of a chain.
    #[inline]
    pub(super) fn head(&self, key: ChainKey) -> Option<u32> {
        self.ends.get(&key).map(|ends| ends.head())
    }

    /// The slot after this one in its chain; after the last, one that no entry has.
    #[inline]
    pub(super) fn next(&self, slot: u32) -> u32 {
        self.links.next(slot)
    }

    /// Drops one chain whole. Unlike [`Chains::clear`], the cost does not depend on how large the
    /// map once was.
    pub(super) fn forget(&mut self, key: ChainKey) {
        self.ends.remove(&key);
    }

    /// Drops all chains, keeps the memory.
    pub(super) fn clear(&mut self) {
        self.ends.clear();
    }

    /// Chains in the map.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}
