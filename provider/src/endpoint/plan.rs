//! How an operation would go, and why: what the select table and the state of a peer say, in words. Starts nothing, costs the data path
//! nothing.

use super::Endpoint;
use super::history::window;
use super::peers::{Contact, Peer, gone};
use super::rma::not_direct;
use super::tally::Why;
use crate::error::{Error, Result};
use crate::select::model::{Mover, Operation};
use crate::transport::Reach;
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
            Movement::Read => self.plan_memory(peer, Operation::Read, len),
            Movement::Write => self.plan_memory(peer, Operation::Write, len),
            Movement::Atomic => self.plan_memory(peer, Operation::Atomic, len),
        })
    }

    fn plan_message(&self, peer: &Peer, len: usize) -> Plan {
        let row = self.table(peer).row(len);
        let sizes = (row.from, row.up_to);
        let forced = if row.is_forced() { " (FI_RUSTMX_PROTOCOL)" } else { "" };
        let far = peer.reach == Reach::Network;
        let what = if far { row.what_far(self.config.tcp_window) } else { row.what().into() };
        let table = format!("{} to {} bytes go {}{forced}: {what}", row.from, row.up_to, row.proto.name());
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
                    "; but the receiver may be left only {left} further bytes without a receive ({}), so this one {} as a stream",
                    window(peer),
                    if far { "goes" } else { "waits here" },
                ),
            ),
            _ => (row.proto, String::new()),
        };
        Plan { how: how.name(), sizes, why: format!("{table}{but}{}", state(peer)) }
    }

    fn plan_memory(&self, peer: &Peer, operation: Operation, len: usize) -> Plan {
        let deeds = self.table(peer).deeds();
        let choice = deeds.choose(operation, len);
        let row = deeds.rows()[usize::from(choice.row)];
        let refused = if choice.mover == Mover::Direct { not_direct(peer) } else { None };
        let engine = match operation {
            Operation::Read => "sends the bytes",
            Operation::Write => "places the bytes",
            _ => "carries atomics out",
        };
        let by_target = |since: &str| (Mover::Target, format!("the target's engine {engine} when it makes progress{since}"));
        let (mover, why) = match refused {
            Some(Why::Kernel) => by_target(", since the kernel does not let this process reach the target's memory"),
            Some(Why::Order) => by_target(", since earlier operations that the target's engine carries out come first"),
            None if choice.mover == Mover::Direct => (Mover::Direct, "the kernel copies, without the target".to_string()),
            // Nothing went there yet, so the kernel was not asked.
            Some(_) => (Mover::Direct, "the kernel copies, without the target, if it allows that".to_string()),
            None if operation == Operation::Atomic => by_target(""),
            None if self.config.cma != 0 => by_target(", since FI_RUSTMX_CMA says never"),
            None => by_target(", since the peer is reached by the network"),
        };
        Plan { how: mover.name(), sizes: (row.from, row.up_to), why: format!("{why}{}", state(peer)) }
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
