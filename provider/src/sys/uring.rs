//! Sending out of buffers that the kernel has pinned once, without a copy (`io_uring(7)`, `IORING_OP_SEND_ZC` with a registered buffer).
//!
//! A request is carried out within the call that hands it over: the socket takes what it has room for, or says that it has none, and that answer is
//! there when the call returns. (`MSG_DONTWAIT`: the kernel neither waits for room nor passes the request on to a thread of its own.) So requests and
//! sendmsg(2) on one socket come one after the other, as they are called. Only the *notice* comes later: the kernel is through with the
//! memory. Were an answer ever missing, it is waited for no longer than [`PATIENCE`]: then nobody knows what has left by that socket, its connection is to be given
//! up, and the ring takes no further request.
//!
//! A table names what is pinned. The kernel keeps the pages of a slot for each request that named it until the notice, also when the slot is emptied or given
//! to other memory meanwhile; what a slot stands for is pages, not addresses (`cache/registered.rs`).
#![expect(unsafe_code)]
// UNSAFETY: tells the kernel addresses to pin and to read from; hands over the requests themselves.

use super::clock::Clock;
use super::{fork, zerocopy};
use crate::mem::user::UserSeg;
use core::ops::Range;
use core::time::Duration;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::mem::ManuallyDrop;

/// The first Linux that tells whether it copied (`IORING_SEND_ZC_REPORT_USAGE`). It also leaves a pinned page with who has it pinned when a process forks
/// (since 5.19, `PG_anon_exclusive`): the child gets a copy at once, so what the parent writes goes to the page that a slot stands for.
const SOUND: (u32, u32) = (6, 2);

/// `IORING_SEND_ZC_REPORT_USAGE` and `IORING_NOTIF_USAGE_ZC_COPIED` of linux/io_uring.h.
const REPORT_USAGE: u16 = 1 << 3;
const COPIED: u32 = 1 << 31;
/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

/// Requests that are handed over together: one.
const REQUESTS: u32 = 1;
/// Notices that have room until they are looked at; further ones wait in the kernel.
const NOTICES: u32 = 1024;
/// How often a request is handed over that the kernel has no memory for.
const TRIES: usize = 1000;
/// How long an answer is waited for that is not there when the call returns. (As Linux is, it always is.)
const PATIENCE: Duration = Duration::from_secs(1);
/// How requests are sent.
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Why there is no ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NoRing {
    /// In words.
    pub why: String,
    /// What is missing others have, who may give it back.
    pub may_pass: bool,
}

impl NoRing {
    fn never(why: impl Into<String>) -> NoRing {
        NoRing { why: why.into(), may_pass: false }
    }
}

/// What the kernel says of a request that it is through with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What the request was called.
    pub name: u64,
    /// It copied what it sent all the same.
    pub copied: bool,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes that the socket took. `EAGAIN`: it has no room. `ETIME`: nobody knows, nothing may leave by this socket any more. `EOPNOTSUPP`: it was not asked.
    pub sent: Result<usize, Errno>,
    /// A notice follows: until then the memory is not the application's, and the name is in use.
    pub notice: bool,
}

/// A ring of requests, and its table.
pub struct Uring {
    ring: ManuallyDrop<IoUring>,
    slots: u16,
    /// A request lies in the ring that was not taken, or was not answered: none is handed over any more.
    is_stuck: bool,
    /// Requests that were not answered in time.
    late: Vec<u64>,
    patience: Duration,
    flags: i32,
    /// What the next requests are answered, instead of being handed over, and notices of these.
    #[cfg(test)]
    instead: std::collections::VecDeque<Answer>,
    #[cfg(test)]
    said: Vec<u64>,
}

fn errno(why: &io::Error) -> Errno {
    Errno::from_io_error(why).unwrap_or(Errno::IO)
}

