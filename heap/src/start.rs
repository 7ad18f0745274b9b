//! The constructor: reads the environment, registers the fork handlers, opens the heap.
#![expect(unsafe_code)]
// UNSAFETY: an entry of .init_array, which gets C strings.

use crate::config::{DEFAULT, Wrong};
use crate::message::Shown;
use crate::{PAGE, files, fork, heap, message, under};
use core::ffi::{CStr, c_char, c_int};

/// Called by ld.so before any other constructor (build.rs), the C library's too: `environ` is not set yet, hence the argument.
extern "C" fn start(_argc: c_int, _argv: *const *const c_char, environment: *const *const c_char) {
    under::find();
    files::find();
    let mut config = DEFAULT;
    let mut at = environment;
    // SAFETY: ld.so passes an array of C strings that a null pointer ends; both last until the program changes them, later.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|e| !e.is_null()) {
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(*entry) };
        if let Err(wrong) = config.set(text.to_bytes()) {
            let text = Shown(text.to_bytes());
            match wrong {
                Wrong::Name => message::say(format_args!(
                    "{text}: no such setting, there are RUSTMX_HEAP, RUSTMX_HEAP_RESERVE, RUSTMX_HEAP_MIN"
                )),
                Wrong::Value { allowed, default } => {
                    message::say(format_args!("{text}: must be {allowed}; the default, {default}, is used"));
                }
            }
        }
        // SAFETY: not at the end, which is the null pointer.
        at = unsafe { at.add(1) };
    }
    if !config.on {
        return;
    }
    // SAFETY: always.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if page != PAGE as libc::c_long {
        message::say(format_args!("pages of {page} bytes are not supported: the C library's heap is used"));
        return;
    }
    // A heap whose fork is not safe is none.
    if fork::register() {
        heap::begin(config.min, config.reserve, memory());
    }
}

/// Bytes of memory and of swap space that the machine has.
fn memory() -> usize {
    let mut info = core::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: a place for the structure; zeros are valid in it.
    let info = unsafe {
        libc::sysinfo(info.as_mut_ptr());
        info.assume_init()
    };
    (info.totalram as usize).saturating_add(info.totalswap as usize).saturating_mul(info.mem_unit.max(1) as usize)
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

#[cfg(test)]
const _: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;
