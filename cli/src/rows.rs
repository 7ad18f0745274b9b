//! The select table with what its rows cost, for people and programs.

use crate::far;
use crate::report::time;
use rustmx::Config;
use rustmx::config::force::Way;
use rustmx::select::model::{Case, Memory, Model, PeerClass, Source};
use rustmx::select::network::RowCost;
use rustmx::select::one_sided;
use rustmx::select::{Origin, Selection, Tuned, record_max};
use rustmx::types::MAX_MSG;
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// A row of the select table.
#[derive(Serialize)]
pub(crate) struct Row {
    from: usize,
    /// `None`: as long as a message can be.
    to: Option<usize>,
    protocol: &'static str,
    way: &'static str,
    how: &'static str,
    /// Only for messages in memory that was lent.
    lent: bool,
    forced: bool,
    /// Who says so: `default`, `profile`, `set`, `forced`.
    by: &'static str,
    /// What was measured; empty without a profile.
    cost: Vec<Cost>,
    /// What such messages take on the machine that the shipped table was made for, if nothing was measured here.
    modelled: Option<Modelled>,
    #[serde(skip)]
    row: rustmx::select::Row,
}

/// The measured times of a row's way, one way, in nanoseconds. Where both copy if that pays, those of what is done then.
#[derive(Serialize)]
struct Cost {
    source: &'static str,
    /// The shortest of the row's sizes that lies in the measured range.
    from: usize,
    from_ns: f64,
    /// The longest.
    to: usize,
    to_ns: f64,
    /// The wider spread of the two.
    spread: f64,
}

/// Modelled times of a row's way, one way, in nanoseconds.
#[derive(Serialize)]
struct Modelled {
    from: usize,
    from_ns: f64,
    to: usize,
    to_ns: f64,
}

impl From<RowCost> for Modelled {
    fn from(RowCost { from: (from, from_ns), to: (to, to_ns), .. }: RowCost) -> Modelled {
        Modelled { from, from_ns, to, to_ns }
    }
}

/// Who carries out reads, writes or atomics of a peer's memory.
#[derive(Serialize)]
pub(crate) struct Deed {
    operation: &'static str,
    from: usize,
    /// `None`: as long as can be.
    to: Option<usize>,
    /// `direct`, or `one_sided`: by the target's engine.
    protocol: &'static str,
    how: &'static str,
    by: &'static str,
    cost: Option<far::Cost>,
}

/// The rows for a kind of peers, and what was measured of them.
pub(crate) fn deeds(selection: &Selection, peers: PeerClass, model: Option<&Model>, config: &Config) -> Vec<Deed> {
    let deed = |d: &one_sided::Deed| Deed {
        operation: d.operation.name(),
        from: d.from,
        to: (d.up_to != MAX_MSG).then_some(d.up_to),
        protocol: d.mover.name(),
        how: d.what(),
        by: d.origin.name(),
        cost: RowCost::deed(d, peers, model, config.processor).map(far::Cost::from),
    };
    selection.deeds().rows().iter().map(deed).collect()
}

/// As people read it.
impl fmt::Display for Deed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.map_or("max".into(), |to| to.to_string());
        let by = if self.by == Origin::Shipped.name() { String::new() } else { format!(" ({})", self.by) };
        writeln!(out, "{:<6} {:>8} .. {to:<8} {:<9} {}{by}", self.operation, self.from, self.protocol, self.how)?;
        self.cost.as_ref().map_or(Ok(()), |cost| writeln!(out, "{:37} {cost}", ""))
    }
}

/// From when on both copy, where a row lets them.
#[derive(Serialize)]
pub(crate) struct Shares {
    how: &'static str,
    /// Nanoseconds that one side must be expected to need alone.
    ns: u64,
    /// Who says so.
    by: &'static str,
    /// What is seen of a peer corrects it.
    corrected: bool,
}

/// All that decides how a message goes.
#[derive(Serialize)]
pub(crate) struct Table {
    table: Vec<Row>,
    both_copy: [Shares; 2],
    by_habit: Option<Habit>,
    again: Option<Habit>,
    one_sided: Vec<Deed>,
}

/// Sizes of which habits decide: in lent memory they go through the ring to peers which do not find them in their own caches; in other memory they are the kernel's to peers which do.
#[derive(Serialize)]
pub(crate) struct Habit {
    from: usize,
    to: usize,
}

