//! The outgoing half of a connection that lends, towards a plain socket: what arrives although the memory changes, as soon as it may.

#![expect(unsafe_code, reason = "buffers of the tests as the application's")]

use super::super::Office;
use super::super::connection::Connection;
use super::super::outgoing::Outgoing;
use super::super::tests::sockets;
use super::*;
use crate::error::Error;
use crate::mem::user::UserSeg;
use crate::shm::layout::MIN_SEGMENT;
use crate::shm::segment;
use crate::sys::limits;
use crate::transport::{Bulk, InPlace, Line, Reply};
use crate::wire::frame::FRAME_HEAD;

/// What no head of a frame is full of.
pub(super) const BEFORE: u8 = 0x11;
pub(super) const AFTER: u8 = 0xee;

pub(super) const FORCED: [network::ZeroCopy; 2] = [network::ZeroCopy::Always, network::ZeroCopy::Uring];

/// What comes to an end, or fails.
pub(super) struct Limit(Clock);

impl Limit {
    pub fn new() -> Limit {
        Limit(Clock::machine())
    }

    #[track_caller]
    pub fn check(&self) {
        assert!(self.0.now() < 60_000_000_000, "it does not end");
    }
}

pub(super) fn lender(fd: OwnedFd, wanted: network::ZeroCopy) -> (Outgoing, Stream) {
    let poller = Arc::new(Poller::new().expect("poller"));
    let mut outgoing = Outgoing::new(Means::new(wanted, poller).at(0));
    outgoing.carry(segment::private(MIN_SEGMENT));
    (outgoing, Stream::new(fd))
}

pub(super) fn post(outgoing: &mut Outgoing, id: u32, memory: *mut u8, len: usize) {
    post_as(outgoing, id, memory, len, false);
}

fn post_as(outgoing: &mut Outgoing, id: u32, memory: *mut u8, len: usize, is_piece: bool) {
    // SAFETY: the tests keep the memory until the kernel is through with it, or see to it that it lets go.
    let seg = unsafe { UserSeg::new(memory, len) };
    outgoing.post(Bulk { id, iov: &[seg], skip: 0, len, promised: len }, is_piece);
}

/// Reads what is there; what of it the sender wrote too late.
pub(super) fn read(fd: &OwnedFd, got: &mut usize, late: &mut usize) -> Result<(), Errno> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let n = tcp::recv_bytes(fd, &mut bytes)?;
        if n == 0 {
            return Ok(());
        }
        *got += n;
        *late += bytes[..n].chunks_exact(64).filter(|part| part.iter().all(|b| *b == AFTER)).count();
    }
}

/// Sockets that hold little: what is to be full of megabytes is, however much room the kernel would find that they deserve.
pub(super) fn narrow() -> [OwnedFd; 2] {
    let [a, b] = sockets();
    rustix::net::sockopt::set_socket_send_buffer_size(&a, 256 << 10).expect("SO_SNDBUF");
    rustix::net::sockopt::set_socket_recv_buffer_size(&b, 256 << 10).expect("SO_RCVBUF");
    [a, b]
}

/// Sends memory until it comes out of registered buffers: it must come again for that. What was read of it.
pub(super) fn prime(outgoing: &mut Outgoing, stream: &Stream, b: &OwnedFd, memory: &mut [u8]) {
    let limit = Limit::new();
    for _ in 0..3 {
        post(outgoing, 1, memory.as_mut_ptr(), memory.len());
        let (mut got, mut late, mut done) = (0, 0, false);
        while !done || got < memory.len() {
            limit.check();
            outgoing.flush(stream, false).expect("sent");
            let _ = read(b, &mut got, &mut late);
            outgoing.hear(stream);
            done |= outgoing.done.pop_front().is_some();
        }
    }
    // What is left of heads.
    while read(b, &mut 0, &mut 0) != Err(Errno::AGAIN) {
        limit.check();
    }
}

/// Bytes that left out of registered buffers; `None`: this kernel has none.
pub(super) fn registered(outgoing: &Outgoing) -> Option<u64> {
    match &outgoing.zerocopy {
        ZeroCopy::May(lender) if lender.account.as_ref().is_some_and(|account| account.refusal().is_none()) => {
            Some(lender.registered)
        }
        _ => None,
    }
}

