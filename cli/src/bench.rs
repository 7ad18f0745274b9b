//! Measuring: endpoints for each way in two processes that are pinned to two cores.
//!
//! One figure is the time of a message from the call that sends it until an empty answer is back, less the time of the answer (half of
//! an empty round trip of the same round); or half the time of two alike, there and back (`to_and_fro`). A message has arrived when its receive is complete, or when its receiver has looked
//! at all of it, too (`read`). Rounds are interleaved: each measures everything once, in another order, so that a machine
//! that changes changes all ways alike.

use crate::figures::{median, spread};
use crate::kind::{Kind, Lane, State};
use crate::partner::Partner;
use crate::progress::Progress;
use crate::results::{Cell, LIMIT, Machine, Results};
use crate::{Failure, environment, explain, limit};
use rustix::thread::{CpuSet, sched_getaffinity};
use rustmx::config::force::Way;
use rustmx::select::model::Memory;
use rustmx::select::record_max;
use rustmx::sys::{machine, shortage};
use rustmx::{Config, INLINE_MAX};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is to be measured, and how thoroughly.
pub(crate) struct Asked<'a> {
    /// Ascending.
    pub sizes: &'a [usize],
    pub kinds: Vec<Kind>,
    pub rounds: usize,
    /// From when on no further round begins, if [`FEWEST`] are done; `None`: all rounds, however long they take.
    pub patience: Option<Duration>,
    /// Few messages a round.
    pub quick: bool,
    /// Which of those that can carry a size.
    pub wanted: fn(Lane, Kind, usize) -> bool,
    /// From which size on to measure what two processes reach that only copy; `None`: not at all.
    pub limits_from: Option<usize>,
    /// The preloadable heap, or why there is none.
    pub heap: Result<PathBuf, String>,
    /// Parameters that the processes get, `NAME=value`, besides those of this one's environment. `config` of [`measure`] has them, too.
    pub settings: &'a [String],
    /// Somebody else shows how far it is.
    pub quiet: bool,
    /// Each message is measured in two ways: answered by an empty one, and by one like itself, of which half the time for both counts.
    pub to_and_fro: bool,
    /// A message has arrived when its receiver has looked at all of it.
    pub read: bool,
}

/// What is measured: by what, how long a message, from which kind of buffers.
#[derive(Clone, Copy)]
struct Task {
    /// `None`: no message, both processes only copy.
    lane: Option<Lane>,
    size: usize,
    kind: Kind,
    /// It is answered by one like itself.
    to_and_fro: bool,
}

struct Bench {
    first: Partner,
    second: Partner,
    quick: bool,
    read: bool,
    /// Whether both have the preloaded heap.
    heap: bool,
    /// How much longer an empty message takes than on a machine where both processes have a core. Then fewer messages must do: on a
    /// crowded one each waits for the scheduler, and more of them would say no more.
    pace: f64,
}

/// Rounds of which a median and a spread say something.
const FEWEST: usize = 4;

/// Whether that many rounds will do, begun then.
pub(crate) fn enough(done: usize, begun: Instant, patience: Option<Duration>) -> bool {
    done >= FEWEST && patience.is_some_and(|patience| begun.elapsed() >= patience)
}

/// Nanoseconds that an empty message and its answer take at most where nothing else runs.
const UNDISTURBED: f64 = 5_000.0;

/// Small messages between private buffers that nobody touches.
const PLAIN: Kind = Kind { memory: Memory::Private, state: State::Reused };

impl Bench {
    /// `ground` names memory that both processes can map.
    fn open(asked: &Asked, cores: [usize; 2], ground: &str) -> Result<Bench, Failure> {
        // Without exported memory to be measured it would only be in the way.
        let wanted = asked.kinds.iter().any(|k| k.memory == Memory::Exported);
        let preload = asked.heap.as_deref().ok().filter(|_| wanted);
        let (first, second) =
            (Partner::start("first", preload, asked.settings)?, Partner::start("second", preload, asked.settings)?);
        let mut bench = Bench { first, second, quick: asked.quick, read: asked.read, heap: false, pace: 1.0 };
        let longest = asked.sizes.last().copied().unwrap_or(1);
        let places = [
            bench.first.ask(&format!("open {} {longest} {ground}", cores[0]))?,
            bench.second.ask(&format!("open {} {longest} {ground}", cores[1]))?,
        ];
        bench.heap = places.iter().all(|place| place.ends_with("heap"));
        bench.first.ask(&format!("other {}", places[1]))?;
        bench.second.ask(&format!("other {}", places[0]))?;
        let lanes = Lane::of_tables().map(Lane::name).collect::<Vec<_>>().join(" ");
        let names = bench.first.ask(&format!("lanes {lanes}"))?;
        let others = bench.second.ask(&format!("lanes {lanes}"))?;
        bench.first.ask(&format!("peers {others}"))?;
        bench.second.ask(&format!("peers {names}"))?;
        // First contact; what goes before it is answered goes as it can.
        for lane in Lane::of_tables() {
            bench.cell(lane, 1, 3, PLAIN)?;
        }
        Ok(bench)
    }

