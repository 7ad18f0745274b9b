use super::*;

/// As `/proc/PID/status` has it (a Debian machine, shortened).
const STATUS: &str = "Name:\tperf\nUmask:\t0022\nState:\tR (running)\nTgid:\t4711\nNgid:\t0\nPid:\t4711\nPPid:\t4700\nTracerPid:\t0\n\
    Uid:\t1000\t1000\t1000\t1000\nGid:\t1001\t1001\t1001\t1001\nGroups:\t27 1001 \nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
    CapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";
const ALL: &str = "         0          0 4294967295\n";
const FIRST: &str = "user:[4026531837]";
const TRACE: u64 = 1 << 19;

/// Siblings that may do everything to each other.
fn two() -> (Facts, Facts) {
    let facts = Facts::parse(STATUS).expect("a status");
    let first = Facts { namespace: Some(FIRST.into()), map: ALL.into(), dumpable: Some(true), ..facts };
    (first.clone(), Facts { pid: 4712, ..first })
}

fn said(caller: &Facts, target: &Facts, seen: Seen) -> Vec<String> {
    judge(caller, target, &seen).iter().map(Cause::to_string).collect()
}

#[track_caller]
fn only(said: &[String], words: &str) {
    assert!(said.len() == 1 && said[0].contains(words), "{words}: {said:?}");
}

#[test]
fn a_status_is_read() {
    let facts = Facts::parse(STATUS).expect("a status");
    assert_eq!((facts.pid, facts.parent, facts.users, facts.groups), (4711, 4700, [1000; 3], [1001; 3]));
    assert_eq!((facts.permitted, facts.effective, facts.seccomp), (0, 0, 0));
    let other = STATUS.replace("Seccomp:\t0", "Seccomp:\t2").replace("CapPrm:\t0000000000000000", "CapPrm:\t00000000a80425fb");
    let facts = Facts::parse(&other).expect("a status");
    assert_eq!((facts.permitted, facts.seccomp), (0xa804_25fb, 2));
    assert_eq!(Facts::parse(""), None);
    assert_eq!(Facts::parse(&STATUS.replace("Uid:\t1000", "Uid:\t-")), None);
    let own = Facts::own().expect("this process");
    assert_eq!((own.pid, own.parent), (std::process::id(), std::os::unix::process::parent_id()));
    assert!(own.namespace.is_some() && !own.map.is_empty());
}

/// Whoever asks in the kernel's order finds the kernel's reason.
#[test]
fn each_reason_alone_is_the_reason() {
    let (caller, target) = two();
    let seen = Seen { looks: Some(false), ..Seen::default() };
    only(&said(&caller, &Facts { users: [1000, 1002, 1000], ..target.clone() }, seen), "as one user");
    only(&said(&caller, &Facts { groups: [7; 3], ..target.clone() }, seen), "process 4712 as user 1000 and group 7");
    only(&said(&caller, &Facts { dumpable: Some(false), ..target.clone() }, seen), "process 4712 is not dumpable");
    only(
        &said(&caller, &Facts { permitted: 1, ..target.clone() }, seen),
        "process 4712 has capabilities that process 4711 lacks (0x1;",
    );
    let there = Facts { namespace: Some("user:[9]".into()), ..target.clone() };
    only(&said(&caller, &there, seen), "user namespaces differ (process 4711: user:[4026531837], process 4712: user:[9])");
    // What cannot be looked at has another table of users.
    let there = Facts { namespace: None, map: "0 0 1\n".into(), ..target.clone() };
    only(&said(&caller, &there, seen), "user namespaces differ: ");
    // What Yama says is no reason of what Yama does not forbid.
    let unknown = Facts { dumpable: None, ..target.clone() };
    only(&said(&caller, &unknown, Seen { scope: Some(1), ..seen }), "is not dumpable");
    // With a module that has a word for this process it may be that, too.
    let labelled = Facts { label: Some("docker-default (enforce)".into()), ..caller.clone() };
    let both = said(&labelled, &Facts { label: labelled.label.clone(), ..unknown }, seen);
    assert!(both.len() == 2 && both[0].contains("dumpable") && both[1].contains("AppArmor"), "{both:?}");
    let other = Facts { label: Some("unconfined".into()), ..target.clone() };
    only(&said(&labelled, &other, seen), "process 4711: docker-default (enforce), process 4712: unconfined");
    only(&said(&caller, &target, seen), "a security module");
}

