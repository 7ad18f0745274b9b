//! Reads, writes and atomics of a peer's memory: who carries them out. A table from operation and size, made when an endpoint opens; an operation
//! looks its row up, and what it costs is told beside it (`docs/adr/0009-memory.md`).
//!
//! **Costs choose nothing here.** Where the kernel lets the initiator move the bytes by itself it does, for each size: that needs nothing of the target,
//! which may compute for minutes. No time that was measured with a target that only polls says what waiting for one that does not is worth.

use super::Origin;
use super::model::{Model, Mover, Operation, PeerClass};
use super::network::{LinkCosts, RowCost};
use crate::config::Config;
use crate::config::processor::Processor;
use crate::protocol::one_sided::{MAX_PLACES, SHORT};
use crate::types::MAX_MSG;
use crate::wire::order;
use smallvec::SmallVec;

/// One row: operations of `from` to `up_to` bytes are carried out by `mover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deed {
    /// What is done: no message.
    pub operation: Operation,
    /// First size of the row, in bytes.
    pub from: usize,
    /// Last size of the row.
    pub up_to: usize,
    /// Who does it, if that can be.
    pub mover: Mover,
    /// Who says so.
    pub origin: Origin,
    /// The bytes go past the ring, between hosts.
    pub in_place: bool,
}

/// Most rows of a table (a power of two, since an operation's row is taken modulo it).
pub const MOST_DEEDS: usize = 8;

/// Bytes of the longest atomic operation.
const ATOMIC_MOST: usize = order::MAX_BYTES * MAX_PLACES;

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deeds {
    rows: SmallVec<[Deed; 5]>,
}

/// What the table says of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The row's index, less than [`MOST_DEEDS`].
    pub row: u8,
    /// Who does it.
    pub mover: Mover,
}

impl Deeds {
    /// For a kind of peer.
    pub fn new(config: &Config, peers: PeerClass) -> Deeds {
        let by_kernel = peers == PeerClass::SameHost && config.cma == 0;
        let mover = if by_kernel { Mover::Direct } else { Mover::Target };
        let said = peers == PeerClass::SameHost && config.says("cma");
        let origin = if said { Origin::Set } else { Origin::Shipped };
        let rows_of = |operation| {
            let all = Deed { operation, from: 0, up_to: MAX_MSG, mover, origin, in_place: false };
            let long = Deed { from: SHORT + 1, in_place: true, ..all };
            match peers {
                PeerClass::SameHost => SmallVec::from_slice(&[all]),
                PeerClass::Network => SmallVec::<[Deed; 2]>::from_slice(&[Deed { up_to: SHORT, ..all }, long]),
            }
        };
        let atomic = Deed {
            operation: Operation::Atomic,
            from: 0,
            up_to: ATOMIC_MOST,
            // There is one executor for each region, its owner's engine: the target's own operations are atomic with others', too.
            mover: Mover::Target,
            origin: Origin::Shipped,
            in_place: false,
        };
        let moved = [Operation::Read, Operation::Write].into_iter().flat_map(rows_of);
        Deeds { rows: moved.chain([atomic]).collect() }
    }

    /// Who carries out an operation on `len` bytes, which are as many as the operation may have.
    #[inline]
    pub fn choose(&self, operation: Operation, len: usize) -> Choice {
        let at = self.rows.iter().position(|row| row.operation == operation && len <= row.up_to);
        let at = at.unwrap_or(self.rows.len() - 1);
        Choice { row: at as u8, mover: self.rows[at].mover }
    }

    /// All rows.
    pub fn rows(&self) -> &[Deed] {
        &self.rows
    }
}

impl Deed {
    /// How it goes, for people.
    pub fn what(&self) -> &'static str {
        match (self.mover, self.operation) {
            (Mover::Direct, _) => {
                "the kernel copies, without the target: one call for the bytes and one for the target's table of regions, two more for a key that is new"
            }
            (Mover::Target, Operation::Atomic) => {
                "the target's engine does it when it makes progress, so that each region has one executor"
            }
            (Mover::Target, _) if self.in_place => {
                "the target's engine does it when it makes progress; the bytes go from memory to memory, past the ring"
            }
            (Mover::Target, _) => {
                "the target's engine does it when it makes progress; the bytes go through the ring, in fragments"
            }
        }
    }
}

/// An operation on `n` bytes takes `start + n * byte` nanoseconds from the call until it is complete.
struct Line {
    start: f64,
    byte: f64,
}

/// Bytes up to which modelled costs are told: beyond, caches decide.
const MODELLED_TO: usize = 1 << 20;

/// Of AMD lines through points measured on Zen 4, by eye, between cores that share a cache and ones that do not (`docs/adr/0009-memory.md`); of Granite Rapids what `rustmx tune` found of the kernel and of atomics, and the line of streams; of others what follows
/// from the lines of messages in `here.rs`: two calls of the kernel, or a record and its answer. The target polls, and has a core of its own.
fn shipped(deed: &Deed, processor: Processor) -> Line {
    let (start, byte) = match (processor, deed.mover, deed.operation) {
        (Processor::Usual, Mover::Direct, _) => (2_400.0, 0.115),
        (Processor::Usual, Mover::Target, Operation::Atomic) => (800.0, 1.0),
        (Processor::Usual, Mover::Target, _) => (800.0, 0.115),
        (Processor::Granite, Mover::Direct, _) => (860.0, 0.047),
        (Processor::Granite, Mover::Target, Operation::Atomic) => (510.0, 0.48),
        (Processor::Granite, Mover::Target, _) => (510.0, 0.06),
        (_, Mover::Direct, _) => (3_000.0, 0.073),
        (_, Mover::Target, Operation::Atomic) => (450.0, 0.6),
        (_, Mover::Target, _) => (450.0, 0.045),
    };
    Line { start, byte }
}

