//! What the tests that leave this process share: where things are, a C compiler, programs with a time limit.
#![allow(dead_code, unused_imports, reason = "every test binary uses a part")]

#[path = "../../../provider/tests/common/bounded.rs"]
mod bounded;

#[path = "../../../provider/tests/common/left_out.rs"]
mod left_out;

pub use bounded::{finish, run, start, text};
pub use left_out::left_out;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fresh directory below cargo's own for tests.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}

/// A directory that holds nothing but the library under test: `FI_PROVIDER_PATH` for stock libfabric.
///
/// `RUSTMX_PROVIDER_DIR` names another one (a release build, an old version); else it is the library that cargo built beside
/// this test.
pub fn provider_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("RUSTMX_PROVIDER_DIR") {
        return dir.into();
    }
    let test = std::env::current_exe().expect("own path");
    let deps = test.parent().expect("target/…/deps");
    let library = deps.join("librustmx_fi.so");
    assert!(library.exists(), "{} is missing: cargo builds it with this test", library.display());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("provider-{}", test.file_name().unwrap_or_default().to_string_lossy()));
    std::fs::create_dir_all(&dir).expect("a directory for the provider");
    let link = dir.join("librustmx_fi.so");
    if !link.exists() {
        // Tests of one binary run in parallel: one of them makes it.
        let _ = std::os::unix::fs::symlink(&library, &link);
    }
    dir
}

/// A stock program with our provider and nothing else of ours in its environment.
pub fn stock(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut c = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FI_") {
            c.env_remove(name);
        }
    }
    // Nor the profile of whoever runs the tests.
    c.env("FI_PROVIDER_PATH", provider_dir()).env("FI_PROVIDER", "rustmx").env("XDG_CONFIG_HOME", env!("CARGO_TARGET_TMPDIR"));
    c
}

/// Compiles one C file. Says which package is missing if the headers are.
pub fn compile(source: &Path, program: &Path, options: &[&str]) {
    let out = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-pthread", "-o"])
        .arg(program)
        .arg(source)
        .args(options)
        .output()
        .expect("gcc in PATH");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(
        !err.contains("rdma/") || !err.contains("No such file"),
        "libfabric's headers are not installed: apt install libfabric-dev\n{err}"
    );
    assert!(out.status.success(), "gcc {}:\n{err}", source.display());
}
