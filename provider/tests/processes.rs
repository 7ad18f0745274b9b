//! Processes that compute, exit and die. The other processes are this test program in another role ([`role`]).
//!
//! Not here: a bare `fork` has no safe spelling in Rust; the forked child is tried by a C client in `capi/tests`.

mod common;

use common::process::{self, Copy, copy, hear, say};
use common::{
    Deadline, Event, Footprint, Msg, Node, Rng, Want, all_ok, footprint, not_by_network, number_of, pattern, seg, watchdog,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustmx::{Access, Addr, CompFlags, Error, Name, OpFlags, Region, RemoteSeg, RmaArgs, UserCtx, UserSeg};
use std::time::{Duration, Instant};

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["sender", name, how] => sender(name, how),
        ["traffic", name] => traffic(name),
        ["flooder", name] => flooder(name),
        ["steady", name] => steady(name),
        ["reserved"] => reserved(),
        ["echo", name] => echo(name),
        _ => panic!("no such role: {words:?}"),
    }
}

fn start(words: &str) -> Copy {
    copy("role", words)
}

#[track_caller]
fn ok(e: &Event) -> rustmx::Completion {
    match e {
        Ok(c) => *c,
        Err(e) => panic!("{e:?}"),
    }
}

fn peer(node: &Node, name: &str) -> Addr {
    node.av.insert(&name.parse::<Name>().expect("a name"))
}

const PARTING: [usize; 5] = [0, 40, 232, 4000, 4096];

/// Sends a few messages and is gone: by `exit` without closing anything, by SIGKILL, or in good order.
fn sender(name: &str, how: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    let mut bufs: Vec<Vec<u8>> = PARTING.iter().enumerate().map(|(i, n)| pattern(*n, i)).collect();
    for (i, buf) in bufs.iter_mut().enumerate() {
        node.send(Msg::new(to, i as u64), buf).expect("send");
    }
    let until = Deadline::new(10);
    let mut done = 0;
    while done < PARTING.len() {
        done += all_ok(&node.poll());
        until.check(|| "the other side need not do anything for that".into());
    }
    say("sent");
    match how {
        "exits" => std::process::exit(0),
        "killed" => drop(hear()),
        _ => drop(node),
    }
}

/// Transmit-complete means: it arrives, whatever becomes of the sender, and the receiver need not even have noticed that somebody called.
#[test]
fn a_message_to_a_computing_process_outlives_its_sender() {
    if not_by_network("who calls and may be called says nothing before he is answered; whoever then dies has sent nothing") {
        return;
    }
    let _dog = watchdog("outlives", 60);
    for how in ["exits", "killed", "closes"] {
        let mut b = Node::new();
        let mut other = start(&format!("sender {} {how}", b.name()));
        assert_eq!(other.hear(), "sent");
        if how == "killed" {
            other.kill();
        } else {
            assert!(other.ended().success());
        }
        // Only now does this process do anything.
        for (i, n) in PARTING.into_iter().enumerate().rev() {
            let mut into = vec![0u8; n];
            b.recv(Want::tag(i as u64), &mut into).expect("recv");
            let until = Deadline::new(5);
            let mut got = Vec::new();
            while got.is_empty() {
                got = b.poll();
                until.check(|| format!("message {i} of a sender that {how} is lost: {:?}", b.stats()));
            }
            assert_eq!(ok(&got[0]).len, n);
            assert_eq!(into, pattern(n, i));
        }
    }
}

/// Everything at once, until it is killed: a ping-pong, streams both ways, messages nobody receives, delivery-complete sends.
fn traffic(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say(&node.name().to_string());
    process::follow_parent();
    let mut ball = [0u8; 64];
    let mut stream_in = vec![0u8; 1 << 20];
    let mut stream_out = pattern(700_000, 3);
    let mut flood = pattern(2000, 4);
    node.recv(Want::tag(PING), &mut ball).expect("recv");
    node.recv(Want::tag(STREAM), &mut stream_in).expect("recv");
    let (mut streaming, mut floods, mut sure) = (0, 0u64, 0);
    loop {
        for e in node.poll() {
            let Ok(c) = e else { return };
            match (c.flags.contains(CompFlags::RECV), c.ctx.0 as u64) {
                (true, PING) => {
                    while node.send(Msg::new(to, PONG), &mut ball) == Err(Error::Again) {
                        node.domain.progress();
                    }
                    node.recv(Want::tag(PING), &mut ball).expect("recv");
                }
                (true, _) => node.recv(Want::tag(STREAM), &mut stream_in).expect("recv"),
                (false, STREAM_BACK) => streaming -= 1,
                (false, SURE) => sure -= 1,
                _ => {}
            }
        }
        if streaming < 2 && node.send(Msg::new(to, STREAM_BACK), &mut stream_out).is_ok() {
            streaming += 1;
        }
        if sure < 3 && node.send(Msg::new(to, SURE).with(OpFlags::DELIVERY_COMPLETE), &mut [1u8; 100]).is_ok() {
            sure += 1;
        }
        // Bounded, so that the survivors' memory is.
        if floods < 300 && node.send(Msg::new(to, FLOOD), &mut flood).is_ok() {
            floods += 1;
        }
    }
}

