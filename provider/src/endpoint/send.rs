//! Sending: route, choose, start. The hot path of a small message is this file's [`Endpoint::send`],
//! `protocol/inline.rs`, `transport/link.rs` and `shm/ring.rs`.

use super::peers::{Contact, gone};
use super::{Endpoint, Out};
use crate::error::{Error, Result};
use crate::mem::user::{UserSeg, total_len};
use crate::protocol::{Protocol, Refused, Started, Wire, eager::Eager, inline::Inline, stream::Stream};
use crate::request::{Message, SendReq};
use crate::types::{Addr, CompFlags, INJECT_MAX, Level, OpFlags, PeerId, ProtoId, UserCtx};

/// One send, as the API passes it.
pub struct SendArgs<'a> {
    /// Where to.
    pub to: Addr,
    /// Tagged or untagged.
    pub tagged: bool,
    /// Tag; 0 if untagged.
    pub tag: u64,
    /// Remote CQ data to attach.
    pub data: Option<u64>,
    /// The payload.
    pub iov: &'a [UserSeg],
    /// The application's context.
    pub ctx: UserCtx,
    /// Flags of the call; `None`: the endpoint's default.
    pub flags: Option<OpFlags>,
    /// A call of the inject family: the buffer is free at once, and there is never an entry.
    pub inject: bool,
}

/// The completion level that flags ask for.
#[inline]
fn level(flags: OpFlags) -> Level {
    if flags.contains(OpFlags::DELIVERY_COMPLETE) {
        Level::Delivery
    } else if flags.contains(OpFlags::INJECT_COMPLETE) {
        Level::Inject
    } else {
        Level::Transmit
    }
}

impl Endpoint {
    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::Again`] if there is no room until the peer reads; otherwise why this message cannot go to that peer.
    #[inline]
    pub(crate) fn send(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>) -> Result<()> {
        let flags = args.flags.unwrap_or(self.attr.tx_flags);
        let len = total_len(args.iov);
        if len > INJECT_MAX && (args.inject || flags.contains(OpFlags::INJECT)) {
            return Err(Error::TooLong);
        }
        let req = SendReq {
            ctx: args.ctx,
            level: level(flags),
            report: !args.inject && self.report.wants_send(flags),
            quiet: args.inject,
            flags: CompFlags::SEND | if args.tagged { CompFlags::TAGGED } else { CompFlags::MSG },
        };
        let av = self.av.as_ref().ok_or(Error::BadState)?;
        let id = self.peers.route(av, args.to, self.config.fragment as usize)?;
        if !self.peers.get(id).can_send() {
            self.first_contact(out, id)?;
        }
        if flags.contains(OpFlags::FENCE) && !self.is_settled(id) {
            return Err(Error::Again);
        }
        let peer = self.peers.get_mut(id);
        let Some(link) = &mut peer.link else { return Err(Error::BadState) };
        let mut wire = Wire { link, streams: &mut peer.streams, pool: &mut self.pool };
        let msg = Message { tagged: args.tagged, tag: args.tag, data: args.data, iov: args.iov, len };
        let mut proto = if len <= INJECT_MAX { ProtoId::Inline } else { self.selection.choose(len) };
        let started = match proto {
            ProtoId::Inline => Inline::start(&mut wire, &msg, &req),
            ProtoId::Eager => match Eager::start(&mut wire, &msg, &req) {
                Err(Refused::Window) => {
                    self.stats.window_full += 1;
                    proto = ProtoId::Stream;
                    Stream::start(&mut wire, &msg, &req)
                }
                other => other,
            },
            ProtoId::Stream => Stream::start(&mut wire, &msg, &req),
        };
        match started {
            Ok(Started::Sent(position)) => {
                self.stats.count_sent(proto);
                self.in_ring(out, id, req, position);
                Ok(())
            }
            Ok(Started::Streaming) => {
                self.stats.count_sent(proto);
                self.push(out, id);
                Ok(())
            }
            Err(why) => self.not_started(out, id, why),
        }
    }

    #[cold]
    fn not_started(&mut self, out: &mut Out<'_>, id: PeerId, why: Refused) -> Result<()> {
        match why {
            Refused::Full => {
                self.stats.ring_full += 1;
                Err(Error::Again)
            }
            // Streams need no window.
            Refused::Window => Err(Error::Again),
            Refused::Corrupt => {
                self.depart(out, id, Error::Corrupt);
                Err(gone(self.peers.get(id)).unwrap_or(Error::Corrupt))
            }
        }
    }

    /// The last byte of a send is in the ring, before `position`: completes it, or notes what it waits for.
    #[inline]
    pub(super) fn in_ring(&mut self, out: &mut Out<'_>, id: PeerId, req: SendReq, position: u32) {
        let peer = self.peers.get_mut(id);
        match req.level {
            Level::Inject => self.report.sent(out, &req),
            Level::Transmit if peer.contact == Contact::Greeted => self.report.sent(out, &req),
            // Inject calls cannot fail any more and leave no entry.
            Level::Transmit if req.quiet => self.report.sent(out, &req),
            Level::Transmit => peer.await_contact.push(req),
            Level::Delivery => {
                peer.await_ack.push_back((position, req));
                if !peer.in_waiters {
                    peer.in_waiters = true;
                    self.poll.ack_waiters.push(id);
                    self.report.rouse();
                }
            }
        }
    }

    /// Writes control records and fragments of this peer as far as there is room.
    pub(super) fn push(&mut self, out: &mut Out<'_>, id: PeerId) -> usize {
        let mut done = smallvec::SmallVec::<[(SendReq, u32); 4]>::new();
        let peer = self.peers.get_mut(id);
        let Some(link) = &mut peer.link else { return 0 };
        let answered = match peer.one_sided.has_work() {
            true => peer.one_sided.push(link, out.regions, self.config.fragment as usize),
            false => Ok(0),
        };
        let pushed = peer.streams.push(link, |req, position| done.push((req, position)));
        let pushed = answered.and_then(|n| pushed.map(|m| n + m));
        if peer.has_work() && !peer.in_busy {
            peer.in_busy = true;
            self.poll.busy.push(id);
            self.report.rouse();
        }
        for (req, position) in done {
            self.in_ring(out, id, req, position);
        }
        match pushed {
            Ok(records) => records,
            Err(_) => {
                self.depart(out, id, Error::Corrupt);
                0
            }
        }
    }
}
