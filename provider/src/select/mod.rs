//! Which protocol carries a message: a table from size to protocol, built when the endpoint opens, able to print itself.
//!
//! The only place that compares sizes to choose. What the user forces (`FI_RUSTMX_PROTOCOL`), what he set (`FI_RUSTMX_SYSCALL_MIN` and
//! its like), and what was measured on this machine (`rustmx tune`) are worked into the table when it is built, so a message pays nothing
//! for any of it. They count in this order; where none says something the shipped sizes do.
//!
//! | file | what it does |
//! |---|---|
//! | `model.rs` | what a message costs by each way, from measured points |
//! | `plan.rs` | from costs to few borders |
//! | `table.rs` | from these, or the shipped sizes, and what the user says, to rows |
//! | `worth.rs` | from when on both copy |
//! | `inject.rs` | how long a message may be whose caller gets its buffer back at once |
//! | `habit.rs` | where the better way depends on who has the source in his cache |
//! | `sources.rs` | whether a source looks as it did when it was last sent |
//! | `here.rs` | what messages within this host cost, to be told |
//! | `one_sided.rs` | who carries out reads, writes and atomics of a peer's memory |
//! | `network.rs` | the same for peers on other hosts: a table for each link |
//! | `engines.rs` | which copy engines are used |
//! | `profile.rs` | the file that keeps measured points, and why one is not used |
//! | `lessons.rs` | the file that keeps what jobs found out about links |
//! | `fields.rs` | reading both |

pub mod engines;
mod fields;
pub mod habit;
mod here;
mod inject;
pub mod lessons;
pub mod model;
pub mod network;
pub mod one_sided;
mod plan;
pub mod profile;
mod sources;
mod table;
mod worth;

pub use inject::inject_max;
pub use plan::MIN_GAIN;

use crate::config::Config;
use crate::config::force::Way;
use crate::protocol::Protocol;
use crate::protocol::{eager::Eager, inline::Inline, stream::Stream};
use crate::shm::{layout, segment};
use crate::sys::cpu;
use crate::types::{INLINE_MAX, MAX_MSG, ProtoId};
use crate::wire::header::{Header, Kind};
use model::{Case, Memory, Model, PeerClass, Source};
use one_sided::Deeds;
use std::fmt;
use std::ops::Range;

/// One row: sizes from `from` up to and including `up_to` go by `proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// First size of the row.
    pub from: usize,
    /// Last size of the row.
    pub up_to: usize,
    /// Who carries it.
    pub proto: ProtoId,
    /// Of single copies: whether both sides make them. The receiver's table decides that.
    pub shared: bool,
    /// Only for messages that lie in memory which was lent to the receiver. They are looked up among these rows first.
    pub lent: bool,
    /// Who says so.
    pub origin: Origin,
}

/// Who says how the sizes of a row go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The shipped sizes.
    Shipped,
    /// What was measured on this machine.
    Profile,
    /// A size that the user set, such as `FI_RUSTMX_SYSCALL_MIN`.
    Set,
    /// `FI_RUSTMX_PROTOCOL`.
    Forced,
}

impl Origin {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Shipped => "default",
            Origin::Profile => "profile",
            Origin::Set => "set",
            Origin::Forced => "forced",
        }
    }

    /// What stands behind a row for people; nothing behind the shipped ones.
    pub fn said(self) -> &'static str {
        match self {
            Origin::Shipped => "",
            Origin::Profile => " (profile)",
            Origin::Set => " (set)",
            Origin::Forced => " (forced)",
        }
    }
}

/// Measured costs, and for what they are asked.
#[derive(Clone, Copy)]
pub struct Tuned<'a> {
    /// The costs.
    pub model: &'a Model,
    /// What the table is for; of memory, the rows for lent memory ask for another kind.
    pub case: Case,
}

