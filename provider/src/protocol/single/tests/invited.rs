//! Receives that invite their sender to write a part: what is taken up, and what is not; when there is no invitation; and who says otherwise.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::protocol::single::invited::{HOPES, PAUSES};
use crate::shm::layout::{PLACED, TAKEN};
use crate::wire::invitation::{LONGEST, front};

const LEN: usize = 100_000;
/// Where the receiver's buffer begins in its arena: not where it does.
const AT: usize = 4096;

/// A sender and a receiver that lend each other their memory, so, and have done so before: the receiver hopes for a further message.
fn pair(how: Lent) -> (Side, Side) {
    let (mut a, mut b) = sides(SHORTEST);
    lend(&mut a, &mut b, Lent::ToRead);
    lend(&mut b, &mut a, how);
    b.copies.saw_uninvited(LEN, &[]);
    (a, b)
}

impl Side {
    fn place(&self, at: usize, len: usize) -> UserSeg {
        self.arena.memory.as_user(at, len)
    }

    /// Posts a receive of `len` bytes with this tag, and invites to it.
    fn invites(&mut self, tag: usize, len: usize) -> UserSeg {
        let to = self.place(AT, len);
        self.posted.resize_with(tag + 1, || None);
        self.posted[tag] = Some(want(tag, &[to]));
        self.copies.invite(&self.link, (true, tag as u64, 0), &to, 1);
        to
    }

    /// Sends out of its arena, which is filled; returns the bytes that it wrote to the other's memory.
    fn sends(&mut self, tag: usize, len: usize) -> u64 {
        let from = self.place(0, len);
        let bytes: Vec<u8> = (0..len).map(|i| (i / 7 + tag) as u8).collect();
        scatter_bytes(&[from], 0, &bytes);
        let iov = [from];
        let msg = Message { lent: 1, ..message(tag, &iov) };
        let started = Single::start(&mut self.wire(), &msg, &req(tag));
        assert_eq!(started, Ok(Started::Streaming));
        std::mem::take(&mut self.copies.stored)
    }
}

fn bytes(iov: UserSeg, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    gather_into(&[iov], 0, len, &mut out);
    out
}

/// Both take turns until the receiver has `n` messages, and the sender has heard so.
fn until_received(a: &mut Side, b: &mut Side, n: usize) {
    for _ in 0..100 {
        while b.drain().expect("sound") {}
        b.push();
        while a.drain().expect("sound") {}
        a.push();
        if b.received.len() == n && a.sent.len() == n {
            return;
        }
    }
    panic!("{} of {n} received, {} sent", b.received.len(), a.sent.len());
}

#[test]
fn the_sender_writes_its_part_in_its_call() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    for n in 1..=3 {
        let to = b.invites(n, LEN + 500);
        assert_eq!(a.sends(n, LEN), (LEN - front(LEN)) as u64);
        assert!(b.drain().expect("sound"));
        assert_eq!(b.received.last().map(|r| (r.req.ctx.0, r.placed)), Some((n, LEN)), "in one turn");
        assert_eq!(bytes(to, LEN), bytes(a.place(0, LEN), LEN));
        assert!(a.drain().expect("sound") && a.sent.len() == n, "without a further record");
        assert_eq!((b.copies.invited, b.copies.fetched), (n as u64, (n * front(LEN)) as u64));
    }
    assert!(!b.copies.has_work() && !a.copies.has_work() && !b.copies.is_being_written(&b.link));
}

/// It wrote its part, gave up, and has its memory back: what the receiver would read of the front is not what was sent.
#[test]
fn a_sender_that_has_closed() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    b.invites(1, LEN);
    assert!(a.sends(1, LEN) > 0);
    a.link.close();
    scatter_bytes(&[a.place(0, LEN)], 0, &[0xdd; LEN]);
    assert!(b.drain().expect("sound"));
    b.push();
    assert!(b.received.is_empty() && !b.copies.has_work());
    assert_eq!(b.copies.abort().recvs.len(), 1, "it fails when the end of the sender is heard");
}

