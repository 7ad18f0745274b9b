//! Protocols that the user forces (`FI_RUSTMX_PROTOCOL`): every message arrives whatever is asked for, by the way that was asked for
//! where that can be, and with a word about it where it cannot.

mod common;

use common::left_out::left_out;
use common::{Deadline, Ear, Msg, Node, Want, attr, message, pattern, process, run, seg, watchdog};
use rustmx::config::force::Forced;
use rustmx::config::network::Iface;
use rustmx::{Config, Domain, Error, INJECT_MAX, Log, Movement, OpFlags, Telling, UserSeg};
use std::sync::Arc;

fn config(list: &str) -> Config {
    let (protocol, complaints) = Forced::parse(list);
    assert!(complaints.is_empty(), "{complaints:?}");
    Config { protocol, ..Config::default() }
}

/// Messages of some sizes from one node to another. The second one has posted first, so the peers know each other from the start.
fn exchange(a: &mut Node, b: &mut Node, sizes: &[usize]) {
    let to_a = b.knows(a);
    let mut hello = [0u8; 1];
    a.recv(Want::tag(99), &mut hello).expect("recv");
    let mut greeting = [1u8];
    b.send(Msg::new(to_a, 99), &mut greeting).expect("send");
    run(&mut [a, b], &[1, 1]);
    for (i, n) in sizes.iter().enumerate() {
        for early in [true, false] {
            message(a, b, *n, i, early);
        }
    }
}

fn pair(list: &str) -> (Node, Node) {
    (Node::with(config(list), attr()), Node::with(config(list), attr()))
}

#[test]
fn every_protocol_carries_every_size_that_it_may() {
    let _dog = watchdog("every_protocol", 60);
    let long = [0usize, 1, 232, 233, 4096, 20_000, 300_000, 3_000_000];
    let messages = 2 * long.len() as u64;
    let (mut a, mut b) = pair("stream");
    exchange(&mut a, &mut b, &long);
    assert_eq!((a.stats().stream, a.stats().sent), (messages, messages));
    let (mut a, mut b) = pair("eager");
    exchange(&mut a, &mut b, &[0, 1, 232, 233, 4096]);
    assert_eq!((a.stats().eager, a.stats().sent), (10, 10));
    let (mut a, mut b) = pair("inline");
    exchange(&mut a, &mut b, &[0, 1, 232]);
    assert_eq!((a.stats().inline, a.stats().sent), (6, 6));
    for way in ["syscall", "alone", "shared"] {
        let (mut a, mut b) = pair(way);
        exchange(&mut a, &mut b, &long);
        let (s, r) = (a.stats(), b.stats());
        assert_eq!(s.sent, messages, "{way}");
        if r.declined > 0 || s.stream > 0 {
            left_out("cma", "the kernel does not allow process_vm_readv here at all");
            continue;
        }
        assert_eq!(s.syscall, messages, "{way}");
        let bytes = long.iter().map(|n| 2 * *n as u64).sum::<u64>();
        assert_eq!(s.stored + r.fetched, bytes, "{way}: every byte is copied once");
        assert!(way != "alone" || s.stored == 0, "alone: {} bytes by the sender", s.stored);
        assert!(way != "shared" || s.stored > 0, "shared: nothing by the sender");
    }
}

#[test]
fn a_part_counts_for_its_sizes_only() {
    let _dog = watchdog("a_part", 30);
    let (mut a, mut b) = pair("stream:100-200,eager:233-300");
    exchange(&mut a, &mut b, &[99, 100, 200, 201, 300, 301]);
    let s = a.stats();
    assert_eq!((s.inline, s.stream, s.eager), (4, 4, 4), "{s:?}");
}

