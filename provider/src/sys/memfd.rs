//! Sealed, reserved, nameless shared memory: `memfd_create(2)`, `fallocate(2)`, `F_ADD_SEALS` (fcntl(2)).
//!
//! What is created here cannot shrink (no SIGBUS for those who map it), has its pages reserved (no SIGBUS on a full
//! machine), and, if `exclusive`, cannot be mapped for writing by anybody but its creator. And memory of this process alone, whose pages
//! come when they are touched.
#![expect(unsafe_code)]
// UNSAFETY: mmap, munmap and madvise.

use super::limits;
use crate::mem::shared::Backing;
use core::ptr::NonNull;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::sync::Arc;

/// What fstatfs(2) says of a memfd without huge pages of its own (TMPFS_MAGIC).
const TMPFS: i64 = 0x0102_1994;

/// A mapping that lasts as long as this value.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: owns its mapping; accessed only through SharedMem's atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

// SAFETY: page-aligned, mapped until drop; neither shrinkable (sealed) nor unmapped by anybody else.
unsafe impl Backing for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        self.len
    }
    fn writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child does not have the mapping (MADV_DONTFORK); something else may be there.
        if super::fork::in_child() {
            return;
        }
        // SAFETY: mapped by `map_as` or `private` below with this base and length, and no view outlives the Arc around us.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(fd: impl AsFd, len: usize, writable: bool) -> Result<Arc<Mapping>, Errno> {
    map_as(fd, 0, len, if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }, writable)
}

fn map_as(fd: impl AsFd, offset: u64, len: usize, prot: ProtFlags, writable: bool) -> Result<Arc<Mapping>, Errno> {
    // SAFETY: a fresh shared mapping at an address of the kernel's choice disturbs nothing.
    let p = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset) }?;
    // SAFETY: advises on the mapping just made. A child must not share (and then scribble on) our rings.
    let _ = unsafe { rustix::mm::madvise(p, len, Advice::LinuxDontFork) };
    let base = NonNull::new(p.cast()).ok_or(Errno::NOMEM)?;
    Ok(Arc::new(Mapping { base, len, writable }))
}

/// `len` zeroed bytes of this process alone. A page takes memory from its first use on: not so what the allocator zeroes, which all of it is, nor
/// huge pages, which would bring in the neighbours.
pub fn private(len: usize) -> Result<Arc<Mapping>, Errno> {
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let p =
        unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    // SAFETY: advises on the mapping just made.
    let _ = unsafe { rustix::mm::madvise(p, len, Advice::LinuxNoHugepage) };
    let base = NonNull::new(p.cast()).ok_or(Errno::NOMEM)?;
    Ok(Arc::new(Mapping { base, len, writable: true }))
}

/// Creates `len` zeroed bytes (whole pages), mapped for writing here. With `exclusive` nobody else can ever map it
/// writable (Linux 5.1 and later; older kernels leave that promise out). The descriptor is for passing on.
pub fn create(name: &str, len: usize, exclusive: bool) -> Result<(OwnedFd, Arc<Mapping>), Errno> {
    limits::may_be_as_long(len as u64)?;
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    // Reserve now: a tmpfs without room must say so here, not by SIGBUS at the first store. Its room is memory.
    let reserved = rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64);
    reserved.map_err(|why| if why == Errno::NOSPC { Errno::NOMEM } else { why })?;
    let mapping = map(&fd, len, true)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    if exclusive && rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::FUTURE_WRITE | SealFlags::SEAL).is_ok() {
        return Ok((fd, mapping));
    }
    rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::SEAL)?;
    Ok((fd, mapping))
}

/// Maps what a peer sent: exactly `len` bytes, sealed against shrinking, or `EINVAL`.
pub fn attach(fd: impl AsFd, len: usize, writable: bool) -> Result<Arc<Mapping>, Errno> {
    let fd = fd.as_fd();
    if check(fd)? != len as u64 {
        return Err(Errno::INVAL);
    }
    map(fd, len, writable)
}

