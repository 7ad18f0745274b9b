//! Tests that need what not every machine has.
#![allow(dead_code, reason = "each test program uses its part")]

/// Says that something is left out, and why. `RUSTMX_TEST_COMPLETE` has words for what is there all the same: then it is a failure, for what passes in silence
/// would never be missed.
#[track_caller]
pub fn left_out(what: &str, why: &str) {
    let there = std::env::var("RUSTMX_TEST_COMPLETE").unwrap_or_default();
    assert!(!there.split_whitespace().any(|word| word == what), "left out, and RUSTMX_TEST_COMPLETE={there}: {why}");
    println!("left out: {why}");
}
