//! How long a thread waits for a core: what it is not given, as against what it does not want.
//!
//! `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst of the kernel) has how many nanoseconds a thread has run, and how many it has waited
//! in the queue of a core. Neither a thread that sleeps nor one that computes on a core of its own waits there. Both numbers are late: a wait is counted when it
//! is over, and what runs at the next tick of the kernel's clock. So a thread that could run, and of which neither number has moved, runs or waits: not known yet.

use rustix::thread::Pid;
use std::fs::read_to_string;
use std::path::PathBuf;

/// The queue as one thread sees it, since it was last known.
pub struct RunQueue {
    /// The thread's directory.
    of: PathBuf,
    /// Nanoseconds.
    ran: u64,
    waited: u64,
}

impl RunQueue {
    /// Of a thread of this process, from now on.
    pub fn of(thread: Pid) -> RunQueue {
        let of = PathBuf::from(format!("/proc/self/task/{}", thread.as_raw_nonzero()));
        let mut queue = RunQueue { of, ran: 0, waited: 0 };
        (queue.ran, queue.waited) = queue.counts().unwrap_or_default();
        queue
    }

    /// Whether the thread has waited for a core longer than it ran since this was last known; `None`: that is not known yet. It opens and reads a file, or
    /// two. Not, where the kernel does not tell (built without `CONFIG_SCHED_INFO`), and of a thread that has ended.
    pub fn is_long(&mut self) -> Option<bool> {
        let Some((ran, waited)) = self.counts() else { return Some(false) };
        if (ran, waited) == (self.ran, self.waited) {
            return if self.could_run() { None } else { Some(false) };
        }
        let waits = waited.saturating_sub(self.waited) > ran.saturating_sub(self.ran);
        (self.ran, self.waited) = (ran, waited);
        Some(waits)
    }

    fn counts(&self) -> Option<(u64, u64)> {
        let text = read_to_string(self.of.join("schedstat")).ok()?;
        let mut words = text.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    }

    /// Its state is R (proc(5)): it runs, or waits for a core.
    fn could_run(&self) -> bool {
        let text = read_to_string(self.of.join("stat")).unwrap_or_default();
        // The name before it may have brackets.
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

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

    /// Of this thread, where the kernel tells.
    fn own() -> Option<RunQueue> {
        let queue = RunQueue::of(gettid());
        let tells = queue.counts().is_some_and(|(ran, _)| ran > 0);
        if !tells {
            eprintln!("not tested: this kernel does not tell");
        }
        tells.then_some(queue)
    }

    #[test]
    fn in_a_crowd_it_is_long_and_asleep_it_is_not() {
        let Some(mut queue) = own() else { return };
        // A busy machine may be late: what counts is that it is noticed.
        let mut becomes = |long, after: fn(Duration), what| {
            let begun = Instant::now();
            while {
                after(Duration::from_millis(200));
                queue.is_long() != Some(long)
            } {
                assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            }
        };
        becomes(false, std::thread::sleep, "who sleeps waits for a core");
        becomes(true, compute_in_a_crowd, "eight threads of one core never wait for it");
        becomes(false, std::thread::sleep, "who sleeps again still waits for a core");
    }

    #[test]
    fn who_could_run_and_has_not_is_not_known() {
        let Some(mut queue) = own() else { return };
        // As often as that the kernel does not count; a busy machine may have taken the core away between two of them.
        let asked: Vec<_> = (0..1000).map(|_| queue.is_long()).collect();
        assert!(asked.contains(&None), "{asked:?}");
        assert!(queue.could_run());
    }

    #[test]
    fn who_has_ended_waits_for_nothing() {
        let thread = std::thread::spawn(|| {
            let queue = RunQueue::of(gettid());
            compute_in_a_crowd(Duration::from_millis(300));
            queue
        });
        let mut queue = thread.join().expect("a queue");
        // The kernel may take a moment to clear it away.
        let begun = Instant::now();
        while queue.of.exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it is still there");
        }
        assert_eq!(queue.is_long(), Some(false));
    }
}
