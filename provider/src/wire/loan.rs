//! A loan: what a process says on the control socket, with a descriptor, of memory that the peer may map.

use super::hello::HELLO_LEN;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of it on the wire.
pub const LOAN_LEN: usize = size_of::<Loan>();

const MAGIC: [u8; 8] = *b"rmx-loan";

/// Longest memory that may be lent in one piece: more addresses than any heap of ours takes, and few enough for many peers.
pub const LONGEST: u64 = 1 << 40;

/// Most loans to one peer at a time. Who has more memory lends what it lent already, and the rest goes as if it could not be lent.
pub const MOST: usize = 64;

/// Bytes of the smallest pages there are.
const PAGE: u64 = 4096;

const _: () = assert!(LOAN_LEN != HELLO_LEN);

/// The message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Loan {
    magic: [u8; 8],
    /// What it is called in records; not 0, and never used again.
    pub number: U32,
    writable: U32,
    /// The lender's address of its first byte.
    pub base: U64,
    /// Of that byte in the file that comes with this; whole pages.
    pub offset: U64,
    /// Its bytes, all of which the file has.
    pub length: U64,
}

/// Something that no rustmx says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLoan;

impl Loan {
    /// Of `length` bytes at `base`, which are those from `offset` on of a file. Only to be read.
    pub fn new(number: u32, base: u64, offset: u64, length: u64) -> Loan {
        let [base, offset, length] = [base, offset, length].map(U64::new);
        Loan { magic: MAGIC, number: U32::new(number), writable: U32::new(0), base, offset, length }
    }

    /// If `allowed`, the peer may write there what it sends.
    pub fn to_write(self, allowed: bool) -> Loan {
        Loan { writable: U32::new(allowed.into()), ..self }
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
            && loan.offset.get().is_multiple_of(PAGE)
            && [loan.base, loan.offset].iter().all(|start| start.get().checked_add(loan.length.get()).is_some());
        if sound { Ok(loan) } else { Err(BadLoan) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_said_is_heard(number in 1u32.., base in 0u64..1 << 47, page in 0u64..1 << 40, length in 1u64..=LONGEST, writable: bool) {
            let loan = Loan::new(number, base, page * PAGE, length).to_write(writable);
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
            Loan::new(0, 4096, 0, 4096),
            Loan::new(1, 4096, 0, 0),
            Loan::new(1, 4096, 0, LONGEST + 1),
            Loan::new(1, u64::MAX - 10, 0, 4096),
            Loan::new(1, 4096, 100, 4096),
            Loan::new(1, 4096, u64::MAX - PAGE + 1, 2 * PAGE),
        ] {
            assert_eq!(Loan::parse(bad.as_bytes()), Err(BadLoan), "{bad:?}");
        }
        let good = Loan::new(1, 0, 0, 1);
        assert_eq!(Loan::parse(Loan { writable: U32::new(2), ..good }.as_bytes()), Err(BadLoan));
        assert_eq!(Loan::parse(&good.as_bytes()[..LOAN_LEN - 1]), Err(BadLoan));
        assert!(Loan::parse(good.as_bytes()).is_ok());
    }
}
