//! Striping: what was asked for of a long message is cut into pieces, which leave by all connections of the pair, each as it has room
//! (`docs/adr/0021-lanes.md`).
//!
//! All of it is behind the lock of the first connection, which owns the lanes. A lane's own lock is taken inside of that one, never the other way round.

use super::Bulk;
use super::connection::{Connection, Halves, Read};
use super::lane::{Lane, Seen, Stand};
use super::lanes::Policy;
use super::lessons::{By, Lanes};
use super::meter::{MUCH, Meter};
use super::outgoing::Outgoing;
use super::zerocopy::Sums;
use crate::error::Error;
use crate::mem::user::UserIov;
use crate::sys::clock::Clock;
use crate::sys::{host, tcp};
use crate::transport::Tale;
use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a piece: long beside what a frame costs, short beside what is in flight.
pub(super) const PIECE: usize = 256 << 10;
/// Shortest part that goes in pieces.
const SHORTEST: usize = 2 * PIECE;
/// Nanoseconds within which a lane must be connected, and asking must be answered.
const OPENING: u64 = 10_000_000_000;
/// Nanoseconds without a look after which whoever looks was away: looks are half a second apart, and some later for who sleeps.
const AWAY: u64 = 2_000_000_000;
/// Most reads of the first connection after a lane broke: what a large receive buffer may hold, by 8 KiB.
const REST: u32 = 8192;

/// A part of which pieces are still to be handed out.
struct Part {
    id: u32,
    /// All of the message.
    iov: UserIov,
    /// Where the next piece begins, and where the part ends.
    at: usize,
    end: usize,
}

/// The lanes of a pair, and what leaves by them.
pub(super) struct Bundle {
    policy: Policy,
    /// Where the other side listens, if it was us who called: then we call for lanes, too.
    reached: Option<SocketAddr>,
    /// The other side does so if it has called as well, and both calls are this connection.
    yields: bool,
    /// By which the listener knows lanes; 0: there is none yet.
    token: u64,
    /// Connections that the listener has allowed, the first one included, and that this side has asked for, and since when (0: not looked at yet).
    allowed: usize,
    asked: usize,
    asked_since: u64,
    /// When it was looked after last.
    looked_at: u64,
    lanes: Vec<Lane>,
    /// A lane broke, and the first connection was read so often since.
    rest: u32,
    parts: VecDeque<Part>,
    /// Pieces that have not left, of each message.
    open: FxHashMap<u32, usize>,
    /// Who gets the next piece.
    turn: usize,
    /// The endpoint closes: lanes get nothing more.
    closes: bool,
    meter: Meter,
    /// Bytes taken since nothing was under way, whether they were many the time before, and bytes handed out in all.
    burst: usize,
    long_before: bool,
    handed: u64,
    /// Bytes taken in all, and whether what others found of the link was looked up, and who that was.
    taken: usize,
    looked_up: bool,
    began_by: Option<By>,
    /// Trials that were over when it was told last what they found.
    told: usize,
}

impl Bundle {
    /// `lanes` as in `FI_RUSTMX_TCP_LANES`; `reached`: whom we called.
    pub fn new(lanes: usize, reached: Option<SocketAddr>) -> Bundle {
        Bundle {
            policy: Policy::new(lanes),
            reached,
            yields: false,
            token: 0,
            allowed: 1,
            asked: 1,
            asked_since: 0,
            looked_at: 0,
            lanes: Vec::new(),
            rest: 0,
            parts: VecDeque::new(),
            open: FxHashMap::default(),
            turn: 0,
            closes: false,
            meter: Meter::new(),
            burst: 0,
            long_before: false,
            handed: 0,
            taken: 0,
            looked_up: false,
            began_by: None,
            told: 0,
        }
    }

    /// Whether it is the other side that calls for lanes if it asks for some: then it has called as well.
    pub fn may_yield(&mut self, yields: bool) {
        self.yields = yields;
    }

    /// Takes a part that was asked for, if it is long enough.
    fn take(&mut self, bulk: &Bulk<'_>) -> bool {
        let (at, end) = (bulk.skip, bulk.skip + bulk.len);
        if bulk.promised > 0 || bulk.len < SHORTEST || self.policy.limit() < 2 {
            return false;
        }
        if self.open.is_empty() {
            self.long_before = self.burst >= MUCH;
            self.burst = 0;
        }
        self.burst += end - at;
        self.taken = self.taken.saturating_add(end - at);
        // It counts as a piece that has not left until there is nothing of it to be handed out.
        *self.open.entry(bulk.id).or_default() += 1;
        self.parts.push_back(Part { id: bulk.id, iov: bulk.iov.into(), at, end });
        true
    }

