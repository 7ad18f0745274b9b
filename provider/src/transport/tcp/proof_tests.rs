//! Proofs and encrypted streams over two sockets with somebody between them, who passes bytes on, or not, or others.

#![expect(unsafe_code, reason = "buffers of the tests as the application's")]

use super::proof::{Guard, Handshake, Unproved};
use super::session::{Session, TEXT};
use super::tests::sockets;
use crate::error::Error;
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::UserSeg;
use crate::sys::tcp::{self, Piece};
use crate::wire::hello::{BadHello, Hello, NAME, Refusal};
use crate::wire::key::{Key, PROOF_HEAD, Proof};
use proptest::prelude::*;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// Bytes of a head with what follows it.
const FIRST: usize = PROOF_HEAD + 48;
/// Bytes that the caller and the listener say.
const SAID: [usize; 2] = [FIRST + 16, FIRST];

fn guard(key: &str, encrypt: bool) -> Guard {
    Guard { key: Key::new(key.as_bytes()), encrypt }
}

type Outcome = Option<Result<Option<Session>, Unproved>>;

/// One who proves, or what came of it.
struct Side {
    fd: OwnedFd,
    handshake: Handshake,
    outcome: Outcome,
}

impl Side {
    fn new(fd: OwnedFd, guard: &Guard, calls: bool) -> Side {
        Side { fd, handshake: Handshake::new(guard, calls).expect("random numbers"), outcome: None }
    }

    fn step(&mut self) {
        if self.outcome.is_none() {
            self.outcome = self.handshake.step(&self.fd).transpose();
            if matches!(self.outcome, Some(Err(_))) {
                tcp::finish(&self.fd);
            }
        }
    }

    fn why(&self) -> Option<Unproved> {
        self.outcome.as_ref().and_then(|o| o.as_ref().err()).copied()
    }

    fn is_sure(&self) -> bool {
        matches!(self.outcome, Some(Ok(_)))
    }
}

/// What is on the way from one to another, as it is now. Whether there was anything.
fn pass(from: &OwnedFd, to: &OwnedFd, said: &mut Vec<u8>, alter: &mut dyn FnMut(usize, &mut u8) -> bool) -> bool {
    let mut bytes = [0; 1000];
    match tcp::recv_bytes(from, &mut bytes) {
        Ok(0) => tcp::finish(to),
        Ok(n) => {
            for byte in &mut bytes[..n] {
                let at = said.len();
                said.push(*byte);
                if alter(at, byte) {
                    let _ = tcp::send_bytes(to, &[*byte]);
                } else {
                    tcp::finish(to);
                }
            }
            return true;
        }
        Err(_) => {}
    }
    false
}

/// Both prove; `alter` gets (who says it, which byte, the byte), and says whether it arrives at all. What both said, too.
fn meet(guards: [&Guard; 2], alter: impl FnMut(usize, usize, &mut u8) -> bool) -> ([Side; 2], [Vec<u8>; 2]) {
    meet_as([true, false], guards, alter)
}

/// The same of two who call or are called.
fn meet_as(
    calls: [bool; 2],
    guards: [&Guard; 2],
    mut alter: impl FnMut(usize, usize, &mut u8) -> bool,
) -> ([Side; 2], [Vec<u8>; 2]) {
    let ([a, near_a], [near_b, b]) = (sockets(), sockets());
    let mut sides = [Side::new(a, guards[0], calls[0]), Side::new(b, guards[1], calls[1])];
    let mut said = [Vec::new(), Vec::new()];
    let mut idle = 0;
    while idle < 50 && sides.iter().any(|s| s.outcome.is_none()) {
        sides.iter_mut().for_each(Side::step);
        let there = pass(&near_a, &near_b, &mut said[0], &mut |at, byte| alter(0, at, byte));
        let back = pass(&near_b, &near_a, &mut said[1], &mut |at, byte| alter(1, at, byte));
        idle = if there || back { 0 } else { idle + 1 };
    }
    sides.iter_mut().for_each(Side::step);
    (sides, said)
}

#[test]
fn who_has_the_key_is_believed() {
    for encrypt in [false, true] {
        let key = guard("the same key", encrypt);
        let (sides, said) = meet([&key, &key], |_, _, _| true);
        for side in &sides {
            assert_eq!(side.outcome.as_ref().and_then(|o| o.as_ref().ok()).map(Option::is_some), Some(encrypt));
        }
        assert_eq!(said.map(|s| s.len()), SAID, "these bytes and not one more");
    }
}

