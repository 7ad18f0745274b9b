//! The address vector: dense handles for endpoint names (fi_av(3)).
//!
//! Belongs to a domain and serves any number of its endpoints. It has its own lock, because inserts are
//! allowed from any thread whatever the domain's threading level; endpoints keep private routes and only look at
//! [`AddressVector::epoch`] (one load) on the data path. 48 bytes an entry, in chunks, so a job of 10 000 names costs half a megabyte.

use super::name::Name;
use crate::error::{Error, Result};
use crate::types::Addr;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names in a chunk.
const CHUNK: usize = 256;

#[derive(Default)]
struct Table {
    chunks: Vec<Box<[Option<Name>]>>,
    len: usize,
    /// Removed handles, given out again lowest first, so that several vectors filled alike stay alike.
    holes: BTreeSet<u64>,
}

impl Table {
    fn slot(&mut self, at: u64) -> Option<&mut Option<Name>> {
        let at = usize::try_from(at).ok()?;
        if at >= self.len {
            return None;
        }
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    fn names(&self) -> impl Iterator<Item = (u64, &Name)> {
        self.chunks.iter().flatten().enumerate().filter_map(|(i, n)| n.as_ref().map(|n| (i as u64, n)))
    }
}

/// A thread-safe address vector.
#[derive(Default)]
pub struct AddressVector {
    table: Mutex<Table>,
    epoch: AtomicU64,
}

impl AddressVector {
    /// An empty one.
    pub fn new() -> AddressVector {
        AddressVector::default()
    }

    /// Adds a name; the same name twice gives two handles.
    pub fn insert(&self, name: &Name) -> Addr {
        let mut t = self.table.lock();
        let at = match t.holes.pop_first() {
            Some(hole) => hole,
            None => {
                if t.len == t.chunks.len() * CHUNK {
                    t.chunks.push(vec![None; CHUNK].into_boxed_slice());
                }
                t.len += 1;
                (t.len - 1) as u64
            }
        };
        if let Some(slot) = t.slot(at) {
            *slot = Some(*name);
        }
        self.epoch.fetch_add(1, Ordering::Release);
        Addr(at)
    }

    /// Makes room for `n` more names at once.
    pub fn reserve(&self, n: usize) {
        self.table.lock().chunks.reserve(n.div_ceil(CHUNK));
    }

    /// Removes a handle.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`] if it is not in use.
    pub fn remove(&self, a: Addr) -> Result<()> {
        let mut t = self.table.lock();
        t.slot(a.0).and_then(Option::take).ok_or(Error::UnknownAddress)?;
        t.holes.insert(a.0);
        self.epoch.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The name behind a handle.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`] if it is not in use.
    pub fn lookup(&self, a: Addr) -> Result<Name> {
        self.table.lock().slot(a.0).and_then(|s| *s).ok_or(Error::UnknownAddress)
    }

    /// The lowest handle whose name is wanted.
    pub fn find(&self, mut wanted: impl FnMut(&Name) -> bool) -> Option<Addr> {
        self.table.lock().names().find(|(_, n)| wanted(n)).map(|(i, _)| Addr(i))
    }

    /// Names in use.
    pub fn len(&self) -> usize {
        let t = self.table.lock();
        t.len - t.holes.len()
    }

    /// Whether no name is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many different endpoints with host id `host` it names.
    pub fn count_local(&self, host: u64) -> usize {
        let t = self.table.lock();
        let local = t.names().filter(|(_, n)| n.is_local_to(host, |_| false)).filter_map(|(_, n)| n.identity());
        local.collect::<rustc_hash::FxHashSet<_>>().len()
    }

    /// Changes whenever an entry does.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_vector_of_options(ops in proptest::collection::vec((any::<bool>(), 0u64..40), 0..300)) {
            let av = AddressVector::new();
            let mut oracle: Vec<Option<Name>> = Vec::new();
            for (i, (insert, at)) in ops.into_iter().enumerate() {
                if insert {
                    let name = Name::new(i as u64 + 1, 0, 1, None);
                    let want = oracle.iter().position(Option::is_none).unwrap_or_else(|| { oracle.push(None); oracle.len() - 1 });
                    oracle[want] = Some(name);
                    prop_assert_eq!(av.insert(&name), Addr(want as u64));
                } else {
                    let gone = oracle.get_mut(at as usize).and_then(Option::take);
                    prop_assert_eq!(av.remove(Addr(at)).is_ok(), gone.is_some());
                }
                for (i, want) in oracle.iter().enumerate() {
                    prop_assert_eq!(av.lookup(Addr(i as u64)).ok(), *want);
                }
                prop_assert_eq!(av.len(), oracle.iter().flatten().count());
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
