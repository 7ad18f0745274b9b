//! A thread of ours in somebody else's program: no signal handler of the application runs in it for anything that it did not do itself.
#![expect(unsafe_code)]
// UNSAFETY: pthread_sigmask(3).

use core::mem::MaybeUninit;

/// Starts a thread that has all signals blocked but those that a thread causes itself.
pub fn quiet(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: sigfillset fills the set in, sigdelset takes out of it; pthread_sigmask reads it and writes the old one, or fails and writes nothing.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        // What the thread itself does wrong, or in memory that the application watches by a handler: blocked, these end the process.
        for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(all.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    if !blocked {
        return Err(std::io::Error::other("signals cannot be blocked"));
    }
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    // SAFETY: `before` was written by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    started.map(drop)
}