/// Both calls became one connection.
#[test]
fn of_two_callers_one_answers() {
    for encrypt in [false, true] {
        let key = guard("the same key", encrypt);
        let mut answered = [0; 2];
        for _ in 0..40 {
            let (sides, said) = meet_as([true, true], [&key, &key], |_, _, _| true);
            for side in &sides {
                assert_eq!(side.outcome.as_ref().and_then(|o| o.as_ref().ok()).map(Option::is_some), Some(encrypt));
            }
            // He has said two messages, and the other one a message and a confirmation.
            let lens = said.each_ref().map(Vec::len);
            let who = lens.iter().position(|len| *len == 2 * FIRST).expect("one answers");
            assert_eq!(lens[1 - who], FIRST + 16);
            assert!(said[1 - who][..FIRST] < said[who][..FIRST]);
            answered[who] += 1;
            if let [Some(Ok(Some(mut a))), Some(Ok(Some(mut b)))] = sides.map(|side| side.outcome) {
                let [from, to] = sockets();
                a.send(&from, &[Piece::Own(&memory(b"both ways"), 0, 9)]).expect("sent");
                b.send(&to, &[Piece::Own(&memory(b"both ways"), 0, 9)]).expect("sent");
                for (session, fd) in [(&mut a, &from), (&mut b, &to)] {
                    let into = memory(&[0; 9]);
                    while session.recv(fd, &[Piece::Own(&into, 0, 9)]) == Err(Errno::AGAIN) {}
                    let mut bytes = Vec::new();
                    into.append_to(0, 9, &mut bytes);
                    assert_eq!(bytes, b"both ways");
                }
            }
        }
        // By chance: never in 40 times is one of 10^12.
        assert!(answered.iter().all(|n| *n > 0), "{answered:?}");
    }
    // Who has another key is none of the job, as ever.
    let (sides, _) = meet_as([true, true], [&guard("one key", true), &guard("another", true)], |_, _, _| true);
    assert_eq!(sides.each_ref().map(Side::why), [Some(Unproved::Error(Error::KeyDiffers)); 2]);
}

/// Somebody has no key, and says what he hears.
#[test]
fn an_echo_is_not_believed() {
    let key = guard("the key", true);
    let [caller, echo] = sockets();
    let mut caller = Side::new(caller, &key, true);
    let mut bytes = [0; 1000];
    for _ in 0..200 {
        caller.step();
        if let Ok(n) = tcp::recv_bytes(&echo, &mut bytes) {
            let _ = tcp::send_bytes(&echo, &bytes[..n]);
        }
    }
    assert_eq!(caller.why(), Some(Unproved::Error(Error::KeyDiffers)));
}

/// Nor one who repeats what another caller has said, as often as he likes.
#[test]
fn an_old_call_is_not_believed() {
    let key = guard("the key", true);
    for _ in 0..20 {
        let ([caller, liar], [other, heard]) = (sockets(), sockets());
        let mut bytes = [0; FIRST];
        Side::new(other, &key, true).step();
        let mut got = 0;
        while got < FIRST {
            got += tcp::recv_bytes(&heard, &mut bytes[got..]).unwrap_or(0);
        }
        let mut caller = Side::new(caller, &key, true);
        for _ in 0..3 {
            tcp::send_bytes(&liar, &bytes).expect("sent");
            (0..50).for_each(|_| caller.step());
        }
        assert_eq!(caller.why(), Some(Unproved::Error(Error::KeyDiffers)));
    }
}

#[test]
fn what_differs_is_told_to_both() {
    let cases = [
        (guard("one key", false), guard("another", false), Error::KeyDiffers),
        (guard("one key", true), guard("another", true), Error::KeyDiffers),
        (guard("one key", true), guard("one key", false), Error::EncryptionDiffers),
        (guard("one key", false), guard("one key", true), Error::EncryptionDiffers),
    ];
    for (a, b, why) in cases {
        let (sides, _) = meet([&a, &b], |_, _, _| true);
        assert_eq!(sides.each_ref().map(Side::why), [Some(Unproved::Error(why)); 2], "{a:?} {b:?}");
    }
}

