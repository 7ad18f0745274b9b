//! Measuring reads, writes and atomics of another process's memory, by the kernel and by that process's engine: two processes of their own, which
//! are told line by line what to do.
//!
//! ```text
//! target:     open <core>                          pins itself, registers memory, opens an endpoint     "<name>"
//!             serve                                polls until the initiator says that it is through   "ready"
//! initiator:  open <core> <name>                   pins itself, opens an endpoint for each mover       "ok"
//!             deed <operation> <mover> <bytes> <times>                                                  "<ns>", or "none" if it went otherwise
//! ```

use crate::bench::{cores, enough};
use crate::figures::{median, spread};
use crate::node::{Buffer, Node};
use crate::partner::Partner;
use crate::work::{pin, say};
use crate::{Failure, environment};
use rustmx::select::model::{Curve, MOST_SPREAD, Model, Mover, Operation, PeerClass, Point};
use rustmx::select::profile::Standing;
use rustmx::{ATOMIC_MAX, Addr, Config, Stats};
use std::io::BufRead;
use std::time::{Duration, Instant};

/// Bytes of the memory that is reached.
const LONGEST: usize = 1 << 20;
/// No further round begins after this.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is measured, each of it at some sizes.
fn tasks(quick: bool) -> Vec<(Operation, Mover, usize)> {
    let sizes: &[usize] = if quick { &[8, 4 << 10, 64 << 10] } else { &[8, 512, 4 << 10, 32 << 10, 256 << 10, LONGEST] };
    let moved = [Operation::Read, Operation::Write].into_iter().flat_map(|o| Mover::ALL.iter().map(move |m| (o, *m)));
    let mut all: Vec<_> = moved.flat_map(|(o, m)| sizes.iter().map(move |n| (o, m, *n))).collect();
    all.extend([8, ATOMIC_MAX].map(|n| (Operation::Atomic, Mover::Target, n)));
    all
}

/// How often a size is tried in a round.
fn times(size: usize) -> usize {
    (4_000_000 / (size + 20_000)).clamp(4, 100)
}

/// Measures on this machine, and adds what was found to a model: a curve for each operation and mover that was to be had.
///
/// # Errors
/// What keeps it from being measured.
pub(crate) fn measure(quick: bool, settings: &[String], model: &mut Model) -> Result<(), Failure> {
    let [here, there] = cores()?;
    let (mut first, mut second) = (Partner::start("initiator", None, settings)?, Partner::start("target", None, settings)?);
    let name = second.ask(&format!("open {there}"))?;
    first.ask(&format!("open {here} {name}"))?;
    let tasks = tasks(quick);
    let mut took = vec![Vec::new(); tasks.len()];
    let (rounds, begun) = (if quick { 4 } else { 10 }, Instant::now());
    for round in 0..rounds {
        if enough(round, begun, Some(PATIENCE)) {
            break;
        }
        for i in 0..tasks.len() {
            // Forwards and backwards in turn: the machine may change meanwhile.
            let i = if round % 2 == 1 { tasks.len() - 1 - i } else { i };
            let (operation, mover, size) = tasks[i];
            // Each waits for the other one, and sees no end there.
            second.ask_beside("serve", &mut first)?;
            let deed = format!("deed {} {} {size} {}", operation.name(), mover.name(), times(size));
            let said = first.ask_beside(&deed, &mut second)?;
            took[i].extend(said.parse::<f64>().ok());
        }
    }
    let mut curves: Vec<((Operation, PeerClass, Mover), Vec<Point>)> = Vec::new();
    for ((operation, mover, size), took) in tasks.into_iter().zip(took).filter(|(_, took)| !took.is_empty()) {
        let point = Point { size, ns: median(&took).max(1.0), spread: spread(&took).min(MOST_SPREAD) };
        let about = (operation, PeerClass::SameHost, mover);
        match curves.last_mut().filter(|(known, _)| *known == about) {
            Some((_, points)) => points.push(point),
            None => curves.push((about, vec![point])),
        }
    }
    for (about, points) in curves {
        Curve::new(points)
            .and_then(|curve| model.add_deed(about, curve))
            .map_err(|why| format!("what was measured is no profile: {why}"))?;
    }
    Ok(())
}

