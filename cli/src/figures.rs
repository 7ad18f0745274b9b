//! Arithmetic on measured times: medians and spreads, where one way becomes quicker than another, what a rule for choosing costs.
//! Knows no process and no protocol, so that it can be tested against the obvious.

use serde::Serialize;
use std::collections::BTreeMap;

/// The middle of some values; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// How far the middle half of some values is apart, as a part of their median.
pub(crate) fn spread(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = median(&sorted);
    if sorted.is_empty() || middle == 0.0 {
        return 0.0;
    }
    let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
    (at(3) - at(1)) / middle
}

/// Times of one way: for each size one value a round, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Nanoseconds by size in bytes.
    pub times: BTreeMap<usize, Vec<f64>>,
}

impl Series {
    /// The median at a size, if it was measured.
    pub fn at(&self, size: usize) -> Option<f64> {
        self.times.get(&size).filter(|t| !t.is_empty()).map(|t| median(t))
    }
}

/// A size from which on one way is quicker that was not at the size before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Crossover {
    /// The way that was quicker below.
    pub below: String,
    /// The way that is quicker from here on.
    pub from_here: String,
    /// The first size, in bytes.
    pub size: usize,
    /// Rounds in which both sizes say the same as the medians.
    pub agree: usize,
    /// Rounds that were compared.
    pub rounds: usize,
}

impl Crossover {
    /// Whether enough rounds say the same that it is more than noise.
    pub fn is_told(&self) -> bool {
        2 * self.agree >= self.rounds
    }
}

/// Where two ways cross. They are compared at the sizes that both carry.
pub(crate) fn crossovers(a: (&str, &Series), b: (&str, &Series)) -> Vec<Crossover> {
    let common: Vec<usize> = a.1.times.keys().copied().filter(|s| a.1.at(*s).is_some() && b.1.at(*s).is_some()).collect();
    let quicker = |size: usize| a.1.at(size) < b.1.at(size);
    let mut found = Vec::new();
    for pair in common.windows(2) {
        let (before, now) = (quicker(pair[0]), quicker(pair[1]));
        if before == now {
            continue;
        }
        let round = |size: usize, i: usize| Some(a.1.times.get(&size)?.get(i)? < b.1.times.get(&size)?.get(i)?);
        let rounds = pair.iter().flat_map(|s| [&a.1.times[s], &b.1.times[s]]).map(Vec::len).min().unwrap_or(0);
        let agree = (0..rounds).filter(|i| round(pair[0], *i) == Some(before) && round(pair[1], *i) == Some(now)).count();
        let (below, from_here) = if before { (a.0, b.0) } else { (b.0, a.0) };
        found.push(Crossover { below: below.into(), from_here: from_here.into(), size: pair[1], agree, rounds });
    }
    found
}

/// What a rule for choosing costs against the best way for each size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Regret {
    /// The geometric mean over the sizes, as a part of the best time: 0.1 is a tenth slower.
    pub mean: f64,
    /// At the worst size.
    pub worst: f64,
    /// That size, in bytes.
    pub at: usize,
    /// Sizes that were compared.
    pub sizes: usize,
}

/// The regret of a rule that names a series for each size, which need not be one of the ways: then it can be less than nothing.
/// Sizes at which the named one or no way was measured do not count.
pub(crate) fn regret<'a>(ways: &[&Series], rule: impl Fn(usize) -> Option<&'a Series>) -> Regret {
    let mut sizes: Vec<usize> = ways.iter().flat_map(|s| s.times.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut result = Regret { mean: 0.0, worst: 0.0, at: 0, sizes: 0 };
    let mut logs = 0.0;
    for size in sizes {
        let best = ways.iter().filter_map(|s| s.at(size)).reduce(f64::min).filter(|best| *best > 0.0);
        let Some((best, chosen)) = best.zip(rule(size).and_then(|s| s.at(size))) else { continue };
        let over = chosen / best;
        logs += over.ln();
        if over - 1.0 > result.worst || result.sizes == 0 {
            (result.worst, result.at) = (over - 1.0, size);
        }
        result.sizes += 1;
    }
    if result.sizes > 0 {
        result.mean = (logs / result.sizes as f64).exp() - 1.0;
    }
    result
}

/// What a series takes more than another one, over the sizes that both have, as [`regret`] tells it; `None` if there is no such size.
pub(crate) fn excess(series: &Series, limit: &Series) -> Option<Regret> {
    let both = |size: &usize| series.at(*size).zip(limit.at(*size)).filter(|(_, limit)| *limit > 0.0);
    let over: Vec<(usize, f64)> = limit.times.keys().filter_map(|s| both(s).map(|(a, b)| (*s, a / b))).collect();
    let (at, worst) = over.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let logs: f64 = over.iter().map(|(_, o)| o.ln()).sum();
    Some(Regret { mean: (logs / over.len() as f64).exp() - 1.0, worst: worst - 1.0, at, sizes: over.len() })
}

/// How far the times of a size and of twice that size are apart, beyond the doubling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    /// The smaller size, in bytes.
    pub from: usize,
    /// The time of the larger one over twice the time of the smaller one; or the smaller one's over the larger one's, if that is more.
    pub apart: f64,
}

