//! Buffers of gigabytes out of a few megabytes: the same pages again and again, and private ones where bytes are looked at.
#![expect(unsafe_code)]
// UNSAFETY: maps what it then hands out as slices, one at a time.

use crate::common::seg;
use core::ops::Range;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustmx::UserSeg;

const PAGE: usize = 4096;
/// Bytes that come again: a prime number of pages, so no chunk, fragment, or power of two is a multiple of it.
const PERIOD: usize = 2053 * PAGE;
/// Where a buffer begins in its first page.
const LEAD: usize = 1003;
/// Bytes of the end that are looked at.
const LAST: usize = 256 << 10;
/// Between bytes of a sealed buffer that are looked at, too.
const BETWEEN: usize = 1 << 20;
/// What is in a buffer before a message comes.
pub const BLANK: u8 = 0xee;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Numbers beyond which some type ends.
pub const BORDERS: [usize; 3] = [0, 1 << 31, 1 << 32];

/// A buffer. It stays as long as the process.
#[derive(Clone, Copy)]
pub struct Vast {
    first: usize,
    len: usize,
    /// The pages that come again, once more; `None`: all are in one file.
    common: Option<usize>,
}

fn map(at: usize, bytes: usize, fd: Option<&rustix::fd::OwnedFd>, prot: ProtFlags, fixed: bool) -> usize {
    let fixed = if fixed { MapFlags::FIXED } else { MapFlags::NORESERVE };
    let at = at as *mut core::ffi::c_void;
    // SAFETY: at no address of the caller's choice but within a range that `Vast::blank` has reserved, and that nobody knows yet.
    let mapped = unsafe {
        match fd {
            Some(fd) => rustix::mm::mmap(at, bytes, prot, MapFlags::SHARED | fixed, fd, 0),
            None => rustix::mm::mmap_anonymous(at, bytes, prot, MapFlags::PRIVATE | fixed),
        }
    };
    mapped.expect("mmap") as usize
}

