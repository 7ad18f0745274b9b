//! Copies by loads and stores of vectors, on x86-64: loops that know of what they copy what `memcpy` cannot know. Who uses which, and for what: [`super::engine`], [`super::aliased`].
#![expect(unsafe_code)]
// UNSAFETY: raw copies by instructions that Rust has only as intrinsics.

use core::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T1, _mm_prefetch, _mm256_loadu_si256, _mm256_store_si256, _mm256_storeu_si256, _mm512_loadu_si512,
    _mm512_storeu_si512,
};

/// Bytes of a vector of AVX.
pub const HALF: usize = 32;

/// 0, 1, …: an array of which `map` makes one of vectors, which then stay in registers.
const fn numbers<const N: usize>() -> [usize; N] {
    let mut all = [0; N];
    let mut i = 0;
    while i < N {
        all[i] = i;
        i += 1;
    }
    all
}

/// Loads of `N` vectors of 32 bytes and then stores of as many, which lie on their natural boundaries: stores that do not take up to twice as long.
///
/// # Safety
/// As `copy_nonoverlapping`; `n` is at least [`HALF`], and the processor must have AVX.
#[target_feature(enable = "avx")]
#[inline]
pub unsafe fn by_halves<const N: usize>(src: *const u8, dst: *mut u8, n: usize) {
    let block = N * HALF;
    let head = dst.align_offset(HALF).min(n);
    let end = head + (n - head) / block * block;
    // SAFETY: the first vector is inside, as n is at least that long; blocks lie between head and end, which is at most n; so all is inside src..src+n and dst..dst+n, which do not
    // overlap (our contract). `dst + head` is a multiple of a vector's bytes, and so is each store's address after it, or there is no block; loads need no alignment. The caller has seen that there is AVX.
    unsafe {
        _mm256_storeu_si256(dst.cast(), _mm256_loadu_si256(src.cast()));
        for at in (head..end).step_by(block) {
            let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
            let vectors = const { numbers::<N>() }.map(|i| _mm256_loadu_si256(from.add(i)));
            for (i, vector) in vectors.into_iter().enumerate() {
                _mm256_store_si256(to.add(i), vector);
            }
        }
        core::ptr::copy_nonoverlapping(src.add(end), dst.add(end), n - end);
    }
}

/// By vectors of 32 bytes, two stretches side by side: the first half and the second one.
///
/// # Safety
/// As `copy_nonoverlapping`; `n` is at least [`HALF`], and the processor must have AVX.
#[target_feature(enable = "avx")]
#[inline]
pub unsafe fn abreast(src: *const u8, dst: *mut u8, n: usize) {
    /// Bytes of a line, of which each stretch is copied one in turn.
    const LINE: usize = 64;
    let head = dst.align_offset(HALF).min(n);
    let stretch = (n - head) / 2 / LINE * LINE;
    let end = head + 2 * stretch;
    // SAFETY: the first vector is inside, as n is at least that long; the stretches lie between head and end, which is at most n; so all is inside src..src+n and dst..dst+n, which do
    // not overlap (our contract). `dst + head` is a multiple of a vector's bytes, and so is each store's address after it, or the stretches are empty; loads need no alignment. The caller has seen that
    // there is AVX.
    unsafe {
        _mm256_storeu_si256(dst.cast(), _mm256_loadu_si256(src.cast()));
        for at in (head..head + stretch).step_by(LINE) {
            for at in [at, at + stretch] {
                let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
                let vectors = [0, 1].map(|i| _mm256_loadu_si256(from.add(i)));
                for (i, vector) in vectors.into_iter().enumerate() {
                    _mm256_store_si256(to.add(i), vector);
                }
            }
        }
        core::ptr::copy_nonoverlapping(src.add(end), dst.add(end), n - end);
    }
}

/// By loads and stores of whole lines, four at a time.
///
/// # Safety
/// As `copy_nonoverlapping`; the processor must have AVX-512.
#[target_feature(enable = "avx512f")]
#[inline]
pub unsafe fn by_lines(src: *const u8, dst: *mut u8, n: usize) {
    /// Bytes of four lines, copied in one go.
    const FOUR: usize = 256;
    let fours = n / FOUR * FOUR;
    // SAFETY: all loads and stores are at offsets below `fours` <= n, inside src..src+n and dst..dst+n, which do not overlap (our contract); they need no alignment.
    // The caller has seen that there is AVX-512.
    unsafe {
        for at in (0..fours).step_by(FOUR) {
            let (from, to) = (src.add(at).cast::<__m512i>(), dst.add(at).cast::<__m512i>());
            let parts = [0, 1, 2, 3].map(|i| _mm512_loadu_si512(from.add(i)));
            for (i, part) in parts.into_iter().enumerate() {
                _mm512_storeu_si512(to.add(i), part);
            }
        }
        core::ptr::copy_nonoverlapping(src.add(fours), dst.add(fours), n - fours);
    }
}

