//! By what means one process copies another's bytes: the kernel, or its own loads and stores where it has mapped what the other lent.

use super::super::Target;
use crate::mem::engine::Engine;
use crate::mem::remote::{self, Also, NoAccess, Piece};
use crate::mem::shared::SharedMem;
use crate::mem::user::UserSeg;
use crate::region::table::{LINE_WORDS, Line, Root};
use crate::sys::clock::Clock;
use crate::wire::loan::MOST;
use crate::wire::offer::Pieces;
use smallvec::SmallVec;

/// Memory of the peer that it lent, mapped here.
#[derive(Clone)]
pub struct Loan {
    memory: SharedMem,
    /// The peer's address of its first byte.
    base: u64,
    writable: bool,
}

impl Loan {
    /// `memory` is what the peer has at `base`.
    pub fn new(memory: SharedMem, base: u64, writable: bool) -> Loan {
        Loan { memory, base, writable }
    }

    /// Bytes of addresses that it takes here.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Whether its owner lets us write it.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether all pieces lie in it.
    pub(super) fn holds(&self, pieces: &[Piece]) -> bool {
        pieces.iter().all(|p| {
            let end = usize::try_from(p.addr.wrapping_sub(self.base)).ok().and_then(|at| at.checked_add(p.len));
            end.is_some_and(|end| end <= self.memory.bytes())
        })
    }

    /// Calls `copy(offset in the memory, offset in the message, bytes)` for each contiguous part of bytes `at..at + len` of a message in pieces
    /// that it [`holds`](Self::holds).
    fn parts(&self, pieces: &[Piece], at: usize, len: usize, mut copy: impl FnMut(usize, usize, usize)) {
        let (mut skip, mut done) = (at, 0);
        for piece in pieces {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            let n = (piece.len - skip).min(len - done);
            copy(piece.addr.wrapping_sub(self.base) as usize + skip, at + done, n);
            (skip, done) = (0, done + n);
            if done == len {
                break;
            }
        }
    }
}

/// Nanoseconds within which the kernel does not give a process id to another process: it hands them out in turn.
pub(super) const FRESH: u64 = 1_000_000;

/// Whether a process that lived after this time (0: it is not known) still has its id.
pub(super) fn is_fresh(clock: Option<&Clock>, since: u64) -> bool {
    since != 0 && clock.is_some_and(|clock| clock.now().saturating_sub(since) < FRESH)
}

/// Which engine copies what, in mapped memory.
#[derive(Clone, Copy)]
pub(super) struct Engines {
    /// Bytes of the shortest message that goes past the caches.
    streaming_from: usize,
}

impl Default for Engines {
    fn default() -> Engines {
        Engines { streaming_from: usize::MAX }
    }
}

impl Engines {
    /// Messages of so many bytes or more go past the caches.
    pub fn stream_from(bytes: usize) -> Engines {
        Engines { streaming_from: bytes }
    }

    /// That of a message of which the receiver wants so many bytes. What the kernel copies is its own affair.
    pub fn of(&self, wanted: usize, mapped: bool) -> Engine {
        if mapped && wanted >= self.streaming_from { Engine::Streaming } else { Engine::Plain }
    }
}

/// How this side reaches the other's bytes of one message.
pub(super) enum Means<'a> {
    /// Whether the process of this id is known to be the one that is meant.
    Kernel(Target, bool),
    /// By an engine of this side.
    Mapped(&'a Loan, Engine),
}

impl Means<'_> {
    /// By which engine, as far as it is ours.
    pub fn engine(&self) -> Engine {
        match self {
            Means::Kernel(..) => Engine::Plain,
            Means::Mapped(_, engine) => *engine,
        }
    }

    /// Copies bytes `at..at + len` of a message from the other's pieces to ours.
    pub fn fetch(&self, from: &Pieces, to: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
        match self {
            Means::Kernel(target, true) => remote::fetch_part(target.pid, from, to, at, len, None),
            Means::Kernel(target, false) => target.fetch(from, to, at, len),
            Means::Mapped(loan, engine) => {
                loan.parts(from, at, len, |there, here, n| {
                    loan.memory.drain_by(*engine, there, to, here, n);
                });
                Ok(())
            }
        }
    }

    /// Copies bytes `at..at + len` of a message from our pieces to the other's.
    pub fn store(&self, to: &Pieces, from: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
        match self {
            Means::Kernel(target, _) => remote::store_part(target.pid, to, from, at, len),
            Means::Mapped(loan, engine) => {
                loan.parts(to, at, len, |there, here, n| loan.memory.fill_by(*engine, there, from, here, n));
                Ok(())
            }
        }
    }
}

