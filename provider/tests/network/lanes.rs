//! Long messages by several connections of a pair: they arrive unchanged and in order, whatever becomes of a connection, and whoever lies there.

use crate::common::{Deadline, Msg, Node, Want, all_ok, attr, pattern, watchdog};
use crate::flow::{ends, starve};
use crate::liars::Liar;
use crate::scene::{Scene, connections, is_hung_up, lending, network, open, place, registering};
use rustix::fd::AsRawFd;
use rustix::net::Shutdown;
use rustmx::config::network::Secret;
use rustmx::sys::clock::Clock;
use rustmx::wire::frame::{Body, Frame};
use rustmx::wire::header::Rts;
use rustmx::wire::hello::{BadHello, HELLO_LEN, Hello, Refusal};
use rustmx::{Addr, Config, Error};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

fn by(tcp_lanes: u64) -> Config {
    Config { tcp_lanes, ..network() }
}

/// Two endpoints that have talked.
struct Pair {
    nodes: [Node; 2],
    to: [Addr; 2],
    /// Buffers of receives that may still be posted: what closes may still put something there, and the nodes are dropped before.
    posted: Vec<Buffers>,
}

/// Long ones and short ones of each side.
type Buffers = (Vec<Vec<Vec<u8>>>, Vec<Vec<[u8; 32]>>);

impl Pair {
    fn new(configs: [Config; 2]) -> Pair {
        Pair::of(configs.map(|config| Node::with(config, attr())))
    }

    fn of([mut a, mut b]: [Node; 2]) -> Pair {
        let (to_b, to_a) = (a.knows(&b), b.knows(&a));
        let mut into = [0u8; 8];
        b.recv(Want::tag(0), &mut into).expect("recv");
        a.send(Msg::new(to_b, 0), &mut [1; 8]).expect("send");
        crate::common::run(&mut [&mut a, &mut b], &[1, 1]);
        Pair { nodes: [a, b], to: [to_b, to_a], posted: Vec::new() }
    }

    fn ports(&self) -> [u16; 2] {
        [0, 1].map(|i| place(&self.nodes[i]).port())
    }

    /// Each sends `count` messages of `n` bytes, or only the first of them does, and short ones between. Returns how many operations failed.
    fn exchange(&mut self, n: usize, count: usize, both: bool, mut meanwhile: impl FnMut(usize)) -> usize {
        let senders = if both { 2 } else { 1 };
        let mut out: Vec<Vec<Vec<u8>>> = (0..senders).map(|s| (0..count).map(|i| pattern(n, 7 * s + i)).collect()).collect();
        let mut into = vec![vec![vec![0u8; n]; count]; senders];
        let mut short = vec![vec![[0u8; 32]; count]; senders];
        for s in 0..senders {
            for i in 0..count {
                self.nodes[1 - s].recv(Want::tag(1), &mut into[s][i]).expect("recv");
                self.nodes[1 - s].recv(Want::tag(2), &mut short[s][i]).expect("recv");
            }
        }
        let (mut sent, mut done, mut failed) = (vec![0; senders], 0, 0);
        let until = Deadline::new(100);
        while done + failed < 4 * count * senders {
            for s in 0..senders {
                let i = sent[s] / 2;
                let said = match sent[s] % 2 {
                    _ if i == count => Err(Error::Again),
                    0 => self.nodes[s].send(Msg::new(self.to[s], 1), &mut out[s][i]),
                    _ => self.nodes[s].send(Msg::new(self.to[s], 2), &mut [i as u8 + 1; 32]),
                };
                match said {
                    Ok(()) => sent[s] += 1,
                    Err(Error::Again) => {}
                    Err(_) => {
                        self.posted.push((into, short));
                        return failed + 1;
                    }
                }
            }
            for event in self.nodes.iter_mut().flat_map(|node| node.poll()) {
                *if event.is_ok() { &mut done } else { &mut failed } += 1;
            }
            if failed > 0 && self.nodes.iter().all(|node| node.stats().lost > 0) {
                self.posted.push((into, short));
                return failed;
            }
            meanwhile(done);
            until.check(|| format!("{sent:?} sent, {done} done, {:?}", self.nodes.each_ref().map(|n| n.stats())));
        }
        if failed == 0 {
            assert!(into == out, "a long message is another one");
            for short in short {
                assert!(short.iter().enumerate().all(|(i, b)| *b == [i as u8 + 1; 32]), "short ones are out of order");
            }
        }
        failed
    }

