//! Which payload goes into a cell, and what becomes of it.
#![expect(unsafe_code)]
// UNSAFETY: makes segments of buffers, as an application does.

use super::cell::{EARLY_UP_TO, goes_early};
use super::*;
use crate::shm::layout::{CARD_CELLS, CELL};
use crate::shm::segment::Shape;

/// As tests announce payload.
const ANNOUNCE: Announce = Announce { min: EARLY, pieces: 8 };
const EARLY: usize = 8 << 10;

/// Two links of a pair of segments of 256 KiB, open or not.
fn pair(open: [bool; 2]) -> [Link; 2] {
    pair_by(open, ANNOUNCE, Engine::Plain)
}

fn pair_by(open: [bool; 2], announce: Announce, engine: Engine) -> [Link; 2] {
    let made = open.map(|open| segment::create(Shape { ring: 256 << 10, cells: 4 }, open).expect("memfd"));
    let bell = || {
        let (_fd, map) = crate::sys::memfd::create("bell", crate::shm::bell::BYTES, false).expect("memfd");
        Some((Bell::new(SharedMem::new(map)), 0))
    };
    let mut links = [0, 1].map(|i| Link::new(made[i].1.clone(), 1 << 20).announcing(announce).copying_by(engine));
    for (i, link) in links.iter_mut().enumerate() {
        let (fd, mem) = &made[1 - i];
        link.attach(segment::attach(fd, mem.bytes(), open[i]).expect("attach"), bell());
    }
    links
}

fn seg(bytes: &mut [u8]) -> UserSeg {
    // SAFETY: the tests keep buffers until they are through with them.
    unsafe { UserSeg::new(bytes.as_mut_ptr(), bytes.len()) }
}

fn send(link: &mut Link, kind: Kind, bytes: &[u8]) -> Result<u32, NotSent> {
    let before = link.position();
    let draft = Draft { kind, flags: 0, tag: 7, data: 9, body: [1, 2], iov: &[], skip: 0, len: bytes.len(), bytes };
    link.send(&draft, Class::Envelope).map(|after| after - before)
}

fn receive(link: &mut Link) -> (Header, Vec<u8>) {
    let header = link.peek().expect("sound").expect("there");
    link.find_cell(&header).expect("the sender's");
    let mut bytes = Vec::new();
    link.payload_append(&header, &mut bytes);
    if header.kind == Kind::Rts {
        assert_eq!(link.body(), [1, 2]);
    }
    link.consume(header.lines());
    link.tell();
    (header, bytes)
}

/// [`receive`], and where its payload lay.
fn receive_there(link: &mut Link) -> (Header, Vec<u8>, usize) {
    let header = link.peek().expect("sound").expect("there");
    link.find_cell(&header).expect("the sender's");
    let (memory, at) = link.place_in_cell().expect("in a cell");
    let place = memory.pointer(at, 1).addr();
    let (header, bytes) = receive(link);
    (header, bytes, place)
}

/// Payload is handed on to a peer that waits for it, and not in a row of messages.
#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn only_an_answer_is_awaited() {
    const MOST: usize = 16 << 10;
    for open in [[true, true], [false, false]] {
        let [mut a, mut b] = pair(open).map(|link| link.handing_on(MOST));
        let say = |from: &mut Link, to: &mut Link, len: usize, awaited: bool| {
            assert_eq!(from.is_awaited(len), awaited, "{len}");
            send(from, Kind::Eager, &vec![1; len]).expect("room");
            assert!(!from.is_awaited(len), "a second one is not");
            receive(to);
        };
        say(&mut a, &mut b, 100, false);
        for len in [1, 1000, MOST] {
            say(&mut b, &mut a, len, true);
            say(&mut a, &mut b, len, true);
        }
        assert!(!b.is_awaited(MOST + 1));
        // The peer is not through with what came before.
        for _ in 0..2 {
            send(&mut b, Kind::Eager, &[1; 1000]).expect("room");
        }
        receive(&mut a);
        say(&mut a, &mut b, 1000, true);
        assert!(!b.is_awaited(1000));
        receive(&mut a);
        say(&mut a, &mut b, 1000, false);
        assert!(b.is_awaited(1000));
    }
    let [a, mut b] = pair([true, true]);
    send(&mut b, Kind::Eager, &[1]).expect("room");
    assert!(!a.is_awaited(1), "unless somebody says so");
}

