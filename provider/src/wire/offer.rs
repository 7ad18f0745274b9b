//! The bodies of the records about offered messages, and the pieces of memory that they name.

use super::header::MAX_PIECES;
use crate::mem::remote::Piece;
use crate::mem::user::UserSeg;
use smallvec::SmallVec;

/// Pieces of memory of one process, in the order of a message's bytes.
pub type Pieces = SmallVec<[Piece; 2]>;

/// Something that no rustmx writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadOffer;

/// Where a buffer is, if a record can say it: at most [`MAX_PIECES`] pieces.
pub fn pieces_of(iov: &[UserSeg]) -> Option<Pieces> {
    let pieces: Pieces = iov
        .iter()
        .filter(|s| !s.is_empty())
        .take(MAX_PIECES + 1)
        .map(|s| Piece { addr: s.address() as u64, len: s.len() })
        .collect();
    (pieces.len() <= MAX_PIECES).then_some(pieces)
}

/// Pieces as payload.
pub fn emit_pieces(pieces: &[Piece]) -> SmallVec<[u8; MAX_PIECES * 16]> {
    let mut bytes = SmallVec::new();
    for Piece { addr, len } in pieces {
        bytes.extend_from_slice(&addr.to_le_bytes());
        bytes.extend_from_slice(&(*len as u64).to_le_bytes());
    }
    bytes
}

/// Validates the words of a payload: pieces that hold `bytes` bytes or more. Their addresses may be anything: the kernel checks them.
///
/// # Errors
/// [`BadOffer`] if there are half pieces, too many, or too few bytes in them.
pub fn parse_pieces(words: &[u64], bytes: usize) -> Result<Pieces, BadOffer> {
    let (pairs, rest) = words.as_chunks::<2>();
    if !rest.is_empty() || pairs.len() > MAX_PIECES {
        return Err(BadOffer);
    }
    let mut total = 0usize;
    let mut pieces = Pieces::new();
    for [addr, len] in pairs {
        let len = usize::try_from(*len).map_err(|_| BadOffer)?;
        total = total.checked_add(len).ok_or(BadOffer)?;
        pieces.push(Piece { addr: *addr, len });
    }
    if total < bytes { Err(BadOffer) } else { Ok(pieces) }
}

/// The body of an OFFER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes of the whole message.
    pub total: u64,
    /// The sender's name for it, unique among its live offers and streams to this receiver.
    pub id: u32,
    /// The number of the memory in which all of it lies, if the sender has lent that; else 0.
    pub lent: u32,
    /// The sender writes a part of it where the receiver has invited it to (`shm/invite.rs`).
    pub invited: bool,
    /// If no receive waits for it, it is to be fetched and kept as a record would be.
    pub kept: bool,
}

/// The bits of these two beside the total.
const INVITED: u64 = 1 << 63;
const KEPT: u64 = 1 << 62;
/// Totals are below this: more than there are addresses.
const TOO_LONG: u64 = 1 << 61;

impl Offer {
    /// As words.
    pub fn emit(&self) -> [u64; 2] {
        let bit = |on, bit| if on { bit } else { 0 };
        [self.total | bit(self.invited, INVITED) | bit(self.kept, KEPT), Named { id: self.id, lent: self.lent }.emit()]
    }

    /// Validates words.
    ///
    /// # Errors
    /// [`BadOffer`].
    pub fn parse(words: [u64; 2]) -> Result<Offer, BadOffer> {
        let Named { id, lent } = Named::of(words[1]);
        let (total, invited, kept) = (words[0] & !(INVITED | KEPT), words[0] & INVITED != 0, words[0] & KEPT != 0);
        if total < TOO_LONG { Ok(Offer { total, id, lent, invited, kept }) } else { Err(BadOffer) }
    }
}

/// The word that names an offer: its id in the lower half, the number of lent memory (or 0) in the upper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The offer.
    pub id: u32,
    /// Of an OFFER: where the message lies; of an ACCEPT: where it goes.
    pub lent: u32,
}

impl Named {
    /// As a word.
    pub fn emit(self) -> u64 {
        u64::from(self.id) | u64::from(self.lent) << 32
    }

    /// From a word; any word is one.
    pub fn of(word: u64) -> Named {
        Named { id: word as u32, lent: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;
    use proptest::prelude::*;

    #[test]
    fn what_is_too_much() {
        assert_eq!(parse_pieces(&[1; 2 * (MAX_PIECES + 1)], 1), Err(BadOffer));
        assert!(parse_pieces(&[1; 2 * MAX_PIECES], 1).is_ok());
        assert_eq!([1 << 61, 7 << 61].map(|word| Offer::parse([word, 0])), [Err(BadOffer); 2]);
        assert!(Offer::parse([(1 << 61) - 1, 0]).is_ok());
    }

    proptest! {
        #[test]
        fn pieces_come_back(list in proptest::collection::vec((any::<u64>(), 0usize..1 << 40), 0..=MAX_PIECES)) {
            let pieces: Pieces = list.iter().map(|(addr, len)| Piece { addr: *addr, len: *len }).collect();
            let bytes = emit_pieces(&pieces);
            let words: Vec<u64> = bytes.chunks(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes"))).collect();
            let total = list.iter().map(|(_, len)| len).sum();
            prop_assert_eq!(parse_pieces(&words, total), Ok(pieces));
            prop_assert_eq!(parse_pieces(&words, total + 1), Err(BadOffer));
        }

        #[test]
        fn garbage_is_refused_or_sound(words in proptest::collection::vec(any::<u64>(), 0..20), bytes in any::<usize>()) {
            if let Ok(pieces) = parse_pieces(&words, bytes) {
                prop_assert!(pieces.len() <= MAX_PIECES && pieces.iter().map(|p| p.len).sum::<usize>() >= bytes);
            }
        }

        /// What is empty needs no place in a record.
        #[test]
        fn buffers_of_so_many_pieces(full in 0usize..12, empty in 0usize..4) {
            let mut bytes = [0; 12];
            let mut iov: Vec<UserSeg> = bytes.chunks_mut(1).take(full).map(of_slice).collect();
            iov.splice(0..0, (0..empty).map(|_| of_slice(&mut [])));
            prop_assert_eq!(pieces_of(&iov).map(|pieces| pieces.len()), (full <= MAX_PIECES).then_some(full));
        }

        #[test]
        fn offers(words in any::<[u64; 2]>()) {
            if let Ok(offer) = Offer::parse(words) {
                prop_assert_eq!(offer.emit(), words);
            }
        }
    }
}
