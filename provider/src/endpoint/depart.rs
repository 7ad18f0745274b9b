//! Ends: a peer is gone, or this endpoint closes.

use super::peers::{Contact, Landing};
use super::recv::{self, Rest, Wanted};
use super::report::{Culprit, FailedRecv};
use super::shared::Left;
use super::{Endpoint, HeldMsg, Out, Telling, contact};
use crate::completion::cq::describe;
use crate::error::Error;
use crate::log::{plural, tell};
use crate::peer::here::Here;
use crate::request::SendReq;
use crate::sys::cpu;
use crate::types::PeerId;
use std::io::Write;

/// Nanoseconds that a peer may take to write its part of a message, at most, once the buffer is to be given back: a copy takes some tens of thousands.
const WRITING: u64 = 1_000_000_000;

impl Endpoint {
    /// The peer cannot be used any more: every operation that waits for it fails with its name. What arrived whole
    /// stays receivable.
    #[cold]
    pub(super) fn depart(&mut self, out: &mut Out<'_>, id: PeerId, why: Error) {
        if matches!(self.peers.get(id).contact, Contact::Gone(_)) {
            return;
        }
        let peer = self.peers.get_mut(id);
        let culprit = peer.culprit();
        let closed = peer.link.as_ref().is_some_and(|l| l.peer_closed());
        // Its last word on what it had read.
        if let Some(link) = &mut peer.link
            && link.refresh().is_ok()
        {
            while peer.await_ack.front().is_some_and(|(position, _)| link.reached(*position)) {
                if let Some((_, req)) = peer.await_ack.pop_front() {
                    self.report.sent(out, &req);
                }
            }
        }
        peer.contact = Contact::Gone(why);
        // Nothing lands any more in memory that is given back below.
        peer.hang_up_all();
        let mut sends: Vec<SendReq> = std::mem::take(&mut peer.await_contact);
        sends.extend(std::mem::take(&mut peer.await_ack).into_iter().map(|(_, req)| req));
        let aborted = peer.streams.abort();
        sends.extend(aborted.sends);
        let mut recvs = aborted.recvs;
        if let Some(Landing::Eager { req, said, .. }) = peer.landing.take() {
            recvs.push((req, said.env));
        }
        if why == Error::Corrupt {
            // It lives.
            let until = self.clock.now() + WRITING / 10;
            self.await_writer(id, until);
        }
        let peer = self.peers.get_mut(id);
        let aborted = peer.copies.abort();
        sends.extend(aborted.sends);
        recvs.extend(aborted.recvs);
        sends.extend(std::mem::take(&mut peer.backlog).into_iter().map(|w| w.req));
        sends.extend(peer.one_sided.abort());
        if let Some(link) = &mut peer.link {
            // A record that was announced and never written may be at the head: nobody is to look at it again, nor to take a receive for it.
            link.hear_no_more();
            link.set_waker(None);
            link.set_away(None);
            link.set_home(None);
        }
        peer.segment = None;
        self.stop_polling(id);
        self.crowd.left(id);
        self.peers.unroute(id);
        let mut failed = sends.len() + recvs.len();
        for req in &sends {
            self.report.send_failed(out, req, why, culprit);
        }
        let left = Left { id, why, recvs };
        match &mut self.member {
            Some(member) if !member.lent => member.left.push(left),
            _ => failed += self.clear_out(out, left),
        }
        let speak = || describe(why, culprit.name.as_ref(), culprit.pid);
        if failed > 0 || !closed {
            self.stats.lost += 1;
            let text = || format!("{}; {failed} {} failed", speak(), plural(failed as u64, "operation"));
            // Who comes only to write garbage can do so often.
            match why {
                Error::Corrupt => self.complain(text),
                why if why.is_of_setup() => self.complain_of(Some(why), text),
                _ => self.log.warn(text),
            }
        } else {
            self.log.info(|| format!("closed: {}", speak()));
        }
        self.bury(id);
    }

