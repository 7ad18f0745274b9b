//! Completion counters (fi_cntr(3)): how many operations succeeded, how many failed.

use slab::Slab;

/// A pair of counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter {
    /// Successes.
    pub ok: u64,
    /// Failures.
    pub err: u64,
    /// Endpoints bound to it.
    pub bound: usize,
}

/// A domain's counters. No number is given twice: an operation may outlive the counter that it was to be counted by, and must not be counted by another one then.
#[derive(Default)]
pub struct Counters {
    slots: Slab<(usize, Counter)>,
    opened: usize,
}

/// The lower bits of a number are of its slot, those above count what was opened.
const SLOTS: usize = 1 << 32;

impl Counters {
    /// Adds one. Its number.
    pub fn open(&mut self) -> usize {
        self.opened += 1;
        let entry = self.slots.vacant_entry();
        let number = self.opened * SLOTS + entry.key() % SLOTS;
        entry.insert((number, Counter::default()));
        number
    }

    /// Removes it.
    pub fn close(&mut self, number: usize) {
        if self.contains(number) {
            self.slots.remove(number % SLOTS);
        }
    }

    /// Whether it is open.
    pub fn contains(&self, number: usize) -> bool {
        self.get(number).is_some()
    }

    /// The counter, if it is open.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&Counter> {
        self.slots.get(number % SLOTS).filter(|slot| slot.0 == number).map(|slot| &slot.1)
    }

    /// The counter, to be changed.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Counter> {
        self.slots.get_mut(number % SLOTS).filter(|slot| slot.0 == number).map(|slot| &mut slot.1)
    }
}
