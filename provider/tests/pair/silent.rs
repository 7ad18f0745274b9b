//! Receives that name a peer of which nothing was heard yet: its death is noticed all the same, and nobody is called without need.

#![allow(clippy::result_large_err, reason = "an error entry is passed on as the engine gave it")]

use crate::common::{
    Deadline, Event, Msg, Node, Want, all_ok, attr, by_network_only, contact, fresh_port, not_by_network, watchdog,
};
use crate::ok;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustmx::mem::shared::SharedMem;
use rustmx::shm::{
    bell,
    segment::{self, Shape},
};
use rustmx::sys::clock::Clock;
use rustmx::sys::wake::Wake;
use rustmx::transport::{self, Door, Handed, Line, NoCall, Reach, Venue};
use rustmx::{Addr, Config, Domain, Error, Log, Name, Nap, OpFlags, UserCtx};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds in nanoseconds.
const MS: u64 = 1_000_000;
/// Turns in which everything is looked at that is due.
const TURNS: usize = 300;

/// A node whose time goes by only if it is told so.
///
/// Its terms are its own, and so is its port: strangers of other tests are nothing that it must look after.
fn timeless() -> (Node, Arc<AtomicU64>) {
    static NODES: AtomicU64 = AtomicU64::new(1);
    let now = Arc::new(AtomicU64::new(1));
    let peer_timeout = Config::default().peer_timeout + NODES.fetch_add(1, Ordering::Relaxed);
    (Node::open(Config { peer_timeout, ..Config::default() }, attr(), Clock::Manual(now.clone())), now)
}

fn turns(node: &mut Node) -> Vec<Event> {
    (0..TURNS).flat_map(|_| node.poll()).collect()
}

/// Waits for one event.
#[track_caller]
fn one(node: &mut Node) -> Event {
    let until = Deadline::new(10);
    loop {
        let mut events = node.poll();
        if let Some(e) = events.pop() {
            assert!(events.is_empty(), "{e:?}, and before it {events:?}");
            return e;
        }
        until.check(|| format!("nothing happens: {:?}", node.stats()));
    }
}

#[test]
fn who_dies_without_a_word_fails_what_waits_for_him() {
    let _dog = watchdog("without a word", 30);
    let ((mut a, now), (b, _)) = (timeless(), timeless());
    let (from, name, mut into) = (a.knows(&b), b.name(), [0u8; 9]);
    a.recv(Want::tag(1).from(from), &mut into).expect("recv");
    now.fetch_add(990 * MS, Ordering::Relaxed);
    a.quiet(TURNS);
    drop(b);
    a.quiet(TURNS);
    now.fetch_add(10 * MS, Ordering::Relaxed);
    let e = one(&mut a).expect_err("nobody is there");
    assert_eq!((e.error, e.peer, e.c.ctx), (Error::Refused, Some(name), UserCtx(1)));
    assert_eq!(a.recv(Want::tag(1).from(from), &mut into), Err(Error::Refused), "known by now");
}

/// Who computes has not answered when he dies, who polls has; either may say something after all.
#[test]
fn who_is_silent_lives_and_his_end_is_noticed() {
    let _dog = watchdog("silent", 60);
    for (polls, talks) in [(false, false), (true, false), (false, true), (true, true)] {
        let ((mut a, now), mut b) = (timeless(), Node::new());
        let (from, to_a, mut into, mut word) = (a.knows(&b), b.knows(&a), [[0u8; 2]; 2], [7u8; 2]);
        for (tag, into) in into.iter_mut().enumerate() {
            a.recv(Want::tag(tag as u64).from(from), into).expect("recv");
        }
        for _ in 0..20 {
            now.fetch_add(100 * MS, Ordering::Relaxed);
            a.quiet(TURNS);
            if polls {
                b.quiet(TURNS);
            }
        }
        if talks {
            b.send(Msg::new(to_a, 0), &mut word).expect("send");
            let until = Deadline::new(10);
            let (mut got, mut sent) = (Vec::new(), 0);
            while got.is_empty() || sent == 0 {
                now.fetch_add(MS, Ordering::Relaxed);
                got.extend(a.poll());
                sent += all_ok(&b.poll());
                until.check(|| "no message".into());
            }
            assert_eq!((ok(&got[0]).ctx, got.len(), into[0]), (UserCtx(0), 1, word));
            assert_eq!((a.stats().peers, b.stats().peers), (1, 1));
        }
        drop(b);
        let mut failed = Vec::new();
        let until = Deadline::new(10);
        while failed.len() < 2 - usize::from(talks) {
            now.fetch_add(MS, Ordering::Relaxed);
            failed.extend(a.poll());
            until.check(|| format!("polls {polls}, talks {talks}: {failed:?}"));
        }
        for e in &failed {
            let e = e.expect_err("it has ended");
            // A connection that nobody had taken yet is reset.
            assert!(matches!(e.error, Error::PeerGone | Error::Refused), "{e:?}");
        }
    }
}

#[test]
fn few_are_called_at_a_time() {
    let _dog = watchdog("few", 30);
    if not_by_network("a call takes its time") {
        return;
    }
    let (mut a, now) = timeless();
    let names: Vec<Name> = (0..20).map(|_| Node::new().name()).collect();
    let mut into = [[0u8; 1]; 20];
    for (name, into) in names.iter().zip(&mut into) {
        let from = a.av.insert(name);
        a.recv(Want::tag(1).from(from), into).expect("recv");
    }
    assert!(turns(&mut a).is_empty());
    for (after, failed) in [(1000, 8), (99, 0), (1, 8), (100, 4), (10_000, 0)] {
        now.fetch_add(after * MS, Ordering::Relaxed);
        assert_eq!(turns(&mut a).len(), failed, "{after} ms later");
    }
}

