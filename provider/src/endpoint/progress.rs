//! One turn of the endpoint, in this order: hot rings; the bell, and now and then one cold ring in turn; streams that wait for room;
//! acknowledgements that sends wait for; now and then the sockets. Never waits.

use super::peers::{Contact, next_acknowledged};
use super::{Endpoint, Out, Poll, Watch};
use crate::error::Error;
use crate::mem::atomic::Ordering;
use crate::shm::bell::SLOTS;
use crate::sys::absence::AWAY;
use crate::sys::{host, shortage};
use crate::transport::Event;
use crate::types::PeerId;
use crate::wire::header::{Header, Kind};

/// Turns between looks at the clock, if they are quick ones, and if they are not.
const CLOCK_EVERY: (u64, u64) = (64, 16);
/// Nanoseconds of a quick turn; and of a slow one, after which the clock is looked at each time: a yield can take milliseconds, and who was away is to be told from who takes long turns, of which
/// those between two looks would add up to an absence.
const QUICK: u64 = 100;
const SLOW: u64 = AWAY / CLOCK_EVERY.1;
/// Nanoseconds between looks at what has its time, at least: calls, questions, what is owed to other hosts. The sockets are looked at as often while something happens there.
pub const SOCKETS_EVERY: u64 = 20_000;
/// Nanoseconds between looks at the sockets, at most: each takes half a microsecond, which is 2 % of 20. Who calls us for the first time may wait so long.
const SOCKETS_AT_LAST: u64 = 320_000;
/// Turns between looks at the peer's progress line for an acknowledgement: a reply would have brought it by then.
const ACK_PATIENCE: u64 = 32;
/// Turns between looks at connections to other hosts, if what came by them is still to be read: each is a system call, and others must not wait long.
const LOOK_EVERY: u64 = 4;
/// Turns between looks at the next cold ring.
const TURN_EVERY: u64 = 8;
/// Turns that a hot ring must have been idle to give its place to another.
const COOL_AFTER: u64 = 256;

impl Poll {
    /// The clock says `now` at the end of a turn; `empty`: no hot ring had anything when it began.
    fn read_clock(&mut self, now: u64, empty: bool) {
        let took = now.saturating_sub(self.looked_at);
        let turns = self.tick - std::mem::replace(&mut self.clock_tick, self.tick);
        if empty {
            // Not `now`: this thread may have lost its core since it looked at them.
            self.empty_at = self.looked_at;
        }
        self.looked_at = now;
        let every = match took {
            _ if took > turns * SLOW => 1,
            _ if took < CLOCK_EVERY.0 * QUICK && turns >= CLOCK_EVERY.1 => CLOCK_EVERY.0,
            _ => CLOCK_EVERY.1,
        };
        self.clock_at = self.tick + every;
    }

    /// Whether the clock, which says `now`, tells that there was no turn for long while something that was noted was here; `notes`: how often that was, up to now. (Who sleeps is woken if there is something to do.)
    fn was_away(&mut self, now: u64, notes: u64) -> bool {
        let noted = notes != std::mem::replace(&mut self.notes, notes);
        let slept = std::mem::take(&mut self.slept);
        noted && !slept && self.looked_at != 0 && now.saturating_sub(self.looked_at) > AWAY
    }

    /// There is another hot ring, into which nobody has looked yet.
    fn add_hot(&mut self, watch: Option<Watch>) {
        self.hot.extend(watch);
        self.empty_at = 0;
    }

    /// The time after which all was written that is in a ring now, hot or not; 0: none is known.
    #[inline]
    pub(super) fn empty_at(&self, hot: bool) -> u64 {
        if hot { self.empty_at } else { 0 }
    }
}

