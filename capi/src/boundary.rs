//! The border: every cast between a C handle and one of our objects, and every error number.
//!
//! A `fid_*` that we hand out is the first field of a boxed object (`repr(C)`), so the two pointers are equal. [`object`] is the
//! only way back; it checks the class that libfabric stores in the header.
#![expect(unsafe_code)]
// UNSAFETY: turns pointers that crossed the C border into references and boxes.

use crate::abi::errno::*;
use crate::abi::fabric::fid;
use libc::{c_char, c_int, c_void};
use rustmx::Error;

/// A positive `FI_E*` number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// What every shell function computes before it becomes a C return value.
pub(crate) type Answer<T> = Result<T, Errno>;

/// Every engine error. Its place, from 1, is what `prov_errno` carries, so that `fi_cq_strerror` can tell errors apart which
/// share a number.
const ERRORS: [Error; 36] = [
    Error::Again,
    Error::NoMessage,
    Error::Cancelled,
    Error::Truncated,
    Error::UnknownAddress,
    Error::Refused,
    Error::Unreachable,
    Error::TimedOut,
    Error::PeerGone,
    Error::Silent,
    Error::Corrupt,
    Error::Permission,
    Error::Version,
    Error::Invalid,
    Error::BadState,
    Error::AddressInUse,
    Error::TooLong,
    Error::NoResources,
    Error::Busy,
    Error::Forked,
    Error::Unsupported,
    Error::KeyInUse,
    Error::NoKey,
    Error::NoRight,
    Error::OutOfBounds,
    Error::Unmapped,
    Error::NoVector,
    Error::ReadOnly,
    Error::KeyMissing,
    Error::KeyUnknown,
    Error::KeyDiffers,
    Error::EncryptionDiffers,
    Error::Altered,
    Error::Unanswered,
    Error::NoQueue,
    Error::NoAddresses,
];

impl From<Error> for Errno {
    #[inline]
    fn from(e: Error) -> Errno {
        Errno(match e {
            Error::Again => FI_EAGAIN,
            Error::NoMessage => FI_ENOMSG,
            Error::Cancelled => FI_ECANCELED,
            Error::Truncated => FI_ETRUNC,
            Error::UnknownAddress => FI_EADDRNOTAVAIL,
            Error::Refused => FI_ECONNREFUSED,
            Error::Unreachable => FI_EHOSTUNREACH,
            Error::TimedOut => FI_ETIMEDOUT,
            // Open MPI treats this code as "that peer is lost" and most others as fatal (contract 3.5).
            Error::PeerGone => FI_ECONNRESET,
            Error::Silent => FI_EHOSTDOWN,
            Error::Unanswered => FI_EIO,
            Error::Corrupt | Error::Altered => FI_EREMOTEIO,
            Error::Permission | Error::KeyMissing | Error::KeyUnknown | Error::KeyDiffers | Error::EncryptionDiffers => FI_EACCES,
            Error::Version => FI_ECONNABORTED,
            Error::Invalid => FI_EINVAL,
            Error::BadState => FI_EOPBADSTATE,
            Error::NoQueue => FI_ENOCQ,
            Error::NoAddresses => FI_ENOAV,
            Error::AddressInUse => FI_EADDRINUSE,
            Error::TooLong => FI_EMSGSIZE,
            Error::NoResources => FI_ENOMEM,
            Error::Busy => FI_EBUSY,
            // libfabric has no number for it.
            Error::Forked => FI_EIO,
            Error::Unsupported => FI_EOPNOTSUPP,
            // As the stock providers answer a second registration under a key (contract 8.13).
            Error::KeyInUse => FI_ENOKEY,
            Error::NoKey => FI_EKEYREJECTED,
            Error::NoRight | Error::OutOfBounds => FI_EACCES,
            Error::Unmapped => FI_EFAULT,
            Error::NoVector => FI_ENOENT,
            Error::ReadOnly => FI_EACCES,
        })
    }
}

/// The value of `prov_errno` for an engine error.
pub(crate) fn prov_errno(e: Error) -> c_int {
    ERRORS.iter().position(|known| *known == e).map_or(0, |i| i as c_int + 1)
}

/// The engine error that a `prov_errno` stands for.
pub(crate) fn error_of(prov_errno: c_int) -> Option<Error> {
    let at = usize::try_from(prov_errno).ok()?.checked_sub(1)?;
    ERRORS.get(at).copied()
}

/// The C form of an answer without a value.
#[inline]
pub(crate) fn status(answer: Answer<()>) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(Errno(e)) => -e,
    }
}

/// The C form of an answer that is a count.
#[inline]
pub(crate) fn count(answer: Answer<usize>) -> isize {
    match answer {
        Ok(n) => n as isize,
        Err(Errno(e)) => -(e as isize),
    }
}

/// Refuses with a number.
#[inline]
pub(crate) fn refuse<T>(errno: c_int) -> Answer<T> {
    Err(Errno(errno))
}

/// A kind of object that C holds a `fid` of.
///
/// # Safety
/// The type is `repr(C)` and its first field is a `fid_*` structure whose header has `fclass == CLASS`, from construction until
/// [`reclaim`].
pub(crate) unsafe trait Object {
    /// `FI_CLASS_*`.
    const CLASS: usize;
}

/// The object behind a handle.
///
/// # Safety
/// `handle` is null or points to a live `fid` of any kind, of this provider; the object is not closed during `'a`.
#[inline]
pub(crate) unsafe fn object<'a, T: Object, H>(handle: *mut H) -> Answer<&'a T> {
    let handle = handle.cast::<fid>();
    // SAFETY: a live fid starts with its class (caller).
    if handle.is_null() || unsafe { (*handle).fclass } != T::CLASS {
        return refuse(FI_EINVAL);
    }
    // SAFETY: the class says T, and a T starts with this fid (contract of Object); it was boxed by `hand_out`, so the pointer
    // is valid for all of T.
    Ok(unsafe { &*handle.cast::<T>() })
}

