//! `fi_getopt` and `fi_setopt` of endpoints (fi_endpoint(3)). An option is answered if there is a true answer; the others, and
//! those of features that are not offered, are refused with `-FI_ENOPROTOOPT`.
#![expect(unsafe_code)]
// UNSAFETY: reads and writes the client's option values.

use super::ep::Ep;
use crate::abi::endpoint::*;
use crate::abi::errno::*;
use crate::boundary::{Answer, copy_out, refuse};
use libc::{c_int, c_void};
use rustmx::{ATOMIC_MAX, MAX_MSG};

/// The largest operations, in the order of the options from `FI_OPT_MAX_MSG_SIZE` on, of an endpoint that may inject so much. A client that promises less is told what it
/// promised, and not held to it: nothing would be gained.
pub(super) fn limits(inject_max: usize) -> Limits {
    [MAX_MSG, MAX_MSG, MAX_MSG, ATOMIC_MAX, inject_max, inject_max, inject_max, inject_max.min(ATOMIC_MAX)]
}
pub(super) type Limits = [usize; 8];
const _: () = assert!(FI_OPT_INJECT_ATOMIC_SIZE - FI_OPT_MAX_MSG_SIZE == 7);

/// A value that is read as one of C's types.
///
/// # Safety
/// `value` is null or holds `len` bytes; any bytes make a `T`.
pub(super) unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Answer<T> {
    if value.is_null() || len != size_of::<T>() {
        return refuse(FI_EINVAL);
    }
    // SAFETY: as many bytes as a T has (checked), of which any make one (caller).
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

impl Ep {
    /// The value of an option, to a buffer.
    ///
    /// # Safety
    /// As for [`copy_out`].
    pub(super) unsafe fn get_option(&self, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> Answer<()> {
        if level != FI_OPT_ENDPOINT {
            return refuse(FI_ENOPROTOOPT);
        }
        let now = match name {
            FI_OPT_MIN_MULTI_RECV => self.min_multi_recv()?,
            // There are no connections, so no data goes with them.
            FI_OPT_CM_DATA_SIZE => 0,
            FI_OPT_TX_SIZE => self.sizes.0,
            FI_OPT_RX_SIZE => self.sizes.1,
            FI_OPT_MAX_MSG_SIZE..=FI_OPT_INJECT_ATOMIC_SIZE => self.limits.lock()[(name - FI_OPT_MAX_MSG_SIZE) as usize],
            FI_OPT_FI_HMEM_P2P => {
                // SAFETY: as the caller promises.
                return unsafe { copy_out(&FI_HMEM_P2P_DISABLED.to_ne_bytes(), value, len) };
            }
            // CUDA_API_PERMITTED and SHARED_MEMORY_PERMITTED can only be set (fi_endpoint(3)).
            _ => return refuse(FI_ENOPROTOOPT),
        };
        // SAFETY: as the caller promises.
        unsafe { copy_out(&now.to_ne_bytes(), value, len) }
    }

    /// Sets an option.
    ///
    /// # Safety
    /// `value` is null or holds `len` bytes.
    pub(super) unsafe fn set_option(&self, level: c_int, name: c_int, value: *const c_void, len: usize) -> Answer<()> {
        if level != FI_OPT_ENDPOINT {
            return refuse(FI_ENOPROTOOPT);
        }
        // SAFETY: as the caller promises; numbers, of which any bytes make one (a C bool is read as a byte).
        unsafe {
            match name {
                FI_OPT_MIN_MULTI_RECV => self.set_min_multi_recv(read(value, len)?),
                FI_OPT_FI_HMEM_P2P if read::<c_int>(value, len)? == FI_HMEM_P2P_DISABLED => Ok(()),
                FI_OPT_FI_HMEM_P2P => refuse(FI_EOPNOTSUPP),
                // We never call CUDA. Being allowed to needs a device that we would use (fi_endpoint(3)).
                FI_OPT_CUDA_API_PERMITTED if read::<u8>(value, len)? == 0 => Ok(()),
                FI_OPT_CUDA_API_PERMITTED => refuse(FI_EINVAL),
                // There is nothing else that we could use.
                FI_OPT_SHARED_MEMORY_PERMITTED if read::<u8>(value, len)? != 0 => Ok(()),
                FI_OPT_SHARED_MEMORY_PERMITTED => refuse(FI_EOPNOTSUPP),
                FI_OPT_MAX_MSG_SIZE..=FI_OPT_INJECT_ATOMIC_SIZE => {
                    let (at, new) = ((name - FI_OPT_MAX_MSG_SIZE) as usize, read(value, len)?);
                    if new > limits(self.inject_max)[at] {
                        return refuse(FI_EINVAL);
                    }
                    self.limits.lock()[at] = new;
                    Ok(())
                }
                // The rest is fixed, or not offered.
                _ => refuse(FI_ENOPROTOOPT),
            }
        }
    }
}
