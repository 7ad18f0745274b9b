//! The map of a segment: see `docs/adr/0004-ring.md` for who may write what.
//!
//! ```text
//! line 0  card      word 0 magic, 1 version, 2 bytes, 3 fenced, 4 cells
//! line 1  progress  word 0 consumed, 1 credit
//! line 2  stance    word 0 hot, 1 state, 2 reads
//! line 3  shares   word 0 front, 1 back, 2 copied, 3 taken, 4 placed
//! line 4  invitation
//! line 5  carried   word 0 written
//! line 6… ring
//! at the end: cells (`cells`), in open segments
//! ```
//! Lines 0 and 1 share a 128-byte sector, so that the adjacent-line prefetcher never drags `stance` (read on each
//! send) along with `progress` (written in each poll).

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// 64-bit words of a line.
pub const LINE_WORDS: usize = LINE / 8;
/// Lines before the ring.
pub const CONTROL_LINES: usize = 6;
/// Bytes of a cell: payload of one record.
pub const CELL: usize = 32 << 10;
/// Most cells of a segment.
pub const MOST_CELLS: usize = 16;
/// Bytes of a page; segments are whole pages.
pub const PAGE: usize = 4096;
/// Smallest segment that holds a usable ring.
pub const MIN_SEGMENT: usize = 2 * PAGE;
/// Largest ring, with the lines before it.
pub const MAX_RING: usize = 1 << 20;
/// Largest segment that a peer may announce.
pub const MAX_SEGMENT: usize = MAX_RING + MOST_CELLS * CELL;

/// Word index of `card.magic`.
pub const CARD_MAGIC: usize = 0;
/// Word index of `card.version`.
pub const CARD_VERSION: usize = 1;
/// Word index of `card.bytes`.
pub const CARD_BYTES: usize = 2;
/// Word index of `card.fenced`: 1 if the owner takes part in membarrier(2), so that others may sleep without looking.
pub const CARD_FENCED: usize = 3;
/// Word index of `card.cells`: how many [`CELL`]s there are behind the ring.
pub const CARD_CELLS: usize = 4;
/// Word index of `progress.consumed`: lines of the other ring that the owner has read.
pub const CONSUMED: usize = LINE_WORDS;
/// Word index of `progress.credit`: payload bytes, since the start, that the other side may send unmatched.
pub const CREDIT: usize = LINE_WORDS + 1;
/// Word index of `stance.hot`: how the owner learns of a record ([`stance`](super::stance)).
pub const HOT: usize = 2 * LINE_WORDS;
/// Word index of `stance.state`: [`OPEN`] or [`CLOSED`].
pub const STATE: usize = 2 * LINE_WORDS + 1;
/// Word index of `stance.reads`: 1 if the kernel lets the owner read the other side's memory.
pub const READS: usize = 2 * LINE_WORDS + 2;
/// Word index of `shares.front`: what the owner claims of a message to it ([`split`](super::split)).
pub const FRONT: usize = 3 * LINE_WORDS;
/// Word index of `shares.back`: what the owner claims of a message from it.
pub const BACK: usize = 3 * LINE_WORDS + 1;
/// Word index of `shares.copied`: what of that the owner has copied.
pub const COPIED: usize = 3 * LINE_WORDS + 2;
/// Word index of `shares.taken`: the peer's invitation that the owner has taken up ([`invite`](super::invite)).
pub const TAKEN: usize = 3 * LINE_WORDS + 3;
/// Word index of `shares.placed`: the one of which it has written its part.
pub const PLACED: usize = 3 * LINE_WORDS + 4;
/// Word index of the owner's invitation.
pub const INVITATION: usize = 4 * LINE_WORDS;

/// Word index of `carried.written`: lines that the owner has written to its ring (bits 0..32), and the position at which it skipped the rest of a lap last
/// (bits 32..64), of a segment in private memory, for what carries them to another host.
pub const WRITTEN: usize = 5 * LINE_WORDS;

/// The owner is there.
pub const OPEN: u64 = 0;
/// The owner closed its endpoint in good order; nothing follows in the ring.
pub const CLOSED: u64 = 1;

/// First word of every segment: "rustmx" and the layout's generation.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rustmx\x00\x01");
/// Version of the layout and of the records in it.
pub const VERSION: u64 = 7;

const _: () = assert!(CONSUMED * 8 / 128 == 0 && HOT * 8 / 128 == 1);

/// Lines of the ring in a segment of `bytes`.
pub const fn ring_lines(bytes: usize) -> u32 {
    (bytes / LINE - CONTROL_LINES) as u32
}
