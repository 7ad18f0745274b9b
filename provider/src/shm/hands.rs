//! Two threads of the receiver on the front of one message that is shared out (`split.rs`): the *owner*, which runs the engine, and a
//! *helper*, which only claims chunks and copies them.
//!
//! ```text
//! owner:   offer ─▶ claim, copy … ─▶ nothing left to claim ─▶ take_back ─▶ completes the message
//! helper:             claim, copy … ───────┘        (not while the helper copies: asked again in the next turn)
//! ```
//! * `claims` is locked for a claim only, some ten nanoseconds: both count on in one [`Share`], and write its word in turn.
//! * `task` says what is to be copied, and is locked by the helper **from before its claim until its chunk is copied**. The owner never waits for
//!   it but in [`Hands::stop`]: as long as it cannot lock it, the message is not complete.
//! * So when [`Hands::take_back`] has the task, every chunk that was claimed is copied, and the helper will touch this message no more:
//!   the application may have its buffer. The locks order the helper's stores before that.

use super::split::Share;
use crate::mem::atomic::{Mutex, Words};

/// The claims of both to one message.
struct Claims {
    share: Share,
    /// The sender has left all chunks before this one, and claims no more.
    end: Option<u32>,
    /// There may be more to claim.
    open: bool,
    /// A chunk was claimed and could not be copied.
    failed: bool,
    /// Bytes that the helper copied.
    helped: u64,
}

/// What became of a message that was worked on by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was claimed; all of it is copied unless it `failed`.
    pub share: Share,
    /// The sender has said where it ended, and nothing is left before that.
    pub ended: bool,
    /// Not all that was claimed is copied.
    pub failed: bool,
    /// Bytes that the helper copied.
    pub helped: u64,
}

/// What the two share. Lives as long as it is wanted, for one message after the other.
pub struct Hands<T> {
    task: Mutex<Option<T>>,
    claims: Mutex<Claims>,
}

impl<T> Default for Hands<T> {
    fn default() -> Hands<T> {
        let claims = Claims { share: Share::new(0, 0), end: None, open: false, failed: false, helped: 0 };
        Hands { task: Mutex::new(None), claims: Mutex::new(claims) }
    }
}

impl<T> Hands<T> {
    /// Owner: begins with a message. `false`: the helper has its hands on something.
    pub fn offer(&self, task: T, share: Share) -> bool {
        let Some(mut held) = self.task.try_lock() else { return false };
        *self.claims.lock() = Claims { share, end: None, open: true, failed: false, helped: 0 };
        *held = Some(task);
        true
    }

    /// Either: claims the next chunk from the front; `mine` and `theirs` as in [`Share::claim_front`]. `None`: there is none at the moment.
    pub fn claim<M: Words>(&self, mine: &M, theirs: &M) -> Option<u32> {
        let Claims { share, end, open, .. } = &mut *self.claims.lock();
        *open = *open
            && match *end {
                None => share.claim_front(mine, theirs),
                Some(end) => share.take_front(end),
            };
        open.then(|| share.claimed() - 1)
    }

    /// Owner: the sender claims no more; the chunks before `end` are this side's. `false`: more was claimed already, so it lies.
    pub fn end_at(&self, end: u32) -> bool {
        let claims = &mut *self.claims.lock();
        let sound = claims.share.claimed() <= end;
        if sound && !claims.failed {
            (claims.end, claims.open) = (Some(end), true);
        }
        sound
    }

    /// Either: a chunk that it claimed cannot be copied. Nothing more is claimed.
    pub fn fail(&self) {
        let claims = &mut *self.claims.lock();
        (claims.open, claims.failed) = (false, true);
    }

    /// Helper: one chunk. `words` are those of a task as in [`claim`](Self::claim), `copy` returns the bytes it copied, or `None` if it could not.
    /// Whether there was one.
    pub fn work<M: Words>(&self, words: impl Fn(&T) -> (&M, &M), copy: impl FnOnce(&T, u32) -> Option<usize>) -> bool {
        let held = self.task.lock();
        let Some(task) = &*held else { return false };
        let (mine, theirs) = words(task);
        let Some(chunk) = self.claim(mine, theirs) else { return false };
        match copy(task, chunk) {
            Some(bytes) => self.claims.lock().helped += bytes as u64,
            None => self.fail(),
        }
        true
    }

    /// Owner, when there is nothing left to claim: ends the helper's part. `None`: it is in the middle of a chunk.
    pub fn take_back(&self) -> Option<Outcome> {
        let mut held = self.task.try_lock()?;
        *held = None;
        let claims = &mut *self.claims.lock();
        claims.open = false;
        Some(Outcome { share: claims.share, ended: claims.end.is_some(), failed: claims.failed, helped: claims.helped })
    }

