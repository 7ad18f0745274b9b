//! First contact, from both sides. See `transport/local.rs` for the exchange on one host; here is what it means.
//!
//! ```text
//! None ── send ──▶ Dialing ── hello handed over ──▶ Greeted ── end of file, garbage ──▶ Gone
//!   │                 └─ (network) ─▶ Calling ─ answer ─▲  Dialing, Calling ── time out, refused ──▶ Gone
//!   └──── called: hello answered ────────────────────▲
//! ```

use super::peers::{Call, Contact, NotTaken, Peer};
use super::rma::target;
use super::send::open_memory;
use super::{Endpoint, Out};
use crate::error::{Error, Result};
use crate::log::Kind;
use crate::peer::name::{Name, Service};
use crate::protocol::single::{Engines, Worth};
use crate::select::engines::{lent_by, records_by, stream_from};
use crate::select::habit::Habits;
use crate::select::network::link_name;
use crate::shm::bell::{self, Bell};
use crate::shm::segment;
use crate::sys::{host, links, shortage};
use crate::transport::link::{Announce, Link};
use crate::transport::{Greeting, Line, NoCall, Reach, Reply, out_of_step};
use crate::types::{PeerId, ProtoId};
use crate::wire::header::Part;
use crate::wire::hello::{Hello, Refusal};
use crate::wire::version;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;

/// Nanoseconds before the first repetition of a call; doubled up to the second figure.
const FIRST_PAUSE: u64 = 500_000;
const LAST_PAUSE: u64 = 50_000_000;

/// Packets that only wake which are taken from a peer in one look at its sockets.
const PACKETS_A_LOOK: usize = 8;

/// Services that endpoints of this process listen at.
static OWN_SERVICES: Mutex<Vec<u16>> = Mutex::new(Vec::new());

pub(super) fn own_service(service: Option<Service>) -> bool {
    service.is_some_and(|s| OWN_SERVICES.lock().contains(&s.port))
}

pub(super) fn claim_service(service: Service) {
    OWN_SERVICES.lock().push(service.port);
}

pub(super) fn free_service(service: Service) {
    let mut own = OWN_SERVICES.lock();
    if let Some(at) = own.iter().position(|p| *p == service.port) {
        own.swap_remove(at);
    }
}

impl Endpoint {
    /// Settles how the peer is reached; an error if it is not.
    pub(super) fn check_reachable(&mut self, out: &mut Out<'_>, id: PeerId) -> Result<()> {
        let name = self.peers.get(id).name;
        let reach = self.door.as_ref().map_or(Err(Error::BadState), |door| door.reach(&name));
        match reach {
            Ok(reach) => self.settle_reach(id, reach),
            Err(why) => {
                // No call is made, which would tell.
                self.log.insist_once(Kind::Contact, Some(name.ip()), || format!("cannot connect to {name}: {why}"));
                self.depart(out, id, why);
                return Err(why);
            }
        }
        Ok(())
    }

    /// How a peer is reached is known, and with it which table its messages go by. Nothing went to it so far.
    fn settle_reach(&mut self, id: PeerId, reach: Reach) {
        let peer = self.peers.get_mut(id);
        peer.reach = reach;
        if reach == Reach::Network && self.far.len() > 1 {
            let link = peer.name.addresses().first().and_then(|(ip, scope)| links::Link::to(*ip, *scope));
            let link = link.map(|link| link_name(&link, &self.config));
            let found = self.far.iter().position(|table| link.is_some() && table.link == link);
            peer.far = found.unwrap_or(0) as u8;
        }
    }

