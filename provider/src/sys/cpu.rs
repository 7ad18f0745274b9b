//! Which cores this process may use, and giving one up.

use rustix::thread::{CpuSet, sched_getaffinity};

/// Cores as a bit set; cores past the last bit are not told apart (the crowding rule then errs towards not yielding).
pub const MASK_WORDS: usize = 16;
/// A set of cores, 64 a word.
pub type CoreMask = [u64; MASK_WORDS];

/// The cores this thread may run on (sched_getaffinity(2)); all of them if that cannot be told.
pub fn allowed() -> CoreMask {
    let mut mask = [0; MASK_WORDS];
    let Ok(set) = sched_getaffinity(None) else {
        return [u64::MAX; MASK_WORDS];
    };
    for cpu in 0..CpuSet::MAX_CPU.min(MASK_WORDS * 64) {
        if set.is_set(cpu) {
            mask[cpu / 64] |= 1 << (cpu % 64);
        }
    }
    mask
}

/// Cores in a set.
pub fn count(mask: &CoreMask) -> u32 {
    mask.iter().map(|w| w.count_ones()).sum()
}

/// Whole cores that the cgroup's quota allows, at least 1; `None` without a quota. `cpu.max` of cgroup v2, else `cpu.cfs_*` of v1,
/// as seen from inside (containers mount their own cgroup at the root).
pub fn quota() -> Option<u32> {
    let read = |p: &str| std::fs::read_to_string(p).ok();
    let (quota, period) = match read("/sys/fs/cgroup/cpu.max") {
        Some(text) => {
            let mut words = text.split_whitespace();
            (words.next()?.parse::<i64>().ok()?, words.next()?.parse::<i64>().ok()?)
        }
        None => (
            read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")?.trim().parse().ok()?,
            read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")?.trim().parse().ok()?,
        ),
    };
    (quota > 0 && period > 0).then(|| (quota / period).max(1) as u32)
}

/// Cores that any process here may be given, whatever this one is bound to: the cgroup's set, else all that are online.
pub fn online() -> u32 {
    let count = |path| std::fs::read_to_string(path).ok().and_then(|text| count_list(&text));
    count("/sys/fs/cgroup/cpuset.cpus.effective")
        .or_else(|| count("/sys/devices/system/cpu/online"))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
}

/// Cores in a kernel list such as `0-3,8`.
fn count_list(text: &str) -> Option<u32> {
    let mut n = 0;
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        n += last.parse::<u32>().ok()?.checked_sub(first.parse::<u32>().ok()?)? + 1;
    }
    Some(n)
}

/// Lets another runnable process have this core (sched_yield(2)).
#[inline]
pub fn yield_core() {
    rustix::thread::sched_yield();
}

/// Between two turns of a wait that may be long, of which `turns` counts how many there were: others have this core, in the end for a while.
pub fn wait_a_little(turns: &mut u32) {
    const SHORT: u32 = 1000;
    *turns = turns.saturating_add(1);
    if *turns < SHORT { yield_core() } else { std::thread::sleep(std::time::Duration::from_micros(200)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(count_list("0-1\n"), Some(2));
        assert_eq!(count_list("0,2-4,7"), Some(5));
        assert_eq!(count_list(""), None);
        assert_eq!(count_list("3-1"), None);
    }

    #[test]
    fn this_process_may_run_somewhere() {
        assert!(count(&allowed()) >= 1 && online() >= 1);
    }
}