/// What is said of some sizes does not let both sides copy others where that does not pay, or where ranks outnumber the cores.
#[test]
fn sizes_that_no_part_names_are_copied_as_without_it() {
    let _dog = watchdog("other_sizes", 60);
    const LEN: usize = 1 << 20;
    // Help is dear, or ranks are many.
    let (dear, crowded) = ((1_000_000_000, 0), (0, 2));
    let cases = [dear, crowded].map(|how| [(how, "eager:0-4k", false), (how, "shared:512k-", true)]);
    for ((share_worth, yield_when_idle), list, shared) in cases.into_iter().flatten() {
        let open = || Node::with(Config { adapt: 0, share_worth, yield_when_idle, ..config(list) }, attr());
        let (mut a, mut b) = (open(), open());
        exchange(&mut a, &mut b, &[LEN; 3]);
        let (s, r) = (a.stats(), b.stats());
        if r.declined > 0 || s.stream > 0 {
            return left_out("cma", "the kernel does not allow process_vm_readv here at all");
        }
        assert_eq!(s.stored + r.fetched, 6 * LEN as u64, "{list}: by one copy");
        assert_eq!(s.stored > 0, shared, "{list}: {} bytes by the sender", s.stored);
    }
}

/// A buffer that is the caller's again at once cannot wait for a receiver: it goes by a copy, whatever is forced.
#[test]
fn inject_calls_keep_their_promise() {
    let _dog = watchdog("inject", 30);
    for (list, len) in ["stream", "syscall", "mapped", "eager"].into_iter().flat_map(|list| [(list, 232), (list, INJECT_MAX)]) {
        let (mut a, mut b) = pair(list);
        let to_b = a.knows(&b);
        let mut buf = pattern(len, 1);
        // More than the ring holds: some wait here.
        for i in 0..300 {
            buf.fill(i as u8);
            let m = Msg::new(to_b, 1);
            let m = if i % 2 == 0 { m.inject() } else { Msg { flags: OpFlags::INJECT, ..m } };
            while a.send(m, &mut buf) == Err(Error::Again) {
                a.poll();
            }
            buf.fill(0xff);
        }
        for i in 0..300 {
            let mut into = vec![0u8; len];
            b.recv(Want::tag(1), &mut into).expect("recv");
            let until = Deadline::new(10);
            while b.poll().is_empty() {
                a.poll();
                until.check(|| format!("{list}: message {i} does not come"));
            }
            assert!(into.iter().all(|x| *x == i as u8), "{list}: message {i} is {}", into[0]);
        }
        let s = a.stats();
        let copied = if len == 232 { s.inline } else { s.eager + s.stream };
        assert_eq!((copied, s.sent), (300, 300), "{list}");
        assert!(len == 232 || (s.eager > 0) == (list != "stream"), "{list}: {s:?}");
    }
}

#[test]
fn what_cannot_be_offered_goes_as_a_stream() {
    let _dog = watchdog("pieces", 30);
    let (mut a, mut b) = pair("syscall");
    exchange(&mut a, &mut b, &[8]);
    let before = a.stats();
    let to_b = a.knows(&b);
    let (mut out, mut into) = (pattern(18_000, 3), vec![0u8; 18_000]);
    let pieces: Vec<UserSeg> = out.chunks_mut(1000).take(rustmx::IOV_LIMIT).map(seg).collect();
    b.recv(Want::tag(7), &mut into).expect("recv");
    a.sendv(Msg::new(to_b, 7), &pieces, true).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    let n = pieces.len() * 1000;
    assert!(into[..n] == out[..n]);
    assert_eq!(a.stats().stream - before.stream, u64::from(pieces.len() > 8), "{} pieces", pieces.len());
}

/// Takes long messages, out of the kernel's reach.
fn hermit(name: &str) {
    process::give_up_tracing();
    process::keep_out();
    let mut node = Node::with(config("syscall:4k-"), attr());
    let to = node.av.insert(&name.parse().expect("name"));
    process::say(&node.name().to_string());
    for i in 0..3 {
        let (mut into, mut ready) = (vec![0u8; 100_000], [0u8]);
        node.recv(Want::tag(1), &mut into).expect("recv");
        node.send(Msg::new(to, 2), &mut ready).expect("send");
        node.complete(2);
        assert!(into == pattern(100_000, i));
    }
    node.domain.ep_close(node.ep).expect("closed");
}

