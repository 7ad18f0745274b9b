//! The record header: three words in front of every payload.
//!
//! ```text
//! word 0   bits 0..4  kind      4..8  flags     8..16  low byte of the record's position
//!          bits 16..32  payload bytes in this record
//!          bits 32..64  acknowledgement: lines consumed of the other direction
//! word 1   tag            (DATA, CTS: stream id;  DONE, FIN: id of the offer, or of a DONE that ends a loan its number;  ACCEPT: that (32) and number of lent memory (32);  PUT, GET, ATOMIC, EVENT: key of the region;  ANSWER: see `Answer`)
//! word 2   remote CQ data (DATA: offset of the fragment;  CTS, ACCEPT: bytes wanted;  DONE: chunks copied;  GET: bytes
//!                          wanted;  ATOMIC: what to do;  ANSWER: offset of the fragment)
//! body     RTS, two words: total bytes; stream id (32) and promise (32)
//!          OFFER, two words: total bytes, and the two highest bits (see `Offer`); id (32) and number of lent memory (32)
//!          ACCEPT, two words: number of the shared message; bytes of a chunk
//!          PUT, GET, ATOMIC, EVENT, two words: address; operation id (32) and two numbers of 16 bits
//!          PUT, ANSWER with `IN_PLACE`: the payload is one word instead, bytes (32) and name (32) of a part that comes past the ring
//! payload  from 512 bytes on in the second line; or in a cell: then the last word of the record's only line names that
//! ```
//! [`Header::parse`] is the validator: what it returns has a known kind, known flags for that kind, and a length
//! that lies inside the lines that it says. Tags, CQ data and totals are the application's and may be anything.

use crate::shm::layout::LINE;
use crate::types::INLINE_MAX;

/// Bytes of the three words.
pub const HEAD: usize = 24;
/// Words of a header.
pub type Words = [u64; 3];

/// What a record is. 1 is the ring's own skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A short message, payload inside; always accepted.
    Inline = 2,
    /// A message whose payload counts against the receiver's window.
    Eager = 3,
    /// The envelope of a streamed message, with a first fragment.
    Rts = 4,
    /// A later fragment of a stream.
    Data = 5,
    /// The receiver wants the rest of a stream.
    Cts = 6,
    /// Bytes for a region of the receiver.
    Put = 7,
    /// The sender wants bytes of a region of the receiver.
    Get = 8,
    /// An atomic operation on a region of the receiver.
    Atomic = 9,
    /// The sender did something to the receiver's memory by itself and tells of it.
    Event = 10,
    /// What became of a PUT, GET or ATOMIC.
    Answer = 11,
    /// The envelope of a message that stays where it is until the receiver has a place for it; the payload says where.
    Offer = 12,
    /// The receiver shares out the copying of an offered message; the payload says where it goes.
    Accept = 13,
    /// The sender has done its share; or, with [`flag::RECALLED`], what it lent is not lent any more.
    Done = 14,
    /// The receiver has all that it wanted of an offered message.
    Fin = 15,
}

impl Kind {
    /// Whether payload of such a record may be in a cell.
    #[inline]
    pub const fn may_be_in_cell(self) -> bool {
        matches!(self, Kind::Eager | Kind::Rts | Kind::Data)
    }

    /// Whether such a record is a message, or begins one.
    #[inline]
    pub const fn is_message(self) -> bool {
        matches!(self, Kind::Inline | Kind::Eager | Kind::Rts | Kind::Offer)
    }

    /// Bytes between header words and payload.
    pub const fn body(self) -> usize {
        match self {
            Kind::Rts | Kind::Offer | Kind::Accept | Kind::Put | Kind::Get | Kind::Atomic | Kind::Event => 16,
            _ => 0,
        }
    }
}

/// What a record of one kind may say.
struct Rule {
    kind: Kind,
    flags: u8,
    /// Fewest and most payload bytes.
    len: (u16, u16),
}

/// Flags of every message.
const MESSAGE: u8 = flag::TAGGED | flag::CQ_DATA;

