//! The laboratories of these tests. Of each name there is one on a machine, and whoever makes one ends whatever runs in the last: so one test has it at a time, of
//! all test programs that run. There are several names: much of what happens between hosts is waiting, which several tests can do at once.

use crate::common::process::{Copy, command, copy, role, say, spawn};
use std::fs::{File, TryLockError, create_dir_all};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const LABS: [&str; 3] = ["rmxcut0", "rmxcut1", "rmxcut2"];

/// A laboratory, for as long as a test needs it.
pub(super) struct Lab {
    name: &'static str,
    _claim: File,
}

impl Lab {
    /// Waits until there is one that nobody has. `None`: there is no laboratory here.
    pub fn up(words: &[&str]) -> Option<Lab> {
        Lab::among(&LABS, words)
    }

    fn among(names: &[&'static str], words: &[&str]) -> Option<Lab> {
        if std::env::var_os("RUSTMX_TEST_NETLAB").is_none() {
            eprintln!("left out: no laboratory (RUSTMX_TEST_NETLAB)");
            return None;
        }
        let lab = loop {
            if let Some(free) = names.iter().find_map(|name| Lab::claimed(name)) {
                break free;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        lab.say(&["down"]);
        lab.say(&[&["up"], words].concat());
        Some(lab)
    }

    /// `None`: somebody has it.
    fn claimed(name: &'static str) -> Option<Lab> {
        let claim = claim(name);
        match claim.try_lock() {
            Ok(()) => Some(Lab { name, _claim: claim }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(why)) => panic!("the lock of {name}: {why}"),
        }
    }

    fn command(&self) -> Command {
        let mut lab = Command::new(std::env::var("RUSTMX_TEST_NETLAB").expect("a laboratory"));
        lab.env("NETLAB", self.name);
        lab
    }

    /// What `ci/netlab.sh` is told of it.
    pub fn say(&self, words: &[&str]) {
        let done = self.command().args(words).output().expect("the laboratory runs");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// A command on a host; what it said.
    pub fn run_on(&self, host: &str, script: &str) -> String {
        let done = self.command().args(["exec", host, "sh", "-ec", script]).output().expect("the laboratory runs");
        assert!(done.status.success(), "{host}: {script}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().into()
    }

    /// This program on a host.
    pub fn on(&self, host: &str, words: &str) -> Copy {
        self.on_by(&["exec", host], words)
    }

    /// The same behind words of the laboratory.
    pub fn on_by(&self, way: &[&str], words: &str) -> Copy {
        self.play("hosts::role_of_a_host", way, words)
    }

    /// The same in a role of this test.
    pub fn play(&self, test: &str, way: &[&str], words: &str) -> Copy {
        let inner = command(test, words);
        let mut outer = self.command();
        outer.args(way).arg(inner.get_program()).args(inner.get_args());
        outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        spawn(&mut outer)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.say(&["down"]);
        }
    }
}

/// What whoever has the laboratory has locked: opened anew by each, so that threads exclude each other, too; and the kernel unlocks it for who dies. It lies
/// beside the laboratory's own files and stays when that is down. (`ci/netlab.sh` has a lock of its own, while it changes a laboratory; how long
/// somebody needs one it does not know.)
fn claim(name: &str) -> File {
    let dir = std::env::var_os("NETLAB_STATE").map_or_else(|| PathBuf::from("/run/rustmx-netlab"), PathBuf::from);
    loop {
        create_dir_all(&dir).expect("a directory for the laboratory");
        match File::options().create(true).append(true).open(dir.join(format!(".{name}.tests"))) {
            Ok(file) => return file,
            // Somebody's last laboratory is down, and the directory gone with it.
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => panic!("{}: {why}", dir.display()),
        }
    }
}

/// For the test of this file alone.
const ALONE: [&str; 2] = ["rmxcut8", "rmxcut9"];

/// Not a test of its own: another test program that needs the laboratory.
#[test]
fn role_of_another_test_program() {
    if role().is_none() {
        return;
    }
    let free = ALONE.iter().filter(|name| claim(name).try_lock().is_ok()).count();
    say(&format!("{free} are free"));
    let lab = Lab::among(&ALONE, &["--hosts", "2"]).expect("a laboratory");
    say(lab.name);
    drop(lab);
    say("it is down");
}

#[test]
fn two_test_programs_never_have_a_laboratory_at_once() {
    let Some(first) = Lab::among(&ALONE, &["--hosts", "1"]) else { return };
    let second = Lab::among(&ALONE, &["--hosts", "1"]).expect("another");
    let host = |lab: &Lab| lab.run_on("h1", "readlink /proc/self/ns/net");
    let ours = [host(&first), host(&second)];
    assert_ne!(ours[0], ours[1]);
    let mut other = copy("hosts::laboratory::role_of_another_test_program", "needs it");
    assert_eq!(other.hear(), "0 are free");
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!((other.heard(), [host(&first), host(&second)]), (None, ours.clone()));
    }
    let name = second.name;
    drop(second);
    assert_eq!((other.hear().as_str(), other.hear().as_str()), (name, "it is down"));
}
