//! Application memory: buffers that a libfabric client lends us until the operation completes.
//!
//! A [`UserSeg`] can be made only by an `unsafe fn` (called in `capi/src/convert.rs`); from then on copies are safe
//! calls. Scatter/gather is the general case: everything takes a slice of segments.
#![expect(unsafe_code)]
// UNSAFETY: raw application pointers are stored and copied through here and nowhere else.

use super::engine::Engine;
use core::ops::Deref;

/// Words of a segment of which its [sample](UserSeg::sample) is made.
const SAMPLED: usize = 8;

/// One contiguous piece of application memory.
#[derive(Clone, Copy, Debug)]
pub struct UserSeg {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a UserSeg is an address and a length; whoever holds the engine's `&mut` may use it from
// any thread, as the contract of `UserSeg::new` does not tie the memory to a thread.
unsafe impl Send for UserSeg {}

/// The segments of one operation, kept while it is pending. One segment, the common case, needs no heap and moves as two words.
#[derive(Debug)]
pub struct UserIov(Segs);

#[derive(Debug)]
enum Segs {
    One(UserSeg),
    Many(Box<[UserSeg]>),
}

impl From<&[UserSeg]> for UserIov {
    #[inline]
    fn from(iov: &[UserSeg]) -> UserIov {
        match iov {
            [one] => UserIov(Segs::One(*one)),
            many => UserIov(Segs::Many(many.into())),
        }
    }
}

impl FromIterator<UserSeg> for UserIov {
    fn from_iter<I: IntoIterator<Item = UserSeg>>(segments: I) -> UserIov {
        UserIov(Segs::Many(segments.into_iter().collect()))
    }
}

impl Deref for UserIov {
    type Target = [UserSeg];

