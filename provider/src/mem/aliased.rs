//! Copies that `memcpy` makes twenty times too slowly (*page aliasing*).
//!
//! glibc leaves copies of some KiB to `rep movsb`. On AMD's Zen 3 that instruction goes byte by byte where what is written lies 1 to 31 bytes further in its page
//! than what is read: 15 µs for 32 KiB, and else 0.8 (of Zen 4 glibc bug 30994 tells something like it). It is no rare case. A long block of `malloc` begins 16 bytes behind
//! a page, what peers put into common memory at a page. So here is a loop for it, which is as quick as `rep movsb` is else (and as `memcpy` where that does not use it any more, from some
//! MiB on), and an answer to the question whether this machine needs it: each process tries it once, 24 copies of a page, which is some 25 µs by these figures.
//!
//! The kernel copies by the same instruction where processors say that it is good (FSRM), out of and into other processes, too: [`super::remote`] asks here, and takes it for
//! granted that what is slow is used there.
#![expect(unsafe_code)]
// UNSAFETY: a raw copy by vectors, and one by an instruction that Rust has not at all.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::vectors::by_halves;

/// Bytes of the shortest copy for which it matters: glibc makes shorter ones by itself.
pub const FROM: usize = 2 << 10;

/// Where addresses are alike that differ by a multiple of it.
const PAGE: usize = 4096;

/// The first distance within a page that is no trouble again.
const CLEAR: usize = 32;

/// Whether what is written begins a little further in its page than what is read.
#[inline]
fn is_aliased(from: usize, to: usize) -> bool {
    to.wrapping_sub(from).wrapping_sub(1) % PAGE < CLEAR - 1
}

/// Whether `rep movsb` is slow for such a copy, here.
#[inline]
pub fn is_slow(from: usize, to: usize, n: usize) -> bool {
    n >= FROM && is_aliased(from, to) && trips()
}

/// Whether this machine's `rep movsb` is slow for aliased copies: tried once.
pub fn trips() -> bool {
    #[cfg(test)]
    if let Some(so) = told::told() {
        return so;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        static TRIPS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *TRIPS.get_or_init(|| std::arch::is_x86_feature_detected!("avx") && tried())
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// What a thread is told of its machine, by tests.
#[cfg(test)]
pub mod told {
    use std::cell::Cell;

    thread_local!(static TOLD: Cell<Option<bool>> = const { Cell::new(None) });

    pub(super) fn told() -> Option<bool> {
        TOLD.get()
    }

    /// It trips, or does not; `None`: as it is. True only where there is AVX.
    pub fn tell(so: Option<bool>) {
        TOLD.set(so);
    }
}

/// How many times as long it takes for the two to differ by more than a disturbance, the best of [`TRIALS`] each: some 20 times has been seen.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TELLING: u32 = 4;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TRIALS: usize = 3;
/// Copies of a trial: a clock may take a microsecond itself.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const COPIES: usize = 4;

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn tried() -> bool {
    let mut pages = [0u8; 3 * PAGE];
    let mut best = [std::time::Duration::MAX; 2];
    for _ in 0..TRIALS {
        for (further, best) in [16, 64].into_iter().zip(&mut best) {
            let start = std::time::Instant::now();
            let (from, to) = pages.split_at_mut(PAGE);
            for _ in 0..COPIES {
                // SAFETY: a page of bytes each, both inside the array, in parts of it that do not overlap.
                unsafe { by_instruction(from.as_ptr(), to[further..][..PAGE].as_mut_ptr(), PAGE) };
            }
            *best = start.elapsed().min(*best);
        }
    }
    std::hint::black_box(&pages);
    best[0] > best[1] * TELLING
}

/// # Safety
/// As `copy_nonoverlapping`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn by_instruction(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: reads n bytes from src on and writes them from dst on, which are valid for that by our contract; the direction flag is clear, as the System V ABI has it.
    unsafe {
        core::arch::asm!("rep movsb", inout("rsi") src => _, inout("rdi") dst => _, inout("rcx") n => _, options(nostack, preserves_flags));
    }
}

/// `memcpy`, but quick also where that would be slow.
///
/// # Safety
/// As `copy_nonoverlapping`: `src..src+n` must be valid for reads, `dst..dst+n` for writes, and the two must not overlap.
#[inline]
pub unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    match n {
        // SAFETY: our contract is the same.
        FROM.. => unsafe { copy_long(src, dst, n) },
        // SAFETY: as above.
        _ => unsafe { core::ptr::copy_nonoverlapping(src, dst, n) },
    }
}

