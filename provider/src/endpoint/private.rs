//! Memory of which peers could map nothing when the door was asked last. To ask costs a message of 4 KiB as much as half of what else its sender does besides copying,
//! and the door knows for how many messages it would say the same.

use crate::transport::NotLendable;

/// Buffers that are known at a time.
const PLACES: usize = 16;
const PAGE: usize = 4096;

#[derive(Clone, Copy)]
struct Place {
    page: usize,
    left: u8,
    why: NotLendable,
}

/// See above. A buffer is known by the page in which it begins, and has one place.
#[derive(Default)]
pub(super) struct Private {
    places: [Option<Place>; PLACES],
}

impl Private {
    fn place(&mut self, address: usize) -> (usize, &mut Option<Place>) {
        let page = address / PAGE;
        (page, &mut self.places[page % PLACES])
    }

    /// Why a buffer at `address` cannot be mapped, if that is known and still good.
    #[inline]
    pub fn knows(&mut self, address: usize) -> Option<NotLendable> {
        let (page, place) = self.place(address);
        let known = place.as_mut().filter(|known| known.page == page && known.left > 0)?;
        known.left -= 1;
        Some(known.why)
    }

    /// The door has just said why, and would say the same of so many further messages.
    pub fn note(&mut self, address: usize, why: NotLendable, left: u8) {
        let (page, place) = self.place(address);
        *place = Some(Place { page, left, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_good_for_some_messages() {
        let (mut private, why) = (Private::default(), NotLendable::Unwatched);
        assert_eq!(private.knows(0), None, "nobody was asked");
        private.note(5 * PAGE + 7, why, 3);
        private.note(6 * PAGE, why, 0);
        for _ in 0..3 {
            assert_eq!(private.knows(5 * PAGE), Some(why));
            assert_eq!((private.knows(6 * PAGE), private.knows((5 + PLACES) * PAGE)), (None, None), "others");
        }
        assert_eq!(private.knows(5 * PAGE), None, "it is asked again");
        private.note(5 * PAGE, why, 1);
        private.note((5 + PLACES) * PAGE, why, 1);
        assert_eq!((private.knows(5 * PAGE), private.knows((5 + PLACES) * PAGE + 1)), (None, Some(why)), "one place");
    }
}
