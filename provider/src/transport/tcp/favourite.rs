//! Who alone spoke the last times mostly speaks next: his socket is read in every turn, and whoever else has something to say is asked for now and
//! then. His socket is not watched meanwhile: what a poller costs the sender of each message inside of a host (4 % of a ping-pong) is for nothing.
//!
//! That is for short messages. To read a socket takes its lock, and what arrives meanwhile is put aside for the reader to work off. Of more than a
//! segment that includes the acknowledgement, a packet sent: who sends so much more often than one time in nine is asked for by the poller, which touches no socket (`docs/adr/0019-tcp.md`).

use super::connection::Connection;
use std::sync::Arc;

/// How often one alone must have spoken before he is read without asking, and how often all are asked then: turns, and those at most if he has something
/// in each (what he said is not to wait for the others, who mostly say nothing).
const SURE: u32 = 32;
const ASK_EVERY: u32 = 16;
const ASK_AT_LAST: u32 = 2 * ASK_EVERY;
/// How many short ones a turn that brings a message of more than a segment makes up for, and to be less sure than that is not enough for a favourite.
const LONG: u32 = 8;
const UNSURE: u32 = SURE / 2;

/// Who spoke lately.
#[derive(Default)]
pub(super) struct Favourite {
    /// By his slot, and how often nobody else did, but for long ones; [`SURE`] at most.
    speaker: u32,
    streak: u32,
    /// Since all were asked.
    turns: u32,
    /// Not watched any more.
    is: Option<Arc<Connection>>,
}

impl Favourite {
    /// Him, if there is one; [`keep`](Self::keep) follows. (Held here, and not only known of: to count him in and out would be two locked instructions a
    /// turn. Whom his endpoint has given up is let go here.)
    #[inline]
    pub fn take(&mut self) -> Option<Arc<Connection>> {
        self.is.take().filter(|connection| !connection.is_forgotten())
    }

    /// He still is.
    #[inline]
    pub fn keep(&mut self, connection: Arc<Connection>) {
        self.is = Some(connection);
    }

    /// Whether the others are to be asked for in this turn, too; `heard`: he said something in it.
    #[inline]
    pub fn asks(&mut self, heard: bool) -> bool {
        self.turns += 1;
        let asks = self.turns >= if heard { ASK_AT_LAST } else { ASK_EVERY };
        if asks {
            self.turns = 0;
        }
        asks
    }

    /// These were found by asking. The one who may be the favourite by that, by his slot.
    pub fn found(&mut self, tokens: &[u64]) -> Option<u32> {
        match tokens {
            [] => return None,
            [token] if *token == u64::from(self.speaker) => self.streak = (self.streak + 1).min(SURE),
            [token, ..] => {
                self.dismiss();
                (self.speaker, self.streak) = (*token as u32, 0);
            }
        }
        (self.streak >= SURE).then_some(self.speaker)
    }

    /// Somebody was read who had something, mostly the last speaker; `long`: a message of more than a segment.
    #[inline]
    pub fn heard(&mut self, long: bool) {
        if long {
            self.heard_long();
        } else if self.is.is_some() {
            self.streak = (self.streak + 1).min(SURE);
        }
    }

    fn heard_long(&mut self) {
        self.streak = self.streak.saturating_sub(LONG);
        if self.streak < UNSURE && self.is.is_some() {
            self.dismiss();
        }
    }

    /// From now on he is read in every turn.
    pub fn choose(&mut self, connection: &Arc<Connection>) {
        if connection.unwatch() {
            self.is = Some(connection.clone());
        }
    }

