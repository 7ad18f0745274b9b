//! What jobs found out about links, kept from one job to the next (`docs/adr/0016-profile.md`): a small file beside the profile, which nobody need know of.
//!
//! While a job runs its connections write into a book in memory ([`Lessons`]). The file is read once per process, when the first endpoint is enabled, and written
//! when an endpoint closes, if there is something new that is of use; by one process of a host at a time, and by none that would have to wait for that. Whatever is
//! wrong, no job fails, nor waits: there is one sentence about it.

mod text;

use super::profile::{Key, LONGEST, named, own_path};
use crate::config::profile::ProfileChoice;
use crate::config::{Config, PARAMS};
use crate::log::LogLevel;
use crate::sys::own_file::{self, Refusal, Turn};
use crate::transport::tcp::{By, Lesson, Lessons};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
pub use text::date;

/// Most links of a file: machines of several kinds may share a home directory, each with some.
pub const MOST_ENTRIES: usize = 32;
/// Days after which what was found is of no use.
pub const AGE: u32 = 90;
/// Parameters on which depends what is found of a link.
const THAT_MATTER: [&str; 1] = ["encrypt"];

/// What is kept of one link.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name (`sys/links.rs`).
    pub link: String,
    /// Where it is, and with which settings it was found out.
    pub key: Key,
    /// What was found out, by which [jobs](By::Job).
    pub lesson: Lesson,
}

impl Entry {
    /// The day on which something of it was found out last.
    fn day(&self) -> u32 {
        let day = |by: By| if let By::Job(day) = by { day } else { 0 };
        let Lesson { lanes, copies, round_trip } = self.lesson;
        let days = [lanes.map(|(_, by)| by), copies.map(|(_, by)| by), round_trip.map(|(_, by)| by)];
        days.into_iter().flatten().map(day).max().unwrap_or(0)
    }

    /// What of it is of use yet: each finding has a day of its own. Nothing is found tomorrow, whatever a clock said then.
    fn on(self, today: u32) -> Option<Entry> {
        fn yet<T>(what: Option<(T, By)>, today: u32) -> Option<(T, By)> {
            what.filter(|(_, by)| if let By::Job(day) = *by { (day..=day.saturating_add(AGE)).contains(&today) } else { true })
        }
        let Lesson { lanes, copies, round_trip } = self.lesson;
        let lesson = Lesson { lanes: yet(lanes, today), copies: yet(copies, today), round_trip: yet(round_trip, today) };
        (lesson != Lesson::default()).then_some(Entry { lesson, ..self })
    }
}

/// Who found something out, in words.
pub fn said(by: By) -> String {
    match by {
        By::Here => "found in this job".into(),
        By::Job(day) => format!("learned on {} by an earlier job", date(day)),
    }
}

/// Days since 1970.
pub fn today() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| (since.as_secs() / 86_400) as u32)
}

/// What became of looking for what earlier jobs found out.
#[derive(Debug, PartialEq)]
pub enum Standing {
    /// Nobody looks, nor keeps anything: why.
    Off(&'static str),
    /// There is no file yet.
    None(PathBuf),
    /// What the file says of this machine and these settings.
    InForce(PathBuf, Vec<Entry>),
    /// It is not read, and stays as it is: why.
    Refused(PathBuf, String),
}

impl Standing {
    /// Looks where `config` says.
    pub fn look(config: &Config) -> Standing {
        if config.learn != 0 {
            return Standing::Off("FI_RUSTMX_LEARN=never");
        }
        let path = match &config.profile {
            ProfileChoice::Off => return Standing::Off("FI_RUSTMX_PROFILE=off"),
            ProfileChoice::File(path) => path.with_extension("links.toml"),
            ProfileChoice::Own => match own_path() {
                Some(path) => path.with_file_name("links.toml"),
                None => return Standing::Off("neither XDG_CONFIG_HOME nor HOME says where it may be kept"),
            },
        };
        match read(&path) {
            Ok(entries) => {
                let (key, today) = (key(config), today());
                let fits = |entry: &Entry| entry.key.differences(&key).is_empty();
                Standing::InForce(path, entries.into_iter().filter_map(|entry| entry.on(today)).filter(fits).collect())
            }
            Err(None) => Standing::None(path),
            Err(Some(why)) => Standing::Refused(path, why),
        }
    }

