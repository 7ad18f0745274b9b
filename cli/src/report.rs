//! The results of `rustmx compare` as text for people.

use crate::bench::{Results, Source, WAYS};
use crate::figures::median;
use rustmx::config::show_bytes;
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
    format!("{:.0} %", part * 100.0)
}

/// The name of a kind of source, for people.
pub(crate) fn source(source: Source) -> &'static str {
    match source {
        Source::Reused => "reused source buffer",
        Source::Fresh => "fresh source buffer",
    }
}

/// The sources that were measured.
pub(crate) fn sources(results: &Results) -> Vec<Source> {
    [Source::Reused, Source::Fresh].into_iter().filter(|s| results.cells.iter().any(|c| c.source == Some(*s))).collect()
}

/// All of it.
pub(crate) fn text(results: &Results) -> String {
    let mut out = String::new();
    let m = &results.machine;
    let _ =
        writeln!(out, "{}, Linux {}, cores {} and {}, {} rounds", m.processor, m.kernel, m.cores[0], m.cores[1], results.rounds);
    if !m.settings.is_empty() {
        let _ = writeln!(out, "Settings: {}", m.settings.join(" "));
    }
    let _ = writeln!(
        out,
        "Hand-over of a cache line: {}; an empty message: {}",
        time(median(&results.handover_ns)),
        time(median(&results.empty_ns))
    );
    for what in &results.missing {
        let _ = writeln!(out, "Not measured: {what}");
    }
    for what in &results.unsteady {
        let _ = writeln!(out, "UNSTEADY: {what}");
    }
    for kind in sources(results) {
        table(&mut out, results, kind);
    }
    out
}

fn table(out: &mut String, results: &Results, kind: Source) {
    let _ =
        writeln!(out, "\n{}: one way, median ± how far the middle half of the rounds is apart; * is the quickest", source(kind));
    let _ = write!(out, "{:>8}", "bytes");
    for way in WAYS {
        let _ = write!(out, "{:>18}", way.name());
    }
    let _ = writeln!(out, "{:>11}", "memcpy");
    for copy in &results.memcpy {
        let of = |way: &str| results.cells.iter().find(|c| c.source == Some(kind) && c.way == way && c.size == copy.size);
        let best = WAYS.iter().filter_map(|w| of(w.name())).map(|c| c.median_ns).fold(f64::INFINITY, f64::min);
        let _ = write!(out, "{:>8}", show_bytes(copy.size as u64));
        for way in WAYS {
            let shown = of(way.name()).map_or(String::new(), |c| {
                let star = if c.median_ns <= best { "*" } else { "" };
                format!("{star}{} ± {}", time(c.median_ns), percent(c.spread))
            });
            let _ = write!(out, "{shown:>18}");
        }
        let _ = writeln!(out, "{:>11}", time(copy.median_ns));
    }
    let none = if results.crossovers.iter().any(|c| c.source == kind) { "" } else { " none" };
    let _ = writeln!(out, "\n  Crossovers:{none}");
    for c in results.crossovers.iter().filter(|c| c.source == kind).map(|c| &c.crossover) {
        let size = show_bytes(c.size as u64);
        let _ = writeln!(
            out,
            "    {} is quicker than {} from {size} on ({} of {} rounds agree)",
            c.from_here, c.below, c.agree, c.rounds
        );
    }
    let _ = writeln!(out, "  Regret against the best way for each size:");
    for r in results.regret.iter().filter(|r| r.source == kind) {
        let (mean, worst, at) = (percent(r.regret.mean), percent(r.regret.worst), show_bytes(r.regret.at as u64));
        let _ = writeln!(out, "    {:<16} {mean:>6} on average, at worst {worst:>6} at {at} ({} sizes)", r.rule, r.regret.sizes);
    }
}
