//! The figures of `docs/adr/0008-sleeping.md`: how long after a send a sleeping receiver has its message, beside the wake-up
//! of a bare pipe on the same machine, what the send costs its caller, and what sleeping costs. Two processes, not pinned.
//! `cargo bench --bench waking [-- ROUNDS]`.

mod node;

use node::{Node, partner};
use rustmx::{Config, CqRead, Name, Nap, OpFlags, Waiter};
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};

/// The machine's monotonic time, the same in both processes, in nanoseconds.
fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn node() -> Node {
    Node::new(Config { spin: 0, ..Config::default() }, OpFlags::COMPLETION)
}

/// Sleeps until a completion comes, or until `until`. Returns how often it slept.
fn wait(node: &mut Node, waiter: &Waiter, until: Instant) -> usize {
    let mut naps = 0;
    while node.domain.cq_read(node.cq, 1, &mut |_| {}) == CqRead::Empty && Instant::now() < until {
        if let Nap::Sleep(limit) = node.domain.doze().expect("no fork") {
            let rest = until.saturating_duration_since(Instant::now());
            waiter.sleep(Some(limit.map_or(rest, |l| l.min(rest))));
            node.domain.awake();
            naps += 1;
        }
    }
    naps
}

/// Sends a stamp every now and then, by pipe and by message in turn, when it is told to. Says at the end what a send took.
fn sender(receiver: &str) {
    let mut node = node();
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
                let stamp = now();
                node.try_send(to, &mut stamp.to_ne_bytes(), None, true).expect("room");
                took.push(now() - stamp);
                node.domain.progress();
            }
            _ => break,
        }
    }
    took.sort_unstable();
    out.write_all(&took[took.len() / 2].to_ne_bytes()).expect("pipe");
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
    let mut node = node();
    let waiter = node.domain.waiter().expect("waiter");
    let (mut child, mut out) = partner(["--sender", &node.name().to_string()]);
    let mut stdin = child.stdin.take().expect("stdin");
    let (mut pipe, mut message, mut naps) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds + 20 {
        let mut word = [0u8; 8];
        stdin.write_all(b"p").expect("partner");
        out.read_exact(&mut word).expect("partner");
        let by_pipe = now() - u64::from_ne_bytes(word);
        let mut stamp = [0u8; 8];
        node.recv(&mut stamp);
        stdin.write_all(b"m").expect("partner");
        let slept = wait(&mut node, &waiter, Instant::now() + Duration::from_secs(5));
        let by_message = now() - u64::from_ne_bytes(stamp);
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
    let woke = wait(&mut node, &waiter, Instant::now() + Duration::from_secs(1));
    println!("asleep for 1 s: {} µs of processor time, {woke} naps", (cpu_time() - before) / 1000);
    stdin.write_all(b"q").expect("partner");
    let mut word = [0u8; 8];
    out.read_exact(&mut word).expect("partner");
    println!("the send that wakes takes its caller {:.1} µs (median)", u64::from_ne_bytes(word) as f64 / 1000.0);
    let _ = out.read_line(&mut String::new());
    let _ = child.wait();
}
