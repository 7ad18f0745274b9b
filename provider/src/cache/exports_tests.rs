//! What is found, kept and forgotten. The long tests, with stamps in the memory, are in `provider/tests/cache/`.
#![expect(unsafe_code)]
// UNSAFETY: maps and unmaps memory that only the test knows.

use super::*;
use crate::mem::apart;
use crate::sys::fork;
use core::ptr::null_mut;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

const LEN: usize = 256 << 10;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn memfd(seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("exports", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&fd, LEN as u64).expect("size");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seal");
    fd
}

/// Where nobody else maps anything into what is unmapped: it would be unmapped with the rest.
fn map(fd: &OwnedFd, flags: MapFlags) -> usize {
    // SAFETY: a fresh mapping.
    unsafe { rustix::mm::mmap(apart::room(LEN), LEN, RW, flags | MapFlags::FIXED_NOREPLACE, fd, 0) }.expect("map") as usize
}

fn unmap(at: usize, len: usize) {
    // SAFETY: memory that only this test knows.
    unsafe { rustix::mm::munmap(at as *mut _, len) }.expect("unmap");
}

/// The monitor is one for the process: what one test unmaps puts the others in doubt.
fn alone() -> parking_lot::MutexGuard<'static, ()> {
    static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    ALONE.lock()
}

/// Looks until it is found: the monitor may still be busy with the change before.
fn sure(exports: &mut Exports, at: usize, len: usize) -> (u32, usize, usize, u64) {
    for _ in 0..100_000 {
        if let Some(found) = found(exports, at, len) {
            return found;
        }
        std::thread::yield_now();
    }
    panic!("never found: {:?}, {:?}", exports.explain(at, len), exports.counts());
}

fn found(exports: &mut Exports, at: usize, len: usize) -> Option<(u32, usize, usize, u64)> {
    exports.look(at, len).map(|e| (e.id, e.base, e.len, e.offset))
}

#[test]
fn a_buffer_that_comes_again_is_found_until_it_is_unmapped() {
    // What other tests unmap would put these ranges in doubt, too, and a look then finds nothing.
    fork::alone("cache::exports::tests::a_buffer_that_comes_again_is_found_until_it_is_unmapped", || {
        let mut exports = Exports::default();
        assert_eq!(exports.refusal(), None);
        let fd = memfd(SealFlags::SHRINK);
        let at = map(&fd, MapFlags::SHARED);
        assert_eq!(found(&mut exports, at + 4096, 8192), None, "once");
        let whole = Some((1, at, LEN, 0));
        assert_eq!(found(&mut exports, at + 4096, 8192), whole, "again");
        assert_eq!(found(&mut exports, at, LEN), whole, "all of it");
        assert_eq!(found(&mut exports, at, LEN + 1), None, "not more");
        assert_eq!(found(&mut exports, at, 0), None);
        assert_eq!(found(&mut exports, usize::MAX, 2), None);
        assert!(exports.settled());
        assert_eq!(exports.retired(), None);
        unmap(at + 4096, 4096);
        assert_eq!(found(&mut exports, at + 8192, 4096), None);
        while exports.counts().changed == 0 {
            exports.tend();
        }
        assert_eq!(exports.retired(), Some(1));
        assert_eq!(exports.size(), (0, 0, 0));
        assert_eq!(sure(&mut exports, at + 8192, 4096), (2, at + 8192, LEN - 8192, 8192));
        assert_eq!(exports.counts().changed, 1);
        unmap(at, LEN);
        drop(fd);
        assert_eq!(found(&mut exports, at + 8192, 4096), None);
    });
}

#[test]
fn each_range_has_a_number_and_a_file_is_open_once() {
    let _alone = alone();
    let mut exports = Exports::new(Budget { count: 2, bytes: usize::MAX }, Oversight::Monitored);
    let (fd, other) = (memfd(SealFlags::SHRINK), memfd(SealFlags::SHRINK));
    let at: Vec<usize> = [&fd, &fd, &other].map(|fd| map(fd, MapFlags::SHARED)).to_vec();
    let mut ids = Vec::new();
    for at in &at {
        ids.push(sure(&mut exports, *at, LEN).0);
    }
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(exports.size(), (2, 2, 2 * LEN), "the first range was pushed out, its file is still used");
    assert_eq!((exports.retired(), exports.retired()), (Some(1), None));
    let write = exports.open(2, at[1], true).expect("for writing");
    assert_eq!(rustix::io::pwrite(&write, b"hello", 3), Ok(5));
    let read = exports.open(2, at[1], false).expect("for reading");
    let mut hello = [0; 5];
    assert_eq!((rustix::io::pread(&read, &mut hello, 3), &hello), (Ok(5), b"hello"));
    assert_eq!(rustix::io::pwrite(&read, b"hello", 3), Err(Errno::BADF));
    rustix::fs::fcntl_add_seals(&other, SealFlags::FUTURE_WRITE).expect("seal");
    assert_eq!(exports.open(3, at[2], true).expect_err("sealed"), Errno::PERM);
    assert_eq!(exports.open(2, at[2], false).expect_err("another range"), Errno::NOENT);
    exports.clear();
    assert_eq!(exports.open(2, at[1], false).expect_err("ended"), Errno::NOENT);
    let mut retired = [exports.retired(), exports.retired()];
    retired.sort_unstable();
    assert_eq!(retired, [Some(2), Some(3)]);
    at.iter().for_each(|at| unmap(*at, LEN));
}

