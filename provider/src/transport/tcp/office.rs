//! What the connections of one endpoint share.

use super::call::Call;
use super::lessons::Lessons;
use super::zerocopy::{Means, Sums};
use super::{HEALTH_EVERY, HEALTH_NAP, LOOKS};
use crate::config::network::ZeroCopy;
use crate::peer::name::Name;
use crate::sys::absence::Absence;
use crate::sys::clock::Clock;
use crate::sys::poller::Poller;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What the connections of one endpoint share.
pub(super) struct Office {
    pub poller: Arc<Poller>,
    /// Counts the turns of the endpoint.
    pub turn: AtomicU64,
    pub clock: Clock,
    /// Connections that have something to send, and whether there are any.
    dirty: Mutex<Vec<u32>>,
    has_dirty: AtomicBool,
    /// What is kept back is noted there.
    pub absence: OnceLock<Arc<Absence>>,
    /// Somebody sleeps on the poller: no turn follows by itself.
    pub asleep: AtomicBool,
    /// Connections by which something came that waits for the engine to read what came before.
    pub held_up: AtomicU64,
    /// Milliseconds.
    pub patience: u64,
    /// Of connections that are no more.
    pub zerocopies: Mutex<Sums>,
    pub zerocopy: Means,
    /// Calls that reached somebody else, and go on.
    pub astray: Mutex<Vec<(Name, Call)>>,
    /// Whose lanes are known by which word. By words of others' choice: the map is keyed.
    pub tokens: Mutex<HashMap<u64, u32>>,
    /// What is known of links, if that is to pass from connection to connection.
    pub lessons: Arc<OnceLock<Arc<Lessons>>>,
    /// Lanes that there are or were, and bytes that left by them.
    pub lanes: AtomicU64,
    pub striped: AtomicU64,
}

impl Office {
    pub fn new(patience: u64, zerocopy: ZeroCopy) -> Result<Office, Errno> {
        let poller = Arc::new(Poller::new()?);
        let lessons = Arc::<OnceLock<_>>::default();
        Ok(Office {
            zerocopy: Means::new(zerocopy, poller.clone()).learning_from(lessons.clone()),
            lessons,
            poller,
            turn: AtomicU64::new(1),
            clock: Clock::machine(),
            dirty: Mutex::default(),
            has_dirty: AtomicBool::new(false),
            absence: OnceLock::new(),
            asleep: AtomicBool::new(false),
            held_up: AtomicU64::new(0),
            patience,
            zerocopies: Mutex::default(),
            astray: Mutex::default(),
            tokens: Mutex::default(),
            lanes: AtomicU64::new(0),
            striped: AtomicU64::new(0),
        })
    }

    /// This one has something to send.
    pub fn is_dirty(&self, slot: u32) {
        let mut dirty = self.dirty.lock();
        dirty.push(slot);
        self.has_dirty.store(true, Ordering::Release);
        if let Some(absence) = self.absence.get() {
            absence.note();
        }
    }

    /// Whether anybody has something to send.
    pub fn has_dirty(&self) -> bool {
        self.has_dirty.load(Ordering::Acquire)
    }

    /// Who has something to send.
    pub fn dirty(&self) -> Vec<u32> {
        self.dirty.lock().clone()
    }

    /// The same, and nobody has any more.
    pub fn take_dirty(&self) -> Vec<u32> {
        // In most turns nobody: one load.
        if !self.has_dirty.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut dirty = self.dirty.lock();
        self.has_dirty.store(false, Ordering::Relaxed);
        std::mem::take(&mut *dirty)
    }

    /// Nanoseconds between looks at the health of connections.
    pub fn health_every(&self) -> u64 {
        HEALTH_EVERY.min(self.patience * 1_000_000 / LOOKS)
    }

    /// Milliseconds of silence after which a look ends a connection, so that it is not later than the patience says: the next look may come after a
    /// whole pause, and a sleep.
    pub fn limit(&self) -> u64 {
        let pause = self.health_every();
        self.patience - (pause + HEALTH_NAP.min(pause)) / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who was not silent for long enough at one look is found at the next one, in time.
    #[test]
    fn a_look_is_not_later_than_the_patience_says() {
        for patience in [3_000, 4_000, 10_000, 3_600_000] {
            let office = Office::new(patience, ZeroCopy::default()).expect("a poller");
            let latest = office.limit() + (office.health_every() + HEALTH_NAP) / 1_000_000;
            assert!(latest <= patience && office.limit() > patience / 2, "{patience}: {latest}");
        }
    }
}
