//! Which receives invite their sender to write (`protocol/single/invited.rs`): those that its next message must match.

use super::Endpoint;
use super::lend::ToPeer;
use super::peers::{Contact, Peer, Peers};
use super::recv::RecvArgs;
use crate::matching::PostId;
use crate::request::RecvReq;
use crate::transport::Reach;
use crate::transport::link::Link;
use crate::types::PeerId;

/// Receives that are looked through, at most, for one that a message could match before.
const LOOKS: usize = 16;

impl Endpoint {
    /// A receive that names its source was posted: if its message is worth it, and no other receive can take that, the source is told where it goes.
    #[inline(never)]
    pub(super) fn invite(&mut self, args: &RecvArgs<'_>, source: PeerId, post: PostId) {
        let peer = self.peers.get(source);
        if !peer.copies.hopes() || self.member.is_some() || peer.reach == Reach::Network || peer.contact != Contact::Greeted {
            return;
        }
        let [to] = args.iov else { return };
        let posted = &self.books.matcher(args.tagged).posted;
        if posted.len() > LOOKS {
            return;
        }
        let peers = &self.peers;
        // Who was not heard of yet may turn out to be the same one.
        let unknown = |other| !peers.get(other).link.as_ref().is_some_and(Link::can_receive);
        let first = posted.find_by(|key, _| key.source.is_none_or(|other| other == source || unknown(other)));
        if first != Some(post) {
            return;
        }
        let peer = self.peers.get_mut(source);
        let Some(link) = &peer.link else { return };
        let door = self.door.as_deref_mut();
        let lent = ToPeer { terms: self.terms, door, lines: &peer.lines, handed: &mut peer.handed }.find(args.iov, true);
        let Ok(lent) = lent else { return };
        let ignore = if args.tagged { args.ignore } else { u64::MAX };
        peer.copies.invite(link, (args.tagged, args.tag, ignore), to, lent);
    }
}

/// Whether what peer `id` said may be taken out of its ring: by a second link of somebody who was invited by the first only if no message is on the way there.
#[inline]
pub(super) fn may_be_heard(peers: &mut Peers, id: PeerId) -> bool {
    let &Peer { is_alias, canonical, .. } = peers.get(id);
    if !is_alias {
        return true;
    }
    let peer = peers.get_mut(canonical);
    match &peer.link {
        Some(link) => peer.copies.ends_inviting(link),
        None => true,
    }
}

/// Whether a receive may be taken back: no message that its source was invited to send is on its way.
pub(super) fn may_be_withdrawn(peers: &mut Peers, source: Option<PeerId>, req: &RecvReq) -> bool {
    let Some(source) = source else { return true };
    let peer = peers.get_mut(source);
    match &peer.link {
        Some(link) => peer.copies.withdraw(link, &req.iov),
        None => true,
    }
}