    /// Makes the link to a peer that was never sent to, and calls it.
    ///
    /// # Errors
    /// Why this peer cannot be reached. Waiting for a peer is no error: what is sent meanwhile stands in the ring.
    #[cold]
    pub(super) fn first_contact(&mut self, out: &mut Out<'_>, id: PeerId) -> Result<()> {
        let own = self.name()?;
        if let Contact::Gone(why) = self.peers.get(id).contact {
            return Err(why);
        }
        if self.peers.get(id).name == own {
            let link = Link::to_self(segment::private(segment::bytes_for(self.config.ring_size)), self.config.eager_window);
            let peer = self.peers.get_mut(id);
            peer.link = Some(link);
            peer.contact = Contact::Greeted;
            peer.pid = std::process::id();
            self.try_memory(id);
            self.start_polling(id);
            return Ok(());
        }
        self.check_reachable(out, id)?;
        self.make_segment(id)?;
        let now = self.clock.now();
        self.start_dialing(id, now);
        self.dial(out, id, now);
        match self.peers.get(id).contact {
            Contact::Gone(why) => Err(why),
            _ => Ok(()),
        }
    }

    fn make_segment(&mut self, id: PeerId) -> Result<()> {
        if self.peers.get(id).link.is_some() {
            return Ok(());
        }
        let reach = self.peers.get(id).reach;
        let shape = self.shape(reach);
        let door = self.door.as_mut().ok_or(Error::BadState)?;
        let (handed, mem) = door.segment(reach, shape).map_err(|why| {
            shortage::tell_of_memory(&self.log, why, || {
                format!("no memory for a ring to a peer ({} bytes, with {} cells behind it)", shape.ring, shape.cells)
            });
            Error::NoResources
        })?;
        let announce = Announce { min: self.config.announce_min as usize, pieces: self.config.announce_pieces as usize };
        let peer = self.peers.get_mut(id);
        peer.segment = Some(handed);
        peer.link = Some(match reach {
            Reach::Host => Link::new(mem, self.config.eager_window)
                .fetching_ahead(self.config.fetch_ahead as u32)
                .handing_on(usize::try_from(self.config.hand_on).unwrap_or(usize::MAX))
                .taking(self.config.takes_lines())
                .copying_by(records_by(&self.config))
                .announcing(announce),
            Reach::Network => Link::new(mem, self.config.tcp_window).far(),
        });
        Ok(())
    }

    /// Calls a peer and says hello; or notes when to try again.
    pub(super) fn dial(&mut self, out: &mut Out<'_>, id: PeerId, now: u64) {
        // It called us, and the answer did not fit then. It goes the same way: only there does the caller know what it answers,
        // for a caller by a contact address does not know yet that it is us.
        if let Some(line) = self.peers.get(id).lines.first().cloned() {
            self.answer(out, id, line, now);
            return;
        }
        let Peer { name, reach, .. } = *self.peers.get(id);
        let Some(door) = &mut self.door else { return };
        let called = door.call(&name, reach).and_then(|(line, pid)| {
            self.peers.get_mut(id).pid = pid;
            self.greet(id, &*line).map(|()| line)
        });
        match called {
            Ok(line) => {
                self.keep_line(id, &line);
                match (reach, self.peers.get(id).contact) {
                    (Reach::Network, Contact::Dialing { deadline, .. }) => {
                        let deadline = if name.is_contact() { deadline } else { u64::MAX };
                        self.peers.get_mut(id).contact = Contact::Calling { deadline };
                        self.poll.dialing.push(id);
                        self.poll.network = true;
                        self.complete_waiting(out, id);
                    }
                    _ => self.greeted(out, id, line),
                }
            }
            Err(NoCall::Later) => self.dial_later(out, id, now),
            Err(NoCall::Soon) => self.dial_soon(out, id, now),
            Err(NoCall::Never(why)) if self.says_nothing(id, why) => self.dial_later(out, id, now),
            Err(NoCall::Never(why)) => self.depart(out, id, why),
        }
    }

