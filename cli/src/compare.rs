//! `rustmx compare`: every protocol over message sizes, between two processes pinned to two cores.
//!
//! One figure is the time of a message from the call that sends it until an empty answer is back, less the time of the answer (half of
//! an empty round trip of the same round). Rounds are interleaved: each measures everything once, in another order, so that a machine
//! that changes changes all ways alike.

use crate::figures::{Crossover, Regret, Series, crossovers, median, regret, spread};
use crate::partner::Partner;
use crate::{Failure, environment, explain, page, report};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::thread::{CpuSet, sched_getaffinity};
use rustmx::config::force::Forced;
pub(crate) use rustmx::config::force::Way;
use rustmx::config::parse_bytes;
use rustmx::select::{Selection, record_max};
use rustmx::{Config, INJECT_MAX, Stats};
use serde::Serialize;
use std::os::fd::AsRawFd;
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
    /// What becomes of the source buffer between messages: nothing, or it is rewritten (not timed).
    #[arg(long, value_delimiter = ',', default_value = "reused,fresh")]
    pub sources: Vec<Source>,
    /// One JSON object on standard output instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Also write a page with plots, which needs no network to be read.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What becomes of the source buffer between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// Nothing.
    Reused,
    /// It is rewritten: its lines are in the sender's cache, and nowhere else.
    Fresh,
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(&text.to_ascii_lowercase()).and_then(|n| usize::try_from(n).ok());
    bytes.filter(|n| (1..=1 << 30).contains(n)).ok_or_else(|| "a size from 1 to 1024m, as in 4096 or 4k".into())
}

/// The ways that are compared.
pub(crate) const WAYS: [Way; 5] = [Way::Inline, Way::Eager, Way::Stream, Way::Alone, Way::Shared];

/// The configuration that makes an endpoint send everything by one way.
pub(crate) fn forced(way: Way, config: &Config) -> Config {
    Config { protocol: Forced::only(way), cma: 0, ..config.clone() }
}

/// How many messages went by the protocol of a way.
pub(crate) fn carried(way: Way, stats: &Stats) -> u64 {
    match way {
        Way::Inline => stats.inline,
        Way::Eager => stats.eager,
        Way::Stream => stats.stream,
        Way::Syscall | Way::Alone | Way::Shared => stats.syscall,
        Way::Mapped => stats.mapped,
    }
}

/// Where and how it was measured.
#[derive(Serialize)]
pub(crate) struct Machine {
    pub processor: String,
    pub kernel: String,
    pub cores: [usize; 2],
    pub settings: Vec<String>,
}

/// The times of one way at one size.
#[derive(Serialize)]
pub(crate) struct Cell {
    /// `None`: no message, a plain copy within one process.
    pub source: Option<Source>,
    pub way: &'static str,
    pub size: usize,
    pub median_ns: f64,
    /// How far the middle half of the rounds is apart, as a part of the median.
    pub spread: f64,
    pub rounds_ns: Vec<f64>,
}

/// A crossover, and of which sources.
#[derive(Serialize)]
pub(crate) struct Crossing {
    pub source: Source,
    #[serde(flatten)]
    pub crossover: Crossover,
}

/// What a rule costs.
#[derive(Serialize)]
pub(crate) struct Rule {
    pub source: Source,
    pub rule: String,
    #[serde(flatten)]
    pub regret: Regret,
}

/// All that was found.
#[derive(Serialize)]
pub(crate) struct Results {
    pub machine: Machine,
    pub rounds: usize,
    /// One hand-over of a cache line, a value a round.
    pub handover_ns: Vec<f64>,
    /// An empty message, a value a round.
    pub empty_ns: Vec<f64>,
    /// Why the figures should not be trusted much; empty if nothing speaks against them.
    pub unsteady: Vec<String>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
    pub cells: Vec<Cell>,
    pub memcpy: Vec<Cell>,
    pub crossovers: Vec<Crossing>,
    pub regret: Vec<Rule>,
}

impl Results {
    /// The times of a way.
    pub fn series(&self, source: Source, way: &str) -> Series {
        let of = self.cells.iter().filter(|c| c.source == Some(source) && c.way == way);
        Series { times: of.map(|c| (c.size, c.rounds_ns.clone())).collect() }
    }
}

/// What is measured: which way, how long a message, from which kind of source.
#[derive(Clone, Copy)]
struct Task {
    way: Way,
    size: usize,
    source: Source,
}

