//! What the integration tests share: an endpoint with everything bound, deadlines, seeds, and copies of the test program itself
//! in other roles.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::result_large_err, reason = "an error entry is passed on as the engine gave it")]

pub mod left_out;
pub mod process;
pub mod reachable;

use rustix::fd::OwnedFd;
use rustmx::config::PARAMS;
use rustmx::config::network::Iface;
use rustmx::sys::clock::Clock;
use rustmx::{
    Addr, AddressVector, Completion, Config, CqId, CqRead, Domain, EpAttr, EpId, Error, ErrorEntry, INJECT_MAX, Log, LogLevel,
    LogSink, LogSubsystem, Name, OpFlags, RecvArgs, SendArgs, Service, UserCtx, UserSeg,
};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// What a completion queue said. Large, and only ever moved by tests.
pub type Event = Result<Completion, ErrorEntry>;

/// Keeps what goes to standard error, of a log that shows nothing.
#[derive(Default)]
pub struct Ear(Mutex<Vec<String>>);

impl LogSink for Ear {
    fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
        false
    }
    fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
        panic!("not asked for: {text}");
    }
    fn insist(&self, text: &str) {
        self.0.lock().expect("ear").push(text.into());
    }
}

impl Ear {
    pub fn heard(&self) -> Vec<String> {
        self.0.lock().expect("ear").clone()
    }
}

/// An endpoint in a domain of its own.
pub struct Node {
    pub domain: Domain,
    pub ep: EpId,
    pub cq: CqId,
    pub av: Arc<AddressVector>,
}

/// What the tests open endpoints with.
pub fn attr() -> EpAttr {
    EpAttr {
        tx_flags: OpFlags::COMPLETION,
        rx_flags: OpFlags::COMPLETION,
        source: true,
        directed_recv: true,
        sends: true,
        reaches: true,
        receives: true,
        msg: true,
        tagged: true,
        service: None,
        auth_key: Default::default(),
        inject_max: INJECT_MAX,
    }
}

/// Attributes of an endpoint that listens at `port`.
pub fn at_port(port: u16) -> EpAttr {
    let ip = "127.0.0.1".parse().expect("ip");
    EpAttr { service: Some(Service { ip, scope_id: 0, port }), ..attr() }
}

/// The contact address of `port`.
pub fn contact(port: u16) -> Name {
    Name::contact("127.0.0.1".parse().expect("ip"), 0, port)
}

/// A port that nothing else in this process uses, nor most likely another process; below those that the kernel gives out by itself, as it does to
/// connections of other tests at any time.
pub fn fresh_port() -> u16 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(rustmx::sys::host::random() >> 32));
    loop {
        let port = (1025 + next.fetch_add(1, Ordering::Relaxed) % (32_768 - 1025)) as u16;
        // On this host a port is but a name; by network somebody may have it.
        if !by_network_only() || take(([127, 0, 0, 1], port).into()).is_some() {
            return port;
        }
    }
}

/// A socket at a place where nobody listens; `None`: somebody does. As long as it is there, the kernel gives the port of that address to nobody who does not ask for it. It is in
/// nobody's way who wants to listen there, now or when it is closed: that takes a moment longer if another thread just starts a process, or is looking at this one's descriptors
/// (/proc/self/fd), and one that listened would be heard of until then.
pub fn take(at: SocketAddr) -> Option<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("socket");
    sockopt::set_socket_reuseaddr(&fd, true).expect("reuse");
    bind(&fd, &at).is_ok().then_some(fd)
}

/// A segment over `buf`. Every test keeps its buffers until the operations on them have ended.
pub fn seg(buf: &mut [u8]) -> UserSeg {
    // SAFETY: see above.
    #[expect(unsafe_code)]
    unsafe {
        UserSeg::new(buf.as_mut_ptr(), buf.len())
    }
}

/// A message, described by what matters.
#[derive(Clone, Copy)]
pub struct Msg {
    pub to: Addr,
    pub tag: u64,
    pub data: Option<u64>,
    pub ctx: usize,
    pub flags: OpFlags,
    pub inject: bool,
}

impl Msg {
    pub fn new(to: Addr, tag: u64) -> Msg {
        Msg { to, tag, data: None, ctx: tag as usize, flags: OpFlags::COMPLETION, inject: false }
    }
    pub fn ctx(self, ctx: usize) -> Msg {
        Msg { ctx, ..self }
    }
    pub fn data(self, data: u64) -> Msg {
        Msg { data: Some(data), ..self }
    }
    pub fn with(self, flags: OpFlags) -> Msg {
        Msg { flags: self.flags | flags, ..self }
    }
    pub fn inject(self) -> Msg {
        Msg { inject: true, ..self }
    }
}

