//! The book of one arena: which of its pages are in use, which are free, and which of those read as zero.
//!
//! An *extent* is a run of pages in one state. Its first page's tag says how long it is, its last page's tag how far back it
//! began, so that a freed extent finds its neighbours. Free extents hang in lists by size, one set of lists for *dirty* pages
//! (used before, contents unknown, memory behind them) and one for *clean* ones (holes: no memory, read as zero). The two kinds
//! are never merged; purging turns one into the other.
//!
//! The tags lie outside the arena, in memory that the caller supplies: nothing here allocates, and a peer that maps the arena
//! sees no book.

/// What an extent is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Not the first page of an extent. Zero: fresh memory is a valid book of no extents.
    #[default]
    Inside = 0,
    /// Handed out.
    Used = 1,
    /// Free, with memory behind it.
    Dirty = 2,
    /// Free, a hole.
    Clean = 3,
}

/// What is known of one page. All zero is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tag {
    /// Pages of the extent that starts here.
    len: u32,
    /// Pages of the extent that ends here.
    back: u32,
    /// Neighbours in the list of free extents: page + 1, or 0.
    prev: u32,
    next: u32,
    state: State,
}

const BINS: usize = 256;
const WORDS: usize = BINS / 64;
/// Extents of a bin that are looked at for one that fits, before the next bin is taken, in which all fit.
const LOOKS: usize = 8;

/// Free extents of one kind by size.
struct Lists {
    heads: [u32; BINS],
    filled: [u64; WORDS],
}

impl Lists {
    const EMPTY: Lists = Lists { heads: [0; BINS], filled: [0; WORDS] };
}

/// The bin of extents of `len` pages: exact below 8, then eight to each power of two.
fn bin(len: u32) -> usize {
    if len < 8 {
        return len as usize;
    }
    let power = len.ilog2();
    8 + (power as usize - 3) * 8 + ((len >> (power - 3)) & 7) as usize
}

/// How a growing block got its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resized {
    /// The block has the new size.
    Done,
    /// No room behind it; nothing changed.
    NoRoom,
}

/// The book.
pub(crate) struct Extents {
    tags: &'static mut [Tag],
    dirty: Lists,
    clean: Lists,
    dirty_pages: u32,
    used_pages: u32,
}

impl Extents {
    /// Of an arena without pages.
    pub(crate) const fn new() -> Self {
        Extents { tags: &mut [], dirty: Lists::EMPTY, clean: Lists::EMPTY, dirty_pages: 0, used_pages: 0 }
    }

    /// Pages there are.
    pub(crate) fn pages(&self) -> u32 {
        self.tags.len() as u32
    }

    /// Pages that are free and have memory behind them.
    pub(crate) fn dirty_pages(&self) -> u32 {
        self.dirty_pages
    }

    /// Pages handed out.
    pub(crate) fn used_pages(&self) -> u32 {
        self.used_pages
    }

