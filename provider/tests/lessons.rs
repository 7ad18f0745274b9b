//! A job begins where the one before ended: what its connections found out about a link is kept in a file, and the connections of the next job go by that.
//!
//! Over the loopback interface, whose connections count here as such to other hosts: its kernel copies all the same what is sent without a copy, which is a thing
//! to be found out. Each job is a process's: a `Profiles` of its own, with the same directory.

mod common;

use common::left_out::left_out;
use common::{Deadline, Msg, Node, Want, attr, pattern, watchdog};
use rustmx::config::network::Iface;
use rustmx::config::profile::ProfileChoice;
use rustmx::domain::Machine;
use rustmx::select::lessons::{Standing, date, today};
use rustmx::sys::clock::Clock;
use rustmx::sys::links::Link;
use rustmx::transport::tcp::{By, Lesson};
use rustmx::{Config, Domain, Log, Profiles, Stats, Telling};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of its own, where nobody else may write.
fn directory(name: &str) -> PathBuf {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lessons-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&at);
    std::fs::create_dir(&at).expect("made");
    std::fs::set_permissions(&at, PermissionsExt::from_mode(0o700)).expect("mode");
    at
}

fn config(directory: &Path) -> Config {
    let profile = ProfileChoice::File(directory.join("profile.toml"));
    Config { profile, shm: 0, iface: Iface::parse("127.0.0.1").0, ..Config::default() }
}

fn node(config: &Config, profiles: &Arc<Profiles>) -> Node {
    let machine = Arc::new(Machine::new(config, Log::silent()).afar());
    let domain = Domain::at_venue(Arc::new(config.clone()), Log::silent(), Clock::machine(), machine);
    Node::enabled(domain.with_profiles(profiles.clone()), attr())
}

/// What is told on standard error: there is no profile, though one is named.
fn heard(text: &str) {
    assert!(text.contains("profile.toml is not used: there is no such file"), "{text}");
}

/// Bytes of a message, and how many: such that leave alone, and such that leave in pieces.
const LONG: [usize; 2] = [200_000, 120];
const LONGER: [usize; 2] = [2 << 20, 300];

fn never(_: &Stats) -> bool {
    false
}

/// `count` messages of `n` bytes from one to the other, some at a time, or fewer if the sender has done `enough`.
fn sends(from: &mut Node, to: &mut Node, [n, count]: [usize; 2], enough: fn(&Stats) -> bool) {
    const WINDOW: usize = 6;
    let name = from.knows(to);
    let mut out: Vec<Vec<u8>> = (0..WINDOW).map(|i| pattern(n, i)).collect();
    let mut into = vec![vec![0u8; n]; WINDOW];
    let until = Deadline::new(60);
    for done_before in (0..count).step_by(WINDOW) {
        let window = WINDOW.min(count - done_before);
        if enough(&from.stats()) {
            return;
        }
        for (at, buffer) in into.iter_mut().enumerate().take(window) {
            to.recv(Want::tag(1).ctx(at), buffer).expect("recv");
        }
        let (mut sent, mut done) = (0, 0);
        while done < 2 * window {
            if sent < window && from.send(Msg::new(name, 1).ctx(sent), &mut out[sent]).is_ok() {
                sent += 1;
            }
            for event in from.poll().into_iter().chain(to.poll()) {
                event.expect("done");
                done += 1;
            }
            until.check(|| format!("{sent} sent, {done} done: {:?}", from.stats()));
        }
        assert!(into[..window] == out[..window]);
    }
}

/// A job of two, of which one sends: what it did, and what it tells.
fn job(config: &Config, size: [usize; 2], enough: fn(&Stats) -> bool) -> (Stats, String) {
    let [profiles, others] = [(); 2].map(|()| Arc::new(Profiles::new(heard)));
    let (mut a, mut b) = (node(config, &profiles), node(&Config { learn: 1, ..config.clone() }, &others));
    sends(&mut a, &mut b, size, enough);
    let told = a.domain.ep_history(a.ep, Telling::All).expect("told");
    (a.stats(), told)
}

fn link() -> Option<String> {
    let link = Link::of_address([127, 0, 0, 1].into()).map(|link| link.to_string());
    if link.is_none() {
        left_out("loopback", "no loopback interface is up");
    }
    link
}

/// What the next job will begin with.
fn known(config: &Config, link: &str) -> Option<Lesson> {
    match Standing::look(config) {
        Standing::InForce(_, entries) => entries.into_iter().find(|entry| entry.link == link).map(|entry| entry.lesson),
        Standing::None(_) | Standing::Off(_) => None,
        refused => panic!("{refused:?}"),
    }
}

fn line<'a>(told: &'a str, about: &str) -> &'a str {
    told.lines().find(|line| line.trim_start().starts_with(about)).unwrap_or_else(|| panic!("{about}: {told}"))
}

