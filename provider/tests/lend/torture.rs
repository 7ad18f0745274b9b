//! Two processes. Each changes its memory between messages in every way that Linux has, sends out of it or receives into it, and every byte is
//! compared.

use super::common::process::{self, Copy};
use super::common::{Deadline, Event, Msg, Node, Rng, Want, pattern, seg, watchdog};
use super::space::{self, PAGE, Space};
use super::{bytes, filter, forced, node};
use rustix::fd::OwnedFd;
use rustix::mm::Advice;
use rustmx::cache::Oversight;
use rustmx::{Config, Name, OpFlags};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

const PAGES: usize = 64;
/// A page of memory is always that page of some file, this many pages further for each turn: no byte is at two places.
const TURNS: usize = space::FILE_PAGES / PAGES;
const FILES: usize = 4;
/// First pages of the buffers, which come again and again.
const FIRST: [usize; 5] = [0, 1, 5, 13, 14];
const LONGEST: usize = 48 * PAGE;

/// What is sent in a round; both sides know it.
fn length(round: usize) -> usize {
    Rng(round as u64).range(5_000, LONGEST)
}

struct Side {
    node: Node,
    rng: Rng,
    files: Vec<OwnedFd>,
    changes: u64,
}

impl Side {
    fn new(node: Node, seed: u64) -> Side {
        let side = Side { node, rng: Rng(seed), files: (0..FILES).map(|_| space::memfd(true)).collect(), changes: 0 };
        side.lay(0, PAGES, true, (0, 0));
        side
    }

    fn lay(&self, first: usize, pages: usize, over: bool, (file, turn): (usize, usize)) {
        let what = Some((&self.files[file], first + turn * PAGES));
        assert!(space::map(Space::address(first), pages, what, over), "somebody else is there");
    }

    /// Puts something else somewhere, or nowhere.
    fn change(&mut self) {
        let first = if self.rng.one_in(2) { 0 } else { self.rng.range(0, PAGES) };
        let pages = if self.rng.one_in(3) { PAGES - first } else { self.rng.range(1, PAGES - first + 1) };
        let other = (self.rng.range(0, FILES), self.rng.range(0, TURNS));
        let at = Space::address(first);
        self.changes += 1;
        match self.rng.below(10) {
            0..4 => self.lay(first, pages, true, other),
            4..6 => {
                space::unmap(at, pages);
                self.lay(first, pages, false, other);
            }
            6 => {
                // Away, and something else there. What does not go as a whole may have gone in part.
                let away = Space::address(2 * PAGES);
                let moved = space::remap(at, pages, pages, Some(away), false);
                space::unmap(away, pages);
                self.lay(first, pages, !moved, other);
            }
            7 => assert!(space::map(at, pages, None, true)),
            8 => {
                // Private memory has no holes to be punched, which is no matter.
                space::advise(at, pages, self.rng.pick(&[Advice::LinuxDontNeed, Advice::LinuxRemove]));
            }
            _ => {
                let code = space::fork(|| {
                    space::unmap(at, pages);
                    0
                });
                assert_eq!(code, 0);
            }
        }
    }

    /// Where the next message goes out or comes in.
    fn buffer(&mut self, len: usize) -> &'static mut [u8] {
        let first = self.rng.pick(&FIRST);
        bytes(Space::address(first) + 16 * self.rng.range(0, 8), len)
    }

    fn wait(&mut self, round: usize) -> Event {
        let until = Deadline::new(60);
        loop {
            if let Some(event) = self.node.poll().pop() {
                return event;
            }
            until.check(|| format!("round {round}: nothing happens, {:?}", self.node.stats()));
        }
    }
}

fn config(lend: u64) -> Config {
    Config { lend, ..forced() }
}

fn oversight(word: &str) -> Oversight {
    if word == "blind" { Oversight::Blind } else { Oversight::Tireless }
}

fn send(rounds: usize, seed: u64, lend: u64, watched: &str, to: &str) {
    process::follow_parent();
    let mut side = Side::new(node(config(lend), oversight(watched)), seed);
    let to = side.node.av.insert(&Name::from_bytes(&unhex(to)).expect("name"));
    for round in 0..rounds {
        if side.rng.one_in(3) {
            side.change();
        }
        let n = length(round);
        let buffer = side.buffer(n);
        buffer.copy_from_slice(&pattern(n, round));
        let message = Msg::new(to, round as u64).with(OpFlags::DELIVERY_COMPLETE);
        side.node.sendv(message, &[seg(buffer)], true).expect("send");
        side.wait(round).expect("sent");
    }
    let stats = side.node.stats();
    process::say(&format!("{} {}", stats.mapped, stats.stored));
}

/// What came of a run.
#[derive(Debug)]
struct Outcome {
    rounds: usize,
    wrong: usize,
    mapped: u64,
    /// Bytes that the sender put into the receiver's memory.
    stored: u64,
}

