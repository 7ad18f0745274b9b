//! A link to another host: what carries long messages there and from there, past the rings.

use super::Link;
use crate::mem::user::UserSeg;
use crate::transport::{Bulk, InPlace, Moved};
use std::sync::Arc;

impl Link {
    /// Whether more follows a record at once: to another host it need not be carried by itself.
    pub fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet && self.away.is_some();
    }

    /// `away` carries payload there.
    pub fn set_away(&mut self, away: Option<Arc<dyn InPlace>>) {
        self.away = away;
    }

    /// `home` carries payload from there.
    pub fn set_home(&mut self, home: Option<Arc<dyn InPlace>>) {
        self.home = home;
    }

    /// Whether long messages go from buffer to buffer, past the rings, without either side's copying them.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Sends a part of a message that the peer has asked for, or that follows its envelope unasked. `None`: there is no way.
    pub fn post(&self, bulk: Bulk<'_>) -> Option<Moved> {
        self.away.as_ref().map(|away| away.post(bulk))
    }

    /// All records that were there have been read, and [`tell`](Link::tell) said so: a peer on another host that may wait for the room hears of it now.
    #[inline]
    pub fn tell_of_room(&mut self) {
        if self.owes_room {
            self.owes_room = false;
            self.home.iter().for_each(|home| home.tell_of_room());
        }
    }

    /// A part of a message is about to be asked for, or comes unasked. `None`: there is no way for it.
    pub fn expect(&self, bulk: Bulk<'_>) -> Option<Moved> {
        self.home.as_ref().map(|home| home.expect(bulk))
    }

    /// The same where nothing else may be written there, by a guess.
    pub fn expect_exactly(&self, bulk: Bulk<'_>) -> Option<Moved> {
        self.home.as_ref().map(|home| home.expect_exactly(bulk))
    }

    /// Whether parts may be [posted](Self::post) that the peer has not asked for: it has been heard, and by this connection.
    pub fn may_post(&self) -> bool {
        self.in_place && self.away.is_some() && self.home.is_some()
    }

    /// The same of a part, one piece of memory, that may have to be [elsewhere](Self::relocate) before it has left.
    pub fn post_fickle(&self, bulk: Bulk<'_>) -> Option<Moved> {
        self.away.as_ref().map(|away| away.post_fickle(bulk))
    }

    /// What is left of a part that was [posted](Self::post_fickle) is read `there`.
    pub fn relocate(&self, id: u32, there: UserSeg) {
        self.away.iter().for_each(|away| away.relocate(id, there));
    }

    /// What is expected under this name has no place any more: what has not come of it is dropped.
    pub fn disown(&self, id: u32) {
        self.home.iter().for_each(|home| home.disown(id));
    }
}
