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

/// Rings are not made smaller than this because there are many peers.
const LEAST: u64 = 20 << 10;

/// The same for one of `peers`, which share `memory` bytes: for open rings with their cells.
pub fn bytes_for_one_of(peers: usize, ring_size: u64, memory: u64, open: bool) -> usize {
    let memory = if open { memory / 3 * 2 } else { memory };
    bytes_for((memory / peers.max(1) as u64).max(LEAST).min(ring_size))
}

fn write_card(mem: &SharedMem, cells: usize) {
    mem.word(CARD_CELLS).store(cells as u64, Ordering::Relaxed);
    mem.word(CARD_VERSION).store(VERSION, Ordering::Relaxed);
    mem.word(CARD_BYTES).store(mem.bytes() as u64, Ordering::Relaxed);
    mem.word(CARD_FENCED).store(u64::from(membarrier::register()), Ordering::Relaxed);
    mem.word(CARD_MAGIC).store(MAGIC, Ordering::Release);
}

/// Cells behind a ring, and bytes of the shortest ring that has some: with many peers memory is short. They are half as long as that ring.
const CELLS: usize = 4;
const CELLS_FROM: usize = 2 * CELLS * CELL;

/// A segment, and the descriptor to hand out. Only this process writes to it; only it can, unless the segment is `open`: then there are cells behind its
/// `bytes`, which both sides write.
pub fn create(bytes: usize, open: bool) -> Result<(OwnedFd, SharedMem), Errno> {
    let cells = if open && bytes >= CELLS_FROM { CELLS } else { 0 };
    let (fd, mapping) = memfd::create("rustmx-segment", bytes + cells * CELL, !open)?;
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
