//! Comparisons of long messages between buffers that are in no cache: both sides empty theirs before each message, and the receiver says when.
#![cfg(target_arch = "x86_64")]

use super::left_out::left_out;
use super::{cores, far_ways, heap, run_within, rustmx};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn compared(more: &[&str]) -> Value {
    let mut command = rustmx(&["compare", "--quick", "--min", "1m", "--max", "1m", "--sources", "cold", "--json"]);
    command.args(more);
    // Who waits for the other one's word may wait for ever.
    let (out, said, told) = run_within(Duration::from_secs(120), command);
    assert!(out.status.success(), "{} {told}", out.status);
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert!(!all["missing"].to_string().contains("another way"), "all that is forced goes so: {}", all["missing"]);
    for kind in ["cells", "limits"] {
        for c in all[kind].as_array().expect("a list") {
            assert!(c["source"] == "cold" && c["size"] == MIB && c["median_ns"].as_f64() >= Some(1.0), "{c}");
        }
    }
    all
}

#[test]
fn long_messages_of_cold_buffers_are_compared_inside_a_host() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let heap = heap();
    let all = match &heap {
        Some(heap) => compared(&["--heap", heap.to_str().expect("text")]),
        None => compared(&["--memory", "private"]),
    };
    let ways = |memory: &str| -> BTreeSet<String> {
        let cells = all["cells"].as_array().expect("cells").iter().chain(all["limits"].as_array().expect("limits"));
        cells.filter(|c| c["memory"] == memory).map(|c| c["way"].as_str().expect("a word").to_string()).collect()
    };
    let kernel = all["kernel_copies"] == true;
    let private = ["chosen", "stream", "alone", "shared"];
    assert!(ways("private").is_superset(&private[..if kernel { 4 } else { 2 }].iter().map(ToString::to_string).collect()));
    if heap.is_some() {
        let exported = ["chosen", "stream", "mapped-alone", "mapped-shared", "limit"];
        assert!(ways("exported").is_superset(&exported.map(String::from).into()), "{:?}", ways("exported"));
    }
    for rule in all["regret"].as_array().expect("rules") {
        assert!(rule["source"] == "cold", "{rule}");
    }
}

#[test]
fn long_messages_of_cold_buffers_are_compared_by_the_network() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let all = compared(&["--network"]);
    assert!(far_ways(&all).is_superset(&["chosen", "stream", "limit"].map(String::from).into()), "{:?}", far_ways(&all));
}
