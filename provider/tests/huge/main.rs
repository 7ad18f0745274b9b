//! Messages of more than 2 GiB and of more than 4 GiB, by every way that carries them, between two processes: no length, offset or position
//! on the way is a number of 31 or 32 bits. Their buffers take a few megabytes (`vast.rs`), of which the bytes around such borders, the first and the
//! last are compared one by one. (Those that are lent, in `mapped.rs`, take all the memory that they are long.)

#![allow(clippy::result_large_err, reason = "an error entry is passed on as the engine gave it")]

#[path = "../common/mod.rs"]
mod common;
mod mapped;
mod vast;

use common::left_out::left_out;
use common::process::{self, Copy, copy, say};
use common::{Deadline, Event, Msg, Node, Want, watchdog};
use rustmx::config::force::Forced;
use rustmx::config::network::Iface;
use rustmx::{Access, Addr, Completion, Config, Error, Name, OpFlags, Region, RemoteSeg, RmaArgs, UserCtx, UserSeg};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vast::{BORDERS, Vast};

/// A message longer than a signed number of 32 bits tells, and one longer than any.
const OVER_2: usize = (2 << 30) + (9 << 20) + 12_345;
const OVER_4: usize = (4 << 30) + (9 << 20) + 12_345;

const PING: u64 = 1;
const LONG: u64 = 2;

/// Bytes of a message by which a receiver finds out that it may not read what others send.
const FOUND_OUT: usize = 1_000_000;

/// One at a time: they keep both cores busy, and have page tables.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a message is to go, in words of a role.
fn config(how: &str) -> Config {
    // Few fragments, for a compiler that does not optimise.
    let config = Config { ring_size: 1 << 20, fragment: 60 << 10, ..Config::default() };
    let forced = |way: &str| Forced::parse(way).0;
    let network = Config { shm: 0, iface: Iface::parse("127.0.0.1").0, ..config.clone() };
    match how {
        "kernel" => Config { protocol: forced("alone"), ..config },
        "both" | "sender" => Config { protocol: forced("shared"), ..config },
        "stream" => Config { protocol: forced("stream"), ..config },
        "helped" => Config { protocol: forced("alone"), copy_thread: 2, ..config },
        "mapped" => Config { protocol: forced("mapped-shared"), cma: 1, ..config },
        "mapped-alone" => Config { protocol: forced("mapped-alone"), cma: 1, ..config },
        "mapped-streaming" => Config { protocol: forced("mapped-shared"), copy: 2, cma: 1, ..config },
        "memory" => config,
        "engine" => Config { cma: 1, ..config },
        "network" => network,
        "lanes" => Config { tcp_lanes: 3, ..network },
        "uncopied" => Config { tcp_zerocopy: 1, ..network },
        _ => panic!("no such way: {how}"),
    }
}

/// A process of the test, in its role.
struct Side {
    node: Node,
    peer: Addr,
    told: Receiver<String>,
    /// What ended along with what was asked for: who was not on a core for a while finds more than one.
    events: VecDeque<Event>,
}

impl Side {
    fn new(how: &str) -> Side {
        let node = Node::with(config(how), common::attr());
        let (tell, told) = channel();
        std::thread::spawn(move || while tell.send(process::hear()).is_ok() {});
        say(&node.name().to_string());
        let mut side = Side { node, peer: Addr::UNSPEC, told, events: VecDeque::new() };
        let name = side.hear();
        side.peer = side.node.av.insert(&name.parse::<Name>().expect("a name"));
        side
    }

    /// What the test says next. Peers are served meanwhile.
    fn hear(&mut self) -> String {
        loop {
            if let Ok(line) = self.told.try_recv() {
                return line;
            }
            self.node.domain.progress();
        }
    }

    fn event(&mut self) -> Event {
        let until = Deadline::new(120);
        loop {
            self.events.extend(self.node.poll());
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            until.check(|| format!("no completion: {:?}", self.node.stats()));
        }
    }

