//! `rustmx explain`: the select table for this machine and environment, who says so, and what the kernel allows between two processes of
//! this user.

use crate::far::Network;
use crate::kind::Lane;
use crate::node::Node;
use crate::partner::Partner;
use crate::rows::{self, Table};
use crate::{Failure, environment, output};
use rustmx::Config;
use rustmx::config::force::Way;
use rustmx::log::tell;
use rustmx::select::engines::{self, EngineUse};
use rustmx::select::profile::Standing;
use rustmx::select::{Selection, record_max};
use rustmx::types::MAX_MSG;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Command line.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

/// What the kernel said.
#[derive(Serialize)]
pub(crate) struct Kernel {
    /// Whether one process may read the other's memory, and the other way round.
    pub reads: [bool; 2],
    /// In words.
    pub says: Vec<String>,
}

/// What became of the profile.
#[derive(Serialize)]
struct Told {
    /// In one word.
    state: &'static str,
    #[serde(serialize_with = "output::path")]
    path: Option<PathBuf>,
    /// In a sentence.
    says: String,
}

impl Told {
    fn of(standing: &Standing) -> Told {
        let (state, path) = match standing {
            Standing::InForce(path, _) => ("in force", Some(path)),
            Standing::Off => ("off", None),
            Standing::None(path) => ("none", path.as_ref()),
            Standing::Elsewhere(path, _) => ("elsewhere", Some(path)),
            Standing::Refused(path, _) => ("refused", Some(path)),
        };
        Told { state, path: path.cloned(), says: standing.says().1 }
    }
}

/// A way that messages can be made to go, and which sizes it carries then.
#[derive(Serialize)]
struct Carrier {
    way: &'static str,
    from: usize,
    /// `None`: as long as a message can be.
    to: Option<usize>,
}

impl Carrier {
    /// The sizes of a way if it is forced for all that it carries; `None` if that is refused.
    fn of(way: Way, config: &Config) -> Option<Carrier> {
        // Whoever measures a way asks no more whether the user wants it; whoever forces it in a job does.
        let forced = Config { cma: config.cma, ..Lane::Only(way).config(config) };
        let selection = Selection::new(&forced, record_max(config));
        let mut rows = selection.rows().iter().filter(|r| r.is_forced());
        let first = rows.next()?;
        let last = rows.next_back().unwrap_or(first);
        Some(Carrier { way: way.name(), from: first.from, to: (last.up_to != MAX_MSG).then_some(last.up_to) })
    }
}

/// A copy engine beside `memcpy`.
#[derive(Serialize)]
struct Engine {
    engine: &'static str,
    on: bool,
    /// Bytes of the shortest message with which it copies.
    from: Option<usize>,
    why: &'static str,
}

/// Whether memory is lent to peers, as far as this process can tell: a job may preload the heap.
#[derive(Serialize)]
struct Lending {
    on: bool,
    says: String,
}

#[derive(Serialize)]
struct Explanation {
    /// Why no job starts with these settings.
    job_fails: Option<String>,
    settings: Vec<String>,
    ignored: Vec<String>,
    profile: Told,
    /// Whether the table holds for peers of this host, or they are reached as if they were on another one.
    shared_memory: bool,
    #[serde(flatten)]
    table: Table,
    ways: Vec<Carrier>,
    kernel: Kernel,
    network: Network,
    engines: Vec<Engine>,
    lending: Lending,
}

/// Tries what two processes of a job would: each reads a word of the other's memory.
///
/// # Errors
/// If no processes can be started.
pub(crate) fn ask_kernel() -> Result<Kernel, Failure> {
    let mut pair = [Partner::start("probe", None, &[])?, Partner::start("probe", None, &[])?];
    let places = [pair[0].hear()?, pair[1].hear()?];
    let (mut reads, mut says) = ([false; 2], Vec::new());
    for (i, read) in reads.iter_mut().enumerate() {
        let said = pair[i].ask(&places[1 - i])?;
        *read = said == "yes";
        let who = if i == 0 { "the first process" } else { "the second process" };
        says.push(match *read {
            true => format!("{who} may read the other's memory (process_vm_readv)"),
            false => format!("{who} may not read the other's memory ({said})"),
        });
    }
    if reads != [true; 2] {
        says.push(
            "long messages then go as streams, two copies through the rings, unless they lie in memory that peers map".into(),
        );
    }
    Ok(Kernel { reads, says })
}

/// # Errors
/// If the kernel cannot be asked, or a job with these settings ends as it begins.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (config, ignored) = environment::read();
    let standing = Standing::look(&config);
    let settings = environment::settings(&config);
    let config = standing.applied(&config);
    let table = rows::table(&config, standing.tuned());
    let ways = Way::CARRIERS.into_iter().filter_map(|way| Carrier::of(way, &config)).collect();
    let node = Node::open(&config, false);
    // Who asks whether his settings will do reads the first line, or the exit code, and no table.
    let job_fails = node.as_ref().err().cloned();
    let network = Network::of(&config, &standing, node);
    let engine = |e: EngineUse| Engine { engine: e.name, on: e.from.is_some(), from: e.from, why: e.why };
    let engines = engines::uses(&config, None).map(engine).into();
    let (on, says) = rustmx::lending(&config);
    let lending = Lending { on, says };
    let mut kernel = ask_kernel()?;
    if config.cma != 0 {
        kernel.says.push("FI_RUSTMX_CMA=never: it copies no message, whatever it allows".into());
    }
    let explanation = Explanation {
        job_fails,
        settings,
        ignored,
        profile: Told::of(&standing),
        shared_memory: config.shm != 0,
        table,
        ways,
        kernel,
        network,
        engines,
        lending,
    };
    if options.json {
        output::say_json(&explanation)?;
    } else {
        explanation.ignored.iter().for_each(|what| tell("rustmx", what));
        output::say(&explanation.to_string())?;
    }
    explanation.job_fails.map_or(Ok(()), |why| Err(format!("a job does not start with these settings: {why}")))
}

/// As people read it.
impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.job_fails {
            writeln!(out, "A job does not start with these settings: {why}\n")?;
        }
        if !self.settings.is_empty() {
            writeln!(out, "Settings: {}\n", self.settings.join(" "))?;
        }
        writeln!(out, "Profile: {}\n", self.profile.says)?;
        match self.shared_memory {
            true => writeln!(out, "Messages by size in bytes:\n{}", self.table)?,
            false => writeln!(out, "Messages within this host go as those to other hosts (FI_RUSTMX_SHM=no)\n")?,
        }
        writeln!(out, "Messages to other hosts:\n{}", self.network)?;
        writeln!(out, "Beside memcpy, messages are copied by:")?;
        for Engine { engine, from, why, .. } in &self.engines {
            writeln!(out, "  {engine}: {} ({why})", from.map_or("off".into(), |from| format!("from {from} bytes on")))?;
        }
        writeln!(out, "\nMemory that peers map: {}\n", self.lending.says)?;
        writeln!(out, "Two processes of this user:")?;
        self.kernel.says.iter().try_for_each(|what| writeln!(out, "  {what}"))
    }
}
