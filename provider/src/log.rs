//! Where the engine's sentences go. The sink is libfabric's `fi_log` in the provider, memory in tests; there is no global logger.

use std::fmt::Write;
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

    /// A warning about a connection.
    pub fn warn(&self, text: impl FnOnce() -> String) {
        self.say(LogLevel::Warn, LogSubsystem::EpCtrl, text);
    }

    /// Information about a connection.
    pub fn info(&self, text: impl FnOnce() -> String) {
        self.say(LogLevel::Info, LogSubsystem::EpCtrl, text);
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

    #[test]
    fn strings_of_json_and_toml() {
        assert_eq!(quoted("a\"b\\c\n\u{e9}"), "\"a\\\"b\\\\c\\u000a\u{e9}\"");
    }
}
