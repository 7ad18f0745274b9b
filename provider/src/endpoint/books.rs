//! What receives are kept in: those that wait for a message, and messages that wait for a receive. An endpoint has books of its own,
//! or those of a shared receive context are lent to it (`shared.rs`).

use super::recv::{self, Claimed, Multi, Wanted};
use crate::matching::{Posted, Unexpected};
use crate::request::{Aside, Envelope, Held, RecvReq};
use crate::types::{PeerId, UserCtx};
use rustc_hash::FxHashMap;
use slab::Slab;

/// A message that waits for its receive.
pub(super) struct HeldMsg {
    pub env: Envelope,
    pub held: Held,
    /// The peer whose link brought it (not an alias's canonical peer).
    pub via: PeerId,
    /// The endpoint (its `index`) that this is a peer of.
    pub owner: u32,
}

/// Posted receives and unexpected messages of one kind, tagged or untagged.
pub(super) struct Matcher {
    pub posted: Posted<Wanted>,
    pub unexpected: Unexpected<HeldMsg>,
}

impl Matcher {
    fn new() -> Matcher {
        Matcher { posted: Posted::new(), unexpected: Unexpected::new() }
    }
}

/// Everything of one receiver.
pub(super) struct Books {
    pub tagged: Matcher,
    pub untagged: Matcher,
    /// Messages that a peek reserved.
    pub claimed: FxHashMap<UserCtx, Claimed>,
    pub multis: Slab<Multi>,
    /// Smallest rest of a multi-receive buffer that is still used.
    pub min_multi_recv: usize,
}

/// A receive that was taken back.
pub(super) struct Withdrawn {
    pub tagged: bool,
    pub aside: Option<(Aside, bool)>,
    /// It is to be told now; else when nothing comes in to its buffer any more.
    pub at_once: bool,
}

impl Books {
    /// Empty ones.
    pub fn new() -> Books {
        Books {
            tagged: Matcher::new(),
            untagged: Matcher::new(),
            claimed: FxHashMap::default(),
            multis: Slab::new(),
            min_multi_recv: 64,
        }
    }

    pub fn matcher(&mut self, tagged: bool) -> &mut Matcher {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    /// Takes back the oldest posted receive with this context, if it `may` be.
    pub fn withdraw(&mut self, ctx: UserCtx, mut may: impl FnMut(Option<PeerId>, &RecvReq) -> bool) -> Option<Withdrawn> {
        for tagged in [true, false] {
            let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
            let multis = &self.multis;
            let mut source = None;
            let found = matcher.posted.find_by(|key, w| {
                source = key.source;
                match w {
                    Wanted::Once(req) => req.ctx == ctx,
                    Wanted::Multi(at) => multis.get(*at).is_some_and(|m| m.has(ctx)),
                }
            });
            if let Some(post) = found
                && let Some(Wanted::Once(req)) = matcher.posted.get_mut(post)
                && !may(source, req)
            {
                return None;
            }
            match found.and_then(|id| matcher.posted.remove(id)) {
                Some(Wanted::Multi(at)) => {
                    let at_once = recv::cancel_multi(&mut self.multis, at, tagged);
                    return Some(Withdrawn { tagged, aside: None, at_once });
                }
                Some(Wanted::Once(req)) => return Some(Withdrawn { tagged, aside: req.aside(), at_once: true }),
                None => {}
            }
        }
        None
    }

    /// Keeps, of the held messages, those that `stay`; their order stays, too.
    pub fn retain(&mut self, mut stay: impl FnMut(&HeldMsg) -> bool) {
        for matcher in [&mut self.tagged, &mut self.untagged] {
            for msg in matcher.unexpected.drain() {
                if stay(&msg) {
                    // The source is not compared: nothing in shared books names one.
                    matcher.unexpected.push(msg.env.tag, msg.via, msg);
                }
            }
        }
        self.claimed.retain(|_, c| stay(c.message()));
    }

    /// Takes out the messages that came to an endpoint, by its `index`.
    pub fn take_held(&mut self, owner: u32) -> Vec<HeldMsg> {
        let mut taken = Vec::new();
        for matcher in [&mut self.tagged, &mut self.untagged] {
            if matcher.unexpected.is_empty() {
                continue;
            }
            for msg in matcher.unexpected.drain() {
                match msg.owner == owner {
                    true => taken.push(msg),
                    // As in `retain`.
                    false => _ = matcher.unexpected.push(msg.env.tag, msg.via, msg),
                }
            }
        }
        taken.extend(self.claimed.extract_if(|_, c| c.message().owner == owner).map(|(_, c)| c.into_message()));
        taken
    }
}
