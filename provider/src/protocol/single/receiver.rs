//! The receiver of offered messages: it copies from the front, alone or until it meets the sender.

use super::copier::Help;
use super::invited::Begun;
use super::means::{Loan, Means, is_fresh};
use super::pace::TELLING;
use super::{CHUNKS, Copies, Declined, Ended, Note, PAGE, Said, TURN, parts};
use crate::mem::remote::NoAccess;
use crate::mem::user::UserSeg;
use crate::protocol::{Announced, Lender};
use crate::request::{Envelope, Received, RecvReq};
use crate::shm::split::{MAX_CHUNKS, MAX_NUMBER, Share};
use crate::sys::clock::Clock;
use crate::transport::link::{Corrupt, Link};
use crate::wire::header::{Header, flag};
use crate::wire::offer::{Named, Pieces, pieces_of};
use std::collections::hash_map::Entry;

/// Where the receiver's copying stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It copies up to here and needs no claims: all of it, or what the sender left.
    Alone(usize),
    /// It claims chunks from the front.
    Claiming(Share),
    /// So does the helper thread.
    Helped,
    /// The sender has claimed the rest: it has copied that, or will say where it ended.
    Waiting(Share),
    /// The front is copied, and the sender writes the rest, to which it was invited by this number.
    Invited(u64),
}

pub(super) struct Copying {
    pub req: RecvReq,
    pub wanted: usize,
    pub chunk: usize,
    /// Bytes copied from the front.
    pub next: usize,
    pub stage: Stage,
    /// The sender was told of it in memory that was lent to it.
    pub lent: bool,
    /// The sender was, or is being, asked to copy some of it: it is asked once.
    pub shared: bool,
    /// The invitation by which the sender writes what is behind the front.
    pub invited: Option<u64>,
}

pub(super) enum State {
    /// Its receive is being handed over ([`Copies::adopt`]).
    Matched,
    /// Nobody asked yet.
    Held,
    Copying(Copying),
}

/// A message that the peer offers.
pub(super) struct Coming {
    pub env: Envelope,
    pub from: Pieces,
    /// It was offered in memory that the peer lent.
    pub lent: bool,
    /// That memory, if it is mapped here.
    pub loan: Option<Loan>,
    /// The peer lived after this time.
    pub since: u64,
    /// The sender asks how long the copy takes.
    pub timed: bool,
    /// It was invited, and so much of it is here.
    pub begun: Option<Begun>,
    pub state: State,
}

impl Coming {
    /// Whether only the kernel can reach it.
    fn needs_kernel(&self) -> bool {
        self.loan.is_none()
    }

    /// Whether the sender should know that we could not map what it lent.
    pub fn is_unmapped(&self) -> bool {
        self.lent && self.loan.is_none()
    }
}

impl Copies {
    /// Copies `wanted` bytes of a message that is short enough for one turn, and shared with nobody, as soon as it is matched. `false`: it must
    /// take the long way.
    pub(super) fn fetch_at_once(
        &mut self,
        link: &mut Link,
        said: &Announced<Said>,
        wanted: usize,
        to: &[UserSeg],
    ) -> Result<bool, Corrupt> {
        let Announced { env, body } = said;
        // The message that is being timed has this one's time in it.
        self.timed = None;
        let mapped = self.loans.get(body.lent).is_some();
        if wanted > TURN || self.is_shared(wanted, mapped) {
            return Ok(false);
        }
        let loan = self.loans.get(body.lent);
        if self.rx.contains_key(&body.id) {
            return Err(Corrupt);
        }
        let from = body.pieces(env.total)?;
        let means = match (loan, self.target.filter(|_| !self.no_read)) {
            (Some(loan), _) if !loan.holds(&from) => return Err(Corrupt),
            (Some(loan), _) => Means::Mapped(loan, self.engines.of(wanted, true)),
            (None, Some(target)) => Means::Kernel(target, is_fresh(self.clock.as_ref(), self.since)),
            (None, None) => return Ok(false),
        };
        let engine = means.engine();
        // Of one that is never shared nobody asks for the pace.
        let telling = wanted >= TELLING && self.may_be_shared(wanted, mapped);
        let begun = self.clock.as_ref().filter(|_| telling || body.timed).map(Clock::now);
        // Of a sender that has closed what is here is not what it sent: no message comes of it (`finish`), and its end is heard soon.
        if wanted > 0 && (means.fetch(&from, to, 0, wanted).is_err() || !link.is_still_offered()) {
            return Ok(false);
        }
        let ns = begun.zip(self.clock.as_ref()).map_or(0, |(begun, clock)| clock.now() - begun);
        if telling {
            self.pace.saw(wanted, ns, mapped, false);
        }
        let unmapped = body.lent != 0 && !mapped;
        self.fetched += wanted as u64;
        self.past_caches += engine.past_caches(wanted);
        self.notes.push_back(Note::Fin(body.id, unmapped, if body.timed { ns } else { 0 }));
        self.write_notes(link, None)?;
        Ok(true)
    }

