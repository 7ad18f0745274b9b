//! Memory: what a peer may write ([`shared`]), what the application owns ([`user`]), and every
//! payload copy between the two, also by vectors and past the caches ([`engine`], [`vectors`]) and where `memcpy` stumbles ([`aliased`]). The upper floors copy through safe calls only.

#[cfg(not(loom))]
pub mod aliased;
#[cfg(all(test, not(loom)))]
pub mod apart;
pub mod atomic;
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod remote;
#[cfg(not(loom))]
pub mod shared;
#[cfg(not(loom))]
pub mod user;
#[cfg(all(not(loom), target_arch = "x86_64", not(miri)))]
pub mod vectors;
