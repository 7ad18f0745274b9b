//! How long a thread waits for a core: what it is not given, as against what it does not want.
//!
//! The second number of `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst of the kernel) is how many nanoseconds a thread that could
//! run has waited in the queue of a core. Neither a thread that sleeps nor one that computes on a core of its own waits there.

use rustix::thread::Pid;
use std::fs::read_to_string;
use std::path::PathBuf;
use std::time::Instant;

/// The queue as one thread sees it, since it was last asked.
pub struct RunQueue {
    /// The file.
    of: PathBuf,
    /// Nanoseconds.
    waited: u64,
    asked: Instant,
}

impl RunQueue {
    /// Of a thread of this process, from now on.
    pub fn of(thread: Pid) -> RunQueue {
        let of = PathBuf::from(format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero()));
        let waited = waited(&of).unwrap_or(0);
        RunQueue { of, waited, asked: Instant::now() }
    }

    /// Whether the thread waited for a core more than half of the time since the last call. Three system calls. Not, where the kernel does not tell (built
    /// without `CONFIG_SCHED_INFO`), and of a thread that has ended.
    pub fn is_long(&mut self) -> bool {
        let now = Instant::now();
        let Some(waited) = waited(&self.of) else { return false };
        let waits = u128::from(waited.saturating_sub(self.waited)) * 2 > now.duration_since(self.asked).as_nanos();
        (self.waited, self.asked) = (waited, now);
        waits
    }
}

fn waited(of: &PathBuf) -> Option<u64> {
    read_to_string(of).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// For so long, on a core, if one is to be had.
    fn compute(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// The same with many that want that core.
    fn compute_in_a_crowd(time: Duration) {
        let allowed = sched_getaffinity(None).expect("a set");
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).expect("a core");
        let mut one = CpuSet::new();
        one.set(first);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..7 {
                scope.spawn(|| {
                    sched_setaffinity(None, &one).expect("pinned");
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            sched_setaffinity(None, &one).expect("pinned");
            compute(time);
            over.store(true, Ordering::Relaxed);
            sched_setaffinity(None, &allowed).expect("free");
        });
    }

    #[test]
    fn in_a_crowd_it_is_long_and_asleep_it_is_not() {
        let mut queue = RunQueue::of(gettid());
        // A busy machine may be late: what counts is that it is noticed.
        let mut becomes = |long, after: fn(Duration), what| {
            let begun = Instant::now();
            while {
                after(Duration::from_millis(200));
                queue.is_long() != long
            } {
                assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            }
        };
        becomes(false, std::thread::sleep, "who sleeps waits for a core");
        becomes(true, compute_in_a_crowd, "eight threads of one core never wait for it");
        becomes(false, std::thread::sleep, "who sleeps again still waits for a core");
    }

    #[test]
    fn nothing_is_known_of_who_is_not_there() {
        let thread = std::thread::spawn(gettid).join().expect("its number");
        assert!(!RunQueue::of(thread).is_long());
    }
}
