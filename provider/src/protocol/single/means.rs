//! By what means one process copies another's bytes: the kernel, or its own loads and stores where it has mapped what the other lent.

use super::super::Target;
use crate::cache::attached::Attached;
use crate::mem::atomic::{AtomicU64, Ordering};
use crate::mem::engine::Engine;
use crate::mem::remote::{self, Also, NoAccess, Piece};
use crate::mem::shared::SharedMem;
use crate::mem::user::UserSeg;
use crate::region::table::{LINE_WORDS, Line, Root};
use crate::sys::clock::Clock;
use crate::transport::Anchor;
use crate::wire::loan::MOST;
use crate::wire::offer::Pieces;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// Memory of the peer that it lent, mapped here as long as a clone of this lives.
#[derive(Clone)]
pub struct Loan {
    memory: SharedMem,
    /// The peer's address of its first byte.
    base: u64,
    writable: bool,
    /// One for each clone: messages that need it.
    held: Arc<()>,
}

/// Memory of the peer that it lent, whether it is mapped here or not.
pub struct Lent {
    anchor: Anchor,
    base: u64,
    writable: bool,
}

impl Lent {
    /// `anchor` stands for what the peer has at `base`.
    pub fn new(anchor: Anchor, base: u64, writable: bool) -> Lent {
        Lent { anchor, base, writable }
    }

    /// Maps it.
    ///
    /// # Errors
    /// As [`Anchor::attach`].
    pub fn attach(&self) -> Result<Loan, Errno> {
        let Lent { ref anchor, base, writable } = *self;
        Ok(Loan { memory: anchor.attach()?, base, writable, held: Arc::default() })
    }
}

impl Loan {
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
pub struct Engines {
    /// That of messages which fit the caches.
    near: Engine,
    /// Bytes of the shortest message that goes past the caches.
    streaming_from: usize,
}

impl Default for Engines {
    fn default() -> Engines {
        Engines { near: Engine::Plain, streaming_from: usize::MAX }
    }
}

impl Engines {
    /// Messages that fit the caches by one engine; those of so many bytes or more past the caches (`usize::MAX`: none).
    pub fn new(near: Engine, streaming_from: usize) -> Engines {
        Engines { near, streaming_from }
    }

    /// That of a message of which the receiver wants so many bytes. What the kernel copies is its own affair.
    pub fn of(&self, wanted: usize, mapped: bool) -> Engine {
        match wanted {
            _ if !mapped => Engine::Plain,
            _ if wanted >= self.streaming_from => Engine::Streaming,
            _ => self.near.for_message(wanted),
        }
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
            Means::Kernel(target, true) => {
                remote::fetch_part(target.pid, from, to, at, len, None).map_err(|why| target.judge(why))
            }
            Means::Kernel(target, false) => target.fetch(from, to, at, len).map_err(|why| target.judge(why)),
            Means::Mapped(loan, engine) => {
                loan.parts(from, at, len, |there, here, n| {
                    loan.memory.drain_by(*engine, there, to, here, n);
                });
                Ok(())
            }
        }
    }

    /// Appends the first `len` bytes of a message to `out`, from the other's pieces; all of them or none.
    pub fn append(&self, from: &Pieces, len: usize, out: &mut Vec<u8>) -> Result<(), NoAccess> {
        match self {
            Means::Kernel(target, true) => remote::append(target.pid, from, len, None, out).map_err(|why| target.judge(why)),
            Means::Kernel(target, false) => target.append(from, len, out).map_err(|why| target.judge(why)),
            Means::Mapped(loan, _) => {
                loan.parts(from, 0, len, |there, _, n| loan.memory.append_to(there, n, out));
                Ok(())
            }
        }
    }

    /// Copies bytes `at..at + len` of a message from our pieces to the other's.
    pub fn store(&self, to: &Pieces, from: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
        match self {
            Means::Kernel(target, _) => remote::store_part(target.pid, to, from, at, len).map_err(|why| target.judge(why)),
            Means::Mapped(loan, engine) => {
                let engine = engine.for_own();
                loan.parts(to, at, len, |there, here, n| loan.memory.fill_by(engine, there, from, here, n));
                Ok(())
            }
        }
    }
}

