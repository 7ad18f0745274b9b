//! Which file backs a range of our addresses, at which offset, and a descriptor of it: without privileges.
//!
//! `PROCMAP_QUERY` on `/proc/self/maps` (Linux 6.11) or that file's text says which mapping it is; its file is found among
//! `/proc/self/fd` by device and inode. Microseconds: `cache/exports.rs` keeps the answers.
#![expect(unsafe_code)]
// UNSAFETY: an ioctl that fills in a structure.

use core::mem::size_of;
use core::ops::Range;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `struct procmap_query` (linux/fs.h). All zero but size and address: the mapping that covers the address, no name, no build id.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
/// `PROCMAP_QUERY_VMA_WRITABLE`, `PROCMAP_QUERY_VMA_SHARED`.
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;
/// `TMPFS_MAGIC`: memfds without huge pages.
const TMPFS: i64 = 0x0102_1994;

/// A file, as long as somebody has it open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
}

impl FileId {
    fn of(stat: &rustix::fs::Stat) -> FileId {
        FileId { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev), inode: stat.st_ino }
    }
}

/// One mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its addresses.
    pub range: Range<usize>,
    /// Of its first byte in the file.
    pub offset: u64,
    /// Whether stores go to the file.
    pub shared: bool,
    /// Whether this process may store there.
    pub writable: bool,
    /// The file; `None`: there is none.
    pub file: Option<FileId>,
}

/// Why a range cannot be given to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Nothing is mapped there, or not all of it by one mapping.
    #[error("it does not lie in one mapping")]
    NotOne,
    /// Memory that belongs to no file, or a private view of one.
    #[error("it is private memory: no other process can map it")]
    Private,
    /// The file is open nowhere in this process.
    #[error("no descriptor of its file is open in this process")]
    NoDescriptor,
    /// The file is no memfd of ordinary pages.
    #[error("its file is no memfd")]
    NoMemfd,
    /// The file could get shorter under a peer that has mapped it.
    #[error("its file is not sealed against shrinking (F_SEAL_SHRINK)")]
    NotSealed,
    /// The file ends before the range does.
    #[error("its file is shorter than the mapping")]
    Short,
    /// It cannot be watched, or too much is.
    #[error("the kernel does not tell of changes to it")]
    Unwatched,
    /// /proc is missing or forbidden, no descriptors, …
    #[error("/proc cannot be asked: {0}")]
    Kernel(Errno),
}

/// The mappings of this process. Must not be used in a child: it shows the parent's.
#[derive(Debug)]
pub struct Maps {
    fd: OwnedFd,
    /// Whether the kernel answers queries.
    query: bool,
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // Non-blocking: it may be something else by now.
    rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())
}

impl Maps {
    /// Opens the list.
    pub fn open() -> Result<Maps, Errno> {
        let mut maps = Maps { fd: open("/proc/self/maps", OFlags::RDONLY)?, query: true };
        let here = core::ptr::from_ref(&maps) as usize;
        maps.query = matches!(maps.ask(here), Ok(Some(area)) if area.range.contains(&here));
        Ok(maps)
    }

    /// The mapping that an address lies in.
    pub fn at(&self, address: usize) -> Result<Option<Area>, Errno> {
        if self.query { self.ask(address) } else { search(address) }
    }

    fn ask(&self, address: usize) -> Result<Option<Area>, Errno> {
        let mut q = Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
        // SAFETY: the opcode is made from the structure; with sizes of 0 the kernel writes nothing through the pointers in it.
        match unsafe { ioctl(&self.fd, Updater::<QUERY, Query>::new(&mut q)) } {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        }
        let file = (q.inode != 0).then_some(FileId { major: q.major, minor: q.minor, inode: q.inode });
        let [shared, writable] = [SHARED, WRITABLE].map(|bit| q.flags & bit != 0);
        Ok(Some(Area { range: q.start as usize..q.end as usize, offset: q.offset, shared, writable, file }))
    }

    /// The mapping around `range`, if a peer might be given it: shared, of a file, and all of the range in it.
    pub fn around(&self, range: &Range<usize>) -> Result<(Area, FileId), Why> {
        let area = self.at(range.start).map_err(Why::Kernel)?.ok_or(Why::NotOne)?;
        match area.file {
            Some(file) if area.shared && range.end <= area.range.end => Ok((area, file)),
            Some(_) if area.shared => Err(Why::NotOne),
            _ => Err(Why::Private),
        }
    }

