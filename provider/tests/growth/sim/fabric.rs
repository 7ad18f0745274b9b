//! A network in virtual time: what happens when, what it costs, what is counted. No engine is seen here.
//!
//! ```text
//! process a ── system call (costs) ──▶ its NIC, one packet after the other ── latency ──▶ the NIC of b ──▶ socket ── read (costs) ──▶ process b
//! ```
//! A process has one core, which is either in the engine or waits for the next thing to happen; a NIC has one wire each way. The kernel takes
//! calls as far as its backlog goes, and drops what does not fit: then the caller's kernel asks again after 1, 2, 4 … seconds, as Linux does.

use super::line::Packet;
use rustmx::Name;
use rustmx::endpoint::SOCKETS_EVERY;
use rustmx::mem::shared::SharedMem;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Nanoseconds before the caller's kernel asks again for the first time; doubled each time.
const SYN_AGAIN: u64 = 1_000_000_000;
/// Times that it does.
const SYN_TRIES: u32 = 6;
/// Bytes of a packet around 1448 bytes of ours: TCP, IP, Ethernet, preamble and gap.
const PACKET: (usize, usize) = (1448, 90);

/// What a network is like, and what system calls cost on its hosts. All times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Its name.
    pub name: &'static str,
    /// From NIC to NIC, with both kernels' interrupt work.
    pub latency: u64,
    /// Gigabits a second of each NIC, each way.
    pub gbit: f64,
    /// Calls that a kernel keeps for a process that does not take them: the least of what rustmx asks for (4096) and net.core.somaxconn.
    pub backlog: usize,
    /// One sendmsg(2), recvmsg(2), epoll_wait(2).
    pub io: [u64; 3],
    /// socket(2), its options, connect(2).
    pub connect: u64,
    /// accept4(2), the socket's options, epoll_ctl(2).
    pub accept: u64,
    /// One call of the engine by the application.
    pub call: u64,
    /// Callers that have not said hello, at a time, that a door listens to.
    pub strangers: usize,
    /// After how long a call that is not taken is begun anew, the first time; doubled each time. 0: only the kernel asks again.
    pub redial: u64,
}

/// What was found in clusters with 10 Gbit/s Ethernet and a switch or two, not tuned.
pub const ETHERNET: Terms = Terms {
    name: "10 Gbit/s Ethernet",
    latency: 12_000,
    gbit: 10.0,
    backlog: 4096,
    io: [2_500, 1_200, 500],
    connect: 12_000,
    accept: 9_000,
    call: 150,
    strangers: 1024,
    redial: 500_000_000,
};

/// A cloud: virtual NICs, hosts that lie farther from each other, dearer system calls.
pub const CLOUD: Terms = Terms {
    name: "cloud, 25 Gbit/s",
    latency: 30_000,
    gbit: 25.0,
    io: [4_000, 2_000, 800],
    connect: 20_000,
    accept: 15_000,
    ..ETHERNET
};

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A process has something to do.
    Visit(usize),
    /// A call reaches the callee's kernel, for the so many-th time.
    Syn(usize, u32),
    /// The caller's kernel hears that it was taken.
    Connected(usize),
    /// The first packet under way to an end of a line is there.
    Arrive(usize, usize),
}

/// One process and its host.
#[derive(Default)]
pub struct Host {
    /// The virtual time at which its core is free.
    pub free_at: u64,
    /// What this visit has cost so far.
    pub spent: u64,
    /// When it is visited next; 0: not known.
    next: u64,
    /// It must look at its door, not only take a turn.
    pub looks: bool,
    pub looked_at: u64,
    nic: [u64; 2],
    /// Calls that its kernel has taken and it has not.
    pub backlog: VecDeque<usize>,
    /// Calls of its own that are under way.
    pub calls: HashMap<Name, Call>,
    /// When calls and the health of connections are looked at next.
    pub health_at: u64,
    /// Ends of lines (line, end) with something to be read; each once.
    pub ready: VecDeque<(usize, usize)>,
    pub dirty: Vec<(usize, usize)>,
    /// Ends on which the other side may have to be told what was read, and since when.
    pub owing: Vec<(usize, usize, u64)>,
    pub strangers: usize,
    pub turn: u64,
}

