//! Memory of which peers could map nothing when the door was asked last. To ask costs as much as a third of what else a message of 4 KiB costs its sender, and the
//! answer seldom changes: it is asked again after some messages.

use super::tally::Unlent;
use crate::transport::NotLendable;

/// Buffers that are known at a time.
const PLACES: usize = 16;
/// Messages for which an answer is good.
const GOOD_FOR: u8 = 15;
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

    /// What `ask` says of a buffer at `address`, if the answer is not known and still good.
    #[inline]
    pub fn or_ask(&mut self, address: usize, ask: impl FnOnce() -> Result<u32, Unlent>) -> Result<u32, Unlent> {
        if let Some(why) = self.knows(address) {
            return Err(Unlent::Memory(why));
        }
        let said = ask();
        if let Err(Unlent::Memory(why)) = said {
            self.note(address, why);
        }
        said
    }

    /// Why a buffer at `address` cannot be mapped, if that is known and still good.
    #[inline]
    fn knows(&mut self, address: usize) -> Option<NotLendable> {
        let (page, place) = self.place(address);
        let known = place.as_mut().filter(|known| known.page == page && known.left > 0)?;
        known.left -= 1;
        Some(known.why)
    }

    /// The door has just said why. What it has not found out yet is no answer.
    fn note(&mut self, address: usize, why: NotLendable) {
        if why != NotLendable::NotYet {
            let (page, place) = self.place(address);
            *place = Some(Place { page, left: GOOD_FOR, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_good_for_some_messages() {
        let (mut private, why) = (Private::default(), NotLendable::Unwatched);
        assert_eq!(private.knows(0), None, "nobody was asked");
        private.note(5 * PAGE + 7, why);
        private.note(6 * PAGE, NotLendable::NotYet);
        for _ in 0..GOOD_FOR {
            assert_eq!(private.knows(5 * PAGE), Some(why));
            assert_eq!((private.knows(6 * PAGE), private.knows((5 + PLACES) * PAGE)), (None, None), "others");
        }
        assert_eq!(private.knows(5 * PAGE), None, "it is asked again");
        private.note(5 * PAGE, why);
        private.note((5 + PLACES) * PAGE, why);
        assert_eq!((private.knows(5 * PAGE), private.knows((5 + PLACES) * PAGE + 1)), (None, Some(why)), "one place");
    }
}
