//! Completion queues (fi_cq(3)): records in completion order, errors in their place among them.
//!
//! A queue grows rather than overruns: clients post more than they read (MPICH opens its queue with size 0).

use crate::error::Error;
use crate::peer::name::Name;
use crate::types::{Addr, CompFlags, UserCtx};
use std::collections::VecDeque;

/// A finished operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation's context.
    pub ctx: UserCtx,
    /// What it was.
    pub flags: CompFlags,
    /// Bytes received (of a peek: bytes of the whole message).
    pub len: usize,
    /// Where a multi-receive message begins; 0 otherwise.
    pub buf: usize,
    /// Remote CQ data, or 0.
    pub data: u64,
    /// Tag of the message, or 0.
    pub tag: u64,
    /// The sender's handle, for endpoints opened with `source`.
    pub src: Addr,
}

/// A failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The operation; `len` is what was placed.
    pub c: Completion,
    /// Bytes that did not fit (truncation).
    pub olen: usize,
    /// Why.
    pub error: Error,
    /// The peer that it names.
    pub peer: Option<Name>,
    /// Process id of that peer, 0 if unknown. Travels as `prov_errno`.
    pub detail: u32,
}

impl ErrorEntry {
    /// A sentence for the user.
    pub fn describe(&self) -> String {
        describe(self.error, self.peer.as_ref(), self.detail)
    }
}

/// A sentence that says what happened to whom.
pub fn describe(error: Error, peer: Option<&Name>, pid: u32) -> String {
    match (peer, pid) {
        (Some(name), 0) => format!("{error} (peer {name})"),
        (Some(name), pid) => format!("{error} (peer {name}, process {pid})"),
        (None, _) => error.to_string(),
    }
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqRead {
    /// So many entries were handed out; at least 1.
    Got(usize),
    /// Nothing.
    Empty,
    /// An error entry is next; read it with the error call.
    ErrorPending,
}

/// A completion queue.
#[derive(Default)]
pub struct Cq {
    /// The successes, oldest first.
    done: VecDeque<Completion>,
    /// The failures, each with how many successes, counted from the queue's first, come before it.
    failed: VecDeque<(u64, ErrorEntry)>,
    /// Successes handed out since the start.
    taken: u64,
    /// Endpoints bound to it.
    pub bound: usize,
}

impl Cq {
    /// Adds a success.
    #[inline]
    pub fn push(&mut self, c: Completion) {
        self.done.push_back(c);
    }

    /// Adds a failure.
    #[cold]
    pub fn push_error(&mut self, e: ErrorEntry) {
        self.failed.push_back((self.taken + self.done.len() as u64, e));
    }

    /// Entries waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.done.len() + self.failed.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Successes in front of the first failure.
    #[inline]
    fn clear(&self) -> usize {
        match self.failed.front() {
            None => self.done.len(),
            Some((at, _)) => (at - self.taken) as usize,
        }
    }

    /// Hands at most `max` successes to `sink`, in order, up to the first failure.
    #[inline]
    pub fn read(&mut self, max: usize, mut sink: impl FnMut(&Completion)) -> CqRead {
        let n = self.clear().min(max);
        if n == 0 {
            let failed = !self.failed.is_empty() && self.clear() == 0;
            return if failed { CqRead::ErrorPending } else { CqRead::Empty };
        }
        let (front, back) = self.done.as_slices();
        let in_front = n.min(front.len());
        front[..in_front].iter().for_each(&mut sink);
        back[..n - in_front].iter().for_each(sink);
        if n == self.done.len() {
            self.done.clear()
        } else {
            drop(self.done.drain(..n))
        }
        self.taken += n as u64;
        CqRead::Got(n)
    }

    /// Takes the failure at the front, if one is there.
    pub fn read_error(&mut self) -> Option<ErrorEntry> {
        if self.clear() > 0 {
            return None;
        }
        self.failed.pop_front().map(|(_, e)| e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn completion(i: usize) -> Completion {
        Completion { ctx: UserCtx(i), flags: CompFlags::RECV, len: i, buf: 0, data: 0, tag: 0, src: Addr::UNSPEC }
    }

    proptest! {
        /// Against a plain vector of (number, failed?): order kept, errors block, nothing lost.
        #[test]
        fn behaves_like_a_list(ops in proptest::collection::vec((0u8..4, 0usize..5), 0..200)) {
            let (mut cq, mut oracle, mut next) = (Cq::default(), Vec::<(usize, bool)>::new(), 0);
            for (op, n) in ops {
                match op {
                    0 => { cq.push(completion(next)); oracle.push((next, false)); next += 1; }
                    1 => {
                        let c = completion(next);
                        cq.push_error(ErrorEntry { c, olen: 0, error: Error::Cancelled, peer: None, detail: 0 });
                        oracle.push((next, true)); next += 1;
                    }
                    2 => {
                        let want: Vec<usize> = oracle.iter().take_while(|e| !e.1).take(n).map(|e| e.0).collect();
                        let mut got = Vec::new();
                        let r = cq.read(n, |c| got.push(c.ctx.0));
                        prop_assert_eq!(&got, &want);
                        let expect = match (want.len(), oracle.first()) {
                            (0, Some((_, true))) => CqRead::ErrorPending,
                            (0, _) => CqRead::Empty,
                            (k, _) => CqRead::Got(k),
                        };
                        prop_assert_eq!(r, expect);
                        oracle.drain(..want.len());
                    }
                    _ => {
                        let got = cq.read_error().map(|e| e.c.ctx.0);
                        let want = oracle.first().filter(|e| e.1).map(|e| e.0);
                        prop_assert_eq!(got, want);
                        if want.is_some() { oracle.remove(0); }
                    }
                }
                prop_assert_eq!(cq.len(), oracle.len());
            }
        }
    }
}
