//! A loan: what a process says on the control socket, with a descriptor, of memory that the peer may map.

use super::hello::HELLO_LEN;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of it on the wire.
pub const LOAN_LEN: usize = size_of::<Loan>();

const MAGIC: [u8; 8] = *b"rmx-loan";

/// Longest memory that may be lent in one piece: more addresses than any heap of ours takes, and few enough for many peers.
pub const LONGEST: u64 = 1 << 40;

/// Most loans to one peer. Who has more memory lends what it lent already, and the rest goes as if it could not be lent.
pub const MOST: usize = 64;

const _: () = assert!(LOAN_LEN != HELLO_LEN);

/// The message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Loan {
    magic: [u8; 8],
    /// What it is called in records; not 0, and never used again.
    pub number: U32,
    writable: U32,
    /// The lender's address of the file's first byte.
    pub base: U64,
    /// Bytes of the file.
    pub length: U64,
}

/// Something that no rustmx says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLoan;

impl Loan {
    /// Of `length` bytes at `base`; `writable`: the peer may write there what it sends.
    pub fn new(number: u32, base: u64, length: u64, writable: bool) -> Loan {
        let [number, writable] = [number, writable.into()].map(U32::new);
        Loan { magic: MAGIC, number, writable, base: U64::new(base), length: U64::new(length) }
    }

    /// Whether the peer may write there.
    pub fn is_writable(&self) -> bool {
        self.writable.get() != 0
    }

    /// Validates a message.
    ///
    /// # Errors
    /// [`BadLoan`].
    pub fn parse(bytes: &[u8]) -> Result<Loan, BadLoan> {
        let loan = Loan::read_from_bytes(bytes).map_err(|_| BadLoan)?;
        let sound = loan.magic == MAGIC
            && loan.number.get() != 0
            && loan.writable.get() <= 1
            && (1..=LONGEST).contains(&loan.length.get())
            && loan.base.get().checked_add(loan.length.get()).is_some();
        if sound { Ok(loan) } else { Err(BadLoan) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_said_is_heard(number in 1u32.., base in 0u64..1 << 47, length in 1u64..=LONGEST, writable: bool) {
            let loan = Loan::new(number, base, length, writable);
            prop_assert_eq!(Loan::parse(loan.as_bytes()), Ok(loan));
            prop_assert_eq!(loan.is_writable(), writable);
        }

        #[test]
        fn garbage_is_refused_or_sound(mut bytes in proptest::collection::vec(any::<u8>(), LOAN_LEN), head: bool) {
            if head {
                bytes[..8].copy_from_slice(&MAGIC);
            }
            if let Ok(loan) = Loan::parse(&bytes) {
                prop_assert!(head && loan.number.get() != 0 && loan.length.get() <= LONGEST);
            }
        }
    }

    #[test]
    fn what_makes_no_sense() {
        for bad in [
            Loan::new(0, 4096, 4096, true),
            Loan::new(1, 4096, 0, true),
            Loan::new(1, 4096, LONGEST + 1, true),
            Loan::new(1, u64::MAX - 10, 4096, true),
        ] {
            assert_eq!(Loan::parse(bad.as_bytes()), Err(BadLoan), "{bad:?}");
        }
        let good = Loan::new(1, 0, 1, false);
        assert_eq!(Loan::parse(&good.as_bytes()[..LOAN_LEN - 1]), Err(BadLoan));
        assert!(Loan::parse(good.as_bytes()).is_ok());
    }
}
