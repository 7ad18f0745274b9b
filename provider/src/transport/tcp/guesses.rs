//! Whether guessing where the next bytes belong pays on a connection: what it brought, what it cost, and what follows.
//!
//! A right guess saves a system call. A wrong one saves none, and its bytes are copied twice: out of the wrong place, and later to the right
//! one. Both are counted in one measure, the bytes whose clean-up takes as long as a call. What right guesses save is credit, of which little is
//! kept; what wrong ones cost is taken from it. When there is none left nothing is guessed for some reads, for twice as many each time, and
//! for more the dearer the last mistake was. Then two wrong guesses are enough to stop again, until some in a row have paid.

use crate::transport::Guessed;

/// Bytes that are cleaned up in the time of a system call that is saved (`docs/adr/0019-tcp.md`).
const CALL: i64 = 16 << 10;
/// What a wrong guess costs beside its bytes: so they are no good if two of five are wrong, however short.
const WRONG: i64 = CALL * 3 / 2;
/// Most credit that is kept: what was right long ago says nothing.
const MOST: i64 = 8 * CALL;
/// Credit of a new connection.
const FIRST: i64 = 4 * CALL;
/// Credit after a pause: a second wrong guess ends it.
const TRIAL: i64 = 2 * CALL;
/// Credit at which guesses pay for sure, and the next pause is a short one again.
const SURE: i64 = 6 * CALL;
/// Reads without a guess after the first stop, and how often that is doubled at most.
const PAUSE: (u32, u32) = (32, 8);
/// Reads without a guess for each call's worth of credit that was overdrawn.
const AMENDS: i64 = 4;

/// The guesses of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guesses {
    counts: Guessed,
    credit: i64,
    /// Stops since guesses paid for sure, at most the doublings of a pause.
    stops: u32,
    /// Reads for which nothing is guessed.
    pause: u32,
}

impl Guesses {
    /// None yet.
    pub fn new() -> Guesses {
        Guesses { counts: Guessed::default(), credit: FIRST, stops: 0, pause: 0 }
    }

    /// What became of them, for people.
    pub fn counts(&self) -> Guessed {
        Guessed { paused: u64::from(self.pause > 0), ..self.counts }
    }

    /// Bytes stood where a body was guessed to belong. `right`: it belongs there; `None`: no body came, which is nobody's mistake. So many of
    /// them were `placed`, and so many `moved`: copied out again.
    pub fn note(&mut self, right: Option<bool>, placed: usize, moved: usize) {
        let worth = match right {
            Some(true) => CALL,
            Some(false) => -WRONG,
            None => 0,
        };
        self.counts.right += u64::from(right == Some(true));
        self.counts.wrong += u64::from(right == Some(false));
        self.counts.placed += placed as u64;
        self.counts.moved += moved as u64;
        self.credit = (self.credit + worth - moved as i64).min(MOST);
        if self.credit <= 0 {
            self.stop();
        } else if self.credit >= SURE {
            self.stops = 0;
        }
    }

    #[cold]
    fn stop(&mut self) {
        let amends = self.credit.unsigned_abs() * AMENDS.unsigned_abs() / CALL.unsigned_abs();
        self.pause = (PAUSE.0 << self.stops).max(u32::try_from(amends).unwrap_or(u32::MAX));
        self.stops = (self.stops + 1).min(PAUSE.1);
        self.credit = TRIAL;
        self.counts.stops += 1;
    }

    /// Whether the next read is to guess.
    pub fn pays(&self) -> bool {
        self.pause == 0
    }

    /// A read begins.
    pub fn turn(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }
}

#[cfg(test)]
#[path = "guesses_tests.rs"]
mod tests;
