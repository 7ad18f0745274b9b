//! Callers that say nothing, call without end, or say another's name; and a listener that lies to who calls it.

use crate::common::{self, Deadline, Msg, Node, Rng, Want, attr, footprint, fresh_port, pattern, process, watchdog};
use crate::liar::{Answer, Liar, answer, any_name};
use crate::scene::{SEND, Scene};
use crate::{BYTES, seed};
use rustix::fd::{AsFd, OwnedFd};
use rustmx::mem::atomic::Ordering;
use rustmx::shm::{
    bell,
    segment::{self, Shape},
};
use rustmx::sys::clock::Clock;
use rustmx::sys::{memfd, socket};
use rustmx::wire::hello::{HELLO_LEN, Hello, Refusal};
use rustmx::{Config, Name, OpFlags};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use zerocopy::IntoBytes;

/// Who connects and says nothing costs a descriptor for a while, and no more; meanwhile others get in.
#[test]
fn silent_callers() {
    process::alone("contact::silent_callers", || {
        let _dog = watchdog("silent", 60);
        let now = Arc::new(AtomicU64::new(1));
        let mut victim = Node::open(Config::default(), attr(), Clock::Manual(now.clone()));
        let before = footprint();
        let silent: Vec<OwnedFd> = (0..500)
            .map(|_| {
                loop {
                    now.fetch_add(100_000, Ordering::Relaxed);
                    victim.quiet(17);
                    if let Ok(fd) = socket::connect(&victim.name().socket_name()) {
                        break fd;
                    }
                }
            })
            .collect();
        // An honest one is let in.
        let mut good = Node::new();
        let to_victim = good.knows(&victim);
        let (mut out, mut into) = (pattern(100, 1), vec![0u8; 100]);
        victim.recv(Want::tag(1), &mut into).expect("recv");
        good.send(Msg::new(to_victim, 1), &mut out).expect("send");
        let until = Deadline::new(5);
        let mut got = Vec::new();
        while got.is_empty() {
            now.fetch_add(100_000, Ordering::Relaxed);
            got = victim.poll();
            good.poll();
            until.check(|| "kept out by silent callers".into());
        }
        assert!(got[0].is_ok() && into == out);
        // Their time passes.
        for _ in 0..400 {
            now.fetch_add(20_000_000, Ordering::Relaxed);
            victim.quiet(17);
        }
        assert!(silent.iter().all(|fd| matches!(answer(fd), Answer::Ended)), "silent callers are kept for ever");
        drop((silent, good));
        let until = Deadline::new(5);
        while footprint().fds > before.fds + 1 {
            now.fetch_add(20_000_000, Ordering::Relaxed);
            victim.quiet(17);
            until.check(|| format!("{:?}, {before:?}", footprint()));
        }
    });
}

/// A flood of calls (hello and all) from one who hangs up at once.
#[test]
fn a_flood_of_calls() {
    process::alone("contact::a_flood_of_calls", || {
        let _dog = watchdog("calls", 60);
        let mut scene = Scene::new();
        let before = footprint();
        for i in 0..600 {
            let liar = Liar::call(&scene.victim.name(), any_name(), i);
            drop(liar);
            if i % 20 == 0 {
                scene.exchange();
            }
        }
        let until = Deadline::new(10);
        while footprint() != before {
            scene.turns(100);
            until.check(|| format!("{:?}, not {before:?}", footprint()));
        }
        scene.exchange();
    });
}

/// Not a test of its own: what the copies of this program do.
#[test]
fn role() {
    let Some(words) = process::role() else { return };
    let [_, victim, name] = &words[..] else { return };
    let (victim, name): (Name, Name) = (victim.parse().expect("name"), name.parse().expect("name"));
    let impostor = Liar::call(&victim, name, 0);
    let until = Deadline::new(10);
    loop {
        match answer(&impostor.fd) {
            Answer::Nothing => until.check(|| "no answer".into()),
            Answer::Welcome(_) => return process::say("welcomed"),
            Answer::Refused(_) | Answer::Ended => return process::say("turned away"),
        }
    }
}

