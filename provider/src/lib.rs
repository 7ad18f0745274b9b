//! engine
pub mod config;
pub mod error;
pub mod mem;
pub mod peer;
pub mod shm;
pub mod sys;
pub mod types;
pub mod wire;
pub mod completion;
pub mod transport;
pub mod protocol;
pub mod request;
pub mod log;
pub mod select;
pub mod stats;
