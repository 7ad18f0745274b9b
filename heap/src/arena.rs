//! One arena: a stretch of addresses with a sealed memfd behind it, mapped piece by piece, and the book of its pages.
//!
//! After a fork the child's is *private*: the same addresses, anonymous memory, blocks are only freed.
#![expect(unsafe_code)]
// UNSAFETY: maps, advises on and moves memory, and lends out the descriptor by number.

use crate::PAGE;
use crate::extent::{Extents, Resized, State, Tag};
use crate::table::{self, File};
use core::ffi::c_void;
use core::ptr::null_mut;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// Arenas begin at a multiple of this, so that huge pages are possible.
const ALIGN: usize = 2 << 20;
/// At least this much is mapped at a time.
const STEP: usize = 32 << 20;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What is behind the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// A memfd.
    Memfd(File),
    /// What fork left: anonymous memory, up to `mapped`.
    Private,
}

/// A copy of an arena's blocks, for a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    None,
    /// At this address, this long.
    Made(usize, usize),
    Failed(Errno),
}

/// See the module's header.
pub(crate) struct Arena {
    slot: usize,
    base: usize,
    reserve: usize,
    mapped: usize,
    /// Addresses of the tags; as many are accessible as pages are mapped.
    tags: usize,
    behind: Behind,
    copy: Copy,
    book: Extents,
}

/// Whole pages for the tags of so many bytes.
fn tag_bytes(bytes: usize) -> usize {
    (bytes / PAGE * size_of::<Tag>()).next_multiple_of(PAGE)
}

/// Reserves addresses that nothing can be stored at.
fn reserve(len: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice disturbs nothing.
    Ok(unsafe { rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) }? as usize)
}

/// Unmaps what this module mapped; `len` may be 0.
fn unmap(at: usize, len: usize) {
    if len > 0 {
        // SAFETY: callers give up addresses that they mapped and to which nothing points any more.
        let _ = unsafe { rustix::mm::munmap(at as *mut c_void, len) };
    }
}

/// A sealed file of `len` bytes without memory.
fn file(len: usize) -> Result<(OwnedFd, File), Errno> {
    // Past this limit ftruncate does not just fail, it sends SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
        return Err(Errno::FBIG);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(c"rustmx-heap", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"rustmx-heap", flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // Out of the way of programs that count on the lowest numbers.
    let high = getrlimit(Resource::Nofile).current.unwrap_or(1024).min(1024) as i32 / 4 * 3;
    let fd = rustix::io::fcntl_dupfd_cloexec(&fd, high).unwrap_or(fd);
    let stat = rustix::fs::fstat(&fd)?;
    let number = fd.as_raw_fd();
    Ok((fd, File { fd: number, device: stat.st_dev, inode: stat.st_ino }))
}

/// The descriptor, if it still leads to that file.
pub(crate) fn descriptor(file: File) -> Option<BorrowedFd<'static>> {
    // SAFETY: never closed by us but in a forked child, which forgets it; closed by somebody else it is some other file, or EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(file.fd) };
    is(fd, file).then_some(fd)
}

/// Whether a descriptor leads to that file.
pub(crate) fn is(fd: BorrowedFd<'_>, file: File) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| s.st_dev == file.device && s.st_ino == file.inode)
}

impl Arena {
    /// Creates one of `bytes` (a multiple of [`ALIGN`]) and makes it known as number `slot`.
    pub(crate) fn create(slot: usize, bytes: usize) -> Result<Arena, Errno> {
        let (fd, file) = file(bytes)?;
        let whole = reserve(bytes + ALIGN)?;
        let base = whole.next_multiple_of(ALIGN);
        unmap(whole, base - whole);
        unmap(base + bytes, whole + ALIGN - base);
        let tags = match reserve(tag_bytes(bytes)) {
            Ok(tags) => tags,
            Err(e) => {
                unmap(base, bytes);
                return Err(e);
            }
        };
        let _ = fd.into_raw_fd();
        table::publish(slot, base, bytes, file);
        let (behind, copy) = (Behind::Memfd(file), Copy::None);
        Ok(Arena { slot, base, reserve: bytes, mapped: 0, tags, behind, copy, book: Extents::new() })
    }

    /// A block of `pages`, aligned to `align` pages, and whether it may hold something other than zeros.
    pub(crate) fn take(&mut self, pages: u32, align: u32) -> Option<(usize, bool)> {
        if self.behind == Behind::Private {
            return None;
        }
        let phase = (self.base / PAGE) as u32;
        loop {
            if let Some((page, dirty)) = self.book.take(pages, align, phase) {
                return Some((self.base + page as usize * PAGE, dirty));
            }
            self.extend(pages.checked_add(align)? as usize * PAGE).ok()?;
        }
    }

