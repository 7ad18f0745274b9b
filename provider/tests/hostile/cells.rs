//! Payload in cells: those that are the liar's, those that are not, and those that there are not.

use crate::common::{Deadline, pattern, watchdog};
use crate::liar::Liar;
use crate::scene::{GUARD, Scene};
use rustmx::Config;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::shm::layout::{CARD_CELLS, CELL, CREDIT, LINE_WORDS, MOST_CELLS};
use rustmx::wire::header::{Kind, Rts, flag};

/// The word of a record's line that says how many bytes are in its cell.
const FILLED: usize = LINE_WORDS - 2;

fn scene() -> Scene {
    Scene::with(Config { rings: 2, ..Config::default() })
}

/// The receive that messages are for is one of several, or the oldest of all.
const OLDEST: [usize; 2] = [0, 2];

/// A message of `len` bytes for the receive of 5000 bytes, whose payload is said to be in cell `name`.
fn say(liar: &Liar, position: usize, len: u64, name: u64) {
    announce(liar, position, len, name, len);
}

/// The same, of which `filled` bytes are said to be there.
fn announce(liar: &Liar, position: usize, len: u64, name: u64, filled: u64) {
    announce_for(2, liar, position, len, name, filled);
}

/// The same for the receive of this slot.
fn announce_for(slot: u64, liar: &Liar, position: usize, len: u64, name: u64, filled: u64) {
    let at = position * LINE_WORDS;
    for (word, value) in [(1, slot), (2, 0), (FILLED, filled), (LINE_WORDS - 1, name)] {
        liar.ring(at + word).store(value, Ordering::Relaxed);
    }
    let flags = u64::from(flag::TAGGED | flag::IN_CELL);
    liar.ring(at).store(Kind::Eager as u64 | flags << 4 | (position as u64) << 8 | len << 16, Ordering::Release);
}

/// Where the liar's cells are.
fn first_cell(liar: &Liar) -> usize {
    let cells = liar.mem.word(CARD_CELLS).load(Ordering::Relaxed) as usize;
    assert!(cells > 0, "an open segment has some");
    liar.mem.bytes() - cells * CELL
}

#[test]
fn a_cell_is_given_once() {
    let _dog = watchdog("cells", 60);
    OLDEST.into_iter().for_each(a_cell_is_given_once_to);
}

fn a_cell_is_given_once_to(oldest: usize) {
    let mut scene = scene();
    scene.oldest = oldest;
    scene.post();
    let liar = Liar::with_cells(&mut scene.victim);
    let payload = pattern(2000, 3);
    liar.mem.fill_bytes(first_cell(&liar) + CELL, &payload);
    say(&liar, 0, 2000, 1 << 1);
    let until = Deadline::new(5);
    while scene.slots[2].posted {
        scene.turns(1);
        until.check(|| "the message of a liar that tells the truth".into());
    }
    assert!(scene.slots[2].bytes[GUARD..][..2000] == payload[..]);
    scene.post();
    let lost = scene.victim.stats().lost;
    say(&liar, 1, 2000, 1 << 1);
    scene.gone(lost + 1, "it is the victim's now");
    scene.nothing_was_swallowed("a cell given twice");
    scene.exchange();
}

#[test]
fn cells_that_are_not_the_liars() {
    let _dog = watchdog("cells", 120);
    OLDEST.into_iter().for_each(cells_that_are_not_the_liars_for);
}

/// (The victim has one peer or a few, and so as many cells as there may be.)
fn cells_that_are_not_the_liars_for(oldest: usize) {
    let mut scene = scene();
    scene.oldest = oldest;
    let cases = [
        ("the victim's", true, 2000, 1),
        ("the victim's last one", true, 2000, (MOST_CELLS as u64 - 1) << 1 | 1),
        ("one more than the victim has", true, 2000, (MOST_CELLS as u64) << 1 | 1),
        ("one more than the liar has", true, 2000, 4 << 1),
        ("more than a byte counts", true, 2000, 256 << 1),
        ("a number that is none", true, 2000, u64::MAX),
        ("more than there is in one", true, CELL as u64 + 1, 0),
        ("one of a sealed segment", false, 2000, 0),
        ("the victim's, where the liar has none", false, 2000, 1),
    ];
    for (what, open, len, name) in cases {
        scene.post();
        let liar = if open { Liar::with_cells(&mut scene.victim) } else { Liar::connected(&mut scene.victim) };
        let lost = scene.victim.stats().lost;
        say(&liar, 0, len, name);
        scene.gone(lost + 1, what);
        scene.nothing_was_swallowed(what);
        scene.exchange();
        scene.clean();
    }
    // Whose rings are sealed has no cells, whatever a peer says.
    let mut sealed = Scene::new();
    let liar = Liar::with_cells(&mut sealed.victim);
    let lost = sealed.victim.stats().lost;
    for name in [1, 3] {
        say(&liar, 0, 2000, name);
    }
    sealed.gone(lost + 1, "sealed");
    sealed.exchange();
}

