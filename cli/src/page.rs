//! The results of `rustmx compare` as one page that needs nothing else: tables, and plots as SVG.

use crate::Failure;
use crate::figures::Regret;
use crate::kind::{Kind, Lane};
use crate::report::{READ, basics, best, left_out, limit_in_words, percent, rounds, step, time, who};
use crate::results::{Cell, LinkRun, Results};
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters_backend::{BackendCoord, DrawingErrorKind};
use rustmx::config::show_bytes;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem}h3{font-size:1.05rem}table{border-collapse:collapse;margin:1rem 0;font-size:.87rem}\
td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}\
.best{font-weight:600;background:#e8f4e8}.warn{border-left:4px solid #c60;padding:.3rem .8rem;background:#fff4e5}svg{max-width:100%;height:auto}\
.wide{overflow-x:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181a1b}td,th{border-color:#444}.best{background:#1d3d22}\
.warn{background:#3d2c10}svg{border-radius:4px}}";

const COLOURS: [RGBColor; 10] = [
    RGBColor(68, 119, 170),
    RGBColor(204, 187, 68),
    RGBColor(238, 102, 119),
    RGBColor(34, 136, 51),
    RGBColor(170, 51, 119),
    RGBColor(102, 204, 238),
    RGBColor(0, 60, 110),
    RGBColor(0, 0, 0),
    RGBColor(190, 140, 90),
    RGBColor(120, 120, 120),
];

/// A point of a line. Lines differ in its form, too, for who does not see their colours apart.
struct Mark<C> {
    at: C,
    /// Which line.
    line: usize,
    colour: RGBColor,
}

impl<'a, C: 'a> PointCollection<'a, C> for &'a Mark<C> {
    type Point = &'a C;
    type IntoIter = std::iter::Once<&'a C>;

    fn point_iter(self) -> Self::IntoIter {
        std::iter::once(&self.at)
    }
}

impl<C, B: DrawingBackend> Drawable<B> for Mark<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        mut places: I,
        to: &mut B,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<B::ErrorType>> {
        let Some((x, y)) = places.next() else { return Ok(()) };
        let (full, thin) = (self.colour.filled(), self.colour.stroke_width(2));
        match self.line % 5 {
            0 => to.draw_circle((x, y), 3, &full, true),
            1 => to.draw_rect((x - 3, y - 3), (x + 3, y + 3), &full, true),
            2 => to.fill_polygon([(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], &full),
            3 => {
                to.draw_line((x - 4, y - 4), (x + 4, y + 4), &thin)?;
                to.draw_line((x - 4, y + 4), (x + 4, y - 4), &thin)
            }
            _ => to.draw_circle((x, y), 5, &thin, false),
        }
    }
}

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
         <p>{}, Linux {}, cores {} and {}, {}. {}.</p>\n",
        escaped(&m.processor),
        escaped(&m.kernel),
        m.cores[0],
        m.cores[1],
        rounds(results),
        escaped(&basics(results))
    );
    for setting in &m.settings {
        let _ = writeln!(out, "<p><code>{}</code></p>", escaped(setting));
    }
    let missing = results.missing.iter().map(|w| format!("Not measured: {w}"));
    for what in missing.chain(results.unsteady.iter().map(|w| format!("Unsteady: {w}"))) {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", escaped(&what));
    }
    if results.read {
        let _ = writeln!(out, "<p>{READ}</p>");
    }
    for kind in results.kinds() {
        section(&mut out, results, kind)?;
    }
    if let Some(run) = &results.network {
        link(&mut out, run);
    }
    out.push_str(
        "<h2>How it was measured</h2>\n<p>Two processes, each pinned to a core. A figure is the time from the call that sends a message until \
         an empty answer is back, less the time of the answer; a round has the median of many messages, the table the median of the rounds. \
         Rounds measure everything in turn. <em>Fresh</em>: the buffer is rewritten before each message; <em>cold</em>: source and \
         destination are taken out of all caches; neither is timed. <em>Exported</em>: both buffers lie in the preloaded heap, which the other process \
         maps. <em>chosen</em>: as the provider chooses by itself, in steady state. <em>limit</em>: both processes copy a half, and do nothing else; \
         by the network: two plain sockets that spin. \
         <em>memcpy</em> copies within one process. Where a protocol cannot carry a size it has no point.</p>\n\
         </body>\n</html>\n",
    );
    Ok(out)
}

/// What was measured of a link beside messages.
fn link(out: &mut String, run: &LinkRun) {
    out.push_str("<h2>Many messages under way</h2>\n<table>\n<tr><th>size</th><th>by</th><th>GB/s</th><th>spread</th></tr>\n");
    for r in &run.rates {
        let who = who(r.way);
        let (size, spread) = (show_bytes(r.size as u64), percent(r.spread));
        let _ = writeln!(out, "<tr><td>{size}</td><td>{who}</td><td>{:.2}</td><td>{spread}</td></tr>", r.gb_s);
    }
    out.push_str("</table>\n");
    if let Some(c) = &run.costs {
        let _ = writeln!(
            out,
            "<p>The link in four numbers: a message {}, each byte of a record {:.3} ns; from buffer to buffer {} more, each byte {:.3} ns.</p>",
            time(c.message_ns),
            c.record_byte_ns,
            time(c.in_place_ns),
            c.place_byte_ns
        );
    }
}

fn section(out: &mut String, results: &Results, kind: Kind) -> Result<(), Failure> {
    let _ = writeln!(out, "<h2>{}</h2>", kind.title());
    for axis in [Axis::Time, Axis::Rate] {
        let svg = plot(results, kind, axis).map_err(|e| format!("a plot cannot be drawn ({e})"))?;
        let _ = writeln!(out, "<figure>{svg}</figure>");
    }
    table(out, results, kind);
    out.push_str("<h3>Crossovers</h3>\n<table>\n<tr><th>quicker from here on</th><th>than</th><th>from</th><th>rounds that agree</th></tr>\n");
    let (crossovers, noise) = results.crossovers(kind);
    for c in crossovers {
        let size = show_bytes(c.size as u64);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{size}</td><td>{} of {}</td></tr>",
            c.from_here, c.below, c.agree, c.rounds
        );
    }
    out.push_str("</table>\n");
    if let Some(so) = left_out(noise) {
        let _ = writeln!(out, "<p>{so}</p>");
    }
    let rules = results.regret.iter().filter(|r| r.kind == kind).map(|r| (r.rule.as_str(), &r.regret));
    costs(out, "What rules cost against the best way for each size", "rule", rules);
    for jump in results.steps.iter().filter(|s| s.kind == kind) {
        let _ = writeln!(out, "<p>{}</p>", step(&jump.step));
    }
    let near = results.against_limit.iter().filter(|a| a.kind == kind).map(|a| (a.way, &a.over));
    costs(out, &format!("More than {}", limit_in_words(results)), "way", near);
    Ok(())
}

