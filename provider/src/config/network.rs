//! Which interface and which ports are used for other hosts: the values of `FI_RUSTMX_IFACE` and `FI_RUSTMX_PORT_RANGE`.

use std::fmt;
use std::ops::RangeInclusive;

/// An interface's name or one of its addresses; nothing: the best one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iface(Option<String>);

impl Iface {
    /// Reads the value. Whether there is such an interface is seen when an endpoint opens.
    pub fn parse(text: &str) -> (Iface, Vec<String>) {
        let name = text.trim();
        (Iface((!name.is_empty()).then(|| name.to_owned())), Vec::new())
    }

    /// What the user wrote.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// As a user would write it.
impl fmt::Display for Iface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
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
    }
}
