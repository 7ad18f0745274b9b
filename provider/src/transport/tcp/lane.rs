//! One lane: a further connection of a pair, which carries pieces of long messages that were asked for, and nothing else.
//!
//! ```text
//! caller                                    listener
//!   lanes(count, 0)   ───────────────────▶  by the first connection: may I?
//!         ◀───────────────────────────────  lanes(count, token), or nothing; also unasked
//!   connect, proof of the key, hello(token) ──▶ known? else a refusal, and the end
//!         ◀───────────────────────────────  hello(token)
//!   payload … goodbye ◀──────────────────▶  payload … goodbye
//! ```
//! The token is 64 random bits, which only the two know. Who says another one is a stranger. What carries a lane is a [`Connection`] without a ring
//! and without a peer of its own; the first connection of the pair owns it, and takes what it brings.

use super::Bulk;
use super::connection::Connection;
use super::expected::{By, Expectations};
use super::outgoing::Outgoing;
use super::stop::{Stop, came};
use super::stream::Stream;
use super::zerocopy::{Sums, ZeroCopy};
use crate::error::Error;
use crate::mem::shared::{Heap, SharedMem};
use crate::sys::clock::Clock;
use crate::sys::tcp::{self, Piece};
use crate::wire::frame::{Body, FRAME_HEAD, Frame};
use crate::wire::hello::Hello;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// Bytes that one call takes, so that others get their turn.
const TURN: usize = 1 << 20;
/// Most pieces of application memory in one system call.
const SEGMENTS: usize = 32;

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// It is being connected, by us.
    Dialing,
    /// We have said hello, or will when the key is proved.
    Greeted,
    /// It carries.
    Open,
}

/// What a look at a lane came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// So much: whether there was something.
    Some(bool),
    /// It never opened, or ended before anything went by it.
    Failed,
    /// The other side has said goodbye and gone.
    Over,
    /// The whole connection is at its end.
    Broken(Error),
}

/// A lane, as the first connection of the pair has it.
pub(super) struct Lane {
    pub carrier: Arc<Connection>,
    pub stand: Stand,
    incoming: LaneIn,
    /// It was given something to carry.
    pub loaded: bool,
    /// When it was first looked after; 0: not yet.
    pub since: u64,
}

impl Lane {
    pub fn new(carrier: Arc<Connection>, stand: Stand) -> Lane {
        Lane { carrier, stand, incoming: LaneIn::new(), loaded: false, since: 0 }
    }

    /// Reads it, on behalf of the first connection: what comes goes to what `expected` says; `done` gets parts that are all there.
    pub fn read(&mut self, token: u64, ready: bool, expected: &mut Expectations, mut done: impl FnMut(u32)) -> Seen {
        if self.stand == Stand::Dialing {
            match tcp::connected(self.carrier.stream().fd()) {
                Ok(false) => return Seen::Some(false),
                Err(_) => return Seen::Failed,
                Ok(true) => {
                    self.stand = Stand::Greeted;
                    self.carrier.greet_lane(token);
                }
            }
        }
        if self.stand == Stand::Greeted {
            match self.carrier.hear_lane(token) {
                None => return Seen::Some(false),
                Some(false) => return Seen::Failed,
                Some(true) => self.stand = Stand::Open,
            }
        }
        match self.incoming.pump(self.carrier.stream(), ready, expected, &mut done) {
            Ok(any) => Seen::Some(any),
            Err(Stop::Ended) if self.incoming.said_goodbye => Seen::Over,
            // Nothing was lost with it: the other side has given it up, or something on the way has.
            Err(Stop::Ended) if !self.loaded && !self.incoming.heard => Seen::Failed,
            // A key was proved before, or none is asked for.
            Err(Stop::Keyed) => Seen::Broken(Error::PeerGone),
            Err(stop) => Seen::Broken(stop.into()),
        }
    }
}

