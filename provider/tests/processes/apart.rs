//! Ranks in PID namespaces of their own, as containers on the host's network have: one side cannot name the other's process.

use crate::common::left_out::left_out;
use crate::common::process::{self, Copy, hear, say};
use crate::common::{Deadline, Msg, Node, Want, pattern, watchdog};
use crate::{PING, ok, peer};
use rustmx::{Addr, Config};
use std::process::Command;

/// By all ways.
const SIZES: [usize; 6] = [0, 8, 3000, 40_000, 300_000, 5 << 20];

fn node() -> Node {
    // Where the kernel is to copy whatever it will.
    Node::with(Config { syscall_min: 64 << 10, ..Config::default() }, crate::common::attr())
}

/// Messages of many sizes to and fro; whoever `calls` sends first.
fn exchange(node: &mut Node, to: Addr, calls: bool) {
    let until = Deadline::new(30);
    for (i, n) in SIZES.into_iter().enumerate() {
        let (mut out, mut into) = (pattern(n, i), vec![0; n]);
        for sends in [calls, !calls] {
            if sends {
                node.send(Msg::new(to, PING), &mut out).expect("send");
            } else {
                node.recv(Want::tag(PING).from(to), &mut into).expect("recv");
            }
            let mut done = 0;
            while done < 1 {
                done += node.poll().iter().map(ok).count();
                until.check(|| format!("{n} bytes: {:?}", node.stats()));
            }
        }
        assert!(into == out, "{n} bytes");
    }
}

/// In the namespace.
pub fn inmate(calls: bool) {
    let mut node = node();
    say(&node.name().to_string());
    let to = peer(&node, &hear());
    exchange(&mut node, to, calls);
    say("all came");
    hear();
}

/// A process in a namespace of its own, and its name. `None`: there are no such here.
fn inmates<const N: usize>(calls: [bool; N]) -> Option<[(Copy, String); N]> {
    let how = ["--pid", "--fork", "--kill-child"];
    let able = Command::new("unshare").args(how).arg("true").status().is_ok_and(|status| status.success());
    if !able {
        left_out("namespaces", "no PID namespace can be made here");
        return None;
    }
    Some(calls.map(|calls| {
        let inner = process::command("role", &format!("inmate {}", if calls { "calls" } else { "waits" }));
        let mut command = Command::new("unshare");
        command.args(how).arg(inner.get_program()).args(inner.get_args());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut copy = process::spawn(&mut command);
        let name = copy.hear();
        (copy, name)
    }))
}

fn with_one(calls: bool) {
    let Some([(mut copy, name)]) = inmates([calls]) else { return };
    let mut node = node();
    copy.tell(&node.name().to_string());
    let to = peer(&node, &name);
    exchange(&mut node, to, !calls);
    assert_eq!(copy.hear(), "all came");
}

#[test]
fn one_that_nobody_outside_can_name_is_called() {
    let _dog = watchdog("called", 60);
    with_one(false);
}

#[test]
fn one_that_can_name_nobody_outside_calls() {
    let _dog = watchdog("calls", 60);
    with_one(true);
}

#[test]
fn two_that_cannot_name_each_other() {
    let _dog = watchdog("two namespaces of processes", 60);
    let Some([(mut a, name_of_a), (mut b, name_of_b)]) = inmates([true, false]) else { return };
    a.tell(&name_of_b);
    b.tell(&name_of_a);
    assert_eq!((a.hear(), b.hear()), ("all came".into(), "all came".into()));
}
