//! Completion counters (fi_cntr(3)): how many operations succeeded, how many failed.

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
