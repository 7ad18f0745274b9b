//! Processes that compute, exit and die. The other processes are this test program in another role ([`role`]).
//!
//! | file | what it is |
//! |---|---|
//! | `parting.rs` | a sender that is gone before its messages are looked at |
//! | `kill.rs` | death at any moment of traffic of all kinds |
//! | `flood.rs` | a flood that ends with its sender |
//! | `refusal.rs` | a kernel that allows processes to reach each other's memory, and then does not |
//! | `cause.rs` | why it does not: real reasons, and what is said of them |
//! | `apart.rs` | a process whose number nobody outside of its container sees |
//! | `bystander.rs` | a process that answers, whatever becomes of the others |
//!
//! Not here: a bare `fork` has no safe spelling in Rust; the forked child is tried by a C client in `capi/tests`.

mod apart;
mod bystander;
mod cause;
#[path = "../common/mod.rs"]
mod common;
#[path = "../lend/filter.rs"]
#[allow(dead_code, reason = "the tests of lending use the rest")]
mod filter;
mod flood;
mod kill;
mod parting;
mod refusal;

use common::process::{self, Copy, copy};
use common::{Event, Node};
use rustmx::{Addr, Name};

// Tags of the messages.
const PING: u64 = 1;
const PONG: u64 = 2;
const STREAM: u64 = 3;
const STREAM_BACK: u64 = 4;
const SURE: u64 = 5;
const FLOOD: u64 = 6;
const STEADY: u64 = 7;
const UNMATCHED: u64 = 8;
const NEVER: u64 = 9;

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["sender", name, how] => parting::sender(name, how),
        ["injector", name, how] => parting::injector(name, how),
        ["member", name] => parting::member(name),
        ["traffic", name] => kill::traffic(name),
        ["flooder", name] => flood::flooder(name),
        ["steady", name] => bystander::steady(name),
        ["reserved"] => refusal::reserved(),
        ["echo", name] => refusal::echo(name),
        ["inmate", calls] => apart::inmate(calls == "calls"),
        ["asked", ..] => cause::asked(&words[1..]),
        _ => panic!("no such role: {words:?}"),
    }
}

fn start(words: &str) -> Copy {
    copy("role", words)
}

#[track_caller]
fn ok(e: &Event) -> rustmx::Completion {
    match e {
        Ok(c) => *c,
        Err(e) => panic!("{e:?}"),
    }
}

fn peer(node: &Node, name: &str) -> Addr {
    node.av.insert(&name.parse::<Name>().expect("a name"))
}
