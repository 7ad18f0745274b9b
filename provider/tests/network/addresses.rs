//! An endpoint with several addresses, of which some are nobody's, somebody else's, or behind a wall.

use crate::common::process::{command, role};
use crate::common::{Deadline, Event, Msg, Node, Want, attr, pattern, take, watchdog};
use crate::scene::{Lines, network, open};
use rustix::fd::OwnedFd;
use rustmx::config::network::Iface;
use rustmx::log::{LogLevel, LogSink, LogSubsystem};
use rustmx::sys::clock::Clock;
use rustmx::{Addr, Config, Domain, EpAttr, Error, Log, Name, Service};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

const SIZES: [usize; 4] = [8, 3000, 20_000, 2_000_000];

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// A peer that listens at 127.0.0.1 only; whoever calls it; and what the caller warns of. At 127.0.0.2 and 127.0.0.3 the peer's port is
/// nobody's while the last is there.
fn pair() -> (Node, Node, Arc<Lines>, Vec<OwnedFd>) {
    let (a, lines) = open(network());
    let (b, kept) = nobody_else_at(&[2, 3]);
    (a, b, lines, kept)
}

/// An endpoint whose port is nobody's at these addresses, and what keeps it: the kernel gives ports out for each address by itself, also to other tests, which may also
/// listen at all addresses.
fn nobody_else_at(last: &[u8]) -> (Node, Vec<OwnedFd>) {
    let until = Deadline::new(20);
    loop {
        let b = Node::with(network(), attr());
        if let Some(kept) = last.iter().map(|last| take((ip(*last), b.name().port()).into())).collect() {
            return (b, kept);
        }
        until.check(|| "somebody has each port".into());
    }
}

/// As if the peer had said that it is to be found at these addresses.
fn knows_at(a: &Node, b: &Node, last: &[u8]) -> (Addr, Name) {
    let addresses: Vec<_> = last.iter().map(|last| (ip(*last), 0)).collect();
    let name = b.name().at(&addresses, b.name().port());
    assert_eq!(name.addresses().len(), last.len());
    (a.av.insert(&name), name)
}

/// So many operations ended, and none failed.
fn good(events: &[Event]) -> usize {
    assert!(events.iter().all(Result::is_ok), "{events:?}");
    events.len()
}

/// Messages of all sizes, and that each arrives once and in order, whatever way it went.
#[track_caller]
fn all_arrive(a: &mut Node, to: Addr, b: &mut Node) {
    let mut out: Vec<Vec<u8>> = SIZES.iter().map(|n| pattern(*n, *n)).collect();
    let mut into: Vec<Vec<u8>> = SIZES.iter().map(|n| vec![0; *n]).collect();
    for (i, into) in into.iter_mut().enumerate() {
        b.recv(Want::any().ctx(i), into).expect("recv");
    }
    let (mut left, mut came) = (0, Vec::new());
    for (i, out) in out.iter_mut().enumerate() {
        a.send(Msg::new(to, i as u64), out).expect("send");
    }
    let until = Deadline::new(20);
    while (left, came.len()) != (SIZES.len(), SIZES.len()) {
        left += good(&a.poll());
        came.extend(b.poll().into_iter().map(|e| e.expect("received").tag));
        until.check(|| format!("{left} left, {came:?} came"));
    }
    b.quiet(20);
    assert!(out == into);
    came.sort_unstable();
    assert_eq!(came, [0, 1, 2, 3]);
}

#[test]
fn addresses_where_nobody_listens() {
    let _dog = watchdog("nobody", 60);
    let (mut a, mut b, _, _kept) = pair();
    let (to, _) = knows_at(&a, &b, &[2, 3, 1]);
    all_arrive(&mut a, to, &mut b);
}

