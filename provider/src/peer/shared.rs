//! The table of an address vector that processes share (`docs/adr/0011-shared-av.md`).
//!
//! ```text
//! bytes
//!   0   magic and version, capacity                  once, before the vector can be found
//!  64   epoch, length                                at each change
//! 128   length of the vector's name, name            once
//! 256   slots of 64 bytes: state, 56 bytes of name   at insert and remove
//! ```
//! One process writes, by seal: the creator. A state is `generation << 2 | BUSY | USED`; the writer makes it `BUSY`, writes the name, and
//! makes it `USED` with the next generation. A reader that finds it unused, busy or changed after its copy takes the handle for
//! one that is not in use, which it was at some moment of the call: nobody waits, whoever dies. A name that was copied is validated like any
//! that comes from outside.

use super::name::{NAME_LEN, Name};
use crate::error::{Error, Result};
use crate::mem::atomic::Words;
use crate::mem::shared::{SharedMem, SharedWord};
use crate::sys::{cpu, fork, memfd, socket};
use crate::types::Addr;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};

/// What the kernel shows as the name of the memory.
const MEMORY: &str = "rustmx-av";
/// With the version of this format.
const MAGIC: u64 = u64::from_le_bytes(*b"rmxav\0\0\x01");

const AT_MAGIC: usize = 0;
const AT_CAPACITY: usize = 1;
const AT_EPOCH: usize = 8;
const AT_LENGTH: usize = 9;
const AT_TITLE: usize = 16;
const HEADER: usize = 256;
const SLOT: usize = 64;

const USED: u64 = 1;
const BUSY: u64 = 2;

/// Longest name of a vector: what an abstract socket's address has room for, and the header.
pub const TITLE_MAX: usize = 80;
/// Fewest and most entries that memory is reserved for. It cannot grow: readers have it mapped.
const CAPACITY: (usize, usize) = (4096, 1 << 20);
/// Connections that were never accepted (of openers, long closed) are thrown away once in so many insertions.
const SWEEP: u64 = 64;
/// Looks at a name that is taken and has no vector yet: its creator is between two system calls, or was killed there.
const PATIENCE: usize = 1000;

fn len_of(capacity: usize) -> usize {
    (HEADER + capacity * SLOT).next_multiple_of(4096)
}

fn socket_name(title: &str) -> String {
    format!("rustmx/1/av/{}/{title}", rustix::process::geteuid().as_raw())
}

/// Words of a title, zero-filled.
fn words_of(title: &str) -> impl Iterator<Item = u64> {
    let mut bytes = [0u8; TITLE_MAX];
    bytes[..title.len()].copy_from_slice(title.as_bytes());
    let words: [u64; TITLE_MAX / 8] = std::array::from_fn(|i| word_at(&bytes, i));
    std::iter::once(title.len() as u64).chain(words)
}

fn word_at(bytes: &[u8], index: usize) -> u64 {
    bytes[index * 8..].iter().take(8).rev().fold(0, |w, b| w << 8 | u64::from(*b))
}

/// The memory, seen by anybody.
pub(super) struct View {
    mem: SharedMem,
    /// As validated when it was opened.
    capacity: usize,
}

impl View {
    /// The memory of the vector `title`, if it is that.
    fn new(mem: SharedMem, title: &str) -> Option<View> {
        if mem.bytes() < HEADER || mem.word(AT_MAGIC).load(Ordering::Relaxed) != MAGIC {
            return None;
        }
        let capacity = usize::try_from(mem.word(AT_CAPACITY).load(Ordering::Relaxed)).ok()?;
        let fits = capacity <= CAPACITY.1 && len_of(capacity) == mem.bytes();
        let same = words_of(title).enumerate().all(|(i, w)| mem.word(AT_TITLE + i).load(Ordering::Relaxed) == w);
        (fits && same).then_some(View { mem, capacity })
    }

    fn slot(at: usize) -> usize {
        (HEADER + at * SLOT) / 8
    }

    /// Entries there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Handles given out so far, holes included. None in a forked child, which does not have the memory.
    fn length(&self) -> usize {
        if fork::in_child() {
            return 0;
        }
        let said = self.mem.word(AT_LENGTH).load(Ordering::Acquire);
        usize::try_from(said).map_or(self.capacity, |n| n.min(self.capacity))
    }