/// Where the stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a head.
    Head(usize),
    /// In payload, which belongs at `start` of the part that is expected.
    Payload { id: u32, start: usize, len: usize, got: usize },
}

/// What arrives by a lane. Nothing that is read from a head is believed.
struct LaneIn {
    at: At,
    head: SharedMem,
    /// A frame came, or began to.
    heard: bool,
    said_goodbye: bool,
}

impl LaneIn {
    fn new() -> LaneIn {
        LaneIn { at: At::Head(0), head: SharedMem::new(Heap::new(FRAME_HEAD)), heard: false, said_goodbye: false }
    }

    fn pump(
        &mut self,
        stream: &Stream,
        ready: bool,
        expected: &mut Expectations,
        done: &mut impl FnMut(u32),
    ) -> Result<bool, Stop> {
        let (mut taken, mut dry) = (0, !ready && !stream.has_more());
        while taken < TURN && !dry {
            let Some((asked, got)) = self.receive(stream, expected, done)? else { break };
            taken += got;
            dry = got < asked;
        }
        Ok(taken > 0)
    }

    /// One call: the rest of the body, and the next head. The bytes that there was room for, and those that came; `None`: none.
    fn receive(
        &mut self,
        stream: &Stream,
        expected: &mut Expectations,
        done: &mut impl FnMut(u32),
    ) -> Result<Option<(usize, usize)>, Stop> {
        let mut pieces = SmallVec::<[Piece<'_>; 8]>::new();
        let (mut body, mut left, mut head) = (0, 0, FRAME_HEAD);
        match self.at {
            At::Head(got) => head -= got,
            At::Payload { id, start, len, got } => {
                left = len - got;
                if let Some(part) = expected.get(id) {
                    let place = part.place(start + got, left);
                    pieces.extend(place.iter().take(SEGMENTS).copied().map(Piece::User));
                }
                body = pieces.iter().map(Piece::len).sum();
            }
        }
        // A body in too many pieces is asked for by itself.
        if body == left {
            pieces.push(Piece::Own(&self.head, FRAME_HEAD - head, head));
        } else {
            head = 0;
        }
        let Some(got) = came(stream.recv(&pieces))? else { return Ok(None) };
        drop(pieces);
        let of_body = got.min(body);
        if let At::Payload { id, start, len, got: before } = self.at {
            self.at = if of_body == left { At::Head(0) } else { At::Payload { id, start, len, got: before + of_body } };
            if expected.came(id, of_body) {
                done(id);
            }
        }
        if got > of_body {
            self.head_came(got - of_body, expected)?;
        }
        Ok(Some((body + head, got)))
    }

    /// `n` further bytes of a head are here.
    fn head_came(&mut self, n: usize, expected: &mut Expectations) -> Result<(), Stop> {
        let At::Head(before) = self.at else { return Err(Stop::Garbage) };
        self.heard = true;
        if self.said_goodbye {
            return Err(Stop::Garbage);
        }
        self.at = At::Head(before + n);
        if before + n < FRAME_HEAD {
            return Ok(());
        }
        let mut bytes = [0; FRAME_HEAD];
        self.head.read_bytes(0, &mut bytes);
        match Frame::parse(bytes).map_err(|_| Stop::Garbage)?.body {
            Body::Payload { id, offset, len, lent: false, tell: false } => {
                let len = len as usize;
                let start = expected.claim(id, offset, len, By::Lane).map_err(|_| Stop::Garbage)?.ok_or(Stop::Garbage)?;
                self.at = At::Payload { id, start, len, got: 0 };
            }
            Body::Goodbye => {
                self.said_goodbye = true;
                self.at = At::Head(0);
            }
            Body::Payload { .. } | Body::Records { .. } | Body::News | Body::Lanes { .. } | Body::Read { .. } => {
                return Err(Stop::Garbage);
            }
        }
        Ok(())
    }
}

/// What carries a lane.
impl Connection {
    pub(super) fn serve(&self, first: &Arc<Connection>) {
        let _ = self.first.set(Arc::downgrade(first));
    }

