//! A receive that waits invites its sender to write a part of the message where it goes (`shm/invite.rs`): both copy from the first moment on, without ACCEPT and claims.
//!
//! ```text
//! sender                                        receiver
//!                                               a receive is posted that this sender's next message must match
//!   a message that fits: take the invitation up ◀─ invitation [which message | where it goes]
//!   OFFER, invited ─▶
//!   write what is behind the front              copy the front
//!   placed ─▶                                   wait for that
//!         ◀───────────── FIN ──────────────────
//! ```
//! * **What is matched is what was invited.** The endpoint invites for a receive before which nothing is posted that a message of this sender's could match, and the sender takes
//!   nothing up once it has said a message of which the receiver had not heard. Both know the order of messages, so the next one is the one. Who speaks by two links, which know
//!   nothing of each other's order, is invited no more ([`Copies::ends_inviting`]).
//! * One invitation stands at a time, and another takes its place only if it could be withdrawn, or its message is here.
//! * The sender writes in its call, so nobody waits for it longer than that copy takes; of messages that are longer than [`LONGEST`] it would hold up the caller.
//! * A receive that is cancelled is withdrawn first; if the sender has taken it up, its message is on the way, and it is too late.
//! * An invitation that comes too late, or for a message that is better copied by one side, costs both. So they are for peers that have sent such messages of late, pause for ever longer
//!   where they came too late ([`Inviting`]), and name the size from which on they were seen to pay (`pace.rs`).

use super::means::{Loan, Means};
use super::receiver::{Coming, State};
use super::{Copies, LEAST_CHUNK, Note, Said, Sharing};
use crate::mem::user::UserSeg;
use crate::protocol::{Announced, Placed};
use crate::request::{Message, RecvReq};
use crate::shm::split::MAX_NUMBER;
use crate::sys::clock::Clock;
use crate::transport::link::{Corrupt, Link};
use crate::wire::invitation::{Invitation, LONGEST, front};
use crate::wire::offer::Pieces;

/// Bytes of the shortest message that a receive is worth an invitation for.
pub const SHORTEST: usize = 2 * LEAST_CHUNK;
/// Invitations in a row for which no such message came, after which there are no more until one does.
pub(super) const HOPES: u8 = 4;
/// One that came too late counts as much as so many that were taken up; and so many, less those, are enough.
const LATE: u8 = 2;
const TOO_LATE: u8 = 6;
/// Messages that are then taken in without, the first time and at most.
pub(super) const PAUSES: (u32, u32) = (16, 4096);
/// Invitations taken up in a row after which the next pause is the shortest again.
const IN_TIME: u8 = 16;

/// The invitation that stands.
struct Standing {
    number: u64,
    address: usize,
    least: usize,
    most: usize,
}

/// What the receiver knows of its invitations to one peer.
#[derive(Default)]
pub(super) struct Inviting {
    /// Whether there are to be any, and those of the peer are taken up.
    on: bool,
    /// The number of the last one.
    last: u64,
    now: Option<Standing>,
    /// How many more are tried.
    hopes: u8,
    /// Bytes of the last message that could have been invited.
    about: usize,
    late: u8,
    in_time: u8,
    /// Messages that are to come before the next one.
    rest: u32,
    /// And after the next pause.
    pause: u32,
    /// Sender: the memory that the peer's invitation named last and that is not mapped here, and whether it is to be looked for.
    unheard: (u32, bool),
}

impl Inviting {
    /// A message that could have been invited came for a receive that waited; `late`: an invitation stood.
    fn saw(&mut self, late: bool) {
        self.hopes = HOPES;
        self.rest = self.rest.saturating_sub(1);
        if late {
            self.in_time = 0;
            self.late += LATE;
        }
        if self.late >= TOO_LATE {
            self.late = 0;
            self.rest = self.pause.max(PAUSES.0);
            self.pause = (2 * self.rest).min(PAUSES.1);
        }
    }

    /// One was taken up.
    fn saw_invited(&mut self) {
        self.hopes = HOPES;
        self.late = self.late.saturating_sub(1);
        self.in_time = (self.in_time + 1).min(IN_TIME);
        if self.in_time == IN_TIME {
            self.pause = PAUSES.0;
        }
    }
}

/// What the receiver has of a message that it has invited.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    /// The invitation's number.
    pub number: u64,
    /// Bytes of the front, and how many of them are copied.
    pub front: usize,
    pub copied: usize,
}

/// The sender's part of a message that was invited.
pub(super) struct Taken {
    number: u64,
    loan: Loan,
    to: Pieces,
}

