//! Peers on different hosts of the laboratory (`ci/netlab.sh`, which `RUSTMX_TEST_NETLAB` names; it needs root): one is cut off in silence, its
//! process and its kernel live on and know nothing.

use crate::common::process::{Copy, command, follow_parent, hear, role, say, spawn};
use crate::common::{Deadline, Msg, Node, Want, attr, pattern, watchdog};
use rustmx::{Config, Error, Name, OpFlags};
use std::process::Command;
use std::time::{Duration, Instant};

const LAB: &str = "rmxcut";
const PATIENCE: u64 = 5000;
/// Beyond that: time for a look, and for a busy machine.
const SLACK: u64 = 2000;

fn lab(words: &[&str]) {
    let lab = std::env::var("RUSTMX_TEST_NETLAB").expect("a laboratory");
    let done = Command::new(lab).args(words).args(["--name", LAB]).output().expect("the laboratory runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn on(host: &str, words: &str) -> Copy {
    let inner = command("hosts::role_of_a_host", words);
    let lab = std::env::var("RUSTMX_TEST_NETLAB").expect("a laboratory");
    let mut outer = Command::new(lab);
    outer.args(["exec", host]).arg(inner.get_program()).args(inner.get_args()).env("NETLAB", LAB);
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            outer.env(name, value);
        }
    }
    spawn(&mut outer)
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role_of_a_host() {
    let Some(words) = role() else { return };
    match words[0].as_str() {
        "mute" => mute(),
        _ => watcher(&words[1], words[2] == "full"),
    }
}

/// Answers first contact, and then does nothing.
fn mute() {
    let mut node = Node::with(Config { shm: 0, ..Config::default() }, attr());
    let mut into = [0; 8];
    node.recv(Want::tag(0), &mut into).expect("recv");
    say(&node.name().to_string());
    let until = Deadline::new(20);
    while node.poll().is_empty() {
        until.check(|| "nobody calls".into());
    }
    // What is acknowledged leaves.
    node.quiet(2000);
    say("met");
    follow_parent();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Meets the mute, waits for it in several ways, and says how long it took until all of them had failed.
fn watcher(name: &str, full: bool) {
    let mut node = Node::with(Config { shm: 0, peer_timeout: PATIENCE, ..Config::default() }, attr());
    let name: Name = name.parse().expect("a name");
    let to = node.av.insert(&name);
    node.send(Msg::new(to, 0), &mut [1; 8]).expect("send");
    let until = Deadline::new(20);
    while node.poll().is_empty() {
        until.check(|| "no contact".into());
    }
    node.quiet(2000);
    let (mut out, mut into) = (pattern(32 << 20, 1), [0; 8]);
    node.recv(Want::tag(1).from(to), &mut into).expect("recv");
    let mut open = 1;
    if full {
        node.send(Msg::new(to, 2).with(OpFlags::DELIVERY_COMPLETE), &mut [1; 100]).expect("send");
        // Its window is full.
        node.send(Msg::new(to, 3), &mut out).expect("send");
        open += 2;
    }
    let calm = Instant::now() + Duration::from_secs(4);
    while Instant::now() < calm {
        assert!(node.poll().is_empty(), "who only computes is not gone");
    }
    say("ready");
    hear();
    let start = Instant::now();
    let until = Deadline::new(60);
    while open > 0 {
        for e in node.poll() {
            let e = e.expect_err("nobody did it");
            assert!(matches!(e.error, Error::Silent | Error::PeerGone) && e.peer == Some(name), "{e:?}");
            open -= 1;
        }
        until.check(|| format!("{open} operations wait"));
    }
    say(&start.elapsed().as_millis().to_string());
    let ep = node.ep;
    node.domain.ep_close(ep).expect("close");
    say("closed");
}

#[test]
fn who_is_cut_off_is_noticed_in_time() {
    if std::env::var_os("RUSTMX_TEST_NETLAB").is_none() {
        eprintln!("left out: no laboratory (RUSTMX_TEST_NETLAB)");
        return;
    }
    let _dog = watchdog("cut_off", 200);
    lab(&["up", "--hosts", "2"]);
    for how in ["idle", "full"] {
        let mut mute = on("h2", "mute");
        let mut watcher = on("h1", &format!("watcher {} {how}", mute.hear()));
        assert_eq!(mute.hear(), "met");
        assert_eq!(watcher.hear(), "ready");
        lab(&["drop", "h2", "on"]);
        watcher.tell("go");
        let took: u64 = watcher.hear().parse().expect("milliseconds");
        assert_eq!(watcher.hear(), "closed");
        lab(&["mend", "h2"]);
        assert!(took <= PATIENCE + SLACK, "{how}: noticed after {took} ms");
        eprintln!("{how}: noticed after {took} ms");
    }
    lab(&["down"]);
}
