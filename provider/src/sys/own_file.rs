//! A small text file that only this user (or root) may have written, and that is replaced as a whole; and one that only he may read.

use super::{host, limits, socket};
use rustix::fd::OwnedFd;
use rustix::fs::{Access, FileType, Mode, OFlags, fstat, lstat, open};
use rustix::io::Errno;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a file is not read.
#[derive(Debug)]
pub enum Refusal {
    /// There is none.
    Absent,
    /// Whether there is one cannot be seen: a directory above it may not be entered.
    Hidden,
    /// It cannot be opened or read.
    Unreadable(std::io::Error),
    /// A directory, a pipe, a device.
    NotAFile,
    /// The user it belongs to is neither this one nor root.
    Foreign(u32),
    /// Others than its owner may write to it.
    Open,
    /// Others than its owner may read it.
    Told,
    /// More bytes than a sensible one has.
    TooLong,
    /// Its bytes are no text.
    NotText,
}

/// For people.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Absent => f.write_str("there is no such file"),
            Refusal::Hidden => f.write_str("a directory above it may not be entered"),
            Refusal::Unreadable(why) => write!(f, "it cannot be read ({why})"),
            Refusal::NotAFile => f.write_str("it is no regular file"),
            Refusal::Foreign(owner) => write!(f, "it belongs to user {owner}, not to the one who runs this"),
            Refusal::Open => f.write_str("others than its owner may write to it (chmod go-w helps)"),
            Refusal::Told => f.write_str("others than its owner may read it (chmod go= helps)"),
            Refusal::TooLong => f.write_str("it is too long"),
            Refusal::NotText => f.write_str("it is no text"),
        }
    }
}

/// Its text, at most `most` bytes. Does not wait for anybody (a pipe, a device), and looks at what it opened, not at a name twice.
///
/// # Errors
/// Why it is not read.
pub fn read(path: &Path, most: u64) -> Result<String, Refusal> {
    read_if(path, most, |_| Ok(()))
}

/// The same of a file that nobody but its owner may read.
///
/// # Errors
/// Why it is not read.
pub fn read_secret(path: &Path, most: u64) -> Result<String, Refusal> {
    read_if(path, most, |mode| match mode.intersects(Mode::RWXG | Mode::RWXO) {
        true => Err(Refusal::Told),
        false => Ok(()),
    })
}

fn read_if(path: &Path, most: u64, fits: impl FnOnce(Mode) -> Result<(), Refusal>) -> Result<String, Refusal> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOENT | Errno::NOTDIR => Refusal::Absent,
        Errno::ACCESS if lstat(path).err() == Some(Errno::ACCESS) => Refusal::Hidden,
        e => Refusal::Unreadable(e.into()),
    })?;
    let stat = fstat(&fd).map_err(|e| Refusal::Unreadable(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Refusal::NotAFile);
    }
    trusted(stat.st_uid, stat.st_mode, rustix::process::geteuid().as_raw())?;
    fits(Mode::from_raw_mode(stat.st_mode))?;
    let mut bytes = Vec::new();
    // It may grow after fstat: the limit is on what is read.
    std::fs::File::from(fd).take(most + 1).read_to_end(&mut bytes).map_err(Refusal::Unreadable)?;
    if bytes.len() as u64 > most {
        return Err(Refusal::TooLong);
    }
    String::from_utf8(bytes).map_err(|_| Refusal::NotText)
}

/// Whether nobody but user `me` and root may have written a file of this owner and mode.
fn trusted(owner: u32, mode: u32, me: u32) -> Result<(), Refusal> {
    match owner {
        o if o != me && o != 0 => Err(Refusal::Foreign(o)),
        _ if Mode::from_raw_mode(mode).intersects(Mode::WGRP | Mode::WOTH) => Err(Refusal::Open),
        _ => Ok(()),
    }
}

