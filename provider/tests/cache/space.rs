//! Addresses that the tests do everything to, with a book of what is where; and the check of an answer against the truth.
#![expect(unsafe_code)]
// UNSAFETY: maps, unmaps and writes to addresses that nobody else uses; the program break and fork, which have no safe spelling.

use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustmx::cache::exports::Export;

pub const PAGE: usize = 4096;
pub const FILE_PAGES: usize = 256;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What is at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    Nothing,
    /// Private memory, or a file that cannot be exported.
    Local,
    /// So many pages from the start of a sealed file, which has that many more.
    Shared(usize),
}

pub fn memfd(sealed: bool) -> OwnedFd {
    let fd = rustix::fs::memfd_create("torture", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&fd, (FILE_PAGES * PAGE) as u64).expect("size");
    if sealed {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
    }
    fd
}

fn at(address: usize) -> *mut c_void {
    address as *mut c_void
}

/// Maps a file, or private memory, at an address. False: something is there already (without `over`).
pub fn map(address: usize, pages: usize, file: Option<(&OwnedFd, usize)>, over: bool) -> bool {
    let fixed = if over { MapFlags::FIXED } else { MapFlags::FIXED_NOREPLACE };
    // SAFETY: only the tests use these addresses, and hold nothing there.
    let mapped = unsafe {
        match file {
            Some((fd, page)) => {
                rustix::mm::mmap(at(address), pages * PAGE, RW, MapFlags::SHARED | fixed, fd, (page * PAGE) as u64)
            }
            None => rustix::mm::mmap_anonymous(at(address), pages * PAGE, RW, MapFlags::PRIVATE | fixed),
        }
    };
    assert!(mapped.is_ok() || !over, "mmap: {mapped:?}");
    mapped.is_ok()
}

pub fn unmap(address: usize, pages: usize) {
    // SAFETY: as in `map`.
    unsafe { rustix::mm::munmap(at(address), pages * PAGE) }.expect("munmap");
}

pub fn advise(address: usize, pages: usize, advice: Advice) -> bool {
    // SAFETY: as in `map`.
    unsafe { rustix::mm::madvise(at(address), pages * PAGE, advice) }.is_ok()
}

/// Moves or resizes a mapping. Whether it was.
pub fn remap(from: usize, pages: usize, now: usize, to: Option<usize>, stays: bool) -> bool {
    let mut flags = if to.is_some() { MremapFlags::MAYMOVE } else { MremapFlags::empty() };
    flags.set(MremapFlags::DONTUNMAP, stays);
    // SAFETY: as in `map`.
    unsafe {
        match to {
            Some(to) => rustix::mm::mremap_fixed(at(from), pages * PAGE, now * PAGE, flags, at(to)),
            None => rustix::mm::mremap(at(from), pages * PAGE, now * PAGE, flags),
        }
    }
    .is_ok()
}

fn word(address: usize) -> &'static AtomicU64 {
    // SAFETY: callers name mapped, writable, aligned words that are only used as atomics.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

/// A number that no other word of memory has.
fn stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5eed_0000_0000_0001);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Writes fresh stamps over a buffer of whole words, as an application writes its message: at both ends, and in every page.
pub fn write(address: usize, len: usize) -> Vec<(usize, u64)> {
    let mut places: Vec<usize> = (0..len).step_by(PAGE).collect();
    places.push(len - 8);
    let mut stamps: Vec<(usize, u64)> = places.into_iter().map(|offset| (offset, stamp())).collect();
    stamps.dedup_by_key(|(offset, _)| *offset);
    for (offset, stamp) in &stamps {
        word(address + offset).store(*stamp, Ordering::Relaxed);
    }
    stamps
}

/// An answer that is kept.
pub struct Answer {
    fd: OwnedFd,
    base: usize,
    len: usize,
    offset: u64,
}

impl Answer {
    pub fn of(export: &Export<'_>) -> Answer {
        Answer { fd: export.fd.try_clone_to_owned().expect("dup"), base: export.base, len: export.len, offset: export.offset }
    }

    /// Whether who follows it reads what is in the buffer.
    pub fn is_true(&self, address: usize, len: usize, stamps: &[(usize, u64)]) -> bool {
        let inside = self.base <= address && address + len <= self.base + self.len;
        inside
            && stamps.iter().all(|(offset, stamp)| {
                let mut bytes = [0; 8];
                let from = self.offset + (address - self.base + offset) as u64;
                rustix::io::pread(&self.fd, &mut bytes, from) == Ok(8) && u64::from_ne_bytes(bytes) == *stamp
            })
    }
}

/// Whole pages that the program break was raised by.
pub struct Raised {
    start: usize,
    /// Where the break was, and where it is.
    from: usize,
    to: usize,
}

impl Raised {
    /// `None`: it is not to be had.
    pub fn new(pages: usize) -> Option<Raised> {
        let room = ((pages + 1) * PAGE).cast_signed();
        // SAFETY: grows the break; allocators cope with a break that others move.
        let from = unsafe { libc::sbrk(room) } as usize;
        (from != usize::MAX).then(|| Raised { start: from.next_multiple_of(PAGE), from, to: from.wrapping_add_signed(room) })
    }

    /// Of its first page.
    pub fn address(&self) -> usize {
        self.start
    }