    /// Connections by which pieces may leave now. Another number than the best one known is tried only where it can be measured.
    fn width(&self) -> usize {
        let width = if self.tries() { self.policy.width() } else { self.policy.kept() };
        if self.closes { 1 } else { width.min(1 + self.open_lanes().count()) }
    }

    /// Whether what is sent is long enough to be measured, by what is known of it.
    fn tries(&self) -> bool {
        self.burst >= MUCH || self.long_before
    }

    fn open_lanes(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.lanes.iter().filter(|lane| lane.stand == Stand::Open).map(|lane| &lane.carrier)
    }

    /// A piece of `id` has left. Whether that was the last one.
    fn left(&mut self, id: u32) -> bool {
        let Some(open) = self.open.get_mut(&id) else { return false };
        *open -= 1;
        let whole = *open == 0;
        if whole {
            self.open.remove(&id);
        }
        whole
    }

    /// Lanes that the two agree about, we are to call for, and have not called for.
    fn missing(&self) -> usize {
        if self.reached.is_some() && !self.closes { self.allowed.saturating_sub(1 + self.lanes.len()) } else { 0 }
    }

    /// A lane did not open, or was refused: more than there are cannot be had.
    fn failed(&mut self) {
        self.policy.cap(1 + self.lanes.len());
        self.allowed = self.allowed.min(1 + self.lanes.len());
    }

    /// Whether the other side is to hear that more lanes are wanted: how many connections in all.
    fn wish(&mut self) -> Option<usize> {
        let width = self.policy.width();
        let news = !self.parts.is_empty() && width > self.allowed && width > self.asked;
        news.then(|| {
            (self.asked, self.asked_since) = (width, 0);
            width
        })
    }

    /// Hands out pieces to whoever has room, and takes note of what has left: `first.done` gets messages of which that is all.
    fn hand_out(&mut self, first: &mut Outgoing) -> Result<(), Error> {
        loop {
            let mut left: Vec<u32> = first.pieces.drain(..).collect();
            for carrier in self.open_lanes() {
                carrier.take_pieces(&mut left)?;
            }
            for id in left {
                if self.left(id) {
                    first.done.push_back(id);
                }
            }
            if !self.give(first) {
                return Ok(());
            }
        }
    }

    /// One piece to one connection that has room. Whether there was a piece, and such a connection.
    fn give(&mut self, first: &mut Outgoing) -> bool {
        let width = self.width();
        let Some(part) = self.parts.front() else { return false };
        let lanes: Vec<Arc<Connection>> = self.open_lanes().take(width - 1).cloned().collect();
        let posted = |at: usize| if at == 0 { first.posted() } else { lanes[at - 1].posted() };
        let Some(at) = (0..width).map(|i| (self.turn + i) % width).find(|at| posted(*at) < PIECE) else { return false };
        // One connection needs no pieces.
        let len = (part.end - part.at).min(if width == 1 { usize::MAX } else { PIECE });
        let (id, whole) = (part.id, part.at + len == part.end);
        let bulk = Bulk { id, iov: &part.iov, skip: part.at, len, promised: 0 };
        if at == 0 {
            first.post(bulk, true);
        } else {
            let carrier = &lanes[at - 1];
            carrier.post_piece(bulk);
            self.lanes.iter_mut().filter(|lane| Arc::ptr_eq(&lane.carrier, carrier)).for_each(|lane| lane.loaded = true);
        }
        self.turn = at + 1;
        self.handed += len as u64;
        if self.tries() && width == self.policy.width() {
            self.policy.sends(len, || self.meter.now());
        }
        *self.open.entry(id).or_default() += 1;
        if whole {
            self.parts.pop_front();
            self.left(id);
        } else if let Some(part) = self.parts.front_mut() {
            part.at += len;
        }
        true
    }

    /// Measures how quickly bytes arrive, if the policy wants to know. `flying`: bytes of the first connection that have not arrived.
    fn measure(&mut self, flying: impl Fn() -> usize) {
        if !self.policy.measures() || self.burst < MUCH {
            return self.meter.stop();
        }
        if self.open.is_empty() && !self.meter.runs() {
            return;
        }
        let (now, width) = (self.meter.now(), self.width());
        if !self.policy.is_curious(now) || width != self.policy.width() {
            return self.meter.stop();
        }
        // What more of them were given before is still arriving, perhaps for a tenth of a second, and would count for fewer.
        if self.open_lanes().skip(width - 1).any(|lane| lane.flying() > 0) {
            return self.meter.stop();
        }
        let lanes = &self.lanes;
        let flying = || (flying() + lanes.iter().map(|lane| lane.carrier.flying()).sum::<usize>()) as u64;
        if let Some((bytes, nanos)) = self.meter.look(now, width, self.handed, flying) {
            self.policy.sample(width, bytes, nanos, now);
        }
    }

