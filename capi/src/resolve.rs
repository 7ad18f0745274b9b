//! Node and service strings to names: for `fi_getinfo` and for the textual insertions of an address vector.

use rustmx::Name;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// How the text of [`Name`] begins (`FI_ADDR_STR` of this provider).
const SCHEME: &str = "rustmx://";

/// Whether `node` is the text of a name.
pub(crate) fn is_name(node: &str) -> bool {
    node.starts_with(SCHEME)
}

/// The contact address of `service` at `node`. `node` may also be the text of a name, then without a service.
/// `numeric`: the node must be an address, nothing is looked up (`FI_NUMERICHOST`).
pub(crate) fn contact(node: &str, service: Option<&str>, numeric: bool) -> Option<Name> {
    if is_name(node) {
        return if service.is_none() { node.parse().ok() } else { None };
    }
    let port = port(service?)?;
    let (ip, scope_id) = address(node, numeric)?;
    Some(Name::contact(ip, scope_id, port))
}

/// A service to listen at, of `node` or of any address of this host.
pub(crate) fn service(node: Option<&str>, service: &str, numeric: bool) -> Option<Name> {
    let (ip, scope_id) = match node {
        Some(node) => address(node, numeric)?,
        None => (Ipv6Addr::UNSPECIFIED.into(), 0),
    };
    Some(Name::contact(ip, scope_id, port(service)?))
}

/// The address of a node.
pub(crate) fn address(node: &str, numeric: bool) -> Option<(IpAddr, u32)> {
    if let Ok(ip) = node.parse() {
        return Some((ip, 0));
    }
    // The system's resolver also reads "fe80::1%eth0"; after a '%' nothing is looked up by name.
    if numeric && !node.contains('%') {
        return None;
    }
    match (node, 0).to_socket_addrs().ok()?.next()? {
        SocketAddr::V4(a) => Some(((*a.ip()).into(), 0)),
        SocketAddr::V6(a) => Some(((*a.ip()).into(), a.scope_id())),
    }
}

fn port(service: &str) -> Option<u16> {
    service.trim().parse().ok().filter(|p| *p != 0)
}

/// `fi_av_insertsym`: node and service number `n` after those given. The last digits of a host name count up and keep their
/// width (`node009`, `node010`); an IP address counts up as a number.
pub(crate) fn nth(node: &str, n: usize) -> Option<String> {
    if n == 0 {
        return Some(node.into());
    }
    if let Ok(ip) = node.parse::<Ipv4Addr>() {
        return u32::from(ip).checked_add(n.try_into().ok()?).map(|ip| Ipv4Addr::from(ip).to_string());
    }
    if let Ok(ip) = node.parse::<Ipv6Addr>() {
        return u128::from(ip).checked_add(n as u128).map(|ip| Ipv6Addr::from(ip).to_string());
    }
    let stem = node.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &node[stem.len()..];
    let number = digits.parse::<usize>().ok()?.checked_add(n)?;
    Some(format!("{stem}{number:0width$}", width = digits.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_services() {
        let name = contact("127.0.0.1", Some("9228"), true).expect("an address and a port");
        assert_eq!((name.ip(), name.port()), (IpAddr::V4(Ipv4Addr::LOCALHOST), 9228));
        assert_eq!(contact(&name.to_string(), None, true), Some(name));
        assert_eq!(contact("::1", Some("1"), true).expect("IPv6").ip(), IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert!(contact("localhost", Some("9228"), false).is_some());
        for (node, port) in [("localhost", Some("9228")), ("127.0.0.1", None), ("127.0.0.1", Some("0")), ("127.0.0.1", Some("x"))]
        {
            assert_eq!(contact(node, port, true), None, "{node} {port:?}");
        }
        assert_eq!(service(None, "7", false).expect("any address").port(), 7);
    }

    #[test]
    fn symmetric_nodes_count_up() {
        assert_eq!(nth("10.0.0.255", 1).as_deref(), Some("10.0.1.0"));
        assert_eq!(nth("fe80::ff", 1).as_deref(), Some("fe80::100"));
        assert_eq!(nth("node009", 1).as_deref(), Some("node010"));
        assert_eq!(nth("plain", 0).as_deref(), Some("plain"));
        assert_eq!(nth("plain", 1), None);
        assert_eq!(nth("255.255.255.255", 1), None);
    }
}
