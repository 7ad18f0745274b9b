//! Shared receive contexts of a domain: lends their books to the endpoints that are bound to them (`endpoint/shared.rs`).

use super::Domain;
use crate::endpoint::{Endpoint, Out, RecvArgs, SharedRx};
use crate::error::{Error, Result};
use crate::types::{Addr, EpId, OpFlags, SrxId, UserCtx};
use smallvec::SmallVec;

impl Domain {
    /// Opens a shared receive context (fi_endpoint(3), fi_srx_context) with these default flags. `directed`: its receives may name a
    /// source; such a receive is refused. Else the source is ignored.
    pub fn srx_open(&mut self, flags: OpFlags, directed: bool) -> SrxId {
        let id = self.contexts.insert(SharedRx::new(flags, directed));
        self.look_for_the_unusual();
        SrxId(id)
    }

    /// Closes a context; its receives are forgotten.
    ///
    /// # Errors
    /// [`Error::Busy`] while an endpoint is bound to it.
    pub fn srx_close(&mut self, srx: SrxId) -> Result<()> {
        match self.contexts.get(srx.0) {
            Some(c) if c.members > 0 => Err(Error::Busy),
            Some(_) => {
                self.contexts.remove(srx.0);
                self.look_for_the_unusual();
                Ok(())
            }
            None => Err(Error::Invalid),
        }
    }

    /// Lets an endpoint receive with a context.
    ///
    /// # Errors
    /// [`Error::BadState`] if it has one, or is enabled.
    pub fn ep_bind_srx(&mut self, ep: EpId, srx: SrxId) -> Result<()> {
        let context = self.contexts.get_mut(srx.0).ok_or(Error::Invalid)?;
        self.eps.get_mut(ep.0).ok_or(Error::Invalid)?.join(srx.0)?;
        context.members += 1;
        Ok(())
    }

    /// Endpoints of one context use one address vector (fi_endpoint(3)).
    pub(super) fn check_vectors(&self, ep: EpId) -> Result<()> {
        let Some(own) = self.eps.get(ep.0).filter(|e| e.context().is_some()) else { return Ok(()) };
        let mut others = self.eps.iter().filter(|(_, e)| e.context() == own.context());
        if others.all(|(_, e)| own.shares_vector_with(e)) { Ok(()) } else { Err(Error::Invalid) }
    }

    /// Smallest rest of a multi-receive buffer that is still used, in bytes.
    pub fn srx_min_multi_recv(&mut self, srx: SrxId) -> usize {
        self.contexts.get_mut(srx.0).map_or(0, |c| *c.min_multi_recv())
    }

    /// Sets it.
    pub fn srx_set_min_multi_recv(&mut self, srx: SrxId, bytes: usize) {
        if let Some(c) = self.contexts.get_mut(srx.0) {
            *c.min_multi_recv() = bytes;
        }
    }

    /// Runs `f` on an endpoint that has the books it receives with.
    pub(super) fn with_books<R>(&mut self, at: usize, f: impl FnOnce(&mut Endpoint, &mut Out<'_>) -> R) -> Option<R> {
        let out = lend!(self);
        let ep = self.eps.get_mut(at)?;
        let Some(context) = ep.context().and_then(|c| self.contexts.get_mut(c)) else { return Some(f(ep, out)) };
        ep.lend(out, context);
        let answer = f(ep, out);
        ep.give_back(context);
        Some(answer)
    }

    /// Runs `f` on every endpoint, with its books. Returns the sum of the answers.
    pub(super) fn each(&mut self, mut f: impl FnMut(&mut Endpoint, &mut Out<'_>) -> usize) -> usize {
        let mut work = 0;
        let mut at = 0;
        // Keys of a slab are dense enough; they do not change meanwhile.
        while at < self.eps.capacity() {
            work += self.with_books(at, &mut f).unwrap_or(0);
            at += 1;
        }
        work
    }

    /// Some endpoint of a context: its queue takes what belongs to no message.
    fn member(&self, srx: SrxId) -> Option<usize> {
        self.eps.iter().find(|(_, ep)| ep.context() == Some(srx.0)).map(|(at, _)| at)
    }

    fn member_of_index(&self, index: u32) -> Option<usize> {
        self.eps.iter().find(|(_, ep)| ep.index() == index).map(|(at, _)| at)
    }

    /// Posts a receive to a context, or peeks, claims, discards by its flags.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it names a source; else as [`recv`](Self::recv). Peeks need an endpoint that is bound to the context.
    pub fn srx_recv(&mut self, srx: SrxId, args: &RecvArgs<'_>) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let context = self.contexts.get(srx.0).ok_or(Error::Invalid)?;
        let flags = args.flags.unwrap_or(context.flags);
        if context.directed && args.from != Addr::UNSPEC {
            return Err(Error::Unsupported);
        }
        let args = &RecvArgs { from: Addr::UNSPEC, flags: Some(flags), ..*args };
        let probe = flags.intersects(OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD);
        if probe {
            // Who peeks in a loop must make progress by it.
            self.progress();
        }
        if self.contexts.get_mut(srx.0).is_some_and(|context| context.owner(args, flags).is_some()) {
            self.bring_books_up_to_date();
        }
        let member = self.member(srx);
        // Whoever gets the message may have a queue that tells of all.
        let report = flags.contains(OpFlags::COMPLETION);
        let context = self.contexts.get_mut(srx.0).ok_or(Error::Invalid)?;
        if flags.contains(OpFlags::MULTI_RECV) && !probe {
            return self.srx_recv_multi(srx, args, report);
        }
        let owner = context.owner(args, flags).and_then(|index| self.member_of_index(index));
        match owner.or(member.filter(|_| probe)) {
            Some(at) => self.with_books(at, |ep, out| ep.recv_shared(out, args)).unwrap_or(Err(Error::Invalid)),
            None if probe => Err(Error::BadState),
            None => {
                self.contexts[srx.0].post(args, report);
                Ok(())
            }
        }
    }

    /// Whose message is the oldest is known once the books know who has left.
    #[cold]
    fn bring_books_up_to_date(&mut self) {
        let owing: SmallVec<[usize; 4]> = self.eps.iter().filter(|(_, ep)| ep.owes_books()).map(|(at, _)| at).collect();
        for at in owing {
            self.with_books(at, |_, _| ());
        }
    }

    fn srx_recv_multi(&mut self, srx: SrxId, args: &RecvArgs<'_>, report: bool) -> Result<()> {
        let at = self.contexts[srx.0].new_multi(args, report)?;
        while let Some(index) = self.contexts[srx.0].owner(args, OpFlags::empty()) {
            let Some(owner) = self.member_of_index(index) else { break };
            if self.with_books(owner, |ep, out| ep.fill_shared(out, args, at)) == Some(true) {
                return Ok(());
            }
        }
        self.contexts[srx.0].post_multi(args, at);
        Ok(())
    }

    /// Cancels a receive posted to a context: it completes with [`Error::Cancelled`] in the queue of one of its endpoints.
    ///
    /// # Errors
    /// [`Error::NoMessage`] as for [`cancel`](Self::cancel).
    pub fn srx_cancel(&mut self, srx: SrxId, ctx: UserCtx) -> Result<()> {
        if self.owner.is_elsewhere() {
            return Err(Error::Forked);
        }
        let member = self.member(srx);
        let context = self.contexts.get_mut(srx.0).ok_or(Error::Invalid)?;
        let tell = context.withdraw(ctx).ok_or(Error::NoMessage)?;
        if let Some(ep) = member.and_then(|at| self.eps.get(at)) {
            tell(ep, lend!(self));
        }
        Ok(())
    }
}
