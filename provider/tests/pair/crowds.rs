//! More messages than there is room for: floods, streams in both directions, many peers, and a peer that does not poll.

use crate::common::{
    Deadline, Event, Msg, Node, Rng, Want, all_ok, attr, by_network_only, pattern, process, push, run, watchdog,
};
use crate::{memory, ok, pair};
use rustmx::{Addr, CompFlags, Config, Error, INJECT_MAX, INLINE_MAX, OpFlags};

/// 10 000 messages that nobody asked for: order kept, the receiver's memory bounded by its window, and what somebody does ask for gets past.
#[test]
fn a_flood_of_unexpected_messages() {
    process::alone("crowds::a_flood_of_unexpected_messages", || {
        let _dog = watchdog("flood", 150);
        const COUNT: usize = 10_000;
        for n in [4096usize, 200, 9000] {
            let (mut a, mut b, to_b, _) = pair();
            let mut bufs: Vec<Vec<u8>> = (0..64).map(|i| pattern(n, i)).collect();
            let before = memory::in_use();
            let (mut sent, mut came) = (Vec::new(), 0usize);
            for i in 0..COUNT {
                let (s, r) = push(&mut a, &mut b, Msg::new(to_b, 5).data(i as u64).ctx(i), &mut bufs[i % 64]);
                sent.extend(s);
                came += r.len();
            }
            let until = Deadline::new(if by_network_only() { 60 } else { 20 });
            while b.stats().unexpected < COUNT as u64 {
                came += b.poll().len();
                sent.extend(a.poll());
                until.check(|| format!("envelopes are stuck: {:?}", b.stats()));
            }
            assert_eq!(came, 0);
            // Both endpoints live here: envelopes (and states of the sender) for 10 000, payload for one window. An offer, which names
            // its pieces of memory, is the largest.
            let grown = memory::in_use().saturating_sub(before) - (sent.capacity() * size_of::<Event>()) as i64;
            let payload = if n <= INLINE_MAX { COUNT * n.next_multiple_of(512) } else { 1 << 20 };
            assert!(grown < (payload + COUNT * 1000) as i64, "{grown} bytes for {COUNT} envelopes of {n} bytes");
            // What is wanted gets past.
            let (mut out, mut into) = (pattern(n, 777), vec![0u8; n]);
            b.recv(Want::tag(6), &mut into).expect("recv");
            let (s, mut got) = push(&mut a, &mut b, Msg::new(to_b, 6).ctx(COUNT), &mut out);
            sent.extend(s);
            while got.is_empty() {
                sent.extend(a.poll());
                got.extend(b.poll());
                until.check(|| "the wanted message does not get past".into());
            }
            assert_eq!(ok(&got[0]).tag, 6);
            assert_eq!(into, out);
            // And then all the others, in order.
            for i in 0..COUNT {
                b.recv(Want::any(), &mut into).expect("recv");
                let mut got = b.poll();
                while got.is_empty() {
                    sent.extend(a.poll());
                    got.extend(b.poll());
                    until.check(|| format!("message {i}"));
                }
                assert_eq!((ok(&got[0]).data, got.len()), (i as u64, 1), "order");
                assert_eq!(into, bufs[i % 64], "message {i}");
            }
            while sent.len() < COUNT + 1 {
                sent.extend(a.poll());
                b.quiet(1);
                until.check(|| format!("{} of {COUNT} sends completed", sent.len()));
            }
            assert!(sent.iter().all(Result::is_ok));
            // All of the window came back: an eager message is possible again.
            let eager = a.stats().eager;
            a.send(Msg::new(to_b, 7), &mut bufs[0][..n.min(4096)]).expect("send");
            assert!(n <= INLINE_MAX || a.stats().eager == eager + 1, "the window leaks");
        }
    });
}

