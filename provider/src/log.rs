//! Where the engine's sentences go. The sink is libfabric's `fi_log` in the provider, memory in tests; there is no global logger.

use parking_lot::Mutex;
use std::fmt::Write;
use std::io::Write as _;
use std::net::IpAddr;
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

/// What is insisted on once, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Peers that cannot be connected to.
    Contact,
    /// No file descriptors are left to this process.
    Descriptors,
    /// No open files are left to this machine.
    Files,
    /// No memory is left.
    Memory,
    /// No more files may be watched by this user.
    Watches,
    /// No port of the range is left to call from.
    Ports,
    /// No file may be as long.
    Length,
    /// A filter refuses a system call.
    Filter,
}

/// Hosts that are told of, and then no more. Jobs have thousands of processes, and each tells.
const MOST_HOSTS: usize = 3;

type Told = Vec<(Kind, Option<IpAddr>)>;

/// A handle on a sink; cheap to clone.
#[derive(Clone)]
pub struct Log {
    sink: Option<Arc<dyn LogSink>>,
    /// What was insisted on once, through any clone.
    told: Arc<Mutex<Told>>,
}

impl Log {
    /// To `sink`.
    pub fn new(sink: Arc<dyn LogSink>) -> Log {
        Log { sink: Some(sink), told: Arc::default() }
    }

    /// To nowhere.
    pub fn silent() -> Log {
        Log { sink: None, told: Arc::default() }
    }

    /// Says something, if anybody listens; `text` is only called then.
    #[cold]
    pub fn say(&self, level: LogLevel, subsystem: LogSubsystem, text: impl FnOnce() -> String) {
        if let Some(sink) = &self.sink
            && sink.enabled(level, subsystem)
        {
            sink.write(level, subsystem, &text());
        }
    }

    /// What the user set and cannot be, or keeps this process, or this job, from running: goes to standard error if the log does not show it.
    #[cold]
    pub fn insist(&self, text: impl FnOnce() -> String) {
        match &self.sink {
            Some(sink) if sink.enabled(LogLevel::Warn, LogSubsystem::EpCtrl) => {
                sink.write(LogLevel::Warn, LogSubsystem::EpCtrl, &text());
            }
            Some(sink) => sink.insist(&text()),
            None => {}
        }
    }

    /// As [`insist`](Self::insist), of what may befall many endpoints. Without a host it is told once of each `kind`; else once of each host, and of a
    /// few hosts, but a log that shows it shows it each time.
    #[cold]
    pub fn insist_once(&self, kind: Kind, host: Option<IpAddr>, text: impl FnOnce() -> String) {
        let Some(sink) = &self.sink else { return };
        if host.is_some() && sink.enabled(LogLevel::Warn, LogSubsystem::EpCtrl) {
            return self.warn(text);
        }
        let hosts = {
            let mut told = self.told.lock();
            let hosts = told.iter().filter(|(k, _)| *k == kind).count();
            if hosts == MOST_HOSTS || told.contains(&(kind, host)) {
                return;
            }
            told.push((kind, host));
            hosts + 1
        };
        self.insist(|| match hosts {
            MOST_HOSTS => format!("{} (of further hosts FI_LOG_LEVEL=warn tells)", text()),
            _ => text(),
        });
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

/// A word for a number of things: "time" of one, else "times".
pub fn plural(count: u64, word: &str) -> String {
    if count == 1 { word.into() } else { format!("{word}s") }
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
pub(crate) mod tests {
    use super::*;

    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    impl LogSink for Lines {
        fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
            true
        }

        fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
            self.0.lock().push(text.into());
        }
    }

    /// What standard error would show, where the log shows nothing.
    #[derive(Default)]
    pub(crate) struct Shown(Mutex<Vec<String>>);

    impl Shown {
        /// Its lines, taken out.
        pub(crate) fn lines(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock())
        }
    }

    impl LogSink for Shown {
        fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
            false
        }

        fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
            panic!("nobody would see: {text}");
        }

        fn insist(&self, text: &str) {
            self.0.lock().push(text.into());
        }
    }

    #[test]
    fn what_befalls_many_is_insisted_on_once_of_each_host_and_of_few() {
        let (shown, lines) = (Arc::new(Shown::default()), Arc::new(Lines::default()));
        for log in [Log::new(shown.clone()), Log::new(lines.clone())] {
            let host = |i: u8| Some(IpAddr::from([10, 0, 0, i]));
            // Ranks of many hosts, several of each, by several endpoints.
            for i in 0..100 {
                log.clone().insist_once(Kind::Contact, host(i / 2), || format!("rank {i}"));
            }
            (0..9).for_each(|i| log.insist_once(Kind::Descriptors, None, || format!("descriptors {i}")));
        }
        let further = " (of further hosts FI_LOG_LEVEL=warn tells)";
        assert_eq!(shown.lines(), ["rank 0", "rank 2", &format!("rank 4{further}"), "descriptors 0"]);
        let lines = lines.0.lock();
        assert!(lines.len() == 101 && !lines.iter().any(|line| line.contains("further")), "{lines:?}");
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
