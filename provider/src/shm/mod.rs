//! The shared-memory segment: its map ([`layout`]), the record ring in it ([`ring`]), the ready-set of an endpoint ([`bell`]),
//! cells of payload that change hands ([`cells`]), what a writer must do for its reader to notice ([`stance`]), and how two processes ([`split`]), and two threads of one ([`hands`]),
//! copy one message together, and where a message may go before it is there ([`invite`]). Knows lines and positions; knows no tag, no peer, no packet.

pub mod bell;
#[cfg(not(loom))]
pub mod cells;
pub mod hands;
pub mod invite;
pub mod layout;
pub mod ring;
#[cfg(not(loom))]
pub mod segment;
pub mod split;
pub mod stance;
