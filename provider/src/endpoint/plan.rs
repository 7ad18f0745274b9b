//! How an operation would go, and why: what the select table and the state of a peer say, in words. Starts nothing, costs the data path
//! nothing.

use super::Endpoint;
use super::peers::{Contact, Peer, gone};
use crate::error::{Error, Result};
use crate::types::{Addr, MAX_MSG, ProtoId};
use crate::wire::header::Kind;

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// A message.
    Message,
    /// Bytes read from a peer's memory.
    Read,
    /// Bytes written to a peer's memory.
    Write,
    /// Values combined with a peer's memory.
    Atomic,
}

/// How it would go if it were started now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name of the way: a protocol's, or `direct`, or `one_sided`.
    pub how: &'static str,
    /// The smallest and the largest size for which the table says the same.
    pub sizes: (usize, usize),
    /// Why, in a sentence or two.
    pub why: String,
}

impl Endpoint {
    /// How `len` bytes would go to the peer of a handle.
    ///
    /// # Errors
    /// Why they cannot go there at all.
    pub(crate) fn plan(&mut self, to: Addr, what: Movement, len: usize) -> Result<Plan> {
        self.name()?;
        let av = self.av.as_ref().ok_or(Error::BadState)?;
        let id = self.peers.route(av, to, self.config.fragment as usize)?;
        let peer = self.peers.get(id);
        if let Some(why) = gone(peer) {
            return Err(why);
        }
        if len > MAX_MSG {
            return Err(Error::TooLong);
        }
        Ok(match what {
            Movement::Message => self.plan_message(peer, len),
            Movement::Read | Movement::Write => self.plan_memory(peer, what),
            Movement::Atomic => Plan {
                how: "one_sided",
                sizes: (0, MAX_MSG),
                why: format!("the target's engine carries atomics out when it makes progress{}", state(peer)),
            },
        })
    }

    fn plan_message(&self, peer: &Peer, len: usize) -> Plan {
        let row = self.table(peer).row(len);
        let sizes = (row.from, row.up_to);
        let forced = if row.is_forced() { " (FI_RUSTMX_PROTOCOL)" } else { "" };
        let table = format!("{} to {} bytes go {}{forced}: {}", row.from, row.up_to, row.proto.name(), row.what());
        let credit = peer.link.as_ref().map(|l| l.credit());
        let (how, but) = match credit {
            _ if row.proto == ProtoId::Syscall && peer.copies.is_refused() => {
                let why = peer
                    .refusal
                    .as_deref()
                    .unwrap_or("the kernel lets neither this process nor the peer reach the other's memory");
                (ProtoId::Stream, format!("; but {why}, so this one goes as a stream"))
            }
            _ if row.proto == ProtoId::Eager && peer.link.as_ref().is_some_and(|l| l.max_payload(Kind::Eager) < len) => (
                ProtoId::Stream,
                "; but the ring towards this peer is too short for that (FI_RUSTMX_RING_MEMORY), so this one goes as a stream"
                    .into(),
            ),
            Some(left) if row.proto == ProtoId::Eager && left < len => (
                ProtoId::Stream,
                format!(
                    "; but the receiver may be left only {left} further bytes without a receive (FI_RUSTMX_EAGER_WINDOW), so this \
                     one waits here as a stream"
                ),
            ),
            _ => (row.proto, String::new()),
        };
        Plan { how: how.name(), sizes, why: format!("{table}{but}{}", state(peer)) }
    }

    fn plan_memory(&self, peer: &Peer, what: Movement) -> Plan {
        let engine = if what == Movement::Read { "sends the bytes" } else { "places the bytes" };
        let reason = if self.config.cma != 0 {
            "FI_RUSTMX_CMA says never"
        } else if peer.direct.is_refused() {
            "the kernel does not let this process reach the target's memory"
        } else if peer.one_sided.is_waiting() {
            "earlier operations that the target's engine carries out come first"
        } else if !matches!(peer.contact, Contact::Dialing { .. } | Contact::Greeted) {
            let why = format!("the kernel copies, without the target, if it allows that{}", state(peer));
            return Plan { how: "direct", sizes: (0, MAX_MSG), why };
        } else {
            let why = format!("the kernel copies, without the target{}", state(peer));
            return Plan { how: "direct", sizes: (0, MAX_MSG), why };
        };
        let why = format!("the target's engine {engine} when it makes progress, since {reason}{}", state(peer));
        Plan { how: "one_sided", sizes: (0, MAX_MSG), why }
    }
}

/// What the peer's state adds to the sentence.
fn state(peer: &Peer) -> String {
    let contact = match peer.contact {
        Contact::None => "; nothing went to this peer yet, so it is called first",
        Contact::Dialing { .. } | Contact::Calling { .. } => "; the peer has not answered yet",
        _ => "",
    };
    match peer.backlog.len() {
        0 => contact.into(),
        n => format!("{contact}; {n} earlier messages wait for room in the ring"),
    }
}
