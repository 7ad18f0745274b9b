//! Peers on other hosts: what messages to them cost, a table for each link that was measured, and the shipped one.
//!
//! A link is what packets to a peer leave by: an interface with its MTU and speed (`sys/links.rs`). Its costs are measured points like those of
//! peers of the same host (`model.rs`), or, where nothing was measured, four numbers ([`LinkCosts`]).

use super::model::{Case, Model, PeerClass, Source};
use super::profile::Standing;
use super::{Row, Selection, Tuned};
use crate::config::force::Way;
use crate::config::{Config, ENV_PREFIX, PARAMS};
use crate::sys::links::Link;
use crate::types::{MAX_MSG, ProtoId};

/// Parameters that times by a link depend on: what is encrypted costs each byte, a short ring holds up whoever is ahead, and a small window makes
/// messages from buffer to buffer wait until they are asked for.
const THAT_MATTER: [&str; 3] = ["encrypt", "tcp_ring_size", "tcp_window"];

/// What a profile calls a link: by these words, and those of [`THAT_MATTER`] that are not as they are by default. So links that were measured before they
/// counted are as good as they were, and a version that knows nothing of them never finds a link that was measured otherwise.
pub fn link_name(link: &Link, config: &Config) -> String {
    format!("{link}{}", settings(config))
}

fn settings(config: &Config) -> String {
    let default = Config::on(config.processor);
    let other = PARAMS.iter().filter(|p| THAT_MATTER.contains(&p.name) && p.value(config) != p.value(&default));
    other.map(|p| format!(", {}={}", p.env(), p.value(config))).collect()
}

/// The settings that a link was measured with.
fn measured_with(name: &str) -> &str {
    name.find(&format!(", {ENV_PREFIX}")).map_or("", |at| &name[at..])
}

/// A link in four numbers, in nanoseconds. A message of `n` bytes takes `message + n * record_byte` in a record, and
/// `message + in_place + n * place_byte` from buffer to buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCosts {
    /// A message without payload: the system calls of both sides, and the way between them.
    pub message: f64,
    /// Each byte of a record: two copies beside what the sockets cost.
    pub record_byte: f64,
    /// What a message from buffer to buffer costs more: its envelope, and system calls of its own.
    pub in_place: f64,
    /// Each byte from buffer to buffer.
    pub place_byte: f64,
}

/// Bytes up to which modelled costs are told: nobody has measured what caches and windows do beyond.
const MODELLED_TO: usize = 4 << 20;

impl LinkCosts {
    /// The loopback interface of the machine on which the shipped sizes were found (`docs/adr/0016-profile.md`).
    pub const SHIPPED: LinkCosts = LinkCosts { message: 8_000.0, record_byte: 0.5, in_place: 5_000.0, place_byte: 0.22 };

    /// A message of `size` bytes by a way that goes to other hosts, in nanoseconds.
    pub fn cost(&self, way: Way, size: usize) -> Option<f64> {
        let n = size as f64;
        match way {
            Way::Inline | Way::Eager => Some(self.message + n * self.record_byte),
            Way::Stream => Some(self.message + self.in_place + n * self.place_byte),
            _ => None,
        }
    }

    /// The numbers that come nearest to what was measured, each point counting by its part; `None` if too little was.
    pub fn fitted(model: &Model) -> Option<LinkCosts> {
        let points = |ways: &[Way]| -> Vec<(f64, f64)> {
            let of = model.curves().iter().filter(|(about, _)| about.peer == PeerClass::Network && ways.contains(&about.way));
            of.flat_map(|(_, curve)| curve.points()).map(|p| (p.size as f64, p.ns)).collect()
        };
        let (message, record_byte) = line(&points(&[Way::Inline, Way::Eager]))?;
        let (start, place_byte) = line(&points(&[Way::Stream]))?;
        Some(LinkCosts { message, record_byte, in_place: (start - message).max(0.0), place_byte })
    }
}