    /// In a sentence, and whether it will surprise the user.
    pub fn says(&self) -> (LogLevel, String) {
        match self {
            Standing::Off(why) => (LogLevel::Info, format!("nothing is learned from job to job: {why}")),
            Standing::None(path) => (LogLevel::Info, format!("nothing was learned by earlier jobs: there is no {}", named(path))),
            Standing::InForce(path, entries) => (
                LogLevel::Info,
                match entries.len() {
                    1 => format!("1 link is known from earlier jobs: {}", named(path)),
                    n => format!("{n} links are known from earlier jobs: {}", named(path)),
                },
            ),
            Standing::Refused(path, why) => (
                LogLevel::Warn,
                format!("{}, which says what earlier jobs learned, is not used: {why}; without it jobs learn anew", named(path)),
            ),
        }
    }
}

/// Of this machine and the settings on which it depends what is found out of a link.
pub fn key(config: &Config) -> Key {
    let matter = PARAMS.iter().filter(|p| THAT_MATTER.contains(&p.name));
    Key { settings: matter.map(|p| format!("{}={}", p.env(), p.value(config))).collect(), ..Key::here(config) }
}

/// `None`: there is no file.
fn read(path: &Path) -> Result<Vec<Entry>, Option<String>> {
    match own_file::read(path, LONGEST) {
        Ok(text) => text::read(&text).map_err(Some),
        Err(Refusal::Absent | Refusal::Hidden) => Err(None),
        Err(why) => Err(Some(why.to_string())),
    }
}

/// What a process knows of links, and where it is kept.
pub(super) struct Learned {
    standing: Standing,
    lessons: Arc<Lessons>,
    /// What was new of each link when it was kept last.
    kept: Mutex<Vec<(Arc<str>, Lesson)>>,
}

impl Learned {
    /// Begins with what earlier jobs found.
    pub fn begin(standing: Standing) -> Learned {
        let lessons = Arc::<Lessons>::default();
        if let Standing::InForce(_, entries) = &standing {
            entries.iter().for_each(|entry| lessons.add(&entry.link, entry.lesson));
        }
        Learned { standing, lessons, kept: Mutex::default() }
    }

    /// The book.
    pub fn lessons(&self) -> &Arc<Lessons> {
        &self.lessons
    }

    /// Keeps what is new, if there is something that is of use to others. `Ok(None)`: nothing was to be written.
    ///
    /// # Errors
    /// Why it is not kept, for people.
    pub fn keep(&self, config: &Config) -> Result<Option<&Path>, String> {
        let (Standing::None(path) | Standing::InForce(path, _)) = &self.standing else { return Ok(None) };
        // Another endpoint of this process that closes now keeps it.
        let Some(mut kept) = self.kept.try_lock() else { return Ok(None) };
        let news: Vec<_> = self.lessons.all().into_iter().filter(|(_, lesson)| lesson.is_of_use()).collect();
        if news == *kept {
            return Ok(None);
        }
        let written = write(path, config.profile == ProfileChoice::Own, &key(config), &news)?;
        *kept = news;
        Ok(written.then_some(path))
    }
}

/// Adds what is new to a file. Whether there was anything.
fn write(path: &Path, is_own: bool, key: &Key, news: &[(Arc<str>, Lesson)]) -> Result<bool, String> {
    own_file::make_room(path, is_own)?;
    // Whoever has it writes much the same: ranks of a job see the same links.
    let Some(_turn) = Turn::take(path) else { return Err("another process is just writing it".into()) };
    let mut entries = match read(path) {
        Ok(entries) => entries,
        Err(None) => Vec::new(),
        Err(Some(why)) => return Err(why),
    };
    let today = today();
    if !merge(&mut entries, key, news, today) {
        return Ok(false);
    }
    let mut text = text::write(&entries);
    // The names of processors are as long as the kernel likes.
    while text.len() as u64 > LONGEST && entries.pop().is_some() {
        text = text::write(&entries);
    }
    own_file::renew(path, &text).map_err(|e| e.to_string())?;
    Ok(true)
}

/// Works what is new into what is known; newest first, and what is old goes. Whether anything changed that matters: of figures that shake from job to job only the
/// first ones of a day are kept, so that of many jobs, and of many ranks, few write.
fn merge(entries: &mut Vec<Entry>, key: &Key, news: &[(Arc<str>, Lesson)], today: u32) -> bool {
    let mut changed = false;
    // What a wrong clock dated tomorrow is not newer than what was just found, and goes.
    *entries = std::mem::take(entries).into_iter().filter_map(|entry| entry.on(today)).collect();
    for (link, lesson) in news {
        fn found<T>(what: Option<(T, By)>, today: u32) -> Option<(T, By)> {
            what.filter(|(_, by)| *by == By::Here).map(|(what, _)| (what, By::Job(today)))
        }
        let Lesson { lanes, copies, round_trip } = *lesson;
        let lesson = Lesson { lanes: found(lanes, today), copies: found(copies, today), round_trip: found(round_trip, today) };
        let known = entries.iter_mut().find(|entry| entry.link == **link && entry.key == *key);
        match known {
            Some(entry) if !differs(&lesson, &entry.lesson) => {}
            Some(entry) => (entry.lesson, changed) = (lesson.or(entry.lesson), true),
            None => {
                entries.push(Entry { link: link.to_string(), key: key.clone(), lesson });
                changed = true;
            }
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.day()));
    entries.truncate(MOST_ENTRIES);
    changed
}

/// Whether what was found today says something that is not known since today.
fn differs(new: &Lesson, known: &Lesson) -> bool {
    let lanes = |lesson: &Lesson| lesson.lanes.map(|(lanes, by)| (lanes.number, by));
    let costs = |lesson: &Lesson| lesson.copies.map(|(copies, by)| (copies.copied, by));
    new.lanes.is_some() && lanes(new) != lanes(known) || new.copies.is_some() && costs(new) != costs(known)
}

#[cfg(test)]
mod tests;