#[test]
fn what_peers_cannot_have_is_explained_and_rarely_tried() {
    let _alone = alone();
    let mut exports = Exports::default();
    let loose = memfd(SealFlags::empty());
    let fd = memfd(SealFlags::SHRINK);
    let local = [0u8; 64];
    let orphan = {
        let closed = memfd(SealFlags::SHRINK);
        map(&closed, MapFlags::SHARED)
    };
    for (at, why) in [
        (map(&loose, MapFlags::SHARED), "sealed"),
        (map(&fd, MapFlags::PRIVATE), "private"),
        (local.as_ptr() as usize, "private"),
        (orphan, "descriptor"),
    ] {
        let said = exports.explain(at, 64).expect_err(why);
        assert!(said.contains(why), "{said}");
        let before = exports.counts().refused;
        for _ in 0..100 {
            assert_eq!(found(&mut exports, at, 64), None);
        }
        assert_eq!(exports.counts().refused - before, 6, "tries: at 2, 4, 8, …");
    }
    assert_eq!(exports.explain(map(&fd, MapFlags::SHARED), LEN), Ok(()));
}

/// The kernel makes one mapping of two that are beside each other in memory and in the file, once both are watched.
#[test]
fn neighbours_that_become_one_mapping_keep_their_offsets() {
    let _alone = alone();
    let mut exports = Exports::default();
    let fd = memfd(SealFlags::SHRINK);
    let at = map(&fd, MapFlags::SHARED);
    let (half, middle) = (LEN / 2, at + LEN / 2);
    unmap(middle, half);
    let first = sure(&mut exports, at, half);
    assert_eq!((first.1, first.2, first.3), (at, half, 0));
    // SAFETY: where there was memory that only this test knows.
    unsafe { rustix::mm::mmap(middle as *mut _, half, RW, MapFlags::SHARED | MapFlags::FIXED, &fd, half as u64) }.expect("map");
    let second = sure(&mut exports, middle, half);
    assert_eq!((second.1, second.2, second.3), (middle, half, half as u64));
    assert_eq!(exports.size().0, 1, "one file");
    unmap(at, LEN);
}

#[test]
fn windows_hold_the_buffer() {
    let area = 3 * WINDOW / 2..5 * WINDOW;
    let at = |start, end| window(&area, &(start..end));
    assert_eq!(at(3 * WINDOW / 2 + 5, 3 * WINDOW / 2 + 6), 3 * WINDOW / 2..2 * WINDOW);
    assert_eq!(at(2 * WINDOW, 3 * WINDOW), 2 * WINDOW..3 * WINDOW);
    assert_eq!(at(3 * WINDOW - 1, 3 * WINDOW + 1), 2 * WINDOW..4 * WINDOW);
    assert_eq!(at(5 * WINDOW - 1, 5 * WINDOW), 4 * WINDOW..5 * WINDOW);
}

/// Two caches know the same range; one of them forgets it late, at a place that the other has cached anew.
#[test]
fn caches_do_not_end_each_others_watches() {
    let _alone = alone();
    let (mut one, mut two) = (Exports::default(), Exports::default());
    let fd = memfd(SealFlags::SHRINK);
    let at = map(&fd, MapFlags::SHARED);
    for exports in [&mut one, &mut two] {
        sure(exports, at, LEN);
    }
    one.clear();
    // SAFETY: over memory that only this test knows.
    unsafe { rustix::mm::mmap(at as *mut _, LEN, RW, MapFlags::SHARED | MapFlags::FIXED, &fd, 0) }.expect("map");
    sure(&mut one, at, LEN);
    while !two.cache.tend() {}
    assert_eq!(two.size().1, 0, "two was told although one had ended its own watch");
    unmap(at, LEN);
    assert_eq!(found(&mut one, at, LEN), None, "one is told although two has ended its old watch");
}

/// Whether the monitor watches all of a range: nobody else can then.
fn is_watched(range: Range<usize>) -> bool {
    let other = crate::sys::userfault::Userfault::open().expect("userfaultfd");
    other.watch(&range) == Err(Errno::BUSY)
}

