//! Threads that sleep until something happens: they wake, they cost nothing meanwhile, and no wake-up is lost. The other
//! processes are this test program in another role ([`role`]).

mod common;

use common::process::{self, Copy, copy, say};
use common::{Deadline, Event, Msg, Node, Want, all_ok, pattern, watchdog};
use rustmx::{Addr, CompFlags, Config, Error, Name, Nap, OpFlags, Waiter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["echo", name] => echo(name),
        ["late", name] => late(name),
        ["idle", name] => idle(name),
        _ => panic!("no such role: {words:?}"),
    }
}

fn peer(node: &Node, name: &str) -> Addr {
    node.av.insert(&name.parse::<Name>().expect("a name"))
}

/// How often it really slept.
#[derive(Default)]
struct Slept(usize);

/// Polls and sleeps until something comes, at most until `until`.
fn wait(node: &mut Node, waiter: &Waiter, until: Instant, slept: &mut Slept) -> Vec<Event> {
    loop {
        let got = node.poll();
        let now = Instant::now();
        if !got.is_empty() || now >= until {
            return got;
        }
        if let Nap::Sleep(limit) = node.domain.doze().expect("not a fork") {
            slept.0 += 1;
            let rest = until - now;
            waiter.sleep(Some(limit.map_or(rest, |l| l.min(rest))));
            node.domain.awake();
        }
    }
}

/// As [`wait`], but something must come, and soon.
#[track_caller]
fn wait_for(node: &mut Node, waiter: &Waiter, slept: &mut Slept) -> Vec<Event> {
    let start = Instant::now();
    let got = wait(node, waiter, start + LONG, slept);
    // A last look at the end would find what was slept through.
    assert!(!got.is_empty() && start.elapsed() < LONG - Duration::from_secs(5), "slept through it");
    got
}

/// Nobody sleeps so long who is woken, though he may have to wait for a core on a busy machine.
const LONG: Duration = Duration::from_secs(40);

/// Sleeps, and something must end that.
#[track_caller]
fn is_woken(waiter: &Waiter) {
    let start = Instant::now();
    waiter.sleep(Some(LONG));
    assert!(start.elapsed() < LONG - Duration::from_secs(5), "slept through it");
}

/// Nanoseconds of processor time of this thread.
fn cpu_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

const PING: u64 = 1;

/// A node that sleeps whenever one look finds nothing.
fn sleepy() -> Node {
    Node::with(Config { spin: 0, ..Config::default() }, common::attr())
}

/// Answers every message with itself, asleep in between.
fn echo(name: &str) {
    let mut node = sleepy();
    let to = peer(&node, name);
    let waiter = node.domain.waiter().expect("waiter");
    say(&node.name().to_string());
    process::follow_parent();
    let mut slept = Slept::default();
    let mut buf = vec![0u8; 1 << 20];
    node.recv(Want::tag(PING), &mut buf).expect("recv");
    loop {
        for e in wait(&mut node, &waiter, Instant::now() + Duration::from_secs(60), &mut slept) {
            let c = e.expect("echo");
            if c.flags.contains(CompFlags::RECV) {
                let mut back = buf[..c.len].to_vec();
                while node.send(Msg::new(to, PING), &mut back) == Err(Error::Again) {
                    node.domain.progress();
                }
                let mut sent = false;
                while !sent {
                    sent = all_ok(&wait_for(&mut node, &waiter, &mut slept)) > 0;
                }
                node.recv(Want::tag(PING), &mut buf).expect("recv");
            }
        }
    }
}

/// Sends one message after a while, and another one without doing anything in between (its peer may not have answered).
fn late(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say("ready");
    std::thread::sleep(Duration::from_millis(100));
    node.send(Msg::new(to, PING), &mut [1]).expect("send");
    std::thread::sleep(Duration::from_millis(100));
    node.send(Msg::new(to, PING), &mut [2]).expect("send");
    process::hear();
}

