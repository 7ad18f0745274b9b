//! Random rings: bits flipped, headers made up, nothing but noise; and memory that changes while it is read.

use crate::common::{Deadline, Msg, Rng, pattern, watchdog};
use crate::liar::{Liar, payload, pieces};
use crate::scene::{GUARD, SEND, Scene};
use crate::{BYTES, seed};
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::shm::layout::{CONSUMED, CONTROL_LINES, CREDIT, HOT, LINE, LINE_WORDS, STATE};
use rustmx::wire::header::{Kind, Rts};
use rustmx::{Config, OpFlags};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Thousands of rings with bits flipped, headers made up, or nothing but noise.
#[test]
fn noise_in_a_ring() {
    let _dog = watchdog("noise", 60);
    let seed = seed();
    let mut scene = Scene::new();
    let (mut excluded, mut lied) = (0, 0);
    for case in 0..3000u64 {
        let mut rng = Rng(seed << 20 | case);
        let what = format!("seed {seed}, case {case}");
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        // The victim has something under way to it, too.
        if rng.one_in(3) {
            let to_liar = scene.victim.av.insert(&liar.name);
            let level = if rng.one_in(2) { OpFlags::DELIVERY_COMPLETE } else { OpFlags::empty() };
            let mut out = pattern(40_000, 1);
            if scene
                .victim
                .send(Msg::new(to_liar, 5).ctx(SEND).with(level), &mut out[..[10, 1000, 40_000][(case % 3) as usize]])
                .is_ok()
            {
                scene.sends_open += 1;
            }
            // The liar is done with before `out` is.
            one_noise(&mut scene, &mut liar, &mut rng, &what);
            excluded += i32::from(end(&mut scene, liar, &what));
        } else {
            one_noise(&mut scene, &mut liar, &mut rng, &what);
            excluded += i32::from(end(&mut scene, liar, &what));
        }
        lied += 1;
        is_over(&mut scene, case, &what);
    }
    scene.nothing_was_swallowed("at the end");
    println!("{lied} cases, {excluded} disconnected");
    assert!(excluded > lied / 2, "most of that is no ring that a rustmx writes: {excluded} of {lied}");
}

/// A peer that could write to the ring that it reads, and does (`FI_RUSTMX_RINGS=open`): what it reads becomes nonsense, and nothing else.
#[test]
fn noise_in_the_ring_that_a_peer_reads() {
    let _dog = watchdog("noise of a reader", 60);
    let seed = seed();
    let sealed = Liar::connected(&mut Scene::new().victim);
    assert!(sealed.open.is_none(), "a sealed ring can be written by its reader");
    let mut scene = Scene::with(Config { rings: 2, ..Config::default() });
    for case in 0..500u64 {
        let mut rng = Rng(seed << 20 | case);
        let what = format!("seed {seed}, case {case}");
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        let open = liar.open.clone().expect("open");
        let scribble = |rng: &mut Rng| {
            for _ in 0..rng.range(1, 2000) {
                open.word(rng.below((open.bytes() / 8) as u64) as usize).store(rng.next(), Ordering::Release);
            }
        };
        let to_liar = scene.victim.av.insert(&liar.name);
        let mut out = pattern(40_000, 1);
        // A send that waits for the liar's word, and one that does not, are under way.
        for level in [OpFlags::DELIVERY_COMPLETE, OpFlags::empty()] {
            scribble(&mut rng);
            let n = [10, 1000, 40_000][(case % 3) as usize];
            if scene.victim.send(Msg::new(to_liar, 5).ctx(SEND).with(level), &mut out[..n]).is_ok() {
                scene.sends_open += 1;
            }
            scribble(&mut rng);
        }
        scene.turns(3);
        // What the liar sends itself arrives: nothing was made of its scribbling.
        let mut sent = payload(80);
        assert!(liar.write(Kind::Inline, 1, 0, [0; 2], &mut sent), "{what}");
        let until = Deadline::new(5);
        while scene.slots[1].posted {
            scene.turns(1);
            scribble(&mut rng);
            until.check(|| format!("{what}: the peer is not heard any more"));
        }
        assert!(!liar.ended(), "{what}: disconnected");
        assert_eq!(scene.slots[1].bytes[GUARD..GUARD + 80], sent, "{what}");
        end(&mut scene, liar, &what);
        is_over(&mut scene, case, &what);
    }
    scene.nothing_was_swallowed("at the end");
}

