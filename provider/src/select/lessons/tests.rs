//! The file as text and back, every reason not to read or write it, and who else may be at it.

use super::*;
use crate::log::{Log, LogSink, LogSubsystem};
use crate::select::profile::Profiles;
use crate::sys::machine::Machine;
use crate::transport::tcp::{Copies, Lanes, MOST_LANES, SIZES, WAYS};
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

/// A directory for one test's files, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let at = std::env::temp_dir().join(format!("rustmx-lessons-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&at);
        std::fs::create_dir(&at).expect("made");
        std::fs::set_permissions(&at, PermissionsExt::from_mode(0o700)).expect("mode");
        Place(at)
    }

    fn file(&self) -> PathBuf {
        self.0.join("profile.links.toml")
    }

    fn config(&self) -> Config {
        Config { profile: ProfileChoice::File(self.0.join("profile.toml")), ..Config::default() }
    }

    /// What another job would find there.
    fn known(&self) -> Vec<Entry> {
        match Standing::look(&self.config()) {
            Standing::InForce(path, entries) if path == self.file() => entries,
            other => panic!("{other:?}"),
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(&self.0).expect("listed").map(|e| e.expect("entry").file_name().to_string_lossy().into()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::set_permissions(&self.0, PermissionsExt::from_mode(0o700));
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn four_lanes(by: By) -> Lesson {
    let mut rates = [0.0; MOST_LANES];
    (rates[0], rates[1], rates[3]) = (0.095, 0.187, 0.381);
    Lesson { lanes: Some((Lanes { number: 4, rates }, by)), ..Lesson::default() }
}

fn copied(by: By) -> Lesson {
    Lesson { copies: Some((Copies { copied: true, ..Copies::default() }, by)), ..Lesson::default() }
}

/// A job that finds something out, and ends.
fn job(config: &Config, link: &str, lesson: Lesson) -> Result<bool, String> {
    let learned = Learned::begin(Standing::look(config));
    learned.lessons().add(link, lesson);
    learned.keep(config).map(|path| path.is_some())
}

fn small() -> Vec<Entry> {
    let (mut costs, last) = (<[[f64; WAYS]; SIZES.len()]>::default(), SIZES.len() - 1);
    (costs[0], costs[last]) = ([50.5, 20.0, 0.0], [60.0, 0.25, 5.0]);
    let lesson = Lesson {
        copies: Some((Copies { copied: false, costs }, By::Job(20_000))),
        round_trip: Some((23, By::Job(20_001))),
        ..four_lanes(By::Job(20_002))
    };
    vec![Entry { link: "eth0, MTU 1500, 10000 Mbit/s".into(), key: key(&Config::default()), lesson }]
}

fn by() -> impl Strategy<Value = By> {
    (0u32..60_000).prop_map(By::Job)
}

fn lesson() -> impl Strategy<Value = Lesson> {
    let lanes = (1..=MOST_LANES, proptest::array::uniform8(prop_oneof![Just(0.0), 1e-3f64..1e3]), by());
    let costs = proptest::array::uniform6(proptest::array::uniform3(prop_oneof![Just(0.0), 1e-3f64..1e6]));
    let (copies, round_trip) = ((any::<bool>(), costs, by()), (any::<u32>(), by()));
    let all = (proptest::option::of(lanes), proptest::option::of(copies), proptest::option::of(round_trip));
    all.prop_map(|(lanes, copies, round_trip)| Lesson {
        lanes: lanes.map(|(number, rates, by)| (Lanes { number, rates }, by)),
        copies: copies.map(|(copied, costs, by)| (Copies { copied, costs }, by)),
        round_trip,
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        lessons in proptest::collection::vec(("[a-z0-9 \"\\\\,]{1,30}", lesson()), 0..MOST_ENTRIES),
        processor in ".{0,20}", kernel in "\\PC{0,20}", cores: u32, hypervisor in proptest::option::of(".{0,10}"),
    ) {
        let machine = Machine { processor, kernel, cores, hypervisor };
        let key = Key { machine, settings: vec!["A=b".into()] };
        let entries: Vec<Entry> =
            lessons.into_iter().map(|(link, lesson)| Entry { link, key: key.clone(), lesson }).collect();
        let text = text::write(&entries);
        prop_assert!((text.len() as u64) < LONGEST);
        let read = text::read(&text).expect("sound");
        prop_assert_eq!(read.len(), entries.len());
        for (read, written) in read.iter().zip(&entries) {
            prop_assert_eq!((&read.link, &read.key), (&written.link, &written.key));
            prop_assert_eq!((read.lesson.copies, read.lesson.round_trip), (written.lesson.copies, written.lesson.round_trip));
            // Rates are written in MB/s.
            match (read.lesson.lanes, written.lesson.lanes) {
                (Some((a, day)), Some((b, other))) => {
                    prop_assert_eq!((a.number, day), (b.number, other));
                    prop_assert!(a.rates.iter().zip(b.rates).all(|(a, b)| (a - b).abs() <= 1e-12 * b));
                }
                (a, b) => prop_assert!(a.is_none() && b.is_none()),
            }
        }
    }

    /// Whatever becomes of a file, it is read or refused with a reason, and what is read is within bounds.
    #[test]
    fn a_damaged_file_does_no_harm(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6), end in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = text::write(&small()).into_bytes();
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
        match text::read(&String::from_utf8_lossy(&bytes)) {
            Err(why) => prop_assert!(!why.is_empty()),
            Ok(entries) => for Entry { lesson, .. } in entries {
                prop_assert!(lesson.lanes.is_none_or(|(lanes, _)| (1..=MOST_LANES).contains(&lanes.number) && lanes.rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0)));
                prop_assert!(lesson.copies.is_none_or(|(copies, _)| copies.costs.iter().flatten().all(|cost| cost.is_finite() && *cost >= 0.0)));
            },
        }
    }
}

#[test]
fn each_mistake_of_a_text_is_told() {
    let good = text::write(&small());
    assert_eq!(text::read(&good).expect("sound").len(), 1);
    for (from, to, why) in [
        ("format = 1", "format = 2", "its format is 2, and this version reads 1"),
        ("format = 1", "", "the file lacks `format`"),
        ("[[link]]", "[link]", "`link` of the file is not a list"),
        ("link = \"eth0", "link = \"\\n", "`link` of [[link]] is not the name of a link"),
        ("number = 4", "number = 9", "`number` of lanes is not a number from 1 to 8"),
        ("number = 4", "number = 0", "`number` of lanes is not a number from 1 to 8"),
        ("[1, 95.0]", "[9, 95.0]", "`rates` of lanes is not a list of [connections, MB/s]"),
        ("[1, 95.0]", "[0, 95.0]", "`rates` of lanes is not a list"),
        ("[1, 95.0]", "[1, -95.0]", "`rates` of lanes is not a list"),
        ("[1, 95.0]", "[1, inf]", "`rates` of lanes is not a list"),
        ("[1, 95.0]", "[1, 95.0, 1]", "`rates` of lanes is not a list"),
        ("copied = false", "copied = 0", "`copied` of copies is not true or false"),
        ("50.5", "nan", "`costs` of copies is not a list of [bytes, copied, without a copy, registered]"),
        ("50.5", "1e300", "`costs` of copies is not a list"),
        ("2024-10-06", "2024-02-30", "`day` of lanes is not a date such as 2026-01-31"),
        ("microseconds = 23", "microseconds = -1", "`microseconds` of round_trip is not a whole number"),
        ("cores = ", "cores = x", "no TOML"),
        ("lanes = {", "lanes = 5 #", "`lanes` of [[link]] is not a table"),
    ] {
        assert!(good.contains(from), "{from}: {good}");
        let said = text::read(&good.replacen(from, to, 1)).expect_err(to);
        assert!(said.contains(why), "{to}: {said}");
    }
    // Of a newer version.
    for (from, to) in
        [("copied = false", "copied = false, taken = 3"), ("[32768, ", "[4711, "), ("format = 1", "format = 1\nwhy = \"\"")]
    {
        text::read(&good.replacen(from, to, 1)).expect(to);
    }
    let many = |n: usize| text::write(&vec![small().remove(0); n]);
    assert_eq!(text::read(&many(MOST_ENTRIES)).map(|all| all.len()), Ok(MOST_ENTRIES));
    assert!(text::read(&many(MOST_ENTRIES + 1)).expect_err("one too many").contains("more than 32 links"));
    assert_eq!(text::read("format = 1\n"), Ok(Vec::new()));
}

#[test]
fn the_next_job_knows_what_the_last_one_found() {
    let place = Place::new("next");
    let config = place.config();
    assert_eq!(Standing::look(&config), Standing::None(place.file()));
    assert_eq!(
        job(&config, "eth0", Lesson { round_trip: Some((9, By::Here)), ..Lesson::default() }),
        Ok(false),
        "nobody would go another way"
    );
    assert!(place.names().is_empty());
    assert_eq!(job(&config, "eth0", four_lanes(By::Here)), Ok(true));
    let [Entry { link, lesson, .. }] = &place.known()[..] else { panic!("one link") };
    let day = By::Job(today());
    assert_eq!((link.as_str(), lesson.lanes.map(|(lanes, by)| (lanes.number, by))), ("eth0", Some((4, day))));
    // The next one begins with it, and adds to it.
    let learned = Learned::begin(Standing::look(&config));
    assert_eq!(learned.lessons().of("eth0"), *lesson);
    assert_eq!(learned.keep(&config), Ok(None), "it found nothing itself");
    assert_eq!(job(&config, "eth0", copied(By::Here)), Ok(true));
    assert_eq!(job(&config, "eth1", copied(By::Here)), Ok(true));
    let known = place.known();
    assert_eq!(known.len(), 2);
    let eth0 = known.iter().find(|entry| entry.link == "eth0").expect("there");
    assert_eq!((eth0.lesson.lanes, eth0.lesson.copies.map(|(_, by)| by)), (lesson.lanes, Some(day)));
    // The same again is not written again, another number is.
    assert_eq!(job(&config, "eth0", four_lanes(By::Here)), Ok(false));
    assert_eq!(
        job(&config, "eth0", Lesson { lanes: Some((Lanes { number: 2, ..Lanes::default() }, By::Here)), ..Lesson::default() }),
        Ok(true)
    );
    assert_eq!(place.names(), ["profile.links.toml"], "no draft is left");
}

#[test]
fn what_is_found_elsewhere_or_was_long_ago_does_not_count() {
    let place = Place::new("elsewhere");
    let (config, today) = (place.config(), today());
    let with = |days: u32, change: fn(&mut Key)| {
        let mut key = key(&config);
        change(&mut key);
        Entry { link: "eth0".into(), key, lesson: four_lanes(By::Job(today - days)) }
    };
    type Change = fn(&mut Key);
    let here: Change = |_| {};
    for (days, change, holds) in [
        (0, here, true),
        (AGE, here, true),
        (AGE + 1, here, false),
        (0, |key| key.machine.kernel.push('x'), false),
        (0, |key| key.machine.processor.push('x'), false),
        (0, |key| key.machine.cores += 1, false),
        (0, |key| key.settings = vec!["FI_RUSTMX_ENCRYPT=yes".into()], false),
    ] as [(u32, Change, bool); 7]
    {
        std::fs::write(place.file(), text::write(&[with(days, change)])).expect("written");
        assert_eq!(place.known().len(), usize::from(holds), "{days}");
        // It is not in the way, and what holds elsewhere stays.
        assert_eq!(job(&config, "eth0", copied(By::Here)), Ok(true));
        let all = text::read(&std::fs::read_to_string(place.file()).expect("text")).expect("sound");
        assert_eq!(all.len(), if holds || days > AGE { 1 } else { 2 }, "{days}");
    }
    // A clock that was wrong.
    let tomorrow = Entry { lesson: four_lanes(By::Job(today + 2)), ..with(0, here) };
    std::fs::write(place.file(), text::write(&[tomorrow])).expect("written");
    assert_eq!(place.known(), []);
}

/// What is found anew makes nothing else of the link newer, and what was found is not lost because a clock was wrong before.
#[test]
fn each_finding_has_its_own_age() {
    let (key, today) = (key(&Config::default()), 20_000);
    let entry = |lesson| Entry { link: "eth0".into(), key: key.clone(), lesson };
    let mut entries = vec![entry(four_lanes(By::Job(today + 1 - AGE)))];
    let news = [("eth0".into(), copied(By::Here))];
    assert!(merge(&mut entries, &key, &news, today));
    let [both] = &entries[..] else { panic!("{entries:?}") };
    assert!(both.lesson.lanes.is_some() && both.lesson.copies.is_some(), "{both:?}");
    let later = both.clone().on(today + 2).expect("the copies");
    assert!(later.lesson.lanes.is_none() && later.lesson.copies.is_some(), "{later:?}");
    // And for whoever writes next.
    assert!(merge(&mut entries, &key, &news, today + 2));
    assert!(entries[0].lesson.lanes.is_none(), "{entries:?}");

    let mut entries = vec![entry(four_lanes(By::Job(today + 400)))];
    assert!(merge(&mut entries, &key, &[("eth0".into(), four_lanes(By::Here))], today));
    assert_eq!(entries, [entry(four_lanes(By::Job(today)))]);
}

#[test]
fn the_oldest_have_to_go() {
    let (key, today) = (key(&Config::default()), 20_000);
    let entry = |n: u32| Entry { link: n.to_string(), key: key.clone(), lesson: four_lanes(By::Job(today - n)) };
    let mut entries: Vec<Entry> = (0..MOST_ENTRIES as u32).map(entry).collect();
    assert!(merge(&mut entries, &key, &[("new".into(), copied(By::Here))], today));
    assert_eq!(entries.len(), MOST_ENTRIES);
    let has = |link: &str| entries.iter().any(|entry| entry.link == link);
    assert!(has("new") && has("0") && !has("31"));
    // A processor with a very long name.
    let place = Place::new("long");
    let key = Key { machine: Machine { processor: "x".repeat(8000), ..key.machine }, ..key };
    let news: Vec<_> = (0..16).map(|n| (n.to_string().into(), copied(By::Here))).collect();
    assert_eq!(write(&place.file(), false, &key, &news), Ok(true));
    let text = own_file::read(&place.file(), LONGEST).expect("not too long");
    assert!((3..16).contains(&text::read(&text).expect("sound").len()));
}

#[test]
fn who_wants_none_of_it() {
    let place = Place::new("unwanted");
    for config in [Config { learn: 1, ..place.config() }, Config { profile: ProfileChoice::Off, ..Config::default() }] {
        assert!(matches!(Standing::look(&config), Standing::Off(_)));
        assert_eq!(job(&config, "eth0", four_lanes(By::Here)), Ok(false));
        let profiles = Profiles::new(|text| panic!("{text}"));
        assert_eq!(
            profiles.lessons(&config, &Log::silent()).is_some(),
            config.learn == 0,
            "within the job, where that is wanted"
        );
    }
    // An engine that was not asked to use files.
    let config = place.config();
    std::fs::write(place.file(), text::write(&small())).expect("written");
    let profiles = Profiles::off();
    let lessons = profiles.lessons(&config, &Log::silent()).expect("within the job");
    assert!(lessons.all().is_empty());
    lessons.add("eth0", four_lanes(By::Here));
    profiles.keep_lessons(&config, &Log::silent());
    assert_eq!(std::fs::read_to_string(place.file()).expect("text"), text::write(&small()));
}

struct Nobody;

impl LogSink for Nobody {
    fn enabled(&self, _: LogLevel, _: LogSubsystem) -> bool {
        false
    }

    fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
        panic!("nobody would see: {text}");
    }
}

/// Garbage is told once, on standard error if the log does not show it, and left alone: it may be a newer version's, or something else altogether.
#[test]
fn a_file_that_cannot_be_used_is_told_once_and_stays() {
    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let place = Place::new("garbage");
    let config = place.config();
    let long = "#".repeat(LONGEST as usize + 1);
    for (bytes, mode, why) in [
        ("no toml at all", 0o644, "line 1 is no TOML"),
        ("format = 7", 0o644, "its format is 7"),
        ("\u{0}", 0o644, "no TOML"),
        (long.as_str(), 0o644, "too long"),
        ("format = 1", 0o666, "others than its owner may write to it"),
    ] {
        std::fs::write(place.file(), bytes).expect("written");
        std::fs::set_permissions(place.file(), PermissionsExt::from_mode(mode)).expect("mode");
        let profiles = Profiles::new(|text| HEARD.lock().push(text.into()));
        let log = Log::new(Arc::new(Nobody));
        for round in 0..2 {
            let lessons = profiles.lessons(&config, &log).expect("within the job");
            assert_eq!(lessons.all().len(), round);
            lessons.add("eth0", four_lanes(By::Here));
            profiles.keep_lessons(&config, &log);
        }
        let heard = std::mem::take(&mut *HEARD.lock());
        let [said] = &heard[..] else { panic!("{heard:?}") };
        assert!(said.contains(why) && said.contains("profile.links.toml"), "{said}");
        assert_eq!(std::fs::read_to_string(place.file()).expect("text"), bytes);
        assert_eq!(job(&config, "eth0", four_lanes(By::Here)), Ok(false));
    }
    // It was spoilt while the job ran.
    std::fs::remove_file(place.file()).expect("removed");
    let learned = Learned::begin(Standing::look(&config));
    learned.lessons().add("eth0", four_lanes(By::Here));
    std::fs::write(place.file(), "spoilt").expect("written");
    assert!(learned.keep(&config).expect_err("spoilt").contains("no TOML"));
    assert_eq!(std::fs::read_to_string(place.file()).expect("text"), "spoilt");
}

/// It is put only where nobody else could have put it, and nobody is given a place who has none.
#[test]
fn where_it_is_not_put() {
    let place = Place::new("places");
    let config = place.config();
    std::fs::set_permissions(&place.0, PermissionsExt::from_mode(0o777)).expect("mode");
    assert!(job(&config, "eth0", four_lanes(By::Here)).expect_err("open to all").contains("can be written to by others"));
    std::fs::set_permissions(&place.0, PermissionsExt::from_mode(0o700)).expect("mode");
    let nowhere = Config { profile: ProfileChoice::File(place.0.join("a/profile.toml")), ..Config::default() };
    assert!(job(&nowhere, "eth0", four_lanes(By::Here)).expect_err("no directory").contains("is not there"));
    assert!(place.names().is_empty());
    // The user's own place: the last directory is made, and no other one.
    let key = key(&Config::default());
    let news = [("eth0".into(), four_lanes(By::Here))];
    let own = place.0.join("rustmx/links.toml");
    assert_eq!(write(&own, true, &key, &news), Ok(true));
    let mode = std::fs::metadata(place.0.join("rustmx")).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(write(&place.0.join("no/rustmx/links.toml"), true, &key, &news).is_err());
    assert_eq!(place.names(), ["rustmx"]);
    assert!(write(Path::new("/proc/self/links.toml"), false, &key, &news).is_err());
}

/// All at once: every one of them ends, at any moment the file is whole, and what one of them found is there in the end.
#[test]
fn many_at_once() {
    let place = Place::new("many");
    let config = place.config();
    let written = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..16)
            .map(|n| {
                let (place, config) = (&place, &config);
                scope.spawn(move || {
                    let mut written = Vec::new();
                    for round in 0..20 {
                        let link = format!("eth{n}");
                        let learned = Learned::begin(Standing::None(place.file()));
                        let lanes = Lanes { number: 1 + round % 8, ..Lanes::default() };
                        learned.lessons().add(&link, Lesson { lanes: Some((lanes, By::Here)), ..Lesson::default() });
                        match learned.keep(config) {
                            Ok(Some(_)) => written.push(n),
                            Ok(None) => {}
                            Err(why) => assert!(why.contains("another process"), "{why}"),
                        }
                        if let Err(Some(why)) = read(&place.file()) {
                            panic!("{why}");
                        }
                    }
                    written
                })
            })
            .collect();
        jobs.into_iter().flat_map(|job| job.join().expect("it ends")).collect::<Vec<_>>()
    });
    let known = place.known();
    assert!(!written.is_empty());
    assert!(written.iter().all(|n| known.iter().any(|entry| entry.link == format!("eth{n}"))), "nobody's is lost: {known:?}");
    assert_eq!(place.names(), ["profile.links.toml"]);
    // Who is in the turn is not waited for.
    let turn = Turn::take(&place.file()).expect("free");
    assert!(Turn::take(&place.file()).is_none());
    assert!(job(&config, "eth99", four_lanes(By::Here)).expect_err("taken").contains("another process"));
    drop(turn);
    assert_eq!(job(&config, "eth99", four_lanes(By::Here)), Ok(true));
}
