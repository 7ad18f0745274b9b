//! The operation tables of endpoints and shared receive contexts: one file per table, every slot listed, refused ones too. Beside them
//! operations that wait for a counter (`later.rs`), and what several slots share (`post.rs`, `values.rs`).

pub(crate) mod atomic;
pub(crate) mod cm;
pub(crate) mod later;
pub(crate) mod msg;
mod post;
pub(crate) mod rma;
pub(crate) mod srx;
pub(crate) mod tagged;
mod values;
