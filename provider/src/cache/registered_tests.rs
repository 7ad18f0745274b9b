//! Registered buffers against what is in memory: everything is done to the pages, and what is sent out of a slot must be what the program sees there.

#![expect(unsafe_code, reason = "does to memory what a program may do to its own")]

use super::*;
use crate::mem::apart;
use crate::sys::{fork, tcp};
use core::ptr::null_mut;
use rustix::fd::OwnedFd;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

const PAGES: usize = 256;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Random numbers from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

/// Addresses of the test's own.
struct Space(usize);

/// Moves a mapping over whatever is at `to`. Whether that could be done. (rustix 1 forgets `MREMAP_FIXED` where it goes by the C library, as it does
/// under the thread sanitizer.)
fn move_to(from: *mut core::ffi::c_void, len: usize, to: *mut core::ffi::c_void) -> bool {
    // SAFETY: both are the space's own.
    unsafe { libc::mremap(from, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) == to }
}

fn map(at: usize, pages: usize, flags: MapFlags) -> usize {
    let flags = if at == 0 { flags } else { flags | MapFlags::FIXED };
    // SAFETY: fresh memory, at a place of the kernel's choice or in the space of the test.
    unsafe { rustix::mm::mmap_anonymous(at as *mut _, pages * PAGE, RW, flags) }.expect("map") as usize
}

impl Space {
    fn new() -> Space {
        // Where nobody else maps anything into what is unmapped, also for a moment.
        let (at, flags) = (apart::room(PAGES * PAGE), MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
        // SAFETY: fresh memory.
        Space(unsafe { rustix::mm::mmap_anonymous(at, PAGES * PAGE, RW, flags) }.expect("map") as usize)
    }

    fn at(&self, page: usize) -> usize {
        self.0 + page * PAGE
    }

    /// As the application's.
    fn buffer(&self, pages: &Range<usize>) -> UserSeg {
        // SAFETY: what is sent out of it is read before something is done to it.
        unsafe { UserSeg::new((self.at(pages.start) + 8) as *mut u8, pages.len() * PAGE - 100) }
    }

    fn write(&self, pages: &Range<usize>, stamp: u8) {
        // SAFETY: mapped, as all of the space always is.
        unsafe { core::ptr::write_bytes(self.at(pages.start) as *mut u8, stamp, pages.len() * PAGE) };
    }

    fn read(&self, buffer: UserSeg) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(buffer.address() as *const u8, buffer.len()) }.to_vec()
    }

    fn change(&self, pages: &Range<usize>, chance: &mut Chance) -> &'static str {
        let (at, len) = (self.at(pages.start), pages.len() * PAGE);
        // SAFETY: only pages of the space are touched, and it is whole again afterwards.
        unsafe {
            match chance.below(9) {
                0 => {
                    rustix::mm::munmap(at as *mut _, len).expect("unmap");
                    map(at, pages.len(), MapFlags::PRIVATE);
                    "munmap, mmap"
                }
                1 => {
                    map(at, pages.len(), MapFlags::PRIVATE);
                    "mmap over"
                }
                2 => {
                    rustix::mm::madvise(at as *mut _, len, Advice::LinuxDontNeed).expect("empty");
                    "MADV_DONTNEED"
                }
                3 => {
                    let elsewhere = map(0, pages.len(), MapFlags::PRIVATE);
                    let to = elsewhere as *mut _;
                    // Across the borders of mappings, of which watching makes more, some of it may have moved when it fails.
                    let _ = move_to(at as *mut _, len, to);
                    map(at, pages.len(), MapFlags::PRIVATE);
                    rustix::mm::munmap(to, len).expect("unmap");
                    "mremap away"
                }
                4 => {
                    let elsewhere = map(0, pages.len(), MapFlags::PRIVATE) as *mut _;
                    core::ptr::write_bytes(elsewhere as *mut u8, 77, len);
                    assert!(move_to(elsewhere, len, at as *mut _), "moved");
                    "mremap here"
                }
                5 => {
                    map(at, pages.len(), MapFlags::SHARED);
                    "shared memory"
                }
                6 => {
                    rustix::mm::mprotect(at as *mut _, len, MprotectFlags::READ).expect("protect");
                    rustix::mm::mprotect(at as *mut _, len, MprotectFlags::READ | MprotectFlags::WRITE).expect("protect");
                    "mprotect"
                }
                7 => "nothing",
                _ => child(),
            }
        }
    }
}

