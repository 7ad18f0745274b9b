//! A process that may have few files open.

use crate::common::{Deadline, Event, Msg, Node, Want, attr, footprint, process, watchdog};
use crate::scene::{Lines, network, open, quiet};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustmx::{Addr, Error};
use std::sync::Arc;

const PEERS: usize = 40;
/// Descriptors that are left for them.
const LEFT: u64 = 20;

fn limit(soft: u64, hard: Option<u64>) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: hard }).expect("a lower limit");
}

fn crowd() -> (Node, Arc<Lines>, Vec<Node>, Vec<Addr>) {
    let (hub, lines) = open(network());
    let peers: Vec<Node> = (0..PEERS).map(|_| Node::with(network(), attr())).collect();
    let to = peers.iter().map(|p| hub.knows(p)).collect();
    (hub, lines, peers, to)
}

/// A message to one of them arrives, whatever else happens.
fn exchange(hub: &mut Node, peer: &mut Node, to: Addr) {
    let (mut out, mut into) = ([7; 8], [0; 8]);
    peer.recv(Want::tag(1), &mut into).expect("recv");
    hub.send(Msg::new(to, 1), &mut out).expect("send");
    let ours = |events: Vec<Event>| events.iter().filter(|e| e.is_ok_and(|c| c.ctx.0 == 1)).count();
    let (mut left, mut came, until) = (0, 0, Deadline::new(20));
    while (left, came) != (1, 1) {
        left += ours(hub.poll());
        came += ours(peer.poll());
        until.check(|| format!("{left} left, {came} came"));
    }
    assert_eq!(into, out);
}

#[test]
fn a_soft_limit_is_raised_when_it_is_reached() {
    process::alone("descriptors::a_soft_limit_is_raised_when_it_is_reached", || {
        let _dog = watchdog("soft", 100);
        let (mut hub, lines, mut peers, to) = crowd();
        let soft = footprint().fds as u64 + LEFT;
        limit(soft, getrlimit(Resource::Nofile).maximum);
        for (peer, to) in peers.iter_mut().zip(to) {
            exchange(&mut hub, peer, to);
        }
        assert!(getrlimit(Resource::Nofile).current != Some(soft));
        assert!(lines.all().is_empty(), "{:?}", lines.all());
    });
}

#[test]
fn a_hard_limit_is_named_and_others_go_on() {
    process::alone("descriptors::a_hard_limit_is_named_and_others_go_on", || {
        let _dog = watchdog("hard", 100);
        let (mut hub, lines, mut peers, to) = crowd();
        // Some of them are met before.
        const EARLY: usize = 5;
        for (peer, to) in peers.iter_mut().zip(&to).take(EARLY) {
            exchange(&mut hub, peer, *to);
        }
        let all = footprint().fds as u64 + LEFT;
        limit(all, Some(all));
        let mut failed = Vec::new();
        for to in &to[EARLY..] {
            failed.extend(hub.send(Msg::new(*to, 2), &mut [1; 8]).err());
        }
        let until = Deadline::new(20);
        while failed.len() < PEERS - EARLY - LEFT as usize - 2 {
            failed.extend(hub.poll().into_iter().filter_map(Result::err).map(|e| e.error));
            until.check(|| format!("{failed:?} of {:#?}", lines.all()));
        }
        assert!(failed.iter().all(|why| *why == Error::NoResources), "{failed:?}");
        let said = lines.all();
        assert!(said.iter().any(|l| l.contains(&format!("({all};")) && l.contains("ulimit -Hn")), "{said:#?}");
        for (peer, to) in peers.iter_mut().zip(&to).take(EARLY) {
            exchange(&mut hub, peer, *to);
        }
    });
}

/// Who calls then waits, and the one that is called says why, also where the log is not shown.
#[test]
fn who_cannot_take_a_call_for_want_of_descriptors_says_so() {
    process::alone("descriptors::who_cannot_take_a_call_for_want_of_descriptors_says_so", || {
        let _dog = watchdog("callee", 60);
        let ((mut hub, said), mut peer) = (quiet(network()), Node::with(network(), attr()));
        let to = peer.knows(&hub);
        peer.send(Msg::new(to, 1), &mut [1; 8]).expect("send");
        // The kernel gives the lowest number that is free, and this one is the first that it may not give.
        let free = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).expect("one more").as_raw_fd() as u64;
        limit(free, Some(free));
        let until = Deadline::new(20);
        while said.all().is_empty() {
            let _ = hub.poll();
            let _ = peer.poll();
            until.check(|| "it says nothing".into());
        }
        let said = said.all();
        assert!(said[0].contains("turned away a caller") && said[0].contains(&format!("({free};")), "{said:?}");
    });
}