/// An announced message lands as its payload comes, the peers of its receiver notice nothing of that, and what is said of it meanwhile changes nothing.
#[test]
fn payload_that_follows() {
    let _dog = watchdog("cells", 120);
    OLDEST.into_iter().for_each(payload_that_follows_for);
}

fn payload_that_follows_for(oldest: usize) {
    let header = |kind: Kind, flags: u8, len: u64| kind as u64 | u64::from(flags) << 4 | len << 16;
    let eager = |len| header(Kind::Eager, flag::TAGGED | flag::IN_CELL, len);
    let changes =
        [None, Some(eager(60_000)), Some(eager(100)), Some(header(Kind::Inline, flag::TAGGED, 8)), Some(u64::MAX), Some(0)];
    for (i, change) in changes.into_iter().enumerate() {
        let mut scene = scene();
        scene.oldest = oldest;
        scene.post();
        let liar = Liar::with_cells(&mut scene.victim);
        let payload = pattern(5000, i);
        announce(&liar, 0, 5000, 0, 0);
        let mut written = 0;
        for filled in [0, 2048, 100, 4096] {
            let there = filled.max(written);
            liar.mem.fill_bytes(first_cell(&liar) + written, &payload[written..there]);
            written = there;
            liar.ring(FILLED).store(filled as u64, Ordering::Release);
            scene.turns(20);
            assert!(scene.slots[2].posted, "{filled} of 5000 are not all");
            let (there, rest) = scene.slots[2].bytes[GUARD..GUARD + 5000].split_at(written);
            assert!(there == &payload[..written] && rest.iter().all(|b| *b == 0xee), "{filled}");
            scene.exchange();
        }
        if let Some(change) = change {
            // For another receive, too, the oldest.
            liar.ring(1).store(0, Ordering::Relaxed);
            liar.ring(0).store(change, Ordering::Release);
            liar.ring(LINE_WORDS - 1).store(3 << 1, Ordering::Release);
        }
        liar.mem.fill_bytes(first_cell(&liar) + written, &payload[written..]);
        liar.ring(FILLED).store(if i % 2 == 0 { 5000 } else { u64::MAX }, Ordering::Release);
        if change == Some(0) {
            // Nobody looks at an empty line.
            scene.turns(50);
            assert!(scene.slots[2].posted);
            let lost = scene.victim.stats().lost;
            drop(liar);
            scene.gone(lost + 1, "it died");
        } else {
            let until = Deadline::new(5);
            while scene.slots[2].posted {
                scene.turns(1);
                until.check(|| format!("change {i}"));
            }
            assert!(scene.slots[2].bytes[GUARD..][..5000] == payload[..], "change {i}");
            assert!(scene.slots[0].posted, "change {i}");
        }
        scene.exchange();
    }
}

/// A record of a stream of 5000 bytes for the receive of as many: its first fragment, or else the next one. Its payload is said to be in cell `name`, `filled` bytes so far.
fn announce_part(liar: &Liar, position: usize, first: bool, (from, len): (u64, u64), name: u64, filled: u64) {
    const STREAM: u32 = 77;
    let rts = Rts { total: 5000, stream: STREAM, promise: 5000 }.emit();
    let (kind, flags, words) = match first {
        true => (Kind::Rts, flag::TAGGED, [2, 0, rts[0], rts[1]]),
        false => (Kind::Data, 0, [STREAM.into(), from, 0, 0]),
    };
    let at = position * LINE_WORDS;
    for (i, value) in words.into_iter().enumerate() {
        liar.ring(at + 1 + i).store(value, Ordering::Relaxed);
    }
    liar.ring(at + FILLED).store(filled, Ordering::Relaxed);
    liar.ring(at + LINE_WORDS - 1).store(name, Ordering::Relaxed);
    let header = kind as u64 | u64::from(flags | flag::IN_CELL) << 4 | (position as u64) << 8 | len << 16;
    liar.ring(at).store(header, Ordering::Release);
}

