//! The thread that reads what happens to watched memory (`cache/monitor.rs`) allocates nothing and takes no lock that a thread of the application can
//! hold: whoever unmaps memory waits for it, perhaps with the allocator's lock in its hands. So this program has an allocator with one lock for all,
//! which says who came; one thread unmaps while it holds that lock, and another one allocates and watches meanwhile. To begin the monitor's thread does
//! allocate: in another copy of this program it comes late to that.

#![expect(unsafe_code)]
// UNSAFETY: an allocator.

#[path = "common/mod.rs"]
mod common;
#[path = "cache/space.rs"]
#[allow(dead_code, reason = "the cache's tests use the rest")]
mod space;

use common::process;
use rustmx::cache::Oversight;
use rustmx::cache::exports::{BUDGET, Exports};
use space::{PAGE, Space};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// Who called, by the kernel's numbers of threads, and how often; nobody: 0.
type Callers = [(i32, u64); 64];

/// That of the C library behind a lock.
struct Locked(Mutex<Callers>);

/// The only thread that comes to the allocator at once; 0: all do.
static PROMPT: AtomicI32 = AtomicI32::new(0);
const LATE: Duration = Duration::from_millis(200);

fn own_number() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

impl Locked {
    fn call<R>(&self, act: impl FnOnce() -> R) -> R {
        let me = own_number();
        if ![0, me].contains(&PROMPT.load(Ordering::Relaxed)) {
            std::thread::sleep(LATE);
        }
        let mut callers = self.0.lock().expect("nobody panics with it");
        if let Some(place) = callers.iter_mut().find(|(thread, _)| [0, me].contains(thread)) {
            *place = (me, place.1 + 1);
        }
        act()
    }

    /// How often a thread called.
    fn calls_of(&self, thread: i32) -> u64 {
        let callers = self.0.lock().expect("as above");
        assert_eq!(callers.last(), Some(&(0, 0)), "more threads than there is room for");
        callers.iter().find(|(other, _)| *other == thread).map_or(0, |(_, calls)| *calls)
    }
}

// SAFETY: what the system's allocator promises.
unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: our caller's promises.
        self.call(|| unsafe { System.alloc(layout) })
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        self.call(|| unsafe { System.dealloc(block, layout) })
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.call(|| unsafe { System.realloc(block, layout, size) })
    }
}

#[global_allocator]
static ALLOCATOR: Locked = Locked(Mutex::new([(0, 0); 64]));

const ROUNDS: usize = 2000;
const PAGES: usize = 16;

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    match process::role().as_deref() {
        None => {}
        Some([word]) if word == "begins" => begins(),
        Some(_) => alone(),
    }
}

/// The first watch, and at once the first change.
fn begins() {
    let mut exports = Exports::new(BUDGET, Oversight::Tireless);
    let file = space::memfd(true);
    PROMPT.store(own_number(), Ordering::Relaxed);
    watched(&mut exports, 0, &file);
    {
        let _held = ALLOCATOR.0.lock().expect("as above");
        space::unmap(Space::address(0), PAGES);
    }
    PROMPT.store(0, Ordering::Relaxed);
    assert!(ALLOCATOR.calls_of(monitor()) > 0, "it did not come to the allocator, so this cannot fail");
    process::say("over");
}

fn alone() {
    let mut exports = Exports::new(BUDGET, Oversight::Tireless);
    // Once, so that its thread has begun, for which it allocates.
    watched(&mut exports, 0, &space::memfd(true));
    space::unmap(Space::address(0), PAGES);
    watched(&mut exports, 0, &space::memfd(true));
    let monitor = monitor();
    let before = ALLOCATOR.calls_of(monitor);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Watches and unwatches, for which it allocates.
            let mut exports = Exports::new(BUDGET, Oversight::Tireless);
            while !over.load(Ordering::Relaxed) {
                let file = space::memfd(true);
                for n in 1..9 {
                    watched(&mut exports, 2 * n * PAGES, &file);
                }
                (1..9).for_each(|n| space::unmap(Space::address(2 * n * PAGES), PAGES));
            }
        });
        for _ in 0..ROUNDS {
            {
                let _held = ALLOCATOR.0.lock().expect("as above");
                space::unmap(Space::address(0), PAGES);
            }
            watched(&mut exports, 0, &space::memfd(true));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(exports.counts().changed >= ROUNDS as u64, "{:?}", exports.counts());
    process::say(&format!("calls {}", ALLOCATOR.calls_of(monitor) - before));
}

/// Maps a file at a page of the space and has it watched.
fn watched(exports: &mut Exports, page: usize, file: &rustix::fd::OwnedFd) {
    let at = Space::address(page);
    assert!(space::map(at, PAGES, Some((file, 0)), true));
    let until = common::Deadline::new(60);
    while exports.look(at, PAGES * PAGE).is_none() {
        until.check(|| format!("it is not watched: {:?}", exports.refusal()));
    }
}

/// The kernel's number of the monitor's thread.
fn monitor() -> i32 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let named =
        |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|n| n == "rustmx-monitor\n");
    let task = tasks.into_iter().find(named).expect("the monitor runs");
    task.file_name().to_string_lossy().parse().expect("a number")
}

#[test]
fn nothing_is_watched_before_the_monitor_has_begun() {
    let mut copy = process::copy("role", "begins");
    let status = copy.ended_within(60);
    assert!(status.success(), "{status}");
    assert_eq!(copy.heard_last().as_deref(), Some("over"));
}

/// In a process of its own: one that waits for ever can tell nobody.
#[test]
fn who_unmaps_with_the_allocators_lock_held_returns() {
    let mut copy = process::copy("role", "alone");
    let status = copy.ended_within(120);
    assert!(status.success(), "{status}");
    assert_eq!(copy.heard_last().as_deref(), Some("calls 0"), "the monitor allocates");
}
