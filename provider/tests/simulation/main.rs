//! Whole engines under a seeded, random interleaving, against a naive model of what MPI demands.
//!
//! | file | what it is |
//! |---|---|
//! | `net.rs` | a venue in memory: links with delays, contact that fails, deaths; nothing of it is up to the kernel |
//! | `net/door.rs` | the same as the engines see it |
//! | `wires.rs` | connections of the kernel with somebody between, for engines that take each other for other hosts |
//! | `arena.rs` | memory of engines that is lent to their peers |
//! | `model.rs` | the naive model of matching, for the messages from one engine to another |
//! | `world.rs` | engines, and what completes on them |
//! | `world/ask.rs` | random operations |
//! | `world/check.rs` | everything ends, and is compared with the model; deaths, closes, restarts |
//! | `memory.rs` | memory of peers against plain bytes |
//! | `trace.rs` | the last events, for a failure, and a hash of all |
//!
//! Time is manual, and everything is drawn from the seed, so one seed is one run. Rings, windows and fragments are small and random,
//! so everything that can be full is.
//!
//! `RUSTMX_SEED` repeats one seed; `RUSTMX_SEEDS` runs so many in each test.

mod arena;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod model;
mod net;
mod trace;
mod wires;
mod world;

use common::watchdog;
use world::{Make, World};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

/// The seeds of a test that runs `n` by default.
pub fn seeds(n: u64) -> std::ops::Range<u64> {
    match variable("RUSTMX_SEED") {
        Some(one) => one..one + 1,
        None => 1..variable("RUSTMX_SEEDS").unwrap_or(n) + 1,
    }
}

/// Whether the kernel lets a process read itself; some sandboxes do not.
fn kernel_allows() -> bool {
    let here = 1u64;
    rustmx::mem::remote::fetch_words(std::process::id(), &raw const here as u64, &mut [0]).is_ok()
}

fn work(world: &mut World, rounds: usize, steps: usize) {
    for _ in 0..rounds {
        for _ in 0..steps {
            world.step();
        }
        if world.rng.one_in(2) {
            world.settle();
        }
    }
    world.settle();
}

#[test]
fn engines_do_what_the_model_says() {
    let _dog = watchdog("simulation", 600);
    let (mut steps, mut unexpected, mut full, mut told) = (0, 0, 0, net::Told::default());
    let mut copied = [0; 7];
    for seed in seeds(100) {
        let mut world = World::new(seed, Make { rough: seed % 2 == 0, ..Make::default() });
        work(&mut world, 3, 120);
        steps += world.steps;
        for engine in &world.engines {
            let stats = engine.node.stats();
            unexpected += stats.unexpected;
            full += stats.ring_full + stats.window_full;
            let seen =
                [stats.syscall, stats.fetched, stats.stored, stats.declined, stats.mapped, stats.evicted, stats.reattached];
            for (sum, n) in copied.iter_mut().zip(seen) {
                *sum += n;
            }
        }
        let t = world.told();
        told.records += t.records;
        told.busy += t.busy;
        told.mute += t.mute;
        told.lost_bits += t.lost_bits;
        told.calls += t.calls;
        told.lent += t.lent;
        told.lost_loans += t.lost_loans;
        told.recalled += t.recalled;
    }
    println!(
        "{steps} steps, {unexpected} unexpected, {full} times something was full, {told:?}, {copied:?} offers, bytes, refusals, offers in lent memory, and mappings given up and attached again"
    );
    let corners = copied.iter().all(|n| *n > 0) || !kernel_allows();
    let lent = told.lent > 0 && told.lost_loans > 0 && told.recalled > 0 && copied[4] > 0;
    assert!(unexpected > 0 && full > 0 && corners && lent, "the simulation does not reach the corners");
}

/// The same with long messages in lent memory, of which receives that wait invite their senders to write a part.
#[test]
fn engines_that_invite_do_what_the_model_says() {
    let _dog = watchdog("invitations", 600);
    let (mut invited, mut offered) = (0, 0);
    for seed in seeds(100) {
        let mut world = World::new(seed, Make { rough: seed % 4 == 0, long: true, engines: 2, ..Make::default() });
        work(&mut world, 2, 400);
        for engine in &world.engines {
            invited += engine.node.stats().invited;
            offered += engine.node.stats().mapped;
        }
    }
    println!("{invited} of {offered} messages in lent memory were invited");
    assert!(invited > 10 && offered > 2 * invited || !kernel_allows(), "both are to be seen");
}

