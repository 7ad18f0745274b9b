//! What this kernel does: facts that sending out of registered buffers rests on.

use super::*;
use crate::mem::apart;
use crate::sys::tcp;
use core::ptr::null_mut;
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4096;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn sockets() -> [OwnedFd; 2] {
    let listener = tcp::listen(([127, 0, 0, 1], 0).into()).expect("listen");
    let a = tcp::connect(tcp::own_address(&listener).expect("name"), None, 0).expect("connect");
    while !tcp::connected(&a).expect("connecting") {}
    [a, tcp::accept(&listener).expect("accept").0]
}

/// Fresh memory, as the application's.
fn map(len: usize, may: ProtFlags) -> UserSeg {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a fresh mapping.
    let at = unsafe { rustix::mm::mmap_anonymous(apart::room(len), len, may, flags) }.expect("map");
    // SAFETY: it stays mapped until the test ends, but where a test unmaps it in order to see what the kernel has kept.
    unsafe { UserSeg::new(at.cast(), len) }
}

fn unmap(memory: UserSeg) {
    // SAFETY: mapped by `map`, and not used after that.
    unsafe { rustix::mm::munmap(memory.address() as *mut _, memory.len()) }.expect("unmap");
}

fn fill(memory: UserSeg, byte: u8) {
    // SAFETY: mapped by `map`, and nobody else in this process touches it.
    unsafe { core::ptr::write_bytes(memory.address() as *mut u8, byte, memory.len()) };
}

fn pages(memory: UserSeg) -> Range<usize> {
    memory.address()..memory.address() + memory.len()
}

fn read(fd: &OwnedFd, len: usize) -> Vec<u8> {
    let (mut got, mut bytes, clock) = (0, vec![0; len], Clock::machine());
    while got < len {
        soon(&clock);
        match tcp::recv_bytes(fd, &mut bytes[got..]) {
            Ok(n) => got += n,
            Err(why) => assert_eq!(why, Errno::AGAIN),
        }
    }
    bytes
}

fn open() -> Option<Uring> {
    Uring::open(8).map_err(|why| println!("not tried: {why}")).ok()
}

/// What ends, or fails.
fn soon(clock: &Clock) {
    assert!(clock.now() < 60_000_000_000, "it does not end");
    std::thread::yield_now();
}

/// The notice of one request.
fn await_notice(ring: &mut Uring, name: u64) {
    let (mut told, clock) = (false, Clock::machine());
    while !told {
        ring.notices(|notice| {
            assert_eq!(notice.name, name);
            told = true;
        });
        soon(&clock);
    }
}

#[test]
fn every_request_is_answered_at_once_and_has_one_notice() {
    let Some(mut ring) = open() else { return };
    let [a, b] = sockets();
    let memory = map(64 * PAGE, RW);
    fill(memory, 7);
    ring.register(3, &pages(memory)).expect("registered");
    let (mut waits, mut sent, mut full, mut name) = (std::collections::HashSet::new(), 0, 0, 0);
    while full < 3 {
        name += 1;
        let mut early = Vec::new();
        let answer = ring.send(&a, 3, memory.part(100, 60 * PAGE), name, |notice| early.push(notice.name));
        if answer.notice {
            assert!(waits.insert(name));
        }
        early.iter().for_each(|name| assert!(waits.remove(name), "{name}"));
        match answer.sent {
            Ok(n) => sent += n,
            Err(why) => {
                assert_eq!(why, Errno::AGAIN);
                full += 1;
            }
        }
    }
    assert!(sent > 0 && !waits.is_empty(), "nobody has read");
    assert!(read(&b, sent).iter().all(|byte| *byte == 7));
    let clock = Clock::machine();
    while !waits.is_empty() {
        ring.notices(|notice| assert!(waits.remove(&notice.name)));
        soon(&clock);
    }
    unmap(memory);
}

/// Requests, and calls of sendmsg, in turn, towards somebody who reads slowly: nothing overtakes.
#[test]
fn requests_and_calls_keep_their_order() {
    let Some(mut ring) = open() else { return };
    let [a, b] = sockets();
    let memory = map(256 * PAGE, RW);
    for at in 0..64 {
        fill(memory.part(at * 4 * PAGE, 4 * PAGE), at as u8);
    }
    ring.register(0, &pages(memory)).expect("registered");
    let (mut expected, mut got, mut name) = (Vec::new(), Vec::new(), 0);
    for round in 0..2000usize {
        let part = memory.part(round % 64 * 4 * PAGE, 1 + round * 37 % (4 * PAGE));
        let sent = if round.is_multiple_of(2) {
            name += 1;
            ring.send(&a, 0, part, name, |_| {}).sent
        } else {
            tcp::send(&a, &[tcp::Piece::User(part)])
        };
        match sent {
            Ok(n) => expected.extend(std::iter::repeat_n((round % 64) as u8, n)),
            Err(why) => {
                assert_eq!(why, Errno::AGAIN);
                let some = (expected.len() - got.len()) / 2;
                got.extend(read(&b, some));
            }
        }
    }
    got.extend(read(&b, expected.len() - got.len()));
    assert!(got == expected);
    unmap(memory);
}

