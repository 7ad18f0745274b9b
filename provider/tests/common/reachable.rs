//! Programs and libraries for another user: a tree below a directory that is its owner's alone (0700) hides from all others what was built in it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file, or a copy of it that ends with this.
pub struct Reachable {
    path: PathBuf,
    made: Option<PathBuf>,
}

impl Deref for Reachable {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        let _ = self.made.take().map(std::fs::remove_dir_all);
    }
}

/// A file where every user reaches it: where it is, if that will do.
#[track_caller]
pub fn reachable(file: &Path) -> Reachable {
    let file = file.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    if mode(&file) & 0o5 == 0o5 && hidden_by(&file).is_none() { Reachable { path: file, made: None } } else { copied(&file) }
}

/// A copy of a file where every user reaches it.
#[track_caller]
pub fn copied(file: &Path) -> Reachable {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("rustmx-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().canonicalize().expect("a directory for temporary files").join(name);
    std::fs::create_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let copy = Reachable { path: dir.join(file.file_name().expect("a file")), made: Some(dir.clone()) };
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    // By another program: what is open for writing here goes along to whatever another test starts just then, and cannot be executed as long.
    let done = Command::new("cp").arg("--").arg(file).arg(&copy.path).status().expect("cp");
    assert!(done.success(), "no copy of {}", file.display());
    std::fs::set_permissions(&copy.path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    if let Some(place) = hidden_by(&copy.path) {
        panic!("other users do not reach {}, where TMPDIR is: set it to a directory that is open to all", place.display());
    }
    copy
}

/// The directory that keeps others from a file.
fn hidden_by(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|place| mode(place) & 0o1 == 0)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).map_or(0, |about| about.permissions().mode())
}
