//! How the memory between two processes is best used here: values of parameters that depend on the processor, each measured beside the others in the same rounds.
//!
//! What is shipped is known to be good for the processors on which it was measured (`docs/adr/0016-profile.md` of the engine); what another one likes can differ by
//! factors, and nothing but measuring tells.

use crate::bench::{Asked, longest, measure};
use crate::figures::{median, spread};
use crate::kind::{Kind, Lane, State};
use crate::progress::Progress;
use crate::report::percent;
use crate::{Failure, bench};
use rustmx::Config;
use rustmx::config::force::Way;
use rustmx::config::{PARAMS, Param};
use rustmx::mem::engine::Engine;
use rustmx::select::model::Memory;
use rustmx::select::profile::MEASURED;
use serde::Serialize;
use std::fmt;

/// One way to use it.
#[derive(Debug, Serialize)]
struct Candidate {
    /// `NAME=value` of what differs among the candidates.
    settings: Vec<String>,
    /// How long messages took, as a part of what they take with the shipped values: the median of the rounds.
    time: f64,
    /// How far the middle half of the rounds is apart, as a part of that.
    spread: f64,
}

/// What was found.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    candidates: Vec<Candidate>,
    /// `NAME=value`: what is better here than what is shipped, by more than it varies.
    pub best: Vec<String>,
    /// The same, and what is shipped or set of the others.
    #[serde(skip)]
    pub all: Vec<String>,
}

/// A parameter and the values to be tried.
type Tried = (&'static Param, &'static [&'static str]);

/// What is tried together, and with which sizes: whose hands lines are in decides of all but the shortest messages, asking for
/// them ahead of those of middle length, how they are copied of these and of the fragments of long ones; then whether short ones are handed on, in how many pieces middle ones come, and how long fragments
/// are; at last, from when on the kernel is quicker for what the receiver has in its cache.
const STAGES: [Stage; 6] = [
    Stage {
        values: &[("rings", &["sealed", "open", "taken"]), ("fetch_ahead", &["0", "600"])],
        sizes: &[1 << 10, 4 << 10, 16 << 10, 128 << 10],
        wanted: by_ring,
    },
    Stage {
        values: &[("record_copy", &["memcpy", "ahead", "vectors", "abreast"])],
        sizes: &[4 << 10, 16 << 10, 64 << 10, 128 << 10],
        wanted: by_ring,
    },
    Stage { values: &[("hand_on", &["0", "16k"])], sizes: &[512, 1 << 10, 4 << 10, 12 << 10], wanted: by_ring },
    Stage {
        values: &[("announce_min", &["8k", "16k"]), ("announce_pieces", &["2", "4", "8"])],
        sizes: &[8 << 10, 16 << 10, 32 << 10],
        wanted: by_ring,
    },
    Stage { values: &[("fragment", &["8k", "16k", "32k"])], sizes: &[64 << 10, 256 << 10, 1 << 20], wanted: by_ring },
    Stage {
        values: &[("again_min", &["1024m", "32k", "16k", "12k"])],
        sizes: &[12 << 10, 16 << 10, 24 << 10, 32 << 10, 48 << 10],
        wanted: as_chosen,
    },
];

/// Names of parameters with the values to be tried of each, and the sizes of messages.
struct Stage {
    values: &'static [(&'static str, &'static [&'static str])],
    sizes: &'static [usize],
    /// By which way each goes.
    wanted: fn(Lane, Kind, usize) -> bool,
}

impl Stage {
    /// Those of its sizes that can go so: rings may be too short for a record that long. Without any there is nothing to find out.
    fn possible(&self, config: &Config) -> Vec<usize> {
        let kind = Kind { memory: Memory::Private, state: State::Reused };
        let goes = |size| Lane::of_tables().any(|lane| (self.wanted)(lane, kind, size) && size <= longest(lane, config));
        self.sizes.iter().copied().filter(|size| goes(*size)).collect()
    }
}

/// By how much a candidate must be better than what is shipped, at least.
const WORTH: f64 = 0.04;

impl Found {
    /// `config` with what is best here.
    pub fn applied(&self, config: &Config) -> Config {
        let mut config = config.clone();
        for (param, value) in self.best.iter().filter_map(|setting| parts(setting)) {
            param.suggest(&mut config, value);
        }
        config
    }

