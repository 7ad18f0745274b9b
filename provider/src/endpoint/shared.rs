//! Shared receive contexts (fi_endpoint(3), fi_srx_context): receives that serve whichever endpoint gets a message first.
//!
//! An endpoint works with the books that it holds. A member of a context holds none: the domain lends it the context's for everything
//! that may receive, and takes them back (`domain/shared.rs`). What happens outside of that, in a send, touches no books; what it means for them, the
//! departure of a peer and a message that got whole in a buffer for many, is noted there and carried out when the books come next.
//!
//! Shared books hold messages of several endpoints, whose peer numbers mean nothing to each other: [`HeldMsg::owner`] tells them apart,
//! and no receive names a source.

use super::books::{Books, HeldMsg, Withdrawn};
use super::recv::{self, RecvArgs, Wanted};
use super::{Endpoint, Out, request};
use crate::error::{Error, Result};
use crate::matching::Key;
use crate::request::{Envelope, Received, RecvReq};
use crate::types::{Addr, OpFlags, PeerId, UserCtx};

/// A peer that is gone, with what the books have to be told.
pub(super) struct Left {
    pub id: PeerId,
    pub why: Error,
    /// Receives that were being filled.
    pub recvs: Vec<(RecvReq, Envelope)>,
}

/// Of an endpoint that is bound to a context.
pub(super) struct Member {
    /// Which one.
    pub context: usize,
    /// It holds the context's books now.
    pub lent: bool,
    /// Messages in buffers for many that got whole while it did not, and the links that brought them.
    pub late: Vec<(PeerId, Received)>,
    /// Peers that went while it did not.
    pub left: Vec<Left>,
}

/// A shared receive context.
pub(crate) struct SharedRx {
    books: Books,
    /// Default flags of its receives.
    pub flags: OpFlags,
    /// A receive may name a source: then it is refused, as we cannot do that; else the source is ignored.
    pub directed: bool,
    /// Endpoints bound to it.
    pub members: usize,
}

fn key(args: &RecvArgs<'_>) -> Key {
    let (tag, ignore) = if args.tagged { (args.tag, args.ignore) } else { (0, u64::MAX) };
    Key { tag, ignore, source: None }
}

impl SharedRx {
    /// One that nothing was posted to.
    pub fn new(flags: OpFlags, directed: bool) -> SharedRx {
        SharedRx { books: Books::new(), flags, directed, members: 0 }
    }

    /// The endpoint (its index) whose message a receive would get now, or that has the message which it claims.
    pub fn owner(&mut self, args: &RecvArgs<'_>, flags: OpFlags) -> Option<u32> {
        if flags.contains(OpFlags::CLAIM) && !flags.contains(OpFlags::PEEK) {
            return self.books.claimed.get(&args.ctx).map(|c| c.message().owner);
        }
        let unexpected = &mut self.books.matcher(args.tagged).unexpected;
        let found = unexpected.find(&key(args))?;
        unexpected.get(found).map(|m: &HeldMsg| m.owner)
    }

    /// Posts a receive that no message waits for.
    pub fn post(&mut self, args: &RecvArgs<'_>, report: bool) {
        let req = request(args.ctx, report, args.iov.into(), None);
        self.books.matcher(args.tagged).posted.post(key(args), Wanted::Once(req));
    }

    /// A buffer for many messages; [`post_multi`](Self::post_multi) follows, or it is used up.
    pub fn new_multi(&mut self, args: &RecvArgs<'_>, report: bool) -> Result<usize> {
        self.books.new_multi(args, report)
    }

    /// Posts buffer `at`.
    pub fn post_multi(&mut self, args: &RecvArgs<'_>, at: usize) {
        self.books.matcher(args.tagged).posted.post(key(args), Wanted::Multi(at));
    }

