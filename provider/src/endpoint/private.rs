//! Memory of which peers could map nothing when the door was asked last. To ask costs each message more than a hundred instructions (`docs/hot-paths.md`),
//! and the door knows for how many messages it would say the same.

use crate::transport::NotLendable;

/// Buffers that are known at a time.
const PLACES: usize = 16;

#[derive(Clone, Copy)]
struct Place {
    address: usize,
    len: usize,
    left: u8,
    why: NotLendable,
}

/// See above. A buffer is known by its address, and has one place.
#[derive(Default)]
pub(super) struct Private {
    places: [Option<Place>; PLACES],
}

impl Private {
    fn place(&mut self, address: usize) -> &mut Option<Place> {
        // Fibonacci hashing, by the upper bits: neighbours and multiples of powers of two spread.
        let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2());
        &mut self.places[hash as usize]
    }

    /// Why a buffer cannot be mapped, if that is known and still good: of one that begins there and is no longer than this one.
    #[inline]
    pub fn knows(&mut self, address: usize, len: usize) -> Option<NotLendable> {
        let known =
            self.place(address).as_mut().filter(|known| known.address == address && known.len <= len && known.left > 0)?;
        known.left -= 1;
        Some(known.why)
    }

    /// The door has just said why, and would say the same of so many further messages.
    pub fn note(&mut self, address: usize, len: usize, why: NotLendable, left: u8) {
        *self.place(address) = Some(Place { address, len, left, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_good_for_some_messages() {
        let (mut private, why) = (Private::default(), NotLendable::Unwatched);
        assert_eq!(private.knows(0, 0), None, "nobody was asked");
        private.note(5000, 100, why, 3);
        for len in [100, 101, 5000] {
            assert_eq!((private.knows(5001, 100), private.knows(4999, 100)), (None, None), "others");
            assert_eq!(private.knows(5000, 99), None, "a shorter one may lie in what can be mapped");
            assert_eq!(private.knows(5000, len), Some(why));
        }
        assert_eq!(private.knows(5000, 100), None, "it is asked again");
        // More than there are places.
        (0..100).for_each(|i| private.note(i << 16, 1, why, 1));
        let known = (0..100).filter(|i| private.knows(i << 16, 1).is_some()).count();
        assert!((PLACES / 2..=PLACES).contains(&known), "{known}");
    }
}