#[test]
fn the_second_job_begins_where_the_first_one_ended() {
    let _dog = watchdog("second job", 120);
    let Some(link) = link() else { return };
    let directory = directory("second");
    let config = config(&directory);
    let (stats, told) = job(&config, LONG, never);
    if stats.zerocopy == 0 {
        return left_out("zerocopy", "this kernel sends nothing without a copy");
    }
    assert!(stats.zerocopy_copied > 0, "{stats:?}");
    let said = line(&told, "zero-copy send:");
    assert!(
        said.contains(&link) && said.contains("the kernel copied all the same") && said.ends_with("; found in this job"),
        "{said}"
    );
    let found = known(&config, &link).and_then(|lesson| lesson.copies).expect("kept");
    assert!(found.0.copied && found.1 == By::Job(today()), "{found:?}");

    let (stats, told) = job(&config, LONG, never);
    assert_eq!((stats.zerocopy, stats.zerocopy_registered), (0, 0), "it need not try that again");
    let said = line(&told, "zero-copy send:");
    assert!(said.ends_with(&format!("; learned on {} by an earlier job", date(today()))), "{said}");

    for config in [Config { learn: 1, ..config.clone() }, Config { profile: ProfileChoice::Off, ..config.clone() }] {
        let (stats, told) = job(&config, LONG, never);
        assert!(stats.zerocopy > 0 && !told.contains("by an earlier job"), "{told}");
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// In one process the second peer behind the same link begins with what was found by sending to the first.
#[test]
fn the_second_peer_begins_where_the_first_one_is() {
    let _dog = watchdog("second peer", 120);
    let Some(link) = link() else { return };
    let config = Config { profile: ProfileChoice::Off, ..config(Path::new("/")) };
    let [profiles, others] = [(); 2].map(|()| Arc::new(Profiles::off()));
    let mut a = node(&config, &profiles);
    let (mut b, mut c) = (node(&config, &others), node(&config, &others));
    sends(&mut a, &mut b, LONG, never);
    let lessons = profiles.lessons(&config, &Log::silent()).expect("they pass from connection to connection").clone();
    let until = Deadline::new(20);
    // It is written down when connections are looked after.
    while lessons.of(&link).copies.is_none() && a.stats().zerocopy > 0 {
        a.poll();
        b.poll();
        until.check(|| format!("{:?}", lessons.all()));
    }
    let before = a.stats().zerocopy;
    if before == 0 {
        return left_out("zerocopy", "this kernel sends nothing without a copy");
    }
    sends(&mut a, &mut c, LONG, never);
    assert_eq!(a.stats().zerocopy, before, "it need not try that again");
    let told = a.domain.ep_history(a.ep, Telling::Json).expect("told");
    assert!(told.contains("\"about\":\"zero-copy send\",\"on\":false,\"connections\":2,"), "{told}");
    assert!(others.lessons(&config, &Log::silent()).expect("another book").of(&link).copies.is_none());
}

/// Further connections are there from the first long messages on; and whoever has found out a number himself keeps to that.
#[test]
fn as_many_connections_as_paid_before() {
    let _dog = watchdog("lanes before", 120);
    let Some(link) = link() else { return };
    let directory = directory("lanes");
    let config = config(&directory);
    let text = |number: usize, day: &str| {
        let machine = rustmx::select::lessons::key(&config);
        let quoted = rustmx::log::quoted;
        let (processor, kernel) = (quoted(&machine.machine.processor), quoted(&machine.machine.kernel));
        let hypervisor = machine.machine.hypervisor.map_or(String::new(), |maker| format!("hypervisor = {}\n", quoted(&maker)));
        format!(
            "format = 1\n[[link]]\nlink = {}\nprocessor = {processor}\nkernel = {kernel}\ncores = {}\n{hypervisor}settings = [{}]\n\
             lanes = {{ day = \"{day}\", number = {number}, rates = [[1, 95.0], [{number}, 380.0]] }}\n",
            quoted(&link),
            machine.machine.cores,
            machine.settings.iter().map(|s| quoted(s)).collect::<Vec<_>>().join(", ")
        )
    };
    let day = date(today() - 3);
    std::fs::write(directory.join("profile.links.toml"), text(3, &day)).expect("written");
    let (stats, told) = job(&config, LONGER, |stats| stats.lanes == 2);
    assert_eq!(stats.lanes, 2, "{told}");
    let said = line(&told, "lanes:");
    let wanted = format!(
        "3 connections to each for 1 of the peers on other hosts by {link}: 95 MB/s by 1, 380 MB/s by 3 of them together; learned on {day}"
    );
    assert!(said.contains(&wanted), "{said}");
    // What is too little does not open any.
    let (stats, _) = job(&config, [524_288, 5], never);
    assert_eq!(stats.lanes, 0);
    // What the user says counts.
    let (stats, told) = job(&Config { tcp_lanes: 2, ..config.clone() }, LONGER, |stats| stats.lanes == 1);
    assert_eq!(stats.lanes, 1);
    assert!(line(&told, "lanes:").contains("FI_RUSTMX_TCP_LANES=2"), "{told}");
    // It is too old to be believed.
    std::fs::write(directory.join("profile.links.toml"), text(3, &date(today() - 100))).expect("written");
    let (_, told) = job(&config, LONGER, never);
    assert!(!told.contains("by an earlier job"), "{told}");
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Endpoints of this host find nothing out, and write nothing.
#[test]
fn peers_of_this_host_teach_nothing() {
    let _dog = watchdog("same host", 60);
    let directory = directory("host");
    let config = config(&directory);
    let profiles = Arc::new(Profiles::new(heard));
    let open = || {
        let domain = Domain::new(Arc::new(config.clone()), Log::silent()).with_profiles(profiles.clone());
        Node::enabled(domain, attr())
    };
    let (mut a, mut b) = (open(), open());
    sends(&mut a, &mut b, LONGER, never);
    let told = a.domain.ep_history(a.ep, Telling::All).expect("told");
    assert!(line(&told, "lanes:").contains("both ends are on this host"), "{told}");
    drop((a, b));
    assert_eq!(std::fs::read_dir(&directory).expect("listed").count(), 0);
    std::fs::remove_dir_all(&directory).expect("removed");
}
