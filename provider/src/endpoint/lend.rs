//! Memory that is lent: which buffers of ours a peer can map, handed over once through its socket; and what peers lend us, mapped once.
//!
//! What the program unmaps is not lent any more. The peer hears of that in its ring, behind all records that name it, and unmaps it.

use super::peers::Contact;
use super::tally::Unlent;
use super::{Endpoint, Out};
use crate::cache::attached::{Attached, excess};
use crate::cache::ranges::Budget;
use crate::config::Config;
use crate::error::Error;
use crate::mem::user::UserSeg;
use crate::protocol::Lender;
use crate::protocol::single::{Copies, Lent as Memory};
use crate::transport::link::{Class, Corrupt, Link, NotSent};
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

/// What a peer was handed. It may map all of it.
pub(super) type Handout = SmallVec<[Lent; 2]>;

/// One of these things.
pub(super) struct Lent {
    number: u32,
    /// The peer may write there.
    writable: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Lent,
    /// It is other memory now, if any, and the peer does not know.
    Ended,
    /// It is told so in its ring, before this position. Until it has read that, it may count it among what it was lent.
    Recalled(u32),
}

/// Looks at a peer's sockets for one loan, at most: more packets than a socket holds.
const LOOKS: usize = 512;

/// Lends to one peer.
pub(super) struct ToPeer<'a> {
    pub terms: Terms,
    pub door: Option<&'a mut (dyn Door + 'static)>,
    pub lines: &'a [Arc<dyn Line>],
    pub handed: &'a mut Handout,
}

impl ToPeer<'_> {
    /// The number of the memory in which all of `iov` lies, handed over if it was not yet; `written`: the peer must be able to write there.
    ///
    /// # Errors
    /// Why the peer cannot map it.
    pub fn find(&mut self, iov: &[UserSeg], written: bool) -> Result<u32, Unlent> {
        // Without a line the peer is this endpoint itself, or gone.
        let lends = self.terms != Terms::Never && !self.lines.is_empty();
        let (Some(door), true) = (&mut self.door, lends) else { return Err(Unlent::Itself) };
        let mut found: Option<Lendable> = None;
        for segment in iov.iter().filter(|s| !s.is_empty()) {
            let (address, len) = (segment.address(), segment.len());
            let memory = match found {
                None => door.lendable(address, len).ok_or_else(|| Unlent::Memory(door.why_not_lendable(address)))?,
                Some(same) => same,
            };
            if !memory.holds(address, len) {
                return Err(Unlent::Scattered);
            }
            found = Some(memory);
        }
        let memory = found.ok_or(Unlent::Itself)?;
        let number = memory.number;
        let writable = match self.handed.iter().find(|lent| lent.number == number) {
            Some(lent) => lent.writable,
            // The peer would take more for a lie.
            None if self.handed.len() == loan::MOST => return Err(Unlent::TooMany),
            None if memory.length > loan::LONGEST => return Err(Unlent::TooLong),
            None => {
                let writable = memory.writable && self.terms == Terms::Written;
                let writable = hand_over(&mut **door, self.lines, &memory, writable).ok_or(Unlent::NotHanded)?;
                self.handed.push(Lent { number, writable, stage: Stage::Lent });
                writable
            }
        };
        if written && !writable { Err(Unlent::ReadOnly) } else { Ok(number) }
    }
}

impl Lender for ToPeer<'_> {
    fn lend(&mut self, iov: &[UserSeg], written: bool) -> u32 {
        self.find(iov, written).unwrap_or(0)
    }
}

