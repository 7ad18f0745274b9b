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
use crate::protocol::Announced;
use crate::protocol::direct::Direct;
use crate::protocol::one_sided::OneSided;
use crate::protocol::single::Copies;
use crate::protocol::stream::Streams;
use crate::request::kept::Kept;
use crate::request::{RecvReq, SendReq};
use crate::select::habit::Habits;
use crate::transport::link::Link;
use crate::transport::{Guessed, Handed, Line, Reach};
use crate::types::{Addr, PeerId};
use crate::wire::header::Header;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
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

/// The message at the head of a ring, which is still being written.
pub(super) enum Landing {
    /// A whole one, and its receive.
    Eager { req: RecvReq, said: Announced<()>, header: Header },
    /// The first fragment of a stream, which has its receive.
    Stream { id: u32, header: Header },
    /// A later one of a stream that has one.
    Fragment { header: Header },
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
    /// (Given up before what they may still read out of, below.)
    pub lines: SmallVec<[Arc<dyn Line>; 1]>,
    pub streams: Streams,
    pub copies: Copies,
    /// The message at the head of its ring, if it is still being written and has a receive.
    pub landing: Option<Landing>,
    /// Messages that wait for room in the ring, in order.
    pub backlog: VecDeque<Waiting>,
    /// Of these, and of streams, those whose callers have their buffers back.
    pub kept: Kept,
    pub one_sided: OneSided,
    pub direct: Direct,
    /// Whose messages these are, as matching sees it.
    pub canonical: PeerId,
    /// That is another one.
    pub is_alias: bool,
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
    /// What became of guesses on lines that are hung up.
    guessed: Guessed,
    /// What it told of copies.
    pub habits: Habits,
    /// Why the kernel does not copy, once it has refused.
    pub refusal: Option<String>,
    /// The memory of ours that it was handed.
    pub handed: Handout,
    /// Its handle, and the vector's epoch for which that holds.
    addr: (u64, Addr),
    /// It called, and nobody here has named it.
    uninvited: bool,
    /// It is among those that a receive names and nobody has heard of.
    pub awaited: bool,
    /// It was called for that.
    pub asked: bool,
    /// We called it by the network, and it answered.
    pub answered: bool,
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
            landing: None,
            backlog: VecDeque::new(),
            kept: Kept::default(),
            one_sided: OneSided::default(),
            direct: Direct::default(),
            lines: SmallVec::new(),
            canonical: id,
            is_alias: false,
            await_contact: Vec::new(),
            await_ack: VecDeque::new(),
            in_busy: false,
            in_waiters: false,
            hot: false,
            last_active: 0,
            held: 0,
            tally: Tallies::default(),
            guessed: Guessed::default(),
            // Its pace is known at contact.
            habits: Habits::new(0),
            refusal: None,
            handed: Handout::new(),
            addr: (u64::MAX, Addr::UNSPEC),
            uninvited: false,
            awaited: false,
            asked: false,
            answered: false,
        }
    }

    /// Whether the link may be used; if not, there is first contact to be made, or the peer is gone.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.link.is_some() && !matches!(self.contact, Contact::Gone(_))
    }

    /// Whether a message may go into the ring as soon as there is room, and is out of our hands there.
    #[inline]
    pub fn takes_at_once(&self) -> bool {
        matches!(self.contact, Contact::Greeted) && self.backlog.is_empty()
    }

    /// Hangs up a line.
    pub fn hang_up(&mut self, at: usize) {
        let line = self.lines.remove(at);
        self.guessed = self.guessed.plus(Guessed { paused: 0, ..line.guessed() });
        line.forget();
    }

    /// Hangs up all lines.
    pub fn hang_up_all(&mut self) {
        while !self.lines.is_empty() {
            self.hang_up(0);
        }
    }

    /// What became of guesses where its bytes belong.
    pub fn guessed(&self) -> Guessed {
        self.lines.iter().fold(self.guessed, |sum, line| sum.plus(line.guessed()))
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

/// The next of the sends that wait for their acknowledgement that has it, in order.
#[inline]
pub(super) fn next_acknowledged(await_ack: &mut VecDeque<(u32, SendReq)>, link: &Link) -> Option<SendReq> {
    let (position, _) = await_ack.front()?;
    if link.reached(*position) { await_ack.pop_front().map(|(_, req)| req) } else { None }
}

const NO_ROUTE: u32 = u32::MAX;

/// Links that one endpoint may have to another: by its name and by its contact address, from both sides, and some to spare.
const MAX_LINKS: usize = 8;

/// Peers that nobody here has named, and as many for each address that was named: who calls under ever new names must not fill the memory.
/// (In a job of MPI's few ranks talk to one that does not know their address, and never as many.)
const UNINVITED: usize = 16 << 10;
const FOR_EACH_ADDRESS: usize = 4;

/// Why a caller is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// It called too often, or is another process than the one of that name.
    Impostor,
    /// Too many are here that nobody has named.
    TooMany,
}