/// By the kind's number; nothing for numbers that no rustmx writes.
const RULES: [Option<Rule>; 16] = {
    const PAYLOAD: u8 = flag::IN_CELL;
    const MEMORY: u8 = flag::LAST | flag::CQ_DATA;
    const BULK: u8 = flag::IN_PLACE;
    let mut rules = [const { None }; 16];
    rules[Kind::Inline as usize] = Some(Rule { kind: Kind::Inline, flags: MESSAGE, len: (0, INLINE_MAX as u16) });
    rules[Kind::Eager as usize] = Some(Rule { kind: Kind::Eager, flags: MESSAGE | PAYLOAD, len: (0, u16::MAX) });
    rules[Kind::Rts as usize] = Some(Rule { kind: Kind::Rts, flags: MESSAGE | flag::LAST | PAYLOAD, len: (0, u16::MAX) });
    rules[Kind::Data as usize] = Some(Rule { kind: Kind::Data, flags: PAYLOAD, len: (1, u16::MAX) });
    rules[Kind::Cts as usize] = Some(Rule { kind: Kind::Cts, flags: flag::FORBIDDEN | flag::LAST, len: (0, 0) });
    rules[Kind::Put as usize] = Some(Rule { kind: Kind::Put, flags: MEMORY | BULK, len: (0, u16::MAX) });
    rules[Kind::Get as usize] = Some(Rule { kind: Kind::Get, flags: flag::LAST, len: (0, 0) });
    rules[Kind::Atomic as usize] = Some(Rule { kind: Kind::Atomic, flags: flag::LAST, len: (0, u16::MAX) });
    rules[Kind::Event as usize] = Some(Rule { kind: Kind::Event, flags: MEMORY | flag::READ, len: (0, 0) });
    rules[Kind::Answer as usize] = Some(Rule { kind: Kind::Answer, flags: flag::LAST | BULK, len: (0, u16::MAX) });
    rules[Kind::Offer as usize] = Some(Rule { kind: Kind::Offer, flags: MESSAGE | flag::TIMED, len: (0, PIECES_BYTES) });
    rules[Kind::Accept as usize] = Some(Rule { kind: Kind::Accept, flags: 0, len: (0, PIECES_BYTES) });
    rules[Kind::Done as usize] = Some(Rule { kind: Kind::Done, flags: flag::FORBIDDEN | flag::RECALLED, len: (0, 0) });
    rules[Kind::Fin as usize] = Some(Rule { kind: Kind::Fin, flags: flag::UNMAPPED, len: (0, 0) });
    rules
};

/// Most pieces of memory that an OFFER or ACCEPT names.
pub const MAX_PIECES: usize = 8;
const PIECES_BYTES: u16 = (MAX_PIECES * 16) as u16;

/// Flag bits of word 0.
pub mod flag {
    /// A tagged message.
    pub const TAGGED: u8 = 1;
    /// A PUT, an ANSWER: its bytes come past the ring, as a part of a name of their own ([`Part`](super::Part)).
    pub const IN_PLACE: u8 = 1;
    /// Word 2 holds remote CQ data.
    pub const CQ_DATA: u8 = 2;
    /// The last record of an operation, or of the answer to a request. An RTS: its sender is to be told when all is there; a CTS: it is.
    pub const LAST: u8 = 4;
    /// An EAGER, RTS, DATA: the payload is in a cell (`shm/cells.rs`), of which the last word of the record's line is the name. The word before it says how many
    /// bytes are there; the others follow.
    pub const IN_CELL: u8 = 8;
    /// An event: the memory was read, not written.
    pub const READ: u8 = 8;
    /// A DONE: it is about no message, but about lent memory of this number, which no later record names.
    pub const RECALLED: u8 = 4;
    /// An OFFER: its sender asks how long the copy takes.
    pub const TIMED: u8 = 4;
    /// A CTS or DONE: the kernel does not let its sender reach our memory.
    pub const FORBIDDEN: u8 = 8;
    /// A FIN: its sender could not map the memory that we lent.
    pub const UNMAPPED: u8 = 8;
}

