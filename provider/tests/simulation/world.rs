//! The engines of one world, what they were asked for, and what came of it.

use crate::common::{Event, Msg, Node, Rng, Want, attr, contact, fresh_port, seg};
use crate::model::{ALIGN, Claim, Flow, Gone, MIN_LEFT, Post, Sent, size, split};
use crate::net::{self, Shared, Weather};
use rustmx::sys::clock::Clock;
use rustmx::{Addr, CompFlags, Config, Domain, EpAttr, Error, INJECT_MAX, Log, LogLevel, LogSink, LogSubsystem, Name, OpFlags, Service, UserCtx};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Contexts: what it is, the number of the flow, the number in the flow's list.
const SEND: usize = 1 << 40;
const PEEK: usize = 1 << 41;
const FLOW: usize = 32;
/// Turns after which nothing more is expected to happen by itself.
const PATIENCE: usize = 5_000;

/// One engine.
pub struct Engine {
    pub node: Node,
    pub name: Name,
    /// How it can be found without its name, and what it was opened with for that.
    at: Option<(EpAttr, Name)>,
    pub alive: bool,
    /// Handles to send to the others by, and those that they are reported as.
    pub ways: Vec<(Addr, Addr)>,
    peeks: usize,
    /// What the last peek found.
    found: Option<Option<usize>>,
}

/// What a world is made of, besides its seed.
#[derive(Clone, Copy, Default)]
pub struct Make {
    /// Engines; 0: 2 to 4.
    pub engines: usize,
    /// Real sockets and segments, where the kernel decides when contact is made.
    pub real: bool,
    /// Contact fails now and then.
    pub rough: bool,
    /// Nobody is found by a contact address: two engines have one link.
    pub named: bool,
}

pub struct World {
    pub engines: Vec<Engine>,
    pub flows: Vec<Flow>,
    pub net: Shared,
    pub clock: Arc<AtomicU64>,
    pub rng: Rng,
    pub seed: u64,
    pub steps: usize,
    /// Longest step of the clock.
    pace: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nRUSTMX_SEED={} repeats this.", self.seed);
            self.net.lock().trace.print();
        }
    }
}

/// What the engines say, among the events.
struct Scribe {
    net: Shared,
    node: usize,
}

impl LogSink for Scribe {
    fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
        true
    }

    fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
        self.net.lock().trace.remark(self.node, text);
    }
}

/// A node at the net, or at the kernel's sockets.
pub fn open(config: Config, attr: EpAttr, clock: &Arc<AtomicU64>, net: Option<&Shared>) -> Node {
    let clock = Clock::Manual(clock.clone());
    let mut node = match net {
        Some(net) => {
            let (node, venue) = net.place();
            // Of one seed everything is told.
            let one = std::env::var_os("RUSTMX_SEED").is_some();
            let log = if one { Log::new(Arc::new(Scribe { net: net.clone(), node })) } else { Log::silent() };
            Node::enabled(Domain::at_venue(Arc::new(config), log, clock, venue), attr)
        }
        None => Node::open(config, attr, clock),
    };
    let ep = node.ep;
    node.domain.ep_set_min_multi_recv(ep, MIN_LEFT);
    node
}

/// Small and random, so that everything that can be full is.
pub fn config(rng: &mut Rng) -> Config {
    Config {
        ring_size: rng.pick(&[8 << 10, 12 << 10, 24 << 10]),
        eager_max: rng.pick(&[232, 1000, 4096]),
        fragment: rng.pick(&[256, 1000, 4096]),
        eager_window: rng.pick(&[16 << 10, 20_000, 128 << 10]),
        hot_peers: rng.pick(&[1, 2, 8]),
        close_timeout: 0,
        connect_timeout: 2000,
        ..Config::default()
    }
}

/// Attributes of an endpoint that can be found by a port, and its contact.
pub fn service() -> (EpAttr, Name) {
    let port = fresh_port();
    let service = Service { ip: "127.0.0.1".parse().expect("ip"), scope_id: 0, port };
    (EpAttr { service: Some(service), ..attr() }, contact(port))
}

