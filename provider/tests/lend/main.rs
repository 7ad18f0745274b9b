//! Messages out of, and into, sealed memory that the program itself has mapped (`FI_RUSTMX_LEND`): it is lent to the peer, and what was
//! unmapped or replaced is not lent any more. No message may have a byte of what was there before.
//!
//! | file | what it is |
//! |---|---|
//! | `plain.rs` | what is lent, how, and until when; each in a process of its own |
//! | `torture.rs` | two processes that change their memory between messages: as root and as an ordinary user, with other allocators, without userfaultfd, without a monitor |
//! | `during.rs` | memory that is changed while a message out of it is under way, and the next message; with other allocators, without a monitor |
//! | `into.rs` | the same of memory that a message goes into, and that the sender writes |
//! | `invited.rs` | memory that the sender writes before it is asked to, if a receive invites it, and receives that are cancelled meanwhile |
//! | `change.rs` | what is done to memory in both |
//! | `rights.rs` | whether the peer could write it |
//! | `filter.rs` | a process without userfaultfd |
//!
//! Addresses and files are those of the cache's tests (`../cache/space.rs`).

#![allow(clippy::result_large_err, reason = "an error entry is passed on as the engine gave it")]

mod change;
#[path = "../common/mod.rs"]
mod common;
mod during;
#[allow(dead_code, reason = "the network's tests use the rest")]
mod filter;
mod into;
mod invited;
mod plain;
mod rights;
#[path = "../cache/space.rs"]
#[allow(dead_code, reason = "the cache's tests use the rest")]
mod space;
mod torture;

use common::{Msg, Node, Want, acquaint, all_ok, attr, pattern, run};
use rustmx::cache::Oversight;
use rustmx::config::force::Forced;
use rustmx::domain::Machine;
use rustmx::sys::clock::Clock;
use rustmx::{Config, Domain, Log};
use std::sync::Arc;

/// Without the kernel's copies, and shared wherever that can be: what is copied in mapped memory is what `mapped`, `fetched` and `stored` count.
fn forced() -> Config {
    Config { cma: 1, protocol: Forced::parse("mapped").0, ..Config::default() }
}

/// A node whose door is told of changes to memory, or not.
fn node(config: Config, oversight: Oversight) -> Node {
    let venue = Arc::new(Machine::new(&config, Log::silent()).overseen(oversight));
    Node::enabled(Domain::at_venue(Arc::new(config), Log::silent(), Clock::machine(), venue), attr())
}

/// A pair that has answered each other.
fn pair(a: Config, b: Config) -> (Node, Node) {
    let (mut a, mut b) = (node(a, Oversight::Tireless), node(b, Oversight::Tireless));
    acquaint(&mut a, &mut b);
    (a, b)
}

/// Memory at an address.
#[expect(unsafe_code, reason = "the tests map it by themselves, and hold one slice of it at a time")]
fn bytes(address: usize, len: usize) -> &'static mut [u8] {
    // SAFETY: see above.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }
}

/// One message of `n` bytes from an address to a buffer, written just before and checked to the last byte.
#[track_caller]
fn message(a: &mut Node, b: &mut Node, from: usize, into: &mut [u8], seed: usize) {
    let n = into.len();
    let to_b = a.knows(b);
    bytes(from, n).copy_from_slice(&pattern(n, seed));
    into.fill(0xee);
    b.recv(Want::tag(5), into).expect("recv");
    a.send(Msg::new(to_b, 5), bytes(from, n)).expect("send");
    let got = run(&mut [a, b], &[1, 1]);
    assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
    assert!(into == pattern(n, seed), "{n} bytes, seed {seed}");
}
