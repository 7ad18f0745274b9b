//! What the tests that leave this process share: where things are, a C compiler, programs with a time limit.
#![allow(dead_code, reason = "every test binary uses a part")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// Runs to the end, or panics with all output after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    finish(start(command), limit)
}

/// A program that runs. Killed when dropped: a test that fails must not leave one behind that eats a core.
pub struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn start(command: &mut Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e} (Debian: apt install libfabric-bin)"));
    Running(Some(child))
}

pub fn finish(mut running: Running, limit: Duration) -> Output {
    let mut child = running.0.take().expect("it is finished once");
    // Who says more than a pipe holds waits until it is read.
    let (stdout, stderr) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let until = Instant::now() + limit;
    let (status, late) = loop {
        match child.try_wait().expect("wait") {
            Some(status) => break (status, false),
            None if Instant::now() > until => {
                let _ = child.kill();
                break (child.wait().expect("wait"), true);
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().expect("read"));
    let out = Output { status, stdout, stderr };
    assert!(!late, "not finished after {limit:?}:\n{}", text(&out));
    out
}

fn reading(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.expect("it is piped").read_to_end(&mut bytes).expect("read");
        bytes
    })
}

/// Both streams, for looking into and for messages.
pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
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