/// A child that ends some time later, and the parent writes meanwhile.
fn child() -> &'static str {
    // SAFETY: the child calls nothing but usleep(3) and _exit(2).
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: as above.
            unsafe {
                libc::usleep(2000);
                libc::_exit(0)
            }
        }
        _ => "fork",
    }
}

fn sockets() -> [OwnedFd; 2] {
    let listener = tcp::listen(([127, 0, 0, 1], 0).into()).expect("listen");
    let a = tcp::connect(tcp::own_address(&listener).expect("name"), None, 0).expect("connect");
    while !tcp::connected(&a).expect("connecting") {}
    [a, tcp::accept(&listener).expect("accept").0]
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    hits: u64,
    stale: u64,
}

/// Where no border between windows lies in what a test registers.
fn wide(oversight: Oversight) -> Registered {
    Registered { window: 1 << 46, ..Registered::new(oversight) }
}

/// Does things to memory, and sends it, in turn.
fn torture(oversight: Oversight, rounds: usize) -> Option<Seen> {
    let mut table = Uring::open(SLOTS).map_err(|why| println!("not tried: {why}")).ok()?;
    let mut held = wide(oversight);
    if let Some(why) = held.refusal() {
        println!("not tried: {why}");
        return None;
    }
    let ([a, b], space, mut chance, mut seen) = (sockets(), Space::new(), Chance(7), Seen::default());
    let favourites: Vec<Range<usize>> = (0..12).map(|_| some(&mut chance)).collect();
    let mut done = std::collections::BTreeMap::new();
    for round in 0..rounds {
        let pages = if chance.below(4) == 0 { some(&mut chance) } else { favourites[chance.below(favourites.len())].clone() };
        *done.entry(space.change(&pages, &mut chance)).or_insert(0) += 1;
        for step in 0..5 {
            let pages = &favourites[chance.below(favourites.len())];
            space.write(pages, (round * 5 + step) as u8);
            let buffer = space.buffer(pages);
            if held.may_hold(buffer) {
                let _ = held.hold(&table, buffer, buffer);
            }
            let Some(slot) = held.slot(buffer) else { continue };
            seen.hits += 1;
            let sent = table.send(&a, slot, buffer, 1, |_| {}).sent.expect("sent");
            let (mut got, mut bytes) = (0, vec![0; sent]);
            while got < sent {
                got += tcp::recv_bytes(&b, &mut bytes[got..]).unwrap_or(0);
            }
            seen.stale += u64::from(bytes != space.read(buffer)[..sent]);
        }
    }
    println!("{oversight:?}: {seen:?} {:?} {done:?}", held.counts());
    // SAFETY: children of this test's: all of them end by themselves.
    while unsafe { libc::waitpid(-1, null_mut(), libc::WNOHANG) } > 0 {}
    held.tend(&table);
    let (ranges, _) = held.size();
    assert_eq!(held.free.len() + ranges, SLOTS.into(), "a slot is lost");
    Some(seen)
}

fn some(chance: &mut Chance) -> Range<usize> {
    let start = chance.below(PAGES - 24);
    start..start + 1 + chance.below(24)
}

#[test]
fn what_is_sent_out_of_a_slot_is_what_is_mapped_there() {
    fork::alone("cache::registered::tests::what_is_sent_out_of_a_slot_is_what_is_mapped_there", || {
        let Some(seen) = torture(Oversight::Monitored, 3000) else { return };
        assert!(seen.hits > 1000 && seen.stale == 0, "{seen:?}");
    });
}

