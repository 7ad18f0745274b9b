//! All arenas behind their lock, and the policy: which arena, when another, when memory goes back.

use crate::PAGE;
use crate::arena::{self, Arena};
use crate::lock::Lock;
use crate::table::{self, Found, SLOTS};
use core::sync::atomic::{AtomicUsize, Ordering};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Free memory that is kept; more than this is given back.
const KEEP: usize = 64 << 20;
/// An arena smaller than this is not worth a descriptor.
const LEAST: usize = 64 << 20;
/// Blocks that go to the C library, once an arena could not be made, before that is tried again.
const PATIENCE: u32 = 4096;
const ALIGN: usize = 2 << 20;
/// Stretches that cannot be given back that a purge meets before it stops.
const ASIDE: usize = 8;
/// A stretch that can be given back is found behind one that cannot if it is longer than this, and than 1/64 of both.
const STRIDE: usize = 8 << 20;

/// What the lock guards.
pub(crate) struct Heap {
    arenas: [Option<Arena>; SLOTS],
    count: usize,
    /// Blocks to pass on before another arena is tried.
    wait: u32,
    /// Bytes that are free and, as the last purge found, cannot be given back: locked in memory (mlock), most often.
    stuck: usize,
}

static HEAP: Lock<Heap> = Lock::new(Heap { arenas: [const { None }; SLOTS], count: 0, wait: 0, stuck: 0 });
/// Held while free memory is being given back, which takes long and is done outside the heap's lock. Taken before that one.
static PURGE: Lock<()> = Lock::new(());

/// Shortest block that we serve; none before [`begin`].
static MIN: AtomicUsize = AtomicUsize::new(usize::MAX);
static RESERVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// From now on there are arenas. Blocks of more than `most` bytes are left to the C library: a machine that does not have as much
/// refuses them there, while a sparse file can be of any size.
pub(crate) fn begin(min: usize, reserve: usize, most: usize) {
    MOST.store(most, Ordering::Relaxed);
    RESERVE.store(reserve.next_multiple_of(ALIGN), Ordering::Relaxed);
    MIN.store(min, Ordering::Release);
}

/// Whether a block of this size lies in an arena.
pub(crate) fn is_long(size: usize) -> bool {
    size >= MIN.load(Ordering::Acquire)
}

/// A block in an arena, and whether it may hold something other than zeros. Nothing if there is no arena to be had, or the
/// request is out of all proportion: then the C library is asked.
pub(crate) fn take(size: usize, align: usize) -> Option<(usize, bool)> {
    if size > MOST.load(Ordering::Relaxed) {
        return None;
    }
    let pages = u32::try_from(size.div_ceil(PAGE)).ok()?;
    let align = u32::try_from((align / PAGE).max(1)).ok().filter(|a| a.is_power_of_two())?;
    HEAP.with(|heap| {
        let found = heap.each().find_map(|a| a.take(pages, align));
        if found.is_some() {
            heap.unstick();
            return found;
        }
        if heap.wait > 0 {
            heap.wait -= 1;
            return None;
        }
        let bytes = (pages as usize).checked_add(align as usize)?.checked_mul(PAGE)?;
        let added = heap.add(bytes).is_ok();
        let found = if added { heap.each().last().and_then(|a| a.take(pages, align)) } else { None };
        if found.is_none() {
            // Also if there is an arena of which nothing can be mapped: the next one would be like it.
            heap.wait = PATIENCE;
        }
        found
    })
}

impl Heap {
    /// Another arena, with room for `bytes`.
    fn add(&mut self, bytes: usize) -> Result<(), Errno> {
        if self.count == SLOTS {
            return Err(Errno::NOMEM);
        }
        let needed = bytes.checked_next_multiple_of(ALIGN).ok_or(Errno::NOMEM)?;
        let mut size = RESERVE.load(Ordering::Relaxed).min(share()).max(needed);
        if size < LEAST {
            return Err(Errno::NOMEM);
        }
        let least = needed.max(LEAST);
        let arena = loop {
            match Arena::create(self.count, size) {
                // A limit on addresses, or on the size of files.
                Err(Errno::NOMEM | Errno::FBIG) if size > least => size = (size / 4).next_multiple_of(ALIGN).max(least),
                other => break other?,
            }
        };
        self.arenas[self.count] = Some(arena);
        self.count += 1;
        Ok(())
    }

