//! Payload that leaves without a copy by the kernel (`MSG_ZEROCOPY`, `docs/adr/0022-zero-copy-send.md`): for which payload ([`choice`]), and
//! when its memory is the application's again ([`loans`]).
//!
//! Only the application's memory is *lent* to the kernel: heads and lines of the ring are rewritten while it may still read them. Whoever posted the
//! payload hears that it has left once the kernel is through with every part of it. A connection that is given up is broken
//! off first ([`ZeroCopy::take_back`]): else its kernel could send later what the application has written meanwhile.

mod choice;
mod loans;
#[cfg(test)]
mod tests;

use super::outgoing::Posted;
use super::stream::Stream;
use crate::config::network;
use crate::sys::clock::Clock;
use crate::sys::{cpu, fork, tcp, zerocopy};
use choice::{Choice, Refusal, Verdict};
use loans::Loans;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;

pub(super) use choice::Way;

/// Nanoseconds that a connection which was broken off may take until the kernel lets go of our memory. What it still had queued is gone at once; what a
/// network card has been given leaves within this time, or the card hangs.
const LET_GO: u64 = 1_000_000_000;

/// Whether a connection lends, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Never,
    Near,
    Encrypted,
    Impossible,
    Always,
    Judged(Verdict),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Never => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=never"),
            Standing::Near => f.write_str("both ends are on this host, where the kernel copies all the same"),
            Standing::Encrypted => f.write_str("what is encrypted is copied by that"),
            Standing::Impossible => {
                f.write_str("this kernel cannot do it, or not so that a child (fork) changes nothing: Linux 5.9 can")
            }
            Standing::Always => f.write_str("FI_RUSTMX_TCP_ZEROCOPY=always"),
            Standing::Judged(verdict) => verdict.fmt(f),
        }
    }
}

/// What several connections did, for the counters and for people.
#[derive(Clone, Default)]
pub struct Sums {
    /// Bytes that were lent, and how many of these the kernel copied all the same.
    pub lent: u64,
    /// Of these.
    pub copied: u64,
    /// How they stand, how many alike, and what the first of these says.
    tales: Vec<(Standing, usize, String)>,
}

impl Sums {
    pub(super) fn add(&mut self, one: &ZeroCopy) {
        // Who had nothing long to send has nothing to tell.
        let Some(standing) = one.standing() else { return };
        if let ZeroCopy::May(lender) = one {
            self.lent += lender.lent;
            self.copied += lender.copied;
        }
        match self.tales.iter_mut().find(|(s, ..)| *s == standing) {
            Some((_, count, _)) => *count += 1,
            None => self.tales.push((standing, 1, one.says())),
        }
    }

    /// For each kind whether they lend, how many, and why.
    pub fn tales(&self) -> impl Iterator<Item = (bool, usize, &str)> {
        let lends = |s: &Standing| matches!(s, Standing::Always | Standing::Judged(Verdict::Pays));
        self.tales.iter().map(move |(standing, count, says)| (lends(standing), *count, says.as_str()))
    }
}

impl super::Tcp {
    /// What left without a copy, and why so or not, on all connections that there are and were.
    pub fn zerocopies(&self) -> Sums {
        let mut sums = self.office.zerocopies.lock().clone();
        self.connections.iter().filter_map(|(_, weak)| weak.upgrade()).for_each(|connection| connection.add_zerocopy(&mut sums));
        sums
    }
}

/// A connection that may lend.
pub(super) struct Lender {
    loans: Loans<Posted>,
    /// `None`: it always lends.
    choice: Option<Choice>,
    clock: Clock,
    /// Nanoseconds of system calls with the payload that leaves.
    spent: u64,
    /// Bytes that were lent, and how many of these the kernel copied all the same.
    lent: u64,
    copied: u64,
}

/// One connection's.
pub(super) enum ZeroCopy {
    /// No payload was long enough to ask.
    Unasked(network::ZeroCopy),
    /// Never.
    Off(Standing),
    /// It may.
    May(Box<Lender>),
}

impl ZeroCopy {
    pub fn new(wanted: network::ZeroCopy) -> ZeroCopy {
        match wanted {
            network::ZeroCopy::Never => ZeroCopy::Off(Standing::Never),
            wanted => ZeroCopy::Unasked(wanted),
        }
    }

    /// Whether it may lend, found out once.
    fn ask(wanted: network::ZeroCopy, stream: &Stream) -> ZeroCopy {
        let choice = match wanted {
            network::ZeroCopy::Always => None,
            _ if tcp::is_near(stream.fd()) => return ZeroCopy::Off(Standing::Near),
            _ => Some(Choice::new()),
        };
        if stream.is_encrypted() {
            return ZeroCopy::Off(Standing::Encrypted);
        }
        if zerocopy::allow(stream.fd()).is_err() {
            return ZeroCopy::Off(Standing::Impossible);
        }
        let (loans, clock) = (Loans::default(), Clock::machine());
        ZeroCopy::May(Box::new(Lender { loans, choice, clock, spent: 0, lent: 0, copied: 0 }))
    }