/// What a slot stands for is pages: it has what was there, although something else is mapped there, until it is emptied; and then nothing.
#[test]
fn a_slot_has_its_pages_until_it_is_emptied() {
    let Some(mut ring) = open() else { return };
    let [a, b] = sockets();
    let memory = map(16 * PAGE, RW);
    fill(memory, 1);
    ring.register(2, &pages(memory)).expect("registered");
    // SAFETY: takes the place of memory of this test.
    unsafe { rustix::mm::mmap_anonymous(memory.address() as *mut _, memory.len(), RW, MapFlags::PRIVATE | MapFlags::FIXED) }
        .expect("map");
    fill(memory, 2);
    assert_eq!(ring.send(&a, 2, memory, 1, |_| {}).sent, Ok(memory.len()));
    // The kernel keeps them for the request that is under way.
    ring.empty(2);
    assert!(ring.send(&a, 2, memory, 2, |_| {}).sent.is_err());
    assert!(read(&b, memory.len()).iter().all(|byte| *byte == 1), "stale, as expected");
    ring.register(2, &pages(memory)).expect("registered");
    assert_eq!(ring.send(&a, 2, memory, 3, |_| {}).sent, Ok(memory.len()));
    assert!(read(&b, memory.len()).iter().all(|byte| *byte == 2));
    // Beyond what is registered: refused.
    assert!(ring.send(&a, 2, UserSeg::clone(&map(PAGE, RW)), 4, |_| {}).sent.is_err());
    unmap(memory);
}

/// After a fork the pages stay with the parent, also those of huge pages: what it writes then is what is sent.
#[test]
fn after_a_fork_the_parent_keeps_the_pages() {
    fork::alone("sys::uring::tests::after_a_fork_the_parent_keeps_the_pages", forks);
}

fn forks() {
    let Some(mut ring) = open() else { return };
    for huge in [false, true] {
        let [a, b] = sockets();
        let memory = map(8 << 20, RW);
        if huge {
            // SAFETY: advises on the test's own mapping.
            let _ = unsafe { rustix::mm::madvise(memory.address() as *mut _, memory.len(), rustix::mm::Advice::LinuxHugepage) };
        }
        fill(memory, 1);
        // Registered between two forks: the first one has shared the pages.
        let children = [child(), {
            ring.register(1, &pages(memory)).expect("registered");
            child()
        }];
        fill(memory, 2);
        let part = memory.part(3 << 20, 64 * PAGE);
        assert_eq!(ring.send(&a, 1, part, 1, |_| {}).sent, Ok(part.len()));
        assert!(read(&b, part.len()).iter().all(|byte| *byte == 2), "stale after a fork");
        children.into_iter().for_each(end);
        await_notice(&mut ring, 1);
        ring.empty(1);
        unmap(memory);
    }
}

/// A child that does nothing.
fn child() -> libc::pid_t {
    // SAFETY: the child calls nothing but pause(2).
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: waits.
            unsafe { libc::pause() };
        },
        pid => pid,
    }
}

fn end(pid: libc::pid_t) {
    assert!(pid > 0);
    // SAFETY: a child of this test's, which is waited for here and nowhere else.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, null_mut(), 0);
    }
}

/// What cannot be written, and what is not there.
#[test]
fn what_cannot_be_pinned_is_refused() {
    let Some(ring) = open() else { return };
    let memory = map(4 * PAGE, ProtFlags::READ);
    assert_eq!(ring.register(0, &pages(memory)), Err(Errno::FAULT));
    unmap(memory);
    assert_eq!(ring.register(0, &pages(memory)), Err(Errno::FAULT));
}

/// Who sends may be gone when the notice comes; others hear of it.
#[test]
fn notices_outlive_the_thread_that_sent() {
    let Some(mut ring) = open() else { return };
    let [a, b] = sockets();
    let memory = map(64 * PAGE, RW);
    ring.register(0, &pages(memory)).expect("registered");
    let (mut ring, a) = std::thread::spawn(move || {
        let sent = ring.send(&a, 0, memory, 5, |notice| assert_eq!(notice.name, 6)).sent;
        assert!(sent.is_ok());
        (ring, a)
    })
    .join()
    .expect("joined");
    zerocopy::break_off(&a);
    await_notice(&mut ring, 5);
    drop(b);
    unmap(memory);
}