impl World {
    pub fn new(seed: u64, make: Make) -> World {
        let mut rng = Rng(seed);
        let clock = Arc::new(AtomicU64::new(1));
        let weather = Weather {
            delay: rng.pick(&[0, 1_000, 30_000, 300_000]),
            deaf: rng.pick(&[0, 3]),
            busy: if make.rough { rng.pick(&[0, 2, 4]) } else { 0 },
            mute: if make.rough { rng.pick(&[0, 2, 4]) } else { 0 },
        };
        let net = Shared::new(seed, weather, clock.clone());
        let n = if make.engines == 0 { 2 + rng.below(3) as usize } else { make.engines };
        let mut contacts = Vec::new();
        let engines: Vec<Node> = (0..n)
            .map(|_| {
                let at = (rng.one_in(3) && !make.real && !make.named).then(service);
                let attr = at.as_ref().map_or_else(attr, |at| at.0.clone());
                contacts.push(at);
                open(config(&mut rng), attr, &clock, (!make.real).then_some(&net))
            })
            .collect();
        let ways = (0..n).map(|a| {
            let way = |b: usize| {
                let from = engines[a].knows(&engines[b]);
                // Two handles of one endpoint are one peer; the lower one is reported.
                let to = match &contacts[b] {
                    Some((_, at)) if a != b && rng.one_in(2) => engines[a].av.insert(at),
                    _ => engines[a].av.insert(&engines[b].name()),
                };
                (to, from)
            };
            (0..n).map(way).collect::<Vec<_>>()
        });
        let ways: Vec<_> = ways.collect();
        let mut flows = Vec::new();
        for to in 0..n {
            // With many senders the order among them is anybody's, so receives name their source.
            let open = n == 2 || rng.one_in(3);
            let only = (to + 1 + rng.below(n as u64 - 1) as usize) % n;
            for from in (0..n).filter(|from| *from != to && (!open || n == 2 || *from == only)) {
                flows.push(Flow::new(from, to, open, rng.one_in(2)));
            }
        }
        let engines = engines
            .into_iter()
            .zip(ways)
            .zip(contacts)
            .map(|((node, ways), at)| Engine { name: node.name(), node, at, alive: true, ways, peeks: 0, found: None })
            .collect();
        let pace = rng.pick(&[7_000, 20_000, 100_000]);
        World { engines, flows, net, clock, rng, seed, steps: 0, pace }
    }

    pub fn at(&self) -> String {
        format!("seed {}, step {}", self.seed, self.steps)
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.net.lock().note(what);
    }

    /// Lets an engine do something: it sees what is due before, and what it published is queued after.
    pub fn with<T>(&mut self, n: usize, f: impl FnOnce(&mut Node) -> T) -> T {
        self.net.lock().deliver();
        let did = f(&mut self.engines[n].node);
        let mut net = self.net.lock();
        if net.is_empty() {
            return did;
        }
        net.collect(n);
        let spoilt = net.take_spoilt();
        drop(net);
        if let Some((from, to)) = spoilt {
            self.lose(from, to);
        }
        did
    }

    /// One turn of an engine, with everything that completed checked.
    pub fn turn(&mut self, n: usize) {
        if !self.engines[n].alive {
            return;
        }
        let pace = self.rng.range(1_000, self.pace as usize) as u64;
        self.clock.fetch_add(pace, Ordering::Relaxed);
        for e in self.with(n, Node::poll) {
            self.event(n, &e);
        }
    }

    /// A turn of everybody.
    pub fn round(&mut self) {
        (0..self.engines.len()).for_each(|n| self.turn(n));
    }