    /// Answers a call; or notes when to try again.
    fn answer(&mut self, out: &mut Out<'_>, id: PeerId, line: Arc<dyn Line>, now: u64) {
        match self.greet(id, &*line) {
            Ok(()) => self.greeted(out, id, line),
            Err(NoCall::Later | NoCall::Soon) => self.dial_later(out, id, now),
            Err(NoCall::Never(_)) => {
                // It is gone already, but what it left in its ring arrives.
                self.peers.get_mut(id).contact = Contact::Greeted;
                self.poll.ending.push(id);
            }
        }
    }

    /// A call is under way: looks at it again at the next look at the sockets.
    fn dial_soon(&mut self, out: &mut Out<'_>, id: PeerId, now: u64) {
        let Some(pause) = self.goes_on_dialing(out, id, now) else { return };
        self.call_at(id, now, pause);
        if !self.poll.dialing.contains(&id) {
            self.poll.dialing.push(id);
        }
        self.report.rouse();
    }

    /// The pause before the next look at a call; `None`: its time is up.
    fn goes_on_dialing(&mut self, out: &mut Out<'_>, id: PeerId, now: u64) -> Option<u64> {
        let Peer { name, contact: Contact::Dialing { deadline, pause, .. }, .. } = *self.peers.get(id) else { return None };
        if now < deadline || self.grants_time(id, now) {
            return Some(pause);
        }
        if let Some(door) = &mut self.door {
            door.give_up(&name);
        }
        self.depart(out, id, Error::TimedOut);
        None
    }

    fn dial_later(&mut self, out: &mut Out<'_>, id: PeerId, now: u64) {
        let Some(pause) = self.goes_on_dialing(out, id, now) else { return };
        // Jitter: many that wait for one listener must not knock in step.
        let next = now + out_of_step(pause, self.venue.random());
        self.call_at(id, next, (pause * 2).min(LAST_PAUSE));
        if !self.poll.dialing.contains(&id) {
            self.poll.dialing.push(id);
        }
        self.report.rouse();
    }

    /// Sets when a peer is called again, and the pause after that.
    fn call_at(&mut self, id: PeerId, at: u64, after: u64) {
        if let Contact::Dialing { next, pause, .. } = &mut self.peers.get_mut(id).contact {
            (*next, *pause) = (at, after);
        }
    }

    /// Hands our segment and bell over, with our name.
    fn greet(&mut self, id: PeerId, line: &dyn Line) -> core::result::Result<(), NoCall> {
        let own = self.name().map_err(NoCall::Never)?;
        let cores = self.crowd.own_cores();
        self.own_bell().map_err(NoCall::Never)?;
        let peer = self.peers.get(id);
        let (Some(link), Some(segment), Some(bell)) = (&peer.link, &peer.segment, &self.bell) else {
            return Err(NoCall::Never(Error::NoResources));
        };
        let bytes = link.mine().bytes() as u32;
        let hello = Hello::new(own.to_bytes(), peer.name.to_bytes(), bytes, id.0 % bell::SLOTS, cores);
        line.greet(&hello, segment, &bell.handed)
    }

    /// Watches a connection of a peer, and wakes the peer by it.
    fn keep_line(&mut self, id: PeerId, line: &Arc<dyn Line>) {
        line.watch(id);
        let peer = self.peers.get_mut(id);
        // To another host only the line that carries our ring does.
        if let Some(link) = &mut peer.link
            && peer.reach == Reach::Host
        {
            link.set_waker(Some(line.clone()));
        }
        peer.lines.push(line.clone());
    }

    /// The peer has our segment, or `line` carries it there: what waited for that is complete.
    fn greeted(&mut self, out: &mut Out<'_>, id: PeerId, line: Arc<dyn Line>) {
        let peer = self.peers.get_mut(id);
        if let Some(link) = &mut peer.link
            && peer.reach == Reach::Network
        {
            link.set_waker(Some(line.clone()));
            link.set_away(line.in_place());
        }
        self.push(out, id);
        let peer = self.peers.get_mut(id);
        peer.segment = None;
        peer.contact = Contact::Greeted;
        self.complete_waiting(out, id);
        self.stats.peers += 1;
        let peer = self.peers.get(id);
        self.log.info(|| format!("connected to {} (process {})", peer.name, peer.pid));
    }