const PING: u64 = 1;
const PONG: u64 = 2;
const STREAM: u64 = 3;
const STREAM_BACK: u64 = 4;
const SURE: u64 = 5;
const FLOOD: u64 = 6;
const STEADY: u64 = 7;
const UNMATCHED: u64 = 8;
const NEVER: u64 = 9;

/// A well-behaved bystander: answers every [`STEADY`] message with its payload, for ever.
fn steady(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say(&node.name().to_string());
    process::follow_parent();
    let mut buf = vec![0u8; 20_000];
    node.recv(Want::tag(STEADY), &mut buf).expect("recv");
    loop {
        for e in node.poll() {
            let c = ok(&e);
            if c.flags.contains(CompFlags::RECV) {
                let mut back = buf[..c.len].to_vec();
                while node.send(Msg::new(to, STEADY).with(OpFlags::DELIVERY_COMPLETE), &mut back) == Err(Error::Again) {
                    node.domain.progress();
                }
                // The buffer lives until the send is complete.
                let until = Deadline::new(10);
                while !node.poll().iter().any(|e| ok(e).flags.contains(CompFlags::SEND)) {
                    until.check(|| "no acknowledgement".into());
                }
                node.recv(Want::tag(STEADY), &mut buf).expect("recv");
            }
        }
    }
}

/// One exchange with the bystander.
struct Bystander {
    copy: Copy,
    addr: Addr,
    out: Vec<u8>,
    into: Vec<u8>,
    rounds: usize,
    waiting: bool,
}

impl Bystander {
    fn new(node: &Node) -> Bystander {
        let mut copy = start(&format!("steady {}", node.name()));
        let addr = peer(node, &copy.hear());
        Bystander { copy, addr, out: Vec::new(), into: Vec::new(), rounds: 0, waiting: false }
    }

    fn turn(&mut self, node: &mut Node) {
        if self.waiting {
            return;
        }
        let n = [10usize, 300, 5000, 20_000][self.rounds % 4];
        self.out = pattern(n, self.rounds);
        self.into = vec![0u8; n];
        if node.send(Msg::new(self.addr, STEADY), &mut self.out).is_ok() {
            node.recv(Want::tag(STEADY).from(self.addr), &mut self.into).expect("recv");
            self.waiting = true;
        }
    }

    /// Takes an event if it is this exchange's.
    fn took(&mut self, e: &Event) -> bool {
        let Ok(c) = e else { return false };
        if c.ctx.0 as u64 != STEADY {
            return false;
        }
        if c.flags.contains(CompFlags::RECV) {
            assert!(self.into == self.out, "round {}", self.rounds);
            self.rounds += 1;
            self.waiting = false;
        }
        true
    }
}