    fn lanes(&self) -> [u64; 2] {
        self.nodes.each_ref().map(|node| node.stats().lanes)
    }
}

#[test]
fn long_messages_both_ways() {
    let _dog = watchdog("lanes", 200);
    for lanes in [1, 2, 4, 8] {
        let mut pair = Pair::new([by(lanes), by(lanes)]);
        for n in [600_000, 1 << 20, 9_999_999] {
            assert_eq!(pair.exchange(n, 8, true, |_| ()), 0);
        }
        assert_eq!(pair.lanes(), [lanes - 1; 2]);
        let striped = pair.nodes.each_ref().map(|node| node.stats().striped);
        assert!(striped.iter().all(|bytes| (*bytes > 0) == (lanes > 1)), "{lanes}: {striped:?}");
    }
}

/// Who was called has no place to call at: it asks, and the other side calls.
#[test]
fn only_one_side_sends() {
    let _dog = watchdog("one side", 100);
    for sender in [0, 1] {
        let mut pair = Pair::new([by(3), by(3)]);
        if sender == 1 {
            pair.nodes.reverse();
            pair.to.reverse();
        }
        for _ in 0..6 {
            assert_eq!(pair.exchange(4 << 20, 4, false, |_| ()), 0);
        }
        assert_eq!(pair.lanes(), [2; 2]);
        assert!(pair.nodes[0].stats().striped > 0 && pair.nodes[1].stats().striped == 0);
    }
}

#[test]
fn with_a_key_and_encrypted() {
    let _dog = watchdog("encrypted", 200);
    for encrypt in [0, 1] {
        let config = || Config { encrypt, auth_key: Secret::new(&[7; 32]), ..by(4) };
        let mut pair = Pair::new([config(), config()]);
        for _ in 0..3 {
            assert_eq!(pair.exchange(3 << 20, 6, true, |_| ()), 0);
        }
        assert_eq!(pair.lanes(), [3; 2]);
    }
}

#[test]
fn tiny_buffers_in_all_of_them() {
    let _dog = watchdog("tiny lanes", 200);
    let mut pair = Pair::new([by(4), by(4)]);
    while pair.lanes() != [3; 2] {
        assert_eq!(pair.exchange(1 << 20, 2, true, |_| ()), 0);
    }
    assert_eq!(starve(pair.ports()), 8);
    assert_eq!(pair.exchange(5 << 20, 3, true, |_| ()), 0);
}

/// Who wants one connection only is not asked twice, and all goes by that.
#[test]
fn a_lane_that_is_refused() {
    let _dog = watchdog("refused lanes", 100);
    for configs in [[by(4), by(1)], [by(1), by(4)]] {
        let mut pair = Pair::new(configs);
        assert_eq!(pair.exchange(2 << 20, 10, true, |_| ()), 0);
        assert_eq!((pair.lanes(), ends(pair.ports()).len()), ([0; 2], 2));
    }
    // And the smaller number counts.
    for configs in [[by(4), by(2)], [by(2), by(4)]] {
        let mut pair = Pair::new(configs);
        for _ in 0..3 {
            assert_eq!(pair.exchange(2 << 20, 4, true, |_| ()), 0);
        }
        assert_eq!(pair.lanes(), [1; 2]);
    }
}

/// What is under way by it is lost: all that waits for the peer ends with an error, on both sides, and nothing hangs.
#[test]
fn a_lane_that_breaks() {
    let _dog = watchdog("broken lanes", 200);
    // Also while the kernel reads the memory of what they carry.
    for (victim, lends) in [(1, network()), (2, network()), (3, network()), (1, lending()), (2, lending()), (3, registering())] {
        let config = || Config { tcp_lanes: 4, ..lends.clone() };
        let mut pair = Pair::new([config(), config()]);
        while pair.lanes() != [3; 2] {
            assert_eq!(pair.exchange(1 << 20, 2, true, |_| ()), 0);
        }
        // Each has been used.
        assert_eq!(pair.exchange(8 << 20, 4, true, |_| ()), 0);
        let ports = pair.ports();
        let mut broken = false;
        let failed = pair.exchange(32 << 20, 4, true, |done| {
            if !broken && done > 4 {
                broken = true;
                // Those of one side are made in order.
                rustix::net::shutdown(ends(ports)[2 * victim], Shutdown::Both).expect("shutdown");
            }
        });
        assert!(broken && failed > 0, "lane {victim}");
    }
}

