//! What is held, and when it leaves, of a connection whose time a test makes.

use super::tests::{Scene, draft, seg};
use crate::sys::clock::Clock;
use crate::transport::link::Class;
use crate::transport::{Bulk, InPlace, Moved};
use std::sync::atomic::Ordering;

/// A writes so many records, so many nanoseconds apart. After which of them something left.
fn write(scene: &mut Scene, records: usize, gap: u64) -> Vec<bool> {
    let a = scene.a.connection.clone();
    let in_the_socket = |scene: &Scene| rustix::io::ioctl_fionread(&scene.there.from).expect("a socket");
    let write = |_| {
        let Clock::Manual(now) = &a.office().clock else { panic!("a clock of the test's") };
        now.fetch_add(gap, Ordering::Relaxed);
        let before = in_the_socket(scene);
        scene.a.link.send(&draft(&[1; 8]), Class::Envelope).expect("room");
        in_the_socket(scene) > before
    };
    (0..records).map(write).collect()
}

/// A's turn. B reads as many records as there were written.
fn settle(scene: &mut Scene, records: usize) {
    scene.turn();
    while scene.there.pass(1 << 16) > 0 {}
    let mut read = 0;
    while read < records {
        scene.b.connection.read(true);
        while let Some(header) = scene.b.link.peek().expect("sound") {
            scene.b.link.consume(header.lines());
            read += 1;
        }
    }
    scene.b.link.tell();
    scene.b.connection.pay(true);
    scene.back();
    scene.a.connection.read(true);
    scene.a.link.refresh().expect("sound");
}

/// Writes bursts until the first message of one is held; then nothing of it may leave before the turn.
fn until_held(scene: &mut Scene) {
    for turn in 0.. {
        let left = write(scene, 10, 100);
        settle(scene, 10);
        assert!(!left[1..].contains(&true), "what follows waits for the turn: {left:?}");
        assert!(turn < 100, "nothing is ever held");
        if !left[0] {
            return;
        }
    }
}

/// The first message of many bursts is held, and leaves with the others.
#[test]
fn bursts_leave_as_one() {
    let mut scene = Scene::new();
    assert!(write(&mut scene, 1, 0)[0], "the first one leaves at once");
    settle(&mut scene, 1);
    until_held(&mut scene);
    for _ in 0..20 {
        assert!(!write(&mut scene, 10, 100).contains(&true));
        settle(&mut scene, 10);
    }
}

/// A second one that comes late takes it along, and the next first one leaves at once.
#[test]
fn what_was_held_wrongly_leaves_as_soon_as_that_is_seen() {
    let mut scene = Scene::new();
    until_held(&mut scene);
    assert_eq!(write(&mut scene, 3, 1001), [false, true, false]);
    settle(&mut scene, 3);
    assert!(write(&mut scene, 10, 100)[0]);
    settle(&mut scene, 10);
    until_held(&mut scene);
    assert_eq!(write(&mut scene, 1, 0), [false]);
    settle(&mut scene, 1);
    assert!(write(&mut scene, 1, 0)[0], "there was but one");
    settle(&mut scene, 1);
}

/// Payload is not held, nor is what was written before it.
#[test]
fn payload_takes_it_along() {
    let mut scene = Scene::new();
    until_held(&mut scene);
    assert_eq!(write(&mut scene, 1, 0), [false]);
    let (mut source, mut place) = ([7u8; 100], [0u8; 100]);
    let (from, to) = ([seg(&mut source)], [seg(&mut place)]);
    let bulk = Bulk { id: 9, iov: &from, skip: 0, len: 100, promised: 100 };
    assert_eq!(scene.b.connection.expect(Bulk { iov: &to, ..bulk }), Moved::Later);
    assert_eq!(scene.a.connection.post(bulk), Moved::AtOnce);
    while scene.there.pass(1 << 16) > 0 {}
    scene.b.connection.read(true);
    assert_eq!(place, source);
    settle(&mut scene, 1);
}

/// Who is about to sleep takes no turn.
#[test]
fn nothing_is_held_while_somebody_sleeps() {
    let mut scene = Scene::new();
    until_held(&mut scene);
    scene.a.connection.office().asleep.store(true, Ordering::Relaxed);
    assert_eq!(write(&mut scene, 2, 0), [true, true]);
    settle(&mut scene, 2);
}

/// What was read is told as soon as there is room for that, if there was none when it was to be told.
#[test]
fn news_wait_for_room() {
    let mut scene = Scene::narrow();
    let mut source = vec![7u8; 40_000];
    let (len, from) = (source.len(), [seg(&mut source)]);
    let bulk = Bulk { id: 9, iov: &from, skip: 0, len, promised: len };
    assert_eq!(scene.a.connection.post(bulk), Moved::Later);
    const RECORDS: usize = 20;
    for _ in 0..RECORDS {
        scene.b.link.send(&draft(&[1; 100]), Class::Envelope).expect("room");
    }
    scene.b.connection.flush();
    let mut read = 0;
    while read < RECORDS {
        scene.back();
        scene.a.connection.read(true);
        while let Some(header) = scene.a.link.peek().expect("sound") {
            scene.a.link.consume(header.lines());
            read += 1;
        }
    }
    scene.a.link.tell();
    scene.a.link.tell_of_room();
    let owes = |scene: &Scene| scene.a.connection.halves.lock().outgoing.owes_much();
    assert!(owes(&scene), "there was room");
    let told = (0..1_000_000).any(|_| {
        scene.there.pass(1 << 16);
        scene.turn();
        !owes(&scene)
    });
    assert!(told);
}
