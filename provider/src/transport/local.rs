//! How two endpoints of one host find each other: abstract sockets named after endpoints, credentials checked by the kernel's word,
//! descriptors handed over (`docs/adr/0004-ring.md`, `0005-names.md`).
//!
//! ```text
//! caller                                   listener (may be computing)
//!   connect ─────────────────────────────▶ backlog
//!   check the listener's user
//!   hello + segment + bell ──────────────▶ (stays in the backlog, even if the caller exits)
//!   sends through its segment
//!                                          accept; check the caller's user; map; read
//!          ◀────────────────────────────── hello + segment + bell, or a refusal
//! ```
//! This module moves bytes and descriptors and names what happened; who the peer is and what that means is the endpoint's business.

use super::{Event, Greeting, Handed, Line, NoCall, Reply};
use crate::error::Error;
use crate::log::Log;
use crate::peer::name::Name;
use crate::sys::event::EventFd;
use crate::sys::poller::Poller;
use crate::sys::shortage;
use crate::sys::socket::{self, PeerCred};
use crate::sys::wake::{WAKE, Wake};
use crate::types::PeerId;
use crate::wire::hello::{BadHello, HELLO_LEN, Hello, NAME, Refusal};
use crate::wire::key::Key;
use crate::wire::loan::{LOAN_LEN, Loan};
use crate::wire::version;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use slab::Slab;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Nanoseconds that a caller may take between connecting and saying hello.
const HELLO_PATIENCE: u64 = 5_000_000_000;

const LISTENER: u64 = 0;
const STRANGER: u64 = 1 << 32;
const PEER: u64 = 2 << 32;
const OWN: u64 = 3 << 32;
const OTHER: u64 = 4 << 32;

/// Other pollers of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// That of its connections to other hosts.
    Network = 0,
    /// That of who has called from there, and not said whom.
    Strangers = 1,
}

struct Stranger {
    fd: OwnedFd,
    cred: PeerCred,
    until: u64,
}

/// The sockets of one endpoint: its listener and a poller; two descriptors until somebody talks (the network has a third, and two for each process).
pub struct Local {
    listener: OwnedFd,
    poller: Arc<Poller>,
    strangers: Slab<Stranger>,
    tokens: Vec<u64>,
    /// For a link to ourselves.
    own: Option<Arc<EventFd>>,
    /// Endpoints with another key, or none, are not talked to.
    key: Option<Arc<Key>>,
    /// Something is lacking to take callers, and that was said.
    is_short: bool,
}

impl Local {
    /// Listens at the socket of `name`, for endpoints with this key.
    ///
    /// # Errors
    /// `EADDRINUSE`, and what else the kernel says.
    pub fn open(name: &Name, key: Option<Key>) -> Result<Local, Errno> {
        let listener = socket::listen(&name.socket_name())?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        Ok(Local {
            listener,
            poller: Arc::new(poller),
            strangers: Slab::new(),
            tokens: Vec::new(),
            own: None,
            key: key.map(Arc::new),
            is_short: false,
        })
    }
}

impl Local {
    /// Calls the endpoint that listens as `name`, and checks that it is this user's. Returns its process, too.
    ///
    /// # Errors
    /// [`NoCall`]; nothing happened.
    pub fn call(&mut self, name: &Name, log: &Log) -> Result<(Arc<dyn Line>, u32), NoCall> {
        let (fd, cred) = call(name, log)?;
        Ok((Arc::new(self.socket(fd)), cred.pid.cast_unsigned()))
    }

    fn socket(&self, fd: OwnedFd) -> Socket {
        Socket { fd, poller: self.poller.clone(), key: self.key.clone() }
    }

    /// What wakes this endpoint from inside.
    ///
    /// # Errors
    /// [`Error::NoResources`].
    pub fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error> {
        if self.own.is_none() {
            let event = EventFd::new().map_err(|_| Error::NoResources)?;
            self.poller.add(&event, OWN).map_err(|_| Error::NoResources)?;
            self.own = Some(Arc::new(event));
        }
        let own = self.own.clone().ok_or(Error::NoResources)?;
        Ok(own)
    }

    /// Watches another poller, so that whoever sleeps on this one wakes for it, too.
    pub fn watch(&self, which: Other, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.poller.add(fd, OTHER | which as u64)
    }

    /// Does not watch it any more.
    pub fn forget(&self, other: BorrowedFd<'_>) {
        self.poller.remove(other);
    }

