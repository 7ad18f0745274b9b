//! Invitations: the receiver of a link shows where its next message may go, and the sender may write a part of it there before it is asked to.
//!
//! ```text
//! line of the receiver  (invitation)  number, and what it says (`wire/invitation.rs`)
//! word of the sender    (taken)       number of the invitation that it has taken up
//! word of the sender    (placed)      number of the one whose part it has written
//! ```
//! Each line lies in the segment of the process that writes it. Numbers are 1, 2, …; 0 is none.
//!
//! **What is read is of one piece**: the number is cleared before the rest is written, and set after it, and who reads looks at it before and afterwards.
//!
//! **Either it is taken up or withdrawn.** The sender stores the number (T1), passes a full fence (T2), and looks whether the invitation still stands (T3). The receiver
//! clears it (C1), passes a full fence (C2), and looks whether it was taken up (C3). One fence comes first, so at least one of them sees what the other one did:
//! the sender takes up nothing that was withdrawn, or the receiver learns that a message is coming. Both may see it; then the sender gives way, and says so.

use super::layout::{INVITATION, PLACED, TAKEN};
use crate::mem::atomic::{Ordering, Words, fence};

/// Words that an invitation says.
pub const SAYS: usize = 6;

/// Receiver: shows an invitation in its segment, in the place of the last one, which was withdrawn, or whose message is here.
pub fn show<M: Words>(mine: &M, number: u64, says: [u64; SAYS]) {
    mine.word(INVITATION).store(0, Ordering::Relaxed);
    fence();
    for (i, word) in says.into_iter().enumerate() {
        mine.word(INVITATION + 1 + i).store(word, Ordering::Relaxed);
    }
    mine.word(INVITATION).store(number, Ordering::Release);
}

/// Receiver: withdraws an invitation. `false`: it is taken up, and its message is on the way.
pub fn withdraw<M: Words>(mine: &M, theirs: &M, number: u64) -> bool {
    mine.word(INVITATION).store(0, Ordering::Relaxed); // C1
    fence(); // C2
    theirs.word(TAKEN).load(Ordering::Relaxed) != number // C3
}

/// Sender: the invitation in the receiver's segment, its number first.
pub fn look<M: Words>(theirs: &M) -> Option<(u64, [u64; SAYS])> {
    let number = theirs.word(INVITATION).load(Ordering::Acquire);
    if number == 0 {
        return None;
    }
    let says = std::array::from_fn(|i| theirs.word(INVITATION + 1 + i).load(Ordering::Acquire));
    (theirs.word(INVITATION).load(Ordering::Relaxed) == number).then_some((number, says))
}

/// Sender: takes an invitation up. Whether it still stood.
pub fn take<M: Words>(mine: &M, theirs: &M, number: u64) -> bool {
    mine.word(TAKEN).store(number, Ordering::Relaxed); // T1
    fence(); // T2
    let stands = theirs.word(INVITATION).load(Ordering::Relaxed) == number; // T3
    if !stands {
        give_back(mine);
    }
    stands
}

/// Sender: has taken up nothing after all.
pub fn give_back<M: Words>(mine: &M) {
    mine.word(TAKEN).store(0, Ordering::Relaxed);
}

/// Sender: its part of the message is there.
pub fn tell_placed<M: Words>(mine: &M, number: u64) {
    mine.word(PLACED).store(number, Ordering::Release);
}

/// Receiver: whether the sender's part is there: it writes one after the other, and may be through with later ones by now.
pub fn is_placed<M: Words>(theirs: &M, number: u64) -> bool {
    theirs.word(PLACED).load(Ordering::Acquire) >= number
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::shm::layout::{CONTROL_LINES, LINE_WORDS};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    fn segment() -> Arc<Vec<AtomicU64>> {
        Arc::new((0..CONTROL_LINES * LINE_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whoever is first: a receive is withdrawn, or its buffer written, and not both.
    #[test]
    fn withdrawn_or_taken_up() {
        loom::model(|| {
            let (receiver, sender) = (segment(), segment());
            let buffer = Arc::new(AtomicU64::new(0));
            show(&receiver, 1, [7; SAYS]);
            let (there, here, written) = (receiver.clone(), sender.clone(), buffer.clone());
            let back = loom::thread::spawn(move || {
                let Some((number, says)) = look(&there) else { return };
                assert_eq!((number, says), (1, [7; SAYS]));
                if take(&here, &there, number) {
                    written.store(1, Ordering::Relaxed);
                    tell_placed(&here, number);
                }
            });
            let withdrawn = withdraw(&receiver, &sender, 1);
            if is_placed(&sender, 1) {
                assert_eq!(buffer.load(Ordering::Relaxed), 1, "what is placed is there");
            }
            back.join().expect("sender");
            assert!(!(withdrawn && buffer.load(Ordering::Relaxed) == 1), "the application's own buffer was written");
        });
    }

    /// What is read while another invitation takes the place of one is of one of them.
    #[test]
    fn of_one_piece() {
        loom::model(|| {
            let receiver = segment();
            show(&receiver, 1, [1; SAYS]);
            let there = receiver.clone();
            let back = loom::thread::spawn(move || {
                if let Some((number, says)) = look(&there) {
                    assert_eq!(says, [number; SAYS]);
                }
            });
            show(&receiver, 2, [2; SAYS]);
            back.join().expect("sender");
        });
    }
}
