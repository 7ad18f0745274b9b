//! The lock of the C library's list of open files, around fork.
//!
//! fork takes it after all handlers of a program, ours too, and before the locks of malloc: whoever has it may wait for a file
//! (fflush of all), and whoever has a file for a block (getline). The heap's lock is one of malloc's, so the list's comes
//! before it.
#![expect(unsafe_code)]
// UNSAFETY: declares and calls C functions, and reads a variable of the C library.

use core::ffi::c_char;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

unsafe extern "C" {
    /// Takes the lock. It counts for the thread that has it: fork takes it again.
    fn _IO_list_lock();
    /// Undoes that.
    fn _IO_list_unlock();
    /// Makes it a lock that nobody has.
    fn _IO_list_resetlock();
}

/// Not zero while the process has one thread; null before [`find`] or where the C library does not say it.
static ALONE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Whether the fork under way took the lock. Written under it, or by the only thread.
static HELD: AtomicBool = AtomicBool::new(false);

/// Looks for what only newer C libraries have.
pub(crate) fn find() {
    // SAFETY: a C string, and the pseudo-handle for the order of search of the program.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    ALONE.store(found.cast(), Ordering::Release);
}

/// Takes the lock, if there is anybody to take it from.
pub(crate) fn hold() {
    let alone = ALONE.load(Ordering::Acquire);
    // As fork itself: a program of one thread may fork while it has the lock (in a signal handler, or in what fflush calls), and
    // goes on from there in the child, too: it would release a lock that had been reset.
    // SAFETY: a variable of the C library, written while there is one thread.
    let several = alone.is_null() || unsafe { alone.read_volatile() } == 0;
    if several {
        // SAFETY: always.
        unsafe { _IO_list_lock() };
    }
    HELD.store(several, Ordering::Relaxed);
}

/// Undoes [`hold`], in the same thread.
pub(crate) fn go_on() {
    if HELD.load(Ordering::Relaxed) {
        // SAFETY: taken by this thread.
        unsafe { _IO_list_unlock() };
    }
}

/// The same in a forked child.
pub(crate) fn go_on_in_child() {
    if HELD.load(Ordering::Relaxed) {
        // fork itself has done this already if it knew of other threads; a second release would be one too many.
        // SAFETY: there is no other thread that could have it.
        unsafe { _IO_list_resetlock() };
    }
}
