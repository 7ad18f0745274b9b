//! Ranks in PID namespaces of their own, as containers on the host's network have: one side cannot name the other's process.

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
pub fn inmate(name: &str, calls: bool) {
    let mut node = node();
    let to = peer(&node, name);
    say(&node.name().to_string());
    exchange(&mut node, to, calls);
    say("all came");
    hear();
}

fn with_inmate(calls: bool) -> Option<Copy> {
    let how = ["--pid", "--fork", "--kill-child"];
    let able = Command::new("unshare").args(how).arg("true").status().is_ok_and(|status| status.success());
    if !able {
        println!("the rest is skipped: no PID namespaces here");
        return None;
    }
    let mut node = node();
    let inner = process::command("role", &format!("inmate {} {}", node.name(), if calls { "calls" } else { "waits" }));
    let mut command = Command::new("unshare");
    command.args(how).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut copy = process::spawn(&mut command);
    let to = peer(&node, &copy.hear());
    exchange(&mut node, to, !calls);
    assert_eq!(copy.hear(), "all came");
    Some(copy)
}

#[test]
fn one_that_nobody_outside_can_name_is_called() {
    let _dog = watchdog("called", 60);
    with_inmate(false);
}

#[test]
fn one_that_can_name_nobody_outside_calls() {
    let _dog = watchdog("calls", 60);
    with_inmate(true);
}