/// A receive, described by what matters.
#[derive(Clone, Copy)]
pub struct Want {
    pub from: Addr,
    pub tag: u64,
    pub ignore: u64,
    pub ctx: usize,
    pub flags: OpFlags,
}

impl Want {
    pub fn tag(tag: u64) -> Want {
        Want { from: Addr::UNSPEC, tag, ignore: 0, ctx: tag as usize, flags: OpFlags::COMPLETION }
    }
    pub fn any() -> Want {
        Want { ignore: u64::MAX, ..Want::tag(0) }
    }
    pub fn from(self, from: Addr) -> Want {
        Want { from, ..self }
    }
    pub fn ctx(self, ctx: usize) -> Want {
        Want { ctx, ..self }
    }
    pub fn with(self, flags: OpFlags) -> Want {
        Want { flags: self.flags | flags, ..self }
    }
}

/// With `RUSTMX_TEST_NETWORK=1` in the environment all endpoints of a test reach each other by TCP, over the loopback interface; with a key, or
/// encrypted, or without copies, if `FI_RUSTMX_AUTH_KEY`, `FI_RUSTMX_ENCRYPT` and `FI_RUSTMX_TCP_ZEROCOPY` say so.
pub fn by_network(mut config: Config) -> Config {
    let network = ["auth_key", "encrypt", "tcp_lanes", "tcp_zerocopy"];
    for p in PARAMS.iter().filter(|p| by_network_only() && network.contains(&p.name)) {
        let said = std::env::var(p.env()).ok().filter(|_| !p.is_set(&config));
        said.into_iter().for_each(|text| p.parse_into(&mut config, &text).expect("a value"));
    }
    match by_network_only() {
        true if config.iface == Iface::default() => Config { shm: 0, iface: Iface::parse("127.0.0.1").0, ..config },
        true => Config { shm: 0, ..config },
        false => config,
    }
}

/// Whether endpoints reach each other by TCP in this run.
pub fn by_network_only() -> bool {
    std::env::var_os("RUSTMX_TEST_NETWORK").is_some()
}

/// The number by which errors name process `pid`: another host's processes have none here.
pub fn number_of(pid: u32) -> u32 {
    if by_network_only() { 0 } else { pid }
}

/// Whether a test is to be left out because endpoints reach each other by TCP in this run, and there `why` is so.
pub fn not_by_network(why: &str) -> bool {
    let left_out = by_network_only();
    if left_out {
        eprintln!("left out by network: {why}");
    }
    left_out
}

impl Node {
    pub fn open(config: Config, attr: EpAttr, clock: Clock) -> Node {
        let config = by_network(config);
        Node::enabled(Domain::with_clock(Arc::new(config), Log::silent(), clock), attr)
    }

    /// An endpoint in a domain that was made for it.
    pub fn enabled(mut domain: Domain, attr: EpAttr) -> Node {
        let cq = domain.cq_open();
        let ep = domain.ep_open(attr).expect("endpoint");
        let av = Arc::new(AddressVector::new());
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
        domain.ep_enable(ep).expect("enable");
        Node { domain, ep, cq, av }
    }

    pub fn with(config: Config, attr: EpAttr) -> Node {
        Node::open(config, attr, Clock::machine())
    }

    pub fn new() -> Node {
        Node::with(Config::default(), attr())
    }

    pub fn name(&self) -> Name {
        self.domain.ep_name(self.ep).expect("name")
    }

    pub fn knows(&self, other: &Node) -> Addr {
        self.av.insert(&other.name())
    }

    /// Progress, and what came of it.
    pub fn poll(&mut self) -> Vec<Event> {
        let mut got = Vec::new();
        loop {
            match self.domain.cq_read(self.cq, 64, &mut |c| got.push(Ok(*c))) {
                CqRead::ErrorPending => got.extend(self.domain.cq_read_error(self.cq).map(Err)),
                // An error may stand behind what was handed out.
                CqRead::Got(_) => {}
                CqRead::Empty => return got,
            }
        }
    }

    /// Polls and expects nothing, for `turns` turns.
    pub fn quiet(&mut self, turns: usize) {
        for _ in 0..turns {
            let got = self.poll();
            assert!(got.is_empty(), "{got:?}");
        }
    }

