//! Who can be talked to: endpoint names ([`name`]) and the address vector ([`av`]).

pub mod av;
pub mod name;
