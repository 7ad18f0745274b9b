//! Whoever connects and is no rustmx is turned away soon, quietly, and without harm to others.

use crate::common::{Deadline, Msg, Node, Rng, attr, footprint, process, watchdog};
use crate::scene::{Scene, is_hung_up, network, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustmx::sys::host;
use rustmx::wire::hello::{HELLO_LEN, Hello};
use rustmx::wire::version::PROTOCOL;
use rustmx::{Error, Name};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use zerocopy::IntoBytes;

/// Seconds that somebody may say nothing.
const SILENT: u64 = 6;

fn any_name() -> Name {
    Name::new(host::random() | 1, 0, host::id() ^ 1, None)
}

fn hello(scene: &Scene, segment: u32) -> Vec<u8> {
    let (from, to) = (any_name(), scene.victim.name());
    Hello::new(from.to_bytes(), to.to_bytes(), segment, 0, [0; 16]).as_bytes().to_vec()
}

#[test]
fn who_speaks_another_language_is_turned_away_at_once() {
    let _dog = watchdog("language", 60);
    let (mut scene, mut rng) = (Scene::new(), Rng(7));
    let mut noise: Vec<u8> = (0..5000).map(|_| rng.next() as u8).collect();
    // Not a hello by accident.
    noise[0] = 0;
    let good = hello(&scene, 24 << 10);
    let mut version = good.clone();
    version[8] ^= 1;
    let mut refusal = good.clone();
    refusal[12] = 99;
    let mut from = good.clone();
    from[16] ^= 1;
    let mut to = good.clone();
    // The nonce of whom the caller means.
    to[16 + 56 + 32] ^= 1;
    let mut cases = vec![
        ("HTTP", b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec()),
        ("TLS", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
        ("a line", b"\n".to_vec()),
        ("noise", noise),
        ("another version", version),
        ("a refusal that there is not", refusal),
        ("no name", from),
        ("somebody else is meant", to),
    ];
    for segment in [0, 1, 4095, 4097, (8 << 10) + 1, 3 << 30, u32::MAX] {
        cases.push(("a lying size", hello(&scene, segment)));
    }
    for (what, bytes) in cases {
        let mut stream = scene.stranger();
        stream.write_all(&bytes).expect("write");
        scene.hangs_up(&mut stream, 3, what);
        scene.exchange();
    }
    let lines = scene.lines.all();
    assert!((1..=6).contains(&lines.len()), "{lines:#?}");
}

/// Both sides say both versions.
#[test]
fn another_version_is_named() {
    let _dog = watchdog("version", 60);
    let other = PROTOCOL + 1;
    let names = |lines: Vec<String>| {
        let both = |l: &String| l.contains(&format!("version {other} ")) && l.contains(&format!("version {PROTOCOL};"));
        assert!(lines.iter().any(both), "{lines:?}");
    };
    let mut scene = Scene::new();
    let mut hello = hello(&scene, 24 << 10);
    hello[8..12].copy_from_slice(&other.to_le_bytes());
    let mut stream = scene.stranger();
    stream.write_all(&hello).expect("write");
    scene.hangs_up(&mut stream, 3, "another version");
    scene.exchange();
    names(scene.lines.all());
    // And who calls one.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let (mut caller, lines) = open(network());
    let port = listener.local_addr().expect("address").port();
    let name = any_name().at(&[([127, 0, 0, 1].into(), 0)], port);
    let to = caller.av.insert(&name);
    caller.send(Msg::new(to, 1), &mut [1; 8]).expect("send");
    let mut node = listener.accept().expect("accept").0;
    node.write_all(&hello).expect("write");
    let until = Deadline::new(10);
    let mut refused = false;
    while !refused {
        // The send has left already.
        let _ = caller.poll();
        refused = caller.send(Msg::new(to, 2), &mut [1; 8]) == Err(Error::Version);
        until.check(|| format!("{:?}", lines.all()));
    }
    names(lines.all());
}

#[test]
fn who_says_too_little_is_hung_up_on_after_a_while() {
    let _dog = watchdog("little", 60);
    let mut scene = Scene::new();
    let good = hello(&scene, 24 << 10);
    let mut strangers: Vec<TcpStream> = [0, 1, 8, 100, HELLO_LEN - 1]
        .into_iter()
        .map(|n| {
            let mut stream = scene.stranger();
            stream.write_all(&good[..n]).expect("write");
            stream
        })
        .collect();
    // Scanners.
    for _ in 0..20 {
        drop(scene.stranger());
        scene.exchange();
    }
    for stream in &mut strangers {
        scene.hangs_up(stream, SILENT, "silence");
    }
    scene.exchange();
    let lines = scene.lines.all();
    assert!(lines.len() <= 6, "{lines:#?}");
}

/// Many that talk nonsense cost a few lines, not one each.
#[test]
fn a_flood_of_strangers_is_not_a_flood_of_lines() {
    let _dog = watchdog("lines", 60);
    let mut scene = Scene::new();
    for i in 0..300 {
        let mut stream = scene.stranger();
        let bytes = if i % 2 == 0 { vec![0xff; 400] } else { hello(&scene, 7) };
        // It may be gone before all is said.
        let _ = stream.write_all(&bytes);
        scene.hangs_up(&mut stream, 3, "nonsense");
    }
    scene.exchange();
    let lines = scene.lines.all();
    assert!((1..=15).contains(&lines.len()), "{} lines: {:#?}", lines.len(), &lines[..10]);
}

#[test]
fn two_thousand_that_say_nothing() {
    process::alone("strangers::two_thousand_that_say_nothing", || {
        let _dog = watchdog("two_thousand", 100);
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let mut scene = Scene::new();
        // Of two calls that crossed one may still be about to go.
        let (mut before, mut alike) = (footprint(), 0);
        while alike < 20 {
            scene.exchange();
            std::thread::sleep(std::time::Duration::from_millis(1));
            alike = if footprint() == before { alike + 1 } else { 0 };
            before = footprint();
        }
        const STRANGERS: usize = 2000;
        let mut strangers: Vec<Option<TcpStream>> = (0..STRANGERS).map(|_| Some(scene.stranger())).collect();
        let mut most = 0;
        let until = Deadline::new(60);
        let mut newcomer = None;
        while strangers.iter().any(Option::is_some) {
            scene.exchange();
            most = most.max(footprint().fds - strangers.iter().flatten().count());
            // Somebody who comes now gets through, too.
            let late = newcomer.get_or_insert_with(|| Node::with(network(), attr()));
            let _ = late.poll();
            for place in &mut strangers {
                if place.as_mut().is_some_and(|s| is_hung_up(s, &mut Vec::new())) {
                    *place = None;
                }
            }
            until.check(|| format!("{} are still there", strangers.iter().flatten().count()));
        }
        drop(newcomer);
        assert!(most <= before.fds + 1024 + 10, "{most} descriptors");
        scene.exchange();
        let until = Deadline::new(5);
        while footprint() != before {
            scene.exchange();
            until.check(|| format!("left behind: {:?}, not {before:?}", footprint()));
        }
        assert!(scene.lines.all().len() <= 6, "{:#?}", scene.lines.all());
    });
}