/// Kills a peer at a random moment of traffic of all kinds, many times: what waits for it ends within 100 ms and names it, the
/// bystander's messages go on, nothing hangs and nothing is left over.
#[test]
fn kill_nine_at_any_moment() {
    let _dog = watchdog("kill_nine", 100);
    const KILLS: u64 = 44;
    let seed: u64 = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_260_726);
    println!("seed {seed} (RUSTMX_SEED sets it)");
    process::alone("kill_nine_at_any_moment", || {
        let mut node = Node::new();
        let mut bystander = Bystander::new(&node);
        // What is made once is made now.
        while bystander.rounds < 50 {
            bystander.turn(&mut node);
            assert!(node.poll().iter().all(|e| bystander.took(e)));
        }
        let first: Footprint = footprint();
        let (mut slowest, mut held) = (Duration::ZERO, 0u64);
        for kill in 0..KILLS {
            let mut rng = Rng(seed.wrapping_mul(1000) + kill);
            let (took, unexpected) = one_kill(&mut node, &mut bystander, &mut rng, &format!("kill {kill} of seed {seed}"));
            slowest = slowest.max(took);
            held += unexpected;
            let until = Deadline::new(2);
            while footprint() != first {
                assert!(node.poll().iter().all(|e| bystander.took(e)));
                until.check(|| {
                    format!(
                        "kill {kill} of seed {seed} left something behind: {:?}, not {first:?}; {}",
                        footprint(),
                        open_files()
                    )
                });
            }
        }
        assert!(bystander.rounds > 50 + KILLS as usize / 2, "the bystander was starved: {} rounds", bystander.rounds);
        eprintln!(
            "{KILLS} kills; the slowest was noticed after {slowest:?} of progress; {held} unexpected messages; {} bystander rounds",
            bystander.rounds
        );
    });
}

fn open_files() -> String {
    let all = std::fs::read_dir("/proc/self/fd").expect("fds").filter_map(Result::ok);
    all.filter_map(|f| std::fs::read_link(f.path()).ok()).map(|p| format!("{} ", p.display())).collect()
}

/// Buffers of one round; they outlive it, because receives that were not ended by the death stay posted.
struct Buffers {
    ball: [u8; 64],
    back: [u8; 64],
    stream_out: Vec<u8>,
    stream_in: Vec<u8>,
    never: [u8; 16],
    sure: [u8; 100],
    unmatched: Vec<u8>,
}

