//! Two processes share out the chunks of one message: the receiver takes them from the front, the sender from the back, until they
//! meet. Neither waits for the other to begin, and each takes as many as it gets round to.
//!
//! ```text
//! word of the receiver (front)   number of the message (40) | chunks claimed from the front (24)
//! word of the sender   (back)    number of the message (40) | chunks claimed from the back (24)
//! word of the sender   (copied)  number of the message (40) | chunks copied from the back (24)
//! ```
//! Each word lies in the segment of the process that writes it. A chunk is copied only after a claim: write the own word, pass a
//! full fence, read the other's word; the claim holds if both together are no more than there are.
//!
//! **No chunk is copied twice at the same time, none by nobody.** Of two claims to the last chunk left, one fence comes first, so at least
//! one side sees both claims, and does not take it. The sender then ends its part by telling (through the ring) how many chunks
//! it has copied; the receiver, which cannot know whether the sender has seen its claim, waits for that and copies what is left. A
//! sender that never gets round to it claims nothing, and the receiver never meets it.
//!
//! A claim of the sender's that fails, or whose chunk it cannot copy, is taken back, so that its words say at any time whether it may be copying: it has claimed more than it has copied. A receiver
//! that gives its buffers back early (its endpoint closes) writes the last number of all, which lets no claim hold from then on, and waits until the sender is through with the chunk it has.
//!
//! Messages are numbered 1, 2, … in the order in which the receiver offers them for sharing, and either side takes them in that
//! order. A word with a later number means that the other side is through with this message; one with an earlier number that it
//! has not begun.

use super::layout::{BACK, COPIED, FRONT};
use crate::mem::atomic::{Ordering, Words, fence};

/// What the other side's word says of a message.
enum Other {
    /// So many chunks are claimed.
    Claimed(u32),
    /// It is through with it.
    Past,
}

const CHUNK_BITS: u32 = 24;
/// Most chunks of one message.
pub const MAX_CHUNKS: u32 = (1 << CHUNK_BITS) - 1;
/// Last number of a message: years of them.
pub const MAX_NUMBER: u64 = (1 << (64 - CHUNK_BITS)) - 1;

fn word(number: u64, chunks: u32) -> u64 {
    number << CHUNK_BITS | u64::from(chunks)
}

fn read(word: u64, number: u64) -> Other {
    match (word >> CHUNK_BITS).cmp(&number) {
        core::cmp::Ordering::Less => Other::Claimed(0),
        core::cmp::Ordering::Equal => Other::Claimed(word as u32 & MAX_CHUNKS),
        core::cmp::Ordering::Greater => Other::Past,
    }
}

/// One side's share of a message of `chunks` chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    number: u64,
    chunks: u32,
    /// Chunks claimed with success.
    claimed: u32,
}

impl Share {
    /// Of message `number` (at most [`MAX_NUMBER`]) of at most [`MAX_CHUNKS`]; nothing is claimed yet.
    pub fn new(number: u64, chunks: u32) -> Share {
        debug_assert!(number <= MAX_NUMBER && chunks <= MAX_CHUNKS);
        Share { number, chunks, claimed: 0 }
    }

    /// Chunks that this side claimed.
    pub fn claimed(&self) -> u32 {
        self.claimed
    }

    /// Chunks of the message.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The receiver takes the next chunk from the front, where the sender has said that it has left all before chunk `end`.
    pub fn take_front(&mut self, end: u32) -> bool {
        let more = self.claimed < end.min(self.chunks);
        self.claimed += u32::from(more);
        more
    }

    fn claim<M: Words>(&mut self, mine: (&M, usize), theirs: (&M, usize)) -> bool {
        if self.claimed == self.chunks {
            return false;
        }
        mine.0.word(mine.1).store(word(self.number, self.claimed + 1), Ordering::Relaxed);
        fence();
        // A peer may write anything: a number too large is a claim to everything.
        let holds = match read(theirs.0.word(theirs.1).load(Ordering::Relaxed), self.number) {
            Other::Claimed(n) => n <= self.chunks - (self.claimed + 1),
            Other::Past => false,
        };
        self.claimed += u32::from(holds);
        holds
    }

    /// The receiver claims the next chunk from the front. If that fails, the sender must say where it ended. Its own claim stands,
    /// so that the sender sees it.
    pub fn claim_front<M: Words>(&mut self, mine: &M, theirs: &M) -> bool {
        self.claim((mine, FRONT), (theirs, BACK))
    }

    /// The sender claims the next chunk from the back. If that fails, its part is over.
    pub fn claim_back<M: Words>(&mut self, mine: &M, theirs: &M) -> bool {
        self.claim((mine, BACK), (theirs, FRONT))
    }

    /// The sender's part is over, and it has copied so many chunks: what it claimed beyond is not its own.
    pub fn end_back<M: Words>(&self, done: u32, mine: &M) {
        mine.word(BACK).store(word(self.number, done), Ordering::Release);
    }

