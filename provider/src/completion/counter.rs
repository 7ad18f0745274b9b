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

/// A domain's counters.
#[derive(Default)]
pub struct Counters(Slab<Counter>);

impl Counters {
    /// Adds one. Its number, which may be that of one that was closed.
    pub fn open(&mut self) -> usize {
        self.0.insert(Counter::default())
    }

    /// Removes it.
    pub fn close(&mut self, number: usize) {
        self.0.try_remove(number);
    }

    /// Whether it is open.
    pub fn contains(&self, number: usize) -> bool {
        self.0.contains(number)
    }

    /// The counter, if it is open.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&Counter> {
        self.0.get(number)
    }

    /// The counter, to be changed.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Counter> {
        self.0.get_mut(number)
    }
}
