//! Changes by other threads: between look-ups, during them, and at a place that one thread unmaps while another maps it.

use super::common::Rng;
use super::space::{self, Answer, PAGE, Space, write};
use rustix::fd::OwnedFd;
use rustmx::cache::exports::Exports;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const CELLS: usize = 24;
const CELL: usize = 8;
const PAUSE: Duration = Duration::from_micros(300);

/// Cells of memory: even, free; odd, somebody uses it. A cell that is free is memory.
struct Cells {
    versions: Vec<AtomicU64>,
    files: Vec<OwnedFd>,
    changes: AtomicU64,
    stop: AtomicBool,
}

impl Cells {
    fn take(&self, cell: usize, version: u64) -> bool {
        version & 1 == 0
            && self.versions[cell].compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn give(&self, cell: usize, version: u64) {
        self.versions[cell].store(version + 2, Ordering::Release);
    }
}

fn address(cell: usize) -> usize {
    // Not beside each other: mappings must not become one.
    Space::address(2 * cell * CELL)
}

fn mutate(cells: &Cells, mut rng: Rng) {
    while !cells.stop.load(Ordering::Relaxed) {
        let cell = rng.range(0, CELLS);
        let version = cells.versions[cell].load(Ordering::Acquire);
        if !cells.take(cell, version) {
            continue;
        }
        let (at, from) = (address(cell), rng.range(0, space::FILE_PAGES - CELL));
        let file = (&cells.files[rng.range(0, cells.files.len())], from);
        match rng.below(5) {
            0 => assert!(space::map(at, CELL, Some(file), true)),
            1 => {
                space::unmap(at, CELL);
                assert!(space::map(at, CELL, Some(file), false));
            }
            2 => {
                let half = CELL / 2 * PAGE;
                space::unmap(at + half, CELL / 2);
                assert!(space::map(at + half, CELL / 2, Some(file), false));
            }
            3 => {
                // Away, something else there, and the rest of it gone.
                let away = at + CELL * PAGE;
                space::remap(at, CELL, CELL, Some(away), false);
                assert!(space::map(at, CELL, Some(file), true));
                space::unmap(away, CELL);
            }
            _ => {
                space::advise(at, CELL, rustix::mm::Advice::LinuxDontNeed);
            }
        }
        cells.changes.fetch_add(1, Ordering::Relaxed);
        cells.give(cell, version);
        // Else something is always under way, and hardly anything is ever cached.
        std::thread::sleep(PAUSE);
    }
}

/// Look-ups while two threads change things, until there were `enough` changes, and answers compared with the truth.
pub fn crowd(mut exports: Exports, enough: u64, seed: u64) -> (String, u64) {
    let files = (0..4).map(|_| space::memfd(true)).collect();
    let versions = (0..CELLS).map(|_| AtomicU64::new(0)).collect();
    let cells = Arc::new(Cells { versions, files, changes: AtomicU64::new(0), stop: AtomicBool::new(false) });
    for cell in 0..CELLS {
        assert!(space::map(address(cell), CELL, Some((&cells.files[0], CELL * cell % 128)), true));
    }
    let mutators: Vec<_> = (0..2)
        .map(|n| {
            let (cells, rng) = (cells.clone(), Rng(seed + 1 + n));
            std::thread::spawn(move || mutate(&cells, rng))
        })
        .collect();
    let mut rng = Rng(seed);
    let (mut looks, mut hits, mut checked, mut stale) = (0u64, 0u64, 0u64, 0u64);
    while checked < enough || cells.changes.load(Ordering::Relaxed) < enough {
        // Cells are looked at in rows: what comes again is cached.
        let cell = rng.range(0, CELLS);
        for _ in 0..6 {
            let version = cells.versions[cell].load(Ordering::Acquire);
            // Also while somebody changes it: then the answer is nobody's.
            let found = exports.look(address(cell), CELL * PAGE);
            looks += 1;
            hits += u64::from(found.is_some());
            let Some(answer) = found.map(|export| Answer::of(&export)) else { continue };
            if !cells.take(cell, version) {
                continue;
            }
            // Nobody began or ended a change since before the look-up.
            let stamps = write(address(cell), CELL * PAGE);
            checked += 1;
            stale += u64::from(!answer.is_true(address(cell), CELL * PAGE, &stamps));
            cells.give(cell, version);
        }
    }
    cells.stop.store(true, Ordering::Relaxed);
    mutators.into_iter().for_each(|m| m.join().expect("mutator"));
    let changes = cells.changes.load(Ordering::Relaxed);
    let counts = exports.counts();
    let seen = format!(
        "looks={looks} hits={hits} checked={checked} stale={stale} changes={changes} changed={} in_doubt={} lost={}",
        counts.changed, counts.in_doubt, counts.lost
    );
    (seen, stale)
}

/// One thread unmaps a place; another gets the same place from the kernel before the first one's call has returned, and
/// looks. The answers that were settled must be right. Those that were not asked about may be stale: the exception of ADR 0015.
///
/// A hit in that moment is always on what was there before: the files take turns. So settled it must never be, and what settled hits say is checked where there are some:
/// before the change begins, when nothing is under way and each hit must be settled, and after the call that unmaps has returned.
pub fn reuse(mut exports: Exports, rounds: usize) -> (String, u64) {
    let files = [space::memfd(true), space::memfd(true)];
    let at = Space::address(0);
    let go = Arc::new(AtomicUsize::new(0));
    let unmapper = {
        let go = go.clone();
        std::thread::spawn(move || {
            for round in 1..=rounds {
                while go.load(Ordering::Acquire) != 2 * round - 1 {
                    std::thread::yield_now();
                }
                space::unmap(at, CELL);
                go.store(2 * round, Ordering::Release);
            }
        })
    };
    assert!(space::map(at, CELL, Some((&files[0], 0)), false));
    let (mut early, mut cached, mut hits, mut unsettled, mut stale, mut stale_settled) = (0u64, 0u64, 0u64, 0u64, 0u64, 0u64);
    let mut doubted_in_peace = 0u64;
    for round in 1..=rounds {
        // Unless changes are still coming in.
        let known = (0..2000).find_map(|_| exports.look(at, CELL * PAGE).map(|export| Answer::of(&export)));
        cached += u64::from(known.is_some());
        let settled = exports.settled();
        let stamps = write(at, CELL * PAGE);
        if let Some(answer) = known {
            hits += 1;
            doubted_in_peace += u64::from(!settled);
            stale_settled += u64::from(settled && !answer.is_true(at, CELL * PAGE, &stamps));
        }
        go.store(2 * round - 1, Ordering::Release);
        let mut tries = 0u32;
        while !space::map(at, CELL, Some((&files[round % 2], 0)), false) {
            tries += 1;
            if tries.is_multiple_of(64) {
                // The other may be waiting for this very core.
                std::thread::yield_now();
            }
        }
        early += u64::from(go.load(Ordering::Acquire) != 2 * round);
        let found = exports.look(at, CELL * PAGE).map(|export| Answer::of(&export));
        // Asked at once, or when the answer was used, as a sender does that waits for its peer.
        let at_once = round % 4 < 2 && exports.settled();
        let stamps = write(at, CELL * PAGE);
        let settled = if round % 4 < 2 { at_once } else { exports.settled() };
        if let Some(answer) = found {
            let right = answer.is_true(at, CELL * PAGE, &stamps);
            hits += 1;
            unsettled += u64::from(!settled);
            stale += u64::from(!right);
            stale_settled += u64::from(!right && settled);
        }
        while go.load(Ordering::Acquire) != 2 * round {
            std::thread::yield_now();
        }
        // Its call has returned: what is found from here on is what is there, settled or not.
        let found = exports.look(at, CELL * PAGE).map(|export| Answer::of(&export));
        let settled = exports.settled();
        let stamps = write(at, CELL * PAGE);
        if let Some(answer) = found {
            hits += 1;
            unsettled += u64::from(!settled);
            stale_settled += u64::from(!answer.is_true(at, CELL * PAGE, &stamps));
        }
    }
    unmapper.join().expect("unmapper");
    let seen = format!(
        "rounds={rounds} cached={cached} mapped_early={early} hits={hits} unsettled={} doubted_in_peace={doubted_in_peace} \
         stale_unasked={stale} stale_settled={stale_settled}",
        unsettled + doubted_in_peace
    );
    // Doubt where there is no reason is no danger, but then nothing would be checked.
    (seen, stale_settled + doubted_in_peace + u64::from(cached == 0))
}
