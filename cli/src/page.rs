//! The results of `rustmx compare` as one page that needs nothing else: tables, and plots as SVG.

use crate::Failure;
use crate::bench::{Results, Source, WAYS};
use crate::figures::median;
use crate::report::{percent, source, sources, time};
use plotters::prelude::*;
use rustmx::config::show_bytes;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem}h3{font-size:1.05rem}table{border-collapse:collapse;margin:1rem 0;font-size:.87rem}\
td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}\
.best{font-weight:600;background:#e8f4e8}.warn{border-left:4px solid #c60;padding:.3rem .8rem;background:#fff4e5}svg{max-width:100%;height:auto}\
.wide{overflow-x:auto}";

const COLOURS: [RGBColor; 6] = [
    RGBColor(68, 119, 170),
    RGBColor(204, 187, 68),
    RGBColor(238, 102, 119),
    RGBColor(34, 136, 51),
    RGBColor(170, 51, 119),
    RGBColor(120, 120, 120),
];

/// What a plot shows of a message.
#[derive(Clone, Copy)]
enum Axis {
    Time,
    Rate,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Axis::Time => "time one way (µs)",
            Axis::Rate => "rate (GB/s)",
        }
    }

    fn value(self, size: usize, ns: f64) -> f64 {
        match self {
            Axis::Time => ns / 1e3,
            // Bytes in a nanosecond.
            Axis::Rate => size as f64 / ns,
        }
    }
}

/// The page.
///
/// # Errors
/// If a plot cannot be drawn.
pub(crate) fn html(results: &Results) -> Result<String, Failure> {
    let mut out = String::new();
    let m = &results.machine;
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n\
         <title>rustmx: protocols compared</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>rustmx: protocols compared</h1>\n\
         <p>{}, Linux {}, cores {} and {}, {} rounds. Hand-over of a cache line: {}; an empty message: {}.</p>\n",
        escaped(&m.processor),
        escaped(&m.kernel),
        m.cores[0],
        m.cores[1],
        results.rounds,
        time(median(&results.handover_ns)),
        time(median(&results.empty_ns))
    );
    for setting in &m.settings {
        let _ = writeln!(out, "<p><code>{}</code></p>", escaped(setting));
    }
    let missing = results.missing.iter().map(|w| format!("Not measured: {w}"));
    for what in missing.chain(results.unsteady.iter().map(|w| format!("Unsteady: {w}"))) {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", escaped(&what));
    }
    for kind in sources(results) {
        section(&mut out, results, kind)?;
    }
    out.push_str(
        "<h2>How it was measured</h2>\n<p>Two processes, each pinned to a core. A figure is the time from the call that sends a message until \
         an empty answer is back, less the time of the answer; a round has the median of many messages, the table the median of the rounds. \
         Rounds measure everything in turn. <em>Fresh</em>: the buffer is rewritten before each message, which is not timed. \
         <em>memcpy</em> copies within one process. Where a protocol cannot carry a size it has no point.</p>\n\
         </body>\n</html>\n",
    );
    Ok(out)
}