/// The table of a configuration, by what was measured if something was.
pub(crate) fn table(config: &Config, tuned: Option<Tuned>) -> Table {
    let selection = Selection::tuned(config, record_max(config), tuned);
    let worth = selection.worth();
    let row = |r: &rustmx::select::Row| {
        let cost = tuned.map_or(Vec::new(), |tuned| costs(r, tuned, worth.ns));
        let modelled = RowCost::here(r, &selection, None, config.processor).filter(|_| cost.is_empty()).map(Modelled::from);
        Row {
            from: r.from,
            to: (r.up_to != MAX_MSG).then_some(r.up_to),
            protocol: r.proto.name(),
            way: r.way().name(),
            how: r.what(),
            lent: r.lent,
            forced: r.is_forced(),
            by: r.origin.name(),
            cost,
            modelled,
            row: *r,
        }
    };
    let shares = |i: usize, how| Shares { how, ns: worth.ns[i], by: worth.by[i].name(), corrected: !worth.fixed[i] };
    let both_copy = [shares(0, "by the kernel"), shares(1, "out of lent memory")];
    let habit = |sizes: Range<usize>| (!sizes.is_empty()).then(|| Habit { from: sizes.start, to: sizes.end - 1 });
    let (by_habit, again) = (habit(selection.by_habit()), habit(selection.again()));
    let one_sided = deeds(&selection, PeerClass::SameHost, tuned.map(|tuned| tuned.model), config);
    Table { table: selection.rows().iter().map(row).collect(), both_copy, by_habit, again, one_sided }
}

fn costs(row: &rustmx::select::Row, tuned: Tuned, worth: [u64; 2]) -> Vec<Cost> {
    let memory = if row.lent { Memory::Exported } else { Memory::Private };
    let (model, case) = (tuned.model, Case { memory, worth: (!row.is_forced()).then_some(worth), ..tuned.case });
    let Some((first, last)) = model.range(case) else { return Vec::new() };
    let (from, to) = (row.from.max(first), row.up_to.min(last));
    let cost = |source: &Source| {
        let at = |size| model.cost(case, model.settled(case, row.way(), *source, size), *source, size);
        let (a, b) = (at(from)?, at(to)?);
        Some(Cost { source: source.name(), from, from_ns: a.ns, to, to_ns: b.ns, spread: a.spread.max(b.spread) })
    };
    if from > to { Vec::new() } else { Source::ALL.iter().filter_map(cost).collect() }
}

/// As people read it.
impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = self.table.iter().any(|r| !r.cost.is_empty());
        let by = |by: &str| if by == Origin::Shipped.name() && !measured { String::new() } else { format!(" ({by})") };
        for r in &self.table {
            writeln!(out, "{} {:<8} {}{}", r.row.sizes(), r.protocol, r.how, by(r.by))?;
            if let Some(Modelled { from, from_ns, to, to_ns }) = r.modelled {
                writeln!(out, "{:30} {} for {from} bytes, {} for {to}, modelled", "", time(from_ns), time(to_ns))?;
            }
            for c in &r.cost {
                let (from, to) = (time(c.from_ns), time(c.to_ns));
                let spread = c.spread * 100.0;
                writeln!(
                    out,
                    "{:30} {:<6} source: {from} for {} bytes, {to} for {}, ± {spread:.0} %",
                    "", c.source, c.from, c.to
                )?;
            }
        }
        let asked = |way| self.table.iter().any(|r| r.row.way() == way && !r.forced);
        for (way, s) in [Way::Shared, Way::MappedShared].into_iter().zip(&self.both_copy) {
            if !asked(way) {
                continue;
            }
            let ns = time(s.ns as f64);
            let corrected = if s.corrected { ", corrected by what both are seen to take" } else { "" };
            let what = format!("it pays for both to copy {} if one alone would need {ns} or more", s.how);
            writeln!(out, "{:30} {what}{corrected}{}", "", by(s.by))?;
        }
        if let Some(Habit { from, to }) = self.by_habit {
            let what = format!(
                "lent memory of {from} to {to} bytes goes through the ring to peers that do not find it in their own caches"
            );
            writeln!(out, "{:30} {what}", "")?;
        }
        if let Some(Habit { from, to }) = self.again {
            let what = format!(
                "other memory of {from} to {to} bytes that looks as it did when it was last sent is left to the kernel, for peers that find it in their own \
                 caches"
            );
            writeln!(out, "{:30} {what}", "")?;
        }
        writeln!(out, "\nMemory of peers, by size in bytes:")?;
        self.one_sided.iter().try_for_each(|deed| write!(out, "{deed}"))
    }
}
