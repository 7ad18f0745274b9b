//! A flood that ends with its sender.

use crate::bystander::Bystander;
use crate::common::process::{hear, say};
use crate::common::{Deadline, Event, Msg, Node, Want, pattern, watchdog};
use crate::{FLOOD, peer, start};
use rustmx::{Error, OpFlags};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the receiver, which keeps the envelopes of all, has memory for.
const MOST: u64 = 400_000;

/// Sends without end what nobody receives, until it is told to stop.
pub fn flooder(name: &str) {
    static STOP: AtomicBool = AtomicBool::new(false);
    let mut node = Node::new();
    let to = peer(&node, name);
    say("here");
    std::thread::spawn(|| STOP.store(hear() == "stop", Ordering::Relaxed));
    let mut buf = pattern(4096, 1);
    let mut i = 0u64;
    while !STOP.load(Ordering::Relaxed) && i < MOST {
        if node.send(Msg::new(to, FLOOD).data(i), &mut buf).is_ok() {
            i += 1;
        }
        node.poll();
    }
    say(&format!("{i}"));
    std::process::exit(0);
}

/// A flood from another process that ends in the middle: what came is whole and in order, the rest is gone without a trace, and
/// somebody else's message gets past it.
#[test]
fn a_flood_that_ends_with_its_sender() {
    let _dog = watchdog("flood_ends", 60);
    let mut node = Node::new();
    let mut bystander = Bystander::new(&node);
    let mut other = start(&format!("flooder {}", node.name()));
    assert_eq!(other.hear(), "here");
    let until = Deadline::new(20);
    let (mut began, mut past) = (None, false);
    while other.child.try_wait().expect("wait").is_none() {
        bystander.turn(&mut node);
        for e in node.poll() {
            assert!(bystander.took(&e), "{e:?}");
        }
        // All sizes, each of which was asked for and answered while the flood went on.
        if !past && node.stats().unexpected > 1000 && bystander.rounds >= *began.get_or_insert(bystander.rounds) + 5 {
            other.tell("stop");
            past = true;
        }
        until.check(|| format!("the flood has no end, or nobody gets past it: {} rounds, {:?}", bystander.rounds, node.stats()));
    }
    let sent: u64 = other.hear().parse().expect("number");
    assert!(past && sent < MOST, "held up by a flood of {sent}");
    let mut into = vec![0u8; 4096];
    let (mut came, mut gone, mut next) = (0u64, false, 0);
    while !gone {
        node.recvv(Want::tag(FLOOD).with(OpFlags::PEEK), &[], true).expect("peek");
        let found = node.poll().iter().filter(|e| !bystander.took(e)).any(Result::is_ok);
        if !found {
            // All that is left was never sent whole. (It may take a moment to be noticed.)
            gone = node.stats().lost > 0 || node.stats().peers < 2;
            until.check(|| format!("{came} of {sent}; {:?}", node.stats()));
            continue;
        }
        node.recv(Want::tag(FLOOD), &mut into).expect("recv");
        let got: Vec<Event> = node.poll().into_iter().filter(|e| !bystander.took(e)).collect();
        match got[..] {
            [Ok(c)] => {
                // Those whose payload was still with the sender are gone; no order is broken by that.
                assert!(c.data >= next && into == pattern(4096, 1), "after message {next}: {c:?}");
                next = c.data + 1;
                came += 1;
            }
            // Matched just before the end was noticed.
            [Err(e)] => assert_eq!(e.error, Error::PeerGone),
            _ => until.check(|| format!("{came} of {sent}: {got:?}")),
        }
    }
    assert!(came > 0 && came <= sent, "{came} of {sent}");
    drop(bystander.copy);
}