/// The worst step of a series; `None` if no size is the double of another.
pub(crate) fn worst_step(series: &Series) -> Option<Step> {
    let step = |from: usize| {
        let (small, large) = (series.at(from)?, series.at(2 * from)?);
        Some(Step { from, apart: (large / (2.0 * small)).max(small / large) })
    };
    series.times.keys().filter_map(|from| step(*from)).max_by(|a, b| a.apart.total_cmp(&b.apart))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn series(table: &[Vec<f64>]) -> Series {
        Series { times: table.iter().enumerate().map(|(i, times)| (1 << i, times.clone())).collect() }
    }

    fn table() -> impl Strategy<Value = Vec<Vec<f64>>> {
        proptest::collection::vec(proptest::collection::vec(1.0f64..100.0, 3), 1..8)
    }

    proptest! {
        #[test]
        fn a_median_has_as_many_above_as_below(values in proptest::collection::vec(-1e6f64..1e6, 1..40)) {
            let m = median(&values);
            let (below, above) = (values.iter().filter(|v| **v < m).count(), values.iter().filter(|v| **v > m).count());
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
            prop_assert!(values.len() % 2 == 0 || values.contains(&m));
            prop_assert!(values.iter().all(|v| *v <= 0.0) || spread(&values.iter().map(|v| v.abs()).collect::<Vec<_>>()) >= 0.0);
        }

        /// Walking up the sizes and swapping the leader at each crossover tells who leads everywhere.
        #[test]
        fn crossovers_tell_who_leads(a in table(), b in table()) {
            let (sa, sb) = (series(&a), series(&b));
            let found = crossovers(("a", &sa), ("b", &sb));
            let mut leader = if median(&a[0]) < median(&b[0]) { "a" } else { "b" };
            for i in 0..a.len().min(b.len()) {
                if let Some(c) = found.iter().find(|c| c.size == 1 << i) {
                    prop_assert_eq!(c.below.as_str(), leader);
                    leader = if leader == "a" { "b" } else { "a" };
                    prop_assert_eq!(c.from_here.as_str(), leader);
                    let says = |r: usize| (a[i - 1][r] < b[i - 1][r]) == (leader == "b") && (a[i][r] < b[i][r]) == (leader == "a");
                    prop_assert_eq!((c.agree, c.rounds), ((0..3).filter(|r| says(*r)).count(), 3));
                }
                prop_assert_eq!(leader, if median(&a[i]) < median(&b[i]) { "a" } else { "b" });
            }
        }

        #[test]
        fn regret_is_what_one_counts_by_hand(a in table(), b in table(), from in 0usize..8) {
            let (sa, sb) = (series(&a), series(&b));
            let got = regret(&[&sa, &sb], |size| Some(if size >= 1 << from { &sb } else { &sa }));
            let (mut product, mut worst, mut n) = (1.0, 0.0f64, 0);
            for i in 0..a.len().max(b.len()) {
                let chosen = if i >= from { &b } else { &a };
                let Some(chosen) = chosen.get(i) else { continue };
                let best = [a.get(i), b.get(i)].into_iter().flatten().map(|t| median(t)).reduce(f64::min).expect("one of them");
                product *= median(chosen) / best;
                worst = worst.max(median(chosen) / best - 1.0);
                n += 1;
            }
            prop_assert_eq!(got.sizes, n);
            if n > 0 {
                prop_assert!((got.mean - (f64::powf(product, 1.0 / n as f64) - 1.0)).abs() < 1e-9);
                prop_assert!((got.worst - worst).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn steps_and_limits_by_hand() {
        // 1, 2, 4 bytes: a doubling, and three times as much for twice the bytes.
        let a = series(&[vec![10.0], vec![20.0], vec![60.0]]);
        assert_eq!(worst_step(&a), Some(Step { from: 2, apart: 1.5 }));
        assert_eq!(
            worst_step(&series(&[vec![30.0], vec![10.0]])),
            Some(Step { from: 1, apart: 3.0 }),
            "less time for more bytes"
        );
        assert_eq!(worst_step(&series(&[vec![30.0]])), None);
        let mut limit = series(&[vec![10.0], vec![10.0]]);
        let over = excess(&a, &limit).expect("two sizes");
        assert!((over.mean - (2f64.sqrt() - 1.0)).abs() < 1e-12 && (over.worst, over.at, over.sizes) == (1.0, 2, 2), "{over:?}");
        limit.times = [(8, vec![1.0])].into();
        assert_eq!(excess(&a, &limit), None);
    }

    #[test]
    fn by_hand() {
        assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (0.0, 2.0, 2.5));
        assert_eq!((spread(&[]), spread(&[5.0, 5.0, 5.0]), spread(&[1.0, 2.0, 3.0, 4.0, 5.0])), (0.0, 0.0, 2.0 / 3.0));
        let (a, b) = (series(&[vec![1.0], vec![2.0], vec![9.0]]), series(&[vec![2.0], vec![3.0], vec![4.0]]));
        let c = crossovers(("a", &a), ("b", &b));
        assert_eq!((c.len(), c[0].size, c[0].from_here.as_str(), c[0].agree), (1, 4, "b", 1));
        let always_a = regret(&[&a, &b], |_| Some(&a));
        assert_eq!((always_a.worst, always_a.at, always_a.sizes), (1.25, 4, 3));
    }
}