/// Connects, and dies when it is told to.
fn idle(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    node.send(Msg::new(to, PING), &mut [1]).expect("send");
    while node.poll().is_empty() {}
    say(&node.name().to_string());
    process::follow_parent();
    loop {
        node.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One exchange with an [`echo`].
fn round(node: &mut Node, waiter: &Waiter, to: Addr, n: usize, slept: &mut Slept) {
    let (mut out, mut into) = (pattern(n, n), vec![0u8; n]);
    node.recv(Want::tag(PING), &mut into).expect("recv");
    node.send(Msg::new(to, PING), &mut out).expect("send");
    let mut done = 0;
    while done < 2 {
        done += all_ok(&wait_for(node, waiter, slept));
    }
    assert_eq!(into, out);
}

fn with_echo(test: impl FnOnce(&mut Node, &Waiter, Addr, &mut Copy)) {
    let mut node = sleepy();
    let waiter = node.domain.waiter().expect("waiter");
    let mut other = copy("role", &format!("echo {}", node.name()));
    let to = peer(&node, &other.hear());
    test(&mut node, &waiter, to, &mut other);
}

#[test]
fn a_sleeper_wakes_for_every_kind_of_message() {
    let _dog = watchdog("every kind", 60);
    with_echo(|node, waiter, to, _| {
        let mut slept = Slept::default();
        for n in [8, 40, 1000, 4096, 10_000, 700_000] {
            for _ in 0..20 {
                // The other side has fallen asleep.
                std::thread::sleep(Duration::from_millis(1));
                round(node, waiter, to, n, &mut slept);
            }
        }
        assert!(slept.0 > 20, "slept {} times", slept.0);
    });
}

#[test]
fn ten_thousand_rounds_between_two_sleepers_end() {
    let _dog = watchdog("ten thousand", 120);
    with_echo(|node, waiter, to, _| {
        let mut slept = Slept::default();
        for i in 0..10_000 {
            round(node, waiter, to, [8, 300, 5000][i % 3], &mut slept);
        }
        println!("slept {} times in 10000 rounds", slept.0);
        assert!(slept.0 > 1000);
    });
}

#[test]
fn first_contact_wakes_and_so_do_messages_of_a_peer_that_makes_no_progress() {
    if common::not_by_network("a first message may have to wait until its sender, too, makes progress") {
        return;
    }
    let _dog = watchdog("first contact", 60);
    let mut node = Node::new();
    let waiter = node.domain.waiter().expect("waiter");
    let mut other = copy("role", &format!("late {}", node.name()));
    assert_eq!(other.hear(), "ready");
    let mut slept = Slept::default();
    for stamp in [1, 2] {
        let mut buf = [0u8];
        node.recv(Want::tag(PING), &mut buf).expect("recv");
        assert_eq!(all_ok(&wait_for(&mut node, &waiter, &mut slept)), 1);
        assert_eq!(buf, [stamp]);
    }
    assert!((1..20).contains(&slept.0), "slept {} times", slept.0);
}

#[test]
fn a_death_wakes() {
    let _dog = watchdog("death", 60);
    let mut node = Node::new();
    let waiter = node.domain.waiter().expect("waiter");
    let mut other = copy("role", &format!("idle {}", node.name()));
    let mut slept = Slept::default();
    let mut buf = [0u8];
    node.recv(Want::tag(PING), &mut buf).expect("recv");
    assert_eq!(all_ok(&wait_for(&mut node, &waiter, &mut slept)), 1);
    let from = peer(&node, &other.hear());
    node.recv(Want::tag(PING).from(from), &mut buf).expect("recv");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        other.kill();
    });
    let got = wait_for(&mut node, &waiter, &mut slept);
    assert_eq!(got[0].expect_err("it died").error, Error::PeerGone);
    killer.join().expect("killer");
}

#[test]
fn sleeping_costs_nothing() {
    let _dog = watchdog("cost", 60);
    with_echo(|node, waiter, to, _| {
        let mut slept = Slept::default();
        round(node, waiter, to, 8, &mut slept);
        let (before, naps) = (cpu_time(), slept.0);
        let start = Instant::now();
        assert!(wait(node, waiter, start + Duration::from_millis(200), &mut slept).is_empty());
        let (took, cost) = (start.elapsed(), cpu_time() - before);
        assert!((199..20_000).contains(&took.as_millis()), "{took:?}");
        assert!(cost < 50_000_000, "{} µs of processor time, {} naps", cost / 1000, slept.0 - naps);
    });
}

