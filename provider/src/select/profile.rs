//! The profile: what `rustmx tune` measured, kept in a small file, and whether it holds here (`docs/adr/0016-profile.md`).
//!
//! Read once per process, when the table of the first endpoint is made ([`Profiles`]), and never in a job's way: whatever is wrong with a
//! file, there is one sentence about it, and the shipped table.

pub(super) mod text;

use super::Tuned;
use super::lessons::{self, Learned};
use super::model::Model;
use crate::config::echo::escaped;
use crate::config::profile::ProfileChoice;
use crate::config::{Config, PARAMS, Param};
use crate::log::{Log, LogLevel, LogSubsystem};
use crate::sys::machine::{self, Machine};
use crate::sys::own_file::{self, Refusal};
use crate::transport::tcp::Lessons;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Longest file that is read, in bytes: several times what `rustmx tune` writes.
pub const LONGEST: u64 = 64 << 10;

/// Most links of a profile: what one more would bring pushes out the one that was measured first.
pub const MOST_LINKS: usize = 8;

/// Parameters that measured times depend on. A profile made with other values says nothing about these. Those of links to other hosts are in their
/// names (`network.rs`).
const THAT_MATTER: [&str; 12] = [
    "ring_size",
    "fragment",
    "fetch_ahead",
    "rings",
    "record_copy",
    "hand_on",
    "announce_min",
    "announce_pieces",
    "cma",
    "copy",
    "copy_thread",
    "copy_thread_min",
];

/// Those of which `rustmx tune` finds out the best value.
pub const MEASURED: [&str; 8] =
    ["rings", "fetch_ahead", "record_copy", "hand_on", "announce_min", "announce_pieces", "fragment", "again_min"];

/// What measured times depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Where it was measured.
    pub machine: Machine,
    /// `NAME=value` of the parameters that matter.
    pub settings: Vec<String>,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Where, and with what.
    pub key: Key,
    /// `NAME=value` of parameters, as [`Param::env`] has their names: what was measured to be best where nobody says anything.
    pub best: Vec<String>,
    /// Whether the kernel let two processes copy from each other then. If not, the ways that need it were not measured.
    pub kernel_copies: bool,
    /// The hand-over of a cache line, in nanoseconds: for people.
    pub handover_ns: f64,
    /// What messages cost.
    pub model: Model,
    /// What messages to other hosts cost, by link (`sys/links.rs`): at most [`MOST_LINKS`].
    pub links: Vec<(String, Model)>,
}

impl Key {
    /// Of this machine and a configuration.
    pub fn here(config: &Config) -> Key {
        let matter = PARAMS.iter().filter(|p| THAT_MATTER.contains(&p.name));
        Key { machine: machine::here(), settings: matter.map(|p| format!("{}={}", p.env(), p.value(config))).collect() }
    }

    /// Why what was measured there does not hold here: words for each difference. A hypervisor that one side cannot tell is none.
    pub fn differences(&self, here: &Key) -> Vec<String> {
        let (a, b) = (&self.machine, &here.machine);
        // Those of the one that the other one has otherwise, or not at all.
        let only =
            |these: &[String], others: &[String]| match these.iter().filter(|s| !others.contains(s)).cloned().collect::<Vec<_>>()
            {
                none if none.is_empty() => "nothing".into(),
                some => some.join(" "),
            };
        let mut all = vec![
            ("another processor", a.processor.clone(), b.processor.clone()),
            ("another kernel", a.kernel.clone(), b.kernel.clone()),
            ("another number of cores", a.cores.to_string(), b.cores.to_string()),
            ("other settings", only(&self.settings, &here.settings), only(&here.settings, &self.settings)),
        ];
        if let (Some(a), Some(b)) = (&a.hypervisor, &b.hypervisor) {
            all.push(("another hypervisor", a.clone(), b.clone()));
        }
        all.retain(|(_, then, now)| then != now);
        all.into_iter().map(|(what, then, now)| format!("{what} (then {then}, now {now})")).collect()
    }
}

impl Profile {
    /// `config` with what was measured to be best for the parameters of which nobody says anything.
    pub fn applied(&self, config: &Config) -> Config {
        let mut config = config.clone();
        for (param, value) in self.best.iter().filter_map(|text| best(text)) {
            param.suggest(&mut config, value);
        }
        config
    }

