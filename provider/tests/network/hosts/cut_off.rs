//! A host is cut off: its process and its kernel live on and know nothing, and nobody else hears of them. Whatever waits for it ends in time.

use super::Lab;
use crate::common::process::{Copy, follow_parent, hear, say};
use crate::common::{Deadline, Msg, Node, Want, attr, pattern, watchdog};
use crate::keys::Between;
use crate::scene::place;
use crate::waits::Waiter;
use rustmx::config::network::Secret;
use rustmx::{Addr, CompFlags, Config, Error, Name, Nap, OpFlags};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What waits for the host that goes.
const WAYS: [&str; 11] = [
    // The host has answered up to the last moment: this takes longest, and longer still for who sleeps.
    "receive",
    "sleeps",
    "read",
    "write",
    "atomic",
    // All kinds, with a full window; everything is encrypted; it begins when the host is gone.
    "all",
    "keyed",
    "late",
    // First contact: the hello is not answered; a proof of the key is not; a proof was, and then nothing more.
    "hello",
    "proof",
    "confirmed",
];
/// Milliseconds beyond the patience: for a turn that ends operations, and the clock of the kernel. What a core is waited for does not count.
const SLACK: u64 = 100;
/// A host that hears and says nothing any more.
const DEAF: &str = "nft 'table inet gone {
    chain in { type filter hook input priority 0; policy drop; }
    chain out { type filter hook output priority 0; policy drop; }
    }'";

/// The shipped patience.
fn config(way: &str) -> Config {
    let key = if is_keyed(way) { Secret::new(&[7; 32]) } else { Secret::default() };
    Config { shm: 0, encrypt: (way == "keyed").into(), auth_key: key, ..Config::default() }
}

fn is_keyed(way: &str) -> bool {
    ["keyed", "proof", "confirmed"].contains(&way)
}

/// Whether nobody has answered yet.
fn is_first_contact(way: &str) -> bool {
    ["hello", "proof", "confirmed"].contains(&way)
}