fn one_kill(node: &mut Node, bystander: &mut Bystander, rng: &mut Rng, what: &str) -> (Duration, u64) {
    let mut victim = start(&format!("traffic {}", node.name()));
    let victim_name: Name = victim.hear().parse().expect("name");
    let addr = node.av.insert(&victim_name);
    let pid = victim.pid();
    let mut b = Box::new(Buffers {
        ball: [1; 64],
        back: [0; 64],
        stream_out: pattern(rng.range(5000, 1 << 20), 1),
        stream_in: vec![0; 700_000],
        never: [0; 16],
        sure: [7; 100],
        unmatched: pattern(rng.range(300, 300_000), 5),
    });
    // What waits: always a receive that nothing is sent for, mostly a stream that nobody receives; and by chance what is going on.
    let mut open = [0i64; 10];
    node.recv(Want::tag(NEVER).from(addr), &mut b.never).expect("recv");
    open[NEVER as usize] += 1;
    let with_pong = !rng.one_in(4);
    if with_pong {
        node.recv(Want::tag(PONG).from(addr), &mut b.back).expect("recv");
        open[PONG as usize] += 1;
    }
    let (with_streams, with_sure, reads_streams) = (!rng.one_in(4), !rng.one_in(4), !rng.one_in(3));
    let with_unmatched = rng.one_in(2);
    let mut first = true;
    // Some die before first contact is answered, some in the middle of everything.
    let micros = if rng.one_in(5) { rng.below(300) } else { rng.below(40_000) };
    let at = Instant::now() + Duration::from_micros(micros);
    let (mut flooded, mut dead) = (0u64, None::<Duration>);
    let unexpected = node.stats().unexpected;
    loop {
        if dead.is_none() {
            // Of a peer to which nothing was ever sent nobody here knows: its death is nobody's news.
            let sent = flooded > 0 || [PING, STREAM, SURE, UNMATCHED].iter().any(|tag| open[*tag as usize] > 0) || !first;
            if sent && Instant::now() >= at {
                victim.kill();
                dead = Some(worked());
            } else {
                if with_pong && first && node.send(Msg::new(addr, PING), &mut b.ball).is_ok() {
                    open[PING as usize] += 1;
                    first = false;
                }
                if with_streams && open[STREAM as usize] == 0 && node.send(Msg::new(addr, STREAM), &mut b.stream_out).is_ok() {
                    open[STREAM as usize] += 1;
                }
                if reads_streams && open[STREAM_BACK as usize] == 0 {
                    node.recv(Want::tag(STREAM_BACK).from(addr), &mut b.stream_in).expect("recv");
                    open[STREAM_BACK as usize] += 1;
                }
                if with_sure
                    && open[SURE as usize] < 4
                    && node.send(Msg::new(addr, SURE).with(OpFlags::DELIVERY_COMPLETE), &mut b.sure).is_ok()
                {
                    open[SURE as usize] += 1;
                }
                if with_unmatched
                    && open[UNMATCHED as usize] == 0
                    && node.send(Msg::new(addr, UNMATCHED), &mut b.unmatched).is_ok()
                {
                    open[UNMATCHED as usize] += 1;
                }
                if flooded < 50 && rng.one_in(3) && node.send(Msg::new(addr, FLOOD).inject(), &mut [1u8; 90]).is_ok() {
                    flooded += 1;
                }
            }
        }
        bystander.turn(node);
        for e in node.poll() {
            if bystander.took(&e) {
                continue;
            }
            let ctx = e.map_or_else(|e| e.c.ctx.0, |c| c.ctx.0);
            open[ctx] -= 1;
            assert!(open[ctx] >= 0, "{what}: an operation ended twice: {e:?}");
            match e {
                Ok(c) if ctx as u64 == PONG && dead.is_none() => {
                    assert_eq!(c.src, addr);
                    node.recv(Want::tag(PONG).from(addr), &mut b.back).expect("recv");
                    open[PONG as usize] += 1;
                    first = true;
                }
                Ok(c) => assert!(ctx as u64 != STREAM_BACK || b.stream_in == pattern(700_000, 3), "{what}: {c:?}"),
                Err(e) => {
                    assert!(dead.is_some(), "{what}: {e:?} while it was alive");
                    assert!(matches!(e.error, Error::PeerGone | Error::Refused), "{what}: {e:?}");
                    assert_eq!((e.peer, e.detail), (Some(victim_name), number_of(pid)), "{what}: {e:?}");
                }
            }
        }
        if let Some(when) = dead {
            let took = worked().saturating_sub(when);
            if open.iter().all(|n| *n == 0) {
                // Nothing new can be sent there, and nothing is waited for.
                assert_eq!(node.send(Msg::new(addr, 1), &mut [0u8; 4]), Err(Error::PeerGone), "{what}");
                // What came unexpected and whole stays receivable, with its content; the rest is no more.
                let mut into = vec![0u8; 2000];
                for _ in 0..rng.range(0, 500) {
                    if node.recv(Want::tag(FLOOD).from(addr), &mut into).is_err() {
                        break;
                    }
                    let got = node.poll();
                    let floods: Vec<&Event> = got.iter().filter(|e| !bystander.took(e)).collect();
                    assert_eq!(floods.len(), 1, "{what}: {floods:?}");
                    assert!(ok(floods[0]).len == 2000 && into == pattern(2000, 4), "{what}");
                }
                for tag in [FLOOD, SURE, STREAM_BACK, PONG] {
                    discard_all(node, bystander, tag, what);
                }
                return (took, node.stats().unexpected - unexpected);
            }
            assert!(took < Duration::from_millis(100), "{what}: still open after {took:?} of progress: {open:?}");
        }
    }
}

/// What this thread has had of a core. While it polls that is how long it has made progress, however busy the machine is.
fn worked() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
}

/// Drops what is left of the dead.
fn discard_all(node: &mut Node, bystander: &mut Bystander, tag: u64, what: &str) {
    let until = Deadline::new(10);
    loop {
        node.recvv(Want::tag(tag).with(OpFlags::PEEK | OpFlags::DISCARD), &[], true).expect("peek");
        let mut none = false;
        for e in node.poll() {
            match e {
                e if bystander.took(&e) => {}
                Err(e) if e.error == Error::NoMessage => none = true,
                Ok(_) => {}
                Err(e) => panic!("{what}: {e:?}"),
            }
        }
        if none {
            return;
        }
        until.check(|| format!("{what}: no end of messages {tag}"));
    }
}

/// Sends without end what nobody receives.
fn flooder(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say("here");
    let mut buf = pattern(4096, 1);
    let until = Instant::now() + Duration::from_millis(300);
    let mut i = 0u64;
    while Instant::now() < until && i < 20_000 {
        if node.send(Msg::new(to, FLOOD).data(i), &mut buf).is_ok() {
            i += 1;
        }
        node.poll();
    }
    say(&format!("{i}"));
    std::process::exit(0);
}

