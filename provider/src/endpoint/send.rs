//! Sending: route, choose, start. The hot path of a small message is this file's [`Endpoint::send`], `short.rs`,
//! `protocol/inline.rs`, `transport/link/` and `shm/ring.rs`.

use super::crowd::{Crowd, Yields};
use super::lend::{Terms, ToPeer};
use super::peers::{Contact, Peer, gone};
use super::private::Private;
use super::rma::target;
use super::tally::{Tallies, Unlent, Why};
use super::{Endpoint, Out, table};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::mem::user::{UserIov, UserSeg, total_len};
use crate::protocol::single::{Copies, Declined, Ended, Sharing, Single};
use crate::protocol::{Protocol, Refused, Started, Target, Wire, eager::Eager, inline::Inline, stream::Stream};
use crate::request::kept::Copied;
use crate::request::{Aside, Message, SendReq, Special};
use crate::select::engines::help_from;
use crate::select::habit::Turn;
use crate::select::{Pick, Selection};
use crate::transport::Door;
use crate::transport::link::Corrupt;
use crate::types::{Addr, CompFlags, Level, OpFlags, PeerId, Presumed, ProtoId, UserCtx};
use crate::wire::offer::pieces_of;

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
pub(super) fn level(flags: OpFlags) -> Level {
    if flags.contains(OpFlags::DELIVERY_COMPLETE) {
        Level::Delivery
    } else if flags.contains(OpFlags::INJECT_COMPLETE) {
        Level::Inject
    } else {
        Level::Transmit
    }
}

/// Sends that are in the ring, and the positions behind them.
type Positions = smallvec::SmallVec<[(SendReq, u32); 4]>;

/// Messages to one peer that may wait for room in its ring before the caller must.
const BACKLOG: usize = 1024;

/// What may be done with a peer's memory at the moment. If ranks outnumber cores nothing is shared: the other side would copy instead of
/// somebody else who waits, and may lose its core in the middle of a chunk.
pub(super) fn open_memory(copies: &mut Copies, config: &Config, crowd: &Crowd, target: Option<Target>) {
    copies.set_sharing(if Yields::of(config).now(|| crowd.is_crowded()) { Sharing::Never } else { Sharing::WhereItPays });
    copies.help_from(help_from(config, crowd.has_room()));
    if config.cma == 0 {
        copies.reach(target);
    }
}

/// A message that found no room in the ring. It keeps its place: later ones wait behind it.
pub(super) struct Waiting {
    tagged: bool,
    tag: u64,
    data: Option<u64>,
    iov: UserIov,
    /// The payload, if the caller has its buffer back.
    own: Option<Copied>,
    len: usize,
    /// What its completion needs.
    pub req: SendReq,
    /// What a habit said of it.
    asked: Option<Turn>,
}

impl Waiting {
    fn new(msg: &Message<'_>, req: SendReq, own: Option<Copied>, asked: Option<Turn>) -> Waiting {
        let iov = UserIov::from(if own.is_some() { &[] } else { msg.iov });
        Waiting { tagged: msg.tagged, tag: msg.tag, data: msg.data, iov, own, len: msg.len, req, asked }
    }

    fn message(&self) -> Message<'_> {
        let Waiting { tagged, tag, data, len, .. } = *self;
        let bytes = self.own.as_deref().unwrap_or(&[]);
        Message { tagged, tag, data, iov: &self.iov, bytes, len, at_once: false, lent: 0, presumed: None }
    }
}

/// Starts a message by the protocol that was chosen, or by another one if that cannot carry it, and counts it.
#[inline]
fn start(
    pick: Pick,
    tally: &mut Tallies,
    wire: &mut Wire<'_>,
    msg: &Message<'_>,
    req: &SendReq,
) -> core::result::Result<Started, Refused> {
    if pick.proto != ProtoId::Inline || pick.turned {
        return start_longer(pick, tally, wire, msg, req);
    }
    let started = Inline::start(wire, msg, req)?;
    tally.count(pick.row, msg.len);
    Ok(started)
}

