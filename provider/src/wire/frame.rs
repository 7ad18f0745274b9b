//! Frames: what stands on a TCP connection between the hello and the end. A head of 32 bytes, and a body.
//!
//! ```text
//!  0  1  kind       1 records · 2 payload · 3 news · 4 goodbye · 5 lanes · 6 read
//!  1  1  loans      payload: 1 if it is lent, plus 2 if the sender wants to hear soon what of all that he lent has been read; else 0
//!  2  2  "rm"
//!  4  4  length     bytes of the body: records whole lines of a ring, payload at least one; else 0
//!  8  4  consumed   lines of the other direction's ring that were read
//! 12  4  id         payload: of the message; records: position of the first line, skipped or not; lanes: how many connections; read: how many frames
//! 16  8  credit     payload bytes, since the start, that the other side may send unmatched
//! 24  8  offset     payload: where in the message it belongs; records: lines before them that were skipped up to the end of the ring, and do not travel; lanes: the word that they are known by
//! ```
//! All little endian. `consumed` and `credit` are what two processes of one host read in each other's segment (`shm/layout.rs`).

use crate::shm::layout::LINE;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a head.
pub const FRAME_HEAD: usize = size_of::<Raw>();

/// Longest body of payload: what follows in other frames does not wait for more than that.
pub const PAYLOAD_MAX: usize = 1 << 20;

const CHECK: u16 = u16::from_le_bytes(*b"rm");

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    loans: u8,
    check: U16,
    length: U32,
    consumed: U32,
    id: U32,
    credit: U64,
    offset: U64,
}

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Whole records, as they stand in the sender's ring.
    Records {
        /// Position of the first line, skipped or not.
        position: u32,
        /// Lines up to the end of the ring that are skipped, and do not travel.
        skipped: u32,
        /// Lines that travel.
        lines: u32,
    },
    /// A part of a message that the receiver has asked for.
    Payload {
        /// Which message.
        id: u32,
        /// Where in it.
        offset: u64,
        /// Bytes.
        len: u32,
        /// They are read out of the sender's memory, which is his again when he hears that they have been read.
        lent: bool,
        /// He wants to hear soon what of all that he lent has been read.
        tell: bool,
    },
    /// Nothing: the head itself is the news.
    News,
    /// Nothing, and nothing follows.
    Goodbye,
    /// Nothing: a word about further connections of this pair for long messages (`docs/adr/0021-lanes.md`).
    Lanes {
        /// Connections that are wanted, or allowed, the first one included; at least one.
        count: u32,
        /// By which the listener knows them; 0 from who calls: he asks for it.
        token: u64,
    },
    /// Nothing: payload that was lent has been read (`docs/adr/0022-zero-copy-send.md`).
    Read {
        /// Frames of such payload, since the start; wraps around 2^32.
        frames: u32,
    },
}

/// A head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Lines of the other direction's ring that were read.
    pub consumed: u32,
    /// Payload bytes that the other side may send unmatched.
    pub credit: u64,
    /// What follows.
    pub body: Body,
}

/// A head that no rustmx writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFrame;

