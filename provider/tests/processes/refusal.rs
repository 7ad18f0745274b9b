//! A kernel that allows processes to reach each other's memory, and then does not.

use crate::common::left_out::left_out;
use crate::common::process::{self, Copy, hear, say};
use crate::common::{Deadline, Msg, Node, Want, not_by_network, pattern, seg, watchdog};
use crate::{STREAM, STREAM_BACK, ok, peer, start};
use rustmx::{Access, OpFlags, Region, RemoteSeg, RmaArgs, Telling, UserCtx, UserSeg};

/// Has memory for others, and at a word makes the kernel keep everybody out of it.
pub fn reserved() {
    let mut node = Node::new();
    let mut bytes = pattern(5000, 1);
    let region = Region { memory: seg(&mut bytes), access: all_rights(), by_address: false };
    node.domain.mr_register(Some(1), region).expect("registered");
    say(&node.name().to_string());
    hear();
    process::keep_out();
    say("closed");
    process::follow_parent();
    loop {
        node.domain.progress();
    }
}

fn all_rights() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE
}

/// The kernel allows transfers at first, then answers EPERM (as ptrace_scope or a container's profile may): the operations in hand and
/// all later ones are carried out by the target's engine, and no byte is lost.
#[test]
fn the_kernel_changes_its_mind_in_mid_job() {
    if not_by_network("the kernel copies nothing between hosts") {
        return;
    }
    process::alone("refusal::the_kernel_changes_its_mind_in_mid_job", refused_in_mid_job);
}

fn refused_in_mid_job() {
    let _dog = watchdog("changes its mind", 60);
    // Whoever may trace everybody (root) is not refused: this thread gives that up.
    process::give_up_tracing();
    let mut other = start("reserved");
    let mut a = Node::new();
    let to = peer(&a, &other.hear());
    let mut back = vec![0u8; 5000];
    let mut ours = pattern(5000, 2);
    let (into, from, place) = ([seg(&mut back)], [seg(&mut ours)], [RemoteSeg { addr: 0, len: 5000, key: 1 }]);
    let rma = |node: &mut Node, write: bool, iov: &[UserSeg]| {
        let args = RmaArgs {
            to,
            write,
            iov,
            places: &place,
            data: None,
            ctx: UserCtx(1),
            flags: Some(OpFlags::COMPLETION),
            inject: false,
        };
        node.domain.rma(node.ep, &args).expect("started");
        let until = Deadline::new(10);
        loop {
            if let Some(e) = node.poll().pop() {
                return ok(&e);
            }
            until.check(|| format!("no completion: {:?}", node.stats()));
        }
    };
    rma(&mut a, false, &into);
    assert!(back == pattern(5000, 1));
    rma(&mut a, true, &from);
    if a.stats().direct == 0 {
        return left_out("cma", "the kernel does not allow process_vm_readv here at all");
    }
    assert_eq!((a.stats().direct, a.stats().one_sided), (2, 0));
    other.tell("close");
    assert_eq!(other.hear(), "closed");
    rma(&mut a, false, &into);
    assert!(back == pattern(5000, 2), "what was written before the refusal");
    ours.copy_from_slice(&pattern(5000, 3));
    rma(&mut a, true, &from);
    rma(&mut a, false, &into);
    assert!(back == pattern(5000, 3));
    assert_eq!((a.stats().direct, a.stats().one_sided), (2, 3), "the kernel has refused");
}

/// Bytes of a long message: both sides copy.
const LONG: usize = 1_000_000;
/// Long messages of a phase, each way.
const ECHOES: usize = 4;

/// Answers long messages with themselves, and makes the kernel more and more unkind.
pub fn echo(name: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    say(&node.name().to_string());
    let mut buf = vec![0u8; LONG];
    loop {
        for _ in 0..ECHOES {
            node.recv(Want::tag(STREAM), &mut buf).expect("recv");
            node.complete(1);
            node.send(Msg::new(to, STREAM_BACK), &mut buf).expect("send");
            node.complete(1);
        }
        let stats = node.stats();
        say(&format!("{} {}", stats.stored, stats.declined));
        match hear().as_str() {
            "close" => process::keep_out(),
            "give up" => process::give_up_tracing(),
            _ => return,
        }
    }
}

/// Long messages while the kernel forbids first one side, then both, to reach the other's memory: no byte is lost, what one side may
/// not the other does, and in the end all goes through the ring.
#[test]
fn the_kernel_forbids_one_side_and_then_both() {
    if not_by_network("the kernel copies nothing between hosts") {
        return;
    }
    process::alone("refusal::the_kernel_forbids_one_side_and_then_both", forbidden_by_and_by);
}

fn forbidden_by_and_by() {
    let _dog = watchdog("forbids", 60);
    process::give_up_tracing();
    let mut node = Node::new();
    let mut other = start(&format!("echo {}", node.name()));
    let to = peer(&node, &other.hear());
    let mut phase = 0;
    let (mut theirs, mut ours) = (0, 0);
    // What each side copied, and the messages that had to come as streams after all.
    let mut next = |node: &mut Node, other: &mut Copy| {
        for i in 0..ECHOES {
            phase += 1;
            let (mut there, mut back) = (pattern(LONG, phase * 10 + i), vec![0; LONG]);
            node.recv(Want::tag(STREAM_BACK), &mut back).expect("recv");
            node.send(Msg::new(to, STREAM), &mut there).expect("send");
            node.complete(2);
            assert!(back == there, "phase {phase}, message {i}");
        }
        let said = other.hear();
        let (stored, declined) = said.split_once(' ').expect("two numbers");
        let stored: u64 = stored.parse().expect("bytes");
        let (s, before) = (node.stats(), (theirs, ours));
        (theirs, ours) = (stored, s.fetched + s.stored);
        (stored - before.0, ours - before.1, declined.parse::<u64>().expect("messages") + s.declined)
    };
    let (_, ours, declined) = next(&mut node, &mut other);
    if ours == 0 {
        return left_out("cma", "the kernel does not allow process_vm_readv here at all");
    }
    assert_eq!(declined, 0);
    // The other one is root, and may still do everything; we may nothing.
    other.tell("close");
    let (stored, ours, declined) = next(&mut node, &mut other);
    let all = (ECHOES * LONG) as u64;
    if rustix::process::geteuid().is_root() {
        // The other one reads what we send and writes what it sends; but for the chunk at which we found out.
        assert!(ours == 0 && stored > all * 9 / 10 && declined <= 1, "{stored} of {all}, {ours}, {declined}");
    }
    other.tell("give up");
    let before = node.stats().stream;
    process::keep_out();
    let (stored, ours, declined) = next(&mut node, &mut other);
    assert_eq!((stored, ours), (0, 0));
    assert!((1..=4).contains(&declined), "found out once or twice in each direction: {declined}");
    assert!(node.stats().stream > before, "{:?}", node.stats());
    // The table has no row of streams.
    let told = node.domain.ep_history(node.ep, Telling::Used).expect("told");
    let row: Vec<&str> = told.lines().filter(|line| line.contains("; instead of syscall, see refused")).collect();
    let [stream, ..] = row[..] else { panic!("{told}") };
    let streams = node.stats().stream;
    let carried = format!("stream    {streams:>9} times {:>13} bytes  fragments through the ring", streams * LONG as u64);
    assert!(
        row.len() == 1 && stream.starts_with("  send   same host    65536 .. max      ") && stream.contains(&carried),
        "{told}"
    );
    let refused = told.lines().filter(|line| line.contains("  refused: send") && line.contains("by syscall")).count();
    assert!(refused > 0, "{told}");
    other.tell("end");
}
