//! Payload that leaves without a copy by the kernel (`docs/adr/0022-zero-copy-send.md`), by `MSG_ZEROCOPY` or, out of buffers that are registered, by io_uring
//! ([`desk`]), or inside a host as pages that the receiver reads ([`pages`]): for which payload ([`choice`]), and when its memory is the application's again ([`loans`]).
//!
//! Only the application's memory is *lent*: heads and lines of the ring are rewritten while the kernel may still read them. Whoever posted the
//! payload hears that it has left once the kernel, or the receiver, is through with every part of it. A connection that is given up is broken
//! off first ([`ZeroCopy::take_back`]): else its kernel could send later what the application has written meanwhile.

#[cfg(test)]
mod answers_tests;
mod choice;
mod desk;
#[cfg(test)]
mod lane_tests;
mod loans;
#[cfg(test)]
mod memory_tests;
mod pages;
#[cfg(test)]
mod pages_tests;
mod samples;
mod tales;
#[cfg(test)]
mod tests;

use super::lessons::{Copies, Lessons};
use super::outgoing::Posted;
use super::stream::Stream;
use crate::cache::registered::NotHeld;
use crate::config::network;
use crate::mem::user::UserSeg;
use crate::sys::clock::Clock;
use crate::sys::poller::Poller;
use crate::sys::{cpu, fork, tcp, zerocopy};
use choice::{Choice, Refusal};
use desk::{Account, Desk};
use loans::{By, Loans};
use pages::Pages;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use tales::Standing;

pub(super) use choice::{CLASSES, Way};
pub use tales::Sums;

/// Nanoseconds that a connection which was broken off may take until the kernel lets go of our memory. What it still had queued is gone at once; what a
/// network card has been given leaves within this time, or the card hangs.
const LET_GO: u64 = 1_000_000_000;
/// The same for a peer of this host that reads our pages: until its kernel, which is ours, has told it that the connection is broken off. That happens before the call
/// returns by which we do that, unless the kernel has put it off because it is busy.
const HEARD: u64 = 2_000_000;

/// Payloads that are taken to be part of a crowd after one that was: what leaves as soon as it is posted seems to be alone, too.
const CROWD: u32 = 32;

/// How the connections of an endpoint lend.
#[derive(Clone)]
pub(super) struct Means {
    wanted: network::ZeroCopy,
    desk: Arc<Desk>,
    pages: Arc<Pages>,
    lessons: Arc<OnceLock<Arc<Lessons>>>,
}

impl Means {
    pub fn new(wanted: network::ZeroCopy, poller: Arc<Poller>) -> Means {
        Means { wanted, desk: Arc::new(Desk::new(poller)), pages: Arc::default(), lessons: Arc::default() }
    }

    /// Connections begin with what `lessons`, once they are there, say of their link.
    pub fn learning_from(self, lessons: Arc<OnceLock<Arc<Lessons>>>) -> Means {
        Means { lessons, ..self }
    }

    /// A choice that begins with what others found of the link by which `stream` leaves.
    fn choice(&self, stream: &Stream) -> Choice {
        let known = self.lessons.get().and_then(|lessons| lessons.of(&lessons.link(stream)?).copies);
        known.map_or_else(Choice::default, |(copies, by)| Choice::from_others(&copies, by))
    }

    /// For the connection at `slot`.
    pub fn at(&self, slot: u32) -> ZeroCopy {
        match self.wanted {
            network::ZeroCopy::Never => ZeroCopy::never(),
            _ => ZeroCopy::Unasked(self.clone(), slot),
        }
    }

    /// The places of connections that the kernel has something to say to about registered buffers.
    pub fn news(&self) -> Vec<u32> {
        self.desk.news()
    }

    /// Lets go of registered memory that the program has unmapped.
    pub fn tend(&self) {
        self.desk.tend();
    }
}

/// A connection that may lend.
pub(super) struct Lender {
    loans: Loans<Posted>,
    /// `None`: it always lends.
    choice: Option<Choice>,
    /// With the endpoint's registered buffers; `None`: they are not wanted.
    account: Option<Account>,
    /// What is lent is read by the receiver, who says when it is through.
    pages: Option<Arc<pages::Shared>>,
    /// Frames that were lent so of which he has said that.
    returned: u32,
    /// Payloads since the last one that was not alone, from [`CROWD`] down.
    crowd: u32,
    /// Why a buffer was not registered last, as long as nothing left out of one.
    unheld: Option<NotHeld>,
    clock: Clock,
    /// Nanoseconds of system calls with the payload that leaves.
    spent: u64,
    /// Bytes that were lent, those that left out of registered buffers, and how many of both the kernel copied all the same.
    lent: u64,
    registered: u64,
    copied: u64,
}

