//! More than there is room for: tiny socket buffers, much both ways at once, a reader that sleeps.

use crate::common::{Deadline, Msg, Node, Want, attr, pattern, watchdog};
use crate::scene::{lending, network, place, registering};
use rustix::fd::BorrowedFd;
use rustix::net::sockopt;
use rustmx::{Addr, Config, Error, Nap, Telling};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The ends of all connections of this process from or to one of `ports`, in the order in which they were made, mostly.
pub fn ends(ports: [u16; 2]) -> Vec<BorrowedFd<'static>> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("fds").filter_map(Result::ok);
    let mut numbers: Vec<i32> = fds.filter_map(|f| f.file_name().to_string_lossy().parse().ok()).collect();
    numbers.sort_unstable();
    let mut ends = Vec::new();
    for number in numbers {
        // SAFETY: other tests of this process may close it meanwhile, and another may get its number: then these calls fail or make
        // another test's socket slower, and nothing is closed.
        #[expect(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(Some(far)) = rustix::net::getpeername(fd) else { continue };
        let Ok(near) = rustix::net::getsockname(fd) else { continue };
        let is_ours = |a: SocketAddr| ports.contains(&a.port());
        if SocketAddr::try_from(far).is_ok_and(is_ours) || SocketAddr::try_from(near).is_ok_and(is_ours) {
            ends.push(fd);
        }
    }
    ends
}

/// As little memory as the kernel works with, for every connection of this process from or to one of `ports`. Returns how many ends there are.
pub fn starve(ports: [u16; 2]) -> usize {
    let ends = ends(ports);
    for fd in &ends {
        sockopt::set_socket_send_buffer_size(fd, 1).expect("SO_SNDBUF");
        // Much less than the window was when the connection began would be given out in crumbs, by the kernel's clock.
        sockopt::set_socket_recv_buffer_size(fd, 64 << 10).expect("SO_RCVBUF");
    }
    ends.len()
}

fn pair() -> (Node, Node, Addr, Addr) {
    pair_with(&network())
}

/// Two that have met.
pub fn pair_with(config: &Config) -> (Node, Node, Addr, Addr) {
    let (mut a, mut b) = (Node::with(config.clone(), attr()), Node::with(config.clone(), attr()));
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    let mut into = [0u8; 8];
    b.recv(Want::tag(0), &mut into).expect("recv");
    a.send(Msg::new(to_b, 0), &mut [1; 8]).expect("send");
    crate::common::run(&mut [&mut a, &mut b], &[1, 1]);
    (a, b, to_b, to_a)
}

/// Both send `n` bytes and short messages between at the same time, with receives posted or not.
fn both_ways(n: usize, tiny: bool, late: bool, config: &Config) {
    let (mut a, mut b, to_b, to_a) = pair_with(config);
    if tiny {
        assert_eq!(starve([place(&a).port(), place(&b).port()]), 2, "two ends");
    }
    const SHORT: usize = 300;
    let mut long: Vec<(Vec<u8>, Vec<u8>)> = (0..2).map(|i| (pattern(n, i), vec![0; n])).collect();
    let mut short = vec![[0u8; 64]; 2 * SHORT];
    let until = Deadline::new(100);
    let (mut sent, mut done, mut posted) = ([0; 2], [0; 2], false);
    loop {
        if !posted && (!late || sent == [SHORT + 1; 2]) {
            posted = true;
            for (node, (half, long)) in [&mut a, &mut b].into_iter().zip(short.chunks_mut(SHORT).zip(&mut long)) {
                node.recv(Want::tag(1), &mut long.1).expect("recv");
                for buf in half {
                    node.recv(Want::tag(2), buf).expect("recv");
                }
            }
        }
        for (i, (node, to)) in [(&mut a, to_b), (&mut b, to_a)].into_iter().enumerate() {
            let said = match sent[i] {
                0 => node.send(Msg::new(to, 1), &mut long[1 - i].0),
                s if s <= SHORT => node.send(Msg::new(to, 2), &mut [s as u8; 64]),
                _ => Err(Error::Again),
            };
            match said {
                Ok(()) => sent[i] += 1,
                Err(why) => assert_eq!(why, Error::Again),
            }
            done[i] += node.poll().iter().filter(|e| e.is_ok()).count();
            assert_eq!(node.stats().lost, 0);
        }
        if done == [2 * (SHORT + 1); 2] {
            break;
        }
        until.check(|| format!("{sent:?} sent, {done:?} done"));
    }
    assert!(long.iter().all(|(out, into)| out == into));
    for half in short.chunks(SHORT) {
        assert!(half.iter().enumerate().all(|(i, b)| *b == [(i + 1) as u8; 64]), "short messages are out of order");
    }
}

