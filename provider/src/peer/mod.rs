//! Who can be talked to: endpoint names ([`name`]) and the address vector ([`av`]),
//! which processes may share ([`shared`]); which endpoints are of this process ([`here`]).

pub mod av;
pub mod here;
pub mod name;
pub mod shared;
