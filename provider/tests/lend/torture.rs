//! Two processes. Each changes its memory between messages in every way that Linux has, sends out of it or receives into it, and every byte is
//! compared.

use super::common::process::{self, Copy};
use super::common::{Deadline, Event, Msg, Node, Rng, Want, pattern, seg, watchdog};
use super::space::{self, PAGE, Raised, Space};
use super::{bytes, filter, forced, node};
use rustix::fd::OwnedFd;
use rustix::mm::Advice;
use rustmx::cache::Oversight;
use rustmx::{Config, Name, OpFlags};
use std::path::PathBuf;
use std::time::Duration;

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

/// What is done to memory between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// mmap(2), MAP_FIXED, of a file.
    Over,
    /// munmap(2), then mmap(2).
    Unmap,
    /// mremap(2) to elsewhere, and something else there.
    Move,
    /// mmap(2), MAP_FIXED, of private memory.
    Private,
    /// madvise(2): MADV_DONTNEED, MADV_REMOVE.
    Empty,
    /// fork(2), and the child unmaps its own.
    Fork,
    /// brk(2): the break falls below a file that was laid over it, and rises again below something else.
    Break,
    /// None: the message is on the stack, where another frame's was.
    Stack,
}

const ALL: [Change; 8] =
    [Change::Over, Change::Unmap, Change::Move, Change::Private, Change::Empty, Change::Fork, Change::Break, Change::Stack];

impl Change {
    fn name(self) -> String {
        format!("{self:?}")
    }

    /// Whether who is not told of it sends bytes of what was there before. If not: a mapping of a file shows what is in the file, also after
    /// its pages were taken away, for the program writes its next message to that file; what a child unmaps is the child's; and the
    /// stack is private memory, which no cache of this kind ever knows anything of.
    fn replaces(self) -> bool {
        !matches!(self, Change::Empty | Change::Fork | Change::Stack)
    }
}

struct Side {
    node: Node,
    rng: Rng,
    files: Vec<OwnedFd>,
    /// Memory above the program break.
    raised: Option<Raised>,
    /// What is done; `None`: everything.
    only: Option<Change>,
}

impl Side {
    fn new(node: Node, seed: u64, only: Option<Change>) -> Side {
        let files = (0..FILES).map(|_| space::memfd(true)).collect();
        let mut side = Side { node, rng: Rng(seed), files, raised: None, only };
        side.lay(0, PAGES, true, (0, 0));
        if matches!(only, None | Some(Change::Break)) {
            side.move_the_break((0, 0));
        }
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
        use Change::{Break, Empty, Fork, Move, Over, Private, Stack, Unmap};
        // Some are more worth it than others.
        let any = [Over, Over, Over, Over, Unmap, Unmap, Move, Private, Empty, Fork, Break, Break];
        match self.only.unwrap_or_else(|| self.rng.pick(&any)) {
            Over => self.lay(first, pages, true, other),
            Unmap => {
                space::unmap(at, pages);
                self.lay(first, pages, false, other);
            }
            Move => {
                // Away, and something else there. What does not go as a whole may have gone in part.
                let away = Space::address(2 * PAGES);
                let moved = space::remap(at, pages, pages, Some(away), false);
                space::unmap(away, pages);
                self.lay(first, pages, !moved, other);
            }
            Private => {
                assert!(space::map(at, pages, None, true));
                if self.only.is_some() {
                    // Else there would soon be nothing that can be lent.
                    let rest = (first + pages) % PAGES;
                    self.lay(rest, if rest < first { first - rest } else { PAGES - rest }, true, other);
                }
            }
            Empty => {
                // Private memory has no holes to be punched, which is no matter.
                space::advise(at, pages, self.rng.pick(&[Advice::LinuxDontNeed, Advice::LinuxRemove]));
            }
            Fork => {
                let code = space::fork(|| {
                    space::unmap(at, pages);
                    0
                });
                assert_eq!(code, 0);
            }
            Break => self.move_the_break(other),
            Stack => {}
        }
    }

    /// Lowers the break below what is there, and raises it again.
    fn move_the_break(&mut self, (file, turn): (usize, usize)) {
        if let Some(raised) = self.raised.take() {
            let at = raised.address();
            if !raised.lower() {
                // Of somebody who raised it further all of it is the allocator's memory for ever.
                assert!(space::map(at, PAGES, None, true));
            }
        }
        self.raised = Raised::new(PAGES);
        if let Some(raised) = &self.raised
            && !self.rng.one_in(4)
        {
            assert!(space::map(raised.address(), PAGES, Some((&self.files[file], turn * PAGES)), true));
        }
    }

