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
