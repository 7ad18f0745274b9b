//! Long messages between hosts whose cables limit each flow, as those of clouds do, or have no network card behind them: what the provider finds out by
//! itself. Rates decide how long a test waits, and are compared only with what the kernel lets through.

use super::Lab;
use crate::common::process::{follow_parent, hear, say};
use crate::common::{Deadline, Msg, Node, Want, all_ok, attr, pattern, watchdog};
use rustmx::config::profile::ProfileChoice;
use rustmx::{Config, Domain, Error, Log, Name, OpFlags, Profiles, Telling};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 4 << 20;
const UNDER_WAY: usize = 4;
/// More than are under way, so that each of these is another one.
const PATTERNS: usize = UNDER_WAY + 1;
/// Bytes a microsecond that the limited cable lets through for each flow (200 Mbit/s).
const FLOW: f64 = 25.0;

/// Takes whatever comes and looks at all of it.
pub(super) fn sink() {
    let mut node = Node::with(Config { shm: 0, ..Config::default() }, attr());
    say(&node.name().to_string());
    follow_parent();
    let wanted: Vec<Vec<u8>> = (0..PATTERNS).map(|i| pattern(LEN, i)).collect();
    let mut into = vec![vec![0u8; LEN]; UNDER_WAY];
    for (i, buffer) in into.iter_mut().enumerate() {
        node.recv(Want::tag(1).ctx(i * UNDER_WAY + i), buffer).expect("recv");
    }
    let mut posted = UNDER_WAY;
    loop {
        for event in node.poll() {
            // By several connections a message may be complete before the one ahead of it: receives are numbered as they were posted.
            let ctx = event.expect("came").ctx.0;
            let (number, buffer) = (ctx / UNDER_WAY, &mut into[ctx % UNDER_WAY]);
            assert!(*buffer == wanted[number % PATTERNS], "message {number} is another one");
            buffer.fill(0);
            node.recv(Want::tag(1).ctx(posted * UNDER_WAY + ctx % UNDER_WAY), buffer).expect("recv");
            posted += 1;
        }
    }
}

/// Sends to a sink without end, and says every four seconds how it goes: see [`Tale`]. With a directory it begins with what others left there, and ends, and leaves what it
/// found, when it is told to.
pub(super) fn source(sink: &str, lanes: &str, directory: Option<&String>) {
    let profile = directory.map_or(ProfileChoice::Off, |at| ProfileChoice::File(Path::new(at).join("profile.toml")));
    let config = Config { shm: 0, tcp_lanes: lanes.parse().expect("a number"), profile, ..Config::default() };
    let domain = Domain::new(Arc::new(config), Log::silent()).with_profiles(Arc::new(Profiles::new(|_| {})));
    let mut node = Node::enabled(domain, attr());
    if directory.is_none() {
        follow_parent();
    }
    let to = node.av.insert(&sink.parse::<Name>().expect("a name"));
    let mut out: Vec<Vec<u8>> = (0..PATTERNS).map(|i| pattern(LEN, i)).collect();
    let (mut sent, mut arrived) = (0, 0);
    let (mut since, mut before) = (Instant::now(), 0);
    // At any time: what it finds out by itself takes the place of that, perhaps before it tells for the first time.
    let mut learned = false;
    loop {
        if sent < arrived + UNDER_WAY {
            match node.send(Msg::new(to, 1).with(OpFlags::DELIVERY_COMPLETE), &mut out[sent % PATTERNS]) {
                Ok(()) => sent += 1,
                Err(why) => assert_eq!(why, Error::Again),
            }
        }
        let came = all_ok(&node.poll());
        arrived += came;
        let history = || node.domain.ep_history(node.ep, Telling::All).expect("told");
        learned |= came > 0 && history().lines().any(|line| line.contains("lanes: ") && line.contains("by an earlier job"));
        let took = since.elapsed();
        if took >= Duration::from_secs(4) {
            let rate = ((arrived - before) * LEN) as f64 / took.as_micros() as f64;
            let stats = node.stats();
            let stopped = history().contains("the kernel copied all the same");
            say(&format!("{rate} {} {} {} {} {stopped} {learned}", stats.lanes, stats.striped, stats.zerocopy, arrived * LEN));
            if directory.is_some() && hear() == "end" {
                break;
            }
            (since, before) = (Instant::now(), arrived);
        }
    }
    drop(node);
    say("over");
}

/// How it goes.
#[derive(Debug)]
struct Tale {
    /// Bytes a microsecond that arrived since the last one.
    rate: f64,
    /// Further connections, and bytes that went by them.
    lanes: u64,
    striped: u64,
    /// Bytes that the kernel was given to be sent without a copy, and of all messages.
    lent: u64,
    all: u64,
    /// Whether sending without a copy is off because the kernel copied.
    stopped: bool,
    /// Whether it went by as many connections as an earlier job had found out.
    learned: bool,
}

