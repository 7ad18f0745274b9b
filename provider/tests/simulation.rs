//! Two whole engines under a seeded, random interleaving, against a naive model of what MPI demands.
//!
//! Time is manual and each side only moves when the seed says so: a side that is not polled is a slow link. Rings, windows and fragments are
//! small and random, so everything that can be full is. What is left to the machine is when a socket becomes readable, which
//! the outcome must not depend on.
//!
//! The model: messages of one source arrive in order; a message takes the oldest receive that it fits, a receive the oldest message. So
//! the pairs do not depend on the interleaving: they are found by giving each message in turn to the oldest receive that it
//! fits, leaving out what was cancelled, discarded or claimed.
//!
//! `RUSTMX_SEED` repeats one seed.

mod common;

use common::{Deadline, Event, Msg, Node, Rng, Want, attr, pattern, seg, watchdog};
use rustmx::sys::clock::Clock;
use rustmx::{Addr, CompFlags, Config, Error, INJECT_MAX, OpFlags, UserCtx};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SEND: usize = 1 << 40;
const PEEK: usize = 1 << 41;
const ALIGN: usize = 16;
const MIN_LEFT: usize = 100;

/// A message that was sent; its number is its place in the list and travels as CQ data.
struct Sent {
    tag: u64,
    buf: Vec<u8>,
    /// Completions: one, or none if it was injected.
    open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gone {
    No,
    Cancelled,
    Failed,
}

/// A receive that was posted.
struct Post {
    tag: u64,
    ignore: u64,
    buf: Vec<u8>,
    multi: bool,
    gone: Gone,
    /// Numbers of the messages that it got, in order of completion.
    got: Vec<usize>,
    released: bool,
}

/// A message that a peek reserved.
struct Claim {
    ctx: usize,
    message: usize,
    buf: Vec<u8>,
    posted: bool,
}

struct Side {
    node: Node,
    to: Addr,
    from: Addr,
    out: Vec<Sent>,
    posts: Vec<Post>,
    claims: Vec<Claim>,
    /// Messages of the other side that were taken by a claim or dropped by a peek.
    taken: BTreeMap<usize, ()>,
    peeks: usize,
    /// What the peek under way does with what it finds.
    peek: OpFlags,
    found: Option<Option<usize>>,
    sends_open: usize,
    /// The other side is gone.
    alone: bool,
    /// Messages and receives before these have been compared and are over.
    settled: (usize, usize),
}

struct World {
    sides: [Side; 2],
    clock: Arc<AtomicU64>,
    rng: Rng,
    seed: u64,
    steps: usize,
    /// Whether multi-receive buffers are used, or messages taken by peeks: one that is too long for the rest of a buffer retires
    /// it, so whether it was taken before or after makes a difference that the model does not know.
    multi: bool,
}

impl Drop for World {
    fn drop(&mut self) {
        // Close gives up when its time is over, so time has to pass.
        let clock = self.clock.clone();
        std::thread::spawn(move || {
            while Arc::strong_count(&clock) > 1 {
                clock.fetch_add(1000, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
    }
}

fn content(from: usize, number: usize, n: usize) -> Vec<u8> {
    pattern(n, number * 2 + from)
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let clock = Arc::new(AtomicU64::new(1));
        let mut open = || {
            let config = Config {
                ring_size: rng.pick(&[8 << 10, 12 << 10, 24 << 10]),
                eager_max: rng.pick(&[232, 1000, 4096]),
                fragment: rng.pick(&[256, 1000, 4096]),
                eager_window: rng.pick(&[16 << 10, 20_000, 128 << 10]),
                hot_peers: rng.pick(&[1, 8]),
                close_timeout: 0,
                ..Config::default()
            };
            let mut node = Node::open(config, attr(), Clock::Manual(clock.clone()));
            let ep = node.ep;
            node.domain.ep_set_min_multi_recv(ep, MIN_LEFT);
            node
        };
        let nodes = [open(), open()];
        let [a, b] = &nodes;
        let ways = [(a.knows(b), a.av.insert(&b.name())), (b.knows(a), b.av.insert(&a.name()))];
        let mut ways = ways.into_iter();
        let sides = nodes.map(|node| {
            // Two handles of one endpoint are one peer; the lower one is reported.
            let (from, to) = ways.next().expect("two");
            Side {
                node,
                to,
                from,
                out: Vec::new(),
                posts: Vec::new(),
                claims: Vec::new(),
                taken: BTreeMap::new(),
                peeks: 0,
                peek: OpFlags::empty(),
                found: None,
                sends_open: 0,
                alone: false,
                settled: (0, 0),
            }
        });
        let multi = rng.one_in(2);
        World { sides, clock, rng, seed, steps: 0, multi }
    }

    fn at(&self) -> String {
        format!("seed {}, step {}", self.seed, self.steps)
    }

    /// One turn of a side, with everything that completed checked.
    fn turn(&mut self, s: usize) {
        self.clock.fetch_add(7_000, Ordering::Relaxed);
        for e in self.sides[s].node.poll() {
            self.event(s, &e);
        }
    }

    fn event(&mut self, s: usize, e: &Event) {
        let at = self.at();
        let [a, b] = &mut self.sides;
        let (side, other) = if s == 0 { (a, b) } else { (b, a) };
        let (c, error) = match e {
            Ok(c) => (*c, None),
            Err(e) => (e.c, Some(e)),
        };
        let ctx = c.ctx.0;
        let message = c.data as usize;
        if ctx >= PEEK {
            if let Some(claim) = side.claims.iter().position(|k| k.ctx == ctx && k.posted) {
                let claim = side.claims.swap_remove(claim);
                if error.is_some_and(|e| e.error == Error::PeerGone) && side.alone {
                    return;
                }
                assert_eq!(message, claim.message, "{at}: claimed one message, got another");
                check_payload(&at, 1 - s, &other.out, e, &claim.buf);
                return;
            }
            assert!(side.found.is_none(), "{at}: {e:?}");
            side.found = Some(match error {
                None => Some(message),
                Some(e) if e.error == Error::NoMessage => None,
                Some(e) => panic!("{at}: {e:?}"),
            });
            return;
        }
        if ctx >= SEND {
            assert!(error.is_none() || side.alone, "{at}: {e:?}");
            let sent = &mut side.out[ctx - SEND];
            assert!(std::mem::take(&mut sent.open), "{at}: completed twice: {e:?}");
            side.sends_open -= 1;
            return;
        }
        let post = &mut side.posts[ctx];
        assert!(
            post.gone == Gone::No && !post.released && (post.multi || post.got.is_empty()),
            "{at}: used after its end: {e:?}"
        );
        match error.map(|e| e.error) {
            Some(Error::Cancelled) => {
                post.gone = Gone::Cancelled;
                return;
            }
            Some(Error::PeerGone) if side.alone => {
                if !post.multi || c.flags.contains(CompFlags::MULTI_RECV) {
                    post.gone = Gone::Failed;
                }
                return;
            }
            None | Some(Error::Truncated) => {}
            Some(_) => panic!("{at}: {e:?}"),
        }
        if c.flags.contains(CompFlags::MULTI_RECV) {
            assert!(post.multi, "{at}: {e:?}");
            post.released = true;
            if !c.flags.contains(CompFlags::RECV) {
                return;
            }
        }
        assert_eq!(c.src, side.from, "{at}: {e:?}");
        let start = if post.multi { c.buf - post.buf.as_ptr() as usize } else { 0 };
        assert!(start.is_multiple_of(ALIGN), "{at}: {e:?}");
        check_payload(&at, 1 - s, &other.out, e, &post.buf[start..]);
        let tag = other.out[message].tag;
        assert!((tag ^ post.tag) & !post.ignore == 0, "{at}: a message that does not fit: {e:?}");
        post.got.push(message);
    }

    /// One random operation.
    fn step(&mut self) {
        self.steps += 1;
        let s = self.rng.below(2) as usize;
        let rng = &mut self.rng;
        match rng.below(20) {
            0..5 => self.send(s),
            5..9 => {
                let multi = self.multi && rng.one_in(6);
                let n = if multi { rng.range(200, 20_000) } else { size(rng) };
                let post = Post {
                    tag: rng.below(4),
                    ignore: rng.pick(&[0, 0, u64::MAX, 1, 2]),
                    buf: vec![0xee; n],
                    multi,
                    gone: Gone::No,
                    got: Vec::new(),
                    released: false,
                };
                let side = &mut self.sides[s];
                let ctx = side.posts.len();
                let mut want = Want {
                    from: if rng.one_in(2) { side.from } else { Addr::UNSPEC },
                    ignore: post.ignore,
                    ..Want::tag(post.tag)
                }
                .ctx(ctx);
                if multi {
                    want = want.with(OpFlags::MULTI_RECV);
                }
                side.posts.push(post);
                let iov = split(&mut side.posts[ctx].buf, if multi { 1 } else { 1 + rng.below(4) as usize }, rng);
                side.node.recvv(want, &iov, true).expect("recv");
            }
            9 => {
                let n = self.sides[s].posts.len();
                if n > 0 {
                    let ctx = rng.range(0, n);
                    // Multi-receive buffers may be half-way through a message: those are not cancelled here.
                    if !self.sides[s].posts[ctx].multi {
                        self.cancel(s, ctx);
                    }
                }
            }
            10 => {
                let how = rng.pick(&[OpFlags::empty(), OpFlags::CLAIM, OpFlags::DISCARD]);
                let how = if self.multi { OpFlags::empty() } else { how };
                let (tag, ignore) = (rng.below(4), rng.pick(&[0, u64::MAX, 1]));
                self.peek(s, tag, ignore, how);
            }
            11 => self.claimed(s),
            _ => {
                // One side may stand still for long.
                let turns = rng.pick(&[1, 1, 3, 40]);
                for _ in 0..turns {
                    self.turn(s);
                }
            }
        }
    }

    fn send(&mut self, s: usize) {
        let (rng, side) = (&mut self.rng, &mut self.sides[s]);
        let (tag, n, number) = (rng.below(4), size(rng), side.out.len());
        let level =
            rng.pick(&[OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE, OpFlags::INJECT]);
        let inject = n <= INJECT_MAX && level == OpFlags::INJECT;
        let level = if level == OpFlags::INJECT { OpFlags::empty() } else { level };
        let msg = Msg { inject, ..Msg::new(side.to, tag).data(number as u64).ctx(SEND + number).with(level) };
        side.out.push(Sent { tag, buf: content(s, number, n), open: !inject });
        let iov = split(&mut side.out[number].buf, 1 + rng.below(4) as usize, rng);
        match side.node.sendv(msg, &iov, true) {
            Ok(()) => {
                side.sends_open += usize::from(!inject);
                if inject {
                    side.out[number].buf.fill(0);
                }
            }
            Err(Error::Again) => drop(side.out.pop()),
            Err(e) => panic!("{}: {e}", self.at()),
        }
    }

    fn cancel(&mut self, s: usize, ctx: usize) {
        let side = &mut self.sides[s];
        let ended = side.posts[ctx].gone != Gone::No || side.posts[ctx].released;
        let had = !side.posts[ctx].multi && !side.posts[ctx].got.is_empty();
        let ep = side.node.ep;
        let cancelled = side.node.domain.cancel(ep, UserCtx(ctx));
        assert!(cancelled.is_err() || !(ended || had), "{}: cancelled what had ended", self.at());
        self.turn(s);
        assert_eq!(self.sides[s].posts[ctx].gone == Gone::Cancelled && !ended, cancelled.is_ok(), "{}", self.at());
    }

    /// What a peek finds.
    fn peek(&mut self, s: usize, tag: u64, ignore: u64, how: OpFlags) -> Option<usize> {
        let side = &mut self.sides[s];
        side.peeks += 1;
        let ctx = PEEK + side.peeks;
        side.peek = how;
        let want = Want { ignore, ..Want::tag(tag) }.ctx(ctx).with(OpFlags::PEEK | how);
        side.node.recvv(want, &[], true).expect("peek");
        self.turn(s);
        let at = self.at();
        let [a, b] = &mut self.sides;
        let (side, other) = if s == 0 { (a, b) } else { (b, a) };
        let found = side.found.take().unwrap_or_else(|| panic!("{at}: a peek says at once what it found"));
        if let Some(message) = found {
            let sent = &other.out[message];
            assert!((sent.tag ^ tag) & !ignore == 0 && !side.taken.contains_key(&message), "{at}: found {message}");
            assert!(side.posts.iter().all(|p| !p.got.contains(&message)), "{at}: found {message}, which was received");
            if how != OpFlags::empty() {
                side.taken.insert(message, ());
            }
            if how == OpFlags::CLAIM {
                side.claims.push(Claim { ctx, message, buf: Vec::new(), posted: false });
            }
        }
        found
    }

    /// Receives or drops what was claimed, in any order.
    fn claimed(&mut self, s: usize) {
        let side = &mut self.sides[s];
        let open: Vec<usize> = (0..side.claims.len()).filter(|i| !side.claims[*i].posted).collect();
        if open.is_empty() {
            return;
        }
        let i = self.rng.pick(&open);
        let discard = self.rng.one_in(3);
        let ctx = side.claims[i].ctx;
        if discard {
            side.claims.swap_remove(i);
            let want = Want::any().ctx(ctx).with(OpFlags::CLAIM | OpFlags::DISCARD);
            let dropped = side.node.recvv(want, &[], true);
            assert!(dropped.is_ok() || side.alone, "{}", self.at());
            self.turn(s);
            self.sides[s].found = None;
            return;
        }
        let n = size(&mut self.rng);
        let claim = &mut side.claims[i];
        claim.buf = vec![0xee; n];
        claim.posted = true;
        let iov = [seg(&mut claim.buf)];
        let received = side.node.recvv(Want::any().ctx(ctx).with(OpFlags::CLAIM), &iov, true);
        assert!(received.is_ok() || side.alone, "{}", self.at());
        if received.is_err() {
            side.claims.swap_remove(i);
        }
    }

    /// What each receive of side `s` gets, and what is left over.
    fn oracle(&self, s: usize) -> (Vec<Vec<usize>>, Vec<usize>) {
        let (side, other) = (&self.sides[s], &self.sides[1 - s]);
        let mut got = vec![Vec::new(); side.posts.len()];
        // Of a multi-receive buffer: how much is used; of another: all or nothing.
        let mut used = vec![0usize; side.posts.len()];
        let mut full = vec![false; side.posts.len()];
        let mut left = Vec::new();
        'message: for (number, m) in other.out.iter().enumerate().skip(side.settled.0) {
            if side.taken.contains_key(&number) {
                continue;
            }
            for (i, p) in side.posts.iter().enumerate().skip(side.settled.1) {
                // A buffer that was cancelled took nothing after that.
                if full[i] || (m.tag ^ p.tag) & !p.ignore != 0 || (p.gone != Gone::No && got[i].len() == p.got.len()) {
                    continue;
                }
                if p.multi {
                    let rest = p.buf.len() - used[i];
                    if used[i] > 0 && m.buf.len() > rest {
                        full[i] = true;
                        continue;
                    }
                    used[i] = (used[i] + m.buf.len().min(rest)).next_multiple_of(ALIGN).min(p.buf.len());
                    full[i] = p.buf.len() - used[i] < MIN_LEFT;
                } else {
                    full[i] = true;
                }
                got[i].push(number);
                continue 'message;
            }
            left.push(number);
        }
        (got, left)
    }

    /// Lets everything that can complete complete, and compares.
    fn settle(&mut self) {
        while self.sides.iter().any(|s| s.claims.iter().any(|c| !c.posted)) {
            self.claimed(0);
            self.claimed(1);
        }
        let sorted = |mut v: Vec<usize>| {
            v.sort_unstable();
            v
        };
        let got = |w: &World, s: usize| -> Vec<Vec<usize>> {
            let side = &w.sides[s];
            let one = |(i, p): (usize, &Post)| if i < side.settled.1 { Vec::new() } else { sorted(p.got.clone()) };
            side.posts.iter().enumerate().map(one).collect()
        };
        let until = Deadline::new(5);
        for s in 0..2 {
            let (want, _) = self.oracle(s);
            while got(self, s) != want || self.sides[s].claims.iter().any(|c| c.posted) {
                for _ in 0..20 {
                    self.turn(0);
                    self.turn(1);
                }
                if until.passed() {
                    let differ: Vec<_> = want.iter().zip(got(self, s)).enumerate().filter(|(_, (w, g))| *w != g).collect();
                    panic!("{}, side {s}: receive, (should, did): {differ:?}", self.at());
                }
            }
        }
        // What is posted still can be cancelled; what was not asked for is still there, in order.
        for s in 0..2 {
            for ctx in 0..self.sides[s].posts.len() {
                let p = &self.sides[s].posts[ctx];
                let waits = p.gone == Gone::No && if p.multi { !p.released } else { p.got.is_empty() };
                if waits {
                    self.cancel(s, ctx);
                    assert_eq!(
                        self.sides[s].posts[ctx].gone,
                        Gone::Cancelled,
                        "{}: receive {ctx} cannot be cancelled",
                        self.at()
                    );
                }
            }
            let (_, left) = self.oracle(s);
            for want in left {
                let until = Deadline::new(5);
                loop {
                    match self.peek(s, 0, u64::MAX, OpFlags::DISCARD) {
                        Some(found) => {
                            assert_eq!(found, want, "{}, side {s}: unexpected messages out of order", self.at());
                            break;
                        }
                        None => self.turn(1 - s),
                    }
                    until.check(|| format!("{}, side {s}: message {want} is lost", self.at()));
                }
            }
        }
        let until = Deadline::new(5);
        while self.sides.iter().any(|s| s.sends_open > 0) {
            self.turn(0);
            self.turn(1);
            until.check(|| {
                format!("{}: sends never complete: {:?}", self.at(), [self.sides[0].sends_open, self.sides[1].sends_open])
            });
        }
        for s in 0..2 {
            assert_eq!(self.peek(s, 0, u64::MAX, OpFlags::empty()), None, "{}: a message out of nothing", self.at());
            self.sides[s].settled = (self.sides[1 - s].out.len(), self.sides[s].posts.len());
        }
    }

    /// One side ends in the middle of it all: everything the other one waits for ends, too.
    fn abandon(mut self) -> World {
        let dead = self.rng.below(2) as usize;
        let s = 1 - dead;
        let node = &mut self.sides[dead].node;
        let ep = node.ep;
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Close gives up when its time is over, so time has to pass.
            scope.spawn(|| {
                while !closed.load(Ordering::Relaxed) {
                    self.clock.fetch_add(1000, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            node.domain.ep_close(ep).expect("close");
            closed.store(true, Ordering::Relaxed);
        });
        self.sides[s].alone = true;
        let lost = Deadline::new(5);
        while self.sides[s].sends_open > 0 || self.sides[s].claims.iter().any(|c| c.posted) {
            self.turn(s);
            lost.check(|| format!("{}: {} sends wait for one that is gone", self.at(), self.sides[s].sends_open));
        }
        for _ in 0..200 {
            self.turn(s);
        }
        // What it claimed and what came whole can still be received; nothing hangs in the middle.
        while self.sides[s].claims.iter().any(|c| !c.posted) {
            self.claimed(s);
        }
        for ctx in 0..self.sides[s].posts.len() {
            let p = &self.sides[s].posts[ctx];
            if p.gone == Gone::No && if p.multi { !p.released } else { p.got.is_empty() } {
                self.cancel(s, ctx);
                let p = &self.sides[s].posts[ctx];
                assert!(
                    p.gone == Gone::Cancelled,
                    "{}: receive {ctx} waits for one that is gone (multi: {})",
                    self.at(),
                    p.multi
                );
            }
        }
        let until = Deadline::new(5);
        let mut last = None;
        while let Some(found) = self.peek(s, 0, u64::MAX, OpFlags::DISCARD) {
            assert!(last < Some(found), "{}: {found} after {last:?}", self.at());
            last = Some(found);
            until.check(|| "no end".into());
        }
        assert!(self.sides[s].claims.is_empty(), "{}", self.at());
        self
    }
}

fn size(rng: &mut Rng) -> usize {
    match rng.below(6) {
        0 => 0,
        1 => rng.range(1, 65),
        2 => rng.range(65, 260),
        3 => rng.range(260, 4200),
        4 => rng.range(1000, 20_000),
        _ => rng.range(20_000, 90_000) >> rng.below(4),
    }
}

fn split(buf: &mut [u8], parts: usize, rng: &mut Rng) -> Vec<rustmx::UserSeg> {
    let mut rest = buf;
    let mut iov = Vec::new();
    for _ in 1..parts {
        let at = rng.range(0, rest.len() + 1);
        let (a, b) = rest.split_at_mut(at);
        iov.push(seg(a));
        rest = b;
    }
    iov.push(seg(rest));
    iov
}

/// The bytes of a received message, whole or cut off.
fn check_payload(at: &str, from: usize, out: &[Sent], e: &Event, buf: &[u8]) {
    let c = e.map_or_else(|e| e.c, |c| c);
    let number = c.data as usize;
    let sent = out.get(number).unwrap_or_else(|| panic!("{at}: a message that was never sent: {e:?}"));
    let total = sent.buf.len();
    match e {
        Ok(c) => assert_eq!((c.len, c.tag), (total, sent.tag), "{at}: {e:?}"),
        Err(e) => assert_eq!((e.error, e.c.len + e.olen, e.c.tag), (Error::Truncated, total, sent.tag), "{at}: {e:?}"),
    }
    assert_eq!(&buf[..c.len], &content(from, number, total)[..c.len], "{at}: {e:?}");
}

fn seeds(n: u64) -> std::ops::Range<u64> {
    match std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(one) => one..one + 1,
        None => 1..n + 1,
    }
}

#[test]
fn two_engines_do_what_the_model_says() {
    let _dog = watchdog("simulation", 100);
    let (mut steps, mut messages, mut unexpected, mut full) = (0, 0, 0, 0);
    for seed in seeds(120) {
        let mut world = World::new(seed);
        for _ in 0..4 {
            for _ in 0..120 {
                world.step();
            }
            if world.rng.one_in(2) {
                world.settle();
            }
        }
        world.settle();
        steps += world.steps;
        messages += world.sides.iter().map(|s| s.out.len()).sum::<usize>();
        for side in &world.sides {
            let stats = side.node.stats();
            unexpected += stats.unexpected;
            full += stats.ring_full + stats.window_full;
        }
    }
    println!("{steps} steps, {messages} messages, {unexpected} unexpected, {full} times something was full");
    assert!(unexpected > 0 && full > 0, "the simulation does not reach the corners");
}

#[test]
fn one_engine_ends_in_the_middle() {
    let _dog = watchdog("simulated end", 100);
    for seed in seeds(150) {
        let mut world = World::new(seed << 32);
        let steps = world.rng.range(1, 300);
        for _ in 0..steps {
            world.step();
        }
        drop(world.abandon());
    }
}
