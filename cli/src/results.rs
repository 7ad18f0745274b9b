//! What was measured, and what follows from it.

use crate::Failure;
use crate::figures::{Crossover, Regret, Series, Step, crossovers, excess, median, regret, spread, worst_step};
use crate::kind::{Kind, Lane, State, WAYS};
use rustmx::config::force::Way;
use rustmx::select::model::Memory;
use serde::Serialize;

/// What a cell of two processes that only copy has for a way.
pub(crate) const LIMIT: &str = "limit";

/// Where and how it was measured.
#[derive(Clone, Serialize)]
pub(crate) struct Machine {
    pub processor: String,
    pub kernel: String,
    pub cores: [usize; 2],
    pub settings: Vec<String>,
}

/// The times of one way at one size.
#[derive(Serialize)]
pub(crate) struct Cell {
    /// `None`: no message, a plain copy within one process.
    #[serde(flatten)]
    pub kind: Option<Kind>,
    pub way: &'static str,
    pub size: usize,
    pub median_ns: f64,
    /// How far the middle half of the rounds is apart, as a part of the median.
    pub spread: f64,
    pub rounds_ns: Vec<f64>,
    /// Messages that went another way than was asked for: the times are those of a mixture then.
    #[serde(skip_serializing_if = "is_none")]
    pub turned: u64,
}

fn is_none(turned: &u64) -> bool {
    *turned == 0
}

impl Cell {
    /// Of a way that took so long in each round.
    pub fn of(kind: Option<Kind>, way: &'static str, size: usize, rounds_ns: Vec<f64>) -> Cell {
        Cell { kind, way, size, median_ns: median(&rounds_ns), spread: spread(&rounds_ns), rounds_ns, turned: 0 }
    }
}

/// A crossover, and with which buffers.
#[derive(Serialize)]
pub(crate) struct Crossing {
    #[serde(flatten)]
    pub kind: Kind,
    #[serde(flatten)]
    pub crossover: Crossover,
}

/// What a rule costs.
#[derive(Serialize)]
pub(crate) struct Rule {
    #[serde(flatten)]
    pub kind: Kind,
    pub rule: String,
    #[serde(flatten)]
    pub regret: Regret,
}

/// Where the time of what the provider chose jumps most from one size to twice that size.
#[derive(Serialize)]
pub(crate) struct Jump {
    #[serde(flatten)]
    pub kind: Kind,
    #[serde(flatten)]
    pub step: Step,
}

/// How near something comes to two processes that do nothing but copy.
#[derive(Serialize)]
pub(crate) struct Approach {
    #[serde(flatten)]
    pub kind: Kind,
    pub way: &'static str,
    /// More than the limit's time, as a part of that.
    #[serde(flatten)]
    pub over: Regret,
}

/// How fast many messages are that are under way together.
#[derive(Serialize)]
pub(crate) struct Rate {
    pub way: &'static str,
    pub size: usize,
    /// Bytes in a nanosecond.
    pub gb_s: f64,
    pub spread: f64,
}

/// A link in four numbers (`select/network.rs` of the engine), in nanoseconds.
#[derive(Serialize)]
pub(crate) struct Costs {
    pub message_ns: f64,
    pub record_byte_ns: f64,
    pub in_place_ns: f64,
    pub place_byte_ns: f64,
}

/// What was measured of a link beside messages.
#[derive(Serialize)]
pub(crate) struct LinkRun {
    /// As profiles name it.
    pub link: String,
    /// Who was at the other end; `None`: another process here.
    pub peer: Option<String>,
    /// A byte by plain sockets, a value a round.
    pub plain_ns: Vec<f64>,
    pub rates: Vec<Rate>,
    pub costs: Option<Costs>,
}