    /// Completes the sends that waited for first contact.
    fn complete_waiting(&mut self, out: &mut Out<'_>, id: PeerId) {
        for req in std::mem::take(&mut self.peers.get_mut(id).await_contact) {
            self.report.sent(out, &req);
        }
    }

    /// Somebody called.
    pub(super) fn called(&mut self, out: &mut Out<'_>, line: Arc<dyn Line>, pid: u32, greeting: &Greeting) {
        let (Ok(from), Ok(to)) = (Name::from_bytes(&greeting.hello.from), Name::from_bytes(&greeting.hello.to)) else {
            line.turn_away(Refusal::Malformed);
            return;
        };
        let Ok(own) = self.name() else { return };
        let meant = to.is_contact() || to.identity() == own.identity();
        if !meant || from.is_contact() {
            self.log.info(|| format!("process {} looked for {to}, which is not {own}", pid));
            line.turn_away(if meant { Refusal::Malformed } else { Refusal::WrongEndpoint });
            return;
        }
        let addresses = self.av.as_ref().map_or(0, |av| av.vector().len());
        let call = Call { name: from, pid, by_contact: to.is_contact() };
        if line.reach() == Reach::Network && self.peers.crossed_before(&own, &call) {
            line.turn_away(Refusal::Crossed);
            return;
        }
        let id = match self.peers.caller(call, addresses, self.config.fragment as usize) {
            Ok(id) => id,
            Err(NotTaken::Impostor) => {
                self.complain(|| format!("{from} (process {pid}) calls again, or is not who it says"));
                line.turn_away(Refusal::Malformed);
                return;
            }
            Err(NotTaken::TooMany) => {
                self.complain(|| {
                    format!(
                        "{from} (process {pid}) is not taken: too many have called whose address nobody here has; \
                         a job's key (FI_RUSTMX_AUTH_KEY) keeps strangers out"
                    )
                });
                line.turn_away(Refusal::NoResources);
                return;
            }
        };
        let peer = self.peers.get_mut(id);
        peer.pid = pid;
        if peer.link.is_none() {
            self.settle_reach(id, line.reach());
        } else if peer.reach != line.reach() {
            self.complain(|| {
                format!("{from} calls by another way than it is called; FI_RUSTMX_SHM must be the same for all ranks")
            });
            line.turn_away(Refusal::Malformed);
            return;
        }
        if self.crosses(id, &own, &from) {
            line.turn_away(Refusal::Crossed);
            return;
        }
        if let Err(why) = self.make_segment(id).and_then(|()| self.attach(id, greeting, &line)) {
            self.log.warn(|| format!("cannot connect to {from} (process {}): {why}", pid));
            line.turn_away(Refusal::NoResources);
            self.depart(out, id, why);
            return;
        }
        self.keep_line(id, &line);
        // Else both called at once: our call brought our segment, theirs brought theirs.
        if self.peers.get(id).contact != Contact::Greeted {
            let now = self.clock.now();
            self.start_dialing(id, now);
            self.answer(out, id, line, now);
        }
    }

    /// A warning that others can cause at will.
    pub(super) fn complain(&mut self, text: impl FnOnce() -> String) {
        let now = self.clock.now();
        self.complaints.warn(&self.log, now, text);
    }

    /// The same, of a peer that was lost or refused because of `why`. What ranks of a job must set alike is told also where the log is not shown, for the job
    /// fails by it and MPIs do not say why; once of each kind, whoever causes it.
    pub(super) fn complain_of(&mut self, why: Option<Error>, text: impl FnOnce() -> String) {
        match why {
            Some(why) if why.is_of_setup() && !self.insisted.contains(&why) => {
                self.insisted.push(why);
                self.log.insist(text);
            }
            _ => self.complain(text),
        }
    }

