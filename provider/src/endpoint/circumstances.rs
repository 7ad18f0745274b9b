//! What else decided how things went, told with the history of an endpoint: copy engines, memory that is lent, and the address by which other
//! hosts reach it. Found out when somebody asks.

use super::Endpoint;
use super::lend::Terms;
use super::peers::Peer;
use super::tally::Unlent;
use crate::cache::own;
use crate::config::Config;
use crate::log::{plural, quoted};
use crate::select::engines::{self, EngineUse};
use crate::select::lessons;
use crate::stats::Stats;
use crate::sys::{heap, interfaces};
use crate::transport::tcp::{By, Lesson};
use crate::transport::{Guessed, NotLendable, Tale};
use std::net::IpAddr;

/// An address of an endpoint that others are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The address.
    pub ip: IpAddr,
    /// The port there.
    pub port: u16,
    /// The interface that has it.
    pub interface: Option<String>,
    /// Why this one.
    pub why: String,
}

/// A fact, for people and for programs.
pub(super) struct Circumstance {
    /// What it is about, in a word.
    pub about: &'static str,
    /// A sentence.
    pub says: String,
    /// Members of a JSON object, each with its comma before it.
    pub members: String,
    /// It had to do with something that was done.
    pub used: bool,
}

/// Whether and with what memory is lent, in a sentence.
pub fn lending(config: &Config) -> (bool, String) {
    let terms = match Terms::of(config) {
        Terms::Never => return (false, "nothing is lent: FI_RUSTMX_LEND=never".into()),
        Terms::Read => ", to be read only (FI_RUSTMX_LEND=read)",
        Terms::Written => "",
    };
    let heap = heap::heap().is_some();
    match (heap, own::unwatched()) {
        (true, None) => {
            (true, format!("long blocks of the preloaded heap and sealed memfds that the program maps are lent{terms}"))
        }
        (true, Some(why)) => (true, format!("long blocks of the preloaded heap are lent{terms}; other memory is not: {why}")),
        (false, None) => (
            true,
            format!(
                "sealed memfds that the program maps are lent{terms}; librustmx_heap.so is not preloaded, so nothing else is"
            ),
        ),
        (false, Some(why)) => (false, format!("nothing is lent: librustmx_heap.so is not preloaded, and of other memory {why}")),
    }
}

/// Why messages were not lent.
pub(super) fn why_unlent(why: Unlent) -> String {
    let outside = match heap::heap() {
        Some(_) => "they lay outside of the preloaded heap's long blocks",
        None => "librustmx_heap.so is not preloaded",
    };
    match why {
        Unlent::Itself => "they stayed in this process".into(),
        Unlent::Early => "the peer had not answered yet, so nothing could be lent to it".into(),
        Unlent::Peer => "the peer could not map what was lent to it".into(),
        Unlent::TooMany => "as many mappings as one peer may be lent (64) are lent to it already".into(),
        Unlent::TooLong => "they lay in a mapping longer than may be lent".into(),
        Unlent::Scattered => "they lay in several places, not in one mapping".into(),
        Unlent::NotHanded => "no descriptor of their memory could be had or handed over".into(),
        Unlent::ReadOnly => "the peer may only read that memory".into(),
        Unlent::Rewritten => {
            "receivers do not find such messages in their own caches, for they are rewritten, and so the ring is quicker \
             (FI_RUSTMX_ADAPT)"
                .into()
        }
        Unlent::Memory(NotLendable::Unwatched) => {
            let why = own::unwatched().unwrap_or_default();
            format!("{outside}, and no other memory is lent: {why}")
        }
        Unlent::Memory(NotLendable::NotYet) => {
            format!(
                "{outside}, and whether others can map them was not known yet: their buffers were new, or were just being mapped"
            )
        }
        Unlent::Memory(NotLendable::Known(why)) => format!("{outside}, and of their memory it was found: {why}"),
    }
}

