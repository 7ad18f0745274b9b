//! Which interface and which ports are used for other hosts: the values of `FI_RUSTMX_IFACE` and `FI_RUSTMX_PORT_RANGE`.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

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
            Some(Err(_)) => {
                (Iface { name, announced: None }, vec![format!("`{text}`: behind @ stands an address, such as eth0@203.0.113.7")])
            }
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
            _ => (PortRange(None), vec![format!("`{text}`: two ports, the smaller one first, such as 20000-20999")]),
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((Iface::parse("eth0@router").1.len(), Iface::parse("eth0@router").0.name()), (1, Some("eth0")));
    }
}
