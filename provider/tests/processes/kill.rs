//! Death at any moment of traffic of all kinds.

use crate::bystander::Bystander;
use crate::common::process::{self, say};
use crate::common::{Deadline, Event, Footprint, Msg, Node, Rng, Want, footprint, number_of, pattern, watchdog, worked};
use crate::{FLOOD, NEVER, PING, PONG, STREAM, STREAM_BACK, SURE, UNMATCHED, ok, peer, start};
use rustmx::{CompFlags, Error, Name, OpFlags};
use std::time::{Duration, Instant};

/// Everything at once, until it is killed: a ping-pong, streams both ways, messages nobody receives, delivery-complete sends.
pub fn traffic(name: &str) {
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

/// Kills a peer at a random moment of traffic of all kinds, many times: what waits for it ends within 100 ms and names it, the
/// bystander's messages go on, nothing hangs and nothing is left over.
#[test]
fn kill_nine_at_any_moment() {
    let _dog = watchdog("kill_nine", 100);
    const KILLS: u64 = 44;
    let seed: u64 = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_260_726);
    println!("seed {seed} (RUSTMX_SEED sets it)");
    process::alone("kill::kill_nine_at_any_moment", || {
        let mut node = Node::new();
        let mut bystander = Bystander::new(&node);
        // What is made once is made now.
        while bystander.rounds < 50 {
            bystander.turn(&mut node);
            assert!(node.poll().iter().all(|e| bystander.took(e)));
        }
        let first = left_over();
        let (mut slowest, mut held) = (Duration::ZERO, 0u64);
        for kill in 0..KILLS {
            let mut rng = Rng(seed.wrapping_mul(1000) + kill);
            let (took, unexpected) = one_kill(&mut node, &mut bystander, &mut rng, &format!("kill {kill} of seed {seed}"));
            slowest = slowest.max(took);
            held += unexpected;
            let until = Deadline::new(2);
            while left_over() != first {
                assert!(node.poll().iter().all(|e| bystander.took(e)));
                until.check(|| {
                    format!(
                        "kill {kill} of seed {seed} left something behind: {:?}, not {first:?}; {}",
                        left_over(),
                        open_files().join(" ")
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

fn open_files() -> Vec<String> {
    let all = std::fs::read_dir("/proc/self/fd").expect("fds").filter_map(Result::ok);
    all.filter_map(|f| std::fs::read_link(f.path()).ok()).map(|p| p.display().to_string()).collect()
}

/// What is open, without what a process makes once, at a moment that depends on how quick the network was: what sends without a copy, and what tells the
/// registration cache of changes.
fn left_over() -> Footprint {
    let files = open_files();
    let once = [
        "anon_inode:[io_uring]",
        "anon_inode:[eventfd]",
        "anon_inode:[userfaultfd]",
        &format!("/proc/{}/maps", std::process::id()),
    ];
    let of_those = once.map(|kind| files.iter().filter(|file| *file == kind).count());
    assert!(of_those.iter().all(|n| *n <= 1), "more than once: {once:?} {of_those:?}");
    // The directory is open while it is read.
    Footprint { fds: files.len() - 1 - of_those.iter().sum::<usize>(), ..footprint() }
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
