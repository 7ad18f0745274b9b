//! Whether connections lend, by which way and why, for the counters and for people.

use super::choice::{Refusal, Verdict};
use super::{Lender, Way, ZeroCopy};
use crate::cache::registered::NotHeld;
use crate::transport::Tale;
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;

/// Whether a connection lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Standing {
    Never,
    Near,
    Far,
    Encrypted,
    Impossible,
    NoPages(Errno),
    Always,
    Forced,
    Pages,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Never => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=never"),
            Standing::Near => f.write_str("both ends are on this host, where only the first connection of a pair sends pages"),
            Standing::Far => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=pages, which is for peers on this host"),
            Standing::Encrypted => f.write_str("what is encrypted is copied by that"),
            Standing::Impossible => {
                f.write_str("this kernel cannot do it, or not so that a child (fork) changes nothing: Linux 5.9 can")
            }
            Standing::NoPages(why) => {
                write!(f, "pages cannot be sent here, by vmsplice(2) and splice(2), as inside of a host they would be: {why}")
            }
            Standing::Always => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=always"),
            Standing::Forced => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=uring"),
            Standing::Pages => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=pages"),
        }
    }
}

const LENT: &str = "zero-copy send";
const REGISTERED: &str = "registered buffers";
const PAGES: &str = "pages that the receiver reads";

/// What several connections did.
#[derive(Clone, Default)]
pub struct Sums {
    /// Bytes that were lent, those that left out of registered buffers, and how many of both the kernel copied all the same.
    pub lent: u64,
    /// See there.
    pub registered: u64,
    /// See there.
    pub copied: u64,
    /// How they stand, in words without figures, and how many alike, with what the first of these says.
    tales: Vec<(String, Tale)>,
}

impl Sums {
    /// `link`: by which it leaves, if that is known.
    pub(in super::super) fn add(&mut self, one: &ZeroCopy, link: Option<&Arc<str>>) {
        match one {
            // Who had nothing long to send has nothing to tell.
            ZeroCopy::Unasked(..) => {}
            ZeroCopy::Off(why) => self.tell(&why.to_string(), tale(LENT, false, why.to_string(), link)),
            ZeroCopy::May(lender) => self.add_lender(lender, link),
        }
    }

    /// A connection within this host, which needs no further ones.
    pub(in super::super) fn tell_near(&mut self) {
        let why = "both ends are on this host, where nothing limits a stream but the cores that copy";
        self.tell(why, Tale { number: Some(1), ..tale("lanes", false, why.into(), None) });
    }

    fn add_lender(&mut self, lender: &Lender, link: Option<&Arc<str>>) {
        self.lent += lender.lent;
        self.registered += lender.registered;
        self.copied += lender.copied;
        let forced = match (&lender.pages, &lender.account) {
            (Some(_), _) => Standing::Pages,
            (None, Some(_)) => Standing::Forced,
            (None, None) => Standing::Always,
        };
        let forced = forced.to_string();
        let kinds: &[_] =
            if lender.pages.is_some() { &[(PAGES, Way::Lent)] } else { &[(LENT, Way::Lent), (REGISTERED, Way::Registered)] };
        for &(about, way) in kinds {
            let refusal = if way == Way::Registered { lender.unregistered() } else { None };
            match (refusal, &lender.choice) {
                (Some(why), _) => self.tell(&why.clone(), tale(about, false, why, link)),
                (None, None) => self.tell(&forced, tale(about, true, forced.clone(), link)),
                (None, Some(choice)) => {
                    let verdict = choice.verdict(way);
                    let by = choice.by().filter(|_| !matches!(verdict, Verdict::Trying | Verdict::Refused(_)));
                    self.tell(&verdict.to_string(), Tale { by, ..tale(about, verdict == Verdict::Pays, choice.says(way), link) });
                }
            }
        }
    }

    /// One more connection of which that is to be told; `key`: in words without figures.
    pub(in super::super) fn tell(&mut self, key: &str, tale: Tale) {
        let alike = |known: &Tale| {
            (known.about, known.on, &known.link, known.by, known.number)
                == (tale.about, tale.on, &tale.link, tale.by, tale.number)
        };
        match self.tales.iter_mut().find(|(known, other)| known == key && alike(other)) {
            Some((_, known)) => known.connections += 1,
            None => self.tales.push((key.into(), tale)),
        }
    }

    /// For each kind whether they lend, how many, and why.
    pub fn tales(self) -> Vec<Tale> {
        self.tales.into_iter().map(|(_, tale)| tale).collect()
    }
}

fn tale(about: &'static str, on: bool, why: String, link: Option<&Arc<str>>) -> Tale {
    Tale { about, on, connections: 1, why, link: link.cloned(), by: None, number: None }
}

impl Lender {
    /// Why nothing leaves out of registered buffers, in words, where that is for no reason of cost.
    fn unregistered(&self) -> Option<String> {
        let Some(account) = &self.account else { return Some(Standing::Always.to_string()) };
        let unheld = self.unheld.filter(|_| self.registered == 0).map(|why| match why {
            NotHeld::Limits => Verdict::Refused(Refusal::Limits).to_string(),
            NotHeld::Memory => {
                "the messages are in memory that is not registered: shared, of a file, of MAP_HUGETLB, read-only, or just changing".into()
            }
        });
        account.refusal().or(unheld)
    }
}

impl super::super::Tcp {
    /// What left without a copy, and why so or not, on all connections that there are and were.
    pub fn zerocopies(&self) -> Sums {
        let mut sums = self.office.zerocopies.lock().clone();
        self.connections.iter().filter_map(|(_, weak)| weak.upgrade()).for_each(|connection| connection.add_to(&mut sums));
        sums
    }
}