/// The shortest and the longest that may be invited between the first two of these borders.
fn first_between(borders: &[usize]) -> Option<(usize, usize)> {
    let first = borders.first()?.max(&SHORTEST);
    let end = borders.get(1).map_or(LONGEST, |end| end - 1);
    Some((*first, end.min(LONGEST)))
}

impl Copies {
    /// The table says nothing against both sides' copying messages of some sizes: the shortest and the longest of the first of these.
    fn invited_sizes(&self) -> Option<(usize, usize)> {
        if !self.inviting.on {
            return None;
        }
        first_between(match self.sharing {
            Sharing::Never => &self.forced_borders[1],
            Sharing::WhereItPays => &self.share_borders[1],
        })
    }

    /// Messages like the last ones, if these are worth an invitation: the shortest and the longest.
    fn worth_inviting(&self) -> Option<(usize, usize)> {
        match self.sharing {
            _ if self.is_forced(self.inviting.about, true) => first_between(&self.forced_borders[1]),
            Sharing::Never => None,
            Sharing::WhereItPays => self.pace.worth_inviting(self.inviting.about),
        }
    }

    /// Whether receives invite their sender, and invitations of the peer's are taken up. Not, if nobody says anything.
    pub fn set_inviting(&mut self, on: bool) {
        self.inviting.on = on;
    }

    /// Whether a receive of the peer's next message may be worth an invitation.
    pub fn hopes(&self) -> bool {
        self.inviting.hopes > 0 && self.inviting.rest == 0 && !self.no_loans && !self.no_stores && self.invited_sizes().is_some()
    }

    /// A message came for a receive that waited, and was not invited.
    pub(super) fn saw_uninvited(&mut self, bytes: usize, to: &[UserSeg]) {
        let late = match &self.inviting.now {
            Some(now) if to.first().is_some_and(|to| to.address() == now.address) => now.least <= bytes,
            _ => false,
        };
        if late {
            self.inviting.now = None;
        }
        if (SHORTEST..=LONGEST).contains(&bytes) {
            self.inviting.about = bytes;
            self.inviting.saw(late);
            self.pace.forget_invited(bytes);
        }
    }

    /// Invites the peer's next message to where a receive waits for it, in memory `lent` to it to be written; that message must match this receive.
    pub fn invite(&mut self, link: &Link, (tagged, tag, ignore): (bool, u64, u64), to: &UserSeg, lent: u32) {
        let Some((least, most)) = self.invited_sizes() else { return };
        let Some((shortest, longest)) = self.worth_inviting() else { return };
        let (least, most) = (least.max(shortest), most.min(longest).min(to.len()));
        if least > most {
            return;
        }
        // The last one was for nothing, unless its message is on the way: it may stand for an untagged message, or its receive may have had another.
        if let Some(now) = &self.inviting.now {
            if !link.withdraw(now.number) {
                return;
            }
            self.inviting.hopes = self.inviting.hopes.saturating_sub(1);
        }
        self.inviting.last += 1;
        let number = self.inviting.last;
        self.inviting.now = Some(Standing { number, address: to.address(), least, most });
        let says = Invitation {
            tagged,
            tag,
            ignore,
            least: least as u64,
            most: most as u64,
            address: to.address() as u64,
            lent,
            heard: link.heard(),
        };
        link.invite(number, &says);
    }

    /// The receive at this place is to be taken back. `false`: the peer has taken its invitation up, and the message is on its way.
    pub fn withdraw(&mut self, link: &Link, to: &[UserSeg]) -> bool {
        let Some(now) = &self.inviting.now else { return true };
        if to.first().is_none_or(|to| to.address() != now.address) {
            return true;
        }
        let withdrawn = link.withdraw(now.number);
        if withdrawn {
            self.inviting.now = None;
        }
        withdrawn
    }

    /// Receives are given up while the peer lives: it is to write no further part of a message that was shared out, and none is from now on.
    pub fn share_no_more(&mut self, link: &Link) {
        // The helper claims by the same word.
        self.call_off();
        if self.shared > 0 {
            self.shared = MAX_NUMBER;
            link.forbid_back();
        }
    }

    /// Whether the peer may be writing to a receive after [`share_no_more`](Self::share_no_more): a message that it was invited to, or a chunk of one that is shared out; it is invited no more.
    pub fn is_being_written(&self, link: &Link) -> bool {
        let last = self.inviting.last;
        let unplaced = |coming: &Coming| coming.begun.is_some_and(|begun| !link.is_placed(begun.number));
        let shared = self.shared == MAX_NUMBER && link.sender_copies();
        shared || last != 0 && !link.withdraw(last) && !link.is_placed(last) || self.rx.values().any(unplaced)
    }

