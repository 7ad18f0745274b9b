//! What fuzzing has found worth keeping (`fuzz/corpus/`), once more: by the same entry points, without a fuzzer.

#[path = "../common/mod.rs"]
mod common;
mod entry;

use common::watchdog;
use std::path::Path;

fn replay(target: &str, entry: fn(&[u8])) {
    let _dog = watchdog("corpus", 300);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).expect("corpus").map(|f| f.expect("file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "nothing in {}", folder.display());
    for file in files {
        // Said before: it is the one that fails, if one does.
        println!("{}", file.display());
        entry(&std::fs::read(&file).expect("read"));
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
