//! Time as the engine sees it: nanoseconds that only go up, from the machine or from a simulation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A source of time.
#[derive(Clone)]
pub enum Clock {
    /// CLOCK_MONOTONIC since some start.
    Machine(Instant),
    /// What a simulation says.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock.
    pub fn machine() -> Clock {
        Clock::Machine(Instant::now())
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        match self {
            Clock::Machine(start) => start.elapsed().as_nanos() as u64,
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }
}
