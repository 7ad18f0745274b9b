//! The peer table of an endpoint, and the routes from address handles to it.
//!
//! A peer is an *identity*, not a handle: two handles of one endpoint lead to one peer, and a peer that calls before it was
//! inserted is the same one afterwards. A contact address becomes a peer of its own until first contact tells who is there; if
//! that is somebody already known, the contact's peer is an *alias*: its link stays, its messages count as the other's (`canonical`).

use super::lend::Handout;
use super::send::Waiting;
use super::tally::Tallies;
use crate::error::{Error, Result};
use crate::peer::av::BoundVector;
use crate::peer::name::{Identity, Name};
use crate::protocol::direct::Direct;
use crate::protocol::one_sided::OneSided;
use crate::protocol::single::Copies;
use crate::protocol::stream::Streams;
use crate::request::SendReq;
use crate::transport::link::Link;
use crate::transport::{Handed, Line, Reach};
use crate::types::{Addr, PeerId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// How far the connection to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    /// Nothing was sent yet.
    None,
    /// Calls are tried again until `deadline`; next at `next`.
    Dialing { deadline: u64, next: u64, pause: u64 },
    /// The peer was called over the network, and our hello is with its kernel. What has no name yet must answer until `deadline`; of others
    /// the connection tells whether they are there, also when they compute.
    Calling { deadline: u64 },
    /// Our segment is in the peer's hands, or in its backlog; over the network, it has said hello.
    Greeted,
    /// It is gone, and why.
    Gone(Error),
}

/// One peer.
pub(super) struct Peer {
    pub name: Name,
    /// The contact address that it was found by.
    found_at: Option<Name>,
    pub pid: u32,
    /// How it is reached; settled at first contact.
    pub reach: Reach,
    /// Of the tables for other hosts, the one of the link by which it is reached.
    pub far: u8,
    pub contact: Contact,
    pub link: Option<Link>,
    /// What hands our segment over, until that is done.
    pub segment: Option<Handed>,
    pub streams: Streams,
    pub copies: Copies,
    /// Messages that wait for room in the ring, in order.
    pub backlog: VecDeque<Waiting>,
    pub one_sided: OneSided,
    pub direct: Direct,
    pub lines: SmallVec<[Arc<dyn Line>; 1]>,
    /// Whose messages these are, as matching sees it.
    pub canonical: PeerId,
    /// Sends of level Transmit that wait for first contact.
    pub await_contact: Vec<SendReq>,
    /// Sends of level Delivery and the position that acknowledges them, in order.
    pub await_ack: VecDeque<(u32, SendReq)>,
    pub in_busy: bool,
    pub in_waiters: bool,
    pub hot: bool,
    pub last_active: u64,
    /// Unexpected messages that came over this link.
    pub held: usize,
    /// What went to it, and how.
    pub tally: Tallies,
    /// Why the kernel does not copy, once it has refused.
    pub refusal: Option<String>,
    /// The memory of ours that it was handed.
    pub handed: Handout,
    /// Its handle, and the vector's epoch for which that holds.
    addr: (u64, Addr),
}

impl Peer {
    fn new(id: PeerId, name: Name, fragment: usize) -> Peer {
        Peer {
            name,
            found_at: name.is_contact().then_some(name),
            pid: 0,
            reach: Reach::Host,
            far: 0,
            contact: Contact::None,
            link: None,
            segment: None,
            streams: Streams::new(fragment),
            copies: Copies::default(),
            backlog: VecDeque::new(),
            one_sided: OneSided::default(),
            direct: Direct::default(),
            lines: SmallVec::new(),
            canonical: id,
            await_contact: Vec::new(),
            await_ack: VecDeque::new(),
            in_busy: false,
            in_waiters: false,
            hot: false,
            last_active: 0,
            held: 0,
            tally: Tallies::default(),
            refusal: None,
            handed: Handout::new(),
            addr: (u64::MAX, Addr::UNSPEC),
        }
    }

    /// Whether the link may be used; if not, there is first contact to be made, or the peer is gone.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.link.is_some() && !matches!(self.contact, Contact::Gone(_))
    }

    /// Whether records wait for room in the ring.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.streams.has_work() || self.copies.has_work() || self.one_sided.has_work() || !self.backlog.is_empty()
    }

    pub fn culprit(&self) -> super::report::Culprit {
        super::report::Culprit { name: Some(self.name), pid: self.pid }
    }
}

const NO_ROUTE: u32 = u32::MAX;

/// Links that one endpoint may have to another: by its name and by its contact address, from both sides, and some to spare.
const MAX_LINKS: usize = 8;

/// All peers of an endpoint.
#[derive(Default)]
pub(super) struct Peers {
    list: Vec<Peer>,
    by_identity: FxHashMap<Identity, PeerId>,
    by_contact: FxHashMap<Name, PeerId>,
    /// From address handle to peer.
    routes: Vec<u32>,
    epoch: u64,
}

