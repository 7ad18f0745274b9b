//! Receiving: take records out of a ring, match, deliver. Whatever is in the ring is taken out: a message without a
//! receive is kept, so nobody's message waits behind one that nobody wants.

use super::invite::may_be_heard;
use super::peers::{Landing, Peer, next_acknowledged};
use super::recv::{self, Multi, Rest, Wanted};
use super::report::Reporter;
use super::tally::Back;
use super::{Endpoint, HeldMsg, Matcher, Out};
use crate::error::Error;
use crate::mem::pool::Pool;
use crate::protocol::one_sided::OneSided;
use crate::protocol::single::{Copies, Declined, Ended, Finished, Returned, Single, TURN};
use crate::protocol::stream::{Stream, Streams};
use crate::protocol::{Announced, Placed, Protocol, Wire, eager::Eager, inline::Inline};
use crate::request::{Envelope, Received, RecvReq, SendReq};
use crate::select::habit::LATE;
use crate::stats::Stats;
use crate::transport::Reach;
use crate::transport::link::{Corrupt, Link};
use crate::types::{Addr, CompFlags, PeerId};
use crate::wire::header::{Header, Kind, flag};
use slab::Slab;
use std::collections::VecDeque;

/// Records taken from one ring before the others get their turn, while they come in a row.
pub(super) const BUDGET: usize = 32;

/// What handling a record needs of the endpoint besides the peer it came from.
struct Desk<'a> {
    tagged: &'a mut Matcher,
    untagged: &'a mut Matcher,
    multis: &'a mut Slab<Multi>,
    pool: &'a mut Pool,
    report: &'a Reporter,
    stats: &'a mut Stats,
    /// The peer's handle, if sources are wanted.
    src: Addr,
    via: PeerId,
    /// Bytes of long messages copied in this turn.
    moved: u64,
    /// All that is in the ring was written after this time; 0: nothing is known of it.
    since: u64,
    /// Nothing was there at the last look.
    waited: bool,
    /// Nor at so many before it.
    idle: u64,
    tick: u64,
    /// What was taken last was a part of a message, of which more is to come.
    in_parts: bool,
    /// The record at the head names memory of this number, of which the peer has told in its socket, where nobody has looked yet.
    news: Option<u32>,
}

impl Endpoint {
    /// Takes records from the ring of `id`, until it is empty or its turn is over. Returns how many.
    #[inline(never)] // An idle poll must not pay for its frame.
    pub(super) fn drain(&mut self, out: &mut Out<'_>, id: PeerId) -> usize {
        if self.poll.idle > 0
            && let Some(link) = &self.peers.get(id).link
        {
            link.foresee();
        }
        if !may_be_heard(&mut self.peers, id) {
            return 0;
        }
        match self.drain_until_news(out, id) {
            (taken, None) => taken,
            (taken, Some(number)) => {
                self.look_for_loan(out, id, number);
                taken + self.drain_until_news(out, id).0
            }
        }
    }

    /// [`drain`](Self::drain), up to a record that names memory of which nothing was heard yet; returns its number, too.
    #[inline]
    fn drain_until_news(&mut self, out: &mut Out<'_>, id: PeerId) -> (usize, Option<u32>) {
        let src = self.source_of(id);
        let peer = self.peers.get_mut(id);
        // After a wait there is most likely one message, and somebody waits for it: a look at the line behind it, which the
        // writer has just touched, would cost a hand-over before the application hears of the first. Of a part of a message it hears nothing, and what comes next is
        // what it waits for. What came from another host is in our own memory, and the next turn would begin with a system call.
        let far = peer.reach == Reach::Network;
        let waited = self.poll.idle > 0 && !far;
        let mut desk = Desk {
            tagged: &mut self.books.tagged,
            untagged: &mut self.books.untagged,
            multis: &mut self.books.multis,
            pool: &mut self.pool,
            report: &self.report,
            stats: &mut self.stats,
            src,
            via: id,
            moved: 0,
            since: self.poll.empty_at(peer.hot),
            waited,
            idle: self.poll.idle,
            tick: self.poll.tick,
            in_parts: false,
            news: None,
        };
        let before = peer.link.as_ref().map_or(0, |l| l.consumed());
        let mut taken = 0;
        let mut sound = true;
        while taken < BUDGET && desk.moved < TURN as u64 {
            match desk.take_one(out, peer) {
                Ok(true) => {
                    taken += 1;
                    if waited && !desk.in_parts {
                        break;
                    }
                    desk.waited = false;
                }
                Ok(false) => break,
                Err(Corrupt) => {
                    sound = false;
                    break;
                }
            }
        }
        let news = desk.news;
        self.poll.behind |= far && taken == BUDGET;
        let Some(link) = &mut peer.link else { return (taken, None) };
        // Not "a record was taken": between a skip and the record behind it the writer may have stopped, and a watch that
        // stayed on the skip's line would miss the record once that line is written anew.
        if link.consumed() != before {
            peer.last_active = self.poll.tick;
            link.tell();
            link.tell_of_room();
            if peer.hot
                && let Some((ring, word)) = link.watch()
                && let Some(watch) = self.poll.hot.iter_mut().find(|w| w.id == id)
            {
                watch.word.aim(ring, word);
            }
            if peer.has_work() {
                self.push(out, id);
            }
        }
        if !sound {
            self.depart(out, id, Error::Corrupt);
        }
        (taken, news)
    }

