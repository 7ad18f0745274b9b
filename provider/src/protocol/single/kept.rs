//! Messages that are fetched although no receive waits for them: what would else have been a record is held as a record's payload is, so that its sender waits for a peer that makes
//! progress, and not for one that asks for just this message.

use super::means::{Means, is_fresh};
use super::{Copies, Note, Said};
use crate::mem::engine::Engine;
use crate::mem::pool::Pool;
use crate::mem::remote::NoAccess;
use crate::protocol::{Announced, Delivery, Wire, place_held};
use crate::request::{Envelope, RecvReq};
use crate::transport::link::{Corrupt, Link};

/// Longest message that a receiver keeps if its sender asks for that: what may else be a record.
pub const LONGEST_KEPT: usize = 64 << 10;

impl Copies {
    /// Fetches a message for which no receive waits; `None`: it is too long for that, or cannot be, and stays where it is.
    pub(super) fn fetch_to_keep(
        &mut self,
        link: &mut Link,
        said: &Announced<Said>,
        pool: &mut Pool,
    ) -> Result<Option<Vec<u8>>, Corrupt> {
        let Announced { env, body } = said;
        let total = env.total;
        if total > LONGEST_KEPT || self.kept + total > link.window() || self.rx.contains_key(&body.id) {
            return Ok(None);
        }
        let from = body.pieces(total)?;
        let means = match (self.loans.get(body.lent), self.target.filter(|_| !self.no_read)) {
            (Some(loan), _) if !loan.holds(&from) => return Err(Corrupt),
            (Some(loan), _) => Means::Mapped(loan, Engine::Plain),
            (None, Some(target)) => Means::Kernel(target, is_fresh(self.clock.as_ref(), self.since)),
            (None, None) => return Ok(None),
        };
        let mut bytes = pool.take();
        if total > 0
            && let Err(why) = means.append(&from, total, &mut bytes)
        {
            pool.give(bytes);
            if why != NoAccess::Fault {
                self.no_read = true;
                link.tell_reads(false);
            }
            return Ok(None);
        }
        // Not what it sent (`finish`).
        if !link.is_still_offered() {
            pool.give(bytes);
            return Ok(None);
        }
        let unmapped = body.lent != 0 && self.loans.get(body.lent).is_none();
        self.kept += total;
        self.fetched += total as u64;
        // How long that took, with memory made for it, says nothing of the source.
        self.notes.push_back(Note::Fin(body.id, unmapped, 0));
        self.write_notes(link, None)?;
        Ok(Some(bytes))
    }
}

/// A held message of this kind and the buffer that came at last.
pub(in crate::protocol) fn deliver_kept(wire: &mut Wire<'_>, bytes: Vec<u8>, env: Envelope, req: RecvReq) -> Delivery {
    let received = place_held(&bytes, env, req);
    discard_kept(wire, bytes);
    Delivery::Done(received)
}

/// Drops one.
pub(in crate::protocol) fn discard_kept(wire: &mut Wire<'_>, bytes: Vec<u8>) {
    wire.copies.kept = wire.copies.kept.saturating_sub(bytes.len());
    wire.pool.give(bytes);
}
