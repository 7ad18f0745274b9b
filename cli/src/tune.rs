//! `rustmx tune`: measures this machine as `compare` does, and keeps what it found as a profile (`select/profile.rs` of the engine), by
//! which the provider chooses protocols from then on.

use crate::bench::{Asked, longest, measure};
use crate::figures::median;
use crate::kind::{Kind, Lane, State, WAYS};
use crate::report::{percent, time};
use crate::results::{Cell, Costs, Results};
use crate::rows::{self, Table};
use crate::settings::Found;
use crate::{Failure, environment, far, heap, network, output, partner, reach, report, settings};
use rustmx::config::force::Way;
use rustmx::config::profile::ProfileChoice;
use rustmx::config::show_bytes;
use rustmx::log::tell;
use rustmx::select::model::{About, Case, Curve, MOST_SPREAD, Memory, Model, Operation, PeerClass, Point};
use rustmx::select::network::LinkCosts;
use rustmx::select::profile::{Key, LONGEST, Profile, Standing, own_path};
use rustmx::select::{MIN_GAIN, Selection, Tuned, record_max};
use rustmx::sys::own_file::{self, may_replace};
use rustmx::{Config, INLINE_MAX};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Command line.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer sizes, rounds and messages: seconds, and a table that keeps the default where these cannot tell.
    #[arg(long)]
    pub quick: bool,
    /// For programs that look at once at all that they receive: let times end when they have. What both copied lies in two caches when it has arrived.
    #[arg(long, conflicts_with = "to")]
    pub read: bool,
    /// Print what was found and save nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object on standard output instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Where to save the profile, instead of FI_RUSTMX_PROFILE or the user's own place.
    #[arg(long, value_name = "PATH", conflicts_with = "dry_run")]
    pub output: Option<PathBuf>,
    /// Measure the way to another host, where `rustmx compare --listen` waits, and add it to the profile that is in force. Without this,
    /// this machine and its loopback interface are measured.
    #[arg(long, value_name = "HOST:PORT", value_parser = partner::place, conflicts_with = "heap")]
    pub to: Option<String>,
    /// The preloadable heap, if it lies neither beside this program nor in FI_PROVIDER_PATH. Without it nothing is found out about exported memory.
    #[arg(long, value_name = "PATH")]
    pub heap: Option<PathBuf>,
}

/// The tables that are compared: what they are called, and whether they are made by what was measured.
const RULES: [(&str, bool); 2] = [("the default", false), ("this profile", true)];

/// Where other programs run, all rounds would take minutes and say no more; a minute is what the user was promised.
const PATIENCE: Duration = Duration::from_secs(35);
/// The same for the network.
const FAR_PATIENCE: Duration = Duration::from_secs(15);

/// Sizes at which two ways differ, but by less than they vary.
#[derive(Debug, PartialEq, Serialize)]
struct Undecided {
    memory: &'static str,
    /// First and last size.
    from: usize,
    to: usize,
    /// What the table keeps.
    kept: &'static str,
    /// What was quicker in the medians.
    quicker: &'static str,
    /// By how much at most, as a part of its time.
    by: f64,
}

/// All that is told.
#[derive(Serialize)]
struct Report<'a> {
    /// Where it was saved.
    #[serde(serialize_with = "output::path")]
    saved: Option<&'a Path>,
    /// How the memory between two processes is best used.
    settings: &'a Found,
    #[serde(flatten)]
    table: Table,
    undecided: Vec<Undecided>,
    /// The way to other hosts that was measured, too.
    link: FoundLink,
    #[serde(flatten)]
    results: &'a Results,
}

