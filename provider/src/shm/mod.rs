//! The shared-memory segment: its map ([`layout`]), the record ring in it ([`ring`]), and the
//! ready-set of an endpoint ([`bell`]). Knows lines and positions; knows no tag, no peer, no packet.

pub mod bell;
pub mod layout;
pub mod ring;
#[cfg(not(loom))]
pub mod segment;