    /// From now on there is none.
    pub fn dismiss(&mut self) {
        if let Some(connection) = self.take() {
            connection.watch_again();
        }
        self.streak = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::network::ZeroCopy;
    use crate::sys::tcp;
    use crate::transport::Line;
    use crate::transport::tcp::office::Office;
    use crate::transport::tcp::tests::sockets;
    use crate::types::PeerId;

    /// A connection that is watched, and belongs to a peer; the other end.
    fn watched(slot: u32) -> (Arc<Connection>, rustix::fd::OwnedFd) {
        let [fd, other] = sockets();
        let office = Arc::new(Office::new(10_000, ZeroCopy::Auto).expect("poller"));
        office.poller.add(&fd, slot.into()).expect("watched");
        let connection = Arc::new(Connection::new(fd, slot, office, None));
        connection.watch(PeerId(7));
        (connection, other)
    }

    fn ready(connection: &Connection) -> Vec<u64> {
        let mut tokens = Vec::new();
        connection.office().poller.ready(&mut tokens);
        tokens
    }

    fn speak(other: &rustix::fd::OwnedFd, connection: &Connection) {
        tcp::send_bytes(other, b"hello").expect("room");
        while tcp::recv_bytes(connection.stream().fd(), &mut [0]).is_err() {}
    }

    #[test]
    fn who_speaks_alone_becomes_it_and_anybody_else_ends_that() {
        let mut favourite = Favourite::default();
        let (connection, other) = watched(3);
        let chosen: Vec<_> = (0..34).map(|_| favourite.found(&[3])).collect();
        assert!(chosen[..32].iter().all(Option::is_none), "not sure yet");
        assert_eq!(chosen[33], Some(3), "also if he could not be chosen before");
        favourite.choose(&connection);
        speak(&other, &connection);
        assert!(ready(&connection).is_empty() && favourite.is.is_some(), "nobody asks for him");
        assert_eq!((favourite.found(&[]), favourite.is.is_some()), (None, true), "that others say nothing changes nothing");
        assert_eq!((favourite.found(&[9]), favourite.is.is_some()), (None, false));
        assert_eq!(ready(&connection), [3], "what came meanwhile is seen");
        // Two at a time are no favourite, however often.
        assert!((0..100).all(|i| favourite.found(&[3, 9][..1 + i % 2]).is_none()));
        assert_eq!((0..2 * ASK_EVERY).filter(|_| favourite.asks(false)).count(), 2);
        assert_eq!(
            (0..2 * ASK_AT_LAST).filter(|_| favourite.asks(true)).count(),
            2,
            "who always speaks does not keep others from it"
        );
        // The first silent turn is soon enough.
        assert!(!(1..ASK_EVERY + 3).any(|_| favourite.asks(true)) && favourite.asks(false));
    }

    #[test]
    fn who_mostly_sends_long_messages_is_asked_for() {
        let mut favourite = Favourite::default();
        let (connection, other) = watched(3);
        for _ in 0..1000 {
            assert_eq!(favourite.found(&[3]), None, "what long ones are worth outweighs that he alone speaks");
            favourite.heard(true);
        }
        assert!((0..SURE).any(|_| favourite.found(&[3]).is_some()));
        favourite.choose(&connection);
        for _ in 0..1000 {
            (0..LONG).for_each(|_| favourite.heard(false));
            favourite.heard(true);
            assert!(favourite.is.is_some(), "one in nine is long");
        }
        speak(&other, &connection);
        assert!((0..SURE).any(|_| {
            favourite.heard(true);
            favourite.is.is_none()
        }));
        assert_eq!(ready(&connection), [3], "what came meanwhile is seen");
        assert_eq!(favourite.found(&[3]), None);
    }

    #[test]
    fn who_waits_for_room_is_watched_for_it_afterwards() {
        let mut favourite = Favourite::default();
        let (connection, _other) = watched(0);
        favourite.choose(&connection);
        connection.await_room(&mut connection.halves.lock(), true);
        assert!(ready(&connection).is_empty());
        favourite.dismiss();
        assert_eq!(ready(&connection), [0], "there is room");
        connection.await_room(&mut connection.halves.lock(), false);
        assert!(ready(&connection).is_empty());
    }

    #[test]
    fn who_is_gone_is_not_chosen_and_not_watched_again() {
        let mut favourite = Favourite::default();
        let (connection, other) = watched(0);
        favourite.choose(&connection);
        speak(&other, &connection);
        connection.forget();
        assert!(favourite.take().is_none(), "nor read");
        favourite.dismiss();
        assert!(ready(&connection).is_empty());
        favourite.choose(&connection);
        assert!(favourite.is.is_none());
    }
}
