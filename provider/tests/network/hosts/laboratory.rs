//! The laboratory of these tests. There is one of its name on a machine, and whoever makes one ends whatever runs in the last: so one test has it at a time, of
//! all test programs that run.

use super::{LAB, lab, run_on};
use crate::common::process::{copy, role, say};
use std::fs::{File, TryLockError, create_dir_all};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The laboratory, for as long as a test needs it.
pub(super) struct Lab(#[expect(dead_code, reason = "held")] File);

impl Lab {
    /// Waits until nobody else has it. `None`: there is no laboratory here.
    pub fn up(words: &[&str]) -> Option<Lab> {
        if std::env::var_os("RUSTMX_TEST_NETLAB").is_none() {
            eprintln!("left out: no laboratory (RUSTMX_TEST_NETLAB)");
            return None;
        }
        let claim = claim();
        claim.lock().expect("the laboratory's lock");
        let mut all = vec!["up"];
        all.extend(words);
        lab(&["down"]);
        lab(&all);
        Some(Lab(claim))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            lab(&["down"]);
        }
    }
}

/// What whoever has the laboratory has locked: opened anew by each, so that threads exclude each other, too; and the kernel unlocks it for who dies. It lies
/// beside the laboratory's own files and stays when that is down. (`ci/netlab.sh` has a lock of its own, while it changes a laboratory; how long
/// somebody needs one it does not know.)
fn claim() -> File {
    let dir = std::env::var_os("NETLAB_STATE").map_or_else(|| PathBuf::from("/run/rustmx-netlab"), PathBuf::from);
    loop {
        create_dir_all(&dir).expect("a directory for the laboratory");
        match File::options().create(true).append(true).open(dir.join(format!(".{LAB}.tests"))) {
            Ok(file) => return file,
            // Somebody's last laboratory is down, and the directory gone with it.
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => panic!("{}: {why}", dir.display()),
        }
    }
}

/// Not a test of its own: another test program that needs the laboratory.
#[test]
fn role_of_another_test_program() {
    if role().is_none() {
        return;
    }
    say(if matches!(claim().try_lock(), Err(TryLockError::WouldBlock)) { "somebody has it" } else { "nobody has it" });
    let _lab = Lab::up(&["--hosts", "2"]);
    say("has it");
}

#[test]
fn two_test_programs_never_have_the_laboratory_at_once() {
    let Some(_lab) = Lab::up(&["--hosts", "1"]) else { return };
    let host = || run_on("h1", "readlink /proc/self/ns/net");
    let ours = host();
    let mut other = copy("hosts::laboratory::role_of_another_test_program", "needs it");
    assert_eq!(other.hear(), "somebody has it");
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!((other.heard(), host()), (None, ours.clone()));
    }
}
