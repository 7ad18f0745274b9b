//! Receives: post, peek, claim, discard, cancel, and buffers that take many messages.

use super::books::{Books, Withdrawn};
use super::invite::may_be_withdrawn;
use super::peers::gone;
use super::report::{Culprit, FailedRecv, Reporter};
use super::{Endpoint, HeldMsg, Out, request};
use crate::error::{Error, Result};
use crate::matching::Key;
use crate::mem::user::{UserIov, UserSeg, total_len, window};
use crate::protocol::single::SHORTEST;
use crate::protocol::stream::Streams;
use crate::protocol::{Delivery, Wire, deliver_held, discard_held};
use crate::request::{Aside, Held, MultiId, RecvReq};
use crate::types::{Addr, CompFlags, OpFlags, PeerId, UserCtx};
use slab::Slab;

/// One receive, as the API passes it.
pub struct RecvArgs<'a> {
    /// The source, or [`Addr::UNSPEC`] for any.
    pub from: Addr,
    /// Tagged or untagged.
    pub tagged: bool,
    /// Tag; 0 if untagged.
    pub tag: u64,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
    /// The buffer.
    pub iov: &'a [UserSeg],
    /// The application's context.
    pub ctx: UserCtx,
    /// Flags of the call; `None`: the endpoint's default.
    pub flags: Option<OpFlags>,
}

/// A posted receive.
pub(super) enum Wanted {
    /// For one message.
    Once(RecvReq),
    /// A multi-receive buffer.
    Multi(usize),
}

/// A message that a peek reserved, under the peek's context.
pub(super) struct Claimed {
    msg: HeldMsg,
    tagged: bool,
}

impl Claimed {
    pub fn into_message(self) -> HeldMsg {
        self.msg
    }

    /// Whether its peer is gone before all of it came.
    pub fn is_broken(&self, via: PeerId, streams: &Streams) -> bool {
        self.msg.is_broken(via, streams)
    }

    pub fn message(&self) -> &HeldMsg {
        &self.msg
    }
}

/// A buffer that takes messages until less than `min` bytes are left (fi_msg(3), FI_MULTI_RECV).
pub(super) struct Multi {
    ctx: UserCtx,
    report: bool,
    iov: UserIov,
    len: usize,
    used: usize,
    min: usize,
    /// A message has gone to it, though it may have been empty.
    serves: bool,
    /// Messages that are still coming in.
    outstanding: usize,
    /// Takes no further message.
    retired: bool,
    /// It was cancelled while messages were coming in, and whether its receive was tagged: that is told behind the last of them.
    cancelled: Option<bool>,
}

/// What a message that is complete leaves of its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It takes more messages, or others are coming in.
    InUse,
    /// It goes back to the client with this message.
    Over,
    /// It goes back as a cancelled receive, tagged or not.
    Cancelled(bool),
}

impl Rest {
    /// What the message's entry says of the buffer.
    pub fn flags(self) -> CompFlags {
        if self == Rest::Over { CompFlags::MULTI_RECV } else { CompFlags::empty() }
    }
}

impl Multi {
    /// Whether it was posted with this context.
    pub fn has(&self, ctx: UserCtx) -> bool {
        self.ctx == ctx
    }
}

impl HeldMsg {
    /// Whether the peer `via` of its endpoint is gone before all of it came.
    pub fn is_broken(&self, via: PeerId, streams: &Streams) -> bool {
        self.via == via
            && match self.held {
                Held::Stream(id) => !streams.is_whole(id),
                Held::Offer(_) => true,
                Held::Inline(_) | Held::Eager(_) | Held::Fetched(_) => false,
            }
    }
}

/// Messages begin at multiples of this: clients read structures out of the buffer.
const ALIGN: usize = 16;

/// A piece of buffer `at` for a message of `total` bytes, and whether the buffer takes no further one.
pub(super) fn carve(multis: &mut Slab<Multi>, at: usize, total: usize) -> (Option<RecvReq>, bool) {
    let Some(m) = multis.get_mut(at) else { return (None, true) };
    if total > m.len - m.used && m.used > 0 {
        // It goes to the next buffer; it is not truncated here.
        m.retired = true;
        return (None, true);
    }
    let n = total.min(m.len - m.used);
    let iov = window(&m.iov, m.used, n);
    m.used = (m.used + n).next_multiple_of(ALIGN).min(m.len);
    (m.serves, m.outstanding) = (true, m.outstanding + 1);
    m.retired = m.len - m.used < m.min.max(1);
    let cap = total_len(&iov);
    (Some(RecvReq { ctx: m.ctx, report: m.report, iov, cap, special: MultiId::new(at).into() }), m.retired)
}

