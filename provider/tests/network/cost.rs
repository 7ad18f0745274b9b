//! What a peer costs in memory, by real sockets: no more than `docs/scaling.md` says.

use crate::common::process::{copy, hear, role, say};
use crate::common::{Deadline, Msg, Node, Want, attr, pattern, process, watchdog};
use crate::scene::network;
use rustmx::config::network::Secret;
use rustmx::{Addr, Config, Name};

const LONG: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// What peers do with the one whose memory is looked at.
#[derive(Clone, Copy)]
struct Way {
    lanes: u64,
    encrypt: bool,
    /// So many times a long message each way, and so many of a kilobyte.
    rounds: usize,
    short: usize,
}

impl Way {
    fn config(&self) -> Config {
        let key = if self.encrypt { Secret::new(&[7; 32]) } else { Secret::default() };
        Config { tcp_lanes: self.lanes, encrypt: self.encrypt.into(), auth_key: key, ..network() }
    }

    fn words(&self) -> String {
        format!("{} {} {} {}", self.lanes, u8::from(self.encrypt), self.rounds, self.short)
    }

    fn heard(words: &[String]) -> Way {
        let [lanes, encrypt, rounds, short] = [0, 1, 2, 3].map(|i| words[i].parse::<usize>().expect("a number"));
        Way { lanes: lanes as u64, encrypt: encrypt == 1, rounds, short }
    }
}

/// Memory that messages come from and go to, whoever's they are.
struct Buffers {
    out: Vec<u8>,
    into: Vec<u8>,
    short: [u8; KIB],
    little: [u8; KIB],
}

impl Buffers {
    fn new() -> Buffers {
        Buffers { out: pattern(KIB, 1).repeat(LONG / KIB), into: vec![1; LONG], short: [1; KIB], little: [0; KIB] }
    }

    /// Talks with one who does the same.
    fn talk(&mut self, node: &mut Node, to: Addr, way: Way) {
        let until = Deadline::new(60);
        for _ in 0..way.rounds {
            self.into.fill(0);
            node.recv(Want::tag(1).from(to), &mut self.into).expect("recv");
            for _ in 0..way.short {
                node.recv(Want::tag(2).from(to), &mut self.little).expect("recv");
            }
            // Nothing comes before there is a receive: what is kept until then is another cost.
            let (mut go, mut gone) = ([0; 8], [1; 8]);
            node.recv(Want::tag(3).from(to), &mut go).expect("recv");
            node.send(Msg::new(to, 3), &mut gone).expect("send");
            let (mut sent, mut done) = (0, 0);
            while done < 4 + 2 * way.short {
                done += node.poll().iter().inspect(|e| assert!(e.is_ok(), "{e:?}")).count();
                if done >= 2 && sent == 0 {
                    node.send(Msg::new(to, 1), &mut self.out).expect("send");
                    sent += 1;
                }
                if sent > 0 && sent <= way.short && node.send(Msg::new(to, 2), &mut self.short).is_ok() {
                    sent += 1;
                }
                until.check(|| format!("{done} done, {sent} sent: {:?}", node.stats()));
            }
            assert!(self.into == self.out);
        }
    }
}

/// Not a test of its own: so many endpoints, one of which talks after the other.
#[test]
fn crowd() {
    let Some(words) = role().filter(|words| words[0] == "crowd") else { return };
    let (way, count) = (Way::heard(&words[1..]), words[5].parse().expect("a number"));
    let config = way.config();
    let mut nodes: Vec<Node> = (0..count).map(|_| Node::with(config.clone(), attr())).collect();
    say(&nodes.iter().map(|node| node.name().to_string()).collect::<Vec<_>>().join(" "));
    let hub: Name = words[6].parse().expect("a name");
    let mut buffers = Buffers::new();
    for node in &mut nodes {
        let to = node.av.insert(&hub);
        buffers.talk(node, to, way);
        // What it has read it tells at once.
        node.quiet(100);
    }
    say("all");
    // They stay.
    hear();
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    text.split(' ').nth(1).expect("resident").parse::<usize>().expect("pages") * 4096
}

/// Bytes that a process grows by for each of so many peers.
fn each(way: Way, count: usize) -> usize {
    let mut hub = Node::with(way.config(), attr());
    let mut copy = copy("cost::crowd", &format!("crowd {} {count} {}", way.words(), hub.name()));
    let names = copy.hear();
    let to: Vec<Addr> = names.split(' ').map(|name| hub.av.insert(&name.parse::<Name>().expect("a name"))).collect();
    let mut buffers = Buffers::new();
    // What the first ones need is there for all.
    let (first, others) = to.split_at(count / 10);
    first.iter().for_each(|to| buffers.talk(&mut hub, *to, way));
    let before = resident();
    others.iter().for_each(|to| buffers.talk(&mut hub, *to, way));
    let each = resident().saturating_sub(before) / others.len();
    let stats = hub.stats();
    // Those of the last messages may still be on their way.
    let lanes = way.lanes.saturating_sub(1) * count as u64;
    assert!(stats.lost == 0 && (lanes * 9 / 10..=lanes).contains(&stats.lanes), "{stats:?}");
    drop(hub);
    each
}

fn costs(test: &str, way: Way, count: usize, most: usize) {
    process::alone(test, || {
        let _dog = watchdog("cost", 200);
        let each = each(way, count);
        eprintln!("{test}: {each} bytes, at most {most}");
        assert!(each <= most, "{each} bytes for each peer, and not {most}");
    });
}

#[test]
fn of_hundreds_of_peers_that_said_little() {
    let way = Way { lanes: 1, encrypt: false, rounds: 1, short: 4 };
    costs("cost::of_hundreds_of_peers_that_said_little", way, 300, 48 * KIB);
}

/// More than a ring has gone each way.
#[test]
fn of_peers_that_said_much() {
    let way = Way { lanes: 1, encrypt: false, rounds: 2, short: 160 };
    costs("cost::of_peers_that_said_much", way, 60, 345 * KIB);
}

#[test]
fn of_lanes() {
    let way = Way { lanes: 4, encrypt: false, rounds: 6, short: 1 };
    costs("cost::of_lanes", way, 60, (32 + 3 * 12) * KIB);
}

#[test]
fn of_encryption() {
    let way = Way { lanes: 1, encrypt: true, rounds: 2, short: 4 };
    costs("cost::of_encryption", way, 60, 400 * KIB);
}

#[test]
fn of_lanes_and_encryption() {
    let way = Way { lanes: 4, encrypt: true, rounds: 6, short: 1 };
    costs("cost::of_lanes_and_encryption", way, 60, (4 * 364) * KIB);
}
