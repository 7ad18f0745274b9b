//! What is lent, how, and until when.

use super::common::process::alone;
use super::common::{Deadline, Ear, Msg, Node, Want, acquaint, all_ok, attr, pattern, run, seg, watchdog};
use super::space::{self, FILE_PAGES, PAGE, Space};
use super::{bytes, forced, message, node, pair};
use rustix::fd::OwnedFd;
use rustix::mm::{Advice, ProtFlags};
use rustmx::cache::Oversight;
use rustmx::config::force::Forced;
use rustmx::mem::shared::Backing;
use rustmx::sys::memfd::{self, Mapping};
use rustmx::{Config, Domain, Log, Telling};
use std::sync::Arc;

const N: usize = 100_000;
/// More than the receiver copies before its turn is over.
const LONG: usize = 5_000_003;

/// A sealed file, mapped somewhere; `exclusive`: nobody else may write it.
fn long(exclusive: bool) -> (OwnedFd, Arc<Mapping>, usize) {
    let (fd, mapping) = memfd::create("long", LONG.next_multiple_of(PAGE), exclusive).expect("memfd");
    let here = mapping.base().as_ptr() as usize;
    (fd, mapping, here)
}

/// Maps part of a file at a page of the space.
pub fn at(page: usize, pages: usize, file: (&OwnedFd, usize)) -> usize {
    assert!(space::map(Space::address(page), pages, Some(file), false));
    Space::address(page)
}

