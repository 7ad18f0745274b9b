//! What messages to peers of the same host cost, to be told: measured points where a profile has them, else a straight line for each way.
//! Nothing is chosen by the latter.

use super::model::{Case, Memory, Source};
use super::network::RowCost;
use super::{Row, Selection, Tuned};
use crate::config::force::Way;
use crate::config::processor::Processor;

/// Bytes up to which modelled costs are told: beyond, caches decide.
const MODELLED_TO: usize = 1 << 20;

/// A message of `n` bytes takes `start + n * byte` nanoseconds from the call that sends it until its receiver has it.
struct Line {
    start: f64,
    byte: f64,
}

/// The machines on which the shipped sizes were found (`docs/adr/0016-profile.md`): the geometric mean of sources that are reused and of ones that
/// were rewritten, roughly: lines laid through measured points by eye, from 256 bytes to [`MODELLED_TO`]. Of Granite Rapids by `rustmx tune` and forced ways through Open MPI. Of AMD where cores share a level 3 cache; mapping was not measured
/// for this on Zen 3 and 5, nor the kernel's copies on Zen 5: these have Zen 4's lines.
fn shipped(way: Way, processor: Processor) -> Line {
    let (start, byte) = match (processor, way) {
        (Processor::Usual, Way::Inline) => (400.0, 1.0),
        (Processor::Usual, Way::Eager) => (700.0, 0.165),
        (Processor::Usual, Way::Stream) => (1_500.0, 0.115),
        (Processor::Usual, Way::Syscall | Way::Alone) => (3_000.0, 0.115),
        (Processor::Usual, Way::Shared) => (4_500.0, 0.054),
        (Processor::Usual, Way::Mapped | Way::MappedAlone) => (1_500.0, 0.066),
        (Processor::Usual, Way::MappedShared) => (2_000.0, 0.029),
        (Processor::Granite, Way::Inline) => (200.0, 0.4),
        (Processor::Granite, Way::Eager) => (300.0, 0.095),
        (Processor::Granite, Way::Stream) => (1_000.0, 0.06),
        (Processor::Granite, Way::Syscall | Way::Alone) => (1_500.0, 0.055),
        (Processor::Granite, Way::Shared) => (2_000.0, 0.026),
        (Processor::Granite, Way::Mapped | Way::MappedAlone) => (450.0, 0.04),
        (Processor::Granite, Way::MappedShared) => (900.0, 0.02),
        (_, Way::Inline) => (160.0, 0.3),
        (Processor::Zen3, Way::Eager) => (530.0, 0.057),
        (Processor::Zen3, Way::Stream) => (750.0, 0.06),
        (Processor::Zen4, Way::Eager) => (270.0, 0.056),
        (Processor::Zen4, Way::Stream) => (700.0, 0.034),
        (Processor::Zen5, Way::Eager) => (200.0, 0.035),
        (Processor::Zen5, Way::Stream) => (500.0, 0.023),
        (Processor::Zen3, Way::Syscall | Way::Alone) => (2_000.0, 0.12),
        (Processor::Zen3, Way::Shared) => (3_500.0, 0.067),
        (_, Way::Syscall | Way::Alone) => (2_100.0, 0.077),
        (_, Way::Shared) => (2_500.0, 0.044),
        (_, Way::Mapped | Way::MappedAlone) => (450.0, 0.025),
        (_, Way::MappedShared) => (900.0, 0.014),
    };
    Line { start, byte }
}

impl Line {
    fn at(&self, size: usize) -> f64 {
        self.start + size as f64 * self.byte
    }
}