impl RowCost {
    /// Of a row for peers of a kind: what was measured of them, if something was; else as it is on such a `processor`, or by the loopback interface.
    pub fn deed(row: &Deed, peers: PeerClass, model: Option<&Model>, processor: Processor) -> Option<RowCost> {
        if let Some(curve) = model.and_then(|model| model.deed(row.operation, peers, row.mover)) {
            let points = curve.points();
            let (from, to) = (row.from.max(points[0].size), row.up_to.min(points[points.len() - 1].size));
            if from <= to {
                return Some(RowCost { from: (from, curve.at(from).ns), to: (to, curve.at(to).ns), measured: true });
            }
        }
        let line = match peers {
            PeerClass::SameHost => shipped(row, processor),
            // There and back, with the bytes one way.
            PeerClass::Network => {
                let LinkCosts { message, record_byte, in_place, place_byte } = LinkCosts::SHIPPED;
                match row.in_place {
                    true => Line { start: 2.0 * message + in_place, byte: place_byte },
                    false => Line { start: 2.0 * message, byte: record_byte },
                }
            }
        };
        let at = |size: usize| (size, line.start + size as f64 * line.byte);
        Some(RowCost { from: at(row.from), to: at(row.up_to.min(MODELLED_TO)), measured: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::model::{Curve, Point};

    /// For each operation the rows follow each other from nothing to the longest, and looking a size up finds the row that says it has it.
    #[test]
    fn every_size_has_one_row() {
        let never = Config { cma: 1, ..Config::default() };
        for (config, peers) in [Config::default(), never].iter().flat_map(|c| PeerClass::ALL.iter().map(move |p| (c, *p))) {
            let deeds = Deeds::new(config, peers);
            assert!(deeds.rows().len() <= MOST_DEEDS);
            for operation in [Operation::Read, Operation::Write, Operation::Atomic] {
                let rows: Vec<&Deed> = deeds.rows().iter().filter(|r| r.operation == operation).collect();
                assert!(rows[0].from == 0 && rows.windows(2).all(|w| w[0].up_to + 1 == w[1].from), "{rows:?}");
                for row in rows {
                    for size in [row.from, row.up_to] {
                        let choice = deeds.choose(operation, size);
                        assert_eq!((deeds.rows()[usize::from(choice.row)], choice.mover), (*row, row.mover));
                    }
                }
            }
        }
    }

    #[test]
    fn the_kernel_moves_what_it_may_within_a_host() {
        let mover = |config: &Config, peers, operation| Deeds::new(config, peers).choose(operation, 8).mover;
        let (auto, never) = (Config::default(), Config { cma: 1, ..Config::default() });
        for operation in [Operation::Read, Operation::Write] {
            assert_eq!(mover(&auto, PeerClass::SameHost, operation), Mover::Direct);
            assert_eq!(mover(&auto, PeerClass::Network, operation), Mover::Target);
            assert_eq!(mover(&never, PeerClass::SameHost, operation), Mover::Target);
        }
        assert_eq!(mover(&auto, PeerClass::SameHost, Operation::Atomic), Mover::Target);
        let origin = |config, peers| Deeds::new(config, peers).rows()[0].origin;
        assert_eq!([origin(&never, PeerClass::SameHost), origin(&never, PeerClass::Network)], [Origin::Set, Origin::Shipped]);
    }

    #[test]
    fn every_row_has_a_cost_and_what_was_measured_goes_first() {
        for (processor, peers) in Processor::ALL.into_iter().flat_map(|p| PeerClass::ALL.iter().map(move |c| (p, *c))) {
            for row in Deeds::new(&Config::on(processor), peers).rows() {
                let cost = RowCost::deed(row, peers, None, processor).expect("modelled");
                assert!(!cost.measured && 0.0 < cost.from.1 && cost.from.1 < cost.to.1, "{cost:?}");
            }
        }
        let mut model = Model::default();
        let points = [(8, 700.0), (4096, 1500.0)].map(|(size, ns)| Point { size, ns, spread: 0.0 });
        let curve = Curve::new(points.into()).expect("sound");
        model.add_deed((Operation::Read, PeerClass::SameHost, Mover::Direct), curve).expect("new");
        let deeds = Deeds::new(&Config::default(), PeerClass::SameHost);
        let of =
            |at: usize| RowCost::deed(&deeds.rows()[at], PeerClass::SameHost, Some(&model), Processor::Usual).expect("known");
        let read = of(0);
        assert!(read.measured && (read.from.0, read.to.0) == (8, 4096), "{read:?}");
        assert!((read.from.1 - 700.0).abs() < 1e-6 && (read.to.1 - 1500.0).abs() < 1e-6, "{read:?}");
        assert!(!of(1).measured, "of writes nothing was");
    }
}
