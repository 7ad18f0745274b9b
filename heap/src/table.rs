//! Whose an address is, found without a lock: every `free` asks.
//!
//! A slot is written under the heap's lock, before the count that includes it (release, T1; readers acquire, T2). Bases and lengths do not change
//! after that while there is more than one thread: arenas stay mapped for the life of the process. A forked child rewrites its
//! slots while it has one thread.

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Arenas there can be. One is enough until it is full; when all are, the C library serves.
pub(crate) const SLOTS: usize = 64;

/// What anybody may know of an arena.
pub(crate) struct Slot {
    base: AtomicUsize,
    reserve: AtomicUsize,
    /// Bytes from the base on that are mapped.
    mapped: AtomicUsize,
    /// -1: cannot be exported.
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    generation: AtomicU64,
}

/// A descriptor and the file that it must lead to: programs close descriptors that they did not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// As it was when we opened it.
    pub(crate) fd: i32,
    /// Of the file.
    pub(crate) device: u64,
    /// Of the file.
    pub(crate) inode: u64,
}

/// What the table says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Which arena.
    pub(crate) slot: usize,
    /// Its first address.
    pub(crate) base: usize,
    /// Its size, and its file's.
    pub(crate) reserve: usize,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        base: AtomicUsize::new(0),
        reserve: AtomicUsize::new(0),
        mapped: AtomicUsize::new(0),
        fd: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        generation: AtomicU64::new(0),
    }
}; SLOTS];

static COUNT: AtomicUsize = AtomicUsize::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The arena in which `address` lies.
pub(crate) fn find(address: usize) -> Option<Found> {
    // T2
    for (slot, s) in TABLE[..COUNT.load(Ordering::Acquire)].iter().enumerate() {
        let (base, reserve) = (s.base.load(Ordering::Relaxed), s.reserve.load(Ordering::Relaxed));
        if address.wrapping_sub(base) < reserve {
            return Some(Found { slot, base, reserve });
        }
    }
    None
}

/// As [`find`], if the address can be exported: with the descriptor, which has not been looked at, and the generation.
pub(crate) fn exported(address: usize) -> Option<(Found, File, u64)> {
    let found = find(address)?;
    let s = &TABLE[found.slot];
    let fd = s.fd.load(Ordering::Relaxed);
    if fd < 0 || address - found.base >= s.mapped.load(Ordering::Relaxed) {
        return None;
    }
    let file = File { fd, device: s.device.load(Ordering::Relaxed), inode: s.inode.load(Ordering::Relaxed) };
    Some((found, file, s.generation.load(Ordering::Relaxed)))
}

/// Makes a new arena known, in the next slot. Under the heap's lock.
pub(crate) fn publish(slot: usize, base: usize, reserve: usize, file: File) {
    let s = &TABLE[slot];
    s.base.store(base, Ordering::Relaxed);
    s.reserve.store(reserve, Ordering::Relaxed);
    s.mapped.store(0, Ordering::Relaxed);
    s.fd.store(file.fd, Ordering::Relaxed);
    s.device.store(file.device, Ordering::Relaxed);
    s.inode.store(file.inode, Ordering::Relaxed);
    s.generation.store(GENERATION.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    // T1
    COUNT.store(slot + 1, Ordering::Release);
}

/// More of the arena is mapped. Under the heap's lock.
pub(crate) fn mapped(slot: usize, bytes: usize) {
    TABLE[slot].mapped.store(bytes, Ordering::Relaxed);
}

/// Forgets all arenas. In a forked child that has one thread, before it publishes what is left.
pub(crate) fn forget_all() {
    COUNT.store(0, Ordering::Relaxed);
    for s in &TABLE {
        s.reserve.store(0, Ordering::Relaxed);
        s.fd.store(-1, Ordering::Relaxed);
    }
}
