//! Where it runs: what only root may, and what is not there.

use super::left_out::left_out;
use super::reachable::copied;
use super::{command_of, cores, run, rustmx};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Ports below 1024, or wherever the machine's begin, are root's.
#[test]
fn ports_of_root_are_told_to_everybody_else() {
    const USER: u32 = 65_533;
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if setting.is_ok_and(|first| first.trim().parse::<u16>().is_ok_and(|first| first < 10)) {
        return println!("left out: here everybody may have every port");
    }
    let open = copied(std::path::Path::new(env!("CARGO_BIN_EXE_rustmx")));
    let told = |args: &[&str]| {
        let mut command = command_of(&open, args);
        command.env("FI_RUSTMX_PORT_RANGE", "1-9").env_remove("XDG_CONFIG_HOME");
        if rustix::process::geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        let (_, said, told) = run(command);
        said + &told
    };
    for args in [&["explain"][..], &["compare", "--listen", "9"]] {
        let told = told(args);
        assert!(told.contains("are root's (net.ipv4.ip_unprivileged_port_start)"), "{args:?}: {told}");
    }
}

/// A network namespace begins without interfaces.
#[test]
fn a_loopback_interface_that_is_down_is_told() {
    let alone = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["-n", command]);
        unshare
    };
    if !alone("true").output().is_ok_and(|out| out.status.success()) {
        return left_out("namespaces", "no network namespace can be made here");
    }
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let mut command = alone(env!("CARGO_BIN_EXE_rustmx"));
    command.args(["compare", "--network", "--quick"]);
    command.envs(rustmx(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (out, _, told) = run(command);
    assert!(out.status.code() == Some(1) && told.contains("there are none; ") && told.contains("`ip link set lo up`"), "{told}");
}
