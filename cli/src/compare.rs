//! `rustmx compare`: every protocol over message sizes, between two processes pinned to two cores (`bench.rs`).

use crate::bench::{Asked, Results, Source, Way, measure};
use crate::{Failure, environment, page, report};
use rustmx::config::parse_bytes;
use rustmx::select::profile::Standing;
use rustmx::select::{Selection, record_max};
use rustmx::{Config, INJECT_MAX};
use std::path::PathBuf;

/// Command line.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer rounds and messages: seconds instead of minutes, and figures to match.
    #[arg(long)]
    pub quick: bool,
    /// Shortest message; k and m may follow the number.
    #[arg(long, default_value = "1", value_parser = size)]
    pub min: usize,
    /// Longest message.
    #[arg(long, default_value = "64m", value_parser = size)]
    pub max: usize,
    /// What becomes of the source buffer between messages: nothing (reused), or it is rewritten (fresh; not timed).
    #[arg(long, value_delimiter = ',', default_value = "reused,fresh", value_parser = source)]
    pub sources: Vec<Source>,
    /// One JSON object on standard output instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Also write a page with plots, which needs no network to be read.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(&text.to_ascii_lowercase()).and_then(|n| usize::try_from(n).ok());
    bytes.filter(|n| (1..=1 << 30).contains(n)).ok_or_else(|| "a size from 1 to 1024m, as in 4096 or 4k".into())
}

fn source(text: &str) -> Result<Source, String> {
    Source::named(&text.to_ascii_lowercase()).ok_or_else(|| Source::ALL.iter().map(|s| s.name()).collect::<Vec<_>>().join(" or "))
}

/// The sizes that are measured: powers of two.
fn sizes(options: &Options) -> Vec<usize> {
    (0..=30).map(|shift| 1usize << shift).filter(|s| (options.min..=options.max).contains(s)).collect()
}

/// # Errors
/// What keeps it from being measured or written, and what helps.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (config, ignored) = environment::read();
    ignored.iter().for_each(|what| eprintln!("rustmx: {what}"));
    let sizes = sizes(options);
    if sizes.is_empty() {
        return Err(format!(
            "no power of two is between {} and {}; choose a smaller --min or a larger --max",
            options.min, options.max
        ));
    }
    let rounds = if options.quick { 5 } else { 15 };
    let asked = Asked { sizes: &sizes, sources: &options.sources, rounds, quick: options.quick, wanted: |_, _| true };
    let mut results = measure(&asked, &config)?;
    for &source in &options.sources {
        judge(&mut results, source, &config);
    }
    if let Some(path) = &options.html {
        let text = page::html(&results)?;
        std::fs::write(path, text)
            .map_err(|e| format!("cannot write {} ({e}); choose another file for --html", path.display()))?;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&results).map_err(|e| e.to_string())?);
    } else {
        print!("{}", report::text(&results));
    }
    Ok(())
}

/// Crossovers of each pair of ways, and what rules cost.
fn judge(results: &mut Results, source: Source, config: &Config) {
    results.find_crossovers(source);
    for threshold in [4usize, 8, 16, 32, 64].map(|k| k << 10) {
        results.find_regret(source, format!("kernel from {}k", threshold >> 10), |size| match size {
            n if n <= INJECT_MAX => Way::Inline,
            n if n >= threshold && n as u64 >= config.share_min => Way::Shared,
            n if n >= threshold => Way::Alone,
            n if n as u64 <= config.eager_max => Way::Eager,
            _ => Way::Stream,
        });
    }
    let standing = Standing::look(config);
    let table = Selection::tuned(config, record_max(config), standing.tuned());
    results.find_regret(source, "the table", |size| table.row(size).way());
}