    /// The same book over more pages: `tags` starts with the tags there were, the others are zero. The new pages are clean.
    pub(crate) fn grow(&mut self, extend: impl FnOnce(&'static mut [Tag]) -> &'static mut [Tag]) {
        let old = self.pages();
        self.tags = extend(core::mem::take(&mut self.tags));
        let more = self.pages() - old;
        if more > 0 {
            self.mark(old, more, State::Used);
            self.used_pages += more;
            self.release(old, State::Clean);
        }
    }

    /// `len` pages, the first of them such that it plus `phase` is a multiple of `align` (in pages; the phase is where the arena
    /// itself begins), and whether they may hold something other than zeros.
    pub(crate) fn take(&mut self, len: u32, align: u32, phase: u32) -> Option<(u32, bool)> {
        debug_assert!(len > 0 && align.is_power_of_two());
        let wanted = len.checked_add(align - 1)?;
        for kind in [State::Dirty, State::Clean] {
            let Some(found) = self.find(kind, wanted) else { continue };
            let whole = self.tag(found).len;
            self.unlink(found);
            let phase = u64::from(phase & (align - 1));
            let first = ((u64::from(found) + phase).next_multiple_of(u64::from(align)) - phase) as u32;
            if first > found {
                self.mark(found, first - found, kind);
                self.link(found);
            }
            let rest = found + whole - (first + len);
            if rest > 0 {
                self.mark(first + len, rest, kind);
                self.link(first + len);
            }
            self.mark(first, len, State::Used);
            self.used_pages += len;
            return Some((first, kind == State::Dirty));
        }
        None
    }

    /// Pages of the block that starts at `page`, if one does.
    pub(crate) fn used_at(&self, page: u32) -> Option<u32> {
        let tag = self.tags.get(page as usize)?;
        (tag.state == State::Used).then_some(tag.len)
    }

    /// Gives back the block that starts at `page`; its pages are `state` from now on (`Dirty`, or `Clean` if they were punched).
    pub(crate) fn release(&mut self, page: u32, state: State) {
        debug_assert!(self.used_at(page).is_some() && matches!(state, State::Dirty | State::Clean));
        let (mut first, mut len) = (page, self.tag(page).len);
        self.used_pages -= len;
        let after = first + len;
        if after < self.pages() && self.tag(after).state == state {
            self.unlink(after);
            len += self.tag(after).len;
            self.clear(after);
        }
        if first > 0 {
            let before = first - self.tag(first - 1).back;
            if self.tag(before).state == state {
                self.unlink(before);
                len += self.tag(before).len;
                self.clear(first);
                first = before;
            }
        }
        self.mark(first, len, state);
        self.link(first);
    }

    /// Makes the block at `page` `len` pages long, where it is.
    pub(crate) fn resize(&mut self, page: u32, len: u32) -> Resized {
        let old = self.tag(page).len;
        if len < old {
            self.mark(page, len, State::Used);
            self.mark(page + len, old - len, State::Used);
            self.release(page + len, State::Dirty);
        } else if len > old {
            let after = page + old;
            if after >= self.pages() {
                return Resized::NoRoom;
            }
            let Tag { state, len: room, .. } = *self.tag(after);
            if state == State::Used || room < len - old {
                return Resized::NoRoom;
            }
            self.unlink(after);
            self.clear(after);
            let rest = room - (len - old);
            if rest > 0 {
                self.mark(page + len, rest, state);
                self.link(page + len);
            }
            self.mark(page, len, State::Used);
            self.used_pages += len - old;
        }
        Resized::Done
    }

    /// Makes two blocks of the one at `page`, the first of them `len` pages long, if it is longer.
    pub(crate) fn cut(&mut self, page: u32, len: u32) {
        debug_assert!(len > 0);
        if let Some(rest) = self.used_at(page).and_then(|old| old.checked_sub(len)).filter(|rest| *rest > 0) {
            self.mark(page, len, State::Used);
            self.mark(page + len, rest, State::Used);
        }
    }

    /// Takes out about the longest dirty extent, to be punched and then released as clean: first page and length.
    pub(crate) fn take_dirty(&mut self) -> Option<(u32, u32)> {
        let word = (0..WORDS).rev().find(|w| self.dirty.filled[*w] != 0)?;
        let bin = word * 64 + 63 - self.dirty.filled[word].leading_zeros() as usize;
        let page = self.dirty.heads[bin] - 1;
        let len = self.tag(page).len;
        self.unlink(page);
        self.mark(page, len, State::Used);
        self.used_pages += len;
        Some((page, len))
    }

    /// The first block at or after page `from`: first page and length. Any `from` that is the end of what this returned before.
    pub(crate) fn next_used(&self, mut from: u32) -> Option<(u32, u32)> {
        while from < self.pages() {
            let tag = self.tag(from);
            if tag.state == State::Used {
                return Some((from, tag.len));
            }
            from += tag.len;
        }
        None
    }

    fn tag(&self, page: u32) -> &Tag {
        &self.tags[page as usize]
    }

    fn lists(&mut self, kind: State) -> &mut Lists {
        if kind == State::Dirty { &mut self.dirty } else { &mut self.clean }
    }

    /// Writes the tags of an extent; it is in no list.
    fn mark(&mut self, page: u32, len: u32, state: State) {
        let (first, last) = (page as usize, (page + len - 1) as usize);
        self.tags[last] = Tag { back: len, ..Tag::default() };
        self.tags[first] = Tag { len, state, back: if first == last { len } else { 0 }, ..Tag::default() };
    }

    /// Page `page` is no longer the first of an extent.
    fn clear(&mut self, page: u32) {
        let tag = &mut self.tags[page as usize];
        tag.len = 0;
        tag.state = State::Inside;
    }

    fn link(&mut self, page: u32) {
        let Tag { len, state, .. } = *self.tag(page);
        let bin = bin(len);
        let lists = self.lists(state);
        let next = core::mem::replace(&mut lists.heads[bin], page + 1);
        lists.filled[bin / 64] |= 1 << (bin % 64);
        self.tags[page as usize].next = next;
        if next != 0 {
            self.tags[next as usize - 1].prev = page + 1;
        }
        if state == State::Dirty {
            self.dirty_pages += len;
        }
    }

    fn unlink(&mut self, page: u32) {
        let Tag { len, state, prev, next, .. } = *self.tag(page);
        if prev != 0 {
            self.tags[prev as usize - 1].next = next;
        } else {
            let bin = bin(len);
            let lists = self.lists(state);
            lists.heads[bin] = next;
            if next == 0 {
                lists.filled[bin / 64] &= !(1 << (bin % 64));
            }
        }
        if next != 0 {
            self.tags[next as usize - 1].prev = prev;
        }
        if state == State::Dirty {
            self.dirty_pages -= len;
        }
    }

    /// A free extent of at least `len` pages.
    fn find(&mut self, kind: State, len: u32) -> Option<u32> {
        let own = bin(len);
        let mut at = self.lists(kind).heads[own];
        for _ in 0..LOOKS {
            if at == 0 {
                break;
            }
            let tag = self.tag(at - 1);
            if tag.len >= len {
                return Some(at - 1);
            }
            at = tag.next;
        }
        // Every extent of a higher bin is long enough.
        let lists = self.lists(kind);
        let mut above = own + 1;
        while above < BINS {
            let word = lists.filled[above / 64] >> (above % 64);
            if word != 0 {
                return Some(lists.heads[above + word.trailing_zeros() as usize] - 1);
            }
            above = (above / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
#[path = "extent_tests.rs"]
mod tests;
