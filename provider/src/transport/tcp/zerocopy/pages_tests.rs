//! Pages that the receiver reads: they are the sender's again when he says that he has read them, and what he reads of a sender who took them back before is no message.

use super::super::Office;
use super::super::connection::Connection;
use super::super::incoming::Incoming;
use super::super::outgoing::Outgoing;
use super::super::stop::Stop;
use super::super::tests::sockets;
use super::tests::{AFTER, BEFORE, Limit, is_off, lender, narrow, post, read};
use super::*;
use crate::mem::user::of_slice;
use crate::shm::layout::{LINE, MIN_SEGMENT};
use crate::shm::segment;
use crate::transport::{Bulk, InPlace, Line, Moved, Reply};
use crate::types::PeerId;
use crate::wire::frame::{Body, Frame};
use rustix::event::{PollFd, PollFlags, Timespec};

const MIB: usize = 1 << 20;

/// Sends all that is posted while the other end is read; what of that was written too late.
fn deliver(outgoing: &mut Outgoing, stream: &Stream, b: &OwnedFd, bytes: usize) -> usize {
    let (mut got, mut late, limit) = (0, 0, Limit::new());
    while got < bytes {
        limit.check();
        outgoing.flush(stream, false).expect("sent");
        let _ = read(b, &mut got, &mut late);
    }
    late
}

#[test]
fn memory_is_free_when_the_receiver_says_so() {
    let [a, b] = narrow();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Pages);
    let mut memory = vec![BEFORE; 12 * MIB];
    post(&mut outgoing, 3, memory.as_mut_ptr(), memory.len());
    assert_eq!(deliver(&mut outgoing, &stream, &b, 12 * MIB), 0);
    if is_off(&outgoing) {
        return;
    }
    assert!(outgoing.done.is_empty() && outgoing.zerocopy.waits() && !outgoing.zerocopy.awaits_kernel());
    // One word for several frames, nothing new, and the rest.
    for (frames, free) in [(5, false), (5, false), (11, false), (12, true)] {
        assert!(outgoing.returned(frames), "{frames}");
        assert_eq!(outgoing.done.pop_front().is_some(), free, "{frames}");
    }
    assert!(!outgoing.zerocopy.waits());
    // Not so many were lent; and that it was fewer is no news that there can be.
    assert!(!outgoing.returned(13) && !outgoing.returned(11));
}

/// Else what is tested here is nothing: they are pages, and no copy.
#[test]
fn what_is_written_too_early_arrives() {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Pages);
    let mut memory = vec![BEFORE; 256 << 10];
    post(&mut outgoing, 3, memory.as_mut_ptr(), memory.len());
    outgoing.flush(&stream, false).expect("sent");
    assert!(is_off(&outgoing) || !outgoing.blocked, "all of it has left");
    memory.fill(AFTER);
    let late = deliver(&mut outgoing, &stream, &b, memory.len());
    assert!(late > 0 || is_off(&outgoing));
}

