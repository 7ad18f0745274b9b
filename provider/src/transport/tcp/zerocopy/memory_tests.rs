//! Memory of every kind as payload: whatever may be registered or lent of it, the bytes are right, and why nothing left out of registered buffers is told.

#![expect(unsafe_code, reason = "memory of every kind, as a program may have it")]

use super::super::tests::sockets;
use super::tests::{FORCED, Limit, is_off, lender, post, registered};
use super::*;
use core::ptr::null_mut;
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

const LEN: usize = 256 << 10;
/// What is mapped: whole huge pages, and one is wholly inside wherever it begins.
const ROOM: usize = 4 << 20;
const PAGE: usize = 4096;
const HEAD: usize = crate::wire::frame::FRAME_HEAD;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Fresh memory, to the end of the process; `None`: there is none of this kind.
fn map(may: ProtFlags, flags: MapFlags, file: Option<&OwnedFd>) -> Option<*mut u8> {
    // SAFETY: at a place of the kernel's choice.
    let at = unsafe {
        match file {
            Some(file) => rustix::mm::mmap(null_mut(), ROOM, may, flags, file, 0),
            None => rustix::mm::mmap_anonymous(null_mut(), ROOM, may, flags),
        }
    };
    at.ok().map(|at| at.cast())
}

/// Writes to each page that `step` comes to: no two are alike.
fn write(at: *mut u8, step: usize) {
    for page in (0..ROOM / PAGE).step_by(step) {
        // SAFETY: writable memory of the test's own.
        unsafe { at.add(page * PAGE).cast::<u8>().write_bytes(1 + (page % 251) as u8, PAGE - 1) };
    }
}

fn advised(at: *mut u8, advice: Advice) -> Option<*mut u8> {
    // SAFETY: advises on the test's own mapping.
    unsafe { rustix::mm::madvise(at.cast(), ROOM, advice) }.ok().map(|()| at)
}

fn file(flags: MemfdFlags) -> Option<OwnedFd> {
    let fd = rustix::fs::memfd_create("memory", flags | MemfdFlags::CLOEXEC).ok()?;
    rustix::fs::ftruncate(&fd, ROOM as u64).ok().map(|()| fd)
}

/// Makes memory of one kind, if there is some.
type Make = fn() -> Option<*mut u8>;

fn written(at: Option<*mut u8>, step: usize) -> Option<*mut u8> {
    at.inspect(|at| write(*at, step))
}

/// Each kind, and whether it is registered.
const KINDS: [(&str, bool, Make); 10] = [
    ("its own", true, || written(map(RW, MapFlags::PRIVATE, None), 1)),
    ("mostly never touched", true, || written(map(RW, MapFlags::PRIVATE, None), 8)),
    ("transparent huge pages", true, || {
        written(map(RW, MapFlags::PRIVATE, None).and_then(|at| advised(at, Advice::LinuxHugepage)), 1)
    }),
    ("huge pages of the pool", false, || written(map(RW, MapFlags::PRIVATE | MapFlags::HUGETLB, None), 1)),
    ("a file of huge pages", false, || written(map(RW, MapFlags::SHARED, Some(&file(MemfdFlags::HUGETLB)?)), 1)),
    ("shared, of no file", false, || written(map(RW, MapFlags::SHARED, None), 1)),
    ("a file with holes", false, || written(map(RW, MapFlags::SHARED, Some(&file(MemfdFlags::empty())?)), 8)),
    ("a private view of a file", false, || written(map(RW, MapFlags::PRIVATE, Some(&file(MemfdFlags::empty())?)), 8)),
    ("read-only", false, || {
        let at = written(map(RW, MapFlags::PRIVATE, None), 1)?;
        // SAFETY: the test's own mapping.
        unsafe { rustix::mm::mprotect(at.cast(), ROOM, MprotectFlags::READ) }.ok().map(|()| at)
    }),
    ("the program itself", false, || {
        let program = OwnedFd::from(std::fs::File::open("/proc/self/exe").ok()?);
        map(ProtFlags::READ, MapFlags::PRIVATE, Some(&program))
    }),
];

#[test]
fn bytes_of_every_kind_of_memory() {
    for (kind, registers, make) in KINDS {
        for wanted in FORCED {
            match make() {
                Some(at) => sends(at, wanted, kind, registers),
                None => println!("{kind}: there is none here"),
            }
        }
    }
}

/// The same memory some times.
fn sends(at: *mut u8, wanted: network::ZeroCopy, kind: &str, registers: bool) {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a, wanted);
    // Not at the start of a page.
    let at = at.wrapping_add(3 * PAGE + 24);
    for round in 0..5 {
        post(&mut outgoing, round, at, LEN);
        let (mut got, mut bytes, mut done, limit) = (0, vec![0; HEAD + LEN], false, Limit::new());
        while !done || got < bytes.len() {
            limit.check();
            outgoing.flush(&stream, false).expect("sent");
            outgoing.hear(&stream);
            done |= outgoing.done.pop_front() == Some(round);
            got += tcp::recv_bytes(&b, &mut bytes[got..]).unwrap_or(0);
        }
        // SAFETY: mapped for reading, and nobody writes there.
        let sent = unsafe { core::slice::from_raw_parts(at, LEN) };
        assert!(bytes[HEAD..] == *sent, "{kind}, {wanted:?}, round {round}");
        assert_eq!(tcp::recv_bytes(&b, &mut [0]), Err(Errno::AGAIN), "{kind}: more than was sent");
    }
    if is_off(&outgoing) {
        return;
    }
    assert!(!outgoing.zerocopy.waits());
    let left = registered(&outgoing).filter(|_| wanted == network::ZeroCopy::Uring);
    let Some(left) = left else { return };
    let mut sums = Sums::default();
    sums.add(&outgoing.zerocopy, None);
    let tale = sums.tales().into_iter().find(|tale| tale.about == "registered buffers").expect("told");
    assert_eq!((left > 0, tale.on), (registers, registers), "{kind}: {}", tale.why);
    assert!(registers || tale.why.contains("memory that is not registered"), "{kind}: {}", tale.why);
}
