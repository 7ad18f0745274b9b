//! What is offered, and what becomes of offers that come to nothing.

use super::*;

fn start(side: &mut Side, tag: usize, iov: &[UserSeg], lent: u32) -> Result<Started, Refused> {
    Single::start(&mut side.wire(), &Message { lent, ..message(tag, iov) }, &req(tag))
}

#[test]
fn what_cannot_be_offered_is_refused() {
    let (mut a, _b) = sides(1);
    let iov = [a.arena.memory.as_user(0, 5000)];
    assert_eq!(start(&mut a, 0, &iov, 0), Err(Refused::Unable), "nobody knows where the peer is");
    let ours = Message { lent: 1, bytes: b"of the engine", ..message(0, &iov) };
    assert_eq!(Single::start(&mut a.wire(), &ours, &req(0)), Err(Refused::Unable), "not the application's memory");
    assert_eq!(start(&mut a, 0, &iov, 1), Ok(Started::Streaming));
    a.copies.no_loans = true;
    assert_eq!(start(&mut a, 0, &iov, 1), Err(Refused::Unable), "the peer cannot map it");
    a.copies.no_loans = false;
    a.link = Link::new(segment::private(1 << 16), 1 << 17);
    assert_eq!(start(&mut a, 0, &iov, 1), Err(Refused::Unable), "the peer has not answered yet");
}

#[test]
fn a_peer_that_is_gone_leaves_nothing_but_requests() {
    const MESSAGES: usize = 8;
    let (mut a, mut b) = sides(usize::MAX);
    lend(&mut a, &mut b, Lent::ToRead);
    let iov = [a.arena.memory.as_user(0, 5000)];
    for tag in 0..MESSAGES {
        start(&mut a, tag, &iov, 1).expect("offered");
    }
    while b.drain().expect("sound") {}
    assert!(!b.copies.has_work() && !b.copies.sending());
    assert!(b.receive_held(1, want(1, &[])).is_none());
    assert!(b.copies.has_work() && b.copies.sending(), "the sender has not heard of that");
    let mut to = [0; 5000];
    assert!(b.receive_held(0, want(0, &[of_slice(&mut to)])).is_none());
    let order: Vec<usize> = a.copies.abort().sends.iter().map(|req| req.ctx.0).collect();
    assert_eq!(order, (0..MESSAGES).collect::<Vec<_>>());
    assert_eq!(b.copies.abort().recvs.len(), 1);
    for side in [&a, &b] {
        assert!(!side.copies.has_work() && !side.copies.sending() && !side.copies.knows(1));
    }
}

#[test]
fn what_is_thrown_away_ends_for_its_sender() {
    let (mut a, mut b) = sides(usize::MAX);
    lend(&mut a, &mut b, Lent::ToRead);
    let iov = [a.arena.memory.as_user(0, 5000)];
    start(&mut a, 0, &iov, 1).expect("offered");
    assert!(b.drain().expect("sound"));
    let (held, _) = b.held.remove(0);
    protocol::discard_held(&mut b.wire(), held);
    b.push();
    assert!(a.drain().expect("sound") && a.sent == [0] && a.copies.takes_loans());
}

#[test]
fn the_sender_hears_of_memory_that_was_not_mapped_whatever_was_wanted_of_it() {
    let (mut a, mut b) = sides(usize::MAX);
    lend(&mut a, &mut b, Lent::Unmapped);
    let iov = [a.arena.memory.as_user(0, 5000)];
    start(&mut a, 0, &iov, 1).expect("offered");
    assert!(b.drain().expect("sound") && b.receive_held(0, want(0, &[])).is_none());
    assert!(b.copies.rx.is_empty(), "nothing is left of it");
    b.push();
    assert!(a.drain().expect("sound") && a.sent == [0] && !a.copies.takes_loans());
    // Of a message that was in no such memory nothing follows.
    let Some((mut a, mut b, _from, _to, _table)) = shared(100_000) else { return };
    b.link.send(&Draft { flags: flag::UNMAPPED, ..bare(Kind::Fin, 1, 0) }, Class::Control).expect("room");
    assert!(a.drain().expect("sound") && a.sent == [0] && a.copies.takes_loans());
}