    #[inline]
    fn deref(&self) -> &[UserSeg] {
        match &self.0 {
            Segs::One(one) => core::slice::from_ref(one),
            Segs::Many(many) => many,
        }
    }
}

impl UserSeg {
    /// Wraps application memory.
    ///
    /// # Safety
    /// `ptr..ptr+len` must stay valid for reads (a send) or writes (a receive) until the operation it is
    /// given to has completed, as fi_msg(3) demands of the application. `ptr` may be null if `len` is 0.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> UserSeg {
        UserSeg { ptr, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, as reported in completions (`buf`).
    pub fn address(&self) -> usize {
        self.ptr as usize
    }

    /// Whether all of `other` lies in it.
    pub fn holds(&self, other: &UserSeg) -> bool {
        let skip = other.address().wrapping_sub(self.address());
        skip <= self.len && other.len <= self.len - skip
    }

    /// Whether a byte of `other` lies in it.
    pub fn touches(&self, other: &UserSeg) -> bool {
        self.address() < other.address().saturating_add(other.len) && other.address() < self.address().saturating_add(self.len)
    }

    /// A number made of [`SAMPLED`] words of it, spread evenly from its first to its last one: another number if one of them has changed, and almost surely
    /// if several have. 0 of what is shorter than all of these.
    pub fn sample(&self) -> u64 {
        const WORD: usize = size_of::<u64>();
        if self.len < SAMPLED * WORD {
            return 0;
        }
        let (mut sum, mut factor) = (0u64, 1u64);
        for i in 0..SAMPLED {
            let at = (self.len - WORD) * i / (SAMPLED - 1);
            // SAFETY: at + 8 <= len, so the word lies inside of what the contract of `UserSeg::new` lets us read.
            let word = unsafe { self.ptr.add(at).cast::<u64>().read_unaligned() };
            // By odd numbers: no change of one word is lost.
            factor = factor.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            sum = sum.wrapping_add(word.wrapping_mul(factor));
        }
        sum
    }

    /// The part from `skip` on, at most `len` bytes; clipped to the segment.
    pub fn part(&self, skip: usize, len: usize) -> UserSeg {
        let skip = skip.min(self.len);
        UserSeg { ptr: self.ptr.wrapping_add(skip), len: len.min(self.len - skip) }
    }
}

/// `len` bytes of a buffer of ours as a place where a system call will put a message for which the application has none yet.
///
/// # Safety
/// The contract of [`UserSeg::new`], with the buffer's owner in the application's place: it keeps the buffer as it is, neither moved, nor read, nor dropped, until it is told that the
/// bytes have landed, or that they never will.
pub unsafe fn landing_place(buffer: &mut Vec<u8>, len: usize) -> UserSeg {
    buffer.clear();
    buffer.resize(len, 0);
    UserSeg { ptr: buffer.as_mut_ptr(), len }
}

/// Bytes of ours as a message that is to be sent: they are only read.
///
/// # Safety
/// The contract of [`UserSeg::new`], with their owner in the application's place: it keeps them where they are until it is told that they have left, or that they never will.
pub unsafe fn sending_place(bytes: &[u8]) -> UserSeg {
    UserSeg { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() }
}

/// Total bytes of a segment list.
#[inline]
pub fn total_len(iov: &[UserSeg]) -> usize {
    match iov {
        [one] => one.len,
        many => many.iter().fold(0usize, |n, s| n.saturating_add(s.len)),
    }
}

/// The list that covers bytes `skip..skip+len` of `iov`.
pub fn window(iov: &[UserSeg], mut skip: usize, mut len: usize) -> UserIov {
    if let [one] = iov {
        return UserIov(Segs::One(one.part(skip, len)));
    }
    let mut out = Vec::new();
    for seg in iov {
        if skip >= seg.len {
            skip -= seg.len;
            continue;
        }
        let part = seg.part(skip, len);
        skip = 0;
        len -= part.len;
        out.push(part);
        if len == 0 {
            break;
        }
    }
    out.into_iter().collect()
}

/// Calls `copy(segment pointer, offset from start of the window, bytes)` for each contiguous piece of
/// `iov[skip..skip+len]`, and returns how many bytes that were (less than `len` if `iov` is shorter).
#[inline]
fn pieces(iov: &[UserSeg], skip: usize, len: usize, mut copy: impl FnMut(*mut u8, usize, usize)) -> usize {
    if let [one] = iov
        && skip + len <= one.len
    {
        copy(one.ptr.wrapping_add(skip), 0, len);
        return len;
    }
    many_pieces(iov, skip, len, &mut copy)
}

#[inline(never)]
fn many_pieces(iov: &[UserSeg], mut skip: usize, len: usize, copy: &mut dyn FnMut(*mut u8, usize, usize)) -> usize {
    let mut done = 0;
    for seg in iov {
        if skip >= seg.len {
            skip -= seg.len;
            continue;
        }
        let n = (seg.len - skip).min(len - done);
        copy(seg.ptr.wrapping_add(skip), done, n);
        done += n;
        skip = 0;
        if done == len {
            break;
        }
    }
    done
}

/// `memcpy`, with the few bytes of a small message copied in place: a call would cost more than the copy.
///
/// # Safety
/// As `copy_nonoverlapping`.
#[inline]
unsafe fn copy_bytes(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: two possibly overlapping pieces that together are src..src+n and dst..dst+n, valid by our contract; both
    // pieces are read before the first is written.
    unsafe {
        match n {
            8..=16 => {
                let (a, b) = (src.cast::<u64>().read_unaligned(), src.add(n - 8).cast::<u64>().read_unaligned());
                dst.cast::<u64>().write_unaligned(a);
                dst.add(n - 8).cast::<u64>().write_unaligned(b);
            }
            4..=7 => {
                let (a, b) = (src.cast::<u32>().read_unaligned(), src.add(n - 4).cast::<u32>().read_unaligned());
                dst.cast::<u32>().write_unaligned(a);
                dst.add(n - 4).cast::<u32>().write_unaligned(b);
            }
            17..=32 => {
                let (a, b) = (src.cast::<u128>().read_unaligned(), src.add(n - 16).cast::<u128>().read_unaligned());
                dst.cast::<u128>().write_unaligned(a);
                dst.add(n - 16).cast::<u128>().write_unaligned(b);
            }
            33..=64 => {
                let (s, d) = (src.cast::<[u128; 2]>(), dst.cast::<[u128; 2]>());
                let (a, b) = (s.read_unaligned(), src.add(n - 32).cast::<[u128; 2]>().read_unaligned());
                d.write_unaligned(a);
                dst.add(n - 32).cast::<[u128; 2]>().write_unaligned(b);
            }
            _ => core::ptr::copy_nonoverlapping(src, dst, n),
        }
    }
}

/// Gathers `len` bytes of `iov`, from `skip` on, to `dst`: a few; many go [by an engine](gather_by). Returns the bytes copied.
///
/// # Safety
/// `dst..dst+len` must be valid for writes and not overlap the application's memory.
#[inline]
pub unsafe fn gather(iov: &[UserSeg], skip: usize, len: usize, dst: *mut u8) -> usize {
    pieces(iov, skip, len, |p, at, n| {
        // SAFETY: p..p+n lies inside a UserSeg (valid by its contract); dst by ours.
        unsafe { copy_bytes(p, dst.add(at), n) }
    })
}

/// Scatters `len` bytes from `src` over `iov`, from `skip` on: a few; many go [by an engine](scatter_by). Returns the bytes copied.
///
/// # Safety
/// `src..src+len` must be valid for reads and not overlap the application's memory.
#[inline]
pub unsafe fn scatter(iov: &[UserSeg], skip: usize, len: usize, src: *const u8) -> usize {
    pieces(iov, skip, len, |p, at, n| {
        // SAFETY: p..p+n lies inside a UserSeg (valid by its contract); src by ours.
        unsafe { copy_bytes(src.add(at), p, n) }
    })
}

/// [`gather`] of many bytes, by an engine.
///
/// # Safety
/// As [`gather`].
pub unsafe fn gather_by(engine: Engine, iov: &[UserSeg], skip: usize, len: usize, dst: *mut u8) -> usize {
    pieces(iov, skip, len, |p, at, n| {
        // SAFETY: p..p+n lies inside a UserSeg (valid by its contract); dst by ours, which also says that they do not overlap.
        unsafe { engine.copy(p, dst.add(at), n) }
    })
}

/// [`scatter`] of many bytes, by an engine.
///
/// # Safety
/// As [`scatter`].
pub unsafe fn scatter_by(engine: Engine, iov: &[UserSeg], skip: usize, len: usize, src: *const u8) -> usize {
    pieces(iov, skip, len, |p, at, n| {
        // SAFETY: p..p+n lies inside a UserSeg (valid by its contract); src by ours, which also says that they do not overlap.
        unsafe { engine.copy(src.add(at), p, n) }
    })
}

/// Scatters private bytes over `iov` from `skip` on; what does not fit is left out. Returns the bytes copied.
pub fn scatter_bytes(iov: &[UserSeg], skip: usize, src: &[u8]) -> usize {
    // SAFETY: `src` is a live slice; engine-private memory never overlaps what the application lent us.
    unsafe { scatter_by(Engine::Plain, iov, skip, src.len(), src.as_ptr()) }
}

/// Gathers `len` bytes of `iov` from `skip` on, at the end of `out`.
pub fn gather_into(iov: &[UserSeg], skip: usize, len: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + len, 0);
    // SAFETY: `out` holds `len` bytes after `start`; engine-private memory never overlaps application memory.
    let n = unsafe { gather_by(Engine::Plain, iov, skip, len, out.as_mut_ptr().add(start)) };
    out.truncate(start + n);
}

/// A segment over a live buffer, for tests and simulations that keep the buffer alive themselves.
#[cfg(test)]
pub fn of_slice(buf: &mut [u8]) -> UserSeg {
    UserSeg { ptr: buf.as_mut_ptr(), len: buf.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gather_scatter_window_agree_with_flat_bytes(
            cuts in proptest::collection::vec(0usize..70, 0..6), skip in 0usize..90, len in 0usize..100,
        ) {
            let total: usize = cuts.iter().sum();
            let mut bytes: Vec<u8> = (0..total).map(|i| (i * 7 + i / 251) as u8).collect();
            let flat = bytes.clone();
            let mut iov = Vec::new();
            let mut rest = &mut bytes[..];
            for c in &cuts {
                let (a, b) = rest.split_at_mut(*c);
                iov.push(of_slice(a));
                rest = b;
            }
            prop_assert_eq!(total_len(&iov), total);
            let expect: Vec<u8> = flat.iter().copied().skip(skip).take(len).collect();
            let mut got = Vec::new();
            gather_into(&iov, skip, len, &mut got);
            prop_assert_eq!(&got, &expect);
            let mut again = Vec::new();
            gather_into(&window(&iov, skip, len), 0, len, &mut again);
            prop_assert_eq!(&again, &expect);
            let fresh: Vec<u8> = (0..len).map(|i| (i * 11 + 3) as u8).collect();
            let n = scatter_bytes(&iov, skip, &fresh);
            prop_assert_eq!(n, expect.len());
            let mut want = flat.clone();
            for (i, b) in fresh.iter().take(n).enumerate() { want[skip + i] = *b; }
            let mut now = Vec::new();
            gather_into(&iov, 0, total, &mut now);
            prop_assert_eq!(now, want);
        }
    }
}