impl Frame {
    /// As bytes.
    pub fn emit(&self) -> [u8; FRAME_HEAD] {
        let (kind, length, id, offset) = match self.body {
            Body::Records { position, skipped, lines } => (1, lines * LINE as u32, position, u64::from(skipped)),
            Body::Payload { id, offset, len, .. } => (2, len, id, offset),
            Body::News => (3, 0, 0, 0),
            Body::Goodbye => (4, 0, 0, 0),
            Body::Lanes { count, token } => (5, 0, count, token),
            Body::Read { frames } => (6, 0, frames, 0),
        };
        let raw = Raw {
            kind,
            loans: if let Body::Payload { lent, tell, .. } = self.body { u8::from(lent) | u8::from(tell) << 1 } else { 0 },
            check: CHECK.into(),
            length: length.into(),
            consumed: self.consumed.into(),
            id: id.into(),
            credit: self.credit.into(),
            offset: offset.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Validates a head.
    ///
    /// # Errors
    /// [`BadFrame`]: the other side is no rustmx, or a broken one. Positions, ids and offsets are checked by who knows what is expected.
    pub fn parse(bytes: [u8; FRAME_HEAD]) -> Result<Frame, BadFrame> {
        let raw: Raw = zerocopy::transmute!(bytes);
        let (length, id, offset) = (raw.length.get(), raw.id.get(), raw.offset.get());
        let (lent, tell) = (raw.loans & 1 != 0, raw.loans & 2 != 0);
        if raw.check.get() != CHECK || raw.loans > if raw.kind == 2 { 3 } else { 0 } {
            return Err(BadFrame);
        }
        let body = match raw.kind {
            1 if length > 0 && (length as usize).is_multiple_of(LINE) && offset <= u64::from(u32::MAX) => {
                Body::Records { position: id, skipped: offset as u32, lines: length / LINE as u32 }
            }
            2 if length > 0 && length as usize <= PAYLOAD_MAX => Body::Payload { id, offset, len: length, lent, tell },
            3 if (length, id, offset) == (0, 0, 0) => Body::News,
            4 if (length, id, offset) == (0, 0, 0) => Body::Goodbye,
            5 if length == 0 && id > 0 => Body::Lanes { count: id, token: offset },
            6 if (length, offset) == (0, 0) => Body::Read { frames: id },
            _ => return Err(BadFrame),
        };
        Ok(Frame { consumed: raw.consumed.get(), credit: raw.credit.get(), body })
    }

    /// Bytes of the body.
    pub fn length(&self) -> usize {
        match self.body {
            Body::Records { lines, .. } => lines as usize * LINE,
            Body::Payload { len, .. } => len as usize,
            Body::News | Body::Goodbye | Body::Lanes { .. } | Body::Read { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body() -> impl Strategy<Value = Body> {
        prop_oneof![
            (any::<u32>(), any::<u32>(), 1u32..1 << 20).prop_map(|(position, skipped, lines)| Body::Records {
                position,
                skipped,
                lines
            }),
            (any::<u32>(), any::<u64>(), 1..=PAYLOAD_MAX as u32, any::<[bool; 2]>())
                .prop_map(|(id, offset, len, [lent, tell])| Body::Payload { id, offset, len, lent, tell }),
            Just(Body::News),
            Just(Body::Goodbye),
            (1..=u32::MAX, any::<u64>()).prop_map(|(count, token)| Body::Lanes { count, token }),
            any::<u32>().prop_map(|frames| Body::Read { frames }),
        ]
    }

    proptest! {
        #[test]
        fn round_trip(body in body(), consumed in any::<u32>(), credit in any::<u64>()) {
            let frame = Frame { consumed, credit, body };
            prop_assert_eq!(Frame::parse(frame.emit()), Ok(frame));
        }

        #[test]
        fn garbage_is_refused_or_sound(mut bytes in any::<[u8; FRAME_HEAD]>(), near in any::<bool>(), kind in 0u8..8, loans in 0u8..5) {
            if near {
                bytes[..4].copy_from_slice(&[kind, loans, b'r', b'm']);
                bytes[6..8].fill(0);
            }
            if let Ok(frame) = Frame::parse(bytes) {
                prop_assert_eq!(frame.emit(), bytes);
                prop_assert!(frame.length() <= u32::MAX as usize);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let good =
            Frame { consumed: 1, credit: 2, body: Body::Payload { id: 3, offset: 4, len: 5, lent: false, tell: false } }.emit();
        for (at, byte) in [(0, 0), (0, 6), (0, 7), (1, 4), (2, 0), (4, 0), (7, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Frame::parse(bad), Err(BadFrame), "byte {at}");
        }
        let records = Frame { consumed: 0, credit: 0, body: Body::Records { position: 9, skipped: 0, lines: 1 } }.emit();
        assert!(Frame::parse(records).is_ok());
        let mut odd = records;
        odd[4] = 63;
        assert_eq!(Frame::parse(odd), Err(BadFrame), "half a line");
        let news = Frame { consumed: 1, credit: 2, body: Body::News }.emit();
        // The length, the id, the offset.
        let read = Frame { consumed: 1, credit: 2, body: Body::Read { frames: 3 } }.emit();
        for (good, at) in
            [(records, 28), (news, 4), (news, 12), (news, 24), (read, 4), (read, 24), (records, 1), (news, 1), (read, 1)]
        {
            let mut bad = good;
            bad[at] = if at == 1 { 1 } else { 64 };
            assert_eq!(Frame::parse(bad), Err(BadFrame), "byte {at} of kind {}", bad[0]);
        }
        let mut none = records;
        none[4] = 0;
        assert_eq!(Frame::parse(none), Err(BadFrame), "records of nothing");
        let payload = |len| {
            Frame { consumed: 0, credit: 0, body: Body::Payload { id: 1, offset: 0, len, lent: false, tell: false } }.emit()
        };
        assert!(Frame::parse(payload(PAYLOAD_MAX as u32)).is_ok());
        assert_eq!(Frame::parse(payload(PAYLOAD_MAX as u32 + 1)), Err(BadFrame), "too long");
    }
}
