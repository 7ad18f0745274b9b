//! The C library's own allocator, under the names by which it can be called while ours are the public ones.
#![expect(unsafe_code)]
// UNSAFETY: declares and calls C functions.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
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

/// The C library's version of what it has had from the beginning.
const VERSION: &CStr = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

/// `malloc_usable_size` of the same allocator, which has no second name; 0 before [`find`], or if there is none.
static USABLE: AtomicUsize = AtomicUsize::new(0);

/// Looks for what has no second name.
pub(crate) fn find() {
    USABLE.store(beside_malloc().unwrap_or(0), Ordering::Release);
}

/// `malloc_usable_size` out of the library that `__libc_malloc` is from. The next one in the order of search may be another
/// allocator's, which has the public names only: it would read a block of the C library as its own. The C library's is found by
/// its version, too.
///
/// Not by `dlopen`: in this constructor that would run the C library's, with an empty environment, before ld.so does.
fn beside_malloc() -> Option<usize> {
    let library = library_of(__libc_malloc as *const () as usize)?;
    let right = |found: *mut c_void| library_of(found as usize).is_some_and(|l| l == library).then_some(found as usize);
    let name = c"malloc_usable_size".as_ptr();
    // SAFETY: C strings, and the pseudo-handle for "behind us in the order of search".
    right(unsafe { libc::dlsym(libc::RTLD_NEXT, name) })
        // SAFETY: as above.
        .or_else(|| right(unsafe { libc::dlvsym(libc::RTLD_NEXT, name, VERSION.as_ptr()) }))
}

/// Where the library is mapped in which `address` lies.
fn library_of(address: usize) -> Option<usize> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address, and a place for the structure; zeros are valid in it.
    let (known, info) = unsafe { (libc::dladdr(address as *const c_void, info.as_mut_ptr()), info.assume_init()) };
    (known != 0).then_some(info.dli_fbase as usize)
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