/// How many messages the node tells of that were not lent for a reason.
#[track_caller]
fn told(node: &Node, why: &str) -> u64 {
    let told = node.domain.ep_history(node.ep, Telling::Used).expect("told");
    let found: Vec<&str> = told.lines().filter(|line| line.contains(" by mapped: ") && line.contains(why)).collect();
    assert!(found.len() <= 1, "{told}");
    let count = |line: &&str| line.split(" by mapped: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    found.first().map_or(0, |line| count(line).unwrap_or_else(|| panic!("no number in {line}")))
}

/// Sends until a message went by mapped memory: news of memory that was unmapped before may still be coming in.
pub fn until_mapped(a: &mut Node, b: &mut Node, from: usize, into: &mut [u8]) {
    let (before, until) = (a.stats().mapped, Deadline::new(20));
    for seed in 0.. {
        message(a, b, from, into, seed);
        if a.stats().mapped > before {
            return;
        }
        until.check(|| format!("never mapped: {:?}", a.stats()));
    }
}

#[test]
fn part_of_a_file_wherever_it_is() {
    let _dog = watchdog("part", 180);
    alone("plain::part_of_a_file_wherever_it_is", || {
        let (mut a, mut b) = pair(forced(), forced());
        let mut into = vec![0; N];
        let mut page = 0;
        for (from, pages) in [(0, FILE_PAGES), (3, 100), (200, 56)] {
            let fd = space::memfd(true);
            let (here, before) = (at(page, pages, (&fd, from)), a.stats());
            for seed in 0..6 {
                // Of one page, so that it is one buffer that comes again.
                message(&mut a, &mut b, here + 5 * PAGE + 64 * seed, &mut into, seed);
            }
            // Never the first time.
            assert_eq!(a.stats().mapped - before.mapped, 5, "{from} {pages}");
            page += pages;
        }
        assert_eq!((b.stats().fetched, a.stats().stored), (15 * N as u64, 0), "what it goes to is not lent");
        // Memory that is lent at two places at once, and messages within and across.
        let fd = space::memfd(true);
        let (one, two) = (at(page, 64, (&fd, 0)), at(page + 64, 64, (&fd, 128)));
        for round in 0..8 {
            message(&mut a, &mut b, [one, two][round % 2], &mut into, round);
        }
        let before = a.stats().mapped;
        message(&mut a, &mut b, one, &mut into, 1);
        message(&mut a, &mut b, two - N / 2, &mut into, 2);
        assert_eq!(a.stats().mapped, before + 1, "what lies in two mappings is not lent");
    });
}

/// From such memory into such memory: then both copy.
#[test]
fn into_mappings() {
    let _dog = watchdog("into", 180);
    alone("plain::into_mappings", || {
        let (mut a, mut b) = pair(forced(), forced());
        let [(_one, _my_one, from), (_two, _my_two, into)] = [long(false), long(false)];
        for round in 0..6 {
            message(&mut a, &mut b, from, bytes(into, LONG), round);
        }
        assert_eq!((a.stats().mapped, a.stats().stored + b.stats().fetched), (5, 5 * LONG as u64), "every byte once");
        assert!(a.stats().stored > 0, "{:?} {:?}", a.stats(), b.stats());
    });
}

/// Who does not want to write what is lent to him reads it: the one has nothing to do with the other.
#[test]
fn who_does_not_write_still_reads() {
    let _dog = watchdog("still_reads", 180);
    alone("plain::who_does_not_write_still_reads", || {
        let (mut a, mut b) = pair(Config { lend: 1, ..forced() }, forced());
        let [(_one, _my_one, from), (_two, _my_two, into)] = [long(false), long(false)];
        (0..4).for_each(|round| message(&mut a, &mut b, from, bytes(into, LONG), round));
        assert_eq!((a.stats().mapped, a.stats().stored), (3, 0));
        (0..4).for_each(|round| message(&mut b, &mut a, into, bytes(from, LONG), round));
        assert!(b.stats().mapped >= 3, "{:?}", b.stats());
    });
}

#[test]
fn in_pieces() {
    let _dog = watchdog("pieces", 180);
    alone("plain::in_pieces", || {
        let (mut a, mut b) = pair(forced(), forced());
        let to_b = a.knows(&b);
        let fd = space::memfd(true);
        let here = at(0, 100, (&fd, 7));
        let mut elsewhere = [4u8; 5000];
        for round in 0..4 {
            let mut into = vec![0; 65_000];
            bytes(here, 100 * PAGE).copy_from_slice(&pattern(100 * PAGE, round));
            let places = [(300_000, 20_000), (100, 40_000), (200_000, 5_000)];
            let iov: Vec<_> = places.iter().map(|(at, n)| seg(bytes(here + at, *n))).collect();
            b.recv(Want::tag(5), &mut into).expect("recv");
            a.sendv(Msg::new(to_b, 5), &iov, true).expect("send");
            let got = run(&mut [&mut a, &mut b], &[1, 1]);
            assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
            let all = pattern(100 * PAGE, round);
            let right: Vec<u8> = places.iter().flat_map(|(at, n)| all[*at..at + n].to_vec()).collect();
            assert!(into == right, "round {round}");
        }
        assert_eq!(a.stats().mapped, 3);
        // Not what lies only in part there.
        let mut into = vec![0; 25_000];
        b.recv(Want::tag(5), &mut into).expect("recv");
        a.sendv(Msg::new(to_b, 5), &[seg(bytes(here + 300_000, 20_000)), seg(&mut elsewhere)], true).expect("send");
        run(&mut [&mut a, &mut b], &[1, 1]);
        assert!(into[20_000..] == elsewhere && a.stats().mapped == 3);
    });
}

#[test]
fn what_seals_and_protection_say() {
    let _dog = watchdog("seals", 180);
    alone("plain::what_seals_and_protection_say", || {
        let mut into = vec![0; N];
        // Who could get shorter is lent to nobody.
        let (mut a, mut b) = pair(forced(), forced());
        let loose = space::memfd(false);
        let here = at(0, 64, (&loose, 0));
        (0..20).for_each(|seed| message(&mut a, &mut b, here, &mut into, seed));
        assert_eq!(a.stats().mapped, 0);
        assert_eq!(told(&a, "not sealed against shrinking (F_SEAL_SHRINK)"), 19, "all but the first, which was not looked at");
        // Nor private memory.
        let mut private = vec![0u8; N];
        (0..20).for_each(|seed| message(&mut a, &mut b, private.as_mut_ptr() as usize, &mut into, seed));
        assert_eq!(a.stats().mapped, 0);
        assert_eq!((told(&a, "it is private memory"), told(&a, "was not known yet")), (19, 2));
        // To itself a node lends nothing, whatever it knows of the memory, and that is no news.
        let to_self = a.knows(&a);
        for _ in 0..20 {
            a.recv(Want::any(), &mut into).expect("recv");
            a.send(Msg::new(to_self, 1), &mut private).expect("send");
            a.complete(2);
        }
        assert_eq!((told(&a, "it is private memory"), told(&a, "was not known yet")), (19, 2));
        // What nobody else may write is read, and not written.
        let [(_one, _my_one, here), (_two, _my_two, there)] = [long(true), long(true)];
        (0..6).for_each(|seed| message(&mut a, &mut b, here, bytes(there, LONG), seed));
        assert_eq!((a.stats().mapped, a.stats().stored), (5, 0));
        // What the program itself may only read is lent to be read, too. (What it sends was there before.)
        let [(_three, _my_three, here), (_four, _my_four, there)] = [long(false), long(false)];
        bytes(here, LONG).copy_from_slice(&pattern(LONG, 3));
        protect(here, LONG.div_ceil(PAGE), ProtFlags::READ);
        let to_b = a.knows(&b);
        for _ in 0..6 {
            bytes(there, LONG).fill(0xee);
            b.recv(Want::tag(5), bytes(there, LONG)).expect("recv");
            a.send(Msg::new(to_b, 5), bytes(here, LONG)).expect("send");
            run(&mut [&mut a, &mut b], &[1, 1]);
            assert!(bytes(there, LONG) == pattern(LONG, 3));
        }
        assert!(a.stats().mapped == 10 && a.stats().stored > 0, "what it goes to may be written");
    });
}

/// What one peer may be lent at a time is bounded, and who cannot map anything is lent nothing: told, with how many messages that were.
#[test]
fn who_is_lent_no_more_is_told() {
    let _dog = watchdog("no_more", 180);
    alone("plain::who_is_lent_no_more_is_told", || {
        let (mut a, mut b) = pair(forced(), forced());
        let mut into = vec![0; PAGE];
        let most = rustmx::wire::loan::MOST;
        let files: Vec<OwnedFd> = (0..most + 1).map(|_| space::memfd(true)).collect();
        let places: Vec<usize> = (0..most + 1).map(|i| at(2 * i, 1, (&files[i], 0))).collect();
        places[..most].iter().for_each(|here| until_mapped(&mut a, &mut b, *here, &mut into));
        let before = a.stats().mapped;
        (0..5).for_each(|seed| message(&mut a, &mut b, places[most], &mut into, seed));
        assert_eq!(a.stats().mapped, before);
        assert!(told(&a, "as many mappings as one peer may be lent (64)") >= 4, "all but the first");
        let (mut a, mut b) = pair(forced(), Config { lend: 2, ..forced() });
        (0..5).for_each(|seed| message(&mut a, &mut b, places[0], &mut into, seed));
        let all = told(&a, "the peer could not map what was lent to it");
        assert!(a.stats().mapped <= 1 && all >= 3, "{all}, {:?}", a.stats());
    });
}

#[test]
fn without_userfaultfd_nothing_is_lent_and_that_is_told() {
    let _dog = watchdog("unwatched", 180);
    alone("plain::without_userfaultfd_nothing_is_lent_and_that_is_told", || {
        super::filter::without_userfaultfd();
        let (mut a, mut b) = pair(forced(), forced());
        let (_fd, _mapping, from) = long(false);
        let mut into = vec![0; N];
        (0..4).for_each(|seed| message(&mut a, &mut b, from, &mut into, seed));
        assert_eq!((a.stats().mapped, told(&a, "userfaultfd refused: ")), (0, 4));
        let all = a.domain.ep_history(a.ep, Telling::All).expect("told");
        assert!(
            all.contains("lends: nothing is lent: librustmx_heap.so is not preloaded, and of other memory userfaultfd refused"),
            "{all}"
        );
    });
}

/// Who forces it and forgot the heap hears so once, however many endpoints the process opens; and who did not force it hears nothing.
#[test]
fn what_cannot_be_lent_is_told_at_the_start() {
    let _dog = watchdog("told at the start", 60);
    let open = |config: Config| {
        let ear = Arc::new(Ear::default());
        let two = [(); 2].map(|()| Node::enabled(Domain::new(Arc::new(config.clone()), Log::new(ear.clone())), attr()));
        drop(two);
        ear.heard()
    };
    let part = |list: &str| Config { protocol: Forced::parse(list).0, ..Config::default() };
    alone("plain::what_cannot_be_lent_is_told_at_the_start", || {
        for quiet in
            [Config::default(), part("stream"), Config { lend: 2, ..part("mapped") }, Config { shm: 0, ..part("mapped") }]
        {
            assert_eq!(open(quiet), Vec::<String>::new());
        }
        super::filter::without_userfaultfd();
        assert_eq!(
            open(part("mapped:8k-40k")),
            [format!(
                "FI_RUSTMX_PROTOCOL=mapped:8k-40k: no message of this process goes by mapped, they go by eager, stream: \
                 librustmx_heap.so is not preloaded, and of other memory {}",
                rustmx::cache::own::unwatched().expect("refused")
            )]
        );
    });
}

#[test]
fn what_of_all_memory_can_be_lent_is_told_at_the_start() {
    let _dog = watchdog("told at the start", 60);
    alone("plain::what_of_all_memory_can_be_lent_is_told_at_the_start", || {
        let ear = Arc::new(Ear::default());
        let node = || Node::enabled(Domain::new(Arc::new(forced()), Log::new(ear.clone())), attr());
        let _both = [node(), node()];
        let [said] = &ear.heard()[..] else { panic!("{:?}", ear.heard()) };
        assert!(said.contains("only messages in sealed memfds that the program maps go by mapped, all others by "), "{said}");
        assert!(said.ends_with("librustmx_heap.so is not preloaded"), "{said}");
    });
}

#[expect(unsafe_code, reason = "mprotect(2)")]
fn protect(address: usize, pages: usize, may: ProtFlags) {
    let may = rustix::mm::MprotectFlags::from_bits_retain(may.bits());
    // SAFETY: memory that only this test knows.
    unsafe { rustix::mm::mprotect(address as *mut _, pages * PAGE, may) }.expect("mprotect");
}

/// Mappings of the tests' files in this process: our own, and those of the peer in it.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("maps").matches("/memfd:torture").count()
}

