//! A peer that runs as our user and lies: about who it is, in its hello, in its ring, about what it has read, and on the bell.
//! Whatever it does, the victim neither crashes nor hangs nor reads or writes past a buffer, loses nothing that is not the liar's,
//! and goes on talking to a well-behaved peer.
//!
//! Loops are seeded; `RUSTMX_SEED` repeats one.

mod common;

use common::{Deadline, Event, Msg, Node, Rng, Want, attr, footprint, fresh_port, pattern, process, run, seg, watchdog};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::SharedMem;
use rustmx::peer::name::NAME_LEN;
use rustmx::shm::bell::{self, Bell};
use rustmx::shm::layout::{CARD_BYTES, CARD_MAGIC, CONSUMED, CONTROL_LINES, CREDIT, HOT, LINE, LINE_WORDS, STATE, ring_lines};
use rustmx::shm::ring::SKIP;
use rustmx::shm::segment;
use rustmx::sys::clock::Clock;
use rustmx::sys::{host, memfd, socket};
use rustmx::transport::link::{Class, Draft, Link};
use rustmx::transport::{Reply, local};
use rustmx::wire::header::{Header, Kind, Rts, flag};
use rustmx::wire::hello::{HELLO_LEN, Hello, Refusal};
use rustmx::{Addr, CompFlags, Config, Error, Name, OpFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use zerocopy::IntoBytes;

const BYTES: usize = 24 << 10;

fn seed() -> u64 {
    let seed = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(4_711);
    println!("seed {seed}");
    seed
}

fn any_name() -> Name {
    Name::new(host::random() | 1, 0, host::id(), None)
}

/// The liar, connected by its own call.
struct Liar {
    name: Name,
    fd: OwnedFd,
    mem: SharedMem,
    link: Link,
    theirs: Option<SharedMem>,
    bell: Option<Bell<SharedMem>>,
}

impl Liar {
    /// Calls `victim` and says a proper hello under `name`.
    fn call(victim: &Name, name: Name, slot: u32) -> Liar {
        let fd = socket::connect(&victim.socket_name()).expect("connect");
        let (segment, mem) = segment::create(BYTES).expect("segment");
        let (bell, _map) = memfd::create("liar-bell", bell::BYTES, false).expect("bell");
        let hello = Hello::new(name.to_bytes(), victim.to_bytes(), BYTES as u32, slot, [u64::MAX; 16]);
        local::greet(&fd, &hello, &segment, &bell).expect("hello");
        Liar { name, fd, link: Link::new(mem.clone(), 1 << 20), mem, theirs: None, bell: None }
    }

    /// Waits for the victim's answer.
    fn settle(&mut self, victim: &mut Node) {
        let until = Deadline::new(5);
        loop {
            victim.domain.progress();
            match local::receive(&self.fd) {
                Reply::Greeting(g) => {
                    let theirs = g.segment.segment(g.hello.segment.get() as usize).expect("the victim's segment");
                    self.theirs = Some(theirs.clone());
                    self.link.attach(theirs, None);
                    self.bell = Some(Bell::new(g.bell.bell().expect("the victim's bell")));
                    return;
                }
                Reply::Nothing | Reply::Wake => until.check(|| "no answer".into()),
                Reply::Refused(e) => panic!("refused: {e}"),
                Reply::Ended => panic!("no answer"),
            }
        }
    }

    fn connected(victim: &mut Node) -> Liar {
        let mut liar = Liar::call(&victim.name(), any_name(), 0);
        liar.settle(victim);
        liar
    }

    fn ended(&self) -> bool {
        matches!(local::receive(&self.fd), Reply::Ended)
    }

    /// Writes a record, if there is room.
    fn write(&mut self, kind: Kind, tag: u64, data: u64, body: [u64; 2], payload: &mut [u8]) -> bool {
        let iov = [seg(payload)];
        let flags = match kind {
            Kind::Inline | Kind::Eager | Kind::Rts | Kind::Offer => flag::TAGGED,
            Kind::Data | Kind::Cts | Kind::Accept | Kind::Done | Kind::Fin => 0,
            Kind::Put | Kind::Get | Kind::Atomic | Kind::Event | Kind::Answer => flag::LAST,
        };
        let draft = Draft { kind, flags, tag, data, body, iov: &iov, skip: 0, len: payload.len(), bytes: &[] };
        self.link.send(&draft, Class::Control).is_ok()
    }

    /// Word `i` of the ring.
    fn ring(&self, i: usize) -> &AtomicU64 {
        self.mem.word(CONTROL_LINES * LINE_WORDS + i)
    }
}

/// The victim, with receives that a liar can match, and a well-behaved peer. Knows at every moment what is posted.
struct Scene {
    victim: Node,
    good: Node,
    to_good: Addr,
    to_victim: Addr,
    slots: Vec<Slot>,
    rounds: usize,
    sends_open: i64,
}

/// A buffer between two guards.
struct Slot {
    bytes: Vec<u8>,
    posted: bool,
}

const GUARD: usize = 64;
const CAPS: [usize; 4] = [0, 100, 5000, 100_000];
const SEND: usize = 1000;

impl Scene {
    fn new() -> Scene {
        Scene::with(Config::default())
    }

    fn with(config: Config) -> Scene {
        let (victim, good) = (Node::with(config, attr()), Node::new());
        let (to_good, to_victim) = (victim.knows(&good), good.knows(&victim));
        let slots = CAPS.iter().map(|n| Slot { bytes: vec![0xee; n + 2 * GUARD], posted: false }).collect();
        let mut scene = Scene { victim, good, to_good, to_victim, slots, rounds: 0, sends_open: 0 };
        scene.exchange();
        scene
    }

    /// Posts what is not posted: slot `i` takes tag `i` from anybody.
    fn post(&mut self) {
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if !slot.posted {
                slot.posted = true;
                let end = slot.bytes.len() - GUARD;
                self.victim.recv(Want::tag(i as u64), &mut slot.bytes[GUARD..end]).expect("recv");
            }
        }
    }

    /// Takes an event of the victim; all of them must make sense.
    fn take(&mut self, e: &Event) {
        let (ctx, c) = match e {
            Ok(c) => (c.ctx.0, c),
            Err(e) => {
                assert!(
                    matches!(
                        e.error,
                        Error::Truncated
                            | Error::Corrupt
                            | Error::PeerGone
                            | Error::Refused
                            | Error::Version
                            | Error::NoResources
                    ),
                    "{e:?}"
                );
                assert!(e.error == Error::Truncated || e.peer.is_some(), "nobody is named: {e:?}");
                (e.c.ctx.0, &e.c)
            }
        };
        if ctx == SEND {
            self.sends_open -= 1;
            return;
        }
        if c.flags.contains(CompFlags::REMOTE_WRITE) {
            // A liar may say that it has written to our memory.
            return;
        }
        let slot = &mut self.slots[ctx];
        assert!(slot.posted, "completed twice: {e:?}");
        slot.posted = false;
        let n = slot.bytes.len() - 2 * GUARD;
        assert!(c.len <= n, "{c:?}");
        let guards = slot.bytes[..GUARD].iter().chain(&slot.bytes[GUARD + n..]);
        assert!(guards.into_iter().all(|b| *b == 0xee), "written past the buffer of {n} bytes: {c:?}");
    }

    fn turns(&mut self, n: usize) {
        for _ in 0..n {
            for e in self.victim.poll() {
                self.take(&e);
            }
        }
    }

    /// Lets the liar's death or exclusion be noticed.
    fn gone(&mut self, lost: u64, what: &str) {
        let until = Deadline::new(5);
        while self.victim.stats().lost < lost {
            self.turns(20);
            until.check(|| format!("{what}: not disconnected; {:?}", self.victim.stats()));
        }
    }

    /// A verified message each way between the victim and the well-behaved peer.
    #[track_caller]
    fn exchange(&mut self) {
        const TAG: u64 = 1 << 40;
        let n = [8usize, 500, 30_000][self.rounds % 3];
        self.rounds += 1;
        let (mut out, mut back) = (pattern(n, self.rounds), pattern(n, self.rounds + 1));
        let (mut into, mut into_good) = (vec![0u8; n], vec![0u8; n]);
        self.good.recv(Want::tag(TAG), &mut into_good).expect("recv");
        self.victim.recv(Want::tag(TAG).ctx(SEND).from(self.to_good), &mut into).expect("recv");
        self.good.send(Msg::new(self.to_victim, TAG), &mut out).expect("send");
        self.victim.send(Msg::new(self.to_good, TAG).ctx(SEND), &mut back).expect("send");
        self.sends_open += 2;
        let want = self.sends_open - 2;
        let until = Deadline::new(10);
        let mut of_good = 0;
        while self.sends_open > want || of_good < 2 {
            self.turns(1);
            of_good += self.good.poll().iter().filter(|e| e.is_ok()).count();
            until.check(|| format!("the well-behaved peer is cut off: {of_good}, {}", self.sends_open));
        }
        assert!(into == out && into_good == back, "round {}", self.rounds);
    }

    /// Every receive that is posted and not completed still works: the well-behaved peer sends one message for each.
    #[track_caller]
    fn nothing_was_swallowed(&mut self, what: &str) {
        for (i, (slot, cap)) in self.slots.iter().zip(CAPS).enumerate() {
            if slot.posted {
                let mut out = pattern(cap.min(50), 9);
                self.good.send(Msg::new(self.to_victim, i as u64).inject(), &mut out).expect("send");
            }
        }
        let until = Deadline::new(3);
        while self.slots.iter().any(|s| s.posted) {
            self.turns(1);
            self.good.domain.progress();
            until.check(|| {
                let posted: Vec<usize> = (0..self.slots.len()).filter(|i| self.slots[*i].posted).collect();
                format!("{what}: the receives {posted:?} were matched by garbage and never ended")
            });
        }
    }

    /// Drops everything unexpected, so that rounds do not depend on each other.
    fn clean(&mut self) {
        loop {
            self.victim.recvv(Want::any().ctx(0).with(OpFlags::PEEK | OpFlags::DISCARD), &[], true).expect("peek");
            let mut none = false;
            for e in self.victim.poll() {
                match e {
                    Err(e) if e.error == Error::NoMessage => none = true,
                    Ok(c) if c.ctx.0 == 0 && c.buf == 0 => {}
                    e => self.take(&e),
                }
            }
            if none {
                return;
            }
        }
    }
}

