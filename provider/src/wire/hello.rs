//! First contact: the one message that each side of a connection sends over the control socket.
//!
//! It travels with two descriptors: the sender's segment towards the receiver, and the sender's bell. The caller's hello is left
//! in the listener's backlog and needs no answer before data flows; the listener answers with its own hello, or with a refusal.

use super::key::Key;
use super::version::protocol;
use crate::error::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a hello on the wire.
pub const HELLO_LEN: usize = size_of::<Hello>();

const MAGIC: [u8; 8] = *b"rmxhello";

/// Bytes of a name (`peer::name`).
pub const NAME: usize = 56;

/// Payload bytes that may be sent to a peer whose hello has not come yet.
pub const FIRST_CREDIT: u32 = 16 << 10;

/// Why a listener refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// Not refused.
    None = 0,
    /// Another protocol version.
    Version = 1,
    /// The caller means an endpoint that is not (or no longer) this one.
    WrongEndpoint = 2,
    /// The listener could not map or allocate what it needs.
    NoResources = 3,
    /// The hello made no sense.
    Malformed = 4,
    /// Both called at once over the network; the other call counts.
    Crossed = 5,
    /// The listener wants the job's key proved.
    KeyMissing = 6,
    /// The caller proves a key, and the listener has none.
    KeyUnknown = 7,
    /// The caller's key is another one.
    KeyDiffers = 8,
    /// One of the two wants to encrypt.
    EncryptionDiffers = 9,
}

impl Refusal {
    /// From its number.
    pub fn from_number(number: u32) -> Option<Refusal> {
        use Refusal::*;
        const ALL: [Refusal; 10] = [
            None,
            Version,
            WrongEndpoint,
            NoResources,
            Malformed,
            Crossed,
            KeyMissing,
            KeyUnknown,
            KeyDiffers,
            EncryptionDiffers,
        ];
        ALL.get(number as usize).copied()
    }

    /// What it means to who is refused.
    pub fn error(self) -> Error {
        match self {
            Refusal::Version => Error::Version,
            Refusal::WrongEndpoint => Error::Refused,
            Refusal::NoResources => Error::NoResources,
            Refusal::KeyMissing => Error::KeyMissing,
            Refusal::KeyUnknown => Error::KeyUnknown,
            Refusal::KeyDiffers => Error::KeyDiffers,
            Refusal::EncryptionDiffers => Error::EncryptionDiffers,
            Refusal::None | Refusal::Malformed | Refusal::Crossed => Error::Corrupt,
        }
    }
}

/// The message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 8],
    protocol: U32,
    refusal: U32,
    /// The sender's name (`peer::name`).
    pub from: [u8; NAME],
    /// The name the sender meant; a contact if it does not know better.
    pub to: [u8; NAME],
    /// Bytes of the segment that comes with it.
    pub segment: U32,
    /// The receiver's slot in the sender's bell.
    pub slot: U32,
    /// On one host: the seal of the job's key under both names (`wire/key.rs`); 0: the sender has no key. By the network 0: there the key is
    /// proved before a hello is said; or the word of a [lane](Hello::lane).
    seal: U64,
    /// Cores the sender may run on, for the crowding rule.
    pub cores: [U64; 16],
}

/// A hello that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHello {
    /// Not a hello at all.
    Malformed,
    /// Another protocol version.
    Version(u32),
    /// The listener refused.
    Refused(Refusal),
}

impl Hello {
    /// A hello from `from` to `to`.
    pub fn new(from: [u8; NAME], to: [u8; NAME], segment: u32, slot: u32, cores: [u64; 16]) -> Hello {
        Hello {
            magic: MAGIC,
            protocol: U32::new(protocol()),
            refusal: U32::new(Refusal::None as u32),
            from,
            to,
            segment: U32::new(segment),
            slot: U32::new(slot),
            seal: U64::new(0),
            cores: cores.map(U64::new),
        }
    }

    /// A hello that brings no segment and names nobody: of a further connection of a pair, which the two know by `token`.
    pub fn lane(token: u64) -> Hello {
        let mut hello = Hello::new([0; NAME], [0; NAME], 0, 0, [0; 16]);
        hello.seal = U64::new(token);
        hello
    }

    /// A hello of nobody, which says why nothing follows.
    pub fn refusal(why: Refusal) -> Hello {
        Hello::new([0; NAME], [0; NAME], 0, 0, [0; 16]).refuse(why)
    }

    /// The token, if it is such a hello.
    pub fn token(&self) -> Option<u64> {
        (self.segment.get() == 0 && self.from == [0; NAME]).then(|| self.seal.get())
    }

    /// The same, sealed by its sender's key.
    pub fn seal(mut self, key: Option<&Key>) -> Hello {
        self.seal = U64::new(key.map_or(0, |key| key.seal(&self.from, &self.to)));
        self
    }

    /// Whether its sender has the key that we have, or none as we have none.
    ///
    /// # Errors
    /// What the sender is to be told.
    pub fn check_seal(&self, key: Option<&Key>) -> Result<(), Refusal> {
        match (key, self.seal.get()) {
            (None, 0) => Ok(()),
            (None, _) => Err(Refusal::KeyUnknown),
            (Some(_), 0) => Err(Refusal::KeyMissing),
            (Some(key), seal) if key.seal(&self.from, &self.to) == seal => Ok(()),
            (Some(_), _) => Err(Refusal::KeyDiffers),
        }
    }