/// A message of buffer `at` is complete. What is left of that.
pub(super) fn message_done(multis: &mut Slab<Multi>, id: MultiId) -> Rest {
    let at = id.index();
    let Some(m) = multis.get_mut(at) else { return Rest::InUse };
    m.outstanding -= 1;
    match m.retired && m.outstanding == 0 {
        true => multis.remove(at).cancelled.map_or(Rest::Over, Rest::Cancelled),
        false => Rest::InUse,
    }
}

/// A message that was to go to buffer `at` will not come.
pub(super) fn abandon(multis: &mut Slab<Multi>, report: &Reporter, out: &mut Out<'_>, at: usize) {
    if let Some(m) = multis.get_mut(at) {
        m.outstanding -= 1;
    }
    release_if_idle(multis, report, out, at);
}

/// Takes buffer `at` out of use. Returns its context if no message is coming in to it.
pub(super) fn retire(multis: &mut Slab<Multi>, at: usize) -> Option<UserCtx> {
    let m = multis.get_mut(at)?;
    m.retired = true;
    if m.outstanding > 0 {
        return None;
    }
    Some(multis.remove(at).ctx)
}

/// Takes buffer `at` out of use, because the client wants it back; the receive was posted as `tagged`, or not. Whether it is his at once: else after the last of the
/// messages that are coming in.
pub(super) fn cancel_multi(multis: &mut Slab<Multi>, at: usize, tagged: bool) -> bool {
    if let Some(m) = multis.get_mut(at) {
        m.cancelled = Some(tagged);
    }
    retire(multis, at).is_some()
}

/// Gives buffer `at` back by an entry of its own, if it takes no further message and none is coming in.
pub(super) fn release_if_idle(multis: &mut Slab<Multi>, report: &Reporter, out: &mut Out<'_>, at: usize) {
    if multis.get(at).is_some_and(|m| m.retired && m.outstanding == 0) {
        let m = multis.remove(at);
        match m.cancelled {
            None => report.buffer_released(out, m.ctx),
            Some(tagged) => report.buffer_cancelled(out, m.ctx, tagged),
        }
    }
}

impl Books {
    /// A buffer for many messages, not posted yet.
    pub fn new_multi(&mut self, args: &RecvArgs<'_>, report: bool) -> Result<usize> {
        if args.iov.is_empty() {
            return Err(Error::Invalid);
        }
        let iov: UserIov = args.iov.into();
        let (len, min) = (total_len(&iov), self.min_multi_recv);
        Ok(self.multis.insert(Multi {
            ctx: args.ctx,
            report,
            iov,
            len,
            used: 0,
            min,
            serves: false,
            outstanding: 0,
            retired: false,
            cancelled: None,
        }))
    }
}

impl Endpoint {
    /// Posts a receive; or, by flags, looks for a message, reserves, receives a reserved one, drops one.
    ///
    /// # Errors
    /// [`Error::NoMessage`] for a claim without a reserved message; [`Error::UnknownAddress`] and the errors of a peer that
    /// cannot send any more for a directed receive.
    #[inline]
    pub(crate) fn recv(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>) -> Result<()> {
        self.recv_as(out, args, None)
    }

    /// [`recv`](Self::recv) as deferred work, which is reported by `aside`.
    #[cold]
    pub(crate) fn recv_aside(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>, aside: Aside) -> Result<()> {
        self.report.expect_asides();
        self.recv_as(out, args, Some(aside))
    }

    #[inline(always)]
    fn recv_as(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>, aside: Option<Aside>) -> Result<()> {
        let flags = args.flags.unwrap_or(self.attr.rx_flags);
        let report = match aside {
            None => self.report.wants_recv(flags),
            Some(_) => flags.contains(OpFlags::COMPLETION),
        };
        if flags.intersects(OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD) {
            return self.probe(out, args, flags, report);
        }
        let (key, source) = self.key(out, args)?;
        if flags.contains(OpFlags::MULTI_RECV) {
            return self.post_multi(out, args, (key, source), report);
        }
        let req = request(args.ctx, report, args.iov.into(), aside);
        let matcher = if args.tagged { &mut self.books.tagged } else { &mut self.books.untagged };
        if let Some(found) = matcher.unexpected.find(&key)
            && let Some(msg) = matcher.unexpected.remove(found)
        {
            self.deliver_late(out, msg, req);
            return Ok(());
        }
        if let Some(id) = source
            && let Some(why) = gone(self.peers.get(id))
        {
            return Err(why);
        }
        let matcher = if args.tagged { &mut self.books.tagged } else { &mut self.books.untagged };
        let long = req.cap >= SHORTEST;
        let post = matcher.posted.post(key, Wanted::Once(req));
        if long && let Some(source) = source {
            self.invite(args, source, post);
        }
        Ok(())
    }

