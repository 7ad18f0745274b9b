//! The machine: one file per kernel facility, thin and typed. Knows no packet, no tag, no peer.

pub mod absence;
pub mod backing;
pub mod clock;
pub mod cpu;
pub mod event;
pub mod fork;
pub mod heap;
pub mod host;
pub mod interfaces;
pub mod limits;
pub mod links;
pub mod machine;
pub mod membarrier;
pub mod memfd;
pub mod own_file;
pub mod poller;
pub mod processor;
pub mod socket;
pub mod tcp;
pub mod thread;
pub mod timer;
pub mod tracer;
pub mod uring;
pub mod userfault;
pub mod wake;
pub mod zerocopy;