/// [`attach`] by pages that can be written to, if the seals allow that, else for reading only (`docs/adr/0004-ring.md`, "Pages that the reader could
/// write").
pub fn attach_open(fd: impl AsFd, len: usize) -> Result<Arc<Mapping>, Errno> {
    let fd = fd.as_fd();
    if check(fd)? != len as u64 {
        return Err(Errno::INVAL);
    }
    match map(fd, len, true) {
        // Sealed, or a descriptor for reading only.
        Err(Errno::PERM | Errno::ACCESS) => map(fd, len, false),
        mapped => mapped,
    }
}

/// [`attach`] for part of a file that is mostly holes: no page of it is locked, though the process locks all that it maps (mlockall(2)).
pub fn attach_sparse(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> Result<Arc<Mapping>, Errno> {
    let fd = fd.as_fd();
    if offset.checked_add(len as u64).is_none_or(|end| end > check(fd).unwrap_or(0)) {
        return Err(Errno::INVAL);
    }
    // Pages that nobody may touch are not brought in by a lock; once there is none, access brings none in.
    let mapping = map_as(fd, offset, len, ProtFlags::empty(), writable)?;
    let at = mapping.base.as_ptr().cast();
    // SAFETY: the mapping that was just made, whole; nobody else knows it yet.
    unsafe {
        let _ = rustix::mm::munlock(at, len);
        let access = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        rustix::mm::mprotect(at, len, access)?;
    }
    Ok(mapping)
}

/// A page of a file by which `len` bytes of it can be mapped at any time, without a descriptor.
#[derive(Debug)]
pub struct Anchor {
    page: Arc<Mapping>,
    len: usize,
}

/// [`attach_sparse`], later and as often as wanted.
pub fn anchor(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> Result<Anchor, Errno> {
    const PAGE: usize = 4096;
    let fd = fd.as_fd();
    if len == 0 || offset.checked_add(len as u64).is_none_or(|end| end > check(fd).unwrap_or(0)) {
        return Err(Errno::INVAL);
    }
    Ok(Anchor { page: attach_sparse(fd, offset, len.min(PAGE), writable)?, len })
}

impl Anchor {
    /// Bytes that it stands for.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Maps them.
    pub fn attach(&self) -> Result<Arc<Mapping>, Errno> {
        let Mapping { base, writable, .. } = *self.page;
        // SAFETY: an old size of nothing leaves the page as it is, and makes another mapping of the same file, from the same byte on, at an address of the kernel's
        // choice (mremap(2)). The file is so long, and cannot become shorter: `anchor` checked that. The new mapping is as little locked or inherited as the page.
        let p = unsafe { rustix::mm::mremap(base.as_ptr().cast(), 0, self.len, rustix::mm::MremapFlags::MAYMOVE) }?;
        let base = NonNull::new(p.cast()).ok_or(Errno::NOMEM)?;
        Ok(Arc::new(Mapping { base, len: self.len, writable }))
    }
}

/// Bytes that a file has and cannot lose.
fn check(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    // Huge pages of their own file system can run out, and then a hole in such a file is a SIGBUS here.
    let plain = rustix::fs::fstatfs(fd)?.f_type == TMPFS;
    if !plain || !rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
        return Err(Errno::INVAL);
    }
    // Read after the seal: it cannot become less.
    u64::try_from(rustix::fs::fstat(fd)?.st_size).ok().filter(|size| *size > 0).ok_or(Errno::INVAL)
}

/// Looks among the descriptors of process `pid` for memory that [`create`] made as `name`, at most `max` bytes of it and whole
/// lines, and maps for reading the first one that `fits`. `EACCES` if we may not look into that process.
pub fn find(pid: i32, name: &str, max: usize, fits: impl Fn(&Arc<Mapping>) -> bool) -> Result<Option<Arc<Mapping>>, Errno> {
    let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let link = format!("/memfd:{name} (deleted)");
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(errno)? {
        let path = entry.map_err(errno)?.path();
        match std::fs::read_link(&path) {
            Ok(to) if to.as_os_str() == link.as_str() => {}
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return Err(Errno::ACCESS),
            // Something else, or closed meanwhile.
            _ => continue,
        }
        // Non-blocking: it may have become something else.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(e @ (Errno::ACCESS | Errno::PERM | Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(e),
            Err(_) => continue,
        };
        let len = rustix::fs::fstat(&fd)?.st_size;
        let Some(len) = usize::try_from(len).ok().filter(|n| *n <= max && n.is_multiple_of(64)) else { continue };
        if let Ok(mapping) = attach(&fd, len, false)
            && fits(&mapping)
        {
            return Ok(Some(mapping));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::atomic::{Ordering, Words};
    use crate::mem::shared::SharedMem;

    #[test]
    fn a_reader_sees_stores_and_cannot_get_write_access() {
        let (fd, mine) = create("test", 8192, true).expect("memfd");
        let theirs = attach(&fd, 8192, false).expect("attach");
        SharedMem::new(mine).word(3).store(42, Ordering::Release);
        assert_eq!(SharedMem::new(theirs).word(3).load(Ordering::Acquire), 42);
        assert_eq!(attach(&fd, 8192, true).expect_err("sealed"), Errno::PERM);
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(attach(&fd, 4096, false).expect_err("size"), Errno::INVAL);
    }

    #[test]
    fn an_open_reader_has_pages_that_it_could_write_unless_they_are_sealed() {
        // proc(5): the flags of the mapping at an address.
        let flags = |at: usize| {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            let line = maps.lines().find(|l| l.starts_with(&format!("{at:x}-"))).expect("mapped").to_owned();
            line.split_whitespace().nth(1).expect("flags").to_owned()
        };
        for (exclusive, expected) in [(false, "rw-s"), (true, "r--s")] {
            let (fd, mine) = create("test", 8192, exclusive).expect("memfd");
            let theirs = attach_open(&fd, 8192).expect("attach");
            SharedMem::new(mine).word(3).store(42, Ordering::Release);
            assert_eq!(theirs.writable(), !exclusive);
            assert_eq!(flags(theirs.base().addr().get()), expected);
            assert_eq!(SharedMem::new(theirs).word(3).load(Ordering::Acquire), 42);
            assert_eq!(attach_open(&fd, 4096).expect_err("size"), Errno::INVAL);
        }
        let loose = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&loose, 4096).expect("size");
        assert_eq!(attach_open(&loose, 4096).expect_err("unsealed"), Errno::INVAL);
    }

    #[test]
    fn a_part_of_a_file_is_mapped_where_it_is() {
        let (fd, mine) = create("test", 5 * 4096, false).expect("memfd");
        let mine = SharedMem::new(mine);
        (0..5).for_each(|page| mine.word(page * 512).store(page as u64, Ordering::Relaxed));
        for (offset, len) in [(0u64, 5 * 4096), (4096, 8192), (16384, 4096)] {
            let part = SharedMem::new(attach_sparse(&fd, offset, len, true).expect("part"));
            assert_eq!((part.bytes(), part.word(0).load(Ordering::Relaxed)), (len, offset / 4096));
        }
        for (offset, len) in [(4096u64, 5 * 4096), (100, 4096), (5 * 4096, 1), (u64::MAX - 4095, 8192), (0, 0)] {
            assert_eq!(attach_sparse(&fd, offset, len, false).expect_err("no part"), Errno::INVAL, "{offset} {len}");
        }
        let loose = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&loose, 4096).expect("size");
        assert_eq!(attach_sparse(&loose, 0, 4096, false).expect_err("unsealed"), Errno::INVAL);
    }

    #[test]
    fn an_anchor_maps_again_and_again_without_a_descriptor() {
        let (fd, mine) = create("test", 5 * 4096, false).expect("memfd");
        let mine = SharedMem::new(mine);
        let anchor = anchor(&fd, 4096, 4 * 4096, true).expect("anchor");
        drop(fd);
        for round in 0..3u64 {
            (1..5).for_each(|page| mine.word(page * 512).store(100 * round + page as u64, Ordering::Relaxed));
            let all = SharedMem::new(anchor.attach().expect("again"));
            assert_eq!((all.bytes(), all.is_writable()), (4 * 4096, true));
            assert!((0..4).all(|page| all.word(page * 512).load(Ordering::Relaxed) == 100 * round + page as u64 + 1));
            all.word(8).store(round, Ordering::Relaxed);
            assert_eq!(mine.word(512 + 8).load(Ordering::Relaxed), round);
        }
        let twice = [anchor.attach().expect("one"), anchor.attach().expect("two")];
        assert_ne!(twice[0].base, twice[1].base);
        // As every mapping of ours: a child does not have it.
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let flags = maps.lines().skip_while(|l| !l.starts_with(&format!("{:x}-", twice[0].base.as_ptr() as usize)));
        assert!(flags.clone().find_map(|l| l.strip_prefix("VmFlags:")).is_some_and(|f| f.split_whitespace().any(|f| f == "dc")));
        let (fd, _) = create("test", 8192, false).expect("memfd");
        for (offset, len) in [(0u64, 3 * 4096), (4096, 8192), (0, 0), (u64::MAX - 4095, 8192)] {
            assert_eq!(super::anchor(&fd, offset, len, false).expect_err("no part"), Errno::INVAL, "{offset} {len}");
        }
    }

    #[test]
    fn an_unsealed_descriptor_is_refused() {
        let fd = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&fd, 4096).expect("size");
        assert_eq!(attach(&fd, 4096, false).expect_err("unsealed"), Errno::INVAL);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(huge) = rustix::fs::memfd_create("t", flags) else {
            return println!("the rest is skipped: no huge pages here");
        };
        rustix::fs::ftruncate(&huge, 2 << 20).expect("size");
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).expect("seal");
        assert_eq!(attach(&huge, 2 << 20, false).expect_err("it may have no pages"), Errno::INVAL);
    }

    #[test]
    fn nobody_changes_what_was_created() {
        for exclusive in [true, false] {
            let (fd, _mine) = create("test", 4096, exclusive).expect("memfd");
            for len in [0, 8192] {
                assert_eq!(rustix::fs::ftruncate(&fd, len), Err(Errno::PERM), "{len} bytes, exclusive {exclusive}");
            }
            assert_eq!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM), "exclusive {exclusive}");
        }
    }

    #[test]
    fn only_what_has_the_name_and_fits_is_found() {
        let (name, pid) = (format!("test-{:x}", crate::sys::host::random()), std::process::id() as i32);
        let found = |name: &str, max| find(pid, name, max, |_| true).expect("looked").map(|found| found.len);
        assert_eq!(found(&name, 1 << 20), None);
        let (_odd, _) = create(&name, 100, false).expect("memfd");
        assert_eq!(found(&name, 1 << 20), None, "not whole lines");
        let (_fd, _) = create(&name, 8192, false).expect("memfd");
        assert_eq!((found(&name, 8191), found(&name, 8192)), (None, Some(8192)));
        assert_eq!(found(&format!("{name}x"), 1 << 20), None);
        assert!(find(pid, &name, 8192, |_| false).expect("looked").is_none());
    }

    /// What is inherited could be written to by who does not know that he is another process now.
    #[test]
    fn children_do_not_get_it() {
        let (_fd, mine) = create("test", 8192, false).expect("memfd");
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let place = format!("{:x}-{:x} ", mine.base.as_ptr() as usize, mine.base.as_ptr() as usize + mine.len);
        let flags = maps.lines().skip_while(|l| !l.starts_with(&place)).find_map(|l| l.strip_prefix("VmFlags:"));
        assert!(flags.is_some_and(|flags| flags.split_whitespace().any(|f| f == "dc")), "{flags:?}");
    }
}
