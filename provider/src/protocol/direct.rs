//! Direct: the initiator moves the bytes by itself, through the kernel; the target may sleep.
//!
//! ```text
//! initiator                                      target
//!   root and slot of the key ◀─ process_vm_readv   (its table of regions, `region::table`)
//!   key, rights, bounds checked
//!   bytes                    ◀▶ process_vm_readv, process_vm_writev
//! ```
//! What was found is remembered, and looked at again for each transfer: *after* the bytes of a read, so that they count only if
//! the registration outlived them; *before* those of a write. Between that look and the last byte of a write the
//! target may close the region; an application that does so has a race of its own.
//!
//! The kernel may forbid it (ptrace scope, seccomp, user namespaces), at any time: then `one_sided/` carries the operation.

use super::Target;
use crate::error::Error;
use crate::mem::remote::{self, NoAccess};
use crate::mem::user::UserSeg;
use crate::region;
use crate::region::table::{LINE_WORDS, Line, Root, Slot};
use crate::types::{Access, RemoteSeg};
use rustc_hash::FxHashMap;

/// Regions remembered per peer.
const REMEMBERED: usize = 4096;
/// Slots looked at for one key. Tables are at most half full, so a sound one needs a few.
const SEARCH: usize = 4096;
/// Copies of one line before giving up on finding it unchanged.
const PATIENCE: usize = 1000;

impl Target {
    fn root(self) -> Result<Option<Root>, Miss> {
        Ok(Root::parse(&copy(self, self.table.address)?, self.table))
    }
}

/// One side of a transfer.
pub struct Transfer<'a> {
    /// Whether the target's memory is written.
    pub write: bool,
    /// Our memory.
    pub iov: &'a [UserSeg],
    /// The target's.
    pub places: &'a [RemoteSeg],
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes are there. Whether the target wants to be told.
    Done(bool),
    /// Somebody else must do it.
    NotPossible,
    /// It is wrong.
    Failed(Error),
}

enum Miss {
    NotPossible,
    Wrong(Error),
}

impl From<NoAccess> for Miss {
    fn from(why: NoAccess) -> Miss {
        match why {
            NoAccess::Forbidden | NoAccess::Gone => Miss::NotPossible,
            NoAccess::Fault => Miss::Wrong(Error::Unmapped),
        }
    }
}

#[derive(Clone, Copy)]
struct Known {
    slot_at: u64,
    line: Line,
}

/// What an endpoint knows of one peer's regions.
#[derive(Default)]
pub struct Direct {
    /// The kernel refused; not asked again.
    refused: bool,
    root: Option<Root>,
    known: FxHashMap<u64, Known>,
}

impl Direct {
    /// Whether the kernel has refused.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Moves the bytes, if the kernel lets us.
    pub fn transfer(&mut self, target: Target, what: &Transfer<'_>) -> Outcome {
        if self.refused || target.pid == 0 {
            return Outcome::NotPossible;
        }
        let mut skip = 0;
        let mut events = false;
        for place in what.places {
            match self.piece(target, what, place, skip) {
                Ok(wants) => events |= wants,
                Err(Miss::Wrong(why)) => return Outcome::Failed(why),
                Err(Miss::NotPossible) => {
                    self.refused = true;
                    return Outcome::NotPossible;
                }
            }
            skip += place.len;
        }
        Outcome::Done(events)
    }

    fn piece(&mut self, target: Target, what: &Transfer<'_>, place: &RemoteSeg, skip: usize) -> Result<bool, Miss> {
        let access = if what.write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        for _ in 0..PATIENCE {
            let known = match self.known.get(&place.key) {
                Some(known) => *known,
                None => self.find(target, place.key)?,
            };
            if what.write && !is_unchanged(target, &known)? {
                self.forget(place.key);
                continue;
            }
            let Slot::Found { base, len, access: has, events } = Slot::parse(&known.line, place.key) else {
                return Err(Miss::Wrong(Error::NoKey));
            };
            let at = match region::locate(base, len, has, (place.addr, place.len as u64), access) {
                Ok(at) => at,
                Err(why) if what.write || is_unchanged(target, &known)? => return Err(Miss::Wrong(why)),
                // The key has got another region since.
                Err(_) => {
                    self.forget(place.key);
                    continue;
                }
            };
            if what.write {
                remote::store(target.pid, at, what.iov, skip, place.len)?;
                return Ok(events || self.root.is_some_and(|r| r.events));
            }
            let fetched = remote::fetch(target.pid, at, what.iov, skip, place.len);
            if !is_unchanged(target, &known)? {
                self.forget(place.key);
                continue;
            }
            fetched?;
            return Ok(events || self.root.is_some_and(|r| r.events));
        }
        Err(Miss::NotPossible)
    }

    /// What is known may be out of date, the place of the slots too.
    fn forget(&mut self, key: u64) {
        self.known.remove(&key);
        self.root = None;
    }

    fn find(&mut self, target: Target, key: u64) -> Result<Known, Miss> {
        for _ in 0..PATIENCE {
            let root = match self.root {
                Some(root) => root,
                None => {
                    // Another process, or none of ours, answers at that address: no table, no access.
                    let Some(root) = target.root()? else { continue };
                    *self.root.insert(root)
                }
            };
            if let Some(known) = search(target, root, key)? {
                if self.known.len() >= REMEMBERED {
                    self.known.clear();
                }
                self.known.insert(key, known);
                return Ok(known);
            }
            // The table may have grown meanwhile.
            let now = target.root()?;
            if now == Some(root) {
                return Err(Miss::Wrong(Error::NoKey));
            }
            self.root = now;
        }
        Err(Miss::NotPossible)
    }
}

fn copy(target: Target, at: u64) -> Result<Line, Miss> {
    let mut line = [0; LINE_WORDS];
    remote::fetch_words(target.pid, at, &mut line).map_err(|why| match why {
        // Not a process that we know how to read.
        NoAccess::Fault => Miss::NotPossible,
        other => other.into(),
    })?;
    Ok(line)
}

fn is_unchanged(target: Target, known: &Known) -> Result<bool, Miss> {
    Ok(copy(target, known.slot_at)? == known.line)
}

fn search(target: Target, root: Root, key: u64) -> Result<Option<Known>, Miss> {
    'places: for slot_at in root.places(key).take(SEARCH) {
        for _ in 0..PATIENCE {
            let line = copy(target, slot_at)?;
            match Slot::parse(&line, key) {
                Slot::Free => return Ok(None),
                Slot::Other => continue 'places,
                Slot::Found { .. } => return Ok(Some(Known { slot_at, line })),
                Slot::Torn => {}
            }
        }
        return Err(Miss::NotPossible);
    }
    // No table of ours: whoever wrote it may carry out the operation.
    Err(Miss::NotPossible)
}