    /// What the peer says comes by another link, too, from now on, and what it is invited to by this one need not be its next message: it is invited no more. `false`: the
    /// message that it was invited to last is on the way, and must come first.
    pub fn ends_inviting(&mut self, link: &Link) -> bool {
        self.inviting.on = false;
        let ended = self.inviting.now.as_ref().is_none_or(|now| link.withdraw(now.number));
        if ended {
            self.inviting.now = None;
        }
        ended
    }

    /// Whether an invitation named memory that is not mapped here, and nobody has looked for it.
    pub fn has_unheard(&self) -> bool {
        self.inviting.unheard.1
    }

    /// The number of that memory, once.
    pub fn take_unheard(&mut self) -> Option<u32> {
        std::mem::take(&mut self.inviting.unheard.1).then_some(self.inviting.unheard.0)
    }

    /// Sender: takes the peer's invitation up, if it is for this message.
    pub(super) fn take_up(&mut self, link: &Link, msg: &Message<'_>) -> Option<Taken> {
        let (least, most) = self.invited_sizes()?;
        if msg.lent == 0 || !(least..=most).contains(&msg.len) {
            return None;
        }
        let (number, said) = link.invitation()?;
        if !self.loans.is_ready(said.lent) && self.inviting.unheard.0 != said.lent {
            self.inviting.unheard = (said.lent, true);
        }
        let loan = self.loans.get(said.lent).filter(|loan| loan.is_writable())?;
        let to = said.place(msg.len);
        if !said.is_for(msg.tagged, msg.tag, msg.len) || !loan.holds(&to) {
            return None;
        }
        let loan = loan.clone();
        self.inviting.unheard = (0, false);
        link.take_up(number).then_some(Taken { number, loan, to })
    }

    /// Sender: writes its part of a message whose OFFER the receiver has.
    pub(super) fn write_invited(&mut self, link: &Link, taken: &Taken, iov: &[UserSeg], total: usize) {
        let front = front(total);
        let engine = self.engines.of(total, true);
        // Mapped memory is always there.
        if (Means::Mapped(&taken.loan, engine)).store(&taken.to, iov, front, total - front).is_ok() {
            link.tell_placed(taken.number);
        }
        self.stored += (total - front) as u64;
        self.past_caches += engine.past_caches(total - front);
    }

    /// Receiver: copies the front of a message that was invited to this receive.
    pub(super) fn place_invited(&mut self, link: &mut Link, said: &Announced<Said>, req: &RecvReq) -> Result<Placed, Corrupt> {
        self.timed = None;
        let Some(Standing { number, address, most, .. }) = self.inviting.now.take() else { return Err(Corrupt) };
        let total = said.env.total;
        if req.iov.first().is_none_or(|to| to.address() != address) || total > most.min(req.cap) {
            return Err(Corrupt);
        }
        self.inviting.about = total;
        self.inviting.saw_invited();
        self.invited += 1;
        let timed = self.tx.is_empty() && self.pace.times_invited(total);
        let mut begun = Begun { number, front: front(total), copied: 0 };
        let from = said.body.pieces(total)?;
        let mut start = 0;
        if let Some(loan) = self.loans.get(said.body.lent) {
            if !loan.holds(&from) {
                return Err(Corrupt);
            }
            let engine = self.engines.of(total, true);
            start = self.clock.as_ref().map_or(0, Clock::now);
            if (Means::Mapped(loan, engine)).fetch(&from, &req.iov, 0, begun.front).is_ok() {
                let ns = self.clock.as_ref().map_or(0, |clock| clock.now() - start);
                self.pace.saw(begun.front, ns, true, true);
                self.fetched += begun.front as u64;
                self.past_caches += engine.past_caches(begun.front);
                begun.copied = begun.front;
            }
        }
        if begun.copied == begun.front && link.is_placed(number) && link.is_still_offered() {
            if self.rx.contains_key(&said.body.id) {
                return Err(Corrupt);
            }
            if timed && let Some(clock) = &self.clock {
                self.pace.saw_invited(total, clock.now() - start);
            }
            self.notes.push_back(Note::Fin(said.body.id, false, 0));
            self.write_notes(link, None)?;
            return Ok(Placed::Whole(total));
        }
        let id = self.open(said, State::Matched)?;
        self.timed = Some((id, start)).filter(|_| timed && start != 0);
        let Some(coming) = self.rx.get_mut(&id) else { return Err(Corrupt) };
        coming.begun = Some(begun);
        Ok(Placed::Offered(id))
    }
}
