//! A thread of this process that copies parts of long messages while the application computes: a third taker beside the receiver, which takes
//! chunks whenever it comes round to it, and the sender. It knows messages that are matched and shared out already, and nothing else of the engine;
//! how it and the receiver keep out of each other's way is in `shm/hands.rs`.
//!
//! The thread is started for the first message that is worth it, never ends, and sleeps (futex) while nobody has work for it. It takes no
//! lock that is held for longer than a claim, completes nothing, and is not there in a child by fork, where nothing of the engine is used.

use super::means::{Engines, Loan, Means};
use super::receiver::{Coming, Stage, State};
use super::{Copies, Ended};
use crate::mem::shared::SharedMem;
use crate::mem::user::UserIov;
use crate::protocol::Target;
use crate::shm::hands::{Hands, Outcome};
use crate::sys::{fork, thread};
use crate::transport::link::{Corrupt, Link};
use crate::wire::header::Header;
use crate::wire::offer::Pieces;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// Messages that it can have in hand at once, of all peers of the process.
const SLOTS: usize = 8;

/// A message to be copied.
pub(super) struct Task {
    pub from: Pieces,
    pub to: UserIov,
    pub wanted: usize,
    pub chunk: usize,
    pub target: Option<Target>,
    pub loan: Option<Loan>,
    pub engines: Engines,
    /// Where this side claims, and where the sender does.
    pub words: (SharedMem, SharedMem),
}

/// A message in the hands of both.
pub(super) type Job = Hands<Task>;

impl Task {
    /// Copies a chunk. Returns its bytes, or `None` if that cannot be.
    pub(super) fn copy(&self, chunk: u32) -> Option<usize> {
        let at = chunk as usize * self.chunk;
        let len = self.chunk.min(self.wanted - at);
        let means = match (&self.loan, self.target) {
            (Some(loan), _) => Means::Mapped(loan, self.engines.of(self.wanted, true)),
            // It may be long since the peer was heard of.
            (None, Some(target)) => Means::Kernel(target, false),
            (None, None) => return None,
        };
        means.fetch(&self.from, &self.to, at, len).is_ok().then_some(len)
    }
}

struct Helper {
    slots: [Mutex<Option<Arc<Job>>>; SLOTS],
    thread: OnceLock<Thread>,
}

impl Helper {
    /// That of this process, started when it is first asked for; `None` if it cannot be started.
    fn get() -> Option<&'static Helper> {
        static HELPER: Helper = Helper { slots: [const { Mutex::new(None) }; SLOTS], thread: OnceLock::new() };
        static RUNS: OnceLock<bool> = OnceLock::new();
        RUNS.get_or_init(|| thread::quiet("rustmx-copies", || HELPER.run()).is_ok()).then_some(&HELPER)
    }

    /// The thread.
    fn run(&self) {
        // Before it looks: who finds nobody to wake has left his job where it is seen.
        let _ = self.thread.set(std::thread::current());
        loop {
            let worked = self.slots.iter().filter(|slot| self.serve(slot)).count();
            if worked == 0 {
                std::thread::park();
            }
        }
    }

    /// Works on the message in a slot until there is nothing left to claim. Whether there was something.
    fn serve(&self, slot: &Mutex<Option<Arc<Job>>>) -> bool {
        let Some(job) = slot.lock().clone() else { return false };
        let mut worked = false;
        while job.work(|task| (&task.words.0, &task.words.1), Task::copy) {
            worked = true;
        }
        worked
    }
}

/// Ends that: the helper looks at it no more.
fn dismiss(job: &Arc<Job>) {
    let Some(helper) = Helper::get() else { return };
    for slot in &helper.slots {
        let mut slot = slot.lock();
        if slot.as_ref().is_some_and(|other| Arc::ptr_eq(other, job)) {
            *slot = None;
        }
    }
}

/// Has the helper look at a message that was offered to it. Whether it has room.
fn call(job: &Arc<Job>) -> bool {
    let Some(helper) = Helper::get() else { return false };
    let free = helper.slots.iter().filter_map(Mutex::try_lock).find(|slot| slot.is_none());
    let Some(mut slot) = free else { return false };
    *slot = Some(job.clone());
    drop(slot);
    if let Some(thread) = helper.thread.get() {
        thread.unpark();
    }
    true
}

