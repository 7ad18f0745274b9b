//! Who has called and not said who he is: the listener, patience, and what becomes of a hello.

use super::super::{Line, Reply};
use super::connection::Connection;
use super::{CALL_PATIENCE, Event, LISTENER, Tcp, versions};
use crate::peer::name::Name;
use crate::sys::{limits, tcp};
use crate::wire::hello::Refusal;
use rustix::io::Errno;
use std::sync::Arc;

/// Nanoseconds that a caller may take between connecting and saying hello, from the first look at it on.
const HELLO_PATIENCE: u64 = 4_000_000_000;
/// Strangers that may be connected at a time. Further ones wait in the backlog.
const MOST_STRANGERS: usize = 1024;

pub(super) struct Stranger {
    connection: Arc<Connection>,
    /// When it was first looked at; 0: not yet.
    since: u64,
}

impl Tcp {
    /// Takes the calls that wait.
    pub(super) fn accept_all(&mut self, events: &mut Vec<Event>) {
        while self.strangers.len() < MOST_STRANGERS {
            let (fd, _) = match limits::with_descriptors(|| tcp::accept(&self.listener)) {
                Ok(both) => both,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(why) => {
                    if matches!(why, Errno::MFILE | Errno::NFILE) && !self.short_of_descriptors {
                        self.short_of_descriptors = true;
                        let why = format!("a caller, until a file descriptor is free: {}", limits::no_descriptors());
                        events.push(Event::TurnedAway(why, None));
                    }
                    break;
                }
            };
            self.short_of_descriptors = false;
            let Ok(connection) = self.add(fd, false, None) else { break };
            let slot = connection.slot();
            self.strangers.insert(slot, Stranger { connection, since: 0 });
            self.hear_stranger(slot, events);
        }
        // Those that wait in the backlog must neither keep us busy nor awake.
        self.office.poller.remove(&self.listener);
        self.deaf = true;
    }

    fn listen_again(&mut self) {
        self.deaf = self.office.poller.add(&self.listener, LISTENER).is_err();
    }

    /// Hears what a stranger says.
    pub(super) fn hear_stranger(&mut self, slot: u32, events: &mut Vec<Event>) {
        let Some(stranger) = self.strangers.get(&slot) else { return };
        let who = stranger.connection.other_end();
        let said = stranger.connection.read_hello();
        if let Some(token) = stranger.connection.is_lane() {
            return self.hear_lane(slot, token, events);
        }
        match said {
            Reply::Nothing => {}
            Reply::Greeting(greeting) => {
                // Who calls need not be called.
                if let Ok(from) = Name::from_bytes(&greeting.hello.from) {
                    self.calls.remove(&from);
                }
                if let Some(Stranger { connection, .. }) = self.strangers.remove(&slot) {
                    if connection.has_more() {
                        self.parked.push(slot);
                    }
                    self.let_stripe(&connection, None);
                    events.push(Event::Call { line: connection, pid: 0, greeting });
                }
                // Peers that all call at once are heard as fast as they speak.
                if self.deaf && self.strangers.len() <= MOST_STRANGERS / 2 && !self.short_of_descriptors {
                    self.listen_again();
                }
            }
            Reply::Refused(why) => {
                let text = stranger.connection.foreign_version().map_or_else(|| why.to_string(), versions);
                events.push(Event::TurnedAway(format!("{who}: {text}"), Some(why)));
                self.strangers.remove(&slot);
            }
            _ => _ = self.strangers.remove(&slot),
        }
    }

    /// A stranger says that he is a lane of somebody, by a word that only that one knows.
    fn hear_lane(&mut self, slot: u32, token: u64, events: &mut Vec<Event>) {
        let Some(Stranger { connection, .. }) = self.strangers.remove(&slot) else { return };
        let first = self.office.tokens.lock().get(&token).copied().and_then(|slot| self.connection(slot));
        match first {
            Some(first) if limits::has_plenty(connection.stream().fd()) && first.add_lane(&connection, Some(token)) => {
                if connection.has_more() {
                    self.parked.push(slot);
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

    /// Who has not said hello in time is hung up on.
    pub(super) fn look_after_strangers(&mut self, now: u64) {
        // Counted from here: what a turn is told of the time may be as old as its last look at the clock.
        let many = self.strangers.len() > MOST_STRANGERS / 2;
        self.strangers.retain(|_, s| {
            s.since = or_now(s.since, now);
            // Who knows the key, as it seems, may compute. (Or he repeats what he heard; then he shares half of the places with his like.)
            let patience = if !many && s.connection.seems_to_know() { CALL_PATIENCE } else { HELLO_PATIENCE };
            now.saturating_sub(s.since) < patience
        });
        if self.deaf && self.strangers.len() < MOST_STRANGERS {
            self.listen_again();
        }
    }
}

/// A time that is not known yet is now.
fn or_now(since: u64, now: u64) -> u64 {
    if since == 0 { now } else { since }
}
