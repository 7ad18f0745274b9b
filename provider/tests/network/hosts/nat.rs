//! Containers behind routers that give them an address for others: each on a host of its own, or several on one.

use super::{Lab, SLACK, sends};
use crate::common::process::Copy;

/// Both behind routers that give them the same address.
#[test]
fn containers_behind_nat() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    const INSIDE: &str = "unshare --net sleep 1000 >/dev/null 2>&1 & p=$!
        until [ \"$(readlink /proc/$p/ns/net)\" != \"$(readlink /proc/$$/ns/net)\" ]; do sleep 0.05; done
        ip link add c0 type veth peer name eth0 netns $p; ip addr add 192.168.50.1/24 dev c0; ip link set c0 up
        nsenter -t $p --net sh -ec 'ip link set lo up; ip addr add 192.168.50.2/24 dev eth0; ip link set eth0 up
            ip route add default via 192.168.50.1'
        echo 1 >/proc/sys/net/ipv4/ip_forward
        nft 'table ip nat {
            chain pre { type nat hook prerouting priority -100; iifname eth0 tcp dport 20000-20009 dnat to 192.168.50.2; }
            chain post { type nat hook postrouting priority 100; oifname eth0 masquerade; }
        }'
        echo $p";
    let inside = ["h1", "h2"].map(|host| lab.run_on(host, INSIDE));
    let container = |host: usize, words: &str| {
        let name = format!("h{}", host + 1);
        lab.on_by(&["exec", &name, "nsenter", "-t", &inside[host], "--net", "--"], words)
    };
    // They tell others what nobody outside can use: that is told in time.
    let mut hosts = [0, 1].map(|i| container(i, "host"));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names.iter().all(|n| n.starts_with("rustmx://192.168.50.2:")), "{names:?}");
    let (what, ms, said) = sends(&mut hosts[0], &names[1]);
    assert!(["Refused", "TimedOut", "Unreachable"].contains(&what.as_str()) && ms < 6000, "{what} after {ms} ms: {said}");
    assert!(said.contains("192.168.50.2:"), "{said}");
    drop(hosts);
    // They tell the router's.
    let mut hosts = [0, 1].map(|i| container(i, &format!("host @10.77.0.{} 20000-20009", i + 1)));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names[1].starts_with("rustmx://10.77.0.2:200"), "{names:?}");
    for (from, to) in [(0, 1), (1, 0)] {
        let (what, ms, said) = sends(&mut hosts[from], &names[to]);
        assert_eq!(what, "arrived", "after {ms} ms: {said}");
    }
}

/// Two containers on one host, behind its router: both are reached by its address, by ports of their own, also by each other (the router passes on what comes
/// from inside, and answers go back by it). A port each is enough.
#[test]
fn containers_of_one_host_behind_nat() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let inside = containers(&lab, 2, "oifname eth0 masquerade; ip saddr 192.168.50.0/24 ip daddr 192.168.50.0/24 masquerade");
    let words = |i: usize| format!("host @10.77.0.1 2000{i}-2000{i}");
    let mut all = [
        container(&lab, &inside, 0, &words(0)),
        container(&lab, &inside, 1, &words(1)),
        lab.on("h2", "host 10.77.0.2 20000-20000"),
    ];
    let names: Vec<String> = all.iter_mut().map(Copy::hear).collect();
    let places: Vec<&str> = names.iter().map(|name| name.split(['/', '#']).nth(2).expect("a place")).collect();
    assert!(places[0].starts_with("10.77.0.1:20000") && places[1].starts_with("10.77.0.1:20001"), "{names:?}");
    for (from, rank) in all.iter_mut().enumerate() {
        for to in (0..3).filter(|to| *to != from) {
            let (what, ms, said) = sends(rank, &names[to]);
            assert_eq!(what, "arrived", "from {from} to {to} after {ms} ms: {said}");
        }
    }
}

/// The same, and the router does not pass on what containers say to its own address, or answers go another way: those outside are reached, and what fails
/// is told in time. They reach each other if they tell their own addresses.
#[test]
fn containers_of_one_host_behind_nat_that_does_not_lead_back() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let inside = containers(&lab, 2, "oifname eth0 masquerade");
    let words = |i: usize| format!("host @10.77.0.1 2000{i}-2000{i}");
    let mut all = [container(&lab, &inside, 0, &words(0)), container(&lab, &inside, 1, &words(1)), lab.on("h2", "host")];
    let names: Vec<String> = all.iter_mut().map(Copy::hear).collect();
    for (from, to) in [(0, 2), (2, 1)] {
        let (what, ms, said) = sends(&mut all[from], &names[to]);
        assert_eq!(what, "arrived", "from {from} to {to} after {ms} ms: {said}");
    }
    let (what, ms, said) = sends(&mut all[0], &names[1]);
    assert!(["Refused", "TimedOut", "Unreachable"].contains(&what.as_str()) && ms < 3000 + SLACK, "{what} after {ms} ms: {said}");
    assert!(said.contains("10.77.0.1:20001"), "{said}");
    drop(all);
    let mut all = [0, 1].map(|i| container(&lab, &inside, i, "host"));
    let names: Vec<String> = all.iter_mut().map(Copy::hear).collect();
    assert!(names[0].starts_with("rustmx://192.168.50.2:") && names[1].starts_with("rustmx://192.168.50.3:"), "{names:?}");
    for (from, to) in [(0, 1), (1, 0)] {
        let (what, ms, said) = sends(&mut all[from], &names[to]);
        assert_eq!(what, "arrived", "after {ms} ms: {said}");
    }
}

/// Containers on one bridge of h1, which is their router: it publishes port 20000 of the first one under that number, 20001 of the second one; `back`: what it
/// does with answers. What holds each of them.
fn containers(lab: &Lab, count: usize, back: &str) -> Vec<String> {
    lab.run_on(
        "h1",
        "ip link add br0 type bridge; ip addr add 192.168.50.1/24 dev br0; ip link set br0 up; echo 1 >/proc/sys/net/ipv4/ip_forward",
    );
    let publish: String =
        (0..count).map(|i| format!("ip daddr 10.77.0.1 tcp dport 2000{i} dnat to 192.168.50.{}; ", i + 2)).collect();
    lab.run_on(
        "h1",
        &format!(
            "nft 'table ip nat {{
            chain pre {{ type nat hook prerouting priority -100; {publish} }}
            chain post {{ type nat hook postrouting priority 100; {back}; }}
            }}'"
        ),
    );
    let one = |i: usize| {
        let script = format!(
            "unshare --net sleep 1000 >/dev/null 2>&1 & p=$!
            until [ \"$(readlink /proc/$p/ns/net)\" != \"$(readlink /proc/$$/ns/net)\" ]; do sleep 0.05; done
            ip link add c{i} type veth peer name eth0 netns $p; ip link set c{i} master br0; ip link set c{i} up
            nsenter -t $p --net sh -ec 'ip link set lo up; ip addr add 192.168.50.{}/24 dev eth0; ip link set eth0 up
                ip route add default via 192.168.50.1'
            echo $p",
            i + 2
        );
        lab.run_on("h1", &script)
    };
    (0..count).map(one).collect()
}

/// This program in a role, in a container of h1.
fn container(lab: &Lab, inside: &[String], which: usize, words: &str) -> Copy {
    lab.on_by(&["exec", "h1", "nsenter", "-t", &inside[which], "--net", "--"], words)
}
