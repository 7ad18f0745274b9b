//! Address vectors that processes share: found while the creator does nothing, what its death leaves, creators in a race, and a
//! hostile one. The other processes are this test program in another role ([`role`]).

mod common;

use common::process::{self, Copy, copy, follow_parent, hear, say};
use common::{Msg, Node, attr, watchdog};
use rustix::fd::OwnedFd;
use rustix::thread::CapabilitySet;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::SharedMem;
use rustmx::sys::{host, memfd, socket};
use rustmx::{Addr, AddressVector, Config, Domain, Error, Log, Name};
use std::sync::Arc;

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["creator", title] => creator(title),
        ["hidden", title] => hidden(title),
        ["racer", title] => racer(title),
        ["liar", title] => liar(title),
        _ => panic!("no such role: {words:?}"),
    }
}

fn start(words: &str) -> Copy {
    copy("role", words)
}

fn title() -> String {
    format!("test/{:x}", host::random())
}

fn open(title: &str) -> Result<AddressVector, Error> {
    AddressVector::shared(title, true, 0).map_err(|no| no.error)
}

/// Inserts what it is told, and sits in a system call meanwhile.
fn creator(title: &str) {
    let av = AddressVector::shared(title, false, 10).expect("create");
    assert!(!av.is_read_only());
    say("ready");
    loop {
        let at = av.add(&hear().parse::<Name>().expect("a name")).expect("room");
        say(&at.0.to_string());
    }
}

/// May not be looked into.
fn hidden(title: &str) {
    let _av = AddressVector::shared(title, false, 10).expect("create");
    process::keep_out();
    say("ready");
    hear();
}

fn racer(title: &str) {
    say("ready");
    hear();
    let av = AddressVector::shared(title, false, 10).expect("one or the other");
    say(if av.is_read_only() { "opened" } else { "created" });
    hear();
}

#[test]
fn readers_need_nothing_of_the_creator_but_its_life() {
    let _watchdog = watchdog("readers_need_nothing_of_the_creator_but_its_life", 60);
    let title = title();
    assert_eq!(open(&title).err(), Some(Error::NoVector));
    let mut other = start(&format!("creator {title}"));
    assert_eq!(other.hear(), "ready");
    let av = Arc::new(open(&title).expect("open"));
    let bound = av.bind();
    assert!(av.is_read_only() && av.is_empty());
    assert_eq!((av.add(&Name::new(1, 0, 1, None)), av.remove(Addr(0))), (Err(Error::ReadOnly), Err(Error::ReadOnly)));
    let nodes = [Node::new(), Node::new()];
    for (i, node) in nodes.iter().enumerate() {
        let before = bound.epoch();
        other.tell(&node.name().to_string());
        assert_eq!(other.hear(), i.to_string());
        assert!(bound.epoch() != before);
        assert_eq!(av.lookup(Addr(i as u64)), Ok(node.name()));
    }
    assert_eq!((av.len(), av.count_local(host::id())), (2, 2));
    other.kill();
    // What we have stays; the name is free.
    assert_eq!(open(&title).err(), Some(Error::NoVector));
    assert_eq!(av.find(|n| *n == nodes[1].name()), Some(Addr(1)));
    let again = AddressVector::shared(&title, false, 0).expect("create");
    assert!(!again.is_read_only() && again.is_empty());
}

