//! The network interfaces of this host, best first: by which of its addresses others are most likely to reach this process.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// The scope of a link-local IPv6 address; else 0.
    pub scope_id: u32,
    /// What it is good for.
    pub kind: Kind,
    /// Whether packets to anywhere leave by it.
    pub has_default_route: bool,
}

/// What an interface is good for, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A network card, or what looks like one.
    Card,
    /// The inside of a bridge to containers or virtual machines of this host, by its name.
    Bridge,
    /// A tunnel to one other host.
    PointToPoint,
    /// This host only.
    Loopback,
}

/// Names with which container and machine managers begin those of their bridges.
const BRIDGES: [&str; 8] = ["docker", "br-", "virbr", "cni", "podman", "lxcbr", "lxdbr", "flannel"];

/// How well an address serves, less is better, by the first of these that differs: cards, bridges, tunnels, loopback; addresses of any scope before
/// link-local ones; interfaces with a default route before others; IPv4 first, which every host of a mixed job has. So a card without a default route
/// comes before a tunnel with one: a tunnel often takes all that leaves the site, and the other ranks are on the site.
fn rank(interface: &Interface) -> (Kind, bool, bool, bool) {
    (interface.kind, interface.is_link_local(), !interface.has_default_route, interface.ip.is_ipv6())
}

/// All addresses, best first.
pub fn all() -> Vec<Interface> {
    let ways_out = default_routes(
        &std::fs::read_to_string("/proc/net/route").unwrap_or_default(),
        &std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default(),
    );
    let Ok(addresses) = getifaddrs() else { return Vec::new() };
    let mut all: Vec<Interface> = addresses
        .filter(|a| a.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING))
        .filter_map(|a| {
            let address = a.address?;
            let (ip, scope_id) = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => (IpAddr::V4(v4.ip()), 0),
                (_, Some(v6)) => (IpAddr::V6(v6.ip()), v6.scope_id()),
                _ => return None,
            };
            let kind = kind(&a.interface_name, a.flags);
            let has_default_route = ways_out.contains(&(a.interface_name.clone(), ip.is_ipv6()));
            Some(Interface { name: a.interface_name, ip, scope_id, kind, has_default_route })
        })
        .collect();
    all.sort_by_key(rank);
    all
}

/// Of all addresses, best first, those that others may be told: of the best kind that there is, and link-local ones only if there is nothing else
/// of that kind. The others would be tried in vain at best; at worst somebody else has them, too, as that of the bridge of container managers: there the
/// caller reaches its own host, and who gets through first is heard alone (`transport/tcp/call.rs`). Those who are joined by a tunnel only name it.
pub fn worth_telling(all: &[Interface]) -> impl Iterator<Item = &Interface> {
    let best = all.first();
    let alike = move |i: &&Interface| best.is_some_and(|b| b.kind == i.kind && b.is_link_local() == i.is_link_local());
    all.iter().filter(alike)
}

impl Interface {
    /// Whether its address means something on one link only.
    pub fn is_link_local(&self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }
}

impl Interface {
    /// What speaks for it and against it, in words.
    fn in_words(&self) -> &'static str {
        match (self.kind, self.has_default_route) {
            (Kind::Card, true) => "a network card with a default route",
            (Kind::Card, false) => "a network card without a default route",
            (Kind::Bridge, _) => "a bridge to containers or virtual machines of this host",
            (Kind::PointToPoint, _) => "a tunnel to one other host",
            (Kind::Loopback, _) => "for this host only",
        }
    }
}

/// The interface of an address, and why it is the one that others are told if nobody named another: for people. `all` as of [`all`].
pub fn why(all: &[Interface], ip: IpAddr) -> Option<(&Interface, String)> {
    let at = all.iter().position(|i| i.ip == ip)?;
    let words = all[at].in_words();
    let rank = match (at, all.len()) {
        (_, 1) => "the only address that is up".into(),
        (0, n) => format!("the best of {n} addresses"),
        (_, n) => format!("not the best of {n} addresses"),
    };
    Some((&all[at], format!("{words}, {rank}")))
}

fn kind(name: &str, flags: InterfaceFlags) -> Kind {
    if flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        Kind::Loopback
    } else if flags.contains(InterfaceFlags::IFF_POINTOPOINT) {
        Kind::PointToPoint
    } else if BRIDGES.iter().any(|b| name.starts_with(b)) {
        Kind::Bridge
    } else {
        Kind::Card
    }
}

