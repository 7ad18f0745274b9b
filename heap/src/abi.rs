//! The `malloc` family. Long requests go to [`heap`], the others, and all that it declines, to the C library ([`under`]).
#![expect(unsafe_code)]
// UNSAFETY: C functions that take and return blocks of memory.

use crate::table::Found;
use crate::{PAGE, heap, message, table, under};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

fn errno() -> c_int {
    // SAFETY: always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: always valid.
    unsafe { *libc::__errno_location() = value };
}

fn fail(value: c_int) -> *mut c_void {
    set_errno(value);
    null_mut()
}

/// The arena of a block of ours. Blocks begin at a page, so most that are not ours are known by their address alone.
fn ours(block: *mut c_void) -> Option<Found> {
    if (block as usize).is_multiple_of(PAGE) && !block.is_null() { table::find(block as usize) } else { None }
}

/// A long block, if the request is one and an arena has it.
fn take(size: usize, align: usize) -> Option<(*mut c_void, bool)> {
    if !heap::is_long(size) || size > isize::MAX as usize {
        return None;
    }
    heap::take(size, align).map(|(at, dirty)| (at as *mut c_void, dirty))
}

/// As glibc says it of such a pointer, and as fatal: a heap with a wrong book must not go on.
fn invalid(function: &str, block: *mut c_void) -> ! {
    message::say(format_args!("{function}: invalid pointer {block:p}: no block begins there"));
    // SAFETY: always.
    unsafe { libc::abort() }
}

/// malloc(3)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    match take(size, 1) {
        Some((block, _)) => block,
        // SAFETY: any size.
        None => unsafe { under::__libc_malloc(size) },
    }
}

/// free(3)
///
/// # Safety
/// As free(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: *mut c_void) {
    let Some(found) = ours(block) else {
        // SAFETY: not ours, so the caller has it from the C library or whoever it would be freed by without us.
        return unsafe { under::__libc_free(block) };
    };
    // POSIX 2024 and glibc keep it; none of our system calls changes it, but the lock might.
    let saved = errno();
    if !heap::release(found, block as usize) {
        invalid("free", block);
    }
    set_errno(saved);
}

/// calloc(3)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return fail(libc::ENOMEM) };
    match take(bytes, 1) {
        Some((block, dirty)) => {
            if dirty {
                // SAFETY: a fresh block of this many bytes.
                unsafe { core::ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
            }
            block
        }
        // SAFETY: any numbers.
        None => unsafe { under::__libc_calloc(count, size) },
    }
}

/// realloc(3)
///
/// # Safety
/// As realloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    if let Some(found) = ours(block) {
        // SAFETY: the caller's promise: a live block, ours.
        return unsafe { realloc_long(found, block, size) };
    }
    if !heap::is_long(size) || size > isize::MAX as usize {
        // SAFETY: the caller's promise: a live block, not ours.
        return unsafe { under::__libc_realloc(block, size) };
    }
    // A short block becomes a long one.
    // SAFETY: the caller's promise: a live block of the C library.
    let moved = unsafe { under::usable(block) }.and_then(|old| Some((old, take(size, 1)?.0)));
    let Some((old, new)) = moved else {
        // SAFETY: as above.
        return unsafe { under::__libc_realloc(block, size) };
    };
    // SAFETY: two live blocks of at least this many bytes.
    unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast::<u8>(), old.min(size)) };
    // SAFETY: the caller's promise; it has the other block now.
    unsafe { under::__libc_free(block) };
    new
}

/// `realloc` of a block of ours.
///
/// # Safety
/// `block` is a live block in the arena `found`, and the caller's to give up.
unsafe fn realloc_long(found: Found, block: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = heap::block(found, block as usize) else { invalid("realloc", block) };
    if size == 0 {
        // As glibc does.
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return null_mut();
    }
    if size > isize::MAX as usize {
        return fail(libc::ENOMEM);
    }
    let saved = errno();
    if heap::is_long(size) && heap::resize(found, block as usize, size) {
        set_errno(saved);
        return block;
    }
    // A block that grows once grows again. Pages behind its end cost nothing until they are touched, but without them a program
    // that grows a long block by small steps would copy it at each.
    let room = if size > old { size.saturating_add(old / 4) } else { size };
    let mut new = malloc(room);
    if new.is_null() && room != size {
        new = malloc(size);
    }
    if new.is_null() {
        return fail(libc::ENOMEM);
    }
    // SAFETY: two live blocks of at least this many bytes.
    unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast::<u8>(), old.min(size)) };
    // SAFETY: the caller's promise; it has the other block now.
    unsafe { free(block) };
    set_errno(saved);
    new
}

/// reallocarray(3)
///
/// # Safety
/// As reallocarray(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => fail(libc::ENOMEM),
    }
}

/// memalign(3)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // As glibc: what is no power of two is rounded up to one.
    let Some(rounded) = align.checked_next_power_of_two() else { return fail(libc::EINVAL) };
    match take(size, rounded) {
        Some((block, _)) => block,
        // SAFETY: any numbers.
        None => unsafe { under::__libc_memalign(align, size) },
    }
}

/// aligned_alloc(3)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// posix_memalign(3)
///
/// # Safety
/// As posix_memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let saved = errno();
    let block = memalign(align, size);
    set_errno(saved);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise: a place for a pointer.
    unsafe { *result = block };
    0
}

/// valloc(3)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE, size)
}

/// pvalloc(3)
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(whole) => memalign(PAGE, whole),
        None => fail(libc::ENOMEM),
    }
}

/// malloc_usable_size(3)
///
/// # Safety
/// As malloc_usable_size(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    match ours(block) {
        Some(found) => heap::block(found, block as usize).unwrap_or_else(|| invalid("malloc_usable_size", block)),
        // SAFETY: the caller's promise: null, or a live block that is not ours.
        None => unsafe { under::usable(block) }.unwrap_or(0),
    }
}
