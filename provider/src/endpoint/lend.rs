//! Memory that is lent: which buffers of ours a peer can map, handed over once through its socket; and what peers lend us, mapped once.

use super::peers::Contact;
use super::{Endpoint, Out};
use crate::config::Config;
use crate::error::Error;
use crate::mem::user::UserSeg;
use crate::protocol::Lender;
use crate::protocol::single::Loan;
use crate::transport::{Door, Handed, Lendable, Line};
use crate::types::PeerId;
use crate::wire::loan;
use smallvec::SmallVec;
use std::sync::Arc;

/// How `FI_RUSTMX_LEND` wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terms {
    /// Peers may write there what they send.
    Written,
    /// Peers may only read.
    Read,
    Never,
}

impl Terms {
    pub fn of(config: &Config) -> Terms {
        match config.lend {
            1 => Terms::Read,
            2 => Terms::Never,
            _ => Terms::Written,
        }
    }
}

/// The numbers of memory that a peer was handed.
pub(super) type Handout = SmallVec<[u32; 2]>;

/// Looks at a peer's sockets for one loan, at most: more packets than a socket holds.
const LOOKS: usize = 512;

/// Lends to one peer.
pub(super) struct ToPeer<'a> {
    pub terms: Terms,
    pub door: Option<&'a mut (dyn Door + 'static)>,
    pub lines: &'a [Arc<dyn Line>],
    pub handed: &'a mut Handout,
}

impl Lender for ToPeer<'_> {
    fn lend(&mut self, iov: &[UserSeg]) -> u32 {
        // Without a line the peer is this endpoint itself, or gone.
        let lends = self.terms != Terms::Never && !self.lines.is_empty();
        let (Some(door), true) = (&mut self.door, lends) else { return 0 };
        let mut found: Option<Lendable> = None;
        for segment in iov.iter().filter(|s| !s.is_empty()) {
            found = match found {
                None => door.lendable(segment.address()),
                same => same,
            };
            if !found.is_some_and(|memory| memory.holds(segment.address(), segment.len())) {
                return 0;
            }
        }
        let Some(memory) = found else { return 0 };
        if !self.handed.contains(&memory.number) {
            // The peer would take more for a lie.
            if self.handed.len() == loan::MOST || memory.length > loan::LONGEST {
                return 0;
            }
            let writable = self.terms == Terms::Written;
            let loan = loan::Loan::new(memory.number, memory.base as u64, memory.length, writable);
            let Some(handed) = door.lend(&memory, writable) else { return 0 };
            // Whichever conversation it comes by, the peer listens there before it acts on a record that names it.
            if !self.lines.iter().any(|line| line.lend(&loan, &handed).is_ok()) {
                return 0;
            }
            self.handed.push(memory.number);
        }
        memory.number
    }
}

impl Endpoint {
    /// A peer lends us memory. If it cannot be mapped, the peer hears of that with the first message in it.
    #[cold]
    pub(super) fn take_loan(&mut self, out: &mut Out<'_>, id: PeerId, loan: &loan::Loan, handed: Option<&Handed>) {
        let terms = Terms::of(&self.config);
        let (number, length) = (loan.number.get(), loan.length.get());
        let name = self.peers.get(id).name;
        let copies = &mut self.peers.get_mut(id).copies;
        let writable = loan.is_writable() && terms == Terms::Written;
        let mapped = match usize::try_from(length) {
            _ if terms == Terms::Never => Err("FI_RUSTMX_LEND says never".to_string()),
            Ok(bytes) if copies.may_lend(number, bytes) => match handed {
                Some(handed) => handed.loan(bytes, writable).map_err(|e| e.to_string()),
                None => Err("this process has no file descriptor left; raise `ulimit -n`".into()),
            },
            _ => Err("it lends too much".into()),
        };
        match &mapped {
            Ok(_) => self.log.info(|| format!("mapped {length} bytes of addresses that {name} lends")),
            Err(why) => self.log.info(|| format!("what {name} lends is not mapped: {why}")),
        }
        let loan = mapped.ok().map(|memory| Loan::new(memory, loan.base.get(), writable));
        if !copies.lent(number, loan) {
            self.depart(out, id, Error::Corrupt);
        }
    }

    /// A record names memory of which nothing was heard yet: it was handed over before that record was written, so it is in a socket.
    #[cold]
    pub(super) fn look_for_loan(&mut self, out: &mut Out<'_>, id: PeerId, number: u32) {
        // Many packets that only wake may be before it: a peer that does not know us yet sends one with each record.
        for _ in 0..LOOKS {
            self.heard_from(out, id);
            if self.peers.get(id).copies.knows(number) || matches!(self.peers.get(id).contact, Contact::Gone(_)) {
                return;
            }
        }
        // What the kernel loses of a loan is its descriptor, never the message.
        self.depart(out, id, Error::Corrupt);
    }
}