/// Only one process of this host (of a network namespace, and of a user) at a time may write a file: whoever has this. It ends with the process at the latest, and
/// leaves nothing behind: it is the name of a socket, and not a lock on a file that may lie on another host.
pub struct Turn(#[expect(dead_code, reason = "closed when the turn is over")] OwnedFd);

impl Turn {
    /// `None`: another process has it, or it cannot be had. Nobody waits.
    pub fn take(path: &Path) -> Option<Turn> {
        // Two names of one file are two turns: then the last one to write counts, as between hosts.
        let mut hash = rustc_hash::FxHasher::default();
        path.hash(&mut hash);
        let user = rustix::process::geteuid().as_raw();
        socket::reserve(&format!("rustmx-file-{user}-{:016x}", hash.finish())).ok().map(Turn)
    }
}

/// Whether this user alone may put files into a directory.
fn is_own(directory: &Path) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{} {why}", directory.display()));
    let stat = match rustix::fs::stat(directory) {
        Err(_) => return wrong("is not there, or cannot be looked at"),
        Ok(stat) => stat,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return wrong("is no directory");
    }
    match trusted(stat.st_uid, stat.st_mode, stat.st_uid) {
        _ if stat.st_uid != rustix::process::geteuid().as_raw() => wrong("belongs to another user"),
        Err(_) => wrong("can be written to by others (chmod go-w helps)"),
        Ok(()) => Ok(()),
    }
}

/// Sees to it that a file may be put at `path`: its directory belongs to this user, and only he may write to it. With `makes` it is made where it is missing, if
/// what it is to lie in is so; nothing above that is made: whoever has no such place is not given one.
///
/// # Errors
/// Why it may not be put there, for people.
pub fn make_room(path: &Path, makes: bool) -> Result<(), String> {
    let parent = parent(path);
    if makes && !parent.exists() {
        is_own(self::parent(parent))?;
        let made = std::fs::DirBuilder::new().mode(0o700).create(parent);
        if let Err(why) = made
            && why.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(format!("{} cannot be made ({why})", parent.display()));
        }
    }
    is_own(parent)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// As [`replace`], for what may be lost when the machine stops: nobody waits for a disk. Its directory is there, and other hosts may write to it at this moment.
///
/// # Errors
/// What could not be done; the old file is untouched then.
pub fn renew(path: &Path, text: &str) -> std::io::Result<()> {
    put(path, text, |_| Ok(()))
}

/// Puts a file in its place at once: whoever reads it sees the old one or the new one. Readable for all (0644 before the umask, less
/// what the umask takes), its directories made where they are missing, for this user alone (0700).
///
/// # Errors
/// What could not be done; the old file is untouched then.
pub fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent(path))?;
    put(path, text, std::fs::File::sync_all)
}

/// Where a file of this name is put: links lead on to it.
///
/// # Errors
/// What is there is no file: to be replaced would take a device or a pipe away from everybody.
pub fn place_of(path: &Path) -> std::io::Result<PathBuf> {
    let place = match std::fs::canonicalize(path) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => path.to_path_buf(),
        place => place?,
    };
    match std::fs::symlink_metadata(&place) {
        Ok(there) if !there.is_file() => Err(std::io::Error::other("what is there is no file, and is not replaced")),
        _ => Ok(place),
    }
}

/// Sees to it, as far as can be told beforehand, that [`replace`] will put a file there: nothing else has its place, and this process may write to its
/// directory, or to the one in which that would be made.
///
/// # Errors
/// Why it would not be put there, for people.
pub fn may_replace(path: &Path) -> Result<(), String> {
    let place = place_of(path).map_err(|why| why.to_string())?;
    let there = |directory: &&Path| std::fs::symlink_metadata(directory).is_ok();
    let nearest = place.ancestors().skip(1).find(there).filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is = std::fs::metadata(nearest).ok().filter(std::fs::Metadata::is_dir);
    // A directory that was removed is there for whoever works in it, and takes nothing. Some file systems do not count links: its name is gone, too.
    match is.map(|directory| directory.nlink()) {
        None => return Err(format!("{} is no directory", nearest.display())),
        Some(0) if nearest.canonicalize().is_err() => return Err(format!("the directory {} was deleted", nearest.display())),
        Some(_) => {}
    }
    rustix::fs::access(nearest, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|why| format!("{} cannot be written to ({})", nearest.display(), std::io::Error::from(why)))
}