    /// A receive has all its bytes.
    pub(super) fn received(&mut self, out: &mut Out<'_>, via: PeerId, received: Received) {
        if let Some(member) = self.member.as_mut().filter(|member| !member.lent)
            && received.req.special.multi().is_some()
        {
            // Its buffer is in books that are not here. A sleeper makes a turn, with them.
            member.late.push((via, received));
            return self.report.rouse();
        }
        let src = self.source_of(via);
        self.stats.received += 1;
        let Received { req, env, placed } = received;
        finish(&self.report, &mut self.books.multis, out, &req, &env, placed, src);
    }

    /// The handle of the endpoint behind a link, if it is wanted.
    #[inline]
    pub(super) fn source_of(&mut self, via: PeerId) -> Addr {
        if self.report.wants_source() { self.find_source(via) } else { Addr::UNSPEC }
    }

    fn find_source(&mut self, via: PeerId) -> Addr {
        let canonical = self.peers.get(via).canonical;
        match &self.av {
            Some(av) => self.peers.addr_of(av, canonical),
            None => Addr::UNSPEC,
        }
    }
}

/// Completes the sends that a header has acknowledged. They were delivered before the peer wrote its record, and are told before it: who hears an answer
/// takes the question for sent (Intel MPI 2021.18 waits for ever else).
#[inline(never)]
pub(super) fn tell_acknowledged(report: &Reporter, out: &mut Out<'_>, await_ack: &mut VecDeque<(u32, SendReq)>, link: &Link) {
    while let Some(req) = next_acknowledged(await_ack, link) {
        report.sent(out, &req);
    }
}

#[inline]
fn finish(
    report: &Reporter,
    multis: &mut Slab<Multi>,
    out: &mut Out<'_>,
    req: &RecvReq,
    env: &Envelope,
    placed: usize,
    src: Addr,
) {
    match req.special.multi() {
        None => report.received(out, req, env, placed, src, CompFlags::empty()),
        Some(id) => finish_in_multi(report, recv::message_done(multis, id), out, req, env, placed, src),
    }
}

/// The same of a message in a buffer for several.
#[inline(never)]
fn finish_in_multi(report: &Reporter, rest: Rest, out: &mut Out<'_>, req: &RecvReq, env: &Envelope, placed: usize, src: Addr) {
    report.received(out, req, env, placed, src, rest.flags());
    match rest {
        // Nothing was told of the message, but the buffer's end always is (fi_msg(3), FI_MULTI_RECV).
        Rest::Over if !report.tells(req) && placed >= env.total => report.buffer_released(out, req.ctx),
        Rest::Cancelled(tagged) => report.buffer_cancelled(out, req.ctx, tagged),
        Rest::InUse | Rest::Over => {}
    }
}