    /// Takes the next chunk of the oldest message that has something to be copied. Returns the bytes copied.
    pub(super) fn copy_front(&mut self, link: &Link, ended: &mut Ended) -> usize {
        let Some(id) = self.copying.pop_front() else { return 0 };
        self.call_helper(id, link);
        let Some(Coming { from, loan, since, state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return 0 };
        let means = match (&*loan, self.target.filter(|_| !self.no_read)) {
            (Some(loan), _) => Means::Mapped(loan, self.engines.of(c.wanted, true)),
            (None, Some(target)) => Means::Kernel(target, is_fresh(self.clock.as_ref(), *since)),
            (None, None) => {
                // A process that this one cannot even name may see this one.
                self.no_read = true;
                self.leave_to_sender(id, ended);
                return 0;
            }
        };
        let mut at = c.next;
        let end = match &mut c.stage {
            Stage::Alone(end) => *end,
            Stage::Helped => {
                self.timed = None;
                let chunk = link.claim_words().and_then(|(mine, theirs)| self.help.job.claim(mine, theirs));
                let Some(chunk) = chunk else {
                    self.waiting.push(id);
                    return 0;
                };
                at = chunk as usize * c.chunk;
                (at + c.chunk).min(c.wanted)
            }
            Stage::Claiming(share) => {
                if !link.claim_front(share) {
                    c.stage = Stage::Waiting(*share);
                    self.waiting.push(id);
                    return 0;
                }
                (share.claimed() as usize * c.chunk).min(c.wanted)
            }
            Stage::Waiting(_) | Stage::Invited(_) => return 0,
        };
        let len = c.chunk.min(end - at);
        let engine = means.engine();
        // Of the first chunk: the sender has not begun yet.
        let begun = self.clock.as_ref().filter(|_| at == 0 && len >= TELLING).map(Clock::now);
        match means.fetch(from, &c.req.iov, at, len) {
            Ok(()) => {
                if let (Some(begun), Some(clock)) = (begun, &self.clock) {
                    self.pace.saw(len, clock.now() - begun, loan.is_some(), !matches!(c.stage, Stage::Alone(_)));
                }
                c.next = at + len;
                ended.fetched += len as u64;
                self.past_caches += engine.past_caches(len);
                let over = match c.stage {
                    Stage::Alone(end) => c.next == end,
                    // The helper may have a chunk before this one in its hands.
                    Stage::Helped => false,
                    _ => c.next == c.wanted,
                };
                if over && let Some(number) = c.invited {
                    c.stage = Stage::Invited(number);
                    self.waiting.push(id);
                } else if over {
                    self.finish(link, id, ended)
                } else {
                    self.copying.push_front(id)
                }
                len
            }
            Err(why) if c.stage == Stage::Helped => {
                self.no_read |= why != NoAccess::Fault;
                self.help.job.fail();
                self.waiting.push(id);
                0
            }
            // Who is not there under this number will not be, as long as this link lives.
            Err(NoAccess::Forbidden | NoAccess::Gone) => {
                self.no_read = true;
                self.leave_to_sender(id, ended);
                0
            }
            Err(NoAccess::Fault) => {
                self.decline(id, false, ended);
                0
            }
        }
    }

    /// Ends the messages whose rest the sender has copied, whether or not it is there to say so.
    pub(super) fn look_at_waiting(&mut self, link: &Link, ended: &mut Ended) {
        let mut i = 0;
        while let Some(&id) = self.waiting.get(i) {
            match self.take_back(link, id, ended) {
                Help::Busy => {
                    i += 1;
                    continue;
                }
                Help::Ended => {
                    self.waiting.swap_remove(i);
                    continue;
                }
                Help::None => {}
            }
            // If it does not wait, the sender has said where it ended.
            if let Some(Coming { state: State::Copying(Copying { stage: Stage::Waiting(share), .. }), .. }) = self.rx.get(&id) {
                if !link.sender_copied(share) {
                    i += 1;
                    continue;
                }
                self.finish(link, id, ended);
            } else if let Some(Coming { state: State::Copying(Copying { stage: Stage::Invited(number), .. }), .. }) =
                self.rx.get(&id)
            {
                if !link.is_placed(*number) {
                    i += 1;
                    continue;
                }
                self.finish(link, id, ended);
            }
            self.waiting.swap_remove(i);
        }
    }

    /// We may not read: the sender may be able to write.
    pub(super) fn leave_to_sender(&mut self, id: u32, ended: &mut Ended) {
        let Some(Coming { state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return };
        if c.stage == Stage::Helped {
            self.help.job.fail();
            self.waiting.push(id);
        } else if let Stage::Claiming(share) | Stage::Waiting(share) = c.stage {
            // Not in `waiting`: a chunk that we claimed is not there, whatever the sender has copied.
            c.stage = Stage::Waiting(share);
        } else if !self.on || c.next > 0 || c.shared || !self.share_out(id) {
            self.decline(id, true, ended);
        }
    }

    /// Offers to share the copying of a message. Whether that can be.
    fn share_out(&mut self, id: u32) -> bool {
        let Some(coming) = self.rx.get_mut(&id) else { return false };
        let cannot_read = self.no_read && coming.needs_kernel();
        let State::Copying(c) = &mut coming.state else { return false };
        if self.shared == MAX_NUMBER || pieces_of(&c.req.iov).is_none() {
            return false;
        }
        let most = c.wanted.div_ceil(MAX_CHUNKS as usize).max(CHUNKS.1);
        c.chunk = (c.wanted / parts(c.wanted, coming.loan.is_some())).clamp(CHUNKS.0, most).next_multiple_of(PAGE);
        let Ok(chunks) = u32::try_from(c.wanted.div_ceil(c.chunk)) else { return false };
        self.shared += 1;
        let alone = self.copying.is_empty() && self.waiting.is_empty() && !cannot_read;
        if alone && self.pace.is_to_be_timed(c.wanted, coming.loan.is_some()) {
            self.timed = self.clock.as_ref().map(|clock| (id, clock.now()));
        }
        let share = Share::new(self.shared, chunks);
        c.shared = true;
        c.stage = if cannot_read { Stage::Waiting(share) } else { Stage::Claiming(share) };
        if cannot_read {
            self.waiting.push(id);
        }
        self.notes.push_back(Note::Accept(id, self.shared));
        true
    }

    /// What the ACCEPT of a message names. `None`: there is none to be written, for it is copied already, or the sender could do nothing with it.
    pub(super) fn shared_out(&mut self, id: u32, lender: &mut dyn Lender) -> Option<(Named, &Copying)> {
        let Some(Coming { state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return None };
        let lent = if self.no_loans || self.no_stores { 0 } else { lender.lend(&c.req.iov, true) };
        c.lent = lent != 0;
        if lent == 0 && (self.peer_no_write || !self.on) && matches!(c.stage, Stage::Claiming(_)) {
            c.stage = Stage::Alone(c.wanted);
            self.timed = None;
            return None;
        }
        Some((Named { id, lent }, c))
    }

    /// Takes the receive of a message that has just been matched; returns it if nothing is to be copied.
    pub fn adopt(&mut self, id: u32, req: RecvReq) -> Option<Received> {
        self.timed = None;
        let coming = self.rx.get_mut(&id)?;
        let env = coming.env;
        let wanted = req.cap.min(env.total);
        if wanted == 0 {
            let unmapped = coming.is_unmapped();
            self.rx.remove(&id);
            self.notes.push_back(Note::Fin(id, unmapped, 0));
            return Some(Received { req, env, placed: 0 });
        }
        coming.state = State::Copying(Copying {
            req,
            wanted,
            chunk: CHUNKS.1,
            next: 0,
            stage: Stage::Alone(wanted),
            lent: false,
            shared: false,
            invited: None,
        });
        if let (Some(begun), State::Copying(c)) = (coming.begun, &mut coming.state) {
            // Nobody is asked once more.
            (c.invited, c.next, c.shared) = (Some(begun.number), begun.copied, true);
            if begun.copied == begun.front {
                c.stage = Stage::Invited(begun.number);
                self.waiting.push(id);
            } else {
                c.stage = Stage::Alone(begun.front);
                self.copying.push_back(id);
            }
            return None;
        }
        let cannot_read = self.no_read && coming.needs_kernel();
        let mapped = !coming.needs_kernel();
        let shared = (self.on || mapped) && (self.is_shared(wanted, mapped) || cannot_read) && self.share_out(id);
        // What may not be read and not be shared is found out there.
        if !(shared && cannot_read) {
            self.copying.push_back(id);
        }
        None
    }

    /// The sender has done its share.
    pub fn on_done(&mut self, link: &Link, header: &Header, ended: &mut Ended) -> Result<(), Corrupt> {
        let id = u32::try_from(header.tag).map_err(|_| Corrupt)?;
        // It may have crossed our FIN, or our wish for a stream.
        let Some(coming) = self.rx.get_mut(&id) else { return Ok(()) };
        let cannot_read = self.no_read && coming.needs_kernel();
        let State::Copying(c) = &mut coming.state else { return Ok(()) };
        if header.flags & flag::FORBIDDEN != 0 {
            // Had it mapped what we lent, for writing, it would not have asked the kernel.
            if c.lent { self.no_stores = true } else { self.peer_no_write = true }
        }
        if c.stage == Stage::Helped {
            return self.end_of_helped(id, header);
        }
        let (Stage::Claiming(share) | Stage::Waiting(share)) = c.stage else { return Err(Corrupt) };
        let left = share.chunks().checked_sub(u32::try_from(header.data).map_err(|_| Corrupt)?).ok_or(Corrupt)?;
        let end = (left as usize * c.chunk).min(c.wanted);
        if end < c.next {
            return Err(Corrupt);
        }
        let waiting = matches!(c.stage, Stage::Waiting(_));
        c.stage = Stage::Alone(end);
        if c.next == end {
            if waiting {
                self.finish(link, id, ended);
            }
        } else if cannot_read {
            self.decline(id, self.peer_no_write, ended);
        } else if waiting {
            self.copying.push_front(id);
        }
        Ok(())
    }

    /// All bytes are there. If the sender has closed meanwhile they need not be those that it sent: the receive then fails when its end is heard.
    pub(super) fn finish(&mut self, link: &Link, id: u32, ended: &mut Ended) {
        if !link.is_still_offered() {
            return;
        }
        let Some(coming) = self.rx.remove(&id) else { return };
        let unmapped = coming.is_unmapped();
        let mapped = !coming.needs_kernel();
        let Coming { env, timed, state: State::Copying(c), .. } = coming else { return };
        if let (Some((timed, begun)), Some(clock)) = (self.timed, &self.clock)
            && timed == id
        {
            self.timed = None;
            let ns = clock.now().saturating_sub(begun);
            if c.invited.is_some() { self.pace.saw_invited(c.wanted, ns) } else { self.pace.saw_both(c.wanted, ns, mapped) }
        }
        // Both copied because one would take long: it is not in the cache of this one. Else nobody looked at the clock.
        let ns = if timed && c.stage != Stage::Alone(c.wanted) { u64::MAX } else { 0 };
        self.notes.push_back(Note::Fin(id, unmapped, ns));
        ended.received.push(Received { placed: c.wanted, req: c.req, env });
    }

    /// The message must come as a stream.
    pub(super) fn decline(&mut self, id: u32, forbidden: bool, ended: &mut Ended) {
        let Some(Coming { env, state: State::Copying(c), .. }) = self.rx.remove(&id) else { return };
        self.notes.push_back(Note::Decline(id, c.wanted, forbidden));
        ended.declined.push(Declined { id, env, req: c.req });
    }

    /// Registers the message that the OFFER at the head of the ring announces.
    pub(super) fn open(&mut self, said: &Announced<Said>, state: State) -> Result<u32, Corrupt> {
        let Announced { env, body } = *said;
        let from = body.pieces(env.total)?;
        let loan = self.loans.get(body.lent).cloned();
        if loan.as_ref().is_some_and(|loan| !loan.holds(&from)) {
            return Err(Corrupt);
        }
        match self.rx.entry(body.id) {
            Entry::Occupied(_) => return Err(Corrupt),
            Entry::Vacant(v) => v.insert(Coming {
                env,
                from,
                lent: body.lent != 0,
                loan,
                since: self.since,
                timed: body.timed,
                begun: None,
                state,
            }),
        };
        Ok(body.id)
    }
}