/// A table of what something costs more than something else; none of nothing.
fn costs<'a>(out: &mut String, title: &str, of: &str, all: impl Iterator<Item = (&'a str, &'a Regret)>) {
    let mut all = all.peekable();
    if all.peek().is_none() {
        return;
    }
    let _ = write!(
        out,
        "<h3>{title}</h3>\n<table>\n<tr><th>{of}</th><th>on average</th><th>at worst</th><th>at</th><th>sizes</th></tr>\n"
    );
    for (name, r) in all {
        let (mean, worst, at) = (percent(r.mean), percent(r.worst), show_bytes(r.at as u64));
        let _ =
            writeln!(out, "<tr><td>{}</td><td>{mean}</td><td>{worst}</td><td>{at}</td><td>{}</td></tr>", escaped(name), r.sizes);
    }
    out.push_str("</table>\n");
}

fn table(out: &mut String, results: &Results, kind: Kind) {
    let lanes = results.lanes(kind);
    let _ = write!(out, "<div class=\"wide\"><table>\n<tr><th>bytes</th>");
    lanes.iter().for_each(|l| {
        let _ = write!(out, "<th>{}</th>", l.name());
    });
    let copies = !results.memcpy.is_empty();
    let _ = writeln!(out, "<th>limit</th>{}</tr>", if copies { "<th>memcpy</th>" } else { "" });
    for size in results.sizes() {
        let best = best(results, kind, size);
        if best == f64::INFINITY {
            continue;
        }
        let _ = write!(out, "<tr><td>{}</td>", show_bytes(size as u64));
        for lane in &lanes {
            let _ = match results.cell(kind, lane.name(), size) {
                None => write!(out, "<td></td>"),
                Some(c) => {
                    let class = if c.median_ns <= best { " class=\"best\"" } else { "" };
                    write!(out, "<td{class}>{} ± {}</td>", time(c.median_ns), percent(c.spread))
                }
            };
        }
        let shown = |cell: Option<&Cell>| cell.map_or(String::new(), |c| time(c.median_ns));
        let copied = if copies { format!("<td>{}</td>", shown(results.copy(size))) } else { String::new() };
        let _ = writeln!(out, "<td>{}</td>{copied}</tr>", shown(results.limit(kind, size)));
    }
    out.push_str("</table></div>\n");
}

