//! Who can be talked to: endpoint names ([`name`]) and the address vector ([`av`]),
//! which processes may share ([`shared`]).

pub mod av;
pub mod name;
pub mod shared;