impl Tale {
    fn heard(said: &str) -> Tale {
        let words: Vec<&str> = said.split(' ').collect();
        let number = |i: usize| words[i].parse().expect("a number");
        let rate = words[0].parse().expect("a number");
        let [stopped, learned] = [5, 6].map(|i| words[i] == "true");
        Tale { rate, lanes: number(1), striped: number(2), lent: number(3), all: number(4), stopped, learned }
    }
}

/// A source on h1 and a sink on h2; listens to the source until `enough`. The last tale.
fn tells(lab: &Lab, lanes: &str, mut enough: impl FnMut(&Tale) -> bool) -> Tale {
    let mut sink = lab.on("h2", "sink");
    let mut source = lab.on("h1", &format!("source {} {lanes}", sink.hear()));
    let until = Deadline::new(350);
    loop {
        let tale = Tale::heard(&source.hear());
        if enough(&tale) {
            return tale;
        }
        eprintln!("{tale:?}");
        until.check(|| format!("{tale:?}"));
    }
}

/// Each flow of the eth0 of a host, told by the lower bits of its port on h1, is limited. `false`: this kernel cannot.
fn limit_flows(lab: &Lab, host: &str) -> bool {
    let port = if host == "h1" { "sport" } else { "dport" };
    // As many as seldom leave two of eight flows in one, which would be one flow.
    const CLASSES: u32 = 1024;
    let classes: String = (0..CLASSES)
        .map(|c| format!("class add dev eth0 parent 1: classid 1:{:x} htb rate 200mbit burst 64k cburst 64k\n", c + 16))
        .collect();
    let map: Vec<String> = (0..CLASSES).map(|c| format!("{c} : 1:{:x}", c + 16)).collect();
    let last = CLASSES - 1;
    let script = format!(
        "tc qdisc add dev eth0 root handle 1: htb default fff0 || {{ echo no; exit 0; }}
        tc -batch - <<'END'
{classes}class add dev eth0 parent 1: classid 1:fff0 htb rate 20gbit
END
        nft 'table inet flows {{
            chain out {{ type filter hook output priority 0; meta l4proto tcp meta priority set tcp {port} & {last} map {{ {} }}; }}
        }}'",
        map.join(", ")
    );
    lab.run_on(host, &script) != "no"
}

/// More connections are opened, and more arrives than one flow lets through.
#[test]
fn where_each_flow_is_limited_several_carry_more() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let _dog = watchdog("flows", 800);
    if !["h1", "h2"].into_iter().all(|host| limit_flows(&lab, host)) {
        return eprintln!("left out: this kernel has no htb (CONFIG_NET_SCH_HTB)");
    }
    // The limit is one.
    let mut first = true;
    let one = tells(&lab, "1", |_| !std::mem::replace(&mut first, false));
    assert!(one.lanes == 0 && one.rate < 1.5 * FLOW, "{one:?}");
    let mut before = 0;
    let several = tells(&lab, "0", |tale| {
        let used = tale.striped > std::mem::replace(&mut before, tale.striped);
        tale.lanes > 1 && used && tale.rate > 2.0 * FLOW
    });
    eprintln!("{one:?}\n{several:?}");
}

/// What one job found out the next one begins with: in its first seconds it has what the first one had to find.
#[test]
fn the_next_job_has_them_from_the_start() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let _dog = watchdog("next_flows", 800);
    if !["h1", "h2"].into_iter().all(|host| limit_flows(&lab, host)) {
        return eprintln!("left out: this kernel has no htb (CONFIG_NET_SCH_HTB)");
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("flows-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).expect("made");
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("mode");
    let job = |enough: fn(&Tale) -> bool| {
        let mut sink = lab.on("h2", "sink");
        let mut source = lab.on("h1", &format!("source {} 0 {}", sink.hear(), directory.display()));
        let until = Deadline::new(350);
        loop {
            let tale = Tale::heard(&source.hear());
            eprintln!("{tale:?}");
            if enough(&tale) {
                source.tell("end");
                assert_eq!(source.hear(), "over");
                return tale;
            }
            source.tell("go on");
            until.check(|| format!("{tale:?}"));
        }
    };
    let first = job(|tale| tale.lanes > 1 && tale.rate > 2.0 * FLOW);
    assert!(!first.learned);
    let kept = std::fs::read_to_string(directory.join("profile.links.toml")).expect("kept");
    assert!(kept.contains("link = \"eth0") && kept.contains("lanes = {"), "{kept}");
    // Whatever its rate is: on a busy machine that may be less.
    let second = job(|_| true);
    assert!(second.learned && second.lanes > 0 && second.striped > 0, "{second:?} after {kept}");
    eprintln!("{first:?}\n{second:?}\n{kept}");
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Virtual cables have no network card: the kernel copies when it delivers, and says so. Then it is given nothing more, but for a try now and then.
#[test]
fn without_a_network_card_nothing_is_lent_for_long() {
    let Some(lab) = Lab::up(&["--hosts", "2"]) else { return };
    let _dog = watchdog("no_card", 800);
    let end = tells(&lab, "1", |tale| tale.stopped && tale.all > 10 * tale.lent);
    assert!(end.lent > 0, "it was tried: {end:?}");
    eprintln!("{end:?}");
}
