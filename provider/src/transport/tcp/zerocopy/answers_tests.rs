//! A ring that answers `ENOMEM` or `ENOBUFS`, which no kernel can be brought to at will: what it did not take leaves the other way, once, and the next
//! frames go as is decided then.

use super::super::outgoing::Outgoing;
use super::super::stream::Stream;
use super::tests::{AFTER, BEFORE, Limit, lender, narrow, post, prime, registered};
use super::*;
use crate::sys::uring::Answer;
use crate::wire::frame::{FRAME_HEAD, PAYLOAD_MAX};
use choice::Verdict;

/// Bytes that have left are told apart by their place.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + seed * 31) >> 3) as u8).collect()
}

fn account(outgoing: &Outgoing) -> &Account {
    match &outgoing.zerocopy {
        ZeroCopy::May(lender) => lender.account.as_ref().expect("a connection that may register"),
        _ => panic!("it lends nothing"),
    }
}

/// Sends `memory`; the ring answers `answers` instead of what it would have, as soon as `after` bytes have been read. All arrives as it was, once, and it has left
/// when the kernel is through with it.
fn arrives(outgoing: &mut Outgoing, stream: &Stream, b: &OwnedFd, memory: &mut [u8], after: usize, answers: &[Answer]) {
    let inject = |outgoing: &Outgoing| answers.iter().for_each(|answer| account(outgoing).answer_instead(*answer));
    let sent = memory.to_vec();
    post(outgoing, 5, memory.as_mut_ptr(), memory.len());
    let (mut got, mut done, mut injected, limit) = (Vec::new(), 0, false, Limit::new());
    let all = sent.len() + sent.len().div_ceil(PAYLOAD_MAX) * FRAME_HEAD;
    while got.len() < all || done == 0 {
        limit.check();
        if !injected && got.len() >= after {
            inject(outgoing);
            injected = true;
        }
        outgoing.flush(stream, false).expect("sent");
        outgoing.hear(stream);
        for id in outgoing.done.drain(..) {
            assert_eq!(id, 5);
            done += 1;
            // It may be: who had it still to be read would send this.
            memory.fill(AFTER);
        }
        let mut bytes = vec![0; 1 << 16];
        let n = tcp::recv_bytes(b, &mut bytes).unwrap_or(0);
        got.extend_from_slice(&bytes[..n]);
    }
    assert!(done == 1 && got.len() == all, "{done} times, {} bytes of {all}", got.len());
    let bodies = got.chunks(FRAME_HEAD + PAYLOAD_MAX).flat_map(|frame| &frame[FRAME_HEAD..]);
    assert!(bodies.eq(&sent), "other bytes");
    assert!(!outgoing.zerocopy.waits() && outgoing.posted() == 0);
}

#[test]
fn what_it_has_no_memory_for_leaves_the_other_way() {
    const LEN: usize = 4 << 20;
    let [a, b] = narrow();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Uring);
    let mut memory = vec![BEFORE; LEN];
    prime(&mut outgoing, &stream, &b, &mut memory);
    if registered(&outgoing).is_none() {
        return;
    }
    for (round, why) in [Errno::NOMEM, Errno::NOBUFS].into_iter().cycle().take(4).enumerate() {
        let notice = round >= 2;
        let answer = Answer { sent: Err(why), notice };
        // Nothing of the frame has left, some of it has; and the same, for several frames.
        for (after, times) in [(0, 1), (500_000, 1), (0, 3), (500_000, 3)] {
            memory.copy_from_slice(&pattern(LEN, round + times));
            arrives(&mut outgoing, &stream, &b, &mut memory, after, &vec![answer; times]);
        }
        let before = registered(&outgoing);
        memory.copy_from_slice(&pattern(LEN, round));
        arrives(&mut outgoing, &stream, &b, &mut memory, 0, &[]);
        assert!(registered(&outgoing) > before, "it is asked again, if that is forced");
    }
}

/// A socket's queue may end in memory of a request: that the kernel puts no other behind it then is no limit.
#[test]
fn what_ends_the_queue_is_no_limit() {
    let [a, _b] = narrow();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Uring);
    outgoing.zerocopy.begin(&stream, false);
    let refused = |zerocopy: &mut ZeroCopy| (0..3).all(|_| zerocopy.is_refusal(Way::Lent, Errno::NOBUFS));
    let verdict = |zerocopy: &mut ZeroCopy| zerocopy.lender().and_then(|l| l.choice.as_ref()).map(|c| c.verdict(Way::Lent));
    let Some(lender) = outgoing.zerocopy.lender() else { return };
    lender.choice = Some(Choice::default());
    lender.loans.begin(Posted { id: 5, is_piece: false });
    lender.loans.took(By::Request, 100);
    assert!(refused(&mut outgoing.zerocopy));
    assert_eq!(verdict(&mut outgoing.zerocopy), Some(Verdict::Trying));
    let Some(lender) = outgoing.zerocopy.lender() else { return };
    lender.loans.answered(By::Request, crate::sys::zerocopy::Notice { calls: [0, 0], copied: false }, &mut Default::default());
    assert!(refused(&mut outgoing.zerocopy));
    assert_eq!(verdict(&mut outgoing.zerocopy), Some(Verdict::Refused(Refusal::Limits)));
}

/// Where a connection chooses, three in a row are enough: the way rests, and the ring is left alone.
#[test]
fn who_has_no_memory_is_not_asked_in_vain() {
    const LEN: usize = 200_000;
    let [a, b] = narrow();
    let (mut outgoing, stream) = lender(a, network::ZeroCopy::Uring);
    let mut memory = vec![BEFORE; LEN];
    prime(&mut outgoing, &stream, &b, &mut memory);
    if registered(&outgoing).is_none() {
        return;
    }
    let ZeroCopy::May(lender) = &mut outgoing.zerocopy else { return };
    let mut choice = Choice::default();
    // The other way without a copy rests: here the kernel copies all the same, and then both would.
    (0..3).for_each(|_| choice.refused(Way::Lent, Refusal::Limits));
    choice.registers(true);
    lender.choice = Some(choice);
    const ANSWERS: usize = 100;
    for _ in 0..ANSWERS {
        account(&outgoing).answer_instead(Answer { sent: Err(Errno::NOMEM), notice: false });
    }
    for round in 0..200 {
        memory.copy_from_slice(&pattern(LEN, round));
        arrives(&mut outgoing, &stream, &b, &mut memory, 0, &[]);
    }
    let asked = ANSWERS - account(&outgoing).unneeded();
    let ZeroCopy::May(lender) = &outgoing.zerocopy else { return };
    let verdict = lender.choice.as_ref().map(|choice| choice.verdict(Way::Registered));
    assert_eq!((asked, verdict), (3, Some(Verdict::Refused(Refusal::Limits))), "times in vain");
}
