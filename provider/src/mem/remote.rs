//! Memory of another process of this user, reached through the kernel: process_vm_readv(2), process_vm_writev(2).
//!
//! The kernel checks every address there, so a wrong one is an error here and no fault there. Calls move at most [`CHUNK`] bytes each:
//! they hold the other process's memory map meanwhile.
//!
//! Where the kernel's own copy would be slow ([`aliased`]), bytes go by a detour: between there and a place of ours that lies in its page as they do there, and
//! between it and where they belong by our own loop: 2 MiB take 223 µs so, and else 518 (Zen 3, through MPI).
#![expect(unsafe_code)]
// UNSAFETY: hands raw application buffers to the kernel.

use super::aliased;
use super::engine::Engine;
use super::user::{self, UserSeg, window};
use core::mem::MaybeUninit;

/// Most bytes of one system call.
pub const CHUNK: usize = 2 << 20;

/// Bytes that take a detour at once: what fits into a core's nearer caches beside where it comes from and where it goes.
const DETOUR: usize = 32 << 10;
const PAGE: usize = 4096;

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

/// A piece of the other process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte there.
    pub addr: u64,
    /// Its bytes.
    pub len: usize,
}

/// Words that are read by the same system call as the last bytes of a transfer: from the same process, as it was then.
pub struct Also<'a> {
    /// Where they are there.
    pub at: u64,
    /// Where they go.
    pub words: &'a mut [u64],
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
    #[cfg(test)]
    longest::note(bytes_of(local));
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

/// What this thread has asked for in one system call, at most.
#[cfg(test)]
pub mod longest {
    use std::cell::Cell;

    thread_local!(static BYTES: Cell<usize> = const { Cell::new(0) });

    pub(super) fn note(bytes: usize) {
        BYTES.set(BYTES.get().max(bytes));
    }

    /// Since this was asked last.
    pub fn take() -> usize {
        BYTES.take()
    }
}

type Vectors = smallvec::SmallVec<[libc::iovec; 4]>;

fn bytes_of(vectors: &[libc::iovec]) -> usize {
    vectors.iter().map(|v| v.iov_len).sum()
}

/// The vectors of `len` bytes of `pieces` from `skip` on, or of fewer if there are not so many.
fn remote_window(pieces: &[Piece], mut skip: usize, mut len: usize) -> Vectors {
    let mut out = Vectors::new();
    for piece in pieces {
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let n = (piece.len - skip).min(len);
        out.push(vector(piece.addr.wrapping_add(skip as u64), n));
        (skip, len) = (0, len - n);
        if len == 0 {
            break;
        }
    }
    out
}

/// Whether a detour is quicker: between one piece here and one there.
fn pays(way: Way, local: &[libc::iovec], remote: &[libc::iovec]) -> bool {
    let ([here], [there]) = (local, remote) else { return false };
    let (here_at, there_at) = (here.iov_base.addr(), there.iov_base.addr());
    #[cfg(test)]
    if let Some(all) = detours::forced() {
        return all && here.iov_len >= aliased::FROM;
    }
    match way {
        Way::Read => aliased::is_slow(there_at, here_at, here.iov_len),
        Way::Write => aliased::is_slow(here_at, there_at, here.iov_len),
    }
}

/// Whether this thread makes all detours that it could make, or none, whatever the machine.
#[cfg(test)]
pub mod detours {
    use std::cell::Cell;

    thread_local!(static FORCED: Cell<Option<bool>> = const { Cell::new(None) });

    pub(super) fn forced() -> Option<bool> {
        FORCED.get()
    }

    /// From now on; `None`: as it pays.
    pub fn force(all: Option<bool>) {
        FORCED.set(all);
    }
}

/// Room for bytes on a detour, once there are some.
struct Detour {
    /// At once.
    most: usize,
    room: Option<Box<[MaybeUninit<u8>]>>,
}

impl Detour {
    /// Where the bytes of a piece there stop on their way: as far in its page as they lie there.
    fn instead_of(&mut self, there: libc::iovec) -> libc::iovec {
        let room = self.room.get_or_insert_with(|| Box::new_uninit_slice(self.most + PAGE));
        let skip = there.iov_base.addr().wrapping_sub(room.as_ptr().addr()) % PAGE;
        let stop = &mut room[skip..][..there.iov_len];
        vector(stop.as_mut_ptr() as u64, stop.len())
    }

