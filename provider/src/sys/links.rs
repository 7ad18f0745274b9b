//! By what packets to an address leave: the interface, and what is known of it. Nothing is sent to find out.

use super::interfaces::{self, Kind};
use std::fmt;
use std::fs::read_to_string;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

/// An interface, as far as times depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub interface: String,
    /// Its longest packet in bytes, if the system tells.
    pub mtu: Option<u32>,
    /// Millions of bits a second, if its driver tells.
    pub speed: Option<u32>,
}

/// A profile names links by these words.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.interface)?;
        if let Some(mtu) = self.mtu {
            write!(f, ", MTU {mtu}")?;
        }
        match self.speed {
            Some(speed) => write!(f, ", {speed} Mbit/s"),
            None => Ok(()),
        }
    }
}

impl Link {
    /// The interface of a name.
    pub fn named(interface: &str) -> Link {
        let number = |what: &str| read_to_string(format!("/sys/class/net/{interface}/{what}")).ok()?.trim().parse().ok();
        // Virtual cards say -1, or nothing.
        Link { interface: interface.into(), mtu: number("mtu"), speed: number("speed").filter(|speed| *speed > 0) }
    }

    /// By which packets to an address leave; `None`: none does.
    pub fn to(ip: IpAddr, scope_id: u32) -> Option<Link> {
        // The port does not matter: a datagram socket that is connected only looks its route up.
        const ANY_PORT: u16 = 9;
        let to = match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, ANY_PORT),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, ANY_PORT, 0, scope_id).into(),
        };
        let any: IpAddr = if ip.is_ipv4() { IpAddr::from([0u8; 4]) } else { IpAddr::from([0u16; 8]) };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(to).ok()?;
        let from = socket.local_addr().ok()?.ip();
        // What goes to an address of this host never reaches a card.
        if from == ip || ip.is_loopback() {
            let all = interfaces::all();
            return Some(Link::named(&all.iter().find(|i| i.kind == Kind::Loopback)?.name));
        }
        Link::of_address(from)
    }

    /// The interface that has an address of this host; `None`: none does.
    pub fn of_address(own: IpAddr) -> Option<Link> {
        let all = interfaces::all();
        Some(Link::named(&all.iter().find(|i| i.ip == own)?.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_this_host_leave_by_the_loopback_interface() {
        let Some(lo) = interfaces::all().into_iter().find(|i| i.kind == Kind::Loopback) else {
            return println!("skipped: no loopback interface is up");
        };
        for i in interfaces::all() {
            let link = Link::to(i.ip, i.scope_id).map(|link| link.interface);
            assert_eq!(link.as_deref(), Some(lo.name.as_str()), "{}", i.ip);
        }
    }

    #[test]
    fn links_are_named_by_what_is_known() {
        let link = |mtu, speed| Link { interface: "eth0".into(), mtu, speed }.to_string();
        assert_eq!(link(Some(1500), Some(10_000)), "eth0, MTU 1500, 10000 Mbit/s");
        assert_eq!(link(None, None), "eth0");
        assert_eq!(Link::named("no such interface"), Link { interface: "no such interface".into(), mtu: None, speed: None });
    }
}