/// What is unmapped is let go of by the peer, so there is no end to what can be lent in turn; and neither keeps the memory.
#[test]
fn what_is_unmapped_is_recalled() {
    let _dog = watchdog("recalled", 180);
    alone("plain::what_is_unmapped_is_recalled", || {
        let (mut a, mut b) = pair(forced(), forced());
        let (mut into, mut most) = (vec![0; N], 0);
        for _ in 0..3 * rustmx::wire::loan::MOST {
            let fd = space::memfd(true);
            let here = at(0, 64, (&fd, 3));
            until_mapped(&mut a, &mut b, here, &mut into);
            most = most.max(mappings());
            space::unmap(here, 64);
        }
        assert!(most < 20, "{most} mappings at a time");
        let until = Deadline::new(10);
        while mappings() > 0 {
            a.quiet(1);
            b.quiet(1);
            until.check(|| format!("{} mappings are left", mappings()));
        }
        let open = std::fs::read_dir("/proc/self/fd").expect("fd").flatten();
        let left = open.filter_map(|e| std::fs::read_link(e.path()).ok()).filter(|to| to.to_string_lossy().contains("torture"));
        assert_eq!(left.count(), 0, "descriptors keep memory");
    });
}

/// Of what peers lend no more is mapped than may be: what was not used for longest is given up, and mapped again when a message names it.
#[test]
fn what_is_not_used_is_given_up_and_attached_again() {
    let _dog = watchdog("given_up", 180);
    alone("plain::what_is_not_used_is_given_up_and_attached_again", || {
        let few = Config { cache_count: 2, ..forced() };
        let (mut a, mut b) = pair(forced(), few);
        let mut c = node(forced(), Oversight::Tireless);
        acquaint(&mut c, &mut b);
        let files: Vec<OwnedFd> = (0..5).map(|_| space::memfd(true)).collect();
        let places: Vec<usize> = files.iter().enumerate().map(|(i, fd)| at(40 * i, 30, (fd, 0))).collect();
        let mut into = vec![0; N];
        // Two peers that lend: the budget is for both.
        let turn = |n: usize| if n % 5 < 3 { 0 } else { 1 };
        for (n, here) in places.iter().enumerate() {
            until_mapped([&mut a, &mut c][turn(n)], &mut b, *here, &mut into);
        }
        assert_eq!((b.stats().evicted, b.stats().reattached), (3, 0));
        assert_eq!(mappings(), 5 + 5 + 2, "ours, a page of each, and two");
        for (n, here) in places.iter().cycle().take(50).enumerate() {
            let before = [a.stats().mapped, c.stats().mapped];
            message([&mut a, &mut c][turn(n)], &mut b, *here, &mut into, n);
            let went = [a.stats().mapped - before[0], c.stats().mapped - before[1]];
            assert_eq!(went.iter().sum::<u64>(), 1, "{n}: {went:?}");
            assert_eq!(mappings(), 5 + 5 + 2);
        }
        let stats = b.stats();
        assert_eq!((stats.reattached, stats.evicted, stats.declined), (50, 53, 0), "in turn each time another one");
        let told = b.domain.ep_history(b.ep, Telling::Used).expect("told");
        let line = told.lines().find(|line| line.contains("cache: ")).expect("a line");
        assert!(
            line.contains("2 mappings of peers' memory")
                && line.contains("53 of peers' were given up for others, 50 attached again"),
            "{line}"
        );
        // What is used again and again stays.
        for n in 0..10 {
            message(&mut a, &mut b, places[n % 2], &mut into, n);
        }
        assert_eq!(b.stats().reattached, 52);
        // What ends is let go of, mapped or not.
        places.iter().for_each(|here| space::unmap(*here, 30));
        let until = Deadline::new(10);
        while mappings() > 0 {
            [&mut a, &mut b, &mut c].into_iter().for_each(|node| node.quiet(1));
            until.check(|| format!("{} mappings are left", mappings()));
        }
    });
}

