//! Who alone spoke the last times mostly speaks next: his socket is read in every turn, and whoever else has something to say is asked for now and
//! then. His socket is not watched meanwhile: what a poller costs the sender of each message inside of a host (4 % of a ping-pong) is for nothing.

use super::connection::Connection;
use std::sync::Arc;

/// How often one alone must have spoken before he is read without asking, and how often all are asked then.
const SURE: u32 = 32;
const ASK_EVERY: u32 = 16;

/// Who spoke lately.
#[derive(Default)]
pub(super) struct Favourite {
    /// By his slot, and how often nobody else did.
    speaker: u32,
    streak: u32,
    /// Counts turns.
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

    /// Whether the others are to be asked for in this turn, too.
    pub fn asks(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(ASK_EVERY)
    }

    /// These were found by asking. The one who may be the favourite by that, by his slot.
    pub fn found(&mut self, tokens: &[u64]) -> Option<u32> {
        match tokens {
            [] => return None,
            [token] if *token == u64::from(self.speaker) => self.streak = self.streak.saturating_add(1),
            [token, ..] => {
                self.dismiss();
                (self.speaker, self.streak) = (*token as u32, 0);
            }
        }
        (self.streak >= SURE).then_some(self.speaker)
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
        assert_eq!((0..2 * ASK_EVERY).filter(|_| favourite.asks()).count(), 2);
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
