//! The first user of the cache: buffers that a peer can map, because a memfd that cannot shrink backs them.
//!
//! ```text
//! if let Some(export) = exports.look(address, len) { … }     // a hit: ns; a miss: ns, and for a buffer that comes again the search
//! while let Some(id) = exports.retired() { … }               // now and then: ranges that peers may unmap
//! ```
//! What has a number is a range of addresses and not a file: peers are told addresses, and one file may be mapped at several.
//!
//! A buffer in a program's heap under `librustmx_heap.so` need not be looked for here: that heap answers by itself, without a system call.

use super::ranges::Budget;
use super::store::{Cache, Counts, Depends, Oversight};
use crate::sys::backing::{self, FileId, Maps, Why};
use core::ops::Range;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// What is kept of a process's buffers where nobody says anything (`FI_RUSTMX_CACHE_COUNT`): plenty of mappings, and addresses cost nothing.
pub const BUDGET: Budget = Budget { count: 1024, bytes: 1 << 46 };

/// Numbers end here, and with them new exports: half of what 32 bits hold, so that others can be told from them by one bit.
pub const MOST_NUMBER: u32 = u32::MAX >> 1;

/// A mapping longer than this is cached by windows of this size.
const WINDOW: usize = 1 << 30;

/// A file, as long as some range of it is cached.
struct File {
    file: FileId,
    fd: OwnedFd,
}

/// What is cached for a range.
struct Place {
    id: u32,
    file: Arc<File>,
    /// Of the range's first byte.
    offset: u64,
    /// The program may store there.
    writable: bool,
}

/// Where a buffer lies, for a peer that maps it. Good until the next call.
#[derive(Debug)]
pub struct Export<'a> {
    /// The number of the cached range, as long as it is cached; no other range ever gets it.
    pub id: u32,
    /// The file, for reading.
    pub fd: BorrowedFd<'a>,
    /// Whether the program itself could store there when this was found out.
    pub writable: bool,
    /// First address of the cached range, which holds all of the buffer.
    pub base: usize,
    /// Bytes of that range.
    pub len: usize,
    /// Of `base` in the file; the file is at least `offset + len` bytes long and cannot become shorter.
    pub offset: u64,
}

/// The buffers of this process that peers can map.
pub struct Exports {
    cache: Cache<Place>,
    maps: Result<Maps, Errno>,
    files: Vec<Arc<File>>,
    retired: Vec<u32>,
    next: u32,
    /// What was found to be wrong with buffers: each reason once; candidates keep its place.
    reasons: Vec<Why>,
}

impl Default for Exports {
    fn default() -> Exports {
        Exports::new(BUDGET, Oversight::Monitored)
    }
}

/// The part of a mapping that is cached for a buffer in it.
fn window(area: &Range<usize>, want: &Range<usize>) -> Range<usize> {
    let end = want.end.checked_next_multiple_of(WINDOW).unwrap_or(usize::MAX);
    area.start.max(want.start / WINDOW * WINDOW)..area.end.min(end)
}

impl Exports {
    /// Nothing known yet.
    pub fn new(budget: Budget, oversight: Oversight) -> Exports {
        let cache = Cache::new(budget, Depends::OnMapping, oversight);
        Exports { cache, maps: Maps::open(), files: Vec::new(), retired: Vec::new(), next: 1, reasons: Vec::new() }
    }

    /// Why nothing is ever found, in words; `None`: something may be.
    pub fn refusal(&self) -> Option<String> {
        match (&self.maps, self.cache.refusal()) {
            (_, Some(why)) => Some(why.to_string()),
            (Err(e), None) => Some(Why::Kernel(*e).to_string()),
            (Ok(_), None) => None,
        }
    }