#[test]
fn without_the_monitor_it_is_not() {
    fork::alone("cache::registered::tests::without_the_monitor_it_is_not", || {
        let Some(seen) = torture(Oversight::Blind, 500) else { return };
        assert!(seen.stale > 0, "{seen:?}");
    });
}

/// Another kind of memory in the space.
fn put(at: usize, pages: usize, may: ProtFlags, flags: MapFlags, file: &OwnedFd) {
    // SAFETY: takes the place of pages of the space.
    unsafe { rustix::mm::mmap(at as *mut _, pages * PAGE, may, flags | MapFlags::FIXED, file, 0) }.expect("map");
}

/// Shared memory, whose pages others can take away, memory of files, what cannot be written, what has a hole, and what comes once are not registered. What was never
/// touched is.
#[test]
fn what_is_not_registered() {
    // Alone: other tests would map something into the hole.
    fork::alone("cache::registered::tests::what_is_not_registered", kinds);
}

fn kinds() {
    let Ok(table) = Uring::open(SLOTS) else { return };
    let mut held = wide(Oversight::Monitored);
    if held.refusal().is_some() {
        return;
    }
    let space = Space::new();
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&file, 16 * PAGE as u64).expect("grow");
    let place = |n: usize| n * 20..n * 20 + 16;
    let at = |n: usize| space.at(place(n).start);
    map(at(1), 16, MapFlags::SHARED);
    put(at(2), 16, RW, MapFlags::SHARED, &file);
    put(at(3), 16, RW, MapFlags::PRIVATE, &file);
    // SAFETY: pages of the space, which nobody touches but the kernel.
    unsafe {
        rustix::mm::mprotect(at(4) as *mut _, 16 * PAGE, MprotectFlags::READ).expect("protect");
        rustix::mm::mprotect((at(5) + 7 * PAGE) as *mut _, PAGE, MprotectFlags::empty()).expect("protect");
        rustix::mm::munmap((at(6) + 7 * PAGE) as *mut _, PAGE).expect("unmap");
        rustix::mm::madvise(at(7) as *mut _, 16 * PAGE, Advice::LinuxDontNeed).expect("empty");
    }
    let not = Err(NotHeld::Memory);
    let kinds = [
        (Ok(true), "its own"),
        (not, "shared"),
        (not, "a memfd"),
        (not, "a private view of a file"),
        (not, "read-only"),
        (not, "a part that nobody may touch"),
        (not, "a hole"),
        (Ok(true), "never touched"),
    ];
    for (n, (holds, kind)) in kinds.into_iter().enumerate() {
        let buffer = space.buffer(&place(n));
        assert!(!held.may_hold(buffer), "once is not again: {kind}");
        assert!(held.may_hold(buffer));
        assert_eq!(held.hold(&table, buffer, buffer), holds, "{kind}");
        assert_eq!(held.slot(buffer).is_some(), holds.is_ok());
        assert_eq!(held.may_hold(buffer), holds.is_ok(), "{kind} is tried less often");
    }
    assert_eq!(held.size(), (2, 32 * PAGE));
    assert_eq!(held.free.len(), SLOTS as usize - 2);
}

/// Huge pages of a pool (`MAP_HUGETLB`) are a file's; where there are none in it, nothing is seen here.
#[test]
fn huge_pages_of_a_pool_are_not_registered() {
    const HUGE: usize = 2 << 20;
    let Ok(table) = Uring::open(SLOTS) else { return };
    let mut held = Registered::new(Oversight::Monitored);
    // SAFETY: fresh memory.
    let at = unsafe { rustix::mm::mmap_anonymous(null_mut(), HUGE, RW, MapFlags::PRIVATE | MapFlags::HUGETLB) };
    let Ok(at) = at else { return println!("no huge pages here (vm.nr_hugepages): not tried") };
    // SAFETY: mapped just now, to the end of the process.
    let buffer = unsafe { UserSeg::new(at.cast(), HUGE / 2) };
    assert!(!held.may_hold(buffer) && (held.refusal().is_some() || held.may_hold(buffer)));
    assert_eq!(held.hold(&table, buffer, buffer), Err(NotHeld::Memory));
    assert_eq!(held.slot(buffer), None);
}

