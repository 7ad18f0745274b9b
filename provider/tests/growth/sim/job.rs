//! Ranks of a job, each a whole engine of one process, and what they do together.

use super::bruck::{self, Blocks};
use super::door::At;
use super::fabric::{Host, Shared, Told};
use super::program::{Make, Program};
use rustmx::endpoint::SOCKETS_EVERY;
use rustmx::sys::clock::Clock;
use rustmx::transport::tcp::HEALTH_EVERY;
use rustmx::{
    Addr, AddressVector, Config, CqId, CqRead, Domain, EpAttr, EpId, Error, INJECT_MAX, Log, OpFlags, RecvArgs, SendArgs,
    UserCtx, UserSeg,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Turns in one visit, at most: an engine reads the clock in one of 64.
const TURNS: usize = 70;
/// Nanoseconds after which a rank that is not through is visited though nothing happened.
const HEARTBEAT: u64 = 5_000_000;
/// Ranks start within so many nanoseconds of each other.
const SKEW: u64 = 50_000;
/// Contexts of sends have this bit; the others are receives.
const SEND: usize = 1 << 40;

struct Rank {
    domain: Domain,
    ep: EpId,
    cq: CqId,
    /// Where messages go, by sender's rank; of an allreduce by step.
    into: Box<[u8]>,
    /// What is sent; of an allreduce by step.
    out: Box<[u8]>,
    /// Messages that found no room yet: to whom, and which part of `out`.
    to_send: VecDeque<(usize, usize)>,
    received: Vec<u32>,
    sends_open: usize,
    recvs_open: usize,
    step: usize,
    /// The message of this step is there.
    landed: bool,
    blocks: Option<Blocks>,
    value: u64,
    start: u64,
    begun: bool,
    first: u64,
    done: u64,
}

/// Times of one round, in nanoseconds from the start of the job to the last rank's end; of its mean first message.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub all: u64,
    pub first_mean: u64,
    pub first_last: u64,
}

/// The ranks and what is between them.
pub struct Job {
    pub make: Make,
    fabric: Shared,
    ranks: Vec<Rank>,
    clock: Arc<AtomicU64>,
    round: u32,
    through: usize,
}