/// Two whose first one, at that time of its own, calls for a further connection and says hello by it; the second one, who computes, has not read that. The
/// long message that it is for is on its way from `sender`. And how many operations have ended.
fn greeted([ours, theirs]: [Config; 2], time: &Arc<AtomicU64>, sender: usize, out: &mut [u8], into: &mut [u8]) -> (Pair, usize) {
    let mut pair = Pair::of([Node::open(ours, attr(), Clock::Manual(time.clone())), Node::with(theirs, attr())]);
    pair.nodes[1 - sender].recv(Want::tag(1), into).expect("recv");
    pair.nodes[sender].send(Msg::new(pair.to[sender], 1), out).expect("send");
    let (port, until, mut ended) = (pair.ports()[1], Deadline::new(20), 0);
    let calls =
        |made: bool| connections().iter().filter(|r| r.ports[1] == port && (r.established() || !made && r.calls())).count();
    // The second one takes no turn any more as soon as there is a second call.
    while calls(false) < 2 {
        pair.nodes[1].domain.progress();
        ended += pass(&mut pair, time, 0);
        until.check(|| "no lane is called for".into());
    }
    while calls(true) < 2 {
        until.check(|| "it is not connected".into());
    }
    // What there is to be said by it.
    ended += pass(&mut pair, time, 0);
    assert_eq!(pair.lanes(), [0; 2], "nobody has answered");
    (pair, ended)
}

/// The first one takes turns while so many seconds and some milliseconds go by. How many operations have ended.
fn pass(pair: &mut Pair, time: &AtomicU64, seconds: u64) -> usize {
    time.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    let turn = |turn| {
        time.fetch_add(u64::from(turn % 100 == 0) * 1_000_000, Ordering::Relaxed);
        all_ok(&pair.nodes[0].poll())
    };
    (0..1000).map(turn).sum()
}

/// Who has said hello by a lane and gets no answer for long does not give it up: the other side may be a rank that computes, for which the lane is open as
/// soon as it looks. And for neither it is the end of the pair.
#[test]
fn a_lane_that_is_answered_late() {
    let _dog = watchdog("late lanes", 100);
    let encrypted = || Config { encrypt: 1, auth_key: Secret::new(&[7; 32]), ..by(2) };
    for (encrypts, sender, away) in [(false, 0, 1), (false, 1, 1), (false, 0, 0), (false, 1, 0), (true, 0, 1), (true, 1, 1)] {
        let (time, mut out) = (Arc::new(AtomicU64::new(1_000_000_000)), pattern(8 << 20, 5));
        let mut into = vec![0; out.len()];
        let configs = [(); 2].map(|()| if encrypts { encrypted() } else { by(2) });
        let (mut pair, mut came) = greeted(configs, &time, sender, &mut out, &mut into);
        // The lane's time begins.
        came += pass(&mut pair, &time, 1);
        if away == 1 {
            came += pass(&mut pair, &time, 60);
        } else {
            // It is the caller who computes now, and the answer lies there.
            (0..1000).for_each(|_| pair.nodes[1].domain.progress());
            time.fetch_add(60_000_000_000, Ordering::Relaxed);
        }
        let until = Deadline::new(20);
        while came < 2 {
            time.fetch_add(100_000, Ordering::Relaxed);
            came += pair.nodes.iter_mut().map(|node| all_ok(&node.poll())).sum::<usize>();
            until.check(|| format!("{:?}", pair.nodes.each_ref().map(|n| n.stats())));
        }
        assert!(into == out, "another message");
        let tick = |_| _ = time.fetch_add(100_000, Ordering::Relaxed);
        while pair.lanes() != [1; 2] {
            assert_eq!(pair.exchange(1 << 20, 2, true, tick), 0);
            until.check(|| format!("{:?} lanes", pair.lanes()));
        }
        let striped = |pair: &Pair| pair.nodes.each_ref().map(|node| node.stats().striped);
        let before = striped(&pair);
        assert_eq!(pair.exchange(8 << 20, 2, true, tick), 0);
        let after = striped(&pair);
        assert!((0..2).all(|i| after[i] > before[i]), "it carries both ways: {before:?}, {after:?}");
    }
}

/// Messages of which each takes a turn at the least to be read, and places for them. No more than a kernel takes for who reads nothing.
type Words = [Vec<Vec<u8>>; 2];

fn words() -> Words {
    const MESSAGES: usize = 6;
    [(0..MESSAGES).map(|i| pattern(9_000, i)).collect(), vec![vec![0; 9_000]; MESSAGES]]
}

