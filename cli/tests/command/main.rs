//! The command as users run it.

use rustmx::Config;
use rustmx::config::PARAMS;
use rustmx::select::profile::MEASURED;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStderr, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[path = "../../../provider/tests/common/bounded.rs"]
mod bounded;
mod cold;
mod deleted;
mod explain;
mod full;
mod heap;
mod kept;
#[path = "../../../provider/tests/common/left_out.rs"]
mod left_out;
mod lost;
mod place;
#[path = "../../../provider/tests/common/reachable.rs"]
mod reachable;

use bounded::Running;
use left_out::left_out;

/// What a command may take: some measure for a minute or two, and machines that are busy with other things take longer.
const LIMIT: Duration = Duration::from_secs(600);

/// How the memory between two processes is used, as the user might say: then `tune` has nothing to find out about that, and needs
/// half of the time.
fn settled() -> impl Iterator<Item = (String, String)> {
    let parameters = PARAMS.iter().filter(|p| MEASURED.contains(&p.name));
    parameters.map(|p| (p.env(), p.value(&Config::default())))
}

fn rustmx(args: &[&str]) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_rustmx")), args)
}

fn command_of(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("FI_RUSTMX_")) {
        command.env_remove(name);
    }
    // No profile but those that a test makes.
    command.env("XDG_CONFIG_HOME", env!("CARGO_TARGET_TMPDIR")).args(args);
    command
}

/// Those that measure take turns: each wants two cores for itself.
fn run(command: Command) -> (Output, String, String) {
    run_within(LIMIT, command)
}