#[test]
fn what_the_kernel_refuses_is_told_once_and_arrives() {
    process::alone("what_the_kernel_refuses_is_told_once_and_arrives", refused);
}

fn refused() {
    if let Some(words) = process::role().filter(|w| w.first().is_some_and(|w| w == "hermit")) {
        return hermit(&words[1]);
    }
    let _dog = watchdog("refused", 60);
    process::give_up_tracing();
    process::keep_out();
    let ear = Arc::new(Ear::default());
    let mut node = Node::enabled(Domain::new(Arc::new(config("syscall:4k-")), Log::new(ear.clone())), attr());
    let words = format!("hermit {}", node.name());
    let mut others = [0, 1].map(|_| process::copy("what_the_kernel_refuses_is_told_once_and_arrives", &words));
    let peers = [0, 1].map(|i| node.av.insert(&others[i].hear().parse().expect("name")));
    for (to, other) in peers.into_iter().zip(&mut others) {
        for i in 0..3 {
            let (mut ready, mut out) = ([0u8], pattern(100_000, i));
            node.recv(Want { from: to, ..Want::tag(2) }, &mut ready).expect("recv");
            node.complete(1);
            node.send(Msg::new(to, 1), &mut out).expect("send");
            node.complete(1);
        }
        assert_eq!(other.hear(), "done");
    }
    let ([other, _], to) = (others, peers[0]);
    let s = node.stats();
    assert_eq!((s.stream, s.syscall), (6, 0), "{s:?}");
    let plan = node.domain.ep_plan(node.ep, to, Movement::Message, 100_000);
    assert!(plan.is_err() || plan.is_ok_and(|p| p.how == "stream" && p.why.contains("EPERM")));
    let told = node.domain.ep_history(node.ep, Telling::All).expect("told");
    row(&told, &["host", "stream", "32768", "max", "6", "600000", "instead"]);
    row(&told, &["host", "syscall", "32768", "max", "0"]);
    let refused: Vec<&str> = told.lines().filter(|l| l.contains("refused:")).collect();
    assert_eq!(refused.len(), 2, "{told}");
    let wanted = format!("send to process {}, 32768 .. max by syscall: 3 times, 300000 bytes, went by stream:", other.pid());
    let cause = format!("(EPERM: process {} is not dumpable: ", other.pid());
    assert!(refused[0].contains(&wanted) && refused[0].contains(&cause), "{told}");
    let said = ear.heard();
    let [text] = &said[..] else { panic!("{said:?}") };
    for words in ["FI_RUSTMX_PROTOCOL=syscall:4k-: messages to", " go as streams, not by syscall: ", &cause] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// The row of a history for one way and kind of peer.
#[track_caller]
fn row<'a>(told: &'a str, words: &[&str]) -> &'a str {
    let has = |line: &&str| words.iter().all(|w| line.split_whitespace().any(|x| x == *w));
    let found: Vec<&str> = told.lines().filter(has).collect();
    assert_eq!(found.len(), 1, "{words:?} in\n{told}");
    found[0]
}

#[test]
fn what_went_is_told_by_row_and_kind_of_peer() {
    let _dog = watchdog("told", 30);
    let (mut a, mut b) = pair("eager:300-400,stream:5k-6k");
    assert_eq!(a.domain.ep_history(a.ep, Telling::All).expect("told"), "", "not used yet");
    exchange(&mut a, &mut b, &[0, 232, 350, 5 << 10, 5 << 10]);
    let (mut out, mut into) = ([1u8; 100], [0u8; 100]);
    let to_itself = a.av.insert(&a.name());
    a.recv(Want::tag(1), &mut into).expect("recv");
    a.send(Msg::new(to_itself, 1), &mut out).expect("send");
    run(&mut [&mut a], &[2]);
    let all = a.domain.ep_history(a.ep, Telling::All).expect("told");
    assert!(row(&all, &["host", "inline", "232"]).contains(" 4 times           464 bytes"), "{all}");
    assert!(row(&all, &["host", "eager", "300", "400", "2", "700", "(forced)"]).contains("one copy in"), "{all}");
    row(&all, &["host", "stream", "5120", "6144", "4", "20480", "(forced)"]);
    row(&all, &["itself", "inline", "1", "100"]);
    row(&all, &["host", "syscall", "65536", "max", "0"]);
    let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    assert_eq!(used.lines().count(), 5, "{used}");
    let json = a.domain.ep_history(a.ep, Telling::Json).expect("told");
    assert_eq!(json.lines().count(), all.lines().count() - 1);
    let line = json.lines().find(|l| l.contains("\"bytes\":20480")).expect("the streams");
    assert!(line.starts_with("{\"rustmx\":\"explain\",\"process\":") && line.ends_with('}'), "{line}");
    assert!(
        line.contains("\"from\":5120,\"to\":6144,\"protocol\":\"stream\"") && line.contains("\"forced\":true,\"count\":4"),
        "{line}"
    );
}

