//! Whether guessing where the next bytes belong pays on a connection.

/// Guesses of where the next bytes belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// So many were right.
    pub right: u64,
    /// So many were wrong: their bytes were copied once more.
    pub wrong: u64,
    /// Wrong ones in a row.
    streak: u32,
    /// Reads for which nothing is guessed.
    pause: u32,
}

impl Guesses {
    /// Adds those of a connection that is no more.
    pub(super) fn add(&mut self, other: Guesses) {
        self.right += other.right;
        self.wrong += other.wrong;
    }

    /// Counts one.
    pub(super) fn note(&mut self, right: bool) {
        if right {
            self.right += 1;
            self.streak = 0;
        } else {
            self.wrong += 1;
            self.streak = (self.streak + 1).min(8);
            self.pause = 1 << self.streak;
        }
    }

    /// Whether the next read is to guess.
    pub(super) fn pays(&self) -> bool {
        self.pause == 0
    }

    /// A read begins.
    pub(super) fn turn(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }
}
