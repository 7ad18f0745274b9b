//! A peer that runs as our user and lies: about who it is, in its hello, in its ring, about what it has read, and on the bell.
//! Whatever it does, the victim neither crashes nor hangs nor reads or writes past a buffer, loses nothing that is not the liar's,
//! and goes on talking to a well-behaved peer.
//!
//! | file | what it is |
//! |---|---|
//! | `liar.rs` | the liar: an engine's side of a connection, done by hand |
//! | `scene.rs` | its victim with receives that it can match, and a well-behaved peer |
//! | `lies.rs` | one lie in a ring at a time |
//! | `sound.rs` | sound records, from a writer that does not keep to the rest |
//! | `noise.rs` | random rings, and rings that change under the reader's eyes |
//! | `hello.rs` | everything that can be wrong with a hello |
//! | `contact.rs` | callers that say nothing, too much, or another's name; a listener that lies |
//! | `bell.rs` | scribbling on the bell |
//! | `cells.rs` | payload in cells that are not the liar's |
//!
//! Loops are seeded; `RUSTMX_SEED` repeats one.

mod bell;
mod cells;
#[path = "../common/mod.rs"]
mod common;
mod contact;
mod hello;
mod liar;
mod lies;
mod noise;
mod scene;
mod sound;

/// Bytes of a liar's segment.
const BYTES: usize = 24 << 10;

fn seed() -> u64 {
    let seed = std::env::var("RUSTMX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(4_711);
    println!("seed {seed}");
    seed
}
