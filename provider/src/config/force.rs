//! Which ways a user wants messages to go: the value of `FI_RUSTMX_PROTOCOL`, a list like `eager:0-4k,syscall:64k-`.
//!
//! Here is only what the text says. Which sizes a way can carry depends on other parameters, so `select` decides that.

use super::echo::shown;
use super::{parse_bytes, show_bytes};
use std::fmt;

/// A way that can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Header and payload in one record.
    Inline,
    /// One record, counted against the receiver's window.
    Eager,
    /// Fragments through the ring.
    Stream,
    /// The kernel copies; `FI_RUSTMX_SHARE_MIN` says from which size on both sides call it.
    Syscall,
    /// The kernel copies, called by one side.
    Alone,
    /// The kernel copies, called by both sides at once.
    Shared,
    /// The processes copy, in memory that both have mapped; `FI_RUSTMX_MAPPED_SHARE_MIN` says from which size on both do.
    Mapped,
    /// In memory that both have mapped, by one side.
    MappedAlone,
    /// In memory that both have mapped, by both sides at once.
    MappedShared,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 9] = [
        Way::Inline,
        Way::Eager,
        Way::Stream,
        Way::Syscall,
        Way::Alone,
        Way::Shared,
        Way::Mapped,
        Way::MappedAlone,
        Way::MappedShared,
    ];

    /// Those that a message goes by in the end: what is measured, compared and chosen from. `Syscall` and `Mapped` are each one of two of them.
    pub const CARRIERS: [Way; 7] =
        [Way::Inline, Way::Eager, Way::Stream, Way::Alone, Way::Shared, Way::MappedAlone, Way::MappedShared];

    /// Whether the kernel does the copying, which it may refuse.
    pub fn needs_kernel(self) -> bool {
        matches!(self, Way::Syscall | Way::Alone | Way::Shared)
    }

    /// Whether it carries only messages in memory that was lent to the receiver.
    pub fn needs_loan(self) -> bool {
        matches!(self, Way::Mapped | Way::MappedAlone | Way::MappedShared)
    }

    /// Of ways in which both sides copy, the one in which one side does.
    pub fn unshared(self) -> Option<Way> {
        match self {
            Way::Shared => Some(Way::Alone),
            Way::MappedShared => Some(Way::MappedAlone),
            _ => None,
        }
    }

    /// Its name in lists.
    pub fn name(self) -> &'static str {
        match self {
            Way::Inline => "inline",
            Way::Eager => "eager",
            Way::Stream => "stream",
            Way::Syscall => "syscall",
            Way::Alone => "alone",
            Way::Shared => "shared",
            Way::Mapped => "mapped",
            Way::MappedAlone => "mapped-alone",
            Way::MappedShared => "mapped-shared",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|w| w.name() == name)
    }
}

/// One part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The way.
    pub way: Way,
    /// The first size in bytes; `None`: from the shortest that the way carries.
    pub from: Option<u64>,
    /// The last size in bytes; `None`: up to the longest that the way carries.
    pub to: Option<u64>,
}

/// The list. Where parts overlap, the first one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forced {
    parts: Vec<Part>,
}

impl Forced {
    /// Most parts of a list.
    pub const MOST: usize = 5;

    /// One way for all sizes that it carries.
    pub fn only(way: Way) -> Forced {
        Forced { parts: vec![Part { way, from: None, to: None }] }
    }

    /// The parts, in the order in which they count.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Reads a list. What makes no sense is left out, and the second value says why, a sentence for each.
    pub fn parse(text: &str) -> (Forced, Vec<String>) {
        let (mut forced, mut complaints) = (Forced::default(), Vec::new());
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match Part::parse(&part.to_ascii_lowercase()) {
                Ok(_) if forced.parts.len() == Forced::MOST => {
                    complaints.push(format!("`{}`: a list has at most {} parts", shown(part), Forced::MOST));
                }
                Ok(parsed) => forced.parts.push(parsed),
                Err(why) => complaints.push(format!("`{}`: {why}", shown(part))),
            }
        }
        (forced, complaints)
    }
}