/// All that was found.
#[derive(Serialize)]
pub(crate) struct Results {
    pub machine: Machine,
    pub rounds: usize,
    /// A message counted as arrived when its receiver had looked at all of it.
    pub read: bool,
    /// One hand-over of a cache line, a value a round.
    pub handover_ns: Vec<f64>,
    /// An empty message, a value a round.
    pub empty_ns: Vec<f64>,
    /// Why the figures should not be trusted much; empty if nothing speaks against them.
    pub unsteady: Vec<String>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
    /// Whether the kernel lets both processes copy from each other.
    #[serde(skip)]
    pub kernel_copies: bool,
    pub cells: Vec<Cell>,
    pub memcpy: Vec<Cell>,
    /// Two processes that copy a half each, and nothing else: by the kernel for private memory, in mapped memory for exported.
    pub limits: Vec<Cell>,
    pub crossovers: Vec<Crossing>,
    pub regret: Vec<Rule>,
    /// What rules cost was found in each half of the rounds, where they know what the other half says; else in all rounds.
    pub regret_by_halves: bool,
    pub steps: Vec<Jump>,
    pub against_limit: Vec<Approach>,
    /// If both processes reached each other by the network. Limits are then those of two plain sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<LinkRun>,
}

impl Results {
    /// From what was measured; the rest is still to be said.
    pub fn of(machine: Machine, rounds: usize, cells: Vec<Cell>, limits: Vec<Cell>) -> Results {
        Results {
            machine,
            rounds,
            read: false,
            handover_ns: Vec::new(),
            empty_ns: Vec::new(),
            unsteady: Vec::new(),
            missing: Vec::new(),
            kernel_copies: false,
            cells,
            memcpy: Vec::new(),
            limits,
            crossovers: Vec::new(),
            regret: Vec::new(),
            regret_by_halves: false,
            steps: Vec::new(),
            against_limit: Vec::new(),
            network: None,
        }
    }

    /// The sizes that were measured, ascending.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.cells.iter().map(|c| c.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The time of memcpy at a size, if that was measured.
    pub fn copy(&self, size: usize) -> Option<&Cell> {
        self.memcpy.iter().find(|c| c.size == size)
    }

    /// The kinds of buffers that were measured, in the order in which they are shown.
    pub fn kinds(&self) -> Vec<Kind> {
        let all = Memory::ALL.iter().flat_map(|m| State::ALL.iter().map(|s| Kind { memory: *m, state: *s }));
        all.filter(|k| self.cells.iter().any(|c| c.kind == Some(*k))).collect()
    }

    /// The lanes that were measured with some buffers.
    pub fn lanes(&self, kind: Kind) -> Vec<Lane> {
        Lane::all().filter(|l| self.cells.iter().any(|c| c.kind == Some(kind) && c.way == l.name())).collect()
    }

    /// What was found of a way and a size.
    pub fn cell(&self, kind: Kind, way: &str, size: usize) -> Option<&Cell> {
        self.cells.iter().find(|c| c.kind == Some(kind) && c.way == way && c.size == size)
    }

    /// The limit at a size.
    pub fn limit(&self, kind: Kind, size: usize) -> Option<&Cell> {
        self.limits.iter().find(|c| c.kind == Some(kind) && c.size == size)
    }

    /// The times of a way.
    pub fn series(&self, kind: Kind, way: &str) -> Series {
        series(&self.cells, kind, way)
    }

    /// Finds where ways overtake each other. Ways that need no exported memory do so with private memory, too, and are compared there.
    pub fn find_crossovers(&mut self, kind: Kind) {
        let all: Vec<(Way, Series)> = WAYS.iter().map(|w| (*w, self.series(kind, w.name()))).collect();
        for (i, (a, times)) in all.iter().enumerate() {
            for (b, others) in &all[i + 1..] {
                if kind.memory == Memory::Exported && !a.needs_loan() && !b.needs_loan() {
                    continue;
                }
                let found = crossovers((a.name(), times), (b.name(), others));
                self.crossovers.extend(found.into_iter().map(|crossover| Crossing { kind, crossover }));
            }
        }
    }

    /// The crossovers with some buffers on which half of the rounds agree or more, and how many others there are: noise makes medians cross, too.
    pub fn crossovers(&self, kind: Kind) -> (Vec<&Crossover>, usize) {
        let all = self.crossovers.iter().filter(|c| c.kind == kind).map(|c| &c.crossover);
        let (told, noise): (Vec<_>, Vec<_>) = all.partition(|c| c.is_told());
        (told, noise.len())
    }

    /// Finds what a rule costs that names a lane for each size. One of which no lane could be measured costs nobody knows what.
    pub fn find_regret(&mut self, kind: Kind, rule: impl Into<String>, choose: impl Fn(usize) -> Lane) {
        let regret = self.regret_of(kind, choose);
        self.regret.extend((regret.sizes > 0).then(|| Rule { kind, rule: rule.into(), regret }));
    }

