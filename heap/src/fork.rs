//! A forked child gets its own copy of every long block, at the same address, before anything of the program runs in it.
//!
//! The order of handlers (ADR 0013): ours are registered first, so `before` is the last to run before the fork, and `child` and
//! `parent` the first after it. The copy is made before the fork, by the thread that forks; nobody waits for anybody.
#![expect(unsafe_code)]
// UNSAFETY: registers C functions, and uses what the held lock guards.

use crate::lock::Lock;
use crate::{files, heap, message, table};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

/// What the child exits with if it cannot have a copy (EX_OSERR of sysexits.h).
const NO_COPY: i32 = 71;

unsafe extern "C" {
    /// What `pthread_atfork` calls, with the library whose handlers they are; null: nobody's.
    fn __register_atfork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn(), library: *mut c_void)
    -> c_int;
}

/// Registers the handlers, for good: those of a library are dropped when it is finalised, and destructors that run later, or
/// threads that still run, may fork. False if there is no memory for that.
pub(crate) fn register() -> bool {
    // SAFETY: functions of this library, which is never unloaded (build.rs).
    unsafe { __register_atfork(before, parent, child, null_mut()) == 0 }
}

/// The signal mask of the thread that forks, from `before` until `parent` or `child` restores it. Its lock is held as long.
static MASK: Lock<MaybeUninit<libc::sigset_t>> = Lock::new(MaybeUninit::uninit());

/// Signals by which the kernel says what a thread itself just did: blocked, they would end the process.
const OF_THIS_THREAD: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Blocks all signals that come from elsewhere, and returns what was blocked before. A handler that ran in the child before it has its copy would write to
/// its parent's heap, and what it wrote would be missing in its own.
fn block() -> MaybeUninit<libc::sigset_t> {
    let (mut all, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: places for two sets; the first is written before it is read or changed.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        // A filter of system calls may have one of ours done by a handler of SIGSYS.
        OF_THIS_THREAD.iter().for_each(|signal| _ = libc::sigdelset(all.as_mut_ptr(), *signal));
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    old
}

/// Undoes [`block`], in the same thread or its image: what has come meanwhile is handled in here.
fn unblock(old: MaybeUninit<libc::sigset_t>) {
    // SAFETY: `block` has written it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), null_mut()) };
}

/// Takes the mask out and releases its lock. To be restored when all other locks are released: handlers may allocate, and fork.
fn mask() -> MaybeUninit<libc::sigset_t> {
    // SAFETY: held since `before`.
    let old = *unsafe { MASK.held() };
    MASK.release();
    old
}

extern "C" fn before() {
    let here = 0u8;
    // One that this process has from its own parent is anonymous memory, which fork copies by itself.
    if table::exported(&raw const here as usize).is_some() {
        message::say(format_args!(
            "fork on a stack that was allocated with malloc is not possible: both processes would run on it"
        ));
        // SAFETY: always.
        unsafe { libc::abort() };
    }
    let old = block();
    files::hold();
    heap::hold();
    MASK.acquire();
    // SAFETY: held since the line above.
    *unsafe { MASK.held() } = old;
    // SAFETY: held since `hold`.
    unsafe { heap::held().held() }.each().for_each(|a| a.copy());
}

extern "C" fn parent() {
    // SAFETY: held since `before`.
    unsafe { heap::held().held() }.each().for_each(|a| a.drop_copy());
    let old = mask();
    heap::go_on();
    files::go_on();
    unblock(old);
}

extern "C" fn child() {
    // SAFETY: held since `before`, by the thread of which this one is the image.
    let all = unsafe { heap::held().held() };
    for arena in all.each() {
        if let Err(e) = arena.become_private() {
            message::say(format_args!("no memory for a forked child's copy of the heap ({}): the child ends", e.raw_os_error()));
            // SAFETY: always. Nothing of the program runs on the parent's memory.
            unsafe { libc::_exit(NO_COPY) };
        }
    }
    all.settle();
    let old = mask();
    heap::go_on();
    files::go_on_in_child();
    unblock(old);
}