/// One inline record has at most four lines.
const _: () = assert!(INLINE_MAX == 4 * LINE - HEAD);

/// Payload of so many bytes begins on a line (`docs/adr/0004-ring.md`, *What a long record waits for*).
const STEPPED: usize = 512;

/// A validated header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the record is.
    pub kind: Kind,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Payload bytes in this record.
    pub len: u16,
    /// Acknowledgement. Validated by the ring it acknowledges.
    pub ack: u32,
    /// Word 1.
    pub tag: u64,
    /// Word 2.
    pub data: u64,
}

/// A header that no rustmx writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader;

impl Header {
    /// Offset of the payload in a record of `kind` with `len` payload bytes: behind the header and the body, or, if it is long, in the second line, so that
    /// neither side's copy is out of step with the lines.
    #[inline]
    pub const fn payload_offset(kind: Kind, len: usize) -> usize {
        if len < STEPPED { HEAD + kind.body() } else { LINE }
    }

    /// Lines of a record of `kind` with `len` payload bytes.
    #[inline]
    pub const fn lines_of(kind: Kind, len: usize) -> u32 {
        (Self::payload_offset(kind, len) + len).div_ceil(LINE) as u32
    }

    /// Lines of this record.
    #[inline]
    pub fn lines(&self) -> u32 {
        if self.is_in_cell() { 1 } else { Self::lines_of(self.kind, self.len as usize) }
    }

    /// Whether the payload, if such a record has some, is not in it but in a cell. (The flag means something else for kinds of one line without payload.)
    #[inline]
    pub fn is_in_cell(&self) -> bool {
        self.flags & flag::IN_CELL != 0
    }

    /// Offset of the payload in the record.
    #[inline]
    pub fn payload_at(&self) -> usize {
        Self::payload_offset(self.kind, self.len as usize)
    }

    /// As words, for the record at `position`.
    #[inline]
    pub fn emit(&self, position: u32) -> Words {
        let first = u64::from(self.kind as u8 | self.flags << 4)
            | u64::from(position & 0xff) << 8
            | u64::from(self.len) << 16
            | u64::from(self.ack) << 32;
        [first, self.tag, self.data]
    }

    /// Validates words found at `position`, where `room` contiguous lines follow.
    #[inline]
    pub fn parse(words: Words, position: u32, room: u32) -> Result<Header, BadHeader> {
        let first = words[0];
        let Some(rule) = &RULES[(first & 0xf) as usize] else { return Err(BadHeader) };
        let header = Header {
            kind: rule.kind,
            flags: (first >> 4 & 0xf) as u8,
            len: (first >> 16) as u16,
            ack: (first >> 32) as u32,
            tag: words[1],
            data: words[2],
        };
        let sound = header.flags & !rule.flags == 0
            && (first >> 8) as u8 == position as u8
            && rule.len.0 <= header.len
            && header.len <= rule.len.1
            && header.lines() <= room;
        if sound { Ok(header) } else { Err(BadHeader) }
    }

    /// Bytes of payload that the first word of a record says are in it. For a guess: nothing is validated.
    #[inline]
    pub const fn said_payload(word: u64) -> usize {
        (word >> 16) as u16 as usize
    }

    /// Whether it says that it is of this kind. For a guess, too.
    #[inline]
    pub fn may_be(word: u64, kind: Kind) -> bool {
        word & 0xf == kind as u64
    }

    /// [`parse`](Self::parse) of an inline message, which is what most records are. `None`: it is another record, or one that no rustmx writes.
    #[inline]
    pub fn parse_inline(words: Words, position: u32, room: u32) -> Option<Header> {
        let (header, sound) = Self::as_message(words, position, Kind::Inline, MESSAGE);
        let len = usize::from(header.len);
        (sound && len <= INLINE_MAX && Self::inline_lines(len) <= room).then_some(header)
    }

