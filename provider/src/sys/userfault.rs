//! `userfaultfd(2)`, for its events only: who unmaps, moves or empties a watched range waits until somebody has read of it.
//!
//! Ranges are registered in write-protect mode and nothing is ever protected, so no page fault comes here. Constants and structures are
//! those of `linux/userfaultfd.h`. What it is for: `cache/`, ADR 0015.
#![expect(unsafe_code)]
// UNSAFETY: ioctls on the address space; none of them changes what memory contains or who may touch it.

use core::mem::size_of;
use core::ops::Range;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;

/// `UFFD_USER_MODE_ONLY`: allowed without privilege (Linux 5.11).
const USER_MODE_ONLY: u32 = 1;
const API: u64 = 0xAA;
const MODE_WP: u64 = 1 << 1;

const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const WP_SHMEM: u64 = 1 << 12;
const FEATURES: u64 = PAGEFAULT_FLAG_WP | EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP | WP_SHMEM;

const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

#[repr(C)]
struct Hello {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Protect {
    span: Span,
    mode: u64,
}

const DO_API: Opcode = opcode::read_write::<Hello>(0xAA, 0x3F);
const DO_REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);
const DO_UNREGISTER: Opcode = opcode::read::<Span>(0xAA, 0x01);
const DO_PROTECT: Opcode = opcode::read_write::<Protect>(0xAA, 0x06);

/// What happened to watched memory. Addresses are whole pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was unmapped, and is not watched any more.
    Unmapped(Range<usize>),
    /// It was moved: the first range is not watched any more, the second is.
    Moved(Range<usize>, Range<usize>),
    /// Its pages are about to be given back; it stays mapped and watched.
    Emptied(Range<usize>),
}

/// `struct uffd_msg`: kind, padding, three words.
const MESSAGE: usize = 32;
const BATCH: usize = 16;

/// Room for what one read brings.
pub struct Batch([u8; MESSAGE * BATCH]);

impl Default for Batch {
    fn default() -> Batch {
        Batch([0; MESSAGE * BATCH])
    }
}

/// One userfaultfd, and with it the memory of the process that opened it: in a child of that process, too. A child must not call anything
/// here.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
}

impl Userfault {
    /// Opens one; or why there is none, in words.
    pub fn open() -> Result<Userfault, String> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: what can be done with the descriptor is what the methods below do.
        let fd = unsafe { rustix::mm::userfaultfd(flags) }.map_err(|e| refused(e, "this kernel is older than Linux 5.11"))?;
        let opened = Userfault { fd };
        let mut hello = Hello { api: API, features: FEATURES, ioctls: 0 };
        opened.call::<DO_API, _>(&mut hello).map_err(|e| refused(e, NO_SHARED))?;
        if hello.features & FEATURES != FEATURES {
            return Err(refused(Errno::INVAL, NO_SHARED));
        }
        // The question that `settled` asks must have the answer that it expects.
        match opened.ask() {
            Err(Errno::INVAL) => Ok(opened),
            other => Err(format!("userfaultfd refused: it does not tell whether changes are under way ({other:?})")),
        }
    }

    fn call<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each opcode above is made from the structure that its callers pass; the kernel checks every address in it and
        // changes neither memory nor its protection.
        unsafe { ioctl(&self.fd, Updater::<OPCODE, T>::new(argument)) }
    }

    /// Watches whole pages. `EINVAL`, `EPERM`, `EBUSY`, …: memory of this kind cannot be watched.
    pub fn watch(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut register = Register { span: span(range), mode: MODE_WP, ioctls: 0 };
        self.call::<DO_REGISTER, _>(&mut register)
    }

    /// Ends that. What is not mapped any more is no error.
    pub fn unwatch(&self, range: &Range<usize>) {
        let _ = self.call::<DO_UNREGISTER, _>(&mut span(range));
    }

    /// Protecting nothing: `EAGAIN` while changes are under way, else `EINVAL`.
    fn ask(&self) -> Result<(), Errno> {
        self.call::<DO_PROTECT, _>(&mut Protect { span: Span { start: 0, len: 0 }, mode: 0 })
    }

    /// Whether no change to watched memory is under way. The kernel counts one before it lets go of the lock of the address space, that
    /// is before anybody can map something else there, until its event was read.
    pub fn settled(&self) -> bool {
        self.ask() == Err(Errno::INVAL)
    }

    /// Sleeps until there is something to read.
    pub fn wait(&self) {
        // It fails only for a signal or for want of memory; the caller's loop asks again.
        let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None);
    }

    /// Reads what happened, oldest first, and lets go of the threads that wait for that. Neither waits nor allocates.
    pub fn read<'a>(&self, batch: &'a mut Batch) -> impl Iterator<Item = Change> + 'a {
        let n = rustix::io::read(&self.fd, &mut batch.0[..]).unwrap_or(0);
        batch.0[..n].chunks_exact(MESSAGE).filter_map(change)
    }
}

fn span(range: &Range<usize>) -> Span {
    Span { start: range.start as u64, len: range.len() as u64 }
}

