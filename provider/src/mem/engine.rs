//! How bytes are copied in user space: by `memcpy`, by loads whose lines are asked for well before (*ahead*), by loads and stores of whole lines (*vectors*), in two stretches side by side (*abreast*), or by
//! stores that go past the caches (*streaming*, *non-temporal*).
//!
//! A core that reads what another one has just written waits for each line. Its own prefetchers ask for the next ones, on some processors for fewer than can be under
//! way at once: requests into the second-level cache are then quicker. On others it is the number of loads and stores under way that is short, and one of each for a
//! line is quicker.
//!
//! Streaming stores do not read a line before they write it, and leave the caches to others; what was written must then be fetched from
//! memory by whoever reads it. Whether that pays is the chooser's question (`docs/adr/0018-copy-engines.md`); here it is only done right.
//!
//! **Order.** Streaming stores are weakly ordered, also on x86-64: a later store, even a release, may be seen before them. So
//! [`Engine::copy`] ends with `sfence`, which orders all of them before every later store of this thread. Whoever
//! publishes that a copy is done (the word COPIED of `shm/split.rs`, a FIN in a ring, a completion) may then do it as after any other copy.
#![expect(unsafe_code)]
// UNSAFETY: raw copies, some of them by instructions that Rust has only as intrinsics.

use super::aliased;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::vectors;

/// A way to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// `memcpy`, and our own loop where that is slow ([`aliased`]).
    #[default]
    Plain,
    /// With lines asked for ahead, where the machine can do that (x86-64 with AVX) and the copy is long enough, else plain. For what is in another core's cache.
    Ahead,
    /// By vectors of a line each, where the machine has them (x86-64 with AVX-512) and the copy is long enough, else plain. For what is in another core's cache, and for what goes into
    /// lines that another core has.
    Vectors,
    /// By vectors of half a line, two stretches of the copy side by side, where the machine has them (x86-64 with AVX) and the copy is long enough, else plain. For the same.
    Abreast,
    /// Past the caches where the machine can do that (x86-64), else plain.
    Streaming,
}

impl Engine {
    /// Whether this machine has it. (What it has not is copied as by [`Plain`](Engine::Plain).)
    #[inline]
    pub fn is_there(self) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return match self {
            Engine::Plain | Engine::Streaming => true,
            Engine::Ahead | Engine::Abreast => std::arch::is_x86_feature_detected!("avx"),
            Engine::Vectors => std::arch::is_x86_feature_detected!("avx512f"),
        };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        matches!(self, Engine::Plain | Engine::Streaming)
    }

    /// The same for what this core has written itself: nothing is to be asked for.
    pub fn for_own(self) -> Engine {
        if self == Engine::Ahead { Engine::Plain } else { self }
    }

    /// The same for what comes by way of a ring, whose lines go round.
    #[inline]
    pub fn for_ring(self) -> Engine {
        if matches!(self, Engine::Vectors | Engine::Abreast) { Engine::Plain } else { self }
    }

    /// The same for a part of a message of so many bytes: longer ones are better copied by `memcpy`.
    #[inline]
    pub fn for_message(self, total: usize) -> Engine {
        let below = match self {
            Engine::Ahead => AHEAD_BELOW,
            Engine::Vectors => VECTORS_BELOW,
            _ => usize::MAX,
        };
        if total < below { self } else { Engine::Plain }
    }

    /// Bytes of the shortest copy that may be another one than `memcpy`.
    #[inline]
    pub fn from(self) -> usize {
        match self {
            Engine::Plain => aliased::FROM,
            Engine::Ahead => AHEAD_FROM,
            Engine::Vectors => VECTORS_FROM,
            Engine::Abreast => ABREAST_FROM,
            Engine::Streaming => 0,
        }
    }

    /// Of `n` bytes that it copied, those that went past the caches.
    pub fn past_caches(self, n: usize) -> u64 {
        if self == Engine::Streaming { n as u64 } else { 0 }
    }

    /// Copies `n` bytes. What is stored after it, by this thread, is seen after it.
    ///
    /// # Safety
    /// As `copy_nonoverlapping`: `src..src+n` must be valid for reads, `dst..dst+n` for writes, and the two must not overlap.
    #[inline]
    pub unsafe fn copy(self, src: *const u8, dst: *mut u8, n: usize) {
        match self {
            // SAFETY: our contract is the same.
            Engine::Plain => unsafe { aliased::copy(src, dst, n) },
            // SAFETY: as above.
            Engine::Ahead => unsafe { read_ahead(src, dst, n) },
            // SAFETY: as above.
            Engine::Vectors => unsafe { by_vectors(src, dst, n) },
            // SAFETY: as above.
            Engine::Abreast => unsafe { abreast(src, dst, n) },
            // SAFETY: as above.
            Engine::Streaming => unsafe { stream(src, dst, n) },
        }
    }
}

