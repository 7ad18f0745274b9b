//! Profiles as text and back, and every reason not to use one.

use super::*;
use crate::config::force::Way;
use crate::log::{Log, LogSink};
use crate::select::model::tests::{about, add, curve};
use crate::select::model::{About, Case, MOST_CURVES, MOST_POINTS, Mover, Operation, PeerClass, Source};
use crate::select::{Origin, Selection};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

fn profile(model: Model) -> Profile {
    Profile {
        key: Key::here(&Config::default()),
        best: Vec::new(),
        kernel_copies: true,
        handover_ns: 151.25,
        model,
        links: Vec::new(),
    }
}

fn small() -> Profile {
    let mut model = Model::default();
    add(&mut model, Way::Stream, &[(256, 500.5, 0.03), (65536, 12345.678, 0.0)]);
    add(&mut model, Way::Shared, &[(4096, 1e3, 0.125), (1 << 26, 9.5e6, 1.5)]);
    add(&mut model, Way::Alone, &[(4096, 2e3, 0.125), (1 << 26, 19.5e6, 1.5)]);
    profile(model)
}

/// A directory for one test's file, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let at = std::env::temp_dir().join(format!("rustmx-profile-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&at);
        std::fs::create_dir(&at).expect("made");
        Place(at)
    }

    fn file(&self) -> PathBuf {
        self.0.join("profile.toml")
    }

    fn config(&self) -> Config {
        Config { profile: ProfileChoice::File(self.file()), ..Config::default() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn times_until_a_message_was_read_are_told_from_others() {
    let other = small();
    assert!(!text::write(&other).contains("until_read"));
    let mut model = other.model.clone();
    model.until_read = true;
    let this = profile(model);
    assert_eq!(text::read(&text::write(&this)), Ok(this));
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        curves in proptest::collection::vec(proptest::collection::vec((1usize..1 << 40, 1e-3f64..1e15, 0.0f64..1e3), 1..40), 1..10),
        processor in ".{0,20}", kernel in "\\PC{0,20}", cores in any::<u32>(), hypervisor in proptest::option::of(".{0,10}"),
        settings in proptest::collection::vec(".{0,10}", 0..4), best in proptest::collection::vec(".{0,10}", 0..4), kernel_copies in any::<bool>(), handover_ns in 0.0f64..1e9,
    ) {
        let mut model = Model::default();
        for (at, steps) in curves.iter().enumerate() {
            let mut size = 0;
            let points: Vec<_> = steps.iter().map(|&(step, ns, spread)| { size += step; (size, ns, spread) }).collect();
            model.add(about(Way::CARRIERS[at % 7], Source::ALL[at / 7]), curve(&points)).expect("new");
            let deed = ([Operation::Read, Operation::Write, Operation::Atomic][at % 3], PeerClass::SameHost, Mover::ALL[at % 2]);
            let _ = model.add_deed(deed, curve(&points));
        }
        let key = Key { machine: Machine { processor, kernel, cores, hypervisor }, settings };
        let written = Profile { key, best, kernel_copies, handover_ns, model, links: Vec::new() };
        let read = Profile::parse(&written.to_text());
        prop_assert_eq!(read.as_ref(), Ok(&written));
    }

    /// Whatever becomes of a file, it is read or refused with a reason, and the table that comes out can be run.
    #[test]
    fn a_damaged_file_does_no_harm(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6), end in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = small().to_text().into_bytes();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte % 128),
                _ => { bytes.remove(at); }
            }
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        match Profile::parse(&String::from_utf8_lossy(&bytes)) {
            Err(why) => prop_assert!(!why.is_empty()),
            Ok(profile) => {
                let table = Selection::tuned(&Config::default(), 6000, Some(Tuned { model: &profile.model, case: Case::MESSAGE }));
                prop_assert!(table.rows().iter().all(|r| r.way() != Way::Eager || r.up_to <= 6000));
            }
        }
    }
}

/// What is known of a link: one time for all sizes and ways.
fn link(ns: f64) -> Model {
    let mut model = Model::default();
    for source in Source::ALL {
        for way in [Way::Eager, Way::Stream] {
            let about = About { peer: PeerClass::Network, ..about(way, *source) };
            model.add(about, curve(&[(256, ns, 0.1), (65536, 2.0 * ns, 0.1)])).expect("new");
        }
    }
    model
}