/// The class of a handle given to a bind call.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn class_of(handle: *mut fid) -> Answer<usize> {
    // SAFETY: a live fid starts with its class (caller).
    if handle.is_null() { refuse(FI_EINVAL) } else { Ok(unsafe { (*handle).fclass }) }
}

/// Gives a new object to C. It lives until [`reclaim`].
///
/// # Safety
/// `slot` is null or valid for a write.
pub(crate) unsafe fn hand_out<T: Object, H>(slot: *mut *mut H, new: T) -> Answer<()> {
    if slot.is_null() {
        return refuse(FI_EINVAL);
    }
    // SAFETY: valid for a write (caller).
    unsafe { slot.write(Box::into_raw(Box::new(new)).cast()) };
    Ok(())
}

/// Takes an object back from C, to be dropped. Nothing may refer to it any more.
///
/// # Safety
/// `handle` was given out by [`hand_out`] for the same `T`, and C does not use it again (fi_close(3)).
pub(crate) unsafe fn reclaim<T: Object>(handle: *mut fid) -> Box<T> {
    // SAFETY: made by Box::into_raw in hand_out; the caller gives it up.
    unsafe { Box::from_raw(handle.cast::<T>()) }
}

/// Reads an attribute structure that has the same size in every libfabric.
///
/// # Safety
/// `p` is null or points to a `T` that stays unchanged during `'a`.
pub(crate) unsafe fn attr<'a, T>(p: *const T) -> Option<&'a T> {
    // SAFETY: non-null, so valid (caller).
    unsafe { p.as_ref() }
}

/// Reads an attribute structure that later libfabrics made longer: the first `len` bytes are copied, the rest is zero. A
/// reference to it would already be wrong, since it lets the compiler read all of `T`.
///
/// # Safety
/// `p` is null or points to `len <= size_of::<T>()` bytes of a `T`, which is a C structure of numbers and pointers.
pub(crate) unsafe fn attr_prefix<T>(p: *const T, len: usize) -> Option<T> {
    if p.is_null() {
        return None;
    }
    let mut copy = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `len` bytes are there (caller), and fit; zeros are valid numbers and null pointers.
    unsafe {
        core::ptr::copy_nonoverlapping(p.cast::<u8>(), copy.as_mut_ptr().cast(), len.min(size_of::<T>()));
        Some(copy.assume_init())
    }
}

/// Writes a result where C asked for it; a null place asks for nothing.
///
/// # Safety
/// `place` is null or valid for a write.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: valid for a write (caller).
        unsafe { place.write(value) };
    }
}

/// A C string.
///
/// # Safety
/// `p` is null or points to a string that ends in NUL and stays unchanged during `'a`.
pub(crate) unsafe fn text<'a>(p: *const c_char) -> Option<&'a str> {
    if p.is_null() {
        return None;
    }
    // SAFETY: a C string (caller). Names and services that are not UTF-8 cannot be resolved: treated as empty.
    Some(unsafe { core::ffi::CStr::from_ptr(p) }.to_str().unwrap_or(""))
}

/// Copies as much of `bytes` as fits to `buf`, as the two-step queries of libfabric do: `len` is the room on entry and the
/// length needed on return.
///
/// # Safety
/// `len` is valid for reads and writes; `buf` is valid for `*len` bytes, or `*len` is 0.
pub(crate) unsafe fn copy_out(bytes: &[u8], buf: *mut c_void, len: *mut usize) -> Answer<()> {
    if len.is_null() {
        return refuse(FI_EINVAL);
    }
    // SAFETY: valid for reads (caller).
    let room = if buf.is_null() { 0 } else { unsafe { *len } };
    let n = room.min(bytes.len());
    if n > 0 {
        // SAFETY: `buf` holds `room >= n` bytes (caller) and is the client's, so it does not overlap ours.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), n) };
    }
    // SAFETY: valid for writes (caller).
    unsafe { *len = bytes.len() };
    if room < bytes.len() { refuse(FI_ETOOSMALL) } else { Ok(()) }
}

/// Writes `message` as a C string into `buf`, cut to `len`.
///
/// # Safety
/// `buf` is null or valid for `len` bytes.
pub(crate) unsafe fn copy_text(message: &str, buf: *mut c_char, len: usize) {
    if buf.is_null() || len == 0 {
        return;
    }
    let n = message.len().min(len - 1);
    // SAFETY: n + 1 <= len bytes are valid (caller).
    unsafe {
        core::ptr::copy_nonoverlapping(message.as_ptr(), buf.cast(), n);
        *buf.add(n) = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prov_errno_names_the_error() {
        for e in ERRORS {
            assert_eq!(error_of(prov_errno(e)), Some(e));
        }
        assert_eq!(error_of(0), None);
        assert_eq!(error_of(-1), None);
        assert_eq!(error_of(99), None);
    }

    #[test]
    fn texts_are_cut_and_terminated() {
        let mut buf = [1 as c_char; 4];
        // SAFETY: the buffer is live and of that size.
        unsafe { copy_text("abcdef", buf.as_mut_ptr(), 4) };
        assert_eq!(buf.map(|c| c as u8), *b"abc\0");
        let mut len = 2;
        // SAFETY: as above.
        let short = unsafe { copy_out(b"xyz", buf.as_mut_ptr().cast(), &mut len) };
        assert_eq!((short, len, buf[0] as u8, buf[2] as u8), (refuse(FI_ETOOSMALL), 3, b'x', b'c'));
    }
}