    #[inline]
    fn key(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>) -> Result<(Key, Option<PeerId>)> {
        let mut source = None;
        if self.attr.directed_recv && args.from != Addr::UNSPEC {
            source = Some(self.source(out, args.from)?);
        }
        let (tag, ignore) = if args.tagged { (args.tag, args.ignore) } else { (0, u64::MAX) };
        Ok((Key { tag, ignore, source }, source))
    }

    #[inline]
    fn source(&mut self, out: &mut Out<'_>, from: Addr) -> Result<PeerId> {
        let av = self.av.as_ref().ok_or(Error::BadState)?;
        let id = self.peers.route(av, from, self.config.fragment as usize)?;
        let peer = self.peers.get(id);
        if peer.link.is_none() && gone(peer).is_none() {
            self.check_reachable(out, id)?;
            self.await_source(id);
        }
        Ok(self.peers.get(id).canonical)
    }

    /// A held message got its buffer.
    #[cold]
    pub(super) fn deliver_late(&mut self, out: &mut Out<'_>, msg: HeldMsg, req: RecvReq) {
        let via = msg.via;
        let peer = self.peers.get_mut(via);
        peer.held -= 1;
        let Some(link) = &mut peer.link else { return };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: &mut self.pool };
        let delivery = deliver_held(&mut wire, msg.held, msg.env, req);
        if peer.has_work() {
            self.push(out, via);
        }
        if let Delivery::Done(received) = delivery {
            self.received(out, via, received);
        }
        self.bury(via);
    }

    pub(super) fn drop_held(&mut self, out: &mut Out<'_>, msg: HeldMsg) {
        let peer = self.peers.get_mut(msg.via);
        peer.held -= 1;
        let Some(link) = &mut peer.link else { return };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: &mut self.pool };
        discard_held(&mut wire, msg.held);
        if peer.has_work() {
            self.push(out, msg.via);
        }
        self.bury(msg.via);
    }

    fn post_multi(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>, from: (Key, Option<PeerId>), report: bool) -> Result<()> {
        let (key, source) = from;
        let at = self.books.new_multi(args, report)?;
        if self.fill_multi(out, args.tagged, &key, at) {
            return Ok(());
        }
        let ended = source.and_then(|id| Some((gone(self.peers.get(id))?, self.peers.get(id).culprit())));
        let Some((why, culprit)) = ended else {
            let matcher = if args.tagged { &mut self.books.tagged } else { &mut self.books.untagged };
            matcher.posted.post(key, Wanted::Multi(at));
            return Ok(());
        };
        // Nobody will fill the rest.
        let unused = self.books.multis.get(at).is_some_and(|multi| !multi.serves);
        match retire(&mut self.books.multis, at) {
            Some(_) if unused => Err(why),
            Some(ctx) => {
                self.report.recv_failed(out, FailedRecv::unmatched(ctx, args.tagged, true), why, culprit);
                Ok(())
            }
            // With the last of the messages that are still coming in.
            None => Ok(()),
        }
    }

    /// Messages that came early go to buffer `at`, in their order, up to one that came to another endpoint. Whether it is used
    /// up by them.
    pub(super) fn fill_multi(&mut self, out: &mut Out<'_>, tagged: bool, key: &Key, at: usize) -> bool {
        loop {
            let matcher = if tagged { &mut self.books.tagged } else { &mut self.books.untagged };
            let Some(found) = matcher.unexpected.find(key) else { return false };
            let Some(total) = matcher.unexpected.get(found).filter(|m| m.owner == self.index).map(|m| m.env.total) else {
                return false;
            };
            let (req, used_up) = carve(&mut self.books.multis, at, total);
            if let Some(req) = req
                && let Some(msg) = matcher.unexpected.remove(found)
            {
                self.deliver_late(out, msg, req);
            }
            if used_up {
                release_if_idle(&mut self.books.multis, &self.report, out, at);
                return true;
            }
        }
    }

    /// A contact turned out to be an endpoint that was known already: receives posted for the one are for the other, and
    /// take what has come from it meanwhile.
    #[cold]
    pub(super) fn settle(&mut self, out: &mut Out<'_>, contact: PeerId, known: PeerId) {
        if self.member.is_some() {
            // No receive of a shared context names a source.
            return;
        }
        for tagged in [true, false] {
            let mut passed = 0;
            loop {
                let matcher = if tagged { &mut self.books.tagged } else { &mut self.books.untagged };
                let (mut nth, mut key) = (0, None);
                let post = matcher.posted.find_by(|k, _| {
                    let hit = k.source == Some(contact) && nth == passed;
                    nth += usize::from(k.source == Some(contact));
                    if hit {
                        key = Some(Key { source: Some(known), ..*k });
                    }
                    hit
                });
                let (Some(post), Some(key)) = (post, key) else { break };
                let Some(found) = matcher.unexpected.find(&key) else {
                    passed += 1;
                    continue;
                };
                match matcher.posted.remove(post) {
                    Some(Wanted::Once(req)) => {
                        if let Some(msg) = matcher.unexpected.remove(found) {
                            self.deliver_late(out, msg, req);
                        }
                    }
                    Some(Wanted::Multi(at)) => {
                        if !self.fill_multi(out, tagged, &key, at) {
                            let matcher = if tagged { &mut self.books.tagged } else { &mut self.books.untagged };
                            matcher.posted.post(key, Wanted::Multi(at));
                        }
                    }
                    None => passed += 1,
                }
            }
            let matcher = if tagged { &mut self.books.tagged } else { &mut self.books.untagged };
            matcher.posted.rename_source(contact, known);
        }
    }

    /// PEEK, CLAIM and DISCARD (fi_tagged(3)).
    #[cold]
    fn probe(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>, flags: OpFlags, report: bool) -> Result<()> {
        if !flags.contains(OpFlags::PEEK) {
            if !flags.contains(OpFlags::CLAIM) {
                return Err(Error::Invalid);
            }
            return self.claimed(out, args, flags.contains(OpFlags::DISCARD), report);
        }
        if flags.contains(OpFlags::CLAIM | OpFlags::DISCARD) {
            return Err(Error::Invalid);
        }
        // Who peeks in a loop must make progress by it.
        self.progress(out);
        let (key, _) = self.key(out, args)?;
        let matcher = if args.tagged { &mut self.books.tagged } else { &mut self.books.untagged };
        let Some(found) = matcher.unexpected.find(&key) else {
            self.report.nothing_found(out, args.ctx, args.tagged);
            return Ok(());
        };
        let Some((env, via)) = matcher.unexpected.get(found).map(|m| (m.env, m.via)) else {
            return Err(Error::NoMessage);
        };
        let mut more = CompFlags::empty();
        if flags.intersects(OpFlags::CLAIM | OpFlags::DISCARD)
            && let Some(msg) = matcher.unexpected.remove(found)
        {
            if flags.contains(OpFlags::CLAIM) {
                more = CompFlags::CLAIM;
                if let Some(old) = self.books.claimed.insert(args.ctx, Claimed { msg, tagged: args.tagged }) {
                    self.drop_held(out, old.msg);
                }
            } else {
                self.drop_held(out, msg);
            }
        }
        let src = self.source_of(via);
        self.report.peeked(out, args.ctx, report, &env, src, more);
        Ok(())
    }

    fn claimed(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>, discard: bool, report: bool) -> Result<()> {
        match self.books.claimed.get(&args.ctx) {
            Some(c) if c.tagged == args.tagged => {}
            _ => return Err(Error::NoMessage),
        }
        let Some(Claimed { msg, .. }) = self.books.claimed.remove(&args.ctx) else { return Err(Error::NoMessage) };
        if discard {
            let (env, via) = (msg.env, msg.via);
            self.drop_held(out, msg);
            let src = self.source_of(via);
            self.report.peeked(out, args.ctx, report, &env, src, CompFlags::empty());
        } else {
            self.deliver_late(out, msg, request(args.ctx, report, args.iov.into(), None));
        }
        Ok(())
    }

    /// Cancels the oldest posted receive with this context; it completes with [`Error::Cancelled`].
    ///
    /// # Errors
    /// [`Error::NoMessage`] if none is posted: it has its message already, or never was. Sends are not cancelled.
    pub(crate) fn cancel(&mut self, out: &mut Out<'_>, ctx: UserCtx) -> Result<()> {
        let peers = &mut self.peers;
        let may = |source, req: &RecvReq| may_be_withdrawn(peers, source, req);
        let withdrawn = self.books.withdraw(ctx, may).ok_or(Error::NoMessage)?;
        self.cancelled(out, ctx, &withdrawn);
        Ok(())
    }

    /// Reports a receive that was taken back, if that is to be now.
    pub(super) fn cancelled(&self, out: &mut Out<'_>, ctx: UserCtx, withdrawn: &Withdrawn) {
        if !withdrawn.at_once {
            return;
        }
        let entry = FailedRecv::unmatched(ctx, withdrawn.tagged, false).aside(withdrawn.aside);
        self.report.recv_failed(out, entry, Error::Cancelled, Culprit::default());
    }
}
