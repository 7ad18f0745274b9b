//! Messages go as a profile says, in an engine that was told to look for one.

mod common;

use common::left_out::left_out;
use common::{Msg, Node, Want, all_ok, attr, pattern, run, watchdog};
use rustmx::config::force::Way;
use rustmx::config::network::{Iface, Secret};
use rustmx::config::profile::ProfileChoice;
use rustmx::select::model::{About, Curve, Memory, Model, Operation, PeerClass, Point, Source};
use rustmx::select::network::link_name;
use rustmx::select::profile::{Key, Profile};
use rustmx::sys::links::Link;
use rustmx::{Config, Domain, Log, Profiles, Telling};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that says that fragments are best for everything.
fn saved(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.toml", std::process::id()));
    let mut model = Model::default();
    for way in Way::CARRIERS {
        for &source in Source::ALL {
            let ns = if way == Way::Stream { 100.0 } else { 1000.0 };
            let points = [256, 1 << 20].map(|size| Point { size, ns, spread: 0.01 });
            let about = About { operation: Operation::Send, peer: PeerClass::SameHost, memory: Memory::Private, source, way };
            model.add(about, Curve::new(points.into()).expect("sound")).expect("new");
        }
    }
    let profile = Profile {
        key: Key::here(&Config::default()),
        best: Vec::new(),
        kernel_copies: true,
        handover_ns: 100.0,
        model,
        links: Vec::new(),
    };
    profile.save(&path).expect("saved");
    path
}

fn node(config: &Config, profiles: &Arc<Profiles>) -> Node {
    let domain = Domain::new(Arc::new(config.clone()), Log::silent()).with_profiles(profiles.clone());
    Node::enabled(domain, attr())
}

#[test]
fn messages_go_as_the_profile_says() {
    let _dog = watchdog("messages_go_as_the_profile_says", 60);
    let path = saved("engine");
    let config = Config { profile: ProfileChoice::File(path.clone()), ..Config::default() };
    let profiles = Arc::new(Profiles::new(|text| panic!("{text}")));
    let mut a = node(&config, &profiles);
    // Looked for once: the second endpoint of the process does not miss it.
    std::fs::remove_file(&path).expect("removed");
    let mut b = node(&config, &profiles);
    let (to_b, _) = (a.knows(&b), b.knows(&a));
    let sizes = [100usize, 300, 3000, 20_000, 300_000];
    for (i, n) in sizes.into_iter().enumerate() {
        let (mut out, mut into) = (pattern(n, i), vec![0u8; n]);
        b.recv(Want::tag(5), &mut into).expect("recv");
        a.send(Msg::new(to_b, 5), &mut out).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        assert!(into == out, "{n} bytes");
    }
    let stats = a.stats();
    assert_eq!((stats.inline, stats.stream, stats.sent), (1, 4, 5));
    let told = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    let stream = told.lines().find(|l| l.contains(" same host ") && l.contains(" stream ")).expect("a row");
    assert!(stream.contains("; 0.1 us for ") && stream.ends_with(", measured (profile)"), "{told}");
}

/// The link by which peers are reached decides which table their messages go by.
#[test]
fn messages_to_other_hosts_go_as_the_profile_says_of_the_link() {
    let _dog = watchdog("link", 60);
    let local = std::net::IpAddr::from([127, 0, 0, 1]);
    let Some(here) = Link::to(local, 0) else { return left_out("loopback", "no loopback interface is up") };
    let plain = Config::default();
    let encrypted = Config { encrypt: 1, auth_key: Secret::parse("0123456789abcdef0123456789abcdef").0, ..plain.clone() };
    let short = Config { tcp_ring_size: 64 << 10, ..plain.clone() };
    let cases = [
        (here.to_string(), &plain, true),
        ("eth99, MTU 1500".to_string(), &plain, false),
        (here.to_string(), &encrypted, false),
        (link_name(&here, &encrypted), &encrypted, true),
        (link_name(&here, &encrypted), &plain, false),
        (here.to_string(), &short, false),
        (link_name(&here, &short), &short, true),
    ];
    for (number, (link, base, measured)) in cases.into_iter().enumerate() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("link-{number}-{}.toml", std::process::id()));
        let mut model = Model::default();
        for (way, ns) in [(Way::Eager, 1000.0), (Way::Stream, 100.0)] {
            for &source in Source::ALL {
                let points = [256, 32 << 10].map(|size| Point { size, ns, spread: 0.01 });
                let about = About { operation: Operation::Send, peer: PeerClass::Network, memory: Memory::Private, source, way };
                model.add(about, Curve::new(points.into()).expect("sound")).expect("new");
            }
        }
        let key = Key::here(&Config::default());
        let links = vec![(link.clone(), model)];
        let profile = Profile { key, best: Vec::new(), kernel_copies: true, handover_ns: 100.0, model: Model::default(), links };
        profile.save(&path).expect("saved");
        let iface = Iface::parse("127.0.0.1").0;
        let config = Config { profile: ProfileChoice::File(path.clone()), shm: 0, iface, ..base.clone() };
        let profiles = Arc::new(Profiles::new(|text| panic!("{text}")));
        let (mut a, mut b) = (node(&config, &profiles), node(&config, &profiles));
        // Whoever calls and whoever is called.
        for (from, to) in [(0, 1), (1, 0)] {
            let mut nodes = [&mut a, &mut b];
            let name = nodes[from].knows(nodes[to]);
            let (mut out, mut into) = (pattern(3000, 1), vec![0u8; 3000]);
            nodes[to].recv(Want::tag(5), &mut into).expect("recv");
            nodes[from].send(Msg::new(name, 5), &mut out).expect("send");
            run(&mut nodes, &[1, 1]);
            assert!(into == out);
            let stats = nodes[from].stats();
            assert_eq!((stats.eager, stats.stream), if measured { (0, 1) } else { (1, 0) }, "{link}");
            let told = nodes[from].domain.ep_history(nodes[from].ep, Telling::Used).expect("told");
            let words = if measured { format!("measured; by {link} (profile)") } else { "modelled".into() };
            assert!(
                told.lines().any(|l| l.contains(" network ") && l.contains(" 3000 bytes") && l.ends_with(&words)),
                "{words}: {told}"
            );
        }
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn an_engine_that_was_not_told_to_look_does_not() {
    let path = saved("untold");
    let config = Config { profile: ProfileChoice::File(path.clone()), ..Config::default() };
    let mut a = Node::with(config, attr());
    let to_self = a.knows(&a);
    let (mut out, mut into) = (pattern(3000, 1), vec![0u8; 3000]);
    a.recv(Want::tag(5), &mut into).expect("recv");
    a.send(Msg::new(to_self, 5), &mut out).expect("send");
    run(&mut [&mut a], &[2]);
    assert_eq!((a.stats().eager, a.stats().stream), (1, 0));
    std::fs::remove_file(&path).expect("removed");
}