impl Host {
    /// One that looks after its connections at `health_at` first.
    pub fn new(health_at: u64) -> Host {
        Host { health_at, ..Host::default() }
    }
}

/// A call that is under way.
#[derive(Clone, Copy)]
pub struct Call {
    pub line: usize,
    pub since: u64,
    pub patience: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// Calls begun.
    pub calls: u64,
    /// Calls that the other side's call made superfluous.
    pub crossed: u64,
    /// Calls that were begun anew.
    pub redials: u64,
    /// Calls that did not fit into a backlog, each time.
    pub overflows: u64,
    /// Most calls that waited in a backlog.
    pub most_waiting: usize,
    /// Frames with records, and those with news only.
    pub frames: u64,
    pub news: u64,
    /// Bytes of ours that travelled.
    pub bytes: u64,
    /// Lines on which both hellos were said.
    pub met: u64,
}

/// One end of a line.
pub struct End {
    pub host: usize,
    /// In the socket.
    pub inbox: VecDeque<Packet>,
    /// Under way to it.
    pub wire: VecDeque<Packet>,
    pub is_ready: bool,
    pub half: super::line::Half,
}

/// A connection, from the first call on.
pub struct Line {
    pub ends: [End; 2],
    pub connected: bool,
    pub failed: bool,
}

/// Everything between the engines.
pub struct Fabric {
    pub terms: Terms,
    pub now: u64,
    pub hosts: Vec<Host>,
    pub lines: Vec<Line>,
    pub told: Told,
    /// Nothing is of interest any more: engines are dropped.
    pub over: bool,
    heap: BinaryHeap<Reverse<(u64, u64, Due)>>,
    sequence: u64,
    random: u64,
    /// Memory that nobody writes to, for bells: one is enough.
    pub bell: Option<SharedMem>,
}

/// The fabric as the places and the job share it.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Fabric>>);

