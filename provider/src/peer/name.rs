//! The name of an endpoint: 56 bytes, the same length for every endpoint of a job (`docs/adr/0005-names.md`).
//!
//! ```text
//!  0  4  "rmx" 0x03            magic and version of this format
//!  4  1  flags                 bit 0: contact (no identity yet); bit 1: listens by port; bit 2: by the network only;
//!                              bits 3 and 4: what the next 20 bytes but the port are
//!  5  1  protocol              low byte of the version of the protocol that the endpoint speaks; 0 in a contact
//!  6  2  port, network order   of the service, and of the TCP side at all addresses; 0: none
//!  8 16  IPv6 address          IPv4 as ::ffff:a.b.c.d; :: when unspecified, also that of IPv4
//! 24  4  scope id, little endian
//!  8 20  with bit 3            an IPv6 address of any scope, and the IPv4 address of the same endpoint
//!  8 20  with bit 4            two to five IPv4 addresses, best first, then zeros
//! 28  4  endpoint index        within its process
//! 32  8  nonce                 random for each endpoint; 0 in a contact
//! 40  8  host id               equal where abstract sockets reach; 0 in a contact
//! 48  8  table                 where its memory regions are listed, in its address space (`region::table::Locator`); 0: nowhere
//! ```
//! The nonce makes the name that of *this* endpoint of *this* process: a restarted process, another endpoint, or the
//! same loopback address on another host has another one.
//!
//! The version makes that ranks which could not talk to each other find it out when they get to know their names, which MPIs do when they start
//! and take seriously (docs/adr/0005-names.md). It is no field of [`Name`]: what is one, is one of our version.

use crate::error::{Error, Result};
use crate::sys::host::same_machine;
use crate::wire::version;
use smallvec::SmallVec;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::str::FromStr;

/// Bytes of a name.
pub const NAME_LEN: usize = 56;
/// `addr_format` of rustmx names: private to the provider (`FI_PROV_SPECIFIC`, the top bit).
pub const NAME_FORMAT: u32 = 1 << 31 | 0x0072_6d78;

const MAGIC: [u8; 4] = *b"rmx\x03";
const CONTACT: u8 = 1;
const BY_PORT: u8 = 2;
const NETWORK_ONLY: u8 = 4;
const FAMILIES: u8 = 8;
const FOURS: u8 = 16;
/// The bytes that tell endpoints apart.
const IDENTITY: Range<usize> = 28..40;
/// IPv4 addresses that there is room for.
const MOST_FOURS: usize = 5;

/// Addresses of one endpoint, best first, each with the scope that a link-local IPv6 one has *on its host*, else 0.
pub type Addresses = SmallVec<[(IpAddr, u32); MOST_FOURS]>;

/// What tells endpoints apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    nonce: u64,
    index: u32,
}

/// An address to listen at, asked for explicitly (fi_getinfo(3) with a service).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Address; unspecified means any of this host.
    pub ip: IpAddr,
    /// Scope of a link-local IPv6 address, else 0.
    pub scope_id: u32,
    /// Port, not 0.
    pub port: u16,
}

/// A validated endpoint name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    flags: u8,
    port: u16,
    ip: Ipv6Addr,
    scope_id: u32,
    index: u32,
    nonce: u64,
    host: u64,
    table: u64,
}

impl Name {
    /// The name of endpoint `index` of this process. `nonce` must not be 0.
    pub fn new(nonce: u64, index: u32, host: u64, service: Option<Service>) -> Name {
        debug_assert!(nonce != 0);
        let s = service.unwrap_or(Service { ip: Ipv6Addr::UNSPECIFIED.into(), scope_id: 0, port: 0 });
        let flags = if service.is_some() { BY_PORT } else { 0 };
        Name { flags, port: s.port, ip: v6(s.ip), scope_id: s.scope_id, index, nonce, host, table: 0 }
    }

    /// The contact address of a service: whoever listens there; its identity is learnt at first contact.
    pub fn contact(ip: IpAddr, scope_id: u32, port: u16) -> Name {
        Name { flags: CONTACT | BY_PORT, port, ip: v6(ip), scope_id, index: 0, nonce: 0, host: 0, table: 0 }
    }

    /// The version of the protocol that the endpoint of a name speaks, if it is another one than ours.
    pub fn foreign(b: &[u8]) -> Option<u32> {
        let says = b.len() == NAME_LEN && b[..4] == MAGIC && b[4] & CONTACT == 0;
        (says && b[5] != our_version()).then(|| u32::from(b[5]))
    }

