//! A connection as the endpoint knows it: a [`Line`], which carries records, and payload in place.

use super::{Connection, Halves};
use crate::error::Error;
use crate::mem::shared::SharedMem;
use crate::mem::user::UserSeg;
use crate::peer::name::Name;
use crate::sys::clock::Clock;
use crate::sys::fork;
use crate::sys::tcp::{self, Health};
use crate::sys::wake::Wake;
use crate::transport::tcp::NOBODY;
use crate::transport::tcp::greeting::wins;
use crate::transport::tcp::incoming::Incoming;
use crate::transport::tcp::outgoing::Outgoing;
use crate::transport::tcp::zerocopy::ZeroCopy;
use crate::transport::{Bulk, Guessed, Handed, InPlace, Line, Moved, NoCall, Reach, Reply};
use crate::types::PeerId;
use crate::wire::hello::{Hello, Refusal};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

impl Wake for Connection {
    /// A record was written.
    fn wake(&self) {
        if !self.is_put_off() {
            self.send_in_time(&mut self.halves.lock(), true);
        }
    }
}

impl Line for Connection {
    fn greet(&self, hello: &Hello, segment: &Handed, _bell: &Handed) -> Result<(), NoCall> {
        let Handed::Own(mine) = segment else { return Err(NoCall::Never(Error::Unsupported)) };
        let mut halves = self.halves.lock();
        if let Some(origin) = &mut halves.origin {
            origin.by = Name::from_bytes(&hello.from).ok();
        }
        // Whom we called can have turned us away already: its proof began with the call. Why is heard as it would be after our hello, in the next turn.
        if halves.ended.is_some() && halves.origin.is_some() {
            self.come_back(&mut halves);
            return Ok(());
        }
        if halves.ended.is_some() {
            return Err(NoCall::Never(Error::PeerGone));
        }
        halves.outgoing.say(hello.as_bytes());
        halves.said_hello = true;
        halves.mine = Some(mine.clone());
        halves.start(wins(hello));
        self.send(&mut halves, false);
        Ok(())
    }

    fn reach(&self) -> Reach {
        Reach::Network
    }

    fn begin(&self, mine: &SharedMem) {
        let mut halves = self.halves.lock();
        if let Some(theirs) = halves.theirs.take() {
            halves.incoming.begin(theirs, mine.clone());
        }
        halves.start(false);
        self.send(&mut halves, false);
    }

    fn in_place(self: Arc<Self>) -> Option<Arc<dyn InPlace>> {
        Some(self)
    }

    fn hear(&self) -> Reply {
        let mut halves = self.halves.lock();
        if let Some(id) = halves.incoming.done.pop_front() {
            return Reply::Landed(id);
        }
        if let Some(id) = halves.outgoing.done.pop_front() {
            return Reply::Left(id);
        }
        if let Some(greeting) = halves.greeting.take() {
            return Reply::Greeting(greeting);
        }
        let ended = halves.ended;
        match ended {
            None => Reply::Nothing,
            Some(why) if self.went_astray(&mut halves, why) => Reply::Elsewhere,
            _ if halves.crossed => Reply::Crossed,
            Some(Error::PeerGone) => Reply::Ended,
            Some(why) => Reply::Refused(why),
        }
    }

    fn turn_away(&self, why: Refusal) {
        self.refuse(&mut self.halves.lock(), why);
    }

    fn guessed(&self) -> Guessed {
        self.halves.lock().incoming.guesses.counts()
    }

    fn watch(&self, peer: PeerId) {
        self.peer.store(peer.0, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.office.poller.remove(self.stream.fd());
        self.peer.store(NOBODY, Ordering::Relaxed);
        self.hold_up(false);
        // The application's memory is its own again.
        let mut halves = self.halves.lock();
        halves.ended.get_or_insert(Error::PeerGone);
        halves.unwatched = false;
        // A socket that is broken off has no address any more. All lanes are, before any is waited for.
        self.link();
        let clock = Clock::machine();
        self.break_off_lanes(&halves);
        halves.outgoing.zerocopy.take_back(self.stream.fd(), &clock);
        self.teach(&mut halves, &Health::default());
        self.tell(&halves, &mut self.office.zerocopies.lock());
        self.forget_lanes(&mut halves, &clock);
        halves.outgoing = Outgoing::new(ZeroCopy::never());
        // What became of guesses is asked for later, too.
        let guesses = halves.incoming.guesses;
        halves.incoming = Incoming::new();
        halves.incoming.guesses = guesses;
    }
}

/// Closing is not enough: a child by raw clone(2) may have the socket, too, and there it would stay open, and ready for our poller. A child
/// that gives up its copy must do no such thing to its parent.
impl Drop for Connection {
    fn drop(&mut self) {
        self.hold_up(false);
        if !fork::in_child() {
            self.office.poller.remove(self.stream.fd());
            self.halves.get_mut().outgoing.zerocopy.take_back(self.stream.fd(), &Clock::machine());
            tcp::finish(self.stream.fd());
        }
    }
}

impl Connection {
    fn expects(&self, bulk: Bulk<'_>, exact: bool) -> Moved {
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return Moved::Later;
        }
        match halves.incoming.expect(&self.stream, bulk, exact) {
            Ok(moved) => {
                self.settle_loans(&mut halves);
                self.hold_up(halves.incoming.is_parked() || self.stream.has_more());
                // What came behind it is told in the next turn, before which somebody may be about to sleep.
                if halves.incoming.came_early() && self.office.asleep.load(Ordering::Relaxed) {
                    self.come_back(&mut halves);
                }
                moved
            }
            Err(stop) => {
                self.settle_loans(&mut halves);
                // The endpoint hears of that in its next turn.
                halves.ended.get_or_insert(stop.into());
                self.come_back(&mut halves);
                Moved::Later
            }
        }
    }

    /// Whether all of what was just posted has left.
    fn has_moved(&self, halves: &mut Halves, id: u32) -> Moved {
        let moved = if halves.outgoing.done.back() == Some(&id) { Moved::AtOnce } else { Moved::Later };
        if moved == Moved::AtOnce {
            halves.outgoing.done.pop_back();
        }
        if !halves.outgoing.done.is_empty() {
            // The endpoint hears of others in its next turn.
            self.come_back(halves);
        }
        moved
    }
}

impl InPlace for Connection {
    fn post(&self, bulk: Bulk<'_>) -> Moved {
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return Moved::Later;
        }
        let id = bulk.id;
        if !self.stripe(&mut halves, &bulk) {
            halves.outgoing.post(bulk, false);
            self.send_in_time(&mut halves, false);
        }
        self.has_moved(&mut halves, id)
    }

    fn post_fickle(&self, bulk: Bulk<'_>) -> Moved {
        let mut halves = self.halves.lock();
        if halves.ended.is_some() {
            return Moved::Later;
        }
        let id = bulk.id;
        halves.outgoing.post_fickle(bulk);
        self.send_in_time(&mut halves, false);
        self.has_moved(&mut halves, id)
    }

    fn tell_of_room(&self) {
        let mut halves = self.halves.lock();
        if halves.outgoing.owes_much() {
            self.send(&mut halves, true);
        }
    }

    fn relocate(&self, id: u32, there: UserSeg) {
        self.halves.lock().outgoing.relocate(id, there);
    }

    fn disown(&self, id: u32) {
        self.halves.lock().incoming.disown(id);
    }

    fn expect(&self, bulk: Bulk<'_>) -> Moved {
        self.expects(bulk, false)
    }

    fn expect_exactly(&self, bulk: Bulk<'_>) -> Moved {
        self.expects(bulk, true)
    }
}