/// The first one says them, while the second one computes.
fn says(pair: &mut Pair, [said, heard]: &mut Words) {
    for (word, place) in said.iter_mut().zip(heard) {
        pair.nodes[1].recv(Want::tag(3), place).expect("recv");
        pair.nodes[0].send(Msg::new(pair.to[0], 3), word).expect("send");
    }
    pair.nodes[0].complete(said.len());
}

fn hears(node: &mut Node, [said, heard]: &Words) {
    let (mut came, until) = (0, Deadline::new(20));
    while came < said.len() {
        came += node.poll().iter().flatten().filter(|done| done.ctx.0 == 3).count();
        until.check(|| format!("{came} came, {:?}", node.stats()));
    }
    assert!(said == heard);
}

/// What it has said before is all read.
#[test]
fn who_closes_before_a_lane_is_answered() {
    let _dog = watchdog("closing early", 60);
    let (time, mut out, mut words) = (Arc::new(AtomicU64::new(1_000_000_000)), pattern(8 << 20, 5), words());
    let (mut into, theirs) = (vec![0; out.len()], by(2));
    // The other one sends: for what it has sent itself it would wait when it closes.
    let (mut pair, _) = greeted([by(2), theirs.clone()], &time, 1, &mut out, &mut into);
    // The lane is at hand as soon as the other one looks: somebody who shares its port has looked.
    let mut sibling = Node::with(theirs, attr());
    assert_eq!(place(&sibling), place(&pair.nodes[1]));
    says(&mut pair, &mut words);
    let Pair { nodes: [caller, mut other], .. } = pair;
    sibling.quiet(2000);
    drop(caller);
    hears(&mut other, &words);
}

/// Nor is that lost which came by the first connection before a lane broke.
#[test]
fn what_came_before_a_lane_broke() {
    let _dog = watchdog("before", 60);
    let (mut pair, mut words) = (Pair::new([by(2), by(2)]), words());
    let (ports, until) = (pair.ports(), Deadline::new(20));
    let first: Vec<i32> = ends(ports).iter().map(AsRawFd::as_raw_fd).collect();
    while pair.lanes() != [1; 2] || pair.nodes.iter().any(|node| node.stats().striped == 0) {
        assert_eq!(pair.exchange(4 << 20, 2, true, |_| ()), 0);
        until.check(|| "no lane".into());
    }
    says(&mut pair, &mut words);
    let lane: Vec<_> = ends(ports).into_iter().filter(|end| !first.contains(&end.as_raw_fd())).collect();
    assert_eq!((first.len(), lane.len()), (2, 2));
    rustix::net::shutdown(lane[0], Shutdown::Both).expect("shutdown");
    hears(&mut pair.nodes[1], &words);
    // And then it is the end.
    while pair.nodes.iter().any(|node| node.stats().lost == 0) {
        pair.nodes.iter_mut().for_each(|node| drop(node.poll()));
        until.check(|| "it is not noticed".into());
    }
}

/// Endpoints that close in good order leave no complaint behind.
#[test]
fn the_end() {
    let _dog = watchdog("lanes end", 100);
    let ((mut a, said), mut b) = (open(by(4)), Node::with(by(4), attr()));
    let to_b = a.knows(&b);
    let mut out = pattern(4 << 20, 1);
    for _ in 0..4 {
        let mut into = vec![0; out.len()];
        b.recv(Want::tag(1), &mut into).expect("recv");
        a.send(Msg::new(to_b, 1), &mut out).expect("send");
        crate::common::run(&mut [&mut a, &mut b], &[1, 1]);
        assert!(into == out);
    }
    assert_eq!(a.stats().lanes, 3);
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || drop(b));
        let until = Deadline::new(20);
        while !closing.is_finished() {
            assert!(a.poll().iter().all(Result::is_ok));
            until.check(|| "it does not close".into());
        }
    });
    for _ in 0..1000 {
        let _ = a.poll();
    }
    assert_eq!((a.stats().lost, said.all()), (0, vec![]));
}

/// A lane by hand, beside a first connection by hand.
struct LyingLane {
    first: Liar,
    lane: TcpStream,
}

