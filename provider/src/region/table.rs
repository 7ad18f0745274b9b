//! The table of a domain's regions as peers see it: plain memory of the target, which they read through the kernel
//! (`mem::remote`) and never write. It lets an initiator check key, bounds and rights on the target's terms
//! while the target sleeps.
//!
//! ```text
//! root   one line, where the endpoint's name says (its locator): magic, address of the slots, slots, flags, tag, edition, 0, check
//! slot   one line: state, key, base, length, access, generation, tag, check
//! ```
//! * The tag is this table's own, and stands in the locator too: another table at the same address, of a later domain of the
//!   process or of another process, is not taken for this one, nor are its slots.
//! * Slots form a hash table with linear probing. A slot is free (all zero), taken, or [`WAS_TAKEN`].
//! * A reader may copy a slot while it changes: the check word covers all others, so a torn copy is seen as one.
//! * A closed region's slot changes before its memory is given back, and a generation is never used twice, so that a reader that
//!   finds a slot unchanged knows that it is the same registration. When the table grows, every old slot is wiped.
//! * Slots that were outgrown may be slots of the table again. Each time the root has another edition, so that a reader that found nothing, and the root as it was, knows that there was nothing.

use crate::sys::host;
use crate::types::Access;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the root and of a slot.
pub const LINE_WORDS: usize = 8;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 64;
/// Most slots of a table that a reader believes in.
const MOST: u64 = 1 << 32;
const FEWEST: usize = 16;

const MAGIC: u64 = u64::from_le_bytes(*b"rmxtable");
const TAKEN: u64 = 1;
/// Somebody may be behind it.
const WAS_TAKEN: u64 = 2;

/// Bit of the root's flags: initiators tell the target of what they did (`FI_RMA_EVENT`).
const EVENTS: u64 = 1;
/// The same in a slot, beside the rights: who knows the root already reads only slots.
const SLOT_EVENTS: u64 = 1 << 62;
const _: () = assert!(Access::all().bits() & SLOT_EVENTS == 0);

/// Bits of an address in user space, as long as nobody asks mmap(2) for more.
const ADDRESS_BITS: u32 = 48;

/// Where a table's root is in its process, and which table it is; as one word, for the endpoint's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locator {
    /// Address of the root.
    pub address: u64,
    tag: u16,
}

impl Locator {
    /// The word; 0, which means nowhere, for an address that does not fit.
    pub fn to_word(self) -> u64 {
        if self.address >> ADDRESS_BITS == 0 { self.address | u64::from(self.tag) << ADDRESS_BITS } else { 0 }
    }

    /// What a name says; `None`: nowhere.
    pub fn of_word(word: u64) -> Option<Locator> {
        (word != 0).then_some(Locator { address: word & ((1 << ADDRESS_BITS) - 1), tag: (word >> ADDRESS_BITS) as u16 })
    }
}

/// A copy of one line.
pub type Line = [u64; LINE_WORDS];

fn check(words: &[u64]) -> u64 {
    // Not against malice (who can write here owns the memory anyway), only against copies made in the middle of a change.
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |h: u64, w| (h.rotate_left(23) ^ w).wrapping_mul(0xff51_afd7_ed55_8ccd)) | 1
}

fn sealed(mut line: Line) -> Line {
    line[LINE_WORDS - 1] = check(&line[..LINE_WORDS - 1]);
    line
}

fn is_sound(line: &Line) -> bool {
    line[LINE_WORDS - 1] == check(&line[..LINE_WORDS - 1])
}

fn home(key: u64, slots: u64) -> u64 {
    (key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & (slots - 1)
}

/// What a reader knows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    slots_at: u64,
    slots: u64,
    edition: u64,
    /// Whether the target wants to be told of operations that need nothing of it.
    pub events: bool,
}

impl Root {
    /// Whether a copy, perhaps made while it was being written, is of the root that `at` should lead to: these words of it never change.
    pub fn is_of(line: &Line, at: Locator) -> bool {
        let [magic, _, _, _, tag, ..] = *line;
        magic == MAGIC && tag == u64::from(at.tag)
    }