impl Endpoint {
    /// Makes progress. Returns how much there was to do; 0 is an idle turn.
    #[inline]
    pub(crate) fn progress(&mut self, out: &mut Out<'_>) -> usize {
        let mut work = 0;
        if self.poll.network {
            let look = !std::mem::take(&mut self.poll.behind) || self.poll.tick.is_multiple_of(LOOK_EVERY);
            let (came, held_up) = self.turn_network(out, look);
            work += came;
            if held_up {
                // Payload is here, and waits for its envelope to be read. What it completes is told before anything else is looked for.
                work += self.drain_hot(out);
                // Mostly that has put it where it belongs.
                if self.is_held_up() {
                    work += self.turn_network(out, false).0;
                }
            }
        }
        // One load a ring and no branch: most turns find nothing.
        let news = self.poll.hot.iter().fold(0, |news, watch| news | watch.word.get().load(Ordering::Relaxed));
        if news != 0 {
            work += self.drain_hot(out);
        }
        if !self.poll.cold.is_empty()
            && (self.bell.as_ref().is_some_and(|own| own.bell.rung())
                || self.poll.tick.is_multiple_of(TURN_EVERY) && self.turn_is_ready())
        {
            work += self.poll_cold(out);
        }
        if !self.poll.busy.is_empty() {
            work += self.push_busy(out);
        }
        self.poll.tick += 1;
        if work == 0 {
            self.poll.idle += 1
        } else {
            self.poll.idle = 0
        }
        if !self.poll.ack_waiters.is_empty() {
            work += self.collect_acks(out, self.poll.tick.is_multiple_of(ACK_PATIENCE));
        }
        if self.poll.tick >= self.poll.clock_at {
            work += self.look_at_clock(out, news == 0);
        }
        if work == 0 && self.poll.pauses {
            core::hint::spin_loop();
        }
        work
    }

    /// Whether something that may have ended for the application is kept back until there are further turns.
    pub(crate) fn keeps_back(&self) -> bool {
        !self.poll.dialing.is_empty()
            || !self.poll.busy.is_empty()
            || self.door.as_ref().is_some_and(|door| door.keeps_back())
            || self.has_copies()
    }

    /// Whether copies of what clients take for sent are here. Peers are asked one by one only after there was one.
    fn has_copies(&self) -> bool {
        let has = self.copied.get() && self.peers.ids().any(|id| !self.peers.get(id).kept.is_empty());
        self.copied.set(has);
        has
    }

    #[cold]
    fn is_held_up(&self) -> bool {
        self.door.as_ref().is_some_and(|door| door.is_held_up())
    }

    #[inline]
    fn drain_hot(&mut self, out: &mut Out<'_>) -> usize {
        let (mut work, mut i) = (0, 0);
        while let Some(watch) = self.poll.hot.get(i) {
            let word = watch.word.get().load(Ordering::Relaxed);
            if word != 0 {
                let id = watch.id;
                // Nothing is lost if that guess is wrong.
                let longer = Header::may_be(word, Kind::Eager);
                work += match if longer { self.take_longer(out, i) } else { self.take_short(out, i) } {
                    0 => self.drain(out, id),
                    taken => taken,
                };
            }
            i += 1;
        }
        work
    }