/// Bytes of the shortest copy whose lines are asked for ahead: the lines of shorter ones are all under way before it would help.
pub const AHEAD_FROM: usize = 2 << 10;

/// Bytes of the shortest copy by vectors: to find out which one is meant takes as long as they save of a shorter one.
pub const VECTORS_FROM: usize = 1 << 10;

/// Bytes of the shortest message that is not copied by vectors: where it goes does not lie in the nearest cache as a whole any more, and the `memcpy` of these processors
/// (`rep movsb`) does not fetch lines that it overwrites.
pub const VECTORS_BELOW: usize = 32 << 10;

/// Bytes of the shortest copy that is not `memcpy` for [`Engine::Abreast`]: glibc copies what is shorter by such vectors itself.
pub const ABREAST_FROM: usize = 4 << 10;

/// Bytes of the shortest copy in two stretches: a core's prefetcher follows one stretch of loads in a page, so two must lie in different pages, and be long enough to be followed.
pub const TWO_FROM: usize = 12 << 10;

/// Lines are asked for so many bytes ahead: what 25 to 50 GB/s bring in the 50 to 100 ns that a line takes between near cores.
pub const AHEAD: usize = 2 << 10;

/// Bytes of the shortest message of which no lines are asked for ahead: it does not lie in the caches near its writer's core as a whole any more, and what is asked
/// for pushes out what is needed.
pub const AHEAD_BELOW: usize = 256 << 10;

/// # Safety
/// As `copy_nonoverlapping`.
#[inline]
unsafe fn read_ahead(src: *const u8, dst: *mut u8, n: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if n >= AHEAD_FROM && Engine::Ahead.is_there() {
        // SAFETY: our contract is the same, and there is AVX.
        unsafe { read_ahead_avx(src, dst, n) };
        return;
    }
    // SAFETY: our contract is the same.
    unsafe { aliased::copy(src, dst, n) };
}

/// # Safety
/// As `copy_nonoverlapping`; the processor must have AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
#[inline(never)]
unsafe fn read_ahead_avx(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: our contract is the same.
    unsafe { vectors::asking_ahead(src, dst, n, AHEAD) };
}

/// # Safety
/// As `copy_nonoverlapping`.
#[inline]
unsafe fn by_vectors(src: *const u8, dst: *mut u8, n: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if n >= VECTORS_FROM && Engine::Vectors.is_there() {
        // SAFETY: our contract is the same, and there is AVX-512.
        unsafe { by_lines(src, dst, n) };
        return;
    }
    // SAFETY: our contract is the same.
    unsafe { aliased::copy(src, dst, n) };
}

/// Copies that `rep movsb` stumbles at are nothing special here.
///
/// # Safety
/// As `copy_nonoverlapping`.
#[inline]
unsafe fn abreast(src: *const u8, dst: *mut u8, n: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if n >= ABREAST_FROM && Engine::Abreast.is_there() {
        // SAFETY: our contract is the same, there are enough bytes for a vector, and there is AVX.
        unsafe { abreast_avx(src, dst, n) };
        return;
    }
    // SAFETY: our contract is the same.
    unsafe { aliased::copy(src, dst, n) };
}