impl Part {
    fn parse(text: &str) -> Result<Part, String> {
        let (name, sizes) = text.split_once(':').map_or((text, None), |(name, sizes)| (name.trim(), Some(sizes.trim())));
        let way = Way::named(name).ok_or_else(|| {
            let near = Way::ALL.into_iter().map(Way::name).min_by_key(|w| strsim::damerau_levenshtein(name, w));
            let near = near.filter(|w| strsim::damerau_levenshtein(name, w) <= 2);
            let meant = near.map_or(String::new(), |w| format!("; did you mean {w}?"));
            format!("no protocol has this name (there are {}){meant}", Way::ALL.map(Way::name).join(", "))
        })?;
        let Some(sizes) = sizes else { return Ok(Part { way, from: None, to: None }) };
        let usage = || "sizes are written from-to, as in 4k-64k, 4k- or -64k".to_string();
        let (from, to) = sizes.split_once('-').ok_or_else(usage)?;
        let size = |text: &str| match text.trim() {
            "" => Ok(None),
            text => parse_bytes(text).map(Some).ok_or_else(usage),
        };
        let (from, to) = (size(from)?, size(to)?);
        match (from, to) {
            (Some(from), Some(to)) if from > to => Err("no size is in this range".into()),
            _ => Ok(Part { way, from, to }),
        }
    }
}

/// As a user would write it.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.way.name())?;
        if self.from.is_some() || self.to.is_some() {
            let end = |size: Option<u64>| size.map_or(String::new(), show_bytes);
            write!(f, ":{}-{}", end(self.from), end(self.to))?;
        }
        Ok(())
    }
}

/// As a user would write it.
impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.parts.iter().map(Part::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part() -> impl Strategy<Value = Part> {
        let end = || proptest::option::of(prop_oneof![0u64..300, (0u64..40).prop_map(|n| n << 10), any::<u64>()]);
        (0usize..Way::ALL.len(), end(), end()).prop_map(|(way, a, b)| {
            let (from, to) = if a > b && b.is_some() { (b, a) } else { (a, b) };
            Part { way: Way::ALL[way], from, to }
        })
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(parts in proptest::collection::vec(part(), 0..=Forced::MOST)) {
            let forced = Forced { parts };
            let (read, complaints) = Forced::parse(&forced.to_string());
            prop_assert!(complaints.is_empty(), "{complaints:?}");
            prop_assert_eq!(read, forced);
        }

        #[test]
        fn any_text_is_read(text in "[a-z0-9:,k -]{0,40}") {
            let (forced, complaints) = Forced::parse(&text);
            let written = text.split(',').filter(|p| !p.trim().is_empty()).count();
            prop_assert_eq!(forced.parts.len() + complaints.len(), written);
        }
    }

    #[test]
    fn each_mistake_is_told() {
        let complaint = |text: &str| {
            let (forced, complaints) = Forced::parse(text);
            assert_eq!(complaints.len(), 1, "{text}: {complaints:?}");
            (forced.parts.len(), complaints[0].clone())
        };
        let (kept, why) = complaint("eager:0-4k,steam:8k-");
        assert!(kept == 1 && why.contains("`steam:8k-`") && why.contains("did you mean stream?"), "{why}");
        assert!(complaint("qqqqqqq").1.ends_with("mapped, mapped-alone, mapped-shared)"));
        assert!(complaint("stream:8k-4k").1.contains("no size is in this range"));
        for bad in ["stream:4k", "stream:x-", "stream:-4x", "stream:4k-8k-"] {
            assert!(complaint(bad).1.contains("from-to"), "{bad}");
        }
        let (kept, why) = complaint("stream,eager,inline,alone,shared,syscall");
        assert!(kept == 5 && why.contains("at most 5"), "{why}");
    }

    #[test]
    fn spaces_and_capitals_do_not_matter() {
        let (forced, complaints) = Forced::parse(" Eager:0 - 4K , , SYSCALL:64k- ");
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(forced.to_string(), "eager:0-4k,syscall:64k-");
    }
}