/// Answers first contact, or not, and then does nothing.
pub(super) fn mute(words: &[String]) {
    let way = words[0].as_str();
    let mut mute = Waiter::new(Node::with(config(way), attr()));
    let node = &mut mute.node;
    let mut between = None;
    let mut into = [0; 8];
    match way {
        "confirmed" => {
            let (between, name) = between.insert(Between::at(place(node).ip(), node, None));
            say(&name.to_string());
            let until = Deadline::new(20);
            while between.said[1].is_empty() {
                between.pass();
                node.quiet(1);
                until.check(|| "nobody calls".into());
            }
        }
        _ => say(&node.name().to_string()),
    }
    if !is_first_contact(way) {
        node.recv(Want::tag(0), &mut into).expect("recv");
        let until = Deadline::new(20);
        while node.poll().is_empty() {
            until.check(|| "nobody calls".into());
        }
        // What is acknowledged leaves.
        node.quiet(2000);
    }
    say("met");
    follow_parent();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

const QUESTION: u64 = 7;
const ANSWER: u64 = 8;
/// What nobody answers but a kernel.
const CHATTER: u64 = 9;
/// Bytes of a question, and of its answer.
const TALK: usize = 20_000;

/// Answers whoever asks. Tells its name, and is told those of the others: they say which of them they are.
pub(super) fn echo(words: &[String]) {
    let mut node = Node::with(config(&words[0]), attr());
    say(&node.name().to_string());
    let (mut into, mut out) = (vec![0; TALK], pattern(TALK, 1));
    let names: Vec<Name> = hear().split(' ').map(|name| name.parse().expect("a name")).collect();
    say("knows them");
    follow_parent();
    let known: Vec<_> = names.iter().map(|name| node.av.insert(name)).collect();
    node.recv(Want::tag(QUESTION), &mut into).expect("recv");
    loop {
        for event in node.poll() {
            let done = event.expect("nobody is gone");
            if done.flags.contains(CompFlags::RECV) {
                node.recv(Want::tag(QUESTION), &mut into).expect("recv");
                node.send(Msg::new(known[done.data as usize], ANSWER), &mut out).expect("send");
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a mute in a way, and talks with an echo.
struct Watcher<'a> {
    waiter: Box<Waiter>,
    way: &'a str,
    mute: Name,
    echo: Addr,
    number: u64,
    question: Vec<u8>,
    answer: Vec<u8>,
    /// Answers so far, and when the next question is asked.
    answers: usize,
    next: Option<Instant>,
}

impl Watcher<'_> {
    fn begin(&mut self, mute: Addr) {
        match WAYS.iter().position(|way| *way == self.way) {
            Some(one @ 0..5) => self.waiter.begin(mute, [0, 0, 3, 4, 5][one]),
            _ => self.waiter.begin_all(mute),
        }
    }

    /// A look, after a moment, or a sleep. What waits for the mute may end now, if it is gone.
    fn turn(&mut self, gone: bool) {
        let node = &mut self.waiter.node;
        if self.way == "sleeps" && gone {
            if let Nap::Sleep(limit) = node.domain.doze().expect("doze") {
                node.domain.waiter().expect("waiter").sleep(limit);
                node.domain.awake();
            }
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        for event in self.waiter.node.poll() {
            match event {
                Ok(done) if done.flags.contains(CompFlags::RECV) => {
                    assert!(self.answer == pattern(TALK, 1));
                    self.answers += 1;
                    // Who sleeps is woken by nothing else.
                    let pause = if self.way == "sleeps" { Duration::MAX } else { Duration::from_millis(50) };
                    self.next = Instant::now().checked_add(pause);
                }
                Ok(done) => assert!([QUESTION, CHATTER].contains(&(done.ctx.0 as u64)), "{done:?}"),
                error => {
                    assert!(gone, "who only computes is not gone: {error:?}");
                    self.waiter.ended(error, &self.mute, &[Error::Silent, Error::PeerGone]);
                }
            }
        }
        if self.next.is_some_and(|at| Instant::now() >= at) {
            self.asks();
        }
    }

    fn asks(&mut self) {
        self.next = None;
        self.answer.fill(0);
        let node = &mut self.waiter.node;
        node.recv(Want::tag(ANSWER).from(self.echo), &mut self.answer).expect("recv");
        node.send(Msg::new(self.echo, QUESTION).data(self.number), &mut self.question).expect("send");
    }

    /// Until there was a further answer.
    fn talks(&mut self, gone: bool) {
        let (before, until) = (self.answers, Deadline::new(20));
        if self.way == "sleeps" {
            self.asks();
        }
        while self.answers == before {
            self.turn(gone);
            until.check(|| "no answer from the third host".into());
        }
    }
}

pub(super) fn watcher(words: &[String]) {
    let [way, mute, echo, number] = words else { panic!("{words:?}") };
    let node = Node::with(config(way), attr());
    say(&node.name().to_string());
    hear();
    let mute: Name = mute.parse().expect("a name");
    let (to, echo) = (node.av.insert(&mute), node.av.insert(&echo.parse::<Name>().expect("a name")));
    let mut watcher = Watcher {
        waiter: Waiter::new(node),
        way,
        mute,
        echo,
        number: number.parse().expect("a number"),
        question: pattern(TALK, 2),
        answer: vec![0; TALK],
        answers: 0,
        next: Some(Instant::now()),
    };
    if is_first_contact(way) {
        watcher.begin(to);
    } else {
        let node = &mut watcher.waiter.node;
        // Nobody takes turns for us while we wait for orders: what is done must be done.
        node.send(Msg::new(to, 0).with(OpFlags::DELIVERY_COMPLETE), &mut [1; 8]).expect("send");
        node.complete(1);
        node.quiet(2000);
    }
    watcher.talks(false);
    say("met");
    // Until the other one looks no more.
    hear();
    if !is_first_contact(way) && way != "late" {
        watcher.begin(to);
    }
    let calm = Instant::now() + Duration::from_secs(4);
    while Instant::now() < calm {
        watcher.turn(false);
    }
    say("ready");
    let (tx, orders) = std::sync::mpsc::channel();
    std::thread::spawn(move || while tx.send(hear()).is_ok() {});
    let (mut chatter, mut last) = ([1; 8], Instant::now());
    let cut: u64 = loop {
        if let Ok(order) = orders.try_recv() {
            break order.parse().expect("milliseconds");
        }
        watcher.turn(false);
        // Not so much that there is no room for it.
        if ["receive", "sleeps"].contains(&way.as_str()) && last.elapsed() > Duration::from_millis(20) {
            last = Instant::now();
            watcher.waiter.node.send(Msg::new(to, CHATTER).inject(), &mut chatter).expect("send");
        }
    };
    if way == "late" {
        watcher.begin(to);
    }
    let until = Deadline::millis((config(way).peer_timeout + SLACK).saturating_sub(now() - cut));
    while !watcher.waiter.open().is_empty() {
        watcher.turn(true);
        until.check(|| format!("{way}: these wait: {:?}", watcher.waiter.open()));
    }
    say(&(now() - cut).to_string());
    watcher.talks(true);
    let answers = watcher.answers;
    drop(watcher);
    say(&format!("closed {answers}"));
}

/// Milliseconds, for other processes of this machine.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis() as u64
}

/// At the shipped patience, whatever waits: no later than that says, and a third host goes on meanwhile.
#[test]
fn who_is_cut_off_is_noticed_in_time() {
    let Some(lab) = Lab::up(&["--hosts", "3"]) else { return };
    let _dog = watchdog("cut_off", 300);
    for cut in ["all packets are lost", "the cable is pulled"] {
        let mut echoes = ["all", "keyed", "proof"].map(|way| lab.on("h3", &format!("echo {way}")));
        let names = echoes.each_mut().map(Copy::hear);
        let mut mutes = WAYS.map(|way| lab.on("h2", &format!("mute {way}")));
        let mut told = [const { Vec::new() }; 3];
        let mut watchers: Vec<Copy> = Vec::new();
        for (way, mute) in WAYS.into_iter().zip(&mut mutes) {
            let with = if way == "keyed" { 1 } else { 2 * usize::from(is_keyed(way)) };
            let mut watcher = lab.on("h1", &format!("watcher {way} {} {} {}", mute.hear(), names[with], told[with].len()));
            told[with].push(watcher.hear());
            watchers.push(watcher);
        }
        for (echo, names) in echoes.iter_mut().zip(told) {
            echo.tell(&names.join(" "));
            assert_eq!(echo.hear(), "knows them");
        }
        watchers.iter_mut().for_each(|w| w.tell("go"));
        for copy in mutes.iter_mut().chain(&mut watchers) {
            assert_eq!(copy.hear(), "met");
        }
        watchers.iter_mut().for_each(|w| w.tell("go"));
        watchers.iter_mut().for_each(|w| assert_eq!(w.hear(), "ready"));
        // Some of them talk now.
        std::thread::sleep(Duration::from_millis(300));
        let at = if cut == "the cable is pulled" {
            lab.say(&["link", "h2", "down"]);
            now().to_string()
        } else {
            lab.run_on("h2", &format!("{DEAF}; date +%s%3N"))
        };
        watchers.iter_mut().for_each(|w| w.tell(&at));
        for (way, watcher) in WAYS.into_iter().zip(&mut watchers) {
            let [took, closed] = [(); 2].map(|()| watcher.hear());
            eprintln!("{cut}, {way}: noticed after {took} ms; {closed} answers");
        }
        drop(watchers);
        if cut == "the cable is pulled" {
            lab.say(&["mend", "h2"]);
        } else {
            lab.run_on("h2", "nft delete table inet gone");
        }
    }
}