    /// What the end of a peer means for the books. Returns how many further operations failed by it.
    pub(super) fn clear_out(&mut self, out: &mut Out<'_>, left: Left) -> usize {
        let Left { id, why, recvs } = left;
        let culprit = self.peers.get(id).culprit();
        for (req, env) in recvs {
            let rest = req.special.multi().map_or(Rest::InUse, |id| recv::message_done(&mut self.books.multis, id));
            let failed = FailedRecv::broken_off(req.ctx, env, rest.flags()).aside(req.aside());
            self.report.recv_failed(out, failed, why, culprit);
            if let Rest::Cancelled(tagged) = rest {
                self.report.buffer_cancelled(out, req.ctx, tagged);
            }
        }
        self.drop_broken(id);
        let failed = self.fail_directed(out, id, why, culprit);
        self.bury(id);
        failed
    }

    /// Forgets held messages whose rest will never come.
    fn drop_broken(&mut self, id: PeerId) {
        if self.member.is_some() {
            return self.drop_broken_of_shared(id);
        }
        let source = self.peers.get(id).canonical;
        for matcher in [&mut self.books.tagged, &mut self.books.untagged] {
            if self.peers.get(id).held == 0 {
                return;
            }
            for msg in matcher.unexpected.remove_source(source) {
                let peer = self.peers.get_mut(msg.via);
                let broken = msg.is_broken(id, &peer.streams);
                if broken {
                    peer.held -= 1;
                } else {
                    let HeldMsg { env, .. } = msg;
                    matcher.unexpected.push(env.tag, source, msg);
                }
            }
        }
        let peer = self.peers.get_mut(id);
        self.books.claimed.retain(|_, c| {
            let broken = c.is_broken(id, &peer.streams);
            peer.held -= usize::from(broken);
            !broken
        });
    }

    /// The same in books that hold other endpoints' messages, too, whose peers may have the same number.
    fn drop_broken_of_shared(&mut self, id: PeerId) {
        let (owner, peer) = (self.index, self.peers.get_mut(id));
        if peer.held == 0 {
            return;
        }
        let mut broken = 0;
        self.books.retain(|msg| {
            let gone = msg.owner == owner && msg.is_broken(id, &peer.streams);
            broken += usize::from(gone);
            !gone
        });
        peer.held -= broken;
    }

    /// Fails the receives that name this peer, unless another link to it lives.
    fn fail_directed(&mut self, out: &mut Out<'_>, id: PeerId, why: Error, culprit: Culprit) -> usize {
        let source = self.peers.get(id).canonical;
        let alive = self.peers.ids().any(|p| {
            let p = self.peers.get(p);
            p.canonical == source && p.contact == Contact::Greeted
        });
        if alive {
            return 0;
        }
        let mut failed = 0;
        for tagged in [true, false] {
            let matcher = if tagged { &mut self.books.tagged } else { &mut self.books.untagged };
            for wanted in matcher.posted.remove_source(source) {
                let receive = match wanted {
                    Wanted::Once(req) => FailedRecv::unmatched(req.ctx, tagged, false).aside(req.aside()),
                    Wanted::Multi(at) => match recv::retire(&mut self.books.multis, at) {
                        Some(ctx) => FailedRecv::unmatched(ctx, tagged, true),
                        None => continue,
                    },
                };
                self.report.recv_failed(out, receive, why, culprit);
                failed += 1;
            }
        }
        failed
    }

    /// Frees the rings of a peer that is gone, once no held message needs them.
    pub(super) fn bury(&mut self, id: PeerId) {
        let peer = self.peers.get_mut(id);
        if peer.held == 0 && matches!(peer.contact, Contact::Gone(_)) {
            peer.link = None;
        }
    }

    /// Whether something that was accepted has not reached its peer's hands yet.
    fn undelivered(&self) -> bool {
        self.peers.ids().any(|id| {
            let peer = self.peers.get(id);
            match peer.contact {
                Contact::Gone(_) | Contact::None => false,
                Contact::Dialing { .. } => !self.is_only_asked(id),
                Contact::Calling { .. } | Contact::Greeted => {
                    let sending =
                        !peer.backlog.is_empty() || peer.streams.sending() || peer.copies.sending() || peer.one_sided.sending();
                    sending && peer.name.identity() != self.name.and_then(|n| n.identity())
                }
            }
        })
    }

