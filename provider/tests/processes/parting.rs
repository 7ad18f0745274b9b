//! A sender that is gone before its messages are looked at.

use crate::common::process::{hear, say};
use crate::common::{Deadline, Msg, Node, Want, not_by_network, pattern, watchdog};
use crate::{ok, peer, start};

const PARTING: [usize; 5] = [0, 40, 232, 4000, 4096];

/// Sends a few messages and is gone: by `exit` without closing anything, by SIGKILL, or in good order.
pub fn sender(name: &str, how: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    let mut bufs: Vec<Vec<u8>> = PARTING.iter().enumerate().map(|(i, n)| pattern(*n, i)).collect();
    for (i, buf) in bufs.iter_mut().enumerate() {
        node.send(Msg::new(to, i as u64), buf).expect("send");
    }
    // The other side need not do anything for that.
    node.complete(PARTING.len());
    say("sent");
    match how {
        "exits" => std::process::exit(0),
        "killed" => drop(hear()),
        _ => drop(node),
    }
}

/// Transmit-complete means: it arrives, whatever becomes of the sender, and the receiver need not even have noticed that somebody called.
#[test]
fn a_message_to_a_computing_process_outlives_its_sender() {
    if not_by_network("who calls and may be called says nothing before he is answered; whoever then dies has sent nothing") {
        return;
    }
    let _dog = watchdog("outlives", 60);
    for how in ["exits", "killed", "closes"] {
        let mut b = Node::new();
        let mut other = start(&format!("sender {} {how}", b.name()));
        assert_eq!(other.hear(), "sent");
        if how == "killed" {
            other.kill();
        } else {
            assert!(other.ended().success());
        }
        // Only now does this process do anything.
        for (i, n) in PARTING.into_iter().enumerate().rev() {
            let mut into = vec![0u8; n];
            b.recv(Want::tag(i as u64), &mut into).expect("recv");
            let until = Deadline::new(5);
            let mut got = Vec::new();
            while got.is_empty() {
                got = b.poll();
                until.check(|| format!("message {i} of a sender that {how} is lost: {:?}", b.stats()));
            }
            assert_eq!(ok(&got[0]).len, n);
            assert_eq!(into, pattern(n, i));
        }
    }
}