impl Peers {
    #[inline]
    pub fn get(&self, id: PeerId) -> &Peer {
        &self.list[id.index()]
    }

    #[inline]
    pub fn get_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.list[id.index()]
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.list.len() as u32).map(PeerId)
    }

    fn add(&mut self, name: Name, fragment: usize) -> PeerId {
        let id = PeerId(self.list.len() as u32);
        self.list.push(Peer::new(id, name, fragment));
        id
    }

    /// The peer with this name, made if it is new.
    pub fn named(&mut self, name: Name, fragment: usize) -> PeerId {
        let known = match name.identity() {
            Some(identity) => self.by_identity.get(&identity).copied(),
            // Who is at a contact may have been replaced: ask again once the last one is gone.
            None => self.by_contact.get(&name).copied().filter(|id| !matches!(self.get(*id).contact, Contact::Gone(_))),
        };
        if let Some(id) = known {
            return id;
        }
        let id = self.add(name, fragment);
        match name.identity() {
            Some(identity) => self.by_identity.insert(identity, id),
            None => self.by_contact.insert(name, id),
        };
        id
    }

    /// The peer for a call from `name`. If its link is taken (it called before, by another address of ours), or may be
    /// (it called by our contact address, so it does not know that we know it), a second one whose messages count as the other's.
    /// `None` if it called too often, or is another process than the one of that name.
    pub fn caller(&mut self, name: Name, pid: u32, by_contact: bool, fragment: usize) -> Option<PeerId> {
        let known = name.identity().and_then(|i| self.by_identity.get(&i).copied());
        let Some(other) = known else { return Some(self.named(name, fragment)) };
        let known_pid = self.get(other).pid;
        if known_pid != 0 && pid != 0 && known_pid != pid {
            return None;
        }
        let taken = self.get(other).link.as_ref().is_some_and(Link::can_receive);
        if !taken && !by_contact {
            return Some(other);
        }
        if self.list.iter().filter(|p| p.canonical == other && p.link.is_some()).count() >= MAX_LINKS {
            return None;
        }
        let id = self.add(name, fragment);
        self.get_mut(id).canonical = other;
        Some(id)
    }

    /// A contact turned out to be `name`. Returns the peer it is an alias of, if that was known before.
    pub fn learn(&mut self, id: PeerId, name: Name) -> Option<PeerId> {
        let identity = name.identity()?;
        self.get_mut(id).name = name;
        // Handles found so far may be out of date.
        self.list.iter_mut().for_each(|p| p.addr = (u64::MAX, Addr::UNSPEC));
        match self.by_identity.get(&identity).copied() {
            Some(other) if other != id => {
                self.get_mut(id).canonical = other;
                Some(other)
            }
            Some(_) => None,
            None => {
                self.by_identity.insert(identity, id);
                None
            }
        }
    }

    /// The peer that a handle leads to.
    #[inline]
    pub fn route(&mut self, av: &BoundVector, addr: Addr, fragment: usize) -> Result<PeerId> {
        if av.epoch() == self.epoch
            && let Ok(at) = usize::try_from(addr.0)
            && let Some(&to) = self.routes.get(at)
            && to != NO_ROUTE
        {
            return Ok(PeerId(to));
        }
        self.find_route(av, addr, fragment)
    }

    #[cold]
    fn find_route(&mut self, av: &BoundVector, addr: Addr, fragment: usize) -> Result<PeerId> {
        let epoch = av.epoch();
        if epoch != self.epoch {
            self.routes.clear();
            self.epoch = epoch;
        }
        let name = av.lookup(addr)?;
        let id = self.named(name, fragment);
        let at = addr.0 as usize;
        if self.routes.len() <= at {
            self.routes.resize(at + 1, NO_ROUTE);
        }
        self.routes[at] = id.0;
        Ok(id)
    }

    /// The peer is gone: who answers at a contact address may be somebody else next time.
    pub fn unroute(&mut self, id: PeerId) {
        self.routes.iter_mut().filter(|r| **r == id.0).for_each(|r| *r = NO_ROUTE);
    }

    /// The handle of a peer, `UNSPEC` if it was not inserted.
    pub fn addr_of(&mut self, av: &BoundVector, id: PeerId) -> Addr {
        let epoch = av.epoch();
        if self.get(id).addr.0 != epoch {
            let by_name = self.get(id).name.identity().and_then(|i| av.find(|n| n.identity() == Some(i)));
            let by_contact = || {
                let mut links = self.list.iter().filter(|p| p.canonical == id);
                links.find_map(|p| p.found_at.and_then(|at| av.find(|n| *n == at)))
            };
            let found = by_name.or_else(by_contact).unwrap_or(Addr::UNSPEC);
            self.get_mut(id).addr = (epoch, found);
        }
        self.get(id).addr.1
    }
}

/// The error of a peer that cannot be used any more.
pub(super) fn gone(peer: &Peer) -> Option<Error> {
    match peer.contact {
        Contact::Gone(why) => Some(why),
        _ => None,
    }
}