    /// Both called at once over the network, and one call is enough. Whether it is ours; else ours is given up.
    fn crosses(&mut self, id: PeerId, own: &Name, from: &Name) -> bool {
        let peer = self.peers.get_mut(id);
        if !matches!(peer.contact, Contact::Calling { .. }) || peer.name.is_contact() {
            return false;
        }
        let ours = Name::call_counts(&own.to_bytes(), &from.to_bytes());
        if !ours {
            peer.hang_up_all();
        }
        ours
    }

    /// Our call was given up: for the peer's, which is on its way, or for one to another of its addresses.
    fn call_again(&mut self, out: &mut Out<'_>, id: PeerId, at: usize) {
        let peer = self.peers.get_mut(id);
        peer.hang_up(at);
        if matches!(peer.contact, Contact::Calling { .. }) {
            let now = self.clock.now();
            self.start_dialing(id, now);
            self.dial_later(out, id, now);
        }
    }

    fn start_dialing(&mut self, id: PeerId, now: u64) {
        let deadline = now + self.config.connect_timeout * 1_000_000;
        self.peers.get_mut(id).contact = Contact::Dialing { deadline, next: now, pause: FIRST_PAUSE };
        // What is sent meanwhile may have ended for the application, and leaves when there was an answer.
        self.absence.note();
    }

    /// From now on the peer's memory may be tried.
    fn try_memory(&mut self, id: PeerId) {
        let peer = self.peers.get_mut(id);
        let [kernel, mapped] = [ProtoId::Syscall, ProtoId::Mapped].map(|proto| self.selection.share_borders(proto));
        peer.copies.share_between(&kernel, &mapped);
        let [kernel, mapped] = [ProtoId::Syscall, ProtoId::Mapped].map(|proto| self.selection.forced_borders(proto));
        peer.copies.force_between(&kernel, &mapped);
        let said = self.selection.worth();
        let worth = [0, 1].map(|i| Worth { ns: said.ns[i], fixed: said.fixed[i] });
        peer.copies.set_clock(self.clock.clone(), worth);
        peer.copies.set_inviting(self.config.invite == 0);
        peer.copies.count_uses_by(self.uses.clone());
        peer.copies.copy_by(Engines::new(lent_by(&self.config), stream_from(&self.config)));
        if self.config.cma == 0 {
            peer.copies.allow_kernel();
        }
        peer.habits = Habits::new(self.config.cached_pace);
        let target = target(self.door.as_deref(), peer.pid, &peer.name);
        open_memory(&mut peer.copies, &self.config, &self.crowd, target);
        // Whoever presumes that we have a message in our cache waits for our copy of it, also if no receive does. So it must be sure that we can make one.
        if self.config.cma == 0
            && !self.selection.again().is_empty()
            && let (Some(target), Some(link)) = (target, &peer.link)
        {
            link.tell_reads(target.find().is_ok());
        }
    }

    /// Maps what a peer sent and begins to poll its ring.
    fn attach(&mut self, id: PeerId, greeting: &Greeting, line: &Arc<dyn Line>) -> Result<()> {
        let hello = &greeting.hello;
        let theirs =
            greeting.segment.segment(hello.segment.get() as usize, self.config.opens_rings()).map_err(|_| Error::Corrupt)?;
        let bell = Bell::new(greeting.bell.bell().map_err(|_| Error::Corrupt)?);
        let peer = self.peers.get_mut(id);
        let Some(link) = &mut peer.link else { return Err(Error::BadState) };
        link.attach(theirs, Some((bell, hello.slot.get())));
        line.begin(link.mine());
        if peer.reach == Reach::Network {
            link.set_home(line.clone().in_place());
        } else {
            self.try_memory(id);
        }
        if Name::from_bytes(&hello.from).is_ok_and(|from| from.is_local_to(host::id(), |_| false)) {
            self.crowd.joined(id, hello.cores.map(|w| w.get()));
        }
        self.start_polling(id);
        Ok(())
    }

