//! From how many nanoseconds of one side's on both should copy a message: what the user set, what was measured, what is shipped.
//!
//! A receiver knows what it needs alone from what it saw of the sender's last messages (`protocol/single/pace.rs`); this is the other side of that
//! comparison. Of measured times it is the number that costs least, over all sizes and kinds of source alike.

use super::model::{Case, Memory, Source};
use super::{Origin, Tuned, Worth};
use crate::config::Config;
use crate::config::force::Way;
use crate::protocol::single::LEAST_CHUNK;

/// What another number must save on average, as a part of the time, to be taken.
const GAIN: f64 = 0.01;
/// Copies that differ by less are taken for the same: no number between them would tell them apart in a job.
const APART: f64 = 1.02;

/// For a configuration, and measured costs if there are some.
pub(super) fn of(config: &Config, tuned: Option<Tuned>) -> Worth {
    // A job sees when a message is there, not when it has been read: what it sees is no correction of such times.
    let until_read = tuned.is_some_and(|tuned| tuned.model.until_read);
    let one = |name: &str, shipped: u64, way: Way, memory: Memory| {
        if config.says(name) {
            return (shipped, Origin::Set, true);
        }
        let points = tuned.map_or(Vec::new(), |t| points(Tuned { case: Case { memory, ..t.case }, ..t }, way));
        let best = cheapest(&points);
        match cost(&points, shipped) - cost(&points, best) > GAIN * points.len() as f64 {
            true => (best, Origin::Profile, until_read),
            false => (shipped, Origin::Shipped, until_read && !points.is_empty()),
        }
    };
    let kernel = one("share_worth", config.share_worth, Way::Shared, Memory::Private);
    let mapped = one("mapped_share_worth", config.mapped_share_worth, Way::MappedShared, Memory::Exported);
    let by = [kernel.1, mapped.1];
    Worth { ns: [kernel.0, mapped.0], by, fixed: [kernel.2, mapped.2].map(|fixed| fixed || config.adapt != 0) }
}

/// A measured size: how long one side copies alone, and the whole times if it does and if both do.
struct Point {
    copy: f64,
    alone: f64,
    shared: f64,
}

fn points(tuned: Tuned, way: Way) -> Vec<Point> {
    let Tuned { model, case } = tuned;
    let Some(alone) = way.unshared() else { return Vec::new() };
    let of = |source: &Source| {
        let sizes = model.sizes(case, way, *source).filter(|size| *size > LEAST_CHUNK);
        let point = |size| {
            Some(Point {
                copy: model.copy(case, alone, *source, size)?,
                alone: model.cost(case, alone, *source, size)?.ns,
                shared: model.cost(case, way, *source, size)?.ns,
            })
        };
        sizes.filter_map(point).collect::<Vec<_>>()
    };
    Source::ALL.iter().flat_map(of).collect()
}

/// What a number costs above the better one of each point: a sum of logarithms.
fn cost(points: &[Point], worth: u64) -> f64 {
    let over = |p: &Point| (if p.copy >= worth as f64 { p.shared } else { p.alone } / p.shared.min(p.alone)).ln();
    points.iter().map(over).sum()
}

