//! Memory that is changed while a message out of it is under way. The program may not do that; its peer reads the file that was lent, so the message is
//! what it was when it was sent, and comes to no harm. The next message, out of what is there then, must be right: without the monitor it is not.
//!
//! The sender helps with no copy here (`FI_RUSTMX_LEND=read`): it would read its own buffer, as in every other protocol.

use super::common::process::{self, role, say};
use super::common::{Msg, Want, acquaint, all_ok, pattern, run, watchdog};
use super::plain::until_mapped;
use super::space::{self, PAGE, Space};
use super::{bytes, forced, node};
use rustix::fd::OwnedFd;
use rustix::mm::Advice;
use rustmx::Config;
use rustmx::cache::Oversight;
use std::path::{Path, PathBuf};

/// Longer than the receiver copies before its turn is over.
const PAGES: usize = 100;
const N: usize = PAGES * PAGE - 300;
/// Who is told of no change forgets nothing: fewer than a peer may be lent.
const ROUNDS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// munmap(2), then mmap(2) of another file.
    Unmap,
    /// mmap(2), MAP_FIXED.
    Over,
    /// mremap(2) to elsewhere, and another file there.
    Move,
    /// madvise(2), MADV_DONTNEED: shared memory stays what it is.
    Empty,
    /// madvise(2), MADV_REMOVE: shared memory is zeroes.
    Remove,
    /// fork(2), and the child unmaps its own.
    Fork,
}

const ALL: [Change; 6] = [Change::Unmap, Change::Over, Change::Move, Change::Empty, Change::Remove, Change::Fork];

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::Unmap => "munmap",
            Change::Over => "MAP_FIXED",
            Change::Move => "mremap",
            Change::Empty => "MADV_DONTNEED",
            Change::Remove => "MADV_REMOVE",
            Change::Fork => "fork",
        }
    }

    /// Whether the addresses stand for another file afterwards. If not, nobody needs to be told: a mapping of the file shows what is in it.
    fn replaces(self) -> bool {
        matches!(self, Change::Unmap | Change::Over | Change::Move)
    }

    /// Bit by bit, from the end: the receiver copies from the front.
    fn make(self, here: usize, other: &OwnedFd) {
        const STEP: usize = 25;
        for page in (0..PAGES).step_by(STEP).rev() {
            let at = here + page * PAGE;
            let put = |over| assert!(space::map(at, STEP, Some((other, page)), over));
            match self {
                Change::Unmap => {
                    space::unmap(at, STEP);
                    put(false);
                }
                Change::Over => put(true),
                Change::Move => {
                    let away = at + 2 * PAGES * PAGE;
                    assert!(space::remap(at, STEP, STEP, Some(away), false));
                    put(false);
                    space::unmap(away, STEP);
                }
                Change::Empty => assert!(space::advise(at, STEP, Advice::LinuxDontNeed)),
                Change::Remove => assert!(space::advise(at, STEP, Advice::LinuxRemove)),
                Change::Fork => {
                    let child = || {
                        space::unmap(at, STEP);
                        0
                    };
                    assert_eq!(space::fork(child), 0);
                }
            }
        }
    }
}

/// Messages that came with wrong bytes: those during which memory was changed, and those after it.
fn torture(change: Change, oversight: Oversight) -> (usize, usize) {
    let config = || Config { lend: 1, ..forced() };
    let (mut a, mut b) = (node(config(), oversight), node(config(), Oversight::Tireless));
    acquaint(&mut a, &mut b);
    let to_b = a.knows(&b);
    let (mut during, mut after, mut into) = (0, 0, vec![0; N]);
    for round in 0..ROUNDS {
        let files = [space::memfd(true), space::memfd(true)];
        // Each round elsewhere.
        let here = Space::address(round * 4 * PAGES);
        assert!(space::map(here, PAGES, Some((&files[0], 0)), false));
        until_mapped(&mut a, &mut b, here, &mut into);
        let mapped = a.stats().mapped;
        bytes(here, N).copy_from_slice(&pattern(N, round));
        into.fill(0xee);
        a.send(Msg::new(to_b, 5), bytes(here, N)).expect("send");
        let changer = match round % 3 {
            // Before the receiver has heard of it, after that, and while it copies.
            0 => None,
            1 => {
                (0..100).for_each(|_| b.quiet(1));
                None
            }
            _ => Some(files[1].try_clone().expect("dup")),
        };
        let thread = changer.map(|other| std::thread::spawn(move || change.make(here, &other)));
        if thread.is_none() {
            change.make(here, &files[1]);
        }
        b.recv(Want::tag(5), &mut into).expect("recv");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        thread.into_iter().for_each(|thread| thread.join().expect("changed"));
        assert_eq!(a.stats().mapped, mapped + 1, "{change:?}, round {round}: it was lent");
        let sent = pattern(N, round);
        let may = |(i, byte): (usize, &u8)| *byte == sent[i] || (change == Change::Remove && *byte == 0);
        during += usize::from(!into.iter().enumerate().all(may));
        // What is there now, at once.
        let next = pattern(N, ROUNDS + round);
        bytes(here, N).copy_from_slice(&next);
        into.fill(0xee);
        b.recv(Want::tag(6), &mut into).expect("recv");
        a.send(Msg::new(to_b, 6), bytes(here, N)).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        after += usize::from(into != next);
        space::unmap(here, PAGES);
    }
    (during, after)
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn part() {
    let Some(words) = role() else { return };
    let _dog = watchdog("during", 120);
    let change = *ALL.iter().find(|c| c.name() == words[0]).expect("a change");
    let (during, after) = torture(change, if words[1] == "blind" { Oversight::Blind } else { Oversight::Tireless });
    say(&format!("{during} {after}"));
}

#[track_caller]
fn outcome(change: Change, oversight: &str, preload: Option<&Path>) -> (usize, usize) {
    let mut command = process::command("during::part", &format!("{} {oversight}", change.name()));
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let ended = command.output().expect("a copy of this program");
    let (said, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{change:?} {oversight}: {}\n{said}\n{errors}", ended.status);
    let line = said.lines().find_map(|line| line.strip_prefix('@')).expect("what came of it");
    let (during, after) = line.split_once(' ').expect("two numbers");
    let (during, after) = (during.parse().expect("a number"), after.parse().expect("a number"));
    println!("{change:?} {oversight} {preload:?}: {during} and {after} wrong of {ROUNDS}");
    let what = format!("messages during {}, and the next ones", change.name());
    let counts = [ROUNDS as u64, 2 * ROUNDS as u64, (during + after) as u64];
    process::tell_counts(&what, preload, oversight != "blind", counts);
    (during, after)
}

/// Right under the monitor; and if that is off, wrong where it can be.
#[track_caller]
fn changes(preload: Option<&Path>) {
    for change in ALL {
        assert_eq!(outcome(change, "watched", preload), (0, 0), "{change:?}");
        let (during, after) = outcome(change, "blind", preload);
        assert_eq!(
            (during, after > 0),
            (0, change.replaces()),
            "{change:?}: {after} of the next messages are wrong without the monitor"
        );
    }
}

#[test]
fn what_is_changed_during_a_message() {
    changes(None);
}

#[test]
fn with_jemalloc() {
    let [jemalloc, _]: [PathBuf; 2] = process::allocators();
    changes(Some(&jemalloc));
}

#[test]
fn with_tcmalloc() {
    let [_, tcmalloc]: [PathBuf; 2] = process::allocators();
    changes(Some(&tcmalloc));
}
