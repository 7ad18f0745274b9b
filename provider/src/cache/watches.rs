//! Who watches which pages. Several caches may watch the same ones, and the kernel knows only *watched* and *not*.
//!
//! Every watch has a number, so that one which ended long ago (its memory was unmapped) cannot end a newer one at the same place.

use core::ops::Range;

struct Piece {
    id: u64,
    range: Range<usize>,
}

/// What is watched.
pub struct Watches {
    pieces: Vec<Piece>,
    next: u64,
    limit: usize,
}

/// A range that is watched. Give it back with [`Watches::end`].
#[derive(Debug, PartialEq, Eq)]
pub struct Watch {
    id: u64,
    range: Range<usize>,
}

impl Watch {
    /// One of nothing, for caches that are not told of changes.
    pub fn none(range: Range<usize>) -> Watch {
        Watch { id: 0, range }
    }

    /// What is watched.
    pub fn range(&self) -> &Range<usize> {
        &self.range
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// Adds what `from` has outside of `cut`.
fn outside(from: &Range<usize>, cut: &Range<usize>, mut add: impl FnMut(Range<usize>)) {
    for part in [from.start..from.end.min(cut.start), from.start.max(cut.end)..from.end] {
        if !part.is_empty() {
            add(part);
        }
    }
}

impl Watches {
    /// At most `limit` pieces.
    pub fn new(limit: usize) -> Watches {
        Watches { pieces: Vec::new(), next: 1, limit }
    }

    /// Begins to watch a range that is not empty, unless there are too many.
    pub fn begin(&mut self, range: Range<usize>) -> Option<Watch> {
        if self.pieces.len() >= self.limit {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.pieces.push(Piece { id, range: range.clone() });
        Some(Watch { id, range })
    }

    /// The kernel has stopped to watch `range`.
    pub fn gone(&mut self, range: &Range<usize>) {
        let mut left = Vec::new();
        self.pieces.retain(|piece| {
            if overlap(&piece.range, range).is_empty() {
                return true;
            }
            outside(&piece.range, range, |part| left.push(Piece { id: piece.id, range: part }));
            false
        });
        self.pieces.append(&mut left);
    }

    /// Ends a watch. What nobody else watches goes to `unwatch`.
    pub fn end(&mut self, watch: &Watch, mut unwatch: impl FnMut(Range<usize>)) {
        let mut mine = Vec::new();
        self.pieces.retain(|piece| {
            let other = piece.id != watch.id;
            if !other {
                mine.push(piece.range.clone());
            }
            other
        });
        for piece in &self.pieces {
            let mut rest = Vec::new();
            for range in mine {
                if overlap(&range, &piece.range).is_empty() {
                    rest.push(range);
                } else {
                    outside(&range, &piece.range, |part| rest.push(part));
                }
            }
            mine = rest;
        }
        mine.into_iter().for_each(&mut unwatch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Begin(usize, usize),
        End(usize),
        Gone(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0usize..40, 1usize..10).prop_map(|(a, n)| Step::Begin(a, n)),
            2 => any::<usize>().prop_map(Step::End),
            1 => (0usize..40, 1usize..10).prop_map(|(a, n)| Step::Gone(a, n)),
        ]
    }

    proptest! {
        /// The kernel watches exactly the pages that somebody still wants.
        #[test]
        fn agrees_with_sets_of_pages(steps in proptest::collection::vec(step(), 0..60)) {
            let mut real = Watches::new(12);
            let mut naive: Vec<(Watch, BTreeSet<usize>)> = Vec::new();
            let mut kernel = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Begin(a, n) => {
                        let pieces = real.pieces.len();
                        let watch = real.begin(a..a + n);
                        prop_assert_eq!(watch.is_none(), pieces >= 12);
                        if let Some(watch) = watch {
                            kernel.extend(a..a + n);
                            naive.push((watch, (a..a + n).collect()));
                        }
                    }
                    Step::End(n) if !naive.is_empty() => {
                        let (watch, _) = naive.swap_remove(n % naive.len());
                        real.end(&watch, |range| range.for_each(|page| assert!(kernel.remove(&page), "page {page} twice")));
                    }
                    Step::End(_) => {}
                    Step::Gone(a, n) => {
                        real.gone(&(a..a + n));
                        kernel.retain(|page| !(a..a + n).contains(page));
                        naive.iter_mut().for_each(|(_, pages)| pages.retain(|page| !(a..a + n).contains(page)));
                    }
                }
                let wanted: BTreeSet<usize> = naive.iter().flat_map(|(_, pages)| pages.iter().copied()).collect();
                prop_assert_eq!(&kernel, &wanted);
            }
        }
    }
}
