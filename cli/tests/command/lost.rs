//! A process that measures is lost in the middle: the command says so and ends, and so does the other process.

use super::bounded::{Running, spawn};
use super::left_out::left_out;
use super::{children, code_of, cores, runs, rustmx};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

/// The process that a command has started in a role, as soon as it is there.
fn in_role(command: &mut Running, role: &str) -> u32 {
    let ends = format!("\0partner\0{role}\0");
    let is_it = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(&ends));
    loop {
        if let Some(pid) = children(command.id()).into_iter().find(is_it) {
            return pid;
        }
        assert_eq!(command.try_wait().expect("is ours"), None, "it starts no `{role}`");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Kills one of the two in the middle of a command.
fn is_told(args: &[&str], roles: [&str; 2]) {
    let mut command = spawn(rustmx(args).stdout(Stdio::null()).stderr(Stdio::piped()));
    let [lost, other] = roles.map(|role| in_role(&mut command, role));
    // So that both measure; nearly all of the time they are within a cell. What becomes of it elsewhere must be no other.
    std::thread::sleep(Duration::from_secs(1));
    let send = |signal| kill_process(Pid::from_raw(lost as i32).expect("a number"), signal).expect("is there");
    // The others have done what they can do without it when it ends.
    send(Signal::STOP);
    std::thread::sleep(Duration::from_millis(200));
    send(Signal::KILL);
    let mut told = command.stderr.take().expect("piped");
    assert_eq!(code_of(&mut command), Some(1), "{roles:?}");
    assert!(!runs(other), "what is left of {roles:?} still runs");
    let mut why = String::new();
    told.read_to_string(&mut why).expect("text");
    assert!(why.contains(&format!("`{}` ", roles[0])) && why.contains("ended early") && why.contains("signal: 9"), "{why}");
}

#[test]
fn whichever_of_two_is_lost_in_the_middle_is_told() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    // Of short messages the sender is through at once, and waits for an answer; sending long ones fails where the peer is gone.
    let short = ["compare", "--memory", "private", "--min", "64", "--max", "64k"];
    let long = ["compare", "--memory", "private", "--min", "256k", "--max", "1m"];
    let network = ["compare", "--network", "--min", "64", "--max", "1m"];
    for args in [&short[..], &long, &network] {
        is_told(args, ["first", "second"]);
        is_told(args, ["second", "first"]);
    }
}
