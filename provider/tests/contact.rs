//! Who is reached by what name, what happens when nobody is, and what an endpoint costs.

mod common;

use common::{
    Deadline, Event, Msg, Node, Want, all_ok, at_port, attr, by_network, contact, footprint, fresh_port, not_by_network,
    number_of, pattern, process, push, run, watchdog, worked,
};
use rustmx::sys::clock::Clock;
use rustmx::{Addr, AddressVector, Config, Domain, Error, Log, Name, OpFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[track_caller]
fn ok(e: &Event) -> rustmx::Completion {
    match e {
        Ok(c) => *c,
        Err(e) => panic!("{e:?}"),
    }
}

#[track_caller]
fn exchange(a: &mut Node, b: &mut Node, to_b: Addr, n: usize) -> rustmx::Completion {
    let (mut out, mut into) = (pattern(n, n), vec![0u8; n]);
    b.recv(Want::tag(1), &mut into).expect("recv");
    let (s, r) = push(a, b, Msg::new(to_b, 1), &mut out);
    let mut got = run(&mut [a, b], &[1 - s.len(), 1 - r.len()]);
    got[1].extend(r);
    let c = ok(&got[1][0]);
    assert!(c.len == n && into == out);
    c
}

#[test]
fn a_service_is_reached_by_address_and_port() {
    let _dog = watchdog("service", 30);
    let port = fresh_port();
    let (mut b, mut a) = (Node::with(Config::default(), at_port(port)), Node::new());
    assert_eq!(b.name().port(), port);
    let to_b = a.av.insert(&contact(port));
    assert_eq!(exchange(&mut a, &mut b, to_b, 100).src, Addr::UNSPEC, "the caller was not inserted");
    assert_eq!(exchange(&mut a, &mut b, to_b, 100_000).src, Addr::UNSPEC);
    // The answer finds its way by the caller's name, over the same connection.
    let to_a = b.knows(&a);
    assert_eq!(exchange(&mut a, &mut b, to_b, 10).src, to_a);
    exchange(&mut b, &mut a, to_a, 50_000);
    assert_eq!((a.stats().peers, b.stats().peers), (1, 1));
    // Somebody else cannot take the port while it is used; another endpoint of the process gets a name without it.
    let c = Node::with(Config::default(), at_port(port));
    assert_ne!(c.name().port(), port);
}

/// What a caller knows by its contact address only is the source of what comes back from there.
#[test]
fn the_source_of_messages_from_a_contact_is_its_handle() {
    let _dog = watchdog("contact_source", 30);
    let port = fresh_port();
    let (mut b, mut a) = (Node::with(Config::default(), at_port(port)), Node::new());
    let (to_b, to_a) = (a.av.insert(&contact(port)), b.knows(&a));
    exchange(&mut a, &mut b, to_b, 100);
    assert_eq!(exchange(&mut b, &mut a, to_a, 100).src, to_b);
    // A receive that names the contact takes it.
    let (mut out, mut into) = ([3u8; 9], [0u8; 9]);
    a.recv(Want::tag(4).from(to_b), &mut into).expect("recv");
    b.send(Msg::new(to_a, 4), &mut out).expect("send");
    let got = run(&mut [&mut a, &mut b], &[1, 1]);
    assert_eq!((ok(&got[0][0]).src, into), (to_b, out));
}

#[test]
fn a_service_may_start_late() {
    let _dog = watchdog("late", 30);
    let port = fresh_port();
    let mut a = Node::new();
    let to_b = a.av.insert(&contact(port));
    let (mut one, mut two, mut long) = (pattern(50, 1), pattern(900, 2), pattern(200_000, 3));
    a.send(Msg::new(to_b, 1).with(OpFlags::INJECT_COMPLETE), &mut one).expect("send");
    a.send(Msg::new(to_b, 2), &mut two).expect("send");
    a.send(Msg::new(to_b, 3).with(OpFlags::DELIVERY_COMPLETE), &mut long).expect("send");
    let start = Instant::now();
    let mut got = Vec::new();
    while start.elapsed() < Duration::from_millis(60) {
        got.extend(a.poll());
    }
    assert_eq!(got.iter().map(|e| ok(e).ctx.0).collect::<Vec<_>>(), [1], "only the first level is complete without a peer");
    let mut b = Node::with(Config::default(), at_port(port));
    let (mut x, mut y, mut z) = (vec![0u8; 50], vec![0u8; 900], vec![0u8; 200_000]);
    for (tag, buf) in [(1, &mut x), (2, &mut y), (3, &mut z)] {
        b.recv(Want::tag(tag), buf).expect("recv");
    }
    let got = run(&mut [&mut a, &mut b], &[2, 3]);
    assert!(got.iter().flatten().all(Result::is_ok));
    assert!(x == one && y == two && z == long);
}

#[test]
fn a_restarted_service_is_found_and_its_old_name_is_not_taken_for_it() {
    let _dog = watchdog("restart", 30);
    let port = fresh_port();
    let mut a = Node::new();
    let to_service = a.av.insert(&contact(port));
    let mut buf = pattern(20, 1);
    for life in 0..3 {
        let mut b = Node::with(Config::default(), at_port(port));
        let old = b.name();
        // The end of the last one may still have to be heard of.
        let until = Deadline::new(10);
        loop {
            let mut into = [0u8; 20];
            b.recv(Want::tag(7), &mut into).expect("recv");
            match a.send(Msg::new(to_service, 7), &mut buf) {
                Ok(()) | Err(Error::PeerGone) => {}
                Err(e) => panic!("life {life}: {e}"),
            }
            let mut came = false;
            for _ in 0..200 {
                came |= b.poll().iter().any(Result::is_ok);
                a.poll();
            }
            if came {
                assert_eq!(&into[..], &buf[..]);
                break;
            }
            let _ = b.domain.cancel(b.ep, rustmx::UserCtx(7));
            b.poll();
            until.check(|| format!("life {life} is not reached"));
        }
        let ep = b.ep;
        b.domain.ep_close(ep).expect("close");
        // A new one listens there when somebody looks for the old one by its full name.
        let mut next = Node::with(Config::default(), at_port(port));
        let mut c = Node::new();
        let stale = c.av.insert(&old);
        let sent = c.send(Msg::new(stale, 1), &mut buf);
        assert_eq!(sent, Ok(()), "it left for whoever listens there");
        let until = Deadline::new(10);
        while c.send(Msg::new(stale, 1).inject(), &mut buf) != Err(Error::Refused) {
            c.poll();
            next.quiet(1);
            until.check(|| "the old name is not refused".into());
        }
        next.quiet(100);
        assert_eq!(next.stats().unexpected, 0, "a stranger's message");
    }
}

/// As [`a_restarted_service_is_found_and_its_old_name_is_not_taken_for_it`]: a delivery-complete send cannot be satisfied by the wrong one.
#[test]
fn a_stale_identity_fails_what_waits_for_it() {
    let _dog = watchdog("stale", 30);
    let port = fresh_port();
    let old = {
        let b = Node::with(Config::default(), at_port(port));
        b.name()
    };
    let (mut b, mut a) = (Node::with(Config::default(), at_port(port)), Node::new());
    let stale = a.av.insert(&old);
    let (mut buf, mut long, mut into) = ([1u8; 8], pattern(500_000, 1), [0u8; 8]);
    a.recv(Want::tag(2).from(stale), &mut into).expect("recv");
    a.send(Msg::new(stale, 1).with(OpFlags::DELIVERY_COMPLETE), &mut buf).expect("send");
    a.send(Msg::new(stale, 3), &mut long).expect("send");
    let got = run(&mut [&mut a, &mut b], &[3, 0]);
    for e in &got[0] {
        let e = e.expect_err("refused");
        assert_eq!((e.error, e.peer, e.detail), (Error::Refused, Some(old), number_of(std::process::id())), "{e:?}");
    }
    assert_eq!(a.send(Msg::new(stale, 1), &mut buf), Err(Error::Refused));
    assert_eq!(b.stats().unexpected, 0);
    // The right one is not touched by that.
    let right = a.knows(&b);
    exchange(&mut a, &mut b, right, 5000);
}

/// One endpoint, known by contact and by name: two ways to it, one source.
#[test]
fn an_alias_counts_as_the_endpoint_behind_it() {
    let _dog = watchdog("alias", 30);
    for name_first in [true, false] {
        let port = fresh_port();
        let (mut b, mut a) = (Node::with(Config::default(), at_port(port)), Node::new());
        let (by_name, by_contact) = (a.knows(&b), a.av.insert(&contact(port)));
        let from_a = b.knows(&a);
        let ways = if name_first { [by_name, by_contact] } else { [by_contact, by_name] };
        for i in 0..6 {
            assert_eq!(exchange(&mut a, &mut b, ways[i % 2], 100 << i).src, from_a, "name first: {name_first}, message {i}");
        }
        // Posted for the contact before anybody knew who that is, and for the name: either takes what comes.
        let mut into = [[0u8; 4]; 2];
        for (way, buf) in ways.iter().zip(&mut into) {
            a.recv(Want::tag(5).from(*way), buf).expect("recv");
        }
        for i in 0..2u8 {
            b.send(Msg::new(from_a, 5), &mut [i; 4]).expect("send");
            run(&mut [&mut a, &mut b], &[1, 1]);
        }
        assert_eq!(into, [[0; 4], [1; 4]]);
    }
}

/// Both ways are used before either has been answered.
#[test]
fn both_ways_to_an_endpoint_at_once() {
    let _dog = watchdog("both_ways", 30);
    for name_first in [true, false] {
        let port = fresh_port();
        let (mut b, mut a) = (Node::with(Config::default(), at_port(port)), Node::new());
        let mut ways = [a.av.insert(&contact(port)), a.knows(&b)];
        if name_first {
            ways.reverse();
        }
        let mut into = [[0u8; 4]; 2];
        for (i, buf) in into.iter_mut().enumerate() {
            b.recv(Want::tag(i as u64), buf).expect("recv");
        }
        for (i, way) in ways.into_iter().enumerate() {
            a.send(Msg::new(way, i as u64).with(OpFlags::DELIVERY_COMPLETE), &mut [i as u8 + 1; 4]).expect("send");
        }
        let got = run(&mut [&mut a, &mut b], &[2, 2]);
        assert!(got.iter().flatten().all(Result::is_ok), "name first: {name_first}: {got:?}");
        assert_eq!(into, [[1; 4], [2; 4]]);
    }
}

/// A receive that was posted for a contact, before first contact told who is there.
#[test]
fn a_receive_from_a_contact_that_turns_out_to_be_known() {
    let _dog = watchdog("rename", 30);
    let port = fresh_port();
    let (mut b, mut a) = (Node::with(Config::default(), at_port(port)), Node::new());
    let (by_contact, to_a) = (a.av.insert(&contact(port)), b.knows(&a));
    let mut into = [0u8; 6];
    a.recv(Want::tag(5).from(by_contact), &mut into).expect("recv");
    // B calls A by its own: A knows the endpoint, and not yet that the contact is the same.
    b.send(Msg::new(to_a, 6), &mut [1u8; 6]).expect("send");
    b.send(Msg::new(to_a, 5), &mut [2u8; 6]).expect("send");
    run(&mut [&mut a, &mut b], &[0, 2]);
    for _ in 0..200 {
        a.poll();
    }
    // First contact tells; the messages that are there already must not be missed.
    let mut greeting = [3u8; 6];
    a.send(Msg::new(by_contact, 1), &mut greeting).expect("send");
    let until = Deadline::new(5);
    let mut done = false;
    while !done {
        done = a.poll().iter().any(|e| ok(e).ctx.0 == 5);
        b.poll();
        until.check(|| "a posted receive and the message for it have not met".into());
    }
    assert_eq!(into, [2; 6]);
}

#[test]
fn unreachable_and_unknown_addresses_fail_at_once() {
    if not_by_network("an endpoint without shared memory and without TCP reaches nobody") {
        return;
    }
    let _dog = watchdog("unreachable", 30);
    // Nothing is sent anywhere.
    let mut a = Node::with(Config { tcp: 0, ..Config::default() }, attr());
    let (mut buf, until) = ([1u8; 4], Deadline::new(5));
    let other_host = Name::new(77, 0, rustmx::sys::host::id() ^ 0x10, None);
    let far = a.av.insert(&other_host);
    assert_eq!(a.send(Msg::new(far, 1), &mut buf), Err(Error::Unreachable));
    assert_eq!(a.send(Msg::new(far, 1), &mut buf), Err(Error::Unreachable), "again");
    assert_eq!(a.recv(Want::tag(1).from(far), &mut buf), Err(Error::Unreachable));
    let far_contact = a.av.insert(&Name::contact("192.0.2.1".parse().expect("ip"), 0, 7000));
    assert_eq!(a.send(Msg::new(far_contact, 1), &mut buf), Err(Error::Unreachable));
    // An endpoint of this host that has gone.
    let gone = { a.av.insert(&Node::new().name()) };
    assert_eq!(a.send(Msg::new(gone, 1), &mut buf), Err(Error::Refused));
    for nobody in [Addr(99), Addr::UNSPEC, Addr(u64::MAX - 1)] {
        assert_eq!(a.send(Msg::new(nobody, 1), &mut buf), Err(Error::UnknownAddress));
    }
    assert_eq!(a.recv(Want::tag(1).from(Addr(99)), &mut buf), Err(Error::UnknownAddress));
    a.av.remove(gone).expect("remove");
    assert_eq!(a.send(Msg::new(gone, 1), &mut buf), Err(Error::UnknownAddress));
    a.quiet(100);
    until.check(|| "not at once".into());
}

#[test]
fn first_contact_times_out_and_says_with_whom() {
    let _dog = watchdog("timeout", 30);
    let now = Arc::new(AtomicU64::new(1));
    let config = Config { connect_timeout: 500, ..Config::default() };
    let mut a = Node::open(config, attr(), Clock::Manual(now.clone()));
    let (name, mut buf, mut into) = (contact(fresh_port()), pattern(50_000, 1), [0u8; 4]);
    let nobody = a.av.insert(&name);
    a.recv(Want::tag(9).from(nobody), &mut into).expect("recv");
    a.send(Msg::new(nobody, 1), &mut buf[..10]).expect("inline");
    a.send(Msg::new(nobody, 2).with(OpFlags::DELIVERY_COMPLETE), &mut buf[..1000]).expect("eager");
    a.send(Msg::new(nobody, 3), &mut buf).expect("stream");
    a.send(Msg::new(nobody, 4).inject(), &mut [1, 2]).expect("inject");
    a.send(Msg::new(nobody, 5).with(OpFlags::INJECT_COMPLETE), &mut [1, 2]).expect("complete at once");
    assert_eq!(a.poll().iter().map(|e| ok(e).ctx.0).collect::<Vec<_>>(), [5]);
    // 490 ms are not too many.
    for _ in 0..49 {
        now.fetch_add(10_000_000, Ordering::Relaxed);
        a.quiet(20);
    }
    let mut got = Vec::new();
    for _ in 0..20 {
        now.fetch_add(10_000_000, Ordering::Relaxed);
        for _ in 0..20 {
            got.extend(a.poll());
        }
    }
    let mut failed: Vec<usize> = got.iter().map(|e| e.expect_err("nobody is there").c.ctx.0).collect();
    failed.sort_unstable();
    assert_eq!(failed, [1, 2, 3, 9]);
    for e in &got {
        let e = e.expect_err("nobody is there");
        assert_eq!((e.error, e.peer), (Error::TimedOut, Some(name)));
        assert!(e.describe().contains(&name.to_string()), "{}", e.describe());
    }
    // The service may still come: a new operation tries again.
    a.send(Msg::new(nobody, 6), &mut buf[..10]).expect("a new attempt");
    let mut b = Node::with(Config::default(), at_port(name.port()));
    b.recv(Want::tag(6), &mut into).expect("recv");
    let mut done = (false, false);
    let until = Deadline::new(5);
    while done != (true, true) {
        now.fetch_add(1_000_000, Ordering::Relaxed);
        done.0 |= all_ok(&a.poll()) > 0;
        // Ten bytes into four.
        done.1 |= b.poll().iter().any(|e| e.is_err_and(|e| e.error == Error::Truncated));
        until.check(|| format!("{done:?}"));
    }
}

/// Close hands over what was accepted: also what needs the peer's help, and what waits for a service that is not there yet.
#[test]
fn close_delivers_what_was_accepted() {
    let _dog = watchdog("close", 40);
    for late in [false, true] {
        let port = fresh_port();
        let open = move || Node::with(Config::default(), at_port(port));
        let mut early = (!late).then(open);
        let mut a = Node::new();
        let to_b = a.av.insert(&contact(port));
        let sizes = [3_000_000usize, 10, 200, 100_000, 0];
        let mut bufs: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, n)| pattern(*n, i)).collect();
        for (i, buf) in bufs.iter_mut().enumerate() {
            a.send(Msg::new(to_b, i as u64), buf).expect("room for five");
        }
        // A and its buffers go to another thread, which only closes.
        let closing = std::thread::spawn(move || {
            let ep = a.ep;
            a.domain.ep_close(ep).expect("close");
            bufs
        });
        std::thread::sleep(Duration::from_millis(30));
        let mut b = early.take().unwrap_or_else(open);
        let mut into: Vec<Vec<u8>> = sizes.iter().map(|n| vec![0u8; *n]).collect();
        for (i, buf) in into.iter_mut().enumerate().rev() {
            b.recv(Want::tag(i as u64), buf).expect("recv");
        }
        let got = run(&mut [&mut b], &[5]);
        assert!(got[0].iter().all(Result::is_ok), "late {late}: {got:?}");
        let bufs = closing.join().expect("close");
        assert!(into == bufs, "late {late}");
    }
}