/// # Safety
/// As `copy_nonoverlapping`; the processor must have AVX-512.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn by_lines(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: our contract is the same.
    unsafe { vectors::by_lines(src, dst, n) };
}

/// # Safety
/// As `copy_nonoverlapping`; `n` is at least a vector, and the processor must have AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
#[inline(never)]
unsafe fn abreast_avx(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: our contract is the same.
    unsafe {
        match n {
            TWO_FROM.. => vectors::abreast(src, dst, n),
            _ => vectors::by_halves::<4>(src, dst, n),
        }
    }
}

/// # Safety
/// As `copy_nonoverlapping`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(never)]
unsafe fn stream(src: *const u8, dst: *mut u8, n: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    /// Bytes of a cache line: streaming stores are quick only if whole lines are written one after the other.
    const LINE: usize = 64;
    let head = dst.align_offset(LINE).min(n);
    let lines = (n - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head <= tail <= n, so all of it is inside src..src+n and dst..dst+n, which do not overlap (our contract). `dst + head` is on a
    // line, and so each store's address is a multiple of 16, as it must be; loads need no alignment. SSE2 is part of x86-64. The
    // fence at the end is what `_mm_stream_si128` asks for before anybody else may look.
    unsafe {
        core::ptr::copy_nonoverlapping(src, dst, head);
        let (mut from, mut to) = (src.add(head).cast::<__m128i>(), dst.add(head).cast::<__m128i>());
        for _ in 0..lines {
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), part);
            }
            (from, to) = (from.add(LINE / 16), to.add(LINE / 16));
        }
        core::ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), n - tail);
        _mm_sfence();
    }
}

/// # Safety
/// As `copy_nonoverlapping`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn stream(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: our contract is the same.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, n) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any length, any alignment of either side: the bytes that are meant, and no others.
        #[test]
        fn copies_what_memcpy_copies(from in 0usize..70, to in 0usize..70, n in prop_oneof![0usize..300, 0usize..5000, 4000usize..20_000],
            engine in prop_oneof![Just(Engine::Plain), Just(Engine::Ahead), Just(Engine::Vectors), Just(Engine::Abreast), Just(Engine::Streaming)]) {
            let source: Vec<u8> = (0..from + n).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut got = vec![0xeeu8; to + n + 70];
            let mut want = got.clone();
            want[to..to + n].copy_from_slice(&source[from..]);
            // SAFETY: inside two separate vectors.
            unsafe { engine.copy(source.as_ptr().add(from), got.as_mut_ptr().add(to), n) };
            prop_assert_eq!(got, want);
        }
    }

    /// A reader that sees the flag sees the bytes. Without the fence most runs on a machine of several cores fail.
    #[test]
    fn who_sees_the_flag_sees_the_bytes() {
        use core::sync::atomic::{AtomicU64, Ordering};
        const WORDS: usize = 8 << 10;
        let (rounds, bytes) = (if cfg!(miri) { 3 } else { 300 }, WORDS * 8);
        let shared: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let (told, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                for round in 1..=rounds {
                    let source = vec![round; WORDS];
                    // SAFETY: `shared` is that long, and nobody else writes it; its reader waits for `told`.
                    unsafe { Engine::Streaming.copy(source.as_ptr().cast(), shared.as_ptr().cast_mut().cast(), bytes) };
                    told.store(round, Ordering::Release);
                    while seen.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=rounds {
                while told.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                // The last lines were written last.
                assert!(shared.iter().rev().all(|word| word.load(Ordering::Relaxed) == round), "round {round}");
                seen.store(round, Ordering::Release);
            }
        });
    }
}