    pub fn sendv(&mut self, m: Msg, iov: &[UserSeg], tagged: bool) -> Result<(), Error> {
        let args = SendArgs {
            to: m.to,
            tagged,
            tag: if tagged { m.tag } else { 0 },
            data: m.data,
            iov,
            ctx: UserCtx(m.ctx),
            flags: Some(m.flags),
            inject: m.inject,
        };
        self.domain.send(self.ep, &args)
    }

    pub fn send(&mut self, m: Msg, buf: &mut [u8]) -> Result<(), Error> {
        self.sendv(m, &[seg(buf)], true)
    }

    pub fn recvv(&mut self, w: Want, iov: &[UserSeg], tagged: bool) -> Result<(), Error> {
        let args =
            RecvArgs { from: w.from, tagged, tag: w.tag, ignore: w.ignore, iov, ctx: UserCtx(w.ctx), flags: Some(w.flags) };
        self.domain.recv(self.ep, &args)
    }

    pub fn recv(&mut self, w: Want, buf: &mut [u8]) -> Result<(), Error> {
        self.recvv(w, &[seg(buf)], true)
    }

    /// Peeks; the answer comes at once.
    pub fn peek(&mut self, w: Want) -> Event {
        self.recvv(w.with(OpFlags::PEEK), &[], true).expect("peek");
        let mut got = self.poll();
        assert_eq!(got.len(), 1, "{got:?}");
        got.remove(0)
    }

    /// Peeks until a message is there.
    pub fn await_peek(&mut self, other: &mut Node, w: Want) -> Completion {
        let until = Deadline::new(10);
        loop {
            if let Ok(c) = self.peek(w) {
                return c;
            }
            assert!(other.poll().iter().all(Result::is_ok));
            until.check(|| "no message to peek at".into());
        }
    }

    /// Waits until `n` operations have completed, all of them well.
    #[track_caller]
    pub fn complete(&mut self, n: usize) {
        let until = Deadline::new(10);
        let mut done = 0;
        while done < n {
            done += all_ok(&self.poll());
            until.check(|| format!("{done} of {n} completed: {:?}", self.stats()));
        }
    }

    pub fn stats(&self) -> rustmx::stats::Stats {
        self.domain.ep_stats(self.ep).expect("stats")
    }
}

/// Polls all nodes until `want` completions came on each, or fails.
pub fn run(nodes: &mut [&mut Node], want: &[usize]) -> Vec<Vec<Event>> {
    let until = Deadline::new(20);
    let mut got: Vec<Vec<_>> = nodes.iter().map(|_| Vec::new()).collect();
    while got.iter().zip(want).any(|(g, w)| g.len() < *w) {
        for (node, got) in nodes.iter_mut().zip(&mut got) {
            got.extend(node.poll());
        }
        until.check(|| format!("only {:?} of {want:?} came: {got:?}", got.iter().map(Vec::len).collect::<Vec<_>>()));
    }
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.len(), *want, "{got:?}");
    }
    got
}

/// A word each way, so that both have answered.
pub fn acquaint(a: &mut Node, b: &mut Node) {
    for _ in 0..2 {
        let (to, mut out, mut into) = (b.knows(a), [1u8], [0u8]);
        a.recv(Want::tag(99), &mut into).expect("recv");
        b.send(Msg::new(to, 99), &mut out).expect("send");
        run(&mut [a, b], &[1, 1]);
        std::mem::swap(a, b);
    }
}

/// One message, whose receive is posted first (`early`) or finds it later, checked to the last byte.
#[track_caller]
pub fn message(a: &mut Node, b: &mut Node, n: usize, seed: usize, early: bool) {
    let to_b = a.knows(b);
    let (mut out, mut into) = (pattern(n, seed), vec![0xeeu8; n + 100]);
    if early {
        b.recv(Want::tag(5), &mut into).expect("recv");
    }
    a.send(Msg::new(to_b, 5), &mut out).expect("send");
    if !early {
        (0..50).for_each(|_| b.quiet(1));
        b.recv(Want::tag(5), &mut into).expect("recv");
    }
    let got = run(&mut [a, b], &[1, 1]);
    assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
    assert_eq!(got[1][0].as_ref().map(|c| c.len).ok(), Some(n));
    assert!(into[..n] == out[..] && into[n..].iter().all(|b| *b == 0xee), "{n} bytes, early {early}");
}

