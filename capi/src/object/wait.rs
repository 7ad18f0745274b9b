//! Waiting: what `wait_obj` means for a queue, a counter or an event queue; `fi_trywait`; and wait sets, `fid_wait`.
//!
//! | `wait_obj` | blocking calls | descriptor |
//! |---|---|---|
//! | `FI_WAIT_NONE` | refused (counters: as yield) | none |
//! | `FI_WAIT_UNSPEC` | sleep | none |
//! | `FI_WAIT_FD` | sleep | `FI_GETWAIT` gives an `int` |
//! | `FI_WAIT_POLLFD` | sleep | `FI_GETWAIT` gives one `struct pollfd` |
//! | `FI_WAIT_SET` | sleep | the wait set's |
//! | `FI_WAIT_YIELD` | give the core away between polls | none |
//! | `FI_WAIT_MUTEX_COND` | refused: a peer in another process cannot signal a condition variable of ours | |
#![expect(unsafe_code)]
// UNSAFETY: receives and returns C handles; casts them through boundary.rs only; writes wait objects to the client's places.

use super::cell::DomainCell;
use super::cntr::Cntr;
use super::cq::Cq;
use super::eq::Eq;
use super::fabric::Fabric;
use super::{Deadline, Uses, fid as slots};
use crate::abi::eq::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, Errno, Object, class_of, object, reclaim, refuse, status};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rustmx::{Error, Poller, Waiter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What a look before a sleep found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Something to read.
    Pending,
    /// Nothing to read, but something moved: look again.
    Moved,
    /// Nothing, and whatever comes will make the descriptor readable.
    Quiet,
}

/// An object that can be waited for.
pub(crate) trait Waitable: Send + Sync {
    /// Looks, and makes sure that the descriptor becomes readable from now on.
    fn look(&self) -> Answer<Look>;

    /// Readable when it is time to look.
    fn fd(&self) -> Answer<BorrowedFd<'_>>;

    /// Makes it readable again, if a look ends that though there may be something to read.
    fn wake(&self) {}
}

/// How the client chose to wait for an object.
pub(crate) struct Wish {
    pub(crate) kind: c_enum,
    set: Option<Arc<Members>>,
}

impl Wish {
    /// # Safety
    /// `set` is null or a live wait set if `kind` is `FI_WAIT_SET`.
    pub(crate) unsafe fn new(kind: c_enum, set: *mut fid_wait) -> Answer<Wish> {
        match kind {
            FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD | FI_WAIT_POLLFD => Ok(Wish { kind, set: None }),
            // SAFETY: a live wait set, or null, which is refused (caller).
            FI_WAIT_SET => Ok(Wish { kind, set: Some(unsafe { object::<Wait, _>(set)? }.members.clone()) }),
            _ => refuse(FI_ENOSYS),
        }
    }

    /// Whether its blocking calls sleep.
    fn sleeps(&self) -> bool {
        !matches!(self.kind, FI_WAIT_NONE | FI_WAIT_YIELD)
    }

    /// Whether the client, or a wait set, waits on its descriptor.
    fn lends(&self) -> bool {
        matches!(self.kind, FI_WAIT_FD | FI_WAIT_POLLFD | FI_WAIT_SET)
    }

    /// Adds the object to the wait set it was opened with, for as long as the result lives.
    pub(crate) fn join(self, member: Arc<dyn Waitable>) -> Answer<Joined> {
        let Some(set) = self.set else { return Ok(Joined { kind: self.kind, set: None }) };
        let token = set.add(member)?;
        Ok(Joined { kind: self.kind, set: Some((set, token)) })
    }
}

/// The wait object of an open object; leaves its wait set when dropped.
pub(crate) struct Joined {
    kind: c_enum,
    set: Option<(Arc<Members>, u64)>,
}

impl Joined {
    /// `FI_GETWAIT` and `FI_GETWAITOBJ` (fi_poll(3)).
    ///
    /// # Safety
    /// `arg` is what the command and the wait object ask for.
    pub(crate) unsafe fn control(&self, of: &dyn Waitable, command: c_int, arg: *mut c_void) -> Answer<()> {
        // SAFETY: as the caller promises.
        unsafe { control(self.kind, of, command, arg) }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some((set, token)) = &self.set {
            set.remove(*token);
        }
    }
}