/// Hands memory over to the peer behind `lines`; `writable`: to write there, too, if that can be. Whether the peer may, if it was handed over.
fn hand_over(door: &mut dyn Door, lines: &[Arc<dyn Line>], memory: &Lendable, writable: bool) -> Option<bool> {
    // What is sealed against writing may still be read.
    let (writable, handed) = match door.lend(memory, writable) {
        None if writable => (false, door.lend(memory, false)?),
        opened => (writable, opened?),
    };
    let Lendable { number, base, offset, length, .. } = *memory;
    let loan = loan::Loan::new(number, base as u64, offset, length).to_write(writable);
    // Whichever conversation it comes by, the peer listens there before it acts on a record that names it.
    lines.iter().any(|line| line.lend(&loan, &handed).is_ok()).then_some(writable)
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
        let offered = match usize::try_from(length) {
            _ if terms == Terms::Never => Err("FI_RUSTMX_LEND says never".to_string()),
            Ok(bytes) if copies.may_lend(number, bytes) => match handed {
                Some(handed) => handed.loan(loan.offset.get(), bytes, writable).map_err(|e| e.to_string()),
                None => Err("this process has no file descriptor left; raise `ulimit -n`".into()),
            },
            _ => Err("it lends too much".into()),
        };
        let lent = offered.map(|anchor| Memory::new(anchor, loan.base.get(), writable));
        let mapped = lent.and_then(|lent| lent.attach().map(|loan| (lent, loan)).map_err(|e| e.to_string()));
        match &mapped {
            Ok(_) => self.log.info(|| format!("mapped {length} bytes of addresses that {name} lends")),
            Err(why) => self.log.info(|| format!("what {name} lends is not mapped: {why}")),
        }
        if !copies.lent(number, mapped.ok()) {
            self.depart(out, id, Error::Corrupt);
        }
        self.keep_within_budget((id, number));
    }

    /// What is mapped of peers' memory, and what is kept of this process's, in mappings and bytes.
    pub(super) fn kept(&self) -> [(usize, usize); 2] {
        let all = self.peers.ids().flat_map(|id| self.peers.get(id).copies.attached());
        let attached = all.fold((0, 0usize), |(n, bytes), a| (n + 1, bytes.saturating_add(a.bytes)));
        [attached, self.door.as_ref().map_or((0, 0), |door| door.kept())]
    }

    /// Unmaps what was not used for longest, until the rest and what is kept of this process's memory is within the budget. `new` is to be used next.
    #[cold]
    fn keep_within_budget(&mut self, new: (PeerId, u32)) {
        let [_, own] = self.kept();
        let budget = Budget::of(self.config.cache_count, self.config.cache_bytes).beside(own);
        let of = |id: PeerId| {
            let all = self.peers.get(id).copies.attached();
            all.map(move |a| Attached { key: (id, a.key), bytes: a.bytes, used: a.used, busy: a.busy || (id, a.key) == new })
        };
        let out = excess(self.peers.ids().flat_map(of).collect(), budget);
        self.stats.evicted += out.len() as u64;
        for (id, number) in out {
            self.peers.get_mut(id).copies.detach(number);
        }
    }

    /// A record names memory that is not mapped. Either it was given up for others; or nothing was heard of it yet: it was handed over before that record was
    /// written, so it is in a socket.
    #[cold]
    pub(super) fn look_for_loan(&mut self, out: &mut Out<'_>, id: PeerId, number: u32) {
        if !self.found_loan(out, id, number) {
            // What the kernel loses of a loan is its descriptor, never the message.
            self.depart(out, id, Error::Corrupt);
        }
    }

    /// An invitation of the peer's names such memory. It is no record: the memory may be lent no more.
    #[cold]
    #[inline(never)]
    pub(super) fn look_for_invited(&mut self, out: &mut Out<'_>, id: PeerId) {
        if let Some(number) = self.peers.get_mut(id).copies.take_unheard() {
            self.found_loan(out, id, number);
        }
    }

    /// Whether it was found out about, or the peer is gone.
    fn found_loan(&mut self, out: &mut Out<'_>, id: PeerId, number: u32) -> bool {
        let copies = &mut self.peers.get_mut(id).copies;
        if copies.knows(number) && !copies.is_ready(number) {
            if copies.attach(number) {
                self.stats.reattached += 1;
                self.keep_within_budget((id, number));
            }
            return true;
        }
        // Many packets that only wake may be before it: a peer that does not know us yet sends one with each record.
        (0..LOOKS).any(|_| {
            self.heard_from(out, id);
            self.peers.get(id).copies.knows(number) || matches!(self.peers.get(id).contact, Contact::Gone(_))
        })
    }

    /// Tells peers what is not lent to them any more. One load and a call if nothing happened.
    pub(super) fn recall(&mut self, out: &mut Out<'_>) {
        while let Some(number) = self.door.as_mut().and_then(|door| door.ended()) {
            self.note_ended(number);
        }
        for id in std::mem::take(&mut self.poll.recalling) {
            let peer = self.peers.get_mut(id);
            let Some(link) = peer.link.as_mut().filter(|_| !matches!(peer.contact, Contact::Gone(_))) else { continue };
            match tell_ended(link, &mut peer.handed) {
                Ok(true) => {}
                Ok(false) => self.poll.recalling.push(id),
                Err(Corrupt) => self.depart(out, id, Error::Corrupt),
            }
        }
    }

    /// The memory of this number is not what it was.
    #[cold]
    fn note_ended(&mut self, number: u32) {
        for id in self.peers.ids() {
            if let Some(lent) = self.peers.get_mut(id).handed.iter_mut().find(|lent| lent.number == number) {
                lent.stage = Stage::Ended;
                if !self.poll.recalling.contains(&id) {
                    self.poll.recalling.push(id);
                }
            }
        }
    }
}

/// Tells a peer what is not lent to it any more, and forgets what it has read of that. Whether that was all.
#[cold]
fn tell_ended(link: &mut Link, handed: &mut Handout) -> Result<bool, Corrupt> {
    for lent in handed.iter_mut().filter(|lent| lent.stage == Stage::Ended) {
        match link.send(&Copies::recall(lent.number), Class::Control) {
            Ok(position) => lent.stage = Stage::Recalled(position),
            Err(NotSent::Full) => break,
            Err(NotSent::Corrupt) => return Err(Corrupt),
        }
    }
    link.refresh()?;
    handed.retain(|lent| !matches!(lent.stage, Stage::Recalled(position) if link.reached(position)));
    Ok(handed.iter().all(|lent| lent.stage == Stage::Lent))
}