impl Lender {
    /// Registers payload that is to leave so, where that is still to be done. Whether it can.
    fn hold(&mut self, payload: UserSeg, whole: UserSeg) -> bool {
        let Some(account) = &self.account else { return false };
        let began = self.clock.now();
        let held = account.hold(payload, whole);
        self.unheld = held.err();
        if let Some(choice) = &mut self.choice {
            match held {
                Ok(true) => choice.registered(self.clock.now() - began),
                Ok(false) => {}
                Err(NotHeld::Limits) => choice.refused(Way::Registered, Refusal::Limits),
                Err(NotHeld::Memory) => choice.withdrawn(Way::Registered),
            }
        }
        held.is_ok()
    }

    /// The way for the next `len` bytes: `payload`, in a buffer, if they are one piece.
    fn way(&mut self, len: usize, payload: Option<[UserSeg; 2]>) -> Way {
        // There may be a ring by now.
        let is_open = self.account.as_mut().is_some_and(Account::is_open);
        let account = self.account.as_ref().filter(|_| is_open);
        let may_hold = |[payload, _]: &[UserSeg; 2]| account.is_some_and(|account| account.may_hold(*payload));
        let piece = payload.filter(may_hold);
        if let Some(choice) = &mut self.choice {
            choice.registers(is_open);
        }
        let way = match &mut self.choice {
            Some(choice) => choice.next(len, piece.is_some()),
            None if piece.is_some() => Way::Registered,
            None => Way::Lent,
        };
        match piece {
            Some([payload, whole]) if way == Way::Registered && !self.hold(payload, whole) => {
                self.choice.as_mut().map_or(Way::Lent, |choice| choice.next(len, false))
            }
            _ => way,
        }
    }
}

/// One connection's.
pub(super) enum ZeroCopy {
    /// No payload was long enough to ask. The connection's place.
    Unasked(Means, u32),
    /// Never.
    Off(Standing),
    /// It may.
    May(Box<Lender>),
}

impl ZeroCopy {
    pub fn never() -> ZeroCopy {
        ZeroCopy::Off(Standing::Never)
    }

    /// Whether it may lend, found out once. `lane`: nobody says there what has been read.
    fn ask(means: &Means, slot: u32, stream: &Stream, lane: bool) -> ZeroCopy {
        let wanted = means.wanted;
        let by_pages = matches!(wanted, network::ZeroCopy::Pages | network::ZeroCopy::Auto) && stream.is_near();
        if wanted == network::ZeroCopy::Pages && !by_pages {
            return ZeroCopy::Off(Standing::Far);
        }
        if by_pages && lane {
            return ZeroCopy::Off(Standing::Near);
        }
        if stream.is_encrypted() {
            return ZeroCopy::Off(Standing::Encrypted);
        }
        let allowed = if by_pages { zerocopy::is_sound() } else { zerocopy::allow(stream.fd()).is_ok() };
        if !allowed {
            return ZeroCopy::Off(Standing::Impossible);
        }
        let pages = match by_pages.then(|| means.pages.open()).transpose() {
            Ok(pages) => pages,
            Err(why) => return ZeroCopy::Off(Standing::NoPages(why)),
        };
        let account = match wanted {
            _ if by_pages => None,
            network::ZeroCopy::Auto | network::ZeroCopy::Uring => Some(means.desk.account(slot)),
            _ => None,
        };
        let choice = (wanted == network::ZeroCopy::Auto).then(|| means.choice(stream));
        let (loans, clock) = (Loans::default(), Clock::machine());
        ZeroCopy::May(Box::new(Lender {
            loans,
            choice,
            account,
            pages,
            returned: 0,
            crowd: 0,
            unheld: None,
            clock,
            spent: 0,
            lent: 0,
            registered: 0,
            copied: 0,
        }))
    }

