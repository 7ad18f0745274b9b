//! A link to another host: what carries long messages there and from there, past the rings.

use super::Link;
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

    /// Sends a part of a message that the peer has asked for. `None`: there is no way.
    pub fn post(&self, bulk: Bulk<'_>) -> Option<Moved> {
        self.away.as_ref().map(|away| away.post(bulk))
    }

    /// A part of a message is about to be asked for. `None`: there is no way for it.
    pub fn expect(&self, bulk: Bulk<'_>) -> Option<Moved> {
        self.home.as_ref().map(|home| home.expect(bulk))
    }
}
