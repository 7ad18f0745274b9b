//! Ranges of addresses that do not overlap, each with a value: found by any part of them, forgotten least recently used first
//! when the budget is used up.
//!
//! A sorted array: a thousand starts are 8 KiB, and a search without branches over them takes ten loads, 20 ns. Ranges come and go rarely.
//! Buffers that come again and again are found by a table of hints before that.

use core::ops::Range;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Ranges.
    pub count: usize,
    /// Bytes of all ranges.
    pub bytes: usize,
}

impl Budget {
    /// As parameters say it.
    pub fn of(count: u64, bytes: u64) -> Budget {
        let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Budget { count: whole(count), bytes: whole(bytes) }
    }

    /// What something else leaves of it.
    pub fn beside(self, (count, bytes): (usize, usize)) -> Budget {
        Budget { count: self.count.saturating_sub(count), bytes: self.bytes.saturating_sub(bytes) }
    }
}

/// Buffers whose place is remembered; more are searched for.
const HINTS: usize = 256;

struct Slot<V> {
    end: usize,
    /// When it was used last.
    used: u64,
    /// How often.
    uses: u64,
    value: V,
}

/// See above.
pub struct Ranges<V> {
    /// Ascending; `slots` beside it.
    starts: Vec<usize>,
    slots: Vec<Slot<V>>,
    bytes: usize,
    clock: u64,
    /// By the first page of a buffer, where its range was when last found. Hints: looked at, not believed.
    hints: Box<[u32; HINTS]>,
    budget: Budget,
}

