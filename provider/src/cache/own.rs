//! Memory of this process that its peers could map, under numbers: the arenas of the preloaded heap, which says by itself what lies in them, and
//! files that the program has mapped, as far as the cache knows them.

use super::exports::{Export, Exports};
use super::ranges::Budget;
use super::store::Oversight;
use crate::sys::backing::Why;
use crate::sys::heap;
use rustix::fd::OwnedFd;

/// Memory of this process that peers could map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lendable {
    /// What it is called, by its door; not 0, and never used again for other memory.
    pub number: u32,
    /// Address of its first byte.
    pub base: usize,
    /// Of that byte in its file.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Whether its owner may write it, so that peers may be let do so, too.
    pub writable: bool,
}

impl Lendable {
    /// Whether a buffer lies in it.
    pub fn holds(&self, address: usize, len: usize) -> bool {
        let end = address.wrapping_sub(self.base).checked_add(len);
        address >= self.base && end.is_some_and(|end| end as u64 <= self.length)
    }
}

/// Why peers cannot map a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLendable {
    /// Not in the heap; and of other memory nobody could tell what becomes of it ([`unwatched`]).
    Unwatched,
    /// Not in the heap, and not found out yet: it was used for the first time, or its memory is just being changed.
    NotYet,
    /// Not in the heap, and this was found out.
    Known(Why),
}

/// Why no memory outside of the preloaded heap is ever lent by this process; `None`: it may be.
pub fn unwatched() -> Option<String> {
    Exports::default().refusal()
}

/// See above. Odd numbers are the heap's, even ones the cache's.
pub struct OwnMemory {
    /// Generations of the heap's arenas that were asked for, in the order of their numbers.
    arenas: Vec<u64>,
    files: Files,
    budget: Budget,
}

/// Files that the program has mapped.
enum Files {
    /// Nobody has asked yet.
    Unasked(Oversight),
    /// Nobody could tell what becomes of them.
    Unwatched,
    Cached(Box<Exports>),
}

impl OwnMemory {
    /// Nothing known yet, and nothing made.
    pub fn new(oversight: Oversight, budget: Budget) -> OwnMemory {
        OwnMemory { arenas: Vec::new(), files: Files::Unasked(oversight), budget }
    }

    /// Ranges that are cached, and their bytes. (The heap keeps its arenas by itself.)
    pub fn kept(&self) -> (usize, usize) {
        match &self.files {
            Files::Cached(exports) => {
                let (_, ranges, bytes) = exports.size();
                (ranges, bytes)
            }
            _ => (0, 0),
        }
    }

    /// The memory in which a buffer lies (of the heap's: in which it begins), if peers could map it. No lock; for memory that is no shared mapping
    /// a system call now and then only, for what is in the cache one.
    #[inline]
    pub fn at(&mut self, address: usize, len: usize) -> Option<Lendable> {
        match heap::heap().and_then(|heap| heap.find(address)) {
            Some(range) => {
                let place = self.arenas.iter().position(|a| *a == range.generation).unwrap_or_else(|| {
                    self.arenas.push(range.generation);
                    self.arenas.len() - 1
                });
                let number = (place as u32) << 1 | 1;
                Some(Lendable { number, base: range.base, offset: 0, length: range.length, writable: true })
            }
            None => self.in_file(address, len),
        }
    }

    fn in_file(&mut self, address: usize, len: usize) -> Option<Lendable> {
        let exports = match &mut self.files {
            Files::Cached(exports) => exports,
            Files::Unwatched => return None,
            Files::Unasked(_) => self.first_question()?,
        };
        let Export { id, writable, base, len, offset, .. } = exports.look(address, len)?;
        let found = Lendable { number: id << 1, base, offset, length: len as u64, writable };
        // Another thread may be unmapping what was there before (ADR 0015, first exception).
        exports.settled().then_some(found)
    }

    #[cold]
    fn first_question(&mut self) -> Option<&mut Box<Exports>> {
        if let Files::Unasked(oversight) = self.files {
            let exports = Exports::new(self.budget, oversight);
            self.files = if exports.refusal().is_some() { Files::Unwatched } else { Files::Cached(Box::new(exports)) };
        }
        match &mut self.files {
            Files::Cached(exports) => Some(exports),
            _ => None,
        }
    }

    /// Why [`at`](Self::at) just found nothing for a buffer that begins at `address`.
    pub fn why_not(&self, address: usize) -> NotLendable {
        match &self.files {
            Files::Unwatched => NotLendable::Unwatched,
            Files::Unasked(_) => NotLendable::NotYet,
            Files::Cached(exports) => exports.known_refusal(address).map_or(NotLendable::NotYet, NotLendable::Known),
        }
    }

    /// How many times [`at`](Self::at) would find nothing again for that buffer, at least; few, for it may become the heap's. They count as asked for.
    pub fn as_before(&mut self, address: usize) -> u8 {
        const MOST: u8 = 15;
        match &mut self.files {
            Files::Unwatched => MOST,
            Files::Unasked(_) => 0,
            Files::Cached(exports) => exports.uses_ahead(address, MOST.into()) as u8,
        }
    }

    /// A descriptor of that memory, to be handed over; `None`: not now, or it is not what it was.
    pub fn open(&mut self, memory: &Lendable, writable: bool) -> Option<OwnedFd> {
        match &mut self.files {
            _ if memory.number & 1 == 1 => heap::heap()?.open(memory.base, writable).ok(),
            Files::Cached(exports) => exports.open(memory.number >> 1, memory.base, writable).ok(),
            _ => None,
        }
    }

    /// The number of memory that is not what it was. (The heap's arenas never end.)
    #[inline]
    pub fn ended(&mut self) -> Option<u32> {
        match &mut self.files {
            Files::Cached(exports) => exports.retired().map(|id| id << 1),
            _ => None,
        }
    }
}
