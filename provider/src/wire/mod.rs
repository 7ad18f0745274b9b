//! What peers say to each other: record headers ([`header`]), words of one-sided operations ([`order`]) and, on the control
//! socket, first contact ([`hello`]), what proves a job's key ([`key`]) and memory that is lent ([`loan`]); in shared memory, where a next message may go ([`invitation`]), all of one [`version`].
//!
//! Pure formats: bytes and words in, validated values out. Nothing here touches shared memory.

pub mod frame;
pub mod header;
pub mod hello;
pub mod invitation;
pub mod key;
pub mod loan;
pub mod offer;
pub mod order;
pub mod version;