    /// Takes a posted receive back.
    pub fn withdraw(&mut self, ctx: UserCtx) -> Option<impl FnOnce(&Endpoint, &mut Out<'_>) + use<>> {
        let withdrawn: Withdrawn = self.books.withdraw(ctx, |_, _| true)?;
        Some(move |ep: &Endpoint, out: &mut Out<'_>| ep.cancelled(out, ctx, &withdrawn))
    }

    /// Smallest rest of a multi-receive buffer that is still used.
    pub fn min_multi_recv(&mut self) -> &mut usize {
        &mut self.books.min_multi_recv
    }
}

impl Endpoint {
    /// Receives with the books of a context from now on.
    ///
    /// # Errors
    /// [`Error::BadState`] if it does already, or is enabled.
    pub(crate) fn join(&mut self, context: usize) -> Result<()> {
        if self.member.is_some() || self.name.is_some() {
            return Err(Error::BadState);
        }
        self.report.share();
        self.member = Some(Member { context, lent: false, late: Vec::new(), left: Vec::new() });
        Ok(())
    }

    /// The context it is bound to.
    #[inline]
    pub(crate) fn context(&self) -> Option<usize> {
        self.member.as_ref().map(|m| m.context)
    }

    /// The number that messages in shared books bear.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The address vector it uses.
    pub(crate) fn shares_vector_with(&self, other: &Endpoint) -> bool {
        match (&self.av, &other.av) {
            (Some(a), Some(b)) => std::sync::Arc::ptr_eq(a.vector(), b.vector()),
            _ => true,
        }
    }

    /// Whether something happened that the context's books do not know yet.
    pub(crate) fn owes_books(&self) -> bool {
        self.member.as_ref().is_some_and(|member| !member.late.is_empty() || !member.left.is_empty())
    }

    /// Gets the context's books; [`give_back`](Self::give_back) must follow.
    pub(crate) fn lend(&mut self, out: &mut Out<'_>, context: &mut SharedRx) {
        core::mem::swap(&mut self.books, &mut context.books);
        let Some(member) = &mut self.member else { return };
        member.lent = true;
        if !member.late.is_empty() || !member.left.is_empty() {
            self.bring_up_to_date(out);
        }
    }

    /// Tells the books, which have just come, what happened while they were not here.
    #[cold]
    fn bring_up_to_date(&mut self, out: &mut Out<'_>) {
        let Some(member) = &mut self.member else { return };
        let (late, left) = (core::mem::take(&mut member.late), core::mem::take(&mut member.left));
        for (via, received) in late {
            self.received(out, via, received);
        }
        for left in left {
            self.clear_out(out, left);
        }
    }

    /// Returns what was lent.
    pub(crate) fn give_back(&mut self, context: &mut SharedRx) {
        core::mem::swap(&mut self.books, &mut context.books);
        if let Some(member) = &mut self.member {
            member.lent = false;
        }
    }

    /// A receive of the context, which gets a message of this endpoint or looks for one. The books are lent.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Invalid`] for a second reservation under one context.
    pub(crate) fn recv_shared(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>) -> Result<()> {
        let reserves = args.flags.is_some_and(|f| f.contains(OpFlags::PEEK | OpFlags::CLAIM));
        if reserves && self.books.claimed.contains_key(&args.ctx) {
            // The first message may be another endpoint's, which alone could drop it.
            return Err(Error::Invalid);
        }
        self.recv(out, &RecvArgs { from: Addr::UNSPEC, ..*args })
    }

    /// Messages that came to this endpoint go to buffer `at`, as long as they are the oldest. Whether it is used up.
    pub(crate) fn fill_shared(&mut self, out: &mut Out<'_>, args: &RecvArgs<'_>, at: usize) -> bool {
        self.fill_multi(out, args.tagged, &key(args), at)
    }

    /// Takes out of the lent books what is this endpoint's: it closes.
    pub(crate) fn leave(&mut self, out: &mut Out<'_>) {
        let owner = self.index;
        self.books.retain(|msg| msg.owner != owner);
        for id in self.peers.ids() {
            let peer = self.peers.get_mut(id);
            for (req, _) in peer.streams.abort().recvs.into_iter().chain(peer.copies.abort().recvs) {
                if let Some(multi) = req.special.multi() {
                    recv::abandon(&mut self.books.multis, &self.report, out, multi.index());
                }
            }
        }
    }
}