/// Tags, sizes, messages between, memory that may only be read, an invitation that was withdrawn: the message comes all the same.
#[test]
fn what_is_not_taken_up() {
    type Change = fn(&mut Side, &mut Side);
    let nothing: Change = |_, _| {};
    let another: Change = |a, _| {
        a.sends(0, 5000);
    };
    let withdrawn: Change = |_, b| assert!(b.copies.withdraw(&b.link, &[b.place(AT, LEN)]));
    let off: Change = |a, _| a.copies.set_inviting(false);
    let crowded: Change = |a, _| share(&mut a.copies, Some(Sharing::Never));
    let unable: Change = |a, _| a.copies.share_between(&[SHORTEST], &[]);
    let cases: [(&str, usize, usize, Lent, Change); 9] = [
        ("another tag", 2, LEN, Lent::ToWrite, nothing),
        ("too short", 1, SHORTEST - 1, Lent::ToWrite, nothing),
        ("too long for the receive", 1, LEN + 1, Lent::ToWrite, nothing),
        ("not to be written", 1, LEN, Lent::ToRead, nothing),
        ("another one first", 1, LEN, Lent::ToWrite, another),
        ("withdrawn", 1, LEN, Lent::ToWrite, withdrawn),
        ("switched off", 1, LEN, Lent::ToWrite, off),
        ("more ranks than cores", 1, LEN, Lent::ToWrite, crowded),
        ("never together", 1, LEN, Lent::ToWrite, unable),
    ];
    for (what, tag, len, how, change) in cases {
        let (mut a, mut b) = pair(how);
        let mut to = b.invites(1, LEN);
        change(&mut a, &mut b);
        assert_eq!(a.sends(tag, len), 0, "{what}");
        if tag != 1 {
            to = b.place(2 * LEN, LEN);
            b.posted.resize_with(tag + 1, || None);
            b.posted[tag] = Some(want(tag, &[to]));
        }
        let others = b.posted.iter().position(Option::is_none).filter(|_| what == "another one first");
        if others.is_some() {
            b.posted[0] = Some(want(0, &[b.place(2 * LEN, 5000)]));
        }
        until_received(&mut a, &mut b, 1 + usize::from(others.is_some()));
        let n = len.min(LEN);
        assert_eq!(bytes(to, n), bytes(a.place(0, n), n), "{what}");
        assert_eq!(b.copies.invited, 0, "{what}");
    }
}

#[test]
fn a_sender_that_is_still_writing_is_waited_for() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    let to = b.invites(1, LEN);
    a.sends(1, LEN);
    // As if it were in the middle.
    let part = front(LEN);
    let behind = bytes(b.place(AT + part, LEN - part), LEN - part);
    scatter_bytes(&[b.place(AT + part, LEN - part)], 0, &vec![0xee; LEN - part]);
    let placed = a.mine.word(PLACED).swap(0, Ordering::Relaxed);
    assert!(b.drain().expect("sound"));
    for _ in 0..3 {
        b.push();
    }
    assert!(b.received.is_empty() && b.copies.has_work(), "nobody sleeps on it");
    assert!(b.copies.is_being_written(&b.link), "a close waits");
    scatter_bytes(&[b.place(AT + part, LEN - part)], 0, &behind);
    a.mine.word(PLACED).store(placed, Ordering::Release);
    assert!(!b.copies.is_being_written(&b.link));
    until_received(&mut a, &mut b, 1);
    assert_eq!(bytes(to, LEN), bytes(a.place(0, LEN), LEN));
}

#[test]
fn what_is_taken_up_is_not_withdrawn() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    let to = b.invites(1, LEN);
    a.sends(1, LEN);
    assert!(!b.copies.withdraw(&b.link, &[to]), "its message is on the way");
    assert!(b.copies.withdraw(&b.link, &[b.place(0, 10)]), "another receive is another matter");
    until_received(&mut a, &mut b, 1);
    assert_eq!((b.copies.invited, bytes(to, LEN)), (1, bytes(a.place(0, LEN), LEN)));
}

/// A receive of another kind, of which nobody could say that it is not the first, does not take the place of one that is taken up.
#[test]
fn one_stands_at_a_time() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    let to = b.invites(1, LEN);
    assert!(a.sends(1, LEN) > 0);
    let other = b.place(2 * LEN, LEN);
    b.copies.invite(&b.link, (false, 0, u64::MAX), &other, 1);
    assert!(!b.copies.withdraw(&b.link, &[to]) && b.copies.withdraw(&b.link, &[other]));
    until_received(&mut a, &mut b, 1);
    assert_eq!((b.copies.invited, bytes(to, LEN)), (1, bytes(a.place(0, LEN), LEN)));
    // One that nobody has taken up gives way.
    let to = b.invites(2, LEN);
    b.copies.invite(&b.link, (false, 0, u64::MAX), &other, 1);
    assert!(a.sends(2, LEN) == 0 && b.copies.withdraw(&b.link, &[to]));
}

/// The sender was through with this message, and is through with the next one, before the receiver came to look.
#[test]
fn a_sender_that_is_further() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    let to = b.invites(1, LEN);
    a.sends(1, LEN);
    let placed = a.mine.word(PLACED).swap(0, Ordering::Relaxed);
    assert!(b.drain().expect("sound") && b.received.is_empty());
    let first = bytes(a.place(0, LEN), LEN);
    // It computes; the next receive is invited, and its message sent.
    let next = b.place(3 * LEN, LEN);
    b.posted.resize_with(3, || None);
    b.posted[2] = Some(want(2, &[next]));
    b.copies.invite(&b.link, (true, 2, 0), &next, 1);
    assert!(b.copies.is_being_written(&b.link), "the first one is");
    b.copies.invite(&b.link, (true, 2, 0), &next, 1);
    assert!(a.sends(2, LEN) > 0 && a.mine.word(PLACED).load(Ordering::Relaxed) > placed);
    until_received(&mut a, &mut b, 2);
    assert_eq!((bytes(to, LEN), bytes(next, LEN)), (first, bytes(a.place(0, LEN), LEN)));
}