/// Fragments of a stream land as their payload comes, too. `stops`: after so many looks the writer is gone. `change`: what becomes of a fragment's header while it is being followed.
fn stream_that_follows(stops: Option<usize>, change: Option<u64>) {
    const FIRST: usize = 3000;
    let mut scene = scene();
    scene.post();
    let liar = Liar::with_cells(&mut scene.victim);
    let lost = scene.victim.stats().lost;
    let payload = pattern(5000, 5);
    let mut looks = 0;
    for (position, (from, until)) in [(0, FIRST), (FIRST, 5000)].into_iter().enumerate() {
        announce_part(&liar, position, position == 0, (from as u64, (until - from) as u64), (position as u64) << 1, 0);
        let mut written = from;
        // What is said goes back and forth, and past the end.
        for filled in [0, 1024, 100, until - from - 1, usize::MAX] {
            if stops == Some(looks) {
                drop(liar);
                scene.gone(lost + 1, "it is dead");
                scene.turns(1);
                assert!(!scene.slots[2].posted, "its receive has failed");
                scene.nothing_was_swallowed("a stream that never came");
                return scene.exchange();
            }
            looks += 1;
            if filled == 100
                && let Some(change) = change
            {
                liar.ring(position * LINE_WORDS).store(change | (position as u64) << 8, Ordering::Release);
                liar.ring(position * LINE_WORDS + 1).store(0, Ordering::Release);
            }
            let there = until.min(from.saturating_add(filled)).max(written);
            liar.mem.fill_bytes(first_cell(&liar) + position * CELL + written - from, &payload[written..there]);
            written = there;
            liar.ring(position * LINE_WORDS + FILLED).store(filled as u64, Ordering::Release);
            scene.turns(20);
            assert_eq!(scene.slots[2].posted, written < 5000, "{written} of 5000");
            let (there, rest) = scene.slots[2].bytes[GUARD..GUARD + 5000].split_at(written);
            assert!(there == &payload[..written] && rest.iter().all(|b| *b == 0xee), "{written}");
            scene.exchange();
        }
    }
    assert_eq!(stops, None, "it stops before");
}

#[test]
fn fragments_that_follow() {
    let _dog = watchdog("cells", 60);
    for stops in (0..10).map(Some).chain([None]) {
        stream_that_follows(stops, None);
    }
    let header = |kind: Kind, flags: u8, len: u64| kind as u64 | u64::from(flags) << 4 | len << 16;
    for (kind, flags, len) in [
        (Kind::Inline, flag::TAGGED, 200),
        (Kind::Eager, flag::TAGGED, 200),
        (Kind::Eager, flag::TAGGED | flag::IN_CELL, 2000),
        (Kind::Data, flag::IN_CELL, 500),
        (Kind::Put, flag::LAST, 30),
    ] {
        stream_that_follows(None, Some(header(kind, flags, len)));
    }
}

/// What is said of a fragment that is still being written is checked before anything of it goes anywhere.
#[test]
fn fragments_that_lie() {
    let _dog = watchdog("cells", 60);
    // Past the promise; not where the last one ended; no stream; more than a cell holds.
    let cases = [(3000, 2001, 0), (2999, 2000, 0), (3000, 2000, 1), (3000, CELL as u64 + 1, 0)];
    for (from, len, other) in cases {
        let mut scene = scene();
        scene.post();
        let liar = Liar::with_cells(&mut scene.victim);
        let lost = scene.victim.stats().lost;
        liar.mem.fill_bytes(first_cell(&liar), &pattern(3000, 5));
        announce_part(&liar, 0, true, (0, 3000), 0, 3000);
        scene.turns(20);
        let before = scene.slots[2].bytes.clone();
        liar.ring(LINE_WORDS + 1).store(0, Ordering::Relaxed);
        announce_part(&liar, 1, false, (from, len), 1 << 1, 100);
        if other != 0 {
            // Told before anybody looked: the turns come next.
            liar.ring(LINE_WORDS + 1).store(78, Ordering::Relaxed);
        }
        scene.gone(lost + 1, "a fragment that lies");
        scene.turns(1);
        assert!(scene.slots[2].bytes == before, "nothing of it went anywhere: {from} {len}");
        scene.nothing_was_swallowed("a fragment that lies");
        scene.exchange();
    }
}

/// Who dies while it writes a message fails the receive, and nothing else.
#[test]
fn who_dies_while_writing() {
    let _dog = watchdog("cells", 60);
    OLDEST.into_iter().for_each(who_dies_while_writing_for);
}

fn who_dies_while_writing_for(oldest: usize) {
    let mut scene = scene();
    scene.oldest = oldest;
    scene.post();
    let liar = Liar::with_cells(&mut scene.victim);
    let lost = scene.victim.stats().lost;
    announce(&liar, 0, 5000, 0, 1024);
    scene.turns(20);
    assert!(scene.slots[2].posted);
    drop(liar);
    scene.gone(lost + 1, "it is dead");
    scene.turns(1);
    assert!(!scene.slots[2].posted, "its receive has failed");
    scene.nothing_was_swallowed("a message that never came");
    scene.exchange();
}