pub(super) fn is_off(outgoing: &Outgoing) -> bool {
    matches!(outgoing.zerocopy, ZeroCopy::Off(Standing::Impossible | Standing::NoPages(_)))
}

#[test]
fn memory_is_free_when_it_is_read_and_not_before() {
    for wanted in FORCED {
        free_when_read(wanted, false);
        free_when_read(wanted, true);
    }
}

fn free_when_read(wanted: network::ZeroCopy, is_piece: bool) {
    let [a, b] = narrow();
    let (mut outgoing, stream) = lender(a, wanted);
    let mut memory = vec![BEFORE; 12 << 20];
    prime(&mut outgoing, &stream, &b, &mut memory);
    if is_off(&outgoing) {
        return;
    }
    let before = registered(&outgoing);
    post_as(&mut outgoing, 3, memory.as_mut_ptr(), memory.len(), is_piece);
    let done = |outgoing: &mut Outgoing| if is_piece { outgoing.pieces.pop_front() } else { outgoing.done.pop_front() };
    outgoing.flush(&stream, false).expect("sent");
    let (mut got, mut late, mut freed) = (0, 0, false);
    // All that the socket takes has left, and nobody has read it.
    outgoing.hear(&stream);
    assert!(outgoing.blocked && outgoing.done.is_empty() && outgoing.pieces.is_empty() && outgoing.zerocopy.waits());
    let limit = Limit::new();
    while got < (12 << 20) {
        limit.check();
        assert_eq!(read(&b, &mut got, &mut late), Err(Errno::AGAIN));
        outgoing.flush(&stream, false).expect("sent");
        outgoing.hear(&stream);
        if let Some(id) = done(&mut outgoing) {
            assert!(id == 3 && !freed);
            freed = true;
            memory.fill(AFTER);
        }
    }
    while !freed {
        limit.check();
        outgoing.hear(&stream);
        freed = done(&mut outgoing) == Some(3);
    }
    assert!(late == 0 && !outgoing.zerocopy.waits());
    assert!(before.is_none() || registered(&outgoing) > before, "nothing left out of registered buffers");
}

/// Who is given up gets nothing that was written after that, although it goes on reading.
#[test]
fn who_is_given_up_sees_nothing_of_what_is_written_later() {
    for wanted in FORCED {
        let [a, b] = narrow();
        let (mut outgoing, stream) = lender(a, wanted);
        let mut memory = vec![BEFORE; 12 << 20];
        prime(&mut outgoing, &stream, &b, &mut memory);
        post(&mut outgoing, 3, memory.as_mut_ptr(), memory.len());
        outgoing.flush(&stream, false).expect("sent");
        outgoing.zerocopy.take_back(stream.fd(), &Clock::machine());
        assert!(!outgoing.zerocopy.waits());
        memory.fill(AFTER);
        tcp::finish(stream.fd());
        drop(stream);
        let (mut got, mut late, limit) = (0, 0, Limit::new());
        let end = loop {
            limit.check();
            match read(&b, &mut got, &mut late) {
                Err(Errno::AGAIN) => {}
                end => break end,
            }
        };
        assert!(late == 0, "{late} places of {got} bytes");
        assert!(got < memory.len() && (end == Err(Errno::CONNRESET) || end == Ok(())), "{got} bytes, then {end:?}");
    }
}

