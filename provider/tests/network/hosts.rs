//! Peers on different hosts of the laboratory (`ci/netlab.sh`, which `RUSTMX_TEST_NETLAB` names; it needs root): hosts that are cut off, of different
//! families, with two cards, without addresses, behind routers.

mod cut_off;
mod flows;
mod ifaces;
mod laboratory;
mod nat;
mod rare_questions;

use crate::common::process::{Copy, hear, role, say};
use crate::common::{Deadline, Msg, Want};
use crate::scene::open;
use laboratory::Lab;
use rustmx::config::network::{Iface, PortRange};
use rustmx::{CompFlags, Config, Name, OpFlags};
use std::time::Instant;

/// Beyond the time that a call may take: for a busy machine.
const SLACK: u64 = 2000;

/// Not a test of its own: what the copies of this program do.
#[test]
fn role_of_a_host() {
    let Some(words) = role() else { return };
    match words[0].as_str() {
        "mute" => cut_off::mute(&words[1..]),
        "echo" => cut_off::echo(&words[1..]),
        "watcher" => cut_off::watcher(&words[1..]),
        "sink" => flows::sink(),
        "source" => flows::source(&words[1], &words[2], words.get(3)),
        _ => host(words.get(1).map_or("", String::as_str), words.get(2).map_or("", String::as_str)),
    }
}

/// Says its name, answers whatever comes, and sends to those that it is told: says how that went.
fn host(iface: &str, ports: &str) {
    let config = Config {
        shm: 0,
        connect_timeout: 3000,
        iface: Iface::parse(iface).0,
        port_range: PortRange::parse(ports).0,
        ..Config::default()
    };
    let (mut node, lines) = open(config);
    say(&node.name().to_string());
    let (tx, orders) = std::sync::mpsc::channel();
    std::thread::spawn(move || while tx.send(hear()).is_ok() {});
    // So much that a connection may hurry.
    let (mut out, mut into) = (vec![7; 400_000], vec![0; 400_000]);
    node.recv(Want::tag(1), &mut into).expect("recv");
    let (mut begun, mut to) = (Instant::now(), None);
    loop {
        if let Ok(name) = orders.try_recv() {
            begun = Instant::now();
            let name: Name = name.parse().expect("a name");
            to = Some(name);
            let to = node.av.insert(&name);
            if let Err(why) = node.send(Msg::new(to, 1).with(OpFlags::DELIVERY_COMPLETE), &mut out) {
                say(&format!("{why:?} {} {}", begun.elapsed().as_millis(), lines.all().join(" / ")));
            }
        }
        for event in node.poll() {
            match event {
                Ok(done) if done.flags.contains(CompFlags::RECV) => {
                    assert!(into == out);
                    node.recv(Want::tag(1), &mut into).expect("recv");
                }
                Ok(_) => say(&format!("arrived {}", begun.elapsed().as_millis())),
                Err(e) if e.peer == to => {
                    say(&format!("{:?} {} {}", e.error, begun.elapsed().as_millis(), lines.all().join(" / ")))
                }
                Err(e) => panic!("{e:?}"),
            }
        }
    }
}

/// `from` sends to `to`. What became of it, after how many milliseconds, and what was said.
fn sends(from: &mut Copy, to: &str) -> (String, u64, String) {
    from.tell(to);
    let told = from.hear();
    let mut words = told.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    (word(), word().parse().expect("milliseconds"), word())
}

#[test]
fn hosts_of_mixed_families() {
    let Some(lab) = Lab::up(&["--hosts", "3", "--dual"]) else { return };
    lab.run_on("h1", "ip -6 addr flush dev eth0");
    lab.run_on("h3", "ip -4 addr flush dev eth0");
    let mut hosts = ["h1", "h2", "h3"].map(|host| lab.on(host, "host"));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names[0].starts_with("rustmx://10.77.0.1:"), "{names:?}");
    assert!(names[1].starts_with("rustmx://10.77.0.2,[fd77:6d78::2]:"), "{names:?}");
    assert!(names[2].starts_with("rustmx://[fd77:6d78::3]:"), "{names:?}");
    let [four, both, six] = &mut hosts;
    for (from, to) in [(&mut *four, 1), (&mut *six, 1)] {
        let (what, ms, said) = sends(from, &names[to]);
        assert_eq!(what, "arrived", "after {ms} ms: {said}");
    }
    for to in [0, 2] {
        let (what, ms, said) = sends(both, &names[to]);
        assert_eq!(what, "arrived", "after {ms} ms: {said}");
    }
    for (from, to, address) in [(&mut *four, 2, "[fd77:6d78::3]"), (&mut *six, 0, "10.77.0.1")] {
        let (what, ms, said) = sends(from, &names[to]);
        assert!(what == "Unreachable" && ms < 3000, "{what} after {ms} ms: {said}");
        assert!(said.contains(address) && said.contains("no way to that network"), "{said}");
    }
}