#[test]
fn both_sides_send_much_at_once() {
    let _dog = watchdog("both_ways", 240);
    for config in [network(), lending()] {
        both_ways(32 << 20, false, false, &config);
        both_ways(32 << 20, false, true, &config);
    }
}

#[test]
fn tiny_buffers() {
    let _dog = watchdog("tiny", 240);
    for config in [network(), lending()] {
        both_ways(8 << 20, true, false, &config);
        both_ways(8 << 20, true, true, &config);
    }
}

/// What came in one call is taken in one turn, whichever ways it went: a turn for each would be a system call for each.
#[test]
fn a_turn_takes_short_and_longer_messages() {
    let _dog = watchdog("mixed", 60);
    let (mut a, mut b, to_b, _) = pair();
    const COUNT: usize = 30;
    let mut out: Vec<Vec<u8>> = (0..COUNT).map(|i| pattern([8, 1000][i % 2], i)).collect();
    let mut into: Vec<Vec<u8>> = out.iter().map(|o| vec![0; o.len()]).collect();
    for buf in &mut into {
        b.recv(Want::tag(3), buf).expect("recv");
    }
    for buf in &mut out {
        a.send(Msg::new(to_b, 3), buf).expect("send");
    }
    let (mut left, until) = (0, Deadline::new(20));
    while left < COUNT {
        left += crate::common::all_ok(&a.poll());
        until.check(|| format!("{left} left"));
    }
    let (mut came, mut turns) = (0, 0);
    while came < COUNT {
        if let rustmx::CqRead::Got(n) = b.domain.cq_read(b.cq, COUNT, &mut |_| ()) {
            (came, turns) = (came + n, turns + 1);
        }
        until.check(|| format!("{came} came"));
    }
    assert!(into == out);
    assert!(turns < COUNT / 4, "{turns} turns for {COUNT} messages");
}

/// The reader does nothing for three seconds, with a full window; then all is there.
#[test]
fn a_reader_that_computes() {
    let _dog = watchdog("computes", 60);
    let (mut a, mut b, to_b, _) = pair();
    const COUNT: usize = 40;
    let mut out: Vec<Vec<u8>> = (0..COUNT).map(|i| pattern([100, 5000, 1 << 20][i % 3], i)).collect();
    let (mut sent, mut done) = (0, 0);
    let wake = Instant::now() + Duration::from_secs(3);
    while Instant::now() < wake {
        if sent < COUNT && a.send(Msg::new(to_b, 3), &mut out[sent]).is_ok() {
            sent += 1;
        }
        done += crate::common::all_ok(&a.poll());
    }
    let mut into: Vec<Vec<u8>> = out.iter().map(|o| vec![0; o.len()]).collect();
    for buf in &mut into {
        b.recv(Want::tag(3), buf).expect("recv");
    }
    let (mut came, until) = (0, Deadline::new(20));
    while came < COUNT || done < COUNT {
        if sent < COUNT && a.send(Msg::new(to_b, 3), &mut out[sent]).is_ok() {
            sent += 1;
        }
        done += crate::common::all_ok(&a.poll());
        came += crate::common::all_ok(&b.poll());
        until.check(|| format!("{sent} sent, {done} done, {came} came"));
    }
    assert!(into == out);
}

/// A sender that sleeps while the socket is full is woken by room, not by a clock.
#[test]
fn a_sender_that_sleeps_is_woken_by_room() {
    let _dog = watchdog("sleeping_sender", 120);
    sleeps(&network(), 1);
}

/// The last thing that it waits for is that the kernel is through with its memory.
#[test]
fn a_sender_that_sleeps_is_woken_by_the_end_of_a_loan() {
    let _dog = watchdog("sleeping_lender", 120);
    sleeps(&lending(), 1);
    sleeps(&registering(), 3);
}