    /// Reads a name that came from outside.
    ///
    /// # Errors
    /// [`Error::Version`] if it is a name of another format, or of an endpoint of another version; else [`Error::Invalid`] if it is not exactly a name
    /// of this format.
    pub fn from_bytes(b: &[u8]) -> Result<Name> {
        if b.len() > 3 && b[..3] == MAGIC[..3] && b[3] != MAGIC[3] {
            return Err(Error::Version);
        }
        if Name::foreign(b).is_some() {
            return Err(Error::Version);
        }
        let b: &[u8; NAME_LEN] = b.try_into().map_err(|_| Error::Invalid)?;
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let mut ip = [0u8; 16];
        ip.copy_from_slice(&b[8..24]);
        let name = Name {
            flags: b[4],
            port: u16::from_be_bytes([b[6], b[7]]),
            ip: ip.into(),
            scope_id: u32_at(24),
            index: u32_at(28),
            nonce: u64_at(32),
            host: u64_at(40),
            table: u64_at(48),
        };
        let contact = name.is_contact();
        let sound = b[..4] == MAGIC
            && name.flags & !(CONTACT | BY_PORT | NETWORK_ONLY | FAMILIES | FOURS) == 0
            && (b[5] == 0 || !contact)
            && (name.nonce == 0) == contact
            && (name.host == 0) == contact
            && (name.takes_memory() || !contact)
            && (name.table == 0 || !contact)
            && (name.flags & BY_PORT == 0 || name.port != 0)
            && name.has_sound_addresses();
        if sound { Ok(name) } else { Err(Error::Invalid) }
    }

    /// Whether the 20 bytes are what the flags say, in the one way in which they can be written.
    fn has_sound_addresses(&self) -> bool {
        match self.flags & (FAMILIES | FOURS) {
            0 => self.ip.to_ipv4_mapped() != Some(Ipv4Addr::UNSPECIFIED),
            _ if self.is_contact() || self.port == 0 => false,
            FAMILIES => {
                self.ip.to_ipv4_mapped().is_none() && !self.ip.is_unspecified() && self.scope_id != 0 && !is_local(&self.ip)
            }
            FOURS => {
                let fours = self.fours();
                let count = fours.iter().take_while(|ip| !ip.is_unspecified()).count();
                let distinct = (0..count).all(|i| !fours[..i].contains(&fours[i]));
                count >= 2 && distinct && fours[count..].iter().all(Ipv4Addr::is_unspecified)
            }
            _ => false,
        }
    }

    fn fours(&self) -> [Ipv4Addr; MOST_FOURS] {
        let mut bytes = [0; 4 * MOST_FOURS];
        bytes[..16].copy_from_slice(&self.ip.octets());
        bytes[16..].copy_from_slice(&self.scope_id.to_le_bytes());
        std::array::from_fn(|i| [0, 1, 2, 3].map(|k| bytes[4 * i + k]).into())
    }

    /// The 56 bytes.
    pub fn to_bytes(&self) -> [u8; NAME_LEN] {
        let mut b = [0; NAME_LEN];
        b[..4].copy_from_slice(&MAGIC);
        b[4] = self.flags;
        b[5] = if self.is_contact() { 0 } else { our_version() };
        b[6..8].copy_from_slice(&self.port.to_be_bytes());
        b[8..24].copy_from_slice(&self.ip.octets());
        b[24..28].copy_from_slice(&self.scope_id.to_le_bytes());
        b[28..32].copy_from_slice(&self.index.to_le_bytes());
        b[32..40].copy_from_slice(&self.nonce.to_le_bytes());
        b[40..48].copy_from_slice(&self.host.to_le_bytes());
        b[48..].copy_from_slice(&self.table.to_le_bytes());
        b
    }

    /// Of two endpoints that call each other at once over the network, one call counts: whether it is that of the first. Both sides say the same, also
    /// where they know each other by other addresses than each by its own: only what is an endpoint's identity is looked at.
    pub fn call_counts(first: &[u8; NAME_LEN], second: &[u8; NAME_LEN]) -> bool {
        first[IDENTITY] < second[IDENTITY]
    }

    /// Whether the identity is still to be learnt.
    pub fn is_contact(&self) -> bool {
        self.flags & CONTACT != 0
    }