/// Of operations that are no messages a profile knows who moved the bytes; words of a later version are passed over.
#[test]
fn reads_and_writes_are_kept_beside_messages() {
    let mut profile = small();
    let about = (Operation::Read, PeerClass::SameHost, Mover::Direct);
    profile.model.add_deed(about, curve(&[(8, 3000.0, 0.1)])).expect("new");
    assert!(profile.model.add_deed(about, curve(&[(8, 1.0, 0.0)])).expect_err("twice").contains("read by direct is there twice"));
    let text = profile.to_text();
    assert_eq!(Profile::parse(&text).as_ref(), Ok(&profile));
    let later = text.replace("way = \"direct\"", "way = \"by-pigeon\"");
    assert_eq!(Profile::parse(&later), Ok(small()));
    // A message does not go by what moves bytes of reads.
    let wrong = text.replace("operation = \"read\"", "operation = \"send\"");
    assert_eq!(Profile::parse(&wrong), Ok(small()));
    let twice = format!("{text}{}", &text[text.rfind("\n[[cost]]").expect("a curve")..]);
    assert!(Profile::parse(&twice).expect_err("twice").contains("is there twice"));
}

#[test]
fn links_are_kept_beside_the_machine() {
    let mut profile = small();
    profile.set_link("lo, MTU 65536", link(1e4));
    profile.set_link("eth0 \"odd\"", link(2e4));
    let text = profile.to_text();
    assert_eq!(Profile::parse(&text).as_ref(), Ok(&profile));
    assert_eq!(profile.link("lo, MTU 65536"), Some(&link(1e4)));
    assert_eq!(profile.model, small().model, "peers of the same host are another matter");
    // Without links it is what it was before there were any.
    assert_eq!(Profile { links: Vec::new(), ..profile.clone() }, small());
    profile.set_link("lo, MTU 65536", link(3e4));
    assert_eq!((profile.links.len(), profile.link("lo, MTU 65536")), (2, Some(&link(3e4))));
    for n in 0..MOST_LINKS {
        profile.set_link(&n.to_string(), link(1e3));
    }
    assert_eq!((profile.links.len(), profile.link("lo, MTU 65536")), (MOST_LINKS, None), "the oldest had to go");
    let text = profile.to_text();
    assert!(text.len() < LONGEST as usize && Profile::parse(&text).as_ref() == Ok(&profile));
    let more = text + &text_of_link("one more");
    assert!(Profile::parse(&more).expect_err("one too many").contains("more than 8 links"));
    let unnamed = small().to_text() + &text_of_link("x").replace("link = ", "lynk = ");
    assert!(Profile::parse(&unnamed).expect_err("of no link").contains("[[cost]] lacks `link`"));
}

/// The part of a file that is about a link.
fn text_of_link(name: &str) -> String {
    let mut profile = profile(Model::default());
    profile.set_link(name, link(1.0));
    let text = profile.to_text();
    text[text.find("[[cost]]").expect("a curve")..].into()
}

#[test]
fn each_mistake_of_a_text_is_told() {
    let good = small().to_text();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        Profile::parse(&good.replacen(from, to, 1)).expect_err(to)
    };
    for (from, to, why) in [
        ("format = 1", "format = 2", "its format is 2, and this version reads 1"),
        ("format = 1", "", "the file lacks `format`"),
        ("format = 1", "format = \"1\"", "`format` of the file is not a whole number"),
        ("format = 1", "format = 1\n= 5", "line 3 is no TOML"),
        ("[key]", "[lock]", "lacks `key`"),
        ("cores = ", "cores = -", "`cores` of [key] is not a whole number"),
        ("cores = ", "cores = 1\ncores = ", "is no TOML (duplicate key)"),
        ("kernel_copies = true", "kernel_copies = 1", "`kernel_copies` of [found] is not true or false"),
        ("handover_ns = 151.25", "handover_ns = nan", "`handover_ns` of [found] is not a number"),
        ("[256, 500.5, 0.03]", "[256, 500.5]", "`points` of [[cost]] is not a list of [bytes, nanoseconds, spread]"),
        ("[256, 500.5, 0.03]", "[256.5, 500.5, 0.03]", "is not a list of [bytes"),
        ("[256, 500.5, 0.03]", "[256, inf, 0.03]", "is not a list of [bytes"),
        ("[256, 500.5, 0.03]", "[256, -1.0, 0.03]", "256, -1, 0.03 is no size"),
        ("[256, 500.5, 0.03]", "[99999999, 500.5, 0.03]", "65536 does not come after 99999999"),
        ("[256, 500.5, 0.03]", "[99999999999999999999999, 500.5, 0.03]", "is not a list of [bytes"),
        ("source = \"reused\"", "source = \"fresh\"", "stream from fresh sources is there twice"),
        ("source = \"reused\"", "", "[[cost]] lacks `source`"),
    ] {
        let told = refused(from, to);
        assert!(told.contains(why), "{to}: {told}");
    }
    let newer = good.replacen("source = \"reused\"", "source = \"lukewarm\"", 1);
    assert_eq!(Profile::parse(&newer).expect("of a newer version").model.curves().len(), small().model.curves().len() - 1);
    assert_eq!(
        Profile::parse(&good.replacen("way = \"stream\"", "way = \"syscall\"", 1))
            .expect("no way of its own")
            .model
            .curves()
            .len(),
        5
    );
    let deep = format!("format = {}1{}", "[".repeat(30_000), "]".repeat(30_000));
    assert!(Profile::parse(&deep).is_err(), "deeper than a stack");
    let points = format!("points = [{}]", "[1, 1.0, 0.0],".repeat(MOST_POINTS + 1));
    let many = format!("{}{points}", good.split("points").next().expect("a head"));
    assert!(Profile::parse(&many).expect_err("refused").contains("65 points"));
    assert!(MOST_CURVES >= 2 * Way::CARRIERS.len() && (good.len() as u64) < LONGEST / 4);
}

