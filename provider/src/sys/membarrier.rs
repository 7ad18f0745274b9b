//! `membarrier(2)`: a full fence in every thread of other processes, paid for by the caller alone.
//!
//! A process takes part once it has [`register`]ed (Linux 4.16); a filter may forbid the call, and a process that could not
//! register says so to its peers (`shm/layout.rs`, [`CARD_FENCED`](crate::shm::layout::CARD_FENCED)).

use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::OnceLock;

/// Registers this process for [`everywhere`], once. Whether it is registered.
pub fn register() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok())
}

/// When this returns true, every running thread of every registered process has passed a full fence between call and return.
pub fn everywhere() -> bool {
    register() && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Registers this process for [`here`], once. Whether it is registered.
pub fn register_here() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

/// As [`everywhere`], for the threads of this process. Cannot fail after [`register_here`] returned true.
pub fn here() {
    let _ = membarrier(MembarrierCommand::PrivateExpedited);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_registered_process_gets_its_fences() {
        assert_eq!(super::register(), super::everywhere());
        if super::register_here() {
            super::here();
        }
    }
}