    /// Whether idle polls should give up the core.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowd.is_crowded()
    }

    /// Counts a core given up.
    pub(crate) fn yielded(&mut self) {
        self.stats.yields += 1;
    }

    /// Whether the cold ring whose turn it is has something; if not, the next one's turn comes.
    fn turn_is_ready(&mut self) -> bool {
        let turn = self.poll.turn;
        let ready = self.poll.cold.get(turn).is_some_and(|id| self.peers.get(*id).link.as_ref().is_some_and(|l| l.ready()));
        if !ready {
            self.pass_turn();
        }
        ready
    }

    fn pass_turn(&mut self) {
        let next = self.poll.turn + 1;
        self.poll.turn = if next < self.poll.cold.len() { next } else { 0 };
    }

    #[inline(never)]
    fn poll_cold(&mut self, out: &mut Out<'_>) -> usize {
        let mut ready = smallvec::SmallVec::<[PeerId; 8]>::new();
        if let Some(own) = &self.bell {
            let peers = self.peers.len() as u32;
            own.bell.take(|slot| ready.extend((slot..peers).step_by(SLOTS as usize).map(PeerId)));
        }
        ready.extend(self.poll.cold.get(self.poll.turn).copied());
        self.pass_turn();
        let mut work = 0;
        for id in ready {
            if !self.peers.get(id).link.as_ref().is_some_and(|l| l.ready()) {
                continue;
            }
            work += self.drain(out, id);
            let peer = self.peers.get(id);
            if !peer.hot
                && let Some(own) = &self.bell
                && peer.link.as_ref().is_some_and(|l| l.ready())
            {
                // Its turn was over before its ring was empty.
                own.bell.ring(id.0);
            }
            self.warm(id);
        }
        work
    }

    /// Records of a peer came by the network. Nobody has rung for them, and if its ring is a cold one its turn would be long in coming.
    fn ring_for(&mut self, id: PeerId) {
        let peer = self.peers.get(id);
        if let Some(own) = &self.bell
            && !peer.hot
            && peer.link.as_ref().is_some_and(|l| l.ready())
        {
            own.bell.ring(id.0);
        }
    }

    /// Lets a cold ring that had something take the place of a hot one that had nothing for long.
    fn warm(&mut self, id: PeerId) {
        let tick = self.poll.tick;
        let Some(at) = (0..self.poll.hot.len()).min_by_key(|i| self.peers.get(self.poll.hot[*i].id).last_active) else { return };
        let cool = self.poll.hot[at].id;
        if self.peers.get(id).hot || tick - self.peers.get(cool).last_active < COOL_AFTER {
            return;
        }
        self.poll.cold.retain(|c| *c != id);
        self.poll.cold.push(cool);
        let Some(watch) = self.watch(id) else { return };
        self.poll.hot.swap_remove(at);
        self.poll.add_hot(Some(watch));
        for (peer, hot) in [(id, true), (cool, false)] {
            let peer = self.peers.get_mut(peer);
            peer.hot = hot;
            if let Some(link) = &mut peer.link {
                link.set_hot(hot);
            }
        }
    }

    fn watch(&self, id: PeerId) -> Option<Watch> {
        let (ring, word) = self.peers.get(id).link.as_ref()?.watch()?;
        Some(Watch { id, word: ring.single(word) })
    }

    /// The peer's ring can be polled from now on.
    pub(super) fn start_polling(&mut self, id: PeerId) {
        let hot = self.poll.hot.len() < self.config.hot_peers as usize;
        if hot {
            let watch = self.watch(id);
            self.poll.add_hot(watch);
        } else {
            self.poll.cold.push(id)
        }
        let (tick, nap) = (self.poll.tick, self.nap);
        let peer = self.peers.get_mut(id);
        peer.hot = hot;
        peer.last_active = tick;
        if let Some(link) = &mut peer.link {
            link.set_hot(hot);
        }
        self.tell_nap(id, nap);
    }

    /// The peer's ring is not polled any more.
    pub(super) fn stop_polling(&mut self, id: PeerId) {
        self.poll.hot.retain(|w| w.id != id);
        self.poll.cold.retain(|p| *p != id);
        self.peers.get_mut(id).hot = false;
        // A cold ring moves up.
        if self.poll.hot.len() < self.config.hot_peers as usize
            && let Some(next) = self.poll.cold.pop()
        {
            self.start_polling(next);
        }
    }

    #[inline(never)]
    pub(super) fn push_busy(&mut self, out: &mut Out<'_>) -> usize {
        let mut work = 0;
        for id in std::mem::take(&mut self.poll.busy) {
            self.peers.get_mut(id).in_busy = false;
            work += self.push(out, id);
        }
        work
    }

    /// Completes the sends that their peers have taken. `look`: reads the peers' progress lines for that.
    #[inline(never)]
    pub(super) fn collect_acks(&mut self, out: &mut Out<'_>, look: bool) -> usize {
        let mut done = 0;
        let mut i = 0;
        while let Some(&id) = self.poll.ack_waiters.get(i) {
            let peer = self.peers.get_mut(id);
            let mut sound = true;
            if let Some(link) = &mut peer.link {
                if look {
                    sound = link.refresh().is_ok();
                }
                while let Some(req) = next_acknowledged(&mut peer.await_ack, link) {
                    self.report.sent(out, &req);
                    done += 1;
                }
            }
            if !sound {
                self.depart(out, id, Error::Corrupt);
            }
            let peer = self.peers.get_mut(id);
            if peer.await_ack.is_empty() {
                peer.in_waiters = false;
                self.poll.ack_waiters.retain(|w| *w != id);
            } else {
                i += 1;
            }
        }
        done
    }

    /// `empty`: the hot rings were, when this turn began.
    #[inline(never)]
    fn look_at_clock(&mut self, out: &mut Out<'_>, empty: bool) -> usize {
        let now = self.clock.now();
        if self.poll.was_away(now, self.absence.notes()) {
            self.stats.absences += 1;
            self.absence.was_away();
        }
        self.poll.read_clock(now, empty);
        if now < self.poll.sockets_at {
            return 0;
        }
        self.poll.sockets_at = now + SOCKETS_EVERY;
        self.take_census();
        if now >= self.poll.door_at || !self.poll.dialing.is_empty() {
            return self.look_at_sockets(out, now);
        }
        if self.poll.network || !self.poll.ending.is_empty() || self.next_question().is_some() {
            return self.tend(out, now);
        }
        self.recall(out);
        0
    }

    /// Counts the local endpoints that the address vector names, when it changed.
    pub(super) fn take_census(&mut self) {
        if let Some(av) = &self.av
            && av.epoch() != self.poll.census
        {
            self.poll.census = av.epoch();
            self.crowd.named(av.count_local(host::id()));
        }
    }

    /// What comes from other hosts, and what leaves for them. As [`Door::turn`](crate::transport::Door::turn).
    #[inline(always)]
    fn turn_network(&mut self, out: &mut Out<'_>, look: bool) -> (usize, bool) {
        let Some(door) = &mut self.door else { return (0, false) };
        let (work, held_up) = door.turn(self.poll.looked_at, look, &mut self.poll.events);
        if self.poll.events.is_empty() { (work, held_up) } else { self.take_events(out, work) }
    }

    #[inline(never)]
    fn take_events(&mut self, out: &mut Out<'_>, mut work: usize) -> (usize, bool) {
        let mut events = std::mem::take(&mut self.poll.events);
        for event in events.drain(..) {
            work += self.happened(out, event);
        }
        // The memory serves again.
        self.poll.events = events;
        // Any of them may have changed that.
        (work, self.is_held_up())
    }

    /// Something at the door. Returns how much work it was.
    fn happened(&mut self, out: &mut Out<'_>, event: Event) -> usize {
        match event {
            Event::Call { line, pid, greeting } => self.called(out, line, pid, &greeting),
            // A packet that only wakes is no work: what it is about is in the ring.
            Event::Peer(id) => {
                let heard = self.heard_from(out, id);
                self.ring_for(id);
                return usize::from(heard);
            }
            Event::Own => return 0,
            Event::TurnedAway(who, why) => self.complain_of(why, || format!("turned away {who}")),
            Event::Lacking(who, why) => shortage::tell(&self.log, why, || format!("turned away {who}")),
        }
        1
    }

    /// Calls that came in, answers, ends; calls to be made again.
    pub(super) fn look_at_sockets(&mut self, out: &mut Out<'_>, now: u64) -> usize {
        let Some(door) = &mut self.door else { return 0 };
        let mut events = Vec::new();
        let something = door.poll(now, &mut events);
        // That seldom comes alone.
        let apart = if something { SOCKETS_EVERY } else { (2 * self.poll.door_every).clamp(SOCKETS_EVERY, SOCKETS_AT_LAST) };
        (self.poll.door_every, self.poll.door_at) = (apart, now + apart);
        self.take_happened(out, now, events)
    }

    /// What has its time, and what happened at the door without a look at its sockets.
    fn tend(&mut self, out: &mut Out<'_>, now: u64) -> usize {
        let Some(door) = &mut self.door else { return 0 };
        let mut events = Vec::new();
        door.tend(now, &mut events);
        self.take_happened(out, now, events)
    }

    fn take_happened(&mut self, out: &mut Out<'_>, now: u64, events: Vec<Event>) -> usize {
        self.recall(out);
        let mut work = 0;
        if !events.is_empty() {
            // Whoever sleeps must look, for what was there for all of us is taken now.
            self.get_up();
            self.report.rouse();
        }
        for event in events {
            work += self.happened(out, event);
        }
        self.poll.network = self.door.as_ref().is_some_and(|d| d.has_turns());
        for id in std::mem::take(&mut self.poll.dialing) {
            match self.peers.get(id).contact {
                Contact::Dialing { next, .. } if next <= now => self.dial(out, id, now),
                Contact::Calling { deadline } if deadline <= now => self.depart(out, id, Error::TimedOut),
                Contact::Dialing { .. } | Contact::Calling { .. } => self.poll.dialing.push(id),
                _ => {}
            }
        }
        if self.next_question().is_some_and(|at| at <= now) {
            self.ask_for_sources(out, now);
        }
        for id in std::mem::take(&mut self.poll.ending) {
            // What it sent before its end still counts.
            let drained = self.drain(out, id);
            work += drained;
            if drained > 0 {
                self.poll.ending.push(id);
            } else if matches!(self.peers.get(id).contact, Contact::Greeted | Contact::Calling { .. }) {
                self.depart(out, id, Error::PeerGone);
            }
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::shared::{Heap, SharedMem};

    #[test]
    fn the_clock_is_looked_at_the_more_often_the_longer_turns_take() {
        let (mut poll, mut now) = (Poll::default(), 1_000_000);
        let mut look = |nanos: u64| {
            let turns = poll.clock_at - poll.tick;
            (poll.tick, now) = (poll.clock_at, now + turns * nanos);
            poll.read_clock(now, false);
            poll.clock_at - poll.tick
        };
        look(0);
        // A slow one, then each; a quick one behind it proves little.
        let seen: Vec<_> = [100, 50, 50, 50, 70_000, 70_000, 50, 50, 50, 5_000, 50, 50].map(&mut look).into();
        assert_eq!(seen, [16, 64, 64, 64, 1, 1, 16, 64, 64, 16, 64, 64]);
    }

    #[test]
    fn what_is_in_a_ring_is_as_old_as_the_last_look_into_it_at_most() {
        let mut poll = Poll::default();
        poll.read_clock(1000, true);
        assert_eq!(poll.empty_at(true), 0, "between its look at the rings and that at the clock anything may have happened");
        poll.read_clock(2000, true);
        assert_eq!((poll.empty_at(true), poll.empty_at(false)), (1000, 0), "cold rings may not have been looked at");
        poll.read_clock(3000, false);
        poll.read_clock(4000, false);
        assert_eq!(poll.empty_at(true), 1000, "something was there, and more may be there");
        poll.read_clock(5000, true);
        assert_eq!(poll.empty_at(true), 4000);
        let ring = SharedMem::new(Heap::new(64));
        poll.add_hot(Some(Watch { id: PeerId(0), word: ring.single(0) }));
        assert_eq!((poll.empty_at(true), poll.hot.len()), (0, 1), "nobody has looked into that one");
        poll.read_clock(6000, true);
        assert_eq!(poll.empty_at(true), 5000);
    }
}
