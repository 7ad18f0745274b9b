//! Measuring ways: an endpoint for each in two processes that are pinned to two cores.
//!
//! One figure is the time of a message from the call that sends it until an empty answer is back, less the time of the answer (half of
//! an empty round trip of the same round). Rounds are interleaved: each measures everything once, in another order, so that a machine
//! that changes changes all ways alike.

use crate::figures::{Crossover, Regret, Series, crossovers, median, regret, spread};
use crate::partner::Partner;
use crate::{Failure, environment, explain};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::thread::{CpuSet, sched_getaffinity};
use rustmx::config::force::Forced;
pub(crate) use rustmx::config::force::Way;
pub(crate) use rustmx::select::model::Source;
use rustmx::select::record_max;
use rustmx::sys::machine;
use rustmx::{Config, INJECT_MAX, Stats};
use serde::{Serialize, Serializer};
use std::os::fd::AsRawFd;

/// How a kind of source is written in JSON.
fn word<S: Serializer>(source: &Source, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(source.name())
}

fn word_if_any<S: Serializer>(source: &Option<Source>, to: S) -> Result<S::Ok, S::Error> {
    source.map(Source::name).serialize(to)
}

/// The ways that are compared.
pub(crate) const WAYS: [Way; Way::CARRIERS.len()] = Way::CARRIERS;

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
    #[serde(serialize_with = "word_if_any")]
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
    #[serde(serialize_with = "word")]
    pub source: Source,
    #[serde(flatten)]
    pub crossover: Crossover,
}

/// What a rule costs.
#[derive(Serialize)]
pub(crate) struct Rule {
    #[serde(serialize_with = "word")]
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
    /// Whether the kernel lets both processes copy from each other.
    #[serde(skip)]
    pub kernel_copies: bool,
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

    /// Finds where ways overtake each other.
    pub fn find_crossovers(&mut self, source: Source) {
        let all: Vec<(&str, Series)> = WAYS.iter().map(|w| (w.name(), self.series(source, w.name()))).collect();
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                let found = crossovers((a.0, &a.1), (b.0, &b.1));
                self.crossovers.extend(found.into_iter().map(|crossover| Crossing { source, crossover }));
            }
        }
    }

    /// Finds what a rule costs that names a way for each size.
    pub fn find_regret(&mut self, source: Source, rule: impl Into<String>, choose: impl Fn(usize) -> Way) {
        let series: Vec<Series> = WAYS.iter().map(|w| self.series(source, w.name())).collect();
        let all: Vec<&Series> = series.iter().collect();
        let regret = regret(&all, |size| WAYS.iter().position(|w| *w == choose(size)));
        self.regret.push(Rule { source, rule: rule.into(), regret });
    }
}

/// What is to be measured, and how thoroughly.
pub(crate) struct Asked<'a> {
    /// Ascending.
    pub sizes: &'a [usize],
    pub sources: &'a [Source],
    pub rounds: usize,
    /// Few messages a round.
    pub quick: bool,
    /// Which ways of those that can carry a size.
    pub wanted: fn(Way, usize) -> bool,
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
    /// Names memory that both processes can map.
    line: String,
    /// How much longer an empty message takes than on a machine where both processes have a core. Then fewer messages must do: on a
    /// crowded one each waits for the scheduler, and more of them would say no more.
    pace: f64,
}

/// Nanoseconds that an empty message and its answer take at most where nothing else runs.
const UNDISTURBED: f64 = 5_000.0;

impl Bench {
    fn open(asked: &Asked, cores: [usize; 2], line: String) -> Result<Bench, Failure> {
        let mut bench =
            Bench { first: Partner::start("first")?, second: Partner::start("second")?, quick: asked.quick, line, pace: 1.0 };
        let longest = asked.sizes.last().copied().unwrap_or(1);
        let ways = WAYS.map(Way::name).join(" ");
        let names = bench.first.ask(&format!("open {} {} {ways}", cores[0], longest))?;
        let others = bench.second.ask(&format!("open {} {} {ways}", cores[1], longest))?;
        bench.first.ask(&format!("peers {others}"))?;
        bench.second.ask(&format!("peers {names}"))?;
        // First contact; what goes before it is answered goes as it can.
        for way in WAYS {
            bench.cell(way, 1, 3, false)?;
        }
        Ok(bench)
    }

    fn times(&self, size: usize) -> usize {
        let times =
            if self.quick { (300_000 / (size + 5_000)).clamp(2, 60) } else { (20_000_000 / (size + 20_000)).clamp(3, 500) };
        ((times as f64 / self.pace) as usize).max(2)
    }

    /// The median time of a message and its answer in nanoseconds, and how many messages went another way.
    fn cell(&mut self, way: Way, size: usize, times: usize, fresh: bool) -> Result<(f64, u64), Failure> {
        let command = format!("cell {} {size} {times} {fresh}", way.name());
        self.second.ask(&command)?;
        let said = self.first.ask(&command)?;
        let parsed = said.split_once(' ').and_then(|(ns, other)| Some((ns.parse().ok()?, other.parse().ok()?)));
        parsed.ok_or_else(|| format!("a started process said `{said}`"))
    }