    /// The same as a refusal.
    pub fn refuse(mut self, why: Refusal) -> Hello {
        self.refusal = U32::new(why as u32);
        self
    }

    /// Whether `bytes`, if they are the first ones of a message, may become a hello.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(is, should)| *is == should)
    }

    /// The version that a hello of another one is of.
    pub fn foreign(bytes: &[u8]) -> Option<u32> {
        match Hello::parse(bytes) {
            Err(BadHello::Version(version)) => Some(version),
            _ => None,
        }
    }

    /// Validates a message that came in. That it is of another version its first words tell, however long it is.
    pub fn parse(bytes: &[u8]) -> Result<Hello, BadHello> {
        let (magic, rest) = bytes.split_first_chunk().ok_or(BadHello::Malformed)?;
        let version = rest.first_chunk().map(|word| u32::from_le_bytes(*word)).filter(|_| *magic == MAGIC);
        match version {
            Some(version) if version == protocol() => {}
            Some(version) => return Err(BadHello::Version(version)),
            None => return Err(BadHello::Malformed),
        }
        let hello = Hello::read_from_bytes(bytes).map_err(|_| BadHello::Malformed)?;
        match Refusal::from_number(hello.refusal.get()) {
            Some(Refusal::None) => Ok(hello),
            Some(why) => Err(BadHello::Refused(why)),
            None => Err(BadHello::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::version::PROTOCOL;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_and_bad() {
        let good = Hello::new([1; NAME], [2; NAME], 24576, 3, [5; 16]);
        let parsed = Hello::parse(good.as_bytes()).expect("good");
        assert_eq!((parsed.segment.get(), parsed.slot.get(), parsed.from), (24576, 3, [1; NAME]));
        assert_eq!(Hello::parse(&good.as_bytes()[1..]).expect_err("short"), BadHello::Malformed);
        let mut other = good;
        other.protocol = U32::new(PROTOCOL + 1);
        for len in [HELLO_LEN, HELLO_LEN - 1, 12] {
            assert_eq!(Hello::parse(&other.as_bytes()[..len]).expect_err("version"), BadHello::Version(PROTOCOL + 1));
        }
        assert_eq!(Hello::parse(&other.as_bytes()[..11]).expect_err("short"), BadHello::Malformed);
        let refused = good.refuse(Refusal::WrongEndpoint);
        assert_eq!(Hello::parse(refused.as_bytes()).expect_err("refused"), BadHello::Refused(Refusal::WrongEndpoint));
        let mut odd = good;
        odd.refusal = U32::new(99);
        assert_eq!(Hello::parse(odd.as_bytes()).expect_err("odd"), BadHello::Malformed);
    }

    #[test]
    fn beginnings_and_refusals() {
        let good = Hello::new([1; NAME], [2; NAME], 24576, 3, [5; 16]);
        assert!(Hello::may_begin(&good.as_bytes()[..3]) && Hello::may_begin(good.as_bytes()));
        for at in 0..MAGIC.len() {
            let mut bad = good.as_bytes().to_vec();
            bad[at] ^= 1;
            assert!(!Hello::may_begin(&bad) && Hello::parse(&bad).is_err(), "byte {at}");
        }
        // Each is told by its number, and what is told by an error of its own has one.
        let all: Vec<Refusal> = (0..99).map_while(Refusal::from_number).collect();
        assert!(all.len() == 10 && all.iter().enumerate().all(|(n, why)| *why as usize == n));
        let told: Vec<Error> = all.iter().map(|why| why.error()).filter(|e| *e != Error::Corrupt).collect();
        assert!(told.len() == 7 && (0..told.len()).all(|i| !told[..i].contains(&told[i])), "{told:?}");
        assert_eq!(Refusal::KeyMissing.error(), Error::KeyMissing);
    }

    #[test]
    fn lanes() {
        let lane = Hello::lane(77);
        assert_eq!(Hello::parse(lane.as_bytes()).map(|h| h.token()), Ok(Some(77)));
        let other = Hello::new([1; NAME], [2; NAME], 24576, 3, [5; 16]);
        assert_eq!(other.token(), None);
        assert!(Hello::parse(lane.refuse(Refusal::NoResources).as_bytes()).is_err());
    }

    #[test]
    fn seals() {
        let hello = |a, b, key| Hello::new([a; NAME], [b; NAME], 24576, 3, [5; 16]).seal(key);
        let [one, other] = ["one", "other"].map(|k| Key::new(k.as_bytes()));
        assert_eq!(hello(1, 2, None).check_seal(None), Ok(()));
        assert_eq!(hello(1, 2, Some(&one)).check_seal(Some(&one)), Ok(()));
        assert_eq!(hello(1, 2, None).check_seal(Some(&one)), Err(Refusal::KeyMissing));
        assert_eq!(hello(1, 2, Some(&one)).check_seal(None), Err(Refusal::KeyUnknown));
        assert_eq!(hello(1, 2, Some(&one)).check_seal(Some(&other)), Err(Refusal::KeyDiffers));
        let mut stolen = hello(1, 2, Some(&one));
        stolen.from = [3; NAME];
        assert_eq!(stolen.check_seal(Some(&one)), Err(Refusal::KeyDiffers), "it holds for these names only");
        assert_eq!(&hello(1, 2, None).as_bytes()[136..144], &[0; 8][..], "without a key nothing changes");
    }

    proptest! {
        #[test]
        fn garbage_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Hello::parse(&bytes);
        }
    }
}