/// # Safety
/// As for [`Joined::control`].
unsafe fn control(kind: c_enum, of: &dyn Waitable, command: c_int, arg: *mut c_void) -> Answer<()> {
    if !matches!(command, FI_GETWAIT | FI_GETWAITOBJ) {
        return refuse(FI_ENOSYS);
    }
    if arg.is_null() {
        return refuse(FI_EINVAL);
    }
    // SAFETY: non-null, and of the kind that the command asks for (caller).
    unsafe {
        match (command, kind) {
            (FI_GETWAITOBJ, _) => arg.cast::<c_enum>().write(kind),
            (_, FI_WAIT_FD) => arg.cast::<c_int>().write(of.fd()?.as_raw_fd()),
            (_, FI_WAIT_POLLFD) => {
                let out = &mut *arg.cast::<fi_wait_pollfd>();
                let room = out.nfds;
                (out.change_index, out.nfds) = (1, 1);
                if room < 1 || out.fd.is_null() {
                    return refuse(FI_ETOOSMALL);
                }
                out.fd.write(libc::pollfd { fd: of.fd()?.as_raw_fd(), events: libc::POLLIN, revents: 0 });
            }
            _ => return refuse(FI_ENODATA),
        }
    }
    Ok(())
}

/// What the blocking calls of a queue or a counter sleep on, and its descriptor.
///
/// Several threads may wait for one object, each for something else, and one wake-up is for one thread: each needs a waiter of
/// its own. The object's is for the first that sleeps; if it is the client's descriptor, for nobody but the client.
pub(crate) struct Sleeper {
    cell: Arc<DomainCell>,
    /// `None`: they do not sleep.
    waiter: Option<Waiter>,
    /// The waiter is the client's descriptor.
    lent: bool,
    /// A thread sleeps on the waiter.
    taken: AtomicBool,
}

impl Sleeper {
    pub(crate) fn new(cell: &Arc<DomainCell>, wish: &Wish) -> Answer<Sleeper> {
        let waiter = if wish.sleeps() { Some(cell.control()?.waiter()?) } else { None };
        Ok(Sleeper { cell: cell.clone(), waiter, lent: wish.lends(), taken: AtomicBool::new(false) })
    }

    /// [`Waitable::look`]; `pending` says whether there is something to read.
    pub(crate) fn look(&self, pending: impl FnOnce(&rustmx::Domain) -> bool) -> Answer<Look> {
        let Some(waiter) = &self.waiter else { return refuse(FI_EINVAL) };
        if self.lent {
            waiter.settle();
        }
        let mut engine = self.cell.data()?;
        let quiet = engine.trywait()?;
        if pending(&engine) {
            return Ok(Look::Pending);
        }
        Ok(if quiet { Look::Quiet } else { Look::Moved })
    }

    /// [`Waitable::fd`].
    pub(crate) fn fd(&self) -> Answer<BorrowedFd<'_>> {
        self.waiter.as_ref().map_or_else(|| refuse(FI_ENODATA), |w| Ok(w.as_fd()))
    }

    /// Between two polls of a blocking call: sleeps ([`DomainCell::doze`]), or gives the core away.
    pub(crate) fn pause(&self, deadline: &Deadline, idle: impl FnOnce(&rustmx::Domain) -> bool) -> Answer<()> {
        let Some(waiter) = &self.waiter else {
            std::thread::yield_now();
            return Ok(());
        };
        if self.lent || self.taken.swap(true, Ordering::Acquire) {
            return Ok(self.cell.doze(None, deadline, idle)?);
        }
        let slept = self.cell.doze(Some(waiter), deadline, idle);
        self.taken.store(false, Ordering::Release);
        Ok(slept?)
    }

    /// Ends the sleep of whoever sleeps.
    pub(crate) fn wake_all(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.wake_all();
        }
    }
}

/// What belongs to a wait set.
pub(crate) struct Members {
    poller: Poller,
    list: Mutex<Vec<(u64, Arc<dyn Waitable>)>>,
    next: AtomicU64,
}

impl Members {
    fn add(&self, member: Arc<dyn Waitable>) -> Answer<u64> {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        self.poller.add(member.fd()?, token).map_err(|_| Errno(FI_ENOMEM))?;
        self.list.lock().push((token, member));
        Ok(token)
    }

    fn remove(&self, token: u64) {
        let mut list = self.list.lock();
        if let Some(at) = list.iter().position(|(t, _)| *t == token) {
            let (_, member) = list.swap_remove(at);
            if let Ok(fd) = member.fd() {
                self.poller.remove(fd);
            }
        }
    }

    /// A look at a member takes what woke its thread, perhaps before another thread saw it: who leaves passes it on.
    fn wake_others(&self) {
        self.list.lock().iter().for_each(|(_, member)| member.wake());
    }
}

impl Waitable for Members {
    fn look(&self) -> Answer<Look> {
        // Outside the lock: a look may take a domain's lock.
        let members: Vec<_> = self.list.lock().iter().map(|(_, m)| m.clone()).collect();
        let mut all = Look::Quiet;
        for member in members {
            match member.look()? {
                Look::Pending => return Ok(Look::Pending),
                Look::Moved => all = Look::Moved,
                Look::Quiet => {}
            }
        }
        Ok(all)
    }

