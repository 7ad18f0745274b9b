//! The interface for the provider in the same process: `include/rustmx/heap.h`.
#![expect(unsafe_code)]
// UNSAFETY: C functions that write to what the caller points to, and a structure of them under a public name.

use crate::message::Line;
use crate::{arena, table};
use core::ffi::{CStr, c_int, c_void};
use core::fmt::Write;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `struct rustmx_heap_range`
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct rustmx_heap_range {
    /// The arena's descriptor; the heap's, to be duplicated.
    pub fd: c_int,
    /// Zero.
    pub reserved: u32,
    /// Of the arena; no other of this process has or had it.
    pub generation: u64,
    /// First address of the arena.
    pub base: *mut c_void,
    /// Bytes of the arena, and of its file.
    pub length: u64,
    /// Where the address lies in both.
    pub offset: u64,
}

/// `struct rustmx_heap_1`
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct rustmx_heap_1_ops {
    /// Bytes of this structure, as this library knows it.
    pub size: usize,
    /// Where an address lies.
    pub find: unsafe extern "C" fn(*const c_void, *mut rustmx_heap_range) -> c_int,
    /// A new descriptor of the arena in which an address lies.
    pub open: extern "C" fn(*const c_void, c_int) -> c_int,
}

/// What `dlsym(RTLD_DEFAULT, "rustmx_heap_1")` finds.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals, reason = "its name in C")]
pub static rustmx_heap_1: rustmx_heap_1_ops = rustmx_heap_1_ops { size: size_of::<rustmx_heap_1_ops>(), find, open };

unsafe extern "C" fn find(address: *const c_void, range: *mut rustmx_heap_range) -> c_int {
    let Some((found, file, generation)) = table::exported(address as usize) else { return -libc::ENOENT };
    let (base, offset) = (found.base as *mut c_void, (address as usize - found.base) as u64);
    let result = rustmx_heap_range { fd: file.fd, reserved: 0, generation, base, length: found.reserve as u64, offset };
    // SAFETY: the caller points to a structure of this type.
    unsafe { *range = result };
    0
}

extern "C" fn open(address: *const c_void, writable: c_int) -> c_int {
    let Some((_, file, _)) = table::exported(address as usize) else { return -libc::ENOENT };
    // SAFETY: only duplicated; what it leads to is looked at below.
    let fd = unsafe { BorrowedFd::borrow_raw(file.fd) };
    let result = rustix::io::fcntl_dupfd_cloexec(fd, 0).and_then(|mine| {
        // The duplicate is nobody else's: what it leads to now, it leads to.
        if !arena::is(mine.as_fd(), file) {
            return Err(Errno::BADF);
        }
        if writable != 0 {
            return Ok(mine);
        }
        let mut path = Line::new();
        let _ = write!(path, "/proc/self/fd/{}\0", mine.as_raw_fd());
        let path = CStr::from_bytes_with_nul(path.bytes()).map_err(|_| Errno::INVAL)?;
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    });
    match result {
        Ok(fd) => fd.into_raw_fd(),
        Err(e) => -e.raw_os_error(),
    }
}
