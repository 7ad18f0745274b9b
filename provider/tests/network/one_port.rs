//! Endpoints of a process have one port: calls find their endpoint, whoever looks, sleeps, computes or closes.

use crate::common::{Deadline, Msg, Node, Want, at_port, attr, pattern, watchdog};
use crate::places::{exchange, free_ports};
use crate::scene::{Lines, Scene, connections, is_hung_up, network, place};
use rustmx::config::network::Secret;
use rustmx::sys::clock::Clock;
use rustmx::sys::host;
use rustmx::wire::hello::{BadHello, HELLO_LEN, Hello, Refusal};
use rustmx::{Config, Domain, Error, Log, Name, Nap, Telling};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::Duration;
use zerocopy::IntoBytes;

/// So many endpoints, each with a domain of its own, that have one port.
fn together(config: &Config, count: usize) -> Vec<Node> {
    (0..count).map(|_| Node::with(config.clone(), attr())).collect()
}

fn call(to: &Node) -> TcpStream {
    let stream = TcpStream::connect(place(to)).expect("connect");
    stream.set_nonblocking(true).expect("nonblocking");
    stream
}

/// A hello of somebody with a name of his own, to `to`.
fn hello(to: &Name) -> Vec<u8> {
    let from = Name::new(host::random() | 1, 0, host::id() ^ 1, None).at(&[([127, 0, 0, 1].into(), 0)], 9);
    Hello::new(from.to_bytes(), to.to_bytes(), 24 << 10, 0, [0; 16]).as_bytes().to_vec()
}

/// What is said on `stream` until it is a hello or the end.
fn answer(stream: &mut TcpStream, mut meanwhile: impl FnMut()) -> Vec<u8> {
    let (mut said, until) = (Vec::new(), Deadline::new(20));
    while !is_hung_up(stream, &mut said) && said.len() < HELLO_LEN {
        meanwhile();
        until.check(|| format!("{} bytes", said.len()));
    }
    said
}

fn answered_by(said: &[u8]) -> Name {
    Name::from_bytes(&Hello::parse(said).expect("a hello").from).expect("a name")
}

#[test]
fn a_range_of_one_port_is_enough_for_a_process() {
    let _dog = watchdog("one_port", 60);
    let config = Config { port_range: free_ports(1), ..network() };
    let ports = config.port_range.ports().expect("a range");
    let mut nodes = together(&config, 5);
    assert!(nodes.iter().all(|node| ports.contains(&node.name().port())));
    // Each is found by whoever calls, who answers by that connection.
    let mut others = [Node::with(network(), attr()), Node::with(network(), attr())];
    for (i, node) in nodes.iter_mut().enumerate() {
        for other in &mut others {
            exchange(other, node, 1000 * i);
            exchange(node, other, 200_000);
        }
    }
    // Who asks where an endpoint is, is told that others are there, too.
    let told = |node: &Node| node.domain.ep_history(node.ep, Telling::All).expect("told");
    assert!(told(&nodes[0]).contains(", as 4 others of this process ("), "{}", told(&nodes[0]));
    let mut pair = together(&network(), 2);
    exchange(&mut others[0], &mut pair[1], 8);
    assert!(told(&pair[1]).contains(", as one other of this process ("), "{}", told(&pair[1]));
    assert!(!told(&others[0]).contains("of this process ("), "{}", told(&others[0]));
    let port = *ports.start();
    let ours = connections().iter().filter(|r| r.established() && r.ports[0] == port).count();
    assert_eq!(ours, nodes.len() * others.len());
    // Who was first goes, and the port stays, for those that are there and for one that comes.
    drop(nodes.remove(0));
    nodes.push(Node::with(config.clone(), attr()));
    let mut late = Node::with(network(), attr());
    nodes.iter_mut().for_each(|node| exchange(&mut late, node, 500));
    // Who has other terms needs another port; and the port is free once all have gone.
    let mut domain =
        Domain::with_clock(Arc::new(Config { peer_timeout: 9_000, ..config.clone() }), Log::silent(), Clock::machine());
    let (cq, ep) = (domain.cq_open(), domain.ep_open(attr()).expect("endpoint"));
    domain.ep_bind_av(ep, Arc::new(rustmx::AddressVector::new())).expect("av");
    domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    assert_eq!(domain.ep_enable(ep), Err(Error::AddressInUse));
    drop(nodes);
    domain.ep_enable(ep).expect("the port is free");
}

