//! The registration cache: what is known of ranges of addresses, as long as the kernel says that nothing happened to them.
//!
//! [`Cache`] is for any kind of value; [`exports::Exports`] is the first user, with [`own::OwnMemory`] before it, which a door asks; [`registered::Registered`] the second, [`attached`] the third. Promises and exceptions: ADR 0015. Reading order:
//! [`news`] (why nothing stale is found), [`monitor`], [`ranges`], and this file.

pub mod news;

#[cfg(not(loom))]
pub mod attached;
#[cfg(not(loom))]
pub mod exports;
#[cfg(not(loom))]
pub mod monitor;
#[cfg(not(loom))]
pub mod own;
#[cfg(not(loom))]
pub mod ranges;
#[cfg(not(loom))]
pub mod recent;
#[cfg(not(loom))]
pub mod registered;
#[cfg(not(loom))]
pub mod watches;

#[cfg(not(loom))]
mod store;
#[cfg(not(loom))]
pub use store::{Cache, Counts, Depends, Oversight};
