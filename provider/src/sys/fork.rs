//! Noticing that this process is a fork of the one that opened the provider.
//!
//! One private page is marked `MADV_WIPEONFORK` (madvise(2), Linux 4.14): the parent sees 1 in it, any child, however it was
//! made (fork, raw clone), sees 0. The check is one load; nothing is registered with libc. What a child by fork must not keep: [`inherited`](super::inherited).
//!
//! [`wiped`] gives more such memory to whoever wants to be found empty in a child.
#![expect(unsafe_code)]
// UNSAFETY: maps the page and loads from it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;

enum Mark {
    /// The page.
    Page(&'static AtomicU32),
    /// Kernels without MADV_WIPEONFORK: compare process ids (a syscall per check).
    Pid(u32),
}

static MARK: OnceLock<Mark> = OnceLock::new();

/// Zeroed memory that reads as zero again in any child. Never unmapped.
fn pages(len: usize) -> Option<*mut core::ffi::c_void> {
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let p =
        unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let p = p.ok()?;
    // SAFETY: advises on the pages just mapped.
    unsafe { rustix::mm::madvise(p, len, Advice::LinuxWipeOnFork) }.is_ok().then_some(p)
}

fn mark() -> Mark {
    let Some(p) = pages(4096) else { return Mark::Pid(std::process::id()) };
    // SAFETY: aligned, mapped for the life of the process, only ever accessed as this atomic.
    let word: &'static AtomicU32 = unsafe { &*p.cast::<AtomicU32>() };
    word.store(1, Ordering::Relaxed);
    Mark::Page(word)
}

/// So many words, all 0, which are 0 again in any child; `None` where the kernel cannot do that. They stay for the life of the process.
pub fn wiped(words: usize) -> Option<&'static [AtomicU64]> {
    let p = pages(words.checked_mul(size_of::<AtomicU64>())?)?;
    // SAFETY: aligned, zeroed, that long, mapped for the life of the process, only ever accessed as these atomics.
    Some(unsafe { core::slice::from_raw_parts(p.cast::<AtomicU64>(), words) })
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

/// Runs a test that forks in a process of its own: children have the descriptors of all tests of theirs. `name`: the test, with its modules.
#[cfg(test)]
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "RUSTMX_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
    let ended = again.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().expect("a copy of this program");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&ended.stderr));
}
