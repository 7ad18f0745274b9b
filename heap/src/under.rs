//! The C library's own allocator, under the names by which it can be called while ours are the public ones.
#![expect(unsafe_code)]
// UNSAFETY: declares and calls C functions.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

unsafe extern "C" {
    /// `malloc` of the C library.
    pub(crate) fn __libc_malloc(size: usize) -> *mut c_void;
    /// `free` of the C library.
    pub(crate) fn __libc_free(block: *mut c_void);
    /// `calloc` of the C library.
    pub(crate) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    /// `realloc` of the C library.
    pub(crate) fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    /// `memalign` of the C library.
    pub(crate) fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
}

/// The C library's `malloc_usable_size`, which has no second name; 0 before [`find`].
static USABLE: AtomicUsize = AtomicUsize::new(0);

/// Looks for what has no second name.
pub(crate) fn find() {
    // SAFETY: a C string, and the pseudo-handle for "behind us in the order of search".
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
    USABLE.store(found as usize, Ordering::Release);
}

/// Bytes that may be used of a block of the C library, if that can be known.
///
/// # Safety
/// `block` is null or a live block of the C library.
pub(crate) unsafe fn usable(block: *mut c_void) -> Option<usize> {
    let at = USABLE.load(Ordering::Acquire);
    if at == 0 {
        return None;
    }
    // SAFETY: what dlsym found under this name has this type.
    let f: unsafe extern "C" fn(*mut c_void) -> usize = unsafe { core::mem::transmute(at) };
    // SAFETY: the caller's promise.
    Some(unsafe { f(block) })
}