/// A flood from another process that ends in the middle: what came is whole and in order, the rest is gone without a trace, and
/// somebody else's message gets past it.
#[test]
fn a_flood_that_ends_with_its_sender() {
    let _dog = watchdog("flood_ends", 60);
    let mut node = Node::new();
    let mut bystander = Bystander::new(&node);
    let mut other = start(&format!("flooder {}", node.name()));
    assert_eq!(other.hear(), "here");
    let until = Deadline::new(20);
    while other.child.try_wait().expect("wait").is_none() {
        bystander.turn(&mut node);
        for e in node.poll() {
            assert!(bystander.took(&e), "{e:?}");
        }
        until.check(|| "no end of the flood".into());
    }
    assert!(bystander.rounds > 0, "held up by a flood");
    let sent: u64 = other.hear().parse().expect("number");
    let mut into = vec![0u8; 4096];
    let (mut came, mut gone, mut next) = (0u64, false, 0);
    while !gone {
        node.recvv(Want::tag(FLOOD).with(OpFlags::PEEK), &[], true).expect("peek");
        let found = node.poll().iter().filter(|e| !bystander.took(e)).any(Result::is_ok);
        if !found {
            // All that is left was never sent whole. (It may take a moment to be noticed.)
            gone = node.stats().lost > 0 || node.stats().peers < 2;
            until.check(|| format!("{came} of {sent}; {:?}", node.stats()));
            continue;
        }
        node.recv(Want::tag(FLOOD), &mut into).expect("recv");
        let got: Vec<Event> = node.poll().into_iter().filter(|e| !bystander.took(e)).collect();
        match got[..] {
            [Ok(c)] => {
                // Those whose payload was still with the sender are gone; no order is broken by that.
                assert!(c.data >= next && into == pattern(4096, 1), "after message {next}: {c:?}");
                next = c.data + 1;
                came += 1;
            }
            // Matched just before the end was noticed.
            [Err(e)] => assert_eq!(e.error, Error::PeerGone),
            _ => until.check(|| format!("{came} of {sent}: {got:?}")),
        }
    }
    assert!(came > 0 && came <= sent, "{came} of {sent}");
    drop(bystander.copy);
}

/// Has memory for others, and at a word makes the kernel keep everybody out of it.
fn reserved() {
    let mut node = Node::new();
    let mut bytes = pattern(5000, 1);
    let region = Region { memory: seg(&mut bytes), access: all_rights(), by_address: false, counter: None };
    node.domain.mr_register(Some(1), region).expect("registered");
    say(&node.name().to_string());
    hear();
    set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("a process may always do that");
    say("closed");
    process::follow_parent();
    loop {
        node.domain.progress();
    }
}

fn all_rights() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE
}

/// The kernel allows transfers at first, then answers EPERM (as ptrace_scope or a container's profile may): the operations in hand and
/// all later ones are carried out by the target's engine, and no byte is lost.
#[test]
fn the_kernel_changes_its_mind_in_mid_job() {
    if not_by_network("the kernel copies nothing between hosts") {
        return;
    }
    process::alone("the_kernel_changes_its_mind_in_mid_job", refused_in_mid_job);
}

fn refused_in_mid_job() {
    let _dog = watchdog("changes its mind", 60);
    // Whoever may trace everybody (root) is not refused: this thread gives that up.
    process::give_up_tracing();
    let mut other = start("reserved");
    let mut a = Node::new();
    let to = peer(&a, &other.hear());
    let mut back = vec![0u8; 5000];
    let mut ours = pattern(5000, 2);
    let (into, from, place) = ([seg(&mut back)], [seg(&mut ours)], [RemoteSeg { addr: 0, len: 5000, key: 1 }]);
    let rma = |node: &mut Node, write: bool, iov: &[UserSeg]| {
        let args = RmaArgs {
            to,
            write,
            iov,
            places: &place,
            data: None,
            ctx: UserCtx(1),
            flags: Some(OpFlags::COMPLETION),
            inject: false,
        };
        node.domain.rma(node.ep, &args).expect("started");
        let until = Deadline::new(10);
        loop {
            if let Some(e) = node.poll().pop() {
                return ok(&e);
            }
            until.check(|| format!("no completion: {:?}", node.stats()));
        }
    };
    rma(&mut a, false, &into);
    assert!(back == pattern(5000, 1));
    rma(&mut a, true, &from);
    if a.stats().direct == 0 {
        return println!("the rest is skipped: the kernel does not allow process_vm_readv here at all");
    }
    assert_eq!((a.stats().direct, a.stats().one_sided), (2, 0));
    other.tell("close");
    assert_eq!(other.hear(), "closed");
    rma(&mut a, false, &into);
    assert!(back == pattern(5000, 2), "what was written before the refusal");
    ours.copy_from_slice(&pattern(5000, 3));
    rma(&mut a, true, &from);
    rma(&mut a, false, &into);
    assert!(back == pattern(5000, 3));
    assert_eq!((a.stats().direct, a.stats().one_sided), (2, 3), "the kernel has refused");
}

