//! Small jobs over the simulated network, and what must hold however many ranks there are. Large ones: `cargo bench -p rustmx-benches --bench growth`.

#[path = "../common/mod.rs"]
mod common;
mod sim;

use common::{process, watchdog};
use rustmx::Config;
use sim::fabric::{CLOUD, ETHERNET, Terms};
use sim::job::Job;
use sim::program::{Make, Program};

fn job(program: Program, ranks: usize, terms: Terms, seed: u64) -> Job {
    Job::new(Make { ranks, program, bytes: 64, terms, seed }, Config::default())
}

/// Every message arrives once (the job checks that), and there is one connection for each pair that speaks, whoever called.
#[test]
fn one_connection_for_each_pair() {
    let _dog = watchdog("pairs", 120);
    let mut crossed = 0;
    for (program, ranks) in [
        (Program::AllToAll, 2),
        (Program::AllToAll, 40),
        (Program::Allreduce, 64),
        (Program::Star, 50),
        (Program::Bruck, 2),
        (Program::Bruck, 50),
        (Program::Bruck, 64),
    ] {
        for terms in [ETHERNET, CLOUD] {
            let mut job = job(program, ranks, terms, 7);
            let cold = job.run(|_| {});
            let warm = job.run(|_| {});
            let told = job.told();
            let pairs = program.pairs(ranks) as u64;
            assert_eq!((told.met, job.peers()), (pairs, 2 * pairs), "{program:?} of {ranks}: {told:?}");
            assert!(told.calls >= pairs && told.calls <= 2 * pairs, "{told:?}");
            assert!(warm.all < cold.all, "{warm:?} {cold:?}");
            crossed += told.crossed;
        }
    }
    assert!(crossed > 0, "nobody called at the same time as his peer");
}

/// Of each rank's blocks each other rank gets one, in as many steps as the number of ranks has binary digits (the job checks the blocks), also where that is no
/// power of two.
#[test]
fn blocks_that_travel_together_all_arrive() {
    let _dog = watchdog("bruck", 60);
    for ranks in [2, 3, 5, 16, 31, 33] {
        let mut job = job(Program::Bruck, ranks, ETHERNET, 11);
        job.run(|_| {});
        job.run(|_| {});
        let told = job.told();
        assert_eq!((told.met, job.peers()), (Program::Bruck.pairs(ranks) as u64, 2 * told.met), "{ranks}");
        // Fewer pairs than if each spoke to each, from where that can be.
        assert!(ranks < 8 || told.met < Program::AllToAll.pairs(ranks) as u64);
    }
}

/// More callers than the kernel keeps for a process that is busy: the others come later, and nobody is lost.
#[test]
fn a_backlog_overflows() {
    let _dog = watchdog("backlog", 60);
    let small = Terms { backlog: 8, accept: 50_000, ..ETHERNET };
    let mut job = job(Program::Star, 200, small, 3);
    let times = job.run(|_| {});
    let told = job.told();
    assert!(told.overflows > 0 && told.redials > 0 && told.met == 199, "{told:?}");
    // With the kernel's patience alone eight would get in at once, eight after one, three and seven seconds, and the others not in time.
    assert!(times.all < 3_000_000_000, "{times:?} {told:?}");
}

/// As few strangers at a time as one: callers wait for each other, and all get in.
#[test]
fn strangers_one_at_a_time() {
    let _dog = watchdog("strangers", 60);
    let mut job = job(Program::Star, 60, Terms { strangers: 1, ..ETHERNET }, 5);
    job.run(|_| {});
    assert_eq!(job.told().met, 59);
}

/// What one peer costs in memory where little is said to it: less than is told in `docs/scaling.md`.
#[test]
fn a_peer_takes_little_memory() {
    // Alone: what other tests have is resident, too.
    process::alone("a_peer_takes_little_memory", memory_of_peers);
}

fn memory_of_peers() {
    let _dog = watchdog("memory", 60);
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
        text.split(' ').nth(1).expect("resident").parse::<usize>().expect("pages") * 4096
    };
    let mut job = job(Program::AllToAll, 64, ETHERNET, 1);
    let before = resident();
    job.run(|_| {});
    let each = resident().saturating_sub(before) / (64 * 63);
    println!("{each} bytes for each peer");
    assert!(each <= 32 << 10, "{each} bytes for each peer");
}

/// A run is repeated by its seed.
#[test]
fn one_seed_is_one_run() {
    let _dog = watchdog("seed", 60);
    let run = |seed| {
        let mut job = job(Program::AllToAll, 16, ETHERNET, seed);
        let times = job.run(|_| {});
        (times.all, times.first_mean, job.told().frames, job.told().crossed)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