    /// What tells this endpoint from all others; `None` in a contact.
    pub fn identity(&self) -> Option<Identity> {
        (!self.is_contact()).then_some(Identity { nonce: self.nonce, index: self.index })
    }

    /// Whether abstract sockets of a process with host id `host` may reach it. A contact is on this host if its address is.
    pub fn is_local_to(&self, host: u64, own_address: impl FnOnce(IpAddr) -> bool) -> bool {
        if self.is_contact() { own_address(self.ip()) } else { self.host == host }
    }

    /// Whether it runs under the kernel of a process with host id `host`, perhaps in another network namespace.
    pub fn is_under_kernel_of(&self, host: u64) -> bool {
        !self.is_contact() && same_machine(self.host, host)
    }

    /// Whether it takes memory from processes of its host.
    pub fn takes_memory(&self) -> bool {
        self.flags & NETWORK_ONLY == 0
    }

    /// The same endpoint, which does not.
    pub fn network_only(self) -> Name {
        Name { flags: self.flags | NETWORK_ONLY, ..self }
    }

    /// The same endpoint, which other hosts find at this port of these addresses, best first. There is room for one IPv6 address of
    /// any scope and one IPv4 address, or for five IPv4 addresses, or for a single address of any kind: the first ones that fit are kept.
    pub fn at(self, addresses: &[(IpAddr, u32)], port: u16) -> Name {
        let fours = addresses.iter().filter_map(|(ip, _)| match ip.to_canonical() {
            IpAddr::V4(ip) if !ip.is_unspecified() => Some(ip),
            _ => None,
        });
        let mut distinct: SmallVec<[Ipv4Addr; MOST_FOURS]> = SmallVec::new();
        fours.for_each(|ip| {
            if distinct.len() < MOST_FOURS && !distinct.contains(&ip) {
                distinct.push(ip)
            }
        });
        let six = addresses.iter().find_map(|(ip, scope)| match ip.to_canonical() {
            IpAddr::V6(ip) if *scope == 0 && !ip.is_unspecified() && !is_local(&ip) => Some(ip),
            _ => None,
        });
        let name = Name { flags: self.flags & !(FAMILIES | FOURS), port, ..self };
        match (six, distinct.as_slice(), addresses.first()) {
            (Some(six), [four, ..], _) if port != 0 => {
                Name { flags: name.flags | FAMILIES, ip: six, scope_id: u32::from_le_bytes(four.octets()), ..name }
            }
            (None, [_, _, ..], _) if port != 0 => {
                let mut bytes = [0; 4 * MOST_FOURS];
                distinct.iter().enumerate().for_each(|(i, ip)| bytes[4 * i..4 * i + 4].copy_from_slice(&ip.octets()));
                let (mut ip, mut last) = ([0; 16], [0; 4]);
                ip.copy_from_slice(&bytes[..16]);
                last.copy_from_slice(&bytes[16..]);
                Name { flags: name.flags | FOURS, ip: ip.into(), scope_id: u32::from_le_bytes(last), ..name }
            }
            (_, _, Some(&(ip, scope_id))) => Name { ip: v6(ip), scope_id, ..name },
            (_, _, None) => Name { ip: Ipv6Addr::UNSPECIFIED, scope_id: 0, ..name },
        }
    }

    /// The addresses at which other hosts find it, best first: IPv4 before IPv6, which fewer networks carry.
    pub fn addresses(&self) -> Addresses {
        match self.flags & (FAMILIES | FOURS) {
            FAMILIES => [(IpAddr::from(self.scope_id.to_le_bytes()), 0), (self.ip.into(), 0)].into_iter().collect(),
            FOURS => self.fours().into_iter().filter(|ip| !ip.is_unspecified()).map(|ip| (ip.into(), 0)).collect(),
            _ => [(IpAddr::V6(self.ip).to_canonical(), self.scope_id)].into_iter().collect(),
        }
    }

    /// The abstract socket that its endpoint listens at.
    pub fn socket_name(&self) -> String {
        if self.flags & BY_PORT != 0 {
            format!("rustmx/1/port/{}", self.port)
        } else {
            format!("rustmx/1/{:016x}/{}", self.nonce, self.index)
        }
    }

    /// The same endpoint, with its table of regions at `table` (`region::table::Locator`).
    pub fn with_table(self, table: u64) -> Name {
        Name { table, ..self }
    }