/// Small messages are in the peer's hands when close returns: it need not have looked at them yet, nor at the connection.
#[test]
fn messages_of_an_endpoint_that_closed_arrive() {
    let _dog = watchdog("closed_before", 30);
    let mut b = Node::new();
    for round in 0..3 {
        {
            let mut a = Node::new();
            let to_b = a.knows(&b);
            for i in 0..20u64 {
                a.send(Msg::new(to_b, i), &mut pattern(i as usize * 11, round)).expect("send");
            }
        }
        for i in 0..20u64 {
            let mut into = vec![0u8; i as usize * 11];
            b.recv(Want::tag(i), &mut into).expect("recv");
            let got = run(&mut [&mut b], &[1]);
            assert!(got[0][0].is_ok(), "round {round}, message {i}: {got:?}");
            assert_eq!(into, pattern(i as usize * 11, round));
        }
    }
}

/// Close does not wait for ever for somebody who does not read.
#[test]
fn close_gives_up_in_time() {
    let _dog = watchdog("close_gives_up", 30);
    let b = Node::new();
    let mut a = Node::with(Config { close_timeout: 100, ..Config::default() }, attr());
    let to_b = a.knows(&b);
    let mut buf = pattern(1_000_000, 1);
    a.send(Msg::new(to_b, 1), &mut buf).expect("send");
    let (until, ep) = (Deadline::new(5), a.ep);
    a.domain.ep_close(ep).expect("close");
    until.check(|| "it waits for ever".into());
}

