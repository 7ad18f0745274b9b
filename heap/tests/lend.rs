//! Endpoints that lend what the heap has given (`FI_RUSTMX_LEND`): each test runs in a process with the heap preloaded, in which all
//! long buffers, those of Rust too, lie in its arenas. What is copied out of them and into them must be right, and must have gone that way.

#[path = "../../provider/tests/common/mod.rs"]
mod common;
mod support;

use common::left_out::left_out;
use common::reachable::reachable;
use common::{Deadline, Msg, Node, Rng, Want, acquaint, all_ok, attr, message, pattern, process, run, seg, watchdog};
use rustmx::config::force::Forced;
use rustmx::mem::shared::{Backing, SharedMem};
use rustmx::sys::memfd::{self, Mapping};
use rustmx::wire::loan::MOST;
use rustmx::{Config, OpFlags, Telling};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Set in a process that was started with the heap.
const WITH_HEAP: &str = "RUSTMX_TEST_HEAP";

/// What runs a test of this program with the heap.
fn with_heap(test: &str) -> Command {
    started_with(&support::library(), &own_path(), test)
}

fn own_path() -> PathBuf {
    std::env::current_exe().expect("own path")
}

fn started_with(library: &Path, program: &Path, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("LD_PRELOAD", library);
    // Small enough to hold if one were filled.
    command.env("RUSTMX_HEAP_RESERVE", "1g").env(WITH_HEAP, "1");
    command
}