/// What is more than may be registered at all is not even tried, and said to be that.
#[test]
fn less_may_be_locked_than_a_buffer_is_long() {
    let Ok(table) = Uring::open(SLOTS) else { return };
    let mut held = Registered { bytes: 8 * PAGE, window: 2 * PAGE, ..Registered::new(Oversight::Monitored) };
    if held.refusal().is_some() {
        return;
    }
    let space = Space::new();
    let (long, short) = (space.buffer(&(0..9)), space.buffer(&(20..26)));
    assert!(!held.may_hold(long) && held.may_hold(long));
    assert_eq!(held.hold(&table, long, long), Err(NotHeld::Limits));
    assert!(!held.may_hold(long), "it is tried less often");
    // It may be in doubt: other tests unmap memory meanwhile.
    assert_ne!(held.hold(&table, short, short), Err(NotHeld::Limits));
}

/// More buffers than there is room for: the oldest go, and all slots are found again.
#[test]
fn room_is_limited() {
    // Alone: what other tests unmap puts everybody in doubt.
    fork::alone("cache::registered::tests::room_is_limited", buffers);
}

fn buffers() {
    let Ok(table) = Uring::open(SLOTS) else { return };
    let mut held = Registered::new(Oversight::Monitored);
    if held.refusal().is_some() {
        return;
    }
    let space = Space::new();
    for page in 0..PAGES {
        let buffer = space.buffer(&(page..page + 1));
        assert!(!held.may_hold(buffer));
        assert_eq!(held.hold(&table, buffer, buffer), Ok(true), "{page}");
    }
    assert_eq!((held.size().0, held.free.len()), (COUNT, SLOTS as usize - COUNT));
}

/// A long buffer that begins amid a page, as those of `malloc` do: its frames cross the borders of windows, and what is registered stays.
#[test]
fn frames_across_borders_push_nothing_out() {
    fork::alone("cache::registered::tests::frames_across_borders_push_nothing_out", frames);
}

fn frames() {
    const FRAME: usize = 16 * PAGE;
    let Ok(table) = Uring::open(SLOTS) else { return };
    let mut held = Registered { window: 4 * FRAME, ..Registered::new(Oversight::Monitored) };
    if held.refusal().is_some() {
        return;
    }
    let space = Space::new();
    let whole = space.buffer(&(0..PAGES));
    for _ in 0..4 {
        for at in (0..whole.len()).step_by(FRAME) {
            let frame = whole.part(at, FRAME);
            if held.may_hold(frame) {
                held.hold(&table, frame, whole).expect("registered");
            }
        }
    }
    let windows = (whole.address() + whole.len()).div_ceil(4 * FRAME) - whole.address() / (4 * FRAME);
    assert_eq!(held.size(), (windows, PAGES * PAGE));
    assert_eq!((held.counts().filled, held.counts().pushed_out), (windows as u64, 0));
    let mut at = 0;
    while at < whole.len() {
        let piece = whole.part(at, FRAME);
        let piece = piece.part(0, held.at_once(piece));
        assert!(held.slot(piece).is_some(), "{at}");
        at += piece.len();
    }
}

#[test]
fn windows() {
    let held = Registered { window: 16 * PAGE, ..Registered::new(Oversight::Blind) };
    let pages = |from: usize, to: usize| from * PAGE..to * PAGE;
    assert_eq!(held.around(&(PAGE + 5..2 * PAGE + 1), &(PAGE + 5..2 * PAGE + 1)), pages(1, 3));
    assert_eq!(held.around(&pages(20, 21), &pages(3, 100)), pages(16, 32));
    assert_eq!(held.around(&pages(30, 34), &pages(18, 40)), pages(18, 40));
    assert_eq!(held.around(&pages(2, 70), &pages(2, 70)), pages(2, 70));
}