    /// What the other side says: how many connections there are to be, and the token if it is the listener.
    fn hear(&mut self, count: usize, token: u64, random: impl FnOnce() -> u64) -> Option<(usize, u64)> {
        let count = count.min(self.policy.limit());
        if count < 2 {
            return None;
        }
        // Who asks takes himself for the caller. If we do, too, one of us is no caller any more as soon as he is asked.
        if self.reached.is_some() && token == 0 && !self.yields {
            let asks = count > self.asked;
            (self.asked, self.asked_since) = if asks { (count, 0) } else { (self.asked, self.asked_since) };
            return asks.then_some((count, 0));
        }
        self.reached = self.reached.filter(|_| token != 0);
        self.allowed = self.allowed.max(count);
        if self.reached.is_some() {
            self.token = token;
            return None;
        }
        if self.token == 0 {
            self.token = random();
        }
        Some((count, self.token))
    }

    /// Lanes that are not connected in time are given up, and so is asking. Not a lane that has our hello: the other side may compute, and it counts as open
    /// there as soon as that is read.
    fn look_after(&mut self, now: u64) {
        let before = self.lanes.len();
        if now.saturating_sub(std::mem::replace(&mut self.looked_at, now)) > AWAY {
            // Nobody looked for long: what is waited for may be there.
            self.asked_since = 0;
            self.lanes.iter_mut().for_each(|lane| lane.since = 0);
        }
        self.lanes.retain_mut(|lane| {
            lane.since = if lane.since == 0 { now } else { lane.since };
            lane.stand != Stand::Dialing || now.saturating_sub(lane.since) < OPENING
        });
        self.asked_since = if self.asked_since == 0 { now } else { self.asked_since };
        let unheard = self.asked > 1 + self.lanes.len() && now.saturating_sub(self.asked_since) >= OPENING;
        if self.lanes.len() < before || unheard {
            self.failed();
        }
    }

    /// Whether what others found of the link is to be looked up: once, when so much was to be sent that further connections can be worth opening.
    fn is_to_look_up(&mut self) -> bool {
        let now = !self.looked_up && self.taken >= MUCH && self.policy.measures();
        self.looked_up |= now;
        now
    }

    /// What it found out since this was asked last.
    pub fn news(&mut self) -> Option<Lanes> {
        let trials = self.policy.trials();
        let found = (trials > self.told).then(|| self.policy.found())?;
        self.told = trials;
        found
    }

    /// By how many connections long messages go, and why, and what left without a copy by those of them that are ours; nothing if there were none.
    pub fn tell(&self, sums: &mut Sums, link: Option<Arc<str>>) {
        if self.taken == 0 {
            return;
        }
        self.lanes.iter().for_each(|lane| lane.carrier.add_copies_to(sums));
        let (number, found) = (self.policy.kept(), self.policy.trials() > 0);
        let by = if found { Some(By::Here) } else { self.began_by };
        let why = match self.policy.fixed() {
            Some(fixed) => format!("FI_RUSTMX_TCP_LANES={fixed}"),
            None if by.is_none() && self.policy.was_in_vain() => {
                "what was sent arrived too soon to measure whether more connections carry more".into()
            }
            None if by.is_none() => {
                "too few long messages were sent at a time to know whether more connections carry more".into()
            }
            None => Lanes { number, rates: self.policy.rates() }.to_string(),
        };
        sums.tell(&why.clone(), Tale { about: "lanes", on: number > 1, connections: 1, why, link, by, number: Some(number) });
    }

    /// Bytes of memory, and system resources, are given back.
    fn forget(&mut self, clock: &Clock) {
        self.lanes.drain(..).for_each(|lane| lane.carrier.let_go(clock));
        self.parts.clear();
        self.open.clear();
    }
}

/// The first connection of a pair.
impl Connection {
    /// Sends a part in pieces, if it is for that. Whether it does.
    pub(super) fn stripe(&self, halves: &mut Halves, bulk: &Bulk<'_>) -> bool {
        let Some(bundle) = halves.bundle.as_mut() else { return false };
        if !bundle.take(bulk) {
            return false;
        }
        if bundle.is_to_look_up()
            && let Some((known, by)) = self.lesson().lanes
        {
            bundle.began_by = Some(by);
            let now = bundle.meter.now();
            bundle.policy.begin_with(&known, now);
        }
        self.hand_out(halves);
        true
    }

