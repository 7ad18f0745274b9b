//! [`Cache`]: ranges, candidates and the monitor's news put together.

use super::monitor::Monitor;
use super::news::{Kind, Since};
use super::ranges::{Budget, Ranges};
use super::recent::Recent;
use super::watches::Watch;
use crate::mem::atomic::{AtomicU64, Ordering};
use core::ops::Range;

/// What values stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depends {
    /// The pages themselves (pinned, translated): emptying the range ends the value.
    OnPages,
    /// A file and an offset in it, which a shared mapping shows whether its pages are there or not.
    OnMapping,
}

/// Who tells of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oversight {
    /// The monitor.
    Monitored,
    /// The same, and values are found out however often they ended in vain. **For tests only**, which want many of them.
    Tireless,
    /// Nobody. **For tests only**: the cache gives stale answers.
    Blind,
}

/// What a cache did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Look-ups that found something.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Of these, while changes were just being read.
    pub in_doubt: u64,
    /// Values found out for keeping.
    pub filled: u64,
    /// Attempts that came to nothing.
    pub refused: u64,
    /// Values that ended because their memory changed.
    pub changed: u64,
    /// Values that ended for want of room, or because a newer one overlaps them.
    pub pushed_out: u64,
    /// Times when everything was forgotten because too much had happened.
    pub lost: u64,
}

