//! Measuring a link: protocols between two processes that reach each other by the network, over the loopback interface or from host to host,
//! beside two plain sockets. Figures and rounds are as in `bench.rs`.

use crate::bench::{cores, enough, longest, machine, unsteady};
use crate::figures::{median, spread};
use crate::kind::{Kind, Lane, State};
use crate::partner::{Partner, scope_of};
use crate::progress::Progress;
use crate::results::{Cell, LIMIT, LinkRun, Rate, Results};
use crate::{Failure, work};
use rustmx::config::force::Way;
use rustmx::select::model::Memory;
use rustmx::select::network::link_name;
use rustmx::select::record_max_far;
use rustmx::sys::links::Link;
use rustmx::sys::tcp::scoped;
use rustmx::{Config, INLINE_MAX};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What is to be measured.
pub(crate) struct Asked<'a> {
    /// Ascending.
    pub sizes: &'a [usize],
    pub states: &'a [State],
    pub rounds: usize,
    /// As in [`bench::Asked`](crate::bench::Asked).
    pub patience: Option<Duration>,
    /// Few messages a round.
    pub quick: bool,
    /// Also what the provider chooses, plain sockets, and rates.
    pub all: bool,
    /// `HOST:PORT` where `rustmx compare --listen` waits; `None`: both processes are here.
    pub to: Option<&'a str>,
}

/// The ways of messages to other hosts.
const WAYS: [Way; 3] = [Way::Inline, Way::Eager, Way::Stream];

/// Sizes of which the rate is measured, too.
const RATES: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// The longest record.
pub(crate) fn longest_record(config: &Config) -> usize {
    record_max_far(config).min(usize::from(u16::MAX))
}

#[derive(Clone, Copy)]
enum Task {
    Message(Lane, State),
    Chosen(State),
    /// Plain sockets.
    Plain,
}

struct Bench {
    first: Partner,
    second: Partner,
    quick: bool,
    /// How much longer an empty message takes than where both processes have a core, as in `bench.rs`.
    pace: f64,
}

/// Nanoseconds that an empty message takes at most on a slow network where nothing else runs.
const UNDISTURBED: f64 = 200_000.0;

impl Bench {
    fn open(asked: &Asked, cores: [usize; 2]) -> Result<(Bench, Link, Option<String>), Failure> {
        let first = Partner::start("first", None, &[])?;
        let second = match asked.to {
            Some(to) => Partner::call(to)?,
            None => Partner::start("second", None, &[])?,
        };
        let addresses = second.addresses();
        let mut bench = Bench { first, second, quick: asked.quick, pace: 1.0 };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let longest = asked.sizes.last().copied().unwrap_or(1).max(RATES[RATES.len() - 1]);
        // Each is told the address by which the other one reaches it.
        let [there, here] = addresses.unwrap_or([local; 2]);
        bench.first.ask(&format!("far {} {longest} {}", cores[0], here.ip()))?;
        let core = if asked.to.is_some() { "-".into() } else { cores[1].to_string() };
        bench.second.ask(&format!("far {core} {longest} {}", there.ip()))?;
        let lanes: Vec<Lane> = WAYS.into_iter().map(Lane::Only).chain(Lane::BESIDE).chain([Lane::Chosen]).collect();
        let words = lanes.iter().map(|lane| lane.name()).collect::<Vec<_>>().join(" ");
        let names = bench.first.ask(&format!("lanes {words}"))?;
        let others = bench.second.ask(&format!("lanes {words}"))?;
        bench.first.ask(&format!("peers {others}"))?;
        bench.second.ask(&format!("peers {names}"))?;
        let port = bench.second.ask("raw")?.parse().map_err(|_| "a started process said no port")?;
        bench.first.ask(&format!("raw {}", scoped(there.ip(), scope_of(there), port)))?;
        for lane in lanes {
            bench.cell(lane, 1, 3, State::Reused)?;
            // Further connections are made while long messages go by the first.
            if let Lane::Striped(_) = lane
                && longest >= lane.from()
            {
                bench.cell(lane, lane.from(), 20, State::Reused)?;
            }
        }
        let link = Link::to(there.ip(), scope_of(there)).ok_or_else(|| format!("no interface leads to {}", there.ip()))?;
        Ok((bench, link, asked.to.map(str::to_owned)))
    }

    fn times(&self, size: usize) -> usize {
        let (time, most) = if self.quick { (400_000, 20) } else { (3_000_000, 100) };
        let times = (time / (size + 20_000)).clamp(3, most);
        ((times as f64 / self.pace) as usize).max(2)
    }

    fn both(&mut self, command: &str) -> Result<String, Failure> {
        self.second.ask_beside(command, &mut self.first)?;
        self.first.ask_beside(command, &mut self.second)
    }

    fn ns(&mut self, command: &str) -> Result<f64, Failure> {
        let said = self.both(command)?;
        let number = said.split(' ').next().and_then(|word| word.parse().ok());
        number.ok_or_else(|| format!("a started process said `{said}`, which is no time"))
    }

    fn cell(&mut self, lane: Lane, size: usize, times: usize, state: State) -> Result<f64, Failure> {
        self.ns(&format!("cell {} {size} {times} {} {}", lane.name(), Memory::Private.name(), state.name()))
    }