    /// Whether a copy of something that a client takes for sent is with us only, and its receiver lives. For whoever is of this process nobody waits: perhaps it is the same thread
    /// that should receive.
    fn keeps_copies(&self) -> bool {
        self.peers.ids().any(|id| {
            let peer = self.peers.get(id);
            !peer.kept.is_empty()
                && matches!(peer.contact, Contact::Calling { .. } | Contact::Greeted)
                && !peer.name.identity().is_some_and(Here::is)
        })
    }

    /// A turn of an endpoint that is to close: whether to take another one before. If the user has not said how long closing may take, what clients take for sent is waited for as long as its receivers
    /// live: before, these would have been waited for in the send. What came here and was not received never will be, and its sender may wait for us in the same way.
    pub(crate) fn lingers(&mut self, out: &mut Out<'_>) -> bool {
        if self.config.says("close_timeout") || !self.keeps_copies() {
            return false;
        }
        for msg in self.books.take_held(self.index) {
            self.drop_held(out, msg);
        }
        let now = self.clock.now();
        match &mut self.lingers {
            Some(since @ 0) => *since = now.max(1),
            Some(since) if now.saturating_sub(*since) > self.config.close_timeout * 1_000_000 => {
                self.lingers = None;
                self.log.warn(|| {
                    "closing waits for peers to receive what was sent to them (FI_RUSTMX_CLOSE_TIMEOUT limits that)".into()
                });
            }
            _ => {}
        }
        true
    }

    /// A peer that was invited to write to a receive, or copies a part of a message to it, may be doing so this moment: lets it begin with nothing else, and waits until it is through, that is for
    /// as long as a copy takes, but not longer than `until`: it may be dead, or stopped.
    fn await_writer(&mut self, id: PeerId, until: u64) {
        let peer = self.peers.get_mut(id);
        if let Some(link) = &peer.link {
            peer.copies.share_no_more(link);
        }
        let peer = self.peers.get(id);
        while peer.link.as_ref().is_some_and(|link| peer.copies.is_being_written(link)) && self.clock.now() < until {
            cpu::yield_core();
        }
    }

    /// Until when closing may take, if it begins now.
    pub(crate) fn may_close_until(&self) -> u64 {
        self.clock.now() + self.config.close_timeout * 1_000_000
    }

    /// Whether something that was accepted is still to be handed over, and there is time.
    pub(crate) fn delivers(&self, until: u64) -> bool {
        self.undelivered() && self.clock.now() < until
    }

    /// Says goodbye. What was accepted has been handed over, or time is up. Posted receives are forgotten.
    pub(crate) fn say_goodbye(&mut self) {
        if self.undelivered() {
            self.log.warn(|| "closing with messages that no peer took in time".into());
        }
        let written = self.clock.now() + WRITING;
        for id in self.peers.ids() {
            // The buffers of receives that are forgotten are the application's again.
            self.peers.get_mut(id).copies.call_off();
            self.await_writer(id, written);
            if let Some(link) = &mut self.peers.get_mut(id).link {
                link.tell();
                link.close();
            }
        }
    }

    /// Whether what is in the rings to other hosts is still to leave this process, and there is time.
    pub(crate) fn parts(&mut self, until: u64) -> bool {
        self.door.as_mut().is_some_and(|door| !door.part()) && self.clock.now() < until
    }

    /// The end.
    pub(crate) fn close(&mut self) {
        if let Some(name) = self.name {
            if let Some(service) = name.service() {
                contact::free_service(service);
            }
            let stats = self.stats();
            let line = stats.line();
            self.log.info(|| format!("endpoint {name} closes:{line}"));
            if self.config.stats != 0 && stats.used() {
                tell("rustmx stats", line.trim_start());
            }
            if let Some(telling) = Telling::of(self.config.explain) {
                let _ = std::io::stderr().write_all(self.history(telling).as_bytes());
            }
        }
        self.door = None;
        self.profiles.keep_lessons(&self.config, &self.log);
    }
}