    /// The same of a longer message that is one record.
    #[inline]
    pub fn parse_eager(words: Words, position: u32, room: u32) -> Option<Header> {
        let (header, sound) = Self::as_message(words, position, Kind::Eager, MESSAGE | flag::IN_CELL);
        (sound && header.lines() <= room).then_some(header)
    }

    /// Words as the header of a record of `kind`, and whether they are that, at `position`, with none but these flags. Its length is still to be looked at.
    #[inline(always)]
    fn as_message(words: Words, position: u32, kind: Kind, flags: u8) -> (Header, bool) {
        let first = words[0];
        // Kind, position and the flags that it may not have.
        let fixed = 0xffff & !(u64::from(flags) << 4);
        let sound = first & fixed == kind as u64 | u64::from(position & 0xff) << 8;
        let (flags, len) = ((first >> 4) as u8 & flags, (first >> 16) as u16);
        (Header { kind, flags, len, ack: (first >> 32) as u32, tag: words[1], data: words[2] }, sound)
    }

    /// Lines of an inline message of `len` bytes.
    #[inline]
    pub const fn inline_lines(len: usize) -> u32 {
        debug_assert!(len < STEPPED);
        (HEAD + len).div_ceil(LINE) as u32
    }
}

/// The body of an RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rts {
    /// Bytes of the whole message.
    pub total: u64,
    /// The sender's name for the stream, unique among its live streams to this receiver.
    pub stream: u32,
    /// Bytes that the sender will send without being asked (the first fragment included).
    pub promise: u32,
}

impl Rts {
    /// As words.
    pub fn emit(&self) -> [u64; 2] {
        [self.total, u64::from(self.stream) | u64::from(self.promise) << 32]
    }

    /// Validates the body of a record whose first fragment has `len` bytes.
    pub fn parse(words: [u64; 2], len: u16) -> Result<Rts, BadHeader> {
        let rts = Rts { total: words[0], stream: words[1] as u32, promise: (words[1] >> 32) as u32 };
        let sound = rts.total < 1 << 63 && u64::from(rts.promise) <= rts.total && u32::from(len) <= rts.promise;
        if sound { Ok(rts) } else { Err(BadHeader) }
    }
}

/// What a record says of bytes that come past the ring, instead of these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The sender's name for it, unique among its parts and messages on their way to this receiver.
    pub name: u32,
    /// Bytes, not 0.
    pub len: u32,
}

impl Part {
    /// Bytes of a record that says so.
    pub const BYTES: usize = 8;
    /// The longest.
    pub const MOST: usize = 1 << 20;
    /// Names from here on are of parts; those below, of messages.
    pub const NAMES: u32 = 1 << 31;

    /// Whether something that came past the ring under this name is a part.
    #[inline]
    pub const fn has_name(name: u32) -> bool {
        name >= Part::NAMES
    }

    /// As bytes.
    pub fn emit(self) -> [u8; Part::BYTES] {
        (u64::from(self.len) | u64::from(self.name) << 32).to_le_bytes()
    }

    /// Validates the payload of a record that is one word long.
    pub fn parse(word: u64) -> Result<Part, BadHeader> {
        let part = Part { len: word as u32, name: (word >> 32) as u32 };
        let sound = Part::has_name(part.name) && (1..=Part::MOST).contains(&(part.len as usize));
        if sound { Ok(part) } else { Err(BadHeader) }
    }
}

/// The body of a record about memory of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset in the region, or virtual address.
    pub addr: u64,
    /// The sender's name for the operation.
    pub id: u32,
    /// Two numbers that the operation needs.
    pub extra: [u16; 2],
}

impl Place {
    /// As words.
    pub fn emit(&self) -> [u64; 2] {
        [self.addr, u64::from(self.id) | u64::from(self.extra[0]) << 32 | u64::from(self.extra[1]) << 48]
    }

    /// From words; anything is a place, whether it exists is the region's business.
    pub fn parse(words: [u64; 2]) -> Place {
        Place { addr: words[0], id: words[1] as u32, extra: [(words[1] >> 32) as u16, (words[1] >> 48) as u16] }
    }

