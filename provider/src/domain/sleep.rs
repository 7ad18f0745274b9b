//! Sleeping until something happens in the domain (`docs/adr/0008-sleeping.md`).
//!
//! The engine itself never sleeps. It says whether a thread may ([`Domain::doze`], or [`Domain::trywait`] for descriptors that the
//! application itself waits on), and the thread does so outside the domain's lock.

use super::Domain;
use crate::completion::waiter::{News, Waiter};
use crate::endpoint::{Out, Patience, UNFENCED};
use crate::error::{Error, Result};
use crate::sys::membarrier;
use crate::sys::poller::Poller;
use crate::sys::timer::Timer;
use crate::types::{CntrId, CqId};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// Nanoseconds of polling before a thread sleeps while its own sends wait for peers. (Without sched_yield(2), which beside others that
/// compute costs milliseconds; a sleeper that is woken gets its core at once.)
const RESTLESS: u64 = 30_000;
/// Nanoseconds of the first sleep while our own sends wait for peers; each one is twice as long, up to 16 times.
const FIRST_SLEEP: u64 = 100_000;

/// Whether a thread may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nap {
    /// No: something happened, or may in a moment. Look again.
    NotNow,
    /// Yes, at most so long (`None`: for ever). [`Domain::awake`] must follow.
    Sleep(Option<Duration>),
}

/// Who sleeps, and on what. Descriptors are made when the first waiter is.
#[derive(Default)]
pub(super) struct Bed {
    pub news: Arc<News>,
    door: Option<Poller>,
    timer: Option<Timer>,
    /// The number of the last nap.
    naps: u64,
    /// Threads between `doze` and `awake`.
    sleepers: usize,
    /// The application waits on descriptors of its own accord, so nobody knows whether somebody sleeps.
    lent: bool,
    /// Since when our own sends have waited for peers, and how often we slept meanwhile.
    restless: Option<(u64, u32)>,
}

impl Bed {
    /// Whether nobody sleeps.
    pub fn is_empty(&self) -> bool {
        self.sleepers == 0
    }
}

impl Domain {
    /// A waiter: wakes its thread when there is something to do in this domain, or something was done.
    ///
    /// # Errors
    /// [`Error::NoResources`] without descriptors.
    pub fn waiter(&mut self) -> Result<Waiter> {
        if self.bed.door.is_none() {
            let door = Poller::new().map_err(|_| Error::NoResources)?;
            for (i, ep) in &self.eps {
                if let Some(fd) = ep.door() {
                    door.add(fd, i as u64).map_err(|_| Error::NoResources)?;
                }
            }
            let timer = Timer::new().map_err(|_| Error::NoResources)?;
            door.add(&timer, u64::MAX).map_err(|_| Error::NoResources)?;
            (self.bed.door, self.bed.timer) = (Some(door), Some(timer));
        }
        Waiter::new(&self.bed.news, self.bed.door.as_ref().ok_or(Error::NoResources)?)
    }

    /// A new endpoint has sockets.
    pub(super) fn hang_door(&self, ep: usize) -> Result<()> {
        match (&self.bed.door, self.eps.get(ep).and_then(|e| e.door())) {
            (Some(door), Some(fd)) => match door.add(fd, ep as u64) {
                // Enabled twice.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(_) => Err(Error::NoResources),
            },
            _ => Ok(()),
        }
    }

