//! The operation tables of endpoints and shared receive contexts: one file per table, every slot listed, refused ones too; and, in
//! `later.rs`, operations that wait for a counter.

pub(crate) mod atomic;
pub(crate) mod cm;
pub(crate) mod later;
pub(crate) mod msg;
mod post;
pub(crate) mod rma;
pub(crate) mod srx;
pub(crate) mod tagged;
