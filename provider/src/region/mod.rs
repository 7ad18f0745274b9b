//! Memory that peers may read and write (fi_mr(3)): a domain's regions by key, and the table that shows them to peers.
//!
//! Whatever reaches a region goes through [`Regions::reach`], for requests that travel through a ring, or through the published
//! [`table`], for initiators that do the work alone. Both check key, rights and bounds on the target's terms. What the
//! table cannot do: a process of the same user that may read our memory through the kernel may also write it without asking;
//! the table keeps peers from mistakes, the kernel keeps strangers out.

pub mod execute;
pub mod table;

use crate::error::{Error, Result};
use crate::mem::remote::{self, NoAccess, Piece};
use crate::mem::user::{self, UserSeg};
use crate::types::{Access, CntrEvents, CntrId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::Cell;
use table::Table;

/// A registration.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The memory. All of the address space: null and `usize::MAX`.
    pub memory: UserSeg,
    /// What peers may do.
    pub access: Access,
    /// Whether peers name it by virtual address instead of by offset (`FI_MR_VIRT_ADDR`).
    pub by_address: bool,
}

struct Entry {
    region: Region,
    /// The network was told to write there, or to read, by itself.
    lent: Cell<bool>,
}

/// A domain's regions.
#[derive(Default)]
pub struct Regions {
    by_key: FxHashMap<u64, Entry>,
    /// What counts accesses by peers (fi_mr_bind), of few regions.
    counters: FxHashMap<u64, SmallVec<[(CntrId, CntrEvents); 1]>>,
    table: Table,
}

impl Regions {
    /// Adds a region under a key.
    ///
    /// # Errors
    /// [`Error::KeyInUse`].
    pub fn register(&mut self, key: u64, region: Region) -> Result<()> {
        if self.by_key.contains_key(&key) {
            return Err(Error::KeyInUse);
        }
        self.by_key.insert(key, Entry { region, lent: Cell::new(false) });
        self.publish(key, &region);
        Ok(())
    }

    fn publish(&mut self, key: u64, region: &Region) {
        if region.access.is_empty() {
            return;
        }
        // Peers add the offset to what the table says; by address that is the address itself.
        let start = region.memory.address() as u64;
        let flags = if region.by_address { region.access | Access::BY_ADDRESS } else { region.access };
        self.table.insert(key, start, region.memory.len() as u64, flags);
    }

    /// Withdraws a region: no peer reaches it afterwards, except by a direct transfer that is under way. Returns whether it was
    /// [lent](Self::lend): then it is the caller who sees to it that what is under way by that ends.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none.
    #[must_use = "something may still be written or read there"]
    pub fn close(&mut self, key: u64) -> Result<bool> {
        let closed = self.by_key.remove(&key).ok_or(Error::Invalid)?;
        self.counters.remove(&key);
        self.table.remove(key);
        Ok(closed.lent.get())
    }

    /// What a request names is about to be written or read by the network, without a further look here: whoever closes the region is told.
    pub fn lend(&self, key: u64) {
        if let Some(entry) = self.by_key.get(&key) {
            entry.lent.set(true);
        }
    }

    /// Binds a counter of accesses by peers: of reads, of what writes, or of both.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such region.
    pub fn bind_counter(&mut self, key: u64, counter: CntrId, events: CntrEvents) -> Result<()> {
        if !self.by_key.contains_key(&key) {
            return Err(Error::Invalid);
        }
        let bound = self.counters.entry(key).or_default();
        // Once more: it counts the one as well as the other, and each access once.
        match bound.iter_mut().find(|(known, _)| *known == counter) {
            Some((_, known)) => *known |= events,
            None => bound.push((counter, events)),
        }
        self.want_events();
        Ok(())
    }

    /// Asks initiators that do the work alone to tell of it.
    pub fn want_events(&mut self) {
        self.table.want_events();
    }