/// The byte at a place of a message, as far as it is looked at: not that of any place nearby, nor of one that is a round number away.
fn byte(place: usize) -> u8 {
    ((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8
}

impl Vast {
    /// A buffer of `len` bytes, blank.
    pub fn blank(len: usize) -> Vast {
        let fd = rustix::fs::memfd_create("again", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, PERIOD as u64).expect("size");
        // A page before and behind, so that what is beside the message can be looked at, too.
        let pages = (LEAD + len).next_multiple_of(PAGE) + 2 * PAGE;
        let start = map(0, pages, None, ProtFlags::empty(), false);
        for at in (0..pages).step_by(PERIOD) {
            map(start + at, PERIOD.min(pages - at), Some(&fd), RW, true);
        }
        let vast = Vast { first: start + PAGE + LEAD, len, common: Some(map(0, PERIOD, Some(&fd), RW, false)) };
        for place in vast.places() {
            // With the bytes beside the first and the last of the message.
            let from = (vast.first + place.start) & !(PAGE - 1);
            let to = (vast.first + place.end + 1).next_multiple_of(PAGE);
            map(from, to - from, None, RW, true);
        }
        vast.common().fill(BLANK);
        for place in vast.places() {
            vast.bytes(place).fill(BLANK);
        }
        vast.beside().into_iter().for_each(|edge| edge.fill(BLANK));
        vast
    }

    /// A blank buffer in one sealed file, which can be lent: it takes as much memory as it is long, once that is written or read.
    pub fn sealed(len: usize) -> Vast {
        let fd = rustix::fs::memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        let bytes = (LEAD + len).next_multiple_of(PAGE) + 2 * PAGE;
        rustix::fs::ftruncate(&fd, bytes as u64).expect("size");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
        let vast = Vast { first: map(0, bytes, Some(&fd), RW, false) + PAGE + LEAD, len, common: None };
        // Nobody can lend a file that is open nowhere.
        std::mem::forget(fd);
        vast.places().into_iter().for_each(|place| vast.bytes(place).fill(BLANK));
        vast.beside().into_iter().for_each(|edge| edge.fill(BLANK));
        vast
    }

    /// The same with a message in it.
    pub fn sealed_full(len: usize) -> Vast {
        let vast = Vast::sealed(len);
        vast.stamp();
        (0..len).step_by(BETWEEN).for_each(|at| vast.bytes(at..at + 1)[0] = byte(at));
        vast
    }

    /// A buffer with a message in it.
    pub fn full(len: usize) -> Vast {
        let vast = Vast::blank(len);
        for (i, word) in vast.common().chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        }
        vast.stamp();
        vast
    }

    /// Writes the bytes that are looked at one by one.
    fn stamp(&self) {
        for place in self.places() {
            let from = place.start;
            self.bytes(place).iter_mut().enumerate().for_each(|(i, b)| *b = byte(from + i));
        }
    }

    /// Makes the first bytes of it blank that are looked at.
    pub fn blank_again(&self, len: usize) {
        self.bytes(0..len).fill(BLANK);
    }

    /// Whether the first `len` bytes are those of such a message, as far as can be told, and nothing beside is written.
    pub fn check(&self, len: usize) -> Result<(), String> {
        for place in self.places() {
            let (from, to) = (place.start, place.end.min(len));
            let bytes = self.bytes(place);
            let wrong = bytes.iter().enumerate().position(|(i, b)| *b != if from + i < to { byte(from + i) } else { BLANK });
            if let Some(wrong) = wrong {
                let at = from + wrong;
                return Err(format!("byte {at} ({at:#x}) of {len}: {:#x}, and not {:#x}", bytes[wrong], byte(at)));
            }
        }
        if self.beside().iter().any(|edge| edge.iter().any(|b| *b != BLANK)) {
            return Err("beside the buffer".into());
        }
        if self.common.is_none() {
            let wrong = (0..len).step_by(BETWEEN).find(|at| self.bytes(*at..at + 1)[0] != byte(*at));
            return wrong.map_or(Ok(()), |at| Err(format!("byte {at} ({at:#x}) of {len}, between borders")));
        }
        // Wherever it is mapped, the same was written to each of these pages.
        let again = self.common().chunks_exact(8).enumerate();
        for (i, word) in again {
            if *word != (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes() {
                return Err(format!("the pages that come again, at {}", 8 * i));
            }
        }
        Ok(())
    }

    /// Parts of a message in private pages: around each border, and at the end.
    fn places(&self) -> Vec<Range<usize>> {
        let around = |b: usize| b.saturating_sub(2 * PAGE)..b + 2 * PAGE;
        let mut all: Vec<_> = BORDERS.into_iter().filter(|b| b + (1 << 20) < self.len).map(around).collect();
        all.push(self.len.saturating_sub(LAST)..self.len);
        all
    }

    fn common(&self) -> &'static mut [u8] {
        self.common.map_or(&mut [], |at| raw(at, PERIOD))
    }

    /// The bytes just before the message, and just behind it.
    fn beside(&self) -> [&'static mut [u8]; 2] {
        [raw(self.first - 1, 1), raw(self.first + self.len, 1)]
    }

    pub fn bytes(&self, place: Range<usize>) -> &'static mut [u8] {
        raw(self.first + place.start, place.len())
    }

    /// Its bytes, as pieces that end there.
    pub fn pieces(&self, ends: &[usize]) -> Vec<UserSeg> {
        let ends = ends.iter().copied().filter(|end| *end < self.len).chain([self.len]);
        let mut from = 0;
        ends.map(|end| seg(self.bytes(std::mem::replace(&mut from, end)..end))).collect()
    }
}

fn raw(at: usize, len: usize) -> &'static mut [u8] {
    // SAFETY: within what `Vast::blank` has mapped for as long as the process lives. Slices of one buffer are not held at the same time.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }
}
