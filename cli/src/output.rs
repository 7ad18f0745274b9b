//! What the command says in the end: on standard output, and in a file of its own. Both may be full, closed, or not to be written.

use crate::Failure;
use rustix::fs::{Access, access};
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
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write to standard output ({e}); is its disk full?")),
        _ => Ok(()),
    }
}

/// Whether a file could be written, as far as can be told without touching it: asked before anything takes minutes.
///
/// # Errors
/// Why not, and the option that names another one.
pub(crate) fn can_write(path: &Path, option: &str) -> Result<(), Failure> {
    let directory = path.parent().filter(|at| !at.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if path.exists() { path } else { directory };
    let fail =
        |why: &dyn std::fmt::Display| Err(format!("cannot write {} ({why}); choose another file for {option}", path.display()));
    match access(place, Access::WRITE_OK) {
        _ if path.is_dir() => fail(&"that is a directory"),
        Ok(()) => Ok(()),
        Err(e) => fail(&e),
    }
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
}