/// Whoever is heard by a second link is invited no more, and that is heard after what is on the way.
#[test]
fn a_second_link() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    b.invites(1, LEN);
    a.sends(1, LEN);
    assert!(!b.copies.ends_inviting(&b.link) && !b.copies.hopes(), "its message comes first");
    until_received(&mut a, &mut b, 1);
    assert!(b.copies.invited == 1 && b.copies.ends_inviting(&b.link));
    let (mut a, mut b) = pair(Lent::ToWrite);
    b.invites(1, LEN);
    assert!(b.copies.ends_inviting(&b.link) && !b.copies.hopes());
    assert_eq!(a.sends(1, LEN), 0);
}

/// The ring is full: the message will come later, and takes nothing up now.
#[test]
fn an_offer_that_finds_no_room_takes_nothing_up() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    let to = b.invites(1, LEN);
    while a.link.send(&bare(Kind::Fin, 5, 0), Class::Control).is_ok() {}
    let from = [a.place(0, LEN)];
    let msg = Message { lent: 1, ..message(1, &from) };
    assert_eq!(Single::start(&mut a.wire(), &msg, &req(1)), Err(Refused::Full));
    assert_eq!((a.mine.word(TAKEN).load(Ordering::Relaxed), a.copies.stored), (0, 0));
    assert!(b.copies.withdraw(&b.link, &[to]), "as if nobody had seen it");
}

/// What it was lent cannot be mapped here: its own part comes by the kernel, or all of it as a stream.
#[test]
fn a_receiver_that_cannot_read_there() {
    for kernel in [true, false] {
        if kernel && !kernel_allows() {
            continue;
        }
        let (mut a, mut b) = sides(SHORTEST);
        lend(&mut a, &mut b, Lent::Unmapped);
        lend(&mut b, &mut a, Lent::ToWrite);
        b.copies.saw_uninvited(LEN, &[]);
        let table = Table::default();
        aim(&mut b, if kernel { Reach::Everything } else { Reach::Off }, &table);
        let to = b.invites(1, LEN);
        assert!(a.sends(1, LEN) > 0);
        until_received(&mut a, &mut b, 1);
        assert_eq!(bytes(to, LEN), bytes(a.place(0, LEN), LEN), "by the kernel: {kernel}");
    }
}

/// Invitations that come too late stop for ever longer, and such that are in time bring them back.
#[test]
fn too_late() {
    let (mut a, mut b) = pair(Lent::ToWrite);
    let mut without = Vec::new();
    for _ in 0..3 {
        while b.copies.hopes() {
            let to = b.invites(1, LEN);
            b.copies.saw_uninvited(LEN, &[to]);
        }
        let mut n = 0;
        while !b.copies.hopes() {
            b.copies.saw_uninvited(LEN, &[]);
            n += 1;
        }
        without.push(n);
    }
    assert_eq!(without, [PAUSES.0, 2 * PAUSES.0, 4 * PAUSES.0]);
    // Every second one: that costs as much as it gains.
    for n in 0..100 {
        if b.copies.hopes() {
            let to = b.invites(1, LEN);
            if n % 2 == 0 {
                b.copies.saw_uninvited(LEN, &[to]);
            } else {
                assert!(a.sends(1, LEN) > 0);
                until_received(&mut a, &mut b, 1);
                (a.sent, b.received) = Default::default();
            }
        }
    }
    assert!(!b.copies.hopes());
    // Such that no message comes for are few.
    let (_, mut b) = pair(Lent::ToWrite);
    let mut tried = 0;
    while b.copies.hopes() {
        b.invites(1, LEN);
        tried += 1;
    }
    assert_eq!(tried, u64::from(HOPES) + 1);
}

#[test]
fn a_sender_that_nobody_invited() {
    let offer = |b: &Side, total: usize| {
        let body = Offer { total: total as u64, id: 9, lent: 1, invited: true, kept: false }.emit();
        (b.link.heard(), body)
    };
    for (what, invites, posted, total) in [
        ("nobody invited it", false, true, LEN),
        ("nobody waits for it", true, false, LEN),
        ("longer than what it was invited to", true, true, LEN + 1),
        ("longer than anybody is", true, true, LONGEST + 1),
    ] {
        let (mut a, mut b) = pair(Lent::ToWrite);
        if invites {
            b.invites(1, LEN);
        }
        if posted {
            b.posted.resize_with(2, || None);
            b.posted[1] = Some(want(1, &[b.place(AT, LEN)]));
        } else {
            b.posted.clear();
        }
        let (_, body) = offer(&b, total);
        let pieces = emit_pieces(&pieces_of(&[a.place(0, total)]).expect("one"));
        let flags = flag::TAGGED;
        let draft = Draft { flags, body, len: pieces.len(), bytes: &pieces, ..bare(Kind::Offer, 1, 0) };
        a.link.send(&draft, Class::Envelope).expect("room");
        assert_eq!(b.drain(), Err(Corrupt), "{what}");
    }
}
