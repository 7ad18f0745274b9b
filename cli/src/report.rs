//! The results of `rustmx compare` as text for people.

use crate::figures::{Regret, Step, median};
use crate::kind::{Kind, Lane, WAYS};
use crate::results::{Cell, LIMIT, LinkRun, Results};
use rustmx::config::show_bytes;
use rustmx::log::plural;
use std::fmt::Write;

/// A time as people read it.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e4 => format!("{:.2} µs", n / 1e3),
        n if n < 1e6 => format!("{:.0} µs", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

/// A part of one as people read it.
pub(crate) fn percent(part: f64) -> String {
    // Nothing has no sign: -0 + 0 is 0.
    format!("{:.0} %", (part * 100.0).round() + 0.0)
}

/// All of it.
pub(crate) fn text(results: &Results) -> String {
    let mut out = String::new();
    let m = &results.machine;
    let _ = writeln!(out, "{}, Linux {}, cores {} and {}, {}", m.processor, m.kernel, m.cores[0], m.cores[1], rounds(results));
    if !m.settings.is_empty() {
        let _ = writeln!(out, "Settings: {}", m.settings.join(" "));
    }
    let _ = writeln!(out, "{}", basics(results));
    if results.read {
        let _ = writeln!(out, "{READ}");
    }
    for what in &results.missing {
        let _ = writeln!(out, "Not measured: {what}");
    }
    for what in &results.unsteady {
        let _ = writeln!(out, "UNSTEADY: {what}");
    }
    for kind in results.kinds() {
        table(&mut out, results, kind);
    }
    if let Some(run) = &results.network {
        link(&mut out, run);
    }
    out
}

/// How many rounds there were.
pub(crate) fn rounds(results: &Results) -> String {
    format!("{} {}", results.rounds, plural(results.rounds as u64, "round"))
}

/// What `--read` means.
pub(crate) const READ: &str =
    "Times of messages end when the receiver has looked at every line of them; limits are of copying alone.";

/// What else was measured, in a sentence.
pub(crate) fn basics(results: &Results) -> String {
    let empty = time(median(&results.empty_ns));
    match &results.network {
        None => format!("Hand-over of a cache line: {}; an empty message: {empty}", time(median(&results.handover_ns))),
        Some(run) => {
            let to = run.peer.as_deref().unwrap_or("another process of this host");
            format!(
                "By {}, to {to}; an empty message: {empty}; a byte by plain sockets: {}",
                run.link,
                time(median(&run.plain_ns))
            )
        }
    }
}

/// What the limit of a table is.
pub(crate) fn limit_in_words(results: &Results) -> &'static str {
    match results.network {
        None => "two processes need that copy a half each, and nothing else",
        Some(_) => "two plain sockets need",
    }
}

/// Who carried many messages at a time.
pub(crate) fn who(way: &str) -> &str {
    match way {
        LIMIT => "plain sockets",
        way if way == Lane::Chosen.name() => "the provider",
        way => way,
    }
}

/// The rates of a link, and what it costs in four numbers.
fn link(out: &mut String, run: &LinkRun) {
    if let Some(c) = &run.costs {
        let (message, more) = (time(c.message_ns), time(c.in_place_ns));
        let (record, place) = (c.record_byte_ns, c.place_byte_ns);
        let _ = writeln!(
            out,
            "\nIn four numbers: a message {message}, each byte of a record {record:.3} ns; from buffer to buffer {more} more, each byte {place:.3} ns"
        );
    }
    for r in &run.rates {
        let (size, spread) = (show_bytes(r.size as u64), percent(r.spread));
        let who = who(r.way);
        let _ = writeln!(out, "  {who:<14} {size:>6}, many under way: {:.2} GB/s ± {spread}", r.gb_s);
    }
}

/// How far a step may be, and how near to the limit a protocol should come: what this project asks of itself.
pub(crate) const GOALS: (f64, f64) = (1.5, 0.15);

