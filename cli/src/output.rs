//! What the command says in the end: on standard output, and in a file of its own. Both may be full, closed, or not to be written.

use crate::Failure;
use rustix::fs::{Access, access};
use rustmx::sys::own_file;
use serde::{Serialize, Serializer};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Says it on standard output. Who reads only the beginning of it (`| head`) has what he wants.
///
/// # Errors
/// If it cannot be written there.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    say_to(&mut std::io::stdout().lock(), text)
}

/// One JSON object on standard output.
///
/// # Errors
/// If it cannot be written there.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
    say(&format!("{text}\n"))
}

/// A path in JSON, which is text: bytes of it that are none are shown as replacement characters.
pub(crate) fn path<S: Serializer>(path: &Option<impl AsRef<Path>>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.as_ref().to_string_lossy()).serialize(to)
}

fn say_to(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(unwritten(&e)),
        _ => Ok(()),
    }
}

/// Why nothing, or not all, is on standard output.
pub(crate) fn unwritten(why: &std::io::Error) -> Failure {
    format!("cannot write to standard output ({why}); is its disk full?")
}

/// Whether a file could be [written](write), as far as can be told without touching it: asked before anything takes minutes.
///
/// # Errors
/// Why not, and the option that names another one.
pub(crate) fn can_write(path: &Path, option: &str) -> Result<(), Failure> {
    let directory = path.parent().filter(|at| !at.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let may = match path {
        _ if path.is_dir() => Err("that is a directory".into()),
        _ if takes_bytes(path) => access(path, Access::WRITE_OK).map_err(|e| e.to_string()),
        // A profile has a place of its own that is made; a page goes where somebody works.
        _ if !directory.is_dir() => Err(format!("there is no directory {}", directory.display())),
        _ => own_file::may_replace(path),
    };
    may.map_err(|why| refusal(path, &why, option))
}

/// Puts a file in its place at once: on a full disk the old one stays.
///
/// # Errors
/// Why it cannot be written, and the option that names another one.
pub(crate) fn write(path: &Path, text: &str, option: &str) -> Result<(), Failure> {
    let written = if takes_bytes(path) { std::fs::write(path, text) } else { own_file::replace(path, text) };
    written.map_err(|why| refusal(path, &why, option))
}

/// Whether somebody reads what is written there, as behind a pipe: that is not replaced.
fn takes_bytes(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

fn refusal(path: &Path, why: &dyn std::fmt::Display, option: &str) -> Failure {
    format!("cannot write {} ({why}); choose another file for {option}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes nothing, and says why.
    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_reads_no_more_is_no_failure_and_a_full_disk_is_one() {
        assert_eq!(say_to(&mut Closed(ErrorKind::BrokenPipe), "x"), Ok(()));
        assert!(say_to(&mut Closed(ErrorKind::StorageFull), "x").expect_err("full").contains("is its disk full?"));
    }

    #[test]
    fn what_cannot_be_written_is_seen_before() {
        let own = std::env::temp_dir();
        assert_eq!(can_write(&own.join("rustmx-not-there-yet"), "--html"), Ok(()));
        for bad in [own.join("no/such/directory/x"), own] {
            let why = can_write(&bad, "--html").expect_err("no file");
            assert!(why.contains("--html") && why.contains(&bad.display().to_string()), "{why}");
        }
    }

    /// Whoever has the old page open, or lacks the room for the new one, has a whole one.
    #[test]
    fn a_page_is_replaced_as_a_whole_and_a_device_is_not() {
        let [page, old] = ["page", "old"].map(|name| std::env::temp_dir().join(format!("rustmx-{name}-{}", std::process::id())));
        std::fs::write(&page, "old").expect("written");
        std::fs::hard_link(&page, &old).expect("linked");
        assert_eq!((can_write(&page, "--html"), write(&page, "new", "--html")), (Ok(()), Ok(())));
        assert_eq!([&page, &old].map(|path| std::fs::read_to_string(path).expect("text")), ["new", "old"]);
        [page, old].iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
        let null = Path::new("/dev/null");
        assert_eq!((can_write(null, "--html"), write(null, "new", "--html")), (Ok(()), Ok(())));
        assert!(takes_bytes(null), "it is still the device");
        let why = write(Path::new("/dev/full"), "new", "--html").expect_err("full");
        assert!(why.contains("No space left") && why.contains("another file for --html"), "{why}");
    }
}
