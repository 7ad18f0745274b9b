//! The address vector: dense handles for endpoint names (fi_av(3)).
//!
//! Belongs to a domain and serves any number of its endpoints. It has its own lock, because inserts are
//! allowed from any thread whatever the domain's threading level; endpoints keep private routes and only look at
//! [`BoundVector::epoch`] (one load) on the data path. Its names are in private memory or, if it has a name itself, in memory that
//! processes share ([`super::shared`]); handles are the same numbers either way. Private: 48 bytes an entry, in chunks, so a job of 10 000 names costs half a megabyte.

use super::name::Name;
use super::shared::{self, Creation, Found, NotOpen, View};
use crate::error::{Error, Result};
use crate::mem::shared::{Heap, SharedMem, SharedWord};
use crate::types::Addr;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names in a chunk.
const CHUNK: usize = 256;

#[derive(Default)]
struct Private {
    chunks: Vec<Box<[Option<Name>]>>,
    len: usize,
    /// Removed handles, given out again lowest first, so that several vectors filled alike stay alike.
    holes: BTreeSet<u64>,
}

impl Private {
    fn slot(&mut self, at: u64) -> Option<&mut Option<Name>> {
        let at = usize::try_from(at).ok()?;
        if at >= self.len {
            return None;
        }
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    fn names(&self) -> impl Iterator<Item = (u64, Name)> {
        self.chunks.iter().flatten().enumerate().filter_map(|(i, n)| n.map(|n| (i as u64, n)))
    }

    fn insert(&mut self, name: &Name) -> Addr {
        let at = match self.holes.pop_first() {
            Some(hole) => hole,
            None => {
                if self.len == self.chunks.len() * CHUNK {
                    self.chunks.push(vec![None; CHUNK].into_boxed_slice());
                }
                self.len += 1;
                (self.len - 1) as u64
            }
        };
        if let Some(slot) = self.slot(at) {
            *slot = Some(*name);
        }
        Addr(at)
    }

    fn remove(&mut self, a: Addr) -> Result<()> {
        self.slot(a.0).and_then(Option::take).ok_or(Error::UnknownAddress)?;
        self.holes.insert(a.0);
        Ok(())
    }
}

enum Table {
    Private(Private),
    Created(Creation),
    Opened(View),
}

impl Table {
    fn lookup(&mut self, a: Addr) -> Result<Name> {
        match self {
            Table::Private(t) => t.slot(a.0).and_then(|s| *s).ok_or(Error::UnknownAddress),
            Table::Created(Creation { view, .. }) | Table::Opened(view) => view.lookup(a),
        }
    }

    /// The names that `take` does not answer to, up to the first that it does.
    fn walk<T>(&self, mut take: impl FnMut(u64, &Name) -> Option<T>) -> Option<T> {
        match self {
            Table::Private(t) => t.names().find_map(|(i, n)| take(i, &n)),
            Table::Created(Creation { view, .. }) | Table::Opened(view) => view.names().find_map(|(i, n)| take(i, &n)),
        }
    }
}

/// A thread-safe address vector.
pub struct AddressVector {
    table: Mutex<Table>,
    epoch: SharedWord,
}

impl Default for AddressVector {
    fn default() -> AddressVector {
        let epoch = SharedMem::new(Heap::new(64)).single(0);
        AddressVector { table: Mutex::new(Table::Private(Private::default())), epoch }
    }
}

impl AddressVector {
    /// An empty one, of this process.
    pub fn new() -> AddressVector {
        AddressVector::default()
    }

    /// The one of this name that processes of this user and host share. It is made, with room for at least `count` entries,
    /// unless it is there or `must_exist`. Whoever did not make it only reads it.
    ///
    /// # Errors
    /// [`Error::NoVector`] if it must exist and does not; `Permission` if its creator is out of reach; `TooLong` for names of more
    /// than 80 bytes; `NoResources`; `Again` after thousands of openers.
    pub fn shared(name: &str, must_exist: bool, count: usize) -> std::result::Result<AddressVector, NotOpen> {
        let (table, epoch) = match shared::find_or_create(name, must_exist, count)? {
            Found::Created(creation) => {
                let epoch = creation.view.epoch();
                (Table::Created(creation), epoch)
            }
            Found::Opened(view) => {
                let epoch = view.epoch();
                (Table::Opened(view), epoch)
            }
        };
        Ok(AddressVector { table: Mutex::new(table), epoch })
    }

    /// Whether only another opener can change it.
    pub fn is_read_only(&self) -> bool {
        matches!(*self.table.lock(), Table::Opened(_))
    }

    /// How many entries a shared one has room for; `None` if that is a matter of memory.
    pub fn capacity(&self) -> Option<usize> {
        match &*self.table.lock() {
            Table::Private(_) => None,
            Table::Created(Creation { view, .. }) | Table::Opened(view) => Some(view.capacity()),
        }
    }

    /// Adds a name; the same name twice gives two handles. `UNSPEC` if that is not possible ([`AddressVector::add`]).
    pub fn insert(&self, name: &Name) -> Addr {
        self.add(name).unwrap_or(Addr::UNSPEC)
    }

    /// As [`AddressVector::insert`], and says why not.
    ///
    /// # Errors
    /// Only of a shared one: [`Error::ReadOnly`]; `NoResources` if it is full.
    pub fn add(&self, name: &Name) -> Result<Addr> {
        match &mut *self.table.lock() {
            Table::Private(t) => {
                let at = t.insert(name);
                self.epoch.get().fetch_add(1, Ordering::Release);
                Ok(at)
            }
            Table::Created(c) => c.insert(name),
            Table::Opened(_) => Err(Error::ReadOnly),
        }
    }