fn change(message: &[u8]) -> Option<Change> {
    let word = |at: usize| {
        let bytes = message[at..at + size_of::<u64>()].try_into().unwrap_or_default();
        usize::try_from(u64::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
    };
    let (a, b, c) = (word(8), word(16), word(24));
    match message[0] {
        UNMAP => Some(Change::Unmapped(a..b)),
        REMOVE => Some(Change::Emptied(a..b)),
        REMAP => Some(Change::Moved(a..a.saturating_add(c), b..b.saturating_add(c))),
        _ => None,
    }
}

const NO_SHARED: &str = "this kernel cannot watch shared memory (Linux 5.19, CONFIG_PTE_MARKER_UFFD_WP)";

fn refused(e: Errno, old: &str) -> String {
    let why = match e {
        Errno::NOSYS => "this kernel has none, or a filter hides it",
        Errno::PERM | Errno::ACCESS => "a filter (seccomp) or security module forbids it",
        Errno::INVAL => old,
        Errno::MFILE | Errno::NFILE => "no more file descriptors",
        Errno::NOMEM => "no memory",
        _ => return format!("userfaultfd refused: {e}"),
    };
    format!("userfaultfd refused: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::apart;
    use core::ptr::null_mut;
    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

    const LEN: usize = 64 << 10;
    const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    /// A mapping of a sealed memfd that must move to grow; never unmapped but by the test, and then nothing is there.
    #[expect(unsafe_code)]
    fn shared() -> usize {
        let (fd, _) = crate::sys::memfd::create("userfault", LEN, false).expect("memfd");
        let (at, reserved) = (apart::room(2 * LEN), MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
        // SAFETY: fresh memory, of which the first half becomes a mapping of the file.
        unsafe {
            rustix::mm::mmap_anonymous(at, 2 * LEN, ProtFlags::empty(), reserved).expect("room");
            rustix::mm::mmap(at, LEN, RW, MapFlags::SHARED | MapFlags::FIXED, &fd, 0).expect("map") as usize
        }
    }

    /// Does something to the mapping in another thread, and tells what was seen: whether it was settled before, while the
    /// other thread waited, and after.
    fn during(does: impl FnOnce(usize) + Send + 'static) -> (usize, Vec<Change>) {
        let fault = Userfault::open().expect("userfaultfd");
        let at = shared();
        fault.watch(&(at..at + LEN)).expect("watched");
        assert!(fault.settled());
        let thread = std::thread::spawn(move || does(at));
        let (mut seen, mut batch) = (Vec::new(), Batch::default());
        fault.wait();
        assert!(!fault.settled(), "a change is under way");
        // A move brings two events, one after the other.
        while !thread.is_finished() {
            seen.extend(fault.read(&mut batch));
            std::thread::yield_now();
        }
        thread.join().expect("joined");
        assert!(fault.settled(), "it is over");
        (at, seen)
    }

    #[test]
    #[expect(unsafe_code)]
    fn who_changes_watched_memory_waits_for_the_reader() {
        // SAFETY: (all of this test) memory that only this test knows.
        let (at, seen) = during(|at| unsafe { rustix::mm::munmap(at as *mut _, LEN) }.expect("munmap"));
        assert_eq!(seen, [Change::Unmapped(at..at + LEN)]);
        // SAFETY: as above.
        let (at, seen) = during(|at| unsafe { rustix::mm::munmap((at + 8192) as *mut _, 4096) }.expect("munmap"));
        assert_eq!(seen, [Change::Unmapped(at + 8192..at + 12288)]);
        for advice in [Advice::LinuxDontNeed, Advice::LinuxRemove] {
            // SAFETY: as above.
            let (at, seen) = during(move |at| unsafe { rustix::mm::madvise(at as *mut _, 8192, advice) }.expect("madvise"));
            assert_eq!(seen, [Change::Emptied(at..at + 8192)]);
        }
        let (at, seen) = during(|at| {
            // SAFETY: as above.
            unsafe { rustix::mm::mremap(at as *mut _, LEN, 16 * LEN, MremapFlags::MAYMOVE) }.expect("mremap");
        });
        assert!(matches!(&seen[0], Change::Moved(from, to) if *from == (at..at + LEN) && to.len() == LEN), "{seen:?}");
    }

    #[test]
    #[expect(unsafe_code)]
    fn what_cannot_be_watched_says_so() {
        let fault = Userfault::open().expect("userfaultfd");
        let file = std::fs::File::open(std::env::current_exe().expect("own path")).expect("open");
        // SAFETY: a fresh mapping.
        let private =
            unsafe { rustix::mm::mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.expect("map") as usize;
        assert!(fault.watch(&(private..private + 4096)).is_err());
        let at = shared();
        // SAFETY: memory that only this test knows.
        unsafe { rustix::mm::munmap(at as *mut _, LEN) }.expect("munmap");
        assert!(fault.watch(&(at..at + LEN)).is_err());
        let twice = Userfault::open().expect("another");
        let at = shared();
        fault.watch(&(at..at + LEN)).expect("watched");
        assert_eq!(twice.watch(&(at..at + LEN)), Err(Errno::BUSY));
        fault.unwatch(&(at..at + LEN));
        twice.watch(&(at..at + LEN)).expect("free now");
    }

    #[test]
    fn programs_that_are_started_do_not_get_it() {
        let fault = Userfault::open().expect("userfaultfd");
        assert!(rustix::io::fcntl_getfd(&fault.fd).expect("flags").contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn refusals_have_words() {
        for e in [Errno::NOSYS, Errno::PERM, Errno::INVAL, Errno::MFILE, Errno::NOMEM, Errno::IO] {
            assert!(refused(e, NO_SHARED).starts_with("userfaultfd refused: "), "{e}");
        }
    }
}
