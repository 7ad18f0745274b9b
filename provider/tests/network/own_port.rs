//! Who may use one port calls from the port that he listens at. Of two such places there is one connection, and if both call at the same moment both calls are it.

use crate::common::{Deadline, Msg, Node, Want, attr, pattern, run, watchdog};
use crate::deaf::deaf;
use crate::places::{exchange, free_ports};
use crate::scene::{connections, network, open, place};
use rustmx::config::network::Secret;
use rustmx::{Addr, Config, Error};

/// A process whose range has so many ports.
fn few(ports: u16) -> Config {
    Config { port_range: free_ports(ports), ..network() }
}

fn keyed(config: Config) -> Config {
    Config { auth_key: Secret::new(b"0123456789abcdef"), encrypt: 1, ..config }
}

/// Connections between the ports of these two, each seen from both sides.
fn ends(a: &Node, b: &Node) -> usize {
    let ports = [a, b].map(|node| node.name().port());
    connections().iter().filter(|r| r.established() && r.ports.iter().all(|p| ports.contains(p))).count()
}

#[test]
fn a_process_with_one_port_calls() {
    let _dog = watchdog("one_port_calls", 60);
    let mut nodes = [few(1), few(1), keyed(few(1)), keyed(few(1))].map(|config| Node::with(config, attr()));
    for pair in nodes.chunks_mut(2) {
        let [a, b] = pair else { panic!("two") };
        exchange(a, b, 100_000);
        exchange(b, a, 100_000);
        // It is the one connection that there can be.
        assert_eq!(ends(a, b), 2);
    }
}

/// As many ranks as ports, each with all others, all at once; and the next job comes at once and has the same ports.
#[test]
fn as_many_ports_as_ranks_are_enough_again_and_again() {
    let _dog = watchdog("ranks", 100);
    const RANKS: usize = 6;
    let range = free_ports(RANKS as u16);
    for job in 0..4u8 {
        let mut nodes: Vec<Node> =
            (0..RANKS).map(|_| Node::with(Config { port_range: range.clone(), ..network() }, attr())).collect();
        let names: Vec<_> = nodes.iter().map(Node::name).collect();
        let ports: std::collections::BTreeSet<u16> = names.iter().map(rustmx::Name::port).collect();
        assert_eq!(ports.len(), RANKS, "each has its own");
        let mut out = [job; 8];
        let mut into = [[0u8; 8]; RANKS * RANKS];
        for (i, node) in nodes.iter_mut().enumerate() {
            for j in (0..RANKS).filter(|j| *j != i) {
                node.recv(Want::tag((j * RANKS + i) as u64), &mut into[i * RANKS + j]).expect("recv");
                let to = node.av.insert(&names[j]);
                node.send(Msg::new(to, (i * RANKS + j) as u64), &mut out).expect("send");
            }
        }
        let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
        let got = run(&mut all, &[2 * (RANKS - 1); RANKS]);
        assert!(got.iter().flatten().all(Result::is_ok), "job {job}: {got:?}");
        assert!((0..RANKS * RANKS).all(|at| at / RANKS == at % RANKS || into[at] == [job; 8]));
    }
}

/// Two that have called each other at the same moment, and said `n` bytes: both calls are one connection, and nobody has accepted any.
fn both_call(configs: [Config; 2], n: usize) -> (Node, Node, Addr, Addr) {
    let [mut a, mut b] = configs.map(|config| Node::with(config, attr()));
    deaf(&a, true);
    deaf(&b, true);
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    let (mut out, mut back) = (pattern(n, 1), pattern(n, 2));
    let (mut into, mut into_a) = (vec![0; n], vec![0; n]);
    b.recv(Want::tag(1), &mut into).expect("recv");
    a.recv(Want::tag(2), &mut into_a).expect("recv");
    a.send(Msg::new(to_b, 1), &mut out).expect("send");
    a.quiet(10);
    b.send(Msg::new(to_a, 2), &mut back).expect("send");
    let got = run(&mut [&mut a, &mut b], &[2, 2]);
    assert!(got.iter().flatten().all(Result::is_ok) && into == out && into_a == back, "{got:?}");
    assert_eq!(ends(&a, &b), 2);
    (a, b, to_b, to_a)
}

#[test]
fn two_calls_that_are_one_connection() {
    let _dog = watchdog("simultaneous", 100);
    for round in 0..8 {
        let configs = [few(1), few(1)].map(|config| if round % 2 == 1 { keyed(config) } else { config });
        let (a, b, ..) = both_call(configs, [8, 200_000][round / 2 % 2]);
        assert_eq!((a.stats().peers, b.stats().peers, a.stats().lost, b.stats().lost), (1, 1, 0, 0));
    }
}

