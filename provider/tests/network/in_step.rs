//! Many that call one listener at the same moment, and are to come again: in time that a test makes, with random numbers that a seed repeats.

use crate::common::{Msg, Node, attr};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustmx::mem::shared::{Heap, SharedMem};
use rustmx::shm::{
    bell,
    segment::{self, Shape},
};
use rustmx::sys::clock::Clock;
use rustmx::sys::event::EventFd;
use rustmx::sys::wake::Wake;
use rustmx::transport::{Door, Event, Handed, Line, NoCall, Reach, Venue};
use rustmx::{Config, Domain, Error, Log, Name};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A venue where every call is to be made again, and when they were made.
struct Busy {
    clock: Clock,
    random: AtomicU64,
    calls: Arc<Mutex<Vec<u64>>>,
}

struct BusyDoor(Clock, Arc<Mutex<Vec<u64>>>);

impl Venue for Busy {
    fn open(&self, _: &Name) -> Result<Box<dyn Door>, Error> {
        Ok(Box::new(BusyDoor(self.clock.clone(), self.calls.clone())))
    }

    fn random(&self) -> u64 {
        let random = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
    }
}

impl Door for BusyDoor {
    fn reach(&self, _: &Name) -> Result<Reach, Error> {
        Ok(Reach::Network)
    }

    fn call(&mut self, _: &Name, _: Reach) -> Result<(Arc<dyn Line>, u32), NoCall> {
        self.1.lock().expect("calls").push(self.0.now());
        Err(NoCall::Later)
    }

    fn poll(&mut self, _: u64, _: &mut Vec<Event>) -> bool {
        false
    }

    fn segment(&mut self, _: Reach, shape: Shape) -> Result<(Handed, SharedMem), Errno> {
        let mem = segment::private(shape.ring);
        Ok((Handed::Own(mem.clone()), mem))
    }

    fn bell(&mut self) -> Result<(Handed, SharedMem), Errno> {
        let mem = SharedMem::new(Heap::new(bell::BYTES));
        Ok((Handed::Own(mem.clone()), mem))
    }

    fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error> {
        Ok(Arc::new(EventFd::new().map_err(|_| Error::NoResources)?))
    }

    fn kernel_pid(&self, _: u32) -> u32 {
        0
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// When one that begins at 1 s calls within a second, in microseconds.
fn calls(seed: u64) -> Vec<u64> {
    const BEGIN: u64 = 1_000_000_000;
    let (now, calls) = (Arc::new(AtomicU64::new(BEGIN)), Arc::default());
    let clock = Clock::Manual(now.clone());
    let venue = Busy { clock: clock.clone(), random: AtomicU64::new(seed), calls: Arc::clone(&calls) };
    // When it closes time stands still.
    let config = Config { close_timeout: 0, ..Config::default() };
    let domain = Domain::at_venue(Arc::new(config), Log::silent(), clock, Arc::new(venue));
    let mut node = Node::enabled(domain, attr());
    let to = node.av.insert(&Name::contact([127, 0, 0, 1].into(), 0, 9));
    node.send(Msg::new(to, 1), &mut [1; 8]).expect("it waits");
    while now.fetch_add(20_000, Ordering::Relaxed) < 2 * BEGIN {
        node.domain.progress();
    }
    let calls = calls.lock().expect("calls");
    calls.iter().map(|at| (at - BEGIN) / 1000).collect()
}

#[test]
fn who_is_to_call_again_does_it_out_of_step() {
    let all: Vec<Vec<u64>> = (0..40).map(|seed| calls(seed * 7 + 1)).collect();
    // The first call is the first thing that they do; the pauses double up to 50 ms.
    assert!(all.iter().all(|calls| calls[0] == 0 && (15..60).contains(&calls.len())), "{all:?}");
    // From pauses of 16 ms on: the engine looks at its calls some times a millisecond here.
    for nth in 6..15 {
        let mut moments: Vec<u64> = all.iter().map(|calls| calls[nth] / 1000).collect();
        moments.sort_unstable();
        let most = moments.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
        assert!(most <= Some(10), "call {nth}: {most:?} of 40 in one millisecond: {all:?}");
    }
    assert_eq!(calls(1), all[0], "the seed says when");
}