/// The straight line through times by size with the least squares of relative errors, neither part below zero.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    // Divided by its time each point says start * 1/t + rate * n/t = 1.
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(n, t)| of(*n, *t)).sum::<f64>();
    let (aa, ab, bb) = (sum(&|_, t| 1.0 / (t * t)), sum(&|n, t| n / (t * t)), sum(&|n, t| n * n / (t * t)));
    let (a, b) = (sum(&|_, t| 1.0 / t), sum(&|n, t| n / t));
    let det = aa * bb - ab * ab;
    if points.len() < 2 || det <= 1e-12 * aa * bb {
        return None;
    }
    let (start, rate) = ((a * bb - b * ab) / det, (b * aa - a * ab) / det);
    Some(match (start < 0.0, rate < 0.0) {
        (true, _) => (0.0, b / bb),
        (_, true) => (a / aa, 0.0),
        _ => (start, rate),
    })
}

/// What messages to a link's peers cost, and which way they go.
#[derive(Clone, Debug)]
pub struct FarTable {
    /// The link, as a profile names it; `None`: any that was not measured.
    pub link: Option<String>,
    /// Which way they go.
    pub selection: Selection,
}

/// The table of links that were not measured, and then one for each that was with these settings.
pub fn tables(config: &Config, standing: &Standing) -> Vec<FarTable> {
    let shipped = FarTable { link: None, selection: Selection::for_network(config, None) };
    let links = standing.profile().map_or(&[][..], |p| &p.links);
    let settings = settings(config);
    let measured = links.iter().filter(|(link, _)| measured_with(link) == settings).map(|(link, model)| {
        let tuned = Tuned { model, case: Case::NETWORK };
        FarTable { link: Some(link.clone()), selection: Selection::for_network(config, Some(tuned)) }
    });
    std::iter::once(shipped).chain(measured).collect()
}

/// What the messages of a row cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowCost {
    /// Of the row's sizes the shortest of which something is known, and its time in nanoseconds.
    pub from: (usize, f64),
    /// The longest.
    pub to: (usize, f64),
    /// Whether it was measured, of other hosts on this very link; else it follows from [`LinkCosts::SHIPPED`], or the lines of `here.rs`.
    pub measured: bool,
}

impl RowCost {
    /// Of a row of a table for other hosts; `model`: what was measured of the link.
    pub fn of(row: &Row, model: Option<&Model>) -> Option<RowCost> {
        let way = row.way();
        if let Some(model) = model
            && let Some((first, last)) = model.range(Case::NETWORK)
        {
            let (from, to) = (row.from.max(first), row.up_to.min(last));
            let mean = |size| {
                let each = |source: &Source| Some(model.cost(Case::NETWORK, way, *source, size)?.ns.ln());
                let all: Option<Vec<f64>> = Source::ALL.iter().map(each).collect();
                all.map(|all| (all.iter().sum::<f64>() / all.len() as f64).exp())
            };
            if from <= to
                && let (Some(a), Some(b)) = (mean(from), mean(to))
            {
                return Some(RowCost { from: (from, a), to: (to, b), measured: true });
            }
        }
        let to = row.up_to.min(MODELLED_TO);
        if row.from > to {
            return None;
        }
        let cost = |size| LinkCosts::SHIPPED.cost(way, size);
        Some(RowCost { from: (row.from, cost(row.from)?), to: (to, cost(to)?), measured: false })
    }
}

/// For people.
impl std::fmt::Display for RowCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = if self.measured { "measured" } else { "modelled" };
        let ((from, a), (to, b)) = (self.from, self.to);
        write!(f, "{:.1} us for {from} bytes, {:.1} us for {to}, {by}", a / 1e3, b / 1e3)
    }
}

impl Row {
    /// How it carries messages to other hosts, for people; `window`: the payload bytes that may leave without being asked for.
    pub fn what_far(&self, window: u64) -> String {
        match self.proto {
            ProtoId::Eager => {
                format!("one record, counted against the receiver's window of {window} bytes (FI_RUSTMX_TCP_WINDOW)")
            }
            ProtoId::Stream => format!(
                "from the sender's buffer to the receiver's; up to half of what is left of the window of {window} bytes \
                 (FI_RUSTMX_TCP_WINDOW) leaves at once, the rest when the receiver asks, by several connections if that is quicker \
                 (FI_RUSTMX_TCP_LANES)"
            ),
            _ => self.what().into(),
        }
    }

    /// Its last size; `None`: there is none.
    pub fn end(&self) -> Option<usize> {
        (self.up_to != MAX_MSG).then_some(self.up_to)
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