    fn times(&self, size: usize) -> usize {
        let times =
            if self.quick { (300_000 / (size + 5_000)).clamp(2, 60) } else { (20_000_000 / (size + 20_000)).clamp(3, 500) };
        ((times as f64 / self.pace) as usize).max(2)
    }

    /// The median time of a message and its empty answer in nanoseconds, and how many messages went another way.
    fn cell(&mut self, lane: Lane, size: usize, times: usize, kind: Kind) -> Result<(f64, u64), Failure> {
        self.trip("cell", lane, size, times, kind)
    }

    /// The same of a message and one like it.
    fn there_and_back(&mut self, lane: Lane, size: usize, times: usize, kind: Kind) -> Result<(f64, u64), Failure> {
        self.trip("echo", lane, size, times, kind)
    }

    fn trip(&mut self, order: &str, lane: Lane, size: usize, times: usize, kind: Kind) -> Result<(f64, u64), Failure> {
        let read = if self.read { " read" } else { "" };
        let said =
            self.said(&format!("{order} {} {size} {times} {} {}{read}", lane.name(), kind.memory.name(), kind.state.name()))?;
        let parsed = said.split_once(' ').and_then(|(ns, other)| Some((ns.parse().ok()?, other.parse().ok()?)));
        parsed.ok_or_else(|| format!("a started process said `{said}`"))
    }

    /// The median time in nanoseconds until both have copied a half.
    fn limit(&mut self, size: usize, times: usize, kind: Kind) -> Result<f64, Failure> {
        self.both(&format!("limit {size} {times} {} {}", kind.memory.name(), kind.state.name()))
    }

    fn hand_over(&mut self) -> Result<f64, Failure> {
        self.both("line")
    }

    /// Tells both, and returns the time that the first one says.
    fn both(&mut self, command: &str) -> Result<f64, Failure> {
        let said = self.said(command)?;
        said.parse().map_err(|_| format!("a started process said `{said}`, which is no time"))
    }

    /// Tells both, and returns what the first one says. Each waits for the other one, and who polls an endpoint or a word sees no
    /// end there.
    fn said(&mut self, command: &str) -> Result<String, Failure> {
        self.second.ask_beside(command, &mut self.first)?;
        self.first.ask_beside(command, &mut self.second)
    }
}

/// The longest message that something carries.
pub(crate) fn longest(lane: Lane, config: &Config) -> usize {
    match lane {
        Lane::Only(Way::Inline) => INLINE_MAX,
        Lane::Only(Way::Eager) => record_max(config).min(usize::from(u16::MAX)),
        _ => usize::MAX,
    }
}

/// Two cores that this process may use: the first and the last.
pub(crate) fn cores() -> Result<[usize; 2], Failure> {
    let set = sched_getaffinity(None).map_err(|e| format!("cannot find out which cores may be used ({e})"))?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect();
    match (all.first(), all.last()) {
        (Some(a), Some(b)) if a != b => Ok([*a, *b]),
        _ => Err("two cores are needed, and this process may use one; widen its CPU set (taskset, cpuset)".into()),
    }
}

pub(crate) fn machine(cores: [usize; 2], config: &Config) -> Machine {
    let machine::Machine { processor, kernel, .. } = machine::here();
    Machine { processor, kernel, cores, settings: environment::settings(config) }
}

/// What is measured in each round.
fn tasks(asked: &Asked, config: &Config, kernel: &explain::Kernel, heap: bool) -> Vec<Task> {
    let (copies, both) = (kernel.reads != [false; 2], kernel.reads == [true; 2]);
    let possible = |lane: Lane, kind: Kind, size: usize| match lane {
        _ if size > longest(lane, config) || !(asked.wanted)(lane, kind, size) => false,
        Lane::Only(way) if way.needs_loan() => kind.memory == Memory::Exported && size > INLINE_MAX && config.lend != 2,
        Lane::Only(way) => copies || !way.needs_kernel(),
        Lane::Striped(_) | Lane::Uncopied => false,
        Lane::Chosen => true,
    };
    let mut tasks = Vec::new();
    for &size in asked.sizes {
        for &kind in asked.kinds.iter().filter(|k| heap || k.memory == Memory::Private) {
            let lanes = || Lane::of_tables().filter(|lane| possible(*lane, kind, size)).map(Some);
            let limit = asked.limits_from.is_some_and(|from| size >= from) && (both || kind.memory == Memory::Exported);
            let task = |to_and_fro: bool| move |lane| Task { lane, size, kind, to_and_fro };
            tasks.extend(lanes().chain(limit.then_some(None)).map(task(false)));
            if asked.to_and_fro {
                tasks.extend(lanes().map(task(true)));
            }
        }
    }
    tasks
}

/// Times as they come: for each thing that is measured a value a round.
struct Times {
    took: Vec<Vec<f64>>,
    /// Messages that went another way, for each of these.
    turned: Vec<u64>,
    copied: Vec<Vec<f64>>,
    handover_ns: Vec<f64>,
    empty_ns: Vec<f64>,
}

