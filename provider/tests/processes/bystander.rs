//! A process that answers, whatever becomes of the others.

use crate::common::process::{self, Copy, say};
use crate::common::{Deadline, Event, Msg, Node, Want, pattern};
use crate::{STEADY, ok, peer, start};
use rustmx::{Addr, CompFlags, Error, OpFlags};

/// A well-behaved bystander: answers every [`STEADY`] message with its payload, for ever.
pub fn steady(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say(&node.name().to_string());
    process::follow_parent();
    let mut buf = vec![0u8; 20_000];
    node.recv(Want::tag(STEADY), &mut buf).expect("recv");
    loop {
        for e in node.poll() {
            let c = ok(&e);
            if c.flags.contains(CompFlags::RECV) {
                let mut back = buf[..c.len].to_vec();
                while node.send(Msg::new(to, STEADY).with(OpFlags::DELIVERY_COMPLETE), &mut back) == Err(Error::Again) {
                    node.domain.progress();
                }
                // The buffer lives until the send is complete.
                let until = Deadline::new(10);
                while !node.poll().iter().any(|e| ok(e).flags.contains(CompFlags::SEND)) {
                    until.check(|| "no acknowledgement".into());
                }
                node.recv(Want::tag(STEADY), &mut buf).expect("recv");
            }
        }
    }
}

/// One exchange with the bystander.
pub struct Bystander {
    pub copy: Copy,
    addr: Addr,
    out: Vec<u8>,
    into: Vec<u8>,
    pub rounds: usize,
    waiting: bool,
}

impl Bystander {
    pub fn new(node: &Node) -> Bystander {
        let mut copy = start(&format!("steady {}", node.name()));
        let addr = peer(node, &copy.hear());
        Bystander { copy, addr, out: Vec::new(), into: Vec::new(), rounds: 0, waiting: false }
    }

    pub fn turn(&mut self, node: &mut Node) {
        if self.waiting {
            return;
        }
        let n = [10usize, 300, 5000, 20_000][self.rounds % 4];
        self.out = pattern(n, self.rounds);
        self.into = vec![0u8; n];
        if node.send(Msg::new(self.addr, STEADY), &mut self.out).is_ok() {
            node.recv(Want::tag(STEADY).from(self.addr), &mut self.into).expect("recv");
            self.waiting = true;
        }
    }

    /// Takes an event if it is this exchange's.
    pub fn took(&mut self, e: &Event) -> bool {
        let Ok(c) = e else { return false };
        if c.ctx.0 as u64 != STEADY {
            return false;
        }
        if c.flags.contains(CompFlags::RECV) {
            assert!(self.into == self.out, "round {}", self.rounds);
            self.rounds += 1;
            self.waiting = false;
        }
        true
    }
}