/// A receiver's window that is used up by messages for one tag does not hold up streams for another, in both directions at once.
#[test]
fn both_sides_stream_at_each_other() {
    let _dog = watchdog("both_stream", 60);
    let (mut a, mut b, to_b, from_a) = pair();
    const N: usize = 8 << 20;
    let (mut out_a, mut out_b) = (pattern(N, 1), pattern(N, 2));
    for early in [true, false] {
        let (mut in_a, mut in_b) = (vec![0u8; N], vec![0u8; N]);
        let level = OpFlags::DELIVERY_COMPLETE;
        if early {
            a.recv(Want::tag(1), &mut in_a).expect("recv");
            b.recv(Want::tag(1), &mut in_b).expect("recv");
        }
        a.send(Msg::new(to_b, 1).with(level), &mut out_a).expect("send");
        b.send(Msg::new(from_a, 1).with(level), &mut out_b).expect("send");
        if !early {
            for _ in 0..1000 {
                a.quiet(1);
                b.quiet(1);
            }
            a.recv(Want::tag(1), &mut in_a).expect("recv");
            b.recv(Want::tag(1), &mut in_b).expect("recv");
        }
        let got = run(&mut [&mut a, &mut b], &[2, 2]);
        assert!(got.iter().flatten().all(Result::is_ok));
        assert!(in_a == out_b && in_b == out_a);
    }
}

/// Many small ones, many streams and back, all at once: no order of rings filling up may stop it.
#[test]
fn both_sides_flood_and_stream_through_small_rings() {
    let _dog = watchdog("small_rings", 60);
    for ring_size in [8 << 10, 24 << 10] {
        for eager_window in [16 << 10, 128 << 10] {
            let config = Config { ring_size, eager_window, ..Config::default() };
            let mut n = [Node::with(config.clone(), attr()), Node::with(config, attr())];
            let to = [n[0].knows(&n[1]), n[1].knows(&n[0])];
            let sizes = [100usize, 20_000, 3000, 8, 150_000, 0, 600];
            let mut out: Vec<Vec<u8>> = (0..70).map(|i| pattern(sizes[i % 7], i)).collect();
            let mut into: Vec<Vec<Vec<u8>>> = (0..2).map(|_| (0..70).map(|i| vec![0u8; sizes[i % 7]]).collect()).collect();
            let (mut next, mut sent, mut got, mut posted) = ([0; 2], [0; 2], [0; 2], [0; 2]);
            let until = Deadline::new(20);
            while sent != [70; 2] || got != [70; 2] {
                for i in 0..2 {
                    while next[i] < 70 && n[i].send(Msg::new(to[i], next[i] as u64), &mut out[next[i]]).is_ok() {
                        next[i] += 1;
                    }
                    // Receives come late, and in another order than the messages.
                    if next[i] == 70 && posted[i] < 70 {
                        let tag = 69 - posted[i];
                        n[i].recv(Want::tag(tag as u64), &mut into[i][tag]).expect("recv");
                        posted[i] += 1;
                    }
                    for c in n[i].poll().iter().map(ok) {
                        if c.flags.contains(CompFlags::RECV) { got[i] += 1 } else { sent[i] += 1 }
                    }
                }
                until.check(|| format!("{next:?} {sent:?} {posted:?} {got:?}"));
            }
            assert!(into[0] == out && into[1] == out);
        }
    }
}

