//! engine
pub mod config;
pub mod error;
pub mod types;
pub mod mem;
pub mod shm;
pub mod sys;
