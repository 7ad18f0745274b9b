//! See `tests/fuzz/entry.rs`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzz/entry.rs"]
#[allow(dead_code, reason = "one target, one entry")]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::keyed::keyed(bytes));
