//! Which buffers look as they did when they were last sent to a peer.
//!
//! A few words of a buffer are looked at, at each send, and a number made of them kept ([`UserSeg::sample`]): that costs some ten nanoseconds, and a buffer that was filled with new numbers
//! shows it. (Of less than 64 bytes nothing is seen: habits are about longer ones.) Kept is little, and of the last buffers only: what is not known does not look the same.

use crate::mem::user::UserSeg;

/// Buffers that are known at a time.
const PLACES: usize = 16;

#[derive(Clone, Copy, Default)]
struct Place {
    address: usize,
    /// 0: nothing is known.
    len: usize,
    sample: u64,
}

/// See above. A buffer is known by its address and length, and has one place. Most peers need none.
#[derive(Default)]
pub struct Sources(Option<Box<[Place; PLACES]>>);

impl Sources {
    /// Whether a buffer that is being sent looks as it did last time.
    pub fn are_same(&mut self, source: &UserSeg) -> bool {
        let now = Place { address: source.address(), len: source.len(), sample: source.sample() };
        let places = self.0.get_or_insert_default();
        // Fibonacci hashing, by the upper bits: neighbours and multiples of powers of two spread.
        let hash = (now.address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2());
        let last = std::mem::replace(&mut places[hash as usize], now);
        (last.address, last.len, last.sample) == (now.address, now.len, now.sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;

    #[test]
    fn what_was_rewritten_is_not_the_same() {
        let mut sources = Sources::default();
        let mut bytes = vec![7u8; 10_000];
        let mut same = |bytes: &mut [u8]| sources.are_same(&of_slice(bytes));
        assert!(!same(&mut bytes) && same(&mut bytes) && same(&mut bytes));
        assert!(!same(&mut bytes[..9_999]) && !same(&mut bytes[..]), "of another length");
        for at in [0, 9_999] {
            bytes[at] ^= 1;
            assert!(!same(&mut bytes) && same(&mut bytes), "{at}");
        }
        bytes.fill(8);
        assert!(!same(&mut bytes) && same(&mut bytes));
        // Another buffer with the same bytes.
        let mut others = vec![[8u8; 1000]; 100];
        for other in &mut others {
            assert!(!same(other) && same(other));
        }
    }

    #[test]
    fn as_many_as_there_are_places() {
        let mut sources = Sources::default();
        let mut bytes = vec![0u8; 1 << 20];
        let all: Vec<UserSeg> = bytes.chunks_mut(64 << 10).map(of_slice).collect();
        for one in &all {
            assert!(!sources.are_same(one));
        }
        let known = all.iter().filter(|one| sources.are_same(one)).count();
        assert!((PLACES / 2..=PLACES).contains(&known), "{known}");
    }
}