    /// Keeps what was measured of a link, instead of what was known of it before.
    pub fn set_link(&mut self, link: &str, model: Model) {
        self.links.retain(|(known, _)| known != link);
        self.links.push((link.into(), model));
        let over = self.links.len().saturating_sub(MOST_LINKS);
        self.links.drain(..over);
    }

    /// What was measured of a link.
    pub fn link(&self, link: &str) -> Option<&Model> {
        self.links.iter().find(|(known, _)| known == link).map(|(_, model)| model)
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        text::write(self)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse(text: &str) -> Result<Profile, String> {
        text::read(text)
    }

    /// Puts it into a file, in one step; directories that are missing are made.
    ///
    /// # Errors
    /// What could not be done.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        own_file::replace(path, &self.to_text())
    }
}

/// The parameter and the value of a `NAME=value`, if it is one of those that are measured.
fn best(text: &str) -> Option<(&'static Param, &str)> {
    let (name, value) = text.split_once('=')?;
    let param = PARAMS.iter().find(|p| MEASURED.contains(&p.name) && p.env() == name)?;
    Some((param, value))
}

/// The user's own file: `rustmx/profile.toml` below `$XDG_CONFIG_HOME` (if that is a whole path), else below `~/.config`. `None` without
/// a home.
pub fn own_path() -> Option<PathBuf> {
    let whole = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let config = whole("XDG_CONFIG_HOME").or_else(|| Some(whole("HOME")?.join(".config")))?;
    Some(config.join("rustmx/profile.toml"))
}

/// A file's name in a sentence.
pub(super) fn named(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// What became of looking for a profile.
#[derive(Debug)]
pub enum Standing {
    /// It is in force.
    InForce(PathBuf, Box<Profile>),
    /// The user wants none.
    Off,
    /// The user has none, or no home to have it in.
    None(Option<PathBuf>),
    /// It holds elsewhere: in which way.
    Elsewhere(PathBuf, Vec<String>),
    /// It is not read, and why.
    Refused(PathBuf, String),
}

impl Standing {
    /// Looks where `config` says.
    pub fn look(config: &Config) -> Standing {
        let (path, named) = match &config.profile {
            ProfileChoice::Off => return Standing::Off,
            ProfileChoice::File(path) => (path.clone(), true),
            ProfileChoice::Own => match own_path() {
                Some(path) => (path, false),
                None => return Standing::None(None),
            },
        };
        let text = match own_file::read(&path, LONGEST) {
            Ok(text) => text,
            Err(Refusal::Absent | Refusal::Hidden) if !named => return Standing::None(Some(path)),
            Err(why) => return Standing::Refused(path, why.to_string()),
        };
        match Profile::parse(&text) {
            Err(why) => Standing::Refused(path, why),
            Ok(profile) => match profile.key.differences(&Key::here(&profile.applied(config))) {
                differences if differences.is_empty() => Standing::InForce(path, Box::new(profile)),
                differences => Standing::Elsewhere(path, differences),
            },
        }
    }

    /// The profile in force.
    pub fn profile(&self) -> Option<&Profile> {
        match self {
            Standing::InForce(_, profile) => Some(profile),
            _ => None,
        }
    }

    /// `config` as the profile in force, if one is, has it.
    pub fn applied(&self, config: &Config) -> Config {
        self.profile().map_or_else(|| config.clone(), |profile| profile.applied(config))
    }

    /// What a table of messages is made by.
    pub fn tuned(&self) -> Option<Tuned<'_>> {
        self.profile().map(|p| Tuned::messages(&p.model))
    }

    /// In a sentence, and whether it will surprise the user.
    pub fn says(&self) -> (LogLevel, String) {
        const SHIPPED: &str = "the table of protocols is the shipped one";
        match self {
            Standing::InForce(path, profile) => {
                const REFUSED: &str = " (measured where the kernel did not copy between processes: of that it says nothing)";
                let but = if profile.kernel_copies { "" } else { REFUSED };
                let best = match &profile.best[..] {
                    [] => String::new(),
                    best => format!(", which also says {}", best.join(" ")),
                };
                (LogLevel::Info, format!("the table of protocols is made by the profile {}{best}{but}", named(path)))
            }
            Standing::Off => (LogLevel::Info, format!("FI_RUSTMX_PROFILE=off: {SHIPPED}")),
            Standing::None(Some(path)) => {
                (LogLevel::Info, format!("no profile {} (`rustmx tune` makes one): {SHIPPED}", named(path)))
            }
            Standing::None(None) => {
                (LogLevel::Info, format!("neither XDG_CONFIG_HOME nor HOME says where a profile may be: {SHIPPED}"))
            }
            Standing::Elsewhere(path, why) => {
                let why = why.join("; ");
                (LogLevel::Info, format!("the profile {} was made elsewhere: {why}; {SHIPPED}", named(path)))
            }
            Standing::Refused(path, why) => {
                (LogLevel::Warn, format!("the profile {} is not used: {why}; {SHIPPED}", named(path)))
            }
        }
    }
}

