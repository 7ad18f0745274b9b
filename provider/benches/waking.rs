//! The figures of `docs/adr/0008-sleeping.md`: how long after a send a sleeping receiver has its message, beside the wake-up
//! of a bare pipe on the same machine, what the send costs its caller, and what sleeping costs. Two processes, not pinned.
//! `cargo bench --bench waking [-- ROUNDS]`.

use rustmx::sys::clock::Clock;
use rustmx::{
    Addr, AddressVector, Config, CqId, CqRead, Domain, EpAttr, EpId, Log, Name, Nap, OpFlags, RecvArgs, SendArgs, UserCtx,
    UserSeg, Waiter,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The machine's monotonic time, the same in both processes, in nanoseconds.
fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

struct Node {
    domain: Domain,
    ep: EpId,
    cq: CqId,
    av: Arc<AddressVector>,
}

impl Node {
    fn new() -> Node {
        let config = Config { spin: 0, ..Config::default() };
        let mut domain = Domain::with_clock(Arc::new(config), Log::silent(), Clock::machine());
        let cq = domain.cq_open();
        let flags = OpFlags::COMPLETION;
        let attr = EpAttr {
            tx_flags: flags,
            rx_flags: flags,
            source: false,
            directed_recv: true,
            msg: true,
            tagged: true,
            service: None,
        };
        let ep = domain.ep_open(attr).expect("endpoint");
        let av = Arc::new(AddressVector::new());
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, true).expect("cq");
        domain.ep_enable(ep).expect("enable");
        Node { domain, ep, cq, av }
    }

    fn inject(&mut self, to: Addr, stamp: &mut u64) {
        let iov = [seg(stamp)];
        let args = SendArgs { to, tagged: true, tag: 1, data: None, iov: &iov, ctx: UserCtx(1), flags: None, inject: true };
        self.domain.send(self.ep, &args).expect("room");
    }

    fn post(&mut self, stamp: &mut u64) {
        let iov = [seg(stamp)];
        let args = RecvArgs { from: Addr::UNSPEC, tagged: true, tag: 1, ignore: 0, iov: &iov, ctx: UserCtx(2), flags: None };
        self.domain.recv(self.ep, &args).expect("recv");
    }

    /// Sleeps until a completion comes, or until `until`. Returns how often it slept.
    fn wait(&mut self, waiter: &Waiter, until: Instant) -> usize {
        let mut naps = 0;
        while self.domain.cq_read(self.cq, 1, &mut |_| {}) == CqRead::Empty && Instant::now() < until {
            if let Nap::Sleep(limit) = self.domain.doze().expect("no fork") {
                let rest = until.saturating_duration_since(Instant::now());
                waiter.sleep(Some(limit.map_or(rest, |l| l.min(rest))));
                self.domain.awake();
                naps += 1;
            }
        }
        naps
    }
}

fn seg(word: &mut u64) -> UserSeg {
    // SAFETY: the benchmark's words live until the operation has ended.
    #[expect(unsafe_code)]
    unsafe {
        UserSeg::new(std::ptr::from_mut(word).cast(), 8)
    }
}

/// Sends a stamp every now and then, by pipe and by message in turn, when it is told to. Says at the end what a send took.
fn sender(receiver: &str) {
    let mut node = Node::new();
    let to = node.av.insert(&receiver.parse::<Name>().expect("name"));
    let mut took = Vec::new();
    let mut out = std::io::stdout();
    let mut go = [0u8];
    while std::io::stdin().read_exact(&mut go).is_ok() {
        std::thread::sleep(Duration::from_micros(400));
        match go[0] {
            b'p' => {
                out.write_all(&now().to_ne_bytes()).and_then(|()| out.flush()).expect("pipe");
            }
            b'm' => {
                let mut stamp = now();
                node.inject(to, &mut stamp);
                took.push(now() - stamp);
                node.domain.progress();
            }
            _ => break,
        }
    }
    took.sort_unstable();
    out.write_all(&took[took.len() / 2].to_ne_bytes()).expect("pipe");
}

fn partner(name: &Name) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().expect("exe"));
    let child = command.args(["--sender", &name.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("partner");
    let out = BufReader::new(child.stdout.take().expect("stdout"));
    (child, out)
}

fn show(what: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    let at = |q: usize| ns[(ns.len() - 1) * q / 100] as f64 / 1000.0;
    println!("{what:<28} median {:6.1} µs, p90 {:6.1}, p99 {:6.1}, least {:5.1}", at(50), at(90), at(99), at(0));
}

fn cpu_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|a| a == "--sender") {
        return sender(&args[at + 1]);
    }
    let rounds = args.iter().find_map(|a| a.parse().ok()).unwrap_or(3000usize);
    let mut node = Node::new();
    let waiter = node.domain.waiter().expect("waiter");
    let name = node.domain.ep_name(node.ep).expect("name");
    let (mut child, mut out) = partner(&name);
    let mut stdin = child.stdin.take().expect("stdin");
    let (mut pipe, mut message, mut naps) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds + 20 {
        let mut word = [0u8; 8];
        stdin.write_all(b"p").expect("partner");
        out.read_exact(&mut word).expect("partner");
        let by_pipe = now() - u64::from_ne_bytes(word);
        let mut stamp = 0u64;
        node.post(&mut stamp);
        stdin.write_all(b"m").expect("partner");
        let slept = node.wait(&waiter, Instant::now() + Duration::from_secs(5));
        let by_message = now() - stamp;
        if round >= 20 {
            pipe.push(by_pipe);
            message.push(by_message);
            naps += slept;
        }
    }
    show("a bare pipe wakes after", pipe);
    show("a message wakes after", message);
    println!("naps for a message: {:.2}", naps as f64 / rounds as f64);
    let before = cpu_time();
    let woke = node.wait(&waiter, Instant::now() + Duration::from_secs(1));
    println!("asleep for 1 s: {} µs of processor time, {woke} naps", (cpu_time() - before) / 1000);
    stdin.write_all(b"q").expect("partner");
    let mut word = [0u8; 8];
    out.read_exact(&mut word).expect("partner");
    println!("the send that wakes takes its caller {:.1} µs (median)", u64::from_ne_bytes(word) as f64 / 1000.0);
    let _ = out.read_line(&mut String::new());
    let _ = child.wait();
}