/// Endpoints of a process call each other, too, by the port that is theirs.
#[test]
fn each_calls_each() {
    let _dog = watchdog("each", 60);
    let config = network();
    let mut nodes = together(&config, 4);
    assert!(nodes.iter().all(|node| node.name().port() == nodes[0].name().port()));
    for i in 1..nodes.len() {
        let (before, rest) = nodes.split_at_mut(i);
        before.iter_mut().for_each(|node| exchange(node, &mut rest[0], 5000));
    }
}

#[test]
fn a_service_and_another_key_have_ports_of_their_own() {
    let _dog = watchdog("service", 60);
    let config = network();
    let port = *free_ports(1).ports().expect("a range").start();
    let mut nodes = together(&config, 2);
    let mut service = Node::with(config.clone(), at_port(port));
    let key = |text: &str| Secret::new(text.as_bytes());
    let keyed = |text: &str| Node::with(config.clone(), rustmx::EpAttr { auth_key: key(text), ..attr() });
    let mut keyed = [keyed("0123456789abcdef"), keyed("0123456789abcdef"), keyed("fedcba9876543210")];
    let port_of = |node: &Node| node.name().port();
    assert_eq!(port_of(&service), port);
    assert_eq!((port_of(&nodes[0]), port_of(&keyed[0])), (port_of(&nodes[1]), port_of(&keyed[1])));
    let ports = [port, port_of(&nodes[0]), port_of(&keyed[0]), port_of(&keyed[2])];
    assert!((0..4).all(|i| !ports[..i].contains(&ports[i])), "{ports:?}");
    let [a, b, _] = &mut keyed;
    exchange(a, b, 100);
    let [a, b] = &mut nodes[..] else { panic!("two") };
    exchange(a, b, 100);
    exchange(a, &mut service, 100);
    // Who names no endpoint but a place gets who was there first.
    let mut stream = call(a);
    stream.write_all(&hello(&Name::contact([127, 0, 0, 1].into(), 0, port_of(a)))).expect("hello");
    let said = answer(&mut stream, || {
        let _ = b.poll();
        let _ = a.poll();
    });
    assert_eq!(answered_by(&said), a.name());
}

/// Whoever looks first takes the call, even one that then never looks again; who is meant must not need him for the rest.
#[test]
fn nobody_waits_for_one_that_computes() {
    let _dog = watchdog("computes", 60);
    let config = network();
    let mut nodes = together(&config, 2);
    let [computes, meant] = &mut nodes[..] else { panic!("two") };
    for first in [0, 1, 100, HELLO_LEN - 1] {
        let words = hello(&meant.name());
        let mut stream = call(meant);
        stream.write_all(&words[..first]).expect("the first words");
        // He has accepted it, and read that much.
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(1));
            computes.quiet(200);
        }
        stream.write_all(&words[first..]).expect("the rest");
        let said = answer(&mut stream, || meant.quiet(1));
        assert_eq!(answered_by(&said), meant.name(), "after {first} bytes");
    }
    // And what he has taken for another one is there when that one looks.
    let mut stream = call(meant);
    stream.write_all(&hello(&meant.name())).expect("hello");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1));
        computes.quiet(200);
    }
    assert!(!is_hung_up(&mut stream, &mut Vec::new()));
    let said = answer(&mut stream, || meant.quiet(1));
    assert_eq!(answered_by(&said), meant.name());
}

/// The same for those who sleep: of more endpoints than may be woken by strangers each hears of its call, be others asleep, awake, or gone.
#[test]
fn sleepers_are_woken_by_their_own_calls() {
    let _dog = watchdog("sleepers", 100);
    const SLEEPERS: usize = 7;
    let config = Config { spin: 0, ..network() };
    let stop = Arc::new(AtomicBool::new(false));
    let (names, heard) = std::sync::mpsc::channel();
    let sleepers: Vec<_> = (0..SLEEPERS)
        .map(|i| {
            let (config, names, stop) = (config.clone(), names.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut node = Node::with(config, attr());
                let waiter = node.domain.waiter().expect("waiter");
                let mut into = [0u8; 8];
                node.recv(Want::tag(1), &mut into).expect("recv");
                names.send((i, node.name())).expect("told");
                let mut came = 0;
                while !stop.load(Ordering::Relaxed) {
                    let got = node.poll();
                    came += got.len();
                    if !got.is_empty() {
                        assert!(got.iter().all(Result::is_ok), "{got:?}");
                        node.recv(Want::tag(1), &mut into).expect("recv");
                    }
                    if let Nap::Sleep(limit) = node.domain.doze().expect("no fork") {
                        // Longer than any look at the time for its own sake, but for the end of the test.
                        waiter.sleep(Some(limit.unwrap_or(Duration::from_secs(60)).min(Duration::from_secs(60))));
                        node.domain.awake();
                    }
                }
                came
            })
        })
        .collect();
    let mut all: Vec<(usize, Name)> = heard.iter().take(SLEEPERS).collect();
    all.sort_by_key(|(i, _)| *i);
    assert!(all.iter().all(|(_, name)| name.port() == all[0].1.port()));
    const CALLERS: usize = 3;
    for caller in 0..CALLERS {
        let mut caller = match caller {
            // One that shares their port, too.
            0 => Node::with(config.clone(), attr()),
            _ => Node::with(network(), attr()),
        };
        for (_, name) in &all {
            let (to, mut out) = (caller.av.insert(name), [7; 8]);
            // That it has arrived is what the sender hears.
            caller.send(Msg::new(to, 1).with(rustmx::OpFlags::DELIVERY_COMPLETE), &mut out).expect("send");
            caller.complete(1);
        }
    }
    stop.store(true, Ordering::Relaxed);
    // Something that ends their sleep.
    let mut caller = Node::with(network(), attr());
    for (_, name) in &all {
        let to = caller.av.insert(name);
        // Who was awake has seen the word, and may be gone.
        let sent = caller.send(Msg::new(to, 1), &mut [7; 8]);
        assert!(matches!(sent, Ok(()) | Err(Error::Refused | Error::PeerGone)), "{sent:?}");
    }
    let until = Deadline::new(60);
    while !sleepers.iter().all(|thread| thread.is_finished()) {
        let _ = caller.poll();
        until.check(|| "they sleep on".into());
    }
    for thread in sleepers {
        assert!(thread.join().expect("no panic") >= CALLERS);
    }
}