/// A part of a registered buffer is unmapped while another one leaves: that one is not registered any more, and the rest of it is copied.
#[test]
fn a_buffer_that_ends_while_it_leaves() {
    const HALF: usize = 4 << 20;
    if limits::lockable().is_some_and(|most| most < 16 * HALF) {
        eprintln!("less may be locked than this needs: nothing checked");
        return;
    }
    let [a, b] = narrow();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Uring);
    let (may, private) = (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::PRIVATE);
    // SAFETY: fresh memory.
    let room = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4 * HALF, may, private) }.expect("map");
    // Both halves are of one window of what is registered at a time: else the end of one is nothing to the other.
    let at = room.map_addr(|room| room.next_multiple_of(2 * HALF));
    // SAFETY: mapped just now; the second half is used until it is unmapped.
    let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), 2 * HALF) };
    memory.fill(BEFORE);
    prime(&mut outgoing, &stream, &b, memory);
    let Some(before) = registered(&outgoing) else { return };
    post(&mut outgoing, 3, at.cast(), HALF);
    outgoing.flush(&stream, false).expect("sent");
    let taken = registered(&outgoing).expect("registered") - before;
    assert!(outgoing.blocked && taken > 0 && taken < HALF as u64, "{taken}");
    // SAFETY: the second half is not looked at any more.
    unsafe { rustix::mm::munmap(at.byte_add(HALF), HALF) }.expect("unmap");
    let (mut got, mut late, mut done, limit) = (0, 0, false, Limit::new());
    while !done || got < HALF {
        limit.check();
        let _ = read(&b, &mut got, &mut late);
        outgoing.flush(&stream, false).expect("sent");
        outgoing.hear(&stream);
        done |= outgoing.done.pop_front().is_some();
    }
    assert!(late == 0 && !outgoing.zerocopy.waits());
    // What is not registered any more may come again, as each frame is one for itself.
    assert!(registered(&outgoing).expect("registered") < before + HALF as u64);
}

/// The poller tells of notices, and whose they are, although nothing is sent that would bring them along.
#[test]
fn notices_wake_who_sleeps() {
    let [a, b] = narrow();
    let poller = Arc::new(Poller::new().expect("poller"));
    let means = Means::new(network::ZeroCopy::Uring, poller.clone());
    let mut outgoing = Outgoing::new(means.at(17));
    outgoing.carry(segment::private(MIN_SEGMENT));
    let stream = Stream::new(a);
    let mut memory = vec![BEFORE; 12 << 20];
    prime(&mut outgoing, &stream, &b, &mut memory);
    if registered(&outgoing).is_none() {
        return;
    }
    let limit = Limit::new();
    let tells = || {
        limit.check();
        let mut tokens = Vec::new();
        poller.ready(&mut tokens);
        tokens.contains(&super::super::RING)
    };
    post(&mut outgoing, 5, memory.as_mut_ptr(), memory.len());
    outgoing.flush(&stream, false).expect("sent");
    // What was heard with the requests the bell tells of: that is over.
    while tells() {
        means.news();
        outgoing.hear(&stream);
    }
    assert!(outgoing.blocked && outgoing.zerocopy.waits());
    while outgoing.zerocopy.waits() {
        while !tells() || means.news() != [17] {
            let _ = read(&b, &mut 0, &mut 0);
        }
        outgoing.hear(&stream);
    }
    let mut done = None;
    while done.is_none() {
        limit.check();
        outgoing.flush(&stream, false).expect("sent");
        let _ = read(&b, &mut 0, &mut 0);
        outgoing.hear(&stream);
        done = outgoing.done.pop_front();
    }
    assert_eq!(done, Some(5));
}

