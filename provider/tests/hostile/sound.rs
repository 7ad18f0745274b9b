//! Sound records, from a writer that does not keep to the rest: it says that it has read what it has not, stops in the middle, or never
//! reads its answers. And one that does all as it should.

use crate::BYTES;
use crate::common::{Deadline, Msg, pattern, watchdog};
use crate::liar::{Liar, payload};
use crate::scene::{GUARD, SEND, Scene};
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::shm::layout::{CONSUMED, CREDIT, LINE_WORDS, ring_lines};
use rustmx::shm::ring::SKIP;
use rustmx::wire::header::{Header, Kind, flag};
use rustmx::{CompFlags, Error, OpFlags};
use std::time::Duration;

/// Acknowledgements and credit that are not true hurt the liar only.
#[test]
fn lies_about_what_was_read() {
    let _dog = watchdog("acks", 60);
    for (consumed, credit) in [(u64::MAX, 0), (1 << 31, 0), (400, 0), (0, u64::MAX), (0, u64::MAX / 2), (u64::MAX / 2, u64::MAX)]
    {
        let mut scene = Scene::new();
        let liar = Liar::connected(&mut scene.victim);
        let to_liar = scene.victim.av.insert(&liar.name);
        liar.mem.word(CREDIT).store(credit, Ordering::Release);
        liar.mem.word(CONSUMED).store(consumed, Ordering::Release);
        let mut out = pattern(4000, 1);
        let mut refused = None;
        for _ in 0..200 {
            match scene.victim.send(Msg::new(to_liar, 1).ctx(SEND).with(OpFlags::DELIVERY_COMPLETE), &mut out) {
                Ok(()) => scene.sends_open += 1,
                Err(Error::Again) => {}
                Err(e) => refused = Some(e),
            }
            scene.turns(1);
        }
        assert!(matches!(refused, None | Some(Error::Corrupt)), "{refused:?}");
        // What it says it has read cannot be more than what was written: nothing was acknowledged that was not.
        scene.exchange();
        drop(liar);
        let until = Deadline::new(5);
        while scene.sends_open > 0 {
            scene.turns(10);
            until.check(|| format!("{} sends never end", scene.sends_open));
        }
        scene.exchange();
    }
}

/// The flags that a liar's untagged and tagged messages set are those of the message.
#[test]
fn a_liar_that_tells_the_truth_is_a_peer() {
    let _dog = watchdog("truth", 30);
    let mut scene = Scene::new();
    let mut liar = Liar::connected(&mut scene.victim);
    scene.post();
    assert!(liar.write(Kind::Inline, 1, 0, [0; 2], &mut payload(50)));
    let until = Deadline::new(5);
    let mut got = Vec::new();
    while got.is_empty() {
        got = scene.victim.poll();
        until.check(|| "a sound record is not received".into());
    }
    let c = got[0].expect("received");
    assert_eq!((c.len, c.flags), (50, CompFlags::RECV | CompFlags::TAGGED));
    assert_eq!(scene.slots[1].bytes[GUARD..GUARD + 50], payload(50));
    std::thread::sleep(Duration::from_millis(1));
    assert!(!liar.ended());
}

/// The reader steps over a skip before the record behind it is there; by the time that record comes, the line that the
/// reader looked at may hold anything, a zero too. Both must find each other again.
#[test]
fn a_writer_that_stops_between_a_skip_and_its_record() {
    let _dog = watchdog("skip", 30);
    let mut scene = Scene::new();
    let mut liar = Liar::connected(&mut scene.victim);
    let lines = ring_lines(BYTES);
    let skipped = 7;
    while liar.link.position() < lines - skipped {
        if !liar.write(Kind::Inline, 99, 0, [0; 2], &mut payload(8)) {
            scene.turns(1);
        }
    }
    scene.turns(200);
    let position = lines - skipped;
    let at = position as usize * LINE_WORDS;
    let skip = SKIP | u64::from(position & 0xff) << 8 | u64::from(skipped) << 16;
    liar.ring(0).store(0, Ordering::Relaxed);
    liar.ring(at).store(skip, Ordering::Release);
    scene.turns(200);
    let told = liar.theirs.as_ref().map(|t| t.word(CONSUMED).load(Ordering::Acquire));
    assert_eq!(told, Some(u64::from(lines)), "the writer is not told that the skipped lines are free");
    scene.post();
    let header = Header { kind: Kind::Inline, flags: flag::TAGGED, len: 0, ack: 0, tag: 0, data: 0 };
    let [first, second, third] = header.emit(lines);
    liar.ring(1).store(second, Ordering::Relaxed);
    liar.ring(2).store(third, Ordering::Relaxed);
    liar.ring(LINE_WORDS).store(0, Ordering::Relaxed);
    liar.ring(at).store(0, Ordering::Relaxed);
    liar.ring(0).store(first, Ordering::Release);
    let until = Deadline::new(5);
    while scene.slots[0].posted {
        scene.turns(1);
        until.check(|| "the record behind the skip is never seen".into());
    }
}

/// Requests are answered in order; a liar that reads no answers cannot make its victim owe without end.
#[test]
fn requests_without_end() {
    let _dog = watchdog("requests", 30);
    for kind in [Kind::Put, Kind::Get] {
        let mut scene = Scene::new();
        let mut liar = Liar::connected(&mut scene.victim);
        let until = Deadline::new(10);
        while !liar.ended() {
            let _ = liar.link.refresh();
            while liar.write(kind, 1, 0, [0; 2], &mut []) {}
            scene.turns(1);
            until.check(|| "it goes on for ever".into());
        }
        scene.exchange();
    }
}
