//! Long messages that the kernel is given to be read where they are (`FI_RUSTMX_TCP_ZEROCOPY=always`, `uring`). Their memory is overwritten as soon as their
//! completion says that it may be, and what arrives must be what was sent. (Over the loopback interface the kernel copies, but not before
//! a packet leaves: while the reader is behind, it reads the sender's memory much later than the call that gave it.)

use crate::common::process::{copy, follow_parent, role, say};
use crate::common::{Deadline, Msg, Node, Rng, Want, all_ok, attr, pattern, watchdog};
use crate::flow::{pair_with, starve};
use crate::scene::{lending, network, paging, place, registering};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustmx::config::network::Secret;
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
    if config.tcp_zerocopy == 4 {
        assert!(stats.zerocopy > 0 && stats.zerocopy_copied == 0, "{stats:?}");
    } else if config.tcp_zerocopy != 0 {
        // Not all of it where this user may pin little.
        assert!(stats.zerocopy > 0, "{stats:?}");
        assert!(stats.zerocopy_copied > 0, "the loopback interface has no network card: {stats:?}");
        let all: usize = sizes.iter().sum();
        // More than the first connection carried.
        assert!(
            config.tcp_lanes < 2 || stats.striped > 0 && stats.zerocopy > all as u64 - stats.striped,
            "{all} bytes, {stats:?}"
        );
    } else {
        assert_eq!(stats.zerocopy_copied, 0);
        // Those that wait behind others, at least the first few to see what that costs.
        assert!(slow == 1 || stats.zerocopy > 0, "{stats:?}");
    }
}

#[test]
fn what_is_overwritten_when_it_may_be_arrives_as_it_was() {
    let _dog = watchdog("overwrites", 240);
    sends_and_overwrites(&lending(), 300, 20, false);
    sends_and_overwrites(&registering(), 300, 20, false);
    sends_and_overwrites(&paging(), 300, 20, false);
}

#[test]
fn the_same_with_tiny_buffers() {
    let _dog = watchdog("overwrites_tiny", 240);
    sends_and_overwrites(&lending(), 60, 2, true);
    sends_and_overwrites(&registering(), 60, 2, true);
    sends_and_overwrites(&paging(), 60, 2, true);
}

/// By several connections, of which each says for itself when it is through with a piece.
#[test]
fn the_same_by_several_connections() {
    let _dog = watchdog("overwrites_lanes", 240);
    for config in [lending(), registering(), paging()] {
        let config = Config { tcp_lanes: 4, ..config };
        sends_and_overwrites(&config, 100, 20, false);
        sends_and_overwrites(&config, 30, 2, true);
    }
}

/// Memory at an address that mostly stays, whatever is mapped there.
struct Place(usize);

const LONGEST: usize = 3_000_000;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

#[expect(unsafe_code, reason = "what programs do to their memory between messages")]
impl Place {
    fn new() -> Place {
        // SAFETY: fresh memory, which stays to the end of the process.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), LONGEST, RW, MapFlags::PRIVATE) };
        Place(at.expect("map") as usize)
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: all of it is mapped but in `change`, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, len) }
    }

    fn change(&mut self, rng: &mut Rng) {
        let at = self.0 as *mut _;
        // SAFETY: nothing in this memory is looked at, and it is mapped again when this ends.
        unsafe {
            match rng.below(5) {
                0 => rustix::mm::madvise(at, LONGEST, Advice::LinuxDontNeed).expect("empty"),
                1 => {
                    rustix::mm::munmap(at, LONGEST).expect("unmap");
                    match rustix::mm::mmap_anonymous(at, LONGEST, RW, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE) {
                        // Another test's thread was quicker to map something there.
                        Err(Errno::EXIST) => *self = Place::new(),
                        mapped => _ = mapped.expect("map"),
                    }
                }
                2 => {
                    let other = rustix::mm::mmap_anonymous(std::ptr::null_mut(), LONGEST, RW, MapFlags::PRIVATE).expect("map");
                    rustix::mm::mremap_fixed(other, LONGEST, LONGEST, MremapFlags::MAYMOVE, at).expect("move");
                }
                _ => {}
            }
        }
    }
}