/// Link-local addresses only: their scopes are numbers of interfaces, which differ from host to host.
#[test]
fn hosts_without_addresses() {
    let Some(lab) = Lab::up(&["--hosts", "2", "--ipv6-only", "--decoys"]) else { return };
    for host in ["h1", "h2"] {
        lab.run_on(host, "ip -6 addr flush dev eth0 scope global");
    }
    lab.run_on("h2", "ip link add more type veth peer name more2; ip link set more up; ip link set more2 up");
    let mut hosts = ["h1", "h2"].map(|host| lab.on(host, "host"));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names.iter().all(|n| n.starts_with("rustmx://[fe80::")), "{names:?}");
    for (from, to) in [(0, 1), (1, 0)] {
        let (what, ms, said) = sends(&mut hosts[from], &names[to]);
        assert_eq!(what, "arrived", "{names:?} after {ms} ms: {said}");
    }
}

/// Two cards with addresses of any scope, of a site and of their link each.
#[test]
fn hosts_with_many_ipv6_addresses() {
    const MORE: &str = "for k in 0 1; do ip addr add 2001:db8:$k::$(hostname | tr -d h)/64 dev eth$k nodad; done";
    const WALL: &str = "nft 'table ip wall {
        chain out { type filter hook output priority 0; ip daddr 10.77.0.0/16 drop; }
        }'";
    for family in ["--ipv6-only", "--dual"] {
        let Some(lab) = Lab::up(&["--hosts", "2", "--nics", "2", family]) else { return };
        for host in ["h1", "h2"] {
            lab.run_on(host, MORE);
        }
        let mut hosts = ["h1", "h2"].map(|host| lab.on(host, "host"));
        let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
        let six = names[0].split(['[', ']']).nth(1).expect("an IPv6 address").to_owned();
        assert!(names.iter().all(|n| n.matches('[').count() == 1 && !n.contains("fe80")), "{names:?}");
        assert!(names.iter().all(|n| n.contains("//10.77.") == (family == "--dual")), "{names:?}");
        if family == "--dual" {
            // The address that is tried first leads nowhere, and nobody says so.
            lab.run_on("h2", WALL);
        } else {
            let (what, ms, said) = sends(&mut hosts[0], &names[1]);
            assert_eq!(what, "arrived", "{names:?} after {ms} ms: {said}");
            // The one that was told is no more: who knows no other is told in time, and a new endpoint tells another one.
            lab.run_on("h1", &format!("ip link set $(ip -o addr show to {six} | awk '{{ print $2 }}') down"));
            let mut caller = lab.on("h2", "host");
            caller.hear();
            let (what, ms, said) = sends(&mut caller, &names[0]);
            assert!(["TimedOut", "Unreachable"].contains(&what.as_str()) && ms < 3000 + SLACK, "{what} after {ms} ms: {said}");
            assert!(said.contains(&six), "{said}");
            hosts[0] = lab.on("h1", "host");
        }
        let name = if family == "--dual" { names[0].clone() } else { hosts[0].hear() };
        assert!((name == names[0]) == (family == "--dual"), "{name}");
        let (what, ms, said) = sends(&mut hosts[1], &name);
        assert_eq!(what, "arrived", "{name} after {ms} ms: {said}");
    }
}

/// Two cards: the better one of the other host leads nowhere, as if it belonged to another network of the same numbers.
#[test]
fn another_card_leads_there() {
    let Some(lab) = Lab::up(&["--hosts", "2", "--nics", "2"]) else { return };
    let mut hosts = ["h1", "h2"].map(|host| lab.on(host, "host"));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names.iter().all(|n| n.contains("10.77.0.") && n.contains(",10.77.1.")), "{names:?}");
    lab.run_on("h1", "ip link set eth0 down");
    let (what, ms, said) = sends(&mut hosts[1], &names[0]);
    assert_eq!(what, "arrived", "after {ms} ms: {said}");
}