/// [`start`], out of the way of the protocol that counts nanoseconds.
#[inline(never)]
fn start_longer(
    pick: Pick,
    tally: &mut Tallies,
    wire: &mut Wire<'_>,
    msg: &Message<'_>,
    req: &SendReq,
) -> core::result::Result<Started, Refused> {
    let mut turned = None;
    let started = match pick.proto {
        ProtoId::Inline => {
            turned = Some((ProtoId::Inline, Why::AtOnce));
            Inline::start(wire, msg, req)
        }
        ProtoId::Eager => match Eager::start(wire, msg, req) {
            Err(Refused::Window) if !msg.at_once => {
                turned = Some((ProtoId::Stream, Why::Window));
                Stream::start(wire, msg, req)
            }
            Err(Refused::Unable) if !msg.at_once => {
                turned = Some((ProtoId::Stream, Why::Ring));
                Stream::start(wire, msg, req)
            }
            other => {
                turned = pick.turned.then_some((ProtoId::Eager, Why::AtOnce));
                other
            }
        },
        ProtoId::Stream => Stream::start(wire, msg, req),
        ProtoId::Syscall | ProtoId::Mapped => match Single::start(wire, msg, req) {
            Err(Refused::Unable) => {
                turned = Some((ProtoId::Stream, unable(wire, msg)));
                Stream::start(wire, msg, req)
            }
            other => {
                turned = pick.turned.then_some((ProtoId::Syscall, Why::Again));
                other
            }
        },
    }?;
    tally.count(pick.row, msg.len);
    tally.count_unlent(turned.map_or(pick.proto, |(to, _)| to), msg.len);
    if let Some((to, why)) = turned {
        tally.turn(pick.row, to, why, msg.len);
    }
    Ok(started)
}

/// How a longer message goes.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub pick: Pick,
    /// As in [`Message`].
    pub lent: u32,
    /// What a habit said of it, if one was asked.
    asked: Option<Turn>,
}

impl Way {
    /// Out of memory of which nothing need be known.
    #[inline]
    pub fn copied(pick: Pick) -> Way {
        Way { pick, lent: 0, asked: None }
    }

    fn presumed(&self) -> Option<Presumed> {
        if let Some(Turn::Once(presumed)) = self.asked { Some(presumed) } else { None }
    }
}

/// What an endpoint lends with.
pub(super) struct Lends<'a> {
    pub terms: Terms,
    pub door: Option<&'a mut (dyn Door + 'static)>,
    pub private: &'a mut Private,
    pub config: &'a Config,
    pub crowd: &'a Crowd,
    /// The number of the next poll.
    pub tick: u64,
    /// What a habit said of this message already: one is asked once.
    pub asked: Option<Turn>,
}

/// The way of a longer message: that of the table, or that of messages in lent memory, and its number there, if it can be lent; where the better of
/// two ways depends on whose cache it is in, by what the peer told of the last ones.
#[inline]
pub(super) fn or_once(
    pick: Pick,
    selection: &Selection,
    lends: Lends<'_>,
    peer: &mut Peer,
    (iov, len): (&[UserSeg], usize),
) -> Way {
    match selection.may_go_once(len) {
        true => once(pick, selection, lends, peer, (iov, len)),
        false => Way::copied(pick),
    }
}

/// [`or_once`] of a message of a size that may go by one copy.
#[inline(never)]
fn once(pick: Pick, selection: &Selection, lends: Lends<'_>, peer: &mut Peer, (iov, len): (&[UserSeg], usize)) -> Way {
    let Lends { config, crowd, tick, asked, .. } = lends;
    let plain = Way { pick, lent: 0, asked };
    if let Some(pick) = selection.choose_lent(len)
        && let lent @ 1.. = lend(lends, peer, iov)
    {
        if !selection.by_habit().contains(&len) {
            return Way { pick, lent, asked: None };
        }
        let turn = asked.unwrap_or_else(|| peer.habits.turn_lent(iov, len, tick));
        if turn == Turn::Ring {
            peer.tally.note_unlent(Some(Unlent::Rewritten));
            return Way { asked: Some(turn), ..plain };
        }
        return Way { pick, lent, asked: Some(turn) };
    }
    if selection.again().contains(&len) && !Yields::of(config).now(|| crowd.is_crowded()) {
        return again(plain, peer, iov, tick);
    }
    Way { asked: None, ..plain }
}