/// A receive that is too short for an announced message takes what fits, whenever that comes, and is told so once.
#[test]
fn payload_that_follows_and_does_not_fit() {
    let _dog = watchdog("cells", 60);
    for (slot, cap, oldest) in [(0, 0, 0), (0, 0, 2), (1, 100, 1), (1, 100, 0)] {
        let mut scene = scene();
        scene.oldest = oldest;
        scene.post();
        let liar = Liar::with_cells(&mut scene.victim);
        let payload = pattern(5000, 7);
        announce_for(slot as u64, &liar, 0, 5000, 0, 0);
        let mut written = 0;
        for filled in [64, 3000, 4999, 5000] {
            liar.mem.fill_bytes(first_cell(&liar) + written, &payload[written..filled]);
            written = filled;
            liar.ring(FILLED).store(filled as u64, Ordering::Release);
            scene.turns(20);
            assert_eq!(scene.slots[slot].posted, filled < 5000, "{filled} of 5000");
            assert!(scene.slots[slot].bytes[GUARD..][..cap.min(filled)] == payload[..cap.min(filled)], "{filled}");
        }
        // Its cell is the victim's now.
        let lost = scene.victim.stats().lost;
        say(&liar, 1, 2000, 0);
        scene.gone(lost + 1, "a cell given twice");
        scene.nothing_was_swallowed("a message that was too long");
        scene.exchange();
    }
}

/// What an announced message takes of the window it gives back when it is there, no more and no less.
#[test]
fn payload_that_follows_gives_the_window_back() {
    let _dog = watchdog("cells", 60);
    // One of four messages would find none left if as much again was taken for each.
    const WINDOW: u64 = 64 << 10;
    const LEN: u64 = 30_000;
    for oldest in [0, 3] {
        let mut scene = Scene::with(Config { rings: 2, eager_window: WINDOW, ..Config::default() });
        if oldest == 3 {
            // The only one each time: the others are left out.
            scene.slots[..3].iter_mut().for_each(|slot| slot.posted = true);
        }
        let liar = Liar::with_cells(&mut scene.victim);
        let credit = || liar.theirs.as_ref().expect("the victim's").word(CREDIT).load(Ordering::Relaxed);
        for round in 0..4 {
            scene.post();
            announce_for(3, &liar, round, LEN, (round as u64) << 1, 0);
            scene.turns(20);
            assert!(scene.slots[3].posted && credit() == WINDOW + LEN * round as u64, "round {round}: {}", credit());
            liar.ring(round * LINE_WORDS + FILLED).store(LEN, Ordering::Release);
            let until = Deadline::new(5);
            while scene.slots[3].posted {
                scene.turns(1);
                until.check(|| format!("round {round}, oldest {oldest}"));
            }
            assert_eq!(credit(), WINDOW + LEN * (round as u64 + 1));
        }
        scene.exchange();
    }
}

/// What stays in the ring of a dead peer, since it was announced and never written, takes no further receive, though something of that peer is still held here.
#[test]
fn what_the_dead_have_announced() {
    let _dog = watchdog("cells", 60);
    for (hot_peers, stream) in [(8, false), (1, false), (1, true)] {
        let mut scene = Scene::with(Config { rings: 2, hot_peers, ..Config::default() });
        scene.post();
        // Another one that is not polled, so that such ones are looked at.
        let _idle = Liar::connected(&mut scene.victim);
        let mut liar = Liar::with_cells(&mut scene.victim);
        liar.write(Kind::Inline, 50, 0, [0; 2], &mut [1; 8]);
        scene.turns(20);
        let (lost, bell) = (scene.victim.stats().lost, liar.bell.take().expect("the victim's"));
        // The ring's first line is taken.
        match stream {
            true => announce_part(&liar, 1, true, (0, 3000), 0, 1024),
            false => announce(&liar, 1, 5000, 0, 1024),
        }
        (0..64).for_each(|slot| bell.ring(slot));
        scene.turns(20);
        drop(liar);
        scene.gone(lost + 1, "it is dead");
        scene.turns(1);
        assert!(!scene.slots[2].posted, "its receive has failed");
        scene.post();
        for _ in 0..50 {
            (0..64).for_each(|slot| bell.ring(slot));
            scene.turns(1);
        }
        scene.nothing_was_swallowed("what a dead peer had announced");
        scene.exchange();
        scene.clean();
    }
}

/// A card that says what cannot be, or is changed after it was read.
#[test]
fn a_card_that_lies() {
    let _dog = watchdog("card", 30);
    for cells in [5, 8, 100, u64::MAX, 1 << 59] {
        let mut scene = scene();
        scene.post();
        let liar = Liar::with_cells(&mut scene.victim);
        let theirs = liar.open.clone().expect("open");
        for mem in [&liar.mem, &theirs] {
            mem.word(CARD_CELLS).store(cells, Ordering::Release);
        }
        let lost = scene.victim.stats().lost;
        say(&liar, 0, 2000, 7 << 1);
        scene.gone(lost + 1, "a cell that was not there when the card was read");
        scene.exchange();
    }
}