/// Whichever has the smaller name: that one sends its first messages behind its hello, and they must not be lost with it.
#[test]
fn addresses_that_are_somebody_elses() {
    let _dog = watchdog("somebody", 100);
    for round in 0..8 {
        let (mut a, mut b, _, _kept) = pair();
        let port = b.name().port();
        // Another rustmx, and a service of another kind, which both answer before the peer does.
        let service = Service { ip: ip(2), scope_id: 0, port };
        let config = Config { iface: Iface::parse("127.0.0.2").0, ..network() };
        let mut other = Node::with(config, EpAttr { service: Some(service), ..attr() });
        let alien = TcpListener::bind((ip(3), port)).expect("bind");
        alien.set_nonblocking(true).expect("nonblocking");
        let (to, _) = knows_at(&a, &b, if round % 2 == 0 { &[2, 3, 1] } else { &[3, 2, 1] });
        let mut aliens = Vec::new();
        a.send(Msg::new(to, 99), &mut [1; 100]).expect("send");
        let mut into = [0; 100];
        b.recv(Want::tag(99), &mut into).expect("recv");
        let until = Deadline::new(20);
        let (mut left, mut came) = (0, 0);
        while (left, came) != (1, 1) {
            left += good(&a.poll());
            came += good(&b.poll());
            assert!(other.poll().is_empty(), "it is not meant");
            if let Ok((mut stream, _)) = alien.accept() {
                stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").expect("write");
                aliens.push(stream);
            }
            until.check(|| format!("round {round}: {left} left, {came} came"));
        }
        assert!(into == [1; 100] && !aliens.is_empty());
        all_arrive(&mut a, to, &mut b);
    }
}

