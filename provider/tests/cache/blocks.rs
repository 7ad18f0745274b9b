//! Blocks of the allocator that this process runs with come, go, and grow, and are sent out of as buffers that io_uring has pinned: what arrives must
//! be what the program wrote there. Nothing here maps or unmaps anything: the allocator does, and gives the same addresses again.

use super::common::{Rng, seg};
use super::space;
use rustix::fd::OwnedFd;
use rustmx::cache::Oversight;
use rustmx::cache::registered::{Registered, SLOTS};
use rustmx::sys::uring::Uring;
use std::io::Read;
use std::net::{TcpListener, TcpStream};

/// Bytes of blocks: of the C library's, those of less than 128 KiB lie below the program break, the others in mappings of their own.
const LENGTHS: [usize; 6] = [20_000, 70_000, 120_000, 200_000, 500_000, 1_000_000];
const BLOCKS: usize = 8;

/// What makes allocators give memory back at once, and the C library one heap for all threads: that below the break.
pub const EAGER: [(&str, &str); 6] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "0"),
    ("MALLOC_TOP_PAD_", "0"),
    ("MALLOC_CONF", "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0"),
    ("TCMALLOC_AGGRESSIVE_DECOMMIT", "1"),
];

#[derive(Default)]
struct Seen {
    hits: u64,
    stale: u64,
    /// Hits in memory below the break.
    below: u64,
}

struct Torture {
    rng: Rng,
    blocks: Vec<Vec<u8>>,
    table: Uring,
    held: Registered,
    socket: OwnedFd,
    other: TcpStream,
    seen: Seen,
}

/// What was seen, and how many messages were wrong. `Err`: it cannot be tried here, and why.
pub fn run(oversight: Oversight, rounds: usize, seed: u64) -> Result<(String, u64), String> {
    let table = Uring::open(SLOTS).map_err(|why| why.to_string())?;
    let held = Registered::new(oversight);
    if let Some(why) = held.refusal() {
        return Err(why);
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect").into();
    let other = listener.accept().expect("accept").0;
    let mut rng = Rng(seed);
    let blocks = (0..BLOCKS).map(|_| vec![0; rng.pick(&LENGTHS)]).collect();
    let mut torture = Torture { rng, blocks, table, held, socket, other, seen: Seen::default() };
    for round in 0..rounds {
        torture.change();
        for step in 0..4 {
            torture.message((4 * round + step) as u8);
        }
    }
    let Seen { hits, stale, below } = torture.seen;
    let changed = torture.held.counts().changed;
    Ok((format!("hits={hits} stale={stale} below_the_break={below} changed={changed}"), stale + u64::from(hits == 0)))
}

impl Torture {
    fn change(&mut self) {
        let (at, len) = (self.rng.range(0, BLOCKS), self.rng.pick(&LENGTHS));
        let block = &mut self.blocks[at];
        match self.rng.below(4) {
            // free(3), then malloc(3) or calloc(3) of the same, or of something else.
            0 => {
                let len = block.len();
                *block = Vec::new();
                *block = Vec::with_capacity(len);
                block.resize(len, 0);
            }
            1 => {
                *block = Vec::new();
                *block = vec![0; len];
            }
            // realloc(3), which may move it.
            2 if len > block.len() => {
                block.reserve_exact(len - block.len());
                block.resize(len, 0);
            }
            _ => {
                block.truncate(len);
                block.shrink_to_fit();
            }
        }
    }

    /// Writes a block, as an application does its message, and sends it if it is registered.
    fn message(&mut self, stamp: u8) {
        let at = self.rng.range(0, BLOCKS);
        let block = &mut self.blocks[at];
        block.fill(stamp);
        let buffer = seg(block);
        if self.held.may_hold(buffer) {
            // It may just be in doubt.
            let _ = self.held.hold(&self.table, buffer, buffer);
        }
        let Some(slot) = self.held.slot(buffer) else { return };
        self.seen.hits += 1;
        self.seen.below += u64::from(buffer.address() < space::program_break());
        let sent = self.table.send(&self.socket, slot, buffer, 1, |_| {}).sent.expect("sent");
        let mut got = vec![0; sent];
        self.other.read_exact(&mut got).expect("arrived");
        self.seen.stale += u64::from(got != self.blocks[at][..sent]);
    }
}