    /// Where the table is, for the endpoint's name.
    pub fn locator(&self) -> u64 {
        self.table.locator().to_word()
    }

    /// An unused key, for clients that let the provider choose (`FI_MR_PROV_KEY`).
    pub fn free_key(&self) -> u64 {
        (0..).find(|key| !self.by_key.contains_key(key)).unwrap_or(0)
    }

    /// The counters of this event that are bound to a region.
    pub fn counters(&self, key: u64, event: CntrEvents) -> impl Iterator<Item = CntrId> + use<'_> {
        let bound = self.counters.get(&key).map_or(&[][..], |bound| bound);
        bound.iter().filter(move |(_, events)| events.contains(event)).map(|(cntr, _)| *cntr)
    }

    /// The memory that a request names.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::NoRight`], [`Error::OutOfBounds`].
    pub fn reach(&self, key: u64, addr: u64, len: usize, access: Access) -> Result<UserSeg> {
        let Entry { region, .. } = self.by_key.get(&key).ok_or(Error::NoKey)?;
        let start = region.memory.address() as u64;
        let by_address = if region.by_address { Access::BY_ADDRESS } else { Access::empty() };
        let at = locate(start, region.memory.len() as u64, region.access | by_address, (addr, len as u64), access)?;
        Ok(region.memory.part((at - start) as usize, len))
    }
}

impl Regions {
    /// Whether a region is all of the address space: what a request names there may not be mapped.
    pub fn is_everything(&self, key: u64) -> bool {
        self.by_key.get(&key).is_some_and(|entry| entry.region.memory.len() == usize::MAX)
    }

    /// A copy of a piece of a region ([`reach`](Self::reach)).
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub fn read_out(&self, key: u64, piece: UserSeg) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(piece.len());
        if self.is_everything(key) {
            // Only the peer vouches for the address: the kernel knows what can be read there.
            let there = [Piece { addr: piece.address() as u64, len: piece.len() }];
            match remote::append(std::process::id(), &there, piece.len(), None, &mut bytes) {
                Ok(()) => return Ok(bytes),
                // A sandbox without the system call; the mapping itself can still be asked for.
                Err(NoAccess::Forbidden) if remote::is_mapped(piece.address(), piece.len()) => {}
                Err(_) => return Err(Error::Unmapped),
            }
        }
        user::gather_into(&[piece], 0, piece.len(), &mut bytes);
        Ok(bytes)
    }

    /// Writes to a piece of a region ([`reach`](Self::reach)).
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub fn write_in(&self, key: u64, piece: UserSeg, bytes: &[u8]) -> Result<()> {
        if self.is_everything(key) {
            return self.write_anywhere(piece, bytes);
        }
        user::scatter_bytes(&[piece], 0, bytes);
        Ok(())
    }

    /// Writes to an address that only the peer vouches for: through the kernel, which knows what is mapped.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub fn write_anywhere(&self, piece: UserSeg, bytes: &[u8]) -> Result<()> {
        match remote::store_own(piece.address() as u64, bytes) {
            Ok(()) => Ok(()),
            // A sandbox without the system call; the mapping itself can still be asked for.
            Err(NoAccess::Forbidden) if remote::is_mapped(piece.address(), piece.len()) => {
                user::scatter_bytes(&[piece], 0, bytes);
                Ok(())
            }
            Err(_) => Err(Error::Unmapped),
        }
    }
}

