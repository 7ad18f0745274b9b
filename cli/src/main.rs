//! `rustmx`: which protocol carries a message on this machine and why, and how the protocols compare.
//!
//! | file | what it does |
//! |---|---|
//! | `environment.rs` | the configuration that the environment asks for |
//! | `explain.rs` | `rustmx explain` |
//! | `bench.rs` | measuring: in which order, between which processes |
//! | `kind.rs` | what is measured apart: ways, memory, what became of the buffers |
//! | `results.rs` | what was measured, and what follows from it |
//! | `compare.rs` | `rustmx compare`: every way over all sizes, and what rules cost |
//! | `tune.rs` | `rustmx tune`: what was measured becomes a profile |
//! | `settings.rs` | how the memory between two processes is best used here |
//! | `far.rs` | the tables for other hosts, and where they reach this one |
//! | `reach.rs` | measuring reads, writes and atomics of another process's memory |
//! | `rows.rs` | the select table with what its rows cost |
//! | `partner.rs` | processes that this one starts and talks to |
//! | `heap.rs` | where the preloadable heap is |
//! | `node.rs`, `work.rs` | an endpoint of the engine; what a started process does |
//! | `limit.rs`, `raw.rs` | two processes that only copy; two plain sockets |
//! | `network.rs`, `listen.rs` | measuring a link; doing the other host's part of it |
//! | `figures.rs` | medians, crossovers, regret: arithmetic only |
//! | `report.rs`, `page.rs` | the results for people and programs; as a page with plots |
//! | `progress.rs` | how far measuring is |
//! | `output.rs` | standard output and files, which may be full |

mod bench;
mod compare;
mod environment;
mod explain;
mod far;
mod figures;
mod heap;
mod kind;
mod limit;
mod listen;
mod network;
mod node;
mod output;
mod page;
mod partner;
mod progress;
mod raw;
mod reach;
mod report;
mod results;
mod rows;
mod settings;
mod tune;
mod work;

use clap::{Parser, Subcommand};
use rustmx::log::tell;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Which protocol of the rustmx provider carries a message on this machine and why, and how the protocols compare.
#[derive(Parser)]
#[command(name = "rustmx", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 it could not be done, or (explain) no job starts with these settings: standard error says why and what helps; 2 the command line makes no sense.\n\
FI_RUSTMX_* variables count as in a job.";

#[derive(Subcommand)]
enum Command {
    /// Shows the table from message size to protocol, and what the kernel allows between two processes of this user.
    #[command(after_help = EXIT_CODES)]
    Explain(explain::Options),
    /// Measures every protocol over message sizes, between two processes pinned to two cores.
    #[command(after_help = EXIT_CODES)]
    Compare(compare::Options),
    /// Measures this machine and keeps what it found as a profile, by which the provider chooses protocols from then on.
    #[command(after_help = EXIT_CODES)]
    Tune(tune::Options),
    /// What this program starts itself as.
    #[command(hide = true)]
    Partner {
        /// Which part it plays.
        role: String,
    },
}

/// Why something could not be done, and what helps: a sentence for the user.
pub(crate) type Failure = String;

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(other) => return told(&other),
    };
    let done = match command {
        Command::Explain(options) => explain::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Tune(options) => tune::run(&options),
        Command::Partner { role } => work::run(&role),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tell("rustmx", &why.to_string());
            ExitCode::from(1)
        }
    }
}

/// Shows help, the version, or what is wrong with the command line.
fn told(what: &clap::Error) -> ExitCode {
    match what.print().and_then(|()| std::io::stdout().flush()) {
        Err(e) if !what.use_stderr() && e.kind() != ErrorKind::BrokenPipe => {
            tell("rustmx", &output::unwritten(&e));
            ExitCode::from(1)
        }
        _ => ExitCode::from(if what.use_stderr() { 2 } else { 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let sizes = |args: &[&str]| Cli::try_parse_from(args).map(|c| c.command);
        let Ok(Command::Compare(o)) = sizes(&["rustmx", "compare", "--min", "4k", "--max", "1M", "--sources", "fresh"]) else {
            panic!("does not parse");
        };
        assert_eq!((o.min, o.max, o.sources.len()), (4096, Some(1 << 20), 1));
        let waits = sizes(&["rustmx", "compare", "--listen", "7000"]);
        assert!(matches!(waits, Ok(Command::Compare(o)) if o.listen.is_some_and(|at| at.port() == 7000)));
        for bad in [
            &["rustmx", "compare", "--min", "x"][..],
            &["rustmx", "compare", "--listen", "host"],
            &["rustmx", "compare", "--listen", "7000", "--quick"],
            &["rustmx", "compare", "--network", "--memory", "private"],
            &["rustmx", "compare", "--network", "--to", "host:7000"],
            &["rustmx", "compare", "--sources", "old"],
            &["rustmx"],
        ] {
            assert!(sizes(bad).is_err(), "{bad:?}");
        }
    }
}