impl<'a> Tuned<'a> {
    /// Messages from private memory to processes of this host.
    pub fn messages(model: &'a Model) -> Tuned<'a> {
        // Any two ranks share a core where there is but one for all.
        let online = cpu::online();
        let cores = cpu::quota().map_or(online, |quota| quota.min(online));
        Tuned { model, case: Case { crowded: cores < 2, ..Case::MESSAGE } }
    }
}

/// Most rows of a table (checked in `table.rs`; a power of two, since a message's row is taken modulo it).
pub const MAX_ROWS: usize = 32;

/// What the table says of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The row's index, less than [`MAX_ROWS`].
    pub row: u8,
    /// Who carries it.
    pub proto: ProtoId,
    /// The row says otherwise.
    pub turned: bool,
}

/// From how many nanoseconds of one side's on both copy a message, where the table lets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// What the kernel copies, and what is copied in mapped memory.
    pub ns: [u64; 2],
    /// Who says so.
    pub by: [Origin; 2],
    /// It stays that, whatever is seen of a peer.
    pub fixed: [bool; 2],
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Shorter messages go inline by the first row: one comparison for those that count nanoseconds. 0 if they do not.
    inline_below: usize,
    /// Shorter messages that are not so short go eagerly, by the second row. 0 if they do not.
    eager_below: usize,
    /// Shorter messages are not looked for in lent memory.
    lent_from: usize,
    /// Nor are these, and nobody asks what they look like.
    once_from: usize,
    /// Those for all messages, and then those for lent memory.
    rows: Box<[Row]>,
    /// How many the first are.
    plain: usize,
    worth: Worth,
    /// Sizes in lent memory of which a habit decides.
    by_habit: Range<usize>,
    /// Sizes in other memory of which another one decides.
    again: Range<usize>,
    deeds: Deeds,
}

/// Most payload that one record may carry, for a configured ring size.
pub fn record_max(config: &Config) -> usize {
    record_max_of(config.ring_size)
}

/// The same for peers on other hosts.
pub fn record_max_far(config: &Config) -> usize {
    record_max_of(config.tcp_ring_size)
}

fn record_max_of(ring: u64) -> usize {
    layout::ring_lines(segment::bytes_for(ring)) as usize / 4 * layout::LINE - Header::payload_offset(Kind::Eager, usize::MAX)
}

/// What of `FI_RUSTMX_PROTOCOL` cannot be done with this configuration and is ignored, and why: one sentence for the user.
pub fn complaint(config: &Config) -> Option<String> {
    let (_, mut refused) = table::build(config, record_max(config), PeerClass::SameHost, None);
    if config.shm == 0 {
        let of_this_host = config.protocol.parts().iter().filter(|part| part.way.needs_kernel() || part.way.needs_loan());
        let these: Vec<String> = of_this_host.map(ToString::to_string).collect();
        refused.retain(|(part, _)| !these.contains(part));
        let why = "FI_RUSTMX_SHM=no: all peers are reached by the network";
        refused.extend(these.into_iter().map(|part| (part, why.into())));
    }
    let why = refused.iter().map(|(part, why)| format!("`{part}`: {why}")).collect::<Vec<_>>().join("; ");
    (!refused.is_empty()).then(|| format!("FI_RUSTMX_PROTOCOL={}: ignored is {why}", config.protocol))
}

impl Selection {
    /// For a configuration and the most payload one record may carry, by the shipped sizes.
    pub fn new(config: &Config, record_max: usize) -> Selection {
        Selection::tuned(config, record_max, None)
    }

    /// For peers on other hosts: no kernel that copies, nothing to map, and the network's own sizes; by what was measured of a link, if that was.
    pub fn for_network(config: &Config, tuned: Option<Tuned>) -> Selection {
        Selection::made(config, record_max_far(config), PeerClass::Network, tuned)
    }

    /// The same, by measured costs if there are some.
    pub fn tuned(config: &Config, record_max: usize, tuned: Option<Tuned>) -> Selection {
        Selection::made(config, record_max, PeerClass::SameHost, tuned)
    }