/// Whether this process has the heap. If not, the test is run again in one that has it, and that one's word is taken.
fn preloaded(test: &str) -> bool {
    if rustmx::sys::heap::heap().is_some() {
        return true;
    }
    // One more try would end as this one did, and so on.
    assert!(std::env::var_os(WITH_HEAP).is_none(), "started with {}, and there is no heap", support::library().display());
    let out = with_heap(test).output().expect("a copy of this program");
    let said = String::from_utf8_lossy(&out.stdout);
    print!("{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("1 passed"), "with the heap: {}", out.status);
    false
}

fn config(set: impl Fn(&mut Config)) -> Config {
    let mut config = Config::default();
    set(&mut config);
    config
}

/// A pair that knows each other.
fn pair(a: Config, b: Config) -> (Node, Node) {
    let (mut a, mut b) = (Node::with(a, attr()), Node::with(b, attr()));
    acquaint(&mut a, &mut b);
    (a, b)
}

const SIZES: [usize; 7] = [8192, 10_001, 65_536, 262_144, 300_001, 1 << 20, 5_000_003];

fn exchange(a: &mut Node, b: &mut Node) -> u64 {
    for (i, n) in SIZES.into_iter().enumerate() {
        message(a, b, n, i, true);
        message(a, b, n, i + 50, false);
    }
    2 * SIZES.len() as u64
}

/// Forced, so that both sides copy what they may.
fn forced() -> Config {
    config(|c| c.protocol = Forced::parse("mapped").0)
}

#[test]
fn long_blocks_are_copied_once_without_the_kernel() {
    if !preloaded("long_blocks_are_copied_once_without_the_kernel") {
        return;
    }
    let _dog = watchdog("long_blocks", 60);
    // The kernel may not be asked for anything, so each byte was copied by one of the two.
    let never = config(|c| (c.cma, c.protocol) = (1, Forced::parse("mapped").0));
    let (mut a, mut b) = pair(never.clone(), never);
    let messages = exchange(&mut a, &mut b);
    let (s, r) = (a.stats(), b.stats());
    assert_eq!((s.mapped, s.syscall, s.stream, r.declined), (messages, 0, 0, 0));
    assert_eq!(s.stored + r.fetched, 2 * SIZES.iter().sum::<usize>() as u64, "every byte once");
    assert!(s.stored > 0, "the sender helped");
    // What is shorter, or on no long block, goes as ever.
    message(&mut a, &mut b, 3000, 1, true);
    let mut on_stack = [7u8; 60_000];
    let (to_b, mut into) = (a.knows(&b), vec![0u8; 60_000]);
    b.recv(Want::tag(6), &mut into).expect("recv");
    a.send(Msg::new(to_b, 6), &mut on_stack).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    assert!(into == on_stack && a.stats().mapped == messages);
    // Nor does what lies only in part on one.
    let (mut half, mut into) = (vec![3u8; 30_000], vec![0u8; 40_000]);
    b.recv(Want::tag(7), &mut into).expect("recv");
    a.sendv(Msg::new(to_b, 7), &[seg(&mut half), seg(&mut on_stack[..10_000])], true).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    assert!(into[..30_000] == half[..] && into[30_000..] == on_stack[..10_000] && a.stats().mapped == messages);
    let mut more = vec![4u8; 9_000];
    b.recv(Want::tag(8), &mut into).expect("recv");
    a.sendv(Msg::new(to_b, 8), &[seg(&mut half), seg(&mut more)], true).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    assert!(into[..30_000] == half[..] && into[30_000..39_000] == more[..] && a.stats().mapped == messages + 1, "two blocks");
}

#[test]
fn who_may_only_read_writes_nothing() {
    if !preloaded("who_may_only_read_writes_nothing") {
        return;
    }
    let _dog = watchdog("only_read", 60);
    let read = |c: &Config| Config { lend: 1, cma: 1, ..c.clone() };
    for (mine, theirs) in [(read(&forced()), forced()), (forced(), read(&forced())), (read(&forced()), read(&forced()))] {
        let (mut a, mut b) = pair(Config { cma: 1, ..mine }, Config { cma: 1, ..theirs });
        let messages = exchange(&mut a, &mut b);
        assert_eq!((a.stats().mapped, a.stats().stored), (messages, 0));
    }
}

#[test]
fn who_does_not_map_says_so_once() {
    if !preloaded("who_does_not_map_says_so_once") {
        return;
    }
    let _dog = watchdog("does_not_map", 60);
    // The kernel carries them; without it, streams do.
    for cma in [0, 1] {
        let by_no_record = config(|c| (c.cma, c.syscall_min, c.eager_max) = (cma, 8 << 10, 4 << 10));
        let (mut a, mut b) = pair(by_no_record.clone(), Config { lend: 2, ..by_no_record });
        let messages = exchange(&mut a, &mut b);
        let s = a.stats();
        assert_eq!((s.mapped, s.syscall + s.stream), (0, messages), "{s:?}");
        let told = a.domain.ep_history(a.ep, Telling::Used).expect("history");
        assert!(told.contains(" 1 time  ") && told.contains("by mapped"), "{told}");
        // In the other direction nothing is lent at all.
        let back = exchange(&mut b, &mut a);
        assert_eq!((b.stats().mapped, b.stats().syscall + b.stats().stream), (0, back));
    }
}

/// The packet that hands memory over stands behind all those that woke a receiver which was not known yet.
#[test]
fn a_loan_behind_many_wakes() {
    if !preloaded("a_loan_behind_many_wakes") {
        return;
    }
    let _dog = watchdog("wakes", 60);
    // A look takes a few packets: the loan is the last of one, the first of the next, and far behind.
    for before in [1, 7, 8, 9, 150] {
        behind_wakes(before);
    }
}

fn behind_wakes(before: usize) {
    let (mut a, mut b) = (Node::with(forced(), attr()), Node::with(forced(), attr()));
    let to_b = a.knows(&b);
    let (mut small, mut out, mut into) = ([1u8; 4], pattern(50_000, 1), vec![0u8; 50_000]);
    for _ in 0..before {
        a.send(Msg::new(to_b, 1), &mut small).expect("send");
    }
    b.recv(Want::tag(5), &mut into).expect("recv");
    let until = Deadline::new(10);
    while a.stats().peers == 0 || b.stats().peers == 0 {
        b.quiet(1);
        a.poll();
        until.check(|| "no contact".into());
    }
    // Its answer has been heard, so this one is lent.
    (0..100).for_each(|_| drop(a.poll()));
    a.send(Msg::new(to_b, 5), &mut out).expect("send");
    let mut arrived = false;
    while !arrived {
        a.poll();
        arrived = b.poll().iter().any(|e| matches!(e, Ok(c) if c.tag == 5));
        until.check(|| format!("{:?} {:?}", a.stats(), b.stats()));
    }
    assert!(into == out && a.stats().mapped == 1, "{:?}", a.stats());
}

/// Buffers come and go, change their size and place, and are given back to the system: no message has a byte of what was there before.
#[test]
fn blocks_that_come_and_go() {
    if !preloaded("blocks_that_come_and_go") {
        return;
    }
    let _dog = watchdog("come_and_go", 120);
    let (mut a, mut b) = pair(forced(), forced());
    let to_b = a.knows(&b);
    let mut rng = Rng(0x1e4d);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 0..400usize {
        let most = if rng.one_in(20) { 90 << 20 } else { 400_000 };
        let n = rng.range(8192, most);
        let (mut out, mut into) = (pattern(n, round), vec![0xee; n]);
        if rng.one_in(3) {
            // It grows, and may move.
            out.reserve_exact(rng.range(1, 2_000_000));
        }
        b.recv(Want::tag(5), &mut into).expect("recv");
        a.send(Msg::new(to_b, 5), &mut out).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        assert!(into == out, "round {round}, {n} bytes");
        if rng.one_in(4) {
            kept.push(out);
        }
        if kept.len() > 20 {
            kept.swap_remove(rng.range(0, 20));
        }
    }
    assert!(a.stats().mapped >= 400);
}

/// What is lent has an end: arenas of the heap, then files that the program maps, more together than a peer takes. What is beyond goes otherwise, until
/// something is not lent any more.
#[test]
fn more_than_can_be_lent() {
    const EACH: usize = 40;
    const N: usize = 5 * 4096;
    if !preloaded("more_than_can_be_lent") {
        return;
    }
    let _dog = watchdog("more_than_can_be_lent", 60);
    let (mut a, mut b) = pair(forced(), forced());
    // Each is longer than an arena, so each gets its own; only the pages in use are ever there.
    let mut blocks: Vec<Vec<u8>> = (0..EACH).map(|_| Vec::with_capacity((1 << 30) + 4096)).collect();
    for (i, block) in blocks.iter_mut().enumerate() {
        block.extend(pattern(N, i));
        send_as_it_is(&mut a, &mut b, block);
    }
    assert_eq!(a.stats().mapped, EACH as u64);
    let mut files: Vec<_> = (0..EACH).map(|_| memfd::create("lent", N, false).expect("memfd")).collect();
    for (i, (_, file)) in files.iter().enumerate() {
        SharedMem::new(file.clone()).fill_bytes(0, &pattern(N, i));
        // A file is looked at when it comes again.
        (0..3).for_each(|_| send_as_it_is(&mut a, &mut b, buffer(file)));
    }
    let lent = |a: &Node| (a.stats().mapped - EACH as u64) as usize;
    assert_eq!(lent(&a), 2 * (MOST - EACH), "{:?}", a.stats());
    // One is given back; its number is known to the peer until that one hears of it.
    drop(files.remove(0));
    let until = Deadline::new(10);
    while lent(&a) == 2 * (MOST - EACH) {
        send_as_it_is(&mut a, &mut b, buffer(&files[EACH - 2].1));
        until.check(|| format!("nothing more is lent: {:?}", a.stats()));
    }
    assert_eq!(b.stats().lost, 0);
}

#[expect(unsafe_code, reason = "a mapping as a buffer")]
fn buffer(file: &Arc<Mapping>) -> &'static mut [u8] {
    // SAFETY: mapped as long as the test sends it, and looked at in no other way meanwhile.
    unsafe { std::slice::from_raw_parts_mut(file.base().as_ptr(), file.bytes()) }
}