    /// Owner: ends it whatever is left; waits until the helper is through with its chunk.
    pub fn stop(&self) {
        self.claims.lock().open = false;
        *self.task.lock() = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::shared::{Heap, SharedMem};
    use crate::shm::layout::{CONTROL_LINES, LINE};

    fn control() -> SharedMem {
        SharedMem::new(Heap::new(CONTROL_LINES * LINE))
    }

    #[test]
    fn one_message_after_the_other() {
        let (mine, theirs) = (control(), control());
        let task = || (mine.clone(), theirs.clone());
        let hands = Hands::default();
        let help = |copies: bool| hands.work(|(mine, theirs)| (mine, theirs), |_, _| copies.then_some(10));
        assert!(!help(true), "nothing is offered");
        assert!(hands.offer(task(), Share::new(1, 4)));
        assert_eq!(hands.claim(&mine, &theirs), Some(0));
        assert!(help(true));
        // The sender claims the last one, and says so.
        let mut back = Share::new(1, 4);
        assert!(back.claim_back(&theirs, &mine));
        assert_eq!(hands.claim(&mine, &theirs), Some(2));
        assert!(!help(true) && hands.claim(&mine, &theirs).is_none());
        let outcome = hands.take_back().expect("nobody copies");
        assert_eq!((outcome.share.claimed(), outcome.ended, outcome.failed, outcome.helped), (3, false, false, 10));
        // It leaves all of the next one; the end comes after it was met.
        assert!(hands.offer(task(), Share::new(2, 3)));
        assert!(hands.claim(&mine, &theirs).is_some() && hands.end_at(2) && help(true));
        assert!(!help(true) && !hands.end_at(1), "a lie");
        assert!(hands.end_at(3) && help(true) && !help(true));
        let outcome = hands.take_back().expect("nobody copies");
        assert_eq!((outcome.share.claimed(), outcome.ended, outcome.helped), (3, true, 20));
        // A chunk that cannot be copied.
        assert!(hands.offer(task(), Share::new(3, 3)) && help(false) && !help(true) && hands.claim(&mine, &theirs).is_none());
        assert!(hands.end_at(3) && !help(true), "nothing more of it");
        assert!(hands.take_back().expect("nobody copies").failed && !help(true));
        assert!(hands.offer(task(), Share::new(4, 3)));
        assert!(hands.claim(&mine, &theirs).is_some() && hands.end_at(1), "what is claimed is all of it");
        assert!(!help(true) && hands.take_back().is_some_and(|outcome| outcome.ended));
        assert!(hands.offer(task(), Share::new(5, 3)));
        hands.stop();
        assert!(!help(true) && hands.claim(&mine, &theirs).is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::mem::atomic::Ordering;
    use crate::shm::layout::{CONTROL_LINES, LINE_WORDS};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    type Control = Arc<Vec<AtomicU64>>;

    fn control() -> Control {
        Arc::new((0..CONTROL_LINES * LINE_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Owner and helper, and a sender that copies at most one chunk. Each chunk is copied once, all of it before the owner is through, and
    /// nothing is touched afterwards. `STOPS`: the owner gives the message up instead.
    fn model<const CHUNKS: u32, const STOPS: bool>() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let (receiver, sender) = (control(), control());
            // What lies in the buffer; loom sees to it that its accesses are ordered.
            let buffer: Arc<Vec<loom::cell::UnsafeCell<u32>>> =
                Arc::new((0..CHUNKS).map(|_| loom::cell::UnsafeCell::new(0)).collect());
            let hands = Arc::new(Hands::default());
            let touch = |buffer: &[loom::cell::UnsafeCell<u32>], chunk: u32| {
                buffer[chunk as usize].with_mut(|_| ());
            };
            assert!(hands.offer((receiver.clone(), sender.clone()), Share::new(1, CHUNKS)));
            // What the sender's record says: 1 + the chunks it copied; 0: nothing yet.
            let ends = Arc::new(AtomicU64::new(0));
            let copied: Arc<Vec<AtomicU64>> = Arc::new((0..CHUNKS).map(|_| AtomicU64::new(0)).collect());
            let helper = {
                let (hands, buffer, copied) = (hands.clone(), buffer.clone(), copied.clone());
                loom::thread::spawn(move || {
                    let one = |_: &(Control, Control), chunk| {
                        touch(&buffer, chunk);
                        copied[chunk as usize].fetch_add(1, Ordering::Relaxed);
                        Some(1)
                    };
                    while hands.work(|(mine, theirs)| (mine, theirs), one) {}
                })
            };
            let back = {
                let (receiver, sender, buffer, copied) = (receiver.clone(), sender.clone(), buffer.clone(), copied.clone());
                let ends = ends.clone();
                loom::thread::spawn(move || {
                    let mut share = Share::new(1, CHUNKS);
                    if !STOPS && share.claim_back(&sender, &receiver) {
                        touch(&buffer, CHUNKS - 1);
                        copied[CHUNKS as usize - 1].fetch_add(1, Ordering::Relaxed);
                        share.tell_copied(&sender);
                    }
                    ends.store(u64::from(share.claimed()) + 1, Ordering::Release);
                })
            };
            if STOPS {
                hands.stop();
            } else {
                while let Some(chunk) = hands.claim(&receiver, &sender) {
                    touch(&buffer, chunk);
                    copied[chunk as usize].fetch_add(1, Ordering::Relaxed);
                }
                let outcome = loop {
                    match hands.take_back() {
                        Some(outcome) => break outcome,
                        None => loom::thread::yield_now(),
                    }
                };
                let front = outcome.share.claimed();
                while front < CHUNKS && !outcome.share.is_copied(&sender) {
                    let end = ends.load(Ordering::Acquire);
                    if end > 0 {
                        for chunk in front..CHUNKS + 1 - end as u32 {
                            touch(&buffer, chunk);
                            copied[chunk as usize].fetch_add(1, Ordering::Relaxed);
                        }
                        break;
                    }
                    loom::thread::yield_now();
                }
                assert!(copied.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
            // It is the application's again: who still touched it would race with this.
            (0..CHUNKS).for_each(|chunk| touch(&buffer, chunk));
            helper.join().expect("helper");
            back.join().expect("sender");
        });
    }

    #[test]
    fn two_chunks_and_three_takers() {
        model::<2, false>();
    }

    #[test]
    fn a_message_that_is_given_up() {
        model::<2, true>();
    }
}
