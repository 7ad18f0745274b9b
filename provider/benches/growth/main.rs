//! How jobs grow: whole engines over a simulated network (`tests/growth/sim/`), from 16 ranks up to what fits, and a model of the rest.
//!
//! `cargo bench -p rustmx-benches --bench growth` takes minutes and up to 3 GB (with `--most 600000` an hour and 17 GB), and writes the plot and the tables that `docs/scaling.md` shows.
//! `--help` tells what can be changed.

mod page;
#[path = "../../tests/growth/sim/mod.rs"]
mod sim;

use clap::{Parser, ValueEnum};
use rustmx::Config;
use serde::{Deserialize, Serialize};
use sim::fabric::{CLOUD, ETHERNET, Terms};
use sim::job::Job;
use sim::program::{Make, Program};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Idle turns over which their time is measured, so many times; the quickest is told.
const IDLE: (usize, usize) = (2_000, 30);
/// Rounds after the first; the last one is told.
const WARM: usize = 2;

/// Simulates jobs of growing size: the real engine, with simulated sockets, network and time.
#[derive(Parser)]
#[command(name = "growth")]
struct Ask {
    /// Ranks of the jobs; those that need more connections than --most are left to the model.
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,1024,4096")]
    ranks: Vec<usize>,
    /// What the ranks do.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all-to-all,bruck,allreduce,all-to-one")]
    program: Vec<What>,
    /// The network.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ethernet,cloud")]
    network: Vec<Network>,
    /// Bytes of a message.
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Bytes of a block of the all-to-all by Bruck's algorithm: a message is half as many blocks as there are ranks.
    #[arg(long, default_value_t = 8)]
    block: usize,
    /// Most connections of a simulated job: each takes some 30 KB here.
    #[arg(long, default_value_t = 48_000)]
    most: usize,
    /// Calls that a kernel keeps (net.core.somaxconn), if not the network's own.
    #[arg(long)]
    backlog: Option<usize>,
    /// Nanoseconds from NIC to NIC, if not the network's own.
    #[arg(long)]
    latency: Option<u64>,
    /// Gigabits a second of a NIC, if not the network's own.
    #[arg(long)]
    gbit: Option<f64>,
    /// Milliseconds after which a call that was not taken is begun anew; 0: only the kernel asks again.
    #[arg(long)]
    redial: Option<u64>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints results as JSON.
    #[arg(long)]
    json: bool,
    /// Simulates nothing: takes what these files say that --json has printed before. So large jobs can be simulated one by one.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<PathBuf>,
    /// Writes the plot there.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// One job, in this process.
    #[arg(long, hide = true)]
    alone: bool,
    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    AllToAll,
    Bruck,
    Allreduce,
    AllToOne,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Network {
    Ethernet,
    Cloud,
}

impl What {
    fn program(self) -> Program {
        match self {
            What::AllToAll => Program::AllToAll,
            What::Bruck => Program::Bruck,
            What::Allreduce => Program::Allreduce,
            What::AllToOne => Program::Star,
        }
    }
}

/// What one job showed, or what the model says of it. Times in virtual nanoseconds, if not said otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    network: String,
    program: String,
    ranks: usize,
    /// Bytes of the longest message.
    bytes: usize,
    /// Not simulated, but by the model.
    modelled: bool,
    connections: u64,
    /// The first round: connections are made.
    first: u64,
    /// A later round.
    later: u64,
    /// From its start until a rank has its first message, in the first round: mean, and of the last one.
    first_message: [u64; 2],
    calls: u64,
    crossed: u64,
    redials: u64,
    overflows: u64,
    most_waiting: usize,
    frames: u64,
    news: u64,
    /// Resident bytes of this process for each peer of each rank, and for each rank besides, without the buffers of the program.
    peer_bytes: u64,
    rank_bytes: u64,
    /// Both together for the rank with most peers.
    process_bytes: u64,
    /// Real nanoseconds of one turn of rank 0 in which nothing happens.
    idle_turn: f64,
    /// Real seconds that the simulation took.
    took: f64,
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn simulate(make: Make) -> Row {
    let began = Instant::now();
    let empty = resident();
    // Longer messages would go from buffer to buffer, which is not simulated.
    let config = Config::default();
    let mut job = Job::new(make, Config { tcp_eager_max: config.tcp_eager_max.max(make.longest() as u64), ..config });
    let opened = resident();
    let tell = |through: usize| {
        if through.is_multiple_of(256) {
            eprint!("\r{} of {} ranks, {}: {through} are through   ", make.program.name(), make.ranks, make.terms.name);
        }
    };
    let first = job.run(tell);
    let met = resident();
    let told = job.told();
    let peer_bytes = met.saturating_sub(opened) / (2 * told.met).max(1);
    let rank_bytes = opened.saturating_sub(empty + job.buffers()) / make.ranks as u64;
    let later = (0..WARM).map(|_| job.run(tell)).last().map_or(0, |t| t.all);
    let batch = |job: &mut Job| {
        let started = Instant::now();
        job.idle(0, IDLE.0);
        started.elapsed().as_nanos() as f64 / IDLE.0 as f64
    };
    let idle_turn = (0..IDLE.1).map(|_| batch(&mut job)).fold(f64::INFINITY, f64::min);
    eprint!("\r{:70}\r", "");
    Row {
        network: make.terms.name.into(),
        program: make.program.name().into(),
        ranks: make.ranks,
        bytes: make.longest(),
        modelled: false,
        connections: told.met,
        first: first.all,
        later,
        first_message: [first.first_mean, first.first_last],
        calls: told.calls,
        crossed: told.crossed,
        redials: told.redials,
        overflows: told.overflows,
        most_waiting: told.most_waiting,
        frames: told.frames,
        news: told.news,
        peer_bytes,
        rank_bytes,
        process_bytes: rank_bytes + make.most_peers() as u64 * peer_bytes,
        idle_turn,
        took: began.elapsed().as_secs_f64(),
    }
}

/// As it is said on the command line.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |v| v.get_name().into())
}