    fn made(config: &Config, record_max: usize, peers: PeerClass, tuned: Option<Tuned>) -> Selection {
        let worth = worth::of(config, tuned);
        let tuned = tuned.map(|tuned| Tuned { case: Case { worth: Some(worth.ns), ..tuned.case }, ..tuned });
        let (rows, _) = table::build(config, record_max, peers, tuned);
        let inline_below = rows.first().filter(|r| r.proto == ProtoId::Inline).map_or(0, |r| r.up_to + 1);
        let plain = rows.iter().filter(|r| !r.lent).count();
        let lent_from = rows.get(plain).map_or(usize::MAX, |r| r.from);
        let eager_below =
            rows[..plain].get(1).filter(|r| inline_below > 0 && r.proto == ProtoId::Eager).map_or(0, |r| r.up_to + 1);
        let adapts = config.adapt == 0 && peers == PeerClass::SameHost;
        let by_habit = if adapts { habit::sizes(&rows[plain..]) } else { 0..0 };
        let again_min = usize::try_from(config.again_min).unwrap_or(usize::MAX);
        let again = if adapts && config.cma == 0 { habit::sizes_again(&rows[..plain], again_min) } else { 0..0 };
        let once_from = if again.is_empty() { lent_from } else { lent_from.min(again.start) };
        let deeds = Deeds::new(config, peers);
        Selection { inline_below, eager_below, lent_from, once_from, rows, plain, worth, by_habit, again, deeds }
    }

    /// Who carries out what is no message.
    #[inline]
    pub fn deeds(&self) -> &Deeds {
        &self.deeds
    }

    /// Whether a message of so many bytes may go by one copy although its row says otherwise: in lent memory, or out of a buffer that looks as it did.
    #[inline]
    pub fn may_go_once(&self, len: usize) -> bool {
        len >= self.once_from
    }

    /// Sizes of messages in lent memory of which a peer's habit ([`habit::Habits`]) is asked before the row counts.
    #[inline]
    pub fn by_habit(&self) -> Range<usize> {
        self.by_habit.clone()
    }

    /// Sizes of messages in other memory, of which the row says that they go through the ring, and that are left to the kernel as long as a peer's habit says that it finds them in its
    /// cache.
    #[inline]
    pub fn again(&self) -> Range<usize> {
        self.again.clone()
    }

    /// The protocol for a message of `len` bytes; `at_once`: its buffer is the caller's again when the call returns, which only a copy can promise.
    #[inline]
    pub fn choose(&self, len: usize, at_once: bool) -> Pick {
        if let Some(row) = self.inline_row(len) {
            return Pick { row, proto: ProtoId::Inline, turned: false };
        }
        let at = self.rows[..self.plain].iter().position(|r| len <= r.up_to).unwrap_or(self.plain - 1);
        let proto = self.rows[at].proto;
        let instead = match proto {
            _ if !at_once => proto,
            _ if len <= INLINE_MAX => ProtoId::Inline,
            ProtoId::Stream if self.rows[at].is_forced() => proto,
            _ => ProtoId::Eager,
        };
        Pick { row: at as u8, proto: instead, turned: instead != proto }
    }

    /// The row for a message of `len` bytes if it goes inline as the first sizes do.
    #[inline]
    pub fn inline_row(&self, len: usize) -> Option<u8> {
        (len < self.inline_below).then_some(0)
    }

    /// What [`choose`](Self::choose) says of a message of `len` bytes, longer than those of [`inline_row`](Self::inline_row), if it goes eagerly as the next sizes do.
    #[inline]
    pub fn choose_eager(&self, len: usize) -> Option<Pick> {
        (len < self.eager_below).then_some(Pick { row: 1, proto: ProtoId::Eager, turned: false })
    }

    /// The protocol for a message of `len` bytes if it lies in memory that was lent to the receiver; `None`: as any other.
    #[inline]
    pub fn choose_lent(&self, len: usize) -> Option<Pick> {
        if len < self.lent_from {
            return None;
        }
        let at = self.plain + self.rows[self.plain..].iter().position(|r| (r.from..=r.up_to).contains(&len))?;
        Some(Pick { row: at as u8, proto: self.rows[at].proto, turned: false })
    }