/// Who calls from another process under the name of a peer that is connected is turned away, and the peer is not harmed.
#[test]
fn an_impostor() {
    let _dog = watchdog("impostor", 30);
    let mut scene = Scene::new();
    for _ in 0..3 {
        let mut other = process::copy("contact::role", &format!("impostor {} {}", scene.victim.name(), scene.good.name()));
        let until = Deadline::new(10);
        let said = loop {
            scene.turns(20);
            if let Some(said) = other.heard() {
                break said;
            }
            until.check(|| "no answer".into());
        };
        assert_eq!(said, "turned away");
        scene.exchange();
        assert_eq!(scene.victim.stats().lost, 0);
    }
}

/// The liar listens, and the victim calls.
#[test]
fn a_listener_that_lies() {
    let _dog = watchdog("listener", 60);
    let seed = seed();
    let mut scene = Scene::new();
    for case in 0..200u64 {
        let mut rng = Rng(seed << 20 | case);
        let port = fresh_port();
        let by_contact = rng.one_in(2);
        let name = if by_contact { common::contact(port) } else { any_name() };
        let listener = socket::listen(&name.socket_name()).expect("listen");
        let to = scene.victim.av.insert(&name);
        let (mut out, mut small) = (pattern(50_000, 1), [0u8; 4]);
        scene.victim.recv(Want::tag(80).ctx(SEND).from(to), &mut small).expect("recv");
        scene.victim.send(Msg::new(to, 1).ctx(SEND), &mut out).expect("send");
        scene.sends_open += 2;
        if scene.victim.send(Msg::new(to, 1).ctx(SEND).with(OpFlags::DELIVERY_COMPLETE), &mut out[..100]).is_ok() {
            scene.sends_open += 1;
        }
        let fd = socket::accept(&listener).expect("the call came at once");
        let Answer::Welcome(g) = answer(&fd) else { panic!("no hello") };
        let theirs = g.segment.segment(g.hello.segment.get() as usize, false).expect("segment");
        let (segment, _mem) = segment::create(Shape::without_cells(BYTES), false).expect("segment");
        let (bell, _map) = memfd::create("bell", bell::BYTES, false).expect("bell");
        let caller = scene.victim.name();
        let me = if by_contact { any_name() } else { name };
        let reply = |from: Name, bytes: usize| Hello::new(from.to_bytes(), caller.to_bytes(), bytes as u32, 3, [1; 16]);
        let both = [segment.as_fd(), bell.as_fd()];
        let what = rng.below(8);
        let sent = match what {
            0 => socket::send(&fd, reply(any_name(), 1 << 20).as_bytes(), &both),
            1 => socket::send(&fd, reply(name, BYTES).as_bytes(), &[segment.as_fd()]),
            2 => {
                let why = rng.pick(&[Refusal::Version, Refusal::WrongEndpoint, Refusal::NoResources, Refusal::Malformed]);
                socket::send(&fd, reply(me, BYTES).refuse(why).as_bytes(), &[])
            }
            3 => socket::send(&fd, &vec![rng.next() as u8; rng.range(1, 2 * HELLO_LEN)], &both),
            4 => socket::send(&fd, reply(common::contact(port), BYTES).as_bytes(), &both),
            // Welcome, twice.
            5 => socket::send(&fd, reply(me, BYTES).as_bytes(), &both)
                .and_then(|()| socket::send(&fd, reply(me, BYTES).as_bytes(), &both)),
            // Welcome by the name of somebody else whom the victim is talking to.
            6 => socket::send(&fd, reply(scene.good.name(), BYTES).as_bytes(), &both).map(|()| {
                if by_contact {
                    // That is what an alias looks like; it ends when it hangs up.
                    scene.turns(300);
                }
            }),
            // Hangs up without a word.
            _ => Ok(()),
        };
        sent.expect("sent");
        if what == 7 || (what == 6 && by_contact) {
            drop(fd);
        }
        let until = Deadline::new(5);
        // The receive from a name that now stands for the well-behaved peer stays; it is satisfied below.
        let stays = i64::from(what == 6 && by_contact);
        while scene.sends_open > stays {
            scene.turns(10);
            until.check(|| {
                format!("seed {seed}, case {case}, lie {what}, contact {by_contact}: {} operations never end", scene.sends_open)
            });
        }
        if stays > 0 {
            scene.good.send(Msg::new(scene.to_victim, 80).inject(), &mut [1u8; 4]).expect("send");
            while scene.sends_open > 0 {
                scene.turns(10);
                until.check(|| format!("case {case}: the receive is lost"));
            }
        }
        drop(theirs);
        scene.exchange();
    }
}
