//! What was simulated, as a table and as a plot.

use crate::Row;
use plotters::prelude::*;
use std::fmt::Write;

/// Virtual nanoseconds as people read them.
pub fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// One job in a line.
pub fn line(row: &Row) -> String {
    let model = if row.modelled { "model" } else { "" };
    format!(
        "{:20} {:17} {:>5} {:>5}  first {:>8}  later {:>8}  {} connections, {} crossed, {} overflows, {} B a peer, idle turn {:.0} ns ({:.0} s)",
        row.network,
        row.program,
        row.ranks,
        model,
        time(row.first),
        time(row.later),
        row.connections,
        row.crossed,
        row.overflows,
        row.peer_bytes,
        row.idle_turn,
        row.took,
    )
}

/// All of them, in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| network | program | ranks | bytes of a message | connections | first round | later round | first message, mean / last | calls crossed | begun anew | overflows | most in a backlog | KB a peer | MB a process | idle turn |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for r in rows {
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            r.network,
            r.program,
            r.ranks,
            r.bytes,
            r.connections,
            time(r.first),
            time(r.later)
        );
        let mb = r.process_bytes as f64 / 1048576.0;
        if r.modelled {
            let _ = writeln!(text, " by the model |  |  |  |  |  | {mb:.1} |  |");
            continue;
        }
        let [mean, last] = r.first_message.map(time);
        let kb = r.peer_bytes as f64 / 1024.0;
        let _ = writeln!(
            text,
            " {mean} / {last} | {} | {} | {} | {} | {kb:.1} | {mb:.1} | {:.0} ns |",
            r.crossed, r.redials, r.overflows, r.most_waiting, r.idle_turn
        );
    }
    text
}

const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(80, 80, 80),
    RGBColor(23, 150, 180),
    RGBColor(170, 120, 60),
];

/// Times over ranks, as SVG: full circles were simulated, open ones are the model's.
pub fn plot(rows: &[Row]) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (1000, 520)).into_drawing_area();
        root.fill(&WHITE)?;
        let fold = |f: fn(f64, f64) -> f64, from: f64, of: fn(&Row) -> f64| rows.iter().map(of).fold(from, f);
        let (left, right) = (fold(f64::min, f64::INFINITY, |r| r.ranks as f64), fold(f64::max, 0.0, |r| r.ranks as f64));
        let (low, high) =
            (fold(f64::min, f64::INFINITY, |r| r.later as f64 / 1e6), fold(f64::max, 0.0, |r| r.first as f64 / 1e6));
        let mut chart = ChartBuilder::on(&root)
            .caption(
                "Time of a job's first round (connections are made: full lines) and of later ones (thin)",
                ("sans-serif", 18),
            )
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d((left / 1.2..right * 1.2).log_scale().base(2.0), (low / 1.5..high * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("ranks, one on each host")
            .y_desc("virtual milliseconds")
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y}"))
            .light_line_style(RGBColor(240, 240, 240))
            .draw()?;
        let mut kinds: Vec<(&str, &str)> = rows.iter().map(|r| (&*r.network, &*r.program)).collect();
        kinds.dedup();
        for (kind, colour) in kinds.into_iter().zip(COLOURS) {
            let these = || rows.iter().filter(move |r| (&*r.network, &*r.program) == kind);
            let first = |r: &Row| (r.ranks as f64, r.first as f64 / 1e6);
            let later = |r: &Row| (r.ranks as f64, r.later as f64 / 1e6);
            chart
                .draw_series(LineSeries::new(these().map(first), colour.stroke_width(2)))?
                .label(format!("{}, {}", kind.1, kind.0))
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(3)));
            chart.draw_series(LineSeries::new(these().map(later), colour.mix(0.5)))?;
            let points = these().flat_map(|r| [(first(r), r.modelled), (later(r), r.modelled)]);
            chart.draw_series(points.map(|(at, modelled)| {
                let style = if modelled { colour.stroke_width(1) } else { colour.filled() };
                Circle::new(at, 3, style)
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}
