//! What the two sides of a link say of messages that they copy from buffer to buffer, in words of their segments beside the rings: who copies which part, and who may.

use super::Link;
use crate::mem::atomic::{Ordering, Words};
use crate::mem::shared::SharedMem;
use crate::shm::layout::READS;
use crate::shm::split::Share;

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