    /// Validates a copy of the root that `at` should lead to.
    pub fn parse(line: &Line, at: Locator) -> Option<Root> {
        let [_, slots_at, slots, flags, _, edition, ..] = *line;
        let sound = Root::is_of(line, at) && is_sound(line) && slots.is_power_of_two() && slots <= MOST;
        sound.then_some(Root { slots_at, slots, edition, events: flags & EVENTS != 0 })
    }

    /// The addresses at which `key` may be found, in the order to be searched.
    pub fn places(&self, key: u64) -> impl Iterator<Item = u64> + use<> {
        let Root { slots_at, slots, .. } = *self;
        let first = home(key, slots);
        (0..slots).map(move |i| slots_at.wrapping_add(((first + i) & (slots - 1)) * SLOT_BYTES))
    }
}

/// What a reader found in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Never used: a search ends here.
    Free,
    /// Not the key sought.
    Other,
    /// The region.
    Found {
        /// Its first byte, in the target's memory.
        base: u64,
        /// Its bytes.
        len: u64,
        /// Rights of peers.
        access: Access,
        /// Whether the target wants to be told of operations that need nothing of it.
        events: bool,
    },
    /// Copied in the middle of a change: copy it again.
    Torn,
}

impl Slot {
    /// Validates a copy of a slot in a search for `key`.
    pub fn parse(line: &Line, key: u64) -> Slot {
        if *line == Line::default() {
            return Slot::Free;
        }
        if !is_sound(line) {
            return Slot::Torn;
        }
        let [state, its, base, len, access, ..] = *line;
        if state != TAKEN || its != key {
            return Slot::Other;
        }
        Slot::Found { base, len, access: Access::from_bits_truncate(access), events: access & SLOT_EVENTS != 0 }
    }
}

fn write(to: &[AtomicU64], line: &Line) {
    // The check goes first, so that a copy that ends early does not fit; then the rest in any order.
    to[LINE_WORDS - 1].store(0, Ordering::Release);
    for (word, value) in to.iter().zip(line).take(LINE_WORDS - 1) {
        word.store(*value, Ordering::Release);
    }
    to[LINE_WORDS - 1].store(line[LINE_WORDS - 1], Ordering::Release);
}