    pub(super) fn lookup(&self, a: Addr) -> Result<Name> {
        let at = usize::try_from(a.0).ok().filter(|at| *at < self.length()).ok_or(Error::UnknownAddress)?;
        let slot = View::slot(at);
        let state = self.mem.word(slot).load(Ordering::Acquire);
        if state & (USED | BUSY) != USED {
            return Err(Error::UnknownAddress);
        }
        let mut bytes = [0u8; NAME_LEN];
        for (i, part) in bytes.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&self.mem.word(slot + 1 + i).load(Ordering::Relaxed).to_le_bytes());
        }
        // Pairs with the writer's fence: if one of the words is of a later name, so is the state.
        fence(Ordering::Acquire);
        if self.mem.word(slot).load(Ordering::Relaxed) != state {
            return Err(Error::UnknownAddress);
        }
        Name::from_bytes(&bytes).map_err(|_| Error::UnknownAddress)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (u64, Name)> {
        (0..self.length() as u64).filter_map(|at| Some((at, self.lookup(Addr(at)).ok()?)))
    }

    pub(super) fn epoch(&self) -> SharedWord {
        self.mem.single(AT_EPOCH)
    }
}

/// What the creator has.
pub(super) struct Creation {
    pub(super) view: View,
    length: usize,
    holes: BTreeSet<u64>,
    /// Whoever opens the vector connects here and learns from the kernel which process it is.
    listener: OwnedFd,
    /// Openers find it among our descriptors.
    _memory: OwnedFd,
}

impl Creation {
    /// Makes the vector `title`; `Busy` if there is one.
    fn new(title: &str, count: usize) -> Result<Creation> {
        let resources = |e| if e == Errno::ADDRINUSE { Error::Busy } else { Error::NoResources };
        // Twice what is expected: what is reserved cannot grow.
        let capacity = count.saturating_mul(2).clamp(CAPACITY.0, CAPACITY.1);
        let listener = socket::reserve(&socket_name(title)).map_err(resources)?;
        let (memory, mapping) = memfd::create(MEMORY, len_of(capacity), true).map_err(resources)?;
        let mem = SharedMem::new(mapping);
        words_of(title).enumerate().for_each(|(i, w)| mem.word(AT_TITLE + i).store(w, Ordering::Relaxed));
        mem.word(AT_CAPACITY).store(capacity as u64, Ordering::Relaxed);
        mem.word(AT_MAGIC).store(MAGIC, Ordering::Release);
        // From here on it is found.
        socket::start(&listener).map_err(resources)?;
        Ok(Creation { view: View { mem, capacity }, length: 0, holes: BTreeSet::new(), listener, _memory: memory })
    }