    fn arena(&mut self, found: Found) -> Option<&mut Arena> {
        self.arenas[found.slot].as_mut()
    }

    /// All there are.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Arena> {
        self.arenas[..self.count].iter_mut().flatten()
    }

    /// Bytes that are free and have memory behind them.
    fn dirty(&mut self) -> usize {
        self.each().map(|a| a.dirty()).sum()
    }

    /// Forgets of what could not be given back as much as was handed out: whether it is still locked when it comes back is not
    /// known. Not all at once, or a program that allocates more than it frees would have a purge in vain at each free.
    fn unstick(&mut self) {
        if self.stuck > 0 {
            self.stuck = self.stuck.min(self.dirty());
        }
    }

    /// Whether more is kept than should be, and can be given back.
    fn full(&mut self) -> bool {
        self.unstick();
        self.dirty() > KEEP + self.stuck
    }

    /// Takes out a long free stretch that has memory, if there are more than half of what may be kept.
    fn take_dirty(&mut self) -> Option<Stretch> {
        if self.dirty() <= KEEP / 2 {
            return None;
        }
        let slot = (0..self.count).max_by_key(|i| self.arenas[*i].as_ref().map_or(0, Arena::dirty))?;
        let (address, len) = self.arenas[slot].as_mut()?.take_dirty()?;
        Some(Stretch { slot, address, len })
    }

    /// In a forked child, all arenas private: forgets those without blocks.
    pub(crate) fn settle(&mut self) {
        table::forget_all();
        let before = core::mem::replace(&mut self.count, 0);
        for at in 0..before {
            if let Some(mut arena) = self.arenas[at].take()
                && arena.settle(self.count)
            {
                self.arenas[self.count] = Some(arena);
                self.count += 1;
            }
        }
        (self.wait, self.stuck) = (0, 0);
    }
}

/// Addresses that an arena takes at most, unless one block needs more: with a limit on them a quarter of what is left.
/// The rest is the program's.
fn share() -> usize {
    let Some(limit) = getrlimit(Resource::As).current else { return usize::MAX };
    (limit as usize).saturating_sub(in_use().unwrap_or(0)) / 4 / ALIGN * ALIGN
}