fn fresh(slots: usize) -> Box<[AtomicU64]> {
    (0..slots * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// The writing side.
pub struct Table {
    root: Box<[AtomicU64]>,
    slots: Box<[AtomicU64]>,
    /// Slots that were outgrown; all wiped. Readers may still look there, so they stay, and are the next ones of their number.
    old: Vec<Box<[AtomicU64]>>,
    edition: u64,
    /// Slots not free.
    used: usize,
    taken: usize,
    generation: u64,
    events: bool,
    tag: u16,
}

impl Default for Table {
    fn default() -> Table {
        let (slots, tag) = (fresh(FEWEST), host::random() as u16);
        let table =
            Table { root: fresh(1), slots, old: Vec::new(), edition: 0, used: 0, taken: 0, generation: 0, events: false, tag };
        table.publish();
        table
    }
}

/// Freed memory keeps its bytes for a while: nobody shall take them for a table.
impl Drop for Table {
    fn drop(&mut self) {
        write(&self.root, &Line::default());
        for word in &self.slots {
            word.store(0, Ordering::Release);
        }
    }
}

impl Table {
    /// Where readers find the root.
    pub fn locator(&self) -> Locator {
        Locator { address: self.root.as_ptr() as u64, tag: self.tag }
    }

    /// Asks initiators to tell of every operation from now on, also those who have looked before.
    pub fn want_events(&mut self) {
        if self.events {
            return;
        }
        self.events = true;
        self.publish();
        for at in (0..self.count()).filter(|at| self.state(*at).0 == TAKEN).collect::<Vec<_>>() {
            let [_, key, base, len, access, ..]: Line = std::array::from_fn(|i| self.slot(at)[i].load(Ordering::Relaxed));
            self.seal(at, key, base, len, Access::from_bits_truncate(access));
        }
    }

    /// Writes a region into a slot.
    fn seal(&mut self, at: usize, key: u64, base: u64, len: u64, access: Access) {
        self.generation += 1;
        let rights = access.bits() | if self.events { SLOT_EVENTS } else { 0 };
        write(self.slot(at), &sealed([TAKEN, key, base, len, rights, self.generation, self.tag.into(), 0]));
    }

    fn count(&self) -> usize {
        self.slots.len() / LINE_WORDS
    }

    fn publish(&self) {
        let flags = if self.events { EVENTS } else { 0 };
        let tag = self.tag.into();
        write(&self.root, &sealed([MAGIC, self.slots.as_ptr() as u64, self.count() as u64, flags, tag, self.edition, 0, 0]));
    }

    fn slot(&self, at: usize) -> &[AtomicU64] {
        &self.slots[at * LINE_WORDS..(at + 1) * LINE_WORDS]
    }

    /// The slots to be searched for `key`, in order.
    fn places(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let count = self.count();
        let first = home(key, count as u64) as usize;
        (0..count).map(move |i| (first + i) & (count - 1))
    }

    fn state(&self, at: usize) -> (u64, u64) {
        let slot = self.slot(at);
        (slot[0].load(Ordering::Relaxed), slot[1].load(Ordering::Relaxed))
    }

    /// Publishes a region; its key must not be published.
    pub fn insert(&mut self, key: u64, base: u64, len: u64, access: Access) {
        if (self.used + 1) * 2 > self.count() {
            self.grow();
        }
        self.put(key, base, len, access);
    }

    fn put(&mut self, key: u64, base: u64, len: u64, access: Access) {
        if let Some(at) = self.places(key).find(|at| self.state(*at).0 != TAKEN) {
            self.used += usize::from(self.state(at).0 == 0);
            self.taken += 1;
            self.seal(at, key, base, len, access);
        }
    }

    /// Withdraws a region. From now on readers that look find it gone.
    pub fn remove(&mut self, key: u64) {
        let mut places = self.places(key).take_while(|at| self.state(*at).0 != 0);
        if let Some(at) = places.find(|at| self.state(*at) == (TAKEN, key)) {
            self.taken -= 1;
            self.generation += 1;
            write(self.slot(at), &sealed([WAS_TAKEN, 0, 0, 0, 0, self.generation, self.tag.into(), 0]));
        }
    }

    /// Makes room, if only by sweeping out slots that were taken.
    fn grow(&mut self) {
        let count = ((self.taken + 1) * 4).next_power_of_two().max(FEWEST);
        let again = self.old.iter().position(|old| old.len() == count * LINE_WORDS);
        let bigger = again.map_or_else(|| fresh(count), |at| self.old.swap_remove(at));
        self.edition += 1;
        let old = std::mem::replace(&mut self.slots, bigger);
        (self.used, self.taken) = (0, 0);
        for slot in old.chunks_exact(LINE_WORDS) {
            let word = |i: usize| slot[i].load(Ordering::Relaxed);
            if word(0) == TAKEN {
                self.put(word(1), word(2), word(3), Access::from_bits_truncate(word(4)));
            }
        }
        self.publish();
        for word in &old {
            word.store(0, Ordering::Release);
        }
        self.old.push(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn copy(words: &[AtomicU64]) -> Line {
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }

    /// As a peer does it, but by ordinary loads.
    fn look_up(table: &Table, key: u64) -> Option<(u64, u64, Access)> {
        let root = Root::parse(&copy(&table.root), table.locator()).expect("a sound root");
        assert_eq!(root.slots_at, table.slots.as_ptr() as u64);
        for at in root.places(key) {
            let slot = ((at - root.slots_at) / SLOT_BYTES) as usize;
            match Slot::parse(&copy(table.slot(slot)), key) {
                Slot::Free => return None,
                Slot::Other => {}
                Slot::Found { base, len, access, .. } => return Some((base, len, access)),
                Slot::Torn => panic!("torn without a writer"),
            }
        }
        None
    }

    proptest! {
        #[test]
        fn readers_find_what_a_map_holds(ops in proptest::collection::vec((any::<bool>(), 0u64..40, any::<u32>()), 0..400)) {
            let (mut table, mut map) = (Table::default(), HashMap::new());
            let keys = |k: u64| if k.is_multiple_of(3) { k << 56 | 1 } else { k };
            for (add, key, len) in ops {
                let key = keys(key);
                if add && !map.contains_key(&key) {
                    table.insert(key, 4096 * u64::from(len), len.into(), Access::REMOTE_READ);
                    map.insert(key, len);
                } else if map.remove(&key).is_some() {
                    table.remove(key);
                }
                for k in (0..40).map(keys) {
                    let want = map.get(&k).map(|len| (4096 * u64::from(*len), u64::from(*len), Access::REMOTE_READ));
                    prop_assert_eq!(look_up(&table, k), want);
                }
            }
            prop_assert!(table.count() <= 512);
        }

        /// A copy whose words come from two moments is never taken for either, unless it equals one.
        #[test]
        fn torn_copies_are_seen(a in any::<[u64; 4]>(), b in any::<[u64; 4]>(), mask in any::<u8>()) {
            let line = |w: [u64; 4], g| sealed([TAKEN, 7, w[0], w[1], w[2] & 0x3000, g, w[3], 0]);
            let (x, y) = (line(a, 1), line(b, 2));
            let mixed: Line = std::array::from_fn(|i| if mask >> i & 1 == 0 { x[i] } else { y[i] });
            if mixed != x && mixed != y {
                prop_assert_eq!(Slot::parse(&mixed, 7), Slot::Torn);
            }
        }
    }

    /// A reader that has the old root finds nothing behind it, neither what is withdrawn nor what was moved.
    #[test]
    fn an_outgrown_table_is_empty() {
        let mut table = Table::default();
        for key in 0..FEWEST as u64 {
            table.insert(key, 4096, 10, Access::REMOTE_READ);
        }
        assert_eq!((table.old.len(), table.count() > FEWEST), (1, true));
        assert!(table.old[0].iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert!((0..FEWEST as u64).all(|key| look_up(&table, key).is_some()));
    }

    /// A reader that looked while slots were filled for a second time has not missed anything without knowing.
    #[test]
    fn slots_in_use_again_are_told_apart() {
        let mut table = Table::default();
        let mut roots = Vec::new();
        for key in 0..100 {
            let root = Root::parse(&copy(&table.root), table.locator()).expect("a sound root");
            if roots.last() != Some(&root) {
                roots.push(root);
            }
            table.insert(key, 1, 1, Access::empty());
            table.remove(key);
        }
        assert!(roots.len() > 4, "swept out now and then");
        let distinct: std::collections::HashSet<u64> = roots.iter().map(|root| root.edition).collect();
        let places: std::collections::HashSet<u64> = roots.iter().map(|root| root.slots_at).collect();
        assert_eq!((distinct.len(), places.len()), (roots.len(), 2));
    }

    /// A domain was closed, and the next one's table lies in the same place.
    #[test]
    fn a_table_is_not_taken_for_another() {
        let (mut one, mut other) = (Table::default(), Table::default());
        for (table, tag) in [(&mut one, 1), (&mut other, 2)] {
            table.tag = tag;
            table.publish();
            table.insert(7, 4096, 10, Access::REMOTE_WRITE);
        }
        let there = Locator { address: 0, tag: 1 };
        assert!(Root::parse(&copy(&one.root), there).is_some());
        assert_eq!(Root::parse(&copy(&other.root), there), None);
        let slot = |t: &Table| copy(t.slot(t.places(7).next().expect("a place")));
        assert_ne!(slot(&one), slot(&other), "what was remembered of the one must not fit the other");
        assert_eq!(Locator::of_word(one.locator().to_word()), Some(one.locator()));
        assert_eq!(Locator::of_word(0), None);
        assert_eq!(Locator { address: 1 << 50, tag: 3 }.to_word(), 0);
    }

    #[test]
    fn many_keys_that_come_and_go_need_no_more_room() {
        let mut table = Table::default();
        for key in 0..100_000 {
            table.insert(key, 1, 1, Access::empty());
            table.remove(key);
        }
        assert_eq!((table.count(), look_up(&table, 99_999)), (FEWEST, None));
        assert_eq!(table.old.len(), 1, "of what was swept out");
    }
}
