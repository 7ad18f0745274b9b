//! The common case, on the assumption that it is one: a message that is one record, in one piece, to a peer that is there, and one for which the oldest
//! receive waits.
//!
//! That is what most messages of most programs are, and few questions tell. What is not so is left as it was to the general way (`send.rs`, `arrive.rs`),
//! which asks all questions, and carries short messages, too: nothing holds here that does not hold there.

use super::arrive::{BUDGET, tell_acknowledged};
use super::peers::Landing;
use super::recv::Wanted;
use super::send::{Lends, SendArgs, Way, level, or_once};
use super::{Endpoint, Out, table};
use crate::mem::atomic::Ordering;
use crate::mem::user::total_len;
use crate::protocol::{Announced, OneRecord, Taken, eager::Eager, flags_of, inline::Inline};
use crate::request::{SendReq, Special};
use crate::transport::Reach;
use crate::types::{CompFlags, Level, OpFlags, PeerId};

impl Endpoint {
    /// Sends a message if it is one record in one piece, to a peer that is there, and nothing waits before it. If not, nothing has happened, but its way may be known.
    #[inline(always)]
    pub(super) fn send_short(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>) -> Result<(), Option<Way>> {
        let flags = args.flags.unwrap_or(self.attr.tx_flags);
        let (Some(av), [one]) = (&self.av, args.iov) else { return Err(None) };
        let id = self.peers.known_route(av, args.to).ok_or(None)?;
        let peer = self.peers.get_mut(id);
        if flags.contains(OpFlags::FENCE) || level(flags) == Level::Delivery || !peer.takes_at_once() {
            return Err(None);
        }
        match table(&self.selection, &self.far, peer).inline_row(one.len()) {
            Some(row) if self.send_record::<Inline>(out, args, flags, id, row) => Ok(()),
            Some(_) => Err(None),
            None => self.send_longer(out, args, flags, id),
        }
    }

    /// [`send_short`](Self::send_short) of a message that is longer and still one record, out of the way of those that count nanoseconds.
    #[inline(never)]
    fn send_longer(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>, flags: OpFlags, id: PeerId) -> Result<(), Option<Way>> {
        let len = total_len(args.iov);
        let peer = self.peers.get_mut(id);
        let table = table(&self.selection, &self.far, peer);
        let eager = table.choose_eager(len).ok_or(None)?;
        let at_once = args.inject || flags.contains(OpFlags::INJECT);
        if at_once && len > self.attr.inject_max {
            return Err(None);
        }
        let (terms, config, crowd, tick) = (self.terms, &self.config, &self.crowd, self.poll.tick);
        let (door, private) = (self.door.as_deref_mut(), &mut self.private);
        let lends = Lends { terms, door, private, config, crowd, tick, asked: None };
        // What is the caller's again when the call returns is not lent, nor left to the kernel.
        let way = if at_once { Way::copied(eager) } else { or_once(eager, table, lends, peer, (args.iov, len)) };
        if way.pick != eager || !self.send_record::<Eager>(out, args, flags, id, eager.row) {
            return Err(Some(way));
        }
        self.peers.get_mut(id).tally.count_unlent(eager.proto, len);
        Ok(())
    }

    #[inline(always)]
    fn send_record<P: OneRecord>(&mut self, out: &mut Out<'_>, args: &SendArgs<'_>, flags: OpFlags, id: PeerId, row: u8) -> bool {
        let peer = self.peers.get_mut(id);
        let (Some(link), [one]) = (&mut peer.link, args.iov) else { return false };
        let said = flags_of(args.tagged, args.data.is_some());
        if P::send(link, said, args.tag, args.data.unwrap_or(0), one).is_err() {
            return false;
        }
        peer.tally.count(row, one.len());
        let req = SendReq {
            ctx: args.ctx,
            level: level(flags),
            report: !args.inject && self.report.wants_send(flags),
            special: Special::quiet(args.inject),
            flags: CompFlags::SEND | if args.tagged { CompFlags::TAGGED } else { CompFlags::MSG },
        };
        self.report.sent(out, &req);
        true
    }

    /// Takes short messages out of the hot ring `at`, as long as each is one for which the oldest receive waits, and the ring's turn is not over. Returns how many.
    #[inline]
    pub(super) fn take_short(&mut self, out: &mut Out<'_>, at: usize) -> usize {
        self.take_records::<Inline>(out, at)
    }

    /// [`take_short`](Self::take_short) of messages that are longer and still one record each. What follows them is taken, too: it is most likely shorter, and a turn for each would cost a
    /// system call where it comes from another host.
    #[inline(never)]
    pub(super) fn take_longer(&mut self, out: &mut Out<'_>, at: usize) -> usize {
        let taken = self.take_records::<Eager>(out, at);
        if !(1..BUDGET).contains(&taken) {
            return taken;
        }
        let Some(watch) = self.poll.hot.get(at) else { return taken };
        let id = watch.id;
        let waited = self.poll.idle > 0 && self.peers.get(id).reach != Reach::Network;
        let more = !waited && watch.word.get().load(Ordering::Relaxed) != 0;
        if more { taken + self.drain(out, id) } else { taken }
    }

    #[inline(always)]
    fn take_records<P: OneRecord>(&mut self, out: &mut Out<'_>, at: usize) -> usize {
        let Some(watch) = self.poll.hot.get(at) else { return 0 };
        let id = watch.id;
        let src = self.source_of(id);
        let peer = self.peers.get_mut(id);
        let far = peer.reach == Reach::Network;
        // Both as in `drain_until_news`.
        let waited = self.poll.idle > 0 && !far;
        let budget = if waited { 1 } else { BUDGET };
        // What is at the head then was looked at once, and is not looked at again.
        // Nor are further links of a peer so common.
        if peer.landing.is_some() || peer.is_alias {
            return 0;
        }
        let Some(link) = &mut peer.link else { return 0 };
        let mut taken = 0;
        while taken < budget {
            let Some((header, env)) = P::at_head(link, waited) else { break };
            if !peer.await_ack.is_empty() {
                tell_acknowledged(&self.report, out, &mut peer.await_ack, link);
            }
            let books = &mut self.books;
            let posted = if env.tagged { &mut books.tagged.posted } else { &mut books.untagged.posted };
            let mut begun = false;
            let served = posted.serve_oldest(env.tag, peer.canonical, |wanted| {
                let Wanted::Once(req) = wanted else { return false };
                match P::place_at_head(link, &header, req) {
                    Taken::Whole(placed) => {
                        self.report.received(out, req, &env, placed, src, CompFlags::empty());
                        true
                    }
                    Taken::Begun => {
                        begun = true;
                        false
                    }
                    Taken::Not => false,
                }
            });
            if P::BEGINS
                && begun
                && let Some(Wanted::Once(req)) = posted.take_oldest()
            {
                peer.landing = Some(Landing::Eager { req, said: Announced { env, body: () }, header });
            }
            if !served {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.stats.received += taken as u64;
            self.poll.behind |= far && taken == budget;
            peer.last_active = self.poll.tick;
            link.count_heard(taken);
            link.tell();
            link.tell_of_room();
            if let (Some((ring, word)), Some(watch)) = (link.watch(), self.poll.hot.get_mut(at)) {
                watch.word.aim(ring, word);
            }
            if peer.has_work() {
                self.push(out, id);
            }
        }
        taken
    }
}