    /// The row for a message of `len` bytes that lies anywhere.
    pub fn row(&self, len: usize) -> Row {
        self.rows[usize::from(self.choose(len, false).row)]
    }

    /// The row for a message of `len` bytes that lies in memory which was lent to the receiver.
    pub fn lent_row(&self, len: usize) -> Row {
        self.choose_lent(len).map_or_else(|| self.row(len), |pick| self.rows[usize::from(pick.row)])
    }

    /// From when on both copy what this table lets them copy together.
    pub fn worth(&self) -> Worth {
        self.worth
    }

    /// The way that messages of `len` bytes settle on, by measured costs, if all come from one kind of source: a row by which both copy where
    /// that pays becomes one of two ways.
    pub fn settled(&self, tuned: Tuned, source: Source, len: usize) -> Way {
        let case = Case { worth: Some(self.worth.ns), ..tuned.case };
        let row = if case.memory == Memory::Exported { self.lent_row(len) } else { self.row(len) };
        if row.is_forced() { row.way() } else { tuned.model.settled(case, row.way(), source, len) }
    }

    /// All rows, by size.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The sizes at which what goes by `proto` begins to be copied by both sides, ends to be, begins again, and so on.
    pub fn share_borders(&self, proto: ProtoId) -> Vec<usize> {
        self.borders(proto, |row| row.shared)
    }

    /// The same for messages that both are to copy whatever it costs: the user says so.
    pub fn forced_borders(&self, proto: ProtoId) -> Vec<usize> {
        self.borders(proto, |row| row.shared && row.is_forced())
    }

    fn borders(&self, proto: ProtoId, is: impl Fn(&Row) -> bool) -> Vec<usize> {
        let mut borders = Vec::new();
        for row in &self.rows {
            if row.proto == proto && is(row) != (borders.len() % 2 == 1) {
                borders.push(row.from);
            }
        }
        borders
    }
}

impl Row {
    /// Whether `FI_RUSTMX_PROTOCOL` says so.
    pub fn is_forced(&self) -> bool {
        self.origin == Origin::Forced
    }

    /// The way in one word, as `FI_RUSTMX_PROTOCOL` knows it.
    pub fn way(&self) -> Way {
        match self.proto {
            ProtoId::Inline => Way::Inline,
            ProtoId::Eager => Way::Eager,
            ProtoId::Stream => Way::Stream,
            ProtoId::Syscall if self.shared => Way::Shared,
            ProtoId::Syscall => Way::Alone,
            ProtoId::Mapped if self.shared => Way::MappedShared,
            ProtoId::Mapped => Way::MappedAlone,
        }
    }

    /// How it carries them, for people.
    pub fn what(&self) -> &'static str {
        match self.proto {
            ProtoId::Inline => Inline::WHAT,
            ProtoId::Eager => Eager::WHAT,
            ProtoId::Stream => Stream::WHAT,
            ProtoId::Syscall if self.shared && self.is_forced() => "one copy by the kernel, called by both sides at once",
            ProtoId::Syscall if self.shared => "one copy by the kernel, called by both sides at once where that pays",
            ProtoId::Syscall => "one copy by the kernel, called by one side",
            ProtoId::Mapped if self.shared && self.is_forced() => {
                "out of lent memory: one copy without the kernel, by both sides at once"
            }
            ProtoId::Mapped if self.shared => {
                "out of lent memory: one copy without the kernel, by both sides at once where that pays"
            }
            ProtoId::Mapped => "out of lent memory: one copy without the kernel, by one side",
        }
    }

    /// Its sizes, as people read them: columns of fixed width.
    pub fn sizes(&self) -> String {
        let to = if self.up_to == MAX_MSG { "max".into() } else { self.up_to.to_string() };
        format!("{:>8} .. {to:<8}", self.from)
    }
}

/// The table as people read it.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for r in &self.rows {
            writeln!(f, "{} {:<8} {}{}", r.sizes(), r.proto.name(), r.what(), r.origin.said())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