/// Bytes of addresses that this process has, as the limit on them counts.
fn in_use() -> Option<usize> {
    let file = rustix::fs::open(c"/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 128];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let pages: usize = core::str::from_utf8(&text[..len]).ok()?.split(' ').next()?.parse().ok()?;
    pages.checked_mul(PAGE)
}

/// Bytes of the block that begins at `address`, or nothing if none does.
pub(crate) fn block(found: Found, address: usize) -> Option<usize> {
    HEAP.with(|heap| heap.arena(found)?.block(address))
}

/// Frees the block at `address`; false if none begins there.
pub(crate) fn release(found: Found, address: usize) -> bool {
    let (known, full) = HEAP.with(|heap| {
        let Some(arena) = heap.arena(found) else { return (false, false) };
        let known = arena.block(address).is_some();
        if known {
            arena.release(address);
        }
        (known, heap.full())
    });
    give_back(full);
    known
}

/// Makes the block at `address` `size` bytes long where it is. Whether that could be done.
pub(crate) fn resize(found: Found, address: usize, size: usize) -> bool {
    let Ok(pages) = u32::try_from(size.div_ceil(PAGE)) else { return false };
    let (done, full) = HEAP.with(|heap| (heap.arena(found).is_some_and(|a| a.resize(address, pages)), heap.full()));
    // A block that became shorter has left free memory behind.
    give_back(full);
    done
}

/// Gives memory back if more is kept than there should be.
fn give_back(full: bool) {
    if full {
        // If another thread is at it, it sees to this, too.
        PURGE.try_with(|()| purge());
    }
}

/// A part of an arena.
#[derive(Clone, Copy)]
struct Stretch {
    slot: usize,
    address: usize,
    len: usize,
}

/// What a purge could not give back. It stays out of the book until the end, or the next would be the same again.
struct Aside {
    all: [Option<Stretch>; ASIDE],
    count: usize,
}

/// Gives the longest free stretches back until half of what may be kept is left, not counting what cannot be. Under PURGE.
fn purge() {
    let mut aside = Aside { all: [None; ASIDE], count: 0 };
    while aside.count < ASIDE
        && let Some(stretch) = HEAP.with(Heap::take_dirty)
    {
        punch(stretch, &mut aside);
    }
    HEAP.with(|heap| {
        let mut stuck = 0;
        for Stretch { slot, address, len } in aside.all.into_iter().flatten() {
            stuck += len;
            if let Some(arena) = heap.arenas[slot].as_mut() {
                arena.put_back(address, false);
            }
        }
        // With everything locked (mlockall) there is no end of them.
        heap.stuck = if aside.count == ASIDE { heap.dirty() } else { stuck };
    });
}

/// Gives a stretch back, and sets aside what cannot be: free blocks of all kinds are one stretch if they are neighbours.
fn punch(stretch: Stretch, aside: &mut Aside) {
    let Stretch { slot, mut address, len } = stretch;
    let end = address + len;
    while address < end {
        let given = leading(address, end - address);
        let wrong = address + given;
        // Where there is no room for another one, this is the last, and all the rest.
        let stuck = match end - wrong {
            0 => 0,
            rest if aside.count + 1 < ASIDE => refused(wrong, rest),
            rest => rest,
        };
        HEAP.with(|heap| {
            let Some(arena) = heap.arenas[slot].as_mut() else { return };
            if given > 0 {
                arena.cut(address, given);
                arena.put_back(address, true);
            }
            if stuck > 0 {
                arena.cut(wrong, stuck);
            }
        });
        if stuck > 0 {
            aside.all[aside.count] = Some(Stretch { slot, address: wrong, len: stuck });
            aside.count += 1;
        }
        address = wrong + stuck;
    }
}

/// Gives back what can be before the first page that cannot; how many bytes that are.
fn leading(address: usize, len: usize) -> usize {
    if arena::punch(address, len) {
        return len;
    }
    // The kernel has punched up to that page, but does not say which it is.
    let (mut good, mut bad) = (0, len / PAGE);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if arena::punch(address + good * PAGE, (middle - good) * PAGE) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good * PAGE
}

/// Bytes from a page that cannot be given back to one that can. Short stretches that can may be among them.
fn refused(address: usize, len: usize) -> usize {
    let punched = |page: usize| arena::punch(address + page * PAGE, PAGE);
    let last = len / PAGE - 1;
    let longest = (STRIDE / PAGE).max(last / 64);
    let (mut bad, mut step) = (0, 1);
    let mut good = loop {
        if bad == last {
            return len;
        }
        let next = last.min(bad + step);
        if punched(next) {
            break next;
        }
        (bad, step) = (next, longest.min(step * 2));
    };
    while good - bad > 1 {
        let middle = bad.midpoint(good);
        if punched(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good * PAGE
}

/// Stops everything until [`go_on`]: nobody allocates, frees or gives back.
pub(crate) fn hold() {
    PURGE.acquire();
    HEAP.acquire();
}

/// Undoes [`hold`], in the same thread or in its image in a forked child.
pub(crate) fn go_on() {
    HEAP.release();
    PURGE.release();
}

/// The lock that [`hold`] has taken.
pub(crate) fn held() -> &'static Lock<Heap> {
    &HEAP
}
