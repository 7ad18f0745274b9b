//! The preloadable heap of rustmx (`include/rustmx/heap.h`), if this process has it: where a buffer lies in memory that has a descriptor.
#![expect(unsafe_code)]
// UNSAFETY: dlsym(3), and calls of the functions that it finds.

use core::ffi::{c_int, c_void};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::OnceLock;

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Range {
    fd: c_int,
    reserved: u32,
    /// Of the arena: no other of this process has or had the same.
    pub generation: u64,
    /// First address of the arena.
    pub base: usize,
    /// Bytes of the arena and of its file.
    pub length: u64,
    /// Of the address, in both.
    pub offset: u64,
}

/// `struct rustmx_heap_1`
#[repr(C)]
struct Functions {
    size: usize,
    find: unsafe extern "C" fn(*const c_void, *mut Range) -> c_int,
    open: unsafe extern "C" fn(*const c_void, c_int) -> c_int,
}

/// The heap of this process.
#[derive(Clone, Copy)]
pub struct Heap {
    functions: &'static Functions,
}

/// The heap, if it is preloaded.
pub fn heap() -> Option<Heap> {
    static FOUND: OnceLock<Option<Heap>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: a symbol of this name is a structure of this type or a longer one (heap.h), in a library that was there before us and stays.
        let functions = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rustmx_heap_1".as_ptr()).cast::<Functions>().as_ref() };
        functions.filter(|f| f.size >= size_of::<Functions>()).map(|functions| Heap { functions })
    })
}

impl Heap {
    /// Where an address lies; `None`: not in the heap. No system call, no lock.
    #[inline]
    pub fn find(self, address: usize) -> Option<Range> {
        let mut range = Range { fd: -1, reserved: 0, generation: 0, base: 0, length: 0, offset: 0 };
        // SAFETY: as heap.h has it: any address, and a structure of ours to write to.
        let found = unsafe { (self.functions.find)(address as *const c_void, &raw mut range) };
        (found == 0).then_some(range)
    }

    /// A new descriptor of the arena in which an address lies.
    ///
    /// # Errors
    /// `EBADF` if the program closed the heap's own; `ENOENT`: not in the heap; `EMFILE`.
    pub fn open(self, address: usize, writable: bool) -> Result<OwnedFd, Errno> {
        // SAFETY: as heap.h has it: any address.
        let fd = unsafe { (self.functions.open)(address as *const c_void, c_int::from(writable)) };
        if fd < 0 {
            return Err(Errno::from_raw_os_error(-fd));
        }
        // SAFETY: a new descriptor, which is ours (heap.h).
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