    /// Hands out what there is room for, and asks for lanes that are wanted.
    pub(super) fn hand_out(&self, halves: &mut Halves) {
        if halves.ended.is_some() {
            return;
        }
        // Out of its place while both are used.
        let Some(mut bundle) = halves.bundle.take() else { return };
        // Before one connection takes all.
        if let Some(count) = bundle.wish() {
            let count = if bundle.reached.is_some() { Some((count, 0)) } else { bundle.hear(count, 0, || self.new_token()) };
            if let Some((count, token)) = count {
                halves.outgoing.say_lanes(count as u32, token);
                self.send(halves, false);
            }
        }
        loop {
            let handed = bundle.handed;
            if let Err(why) = bundle.hand_out(&mut halves.outgoing) {
                halves.ended.get_or_insert(why);
                break;
            }
            if handed == bundle.handed {
                break;
            }
            self.send(halves, false);
        }
        if self.office().asleep.load(Ordering::Relaxed) {
            bundle.meter.stop();
        } else {
            bundle.measure(|| halves.outgoing.posted() + tcp::unacknowledged(self.stream().fd()));
        }
        self.wants_lanes.store(bundle.missing() > 0, Ordering::Relaxed);
        if bundle.meter.runs() || bundle.missing() > 0 || !halves.outgoing.done.is_empty() {
            self.come_back(halves);
        }
        halves.bundle = Some(bundle);
    }

    /// A lane has room, or something to say.
    pub(super) fn go_on(&self) {
        self.hand_out(&mut self.halves.lock());
    }

    /// The other side's word about lanes, if it has said one.
    pub(super) fn hear_of_lanes(&self, halves: &mut Halves) {
        let Some((count, token)) = halves.incoming.lanes.take() else { return };
        let Some(bundle) = &mut halves.bundle else { return };
        if let Some((count, token)) = bundle.hear(count as usize, token, || self.new_token()) {
            halves.outgoing.say_lanes(count as u32, token);
        }
        self.send(halves, false);
        self.hand_out(halves);
    }

    /// Where to call for a lane, if one is wanted.
    pub(super) fn wanted_lane(&self) -> Option<SocketAddr> {
        let halves = self.halves.lock();
        halves.bundle.as_ref().filter(|bundle| bundle.missing() > 0)?.reached
    }

    /// No lane can be had.
    pub(super) fn no_lane(&self) {
        if let Some(bundle) = &mut self.halves.lock().bundle {
            bundle.failed();
        }
    }

