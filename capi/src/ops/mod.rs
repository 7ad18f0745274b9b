//! The operation tables of an endpoint: one file per table, every slot listed, refused ones too.

pub(crate) mod atomic;
pub(crate) mod cm;
pub(crate) mod msg;
mod post;
pub(crate) mod rma;
pub(crate) mod tagged;
