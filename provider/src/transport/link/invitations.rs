//! A link's invitations: where a next message may go, and how many messages were said and heard, by which both sides know which one that is.

use super::Link;
use crate::shm::invite;
use crate::wire::invitation::Invitation;

impl Link {
    /// Messages of the peer's that have left the ring so far.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// So many more have.
    #[inline(always)]
    pub fn count_heard(&mut self, messages: usize) {
        self.heard += messages as u64;
    }

    /// Shows the peer where its next message may go; `number` is one more than the last one's.
    pub fn invite(&self, number: u64, invitation: &Invitation) {
        invite::show(&self.mine, number, invitation.emit());
    }

    /// Withdraws that. `false`: a message is on its way there.
    pub fn withdraw(&self, number: u64) -> bool {
        self.inbound.as_ref().is_none_or(|i| invite::withdraw(&self.mine, &i.theirs, number))
    }

    /// What the peer invites the next message to, with its number, unless messages are on their way to it.
    pub fn invitation(&self) -> Option<(u64, Invitation)> {
        let (number, says) = invite::look(&self.inbound.as_ref()?.theirs)?;
        Some((number, Invitation::parse(says))).filter(|(_, invitation)| invitation.heard == self.said)
    }

    /// Takes an invitation of the peer's up. Whether it still stood.
    pub fn take_up(&self, number: u64) -> bool {
        self.inbound.as_ref().is_some_and(|i| invite::take(&self.mine, &i.theirs, number))
    }

    /// Has taken up nothing after all.
    pub fn give_back(&self) {
        invite::give_back(&self.mine);
    }

    /// Our part of the message that this invitation was taken up for is there.
    pub fn tell_placed(&self, number: u64) {
        invite::tell_placed(&self.mine, number);
    }

    /// Whether the peer's part is.
    pub fn is_placed(&self, number: u64) -> bool {
        self.inbound.as_ref().is_some_and(|i| invite::is_placed(&i.theirs, number))
    }
}
