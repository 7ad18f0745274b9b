//! Ways to a peer: the data side of a connection ([`link`]), and how one comes about on this host ([`local`]).

pub mod link;
pub mod local;