#[test]
fn an_endpoint_that_never_sends_costs_three_descriptors() {
    process::alone("an_endpoint_that_never_sends_costs_three_descriptors", || {
        let _dog = watchdog("descriptors", 30);
        let shm = || {
            std::fs::read_dir("/dev/shm")
                .map_or(0, |d| d.filter_map(Result::ok).filter(|e| e.file_name().to_string_lossy().contains("rustmx")).count())
        };
        let threads = || std::fs::read_dir("/proc/self/task").expect("tasks").count();
        // What watches memory that is lent stays with the process.
        let (mut a, mut b) = (Node::new(), Node::new());
        a.av.insert(&b.name());
        b.av.insert(&a.name());
        exchange(&mut a, &mut b, Addr(0), 100_000);
        drop((a, b));
        let before = (footprint(), threads());
        let inherited: Vec<_> =
            std::fs::read_dir("/proc/self/fd").expect("fds").filter_map(Result::ok).map(|f| f.file_name()).collect();
        let mut many: Vec<Node> = (0..10).map(|_| Node::new()).collect();
        let names: Vec<Name> = many.iter().map(Node::name).collect();
        for node in &mut many {
            for name in &names {
                node.av.insert(name);
            }
            node.quiet(50);
        }
        let idle = footprint();
        // All of them together have a port, and a poller for who calls there.
        assert_eq!((idle.fds, idle.maps, threads()), (before.0.fds + 30 + 2, before.0.maps, before.1));
        // Talking costs a connection each, a segment for each direction, and a bell.
        let (a, b) = many.split_at_mut(1);
        for (i, b) in b.iter_mut().take(3).enumerate() {
            exchange(&mut a[0], b, Addr(i as u64 + 1), 100_000);
        }
        for _ in 0..5000 {
            a[0].poll();
            b[0].poll();
        }
        assert!(footprint().fds <= idle.fds + 4 * 3 + 4, "{:?}", footprint());
        assert_eq!(shm(), 0);
        for fd in std::fs::read_dir("/proc/self/fd").expect("fds").filter_map(Result::ok) {
            let n: i32 = fd.file_name().to_string_lossy().parse().expect("number");
            if inherited.contains(&fd.file_name()) {
                continue;
            }
            let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{n}")) else { continue };
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).expect("flags").trim();
            let flags = u32::from_str_radix(flags, 8).expect("octal");
            assert!(flags & 0o2_000_000 != 0, "descriptor {n} survives exec: {info}");
        }
        drop(many);
        assert_eq!(footprint(), before.0, "everything is given back");
        assert_eq!(shm(), 0);
    });
}

