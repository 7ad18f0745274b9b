//! `librustmx_fi.so`: the libfabric provider `rustmx`.
//!
//! This crate is a shell over the engine (crate `rustmx`): it casts, converts, calls, and maps errors. It decides nothing about
//! messages and keeps no protocol state. In reading order:
//!
//! | file | what |
//! |---|---|
//! | `entry` | `fi_prov_ini`, the table libfabric loads us by |
//! | [`abi`] | the C structures, checked against the installed headers |
//! | `boundary` | every cast of a handle; every error number |
//! | `convert` | C arguments to engine types and back |
//! | `info` | `fi_getinfo`: what we offer against what was asked |
//! | `resolve` | node and service strings to names |
//! | `object` | one file per kind of `fid` |
//! | `ops` | one file per data-path table; every slot listed, refused ones too |
//! | `params`, `log` | libfabric's parameters and log, found at run time |
//!
//! Nothing of libfabric is imported: several copies of it may live in one process, and one binary serves 1.17 to 2.6
//! (contract 2.5).

// Several processes share a standard error: `rustmx::log::tell` writes whole lines.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

// A panic must never unwind into C, and after one the rings shared with other processes cannot be trusted
// (docs/adr/0003-panics.md). The test harness always unwinds, hence the two exceptions.
#[cfg(all(panic = "unwind", not(debug_assertions), not(test), not(feature = "__internal-test")))]
compile_error!(
    "librustmx_fi.so must be built with panic = \"abort\" (build it from the workspace root, whose profiles say so); \
     to run its tests with --release, add --features __internal-test"
);

pub mod abi;
mod boundary;
mod convert;
mod entry;
mod info;
mod log;
mod object;
mod ops;
mod params;
mod resolve;

pub use entry::fi_prov_ini;