/// One end of a connection that expects message 3 in this memory.
fn receiver(into: &mut [u8], stream: &Stream) -> Incoming {
    let mut incoming = Incoming::new();
    incoming.begin(segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
    let iov = [of_slice(into)];
    incoming.expect(stream, Bulk { id: 3, iov: &iov, skip: 0, len: into.len(), promised: into.len() }, false).expect("expected");
    incoming
}

#[test]
fn who_was_given_up_has_no_message() {
    for taken_back in [false, true] {
        let [a, b] = sockets().map(Stream::new);
        let (mut outgoing, a) = lender_over(a);
        let (mut memory, mut into) = (vec![BEFORE; 256 << 10], vec![0; 256 << 10]);
        let mut incoming = receiver(&mut into, &b);
        post(&mut outgoing, 3, memory.as_mut_ptr(), memory.len());
        outgoing.flush(&a, false).expect("sent");
        if is_off(&outgoing) {
            return;
        }
        assert!(!outgoing.blocked, "all of it has left");
        if taken_back {
            outgoing.zerocopy.take_back(a.fd(), &Clock::machine());
            assert!(!outgoing.zerocopy.waits());
            memory.fill(AFTER);
        }
        let (limit, mut end) = (Limit::new(), Ok(true));
        while end.is_ok() && incoming.done.is_empty() {
            limit.check();
            end = incoming.pump(&b, true);
        }
        if taken_back {
            assert_eq!((end, incoming.done.len(), incoming.lent_read), (Err(Stop::Ended), 0, 0));
        } else {
            assert_eq!((incoming.done.pop_front(), incoming.lent_read, incoming.tells), (Some(3), 1, true));
            assert!(into == memory && outgoing.returned(incoming.lent_read) && outgoing.done.pop_front() == Some(3));
        }
    }
}

/// The same where what was lent waited for the engine, and more that is expected stands behind it: that it cannot be read does not make the first message one.
#[test]
fn who_was_given_up_while_his_message_waited_has_none() {
    let [a, b] = sockets();
    let b = Stream::new(b);
    let mut behind = vec![0; 40_000];
    let mut incoming = Incoming::new();
    incoming.begin(segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
    let expected = |incoming: &mut Incoming, id, into: &mut [u8]| {
        let iov = [of_slice(into)];
        incoming.expect(&b, Bulk { id, iov: &iov, skip: 0, len: into.len(), promised: into.len() }, false)
    };
    assert_eq!(expected(&mut incoming, 4, &mut behind), Ok(Moved::Later));
    let head = |body| Frame { consumed: 0, credit: 0, body }.emit();
    // A record that nobody has read, so that payload may wait; the message; the beginning of the next one: as much as the first call asks for, so that more may be there.
    let mut bytes = head(Body::Records { position: 0, skipped: 0, lines: 1 }).to_vec();
    bytes.resize(bytes.len() + LINE, 1);
    bytes.extend(head(Body::Payload { id: 3, offset: 0, len: 100, lent: true, tell: false }));
    bytes.resize(bytes.len() + 100, 3);
    bytes.extend(head(Body::Payload { id: 4, offset: 0, len: 40_000, lent: false, tell: false }));
    bytes.resize(32 + 4 * LINE, 4);
    assert_eq!(tcp::send_bytes(&a, &bytes), Ok(bytes.len()));
    let limit = Limit::new();
    while !incoming.is_parked() {
        limit.check();
        incoming.pump(&b, true).expect("sound");
    }
    rustix::net::sockopt::set_socket_linger(&a, Some(std::time::Duration::ZERO)).expect("SO_LINGER");
    drop(a);
    while !tcp::is_reset(b.fd()) {
        limit.check();
    }
    let mut into = [0; 100];
    assert_eq!((expected(&mut incoming, 3, &mut into), incoming.done.len()), (Err(Stop::Ended), 0));
}

fn lender_over(stream: Stream) -> (Outgoing, Stream) {
    let poller = Arc::new(Poller::new().expect("poller"));
    let mut outgoing = Outgoing::new(Means::new(network::ZeroCopy::Pages, poller).at(0));
    outgoing.carry(segment::private(MIN_SEGMENT));
    (outgoing, stream)
}

/// Who only gets many messages, and says nothing himself, tells when he is asked to, and once for all that he has read.
#[test]
fn one_word_is_for_many() {
    let [a, b] = sockets().map(Stream::new);
    let (mut outgoing, a) = lender_over(a);
    let mut memory = vec![BEFORE; 6 * (128 << 10)];
    for part in memory.chunks_mut(128 << 10) {
        post(&mut outgoing, 3, part.as_mut_ptr(), part.len());
    }
    let (limit, mut heads, mut bytes) = (Limit::new(), Vec::new(), Vec::new());
    while heads.len() < 6 {
        limit.check();
        outgoing.flush(&a, false).expect("sent");
        let mut some = vec![0; 1 << 16];
        let n = tcp::recv_bytes(b.fd(), &mut some).unwrap_or(0);
        bytes.extend_from_slice(&some[..n]);
        while bytes.len() >= (128 << 10) + 32 {
            heads.push(bytes[1]);
            bytes.drain(..(128 << 10) + 32);
        }
    }
    assert!(is_off(&outgoing) || heads == [1, 1, 1, 3, 1, 3], "after 512 KiB, and at the end: {heads:?}");
}

/// What is lent while something that is not waits behind it is not forgotten.
#[test]
fn who_comes_last_asks_for_all() {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Auto);
    let mut memory = vec![BEFORE; MIB];
    for round in 0..40 {
        // The last one is too short to be lent.
        for (id, len) in [(1, 300_000), (2, 300_000), (3, 70_000), (4, 5000)] {
            post(&mut outgoing, id, memory.as_mut_ptr(), len);
        }
        deliver(&mut outgoing, &stream, &b, 675_000);
        assert_eq!(outgoing.untold, 0, "round {round}");
    }
    assert!(is_off(&outgoing) || outgoing.zerocopy.waits(), "something was lent");
}

/// What waits alone is not lent, unless that is forced: while one part of it is copied here, the one before is copied there.
#[test]
fn a_crowd_is_lent_and_one_alone_is_not() {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Auto);
    let mut memory = vec![BEFORE; MIB];
    let lent = |outgoing: &Outgoing| if let ZeroCopy::May(lender) = &outgoing.zerocopy { lender.lent } else { 0 };
    // The first one asks whether it can be done at all.
    for _ in 0..20 {
        post(&mut outgoing, 3, memory.as_mut_ptr(), MIB);
        deliver(&mut outgoing, &stream, &b, MIB);
    }
    assert_eq!(lent(&outgoing), 0);
    for _ in 0..10 {
        for part in memory.chunks_mut(MIB / 4) {
            post(&mut outgoing, 3, part.as_mut_ptr(), part.len());
        }
        deliver(&mut outgoing, &stream, &b, MIB);
    }
    assert!(is_off(&outgoing) || lent(&outgoing) > 0);
}