/// Bytes of a long message: both sides copy.
const LONG: usize = 1_000_000;
/// Long messages of a phase, each way.
const ECHOES: usize = 4;

/// Answers long messages with themselves, and makes the kernel more and more unkind.
fn echo(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say(&node.name().to_string());
    let mut buf = vec![0u8; LONG];
    loop {
        for _ in 0..ECHOES {
            node.recv(Want::tag(STREAM), &mut buf).expect("recv");
            completions(&mut node, 1);
            node.send(Msg::new(to, STREAM_BACK), &mut buf).expect("send");
            completions(&mut node, 1);
        }
        let stats = node.stats();
        say(&format!("{} {}", stats.stored, stats.declined));
        match hear().as_str() {
            "close" => set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("a process may always do that"),
            "give up" => process::give_up_tracing(),
            _ => return,
        }
    }
}

/// Waits for `n` completions.
#[track_caller]
fn completions(node: &mut Node, n: usize) {
    let until = Deadline::new(10);
    let mut done = 0;
    while done < n {
        done += all_ok(&node.poll());
        until.check(|| format!("{done} of {n} completed: {:?}", node.stats()));
    }
}

/// Long messages while the kernel forbids first one side, then both, to reach the other's memory: no byte is lost, what one side may
/// not the other does, and in the end all goes through the ring.
#[test]
fn the_kernel_forbids_one_side_and_then_both() {
    if not_by_network("the kernel copies nothing between hosts") {
        return;
    }
    process::alone("the_kernel_forbids_one_side_and_then_both", forbidden_by_and_by);
}

fn forbidden_by_and_by() {
    let _dog = watchdog("forbids", 60);
    process::give_up_tracing();
    let mut node = Node::new();
    let mut other = start(&format!("echo {}", node.name()));
    let to = peer(&node, &other.hear());
    let mut phase = 0;
    let (mut theirs, mut ours) = (0, 0);
    // What each side copied, and the messages that had to come as streams after all.
    let mut next = |node: &mut Node, other: &mut Copy| {
        for i in 0..ECHOES {
            phase += 1;
            let (mut there, mut back) = (pattern(LONG, phase * 10 + i), vec![0; LONG]);
            node.recv(Want::tag(STREAM_BACK), &mut back).expect("recv");
            node.send(Msg::new(to, STREAM), &mut there).expect("send");
            completions(node, 2);
            assert!(back == there, "phase {phase}, message {i}");
        }
        let said = other.hear();
        let (stored, declined) = said.split_once(' ').expect("two numbers");
        let stored: u64 = stored.parse().expect("bytes");
        let (s, before) = (node.stats(), (theirs, ours));
        (theirs, ours) = (stored, s.fetched + s.stored);
        (stored - before.0, ours - before.1, declined.parse::<u64>().expect("messages") + s.declined)
    };
    let (_, ours, declined) = next(&mut node, &mut other);
    if ours == 0 {
        return println!("the rest is skipped: the kernel does not allow process_vm_readv here at all");
    }
    assert_eq!(declined, 0);
    // The other one is root, and may still do everything; we may nothing.
    other.tell("close");
    let (stored, ours, declined) = next(&mut node, &mut other);
    let all = (ECHOES * LONG) as u64;
    if rustix::process::geteuid().is_root() {
        // The other one reads what we send and writes what it sends; but for the chunk at which we found out.
        assert!(ours == 0 && stored > all * 9 / 10 && declined <= 1, "{stored} of {all}, {ours}, {declined}");
    }
    other.tell("give up");
    let before = node.stats().stream;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("a process may always do that");
    let (stored, ours, declined) = next(&mut node, &mut other);
    assert_eq!((stored, ours), (0, 0));
    assert!((1..=4).contains(&declined), "found out once or twice in each direction: {declined}");
    assert!(node.stats().stream > before, "{:?}", node.stats());
    other.tell("end");
}
