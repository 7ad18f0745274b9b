//! The liar's victim, and a well-behaved peer of it that must notice nothing.

use crate::common::{Deadline, Event, Msg, Node, Want, attr, pattern};
use rustmx::{Addr, CompFlags, Config, Error, OpFlags};

/// The victim, with receives that a liar can match, and a well-behaved peer. Knows at every moment what is posted.
pub struct Scene {
    pub victim: Node,
    pub good: Node,
    to_good: Addr,
    pub to_victim: Addr,
    pub slots: Vec<Slot>,
    /// The slot that is posted first: a message for the oldest receive of all goes by a way of its own.
    pub oldest: usize,
    rounds: usize,
    pub sends_open: i64,
}

/// A buffer between two guards.
pub struct Slot {
    pub bytes: Vec<u8>,
    pub posted: bool,
}

pub const GUARD: usize = 64;
const CAPS: [usize; 4] = [0, 100, 5000, 100_000];
/// Context of the sends, and of the receives that no slot is for.
pub const SEND: usize = 1000;

impl Scene {
    pub fn new() -> Scene {
        Scene::with(Config::default())
    }

    pub fn with(config: Config) -> Scene {
        let (victim, good) = (Node::with(config, attr()), Node::new());
        let (to_good, to_victim) = (victim.knows(&good), good.knows(&victim));
        let slots = CAPS.iter().map(|n| Slot { bytes: vec![0xee; n + 2 * GUARD], posted: false }).collect();
        let mut scene = Scene { victim, good, to_good, to_victim, slots, oldest: 0, rounds: 0, sends_open: 0 };
        // One of each size: what the first long message opens stays with the process.
        for _ in 0..3 {
            scene.exchange();
        }
        scene
    }

    /// Posts what is not posted: slot `i` takes tag `i` from anybody.
    pub fn post(&mut self) {
        let rest = (0..self.slots.len()).filter(|i| *i != self.oldest);
        for i in std::iter::once(self.oldest).chain(rest) {
            let slot = &mut self.slots[i];
            if !slot.posted {
                slot.posted = true;
                let end = slot.bytes.len() - GUARD;
                self.victim.recv(Want::tag(i as u64), &mut slot.bytes[GUARD..end]).expect("recv");
            }
        }
    }

    /// Takes an event of the victim; all of them must make sense.
    fn take(&mut self, e: &Event) {
        let (ctx, c) = match e {
            Ok(c) => (c.ctx.0, c),
            Err(e) => {
                assert!(
                    matches!(
                        e.error,
                        Error::Truncated
                            | Error::Corrupt
                            | Error::PeerGone
                            | Error::Refused
                            | Error::Version
                            | Error::NoResources
                    ),
                    "{e:?}"
                );
                assert!(e.error == Error::Truncated || e.peer.is_some(), "nobody is named: {e:?}");
                (e.c.ctx.0, &e.c)
            }
        };
        if ctx == SEND {
            self.sends_open -= 1;
            return;
        }
        if c.flags.contains(CompFlags::REMOTE_WRITE) {
            // A liar may say that it has written to our memory.
            return;
        }
        let slot = &mut self.slots[ctx];
        assert!(slot.posted, "completed twice: {e:?}");
        slot.posted = false;
        let n = slot.bytes.len() - 2 * GUARD;
        assert!(c.len <= n, "{c:?}");
        let guards = slot.bytes[..GUARD].iter().chain(&slot.bytes[GUARD + n..]);
        assert!(guards.into_iter().all(|b| *b == 0xee), "written past the buffer of {n} bytes: {c:?}");
    }

    pub fn turns(&mut self, n: usize) {
        for _ in 0..n {
            for e in self.victim.poll() {
                self.take(&e);
            }
        }
    }

    /// Lets the liar's death or exclusion be noticed.
    pub fn gone(&mut self, lost: u64, what: &str) {
        let until = Deadline::new(5);
        while self.victim.stats().lost < lost {
            self.turns(20);
            until.check(|| format!("{what}: not disconnected; {:?}", self.victim.stats()));
        }
    }

    /// A verified message each way between the victim and the well-behaved peer.
    #[track_caller]
    pub fn exchange(&mut self) {
        const TAG: u64 = 1 << 40;
        let n = [8usize, 500, 30_000][self.rounds % 3];
        self.rounds += 1;
        let (mut out, mut back) = (pattern(n, self.rounds), pattern(n, self.rounds + 1));
        let (mut into, mut into_good) = (vec![0u8; n], vec![0u8; n]);
        self.good.recv(Want::tag(TAG), &mut into_good).expect("recv");
        self.victim.recv(Want::tag(TAG).ctx(SEND).from(self.to_good), &mut into).expect("recv");
        self.good.send(Msg::new(self.to_victim, TAG), &mut out).expect("send");
        self.victim.send(Msg::new(self.to_good, TAG).ctx(SEND), &mut back).expect("send");
        self.sends_open += 2;
        let want = self.sends_open - 2;
        let until = Deadline::new(10);
        let mut of_good = 0;
        while self.sends_open > want || of_good < 2 {
            self.turns(1);
            of_good += self.good.poll().iter().filter(|e| e.is_ok()).count();
            until.check(|| format!("the well-behaved peer is cut off: {of_good}, {}", self.sends_open));
        }
        assert!(into == out && into_good == back, "round {}", self.rounds);
    }

    /// Every receive that is posted and not completed still works: the well-behaved peer sends one message for each.
    #[track_caller]
    pub fn nothing_was_swallowed(&mut self, what: &str) {
        for (i, (slot, cap)) in self.slots.iter().zip(CAPS).enumerate() {
            if slot.posted {
                let mut out = pattern(cap.min(50), 9);
                self.good.send(Msg::new(self.to_victim, i as u64).inject(), &mut out).expect("send");
            }
        }
        let until = Deadline::new(3);
        while self.slots.iter().any(|s| s.posted) {
            self.turns(1);
            self.good.domain.progress();
            until.check(|| {
                let posted: Vec<usize> = (0..self.slots.len()).filter(|i| self.slots[*i].posted).collect();
                format!("{what}: the receives {posted:?} were matched by garbage and never ended")
            });
        }
    }

    /// Drops everything unexpected, so that rounds do not depend on each other.
    pub fn clean(&mut self) {
        loop {
            self.victim.recvv(Want::any().ctx(0).with(OpFlags::PEEK | OpFlags::DISCARD), &[], true).expect("peek");
            let mut none = false;
            for e in self.victim.poll() {
                match e {
                    Err(e) if e.error == Error::NoMessage => none = true,
                    Ok(c) if c.ctx.0 == 0 && c.buf == 0 => {}
                    e => self.take(&e),
                }
            }
            if none {
                return;
            }
        }
    }
}