#[test]
#[cfg_attr(miri, ignore = "makes system calls that miri does not know")]
fn what_holds_elsewhere_is_left_there() {
    let place = Place::new("elsewhere");
    let stands = |change: &dyn Fn(&mut Profile), config: &Config| {
        let mut profile = small();
        change(&mut profile);
        profile.save(&place.file()).expect("saved");
        match Standing::look(config) {
            Standing::Elsewhere(_, why) => why.join("; "),
            Standing::InForce(_, found) => {
                assert_eq!(*found, profile);
                "in force".into()
            }
            other => panic!("{other:?}"),
        }
    };
    let config = place.config();
    assert_eq!(stands(&|_| {}, &config), "in force");
    assert!(stands(&|p| p.key.machine.processor.push('x'), &config).starts_with("another processor (then "));
    assert!(stands(&|p| p.key.machine.kernel.push('x'), &config).contains("another kernel"));
    assert!(stands(&|p| p.key.machine.cores += 1, &config).contains("another number of cores"));
    assert!(stands(&|p| p.key.settings.clear(), &config).contains("other settings"));
    assert_eq!(stands(&|p| p.key.machine.hypervisor = None, &config), "in force", "unknown is no difference");
    let virtual_now = Key::here(&config).machine.hypervisor.is_some();
    let other = stands(&|p| p.key.machine.hypervisor = Some("another one".into()), &config);
    assert!(!virtual_now || other.contains("another hypervisor (then another one"), "{other}");
    let never = stands(&|_| {}, &Config { cma: 1, ..config.clone() });
    assert_eq!(never, "other settings (then FI_RUSTMX_CMA=auto, now FI_RUSTMX_CMA=never)", "and not those that are alike");
    let forgotten = stands(&|p| p.key.settings.retain(|s| !s.starts_with("FI_RUSTMX_COPY=")), &config);
    assert_eq!(forgotten, "other settings (then nothing, now FI_RUSTMX_COPY=auto)");
    assert!(stands(&|_| {}, &Config { copy_thread: 2, ..config.clone() }).contains("now FI_RUSTMX_COPY_THREAD=always"));
    assert!(stands(&|_| {}, &Config { ring_size: 1 << 16, ..config.clone() }).contains("FI_RUSTMX_RING_SIZE=64k"));
    assert_eq!(stands(&|_| {}, &Config { syscall_min: 1 << 16, ..config }), "in force", "that is no question of costs");
}

