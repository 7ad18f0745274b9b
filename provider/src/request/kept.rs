//! What is kept of messages whose callers have taken their buffers back before all of it had left, and how much of that one peer may cause.

use crate::mem::user::{UserSeg, gather_into};
use crate::types::INLINE_MAX;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are kept for one peer in any case; and more by so many, times the root of the milliseconds since that was too little and nothing of it has left.
///
/// A client that is told to come back must get its message away in the end, for it may be the one behind it that the receiver waits for; and one that sends more than a
/// receiver asks for must be slowed down. So the limit grows, and ever more slowly: by some 30 MiB in a second, 250 in a minute.
const KEPT: usize = 16 << 20;
const MORE: usize = 1 << 20;

/// How often a client is told to come back before a copy is made. Mostly there is room soon, and a copy would be one more for nothing: windows of 64 messages of 8 KiB by TCP lost a quarter of their speed. Where nothing of
/// what is kept leaves meanwhile (the receiver computes), half as often each time.
const PATIENCE: u32 = 64;

/// A copy of a message. It counts as kept for as long as there is one.
pub struct Copied {
    bytes: Vec<u8>,
    all: Arc<AtomicUsize>,
}

impl Deref for Copied {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// What is kept for one peer.
pub struct Kept {
    /// All its bytes. (One endpoint counts, under its domain's lock.)
    all: Arc<AtomicUsize>,
    /// When there were to be more than may be, and nothing has left since, in nanoseconds; the bytes there were at the last look.
    full_since: Option<u64>,
    seen: usize,
    /// How often somebody is told to come back now, and was since the last one was admitted; the bytes there were then.
    patience: u32,
    refused: u32,
    then: usize,
    /// Somebody was told to come back since the last question.
    was_refused: Cell<bool>,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept {
            all: Arc::default(),
            full_since: None,
            seen: 0,
            patience: PATIENCE,
            refused: 0,
            then: 0,
            was_refused: Cell::new(false),
        }
    }
}

impl Kept {
    /// Whether a copy of so many bytes is to be kept now. `now` in nanoseconds; `soon`: there may be room for the message itself in a moment.
    pub fn takes(&mut self, len: usize, now: u64, soon: bool) -> bool {
        let takes = if soon && len > INLINE_MAX { self.takes_in_time(len, now) } else { self.admits(len, now) };
        self.was_refused.set(!takes || self.was_refused.get());
        takes
    }

    fn takes_in_time(&mut self, len: usize, now: u64) -> bool {
        self.refused = self.refused.saturating_add(1);
        if self.refused < self.patience || !self.admits(len, now) {
            return false;
        }
        let before = self.bytes();
        self.patience = if before < self.then { PATIENCE } else { (self.patience / 2).max(1) };
        (self.refused, self.then) = (0, before + len);
        true
    }

    /// Whether so many bytes more may be kept.
    fn admits(&mut self, len: usize, now: u64) -> bool {
        let before = self.bytes();
        let all = before.saturating_add(len);
        if all <= KEPT || before < self.seen {
            self.full_since = None;
        }
        let ms = match all <= KEPT {
            true => 0,
            false => now.saturating_sub(*self.full_since.get_or_insert(now)) / 1_000_000,
        };
        let admits = all <= KEPT || all - KEPT <= MORE.saturating_mul(ms.isqrt() as usize);
        self.seen = if admits { all } else { before };
        admits
    }

    /// Keeps the first `len` bytes of a message.
    pub fn copy(&self, iov: &[UserSeg], len: usize) -> Copied {
        let mut bytes = Vec::new();
        gather_into(iov, 0, len, &mut bytes);
        self.all.fetch_add(bytes.len(), Ordering::Relaxed);
        Copied { bytes, all: self.all.clone() }
    }

    fn bytes(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether there is so much that it is not certain when more may be kept.
    pub fn is_full(&self) -> bool {
        self.bytes() >= KEPT
    }

    /// Whether somebody was told to come back since this was asked last.
    pub fn was_refused(&self) -> bool {
        self.was_refused.replace(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::of_slice;

    #[test]
    fn who_comes_back_gets_through_ever_more_slowly() {
        let (mut kept, mut now, mut all) = (Kept::default(), 5_000_000_000, Vec::new());
        let mut buf = vec![7; 1 << 20];
        let iov = [of_slice(&mut buf)];
        let mut waited = Vec::new();
        for _ in 0..KEPT / MORE + 10 {
            let began = now;
            while !kept.admits(MORE, now) {
                now += 1_000_000;
                assert!(now - began < 1_000_000_000, "it does not get through");
            }
            waited.push((now - began) / 1_000_000);
            all.push(kept.copy(&iov, MORE));
        }
        let (free, slow) = waited.split_at(KEPT / MORE);
        assert!(free.iter().all(|ms| *ms == 0));
        assert_eq!(slow[..4], [1, 3, 5, 7], "so many milliseconds squared, less those before");
        assert!(slow.is_sorted() && kept.is_full());
        // As soon as something has left, nothing is owed to who waits.
        all.pop();
        assert!(!kept.admits(MORE, now) && !kept.admits(MORE, now + 99_000_000) && kept.admits(MORE, now + 100_000_000));
        all.truncate(KEPT / MORE - 1);
        assert!(!kept.is_full() && kept.admits(MORE, now) && !kept.admits(2 * MORE, now));
        assert!(all.iter().all(|copy| copy.len() == MORE && copy.iter().all(|byte| *byte == 7)));
        drop(all);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_copy_is_made_where_there_is_no_room_soon() {
        let mut kept = Kept::default();
        let mut buf = vec![7; 1000];
        let iov = [of_slice(&mut buf)];
        let mut all = Vec::new();
        let tries = |kept: &mut Kept, all: &mut Vec<Copied>| {
            let tries = (1..).find(|_| kept.takes(1000, 0, true)).expect("it is taken");
            all.push(kept.copy(&iov, 1000));
            tries
        };
        // Nothing leaves.
        assert_eq!([(); 9].map(|()| tries(&mut kept, &mut all)), [64, 32, 16, 8, 4, 2, 1, 1, 1]);
        assert!(kept.was_refused() && !kept.was_refused());
        assert!(kept.takes(INLINE_MAX, 0, true) && kept.takes(0, 0, true), "what is short is copied at once");
        assert!(kept.takes(1000, 0, false), "and what will have no room");
        assert!(!kept.was_refused());
        // Something has left: one is taken at once still.
        all.truncate(5);
        assert_eq!([(); 4].map(|()| tries(&mut kept, &mut all)), [1, 64, 32, 16]);
        // All of it has, each time.
        for _ in 0..3 {
            all.clear();
            tries(&mut kept, &mut all);
        }
        all.clear();
        assert_eq!(tries(&mut kept, &mut all), 64);
    }

    #[test]
    fn nothing_is_too_much_to_count() {
        let mut kept = Kept::default();
        assert!(kept.is_empty() && !kept.admits(usize::MAX, 0) && !kept.admits(usize::MAX, u64::MAX));
        assert!(kept.admits(KEPT, 0) && !kept.admits(KEPT + 1, 0));
    }
}