/// The profile of a process: looked for at most once, by the first who asks.
pub struct Profiles {
    found: OnceLock<Standing>,
    /// What jobs found out about links: this one and, if files are used, earlier ones. `None`: nothing passes from connection to connection.
    learned: OnceLock<Option<Learned>>,
    files: bool,
    unheard: fn(&str),
}

impl Profiles {
    /// Not looked for yet; `unheard` is told what will surprise the user and the log does not show.
    pub fn new(unheard: fn(&str)) -> Profiles {
        Profiles { found: OnceLock::new(), learned: OnceLock::new(), files: true, unheard }
    }

    /// None, whatever the configuration says: for tests and measurements, which no file of the user's is to change, nor they it.
    pub fn off() -> Profiles {
        Profiles { found: OnceLock::from(Standing::Off), learned: OnceLock::new(), files: false, unheard: |_| {} }
    }

    /// What is known of links, for connections to begin with and to add to; `None`: the user wants each to find out by itself. The first time, what earlier jobs found is
    /// read and told.
    pub fn lessons(&self, config: &Config, log: &Log) -> Option<&Arc<Lessons>> {
        self.learned(config, log).map(Learned::lessons)
    }

    fn learned(&self, config: &Config, log: &Log) -> Option<&Learned> {
        let begin = || {
            if config.learn != 0 {
                return None;
            }
            let standing = match self.files {
                true => lessons::Standing::look(config),
                false => lessons::Standing::Off("no files are used"),
            };
            self.tell(log, standing.says());
            Some(Learned::begin(standing))
        };
        self.learned.get_or_init(begin).as_ref()
    }

    /// The same, if somebody asked before: nothing is read.
    pub fn lessons_so_far(&self) -> Option<&Arc<Lessons>> {
        self.learned.get()?.as_ref().map(Learned::lessons)
    }

    /// Keeps for later jobs what this one found out by now. Off the data path: reads and writes a small file, if there is something new.
    pub fn keep_lessons(&self, config: &Config, log: &Log) {
        let Some(Some(learned)) = self.learned.get() else { return };
        match learned.keep(config) {
            Ok(None) => {}
            Ok(Some(path)) => log.info(|| format!("what was found out about links is kept in {}", named(path))),
            Err(why) => log.info(|| format!("what was found out about links is not kept: {why}")),
        }
    }

    /// `config` as the profile in force, if one is, has it.
    pub fn applied(&self, config: &Config, log: &Log) -> Arc<Config> {
        Arc::new(self.standing(config, log).applied(config))
    }

    /// What became of it. The first time, it is read and told.
    pub fn standing(&self, config: &Config, log: &Log) -> &Standing {
        self.found.get_or_init(|| {
            let standing = Standing::look(config);
            self.tell(log, standing.says());
            standing
        })
    }

    fn tell(&self, log: &Log, (level, text): (LogLevel, String)) {
        let mut shown = false;
        log.say(level, LogSubsystem::Core, || {
            shown = true;
            text.clone()
        });
        if level == LogLevel::Warn && !shown {
            (self.unheard)(&text);
        }
    }
}

#[cfg(test)]
mod tests;
