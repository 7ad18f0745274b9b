//! What an invitation says (`shm/invite.rs`): for which message it is, and where that may go.

use super::offer::Pieces;
use crate::mem::remote::Piece;

/// Words that an invitation takes.
const SAYS: usize = 6;

/// Bytes of the longest message that is taken in by invitation: of longer ones a sender's part would hold up its call for long.
pub const LONGEST: usize = 512 << 10;

/// An invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// For a tagged message.
    pub tagged: bool,
    /// Its tag,
    pub tag: u64,
    /// and the bits of it that are not compared.
    pub ignore: u64,
    /// It has at least so many bytes,
    pub least: u64,
    /// and at most so many.
    pub most: u64,
    /// The receiver's address of where it goes.
    pub address: u64,
    /// The number of the memory in which that lies, which the receiver has lent to be written.
    pub lent: u32,
    /// Messages of the sender's that the receiver had heard of: if it has said more, one of them may have taken that place.
    pub heard: u64,
}

const TAGGED: u64 = 1;
const BITS: u32 = 20;
const SIZES: u64 = (1 << BITS) - 1;
const _: () = assert!((LONGEST as u64) <= SIZES);

impl Invitation {
    /// As words.
    pub fn emit(&self) -> [u64; SAYS] {
        let sizes = self.least.min(SIZES) << BITS | self.most.min(LONGEST as u64);
        [self.tag, self.ignore, self.address, self.heard, self.lent.into(), sizes << 1 | u64::from(self.tagged)]
    }

    /// What words say. They may be anything: who follows them looks whether the place is one that was lent.
    pub fn parse(says: [u64; SAYS]) -> Invitation {
        let [tag, ignore, address, heard, lent, sizes] = says;
        Invitation {
            tagged: sizes & TAGGED != 0,
            tag,
            ignore,
            least: sizes >> 1 >> BITS & SIZES,
            most: (sizes >> 1 & SIZES).min(LONGEST as u64),
            address,
            lent: lent as u32,
            heard,
        }
    }

    /// Whether it is for such a message.
    pub fn is_for(&self, tagged: bool, tag: u64, bytes: usize) -> bool {
        self.tagged == tagged && (self.tag ^ tag) & !self.ignore == 0 && (self.least..=self.most).contains(&(bytes as u64))
    }

    /// Where a message of so many bytes goes.
    pub fn place(&self, bytes: usize) -> Pieces {
        std::iter::once(Piece { addr: self.address, len: bytes }).collect()
    }
}

/// Bytes of a message of `total` that its receiver copies; the sender writes what is behind them. It begins earlier, by what the receiver needs to hear of the message, and
/// copies out of its own cache into lines that it only has to claim, in some two thirds of the time.
pub fn front(total: usize) -> usize {
    const AHEAD: usize = 4 << 10;
    (total / 8 * 3).saturating_sub(AHEAD).next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(tagged in any::<bool>(), tag in any::<u64>(), ignore in any::<u64>(), address in any::<u64>(), heard in any::<u64>(),
            lent in any::<u32>(), least in 0..=SIZES, most in 0..=LONGEST as u64) {
            let said = Invitation { tagged, tag, ignore, least, most, address, lent, heard };
            prop_assert_eq!(Invitation::parse(said.emit()), said);
        }

        #[test]
        fn whatever_it_says_the_place_is_as_long_as_the_message(says in any::<[u64; SAYS]>(), tag in any::<u64>(), bytes in any::<usize>()) {
            let said = Invitation::parse(says);
            if said.is_for(said.tagged, tag, bytes) {
                prop_assert!(bytes <= LONGEST && front(bytes) <= bytes);
                prop_assert_eq!(said.place(bytes)[0].len, bytes);
            }
        }
    }

    #[test]
    fn for_whom() {
        let said = Invitation { tagged: true, tag: 5, ignore: 0xf0, least: 100, most: 1000, address: 0, lent: 1, heard: 0 };
        assert!(said.is_for(true, 0x95, 100) && said.is_for(true, 5, 1000));
        for (tagged, tag, bytes) in [(false, 5, 100), (true, 6, 100), (true, 5, 99), (true, 5, 1001)] {
            assert!(!said.is_for(tagged, tag, bytes));
        }
    }
}