/// Every peer that maps it is told, whose ring is full as soon as there is room.
#[test]
fn all_who_map_it_are_told() {
    let _dog = watchdog("all_told", 180);
    alone("plain::all_who_map_it_are_told", || {
        let (mut a, mut b) = pair(forced(), forced());
        let mut c = node(forced(), Oversight::Tireless);
        acquaint(&mut a, &mut c);
        // More than there is room for behind messages in a full ring.
        let files: Vec<OwnedFd> = (0..rustmx::wire::loan::MOST).map(|_| space::memfd(true)).collect();
        let places: Vec<usize> = files.iter().enumerate().map(|(i, fd)| at(2 * i, 1, (fd, 0))).collect();
        let mut into = vec![0; PAGE];
        for here in &places {
            until_mapped(&mut a, &mut b, *here, &mut into);
            until_mapped(&mut a, &mut c, *here, &mut into);
        }
        assert_eq!(mappings(), 5 * files.len(), "ours, and two peers': all of it, and a page to map it again by");
        let (to_b, mut sent) = (a.knows(&b), 0);
        while a.stats().ring_full == 0 {
            a.send(Msg::new(to_b, 6), &mut [7; 8]).expect("send");
            sent += 1;
        }
        places.iter().for_each(|here| space::unmap(*here, 1));
        let until = Deadline::new(20);
        while mappings() > 2 * files.len() {
            a.domain.progress();
            c.quiet(1);
            until.check(|| format!("{} mappings are left", mappings()));
        }
        // Nothing was taken from that ring yet.
        (0..100).for_each(|_| a.domain.progress());
        assert_eq!(mappings(), 2 * files.len(), "those of one who was not told");
        let mut little = vec![[0; 8]; sent];
        little.iter_mut().for_each(|into| b.recv(Want::tag(6), into).expect("recv"));
        let got = run(&mut [&mut a, &mut b], &[sent, sent]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2 * sent);
        while mappings() > 0 {
            a.quiet(1);
            b.quiet(1);
            until.check(|| "who had no room was never told".into());
        }
        // That is no end to it.
        let here = at(0, 1, (&files[0], 0));
        until_mapped(&mut a, &mut b, here, &mut into);
        until_mapped(&mut a, &mut c, here, &mut into);
    });
}

