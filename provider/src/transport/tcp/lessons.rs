//! What connections found out about the link that they leave by, for the next ones behind it: they begin with that, instead of finding it out anew.
//!
//! A book of values in the memory of the process. Nothing here knows a file, nor what day it is: who keeps the book from job to job
//! ([`select::lessons`](crate::select::lessons)) fills it and looks what is new in it. A link is named as in `select/network.rs`.
//!
//! Of connections within a host nothing is kept: there neither lanes nor copies are a question.

use super::connection::{Connection, Halves};
use super::stream::Stream;
use crate::sys::links::Link;
use crate::sys::tcp::{self, Health};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Most connections of a pair for which a rate is kept.
pub const MOST_LANES: usize = super::lanes::MOST;
/// Sizes of payload that are told apart: from these bytes on.
pub const SIZES: [usize; 6] = super::zerocopy::CLASSES;
/// Ways of payload that are told apart: copied, without a copy, without a copy out of registered buffers.
pub const WAYS: usize = 3;
/// Most links of a book: a process that meets more has no more to say of the last ones than others will.
pub const MOST_LINKS: usize = 16;

/// Packets with data after which the shortest round trip says something of the link.
const TALKED: u32 = 100;

/// By how many connections long messages go.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lanes {
    /// That many paid.
    pub number: usize,
    /// Bytes a nanosecond by one connection, by two, and so on; 0: not measured.
    pub rates: [f64; MOST_LANES],
}

/// What payload costs the sender's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copies {
    /// The kernel copied what it was given to be sent without a copy.
    pub copied: bool,
    /// Nanoseconds for a KiB, by [size](SIZES) and [way](WAYS); 0: not measured.
    pub costs: [[f64; WAYS]; SIZES.len()],
}

/// What carried how much, in words.
impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A thousand million bytes a second are one a nanosecond.
        let known = self.rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0);
        let each: Vec<String> = known.map(|(less, rate)| format!("{:.0} MB/s by {}", 1e3 * rate, less + 1)).collect();
        match each.is_empty() {
            true => f.write_str("that many carried most"),
            false => write!(f, "{} of them together", each.join(", ")),
        }
    }
}

/// The same of ways of payload.
impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.copied {
            return f.write_str("the kernel copied all the same what was sent without a copy");
        }
        let ways = ["with a copy", "without one", "out of registered buffers"];
        let class = |(from, costs): (&usize, &[f64; WAYS])| {
            let known = ways.iter().zip(costs).filter(|(_, cost)| **cost > 0.0);
            let each: Vec<String> = known.map(|(way, cost)| format!("{cost:.0} {way}")).collect();
            (!each.is_empty()).then(|| format!("from {from} bytes on {}", each.join(", ")))
        };
        let all: Vec<String> = SIZES.iter().zip(&self.costs).filter_map(class).collect();
        write!(f, "nanoseconds of the sender's for a KiB: {}", all.join("; "))
    }
}

/// Who found something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// An earlier job, on this day (days since 1970).
    Job(u32),
    /// A connection of this process.
    Here,
}

/// All that is known of a link, each with who found it out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lesson {
    /// By how many connections long messages go.
    pub lanes: Option<(Lanes, By)>,
    /// Whether to send without a copy.
    pub copies: Option<(Copies, By)>,
    /// The shortest round trip to a peer, in microseconds.
    pub round_trip: Option<(u32, By)>,
}

impl Lesson {
    /// What is newer of both.
    pub fn or(self, other: Lesson) -> Lesson {
        fn newer<T>(a: Option<(T, By)>, b: Option<(T, By)>) -> Option<(T, By)> {
            match (a, b) {
                (Some(a), Some(b)) => Some(if b.1 > a.1 { b } else { a }),
                (a, b) => a.or(b),
            }
        }
        Lesson {
            lanes: newer(self.lanes, other.lanes),
            copies: newer(self.copies, other.copies),
            round_trip: newer(self.round_trip, other.round_trip),
        }
    }

    /// Whether a connection of this process found something out by which others would go another way.
    pub fn is_of_use(&self) -> bool {
        let here = |by: Option<By>| by == Some(By::Here);
        here(self.lanes.map(|(_, by)| by)) || here(self.copies.map(|(_, by)| by))
    }
}

#[derive(Default)]
struct Book {
    /// By the address that a connection has on this side; `None`: no interface has it.
    names: HashMap<IpAddr, Option<Arc<str>>>,
    links: BTreeMap<Arc<str>, Lesson>,
}

/// What is known of the links of a process.
#[derive(Default)]
pub struct Lessons(Mutex<Book>);

impl Lessons {
    /// The link by which a connection to another host leaves. Asks the system once for each address of ours; nothing is sent.
    pub(super) fn link(&self, stream: &Stream) -> Option<Arc<str>> {
        if stream.is_near() {
            return None;
        }
        // A listener of IPv6 takes calls over IPv4, too.
        let own = tcp::own_address(stream.fd()).ok()?.ip().to_canonical();
        self.0.lock().names.entry(own).or_insert_with(|| Some(Link::of_address(own)?.to_string().into())).clone()
    }