/// One of two such callers calls for further connections, whoever of them asks for some.
#[test]
fn further_connections_of_two_that_have_called() {
    let _dog = watchdog("further", 200);
    for round in 0..12 {
        let configs = [few(4), few(4)].map(|config| Config { tcp_lanes: 3, ..config });
        let configs = configs.map(|config| if round % 2 == 1 { keyed(config) } else { config });
        let (mut a, mut b, to_b, to_a) = both_call(configs, 8);
        deaf(&a, false);
        deaf(&b, false);
        let n = 4 << 20;
        let (mut out, mut into, mut back, mut into_a) = (pattern(n, 3), vec![0; n], pattern(n, 4), vec![0; n]);
        let until = Deadline::new(20);
        while [&a, &b].map(|node| node.stats().lanes) != [2; 2] {
            until.check(|| format!("round {round}: {:?}, {:?}", a.stats(), b.stats()));
            let [by_a, by_b] = [round / 2 % 3 != 1, round / 2 % 3 != 0];
            if by_a {
                b.recv(Want::tag(1), &mut into).expect("recv");
                a.send(Msg::new(to_b, 1), &mut out).expect("send");
            }
            if by_b {
                a.recv(Want::tag(2), &mut into_a).expect("recv");
                b.send(Msg::new(to_a, 2), &mut back).expect("send");
            }
            let each = usize::from(by_a) + usize::from(by_b);
            let got = run(&mut [&mut a, &mut b], &[each; 2]);
            assert!(got.iter().flatten().all(Result::is_ok), "{got:?}");
            assert!((!by_a || into == out) && (!by_b || into_a == back), "round {round}: another message");
        }
        assert_eq!((a.stats().lost, b.stats().lost), (0, 0));
    }
}

/// The same between two endpoints of one process and two other ones of the other process: neither call is answered, and both are made again.
#[test]
fn two_calls_of_others_that_are_one_connection() {
    let _dog = watchdog("mistaken", 100);
    for round in 0..4 {
        let configs = [few(3), few(3)].map(|config| if round % 2 == 1 { keyed(config) } else { config });
        let [mut a, mut b] = configs.map(|config| [(); 2].map(|()| Node::with(config.clone(), attr())));
        deaf(&a[0], true);
        deaf(&b[0], true);
        let (to_b, to_a) = (a[0].knows(&b[0]), b[1].knows(&a[1]));
        let (mut out, mut into, mut into_a) = ([7; 8], [0; 8], [0; 8]);
        b[0].recv(Want::tag(1), &mut into).expect("recv");
        a[1].recv(Want::tag(2), &mut into_a).expect("recv");
        a[0].send(Msg::new(to_b, 1), &mut out).expect("send");
        b[1].send(Msg::new(to_a, 2), &mut out.clone()).expect("send");
        let until = Deadline::new(20);
        while ends(&a[0], &b[0]) != 2 {
            until.check(|| "no connection".into());
        }
        deaf(&a[0], false);
        deaf(&b[0], false);
        let [a0, a1] = &mut a;
        let [b0, b1] = &mut b;
        let got = run(&mut [a0, a1, b0, b1], &[1, 1, 1, 1]);
        assert!(got.iter().flatten().all(Result::is_ok) && into == out && into_a == out, "{got:?}");
    }
}

/// Two endpoints of a process that have one port cannot both have a connection to one other place: that is told, and what to do.
#[test]
fn a_second_connection_to_a_place_needs_a_port_of_its_own() {
    let _dog = watchdog("second", 60);
    let (config, there) = (Config { connect_timeout: 500, ..few(1) }, few(1));
    let (mut a, mut b) = (Node::with(config.clone(), attr()), Node::with(there, attr()));
    exchange(&mut a, &mut b, 8);
    let (mut second, lines) = open(config);
    assert_eq!(place(&second), place(&a));
    let to = second.knows(&b);
    second.send(Msg::new(to, 1), &mut [1; 8]).expect("it is tried");
    let until = Deadline::new(20);
    let why = loop {
        if let Some(event) = second.poll().pop() {
            break event.expect_err("there is no port").error;
        }
        until.check(|| "it waits".into());
    };
    let said = lines.all();
    assert_eq!(why, Error::TimedOut);
    let text = format!("{} ", place(&b)).trim().to_owned();
    assert!(said.iter().any(|l| l.contains(&text) && l.contains("FI_RUSTMX_PORT_RANGE")), "{said:?}");
    // And nobody calls himself.
    let to = second.knows(&a);
    assert_eq!(second.send(Msg::new(to, 1), &mut [1; 8]), Err(Error::NoResources));
    exchange(&mut a, &mut b, 8);
}