    fn hand_over(&mut self) -> Result<f64, Failure> {
        let command = format!("line {}", self.line);
        self.second.ask(&command)?;
        self.first.ask(&command)?.parse().map_err(|_| "no time of a hand-over".into())
    }
}

/// The longest message that a way carries.
pub(crate) fn longest(way: Way, config: &Config) -> usize {
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
    let machine::Machine { processor, kernel, .. } = machine::here();
    Machine { processor, kernel, cores, settings: environment::settings(config) }
}

/// What is measured in each round.
fn tasks(asked: &Asked, config: &Config, copies: bool) -> Vec<Task> {
    let mut tasks = Vec::new();
    for &size in asked.sizes {
        let possible = |way: &Way| size <= longest(*way, config) && (copies || !way.needs_kernel()) && (asked.wanted)(*way, size);
        for &source in asked.sources {
            tasks.extend(WAYS.into_iter().filter(possible).map(|way| Task { way, size, source }));
        }
    }
    tasks
}

/// Times as they come: for each thing that is measured a value a round.
struct Times {
    took: Vec<Vec<f64>>,
    copied: Vec<Vec<f64>>,
    handover_ns: Vec<f64>,
    empty_ns: Vec<f64>,
    /// Messages that went another way.
    turned: u64,
}

/// Measures everything once.
fn round(bench: &mut Bench, asked: &Asked, tasks: &[Task], times: &mut Times, bar: &ProgressBar) -> Result<(), Failure> {
    let backwards = times.empty_ns.len() % 2 == 1;
    times.handover_ns.push(bench.hand_over()?);
    let (empty, _) = bench.cell(Way::Inline, 0, 50, false)?;
    times.empty_ns.push(empty / 2.0);
    bench.pace = (empty / UNDISTURBED).max(1.0);
    for (size, copied) in asked.sizes.iter().zip(&mut times.copied) {
        let said = bench.first.ask(&format!("copy {size} {}", bench.times(*size)))?;
        copied.push(said.parse().map_err(|_| format!("a started process said `{said}`"))?);
    }
    // Forwards and backwards in turn: nobody is always the one after the longest messages.
    for i in 0..tasks.len() {
        let i = if backwards { tasks.len() - 1 - i } else { i };
        let Task { way, size, source } = tasks[i];
        let (ns, other) = bench.cell(way, size, bench.times(size), source == Source::Fresh)?;
        times.took[i].push((ns - empty / 2.0).max(1.0));
        times.turned += other;
        bar.inc(1);
    }
    Ok(())
}

/// Measures.
///
/// # Errors
/// What keeps it from being measured, and what helps.
pub(crate) fn measure(asked: &Asked, config: &Config) -> Result<Results, Failure> {
    let cores = cores()?;
    let kernel = explain::ask_kernel()?;
    let copies = kernel.reads != [false; 2];
    let tasks = tasks(asked, config, copies);
    let (fd, _map) =
        rustmx::sys::memfd::create("rustmx-bench", 4096, false).map_err(|e| format!("cannot make shared memory ({e})"))?;
    let line = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let mut bench = Bench::open(asked, cores, line)?;
    let bar = ProgressBar::new((asked.rounds * tasks.len()) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len}  {msg}  {eta} left") {
        bar.set_style(style);
    }
    let (took, copied) = (vec![Vec::new(); tasks.len()], vec![Vec::new(); asked.sizes.len()]);
    let mut times = Times { took, copied, handover_ns: Vec::new(), empty_ns: Vec::new(), turned: 0 };
    for number in 1..=asked.rounds {
        bar.set_message(format!("round {number} of {}", asked.rounds));
        round(&mut bench, asked, &tasks, &mut times, &bar)?;
    }
    bar.finish_and_clear();
    let mut missing = Vec::new();
    if !copies {
        missing.push(format!("alone, shared: {}", kernel.says.join("; ")));
    }
    if times.turned > 0 {
        missing.push(format!(
            "{} messages went another way than was asked for, so figures of eager, alone or shared are mixed",
            times.turned
        ));
    }
    let cell = |source, way, size, rounds_ns: Vec<f64>| {
        let (median_ns, spread) = (median(&rounds_ns), spread(&rounds_ns));
        Cell { source, way, size, median_ns, spread, rounds_ns }
    };
    let cells = tasks.iter().zip(times.took).map(|(t, took)| cell(Some(t.source), t.way.name(), t.size, took)).collect();
    let memcpy = asked.sizes.iter().zip(times.copied).map(|(size, took)| cell(None, "memcpy", *size, took)).collect();
    let mut results = Results {
        machine: machine(cores, config),
        rounds: asked.rounds,
        handover_ns: times.handover_ns,
        empty_ns: times.empty_ns,
        unsteady: Vec::new(),
        missing,
        kernel_copies: copies,
        cells,
        memcpy,
        crossovers: Vec::new(),
        regret: Vec::new(),
    };
    results.unsteady = unsteady(&results);
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