/// Sizes to measure: powers of two, between them where borders are likely, and the longest that goes in one record. The longest of all is
/// beyond most caches in any case: what is best there is taken for best from there on.
fn sizes(quick: bool, record: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (6..=24).map(|shift| 1usize << shift).collect();
    // What the last one beside its header takes is not what can be told from shorter ones: those beyond it have another slope.
    sizes.extend([INLINE_MAX, record]);
    if quick {
        sizes.retain(|size| ![1 << 21, 1 << 23].contains(size));
    } else {
        sizes.extend((11..=18).map(|shift| 3usize << shift));
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// # Errors
/// What keeps it from being measured or saved, and what helps.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (config, ignored) = environment::read();
    ignored.iter().for_each(|what| tell("rustmx", what));
    let path = match options.dry_run {
        true => None,
        false => Some(destination(options, &config)?),
    };
    let standing = Standing::look(&config);
    if let Some(to) = &options.to {
        return run_link(options, (&config, path.as_deref()), &standing, to);
    }
    if config.shm == 0 {
        // All of it would be figures of the network, for jobs that have shared memory.
        return Err(
            "FI_RUSTMX_SHM=no: this machine is measured through its shared memory, and the loopback interface besides; unset it"
                .into(),
        );
    }
    let sizes = sizes(options.quick, longest(Lane::Only(Way::Eager), &config));
    let heap = heap::find(options.heap.as_deref())?;
    let kinds = Memory::ALL.iter().flat_map(|m| [State::Reused, State::Fresh].map(|state| Kind { memory: *m, state })).collect();
    let rounds = if options.quick { 5 } else { 12 };
    let found = settings::find(&config, options.quick, options.read)?;
    let config = found.applied(&config);
    let asked = Asked {
        sizes: &sizes,
        kinds,
        rounds,
        patience: Some(PATIENCE),
        quick: options.quick,
        wanted,
        limits_from: None,
        heap,
        settings: &found.all,
        quiet: false,
        to_and_fro: false,
        read: options.read,
    };
    let mut results = measure(&asked, &config)?;
    let mut model = model(&results, PeerClass::SameHost)?;
    reach::measure(options.quick, &found.all, &mut model)?;
    let loopback = measure_link(options.quick, None, &config)?;
    let tuned = Tuned::messages(&model);
    // What the user set or forced this time is not what the machine is like: the profile is judged without.
    let plain = found.applied(&Config {
        ring_size: config.ring_size,
        fragment: config.fragment,
        cma: config.cma,
        ..Config::on(config.processor)
    });
    let table = Selection::tuned(&plain, record_max(&plain), Some(tuned));
    for kind in results.kinds() {
        results.find_crossovers(kind);
        let Some(source) = kind.source() else { continue };
        for (rule, profile) in RULES {
            let made = |half: &Results| {
                let model = self::model(half, PeerClass::SameHost)?;
                let table = Selection::tuned(&plain, record_max(&plain), profile.then(|| Tuned::messages(&model)));
                let settled = move |size| table.settled(of_memory(Tuned::messages(&model), kind.memory), source, size);
                Ok(move |size| Lane::Only(settled(size)))
            };
            results.find_regret_of_made(kind, rule, made)?;
        }
    }
    let mut undecided = undecided(&results, tuned, &table, Memory::Private);
    undecided.extend(self::undecided(&results, tuned, &table, Memory::Exported));
    let table = rows::table(&plain, Some(tuned));
    let handover_ns = median(&results.handover_ns);
    // What is known of other links stays known: they are not what has changed if this one is measured again.
    let links = standing.profile().map_or(Vec::new(), |p| p.links.clone());
    let mut profile = Profile {
        key: Key::here(&config),
        best: found.best.clone(),
        kernel_copies: results.kernel_copies,
        handover_ns,
        model,
        links,
    };
    path.iter().for_each(|path| keep_links(&mut profile, path));
    profile.set_link(&loopback.link, loopback.model);
    let saved = path.as_deref().map_or(Ok(()), |path| save(&profile, path));
    // What took a minute is shown also if it cannot be kept.
    let at = path.as_deref().filter(|_| saved.is_ok());
    let report = Report { saved: at, settings: &found, table, undecided, link: loopback.shown, results: &results };
    if options.json {
        output::say_json(&report)?;
    } else {
        output::say(&text(&report))?;
    }
    saved
}

/// Takes over the links that the file knows which is to be replaced, whether it is in force or not: it may be switched off, or
/// these settings may be others than its own, which say nothing about links. Those of another machine do not hold here.
fn keep_links(profile: &mut Profile, path: &Path) {
    let text = own_file::read(path, LONGEST).ok();
    let Some(old) = text.and_then(|text| Profile::parse(&text).ok()) else { return };
    let here = Key { settings: old.key.settings.clone(), ..profile.key.clone() };
    if old.key.differences(&here).is_empty() {
        old.links.into_iter().for_each(|(link, model)| profile.set_link(&link, model));
    }
}

fn save(profile: &Profile, path: &Path) -> Result<(), Failure> {
    profile.save(path).map_err(|e| format!("cannot save {} ({e}); choose another place by --output", path.display()))
}

/// What was found of a link.
#[derive(Serialize)]
struct FoundLink {
    /// The table by it.
    far: far::Table,
    /// What the rules cost there.
    results: Results,
}

/// A link that was measured.
struct Measured {
    link: String,
    model: Model,
    shown: FoundLink,
}

/// Sizes to measure by the network: those around which borders are likely, and some to see the costs of a byte.
fn far_sizes(record: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = [64, INLINE_MAX, 512].into_iter().chain((10..=17).map(|shift| 1usize << shift)).collect();
    sizes.extend([6 << 10, 12 << 10, 24 << 10, 512 << 10, 2 << 20, record]);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Measures a link: that of the loopback interface, or the one to a host that waits.
fn measure_link(quick: bool, to: Option<&str>, config: &Config) -> Result<Measured, Failure> {
    let sizes = far_sizes(network::longest_record(config));
    let rounds = if quick { 4 } else { 10 };
    let states = &[State::Reused, State::Fresh];
    let patience = Some(FAR_PATIENCE);
    let asked = network::Asked { sizes: &sizes, states, rounds, patience, quick, all: false, to };
    let mut results = network::measure(&asked, config)?;
    let model = model(&results, PeerClass::Network)?;
    let plain = Config { tcp_ring_size: config.tcp_ring_size, ..Config::on(config.processor) };
    let tuned = Selection::for_network(&plain, Some(Tuned { model: &model, case: Case::NETWORK }));
    for kind in results.kinds() {
        results.find_crossovers(kind);
        for (rule, profile) in RULES {
            let made = |half: &Results| {
                let model = self::model(half, PeerClass::Network)?;
                let table = Selection::for_network(&plain, profile.then_some(Tuned { model: &model, case: Case::NETWORK }));
                Ok(move |size| Lane::Only(table.row(size).way()))
            };
            results.find_regret_of_made(kind, rule, made)?;
        }
    }
    let link = results.network.as_ref().map_or(String::new(), |run| run.link.clone());
    if let (Some(run), Some(c)) = (&mut results.network, LinkCosts::fitted(&model)) {
        let LinkCosts { message, record_byte, in_place, place_byte } = c;
        let (message_ns, in_place_ns) = (message, in_place);
        run.costs = Some(Costs { message_ns, record_byte_ns: record_byte, in_place_ns, place_byte_ns: place_byte });
    }
    let far = far::Table::of(Some(&link), &tuned, Some(&model), &plain);
    Ok(Measured { link, model, shown: FoundLink { far, results } })
}

/// Measures the way to another host, and adds it to a profile.
fn run_link(options: &Options, place: (&Config, Option<&Path>), standing: &Standing, to: &str) -> Result<(), Failure> {
    let (config, path) = place;
    let Some(known) = standing.profile() else {
        let helps = match standing {
            Standing::Off => "name the profile to which the way there is to be added",
            _ => "run `rustmx tune` without --to first: a profile begins with its own machine",
        };
        return Err(format!("{}; {helps}", standing.says().1));
    };
    let Measured { link, model, shown } = measure_link(options.quick, Some(to), config)?;
    let mut profile = known.clone();
    path.iter().for_each(|path| keep_links(&mut profile, path));
    profile.set_link(&link, model);
    let saved = path.map_or(Ok(()), |path| save(&profile, path));
    let at = path.filter(|_| saved.is_ok());
    if options.json {
        let told = serde_json::json!({ "saved": at.map(Path::to_string_lossy), "link": shown });
        output::say_json(&told)?;
    } else {
        output::say(&format!("{}{}", link_text(&shown), saved_text(at)))?;
    }
    saved
}

fn link_text(found: &FoundLink) -> String {
    format!("{}\nThe table by what was measured:\n{}", report::text(&found.results), found.far)
}

/// Short messages go inline, and nothing is to be chosen there; they are measured to be shown. Nobody has a long block for messages that are
/// much shorter than one.
fn wanted(lane: Lane, kind: Kind, size: usize) -> bool {
    let inline = lane == Lane::Only(Way::Inline);
    let sensible = match (kind.memory, lane) {
        (Memory::Private, _) => true,
        // Two copies take so much longer then that nothing is to be chosen.
        (Memory::Exported, Lane::Only(Way::Stream)) => EXPORTED.contains(&size),
        (Memory::Exported, _) => size >= *EXPORTED.start(),
    };
    lane != Lane::Chosen && inline == (size <= INLINE_MAX) && sensible
}

/// Sizes for which exported memory might go as other memory does.
const EXPORTED: std::ops::RangeInclusive<usize> = 1 << 10..=64 << 10;

fn of_memory(tuned: Tuned, memory: Memory) -> Tuned {
    Tuned { case: Case { memory, ..tuned.case }, ..tuned }
}

/// Where the profile goes, as a path from the root, for jobs run elsewhere; asked before anything is measured.
fn destination(options: &Options, config: &Config) -> Result<PathBuf, Failure> {
    let sound = |path: &PathBuf| match may_replace(path) {
        Err(why) => Err(format!("{}: {why}; name another place by --output", path.display())),
        Ok(()) => Ok(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
    };
    match (&options.output, &config.profile) {
        (Some(path), _) if path.is_dir() => Err(format!("--output {}: that is a directory; name a file in it", path.display())),
        (Some(path), _) => sound(path),
        (None, ProfileChoice::File(path)) => sound(path),
        (None, _) => {
            let none =
                "neither XDG_CONFIG_HOME nor HOME says where to save the profile; name a place by --output, or use --dry-run";
            sound(&own_path().ok_or(none)?)
        }
    }
}

/// What was measured, as the engine takes it.
fn model(results: &Results, peer: PeerClass) -> Result<Model, Failure> {
    let mut model = Model::default();
    model.until_read = results.read;
    for kind in results.kinds() {
        let Some(source) = kind.source() else { continue };
        for way in WAYS {
            // Times of which some are another way's say nothing of this one.
            let cells = results.cells.iter().filter(|c| c.kind == Some(kind) && c.way == way.name() && c.turned == 0);
            let point = |c: &Cell| Point { size: c.size, ns: c.median_ns, spread: c.spread.min(MOST_SPREAD) };
            let points: Vec<Point> = cells.map(point).collect();
            if points.is_empty() {
                continue;
            }
            let about = About { operation: Operation::Send, peer, memory: kind.memory, source, way };
            Curve::new(points)
                .and_then(|curve| model.add(about, curve))
                .map_err(|why| format!("what was measured is no profile: {why}"))?;
        }
    }
    Ok(model)
}

/// Where the table keeps a way although another one was quicker: its lead is within what the rounds differ.
fn undecided(results: &Results, tuned: Tuned, table: &Selection, memory: Memory) -> Vec<Undecided> {
    let case = Case { memory, worth: Some(table.worth().ns), ..tuned.case };
    let mut found: Vec<Undecided> = Vec::new();
    for size in results.memcpy.iter().map(|c| c.size) {
        let kept = if memory == Memory::Exported { table.lent_row(size).way() } else { table.row(size).way() };
        let measured = |way: &Way| results.cells.iter().any(|c| c.size == size && c.way == way.name());
        let means = WAYS.into_iter().filter(measured).filter_map(|w| Some((w, tuned.model.mean(case, w, size)?)));
        let Some((quicker, best)) = means.min_by(|a, b| a.1.ln.total_cmp(&b.1.ln)) else { continue };
        let Some(mine) = tuned.model.mean(case, kept, size) else { continue };
        let by = (mine.ln - best.ln).exp_m1();
        if quicker == kept || by <= MIN_GAIN {
            continue;
        }
        let (kept, quicker) = (kept.name(), quicker.name());
        let memory = memory.name();
        match found.last_mut().filter(|u| (u.kept, u.quicker) == (kept, quicker)) {
            Some(last) => (last.to, last.by) = (size, last.by.max(by)),
            None => found.push(Undecided { memory, from: size, to: size, kept, quicker, by }),
        }
    }
    found
}

fn text(report: &Report) -> String {
    let mut out = format!("{}\n{}", report.settings, report::text(report.results));
    let mut say = |line: String| out.extend([line.as_str(), "\n"]);
    say(format!("\nThe table by what was measured (memory copies at {}):", copy_rate(report.results)));
    say(report.table.to_string());
    for u in &report.undecided {
        say(format!(
            "Too noisy to tell from {} to {} ({} memory): {} was up to {} quicker than {}, which is within what the rounds differ; {} stays.",
            show_bytes(u.from as u64),
            show_bytes(u.to as u64),
            u.memory,
            u.quicker,
            percent(u.by),
            u.kept,
            u.kept
        ));
    }
    let shown = &report.link;
    out + "\nPeers that are reached by the network:\n" + &link_text(shown) + &saved_text(report.saved)
}

fn saved_text(saved: Option<&Path>) -> String {
    match saved {
        Some(path) if own_path().as_deref() != Some(path) => {
            let path = path.display();
            format!("Saved as {path}.\nIt is used with FI_RUSTMX_PROFILE={path}.\n")
        }
        Some(path) => format!("Saved as {}.\n", path.display()),
        None => "Nothing was saved.\n".into(),
    }
}

/// What one process copies by itself, where most of it is in no cache.
fn copy_rate(results: &Results) -> String {
    let last = results.memcpy.last().filter(|c| c.median_ns > 0.0);
    last.map_or("an unknown rate".into(), |c| {
        format!("{:.1} GB/s, {} in {}", c.size as f64 / c.median_ns, show_bytes(c.size as u64), time(c.median_ns))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Machine;

    /// Results in which each way takes a constant time, give or take a spread, from either kind of source.
    fn results(ways: &[(Way, f64)], spread: f64) -> Results {
        let sizes = [16usize << 10, 64 << 10, 96 << 10];
        let cell = |kind, way, size, ns: f64| Cell { spread, ..Cell::of(kind, way, size, vec![ns]) };
        let all = sizes
            .iter()
            .flat_map(|size| [State::Reused, State::Fresh].map(move |state| (*size, Kind { memory: Memory::Private, state })));
        let cells = all.flat_map(|(size, kind)| ways.iter().map(move |(w, ns)| cell(Some(kind), w.name(), size, *ns)));
        let machine = Machine { processor: "a".into(), kernel: "b".into(), cores: [0, 1], settings: Vec::new() };
        let memcpy = sizes.map(|size| cell(None, "memcpy", size, 50.0)).into();
        Results { memcpy, kernel_copies: true, ..Results::of(machine, 1, cells.collect(), Vec::new()) }
    }

    fn told(ways: &[(Way, f64)], spread: f64) -> (Way, Vec<Undecided>) {
        let results = results(ways, spread);
        let model = model(&results, PeerClass::SameHost).expect("sound");
        let tuned = Tuned { model: &model, case: rustmx::select::model::Case::MESSAGE };
        let table = Selection::tuned(&Config::default(), 6000, Some(tuned));
        (table.row(16 << 10).way(), undecided(&results, tuned, &table, Memory::Private))
    }

    #[test]
    fn where_noise_decides_the_default_stays_and_that_is_told() {
        let times = [(Way::Stream, 1300.0), (Way::Alone, 1000.0), (Way::Shared, 1250.0)];
        assert_eq!(told(&times, 0.01), (Way::Alone, Vec::new()));
        let (kept, undecided) = told(&times, 0.8);
        assert_eq!((kept, undecided.len()), (Way::Stream, 1), "{undecided:?}");
        let u = &undecided[0];
        assert_eq!(
            (u.from, u.to, u.kept, u.quicker),
            (16 << 10, 16 << 10, "stream", "alone"),
            "at 64 KiB sharing where it pays is shipped, and that is one side here"
        );
        assert!((u.by - 0.3).abs() < 1e-9);
        assert!(told(&[(Way::Stream, 1030.0), (Way::Alone, 1000.0)], 0.01).1.is_empty(), "too little to speak of");
    }

    #[test]
    fn spreads_of_any_width_are_kept() {
        assert!(model(&results(&[(Way::Alone, 5.0)], 1e9), PeerClass::SameHost).is_ok());
        assert_eq!(model(&results(&[], 0.0), PeerClass::SameHost).expect("sound").curves().len(), 0);
    }

    #[test]
    fn what_went_another_way_is_not_in_the_profile() {
        let mut results = results(&[(Way::Alone, 5.0), (Way::Shared, 9.0)], 0.0);
        let curves = |results: &Results| model(results, PeerClass::SameHost).expect("sound").curves().len();
        assert_eq!(curves(&results), 4);
        results.cells.iter_mut().filter(|c| c.way == "shared").for_each(|c| c.turned = 1);
        assert_eq!(curves(&results), 2);
    }

    #[test]
    fn links_of_the_replaced_file_stay_if_it_is_of_this_machine() {
        let path = std::env::temp_dir().join(format!("rustmx-links-{}.toml", std::process::id()));
        let costs = |ns| model(&results(&[(Way::Eager, ns)], 0.0), PeerClass::Network).expect("sound");
        let knows = |links: &[(&str, f64)], config: &Config| Profile {
            key: Key::here(config),
            best: Vec::new(),
            kernel_copies: true,
            handover_ns: 1.0,
            model: Model::default(),
            links: links.iter().map(|(link, ns)| ((*link).into(), costs(*ns))).collect(),
        };
        let new = knows(&[("eth0", 1.0), ("eth1", 1.0)], &Config::default());
        let kept = |old: &str| {
            std::fs::write(&path, old).expect("written");
            let mut profile = new.clone();
            keep_links(&mut profile, &path);
            profile
        };
        let old = knows(&[("eth1", 2.0), ("eth2", 2.0)], &Config { ring_size: 64 << 10, ..Config::default() });
        assert!(!old.key.differences(&new.key).is_empty(), "not in force");
        let all = knows(&[("eth0", 1.0), ("eth1", 2.0), ("eth2", 2.0)], &Config::default());
        assert_eq!(kept(&old.to_text()), all);
        let mut elsewhere = old.clone();
        elsewhere.key.machine.processor = "another one".into();
        assert_eq!((kept(&elsewhere.to_text()), kept("format = 1\nkey = [")), (new.clone(), new.clone()));
        std::fs::remove_file(&path).expect("removed");
        let mut profile = new.clone();
        keep_links(&mut profile, &path);
        assert_eq!(profile, new, "none is there yet");
    }

    #[test]
    fn a_place_is_told_so_that_jobs_find_it_from_anywhere() {
        let named = std::env::current_dir().expect("one").join("mine.toml");
        let options = Options {
            quick: true,
            read: false,
            dry_run: false,
            json: false,
            output: Some("mine.toml".into()),
            to: None,
            heap: None,
        };
        let said = saved_text(Some(&destination(&options, &Config::default()).expect("a place")));
        assert!(said.contains(&format!("FI_RUSTMX_PROFILE={}.", named.display())), "{said}");
    }

    #[test]
    fn sizes_ascend_and_reach_the_end_of_a_record() {
        for quick in [true, false] {
            let sizes = sizes(quick, 6056);
            assert!(sizes.windows(2).all(|p| p[0] < p[1]) && sizes.contains(&6056) && sizes[0] <= INLINE_MAX);
            assert!(sizes.len() <= rustmx::select::model::MOST_POINTS && sizes.last() == Some(&(16 << 20)));
        }
    }
}