/// A mapping behind which other memory lies, so that it must move to grow.
fn walled_in(fd: &OwnedFd) -> usize {
    let (nothing, both) = (ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: fresh memory, of which the first half becomes a mapping of the file.
    unsafe {
        let place = rustix::mm::mmap_anonymous(null_mut(), 2 * LEN, nothing, MapFlags::PRIVATE).expect("room");
        rustix::mm::mmap(place, LEN, both, MapFlags::SHARED | MapFlags::FIXED, fd, 0).expect("mapped") as usize
    }
}

/// What nobody caches any more costs nothing any more: neither what was pushed out or moved away, nor the rest of what was unmapped in
/// part.
#[test]
fn what_is_not_cached_is_not_watched() {
    let _alone = alone();
    let mut exports = Exports::new(Budget { count: 1, bytes: usize::MAX }, Oversight::Monitored);
    let fd = memfd(SealFlags::SHRINK);
    let (first, second) = (map(&fd, MapFlags::SHARED), map(&fd, MapFlags::SHARED));
    sure(&mut exports, first, LEN);
    assert!(is_watched(first..first + LEN));
    sure(&mut exports, second, LEN);
    assert!(!is_watched(first..first + LEN), "pushed out");
    assert!(is_watched(second..second + LEN));
    unmap(second + 8192, 4096);
    while exports.counts().changed == 0 {
        exports.tend();
    }
    assert!(!is_watched(second..second + 4096) && !is_watched(second + 16384..second + LEN), "the rest");
    let third = walled_in(&fd);
    sure(&mut exports, third, LEN);
    // SAFETY: memory that only this test knows.
    let moved = unsafe { rustix::mm::mremap(third as *mut _, LEN, LEN + 4096, rustix::mm::MremapFlags::MAYMOVE) };
    let moved = moved.expect("moved") as usize;
    assert_ne!(moved, third, "there was no room to grow");
    assert_eq!(found(&mut exports, third, LEN), None, "moved away");
    sure(&mut exports, first, LEN);
    assert!(!is_watched(moved..moved + LEN), "moved away");
    exports.clear();
    assert!(!is_watched(first..first + LEN), "cleared");
    sure(&mut exports, first, LEN);
    drop(exports);
    assert!(!is_watched(first..first + LEN), "dropped");
}

/// Emptied memory of a file is what it was; pages are not.
#[test]
fn emptying_ends_what_depends_on_pages() {
    // What other tests unmap would put these ranges in doubt, too, and a look then finds nothing.
    fork::alone("cache::exports::tests::emptying_ends_what_depends_on_pages", || {
        let fd = memfd(SealFlags::SHRINK);
        let at = map(&fd, MapFlags::SHARED);
        for (depends, stays) in [(Depends::OnMapping, true), (Depends::OnPages, false)] {
            let mut cache = Cache::new(BUDGET, depends, Oversight::Monitored);
            while !cache.fill(at, at..at + LEN, || Some(())) {}
            // SAFETY: memory that only this test knows.
            unsafe { rustix::mm::madvise(at as *mut _, LEN, rustix::mm::Advice::LinuxDontNeed) }.expect("emptied");
            while !cache.tend() {}
            assert_eq!(cache.find(at, LEN).is_some(), stays, "{depends:?}");
            assert_eq!(cache.ended().is_some(), !stays);
        }
    });
}

/// A value that was found out while its memory changed is not kept.
#[test]
fn what_changes_meanwhile_is_not_kept() {
    let _alone = alone();
    let fd = memfd(SealFlags::SHRINK);
    let mut cache = Cache::new(BUDGET, Depends::OnMapping, Oversight::Monitored);
    let at = map(&fd, MapFlags::SHARED);
    while !cache.fill(at, at..at + LEN, || Some(1)) {}
    cache.clear();
    while cache.ended().is_some() {}
    let kept = cache.fill(at, at..at + LEN, || {
        unmap(at, 4096);
        Some(2)
    });
    assert!(!kept, "its memory was unmapped");
    assert_eq!(cache.ended(), Some(2), "to be undone");
    assert!(!is_watched(at + 4096..at + LEN));
}

#[test]
fn what_comes_to_nothing_is_not_watched() {
    let _alone = alone();
    let fd = memfd(SealFlags::SHRINK);
    let mut cache = Cache::<()>::new(BUDGET, Depends::OnMapping, Oversight::Monitored);
    let (at, mut asked) = (map(&fd, MapFlags::SHARED), 0);
    while asked == 0 {
        let kept = cache.fill(at, at..at + LEN, || {
            asked += 1;
            None
        });
        assert!(!kept);
    }
    assert!(!is_watched(at..at + LEN));
    unmap(at, LEN);
}

/// A buffer that was cached and is not any more must come twice again.
#[test]
fn what_was_cached_is_new_afterwards() {
    let _alone = alone();
    let fd = memfd(SealFlags::SHRINK);
    let mut cache = Cache::new(BUDGET, Depends::OnMapping, Oversight::Monitored);
    let at = map(&fd, MapFlags::SHARED);
    assert!(!cache.again(at) && cache.again(at));
    while !cache.fill(at, at..at + LEN, || Some(())) {}
    cache.clear();
    assert!(!cache.again(at) && cache.again(at));
    unmap(at, LEN);
}

/// Who comes after more changes than the board holds forgets everything.
#[test]
fn a_cache_that_lost_news_forgets_all() {
    let _alone = alone();
    let fd = memfd(SealFlags::SHRINK);
    let (mut one, mut busy) = (Exports::default(), Exports::default());
    let (at, other) = (map(&fd, MapFlags::SHARED), map(&fd, MapFlags::SHARED));
    sure(&mut one, at, LEN);
    sure(&mut busy, other, LEN);
    unmap(at, LEN);
    for _ in 0..1000 {
        // SAFETY: memory that only this test knows.
        unsafe { rustix::mm::madvise(other as *mut _, LEN, rustix::mm::Advice::LinuxDontNeed) }.expect("emptied");
    }
    assert_eq!(found(&mut one, at, LEN), None);
    while one.counts().lost == 0 {
        one.tend();
    }
    assert_eq!(found(&mut one, at, LEN), None);
    assert_eq!(one.size().1, 0);
}

/// Ranges that cannot be watched are not cached, whatever is known of them.
#[test]
fn what_cannot_be_watched_is_not_cached() {
    let _alone = alone();
    let fd = memfd(SealFlags::SHRINK);
    let at = map(&fd, MapFlags::SHARED);
    let other = crate::sys::userfault::Userfault::open().expect("userfaultfd");
    other.watch(&(at..at + LEN)).expect("watched by the program itself");
    let mut exports = Exports::default();
    for _ in 0..100 {
        assert_eq!(found(&mut exports, at, LEN), None);
    }
    assert_eq!(exports.explain(at, LEN), Ok(()), "but for that it could be mapped");
}

/// Puts a mapping where the test has reserved addresses, so that no other test gets them in between: of a file, or, to unmap that, of nothing.
fn place_at(at: usize, fd: Option<&OwnedFd>) {
    // SAFETY: over addresses that only this test knows.
    let put = unsafe {
        match fd {
            Some(fd) => rustix::mm::mmap(at as *mut _, LEN, RW, MapFlags::SHARED | MapFlags::FIXED, fd, 0),
            None => rustix::mm::mmap_anonymous(at as *mut _, LEN, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::FIXED),
        }
    };
    assert_eq!(put.expect("map") as usize, at);
}

/// Uses of memory that is mapped at one place, used `uses` times, and unmapped, `rounds` times. How often it was registered, and found.
fn one_shots(exports: &mut Exports, rounds: usize, uses: usize) -> (u64, u64) {
    let fd = memfd(SealFlags::SHRINK);
    let at = map(&fd, MapFlags::SHARED);
    place_at(at, None);
    let before = exports.counts();
    for _ in 0..rounds {
        place_at(at, Some(&fd));
        for _ in 0..uses {
            // Not while the monitor is busy with the change before, or with one of another test: then no look-up counts.
            while !exports.cache.tend() {
                std::thread::yield_now();
            }
            exports.look(at, LEN);
        }
        place_at(at, None);
    }
    let after = exports.counts();
    unmap(at, LEN);
    (after.filled - before.filled, after.hits - before.hits)
}

/// A program that maps, sends and unmaps at one place does not pay for registrations that die with their mapping; one that sends often enough in
/// between has them. (That other tests change memory at the same time makes a few fewer.)
#[test]
fn memory_that_is_used_once_is_not_registered_each_time() {
    let _alone = alone();
    let mut exports = Exports::default();
    let (filled, hits) = one_shots(&mut exports, 4000, 1);
    // After 2, 4, 8, … 1024 uses, and then every 1024th.
    assert!((5..=13).contains(&filled) && hits == filled, "{filled} registrations, {hits} hits");
    let (filled, _) = one_shots(&mut Exports::new(BUDGET, Oversight::Tireless), 4000, 1);
    assert!((1000..=2000).contains(&filled), "every second time without habits: {filled}");
    let (filled, hits) = one_shots(&mut exports, 100, 40);
    assert!(filled >= 40 && hits >= filled * 25, "mappings that serve are registered again soon: {filled}, {hits}");
}