impl Target {
    /// Looks whether the process of this id is the one that the table is of: if not, it is [`NoAccess::Gone`].
    ///
    /// # Errors
    /// The kernel does not let us look.
    pub(crate) fn find(self) -> Result<(), NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        match remote::fetch_words(self.pid, self.table.address, &mut line) {
            // Its table is there as long as it is.
            Err(NoAccess::Fault) => Err(NoAccess::Gone),
            Ok(()) if !Root::is_of(&line, self.table) => Err(NoAccess::Gone),
            other => other,
        }
    }

    /// What an error means. Where one address cannot be reached perhaps all of them cannot, for another process has the number.
    fn judge(self, why: NoAccess) -> NoAccess {
        if why == NoAccess::Fault { self.find().err().unwrap_or(why) } else { why }
    }

    /// Copies bytes `at..at + len` of a message from there, if it is that process.
    fn fetch(self, from: &Pieces, to: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        let also = Also { at: self.table.address, words: &mut line };
        remote::fetch_part(self.pid, from, to, at, len, Some(also))?;
        if Root::is_of(&line, self.table) { Ok(()) } else { Err(NoAccess::Gone) }
    }

    /// [`Means::append`], if it is that process.
    fn append(self, from: &Pieces, len: usize, out: &mut Vec<u8>) -> Result<(), NoAccess> {
        let mut line: Line = [0; LINE_WORDS];
        let (start, also) = (out.len(), Also { at: self.table.address, words: &mut line });
        remote::append(self.pid, from, len, Some(also), out)?;
        if Root::is_of(&line, self.table) {
            return Ok(());
        }
        out.truncate(start);
        Err(NoAccess::Gone)
    }
}

/// Most that one peer may lend, in bytes of addresses; in number, see [`MOST`].
const MOST_BYTES: usize = 1 << 42;

/// What the peer lent under a number.
struct Place {
    number: u32,
    /// `None`: it could not be mapped.
    lent: Option<Lent>,
    /// `None`: it is not mapped at the moment.
    loan: Option<Loan>,
    /// When it was used last.
    used: AtomicU64,
}

/// What the peer lent, by its numbers.
#[derive(Default)]
pub(super) struct Loans {
    list: SmallVec<[Place; 1]>,
    /// Counts uses of what all peers of an endpoint lent.
    clock: Arc<AtomicU64>,
}

impl Loans {
    /// Whether `bytes` more may be mapped under a new number.
    pub fn has_room(&self, number: u32, bytes: usize) -> bool {
        let taken: usize = self.list.iter().filter_map(|place| place.lent.as_ref()).map(|lent| lent.anchor.bytes()).sum();
        number != 0 && !self.knows(number) && self.list.len() < MOST && bytes <= MOST_BYTES - taken.min(MOST_BYTES)
    }

    /// Uses are counted together with others'.
    pub fn count_by(&mut self, clock: Arc<AtomicU64>) {
        self.clock = clock;
    }

    fn now(&self) -> u64 {
        // One thread at a time: no lock.
        let now = self.clock.load(Ordering::Relaxed) + 1;
        self.clock.store(now, Ordering::Relaxed);
        now
    }

    /// Remembers what became of a number. Whether there was room for that.
    pub fn insert(&mut self, number: u32, lent: Option<(Lent, Loan)>) -> bool {
        let new = self.list.len() < MOST && !self.knows(number);
        if new {
            let (lent, loan) = lent.unzip();
            let used = AtomicU64::new(self.now());
            self.list.push(Place { number, lent, loan, used });
        }
        new
    }

    fn place(&self, number: u32) -> Option<&Place> {
        self.list.iter().find(|place| place.number == number)
    }

    fn place_mut(&mut self, number: u32) -> Option<&mut Place> {
        self.list.iter_mut().find(|place| place.number == number)
    }