    /// The same of a rule that is `made` from what was measured, in one half of the rounds by what the other half says, and the other way round: in the rounds that
    /// made it a rule costs next to nothing, whatever it is worth.
    ///
    /// # Errors
    /// Why none can be made.
    pub fn find_regret_of_made<R: Fn(usize) -> Lane>(
        &mut self,
        kind: Kind,
        rule: impl Into<String>,
        made: impl Fn(&Results) -> Result<R, Failure>,
    ) -> Result<(), Failure> {
        let [a, b] = [true, false].map(|first| self.half(first));
        let (x, y) = (a.regret_of(kind, made(&b)?), b.regret_of(kind, made(&a)?));
        let mean = ((1.0 + x.mean) * (1.0 + y.mean)).sqrt() - 1.0;
        let regret = Regret { mean, ..if x.worst >= y.worst { x } else { y } };
        self.regret.extend((regret.sizes > 0).then(|| Rule { kind, rule: rule.into(), regret }));
        self.regret_by_halves = true;
        Ok(())
    }

    /// The messages of half of the rounds: two of four that follow each other, one forwards and one backwards.
    fn half(&self, first: bool) -> Results {
        let of = |cell: &Cell| {
            let rounds = cell.rounds_ns.iter().enumerate().filter(|(i, _)| (i % 4 < 2) == first).map(|(_, ns)| *ns).collect();
            Cell { turned: cell.turned, ..Cell::of(cell.kind, cell.way, cell.size, rounds) }
        };
        let cells = self.cells.iter().map(of).filter(|cell| !cell.rounds_ns.is_empty()).collect();
        Results { read: self.read, ..Results::of(self.machine.clone(), self.rounds, cells, Vec::new()) }
    }

    fn regret_of(&self, kind: Kind, choose: impl Fn(usize) -> Lane) -> Regret {
        let all: Vec<(Lane, Series)> = Lane::of_tables().map(|lane| (lane, self.series(kind, lane.name()))).collect();
        // What the provider chose is held against them, and is none of them.
        let ways: Vec<&Series> = all.iter().filter(|(lane, _)| *lane != Lane::Chosen).map(|(_, series)| series).collect();
        regret(&ways, |size| {
            let chosen = choose(size);
            all.iter().find(|(lane, _)| *lane == chosen).map(|(_, series)| series)
        })
    }

    /// Finds the worst step of what the provider chose.
    pub fn find_step(&mut self, kind: Kind) {
        let step = worst_step(&self.series(kind, Lane::Chosen.name()));
        self.steps.extend(step.map(|step| Jump { kind, step }));
    }

    /// Finds how near each lane comes to the limit.
    pub fn find_approach(&mut self, kind: Kind) {
        let limit = series(&self.limits, kind, LIMIT);
        for lane in self.lanes(kind) {
            let over = excess(&self.series(kind, lane.name()), &limit);
            self.against_limit.extend(over.map(|over| Approach { kind, way: lane.name(), over }));
        }
    }
}

