//! The engines of one world, what they were asked for, and what came of it.

mod ask;
mod check;

use crate::arena::ROOMY;
use crate::common::{Event, Node, Rng, attr, by_network, contact, fresh_port};
use crate::model::{ALIGN, Flow, Gone, MIN_LEFT};
use crate::net::{self, Shared, Weather};
use crate::wires::Wires;
use rustmx::config::network::{Iface, Secret};
use rustmx::sys::clock::Clock;
use rustmx::{Addr, CompFlags, Config, Domain, EpAttr, Error, Log, LogLevel, LogSink, LogSubsystem, Name, Service};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

impl Engine {
    /// Whether it can be found without its name.
    pub fn has_contact(&self) -> bool {
        self.at.is_some()
    }
}

/// What a world is made of, besides its seed.
#[derive(Clone, Copy, Default)]
pub struct Make {
    /// Engines; 0: 2 to 4.
    pub engines: usize,
    /// Real sockets and segments, where the kernel decides when contact is made.
    pub real: bool,
    /// Real connections, as between hosts, and cables between them.
    pub wired: bool,
    /// Contact fails now and then.
    pub rough: bool,
    /// Nobody is found by a contact address: two engines have one link.
    pub named: bool,
    /// Most messages, and most buffers, are long and in one piece; one receive of a flow waits at a time, mostly before its message.
    pub long: bool,
}

pub struct World {
    pub engines: Vec<Engine>,
    pub flows: Vec<Flow>,
    pub net: Shared,
    pub wires: Wires,
    pub clock: Arc<AtomicU64>,
    pub rng: Rng,
    pub seed: u64,
    pub steps: usize,
    /// Longest step of the clock.
    pace: u64,
    long: bool,
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

/// A node at the net; or number `kernel`, at the kernel's sockets.
pub fn open(config: Config, attr: EpAttr, clock: &Arc<AtomicU64>, net: &Shared, kernel: Option<usize>) -> Node {
    let clock = Clock::Manual(clock.clone());
    let log = |node| Log::new(Arc::new(Scribe { net: net.clone(), node }));
    let domain = match kernel {
        None => {
            let (node, venue) = net.place();
            // Of one seed everything is told.
            let one = std::env::var_os("RUSTMX_SEED").is_some();
            Domain::at_venue(Arc::new(config), if one { log(node) } else { Log::silent() }, clock, venue)
        }
        // It may not come to the same again.
        Some(node) => Domain::with_clock(Arc::new(by_network(config)), log(node), clock),
    };
    let mut node = Node::enabled(domain, attr);
    let ep = node.ep;
    node.domain.ep_set_min_multi_recv(ep, MIN_LEFT);
    node
}

/// Small and random, so that everything that can be full is.
pub fn config(rng: &mut Rng) -> Config {
    let config = Config {
        ring_size: rng.pick(&[8 << 10, 12 << 10, 24 << 10]),
        eager_max: rng.pick(&[232, 1000, 4096]),
        fragment: rng.pick(&[256, 1000, 4096]),
        eager_window: rng.pick(&[16 << 10, 20_000, 128 << 10]),
        hot_peers: rng.pick(&[1, 2, 8]),
        syscall_min: rng.pick(&[4 << 10, 16 << 10]),
        share_min: rng.pick(&[16 << 10, 1 << 20]),
        share_worth: rng.pick(&[0, 4_000]),
        cma: rng.pick(&[0, 0, 0, 1]),
        lend: rng.pick(&[0, 0, 0, 1, 2]),
        mapped_min: rng.pick(&[1000, 4 << 10]),
        mapped_share_min: rng.pick(&[16 << 10, 32 << 10]),
        mapped_share_worth: rng.pick(&[0, 0, 4_000]),
        // Not by the machine's cores: one seed is one run anywhere.
        yield_when_idle: rng.pick(&[1, 1, 2]),
        close_timeout: 0,
        connect_timeout: 2000,
        ..Config::default()
    };
    // As many mappings of what peers lend: one, two, or enough.
    Config { cache_count: if config.hot_peers < 8 { config.hot_peers } else { 1024 }, ..config }
}

/// The same for engines that are elsewhere for each other, all of them with this key, if any.
pub fn wired(rng: &mut Rng, key: Option<u64>) -> Config {
    let secret = key.map(|key| Secret::parse(&format!("{key:032x}")).0);
    Config {
        shm: 0,
        iface: Iface::parse("127.0.0.1").0,
        tcp_ring_size: rng.pick(&[8 << 10, 12 << 10, 128 << 10]),
        tcp_eager_max: rng.pick(&[232, 1000, 8 << 10]),
        tcp_window: rng.pick(&[16 << 10, 20_000, 1 << 20]),
        tcp_lanes: rng.pick(&[0, 1, 2, 3]),
        tcp_zerocopy: rng.pick(&[0, 0, 1, 2, 3, 4]),
        auth_key: secret.unwrap_or_default(),
        encrypt: key.is_some_and(|key| key % 2 == 0).into(),
        ..config(rng)
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
            thin: if make.rough { rng.pick(&[0, 0, 3]) } else { 0 },
        };
        let net = Shared::new(seed, weather, clock.clone());
        if make.long {
            net.lock().arena_bytes = ROOMY;
        }
        let n = if make.engines == 0 { 2 + rng.below(3) as usize } else { make.engines };
        let mut contacts = Vec::new();
        let key = make.wired.then(|| rng.one_in(3).then(|| rng.next())).flatten();
        let real = make.real || make.wired;
        let engines: Vec<Node> = (0..n)
            .map(|number| {
                let at = (rng.one_in(3) && !real && !make.named).then(service);
                let attr = at.as_ref().map_or_else(attr, |at| at.0.clone());
                contacts.push(at);
                let config = if make.wired { wired(&mut rng, key) } else { config(&mut rng) };
                // Those that lend nothing, and copy nothing together, are in the other worlds.
                let config = if make.long { Config { lend: 0, yield_when_idle: 1, ..config } } else { config };
                open(config, attr, &clock, &net, real.then_some(number))
            })
            .collect();
        let mut wires = Wires::default();
        let ways = (0..n).map(|a| {
            let way = |b: usize| {
                if make.wired && a != b {
                    let way = engines[a].av.insert(&wires.plug(a, b, &engines[b]));
                    return (way, way);
                }
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
        World { engines, flows, net, wires, clock, rng, seed, steps: 0, pace, long: make.long }
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
        self.wires.pass(&mut self.rng);
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
            if self.wires.any() && round > PATIENCE / 2 {
                // What the kernel does by its own clock it does in the time that passes for the engines.
                std::thread::sleep(Duration::from_millis(2));
            }
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
            sent.delivered = sent.asks && error.is_none();
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
                // That was not known yet if the last message came in the very turn.
                let late = c.flags.contains(CompFlags::MULTI_RECV);
                assert!(if late { post.multi } else { !post.leaving }, "{at}: {e:?}");
                post.gone = Gone::Cancelled;
                return;
            }
            None | Some(Error::Truncated) => {}
            Some(_) => panic!("{at}: {e:?}"),
        }
        if c.flags.contains(CompFlags::MULTI_RECV) {
            assert!(post.multi && !post.leaving, "{at}: {e:?}");
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
