//! What must be so before a thread may sleep until this endpoint has something to do, and for how long it may.
//!
//! Awake, an endpoint finds records by looking. Before a sleep every peer is told (`shm/stance.rs`), and then everything is looked at
//! once more; after that, peers that send wake us through their sockets, which are in the poller that sleepers sleep on.
//! What no peer wakes us for (acknowledgements, calls to be tried again) limits the sleep.

use super::peers::Contact;
use super::{Endpoint, Out};
use crate::completion::waiter::News;
use crate::transport::tcp::HEALTH_NAP;
use crate::types::PeerId;
use rustix::fd::BorrowedFd;
use std::sync::Arc;

/// Nanoseconds that may be slept while a peer cannot be trusted to wake us: one that takes part in no fences.
pub(crate) const UNFENCED: u64 = 1_000_000;

/// How long a sleep may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until somebody wakes us.
    Unlimited,
    /// So many nanoseconds.
    Nanos(u64),
    /// Our own sends wait for peers: not long.
    Sending,
}

impl Endpoint {
    /// Sleepers hear of this endpoint by `news`.
    pub(crate) fn set_news(&mut self, news: Arc<News>) {
        self.report.set_news(news);
    }

    /// Whether a thread sleeps until there are news.
    pub(crate) fn listen(&self, on: bool) {
        self.report.listen(on);
    }

    /// Readable while a socket has something to say; `None` before [`enable`](Self::enable).
    pub(crate) fn door(&self) -> Option<BorrowedFd<'_>> {
        self.door.as_ref().and_then(|d| d.as_fd())
    }

    /// Looks where a poll looks only now and then. Returns how much there was to do; a packet that only woke us is nothing.
    pub(crate) fn look_around(&mut self, out: &mut Out<'_>) -> usize {
        let now = self.clock.now();
        self.look_at_sockets(out, now) + self.collect_acks(out, true)
    }

    /// Tells every peer to wake us. A full fence in all processes must follow, and then [`stirs`](Self::stirs).
    pub(crate) fn lie_down(&mut self, nap: u64) {
        self.nap = nap;
        self.poll.slept = true;
        self.show_nap();
        if let Some(door) = &mut self.door {
            door.arm();
        }
    }

    /// Tells every peer that we look at our rings again.
    pub(crate) fn get_up(&mut self) {
        if self.nap != 0 {
            self.nap = 0;
            self.show_nap();
            if let Some(door) = &mut self.door {
                door.disarm();
            }
        }
    }

    fn show_nap(&mut self) {
        for id in self.peers.ids() {
            self.tell_nap(id, self.nap);
        }
    }

    /// Tells one peer; and makes sure that we can wake ourselves, if that is who it is.
    pub(super) fn tell_nap(&mut self, id: PeerId, nap: u64) {
        let Some(link) = &mut self.peers.get_mut(id).link else { return };
        if nap != 0
            && link.is_to_self()
            && let Some(door) = &mut self.door
        {
            // Without descriptors sleeps are short (`patience`).
            link.set_waker(door.own_waker().ok());
        }
        link.set_nap(nap);
    }

    /// Whether something came before the peers knew that we sleep: records, or room for ours.
    pub(crate) fn stirs(&mut self, out: &mut Out<'_>) -> bool {
        let ready = self.peers.ids().any(|id| self.peers.get(id).link.as_ref().is_some_and(|l| l.ready()));
        ready || !self.poll.ending.is_empty() || self.push_busy(out) > 0 || self.collect_acks(out, true) > 0
    }

    /// How long we may sleep now.
    pub(crate) fn patience(&self) -> Patience {
        // Whoever was told to come back may do so after a while, though nothing happens.
        let refused = self.peers.ids().any(|id| self.peers.get(id).kept.was_refused());
        if refused || !self.poll.busy.is_empty() || !self.poll.ack_waiters.is_empty() {
            return Patience::Sending;
        }
        let now = self.clock.now();
        let calls = self.poll.dialing.iter().filter_map(|id| match self.peers.get(*id).contact {
            Contact::Dialing { next, .. } => Some(next.saturating_sub(now)),
            Contact::Calling { deadline } => Some(deadline.saturating_sub(now)),
            _ => None,
        });
        let question = self.next_question().map(|at| at.saturating_sub(now));
        let woken = self.peers.ids().all(|id| self.peers.get(id).link.as_ref().is_none_or(|l| l.wakes_us()));
        let unsure = (!woken).then_some(UNFENCED);
        // Whether their hosts still answer is asked by us alone.
        let health = self.poll.network.then_some(HEALTH_NAP);
        let door = self.door.as_ref().and_then(|door| door.longest_nap());
        calls.chain(question).chain(unsure).chain(health).chain(door).min().map_or(Patience::Unlimited, Patience::Nanos)
    }
}
