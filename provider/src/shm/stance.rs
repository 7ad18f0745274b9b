//! What a writer must do, after it has published a record, for the reader to notice. One word in the reader's own segment,
//! `stance.hot`, which the writer loads after every record:
//!
//! ```text
//! bit 0       1 = the reader's polls look at the ring; 0 = cold: set your bit in the bell
//! bits 1..64  0 = the reader is awake; else the number of its nap: wake it, once for each number
//! ```
//!
//! **No wake-up is lost.** The reader stores the number of its nap (S1), passes a full fence (S2), looks at the ring (S3), and
//! sleeps if that is empty. The writer publishes its record (W1), passes a full fence (W2), and loads the word (W3). One of the
//! two fences comes first, so either S3 finds the record or W3 finds the nap, and then the writer wakes the reader by a
//! packet that stays in its socket until it is read. A second record for the same nap needs no second packet: the first is either still
//! unread, or the reader is awake and looks at the ring again, under another number, before it sleeps again. The same holds for
//! room in a ring that a sleeping *writer* waits for, with the reader's position in the place of the record.
//!
//! W2 is free: [`light_fence`] only keeps the compiler in order, and S2 is membarrier(2), which makes every thread of every
//! registered process pass a full fence (`sys/membarrier.rs`). Peers that are not registered are not slept on for longer
//! than a millisecond (`endpoint/sleep.rs`). The model below has a fence at W2, which is what membarrier amounts to.

use super::layout::HOT;
use crate::mem::atomic::{Ordering, Words, light_fence};

/// The word of a reader that is awake and polls the ring: nothing to do.
pub const POLLED: u64 = 1;

/// How a reader learns of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stance {
    /// Its polls look at the ring.
    pub hot: bool,
    /// The number of its nap; 0: awake. Wraps after 2^63.
    pub nap: u64,
}

impl Stance {
    /// What a word of a peer's says: any word is one.
    pub fn of(word: u64) -> Stance {
        Stance { hot: word & 1 != 0, nap: word >> 1 }
    }

    /// Shows it to the writer (S1; the fence comes after the last of many).
    pub fn show<M: Words>(self, segment: &M) {
        segment.word(HOT).store(u64::from(self.hot) | self.nap << 1, Ordering::Release);
    }
}

/// The reader's word, after a record was published: W2 and W3. One load.
#[inline(always)]
pub fn look<M: Words>(theirs: &M) -> u64 {
    light_fence(); // W2
    theirs.word(HOT).load(Ordering::Relaxed) // W3
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::shm::layout::LINE_WORDS;
    use crate::shm::ring::{Consumer, Peeked, Producer};
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::sync::{Arc, Condvar, Mutex};

    const LINES: u32 = 4;
    const RECORDS: u64 = 2;

    fn words(n: usize) -> Arc<Vec<AtomicU64>> {
        Arc::new((0..n).map(|_| AtomicU64::new(0)).collect())
    }

    /// The socket: packets unread, and the sleeper's poller.
    type Socket = Arc<(Mutex<u32>, Condvar)>;

    fn write(ring: Arc<Vec<AtomicU64>>, segment: &Arc<Vec<AtomicU64>>, socket: &Socket, look: fn(&Arc<Vec<AtomicU64>>) -> u64) {
        let mut tx = Producer::new(ring, LINES);
        let mut rung = 0;
        for stamp in 1..=RECORDS {
            tx.reserve(1, 0).expect("room");
            tx.publish(1, [stamp << 8 | 2, 0, 0]);
            let Stance { nap, .. } = Stance::of(look(segment));
            if nap != 0 && nap != rung {
                rung = nap;
                *socket.0.lock().expect("socket") += 1;
                socket.1.notify_one();
            }
        }
    }

    fn read(ring: Arc<Vec<AtomicU64>>, segment: &Arc<Vec<AtomicU64>>, socket: &Socket) {
        let mut rx = Consumer::new(ring, LINES);
        let (mut got, mut nap) = (0, 0);
        while got < RECORDS {
            if let Peeked::Record([word, ..]) = rx.peek() {
                got += 1;
                assert_eq!(word, got << 8 | 2);
                rx.release(1);
                continue;
            }
            nap += 1;
            Stance { hot: true, nap }.show(segment); // S1
            fence(Ordering::SeqCst); // S2
            if rx.ready() {
                continue; // S3
            }
            let mut unread = socket.0.lock().expect("socket");
            while *unread == 0 {
                // A lost wake-up is a deadlock here.
                unread = socket.1.wait(unread).expect("socket");
            }
            *unread = 0;
        }
    }

    fn model(look: fn(&Arc<Vec<AtomicU64>>) -> u64) {
        loom::model(move || {
            let (ring, segment) = (words(LINES as usize * LINE_WORDS), words(HOT + 1));
            let socket: Socket = Arc::new((Mutex::new(0), Condvar::new()));
            let theirs = (ring.clone(), segment.clone(), socket.clone());
            let writer = loom::thread::spawn(move || write(theirs.0, &theirs.1, &theirs.2, look));
            read(ring, &segment, &socket);
            writer.join().expect("writer");
        });
    }

    /// Two records to a reader that sleeps whenever it finds nothing: every interleaving ends.
    #[test]
    fn no_wake_up_is_lost() {
        model(look);
    }

    /// The model sees what the fence is for.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn without_the_writers_fence_one_is() {
        model(|segment| segment.word(HOT).load(Ordering::Relaxed));
    }
}