    /// Takes them from where they are here.
    fn take(&mut self, here: &[UserSeg], there: libc::iovec) {
        let stop = self.instead_of(there);
        // SAFETY: `stop` is a part of ours of that length, and no application memory.
        unsafe { user::gather_by(Engine::Plain, here, 0, stop.iov_len, stop.iov_base.cast()) };
    }

    /// Brings `n` of them to where they belong here.
    fn bring(&mut self, here: &[UserSeg], there: libc::iovec, n: usize) {
        let stop = self.instead_of(there);
        // SAFETY: `stop` is a part of ours that is at least that long, of which the kernel has filled `n`, and no application memory.
        unsafe { user::scatter_by(Engine::Plain, here, 0, n.min(stop.iov_len), stop.iov_base.cast()) };
    }
}

/// Moves `len` bytes between our memory from some byte on and that of process `pid`.
fn transfer(
    pid: u32,
    way: Way,
    (here, at): (&[UserSeg], usize),
    (there, from): (&[Piece], usize),
    len: usize,
    mut also: Option<Also<'_>>,
) -> Result<(), NoAccess> {
    let mut done = 0;
    let mut detour = Detour { most: len.min(DETOUR), room: None };
    while done < len || also.is_some() {
        let part = window(here, at + done, (len - done).min(CHUNK));
        let mut local: Vectors = part.iter().take(PIECES).map(|s| vector(s.address() as u64, s.len())).collect();
        let mut want = bytes_of(&local);
        let mut remote = remote_window(there, from + done, want);
        if done < len && (want == 0 || bytes_of(&remote) != want) {
            return Err(NoAccess::Fault);
        }
        let detours = pays(way, &local, &remote);
        if detours {
            want = want.min(detour.most);
            remote[0].iov_len = want;
            local[0] = detour.instead_of(remote[0]);
            if matches!(way, Way::Write) {
                detour.take(&part, remote[0]);
            }
        }
        let mut all = want;
        if done + want == len
            && let Some(also) = &mut also
        {
            let bytes = size_of_val(also.words);
            local.push(vector(also.words.as_mut_ptr() as u64, bytes));
            remote.push(vector(also.at, bytes));
            all += bytes;
        }
        // SAFETY: parts of UserSegs, which their makers promised to be valid until the operation completes, or a detour's room; and words that
        // live, are ours, and may hold any bytes.
        let moved = unsafe { call(pid, way, &local, &remote)? };
        if moved == 0 {
            return Err(NoAccess::Fault);
        }
        if detours && matches!(way, Way::Read) {
            detour.bring(&part, remote[0], moved.min(want));
        }
        done += moved.min(want);
        if done == len {
            // The words are read whole or not at all: the kernel stops in the middle of them where a page is missing, each time.
            if moved < all {
                return Err(NoAccess::Fault);
            }
            also = None;
        }
    }
    Ok(())
}

/// Reads `len` bytes at `from` of process `pid` into `to` from `skip` on.
pub fn fetch(pid: u32, from: u64, to: &[UserSeg], skip: usize, len: usize) -> Result<(), NoAccess> {
    transfer(pid, Way::Read, (to, skip), (&[Piece { addr: from, len }], 0), len, None)
}

/// Writes `len` bytes of `from`, from `skip` on, to `to` of process `pid`.
pub fn store(pid: u32, to: u64, from: &[UserSeg], skip: usize, len: usize) -> Result<(), NoAccess> {
    transfer(pid, Way::Write, (from, skip), (&[Piece { addr: to, len }], 0), len, None)
}

/// Reads `len` bytes, from byte `at` on, of a message that lies in `from` of process `pid` into its place in `to`.
pub fn fetch_part(
    pid: u32,
    from: &[Piece],
    to: &[UserSeg],
    at: usize,
    len: usize,
    also: Option<Also<'_>>,
) -> Result<(), NoAccess> {
    transfer(pid, Way::Read, (to, at), (from, at), len, also)
}

/// Appends the first `len` bytes of a message that lies in `from` of process `pid` to `out`; all of them or none.
pub fn append(pid: u32, from: &[Piece], len: usize, also: Option<Also<'_>>, out: &mut Vec<u8>) -> Result<(), NoAccess> {
    let start = out.len();
    out.resize(start + len, 0);
    // SAFETY: the bytes just added, which live and are ours until the transfer is over; nobody keeps the segment.
    let to = unsafe { UserSeg::new(out.as_mut_ptr().add(start), len) };
    transfer(pid, Way::Read, (&[to], 0), (from, 0), len, also).inspect_err(|_| out.truncate(start))
}