/// Measures everything once.
fn round(bench: &mut Bench, asked: &Asked, tasks: &[Task], times: &mut Times, bar: &Progress) -> Result<(), Failure> {
    let backwards = times.empty_ns.len() % 2 == 1;
    let handover = bench.hand_over()?;
    times.handover_ns.push(handover);
    let (empty, _) = bench.cell(Lane::Only(Way::Inline), 0, 50, PLAIN)?;
    times.empty_ns.push(empty / 2.0);
    bench.pace = (empty / UNDISTURBED).max(1.0);
    for (size, copied) in asked.sizes.iter().zip(&mut times.copied) {
        let said = bench.first.ask(&format!("copy {size} {}", bench.times(*size)))?;
        copied.push(said.parse().map_err(|_| format!("a started process said `{said}`"))?);
    }
    // Forwards and backwards in turn: nobody is always the one after the longest messages.
    for i in 0..tasks.len() {
        let i = if backwards { tasks.len() - 1 - i } else { i };
        let Task { lane, size, kind, to_and_fro } = tasks[i];
        let (ns, other) = match lane {
            Some(lane) if to_and_fro => {
                let (ns, other) = bench.there_and_back(lane, size, bench.times(size), kind)?;
                (ns / 2.0, other)
            }
            Some(lane) => {
                let (ns, other) = bench.cell(lane, size, bench.times(size), kind)?;
                (ns - empty / 2.0, other)
            }
            // Less the word that the second half is there.
            None => (bench.limit(size, bench.times(size), kind)? - handover, 0),
        };
        times.took[i].push(ns.max(1.0));
        times.turned[i] += other;
        bar.step();
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
    let room = limit::bytes(asked.sizes.last().copied().unwrap_or(1));
    let (fd, _map) = rustmx::sys::memfd::create("rustmx-bench", room, false).map_err(|why| {
        let help = if shortage::is_of_size(why) { "; a smaller --max needs less" } else { "" };
        format!("cannot make {room} bytes of shared memory: {}{help}", shortage::told_of_memory(why))
    })?;
    let mut bench = Bench::open(asked, cores, &format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()))?;
    let tasks = tasks(asked, config, &kernel, bench.heap);
    let mut bar = if asked.quiet { Progress::hidden() } else { Progress::new((asked.rounds * tasks.len()) as u64) };
    let (took, copied) = (vec![Vec::new(); tasks.len()], vec![Vec::new(); asked.sizes.len()]);
    let mut times = Times { took, turned: vec![0; tasks.len()], copied, handover_ns: Vec::new(), empty_ns: Vec::new() };
    let begun = Instant::now();
    for number in 1..=asked.rounds {
        if enough(number - 1, begun, asked.patience) {
            break;
        }
        bar.set_message(format!("round {number} of {}", asked.rounds));
        round(&mut bench, asked, &tasks, &mut times, &bar)?;
    }
    bar.finish();
    let mut missing = Vec::new();
    if !copies {
        missing.push(format!("alone, shared: {}", kernel.says.join("; ")));
    }
    if asked.kinds.iter().any(|k| k.memory == Memory::Exported) && !bench.heap {
        missing.push(format!("exported memory: {}", no_heap(asked)));
    }
    let turned: u64 = times.turned.iter().sum();
    if turned > 0 {
        missing.push(format!(
            "{turned} messages went another way than was asked for, so figures of eager, alone, shared or mapped are mixed; a profile is made without them"
        ));
    }
    let named = |t: &Task| t.lane.map_or(LIMIT, Lane::name);
    let all = tasks.iter().zip(times.took.into_iter().zip(times.turned));
    let all = all.map(|(t, (took, turned))| Cell { turned, ..Cell::of(Some(t.kind), named(t), t.size, took) });
    let (limits, cells) = all.partition(|c: &Cell| c.way == LIMIT);
    let memcpy = asked.sizes.iter().zip(times.copied).map(|(size, took)| Cell::of(None, "memcpy", *size, took)).collect();
    let mut results = Results::of(machine(cores, config), times.empty_ns.len(), cells, limits);
    (results.handover_ns, results.empty_ns) = (times.handover_ns, times.empty_ns);
    (results.missing, results.kernel_copies, results.memcpy) = (missing, copies, memcpy);
    results.unsteady = unsteady(&results);
    results.read = asked.read;
    Ok(results)
}

/// Why no memory is exported.
fn no_heap(asked: &Asked) -> String {
    match &asked.heap {
        Err(why) => why.clone(),
        Ok(path) => format!(
            "{} was preloaded, but gives no memory that can be exported; see what it said, and RUSTMX_HEAP",
            path.display()
        ),
    }
}

/// What speaks against the figures.
pub(crate) fn unsteady(results: &Results) -> Vec<String> {
    let mut why = Vec::new();
    let named = [("the hand-over of a cache line", &results.handover_ns), ("an empty message", &results.empty_ns)];
    for (what, values) in named.into_iter().filter(|(_, values)| !values.is_empty()) {
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
