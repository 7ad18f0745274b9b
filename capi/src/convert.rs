//! C arguments to engine types, engine records to C entries. No allocation: scatter lists are converted on the stack.
#![expect(unsafe_code)]
// UNSAFETY: reads the client's iovec arrays and vouches for the memory that they name.

use crate::abi::eq::*;
use crate::abi::errno::{FI_EINVAL, FI_EOPNOTSUPP};
use crate::abi::fabric::*;
use crate::boundary::{Answer, refuse};
use libc::{c_void, iovec};
use rustmx::{Completion, IOV_LIMIT, OpFlags, UserSeg};

/// Operation flags that ask for something this provider does not offer: refused, as ignoring them would change the meaning of
/// the call.
const REFUSED_FLAGS: u64 = FI_TRIGGER | FI_COMMIT_COMPLETE | FI_MATCH_COMPLETE | FI_MULTICAST;

/// The flags of a call that has some.
#[inline]
pub(crate) fn flags(flags: u64) -> Answer<OpFlags> {
    if flags & REFUSED_FLAGS != 0 {
        return refuse(FI_EOPNOTSUPP);
    }
    Ok(OpFlags::from_bits_retain(flags))
}

/// The one buffer of a call.
///
/// # Safety
/// `buf` holds `len` bytes until the operation completes (fi_msg(3)), or `len` is 0.
#[inline]
pub(crate) unsafe fn segment(buf: *const c_void, len: usize) -> UserSeg {
    // SAFETY: as the caller promises; a send buffer is only ever read.
    unsafe { UserSeg::new(buf.cast_mut().cast(), len) }
}

/// Runs `post` with the segments of an iovec array.
///
/// # Safety
/// `iov` holds `count` entries during the call; the memory they name is as for [`segment`].
#[inline]
pub(crate) unsafe fn with_segments<R>(iov: *const iovec, count: usize, post: impl FnOnce(&[UserSeg]) -> Answer<R>) -> Answer<R> {
    // Most calls have one segment or none.
    match count {
        0 => return post(&[]),
        1 if !iov.is_null() => {
            // SAFETY: one entry (caller).
            let one = unsafe { segment((*iov).iov_base, (*iov).iov_len) };
            return post(&[one]);
        }
        _ if iov.is_null() || count > IOV_LIMIT => return refuse(FI_EINVAL),
        _ => {}
    }
    // SAFETY: zero bytes at no address.
    let mut segments = [unsafe { segment(core::ptr::null(), 0) }; IOV_LIMIT];
    for (i, segment) in segments.iter_mut().enumerate().take(count) {
        // SAFETY: `count` entries (caller).
        *segment = unsafe { self::segment((*iov.add(i)).iov_base, (*iov.add(i)).iov_len) };
    }
    post(&segments[..count])
}

/// The entry format of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Context,
    Msg,
    Data,
    Tagged,
}

impl Format {
    /// What `fi_cq_attr.format` stands for; `None` if nothing. We may choose when the client does not: the smallest.
    pub(crate) fn of(format: c_enum) -> Option<Format> {
        match format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => Some(Format::Context),
            FI_CQ_FORMAT_MSG => Some(Format::Msg),
            FI_CQ_FORMAT_DATA => Some(Format::Data),
            FI_CQ_FORMAT_TAGGED => Some(Format::Tagged),
            _ => None,
        }
    }

    /// Where entry `index` of an array begins.
    pub(crate) fn entry(self, array: *mut c_void, index: usize) -> *mut c_void {
        let size = match self {
            Format::Context => size_of::<fi_cq_entry>(),
            Format::Msg => size_of::<fi_cq_msg_entry>(),
            Format::Data => size_of::<fi_cq_data_entry>(),
            Format::Tagged => size_of::<fi_cq_tagged_entry>(),
        };
        array.wrapping_byte_add(size * index)
    }
}

/// An entry that a completion queue can be read as.
pub(crate) trait CqFormat {
    /// The engine's record in this format.
    fn from(c: &Completion) -> Self;
}

impl CqFormat for fi_cq_entry {
    #[inline]
    fn from(c: &Completion) -> Self {
        fi_cq_entry { op_context: c.ctx.0 as *mut c_void }
    }
}

impl CqFormat for fi_cq_msg_entry {
    #[inline]
    fn from(c: &Completion) -> Self {
        fi_cq_msg_entry { op_context: c.ctx.0 as *mut c_void, flags: c.flags.bits(), len: c.len }
    }
}

impl CqFormat for fi_cq_data_entry {
    #[inline]
    fn from(c: &Completion) -> Self {
        fi_cq_data_entry {
            op_context: c.ctx.0 as *mut c_void,
            flags: c.flags.bits(),
            len: c.len,
            buf: c.buf as *mut c_void,
            data: c.data,
        }
    }
}

impl CqFormat for fi_cq_tagged_entry {
    #[inline]
    fn from(c: &Completion) -> Self {
        fi_cq_tagged_entry {
            op_context: c.ctx.0 as *mut c_void,
            flags: c.flags.bits(),
            len: c.len,
            buf: c.buf as *mut c_void,
            data: c.data,
            tag: c.tag,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_lists_of_every_length() {
        let mut bytes = [0u8; 64];
        let iov: Vec<iovec> = (0..17).map(|i| iovec { iov_base: bytes[i..].as_mut_ptr().cast(), iov_len: i }).collect();
        for n in 0..=16 {
            // SAFETY: `iov` and the bytes it names are alive.
            let lens = unsafe { with_segments(iov.as_ptr(), n, |s| Ok(s.iter().map(UserSeg::len).collect::<Vec<_>>())) };
            assert_eq!(lens, Ok((0..n).collect::<Vec<_>>()));
        }
        // SAFETY: refused before anything is read.
        let (many, none) =
            unsafe { (with_segments(iov.as_ptr(), 17, |_| Ok(())), with_segments(core::ptr::null(), 2, |_| Ok(()))) };
        assert_eq!((many, none), (refuse(FI_EINVAL), refuse(FI_EINVAL)));
        // SAFETY: a client may pass no array with no segments (contract 3.4).
        assert_eq!(unsafe { with_segments(core::ptr::null(), 0, |s| Ok(s.len())) }, Ok(0));
    }

    #[test]
    fn flags_that_mean_what_we_cannot_do_are_refused() {
        assert_eq!(flags(FI_COMPLETION | FI_MORE).map(|f| f.bits()), Ok(FI_COMPLETION | FI_MORE));
        assert_eq!(flags(FI_COMPLETION | FI_TRIGGER), refuse(FI_EOPNOTSUPP));
    }
}