    /// Has `then` send or receive a message, out of or into the next place for one.
    fn with_buffer(&mut self, len: usize, mut then: impl FnMut(&mut Side, &mut [u8])) {
        let offset = 16 * self.rng.range(0, 8);
        let on_the_stack = self.only.map_or(self.rng.one_in(8), |only| only == Change::Stack);
        if on_the_stack {
            let deeper = self.rng.range(0, 3);
            return stack(deeper, &mut |whole| then(self, &mut whole[offset..offset + len]));
        }
        let raised = self.raised.as_ref().map(Raised::address);
        let base = raised.filter(|_| self.only == Some(Change::Break) || self.rng.one_in(4)).unwrap_or(space::BASE);
        let first = self.rng.pick(&FIRST);
        then(self, bytes(base + first * PAGE + offset, len));
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

/// Memory of so many frames further down the stack.
#[inline(never)]
fn stack(deeper: usize, then: &mut dyn FnMut(&mut [u8])) {
    let mut buffer = [0u8; LONGEST + PAGE];
    match deeper {
        0 => then(&mut buffer),
        _ => stack(deeper - 1, then),
    }
    std::hint::black_box(&buffer);
}

fn config(lend: u64) -> Config {
    Config { lend, ..forced() }
}

fn oversight(word: &str) -> Oversight {
    if word == "blind" { Oversight::Blind } else { Oversight::Tireless }
}

fn send(run: &Run, to: &str) {
    process::follow_parent();
    let mut side = Side::new(node(config(run.lend), oversight(&run.sender)), run.seed, run.only);
    let to = side.node.av.insert(&Name::from_bytes(&unhex(to)).expect("name"));
    process::say(&side.node.name().to_string());
    for round in 0..run.rounds {
        if side.rng.one_in(3) {
            side.change();
        }
        let n = length(round);
        side.with_buffer(n, |side, buffer| {
            buffer.copy_from_slice(&pattern(n, round));
            if run.receiver == "blind" {
                // What the sender writes can be wrong there: it does for a receive that waits, which invites it. Else that is up to the scheduler.
                std::thread::sleep(Duration::from_micros(500));
            }
            let message = Msg::new(to, round as u64).with(OpFlags::DELIVERY_COMPLETE);
            side.node.sendv(message, &[seg(buffer)], true).expect("send");
            side.wait(round).expect("sent");
        });
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

fn receive(run: &Run, mut sender: impl FnMut(&str) -> Copy) {
    let mut side = Side::new(node(config(run.lend), oversight(&run.receiver)), run.seed + 1, run.only);
    let mut sender = sender(&hex(&side.node.name().to_bytes()));
    let from = side.node.av.insert(&sender.hear().parse::<Name>().expect("name"));
    let (rounds, mut wrong) = (run.rounds, 0);
    for round in 0..rounds {
        if side.rng.one_in(3) {
            side.change();
        }
        for _ in 0..side.rng.pick(&[0, 0, 1, 50]) {
            // Early or late.
            side.node.quiet(1);
        }
        let n = length(round);
        side.with_buffer(n, |side, buffer| {
            buffer.fill(0xee);
            side.node.recvv(Want::tag(round as u64).from(from), &[seg(buffer)], true).expect("recv");
            let c = side.wait(round).expect("received");
            assert_eq!(c.len, n);
            wrong += usize::from(*buffer != pattern(n, round)[..]);
        });
    }
    process::say(&format!("{rounds} {wrong} {}", sender.hear()));
}

/// What both sides are told, in words.
struct Run {
    rounds: usize,
    seed: u64,
    lend: u64,
    sender: String,
    receiver: String,
    only: Option<Change>,
    filtered: String,
}

impl Run {
    fn parse(words: &[&str]) -> Run {
        let [rounds, seed, lend, sender, receiver, only, filtered] = *words else { panic!("no such run: {words:?}") };
        Run {
            rounds: rounds.parse().expect("rounds"),
            seed: seed.parse().expect("seed"),
            lend: lend.parse().expect("terms"),
            sender: sender.into(),
            receiver: receiver.into(),
            only: ALL.into_iter().find(|change| change.name() == only),
            filtered: filtered.into(),
        }
    }
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let _dog = watchdog("lend role", 150);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [what, run @ .., to] = &words[..] else { panic!("no such role: {words:?}") };
    let told = run.join(" ");
    let run = Run::parse(run);
    if run.filtered == "filtered" {
        filter::without_userfaultfd();
    }
    match *what {
        "send" => send(&run, to),
        "receive" => receive(&run, |name| process::copy("torture::role", &format!("send {told} {name}"))),
        _ => panic!("no such role: {what}"),
    }
}

/// How it is done.
struct How {
    sender: &'static str,
    receiver: &'static str,
    filtered: &'static str,
    /// What is done between messages; `None`: everything.
    only: Option<Change>,
    user: Option<u32>,
    /// An allocator, for both.
    preload: Option<PathBuf>,
    lend: u64,
    rounds: usize,
}

const HOW: How =
    How { sender: "watched", receiver: "watched", filtered: "free", only: None, user: None, preload: None, lend: 0, rounds: 500 };

#[track_caller]
fn outcome(how: &How) -> Outcome {
    let How { sender, receiver, filtered, only, user, preload, lend, rounds } = how;
    let change = only.map_or("everything".into(), Change::name);
    let seed = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11u64);
    let words = format!("receive {rounds} {seed} {lend} {sender} {receiver} {change} {filtered} -");
    let (mut command, _copy) = process::command_by(*user, "torture::role", &words);
    // It would raise the break above what the test has there.
    command.env("TCMALLOC_SKIP_SBRK", "1");
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
    if *filtered == "free" && *lend != 2 && only.is_none() {
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

/// Each change by itself: never a stale byte; and some, where there can be, if the sender is not told. (At the receiver it is up to the scheduler
/// whether the sender writes at all: `into.rs`.)
#[test]
fn each_change_by_itself() {
    for change in ALL {
        let only = How { only: Some(change), rounds: 120, ..HOW };
        let Outcome { wrong, mapped, .. } = outcome(&only);
        assert_eq!((wrong, mapped > 0), (0, change != Change::Stack), "{change:?}: {mapped} were mapped");
        let Outcome { wrong, .. } = outcome(&How { sender: "blind", ..only });
        assert_eq!(wrong > 0, change.replaces(), "{change:?}: {wrong} are wrong without the monitor");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 56] {
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect();
    bytes.try_into().expect("a name")
}
