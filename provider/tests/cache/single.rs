//! One thread does everything to its memory that Linux lets it do, and looks in between: every call has returned, so no answer may be
//! stale.

use super::common::Rng;
use super::space::{self, Answer, PAGE, Space, write};
use rustix::mm::Advice;
use rustmx::cache::exports::Exports;
use std::collections::BTreeMap;

const PAGES: usize = 512;
const FILES: usize = 5;
/// Pages of one operation, and of one buffer.
const LONGEST: usize = 24;

/// What was seen.
#[derive(Default)]
pub struct Seen {
    pub looks: u64,
    pub hits: u64,
    pub stale: u64,
    pub done: BTreeMap<&'static str, u64>,
}

pub struct Torture {
    space: Space,
    rng: Rng,
    exports: Exports,
    pub seen: Seen,
    /// Buffers that are looked at again and again.
    favourites: Vec<std::ops::Range<usize>>,
}

impl Torture {
    pub fn new(exports: Exports, seed: u64) -> Torture {
        let mut torture =
            Torture { space: Space::new(PAGES, FILES), rng: Rng(seed), exports, seen: Seen::default(), favourites: Vec::new() };
        torture.favourites = (0..24).map(|_| torture.pages()).collect();
        torture
    }

    pub fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.change();
            for _ in 0..4 {
                let pages = if self.rng.one_in(4) { self.pages() } else { self.favourite() };
                self.look(&pages);
                self.look(&pages);
            }
        }
    }

    pub fn counts(&self) -> String {
        let counts = self.exports.counts();
        let Seen { looks, hits, stale, done } = &self.seen;
        format!("looks={looks} hits={hits} stale={stale} changed={} lost={} {done:?}", counts.changed, counts.lost)
    }

    fn pages(&mut self) -> std::ops::Range<usize> {
        let start = self.rng.range(0, PAGES);
        start..(start + self.rng.range(1, LONGEST + 1)).min(PAGES)
    }

    fn favourite(&mut self) -> std::ops::Range<usize> {
        self.favourites[self.rng.range(0, self.favourites.len())].clone()
    }

    /// A look-up, compared with the truth.
    fn look(&mut self, pages: &std::ops::Range<usize>) {
        let (address, len) = (Space::address(pages.start) + 8 * self.rng.range(0, 16), pages.len() * PAGE - 256);
        let stamps = self.space.is_memory(pages).then(|| write(address, len));
        self.compare(address, len, stamps.as_deref());
    }

    /// `stamps`: what is in the buffer; `None`: nothing is there.
    fn compare(&mut self, address: usize, len: usize, stamps: Option<&[(usize, u64)]>) {
        self.seen.looks += 1;
        if let Some(export) = self.exports.look(address, len) {
            self.seen.hits += 1;
            let right = stamps.is_some_and(|stamps| Answer::of(&export).is_true(address, len, stamps));
            self.seen.stale += u64::from(!right);
        }
    }

    fn change(&mut self) {
        // Where something is known, most of the time.
        let pages = if self.rng.one_in(3) { self.pages() } else { self.favourite() };
        let (file, from) = (self.rng.range(0, FILES), self.rng.range(0, space::FILE_PAGES - 2 * LONGEST));
        let did = match self.rng.below(40) {
            0..=11 => {
                self.space.share(pages, file, from, true);
                "mmap file over"
            }
            12..=15 => {
                self.space.unmap(pages.clone());
                self.space.share(pages, file, from, false);
                "munmap, mmap"
            }
            16..=18 => {
                self.space.unmap(pages);
                "munmap"
            }
            19..=20 => {
                let loose = self.rng.one_in(2);
                self.space.localise(pages, loose);
                "mmap private over"
            }
            21..=25 => self.transfer(pages),
            26..=28 => self.resize(pages),
            29..=32 => self.empty(&pages),
            33 => self.replace_file(),
            34 => self.children(),
            35 => self.on_the_break(),
            36..=37 => self.on_the_stack(),
            _ => self.in_the_heap(),
        };
        *self.seen.done.entry(did).or_default() += 1;
    }

    fn transfer(&mut self, pages: std::ops::Range<usize>) -> &'static str {
        let to = self.rng.range(0, PAGES - LONGEST);
        let stays = self.rng.one_in(3);
        match self.space.transfer(pages, to, stays) {
            true if stays => "mremap, staying",
            true => "mremap elsewhere",
            false => "mremap refused",
        }
    }

    fn resize(&mut self, pages: std::ops::Range<usize>) -> &'static str {
        let now = self.rng.range(1, LONGEST);
        let shorter = now < pages.len();
        match self.space.resize(pages, now) {
            true if shorter => "mremap shorter",
            true => "mremap longer",
            false => "mremap refused",
        }
    }

    fn empty(&mut self, pages: &std::ops::Range<usize>) -> &'static str {
        let (advice, name) = self.rng.pick(&[(Advice::LinuxDontNeed, "MADV_DONTNEED"), (Advice::LinuxRemove, "MADV_REMOVE")]);
        if space::advise(Space::address(pages.start), pages.len(), advice) { name } else { "madvise refused" }
    }

    /// Closes a file that may be mapped, and opens another, which gets its number.
    fn replace_file(&mut self) -> &'static str {
        let file = self.rng.range(0, FILES);
        self.space.files[file] = space::memfd(true);
        "close, open"
    }

    /// Children know nothing, and what they do does not count here.
    fn children(&mut self) -> &'static str {
        if self.rng.one_in(8) {
            let status = std::process::Command::new("true").status().expect("true");
            assert!(status.success());
            return "exec";
        }
        let pages = self.favourite();
        let exports = &mut self.exports;
        let code = space::fork(|| {
            for page in 0..PAGES {
                if exports.look(Space::address(page), 64).is_some() || exports.settled() {
                    return 1;
                }
            }
            // Neither waits for a monitor nor ends the parent's watches.
            space::unmap(Space::address(pages.start), pages.len());
            exports.clear();
            0
        });
        // A child that finds something has a stale answer.
        self.seen.stale += u64::from(code == 1);
        assert!(code <= 1, "the child failed");
        "fork"
    }

    fn on_the_break(&mut self) -> &'static str {
        let (file, pages) = (self.rng.range(0, FILES), self.rng.range(1, LONGEST));
        let fd = self.space.files[file].try_clone().expect("dup");
        let there = space::over_the_break(pages, &fd, |address, is_there| {
            for _ in 0..3 {
                let stamps = is_there.then(|| write(address, pages * PAGE));
                self.compare(address, pages * PAGE, stamps.as_deref());
            }
        });
        if there { "brk" } else { "brk refused" }
    }

    /// A buffer on the stack, at an address that other frames use, too.
    #[inline(never)]
    fn on_the_stack(&mut self) -> &'static str {
        let buffer = [0u64; 2 * PAGE / 8];
        self.lend(buffer.as_ptr() as usize, size_of_val(&buffer));
        std::hint::black_box(&buffer);
        "stack"
    }

    /// Blocks of the allocator that this process runs with, small and large.
    fn in_the_heap(&mut self) -> &'static str {
        let len = self.rng.pick(&[PAGE, 16 * PAGE, 100 * PAGE, 1000 * PAGE]);
        let block = vec![0u64; len / 8];
        self.lend(block.as_ptr() as usize, len);
        std::hint::black_box(&block);
        "heap"
    }

    fn lend(&mut self, address: usize, len: usize) {
        for _ in 0..3 {
            let stamps = write(address, len);
            self.compare(address, len, Some(&stamps));
        }
    }
}
