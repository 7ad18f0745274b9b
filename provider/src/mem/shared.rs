//! The only view of memory that another process may write, or read while we write.
//!
//! Two rules. Words are touched only as atomics; payload is copied *once* by `memcpy` between raw pointers, and no
//! reference to it ever exists. The bytes a hostile peer changes during a copy are its own payload; whatever the engine acts on (headers,
//! positions, lengths) is loaded once as an atomic word and validated from that private copy.
//!
//! Every access is bounds-checked: offsets come from the engine's own cursors, so a failure is our bug and panics.
#![expect(unsafe_code)]
// UNSAFETY: turns a mapping into atomics and raw copies.

use super::aliased;
use super::atomic::Words;
use super::engine::{AHEAD, AHEAD_FROM, Engine};
use super::user::{self, UserSeg};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// Keeps memory mapped as long as any view of it lives.
///
/// # Safety
/// `base()..base()+bytes()` must stay valid for reads (and, if `writable()`, for writes) until the value is dropped,
/// must be 64-byte aligned, and must only ever be accessed through atomics or raw copies.
pub unsafe trait Backing: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Bytes.
    fn bytes(&self) -> usize;
    /// Whether stores are allowed.
    fn writable(&self) -> bool;
}

/// Bytes of which the lines are taken as soon as they are copied.
const TAKEN_AT_ONCE: usize = 512;

/// A window into a [`Backing`]. Clones share it.
#[derive(Clone)]
pub struct SharedMem {
    base: NonNull<u8>,
    len: usize,
    words: usize,
    writable: bool,
    owner: Arc<dyn Backing>,
}

// SAFETY: the pointer is only used for atomics and raw copies (Backing's contract), which are sound from any thread.
unsafe impl Send for SharedMem {}

impl SharedMem {
    /// The whole of `owner`.
    pub fn new(owner: Arc<dyn Backing>) -> SharedMem {
        SharedMem { base: owner.base(), len: owner.bytes(), words: owner.bytes() / 8, writable: owner.writable(), owner }
    }

