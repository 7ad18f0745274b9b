//! engine
pub mod config;
pub mod error;
pub mod mem;
pub mod peer;
pub mod shm;
pub mod sys;
pub mod types;
pub mod wire;
