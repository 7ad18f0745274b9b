//! Long messages that the kernel is given to be read where they are (`FI_RUSTMX_TCP_ZEROCOPY=always`). Their memory is overwritten as soon as their
//! completion says that it may be, and what arrives must be what was sent. (Over the loopback interface the kernel copies, but not before
//! a packet leaves: while the reader is behind, it reads the sender's memory much later than the call that gave it.)

use crate::common::process::{copy, follow_parent, role, say};
use crate::common::{Deadline, Msg, Node, Rng, Want, all_ok, attr, pattern, watchdog};
use crate::flow::{pair_with, starve};
use crate::scene::{lending, network, place};
use rustmx::{Config, Error, Name, Telling};

/// What is sent at a time, and what is on its way.
const WINDOW: usize = 6;

/// `count` messages from buffers that are overwritten as soon as they may be. The reader takes one turn in `slow`.
fn sends_and_overwrites(config: &Config, count: usize, slow: u64, tiny: bool) {
    let (mut a, mut b, to_b, _) = pair_with(config);
    if tiny {
        assert_eq!(starve([place(&a).port(), place(&b).port()]), 2, "two ends");
    }
    let mut rng = Rng(7);
    let sizes: Vec<usize> = (0..count).map(|_| rng.pick(&[10_000, 40_000, 100_000, 300_000, 1 << 20, 3_000_000])).collect();
    let mut out: Vec<Vec<u8>> = vec![Vec::new(); WINDOW];
    let mut into: Vec<Vec<u8>> = vec![Vec::new(); WINDOW];
    let (mut busy, mut expected) = ([false; WINDOW], [false; WINDOW]);
    let (mut sent, mut posted, mut came) = (0, 0, 0);
    let until = Deadline::new(200);
    while came < count || busy.contains(&true) {
        if sent < count && !busy[sent % WINDOW] {
            let buffer = &mut out[sent % WINDOW];
            if buffer.is_empty() {
                *buffer = pattern(sizes[sent], sent);
            }
            match a.send(Msg::new(to_b, sent as u64).ctx(sent), buffer) {
                Ok(()) => (busy[sent % WINDOW], sent) = (true, sent + 1),
                Err(why) => assert_eq!(why, Error::Again),
            }
        }
        for event in a.poll() {
            let at = event.expect("sent").ctx.0 % WINDOW;
            // The same memory, not only other memory: it is given to the next message of this place as it is.
            out[at].fill(0xee);
            out[at] = Vec::new();
            busy[at] = false;
        }
        if !rng.one_in(slow) {
            continue;
        }
        while posted < count && !expected[posted % WINDOW] {
            expected[posted % WINDOW] = true;
            into[posted % WINDOW] = vec![0; sizes[posted]];
            b.recv(Want::tag(posted as u64).ctx(posted), &mut into[posted % WINDOW]).expect("recv");
            posted += 1;
        }
        for event in b.poll() {
            let at = event.expect("came").ctx.0;
            assert!(into[at % WINDOW] == pattern(sizes[at], at), "message {at} of {} bytes was altered", sizes[at]);
            expected[at % WINDOW] = false;
            came += 1;
        }
        until.check(|| format!("{sent} sent, {came} came, {busy:?}, {:?}", a.stats()));
    }
    let stats = a.stats();
    if config.tcp_zerocopy == 1 {
        // Not all of it where this user may pin little.
        assert!(stats.zerocopy > 0, "{stats:?}");
        assert!(stats.zerocopy_copied > 0, "the loopback interface has no network card: {stats:?}");
    } else {
        assert_eq!((stats.zerocopy, stats.zerocopy_copied), (0, 0));
    }
}

#[test]
fn what_is_overwritten_when_it_may_be_arrives_as_it_was() {
    let _dog = watchdog("overwrites", 240);
    sends_and_overwrites(&lending(), 300, 20, false);
}

#[test]
fn the_same_with_tiny_buffers() {
    let _dog = watchdog("overwrites_tiny", 240);
    sends_and_overwrites(&lending(), 60, 2, true);
}

/// Inside a host it is not even tried unless it is asked for; and that is told, with why.
#[test]
fn it_is_off_inside_a_host() {
    let _dog = watchdog("off", 100);
    sends_and_overwrites(&network(), 30, 1, false);
    for (config, says) in [
        (network(), "off for 1 of the connections to other hosts: both ends are on this host"),
        (Config { tcp_zerocopy: 2, ..network() }, "off for 1 of the connections to other hosts: FI_RUSTMX_TCP_ZEROCOPY=never"),
        (lending(), "on for 1 of the connections to other hosts: FI_RUSTMX_TCP_ZEROCOPY=always"),
    ] {
        let (mut a, mut b, to_b, _) = pair_with(&config);
        let (mut out, mut into) = (pattern(100_000, 1), vec![0; 100_000]);
        b.recv(Want::tag(1), &mut into).expect("recv");
        a.send(Msg::new(to_b, 1), &mut out).expect("send");
        crate::common::run(&mut [&mut a, &mut b], &[1, 1]);
        let told = a.domain.ep_history(a.ep, Telling::All).expect("told");
        assert!(told.contains(says), "{told}");
    }
}

/// Not a test of its own: what the copy of this program does. Answers, and reads nothing from then on.
#[test]
fn victim() {
    let Some(words) = role() else { return };
    let mut node = Node::with(network(), attr());
    say(&node.name().to_string());
    let _ = node.av.insert(&words[1].parse::<Name>().expect("a name"));
    let mut into = [0; 8];
    node.recv(Want::tag(1), &mut into).expect("recv");
    let until = Deadline::new(100);
    while all_ok(&node.poll()) == 0 {
        until.check(|| "no message".into());
    }
    say("here");
    follow_parent();
    loop {
        std::thread::park();
    }
}

/// A peer that dies while the kernel reads our memory: every send ends, and so does the endpoint.
#[test]
fn a_peer_that_is_killed_with_loans_outstanding() {
    let _dog = watchdog("killed", 100);
    for round in 0..3 {
        let mut node = Node::with(lending(), attr());
        let mut victim = copy("zerocopy::victim", &format!("victim {}", node.name()));
        let to = node.av.insert(&victim.hear().parse::<Name>().expect("name"));
        node.send(Msg::new(to, 1), &mut [1; 8]).expect("send");
        let until = Deadline::new(50);
        let mut done = 0;
        while done == 0 || victim.heard().as_deref() != Some("here") {
            done += all_ok(&node.poll());
            until.check(|| "it does not answer".into());
        }
        // Its window takes some of them; the rest waits for room, or to be asked for.
        let mut out: Vec<Vec<u8>> = (0..4).map(|i| pattern(200_000 + round * 500_000, i)).collect();
        for (i, buffer) in out.iter_mut().enumerate() {
            node.send(Msg::new(to, 2).ctx(i), buffer).expect("send");
        }
        node.quiet(100);
        assert!(node.stats().zerocopy > 0, "{:?}", node.stats());
        victim.kill();
        let mut failed = 0;
        while failed < out.len() {
            for event in node.poll() {
                let error = event.expect_err("nobody took it");
                assert_eq!(error.error, Error::PeerGone);
                failed += 1;
            }
            until.check(|| format!("{failed} of {} ended", out.len()));
        }
    }
}
