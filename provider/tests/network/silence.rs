//! A peer that does nothing is not gone: its kernel answers for it.

use crate::common::process::{Copy, copy, follow_parent, role, say};
use crate::common::{Deadline, Msg, Node, Want, all_ok, attr, pattern, watchdog};
use crate::scene::network;
use rustix::process::{Pid, Signal, kill_process};
use rustmx::{Config, Error, Name, OpFlags};
use std::time::{Duration, Instant};

const BYTES: usize = 16 << 20;

/// Not a test of its own: what the copy of this program does. Takes one long message, and says so.
#[test]
fn reader() {
    let Some(words) = role() else { return };
    let mut node = Node::with(network(), attr());
    say(&node.name().to_string());
    let _ = node.av.insert(&words[1].parse::<Name>().expect("a name"));
    let mut into = vec![0; BYTES];
    node.recv(Want::tag(1), &mut into).expect("recv");
    let until = Deadline::new(100);
    while all_ok(&node.poll()) == 0 {
        until.check(|| "no message".into());
    }
    assert!(into == pattern(BYTES, 1));
    say("taken");
    follow_parent();
    loop {
        node.poll();
    }
}

fn signal(reader: &Copy, signal: Signal) {
    let pid = Pid::from_raw(reader.pid() as i32).expect("pid");
    kill_process(pid, signal).expect("kill");
    let until = Deadline::new(10);
    // It takes effect when the other core hears of it: all threads must stand still.
    while signal == Signal::STOP && !stands_still(reader.pid()) {
        until.check(|| "it does not stop".into());
    }
}

fn stands_still(pid: u32) -> bool {
    let mut states = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        Some(stat.rsplit_once(") ")?.1.starts_with('T'))
    });
    states.all(|stopped| stopped)
}

/// Stopped for several times the patience, with data on their way: the window is full, the questions of our kernel become rare, and are answered.
#[test]
fn who_is_stopped_is_not_gone_and_who_is_killed_then_is() {
    let _dog = watchdog("stopped", 100);
    let mut node = Node::with(Config { peer_timeout: 3000, ..network() }, attr());
    let mut reader = copy("silence::reader", &format!("reader {}", node.name()));
    let to = node.av.insert(&reader.hear().parse::<Name>().expect("name"));
    let mut out = pattern(BYTES, 1);
    node.send(Msg::new(to, 1), &mut out).expect("send");
    // Somewhere in the middle.
    let at = Instant::now() + Duration::from_millis(5);
    while Instant::now() < at {
        node.domain.progress();
    }
    signal(&reader, Signal::STOP);
    let at = Instant::now() + Duration::from_secs(20);
    let mut done = 0;
    while Instant::now() < at {
        done += all_ok(&node.poll());
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(&reader, Signal::CONT);
    let until = Deadline::new(30);
    while done == 0 {
        done += all_ok(&node.poll());
        until.check(|| "not taken".into());
    }
    while reader.heard().as_deref() != Some("taken") {
        node.domain.progress();
        until.check(|| "not taken".into());
    }
    // Now it dies, stopped, and what waits for it ends by the reset.
    signal(&reader, Signal::STOP);
    node.send(Msg::new(to, 2).with(OpFlags::DELIVERY_COMPLETE), &mut [1; 100]).expect("send");
    node.quiet(1000);
    reader.kill();
    let until = Deadline::new(5);
    loop {
        if let Some(e) = node.poll().first() {
            let e = e.expect_err("nobody took it");
            assert!(matches!(e.error, Error::PeerGone) && e.peer.is_some(), "{e:?}");
            break;
        }
        until.check(|| "its death is not noticed".into());
    }
}
