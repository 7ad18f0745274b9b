//! The tables for peers on other hosts, one for each link that was measured, and where others reach this host.

use crate::Failure;
use crate::node::Node;
use crate::report::time;
use crate::rows::{self, Deed};
use rustmx::Config;
use rustmx::domain::Told;
use rustmx::select::Selection;
use rustmx::select::lessons::{self, Entry, said};
use rustmx::select::model::{Model, PeerClass};
use rustmx::select::network::{FarTable, RowCost, tables};
use rustmx::select::profile::Standing;
use serde::Serialize;
use std::fmt;

/// A row of such a table.
#[derive(Serialize)]
pub(crate) struct Row {
    from: usize,
    /// `None`: as long as a message can be.
    to: Option<usize>,
    protocol: &'static str,
    how: String,
    /// Who says so: `default`, `profile`, `set`, `forced`.
    by: &'static str,
    cost: Option<Cost>,
}

/// What its messages take one way, in nanoseconds.
#[derive(Serialize)]
pub(crate) struct Cost {
    /// The shortest of the row's sizes of which something is known.
    from: usize,
    from_ns: f64,
    /// The longest.
    to: usize,
    to_ns: f64,
    /// `measured`, or `modelled` by what a link costs that nobody has measured.
    by: &'static str,
}

impl From<RowCost> for Cost {
    fn from(cost: RowCost) -> Cost {
        let ((from, from_ns), (to, to_ns)) = (cost.from, cost.to);
        Cost { from, from_ns, to, to_ns, by: if cost.measured { "measured" } else { "modelled" } }
    }
}

/// As people read it.
impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { from, from_ns, to, to_ns, by } = self;
        write!(out, "{} for {from} bytes, {} for {to}, {by}", time(*from_ns), time(*to_ns))
    }
}

/// The table for a link.
#[derive(Serialize)]
pub(crate) struct Table {
    /// `None`: all that were not measured.
    link: Option<String>,
    rows: Vec<Row>,
    /// Reads, writes and atomics of their memory.
    one_sided: Vec<Deed>,
}

impl Table {
    /// For a link, or all that were not measured; `model`: what was measured.
    pub fn of(link: Option<&str>, selection: &Selection, model: Option<&Model>, config: &Config) -> Table {
        let row = |r: &rustmx::select::Row| Row {
            from: r.from,
            to: r.end(),
            protocol: r.proto.name(),
            how: r.what_far(config.tcp_window),
            by: r.origin.name(),
            cost: RowCost::of(r, model).map(Cost::from),
        };
        let one_sided = rows::deeds(selection, PeerClass::Network, model, config);
        Table { link: link.map(str::to_owned), rows: selection.rows().iter().map(row).collect(), one_sided }
    }
}

/// As people read it.
impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for r in &self.rows {
            let to = r.to.map_or("max".into(), |to| to.to_string());
            writeln!(out, "{:>8} .. {to:<8} {:<8} {} ({})", r.from, r.protocol, r.how, r.by)?;
            if let Some(c) = &r.cost {
                writeln!(out, "{:30} {c}", "")?;
            }
        }
        self.one_sided.iter().try_for_each(|deed| write!(out, "{deed}"))
    }
}

/// Where others reach an endpoint of this host.
#[derive(Serialize)]
struct Address {
    ip: String,
    interface: Option<String>,
    why: String,
}

/// What earlier jobs found out about a link.
#[derive(Serialize)]
struct Learned {
    link: String,
    /// By how many connections long messages go.
    lanes: Option<usize>,
    /// Whether the kernel copied what was sent without a copy.
    copied: Option<bool>,
    round_trip_us: Option<u32>,
    /// All of it, with figures and when that was, in words.
    says: Vec<String>,
}

impl From<&Entry> for Learned {
    fn from(entry: &Entry) -> Learned {
        let Entry { link, lesson, .. } = entry;
        let lanes = lesson.lanes.map(|(lanes, by)| format!("lanes: {}: {lanes}; {}", lanes.number, said(by)));
        let copies = lesson.copies.map(|(copies, by)| format!("zero-copy send: {copies}; {}", said(by)));
        let round_trip = lesson.round_trip.map(|(us, by)| format!("the shortest round trip took {us} us; {}", said(by)));
        Learned {
            link: link.clone(),
            lanes: lesson.lanes.map(|(lanes, _)| lanes.number),
            copied: lesson.copies.map(|(copies, _)| copies.copied),
            round_trip_us: lesson.round_trip.map(|(us, _)| us),
            says: [lanes, copies, round_trip].into_iter().flatten().collect(),
        }
    }
}

/// What earlier jobs found out, and where that is kept.
#[derive(Serialize)]
struct OfJobs {
    says: String,
    links: Vec<Learned>,
}

impl OfJobs {
    fn of(config: &Config) -> OfJobs {
        let standing = lessons::Standing::look(config);
        let links = match &standing {
            lessons::Standing::InForce(_, entries) => entries.iter().map(Learned::from).collect(),
            _ => Vec::new(),
        };
        OfJobs { says: standing.says().1, links }
    }
}

/// All that decides how messages to other hosts go.
#[derive(Serialize)]
pub(crate) struct Network {
    addresses: Vec<Address>,
    /// Why there are none.
    unreachable: Option<String>,
    tables: Vec<Table>,
    /// By how many connections, and whether without a copy.
    learned: OfJobs,
}

impl Network {
    /// Of a configuration and the profile in force, if one is; `node` is an endpoint by it, or why there is none.
    pub fn of(config: &Config, standing: &Standing, node: Result<Node, Failure>) -> Network {
        if config.tcp == 0 {
            let (unreachable, learned) = (Some("FI_RUSTMX_TCP=no".into()), OfJobs::of(config));
            return Network { addresses: Vec::new(), unreachable, tables: Vec::new(), learned };
        }
        let all = tables(config, standing);
        let table = |table: &FarTable| {
            let model = table.link.as_ref().and_then(|link| standing.profile()?.link(link));
            Table::of(table.link.as_deref(), &table.selection, model, config)
        };
        let (told, why) = match node {
            Ok(node) => (node.addresses(), node.warnings().join("; ")),
            Err(why) => (Vec::new(), why),
        };
        let address = |Told { ip, interface, why, .. }| Address { ip: ip.to_string(), interface, why };
        let unreachable = told.is_empty().then_some(why);
        let (addresses, tables) = (told.into_iter().map(address).collect(), all.iter().map(table).collect());
        Network { addresses, unreachable, tables, learned: OfJobs::of(config) }
    }
}

/// As people read it.
impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.unreachable {
            writeln!(out, "  other hosts do not reach this one: {why}")?;
        }
        for Address { ip, interface, why } in &self.addresses {
            let by = interface.as_ref().map_or(String::new(), |name| format!(", interface {name}"));
            writeln!(out, "  they reach this host at {ip}{by} ({why})")?;
        }
        for table in &self.tables {
            match &table.link {
                Some(link) => writeln!(out, "  by {link}, which was measured:")?,
                None if self.tables.len() > 1 => writeln!(out, "  by any other link:")?,
                None => {}
            }
            write!(out, "{table}")?;
        }
        writeln!(out, "  {}", self.learned.says)?;
        for Learned { link, says, .. } in &self.learned.links {
            writeln!(out, "  by {link}:")?;
            says.iter().try_for_each(|what| writeln!(out, "    {what}"))?;
        }
        Ok(())
    }
}