struct Bench {
    first: Partner,
    second: Partner,
    quick: bool,
}

impl Bench {
    fn open(options: &Options, cores: [usize; 2]) -> Result<Bench, Failure> {
        let mut bench = Bench { first: Partner::start("first")?, second: Partner::start("second")?, quick: options.quick };
        let ways = WAYS.map(Way::name).join(" ");
        let names = bench.first.ask(&format!("open {} {} {ways}", cores[0], options.max))?;
        let others = bench.second.ask(&format!("open {} {} {ways}", cores[1], options.max))?;
        bench.first.ask(&format!("peers {others}"))?;
        bench.second.ask(&format!("peers {names}"))?;
        // First contact; what goes before it is answered goes as it can.
        for way in WAYS {
            bench.cell(way, 1, 3, false)?;
        }
        Ok(bench)
    }

    fn times(&self, size: usize) -> usize {
        if self.quick { (300_000 / (size + 5_000)).clamp(2, 60) } else { (20_000_000 / (size + 20_000)).clamp(3, 500) }
    }

    /// The median time of a message and its answer in nanoseconds, and how many messages went another way.
    fn cell(&mut self, way: Way, size: usize, times: usize, fresh: bool) -> Result<(f64, u64), Failure> {
        let command = format!("cell {} {size} {times} {fresh}", way.name());
        self.second.ask(&command)?;
        let said = self.first.ask(&command)?;
        let parsed = said.split_once(' ').and_then(|(ns, other)| Some((ns.parse().ok()?, other.parse().ok()?)));
        parsed.ok_or_else(|| format!("a started process said `{said}`"))
    }

    fn hand_over(&mut self, path: &str) -> Result<f64, Failure> {
        self.second.ask(&format!("line {path}"))?;
        self.first.ask(&format!("line {path}"))?.parse().map_err(|_| "no time of a hand-over".into())
    }
}

/// The sizes that are measured: powers of two.
fn sizes(options: &Options) -> Vec<usize> {
    (0..=30).map(|shift| 1usize << shift).filter(|s| (options.min..=options.max).contains(s)).collect()
}

fn longest(way: Way, config: &Config) -> usize {
    match way {
        Way::Inline => INJECT_MAX,
        Way::Eager => record_max(config).min(usize::from(u16::MAX)),
        _ => usize::MAX,
    }
}

/// Two cores that this process may use: the first and the last.
fn cores() -> Result<[usize; 2], Failure> {
    let set = sched_getaffinity(None).map_err(|e| format!("cannot find out which cores may be used ({e})"))?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect();
    match (all.first(), all.last()) {
        (Some(a), Some(b)) if a != b => Ok([*a, *b]),
        _ => Err("two cores are needed, and this process may use one; widen its CPU set (taskset, cpuset)".into()),
    }
}

fn machine(cores: [usize; 2], config: &Config) -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|l| l.strip_prefix("model name")).map(|l| l.trim_start_matches([' ', '\t', ':']).to_string());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string();
    Machine { processor: model.unwrap_or("unknown".into()), kernel, cores, settings: environment::settings(config) }
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
    let results = measure(options, &config, &sizes)?;
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