/// What cannot be mapped may still be read by the kernel.
#[test]
fn the_sender_hears_of_memory_that_was_not_mapped_and_copied_all_the_same() {
    if !kernel_allows() {
        return;
    }
    let (mut a, mut b) = sides(usize::MAX);
    let table = Table::default();
    aim(&mut b, Reach::Everything, &table);
    lend(&mut a, &mut b, Lent::Unmapped);
    let (iov, mut to) = ([a.arena.memory.as_user(0, 5000)], vec![0; 5000]);
    b.posted.push(Some(want(0, &[of_slice(&mut to)])));
    start(&mut a, 0, &iov, 1).expect("offered");
    assert!(b.drain().expect("sound") && b.received.len() == 1, "at once");
    assert!(a.drain().expect("sound") && a.sent == [0] && !a.copies.takes_loans());
}

/// A record may be there before the packet that tells of the memory it names; so may be the one that ends its loan.
#[test]
fn records_that_name_memory_of_which_nothing_was_heard() {
    let (_a, mut b) = sides(1);
    let recalled = Header { kind: Kind::Done, flags: flag::RECALLED, len: 0, ack: 0, tag: 7, data: 0 };
    let accept = Header { kind: Kind::Accept, flags: 0, len: 0, ack: 0, tag: Named { id: 1, lent: 7 }.emit(), data: 1 };
    for header in [recalled, accept] {
        assert_eq!(b.copies.news(&b.link, &header), Some(7), "{header:?}");
    }
    assert!(b.copies.lent(7, None));
    for header in [recalled, accept] {
        assert_eq!(b.copies.news(&b.link, &header), None, "{header:?}");
    }
}

/// Memory that could not be reached this once says nothing of the next.
#[test]
fn one_message_that_cannot_be_read_is_no_refusal() {
    if !kernel_allows() {
        return;
    }
    let Some((mut a, mut b, from, to, _table)) = expected(1 << 20, Some(Sharing::Never)) else { return };
    b.copies.rx.get_mut(&1).expect("offered").from = [remote::Piece { addr: 8, len: 1 << 20 }].into_iter().collect();
    until_received(&mut a, &mut b, 1);
    assert!(from == to && b.moved == 0 && !a.copies.is_refused() && !b.copies.no_read);
}

#[test]
fn who_is_asked_tells_how_long_a_copy_took() {
    let told = |how, presumed: Option<bool>, share_min, posted: bool| {
        let presumed = presumed.map(|tells| Presumed { same: true, tells, era: 3, sent_at: 5 });
        let (mut a, mut b) = sides(share_min);
        b.copies.set_clock(Clock::machine(), Default::default());
        lend(&mut a, &mut b, how);
        let (iov, mut to) = ([a.arena.memory.as_user(0, 40_000)], vec![0; 40_000]);
        b.posted.push(posted.then(|| want(0, &[of_slice(&mut to)])));
        Single::start(&mut a.wire(), &Message { lent: 1, presumed, ..message(0, &iov) }, &req(0)).expect("offered");
        let mut late = (!posted).then(|| want(0, &[of_slice(&mut to)]));
        while a.sent.is_empty() {
            while b.drain().expect("sound") {}
            late = late.and_then(|req| b.receive_held(0, req));
            b.push();
            while a.drain().expect("sound") {}
            a.push();
        }
        let told = a.told[0];
        assert!(told.is_none_or(|told| (told.len, told.lent) == (40_000, true) && Some(told.presumed) == presumed), "{told:?}");
        told.map(|told| told.ns)
    };
    let ns = told(Lent::ToRead, Some(true), usize::MAX, true).expect("presumed");
    assert!((1..1_000_000_000).contains(&ns), "{ns}");
    assert_eq!(told(Lent::ToRead, Some(true), usize::MAX, false), Some(0), "it was kept: nobody looked at the clock");
    for posted in [true, false] {
        assert_eq!(told(Lent::ToRead, Some(false), usize::MAX, posted), Some(0), "nobody asked");
        assert_eq!(told(Lent::ToRead, None, usize::MAX, posted), None, "nothing was presumed");
    }
    assert_eq!(told(Lent::ToWrite, Some(true), 1, true), Some(u64::MAX), "both copied, so it took long");
}