/// What the victim says of lanes: the frames behind its hello.
fn token(scene: &mut Scene, liar: &mut Liar) -> u64 {
    let until = Deadline::new(5);
    loop {
        scene.victim.domain.progress();
        assert!(!is_hung_up(&mut liar.stream, &mut liar.heard), "asking is no crime");
        let mut rest = &liar.heard[HELLO_LEN..];
        while let Some((head, behind)) = rest.split_first_chunk() {
            let frame = Frame::parse(*head).expect("sound");
            if let Body::Lanes { token, .. } = frame.body {
                return token;
            }
            rest = behind.get(frame.length()..).unwrap_or_default();
        }
        until.check(|| "no answer about lanes".into());
    }
}

fn lane(scene: &mut Scene) -> LyingLane {
    let mut first = Liar::connect(scene);
    first.body(Body::Lanes { count: 2, token: 0 });
    let token = token(scene, &mut first);
    let mut lane = scene.stranger();
    lane.write_all(Hello::lane(token).as_bytes()).expect("hello");
    let (mut said, until) = (Vec::new(), Deadline::new(5));
    while said.len() < HELLO_LEN {
        scene.victim.domain.progress();
        assert!(!is_hung_up(&mut lane, &mut said), "a sound lane is refused");
        until.check(|| "no answer to a lane".into());
    }
    assert_eq!(Hello::parse(&said).map(|hello| hello.token()), Ok(Some(token)));
    LyingLane { first, lane }
}

/// What was announced is asked for.
fn asked_for(scene: &mut Scene, liar: &mut LyingLane, what: &str) {
    let (before, until) = (liar.first.heard.len(), Deadline::new(5));
    while liar.first.heard.len() < before + 96 {
        scene.victim.domain.progress();
        assert!(!is_hung_up(&mut liar.first.stream, &mut liar.first.heard), "{what}");
        until.check(|| format!("{what}: not asked for"));
    }
}

impl LyingLane {
    fn payload(&mut self, id: u32, offset: u64, bytes: &[u8]) {
        self.body(Body::Payload { id, offset, len: bytes.len() as u32, lent: false, tell: false });
        self.lane.write_all(bytes).expect("write");
    }

    fn body(&mut self, body: Body) {
        self.lane.write_all(&Frame { consumed: 0, credit: 0, body }.emit()).expect("write");
    }
}

