//! Memory of another process of this user, reached through the kernel: process_vm_readv(2), process_vm_writev(2).
//!
//! The kernel checks every address, so a wrong one is an error here and no fault there. Calls move at most [`CHUNK`] bytes each:
//! they hold the other process's memory map meanwhile.
#![expect(unsafe_code)]
// UNSAFETY: hands raw application buffers to the kernel.

use super::user::{UserSeg, window};

/// Most bytes of one system call.
pub const CHUNK: usize = 2 << 20;

/// Local pieces of one system call, one left over for words.
const PIECES: usize = 64;

/// Why the other process's memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAccess {
    /// The kernel does not allow it: Yama's ptrace_scope, seccomp, another user namespace, or no such system call.
    Forbidden,
    /// There is no such process.
    Gone,
    /// An address is not mapped there, or not with this right.
    Fault,
}

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

fn vector(base: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base as *mut libc::c_void, iov_len: len }
}

fn refusal() -> NoAccess {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) => NoAccess::Fault,
        Some(libc::ESRCH) => NoAccess::Gone,
        // EPERM, ENOSYS; and what else a filter may answer.
        _ => NoAccess::Forbidden,
    }
}

/// One system call. Returns the bytes moved.
///
/// # Safety
/// `local` must be valid memory for the way the bytes go.
unsafe fn call(pid: u32, way: Way, local: &[libc::iovec], remote: &[libc::iovec]) -> Result<usize, NoAccess> {
    let (l, ln, r, rn) = (local.as_ptr(), local.len() as libc::c_ulong, remote.as_ptr(), remote.len() as libc::c_ulong);
    // SAFETY: live arrays of these lengths; the local memory by our contract; the kernel checks the remote addresses.
    let n = unsafe {
        match way {
            Way::Read => libc::process_vm_readv(pid.cast_signed(), l, ln, r, rn, 0),
            Way::Write => libc::process_vm_writev(pid.cast_signed(), l, ln, r, rn, 0),
        }
    };
    usize::try_from(n).map_err(|_| refusal())
}

/// Moves `len` bytes between `iov` (from `skip` on) and `at` of process `pid`.
fn transfer(pid: u32, way: Way, at: u64, iov: &[UserSeg], skip: usize, len: usize) -> Result<(), NoAccess> {
    let mut done = 0;
    while done < len {
        let part = window(iov, skip + done, (len - done).min(CHUNK));
        let local: smallvec::SmallVec<[libc::iovec; 4]> =
            part.iter().take(PIECES).map(|s| vector(s.address() as u64, s.len())).collect();
        let want: usize = local.iter().map(|v| v.iov_len).sum();
        if want == 0 {
            return Err(NoAccess::Fault);
        }
        // SAFETY: parts of UserSegs, which their makers promised to be valid until the operation completes.
        let moved = unsafe { call(pid, way, &local, &[vector(at + done as u64, want)])? };
        if moved == 0 {
            return Err(NoAccess::Fault);
        }
        done += moved;
    }
    Ok(())
}

/// Reads `len` bytes at `from` of process `pid` into `to` from `skip` on.
pub fn fetch(pid: u32, from: u64, to: &[UserSeg], skip: usize, len: usize) -> Result<(), NoAccess> {
    transfer(pid, Way::Read, from, to, skip, len)
}

/// Writes `len` bytes of `from`, from `skip` on, to `to` of process `pid`.
pub fn store(pid: u32, to: u64, from: &[UserSeg], skip: usize, len: usize) -> Result<(), NoAccess> {
    transfer(pid, Way::Write, to, from, skip, len)
}

/// Reads `words.len()` words at `from` of process `pid`.
pub fn fetch_words(pid: u32, from: u64, words: &mut [u64]) -> Result<(), NoAccess> {
    let bytes = size_of_val(words);
    let local = [vector(words.as_mut_ptr() as u64, bytes)];
    // SAFETY: `words` is ours, and any bytes make words.
    match unsafe { call(pid, Way::Read, &local, &[vector(from, bytes)])? } {
        n if n == bytes => Ok(()),
        _ => Err(NoAccess::Fault),
    }
}

/// Writes private bytes to an address of this process, which need not be mapped.
pub fn store_own(to: u64, bytes: &[u8]) -> Result<(), NoAccess> {
    let (mut done, me) = (0, std::process::id());
    while done < bytes.len() {
        let rest = &bytes[done..];
        let local = [vector(rest.as_ptr() as u64, rest.len())];
        // SAFETY: the kernel reads `rest`, which lives.
        match unsafe { call(me, Way::Write, &local, &[vector(to + done as u64, rest.len())])? } {
            0 => return Err(NoAccess::Fault),
            n => done += n,
        }
    }
    Ok(())
}

/// Whether `len` bytes at `at` of this process are mapped (mincore(2)).
pub fn is_mapped(at: usize, len: usize) -> bool {
    const PAGE: usize = 4096;
    let start = at & !(PAGE - 1);
    let Some(end) = at.checked_add(len) else { return false };
    let mut present = [0u8; 256];
    (start..end).step_by(PAGE * present.len()).all(|from| {
        let bytes = (end - from).min(PAGE * present.len());
        // SAFETY: the vector has a byte for each page; the kernel checks the range.
        unsafe { libc::mincore(from as *mut libc::c_void, bytes, present.as_mut_ptr()) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;

    #[test]
    fn own_memory_comes_and_goes_and_bad_addresses_are_errors() {
        let me = std::process::id();
        let mut there = vec![0u8; 3 * CHUNK];
        let mut here: Vec<u8> = (0..there.len()).map(|i| (i * 7 + i / 300) as u8).collect();
        let at = there.as_mut_ptr() as u64;
        let (a, b) = here.split_at_mut(1000);
        let iov = [of_slice(a), of_slice(b)];
        let len = 3 * CHUNK - 10;
        match store(me, at, &iov, 10, len) {
            // A sandbox without these calls.
            Err(NoAccess::Forbidden) => return,
            other => other.expect("stored"),
        }
        assert_eq!(there[..len], here[10..]);
        let mut back = vec![0u8; len];
        fetch(me, at, &[of_slice(&mut back)], 0, len).expect("fetched");
        assert_eq!(back, here[10..]);
        let mut words = [0u64; 2];
        fetch_words(me, at, &mut words).expect("words");
        assert_eq!(words[0].to_ne_bytes(), here[10..18]);
        assert_eq!(fetch_words(me, 8, &mut words), Err(NoAccess::Fault));
        assert_eq!(store(me, 8, &iov, 0, 100), Err(NoAccess::Fault));
        assert_eq!(fetch_words(u32::MAX >> 1, at, &mut words), Err(NoAccess::Gone));
    }
}