/// What an offer says of where it is.
fn pieces(list: &[(u64, u64)]) -> Vec<u8> {
    list.iter().flat_map(|(at, len)| [*at, *len]).flat_map(u64::to_le_bytes).collect()
}

fn payload(n: usize) -> Vec<u8> {
    pattern(n, 5)
}

/// What a liar may write, one thing each; each must get it disconnected.
#[test]
fn each_lie_in_a_ring_is_noticed() {
    let _dog = watchdog("each_lie", 60);
    type Lie = fn(&mut Liar);
    let lies: &[(&str, Lie)] = &[
        ("an unknown kind", |l| l.ring(0).store(0xf, Ordering::Release)),
        ("kind zero with a length", |l| l.ring(0).store(0xff00_0000, Ordering::Release)),
        ("a skip of the wrong length", |l| l.ring(0).store(1 | 5 << 16, Ordering::Release)),
        ("a skip at the wrong position", |l| {
            let lines = (BYTES / LINE - CONTROL_LINES) as u64;
            l.ring(0).store(1 | 7 << 8 | lines << 16, Ordering::Release);
        }),
        ("two skips in a row", |l| {
            let lines = (BYTES / LINE - CONTROL_LINES) as u64;
            // The position after the first one is the ring's length; its low byte is what the second must carry.
            l.ring(0).store(1 | lines << 16, Ordering::Release);
        }),
        ("another position", |l| l.ring(0).store(2 | 3 << 8, Ordering::Release)),
        ("inline, too long", |l| l.ring(0).store(2 | 233 << 16, Ordering::Release)),
        ("eager past the end of the ring", |l| l.ring(0).store(3 | 0xffff << 16, Ordering::Release)),
        ("an acknowledgement of what was never sent", |l| l.ring(0).store(2 | 1000 << 32, Ordering::Release)),
        ("an unknown flag", |l| l.ring(0).store(2 | 1 << 6, Ordering::Release)),
        ("a fragment of no stream", |l| {
            l.write(Kind::Data, 77, 0, [0; 2], &mut payload(100));
        }),
        ("a request for no stream", |l| {
            l.write(Kind::Cts, 77, 100, [0; 2], &mut []);
        }),
        ("a stream id that is none", |l| {
            l.write(Kind::Cts, 1 << 40, 100, [0; 2], &mut []);
        }),
        ("a promise past the total", |l| {
            l.write(Kind::Rts, 50, 0, [10, 20 << 32], &mut []);
        }),
        ("a first fragment past the promise", |l| {
            l.write(Kind::Rts, 50, 0, [1000, 10 << 32], &mut payload(20));
        }),
        ("a total out of range", |l| {
            l.write(Kind::Rts, 50, 0, [u64::MAX, 0], &mut []);
        }),
        ("a promise past the window, unexpected", |l| {
            l.write(Kind::Rts, 50, 0, Rts { total: 1 << 30, stream: 1, promise: 1 << 20 }.emit(), &mut payload(100));
        }),
        ("a promise past the window, expected", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 1 << 30, stream: 1, promise: 1 << 20 }.emit(), &mut payload(100));
        }),
        ("a stream twice, unexpected", |l| {
            for _ in 0..2 {
                l.write(Kind::Rts, 50, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        }),
        ("a stream twice, the second one expected", |l| {
            for tag in [50, 3] {
                l.write(Kind::Rts, tag, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        }),
        ("a stream twice, both expected", |l| {
            for tag in [2, 3] {
                l.write(Kind::Rts, tag, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        }),
        ("a fragment past the promise", |l| {
            l.write(Kind::Rts, 50, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            l.write(Kind::Data, 1, 100, [0; 2], &mut payload(500));
        }),
        ("a fragment that leaves a hole", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 10_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
            l.write(Kind::Data, 1, 101, [0; 2], &mut payload(100));
        }),
        ("a fragment after the last", |l| {
            l.write(Kind::Rts, 3, 0, Rts { total: 200, stream: 1, promise: 200 }.emit(), &mut payload(200));
            l.write(Kind::Data, 1, 200, [0; 2], &mut payload(100));
        }),
        ("an offer of less than it says", |l| {
            l.write(Kind::Offer, 3, 0, [10_000, 1], &mut pieces(&[(1, 4000), (2, 5999)]));
        }),
        ("an offer with half a piece", |l| {
            l.write(Kind::Offer, 3, 0, [10, 1], &mut pieces(&[(1, 4000)])[..8]);
        }),
        ("an offer without an id", |l| {
            l.write(Kind::Offer, 3, 0, [10, 1 << 32], &mut pieces(&[(1, 4000)]));
        }),
        ("two offers of one id", |l| {
            l.write(Kind::Offer, 50, 0, [10, 1], &mut pieces(&[(1, 4000)]));
            l.write(Kind::Offer, 50, 0, [10, 1], &mut pieces(&[(1, 4000)]));
        }),
        ("an offer and a stream of one id", |l| {
            l.write(Kind::Offer, 3, 0, [10_000, 1], &mut pieces(&[(1, 10_000)]));
            l.write(Kind::Data, 1, 10_001, [0; 2], &mut payload(100));
        }),
        ("a share of what was not offered", |l| {
            l.write(Kind::Accept, 1, 10_000, [1, 1 << 16], &mut pieces(&[(1, 10_000)]));
        }),
        ("an end of what was not offered", |l| {
            l.write(Kind::Fin, 1, 0, [0; 2], &mut []);
        }),
        ("an answer to nothing", |l| {
            l.write(Kind::Answer, 77, 0, [0; 2], &mut payload(8));
        }),
        ("an atomic operation that does not exist", |l| {
            l.write(Kind::Atomic, 1, 0xff | 8 << 32, [0; 2], &mut payload(8));
        }),
        ("an atomic operation that its type does not have", |l| {
            l.write(Kind::Atomic, 1, 6 | 9 << 8 | 8 << 32, [0; 2], &mut payload(8));
        }),
        ("an atomic operation with half an operand", |l| {
            l.write(Kind::Atomic, 1, 2 | 7 << 8 | 8 << 32, [0; 2], &mut payload(4));
        }),
        ("an atomic operation on too many values", |l| {
            l.write(Kind::Atomic, 1, 2 | 1 << 20 << 32, [0; 2], &mut payload(100));
        }),
        ("more eager payload than the window", |l| {
            // All of it unexpected; the window is 128 KiB, the ring holds 5 at a time, so this goes on in the loop below.
            l.mem.word(STATE).store(77, Ordering::Release);
        }),
    ];
    let mut scene = Scene::new();
    for (what, lie) in lies {
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        let lost = scene.victim.stats().lost;
        if what.starts_with("more eager") {
            let until = Deadline::new(5);
            while !liar.ended() {
                let _ = liar.link.refresh();
                liar.write(Kind::Eager, 50, 0, [0; 2], &mut payload(4096));
                scene.turns(1);
                until.check(|| format!("{what}: held without limit: {:?}", scene.victim.stats()));
            }
        } else {
            lie(&mut liar);
        }
        if what.starts_with("two skips") {
            scene.turns(20);
            let lines = (BYTES / LINE - CONTROL_LINES) as u64;
            liar.ring(0).store(1 | (lines & 0xff) << 8 | (lines - 1) << 16, Ordering::Release);
        }
        scene.gone(lost + 1, what);
        assert!(liar.ended(), "{what}: the connection is still there");
        scene.nothing_was_swallowed(what);
        scene.exchange();
        scene.clean();
    }
}

/// A multi-receive buffer that garbage was matched with takes the messages of others, and comes back when it is full.
#[test]
fn a_lie_in_a_multi_receive_buffer() {
    let _dog = watchdog("multi_lie", 30);
    let lies: [fn(&mut Liar); 4] = [
        |l| {
            l.write(Kind::Rts, 61, 0, Rts { total: 1 << 30, stream: 1, promise: 1 << 20 }.emit(), &mut payload(100));
        },
        |l| {
            for tag in [50, 61] {
                l.write(Kind::Rts, tag, 0, Rts { total: 600, stream: 1, promise: 500 }.emit(), &mut payload(100));
            }
        },
        |l| {
            for _ in 0..2 {
                l.write(Kind::Rts, 61, 0, Rts { total: 500, stream: 1, promise: 400 }.emit(), &mut payload(100));
            }
        },
        |l| {
            l.write(Kind::Rts, 61, 0, Rts { total: 500, stream: 1, promise: 400 }.emit(), &mut payload(100));
            l.write(Kind::Data, 1, 99, [0; 2], &mut payload(100));
        },
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let mut scene = Scene::new();
        let mut multi = vec![0u8; 4000];
        scene.victim.recv(Want::tag(61).ctx(61).with(OpFlags::MULTI_RECV), &mut multi).expect("recv");
        let mut liar = Liar::connected(&mut scene.victim);
        lie(&mut liar);
        let until = Deadline::new(5);
        let (mut got, mut released) = (Vec::new(), 0);
        while scene.victim.stats().lost == 0 {
            got.extend(scene.victim.poll());
            until.check(|| format!("lie {i} is believed"));
        }
        // Enough to fill it, whatever the liar left of it.
        let mut out = pattern(900, 1);
        for _ in 0..6 {
            scene.good.send(Msg::new(scene.to_victim, 61).ctx(SEND), &mut out).expect("send");
        }
        while released == 0 {
            got.extend(scene.victim.poll());
            scene.good.poll();
            released = got.iter().filter(|e| e.map_or_else(|e| e.c, |c| c).flags.contains(CompFlags::MULTI_RECV)).count();
            until.check(|| format!("lie {i}: the buffer never comes back: {got:?}"));
        }
        for _ in 0..200 {
            got.extend(scene.victim.poll());
        }
        let last = got.last().expect("some");
        assert!(
            last.map_or_else(|e| e.c, |c| c).flags.contains(CompFlags::MULTI_RECV),
            "lie {i}: used after it was given back: {got:?}"
        );
        for e in &got {
            match e {
                Ok(c) if c.len == 900 => assert_eq!(&multi[c.buf - multi.as_ptr() as usize..][..900], &out[..], "lie {i}"),
                Ok(c) => assert_eq!((c.len, c.flags), (0, CompFlags::MULTI_RECV), "lie {i}"),
                Err(e) => assert_eq!((e.error, e.peer), (Error::Corrupt, Some(liar.name)), "lie {i}"),
            }
        }
        // The first one claims all of the buffer; the others leave most of it.
        let whole = got.iter().filter(|e| e.is_ok_and(|c| c.len == 900)).count();
        assert!(whole >= 2 || i == 0, "lie {i}: {got:?}");
    }
}

/// What a lie cuts off in the middle ends with an error that names the liar.
#[test]
fn what_a_liar_began_ends_with_its_name() {
    let _dog = watchdog("began", 30);
    let mut scene = Scene::new();
    let mut liar = Liar::connected(&mut scene.victim);
    let to_liar = scene.victim.av.insert(&liar.name);
    let mut into = vec![0u8; 50_000];
    scene.victim.recv(Want::tag(60).ctx(60), &mut into).expect("recv");
    let mut multi = vec![0u8; 50_000];
    scene.victim.recv(Want::tag(61).ctx(61).with(OpFlags::MULTI_RECV), &mut multi).expect("recv");
    let mut small = [0u8; 4];
    scene.victim.recv(Want::tag(62).ctx(62).from(to_liar), &mut small).expect("recv");
    let mut out = pattern(100_000, 1);
    scene.victim.send(Msg::new(to_liar, 63).ctx(63), &mut out).expect("send");
    scene.victim.send(Msg::new(to_liar, 64).ctx(64).with(OpFlags::DELIVERY_COMPLETE), &mut out[..10]).expect("send");
    liar.write(Kind::Rts, 60, 0, Rts { total: 20_000, stream: 1, promise: 500 }.emit(), &mut payload(100));
    liar.write(Kind::Rts, 61, 0, Rts { total: 20_000, stream: 2, promise: 500 }.emit(), &mut payload(100));
    let mut got = Vec::new();
    for _ in 0..100 {
        got.extend(scene.victim.poll());
    }
    assert!(got.is_empty(), "{got:?}");
    liar.ring(0).store(0, Ordering::Relaxed);
    // At the reader's position: past the two records of three lines each.
    let at = 2 * Header::lines_of(Kind::Rts, 100) as usize * LINE_WORDS;
    liar.ring(at).store(0xff, Ordering::Release);
    let until = Deadline::new(5);
    while got.len() < 5 {
        got.extend(scene.victim.poll());
        until.check(|| format!("{got:?}"));
    }
    let mut failed: Vec<usize> = got.iter().map(|e| e.expect_err("cut off").c.ctx.0).collect();
    failed.sort_unstable();
    assert_eq!(failed, [60, 61, 62, 63, 64]);
    for e in &got {
        let e = e.expect_err("cut off");
        assert_eq!((e.error, e.peer, e.detail), (Error::Corrupt, Some(liar.name), std::process::id()));
        assert!(e.describe().contains(&liar.name.to_string()));
    }
    // The rest of the multi-receive buffer is still posted for others.
    let mut word = *b"still there";
    scene.good.send(Msg::new(scene.to_victim, 61).inject(), &mut word).expect("send");
    let got = run(&mut [&mut scene.victim, &mut scene.good], &[1, 0]);
    let c = got[0][0].expect("received");
    let at = c.buf - multi.as_ptr() as usize;
    assert_eq!((c.ctx.0, &multi[at..at + c.len]), (61, &word[..]));
}

/// Thousands of rings with bits flipped, headers made up, or nothing but noise.
#[test]
fn noise_in_a_ring() {
    let _dog = watchdog("noise", 60);
    let seed = seed();
    let mut scene = Scene::new();
    let (mut excluded, mut lied) = (0, 0);
    for case in 0..3000u64 {
        let mut rng = Rng(seed << 20 | case);
        let what = format!("seed {seed}, case {case}");
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        // The victim has something under way to it, too.
        if rng.one_in(3) {
            let to_liar = scene.victim.av.insert(&liar.name);
            let level = if rng.one_in(2) { OpFlags::DELIVERY_COMPLETE } else { OpFlags::empty() };
            let mut out = pattern(40_000, 1);
            if scene
                .victim
                .send(Msg::new(to_liar, 5).ctx(SEND).with(level), &mut out[..[10, 1000, 40_000][(case % 3) as usize]])
                .is_ok()
            {
                scene.sends_open += 1;
            }
            // The liar is done with before `out` is.
            one_noise(&mut scene, &mut liar, &mut rng, &what);
            excluded += i32::from(end(&mut scene, liar, &what));
        } else {
            one_noise(&mut scene, &mut liar, &mut rng, &what);
            excluded += i32::from(end(&mut scene, liar, &what));
        }
        lied += 1;
        assert_eq!(scene.sends_open, 0, "{what}: a send never ended");
        if case % 50 == 0 {
            scene.nothing_was_swallowed(&what);
            scene.exchange();
        }
        scene.clean();
    }
    scene.nothing_was_swallowed("at the end");
    println!("{lied} cases, {excluded} disconnected");
    assert!(excluded > lied / 2, "most of that is no ring that a rustmx writes: {excluded} of {lied}");
}

/// The liar goes; everything that concerns it ends. Whether it had been disconnected before.
fn end(scene: &mut Scene, liar: Liar, what: &str) -> bool {
    let excluded = liar.ended();
    drop(liar.fd);
    let until = Deadline::new(5);
    let mut turns = 0;
    while scene.sends_open > 0 || turns < 60 {
        scene.turns(1);
        turns += 1;
        until.check(|| format!("{what}: {} sends never end", scene.sends_open));
    }
    excluded
}

fn one_noise(scene: &mut Scene, liar: &mut Liar, rng: &mut Rng, what: &str) {
    let words = (BYTES / LINE - CONTROL_LINES) * LINE_WORDS;
    match rng.below(4) {
        0 => {
            for i in (0..words).rev() {
                liar.ring(i).store(rng.next(), Ordering::Release);
            }
        }
        1 => {
            // A sound sequence, with a few bits flipped.
            for i in 0..rng.range(1, 12) {
                some_record(liar, rng, i as u32);
            }
            for _ in 0..rng.range(1, 4) {
                let at = if rng.one_in(2) { 0 } else { rng.below(words as u64 / 4) as usize };
                let at = at / LINE_WORDS * LINE_WORDS + rng.below(5) as usize;
                liar.ring(at).fetch_xor(1 << rng.below(64), Ordering::AcqRel);
            }
        }
        2 => {
            // Headers with the right position and anything else.
            let mut position = 0u64;
            for _ in 0..rng.range(1, 6) {
                let kind = rng.range(1, 8) as u64;
                let len = [0, 8, 40, rng.below(300), rng.below(5000)][rng.below(5) as usize];
                let at = position as usize * LINE_WORDS;
                let tag = [rng.below(4), 50, rng.next()][rng.below(3) as usize];
                let data = [0, rng.below(1000), rng.next()][rng.below(3) as usize];
                let body = [rng.below(100_000) >> rng.below(17), rng.below(3) | (rng.below(3000) << 32)];
                if at + 5 >= words {
                    break;
                }
                for (i, w) in [tag, data, body[0], body[1]].into_iter().enumerate() {
                    liar.ring(at + 1 + i).store(w, Ordering::Relaxed);
                }
                let flags = if rng.one_in(8) { rng.below(16) } else { rng.below(4) * u64::from(kind < 5) };
                let ack = if rng.one_in(8) { rng.next() & 0xffff } else { 0 };
                liar.ring(at).store(kind | flags << 4 | (position & 0xff) << 8 | len << 16 | ack << 32, Ordering::Release);
                position += (24 + if kind == 4 { 16 } else { 0 } + len).div_ceil(64);
                scene.turns(2);
            }
        }
        _ => {
            // Lies about what it has read and may take, between sound records.
            for i in 0..rng.range(1, 8) {
                some_record(liar, rng, 100 + i as u32);
                let word = rng.pick(&[CONSUMED, CREDIT, HOT, STATE]);
                let value = [0, rng.below(400), rng.next(), u64::MAX][rng.below(4) as usize];
                liar.mem.word(word).store(value, Ordering::Release);
                scene.turns(40);
            }
        }
    }
    scene.turns(40);
    let _ = what;
}

/// A record that may well be right.
fn some_record(liar: &mut Liar, rng: &mut Rng, stream: u32) {
    let tag = [rng.below(4), 50][rng.below(2) as usize];
    let n = rng.range(0, 232);
    match rng.below(11) {
        9 => liar.write(Kind::Offer, tag, 0, [n as u64, stream.into()], &mut pieces(&[(rng.next() >> rng.below(64), n as u64)])),
        10 => liar.write(Kind::Done, rng.below(2), rng.below(9), [0; 2], &mut []),
        5 => liar.write(Kind::Put, rng.below(3), rng.next(), [rng.next() >> rng.below(64), 1], &mut payload(n)),
        6 => liar.write(Kind::Get, rng.below(3), rng.next() >> rng.below(64), [rng.next() >> rng.below(64), 1], &mut []),
        7 => liar.write(Kind::Event, rng.below(3), 1, [0, rng.next()], &mut []),
        8 => liar.write(Kind::Atomic, rng.below(3), 2 | 7 << 8 | 8 << 32, [rng.next() >> rng.below(64), 1], &mut payload(8)),
        0 | 1 => liar.write(Kind::Inline, tag, 0, [0; 2], &mut payload(n)),
        2 => liar.write(Kind::Eager, tag, 0, [0; 2], &mut payload(n * 10)),
        3 => {
            let total = n as u64 * 3 + 1;
            liar.write(Kind::Rts, tag, 0, Rts { total, stream, promise: total as u32 }.emit(), &mut payload(n))
        }
        _ => liar.write(Kind::Cts, rng.below(2), rng.below(50_000), [0; 2], &mut []),
    };
}

/// Memory that changes while it is read: another thread scribbles over the ring and the control lines for as long as it is connected.
#[test]
fn a_ring_that_changes_under_the_readers_eyes() {
    let _dog = watchdog("scribble", 60);
    let seed = seed();
    let mut scene = Scene::new();
    for case in 0..150u64 {
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        let to_liar = scene.victim.av.insert(&liar.name);
        let mut out = pattern(40_000, 1);
        if scene.victim.send(Msg::new(to_liar, 5).ctx(SEND), &mut out).is_ok() {
            scene.sends_open += 1;
        }
        for i in 0..10 {
            some_record(&mut liar, &mut Rng(seed + case), i);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (mem, seen) = (liar.mem.clone(), stop.clone());
        let scribbler = std::thread::spawn(move || {
            let mut rng = Rng(seed << 20 | case);
            let words = BYTES / 8;
            while !seen.load(Ordering::Relaxed) {
                // Lengths and bodies of the records that are there, mostly.
                let at = match rng.below(8) {
                    0 => rng.below(words as u64) as usize,
                    1 => rng.range(CONSUMED, STATE + 1),
                    _ => (CONTROL_LINES + rng.range(0, 40)) * LINE_WORDS + rng.range(1, 5),
                };
                mem.word(at).store(rng.next() >> rng.below(64), Ordering::Relaxed);
                std::hint::spin_loop();
            }
        });
        for _ in 0..30 {
            scene.turns(10);
        }
        end(&mut scene, liar, &format!("seed {seed}, case {case}"));
        stop.store(true, Ordering::Relaxed);
        scribbler.join().expect("scribbler");
        assert_eq!(scene.sends_open, 0);
        if case % 10 == 0 {
            scene.nothing_was_swallowed(&format!("seed {seed}, case {case}"));
            scene.exchange();
        }
        scene.clean();
    }
}

/// Everything that can be wrong with a hello. Nothing is left behind by any of it.
#[test]
fn hellos_that_are_none() {
    process::alone("hellos_that_are_none", || {
        let _dog = watchdog("hellos", 60);
        let seed = seed();
        let mut scene = Scene::new();
        let own = scene.victim.name();
        let hello = |from: [u8; NAME_LEN], to: [u8; NAME_LEN], bytes: usize| Hello::new(from, to, bytes as u32, 0, [1; 16]);
        let good = |bytes| hello(any_name().to_bytes(), own.to_bytes(), bytes);
        let (sound, _mem) = segment::create(BYTES).expect("segment");
        let (bell, _bell) = memfd::create("bell", bell::BYTES, false).expect("bell");
        let unsealed = |bytes: u64| {
            use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
            let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
            ftruncate(&fd, bytes).expect("size");
            fd
        };
        let (small, _small) = memfd::create("small", 4096, true).expect("memfd");
        let (blank, _blank) = memfd::create("blank", BYTES, true).expect("memfd");
        let (wrong_card, mem) = segment::create(BYTES).expect("segment");
        mem.word(CARD_MAGIC).store(1, Ordering::Release);
        let (wrong_size, mem) = segment::create(BYTES).expect("segment");
        mem.word(CARD_BYTES).store(1 << 30, Ordering::Release);
        let raw_size = unsealed(BYTES as u64);
        let null =
            rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
                .expect("null");
        let version = {
            let mut h = good(BYTES).as_bytes().to_vec();
            h[8] = 99;
            h
        };
        let mut cases: Vec<(String, Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
            ("no descriptors".into(), good(BYTES).as_bytes().into(), vec![]),
            ("one descriptor".into(), good(BYTES).as_bytes().into(), vec![sound.as_fd()]),
            ("another version".into(), version, vec![sound.as_fd(), bell.as_fd()]),
            (
                "another nonce".into(),
                hello(any_name().to_bytes(), any_name().to_bytes(), BYTES).as_bytes().into(),
                vec![sound.as_fd(), bell.as_fd()],
            ),
            (
                "a contact as the caller".into(),
                hello(common::contact(9).to_bytes(), own.to_bytes(), BYTES).as_bytes().into(),
                vec![sound.as_fd(), bell.as_fd()],
            ),
            ("no name".into(), hello([7; NAME_LEN], own.to_bytes(), BYTES).as_bytes().into(), vec![sound.as_fd(), bell.as_fd()]),
            ("a refusal".into(), good(BYTES).refuse(Refusal::WrongEndpoint).as_bytes().into(), vec![]),
            (
                "a refusal with descriptors".into(),
                good(BYTES).refuse(Refusal::Version).as_bytes().into(),
                vec![sound.as_fd(), bell.as_fd()],
            ),
            ("too long".into(), [good(BYTES).as_bytes(), &[0; 1]].concat(), vec![sound.as_fd(), bell.as_fd()]),
            ("far too long".into(), vec![1; 5000], vec![sound.as_fd()]),
            ("too short".into(), good(BYTES).as_bytes()[1..].into(), vec![sound.as_fd(), bell.as_fd()]),
        ];
        for (what, fd, bytes) in [
            ("unsealed", &raw_size, BYTES),
            ("too small", &small, 4096),
            ("smaller than it says", &small, BYTES),
            ("larger than it says", &sound, BYTES / 2),
            ("no card", &blank, BYTES),
            ("another card", &wrong_card, BYTES),
            ("another size on its card", &wrong_size, BYTES),
            ("no memory at all", &null, BYTES),
            ("a size of nothing", &sound, 0),
            ("not whole pages", &sound, BYTES + 64),
            ("huge", &sound, u32::MAX as usize),
        ] {
            cases.push((format!("a segment: {what}"), good(bytes).as_bytes().into(), vec![fd.as_fd(), bell.as_fd()]));
        }
        for (what, fd) in [("wrong size", &sound), ("unsealed", &raw_size), ("no memory", &null)] {
            cases.push((format!("a bell: {what}"), good(BYTES).as_bytes().into(), vec![sound.as_fd(), fd.as_fd()]));
        }
        let mut rng = Rng(seed);
        for i in 0..300 {
            let mut bytes = good(BYTES).as_bytes().to_vec();
            if i % 3 == 0 {
                bytes = (0..rng.range(1, 400)).map(|_| rng.next() as u8).collect();
            } else {
                // Any bit of what matters; the cores are anybody's choice.
                for _ in 0..rng.range(1, 4) {
                    bytes[rng.range(0, 112)] ^= 1 << rng.below(8);
                }
            }
            cases.push((format!("noise {i} of seed {seed}"), bytes, vec![sound.as_fd(), bell.as_fd()]));
        }
        scene.exchange();
        let before = footprint();
        for (what, bytes, fds) in &cases {
            let fd = socket::connect(&own.socket_name()).expect("connect");
            socket::send(&fd, bytes, fds).expect("send");
            let until = Deadline::new(5);
            let mut refused = false;
            loop {
                scene.turns(10);
                match local::receive(&fd) {
                    Reply::Nothing | Reply::Wake => {}
                    Reply::Refused(e) => {
                        refused =
                            e != Error::Version || what.contains("version") || what.contains("refusal") || what.contains("noise")
                    }
                    Reply::Ended => break,
                    // Flipped bits of its own name make another name; that is no lie.
                    Reply::Greeting(_) if what.starts_with("noise") => {
                        refused = true;
                        break;
                    }
                    Reply::Greeting(_) => panic!("{what}: welcomed"),
                }
                until.check(|| format!("{what}: no answer"));
            }
            assert!(refused, "{what}: not told why");
            drop(fd);
            scene.exchange();
        }
        let until = Deadline::new(5);
        while footprint() != before {
            scene.turns(20);
            until.check(|| format!("something is left: {:?}, not {before:?}", footprint()));
        }
    });
}

/// Who connects and says nothing costs a descriptor for a while, and no more; meanwhile others get in.
#[test]
fn silent_callers() {
    process::alone("silent_callers", || {
        let _dog = watchdog("silent", 60);
        let now = Arc::new(AtomicU64::new(1));
        let mut victim = Node::open(Config::default(), attr(), Clock::Manual(now.clone()));
        let before = footprint();
        let silent: Vec<OwnedFd> = (0..500)
            .map(|_| {
                loop {
                    now.fetch_add(100_000, Ordering::Relaxed);
                    victim.quiet(17);
                    if let Ok(fd) = socket::connect(&victim.name().socket_name()) {
                        break fd;
                    }
                }
            })
            .collect();
        // An honest one is let in.
        let mut good = Node::new();
        let to_victim = good.knows(&victim);
        let (mut out, mut into) = (pattern(100, 1), vec![0u8; 100]);
        victim.recv(Want::tag(1), &mut into).expect("recv");
        good.send(Msg::new(to_victim, 1), &mut out).expect("send");
        let until = Deadline::new(5);
        let mut got = Vec::new();
        while got.is_empty() {
            now.fetch_add(100_000, Ordering::Relaxed);
            got = victim.poll();
            good.poll();
            until.check(|| "kept out by silent callers".into());
        }
        assert!(got[0].is_ok() && into == out);
        // Their time passes.
        for _ in 0..400 {
            now.fetch_add(20_000_000, Ordering::Relaxed);
            victim.quiet(17);
        }
        assert!(silent.iter().all(|fd| matches!(local::receive(fd), Reply::Ended)), "silent callers are kept for ever");
        drop((silent, good));
        let until = Deadline::new(5);
        while footprint().fds > before.fds + 1 {
            now.fetch_add(20_000_000, Ordering::Relaxed);
            victim.quiet(17);
            until.check(|| format!("{:?}, {before:?}", footprint()));
        }
    });
}

/// A flood of calls (hello and all) from one who hangs up at once.
#[test]
fn a_flood_of_calls() {
    process::alone("a_flood_of_calls", || {
        let _dog = watchdog("calls", 60);
        let mut scene = Scene::new();
        let before = footprint();
        for i in 0..600 {
            let liar = Liar::call(&scene.victim.name(), any_name(), i);
            drop(liar);
            if i % 20 == 0 {
                scene.exchange();
            }
        }
        let until = Deadline::new(10);
        while footprint() != before {
            scene.turns(100);
            until.check(|| format!("{:?}, not {before:?}", footprint()));
        }
        scene.exchange();
    });
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let [_, victim, name] = &words[..] else { return };
    let (victim, name): (Name, Name) = (victim.parse().expect("name"), name.parse().expect("name"));
    let impostor = Liar::call(&victim, name, 0);
    let until = Deadline::new(10);
    loop {
        match local::receive(&impostor.fd) {
            Reply::Nothing | Reply::Wake => until.check(|| "no answer".into()),
            Reply::Greeting(_) => return process::say("welcomed"),
            Reply::Refused(_) | Reply::Ended => return process::say("turned away"),
        }
    }
}

/// Who calls from another process under the name of a peer that is connected is turned away, and the peer is not harmed.
#[test]
fn an_impostor() {
    let _dog = watchdog("impostor", 30);
    let mut scene = Scene::new();
    for _ in 0..3 {
        let mut other = process::copy("role", &format!("impostor {} {}", scene.victim.name(), scene.good.name()));
        let until = Deadline::new(10);
        let said = loop {
            scene.turns(20);
            if let Some(said) = other.heard() {
                break said;
            }
            until.check(|| "no answer".into());
        };
        assert_eq!(said, "turned away");
        scene.exchange();
        assert_eq!(scene.victim.stats().lost, 0);
    }
}

/// The bell is everybody's: whatever is written there, messages of cold peers come.
#[test]
fn scribbling_on_the_bell() {
    let _dog = watchdog("bell", 60);
    let mut rng = Rng(seed());
    for mode in 0..3 {
        let mut scene = Scene::with(Config { hot_peers: 1, ..Config::default() });
        let liar = Liar::connected(&mut scene.victim);
        let bell = liar.bell.as_ref().expect("settled");
        let mut peers: Vec<(Node, Addr)> = (0..20)
            .map(|_| {
                let n = Node::new();
                let to = n.knows(&scene.victim);
                (n, to)
            })
            .collect();
        let mut into = vec![0u8; 3000];
        for i in 0..400usize {
            let at = i % 20;
            let (peer, to) = &mut peers[at];
            let mut out = pattern([8, 3000][i % 2], i);
            scene.victim.recv(Want::tag(70).ctx(SEND), &mut into).expect("recv");
            scene.sends_open += 1;
            peer.send(Msg::new(*to, 70).inject().ctx(0), &mut out[..8]).expect("send");
            // Someone clears it all, someone sets it all, someone writes noise.
            match mode {
                0 => bell.take(|_| {}),
                1 => (0..4096).for_each(|slot| bell.ring(slot)),
                _ => (0..20).for_each(|_| bell.ring(rng.next() as u32)),
            }
            let until = Deadline::new(5);
            while scene.sends_open > 0 {
                if mode == 0 {
                    bell.take(|_| {});
                }
                scene.turns(1);
                peers.iter_mut().for_each(|(p, _)| p.domain.progress());
                until.check(|| format!("message {i} is stuck, mode {mode}"));
            }
            assert_eq!(into[..8], out[..8]);
        }
        scene.exchange();
    }
}

/// The liar listens, and the victim calls.
#[test]
fn a_listener_that_lies() {
    let _dog = watchdog("listener", 60);
    let seed = seed();
    let mut scene = Scene::new();
    for case in 0..200u64 {
        let mut rng = Rng(seed << 20 | case);
        let port = fresh_port();
        let by_contact = rng.one_in(2);
        let name = if by_contact { common::contact(port) } else { any_name() };
        let listener = socket::listen(&name.socket_name()).expect("listen");
        let to = scene.victim.av.insert(&name);
        let (mut out, mut small) = (pattern(50_000, 1), [0u8; 4]);
        scene.victim.recv(Want::tag(80).ctx(SEND).from(to), &mut small).expect("recv");
        scene.victim.send(Msg::new(to, 1).ctx(SEND), &mut out).expect("send");
        scene.sends_open += 2;
        if scene.victim.send(Msg::new(to, 1).ctx(SEND).with(OpFlags::DELIVERY_COMPLETE), &mut out[..100]).is_ok() {
            scene.sends_open += 1;
        }
        let fd = socket::accept(&listener).expect("the call came at once");
        let Reply::Greeting(g) = local::receive(&fd) else { panic!("no hello") };
        let theirs = g.segment.segment(g.hello.segment.get() as usize).expect("segment");
        let (segment, _mem) = segment::create(BYTES).expect("segment");
        let (bell, _map) = memfd::create("bell", bell::BYTES, false).expect("bell");
        let caller = scene.victim.name();
        let me = if by_contact { any_name() } else { name };
        let reply = |from: Name, bytes: usize| Hello::new(from.to_bytes(), caller.to_bytes(), bytes as u32, 3, [1; 16]);
        let both = [segment.as_fd(), bell.as_fd()];
        let what = rng.below(8);
        let sent = match what {
            0 => socket::send(&fd, reply(any_name(), 1 << 20).as_bytes(), &both),
            1 => socket::send(&fd, reply(name, BYTES).as_bytes(), &[segment.as_fd()]),
            2 => {
                let why = rng.pick(&[Refusal::Version, Refusal::WrongEndpoint, Refusal::NoResources, Refusal::Malformed]);
                socket::send(&fd, reply(me, BYTES).refuse(why).as_bytes(), &[])
            }
            3 => socket::send(&fd, &vec![rng.next() as u8; rng.range(1, 2 * HELLO_LEN)], &both),
            4 => socket::send(&fd, reply(common::contact(port), BYTES).as_bytes(), &both),
            // Welcome, twice.
            5 => socket::send(&fd, reply(me, BYTES).as_bytes(), &both)
                .and_then(|()| socket::send(&fd, reply(me, BYTES).as_bytes(), &both)),
            // Welcome by the name of somebody else whom the victim is talking to.
            6 => socket::send(&fd, reply(scene.good.name(), BYTES).as_bytes(), &both).map(|()| {
                if by_contact {
                    // That is what an alias looks like; it ends when it hangs up.
                    scene.turns(300);
                }
            }),
            // Hangs up without a word.
            _ => Ok(()),
        };
        sent.expect("sent");
        if what == 7 || (what == 6 && by_contact) {
            drop(fd);
        }
        let until = Deadline::new(5);
        // The receive from a name that now stands for the well-behaved peer stays; it is satisfied below.
        let stays = i64::from(what == 6 && by_contact);
        while scene.sends_open > stays {
            scene.turns(10);
            until.check(|| {
                format!("seed {seed}, case {case}, lie {what}, contact {by_contact}: {} operations never end", scene.sends_open)
            });
        }
        if stays > 0 {
            scene.good.send(Msg::new(scene.to_victim, 80).inject(), &mut [1u8; 4]).expect("send");
            while scene.sends_open > 0 {
                scene.turns(10);
                until.check(|| format!("case {case}: the receive is lost"));
            }
        }
        drop(theirs);
        scene.exchange();
    }
}

/// Acknowledgements and credit that are not true hurt the liar only.
#[test]
fn lies_about_what_was_read() {
    let _dog = watchdog("acks", 60);
    for (consumed, credit) in [(u64::MAX, 0), (1 << 31, 0), (400, 0), (0, u64::MAX), (0, u64::MAX / 2), (u64::MAX / 2, u64::MAX)]
    {
        let mut scene = Scene::new();
        let liar = Liar::connected(&mut scene.victim);
        let to_liar = scene.victim.av.insert(&liar.name);
        liar.mem.word(CREDIT).store(credit, Ordering::Release);
        liar.mem.word(CONSUMED).store(consumed, Ordering::Release);
        let mut out = pattern(4000, 1);
        let mut refused = None;
        for _ in 0..200 {
            match scene.victim.send(Msg::new(to_liar, 1).ctx(SEND).with(OpFlags::DELIVERY_COMPLETE), &mut out) {
                Ok(()) => scene.sends_open += 1,
                Err(Error::Again) => {}
                Err(e) => refused = Some(e),
            }
            scene.turns(1);
        }
        assert!(matches!(refused, None | Some(Error::Corrupt)), "{refused:?}");
        // What it says it has read cannot be more than what was written: nothing was acknowledged that was not.
        scene.exchange();
        drop(liar);
        let until = Deadline::new(5);
        while scene.sends_open > 0 {
            scene.turns(10);
            until.check(|| format!("{} sends never end", scene.sends_open));
        }
        scene.exchange();
    }
}

/// The flags that a liar's untagged and tagged messages set are those of the message.
#[test]
fn a_liar_that_tells_the_truth_is_a_peer() {
    let _dog = watchdog("truth", 30);
    let mut scene = Scene::new();
    let mut liar = Liar::connected(&mut scene.victim);
    scene.post();
    assert!(liar.write(Kind::Inline, 1, 0, [0; 2], &mut payload(50)));
    let until = Deadline::new(5);
    let mut got = Vec::new();
    while got.is_empty() {
        got = scene.victim.poll();
        until.check(|| "a sound record is not received".into());
    }
    let c = got[0].expect("received");
    assert_eq!((c.len, c.flags), (50, CompFlags::RECV | CompFlags::TAGGED));
    assert_eq!(scene.slots[1].bytes[GUARD..GUARD + 50], payload(50));
    std::thread::sleep(Duration::from_millis(1));
    assert!(!liar.ended());
}

/// The reader steps over a skip before the record behind it is there; by the time that record comes, the line that the
/// reader looked at may hold anything, a zero too. Both must find each other again.
#[test]
fn a_writer_that_stops_between_a_skip_and_its_record() {
    let _dog = watchdog("skip", 30);
    let mut scene = Scene::new();
    let mut liar = Liar::connected(&mut scene.victim);
    let lines = ring_lines(BYTES);
    let skipped = 7;
    while liar.link.position() < lines - skipped {
        if !liar.write(Kind::Inline, 99, 0, [0; 2], &mut payload(8)) {
            scene.turns(1);
        }
    }
    scene.turns(200);
    let position = lines - skipped;
    let at = position as usize * LINE_WORDS;
    let skip = SKIP | u64::from(position & 0xff) << 8 | u64::from(skipped) << 16;
    liar.ring(0).store(0, Ordering::Relaxed);
    liar.ring(at).store(skip, Ordering::Release);
    scene.turns(200);
    let told = liar.theirs.as_ref().map(|t| t.word(CONSUMED).load(Ordering::Acquire));
    assert_eq!(told, Some(u64::from(lines)), "the writer is not told that the skipped lines are free");
    scene.post();
    let header = Header { kind: Kind::Inline, flags: flag::TAGGED, len: 0, ack: 0, tag: 0, data: 0 };
    let [first, second, third] = header.emit(lines);
    liar.ring(1).store(second, Ordering::Relaxed);
    liar.ring(2).store(third, Ordering::Relaxed);
    liar.ring(LINE_WORDS).store(0, Ordering::Relaxed);
    liar.ring(at).store(0, Ordering::Relaxed);
    liar.ring(0).store(first, Ordering::Release);
    let until = Deadline::new(5);
    while scene.slots[0].posted {
        scene.turns(1);
        until.check(|| "the record behind the skip is never seen".into());
    }
}

/// Requests are answered in order; a liar that reads no answers cannot make its victim owe without end.
#[test]
fn requests_without_end() {
    let _dog = watchdog("requests", 30);
    for kind in [Kind::Put, Kind::Get] {
        let mut scene = Scene::new();
        let mut liar = Liar::connected(&mut scene.victim);
        let until = Deadline::new(10);
        while !liar.ended() {
            let _ = liar.link.refresh();
            while liar.write(kind, 1, 0, [0; 2], &mut []) {}
            scene.turns(1);
            until.check(|| "it goes on for ever".into());
        }
        scene.exchange();
    }
}