/// The liar of a case is gone: nothing of it is left, and now and then, that nothing else is lost.
fn is_over(scene: &mut Scene, case: u64, what: &str) {
    assert_eq!(scene.sends_open, 0, "{what}: a send never ended");
    if case.is_multiple_of(50) {
        scene.nothing_was_swallowed(what);
        scene.exchange();
    }
    scene.clean();
}

/// The liar goes; everything that concerns it ends. Whether it had been disconnected before.
fn end(scene: &mut Scene, liar: Liar, what: &str) -> bool {
    let excluded = liar.ended();
    drop(liar.fd);
    let until = Deadline::new(5);
    let mut turns = 0;
    while scene.sends_open > 0 || turns < 60 {
        scene.turns(1);
        turns += 1;
        until.check(|| format!("{what}: {} sends never end", scene.sends_open));
    }
    excluded
}

fn one_noise(scene: &mut Scene, liar: &mut Liar, rng: &mut Rng, what: &str) {
    let words = (BYTES / LINE - CONTROL_LINES) * LINE_WORDS;
    match rng.below(4) {
        0 => {
            for i in (0..words).rev() {
                liar.ring(i).store(rng.next(), Ordering::Release);
            }
        }
        1 => {
            // A sound sequence, with a few bits flipped.
            for i in 0..rng.range(1, 12) {
                some_record(liar, rng, i as u32);
            }
            for _ in 0..rng.range(1, 4) {
                let at = if rng.one_in(2) { 0 } else { rng.below(words as u64 / 4) as usize };
                let at = at / LINE_WORDS * LINE_WORDS + rng.below(5) as usize;
                liar.ring(at).fetch_xor(1 << rng.below(64), Ordering::AcqRel);
            }
        }
        2 => {
            // Headers with the right position and anything else.
            let mut position = 0u64;
            for _ in 0..rng.range(1, 6) {
                let kind = rng.range(1, 8) as u64;
                let len = [0, 8, 40, rng.below(300), rng.below(5000)][rng.below(5) as usize];
                let at = position as usize * LINE_WORDS;
                let tag = [rng.below(4), 50, rng.next()][rng.below(3) as usize];
                let data = [0, rng.below(1000), rng.next()][rng.below(3) as usize];
                let body = [rng.below(100_000) >> rng.below(17), rng.below(3) | (rng.below(3000) << 32)];
                if at + 5 >= words {
                    break;
                }
                for (i, w) in [tag, data, body[0], body[1]].into_iter().enumerate() {
                    liar.ring(at + 1 + i).store(w, Ordering::Relaxed);
                }
                let flags = if rng.one_in(8) { rng.below(16) } else { rng.below(4) * u64::from(kind < 5) };
                let ack = if rng.one_in(8) { rng.next() & 0xffff } else { 0 };
                liar.ring(at).store(kind | flags << 4 | (position & 0xff) << 8 | len << 16 | ack << 32, Ordering::Release);
                let head = if len >= 512 { 64 } else { 24 + if kind == 4 { 16 } else { 0 } };
                position += (head + len).div_ceil(64);
                scene.turns(2);
            }
        }
        _ => {
            // Lies about what it has read and may take, between sound records.
            for i in 0..rng.range(1, 8) {
                some_record(liar, rng, 100 + i as u32);
                let word = rng.pick(&[CONSUMED, CREDIT, HOT, STATE]);
                let value = [0, rng.below(400), rng.next(), u64::MAX][rng.below(4) as usize];
                liar.mem.word(word).store(value, Ordering::Release);
                scene.turns(40);
            }
        }
    }
    scene.turns(40);
    let _ = what;
}

