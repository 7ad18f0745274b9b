//! Where the preloadable heap is, without which no memory of the measuring processes can be exported.

use crate::Failure;
use std::path::{Path, PathBuf};

const FILE: &str = "librustmx_heap.so";

/// The heap's file: the one that is named, or the first that lies beside this program or where libfabric is to look for providers; or why
/// there is none, and what helps.
///
/// # Errors
/// If the named one is no file.
pub(crate) fn find(named: Option<&Path>) -> Result<Result<PathBuf, String>, Failure> {
    if let Some(path) = named {
        return match path.canonicalize() {
            Ok(path) if path.is_file() => Ok(Ok(path)),
            _ => {
                Err(format!("--heap {}: there is no such file; `cargo build --release -p rustmx-heap` makes one", path.display()))
            }
        };
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_path_buf()));
    let said = std::env::var("FI_PROVIDER_PATH").unwrap_or_default();
    Ok(beside.into_iter().chain(directories(&said)).map(|at| at.join(FILE)).find(|at| at.is_file()).ok_or_else(|| {
        format!(
            "{FILE} is neither beside this program nor in FI_PROVIDER_PATH; `cargo build --release -p rustmx-heap` makes it, --heap names it"
        )
    }))
}

/// The directories of `FI_PROVIDER_PATH`: `@` and a file, or `+` before a directory or file, have a meaning to libfabric.
fn directories(said: &str) -> impl Iterator<Item = PathBuf> {
    said.split(':').filter(|part| !part.is_empty() && *part != "@").map(|part| {
        let path = Path::new(part.trim_start_matches(['+', '@']));
        if path.is_dir() { path.to_path_buf() } else { path.parent().unwrap_or(path).to_path_buf() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_libfabric_are_understood() {
        let own = std::env::current_exe().expect("own path");
        let (file, directory) = (own.display(), own.parent().expect("a directory"));
        let said = format!("@:+{}:+{file}::{}", directory.display(), directory.display());
        assert_eq!(directories(&said).collect::<Vec<_>>(), [directory, directory, directory]);
    }

    #[test]
    fn what_is_named_must_be_there() {
        assert!(find(Some(Path::new("/nonsense.so"))).expect_err("not there").contains("cargo build"));
        let own = std::env::current_exe().expect("own path");
        assert_eq!(find(Some(&own)).expect("there"), Ok(own.canonicalize().expect("there")));
    }
}
