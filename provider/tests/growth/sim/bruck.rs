//! Bruck's all-to-all: blocks travel together, by the binary digits of how far they have to go. What MPIs use where blocks are short: a rank of `n` speaks to
//! some `2 log2 n` others instead of `n - 1`, and each block is sent up to `log2 n` times.

use std::ops::Range;

/// The blocks of one rank. The one at `i` has `i` ranks to go when the round begins; at its end it has come from `i` ranks before.
pub struct Blocks {
    ranks: usize,
    bytes: usize,
    all: Vec<u8>,
}

/// Steps that it takes.
pub fn steps(ranks: usize) -> usize {
    (usize::BITS - (ranks - 1).leading_zeros()) as usize
}

/// The blocks that travel in a step.
fn travel(ranks: usize, step: usize) -> impl Iterator<Item = usize> {
    (0..ranks).filter(move |i| i >> step & 1 == 1)
}

/// How many these are.
pub fn count(ranks: usize, step: usize) -> usize {
    travel(ranks, step).count()
}

/// To whom, and from whom.
pub fn partners(ranks: usize, rank: usize, step: usize) -> [usize; 2] {
    [(rank + (1 << step)) % ranks, (rank + ranks - (1 << step)) % ranks]
}

/// Pairs of ranks that speak to each other.
pub fn pairs(ranks: usize) -> usize {
    let mut far: Vec<usize> = (0..steps(ranks)).map(|step| (1 << step).min(ranks - (1 << step))).collect();
    far.sort_unstable();
    far.dedup();
    far.into_iter().map(|d| if 2 * d == ranks { d } else { ranks }).sum()
}

/// What a block says: who sends it to whom, and in which round.
fn word(from: usize, to: usize, round: u32) -> u64 {
    (from as u64) << 40 | (to as u64) << 16 | u64::from(round)
}

impl Blocks {
    pub fn new(ranks: usize, bytes: usize) -> Blocks {
        Blocks { ranks, bytes, all: vec![0; ranks * bytes] }
    }

    fn at(&self, i: usize) -> Range<usize> {
        i * self.bytes..(i + 1) * self.bytes
    }

    /// A round begins.
    pub fn fill(&mut self, rank: usize, round: u32) {
        for i in 0..self.ranks {
            let at = self.at(i);
            self.all[at][..8].copy_from_slice(&word(rank, (rank + i) % self.ranks, round).to_le_bytes());
        }
    }

    /// Those of a step, one behind the other.
    pub fn pack(&self, step: usize, into: &mut [u8]) {
        travel(self.ranks, step)
            .zip(into.chunks_mut(self.bytes))
            .for_each(|(i, block)| block.copy_from_slice(&self.all[self.at(i)]));
    }

    /// The other rank's came.
    pub fn unpack(&mut self, step: usize, from: &[u8]) {
        for (i, block) in travel(self.ranks, step).zip(from.chunks(self.bytes)) {
            let at = self.at(i);
            self.all[at].copy_from_slice(block);
        }
    }

    /// Whether everybody's block is there.
    pub fn are_mine(&self, rank: usize, round: u32) -> bool {
        (0..self.ranks).all(|i| {
            let from = (rank + self.ranks - i) % self.ranks;
            self.all[self.at(i)][..8] == word(from, rank, round).to_le_bytes()
        })
    }
}
