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

use crate::error::Error;
use crate::peer::name::Name;
use crate::sys::event::EventFd;
use crate::sys::poller::Poller;
use crate::sys::socket::{self, PeerCred};
use crate::sys::wake::{WAKE, Waker};
use crate::types::PeerId;
use crate::wire::hello::{BadHello, HELLO_LEN, Hello, NAME, Refusal};
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

/// A hello that came with its descriptors.
pub struct Greeting {
    /// The message.
    pub hello: Hello,
    /// The sender's segment.
    pub segment: OwnedFd,
    /// The sender's bell.
    pub bell: OwnedFd,
}

/// What happened on the sockets.
pub enum Event {
    /// Somebody called.
    Call {
        /// The connection.
        fd: OwnedFd,
        /// Who it is, by the kernel's word.
        cred: PeerCred,
        /// What it said.
        greeting: Box<Greeting>,
    },
    /// A connection of this peer has something to say ([`receive`]).
    Peer(PeerId),
    /// We sent something to ourselves and seemed to sleep.
    Own,
    /// A caller was turned away; for the log.
    TurnedAway(String),
}

/// Why a call did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCall {
    /// Try again in a moment.
    Later,
    /// Never.
    Never(Error),
}

/// What a peer's socket said.
pub enum Reply {
    /// Nothing yet.
    Nothing,
    /// Only that we seemed to sleep.
    Wake,
    /// Its hello.
    Greeting(Box<Greeting>),
    /// It does not want us.
    Refused(Error),
    /// It is gone.
    Ended,
}

struct Stranger {
    fd: OwnedFd,
    cred: PeerCred,
    until: u64,
}

/// The sockets of one endpoint: its listener and a poller; two descriptors until somebody talks.
pub struct Local {
    listener: OwnedFd,
    poller: Poller,
    strangers: Slab<Stranger>,
    tokens: Vec<u64>,
    /// For a link to ourselves.
    own: Option<Arc<EventFd>>,
    short_of_descriptors: bool,
}

impl Local {
    /// Listens at the socket of `name`.
    pub fn open(name: &Name) -> Result<Local, Error> {
        let listener = socket::listen(&name.socket_name()).map_err(|e| match e {
            Errno::ADDRINUSE => Error::AddressInUse,
            _ => Error::NoResources,
        })?;
        let poller = Poller::new().map_err(|_| Error::NoResources)?;
        poller.add(&listener, LISTENER).map_err(|_| Error::NoResources)?;
        Ok(Local { listener, poller, strangers: Slab::new(), tokens: Vec::new(), own: None, short_of_descriptors: false })
    }

    /// Watches a connection of `peer`.
    pub fn watch(&self, fd: impl AsFd, peer: PeerId) -> Result<(), Errno> {
        self.poller.add(fd, PEER | u64::from(peer.0))
    }

    /// Stops watching a connection.
    pub fn forget(&self, fd: impl AsFd) {
        self.poller.remove(fd);
    }

    /// Readable while one of the sockets has something to say.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// What wakes this endpoint from inside.
    pub fn own_waker(&mut self) -> Result<Waker, Error> {
        if self.own.is_none() {
            let event = EventFd::new().map_err(|_| Error::NoResources)?;
            self.poller.add(&event, OWN).map_err(|_| Error::NoResources)?;
            self.own = Some(Arc::new(event));
        }
        self.own.clone().map(Waker::Event).ok_or(Error::NoResources)
    }

