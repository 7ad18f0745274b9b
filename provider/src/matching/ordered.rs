//! A slab whose entries are strung in order of arrival: O(1) append, look-up and removal by id,
//! iteration oldest first. The links are kept apart from the entries ([`Links`]), so that a walk
//! chases 8-byte records, and so that `chains.rs` can string the same slots a second time.

use std::iter;

use slab::Slab;

/// No slot.
const NIL: u32 = u32::MAX;

/// An entry: its slot, and its age, which no other entry of this queue ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) slot: u32,
    pub(super) seq: u64,
}

/// The neighbours of one slot.
#[derive(Clone, Copy)]
pub(super) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    const NONE: Link = Link { prev: NIL, next: NIL };
}

/// The first and the last slot of one list.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    head: u32,
    tail: u32,
}

impl Ends {
    pub(super) const EMPTY: Ends = Ends { head: NIL, tail: NIL };

    /// The first slot; of an empty list, one that no entry has.
    #[inline]
    pub(super) fn head(self) -> u32 {
        self.head
    }

    /// Follows up on [`Links::unlink`].
    #[inline]
    pub(super) fn closed(&mut self, gap: Link) {
        if gap.prev == NIL {
            self.head = gap.next;
        }
        if gap.next == NIL {
            self.tail = gap.prev;
        }
    }
}

/// Where a slot was in its list.
pub(super) enum Was {
    /// The only one.
    Alone,
    /// First or last.
    End(Link),
    /// Between two others: the ends stay.
    Inside,
}

/// Doubly linked lists through slots: each slot is in at most one list.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

impl Links {
    /// Appends a slot that is in no list.
    #[inline]
    pub(super) fn append(&mut self, ends: &mut Ends, slot: u32) {
        let at = slot as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, Link::NONE);
        }
        self.0[at] = Link { prev: ends.tail, next: NIL };
        match self.0.get_mut(ends.tail as usize) {
            Some(last) => last.next = slot,
            None => ends.head = slot,
        }
        ends.tail = slot;
    }

    /// Takes a slot out; unless it was inside, the list's [`Ends`] are still to be told.
    #[inline]
    pub(super) fn unlink(&mut self, slot: u32) -> Was {
        let gap = self.0[slot as usize];
        if let Some(prev) = self.0.get_mut(gap.prev as usize) {
            prev.next = gap.next;
        }
        if let Some(next) = self.0.get_mut(gap.next as usize) {
            next.prev = gap.prev;
        }
        match (gap.prev, gap.next) {
            (NIL, NIL) => Was::Alone,
            (NIL, _) | (_, NIL) => Was::End(gap),
            _ => Was::Inside,
        }
    }

    /// Takes out the first slot of a list.
    #[inline]
    fn cut(&mut self, ends: &mut Ends, first: u32) {
        ends.head = self.next(first);
        match self.0.get_mut(ends.head as usize) {
            Some(next) => next.prev = NIL,
            None => ends.tail = NIL,
        }
    }

    /// The slot after this one; after the last, one that no entry has.
    #[inline]
    pub(super) fn next(&self, slot: u32) -> u32 {
        self.0[slot as usize].next
    }
}

struct Cell<E> {
    seq: u64,
    entry: E,
}

/// Entries in order of arrival.
pub(super) struct Ordered<E> {
    cells: Slab<Cell<E>>,
    links: Links,
    ends: Ends,
    next_seq: u64,
}

impl<E> Ordered<E> {
    pub(super) fn new() -> Self {
        Ordered { cells: Slab::new(), links: Links::default(), ends: Ends::EMPTY, next_seq: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Adds the youngest entry.
    #[inline]
    pub(super) fn push(&mut self, entry: E) -> Id {
        let seq = self.next_seq;
        self.next_seq += 1;
        let slot = self.cells.insert(Cell { seq, entry });
        assert!(slot < NIL as usize, "2^32 entries in one queue");
        let slot = slot as u32;
        self.links.append(&mut self.ends, slot);
        Id { slot, seq }
    }

    #[inline]
    pub(super) fn get(&self, id: Id) -> Option<&E> {
        let cell = self.cells.get(id.slot as usize)?;
        (cell.seq == id.seq).then_some(&cell.entry)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut E> {
        let cell = self.cells.get_mut(id.slot as usize)?;
        (cell.seq == id.seq).then_some(&mut cell.entry)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: Id) -> Option<E> {
        self.get(id)?;
        match self.links.unlink(id.slot) {
            Was::Alone => self.ends = Ends::EMPTY,
            Was::End(gap) => self.ends.closed(gap),
            Was::Inside => {}
        }
        Some(self.cells.remove(id.slot as usize).entry)
    }

    /// The entry in a slot that is in use.
    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<(Id, &E)> {
        let cell = self.cells.get(slot as usize)?;
        let id = Id { slot, seq: cell.seq };
        Some((id, &cell.entry))
    }

    /// The oldest entry.
    #[inline]
    pub(super) fn first(&self) -> Option<(Id, &E)> {
        self.at(self.ends.head)
    }

    /// The oldest entry, to be changed, and its slot.
    #[inline]
    pub(super) fn first_mut(&mut self) -> Option<(u32, &mut E)> {
        let slot = self.ends.head;
        Some((slot, &mut self.cells.get_mut(slot as usize)?.entry))
    }

    /// Removes the oldest entry.
    #[inline]
    pub(super) fn remove_first(&mut self) {
        let slot = self.ends.head;
        if self.cells.try_remove(slot as usize).is_some() {
            self.links.cut(&mut self.ends, slot);
        }
    }

    /// All entries, oldest first.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &E)> {
        let mut slot = self.ends.head;
        iter::from_fn(move || {
            let found = self.at(slot)?;
            slot = self.links.next(slot);
            Some(found)
        })
    }

    /// All entries, in no order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.cells.iter_mut().map(|(_, cell)| &mut cell.entry)
    }

    /// Removes all entries and returns them, oldest first.
    pub(super) fn drain(&mut self) -> Vec<E> {
        let ids: Vec<Id> = self.iter().map(|(id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Slots in use or free.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.links.0.len()
    }
}
