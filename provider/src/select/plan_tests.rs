//! Plans against naive ones, and by invented machines.

use super::super::model::tests::{about, add, curve};
use super::super::model::{Curve, Point, Source};
use super::*;
use crate::types::INLINE_MAX;
use proptest::prelude::*;

const RECORD: usize = 6000;

fn shipped(len: usize) -> Way {
    match len {
        n if n <= INLINE_MAX => Way::Inline,
        n if n <= 4096 => Way::Eager,
        n if n < 16 << 10 => Way::Stream,
        n if n < 128 << 10 => Way::Alone,
        _ => Way::Shared,
    }
}

fn possible(way: Way, len: usize) -> bool {
    match way {
        Way::Inline => len <= INLINE_MAX,
        Way::Eager => (INLINE_MAX + 1..=RECORD).contains(&len),
        _ => len > INLINE_MAX,
    }
}

const BORDERS: [usize; 6] = [0, INLINE_MAX + 1, 4097, RECORD + 1, 16 << 10, 128 << 10];

fn planned(model: &Model, most: usize) -> (Vec<Step>, f64) {
    plan(model, Case::MESSAGE, &Menu { borders: &BORDERS, shipped: &shipped, possible: &possible }, &|steps| steps.len() <= most)
}

fn way_at(steps: &[Step], len: usize) -> Way {
    steps.iter().rev().find(|s| s.from <= len).expect("from 0").way
}

/// Start and rate of a way, as a curve from 256 bytes to 64 MiB: `start` nanoseconds and `rate` bytes a nanosecond.
fn line(start: f64, rate: f64, spread: f64) -> Vec<(usize, f64, f64)> {
    (8..=26).map(|shift| (1usize << shift, start + (1usize << shift) as f64 / rate, spread)).collect()
}

/// A machine on which the kernel starts at 1 µs, and both sides together copy twice as fast for half a microsecond more.
fn machine(spread: f64) -> Model {
    let mut model = Model::default();
    let short = |points: Vec<(usize, f64, f64)>| points.into_iter().filter(|p| p.0 <= 4096).collect::<Vec<_>>();
    add(&mut model, Way::Eager, &short(line(200.0, 3.0, spread)));
    add(&mut model, Way::Stream, &line(400.0, 6.0, spread));
    add(&mut model, Way::Alone, &line(1000.0, 12.0, spread));
    add(&mut model, Way::Shared, &line(1500.0, 24.0, spread));
    model
}

fn some_model() -> impl Strategy<Value = Model> {
    let points = proptest::collection::vec((1usize..5000, 1f64..1e7, prop_oneof![Just(0.02), 0.0f64..0.6]), 1..12);
    let curves = proptest::collection::vec((0usize..5, 0usize..2, 0u32..12, points), 0..14);
    curves.prop_map(|curves| {
        let mut model = Model::default();
        for (way, source, scale, steps) in curves {
            let mut size = 0;
            let points = steps.iter().map(|&(step, ns, spread)| {
                size += step << scale;
                Point { size, ns, spread }
            });
            let curve = Curve::new(points.collect()).expect("sound");
            // The second of a kind is refused, which is as it should be.
            let _ = model.add(about(Way::CARRIERS[way], Source::ALL[source]), curve);
        }
        model
    })
}

proptest! {
    /// The bound, against the naive best of each size: whatever was measured.
    #[test]
    fn the_chosen_way_is_about_as_good_as_the_best(model in some_model(), most in 5usize..9) {
        let (steps, slack) = planned(&model, most);
        prop_assert!(steps.len() <= most.max(BORDERS.len()) && steps[0].from == 0);
        prop_assert!(steps.windows(2).all(|p| p[0].from < p[1].from));
        for size in grid(model.range(Case::MESSAGE), &BORDERS) {
            let chosen = way_at(&steps, size);
            prop_assert!(chosen == shipped(size) || possible(chosen, size), "{size} by {chosen:?}");
            let both = |way: Way| {
                let of = |source| {
                    let points = model.curves().iter().find(|(a, _)| *a == about(way, source))?.1.points();
                    let near = size * 2 >= points[0].size / 2 * 2 && size <= points[points.len() - 1].size * 2;
                    near.then(|| model.cost(Case::MESSAGE, way, source, size)).flatten()
                };
                Some([of(Source::Reused)?, of(Source::Fresh)?])
            };
            let time = |costs: &[crate::select::model::Cost; 2]| (costs[0].ns * costs[1].ns).sqrt();
            let ways = || Way::CARRIERS.into_iter().filter(|w| *w == shipped(size) || possible(*w, size));
            let best = ways().filter_map(both).min_by(|a, b| time(a).total_cmp(&time(b)));
            match (best, both(shipped(size))) {
                (None, _) => {}
                (Some(_), None) => prop_assert_eq!(chosen, shipped(size), "the shipped way was not measured at {}", size),
                (Some(best), Some(_)) => {
                    let costs = both(chosen).expect("a way that was measured");
                    let spread: f64 = best.iter().chain(&costs).map(|c| c.spread.powi(2)).sum();
                    let bound = 1.0 + slack * (spread.sqrt() / 4.0).max(MIN_GAIN);
                    prop_assert!(time(&costs) <= time(&best) * bound * 1.000_001, "{size}: {} {}", time(&costs), time(&best));
                }
            }
        }
    }

    /// No other choice among the good ways of each cell has a lower price.
    #[test]
    fn no_road_is_cheaper(
        cells in proptest::collection::vec((0usize..3, proptest::collection::btree_map(0usize..3, 0u8..4, 1..=3)), 1..6),
    ) {
        let ways = [Way::Stream, Way::Alone, Way::Shared];
        let cells: Vec<Cell> = cells.into_iter().enumerate().map(|(from, (own, good))| Cell {
            from, shipped: ways[own], measured: true,
            good: good.into_iter().map(|(w, excess)| (ways[w], f64::from(excess))).collect(),
        }).collect();
        let steps = fewest(&cells);
        let price = |road: &[Way]| {
            let borders = (1..road.len()).filter(|i| {
                let own = road[i - 1] == cells[i - 1].shipped && road[*i] == cells[*i].shipped;
                road[i - 1] != road[*i] && !own
            }).count();
            let changes = road.iter().zip(&cells).filter(|(w, c)| **w != c.shipped).count();
            let excess = |(w, c): (&Way, &Cell)| c.good.iter().find(|g| g.0 == *w).map(|g| g.1);
            Some((borders, changes, road.iter().zip(&cells).map(excess).sum::<Option<f64>>()?))
        };
        let chosen: Vec<Way> = (0..cells.len()).map(|at| way_at(&steps, at)).collect();
        let got = price(&chosen).expect("good ways only");
        for mut number in 0..3usize.pow(cells.len() as u32) {
            let road: Vec<Way> = cells.iter().map(|_| { let w = ways[number % 3]; number /= 3; w }).collect();
            if let Some(other) = price(&road) {
                prop_assert!(got <= other, "{chosen:?} {got:?}, {road:?} {other:?}");
            }
        }
    }
}