/// All peers of an endpoint.
#[derive(Default)]
pub(super) struct Peers {
    list: Vec<Peer>,
    // Whoever calls chooses his name: these maps are keyed.
    by_identity: HashMap<Identity, PeerId>,
    by_contact: HashMap<Name, PeerId>,
    uninvited: usize,
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
    ///
    /// # Errors
    /// [`NotTaken`]. `addresses` are those that were named here.
    pub fn caller(&mut self, call: Call, addresses: usize, fragment: usize) -> core::result::Result<PeerId, NotTaken> {
        let Call { name, pid, by_contact } = call;
        let known = name.identity().and_then(|i| self.by_identity.get(&i).copied());
        let Some(other) = known else {
            if self.uninvited >= UNINVITED + FOR_EACH_ADDRESS * addresses {
                return Err(NotTaken::TooMany);
            }
            let id = self.named(name, fragment);
            self.get_mut(id).uninvited = true;
            self.uninvited += 1;
            return Ok(id);
        };
        let known_pid = self.get(other).pid;
        if known_pid != 0 && pid != 0 && known_pid != pid {
            return Err(NotTaken::Impostor);
        }
        let taken = self.get(other).link.as_ref().is_some_and(Link::can_receive);
        if !taken && !by_contact {
            return Ok(other);
        }
        if self.list.iter().filter(|p| p.canonical == other && p.link.is_some()).count() >= MAX_LINKS {
            return Err(NotTaken::Impostor);
        }
        let id = self.add(name, fragment);
        self.make_alias(id, other);
        Ok(id)
    }

    /// Whether a call by the network crossed ours, which was answered before it was heard: it has been given up by now. `own` is our name.
    pub fn crossed_before(&self, own: &Name, call: &Call) -> bool {
        let known = call.name.identity().and_then(|i| self.by_identity.get(&i)).map(|id| self.get(*id));
        known.is_some_and(|peer| peer.answered && peer.contact == Contact::Greeted)
            && !call.by_contact
            && Name::call_counts(&own.to_bytes(), &call.name.to_bytes())
    }

    fn make_alias(&mut self, id: PeerId, of: PeerId) {
        let peer = self.get_mut(id);
        (peer.canonical, peer.is_alias) = (of, true);
    }

    /// Somebody here has named it.
    fn invite(&mut self, id: PeerId) {
        if std::mem::take(&mut self.get_mut(id).uninvited) {
            self.uninvited -= 1;
        }
    }

    /// A contact turned out to be `name`. Returns the peer it is an alias of, if that was known before.
    pub fn learn(&mut self, id: PeerId, name: Name) -> Option<PeerId> {
        let identity = name.identity()?;
        self.get_mut(id).name = name;
        // Handles found so far may be out of date.
        self.list.iter_mut().for_each(|p| p.addr = (u64::MAX, Addr::UNSPEC));
        match self.by_identity.get(&identity).copied() {
            Some(other) if other != id => {
                self.make_alias(id, other);
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
        match self.known_route(av, addr) {
            Some(id) => Ok(id),
            None => self.find_route(av, addr, fragment),
        }
    }

    /// The peer that a handle leads to, if it led there before.
    #[inline]
    pub fn known_route(&self, av: &BoundVector, addr: Addr) -> Option<PeerId> {
        let at = usize::try_from(addr.0).ok().filter(|_| av.epoch() == self.epoch)?;
        self.routes.get(at).filter(|to| **to != NO_ROUTE).map(|to| PeerId(*to))
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
        self.invite(id);
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

/// Who calls: its name, its process (0: not known), and whether it called by our contact address.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub name: Name,
    pub pid: u32,
    pub by_contact: bool,
}

/// The error of a peer that cannot be used any more.
pub(super) fn gone(peer: &Peer) -> Option<Error> {
    match peer.contact {
        Contact::Gone(why) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::av::AddressVector;

    fn call(nonce: u64) -> Call {
        Call { name: Name::new(nonce, 0, 1, None), pid: 0, by_contact: false }
    }

    #[test]
    fn invented_names_have_an_end_and_named_ones_do_not_count() {
        let mut peers = Peers::default();
        let ids: Vec<_> = (1..=UNINVITED as u64).map(|n| peers.caller(call(n), 0, 256).expect("taken")).collect();
        assert_eq!(peers.caller(call(1 << 40), 0, 256), Err(NotTaken::TooMany));
        assert_eq!(peers.caller(call(7), 0, 256), Ok(ids[6]), "who is here may call again");
        // Who names addresses has as many more.
        let av = Arc::new(AddressVector::new());
        for n in 0..FOR_EACH_ADDRESS as u64 {
            assert!(peers.caller(call((1 << 40) + n), 1, 256).is_ok());
        }
        assert_eq!(peers.caller(call(1 << 41), 1, 256), Err(NotTaken::TooMany));
        // Those that are named are no strangers: each makes room for another one, once.
        let vector = av.bind();
        let addr = av.insert(&call(7).name);
        for _ in 0..2 {
            assert_eq!(peers.route(&vector, addr, 256), Ok(ids[6]));
        }
        assert!(peers.caller(call(1 << 41), 1, 256).is_ok());
        assert_eq!(peers.caller(call(1 << 42), 1, 256), Err(NotTaken::TooMany));
        // Whom we name ourselves counts for nothing, before and after.
        let addr = av.insert(&call(1 << 43).name);
        let id = peers.route(&vector, addr, 256).expect("named");
        assert_eq!(peers.caller(call(1 << 43), 1, 256), Ok(id));
        assert_eq!(peers.uninvited, UNINVITED + FOR_EACH_ADDRESS);
    }
}
