//! What fuzzing has found worth keeping (`fuzz/corpus/`), once more: by the same entry points, without a fuzzer. And random changes of it: by
//! default a few, so many as `RUSTMX_SEEDS` says for each target, or the one of `RUSTMX_SEED`.

#[path = "../common/mod.rs"]
mod common;
mod entry;

use common::{Rng, watchdog};
use std::path::Path;

/// Random changes of each target's corpus.
const CHANGES: u64 = 100;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

/// Changes bytes as fuzzers do: other values, pieces that are missing, doubled, or another file's.
fn change(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    let end = (at + rng.below(24) as usize).min(bytes.len());
    match rng.below(6) {
        0 if at < bytes.len() => bytes[at] = rng.pick(&[0, 1, 63, 64, 127, 128, 252, 253, 254, 255]),
        1 if at < bytes.len() => bytes[at] = rng.next() as u8,
        2 => drop(bytes.drain(at..end)),
        3 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        4 => bytes.truncate(at),
        _ => {
            let from = rng.below(other.len() as u64 + 1) as usize;
            bytes.splice(at..at, other[from..].iter().copied());
        }
    }
}

fn replay(target: &str, entry: fn(&[u8])) {
    let seeds = match variable("RUSTMX_SEED") {
        Some(one) => one..one + 1,
        None => 1..variable("RUSTMX_SEEDS").unwrap_or(CHANGES) + 1,
    };
    let _dog = watchdog("corpus", 300 + seeds.end / 10);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).expect("corpus").map(|f| f.expect("file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "nothing in {}", folder.display());
    let files: Vec<_> = files.iter().map(|file| (file, std::fs::read(file).expect("read"))).collect();
    for (file, bytes) in &files {
        // Said before: it is the one that fails, if one does.
        println!("{}", file.display());
        entry(bytes);
    }
    for seed in seeds {
        println!("{target}: RUSTMX_SEED={seed}");
        let mut rng = Rng(seed);
        let [mut bytes, other] = [0; 2].map(|_: u8| files[rng.below(files.len() as u64) as usize].1.clone());
        for _ in 0..rng.range(1, 6) {
            change(&mut rng, &mut bytes, &other);
        }
        entry(&bytes[..bytes.len().min(4096)]);
    }
}

#[test]
fn strangers() {
    replay("stranger", entry::stranger);
}

#[test]
fn frames() {
    replay("frames", entry::frames);
}

#[test]
fn control() {
    replay("control", entry::control);
}

#[test]
fn parsers() {
    replay("parsers", entry::parsers);
}

#[test]
fn keyed() {
    replay("keyed", entry::keyed::keyed);
}