impl RowCost {
    /// Of a row of `table`, which is one for peers of the same host; `tuned`: what was measured of them; else as it is on such a `processor`.
    pub fn here(row: &Row, table: &Selection, tuned: Option<Tuned>, processor: Processor) -> Option<RowCost> {
        let worth = (!row.is_forced()).then_some(table.worth().ns);
        if let Some(tuned) = tuned {
            let memory = if row.lent { Memory::Exported } else { Memory::Private };
            let case = Case { memory, worth, ..tuned.case };
            let mean = |size| {
                let each = |source: &Source| {
                    let way = tuned.model.settled(case, row.way(), *source, size);
                    Some(tuned.model.cost(case, way, *source, size)?.ns.ln())
                };
                let all: Option<Vec<f64>> = Source::ALL.iter().map(each).collect();
                all.map(|all| (all.iter().sum::<f64>() / all.len() as f64).exp())
            };
            if let Some((first, last)) = tuned.model.range(case)
                && let (from, to) = (row.from.max(first), row.up_to.min(last))
                && from <= to
                && let (Some(a), Some(b)) = (mean(from), mean(to))
            {
                return Some(RowCost { from: (from, a), to: (to, b), measured: true });
            }
        }
        let to = row.up_to.min(MODELLED_TO);
        let cost = |size| {
            let together = shipped(row.way(), processor).at(size);
            // Where one side alone is not slow enough, it is not helped.
            let alone = row
                .way()
                .unshared()
                .map(|way| (shipped(way, processor).at(size), worth.map_or(0, |ns| ns[usize::from(row.lent)])));
            alone.filter(|(ns, worth)| *ns < *worth as f64).map_or(together, |(ns, _)| ns)
        };
        (row.from <= to).then(|| RowCost { from: (row.from, cost(row.from)), to: (to, cost(to)), measured: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::select::model::{About, Curve, Model, Operation, PeerClass, Point};
    use crate::select::record_max;

    fn table(config: &Config) -> Selection {
        Selection::new(config, record_max(config))
    }

    #[test]
    fn every_row_has_a_cost_that_grows() {
        for processor in Processor::ALL {
            let table = table(&Config::on(processor));
            for row in table.rows().iter().filter(|row| row.from <= MODELLED_TO) {
                let cost = RowCost::here(row, &table, None, processor).expect("modelled");
                assert!(!cost.measured && cost.from.0 == row.from && cost.to.0 == row.up_to.min(MODELLED_TO), "{cost:?}");
                assert!(0.0 < cost.from.1 && cost.from.1 < cost.to.1, "{cost:?}");
            }
        }
    }

    #[test]
    fn by_hand() {
        let config = Config { share_worth: 1_000_000, ..Config::default() };
        let ns = |config: &Config, size: usize| {
            let table = table(config);
            RowCost::here(&table.row(size), &table, None, config.processor).expect("modelled").to.1
        };
        assert_eq!(ns(&config, 1 << 20), 3_000.0 + 0.115 * f64::from(1 << 20), "one side alone is quick enough");
        assert_eq!(ns(&Config::default(), 1 << 20), 4_500.0 + 0.054 * f64::from(1 << 20));
        assert_eq!(ns(&Config::default(), 200), 400.0 + 232.0);
        let zen4 = Config::on(Processor::Zen4);
        assert_eq!(ns(&zen4, 1 << 20), 700.0 + 0.034 * f64::from(1 << 20), "a stream there");
    }

    #[test]
    fn what_was_measured_goes_before_what_is_modelled() {
        let mut model = Model::default();
        for (source, ns) in [(Source::Reused, 100.0), (Source::Fresh, 400.0)] {
            let about =
                About { operation: Operation::Send, peer: PeerClass::SameHost, memory: Memory::Private, source, way: Way::Eager };
            let points = [1 << 10, 16 << 10].map(|size| Point { size, ns, spread: 0.0 });
            model.add(about, Curve::new(points.into()).expect("sound")).expect("new");
        }
        let (table, tuned) = (table(&Config::default()), Tuned::messages(&model));
        let of = |size| RowCost::here(&table.row(size), &table, Some(tuned), Processor::Usual).expect("known");
        let eager = of(1 << 10);
        assert!(eager.measured && (eager.from.0, eager.to.0) == (1 << 10, 16 << 10), "{eager:?}");
        assert!((eager.from.1 - 200.0).abs() < 1e-6, "the geometric mean: {eager:?}");
        assert!(!of(1 << 20).measured, "of that way nothing was");
    }
}