    fn changed(&self) {
        // The only writer: no read-modify-write is needed.
        let epoch = self.view.mem.word(AT_EPOCH);
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    pub(super) fn insert(&mut self, name: &Name) -> Result<Addr> {
        if fork::in_child() {
            return Err(Error::Forked);
        }
        let at = match self.holes.pop_first() {
            Some(hole) => hole,
            None if self.length == self.view.capacity => return Err(Error::NoResources),
            None => self.length as u64,
        };
        let (slot, mem) = (View::slot(at as usize), &self.view.mem);
        let generation = (mem.word(slot).load(Ordering::Relaxed) >> 2).wrapping_add(1) << 2;
        mem.word(slot).store(generation | BUSY, Ordering::Relaxed);
        // Whoever sees a word of the new name sees a state that is not the old one.
        fence(Ordering::Release);
        let bytes = name.to_bytes();
        (0..NAME_LEN / 8).for_each(|i| mem.word(slot + 1 + i).store(word_at(&bytes, i), Ordering::Relaxed));
        mem.word(slot).store(generation | USED, Ordering::Release);
        self.length = self.length.max(at as usize + 1);
        mem.word(AT_LENGTH).store(self.length as u64, Ordering::Release);
        self.changed();
        if at % SWEEP == 0 {
            while socket::accept(&self.listener).is_ok() {}
        }
        Ok(Addr(at))
    }

    pub(super) fn remove(&mut self, a: Addr) -> Result<()> {
        if fork::in_child() {
            return Err(Error::Forked);
        }
        self.view.lookup(a)?;
        let state = self.view.mem.word(View::slot(a.0 as usize));
        state.store((state.load(Ordering::Relaxed) >> 2).wrapping_add(1) << 2, Ordering::Release);
        self.holes.insert(a.0);
        self.changed();
        Ok(())
    }
}

type Opening<T> = std::result::Result<T, NotOpen>;

/// Finds the vector `title`.
fn open(title: &str) -> Opening<View> {
    let caller = socket::connect(&socket_name(title)).map_err(|e| match e {
        Errno::CONNREFUSED => Error::NoVector.into(),
        // So many openers since the creator's last insertion.
        Errno::AGAIN => Error::Again.into(),
        Errno::ACCESS | Errno::PERM => Error::Permission.into(),
        _ => NotOpen::from(Error::NoResources),
    })?;
    let cred = socket::peer_cred(&caller).map_err(|_| Error::NoVector)?;
    if !cred.same_user {
        return Err(Error::Permission.into());
    }
    let hidden = |pid: i32| NotOpen {
        error: Error::Permission,
        why: format!(
            "its creator is process {pid} (0: of another container), and /proc/{pid}/fd may not be read: it runs with more rights \
             than this process, or is marked as not dumpable"
        ),
    };
    if cred.pid == 0 {
        return Err(hidden(0));
    }
    let find = |mapping: &std::sync::Arc<memfd::Mapping>| View::new(SharedMem::new(mapping.clone()), title).is_some();
    match memfd::find(cred.pid, MEMORY, len_of(CAPACITY.1), find) {
        Ok(Some(mapping)) => View::new(SharedMem::new(mapping), title).ok_or_else(|| Error::NoVector.into()),
        // The creator ended meanwhile (and a child of it, made without handlers of fork, holds the socket), or closed the vector.
        Ok(None) | Err(Errno::NOENT | Errno::SRCH) => Err(Error::NoVector.into()),
        Err(Errno::ACCESS | Errno::PERM) => Err(hidden(cred.pid)),
        Err(_) => Err(Error::NoResources.into()),
    }
}

/// Why a shared vector could not be opened.
#[derive(Debug)]
pub struct NotOpen {
    /// The error.
    pub error: Error,
    /// In words.
    pub why: String,
}

impl From<Error> for NotOpen {
    fn from(error: Error) -> NotOpen {
        NotOpen { error, why: error.to_string() }
    }
}

/// A vector made or found.
pub(super) enum Found {
    Created(Creation),
    Opened(View),
}

/// Opens the vector `title`, or, unless `must_exist`, makes it with room for at least `count` entries.
pub(super) fn find_or_create(title: &str, must_exist: bool, count: usize) -> Opening<Found> {
    fork::own();
    if title.is_empty() {
        return Err(Error::Invalid.into());
    }
    if title.len() > TITLE_MAX {
        return Err(Error::TooLong.into());
    }
    if must_exist {
        return open(title).map(Found::Opened);
    }
    for _ in 0..PATIENCE {
        match Creation::new(title, count) {
            Err(Error::Busy) => {}
            other => return other.map(Found::Created).map_err(NotOpen::from),
        }
        match open(title) {
            Err(NotOpen { error: Error::NoVector, .. }) => cpu::yield_core(),
            other => return other.map(Found::Opened),
        }
    }
    let why = "its creator ended, but a process that it made by clone(2), without handlers of fork, holds the name; end that one, or choose another name";
    Err(NotOpen { error: Error::AddressInUse, why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::shared::Heap;

    fn memory(title: &str, capacity: usize) -> SharedMem {
        let mem = SharedMem::new(Heap::new(len_of(capacity)));
        words_of(title).enumerate().for_each(|(i, w)| mem.word(AT_TITLE + i).store(w, Ordering::Relaxed));
        mem.word(AT_CAPACITY).store(capacity as u64, Ordering::Relaxed);
        mem.word(AT_MAGIC).store(MAGIC, Ordering::Relaxed);
        mem
    }

    fn put(mem: &SharedMem, at: usize, state: u64, bytes: &[u8; NAME_LEN]) {
        (0..NAME_LEN / 8).for_each(|i| mem.word(View::slot(at) + 1 + i).store(word_at(bytes, i), Ordering::Relaxed));
        mem.word(View::slot(at)).store(state, Ordering::Relaxed);
    }

    #[test]
    fn memory_of_another_vector_or_size_is_not_taken() {
        let title = "x".repeat(TITLE_MAX);
        assert!(View::new(memory(&title, 100), &title).is_some());
        assert!(View::new(memory("a", 100), "b").is_none());
        assert!(View::new(memory("a", 100), "a\0").is_none());
        assert!(View::new(SharedMem::new(Heap::new(64)), "a").is_none());
        for (word, value) in
            [(AT_MAGIC, 0), (AT_CAPACITY, 1000), (AT_CAPACITY, 0), (AT_CAPACITY, u64::MAX), (AT_CAPACITY, 1 << 58)]
        {
            let mem = memory("a", 100);
            mem.word(word).store(value, Ordering::Relaxed);
            assert!(View::new(mem, "a").is_none(), "{word} {value}");
        }
    }

    #[test]
    fn what_a_hostile_creator_writes_is_no_name_and_no_index() {
        let mem = memory("a", 100);
        let view = View::new(mem.clone(), "a").expect("sound");
        let name = Name::new(7, 0, 3, None);
        mem.word(AT_LENGTH).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(view.names().count(), 0);
        put(&mem, 0, 4 | USED, &name.to_bytes());
        put(&mem, 1, 4 | USED | BUSY, &name.to_bytes());
        put(&mem, 2, 4, &name.to_bytes());
        put(&mem, 3, u64::MAX - BUSY, &[0xff; NAME_LEN]);
        put(&mem, 99, USED, &name.to_bytes());
        assert_eq!(view.names().collect::<Vec<_>>(), [(0, name), (99, name)]);
        for beyond in [100, 101, 1 << 32, u64::MAX / 64, u64::MAX] {
            assert_eq!(view.lookup(Addr(beyond)), Err(Error::UnknownAddress));
        }
        mem.word(AT_LENGTH).store(0, Ordering::Relaxed);
        mem.word(AT_CAPACITY).store(u64::MAX, Ordering::Relaxed);
        assert_eq!((view.lookup(Addr(0)), view.names().count()), (Err(Error::UnknownAddress), 0));
    }

    #[test]
    fn a_name_is_never_half_old() {
        let title = format!("test-torn/{:x}", crate::sys::host::random());
        let mut creation = Creation::new(&title, 0).expect("new");
        let view = open(&title).expect("open");
        let names = [1, u64::MAX].map(|n| Name::new(n, n as u32, n, None).with_table(n));
        std::thread::scope(|s| {
            let reader = s.spawn(move || {
                let mut seen = 0;
                for _ in 0..20_000 {
                    if let Ok(name) = view.lookup(Addr(0)) {
                        assert!(names.contains(&name), "{name}");
                        seen += 1;
                    }
                }
                seen
            });
            let mut turn = 0;
            while !reader.is_finished() {
                creation.insert(&names[turn % 2]).expect("insert");
                std::hint::spin_loop();
                creation.remove(Addr(0)).expect("remove");
                turn += 1;
            }
            assert!(reader.join().is_ok());
        });
    }

    #[test]
    fn openers_are_swept_and_the_name_is_free_afterwards() {
        let title = format!("test-sweep/{:x}", crate::sys::host::random());
        assert_eq!(open(&title).err().map(|e| e.error), Some(Error::NoVector));
        let mut creation = Creation::new(&title, 0).expect("new");
        assert_eq!(Creation::new(&title, 0).err(), Some(Error::Busy));
        let view = open(&title).expect("open");
        assert_eq!(creation.insert(&Name::new(1, 0, 1, None)), Ok(Addr(0)));
        assert_eq!(socket::accept(&creation.listener).err(), Some(Errno::AGAIN));
        drop(creation);
        assert_eq!(view.names().count(), 1);
        assert_eq!(open(&title).err().map(|e| e.error), Some(Error::NoVector));
    }
}
