//! `rustmx compare`: every protocol over message sizes, between two processes pinned to two cores (`bench.rs`).

use crate::bench::{Asked, measure};
use crate::kind::{Kind, Lane, State};
use crate::results::Results;
use crate::{Failure, environment, heap, listen, network, output, page, partner, report};
use rustmx::config::force::Way;
use rustmx::config::parse_bytes;
use rustmx::log;
use rustmx::select::model::Memory;
use rustmx::{Config, INLINE_MAX};
use std::net::SocketAddr;
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
    /// Longest message; by default 64m, by the network 4m.
    #[arg(long, value_parser = size)]
    pub max: Option<usize>,
    /// What becomes of the buffers between messages: nothing (reused), the source is rewritten (fresh), both are taken out of all caches
    /// (cold); that is not timed. By default all, with --quick the first two.
    #[arg(long, value_delimiter = ',', value_parser = state)]
    pub sources: Vec<State>,
    /// Where the buffers lie: in memory of one process (private), or in that of the preloadable heap, which peers map (exported).
    #[arg(long, value_delimiter = ',', default_value = "private,exported", value_parser = memory)]
    pub memory: Vec<Memory>,
    /// The preloadable heap, if it lies neither beside this program nor in FI_PROVIDER_PATH.
    #[arg(long, value_name = "PATH")]
    pub heap: Option<PathBuf>,
    /// Reach the other process by the network, over the loopback interface.
    #[arg(long, conflicts_with_all = ["memory", "heap"])]
    pub network: bool,
    /// Measure between this host and another one, where `rustmx compare --listen` waits.
    #[arg(long, value_name = "HOST:PORT", value_parser = partner::place, conflicts_with_all = ["memory", "heap", "network"])]
    pub to: Option<String>,
    /// Wait at this port, or address and port, for one `--to` of another host, and do its part. Anybody who reaches the port may have this
    /// process measure for him: use it on networks that you trust.
    #[arg(long, value_name = "PORT", value_parser = listen::place, exclusive = true)]
    pub listen: Option<SocketAddr>,
    /// Let times end not when a message has arrived, but when its receiver has looked at all of it: what both copied lies in two caches then, and half of
    /// it has still to come.
    #[arg(long, conflicts_with_all = ["network", "to"])]
    pub read: bool,
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

fn state(text: &str) -> Result<State, String> {
    State::named(&text.to_ascii_lowercase()).ok_or_else(|| State::ALL.iter().map(|s| s.name()).collect::<Vec<_>>().join(" or "))
}

fn memory(text: &str) -> Result<Memory, String> {
    let named = Memory::named(&text.to_ascii_lowercase());
    named.ok_or_else(|| Memory::ALL.iter().map(|m| m.name()).collect::<Vec<_>>().join(" or "))
}

/// The kinds of buffers that are measured.
fn kinds(options: &Options) -> Vec<Kind> {
    let states = match &options.sources[..] {
        [] if options.quick => &[State::Reused, State::Fresh],
        [] => State::ALL,
        named => named,
    };
    options.memory.iter().flat_map(|m| states.iter().map(|s| Kind { memory: *m, state: *s })).collect()
}

/// Short messages never go through exported memory: what they cost from there says nothing new.
fn wanted(_: Lane, kind: Kind, size: usize) -> bool {
    kind.memory == Memory::Private || size > INLINE_MAX
}

/// What names the page.
const HTML: &str = "--html";

/// From here on it takes so long to copy that it matters how near a protocol comes to a copy by both sides.
const LIMITS_FROM: usize = 64 << 10;

impl Options {
    fn is_far(&self) -> bool {
        self.network || self.to.is_some()
    }

    fn max(&self) -> usize {
        self.max.unwrap_or(if self.is_far() { 4 << 20 } else { 64 << 20 })
    }
}

/// The sizes that are measured: powers of two.
fn sizes(options: &Options) -> Vec<usize> {
    (0..=30).map(|shift| 1usize << shift).filter(|s| (options.min..=options.max()).contains(s)).collect()
}

