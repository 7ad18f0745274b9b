//! The select table with what its rows cost, for people and programs.

use crate::report::time;
use rustmx::Config;
use rustmx::select::model::Source;
use rustmx::select::{Origin, Selection, Tuned, record_max};
use rustmx::types::MAX_MSG;
use serde::Serialize;
use std::fmt::Write;

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
    #[serde(skip)]
    row: rustmx::select::Row,
}

/// The measured times of a row's way, one way, in nanoseconds.
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

/// The table of a configuration, by what was measured if something was.
pub(crate) fn rows(config: &Config, tuned: Option<Tuned>) -> Vec<Row> {
    let selection = Selection::tuned(config, record_max(config), tuned);
    let row = |r: &rustmx::select::Row| Row {
        from: r.from,
        to: (r.up_to != MAX_MSG).then_some(r.up_to),
        protocol: r.proto.name(),
        way: r.way().name(),
        how: r.what(),
        lent: r.lent,
        forced: r.is_forced(),
        by: r.origin.name(),
        cost: tuned.map_or(Vec::new(), |tuned| costs(r, tuned)),
        row: *r,
    };
    selection.rows().iter().map(row).collect()
}

fn costs(row: &rustmx::select::Row, tuned: Tuned) -> Vec<Cost> {
    let Tuned { model, case } = tuned;
    let Some((first, last)) = model.range(case) else { return Vec::new() };
    let (from, to) = (row.from.max(first), row.up_to.min(last));
    let cost = |source: &Source| {
        let (a, b) = (model.cost(case, row.way(), *source, from)?, model.cost(case, row.way(), *source, to)?);
        Some(Cost { source: source.name(), from, from_ns: a.ns, to, to_ns: b.ns, spread: a.spread.max(b.spread) })
    };
    if from > to { Vec::new() } else { Source::ALL.iter().filter_map(cost).collect() }
}

/// The table as people read it.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    for r in rows {
        let by = if r.row.origin == Origin::Shipped && rows.iter().all(|r| r.cost.is_empty()) { "" } else { r.by };
        let by = if by.is_empty() { String::new() } else { format!(" ({by})") };
        let _ = writeln!(out, "{} {:<8} {}{by}", r.row.sizes(), r.protocol, r.how);
        for c in &r.cost {
            let (from, to) = (time(c.from_ns), time(c.to_ns));
            let spread = c.spread * 100.0;
            let _ = writeln!(
                out,
                "{:30} {:<6} source: {from} for {} bytes, {to} for {}, ± {spread:.0} %",
                "", c.source, c.from, c.to
            );
        }
    }
    out
}