/// What is drawn: names, and times by size.
fn lines(results: &Results, kind: Kind) -> Vec<(&'static str, Vec<(usize, f64)>)> {
    let times = |cells: &mut dyn Iterator<Item = &Cell>| cells.map(|c| (c.size, c.median_ns)).collect::<Vec<_>>();
    let of = |lane: Lane| {
        let mut cells = results.cells.iter().filter(|c| c.kind == Some(kind) && c.way == lane.name());
        (lane.name(), times(&mut cells))
    };
    // Within a host each way has a colour of its own on all pages, whatever was measured; there are not as many as all ways together.
    let mut lines: Vec<_> = match results.network {
        None => Lane::of_tables().map(of).collect(),
        Some(_) => results.lanes(kind).into_iter().map(of).collect(),
    };
    lines.push(("limit", times(&mut results.limits.iter().filter(|c| c.kind == Some(kind)))));
    lines.push(("memcpy", times(&mut results.memcpy.iter().filter(|m| best(results, kind, m.size) < f64::INFINITY))));
    lines
}

fn plot(results: &Results, kind: Kind, axis: Axis) -> Result<String, Box<dyn std::error::Error>> {
    let lines = lines(results, kind);
    let points = || lines.iter().flat_map(|(_, l)| l).map(|(size, ns)| (*size as f64, axis.value(*size, *ns)));
    let fold = |f: fn(f64, f64) -> f64, from: f64, of: fn((f64, f64)) -> f64| points().map(of).fold(from, f);
    let (left, right) = (fold(f64::min, f64::INFINITY, |p| p.0), fold(f64::max, 0.0, |p| p.0));
    let (low, high) = (fold(f64::min, f64::INFINITY, |p| p.1), fold(f64::max, 0.0, |p| p.1));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (900, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{}: {}", kind.title(), axis.name()), ("sans-serif", 18))
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
        for (i, ((name, line), colour)) in lines.iter().zip(COLOURS).enumerate().filter(|(_, ((_, line), _))| !line.is_empty()) {
            let at = |(size, ns): &(usize, f64)| (*size as f64, axis.value(*size, *ns));
            let key = move |(x, y)| {
                let line = PathElement::new(vec![(0, 0), (18, 0)], colour.stroke_width(3));
                EmptyElement::at((x, y)) + line + Mark { at: (9, 0), line: i, colour }
            };
            chart.draw_series(LineSeries::new(line.iter().map(at), colour.stroke_width(2)))?.label(*name).legend(key);
            chart.draw_series(line.iter().map(at).map(|at| Mark { at, line: i, colour }))?;
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