    /// Maps more of the file, at least `bytes`.
    fn extend(&mut self, bytes: usize) -> Result<(), Errno> {
        let Behind::Memfd(file) = self.behind else { return Err(Errno::NOMEM) };
        let room = self.reserve - self.mapped;
        let more = bytes.max(STEP).max(self.mapped / 4).next_multiple_of(ALIGN).min(room);
        if more < bytes {
            return Err(Errno::NOMEM);
        }
        let fd = descriptor(file).ok_or(Errno::BADF)?;
        let pages = (self.mapped + more) / PAGE;
        let len = tag_bytes(self.mapped + more);
        // SAFETY: within our reservation of tags, which is private to the book.
        unsafe { rustix::mm::mprotect(self.tags as *mut c_void, len, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        let at = (self.base + self.mapped) as *mut c_void;
        // SAFETY: replaces a part of our reservation of addresses that was inaccessible up to now.
        unsafe { rustix::mm::mmap(at, more, RW, MapFlags::SHARED | MapFlags::FIXED, fd, self.mapped as u64) }?;
        self.mapped += more;
        table::mapped(self.slot, self.mapped);
        let tags = self.tags as *mut Tag;
        // SAFETY: made accessible above, zero (a valid tag) where not written yet; the shorter slice of before ends its life here.
        self.book.grow(|_| unsafe { core::slice::from_raw_parts_mut(tags, pages) });
        Ok(())
    }

    fn page(&self, address: usize) -> u32 {
        ((address - self.base) / PAGE) as u32
    }

    /// Bytes of the block at `address`, an address of this arena, if one begins there.
    pub(crate) fn block(&self, address: usize) -> Option<usize> {
        let pages = self.book.used_at(self.page(address))?;
        address.is_multiple_of(PAGE).then_some(pages as usize * PAGE)
    }

    /// Frees the block at `address`.
    pub(crate) fn release(&mut self, address: usize) {
        let page = self.page(address);
        let Some(pages) = self.book.used_at(page) else { return };
        if self.behind == Behind::Private {
            self.give_back(page, pages);
            self.book.release(page, State::Clean);
        } else {
            self.book.release(page, State::Dirty);
        }
    }

    /// Makes the block at `address` `pages` long where it is, if there is room.
    pub(crate) fn resize(&mut self, address: usize, pages: u32) -> bool {
        let page = self.page(address);
        let old = self.book.used_at(page).unwrap_or(0);
        if self.behind == Behind::Private {
            // What lies behind a private block may not be mapped.
            return pages <= old;
        }
        if self.book.resize(page, pages) == Resized::Done {
            return true;
        }
        // The last block of all can be followed by pages that were never mapped.
        let at_end = page + old == self.book.pages();
        at_end && self.extend((pages - old) as usize * PAGE).is_ok() && self.book.resize(page, pages) == Resized::Done
    }

    /// Bytes that are free and have memory behind them.
    pub(crate) fn dirty(&self) -> usize {
        // What was free at the fork was not copied: the book still has it, but the addresses may be somebody else's by now.
        if self.behind == Behind::Private { 0 } else { self.book.dirty_pages() as usize * PAGE }
    }

    /// Takes out a long free stretch that has memory, for [`punch`].
    pub(crate) fn take_dirty(&mut self) -> Option<(usize, usize)> {
        if self.behind == Behind::Private {
            return None;
        }
        let (page, pages) = self.book.take_dirty()?;
        Some((self.base + page as usize * PAGE, pages as usize * PAGE))
    }

    /// Makes two of what [`take_dirty`](Self::take_dirty) took, the first of them `len` bytes long.
    pub(crate) fn cut(&mut self, address: usize, len: usize) {
        self.book.cut(self.page(address), (len / PAGE) as u32);
    }

    /// Puts back what [`take_dirty`](Self::take_dirty) took, punched or not.
    pub(crate) fn put_back(&mut self, address: usize, punched: bool) {
        self.book.release(self.page(address), if punched { State::Clean } else { State::Dirty });
    }

    fn give_back(&self, page: u32, pages: u32) {
        let at = (self.base + page as usize * PAGE) as *mut c_void;
        // SAFETY: pages of a private arena that are being freed: nobody reads them again.
        let _ = unsafe { rustix::mm::madvise(at, pages as usize * PAGE, Advice::LinuxDontNeed) };
    }

    // ---- fork ----

    /// Copies the blocks for a child that is about to be forked.
    pub(crate) fn copy(&mut self) {
        let Behind::Memfd(file) = self.behind else { return };
        let (mut from, mut end) = (0, 0);
        while let Some((page, pages)) = self.book.next_used(from) {
            from = page + pages;
            end = from;
        }
        if end == 0 {
            self.copy = Copy::Made(0, 0);
            return;
        }
        let len = end as usize * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a mapping at an address of the kernel's choice disturbs nothing.
        let to = match unsafe { rustix::mm::mmap_anonymous(null_mut(), len, RW, flags) } {
            Ok(to) => to as usize,
            Err(e) => {
                self.copy = Copy::Failed(e);
                return;
            }
        };
        let fd = descriptor(file);
        let mut from = 0;
        while let Some((page, pages)) = self.book.next_used(from) {
            from = page + pages;
            let (at, len) = (page as usize * PAGE, pages as usize * PAGE);
            let result = match fd {
                Some(fd) => copy_file(fd, at, len, to + at),
                None => copy_memory(self.base + at, len, to + at),
            };
            if let Err(e) = result {
                unmap(to, end as usize * PAGE);
                self.copy = Copy::Failed(e);
                return;
            }
        }
        self.copy = Copy::Made(to, len);
    }

    /// The parent needs no copy any more.
    pub(crate) fn drop_copy(&mut self) {
        if let Copy::Made(at, len) = core::mem::replace(&mut self.copy, Copy::None) {
            unmap(at, len);
        }
    }

    /// In the child: puts the copy where the arena is. From here on it is private.
    pub(crate) fn become_private(&mut self) -> Result<(), Errno> {
        let Behind::Memfd(file) = self.behind else { return Ok(()) };
        let (at, len) = match core::mem::replace(&mut self.copy, Copy::None) {
            Copy::Made(at, len) => (at, len),
            Copy::Failed(e) => return Err(e),
            Copy::None => return Err(Errno::INVAL),
        };
        if len > 0 {
            let (from, to) = (at as *mut c_void, self.base as *mut c_void);
            // SAFETY: the copy is as long as the blocks that it replaces, and holds the same; one thread, no locks of others.
            unsafe { rustix::mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, to) }?;
        }
        unmap(self.base + len, self.reserve - len);
        let (held, all) = (tag_bytes(self.mapped), tag_bytes(self.reserve));
        unmap(self.tags + held, all - held);
        if let Some(fd) = descriptor(file) {
            // SAFETY: our own descriptor, looked at just now; the child has one thread.
            unsafe { rustix::io::close(fd.as_raw_fd()) };
        }
        (self.behind, self.mapped, self.reserve) = (Behind::Private, len, len);
        Ok(())
    }

    /// In the child: unmaps the arena if nothing is in it, else makes it known as number `slot`. Whether it is still there.
    pub(crate) fn settle(&mut self, slot: usize) -> bool {
        if self.book.used_pages() == 0 {
            unmap(self.base, self.reserve);
            unmap(self.tags, tag_bytes(self.book.pages() as usize * PAGE));
            return false;
        }
        self.slot = slot;
        table::publish(slot, self.base, self.reserve, File { fd: -1, device: 0, inode: 0 });
        true
    }
}

/// Gives the memory of a stretch of an arena back to the system; it reads as zero afterwards. The stretch is not in use.
pub(crate) fn punch(address: usize, len: usize) -> bool {
    // Through the mapping and not through the descriptor, whose number may be somebody else's file by now.
    // SAFETY: taken out of the book by the caller: nobody reads it again.
    unsafe { rustix::mm::madvise(address as *mut c_void, len, Advice::LinuxRemove) }.is_ok()
}

/// Copies what there is of a stretch of a file to fresh memory.
fn copy_file(fd: BorrowedFd<'_>, at: usize, len: usize, to: usize) -> Result<(), Errno> {
    let (end, mut pos) = (at + len, at);
    while pos < end {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(pos as u64)) {
            // A hole up to the end of the file.
            Err(Errno::NXIO) => return Ok(()),
            other => (other? as usize).max(pos),
        };
        let hole = (rustix::fs::seek(fd, SeekFrom::Hole(data.min(end) as u64))? as usize).min(end);
        pos = data;
        while pos < hole {
            // SAFETY: fresh memory of the caller's, as long as the stretch.
            let target = unsafe { core::slice::from_raw_parts_mut((to + (pos - at)) as *mut u8, hole - pos) };
            match rustix::io::pread(fd, target, pos as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => pos += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        pos = pos.max(hole);
    }
    Ok(())
}

/// Copies a stretch of memory without its descriptor. Pages that the program made inaccessible are left out, instead of ending us.
fn copy_memory(from: usize, len: usize, to: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let step = (len - done).min(PAGE);
        let local = libc::iovec { iov_base: (to + done) as *mut c_void, iov_len: step };
        let remote = libc::iovec { iov_base: (from + done) as *mut c_void, iov_len: step };
        // SAFETY: the kernel copies from our own memory, where it may, to fresh memory of the caller's.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        // SAFETY: always valid.
        if n < 0 && unsafe { *libc::__errno_location() } != libc::EFAULT {
            // A filter forbids the call. Then by ourselves.
            // SAFETY: mapped for the life of the process; accessible unless the program said otherwise.
            unsafe { core::ptr::copy_nonoverlapping((from + done) as *const u8, (to + done) as *mut u8, step) };
        }
        done += step;
    }
    Ok(())
}
