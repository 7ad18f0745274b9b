//! Bytes that were read to where they were guessed to belong, and do not: they get where they belong, and both counters say so. The other side is by hand.

use crate::common::{Deadline, Want, pattern, watchdog};
use crate::liars::Liar;
use crate::scene::{Scene, is_hung_up};
use rustmx::Telling;
use rustmx::stats::Stats;
use rustmx::wire::frame::FRAME_HEAD;
use rustmx::wire::header::Rts;
use std::hint::black_box;

/// What the victim says to one who has announced something, until it asks for it.
#[track_caller]
fn is_asked(scene: &mut Scene, liar: &mut Liar) {
    let until = Deadline::new(10);
    let before = liar.heard.len();
    // A head, and a line.
    while liar.heard.len() < before + FRAME_HEAD + 64 {
        let events = scene.victim.poll();
        assert!(events.is_empty(), "{events:?}");
        assert!(!is_hung_up(&mut liar.stream, &mut liar.heard), "it is given up");
        until.check(|| "not asked for".into());
    }
}

/// So many messages come.
#[track_caller]
fn come(scene: &mut Scene, count: usize) {
    let (mut came, until) = (0, Deadline::new(10));
    while came < count {
        came += scene.victim.poll().iter().inspect(|e| assert!(e.is_ok(), "{e:?}")).count();
        until.check(|| format!("{came} of {count}"));
    }
}

/// One guess was wrong, and so many bytes were moved: the endpoint says so, and the history of its peers as much.
#[track_caller]
fn says(scene: &Scene, before: &Stats, moved: usize, what: &str) {
    let after = scene.victim.stats();
    let grown = [after.misguessed - before.misguessed, after.guess_moved - before.guess_moved];
    assert_eq!(grown, [1, moved as u64], "{what}");
    let told = scene.victim.domain.ep_history(scene.victim.ep, Telling::Json).expect("told");
    let about: Vec<&str> = told.lines().filter(|line| line.contains("\"about\":\"guesses\"")).collect();
    let number = |line: &str, name| -> u64 {
        let rest = line.split(name).nth(1).expect("a member");
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number")
    };
    let sums = ["\"wrong\":", "\"moved\":"].map(|name| about.iter().map(|line| number(line, name)).sum::<u64>());
    assert_eq!(sums, [after.misguessed, after.guess_moved], "{what}: {about:#?}");
}

/// More of a long message was guessed, and a short one comes: it stands in the middle of the long one's buffer, until it is moved.
#[test]
fn a_short_message_that_stood_in_a_long_one() {
    let _dog = watchdog("guess of payload", 60);
    const HERE: usize = 20_000;
    // Alone, or with the rest of the long one behind it in the same call.
    for alone in [true, false] {
        let mut scene = Scene::new();
        let mut liar = Liar::connect(&mut scene);
        let from = scene.victim.av.insert(&liar.name);
        let (out, text) = (pattern(60_000, 1), pattern(200, 2));
        let (mut into, mut short) = (vec![0; out.len()], vec![0; text.len()]);
        scene.victim.recv(Want::tag(1).from(from), &mut into).expect("recv");
        scene.victim.recv(Want::tag(2).from(from), &mut short).expect("recv");
        liar.announce(Rts { total: out.len() as u64, stream: 1, promise: 0 }, 1);
        is_asked(&mut scene, &mut liar);
        let before = scene.victim.stats();
        liar.payload(1, 0, &out[..HERE]);
        let until = Deadline::new(10);
        while black_box(&into)[..HERE] != out[..HERE] {
            assert!(scene.victim.poll().is_empty());
            until.check(|| "the first part does not come".into());
        }
        let record = liar.message(2, &text);
        let moved = if alone {
            liar.arrives();
            come(&mut scene, 1);
            assert!(black_box(&into)[HERE..HERE + record].iter().any(|b| *b != 0), "it was not guessed");
            assert!(black_box(&into)[HERE + record..].iter().all(|b| *b == 0), "beyond what came");
            assert_eq!(short, text);
            says(&scene, &before, record, "alone");
            liar.payload(1, HERE as u64, &out[HERE..]);
            record
        } else {
            liar.payload(1, HERE as u64, &out[HERE..]);
            liar.arrives();
            // As much as the long one lacks was asked for.
            out.len() - HERE
        };
        come(&mut scene, if alone { 1 } else { 2 });
        assert!(into == out && short == text);
        says(&scene, &before, moved, "in the end");
        scene.exchange();
    }
}

/// More records were guessed, and payload comes: it stands in the ring, where nobody takes it for records, until it is moved.
#[test]
fn payload_that_stood_in_a_ring() {
    let _dog = watchdog("guess of records", 60);
    let mut scene = Scene::new();
    let mut liar = Liar::connect(&mut scene);
    let from = scene.victim.av.insert(&liar.name);
    // So long that the next ones are not put together elsewhere; and what would be sound, were it in a ring.
    let (first, out, last) = (pattern(10_000, 1), vec![1; 5000], pattern(9000, 3));
    let mut into = [&first, &out, &last].map(|b| vec![0; b.len()]);
    for (tag, buf) in into.iter_mut().enumerate() {
        scene.victim.recv(Want::tag(tag as u64).from(from), buf).expect("recv");
    }
    liar.message(0, &first);
    come(&mut scene, 1);
    // The second of two, and nothing of the first is expected.
    liar.announce(Rts { total: 70_000, stream: 1, promise: 0 }, 77);
    liar.announce(Rts { total: out.len() as u64, stream: 2, promise: 0 }, 1);
    is_asked(&mut scene, &mut liar);
    let before = scene.victim.stats();
    liar.payload(2, 0, &out);
    liar.arrives();
    come(&mut scene, 1);
    says(&scene, &before, out.len(), "in a ring");
    liar.message(2, &last);
    come(&mut scene, 1);
    assert!(into == [first, out, last]);
    scene.exchange();
}