#[test]
fn borders_lie_where_ways_cross() {
    let (steps, slack) = planned(&machine(0.02), 8);
    assert_eq!(slack, 1.0);
    let ways: Vec<Way> = steps.iter().map(|s| s.way).collect();
    assert_eq!(ways, [Way::Inline, Way::Eager, Way::Stream, Way::Alone, Way::Shared]);
    // 400 + n/6 = 1000 + n/12 at 7200 bytes; 1000 + n/12 = 1500 + n/24 at 12000.
    assert!((5 << 10..=8 << 10).contains(&steps[3].from) && (10 << 10..=14 << 10).contains(&steps[4].from), "{steps:?}");
    assert!(steps[2..].iter().all(|s| s.measured) && !steps[0].measured);
}

#[test]
fn what_is_too_noisy_to_tell_stays_as_shipped() {
    let (steps, _) = planned(&machine(3.0), 8);
    for len in [0, 300, 4097, 10_000, 20_000, 70_000, 1 << 20, 1 << 40] {
        assert_eq!(way_at(&steps, len), shipped(len), "{len} in {steps:?}");
    }
    assert_eq!(planned(&Model::default(), 8).0.len(), 5, "as without any costs");
}

#[test]
fn a_gain_that_comes_and_goes_brings_no_borders() {
    // Alone, the shipped way, is worse in every second point, and within noise between them.
    let mut model = Model::default();
    let flat = |ns: f64| (14..=16).map(|shift| (1usize << shift, ns, 0.0)).collect::<Vec<_>>();
    add(&mut model, Way::Shared, &flat(1000.0));
    add(&mut model, Way::Alone, &[(1 << 14, 1200.0, 0.0), (1 << 15, 1001.0, 0.0), (1 << 16, 1200.0, 0.0)]);
    let (steps, _) = planned(&model, 8);
    let sizes: Vec<Way> = [1 << 14, 1 << 15, 1 << 16].map(|n| way_at(&steps, n)).into();
    assert_eq!(sizes, [Way::Shared; 3], "{steps:?}");
}

#[test]
fn neither_kind_of_source_decides_alone() {
    let mut model = Model::default();
    let sizes = |ns: f64| curve(&[(1 << 14, ns, 0.0), (1 << 16, ns, 0.0)]);
    // Shared is a little better from fresh sources, alone much better from reused ones.
    for (way, reused, fresh) in [(Way::Shared, 2000.0, 1000.0), (Way::Alone, 1000.0, 1300.0)] {
        model.add(about(way, Source::Reused), sizes(reused)).expect("new");
        model.add(about(way, Source::Fresh), sizes(fresh)).expect("new");
    }
    assert_eq!(way_at(&planned(&model, 8).0, 40_000), Way::Alone);
}

#[test]
fn a_way_that_was_not_measured_is_left_where_it_is_shipped() {
    // The kernel refused its copies when this was measured.
    let mut model = Model::default();
    add(&mut model, Way::Stream, &line(400.0, 6.0, 0.01));
    add(&mut model, Way::Eager, &line(500.0, 3.0, 0.01)[..5]);
    let (steps, _) = planned(&model, 8);
    assert_eq!([way_at(&steps, 3000), way_at(&steps, 20_000), way_at(&steps, 1 << 20)], [Way::Stream, Way::Alone, Way::Shared]);
}

#[test]
fn too_many_borders_are_too_many() {
    // Two ways that take turns, far apart, at twenty sizes.
    let mut model = Model::default();
    let turns = |odd: usize| (9..=28).map(|s| (1usize << s, if s % 2 == odd { 1000.0 } else { 3000.0 }, 0.0)).collect::<Vec<_>>();
    for (at, way) in [Way::Stream, Way::Alone, Way::Shared].into_iter().enumerate() {
        add(&mut model, way, &turns(at % 2));
    }
    let (steps, slack) = planned(&model, 8);
    assert!(steps.len() <= 8 && slack > 1.0, "{slack} {steps:?}");
}
