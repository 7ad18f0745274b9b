//! The first user of the cache: buffers that a peer can map, because a memfd that cannot shrink backs them.
//!
//! ```text
//! if let Some(export) = exports.look(address, len) { … }     // a hit: ns; a miss: ns, and for a buffer that comes again the search
//! while let Some(id) = exports.retired() { … }               // now and then: files that peers may unmap
//! ```
//!
//! A buffer in a program's heap under `librustmx_heap.so` need not be looked for here: that heap answers by itself, without a system call.

use super::ranges::Budget;
use super::store::{Cache, Counts, Depends, Oversight};
use crate::sys::backing::{self, FileId, Maps, Why};
use core::ops::Range;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// What is kept of a process's buffers: plenty of mappings, and addresses cost nothing.
pub const BUDGET: Budget = Budget { count: 256, bytes: 1 << 40 };

/// A mapping longer than this is cached by windows of this size.
const WINDOW: usize = 1 << 30;

/// A file, as long as some range of it is cached.
struct File {
    id: u32,
    file: FileId,
    fd: OwnedFd,
}

/// What is cached for a range.
struct Place {
    file: Arc<File>,
    /// Of the range's first byte.
    offset: u64,
}

/// Where a buffer lies, for a peer that maps it. Good until the next call.
#[derive(Debug)]
pub struct Export<'a> {
    /// The file's number: one file has one as long as it is cached, and no other file ever gets it.
    pub id: u32,
    /// The file, for reading.
    pub fd: BorrowedFd<'a>,
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
        Exports { cache, maps: Maps::open(), files: Vec::new(), retired: Vec::new(), next: 1 }
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
        Some(Export { id: place.file.id, fd: place.file.fd.as_fd(), base: range.start, len: range.len(), offset: place.offset })
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
        if found.is_err() {
            self.cache.give_up(address);
            return None;
        }
        self.cache.find(address, len)
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
        let mut any = false;
        while self.cache.ended().is_some() {
            any = true;
        }
        if any {
            let retired = &mut self.retired;
            self.files.retain(|file| {
                let used = Arc::strong_count(file) > 1;
                if !used {
                    retired.push(file.id);
                }
                used
            });
        }
    }

    /// The number of a file that has ended: its descriptor is closed here, and peers should unmap it. Tends.
    pub fn retired(&mut self) -> Option<u32> {
        self.tend();
        self.retired.pop()
    }

    /// A descriptor for writing of a file that is exported, for a peer that shall write, too.
    pub fn writable(&self, id: u32) -> Result<OwnedFd, Errno> {
        let file = self.files.iter().find(|file| file.id == id).ok_or(Errno::NOENT)?;
        backing::writable(&file.fd)
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
    let (area, id) = maps.around(range)?;
    let offset = area.offset + (range.start - area.range.start) as u64;
    let bytes = offset + range.len() as u64;
    // A file that is open here is alive, so another cannot have its number.
    if let Some(known) = files.iter().find(|file| file.file == id) {
        backing::check(&known.fd, id, bytes)?;
        return Ok(Place { file: known.clone(), offset });
    }
    let fd = backing::descriptor(id, bytes)?;
    let number = *next;
    *next = number.checked_add(1).ok_or(Why::Unwatched)?;
    let file = Arc::new(File { id: number, file: id, fd });
    files.push(file.clone());
    Ok(Place { file, offset })
}

#[cfg(test)]
#[path = "exports_tests.rs"]
mod tests;