/// More peers than are polled directly, for every number of those: nothing is lost, every peer's order is kept, and answers find back.
#[test]
fn many_peers() {
    let _dog = watchdog("many_peers", 60);
    for hot_peers in [1u64, 2, 3, 5, 8] {
        let mut b = Node::with(Config { hot_peers, ..Config::default() }, attr());
        let mut senders: Vec<Node> = (0..70).map(|_| Node::new()).collect();
        let to_b: Vec<Addr> = senders.iter().map(|a| a.knows(&b)).collect();
        let back: Vec<Addr> = senders.iter().map(|a| b.knows(a)).collect();
        let sizes = [8usize, 300, 0, 6000];
        const EACH: usize = 12;
        let mut out: Vec<Vec<Vec<u8>>> =
            (0..70).map(|s| (0..EACH).map(|i| pattern(sizes[(i + s) % 4], s * 50 + i)).collect()).collect();
        let (mut next, mut seen, mut done) = (vec![0usize; 70], vec![0usize; 70], vec![0usize; 70]);
        let (mut into, mut reply, mut replies) = (vec![0u8; 6000], [1u8; 4], vec![[0u8; 4]; 70]);
        for (a, buf) in senders.iter_mut().zip(&mut replies) {
            a.recv(Want::tag(1000), buf).expect("recv");
        }
        b.recv(Want::any(), &mut into).expect("recv");
        let mut rng = Rng(hot_peers);
        let until = Deadline::new(20);
        let mut answered = 0;
        while done.iter().any(|d| *d < EACH) || answered < 70 {
            let s = rng.range(0, 70);
            if next[s] < EACH && senders[s].send(Msg::new(to_b[s], next[s] as u64).data(s as u64), &mut out[s][next[s]]).is_ok() {
                next[s] += 1;
            }
            for (s, a) in senders.iter_mut().enumerate() {
                for c in a.poll().iter().map(ok) {
                    if c.flags.contains(CompFlags::RECV) { answered += 1 } else { done[s] += 1 }
                }
            }
            for c in b.poll().iter().map(ok) {
                if c.flags.contains(CompFlags::SEND) {
                    continue;
                }
                let s = c.data as usize;
                assert_eq!((c.tag, c.src), (seen[s] as u64, back[s]), "order of peer {s} with {hot_peers} hot peers");
                assert_eq!(&into[..c.len], &out[s][seen[s]][..]);
                seen[s] += 1;
                if seen[s] == EACH {
                    b.send(Msg::new(back[s], 1000), &mut reply).expect("reply");
                }
                b.recv(Want::any(), &mut into).expect("recv");
            }
            until.check(|| format!("{hot_peers} hot peers: {seen:?}"));
        }
    }
}

/// A client may wait inside its send (MPICH does) and must then not wait for a peer that computes: messages far beyond the ring
/// are accepted, keep their order and bytes, and an inject call's buffer is free at once.
#[test]
fn sends_do_not_wait_for_a_peer_that_computes() {
    let _dog = watchdog("computes", 60);
    let config = Config { ring_size: 24 << 10, ..Config::default() };
    let (mut a, mut b) = (Node::with(config.clone(), attr()), Node::with(config, attr()));
    let to = a.knows(&b);
    let lens = [400usize, 100, 40_000, 4_000, 232, 400_000, 8];
    let mut out: Vec<Vec<u8>> = (0..500).map(|i| pattern(lens[i % lens.len()], i)).collect();
    let (mut patience, mut sent) = (500, Vec::new());
    for (i, bytes) in out.iter_mut().enumerate() {
        let m = Msg::new(to, 7).ctx(i);
        if bytes.len() <= INJECT_MAX && i % 2 == 0 {
            while a.send(m.inject(), bytes) == Err(Error::Again) {
                (patience, sent) = (patience - 1, [sent, a.poll()].concat());
                assert!(patience > 0, "it waits");
            }
            bytes.fill(0);
        } else {
            a.send(m, bytes).expect("sent");
        }
    }
    // By network it is larger.
    assert!(by_network_only() || a.stats().ring_full > 0, "the ring was never full");
    let until = Deadline::new(30);
    for i in 0..500 {
        let mut into = vec![0u8; lens[i % lens.len()]];
        b.recv(Want::tag(7).ctx(i), &mut into).expect("recv");
        let mut got = Vec::new();
        while got.is_empty() {
            got = b.poll();
            sent.extend(a.poll());
            until.check(|| format!("message {i} does not come"));
        }
        assert_eq!(all_ok(&got), 1);
        assert!(into == pattern(lens[i % lens.len()], i), "message {i}");
    }
    let injected = (0..500).filter(|i| i % 2 == 0 && lens[i % lens.len()] <= INJECT_MAX).count();
    // What the kernel reads in place is the sender's again a little after it has arrived.
    while sent.len() < 500 - injected {
        sent.extend(a.poll());
        until.check(|| format!("{} were sent", sent.len()));
    }
    sent.extend(a.poll());
    assert_eq!(all_ok(&sent), 500 - injected);
    // There is an end to it.
    let mut bytes = pattern(200, 1);
    let refused = (0..100_000).find(|_| a.send(Msg::new(to, 8), &mut bytes) == Err(Error::Again));
    assert!(refused.is_some_and(|n| n > 1000), "{refused:?}");
}