    /// A burst of messages by plain sockets, and an answer.
    fn plain(&mut self, size: usize, burst: usize, times: usize) -> Result<f64, Failure> {
        self.ns(&format!("ping {size} {burst} {times}"))
    }
}

/// What is measured in each round.
fn tasks(asked: &Asked, config: &Config) -> Vec<(Task, usize)> {
    let carries = |way: Way, size: usize| match way {
        Way::Inline => size <= INLINE_MAX,
        // Short messages go inline; what they would cost otherwise says nothing new.
        Way::Eager => size > INLINE_MAX && size <= longest_record(config),
        way => size > INLINE_MAX && size <= longest(Lane::Only(way), config),
    };
    let mut tasks = Vec::new();
    for &size in asked.sizes {
        for &state in asked.states {
            let ways = WAYS.into_iter().filter(|w| carries(*w, size)).map(Lane::Only);
            let beside = Lane::BESIDE.into_iter().filter(|lane| size >= lane.from());
            tasks.extend(ways.chain(beside).map(|lane| (Task::Message(lane, state), size)));
            tasks.extend(asked.all.then_some((Task::Chosen(state), size)));
        }
        tasks.extend(asked.all.then_some((Task::Plain, size)));
    }
    tasks
}

/// The rates, a value a round.
type Rates = Vec<(&'static str, usize, Vec<f64>)>;

fn rates(bench: &mut Bench, asked: &Asked, rates: &mut Rates) -> Result<(), Failure> {
    for (way, size, took) in rates {
        let times = (if asked.quick { 4 } else { 16 }) * bench.times(*size).max(16);
        took.push(match *way {
            LIMIT => bench.plain(*size, times, 1)? / times as f64,
            lane => bench.ns(&format!("flood {lane} {size} {times}"))?,
        });
    }
    Ok(())
}

/// Measures.
///
/// # Errors
/// What keeps it from being measured, and what helps.
pub(crate) fn measure(asked: &Asked, config: &Config) -> Result<Results, Failure> {
    let cores = cores()?;
    let config = work::far(config, None);
    let (mut bench, link, peer) = Bench::open(asked, cores)?;
    let tasks = tasks(asked, &config);
    let mut bar = Progress::new((asked.rounds * tasks.len()) as u64);
    let mut took: Vec<Vec<f64>> = vec![Vec::new(); tasks.len()];
    let (mut empty_ns, mut plain_ns) = (Vec::new(), Vec::new());
    let wanted = RATES.iter().filter(|_| asked.all).flat_map(|size| {
        let beside = Lane::BESIDE.into_iter().filter(|lane| *size >= lane.from()).map(Lane::name);
        [Lane::Chosen.name(), LIMIT].into_iter().chain(beside).map(|name| (name, *size, Vec::new()))
    });
    let mut flows: Rates = wanted.collect();
    let begun = Instant::now();
    for number in 1..=asked.rounds {
        if enough(number - 1, begun, asked.patience) {
            break;
        }
        bar.set_message(format!("round {number} of {} by {link}", asked.rounds));
        let empty = bench.cell(Lane::Only(Way::Inline), 0, 50, State::Reused)? / 2.0;
        let plain = bench.plain(1, 1, 50)? / 2.0;
        bench.pace = (empty / UNDISTURBED).max(1.0);
        empty_ns.push(empty);
        plain_ns.push(plain);
        for i in 0..tasks.len() {
            let i = if number % 2 == 0 { tasks.len() - 1 - i } else { i };
            let (task, size) = tasks[i];
            let times = bench.times(size);
            let ns = match task {
                Task::Message(lane, state) => bench.cell(lane, size, times, state)? - empty,
                Task::Chosen(state) => bench.cell(Lane::Chosen, size, times, state)? - empty,
                Task::Plain => bench.plain(size, 1, times)? - plain,
            };
            took[i].push(ns.max(1.0));
            bar.step();
        }
        rates(&mut bench, asked, &mut flows)?;
    }
    bench.second.end();
    bar.finish();
    let (mut cells, mut limits) = (Vec::new(), Vec::new());
    for ((task, size), rounds_ns) in tasks.iter().zip(took) {
        let cell = |way, state| {
            let kind = Some(Kind { memory: Memory::Private, state });
            Cell::of(kind, way, *size, rounds_ns.clone())
        };
        match task {
            Task::Message(lane, state) => cells.push(cell(lane.name(), *state)),
            Task::Chosen(state) => cells.push(cell(Lane::Chosen.name(), *state)),
            // It is the same whatever becomes of a source that it does not look at.
            Task::Plain => limits.extend(asked.states.iter().map(|state| cell(LIMIT, *state))),
        }
    }
    let rate = |(way, size, rounds_ns): (&'static str, usize, Vec<f64>)| {
        let bytes_per_ns: Vec<f64> = rounds_ns.iter().map(|ns| size as f64 / ns).collect();
        Rate { way, size, gb_s: median(&bytes_per_ns), spread: spread(&bytes_per_ns) }
    };
    let run =
        LinkRun { link: link_name(&link, &config), peer, plain_ns, rates: flows.into_iter().map(rate).collect(), costs: None };
    let mut results = Results::of(machine(cores, &config), empty_ns.len(), cells, limits);
    (results.empty_ns, results.network) = (empty_ns, Some(run));
    results.unsteady = unsteady(&results);
    Ok(results)
}