    /// The part from byte `start` on, `len` bytes long. Panics if that is not inside, or not on a line.
    pub fn slice(&self, start: usize, len: usize) -> SharedMem {
        assert!(start.is_multiple_of(64) && start <= self.len && len <= self.len - start);
        // SAFETY: start <= self.len, checked above.
        let base = unsafe { self.base.add(start) };
        SharedMem { base, len, words: len / 8, writable: self.writable, owner: self.owner.clone() }
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Whether it may be written to.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Word `index` alone, to be looked at often. Panics if it is out of range.
    pub fn single(&self, index: usize) -> SharedWord {
        SharedWord { word: NonNull::from(self.word(index)), owner: self.owner.clone() }
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        if offset > self.len || len > self.len - offset {
            out_of_range(offset, self.len);
        }
        // SAFETY: inside the mapping, checked above; Backing keeps it mapped.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The address of `len` bytes at `offset`, for system calls that copy from there or to there. Valid as long as a view of this memory
    /// lives; to be written only if it is writable.
    pub fn pointer(&self, offset: usize, len: usize) -> *mut u8 {
        self.at(offset, len)
    }

    /// Copies `len` bytes of application memory (`iov` from `skip` on) to `offset`.
    #[inline]
    pub fn fill(&self, offset: usize, iov: &[UserSeg], skip: usize, len: usize) {
        assert!(self.writable);
        // SAFETY: `at` checked the range; the mapping is writable; application memory does not overlap our segments.
        unsafe { user::gather(iov, skip, len, self.at(offset, len)) };
    }

    /// [`fill`](Self::fill) by an engine, if there are enough bytes for it.
    #[inline]
    pub fn fill_by(&self, engine: Engine, offset: usize, iov: &[UserSeg], skip: usize, len: usize) {
        if len < engine.from() {
            return self.fill(offset, iov, skip, len);
        }
        assert!(self.writable);
        // SAFETY: `at` checked the range; the mapping is writable; application memory does not overlap our segments, nor what peers lent.
        unsafe { user::gather_by(engine, iov, skip, len, self.at(offset, len)) };
    }

    /// [`drain`](Self::drain) by an engine, if there are enough bytes for it.
    #[inline]
    pub fn drain_by(&self, engine: Engine, offset: usize, iov: &[UserSeg], skip: usize, len: usize) -> usize {
        if len < engine.from() {
            return self.drain(offset, iov, skip, len);
        }
        // SAFETY: `at` checked the range; application memory does not overlap our segments, nor what peers lent.
        unsafe { user::scatter_by(engine, iov, skip, len, self.at(offset, len)) }
    }

    /// Copies private bytes to `offset`.
    pub fn fill_bytes(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable);
        // SAFETY: `at` checked the range; the mapping is writable; private bytes do not overlap our segments.
        unsafe { aliased::copy(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) };
    }

    /// Copies `len` bytes at `offset` to application memory (`iov` from `skip` on). Returns the bytes that fitted.
    #[inline]
    pub fn drain(&self, offset: usize, iov: &[UserSeg], skip: usize, len: usize) -> usize {
        // SAFETY: `at` checked the range; application memory does not overlap our segments.
        unsafe { user::scatter(iov, skip, len, self.at(offset, len)) }
    }

    /// [`drain`](Self::drain), and [`take`](Self::take), in small pieces: a store finds the load of its line still on its way, and makes one request of both. Lines of
    /// further pieces are asked for where `engine` does so.
    #[inline(never)]
    pub fn drain_taking(&self, engine: Engine, offset: usize, iov: &[UserSeg], skip: usize, len: usize) -> usize {
        let ahead = engine == Engine::Ahead && len >= AHEAD_FROM;
        if ahead {
            self.ask(offset, AHEAD.min(len));
        }
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(TAKEN_AT_ONCE);
            if ahead && len - done > AHEAD {
                self.ask(offset + done + AHEAD, (len - done - AHEAD).min(piece));
            }
            let drained = self.drain(offset + done, iov, skip + done, piece);
            self.take(offset + done, piece);
            done += drained;
            if drained < piece {
                break;
            }
        }
        done
    }

    /// Takes the lines of `len` bytes at `offset` ([`take_lines`](Words::take_lines)): on some processors their next writer gets them sooner than if they were in
    /// both caches. Panics if it may not be written.
    #[inline]
    pub fn take(&self, offset: usize, len: usize) {
        assert!(self.writable);
        self.take_lines(offset / 8, (offset + len).div_ceil(8));
    }

