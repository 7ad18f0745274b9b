//! C programs, compiled by gcc and run with the heap preloaded, each with a time limit.
#![allow(dead_code, reason = "every test binary uses a part")]

#[path = "../../../provider/tests/common/bounded.rs"]
mod bounded;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// What a program may take. They take a second or two of a core; machines that are busy with other things take longer.
pub const LIMIT: Duration = Duration::from_secs(600);

/// The library that cargo built beside this test; `RUSTMX_HEAP_LIBRARY` names another one (a release build).
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("RUSTMX_HEAP_LIBRARY") {
        // The loader leaves out what it does not find with no more than a warning; and programs run in other directories.
        return Path::new(&path).canonicalize().unwrap_or_else(|e| panic!("RUSTMX_HEAP_LIBRARY={}: {e}", path.display()));
    }
    let test = std::env::current_exe().expect("own path");
    let library = test.parent().expect("target/…/deps").join("librustmx_heap.so");
    assert!(library.exists(), "{} is missing: cargo builds it with this test", library.display());
    library
}

/// A fresh directory below cargo's own for tests.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}

/// Compiles `tests/c/NAME` for the test `by` (tests run at once).
pub fn compile(name: &str, by: &str) -> PathBuf {
    compile_with(name, by, &[])
}

/// As [`compile`], with more arguments for the compiler.
pub fn compile_with(name: &str, by: &str, more: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("tests/c").join(name);
    let program = scratch(by).join(name.replace('.', "-"));
    let compiler = if name.ends_with(".cc") { "g++" } else { "gcc" };
    let mut command = Command::new(compiler);
    // The compiler must not know what malloc and free are: it would leave out what is to be tested.
    command.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread", "-I"]).arg(root.join("../include"));
    let out = command.arg(&source).args(more).arg("-o").arg(&program).arg("-ldl").output().expect("a C compiler");
    assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    program
}

/// An allocator beside the C library's, to be preloaded; ci/setup.sh installs it.
pub fn allocator(name: &str) -> PathBuf {
    let arch = std::env::consts::ARCH;
    let places = [format!("/usr/lib/{arch}-linux-gnu"), "/usr/lib64".into(), "/usr/lib".into()];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed: ci/setup.sh"))
}

/// A program with the heap preloaded and none of our settings.
pub fn preloaded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library());
    command
}

/// A program without the heap.
pub fn plain(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RUSTMX_HEAP") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// Runs to the end; panics if that takes too long.
pub fn run(command: &mut Command) -> Output {
    bounded::run(command, LIMIT)
}

/// Runs; it must end well and print nothing on standard error. What it printed on standard output.
pub fn succeeds(command: &mut Command) -> String {
    let out = run(command);
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && stderr.is_empty(), "{command:?}: {}\n{stdout}\n{stderr}", out.status);
    stdout.into_owned()
}

/// Compiles and runs a program of tests/c with the heap preloaded: it checks itself, and prints `ok` at its end.
pub fn c_program(name: &str, by: &str, arguments: &[&str], settings: &[(&str, &str)]) {
    let program = compile(name, by);
    let printed = succeeds(preloaded(&program).args(arguments).envs(settings.iter().copied()));
    assert!(printed.ends_with("ok\n"), "{name} {arguments:?}: {printed}");
}
