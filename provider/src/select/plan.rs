//! From costs to rows: which way carries which sizes, with few borders. A pure function; whether the engine can run a way, and what
//! it would do without any costs, comes in as functions.
//!
//! **The bound**: at each size of the grid (four to a doubling) the chosen way costs at most [`tolerance`] more than the best
//! one, as a part of the best one's time. The tolerance is [`MIN_GAIN`], or more where the times are noisy: within it nothing is known
//! to be better, and then the fewest borders count, and after these what the shipped table says.

use super::model::{Case, Mean, Model};
use crate::config::force::Way;

/// What a way must save, as a part of the time, to bring a border.
pub const MIN_GAIN: f64 = 0.04;

/// What is possible, apart from costs.
pub(super) struct Menu<'a> {
    /// Sizes at which the answers of the functions change, ascending, the first one 0.
    pub borders: &'a [usize],
    /// The way of the shipped table, which is always possible.
    pub shipped: &'a dyn Fn(usize) -> Way,
    /// Whether a way may carry a size.
    pub possible: &'a dyn Fn(Way, usize) -> bool,
}

/// Sizes from here on, up to the next step, go by a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub from: usize,
    pub way: Way,
    /// Whether costs were known, at its first size at least; else it is the shipped way.
    pub measured: bool,
}

/// The excess over the best way that is still taken for as good, from what is known of both: more than their noise, and more than
/// [`MIN_GAIN`]. `slack` is 1, or more if the table would have too many rows otherwise.
pub(super) fn tolerance(way: Mean, best: Mean, slack: f64) -> f64 {
    slack * way.noise.hypot(best.noise).max(MIN_GAIN)
}

/// Steps that are few enough, and the slack that this took.
pub(super) fn plan(model: &Model, case: Case, menu: &Menu, few: &dyn Fn(&[Step]) -> bool) -> (Vec<Step>, f64) {
    let grid = grid(model.range(case), menu.borders);
    let mut slack = 1.0;
    // With enough slack everything is as good as the shipped way, and the shipped table is short.
    for _ in 0..64 {
        let steps = fewest(&grid.iter().map(|size| Cell::new(model, case, menu, *size, slack)).collect::<Vec<_>>());
        if few(&steps) {
            return (steps, slack);
        }
        slack *= 2.0;
    }
    let shipped = |size: &usize| Step { from: *size, way: (menu.shipped)(*size), measured: false };
    (merged(menu.borders.iter().map(shipped)), slack)
}

/// All borders of the menu, and four sizes to each doubling in the measured range.
fn grid(range: Option<(usize, usize)>, borders: &[usize]) -> Vec<usize> {
    let mut grid = borders.to_vec();
    if let Some((first, last)) = range {
        let quarters = (2..usize::BITS - 2).flat_map(|shift| (4..8).map(move |q| q << (shift - 2)));
        grid.extend(quarters.filter(|size: &usize| (first..=last).contains(size)));
    }
    grid.sort_unstable();
    grid.dedup();
    grid
}

/// A size of the grid, for all sizes up to the next one.
struct Cell {
    from: usize,
    shipped: Way,
    measured: bool,
    /// Ways that are good enough, and what each takes more than the best, as a logarithm.
    good: Vec<(Way, f64)>,
}

impl Cell {
    fn new(model: &Model, case: Case, menu: &Menu, from: usize, slack: f64) -> Cell {
        let shipped = (menu.shipped)(from);
        let possible = || Way::CARRIERS.into_iter().filter(|w| *w == shipped || (menu.possible)(*w, from));
        let known: Vec<(Way, Mean)> = possible().filter_map(|w| Some((w, model.mean(case, w, from)?))).collect();
        let best = known.iter().map(|(_, m)| *m).min_by(|a, b| a.ln.total_cmp(&b.ln));
        let measured = known.iter().any(|(w, _)| *w == shipped);
        let good = match best {
            // Nothing is known of any way: no reason to change.
            None => possible().map(|w| (w, 0.0)).collect(),
            // Others were measured, the shipped way was not (the kernel refused it, or it is new): it may well be better.
            Some(_) if !measured => vec![(shipped, 0.0)],
            Some(best) => {
                let within = |m: &Mean| m.ln - best.ln <= tolerance(*m, best, slack).ln_1p();
                known.into_iter().filter(|(_, m)| within(m)).map(|(w, m)| (w, m.ln - best.ln)).collect()
            }
        };
        Cell { from, shipped, measured, good }
    }
}

/// What counts first: borders that the shipped table does not have, then sizes that do not go as there, then time.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Price {
    borders: u32,
    changes: u32,
    excess: f64,
}

/// A way of a cell, with the cheapest road to it.
struct Road {
    way: Way,
    price: Price,
    /// Which road of the cell before.
    before: usize,
}

/// The steps with the lowest price. Every cell has a way that is good enough, so there is a road.
fn fewest(cells: &[Cell]) -> Vec<Step> {
    let mut roads: Vec<Vec<Road>> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let here = |&(way, excess): &(Way, f64)| {
            let changes = u32::from(way != cell.shipped);
            let Some(last) = roads.last() else {
                return Some(Road { way, price: Price { borders: 0, changes, excess }, before: 0 });
            };
            let onward = |road: &Road| {
                let own = road.way == cells[at - 1].shipped && way == cell.shipped;
                let p = road.price;
                let borders = p.borders + u32::from(road.way != way && !own);
                Price { borders, changes: p.changes + changes, excess: p.excess + excess }
            };
            let priced = last.iter().enumerate().map(|(before, road)| Road { way, price: onward(road), before });
            priced.min_by(|a, b| order(a.price, b.price))
        };
        let next = cell.good.iter().filter_map(here).collect();
        roads.push(next);
    }
    let last = roads.last().and_then(|r| r.iter().enumerate().min_by(|a, b| order(a.1.price, b.1.price)));
    let Some((mut at, _)) = last else { return Vec::new() };
    let mut steps = Vec::with_capacity(cells.len());
    for (cell, roads) in cells.iter().zip(&roads).rev() {
        let way = roads[at].way;
        steps.push(Step { from: cell.from, way, measured: cell.measured || way != cell.shipped });
        at = roads[at].before;
    }
    merged(steps.into_iter().rev())
}

fn order(a: Price, b: Price) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal)
}

/// Without steps that change nothing. What is not known goes on as it was.
fn merged(steps: impl Iterator<Item = Step>) -> Vec<Step> {
    let mut few: Vec<Step> = Vec::new();
    for step in steps {
        if few.last().is_none_or(|last| last.way != step.way || (step.measured && !last.measured)) {
            few.push(step);
        }
    }
    few
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