/// The way of a message in private memory that goes by `plain`, or is left to the kernel if the receiver is taken to have its buffer in its cache.
fn again(plain: Way, peer: &mut Peer, iov: &[UserSeg], tick: u64) -> Way {
    let ([one], false) = (iov, plain.pick.turned) else { return Way { asked: None, ..plain } };
    // Where the kernel is not asked, nobody need know what the buffer looks like.
    if !peer.copies.can_ask_kernel() || !peer.link.as_ref().is_some_and(|link| link.is_read() && link.can_receive()) {
        return Way { asked: None, ..plain };
    }
    let turn = match plain.asked {
        // It was asked of memory that was lent then.
        Some(Turn::Once(presumed)) if !presumed.same => Turn::Ring,
        Some(turn) => turn,
        None => peer.habits.turn_again(one, tick),
    };
    let pick = if turn == Turn::Ring { plain.pick } else { Pick { proto: ProtoId::Syscall, turned: true, ..plain.pick } };
    Way { pick, lent: 0, asked: Some(turn) }
}

/// The number of the memory in which a message lies, if the peer can map that; else 0, and the tally knows why.
fn lend(Lends { terms, mut door, private, .. }: Lends<'_>, peer: &mut Peer, iov: &[UserSeg]) -> u32 {
    let (start, len) = iov.first().map_or((0, 0), |one| (one.address(), one.len()));
    let found = if !peer.copies.takes_loans() {
        Err(Unlent::Peer)
    } else if !peer.link.as_ref().is_some_and(|link| link.can_receive()) {
        Err(Unlent::Early)
    } else if iov.len() == 1
        && !peer.lines.is_empty()
        && let Some(why) = private.knows(start, len)
    {
        // What most programs send out of: nothing more is asked.
        peer.tally.note_unlent(Some(Unlent::Memory(why)));
        return 0;
    } else {
        ToPeer { terms, door: door.as_deref_mut(), lines: &peer.lines, handed: &mut peer.handed }.find(iov, false)
    };
    if let (Err(Unlent::Memory(why)), [_], Some(door)) = (found, iov, door)
        && let left @ 1.. = door.as_before(start)
    {
        private.note(start, len, why, left);
    }
    peer.tally.note_unlent(found.err());
    found.unwrap_or(0)
}

/// Why a message cannot be offered.
#[cold]
fn unable(wire: &Wire<'_>, msg: &Message<'_>) -> Why {
    if wire.copies.is_refused() {
        Why::Kernel
    } else if !wire.link.can_receive() {
        Why::Early
    } else if pieces_of(msg.iov).is_none() {
        Why::Pieces
    } else {
        Why::Unknown
    }
}