type Lie = (&'static str, fn(&mut LyingLane));

/// Of message 1 a thousand bytes are asked for.
const LIES: [Lie; 14] = [
    ("beyond the end", |l| l.payload(1, 500, &[1; 501])),
    ("far beyond", |l| l.payload(1, u64::MAX, &[1; 100])),
    ("another message", |l| l.payload(7, 0, &[1; 100])),
    ("the same twice", |l| (0..2).for_each(|_| l.payload(1, 0, &[1; 100]))),
    ("the same by both", |l| {
        l.payload(1, 100, &[1; 100]);
        l.first.payload(1, 150, &[1; 100]);
        l.first.payload(1, 0, &[1; 100]);
    }),
    ("overlapping", |l| {
        l.payload(1, 100, &[1; 100]);
        l.payload(1, 50, &[1; 51]);
    }),
    ("records", |l| l.body(Body::Records { position: 0, skipped: 0, lines: 1 })),
    ("news", |l| l.body(Body::News)),
    ("that payload was read", |l| l.body(Body::Read { frames: 0 })),
    ("payload that is lent", |l| l.body(Body::Payload { id: 1, offset: 0, len: 100, lent: true, tell: false })),
    ("noise", |l| l.lane.write_all(&[0xa5; 64]).expect("write")),
    ("more behind a goodbye", |l| {
        l.body(Body::Goodbye);
        l.payload(1, 0, &[1; 100]);
    }),
    ("an end without a goodbye", |l| {
        l.payload(1, 0, &[1; 100]);
        l.lane.shutdown(std::net::Shutdown::Write).expect("shutdown");
    }),
    ("an end in the middle", |l| {
        l.body(Body::Payload { id: 1, offset: 0, len: 100, lent: false, tell: false });
        l.lane.shutdown(std::net::Shutdown::Write).expect("shutdown");
    }),
];

#[test]
fn a_lie_on_a_lane_ends_the_connection_and_nothing_else() {
    let _dog = watchdog("lying lanes", 100);
    let mut scene = Scene::with(by(4));
    for (what, lie) in LIES {
        let mut into = vec![0u8; 3000];
        let (lost, mut liar) = (scene.victim.stats().lost, lane(&mut scene));
        let from = scene.victim.av.insert(&liar.first.name);
        scene.victim.recv(Want::tag(1).from(from), &mut into[1000..2000]).expect("recv");
        liar.first.announce(Rts { total: 100_000, stream: 1, promise: 0 }, 1);
        asked_for(&mut scene, &mut liar, what);
        lie(&mut liar);
        scene.hangs_up(&mut liar.first.stream, 5, what);
        scene.hangs_up(&mut liar.lane, 5, what);
        assert_eq!(scene.victim.stats().lost, lost + 1, "{what}");
        scene.exchange();
        let outside = into[..1000].iter().chain(&into[2000..]);
        assert!(outside.into_iter().all(|b| *b == 0), "{what}: written beside the buffer");
    }
}

/// Who gives a lane up before anything went by it has lost nothing, whatever he says by the first connection.
#[test]
fn a_lane_that_ends_before_anything_went_by_it() {
    let _dog = watchdog("unused lanes", 60);
    let (mut scene, mut liars) = (Scene::with(by(4)), Vec::new());
    for end in [Shutdown::Write, Shutdown::Both] {
        let (out, mut into) = (pattern(1000, 4), vec![0u8; 1000]);
        let mut liar = lane(&mut scene);
        let from = scene.victim.av.insert(&liar.first.name);
        scene.victim.recv(Want::tag(1).from(from), &mut into).expect("recv");
        rustix::net::shutdown(&liar.lane, end).expect("shutdown");
        scene.hangs_up(&mut liar.lane, 5, "an unused lane");
        liar.first.announce(Rts { total: 1000, stream: 1, promise: 0 }, 1);
        asked_for(&mut scene, &mut liar, "by the first connection");
        liar.first.payload(1, 0, &out);
        let until = Deadline::new(5);
        while scene.victim.poll().is_empty() {
            until.check(|| "it does not arrive".into());
        }
        assert!(into == out);
        assert_eq!(scene.victim.stats().lost, 0);
        scene.exchange();
        liars.push(liar);
    }
}

/// Pieces in any order, by hand.
#[test]
fn pieces_find_their_places() {
    let _dog = watchdog("pieces", 60);
    let mut scene = Scene::with(by(4));
    let (out, mut into) = (pattern(1000, 4), vec![0u8; 1000]);
    let mut liar = lane(&mut scene);
    let from = scene.victim.av.insert(&liar.first.name);
    scene.victim.recv(Want::tag(1).from(from), &mut into).expect("recv");
    liar.first.announce(Rts { total: 1000, stream: 1, promise: 100 }, 1);
    liar.first.payload(1, 0, &out[..100]);
    asked_for(&mut scene, &mut liar, "pieces");
    let until = Deadline::new(5);
    liar.payload(1, 900, &out[900..]);
    liar.first.payload(1, 500, &out[500..600]);
    liar.payload(1, 100, &out[100..500]);
    for _ in 0..1000 {
        let events = scene.victim.poll();
        assert!(events.is_empty(), "not all of it is here: {events:?}");
    }
    liar.payload(1, 600, &out[600..900]);
    while scene.victim.poll().is_empty() {
        until.check(|| "it does not arrive".into());
    }
    assert!(into == out);
}

/// Words of nobody, and more lanes than are allowed.
#[test]
fn strangers_with_a_wrong_word() {
    let _dog = watchdog("words", 60);
    let mut scene = Scene::with(by(2));
    let liar = lane(&mut scene);
    let mut first = Liar::connect(&mut scene);
    first.body(Body::Lanes { count: u32::MAX, token: 0 });
    let token = token(&mut scene, &mut first);
    for (word, why) in
        [(0, Refusal::WrongEndpoint), (1, Refusal::WrongEndpoint), (token, Refusal::None), (token, Refusal::NoResources)]
    {
        let mut stream = scene.stranger();
        stream.write_all(Hello::lane(word).as_bytes()).expect("hello");
        let said = match why {
            Refusal::None => {
                let (mut said, until) = (Vec::new(), Deadline::new(5));
                while said.len() < HELLO_LEN {
                    scene.victim.domain.progress();
                    assert!(!is_hung_up(&mut stream, &mut said));
                    until.check(|| "no answer".into());
                }
                std::mem::forget(stream);
                said
            }
            _ => scene.hangs_up(&mut stream, 5, "a wrong word"),
        };
        match why {
            Refusal::None => assert!(Hello::parse(&said).is_ok()),
            why => assert_eq!(Hello::parse(&said).map(|_| ()), Err(BadHello::Refused(why)), "{word}"),
        }
        scene.exchange();
    }
    assert_eq!(scene.victim.stats().lost, 0);
    drop(liar);
}
