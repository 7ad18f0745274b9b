//! The machine: one file per kernel facility, thin and typed. Knows no packet, no tag, no peer.

pub mod clock;
pub mod cpu;
pub mod fork;
pub mod host;
pub mod memfd;
pub mod poller;
pub mod socket;