    /// What is known of a link.
    pub fn of(&self, link: &str) -> Lesson {
        self.0.lock().links.get(link).copied().unwrap_or_default()
    }

    /// All links of which something is known.
    pub fn all(&self) -> Vec<(Arc<str>, Lesson)> {
        self.0.lock().links.iter().map(|(link, lesson)| (link.clone(), *lesson)).collect()
    }

    /// Adds what is known of a link; what is newer counts, and of one age the last.
    pub fn add(&self, link: &str, lesson: Lesson) {
        let mut book = self.0.lock();
        let has_room = book.links.len() < MOST_LINKS;
        match book.links.get_mut(link) {
            Some(known) => *known = lesson.or(*known),
            None if has_room => _ = book.links.insert(link.into(), lesson),
            None => {}
        }
    }

    /// A round trip to a peer took so many microseconds at least.
    pub(super) fn add_round_trip(&self, link: &str, micros: u32) {
        let known = self.of(link).round_trip.filter(|(_, by)| *by == By::Here);
        if known.is_none_or(|(least, _)| micros < least) {
            self.add(link, Lesson { round_trip: Some((micros, By::Here)), ..Lesson::default() });
        }
    }
}

impl Connection {
    /// The link by which it leaves, and the book that may know of it.
    pub(super) fn link(&self) -> Option<(&Lessons, &Arc<str>)> {
        let lessons = self.office().lessons.get()?;
        let link = self.link.get_or_init(|| lessons.link(self.stream())).as_ref()?;
        Some((lessons, link))
    }

    /// What is known of that link.
    pub(super) fn lesson(&self) -> Lesson {
        self.link().map(|(lessons, link)| lessons.of(link)).unwrap_or_default()
    }

    /// Writes down what it found out since the last time. `health`: how much was sent, and how long a round trip took.
    pub(super) fn teach(&self, halves: &mut Halves, health: &Health) {
        let lanes = halves.bundle.as_mut().and_then(|bundle| bundle.news());
        let copies = halves.outgoing.zerocopy.news();
        let round_trip = health.round_trip.filter(|_| health.segments >= TALKED);
        if lanes.is_none() && copies.is_none() && round_trip.is_none() {
            return;
        }
        let Some((lessons, link)) = self.link() else { return };
        if let Some(micros) = round_trip {
            lessons.add_round_trip(link, micros);
        }
        if lanes.is_some() || copies.is_some() {
            let (lanes, copies) = (lanes.map(|lanes| (lanes, By::Here)), copies.map(|copies| (copies, By::Here)));
            lessons.add(link, Lesson { lanes, copies, round_trip: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(number: usize, by: By) -> Lesson {
        Lesson { lanes: Some((Lanes { number, ..Lanes::default() }, by)), ..Lesson::default() }
    }

    #[test]
    fn what_is_newer_counts() {
        let lessons = Lessons::default();
        let known = |lessons: &Lessons| lessons.of("eth0").lanes.map(|(lanes, by)| (lanes.number, by));
        assert_eq!(known(&lessons), None);
        lessons.add("eth0", lanes(4, By::Job(20_000)));
        lessons.add("eth0", lanes(2, By::Job(19_999)));
        assert_eq!(known(&lessons), Some((4, By::Job(20_000))));
        lessons.add("eth0", lanes(8, By::Job(20_000)));
        assert_eq!(known(&lessons), Some((8, By::Job(20_000))), "of one day the last");
        assert!(!lessons.of("eth0").is_of_use());
        lessons.add("eth0", lanes(1, By::Here));
        lessons.add("eth0", lanes(2, By::Job(u32::MAX)));
        assert_eq!(known(&lessons), Some((1, By::Here)), "nothing is newer than what is seen now");
        assert!(lessons.of("eth0").is_of_use());
        assert_eq!(lessons.of("eth1"), Lesson::default());
    }

    #[test]
    fn the_shortest_round_trip_of_this_job() {
        let lessons = Lessons::default();
        lessons.add("eth0", Lesson { round_trip: Some((5, By::Job(20_000))), ..Lesson::default() });
        for (micros, known) in [(90, 90), (70, 70), (80, 70)] {
            lessons.add_round_trip("eth0", micros);
            assert_eq!(lessons.of("eth0").round_trip, Some((known, By::Here)));
        }
        assert!(!lessons.of("eth0").is_of_use(), "that alone changes nobody's way");
    }

    #[test]
    fn a_book_has_an_end() {
        let lessons = Lessons::default();
        for link in 0..2 * MOST_LINKS {
            lessons.add(&link.to_string(), lanes(2, By::Here));
        }
        assert_eq!(lessons.all().len(), MOST_LINKS);
        lessons.add("0", lanes(4, By::Here));
        assert_eq!(lessons.of("0").lanes.map(|(lanes, _)| lanes.number), Some(4), "what is in it is kept up to date");
    }
}