/// Messages that the helper thread copies, too: one at a time for each peer.
pub(super) struct Helping {
    /// Bytes of the shortest such message.
    pub from: usize,
    /// The one that it has in hand.
    pub id: Option<u32>,
    pub job: Arc<Job>,
}

impl Default for Helping {
    fn default() -> Helping {
        Helping { from: usize::MAX, id: None, job: Arc::default() }
    }
}

impl Helping {
    fn call_off(&mut self) {
        // In a child there is nobody who would unlock it.
        if self.id.take().is_some() && !fork::in_child() {
            self.job.stop();
            dismiss(&self.job);
        }
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        self.call_off();
    }
}

/// What the helper thread has to do with a message.
pub(super) enum Help {
    /// Nothing, or nothing any more.
    None,
    /// It copies.
    Busy,
    /// Nothing any more, and the message has come to its end.
    Ended,
}

impl Copies {
    /// Messages of so many bytes or more are copied by the helper thread, too (`usize::MAX`: none).
    #[inline]
    pub fn help_from(&mut self, bytes: usize) {
        self.help.from = bytes;
    }

    /// Hands a message to the helper thread as well, if that is wanted and it is long enough.
    pub(super) fn call_helper(&mut self, id: u32, link: &Link) {
        let Some(Coming { from, loan, state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return };
        let Stage::Claiming(share) = c.stage else { return };
        if c.wanted < self.help.from || self.help.id.is_some() || share.claimed() > 0 {
            return;
        }
        let Some((mine, theirs)) = link.claim_words() else { return };
        let task = Task {
            from: from.clone(),
            to: (&*c.req.iov).into(),
            wanted: c.wanted,
            chunk: c.chunk,
            target: self.target.filter(|_| !self.no_read),
            loan: loan.clone(),
            engines: self.engines,
            words: (mine.clone(), theirs.clone()),
        };
        if self.help.job.offer(task, share) {
            if call(&self.help.job) {
                self.help.id = Some(id);
                c.stage = Stage::Helped;
            } else {
                self.help.job.stop();
            }
        }
    }

    /// What remains of a message of which nothing is left to be claimed, once the helper is through with its chunk.
    pub(super) fn take_back(&mut self, link: &Link, id: u32, ended: &mut Ended) -> Help {
        let Some(Coming { state: State::Copying(c), loan, .. }) = self.rx.get_mut(&id) else { return Help::None };
        if c.stage != Stage::Helped {
            return Help::None;
        }
        let Some(Outcome { share, ended: told, failed, helped }) = self.help.job.take_back() else { return Help::Busy };
        self.help.id = None;
        dismiss(&self.help.job);
        ended.fetched += helped;
        ended.helped += helped;
        self.past_caches += self.engines.of(c.wanted, loan.is_some()).past_caches(helped as usize);
        c.next = (share.claimed() as usize * c.chunk).min(c.wanted);
        c.stage = Stage::Waiting(share);
        if failed {
            // The helper does not tell why.
            let target = self.target.filter(|_| loan.is_none());
            self.no_read |= target.is_some_and(|target| target.find().is_err());
            self.decline(id, false, ended);
            Help::Ended
        } else if told || c.next == c.wanted {
            self.finish(link, id, ended);
            Help::Ended
        } else {
            Help::None
        }
    }

    /// Has the helper thread let go of what it copies; waits for a chunk, at most.
    pub fn call_off(&mut self) {
        self.help.call_off();
    }

    /// The sender says how many chunks it copied of a message that the helper has in hand, too.
    pub(super) fn end_of_helped(&mut self, id: u32, header: &Header) -> Result<(), Corrupt> {
        let Some(Coming { state: State::Copying(c), .. }) = self.rx.get_mut(&id) else { return Err(Corrupt) };
        let chunks = c.wanted.div_ceil(c.chunk);
        let left = usize::try_from(header.data).ok().and_then(|n| chunks.checked_sub(n)).ok_or(Corrupt)?;
        if !self.help.job.end_at(u32::try_from(left).map_err(|_| Corrupt)?) {
            return Err(Corrupt);
        }
        // There may be something to claim again.
        self.waiting.retain(|waiting| *waiting != id);
        if !self.copying.contains(&id) {
            self.copying.push_front(id);
        }
        Ok(())
    }
}
