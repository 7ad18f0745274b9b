//! Endpoints of one process over real sockets and real segments: what the public API promises for messages. Who is reached, and what
//! it costs, is in `contact.rs` (a program of its own).
//!
//! | file | what it is |
//! |---|---|
//! | `messages.rs` | every size at every level of completion, to others and to oneself; a peer that closes |
//! | `again.rs` | messages whose buffer looks as it did last time |
//! | `matching.rs` | who gets which message: tags, sources, peeks, claims, cancelled receives |
//! | `buffers.rs` | where the bytes go: short buffers, multi-receive buffers, lists of segments |
//! | `inject.rs` | buffers that are given back at once, and what that costs where nobody receives |
//! | `cells.rs` | long messages that answer each other over open rings |
//! | `crowds.rs` | more of it than there is room for: floods, streams both ways, many peers |
//! | `memory.rs` | bytes that this process has allocated |
//! | `silent.rs` | receives that name a peer of which nothing was heard yet |

mod again;
mod buffers;
mod cells;
#[path = "../common/mod.rs"]
mod common;
mod crowds;
mod inject;
mod matching;
mod memory;
mod messages;
mod silent;

use common::{Deadline, Event, Node};
use rustmx::{Addr, Completion};

/// One size of each protocol, and one that takes many turns of the ring.
const SIZES: [usize; 5] = [0, 40, 3000, 60_000, 1_000_000];

fn pair() -> (Node, Node, Addr, Addr) {
    let (a, b) = (Node::new(), Node::new());
    let (to_b, from_a) = (a.knows(&b), b.knows(&a));
    (a, b, to_b, from_a)
}

#[track_caller]
fn ok(e: &Event) -> Completion {
    match e {
        Ok(c) => *c,
        Err(e) => panic!("{e:?}"),
    }
}

/// Lets what was sent arrive, where nothing is to complete on `b`.
fn settle(a: &mut Node, b: &mut Node, unexpected: u64) {
    let until = Deadline::new(10);
    while b.stats().unexpected < unexpected {
        b.quiet(1);
        a.domain.progress();
        until.check(|| format!("{:?}", b.stats()));
    }
    for _ in 0..50 {
        b.quiet(1);
        a.domain.progress();
    }
}

/// As [`settle`], where sends complete meanwhile.
fn settle_any(a: &mut Node, b: &mut Node, unexpected: u64, sent: &mut Vec<Event>) {
    let until = Deadline::new(10);
    while b.stats().unexpected < unexpected {
        b.quiet(1);
        sent.extend(a.poll());
        until.check(|| format!("{:?}", b.stats()));
    }
    for _ in 0..50 {
        b.quiet(1);
        sent.extend(a.poll());
    }
}