    /// A connection of a peer has something to say. Whether it was more than that we seemed to sleep.
    pub(super) fn heard_from(&mut self, out: &mut Out<'_>, id: PeerId) -> bool {
        let (mut at, mut packets, mut more) = (0, 0, false);
        while let Some(line) = self.peers.get(id).lines.get(at) {
            match line.hear() {
                Reply::Nothing => at += 1,
                // An honest peer sends one for each of our naps.
                Reply::Wake if packets < PACKETS_A_LOOK => packets += 1,
                Reply::Wake => return more,
                Reply::Greeting(greeting) => {
                    more = true;
                    self.answered(out, id, &greeting, &line.clone());
                }
                Reply::Left(message) => {
                    more = true;
                    if Part::has_name(message) {
                        self.part_left(out, id, message);
                    } else if let Some(req) = self.peers.get_mut(id).streams.left(message) {
                        self.report.sent(out, &req);
                    }
                }
                Reply::Landed(message) => {
                    more = true;
                    let peer = self.peers.get_mut(id);
                    let landed = match &mut peer.link {
                        Some(_) if Part::has_name(message) => {
                            self.part_landed(out, id, message);
                            None
                        }
                        Some(link) => peer.streams.landed(link, &mut self.pool, message),
                        None => None,
                    };
                    if let Some(received) = landed {
                        self.received(out, id, received);
                    }
                    if self.peers.get(id).has_work() {
                        self.push(out, id);
                    }
                }
                // Few at most: who lends too much is not heard any more.
                Reply::Loan(loan, handed) => self.take_loan(out, id, &loan, handed.as_ref()),
                Reply::Crossed | Reply::Elsewhere => self.call_again(out, id, at),
                Reply::Refused(why) => {
                    self.depart(out, id, why);
                    return true;
                }
                Reply::Lost => {
                    let pid = self.peers.get(id).pid;
                    shortage::tell(&self.log, Errno::MFILE, || format!("the memory of process {pid} was not taken"));
                    self.depart(out, id, Error::NoResources);
                    return true;
                }
                Reply::Foreign(theirs) => {
                    let pid = self.peers.get(id).pid;
                    self.complain_of(Some(Error::Version), || {
                        format!("process {pid}, which we called: {}", version::differs(theirs))
                    });
                    self.depart(out, id, Error::Version);
                    return true;
                }
                // By another line may have come what its last records name.
                Reply::Ended => {
                    line.forget();
                    if !self.poll.ending.contains(&id) {
                        self.poll.ending.push(id);
                    }
                    (at, more) = (at + 1, true);
                }
            }
        }
        more
    }

    /// The answer to our call.
    fn answered(&mut self, out: &mut Out<'_>, id: PeerId, greeting: &Greeting, line: &Arc<dyn Line>) {
        let Ok(from) = Name::from_bytes(&greeting.hello.from) else {
            self.depart(out, id, Error::Corrupt);
            return;
        };
        let peer = self.peers.get(id);
        let expected = peer.name.is_contact() || peer.name.identity() == from.identity();
        if from.is_contact() || !expected || peer.link.as_ref().is_none_or(Link::can_receive) {
            self.depart(out, id, Error::Corrupt);
            return;
        }
        if peer.name.is_contact()
            && let Some(other) = self.peers.learn(id, from)
        {
            self.settle(out, id, other);
        }
        match self.attach(id, greeting, line) {
            Ok(()) if matches!(self.peers.get(id).contact, Contact::Calling { .. }) => {
                self.peers.get_mut(id).answered = true;
                self.greeted(out, id, line.clone());
            }
            Ok(()) => {}
            Err(why) => self.depart(out, id, why),
        }
    }
}