/// Sends the same memory so many times.
fn sleeps(config: &Config, times: usize) {
    let (mut a, mut b, to_b, _) = pair_with(config);
    const BYTES: usize = 64 << 20;
    let (mut out, mut into) = (pattern(BYTES, 1), vec![0; BYTES]);
    for _ in 0..times {
        into.fill(0);
        sleeps_once([&mut a, &mut b], to_b, [&mut out, &mut into]);
        assert!(into == out);
    }
}

fn sleeps_once([a, b]: [&mut Node; 2], to_b: Addr, [out, into]: [&mut Vec<u8>; 2]) {
    b.recv(Want::tag(4), into).expect("recv");
    let sleeps = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let until = Deadline::new(40);
            // Who is always read from in time has no reason to sleep.
            while !sleeps.load(Ordering::Relaxed) {
                until.check(|| "it never sleeps".into());
                std::thread::yield_now();
            }
            while b.poll().is_empty() {
                until.check(|| format!("nothing came: {:?}", b.stats()));
            }
        });
        let waiter = a.domain.waiter().expect("waiter");
        a.send(Msg::new(to_b, 4), out).expect("send");
        let (mut naps, until) = (0, Deadline::new(40));
        while a.poll().is_empty() {
            if let Nap::Sleep(limit) = a.domain.doze().expect("doze") {
                sleeps.store(true, Ordering::Relaxed);
                waiter.sleep(limit);
                a.domain.awake();
                naps += 1;
            }
            until.check(|| format!("still sending after {naps} naps"));
        }
        reader.join().expect("the reader");
    });
}

/// What became of guesses is counted for each peer, told of each, and still known when the peer is gone.
#[test]
fn guesses_are_counted_for_each_peer() {
    let _dog = watchdog("guesses", 60);
    let config = Config { tcp_eager_max: 232, ..network() };
    let mut nodes: Vec<Node> = (0..3).map(|_| Node::with(config.clone(), attr())).collect();
    // What one of them sends, the other one of them never does.
    let (n, times) = (1 << 20, 8);
    let mut bufs = [pattern(n, 1), vec![0; n], pattern(8, 2), vec![0; 8]];
    let [long, into, short, little] = &mut bufs;
    let [a, b, c] = &mut nodes[..] else { unreachable!() };
    let (from_b, from_c, from_peer) = (b.knows(a), c.knows(a), a.knows(b));
    for _ in 0..times {
        a.recv(Want::tag(1), into).expect("recv");
        a.recv(Want::tag(2), little).expect("recv");
        b.send(Msg::new(from_b, 1), long).expect("send");
        c.send(Msg::new(from_c, 2), short).expect("send");
        crate::common::run(&mut [a, b, c], &[2, 1, 1]);
    }
    let told = |a: &Node, telling| a.domain.ep_history(a.ep, telling).expect("told");
    let stats = a.stats();
    assert!(stats.guessed > 0 && stats.guess_placed > 0, "{stats:?}");
    assert!(stats.guess_placed + stats.guess_moved <= (n * times) as u64 + (64 << 10), "{stats:?}");
    let json = told(a, Telling::Json);
    let about: Vec<&str> = json.lines().filter(|l| l.contains("\"about\":\"guesses\"")).collect();
    let [line] = about[..] else { panic!("of one peer something was guessed: {json}") };
    for (name, value) in [("right", stats.guessed), ("wrong", stats.misguessed), ("placed", stats.guess_placed)] {
        assert!(line.contains(&format!("\"{name}\":{value},")), "{name} {value}: {line}");
    }
    let all = told(a, Telling::All);
    assert!(all.contains(&format!("belong: {} right", stats.guessed)), "{all}");
    // Its end is noticed when something waits for it.
    let mut never = [0u8; 8];
    a.recv(Want::tag(3).from(from_peer), &mut never).expect("recv");
    drop(nodes.remove(1));
    let until = Deadline::new(20);
    while nodes[0].poll().is_empty() {
        until.check(|| "the end of a peer".into());
    }
    let after = nodes[0].stats();
    assert_eq!(
        (after.lost, after.guessed, after.guess_placed),
        (1, stats.guessed, stats.guess_placed),
        "the connection is no more"
    );
}