/// What was measured to be best counts where nobody says anything; times that were measured with it say nothing of other values.
#[test]
#[cfg_attr(miri, ignore = "makes system calls that miri does not know")]
fn the_best_values_are_in_force_unless_somebody_sets_others() {
    let place = Place::new("best");
    let config = place.config();
    let best: Vec<String> = ["FI_RUSTMX_RINGS=taken", "FI_RUSTMX_FRAGMENT=16k", "FI_RUSTMX_LATER=7"].map(String::from).into();
    let mut profile = Profile { best, ..small() };
    profile.key = Key::here(&profile.applied(&config));
    profile.save(&place.file()).expect("saved");
    let standing = Standing::look(&config);
    let applied = standing.applied(&config);
    assert!(standing.says().1.contains("which also says FI_RUSTMX_RINGS=taken"), "{}", standing.says().1);
    assert_eq!((applied.takes_lines(), applied.fragment, applied.says("fragment")), (true, 16 << 10, false));
    assert_eq!(Profile::parse(&profile.to_text()).as_ref(), Ok(&profile), "also what this version does not know");
    let profiles = Profiles::new(|text| panic!("{text}"));
    assert_eq!(*profiles.applied(&config, &Log::silent()), applied);
    let mut sealed = config.clone();
    let rings = PARAMS.iter().find(|p| p.name == "rings").expect("known");
    rings.parse_into(&mut sealed, "sealed").expect("a word");
    let standing = Standing::look(&sealed);
    assert!(matches!(&standing, Standing::Elsewhere(_, why) if why[0].contains("FI_RUSTMX_RINGS=sealed")), "{standing:?}");
    assert_eq!(standing.applied(&sealed), sealed);
    for wrong in ["FI_RUSTMX_RINGS=ajar", "FI_RUSTMX_FRAGMENT=1"] {
        let text = Profile { best: vec![wrong.into()], ..small() }.to_text();
        let why = Profile::parse(&text).expect_err("not allowed");
        assert!(why.contains(wrong) && why.contains("allowed is"), "{why}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "makes system calls that miri does not know")]
fn what_is_no_profile_is_refused_and_the_shipped_table_stays() {
    let place = Place::new("refused");
    let config = place.config();
    let refused = |why: &str| match Standing::look(&config) {
        Standing::Refused(path, told) => {
            assert!(path == place.file() && told.contains(why), "{told}");
            assert!(Standing::look(&config).tuned().is_none() && Standing::look(&config).says().0 == LogLevel::Warn);
        }
        other => panic!("{why}: {other:?}"),
    };
    refused("there is no such file");
    std::fs::create_dir(place.file()).expect("made");
    refused("no regular file");
    std::fs::remove_dir(place.file()).expect("removed");
    std::fs::write(place.file(), [0xff; 40]).expect("written");
    refused("no text");
    std::fs::write(place.file(), "").expect("written");
    refused("lacks `format`");
    std::fs::write(place.file(), format!("{}{}", small().to_text(), "#".repeat(LONGEST as usize))).expect("written");
    refused("too long");
    small().save(&place.file()).expect("saved");
    std::fs::set_permissions(place.file(), std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("set");
    refused("others than its owner");
    std::fs::remove_file(place.file()).expect("removed");
    small().save(&place.file()).expect("saved");
    assert!(Standing::look(&config).tuned().is_some() && !Standing::look(&config).says().1.contains("kernel"));
    Profile { kernel_copies: false, ..small() }.save(&place.file()).expect("saved");
    assert!(Standing::look(&config).says().1.contains("where the kernel did not copy"));
    assert!(matches!(Standing::look(&Config { profile: ProfileChoice::Off, ..config }), Standing::Off));
}

/// Keeps what is said.
#[derive(Default)]
struct Ears {
    heard: Mutex<Vec<(LogLevel, String)>>,
    deaf: bool,
}

impl LogSink for Ears {
    fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
        !self.deaf
    }

    fn write(&self, level: LogLevel, _: LogSubsystem, text: &str) {
        self.heard.lock().expect("lock").push((level, text.into()));
    }
}

#[test]
#[cfg_attr(miri, ignore = "makes system calls that miri does not know")]
fn a_process_looks_once_and_says_so_once() {
    static UNHEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    fn unheard(text: &str) {
        UNHEARD.lock().expect("lock").push(text.into());
    }
    let place = Place::new("once");
    let config = place.config();
    let ears = Arc::new(Ears::default());
    let log = Log::new(ears.clone());
    small().save(&place.file()).expect("saved");
    let profiles = Profiles::new(unheard);
    for _ in 0..3 {
        let tuned = profiles.standing(&config, &log).tuned().expect("in force");
        let table = Selection::tuned(&config, 6000, Some(tuned));
        assert_eq!((table.row(1 << 20).way(), table.row(1 << 20).origin), (Way::Shared, Origin::Profile));
        let _ = std::fs::remove_file(place.file());
    }
    let heard = std::mem::take(&mut *ears.heard.lock().expect("lock"));
    assert!(heard.len() == 1 && heard[0].0 == LogLevel::Info && heard[0].1.contains("profile.toml"), "{heard:?}");
    // It is gone now; somebody named it, so that is a warning. A log that shows it is enough.
    Profiles::new(unheard).standing(&config, &log);
    assert!(ears.heard.lock().expect("lock").iter().all(|(level, _)| *level == LogLevel::Warn));
    assert!(UNHEARD.lock().expect("lock").is_empty());
    let deaf = Log::new(Arc::new(Ears { deaf: true, ..Ears::default() }));
    let profiles = Profiles::new(unheard);
    profiles.standing(&config, &deaf);
    profiles.standing(&config, &deaf);
    let told = UNHEARD.lock().expect("lock");
    assert!(told.len() == 1 && told[0].contains("there is no such file"), "{told:?}");
    assert!(Profiles::off().standing(&config, &log).tuned().is_none());
}
