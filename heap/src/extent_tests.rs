//! The book against a naive one: a word for each page.

use super::*;
use proptest::prelude::*;

fn book(pages: usize) -> Extents {
    let mut e = Extents::new();
    e.grow(|_| Box::leak(vec![Tag::default(); pages].into_boxed_slice()));
    e
}

fn grow(e: &mut Extents, more: usize) {
    e.grow(|old| {
        let mut tags = old.to_vec();
        tags.resize(old.len() + more, Tag::default());
        Box::leak(tags.into_boxed_slice())
    });
}

/// What the naive book says of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Page {
    Clean,
    Dirty,
    /// Of the block with this number.
    Of(usize),
}

/// Walks the whole book and compares it with the naive one; free neighbours of one kind must have been merged.
fn check(e: &mut Extents, naive: &[Page]) {
    let mut at = 0;
    let mut before = State::Used;
    let (mut dirty, mut used) = (0, 0);
    let mut free = 0;
    while at < e.pages() {
        let Tag { len, state, .. } = *e.tag(at);
        assert!(len > 0 && at + len <= e.pages(), "an extent at {at} of {len}");
        assert_eq!(e.tag(at + len - 1).back, len, "the end of the extent at {at}");
        for p in &naive[at as usize..(at + len) as usize] {
            match state {
                State::Used => assert!(matches!(p, Page::Of(_)), "page in use: {p:?}"),
                State::Dirty => assert_eq!(*p, Page::Dirty),
                State::Clean => assert_eq!(*p, Page::Clean),
                State::Inside => panic!("no extent at {at}"),
            }
        }
        match state {
            State::Used => used += len,
            State::Dirty => dirty += len,
            _ => {}
        }
        if state != State::Used {
            free += 1;
            assert_ne!(state, before, "free neighbours at {at}");
        }
        before = state;
        at += len;
    }
    assert_eq!((dirty, used), (e.dirty_pages(), e.used_pages()));
    let mut listed = 0;
    for kind in [State::Dirty, State::Clean] {
        for bin_at in 0..BINS {
            let mut link = e.lists(kind).heads[bin_at];
            assert_eq!(link != 0, e.lists(kind).filled[bin_at / 64] >> (bin_at % 64) & 1 == 1);
            while link != 0 {
                assert_eq!((e.tag(link - 1).state, bin(e.tag(link - 1).len)), (kind, bin_at));
                listed += 1;
                link = e.tag(link - 1).next;
            }
        }
    }
    assert_eq!(listed, free, "every free extent is in one list");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_agrees_with_a_naive_book(steps in prop::collection::vec((0u8..13, any::<u32>(), any::<u32>()), 1..300)) {
        let mut e = book(64);
        let mut naive = vec![Page::Clean; 64];
        let mut blocks: Vec<(u32, u32, usize)> = vec![];
        for (number, (what, a, b)) in steps.into_iter().enumerate() {
            match what {
                0..=4 => {
                    let (len, align) = (a % 20 + 1, 1 << (if what == 0 { b % 4 } else { 0 }));
                    let phase = b >> 16;
                    match e.take(len, align, phase) {
                        Some((page, dirty)) => {
                            prop_assert_eq!((page + phase) % align, 0);
                            let of = &mut naive[page as usize..(page + len) as usize];
                            prop_assert!(of.iter().all(|p| !matches!(p, Page::Of(_))), "free before");
                            prop_assert_eq!(dirty, of.contains(&Page::Dirty));
                            prop_assert!(!dirty || !of.contains(&Page::Clean), "of one kind");
                            of.fill(Page::Of(number));
                            blocks.push((page, len, number));
                        }
                        // It may give up although a longer search would find something, but not if there is plenty.
                        None => prop_assert!(
                            !naive.chunk_by(|x, y| x == y).any(|run| !matches!(run[0], Page::Of(_)) && run.len() >= 48),
                        ),
                    }
                }
                5..=7 if !blocks.is_empty() => {
                    let (page, len, _) = blocks.swap_remove(a as usize % blocks.len());
                    prop_assert_eq!(e.used_at(page), Some(len));
                    e.release(page, State::Dirty);
                    naive[page as usize..(page + len) as usize].fill(Page::Dirty);
                    prop_assert_eq!(e.used_at(page), None);
                }
                8 | 9 if !blocks.is_empty() => {
                    let at = a as usize % blocks.len();
                    let (page, len, name) = blocks[at];
                    let new = b % 24 + 1;
                    if e.resize(page, new) == Resized::Done {
                        if new < len {
                            naive[(page + new) as usize..(page + len) as usize].fill(Page::Dirty);
                        } else {
                            let more = &mut naive[(page + len) as usize..(page + new) as usize];
                            prop_assert!(more.iter().all(|p| !matches!(p, Page::Of(_))));
                            more.fill(Page::Of(name));
                        }
                        blocks[at].1 = new;
                    } else {
                        let end = (page + new) as usize;
                        prop_assert!(new > len);
                        let run = naive.get((page + len) as usize..end);
                        prop_assert!(run.is_none_or(|r| r.iter().any(|p| *p != r[0] || matches!(p, Page::Of(_)))));
                    }
                }
                10 => {
                    if let Some((page, len)) = e.take_dirty() {
                        let run = page as usize..(page + len) as usize;
                        prop_assert!(naive[run.clone()].iter().all(|p| *p == Page::Dirty));
                        e.release(page, State::Clean);
                        naive[run].fill(Page::Clean);
                    } else {
                        prop_assert!(!naive.contains(&Page::Dirty));
                    }
                }
                12 if !blocks.is_empty() => {
                    let at = a as usize % blocks.len();
                    let (page, len, name) = blocks[at];
                    let first = b % len + 1;
                    e.cut(page, first);
                    blocks[at].1 = first;
                    if first < len {
                        blocks.push((page + first, len - first, name));
                    }
                }
                11 if naive.len() < 1000 => {
                    grow(&mut e, a as usize % 50);
                    naive.resize(naive.len() + a as usize % 50, Page::Clean);
                }
                _ => {}
            }
            check(&mut e, &naive);
        }
        let mut listed: Vec<_> = blocks.iter().map(|b| (b.0, b.1)).collect();
        listed.sort_unstable();
        let mut from = 0;
        for block in listed {
            prop_assert_eq!(e.next_used(from), Some(block));
            from = block.0 + block.1;
        }
        prop_assert_eq!(e.next_used(from), None);
    }
}

#[test]
fn bins_are_in_order_and_cover_all_sizes() {
    let mut before = 0;
    for len in (1..5000).chain((12..32).flat_map(|p| [(1u32 << p) - 1, 1 << p, (1 << p) + 1])).chain([u32::MAX]) {
        let at = bin(len);
        assert!(at < BINS);
        if len >= 4096 || len < 5000 {
            assert!(at >= before || len < 5000, "{len}");
        }
        before = at;
    }
}

#[test]
fn a_freed_heap_is_one_extent_again() {
    let mut e = book(4096);
    let taken: Vec<u32> = (0..100).map(|i| e.take(i % 7 + 1, 1, 0).expect("room").0).collect();
    for page in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
        e.release(*page, State::Dirty);
    }
    while let Some((page, _)) = e.take_dirty() {
        e.release(page, State::Clean);
    }
    assert_eq!(e.take(4096, 1, 0), Some((0, false)));
}