/// The same memory again and again: it is registered; and between two messages what is mapped there is sometimes emptied or replaced. All bytes are those that the
/// program sees.
#[test]
fn memory_that_changes_between_messages() {
    let _dog = watchdog("changes", 240);
    let (mut a, mut b, to_b, _) = pair_with(&registering());
    let (mut rng, mut places) = (Rng(11), [(); WINDOW].map(|()| Place::new()));
    let mut into = vec![0; LONGEST];
    let until = Deadline::new(200);
    let mut starved = false;
    for round in 0..60 {
        if round == 40 {
            starved = starve([place(&a).port(), place(&b).port()]) == 2;
        }
        let mut sizes = [0; WINDOW];
        for (at, place) in places.iter_mut().enumerate() {
            if rng.one_in(3) {
                place.change(&mut rng);
            }
            sizes[at] = rng.pick(&[40_000, 100_000, 300_000, if starved { 500_000 } else { LONGEST }]);
            place.bytes(sizes[at]).copy_from_slice(&pattern(sizes[at], round * WINDOW + at));
            a.send(Msg::new(to_b, at as u64).ctx(at), place.bytes(sizes[at])).expect("send");
        }
        let (mut sent, mut came) = (0, 0);
        for (at, size) in sizes.into_iter().enumerate() {
            b.recv(Want::tag(at as u64), &mut into[..size]).expect("recv");
            while came == at {
                for event in a.poll() {
                    let at = event.expect("sent").ctx.0;
                    places[at].bytes(sizes[at]).fill(0xee);
                    sent += 1;
                }
                came += all_ok(&b.poll());
                until.check(|| format!("round {round}: {sent} sent, {came} came, {:?}", a.stats()));
            }
            assert!(
                into[..size] == pattern(size, round * WINDOW + at),
                "round {round}: message {at} of {size} bytes was altered"
            );
        }
        while sent < WINDOW {
            sent += all_ok(&a.poll());
            until.check(|| format!("round {round}: {sent} sent, {:?}", a.stats()));
        }
    }
    let (stats, told) = (a.stats(), a.domain.ep_history(a.ep, Telling::All).expect("told"));
    let on = told.contains("registered buffers: on for 1 of the connections to other hosts: FI_RUSTMX_TCP_ZEROCOPY=uring");
    assert_eq!(stats.zerocopy_registered > 0, on, "{stats:?}: {told}");
}

/// Inside a host pages are sent, if that pays, and nothing else is tried unless it is asked for; and that is told, with why.
#[test]
fn what_it_is_inside_a_host_is_told() {
    let _dog = watchdog("off", 100);
    sends_and_overwrites(&network(), 300, 20, false);
    sends_and_overwrites(&network(), 30, 1, false);
    for (config, says) in [
        (network(), "pages that the receiver reads: off for 1 of the connections to other hosts: too few long messages"),
        (paging(), "pages that the receiver reads: on for 1 of the connections to other hosts: FI_RUSTMX_TCP_ZEROCOPY=pages"),
        (Config { encrypt: 1, auth_key: Secret::new(&[7; 32]), ..network() }, "what is encrypted is copied by that"),
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
    for (round, config) in
        [lending(), lending(), lending(), registering(), registering(), paging(), paging()].into_iter().enumerate()
    {
        let mut node = Node::with(config.clone(), attr());
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
        let mut out: Vec<Vec<u8>> = (0..4).map(|i| pattern(200_000 + round % 3 * 500_000, i)).collect();
        // They are registered when they have been sent some times, to whomever.
        let mut reader = Node::with(config, attr());
        let to_reader = node.knows(&reader);
        for buffer in &mut out {
            for _ in 0..3 {
                let mut into = vec![0; buffer.len()];
                reader.recv(Want::tag(9), &mut into).expect("recv");
                node.send(Msg::new(to_reader, 9), buffer).expect("send");
                crate::common::run(&mut [&mut node, &mut reader], &[1, 1]);
            }
        }
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
