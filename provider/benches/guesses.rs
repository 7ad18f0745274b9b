//! How often guesses where the next bytes of a connection belong are right, and whether they pay: the figures of `docs/adr/0019-tcp.md`. Endpoints
//! of one process by the loopback interface, each with a thread of its own. `cargo bench -p rustmx-benches --bench guesses`.

mod node;

use node::Node;
use rustmx::config::network::Iface;
use rustmx::{Addr, Config, CqRead, Name, OpFlags};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

/// What the endpoints do.
#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    /// A message to and fro.
    PingPong,
    /// Windows of 64 messages one way, and a short answer.
    Window,
    /// Everybody to everybody, all at once.
    AllToAll,
}

const WINDOW: usize = 64;

struct Rank {
    node: Node,
    to: Vec<Addr>,
    out: Vec<u8>,
    into: Vec<Vec<u8>>,
    open: usize,
}

impl Rank {
    fn recv(&mut self, at: usize, len: usize) {
        let buf = std::ptr::from_mut(&mut self.into[at]);
        // SAFETY: the buffer lives as long as the rank, and the loop waits for all that is posted.
        #[expect(unsafe_code)]
        self.node.recv(unsafe { &mut (&mut *buf)[..len] });
        self.open += 1;
    }

    fn send(&mut self, to: usize, len: usize) {
        let addr = self.to[to];
        let buf = std::ptr::from_mut(&mut self.out);
        // SAFETY: as above; nobody writes to it.
        #[expect(unsafe_code)]
        self.node.send(addr, unsafe { &mut (&mut *buf)[..len] }, false);
        self.open += 1;
    }

    fn wait(&mut self) {
        while self.open > 0 {
            let mut done = 0;
            if !matches!(self.node.domain.cq_read(self.node.cq, 16, &mut |_| done += 1), CqRead::Empty | CqRead::Got(_)) {
                panic!("an operation failed");
            }
            self.open -= done;
            if done == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn round(&mut self, me: usize, pattern: Pattern, len: usize) {
        let ranks = self.to.len();
        match pattern {
            Pattern::PingPong if me == 0 => {
                self.recv(0, len);
                self.send(1, len);
                self.wait();
            }
            Pattern::PingPong => {
                self.recv(0, len);
                self.wait();
                self.send(0, len);
                self.wait();
            }
            Pattern::Window if me == 0 => {
                self.recv(0, 8);
                (0..WINDOW).for_each(|_| self.send(1, len));
                self.wait();
            }
            Pattern::Window => {
                (0..WINDOW).for_each(|i| self.recv(i, len));
                self.wait();
                self.send(0, 8);
                self.wait();
            }
            Pattern::AllToAll => {
                (1..ranks).for_each(|i| self.recv(i, len));
                (1..ranks).for_each(|i| self.send((me + i) % ranks, len));
                self.wait();
            }
        }
    }
}

/// Nanoseconds of a round, and the sums of all ranks' counters of guesses.
fn run(pattern: Pattern, ranks: usize, len: usize, rounds: usize) -> (f64, Vec<(&'static str, u64)>) {
    let names: Mutex<Vec<(usize, Name)>> = Mutex::default();
    let (barrier, took, sums) = (Barrier::new(ranks), Mutex::new(0.0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for me in 0..ranks {
            let (names, barrier, took, sums) = (&names, &barrier, &took, &sums);
            scope.spawn(move || {
                let config = Config { shm: 0, tcp: 1, iface: Iface::parse("127.0.0.1").0, ..Config::default() };
                let node = Node::new(config, OpFlags::COMPLETION);
                names.lock().expect("names").push((me, node.name()));
                barrier.wait();
                let mut all = names.lock().expect("names").clone();
                all.sort_by_key(|n| n.0);
                let to = all.iter().map(|(_, name)| node.av.insert(name)).collect();
                let mut rank = Rank { node, to, out: vec![1; len], into: vec![vec![0; len.max(8)]; WINDOW.max(ranks)], open: 0 };
                (0..rounds / 10 + 1).for_each(|_| rank.round(me, pattern, len));
                barrier.wait();
                let begun = Instant::now();
                (0..rounds).for_each(|_| rank.round(me, pattern, len));
                if me == 0 {
                    *took.lock().expect("time") = begun.elapsed().as_nanos() as f64 / rounds as f64;
                }
                let rows = rank.node.domain.ep_stats(rank.node.ep).expect("stats").rows();
                sums.lock().expect("sums").extend(rows.into_iter().filter(|(name, _)| name.contains("guess")));
                // What is on its way to others still arrives.
                for _ in 0..1000 {
                    rank.node.domain.progress();
                }
                barrier.wait();
            });
        }
    });
    (took.into_inner().expect("time"), sums.into_inner().expect("sums"))
}

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let repeats = numbers.first().copied().unwrap_or(1);
    println!("| pattern | bytes | µs a round | right | wrong | right of all | placed MB | moved MB | stops |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (pattern, name, ranks, sizes) in [
        (Pattern::PingPong, "ping-pong", 2, &[8, 4 << 10, 16 << 10, 64 << 10, 1 << 20][..]),
        (Pattern::Window, "window of 64", 2, &[8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20]),
        (Pattern::AllToAll, "all-to-all of 8", 8, &[8, 1 << 10, 16 << 10, 64 << 10, 256 << 10]),
    ] {
        for &len in sizes {
            for _ in 0..repeats {
                let each = if pattern == Pattern::PingPong { 1 } else { WINDOW };
                let rounds = ((1 << 29) / (each * (len + (8 << 10)))).clamp(40, 6000);
                let (ns, sums) = run(pattern, ranks, len, rounds);
                let of = |wanted: &str| sums.iter().filter(|s| s.0 == wanted).map(|s| s.1).sum::<u64>();
                let (right, wrong) = (of("guessed"), of("misguessed"));
                let share = if right + wrong > 0 { 100.0 * right as f64 / (right + wrong) as f64 } else { 0.0 };
                let mb = |name| of(name) as f64 / 1e6;
                println!(
                    "| {name} | {len} | {:.1} | {right} | {wrong} | {share:.1} % | {:.2} | {:.2} | {} |",
                    ns / 1e3,
                    mb("guess_placed"),
                    mb("guess_moved"),
                    of("guess_stops")
                );
            }
        }
    }
}