/// A place that takes no connection and refuses none, like a host behind a firewall: its backlog is full.
struct Wall(#[expect(dead_code, reason = "kept open")] (rustix::fd::OwnedFd, Vec<TcpStream>));

impl Wall {
    fn at(at: SocketAddr) -> Wall {
        let listener = take(at).expect("nobody listens");
        rustix::net::listen(&listener, 0).expect("listen");
        // Who calls before the kernel has queued the first one is answered, too.
        let mut callers = Vec::new();
        while let Ok(caller) = TcpStream::connect_timeout(&at, Duration::from_millis(200)) {
            callers.push(caller);
            assert!(callers.len() < 20, "it is to be silent");
        }
        Wall((listener, callers))
    }
}

#[test]
fn an_address_that_is_silent_holds_nobody_up() {
    let _dog = watchdog("silent", 60);
    let (mut a, mut b, lines, _kept) = pair();
    let _walls = [2, 3].map(|last| Wall::at(SocketAddr::new(ip(last), b.name().port())));
    let (to, _) = knows_at(&a, &b, &[2, 3, 1]);
    let until = Deadline::new(8);
    all_arrive(&mut a, to, &mut b);
    // The kernel alone would try for minutes.
    until.check(|| "they were waited for".into());
    assert!(lines.all().is_empty(), "{:?}", lines.all());
}

#[test]
fn who_is_nowhere_is_told_with_all_that_was_tried() {
    let _dog = watchdog("nowhere", 60);
    let (mut a, lines) = open(Config { connect_timeout: 1500, ..network() });
    let (b, _kept) = nobody_else_at(&[2, 3]);
    let port = b.name().port();
    let _wall = Wall::at(SocketAddr::new(ip(3), port));
    let (to, name) = knows_at(&a, &b, &[2, 3]);
    a.send(Msg::new(to, 1), &mut [1; 8]).expect("send");
    let until = Deadline::new(10);
    let failed = loop {
        if let Some(e) = a.poll().pop() {
            break e.expect_err("nobody is there");
        }
        until.check(|| "it waits".into());
    };
    assert_eq!((failed.error, failed.peer), (Error::TimedOut, Some(name)));
    let said = lines.all().join("\n");
    for what in [
        format!("127.0.0.2:{port} from 127.0.0.1 refused: nothing listens there"),
        format!("127.0.0.3:{port} from 127.0.0.1 timed out: is the port open?"),
        "FI_RUSTMX_PORT_RANGE".into(),
        "FI_RUSTMX_IFACE".into(),
    ] {
        assert!(said.contains(&what), "{said}");
    }
    // Nobody at all: at once.
    let (b, _kept) = nobody_else_at(&[2, 4, 5]);
    let port = b.name().port();
    let (to, _) = knows_at(&a, &b, &[2, 4, 5]);
    assert_eq!(a.send(Msg::new(to, 1), &mut [1; 8]).err().unwrap_or(Error::Refused), Error::Refused);
    let until = Deadline::new(10);
    while !lines.all().iter().any(|l| [2, 4, 5].iter().all(|i| l.contains(&format!("127.0.0.{i}:{port} ")))) {
        let _ = a.poll();
        until.check(|| format!("{:?}", lines.all()));
    }
}

/// Of many peers on few hosts: one line of each host, up to three, on standard error of a process whose log shows nothing.
#[test]
fn who_is_nowhere_is_told_once_of_each_host() {
    let _dog = watchdog("once", 60);
    const TEST: &str = "addresses::who_is_nowhere_is_told_once_of_each_host";
    /// What a process without a level of logging has.
    struct Hidden;
    impl LogSink for Hidden {
        fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
            false
        }
        fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
            panic!("not asked for: {text}");
        }
    }
    if role().is_some() {
        let log = Log::new(Arc::new(Hidden));
        // It is told of each host, whichever endpoint meets it.
        let config = Config { connect_timeout: 1500, ..network() };
        for _ in 0..2 {
            let domain = Domain::with_clock(Arc::new(config.clone()), log.clone(), Clock::machine());
            let mut a = Node::enabled(domain, attr());
            let (mut failed, mut walls, mut nobody) = (0, Vec::new(), Vec::new());
            for last in 2..22 {
                // Four peers on each host; nobody answers on the first one, nobody listens on the others.
                let host = 2 + last % 5;
                let (b, kept) = nobody_else_at(&[host]);
                nobody.extend(kept);
                if host == 2 {
                    walls.push(Wall::at(SocketAddr::new(ip(host), b.name().port())));
                }
                let (to, _) = knows_at(&a, &b, &[host]);
                failed += usize::from(a.send(Msg::new(to, 1), &mut [1; 8]).is_err());
            }
            let until = Deadline::new(30);
            while failed < 20 {
                failed += a.poll().into_iter().filter(Result::is_err).count();
                until.check(|| format!("{failed} failed"));
            }
        }
        return;
    }
    let out = command(TEST, "caller").stdin(Stdio::null()).output().expect("a copy");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let mut lines: Vec<&str> = said.lines().filter(|line| line.starts_with("rustmx: ")).collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[2].ends_with("(of further hosts FI_LOG_LEVEL=warn tells)"), "{said}");
    let hosts = |line: &&str| line.split(['/', ':']).find(|word| word.starts_with("127.0.0.")).map(str::to_owned);
    lines.sort_by_key(hosts);
    lines.dedup_by_key(|line| hosts(line));
    assert_eq!(lines.len(), 3, "one of each host: {said}");
}

#[test]
fn an_endpoint_says_all_good_addresses_of_its_host() {
    let node = Node::with(Config { iface: Iface::default(), ..network() }, attr());
    let mut cards = rustmx::sys::interfaces::all();
    let best = cards[0].kind;
    cards.retain(|i| i.kind == best && !i.is_link_local());
    let told = node.name().addresses();
    assert!(!cards.is_empty() && cards.iter().any(|i| i.ip == told[0].0));
    for family in [false, true] {
        let there = cards.iter().any(|i| i.ip.is_ipv6() == family);
        assert_eq!(told.iter().any(|(ip, _)| ip.is_ipv6() == family), there, "{told:?} of {cards:?}");
    }
}
