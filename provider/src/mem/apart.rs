//! Addresses for tests that unmap memory and count on it that nothing is there then: where the kernel chooses, another test's thread may map something into such
//! a hole at any moment.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Low in the address space, where no mmap without an address looks, and below what the sanitizers have.
const FIRST: usize = 256 << 20;
const END: usize = 1 << 30;
/// That of huge pages.
const STEP: usize = 2 << 20;

/// A place of so many bytes, each time another one. What is to be there is mapped with `MAP_FIXED_NOREPLACE`.
pub fn room(len: usize) -> *mut c_void {
    static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
    let at = NEXT.fetch_add(len.next_multiple_of(STEP) + STEP, Ordering::Relaxed);
    assert!(at + len <= END, "no more room");
    at as *mut c_void
}
