//! Cells: memory behind the rings of an open pair, of which each piece belongs to one side at a time, and changes hands with a message.
//!
//! ```text
//! we                                          peer
//!   payload into a cell of ours, record ─────▶ copies it out; the cell is its own from now on
//!          copies it out; ours again ◀──────── its next long payload goes there
//! ```
//! Who answers so writes to lines that it has just read, which are in its own cache, where those of its ring would have to be taken out of the reader's
//! (`docs/adr/0004-ring.md`, "Answers go where the question lay"). The cell that came last is used first, of those in which as much came as is to be
//! written, or most if that is nowhere: a message of a long and a short record would else be answered the other way round, its long one in the cell of the short
//! one. Nothing is ever given back by itself: who has none sends by the ring, as without cells. (There are cells only if both segments have some.)
//! A record may be there before its payload, which then follows (`transport/link/cell.rs`).
//!
//! Both sides keep books of what is theirs, by themselves. A peer whose books say otherwise can name a cell that is ours, which is seen; or write to
//! one that is ours, which garbles what it is sent, or what it sends.

use super::layout::{CELL, MOST_CELLS};
use crate::mem::shared::SharedMem;
use smallvec::SmallVec;

/// A cell of a pair: the segment it is in, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// In the peer's segment.
    theirs: bool,
    index: u8,
}

impl Cell {
    /// How it is called towards the peer, for whom ours is theirs.
    pub fn name(self) -> u64 {
        u64::from(self.index) << 1 | u64::from(self.theirs)
    }

    fn named(name: u64) -> Option<Cell> {
        let index = u8::try_from(name >> 1).ok()?;
        Some(Cell { theirs: name & 1 == 0, index })
    }

    /// Its bit in a set of cells. (Of a number that no cell has, any.)
    #[inline]
    fn bit(self) -> u32 {
        1u32.wrapping_shl(u32::from(self.index) << 1 | u32::from(self.theirs))
    }

    /// Where it begins in its segment's cells.
    fn offset(self) -> usize {
        usize::from(self.index) * CELL
    }
}

/// A name that is not that of a cell which the peer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTheirs;

/// What one side knows of the cells of a pair.
pub struct Cells {
    ours: SharedMem,
    theirs: SharedMem,
    /// Those that belong to us; the one that came last is the last one.
    own: SmallVec<[Own; 2 * MOST_CELLS]>,
    /// The same as a set.
    have: u32,
}

const _: () = assert!(2 * MOST_CELLS <= u32::BITS as usize);

/// A cell that belongs to us.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// The cell.
    pub cell: Cell,
    /// Bytes that came in it last: its first ones, which are in our cache.
    came: u16,
}

impl Cells {
    /// The cells of two segments. At first each side has its own.
    pub fn new(ours: SharedMem, theirs: SharedMem) -> Cells {
        let count = (ours.bytes() / CELL).min(MOST_CELLS) as u8;
        let own: SmallVec<_> = (0..count).rev().map(|index| Own { cell: Cell { theirs: false, index }, came: 0 }).collect();
        let have = own.iter().fold(0, |all, own: &Own| all | own.cell.bit());
        Cells { ours, theirs, own, have }
    }

    /// Takes one for `len` bytes, to be written to and given away with a record: the last one in which so many came; if none did, the last one of those in which most came.
    /// (Of a message the longest record is written first, and read first.)
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<Own> {
        let last = self.own.pop()?;
        let taken = if usize::from(last.came) >= len { last } else { self.take_another(last, len) };
        self.have &= !taken.cell.bit();
        Some(taken)
    }

    #[inline(never)]
    fn take_another(&mut self, last: Own, len: usize) -> Own {
        self.own.push(last);
        let at = self.own.iter().rposition(|own| usize::from(own.came) >= len);
        let at = at.or_else(|| (0..self.own.len()).max_by_key(|at| self.own[*at].came));
        // There is one at least, the last.
        self.own.remove(at.unwrap_or(self.own.len() - 1))
    }

    /// It is not given away, and stays as it was.
    pub fn keep(&mut self, own: Own) {
        debug_assert!(!self.has(own.cell));
        self.have |= own.cell.bit();
        self.own.push(own);
    }

    /// It has come, with `len` bytes in it.
    #[inline]
    pub fn put(&mut self, cell: Cell, len: u16) {
        debug_assert!(!self.has(cell));
        self.have |= cell.bit();
        self.own.push(Own { cell, came: len });
    }

    /// Of a cell that there is.
    #[inline]
    fn has(&self, cell: Cell) -> bool {
        self.have & cell.bit() != 0
    }

    /// The cell that the peer calls so, in which it has put something for us.
    ///
    /// # Errors
    /// [`NotTheirs`].
    pub fn hear(&self, name: u64) -> Result<Cell, NotTheirs> {
        let cell = Cell::named(name).ok_or(NotTheirs)?;
        let there = cell.offset() < self.memory(cell).bytes();
        if there && !self.has(cell) { Ok(cell) } else { Err(NotTheirs) }
    }

    fn memory(&self, cell: Cell) -> &SharedMem {
        if cell.theirs { &self.theirs } else { &self.ours }
    }