#[test]
fn who_knows_nothing_of_keys_is_told() {
    let key = guard("a key", false);
    // He calls.
    let [ours, theirs] = sockets();
    let mut side = Side::new(ours, &key, false);
    let hello = Hello::new([1; NAME], [2; NAME], 4096, 0, [0; 16]);
    tcp::send_bytes(&theirs, hello.as_bytes()).expect("said");
    while side.outcome.is_none() {
        side.step();
    }
    assert_eq!(side.why(), Some(Unproved::Error(Error::KeyUnknown)));
    drop(side);
    let mut answer = [0; 1000];
    let n = tcp::recv_bytes(&theirs, &mut answer).expect("an answer");
    assert_eq!(Hello::parse(&answer[..n]).map(|_| ()), Err(BadHello::Refused(Refusal::KeyMissing)));
    // He is called, and refuses, as one that knows of keys does, and as one that does not.
    for answer in [Proof::Refused(Refusal::KeyUnknown).emit().to_vec(), hello.as_bytes().to_vec()] {
        let [ours, theirs] = sockets();
        let mut side = Side::new(ours, &key, true);
        tcp::send_bytes(&theirs, &answer).expect("said");
        while side.outcome.is_none() {
            side.step();
        }
        assert_eq!(side.why(), Some(Unproved::Error(Error::KeyUnknown)));
    }
}

/// Whichever bit of whichever message is another one on the way: the receiver of it is not content.
#[test]
fn a_flipped_bit_is_seen() {
    for (who, len) in SAID.into_iter().enumerate() {
        for at in 0..len {
            let key = guard("the same key", at % 2 == 0);
            let flip = |said: usize, i: usize, byte: &mut u8| {
                if (said, i) == (who, at) {
                    *byte ^= 1 << (at % 8);
                }
                true
            };
            let (sides, _) = meet([&key, &key], flip);
            assert!(!sides[1 - who].is_sure(), "byte {at} of {who}");
            assert!(!sides[1].is_sure(), "byte {at} of {who}: the listener talks to somebody who did not understand it");
        }
    }
}

#[test]
fn what_is_cut_off_is_no_proof() {
    let key = guard("the same key", true);
    for (who, len) in SAID.into_iter().enumerate() {
        for end in 0..len {
            let (sides, _) = meet([&key, &key], |said, i, _| said != who || i < end);
            assert!(!sides[1 - who].is_sure() && !sides[1].is_sure(), "{end} bytes of {who}");
            assert_eq!(sides[1 - who].why(), Some(Unproved::Ended), "{end} bytes of {who}");
        }
    }
}

