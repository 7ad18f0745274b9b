//! What no rustmx says is noticed, and nothing else comes of it.

use super::*;
use crate::shm::split::MAX_NUMBER;

/// A peer that names memory which it did not lend for that, or addresses beside it, is not believed.
#[test]
fn lies_about_lent_memory() {
    let offer = |addr: u64, how: Lent, len: usize, expected: bool| {
        let (mut a, mut b) = sides(1 << 20);
        lend(&mut a, &mut b, how);
        let base = a.arena.memory.as_user(0, 0).address() as u64;
        let bytes = emit_pieces(&[remote::Piece { addr: base.wrapping_add(addr), len }]);
        let body = Offer { total: 5000, id: 1, lent: 1, invited: false, kept: false }.emit();
        let draft = Draft {
            kind: Kind::Offer,
            flags: flag::TAGGED,
            tag: 0,
            data: 0,
            body,
            iov: &[],
            skip: 0,
            len: bytes.len(),
            bytes: &bytes,
        };
        a.link.send(&draft, Class::Envelope).expect("room");
        let mut to = vec![0; 5000];
        b.posted.push(expected.then(|| want(0, &[of_slice(&mut to)])));
        b.drain().is_ok()
    };
    for bad in [(ARENA - 4999) as u64, ARENA as u64, u64::MAX, u64::MAX - 4999, 1 << 63] {
        assert!(!offer(bad, Lent::ToRead, 5000, true) && !offer(bad, Lent::ToRead, 5000, false), "{bad}");
    }
    for expected in [true, false] {
        let last = (ARENA - 5000) as u64;
        assert!(offer(0, Lent::ToRead, 5000, expected) && offer(last, Lent::ToWrite, 5000, expected));
        assert!(!offer(0, Lent::ToRead, 4999, expected), "less than it says");
    }
    let (mut a, mut b) = sides(1);
    lend(&mut a, &mut b, Lent::ToRead);
    assert!(!b.copies.may_lend(1, 4096) && !b.copies.lent(1, None), "a number twice");
    assert!(!b.copies.may_lend(0, 4096) && !b.copies.may_lend(2, usize::MAX) && !b.copies.may_lend(2, 1 << 43));
    for number in 2..65 {
        assert!(b.copies.may_lend(number, 4096) && b.copies.lent(number, None));
    }
    assert!(!b.copies.may_lend(65, 4096) && !b.copies.lent(65, None));
}

/// Lies of a receiver to a sender and of a sender to a receiver: each is noticed.
#[test]
fn lies() {
    let here = 0u8;
    let at = &raw const here as u64;
    let piece = |len: usize| emit_pieces(&[remote::Piece { addr: at, len }]);
    let good = (1, 50_000, [1, 1 << 16], piece(50_000));
    let lie = |(id, wanted, body, bytes): (u64, u64, [u64; 2], smallvec::SmallVec<[u8; MAX_PIECES * 16]>)| {
        let (mut a, mut b, _from, _to, _table) = shared(100_000)?;
        let draft = Draft {
            kind: Kind::Accept,
            flags: 0,
            tag: id,
            data: wanted,
            body,
            iov: &[],
            skip: 0,
            len: bytes.len(),
            bytes: &bytes,
        };
        b.link.send(&draft, Class::Control).expect("room");
        Some(a.drain().is_err())
    };
    assert_ne!(lie(good.clone()), Some(true));
    for (what, told) in [
        ("no such offer", (2, good.1, good.2, good.3.clone())),
        ("no id", (1 << 32, good.1, good.2, good.3.clone())),
        ("more than there is", (1, 100_001, [1, 1 << 17], piece(100_001))),
        ("nothing", (1, 0, good.2, good.3.clone())),
        ("tiny chunks", (1, good.1, [1, 64], good.3.clone())),
        ("no number", (1, good.1, [0, 1 << 16], good.3.clone())),
        ("a number out of range", (1, good.1, [MAX_NUMBER + 1, 1 << 16], good.3.clone())),
        ("less room than bytes", (1, good.1, good.2, piece(49_999))),
        ("half a piece", (1, good.1, good.2, good.3[..8].into())),
    ] {
        assert_ne!(lie(told), Some(false), "{what}");
    }
    let done = |chunks: u64, first: u32| {
        let (mut a, mut b, _from, _to, _table) = shared(100_000)?;
        for _ in 0..first {
            b.copies.copy_front(&b.link, &mut Ended::default());
        }
        let draft =
            Draft { kind: Kind::Done, flags: 0, tag: 1, data: chunks, body: [0; 2], iov: &[], skip: 0, len: 0, bytes: &[] };
        a.link.send(&draft, Class::Control).expect("room");
        Some(b.drain().is_err())
    };
    assert_eq!(
        (done(0, 0), done(2, 0), done(1, 1)),
        (kernel_allows().then_some(false), kernel_allows().then_some(false), kernel_allows().then_some(false))
    );
    assert_ne!(done(3, 0), Some(false), "more chunks than there are");
    assert_ne!(done(2, 1), Some(false), "chunks that we copied");
}