impl Target {
    /// Whether the process of this id is the one that the table is of.
    pub(super) fn is_there(self) -> Result<bool, NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        remote::fetch_words(self.pid, self.table.address, &mut line)?;
        Ok(Root::parse(&line, self.table).is_some())
    }

    /// Copies bytes `at..at + len` of a message from there, if it is that process.
    fn fetch(self, from: &Pieces, to: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        let also = Also { at: self.table.address, words: &mut line };
        remote::fetch_part(self.pid, from, to, at, len, Some(also))?;
        Root::parse(&line, self.table).map(|_| ()).ok_or(NoAccess::Gone)
    }
}

/// Most that one peer may lend, in bytes of addresses; in number, see [`MOST`].
const MOST_BYTES: usize = 1 << 42;

/// What the peer lent, by its numbers.
#[derive(Default)]
pub(super) struct Loans {
    /// `None`: it could not be mapped.
    list: SmallVec<[(u32, Option<Loan>); 1]>,
}

impl Loans {
    /// Whether `bytes` more may be mapped under a new number.
    pub fn has_room(&self, number: u32, bytes: usize) -> bool {
        let taken: usize = self.list.iter().filter_map(|(_, loan)| loan.as_ref()).map(Loan::bytes).sum();
        number != 0 && !self.knows(number) && self.list.len() < MOST && bytes <= MOST_BYTES - taken.min(MOST_BYTES)
    }

    /// Remembers what became of a number. Whether there was room for that.
    pub fn insert(&mut self, number: u32, loan: Option<Loan>) -> bool {
        let new = self.list.len() < MOST && !self.knows(number);
        if new {
            self.list.push((number, loan));
        }
        new
    }

    /// Forgets a number. Whether it was heard of it.
    pub fn remove(&mut self, number: u32) -> bool {
        let at = self.list.iter().position(|(n, _)| *n == number);
        at.map(|at| self.list.swap_remove(at)).is_some()
    }

    /// Whether it was heard of a number.
    pub fn knows(&self, number: u32) -> bool {
        self.list.iter().any(|(n, _)| *n == number)
    }

    /// The memory of this number, if there is any and it is mapped.
    pub fn get(&self, number: u32) -> Option<&Loan> {
        self.list.iter().find(|(n, _)| *n == number).and_then(|(_, loan)| loan.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::shared::Heap;

    /// Not a byte beside: what lies behind it in the message is perhaps copied already, and the application's again.
    #[test]
    fn a_part_of_a_message_in_pieces() {
        let base = 1 << 20;
        let loan = Loan::new(SharedMem::new(Heap::new(4096)), base, false);
        let pieces: Vec<Piece> = [(100, 10), (0, 0), (300, 20), (200, 30)].map(|(at, len)| Piece { addr: base + at, len }).into();
        assert!(loan.holds(&pieces));
        let parts = |at, len| {
            let mut parts = Vec::new();
            loan.parts(&pieces, at, len, |there, here, n| parts.push((there, here, n)));
            // An empty piece is passed over, or nothing is copied for it.
            parts.retain(|(_, _, n)| *n > 0);
            parts
        };
        assert_eq!(parts(0, 60), [(100, 0, 10), (300, 10, 20), (200, 30, 30)]);
        assert_eq!(parts(3, 4), [(103, 3, 4)]);
        assert_eq!(parts(9, 2), [(109, 9, 1), (300, 10, 1)]);
        assert_eq!(parts(10, 20), [(300, 10, 20)]);
        assert_eq!(parts(25, 20), [(315, 25, 5), (200, 30, 15)]);
    }
}
