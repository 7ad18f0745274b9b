//! What is told of reads, writes and atomics: by which row they were to go, how they went, and why otherwise.

use crate::common::left_out::left_out;
use crate::common::{Deadline, Node, attr, by_network_only, pattern, seg, watchdog};
use crate::{all_rights, both_ways, config, kernel_allows, one, pair, region, rma};
use rustmx::{AtomicArgs, AtomicForm, AtomicOp, AtomicType, Movement, Order, RemoteSeg, Telling, UserCtx};

/// The line of a history that has all these words.
#[track_caller]
fn row<'a>(told: &'a str, words: &[&str]) -> &'a str {
    let has = |line: &&str| words.iter().all(|w| line.split_whitespace().any(|x| x == *w));
    let found: Vec<&str> = told.lines().filter(has).collect();
    assert_eq!(found.len(), 1, "{words:?} in\n{told}");
    found[0]
}

/// Starts an addition to one value.
fn add(node: &mut Node, to: rustmx::Addr, value: &mut [u8; 8]) {
    let order = Order { op: AtomicOp::Sum, kind: AtomicType::U64, form: AtomicForm::Base };
    let (operands, places) = ([seg(value)], [RemoteSeg { addr: 0, len: 8, key: 1 }]);
    let args = AtomicArgs {
        to,
        order,
        operands: &operands,
        comparands: &[],
        results: &[],
        places: &places,
        ctx: UserCtx(9),
        flags: None,
        inject: false,
    };
    node.domain.atomic(node.ep, &args).expect("started");
}

#[test]
fn every_row_is_told_with_its_cost_and_what_went_by_it() {
    let _dog = watchdog("told", 30);
    for cma in both_ways() {
        let (mut a, mut b, to) = pair(cma);
        let (mut theirs, mut ours) = (pattern(5000, 1), pattern(5000, 2));
        b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
        let place = |len| [RemoteSeg { addr: 0, len, key: 1 }];
        for (write, len) in [(false, 5000), (false, 100), (true, 3000)] {
            a.domain.rma(a.ep, &rma(to, write, &[seg(&mut ours[..len])], &place(len), 1)).expect("started");
            one(&mut a, &mut b).expect("done");
        }
        let way = if cma { "direct" } else { "one_sided" };
        let all = a.domain.ep_history(a.ep, Telling::All).expect("told");
        // By the network long ones have a row of their own.
        let last = if by_network_only() { "8192" } else { "max" };
        let read = row(&all, &["read", way, last]);
        assert!(read.contains(" 2 times          5100 bytes ") && read.contains(" modelled"), "{all}");
        assert_eq!(read.contains("(set)"), !cma && kernel_allows(), "{read}");
        assert!(row(&all, &["write", way, last]).contains(" 1 time           3000 bytes "), "{all}");
        assert!(row(&all, &["atomic", "one_sided", "12288"]).contains(" 0 times "), "also what was not used: {all}");
        let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
        assert!(!used.contains("atomic ") && !used.contains("refused: "), "{used}");
        let json = a.domain.ep_history(a.ep, Telling::Json).expect("told");
        let line = json.lines().find(|l| l.contains("\"operation\":\"read\"")).expect("a row");
        assert!(line.contains(&format!("\"protocol\":\"{way}\"")) && line.contains("\"count\":2,\"bytes\":5100"), "{line}");
        assert!(line.contains("\"cost\":{\"from\":0,") && line.contains("\"by\":\"modelled\"}"), "{line}");
        let plan = a.domain.ep_plan(a.ep, to, Movement::Read, 5000).expect("a plan");
        assert_eq!(plan.how, way, "what will be is what was: {plan:?}");
        let plan = a.domain.ep_plan(a.ep, to, Movement::Atomic, 8).expect("a plan");
        assert_eq!((plan.how, plan.sizes), ("one_sided", (0, 12_288)));
    }
}

/// A write behind an atomic that is not complete goes the same way, so that they arrive in order, and that is told.
#[test]
fn what_had_to_keep_an_order_is_told() {
    let _dog = watchdog("order", 30);
    if !kernel_allows() {
        return left_out("cma", "the kernel does not allow process_vm_readv here");
    }
    let (mut a, mut b) = (Node::with(config(true), attr()), Node::with(config(true), attr()));
    let to = a.knows(&b);
    let (mut theirs, mut ours, mut value) = (vec![0u8; 64], pattern(16, 2), 5u64.to_ne_bytes());
    b.domain.mr_register(Some(1), region(&mut theirs, all_rights())).expect("registered");
    add(&mut a, to, &mut value);
    let place = [RemoteSeg { addr: 0, len: 16, key: 1 }];
    let plan = a.domain.ep_plan(a.ep, to, Movement::Write, 16).expect("a plan");
    assert!(plan.how == "one_sided" && plan.why.contains("earlier operations"), "{plan:?}");
    a.domain.rma(a.ep, &rma(to, true, &[seg(&mut ours)], &place, 1)).expect("started");
    let (mut done, until) = (0, Deadline::new(5));
    while done < 2 {
        for event in a.poll() {
            event.expect("done");
            done += 1;
        }
        b.domain.progress();
        until.check(|| "no completion".into());
    }
    assert!(theirs[..16] == ours[..], "the write came last");
    let used = a.domain.ep_history(a.ep, Telling::Used).expect("told");
    let line = row(&used, &["write", "same", "one_sided"]);
    assert!(line.contains("instead of direct, see refused"), "{used}");
    assert!(
        row(&used, &["refused:", "write"]).contains("by direct: 1 time, 16 bytes, went by one_sided: earlier operations"),
        "{used}"
    );
    assert!(row(&used, &["atomic", "same"]).contains(" 1 time              8 bytes "), "{used}");
    let stats = a.stats();
    assert_eq!((stats.direct, stats.one_sided, stats.atomics), (0, 1, 1));
}
