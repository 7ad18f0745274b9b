//! Messages that are fetched although nobody has asked for them.

use super::*;

type Set = fn(&mut Side, &Table);

/// A message of so many bytes that is presumed to be in the cache, to a side that has no receive for it, which may read and keep what `set` says; until nothing happens any more.
fn unexpected(len: usize, set: Set) -> Option<(Side, Side, Vec<u8>)> {
    if !kernel_allows() {
        return None;
    }
    let (mut a, mut b) = sides(usize::MAX);
    let table = Table::default();
    aim(&mut a, Reach::Everything, &table);
    aim(&mut b, Reach::Everything, &table);
    set(&mut b, &table);
    let mut from: Vec<u8> = (0..len).map(|i| (i / 3) as u8).collect();
    let presumed = Some(Presumed { same: true, tells: false, era: 0, sent_at: 0 });
    Single::start(&mut a.wire(), &Message { presumed, ..message(0, &[of_slice(&mut from)]) }, &req(0)).expect("offered");
    for _ in 0..4 {
        for side in [&mut a, &mut b] {
            while side.drain().expect("sound") {}
            side.push();
        }
    }
    Some((a, b, from))
}

/// Two that send before they receive go on: neither waits for the other's receive.
#[test]
fn its_sender_waits_for_no_receive() {
    let Some((a, mut b, mut from)) = unexpected(LONGEST_KEPT, |_, _| ()) else { return };
    assert!(a.sent == [0] && b.copies.kept == LONGEST_KEPT && !b.copies.expects(1));
    let wanted = from.clone();
    // The sender's again.
    from.fill(0);
    let mut to = vec![0xee; LONGEST_KEPT];
    assert!(b.receive_held(0, want(0, &[of_slice(&mut to)])).is_none());
    assert!(to == wanted && b.received[0].placed == LONGEST_KEPT && b.copies.kept == 0);
}

#[test]
fn what_is_cut_or_dropped_is_kept_no_more() {
    let Some((_, mut b, from)) = unexpected(20_000, |_, _| ()) else { return };
    let mut to = vec![0xee; 10_000];
    assert!(b.receive_held(0, want(0, &[of_slice(&mut to[..5_000])])).is_none());
    assert!(to[..5_000] == from[..5_000] && to[5_000..].iter().all(|b| *b == 0xee) && b.received[0].env.total == 20_000);
    assert_eq!(b.copies.kept, 0);
    let Some((_, mut b, _)) = unexpected(20_000, |_, _| ()) else { return };
    let (held, _) = b.held.remove(0);
    protocol::discard_held(&mut b.wire(), held);
    assert_eq!(b.copies.kept, 0);
}

/// What a peer can make us keep is bounded, and what is not kept is not lost.
#[test]
fn what_cannot_be_kept_waits_with_its_sender() {
    let full: Set = |b, _| b.copies.kept = b.link.window() - 10_000;
    let cases: [(usize, Set); 4] = [
        (LONGEST_KEPT + 1, |_, _| ()),
        (10_001, full),
        (10_000, |b, table| aim(b, Reach::Forbidden, table)),
        (10_000, |b, table| aim(b, Reach::Other, table)),
    ];
    for (len, set) in cases {
        let Some((mut a, mut b, from)) = unexpected(len, set) else { return };
        let kept = b.copies.kept;
        assert!(a.sent.is_empty() && matches!(b.held[0].0, Held::Offer(_)), "{len}");
        let mut to = vec![0; len];
        assert!(b.receive_held(0, want(0, &[of_slice(&mut to)])).is_none());
        until_received(&mut a, &mut b, 1);
        assert!(from == to && b.copies.kept == kept, "{len}");
    }
    let Some((a, b, _)) = unexpected(10_000, full) else { return };
    assert!(a.sent == [0] && b.copies.kept == b.link.window());
}
