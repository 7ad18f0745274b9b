//! Which ports and interfaces are used, and what is said if there is none.

use crate::common::{Deadline, Msg, Node, Want, attr, fresh_port, pattern, run, take, watchdog};
use crate::scene::{Insisted, connections, network, place, quiet};
use parking_lot::Mutex;
use rustmx::config::network::{Iface, PortRange};
use rustmx::sys::clock::Clock;
use rustmx::{AddressVector, Config, Domain, Error, Log};
use std::net::TcpListener;
use std::sync::Arc;

pub fn exchange(a: &mut Node, b: &mut Node, n: usize) {
    let to = a.knows(b);
    let (mut out, mut into) = (pattern(n, n), vec![0; n]);
    b.recv(Want::tag(1), &mut into).expect("recv");
    a.send(Msg::new(to, 1), &mut out).expect("send");
    let got = run(&mut [a, b], &[1, 1]);
    assert!(got.iter().flatten().all(Result::is_ok) && into == out);
}

/// So many ports in a row that nobody uses now, below those that the kernel gives by itself, and no other test of this process gets: endpoints of two tests in one range would call
/// each other's ports.
pub fn free_ports(count: u16) -> PortRange {
    static GIVEN: Mutex<Vec<(u16, u16)>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock();
    let until = Deadline::new(20);
    loop {
        let first = 10_000 + fresh_port() % 20_000;
        let free = |port: &u16| take(([0; 4], *port).into()).is_some();
        let ours = given.iter().any(|(other, past)| first < *past && *other < first + count);
        if !ours && (first..first + count).filter(free).count() == count.into() {
            given.push((first, first + count));
            let (range, complaints) = PortRange::parse(&format!("{first}-{}", first + count - 1));
            assert!(complaints.is_empty());
            return range;
        }
        until.check(|| "no free ports".into());
    }
}

/// Opens an endpoint that cannot be; what was said although the log shows nothing.
pub fn fails(config: Config) -> (Error, Vec<String>) {
    let lines = Arc::new(Insisted::default());
    let mut domain = Domain::with_clock(Arc::new(config), Log::new(lines.clone()), Clock::machine());
    let (cq, ep) = (domain.cq_open(), domain.ep_open(attr()).expect("endpoint"));
    domain.ep_bind_av(ep, Arc::new(AddressVector::new())).expect("av");
    domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    (domain.ep_enable(ep).expect_err("no place"), lines.all())
}

#[test]
fn both_ends_are_in_the_range() {
    let _dog = watchdog("range", 60);
    let range = free_ports(8);
    let ports = range.ports().expect("a range");
    let config = || Config { port_range: range.clone(), ..network() };
    let (mut a, mut b) = (Node::with(config(), attr()), Node::with(config(), attr()));
    assert!(ports.contains(&a.name().port()) && ports.contains(&b.name().port()));
    exchange(&mut a, &mut b, 100_000);
    let own = [place(&a).port(), place(&b).port()];
    let rows = connections();
    let ours: Vec<_> = rows.iter().filter(|r| r.established() && r.ports.iter().any(|p| own.contains(p))).collect();
    assert_eq!(ours.len(), 2);
    assert!(ours.iter().all(|r| r.ports.iter().all(|p| ports.contains(p))));
}

#[test]
fn a_range_that_is_used_up_is_named() {
    let _dog = watchdog("used_up", 60);
    let range = free_ports(2);
    let config = || Config { port_range: range.clone(), ..network() };
    let here = config();
    let (mut a, lines) = quiet(here.clone());
    let mut b = Node::with(config(), attr());
    // To listen at.
    let (why, said) = fails(config());
    assert_eq!(why, Error::AddressInUse);
    let text = format!("FI_RUSTMX_PORT_RANGE={range}");
    assert!(said.iter().any(|l| l.contains(&text) && l.contains("listen")), "{said:?}");
    // To call from there is always the one that is listened at, but for who is there himself.
    exchange(&mut a, &mut b, 8);
    let second = Node::with(here, attr());
    let to = a.knows(&second);
    assert_eq!(a.send(Msg::new(to, 1), &mut [1; 8]), Err(Error::NoResources));
    let said = lines.all();
    assert!(said.iter().any(|l| l.contains(&text) && l.contains("call")), "{said:?}");
}

#[test]
fn an_interface_that_there_is_not() {
    let (why, said) = fails(Config { iface: Iface::parse("nosuch0").0, ..network() });
    assert_eq!(why, Error::Invalid);
    assert!(said.iter().any(|l| l.contains("FI_RUSTMX_IFACE=nosuch0") && l.contains("lo (127.0.0.1)")), "{said:?}");
}

#[test]
fn who_has_no_network_is_told_of() {
    let (mut a, lines) = quiet(network());
    let b = Node::with(Config { tcp: 0, ..Config::default() }, attr());
    let to = a.knows(&b);
    assert_eq!(a.send(Msg::new(to, 1), &mut [1; 8]), Err(Error::Unreachable));
    let said = lines.all();
    assert!(matches!(&said[..], [line] if line.contains("cannot connect") && line.contains("FI_RUSTMX_TCP=no")), "{said:?}");
}

#[test]
fn others_are_told_the_address_of_a_router() {
    let node = Node::with(Config { iface: Iface::parse("127.0.0.1@203.0.113.7").0, ..network() }, attr());
    let name = node.name();
    assert_eq!(name.addresses().as_slice(), [("203.0.113.7".parse().expect("ip"), 0)]);
    assert!(TcpListener::bind(("127.0.0.1", name.port())).is_err() && TcpListener::bind(("127.0.0.2", name.port())).is_ok());
}

/// Whoever has one of the two families only.
#[test]
fn an_interface_by_its_name_is_reached_at_its_addresses_of_both_families() {
    let _dog = watchdog("by_name", 60);
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("left out: this machine has no ::1");
        return;
    }
    let config = |iface: &str| Config { iface: Iface::parse(iface).0, ..network() };
    let mut a = Node::with(config("lo"), attr());
    let name = a.name();
    let told = name.addresses();
    assert_eq!(told.as_slice(), ["127.0.0.1", "::1"].map(|ip| (ip.parse().expect("ip"), 0)));
    for address in told {
        let mut b = Node::with(config(&address.0.to_string()), attr());
        let to = b.av.insert(&name.at(&[address], name.port()));
        let mut into = [0; 8];
        a.recv(Want::tag(1), &mut into).expect("recv");
        b.send(Msg::new(to, 1), &mut [7; 8]).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert!(got.iter().flatten().all(Result::is_ok) && into == [7; 8], "{address:?}: {got:?}");
    }
    // One of its addresses means that one only.
    let only = Node::with(config("::1"), attr()).name();
    assert_eq!(only.addresses().as_slice(), [("::1".parse().expect("ip"), 0)]);
}

#[test]
fn ipv6() {
    let _dog = watchdog("ipv6", 60);
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("left out: this machine has no ::1");
        return;
    }
    let config = || Config { iface: Iface::parse("::1").0, ..network() };
    let (mut a, mut b) = (Node::with(config(), attr()), Node::with(config(), attr()));
    assert!(a.name().ip().to_canonical().is_ipv6(), "{}", a.name());
    exchange(&mut a, &mut b, 8);
    exchange(&mut b, &mut a, 1_000_000);
}