fn table(out: &mut String, results: &Results, kind: Kind) {
    let _ = writeln!(
        out,
        "\n{}: one way, median ± how far the middle half of the rounds is apart; * is the quickest way",
        kind.title()
    );
    let lanes = results.lanes(kind);
    let _ = write!(out, "{:>8}", "bytes");
    for lane in &lanes {
        let _ = write!(out, "{:>17}", lane.name());
    }
    let copies = !results.memcpy.is_empty();
    let _ = writeln!(out, "{:>11}{:>11}", "limit", if copies { "memcpy" } else { "" });
    for size in results.sizes() {
        let best = best(results, kind, size);
        if best == f64::INFINITY {
            continue;
        }
        let _ = write!(out, "{:>8}", show_bytes(size as u64));
        for lane in &lanes {
            let shown = results.cell(kind, lane.name(), size).map_or(String::new(), |c| {
                let star = if c.median_ns <= best { "*" } else { "" };
                format!("{star}{} ± {}", time(c.median_ns), percent(c.spread))
            });
            let _ = write!(out, "{shown:>17}");
        }
        let shown = |cell: Option<&Cell>| cell.map_or(String::new(), |c| time(c.median_ns));
        let _ = writeln!(out, "{:>11}{:>11}", shown(results.limit(kind, size)), shown(results.copy(size)));
    }
    conclusions(out, results, kind);
}

/// The time of the quickest way at a size, without what the provider chose.
pub(crate) fn best(results: &Results, kind: Kind, size: usize) -> f64 {
    let ways = WAYS.iter().filter_map(|w| results.cell(kind, w.name(), size));
    ways.map(|c| c.median_ns).fold(f64::INFINITY, f64::min)
}

fn conclusions(out: &mut String, results: &Results, kind: Kind) {
    let (crossovers, noise) = results.crossovers(kind);
    let none = if crossovers.is_empty() { " none" } else { "" };
    let _ = writeln!(out, "\n  Crossovers:{none}{}", left_out(noise).map_or(String::new(), |so| format!(" ({so})")));
    for c in crossovers {
        let size = show_bytes(c.size as u64);
        let _ = writeln!(
            out,
            "    {} is quicker than {} from {size} on ({} of {} rounds agree)",
            c.from_here, c.below, c.agree, c.rounds
        );
    }
    let by = if results.regret_by_halves { ", in each half of the rounds by what the other half says" } else { "" };
    let _ = writeln!(out, "  Regret against the best way for each size{by}:");
    for r in results.regret.iter().filter(|r| r.kind == kind) {
        let _ = writeln!(out, "    {:<16} {}", r.rule, over(&r.regret));
    }
    for jump in results.steps.iter().filter(|s| s.kind == kind) {
        let _ = writeln!(out, "  {}", step(&jump.step));
    }
    let mut near = results.against_limit.iter().filter(|a| a.kind == kind).peekable();
    if near.peek().is_some() {
        let _ = writeln!(
            out,
            "  More than {}{}:",
            limit_in_words(results),
            if results.network.is_none() { format!(" ({} is the goal)", percent(GOALS.1)) } else { String::new() }
        );
    }
    for a in near {
        let _ = writeln!(out, "    {:<16} {}", a.way, over(&a.over));
    }
}

/// What is said of crossovers that may be none.
pub(crate) fn left_out(noise: usize) -> Option<String> {
    (noise > 0).then(|| format!("{noise} left out, on which fewer than half of the rounds agree"))
}

fn over(regret: &Regret) -> String {
    let (mean, worst, at) = (percent(regret.mean), percent(regret.worst), show_bytes(regret.at as u64));
    format!("{mean:>6} on average, at worst {worst:>6} at {at} ({} {})", regret.sizes, plural(regret.sizes as u64, "size"))
}

/// A step in a sentence.
pub(crate) fn step(step: &Step) -> String {
    let (from, to) = (show_bytes(step.from as u64), show_bytes(2 * step.from as u64));
    format!(
        "The worst step of what the provider chose: {:.2} beyond the doubling, from {from} to {to} (at most {} is the goal)",
        step.apart, GOALS.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one() {
        assert_eq!([0.126, -0.126, 0.004, -0.004].map(percent), ["13 %", "-13 %", "0 %", "0 %"]);
    }
}