    /// `carrier` is a lane of ours: one that we called for, or one that came with the word `token`. Whether it is wanted.
    pub(super) fn add_lane(self: &Arc<Connection>, carrier: &Arc<Connection>, token: Option<u64>) -> bool {
        let mut halves = self.halves.lock();
        let ended = halves.ended.is_some();
        let Halves { bundle: Some(bundle), haste, .. } = &mut *halves else { return false };
        let knows = token.is_none_or(|token| token == bundle.token && bundle.reached.is_none());
        if !knows || ended || bundle.lanes.len() + 1 >= bundle.policy.limit() {
            return false;
        }
        carrier.serve(self);
        carrier.halves.lock().haste.may_like(haste);
        bundle.lanes.push(match token {
            Some(token) => {
                carrier.greet_lane(token);
                Lane::new(carrier.clone(), Stand::Open)
            }
            None => {
                carrier.await_connection();
                Lane::new(carrier.clone(), Stand::Dialing)
            }
        });
        if token.is_some() {
            self.office().lanes.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Reads one of its lanes.
    pub(super) fn read_lane(&self, carrier: &Connection, ready: bool) -> Read {
        let mut halves = self.halves.lock();
        let Halves { bundle, incoming, outgoing, ended, .. } = &mut *halves;
        let Some(bundle) = bundle.as_mut().filter(|_| ended.is_none()) else { return Read::default() };
        carrier.hear_notices();
        let Some(at) = bundle.lanes.iter().position(|lane| lane.carrier.slot() == carrier.slot()) else { return Read::default() };
        let before = bundle.lanes[at].stand;
        let seen = bundle.lanes[at].read(bundle.token, ready, &mut incoming.expected, |id| incoming.done.push_back(id));
        if before != Stand::Open && bundle.lanes[at].stand == Stand::Open {
            self.office().lanes.fetch_add(1, Ordering::Relaxed);
        }
        match seen {
            Seen::Some(any) => return Read { any, parked: carrier.has_more(), ..Read::default() },
            Seen::Failed => {
                bundle.lanes.remove(at).carrier.let_go(&Clock::machine());
                bundle.failed();
            }
            Seen::Over if bundle.lanes[at].carrier.settle(&mut outgoing.pieces) => {
                let lane = bundle.lanes.remove(at);
                lane.carrier.add_copies_to(&mut self.office().zerocopies.lock());
                lane.carrier.let_go(&Clock::machine());
            }
            // What was under way is lost.
            Seen::Over => return self.read_rest(halves, Error::PeerGone),
            Seen::Broken(why) => return self.read_rest(halves, why),
        }
        Read { any: true, ..Read::default() }
    }

    /// A lane broke: what came by the first connection before is still read, in this turn and the next ones, and then all of it ends. Not if it was for what the
    /// other side said; and not without end, if it goes on.
    fn read_rest(&self, mut halves: MutexGuard<'_, Halves>, why: Error) -> Read {
        let Some(bundle) = halves.bundle.as_mut().filter(|_| why == Error::PeerGone) else {
            halves.ended.get_or_insert(why);
            return Read { any: true, ..Read::default() };
        };
        bundle.rest += 1;
        let goes_on = bundle.rest < REST;
        drop(halves);
        let read = self.read(true);
        if !goes_on || !read.any && !read.parked {
            self.halves.lock().ended.get_or_insert(why);
        }
        // Until then the poller says again and again that the lane has ended.
        Read { any: true, ..Read::default() }
    }

    pub(super) fn look_after_lanes(&self, now: u64) {
        if let Some(bundle) = &mut self.halves.lock().bundle {
            bundle.look_after(now);
        }
    }

    /// The endpoint closes, and nothing is to be handed out any more: says goodbye by all lanes. Whether it has left.
    pub(super) fn close_lanes(&self) -> bool {
        let lanes: Vec<(Arc<Connection>, Stand)> = {
            let mut halves = self.halves.lock();
            self.hand_out(&mut halves);
            let Some(bundle) = &mut halves.bundle else { return true };
            if !bundle.parts.is_empty() {
                return false;
            }
            bundle.closes = true;
            bundle.lanes.iter().map(|lane| (lane.carrier.clone(), lane.stand)).collect()
        };
        // Not under our lock: they take it.
        lanes.iter().fold(true, |all, (carrier, stand)| {
            carrier.halves.lock().outgoing.close_lane();
            // Who has not answered yet may hear of the end, too, but is not waited for.
            (carrier.part() || *stand != Stand::Open) && all
        })
    }

    /// Nothing is to be sent any more of what lanes have on loan.
    pub(super) fn break_off_lanes(&self, halves: &Halves) {
        halves.bundle.iter().flat_map(|bundle| &bundle.lanes).for_each(|lane| lane.carrier.break_off());
    }

    /// Nothing goes to the other side any more.
    pub(super) fn forget_lanes(&self, halves: &mut Halves, clock: &Clock) {
        if let Some(mut bundle) = halves.bundle.take() {
            self.office().tokens.lock().remove(&bundle.token);
            bundle.forget(clock);
        }
    }

    fn new_token(&self) -> u64 {
        let token = host::random() | 1;
        self.office().tokens.lock().insert(token, self.slot());
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;

    /// Another number of connections carries only where bursts are long, from the first long one on.
    #[test]
    fn short_bursts_try_nothing() {
        let mut bundle = Bundle::new(0, None);
        let mut memory = vec![0; 1 << 20];
        let iov = [of_slice(&mut memory)];
        let mut burst = |parts: u32| {
            (0..parts).for_each(|id| assert!(bundle.take(&Bulk { id, iov: &iov, skip: 0, len: 1 << 20, promised: 0 })));
            let tries = bundle.tries();
            bundle.parts.clear();
            bundle.open.clear();
            tries
        };
        assert_eq!([1, 2, 3, 1, 1, 2, 4, 2, 1].map(&mut burst), [false, false, true, true, false, false, true, true, false]);
    }

    /// Who asked and then computed for long has not waited: the answer may be there. Who looks all the time has.
    #[test]
    fn what_is_waited_for_is_waited_for_by_who_looks() {
        const SECOND: u64 = 1_000_000_000;
        let mut bundle = Bundle::new(4, None);
        bundle.asked = 4;
        for now in [1, 2, 60, 61, 119, 179, 180] {
            bundle.look_after(now * SECOND);
            assert_eq!(bundle.policy.limit(), 4, "at {now}");
        }
        (181..189).for_each(|now| bundle.look_after(now * SECOND));
        assert_eq!(bundle.policy.limit(), 4);
        bundle.look_after(189 * SECOND);
        assert_eq!(bundle.policy.limit(), 1);
    }
}
