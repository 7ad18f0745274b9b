//! `fid_poll`: poll sets (fi_poll(3)): progress for several queues and counters, and which of them have something.
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only.

use super::cell::DomainCell;
use super::cntr::{self, Cntr};
use super::cq::{self, Cq};
use super::domain::Domain;
use super::{Uses, fid as slots};
use crate::abi::eq::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Object, class_of, object, reclaim, refuse, status};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use std::sync::Arc;

enum Source {
    Cq(Arc<cq::Source>),
    Cntr(Arc<cntr::Source>),
}

/// A queue or counter in the set. Its handle is compared, never followed.
struct Member {
    fid: usize,
    context: usize,
    source: Source,
    _uses: Uses,
}

/// An opened poll set.
#[repr(C)]
pub(crate) struct PollSet {
    head: fid_poll,
    cell: Arc<DomainCell>,
    members: Mutex<Vec<Member>>,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_poll whose class is set in `open`.
unsafe impl Object for PollSet {
    const CLASS: usize = FI_CLASS_POLL;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, slots::no_control);
static OPS: fi_ops_poll = fi_ops_poll { size: size_of::<fi_ops_poll>(), poll, poll_add, poll_del };

impl PollSet {
    pub(super) fn open(domain: &Domain, asked: Option<&fi_poll_attr>) -> Answer<PollSet> {
        if asked.is_some_and(|a| a.flags != 0) {
            return refuse(FI_EINVAL);
        }
        Ok(PollSet {
            head: fid_poll { fid: slots::header(FI_CLASS_POLL, core::ptr::null_mut(), &FID), ops: &OPS },
            cell: domain.cell.clone(),
            members: Mutex::default(),
            _domain: domain.uses.clone(),
        })
    }

    /// # Safety
    /// `fid` is a live object.
    unsafe fn add(&self, fid: *mut fid, flags: u64) -> Answer<()> {
        if flags != 0 {
            return refuse(FI_EINVAL);
        }
        // SAFETY: live objects (caller) of the class found.
        let (source, cell, uses, context) = unsafe {
            match class_of(fid)? {
                FI_CLASS_CQ => {
                    let cq = object::<Cq, _>(fid)?;
                    (Source::Cq(cq.source.clone()), &cq.cell, &cq.uses, (*fid).context)
                }
                FI_CLASS_CNTR => {
                    let cntr = object::<Cntr, _>(fid)?;
                    (Source::Cntr(cntr.source.clone()), &cntr.cell, &cntr.uses, (*fid).context)
                }
                _ => return refuse(FI_EINVAL),
            }
        };
        if !Arc::ptr_eq(cell, &self.cell) {
            return refuse(FI_EDOMAIN);
        }
        let member = Member { fid: fid as usize, context: context as usize, source, _uses: uses.clone() };
        self.members.lock().push(member);
        Ok(())
    }

    /// The contexts of those that have something, after progress.
    fn poll(&self, max: usize, mut found: impl FnMut(usize)) -> Answer<usize> {
        let mut n = 0;
        self.cell.reading((), |engine| {
            engine.progress();
            // Held: somebody adds or removes one at the moment, or did when this process was forked, and then nobody lets go: the next call may find more.
            let Some(members) = self.members.try_lock() else { return };
            for member in members.iter() {
                let has = match &member.source {
                    Source::Cq(cq) => !engine.cq_is_empty(cq.id),
                    Source::Cntr(cntr) => n < max && cntr.changed_since_poll(engine),
                };
                if has && n < max {
                    found(member.context);
                    n += 1;
                }
            }
        })?;
        Ok(n)
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live poll set.
    let answer = unsafe { object::<PollSet, _>(fid) }.and_then(|set| {
        // Held: somebody polls or adds, or did at the moment of the fork that made this process.
        if !set.members.try_lock().is_some_and(|members| members.is_empty()) {
            return refuse(FI_EBUSY);
        }
        // SAFETY: it is empty, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<PollSet>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    // SAFETY: fi_poll(3): a live poll set.
    let answer = unsafe { object::<PollSet, _>(set) }.and_then(|set| {
        let max = if contexts.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        let mut at = contexts;
        set.poll(max, |context| {
            // SAFETY: called at most `max` times, and the array is that long (fi_poll(3)).
            unsafe {
                at.write(context as *mut c_void);
                at = at.add(1);
            }
        })
    });
    answer.map_or_else(|e| -e.0, |n| n as c_int)
}

unsafe extern "C" fn poll_add(set: *mut fid_poll, fid: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_poll(3): a live poll set, a live object.
    unsafe { status(object::<PollSet, _>(set).and_then(|set| set.add(fid, flags))) }
}

unsafe extern "C" fn poll_del(set: *mut fid_poll, fid: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_poll(3): a live poll set.
    let answer = unsafe { object::<PollSet, _>(set) }.and_then(|set| {
        let mut members = set.members.lock();
        match members.iter().position(|m| m.fid == fid as usize) {
            Some(at) if flags == 0 => drop(members.remove(at)),
            _ => return refuse(FI_EINVAL),
        }
        Ok(())
    });
    status(answer)
}