    /// Whether [`way`](Self::way) is to be asked about the next `len` bytes, and they are to leave alone. `more`: other payload waits, too.
    ///
    /// A message that is alone is not lent to a receiver of this host: while we copy one part of it, he copies the one before, and that takes no longer than all of it takes
    /// him. Where many follow one another both are busy anyway, and one copy of each is better than two.
    pub fn considers(&mut self, len: usize, more: bool) -> bool {
        match self {
            ZeroCopy::Off(_) => false,
            ZeroCopy::Unasked(means, _) => means.wanted != network::ZeroCopy::Auto || len >= choice::LEAST,
            ZeroCopy::May(lender) => {
                let crowded = more || lender.loans.waits();
                lender.crowd = if crowded { CROWD } else { lender.crowd.saturating_sub(1) };
                let worth = lender.pages.is_none() || lender.crowd > 0 && len >= choice::LEAST_OF_PAGES;
                lender.choice.as_mut().is_none_or(|choice| worth && choice.considers(len))
            }
        }
    }

    /// The first payload that is long enough: whether such may be lent is asked now. `lane`: it leaves by one.
    pub fn begin(&mut self, stream: &Stream, lane: bool) {
        if let ZeroCopy::Unasked(means, slot) = self {
            *self = ZeroCopy::ask(means, *slot, stream, lane);
        }
    }

    /// How the next `len` bytes of payload `id` are to leave; `None`: copied, and nobody wants to know what that costs. `payload`: these bytes, if they are
    /// one piece, and the buffer of the application's that they lie in. Also whether the receiver is to say when he has read them.
    pub fn way(&mut self, id: Posted, len: usize, payload: Option<[UserSeg; 2]>) -> Option<(Way, bool)> {
        let lender = self.lender()?;
        let way = lender.way(len, payload);
        if way != Way::Copied && !lender.loans.is_open() {
            lender.loans.begin(id);
        }
        let by_pages = way == Way::Lent && lender.pages.is_some();
        if by_pages {
            // One word of his for each frame, however many calls it leaves by.
            lender.loans.took(By::Call, len);
        }
        lender.spent = 0;
        Some((way, by_pages))
    }

    /// Whether payload was ever long enough to ask whether it may lend.
    pub fn was_asked(&self) -> bool {
        !matches!(self, ZeroCopy::Unasked(..))
    }

