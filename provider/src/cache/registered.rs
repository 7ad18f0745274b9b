//! The second user of the cache: buffers that io_uring has pinned, so that it can send out of them without looking up their pages each time.
//!
//! What is cached for a range is a slot of the ring's table, and a slot stands for the *pages* that were there when it was registered. So only memory is
//! registered of which nobody else can change which pages it has: private memory of no file. Its owner's changes are told by the monitor, and a child
//! (fork(2)) gets copies of pinned pages. Shared memory is not: another process may empty a part of its file, and nobody here hears of that.

use super::ranges::Budget;
use super::store::{Cache, Counts, Depends, Oversight};
use crate::mem::user::UserSeg;
use crate::sys::backing::Maps;
use crate::sys::limits;
use crate::sys::uring::Uring;
use core::ops::Range;
use rustix::io::Errno;

/// Buffers that are registered at a time.
const COUNT: usize = 128;
/// Slots of the table: some more, for what is on its way in and out.
pub const SLOTS: u16 = COUNT as u16 + 8;
/// Bytes that are pinned at a time, at most, and the part of what may be locked: the rest is for others, and for what the kernel pins for each send.
const BYTES: usize = 256 << 20;
const SHARE: usize = 2;
/// What is registered of a long buffer at a time; less where little may be locked.
const WINDOW: usize = 8 << 20;
const PAGE: usize = 4096;

/// Why a buffer is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotHeld {
    /// More would be locked than may be.
    Limits,
    /// It cannot be pinned, or watched; or it was just being changed. It is tried again, ever more seldom.
    Memory,
}

/// The registered buffers of one ring.
pub struct Registered {
    cache: Cache<u16>,
    maps: Result<Maps, Errno>,
    free: Vec<u16>,
    /// What may be registered in all, and at a time.
    bytes: usize,
    window: usize,
}

/// The addresses of a buffer.
fn addresses(of: UserSeg) -> Range<usize> {
    of.address()..of.address().saturating_add(of.len())
}

/// The pages that they lie in.
fn pages(of: &Range<usize>) -> Range<usize> {
    of.start / PAGE * PAGE..of.end.div_ceil(PAGE).saturating_mul(PAGE)
}

impl Default for Registered {
    fn default() -> Registered {
        Registered::new(Oversight::Monitored)
    }
}

impl Registered {
    /// None yet, with as many bytes as may be locked.
    pub fn new(oversight: Oversight) -> Registered {
        let bytes = limits::lockable().map_or(BYTES, |most| BYTES.min(most / SHARE));
        // A power of two, so that what begins at a multiple of one is in as few as it can be.
        let window = WINDOW.min(1 << (bytes / 4).max(PAGE).ilog2());
        let cache = Cache::new(Budget { count: COUNT, bytes }, Depends::OnPages, oversight);
        Registered { cache, maps: Maps::open(), free: (0..SLOTS).rev().collect(), bytes, window }
    }

    /// Why nothing is ever registered, in words; `None`: something may be.
    pub fn refusal(&self) -> Option<String> {
        match (&self.maps, self.cache.refusal()) {
            (_, Some(why)) => Some(why.to_string()),
            (Err(why), None) => Some(format!("/proc cannot be asked: {why}")),
            (Ok(_), None) => None,
        }
    }

    /// Whether a buffer is registered, as far as it leaves at once, or came again and is worth trying. A few ns.
    pub fn may_hold(&mut self, buffer: UserSeg) -> bool {
        self.cache.find(buffer.address(), self.at_once(buffer)).is_some() || self.cache.again(buffer.address())
    }

    /// How much of a buffer leaves at once: what lies in one window. What is registered across the border of two would push out what each of them has.
    pub fn at_once(&self, buffer: UserSeg) -> usize {
        (self.window - buffer.address() % self.window).min(buffer.len())
    }

    /// Registers a buffer that is not, with what is around it in `whole`, which the application keeps as long. Whether that was needed.
    ///
    /// # Errors
    /// See there.
    pub fn hold(&mut self, table: &Uring, buffer: UserSeg, whole: UserSeg) -> Result<bool, NotHeld> {
        if pages(&addresses(buffer)).len() > self.bytes {
            self.cache.give_up(buffer.address(), 0);
            return Err(NotHeld::Limits);
        }
        let (mut at, mut needed) = (0, false);
        while at < buffer.len() {
            let rest = buffer.part(at, usize::MAX);
            let piece = rest.part(0, self.at_once(rest));
            needed |= self.hold_piece(table, piece, whole)?;
            at += piece.len();
        }
        Ok(needed)
    }

    fn hold_piece(&mut self, table: &Uring, buffer: UserSeg, whole: UserSeg) -> Result<bool, NotHeld> {
        if self.cache.find(buffer.address(), buffer.len()).is_some() {
            return Ok(false);
        }
        let pages = self.around(&addresses(buffer), &addresses(whole));
        self.sweep(table);
        let (maps, free) = (&self.maps, &mut self.free);
        let mut why = NotHeld::Memory;
        let kept = self.cache.fill(buffer.address(), pages.clone(), || {
            // Once it is watched: what is found out from here on is made void by what happens.
            if !maps.as_ref().is_ok_and(|maps| maps.is_own(&pages)) {
                return None;
            }
            let slot = free.pop()?;
            match table.register(slot, &pages) {
                Ok(()) => return Some(slot),
                Err(Errno::NOMEM) => why = NotHeld::Limits,
                Err(_) => {}
            }
            free.push(slot);
            None
        });
        self.sweep(table);
        if kept {
            return Ok(true);
        }
        self.cache.give_up(buffer.address(), 0);
        Err(why)
    }

    /// Whole pages: those of `want`, and of `whole` what lies in the same windows.
    fn around(&self, want: &Range<usize>, whole: &Range<usize>) -> Range<usize> {
        let start = whole.start.max(want.start / self.window * self.window).min(want.start);
        let end = whole.end.min(want.end.div_ceil(self.window).saturating_mul(self.window)).max(want.end);
        pages(&(start..end))
    }

    /// The slot of a buffer (as much as leaves [at once](Self::at_once)) that is registered, and still what is mapped there, calls of other threads that have not returned included. One system call.
    pub fn slot(&mut self, buffer: UserSeg) -> Option<u16> {
        let found = self.cache.find(buffer.address(), buffer.len())?;
        let slot = *self.cache.at(found).1;
        self.cache.settled().then_some(slot)
    }

    /// Takes what happened to the memory, and lets go of pages. One load if nothing happened.
    pub fn tend(&mut self, table: &Uring) {
        self.cache.tend();
        self.sweep(table);
    }

    /// Requests are answered before this is called, and what they left to be read the kernel keeps by itself: a slot can be emptied at any time.
    fn sweep(&mut self, table: &Uring) {
        while let Some(slot) = self.cache.ended() {
            table.empty(slot);
            self.free.push(slot);
        }
    }

    /// What the cache did.
    pub fn counts(&self) -> Counts {
        self.cache.counts()
    }

    /// Buffers and bytes that are registered.
    pub fn size(&self) -> (usize, usize) {
        self.cache.size()
    }
}

#[cfg(test)]
#[path = "registered_tests.rs"]
mod tests;