/// A ring whose notices nobody takes for long loses none.
#[test]
fn more_notices_than_have_room() {
    let Some(mut ring) = open() else { return };
    let [a, b] = sockets();
    let memory = map(PAGE, RW);
    ring.register(0, &pages(memory)).expect("registered");
    let (mut told, mut expected, mut sent) = (0, 0, 0);
    while sent < 3 * NOTICES as usize {
        let answer = ring.send(&a, 0, memory.part(0, 1), 1, |_| told += 1);
        expected += u32::from(answer.notice);
        match answer.sent {
            Ok(n) => sent += n,
            Err(why) => {
                assert_eq!(why, Errno::AGAIN);
                break;
            }
        }
    }
    // With this they are all there.
    read(&b, sent);
    let clock = Clock::machine();
    while told < expected {
        ring.notices(|_| told += 1);
        soon(&clock);
    }
    assert_eq!(told, expected);
    unmap(memory);
}

/// A kernel that answers later than with its call, which Linux does for requests that wait for room: nobody waits for ever, nothing else is handed to it, and what it
/// says later ends the loan. Whether the request has sent something is not known when it is given up, as here: once it does, and once not.
#[test]
fn who_does_not_answer_is_asked_no_more() {
    for reads in [true, false] {
        let Some(mut ring) = open() else { return };
        let [a, b] = sockets();
        let memory = map(64 * PAGE, RW);
        fill(memory, 7);
        ring.register(3, &pages(memory)).expect("registered");
        let mut full = 0;
        while let Ok(n) = tcp::send(&a, &[tcp::Piece::User(memory)]) {
            full += n;
        }
        ring.answer_late();
        // There may be room again by what was read into the other side's.
        let (mut name, clock) = (0, Clock::machine());
        let answer = loop {
            name += 1;
            match ring.send(&a, 3, memory.part(0, 10 * PAGE), name, |_| {}) {
                Answer { sent: Ok(n), .. } => full += n,
                answer => break answer,
            }
            soon(&clock);
        };
        assert_eq!(answer, Answer { sent: Err(Errno::TIME), notice: true });
        assert!(!ring.takes_requests() && ring.late == [name]);
        let answer = ring.send(&a, 3, memory.part(0, PAGE), 0, |_| {});
        assert_eq!(answer, Answer { sent: Err(Errno::OPNOTSUPP), notice: false });
        ring.notices(|notice| assert!(notice.name < name, "too early: {notice:?}"));
        if reads {
            // All of it arrives, once, although nobody could tell.
            assert!(read(&b, full + 10 * PAGE).iter().all(|byte| *byte == 7));
        } else {
            zerocopy::break_off(&a);
        }
        let mut told = 0;
        while told == 0 {
            ring.notices(|notice| told += u32::from(notice.name == name));
            soon(&clock);
        }
        assert!(ring.late.is_empty());
        ring.notices(|notice| told += u32::from(notice.name == name));
        assert_eq!(told, 1);
        assert_eq!(tcp::recv_bytes(&b, &mut [0]) == Err(Errno::AGAIN), reads, "nothing more, or the end");
        unmap(memory);
    }
}

#[test]
fn which_kernels_do() {
    let versions = [None, Some((5, 19)), Some((6, 1)), Some((6, 2)), Some((7, 0))].map(|version| is_old(version).is_ok());
    assert_eq!(versions, [false, false, false, true, true]);
    let able = [(true, true), (false, true), (true, false)].map(|(sends, keeps)| is_able(sends, keeps).map_err(|no| no.may_pass));
    assert_eq!(able, [Ok(()), Err(false), Err(false)]);
}

/// What is said of a kernel that refuses, and whether it may be asked again.
#[test]
fn refusals() {
    for (why, says, may_pass) in [
        (Errno::NOSYS, "this kernel has no io_uring", false),
        (Errno::PERM, "io_uring is forbidden here", false),
        (Errno::ACCESS, "io_uring is forbidden here", false),
        (Errno::NOMEM, "(ulimit -l)", true),
        (Errno::MFILE, "io_uring cannot be had", true),
        (Errno::INVAL, "io_uring cannot be had", false),
    ] {
        let refusal = refused(&why.into());
        assert!(refusal.to_string().contains(says) && refusal.may_pass == may_pass, "{why:?}: {refusal:?}");
    }
}
