//! What happened in one world: a running hash of everything, and the last events for people.

use std::collections::VecDeque;
use std::fmt::Write;

/// Events kept for a failure.
const KEPT: usize = 60;

/// What happened so far.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    last: VecDeque<String>,
}

impl Trace {
    /// Adds an event. It must say nothing that differs between two runs of a seed: no address, no name.
    pub fn add(&mut self, now: u64, what: std::fmt::Arguments<'_>) {
        let mut line = if self.last.len() < KEPT { String::new() } else { self.last.pop_front().unwrap_or_default() };
        line.clear();
        let _ = write!(line, "{now:>10} {what}");
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
        self.events += 1;
        self.last.push_back(line);
    }

    /// Adds what an engine said of it, which is for people only: names differ from run to run.
    pub fn remark(&mut self, node: usize, text: &str) {
        if self.last.len() >= KEPT {
            self.last.pop_front();
        }
        self.last.push_back(format!("           {node} says: {text}"));
    }

    /// A number for all of it.
    pub fn hash(&self) -> (u64, u64) {
        (self.hash, self.events)
    }

    /// The last events, oldest first.
    pub fn print(&self) {
        eprintln!("the last {} of {} events:", self.last.len(), self.events);
        for line in &self.last {
            eprintln!("  {line}");
        }
    }
}
