//! What a job does: who speaks to whom, in which steps, and where the messages lie.

use super::bruck;
use super::fabric::Terms;
use std::ops::Range;

/// What the ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Everybody to everybody, all at once.
    AllToAll,
    /// The same by Bruck's algorithm: `bytes` is a block, and a message is half of all blocks.
    Bruck,
    /// Recursive doubling: in step k with the rank whose number differs in bit k. A power of two of ranks.
    Allreduce,
    /// Everybody to rank 0, which answers.
    Star,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::AllToAll => "all-to-all",
            Program::Bruck => "all-to-all, Bruck",
            Program::Allreduce => "allreduce",
            Program::Star => "all-to-one",
        }
    }

    /// Pairs of ranks that speak to each other.
    pub fn pairs(self, ranks: usize) -> usize {
        match self {
            Program::AllToAll => ranks * (ranks - 1) / 2,
            Program::Bruck => bruck::pairs(ranks),
            Program::Allreduce => ranks * ranks.ilog2() as usize / 2,
            Program::Star => ranks - 1,
        }
    }

    /// Steps, if each waits for the one before.
    pub fn steps(self, ranks: usize) -> Option<usize> {
        match self {
            Program::Allreduce => Some(ranks.ilog2() as usize),
            Program::Bruck => Some(bruck::steps(ranks)),
            Program::AllToAll | Program::Star => None,
        }
    }
}

/// What a job is.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    pub ranks: usize,
    pub program: Program,
    /// Bytes of each message.
    pub bytes: usize,
    pub terms: Terms,
    pub seed: u64,
}

impl Make {
    /// Bytes of the longest message.
    pub fn longest(&self) -> usize {
        match self.program {
            Program::Bruck => bruck::count(self.ranks, 0) * self.bytes,
            _ => self.bytes,
        }
    }

    /// Peers of the rank that has most.
    pub fn most_peers(&self) -> usize {
        match self.program {
            Program::AllToAll | Program::Star => self.ranks - 1,
            Program::Allreduce | Program::Bruck => 2 * self.program.pairs(self.ranks) / self.ranks,
        }
    }

    /// Where the message of a step or from a rank lies.
    pub fn span(&self, part: usize) -> Range<usize> {
        match self.program {
            Program::Bruck => 0..bruck::count(self.ranks, part) * self.bytes,
            _ => part * self.bytes..(part + 1) * self.bytes,
        }
    }
}