    /// Whether this thread may sleep on its waiter now. The caller has found nothing to do, leaves the domain's lock,
    /// [sleeps](Waiter::sleep), and calls [`awake`](Self::awake). A few idle turns are polled through first.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn doze(&mut self) -> Result<Nap> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        if self.idle == 0 {
            self.bed.restless = None;
        }
        if self.idle <= self.config.spin {
            self.progress();
            return Ok(Nap::NotNow);
        }
        let nap = self.lie_down();
        if let Nap::Sleep(limit) = nap {
            self.bed.sleepers += 1;
            // A timer of nanoseconds, where the limit of epoll_wait(2) would be rounded up to milliseconds. Who waits on a descriptor
            // must not outsleep this either; and one that has run off must not keep us awake.
            self.timer(limit);
        }
        Ok(nap)
    }

    /// The thread that [`doze`](Self::doze) let sleep is awake.
    pub fn awake(&mut self) {
        self.bed.sleepers -= 1;
        self.get_up();
    }

    fn get_up(&mut self) {
        if self.bed.sleepers == 0 && !self.bed.lent {
            for (_, ep) in &mut self.eps {
                ep.listen(false);
                ep.get_up();
            }
        }
    }

    /// Whether the application may wait on the descriptors of this domain's waiters now (fi_trywait, fi_poll(3)). The caller
    /// has [settled](Waiter::settle) the waiter in question, and looks at its queue after this.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn trywait(&mut self) -> Result<bool> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        self.bed.lent = true;
        match self.lie_down() {
            Nap::NotNow => Ok(false),
            Nap::Sleep(limit) => {
                self.timer(limit);
                Ok(true)
            }
        }
    }

    fn timer(&mut self, after: Option<Duration>) {
        if let Some(timer) = &mut self.bed.timer {
            timer.set(after);
        }
    }

    /// Tells the peers, and looks at everything before and after.
    fn lie_down(&mut self) -> Nap {
        let mut work = self.each(|ep, out| ep.progress(out) + ep.look_around(out));
        if !self.deferred.is_empty() {
            work += self.run_deferred() + usize::from(self.deferred.stuck);
        }
        if work > 0 {
            self.idle = 0;
            self.bed.restless = None;
            return Nap::NotNow;
        }
        let Some(limit) = self.longest_sleep() else { return Nap::NotNow };
        self.bed.naps += 1;
        let out = lend!(self);
        for (_, ep) in &mut self.eps {
            ep.listen(true);
            ep.lie_down(self.bed.naps);
        }
        let fenced = membarrier::everywhere();
        if self.eps.iter_mut().any(|(_, ep)| ep.stirs(out)) {
            self.idle = 0;
            self.bed.restless = None;
            self.get_up();
            return Nap::NotNow;
        }
        let limit = if fenced { limit } else { Some(limit.unwrap_or(UNFENCED).min(UNFENCED)) };
        Nap::Sleep(limit.map(Duration::from_nanos))
    }

    /// Nanoseconds that may be slept (`Some(None)`: for ever); `None` if it does not pay.
    fn longest_sleep(&mut self) -> Option<Option<u64>> {
        let mut longest = None;
        let mut sending = false;
        for (_, ep) in &self.eps {
            match ep.patience() {
                Patience::Unlimited => {}
                Patience::Nanos(n) => longest = Some(longest.map_or(n, |l: u64| l.min(n))),
                Patience::Sending => sending = true,
            }
        }
        if !sending {
            self.bed.restless = None;
            return Some(longest);
        }
        // Peers that poll answer soon.
        let now = self.around.clock.now();
        let (since, naps) = self.bed.restless.get_or_insert((now, 0));
        if now - *since < RESTLESS {
            return None;
        }
        let nap = FIRST_SLEEP << (*naps).min(4);
        *naps += 1;
        Some(Some(longest.map_or(nap, |l| l.min(nap))))
    }

    /// Whether the queue has entries; makes no progress.
    pub fn cq_is_empty(&self, cq: CqId) -> bool {
        self.cqs.get(cq.0).is_none_or(|q| q.is_empty())
    }

    /// The counts of successes and failures; makes no progress.
    pub fn cntr_counts(&self, cntr: CntrId) -> (u64, u64) {
        self.cntrs.get(cntr.0).map_or((0, 0), |c| (c.ok, c.err))
    }

    /// Something happened outside the endpoints that a sleeper may wait for.
    pub(super) fn rouse(&self) {
        if self.bed.sleepers > 0 || self.bed.lent {
            self.bed.news.raise();
        }
    }
}