/// One job in a process of its own: what another one has left to the allocator would not count.
fn apart(ask: &Ask, network: Network, what: What, ranks: usize) -> Result<Row, Box<dyn std::error::Error>> {
    let mut args: Vec<String> = ["--alone", "--json"].map(String::from).into();
    let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
    add("network", word(network));
    add("program", word(what));
    add("ranks", ranks.to_string());
    add("bytes", ask.bytes.to_string());
    add("block", ask.block.to_string());
    add("most", ask.most.to_string());
    add("seed", ask.seed.to_string());
    ask.backlog.into_iter().for_each(|n| add("backlog", n.to_string()));
    ask.latency.into_iter().for_each(|n| add("latency", n.to_string()));
    ask.gbit.into_iter().for_each(|n| add("gbit", n.to_string()));
    ask.redial.into_iter().for_each(|n| add("redial", n.to_string()));
    let done = Command::new(std::env::current_exe()?).args(args).stderr(Stdio::inherit()).output()?;
    let rows: Vec<Row> = serde_json::from_slice(&done.stdout).map_err(|e| format!("a job of {ranks} ranks ended early ({e})"))?;
    rows.into_iter().next().ok_or_else(|| "a job that says nothing".into())
}

/// Straight lines through the times of the largest two jobs that were simulated: each rank's work is proportional to its peers.
struct Model {
    first: (f64, f64),
    later: (f64, f64),
}

impl Model {
    fn of(rows: &[Row]) -> Option<Model> {
        let simulated: Vec<&Row> = rows.iter().filter(|r| !r.modelled).collect();
        let [.., a, b] = simulated[..] else { return None };
        let line = |value: fn(&Row) -> u64| {
            let (x, y) = ((a.ranks - 1) as f64, (b.ranks - 1) as f64);
            let slope = (value(b) as f64 - value(a) as f64) / (y - x);
            (value(a) as f64 - slope * x, slope)
        };
        Some(Model { first: line(|r| r.first), later: line(|r| r.later) })
    }

    fn at(&self, ranks: usize) -> [u64; 2] {
        [self.first, self.later].map(|(base, slope)| (base + slope * (ranks - 1) as f64) as u64)
    }

    fn row(&self, like: &Row, make: Make, connections: usize) -> Row {
        let ranks = make.ranks;
        let [first, later] = self.at(ranks);
        Row {
            ranks,
            bytes: make.longest(),
            process_bytes: like.rank_bytes + make.most_peers() as u64 * like.peer_bytes,
            modelled: true,
            connections: connections as u64,
            first,
            later,
            first_message: [0; 2],
            calls: 0,
            crossed: 0,
            redials: 0,
            overflows: 0,
            most_waiting: 0,
            frames: 0,
            news: 0,
            idle_turn: 0.0,
            took: 0.0,
            ..like.clone()
        }
    }
}

fn terms(ask: &Ask, network: Network) -> Terms {
    let base = if network == Network::Ethernet { ETHERNET } else { CLOUD };
    Terms {
        backlog: ask.backlog.unwrap_or(base.backlog),
        latency: ask.latency.unwrap_or(base.latency),
        gbit: ask.gbit.unwrap_or(base.gbit),
        redial: ask.redial.map_or(base.redial, |ms| ms * 1_000_000),
        ..base
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ask = Ask::parse();
    let mut rows: Vec<Row> = Vec::new();
    for path in &ask.rows {
        rows.extend(serde_json::from_str::<Vec<Row>>(&std::fs::read_to_string(path)?)?);
    }
    let networks = if ask.rows.is_empty() { &ask.network[..] } else { &[] };
    for network in networks {
        for what in &ask.program {
            let (program, mut here) = (what.program(), Vec::new());
            for &ranks in &ask.ranks {
                if program == Program::Allreduce && !ranks.is_power_of_two() {
                    return Err(format!("an allreduce of {ranks} ranks: only powers of two are simulated").into());
                }
                let pairs = program.pairs(ranks);
                let bytes = if program == Program::Bruck { ask.block } else { ask.bytes };
                let make = Make { ranks, program, bytes, terms: terms(&ask, *network), seed: ask.seed };
                if pairs <= ask.most {
                    here.push(if ask.alone { simulate(make) } else { apart(&ask, *network, *what, ranks)? });
                } else if let Some(model) = Model::of(&here)
                    && let Some(last) = here.iter().rfind(|r| !r.modelled).cloned()
                {
                    here.push(model.row(&last, make, pairs));
                }
                if let (Some(row), false) = (here.last(), ask.json) {
                    eprintln!("{}", page::line(row));
                }
            }
            rows.extend(here);
        }
    }
    if ask.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", page::table(&rows));
    }
    if let Some(path) = &ask.svg {
        std::fs::write(path, page::plot(&rows)?)?;
    }
    Ok(())
}