#[test]
fn ten_thousand_names() {
    process::alone("ten_thousand_names", || {
        let _dog = watchdog("names", 30);
        let names: Vec<Name> = (1..=10_000).map(|i| Name::new(i, i as u32, rustmx::sys::host::id(), None)).collect();
        let resident = || -> i64 {
            let status = std::fs::read_to_string("/proc/self/status").expect("status");
            let line = status.lines().find_map(|l| l.strip_prefix("VmData:")).expect("VmData");
            line.trim().trim_end_matches(" kB").parse::<i64>().expect("number") * 1024
        };
        let av = Arc::new(AddressVector::new());
        let (before, start) = (resident(), worked());
        for (i, name) in names.iter().enumerate() {
            assert_eq!(av.insert(name), Addr(i as u64));
        }
        let (grown, took) = (resident() - before, worked() - start);
        assert!(grown <= 10_000 * 100, "{grown} bytes for 10 000 names");
        assert!(took < Duration::from_millis(100), "{took:?} for 10 000 names; 10 ms are promised");
        // An endpoint that has them all, and talks to two.
        let mut domain = Domain::new(Arc::new(by_network(Config::default())), Log::silent());
        let (ep, cq) = (domain.ep_open(attr()).expect("ep"), domain.cq_open());
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
        domain.ep_enable(ep).expect("enable");
        let mut a = Node { domain, ep, cq, av };
        let mut b = Node::new();
        let to_b = a.knows(&b);
        assert_eq!((to_b, a.av.len()), (Addr(10_000), 10_001));
        exchange(&mut a, &mut b, to_b, 1000);
        assert_eq!(a.av.lookup(Addr(9_999)).expect("there"), names[9_999]);
    });
}

