//! Everything that can be wrong with a hello.

use crate::common::{Deadline, Rng, contact, footprint, process, watchdog};
use crate::liar::{Answer, answer, any_name};
use crate::scene::Scene;
use crate::{BYTES, seed};
use rustix::fd::{AsFd, BorrowedFd};
use rustmx::Error;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::peer::name::NAME_LEN;
use rustmx::shm::bell;
use rustmx::shm::layout::{CARD_BYTES, CARD_MAGIC};
use rustmx::shm::segment::{self, Shape};
use rustmx::sys::{memfd, socket};
use rustmx::wire::hello::{Hello, Refusal};
use zerocopy::IntoBytes;

/// Everything that can be wrong with a hello. Nothing is left behind by any of it.
#[test]
fn hellos_that_are_none() {
    process::alone("hello::hellos_that_are_none", || {
        let _dog = watchdog("hellos", 60);
        let seed = seed();
        let mut scene = Scene::new();
        let own = scene.victim.name();
        let hello = |from: [u8; NAME_LEN], to: [u8; NAME_LEN], bytes: usize| Hello::new(from, to, bytes as u32, 0, [1; 16]);
        let good = |bytes| hello(any_name().to_bytes(), own.to_bytes(), bytes);
        let (sound, _mem) = segment::create(Shape::without_cells(BYTES), false).expect("segment");
        let (bell, _bell) = memfd::create("bell", bell::BYTES, false).expect("bell");
        let unsealed = |bytes: u64| {
            use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
            let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
            ftruncate(&fd, bytes).expect("size");
            fd
        };
        let (small, _small) = memfd::create("small", 4096, true).expect("memfd");
        let (blank, _blank) = memfd::create("blank", BYTES, true).expect("memfd");
        let (wrong_card, mem) = segment::create(Shape::without_cells(BYTES), false).expect("segment");
        mem.word(CARD_MAGIC).store(1, Ordering::Release);
        let (wrong_size, mem) = segment::create(Shape::without_cells(BYTES), false).expect("segment");
        mem.word(CARD_BYTES).store(1 << 30, Ordering::Release);
        let raw_size = unsealed(BYTES as u64);
        let null =
            rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
                .expect("null");
        let version = {
            let mut h = good(BYTES).as_bytes().to_vec();
            h[8] = 99;
            h
        };
        let mut cases: Vec<(String, Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
            ("no descriptors".into(), good(BYTES).as_bytes().into(), vec![]),
            ("one descriptor".into(), good(BYTES).as_bytes().into(), vec![sound.as_fd()]),
            ("another version".into(), version, vec![sound.as_fd(), bell.as_fd()]),
            (
                "another nonce".into(),
                hello(any_name().to_bytes(), any_name().to_bytes(), BYTES).as_bytes().into(),
                vec![sound.as_fd(), bell.as_fd()],
            ),
            (
                "a contact as the caller".into(),
                hello(contact(9).to_bytes(), own.to_bytes(), BYTES).as_bytes().into(),
                vec![sound.as_fd(), bell.as_fd()],
            ),
            ("no name".into(), hello([7; NAME_LEN], own.to_bytes(), BYTES).as_bytes().into(), vec![sound.as_fd(), bell.as_fd()]),
            ("a refusal".into(), good(BYTES).refuse(Refusal::WrongEndpoint).as_bytes().into(), vec![]),
            (
                "a refusal with descriptors".into(),
                good(BYTES).refuse(Refusal::Version).as_bytes().into(),
                vec![sound.as_fd(), bell.as_fd()],
            ),
            ("too long".into(), [good(BYTES).as_bytes(), &[0; 1]].concat(), vec![sound.as_fd(), bell.as_fd()]),
            ("far too long".into(), vec![1; 5000], vec![sound.as_fd()]),
            ("too short".into(), good(BYTES).as_bytes()[1..].into(), vec![sound.as_fd(), bell.as_fd()]),
        ];
        for (what, fd, bytes) in [
            ("unsealed", &raw_size, BYTES),
            ("too small", &small, 4096),
            ("smaller than it says", &small, BYTES),
            ("larger than it says", &sound, BYTES / 2),
            ("no card", &blank, BYTES),
            ("another card", &wrong_card, BYTES),
            ("another size on its card", &wrong_size, BYTES),
            ("no memory at all", &null, BYTES),
            ("a size of nothing", &sound, 0),
            ("not whole pages", &sound, BYTES + 64),
            ("huge", &sound, u32::MAX as usize),
        ] {
            cases.push((format!("a segment: {what}"), good(bytes).as_bytes().into(), vec![fd.as_fd(), bell.as_fd()]));
        }
        for (what, fd) in [("wrong size", &sound), ("unsealed", &raw_size), ("no memory", &null)] {
            cases.push((format!("a bell: {what}"), good(BYTES).as_bytes().into(), vec![sound.as_fd(), fd.as_fd()]));
        }
        let mut rng = Rng(seed);
        for i in 0..300 {
            let mut bytes = good(BYTES).as_bytes().to_vec();
            if i % 3 == 0 {
                bytes = (0..rng.range(1, 400)).map(|_| rng.next() as u8).collect();
            } else {
                // Any bit of what matters; the cores are anybody's choice.
                for _ in 0..rng.range(1, 4) {
                    bytes[rng.range(0, 112)] ^= 1 << rng.below(8);
                }
            }
            cases.push((format!("noise {i} of seed {seed}"), bytes, vec![sound.as_fd(), bell.as_fd()]));
        }
        scene.exchange();
        let before = footprint();
        for (what, bytes, fds) in &cases {
            let fd = socket::connect(&own.socket_name()).expect("connect");
            socket::send(&fd, bytes, fds).expect("send");
            let until = Deadline::new(5);
            let mut refused = false;
            loop {
                scene.turns(10);
                match answer(&fd) {
                    Answer::Nothing => {}
                    Answer::Refused(e) => {
                        refused =
                            e != Error::Version || what.contains("version") || what.contains("refusal") || what.contains("noise")
                    }
                    Answer::Ended => break,
                    // Flipped bits of its own name make another name; that is no lie.
                    Answer::Welcome(_) if what.starts_with("noise") => {
                        refused = true;
                        break;
                    }
                    Answer::Welcome(_) => panic!("{what}: welcomed"),
                }
                until.check(|| format!("{what}: no answer"));
            }
            assert!(refused, "{what}: not told why");
            drop(fd);
            scene.exchange();
        }
        let until = Deadline::new(5);
        while footprint() != before {
            scene.turns(20);
            until.check(|| format!("something is left: {:?}, not {before:?}", footprint()));
        }
    });
}