    /// The connection that it is a lane of, if it is one.
    pub(super) fn first(&self) -> Option<Arc<Connection>> {
        self.first.get().and_then(Weak::upgrade)
    }

    /// Somebody is to look when it is connected.
    pub(super) fn await_connection(&self) {
        self.await_room(&mut self.halves.lock(), true);
    }

    /// Says hello, once the key is proved.
    pub(super) fn greet_lane(&self, token: u64) {
        let mut halves = self.halves.lock();
        halves.outgoing.say(Hello::lane(token).as_bytes());
        halves.outgoing.become_lane();
        self.await_room(&mut halves, false);
        self.send(&mut halves, false);
    }

    /// Whether the other side has said hello, too; `None`: not yet.
    pub(super) fn hear_lane(&self, token: u64) -> Option<bool> {
        let mut halves = self.halves.lock();
        if !self.prove(&mut halves) || halves.ended.is_some() {
            return halves.ended.map(|_| false);
        }
        match halves.incoming.hello(self.stream()) {
            Ok(bytes) => bytes.map(|bytes| token_of(&bytes) == Some(token)),
            Err(_) => Some(false),
        }
    }

    pub(super) fn post_piece(&self, bulk: Bulk<'_>) {
        let mut halves = self.halves.lock();
        self.office().striped.fetch_add(bulk.len as u64, Ordering::Relaxed);
        halves.outgoing.post(bulk, true);
        if !halves.outgoing.blocked {
            self.send(&mut halves, false);
        }
    }

    /// Messages of which a piece has left.
    pub(super) fn take_pieces(&self, left: &mut Vec<u32>) -> Result<(), Error> {
        let mut halves = self.halves.lock();
        left.extend(halves.outgoing.pieces.drain(..));
        halves.ended.map_or(Ok(()), Err)
    }

    pub(super) fn posted(&self) -> usize {
        self.halves.lock().outgoing.posted()
    }

    /// The kernel may have said that it is through with what is on loan.
    pub(super) fn hear_notices(&self) {
        self.halves.lock().outgoing.hear(self.stream());
    }

    /// The other side has gone in good order: of which messages pieces have left, which the first connection takes from now on. Whether that is all
    /// that was posted, and nothing is on loan.
    pub(super) fn settle(&self, left: &mut VecDeque<u32>) -> bool {
        let mut halves = self.halves.lock();
        halves.outgoing.hear(self.stream());
        left.append(&mut halves.outgoing.pieces);
        halves.outgoing.posted() == 0 && !halves.outgoing.zerocopy.waits()
    }

    /// What left by it without a copy is told to `sums`.
    pub(super) fn add_copies_to(&self, sums: &mut Sums) {
        let link = self.link().map(|(_, link)| link.clone());
        sums.add(&self.halves.lock().outgoing.zerocopy, link.as_ref());
    }

    /// Bytes that have not arrived.
    pub(super) fn flying(&self) -> usize {
        self.posted() + tcp::unacknowledged(self.stream().fd())
    }

    /// Nothing is to be sent any more of what it has on loan.
    pub(super) fn break_off(&self) {
        // A socket that is broken off has no address any more.
        self.link();
        self.halves.lock().outgoing.zerocopy.break_off(self.stream().fd());
    }

    /// Nothing goes by it any more, and the application's memory is its own again.
    pub(super) fn let_go(&self, clock: &Clock) {
        let mut halves = self.halves.lock();
        halves.outgoing.zerocopy.take_back(self.stream().fd(), clock);
        halves.outgoing = Outgoing::new(ZeroCopy::never());
        tcp::finish(self.stream().fd());
    }
}

/// The word of a stranger's lane, if it is one.
pub(super) fn token_of(bytes: &[u8]) -> Option<u64> {
    Hello::parse(bytes).ok()?.token()
}