    #[track_caller]
    fn complete(&mut self) -> Completion {
        self.event().expect("a message")
    }

    /// A word from the peer that called, and one back: then it has answered.
    fn acquaint(&mut self, calls: bool) {
        let (mut out, mut into) = ([1], [0]);
        self.node.recv(Want::tag(PING), &mut into).expect("recv");
        for sends in [calls, !calls] {
            if sends {
                self.node.send(Msg::new(self.peer, PING), &mut out).expect("send");
            }
            self.complete();
        }
    }
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    match words[..] {
        ["lends", how, len] => mapped::sends(how, number(len)),
        ["is-lent", how, len] => mapped::receives(how, number(len)),
        ["sends", how, len, cut] => sends(how, number(len), cut == "cut"),
        ["receives", how, len, cut] => receives(how, number(len), cut == "cut"),
        ["has-little-room", how, len] => has_little_room(how, number(len)),
        [what @ ("reads" | "writes"), how, len] => reaches(how, number(len), what == "reads"),
        [what @ ("is-read" | "is-written"), how, len] => is_reached(how, number(len), what == "is-read"),
        _ => panic!("no such role: {words:?}"),
    }
}

/// Where the pieces of a buffer end, differently on both sides: one is longer than 2 GiB itself.
fn ends(sends: bool, len: usize, cut: bool) -> Vec<usize> {
    match (cut, sends) {
        (false, _) => vec![],
        (true, true) => vec![1001, (2 << 30) + 77_778, (2 << 30) + 77_781],
        (true, false) => vec![3, len - 100_001],
    }
}

fn sends(how: &str, len: usize, cut: bool) {
    if how == "sender" {
        process::keep_out();
    }
    let from = Vast::full(len);
    let mut side = Side::new(how);
    side.acquaint(true);
    let mut found_out = vec![1; FOUND_OUT];
    if how == "sender" {
        side.node.send(Msg::new(side.peer, PING), &mut found_out).expect("send");
        side.complete();
    }
    let before = side.node.stats();
    side.node.sendv(Msg::new(side.peer, LONG), &from.pieces(&ends(true, len, cut)), true).expect("send");
    side.complete();
    let s = side.node.stats();
    let went = [s.syscall - before.syscall, s.stream - before.stream, s.fetched - before.fetched, s.stored - before.stored];
    say(&went.map(|n| n.to_string()).join(" "));
    side.hear();
}

fn receives(how: &str, len: usize, cut: bool) {
    if how == "sender" {
        // Whoever may trace everybody (root) is not kept out.
        process::give_up_tracing();
    }
    // There is room for more than comes.
    let into = Vast::blank(len + 1000);
    let mut side = Side::new(how);
    side.acquaint(false);
    let mut found_out = vec![0; FOUND_OUT];
    if how == "sender" {
        side.node.recv(Want::tag(PING), &mut found_out).expect("recv");
        side.complete();
    }
    let before = side.node.stats();
    side.node.recvv(Want::tag(LONG), &into.pieces(&ends(false, len, cut)), true).expect("recv");
    let c = side.complete();
    into.check(len).unwrap_or_else(|why| panic!("{how}: {why}"));
    let s = side.node.stats();
    say(&format!("{} {} {}", c.len, s.fetched - before.fetched, s.stored - before.stored));
    side.hear();
}

/// Has room for a little of the message, and is told how much more there was.
fn has_little_room(how: &str, len: usize) {
    const ROOM: usize = 100_000;
    let mut side = Side::new(how);
    side.acquaint(false);
    let mut into = vec![vast::BLANK; ROOM];
    side.node.recv(Want::tag(LONG), &mut into).expect("recv");
    let error = side.event().expect_err("not all of it");
    assert_eq!((error.error, error.c.len), (Error::Truncated, ROOM));
    assert!(into[..] == Vast::full(len).bytes(0..ROOM)[..]);
    say(&error.olen.to_string());
    side.hear();
}