/// A record that may well be right.
fn some_record(liar: &mut Liar, rng: &mut Rng, stream: u32) {
    let tag = [rng.below(4), 50][rng.below(2) as usize];
    let n = rng.range(0, 232);
    match rng.below(11) {
        9 => liar.write(Kind::Offer, tag, 0, [n as u64, stream.into()], &mut pieces(&[(rng.next() >> rng.below(64), n as u64)])),
        10 => liar.write(Kind::Done, rng.below(2), rng.below(9), [0; 2], &mut []),
        5 => liar.write(Kind::Put, rng.below(3), rng.next(), [rng.next() >> rng.below(64), 1], &mut payload(n)),
        6 => liar.write(Kind::Get, rng.below(3), rng.next() >> rng.below(64), [rng.next() >> rng.below(64), 1], &mut []),
        7 => liar.write(Kind::Event, rng.below(3), 1, [0, rng.next()], &mut []),
        8 => liar.write(Kind::Atomic, rng.below(3), 2 | 7 << 8 | 8 << 32, [rng.next() >> rng.below(64), 1], &mut payload(8)),
        0 | 1 => liar.write(Kind::Inline, tag, 0, [0; 2], &mut payload(n)),
        2 => liar.write(Kind::Eager, tag, 0, [0; 2], &mut payload(n * 10)),
        3 => {
            let total = n as u64 * 3 + 1;
            liar.write(Kind::Rts, tag, 0, Rts { total, stream, promise: total as u32 }.emit(), &mut payload(n))
        }
        _ => liar.write(Kind::Cts, rng.below(2), rng.below(50_000), [0; 2], &mut []),
    };
}

/// Memory that changes while it is read: another thread scribbles over the ring and the control lines for as long as it is connected.
#[test]
fn a_ring_that_changes_under_the_readers_eyes() {
    let _dog = watchdog("scribble", 60);
    let seed = seed();
    let mut scene = Scene::new();
    for case in 0..150u64 {
        scene.post();
        let mut liar = Liar::connected(&mut scene.victim);
        let to_liar = scene.victim.av.insert(&liar.name);
        let mut out = pattern(40_000, 1);
        if scene.victim.send(Msg::new(to_liar, 5).ctx(SEND), &mut out).is_ok() {
            scene.sends_open += 1;
        }
        for i in 0..10 {
            some_record(&mut liar, &mut Rng(seed + case), i);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (mem, seen) = (liar.mem.clone(), stop.clone());
        let scribbler = std::thread::spawn(move || {
            let mut rng = Rng(seed << 20 | case);
            let words = BYTES / 8;
            while !seen.load(Ordering::Relaxed) {
                // Lengths and bodies of the records that are there, mostly.
                let at = match rng.below(8) {
                    0 => rng.below(words as u64) as usize,
                    1 => rng.range(CONSUMED, STATE + 1),
                    _ => (CONTROL_LINES + rng.range(0, 40)) * LINE_WORDS + rng.range(1, 5),
                };
                mem.word(at).store(rng.next() >> rng.below(64), Ordering::Relaxed);
                std::hint::spin_loop();
            }
        });
        for _ in 0..30 {
            scene.turns(10);
        }
        end(&mut scene, liar, &format!("seed {seed}, case {case}"));
        stop.store(true, Ordering::Relaxed);
        scribbler.join().expect("scribbler");
        assert_eq!(scene.sends_open, 0);
        if case % 10 == 0 {
            scene.nothing_was_swallowed(&format!("seed {seed}, case {case}"));
            scene.exchange();
        }
        scene.clean();
    }
}