impl Desk<'_> {
    #[inline]
    fn take_one(&mut self, out: &mut Out<'_>, peer: &mut Peer) -> Result<bool, Corrupt> {
        self.in_parts = false;
        if peer.landing.is_some() {
            return self.land(out, peer);
        }
        let Some(link) = &mut peer.link else { return Ok(false) };
        let Some(header) = link.peek()? else { return Ok(false) };
        if !peer.await_ack.is_empty() {
            tell_acknowledged(self.report, out, &mut peer.await_ack, link);
        }
        let lines = header.lines();
        if lines > 1 && self.waited {
            link.fetch(lines);
        }
        match header.kind {
            Kind::Inline => self.message::<Inline>(out, peer, &header)?,
            Kind::Eager => {
                link.find_cell(&header)?;
                if !link.is_all_there(&header) {
                    return self.begin_landing(out, peer, &header);
                }
                self.long_message::<Eager>(out, peer, &header)?
            }
            Kind::Rts => {
                link.find_cell(&header)?;
                if !link.is_all_there(&header) {
                    return self.begin_landing(out, peer, &header);
                }
                let before = self.stats.received;
                self.long_message::<Stream>(out, peer, &header)?;
                self.in_parts = header.len > 0 && self.stats.received == before;
            }
            Kind::Data => {
                link.find_cell(&header)?;
                if !link.is_all_there(&header) {
                    return match peer.streams.takes(&header)? {
                        true => {
                            peer.landing = Some(Landing::Fragment { header });
                            self.land(out, peer)
                        }
                        false => Ok(false),
                    };
                }
                let received = peer.streams.on_data(link, &header)?;
                self.in_parts = received.is_none();
                if let Some(received) = received {
                    self.received(out, received);
                }
            }
            Kind::Cts => match peer.copies.on_cts(&header)? {
                Some(Returned { iov, total, wanted, lent, presumed, req }) => {
                    let why = if header.flags & flag::FORBIDDEN != 0 { Back::Forbidden } else { Back::Unreachable };
                    peer.tally.came_back(total, lent, presumed, why);
                    peer.streams.start_asked(header.tag as u32, iov, total, wanted, req);
                }
                None => {
                    if let Some(req) = peer.streams.on_cts(&header)? {
                        self.report.sent(out, &req);
                    }
                }
            },
            Kind::Offer | Kind::Accept if self.is_news(&peer.copies, link, &header) => return Ok(false),
            Kind::Done if header.flags & flag::RECALLED != 0 => {
                if self.is_news(&peer.copies, link, &header) {
                    return Ok(false);
                }
                peer.copies.on_recalled(&header)?;
            }
            Kind::Offer => {
                peer.copies.heard(self.since);
                self.long_message::<Single>(out, peer, &header)?;
                let moved = std::mem::take(&mut peer.copies.fetched);
                self.moved += moved;
                self.stats.fetched += moved;
                self.stats.invited += std::mem::take(&mut peer.copies.invited);
                self.stats.past_caches += std::mem::take(&mut peer.copies.past_caches);
            }
            Kind::Accept => {
                peer.copies.heard(self.since);
                peer.copies.on_accept(link, &header)?
            }
            Kind::Done | Kind::Fin => self.copied(out, peer, &header)?,
            Kind::Put | Kind::Get | Kind::Atomic | Kind::Event | Kind::Answer => self.one_sided(out, peer, &header)?,
        }
        if let Some(link) = &mut peer.link {
            link.count_heard(usize::from(header.kind.is_message()));
            link.consume(lines);
        }
        Ok(true)
    }

    /// The message at the head is announced, and its sender still writes it: finds the receive that it is for, and begins to [`land`](Self::land) it. One that no receive
    /// waits for stays in the ring until it is whole.
    #[inline(never)]
    fn begin_landing(&mut self, out: &mut Out<'_>, peer: &mut Peer, header: &Header) -> Result<bool, Corrupt> {
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let matcher = if header.flags & flag::TAGGED != 0 { &mut *self.tagged } else { &mut *self.untagged };
        let Some(post) = matcher.posted.find(header.tag, peer.canonical) else { return Ok(false) };
        let Some(Wanted::Once(req)) = matcher.posted.get_mut(post) else { return Ok(false) };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: self.pool };
        let header = *header;
        // The receive stays posted until all that the header says was found to make sense.
        let landing = if header.kind == Kind::Rts {
            let id = Streams::begin(&mut wire, &header, req.cap)?;
            if let Some(Wanted::Once(req)) = matcher.posted.remove(post) {
                peer.streams.lead(id, req);
            }
            Landing::Stream { id, header }
        } else {
            let said = Eager::announced(&mut wire, &header)?;
            let Some(Wanted::Once(req)) = matcher.posted.remove(post) else { return Err(Corrupt) };
            Landing::Eager { req, said, header }
        };
        peer.landing = Some(landing);
        self.land(out, peer)
    }

    /// Copies behind the sender of the message at the head. Whether all of it was there in the end; if not, the record stays, and the next turn goes on.
    #[inline(never)]
    fn land(&mut self, out: &mut Out<'_>, peer: &mut Peer) -> Result<bool, Corrupt> {
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let received = match &peer.landing {
            Some(Landing::Eager { req, said, header }) => {
                if !link.follow(header, &req.iov, 0, req.cap) {
                    return Ok(false);
                }
                let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: self.pool };
                let Placed::Whole(placed) = Eager::place(&mut wire, header, said, req)? else { return Err(Corrupt) };
                link.count_heard(1);
                link.consume(header.lines());
                match peer.landing.take() {
                    Some(Landing::Eager { req, said, .. }) => Some(Received { req, env: said.env, placed }),
                    _ => None,
                }
            }
            Some(Landing::Stream { id, header }) => {
                let Some(received) = peer.streams.land(link, *id, header)? else { return Ok(false) };
                link.count_heard(1);
                link.consume(header.lines());
                peer.landing = None;
                received
            }
            Some(Landing::Fragment { header }) => {
                if !peer.streams.follow(link, header)? {
                    return Ok(false);
                }
                let received = peer.streams.on_data(link, header)?;
                link.consume(header.lines());
                peer.landing = None;
                received
            }
            None => return Ok(false),
        };
        self.in_parts = received.is_none();
        if let Some(received) = received {
            self.received(out, received);
        }
        Ok(true)
    }

    /// Whether an OFFER, an ACCEPT or the end of a loan names memory of which nothing was heard yet; it stays at the head then.
    #[inline(never)]
    fn is_news(&mut self, copies: &Copies, link: &Link, header: &Header) -> bool {
        self.news = copies.news(link, header);
        self.news.is_some()
    }

    /// The peer has done its part of an offered message.
    #[inline(never)]
    fn copied(&mut self, out: &mut Out<'_>, peer: &mut Peer, header: &Header) -> Result<(), Corrupt> {
        if header.kind == Kind::Fin {
            let Finished { req, unmapped, told } = peer.copies.on_fin(header)?;
            if let Some(told) = told {
                // Nothing was found in so many polls since it was sent.
                let polls = self.idle.min(self.tick.wrapping_sub(told.presumed.sent_at));
                peer.habits.told(told, polls >= LATE);
            }
            if let Some(total) = unmapped {
                peer.tally.came_back(total, true, false, Back::Unmapped);
            }
            self.report.sent(out, &req);
            return Ok(());
        }
        let mut ended = Ended::default();
        let Some(link) = &peer.link else { return Err(Corrupt) };
        peer.copies.on_done(link, header, &mut ended)?;
        for Declined { id, env, req } in ended.declined {
            self.stats.declined += 1;
            peer.streams.expect(id, env, req);
        }
        for received in ended.received {
            self.received(out, received);
        }
        Ok(())
    }

    #[inline(never)]
    fn one_sided(&mut self, out: &mut Out<'_>, peer: &mut Peer, header: &Header) -> Result<(), Corrupt> {
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let served = match header.kind {
            Kind::Put => peer.one_sided.on_put(link, header, out.regions)?,
            Kind::Get => peer.one_sided.on_get(link, header, out.regions)?,
            Kind::Atomic => peer.one_sided.on_atomic(link, header, out.regions)?,
            Kind::Event => Some(OneSided::on_event(link, header)),
            _ => {
                if let Some(done) = peer.one_sided.on_answer(link, header)? {
                    match done.failed {
                        None => self.report.sent(out, &done.req),
                        Some(why) => self.report.send_failed(out, &done.req, why, peer.culprit()),
                    }
                }
                None
            }
        };
        if let Some(touched) = served {
            self.report.touched(out, &touched);
        }
        Ok(())
    }

    /// [`message`](Self::message), out of the way of the protocol that counts nanoseconds.
    #[inline(never)]
    fn long_message<P: Protocol>(&mut self, out: &mut Out<'_>, peer: &mut Peer, header: &Header) -> Result<(), Corrupt> {
        self.message::<P>(out, peer, header)
    }

    #[inline(never)]
    fn received(&mut self, out: &mut Out<'_>, received: Received) {
        self.stats.received += 1;
        let Received { req, env, placed } = received;
        finish(self.report, self.multis, out, &req, &env, placed, self.src);
    }

    #[inline(always)]
    fn message<P: Protocol>(&mut self, out: &mut Out<'_>, peer: &mut Peer, header: &Header) -> Result<(), Corrupt> {
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: self.pool };
        let said = P::announced(&mut wire, header)?;
        self.matched::<P>(out, peer, header, &said)
    }

    /// Finds the receive for the message at the head of the ring and begins to fill it. The receive stays posted until the
    /// protocol has accepted the record.
    #[inline(always)]
    fn matched<P: Protocol>(
        &mut self,
        out: &mut Out<'_>,
        peer: &mut Peer,
        header: &Header,
        said: &Announced<P::Body>,
    ) -> Result<(), Corrupt> {
        let env = said.env;
        let source = peer.canonical;
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: self.pool };
        let matcher = if env.tagged { &mut *self.tagged } else { &mut *self.untagged };
        let found = matcher.posted.find(env.tag, source);
        let Some(post) = found else {
            return self.unexpected::<P>(peer, header, said);
        };
        let Some(Wanted::Once(req)) = matcher.posted.get_mut(post) else {
            return self.message_to_multi::<P>(out, peer, header, said);
        };
        match P::place(&mut wire, header, said, req)? {
            Placed::Whole(placed) => {
                self.stats.received += 1;
                self.report.received(out, req, &env, placed, self.src, CompFlags::empty());
                matcher.posted.remove(post);
            }
            Placed::Part(id) => {
                if let Some(Wanted::Once(req)) = matcher.posted.remove(post)
                    && let Some(received) = peer.streams.adopt(link, id, req)
                {
                    self.received(out, received);
                }
            }
            Placed::Offered(id) => {
                if let Some(Wanted::Once(req)) = matcher.posted.remove(post)
                    && let Some(received) = peer.copies.adopt(id, req)
                {
                    self.received(out, received);
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn unexpected<P: Protocol>(&mut self, peer: &mut Peer, header: &Header, said: &Announced<P::Body>) -> Result<(), Corrupt> {
        let env = said.env;
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: self.pool };
        let held = P::hold(&mut wire, header, said)?;
        self.stats.unexpected += 1;
        peer.held += 1;
        let matcher = if env.tagged { &mut *self.tagged } else { &mut *self.untagged };
        let msg = HeldMsg { env, held, via: self.via, owner: self.report.index() };
        matcher.unexpected.push(env.tag, peer.canonical, msg);
        Ok(())
    }

    /// The oldest receive that matches is a multi-receive buffer. If it has no room left, the next one that matches serves.
    #[inline(never)]
    fn message_to_multi<P: Protocol>(
        &mut self,
        out: &mut Out<'_>,
        peer: &mut Peer,
        header: &Header,
        said: &Announced<P::Body>,
    ) -> Result<(), Corrupt> {
        let env = said.env;
        let matcher = if env.tagged { &mut *self.tagged } else { &mut *self.untagged };
        let Some(post) = matcher.posted.find(env.tag, peer.canonical) else { return Err(Corrupt) };
        let Some(Wanted::Multi(at)) = matcher.posted.get_mut(post) else { return Err(Corrupt) };
        let at = *at;
        let (req, used_up) = recv::carve(self.multis, at, env.total);
        if used_up {
            matcher.posted.remove(post);
        }
        let Some(req) = req else {
            recv::release_if_idle(self.multis, self.report, out, at);
            return self.matched::<P>(out, peer, header, said);
        };
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: self.pool };
        match P::place(&mut wire, header, said, &req) {
            Ok(Placed::Whole(placed)) => self.received(out, Received { req, env, placed }),
            Ok(Placed::Part(id)) => {
                if let Some(received) = peer.streams.adopt(link, id, req) {
                    self.received(out, received);
                }
            }
            Ok(Placed::Offered(id)) => {
                if let Some(received) = peer.copies.adopt(id, req) {
                    self.received(out, received);
                }
            }
            Err(Corrupt) => {
                // The piece stays unused; the buffer must still come back.
                recv::abandon(self.multis, self.report, out, at);
                return Err(Corrupt);
            }
        }
        Ok(())
    }
}