/// Has memory for another: full, if it will be read. Looks at it when it is told to.
fn is_reached(how: &str, len: usize, full: bool) {
    let memory = if full { Vast::full(len) } else { Vast::blank(len) };
    let mut side = Side::new(how);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = Region { memory: memory.pieces(&[])[0], access, by_address: false };
    side.node.domain.mr_register(Some(1), region).expect("registered");
    side.acquaint(false);
    say("registered");
    while side.hear() == "look" {
        memory.check(len).unwrap_or_else(|why| panic!("{how}: {why}"));
        say("seen");
    }
}

/// Reads all of that memory, or writes it and reads a little; to and from two places here, and two there.
fn reaches(how: &str, len: usize, reads: bool) {
    let memory = if reads { Vast::blank(len) } else { Vast::full(len) };
    let mut side = Side::new(how);
    side.acquaint(true);
    assert_eq!(side.hear(), "go");
    if reads {
        side.transfer(false, &memory.pieces(&[70_001]), &[0..len - 7, len - 7..len]);
        memory.check(len).unwrap_or_else(|why| panic!("{how}: {why}"));
    } else {
        side.transfer(true, &memory.pieces(&[len - 70_001]), &[0..7, 7..len]);
        for border in BORDERS.into_iter().filter(|border| border + 10 < len) {
            let (mut few, there) = ([0; 10], border..border + 10);
            side.transfer(false, &[common::seg(&mut few)], std::slice::from_ref(&there));
            assert_eq!(few, memory.bytes(there)[..], "{border:#x}");
        }
    }
    let s = side.node.stats();
    say(&format!("{} {}", s.direct, s.one_sided));
    side.hear();
}

impl Side {
    fn transfer(&mut self, write: bool, iov: &[UserSeg], places: &[Range<usize>]) {
        let places: Vec<_> = places.iter().map(|p| RemoteSeg { addr: p.start as u64, len: p.len(), key: 1 }).collect();
        let (ctx, flags) = (UserCtx(1), Some(OpFlags::COMPLETION));
        let args = RmaArgs { to: self.peer, write, iov, places: &places, data: None, ctx, flags, inject: false };
        self.node.domain.rma(self.node.ep, &args).expect("started");
        self.complete();
    }
}

/// Two processes in roles, which know each other.
fn both(one: &str, other: &str) -> (Copy, Copy) {
    let (mut a, mut b) = (copy("role", one), copy("role", other));
    let names = [line(&mut a), line(&mut b)];
    a.tell(&names[1]);
    b.tell(&names[0]);
    (a, b)
}