/// # Errors
/// What keeps it from being measured or written, and what helps.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if let Some(at) = options.listen {
        return listen::run(at);
    }
    let (config, ignored) = environment::read();
    ignored.iter().for_each(|what| log::tell("rustmx", what));
    let sizes = sizes(options);
    if sizes.is_empty() {
        return Err(format!(
            "no power of two is between {} and {}; choose a smaller --min or a larger --max",
            options.min,
            options.max()
        ));
    }
    options.html.as_deref().map_or(Ok(()), |path| output::can_write(path, HTML))?;
    let rounds = if options.quick { 5 } else { 15 };
    if options.is_far() {
        return tell(options, far(options, &sizes, rounds, &config)?);
    }
    let heap = heap::find(options.heap.as_deref())?;
    let (kinds, quick) = (kinds(options), options.quick);
    if !sizes.iter().any(|size| kinds.iter().any(|kind| wanted(Lane::Chosen, *kind, *size))) {
        return Err(format!("messages of at most {INLINE_MAX} bytes never go through exported memory; choose a larger --max"));
    }
    let asked = Asked {
        sizes: &sizes,
        kinds,
        rounds,
        patience: None,
        quick,
        wanted,
        limits_from: Some(LIMITS_FROM),
        heap,
        settings: &[],
        quiet: false,
        to_and_fro: false,
        read: options.read,
    };
    let mut results = measure(&asked, &config)?;
    for kind in results.kinds() {
        judge(&mut results, kind, &config);
    }
    tell(options, results)
}

/// Compares by the network.
fn far(options: &Options, sizes: &[usize], rounds: usize, config: &Config) -> Result<Results, Failure> {
    let states = match &options.sources[..] {
        [] => &[State::Reused, State::Fresh],
        named => named,
    };
    let to = options.to.as_deref();
    let asked = network::Asked { sizes, states, rounds, patience: None, quick: options.quick, all: true, to };
    let mut results = network::measure(&asked, config)?;
    for kind in results.kinds() {
        results.find_crossovers(kind);
        for threshold in [2usize, 4, 8, 16, 32].map(|k| k << 10) {
            results.find_regret(kind, format!("in place from {}k", threshold >> 10), |size| {
                Lane::Only(match size {
                    n if n <= INLINE_MAX => Way::Inline,
                    n if n < threshold => Way::Eager,
                    _ => Way::Stream,
                })
            });
        }
        results.find_regret(kind, "the provider", |_| Lane::Chosen);
        results.find_step(kind);
        results.find_approach(kind);
    }
    Ok(results)
}

/// Shows, and writes the page if one is wanted.
fn tell(options: &Options, results: Results) -> Result<(), Failure> {
    // What took minutes is shown also if there is no room for the page.
    let written = options.html.as_deref().map_or(Ok(()), |path| output::write(path, &page::html(&results)?, HTML));
    if options.json {
        output::say_json(&results)?;
    } else {
        output::say(&report::text(&results))?;
    }
    written
}

/// Crossovers of ways, what rules cost, and how the provider's own choice compares with what could be.
fn judge(results: &mut Results, kind: Kind, config: &Config) {
    results.find_crossovers(kind);
    for threshold in [4usize, 8, 16, 32, 64].map(|k| k << 10) {
        let what = if kind.memory == Memory::Exported { "mapped" } else { "kernel" };
        results.find_regret(kind, format!("{what} from {}k", threshold >> 10), |size| {
            Lane::Only(fixed(kind, size, threshold, config))
        });
    }
    results.find_regret(kind, "the provider", |_| Lane::Chosen);
    results.find_step(kind);
    results.find_approach(kind);
}

/// The way of a message if single copies begin at a fixed size, and are shared from the sizes on that the configuration has.
fn fixed(kind: Kind, size: usize, threshold: usize, config: &Config) -> Way {
    let long = size as u64;
    match kind.memory {
        _ if size <= INLINE_MAX => Way::Inline,
        Memory::Exported if size >= threshold && long >= config.mapped_share_min => Way::MappedShared,
        Memory::Exported if size >= threshold => Way::MappedAlone,
        Memory::Private if size >= threshold && long >= config.share_min => Way::Shared,
        Memory::Private if size >= threshold => Way::Alone,
        _ if long <= config.eager_max => Way::Eager,
        _ => Way::Stream,
    }
}