fn receive(rounds: usize, seed: u64, lend: u64, watched: &str, mut sender: impl FnMut(&str) -> Copy) {
    let mut side = Side::new(node(config(lend), oversight(watched)), seed);
    let mut sender = sender(&hex(&side.node.name().to_bytes()));
    let mut wrong = 0;
    for round in 0..rounds {
        if side.rng.one_in(3) {
            side.change();
        }
        for _ in 0..side.rng.pick(&[0, 0, 1, 50]) {
            // Early or late.
            side.node.quiet(1);
        }
        let n = length(round);
        let buffer = side.buffer(n);
        buffer.fill(0xee);
        side.node.recvv(Want::tag(round as u64), &[seg(buffer)], true).expect("recv");
        let c = side.wait(round).expect("received");
        assert_eq!(c.len, n);
        wrong += usize::from(*buffer != pattern(n, round)[..]);
    }
    process::say(&format!("{rounds} {wrong} {}", sender.hear()));
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let _dog = watchdog("lend role", 150);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [what, rounds, seed, lend, sender, receiver, filtered, to] = words[..] else { panic!("no such role: {words:?}") };
    let (rounds, seed, lend) = (rounds.parse().expect("rounds"), seed.parse().expect("seed"), lend.parse().expect("terms"));
    if filtered == "filtered" {
        filter::without_userfaultfd();
    }
    match what {
        "send" => send(rounds, seed, lend, sender, to),
        "receive" => receive(rounds, seed + 1, lend, receiver, |name| {
            process::copy("torture::role", &format!("send {rounds} {seed} {lend} {sender} {receiver} {filtered} {name}"))
        }),
        _ => panic!("no such role: {what}"),
    }
}

/// How it is done.
struct How {
    sender: &'static str,
    receiver: &'static str,
    filtered: &'static str,
    user: Option<u32>,
    /// An allocator, for both.
    preload: Option<PathBuf>,
    lend: u64,
    rounds: usize,
}

const HOW: How =
    How { sender: "watched", receiver: "watched", filtered: "free", user: None, preload: None, lend: 0, rounds: 500 };

#[track_caller]
fn outcome(how: &How) -> Outcome {
    let How { sender, receiver, filtered, user, preload, lend, rounds } = how;
    let seed = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11u64);
    let mut command =
        process::command("torture::role", &format!("receive {rounds} {seed} {lend} {sender} {receiver} {filtered} -"));
    if let Some(user) = user {
        command.uid(*user).gid(*user);
    }
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let ended = command.output().expect("a copy of this program");
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}\n{said}\n{errors}", ended.status);
    let line = said.lines().find_map(|line| line.strip_prefix('@')).expect("what came of it");
    let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [rounds, wrong, mapped, stored] = words[..] else { panic!("{line}") };
    let outcome = Outcome { rounds: rounds as usize, wrong: wrong as usize, mapped, stored };
    println!("{outcome:?}");
    if *filtered == "free" && *lend != 2 {
        let (what, watched) = match (*sender, *receiver) {
            ("blind", _) => ("messages between changes: the sender's memory", false),
            (_, "blind") => ("messages between changes: the receiver's memory", false),
            _ => ("messages between changes: both sides' memory", true),
        };
        let rounds = outcome.rounds as u64;
        process::tell_counts(what, preload.as_deref(), watched, [rounds, rounds, outcome.wrong as u64]);
    }
    outcome
}

/// Right to the last byte, and much of it in mapped memory.
#[track_caller]
fn all_is_right(how: &How) {
    let Outcome { rounds, wrong, mapped, stored } = outcome(how);
    assert_eq!((rounds, wrong), (how.rounds, 0), "stale bytes");
    assert!(mapped > rounds as u64 / 10, "{mapped} messages were mapped");
    // Whether it comes in time to write is the scheduler's business; that it may not, is ours.
    assert!(stored == 0 || how.lend == 0, "the sender wrote {stored} bytes");
}

#[test]
fn no_byte_is_of_what_was_there_before() {
    all_is_right(&HOW);
    all_is_right(&How { lend: 1, rounds: 200, ..HOW });
}

#[test]
fn as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        // Then all the others are.
        return;
    }
    all_is_right(&How { user: Some(65534), ..HOW });
}

#[test]
fn with_other_allocators() {
    for library in process::allocators() {
        all_is_right(&How { preload: Some(library), ..HOW });
    }
}

#[test]
fn who_has_no_userfaultfd_lends_nothing() {
    let Outcome { wrong, mapped, .. } = outcome(&How { filtered: "filtered", rounds: 200, ..HOW });
    assert_eq!((wrong, mapped), (0, 0));
}

#[test]
fn who_does_not_want_to_lends_nothing() {
    let Outcome { wrong, mapped, .. } = outcome(&How { lend: 2, rounds: 200, ..HOW });
    assert_eq!((wrong, mapped), (0, 0));
}

/// The tests see what the monitor is for, on either side.
#[test]
fn without_the_monitor_bytes_are_wrong() {
    let [jemalloc, tcmalloc] = process::allocators();
    for preload in [None, Some(jemalloc), Some(tcmalloc)] {
        for (sender, receiver) in [("blind", "watched"), ("watched", "blind")] {
            let Outcome { wrong, .. } = outcome(&How { sender, receiver, preload: preload.clone(), ..HOW });
            assert!(wrong > 0, "sender {sender}, receiver {receiver}, {preload:?}: cannot fail");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 56] {
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect();
    bytes.try_into().expect("a name")
}
