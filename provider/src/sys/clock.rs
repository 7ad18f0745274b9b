//! Time as the engine sees it: nanoseconds that only go up, from the machine or from a simulation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// The machine's clock, from now on.
    pub fn machine() -> Clock {
        Clock::Machine(Instant::now())
    }

    /// The one of all domains of this process: what their endpoints share is timed by whichever of them looks.
    pub fn of_process() -> Clock {
        static START: OnceLock<Instant> = OnceLock::new();
        Clock::Machine(*START.get_or_init(Instant::now))
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        match self {
            Clock::Machine(start) => start.elapsed().as_nanos() as u64,
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also of domains that were made at different times.
    #[test]
    fn all_domains_go_by_the_same_time() {
        let older = Clock::of_process();
        let before = older.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let younger = Clock::of_process().now();
        assert!(before < younger && younger <= older.now());
    }
}
