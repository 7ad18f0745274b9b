//! What the connections of an endpoint share to send out of registered buffers: a ring with its table, the buffers that it holds, and
//! the notices, until the connections take them.
//!
//! It is made when the first connection asks that may lend, and its descriptor is watched like a connection's: notices wake who sleeps. Where it cannot be made
//! because others have what it takes, that is tried again, ever more seldom.

use super::super::RING;
use crate::cache::registered::{NotHeld, Registered, SLOTS};
use crate::mem::user::UserSeg;
use crate::sys::event::EventFd;
use crate::sys::fork;
use crate::sys::poller::Poller;
use crate::sys::uring::{self, Answer, NoRing, Uring};
use crate::sys::zerocopy::Notice;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// See above. Its lock is the last one that is taken: by connections that have their own.
pub(super) struct Desk {
    poller: Arc<Poller>,
    state: Mutex<State>,
}

enum State {
    Unasked,
    Refused(Refused),
    Open(Box<Open>),
}

/// There is no ring, and why.
struct Refused {
    why: NoRing,
    /// How often it was asked for since, and at which of these times it is tried again.
    asked: u64,
    due: u64,
}

/// Payloads for which a ring would be of use until it is tried again: at first; then twice as many, and so on.
const AGAIN: u64 = 64;

struct Open {
    uring: Uring,
    held: Registered,
    /// Accounts by number.
    inboxes: FxHashMap<u32, Inbox>,
    last: u32,
    /// Readable while there are notices that were taken out of the ring, whose own descriptor is not readable any more, and that nobody has asked for.
    bell: EventFd,
    rang: bool,
}

/// What the kernel has said to one connection.
struct Inbox {
    /// The connection's place among those of its endpoint.
    slot: u32,
    notices: Vec<Notice>,
}

impl Open {
    fn new(poller: &Poller) -> Result<Open, NoRing> {
        let never = |why| NoRing { why, may_pass: false };
        let held = Registered::default();
        if let Some(why) = held.refusal() {
            return Err(never(format!("of registered memory nobody could tell what becomes of it: {why}")));
        }
        let uring = Uring::open(SLOTS)?;
        let bell = EventFd::new().map_err(|why| never(format!("there is no eventfd ({why})")))?;
        let watched = poller.add(&uring, RING).and_then(|()| poller.add(&bell, RING));
        watched.map_err(|why| never(format!("its ring cannot be watched ({why})")))?;
        Ok(Open { uring, held, inboxes: FxHashMap::default(), last: 0, bell, rang: false })
    }

    /// A number for the connection at `slot`; `None`: all are in use.
    fn number(&mut self, slot: u32) -> Option<u32> {
        // One that is in use was given 2^32 connections ago.
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        if self.inboxes.contains_key(&number) {
            return None;
        }
        self.inboxes.insert(number, Inbox { slot, notices: Vec::new() });
        Some(number)
    }

    /// Keeps what was said until its connection asks.
    fn keep(inboxes: &mut FxHashMap<u32, Inbox>, said: uring::Notice) {
        let (account, call) = ((said.name >> 32) as u32, said.name as u32);
        // Else it has been given up, and what it lent with it.
        if let Some(inbox) = inboxes.get_mut(&account) {
            inbox.notices.push(Notice { calls: [call; 2], copied: said.copied });
        }
    }

    /// Takes what there is.
    fn collect(&mut self) {
        let Open { uring, inboxes, .. } = self;
        uring.notices(|said| Open::keep(inboxes, said));
    }

    /// Somebody is to look who has been told something.
    fn ring(&mut self) {
        if !std::mem::replace(&mut self.rang, true) {
            self.bell.raise();
        }
    }
}

impl Desk {
    pub fn new(poller: Arc<Poller>) -> Desk {
        Desk { poller, state: Mutex::new(State::Unasked) }
    }

    /// An account for the connection at `slot`.
    pub fn account(self: &Arc<Desk>, slot: u32) -> Account {
        let number = self.number(slot);
        Account { desk: self.clone(), slot, number, next: 0 }
    }

    /// A number for the connection at `slot`; `None`: there is no ring, and none to be had at the moment.
    fn number(&self, slot: u32) -> Option<u32> {
        let mut state = self.state.lock();
        let due = match &mut *state {
            State::Unasked => AGAIN,
            State::Refused(Refused { why, asked, due }) => {
                *asked += 1;
                if !why.may_pass || asked < due {
                    return None;
                }
                due.saturating_mul(2)
            }
            State::Open(open) => return open.number(slot),
        };
        *state = match Open::new(&self.poller) {
            Ok(open) => State::Open(Box::new(open)),
            Err(why) => State::Refused(Refused { why, asked: 0, due }),
        };
        if let State::Open(open) = &mut *state { open.number(slot) } else { None }
    }