fn put(path: &Path, text: &str, end: impl FnOnce(&std::fs::File) -> std::io::Result<()>) -> std::io::Result<()> {
    let path = &place_of(path)?;
    limits::may_be_as_long(text.len() as u64)?;
    let mut name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?.to_os_string();
    // Of other processes, and of other hosts, at the same moment.
    name.push(format!(".{:016x}.new", host::random()));
    let draft = parent(path).join(name);
    let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        end(&file)
    });
    let done = written.and_then(|()| std::fs::rename(&draft, path));
    match done {
        Ok(()) => sweep(path),
        Err(_) => _ = std::fs::remove_file(&draft),
    }
    done
}

/// Removes the drafts of a file that whoever wrote them was killed over. Nobody writes for an hour; both times are the file system's, whatever host has set them.
fn sweep(path: &Path) {
    const OLD: Duration = Duration::from_secs(3600);
    let written = |path: &Path| std::fs::symlink_metadata(path).and_then(|m| m.modified());
    let (Ok(now), Ok(all), Some(name)) = (written(path), std::fs::read_dir(parent(path)), path.file_name()) else { return };
    for there in all.flatten() {
        let is_draft = there.file_name().as_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| {
            let mark = rest.strip_prefix(b".").and_then(|rest| rest.strip_suffix(b".new"));
            mark.is_some_and(|mark| mark.len() == 16 && mark.iter().all(u8::is_ascii_hexdigit))
        });
        let age = |then| now.duration_since(then).unwrap_or_default();
        if is_draft && written(&there.path()).is_ok_and(|then| age(then) >= OLD) {
            let _ = std::fs::remove_file(there.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A directory of its own, removed at the end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let at = std::env::temp_dir().join(format!("rustmx-own-file-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&at);
            std::fs::create_dir(&at).expect("made");
            Place(at)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_secret_is_nobody_elses() {
        let place = Place::new("secret");
        let path = place.0.join("key");
        std::fs::write(&path, "hidden").expect("written");
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false), (0o611, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
            let said = read_secret(&path, 100);
            assert_eq!(said.is_ok(), fine, "{mode:o}: {said:?}");
            assert!(said.is_ok() || !format!("{said:?}").contains("hidden"));
        }
        assert!(matches!(read_secret(&place.0, 100), Err(Refusal::NotAFile)), "a directory");
    }

    #[test]
    fn it_comes_back_and_is_replaced_as_a_whole() {
        let place = Place::new("whole");
        let path = place.0.join("a/b/file");
        assert!(matches!(read(&path, 100), Err(Refusal::Absent)));
        replace(&path, "one").expect("written");
        replace(&path, "two").expect("written again");
        assert_eq!(read(&path, 3).expect("text"), "two");
        let mode = |p: &Path| std::fs::metadata(p).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path) & !0o644, mode(&place.0.join("a")) & 0o077), (0, 0));
        let names: Vec<_> = std::fs::read_dir(path.parent().expect("one")).expect("listed").collect();
        assert_eq!(names.len(), 1, "no draft is left: {names:?}");
        symlink(&path, place.0.join("link")).expect("linked");
        assert_eq!(read(&place.0.join("link"), 3).expect("text"), "two", "a link to one's own file is one's own choice");
    }

    #[test]
    fn no_draft_is_left_of_what_cannot_be_put_there() {
        let place = Place::new("drafts");
        let taken = place.0.join("taken");
        std::fs::create_dir_all(taken.join("by a directory")).expect("made");
        replace(&taken, "two").expect_err("it cannot take that place");
        let mut names: Vec<_> = std::fs::read_dir(&place.0).expect("listed").map(|e| e.expect("entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["taken"]);
    }

    #[test]
    fn old_drafts_of_the_same_file_are_swept_away() {
        let place = Place::new("sweep");
        let at = |name: &str| place.0.join(name);
        let left = ["file.0123456789abcdef.new", "file.0123456789abcdee.new"];
        let kept = ["other.0123456789abcdef.new", "file.0123456789abcde.new", "file.0123456789abcdeg.new", "file.new"];
        for name in left.into_iter().chain(kept) {
            std::fs::write(at(name), "draft").expect("written");
        }
        let hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
        for name in [left[0]].into_iter().chain(kept) {
            let file = std::fs::File::options().write(true).open(at(name)).expect("there");
            file.set_modified(hours_ago).expect("dated");
        }
        renew(&at("file"), "new").expect("written");
        assert_eq!(left.map(|name| at(name).exists()), [false, true], "another process may still write the younger one");
        assert!(kept.iter().all(|name| at(name).exists()), "whatever is no draft of this file is not ours");
    }

    #[test]
    fn a_file_that_may_not_be_so_long_is_no_signal() {
        crate::sys::fork::alone("sys::own_file::tests::a_file_that_may_not_be_so_long_is_no_signal", || {
            use rustix::process::{Resource, Rlimit, setrlimit};
            let place = Place::new("long");
            let path = place.0.join("file");
            setrlimit(Resource::Fsize, Rlimit { current: Some(4), maximum: Some(4) }).expect("a lower limit");
            for put in [replace, renew] {
                put(&path, "four").expect("as long as it may be");
                let why = put(&path, "five!").expect_err("longer");
                assert_eq!(why.kind(), std::io::ErrorKind::FileTooLarge);
                assert_eq!(std::fs::read_to_string(&path).expect("there"), "four");
            }
        });
    }

    #[test]
    fn only_files_are_replaced_and_links_lead_on() {
        let place = Place::new("replaced");
        let [file, link, pipe, nowhere] = ["file", "link", "pipe", "nowhere"].map(|name| place.0.join(name));
        std::fs::write(&file, "one").expect("written");
        symlink(&file, &link).expect("linked");
        for put in [replace, renew] {
            put(&link, "two").expect("written");
            assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink(), "it is still a link");
            assert_eq!(std::fs::read_to_string(&file).expect("text"), "two");
            std::fs::write(&file, "one").expect("written");
        }
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        symlink(place.0.join("none"), &nowhere).expect("linked");
        for (path, kind) in [(&pipe, FileType::Fifo), (&nowhere, FileType::Symlink)] {
            for put in [replace, renew] {
                let why = put(path, "two").expect_err("it would be gone").to_string();
                assert!(why.contains("no file"), "{why}");
            }
            let there = rustix::fs::lstat(path).expect("still there");
            assert_eq!(FileType::from_raw_mode(there.st_mode), kind);
        }
    }

    #[test]
    fn what_cannot_be_put_there_is_told_beforehand() {
        let place = Place::new("beforehand");
        let told = |path: PathBuf| may_replace(&path).expect_err("refused");
        for fine in ["new", "a/b/new"] {
            assert_eq!(may_replace(&place.0.join(fine)), Ok(()));
        }
        assert_eq!(may_replace(Path::new("no-such-file-of-rustmx")), Ok(()), "here");
        assert!(!place.0.join("a").exists(), "nothing is made");
        std::fs::write(place.0.join("file"), "").expect("written");
        assert_eq!(may_replace(&place.0.join("file")), Ok(()));
        assert!(told(place.0.join("file/below")).contains("Not a directory"));
        symlink("nowhere", place.0.join("link")).expect("linked");
        assert!(told(place.0.join("link/below")).ends_with("link is no directory"));
        assert!(told(place.0.clone()).contains("no file"));
        let gone = place.0.join("gone");
        std::fs::create_dir(&gone).expect("made");
        let held = std::fs::File::open(&gone).expect("open");
        std::fs::remove_dir(&gone).expect("removed");
        let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        assert_eq!(told(Path::new(&held).join("new")), format!("the directory {held} was deleted"));
        // Also root may not write there.
        assert!(told("/proc/sys/rustmx/profile.toml".into()).starts_with("/proc/sys cannot be written to"));
    }

    /// A home that belongs to somebody else, as in containers that run under another user.
    #[test]
    fn what_lies_where_nobody_may_look_is_told_from_what_may_not_be_read() {
        let place = Place::new("hidden");
        let [path, closed] = ["file", "closed"].map(|name| place.0.join(name));
        std::fs::write(&path, "x").expect("written");
        std::fs::create_dir(&closed).expect("made");
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
        mode(&place.0, 0o755);
        [&path, &closed].into_iter().for_each(|path| mode(path, 0));
        let looked = [path, closed.join("file")];
        let told = std::thread::spawn(move || {
            // Of this thread alone. Whoever is no root need not, and may not.
            let nobody = rustix::process::Uid::from_raw(65534);
            let _ = rustix::thread::set_thread_res_uid(nobody, nobody, nobody);
            looked.map(|path| read(&path, 9).expect_err("refused"))
        });
        let told = told.join().expect("ends");
        assert!(matches!(told, [Refusal::Unreadable(_), Refusal::Hidden]), "{told:?}");
        // So that it can be removed.
        mode(&closed, 0o700);
    }

    /// Two hosts that share a directory often have processes of one number.
    #[test]
    fn who_has_the_same_number_writes_another_draft() {
        let place = Place::new("at once");
        let path = place.0.join("file");
        let write = |text: &str| (0..100).try_for_each(|_| renew(&path, text).and_then(|()| replace(&path, text)));
        std::thread::scope(|all| {
            let writers = ["one", "two", "six"].map(|text| all.spawn(move || write(text)));
            writers.into_iter().for_each(|writer| writer.join().expect("ends").expect("written"));
        });
        assert_eq!(read(&path, 3).expect("text").len(), 3);
    }

    #[test]
    fn what_is_no_such_file_is_refused_without_waiting() {
        let place = Place::new("refused");
        let path = place.0.join("file");
        let is = |path: &Path, most: u64| read(path, most).expect_err("refused");
        assert!(matches!(is(&place.0, 9), Refusal::NotAFile));
        let pipe = place.0.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        assert!(matches!(is(&pipe, 9), Refusal::NotAFile));
        assert!(matches!(is(Path::new("/dev/zero"), 9), Refusal::NotAFile));
        std::fs::write(&path, "12345").expect("written");
        assert!(matches!(is(&path, 4), Refusal::TooLong));
        assert!(matches!(is(&path.join("x"), 4), Refusal::Absent), "below a file");
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        assert!(matches!(is(&path, 4), Refusal::NotText));
        for open in [0o662, 0o626] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(open)).expect("set");
            assert!(matches!(is(&path, 4), Refusal::Open), "{open:o}");
        }
    }

    #[test]
    fn whose_file_is_trusted() {
        assert!(trusted(1000, 0o100644, 1000).is_ok() && trusted(0, 0o100644, 1000).is_ok() && trusted(0, 0o600, 0).is_ok());
        assert!(matches!(trusted(1001, 0o100644, 1000), Err(Refusal::Foreign(1001))));
        assert!(matches!(trusted(1000, 0o100644, 0), Err(Refusal::Foreign(1000))), "root does not read everybody's");
        assert!(matches!(trusted(1000, 0o100664, 1000), Err(Refusal::Open)));
        for refusal in [Refusal::Absent, Refusal::Open, Refusal::Foreign(7)] {
            assert!(!refusal.to_string().is_empty());
        }
    }
}