    /// Where the `len` bytes at `address` lie, if a peer can map them and that is known or, for a buffer that was asked for before, can
    /// be found out. In memory that other threads unmap and map see [`settled`](Self::settled).
    #[inline]
    pub fn look(&mut self, address: usize, len: usize) -> Option<Export<'_>> {
        let found = match self.cache.find(address, len) {
            Some(found) => found,
            None => self.consider(address, len)?,
        };
        let (range, place) = self.cache.at(found);
        let Place { id, file, offset, writable } = place;
        Some(Export { id: *id, fd: file.fd.as_fd(), writable: *writable, base: range.start, len: range.len(), offset: *offset })
    }

    /// After a hit: [`Cache::settled`].
    pub fn settled(&self) -> bool {
        self.cache.settled()
    }

    #[inline(never)]
    fn consider(&mut self, address: usize, len: usize) -> Option<usize> {
        if len == 0 || !self.cache.again(address) {
            return None;
        }
        let end = address.checked_add(len)?;
        let found = self.search(&(address..end));
        self.sweep();
        if let Err(why) = found {
            let place = self.reasons.iter().position(|known| *known == why).unwrap_or_else(|| {
                self.reasons.push(why);
                self.reasons.len() - 1
            });
            self.cache.give_up(address, place as u8);
            return None;
        }
        self.cache.find(address, len)
    }

    /// Why nothing was found for a buffer that begins at `address`, when that was found out last, if it was lately.
    pub fn known_refusal(&self, address: usize) -> Option<Why> {
        self.reasons.get(usize::from(self.cache.given_up(address)?)).copied()
    }

    /// Counts uses of a buffer that begins at `address` before they come: at most so many, of which none would make it be found out. How many.
    pub fn uses_ahead(&mut self, address: usize, most: u32) -> u32 {
        self.cache.uses_ahead(address, most)
    }

    /// Finds a buffer out, and caches what surrounds it.
    fn search(&mut self, want: &Range<usize>) -> Result<(), Why> {
        if !self.cache.tend() {
            return Err(Why::Unwatched);
        }
        let maps = self.maps.as_ref().map_err(|e| Why::Kernel(*e))?;
        let (area, _) = maps.around(want)?;
        let range = window(&area.range, want);
        let (files, next) = (&mut self.files, &mut self.next);
        let mut why = Why::Unwatched;
        let kept = self.cache.fill(want.start, range.clone(), || {
            // Once more, now that it is watched.
            place(maps, &range, files, next).map_err(|e| why = e).ok()
        });
        if kept { Ok(()) } else { Err(why) }
    }

    /// Takes what happened to the memory, and lets go of files. One load if nothing happened.
    pub fn tend(&mut self) {
        self.cache.tend();
        self.sweep();
    }

    fn sweep(&mut self) {
        let before = self.retired.len();
        while let Some(place) = self.cache.ended() {
            self.retired.push(place.id);
        }
        if self.retired.len() > before {
            self.files.retain(|file| Arc::strong_count(file) > 1);
        }
    }

    /// The number of a range that has ended: peers should unmap it. The file's descriptor is closed here with its last range. Tends.
    pub fn retired(&mut self) -> Option<u32> {
        self.tend();
        self.retired.pop()
    }

    /// A descriptor of the file behind the range `id` at `base`, to be handed over; `writable`: to somebody who shall write, too.
    ///
    /// # Errors
    /// `ENOENT`: it is not exported any more; `EPERM`: the file is sealed against writing; what open(2) says.
    pub fn open(&mut self, id: u32, base: usize, writable: bool) -> Result<OwnedFd, Errno> {
        let found = self.cache.find(base, 1).ok_or(Errno::NOENT)?;
        let (_, place) = self.cache.at(found);
        match writable {
            _ if place.id != id => Err(Errno::NOENT),
            true => backing::writable(&place.file.fd),
            false => rustix::io::fcntl_dupfd_cloexec(&place.file.fd, 0),
        }
    }

    /// Whether a peer could map a buffer, and if not why; asked of the system now, not of the cache. For people.
    pub fn explain(&self, address: usize, len: usize) -> Result<(), String> {
        if let Some(why) = self.refusal() {
            return Err(why);
        }
        let maps = self.maps.as_ref().map_err(|e| Why::Kernel(*e).to_string())?;
        let want = address..address.checked_add(len.max(1)).ok_or_else(|| Why::NotOne.to_string())?;
        let (area, file) = maps.around(&want).map_err(|why| why.to_string())?;
        backing::descriptor(file, area.offset + area.range.len() as u64).map(drop).map_err(|why| why.to_string())
    }

    /// What the cache did.
    pub fn counts(&self) -> Counts {
        self.cache.counts()
    }

    /// Files, ranges and bytes that are cached.
    pub fn size(&self) -> (usize, usize, usize) {
        let (ranges, bytes) = self.cache.size();
        (self.files.len(), ranges, bytes)
    }

    /// Ends everything: for comparison, and before memory runs out.
    pub fn clear(&mut self) {
        self.cache.clear();
        self.sweep();
    }
}

/// The file behind a range, and where in it.
fn place(maps: &Maps, range: &Range<usize>, files: &mut Vec<Arc<File>>, next: &mut u32) -> Result<Place, Why> {
    let (area, behind) = maps.around(range)?;
    let offset = area.offset + (range.start - area.range.start) as u64;
    let bytes = offset + range.len() as u64;
    let (id, after) = (*next, next.checked_add(1).filter(|n| *n <= MOST_NUMBER).ok_or(Why::Unwatched)?);
    // A file that is open here is alive, so another cannot have its number.
    let file = match files.iter().find(|file| file.file == behind) {
        Some(known) => {
            backing::check(&known.fd, behind, bytes)?;
            known.clone()
        }
        None => {
            let file = Arc::new(File { file: behind, fd: backing::descriptor(behind, bytes)? });
            files.push(file.clone());
            file
        }
    };
    *next = after;
    Ok(Place { id, file, offset, writable: area.writable })
}

#[cfg(test)]
#[path = "exports_tests.rs"]
mod tests;
