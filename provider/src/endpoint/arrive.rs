//! Receiving: take records out of a ring, match, deliver. Whatever is in the ring is taken out: a message without a
//! receive is kept, so nobody's message waits behind one that nobody wants.

use super::recv::Wanted;
use super::{Endpoint, HeldMsg, Out};
use crate::error::Error;
use crate::protocol::{Delivery, Protocol, Wire, eager::Eager, inline::Inline, stream::Stream};
use crate::request::{Received, RecvReq};
use crate::transport::link::Corrupt;
use crate::types::{Addr, CompFlags, PeerId};
use crate::wire::header::{Header, Kind};

/// Records taken from one ring before the others get their turn.
const BUDGET: usize = 32;

impl Endpoint {
    /// Takes records from the ring of `id`, until it is empty or its turn is over. Returns how many.
    #[inline]
    pub(super) fn drain(&mut self, out: &mut Out<'_>, id: PeerId) -> usize {
        let mut taken = 0;
        while taken < BUDGET {
            match self.take_one(out, id) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(Corrupt) => {
                    self.depart(out, id, Error::Corrupt);
                    return taken;
                }
            }
        }
        if taken > 0 {
            let tick = self.poll.tick;
            let peer = self.peers.get_mut(id);
            peer.last_active = tick;
            if let Some(link) = &mut peer.link {
                link.tell();
            }
            if peer.streams.has_work() {
                self.push(out, id);
            }
        }
        taken
    }

    #[inline]
    fn take_one(&mut self, out: &mut Out<'_>, id: PeerId) -> Result<bool, Corrupt> {
        let peer = self.peers.get_mut(id);
        let Some(link) = &mut peer.link else { return Ok(false) };
        let Some(header) = link.peek()? else { return Ok(false) };
        match header.kind {
            Kind::Inline => self.message::<Inline>(out, id, &header)?,
            Kind::Eager => self.message::<Eager>(out, id, &header)?,
            Kind::Rts => self.message::<Stream>(out, id, &header)?,
            Kind::Data => {
                if let Some(received) = peer.streams.on_data(link, &header)? {
                    self.received(out, id, received);
                }
            }
            Kind::Cts => peer.streams.on_cts(&header)?,
        }
        if let Some(link) = &mut self.peers.get_mut(id).link {
            link.consume(&header);
        }
        Ok(true)
    }

    #[inline]
    fn message<P: Protocol>(&mut self, out: &mut Out<'_>, id: PeerId, header: &Header) -> Result<(), Corrupt> {
        let peer = self.peers.get_mut(id);
        let source = peer.canonical;
        let Some(link) = &mut peer.link else { return Err(Corrupt) };
        let mut wire = Wire { link, streams: &mut peer.streams, pool: &mut self.pool };
        let env = P::envelope(&mut wire, header)?;
        let matcher = if env.tagged { &mut self.tagged } else { &mut self.untagged };
        let mut found = None;
        while let Some(post) = matcher.posted.find(env.tag, source) {
            match matcher.posted.get_mut(post) {
                Some(Wanted::Once(_)) => {
                    if let Some(Wanted::Once(req)) = matcher.posted.remove(post) {
                        found = Some(req);
                    }
                    break;
                }
                Some(Wanted::Multi(at)) => {
                    let at = *at;
                    let (req, used_up) = super::recv::carve(&mut self.multis, at, env.total);
                    if used_up {
                        matcher.posted.remove(post);
                    }
                    if req.is_some() {
                        found = req;
                        break;
                    }
                    super::recv::release_if_idle(&mut self.multis, &self.report, out, at);
                }
                None => break,
            }
        }
        let Some(req) = found else {
            self.stats.unexpected += 1;
            let held = P::hold(&mut wire, header, env)?;
            peer.held += 1;
            matcher.unexpected.push(env.tag, source, HeldMsg { env, held, via: id });
            return Ok(());
        };
        if let Delivery::Done(received) = P::deliver(&mut wire, header, env, req)? {
            self.received(out, id, received);
        }
        Ok(())
    }

    /// A receive has all its bytes.
    #[inline]
    pub(super) fn received(&mut self, out: &mut Out<'_>, via: PeerId, received: Received) {
        let Received { req, env, placed } = received;
        self.stats.received += 1;
        let src = self.source_of(via);
        let more = self.multi_done(&req);
        self.report.received(out, &req, &env, placed, src, more);
    }

    fn multi_done(&mut self, req: &RecvReq) -> CompFlags {
        match req.multi {
            None => CompFlags::empty(),
            Some(at) => super::recv::message_done(&mut self.multis, at),
        }
    }

    /// The handle of the endpoint behind a link, if it is wanted.
    #[inline]
    pub(super) fn source_of(&mut self, via: PeerId) -> Addr {
        if !self.report.wants_source() {
            return Addr::UNSPEC;
        }
        let canonical = self.peers.get(via).canonical;
        match &self.av {
            Some(av) => self.peers.addr_of(av, canonical),
            None => Addr::UNSPEC,
        }
    }
}