#[test]
fn lies_about_what_the_helper_copied() {
    let Some((a, mut b, _from, _to, _table)) = shared(8 << 20) else { return };
    b.copies.help_from(1);
    b.push();
    // It may be so quick that it has all of it.
    let Some(id) = b.copies.help.id else { return };
    let done = |chunks| Header { kind: Kind::Done, flags: 0, len: 0, ack: 0, tag: id.into(), data: chunks };
    for chunks in [17, u64::MAX, 16] {
        assert!(
            b.copies.on_done(&b.link, &done(chunks), &mut Ended::default()).is_err(),
            "{chunks} of 16, of which one at least is here"
        );
    }
    b.copies.abort();
    drop(a);
}

/// An ACCEPT of a message that goes to memory which its receiver has lent.
#[test]
fn lies_about_where_a_message_goes() {
    let accept = |addr: u64| {
        let (mut a, mut b) = sides(1);
        lend(&mut b, &mut a, Lent::ToWrite);
        let iov = [a.arena.memory.as_user(0, 50_000)];
        Single::start(&mut a.wire(), &Message { lent: 1, ..message(0, &iov) }, &req(0)).expect("offered");
        let base = b.arena.memory.as_user(0, 0).address() as u64;
        let bytes = emit_pieces(&[remote::Piece { addr: base.wrapping_add(addr), len: 50_000 }]);
        let tag = Named { id: 1, lent: 1 }.emit();
        let draft = Draft { body: [1, 1 << 16], len: bytes.len(), bytes: &bytes, ..bare(Kind::Accept, tag, 50_000) };
        b.link.send(&draft, Class::Control).expect("room");
        a.drain().is_ok()
    };
    assert!(accept(0) && accept((ARENA - 50_000) as u64));
    for bad in [(ARENA - 49_999) as u64, ARENA as u64, u64::MAX, 1 << 63] {
        assert!(!accept(bad), "{bad}");
    }
}

#[test]
fn a_message_is_accepted_once_and_in_turn() {
    let accepted = |told: [(u64, u64); 2]| {
        let (mut a, mut b) = sides(1);
        let iov = [a.arena.memory.as_user(0, 5000)];
        for tag in 0..2 {
            Single::start(&mut a.wire(), &Message { lent: 1, ..message(tag, &iov) }, &req(tag)).expect("offered");
        }
        told.map(|(id, number)| {
            let bytes = emit_pieces(&[remote::Piece { addr: 8, len: 5000 }]);
            let draft = Draft { body: [number, 1 << 16], len: bytes.len(), bytes: &bytes, ..bare(Kind::Accept, id, 5000) };
            b.link.send(&draft, Class::Control).expect("room");
            a.drain().is_ok()
        })
    };
    assert_eq!(accepted([(1, 1), (2, 2)]), [true, true]);
    for told in [[(1, 1), (1, 2)], [(1, 2), (2, 2)], [(1, 2), (2, 1)]] {
        assert_eq!(accepted(told), [true, false], "{told:?}");
    }
}

#[test]
fn a_wish_for_more_than_there_is() {
    for (wanted, sound) in [(5000, true), (5001, false), (u64::MAX, false)] {
        let (mut a, mut b) = sides(1);
        let iov = [a.arena.memory.as_user(0, 5000)];
        Single::start(&mut a.wire(), &Message { lent: 1, ..message(0, &iov) }, &req(0)).expect("offered");
        b.link.send(&bare(Kind::Cts, 1, wanted), Class::Control).expect("room");
        assert_eq!(a.drain().is_ok(), sound, "{wanted}");
    }
}

/// Of a message that is there already, another one of its id, whether or not somebody waits for it.
#[test]
fn an_offer_of_an_id_that_is_taken() {
    for waits in [true, false] {
        let (mut a, mut b) = sides(usize::MAX);
        lend(&mut a, &mut b, Lent::ToRead);
        let iov = [a.arena.memory.as_user(0, 5000)];
        let bytes = emit_pieces(&pieces_of(&iov).expect("one"));
        let body = Offer { total: 5000, id: 1, lent: 1, invited: false, kept: false }.emit();
        let mut to = [0; 5000];
        b.posted = vec![None, waits.then(|| want(1, &[of_slice(&mut to)]))];
        for tag in 0..2 {
            let draft = Draft { flags: flag::TAGGED, body, len: bytes.len(), bytes: &bytes, ..bare(Kind::Offer, tag, 0) };
            a.link.send(&draft, Class::Envelope).expect("room");
        }
        assert!(b.drain().is_ok() && b.drain().is_err(), "waits: {waits}");
    }
}

#[test]
fn ends_of_loans() {
    let end = |flags, number: u64, data| {
        let (mut a, mut b) = sides(1);
        lend(&mut a, &mut b, Lent::ToRead);
        let header = Header { kind: Kind::Done, flags, len: 0, ack: 0, tag: number, data };
        (b.copies.on_recalled(&header).is_ok(), b.copies.on_recalled(&header).is_ok())
    };
    assert_eq!(end(flag::RECALLED, 1, 0), (true, false), "once");
    for (flags, number, data) in [
        (flag::RECALLED, 2, 0),
        (flag::RECALLED, 1 << 32 | 1, 0),
        (flag::RECALLED, 1, 1),
        (flag::RECALLED | flag::FORBIDDEN, 1, 0),
    ] {
        assert_eq!(end(flags, number, data), (false, false), "{flags} {number} {data}");
    }
}