    /// Takes note of the best of some candidates, the first of which is what is shipped.
    fn decide(&mut self, candidates: Vec<Candidate>) {
        let better = |c: &&Candidate| c.time < 1.0 - WORTH.max(c.spread / 2.0);
        let best = candidates.iter().skip(1).filter(better).min_by(|a, b| a.time.total_cmp(&b.time));
        if let (Some(best), Some(shipped)) = (best, candidates.first()) {
            self.best.extend(best.settings.iter().filter(|setting| !shipped.settings.contains(setting)).cloned());
        }
        self.candidates.extend(candidates);
    }

    /// What the processes that measure get, so that nothing else counts there.
    fn fix(&mut self, config: &Config) {
        let config = self.applied(config);
        self.all = PARAMS.iter().filter(|p| MEASURED.contains(&p.name)).map(|p| setting(p, &p.value(&config))).collect();
        // What goes as the provider chooses goes by what is shipped, and not by what an earlier profile says.
        self.all.extend(parameter("profile").map(|p| setting(p, "off")));
    }
}

fn parameter(name: &str) -> Option<&'static Param> {
    PARAMS.iter().find(|p| p.name == name)
}

fn setting(param: &Param, value: &str) -> String {
    format!("{}={value}", param.env())
}

fn parts(setting: &str) -> Option<(&'static Param, &str)> {
    let (name, value) = setting.split_once('=')?;
    Some((PARAMS.iter().find(|p| p.env() == name)?, value))
}

/// Whether the processor has a way to copy.
type Has = fn(Engine) -> bool;

/// What a value comes to here: ways to copy that the processor does not have are `memcpy` under another name.
fn comes_to<'a>(name: &str, value: &'a str, has: Has) -> &'a str {
    let engine = match (name, value) {
        ("record_copy", "ahead") => Engine::Ahead,
        ("record_copy", "vectors") => Engine::Vectors,
        ("record_copy", "abreast") => Engine::Abreast,
        _ => return value,
    };
    if has(engine) { value } else { "memcpy" }
}

/// All combinations of values that differ here, the one in force with `config` first.
fn combinations(tried: &[Tried], config: &Config, has: Has) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for (param, values) in tried {
        let own = param.value(config);
        let comes_to = |value| comes_to(param.name, value, has);
        let mut known = vec![comes_to(&own)];
        let others = values.iter().filter(|v| {
            let new = !known.contains(&comes_to(v));
            known.push(comes_to(v));
            new
        });
        let others: Vec<String> = others.map(|v| (*v).to_owned()).collect();
        let values: Vec<String> = std::iter::once(own.clone()).chain(others).collect();
        all = all.into_iter().flat_map(|some| values.iter().map(move |v| [&some[..], &[setting(param, v)]].concat())).collect();
    }
    all
}

/// Messages through the rings, by the ways that can carry them.
fn by_ring(lane: Lane, _kind: Kind, size: usize) -> bool {
    match lane {
        Lane::Only(Way::Eager) => size <= 32 << 10,
        Lane::Only(Way::Stream) => size > 32 << 10,
        _ => false,
    }
}

/// Messages as the provider sends them.
fn as_chosen(lane: Lane, _kind: Kind, _size: usize) -> bool {
    lane == Lane::Chosen
}