/// Between namespaces of one kernel a network is not found out about while there is much to be sent, unless a round trip says that there is one.
#[test]
fn next_door_nothing_is_found_out_about_a_network() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let Some(other) = choose_other(&lab, &["h1", "h2"]) else { return };
    let mut copies = next_door(&lab);
    let until = Deadline::new(60);
    while used_on(&lab, "h1").iter().any(|name| *name != other) {
        until.check(|| format!("nothing is to be sent, and {other} is the host's choice: {:?}", used_on(&lab, "h1")));
    }
    // It comes back with much to be sent. (A busy machine may take longer to look than it stays.)
    let (from, name) = &mut copies[0];
    loop {
        assert_eq!(sends(from, name).0, "arrived");
        if used_on(&lab, "h1").iter().all(|name| name == "reno") {
            break;
        }
        until.check(|| format!("much was sent, and {other} is used"));
    }
    drop(copies);
    if !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("left out: a delay, for want of /dev/net/tun");
        return;
    }
    lab.say(&["delay", "h2", "20"]);
    let used = used_between(&lab, &["h1", "h2"]);
    assert!(used.iter().all(|name| *name == other), "{other} is the hosts' choice: {used:?}");
}

/// Where packets are lost there is a network to be found out about, next door or not.
#[test]
fn next_door_losses_are_found_out_about() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let Some(other) = choose_other(&lab, &["h1", "h2"]) else { return };
    let mut copies = next_door(&lab);
    let (from, name) = &mut copies[0];
    lab.say(&["loss", "h2", "10"]);
    // Without the losses it would be so only after a time without anything to be sent.
    let (until, mut in_a_row) = (Deadline::new(120), 0);
    while in_a_row < 5 {
        until.check(|| format!("{other} is the host's choice, and not used: {:?}", used_on(&lab, "h1")));
        let (what, ms, said) = sends(from, name);
        assert_eq!(what, "arrived", "after {ms} ms: {said}");
        in_a_row = if used_on(&lab, "h1").iter().all(|name| *name == other) { in_a_row + 1 } else { 0 };
    }
}

/// Two copies, each with the other one's name, on hosts between which nothing is found out about.
fn next_door(lab: &Lab) -> [(Copy, String); 2] {
    let until = Deadline::new(60);
    loop {
        let mut copies = ["h1", "h2"].map(|host| lab.on(host, "host"));
        let names = copies.each_mut().map(Copy::hear);
        for (from, to) in [(0, 1), (1, 0)] {
            assert_eq!(sends(&mut copies[from], &names[to]).0, "arrived");
        }
        // A machine that is busy may take a millisecond for a round trip, or long to look.
        if ["h1", "h2"].iter().flat_map(|host| used_on(lab, host)).all(|name| name == "reno") {
            let ([one, two], [first, second]) = (copies, names);
            return [(one, second), (two, first)];
        }
        until.check(|| "it is always the hosts' choice".into());
    }
}

const CHOICE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Tells hosts to choose another way of congestion control than the one that needs no network; which one. `None`: there is no other.
fn choose_other(lab: &Lab, hosts: &[&str]) -> Option<String> {
    let other =
        lab.run_on(hosts[0], "tr ' ' '\\n' </proc/sys/net/ipv4/tcp_allowed_congestion_control | grep -vx reno | head -n 1");
    if other.is_empty() {
        eprintln!("left out: only one way of congestion control is allowed here");
        return None;
    }
    for host in hosts {
        lab.run_on(host, &format!("echo {other} >{CHOICE}"));
    }
    Some(other)
}

/// Each of two hosts sends to the other one; by which ways of congestion control.
fn used_between(lab: &Lab, hosts: &[&str; 2]) -> Vec<String> {
    let mut copies = hosts.map(|host| lab.on(host, "host"));
    let names: Vec<String> = copies.iter_mut().map(Copy::hear).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let (what, ms, said) = sends(&mut copies[from], &names[to]);
        assert_eq!(what, "arrived", "after {ms} ms: {said}");
    }
    let used: Vec<String> = hosts.iter().flat_map(|host| used_on(lab, host)).collect();
    assert!(used.len() >= 2, "{used:?}");
    used
}

/// The ways of congestion control of the connections that a host has.
fn used_on(lab: &Lab, host: &str) -> Vec<String> {
    let told = lab.run_on(host, "ss -tinH state established");
    // A line for the connection, and one behind a tab that begins with the word.
    let used: Vec<String> =
        told.lines().filter_map(|line| line.strip_prefix('\t')?.split_whitespace().next().map(Into::into)).collect();
    assert!(!used.is_empty(), "{told:?}");
    used
}