/// One message, checked to the last byte.
fn send_as_it_is(a: &mut Node, b: &mut Node, out: &mut [u8]) {
    let (to_b, mut into) = (a.knows(b), vec![0u8; out.len()]);
    b.recv(Want::tag(5), &mut into).expect("recv");
    a.send(Msg::new(to_b, 5), out).expect("send");
    let got = run(&mut [a, b], &[1, 1]);
    assert!(all_ok(&got[0]) + all_ok(&got[1]) == 2 && into == out);
}

/// Arenas are mostly holes; a process that locks all it maps must not fill them.
#[test]
#[expect(unsafe_code, reason = "mlockall(2)")]
fn who_locks_its_memory_locks_no_holes() {
    if !preloaded("who_locks_its_memory_locks_no_holes") {
        return;
    }
    let _dog = watchdog("locks", 60);
    // SAFETY: touches no memory of ours.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        return left_out("lock", "mlockall is not allowed here");
    }
    let (mut a, mut b) = pair(forced(), forced());
    message(&mut a, &mut b, 100_000, 1, true);
    let resident = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = resident.split_whitespace().nth(1).and_then(|p| p.parse().ok()).expect("pages");
    if a.stats().mapped == 0 {
        return left_out("lock", "what may be locked here is less than an arena");
    }
    assert!(pages * 4096 < 400 << 20, "{} MiB are resident", pages >> 8);
}

