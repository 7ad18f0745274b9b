//! What peers say to each other: record headers ([`header`]), words of one-sided operations ([`order`]) and first contact ([`hello`]).
//!
//! Pure formats: bytes and words in, validated values out. Nothing here touches shared memory.

pub mod header;
pub mod hello;
pub mod offer;
pub mod order;