/// Two domains, several endpoints in each, one queue for all of a domain: completions are those of the right operation.
#[test]
fn endpoints_of_one_domain_talk_to_each_other() {
    let _dog = watchdog("one_domain", 30);
    let mut domain = Domain::new(Arc::new(by_network(Config::default())), Log::silent());
    let cq = domain.cq_open();
    let av = Arc::new(AddressVector::new());
    let eps: Vec<_> = (0..3)
        .map(|_| {
            let ep = domain.ep_open(attr()).expect("ep");
            domain.ep_bind_av(ep, av.clone()).expect("av");
            domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
            domain.ep_enable(ep).expect("enable");
            av.insert(&domain.ep_name(ep).expect("name"));
            ep
        })
        .collect();
    let mut node = Node { domain, ep: eps[0], cq, av };
    let mut bufs: Vec<(Vec<u8>, Vec<u8>)> = (0..9).map(|i| (pattern(30_000, i), vec![0u8; 30_000])).collect();
    for (i, (out, into)) in bufs.iter_mut().enumerate() {
        node.ep = eps[i % 3];
        node.recv(Want::tag(i as u64).from(Addr(i as u64 / 3)).ctx(100 + i), into).expect("recv");
        node.ep = eps[i / 3];
        node.send(Msg::new(Addr(i as u64 % 3), i as u64), out).expect("send");
    }
    let got = run(&mut [&mut node], &[18]);
    assert!(got[0].iter().all(Result::is_ok));
    assert!(bufs.iter().all(|(out, into)| out == into));
    assert_eq!(node.domain.cq_close(cq), Err(Error::Busy));
}