/// What the kernel has to say of other loans is no reason not to believe what was read.
#[test]
fn a_notice_is_no_end() {
    let [a, b] = sockets();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Always);
    let mut memory = vec![BEFORE; 100_000];
    post(&mut outgoing, 3, memory.as_mut_ptr(), memory.len());
    deliver(&mut outgoing, &stream, &b, memory.len());
    let limit = Limit::new();
    let mut fds = [PollFd::new(stream.fd(), PollFlags::empty())];
    while !is_off(&outgoing) && !fds[0].revents().contains(PollFlags::ERR) {
        limit.check();
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).expect("poll");
    }
    assert!(!tcp::is_reset(stream.fd()));
    zerocopy::break_off(&b);
    while !tcp::is_reset(stream.fd()) {
        limit.check();
    }
}

/// Whoever says that he has read all, and goodbye, and is gone at once, is heard: what was sent has been sent.
#[test]
fn the_last_word_of_who_goes_counts() {
    let [a, b] = sockets();
    let office = Arc::new(Office::new(10_000, network::ZeroCopy::Pages).expect("a poller"));
    let connection = Arc::new(Connection::new(a, 0, office, None));
    connection.watch(PeerId(7));
    {
        let mut halves = connection.halves.lock();
        halves.outgoing.carry(segment::private(MIN_SEGMENT));
        halves.incoming.begin(segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
    }
    let mut memory = vec![BEFORE; 200_000];
    let iov = [of_slice(&mut memory)];
    assert_eq!(connection.post(Bulk { id: 3, iov: &iov, skip: 0, len: 200_000, promised: 0 }), Moved::Later);
    let (limit, mut got) = (Limit::new(), 0);
    while got < 200_000 {
        limit.check();
        let _ = read(&b, &mut got, &mut 0);
        connection.flush();
    }
    if is_off(&connection.halves.lock().outgoing) {
        return;
    }
    let words = [Body::Read { frames: 1 }, Body::Goodbye].map(|body| Frame { consumed: 0, credit: 0, body }.emit());
    tcp::send_bytes(&b, words.as_flattened()).expect("room");
    tcp::finish(&b);
    drop(b);
    let mut heard = Vec::new();
    while heard.last() != Some(&"ended") {
        limit.check();
        connection.read(true);
        match connection.hear() {
            Reply::Left(3) => heard.push("left"),
            Reply::Ended => heard.push("ended"),
            _ => {}
        }
    }
    assert_eq!(heard, ["left", "ended"]);
}

/// Memory that is not there is the error that it is without pages.
#[test]
fn what_has_no_pages_is_no_message() {
    let [a, _b] = sockets();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Pages);
    post(&mut outgoing, 3, crate::mem::apart::room(MIB).cast(), MIB);
    assert_eq!(outgoing.flush(&stream, false), Err(Errno::FAULT));
}