/// As many as may be woken by strangers are there and compute. One that came later sleeps, and is called.
#[test]
fn who_comes_late_looks_for_himself() {
    let _dog = watchdog("late", 100);
    let config = Config { spin: 0, ..network() };
    let compute = together(&config, 6);
    let mut sleeper = Node::with(config.clone(), attr());
    let (mut caller, to) = (Node::with(network(), attr()), sleeper.name());
    let (to, mut out, mut into) = (caller.av.insert(&to), [7; 8], [0; 8]);
    let thread = std::thread::spawn(move || {
        let waiter = sleeper.domain.waiter().expect("waiter");
        sleeper.recv(Want::tag(1), &mut into).expect("recv");
        while sleeper.poll().is_empty() {
            if let Nap::Sleep(limit) = sleeper.domain.doze().expect("no fork") {
                waiter.sleep(Some(limit.unwrap_or(Duration::from_secs(60))));
                sleeper.domain.awake();
            }
        }
        sleeper
    });
    // It sleeps by now, most likely; else this proves less.
    std::thread::sleep(Duration::from_millis(50));
    caller.send(Msg::new(to, 1), &mut out).expect("send");
    let until = Deadline::new(20);
    while !thread.is_finished() {
        let _ = caller.poll();
        until.check(|| "it sleeps on".into());
    }
    drop((thread.join().expect("no panic"), compute));
}

/// Endpoints come and go while they are called. No caller waits for ever: it is answered, or told that nobody is there.
#[test]
fn calls_while_endpoints_come_and_go() {
    let _dog = watchdog("churn", 100);
    const ROUNDS: usize = 60;
    let config = network();
    let stop = Arc::new(AtomicBool::new(false));
    let (names, heard) = std::sync::mpsc::sync_channel(4);
    // Two threads that open and close, so that the last one often goes while another comes.
    let churn: Vec<_> = (0..2)
        .map(|_| {
            let (config, names, stop) = (config.clone(), names.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut node = Node::with(config.clone(), attr());
                    let (mut into, mut name) = ([0u8; 8], Some(node.name()));
                    node.recv(Want::tag(1), &mut into).expect("recv");
                    let mut turns = host::random() % 4000;
                    while !stop.load(Ordering::Relaxed) && (turns > 0 || name.is_some()) {
                        let _ = node.poll();
                        turns = turns.saturating_sub(1);
                        if let Some(mine) = name.take()
                            && let Err(TrySendError::Full(mine)) = names.try_send(mine)
                        {
                            name = Some(mine);
                        }
                    }
                }
            })
        })
        .collect();
    let (mut caller, mut answered, mut told) = (Node::with(Config { connect_timeout: 5_000, ..network() }, attr()), 0, 0);
    for round in 0..ROUNDS {
        let to = caller.av.insert(&heard.recv().expect("a name"));
        let mut out = [1; 8];
        match caller.send(Msg::new(to, 1).with(rustmx::OpFlags::DELIVERY_COMPLETE), &mut out) {
            Ok(()) => {}
            Err(why) => {
                assert!(matches!(why, Error::Refused | Error::PeerGone), "{why}");
                told += 1;
                continue;
            }
        }
        let until = Deadline::new(30);
        loop {
            match caller.poll().pop() {
                None => until.check(|| format!("call {round} is not answered; {answered} were, {told} were told")),
                Some(Ok(_)) => break answered += 1,
                Some(Err(e)) => {
                    assert!(matches!(e.error, Error::Refused | Error::PeerGone), "{:?}", e.error);
                    break told += 1;
                }
            }
        }
    }
    assert_eq!(answered + told, ROUNDS);
    eprintln!("{answered} answered, {told} told");
    stop.store(true, Ordering::Relaxed);
    churn.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Strangers at a port of several: who names nobody, one that is gone, a lane of nobody, and one endpoint by the name of another.
