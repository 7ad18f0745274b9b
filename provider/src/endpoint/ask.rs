//! Sources from which a receive waits for a message and that nobody has heard of: whether they live.
//!
//! Who is only received from is not called: it calls when it has something to say. If it dies before that nobody notices, for nothing connects us.
//! So a source that a receive has named in vain for [`AFTER`] is called like one that is sent to, and then the kernel tells of its end. Of a receive from
//! anybody nothing can be said: who might still call is not known. And at a contact address somebody may begin to listen at any time.
//!
//! Nobody is called whom the job would not connect us with anyway: the message that is waited for will come by the same connection. What is bounded is how
//! many are called at a time, and what counts as an answer ([`Endpoint::grants_time`]).

use super::peers::Contact;
use super::{Endpoint, Out};
use crate::error::Error;
use crate::types::PeerId;

/// Nanoseconds that a source is waited for before it is called.
const AFTER: u64 = 1_000_000_000;
/// Nanoseconds between calls for this reason.
const EVERY: u64 = 100_000_000;
/// Sources that are called at a time.
const AT_ONCE: usize = 8;
/// With so many addresses at most, those who wait for one rank cannot fill its backlog (net.core.somaxconn, which was 128 before Linux 5.4).
const FEW: usize = 128;

impl Endpoint {
    /// A receive names a peer that was neither called nor has called.
    #[cold]
    pub(super) fn await_source(&mut self, id: PeerId) {
        let now = self.clock.now();
        let own = self.name.and_then(|name| name.identity());
        let peer = self.peers.get_mut(id);
        if !peer.awaited && peer.contact == Contact::None && !peer.name.is_contact() && peer.name.identity() != own {
            peer.awaited = true;
            self.poll.awaited.push_back((now, id));
            // A thread that sleeps knows nothing of this question.
            self.report.rouse();
        }
    }

    /// When sources are called next; `None`: nobody is waited for.
    pub(super) fn next_question(&self) -> Option<u64> {
        self.poll.awaited.front().map(|(since, _)| (since + AFTER).max(self.poll.ask_at))
    }

    /// Calls those who were waited for long enough.
    #[cold]
    pub(super) fn ask_for_sources(&mut self, out: &mut Out<'_>, now: u64) {
        self.poll.ask_at = now + EVERY;
        let mut calls = 0;
        while let Some((since, id)) = self.poll.awaited.front().copied()
            && since + AFTER <= now
            && calls < AT_ONCE
        {
            self.poll.awaited.pop_front();
            self.peers.get_mut(id).awaited = false;
            if self.peers.get(id).contact != Contact::None || !self.is_awaited(id) {
                continue;
            }
            calls += 1;
            self.peers.get_mut(id).asked = true;
            let name = self.peers.get(id).name;
            self.log.info(|| format!("a receive waits for {name}, of which nothing was heard: it is called"));
            if self.first_contact(out, id).is_err() && self.peers.get(id).contact == Contact::None {
                // There was no memory for a ring. Later, perhaps.
                self.await_source(id);
            }
        }
    }

    /// Whether a posted receive names this peer.
    fn is_awaited(&mut self, id: PeerId) -> bool {
        let source = Some(self.peers.get(id).canonical);
        [true, false].into_iter().any(|tagged| self.books.matcher(tagged).posted.find_by(|key, _| key.source == source).is_some())
    }

    /// Whether a peer was called only because a receive waits for it: nothing of ours goes there.
    pub(super) fn is_only_asked(&self, id: PeerId) -> bool {
        let peer = self.peers.get(id);
        peer.asked && self.is_settled(id) && peer.link.as_ref().is_none_or(|link| link.all_consumed())
    }

    /// Whether a failed call of a peer that was [only asked](Self::is_only_asked) says nothing of the peer.
    pub(super) fn says_nothing(&self, id: PeerId, why: Error) -> bool {
        matches!(why, Error::TimedOut | Error::NoResources) && self.is_only_asked(id)
    }

    /// The time for a call is up. Whether it gets more of it: silence may mean that as many as there are ranks wait for one that computes, and its backlog is
    /// full. What is sent to it meanwhile has all its time from then on.
    pub(super) fn grants_time(&mut self, id: PeerId, now: u64) -> bool {
        let only_asked = self.is_only_asked(id);
        let addresses = self.av.as_ref().map_or(0, |av| av.vector().len());
        let timeout = self.config.connect_timeout * 1_000_000;
        let peer = self.peers.get_mut(id);
        let Contact::Dialing { deadline, .. } = &mut peer.contact else { return false };
        if !peer.asked || addresses <= FEW {
            return false;
        }
        peer.asked = only_asked;
        *deadline = now + timeout;
        true
    }
}
