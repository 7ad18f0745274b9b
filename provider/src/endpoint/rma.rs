//! Remote memory access and atomics: who does it, this endpoint alone or the target's engine; and what peers did to our memory.

use super::peers::{Contact, Peer, gone};
use super::tally::Why;
use super::{Endpoint, Out};
use crate::error::{Error, Result};
use crate::mem::user::{UserIov, UserSeg, gather_into, total_len};
use crate::peer::name::Name;
use crate::protocol::Target;
use crate::protocol::direct::{Outcome, Transfer};
use crate::protocol::one_sided::MAX_PLACES;
use crate::region::table::Locator;
use crate::request::{Aside, Finished, Payload, SendReq, Special, Task};
use crate::select::model::{Mover, Operation};
use crate::transport::Door;
use crate::types::{Addr, CompFlags, Level, OpFlags, PeerId, RemoteSeg, UserCtx};
use crate::wire::order::{self, Order};

/// One read or write, as the API passes it.
pub struct RmaArgs<'a> {
    /// Whose memory.
    pub to: Addr,
    /// Whether it is written.
    pub write: bool,
    /// Our memory.
    pub iov: &'a [UserSeg],
    /// Theirs; as many bytes.
    pub places: &'a [RemoteSeg],
    /// Remote CQ data to attach to a write.
    pub data: Option<u64>,
    /// The application's context.
    pub ctx: UserCtx,
    /// Flags of the call; `None`: the endpoint's default.
    pub flags: Option<OpFlags>,
    /// A call of the inject family.
    pub inject: bool,
}

/// One atomic operation, as the API passes it.
pub struct AtomicArgs<'a> {
    /// Whose memory.
    pub to: Addr,
    /// What to do with each value.
    pub order: Order,
    /// An operand for each value; none for reads.
    pub operands: &'a [UserSeg],
    /// A comparand for each value, in the compare form.
    pub comparands: &'a [UserSeg],
    /// Where the old values go, if they are wanted.
    pub results: &'a [UserSeg],
    /// The values.
    pub places: &'a [RemoteSeg],
    /// The application's context.
    pub ctx: UserCtx,
    /// Flags of the call; `None`: the endpoint's default.
    pub flags: Option<OpFlags>,
    /// A call of the inject family.
    pub inject: bool,
}

/// What became of a read or a write.
enum Moved {
    /// The bytes are there. Whether the target wants to be told.
    Done(bool),
    /// It is wrong.
    Failed(Error),
    /// The target's engine does it, as the table says.
    ByTarget,
    /// The same, although it was to be direct.
    NotPossible(Why),
}

/// Why the kernel is not asked now to move bytes to or from a peer, as far as the peer's state tells.
pub(super) fn not_direct(peer: &Peer) -> Option<Why> {
    match peer.contact {
        _ if peer.direct.is_refused() => Some(Why::Kernel),
        // What was asked of the target's engine comes first.
        _ if peer.one_sided.is_waiting() => Some(Why::Order),
        Contact::Dialing { .. } | Contact::Greeted => None,
        _ => Some(Why::Early),
    }
}

fn remote_len(places: &[RemoteSeg]) -> usize {
    places.iter().fold(0, |n: usize, p| n.saturating_add(p.len))
}

/// What the kernel needs to reach a peer's memory, if it can.
pub(super) fn target(door: Option<&dyn Door>, pid: u32, name: &Name) -> Option<Target> {
    let pid = door.map_or(0, |d| d.kernel_pid(pid));
    let table = Locator::of_word(name.table())?;
    (pid != 0).then_some(Target { pid, table })
}

fn copied(iov: &[UserSeg], len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    gather_into(iov, 0, len, &mut bytes);
    bytes
}