impl<V> Ranges<V> {
    /// None yet.
    pub fn new(budget: Budget) -> Ranges<V> {
        Ranges { starts: Vec::new(), slots: Vec::new(), bytes: 0, clock: 0, hints: Box::new([0; HINTS]), budget }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn holds(&self, index: usize, want: &Range<usize>) -> bool {
        self.starts.get(index).is_some_and(|start| *start <= want.start && want.end <= self.slots[index].end)
    }

    /// Which range holds all of `want` (which is not empty), for [`at`](Self::at); it counts as used. Numbers change when ranges come and
    /// go.
    #[inline]
    pub fn find(&mut self, want: &Range<usize>) -> Option<usize> {
        // Fibonacci hashing, as in `recent.rs`.
        let hint = ((want.start as u64 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - HINTS.ilog2())) as usize;
        let mut index = self.hints[hint] as usize;
        if !self.holds(index, want) {
            index = self.starts.partition_point(|start| *start <= want.start).checked_sub(1)?;
            if !self.holds(index, want) {
                return None;
            }
            self.hints[hint] = index as u32;
        }
        self.clock += 1;
        let slot = &mut self.slots[index];
        slot.used = self.clock;
        slot.uses += 1;
        Some(index)
    }

    /// What [`find`](Self::find) has just found.
    #[inline]
    pub fn at(&self, index: usize) -> (Range<usize>, &V) {
        let slot = &self.slots[index];
        (self.starts[index]..slot.end, &slot.value)
    }

    fn take(&mut self, index: usize) -> (V, u64) {
        let (start, slot) = (self.starts.remove(index), self.slots.remove(index));
        self.bytes -= slot.end - start;
        (slot.value, slot.uses)
    }

    /// Whether the budget can hold a range of `len` bytes at all.
    pub fn fits(&self, len: usize) -> bool {
        self.budget.count > 0 && len <= self.budget.bytes
    }

    /// Keeps a value for a range that is not empty; what overlaps it, and what has no place beside it, goes to `out`, and how often it was
    /// found. A range that does not [fit](Self::fits) goes there itself.
    pub fn insert(&mut self, range: Range<usize>, value: V, mut out: impl FnMut(V, u64)) {
        if !self.fits(range.len()) {
            return out(value, 0);
        }
        self.remove(&range, &mut out);
        while self.starts.len() >= self.budget.count || self.bytes > self.budget.bytes - range.len() {
            let oldest = (0..self.slots.len()).min_by_key(|i| self.slots[*i].used);
            let Some(oldest) = oldest else { break };
            let (value, uses) = self.take(oldest);
            out(value, uses);
        }
        let index = self.starts.partition_point(|start| *start < range.start);
        self.clock += 1;
        self.bytes += range.len();
        self.starts.insert(index, range.start);
        self.slots.insert(index, Slot { end: range.end, used: self.clock, uses: 0, value });
    }

    /// Forgets what overlaps `range`.
    pub fn remove(&mut self, range: &Range<usize>, mut out: impl FnMut(V, u64)) {
        // The last one that starts before the end, and down from there.
        while let Some(index) = self.starts.partition_point(|start| *start < range.end).checked_sub(1) {
            if self.slots[index].end <= range.start {
                break;
            }
            let (value, uses) = self.take(index);
            out(value, uses);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, mut out: impl FnMut(V, u64)) {
        self.bytes = 0;
        self.starts.clear();
        for slot in self.slots.drain(..) {
            out(slot.value, slot.uses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, without any idea: newest use last.
    struct Naive {
        all: Vec<(Range<usize>, u32, u64)>,
        budget: Budget,
    }

    impl Naive {
        fn get(&mut self, want: &Range<usize>) -> Option<(Range<usize>, u32)> {
            let at = self.all.iter().position(|(r, ..)| r.start <= want.start && want.end <= r.end && want.start < r.end)?;
            let (range, value, uses) = self.all.remove(at);
            self.all.push((range.clone(), value, uses + 1));
            Some((range, value))
        }

        fn remove(&mut self, range: &Range<usize>) -> Vec<(u32, u64)> {
            let (out, keep) = self.all.drain(..).partition(|(r, ..)| r.start < range.end && range.start < r.end);
            self.all = keep;
            let out: Vec<(Range<usize>, u32, u64)> = out;
            out.into_iter().map(|(_, value, uses)| (value, uses)).collect()
        }

        fn insert(&mut self, range: Range<usize>, value: u32) -> Vec<(u32, u64)> {
            if range.len() > self.budget.bytes || self.budget.count == 0 {
                return vec![(value, 0)];
            }
            let mut out = self.remove(&range);
            let bytes = |all: &[(Range<usize>, u32, u64)]| all.iter().map(|(r, ..)| r.len()).sum::<usize>();
            while self.all.len() >= self.budget.count || bytes(&self.all) + range.len() > self.budget.bytes {
                let (_, value, uses) = self.all.remove(0);
                out.push((value, uses));
            }
            self.all.push((range, value, 0));
            out
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Get(usize, usize),
        Insert(usize, usize),
        Remove(usize, usize),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (at, len) = (0usize..64, 0usize..12);
        prop_oneof![
            8 => (at.clone(), len.clone()).prop_map(|(a, n)| Step::Get(a, n)),
            4 => (at.clone(), 1usize..12).prop_map(|(a, n)| Step::Insert(a, n)),
            2 => (at, 1usize..12).prop_map(|(a, n)| Step::Remove(a, n)),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_list(
            steps in proptest::collection::vec(step(), 0..120), count in 0usize..8, bytes in 1usize..60,
        ) {
            let budget = Budget { count, bytes };
            let (mut real, mut naive) = (Ranges::new(budget), Naive { all: Vec::new(), budget });
            for (n, step) in steps.into_iter().enumerate() {
                let mut out = Vec::new();
                let expect = match step {
                    Step::Get(a, len) if len > 0 => {
                        let got = real.find(&(a..a + len)).map(|at| real.at(at)).map(|(r, v)| (r, *v));
                        prop_assert_eq!(got, naive.get(&(a..a + len)));
                        continue;
                    }
                    Step::Get(..) => continue,
                    Step::Insert(a, len) => {
                        real.insert(a..a + len, n as u32, |v, uses| out.push((v, uses)));
                        naive.insert(a..a + len, n as u32)
                    }
                    Step::Remove(a, len) => {
                        real.remove(&(a..a + len), |v, uses| out.push((v, uses)));
                        naive.remove(&(a..a + len))
                    }
                    Step::Clear => {
                        real.clear(|v, uses| out.push((v, uses)));
                        naive.remove(&(0..usize::MAX))
                    }
                };
                let (mut got, mut expect) = (out, expect);
                got.sort_unstable();
                expect.sort_unstable();
                prop_assert_eq!(got, expect);
                prop_assert_eq!(real.len(), naive.all.len());
                prop_assert_eq!(real.bytes(), naive.all.iter().map(|(r, ..)| r.len()).sum::<usize>());
            }
        }
    }
}