#[test]
fn who_need_not_be_called_is_not() {
    let _dog = watchdog("need not", 30);
    let ((mut a, now), mut into) = (timeless(), [[0u8; 4]; 3]);
    // At a contact address somebody may begin to listen at any time.
    let nobody_yet = a.av.insert(&contact(fresh_port()));
    a.recv(Want::tag(1).from(nobody_yet), &mut into[0]).expect("recv");
    // Nothing waits any more.
    let dead = Node::new().name();
    let dead = a.av.insert(&dead);
    a.recv(Want::tag(2).from(dead), &mut into[1]).expect("recv");
    a.domain.cancel(a.ep, UserCtx(2)).expect("cancelled");
    assert_eq!(one(&mut a).expect_err("cancelled").error, Error::Cancelled);
    let me = a.av.insert(&a.name());
    a.recv(Want::tag(3).from(me), &mut into[2]).expect("recv");
    for _ in 0..50 {
        now.fetch_add(1000 * MS, Ordering::Relaxed);
        a.quiet(TURNS);
    }
    // Had it been called, this would say what came of it.
    a.recv(Want::tag(2).from(dead), &mut into[1]).expect("recv");
}

#[test]
fn sleepers_wake_up_to_ask() {
    let _dog = watchdog("sleepers", 30);
    let ((mut a, now), b) = (timeless(), Node::new());
    let (from, mut into) = (a.knows(&b), [0u8; 1]);
    let nap = |a: &mut Node| {
        let until = Deadline::new(10);
        loop {
            if let Nap::Sleep(limit) = a.domain.doze().expect("doze") {
                a.domain.awake();
                return limit.map(|limit| limit.as_millis());
            }
            until.check(|| "never quiet".into());
        }
    };
    assert_eq!(nap(&mut a), None);
    a.recv(Want::tag(1).from(from), &mut into).expect("recv");
    assert_eq!(nap(&mut a), Some(1000));
    now.fetch_add(1000 * MS, Ordering::Relaxed);
    a.quiet(TURNS);
    // By the network, hosts are asked after from now on.
    assert_eq!(nap(&mut a).is_none(), !by_network_only());
}

/// A place where nobody answers, as in front of a backlog that is full.
struct Mute;

impl Venue for Mute {
    fn open(&self, _: &Name) -> Result<Box<dyn Door>, Error> {
        Ok(Box::new(Mute))
    }
    fn random(&self) -> u64 {
        rustmx::sys::host::random()
    }
}

impl Door for Mute {
    fn reach(&self, _: &Name) -> Result<Reach, Error> {
        Ok(Reach::Host)
    }
    fn call(&mut self, _: &Name, _: Reach) -> Result<(Arc<dyn Line>, u32), NoCall> {
        Err(NoCall::Later)
    }
    fn poll(&mut self, _: u64, _: &mut Vec<transport::Event>) -> bool {
        false
    }
    fn segment(&mut self, _: Reach, shape: Shape) -> Result<(Handed, SharedMem), Errno> {
        let mem = segment::private(shape.ring);
        Ok((Handed::Own(mem.clone()), mem))
    }
    fn bell(&mut self) -> Result<(Handed, SharedMem), Errno> {
        self.segment(Reach::Host, Shape::without_cells(bell::BYTES))
    }
    fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error> {
        Err(Error::NoResources)
    }
    fn kernel_pid(&self, _: u32) -> u32 {
        0
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Where as many wait for one that computes as there are ranks in a large job, silence says nothing; in a small one it does.
#[test]
fn silence_of_a_crowded_peer_is_no_end() {
    let _dog = watchdog("crowded", 30);
    for crowd in [128, 129] {
        let (now, mut into) = (Arc::new(AtomicU64::new(1)), [0u8; 1]);
        let config = Arc::new(Config { connect_timeout: 2000, close_timeout: 60_000, ..Config::default() });
        let mut a = Node::enabled(Domain::at_venue(config, Log::silent(), Clock::Manual(now.clone()), Arc::new(Mute)), attr());
        let names: Vec<Addr> = (1..=crowd).map(|n| a.av.insert(&Name::new(n, 0, rustmx::sys::host::id(), None))).collect();
        let from = names[names.len() - 1];
        a.recv(Want::tag(1).from(from), &mut into).expect("recv");
        let pass = |a: &mut Node, ms: u64| {
            let mut got = Vec::new();
            for _ in 0..ms / 100 {
                now.fetch_add(100 * MS, Ordering::Relaxed);
                got.extend(turns(a));
            }
            got.iter().map(|e| e.expect_err("nobody answers").error).collect::<Vec<_>>()
        };
        assert_eq!(pass(&mut a, 2900), []);
        if crowd == 128 {
            assert_eq!(pass(&mut a, 500), [Error::TimedOut]);
            continue;
        }
        assert_eq!(pass(&mut a, 20_000), []);
        // What is sent has all of its time, and then both have failed.
        a.send(Msg::new(from, 2).with(OpFlags::DELIVERY_COMPLETE), &mut [1, 2]).expect("send");
        assert_eq!(pass(&mut a, 1900), []);
        assert_eq!(pass(&mut a, 2500), [Error::TimedOut; 2]);
    }
}