    /// Whether [`way`](Self::way) is to be asked about the next `len` bytes, and they are to leave alone.
    pub fn considers(&mut self, len: usize) -> bool {
        match self {
            ZeroCopy::Off(_) => false,
            ZeroCopy::Unasked(wanted) => *wanted == network::ZeroCopy::Always || len >= choice::LEAST,
            ZeroCopy::May(lender) => lender.choice.as_mut().is_none_or(|choice| choice.considers(len)),
        }
    }

    /// How the next `len` bytes of payload `id` are to leave; `None`: copied, and nobody wants to know what that costs.
    pub fn way(&mut self, stream: &Stream, id: Posted, len: usize) -> Option<Way> {
        if let ZeroCopy::Unasked(wanted) = *self {
            *self = ZeroCopy::ask(wanted, stream);
        }
        let lender = self.lender()?;
        let way = lender.choice.as_mut().map_or(Way::Lent, |choice| choice.next(len));
        if way == Way::Lent && !lender.loans.is_open() {
            lender.loans.begin(id);
        }
        lender.spent = 0;
        Some(way)
    }

    fn lender(&mut self) -> Option<&mut Lender> {
        if let ZeroCopy::May(lender) = self { Some(lender) } else { None }
    }

    /// Nanoseconds, for [`spent_since`](Self::spent_since).
    pub fn now(&self) -> u64 {
        if let ZeroCopy::May(lender) = self { lender.clock.now() } else { 0 }
    }

    /// A part of such payload was sent meanwhile.
    pub fn spent_since(&mut self, began: u64) {
        if let Some(lender) = self.lender() {
            lender.spent += lender.clock.now() - began;
        }
    }

    /// A call took `bytes`, which the kernel reads from now on.
    pub fn lent(&mut self, bytes: usize) {
        let Some(lender) = self.lender() else { return };
        lender.loans.took(bytes);
        lender.lent += bytes as u64;
    }

    /// The kernel did not take it so. Whether it is to be copied instead; else it is an error, or there is no room.
    pub fn is_refusal(&mut self, why: Errno) -> bool {
        let why = match why {
            Errno::NOBUFS | Errno::NOMEM => Refusal::Limits,
            Errno::FAULT | Errno::OPNOTSUPP | Errno::INVAL => Refusal::Memory,
            _ => return false,
        };
        if let Some(choice) = self.lender().and_then(|lender| lender.choice.as_mut()) {
            choice.refused(why);
        }
        true
    }

    /// All of what [`way`](Self::way) was asked about has left so.
    pub fn took(&mut self, way: Way, len: usize) {
        let Some(lender) = self.lender() else { return };
        let spent = lender.spent;
        if let Some(choice) = &mut lender.choice {
            choice.took(way, len, spent);
        }
    }

    /// Payload `id` has left, all of it. Whether its memory is the application's again.
    pub fn is_free(&mut self, id: Posted) -> bool {
        match self.lender() {
            Some(lender) if lender.loans.is_open() => lender.loans.whole() == Some(id),
            _ => true,
        }
    }

    /// Whether the kernel is to tell that it is through with something.
    pub fn waits(&self) -> bool {
        matches!(self, ZeroCopy::May(lender) if lender.loans.waits())
    }

    /// Takes the kernel's notices, and puts the names of payloads that are free into `free`.
    pub fn hear(&mut self, fd: &OwnedFd, free: &mut VecDeque<Posted>) {
        let Some(lender) = self.lender() else { return };
        let (began, mut calls, mut answered, mut copied) = (lender.clock.now(), 0, 0, 0);
        zerocopy::notices(fd, |notice| {
            let (news, bytes) = lender.loans.answered(notice, free);
            calls += news;
            answered += bytes;
            copied += if notice.copied { bytes } else { 0 };
        });
        lender.copied += copied as u64;
        if let Some(choice) = &mut lender.choice
            && calls > 0
        {
            choice.answered(calls, answered, copied, lender.clock.now() - began);
        }
    }

    /// Nothing of what is lent is read any more when this returns: the connection is broken off, and the kernel says that it is through.
    ///
    /// It throws away at once what waits to be sent, and to be sent again. A network card may still be reading; that is waited for, mostly
    /// some microseconds, at most [`LET_GO`]. (Only to hang up would not do: the kernel would go on sending what the memory holds *then*.)
    pub fn take_back(&mut self, fd: &OwnedFd) {
        // A child has its own memory, and its parent's connection is not its own.
        if !self.waits() || fork::in_child() {
            return;
        }
        zerocopy::break_off(fd);
        let clock = Clock::machine();
        while self.waits() && clock.now() < LET_GO {
            self.hear(fd, &mut VecDeque::new());
            cpu::yield_core();
        }
    }

    fn standing(&self) -> Option<Standing> {
        match self {
            ZeroCopy::Unasked(_) => None,
            ZeroCopy::Off(why) => Some(*why),
            ZeroCopy::May(lender) => Some(lender.choice.as_ref().map_or(Standing::Always, |c| Standing::Judged(c.verdict()))),
        }
    }

    fn says(&self) -> String {
        match self {
            ZeroCopy::May(lender) if lender.choice.is_some() => lender.choice.as_ref().map(ToString::to_string),
            _ => self.standing().map(|standing| standing.to_string()),
        }
        .unwrap_or_default()
    }
}