/// What a process says, however long it takes.
#[track_caller]
fn line(copy: &mut Copy) -> String {
    loop {
        let ended = copy.child.try_wait().expect("wait");
        if let Some(line) = copy.heard() {
            return line;
        }
        assert!(ended.is_none(), "the other process has failed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[track_caller]
fn numbers<const N: usize>(copy: &mut Copy) -> [usize; N] {
    let numbers: Vec<usize> = line(copy).split(' ').map(|n| n.parse().expect("a number")).collect();
    numbers.try_into().expect("so many")
}

/// Both have said what they had to say.
#[track_caller]
fn end(copies: [&mut Copy; 2]) {
    for copy in copies {
        copy.tell("end");
        assert!(copy.ended().success());
    }
}

/// What a message did: messages that went by the kernel and as streams; bytes copied by the receiver, and by the sender.
#[track_caller]
fn message(how: &str, len: usize, cut: bool) -> [usize; 4] {
    let cut = if cut { "cut" } else { "whole" };
    let _turn = turn();
    let _dog = watchdog("a huge message", 300);
    let (mut a, mut b) = both(&format!("sends {how} {len} {cut}"), &format!("receives {how} {len} {cut}"));
    let [came, fetched, none] = numbers(&mut b);
    let [syscall, stream, nothing, stored] = numbers(&mut a);
    assert_eq!((came, none, nothing), (len, 0, 0), "{how}");
    end([&mut a, &mut b]);
    [syscall, stream, fetched, stored]
}

/// Whether the kernel refuses to copy here, whoever asks it.
fn refused(went: [usize; 4]) -> bool {
    let refused = went == [0, 1, 0, 0];
    if refused {
        left_out("cma", "the kernel does not allow process_vm_readv here at all");
    }
    refused
}

#[test]
fn the_receiver_has_the_kernel_copy() {
    let went = message("kernel", OVER_4, true);
    assert!(refused(went) || went == [1, 0, OVER_4, 0], "{went:?}");
}

#[test]
fn both_have_the_kernel_copy() {
    let went = message("both", OVER_4, false);
    let [_, stream, fetched, stored] = went;
    assert!(refused(went) || (stream, fetched + stored) == (0, OVER_4), "{went:?}");
}

/// The sender cannot be read, but may write.
#[test]
fn the_sender_has_the_kernel_copy() {
    let went = message("sender", OVER_2, true);
    assert!(refused(went) || went == [1, 0, 0, OVER_2], "{went:?}");
}

#[test]
fn a_helper_has_the_kernel_copy() {
    let went = message("helped", OVER_2, false);
    assert!(refused(went) || went == [1, 0, OVER_2, 0], "{went:?}");
}

#[test]
fn through_the_ring() {
    assert_eq!(message("stream", OVER_4, true), [0, 1, 0, 0]);
}

/// What one call of the kernel brings is not much more than a frame: the memory that a buffer is made of comes again after a few.
#[test]
fn by_network() {
    assert_eq!(message("network", OVER_4, true), [0, 1, 0, 0]);
}

#[test]
fn by_network_on_several_lanes() {
    assert_eq!(message("lanes", OVER_2, false), [0, 1, 0, 0]);
}

#[test]
fn by_network_without_copies_of_the_kernel() {
    assert_eq!(message("uncopied", OVER_2, true), [0, 1, 0, 0]);
}

/// No byte beyond the first goes anywhere: this is about what is said of the others.
#[test]
fn what_there_is_no_room_for_is_told() {
    for how in ["kernel", "both", "stream", "network"] {
        let _turn = turn();
        let _dog = watchdog("little room", 300);
        let (mut a, mut b) = both(&format!("sends {how} {OVER_4} whole"), &format!("has-little-room {how} {OVER_4}"));
        let [more] = numbers(&mut b);
        assert_eq!(more, OVER_4 - 100_000, "{how}");
        let [syscall, stream, ..] = numbers::<4>(&mut a);
        assert_eq!(syscall + stream, 1, "{how}");
        end([&mut a, &mut b]);
    }
}

/// Reads or writes; how many the initiator made alone, and how many the target's engine.
#[track_caller]
fn memory(how: &str, len: usize, reads: bool) -> [usize; 2] {
    let _turn = turn();
    let _dog = watchdog("huge memory", 300);
    let (one, other) = if reads { ("reads", "is-read") } else { ("writes", "is-written") };
    let (mut a, mut b) = both(&format!("{one} {how} {len}"), &format!("{other} {how} {len}"));
    assert_eq!(line(&mut b), "registered");
    a.tell("go");
    let done = numbers(&mut a);
    b.tell("look");
    assert_eq!(line(&mut b), "seen");
    end([&mut a, &mut b]);
    done
}

#[test]
fn memory_that_the_kernel_reads() {
    let done = memory("memory", OVER_2, true);
    assert!(done[1] > 0 || done == [1, 0], "{done:?}");
}

#[test]
fn memory_that_the_kernel_writes() {
    let done = memory("memory", OVER_4, false);
    assert!(done[1] > 0 || done == [4, 0], "{done:?}");
}

#[test]
fn memory_that_the_engine_reads() {
    assert_eq!(memory("engine", OVER_4, true), [0, 1]);
}

#[test]
fn memory_that_the_engine_writes() {
    assert_eq!(memory("engine", OVER_2, false), [0, 3]);
}

#[test]
fn memory_by_network() {
    assert_eq!(memory("network", OVER_2, false), [0, 3]);
}