#[test]
fn a_creator_that_may_not_be_looked_into_is_named() {
    let _watchdog = watchdog("a_creator_that_may_not_be_looked_into_is_named", 60);
    // Whoever may look into everybody (root) is not refused: this thread gives that up.
    let mut can = rustix::thread::capabilities(None).expect("capabilities");
    can.effective.remove(CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    rustix::thread::set_capabilities(None, can).expect("one may always have less");
    let title = title();
    let mut other = start(&format!("hidden {title}"));
    assert_eq!(other.hear(), "ready");
    for must_exist in [true, false] {
        let no = AddressVector::shared(&title, must_exist, 0).err().expect("refused");
        assert_eq!(no.error, Error::Permission);
        assert!(no.why.contains(&format!("/proc/{}/fd", other.pid())), "{}", no.why);
    }
}

#[test]
fn of_many_creators_one_creates() {
    let _watchdog = watchdog("of_many_creators_one_creates", 60);
    for _ in 0..5 {
        let words = format!("racer {}", title());
        let mut racers: Vec<Copy> = (0..4).map(|_| start(&words)).collect();
        racers.iter_mut().for_each(|r| assert_eq!(r.hear(), "ready"));
        racers.iter_mut().for_each(|r| r.tell("go"));
        let said: Vec<String> = racers.iter_mut().map(Copy::hear).collect();
        assert_eq!(said.iter().filter(|s| *s == "created").count(), 1, "{said:?}");
    }
}

/// Listens at the vector's name, with memory that is named right and holds what no rustmx writes.
fn liar(title: &str) {
    // Sound header words, found out from a real vector of the same name.
    let words: Vec<u64> = {
        let _real = AddressVector::shared(title, false, 0).expect("create");
        let found = memfd::find(std::process::id().cast_signed(), "rustmx-av", 1 << 20, |_| true).expect("proc").expect("there");
        let mem = SharedMem::new(found);
        (0..mem.bytes() / 8).map(|i| mem.word(i).load(Ordering::Relaxed)).collect()
    };
    let make = |change: &dyn Fn(&mut Vec<u64>), bytes: usize| -> (OwnedFd, SharedMem) {
        let mut words = words.clone();
        change(&mut words);
        let (fd, map) = memfd::create("rustmx-av", bytes, true).expect("memfd");
        let mem = SharedMem::new(map);
        (0..mem.bytes() / 8).zip(words).for_each(|(i, w)| mem.word(i).store(w, Ordering::Relaxed));
        (fd, mem)
    };
    let full = words.len() * 8;
    let _socket = socket::listen(&format!("rustmx/1/av/{}/{title}", rustix::process::geteuid().as_raw())).expect("listen");
    // None of these is a vector: too small, cut off, another size, another name, another version.
    let mut held = vec![
        make(&|_| {}, 64),
        make(&|_| {}, 4096),
        make(&|w| w[1] = u64::MAX, full),
        make(&|w| w[1] += 1 << 32, full),
        make(&|w| w[16] += 1, full),
        make(&|w| w[0] += 1 << 56, full),
    ];
    say("lies");
    hear();
    // This is one, full of garbage.
    held.push(make(
        &|w| {
            w[9] = u64::MAX;
            w[32..].iter_mut().enumerate().for_each(|(i, w)| *w = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        },
        full,
    ));
    say("garbage");
    hear();
    let (_, mem) = held.last().expect("just made");
    follow_parent();
    say("storm");
    for i in 0u64.. {
        let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mem.word((at >> 32) as usize % (full / 8)).store(at, Ordering::Relaxed);
    }
}

#[test]
fn a_hostile_creator_is_not_believed() {
    let _watchdog = watchdog("a_hostile_creator_is_not_believed", 60);
    let title = title();
    let mut other = start(&format!("liar {title}"));
    assert_eq!(other.hear(), "lies");
    assert_eq!(open(&title).err(), Some(Error::NoVector));
    assert_eq!(AddressVector::shared(&title, false, 0).err().map(|no| no.error), Some(Error::AddressInUse));
    other.tell("more");
    assert_eq!(other.hear(), "garbage");
    let av = open(&title).expect("that looks like one");
    assert_eq!((av.len(), av.capacity()), (0, Some(4096)));
    for at in [0, 4095, 4096, 1 << 40, u64::MAX] {
        assert_eq!(av.lookup(Addr(at)), Err(Error::UnknownAddress));
    }
    // An endpoint that uses it goes on, whatever the epoch does.
    let mut domain = Domain::new(Arc::new(Config::default()), Log::silent());
    let (cq, ep, av) = (domain.cq_open(), domain.ep_open(attr()).expect("endpoint"), Arc::new(av));
    domain.ep_bind_av(ep, av.clone()).expect("av");
    domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    domain.ep_enable(ep).expect("enable");
    let mut node = Node { domain, ep, cq, av };
    other.tell("storm");
    assert_eq!(other.hear(), "storm");
    for i in 0..2000 {
        assert_eq!(node.send(Msg::new(Addr(i % 5000), 1), &mut [0; 8]), Err(Error::UnknownAddress));
        node.poll();
    }
    assert!(other.child.try_wait().expect("wait").is_none());
}
