//! Why things went as they did, for people: what the kernel refused and for which reason, and what was forced and cannot be.

use super::Endpoint;
use super::circumstances::lending;
use super::rma::target;
use crate::cache::own;
use crate::mem::remote::{self, NoAccess};
use crate::select::Row;
use crate::sys::heap;
use crate::sys::refusal::{self, Call};
use crate::types::{PeerId, ProtoId};
use std::sync::Once;

impl Endpoint {
    /// What the kernel says now about reading a peer's memory.
    pub(super) fn ask_kernel(&self, id: PeerId) -> String {
        let peer = self.peers.get(id);
        let process = format!("process {}", peer.pid);
        let Some(target) = target(self.door.as_deref(), peer.pid, &peer.name) else {
            return format!("the kernel cannot be asked for the memory of {process}: its number or its table is not known");
        };
        let (reads, writes) = (remote::ask(target.pid, target.table.address), remote::ask_to_write(target.pid));
        let why = |errno, call| refusal::to_this_process(target.pid, errno, call);
        match (reads, writes) {
            (Err(errno), _) => {
                format!("the kernel does not let this process read the memory of {process} ({})", why(errno, Call::Read))
            }
            (_, Err(errno)) => {
                format!("the kernel does not let this process write to the memory of {process} ({})", why(errno, Call::Write))
            }
            _ if target.find() == Err(NoAccess::Gone) => format!(
                "the number of {process} is another one's here: its PID namespace is not this one's (containers of one job need a common one, \
                 as with --pid=host)"
            ),
            _ => {
                let why = refusal::to_process(target.pid);
                format!("the kernel does not let {process} reach the memory of this process ({why})")
            }
        }
    }

    /// Offers came back from a peer: books them, and tells once if the kernel forbids them all; on standard error, if the user forced them.
    #[cold]
    pub(super) fn offers_came_back(&mut self, id: PeerId) {
        let forbidden = self.peers.get_mut(id).tally.take_returned(&self.selection);
        if forbidden && self.peers.get(id).refusal.is_none() {
            let why = self.ask_kernel(id);
            let name = self.peers.get(id).name;
            let text = || format!("messages to {name} go as streams, not by syscall: {why}");
            let forced = || format!("FI_RUSTMX_PROTOCOL={}: {}", self.config.protocol, text());
            match self.selection.rows().iter().any(|r| r.proto == ProtoId::Syscall && r.is_forced()) {
                true if self.kernel_told => self.log.warn(forced),
                true => self.log.insist(|| format!("{}; of further peers FI_LOG_LEVEL=warn tells", forced())),
                false => self.log.info(text),
            }
            self.kernel_told = true;
            self.peers.get_mut(id).refusal = Some(why);
        }
    }

    /// What is forced and cannot be in this process, whoever the peers are: messages out of memory that they map, if no memory, or hardly any, can be
    /// lent. Told on standard error by the first endpoint.
    pub(super) fn tell_of_loans(&self) {
        static TOLD: Once = Once::new();
        let forced = |r: &&Row| r.lent && r.is_forced();
        if self.config.shm == 0 || heap::heap().is_some() || !self.selection.rows().iter().any(|r| forced(&r)) {
            return;
        }
        TOLD.call_once(|| {
            let rows = self.selection.rows();
            let sizes = |r: &Row| rows.iter().filter(forced).any(|f| f.from <= r.up_to && r.from <= f.up_to);
            let mut others: Vec<&str> = rows.iter().filter(|r| !r.lent && sizes(r)).map(|r| r.proto.name()).collect();
            others.dedup();
            let (what, rest) = match lending(&self.config) {
                (true, _) => ("only messages in sealed memfds that the program maps go", "all others"),
                _ => ("no message of this process goes", "they go"),
            };
            let why = own::unwatched().map_or(String::new(), |why| format!(", and of other memory {why}"));
            self.log.insist(|| {
                format!(
                    "FI_RUSTMX_PROTOCOL={}: {what} by mapped, {rest} by {}: librustmx_heap.so is not preloaded{why}",
                    self.config.protocol,
                    others.join(", ")
                )
            });
        });
    }
}