/// Writes `len` bytes, from byte `at` on, of the message in `from` to its place in `to` of process `pid`.
pub fn store_part(pid: u32, to: &[Piece], from: &[UserSeg], at: usize, len: usize) -> Result<(), NoAccess> {
    transfer(pid, Way::Write, (from, at), (to, at), len, None)
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

/// What the kernel answers to the wish to read the word at `from` of process `pid`: for people, so with its own error.
///
/// # Errors
/// The kernel's.
pub fn ask(pid: u32, from: u64) -> Result<(), rustix::io::Errno> {
    let mut word = [0u64];
    let (local, remote) = ([vector(word.as_mut_ptr() as u64, 8)], [vector(from, 8)]);
    // SAFETY: `word` is ours, and any bytes make a word.
    match unsafe { call(pid, Way::Read, &local, &remote) } {
        Ok(_) => Ok(()),
        Err(_) => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::PERM)),
    }
}

/// What the kernel answers to the wish to write to process `pid`, and to nothing there: the address is one that no process has.
///
/// # Errors
/// The kernel's.
pub fn ask_to_write(pid: u32) -> Result<(), rustix::io::Errno> {
    // The last page of all addresses is the kernel's own. Who may write is asked for before that is seen.
    const NOBODYS: u64 = u64::MAX - 4095;
    let mut word = [0u64];
    let (local, remote) = ([vector(word.as_mut_ptr() as u64, 8)], [vector(NOBODYS, 8)]);
    // SAFETY: the kernel reads `word`, which lives.
    match unsafe { call(pid, Way::Write, &local, &remote) } {
        Ok(_) | Err(NoAccess::Fault) => Ok(()),
        Err(_) => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::PERM)),
    }
}