    /// Makes room for `n` more names at once.
    pub fn reserve(&self, n: usize) {
        if let Table::Private(t) = &mut *self.table.lock() {
            t.chunks.reserve(n.div_ceil(CHUNK));
        }
    }

    /// Removes a handle.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`] if it is not in use; [`Error::ReadOnly`].
    pub fn remove(&self, a: Addr) -> Result<()> {
        match &mut *self.table.lock() {
            Table::Private(t) => {
                t.remove(a)?;
                self.epoch.get().fetch_add(1, Ordering::Release);
                Ok(())
            }
            Table::Created(c) => c.remove(a),
            Table::Opened(_) => Err(Error::ReadOnly),
        }
    }

    /// The name behind a handle.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`] if it is not in use.
    pub fn lookup(&self, a: Addr) -> Result<Name> {
        self.table.lock().lookup(a)
    }

    /// The lowest handle whose name is wanted.
    pub fn find(&self, mut wanted: impl FnMut(&Name) -> bool) -> Option<Addr> {
        self.table.lock().walk(|i, n| wanted(n).then_some(Addr(i)))
    }

    /// Names in use.
    pub fn len(&self) -> usize {
        let mut n = 0;
        self.table.lock().walk(|_, _| {
            n += 1;
            None::<()>
        });
        n
    }

    /// Whether no name is in use.
    pub fn is_empty(&self) -> bool {
        self.find(|_| true).is_none()
    }

    /// How many different endpoints with host id `host` it names.
    pub fn count_local(&self, host: u64) -> usize {
        let mut local = rustc_hash::FxHashSet::default();
        self.table.lock().walk(|_, n| {
            local.extend(n.identity().filter(|_| n.is_local_to(host, |_| false)));
            None::<()>
        });
        local.len()
    }

    /// For an endpoint that uses it.
    pub fn bind(self: &Arc<Self>) -> BoundVector {
        BoundVector { epoch: self.epoch.clone(), vector: self.clone() }
    }
}

/// An address vector in use: how its epoch is looked at without going through the vector.
pub struct BoundVector {
    epoch: SharedWord,
    vector: Arc<AddressVector>,
}

impl BoundVector {
    /// Changes whenever an entry does. Of a shared vector it is the creator's word: only good for comparing.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.get().load(Ordering::Acquire)
    }

    /// The vector.
    pub fn vector(&self) -> &Arc<AddressVector> {
        &self.vector
    }
}

impl std::ops::Deref for BoundVector {
    type Target = AddressVector;

    fn deref(&self) -> &AddressVector {
        &self.vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_vector_of_options(ops in proptest::collection::vec((any::<bool>(), 0u64..40), 0..300)) {
            let title = format!("test-model/{:x}", crate::sys::host::random());
            let av = AddressVector::new();
            let shared = AddressVector::shared(&title, false, 0).expect("create");
            let reader = AddressVector::shared(&title, true, 0).expect("open");
            prop_assert!(!shared.is_read_only() && reader.is_read_only());
            let reader = Arc::new(reader);
            let bound = reader.bind();
            let mut oracle: Vec<Option<Name>> = Vec::new();
            for (i, (insert, at)) in ops.into_iter().enumerate() {
                let before = bound.epoch();
                if insert {
                    let name = Name::new(i as u64 + 1, 0, 1, None);
                    let want = oracle.iter().position(Option::is_none).unwrap_or_else(|| { oracle.push(None); oracle.len() - 1 });
                    oracle[want] = Some(name);
                    prop_assert_eq!(av.insert(&name), Addr(want as u64));
                    prop_assert_eq!(reader.add(&name), Err(Error::ReadOnly));
                    prop_assert_eq!(shared.add(&name), Ok(Addr(want as u64)));
                    prop_assert!(bound.epoch() != before);
                } else {
                    let gone = oracle.get_mut(at as usize).and_then(Option::take);
                    prop_assert_eq!(av.remove(Addr(at)).is_ok(), gone.is_some());
                    prop_assert_eq!(reader.remove(Addr(at)), Err(Error::ReadOnly));
                    prop_assert_eq!(shared.remove(Addr(at)).is_ok(), gone.is_some());
                    prop_assert_eq!(bound.epoch() != before, gone.is_some());
                }
                for (i, want) in oracle.iter().enumerate() {
                    for av in [&av, &shared, &*reader] {
                        prop_assert_eq!(av.lookup(Addr(i as u64)).ok(), *want);
                    }
                }
                for av in [&av, &shared, &*reader] {
                    prop_assert_eq!(av.len(), oracle.iter().flatten().count());
                }
            }
            prop_assert!(av.lookup(Addr::UNSPEC).is_err());
        }
    }

    #[test]
    fn finds_by_identity_and_counts_endpoints_once() {
        let av = AddressVector::new();
        let (a, b) = (Name::new(5, 0, 3, None), Name::new(6, 0, 4, None));
        av.insert(&b);
        let first = av.insert(&a);
        av.insert(&a);
        assert_eq!(av.find(|n| n.identity() == a.identity()), Some(first));
        assert_eq!(av.count_local(3), 1);
    }

    #[test]
    fn ten_thousand_names_stay_small() {
        assert!(size_of::<Option<Name>>() <= 64, "{}", size_of::<Option<Name>>());
    }
}