impl Endpoint {
    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::Again`] if too many messages wait for room until the peer reads, if one whose buffer is given back at once had better wait for room by itself, or a fence must wait; otherwise why this message cannot go to that peer.
    #[inline]
    pub(crate) fn send(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>) -> Result<()> {
        match self.send_short(out, args) {
            Ok(()) => Ok(()),
            Err(way) => self.send_as(out, args, None, way),
        }
    }

    /// [`send`](Self::send) as deferred work, which is reported by `aside`.
    #[cold]
    pub(crate) fn send_aside(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>, aside: Aside) -> Result<()> {
        self.report.expect_asides();
        self.send_as(out, args, Some(aside), None)
    }

    /// `way`: that of a longer message, if it is known already.
    #[inline(never)]
    fn send_as(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>, aside: Option<Aside>, way: Option<Way>) -> Result<()> {
        let flags = args.flags.unwrap_or(self.attr.tx_flags);
        let len = total_len(args.iov);
        let at_once = args.inject || flags.contains(OpFlags::INJECT);
        if at_once && len > self.attr.inject_max {
            return Err(Error::TooLong);
        }
        let req = SendReq {
            ctx: args.ctx,
            level: level(flags),
            report: match aside {
                None => !args.inject && self.report.wants_send(flags),
                Some(_) => flags.contains(OpFlags::COMPLETION),
            },
            flags: CompFlags::SEND | if args.tagged { CompFlags::TAGGED } else { CompFlags::MSG },
            special: aside.map_or(Special::quiet(args.inject), Special::from),
        };
        let av = self.av.as_ref().ok_or(Error::BadState)?;
        let id = self.peers.route(av, args.to, self.config.fragment as usize)?;
        if !self.peers.get(id).can_send() {
            self.first_contact(out, id)?;
        }
        if flags.contains(OpFlags::FENCE) && !self.is_settled(id) {
            return Err(Error::Again);
        }
        let (tagged, tag, data, iov) = (args.tagged, args.tag, args.data, args.iov);
        let mut msg = Message { tagged, tag, data, iov, bytes: &[], len, at_once, lent: 0, presumed: None };
        let peer = self.peers.get_mut(id);
        let mut asked = way.and_then(|way| way.asked);
        if !peer.backlog.is_empty() {
            return self.wait_for_room(out, id, &msg, (req, asked), true);
        }
        let table = table(&self.selection, &self.far, peer);
        let mut pick = table.choose(len, at_once);
        if pick.proto != ProtoId::Inline && !at_once {
            let (terms, config, crowd, tick) = (self.terms, &self.config, &self.crowd, self.poll.tick);
            let (door, private) = (self.door.as_deref_mut(), &mut self.private);
            let lends = Lends { terms, door, private, config, crowd, tick, asked };
            let way = way.unwrap_or_else(|| or_once(pick, table, lends, peer, (msg.iov, len)));
            (pick, msg.lent, msg.presumed, asked) = (way.pick, way.lent, way.presumed(), way.asked);
        }
        if at_once && pick.proto == ProtoId::Stream {
            return self.wait_for_room(out, id, &msg, (req, asked), false);
        }
        let Some(link) = &mut peer.link else { return Err(Error::BadState) };
        let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: &mut self.pool };
        match start(pick, &mut peer.tally, &mut wire, &msg, &req) {
            Ok(Started::Sent(position)) => {
                self.in_ring(out, id, req, position);
                Ok(())
            }
            Ok(Started::Streaming) => {
                if peer.copies.has_unheard() {
                    self.look_for_invited(out, id);
                }
                self.push(out, id);
                Ok(())
            }
            Err(Refused::Corrupt) => self.not_started(out, id),
            Err(refused @ (Refused::Full | Refused::Window | Refused::Unable)) => {
                self.wait_for_room(out, id, &msg, (req, asked), refused != Refused::Unable)
            }
        }
    }

    /// Operations that may still be posted before one is answered with [`Error::Again`], whichever peer they go to; longer messages than inline ones whose buffers are given back at once left aside.
    pub(crate) fn send_room(&self) -> Result<usize> {
        self.name()?;
        let room = |id| {
            let peer = self.peers.get(id);
            let room = if peer.kept.is_full() { 0 } else { BACKLOG.saturating_sub(peer.backlog.len()) };
            room.min(peer.one_sided.room())
        };
        Ok(self.peers.ids().map(room).min().unwrap_or(BACKLOG))
    }

    #[cold]
    fn not_started(&mut self, out: &mut Out<'_>, id: PeerId) -> Result<()> {
        self.depart(out, id, Error::Corrupt);
        Err(gone(self.peers.get(id)).unwrap_or(Error::Corrupt))
    }

    /// There is no room in the ring, or in the window for who has his buffer back then: clients that wait inside their send for it would wait for a peer that computes. `soon`: there may be
    /// some in a moment.
    #[cold]
    fn wait_for_room(
        &mut self,
        out: &mut Out<'_>,
        id: PeerId,
        msg: &Message<'_>,
        (req, asked): (SendReq, Option<Turn>),
        soon: bool,
    ) -> Result<()> {
        let peer = self.peers.get_mut(id);
        if peer.backlog.len() >= BACKLOG || msg.at_once && !peer.kept.takes(msg.len, self.clock.now(), soon) {
            return Err(Error::Again);
        }
        let own = msg.at_once.then(|| peer.kept.copy(msg.iov, msg.len));
        self.copied.set(self.copied.get() || own.is_some());
        peer.backlog.push_back(Waiting::new(msg, req, own, asked));
        self.push(out, id);
        self.stats.ring_full += u64::from(!self.peers.get(id).backlog.is_empty());
        Ok(())
    }

    /// The last byte of a send is in the ring, before `position`: completes it, or notes what it waits for.
    #[inline]
    pub(super) fn in_ring(&mut self, out: &mut Out<'_>, id: PeerId, req: SendReq, position: u32) {
        let peer = self.peers.get_mut(id);
        match req.level {
            Level::Inject => self.report.sent(out, &req),
            Level::Transmit if matches!(peer.contact, Contact::Greeted | Contact::Calling { .. }) => self.report.sent(out, &req),
            // Inject calls cannot fail any more and leave no entry.
            Level::Transmit if req.special.is_quiet() => self.report.sent(out, &req),
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

    /// Starts messages that waited for room, as far as there is some. Returns how many; those that are in the ring are added to `done`.
    fn start_waiting(&mut self, id: PeerId, done: &mut Positions) -> core::result::Result<usize, Corrupt> {
        let mut started = 0;
        let peer = self.peers.get_mut(id);
        while peer.link.is_some()
            && let Some(message) = peer.backlog.pop_front()
        {
            let mut msg = message.message();
            let mut asked = message.asked;
            let table = table(&self.selection, &self.far, peer);
            let copied = message.own.is_some();
            let mut pick = table.choose(message.len, copied);
            if pick.proto != ProtoId::Inline && !copied {
                let (terms, config, crowd, tick) = (self.terms, &self.config, &self.crowd, self.poll.tick);
                let (door, private) = (self.door.as_deref_mut(), &mut self.private);
                let lends = Lends { terms, door, private, config, crowd, tick, asked: message.asked };
                let way = or_once(pick, table, lends, peer, (msg.iov, msg.len));
                (pick, msg.lent, msg.presumed, asked) = (way.pick, way.lent, way.presumed(), way.asked);
            }
            let Some(link) = &mut peer.link else { return Err(Corrupt) };
            let mut wire = Wire { link, streams: &mut peer.streams, copies: &mut peer.copies, pool: &mut self.pool };
            match start(pick, &mut peer.tally, &mut wire, &msg, &message.req) {
                Ok(Started::Sent(position)) => done.push((message.req, position)),
                Ok(Started::Streaming) => message.own.into_iter().for_each(|own| peer.streams.keep(own)),
                Err(refused) => {
                    peer.backlog.push_front(Waiting { asked, ..message });
                    return if refused == Refused::Corrupt { Err(Corrupt) } else { Ok(started) };
                }
            }
            started += 1;
        }
        Ok(started)
    }

    /// Writes control records and fragments of this peer as far as there is room.
    pub(super) fn push(&mut self, out: &mut Out<'_>, id: PeerId) -> usize {
        let mut done = Positions::new();
        let mut ended = Ended::default();
        let started = self.start_waiting(id, &mut done);
        let peer = self.peers.get_mut(id);
        let Some(link) = &mut peer.link else { return 0 };
        let answered = match peer.one_sided.has_work() {
            true => peer.one_sided.push(link, out.regions, self.config.fragment as usize),
            false => Ok(0),
        };
        let pushed = peer.streams.push(link, |req, position| done.push((req, position)));
        let copied = if peer.copies.has_work() {
            open_memory(&mut peer.copies, &self.config, &self.crowd, target(self.door.as_deref(), peer.pid, &peer.name));
            let mut lender =
                ToPeer { terms: self.terms, door: self.door.as_deref_mut(), lines: &peer.lines, handed: &mut peer.handed };
            peer.copies.push(link, &mut lender, &mut ended)
        } else {
            Ok(0)
        };
        for Declined { id, env, req } in ended.declined {
            self.stats.declined += 1;
            peer.streams.expect(id, env, req);
        }
        let past_caches = std::mem::take(&mut peer.copies.past_caches);
        let stored = std::mem::take(&mut peer.copies.stored);
        let came_back = peer.tally.has_returned();
        let pushed = started.and_then(|s| answered.and_then(|n| pushed.and_then(|m| copied.map(|c| s + n + m + c))));
        // Of these some may have ended for the application.
        if !peer.backlog.is_empty() || peer.one_sided.has_work() || !peer.kept.is_empty() {
            self.absence.note();
        }
        if peer.has_work() && !peer.in_busy {
            peer.in_busy = true;
            self.poll.busy.push(id);
            self.report.rouse();
        }
        for (req, position) in done {
            self.in_ring(out, id, req, position);
        }
        if came_back {
            self.offers_came_back(id);
        }
        self.stats.fetched += ended.fetched;
        self.stats.stored += ended.stored + stored;
        self.stats.past_caches += past_caches;
        self.stats.helped += ended.helped;
        for received in ended.received {
            self.received(out, id, received);
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