/// Who may look in /proc has been let through everything but Yama.
#[test]
fn yama_speaks_last() {
    let (caller, target) = two();
    let target = Facts { parent: 4701, ..target };
    for looks in [Some(true), None] {
        let seen = |scope, kin| Seen { looks, scope, kin };
        only(&said(&caller, &target, seen(Some(3), true)), "is 3, which");
        only(&said(&caller, &target, seen(Some(2), true)), "ptrace_scope=1)");
        let apart = said(&caller, &target, seen(Some(1), false));
        only(&apart, "process 4712 lets in at most children of its own parent 4701, but process 4711 is a child of 4700");
        assert!(apart[0].contains("FI_RUSTMX_YAMA=any"), "{apart:?}");
        assert!(said(&caller, &target, seen(Some(1), true))[0].contains("FI_RUSTMX_YAMA=none"));
        for scope in [Some(0), None] {
            only(&said(&caller, &target, seen(scope, false)), "a security module");
        }
        // Who may trace everybody is refused by 3 alone.
        let able = Facts { effective: TRACE, ..caller.clone() };
        only(&said(&able, &target, seen(Some(3), false)), "is 3, which");
        only(&said(&able, &Facts { users: [7; 3], ..target.clone() }, seen(Some(2), false)), "a security module");
    }
    let strange = Facts { users: [7; 3], ..target.clone() };
    only(&said(&caller, &strange, Seen { looks: Some(true), scope: Some(2), kin: false }), "is 2, which");
    only(&said(&Facts { seccomp: 2, ..caller }, &target, Seen::default()), "process 4711 has a seccomp filter");
}

/// Root's files are root's either way, and two namespaces may have the same table of users: then both remain.
#[test]
fn what_cannot_be_seen_remains() {
    let (caller, target) = two();
    let seen = Seen { looks: Some(false), ..Seen::default() };
    let inside = |p: Facts, namespace: Option<&str>| Facts {
        namespace: namespace.map(Into::into),
        map: "0 0 1\n".into(),
        dumpable: None,
        ..p
    };
    let left = said(&inside(caller.clone(), Some("user:[8]")), &inside(target.clone(), None), seen);
    assert!(left.len() == 2 && left[0].contains("dumpable") && left[1].starts_with("user namespaces differ: "), "{left:?}");
    // The first namespace has all users, and who sees all of them in another process's table is there, too.
    let there = Facts { namespace: None, dumpable: None, ..target.clone() };
    only(&said(&caller, &there, seen), "is not dumpable");
    let of = |users: u32, groups: u32, map: &str, owner| {
        let p = Facts { users: [users; 3], groups: [groups; 3], map: map.into(), ..target.clone() };
        p.is_dumpable(owner)
    };
    assert_eq!(of(1000, 1001, ALL, (1000, 1001)), Some(true));
    assert_eq!(of(1000, 1001, ALL, (0, 0)), Some(false));
    assert_eq!(of(0, 0, ALL, (0, 0)), None);
    assert_eq!(of(0, 5, ALL, (0, 0)), Some(false));
    assert_eq!(of(65_534, 65_534, ALL, (65_534, 65_534)), Some(true));
    assert_eq!(of(65_534, 65_534, "0 1000 1\n", (65_534, 65_534)), None, "root of the machine, or nobody: one number for both");
}

#[test]
fn calls_that_fail_for_everything() {
    let said = |errno, seccomp| Cause::Call { call: Call::Write, errno, seccomp }.to_string();
    assert!(said(Errno::PERM, 2).contains("a seccomp filter forbids process_vm_writev"));
    assert!(said(Errno::NOSYS, 2).contains("a seccomp filter"));
    assert!(said(Errno::NOSYS, 0).contains("CONFIG_CROSS_MEMORY_ATTACH"));
    assert!(said(Errno::INVAL, 0).contains("error 22"));
    assert!(to_this_process(u32::MAX >> 1, Errno::SRCH, Call::Read).starts_with("ESRCH: "));
    assert!(to_process(u32::MAX >> 1).contains("/proc shows nothing"));
}