    /// Whether all of a range is mapped, and private memory of no file: nobody but this process can change which pages are there.
    pub fn is_own(&self, range: &Range<usize>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.at(at) {
                Ok(Some(area)) if !area.shared && area.file.is_none() => at = area.range.end,
                _ => return false,
            }
        }
        true
    }
}

/// `search`, over the text of /proc/self/maps.
fn search(address: usize) -> Result<Option<Area>, Errno> {
    let text = std::fs::read_to_string("/proc/self/maps").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok(text.lines().filter_map(parse).find(|area| area.range.contains(&address)))
}

/// `7f0123456000-7f0123458000 rw-s 00001000 00:01 4711   /memfd:name (deleted)`
fn parse(line: &str) -> Option<Area> {
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let may = words.next()?;
    let (shared, writable) = (may.ends_with('s'), may.contains('w'));
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok()?;
    let file = FileId { major: hex(major)? as u32, minor: hex(minor)? as u32, inode };
    let range = hex(start)? as usize..hex(end)? as usize;
    Some(Area { range, offset, shared, writable, file: (inode != 0).then_some(file) })
}

/// A descriptor, for reading, of a file of which one is open in this process; of at least `bytes` bytes, which nobody can shorten.
pub fn descriptor(file: FileId, bytes: u64) -> Result<OwnedFd, Why> {
    let list = std::fs::read_dir("/proc/self/fd").map_err(|e| Why::Kernel(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    let mut refusal = Why::NoDescriptor;
    for entry in list.flatten() {
        let name = entry.file_name();
        let Some(path) = name.to_str().map(|n| format!("/proc/self/fd/{n}")) else { continue };
        if rustix::fs::stat(&path).is_ok_and(|stat| FileId::of(&stat) == file) {
            match open(&path, OFlags::RDONLY).map_err(Why::Kernel).and_then(|fd| check(&fd, file, bytes).map(|()| fd)) {
                Ok(fd) => return Ok(fd),
                Err(why) => refusal = why,
            }
        }
    }
    Err(refusal)
}

/// Whether a descriptor is of this file, and of one that can be given away: at least `bytes` bytes that stay. (What was just opened may
/// have become another file meanwhile.)
pub fn check(fd: &OwnedFd, file: FileId, bytes: u64) -> Result<(), Why> {
    let stat = rustix::fs::fstat(fd).map_err(Why::Kernel)?;
    if FileId::of(&stat) != file {
        return Err(Why::NoDescriptor);
    }
    if rustix::fs::fstatfs(fd).map_err(Why::Kernel)?.f_type as i64 != TMPFS {
        return Err(Why::NoMemfd);
    }
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        Ok(_) => return Err(Why::NotSealed),
        Err(_) => return Err(Why::NoMemfd),
    }
    // Read after the seal: it cannot become less.
    let size = rustix::fs::fstat(fd).map_err(Why::Kernel)?.st_size;
    if u64::try_from(size).is_ok_and(|size| size >= bytes) { Ok(()) } else { Err(Why::Short) }
}

/// The same file for writing, if it may be written: `EPERM` if it is sealed against that, for all or for all but its creator.
pub fn writable(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let fd = fd.as_fd();
    if rustix::fs::fcntl_get_seals(fd)?.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(Errno::PERM);
    }
    open(&format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDWR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;
    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags};

    const LEN: usize = 64 << 10;
    const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    fn memfd(seals: SealFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create("backing", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&fd, LEN as u64).expect("size");
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seal");
        fd
    }

    /// Bytes from the second page on.
    fn map(fd: &OwnedFd, flags: MapFlags) -> usize {
        map_as(fd, flags, RW)
    }

    #[expect(unsafe_code)]
    fn map_as(fd: &OwnedFd, flags: MapFlags, may: ProtFlags) -> usize {
        // SAFETY: a fresh mapping.
        unsafe { rustix::mm::mmap(null_mut(), LEN - 4096, may, flags, fd, 4096) }.expect("map") as usize
    }

    /// What both ways to ask say.
    fn areas(address: usize) -> Option<Area> {
        let maps = Maps::open().expect("maps");
        let (asked, read) = (maps.at(address).expect("asked"), search(address).expect("read"));
        assert_eq!(asked, read);
        asked
    }

    fn whole(address: usize) -> Result<OwnedFd, Why> {
        let (area, file) = Maps::open().expect("maps").around(&(address..address + LEN - 4096))?;
        descriptor(file, area.offset + area.range.len() as u64)
    }

    #[test]
    fn a_sealed_memfd_is_found_and_nothing_else() {
        let fd = memfd(SealFlags::SHRINK);
        let at = map(&fd, MapFlags::SHARED);
        let area = areas(at + 5).expect("mapped");
        assert!(area.range.contains(&at) && area.shared && area.writable && area.offset <= 4096);
        let found = whole(at).expect("found");
        assert_eq!(rustix::fs::fstat(&found).expect("stat").st_ino, rustix::fs::fstat(&fd).expect("stat").st_ino);
        assert_eq!(rustix::io::write(&found, b"x"), Err(Errno::BADF), "for reading only");
        assert_eq!(rustix::io::write(writable(&found).expect("for writing"), b"x"), Ok(1));
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).expect("seal");
        assert_eq!(writable(&found).expect_err("sealed"), Errno::PERM);
        let reader = map_as(&fd, MapFlags::SHARED, ProtFlags::READ);
        assert!(areas(reader).is_some_and(|area| area.shared && !area.writable));
        assert_eq!(whole(map(&fd, MapFlags::PRIVATE)).expect_err("private"), Why::Private);
        let orphan = {
            let closed = memfd(SealFlags::SHRINK);
            map(&closed, MapFlags::SHARED)
        };
        assert_eq!(whole(orphan).expect_err("closed"), Why::NoDescriptor);
        let loose = memfd(SealFlags::GROW);
        assert_eq!(whole(map(&loose, MapFlags::SHARED)).expect_err("unsealed"), Why::NotSealed);
        assert_eq!(whole(core::ptr::from_ref(&loose) as usize).expect_err("stack"), Why::Private);
        assert_eq!(whole(4096).expect_err("nothing"), Why::NotOne);
        assert_eq!(descriptor(area.file.expect("a file"), LEN as u64 + 1).expect_err("short"), Why::Short);
        assert!(areas(4096).is_none());
        rustix::fs::fcntl_add_seals(&loose, SealFlags::SHRINK).expect("seal");
        let at = map(&loose, MapFlags::SHARED);
        assert!(whole(at).is_ok(), "sealed by now");
        let maps = Maps::open().expect("maps");
        assert_eq!(maps.around(&(at..at + LEN)).expect_err("a page more"), Why::NotOne);
        assert_eq!(maps.around(&(at..at + LEN - 4096)).expect("just that").0.range.end, at + LEN - 4096);
        let settled = memfd(SealFlags::SHRINK | SealFlags::WRITE);
        assert_eq!(writable(&settled).expect_err("sealed for all"), Errno::PERM);
        let maps = Maps::open().expect("maps");
        assert!(!maps.is_own(&(reader..reader + 4096)) && !maps.is_own(&(4096..8192)), "shared, and nothing");
        assert!(
            !maps.is_own(&{
                let copy = map(&fd, MapFlags::PRIVATE);
                copy..copy + 4096
            }),
            "of a file"
        );
        // SAFETY: fresh mappings, and a hole into one of them.
        #[expect(unsafe_code)]
        let [own, shared] = unsafe {
            let map = |flags| rustix::mm::mmap_anonymous(null_mut(), 3 * 4096, RW, flags).expect("map");
            let own = map(MapFlags::PRIVATE);
            rustix::mm::mprotect(own.byte_add(4096), 4096, rustix::mm::MprotectFlags::READ).expect("protect");
            [own as usize, map(MapFlags::SHARED) as usize]
        };
        assert!(maps.is_own(&(own..own + 3 * 4096)), "three mappings");
        assert!(!maps.is_own(&(shared..shared + 4096)), "children have it, too");
    }

    /// Huge pages can run out: a hole in such a file would be a SIGBUS for whoever maps it.
    #[test]
    fn files_of_huge_pages_are_no_memfds_of_ours() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = rustix::fs::memfd_create("huge", flags) else {
            return println!("skipped: no huge pages here");
        };
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
        let file = FileId::of(&rustix::fs::fstat(&fd).expect("stat"));
        assert_eq!(descriptor(file, 0).expect_err("huge"), Why::NoMemfd);
    }
}