/// The interfaces of default routes, and whether for IPv6, from the kernel's tables (proc(5)).
fn default_routes(v4: &str, v6: &str) -> Vec<(String, bool)> {
    let of_v4 = v4.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Interface, destination, gateway, flags, …, mask.
        (fields.len() > 7 && fields[1] == "00000000" && fields[7] == "00000000").then(|| (fields[0].to_owned(), false))
    });
    let of_v6 = v6.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Destination, its prefix length, …, interface.
        let nowhere = fields.last().is_none_or(|name| *name == "lo");
        (fields.len() > 9 && !nowhere && fields[0].bytes().all(|b| b == b'0') && fields[1] == "00")
            .then(|| (fields[9].to_owned(), true))
    });
    of_v4.chain(of_v6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_found() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        let v6 = "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n\
                  00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth2\n\
                  00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";
        assert_eq!(default_routes(v4, v6), [("eth0".to_owned(), false), ("eth2".to_owned(), true)]);
        assert!(default_routes("garbage", "\n\n0 0\n").is_empty());
        // To half of all addresses; and one of which the mask alone is zero.
        let v4 =
            "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000080\t0\t0\t0\neth1\t0000FEA9\t0\t0001\t0\t0\t0\t00000000\t0\t0\t0\n";
        let v6 =
            "00000000000000000000000000000000 01 0 00 0 0 0 0 0 eth0\n20000000000000000000000000000000 00 0 00 0 0 0 0 0 eth1\n";
        assert!(default_routes(v4, v6).is_empty());
    }

    fn at(name: &str, ip: &str, kind: Kind, has_default_route: bool) -> Interface {
        Interface { name: name.into(), ip: ip.parse().expect("ip"), scope_id: 0, kind, has_default_route }
    }

    #[test]
    fn the_best_address_comes_first() {
        let make = |name, ip, flags, has_default_route| at(name, ip, kind(name, flags), has_default_route);
        let up = InterfaceFlags::IFF_UP;
        let mut all = [
            make("lo", "127.0.0.1", up | InterfaceFlags::IFF_LOOPBACK, false),
            make("tun0", "10.8.0.1", up | InterfaceFlags::IFF_POINTOPOINT, true),
            make("docker0", "172.17.0.1", up, false),
            make("eth1", "fe80::1", up, false),
            make("eth1", "fd00::1", up, false),
            make("eth1", "192.168.1.1", up, false),
            make("eth0", "192.0.2.1", up, true),
        ];
        all.sort_by_key(rank);
        let order: Vec<String> = all.iter().map(|i| i.ip.to_string()).collect();
        assert_eq!(order, ["192.0.2.1", "192.168.1.1", "fd00::1", "fe80::1", "172.17.0.1", "10.8.0.1", "127.0.0.1"]);
    }

    #[test]
    fn the_reason_is_told() {
        let all = [at("eth0", "192.0.2.1", Kind::Card, true), at("lo", "127.0.0.1", Kind::Loopback, false)];
        let told =
            |all: &[Interface], ip: &str| why(all, ip.parse().expect("ip")).map(|(i, words)| format!("{}: {words}", i.name));
        let best = told(&all, "192.0.2.1");
        assert_eq!(best.as_deref(), Some("eth0: a network card with a default route, the best of 2 addresses"));
        assert_eq!(told(&all, "127.0.0.1").as_deref(), Some("lo: for this host only, not the best of 2 addresses"));
        assert_eq!(told(&all[1..], "127.0.0.1").as_deref(), Some("lo: for this host only, the only address that is up"));
        assert_eq!(told(&all, "192.0.2.2"), None);
    }

    #[test]
    fn others_are_told_what_may_lead_here() {
        let at = |name, ip, kind| at(name, ip, kind, false);
        let mut all = vec![
            at("lo", "127.0.0.1", Kind::Loopback),
            at("docker0", "172.17.0.1", Kind::Bridge),
            at("eth0", "fe80::1", Kind::Card),
        ];
        let told = |all: &mut Vec<Interface>| {
            all.sort_by_key(rank);
            worth_telling(all).map(|i| i.ip.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut all), ["fe80::1"]);
        all.push(at("eth0", "fd00::1", Kind::Card));
        all.push(at("eth1", "10.0.0.1", Kind::Card));
        assert_eq!(told(&mut all), ["10.0.0.1", "fd00::1"]);
        assert_eq!(told(&mut all[..0].to_vec()), [""; 0]);
        all.retain(|i| i.kind != Kind::Card);
        assert_eq!(told(&mut all), ["172.17.0.1"]);
    }

    #[test]
    fn this_host_has_addresses() {
        assert!(all().iter().all(|i| !i.name.is_empty()));
    }
}