/// The one whose memory is reached, or the one who reaches; does what it is told until its input ends.
///
/// # Errors
/// What went wrong.
pub(crate) fn serve(initiator: bool) -> Result<(), Failure> {
    let (config, _) = environment::read();
    let config = Standing::look(&config).applied(&config);
    let buffer = Buffer::private(LONGEST).map_err(|e| format!("not enough memory ({e})"))?;
    let mut orders = std::io::stdin().lock().lines().map_while(Result::ok);
    let opened = orders.next().unwrap_or_default();
    let words: Vec<&str> = opened.split_whitespace().collect();
    match (initiator, &words[..]) {
        (false, ["open", core]) => {
            pin(core.parse().map_err(|_| "a command lacks a number")?)?;
            target(&config, &buffer, orders)
        }
        (true, ["open", core, name]) => {
            pin(core.parse().map_err(|_| "a command lacks a number")?)?;
            reach(&config, &buffer, name, orders)
        }
        _ => Err(format!("`{opened}` is no command")),
    }
}

fn target(config: &Config, buffer: &Buffer, orders: impl Iterator<Item = String>) -> Result<(), Failure> {
    let fail = |e: rustmx::Error| format!("memory cannot be reached: {e}");
    let mut node = Node::open(config, false)?;
    node.register(buffer, LONGEST).map_err(fail)?;
    say(&node.name().map_err(fail)?)?;
    for _ in orders {
        node.recv(buffer, 0).map_err(fail)?;
        say("ready")?;
        node.wait(1).map_err(fail)?;
    }
    Ok(())
}

fn reach(config: &Config, buffer: &Buffer, name: &str, orders: impl Iterator<Item = String>) -> Result<(), Failure> {
    let open = |mover: &Mover| -> Result<(Mover, Node, Addr), Failure> {
        let node = Node::open(&Config { cma: u64::from(*mover == Mover::Target), ..config.clone() }, false)?;
        let to = node.knows(name)?;
        Ok((*mover, node, to))
    };
    let mut open: Vec<_> = Mover::ALL.iter().map(open).collect::<Result<_, _>>()?;
    say("ok")?;
    for line in orders {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bad = || format!("`{line}` is no command");
        let ["deed", operation, mover, size, times] = words[..] else { return Err(bad()) };
        let (operation, mover) = (Operation::named(operation).ok_or_else(bad)?, Mover::named(mover).ok_or_else(bad)?);
        let (size, times): (usize, usize) = (size.parse().map_err(|_| bad())?, times.parse().map_err(|_| bad())?);
        let (_, node, to) = open.iter_mut().find(|(m, ..)| *m == mover).ok_or_else(bad)?;
        let ns = timed(node, *to, (operation, mover), (buffer, size), times)
            .and_then(|ns| node.answer(*to, buffer).map(|()| ns))
            .map_err(|e| format!("`{line}`: {e}"))?;
        node.let_leave();
        say(&ns.map_or("none".into(), |ns| ns.to_string()))?;
    }
    Ok(())
}

/// Those that went by a mover.
fn carried(stats: &Stats, mover: Mover, operation: Operation) -> u64 {
    match (operation, mover) {
        (Operation::Atomic, _) => stats.atomics,
        (_, Mover::Direct) => stats.direct,
        (_, Mover::Target) => stats.one_sided,
    }
}

/// The median time in nanoseconds; `None` if they did not go by that mover.
fn timed(
    node: &mut Node,
    to: Addr,
    what: (Operation, Mover),
    (buffer, size): (&Buffer, usize),
    times: usize,
) -> Result<Option<f64>, rustmx::Error> {
    const WARM_UP: usize = 4;
    let (operation, mover) = what;
    let before = carried(&node.stats(), mover, operation);
    let mut took = Vec::with_capacity(times);
    for i in 0..WARM_UP + times {
        let begun = Instant::now();
        node.reach(to, operation, buffer, size)?;
        node.wait(1)?;
        took.extend((i >= WARM_UP).then(|| begun.elapsed().as_secs_f64() * 1e9));
    }
    let all = carried(&node.stats(), mover, operation) - before == (WARM_UP + times) as u64;
    Ok(all.then(|| median(&took)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each curve's sizes ascend and stand together, as a model wants them.
    #[test]
    fn tasks_make_curves() {
        for quick in [true, false] {
            let tasks = tasks(quick);
            let mut seen = Vec::new();
            for pair in tasks.windows(2) {
                let ((a, b, n), (c, d, m)) = (pair[0], pair[1]);
                if (a, b) == (c, d) {
                    assert!(n < m);
                } else {
                    seen.push((a, b));
                    assert!(!seen.contains(&(c, d)), "{tasks:?}");
                }
            }
            assert_eq!(seen.len() + 1, 5, "two movers of reads and of writes, one of atomics");
        }
    }
}
