//! Memory that is changed while a message out of it is under way. The program may not do that; its peer reads the file that was lent, so the message is
//! what it was when it was sent, and comes to no harm. The next message, out of what is there then, must be right: without the monitor it is not.
//!
//! The sender helps with no copy here (`FI_RUSTMX_LEND=read`): it would read its own buffer, as in every other protocol.

use super::change::{ALL, Change, Place};
use super::common::process::{self, role, say};
use super::common::{Msg, Want, acquaint, all_ok, pattern, run, watchdog};
use super::plain::until_mapped;
use super::space::{self, PAGE};
use super::{bytes, forced, into, node};
use rustmx::Config;
use rustmx::cache::Oversight;
use std::path::{Path, PathBuf};

/// Longer than the receiver copies before its turn is over.
const PAGES: usize = 100;
const N: usize = PAGES * PAGE - 300;
/// Who is told of no change forgets nothing: fewer than a peer may be lent.
pub const ROUNDS: usize = 9;

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
        let mut place = Place::new(change, round * 4 * PAGES, PAGES, &files[0]);
        let here = place.at;
        until_mapped(&mut a, &mut b, here, &mut into);
        let mapped = a.stats().mapped;
        bytes(here, N).copy_from_slice(&pattern(N, round));
        into.fill(0xee);
        a.send(Msg::new(to_b, 5), bytes(here, N)).expect("send");
        // Before the receiver has heard of it, after that, and while it copies; but the break, which this thread's allocator may move.
        if round % 3 == 1 {
            (0..100).for_each(|_| b.quiet(1));
        }
        let beside = round % 3 == 2 && change != Change::Break;
        let mut make = || place.make(change, &files[1]);
        let made = std::thread::scope(|scope| {
            let made = if beside {
                scope.spawn(make);
                true
            } else {
                make()
            };
            b.recv(Want::tag(5), &mut into).expect("recv");
            let got = run(&mut [&mut a, &mut b], &[1, 1]);
            assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
            made
        });
        assert_eq!(a.stats().mapped, mapped + 1, "{change:?}, round {round}: it was lent");
        let sent = pattern(N, round);
        let may = |(i, byte): (usize, &u8)| *byte == sent[i] || (change == Change::Remove && *byte == 0);
        during += usize::from(into != sent && !into.iter().enumerate().all(may));
        assert!(made, "somebody else has raised the break");
        // What is there now, at once.
        let next = pattern(N, ROUNDS + round);
        bytes(here, N).copy_from_slice(&next);
        into.fill(0xee);
        b.recv(Want::tag(6), &mut into).expect("recv");
        a.send(Msg::new(to_b, 6), bytes(here, N)).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        after += usize::from(into != next);
        place.end();
    }
    (during, after)
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn part() {
    let Some(words) = role() else { return };
    let _dog = watchdog("during", 120);
    let [who, change, oversight] = &words[..] else { panic!("no such part: {words:?}") };
    let change = *ALL.iter().find(|c| c.name() == change).expect("a change");
    let oversight = if oversight == "blind" { Oversight::Blind } else { Oversight::Tireless };
    let (during, after) = if who == "sender" { torture(change, oversight) } else { into::torture(change, oversight) };
    say(&format!("{during} {after}"));
}

#[track_caller]
fn outcome(who: &str, change: Change, oversight: &str, preload: Option<&Path>) -> (usize, usize) {
    let mut command = process::command("during::part", &format!("{who} {} {oversight}", change.name()));
    // It would move the break.
    command.env("TCMALLOC_SKIP_SBRK", "1");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let ended = command.output().expect("a copy of this program");
    let (said, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{who} {change:?} {oversight}: {}\n{said}\n{errors}", ended.status);
    let line = said.lines().find_map(|line| line.strip_prefix('@')).expect("what came of it");
    let (during, after) = line.split_once(' ').expect("two numbers");
    let (during, after) = (during.parse().expect("a number"), after.parse().expect("a number"));
    println!("{who} {change:?} {oversight} {preload:?}: {during} and {after} wrong of {ROUNDS}");
    let what = match who {
        "sender" => format!("messages during {}, and the next ones", change.name()),
        _ => format!("messages during {} at the receiver, and the next ones", change.name()),
    };
    let counts = [ROUNDS as u64, 2 * ROUNDS as u64, (during + after) as u64];
    process::tell_counts(&what, preload, oversight != "blind", counts);
    (during, after)
}

/// Right under the monitor; and if that is off, wrong where it can be.
#[track_caller]
fn changes(who: &str, preload: Option<&Path>) {
    for change in ALL {
        assert_eq!(outcome(who, change, "watched", preload), (0, 0), "{who} {change:?}");
        let (during, after) = outcome(who, change, "blind", preload);
        assert_eq!(
            (during, after > 0),
            (0, change.replaces()),
            "{who} {change:?}: {after} of the next messages are wrong without the monitor"
        );
    }
}

#[test]
fn what_is_changed_during_a_message() {
    changes("sender", None);
}

#[test]
fn what_is_changed_at_the_receiver_during_a_message() {
    changes("receiver", None);
}

#[test]
fn with_jemalloc() {
    let [jemalloc, _]: [PathBuf; 2] = process::allocators();
    ["sender", "receiver"].into_iter().for_each(|who| changes(who, Some(&jemalloc)));
}

#[test]
fn with_tcmalloc() {
    let [_, tcmalloc]: [PathBuf; 2] = process::allocators();
    ["sender", "receiver"].into_iter().for_each(|who| changes(who, Some(&tcmalloc)));
}