    /// Lowers the break by so many pages, from the end. False: somebody else has raised it meanwhile.
    pub fn give_back(&mut self, pages: usize) -> bool {
        let bytes = if self.start + pages * PAGE < self.to { pages * PAGE } else { self.to - self.from };
        if program_break() != self.to {
            return false;
        }
        // SAFETY: what is between `from` and `to` is ours; this thread is the only one that moves the break.
        assert_ne!(unsafe { libc::sbrk(-bytes.cast_signed()) } as usize, usize::MAX, "the break cannot be lowered");
        self.to -= bytes;
        true
    }

    /// Lowers it to where it was. False: as above, and it never will be.
    pub fn lower(mut self) -> bool {
        self.give_back((self.to - self.start).div_ceil(PAGE))
    }
}

/// Where the program break is. Below it lies the program, and memory that was had by raising it.
pub fn program_break() -> usize {
    // SAFETY: asks only.
    unsafe { libc::sbrk(0) as usize }
}

/// Raises the program break, lays a file over `pages` pages above it, and takes all of that back. `meanwhile` gets the address twice:
/// while the file is there, and when the break has fallen. False: somebody else has moved the break, or it is not to be had.
pub fn over_the_break(pages: usize, fd: &OwnedFd, mut meanwhile: impl FnMut(usize, bool)) -> bool {
    let Some(raised) = Raised::new(pages) else { return false };
    let start = raised.address();
    map(start, pages, Some((fd, 0)), true);
    meanwhile(start, true);
    if !raised.lower() {
        map(start, pages, None, true);
        return false;
    }
    meanwhile(start, false);
    true
}

/// A child by fork(3). What `child` answers is its exit code.
pub fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: no other thread of this process has a lock that the child needs: the monitor's takes none.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = child();
        // SAFETY: ends the child without running what the parent wants to run at its end.
        unsafe { libc::_exit(code) };
    }
    let pid = rustix::process::Pid::from_raw(pid).expect("fork");
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).expect("wait").expect("ended");
    status.exit_status().expect("exited")
}

/// Low in the address space, where no mmap without an address looks.
pub const BASE: usize = 0x2000_0000_0000;

/// Pages from [`BASE`] on, and what is there.
pub struct Space {
    pub pages: Vec<Is>,
    pub files: Vec<OwnedFd>,
    pub loose: OwnedFd,
}

impl Space {
    pub fn new(pages: usize, files: usize) -> Space {
        Space { pages: vec![Is::Nothing; pages], files: (0..files).map(|_| memfd(true)).collect(), loose: memfd(false) }
    }

    pub fn address(page: usize) -> usize {
        BASE + page * PAGE
    }

    /// Whether a buffer can lie there.
    pub fn is_memory(&self, pages: &Range<usize>) -> bool {
        self.pages[pages.clone()].iter().all(|is| *is != Is::Nothing)
    }

    /// Whether these pages are one stretch of one file, with room for `more` in the file.
    fn is_stretch(&self, pages: &Range<usize>, more: usize) -> bool {
        let Is::Shared(first) = self.pages[pages.start] else { return false };
        pages.clone().enumerate().all(|(n, page)| self.pages[page] == Is::Shared(first + n))
            && first + pages.len() + more <= FILE_PAGES
    }

    fn set(&mut self, pages: Range<usize>, is: impl Fn(usize) -> Is) {
        pages.enumerate().for_each(|(n, page)| self.pages[page] = is(n));
    }

    pub fn share(&mut self, pages: Range<usize>, file: usize, from: usize, over: bool) {
        if map(Space::address(pages.start), pages.len(), Some((&self.files[file], from)), over) {
            self.set(pages, |n| Is::Shared(from + n));
        }
    }

    pub fn localise(&mut self, pages: Range<usize>, loose: bool) {
        map(Space::address(pages.start), pages.len(), loose.then_some((&self.loose, 0)), true);
        self.set(pages, |_| Is::Local);
    }

    pub fn unmap(&mut self, pages: Range<usize>) {
        unmap(Space::address(pages.start), pages.len());
        self.set(pages, |_| Is::Nothing);
    }

    /// Moves pages elsewhere, over what is there.
    pub fn transfer(&mut self, from: Range<usize>, to: usize, stays: bool) -> bool {
        let target = to..to + from.len();
        if !self.is_stretch(&from, 0) || from.start < target.end && target.start < from.end {
            return false;
        }
        // A move that fails may have unmapped the target or not.
        self.unmap(target.clone());
        let moved = remap(Space::address(from.start), from.len(), from.len(), Some(Space::address(to)), stays);
        if moved {
            let was: Vec<Is> = self.pages[from.clone()].to_vec();
            self.set(target, |n| was[n]);
            if !stays {
                self.set(from, |_| Is::Nothing);
            }
        }
        moved
    }

    /// Makes a mapping longer or shorter where it is.
    pub fn resize(&mut self, pages: Range<usize>, now: usize) -> bool {
        let grown = pages.end..pages.start + now.max(pages.len());
        if !self.is_stretch(&pages, grown.len()) || grown.end > self.pages.len() {
            return false;
        }
        let resized = remap(Space::address(pages.start), pages.len(), now, None, false);
        if resized {
            let Is::Shared(first) = self.pages[pages.start] else { return true };
            self.set(pages.start + now.min(pages.len())..pages.end, |_| Is::Nothing);
            self.set(grown, |n| Is::Shared(first + pages.len() + n));
        }
        resized
    }
}
