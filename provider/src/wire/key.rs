//! A job's key, and what is derived from it. The key itself goes nowhere.
//!
//! HKDF with SHA-256 (RFC 5869): what the user gives is extracted once, and each use expands its own part, so that none tells anything
//! of another (`docs/adr/0020-keys.md`).
//!
//! On the network a proof begins with a head of 8 bytes, in both directions:
//! ```text
//!  0  6  "rmxkey"
//!  6  1  version, 1
//!  7  1  0: what follows the proof is plain · 1: it is encrypted · 128 + n: a refusal, of number n (`wire/hello.rs`)
//! ```

use super::hello::{NAME, Refusal};
use hkdf::Hkdf;
use sha2::Sha256;
use std::fmt;

/// Bytes of what begins a proof.
pub const PROOF_HEAD: usize = 8;

const MAGIC: [u8; 7] = *b"rmxkey\x01";
const REFUSED: u8 = 128;

/// A job's key.
#[derive(Clone)]
pub struct Key(Hkdf<Sha256>);

impl Key {
    /// Of the bytes that a user or an application gives.
    pub fn new(bytes: &[u8]) -> Key {
        Key(Hkdf::new(Some(b"rustmx job key 1"), bytes))
    }

    fn expand<const N: usize>(&self, info: &[&[u8]]) -> [u8; N] {
        let mut out = [0; N];
        // RFC 5869: at most 255 blocks of 32 bytes.
        const { assert!(N <= 255 * 32) };
        let done = self.0.expand_multi_info(info, &mut out);
        assert!(done.is_ok(), "so many bytes there always are");
        out
    }

    /// What both sides of a connection of the network have in common (a pre-shared key of the Noise protocol).
    pub fn shared(&self) -> [u8; 32] {
        self.expand(&[b"network"])
    }

    /// What tells on one host that a hello's sender has this key; never 0. Endpoints of one user are kept apart by it, not protected from each other.
    pub fn seal(&self, from: &[u8; NAME], to: &[u8; NAME]) -> u64 {
        u64::from_le_bytes(self.expand(&[b"host", from, to])).max(1)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// What a head of a proof says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A proof follows, and behind it everything is encrypted or not.
    Follows {
        /// It is.
        encrypted: bool,
    },
    /// There will be none.
    Refused(Refusal),
}

impl Proof {
    /// As bytes.
    pub fn emit(self) -> [u8; PROOF_HEAD] {
        let mut bytes = [0; PROOF_HEAD];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = match self {
            Proof::Follows { encrypted } => encrypted.into(),
            Proof::Refused(why) => REFUSED + why as u8,
        };
        bytes
    }

    /// Whether `bytes`, if they are the first ones, may become a head of a proof.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(is, should)| *is == should)
    }

    /// Validates a head; `None`: it is none.
    pub fn parse(bytes: [u8; PROOF_HEAD]) -> Option<Proof> {
        match bytes[7] {
            _ if bytes[..7] != MAGIC => None,
            0 => Some(Proof::Follows { encrypted: false }),
            1 => Some(Proof::Follows { encrypted: true }),
            n => Refusal::from_number(n.checked_sub(REFUSED)?.into()).filter(|why| *why != Refusal::None).map(Proof::Refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_has_its_own() {
        let [a, b] = ["a", "b"].map(|k| Key::new(k.as_bytes()));
        let names = ([1; NAME], [2; NAME]);
        assert_ne!(a.shared(), b.shared());
        assert_ne!(a.seal(&names.0, &names.1), b.seal(&names.0, &names.1));
        assert_ne!(a.seal(&names.0, &names.1), a.seal(&names.1, &names.0));
        assert_ne!(a.seal(&names.0, &names.1), a.seal(&names.0, &names.0), "the seal is about both");
        assert_eq!(a.shared(), Key::new(b"a").shared());
        assert_ne!(&a.shared()[..8], &a.seal(&names.0, &names.1).to_le_bytes()[..]);
    }

    #[test]
    fn heads() {
        let mut good = 0;
        for last in 0..=255 {
            let bytes = [b'r', b'm', b'x', b'k', b'e', b'y', 1, last];
            if let Some(proof) = Proof::parse(bytes) {
                assert_eq!(proof.emit(), bytes);
                good += 1;
            }
        }
        assert_eq!(good, 2 + 9);
        let good = Proof::Follows { encrypted: true }.emit();
        for at in 0..7 {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!((Proof::parse(bad), Proof::may_begin(&bad)), (None, false), "byte {at}");
        }
        assert!(Proof::may_begin(&good[..3]) && Proof::may_begin(&good));
    }
}
