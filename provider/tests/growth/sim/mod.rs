//! Jobs of thousands of ranks in one process: whole engines over a network in memory, with virtual time.
//!
//! | file | what it is |
//! |---|---|
//! | `fabric.rs` | hosts, NICs, backlogs, the queue of what will happen; what things cost |
//! | `line.rs` | one end of a connection: rings that are carried, mirrors |
//! | `door.rs` | the same as the engines see it |
//! | `job.rs` | ranks, each a whole engine |
//! | `program.rs` | what they do: all-to-all, allreduce, all-to-one |
//! | `bruck.rs` | all-to-all in few steps: which blocks travel when |
//!
//! Real are the engine from the application's call to the ring and its connection set-up (`endpoint/contact.rs`). Simulated are the kernel's sockets,
//! the network, and how long everything takes; the CPU time of the engine itself is not in the virtual time, but for its system calls and a figure
//! for each call of the application.

#![allow(dead_code, reason = "the test and the program use their parts")]

pub mod bruck;
pub mod door;
pub mod fabric;
pub mod job;
pub mod line;
pub mod program;
