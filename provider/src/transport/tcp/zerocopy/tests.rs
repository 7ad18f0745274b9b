//! The outgoing half of a connection that lends, towards a plain socket: what arrives although the memory changes, as soon as it may.

#![expect(unsafe_code, reason = "buffers of the tests as the application's")]

use super::super::outgoing::Outgoing;
use super::super::tests::sockets;
use super::*;
use crate::mem::user::UserSeg;
use crate::shm::layout::MIN_SEGMENT;
use crate::shm::segment;
use crate::transport::Bulk;

/// What no head of a frame is full of.
const BEFORE: u8 = 0x11;
const AFTER: u8 = 0xee;

fn lender(fd: OwnedFd) -> (Outgoing, Stream) {
    let mut outgoing = Outgoing::new(network::ZeroCopy::Always);
    outgoing.carry(segment::private(MIN_SEGMENT));
    (outgoing, Stream::new(fd))
}

fn post(outgoing: &mut Outgoing, id: u32, memory: *mut u8, len: usize) {
    post_as(outgoing, id, memory, len, false);
}

fn post_as(outgoing: &mut Outgoing, id: u32, memory: *mut u8, len: usize, is_piece: bool) {
    // SAFETY: the tests keep the memory until the kernel is through with it, or see to it that it lets go.
    let seg = unsafe { UserSeg::new(memory, len) };
    outgoing.post(Bulk { id, iov: &[seg], skip: 0, len, promised: len }, is_piece);
}

/// Reads what is there; what of it the sender wrote too late.
fn read(fd: &OwnedFd, got: &mut usize, late: &mut usize) -> Result<(), Errno> {
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

#[test]
fn memory_is_free_when_it_is_read_and_not_before() {
    free_when_read(false);
    free_when_read(true);
}

fn free_when_read(is_piece: bool) {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a);
    let mut memory = vec![BEFORE; 12 << 20];
    post_as(&mut outgoing, 3, memory.as_mut_ptr(), memory.len(), is_piece);
    let done = |outgoing: &mut Outgoing| if is_piece { outgoing.pieces.pop_front() } else { outgoing.done.pop_front() };
    outgoing.flush(&stream, false).expect("sent");
    if outgoing.zerocopy.standing() == Some(Standing::Impossible) {
        return;
    }
    let (mut got, mut late, mut freed) = (0, 0, false);
    // All that the socket takes has left, and nobody has read it.
    outgoing.hear(&stream);
    assert!(outgoing.blocked && outgoing.done.is_empty() && outgoing.pieces.is_empty() && outgoing.zerocopy.waits());
    while got < (12 << 20) {
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
        outgoing.hear(&stream);
        freed = done(&mut outgoing) == Some(3);
    }
    assert!(late == 0 && !outgoing.zerocopy.waits());
}

/// Who is given up gets nothing that was written after that, although it goes on reading.
#[test]
fn who_is_given_up_sees_nothing_of_what_is_written_later() {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a);
    let mut memory = vec![BEFORE; 12 << 20];
    post(&mut outgoing, 3, memory.as_mut_ptr(), memory.len());
    outgoing.flush(&stream, false).expect("sent");
    outgoing.zerocopy.take_back(stream.fd());
    assert!(!outgoing.zerocopy.waits());
    memory.fill(AFTER);
    tcp::finish(stream.fd());
    drop(stream);
    let (mut got, mut late) = (0, 0);
    let end = loop {
        match read(&b, &mut got, &mut late) {
            Err(Errno::AGAIN) => {}
            end => break end,
        }
    };
    assert!(late == 0, "{late} places of {got} bytes");
    assert!(got < memory.len() && (end == Err(Errno::CONNRESET) || end == Ok(())), "{got} bytes, then {end:?}");
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
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a);
    post(&mut outgoing, 9, at as *mut u8, 4096);
    // Where it cannot even be read there is nothing to be seen here.
    if outgoing.flush(&stream, false) == Err(Errno::FAULT) {
        return;
    }
    outgoing.hear(&stream);
    assert_eq!(outgoing.done.pop_front(), Some(9));
    let (mut got, mut late) = (0, 0);
    while got < 32 + 4096 {
        assert_eq!(read(&b, &mut got, &mut late), Err(Errno::AGAIN));
    }
}