/// How a copy engine was used; `bytes`: what it copied, if that is counted.
fn engine(engine: EngineUse, bytes: Option<u64>) -> Circumstance {
    let EngineUse { name, from, why } = engine;
    let how = from.map_or("off".into(), |from| format!("from {from} bytes on"));
    let from_json = from.map_or("null".into(), |from| from.to_string());
    let so_far = bytes.map_or_else(String::new, |bytes| format!(", {bytes} bytes so far"));
    let bytes_json = bytes.map_or_else(String::new, |bytes| format!(",\"bytes\":{bytes}"));
    Circumstance {
        about: "copies",
        says: format!("{name} {how}{so_far} ({why})"),
        members: format!(
            ",\"engine\":{},\"on\":{},\"from\":{from_json},\"why\":{}{bytes_json}",
            quoted(name),
            from.is_some(),
            quoted(why)
        ),
        used: bytes.is_some_and(|bytes| bytes > 0),
    }
}

/// How some connections send long messages.
fn tale(tale: Tale) -> Circumstance {
    let Tale { about, on, connections, why, link, by, number } = tale;
    let how = match number {
        Some(1) => "one connection to each".into(),
        Some(number) => format!("{number} connections to each"),
        None => if on { "on" } else { "off" }.to_string(),
    };
    let whom = if number.is_some() { "peers on other hosts" } else { "connections to other hosts" };
    let link_said = link.as_ref().map_or(String::new(), |link| format!(" by {link}"));
    let by_said = by.map_or(String::new(), |by| format!("; {}", lessons::said(by)));
    let mut members = format!(",\"on\":{on},\"connections\":{connections},\"why\":{}", quoted(&why));
    members += &number.map_or(String::new(), |number| format!(",\"number\":{number}"));
    members += &link.map_or(String::new(), |link| format!(",\"link\":{}", quoted(&link)));
    members += &by.map_or(String::new(), |by| format!(",\"known\":{}", quoted(&lessons::said(by))));
    Circumstance { about, says: format!("{how} for {connections} of the {whom}{link_said}: {why}{by_said}"), members, used: on }
}

/// The shortest round trip by a link, if this job or an earlier one has seen one.
fn round_trip(link: &str, lesson: Lesson) -> Option<Circumstance> {
    let (micros, by) = lesson.round_trip?;
    let said = lessons::said(by);
    Some(Circumstance {
        about: "link",
        says: format!("{link}: the shortest round trip took {micros} us; {said}"),
        members: format!(",\"link\":{},\"round_trip_us\":{micros},\"known\":{}", quoted(link), quoted(&said)),
        used: by == By::Here,
    })
}

/// How guesses where a peer's bytes belong turned out; `None`: there were none.
fn guesses(peer: &Peer) -> Option<Circumstance> {
    let Guessed { right, wrong, placed, moved, stops, paused } = peer.guessed();
    let all = right + wrong;
    if all == 0 {
        return None;
    }
    let ip = peer.name.addresses().first().map(|(ip, _)| ip.to_string());
    let at = ip.as_ref().map_or(String::new(), |ip| format!(" at {ip}"));
    let ip = ip.map_or("null".into(), |ip| quoted(&ip));
    let now = match (stops, paused) {
        (0, _) => "they always paid".into(),
        (n, 0) => format!("stopped {n} {}, as they did not pay, and tried again", plural(n, "time")),
        (n, _) => format!("stopped {n} {}, and now, as they do not pay", plural(n, "time")),
    };
    Some(Circumstance {
        about: "guesses",
        says: format!(
            "where the next bytes of process {}{at} belong: {right} right ({} %), {wrong} wrong; {placed} bytes were read to their place at once, \
             {moved} were copied out of a wrong one; {now}",
            peer.pid,
            right * 100 / all
        ),
        members: format!(
            ",\"peer_process\":{},\"ip\":{ip},\"right\":{right},\"wrong\":{wrong},\"placed\":{placed},\"moved\":{moved},\
             \"stops\":{stops},\"on\":{}",
            peer.pid,
            paused == 0
        ),
        used: false,
    })
}

