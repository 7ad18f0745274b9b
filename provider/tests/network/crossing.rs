//! Both sides call at the same moment: one connection remains, and every message arrives once and in order.

use crate::common::{Deadline, Msg, Node, Rng, Want, attr, watchdog};
use crate::places::free_ports;
use crate::scene::{connections, network, place};
use rustmx::{Addr, Config, Error};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const PAIRS: u64 = 200;
const MESSAGES: usize = 12;
/// Bytes of each message: one of each way to go.
const SIZES: [usize; 4] = [8, 500, 20_000, 200_000];

fn content(i: usize) -> Vec<u8> {
    vec![i as u8 + 1; SIZES[i % SIZES.len()]]
}

/// One side: sends all, receives all. What came, in order.
fn side(node: &mut Node, to: Addr, start: &Barrier, pause: Duration) {
    let mut out: Vec<Vec<u8>> = (0..MESSAGES).map(content).collect();
    let mut into: Vec<Vec<u8>> = (0..MESSAGES).map(|i| vec![0; SIZES[i % SIZES.len()]]).collect();
    for (i, buf) in into.iter_mut().enumerate() {
        // The same tag for all: the order of messages is seen.
        node.recv(Want::tag(7).ctx(1000 + i), buf).expect("recv");
    }
    start.wait();
    let at = Instant::now() + pause;
    while Instant::now() < at {
        std::hint::spin_loop();
    }
    let (mut sent, mut done, mut came) = (0, 0, 0);
    let until = Deadline::new(30);
    while sent < MESSAGES || done < MESSAGES || came < MESSAGES {
        if sent < MESSAGES {
            match node.send(Msg::new(to, 7).ctx(sent), &mut out[sent]) {
                Ok(()) => sent += 1,
                Err(why) => assert_eq!(why, Error::Again),
            }
        }
        for e in node.poll() {
            match e.expect("no error").ctx.0 {
                1000.. => came += 1,
                _ => done += 1,
            }
        }
        until.check(|| format!("{sent} sent, {done} done, {came} came; {:?}", node.stats()));
    }
    for (i, buf) in into.iter().enumerate() {
        assert!(*buf == content(i), "message {i} is another one");
    }
}

#[test]
fn both_call_at_once() {
    let _dog = watchdog("crossing", 150);
    cross(11, network);
}

/// From the ports that they listen at: there both calls may become one connection.
#[test]
fn both_call_at_once_from_one_port_each() {
    let _dog = watchdog("crossing_ports", 150);
    cross(12, || Config { port_range: free_ports(1), ..network() });
}

fn cross(seed: u64, config: impl Fn() -> Config) {
    let mut rng = Rng(seed);
    for pair in 0..PAIRS {
        let (mut a, mut b) = (Node::with(config(), attr()), Node::with(config(), attr()));
        let (to_b, to_a) = (a.knows(&b), b.knows(&a));
        let ports = [place(&a).port(), place(&b).port()];
        // Within the time that a connection takes to be made, in either order.
        let pauses = [0, 0].map(|_: u64| Duration::from_micros(rng.below(if pair % 2 == 0 { 1 } else { 300 })));
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            // Joined one by one: how the scope itself waits the thread sanitizer does not see.
            let first = scope.spawn(|| side(&mut a, to_b, &start, pauses[0]));
            let second = scope.spawn(|| side(&mut b, to_a, &start, pauses[1]));
            for thread in [first, second] {
                thread.join().expect("a side");
            }
        });
        // What was given up goes; one connection has two ends.
        let until = Deadline::new(5);
        let ours = || connections().iter().filter(|r| r.established() && r.ports.iter().any(|p| ports.contains(p))).count();
        while ours() != 2 {
            assert!(a.poll().is_empty() && b.poll().is_empty(), "a message came twice");
            until.check(|| format!("pair {pair}: {} ends of connections", ours()));
        }
        assert_eq!((a.stats().peers, b.stats().peers, a.stats().lost, b.stats().lost), (1, 1, 0, 0), "pair {pair}");
    }
}