enum Source {
    Monitor(&'static Monitor),
    Blind,
    Refused(&'static str),
}

/// Calm for ever.
static BLIND: AtomicU64 = AtomicU64::new(2);
/// As in a child.
static NONE: AtomicU64 = AtomicU64::new(0);

/// Hits for which a value was worth what it cost: to find it out takes some 15 µs and a peer's mapping of it as much again, and a message gains one or two.
const WORTH: u64 = 16;

/// What is kept for a range.
struct Entry<V> {
    watch: Watch,
    value: V,
    /// First page of the buffer for which it was found out.
    page: usize,
}

/// What is not cached any more, and how often it was found.
type Out<V> = Vec<(Entry<V>, u64)>;

/// Values for ranges of addresses; `V` is what was dear to find out. Belongs to one owner at a time; many caches share the monitor.
pub struct Cache<V> {
    /// That of the source. First: the hot path.
    sequence: &'static AtomicU64,
    /// Its number when the changes were last taken.
    seen: u64,
    ranges: Ranges<Entry<V>>,
    recent: Recent,
    source: Source,
    depends: Depends,
    ended: Vec<V>,
    counts: Counts,
    /// What ended in vain is tried less often.
    habits: bool,
}

impl<V> Cache<V> {
    /// An empty one. Where there is no userfaultfd it stays empty; [`refusal`](Self::refusal) says why.
    pub fn new(budget: Budget, depends: Depends, oversight: Oversight) -> Cache<V> {
        let source = match (oversight, Monitor::get()) {
            (Oversight::Blind, _) => Source::Blind,
            (_, Ok(monitor)) => Source::Monitor(monitor),
            (_, Err(why)) => Source::Refused(why),
        };
        let sequence = match &source {
            Source::Monitor(monitor) => monitor.sequence(),
            Source::Blind => &BLIND,
            Source::Refused(_) => &NONE,
        };
        // In doubt: as before the changes that are being read.
        let seen = sequence.load(Ordering::Acquire).max(2) & !1;
        let (ranges, recent) = (Ranges::new(budget), Recent::default());
        let habits = oversight == Oversight::Monitored;
        Cache { sequence, seen, ranges, recent, source, depends, ended: Vec::new(), counts: Counts::default(), habits }
    }

    /// Why nothing is cached, in words.
    pub fn refusal(&self) -> Option<&str> {
        match &self.source {
            Source::Monitor(monitor) => monitor.refusal(),
            Source::Blind => None,
            Source::Refused(why) => Some(why),
        }
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Ranges and bytes that are cached.
    pub fn size(&self) -> (usize, usize) {
        (self.ranges.len(), self.ranges.bytes())
    }

    /// Whether something is known of the `len` bytes at `start`: a number for [`at`](Self::at), good until the next call.
    #[inline]
    pub fn find(&mut self, start: usize, len: usize) -> Option<usize> {
        let found = if self.sequence.load(Ordering::Acquire) == self.seen || self.catch_up() {
            start.checked_add(len).filter(|end| *end > start).and_then(|end| self.ranges.find(&(start..end)))
        } else {
            self.counts.in_doubt += 1;
            None
        };
        match found {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        found
    }

    /// What was found: the range that is known, and its value.
    #[inline]
    pub fn at(&self, found: usize) -> (Range<usize>, &V) {
        let (range, entry) = self.ranges.at(found);
        (range, &entry.value)
    }

    /// After a hit in memory that other threads unmap and map: whether the answer still held when this was asked, calls that
    /// have not returned included (ADR 0015, first exception). One system call.
    pub fn settled(&self) -> bool {
        match &self.source {
            Source::Monitor(monitor) => monitor.settled() && self.sequence.load(Ordering::Acquire) == self.seen,
            Source::Blind => true,
            Source::Refused(_) => false,
        }
    }

    /// After a miss: whether a buffer that starts at `start` was used before and is worth [`fill`](Self::fill)ing. A few ns.
    #[inline]
    pub fn again(&mut self, start: usize) -> bool {
        self.recent.again(start >> 12)
    }

    /// [`fill`](Self::fill) came to nothing, or was not worth trying, for a buffer that starts at `start`: to be tried less often. `why` is
    /// the caller's, for [`given_up`](Self::given_up).
    pub fn give_up(&mut self, start: usize, why: u8) {
        self.counts.refused += 1;
        self.recent.refused(start >> 12, why);
    }

    /// Why such a buffer was given up, if it was lately.
    pub fn given_up(&self, start: usize) -> Option<u8> {
        self.recent.reason(start >> 12)
    }

    /// Counts uses of a buffer before they come ([`Recent::uses_ahead`]).
    pub fn uses_ahead(&mut self, start: usize, most: u32) -> u32 {
        self.recent.uses_ahead(start >> 12, most)
    }

    /// Watches a range of whole pages, *then* finds out its value, and keeps that for the range if nothing happened meanwhile. `start`:
    /// of the buffer that this is for. Values that overlap it end. Whether it is kept.
    pub fn fill(&mut self, start: usize, range: Range<usize>, make: impl FnOnce() -> Option<V>) -> bool {
        if range.is_empty() || !self.ranges.fits(range.len()) || !self.tend() {
            return false;
        }
        let Some(watch) = self.watch(range.clone()) else { return false };
        let made = make();
        // A change under way may have begun before the watch: its news would come after the value, and end it without need.
        let settled = self.settled();
        let Some(value) = made else {
            self.unwatch(&watch);
            return false;
        };
        if !settled {
            self.unwatch(&watch);
            self.ended.push(value);
            return false;
        }
        let mut out = Vec::new();
        let entry = Entry { watch, value, page: start >> 12 };
        self.ranges.insert(range, entry, |entry, uses| out.push((entry, uses)));
        self.counts.pushed_out += out.len() as u64;
        self.finish(out);
        self.counts.filled += 1;
        self.recent.done(start >> 12);
        true
    }

    /// Lets go of what is not cached any more.
    fn finish(&mut self, out: Out<V>) {
        for (Entry { watch, value, page }, uses) in out {
            self.unwatch(&watch);
            self.ended.push(value);
            if self.habits {
                self.recent.ended(page, uses >= WORTH);
            }
        }
    }

    fn watch(&self, range: Range<usize>) -> Option<Watch> {
        match &self.source {
            Source::Monitor(monitor) => monitor.watch(range),
            Source::Blind => Some(Watch::none(range)),
            Source::Refused(_) => None,
        }
    }

    fn unwatch(&self, watch: &Watch) {
        if let Source::Monitor(monitor) = &self.source {
            monitor.unwatch(watch);
        }
    }

    /// Takes what happened. False: it is in doubt, or there is no monitor. One load if nothing happened.
    #[inline]
    pub fn tend(&mut self) -> bool {
        self.sequence.load(Ordering::Acquire) == self.seen || self.catch_up()
    }

    #[cold]
    #[inline(never)]
    fn catch_up(&mut self) -> bool {
        let Source::Monitor(monitor) = self.source else { return false };
        let (ranges, depends) = (&mut self.ranges, self.depends);
        let mut out = Vec::new();
        let since = monitor.since(self.seen, |kind, range| {
            if kind != Kind::Emptied || depends == Depends::OnPages {
                ranges.remove(&range, |entry, uses| out.push((entry, uses)));
            }
        });
        let now = match since {
            Since::Told(now) => now,
            Since::Lost(now) => {
                self.counts.lost += 1;
                // Of these nobody knows whether they ended.
                self.ranges.clear(|entry, _| out.push((entry, WORTH)));
                now
            }
            Since::InDoubt | Since::Elsewhere => return false,
        };
        self.seen = now;
        self.counts.changed += out.len() as u64;
        self.finish(out);
        true
    }

    /// A value that is not cached any more, to be undone: late, when it suits.
    pub fn ended(&mut self) -> Option<V> {
        self.ended.pop()
    }

    /// Ends everything.
    pub fn clear(&mut self) {
        let mut out = Vec::new();
        self.ranges.clear(|entry, _| out.push((entry, WORTH)));
        self.finish(out);
    }
}

impl<V> Drop for Cache<V> {
    fn drop(&mut self) {
        self.clear();
    }
}
