//! Who has called and not said who he is, and what becomes of a call once its endpoint is known.

use super::connection::Connection;
use super::greeting::greeting;
use super::incoming::Incoming;
use super::lane::token_of;
use super::proof::{self, Guard, Handshake, Unproved};
use super::stop::Stop;
use super::stream::Stream;
use super::{Event, Tcp};
use crate::error::Error;
use crate::peer::name::Name;
use crate::sys::{limits, tcp};
use crate::transport::{Greeting, Line};
use crate::wire::hello::{Hello, Refusal};
use crate::wire::key::Proof;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Whom a caller wants.
pub(super) enum What {
    /// The endpoint that its hello names.
    Call(Box<Greeting>),
    /// The one that knows this word: it is a lane.
    Lane(u64),
}

/// What a stranger says.
pub(super) enum Said {
    Nothing,
    What(What),
    /// What cannot be used; it has been told. Its version of the protocol, if it is that.
    Refused(Error, Option<u32>),
    /// It is gone.
    Ended,
}

/// Somebody who has called.
pub(super) struct Stranger {
    stream: Stream,
    /// The job's key is still being proved.
    proof: Option<Box<Handshake>>,
    incoming: Incoming,
    /// When it was first looked after.
    pub since: Option<u64>,
}

/// A call that is on its way to its endpoint.
pub(super) struct Arrival {
    pub stream: Stream,
    pub what: What,
}

impl Stranger {
    /// # Errors
    /// [`Error::NoResources`]: it cannot be asked for the key.
    pub fn new(fd: OwnedFd, guard: Option<&Guard>) -> Result<Stranger, Error> {
        let proof = guard.map(|guard| Handshake::new(guard, false).map(Box::new)).transpose()?;
        Ok(Stranger { stream: Stream::new(fd), proof, incoming: Incoming::new(), since: None })
    }

    pub fn fd(&self) -> &OwnedFd {
        self.stream.fd()
    }

    /// The address of the other side, for people.
    pub fn other_end(&self) -> String {
        self.stream.other_end()
    }

    /// Whether it has said what only who knows the job's key can say for the first time.
    pub fn seems_to_know(&self) -> bool {
        self.proof.as_ref().is_some_and(|proof| proof.is_half_made())
    }

    /// It is known whom he wants.
    pub fn arrives(self, what: What) -> Arrival {
        Arrival { stream: self.stream, what }
    }

    /// Closing is not enough: a child by raw clone(2) may have the socket, too.
    pub fn hang_up(&self) {
        tcp::finish(self.stream.fd());
    }

    /// What he says, as far as it is here.
    pub fn hear(&mut self) -> Said {
        match self.prove() {
            Ok(true) => {}
            Ok(false) => return Said::Nothing,
            // Who is refused knows it already.
            Err(Error::PeerGone) => return Said::Ended,
            Err(why) => return Said::Refused(why, None),
        }
        let bytes = match self.incoming.hello(&self.stream) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Said::Nothing,
            Err(Stop::Ended) => return Said::Ended,
            Err(stop) => {
                match stop {
                    // It does not read hellos yet.
                    Stop::Keyed => proof::refuse(self.fd(), &Proof::Refused(Refusal::KeyUnknown).emit()),
                    _ => self.refuse(Refusal::Malformed),
                }
                return Said::Refused(stop.into(), None);
            }
        };
        if let Some(token) = token_of(&bytes) {
            return Said::What(What::Lane(token));
        }
        match greeting(&bytes) {
            Ok(greeting) => Said::What(What::Call(greeting)),
            Err(None) => Said::Ended,
            Err(Some(why)) => {
                self.refuse(if why == Error::Version { Refusal::Version } else { Refusal::Malformed });
                Said::Refused(why, Hello::foreign(&bytes))
            }
        }
    }

    /// Goes on with the proof of the key. Whether it is made, or there is none to be made.
    fn prove(&mut self) -> Result<bool, Error> {
        let Some(proof) = &mut self.proof else { return Ok(true) };
        match proof.step(self.stream.fd()) {
            Ok(None) => Ok(false),
            Ok(Some(session)) => {
                if let Some(session) = session {
                    self.stream.encrypt(session);
                }
                self.proof = None;
                Ok(true)
            }
            Err(Unproved::Ended | Unproved::TooLate) => Err(Error::PeerGone),
            Err(Unproved::Garbage) => Err(Error::Corrupt),
            Err(Unproved::Error(why)) => Err(why),
        }
    }

    fn refuse(&self, why: Refusal) {
        self.stream.say(&Hello::refusal(why));
        self.hang_up();
    }
}

impl Arrival {
    /// The address of the other side, for people.
    pub fn other_end(&self) -> String {
        self.stream.other_end()
    }
}

impl Tcp {
    /// Takes in who has called this endpoint.
    pub(super) fn take_in(&mut self, events: &mut Vec<Event>) {
        for Arrival { stream, what } in self.place.arrivals() {
            let added = self.add(stream, None, |poller, fd, token| poller.retag(fd, token));
            let connection = match added {
                Ok(connection) => connection,
                Err(why) => {
                    // Nothing is left to be said: dropped, it hangs up.
                    events.push(Event::Lacking("a caller".into(), why));
                    continue;
                }
            };
            match what {
                What::Call(greeting) => {
                    // Who calls need not be called.
                    if let Ok(from) = Name::from_bytes(&greeting.hello.from) {
                        self.calls.remove(&from);
                    }
                    connection.met(&greeting);
                    if connection.has_more() {
                        self.parked.push(connection.slot());
                    }
                    self.let_stripe(&connection, None);
                    events.push(Event::Call { line: connection, pid: 0, greeting });
                }
                What::Lane(token) => self.take_lane(connection, token, events),
            }
        }
    }

    /// A stranger says that he is a lane of somebody, by a word that only that one knows.
    fn take_lane(&mut self, connection: Arc<Connection>, token: u64, events: &mut Vec<Event>) {
        let first = self.office.tokens.lock().get(&token).copied().and_then(|slot| self.connection(slot));
        // Who has hung up already would count as open otherwise, and be given something to carry.
        let may = |fd| limits::has_plenty(fd) && !tcp::is_hung_up(fd);
        match first {
            Some(first) if may(connection.stream().fd()) && first.add_lane(&connection, Some(token)) => {
                if connection.has_more() {
                    self.parked.push(connection.slot());
                }
            }
            Some(_) => connection.turn_away(Refusal::NoResources),
            None => {
                connection.turn_away(Refusal::WrongEndpoint);
                let why = format!("{}: a further connection of a pair that there is not", connection.other_end());
                events.push(Event::TurnedAway(why, None));
            }
        }
    }
}
