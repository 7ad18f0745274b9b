//! Memory: what a peer may write ([`shared`]), what the application owns ([`user`]), and every
//! payload copy between the two. The upper floors copy through safe calls only.

pub mod atomic;
pub mod pool;
pub mod shared;
pub mod user;
