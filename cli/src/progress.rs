//! How far it is: a bar on a terminal, else a line now and then, so that who waits for minutes sees that something happens.

use indicatif::{ProgressBar, ProgressStyle};
use rustix::termios::tcgetwinsize;
use rustmx::log::tell;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing is said where no bar is seen.
const SILENCE: Duration = Duration::from_secs(30);

/// Columns below which there is no room for a bar beside what it says; lines that are too long would not be taken back.
const NARROW: u16 = 72;

/// So many steps, of which some are done.
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: bool,
    steps: u64,
    message: String,
}

impl Progress {
    /// Of so many steps.
    pub fn new(steps: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
        let narrow = (1..NARROW).contains(&columns);
        let template = if narrow { "{wide_msg} {pos}/{len}" } else { "{wide_bar} {pos}/{len}  {msg}  {eta} left" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let lines = !std::io::stderr().is_terminal();
        if lines {
            // From the first of them on.
            is_due(Instant::now());
        }
        Progress { bar, lines, steps, message: String::new() }
    }

    /// One that nobody sees.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), lines: false, steps: 0, message: String::new() }
    }

    /// What is done now.
    pub fn set_message(&mut self, message: String) {
        if self.lines {
            self.message.clone_from(&message);
        }
        self.bar.set_message(message);
    }

    /// A step is done.
    pub fn step(&self) {
        self.bar.inc(1);
        if self.lines && is_due(Instant::now()) {
            tell("rustmx", &format!("{}: {} of {} figures", self.message, self.bar.position(), self.steps));
        }
    }

    /// All are done, or no more are wanted.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Whether something is to be said again, over all that is done one after the other.
fn is_due(now: Instant) -> bool {
    static SAID: Mutex<Option<Instant>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let due = said.is_some_and(|said| now.saturating_duration_since(said) >= SILENCE);
    if due || said.is_none() {
        *said = Some(now);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_said_now_and_then() {
        let begun = Instant::now();
        let due: Vec<u64> = (0..=100).filter(|second| is_due(begun + Duration::from_secs(*second))).collect();
        assert_eq!(due, [30, 60, 90]);
    }
}