fn attr() -> EpAttr {
    let flags = OpFlags::COMPLETION;
    EpAttr {
        tx_flags: flags,
        rx_flags: flags,
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

fn seg(part: &mut [u8]) -> UserSeg {
    // SAFETY: buffers of ranks live until the engines are dropped, and engines use them one at a time.
    #[expect(unsafe_code)]
    unsafe {
        UserSeg::new(part.as_mut_ptr(), part.len())
    }
}

impl Job {
    pub fn new(make: Make, config: Config) -> Job {
        assert!(
            make.bytes >= 8 && make.longest() <= config.tcp_eager_max as usize,
            "messages of 8 bytes to those that travel as one record"
        );
        assert!(make.program != Program::Allreduce || make.ranks.is_power_of_two(), "a power of two");
        let fabric = Shared::new(make.terms, make.seed);
        let clock = Arc::new(AtomicU64::new(1));
        let config = Arc::new(config);
        // Every process has one of its own, of course; what is in them is the same.
        let av = Arc::new(AddressVector::new());
        let parts = make.program.steps(make.ranks).unwrap_or(make.ranks);
        let ranks: Vec<Rank> = (0..make.ranks)
            .map(|host| {
                let mut here = fabric.lock();
                // Processes look after their connections at times of their own.
                let health_at = here.random() % HEALTH_EVERY;
                here.hosts.push(Host::new(health_at));
                drop(here);
                let venue = Arc::new(At { fabric: fabric.clone(), host });
                let mut domain = Domain::at_venue(config.clone(), Log::silent(), Clock::Manual(clock.clone()), venue);
                let cq = domain.cq_open();
                let ep = domain.ep_open(attr()).expect("endpoint");
                domain.ep_bind_av(ep, av.clone()).expect("av");
                domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
                domain.ep_enable(ep).expect("enable");
                av.insert(&domain.ep_name(ep).expect("name"));
                // Rank 0 of a star hears of all, the others of it alone.
                let mine = if make.program == Program::Star && host > 0 { 1 } else { parts };
                let [into, out] = match make.program {
                    Program::Bruck => [make.longest(); 2],
                    Program::Allreduce => [mine * make.bytes; 2],
                    _ => [mine * make.bytes, make.bytes],
                };
                Rank {
                    domain,
                    ep,
                    cq,
                    // Not 0: then they would be made when they are written to, and count as a peer's.
                    into: vec![1; into].into(),
                    out: vec![1; out].into(),
                    to_send: VecDeque::new(),
                    received: vec![0; mine],
                    sends_open: 0,
                    recvs_open: 0,
                    step: 0,
                    landed: false,
                    blocks: (make.program == Program::Bruck).then(|| Blocks::new(make.ranks, make.bytes)),
                    value: 0,
                    start: 0,
                    begun: false,
                    first: 0,
                    done: 0,
                }
            })
            .collect();
        Job { make, fabric, ranks, clock, round: 0, through: 0 }
    }

    pub fn told(&self) -> Told {
        self.fabric.lock().told
    }

    /// Peers that each rank has met, all together.
    pub fn peers(&self) -> u64 {
        self.ranks.iter().map(|r| r.domain.ep_stats(r.ep).expect("stats").peers).sum()
    }

    /// Bytes of the program's own memory, all ranks together.
    pub fn buffers(&self) -> u64 {
        let blocks = if self.make.program == Program::Bruck { self.make.ranks * self.make.bytes } else { 0 };
        self.ranks.iter().map(|r| (r.into.len() + r.out.len() + blocks) as u64).sum()
    }

    /// Turns of one rank, in which nothing happens.
    pub fn idle(&mut self, rank: usize, turns: usize) {
        for _ in 0..turns {
            self.ranks[rank].domain.progress();
        }
    }

    /// Everybody does the program once.
    pub fn run(&mut self, mut progress: impl FnMut(usize)) -> Times {
        self.round += 1;
        self.through = 0;
        let base = self.fabric.lock().now + 1_000_000;
        for host in 0..self.ranks.len() {
            let mut fabric = self.fabric.lock();
            let start = base + fabric.random() % SKEW;
            let rank = &mut self.ranks[host];
            (rank.start, rank.begun, rank.first, rank.done, rank.step) = (start, false, 0, 0, 0);
            rank.received.fill(0);
            fabric.visit(host, start);
        }
        let mut told = 0;
        while self.through < self.ranks.len() {
            let next = self.fabric.lock().next();
            let host = next.expect("somebody waits, and nothing will happen any more");
            self.visit(host);
            if self.through > told {
                told = self.through;
                progress(told);
            }
        }
        let end = self.ranks.iter().map(|r| r.done).max().unwrap_or(0);
        let firsts = || self.ranks.iter().map(|r| r.first - r.start);
        Times {
            all: end - base,
            first_mean: firsts().sum::<u64>() / self.ranks.len() as u64,
            first_last: firsts().max().unwrap_or(0),
        }
    }

    /// A process has something to do: it takes turns until nothing is left.
    fn visit(&mut self, host: usize) {
        let (now, epoll) = {
            let fabric = self.fabric.lock();
            (fabric.now, fabric.terms.io[2])
        };
        self.fabric.lock().spend(host, epoll);
        for turn in 0..TURNS {
            let time = self.fabric.lock().time(host);
            self.clock.store(time, Ordering::Relaxed);
            if !self.ranks[host].begun && now >= self.ranks[host].start && self.round > 0 {
                self.begin(host);
            }
            let work = self.turn(host);
            let fabric = self.fabric.lock();
            let h = &fabric.hosts[host];
            let overdue = now.saturating_sub(h.looked_at) >= HEARTBEAT || now >= h.health_at && !h.calls.is_empty();
            let looks = (h.looks || overdue) && now >= h.looked_at + SOCKETS_EVERY;
            if work == 0 && h.ready.is_empty() && h.dirty.is_empty() && !looks && turn > 0 {
                break;
            }
        }
        let mut fabric = self.fabric.lock();
        let h = &mut fabric.hosts[host];
        h.free_at = now + h.spent;
        let (looks, looked_at, more) = (h.looks, h.looked_at, !h.ready.is_empty() || !h.dirty.is_empty());
        let free_at = h.free_at;
        if more {
            fabric.visit(host, free_at);
        } else if looks {
            fabric.visit(host, looked_at + SOCKETS_EVERY);
        } else if self.ranks[host].done == 0 {
            let rank = &self.ranks[host];
            fabric.visit(host, if rank.begun { now + HEARTBEAT } else { rank.start });
        }
    }

    fn begin(&mut self, host: usize) {
        self.ranks[host].begun = true;
        let n = self.make.ranks;
        let others = (1..n).map(|k| (host + k) % n);
        match self.make.program {
            Program::AllToAll => {
                others.clone().for_each(|from| self.receive(host, from, from));
                others.for_each(|to| self.ranks[host].to_send.push_back((to, 0)));
            }
            Program::Star if host == 0 => others.for_each(|from| self.receive(host, from, from)),
            Program::Star => {
                self.receive(host, 0, 0);
                self.ranks[host].to_send.push_back((0, 0));
            }
            Program::Allreduce => {
                self.ranks[host].value = host as u64;
                self.step(host);
            }
            Program::Bruck => {
                let round = self.round;
                self.ranks[host].blocks.iter_mut().for_each(|b| b.fill(host, round));
                return self.step(host);
            }
        }
        self.mark(host, 0);
        self.send_what_fits(host);
    }

    /// Writes into the message who sends it, and in which round; of an allreduce the value so far.
    fn mark(&mut self, host: usize, part: usize) {
        let word = match self.make.program {
            Program::Allreduce => self.ranks[host].value,
            _ => (host as u64) << 32 | u64::from(self.round),
        };
        self.ranks[host].out[part * self.make.bytes..][..8].copy_from_slice(&word.to_le_bytes());
    }

    fn step(&mut self, host: usize) {
        let (step, steps) = (self.ranks[host].step, self.make.program.steps(self.make.ranks).expect("a program in steps"));
        if step == steps {
            let n = self.make.ranks as u64;
            match &self.ranks[host].blocks {
                Some(blocks) => assert!(blocks.are_mine(host, self.round), "a block at rank {host}"),
                None => assert_eq!(self.ranks[host].value, n * (n - 1) / 2, "the sum at rank {host}"),
            }
            return;
        }
        let [to, from] = match self.make.program {
            Program::Bruck => bruck::partners(self.make.ranks, host, step),
            _ => [host ^ 1 << step; 2],
        };
        self.receive(host, from, step);
        let (span, rank) = (self.make.span(step), &mut self.ranks[host]);
        rank.to_send.push_back((to, step));
        match &rank.blocks {
            Some(blocks) => blocks.pack(step, &mut rank.out[span]),
            None => self.mark(host, step),
        }
        self.send_what_fits(host);
    }

    fn tag(&self, part: usize) -> u64 {
        let step = self.make.program.steps(self.make.ranks).map_or(0, |_| part as u64);
        u64::from(self.round) << 32 | step
    }

    fn receive(&mut self, host: usize, from: usize, part: usize) {
        let tag = self.tag(part);
        let cost = self.fabric.lock().terms.call;
        let rank = &mut self.ranks[host];
        let iov = [seg(&mut rank.into[self.make.span(part)])];
        let from = Addr(from as u64);
        let args = RecvArgs { from, tagged: true, tag, ignore: 0, iov: &iov, ctx: UserCtx(part), flags: None };
        rank.domain.recv(rank.ep, &args).expect("recv");
        rank.recvs_open += 1;
        self.fabric.lock().spend(host, cost);
    }

    fn send_what_fits(&mut self, host: usize) {
        while let Some(&(to, part)) = self.ranks[host].to_send.front() {
            let tag = self.tag(part);
            let mut fabric = self.fabric.lock();
            let cost = fabric.terms.call;
            fabric.spend(host, cost);
            self.clock.store(fabric.time(host), Ordering::Relaxed);
            drop(fabric);
            let rank = &mut self.ranks[host];
            let iov = [seg(&mut rank.out[self.make.span(part)])];
            let to = Addr(to as u64);
            let args = SendArgs { to, tagged: true, tag, data: None, iov: &iov, ctx: UserCtx(SEND), flags: None, inject: false };
            match rank.domain.send(rank.ep, &args) {
                Ok(()) => {
                    rank.sends_open += 1;
                    rank.to_send.pop_front();
                }
                Err(Error::Again) => return,
                Err(why) => panic!("rank {host} to {to:?}: {why}"),
            }
        }
    }

    /// One turn of a rank, and what comes of it. Returns how much that was.
    fn turn(&mut self, host: usize) -> usize {
        let mut done = Vec::new();
        let rank = &mut self.ranks[host];
        let read = rank.domain.cq_read(rank.cq, 64, &mut |c| done.push((c.ctx.0, c.len, c.src)));
        if matches!(read, CqRead::ErrorPending) {
            let error = rank.domain.cq_read_error(rank.cq).map(|e| e.error);
            panic!("rank {host}: {error:?}");
        }
        for &(ctx, len, from) in &done {
            if ctx == SEND {
                self.ranks[host].sends_open -= 1;
            } else {
                assert_eq!(len, self.make.span(ctx).len(), "rank {host}");
                self.received(host, ctx, from.0 as usize);
            }
        }
        self.send_what_fits(host);
        let rank = &mut self.ranks[host];
        // The buffers serve again when both messages of the step are through, as in MPI_Sendrecv.
        if rank.landed && rank.sends_open + rank.to_send.len() == 0 {
            let span = self.make.span(rank.step);
            rank.blocks.iter_mut().for_each(|b| b.unpack(rank.step, &rank.into[span.clone()]));
            (rank.landed, rank.step) = (false, rank.step + 1);
            self.step(host);
        }
        let time = self.fabric.lock().time(host);
        let rank = &mut self.ranks[host];
        let steps = self.make.program.steps(self.make.ranks).is_none_or(|steps| rank.step == steps);
        if rank.begun && rank.done == 0 && rank.recvs_open + rank.sends_open + rank.to_send.len() == 0 && steps {
            assert!(
                rank.received
                    .iter()
                    .enumerate()
                    .all(|(i, n)| *n == 1 || self.make.program.steps(self.make.ranks).is_none() && i == host && *n == 0)
            );
            rank.done = time;
            self.through += 1;
        }
        done.len()
    }

    /// A message is there, once, and it is the one that was awaited.
    fn received(&mut self, host: usize, part: usize, from: usize) {
        let time = self.fabric.lock().time(host);
        let rank = &mut self.ranks[host];
        rank.recvs_open -= 1;
        rank.received[part] += 1;
        assert_eq!(rank.received[part], 1, "rank {host}: {part} twice");
        if rank.first == 0 {
            rank.first = time;
        }
        let bytes = &rank.into[self.make.span(part)][..8];
        let word = u64::from_le_bytes(bytes.try_into().expect("eight"));
        match self.make.program {
            Program::Allreduce => {
                assert_eq!(from, host ^ 1 << part);
                rank.value += word;
                rank.step += 1;
                self.step(host);
            }
            Program::Bruck => {
                assert_eq!(from, bruck::partners(self.make.ranks, host, part)[1]);
                rank.landed = true;
            }
            _ => {
                assert_eq!((word, from), ((part as u64) << 32 | u64::from(self.round), part), "rank {host}");
                if self.make.program == Program::Star && host == 0 {
                    rank.to_send.push_back((part, 0));
                }
            }
        }
    }
}

/// Nothing that engines say when they are dropped is of interest.
impl Drop for Job {
    fn drop(&mut self) {
        self.fabric.lock().over = true;
    }
}