/// Two connections of one endpoint, of which one is read: whoever takes the notices out of the ring, each gets its own.
#[test]
fn notices_go_to_whom_they_concern() {
    let poller = Arc::new(Poller::new().expect("poller"));
    let means = Means::new(network::ZeroCopy::Uring, poller.clone());
    let mut memory = [(); 2].map(|()| vec![BEFORE; 12 << 20]);
    let mut sides = [17, 18].map(|slot| {
        let [a, b] = narrow();
        let mut outgoing = Outgoing::new(means.at(slot));
        outgoing.carry(segment::private(MIN_SEGMENT));
        (outgoing, Stream::new(a), b)
    });
    for ((outgoing, stream, b), memory) in sides.iter_mut().zip(&mut memory) {
        prime(outgoing, stream, b, memory);
        if registered(outgoing).is_none() {
            return;
        }
    }
    let limit = Limit::new();
    for read_first in [0, 1, 1, 0] {
        for (n, ((outgoing, stream, _), memory)) in sides.iter_mut().zip(&mut memory).enumerate() {
            post(outgoing, n as u32, memory.as_mut_ptr(), memory.len());
            outgoing.flush(stream, false).expect("sent");
            assert!(outgoing.blocked && outgoing.zerocopy.waits());
        }
        let [one, other] = &mut sides;
        let (one, other) = if read_first == 0 { (one, other) } else { (other, one) };
        let (mut got, mut done) = (0, None);
        while done.is_none() {
            limit.check();
            let _ = read(&one.2, &mut got, &mut 0);
            one.0.flush(&one.1, false).expect("sent");
            // It takes what there is, and does not keep what is not its own.
            other.0.hear(&other.1);
            assert!(other.0.done.is_empty(), "nobody has read it");
            let mut tokens = Vec::new();
            poller.ready(&mut tokens);
            // The ring is empty: the bell tells.
            let told = tokens.contains(&super::super::RING) && means.news().contains(&(17 + read_first));
            if got >= memory[0].len() && told {
                one.0.hear(&one.1);
                done = one.0.done.pop_front();
            }
        }
        assert!(done == Some(read_first) && !one.0.zerocopy.waits());
        let mut done = None;
        while done.is_none() {
            limit.check();
            let _ = read(&other.2, &mut 0, &mut 0);
            other.0.flush(&other.1, false).expect("sent");
            other.0.hear(&other.1);
            done = other.0.done.pop_front();
        }
        assert!(done == Some(1 - read_first) && !other.0.zerocopy.waits());
        for (_, _, b) in &sides {
            while read(b, &mut 0, &mut 0) != Err(Errno::AGAIN) {}
        }
    }
}

/// What the ring answers with an error is copied, without a byte lost or sent twice, and the notices of requests that failed are waited for.
#[test]
fn what_the_ring_refuses_is_copied() {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Uring);
    let mut memory = vec![BEFORE; 1 << 20];
    prime(&mut outgoing, &stream, &b, &mut memory);
    let Some(before) = registered(&outgoing) else { return };
    let ZeroCopy::May(lender) = &mut outgoing.zerocopy else { return };
    lender.account.iter().for_each(Account::empty_all);
    // Some of these are as where a connection chooses.
    lender.choice = Some(Choice::default());
    for id in 0..20 {
        let len = 100_000 + id as usize;
        if let (ZeroCopy::May(lender), 10) = (&mut outgoing.zerocopy, id) {
            lender.choice = None;
        }
        memory[..len].fill(id as u8);
        post(&mut outgoing, id, memory.as_mut_ptr(), len);
        let (mut got, mut done, limit) = (Vec::new(), None, Limit::new());
        while done.is_none() || got.len() < 32 + len {
            limit.check();
            outgoing.flush(&stream, false).expect("sent");
            let mut bytes = vec![0; 1 << 16];
            let n = tcp::recv_bytes(&b, &mut bytes).unwrap_or(0);
            got.extend_from_slice(&bytes[..n]);
            outgoing.hear(&stream);
            done = done.or(outgoing.done.pop_front());
        }
        assert!(done == Some(id) && got.len() == 32 + len && got[32..].iter().all(|byte| *byte == id as u8));
        assert!(!outgoing.zerocopy.waits());
    }
    assert_eq!(registered(&outgoing), Some(before));
    // Whoever sent nothing has taken numbers, too: those that follow are known by theirs.
    let mut other = vec![BEFORE; 1 << 20];
    prime(&mut outgoing, &stream, &b, &mut other);
    assert!(registered(&outgoing) > Some(before) && !outgoing.zerocopy.waits());
}

