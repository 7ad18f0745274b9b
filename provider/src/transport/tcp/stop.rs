//! What a read of a connection came to: bytes, nothing at the moment, or the end and why.

use crate::error::Error;
use rustix::io::Errno;

/// Why nothing more comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The other side closed, or is gone.
    Ended,
    /// It wrote what no rustmx writes.
    Garbage,
    /// It proves a job's key, and none was asked for.
    Keyed,
    /// It is encrypted, and not what was sent.
    Altered,
}

impl From<Errno> for Stop {
    fn from(why: Errno) -> Stop {
        if why == Errno::BADMSG { Stop::Altered } else { Stop::Ended }
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        match stop {
            Stop::Ended => Error::PeerGone,
            Stop::Garbage => Error::Corrupt,
            Stop::Keyed => Error::KeyMissing,
            Stop::Altered => Error::Altered,
        }
    }
}

/// How many bytes a read took; `None`: there are none at the moment.
///
/// # Errors
/// [`Stop`]: there will be none.
pub(super) fn came(read: Result<usize, Errno>) -> Result<Option<usize>, Stop> {
    match read {
        Ok(0) => Err(Stop::Ended),
        Ok(got) => Ok(Some(got)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(why) => Err(why.into()),
    }
}