    /// Looks at all sockets once, without waiting. `now` in nanoseconds.
    pub fn poll(&mut self, now: u64, events: &mut Vec<Event>) {
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
                _ => self.accept_all(now, events),
            }
        }
        self.tokens = tokens;
        if !self.strangers.is_empty() {
            self.strangers.retain(|_, s| s.until > now);
        }
    }

    fn accept_all(&mut self, now: u64, events: &mut Vec<Event>) {
        loop {
            let fd = match socket::accept(&self.listener) {
                Ok(fd) => fd,
                Err(Errno::MFILE | Errno::NFILE) if !self.short_of_descriptors => {
                    // It stays in the backlog; say once why nothing happens.
                    self.short_of_descriptors = true;
                    let why = "a caller, until a file descriptor is free: this process has none left; raise `ulimit -n`";
                    events.push(Event::TurnedAway(why.into()));
                    break;
                }
                Err(_) => break,
            };
            self.short_of_descriptors = false;
            let Ok(cred) = socket::peer_cred(&fd) else { continue };
            if !cred.same_user {
                events.push(Event::TurnedAway(format!("a connection from process {}, which runs as another user", cred.pid)));
                continue;
            }
            let entry = self.strangers.vacant_entry();
            let id = entry.key();
            if self.poller.add(&fd, STRANGER | id as u64).is_ok() {
                entry.insert(Stranger { fd, cred, until: now + HELLO_PATIENCE });
                // Usually the hello is already there.
                self.hear(id, events);
            }
        }
    }

    fn hear(&mut self, id: usize, events: &mut Vec<Event>) {
        let Some(stranger) = self.strangers.get(id) else { return };
        let heard = match receive(&stranger.fd) {
            Reply::Nothing => return,
            other => other,
        };
        let Stranger { fd, cred, .. } = self.strangers.remove(id);
        self.poller.remove(&fd);
        match heard {
            Reply::Greeting(greeting) => events.push(Event::Call { fd, cred, greeting }),
            Reply::Refused(error) => {
                let why = match error {
                    Error::Version => Refusal::Version,
                    Error::NoResources => Refusal::NoResources,
                    _ => Refusal::Malformed,
                };
                turn_away(&fd, why);
                events.push(Event::TurnedAway(format!("process {}: {error}", cred.pid)));
            }
            // Nobody wakes before it has said hello.
            Reply::Wake => turn_away(&fd, Refusal::Malformed),
            Reply::Ended | Reply::Nothing => {}
        }
    }
}

/// Tells a caller why it is not wanted. Best effort: the connection closes anyway.
pub fn turn_away(fd: impl AsFd, why: Refusal) {
    let hello = Hello::new([0; NAME], [0; NAME], 0, 0, [0; 16]).refuse(why);
    let _ = socket::send(fd, hello.as_bytes(), &[]);
}

/// Calls the endpoint that listens as `name`, and checks that it is this user's.
pub fn call(name: &Name) -> Result<(OwnedFd, PeerCred), NoCall> {
    let fd = socket::connect(&name.socket_name()).map_err(|e| match e {
        Errno::AGAIN | Errno::INTR => NoCall::Later,
        // A service may start late; an endpoint that was named has been there, so it is gone.
        Errno::CONNREFUSED if name.is_contact() => NoCall::Later,
        Errno::CONNREFUSED => NoCall::Never(Error::Refused),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => NoCall::Never(Error::NoResources),
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
    socket::send(fd, hello.as_bytes(), &[segment.as_fd(), bell.as_fd()]).map_err(|e| match e {
        // Too many descriptors in flight, or no buffer: it passes.
        Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::NOMEM => NoCall::Later,
        _ => NoCall::Never(Error::PeerGone),
    })
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
    match Hello::parse(&buf[..got.len]) {
        Ok(hello) => match <[OwnedFd; 2]>::try_from(got.fds) {
            Ok([segment, bell]) => Reply::Greeting(Box::new(Greeting { hello, segment, bell })),
            // The process ran out of descriptors: the kernel dropped them.
            Err(_) => Reply::Refused(Error::NoResources),
        },
        Err(BadHello::Version(_) | BadHello::Refused(Refusal::Version)) => Reply::Refused(Error::Version),
        Err(BadHello::Refused(Refusal::WrongEndpoint)) => Reply::Refused(Error::Refused),
        Err(BadHello::Refused(Refusal::NoResources)) => Reply::Refused(Error::NoResources),
        Err(_) => Reply::Refused(Error::Corrupt),
    }
}