/// The program may not do this; the peer reads the file, and comes to no harm.
#[test]
fn what_is_unmapped_during_a_message() {
    let _dog = watchdog("during", 180);
    alone("plain::what_is_unmapped_during_a_message", || {
        // Only to be read: the sender itself does not look at its buffer again.
        let (mut a, mut b) = pair(Config { lend: 1, ..forced() }, forced());
        let to_b = a.knows(&b);
        let mut into = vec![0; N];
        for round in 0..10 {
            let fd = space::memfd(true);
            let here = at(0, 64, (&fd, 9));
            until_mapped(&mut a, &mut b, here, &mut into);
            bytes(here, N).copy_from_slice(&pattern(N, round));
            a.send(Msg::new(to_b, 5), bytes(here, N)).expect("send");
            if round % 2 == 0 {
                // Known there, before it is unmapped.
                (0..100).for_each(|_| b.quiet(1));
            }
            space::unmap(here, 64);
            drop(fd);
            for _ in 0..200 {
                a.quiet(1);
                std::thread::yield_now();
            }
            (0..100).for_each(|_| b.quiet(1));
            into.fill(0xee);
            b.recv(Want::tag(5), &mut into).expect("recv");
            let got = run(&mut [&mut a, &mut b], &[1, 1]);
            assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
            assert!(into == pattern(N, round), "round {round}");
        }
    });
}

