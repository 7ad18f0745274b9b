//! What is guessed to come next, where it would belong, and what follows from having been right or wrong.
//!
//! **Speculation** (Kurmann, Rauch, Stricker: Speculative Defragmentation, 2001). One call asks for more than is certain: behind the rest of
//! the body and the next head it names the place where the *expected* next body belongs, by what came last. Mostly that is right, and
//! head and body cost one call and no copy. If it is wrong, the bytes are taken out of the wrong place and are *carried*: they are read
//! again before anything else. What that brings and costs is counted, and a connection on which it does not pay stops guessing for a while
//! (`guesses.rs`). Then still as many bytes are asked for as one call takes to one place ([`FLAT`], `little.rs`): if these are something else little is moved, and nothing counted.

use super::{AHEAD, At, Incoming};
use crate::mem::user::gather_into;
use crate::shm::layout::LINE;
use crate::sys::tcp::{FLAT, Piece};
use crate::wire::frame::{FRAME_HEAD, PAYLOAD_MAX};
use smallvec::SmallVec;

/// What is guessed to come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    Nothing,
    Records { bytes: usize },
    Payload { id: u32, start: usize, bytes: usize },
}

impl Incoming {
    /// What is guessed to follow the next head. `flat`: a little is put together elsewhere first.
    pub(super) fn guess(&self, flat: bool) -> Guess {
        let Some(mirror) = &self.mirror else { return Guess::Nothing };
        let pays = self.guesses.pays();
        if !pays && !flat {
            return Guess::Nothing;
        }
        // More of the message at hand, or of the last one; else the one behind it: they come in the order in which they were announced.
        let id = match (self.at, self.last) {
            (At::Payload { id, .. }, _) | (At::Head(_), Guess::Payload { id, .. }) => id,
            (At::Head(_), _) => self.last_payload,
            // The place behind lines that are still coming: not worth the trouble.
            _ => return Guess::Nothing,
        };
        if self.expected.is_striped(id) {
            return Guess::Nothing;
        }
        for id in [id, id.wrapping_add(1)] {
            if let Some((start, bytes)) = self.expected.next(id) {
                // What is behind a frame of the greatest length belongs elsewhere for sure, and one call may bring hundreds of megabytes of it.
                return if pays { Guess::Payload { id, start, bytes: bytes.min(PAYLOAD_MAX) } } else { Guess::Nothing };
            }
        }
        // As long as the last one: what is behind it may be payload, and each byte that is guessed wrongly costs a copy.
        let most = if pays { self.usual } else { self.usual.min(FLAT - FRAME_HEAD) };
        let room = (mirror.room() as usize * LINE).min(most);
        // Where the ring ends, more often than not what follows is skipped; of what is put together elsewhere the place is not guessed.
        let there = room.min(mirror.to_end() as usize * LINE);
        let bytes = if flat && FRAME_HEAD + there <= FLAT { room.min(FLAT - FRAME_HEAD) } else { there };
        if bytes > 0 { Guess::Records { bytes } } else { Guess::Nothing }
    }

    /// Bytes of payload that most likely come right behind the next envelope: there was a short one last, and nothing behind it.
    pub(super) fn ahead(&self) -> usize {
        let alone = self.is_dry && matches!(self.last, Guess::Payload { .. });
        if alone && self.last_len <= AHEAD { self.last_len } else { 0 }
    }

    /// The places where a guessed body would belong.
    pub(super) fn name_guess<'a>(&'a self, guess: Guess, pieces: &mut SmallVec<[Piece<'a>; 8]>) {
        match (guess, &self.mirror) {
            (Guess::Records { bytes }, Some(mirror)) => mirror.name(mirror.at, 0, bytes, pieces),
            (Guess::Payload { id, start, bytes }, _) => self.name_payload(id, start, bytes, pieces),
            _ => {}
        }
    }

    /// `rest` bytes stand where the next body was guessed to belong; its head is read.
    pub(super) fn settle(&mut self, guess: Guess, rest: usize) {
        if rest == 0 {
            return;
        }
        // Behind news another head follows, which is nobody's mistake.
        let counts = !matches!(self.at, At::Head(_));
        let (right, kept) = self.tidy(guess, rest);
        self.guesses.note(counts.then_some(right), kept, rest - kept);
    }

    /// The same, and it is no guess that is counted. Whether it was right, and the bytes that stand where they belong.
    pub(super) fn tidy(&mut self, guess: Guess, rest: usize) -> (bool, usize) {
        if rest == 0 {
            return (false, 0);
        }
        let right = match (guess, self.at) {
            (Guess::Records { .. }, At::Records { .. }) => self.mirror.as_ref().is_some_and(|mirror| mirror.first() == mirror.at),
            (Guess::Payload { id, start, .. }, At::Payload { id: other, start: there, .. }) => (id, start) == (other, there),
            _ => false,
        };
        let kept = if right { rest.min(self.body_left()) } else { 0 };
        let mut carried = std::mem::take(&mut self.carried);
        // The clean-up copy.
        let mut pieces = SmallVec::<[Piece<'_>; 8]>::new();
        self.name_guess(guess, &mut pieces);
        let (mut skip, mut left) = (kept, rest - kept);
        for piece in pieces {
            let (from, len) = (skip.min(piece.len()), left.min(piece.len() - skip.min(piece.len())));
            match piece {
                Piece::Own(mem, at, _) => mem.append_to(at + from, len, &mut carried),
                Piece::User(seg) => gather_into(&[seg], from, len, &mut carried),
            }
            (skip, left) = (skip - from, left - len);
        }
        self.carried = carried;
        if !right && let (Guess::Records { .. }, Some(mirror)) = (guess, &mut self.mirror) {
            mirror.clear_head();
        }
        self.body_came(kept);
        (right, kept)
    }
}