    /// Why nothing can be sent so, in words.
    fn refusal(&self) -> Option<String> {
        match &*self.state.lock() {
            State::Unasked => None,
            State::Refused(refused) => Some(refused.why.why.clone()),
            State::Open(open) if open.uring.takes_requests() => None,
            State::Open(_) => Some("the kernel left a request unanswered, or did not take it: it is asked no more".into()),
        }
    }

    fn with<T>(&self, what: impl FnOnce(&mut Open) -> T) -> Option<T> {
        match &mut *self.state.lock() {
            State::Open(open) => Some(what(open)),
            _ => None,
        }
    }

    /// The places of connections that the kernel has said something to.
    pub fn news(&self) -> Vec<u32> {
        let news = self.with(|open| {
            open.collect();
            if std::mem::take(&mut open.rang) {
                open.bell.lower();
            }
            open.inboxes.values().filter(|inbox| !inbox.notices.is_empty()).map(|inbox| inbox.slot).collect()
        });
        news.unwrap_or_default()
    }

    /// Lets go of memory that the program has unmapped.
    pub fn tend(&self) {
        self.with(|open| open.held.tend(&open.uring));
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if let State::Open(open) = self.state.get_mut()
            && !fork::in_child()
        {
            self.poller.remove(&open.uring);
            self.poller.remove(&open.bell);
        }
    }
}

/// One connection's account: its calls are numbered, and it gets their notices.
pub(super) struct Account {
    desk: Arc<Desk>,
    slot: u32,
    /// `None`: as long as there is no ring.
    number: Option<u32>,
    next: u32,
}

impl Account {
    /// Whether there is a ring; asks for it again, now and then. For each payload.
    pub fn is_open(&mut self) -> bool {
        if self.number.is_none() {
            self.number = self.desk.number(self.slot);
        }
        self.number.is_some()
    }

    /// Why nothing can be sent so, in words.
    pub fn refusal(&self) -> Option<String> {
        self.desk.refusal()
    }

    /// See [`Uring::answer_late`].
    #[cfg(test)]
    pub fn answer_late(&self) {
        self.desk.with(|open| open.uring.answer_late());
    }

    /// See [`Uring::answer_instead`].
    #[cfg(test)]
    pub fn answer_instead(&self, answer: Answer) {
        self.desk.with(|open| open.uring.answer_instead(answer));
    }

    /// See [`Uring::unneeded`].
    #[cfg(test)]
    pub fn unneeded(&self) -> usize {
        self.desk.with(|open| open.uring.unneeded()).unwrap_or(0)
    }

    /// Takes the pages of all slots away, and tells nobody: requests fail.
    #[cfg(test)]
    pub fn empty_all(&self) {
        self.desk.with(|open| (0..SLOTS).for_each(|slot| open.uring.empty(slot)));
    }

    /// Whether payload lies in a registered buffer, or in one that came again and is worth trying.
    pub fn may_hold(&self, payload: UserSeg) -> bool {
        self.desk.with(|open| open.uring.takes_requests() && open.held.may_hold(payload)) == Some(true)
    }

    /// See [`Registered::hold`].
    ///
    /// # Errors
    /// See there.
    pub fn hold(&self, payload: UserSeg, whole: UserSeg) -> Result<bool, NotHeld> {
        self.desk.with(|open| open.held.hold(&open.uring, payload, whole)).unwrap_or(Err(NotHeld::Memory))
    }

    /// See [`Registered::at_once`].
    pub fn at_once(&self, payload: UserSeg) -> usize {
        self.desk.with(|open| open.held.at_once(payload)).unwrap_or(payload.len())
    }

    /// Sends out of a registered buffer; `None`: it is none any more. An answer that announces a notice has taken a number, also if nothing was sent.
    pub fn send(&mut self, fd: &OwnedFd, payload: UserSeg) -> Option<Answer> {
        let name = u64::from(self.number?) << 32 | u64::from(self.next);
        let answer = self.desk.with(|open| {
            let Open { uring, held, inboxes, .. } = open;
            let (slot, mut told) = (held.slot(payload)?, false);
            let answer = uring.send(fd, slot, payload, name, |said| {
                Open::keep(inboxes, said);
                told = true;
            });
            if told {
                open.ring();
            }
            Some(answer)
        })??;
        self.next = self.next.wrapping_add(u32::from(answer.notice));
        Some(answer)
    }

    /// What the kernel has said.
    pub fn notices(&self) -> Vec<Notice> {
        let Some(number) = self.number else { return Vec::new() };
        let notices = self.desk.with(|open| {
            open.collect();
            let own = open.inboxes.get_mut(&number).map(|inbox| std::mem::take(&mut inbox.notices));
            if open.inboxes.values().any(|inbox| !inbox.notices.is_empty()) {
                open.ring();
            }
            own
        });
        notices.flatten().unwrap_or_default()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // In a child somebody else may have had the lock.
        if let Some(number) = self.number
            && !fork::in_child()
        {
            self.desk.with(|open| open.inboxes.remove(&number));
        }
    }
}