    /// Where its regions are listed in its address space (`region::table::Locator`); 0: not known.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Port of the service and of the TCP side, 0 if none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its best address, IPv4 where it is one.
    pub fn ip(&self) -> IpAddr {
        self.addresses()[0].0
    }

    /// The address to listen at that this name stands for, if it has one.
    pub fn service(&self) -> Option<Service> {
        let (ip, scope_id) = self.addresses()[0];
        (self.flags & BY_PORT != 0).then_some(Service { ip, scope_id, port: self.port })
    }
}

fn our_version() -> u8 {
    version::protocol() as u8
}

/// Whether an address means something on one link only.
fn is_local(ip: &Ipv6Addr) -> bool {
    ip.is_unicast_link_local()
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip.to_canonical() {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// `rustmx://ADDRESS[%SCOPE][,ADDRESS]…:PORT[+][-][#INDEX/NONCE@HOST/TABLE]`: `+` if it listens by port, `-` if by the network only.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rustmx://")?;
        for (i, address) in self.addresses().into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match address {
                (IpAddr::V4(ip), _) => write!(f, "{comma}{ip}")?,
                (IpAddr::V6(ip), 0) => write!(f, "{comma}[{ip}]")?,
                (IpAddr::V6(ip), scope) => write!(f, "{comma}[{ip}%{scope}]")?,
            }
        }
        write!(f, ":{}", self.port)?;
        if self.is_contact() {
            return Ok(());
        }
        let by_port = if self.flags & BY_PORT != 0 { "+" } else { "" };
        let only = if self.flags & NETWORK_ONLY != 0 { "-" } else { "" };
        write!(f, "{by_port}{only}#{}/{:016x}@{:016x}/{:x}", self.index, self.nonce, self.host, self.table)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn address(text: &str) -> Option<(IpAddr, u32)> {
    let Some(v6) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) else {
        return Some((IpAddr::V4(text.parse().ok()?), 0));
    };
    let (ip, scope) = v6.split_once('%').map_or((v6, Some(0)), |(ip, scope)| (ip, scope.parse().ok()));
    Some((IpAddr::V6(ip.parse().ok()?).to_canonical(), scope?))
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name> {
        fn parts(text: &str) -> Option<Name> {
            let rest = text.strip_prefix("rustmx://")?;
            let (place, identity) = match rest.split_once('#') {
                Some((p, i)) => (p, Some(i)),
                None => (rest, None),
            };
            let (host, port) = place.rsplit_once(':')?;
            let (port, only) = match port.strip_suffix('-') {
                Some(p) => (p, true),
                None => (port, false),
            };
            let (port, by_port) = match port.strip_suffix('+') {
                Some(p) => (p, true),
                None => (port, false),
            };
            let port: u16 = port.parse().ok()?;
            let addresses = host.split(',').map(address).collect::<Option<Addresses>>()?;
            let (ip, scope_id) = *addresses.first()?;
            let Some(identity) = identity else {
                return (port != 0 && !by_port && !only && addresses.len() == 1).then(|| Name::contact(ip, scope_id, port));
            };
            let (index, rest) = identity.split_once('/')?;
            let (nonce, rest) = rest.split_once('@')?;
            let (host, table) = rest.split_once('/')?;
            let name = Name {
                flags: if by_port { BY_PORT } else { 0 } | if only { NETWORK_ONLY } else { 0 },
                port,
                ip: v6(ip),
                scope_id,
                index: index.parse().ok()?,
                nonce: u64::from_str_radix(nonce, 16).ok()?,
                host: u64::from_str_radix(host, 16).ok()?,
                table: u64::from_str_radix(table, 16).ok()?,
            };
            let name = if addresses.len() > 1 { name.at(&addresses, port) } else { name };
            Name::from_bytes(&name.to_bytes()).ok().filter(|name| addresses.len() == 1 || name.addresses() == addresses)
        }
        parts(text).ok_or(Error::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_name() -> impl Strategy<Value = Name> {
        (any::<u64>(), any::<u32>(), any::<u64>(), any::<bool>(), any::<bool>(), any::<[u8; 16]>(), any::<u32>(), 1u16..)
            .prop_map(|(nonce, index, host, contact, by_port, ip, scope, port)| {
                let ip = IpAddr::V6(ip.into()).to_canonical();
                let scope_id = if ip.is_ipv6() { scope } else { 0 };
                if contact {
                    return Name::contact(ip, scope_id, port);
                }
                let service = by_port.then_some(Service { ip, scope_id, port });
                let name = Name::new(nonce | 1, index, host | 1, service);
                let more = (0..host % 7).map(|i| (IpAddr::from((index ^ i as u32 | 1).to_le_bytes()), 0));
                let addresses: Vec<_> = more.chain([(ip, scope_id)]).collect();
                let name = if index & 1 == 0 { name } else { name.at(&addresses, port) };
                if index & 2 == 0 { name } else { name.network_only() }
            })
    }

    fn kept(addresses: &[&str]) -> Vec<String> {
        let addresses: Vec<_> = addresses.iter().map(|a| address(a).expect("an address")).collect();
        Name::new(1, 0, 1, None).at(&addresses, 9).addresses().iter().map(|(ip, scope)| format!("{ip}%{scope}")).collect()
    }

    #[test]
    fn as_many_addresses_as_there_is_room_for() {
        assert_eq!(kept(&["10.0.0.1"]), ["10.0.0.1%0"]);
        assert_eq!(kept(&["10.0.0.1", "10.0.0.1"]), ["10.0.0.1%0"]);
        assert_eq!(kept(&["10.0.0.1", "[fe80::1%3]"]), ["10.0.0.1%0"]);
        assert_eq!(kept(&["[fe80::1%3]", "10.0.0.1"]), ["fe80::1%3"]);
        assert_eq!(kept(&["[fd00::1]", "[fd00::2]"]), ["fd00::1%0"]);
        assert_eq!(kept(&["[fd00::1]", "10.0.0.1", "10.0.0.2", "[fd00::2]"]), ["10.0.0.1%0", "fd00::1%0"]);
        assert_eq!(kept(&["10.0.0.1", "10.0.0.2", "0.0.0.0", "10.0.0.3"]), ["10.0.0.1%0", "10.0.0.2%0", "10.0.0.3%0"]);
        let many: Vec<String> = (1..9).map(|i| format!("10.0.0.{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(kept(&many), ["10.0.0.1%0", "10.0.0.2%0", "10.0.0.3%0", "10.0.0.4%0", "10.0.0.5%0"]);
        assert_eq!(kept(&[]), ["::%0"]);
        assert_eq!(kept(&["[fd00::1%3]", "10.0.0.1"]), ["fd00::1%3"], "a scope has no room beside another address");
        let [two, one] = [&["10.0.0.1", "10.0.0.2"][..], &["10.0.0.3"]]
            .map(|list| list.iter().map(|a| address(a).expect("an address")).collect::<Vec<_>>());
        assert_eq!(kept(&["0.0.0.0"]), kept(&["[::]"]));
        assert_eq!(
            Name::contact(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(), 0, 9),
            Name::contact(Ipv6Addr::UNSPECIFIED.into(), 0, 9)
        );
        let moved = Name::new(1, 0, 1, None).at(&two, 9).at(&one, 9);
        assert_eq!(moved, Name::new(1, 0, 1, None).at(&one, 9), "nothing of where it was before");
    }

    /// Each rule of the format is broken once, in a name that keeps to the others.
    #[test]
    fn names_that_nobody_has() {
        let (ten, eleven) = (("10.0.0.1".parse().expect("ip"), 0), ("10.0.0.2".parse().expect("ip"), 0));
        let plain = Name::new(1, 0, 1, None);
        let listens = Name::new(1, 0, 1, Some(Service { ip: ten.0, scope_id: 0, port: 9 }));
        let contact = Name::contact(ten.0, 0, 9);
        let fours = plain.at(&[ten, eleven], 9);
        let families = plain.at(&[ten, ("fd00::1".parse().expect("ip"), 0)], 9);
        type Change = (usize, &'static [u8]);
        let cases: &[(&str, Name, &[Change])] = &[
            ("an unknown flag", plain, &[(4, &[32])]),
            ("a contact of a version", contact, &[(5, &[1])]),
            ("no nonce", plain, &[(32, &[0])]),
            ("no host", plain, &[(40, &[0])]),
            ("a contact with a nonce", contact, &[(32, &[1])]),
            ("a contact with a host", contact, &[(40, &[1])]),
            ("a contact by the network only", contact, &[(4, &[CONTACT | BY_PORT | NETWORK_ONLY])]),
            ("a contact with a table", contact, &[(48, &[1])]),
            ("by port, without one", listens, &[(6, &[0, 0])]),
            ("the unspecified address as if it were one of IPv4", plain, &[(18, &[255, 255])]),
            ("a contact with two addresses", fours, &[(4, &[FOURS | CONTACT]), (32, &[0]), (40, &[0])]),
            ("two addresses without a port", fours, &[(6, &[0, 0])]),
            ("both kinds of two addresses", fours, &[(4, &[FOURS | FAMILIES])]),
            ("one address as if there were more", fours, &[(12, &[0; 4])]),
            ("an address twice", fours, &[(12, &[10, 0, 0, 1])]),
            ("a gap between addresses", fours, &[(20, &[10, 0, 0, 3])]),
            ("IPv4 twice, once as IPv6", families, &[(8, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 2])]),
            ("no IPv6 address", families, &[(8, &[0; 16])]),
            ("no IPv4 address", families, &[(24, &[0; 4])]),
            ("a link-local one without its scope", families, &[(8, &[0xfe, 0x80])]),
        ];
        for (what, name, changes) in cases {
            let mut bytes = name.to_bytes();
            assert_eq!(Name::from_bytes(&bytes), Ok(*name), "{what}: before");
            for (at, new) in *changes {
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
            assert_eq!(Name::from_bytes(&bytes), Err(Error::Invalid), "{what}");
        }
        let mut other = plain.to_bytes();
        other[3] += 1;
        assert_eq!(Name::from_bytes(&other), Err(Error::Version));
        let mut other = plain.to_bytes();
        other[5] += 1;
        assert_eq!((Name::from_bytes(&other), Name::foreign(&other)), (Err(Error::Version), Some(version::protocol() + 1)));
        assert_eq!((Name::foreign(&plain.to_bytes()), Name::foreign(&contact.to_bytes())), (None, None));
        assert_eq!(Name::foreign(&other[..NAME_LEN - 1]), None);
        other[..4].copy_from_slice(b"rmy\x03");
        assert_eq!(Name::from_bytes(&other), Err(Error::Invalid));
    }

    #[test]
    fn where_a_name_leads() {
        let ten = "10.0.0.1".parse().expect("ip");
        let contact = Name::contact(ten, 0, 9);
        assert!(contact.is_local_to(7, |ip| ip == ten) && !contact.is_local_to(0, |_| false));
        let plain = Name::new(1, 0, 7, None);
        assert!(plain.is_local_to(7, |_| false) && !plain.is_local_to(8, |_| true));
        let [one, two] = [1, 2].map(|nonce| Name::new(nonce, 0, 7, None).to_bytes());
        assert!(Name::call_counts(&one, &two) && !Name::call_counts(&two, &one));
        let elsewhere = Name::new(1, 0, 7, None).at(&[("255.1.1.1".parse().expect("ip"), 0)], 65535).to_bytes();
        assert!(Name::call_counts(&elsewhere, &two) && !Name::call_counts(&two, &elsewhere), "wherever it is said to be");
    }

    proptest! {
        #[test]
        fn bytes_and_text_round_trip(name in any_name()) {
            prop_assert_eq!(Name::from_bytes(&name.to_bytes()), Ok(name));
            prop_assert_eq!(name.to_string().parse::<Name>(), Ok(name), "{}", name);
        }

        #[test]
        fn garbage_is_refused_or_sound(mut bytes in proptest::collection::vec(any::<u8>(), 40..=56), good in any::<bool>()) {
            if good && bytes.len() >= 6 { bytes[..4].copy_from_slice(&MAGIC); bytes[4] &= 31; bytes[5] = if bytes[4] & CONTACT == 0 { our_version() } else { 0 }; }
            if let Ok(n) = Name::from_bytes(&bytes) {
                prop_assert_eq!(&n.to_bytes()[..], &bytes[..]);
            }
        }

        #[test]
        fn text_garbage_does_not_panic(text in "\\PC{0,60}") {
            let _ = text.parse::<Name>();
            let _ = format!("rustmx://{text}").parse::<Name>();
        }
    }

    #[test]
    fn two_endpoints_never_share_a_socket() {
        let a = Name::new(7, 0, 1, None);
        let b = Name::new(7, 1, 1, None);
        assert_ne!(a.socket_name(), b.socket_name());
        assert_ne!(a.identity(), b.identity());
        let c = Name::contact("127.0.0.1".parse().expect("ip"), 0, 9228);
        let s = Name::new(9, 0, 1, c.service());
        assert_eq!(c.socket_name(), s.socket_name());
    }
}
