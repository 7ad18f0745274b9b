//! The registration cache against the truth: what is in memory, and what who follows its answers reads.
//!
//! | file | what it is |
//! |---|---|
//! | `space.rs` | addresses to do things to, stamps in them, and the check of an answer |
//! | `single.rs` | one thread: unmap, map over, move, resize, empty, brk, fork, exec, stack, heap |
//! | `threads.rs` | the same from other threads, between look-ups and during them |
//! | `blocks.rs` | what `malloc` gives and takes back, as buffers that io_uring has pinned |
//!
//! Every part runs in a process of its own, also with other allocators preloaded, as an ordinary user, and without a monitor.

mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod single;
mod space;
mod threads;

use common::{process, watchdog};
use rustmx::cache::Oversight;
use rustmx::cache::exports::{BUDGET, Exports};
use std::path::{Path, PathBuf};

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let _dog = watchdog("cache role", 150);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [part, oversight, amount] = words[..] else { panic!("no such role: {words:?}") };
    let oversight = if oversight == "blind" { Oversight::Blind } else { Oversight::Tireless };
    let amount: usize = amount.parse().expect("a number");
    let exports = || {
        let exports = Exports::new(BUDGET, oversight);
        assert_eq!(exports.refusal(), None);
        exports
    };
    let (seen, stale) = match part {
        "single" => {
            let mut torture = single::Torture::new(exports(), 7);
            torture.run(amount);
            (torture.counts(), torture.seen.stale + u64::from(torture.seen.hits == 0))
        }
        "crowd" => threads::crowd(exports(), amount as u64, 7),
        "reuse" => threads::reuse(exports(), amount),
        "blocks" => match blocks::run(oversight, amount, 7) {
            Ok(seen) => seen,
            Err(why) => return process::say(&format!("not tried: {why}")),
        },
        _ => panic!("no such part: {part}"),
    };
    process::say(&format!("{part} {seen}"));
    process::say(&format!("stale {stale}"));
}

/// How another process runs a part: what is preloaded, and as whom.
#[derive(Default)]
struct How {
    preload: Option<PathBuf>,
    user: Option<u32>,
}

/// Runs a part; answers how many stale answers it found (one more if it found nothing at all), or `None` if it cannot be tried here.
#[track_caller]
fn run(part: &str, oversight: &str, amount: usize, how: &How) -> Option<u64> {
    let (mut command, _copy) = process::command_by(how.user, "role", &format!("{part} {oversight} {amount}"));
    if part == "blocks" {
        command.envs(blocks::EAGER);
    }
    if let Some(library) = &how.preload {
        command.env("LD_PRELOAD", library);
    }
    let ended = command.output().expect("a copy of this program");
    let said = String::from_utf8_lossy(&ended.stdout);
    let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix('@')).collect();
    let stale = lines.iter().find_map(|line| line.strip_prefix("stale ")).and_then(|n| n.parse().ok());
    for line in &lines {
        println!("{} {oversight}: {line}", how.preload.as_deref().unwrap_or(Path::new("libc")).display());
    }
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{part} {oversight}: {}\n{said}\n{errors}", ended.status);
    if lines.iter().any(|line| line.starts_with("not tried")) {
        return None;
    }
    let counts = lines.iter().find(|line| line.starts_with(part)).expect("what was counted");
    let count = |name: &str| {
        let found = counts.split([' ', ',']).find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
        found.unwrap_or_else(|| panic!("no {name} in {counts}"))
    };
    let (what, checked, wrong) = match part {
        "single" => ("look-ups between changes, one thread", count("hits"), count("stale")),
        "crowd" => ("look-ups during changes of other threads", count("checked"), count("stale")),
        "blocks" => {
            // Both kinds, if it is the C library's allocator.
            assert!(
                how.preload.is_some() || count("below_the_break") > 0 && count("hits") > count("below_the_break"),
                "{counts}"
            );
            ("messages out of pinned blocks of malloc", count("hits"), count("stale"))
        }
        _ => {
            ("look-ups where another thread unmaps and this one maps", count("hits") - count("unsettled"), count("stale_settled"))
        }
    };
    assert!(checked > 0, "nothing was checked: {counts}");
    process::tell_counts(what, how.preload.as_deref(), oversight != "blind", [amount as u64, checked, wrong]);
    Some(stale.expect("a number"))
}

const SINGLE: usize = 6000;
const CROWD: usize = 2000;
const REUSE: usize = 3000;
const BLOCKS: usize = 1000;

fn all(how: &How) {
    assert_eq!(run("single", "monitored", SINGLE, how), Some(0), "stale answers");
    assert_eq!(run("crowd", "monitored", CROWD, how), Some(0), "stale answers");
    assert_eq!(run("reuse", "monitored", REUSE, how), Some(0), "stale answers");
}

#[test]
fn nothing_stale_is_ever_found() {
    all(&How::default());
}

#[test]
fn with_other_allocators() {
    for library in process::allocators() {
        all(&How { preload: Some(library), ..How::default() });
    }
}

#[test]
fn as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        // Then all the others are.
        return;
    }
    all(&How { user: Some(65534), ..How::default() });
}

/// The tests see what the monitor is for.
#[test]
fn without_the_monitor_stale_answers_are_found() {
    for part in ["single", "crowd", "reuse"] {
        assert!(run(part, "blind", 600, &How::default()) > Some(0), "{part} cannot fail");
    }
}

/// Whatever allocator gives blocks and takes them back, what is sent out of one is what was written there; without the monitor it is not.
#[test]
fn blocks_of_allocators_that_are_pinned() {
    let [jemalloc, tcmalloc] = process::allocators();
    for preload in [None, Some(jemalloc), Some(tcmalloc)] {
        let how = How { preload, ..How::default() };
        let Some(stale) = run("blocks", "monitored", BLOCKS, &how) else { return };
        assert_eq!(stale, 0, "stale bytes");
        assert!(run("blocks", "blind", BLOCKS, &how) > Some(0), "cannot fail");
    }
}