impl Endpoint {
    /// The addresses that others are told, best first, and why these.
    pub(crate) fn addresses(&self) -> Vec<Told> {
        let Some(place) = self.door.as_ref().and_then(|door| door.place()) else { return Vec::new() };
        let all = interfaces::all();
        let told = |ip: IpAddr| {
            let service = self.attr.service.is_some_and(|s| s.ip == ip);
            let (interface, words) =
                interfaces::why(&all, ip).map_or((None, "no interface has it".into()), |(i, why)| (Some(i.name.clone()), why));
            let why = match &self.config.iface {
                _ if service => format!("the program asked for it; {words}"),
                iface if iface.announced() == Some(ip) || iface.name().is_some() => format!("FI_RUSTMX_IFACE={iface}; {words}"),
                _ => words,
            };
            Told { ip, port: place.port, interface, why }
        };
        place.addresses.iter().map(|(ip, _)| told(*ip)).collect()
    }

    /// What is kept of mappings, and what of peers' memory was given up.
    fn what_is_kept(&self, stats: &Stats) -> Circumstance {
        let [(attached, attached_bytes), (own, own_bytes)] = self.kept();
        let Config { cache_count, cache_bytes, .. } = *self.config;
        let Stats { evicted, reattached, .. } = *stats;
        let says = format!(
            "{attached} mappings of peers' memory with {attached_bytes} bytes of addresses, and {own} of this process's with {own_bytes}, of {cache_count} and \
             {cache_bytes} together (FI_RUSTMX_CACHE_COUNT, FI_RUSTMX_CACHE_BYTES); {evicted} of peers' were given up for others, {reattached} attached again"
        );
        let members = format!(
            ",\"attached\":{attached},\"attached_bytes\":{attached_bytes},\"own\":{own},\"own_bytes\":{own_bytes},\"most\":{cache_count},\
             \"most_bytes\":{cache_bytes},\"evicted\":{evicted},\"reattached\":{reattached}"
        );
        Circumstance { about: "cache", says, members, used: evicted > 0 }
    }

    /// All that there is to tell. `far`: there were peers on other hosts.
    pub(super) fn circumstances(&self, far: bool) -> Vec<Circumstance> {
        let stats = self.stats();
        let [ahead, vectors, abreast, stores, helper, aliased] = engines::uses(&self.config, Some(self.crowd.has_room()));
        let (on, says) = lending(&self.config);
        let members = format!(",\"on\":{on},\"says\":{}", quoted(&says));
        let lends = Circumstance { about: "lends", says, members, used: false };
        let kept = self.what_is_kept(&stats);
        let (past_caches, helped) = (Some(stats.past_caches), Some(stats.helped));
        let mut all: Vec<_> =
            [(ahead, None), (vectors, None), (abreast, None), (stores, past_caches), (helper, helped), (aliased, None)]
                .map(|(by, bytes)| engine(by, bytes))
                .into();
        all.extend([lends, kept]);
        let listening = self.door.as_ref().map_or(0, |door| door.listening());
        let shared = match listening {
            0 | 1 => String::new(),
            2 => ", as one other of this process".into(),
            n => format!(", as {} others of this process", n - 1),
        };
        all.extend(self.addresses().into_iter().map(|Told { ip, port, interface, why }| {
            let by = interface.as_ref().map_or(String::new(), |name| format!(", interface {name}"));
            Circumstance {
                about: "address",
                says: format!("other hosts reach this endpoint at {ip} port {port}{by}{shared} ({why})"),
                members: format!(
                    ",\"ip\":{},\"port\":{port},\"endpoints\":{listening},\"interface\":{},\"why\":{}",
                    quoted(&ip.to_string()),
                    interface.map_or("null".into(), |name| quoted(&name)),
                    quoted(&why)
                ),
                used: far,
            }
        }));
        let tales = self.door.as_ref().map(|door| door.tales()).unwrap_or_default();
        all.extend(tales.into_iter().map(tale));
        let lessons = self.profiles.lessons_so_far().map(|lessons| lessons.all()).unwrap_or_default();
        all.extend(lessons.into_iter().filter_map(|(link, lesson)| round_trip(&link, lesson)));
        all.extend(self.peers.ids().filter_map(|id| guesses(self.peers.get(id))));
        all
    }
}