/// A send that waits for its peer's progress limits the sleep; it must neither be slept through nor spin.
#[test]
fn a_delivery_that_nobody_takes_is_waited_for_cheaply() {
    let _dog = watchdog("delivery", 60);
    let (mut a, mut b) = (Node::new(), Node::new());
    let waiter = a.domain.waiter().expect("waiter");
    let to = a.knows(&b);
    let mut slept = Slept::default();
    a.send(Msg::new(to, PING).with(OpFlags::DELIVERY_COMPLETE), &mut [1]).expect("send");
    let before = cpu_time();
    assert!(wait(&mut a, &waiter, Instant::now() + Duration::from_millis(200), &mut slept).is_empty());
    let cost = cpu_time() - before;
    assert!(cost < 40_000_000, "{} µs of processor time", cost / 1000);
    // How long one sleep may be, not how long it was: the machine may be busy.
    let until = Deadline::new(10);
    let limit = loop {
        match a.domain.doze().expect("doze") {
            Nap::Sleep(limit) => break limit,
            Nap::NotNow => until.check(|| "never quiet".into()),
        }
    };
    a.domain.awake();
    assert!(limit.is_some_and(|limit| limit < Duration::from_millis(10)), "{limit:?}");
    let taken = Arc::new(AtomicBool::new(false));
    let seen = taken.clone();
    let taker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        while !seen.load(Ordering::Relaxed) {
            b.poll();
        }
    });
    assert_eq!(all_ok(&wait_for(&mut a, &waiter, &mut slept)), 1);
    taken.store(true, Ordering::Relaxed);
    taker.join().expect("taker");
}

/// What another thread does with the same domain wakes those who sleep on it, and everybody but once for each reason.
#[test]
fn other_threads_of_the_domain_wake() {
    let _dog = watchdog("threads", 60);
    let mut node = Node::new();
    let waiter = node.domain.waiter().expect("waiter");
    let me = peer(&node, &node.name().to_string());
    // A message to ourselves makes the link, so that the next one has nothing to do with contact.
    node.send(Msg::new(me, 99), &mut [1]).expect("send");
    let until = Deadline::new(10);
    while node.domain.doze().expect("doze") == Nap::NotNow {
        node.poll();
        until.check(|| "never quiet".into());
    }
    // Asleep, as far as the domain knows; a send of "another thread", whose completion is news and whose record is for us.
    node.send(Msg::new(me, PING), &mut [2]).expect("send");
    is_woken(&waiter);
    node.domain.awake();
    // An injected one has no completion.
    while node.domain.doze().expect("doze") == Nap::NotNow {
        node.poll();
    }
    waiter.settle();
    node.send(Msg::new(me, PING).inject(), &mut [3]).expect("send");
    is_woken(&waiter);
    node.domain.awake();
    // A counter that is set.
    let counter = node.domain.cntr_open();
    while node.domain.doze().expect("doze") == Nap::NotNow {
        node.poll();
    }
    waiter.settle();
    node.domain.cntr_add(counter, 1);
    is_woken(&waiter);
    node.domain.awake();
    // A receive from somebody nobody has heard of: whether he lives is to be asked in a while, by whoever sleeps.
    let stranger = Node::new();
    let from = peer(&node, &stranger.name().to_string());
    while node.domain.doze().expect("doze") == Nap::NotNow {
        node.poll();
    }
    waiter.settle();
    let mut buf = [0; 8];
    node.recv(Want::tag(7).from(from), &mut buf).expect("recv");
    is_woken(&waiter);
    node.domain.awake();
}

/// A peer that goes on polling is not asked for packets it has sent already, and a domain that polls again is found awake.
#[test]
fn descriptors_that_are_lent_become_readable_and_calm_down() {
    let _dog = watchdog("lent", 60);
    let (mut a, mut b) = (Node::new(), Node::new());
    let waiter = a.domain.waiter().expect("waiter");
    a.domain.ep_enable(a.ep).expect("enabled twice");
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    let mut buf = [[0u8; 8]; 2];
    for round in 0..3 {
        a.recv(Want::tag(PING), &mut buf[0]).expect("recv");
        let until = Deadline::new(10);
        loop {
            waiter.settle();
            if a.domain.trywait().expect("trywait") && a.domain.cq_is_empty(a.cq) {
                break;
            }
            assert!(a.poll().iter().all(Result::is_ok));
            b.poll();
            until.check(|| "never quiet".into());
        }
        b.send(Msg::new(to_a, PING), &mut [round; 8]).expect("send");
        is_woken(&waiter);
        assert_eq!(all_ok(&common::run(&mut [&mut a, &mut b], &[1, 1])[0]), 1);
        b.recv(Want::tag(PING), &mut buf[1]).expect("recv");
        a.send(Msg::new(to_b, PING), &mut [round; 8]).expect("send");
        common::run(&mut [&mut a, &mut b], &[1, 1]);
    }
}
