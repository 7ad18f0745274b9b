//! `timerfd_create(2)`: a descriptor that becomes readable after a while.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use std::time::Duration;

/// A one-shot timer.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
    set: bool,
}

impl Timer {
    /// Not running.
    pub fn new() -> Result<Timer, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timer { fd: timerfd_create(TimerfdClockId::Monotonic, flags)?, set: false })
    }

    /// Runs for `after` and is readable then, until it is set again; `None` stops it.
    pub fn set(&mut self, after: Option<Duration>) {
        if after.is_none() && !self.set {
            return;
        }
        self.set = after.is_some();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A value of zero would stop it.
        let value = after.map_or(zero, |d| {
            let d = d.max(Duration::from_nanos(1));
            Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
        });
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value: value });
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn runs_off(timer: &Timer, within: Duration) -> bool {
        let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&limit)).expect("poll") > 0
    }

    #[test]
    fn it_runs_off_unless_it_is_stopped() {
        let (mut timer, long, short) = (Timer::new().expect("timer"), Duration::from_secs(100), Duration::from_millis(30));
        assert!(!runs_off(&timer, Duration::ZERO));
        for after in [Duration::ZERO, Duration::from_nanos(1), short] {
            timer.set(Some(after));
            assert!(runs_off(&timer, long), "{after:?}");
        }
        timer.set(None);
        assert!(!runs_off(&timer, Duration::ZERO), "one that has run off keeps nobody awake");
        timer.set(Some(short));
        timer.set(None);
        assert!(!runs_off(&timer, 3 * short), "stopped");
    }
}