fn refused(why: &io::Error) -> NoRing {
    let why = errno(why);
    let words = match why {
        Errno::NOSYS => "this kernel has no io_uring, or a container's filter of system calls says so".into(),
        Errno::PERM | Errno::ACCESS => {
            "io_uring is forbidden here (kernel.io_uring_disabled, or a container's filter of system calls)".into()
        }
        Errno::NOMEM => "the kernel would not lock the memory of a ring: raise the limit of locked memory (ulimit -l)".into(),
        why => format!("io_uring cannot be had ({why})"),
    };
    NoRing { why: words, may_pass: matches!(why, Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::AGAIN) }
}

/// Whether this kernel is too old, by its version.
fn is_old(version: Option<(u32, u32)>) -> Result<(), NoRing> {
    match version {
        Some(version) if version >= SOUND => Ok(()),
        _ => Err(NoRing::never(format!("io_uring does not tell whether it copies: Linux {}.{} does", SOUND.0, SOUND.1))),
    }
}

/// Whether it can do what is asked of it, by what it says itself.
fn is_able(sends: bool, loses_nothing: bool) -> Result<(), NoRing> {
    if sends && loses_nothing { Ok(()) } else { Err(NoRing::never("io_uring cannot send without a copy here")) }
}

impl Uring {
    /// A ring with a table of so many empty slots.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(slots: u16) -> Result<Uring, NoRing> {
        is_old(zerocopy::kernel())?;
        fork::own();
        let mut builder = IoUring::builder();
        let ring: IoUring = builder.dontfork().setup_cqsize(NOTICES).build(REQUESTS).map_err(|why| refused(&why))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|why| refused(&why))?;
        is_able(probe.is_supported(opcode::SendZc::CODE), ring.params().is_feature_nodrop())?;
        ring.submitter().register_buffers_sparse(slots.into()).map_err(|why| refused(&why))?;
        Ok(Uring {
            ring: ManuallyDrop::new(ring),
            slots,
            is_stuck: false,
            late: Vec::new(),
            patience: PATIENCE,
            flags: FLAGS,
            #[cfg(test)]
            instead: std::collections::VecDeque::new(),
            #[cfg(test)]
            said: Vec::new(),
        })
    }

    /// One more request is answered so, as by a kernel that has no memory for it at the moment; a notice that is promised comes with the next that are asked for.
    #[cfg(test)]
    pub fn answer_instead(&mut self, answer: Answer) {
        self.instead.push_back(answer);
    }

    /// Answers of that kind that were not needed.
    #[cfg(test)]
    pub fn unneeded(&self) -> usize {
        self.instead.len()
    }

    /// From now on as with a kernel that answers late: when there is room in the socket.
    #[cfg(test)]
    pub fn answer_late(&mut self) {
        (self.flags, self.patience) = (libc::MSG_NOSIGNAL, Duration::from_millis(50));
    }

    /// Whether requests are taken; else they never will be again.
    pub fn takes_requests(&self) -> bool {
        !self.is_stuck
    }

    /// Pins whole pages, and calls them `slot`, which is empty.
    ///
    /// # Errors
    /// `ENOMEM`: more than may be locked; `EFAULT`: nothing that can be written is there, or nothing that can be pinned.
    pub fn register(&self, slot: u16, pages: &Range<usize>) -> Result<(), Errno> {
        self.set(slot, libc::iovec { iov_base: pages.start as *mut _, iov_len: pages.len() })
    }

    /// Lets go of what is called `slot`, once the kernel is through with every request that named it.
    pub fn empty(&self, slot: u16) {
        let _ = self.set(slot, libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 });
    }

    fn set(&self, slot: u16, memory: libc::iovec) -> Result<(), Errno> {
        // SAFETY: the kernel checks the addresses, and pins what is there at this moment; it neither reads nor writes it for that. What is there later is its own
        // concern: pinned pages stay what they are when they are unmapped.
        let done = unsafe { self.ring.submitter().register_buffers_update(slot.into(), &[memory], None) };
        done.map_err(|why| errno(&why))
    }

    /// Sends `memory`, which lies in what `slot` is called, by one request called `name`. Notices that come meanwhile go to `each`, the request's own among them.
    pub fn send(&mut self, fd: &OwnedFd, slot: u16, memory: UserSeg, name: u64, each: impl FnMut(Notice)) -> Answer {
        let none = |why| Answer { sent: Err(why), notice: false };
        if self.is_stuck || memory.len() > i32::MAX as usize {
            return none(Errno::OPNOTSUPP);
        }
        #[cfg(test)]
        if let Some(answer) = self.instead.pop_front() {
            self.said.extend(answer.notice.then_some(name));
            return answer;
        }
        let request = opcode::SendZc::new(Fd(fd.as_raw_fd()), memory.address() as *const u8, memory.len() as u32)
            .buf_index(Some(slot))
            .flags(self.flags)
            .zc_flags(REPORT_USAGE)
            .build()
            .user_data(name);
        // SAFETY: `UserSeg::new`'s contract keeps the memory as it is until the operation has completed, and it completes after the notice; the kernel reads the
        // pages of the slot, which it keeps itself. The descriptor is open during the call, and the request holds the file from then on.
        if unsafe { self.ring.submission().push(&request) }.is_err() {
            self.is_stuck = true;
            return none(Errno::OPNOTSUPP);
        }
        for _ in 0..TRIES {
            let _ = self.ring.submit();
            if self.ring.submission().is_empty() {
                return self.answer(name, each);
            }
            std::thread::yield_now();
        }
        // The kernel has no memory to take it. It would take it with the next one: there is none.
        self.is_stuck = true;
        none(Errno::OPNOTSUPP)
    }

    /// The answer to the request that was just handed over.
    fn answer(&mut self, name: u64, mut each: impl FnMut(Notice)) -> Answer {
        let mut missing: Option<Clock> = None;
        loop {
            if let Some(answer) = self.take(Some(name), &mut each) {
                return answer;
            }
            // It is there when the call returns, as Linux is, or had no room among the notices. If that were ever otherwise: nothing else may leave by
            // this socket before.
            let waited = Duration::from_nanos(missing.get_or_insert_with(Clock::machine).now());
            let Some(left) = self.patience.checked_sub(waited) else { break };
            let _ = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&Timespec::from(left)));
        }
        // Whether it is carried out later nobody knows, nor in which order with another one.
        self.is_stuck = true;
        self.late.push(name);
        Answer { sent: Err(Errno::TIME), notice: true }
    }

    /// Takes what is there: notices, and the answer to request `name`.
    fn take(&mut self, name: Option<u64>, mut each: impl FnMut(Notice)) -> Option<Answer> {
        let mut answer = None;
        #[cfg(test)]
        self.said.drain(..).for_each(|name| each(Notice { name, copied: false }));
        for entry in self.ring.completion() {
            let (of, flags, result) = (entry.user_data(), entry.flags(), entry.result());
            if cqueue::notif(flags) {
                each(Notice { name: of, copied: result as u32 & COPIED != 0 });
            } else if Some(of) == name {
                let sent = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
                answer = Some(Answer { sent, notice: cqueue::more(flags) });
            } else if let Some(at) = self.late.iter().position(|late| *late == of) {
                self.late.swap_remove(at);
                // A notice was promised: where the kernel has none, this is it.
                if !cqueue::more(flags) {
                    each(Notice { name: of, copied: false });
                }
            }
        }
        answer
    }

    /// Takes all notices that are there.
    pub fn notices(&mut self, each: impl FnMut(Notice)) {
        if self.ring.submission().cq_overflow() {
            // SAFETY: without an argument; makes the kernel put what had no room into the ring, and hands nothing over.
            let _ = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, GETEVENTS, None) };
        }
        self.take(None, each);
    }
}

/// Readable while notices are there.
impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has the descriptor open as long as it lives, and it lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// A child's copy is left alone: the ring is the parent's, and not mapped in the child. What is pinned is let go of by name: a child that has the
/// descriptor, too, would keep it.
impl Drop for Uring {
    fn drop(&mut self) {
        if !fork::in_child() {
            (0..self.slots).for_each(|slot| self.empty(slot));
            // SAFETY: once, and the ring is not used after that.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
