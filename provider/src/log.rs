//! Where the engine's sentences go. The sink is libfabric's `fi_log` in the provider, memory in tests; there is no global logger.

use std::fmt::Write;
use std::io::Write as _;
use std::sync::Arc;

/// How urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something is wrong or will surprise the user.
    Warn,
    /// What was chosen, once per object.
    Info,
    /// Steps.
    Debug,
}

/// Which part speaks; the names are libfabric's subsystems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSubsystem {
    /// Anything else.
    Core,
    /// Fabric objects.
    Fabric,
    /// Domains.
    Domain,
    /// Connections and other control of endpoints.
    EpCtrl,
    /// The data path.
    EpData,
    /// Address vectors.
    Av,
    /// Completion queues.
    Cq,
    /// Event queues.
    Eq,
    /// Memory regions.
    Mr,
    /// Counters.
    Cntr,
}

/// Takes sentences.
pub trait LogSink: Send + Sync {
    /// Whether a sentence of this kind would be shown; texts are only made if so.
    fn enabled(&self, level: LogLevel, subsystem: LogSubsystem) -> bool;
    /// Shows one sentence, without a newline.
    fn write(&self, level: LogLevel, subsystem: LogSubsystem, text: &str);
    /// Shows a sentence that must be seen although the log would not show it.
    fn insist(&self, text: &str) {
        tell("rustmx", text);
    }
}

/// A line on standard error, by one call of write(2): the processes of a job mostly share it, and parts of their lines would mix, as those of `eprintln!`
/// do. `who` stands first.
pub fn tell(who: &str, text: &str) {
    // Who closed it does not want to hear.
    let _ = std::io::stderr().write_all(format!("{who}: {text}\n").as_bytes());
}

/// A handle on a sink; cheap to clone.
#[derive(Clone)]
pub struct Log(Option<Arc<dyn LogSink>>);

impl Log {
    /// To `sink`.
    pub fn new(sink: Arc<dyn LogSink>) -> Log {
        Log(Some(sink))
    }

    /// To nowhere.
    pub fn silent() -> Log {
        Log(None)
    }

    /// Says something, if anybody listens; `text` is only called then.
    #[cold]
    pub fn say(&self, level: LogLevel, subsystem: LogSubsystem, text: impl FnOnce() -> String) {
        if let Some(sink) = &self.0
            && sink.enabled(level, subsystem)
        {
            sink.write(level, subsystem, &text());
        }
    }

    /// What the user set and cannot be, or keeps this process, or this job, from running: goes to standard error if the log does not show it.
    #[cold]
    pub fn insist(&self, text: impl FnOnce() -> String) {
        match &self.0 {
            Some(sink) if sink.enabled(LogLevel::Warn, LogSubsystem::EpCtrl) => {
                sink.write(LogLevel::Warn, LogSubsystem::EpCtrl, &text());
            }
            Some(sink) => sink.insist(&text()),
            None => {}
        }
    }

    /// A warning about a connection.
    pub fn warn(&self, text: impl FnOnce() -> String) {
        self.say(LogLevel::Warn, LogSubsystem::EpCtrl, text);
    }

    /// Information about a connection.
    pub fn info(&self, text: impl FnOnce() -> String) {
        self.say(LogLevel::Info, LogSubsystem::EpCtrl, text);
    }
}

/// Warnings that strangers can cause at will: a few in a while are said, the others counted.
#[derive(Debug, Default)]
pub struct Seldom {
    since: u64,
    said: u32,
    kept: u64,
}

impl Seldom {
    /// Nanoseconds of a while, and warnings that are said in one.
    const WHILE: u64 = 10_000_000_000;
    const MOST: u32 = 5;

    /// A warning about a connection, at `now` in nanoseconds.
    pub fn warn(&mut self, log: &Log, now: u64, text: impl FnOnce() -> String) {
        if now.saturating_sub(self.since) >= Seldom::WHILE {
            (self.since, self.said) = (now, 0);
        }
        if self.said == Seldom::MOST {
            self.kept += 1;
            return;
        }
        self.said += 1;
        match std::mem::take(&mut self.kept) {
            0 => log.warn(text),
            kept => log.warn(|| format!("{}; before that {kept} warnings about connections were not shown", text())),
        }
    }
}

/// A string as JSON and TOML have it: between quotation marks. What is told is ours, but names of endpoints and processors need not be.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Lines(parking_lot::Mutex<Vec<String>>);

    impl LogSink for Lines {
        fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
            true
        }

        fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
            self.0.lock().push(text.into());
        }
    }

    #[test]
    fn a_few_warnings_in_a_while_are_said_and_the_others_counted() {
        let lines = Arc::new(Lines::default());
        let (log, mut seldom) = (Log::new(lines.clone()), Seldom::default());
        let start = Seldom::WHILE * 3;
        (0..100).for_each(|i| seldom.warn(&log, start + i, || format!("no {i}")));
        seldom.warn(&log, start + Seldom::WHILE, || "later".into());
        seldom.warn(&log, start + Seldom::WHILE + 1, || "again".into());
        let lines = lines.0.lock();
        assert_eq!(lines[..5], ["no 0", "no 1", "no 2", "no 3", "no 4"]);
        assert_eq!(lines[5..], ["later; before that 95 warnings about connections were not shown", "again"]);
    }

    #[test]
    fn strings_of_json_and_toml() {
        assert_eq!(quoted("a\"b\\c\n\u{e9}"), "\"a\\\"b\\\\c\\u000a\u{e9}\"");
    }
}