    /// The memory that it is in, and where it begins there.
    #[inline]
    pub fn place(&self, cell: Cell) -> (&SharedMem, usize) {
        (self.memory(cell), cell.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::shared::Heap;
    use proptest::prelude::*;

    const WHOLE: u16 = CELL as u16;

    fn memory(cells: usize) -> SharedMem {
        SharedMem::new(Heap::new(cells * CELL + 64)).slice(64, cells * CELL)
    }

    fn pair(a: usize, b: usize) -> (Cells, Cells) {
        let (a, b) = (memory(a), memory(b));
        (Cells::new(a.clone(), b.clone()), Cells::new(b, a))
    }

    #[test]
    fn the_one_that_came_last_is_used_first() {
        let (mut a, mut b) = pair(2, 2);
        for _ in 0..3 {
            let first = a.take(100).expect("own").cell;
            let heard = b.hear(first.name()).expect("a's");
            b.put(heard, 100);
            let back = b.take(100).expect("just came").cell;
            assert_eq!(back, heard);
            let heard = a.hear(back.name()).expect("b's");
            assert_eq!(heard, first);
            a.put(heard, 100);
        }
    }

    #[test]
    fn a_long_and_a_short_one_come_back_as_they_went() {
        let (mut a, mut b) = pair(3, 3);
        let mut went = Vec::new();
        for (turn, lens) in [[WHOLE, 1000], [WHOLE, 1000], [WHOLE, 900], [WHOLE - 1, 1000]].into_iter().enumerate() {
            let sent = lens.map(|len| a.take(len.into()).expect("own").cell);
            let places = sent.map(|cell| a.place(cell).0.pointer(a.place(cell).1, CELL));
            if turn > 0 {
                assert_eq!(places, went[..], "turn {turn}: each where as much came");
            }
            went = places.to_vec();
            for (cell, len) in sent.into_iter().zip(lens) {
                let heard = b.hear(cell.name()).expect("a's");
                b.put(heard, len);
            }
            std::mem::swap(&mut a, &mut b);
        }
    }

    /// The last one that is long enough, also behind a shorter one; and if none is, the last one of the longest.
    #[test]
    fn which_one_is_taken() {
        let came = [10, 30, 30, 20, 5];
        let (mut one, mut other) = pair(came.len(), 0);
        let cells = came.map(|_| one.take(0).expect("own").cell);
        for (cell, len) in cells.into_iter().zip(came) {
            let heard = other.hear(cell.name()).expect("one's");
            other.put(heard, len);
        }
        let taken = [25, 40, 20, 3, 40, 1].map(|len| other.take(len).map(|own| other.place(own.cell).1 / CELL));
        let nth = |at: usize| Some(one.place(cells[at]).1 / CELL);
        assert_eq!(taken, [nth(2), nth(1), nth(3), nth(4), nth(0), None]);
    }

    #[test]
    fn what_is_kept_is_as_it_was() {
        let (mut a, b) = pair(1, 2);
        for (own, len) in [(b.own[0], 7), (b.own[1], WHOLE)] {
            a.put(a.hear(own.cell.name()).expect("b's"), len);
        }
        for _ in 0..3 {
            let own = a.take(CELL).expect("a long one");
            assert_eq!(own.came, WHOLE);
            a.keep(own);
        }
    }

    #[test]
    fn who_only_hears_has_all_in_the_end() {
        let (mut a, mut b) = pair(3, 2);
        while let Some(own) = a.take(1) {
            let heard = b.hear(own.cell.name()).expect("a's");
            b.put(heard, 1);
        }
        assert_eq!((a.own.len(), b.own.len()), (0, 5));
    }

    #[test]
    fn lies() {
        let (mut a, b) = pair(2, 1);
        let own = a.own[0].cell;
        let as_the_peer_calls_it = own.name() ^ 1;
        assert_eq!(a.hear(as_the_peer_calls_it), Err(NotTheirs), "it is ours");
        let there = b.own[0].cell.name();
        assert!(a.hear(there).is_ok());
        for name in [there + 2, there + 256, 1 << 40, u64::MAX, u64::MAX - 1] {
            assert_eq!(a.hear(name), Err(NotTheirs), "{name:#x}");
        }
        let heard = a.hear(there).expect("the peer's");
        a.put(heard, WHOLE);
        assert_eq!(a.hear(there), Err(NotTheirs), "it came already");
        assert!(pair(0, 0).0.take(1).is_none() && pair(0, 0).0.hear(0).is_err());
    }

    proptest! {
        /// Whoever gives what to whom: each cell has one owner, and both sides mean the same memory by a name.
        #[test]
        fn each_belongs_to_one(turns in proptest::collection::vec((any::<bool>(), 0..=WHOLE), 0..200), a in 0usize..4, b in 0usize..4) {
            let (mut one, mut other) = pair(a, b);
            for (first, len) in turns {
                let (from, to) = if first { (&mut one, &mut other) } else { (&mut other, &mut one) };
                let Some(Own { cell, .. }) = from.take(len.into()) else { continue };
                let heard = to.hear(cell.name()).expect("not its own");
                let ((m, at), (n, there)) = (from.place(cell), to.place(heard));
                prop_assert_eq!(m.pointer(at, CELL), n.pointer(there, CELL));
                to.put(heard, len);
                prop_assert!(from.hear(heard.name()).is_ok() && to.hear(cell.name()).is_err());
                prop_assert_eq!(one.own.len() + other.own.len(), a + b);
            }
        }
    }
}
