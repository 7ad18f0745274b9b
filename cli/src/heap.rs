//! Where the preloadable heap is, without which no memory of the measuring processes can be exported.

use crate::node::Buffer;
use crate::partner::Partner;
use crate::{Failure, work};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

const FILE: &str = "librustmx_heap.so";

/// The heap's file: the one that is named, or the first that lies beside this program or where libfabric is to look for providers; or why
/// there is none, and what helps.
///
/// # Errors
/// If the named one is not the heap.
pub(crate) fn find(named: Option<&Path>) -> Result<Result<PathBuf, String>, Failure> {
    if let Some(path) = named {
        let refused = |why: &str| format!("--heap {}: {why}; `cargo build --release -p rustmx-heap` makes one", path.display());
        let path = path.canonicalize().map_err(|_| refused("there is no such file"))?;
        return usable(&path).map(|()| Ok(path)).map_err(|why| refused(&why));
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_path_buf()));
    let said = std::env::var("FI_PROVIDER_PATH").unwrap_or_default();
    Ok(beside.into_iter().chain(directories(&said)).map(|at| at.join(FILE)).find(|at| at.is_file()).ok_or_else(|| {
        format!(
            "{FILE} is neither beside this program nor in FI_PROVIDER_PATH; `cargo build --release -p rustmx-heap` makes it, --heap names it"
        )
    }))
}

/// Whether a process that has this file before all others has the heap. ld.so says in its own words what it cannot load, and goes on without.
fn usable(path: &Path) -> Result<(), String> {
    if !path.is_file() {
        return Err("that is no file".into());
    }
    let (own, its) = (head(Path::new("/proc/self/exe")), head(path).map_err(|why| format!("it cannot be read ({why})"))?);
    if !is_library(&its) || own.is_ok_and(|own| !is_alike(&own, &its)) {
        return Err("that is no shared library for this machine".into());
    }
    if path.as_os_str().as_encoded_bytes().iter().any(|b| b": ".contains(b)) {
        return Err("LD_PRELOAD takes no path with a colon or a space".into());
    }
    let said = Partner::start("heap", Some(path), &[]).and_then(|mut process| process.hear());
    match said.as_deref() {
        Ok(HEAP) => Ok(()),
        Ok(NO_MEMORY) => Err("it gives no memory that can be exported (see what it said above, and RUSTMX_HEAP)".into()),
        Ok(_) => Err(format!("that is no {FILE}")),
        Err(why) => Err(format!("no process runs with it: {why}")),
    }
}

/// What a process says that has the heap, memory out of it included; that has only the heap.
const HEAP: &str = "heap";
const NO_MEMORY: &str = "no memory";

/// What the process says that [`usable`] starts.
pub(crate) fn tell() -> Result<(), Failure> {
    work::say(match Buffer::exported(1) {
        Some(_) => HEAP,
        None if rustmx::sys::heap::heap().is_some() => NO_MEMORY,
        None => "no heap",
    })
}

/// The beginning of an ELF file: what it is, and for which machine.
type Head = [u8; 20];

fn head(path: &Path) -> std::io::Result<Head> {
    let mut head = [0; size_of::<Head>()];
    let mut file = std::fs::File::open(path)?;
    match file.read_exact(&mut head) {
        Err(why) if why.kind() == ErrorKind::UnexpectedEof => Ok([0; size_of::<Head>()]),
        read => read.map(|()| head),
    }
}

/// `ET_DYN`, in the byte order of either kind of machine.
fn is_library(head: &Head) -> bool {
    head.starts_with(b"\x7fELF") && [[3, 0], [0, 3]].iter().any(|kind| head[16..18] == *kind)
}

/// Of one word length, byte order and machine.
fn is_alike(one: &Head, other: &Head) -> bool {
    one[4..6] == other[4..6] && one[18..20] == other[18..20]
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
    fn what_is_named_must_be_a_library_of_this_machine() {
        assert!(find(Some(Path::new("/nonsense.so"))).expect_err("not there").contains("cargo build"));
        let own = head(&std::env::current_exe().expect("own path")).expect("readable");
        let (mut elsewhere, mut program) = (own, own);
        elsewhere[18] ^= 1;
        program[16..18].copy_from_slice(&[2, 0]);
        let no_file = head(Path::new("/dev/null")).expect("empty");
        assert_eq!([&own, &elsewhere, &program, &no_file].map(is_library), [true, true, false, false]);
        assert_eq!([&own, &elsewhere].map(|its| is_alike(&own, its)), [true, false]);
    }
}