    fn fd(&self) -> Answer<BorrowedFd<'_>> {
        Ok(self.poller.as_fd())
    }
}

/// An opened wait set.
#[repr(C)]
pub(crate) struct Wait {
    head: fid_wait,
    kind: c_enum,
    members: Arc<Members>,
    /// Threads in fi_wait.
    waiting: AtomicUsize,
    _fabric: Uses,
}

// SAFETY: repr(C), starts with a fid_wait whose class is set in `open`.
unsafe impl Object for Wait {
    const CLASS: usize = FI_CLASS_WAIT;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, set_control);
static OPS: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait };

impl Wait {
    pub(super) fn open(fabric: &Fabric, asked: Option<&fi_wait_attr>) -> Answer<Wait> {
        let (kind, flags) = asked.map_or((FI_WAIT_UNSPEC, 0), |a| (a.wait_obj, a.flags));
        if flags != 0 {
            return refuse(FI_EINVAL);
        }
        if !matches!(kind, FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD | FI_WAIT_POLLFD) {
            return refuse(FI_ENOSYS);
        }
        let poller = Poller::new().map_err(|_| Errno(FI_ENOMEM))?;
        Ok(Wait {
            head: fid_wait { fid: slots::header(FI_CLASS_WAIT, core::ptr::null_mut(), &FID), ops: &OPS },
            kind,
            members: Arc::new(Members { poller, list: Mutex::default(), next: AtomicU64::new(0) }),
            waiting: AtomicUsize::new(0),
            _fabric: fabric.uses.clone(),
        })
    }

    fn sleep(&self, deadline: &Deadline) -> Answer<()> {
        loop {
            let look = self.members.look()?;
            if look == Look::Pending {
                return Ok(());
            }
            if deadline.passed() {
                return refuse(FI_ETIMEDOUT);
            }
            match (look, self.kind) {
                (_, FI_WAIT_YIELD) | (Look::Moved, _) => std::thread::yield_now(),
                _ => drop(self.members.poller.sleep(deadline.rest(None))),
            }
        }
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live wait set.
    let answer = unsafe { object::<Wait, _>(fid) }.and_then(|w| {
        if !w.members.list.lock().is_empty() {
            return refuse(FI_EBUSY);
        }
        // SAFETY: nothing belongs to it any more, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Wait>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn set_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: fi_poll(3): a live wait set, an argument that suits the command.
    unsafe { status(object::<Wait, _>(fid).and_then(|w| control(w.kind, &*w.members, command, arg))) }
}

unsafe extern "C" fn wait(set: *mut fid_wait, timeout: c_int) -> c_int {
    // SAFETY: fi_poll(3): a live wait set.
    let answer = unsafe { object::<Wait, _>(set) }.and_then(|w| {
        w.waiting.fetch_add(1, Ordering::AcqRel);
        let answer = w.sleep(&Deadline::after(timeout));
        let others = w.waiting.fetch_sub(1, Ordering::AcqRel) > 1;
        // Of those who poll the set's descriptor nobody knows. In a forked child nobody waits: all that it could wake is its parent's.
        let polled = answer.is_ok() && matches!(w.kind, FI_WAIT_FD | FI_WAIT_POLLFD);
        if (others || polled) && answer != Err(Error::Forked.into()) {
            w.members.wake_others();
        }
        answer
    });
    status(answer)
}

/// `fi_trywait`: whether the client may wait on the descriptors of all these objects.
///
/// # Safety
/// `fids` holds `count` live objects.
pub(super) unsafe fn trywait(fids: *mut *mut fid, count: c_int) -> Answer<()> {
    let Ok(count) = usize::try_from(count) else { return refuse(FI_EINVAL) };
    if fids.is_null() && count > 0 {
        return refuse(FI_EINVAL);
    }
    for i in 0..count {
        // SAFETY: live objects (caller) of the class found.
        let look = unsafe {
            let fid = *fids.add(i);
            match class_of(fid)? {
                FI_CLASS_CQ => object::<Cq, _>(fid)?.source.look()?,
                FI_CLASS_CNTR => object::<Cntr, _>(fid)?.source.look()?,
                FI_CLASS_EQ => object::<Eq, _>(fid)?.queue.look()?,
                FI_CLASS_WAIT => object::<Wait, _>(fid)?.members.look()?,
                _ => return refuse(FI_EINVAL),
            }
        };
        if look != Look::Quiet {
            return refuse(FI_EAGAIN);
        }
    }
    Ok(())
}