impl Endpoint {
    /// Reads or writes memory of a peer; as deferred work, if there is an `aside`.
    ///
    /// # Errors
    /// [`Error::Again`] if too much is under way, or a fence must wait; otherwise why the call makes no sense. What is wrong
    /// with the target's memory comes as a failed completion.
    pub(crate) fn rma(&mut self, out: &mut Out<'_>, args: &RmaArgs<'_>, aside: Option<Aside>) -> Result<()> {
        let flags = args.flags.unwrap_or(self.attr.tx_flags);
        let len = total_len(args.iov);
        if len != remote_len(args.places) || args.places.len() > MAX_PLACES {
            return Err(Error::Invalid);
        }
        let inject = args.inject || flags.contains(OpFlags::INJECT);
        if inject && args.write && len > self.attr.inject_max {
            return Err(Error::TooLong);
        }
        let id = self.one_sided_peer(out, args.to, flags)?;
        let way = if args.write { CompFlags::WRITE } else { CompFlags::READ };
        let req = self.one_sided_request(args.ctx, flags, args.inject, CompFlags::RMA | way, aside);
        let operation = if args.write { Operation::Write } else { Operation::Read };
        let choice = self.table(self.peers.get(id)).deeds().choose(operation, len);
        let moved = match choice.mover {
            Mover::Direct if flags.contains(OpFlags::FENCE) && !self.has_read_all(id) => Moved::NotPossible(Why::Order),
            Mover::Direct => self.directly(id, args),
            _ => Moved::ByTarget,
        };
        match moved {
            Moved::Done(wants) => {
                self.peers.get_mut(id).tally.deed(choice.row, len);
                if wants || args.data.is_some() {
                    let task = Task::Event(args.write, args.data);
                    self.peers.get_mut(id).one_sided.start(task, args.places, req);
                    self.push(out, id);
                }
                self.report.sent(out, &req);
            }
            Moved::Failed(why) => {
                let what = if args.write { "write to" } else { "read from" };
                self.log.info(|| format!("a {what} {} at {:x?}: {why}", self.peers.get(id).name, args.places));
                self.one_sided_failed(out, id, &req, why);
            }
            Moved::ByTarget | Moved::NotPossible(_) => {
                let tally = &mut self.peers.get_mut(id).tally;
                match moved {
                    Moved::NotPossible(why) => tally.deed_handed(choice.row, why, len),
                    _ => tally.deed(choice.row, len),
                }
                let task = match (args.write, inject) {
                    (true, true) => Task::Put(Payload::Own(copied(args.iov, len)), args.data),
                    (true, false) => Task::Put(Payload::Lent(args.iov.into()), args.data),
                    (false, _) => Task::Get(args.iov.into()),
                };
                self.peers.get_mut(id).one_sided.start(task, args.places, req);
                self.push(out, id);
            }
        }
        Ok(())
    }

    /// Combines values in a peer's memory with ours; as deferred work, if there is an `aside`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation that the type does not have; [`Error::TooLong`] for more than
    /// [`order::MAX_BYTES`] in one piece; else as [`rma`](Self::rma).
    pub(crate) fn atomic(&mut self, out: &mut Out<'_>, args: &AtomicArgs<'_>, aside: Option<Aside>) -> Result<()> {
        let flags = args.flags.unwrap_or(self.attr.tx_flags);
        let Order { op, kind, form } = args.order;
        if !order::is_valid(op, kind, form) {
            return Err(Error::Unsupported);
        }
        let len = remote_len(args.places);
        let too_long = |p: &RemoteSeg| p.len > order::MAX_BYTES;
        let fits = |iov: &[UserSeg], wanted| if wanted { total_len(iov) == len } else { true };
        let operands = op != crate::types::AtomicOp::Read;
        let compares = form == crate::types::AtomicForm::Compare;
        let results = form != crate::types::AtomicForm::Base;
        if args.places.is_empty()
            || args.places.len() > MAX_PLACES
            || !(fits(args.operands, operands) && fits(args.comparands, compares) && fits(args.results, results))
        {
            return Err(Error::Invalid);
        }
        if args.places.iter().any(too_long) {
            return Err(Error::TooLong);
        }
        let id = self.one_sided_peer(out, args.to, flags)?;
        let way = if results { CompFlags::READ } else { CompFlags::WRITE };
        let req = self.one_sided_request(args.ctx, flags, args.inject, CompFlags::ATOMIC | way, aside);
        let ours = if operands { copied(args.operands, len) } else { Vec::new() };
        let theirs = if compares { copied(args.comparands, len) } else { Vec::new() };
        let to = UserIov::from(if results { args.results } else { &[] });
        // One executor for each region: the table has no other mover.
        let row = self.table(self.peers.get(id)).deeds().choose(Operation::Atomic, len).row;
        self.peers.get_mut(id).tally.deed(row, len);
        self.peers.get_mut(id).one_sided.start(Task::Atomic(args.order, ours, theirs, to), args.places, req);
        self.push(out, id);
        Ok(())
    }