#[test]
fn what_else_decided_is_told() {
    let _dog = watchdog("what_else", 60);
    if common::not_by_network("peers of other hosts are lent nothing") {
        return;
    }
    // Private memory, which nobody can map: it was long enough, and did not go that way.
    let iface = Iface::parse("127.0.0.1").0;
    let config = Config { copy: 2, copy_thread: 2, copy_thread_min: 1 << 20, iface, ..Config::default() };
    let mut a = Node::with(config.clone(), attr());
    let mut b = Node::with(config, attr());
    exchange(&mut a, &mut b, &[100, 5000, 100_000, 100_000]);
    let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    let unlent: Vec<&str> = used.lines().filter(|l| l.contains(" by mapped: ")).collect();
    let count = |line: &&str| -> u64 {
        let number = line.split(" by mapped: ").nth(1).and_then(|rest| rest.split(' ').next());
        number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no number in {line}"))
    };
    assert_eq!(unlent.iter().map(count).sum::<u64>(), 6, "{used}");
    assert!(
        unlent.iter().all(|l| l.contains("4096 .. max by mapped") && l.contains("librustmx_heap.so is not preloaded")),
        "{used}"
    );
    assert!(unlent.iter().any(|l| l.contains("went by eager")) && unlent.iter().any(|l| !l.contains("went by eager")), "{used}");
    assert!(!used.contains("copies: ") && !used.contains("address: "), "had nothing to do with it: {used}");
    let all = a.domain.ep_history(a.ep, Telling::All).expect("told");
    for words in [
        "copies: helper thread from 1048576 bytes on, 0 bytes so far (FI_RUSTMX_COPY_THREAD=always)",
        "lends: ",
        "address: other hosts",
    ] {
        assert_eq!(all.lines().filter(|l| l.contains(words)).count(), 1, "{words}: {all}");
    }
    let json = a.domain.ep_history(a.ep, Telling::Json).expect("told");
    assert_eq!(json.lines().count(), all.lines().count() - 1);
    for words in [
        "\"about\":\"copies\",\"engine\":\"helper thread\",\"on\":true,\"from\":1048576",
        "\"about\":\"lends\",\"on\":",
        "\"interface\":",
    ] {
        assert_eq!(json.lines().filter(|l| l.contains(words)).count(), 1, "{words}: {json}");
    }
}