#[test]
fn strangers_at_a_port_of_several() {
    let _dog = watchdog("several", 100);
    let config = network();
    let mut scene = Scene::with(config.clone());
    let lines = Arc::new(Lines::default());
    let domain = Domain::with_clock(Arc::new(config.clone()), Log::new(lines.clone()), Clock::machine());
    let mut second = Node::enabled(domain, attr());
    assert_eq!(second.name().port(), scene.victim.name().port());
    let gone = Node::with(config.clone(), attr()).name();
    let mut lane = Hello::lane(4711).as_bytes().to_vec();
    let mut nobody = hello(&second.name());
    nobody[16 + 56] ^= 1;
    let mut size = hello(&second.name());
    size[16 + 112..16 + 116].copy_from_slice(&4097u32.to_le_bytes());
    let cases = [
        ("one that is gone", hello(&gone), Refusal::WrongEndpoint),
        ("a lane of nobody", std::mem::take(&mut lane), Refusal::WrongEndpoint),
        ("no name", nobody, Refusal::Malformed),
        ("a lying size", size, Refusal::Malformed),
    ];
    for (what, words, why) in cases {
        // Read by the one and by the other.
        for turn in 0..2 {
            let mut stream = call(&second);
            stream.write_all(&words).expect("write");
            let said = answer(&mut stream, || {
                if turn == 0 {
                    let _ = second.poll();
                } else {
                    scene.victim.domain.progress();
                }
            });
            assert_eq!(Hello::parse(&said).map(|_| ()), Err(BadHello::Refused(why)), "{what}");
            scene.exchange();
        }
    }
    // A good hello, and nonsense behind it: it is the endpoint that is named that hangs up, and the others do not notice.
    let mut stream = call(&second);
    let mut words = hello(&second.name());
    words.extend([0xee; 500]);
    stream.write_all(&words).expect("write");
    let mut said = Vec::new();
    let until = Deadline::new(20);
    while !is_hung_up(&mut stream, &mut said) {
        scene.victim.domain.progress();
        let _ = second.poll();
        until.check(|| "still connected".into());
    }
    scene.exchange();
    // One that says nothing, and both that look only now and then.
    let mut silent = call(&second);
    let until = Deadline::new(20);
    while !is_hung_up(&mut silent, &mut Vec::new()) {
        let _ = second.poll();
        scene.victim.domain.progress();
        until.check(|| "still connected".into());
    }
    let (mut out, mut into) = (pattern(100, 1), vec![0; 100]);
    let to = scene.good.knows(&second);
    second.recv(Want::tag(3), &mut into).expect("recv");
    scene.good.send(Msg::new(to, 3), &mut out).expect("send");
    crate::common::run(&mut [&mut scene.good, &mut second], &[1, 1]);
    assert_eq!(out, into);
    assert!(lines.all().len() + scene.lines.all().len() <= 12);
}

/// An endpoint whose peers have all gone, and that does not sleep, is still found.
#[test]
fn who_has_no_peers_any_more_can_be_called_again() {
    let _dog = watchdog("again", 60);
    let config = network();
    let mut nodes = together(&config, 2);
    let [other, node] = &mut nodes[..] else { panic!("two") };
    for turn in 0..4 {
        let mut peer = Node::with(network(), attr());
        exchange(&mut peer, node, 100);
        drop(peer);
        // Longer than between looks at who is gone.
        let until = std::time::Instant::now() + Duration::from_millis(1100);
        while std::time::Instant::now() < until {
            let _ = node.poll();
            if turn % 2 == 0 {
                let _ = other.poll();
            }
        }
        // The call is taken by the other one.
        let mut stream = call(node);
        stream.write_all(&hello(&node.name())).expect("hello");
        for _ in 0..3 * (turn / 2) {
            std::thread::sleep(Duration::from_millis(1));
            other.quiet(200);
        }
        let said = answer(&mut stream, || _ = node.poll());
        assert_eq!(answered_by(&said), node.name());
    }
}