    /// Copies the bytes at `offset` to private memory.
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        // SAFETY: `at` checked the range; private memory does not overlap our segments.
        unsafe { aliased::copy(self.at(offset, bytes.len()), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// The same into memory that need not be initialised before. All of it is afterwards.
    pub fn read_into(&self, offset: usize, room: &mut [MaybeUninit<u8>]) {
        // SAFETY: as above.
        unsafe { aliased::copy(self.at(offset, room.len()), room.as_mut_ptr().cast(), room.len()) };
    }

    /// Appends `len` bytes at `offset` to `out`.
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        out.reserve(len);
        let from = self.at(offset, len);
        // SAFETY: `at` checked the source; `reserve` made room for len bytes after out.len(), which the copy initialises.
        unsafe {
            aliased::copy(from, out.as_mut_ptr().add(out.len()), len);
            out.set_len(out.len() + len);
        }
    }

    /// A part of it as if it were the application's, for tests of memory that is both.
    #[cfg(test)]
    pub fn as_user(&self, offset: usize, len: usize) -> UserSeg {
        // SAFETY: `at` checked the range; tests keep the mapping as long as the segment.
        unsafe { UserSeg::new(self.at(offset, len), len) }
    }

    /// Asks for the cache lines of `len` bytes at `offset`, to be written soon: another core need not be asked for them then.
    #[inline]
    pub fn claim(&self, offset: usize, len: usize) {
        let p = self.at(offset, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (0..len).step_by(64) {
            // SAFETY: PREFETCHW of a mapped address changes no memory; processors that do not know it do nothing (Intel SDM vol. 2, PREFETCHW).
            unsafe { core::arch::asm!("prefetchw [{}]", in(reg) p.add(line), options(nostack, preserves_flags, readonly)) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = p;
    }

    /// Passes the cache lines of `len` bytes at `offset` on to the cache that all cores share: another core is to read them next, and finds them there sooner than here.
    #[inline]
    pub fn hand_on(&self, offset: usize, len: usize) {
        let p = self.at(offset, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (0..len).step_by(64) {
            // SAFETY: CLDEMOTE of a mapped address is a hint: it changes no memory and raises no fault, and processors that do not know it do nothing (Intel SDM vol. 2,
            // CLDEMOTE).
            unsafe { core::arch::asm!("cldemote [{}]", in(reg) p.add(line), options(nostack, preserves_flags)) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = p;
    }

    /// Asks for the cache lines of `len` bytes at `offset`, to be read before long: they come into the second-level cache.
    fn ask(&self, offset: usize, len: usize) {
        self.prefetch::<false>(offset, len);
    }

    /// Asks for the cache lines of `len` bytes at `offset`, to be read soon.
    #[inline]
    pub fn fetch(&self, offset: usize, len: usize) {
        self.prefetch::<true>(offset, len);
    }

    #[inline]
    fn prefetch<const NEAREST: bool>(&self, offset: usize, len: usize) {
        let p = self.at(offset, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (0..len).step_by(64) {
            use core::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            // SAFETY: inside the mapping, checked above; a prefetch changes no memory and raises no fault (Intel SDM vol. 2, PREFETCHh).
            unsafe {
                let p = p.add(line).cast();
                if NEAREST { _mm_prefetch::<_MM_HINT_T0>(p) } else { _mm_prefetch::<_MM_HINT_T1>(p) }
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = p;
    }
}

impl Words for SharedMem {
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        if index >= self.words {
            out_of_range(index * 8, self.len);
        }
        // SAFETY: inside the mapping, checked above, and 8-byte aligned (the base is 64-byte aligned); accessed only as an
        // atomic (Backing's contract); the reference cannot outlive `self`, which keeps the mapping.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
    }

    #[inline]
    fn quad(&self, index: usize) -> [&AtomicU64; 4] {
        if index >= self.words || self.words - index < 4 {
            out_of_range(index * 8, self.len);
        }
        // SAFETY: four words inside the mapping, checked above; otherwise as in `word`.
        unsafe {
            let first = self.base.as_ptr().cast::<u64>().add(index);
            [0, 1, 2, 3].map(|i| AtomicU64::from_ptr(first.add(i)))
        }
    }
}

#[cold]
#[inline(never)]
fn out_of_range(offset: usize, len: usize) -> ! {
    panic!("offset {offset} of a segment of {len} bytes: a cursor of ours is wrong")
}

/// One word of shared memory, one load away. Clones share it.
#[derive(Clone)]
pub struct SharedWord {
    word: NonNull<AtomicU64>,
    owner: Arc<dyn Backing>,
}

// SAFETY: an atomic that the owner keeps valid, as in SharedMem; the owner is Send and Sync.
unsafe impl Send for SharedWord {}
// SAFETY: as above; there is nothing else in it that could change.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// The word.
    #[inline]
    pub fn get(&self) -> &AtomicU64 {
        // SAFETY: aligned and inside the mapping (`single`, `aim`); the owner keeps it mapped as long as we live.
        unsafe { self.word.as_ref() }
    }

    /// Becomes word `index` of `mem`. Panics if it is out of range.
    #[inline]
    pub fn aim(&mut self, mem: &SharedMem, index: usize) {
        self.word = NonNull::from(mem.word(index));
        if !Arc::ptr_eq(&self.owner, &mem.owner) {
            self.owner = mem.owner.clone();
        }
    }
}

/// Private, zeroed memory with the shape of a segment: for messages to oneself, tests and simulations.
pub struct Heap {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
}

// SAFETY: plain memory, accessed only through SharedMem.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` zeroed bytes, rounded up to a line.
    pub fn new(len: usize) -> Arc<Heap> {
        // A page of its own for a few lines would be mostly air, and each connection has some.
        let align = if len < 4096 { 64 } else { 4096 };
        let layout = std::alloc::Layout::from_size_align(len.next_multiple_of(64).max(64), align).expect("a segment is small");
        // SAFETY: the layout has a size above zero.
        let p = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(p).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Arc::new(Heap { base, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; no view outlives the Arc.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: owned until drop, aligned to a line at least, handed out only here.
unsafe impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        self.layout.size()
    }
    fn writable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn panics<T>(what: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(what)).is_err()
    }

    /// One byte past the end, by whatever way, is a panic and not an access.
    #[test]
    fn nothing_is_reached_past_the_end() {
        let mem = SharedMem::new(Heap::new(128));
        let part = mem.slice(64, 64);
        part.fill_bytes(60, &[1; 4]);
        assert!(panics(|| part.fill_bytes(61, &[1; 4])) && panics(|| part.fill_bytes(65, &[])));
        assert!(panics(|| part.read_bytes(usize::MAX, &mut [0; 2])) && panics(|| part.pointer(64, 1)));
        assert!(panics(|| mem.slice(64, 65)) && panics(|| mem.slice(192, 0)) && panics(|| mem.slice(32, 32)));
        part.word(7).store(5, Ordering::Relaxed);
        assert!(panics(|| part.word(8).load(Ordering::Relaxed)) && panics(|| part.single(8)));
        assert_eq!(part.quad(4)[3].load(Ordering::Relaxed), 5);
        assert!(panics(|| part.quad(5)[0].load(Ordering::Relaxed)));
    }

    /// Memory that may be read only.
    struct ReadOnly(Arc<Heap>);

    // SAFETY: the heap's.
    unsafe impl Backing for ReadOnly {
        fn base(&self) -> NonNull<u8> {
            self.0.base()
        }
        fn bytes(&self) -> usize {
            self.0.bytes()
        }
        fn writable(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_may_only_be_read_is_not_taken() {
        let mem = SharedMem::new(Arc::new(ReadOnly(Heap::new(64))));
        assert!(panics(|| mem.take(0, 8)) && !panics(|| mem.read_bytes(0, &mut [0; 8])));
        assert!(panics(|| SharedMem::new(Heap::new(64)).take(60, 5)), "past the end");
    }

    proptest! {
        /// Taking copies what draining does, to as far as there is room, and leaves everything as it is.
        #[test]
        fn what_is_taken_is_copied_and_stays(
            cuts in proptest::collection::vec(0usize..1500, 1..5), offset in 0usize..200, skip in 0usize..300, len in 0usize..3800,
            engine in prop_oneof![Just(Engine::Plain), Just(Engine::Ahead)],
        ) {
            let mem = SharedMem::new(Heap::new(4096));
            let bytes: Vec<u8> = (0..4096usize).map(|i| (i * 7 + i / 251) as u8).collect();
            mem.fill_bytes(0, &bytes);
            let mut rooms = [(); 2].map(|()| cuts.iter().map(|n| vec![0u8; *n]).collect::<Vec<_>>());
            let [taken, drained] = [true, false].map(|taking| {
                let iov: Vec<_> = rooms[usize::from(taking)].iter_mut().map(|room| user::of_slice(room)).collect();
                if taking { mem.drain_taking(engine, offset, &iov, skip, len) } else { mem.drain(offset, &iov, skip, len) }
            });
            prop_assert_eq!(taken, drained);
            prop_assert_eq!(&rooms[0], &rooms[1]);
            let mut after = vec![0; 4096];
            mem.read_bytes(0, &mut after);
            prop_assert_eq!(after, bytes);
        }
    }

    #[test]
    fn a_word_keeps_the_memory_that_it_is_in() {
        let (one, other) = (Heap::new(64), Heap::new(64));
        let (first, second) = (Arc::downgrade(&one), Arc::downgrade(&other));
        let mut word = SharedMem::new(one).single(0);
        word.aim(&SharedMem::new(other), 1);
        assert!(first.upgrade().is_none() && second.upgrade().is_some());
        word.get().store(1, Ordering::Relaxed);
    }
}