/// The same of so many bytes that a call is nothing beside them: shorter copies do not pay for the question.
///
/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_long(src: *const u8, dst: *mut u8, n: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_slow(src.addr(), dst.addr(), n) {
        // SAFETY: our contract is the same, there are enough bytes for a vector, and there is AVX where it [trips].
        unsafe { by_blocks(src, dst, n) };
        return;
    }
    // SAFETY: our contract is the same.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, n) };
}

// What the loop has copied on this thread, for tests.
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
thread_local!(static BY_LOOP: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });

/// # Safety
/// As `copy_nonoverlapping`; `n` is at least a vector, and the processor must have AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
#[inline(never)]
unsafe fn by_blocks(src: *const u8, dst: *mut u8, n: usize) {
    /// Vectors that are loaded before as many are stored: 256 bytes.
    const BLOCK: usize = 8;
    #[cfg(test)]
    BY_LOOP.set(BY_LOOP.get() + 1);
    // SAFETY: our contract is the same.
    unsafe { by_halves::<BLOCK>(src, dst, n) };
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn distances_that_are_trouble() {
        let page = 7 * PAGE;
        for (from, to, trouble) in [
            (page, page, false),
            (page, page + 1, true),
            (page, page + 16, true),
            (page + 16, 3 * PAGE, false),
            (page, 3 * PAGE + 31, true),
            (page, 3 * PAGE + 32, false),
            (page + PAGE - 8, 3 * PAGE + 8, true),
            (page + PAGE - 8, 3 * PAGE + 24, false),
            (usize::MAX, 0, true),
        ] {
            assert_eq!(is_aliased(from, to), trouble, "{from:#x} to {to:#x}");
        }
        assert!(!is_slow(0, 16, FROM - 1), "short");
    }

    proptest! {
        /// Any length, any alignment of either side: the bytes that are meant, and no others.
        #[test]
        fn copies_what_memcpy_copies(from in 0usize..70, to in 0usize..70, n in prop_oneof![0usize..300, 2000usize..20_000]) {
            let source: Vec<u8> = (0..from + n).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut got = vec![0xeeu8; to + n + 70];
            let mut want = got.clone();
            want[to..to + n].copy_from_slice(&source[from..]);
            // SAFETY: inside two separate vectors.
            unsafe { copy(source.as_ptr().add(from), got.as_mut_ptr().add(to), n) };
            prop_assert_eq!(got, want);
        }
    }

    /// The instruction that is tried copies at all.
    #[test]
    fn the_instruction_copies() {
        let source: Vec<u8> = (0..PAGE).map(|i| (i * 7) as u8).collect();
        let mut got = vec![0; PAGE + 1];
        // SAFETY: inside two separate vectors.
        unsafe { by_instruction(source.as_ptr(), got.as_mut_ptr(), PAGE) };
        assert_eq!((&got[..PAGE], got[PAGE]), (&source[..], 0));
    }

    /// What is slow here goes by the loop, and nothing else does.
    #[test]
    fn the_loop_is_for_what_is_slow() {
        if !std::arch::is_x86_feature_detected!("avx") {
            return;
        }
        let source: Vec<u8> = (0..3 * PAGE).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut got = vec![0u8; 3 * PAGE];
        // The first bytes of a page of each.
        let from = source.as_ptr().align_offset(PAGE);
        let to = got.as_ptr().align_offset(PAGE);
        for (trips, further, n, by_loop) in [
            (true, 16, FROM, true),
            (true, 31, PAGE, true),
            (true, 16, FROM - 1, false),
            (true, 32, PAGE, false),
            (true, 0, PAGE, false),
            (false, 16, PAGE, false),
        ] {
            told::tell(Some(trips));
            let before = BY_LOOP.get();
            got.fill(0);
            // SAFETY: inside two separate vectors of three pages: less than a page to the first page's beginning, and less than a page and a half from there.
            unsafe { copy(source.as_ptr().add(from), got.as_mut_ptr().add(to + further), n) };
            told::tell(None);
            assert_eq!(BY_LOOP.get() - before, usize::from(by_loop), "{trips} {further} {n}");
            let mut want = vec![0u8; 3 * PAGE];
            want[to + further..][..n].copy_from_slice(&source[from..][..n]);
            assert!(got == want, "{trips} {further} {n}");
        }
    }
}