/// By vectors of 32 bytes, with the lines that are read asked for `ahead` bytes before, into the second-level cache.
///
/// # Safety
/// As `copy_nonoverlapping`; the processor must have AVX.
#[target_feature(enable = "avx")]
#[inline]
pub unsafe fn asking_ahead(src: *const u8, dst: *mut u8, n: usize, ahead: usize) {
    /// Bytes of two lines, copied in one go.
    const PAIR: usize = 128;
    let pairs = n / PAIR * PAIR;
    // SAFETY: all loads and stores are at offsets below `pairs` <= n, inside src..src+n and dst..dst+n, which do not overlap (our contract); they need no alignment.
    // A prefetch changes no memory and raises no fault, wherever it points (AMD64 Architecture Programmer's Manual vol. 3, PREFETCHlevel); the second one, whose line may lie behind, is made by
    // wrapping arithmetic. The caller has seen that there is AVX.
    unsafe {
        for line in (0..ahead.min(n)).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(src.add(line).cast());
        }
        for at in (0..pairs).step_by(PAIR) {
            // What lies behind is perhaps being written.
            if n - at > ahead {
                _mm_prefetch::<_MM_HINT_T1>(src.add(at + ahead).cast());
                _mm_prefetch::<_MM_HINT_T1>(src.wrapping_add(at + ahead + 64).cast());
            }
            let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
            let parts = [0, 1, 2, 3].map(|i| _mm256_loadu_si256(from.add(i)));
            for (i, part) in parts.into_iter().enumerate() {
                _mm256_storeu_si256(to.add(i), part);
            }
        }
        core::ptr::copy_nonoverlapping(src.add(pairs), dst.add(pairs), n - pairs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Loop = unsafe fn(*const u8, *mut u8, usize);

    fn all() -> Vec<(&'static str, Loop)> {
        let halves: [(&str, Loop); 4] = [
            // SAFETY: as these ask for, by whom they are called (below), where there is AVX.
            ("4 halves", |s, d, n| unsafe { by_halves::<4>(s, d, n) }),
            // SAFETY: as above.
            ("8 halves", |s, d, n| unsafe { by_halves::<8>(s, d, n) }),
            // SAFETY: as above.
            ("abreast", |s, d, n| unsafe { abreast(s, d, n) }),
            // SAFETY: as above.
            ("ahead", |s, d, n| unsafe { asking_ahead(s, d, n, 2048) }),
        ];
        // SAFETY: as above, where there is AVX-512.
        let lines: [(&str, Loop); 1] = [("lines", |s, d, n| unsafe { by_lines(s, d, n) })];
        match () {
            () if std::arch::is_x86_feature_detected!("avx512f") => [&halves[..], &lines[..]].concat(),
            () if std::arch::is_x86_feature_detected!("avx") => halves.to_vec(),
            () => Vec::new(),
        }
    }

    /// Where there are no vectors the next test tries nothing.
    #[test]
    fn there_is_something_to_try() {
        let there = std::env::var("RUSTMX_TEST_COMPLETE").unwrap_or_default();
        assert!(!all().is_empty() || there.split_whitespace().all(|word| word != "avx"), "RUSTMX_TEST_COMPLETE={there}");
    }

    proptest! {
        /// Any length from a vector's on, any alignment of either side: the bytes that are meant, and no others.
        #[test]
        fn they_copy_what_memcpy_copies(from in 0usize..70, to in 0usize..70, n in prop_oneof![HALF..300, 2000usize..20_000]) {
            let source: Vec<u8> = (0..from + n).map(|i| (i * 7 + i / 251) as u8).collect();
            for (name, copy) in all() {
                let mut got = vec![0xeeu8; to + n + 70];
                let mut want = got.clone();
                want[to..to + n].copy_from_slice(&source[from..]);
                // SAFETY: inside two separate vectors, at least 32 bytes, and the processor has it.
                unsafe { copy(source.as_ptr().add(from), got.as_mut_ptr().add(to), n) };
                prop_assert_eq!(&got, &want, "{}", name);
            }
        }
    }
}