#[test]
fn the_table_towards_other_hosts_is_told() {
    let _dog = watchdog("far", 60);
    let iface = Iface::parse("127.0.0.1").0;
    let config = Config { shm: 0, iface, tcp_eager_max: 5000, ..Config::default() };
    let (mut a, mut b) = (Node::with(config.clone(), attr()), Node::with(config, attr()));
    exchange(&mut a, &mut b, &[4000, 20_000]);
    let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    let eager = row(&used, &["network", "eager", "233", "5000", "2", "8000", "(set)"]);
    assert!(eager.contains("us for 233 bytes") && eager.contains("us for 5000, modelled"), "{eager}");
    let long = row(&used, &["network", "stream", "5001", "2", "40000"]);
    assert!(long.contains("window of 1048576 bytes (FI_RUSTMX_TCP_WINDOW)") && long.contains("modelled"), "{long}");
    assert!(
        used.contains("address: other hosts reach this endpoint at 127.0.0.1 port ") && used.contains("interface lo"),
        "{used}"
    );
    assert!(used.contains("FI_RUSTMX_IFACE=127.0.0.1; for this host only"), "{used}");
    assert!(!used.contains("refused: "), "{used}");
    // It says what may be left there by the name that counts between hosts.
    let to = a.av.insert(&b.name());
    let plan = a.domain.ep_plan(a.ep, to, Movement::Message, 20_000).expect("a plan");
    assert!(plan.how == "stream" && plan.why.contains("from the sender's buffer to the receiver's"), "{plan:?}");
    let mut out = [1; 5000];
    for _ in 0..=(1 << 20) / out.len() {
        a.send(Msg::new(to, 7), &mut out).expect("send");
        a.poll();
        b.poll();
    }
    let plan = a.domain.ep_plan(a.ep, to, Movement::Message, 5000).expect("a plan");
    assert!(plan.how == "stream" && plan.why.contains("(FI_RUSTMX_TCP_WINDOW), so this one goes as a stream"), "{plan:?}");
    let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    let line = used.lines().find(|l| l.contains("refused: ")).expect("a line");
    assert!(line.contains("FI_RUSTMX_TCP_WINDOW") && !line.contains("FI_RUSTMX_EAGER_WINDOW"), "{line}");
    let json = a.domain.ep_history(a.ep, Telling::Json).expect("told");
    assert!(json.contains("\"cost\":{\"from\":233,") && json.contains("\"by\":\"modelled\"}"), "{json}");
}

/// Sends itself a word and closes, with an explanation.
fn talker() {
    let explained = Config { explain: 2, ..Config::default() };
    let (mut node, mut out, mut into) = (Node::with(explained, attr()), [1u8; 7], [0u8; 7]);
    let to = node.av.insert(&node.name());
    node.recv(Want::tag(1), &mut into).expect("recv");
    node.send(Msg::new(to, 1), &mut out).expect("send");
    run(&mut [&mut node], &[2]);
    node.domain.ep_close(node.ep).expect("closed");
}

#[test]
fn a_closing_endpoint_tells_on_standard_error() {
    if process::role().is_some() {
        return talker();
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("own path"));
    again.args(["--exact", "a_closing_endpoint_tells_on_standard_error", "--nocapture"]).env("RUSTMX_TEST_ROLE", "talker");
    let out = again.output().expect("run");
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    assert_eq!(told.lines().filter(|l| l.starts_with("rustmx explain: process")).count(), 1, "{told}");
    row(&told, &["send", "itself", "inline", "7"]);
}

/// The table knows the longest rings; where there are many peers they are shorter, and what fits no record of them goes as a stream.
#[test]
fn where_rings_are_short_long_records_become_streams() {
    let _dog = watchdog("short_rings", 30);
    if common::not_by_network("rings to other hosts are not shared among peers") {
        return;
    }
    let config = Config { ring_memory: 64 << 10, ..Config::default() };
    let mut a = Node::with(config.clone(), attr());
    let mut b = Node::with(config, attr());
    let crowd: Vec<Node> = (0..3).map(|_| Node::new()).collect();
    for other in &crowd {
        a.av.insert(&other.name());
        b.av.insert(&other.name());
    }
    exchange(&mut a, &mut b, &[3000, 20_000]);
    let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    let line = used.lines().find(|l| l.contains("refused: ")).expect("a line");
    assert!(line.contains("by eager: ") && line.contains("went by stream: the ring towards a peer is too short"), "{used}");
    assert!(line.contains("FI_RUSTMX_RING_MEMORY"), "{used}");
    let to = a.av.insert(&b.name());
    let plan = a.domain.ep_plan(a.ep, to, Movement::Message, 20_000).expect("a plan");
    assert!(plan.how == "stream" && plan.why.contains("FI_RUSTMX_RING_MEMORY"), "{plan:?}");
    assert_eq!(a.domain.ep_plan(a.ep, to, Movement::Message, 3000).expect("a plan").how, "eager");
}
