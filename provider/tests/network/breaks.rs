//! The first connection of a pair breaks while both processes live: all that waits for the peer ends, at both sides, and nobody else notices.

use crate::common::{Deadline, Msg, Node, attr, message, watchdog};
use crate::flow::ends;
use crate::scene::{lending, network, place, registering};
use crate::waits::{KINDS, Waiter};
use rustix::fd::BorrowedFd;
use rustix::net::Shutdown;
use rustmx::config::network::Secret;
use rustmx::{Addr, Config, Error};

/// Two that have met, by a connection whose ends are known, and one that knows both.
struct Three {
    sides: [Box<Waiter>; 2],
    to: [Addr; 2],
    ends: [BorrowedFd<'static>; 2],
    third: Node,
}

impl Three {
    /// Each with a port of its own: the connection of two is told by those.
    fn new(config: impl Fn() -> Config) -> Three {
        let [mut a, mut b, third] = [(); 3].map(|()| Node::with(config(), attr()));
        let to = [a.knows(&b), b.knows(&a)];
        message(&mut a, &mut b, 8, 1, true);
        let ends: Vec<_> = ends([place(&a).port(), place(&b).port()]);
        let ends = ends.try_into().expect("one connection");
        let mut three = Three { sides: [a, b].map(Waiter::new), to, ends, third };
        three.others();
        three
    }

    /// The third one talks with both.
    fn others(&mut self) {
        for side in &mut self.sides {
            for n in [8, 3000, 300_000] {
                message(&mut side.node, &mut self.third, n, n, true);
                message(&mut self.third, &mut side.node, n, n, false);
            }
        }
    }
}

type Way = (&'static str, fn() -> Config);

/// Which way bytes go by the connection, and by how many further ones.
const WAYS: [Way; 5] = [
    ("plain", network),
    ("lending", lending),
    ("registering", registering),
    ("encrypted", || Config { encrypt: 1, auth_key: Secret::new(&[7; 32]), ..network() }),
    ("lanes", || Config { tcp_lanes: 4, ..network() }),
];

/// What waits when the connection breaks.
#[derive(Clone, Copy, Debug)]
enum Waits {
    /// One operation of each kind on each side, and a long message each way is in the middle.
    All,
    /// One operation on one side.
    One(usize),
}

impl Three {
    fn begin(&mut self, waits: Waits) {
        let [a, b] = &mut self.sides;
        let [to_b, to_a] = self.to;
        match waits {
            Waits::All => {
                a.is_sent_to(to_b, b, to_a);
                a.begin_all(to_b);
                b.begin_all(to_a);
            }
            Waits::One(kind) => a.begin(to_b, kind),
        }
    }

    fn breaks(&self, end: usize) {
        rustix::net::shutdown(self.ends[end], Shutdown::Both).expect("shutdown");
    }

    fn looks(&mut self) -> Vec<&'static str> {
        let names = self.sides.each_ref().map(|side| side.node.name());
        for (side, peer) in self.sides.iter_mut().zip(names.iter().rev()) {
            side.look(peer, &[Error::PeerGone]);
        }
        self.sides.iter().flat_map(|side| side.open()).collect()
    }

    fn closes(self) {
        let Three { sides, third, .. } = self;
        let until = Deadline::new(20);
        for side in sides {
            drop(side);
            until.check(|| "closing took long".into());
        }
        drop(third);
        until.check(|| "closing took long".into());
    }
}

/// Everything that waits ends with the peer's name, at both sides; the third one goes on with both, and they close.
#[test]
fn all_that_waits_ends_at_both_sides() {
    let _dog = watchdog("breaks", 300);
    for (what, way) in WAYS {
        for end in [0, 1] {
            let mut three = Three::new(way);
            if what == "lanes" {
                three.widens();
            }
            three.begin(Waits::All);
            three.breaks(end);
            let until = Deadline::new(20);
            loop {
                let open = three.looks();
                if open.is_empty() {
                    break;
                }
                until.check(|| format!("{what}, end {end}: these wait for ever: {open:?}"));
            }
            three.is_over(what);
            three.others();
            three.closes();
        }
    }
}

/// Each by itself: none of them ends only because another one failed.
#[test]
fn each_that_waits_alone_ends() {
    let _dog = watchdog("breaks alone", 200);
    for kind in 0..KINDS {
        for end in [0, 1] {
            let mut three = Three::new(network);
            three.begin(Waits::One(kind));
            three.breaks(end);
            let until = Deadline::new(20);
            while !three.looks().is_empty() {
                until.check(|| format!("end {end}: it waits for ever: {:?}", three.sides[0].open()));
            }
            three.others();
            three.closes();
        }
    }
}

/// Who closes at once, before anybody has noticed, waits for nobody; and the other side's operations end.
#[test]
fn who_closes_before_it_notices_does_not_hang() {
    let _dog = watchdog("breaks closing", 200);
    for (_, way) in WAYS {
        for end in [0, 1] {
            let mut three = Three::new(way);
            three.begin(Waits::All);
            three.breaks(end);
            let Three { sides: [a, mut b], mut third, .. } = three;
            let (name, until) = (a.node.name(), Deadline::new(20));
            drop(a);
            until.check(|| "closing took long".into());
            while !b.open().is_empty() {
                b.look(&name, &[Error::PeerGone]);
                until.check(|| format!("these wait for ever: {:?}", b.open()));
            }
            message(&mut b.node, &mut third, 30_000, 1, true);
        }
    }
}

impl Three {
    /// Opens the further connections.
    fn widens(&mut self) {
        let [a, b] = &mut self.sides;
        let until = Deadline::new(60);
        while [&a.node, &b.node].iter().any(|node| node.stats().lanes < 3) {
            message(&mut a.node, &mut b.node, 4 << 20, 1, true);
            message(&mut b.node, &mut a.node, 4 << 20, 1, true);
            until.check(|| "no further connections".into());
        }
    }

    /// Both have lost one peer, know that, and keep none of its connections.
    fn is_over(&mut self, what: &str) {
        for (side, to) in self.sides.iter_mut().zip(self.to) {
            assert_eq!(side.node.stats().lost, 1, "{what}");
            assert_eq!(side.node.send(Msg::new(to, 9), &mut [1; 8]), Err(Error::PeerGone), "{what}");
        }
    }
}