/// The logarithm of the time that messages take, on average over all that is measured: also answered by their like, for who answers in the memory in which the
/// question came has another time than who only sends.
fn measured(stage: &Stage, settings: &[String], config: &Config, read: bool) -> Result<f64, Failure> {
    let sizes = &stage.possible(config);
    let kinds = [State::Reused, State::Fresh].map(|state| Kind { memory: Memory::Private, state }).into();
    let asked = Asked {
        sizes,
        kinds,
        rounds: 1,
        patience: None,
        quick: true,
        wanted: stage.wanted,
        limits_from: None,
        heap: Err("not asked for".into()),
        settings,
        quiet: true,
        to_and_fro: true,
        read,
    };
    let results = measure(&asked, config)?;
    let times: Vec<f64> = results.cells.iter().map(|cell| cell.median_ns.ln()).collect();
    if times.is_empty() {
        return Err("no message that long goes through these rings; a larger FI_RUSTMX_RING_SIZE helps".into());
    }
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// Finds out.
///
/// # Errors
/// What keeps it from being measured, and what helps.
pub(crate) fn find(config: &Config, quick: bool, read: bool) -> Result<Found, Failure> {
    bench::cores()?;
    let rounds = if quick { 4 } else { 8 };
    let mut found = Found { candidates: Vec::new(), best: Vec::new(), all: Vec::new() };
    found.fix(config);
    for stage in &STAGES {
        let values = stage.values;
        // Of what the user set nothing is to be found out.
        let free = values.iter().filter(|(name, _)| !config.says(name));
        let tried: Vec<Tried> = free.filter_map(|(name, values)| Some((parameter(name)?, *values))).collect();
        if tried.is_empty() {
            continue;
        }
        let now = found.applied(config);
        let all = combinations(&tried, &now, Engine::is_there);
        if all.len() == 1 || stage.possible(&now).is_empty() {
            continue;
        }
        let mut bar = Progress::new((rounds * all.len()) as u64);
        bar.set_message(values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
        let mut times = vec![Vec::new(); all.len()];
        for round in 0..rounds {
            let mut took = vec![0.0; all.len()];
            // Forwards and backwards in turn: the machine may change meanwhile.
            for i in 0..all.len() {
                let i = if round % 2 == 1 { all.len() - 1 - i } else { i };
                let mut settings = found.all.clone();
                settings.retain(|known| !all[i].iter().any(|own| parts(own).map(|p| p.0.name) == parts(known).map(|p| p.0.name)));
                settings.extend(all[i].iter().cloned());
                took[i] = measured(stage, &settings, &now, read)?;
                bar.step();
            }
            for (times, ln) in times.iter_mut().zip(&took) {
                times.push((ln - took[0]).exp());
            }
        }
        bar.finish();
        let candidate = |(settings, times): (_, Vec<f64>)| Candidate { settings, time: median(&times), spread: spread(&times) };
        found.decide(all.into_iter().zip(times).map(candidate).collect());
        found.fix(config);
    }
    Ok(found)
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.candidates.is_empty() {
            return writeln!(out, "How the memory between two processes is used was set, or can be no other here.");
        }
        writeln!(out, "The memory between two processes, 1 KiB to 1 MiB; times beside what is shipped:")?;
        for Candidate { settings, time, spread } in &self.candidates {
            writeln!(out, "  {:<48} {time:>5.2} ± {}", settings.join(" "), percent(*spread))?;
        }
        match &self.best[..] {
            [] => writeln!(out, "What is shipped stays."),
            best => writeln!(out, "Better here: {}", best.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustmx::config::processor::Processor;

    fn candidate(settings: &[&str], time: f64, spread: f64) -> Candidate {
        Candidate { settings: settings.iter().map(|s| (*s).into()).collect(), time, spread }
    }

    fn decided(candidates: Vec<Candidate>) -> Vec<String> {
        let mut found = Found { candidates: Vec::new(), best: Vec::new(), all: Vec::new() };
        found.decide(candidates);
        found.best
    }

    #[test]
    fn what_is_shipped_comes_first_and_stays_unless_something_is_better_by_more_than_it_varies() {
        let config = Config::on(Processor::Zen4);
        let tried: Vec<Tried> =
            STAGES[0].values.iter().map(|(name, values)| (parameter(name).expect("known"), *values)).collect();
        let all = combinations(&tried, &config, Engine::is_there);
        assert_eq!((all.len(), &all[0][..]), (6, &["FI_RUSTMX_RINGS=taken".to_string(), "FI_RUSTMX_FETCH_AHEAD=0".into()][..]));
        let (a, b) = (["FI_RUSTMX_RINGS=open", "FI_RUSTMX_FETCH_AHEAD=0"], ["FI_RUSTMX_RINGS=taken", "FI_RUSTMX_FETCH_AHEAD=0"]);
        assert!(decided(vec![candidate(&a, 1.0, 0.0), candidate(&b, 0.97, 0.0)]).is_empty(), "too little");
        assert!(decided(vec![candidate(&a, 1.0, 0.0), candidate(&b, 0.8, 0.5)]).is_empty(), "it varies more");
        assert_eq!(decided(vec![candidate(&a, 1.0, 0.0), candidate(&b, 0.5, 0.1)]), ["FI_RUSTMX_RINGS=taken"], "what differs");
    }

    /// What the processor does not have goes by `memcpy`: tried, it would differ by noise only.
    #[test]
    fn what_the_processor_does_not_have_is_not_tried() {
        let tried = [(parameter("record_copy").expect("known"), STAGES[1].values[0].1)];
        let values = |own: &str, has| {
            let mut config = Config::default();
            tried[0].0.parse_into(&mut config, own).expect("a word");
            let all = combinations(&tried, &config, has).concat();
            all.iter().filter_map(|setting| Some(setting.split_once('=')?.1.to_owned())).collect::<Vec<_>>().join(" ")
        };
        let (lines, halves, none): (Has, Has, Has) = (|_| true, |engine| engine != Engine::Vectors, |_| false);
        assert_eq!(values("memcpy", lines), "memcpy ahead vectors abreast");
        assert_eq!(values("memcpy", halves), "memcpy ahead abreast");
        assert_eq!(values("memcpy", none), "memcpy");
        assert_eq!(values("vectors", lines), "vectors memcpy ahead abreast");
        assert_eq!(values("vectors", halves), "vectors ahead abreast", "in force, and memcpy already");
    }

    #[test]
    fn what_is_found_is_applied_where_nobody_says_anything() {
        let mut found = Found { candidates: Vec::new(), best: vec!["FI_RUSTMX_RINGS=taken".into()], all: Vec::new() };
        let mut config = Config::default();
        assert!(found.applied(&config).takes_lines());
        found.fix(&config);
        assert_eq!(
            found.all,
            [
                "FI_RUSTMX_FRAGMENT=8k",
                "FI_RUSTMX_FETCH_AHEAD=600",
                "FI_RUSTMX_HAND_ON=0",
                "FI_RUSTMX_RINGS=taken",
                "FI_RUSTMX_RECORD_COPY=memcpy",
                "FI_RUSTMX_ANNOUNCE_MIN=8k",
                "FI_RUSTMX_ANNOUNCE_PIECES=8",
                "FI_RUSTMX_AGAIN_MIN=1024m",
                "FI_RUSTMX_PROFILE=off"
            ]
        );
        parameter("rings").expect("known").parse_into(&mut config, "sealed").expect("a word");
        assert!(!found.applied(&config).opens_rings());
    }

    /// Whatever size of rings the user sets: what is measured goes through them, and where nothing would, nothing is to be found out.
    #[test]
    fn rings_that_are_too_short_for_a_size_leave_it_out() {
        let with = |ring: &str| {
            let mut config = Config::default();
            parameter("ring_size").expect("known").parse_into(&mut config, ring).expect("allowed");
            config
        };
        let kind = Kind { memory: Memory::Private, state: State::Fresh };
        for ring in ["8k", "12k", "16k", "32k", "64k", "128k", "256k", "1m"] {
            let config = with(ring);
            for stage in &STAGES {
                let lane = |size| Lane::of_tables().find(|lane| (stage.wanted)(*lane, kind, size)).expect("one");
                let (fits, not): (Vec<usize>, Vec<usize>) =
                    stage.sizes.iter().partition(|size| **size <= longest(lane(**size), &config));
                assert_eq!(stage.possible(&config), fits, "{ring}");
                assert!(not.is_empty() || config.ring_size < Config::default().ring_size, "{ring}: {not:?}");
            }
        }
        let announced = |ring| STAGES[3].possible(&with(ring));
        assert_eq!([announced("16k"), announced("64k")], [vec![], vec![8 << 10]]);
    }

    /// All values that are tried are allowed, all parameters are those of which a profile may say the best value, and each message goes by one way.
    #[test]
    fn what_is_tried_makes_sense() {
        let mut tried = Vec::new();
        for stage in STAGES {
            for (name, values) in stage.values {
                let param = parameter(name).expect("known");
                assert!(values.iter().all(|v| param.suggest(&mut Config::default(), v)), "{name}");
                tried.push(*name);
            }
            let kind = Kind { memory: Memory::Private, state: State::Reused };
            for size in stage.sizes {
                assert_eq!(Lane::all().filter(|lane| (stage.wanted)(*lane, kind, *size)).count(), 1, "{size}");
            }
        }
        tried.sort_unstable();
        let mut known = MEASURED;
        known.sort_unstable();
        assert_eq!(tried, known);
    }
}
