//! The ready-set: one page per endpoint in which peers whose ring is not polled directly announce a message.
//!
//! ```text
//! word 0        summary: bit g is set when a word of group g may be non-zero
//! words 64..128 group g = word 64+g: bit b stands for slot 64*g+b
//! ```
//!
//! All peers may write this page, so it holds *hints only*: a wrong bit costs a look at an empty ring, a lost
//! bit is made up for by the turn that every cold ring gets (see `docs/adr/0004-ring.md`). Slots past the last share one with
//! `slot % SLOTS`; the reader looks at every ring that has the slot.
//!
//! Ordering pair: `R3` (ring: group bit, then summary bit, each release) ↔ `A3` (take: summary, then group, each acquire).

use crate::mem::atomic::{Ordering, Words};

/// Slots of a bell.
pub const SLOTS: u32 = 64 * 64;
/// Bytes of a bell's memory.
pub const BYTES: usize = 4096;

const GROUPS: usize = 64;

#[cfg(loom)]
const _: () = assert!(GROUPS == 64);

/// The set over some memory of [`BYTES`] bytes.
pub struct Bell<M> {
    mem: M,
}

impl<M: Words> Bell<M> {
    /// Over zeroed memory, or memory of a peer's bell.
    pub fn new(mem: M) -> Self {
        Bell { mem }
    }

    /// Sets the bit of `slot`: the caller published something in its ring before.
    pub fn ring(&self, slot: u32) {
        let slot = slot % SLOTS;
        let (group, bit) = ((slot / 64) as usize, slot % 64);
        self.mem.word(GROUPS + group).fetch_or(1 << bit, Ordering::AcqRel); // R3
        self.mem.word(0).fetch_or(1 << group, Ordering::AcqRel); // R3
    }

    /// Whether any bit may be set: one load.
    #[inline]
    pub fn rung(&self) -> bool {
        self.mem.word(0).load(Ordering::Relaxed) != 0
    }

    /// Takes all bits out and calls `found` for each slot.
    pub fn take(&self, mut found: impl FnMut(u32)) {
        let mut groups = self.mem.word(0).swap(0, Ordering::AcqRel); // A3
        while groups != 0 {
            let group = groups.trailing_zeros();
            groups &= groups - 1;
            let mut bits = self.mem.word(GROUPS + group as usize).swap(0, Ordering::AcqRel); // A3
            while bits != 0 {
                found(group * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::shared::{Heap, SharedMem};

    #[test]
    fn every_slot_comes_back_once() {
        let bell = Bell::new(SharedMem::new(Heap::new(BYTES)));
        assert!(!bell.rung());
        let slots = [0, 1, 63, 64, 65, 4095, 4096 + 7];
        for s in slots {
            bell.ring(s);
            bell.ring(s);
        }
        assert!(bell.rung());
        let mut got = Vec::new();
        bell.take(|s| got.push(s));
        assert_eq!(got, [0, 1, 7, 63, 64, 65, 4095]);
        assert!(!bell.rung());
        bell.take(|_| panic!("taken twice"));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// A bit that was set is found by this take or by a later one, whatever the interleaving of two ringers in
    /// one group and a taker; and who finds it finds what was published before, else he would look at a ring that is still empty.
    #[test]
    fn no_bit_is_lost() {
        const RINGERS: [u32; 2] = [3, 5];
        loom::model(|| {
            let words = |n| -> Arc<Vec<AtomicU64>> { Arc::new((0..n).map(|_| AtomicU64::new(0)).collect()) };
            let (mem, records) = (words(GROUPS + 2), words(RINGERS.len()));
            let threads = [0, 1].map(|ringer| {
                let (bell, records) = (Bell::new(mem.clone()), records.clone());
                loom::thread::spawn(move || {
                    records[ringer].store(1, Ordering::Relaxed);
                    bell.ring(RINGERS[ringer]);
                })
            });
            let bell = Bell::new(mem);
            let mut got = Vec::new();
            bell.take(|s| {
                let ringer = RINGERS.iter().position(|slot| *slot == s).expect("a slot that rang");
                assert_eq!(records[ringer].load(Ordering::Relaxed), 1, "the bit is here before the record");
                got.push(s);
            });
            for t in threads {
                t.join().expect("ringer");
            }
            bell.take(|s| got.push(s));
            got.sort_unstable();
            got.dedup();
            assert_eq!(got, RINGERS);
        });
    }
}