impl Shared {
    pub fn new(terms: Terms, seed: u64) -> Shared {
        let fabric = Fabric {
            terms,
            now: 1,
            hosts: Vec::new(),
            lines: Vec::new(),
            told: Told::default(),
            over: false,
            heap: BinaryHeap::new(),
            sequence: 0,
            random: seed,
            bell: None,
        };
        Shared(Arc::new(Mutex::new(fabric)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Fabric {
    /// Random numbers that a seed repeats (splitmix64).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The time of a process that is in the engine.
    pub fn time(&self, host: usize) -> u64 {
        self.now + self.hosts[host].spent
    }

    /// Its core works.
    pub fn spend(&mut self, host: usize, ns: u64) {
        self.hosts[host].spent += ns;
    }

    fn at(&mut self, time: u64, due: Due) {
        self.sequence += 1;
        self.heap.push(Reverse((time, self.sequence, due)));
    }

    /// A process is to be visited at `time`, or once its core is free.
    pub fn visit(&mut self, host: usize, time: u64) {
        let h = &mut self.hosts[host];
        let time = time.max(h.free_at);
        if h.next == 0 || time < h.next {
            h.next = time;
            self.at(time, Due::Visit(host));
        }
    }

    /// As [`visit`](Self::visit), for what is seen only by a look at the door.
    pub fn look(&mut self, host: usize, time: u64) {
        let h = &mut self.hosts[host];
        h.looks = true;
        let time = time.max(h.looked_at + SOCKETS_EVERY);
        self.visit(host, time);
    }

    /// The next process to be visited; the time is now. `None`: nothing will happen any more.
    pub fn next(&mut self) -> Option<usize> {
        while let Some(Reverse((time, _, due))) = self.heap.pop() {
            self.now = time;
            match due {
                Due::Visit(host) => {
                    let h = &mut self.hosts[host];
                    // Another visit came before.
                    if h.next != time {
                        continue;
                    }
                    if h.free_at > time {
                        (h.next, h.spent) = (0, 0);
                        let free = h.free_at;
                        self.visit(host, free);
                        continue;
                    }
                    (h.next, h.spent) = (0, 0);
                    return Some(host);
                }
                Due::Syn(line, tries) => self.syn(line, tries),
                Due::Connected(line) => {
                    self.lines[line].connected = true;
                    let host = self.lines[line].ends[0].host;
                    self.look(host, time);
                }
                Due::Arrive(line, end) => self.arrive(line, end),
            }
        }
        None
    }

    /// A call reaches a kernel.
    fn syn(&mut self, line: usize, tries: u32) {
        // Given up meanwhile.
        if self.lines[line].failed {
            return;
        }
        let callee = self.lines[line].ends[1].host;
        if self.hosts[callee].backlog.len() > self.terms.backlog {
            self.told.overflows += 1;
            match tries < SYN_TRIES {
                true => self.at(self.now + (SYN_AGAIN << tries), Due::Syn(line, tries + 1)),
                false => {
                    self.lines[line].failed = true;
                    let caller = self.lines[line].ends[0].host;
                    self.look(caller, self.now);
                }
            }
            return;
        }
        self.hosts[callee].backlog.push_back(line);
        self.told.most_waiting = self.told.most_waiting.max(self.hosts[callee].backlog.len());
        self.at(self.now + self.terms.latency, Due::Connected(line));
        // Who has peers on the network asks its sockets in each turn, others look now and then.
        match self.hosts[callee].turn {
            0 => self.look(callee, self.now),
            _ => self.visit(callee, self.now),
        }
    }

    /// A process calls another one. The number of the line.
    pub fn call(&mut self, from: usize, to: usize) -> usize {
        self.spend(from, self.terms.connect);
        self.told.calls += 1;
        let end = |host| End { host, inbox: VecDeque::new(), wire: VecDeque::new(), is_ready: false, half: Default::default() };
        self.lines.push(Line { ends: [end(from), end(to)], connected: false, failed: false });
        let line = self.lines.len() - 1;
        let there = self.time(from) + self.terms.latency;
        self.at(there, Due::Syn(line, 0));
        line
    }

    /// Sends a packet from one end of a line to the other.
    pub fn send(&mut self, line: usize, end: usize, packet: Packet) {
        let (from, to) = (self.lines[line].ends[end].host, self.lines[line].ends[1 - end].host);
        self.spend(from, self.terms.io[0]);
        let bytes = packet.bytes();
        self.told.bytes += bytes as u64;
        let wire = (bytes + bytes.div_ceil(PACKET.0).max(1) * PACKET.1) as f64 * 8.0 / self.terms.gbit;
        let out = &mut self.hosts[from].nic[0];
        let leaves = (*out).max(self.now + self.hosts[from].spent);
        let out = &mut self.hosts[from].nic[0];
        *out = leaves + wire as u64;
        // The wire of the receiver is busy as long, and with one at a time.
        let into = &mut self.hosts[to].nic[1];
        let there = (leaves + self.terms.latency).max(*into) + wire as u64;
        *into = there;
        self.lines[line].ends[1 - end].wire.push_back(packet);
        self.at(there, Due::Arrive(line, 1 - end));
    }

    fn arrive(&mut self, line: usize, end: usize) {
        let here = &mut self.lines[line].ends[end];
        let Some(packet) = here.wire.pop_front() else { return };
        here.inbox.push_back(packet);
        self.make_ready(line, end);
    }

    /// A socket has something to be read.
    pub fn make_ready(&mut self, line: usize, end: usize) {
        let here = &mut self.lines[line].ends[end];
        let host = here.host;
        // Of one that was not accepted yet nobody knows.
        if end == 1 && !here.half.accepted || here.is_ready {
            return;
        }
        here.is_ready = true;
        self.hosts[host].ready.push_back((line, end));
        let now = self.now;
        self.visit(host, now);
    }
}