fn section(out: &mut String, results: &Results, kind: Source) -> Result<(), Failure> {
    let _ = writeln!(out, "<h2>{}</h2>", source(kind));
    for axis in [Axis::Time, Axis::Rate] {
        let svg = plot(results, kind, axis).map_err(|e| format!("a plot cannot be drawn ({e})"))?;
        let _ = writeln!(out, "<figure>{svg}</figure>");
    }
    let _ = write!(out, "<div class=\"wide\"><table>\n<tr><th>bytes</th>");
    WAYS.iter().for_each(|w| {
        let _ = write!(out, "<th>{}</th>", w.name());
    });
    out.push_str("<th>memcpy</th></tr>\n");
    for copy in &results.memcpy {
        let of = |way: &str| results.cells.iter().find(|c| c.source == Some(kind) && c.way == way && c.size == copy.size);
        let best = WAYS.iter().filter_map(|w| of(w.name())).map(|c| c.median_ns).fold(f64::INFINITY, f64::min);
        let _ = write!(out, "<tr><td>{}</td>", show_bytes(copy.size as u64));
        for way in WAYS {
            let _ = match of(way.name()) {
                None => write!(out, "<td></td>"),
                Some(c) => {
                    let class = if c.median_ns <= best { " class=\"best\"" } else { "" };
                    write!(out, "<td{class}>{} ± {}</td>", time(c.median_ns), percent(c.spread))
                }
            };
        }
        let _ = writeln!(out, "<td>{}</td></tr>", time(copy.median_ns));
    }
    out.push_str("</table></div>\n<h3>Crossovers</h3>\n<table>\n<tr><th>quicker from here on</th><th>than</th><th>from</th><th>rounds that agree</th></tr>\n");
    for c in results.crossovers.iter().filter(|c| c.source == kind).map(|c| &c.crossover) {
        let size = show_bytes(c.size as u64);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{size}</td><td>{} of {}</td></tr>",
            c.from_here, c.below, c.agree, c.rounds
        );
    }
    out.push_str("</table>\n<h3>What rules cost against the best way for each size</h3>\n<table>\n<tr><th>rule</th><th>on average</th><th>at worst</th><th>at</th></tr>\n");
    for r in results.regret.iter().filter(|r| r.source == kind) {
        let (mean, worst, at) = (percent(r.regret.mean), percent(r.regret.worst), show_bytes(r.regret.at as u64));
        let _ = writeln!(out, "<tr><td>{}</td><td>{mean}</td><td>{worst}</td><td>{at}</td></tr>", escaped(&r.rule));
    }
    out.push_str("</table>\n");
    Ok(())
}

fn plot(results: &Results, kind: Source, axis: Axis) -> Result<String, Box<dyn std::error::Error>> {
    let copies = results.memcpy.iter().map(|c| (c.size, c.median_ns)).collect::<Vec<_>>();
    let mut lines: Vec<(&str, Vec<(usize, f64)>)> = Vec::new();
    for way in WAYS {
        let cells = results.cells.iter().filter(|c| c.source == Some(kind) && c.way == way.name());
        lines.push((way.name(), cells.map(|c| (c.size, c.median_ns)).collect()));
    }
    lines.push(("memcpy", copies));
    let points = || lines.iter().flat_map(|(_, l)| l).map(|(size, ns)| (*size as f64, axis.value(*size, *ns)));
    let fold = |f: fn(f64, f64) -> f64, from: f64, of: fn((f64, f64)) -> f64| points().map(of).fold(from, f);
    let (left, right) = (fold(f64::min, f64::INFINITY, |p| p.0), fold(f64::max, 0.0, |p| p.0));
    let (low, high) = (fold(f64::min, f64::INFINITY, |p| p.1), fold(f64::max, 0.0, |p| p.1));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (900, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{}: {}", source(kind), axis.name()), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d((left / 1.2..right * 1.2).log_scale().base(2.0), (low / 1.3..high * 1.3).log_scale())?;
        let size = |x: &f64| show_bytes(x.round() as u64);
        let value = |y: &f64| if *y >= 1.0 { format!("{y:.0}") } else { format!("{y:.6}").trim_end_matches('0').to_string() };
        chart
            .configure_mesh()
            .x_desc("message size (bytes; k, m: powers of 1024)")
            .y_desc(axis.name())
            .x_labels(14)
            .x_label_formatter(&size)
            .y_label_formatter(&value)
            .light_line_style(RGBColor(240, 240, 240))
            .draw()?;
        for ((name, line), colour) in lines.iter().zip(COLOURS).filter(|((_, line), _)| !line.is_empty()) {
            let at = |(size, ns): &(usize, f64)| (*size as f64, axis.value(*size, *ns));
            chart
                .draw_series(LineSeries::new(line.iter().map(at), colour.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(3)));
            chart.draw_series(line.iter().map(at).map(|p| Circle::new(p, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
