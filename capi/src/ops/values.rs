//! Lists of values in the client's memory, as the atomic calls name them (`fi_ioc`): so many values at an address; how long one is, the
//! datatype says.
#![expect(unsafe_code)]
// UNSAFETY: reads lists that C passes by address and length.

use crate::abi::atomic::{fi_ioc, fi_rma_ioc};
use crate::abi::errno::FI_EINVAL;
use crate::boundary::{Answer, Errno, refuse};
use crate::convert;
use libc::c_void;
use rustmx::{IOV_LIMIT, UserSeg};

/// A list of values in our memory, as C passes it.
#[derive(Clone, Copy)]
pub(super) struct Values {
    list: *const fi_ioc,
    count: usize,
}

impl Values {
    pub(super) const NONE: Values = Values::new(core::ptr::null(), 0);

    pub(super) const fn new(list: *const fi_ioc, count: usize) -> Values {
        Values { list, count }
    }

    /// Those of one entry.
    pub(super) fn of(list: &fi_ioc) -> Values {
        Values::new(list, 1)
    }

    /// Its segments, `size` bytes a value. Returns how many.
    ///
    /// # Safety
    /// The list is as long as it says; what it names lives until completion.
    pub(super) unsafe fn segments(self, size: usize, into: &mut [UserSeg; IOV_LIMIT]) -> Answer<usize> {
        if self.count > IOV_LIMIT || (self.count > 0 && self.list.is_null()) {
            return refuse(FI_EINVAL);
        }
        for (i, segment) in into.iter_mut().enumerate().take(self.count) {
            // SAFETY: that many entries (caller).
            unsafe {
                let one = &*self.list.add(i);
                *segment = convert::segment(one.addr, one.count.checked_mul(size).ok_or(Errno(FI_EINVAL))?);
            }
        }
        Ok(self.count)
    }

    /// The place in a peer's memory that takes all of them.
    ///
    /// # Safety
    /// The list is as long as it says.
    pub(super) unsafe fn place(self, addr: u64, key: u64) -> [fi_rma_ioc; 1] {
        let count = (0..if self.list.is_null() { 0 } else { self.count })
            // SAFETY: that many entries (caller).
            .map(|i| unsafe { (*self.list.add(i)).count })
            .fold(0usize, usize::saturating_add);
        [fi_rma_ioc { addr, count, key }]
    }
}

/// `count` values at an address.
pub(super) fn ioc(addr: *const c_void, count: usize) -> fi_ioc {
    fi_ioc { addr: addr.cast_mut(), count }
}