/// Holes are zeroes, whenever they are made.
#[test]
fn what_is_emptied_during_a_message() {
    let _dog = watchdog("emptied", 180);
    alone("plain::what_is_emptied_during_a_message", || {
        let (mut a, mut b) = pair(Config { lend: 1, ..forced() }, forced());
        let to_b = a.knows(&b);
        let fd = space::memfd(true);
        let (here, n) = (at(0, FILE_PAGES, (&fd, 0)), FILE_PAGES * PAGE);
        let mut into = vec![0; n];
        until_mapped(&mut a, &mut b, here, &mut into);
        let before = a.stats().mapped;
        for round in 0..40 {
            bytes(here, n).fill(0x77);
            into.fill(0xee);
            b.recv(Want::tag(5), &mut into).expect("recv");
            let emptier = std::thread::spawn(move || {
                (0..FILE_PAGES).rev().for_each(|page| {
                    space::advise(here + page * PAGE, 1, Advice::LinuxRemove);
                });
            });
            a.send(Msg::new(to_b, 5), bytes(here, n)).expect("send");
            run(&mut [&mut a, &mut b], &[1, 1]);
            emptier.join().expect("emptied");
            assert!(into.iter().all(|byte| matches!(*byte, 0 | 0x77)), "round {round}");
        }
        assert!(a.stats().mapped > before, "the news of it came between all of them");
    });
}