    /// What the completion of a one-sided operation needs; `what` it says it was.
    fn one_sided_request(&self, ctx: UserCtx, flags: OpFlags, inject: bool, what: CompFlags, aside: Option<Aside>) -> SendReq {
        let report = match aside {
            None => !inject && self.report.wants_send(flags),
            Some(_) => {
                self.report.expect_asides();
                flags.contains(OpFlags::COMPLETION)
            }
        };
        let special = aside.map_or(Special::quiet(inject), Special::from);
        SendReq { ctx, level: Level::Delivery, report, special, flags: what }
    }

    /// The peer of a one-sided operation that may start now.
    fn one_sided_peer(&mut self, out: &mut Out<'_>, to: Addr, flags: OpFlags) -> Result<PeerId> {
        let av = self.av.as_ref().ok_or(Error::BadState)?;
        let id = self.peers.route(av, to, self.config.fragment as usize)?;
        if let Some(why) = gone(self.peers.get(id)) {
            return Err(why);
        }
        if !self.peers.get(id).can_send() {
            self.first_contact(out, id)?;
        }
        if self.peers.get(id).one_sided.is_full() || flags.contains(OpFlags::FENCE) && !self.is_settled(id) {
            return Err(Error::Again);
        }
        Ok(id)
    }

    /// Whether nothing that was sent to a peer is incomplete: what a fence waits for.
    pub(super) fn is_settled(&self, id: PeerId) -> bool {
        let peer = self.peers.get(id);
        peer.backlog.is_empty()
            && !peer.one_sided.is_waiting()
            && !peer.streams.sending()
            && !peer.copies.sending()
            && peer.await_ack.is_empty()
            && peer.await_contact.is_empty()
    }

    /// Whether a peer has read all that is in its ring: a message there counts as sent, and what a fence lets begin must not reach memory before it.
    fn has_read_all(&mut self, id: PeerId) -> bool {
        let Some(link) = &mut self.peers.get_mut(id).link else { return true };
        link.refresh().is_ok() && link.all_consumed()
    }

    /// Moves the bytes by the kernel, without the target.
    fn directly(&mut self, id: PeerId, args: &RmaArgs<'_>) -> Moved {
        let peer = self.peers.get_mut(id);
        if let Some(why) = not_direct(peer) {
            return Moved::NotPossible(why);
        }
        let Some(target) = target(self.door.as_deref(), peer.pid, &peer.name) else { return Moved::NotPossible(Why::Unknown) };
        let before = peer.direct.is_refused();
        let outcome = peer.direct.transfer(target, &Transfer { write: args.write, iov: args.iov, places: args.places });
        if peer.direct.is_refused() && !before {
            let name = peer.name;
            let why = self.ask_kernel(id);
            self.log.info(|| format!("{why}: the engine of {name} will do reads and writes"));
            self.peers.get_mut(id).refusal.get_or_insert(why);
        }
        match outcome {
            Outcome::Done(wants) => Moved::Done(wants),
            Outcome::Failed(why) => Moved::Failed(why),
            Outcome::NotPossible => Moved::NotPossible(Why::Kernel),
        }
    }

    /// A part of a put or an answer that went past the ring has left: others may follow.
    pub(super) fn part_left(&mut self, out: &mut Out<'_>, id: PeerId, name: u32) {
        let done = self.peers.get_mut(id).one_sided.left(name);
        self.one_sided_done(out, id, done);
        self.push(out, id);
    }

    /// One of a peer has come.
    pub(super) fn part_landed(&mut self, out: &mut Out<'_>, id: PeerId, name: u32) {
        let (served, done) = self.peers.get_mut(id).one_sided.landed(name, out.regions);
        if let Some(touched) = served {
            self.report.touched(out, &touched);
        }
        self.one_sided_done(out, id, done);
    }

    fn one_sided_done(&mut self, out: &mut Out<'_>, id: PeerId, done: Option<Finished>) {
        match done {
            None => {}
            Some(Finished { req, failed: None }) => self.report.sent(out, &req),
            Some(Finished { req, failed: Some(why) }) => self.one_sided_failed(out, id, &req, why),
        }
    }

    /// A region of the domain is closed: nothing that is on its way lands there.
    pub(crate) fn region_closed(&mut self, key: u64) {
        for id in self.peers.ids() {
            let peer = self.peers.get_mut(id);
            if let Some(link) = &peer.link {
                peer.one_sided.withdraw(link, key);
            }
        }
    }

    #[cold]
    fn one_sided_failed(&mut self, out: &mut Out<'_>, id: PeerId, req: &SendReq, why: Error) {
        let culprit = self.peers.get(id).culprit();
        self.report.send_failed(out, req, why, culprit);
    }
}