/// fork copies the arenas away for the child; peers go on with the parent's.
#[test]
#[expect(unsafe_code, reason = "fork(2) and what goes with it")]
fn a_child_changes_nothing() {
    if !preloaded("a_child_changes_nothing") {
        return;
    }
    let _dog = watchdog("child", 60);
    let (mut a, mut b) = pair(forced(), forced());
    message(&mut a, &mut b, 100_000, 1, true);
    let mut out = pattern(500_000, 3);
    // SAFETY: the child writes to memory that it owns, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        out.fill(0x55);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    let (to_b, mut into) = (a.knows(&b), vec![0u8; 500_000]);
    b.recv(Want::tag(5), &mut into).expect("recv");
    a.send(Msg::new(to_b, 5), &mut out).expect("send");
    run(&mut [&mut a, &mut b], &[1, 1]);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
    assert!(into == out && out == pattern(500_000, 3));
    assert_eq!(a.stats().mapped, 2);
}

/// A sender that is killed while its memory is being read takes nobody with it.
#[test]
fn a_lender_dies() {
    if let Some(role) = process::role() {
        let mut node = Node::with(forced(), attr());
        process::say(&hex(&node.name().to_bytes()));
        let to = node.av.insert(&rustmx::Name::from_bytes(&unhex(&role[0])).expect("name"));
        let mut out = pattern(64 << 20, 1);
        loop {
            let _ = node.send(Msg::new(to, 5).with(OpFlags::COMPLETION), &mut out);
            for _ in 0..1000 {
                node.poll();
            }
        }
    }
    if !preloaded("a_lender_dies") {
        return;
    }
    let _dog = watchdog("lender", 120);
    let mut rng = Rng(7);
    for round in 0..8 {
        let mut b = Node::with(forced(), attr());
        let mut sender = process::copy("a_lender_dies", &hex(&b.name().to_bytes()));
        sender.hear();
        let mut into = vec![0u8; 64 << 20];
        let (mut whole, until) = (0, Deadline::new(30));
        let (last, turns) = (rng.range(1, 3), rng.range(1, 400));
        // Until its end is noticed: by a receive that had begun, or, between two messages, without one.
        'life: loop {
            b.recv(Want::tag(5), &mut into).expect("recv");
            for turn in 0.. {
                if whole == last && turn == turns {
                    sender.kill();
                }
                match b.poll().pop() {
                    Some(Ok(_)) => break,
                    Some(Err(_)) => break 'life,
                    None if b.stats().lost > 0 => break 'life,
                    None => until.check(|| format!("round {round}: {whole} messages, then nothing")),
                }
            }
            assert!(into == pattern(64 << 20, 1), "round {round}");
            whole += 1;
            if whole > last {
                // It had sent all of them before it died.
                sender.kill();
            }
        }
        // The endpoint is as good as before.
        let mut a = Node::with(forced(), attr());
        let to_b = a.knows(&b);
        let (mut out, mut small) = (pattern(200_000, 9), vec![0u8; 200_000]);
        b.recv(Want::tag(6), &mut small).expect("recv");
        a.send(Msg::new(to_b, 6), &mut out).expect("send");
        let (mut arrived, until) = (false, Deadline::new(10));
        while !arrived {
            a.poll();
            arrived = b.poll().iter().any(|e| matches!(e, Ok(c) if c.tag == 6));
            until.check(|| "no message after the death".into());
        }
        assert!(small == out);
    }
}

/// None of it needs privileges. (As any other user the tests above are that already.)
#[test]
fn as_an_ordinary_user() {
    const USER: u32 = 65_533;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (library, program) = (reachable(&support::library()), reachable(&own_path()));
    for test in [
        "long_blocks_are_copied_once_without_the_kernel",
        "who_may_only_read_writes_nothing",
        "blocks_that_come_and_go",
        "more_than_can_be_lent",
        "a_child_changes_nothing",
    ] {
        let mut command = started_with(&library, &program, test);
        let out = command.uid(USER).gid(USER).output().expect("a copy of this program");
        let said = String::from_utf8_lossy(&out.stdout);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.contains("1 passed"), "{test}: {}\n{said}\n{errors}", out.status);
        assert!(!said.contains("left out"), "{said}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 56] {
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect();
    bytes.try_into().expect("a name")
}