/// Writes private bytes to an address of this process, which need not be mapped.
pub fn store_own(to: u64, bytes: &[u8]) -> Result<(), NoAccess> {
    let (mut done, me) = (0, std::process::id());
    while done < bytes.len() {
        let rest = &bytes[done..][..(bytes.len() - done).min(CHUNK)];
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

    /// A call holds the memory map of the other process: one that unmaps there waits no longer than for so many bytes.
    #[test]
    fn no_call_is_longer_than_a_chunk() {
        let (me, len) = (std::process::id(), 3 * CHUNK + 5);
        let (mut there, mut here) = (vec![0u8; len], vec![7u8; len]);
        let at = there.as_mut_ptr() as u64;
        let (pieces, iov) = ([Piece { addr: at, len }], [of_slice(&mut here)]);
        if fetch_words(me, at, &mut [0]).is_err() {
            // A sandbox without these calls.
            return;
        }
        let mut words = [0; 8];
        longest::take();
        for (way, all) in (0..6).flat_map(|way| [(way, false), (way, true)]) {
            detours::force(Some(all));
            let done = match way {
                0 => fetch(me, at, &iov, 0, len),
                1 => store(me, at, &iov, 0, len),
                2 => fetch_part(me, &pieces, &iov, 0, len, None),
                3 => fetch_part(me, &pieces, &iov, 0, len, Some(Also { at, words: &mut words })),
                4 => store_part(me, &pieces, &iov, 0, len),
                _ => store_own(at, &[9; 2 * CHUNK + 1]),
            };
            let most = if all && way < 5 { DETOUR } else { CHUNK };
            assert_eq!((done, longest::take()), (Ok(()), most), "{way}, detours: {all}");
        }
        detours::force(None);
        assert!(there[..2 * CHUNK + 1].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn own_memory_comes_and_goes_and_bad_addresses_are_errors() {
        for forced in [None, Some(false), Some(true)] {
            detours::force(forced);
            comes_and_goes();
        }
        detours::force(None);
    }

    /// A detour is for bytes that end up a little further in their page, whoever asks for them; and it stops where they lie in their page on the other side.
    #[test]
    fn detours_are_made_where_the_kernel_is_slow() {
        let at = |address: u64, len| vector(address, len);
        for (way, here, there, pays_off) in [
            (Way::Read, 0x5010, 0x9000, true),
            (Way::Read, 0x5000, 0x9010, false),
            (Way::Write, 0x5000, 0x9010, true),
            (Way::Write, 0x5010, 0x9000, false),
            (Way::Read, 0x5020, 0x9000, false),
        ] {
            let asked = |trips, len| {
                aliased::told::tell(Some(trips));
                let so = pays(way, &[at(here, len)], &[at(there, len)]);
                aliased::told::tell(None);
                so
            };
            let answers = (asked(true, aliased::FROM), asked(false, aliased::FROM), asked(true, aliased::FROM - 1));
            assert_eq!(answers, (pays_off, false, false), "{here:#x} {there:#x}");
        }
        let mut detour = Detour { most: DETOUR, room: None };
        for there in [at(0x9000, DETOUR), at(0x9fff, DETOUR), at(0x9010, 1), at(0x9000 - 16, 5000)] {
            let stop = detour.instead_of(there);
            assert_eq!((stop.iov_base.addr() % PAGE, stop.iov_len), (there.iov_base.addr() % PAGE, there.iov_len));
        }
    }

    fn comes_and_goes() {
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
        // In pieces that are cut differently here and there, and something else by the last call.
        let pieces =
            [Piece { addr: at, len: 3000 }, Piece { addr: at + 3000, len: 0 }, Piece { addr: at + 3000, len: len - 3000 }];
        back.fill(0);
        let (c, d) = back.split_at_mut(CHUNK + 5);
        let also = Also { at: at + 8, words: &mut words };
        fetch_part(me, &pieces, &[of_slice(c), of_slice(d)], 100, len - 100, Some(also)).expect("fetched");
        assert_eq!(back[100..], here[110..]);
        assert_eq!(words[0].to_ne_bytes(), here[18..26]);
        assert_eq!(fetch_part(me, &pieces, &[of_slice(&mut back)], 1, len, None), Err(NoAccess::Fault), "more than there is");
        here.reverse();
        let (a, b) = here.split_at_mut(7);
        store_part(me, &pieces, &[of_slice(a), of_slice(b)], 50, 5000).expect("stored");
        assert_eq!(there[50..5050], here[50..5050]);
        assert_eq!(fetch_words(me, 8, &mut words), Err(NoAccess::Fault));
        assert_eq!(store(me, 8, &[of_slice(&mut here)], 0, 100), Err(NoAccess::Fault));
        assert_eq!(fetch_words(u32::MAX >> 1, at, &mut words), Err(NoAccess::Gone));
        assert_eq!((ask(me, at), ask_to_write(me)), (Ok(()), Ok(())));
        // Words of which only the first half is there: an error, and an end.
        let page = 4096;
        // SAFETY: a fresh mapping, of which the second page is given back; nobody else knows it.
        let edge = unsafe {
            let p = rustix::mm::mmap_anonymous(
                crate::mem::apart::room(2 * page),
                2 * page,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED_NOREPLACE,
            );
            let p = p.expect("two pages");
            rustix::mm::munmap(p.byte_add(page), page).expect("given back");
            p as u64 + page as u64
        };
        for (from, wanted) in [(edge - 8, Err(NoAccess::Fault)), (edge, Err(NoAccess::Fault)), (edge - 16, Ok(()))] {
            let also = Also { at: from, words: &mut words };
            assert_eq!(fetch_part(me, &pieces, &[of_slice(&mut back)], 0, 100, Some(also)), wanted, "{}", edge - from);
        }
        // What is there before the hole comes, and nothing else is touched.
        let (len, before) = (2 * DETOUR, page - 100);
        let mut word = [0u64];
        back.fill(0xee);
        assert_eq!(fetch(me, edge - before as u64, &[of_slice(&mut back)], 0, len), Err(NoAccess::Fault));
        assert!(back[..before].iter().all(|byte| *byte == 0) && back[before..].iter().all(|byte| *byte == 0xee));
        assert_eq!(store(me, edge, &[of_slice(&mut back)], 0, len), Err(NoAccess::Fault));
        for (from, wanted) in [(edge - 4, Err(NoAccess::Fault)), (edge - 8, Ok(()))] {
            let also = Also { at: from, words: &mut word };
            assert_eq!(fetch_part(me, &pieces[2..], &[of_slice(&mut back)], 0, aliased::FROM, Some(also)), wanted);
        }
        let nobody = u32::MAX >> 1;
        assert_eq!([ask(nobody, at), ask_to_write(nobody)], [Err(rustix::io::Errno::SRCH); 2]);
        assert_eq!(fetch_words(me, edge - 8, &mut words), Err(NoAccess::Fault), "half of them");
        let near = |at: u64, len| is_mapped(at as usize, len);
        assert!(near(edge - 8, 8) && !near(edge - 8, 9) && !near(edge + 8, 8) && near(edge - page as u64, page));
        // More pieces than one system call takes.
        let mut crumbs = vec![0u8; 1500];
        let iov: Vec<UserSeg> = crumbs.chunks_mut(1).map(of_slice).collect();
        fetch(me, at, &iov, 0, iov.len()).expect("fetched");
        assert_eq!(crumbs, there[..1500]);
    }
}