    /// The sender has copied all that it claimed.
    pub fn tell_copied<M: Words>(&self, mine: &M) {
        mine.word(COPIED).store(word(self.number, self.claimed), Ordering::Release);
    }

    /// The receiver, whose claim failed and who has copied what it claimed: whether the sender has copied all the rest.
    pub fn is_copied<M: Words>(&self, theirs: &M) -> bool {
        match read(theirs.word(COPIED).load(Ordering::Acquire), self.number) {
            // A peer may write anything: what does not add up says nothing, and the receiver waits for the record.
            Other::Claimed(n) => n == self.chunks - self.claimed,
            // The record is in the ring.
            Other::Past => false,
        }
    }
}

/// The receiver: no claim of the sender's to any message holds from now on, and none of its own is made any more. What was claimed before is still copied:
/// [`is_copying`].
pub fn forbid<M: Words>(mine: &M) {
    mine.word(FRONT).store(word(MAX_NUMBER, 0), Ordering::Relaxed);
    fence();
}

/// The receiver, after [`forbid`]: whether the sender may still be copying a chunk.
pub fn is_copying<M: Words>(theirs: &M) -> bool {
    let claimed = theirs.word(BACK).load(Ordering::Acquire);
    claimed & u64::from(MAX_CHUNKS) != 0 && theirs.word(COPIED).load(Ordering::Acquire) < claimed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::shared::{Heap, SharedMem};
    use crate::shm::layout::{CONTROL_LINES, LINE};
    use proptest::prelude::*;

    fn control() -> SharedMem {
        SharedMem::new(Heap::new(CONTROL_LINES * LINE))
    }

    proptest! {
        /// Whoever takes turns in whatever way, all chunks are claimed once or left over at the meeting point.
        #[test]
        fn they_meet(chunks in 1u32..9, turns in proptest::collection::vec(any::<bool>(), 0..20), first in 0u64..1000) {
            let (receiver, sender) = (control(), control());
            for number in [first, first + 1] {
                let (mut front, mut back) = (Share::new(number, chunks), Share::new(number, chunks));
                let (mut open_front, mut open_back) = (true, true);
                for receives in &turns {
                    if *receives {
                        open_front = open_front && front.claim_front(&receiver, &sender);
                    } else {
                        open_back = open_back && back.claim_back(&sender, &receiver);
                    }
                    prop_assert!(front.claimed() + back.claimed() <= chunks);
                }
                while open_front && front.claim_front(&receiver, &sender) {}
                while open_back && back.claim_back(&sender, &receiver) {}
                let left = chunks - front.claimed() - back.claimed();
                prop_assert!(left <= 1, "{} left", left);
            }
        }
    }

    #[test]
    fn later_and_earlier_messages_and_lies() {
        let (receiver, sender) = (control(), control());
        sender.word(BACK).store(word(7, 5), Ordering::Relaxed);
        let front = |number, chunks| Share::new(number, chunks).claim_front(&receiver, &sender);
        assert!(front(8, 5), "the sender has not begun with 8");
        assert!(!front(6, 5), "it is through with 6");
        assert!(front(7, 6), "one of six is left");
        assert!(!front(7, 5), "none of five is");
        sender.word(BACK).store(word(7, MAX_CHUNKS), Ordering::Relaxed);
        assert!(!front(7, 5), "a lie");
        assert!(front(MAX_NUMBER, MAX_CHUNKS));
    }

    #[test]
    fn what_the_sender_has_copied() {
        let (receiver, sender) = (control(), control());
        let (mut front, mut back) = (Share::new(7, 3), Share::new(7, 3));
        assert!(back.claim_back(&sender, &receiver));
        assert!(front.claim_front(&receiver, &sender) && front.claim_front(&receiver, &sender));
        assert!(!front.claim_front(&receiver, &sender) && !front.is_copied(&sender), "it is still copying");
        back.tell_copied(&sender);
        assert!(front.is_copied(&sender));
        for (said, what) in
            [(word(8, 1), "another message"), (word(6, 1), "one before"), (word(7, 0), "too few"), (word(7, 2), "a lie")]
        {
            sender.word(COPIED).store(said, Ordering::Relaxed);
            assert!(!front.is_copied(&sender), "{what}");
        }
        assert!(!back.claim_back(&sender, &receiver), "the receiver's claim stands");
        let mut front = Share::new(8, 3);
        assert_eq!([2, 2, 2, 9, 9].map(|end| front.take_front(end)), [true, true, false, true, false]);
    }

    #[test]
    fn a_receiver_that_gives_its_buffer_back() {
        let (receiver, sender) = (control(), control());
        assert!(!is_copying(&sender), "nothing was claimed");
        let mut back = Share::new(7, 3);
        assert!(back.claim_back(&sender, &receiver) && is_copying(&sender));
        back.tell_copied(&sender);
        assert!(!is_copying(&sender), "between two chunks");
        assert!(back.claim_back(&sender, &receiver));
        forbid(&receiver);
        assert!(is_copying(&sender), "that chunk is its own");
        back.tell_copied(&sender);
        assert!(!is_copying(&sender) && !back.claim_back(&sender, &receiver), "the last chunk is not");
        back.end_back(back.claimed(), &sender);
        assert!(!is_copying(&sender));
        // The next one, which it had heard of before: not even its first.
        let mut back = Share::new(8, 3);
        assert!(!back.claim_back(&sender, &receiver));
        assert!(is_copying(&sender), "as far as words tell");
        back.end_back(0, &sender);
        assert!(!is_copying(&sender));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::shm::layout::{CONTROL_LINES, LINE_WORDS};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// What the sender's record says: 1 + the chunks it copied; 0: it has not ended.
    const NOT_ENDED: u64 = 0;

    fn control() -> Arc<Vec<AtomicU64>> {
        Arc::new((0..CONTROL_LINES * LINE_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// In every interleaving each chunk is copied exactly once, before the receiver calls its message done. With `LEAVES` the sender goes
    /// away after its first chunk, at the latest, and never says where it ended.
    fn model<const MESSAGES: u32, const CHUNKS: u32, const LEAVES: bool>() {
        loom::model(|| {
            let (receiver, sender) = (control(), control());
            let copied: Arc<Vec<AtomicU64>> = Arc::new((0..MESSAGES * CHUNKS).map(|_| AtomicU64::new(0)).collect());
            let ends: Arc<Vec<AtomicU64>> = Arc::new((0..MESSAGES).map(|_| AtomicU64::new(NOT_ENDED)).collect());
            let theirs = (receiver.clone(), sender.clone(), copied.clone(), ends.clone());
            let back = loom::thread::spawn(move || {
                let (receiver, sender, copied, ends) = theirs;
                for number in 0..MESSAGES {
                    let mut share = Share::new(u64::from(number) + 1, CHUNKS);
                    while share.claim_back(&sender, &receiver) {
                        let chunk = number * CHUNKS + CHUNKS - share.claimed();
                        copied[chunk as usize].fetch_add(1, Ordering::Relaxed);
                        share.tell_copied(&sender);
                        if LEAVES {
                            return;
                        }
                    }
                    share.end_back(share.claimed(), &sender);
                    ends[number as usize].store(u64::from(share.claimed()) + 1, Ordering::Release);
                }
            });
            for number in 0..MESSAGES {
                let mut share = Share::new(u64::from(number) + 1, CHUNKS);
                while share.claim_front(&receiver, &sender) {
                    let chunk = number * CHUNKS + share.claimed() - 1;
                    copied[chunk as usize].fetch_add(1, Ordering::Relaxed);
                }
                let front = share.claimed();
                if front < CHUNKS {
                    let end = loop {
                        if share.is_copied(&sender) {
                            break CHUNKS - front;
                        }
                        match ends[number as usize].load(Ordering::Acquire) {
                            NOT_ENDED => loom::thread::yield_now(),
                            end => break end as u32 - 1,
                        }
                    };
                    assert!(front + end <= CHUNKS);
                    for chunk in front..CHUNKS - end {
                        copied[(number * CHUNKS + chunk) as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
                for chunk in 0..CHUNKS {
                    assert_eq!(copied[(number * CHUNKS + chunk) as usize].load(Ordering::Relaxed), 1, "message {number}");
                }
            }
            back.join().expect("sender");
        });
    }

    /// In every interleaving the sender touches nothing of the buffer once a receiver that gives it back has found that it is not copying.
    fn gives_back<const CHUNKS: u32>() {
        loom::model(|| {
            let (receiver, sender) = (control(), control());
            // Loom sees to it that its accesses are ordered.
            let buffer = Arc::new(loom::cell::UnsafeCell::new(()));
            let theirs = (receiver.clone(), sender.clone(), buffer.clone());
            let back = loom::thread::spawn(move || {
                let (receiver, sender, buffer) = theirs;
                let mut share = Share::new(1, CHUNKS);
                while share.claim_back(&sender, &receiver) {
                    buffer.with_mut(|_| ());
                    share.tell_copied(&sender);
                }
                share.end_back(share.claimed(), &sender);
            });
            forbid(&receiver);
            while is_copying(&sender) {
                loom::thread::yield_now();
            }
            buffer.with_mut(|_| ());
            back.join().expect("sender");
        });
    }

    #[test]
    fn a_buffer_of_two_chunks_is_given_back() {
        gives_back::<2>();
    }

    #[test]
    fn two_chunks_of_a_message() {
        model::<1, 2, false>();
    }

    #[test]
    fn two_messages_of_a_chunk() {
        model::<2, 1, false>();
    }

    #[test]
    fn a_sender_that_leaves_after_a_chunk() {
        model::<1, 2, true>();
    }
}