    /// What was found out here of what payload costs, if anything was since this was asked last.
    pub fn news(&mut self) -> Option<Copies> {
        self.lender()?.choice.as_mut()?.news()
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

    /// How much of payload, which begins with this piece, one call of [`lend`](Self::lend) can send.
    pub fn at_once(&self, way: Way, first: UserSeg) -> usize {
        match self {
            ZeroCopy::May(lender) if way == Way::Registered => {
                lender.account.as_ref().map_or(usize::MAX, |account| account.at_once(first))
            }
            _ => usize::MAX,
        }
    }

    /// Sends payload without a copy by the kernel, as much as the socket takes.
    ///
    /// # Errors
    /// As [`zerocopy::send`]; `ESTALE`: it lies in no registered buffer any more; `ETIME`: nobody knows what has left ([`Answer`](crate::sys::uring::Answer)).
    pub fn lend(&mut self, fd: &OwnedFd, way: Way, pieces: &[tcp::Piece<'_>]) -> Result<usize, Errno> {
        let Some(lender) = self.lender() else { return Err(Errno::OPNOTSUPP) };
        match (way, pieces) {
            (Way::Registered, [tcp::Piece::User(payload)]) => {
                let answer = lender.account.as_mut().and_then(|account| account.send(fd, *payload)).ok_or(Errno::STALE)?;
                if answer.notice {
                    // Also if nothing was sent: the memory is waited for, and the number is taken.
                    lender.loans.took(By::Request, answer.sent.unwrap_or(0));
                }
                lender.registered += answer.sent.unwrap_or(0) as u64;
                answer.sent
            }
            (Way::Registered, _) => Err(Errno::OPNOTSUPP),
            _ if let Some(pages) = &lender.pages => {
                let sent = pages.send(fd, pieces)?;
                lender.lent += sent as u64;
                Ok(sent)
            }
            _ => {
                let sent = zerocopy::send(fd, pieces)?;
                lender.loans.took(By::Call, sent);
                lender.lent += sent as u64;
                Ok(sent)
            }
        }
    }

    /// The kernel did not take it so. Whether it is to be copied instead; else it is an error, or there is no room.
    pub fn is_refusal(&mut self, way: Way, why: Errno) -> bool {
        let refusal = match why {
            Errno::NOBUFS | Errno::NOMEM => Some(Refusal::Limits),
            Errno::FAULT | Errno::OPNOTSUPP | Errno::INVAL => Some(Refusal::Memory),
            Errno::STALE => None,
            _ => return false,
        };
        let Some(lender) = self.lender() else { return true };
        // The kernel also says so of memory that would follow a request's in the socket's queue, however little is pinned.
        let behind_a_request = (way, why) == (Way::Lent, Errno::NOBUFS) && lender.loans.waits_for(By::Request);
        if let Some(choice) = &mut lender.choice {
            match refusal {
                Some(refusal) if !behind_a_request => choice.refused(way, refusal),
                _ => choice.withdrawn(way),
            }
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

    /// Whether the kernel, or the receiver, is to tell that it is through with something.
    pub fn waits(&self) -> bool {
        matches!(self, ZeroCopy::May(lender) if lender.loans.waits())
    }

    /// Whether the kernel is.
    #[inline]
    pub fn awaits_kernel(&self) -> bool {
        matches!(self, ZeroCopy::May(lender) if lender.pages.is_none() && lender.loans.waits())
    }

    /// The receiver has read `frames` frames of what was lent to him, since the start. Puts the names of payloads that are free into `free`. Whether he was lent so many.
    pub fn returned(&mut self, frames: u32, free: &mut VecDeque<Posted>) -> bool {
        let Some(lender) = self.lender().filter(|lender| lender.pages.is_some()) else { return false };
        let news = frames.wrapping_sub(lender.returned);
        if news as usize > lender.loans.unanswered() {
            return false;
        }
        if news > 0 {
            let notice = zerocopy::Notice { calls: [lender.returned, frames.wrapping_sub(1)], copied: false };
            let (calls, bytes) = lender.loans.answered(By::Call, notice, free);
            lender.returned = frames;
            if let Some(choice) = &mut lender.choice {
                choice.answered(Way::Lent, calls, bytes, 0, 0);
            }
        }
        true
    }

    /// Takes the kernel's notices, and puts the names of payloads that are free into `free`.
    pub fn hear(&mut self, fd: &OwnedFd, free: &mut VecDeque<Posted>) {
        let Some(lender) = self.lender() else { return };
        for (by, way) in [(By::Call, Way::Lent), (By::Request, Way::Registered)] {
            let (began, mut calls, mut answered, mut copied) = (lender.clock.now(), 0, 0, 0);
            let loans = &mut lender.loans;
            let each = |notice: zerocopy::Notice| {
                let (news, bytes) = loans.answered(by, notice, free);
                calls += news;
                answered += bytes;
                copied += if notice.copied { bytes } else { 0 };
            };
            match (by, &lender.account) {
                (By::Call, _) => zerocopy::notices(fd, each),
                (By::Request, Some(account)) => account.notices().into_iter().for_each(each),
                (By::Request, None) => {}
            }
            lender.copied += copied as u64;
            if let Some(choice) = &mut lender.choice
                && calls > 0
            {
                choice.answered(way, calls, answered, copied, lender.clock.now() - began);
            }
        }
    }

    /// The connection is broken off if something is on loan. Whether it is.
    pub fn break_off(&self, fd: &OwnedFd) -> bool {
        let lends = self.waits() && !fork::in_child();
        if lends {
            zerocopy::break_off(fd);
        }
        lends
    }

    /// Nothing of what is lent is read any more when this returns, by the kernel, which says so: the connection is broken off. Pages that are in the queue of a receiver of
    /// this host may still be read by him, but he finds out that it is broken off before he believes them ([`is_reset`](tcp::is_reset)).
    ///
    /// It throws away at once what waits to be sent, and to be sent again. A network card may still be reading; that is waited for, mostly
    /// some microseconds, until `clock` says [`LET_GO`]. (Only to hang up would not do: the kernel would go on sending what the memory holds *then*.)
    pub fn take_back(&mut self, fd: &OwnedFd, clock: &Clock) {
        // Who has broken it off himself, or is no more, reads nothing.
        let reads = self.lender().is_some_and(|lender| lender.pages.is_some()) && !tcp::is_reset(fd);
        // A child has its own memory, and its parent's connection is not its own.
        if !self.break_off(fd) {
            return;
        }
        if let Some(lender) = self.lender().filter(|lender| lender.pages.is_some()) {
            let begun = lender.clock.now();
            while reads && lender.clock.now() - begun < HEARD {
                cpu::yield_core();
            }
            lender.loans = Loans::default();
            return;
        }
        while self.waits() && clock.now() < LET_GO {
            self.hear(fd, &mut VecDeque::new());
            cpu::yield_core();
        }
    }
}