/// The number that costs least. Between two copies that it tells apart it is in the middle; beyond all of them twice the longest.
fn cheapest(points: &[Point]) -> u64 {
    let mut copies: Vec<f64> = points.iter().map(|p| p.copy.max(1.0)).collect();
    copies.sort_by(f64::total_cmp);
    copies.dedup_by(|later, kept| *later / *kept <= APART);
    let between = copies.windows(2).map(|pair| (pair[0] * pair[1]).sqrt().ceil());
    let ends = copies.first().map(|first| first / 2.0).into_iter().chain(copies.last().map(|last| last * 2.0));
    let all = between.chain(ends).map(|ns| ns.min(1e9) as u64);
    all.min_by(|a, b| cost(points, *a).total_cmp(&cost(points, *b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{about, add, curve};
    use super::super::model::{About, Model};
    use super::*;
    use proptest::prelude::*;

    fn worth(model: &Model, config: &Config) -> Worth {
        of(config, Some(Tuned { model, case: Case::MESSAGE }))
    }

    /// A machine on which help costs 2 us and halves the rest; reused sources are four times as fast to copy.
    fn machine() -> Model {
        let mut model = Model::default();
        let sizes = (15..=22).map(|shift| 1usize << shift);
        for (source, rate) in [(Source::Reused, 40.0), (Source::Fresh, 10.0)] {
            let line = |start: f64, rate: f64| sizes.clone().map(|n| (n, start + n as f64 / rate, 0.02)).collect::<Vec<_>>();
            model.add(about(Way::Inline, source), curve(&[(64, 500.0, 0.0)])).expect("new");
            for (alone, shared, memory) in
                [(Way::Alone, Way::Shared, Memory::Private), (Way::MappedAlone, Way::MappedShared, Memory::Exported)]
            {
                let one = |way| About { memory, ..about(way, source) };
                model.add(one(alone), curve(&line(500.0, rate))).expect("new");
                model.add(one(shared), curve(&line(2500.0, 2.0 * rate))).expect("new");
            }
        }
        model
    }

    #[test]
    fn what_was_measured_until_it_was_read_is_not_corrected() {
        let (mut model, config) = (machine(), Config::default());
        let Worth { by, fixed, .. } = worth(&model, &config);
        assert_eq!((by, fixed), ([Origin::Profile, Origin::Shipped], [false; 2]));
        model.until_read = true;
        assert_eq!(worth(&model, &config).fixed, [true; 2], "nor is what is shipped, if it is the best");
        let mut bare = Model::default();
        bare.until_read = true;
        assert_eq!(worth(&bare, &config).fixed, [false; 2], "of what was not measured nothing is known");
    }

    #[test]
    fn help_is_worth_what_it_costs() {
        // 2000 + t / 2 = t at 4000 ns. The nearest sizes to both sides: 32 KiB fresh (3277 ns) and 256 KiB reused (6554 ns).
        let found = worth(&machine(), &Config::default());
        assert!((3_277..=6_554).contains(&found.ns[0]), "{found:?}");
        assert_eq!(found.by[0], Origin::Profile);
        // The shipped 3400 tells the same sizes apart.
        assert_eq!((found.ns[1], found.by[1]), (Config::default().mapped_share_worth, Origin::Shipped));
    }

    #[test]
    fn what_the_user_set_counts_first_and_what_is_shipped_last() {
        let config = Config { share_worth: 77, ..Config::default() };
        assert_eq!((worth(&machine(), &config).ns[0], worth(&machine(), &config).by[0]), (77, Origin::Set));
        assert_eq!(worth(&machine(), &config).fixed, [true, false], "nothing corrects what was set");
        assert_eq!(worth(&machine(), &Config { adapt: 1, ..Config::default() }).fixed, [true; 2]);
        let (none, d) = (worth(&Model::default(), &Config::default()), Config::default());
        assert_eq!((none.ns, none.by), ([d.share_worth, d.mapped_share_worth], [Origin::Shipped; 2]));
        let mut model = Model::default();
        add(&mut model, Way::Alone, &[(1 << 20, 100.0, 0.0)]);
        assert_eq!(worth(&model, &d).by, [Origin::Shipped; 2], "nothing is known of help");
    }

    proptest! {
        /// No other number is cheaper by more than the gain that is asked for.
        #[test]
        fn no_number_is_cheaper(
            copies in proptest::collection::vec((200f64..1e6, 1f64..1e6), 1..6), start in 1f64..2000.0, other in 0u64..2_000_000,
        ) {
            let times: Vec<_> = copies.iter().map(|c| (start + c.0, c.1)).collect();
            let mut model = Model::default();
            let points = |of: &dyn Fn(&(f64, f64)) -> f64| {
                times.iter().enumerate().map(|(i, t)| (1usize << (15 + i), of(t), 0.0)).collect::<Vec<_>>()
            };
            add(&mut model, Way::Inline, &[(64, start, 0.0)]);
            add(&mut model, Way::Alone, &points(&|t| t.0));
            add(&mut model, Way::Shared, &points(&|t| t.1));
            let found = worth(&model, &Config::default());
            let naive = |worth: u64| -> f64 {
                let chosen = |t: &(f64, f64)| if (t.0 - start).max(0.0) >= worth as f64 { t.1 } else { t.0 };
                times.iter().map(|t| (chosen(t) / t.0.min(t.1)).ln()).sum::<f64>() / times.len() as f64
            };
            // The numbers are whole, and copies that differ by less than that are not told apart.
            let mut sorted: Vec<f64> = copies.iter().map(|c| c.0).collect();
            sorted.sort_by(f64::total_cmp);
            prop_assume!(sorted.windows(2).all(|p| p[1] / p[0] > APART && p[1] - p[0] > 2.0));
            prop_assert!(copies.iter().all(|c| (c.0 - found.ns[0] as f64).abs() > 0.5));
            prop_assert!(naive(found.ns[0]) <= naive(other) + GAIN + 1e-9, "{found:?}: {} {}", naive(found.ns[0]), naive(other));
        }
    }
}