/// Also if what is answered is longer than the question, and if it is a long record and a short one: each lies where it lay before.
#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn an_answer_goes_where_the_question_lay() {
    for growing in [true, false] {
        let [mut a, mut b] = pair([true, true]);
        // By both mappings in turn.
        let mut seen = [const { Vec::new() }; 2];
        for round in 0..20u8 {
            let (from, to) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let kind = [Kind::Eager, Kind::Rts, Kind::Data][round as usize % 3];
            let lens = if growing { vec![1024 + 1000 * round as usize] } else { vec![CELL, 1000] };
            for len in &lens {
                assert_eq!(send(from, kind, &vec![round; *len]), Ok(1), "a line, however long");
            }
            let places: Vec<usize> = lens
                .iter()
                .map(|len| {
                    let (_, got, place) = receive_there(to);
                    assert!(got == vec![round; *len], "round {round}");
                    place
                })
                .collect();
            let seen = &mut seen[round as usize % 2];
            assert!(seen.is_empty() || *seen == places, "round {round}, growing {growing}");
            *seen = places;
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn who_has_none_sends_by_the_ring() {
    let [mut a, mut b] = pair([true, true]);
    let lines: Vec<_> = (0..6u8).map(|i| send(&mut a, Kind::Eager, &[i; 2000]).expect("room")).collect();
    assert_eq!(lines, [1, 1, 1, 1, 33, 33]);
    for i in 0..6 {
        assert_eq!(receive(&mut b).1, [i; 2000]);
    }
    // All of them are b's now.
    assert!((0..8).all(|_| send(&mut b, Kind::Eager, &[1; 2000]) == Ok(1)));
    assert_eq!(send(&mut b, Kind::Eager, &[1; 2000]), Ok(33));
}

/// A long message is announced before it is written, and its reader copies behind its writer: two threads, each ahead of the other at times.
#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn the_reader_follows_the_writer() {
    for (pieces, engine) in [(8, Engine::Plain), (2, Engine::Vectors), (1, Engine::Ahead), (64, Engine::Abreast)] {
        the_reader_follows_the_writer_by(Announce { pieces, ..ANNOUNCE }, engine);
    }
}

fn the_reader_follows_the_writer_by(announce: Announce, engine: Engine) {
    const LENS: [usize; 6] = [EARLY, EARLY + 1, 12_345, 20_000, 31_000, CELL];
    const KINDS: [Kind; 3] = [Kind::Eager, Kind::Rts, Kind::Data];
    /// A later part of a message begins somewhere in it.
    fn skip(kind: Kind) -> usize {
        if kind == Kind::Data { 1000 } else { 0 }
    }
    fn write(link: &mut Link, kind: Kind, bytes: &mut [u8]) -> bool {
        let (skip, len) = (skip(kind), bytes.len() - skip(kind));
        let (a, b) = bytes.split_at_mut(bytes.len() / 3);
        let iov = [seg(a), seg(b)];
        let draft = Draft { kind, flags: 0, tag: 7, data: 9, body: [0; 2], iov: &iov, skip, len, bytes: &[] };
        link.send(&draft, Class::Envelope).is_ok()
    }
    /// As much as there is room for: the rest is dropped.
    fn read(link: &mut Link, kind: Kind, bytes: &mut [u8]) -> bool {
        let (skip, room) = (skip(kind), bytes.len() - skip(kind));
        let iov = [seg(bytes)];
        let header = loop {
            match link.peek() {
                Ok(Some(header)) => break header,
                Ok(None) => {}
                Err(Corrupt) => return false,
            }
        };
        if link.find_cell(&header).is_err() || !header.is_in_cell() || header.kind != kind {
            return false;
        }
        while !link.follow(&header, &iov, skip, room) {}
        let placed = link.payload_to(&header, &iov, skip, room);
        link.consume(header.lines());
        link.tell();
        placed == room
    }
    let both = std::sync::Barrier::new(2);
    let [mut a, mut b] = pair_by([true, true], announce, engine);
    let side = |link: &mut Link, writes: usize| {
        // Counted, not asserted: the other one would wait for ever for a thread that is not there.
        let mut wrong = 0;
        for round in 0..1_500 {
            let (kind, around): (_, [u8; 256]) =
                (KINDS[round / LENS.len() % KINDS.len()], std::array::from_fn(|i| (i * 7 + round) as u8));
            let len = LENS[round % LENS.len()] + skip(kind);
            let sent = &around.repeat(len.div_ceil(around.len()))[..len];
            let mut bytes = if round % 2 == writes { sent.to_vec() } else { vec![0; len] };
            // Now and then it is more than there is room for.
            let room = if round % 7 == 0 { bytes.len() / 2 + 1000 } else { bytes.len() };
            both.wait();
            let done = match round % 2 == writes {
                true => write(link, kind, &mut bytes),
                false => read(link, kind, &mut bytes[..room]),
            };
            both.wait();
            let (there, beside) = bytes.split_at(if round % 2 == writes { bytes.len() } else { room });
            let from = if round % 2 == writes { 0 } else { skip(kind) };
            wrong += usize::from(!done || there[from..] != sent[from..there.len()] || beside.iter().any(|b| *b != 0));
        }
        wrong
    };
    let wrong = std::thread::scope(|scope| {
        let other = scope.spawn(|| side(&mut a, 0));
        [side(&mut b, 1), other.join().expect("counts")]
    });
    assert_eq!(wrong, [0, 0], "{announce:?} {engine:?}");
}

/// What is long enough, out of the application's memory, and neither a record of another kind nor a later part of a very long message.
#[test]
fn what_is_announced_before_it_is_written() {
    let mut memory = vec![0; EARLY_UP_TO + 1];
    let (most, more) = ([seg(&mut memory[..EARLY_UP_TO])], [seg(&mut memory)]);
    let draft = |kind, iov, len, bytes| Draft { kind, flags: 0, tag: 7, data: 9, body: [0; 2], iov, skip: 0, len, bytes };
    for kind in [Kind::Eager, Kind::Rts, Kind::Data, Kind::Put, Kind::Offer] {
        let of_message = !matches!(kind, Kind::Put | Kind::Offer);
        assert_eq!(goes_early(&draft(kind, &most, EARLY, &[]), ANNOUNCE, 0), of_message, "{kind:?}");
        assert!(!goes_early(&draft(kind, &most, EARLY - 1, &[]), ANNOUNCE, 0));
        assert_eq!(goes_early(&draft(kind, &more, EARLY, &[]), ANNOUNCE, 0), of_message && kind != Kind::Data, "{kind:?}");
        assert!(!goes_early(&draft(kind, &[], EARLY, &memory[..EARLY]), ANNOUNCE, 0));
    }
}

#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn what_stays_in_the_ring() {
    let [mut a, _b] = pair([true, true]);
    assert_eq!(send(&mut a, Kind::Inline, &[1; 100]), Ok(2), "short ones");
    assert_eq!(send(&mut a, Kind::Eager, &[1; 232]), Ok(4));
    assert_eq!(send(&mut a, Kind::Eager, &[1; 233]), Ok(1));
    assert_eq!(send(&mut a, Kind::Put, &[1; 2000]), Ok(33), "what is no message");
    assert_eq!(send(&mut a, Kind::Eager, &vec![1; CELL + 1]), Ok(514), "what is too long");
    assert_eq!(send(&mut a, Kind::Eager, &vec![1; CELL]), Ok(1));
    // By the way of the common case, too, whatever is announced.
    for min in [1 << 10, CELL, 64 << 10, usize::MAX] {
        let [mut a, mut b] = pair_by([true, true], Announce { min, pieces: 2 }, Engine::Vectors);
        for (len, lines) in [(232, 4), (233, 1), (2000, 1), (CELL + 1, 514), (CELL, 1)] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let before = a.position();
            let sent = a.send_eager((0, 7, 9), &seg(&mut bytes)).map(|after| after - before);
            assert_eq!(sent, Ok(lines), "{len} bytes, announced from {min} on");
            assert!(receive(&mut b).1 == bytes, "{len} bytes, announced from {min} on");
        }
    }
    for open in [[false, false], [false, true]] {
        let [mut a, b] = pair(open);
        assert_eq!(a.mine().word(CARD_CELLS).load(Ordering::Relaxed), 0);
        assert_eq!(send(&mut a, Kind::Eager, &[1; 2000]), Ok(33), "sealed");
        drop(b);
    }
}

#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn what_does_not_go_out_costs_no_cell() {
    let [mut a, mut b] = pair([true, true]);
    // Until the ring is full.
    while send(&mut a, Kind::Inline, &[1; 8]).is_ok() {}
    for _ in 0..10 {
        assert_eq!(send(&mut a, Kind::Eager, &[1; 2000]), Err(NotSent::Full));
        assert_eq!(a.send_eager((0, 7, 9), &seg(&mut [1; 2000])), Err(NotSent::Full));
    }
    while b.peek().expect("sound").is_some() {
        receive(&mut b);
    }
    assert!((0..4u8).all(|i| send(&mut a, Kind::Eager, &[i; 2000]) == Ok(1)), "all four are there");
    assert!((0..4u8).all(|i| receive(&mut b).1 == [i; 2000]));
}