/// The address that `(addr, len)` of a request means in a region, checked.
///
/// # Errors
/// [`Error::NoRight`], [`Error::OutOfBounds`].
pub fn locate(base: u64, len: u64, has: Access, wanted: (u64, u64), access: Access) -> Result<u64> {
    if !has.contains(access) {
        return Err(Error::NoRight);
    }
    let (addr, bytes) = wanted;
    let offset = if has.contains(Access::BY_ADDRESS) { addr.checked_sub(base).ok_or(Error::OutOfBounds)? } else { addr };
    if offset > len || bytes > len - offset {
        return Err(Error::OutOfBounds);
    }
    base.checked_add(offset).ok_or(Error::OutOfBounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;

    #[test]
    fn requests_are_checked_by_key_right_and_bounds() {
        let mut bytes = [0u8; 100];
        let memory = of_slice(&mut bytes);
        let mut regions = Regions::default();
        let region = Region { memory, access: Access::REMOTE_READ, by_address: false };
        regions.register(7, region).expect("registered");
        assert_eq!(regions.register(7, region), Err(Error::KeyInUse));
        let reach =
            |regions: &Regions, key, addr, len, access| regions.reach(key, addr, len, access).map(|s| (s.address(), s.len()));
        let at = memory.address();
        assert_eq!(reach(&regions, 7, 10, 90, Access::REMOTE_READ), Ok((at + 10, 90)));
        assert_eq!(reach(&regions, 7, 100, 0, Access::REMOTE_READ), Ok((at + 100, 0)));
        assert_eq!(reach(&regions, 7, 10, 91, Access::REMOTE_READ), Err(Error::OutOfBounds));
        assert_eq!(reach(&regions, 7, u64::MAX, 2, Access::REMOTE_READ), Err(Error::OutOfBounds));
        assert_eq!(reach(&regions, 7, 0, 1, Access::REMOTE_WRITE), Err(Error::NoRight));
        assert_eq!(reach(&regions, 8, 0, 1, Access::REMOTE_READ), Err(Error::NoKey));
        assert_eq!(regions.free_key(), 0);
        regions.register(0, Region { by_address: true, ..region }).expect("registered");
        assert_eq!(reach(&regions, 0, at as u64 + 5, 10, Access::REMOTE_READ), Ok((at + 5, 10)));
        assert_eq!(reach(&regions, 0, 5, 10, Access::REMOTE_READ), Err(Error::OutOfBounds));
        assert_eq!(regions.free_key(), 1);
        regions.close(7).expect("closed");
        assert_eq!(reach(&regions, 7, 0, 1, Access::REMOTE_READ), Err(Error::NoKey));
        assert_eq!(regions.close(7), Err(Error::Invalid));
    }

    /// Where memory is reserved, and nothing may be read, a peer's request is refused.
    #[test]
    fn what_may_not_be_read_is_an_error() {
        let (nothing, flags) = (rustix::mm::ProtFlags::empty(), rustix::mm::MapFlags::PRIVATE);
        // SAFETY: fresh memory, which stays as it is.
        #[expect(unsafe_code)]
        let at = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), 4096, nothing, flags) }.expect("map") as usize;
        let mut regions = Regions::default();
        // SAFETY: never read or written but through the kernel.
        #[expect(unsafe_code)]
        let everything = unsafe { UserSeg::new(core::ptr::null_mut(), usize::MAX) };
        regions.register(1, Region { memory: everything, access: Access::REMOTE_READ, by_address: false }).expect("registered");
        let read = |at: usize| regions.reach(1, at as u64, 8, Access::REMOTE_READ).and_then(|seg| regions.read_out(1, seg));
        let here = 7u64;
        if remote::fetch_words(std::process::id(), &raw const here as u64, &mut [0]) == Err(NoAccess::Forbidden) {
            // A sandbox without the system call cannot tell.
            return;
        }
        assert_eq!(read(&raw const here as usize), Ok(7u64.to_ne_bytes().into()));
        assert_eq!(read(at), Err(Error::Unmapped));
    }

    #[test]
    fn all_memory_is_a_region_from_address_zero() {
        let has = Access::REMOTE_WRITE;
        assert_eq!(locate(0, u64::MAX, has, (0x7fff_0000_1234, 8), has), Ok(0x7fff_0000_1234));
        assert_eq!(locate(0, u64::MAX, has, (u64::MAX - 3, 8), has), Err(Error::OutOfBounds));
    }
}