/// A kernel that does not answer in its call: the connection is given up for that reason, and nothing of what is written later leaves by it.
#[test]
fn who_does_not_answer_costs_the_connection() {
    let [a, b] = narrow();
    let office = Arc::new(Office::new(10_000, network::ZeroCopy::Uring).expect("poller"));
    let connection = Connection::new(a, 0, office, None);
    let mut memory = vec![BEFORE; 12 << 20];
    {
        let outgoing = &mut connection.halves.lock().outgoing;
        outgoing.carry(segment::private(MIN_SEGMENT));
        prime(outgoing, connection.stream(), &b, &mut memory);
        let ZeroCopy::May(lender) = &outgoing.zerocopy else { return };
        let Some(account) = lender.account.as_ref().filter(|account| account.refusal().is_none()) else { return };
        account.answer_late();
    }
    // SAFETY: the memory stays to the end of the test.
    let seg = unsafe { UserSeg::new(memory.as_mut_ptr(), memory.len()) };
    connection.post(Bulk { id: 3, iov: &[seg], skip: 0, len: memory.len(), promised: memory.len() });
    let (limit, mut some, mut got) = (Limit::new(), vec![0; 1 << 16], 0);
    // As long as there is room it answers; and what is copied, as heads are, needs some.
    loop {
        limit.check();
        connection.flush();
        connection.flush();
        if connection.halves.lock().ended.is_some() {
            break;
        }
        got += tcp::recv_bytes(&b, &mut some).unwrap_or(0);
    }
    assert!(connection.halves.lock().outgoing.zerocopy.waits());
    for _ in 0..2 {
        assert!(matches!(connection.hear(), Reply::Refused(Error::Unanswered)));
        connection.flush();
    }
    connection.forget();
    memory.fill(AFTER);
    drop(connection);
    let mut late = 0;
    let end = loop {
        limit.check();
        match read(&b, &mut got, &mut late) {
            Err(Errno::AGAIN) => {}
            end => break end,
        }
    };
    assert!(late == 0 && got < memory.len() && (end == Err(Errno::CONNRESET) || end == Ok(())), "{got}, {late}, {end:?}");
}

/// A mapping of the kernel's, whose pages nobody can pin, and everybody can read.
fn unpinnable() -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vvar]"))?;
    usize::from_str_radix(line.split('-').next()?, 16).ok()
}

#[test]
fn what_cannot_be_pinned_is_copied() {
    let Some(at) = unpinnable() else { return };
    for wanted in FORCED {
        let [a, b] = sockets();
        let (mut outgoing, stream) = lender(a, wanted);
        for _ in 0..3 {
            post(&mut outgoing, 9, at as *mut u8, 4096);
            // Where it cannot even be read there is nothing to be seen here.
            if outgoing.flush(&stream, false) == Err(Errno::FAULT) {
                return;
            }
            outgoing.hear(&stream);
            assert_eq!(outgoing.done.pop_front(), Some(9));
            let (mut got, mut late, limit) = (0, 0, Limit::new());
            while got < 32 + 4096 {
                limit.check();
                assert_eq!(read(&b, &mut got, &mut late), Err(Errno::AGAIN));
            }
        }
        assert_ne!(registered(&outgoing), Some(3 * 4096));
    }
}

/// Where copies are usual every eighth payload is looked at, however many leave together.
#[test]
fn each_payload_is_asked_about_once() {
    const LEN: usize = 40 << 10;
    let [a, b] = narrow();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Always);
    outgoing.zerocopy.begin(&stream, false);
    let mut costs = Copies { copied: false, costs: Default::default() };
    costs.costs[0] = [10.0, 100.0, 0.0];
    let seen = |outgoing: &mut Outgoing| {
        let choice = outgoing.zerocopy.lender().and_then(|lender| lender.choice.as_mut());
        choice.expect("it chooses").samples(Way::Copied)
    };
    let Some(lender) = outgoing.zerocopy.lender() else { return };
    lender.choice = Some(Choice::from_others(&costs, super::super::lessons::By::Here));
    let (memory, before) = (vec![BEFORE; LEN], seen(&mut outgoing));
    for round in 1..=8 {
        // Two leave together.
        let (mut got, mut late, limit) = (0, 0, Limit::new());
        post(&mut outgoing, round, memory.as_ptr().cast_mut(), LEN);
        if round % 2 == 0 {
            while got < 2 * (LEN + FRAME_HEAD) {
                limit.check();
                outgoing.flush(&stream, false).expect("sent");
                let _ = read(&b, &mut got, &mut late);
            }
        }
        assert_eq!(seen(&mut outgoing) - before, usize::from(round == 8), "payload {round}");
    }
}