fn series(cells: &[Cell], kind: Kind, way: &str) -> Series {
    let of = cells.iter().filter(|c| c.kind == Some(kind) && c.way == way);
    Series { times: of.map(|c| (c.size, c.rounds_ns.clone())).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the provider chose is compared with the ways, and so are rules: it is none of the ways itself.
    #[test]
    fn regret_is_against_ways_by_hand() {
        let kind = Kind { memory: Memory::Private, state: State::Reused };
        let figures: [(&str, usize, f64); 7] = [
            ("eager", 1024, 100.0),
            ("stream", 1024, 200.0),
            ("chosen", 1024, 50.0),
            ("eager", 2048, 400.0),
            ("stream", 2048, 200.0),
            ("chosen", 2048, 300.0),
            // There is nothing to compare it with.
            ("chosen", 4096, 1.0),
        ];
        let cell = |(way, size, ns)| Cell::of(Some(kind), way, size, vec![ns]);
        let machine = Machine { processor: "a".into(), kernel: "b".into(), cores: [0, 1], settings: Vec::new() };
        let mut results = Results::of(machine, 1, figures.map(cell).into(), Vec::new());
        results.find_regret(kind, "the provider", |_| Lane::Chosen);
        results.find_regret(kind, "eager", |_| Lane::Only(Way::Eager));
        let told: Vec<_> = results.regret.iter().map(|r| (r.regret.mean, r.regret.worst, r.regret.at, r.regret.sizes)).collect();
        // Half the best time of 1 KiB, half as much again at 2 KiB; the best one, and twice the best one.
        for (told, mean, worst) in [(told[0], 0.75f64.sqrt() - 1.0, 0.5), (told[1], 2f64.sqrt() - 1.0, 1.0)] {
            assert!((told.0 - mean).abs() < 1e-9 && (told.1, told.2, told.3) == (worst, 2048, 2), "{told:?}");
        }
    }

    /// Where the medians cross by noise alone hardly any round says the same.
    #[test]
    fn what_few_rounds_say_is_counted_and_not_shown() {
        let kind = Kind { memory: Memory::Private, state: State::Reused };
        // The first pair of sizes: all rounds agree; the second: one of five; the third: none at all, for nothing crosses.
        let all = [
            ("eager", 1024, [1.0; 5]),
            ("stream", 1024, [2.0; 5]),
            ("eager", 2048, [4.0; 5]),
            ("stream", 2048, [3.0, 3.0, 3.0, 3.0, 5.0]),
            ("eager", 4096, [5.0, 9.0, 9.0, 5.0, 5.0]),
            ("stream", 4096, [6.0, 6.0, 6.0, 4.0, 8.0]),
        ];
        let cells = all.map(|(way, size, rounds)| Cell::of(Some(kind), way, size, rounds.into())).into();
        let machine = Machine { processor: "a".into(), kernel: "b".into(), cores: [0, 1], settings: Vec::new() };
        let mut results = Results::of(machine, 5, cells, Vec::new());
        results.find_crossovers(kind);
        let (told, noise) = results.crossovers(kind);
        assert_eq!((told.iter().map(|c| (c.size, c.agree)).collect::<Vec<_>>(), noise), (vec![(2048, 4)], 1));
        let text = crate::report::text(&results);
        assert!(
            text.contains("Crossovers: (1 left out, on which fewer than half of the rounds agree)\n    stream is quicker"),
            "{text}"
        );
        assert!(text.contains("cores 0 and 1, 5 rounds\n") && !text.contains("from 4k on"), "{text}");
    }

    /// A rule that is made from noise does not look good by the same noise.
    #[test]
    fn what_is_made_from_some_rounds_is_judged_by_others() {
        let kind = Kind { memory: Memory::Private, state: State::Reused };
        // Now one, now the other is quicker, and nothing follows from it.
        let all = [("eager", vec![1.0, 1.0, 4.0, 4.0]), ("stream", vec![2.0, 2.0, 2.0, 2.0])];
        let cells = all.map(|(way, rounds)| Cell::of(Some(kind), way, 1024, rounds)).into();
        let machine = Machine { processor: "a".into(), kernel: "b".into(), cores: [0, 1], settings: Vec::new() };
        let mut results = Results::of(machine, 4, cells, Vec::new());
        let quickest = |half: &Results| {
            let best = half.cells.iter().min_by(|a, b| a.median_ns.total_cmp(&b.median_ns)).expect("one").way;
            Ok(move |_| Lane::named(best).expect("known"))
        };
        results.find_regret_of_made(kind, "made", quickest).expect("made");
        results.find_regret_of_made(kind, "eager", |_| Ok(|_| Lane::Only(Way::Eager))).expect("made");
        let told: Vec<_> = results.regret.iter().map(|r| (r.regret.mean, r.regret.worst, r.regret.sizes)).collect();
        // Stream where eager takes half the time, and eager where it takes twice as long; the mean is one of parts.
        for ((mean, worst, sizes), (m, w)) in told.into_iter().zip([(1.0, 1.0), (2f64.sqrt() - 1.0, 1.0)]) {
            assert!((mean - m).abs() < 1e-9 && (worst - w).abs() < 1e-9 && sizes == 1, "{mean} {worst}");
        }
        assert!(results.regret_by_halves);
    }
}
