//! Why things went as they did, for people: what the kernel refused and for which reason.

use super::Endpoint;
use super::rma::target;
use crate::mem::remote;
use crate::types::{PeerId, ProtoId};

impl Endpoint {
    /// What the kernel says now about reading a peer's memory.
    pub(super) fn ask_kernel(&self, id: PeerId) -> String {
        let peer = self.peers.get(id);
        let process = format!("process {}", peer.pid);
        let Some(target) = target(self.door.as_deref(), peer.pid, &peer.name) else {
            return format!("the kernel cannot be asked for the memory of {process}: its number or its table is not known");
        };
        match remote::ask(target.pid, target.table.address) {
            Err(errno) => format!("the kernel does not let this process read the memory of {process} ({})", remote::cause(errno)),
            Ok(()) => format!("the kernel does not let {process} read the memory of this process, nor this process write there"),
        }
    }

    /// Offers came back from a peer: books them, and tells once if the kernel forbids them all.
    #[cold]
    pub(super) fn offers_came_back(&mut self, id: PeerId) {
        let forbidden = self.peers.get_mut(id).tally.take_returned(&self.selection);
        if forbidden && self.peers.get(id).refusal.is_none() {
            let why = self.ask_kernel(id);
            let forced = self.selection.rows().iter().any(|r| r.proto == ProtoId::Syscall && r.is_forced());
            let name = self.peers.get(id).name;
            let text = || format!("messages to {name} go as streams, not by syscall: {why}");
            if forced {
                self.log.warn(|| format!("FI_RUSTMX_PROTOCOL={}: {}", self.config.protocol, text()));
            } else {
                self.log.info(text);
            }
            self.peers.get_mut(id).refusal = Some(why);
        }
    }
}
