//! A process with more peers than rings that each of its polls looks at.

use crate::common::{Deadline, Msg, Node, Want, attr, run, watchdog};
use crate::scene::{connections, network};
use rustix::net::{AddressFamily, SocketType};
use rustmx::{Addr, Name, UserCtx};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

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

/// A kernel that keeps no more calls drops them, and the caller's kernel asks again after 1, 3 and 7 s, together with all that were dropped then: the
/// engine calls anew by itself. (That all get in is simulated, in `tests/growth`.)
#[test]
fn a_call_that_is_not_taken_is_begun_anew() {
    let _dog = watchdog("calls", 60);
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
    rustix::net::listen(&listener, 0).expect("listen");
    let place = SocketAddr::try_from(rustix::net::getsockname(&listener).expect("name")).expect("address");
    let filled: Vec<_> = (0..3).filter_map(|_| TcpStream::connect_timeout(&place, Duration::from_millis(50)).ok()).collect();
    assert!(filled.len() < 3, "the backlog has no end");
    let mut caller = Node::with(network(), attr());
    let to = caller.av.insert(&Name::new(5, 0, 6, None).at(&[(place.ip(), 0)], place.port()));
    caller.send(Msg::new(to, 1), &mut [1; 8]).expect("send");
    let (mut calls, until) = (BTreeSet::new(), Deadline::new(20));
    while calls.len() < 2 {
        let under_way = |ports: [u16; 2]| (ports[1] == place.port()).then_some(ports[0]);
        calls.extend(connections().iter().filter(|row| row.calls()).filter_map(|row| under_way(row.ports)));
        assert!(calls.len() > 1 || caller.poll().iter().all(|e| e.is_ok()), "given up");
        until.check(|| format!("one call only: {calls:?}"));
    }
}

/// Who alone has spoken for long is listened to first; the others are still heard within a few turns.
#[test]
fn one_that_talks_all_the_time_hides_nobody() {
    let _dog = watchdog("talker", 60);
    let (mut hub, mut peers) = crowd(2);
    let mut hears = |hub: &mut Node, who: usize, tag: u64| {
        let mut into = [0u8; 8];
        hub.recv(Want::tag(tag), &mut into).expect("recv");
        let (peer, to) = &mut peers[who];
        peer.send(Msg::new(*to, tag), &mut [7; 8]).expect("send");
        while peer.poll().is_empty() {}
        (1..1000).find(|_| hub.poll().iter().any(|e| e.is_ok_and(|c| c.ctx == UserCtx(tag as usize)))).expect("turns")
    };
    for round in 0..3u64 {
        for i in 0..200 {
            hears(&mut hub, 0, 1000 * (round + 1) + i);
        }
        let turns = hears(&mut hub, 1, 1000 * (round + 1) + 900);
        assert!(turns <= 24, "{turns} turns");
    }
}