    /// Whether nothing is to be done before a message that names it is looked at: it is mapped, or cannot be.
    pub fn is_ready(&self, number: u32) -> bool {
        self.place(number).is_some_and(|place| place.loan.is_some() || place.lent.is_none())
    }

    /// Maps again what is not mapped. Whether it is now; if that cannot be, it is not tried again.
    pub fn attach(&mut self, number: u32) -> bool {
        let Some(place) = self.place_mut(number) else { return false };
        if place.loan.is_none() {
            place.loan = place.lent.as_ref().and_then(|lent| lent.attach().ok());
        }
        if place.loan.is_none() {
            place.lent = None;
        }
        place.loan.is_some()
    }

    /// Unmaps it until a message names it.
    pub fn detach(&mut self, number: u32) {
        if let Some(place) = self.place_mut(number) {
            place.loan = None;
        }
    }

    /// What is mapped.
    pub fn attached(&self) -> impl Iterator<Item = Attached<u32>> {
        self.list.iter().filter_map(|place| {
            let loan = place.loan.as_ref()?;
            let (bytes, used) = (loan.memory.bytes(), place.used.load(Ordering::Relaxed));
            Some(Attached { key: place.number, bytes, used, busy: Arc::strong_count(&loan.held) > 1 })
        })
    }

    /// Forgets a number. Whether it was heard of it.
    pub fn remove(&mut self, number: u32) -> bool {
        let at = self.list.iter().position(|place| place.number == number);
        at.map(|at| self.list.swap_remove(at)).is_some()
    }

    /// Whether it was heard of a number.
    pub fn knows(&self, number: u32) -> bool {
        self.place(number).is_some()
    }

    /// The memory of this number, if there is any and it is mapped. It counts as used.
    pub fn get(&self, number: u32) -> Option<&Loan> {
        let place = self.place(number)?;
        place.used.store(self.now(), Ordering::Relaxed);
        place.loan.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::shared::Heap;

    /// What is given up is mapped again when it is wanted; what a message holds is busy; uses of all are counted together.
    #[test]
    fn what_is_lent_comes_and_goes() {
        let clock = Arc::new(AtomicU64::new(0));
        let [mut a, mut b] = [Loans::default(), Loans::default()];
        for loans in [&mut a, &mut b] {
            loans.count_by(clock.clone());
            for number in [1, 2] {
                let lent = Lent::new(Anchor::Own(SharedMem::new(Heap::new(4096))), 0, false);
                let loan = lent.attach().expect("own");
                assert!(loans.insert(number, Some((lent, loan))) && loans.is_ready(number));
            }
        }
        assert!(a.insert(3, None) && a.is_ready(3) && a.get(3).is_none() && !a.attach(3), "cannot be mapped");
        let held = a.get(1).cloned();
        b.get(1);
        let all = |a: &Loans, b: &Loans| -> Vec<(u32, bool)> {
            let mut all: Vec<_> = a.attached().chain(b.attached()).collect();
            all.sort_by_key(|attached| attached.used);
            all.iter().map(|attached| (attached.key, attached.busy)).collect()
        };
        assert_eq!(all(&a, &b), [(2, false), (2, false), (1, true), (1, false)]);
        b.detach(1);
        assert!(!b.is_ready(1) && b.knows(1) && b.get(1).is_none());
        drop(held);
        assert_eq!(all(&a, &b), [(2, false), (2, false), (1, false)]);
        assert!(b.attach(1) && b.is_ready(1) && b.get(1).is_some());
        assert!(b.remove(1) && !b.knows(1) && !b.attach(1));
        assert!(a.has_room(9, MOST_BYTES - 2 * 4096) && !a.has_room(9, MOST_BYTES), "what is not mapped counts, too");
        a.detach(1);
        assert!(!a.has_room(9, MOST_BYTES - 4096));
    }

    /// Not a byte beside: what lies behind it in the message is perhaps copied already, and the application's again.
    #[test]
    fn a_part_of_a_message_in_pieces() {
        let base = 1 << 20;
        let loan = Lent::new(Anchor::Own(SharedMem::new(Heap::new(4096))), base, false).attach().expect("own");
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