/// All that one has heard on the network is of no use with the next listener.
#[test]
fn who_repeats_what_he_has_heard_is_not_believed() {
    for encrypt in [false, true] {
        let key = guard("the same key", encrypt);
        let (_, [heard, _]) = meet([&key, &key], |_, _, _| true);
        let [ours, theirs] = sockets();
        let mut listener = Side::new(ours, &key, false);
        tcp::send_bytes(&theirs, &heard[..FIRST]).expect("said");
        let mut answer = [0; 1000];
        while tcp::recv_bytes(&theirs, &mut answer).is_err() {
            listener.step();
        }
        tcp::send_bytes(&theirs, &heard[FIRST..]).expect("said");
        while listener.outcome.is_none() {
            listener.step();
        }
        assert_eq!(listener.why(), Some(Unproved::Error(Error::KeyDiffers)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn garbage_proves_nothing(mut bytes in proptest::collection::vec(any::<u8>(), 1..200), near in 0usize..9, calls in any::<bool>()) {
        let head = Proof::Follows { encrypted: true }.emit();
        let near = near.min(bytes.len());
        bytes[..near].copy_from_slice(&head[..near]);
        let [ours, theirs] = sockets();
        let mut side = Side::new(ours, &guard("a key", true), calls);
        tcp::send_bytes(&theirs, &bytes).expect("said");
        tcp::finish(&theirs);
        while side.outcome.is_none() {
            side.step();
        }
        prop_assert!(!side.is_sure());
    }
}

fn sessions() -> [Session; 2] {
    let key = guard("the same key", true);
    let (sides, _) = meet([&key, &key], |_, _, _| true);
    sides.map(|side| side.outcome.and_then(Result::ok).flatten().expect("a session"))
}

fn memory(bytes: &[u8]) -> SharedMem {
    let mem = SharedMem::new(Heap::new(bytes.len().max(8).next_multiple_of(8)));
    mem.fill_bytes(0, bytes);
    mem
}

fn seg(bytes: &mut [u8]) -> UserSeg {
    // SAFETY: the tests keep their buffers as long as they use them.
    unsafe { UserSeg::new(bytes.as_mut_ptr(), bytes.len()) }
}

/// Everything that a session has to say of `text`, as it is on the network.
fn sealed(session: &mut Session, text: &mut [u8]) -> Vec<u8> {
    let [ours, theirs] = sockets();
    let (mut sent, mut out, mut bytes) = (0, Vec::new(), vec![0; 1 << 16]);
    loop {
        let piece = Piece::User(seg(&mut text[sent..]));
        sent += session.send(&ours, &[piece]).unwrap_or(0);
        let out_there = session.push(&ours).expect("sent");
        while let Ok(n) = tcp::recv_bytes(&theirs, &mut bytes) {
            out.extend(&bytes[..n]);
        }
        if sent == text.len() && out_there {
            tcp::finish(&ours);
            while let Ok(n) = tcp::recv_bytes(&theirs, &mut bytes)
                && n > 0
            {
                out.extend(&bytes[..n]);
            }
            return out;
        }
    }
}

/// What a session makes of what is on the network.
fn opened(session: &mut Session, sealed: &[u8], pieces: &[usize]) -> (Vec<u8>, Errno) {
    let [ours, theirs] = sockets();
    let (mut said, mut text, mut turn) = (0, Vec::new(), 0);
    loop {
        if said < sealed.len() {
            said += tcp::send_bytes(&theirs, &sealed[said..]).unwrap_or(0);
        } else {
            tcp::finish(&theirs);
        }
        let len = pieces[turn % pieces.len()];
        turn += 1;
        let (mem, mut user) = (memory(&vec![0; len]), vec![0; len / 2]);
        match session.recv(&ours, &[Piece::Own(&mem, 0, len), Piece::User(seg(&mut user))]) {
            Ok(0) => return (text, Errno::PIPE),
            Ok(n) => {
                mem.append_to(0, n.min(len), &mut text);
                text.extend(&user[..n.saturating_sub(len)]);
                assert!(n == len + len / 2 || !session.has_more(), "there was more");
            }
            Err(Errno::AGAIN) => {}
            Err(why) => return (text, why),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn what_is_sealed_is_opened(texts in proptest::collection::vec(1usize..5 * TEXT, 1..6), pieces in proptest::collection::vec(1usize..3 * TEXT, 1..5)) {
        let [mut a, mut b] = sessions();
        let (mut sent, mut wire) = (Vec::new(), Vec::new());
        for (i, len) in texts.into_iter().enumerate() {
            let mut text: Vec<u8> = (0..len).map(|at| (at * 7 + i) as u8).collect();
            wire.extend(sealed(&mut a, &mut text));
            sent.extend(text);
        }
        let (text, end) = opened(&mut b, &wire, &pieces);
        prop_assert!(text == sent, "{} of {} bytes", text.len(), sent.len());
        prop_assert_eq!(end, Errno::PIPE);
    }

    /// A flipped bit, a message left out, said twice, or in the place of another: what came before is read, and nothing after it.
    #[test]
    fn what_was_altered_is_not_opened(at in any::<prop::sample::Index>(), bit in 0u8..8, how in 0..4) {
        let [mut a, mut b] = sessions();
        let messages: Vec<Vec<u8>> = (1..=4u8).map(|i| sealed(&mut a, &mut vec![i; 100 * i as usize])).collect();
        let mut wire = messages.concat();
        match how {
            0 => { let at = at.index(wire.len()); wire[at] ^= 1 << bit; }
            1 => wire = [&messages[0][..], &messages[2], &messages[3]].concat(),
            2 => wire = [&messages[0][..], &messages[0], &messages[1], &messages[2]].concat(),
            _ => wire = [&messages[1][..], &messages[0], &messages[2], &messages[3]].concat(),
        }
        let (text, end) = opened(&mut b, &wire, &[50, 3000]);
        let whole: Vec<u8> = (1..=4u8).flat_map(|i| vec![i; 100 * i as usize]).collect();
        prop_assert!(text.len() < whole.len() && whole.starts_with(&text), "{} bytes", text.len());
        // A length that was made larger is one that never comes.
        prop_assert!(end == Errno::BADMSG || how == 0 && end == Errno::PIPE, "{end}");
    }
}

#[test]
fn what_is_said_is_not_seen_on_the_way() {
    let [mut a, _] = sessions();
    let mut text = b"a text that is easy to recognize ".repeat(40);
    let wire = sealed(&mut a, &mut text);
    assert!(wire.len() > text.len() && !wire.windows(8).any(|w| text.windows(8).any(|t| t == w)));
}
