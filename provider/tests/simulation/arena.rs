//! Memory of the engines that their peers could map: pieces of it are buffers, and it is lent, ends, and is found anew under another number.
#![expect(unsafe_code)]
// UNSAFETY: buffers in memory that engines share.

use rustmx::mem::shared::{Backing, Heap, SharedMem};
use rustmx::transport::Lendable;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes in front of what is lent: it does not begin where its file does.
pub const LEAD: usize = 8192;
/// Bytes of an arena, unless a buffer needs more; and of one for many long buffers.
pub const BYTES: usize = 96 << 10;
pub const ROOMY: usize = 8 << 20;

/// A stretch of an engine's memory.
pub struct Arena {
    heap: Arc<Heap>,
    bytes: usize,
    used: usize,
    /// What it is called now; 0: it is not lendable any more.
    pub number: u32,
    pub writable: bool,
}

impl Arena {
    /// With room for `bytes`, in whole pages.
    pub fn new(number: u32, writable: bool, bytes: usize) -> Arena {
        let bytes = bytes.next_multiple_of(4096);
        Arena { heap: Heap::new(LEAD + bytes), bytes, used: 0, number, writable }
    }

    /// A piece with these bytes in it, if there is room.
    pub fn carve(&mut self, bytes: &[u8]) -> Option<Buf> {
        let at = self.used;
        let end = at.checked_add(bytes.len()).filter(|end| *end <= self.bytes)?;
        self.used = end;
        let mut piece = Buf::Piece(self.heap.clone(), LEAD + at, bytes.len());
        piece.copy_from_slice(bytes);
        Some(piece)
    }

    /// As its door tells of it.
    pub fn lendable(&self, address: usize) -> Option<Lendable> {
        let base = self.heap.base().as_ptr() as usize + LEAD;
        let is_it = self.number != 0 && (base..base + self.bytes).contains(&address);
        let Arena { number, writable, .. } = *self;
        is_it.then_some(Lendable { number, base, offset: LEAD as u64, length: self.bytes as u64, writable })
    }

    /// All of its file.
    pub fn memory(&self) -> SharedMem {
        SharedMem::new(self.heap.clone())
    }
}

/// A buffer.
pub enum Buf {
    /// That nobody else could map.
    Own(Vec<u8>),
    /// Of an arena: first byte and length.
    Piece(Arc<Heap>, usize, usize),
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buf::Own(bytes) => bytes,
            // SAFETY: inside the memory, which lives as long as this; engines, on this thread, copy there only while no slice of it is used.
            Buf::Piece(heap, at, len) => unsafe { std::slice::from_raw_parts(heap.base().as_ptr().add(*at), *len) },
        }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Buf::Own(bytes) => bytes,
            // SAFETY: as above; a piece is carved once.
            Buf::Piece(heap, at, len) => unsafe { std::slice::from_raw_parts_mut(heap.base().as_ptr().add(*at), *len) },
        }
    }
}
