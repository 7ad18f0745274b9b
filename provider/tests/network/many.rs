//! A process with more peers than rings that each of its polls looks at.

use crate::common::{Msg, Node, Want, attr, run, watchdog};
use crate::scene::network;
use rustmx::{Addr, UserCtx};

/// One that listens, and peers that have spoken to it and can be spoken to.
fn crowd(n: usize) -> (Node, Vec<(Node, Addr)>) {
    let mut hub = Node::with(network(), attr());
    let mut peers: Vec<(Node, Addr)> = Vec::new();
    for at in 0..n {
        let mut peer = Node::with(network(), attr());
        let to = peer.knows(&hub);
        let mut into = [0u8; 8];
        hub.recv(Want::tag(at as u64), &mut into).expect("recv");
        peer.send(Msg::new(to, at as u64), &mut [at as u8; 8]).expect("send");
        run(&mut [&mut hub, &mut peer], &[1, 1]);
        assert_eq!(into, [at as u8; 8]);
        peers.push((peer, to));
    }
    (hub, peers)
}

/// What is in the kernel is received within a few turns, whoever it is from: not when a peer's turn among all comes.
#[test]
fn nobody_waits_for_his_turn() {
    let _dog = watchdog("turns", 60);
    let (mut hub, mut peers) = crowd(60);
    for round in 0..3u64 {
        for (at, (peer, to)) in peers.iter_mut().enumerate().rev() {
            let tag = 1000 * (round + 1) + at as u64;
            let mut into = [0u8; 8];
            hub.recv(Want::tag(tag), &mut into).expect("recv");
            peer.send(Msg::new(*to, tag), &mut [7; 8]).expect("send");
            while peer.poll().is_empty() {}
            // The packet is delivered by the sender's own system call; should the kernel put that off, it is another turn or two.
            let turns =
                (1..1000).find(|_| hub.poll().iter().any(|e| e.is_ok_and(|c| c.ctx == UserCtx(tag as usize)))).expect("turns");
            assert!(turns <= 8, "peer {at}: {turns} turns");
        }
    }
}