fn run_within(limit: Duration, mut command: Command) -> (Output, String, String) {
    run_as_it_is(limit, command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// With its output going where it was said.
fn run_as_it_is(limit: Duration, command: &mut Command) -> (Output, String, String) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let out = bounded::finish(bounded::spawn(command.stdin(Stdio::null())), limit);
    let (said, told) = (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned());
    (out, said, told)
}

/// The preloadable heap of this build, where tests have it: beside the directory of the test programs, or named.
fn heap() -> Option<std::path::PathBuf> {
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_rustmx")).with_file_name("librustmx_heap.so");
    let named = std::env::var_os("RUSTMX_HEAP_LIBRARY").map(Into::into);
    named.into_iter().chain([beside]).find(|path: &std::path::PathBuf| path.is_file())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn every_command_has_help_and_exit_codes() {
    for args in [&["--help"][..], &["explain", "--help"], &["compare", "--help"], &["tune", "--help"]] {
        let (out, said, _) = run(rustmx(args));
        assert!(out.status.success() && said.contains("Usage: rustmx") && said.contains("Exit codes:"), "{said}");
        assert!(!said.contains("partner"), "{said}");
    }
    let (out, _, told) = run(rustmx(&["compare", "--min", "many"]));
    assert_eq!(out.status.code(), Some(2));
    assert!(told.contains("a size from 1 to 1024m"), "{told}");
    let (out, _, told) = run(rustmx(&["compare", "--min", "5", "--max", "7"]));
    assert_eq!(out.status.code(), Some(1));
    assert!(told.contains("no power of two") && told.contains("larger --max"), "{told}");
}

/// A full disk, a reader that has enough, a page that cannot be written: each is told in a sentence, before anything takes minutes.
#[test]
fn output_that_cannot_be_written_is_told() {
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").expect("Linux has it"));
    for args in [&["explain"][..], &["explain", "--json"]] {
        let mut command = rustmx(args);
        let (out, _, told) = run_as_it_is(LIMIT, command.stdout(full()).stderr(Stdio::piped()));
        assert!(out.status.code() == Some(1) && told.contains("cannot write to standard output"), "{:?} {told}", out.status);
    }
    // What went wrong is told by the exit code, too, where nobody can read the rest.
    for (args, code) in [(&["compare", "--min", "5", "--max", "3"][..], 1), (&["explain"], 0)] {
        let mut command = rustmx(args);
        command.stdout(Stdio::piped()).stderr(full()).env("FI_RUSTMX_NONSENSE", "1");
        let (out, ..) = run_as_it_is(LIMIT, &mut command);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {:?}", out.status);
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = rustmx(&["explain"]);
    let (out, _, told) = run_as_it_is(LIMIT, command.stdout(writer).stderr(Stdio::piped()));
    assert!(out.status.success() && told.is_empty(), "who reads only the beginning has what he wants: {told}");
    let mut elsewhere = rustmx(&["tune", "--quick", "--dry-run"]);
    elsewhere.env("FI_RUSTMX_SHM", "no");
    let (out, said, told) = run(elsewhere);
    assert!(
        out.status.code() == Some(1) && said.is_empty() && told.contains("FI_RUSTMX_SHM=no") && told.contains("unset it"),
        "{told}"
    );
    // The way to another host has nothing to do with it.
    let mut elsewhere = rustmx(&["tune", "--quick", "--to", "127.0.0.1:1"]);
    elsewhere.env("FI_RUSTMX_SHM", "no");
    let (out, _, told) = run(elsewhere);
    assert!(out.status.code() == Some(1) && told.contains("without --to first") && !told.contains("unset it"), "{told}");
    let mut without = rustmx(&["tune", "--quick", "--to", "127.0.0.1:1", "--output", "profile.toml"]);
    without.env("FI_RUSTMX_PROFILE", "off");
    let (out, _, told) = run(without);
    assert!(out.status.code() == Some(1) && told.contains("name the profile") && !told.contains("first"), "{told}");
    let pipe = format!("{}/profile.pipe", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&pipe);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let (out, said, told) = run(rustmx(&["tune", "--output", &pipe]));
    assert_eq!((out.status.code(), said.as_str()), (Some(1), ""), "nothing is measured");
    assert!(told.contains("no file") && told.contains("--output"), "{told}");
    std::fs::remove_file(&pipe).expect("it is still there");
    for bad in ["/nonsense/page.html", env!("CARGO_TARGET_TMPDIR")] {
        let (out, said, told) = run(rustmx(&["compare", "--html", bad]));
        assert_eq!((out.status.code(), said.as_str()), (Some(1), ""));
        assert!(told.contains("choose another file for --html"), "{told}");
    }
}

#[test]
fn what_no_message_would_be_measured_of_is_told() {
    let (out, _, told) = run(rustmx(&["compare", "--memory", "exported", "--max", "128"]));
    assert!(out.status.code() == Some(1) && told.contains("choose a larger --max"), "{told}");
}

#[test]
fn a_page_and_numbers_of_a_short_comparison() {
    if cores() < 2 {
        let (out, _, told) = run(rustmx(&["compare", "--quick"]));
        assert!(out.status.code() == Some(1) && told.contains("two cores are needed"), "{told}");
        return left_out("cores", "this process may use one core");
    }
    let page = std::env::temp_dir().join(format!("rustmx-compare-{}.html", std::process::id()));
    let private = ["compare", "--quick", "--memory", "private", "--min", "128", "--max", "300", "--json", "--html"];
    let mut command = rustmx(&private);
    command.arg(&page);
    let (out, said, told) = run(command);
    assert!(out.status.success(), "{told}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    let cells = all["cells"].as_array().expect("cells");
    let set = |key: &str| cells.iter().map(|c| c[key].to_string()).collect::<BTreeSet<_>>();
    assert_eq!(set("source").len(), 2);
    assert_eq!(set("size").len(), 2);
    let kernel = all["missing"].as_array().is_some_and(Vec::is_empty);
    let ways = ["chosen", "inline", "eager", "stream", "alone", "shared"];
    let wanted: BTreeSet<String> = ways[..if kernel { 6 } else { 4 }].iter().map(|w| format!("\"{w}\"")).collect();
    assert_eq!((set("way"), set("memory")), (wanted, ["\"private\"".to_string()].into()));
    for c in cells {
        let (ns, rounds) = (c["median_ns"].as_f64().expect("a time"), c["rounds_ns"].as_array().expect("rounds").len());
        assert!(ns >= 1.0 && rounds == 5, "{c}");
        assert!(c["way"] != "inline" || c["size"].as_u64() <= Some(232), "{c}");
    }
    assert_eq!(all["memcpy"].as_array().map(Vec::len), Some(2));
    assert_eq!(all["regret"].as_array().map(Vec::len), Some(2 * 6));
    let steps = all["steps"].as_array().expect("steps");
    assert!(steps.len() == 2 && steps.iter().all(|s| s["from"] == 128 && s["apart"].as_f64() > Some(0.0)), "{steps:?}");
    assert!(all["handover_ns"].as_array().is_some_and(|v| v.len() == 5 && v.iter().all(|n| n.as_f64() > Some(0.0))));
    let html = std::fs::read_to_string(&page).expect("the page");
    std::fs::remove_file(&page).expect("removed");
    is_well_formed(&html);
    assert!(
        !html.contains("http://") || html.matches("http://").count() == html.matches("http://www.w3.org/").count(),
        "needs the network"
    );
    assert!(!html.contains("https://") && !html.contains("<script"), "needs the network");
    // Points of several forms: not only colours tell lines apart.
    assert!(["<circle", "<rect", "<polygon", "<line"].iter().all(|form| html.contains(form)));
    for way in ways[..if kernel { 6 } else { 4 }].iter().chain(&["memcpy"]) {
        // In each of four plots as a legend, and in each of two tables as a heading.
        assert!(html.matches(&format!("<th>{way}</th>")).count() == 2, "{way}");
        assert!(
            html.lines().filter(|l| l.trim() == *way).count() >= 4 || html.matches(&format!(">{way}<")).count() >= 6,
            "{way}"
        );
    }
    for words in ["message size (bytes", "time one way (µs)", "rate (GB/s)", "fresh source buffer", "reused source buffer"] {
        assert!(html.contains(words), "{words}");
    }
}

#[test]
fn exported_memory_is_compared_with_what_two_copying_processes_need() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let short = ["compare", "--quick", "--min", "64k", "--max", "64k", "--sources", "fresh", "--json"];
    let mut without = rustmx(&short);
    // Switched off, or none at all: nothing is exported, and that is told.
    without.env("RUSTMX_HEAP", "off");
    let (out, said, told) = run(without);
    assert!(out.status.success(), "{told}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert!(all["missing"].to_string().contains("exported memory: "), "{}", all["missing"]);
    assert!(all["cells"].as_array().expect("cells").iter().all(|c| c["memory"] == "private"));
    let Some(heap) = heap() else { return left_out("heap", "librustmx_heap.so is not built") };
    let (out, said, told) = run(rustmx(&[&short[..], &["--heap", heap.to_str().expect("text"), "--read"]].concat()));
    assert!(out.status.success(), "{told}");
    assert_eq!(all["read"], false);
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(all["read"], true);
    assert!(!all["missing"].to_string().contains("exported"), "{}", all["missing"]);
    assert!(!all["missing"].to_string().contains("another way"), "all that is forced goes so: {}", all["missing"]);
    let ways = |cells: &str, memory: &str| -> BTreeSet<String> {
        let cells = all[cells].as_array().expect("cells").iter();
        cells.filter(|c| c["memory"] == memory).map(|c| c["way"].as_str().expect("a word").to_string()).collect()
    };
    assert!(
        ways("cells", "exported").is_superset(&["chosen", "mapped-alone", "mapped-shared", "stream"].map(String::from).into())
    );
    assert!(!ways("cells", "private").iter().any(|w| w.starts_with("mapped")));
    assert_eq!(ways("limits", "exported"), ["limit".to_string()].into());
    let near = all["against_limit"].as_array().expect("a list");
    assert!(
        near.iter().any(|a| a["memory"] == "exported" && a["way"] == "chosen" && a["worst"].as_f64() > Some(-1.0)),
        "{near:?}"
    );
    let (out, _, told) = run(rustmx(&["compare", "--heap", "/nonsense.so"]));
    assert!(out.status.code() == Some(1) && told.contains("no such file") && told.contains("cargo build"), "{told}");
}

/// The ways that were measured, and that nothing of it makes no sense.
#[track_caller]
fn far_ways(all: &Value) -> BTreeSet<String> {
    let cells = all["cells"].as_array().expect("cells").iter().chain(all["limits"].as_array().expect("limits"));
    cells
        .map(|c| {
            assert!(c["median_ns"].as_f64() > Some(0.9) && c["memory"] == "private", "{c}");
            c["way"].as_str().expect("a word").to_string()
        })
        .collect()
}

#[test]
fn ways_to_other_hosts_are_compared_with_plain_sockets() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let page = std::env::temp_dir().join(format!("rustmx-network-{}.html", std::process::id()));
    let mut command = rustmx(&["compare", "--network", "--quick", "--min", "128", "--max", "8k", "--json", "--html"]);
    command.arg(&page);
    let (out, said, told) = run(command);
    assert!(out.status.success(), "{told}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(far_ways(&all), ["chosen", "eager", "inline", "limit", "stream"].map(String::from).into());
    let run_of = &all["network"];
    assert!(run_of["link"].as_str().is_some_and(|link| link.starts_with("lo")) && run_of["peer"].is_null(), "{run_of}");
    let rates = run_of["rates"].as_array().expect("rates");
    assert!(rates.len() == 12 && rates.iter().all(|r| r["gb_s"].as_f64() > Some(0.0)), "{rates:?}");
    let rules = all["regret"].as_array().expect("rules");
    assert_eq!((rules.len(), rules.iter().filter(|r| r["rule"] == "the provider").count()), (12, 2));
    let html = std::fs::read_to_string(&page).expect("the page");
    std::fs::remove_file(&page).expect("removed");
    is_well_formed(&html);
    assert!(html.contains("two plain sockets") && html.contains("Many messages under way"), "{html}");
    // Long enough for several connections, and for what leaves without a copy.
    let (out, said, told) = run(rustmx(&["compare", "--network", "--quick", "--min", "512k", "--max", "512k", "--json"]));
    assert!(out.status.success(), "{told}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(far_ways(&all), ["2-lanes", "4-lanes", "chosen", "limit", "stream", "zerocopy"].map(String::from).into());
    let rates = all["network"]["rates"].as_array().expect("rates");
    let of = |way: &str| rates.iter().filter(|r| r["way"] == way).count();
    assert_eq!(["2-lanes", "4-lanes", "zerocopy", "chosen", "limit"].map(of), [1, 1, 2, 4, 4]);
}

/// A process that waits for another host's, what it says further, and its port.
fn waiting_process() -> (Running, BufReader<ChildStderr>, u16) {
    let mut waiting = rustmx(&["compare", "--listen", "127.0.0.1:0"]);
    let mut waiting = bounded::spawn(waiting.stderr(Stdio::piped()));
    let mut told = BufReader::new(waiting.stderr.take().expect("piped"));
    let mut line = String::new();
    told.read_line(&mut line).expect("says where");
    let port = line.split("waiting at port ").nth(1).and_then(|r| r.split(' ').next()?.parse().ok());
    (waiting, told, port.expect("a port"))
}

/// Whether a process ends, within a time that no busy machine needs.
fn code_of(child: &mut Running) -> Option<i32> {
    for _ in 0..600 {
        if let Some(status) = child.try_wait().expect("is ours") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("still runs, and nobody is at the other end");
}

/// The processes that one has started.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let said = std::fs::read_to_string(path).expect("Linux with CONFIG_PROC_CHILDREN");
    said.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

/// Whether a process is there, and not only waits for somebody to ask how it ended.
fn runs(pid: u32) -> bool {
    let said = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    said.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Each ends when the other one is killed while they measure: who polls an endpoint sees no end there.
#[test]
fn who_is_left_alone_in_the_middle_ends() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    for caller_dies in [true, false] {
        let (mut waiting, mut told, port) = waiting_process();
        let mut calling = rustmx(&["compare", "--to", &format!("127.0.0.1:{port}")]);
        let mut calling = bounded::spawn(calling.stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut line = String::new();
        told.read_line(&mut line).expect("says who calls");
        assert!(line.contains("measuring for 127.0.0.1"), "{line}");
        // So that both work; what they do when it comes earlier must be no other.
        std::thread::sleep(Duration::from_millis(500));
        if caller_dies {
            let started = children(calling.id());
            calling.kill().expect("is ours");
            calling.wait().expect("is ours");
            let until = Instant::now() + Duration::from_secs(60);
            while started.iter().any(|pid| runs(*pid)) {
                assert!(Instant::now() < until, "what it started still runs");
                std::thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(code_of(&mut waiting), Some(1));
            let mut why = String::new();
            told.read_to_string(&mut why).expect("text");
            assert!(why.contains("Start this one again"), "{why}");
        } else {
            waiting.kill().expect("is ours");
            waiting.wait().expect("is ours");
            let mut said = calling.stderr.take().expect("piped");
            assert_eq!(code_of(&mut calling), Some(1));
            let mut why = String::new();
            said.read_to_string(&mut why).expect("text");
            assert!(why.contains("the other host's process ended early"), "{why}");
        }
    }
}

/// Both ends by a connection, as from host to host; and who says something else is sent away.
#[test]
fn a_waiting_process_serves_one_of_another_host() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let (mut waiting, _told, port) = waiting_process();
    let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).expect("called");
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n").expect("said");
    let to = format!("127.0.0.1:{port}");
    let (out, said, why) = run(rustmx(&["compare", "--to", &to, "--quick", "--min", "256", "--max", "256", "--json"]));
    assert!(out.status.success(), "{why}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((far_ways(&all).len(), &all["network"]["peer"]), (4, &to.clone().into()));
    assert!(waiting.wait().expect("ends").success());
    let (out, _, why) = run(rustmx(&["compare", "--to", &to, "--quick"]));
    assert!(out.status.code() == Some(1) && why.contains("--listen") && why.contains("firewall"), "{why}");
}

/// A file of its own for a test, which is not there yet.
fn scratch(name: &str) -> std::path::PathBuf {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.toml", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn explained(profile: &std::path::Path, more: &[(&str, &str)]) -> Value {
    let mut command = rustmx(&["explain", "--json"]);
    command.env("FI_RUSTMX_PROFILE", profile).envs(more.iter().copied());
    let (out, said, told) = run(command);
    assert!(out.status.success(), "{told}");
    serde_json::from_str(&said).expect("JSON")
}

/// Who says how a size goes, by which way.
fn said_of(all: &Value, size: u64) -> (String, String) {
    let rows = all["table"].as_array().expect("rows");
    let row = rows.iter().rev().find(|r| r["lent"] == false && r["from"].as_u64() <= Some(size)).expect("from 0");
    (row["by"].as_str().expect("a word").into(), row["way"].as_str().expect("a word").into())
}

#[test]
fn what_was_tuned_is_in_force_where_it_fits_and_nobody_says_otherwise() {
    if cores() < 2 {
        let (out, _, told) = run(rustmx(&["tune", "--quick", "--dry-run"]));
        assert!(out.status.code() == Some(1) && told.contains("two cores are needed"), "{told}");
        return left_out("cores", "this process may use one core");
    }
    let path = scratch("tuned");
    let heap = heap();
    let named: Vec<&str> = heap.iter().flat_map(|path| ["--heap", path.to_str().expect("text")]).collect();
    let (out, said, told) =
        run(rustmx(&[&["tune", "--quick", "--json", "--output", path.to_str().expect("text")], &named[..]].concat()));
    assert!(out.status.success(), "{told}");
    let tuned: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(tuned["saved"].as_str(), path.to_str());
    let all = explained(&path, &[]);
    assert_eq!((&all["profile"]["state"], &all["table"]), (&"in force".into(), &tuned["table"]), "the table that was promised");
    assert_eq!((said_of(&all, 0).0.as_str(), said_of(&all, 512).0.as_str()), ("default", "profile"));
    for row in all["table"].as_array().expect("rows").iter().filter(|r| r["by"] == "profile") {
        let costs = row["cost"].as_array().expect("costs");
        assert!(costs.len() == 2 && costs.iter().all(|c| c["from_ns"].as_f64() > Some(0.0) && c["spread"].is_f64()), "{row}");
    }
    // With the heap beside the command exported memory is measured, too.
    let exported = tuned["cells"].as_array().expect("cells").iter().any(|c| c["memory"] == "exported");
    for rule in ["the default", "this profile"] {
        let count = tuned["regret"].as_array().expect("rules").iter().filter(|r| r["rule"] == rule).count();
        assert_eq!(count, if exported { 4 } else { 2 });
    }
    let kept = std::fs::read_to_string(&path).expect("saved");
    assert_eq!(kept.contains("memory = \"exported\""), exported);
    assert_eq!(kept.contains("way = \"mapped-shared\""), exported);
    assert_eq!(all["both_copy"].as_array().map(Vec::len), Some(2));
    // Habits decide of what is mapped below 32 KiB, if what was measured says that anything is.
    let mapped = |row: &&Value| row["lent"] == true && row["protocol"] == "mapped" && row["from"].as_u64() < Some(32 << 10);
    match all["table"].as_array().expect("rows").iter().find(mapped) {
        Some(_) => assert!(all["by_habit"]["from"].as_u64() < all["by_habit"]["to"].as_u64(), "{all}"),
        None => assert!(all["by_habit"].is_null(), "{all}"),
    }
    // Reads, writes and atomics, too; by the kernel only where it lets processes reach each other.
    for deed in all["one_sided"].as_array().expect("rows") {
        let wanted = deed["protocol"] == "one_sided" || all["kernel"]["reads"] == serde_json::json!([true, true]);
        assert_eq!(deed["cost"]["by"] == "measured", wanted, "{deed}");
    }
    assert!(kept.contains("operation = \"atomic\"") && kept.contains("way = \"one_sided\""), "{kept}");
    // The loopback interface was measured, too.
    let link = tuned["link"]["far"]["link"].as_str().expect("a link");
    assert!(link.starts_with("lo") && kept.contains("peer = \"network\"") && kept.contains(link), "{link}");
    let far = all["network"]["tables"].as_array().expect("tables");
    assert_eq!((far.len(), &far[1]["link"], &far[1]["rows"]), (2, &link.into(), &tuned["link"]["far"]["rows"]));
    let rows = far[1]["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|r| r["cost"]["by"] == "measured"), "{rows:?}");
    assert!(tuned["link"]["results"]["network"]["costs"]["message_ns"].as_f64() > Some(0.0));
    // Who says otherwise, and where it does not fit.
    let set = explained(&path, &[("FI_RUSTMX_SYSCALL_MIN", "16k")]);
    let (by, way) = said_of(&set, 9 << 10);
    assert!(by != "default" && way != "syscall", "{by}: {way}");
    let forced = explained(&path, &[("FI_RUSTMX_PROTOCOL", "stream")]);
    assert_eq!(said_of(&forced, 1 << 20), ("forced".into(), "stream".into()));
    let elsewhere = explained(&path, &[("FI_RUSTMX_RING_SIZE", "64k")]);
    assert_eq!((&elsewhere["profile"]["state"], said_of(&elsewhere, 512).0.as_str()), (&"elsewhere".into(), "default"));
    assert!(elsewhere["profile"]["says"].as_str().is_some_and(|s| s.contains("FI_RUSTMX_RING_SIZE=64k")), "{elsewhere}");
    // One that makes no sense is refused.
    std::fs::write(&path, "format = 1\nkey = [").expect("written");
    let refused = explained(&path, &[]);
    assert_eq!((&refused["profile"]["state"], said_of(&refused, 512).0.as_str()), (&"refused".into(), "default"));
    assert!(refused["profile"]["says"].as_str().is_some_and(|s| s.contains("line 2 is no TOML")), "{refused}");
    assert_eq!(explained(std::path::Path::new("off"), &[])["profile"]["state"], "off");
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn a_profile_has_its_place_with_the_users_configuration() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let home = scratch("home");
    let tune = |args: &[&str]| {
        let mut command = rustmx(&[&["tune", "--quick"], args].concat());
        command.env_remove("XDG_CONFIG_HOME").env("HOME", &home);
        command
    };
    let mut dry = tune(&["--dry-run"]);
    // Rings that carry nothing of what pieces are announced of: then nothing is found out about that, and all else is.
    dry.envs(settled().filter(|(name, _)| !name.contains("ANNOUNCE"))).env("FI_RUSTMX_RING_SIZE", "16k");
    let (out, said, told) = run(dry);
    assert!(out.status.success() && said.contains("Nothing was saved") && !home.exists(), "{said}{told}");
    let path = home.join(".config/rustmx/profile.toml");
    let (out, said, told) = run(tune(&[]));
    assert!(out.status.success() && said.contains(&format!("Saved as {}.", path.display())), "{said}{told}");
    assert!(said.contains("The table by what was measured") && said.contains("Regret"), "{said}");
    let mut command = rustmx(&["explain"]);
    command.env_remove("XDG_CONFIG_HOME").env("HOME", &home);
    let (_, said, _) = run(command);
    assert!(said.contains("made by the profile") && said.contains("(profile)") && said.contains("source: "), "{said}");
    let mut command = rustmx(&["explain"]);
    command.env("XDG_CONFIG_HOME", home.join("other")).env("HOME", &home);
    let (_, said, _) = run(command);
    assert!(said.contains("no profile") && said.contains("rustmx tune") && !said.contains("(profile)"), "{said}");
    std::fs::remove_dir_all(&home).expect("removed");
}

#[test]
fn tune_says_before_it_measures_where_it_cannot_save() {
    let (out, _, told) = run(rustmx(&["tune", "--output", env!("CARGO_TARGET_TMPDIR")]));
    assert!(out.status.code() == Some(1) && told.contains("is a directory"), "{told}");
    let mut command = rustmx(&["tune"]);
    command.env_remove("XDG_CONFIG_HOME").env_remove("HOME");
    let (out, _, told) = run(command);
    assert!(out.status.code() == Some(1) && told.contains("--output") && told.contains("--dry-run"), "{told}");
    // A directory where the user's own profile belongs.
    let config = scratch("taken");
    std::fs::create_dir_all(config.join("rustmx/profile.toml")).expect("made");
    let mut command = rustmx(&["tune", "--quick"]);
    command.env("XDG_CONFIG_HOME", &config);
    let (out, said, told) = run(command);
    assert!(out.status.code() == Some(1) && said.is_empty() && told.contains("no file") && told.contains("--output"), "{told}");
    std::fs::remove_dir_all(&config).expect("removed");
    let (out, _, _) = run(rustmx(&["tune", "--dry-run", "--output", "x"]));
    assert_eq!(out.status.code(), Some(2));
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let (out, said, told) = run(rustmx(&["tune", "--quick", "--output", "/proc/none/profile.toml"]));
    assert!(out.status.code() == Some(1) && told.contains("choose another place by --output"), "{told}");
    assert!(said.contains("The table by what was measured") && said.contains("Nothing was saved"), "{said}");
}

/// Every tag that opens is closed, in order; text has no stray brackets.
#[track_caller]
fn is_well_formed(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a document type");
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a stray bracket before {}", &rest[at..(at + 40).min(rest.len())]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.trim()), "</{name}>");
        } else if !tag.ends_with('/') {
            assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
            open.push(tag.split_whitespace().next().expect("a name"));
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "not closed: {open:?}");
}
