//! Where a lap of the ring ends: what is skipped there does not travel, and nothing else is left out.

use super::mirror::Mirror;
use super::outgoing::ring::Ring;
use super::proof::Guard;
use super::tests::{Scene, draft};
use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::shm::layout::{CONSUMED, CONTROL_LINES, LINE, LINE_WORDS, MIN_SEGMENT, WRITTEN, ring_lines};
use crate::shm::ring::{Consumer, Peeked, Producer};
use crate::shm::segment;
use crate::sys::tcp;
use crate::transport::link::Class;
use crate::transport::{Line, Reply};
use crate::wire::frame::FRAME_HEAD;
use crate::wire::key::Key;
use proptest::prelude::*;
use std::collections::VecDeque;

/// B reads so many records, which are these; returns the bytes that the network had brought by then.
fn read(scene: &mut Scene, expected: &[Vec<u8>]) -> usize {
    let (mut came, mut left) = (0, expected);
    while let [next, rest @ ..] = left {
        came += scene.there.pass(1 << 16);
        scene.b.connection.read(true);
        if let Some(header) = scene.b.link.peek().expect("sound") {
            let mut got = Vec::new();
            scene.b.link.payload_append(&header, &mut got);
            assert_eq!(&got, next);
            scene.b.link.consume(header.lines());
            left = rest;
        }
    }
    scene.b.link.tell();
    came
}

/// One message after the other, each read before the next: in each frame is that record, in many laps.
#[test]
fn a_frame_is_as_long_as_its_record() {
    let mut scene = Scene::new();
    let mut behind = 0;
    for i in 0..500usize {
        let bytes = vec![i as u8; i * 37 % 900];
        scene.turn();
        let before = behind;
        behind = scene.a.link.send(&draft(&bytes), Class::Envelope).expect("room");
        scene.turn();
        let came = read(&mut scene, std::slice::from_ref(&bytes));
        // Whole lines, of which the last one is used.
        let lines = ((came - FRAME_HEAD) / LINE) as u32;
        assert!(lines as usize * LINE < bytes.len() + 3 * LINE, "record {i} of {} bytes: {lines} lines", bytes.len());
        assert!(lines <= behind - before, "record {i}");
        scene.answer();
    }
    assert!(behind / ring_lines(MIN_SEGMENT) > 10, "{behind} lines are few laps");
}

/// What is behind a skip comes along with what is before it, also where places are guessed: an encrypted stream's bytes are taken from one call to the next.
#[test]
fn what_is_behind_a_skip_comes_along() {
    for guard in [None, Some(Guard { key: Key::new(b"a key"), encrypt: true })] {
        let mut scene = Scene::guarded(guard.as_ref());
        for i in 0..400usize {
            let bytes: Vec<_> = (0..3).map(|k| vec![(i * 3 + k) as u8; (i * 3 + k) * 41 % 1200]).collect();
            for bytes in &bytes {
                scene.a.link.send(&draft(bytes), Class::Envelope).expect("room");
            }
            scene.turn();
            read(&mut scene, &bytes);
            scene.answer();
        }
    }
}

/// B has read a quarter of the ring: A hears of it when that is said to be all for now, and not of little.
#[test]
fn much_that_was_read_is_told() {
    let mut scene = Scene::new();
    let words = |scene: &Scene| std::iter::repeat_with(|| scene.back.pass(1 << 16)).take(100).sum::<usize>();
    let quarter = ring_lines(MIN_SEGMENT) as usize / 4;
    for (lines, told) in [(5, 0), (quarter, FRAME_HEAD)] {
        let lines: Vec<_> = (0..lines).map(|i| vec![i as u8; 8]).collect();
        for bytes in &lines {
            scene.a.link.send(&draft(bytes), Class::Envelope).expect("room");
        }
        scene.turn();
        read(&mut scene, &lines);
        assert_eq!(words(&scene), 0, "not in between");
        scene.b.link.tell_of_room();
        assert_eq!(words(&scene), told, "{} lines", lines.len());
    }
    scene.b.link.tell_of_room();
    assert_eq!(words(&scene), 0, "once");
}

/// The other side ends in the middle of a frame, after as much as one call asks for: of the record whose first lines came nothing is seen.
#[test]
fn half_a_frame_at_the_end_is_not_seen() {
    for cut in [FRAME_HEAD + 4 * LINE, FRAME_HEAD + 3 * LINE, FRAME_HEAD + LINE] {
        let mut scene = Scene::new();
        scene.a.link.send(&draft(&[7; 600]), Class::Envelope).expect("room");
        scene.turn();
        assert_eq!(scene.there.pass(cut), cut);
        tcp::finish(&scene.there.to);
        while !matches!(scene.b.connection.hear(), Reply::Ended) {
            scene.b.connection.read(true);
        }
        assert!(scene.b.link.peek().expect("sound").is_none(), "after {cut} bytes");
    }
}

/// Both ends of a ring and what lies between them, without a socket: frames are taken from one and put into the other as they are.
struct Carried {
    mine: SharedMem,
    tx: Producer<SharedMem>,
    ring: Ring,
    mirror: Mirror,
    rx: Consumer<SharedMem>,
    /// Our segment of the other side, where its reader says how far it is.
    theirs: SharedMem,
    /// Lines and fill of the records that were written and not read.
    records: VecDeque<(u32, u64)>,
    written: u64,
    /// Lines of records, and those that travelled.
    lines: [u64; 2],
}