    /// Readable while there is something to be polled for.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Looks once for what there is. Which of the other pollers have something, by their numbers.
    pub fn poll(&mut self, now: u64, events: &mut Vec<Event>) -> [bool; 2] {
        let mut other = [false; 2];
        let mut tokens = std::mem::take(&mut self.tokens);
        self.poller.ready(&mut tokens);
        for &token in &tokens {
            let id = token as u32;
            match token & !0xffff_ffff {
                STRANGER => self.hear(id as usize, events),
                PEER => events.push(Event::Peer(PeerId(id))),
                OWN => {
                    if let Some(own) = &self.own {
                        own.lower();
                    }
                    events.push(Event::Own);
                }
                OTHER => other.iter_mut().skip(id as usize).take(1).for_each(|is| *is = true),
                _ => self.accept_all(now, events),
            }
        }
        self.tokens = tokens;
        if !self.strangers.is_empty() {
            self.strangers.retain(|_, s| s.until > now);
        }
        other
    }
}

impl Local {
    fn accept_all(&mut self, now: u64, events: &mut Vec<Event>) {
        loop {
            let fd = match socket::accept(&self.listener) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(why) => {
                    // It stays in the backlog; say once why nothing happens.
                    if !std::mem::replace(&mut self.is_short, true) {
                        events.push(Event::Lacking("a caller, until that is mended".into(), why));
                    }
                    break;
                }
            };
            self.is_short = false;
            let Ok(cred) = socket::peer_cred(&fd) else { continue };
            if !cred.same_user {
                let who = format!("a connection from process {}, which runs as another user", cred.pid);
                events.push(Event::TurnedAway(who, Some(Error::Permission)));
                continue;
            }
            let entry = self.strangers.vacant_entry();
            let id = entry.key();
            match self.poller.add(&fd, STRANGER | id as u64) {
                Ok(()) => {
                    entry.insert(Stranger { fd, cred, until: now + HELLO_PATIENCE });
                    // Usually the hello is already there.
                    self.hear(id, events);
                }
                Err(why) => events.push(Event::Lacking(format!("process {}", cred.pid), why)),
            }
        }
    }

    fn hear(&mut self, id: usize, events: &mut Vec<Event>) {
        let Some(stranger) = self.strangers.get(id) else { return };
        let heard = match receive_sealed(&stranger.fd, self.key.as_deref()) {
            Reply::Nothing => return,
            other => other,
        };
        let Stranger { fd, cred, .. } = self.strangers.remove(id);
        self.poller.remove(&fd);
        match heard {
            Reply::Greeting(greeting) => {
                events.push(Event::Call { line: Arc::new(self.socket(fd)), pid: cred.pid.cast_unsigned(), greeting });
            }
            Reply::Refused(error) => {
                let why = match error {
                    // What is unknown here is missing there.
                    Error::KeyUnknown => Refusal::KeyMissing,
                    Error::KeyMissing => Refusal::KeyUnknown,
                    Error::KeyDiffers => Refusal::KeyDiffers,
                    _ => Refusal::Malformed,
                };
                turn_away(&fd, why);
                events.push(Event::TurnedAway(format!("process {}: {error}", cred.pid), Some(error)));
            }
            Reply::Lost => {
                turn_away(&fd, Refusal::NoResources);
                events.push(Event::Lacking(format!("process {}, whose memory was not taken", cred.pid), Errno::MFILE));
            }
            Reply::Foreign(theirs) => {
                turn_away(&fd, Refusal::Version);
                let text = format!("process {}: {}", cred.pid, version::differs(theirs));
                events.push(Event::TurnedAway(text, Some(Error::Version)));
            }
            // Nobody wakes, or lends, before it has said hello.
            Reply::Wake | Reply::Loan(..) => turn_away(&fd, Refusal::Malformed),
            Reply::Ended | Reply::Nothing | Reply::Left(_) | Reply::Landed(_) | Reply::Crossed | Reply::Elsewhere => {}
        }
    }
}

/// A connection.
struct Socket {
    fd: OwnedFd,
    /// Of our door.
    poller: Arc<Poller>,
    key: Option<Arc<Key>>,
}

impl Wake for Socket {
    fn wake(&self) {
        let _ = socket::send(&self.fd, &WAKE, &[]);
    }
}

impl Line for Socket {
    fn greet(&self, hello: &Hello, segment: &Handed, bell: &Handed) -> Result<(), NoCall> {
        match (segment, bell) {
            (Handed::Descriptor(segment), Handed::Descriptor(bell)) => {
                greet(&self.fd, &hello.seal(self.key.as_deref()), segment, bell)
            }
            // Memory of this process is nothing to another one.
            _ => Err(NoCall::Never(Error::Unsupported)),
        }
    }

    fn lend(&self, loan: &Loan, memory: &Handed) -> Result<(), NoCall> {
        let Handed::Descriptor(memory) = memory else { return Err(NoCall::Never(Error::Unsupported)) };
        socket::send(&self.fd, loan.as_bytes(), &[memory.as_fd()]).map_err(not_now)
    }

    fn hear(&self) -> Reply {
        receive_sealed(&self.fd, self.key.as_deref())
    }