    /// `extra` of a put or an event: the bytes of the whole operation, as far as they fit.
    pub fn extra_of(total: usize) -> [u16; 2] {
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        [total as u16, (total >> 16) as u16]
    }

    /// The bytes that `extra` says.
    pub fn total(&self) -> usize {
        usize::from(self.extra[0]) | usize::from(self.extra[1]) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = Header> {
        (2u8..7, 0u8..4, any::<u16>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(k, f, len, ack, tag, data)| {
            let (kind, flags, len) = match k {
                2 => (Kind::Inline, f, len % 233),
                3 => (Kind::Eager, f, len),
                4 => (Kind::Rts, f, len),
                5 => (Kind::Data, 0, len.max(1)),
                _ => (Kind::Cts, 0, 0),
            };
            Header { kind, flags, len, ack, tag, data }
        })
    }

    proptest! {
        #[test]
        fn round_trip(h in header(), position in any::<u32>()) {
            let words = h.emit(position);
            prop_assert_ne!(words[0], 0);
            prop_assert_eq!(Header::parse(words, position, h.lines()), Ok(h));
            prop_assert_eq!(Header::parse(words, position, h.lines() - 1), Err(BadHeader));
            prop_assert_eq!(Header::parse(words, position.wrapping_add(1), h.lines()), Err(BadHeader));
        }

        #[test]
        fn garbage_never_reaches_past_the_room(words in any::<[u64; 3]>(), position in any::<u32>(), room in 1u32..400) {
            if let Ok(h) = Header::parse(words, position, room) {
                prop_assert!(h.lines() >= 1 && h.lines() <= room);
                prop_assert!(h.is_in_cell() || h.payload_at() + h.len as usize <= room as usize * LINE);
                prop_assert_eq!(h.emit(position), words);
            }
        }

        #[test]
        fn messages_of_one_record_are_parsed_as_the_others(h in header(), spoilt in (0u64..4, 0u32..64), position in any::<u32>(), room in 0u32..6) {
            let mut words = h.emit(position);
            // As it is, or with a bit of the first word turned.
            words[0] ^= u64::from(spoilt.0 == 0) << spoilt.1;
            let parsed = |kind| Header::parse(words, position, room).ok().filter(|h| h.kind == kind);
            prop_assert_eq!(Header::parse_eager(words, position, room), parsed(Kind::Eager));
            prop_assert_eq!(Header::parse_inline(words, position, room), parsed(Kind::Inline));
            if let Some(h) = parsed(Kind::Inline) {
                prop_assert_eq!(Header::inline_lines(h.len.into()), h.lines());
            }
        }

        #[test]
        fn rts_bodies(words in any::<[u64; 2]>(), len in any::<u16>()) {
            if let Ok(r) = Rts::parse(words, len) {
                prop_assert!(u64::from(r.promise) <= r.total && u32::from(len) <= r.promise);
                prop_assert_eq!(r.emit(), words);
            }
        }
    }

    #[test]
    fn bad_values_are_refused_one_by_one() {
        let good = Header { kind: Kind::Inline, flags: 3, len: 40, ack: 0, tag: 0, data: 0 };
        assert!(Header::parse(good.emit(0), 0, 1).is_ok());
        for (what, word) in [
            ("kind 0", good.emit(0)[0] & !0xf),
            ("fin with payload", good.emit(0)[0] | 0xf),
            ("unknown flag", good.emit(0)[0] | 1 << 6),
            ("inline too long", good.emit(0)[0] & !(0xffff << 16) | 233 << 16),
            ("cts with payload", 6 | 1 << 16),
            ("empty data", 5),
        ] {
            assert_eq!(Header::parse([word, 0, 0], 0, 1000), Err(BadHeader), "{what}");
        }
        assert!(Rts::parse([10, 11 << 32], 0).is_err(), "promise past the total");
        assert!(Rts::parse([10, 5 << 32], 6).is_err(), "fragment past the promise");
        assert!(Rts::parse([u64::MAX, 0], 0).is_err(), "total out of range");
    }
}
