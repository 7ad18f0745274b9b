//! Noticing that this process is a fork of the one that opened the provider.
//!
//! One private page is marked `MADV_WIPEONFORK` (madvise(2), Linux 4.14): the parent sees 1 in it, any child, however it was
//! made (fork, raw clone), sees 0. The check is one load; nothing is registered with libc.
#![expect(unsafe_code)]
// UNSAFETY: maps the page and loads from it.

use core::sync::atomic::{AtomicU32, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;

enum Mark {
    /// The page.
    Page(&'static AtomicU32),
    /// Kernels without MADV_WIPEONFORK: compare process ids (a syscall per check).
    Pid(u32),
}

static MARK: OnceLock<Mark> = OnceLock::new();

fn mark() -> Mark {
    let pid = || Mark::Pid(std::process::id());
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let Ok(p) = (unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }) else {
        return pid();
    };
    // SAFETY: advises on the page just mapped, which is never unmapped.
    if unsafe { rustix::mm::madvise(p, 4096, Advice::LinuxWipeOnFork) }.is_err() {
        return pid();
    }
    // SAFETY: aligned, mapped for the life of the process, only ever accessed as this atomic.
    let word: &'static AtomicU32 = unsafe { &*p.cast::<AtomicU32>() };
    word.store(1, Ordering::Relaxed);
    Mark::Page(word)
}

/// The word that is 0 in a child; where the kernel cannot do that, always.
static ALWAYS: AtomicU32 = AtomicU32::new(0);

/// What a domain looks at in every call.
#[derive(Clone, Copy)]
pub struct Owner(&'static AtomicU32);

/// Remembers this process as the owner. Called when a domain is opened.
pub fn own() -> Owner {
    match MARK.get_or_init(mark) {
        Mark::Page(word) => Owner(word),
        Mark::Pid(_) => Owner(&ALWAYS),
    }
}

impl Owner {
    /// Whether this process is a child of the owner.
    #[inline]
    pub fn is_elsewhere(self) -> bool {
        self.0.load(Ordering::Relaxed) == 0 && in_child()
    }
}

/// Whether this is a child of the owner. False before [`own`].
#[cold]
pub fn in_child() -> bool {
    match MARK.get() {
        Some(Mark::Page(word)) => word.load(Ordering::Relaxed) == 0,
        Some(Mark::Pid(pid)) => *pid != std::process::id(),
        None => false,
    }
}