/// Sends from `a`, and polls both until there was room. What completes meanwhile is returned.
pub fn push(a: &mut Node, b: &mut Node, m: Msg, buf: &mut [u8]) -> (Vec<Event>, Vec<Event>) {
    let until = Deadline::new(20);
    let (mut on_a, mut on_b) = (Vec::new(), Vec::new());
    loop {
        match a.send(m, buf) {
            Ok(()) => return (on_a, on_b),
            Err(Error::Again) => {}
            Err(e) => panic!("send failed: {e}"),
        }
        on_a.extend(a.poll());
        on_b.extend(b.poll());
        until.check(|| "no room".into());
    }
}

/// Checks that all of it succeeded, and counts.
#[track_caller]
pub fn all_ok(events: &[Event]) -> usize {
    for e in events {
        assert!(e.is_ok(), "{e:?}");
    }
    events.len()
}

/// Closing may take so many milliseconds; `said`: because the user says so.
pub fn closing_in(ms: u64, said: bool) -> Config {
    let mut config = Config::default();
    let param = rustmx::config::PARAMS.iter().find(|p| p.name == "close_timeout").expect("a parameter");
    let (name, text) = (param.name, ms.to_string());
    match said {
        true => param.parse_into(&mut config, &text).expect(name),
        false => assert!(param.suggest(&mut config, &text), "{name}"),
    }
    config
}

/// Bytes that differ for each seed and position: `31 i + 17 seed + 7 (i / 256) + i / 65536`.
pub fn pattern(n: usize, seed: usize) -> Vec<u8> {
    // All but the first is the same for 256 bytes, and 31 · 223 = 1 (mod 256): what is added to all of them is as much as to begin later.
    let around: [u8; 512] = std::array::from_fn(|i| (i * 31) as u8);
    let mut bytes = Vec::with_capacity(n);
    while bytes.len() < n {
        let i = bytes.len();
        let from = (seed * 17 + (i >> 8) * 7 + (i >> 16)) * 223 % 256;
        bytes.extend_from_slice(&around[from..][..256.min(n - i)]);
    }
    bytes
}

/// Random numbers that a seed repeats (splitmix64).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.below((high - low) as u64) as usize
    }
    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Fails a loop that takes too long. That its thread waited for a core does not count: the machine may be busy.
pub struct Deadline {
    at: Instant,
    waited: Duration,
}

impl Deadline {
    pub fn new(seconds: u64) -> Deadline {
        Deadline::millis(seconds * 1000)
    }
    pub fn millis(ms: u64) -> Deadline {
        Deadline { at: Instant::now() + Duration::from_millis(ms), waited: waited() }
    }
    pub fn passed(&self) -> bool {
        let now = Instant::now();
        now > self.at && now > self.at + waited().saturating_sub(self.waited)
    }
    #[track_caller]
    pub fn check(&self, what: impl FnOnce() -> String) {
        assert!(!self.passed(), "out of time: {}", what());
    }
}

/// How long this thread was ready to run and had no core; nothing where the kernel does not tell (proc_pid_schedstat(5)).
fn waited() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(told.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// What this thread has had of a core: how long it worked, however busy the machine is.
pub fn worked() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
}

/// Ends the test program if a test does not end: a hang inside the engine must fail by itself, too.
pub struct Watchdog(Arc<AtomicBool>);

pub fn watchdog(test: &'static str, seconds: u64) -> Watchdog {
    let done = Arc::new(AtomicBool::new(false));
    let seen = done.clone();
    std::thread::spawn(move || {
        // It counts its naps, which are longer where nobody gets a core.
        const NAP: Duration = Duration::from_millis(1000 / 50);
        for _ in 0..seconds * 50 {
            if seen.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(NAP);
        }
        if !seen.load(Ordering::Relaxed) {
            // Not by eprintln!: what that says is kept until the test ends, and is lost here.
            let _ = writeln!(std::io::stderr(), "{test} hangs: no end after {seconds} s");
            std::process::abort();
        }
    });
    Watchdog(done)
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Descriptors and shared-memory mappings of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub fds: usize,
    pub maps: usize,
}

pub fn footprint() -> Footprint {
    let fds = std::fs::read_dir("/proc/self/fd").expect("fds").count() - 1;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    Footprint { fds, maps: maps.lines().filter(|l| l.contains("rustmx")).count() }
}
