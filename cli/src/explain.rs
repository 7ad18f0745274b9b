//! `rustmx explain`: the select table for this machine and environment, and what the kernel allows between two processes of this user.

use crate::compare::{WAYS, Way, forced};
use crate::partner::Partner;
use crate::{Failure, environment};
use rustmx::Config;
use rustmx::select::{Selection, record_max};
use rustmx::types::MAX_MSG;
use serde::Serialize;

/// Command line.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

/// A row of the select table.
#[derive(Serialize)]
struct Row {
    from: usize,
    /// `None`: as long as a message can be.
    to: Option<usize>,
    protocol: &'static str,
    way: &'static str,
    how: &'static str,
    forced: bool,
}

/// A way that messages can be made to go, and which sizes it carries then.
#[derive(Serialize)]
struct Carrier {
    way: &'static str,
    from: usize,
    /// `None`: as long as a message can be.
    to: Option<usize>,
}

/// What the kernel said.
#[derive(Serialize)]
pub(crate) struct Kernel {
    /// Whether one process may read the other's memory, and the other way round.
    pub reads: [bool; 2],
    /// In words.
    pub says: Vec<String>,
}

#[derive(Serialize)]
struct Explanation {
    settings: Vec<String>,
    ignored: Vec<String>,
    table: Vec<Row>,
    ways: Vec<Carrier>,
    kernel: Kernel,
}

fn table(config: &Config) -> Vec<Row> {
    let selection = Selection::new(config, record_max(config));
    let row = |r: &rustmx::select::Row| Row {
        from: r.from,
        to: (r.up_to != MAX_MSG).then_some(r.up_to),
        protocol: r.proto.name(),
        way: r.way().name(),
        how: r.what(),
        forced: r.forced,
    };
    selection.rows().iter().map(row).collect()
}

/// The sizes of a way if it is forced for all that it carries.
fn carrier(way: Way, config: &Config) -> Option<Carrier> {
    let rows: Vec<Row> = table(&forced(way, config)).into_iter().filter(|r| r.forced).collect();
    Some(Carrier { way: way.name(), from: rows.first()?.from, to: rows.last()?.to })
}

/// Tries what two processes of a job would: each reads a word of the other's memory.
///
/// # Errors
/// If no processes can be started.
pub(crate) fn ask_kernel() -> Result<Kernel, Failure> {
    let mut pair = [Partner::start("probe")?, Partner::start("probe")?];
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
    says.extend(hints(reads));
    Ok(Kernel { reads, says })
}

/// Where a refusal may come from, as far as this process can see.
fn hints(reads: [bool; 2]) -> Vec<String> {
    let mut says = Vec::new();
    if reads == [true; 2] {
        return says;
    }
    if let Ok(scope) = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        says.push(format!(
            "/proc/sys/kernel/yama/ptrace_scope is {}: anything but 0 keeps ranks out of each other's memory",
            scope.trim()
        ));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(mode) = status.lines().find_map(|l| l.strip_prefix("Seccomp:")).map(str::trim).filter(|m| *m != "0") {
        says.push(format!(
            "a seccomp filter is in force (mode {mode}): in a container, allow process_vm_readv and process_vm_writev"
        ));
    }
    says.push("long messages then go as streams, two copies through the rings".into());
    says
}

/// # Errors
/// If the kernel cannot be asked.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (config, ignored) = environment::read();
    let explanation = Explanation {
        settings: environment::settings(&config),
        ignored,
        table: table(&config),
        ways: WAYS.into_iter().filter_map(|way| carrier(way, &config)).collect(),
        kernel: ask_kernel()?,
    };
    if options.json {
        let text = serde_json::to_string_pretty(&explanation).map_err(|e| e.to_string())?;
        println!("{text}");
        return Ok(());
    }
    for what in &explanation.ignored {
        eprintln!("rustmx: {what}");
    }
    if !explanation.settings.is_empty() {
        println!("Settings: {}\n", explanation.settings.join(" "));
    }
    println!("Messages by size in bytes:\n{}", Selection::new(&config, record_max(&config)));
    println!("Two processes of this user:");
    for what in &explanation.kernel.says {
        println!("  {what}");
    }
    Ok(())
}
