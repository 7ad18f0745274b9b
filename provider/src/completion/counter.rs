//! Completion counters (fi_cntr(3)): how many operations succeeded, how many failed.

use rustc_hash::FxHashMap;

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
    by_number: FxHashMap<usize, Counter>,
    last: usize,
}

impl Counters {
    /// Adds one. Its number.
    pub fn open(&mut self) -> usize {
        self.last += 1;
        self.by_number.insert(self.last, Counter::default());
        self.last
    }

    /// Removes it.
    pub fn close(&mut self, number: usize) {
        self.by_number.remove(&number);
    }

    /// Whether it is open.
    pub fn contains(&self, number: usize) -> bool {
        self.by_number.contains_key(&number)
    }

    /// The counter, if it is open.
    pub fn get(&self, number: usize) -> Option<&Counter> {
        self.by_number.get(&number)
    }

    /// The counter, to be changed.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Counter> {
        self.by_number.get_mut(&number)
    }
}
