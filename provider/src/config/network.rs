//! Which interface and which ports are used for other hosts, and who may connect: the values of `FI_RUSTMX_IFACE`, `FI_RUSTMX_PORT_RANGE`,
//! `FI_RUSTMX_AUTH_KEY` and `FI_RUSTMX_AUTH_KEY_FILE`.

use super::echo::shown;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An interface's name or one of its addresses, and the address that others are told instead, if it is another one; nothing: the best ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iface {
    name: Option<String>,
    announced: Option<IpAddr>,
}

impl Iface {
    /// Reads `name`, `name@address` or `@address`. Whether there is such an interface is seen when an endpoint opens.
    pub fn parse(text: &str) -> (Iface, Vec<String>) {
        let (name, announced) = text.split_once('@').map_or((text, None), |(name, address)| (name, Some(address.trim())));
        let name = Some(name.trim()).filter(|n| !n.is_empty()).map(str::to_owned);
        match announced.map(str::parse) {
            None => (Iface { name, announced: None }, Vec::new()),
            Some(Ok(address)) => (Iface { name, announced: Some(address) }, Vec::new()),
            // There is no interface of such a name: who wants one only is not to get all.
            Some(Err(_)) => (
                Iface { name: Some(text.into()), announced: None },
                vec![format!("`{}`: behind @ stands an address, such as eth0@203.0.113.7", shown(text))],
            ),
        }
    }

    /// The interface, or its address.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The address that others are told: of a router, which passes on to us what comes for our ports.
    pub fn announced(&self) -> Option<IpAddr> {
        self.announced
    }
}

/// As a user would write it.
impl fmt::Display for Iface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or_default())?;
        self.announced.map_or(Ok(()), |address| write!(f, "@{address}"))
    }
}

/// Ports; nothing: any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRange(Option<(u16, u16)>);

impl PortRange {
    /// Reads `first-last`, or one port.
    pub fn parse(text: &str) -> (PortRange, Vec<String>) {
        let text = text.trim();
        if text.is_empty() {
            return (PortRange(None), Vec::new());
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if first > 0 && first <= last => (PortRange(Some((first, last))), Vec::new()),
            _ => (PortRange(None), vec![format!("`{}`: two ports, the smaller one first, such as 20000-20999", shown(text))]),
        }
    }

    /// The ports.
    pub fn ports(&self) -> Option<RangeInclusive<u16>> {
        self.0.map(|(first, last)| first..=last)
    }
}

/// As a user would write it.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((first, last)) => write!(f, "{first}-{last}"),
            None => Ok(()),
        }
    }
}

/// When payload leaves without a copy by the kernel: what the number of `tcp_zerocopy` stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where that was seen to pay.
    #[default]
    Auto,
    /// Wherever the kernel takes it.
    Always,
    /// Nowhere.
    Never,
    /// Out of registered buffers wherever it comes out of the same memory again; else as `Always`.
    Uring,
    /// As pages that the receiver reads, wherever that is possible.
    Pages,
}

impl ZeroCopy {
    /// The choice with this number.
    pub fn of(number: u64) -> ZeroCopy {
        match number {
            0 => ZeroCopy::Auto,
            1 => ZeroCopy::Always,
            3 => ZeroCopy::Uring,
            4 => ZeroCopy::Pages,
            _ => ZeroCopy::Never,
        }
    }
}

/// Bytes that are never shown: a job's key. Empty: none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// These bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    /// The text as it stands, without white space around it. Whether it will do is seen when an endpoint opens: what is wrong with it must not
    /// be ignored, nor shown.
    pub fn parse(text: &str) -> (Secret, Vec<String>) {
        (Secret::new(text.trim().as_bytes()), Vec::new())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, for who makes keys of them.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

/// Only whether there is one.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "" } else { "(set)" })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

/// The path of a file with a key; nothing: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretFile(String);

impl SecretFile {
    /// Reads the value. The file is read when an endpoint opens.
    pub fn parse(text: &str) -> (SecretFile, Vec<String>) {
        (SecretFile(text.trim().to_owned()), Vec::new())
    }

    /// The path.
    pub fn path(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(&self.0)
    }
}

/// As a user would write it.
impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::parse(" correct horse battery \n").0;
        assert_eq!(secret.reveal(), b"correct horse battery");
        for shown in [secret.to_string(), format!("{secret:?}"), format!("{secret:#?}")] {
            assert!(shown.contains("(set)") && !shown.contains("horse"), "{shown}");
        }
        assert_eq!((Secret::parse("  ").0, Secret::default().to_string()), (Secret::default(), String::new()));
        assert_eq!(SecretFile::parse(" /a/key ").0.path(), Some("/a/key"));
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for (text, ports, shown) in
            [("", None, ""), ("20000-20010", Some(20000..=20010), "20000-20010"), (" 7 ", Some(7..=7), "7-7")]
        {
            let (range, complaints) = PortRange::parse(text);
            assert_eq!((range.ports(), complaints.len(), range.to_string().as_str()), (ports, 0, shown));
        }
        for bad in ["0-5", "9-8", "a-b", "1-70000", "-", "1-2-3"] {
            let (range, complaints) = PortRange::parse(bad);
            assert_eq!((range, complaints.len()), (PortRange(None), 1), "{bad}");
        }
        assert_eq!(Iface::parse(" eth0 ").0.name(), Some("eth0"));
        assert_eq!(Iface::parse("").0, Iface::default());
        for text in ["eth0", "eth0@203.0.113.7", "@fd00::1", "10.0.0.1@203.0.113.7"] {
            let (iface, complaints) = Iface::parse(text);
            assert_eq!((iface.to_string().as_str(), complaints.len()), (text, 0));
        }
        assert_eq!(Iface::parse("eth0@203.0.113.7").0.announced(), "203.0.113.7".parse().ok());
        for text in ["eth0@router", "@router"] {
            let (iface, complaints) = Iface::parse(text);
            assert_eq!(
                (complaints.len(), iface.name(), iface.announced()),
                (1, Some(text), None),
                "an endpoint does not open by it"
            );
        }
    }
}
