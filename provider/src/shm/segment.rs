//! Making a segment and looking at one that a peer sent.

use super::layout::{
    CARD_BYTES, CARD_CELLS, CARD_FENCED, CARD_MAGIC, CARD_VERSION, CELL, CONTROL_LINES, LINE, MAGIC, MAX_RING, MAX_SEGMENT,
    MIN_SEGMENT, MOST_CELLS, PAGE, VERSION, ring_lines,
};
use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::{Heap, SharedMem};
use crate::sys::{membarrier, memfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

/// Bytes of a segment without cells for a configured ring size: whole pages within the allowed range.
pub fn bytes_for(ring_size: u64) -> usize {
    usize::try_from(ring_size).unwrap_or(MAX_RING).next_multiple_of(PAGE).clamp(MIN_SEGMENT, MAX_RING)
}

/// What a new segment consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of its ring, with the lines before it.
    pub ring: usize,
    /// Cells behind that, if both sides may write to it.
    pub cells: usize,
}

/// Rings are not made smaller than this because there are many peers.
const LEAST: u64 = 20 << 10;
/// Bytes of the shortest ring that has cells: with many peers memory is short.
const CELLS_FROM: usize = 256 << 10;
/// Cells behind such a ring at least.
const FEWEST_CELLS: usize = 4;

impl Shape {
    /// A ring, and no cells.
    pub fn without_cells(ring: usize) -> Shape {
        Shape { ring, cells: 0 }
    }

    /// That for one of `peers`, which share `memory` bytes. Of open ones a third of that is for cells.
    pub fn for_one_of(peers: usize, ring_size: u64, memory: u64, open: bool) -> Shape {
        let peers = peers.max(1) as u64;
        let (rings, cells) = if open { (memory / 3 * 2, memory / 3) } else { (memory, 0) };
        let ring = bytes_for((rings / peers).max(LEAST).min(ring_size));
        let cells = usize::try_from(cells / peers / CELL as u64).unwrap_or(MOST_CELLS).clamp(FEWEST_CELLS, MOST_CELLS);
        Shape { ring, cells: if open && ring >= CELLS_FROM { cells } else { 0 } }
    }
}

fn write_card(mem: &SharedMem, cells: usize) {
    mem.word(CARD_CELLS).store(cells as u64, Ordering::Relaxed);
    mem.word(CARD_VERSION).store(VERSION, Ordering::Relaxed);
    mem.word(CARD_BYTES).store(mem.bytes() as u64, Ordering::Relaxed);
    mem.word(CARD_FENCED).store(u64::from(membarrier::register()), Ordering::Relaxed);
    mem.word(CARD_MAGIC).store(MAGIC, Ordering::Release);
}

/// A segment, and the descriptor to hand out. Only this process writes to its ring; only it can, unless the segment is `open`. Both sides write to its cells.
pub fn create(Shape { ring, cells }: Shape, open: bool) -> Result<(OwnedFd, SharedMem), Errno> {
    let cells = if open { cells } else { 0 };
    let (fd, mapping) = memfd::create("rustmx-segment", ring + cells * CELL, !open)?;
    let mem = SharedMem::new(mapping);
    write_card(&mem, cells);
    Ok((fd, mem))
}

/// A segment in private memory: for messages to oneself, for peers on other hosts, and for simulations. Of a ring in which little
/// ever stands little is in memory, and a process has two for each peer.
pub fn private(bytes: usize) -> SharedMem {
    let mem = pages(bytes);
    write_card(&mem, 0);
    mem
}

/// Zeroed memory of this process that takes room page by page, as it is written.
pub fn pages(bytes: usize) -> SharedMem {
    match memfd::private(bytes) {
        Ok(mapping) => SharedMem::new(mapping),
        // Too many mappings, or miri.
        Err(_) => SharedMem::new(Heap::new(bytes)),
    }
}

/// What a segment consists of, besides its control lines.
pub struct Parts {
    /// The ring.
    pub ring: SharedMem,
    /// Its lines.
    pub lines: u32,
    /// The cells; none of what cannot be written here, or if what the card says cannot be.
    pub cells: SharedMem,
}

/// The parts of a segment, by what its card says now.
pub fn parts(mem: &SharedMem) -> Parts {
    let most = (mem.bytes().saturating_sub(MIN_SEGMENT) / CELL).min(MOST_CELLS);
    let said = usize::try_from(mem.word(CARD_CELLS).load(Ordering::Relaxed)).ok();
    let cells = said.filter(|cells| *cells <= most).unwrap_or(0) * CELL;
    let lines = ring_lines(mem.bytes() - cells);
    let ring = mem.slice(CONTROL_LINES * LINE, lines as usize * LINE);
    let cells = mem.slice(mem.bytes() - cells, if mem.is_writable() { cells } else { 0 });
    Parts { ring, lines, cells }
}

/// Maps a peer's segment, for reading only; if it may be `open` and is, by pages that could be written to.
///
/// # Errors
/// `EINVAL` if it is not a sealed segment of the announced size and of this version.
pub fn attach(fd: impl AsFd, bytes: usize, open: bool) -> Result<SharedMem, Errno> {
    if !(MIN_SEGMENT..=MAX_SEGMENT).contains(&bytes) || !bytes.is_multiple_of(PAGE) {
        return Err(Errno::INVAL);
    }
    let mem = SharedMem::new(if open { memfd::attach_open(fd, bytes)? } else { memfd::attach(fd, bytes, false)? });
    let sound = mem.word(CARD_MAGIC).load(Ordering::Acquire) == MAGIC
        && mem.word(CARD_VERSION).load(Ordering::Relaxed) == VERSION
        && mem.word(CARD_BYTES).load(Ordering::Relaxed) == bytes as u64;
    if sound { Ok(mem) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many cells as a third of the memory has room for, and no peer's two thirds are shorter for that.
    #[test]
    fn what_peers_get_of_the_memory() {
        const MEMORY: u64 = 6 << 20;
        const WHOLE: usize = 256 << 10;
        for (peers, cells) in [(0, 16), (1, 16), (4, 16), (8, 8), (11, 5), (16, 4)] {
            let shape = Shape::for_one_of(peers, WHOLE as u64, MEMORY, true);
            assert_eq!(shape, Shape { ring: WHOLE, cells }, "{peers} peers");
            assert!(peers * (shape.ring + cells * CELL) <= MEMORY as usize);
        }
        assert_eq!(Shape::for_one_of(17, WHOLE as u64, MEMORY, true).cells, 0, "shorter rings");
        assert_eq!(Shape::for_one_of(1, WHOLE as u64 / 2, MEMORY, true).cells, 0);
        assert_eq!(Shape::for_one_of(1, WHOLE as u64, 1 << 40, false), Shape { ring: WHOLE, cells: 0 });
        assert_eq!(Shape::for_one_of(1, WHOLE as u64, u64::MAX, true).cells, MOST_CELLS);
        assert_eq!(Shape::for_one_of(1 << 20, WHOLE as u64, MEMORY, true).ring as u64, LEAST);
    }
}