    fn turn_away(&self, why: Refusal) {
        turn_away(&self.fd, why);
    }

    fn watch(&self, peer: PeerId) {
        // Without it the end of the peer is not noticed; what it sends is.
        let _ = self.poller.add(&self.fd, PEER | u64::from(peer.0));
    }

    fn forget(&self) {
        self.poller.remove(&self.fd);
    }
}

/// Tells a caller why it is not wanted. Best effort: the connection closes anyway.
pub fn turn_away(fd: impl AsFd, why: Refusal) {
    let hello = Hello::new([0; NAME], [0; NAME], 0, 0, [0; 16]).refuse(why);
    let _ = socket::send(fd, hello.as_bytes(), &[]);
}

/// Calls the endpoint that listens as `name`, and checks that it is this user's.
pub fn call(name: &Name, log: &Log) -> Result<(OwnedFd, PeerCred), NoCall> {
    let fd = socket::connect(&name.socket_name()).map_err(|e| match e {
        Errno::AGAIN | Errno::INTR => NoCall::Later,
        // A service may start late; an endpoint that was named has been there, so it is gone.
        Errno::CONNREFUSED if name.is_contact() => NoCall::Later,
        Errno::CONNREFUSED => NoCall::Never(Error::Refused),
        why if shortage::lack(why).is_some() => {
            shortage::tell(log, why, || format!("cannot connect to {name}"));
            NoCall::Never(Error::NoResources)
        }
        Errno::ACCESS | Errno::PERM => NoCall::Never(Error::Permission),
        _ => NoCall::Never(Error::Refused),
    })?;
    let cred = socket::peer_cred(&fd).map_err(|_| NoCall::Never(Error::Refused))?;
    if !cred.same_user {
        return Err(NoCall::Never(Error::Permission));
    }
    Ok((fd, cred))
}

/// Says hello, with our segment and our bell.
pub fn greet(fd: impl AsFd, hello: &Hello, segment: impl AsFd, bell: impl AsFd) -> Result<(), NoCall> {
    socket::send(fd, hello.as_bytes(), &[segment.as_fd(), bell.as_fd()]).map_err(not_now)
}

/// Why something could not be handed over.
fn not_now(error: Errno) -> NoCall {
    match error {
        // Too many descriptors in flight, or no buffer: it passes.
        Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::NOMEM => NoCall::Later,
        _ => NoCall::Never(Error::PeerGone),
    }
}

/// What the peer said on a connection, if it has our key.
fn receive_sealed(fd: impl AsFd, key: Option<&Key>) -> Reply {
    match receive(fd) {
        Reply::Greeting(greeting) => match greeting.hello.check_seal(key) {
            Ok(()) => Reply::Greeting(greeting),
            // We are who refuses.
            Err(Refusal::KeyMissing) => Reply::Refused(Error::KeyUnknown),
            Err(Refusal::KeyUnknown) => Reply::Refused(Error::KeyMissing),
            Err(why) => Reply::Refused(why.error()),
        },
        other => other,
    }
}

/// What the peer said on a connection.
pub fn receive(fd: impl AsFd) -> Reply {
    let mut buf = [0u8; HELLO_LEN + 1];
    let heard = match socket::recv(&fd, &mut buf) {
        // It closed without reading what we sent last. That is told once, and before what it said itself.
        Err(Errno::CONNRESET) => socket::recv(&fd, &mut buf),
        other => other,
    };
    let got = match heard {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Reply::Nothing,
        Err(Errno::MSGSIZE) => return Reply::Refused(Error::Corrupt),
        Err(_) => return Reply::Ended,
    };
    if got.len == 0 {
        return Reply::Ended;
    }
    if buf[..got.len] == WAKE && got.fds.is_empty() {
        return Reply::Wake;
    }
    if got.len == LOAN_LEN {
        let Ok(loan) = Loan::parse(&buf[..got.len]) else { return Reply::Refused(Error::Corrupt) };
        return Reply::Loan(loan, got.fds.into_iter().next().map(Handed::Descriptor));
    }
    match Hello::parse(&buf[..got.len]) {
        Ok(hello) => match <[OwnedFd; 2]>::try_from(got.fds) {
            Ok([segment, bell]) => {
                let (segment, bell) = (Handed::Descriptor(segment), Handed::Descriptor(bell));
                Reply::Greeting(Box::new(Greeting { hello, segment, bell }))
            }
            Err(_) if got.lost => Reply::Lost,
            Err(_) => Reply::Refused(Error::Corrupt),
        },
        Err(BadHello::Version(theirs)) => Reply::Foreign(theirs),
        Err(BadHello::Refused(why)) => Reply::Refused(why.error()),
        Err(BadHello::Malformed) => Reply::Refused(Error::Corrupt),
    }
}