    /// Turns until `done`, or fails.
    pub fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for round in 0..PATIENCE {
            if done(self) {
                return;
            }
            self.wait(round);
        }
        panic!("{}: {what}", self.at());
    }

    /// A turn of everybody; after many of them, time flies: what is awaited now are calls to be made again.
    fn wait(&mut self, round: usize) {
        self.round();
        if round > PATIENCE / 10 {
            self.clock.fetch_add(2_000_000, Ordering::Relaxed);
        }
    }

    fn event(&mut self, n: usize, e: &Event) {
        let at = self.at();
        let (c, error) = match e {
            Ok(c) => (*c, None),
            Err(e) => (e.c, Some(e)),
        };
        let ctx = c.ctx.0;
        let (kind, f, number) = (ctx & (SEND | PEEK), ctx >> FLOW & 0xff, ctx & 0xffff_ffff);
        let why = error.map(|e| e.error);
        self.note(format_args!("{n} completes {kind:x}.{f}.{number}: {why:?} {:?} {} {} {}", c.flags, c.len, c.data, c.tag));
        let flow = &mut self.flows[f];
        let gone = matches!(why, Some(Error::PeerGone | Error::Corrupt | Error::Refused | Error::TimedOut));
        if gone {
            assert!(flow.lost, "{at}: lost a peer that is there: {e:?}");
            let other = if flow.from == n { flow.to } else { flow.from };
            let name = self.engines[other].name;
            let named = error.and_then(|e| e.peer).is_some_and(|p| p.is_contact() || p.identity() == name.identity());
            assert!(named, "{at}: names somebody else: {e:?}");
        }
        if kind == SEND {
            assert!(flow.from == n && (error.is_none() || gone), "{at}: {e:?}");
            let sent = &mut flow.out[number];
            assert!(std::mem::take(&mut sent.open), "{at}: completed twice: {e:?}");
            flow.sends_open -= 1;
            return;
        }
        assert_eq!(flow.to, n, "{at}: {e:?}");
        let message = c.data as usize;
        if kind == PEEK {
            if let Some(claim) = flow.claims.iter().position(|k| k.ctx == ctx && k.posted) {
                let claim = flow.claims.swap_remove(claim);
                if !gone {
                    assert_eq!(message, claim.message, "{at}: claimed one message, got another");
                    flow.check_payload(&at, e, &claim.buf);
                }
                return;
            }
            let found = &mut self.engines[n].found;
            assert!(found.is_none(), "{at}: {e:?}");
            *found = Some(match why {
                None => Some(message),
                Some(Error::NoMessage) => None,
                Some(_) => panic!("{at}: {e:?}"),
            });
            return;
        }
        let from = self.engines[n].ways[flow.from].1;
        let post = &mut flow.posts[number];
        assert!(
            post.gone == Gone::No && !post.released && (post.multi || post.got.is_empty()),
            "{at}: used after its end: {e:?}"
        );
        if gone {
            // A message that broke off says which one it was.
            post.got.extend(c.flags.contains(CompFlags::REMOTE_CQ_DATA).then_some(message));
            if !post.multi || c.flags.contains(CompFlags::MULTI_RECV) {
                post.gone = Gone::Failed;
            }
            return;
        }
        match why {
            Some(Error::Cancelled) => {
                post.gone = Gone::Cancelled;
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
        assert_eq!(c.src, from, "{at}: {e:?}");
        let start = if post.multi { c.buf - post.buf.as_ptr() as usize } else { 0 };
        assert!(start.is_multiple_of(ALIGN), "{at}: {e:?}");
        flow.check_payload(&at, e, &flow.posts[number].buf[start..]);
        let post = &mut flow.posts[number];
        let tag = flow.out[message].tag;
        assert!((tag ^ post.tag) & !post.ignore == 0, "{at}: a message that does not fit: {e:?}");
        post.got.push(message);
        let twice = flow.posts.iter().flat_map(|p| &p.got).filter(|m| **m == message).count();
        assert!(twice == 1 && !flow.taken.contains(&message), "{at}: delivered twice: {e:?}");
    }

    /// One random operation.
    pub fn step(&mut self) {
        self.steps += 1;
        let f = self.rng.range(0, self.flows.len());
        match self.rng.below(20) {
            0..5 => self.send(f),
            5..9 => self.post(f),
            9 => {
                let n = self.flows[f].posts.len();
                if n > 0 {
                    let number = self.rng.range(0, n);
                    // Multi-receive buffers may be half-way through a message: those are not cancelled here.
                    if !self.flows[f].posts[number].multi {
                        self.cancel(f, number);
                    }
                }
            }
            10 => {
                let how = self.rng.pick(&[OpFlags::empty(), OpFlags::CLAIM, OpFlags::DISCARD]);
                let how = if self.flows[f].multi { OpFlags::empty() } else { how };
                let (tag, ignore) = (self.rng.below(4), self.rng.pick(&[0, u64::MAX, 1]));
                self.peek(f, tag, ignore, how);
            }
            11 => self.claimed(f),
            _ => {
                // One may stand still for long.
                let n = self.rng.range(0, self.engines.len());
                for _ in 0..self.rng.pick(&[1, 1, 3, 40]) {
                    self.turn(n);
                }
            }
        }
    }

    fn is_dead(&self, f: usize) -> bool {
        !self.engines[self.flows[f].to].alive
    }

    pub fn send(&mut self, f: usize) {
        let World { flows, rng, engines, .. } = self;
        let flow = &mut flows[f];
        // What is sent to a contact while nobody is there would go to the next one there.
        if !engines[flow.from].alive || flow.over {
            return;
        }
        let (tag, n, number) = (rng.below(4), size(rng), flow.out.len());
        let level =
            rng.pick(&[OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE, OpFlags::INJECT]);
        let inject = n <= INJECT_MAX && level == OpFlags::INJECT;
        let level = if level == OpFlags::INJECT { OpFlags::empty() } else { level };
        let to = engines[flow.from].ways[flow.to].0;
        let ctx = SEND | f << FLOW | number;
        let msg = Msg { inject, ..Msg::new(to, tag).data(number as u64).ctx(ctx).with(level) };
        let buf = flow.content(number, n);
        flow.out.push(Sent { tag, buf, open: !inject });
        let iov = split(&mut flow.out[number].buf, 1 + rng.below(4) as usize, rng);
        let (from, to) = (flow.from, flow.to);
        let sent = self.with(from, |node| node.sendv(msg, &iov, true));
        self.note(format_args!("{from} sends {n} bytes to {to}, number {number}, tag {tag}, {level:?}: {sent:?}"));
        let flow = &mut self.flows[f];
        match sent {
            Ok(()) => {
                flow.sends_open += usize::from(!inject);
                if inject {
                    flow.out[number].buf.fill(0);
                }
            }
            Err(Error::Again) => drop(flow.out.pop()),
            Err(e) if flow.lost => {
                assert!(matches!(e, Error::PeerGone | Error::Corrupt | Error::Refused | Error::TimedOut), "{e}");
                flow.out.pop();
            }
            Err(e) => panic!("{}: {e}", self.at()),
        }
    }

    pub fn post(&mut self, f: usize) {
        if self.is_dead(f) {
            return;
        }
        let World { flows, rng, engines, .. } = self;
        let flow = &mut flows[f];
        let multi = flow.multi && rng.one_in(6);
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
        let number = flow.posts.len();
        let source = engines[flow.to].ways[flow.from].1;
        let from = if flow.open && rng.one_in(2) { Addr::UNSPEC } else { source };
        let ctx = f << FLOW | number;
        let mut want = Want { from, ignore: post.ignore, ..Want::tag(post.tag) }.ctx(ctx);
        if multi {
            want = want.with(OpFlags::MULTI_RECV);
        }
        flow.posts.push(post);
        let iov = split(&mut flow.posts[number].buf, if multi { 1 } else { 1 + rng.below(4) as usize }, rng);
        let to = flow.to;
        let posted = self.with(to, |node| node.recvv(want, &iov, true));
        self.note(format_args!("{to} posts {number} of flow {f}, tag {}, {n} bytes: {posted:?}", want.tag));
        if posted.is_err() {
            assert!(self.flows[f].lost, "{}: {posted:?}", self.at());
            self.flows[f].posts.pop();
        }
    }

    pub fn cancel(&mut self, f: usize, number: usize) {
        if self.is_dead(f) {
            return;
        }
        let to = self.flows[f].to;
        let post = &self.flows[f].posts[number];
        let ended = post.gone != Gone::No || post.released;
        let had = !post.multi && !post.got.is_empty();
        let cancelled = self.with(to, |node| node.domain.cancel(node.ep, UserCtx(f << FLOW | number)));
        assert!(cancelled.is_err() || !(ended || had), "{}: cancelled what had ended", self.at());
        self.turn(to);
        let gone = self.flows[f].posts[number].gone;
        assert_eq!(gone == Gone::Cancelled && !ended, cancelled.is_ok(), "{}", self.at());
    }

    /// What a peek finds.
    pub fn peek(&mut self, f: usize, tag: u64, ignore: u64, how: OpFlags) -> Option<usize> {
        if self.is_dead(f) {
            return None;
        }
        let (to, from) = (self.flows[f].to, self.flows[f].from);
        let engine = &mut self.engines[to];
        engine.peeks += 1;
        let ctx = PEEK | f << FLOW | engine.peeks;
        let source = if self.flows[f].open { Addr::UNSPEC } else { engine.ways[from].1 };
        let want = Want { ignore, from: source, ..Want::tag(tag) }.ctx(ctx).with(OpFlags::PEEK | how);
        self.with(to, |node| node.recvv(want, &[], true)).expect("peek");
        self.turn(to);
        let at = self.at();
        let found = self.engines[to].found.take().unwrap_or_else(|| panic!("{at}: a peek says at once what it found"));
        if let Some(message) = found {
            let flow = &mut self.flows[f];
            let sent = &flow.out[message];
            assert!((sent.tag ^ tag) & !ignore == 0 && !flow.taken.contains(&message), "{at}: found {message}");
            assert!(flow.posts.iter().all(|p| !p.got.contains(&message)), "{at}: found {message}, which was received");
            if how != OpFlags::empty() {
                flow.taken.insert(message);
            }
            if how == OpFlags::CLAIM {
                flow.claims.push(Claim { ctx, message, buf: Vec::new(), posted: false });
            }
        }
        found
    }

    /// Receives or drops what was claimed, in any order.
    pub fn claimed(&mut self, f: usize) {
        let flow = &mut self.flows[f];
        let open: Vec<usize> = (0..flow.claims.len()).filter(|i| !flow.claims[*i].posted).collect();
        if open.is_empty() || !self.engines[flow.to].alive {
            return;
        }
        let i = self.rng.pick(&open);
        let discard = self.rng.one_in(3);
        let (ctx, to, lost) = (flow.claims[i].ctx, flow.to, flow.lost);
        if discard {
            flow.claims.swap_remove(i);
            let want = Want::any().ctx(ctx).with(OpFlags::CLAIM | OpFlags::DISCARD);
            let dropped = self.with(to, |node| node.recvv(want, &[], true));
            assert!(dropped.is_ok() || lost, "{}", self.at());
            self.turn(to);
            self.engines[to].found = None;
            return;
        }
        let n = size(&mut self.rng);
        let claim = &mut flow.claims[i];
        claim.buf = vec![0xee; n];
        claim.posted = true;
        let iov = [seg(&mut claim.buf)];
        let received = self.with(to, |node| node.recvv(Want::any().ctx(ctx).with(OpFlags::CLAIM), &iov, true));
        assert!(received.is_ok() || lost, "{}", self.at());
        if received.is_err() {
            self.flows[f].claims.swap_remove(i);
        }
    }

    /// Receives or drops all claims.
    fn clear_claims(&mut self, f: usize) {
        while self.engines[self.flows[f].to].alive && self.flows[f].claims.iter().any(|c| !c.posted) {
            self.claimed(f);
        }
    }

    /// Lets everything that can complete complete, and compares.
    pub fn settle(&mut self) {
        let whole: Vec<usize> = (0..self.flows.len()).filter(|f| !self.flows[*f].lost).collect();
        for &f in &whole {
            self.clear_claims(f);
        }
        for &f in &whole {
            let (want, _) = self.flows[f].oracle(|_| true);
            for round in 0.. {
                let flow = &self.flows[f];
                let got = flow.got();
                if got == want && flow.claims.is_empty() {
                    break;
                }
                if round == PATIENCE {
                    let differ: Vec<_> = want.iter().zip(got).enumerate().filter(|(_, (w, g))| *w != g).collect();
                    panic!("{}, flow {f}: receive, (should, did): {differ:?}", self.at());
                }
                self.wait(round);
            }
        }
        // What is posted still can be cancelled; what was not asked for is still there, in order.
        for &f in &whole {
            self.cancel_all(f);
            let (_, left) = self.flows[f].oracle(|_| true);
            for want in left {
                let mut found = None;
                for round in 0..PATIENCE {
                    found = self.peek(f, 0, u64::MAX, OpFlags::DISCARD);
                    if found.is_some() {
                        break;
                    }
                    self.wait(round);
                }
                assert_eq!(found, Some(want), "{}, flow {f}: unexpected messages lost or out of order", self.at());
            }
        }
        self.until("sends never complete", |w| w.flows.iter().all(|f| f.lost || f.sends_open == 0));
        for &f in &whole {
            assert_eq!(self.peek(f, 0, u64::MAX, OpFlags::empty()), None, "{}: a message out of nothing", self.at());
            let flow = &mut self.flows[f];
            flow.settled = (flow.out.len(), flow.posts.len());
        }
    }

    fn cancel_all(&mut self, f: usize) {
        if self.is_dead(f) {
            return;
        }
        for number in 0..self.flows[f].posts.len() {
            if self.flows[f].posts[number].waits() {
                self.cancel(f, number);
                let p = &self.flows[f].posts[number];
                let (gone, multi) = (p.gone, p.multi);
                assert_eq!(gone, Gone::Cancelled, "{}: receive {number} cannot be cancelled (multi: {multi})", self.at());
            }
        }
    }

    /// Engines `a` and `b` have lost each other, or will in a moment.
    pub fn lose(&mut self, a: usize, b: usize) {
        for flow in &mut self.flows {
            flow.lost |= (flow.from, flow.to) == (a, b) || (flow.from, flow.to) == (b, a);
        }
    }

    /// After a loss: whatever waited has ended, and what came is what the model says of it.
    pub fn mourn(&mut self) {
        let lost: Vec<usize> = (0..self.flows.len()).filter(|f| self.flows[*f].lost).collect();
        let waits = |w: &World, f: &Flow| {
            f.lost
                && (w.engines[f.from].alive && f.sends_open > 0
                    || w.engines[f.to].alive && f.claims.iter().any(|c| c.posted))
        };
        self.until("something waits for one that is gone", |w| !w.flows.iter().any(|f| waits(w, f)));
        // Those who do not wait must hear of it, too.
        for _ in 0..600 {
            self.round();
        }
        for f in lost {
            self.flows[f].over = true;
            if self.is_dead(f) {
                continue;
            }
            self.clear_claims(f);
            self.until("a claim waits", |w| w.flows[f].claims.is_empty());
            self.cancel_all(f);
            let mut came: Vec<usize> = self.flows[f].posts.iter().flat_map(|p| p.got.clone()).collect();
            let mut last = None;
            let mut left = Vec::new();
            while let Some(found) = self.peek(f, 0, u64::MAX, OpFlags::DISCARD) {
                assert!(last < Some(found), "{}: {found} after {last:?}", self.at());
                last = Some(found);
                left.push(found);
            }
            for number in &left {
                self.flows[f].taken.remove(number);
            }
            came.extend(&left);
            let flow = &self.flows[f];
            if !self.engines[flow.from].alive {
                // What it had published before its end counts.
                let net = self.net.lock();
                let lost = net.whole(flow.from, flow.to).into_iter().find(|m| !came.contains(m) && !flow.taken.contains(m));
                drop(net);
                assert_eq!(lost, None, "{}, flow {f}: a message that had come is lost", self.at());
            }
            let (want, over) = self.flows[f].oracle(|m| came.contains(&m));
            assert_eq!(self.flows[f].got(), want, "{}, flow {f}: after a loss", self.at());
            assert_eq!(left, over, "{}, flow {f}: after a loss", self.at());
        }
    }

    /// Engine `n` dies.
    pub fn kill(&mut self, n: usize) {
        let mut net = self.net.lock();
        net.kill(n);
        drop(net);
        self.engines[n].alive = false;
        for other in 0..self.engines.len() {
            self.lose(n, other);
        }
    }

    /// Engine `n` closes in good order; what it accepted may have been handed over or not.
    pub fn close(&mut self, n: usize) {
        for other in 0..self.engines.len() {
            self.lose(n, other);
        }
        self.note(format_args!("{n} closes"));
        self.with(n, |node| node.domain.ep_close(node.ep)).expect("close");
        self.engines[n].alive = false;
    }

    /// An engine that is gone is started anew where it was; its number. `None` if nobody could find it there.
    pub fn restart(&mut self, n: usize) -> Option<usize> {
        let at = self.engines[n].at.clone()?;
        // Calls of its contact that were tried again until now are given up, with what was to go there.
        self.clock.fetch_add(3_000_000_000, Ordering::Relaxed);
        (0..100).for_each(|_| self.round());
        let node = open(config(&mut self.rng), at.0.clone(), &self.clock, Some(&self.net));
        let new = self.engines.len();
        // Others send to it now: nobody may leave the source open.
        (0..self.flows.len()).filter(|f| self.flows[*f].lost).collect::<Vec<_>>().into_iter().for_each(|f| self.cancel_all(f));
        self.flows.iter_mut().for_each(|f| f.open = false);
        let mut ways = Vec::new();
        for (i, engine) in self.engines.iter_mut().enumerate() {
            let way = node.av.insert(&engine.name);
            ways.push((way, way));
            let from = engine.node.av.insert(&node.name());
            engine.ways.push((engine.node.av.insert(&at.1), from));
            if engine.alive {
                let multi = self.rng.one_in(2);
                self.flows.extend([Flow::new(i, new, false, multi), Flow::new(new, i, false, multi)]);
            }
        }
        self.engines.push(Engine { name: node.name(), node, at: Some(at), alive: true, ways, peeks: 0, found: None });
        self.note(format_args!("{n} is started anew as {new}"));
        Some(new)
    }

    /// Whether two engines have noticed that they lost each other through a spoilt record.
    pub fn has_lost(&self) -> bool {
        self.flows.iter().any(|f| f.lost)
    }

    /// A number for everything that happened.
    pub fn hash(&self) -> (u64, u64) {
        self.net.lock().trace.hash()
    }

    /// What the net did.
    pub fn told(&self) -> net::Told {
        self.net.lock().told
    }
}
