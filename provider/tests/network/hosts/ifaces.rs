//! An interface that is chosen by its name (`FI_RUSTMX_IFACE`), on hosts with two cards.

use super::{Lab, sends};
use crate::common::process::Copy;

/// The places that processes of a host listen at.
fn listeners(lab: &Lab, host: &str) -> Vec<String> {
    let told = lab.run_on(host, "ss -tlnH");
    told.lines().filter_map(|line| line.split_whitespace().nth(3).map(Into::into)).collect()
}

/// Both families reach it, at this card only; a range of ports is enough for both, too.
#[test]
fn an_interface_by_its_name_is_reached_by_both_families() {
    let Some(lab) = Lab::up(&["--hosts", "3", "--dual", "--nics", "2"]) else { return };
    for (host, family) in [("h2", "-6"), ("h3", "-4")] {
        lab.run_on(host, &format!("for k in 0 1; do ip {family} addr flush dev eth$k; done"));
    }
    for ports in ["", " 20000-20000"] {
        let mut hosts = ["h1", "h2", "h3"].map(|host| lab.on(host, &format!("host eth1{ports}")));
        let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
        assert!(names[0].starts_with("rustmx://10.77.1.1,[fd77:6d78:0:1::1]:"), "{names:?}");
        assert!(names[1].starts_with("rustmx://10.77.1.2:") && names[2].starts_with("rustmx://[fd77:6d78:0:1::3]:"), "{names:?}");
        let port = names[0].split(['-', '#']).next().and_then(|place| place.rsplit(':').next()).expect("a port").to_owned();
        let mut at = listeners(&lab, "h1");
        at.sort();
        assert_eq!(at, [format!("10.77.1.1:{port}"), format!("[fd77:6d78:0:1::1]:{port}")]);
        for (from, to) in [(1, 0), (2, 0), (0, 1), (0, 2)] {
            let (what, ms, said) = sends(&mut hosts[from], &names[to]);
            assert_eq!(what, "arrived", "from {from} to {to} after {ms} ms: {said}");
        }
    }
}

/// A card that has addresses of IPv6 only, though the host has others.
#[test]
fn an_interface_by_its_name_may_have_ipv6_only() {
    let Some(lab) = Lab::up(&["--hosts", "2", "--dual", "--nics", "2"]) else { return };
    lab.run_on("h1", "ip -4 addr flush dev eth1");
    let mut hosts = ["h1", "h2"].map(|host| lab.on(host, "host eth1"));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names[0].starts_with("rustmx://[fd77:6d78:0:1::1]:"), "{names:?}");
    for (from, to) in [(0, 1), (1, 0)] {
        let (what, ms, said) = sends(&mut hosts[from], &names[to]);
        assert_eq!(what, "arrived", "from {from} to {to} after {ms} ms: {said}");
    }
}

/// An address of which the kernel has found that another host has it (RFC 4862, section 5.4) counts nowhere: it is neither told nor in the way.
#[test]
fn an_address_that_another_host_has_is_not_told() {
    let Some(lab) = Lab::up(&["--hosts", "2", "--dual"]) else { return };
    lab.run_on(
        "h1",
        "echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_dad; ip -6 addr flush dev eth0; ip addr add fd77:6d78::2/64 dev eth0
        for i in $(seq 600); do ip -6 addr show dev eth0 dadfailed | grep -q fd77 && exit; sleep 0.1; done; exit 1",
    );
    let mut hosts = ["h1", "h2"].map(|host| lab.on(host, "host eth0"));
    let names: Vec<String> = hosts.iter_mut().map(Copy::hear).collect();
    assert!(names[0].starts_with("rustmx://10.77.0.1:"), "{names:?}");
    let (what, ms, said) = sends(&mut hosts[1], &names[0]);
    assert_eq!(what, "arrived", "after {ms} ms: {said}");
}