/// The same, where sockets and segments are the kernel's: contact is made when it likes.
#[test]
fn engines_at_the_kernels_sockets_do_what_the_model_says() {
    let _dog = watchdog("simulation with sockets", 600);
    for seed in seeds(30) {
        let mut world = World::new(seed, Make { real: true, ..Make::default() });
        work(&mut world, 2, 120);
    }
}

/// The same by TCP, where bytes come in pieces, and late.
#[test]
fn engines_that_are_elsewhere_do_what_the_model_says() {
    let _dog = watchdog("simulation by TCP", 600);
    for seed in seeds(30) {
        let mut world = World::new(seed, Make { wired: true, long: seed % 3 == 0, ..Make::default() });
        work(&mut world, 2, 120);
    }
}

/// Two lose each other amid whatever they do, and nobody else loses anybody; or one closes.
#[test]
fn a_cable_is_cut() {
    let _dog = watchdog("cables", 600);
    let mut cut = 0;
    for seed in seeds(40) {
        let mut world = World::new(seed, Make { wired: true, long: seed % 3 == 0, ..Make::default() });
        for _ in 0..world.rng.range(20, 300) {
            world.step();
        }
        if world.rng.one_in(4) {
            let one = world.rng.range(0, world.engines.len());
            world.close(one);
        } else {
            cut += usize::from(world.cut());
        }
        for _ in 0..50 {
            world.step();
        }
        world.mourn();
        work(&mut world, 1, 50);
    }
    println!("{cut} cables were cut");
    assert!(variable("RUSTMX_SEED").is_some() || cut > 0);
}

/// An engine dies at any point of what it published, or closes; everybody else goes on. If it can be found without its name, it is
/// started anew and found.
#[test]
fn one_engine_ends() {
    let _dog = watchdog("deaths", 600);
    let mut restarts = 0;
    for seed in seeds(150) {
        let mut world = World::new(seed, Make { rough: seed % 3 == 0, ..Make::default() });
        for _ in 0..world.rng.range(1, 300) {
            world.step();
        }
        let dead = world.rng.range(0, world.engines.len());
        if world.rng.one_in(3) {
            world.close(dead)
        } else {
            world.kill(dead)
        }
        for _ in 0..50 {
            world.step();
        }
        world.mourn();
        work(&mut world, 1, 50);
        if world.restart(dead).is_some() {
            restarts += 1;
            work(&mut world, 2, 100);
        }
    }
    println!("{restarts} were started anew");
}

/// A header is wrong: the two lose each other, and nobody else.
#[test]
fn one_record_is_spoilt() {
    let _dog = watchdog("spoilt records", 600);
    let mut spoilt = 0;
    for seed in seeds(100) {
        // Between two that have a second link only half would be lost.
        let mut world = World::new(seed, Make { rough: seed % 3 == 0, named: true, ..Make::default() });
        for _ in 0..world.rng.range(1, 200) {
            world.step();
        }
        let liar = world.rng.range(0, world.engines.len());
        world.net.lock().spoil(liar);
        for _ in 0..100 {
            world.step();
        }
        let pending = world.net.lock().calm(liar);
        if pending {
            world.until("nobody reads it", World::has_lost);
        }
        if world.has_lost() {
            spoilt += 1;
            world.mourn();
        }
        work(&mut world, 1, 50);
    }
    println!("{spoilt} records were spoilt");
    assert!(spoilt > 0);
}

/// The first answer does not fit, and the call came by a contact address. (The answer went by a call of its own then, which the
/// caller took for somebody else's.)
#[test]
fn an_answer_that_did_not_fit_finds_its_caller() {
    let _dog = watchdog("half open", 60);
    let (mut mute, mut by_contact) = (0, 0);
    for seed in 1..40 {
        let mut world = World::new(seed, Make { engines: 2, ..Make::default() });
        world.net.lock().weather.mute = 2;
        by_contact += usize::from(world.engines.iter().any(world::Engine::has_contact));
        work(&mut world, 1, 60);
        mute += world.told().mute;
    }
    assert!(mute > 0 && by_contact > 0, "{mute} {by_contact}");
}

#[test]
fn one_seed_is_one_run() {
    let _dog = watchdog("twice", 120);
    for seed in seeds(10) {
        let run = || {
            let mut world = World::new(seed, Make { rough: true, ..Make::default() });
            work(&mut world, 2, 100);
            world.kill(0);
            world.mourn();
            world.hash()
        };
        let (hash, events) = run();
        assert!(events > 100);
        assert_eq!((hash, events), run(), "seed {seed}");
    }
}