fn measure(options: &Options, config: &Config, sizes: &[usize]) -> Result<Results, Failure> {
    let cores = cores()?;
    let mut missing = Vec::new();
    let kernel = explain::ask_kernel()?;
    let copies = kernel.reads != [false; 2];
    if !copies {
        missing.push(format!("alone, shared: {}", kernel.says.join("; ")));
    }
    let mut tasks = Vec::new();
    for &size in sizes {
        for &source in &options.sources {
            let possible = |way: &Way| size <= longest(*way, config) && (copies || !matches!(way, Way::Alone | Way::Shared));
            tasks.extend(WAYS.into_iter().filter(possible).map(|way| Task { way, size, source }));
        }
    }
    let rounds = if options.quick { 5 } else { 15 };
    let mut bench = Bench::open(options, cores)?;
    let (fd, _map) =
        rustmx::sys::memfd::create("rustmx-compare", 4096, false).map_err(|e| format!("cannot make shared memory ({e})"))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let bar = ProgressBar::new((rounds * tasks.len()) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len}  {msg}  {eta} left") {
        bar.set_style(style);
    }
    let mut took = vec![Vec::<f64>::with_capacity(rounds); tasks.len()];
    let mut copied = vec![Vec::<f64>::with_capacity(rounds); sizes.len()];
    let (mut handover_ns, mut empty_ns, mut turned) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        bar.set_message(format!("round {} of {rounds}", round + 1));
        handover_ns.push(bench.hand_over(&path)?);
        let (empty, _) = bench.cell(Way::Inline, 0, 50, false)?;
        empty_ns.push(empty / 2.0);
        for (size, copied) in sizes.iter().zip(&mut copied) {
            let said = bench.first.ask(&format!("copy {size} {}", bench.times(*size)))?;
            copied.push(said.parse().map_err(|_| format!("a started process said `{said}`"))?);
        }
        // Forwards and backwards in turn: nobody is always the one after the longest messages.
        let order: Vec<usize> = if round % 2 == 0 { (0..tasks.len()).collect() } else { (0..tasks.len()).rev().collect() };
        for i in order {
            let Task { way, size, source } = tasks[i];
            let (ns, other) = bench.cell(way, size, bench.times(size), source == Source::Fresh)?;
            took[i].push((ns - empty / 2.0).max(1.0));
            turned += other;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if turned > 0 {
        missing.push(format!(
            "{turned} messages went another way than was asked for, so figures of eager, alone or shared are mixed"
        ));
    }
    let cell = |source, way, size, rounds_ns: Vec<f64>| {
        let (median_ns, spread) = (median(&rounds_ns), spread(&rounds_ns));
        Cell { source, way, size, median_ns, spread, rounds_ns }
    };
    let cells = tasks.iter().zip(took).map(|(t, took)| cell(Some(t.source), t.way.name(), t.size, took)).collect();
    let memcpy = sizes.iter().zip(copied).map(|(size, took)| cell(None, "memcpy", *size, took)).collect();
    let machine = machine(cores, config);
    let mut results = Results {
        machine,
        rounds,
        handover_ns,
        empty_ns,
        unsteady: Vec::new(),
        missing,
        cells,
        memcpy,
        crossovers: Vec::new(),
        regret: Vec::new(),
    };
    results.unsteady = unsteady(&results);
    for &source in &options.sources {
        judge(&mut results, source, config);
    }
    Ok(results)
}

/// What speaks against the figures.
fn unsteady(results: &Results) -> Vec<String> {
    let mut why = Vec::new();
    for (what, values) in [("the hand-over of a cache line", &results.handover_ns), ("an empty message", &results.empty_ns)] {
        let apart = spread(values);
        if apart > 0.15 {
            why.push(format!(
                "{what} took {:.0} ns, but the middle half of the rounds is {:.0} % apart",
                median(values),
                apart * 100.0
            ));
        }
    }
    let wide = results.cells.iter().filter(|c| c.spread > 0.25).count();
    if wide * 5 > results.cells.len() {
        why.push(format!("{wide} of {} figures have a middle half that is more than 25 % apart", results.cells.len()));
    }
    if !why.is_empty() {
        why.push("something else ran, or the clock or the host changed: run it again on a quiet machine".into());
    }
    why
}

/// Crossovers of each pair of ways, and what rules cost.
fn judge(results: &mut Results, source: Source, config: &Config) {
    let all: Vec<(&str, Series)> = WAYS.iter().map(|w| (w.name(), results.series(source, w.name()))).collect();
    for (i, a) in all.iter().enumerate() {
        for b in &all[i + 1..] {
            let found = crossovers((a.0, &a.1), (b.0, &b.1));
            results.crossovers.extend(found.into_iter().map(|crossover| Crossing { source, crossover }));
        }
    }
    let series: Vec<&Series> = all.iter().map(|(_, s)| s).collect();
    let table = Selection::new(config, record_max(config));
    let index = |way: Way| WAYS.iter().position(|w| *w == way);
    let mut rule = |rule: String, choose: &dyn Fn(usize) -> Way| {
        results.regret.push(Rule { source, rule, regret: regret(&series, |size| index(choose(size))) });
    };
    for threshold in [4usize, 8, 16, 32, 64].map(|k| k << 10) {
        rule(format!("kernel from {}k", threshold >> 10), &|size| match size {
            n if n <= INJECT_MAX => Way::Inline,
            n if n >= threshold && n as u64 >= config.share_min => Way::Shared,
            n if n >= threshold => Way::Alone,
            n if n as u64 <= config.eager_max => Way::Eager,
            _ => Way::Stream,
        });
    }
    rule("the table".into(), &|size| table.row(size).way());
}
