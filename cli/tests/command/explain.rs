//! What `rustmx explain` tells.

use super::left_out::left_out;
use super::reachable::copied;
use super::{command_of, cores, heap, run, rustmx};
use rustmx::config::processor::Processor;
use rustmx::mem::engine::Engine;
use rustmx::sys::processor::here;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

/// A program that its user may not read is not dumpable: nobody is let in, and that is the reason told.
#[test]
fn why_the_kernel_lets_nobody_in_is_told() {
    const USER: u32 = 65_533;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let unreadable = copied(std::path::Path::new(env!("CARGO_BIN_EXE_rustmx")));
    std::fs::set_permissions(&*unreadable, std::fs::Permissions::from_mode(0o711)).expect("its owner's");
    let mut command = command_of(&unreadable, &["explain", "--json"]);
    command.uid(USER).gid(USER).env_remove("XDG_CONFIG_HOME");
    let (out, said, told) = run(command);
    assert!(out.status.success(), "{told}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    let kernel = &all["kernel"];
    assert_eq!(kernel["reads"], serde_json::json!([false, false]), "{kernel}");
    for (i, who) in ["the first process", "the second process"].iter().enumerate() {
        let says = kernel["says"][i].as_str().expect("a sentence");
        assert!(says.starts_with(&format!("{who} may not read the other's memory (EPERM: process ")), "{says}");
        assert!(says.contains(" is not dumpable: ") && says.ends_with("its user may not read its program)"), "{says}");
    }
    assert!(kernel["says"][2].as_str().is_some_and(|says| says.starts_with("long messages then go as streams")), "{kernel}");
}

/// Paths need not be text, and what is told of them is.
#[test]
fn a_home_that_is_no_text_is_shown() {
    for (name, rest) in [("XDG_CONFIG_HOME", "/rustmx/profile.toml"), ("HOME", "/.config/rustmx/profile.toml")] {
        let mut command = rustmx(&["explain", "--json"]);
        command.env_remove("XDG_CONFIG_HOME").env(name, std::ffi::OsStr::from_bytes(b"/nonsense/caf\xe9"));
        let (out, said, told) = run(command);
        assert!(out.status.success(), "{told}");
        let all: Value = serde_json::from_str(&said).expect("JSON");
        let shown = format!("/nonsense/caf\u{fffd}{rest}");
        assert_eq!((&all["profile"]["state"], &all["profile"]["path"]), (&"none".into(), &shown.as_str().into()));
        assert!(all["profile"]["says"].as_str().is_some_and(|says| says.contains(&shown)), "{}", all["profile"]);
    }
}

/// Parameters with which no endpoint opens are told by their names, whoever needs the endpoint.
#[test]
fn why_no_endpoint_opens_is_told() {
    for (name, value, why) in [
        ("FI_RUSTMX_IFACE", "none-such0", "no such interface or address is up; there are "),
        ("FI_RUSTMX_AUTH_KEY", "short", "16"),
        ("FI_RUSTMX_AUTH_KEY_FILE", "/nonsense", "there is no such file"),
        ("FI_RUSTMX_REQUIRE_KEY", "1", "FI_RUSTMX_AUTH_KEY"),
    ] {
        let mut command = rustmx(&["explain", "--json"]);
        command.env(name, value);
        let (out, said, told) = run(command);
        assert!(out.status.code() == Some(1) && told.contains("a job does not start"), "{told}");
        let all: Value = serde_json::from_str(&said).expect("JSON");
        assert!(all["job_fails"].as_str().is_some_and(|fails| fails.contains(name) && fails.contains(why)), "{all}");
        let network = &all["network"];
        assert_eq!(network["addresses"], Value::Array(Vec::new()));
        let said = network["unreachable"].as_str().expect("a sentence");
        assert!(said.contains(name) && said.contains(why), "{said}");
        if cores() < 2 {
            continue;
        }
        let mut command = rustmx(&["compare", "--quick", "--max", "8"]);
        command.env(name, value);
        let (out, _, told) = run(command);
        assert!(out.status.code() == Some(1) && told.contains(name) && told.contains(why), "{told}");
    }
    let mut command = rustmx(&["explain"]);
    command.env("FI_RUSTMX_TCP", "no").env("FI_RUSTMX_SHM", "no").env("FI_RUSTMX_CMA", "never");
    let (_, said, _) = run(command);
    for words in
        ["do not reach this one: FI_RUSTMX_TCP=no", "go as those to other hosts (FI_RUSTMX_SHM=no)", "FI_RUSTMX_CMA=never: "]
    {
        assert!(said.contains(words), "{said}");
    }
    assert!(!said.contains("0 .. 232      inline"), "tables of what cannot be: {said}");
}

#[test]
fn explain_shows_the_table_of_this_environment() {
    let (out, said, told) = run(rustmx(&["explain"]));
    assert!(out.status.success() && told.is_empty(), "{told}");
    assert!(said.contains("0 .. 232      inline") && said.contains("the second process may"), "{said}");
    let inline = match here() {
        Processor::Usual => "632 ns for 232, modelled",
        Processor::Granite => "293 ns for 232, modelled",
        Processor::Zen3 | Processor::Zen4 | Processor::Zen5 => "230 ns for 232, modelled",
    };
    assert!(said.contains(inline), "what nobody measured here: {said}");
    assert!(
        said.contains("Messages to other hosts:") && said.contains("FI_RUSTMX_TCP_WINDOW") && said.contains("modelled"),
        "{said}"
    );
    assert!(
        said.contains("Memory of peers, by size in bytes:\nread          0 .. max      direct    the kernel copies"),
        "{said}"
    );
    assert!(said.contains("atomic        0 .. 12288    one_sided the target's engine"), "{said}");
    assert!(said.contains("streaming stores: off") && said.contains("helper thread: off"), "{said}");
    assert!(said.contains("Memory that peers map:") && said.contains("librustmx_heap.so is not preloaded"), "{said}");
    let mut command = rustmx(&["explain", "--json"]);
    command.env("FI_RUSTMX_PROTOCOL", "stream:1k-,steam").env("FI_RUSTMX_SPINN", "1");
    let (out, said, _) = run(command);
    assert!(out.status.success(), "{said}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(all["settings"][0], "FI_RUSTMX_PROTOCOL=stream:1k-");
    let ignored = all["ignored"].to_string();
    assert!(ignored.contains("did you mean stream?") && ignored.contains("FI_RUSTMX_SPIN?"), "{ignored}");
    let rows = all["table"].as_array().expect("rows");
    let last = rows.last().expect("one");
    assert_eq!(
        (rows.len(), &last["from"], &last["to"], &last["way"], &last["forced"]),
        (3, &1024.into(), &Value::Null, &"stream".into(), &true.into())
    );
    assert_eq!(all["kernel"]["reads"].as_array().map(Vec::len), Some(2));
    // The ways that can be forced: ci/compare-mpi.py takes its list from here.
    let ways = all["ways"].as_array().expect("ways");
    let of = |name: &str| ways.iter().find(|w| w["way"] == name).unwrap_or_else(|| panic!("no {name}: {ways:?}"));
    assert_eq!((&of("inline")["from"], &of("inline")["to"]), (&0.into(), &232.into()));
    assert_eq!(of("alone")["to"], Value::Null);
}

/// Where the user forbids a way, it is neither among those that can be forced, nor is there a rule for it.
#[test]
fn explain_tells_of_no_way_that_is_forbidden() {
    let explained = |forbidden: Option<&str>, json: &[&str]| -> String {
        let mut command = rustmx(&[&["explain"], json].concat());
        command.envs(forbidden.map(|name| (name, "never")));
        let (out, said, told) = run(command);
        assert!(out.status.success(), "{told}");
        said
    };
    for (forbidden, ways, rule) in [
        ("FI_RUSTMX_CMA", ["alone", "shared"], "both to copy by the kernel"),
        ("FI_RUSTMX_LEND", ["mapped-alone", "mapped-shared"], "both to copy out of lent memory"),
    ] {
        for (forbidden, there) in [(None, true), (Some(forbidden), false)] {
            let all: Value = serde_json::from_str(&explained(forbidden, &["--json"])).expect("JSON");
            let named = |way: &&str| all["ways"].as_array().expect("ways").iter().any(|w| w["way"] == **way);
            assert_eq!(ways.iter().filter(|way| named(way)).count(), if there { 2 } else { 0 }, "{forbidden:?}: {}", all["ways"]);
            let text = explained(forbidden, &[]);
            assert_eq!(text.contains(rule), there, "{forbidden:?}: {text}");
        }
    }
}

#[test]
fn explain_tells_of_other_hosts_engines_and_lent_memory() {
    let explained = |more: &[(&str, &str)]| -> Value {
        let mut command = rustmx(&["explain", "--json"]);
        let (out, said, told) = run({
            command.envs(more.iter().copied());
            command
        });
        assert!(out.status.success(), "{told}");
        serde_json::from_str(&said).expect("JSON")
    };
    let all = explained(&[("FI_RUSTMX_IFACE", "127.0.0.1"), ("FI_RUSTMX_TCP_EAGER_MAX", "1k"), ("FI_RUSTMX_TCP_WINDOW", "64k")]);
    let (address, tables) = (&all["network"]["addresses"][0], all["network"]["tables"].as_array().expect("tables"));
    assert_eq!((&address["ip"], &address["interface"]), (&"127.0.0.1".into(), &"lo".into()));
    assert!(address["why"].as_str().is_some_and(|w| w.contains("FI_RUSTMX_IFACE=127.0.0.1") && w.contains("this host only")));
    assert_eq!((tables.len(), &tables[0]["link"]), (1, &Value::Null));
    let rows = tables[0]["rows"].as_array().expect("rows");
    let row = |name: &str| rows.iter().find(|r| r["protocol"] == name).unwrap_or_else(|| panic!("no {name}: {rows:?}"));
    assert_eq!((&row("eager")["to"], &row("eager")["by"]), (&1024.into(), &"set".into()));
    assert_eq!(row("stream")["from"], 1025);
    assert_eq!(rows.last().map(|r| (&r["protocol"], &r["to"])), Some((&"stream".into(), &Value::Null)));
    assert!(row("stream")["how"].as_str().is_some_and(|how| how.contains("window of 65536 bytes")), "{rows:?}");
    assert!(rows.iter().all(|r| r["cost"]["by"] == "modelled" && r["cost"]["from_ns"].as_f64() > Some(0.0)), "{rows:?}");
    let engine = |all: &Value, name: &str| -> Value {
        let engines = all["engines"].as_array().expect("engines");
        engines.iter().find(|e| e["engine"] == name).unwrap_or_else(|| panic!("no {name}: {engines:?}")).clone()
    };
    assert_eq!(all["engines"].as_array().map(Vec::len), Some(6));
    assert_eq!(engine(&all, "aliased copies")["on"], rustmx::mem::aliased::trips(), "{}", all["engines"]);
    assert!(["streaming stores", "helper thread"].iter().all(|name| engine(&all, name)["on"] == false), "{}", all["engines"]);
    // That one depends on the processor.
    for (value, name, on) in [
        ("ahead", "lines asked for ahead", Engine::Ahead.is_there()),
        ("vectors", "vectors of a line", Engine::Vectors.is_there()),
        ("abreast", "stretches side by side", Engine::Abreast.is_there()),
        ("memcpy", "vectors of a line", false),
    ] {
        let this = engine(&explained(&[("FI_RUSTMX_RECORD_COPY", value)]), name);
        assert_eq!(this["on"], on, "{this}");
        assert!(this["why"].as_str().is_some_and(|why| why.contains(&format!("FI_RUSTMX_RECORD_COPY={value}"))), "{this}");
    }
    let other = explained(&[("FI_RUSTMX_TCP", "0"), ("FI_RUSTMX_COPY_THREAD", "always"), ("FI_RUSTMX_LEND", "never")]);
    assert_eq!(other["network"]["addresses"], Value::Array(Vec::new()));
    let helper = engine(&other, "helper thread");
    assert_eq!((&helper["on"], &helper["from"]), (&true.into(), &(4 << 20).into()));
    assert_eq!(
        (&other["lending"]["on"], &other["lending"]["says"]),
        (&false.into(), &"nothing is lent: FI_RUSTMX_LEND=never".into())
    );
    let Some(heap) = heap() else { return left_out("heap", "librustmx_heap.so is not built") };
    let lent = explained(&[("LD_PRELOAD", heap.to_str().expect("text"))]);
    assert_eq!(lent["lending"]["on"], true);
    assert!(
        lent["lending"]["says"].as_str().is_some_and(|s| s.starts_with("long blocks of the preloaded heap")),
        "{}",
        lent["lending"]
    );
}

/// Whoever only looks whether his settings will do reads the first line, or the exit code.
#[test]
fn settings_with_which_no_job_starts_are_told_first() {
    // Also where other hosts are not reached at all.
    const WHY: &str = "FI_RUSTMX_ENCRYPT needs a key";
    for tcp in ["yes", "no"] {
        let mut command = rustmx(&["explain"]);
        command.env("FI_RUSTMX_ENCRYPT", "1").env("FI_RUSTMX_TCP", tcp);
        let (out, said, told) = run(command);
        let first = said.lines().next().expect("a line");
        assert!(first.starts_with("A job does not start with these settings: ") && first.contains(WHY), "{said}");
        assert!(out.status.code() == Some(1) && told.contains(WHY) && said.contains("Messages by size"), "{told}");
    }
    let (out, said, _) = run(rustmx(&["explain", "--json"]));
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert!(out.status.success() && all["job_fails"].is_null(), "{all}");
}
