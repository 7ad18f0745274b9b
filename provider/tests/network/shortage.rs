//! Whatever there is none of any more is named, with what to do, also where the log is not shown: by who calls, by who is called, and by who opens an endpoint.
//! Of most things this machine has enough; there the kernel is made to say that it has none.

use crate::common::process::{alone, copy, role, say};
use crate::common::{Deadline, Msg, watchdog};
use crate::filter::refuse;
use crate::places::{fails, free_ports};
use crate::scene::{network, quiet};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustmx::{Config, Error, OpFlags};
use std::sync::mpsc::channel;

/// Who lacks something, what he asks the kernel for in vain and why, and what helps.
type Case = (&'static str, libc::c_long, Errno, &'static str);

const CASES: [Case; 16] = [
    ("calls by network", libc::SYS_socket, Errno::NFILE, "fs.file-max"),
    ("calls by network", libc::SYS_socket, Errno::MFILE, "ulimit -Hn"),
    ("calls by network", libc::SYS_connect, Errno::NOBUFS, "net.ipv4.tcp_mem"),
    ("calls by network", libc::SYS_epoll_ctl, Errno::NOSPC, "fs.epoll.max_user_watches"),
    ("is-called by network", libc::SYS_accept4, Errno::NOMEM, "memory.max"),
    ("is-called by network", libc::SYS_epoll_ctl, Errno::NOSPC, "fs.epoll.max_user_watches"),
    ("calls by memory", libc::SYS_socket, Errno::NFILE, "fs.file-max"),
    ("calls by memory", libc::SYS_memfd_create, Errno::MFILE, "ulimit -Hn"),
    ("calls by memory", libc::SYS_memfd_create, Errno::PERM, "seccomp"),
    ("is-called by memory", libc::SYS_memfd_create, Errno::NOSYS, "seccomp"),
    ("calls by memory", libc::SYS_fallocate, Errno::NOSPC, "memory.max"),
    ("is-called by memory", libc::SYS_accept4, Errno::MFILE, "ulimit -Hn"),
    ("is-called by memory", libc::SYS_epoll_ctl, Errno::NOSPC, "fs.epoll.max_user_watches"),
    ("opens by memory", libc::SYS_socket, Errno::NOBUFS, "memory.max"),
    // Not that all ports of the range are in use. (Of the calls that are made to listen this is the only one that is made for the network only.)
    ("opens by ports", libc::SYS_setsockopt, Errno::NOMEM, "memory.max"),
    ("opens by ports", libc::SYS_setsockopt, Errno::ACCESS, "Permission denied"),
];

fn config(way: &str) -> Config {
    match way {
        "network" => network(),
        "ports" => Config { port_range: free_ports(2), ..network() },
        _ => Config { tcp: 0, ..Config::default() },
    }
}

/// Not a test of its own: a process in which one of these cases is.
#[test]
fn role_of_who_lacks_something() {
    let Some(words) = role() else { return };
    let (who, call, why, _) = CASES[words[0].parse::<usize>().expect("a case")];
    let (who, way) = who.split_once(" by ").expect("who, and which way");
    let said = match who {
        "opens" => {
            let config = config(way);
            refuse(&[(call, why)]);
            fails(config).1
        }
        _ => between_two(who == "calls", way, call, why),
    };
    say(&said.join(" / "));
}

/// What an endpoint says that calls another one of this process, or is called by it, and whose thread is refused.
fn between_two(calls: bool, way: &str, call: libc::c_long, why: Errno) -> Vec<String> {
    let (mut other, ours) = (quiet(config(way)).0, config(way));
    let ((tx, names), there) = (channel(), other.name());
    let lacks = std::thread::spawn(move || {
        let (mut node, said) = quiet(ours);
        tx.send(node.name()).expect("somebody listens");
        refuse(&[(call, why)]);
        if calls {
            let to = node.av.insert(&there);
            let _ = node.send(Msg::new(to, 1), &mut [1; 8]);
        }
        let until = Deadline::new(20);
        while said.all().is_empty() {
            let _ = node.poll();
            until.check(|| "it says nothing".into());
        }
        // Again and again it is not said.
        (0..100).for_each(|_| drop(node.poll()));
        said.all()
    });
    let name = names.recv().expect("a name");
    if !calls {
        let to = other.av.insert(&name);
        let _ = other.send(Msg::new(to, 1), &mut [1; 8]);
    }
    while !lacks.is_finished() {
        let _ = other.poll();
        std::thread::yield_now();
    }
    lacks.join().expect("it says something")
}

#[test]
fn what_is_lacking_is_named_with_what_helps() {
    let _dog = watchdog("lacking", 300);
    let all = ["seccomp", "ulimit -Hn", "fs.file-max", "memory.max", "fs.epoll.max_user_watches", "all of them are in use"];
    for (i, (who, .., help)) in CASES.iter().enumerate() {
        let said = copy("shortage::role_of_who_lacks_something", &i.to_string()).hear();
        assert!(!said.contains(" / ") && said.contains(help), "{i}: {who}: {said}");
        assert!(
            all.iter().filter(|other| said.contains(**other)).all(|other| *other == *help || *help == "net.ipv4.tcp_mem"),
            "{i}: {who}: {said}"
        );
    }
}

/// Shared memory counts as a file: who makes one that is too long is killed by a signal, if nobody looks before.
#[test]
fn files_may_not_be_as_long_as_a_ring() {
    alone("shortage::files_may_not_be_as_long_as_a_ring", || {
        let _dog = watchdog("long files", 60);
        let ((mut node, said), (peer, _)) = (quiet(config("memory")), quiet(config("memory")));
        let to = node.knows(&peer);
        let most = 100 << 10;
        setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum: Some(most) }).expect("a lower limit");
        assert_eq!(node.send(Msg::new(to, 1), &mut [1; 8]), Err(Error::NoResources));
        let said = said.all();
        assert!(said.len() == 1 && said[0].contains("ulimit -f") && said[0].contains("(102400 bytes)"), "{said:?}");
    });
}

/// The kernel drops what does not fit.
#[test]
fn memory_that_is_handed_over_needs_descriptors() {
    alone("shortage::memory_that_is_handed_over_needs_descriptors", || {
        let _dog = watchdog("handed", 60);
        let ((mut hub, said), (mut peer, _)) = (quiet(config("memory")), quiet(config("memory")));
        let to = peer.knows(&hub);
        peer.send(Msg::new(to, 1).with(OpFlags::DELIVERY_COMPLETE), &mut [1; 8]).expect("send");
        // The kernel gives the lowest number that is free: one for the connection, and one of the two that come with it.
        let most = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).expect("one more").as_raw_fd() as u64 + 2;
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).expect("a lower limit");
        let (mut failed, until) = (Vec::new(), Deadline::new(20));
        while failed.is_empty() || said.all().is_empty() {
            let _ = hub.poll();
            failed.extend(peer.poll().into_iter().filter_map(Result::err).map(|e| e.error));
            until.check(|| format!("{failed:?}, {:?}", said.all()));
        }
        assert_eq!(failed, [Error::NoResources]);
        let said = said.all();
        assert!(said[0].contains("memory was not taken") && said[0].contains(&format!("({most};")), "{said:?}");
    });
}
