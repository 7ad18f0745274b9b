//! What the two sides of a link say of messages that they copy from buffer to buffer, in words of their segments beside the rings: who copies which part, and who may.

use super::Link;
use crate::mem::atomic::{Ordering, Words, acquire};
use crate::mem::shared::SharedMem;
use crate::shm::layout::READS;
use crate::shm::split::{self, Share};

impl Link {
    /// The receiver claims the next chunk of a message that both sides copy ([`Share`]).
    pub fn claim_front(&self, share: &mut Share) -> bool {
        self.inbound.as_ref().is_some_and(|i| share.claim_front(&self.mine, &i.theirs))
    }

    /// Where the claims to such messages of the peer's are written: here and there.
    pub fn claim_words(&self) -> Option<(&SharedMem, &SharedMem)> {
        self.inbound.as_ref().map(|i| (&self.mine, &i.theirs))
    }

    /// The sender claims one.
    pub fn claim_back(&self, share: &mut Share) -> bool {
        self.inbound.as_ref().is_some_and(|i| share.claim_back(&self.mine, &i.theirs))
    }

    /// The sender's part of a message is over: it has copied so many chunks of it.
    pub fn end_back(&self, share: &Share, done: u32) {
        share.end_back(done, &self.mine);
    }

    /// The peer is to copy no further chunk to our buffers; [`sender_copies`](Self::sender_copies) says whether it is through with the one it has.
    pub fn forbid_back(&self) {
        split::forbid(&self.mine);
    }

    /// Whether the peer may be copying a chunk to one of our buffers.
    pub fn sender_copies(&self) -> bool {
        self.inbound.as_ref().is_some_and(|i| split::is_copying(&i.theirs))
    }

    /// Whether what was read of the peer's buffers before this call was what it sent. A peer that has closed its endpoint has given up what it had not heard the end of, and its buffers are the
    /// application's again.
    #[inline]
    pub fn is_still_offered(&self) -> bool {
        acquire();
        !self.peer_closed()
    }

    /// The sender has copied what it claimed of a message.
    pub fn tell_copied(&self, share: &Share) {
        share.tell_copied(&self.mine);
    }

    /// Whether the sender has copied all that the receiver has not.
    pub fn sender_copied(&self, share: &Share) -> bool {
        self.inbound.as_ref().is_some_and(|i| share.is_copied(&i.theirs))
    }

    /// Tells the peer whether the kernel lets us read its memory. Until then it does not.
    pub fn tell_reads(&self, yes: bool) {
        self.mine.word(READS).store(u64::from(yes), Ordering::Relaxed);
    }

    /// Whether the peer says that the kernel lets it read ours.
    #[inline]
    pub fn is_read(&self) -> bool {
        self.inbound.as_ref().is_some_and(|inbound| inbound.theirs.word(READS).load(Ordering::Relaxed) == 1)
    }
}