impl Carried {
    /// Laps of so many lines, or as long as the ring.
    fn new(short: u32) -> Carried {
        let (mine, theirs, copy) = (segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
        let lines = ring_lines(MIN_SEGMENT);
        let ring_of = |mem: &SharedMem| mem.slice(CONTROL_LINES * LINE, lines as usize * LINE);
        let mut tx = Producer::new(ring_of(&mine), lines);
        tx.set_short_laps(short);
        Carried {
            tx,
            ring: Ring::new(mine.clone()),
            mirror: Mirror::new(copy.clone(), theirs.clone()),
            rx: Consumer::new(ring_of(&copy), lines),
            mine,
            theirs,
            records: VecDeque::new(),
            written: 0,
            lines: [0; 2],
        }
    }

    fn write(&mut self, lines: u32) {
        let Some(at) = self.tx.reserve(lines, 0) else { return };
        self.written += 1;
        let memory = self.mine.slice(CONTROL_LINES * LINE, self.tx.lines() as usize * LINE);
        for word in 0..lines as usize * LINE_WORDS {
            memory.word(at / 8 + word).store(self.written << 8 | 2, Ordering::Relaxed);
        }
        self.tx.publish(lines, [self.written << 8 | 2; 3]);
        self.records.push_back((lines, self.written));
        self.lines[0] += u64::from(lines);
        let word = u64::from(self.tx.written()) | u64::from(self.tx.skipped()) << 32;
        self.mine.word(WRITTEN).store(word, Ordering::Relaxed);
    }

    /// One frame, if there is one. Whether there is nothing behind it.
    fn carry(&mut self) -> bool {
        let (run, is_all) = self.ring.next();
        if run.lines == 0 {
            return true;
        }
        assert!(self.mirror.takes(self.ring.framed, run.skipped, run.lines), "{run:?} is refused");
        let mut bytes = Vec::new();
        for (at, len) in self.ring.spans(run) {
            self.ring.lines.append_to(at, len, &mut bytes);
        }
        // In two parts, between which nobody may see anything.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.mirror.put(0, first);
        self.mirror.withhold();
        let seen = self.rx.ready();
        self.mirror.put(first.len(), second);
        assert!(!seen || self.behind() > 0, "half a frame is seen");
        self.mirror.show(run.lines);
        self.lines[1] += u64::from(run.lines);
        self.ring.pass(run);
        is_all
    }

    /// Lines that have arrived and were not read.
    fn behind(&self) -> u32 {
        self.mirror.position.wrapping_sub(self.rx.consumed())
    }

    fn read(&mut self, records: usize) {
        for _ in 0..records {
            match self.rx.peek() {
                Peeked::Empty => break,
                Peeked::Corrupt => panic!("corrupt"),
                Peeked::Record(head) => {
                    let (lines, fill) = self.records.pop_front().expect("no more than was written");
                    assert_eq!(head, [fill << 8 | 2; 3]);
                    self.rx.release(lines);
                }
            }
        }
        self.theirs.word(CONSUMED).store(u64::from(self.rx.consumed()), Ordering::Relaxed);
        self.tx.ack(self.rx.consumed()).expect("sound");
    }

    fn finish(mut self) {
        while !self.carry() {}
        self.read(usize::MAX);
        assert!(self.records.is_empty(), "{} records never came", self.records.len());
        assert_eq!(self.lines[0], self.lines[1], "what travelled is what was written");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u32),
    Carry,
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..20).prop_map(Step::Write),
        2 => Just(Step::Carry),
        2 => (0usize..30).prop_map(Step::Read),
    ]
}

proptest! {
    #[test]
    fn what_is_skipped_does_not_travel(steps in proptest::collection::vec(step(), 1..400), short in prop_oneof![Just(20u32), Just(u32::MAX)]) {
        let mut carried = Carried::new(short);
        for step in steps {
            match step {
                Step::Write(lines) => carried.write(lines),
                Step::Carry => _ = carried.carry(),
                Step::Read(records) => carried.read(records),
            }
        }
        carried.finish();
    }
}

/// Positions go round: one of a skip that was, long ago, is no skip to come.
#[test]
fn an_old_skip_is_none() {
    let mut carried = Carried::new(u32::MAX);
    let lines = carried.tx.lines();
    carried.write(lines - 5);
    while !carried.carry() {}
    carried.read(1);
    carried.write(6);
    let (run, is_all) = carried.ring.next();
    assert_eq!((run.skipped, run.lines, is_all), (5, 6, true));
    carried.carry();
    // 2^32 lines later: all that is written lies around the position of that skip.
    let passed = carried.tx.skipped();
    carried.ring.framed = passed.wrapping_sub(2);
    carried.mine.word(WRITTEN).store(u64::from(passed + 2) | u64::from(passed) << 32, Ordering::Relaxed);
    let (run, is_all) = carried.ring.next();
    assert_eq!((run.skipped, run.lines, is_all), (0, 4, true));
}

/// A frame skips the rest of the ring or nothing, and only if its lines have room behind that.
#[test]
fn a_mirror_believes_no_other_skip() {
    let mut carried = Carried::new(u32::MAX);
    let lines = carried.tx.lines();
    assert!(!carried.mirror.takes(0, lines, 1), "all of the ring");
    carried.write(lines - 5);
    while !carried.carry() {}
    assert!(!carried.mirror.takes(lines - 5, 5, 1), "no room: nothing was read");
    carried.read(1);
    for wrong in [1, 4, 6, lines, u32::MAX, u32::MAX - 4] {
        assert!(!carried.mirror.takes(lines - 5, wrong, 1), "{wrong} lines");
    }
    assert!(!carried.mirror.takes(lines - 5, 5, lines - 5), "one line stays free");
    assert!(carried.mirror.takes(lines - 5, 5, lines - 6));
}
