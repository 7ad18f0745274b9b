//! What MPI demands of the messages from one engine to another, naively.
//!
//! Messages of one source arrive in order; a message takes the oldest receive that it fits, a receive the oldest message. So the pairs do
//! not depend on the interleaving: they are found by giving each message in turn to the oldest receive that it fits,
//! leaving out what was cancelled, discarded or claimed, and, after a fault, what never came.

use crate::arena::Buf;
use crate::common::{Event, Rng, pattern, seg};
use rustmx::{Completion, Error};
use std::collections::BTreeSet;

pub const ALIGN: usize = 16;
pub const MIN_LEFT: usize = 100;

/// A message that was sent; its number is its place in the list and travels as CQ data.
pub struct Sent {
    pub tag: u64,
    pub buf: Buf,
    /// Completions that are still to come: one, or none if it was injected.
    pub open: bool,
    /// Its completion is to say that it was delivered, and said so.
    pub asks: bool,
    pub delivered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    No,
    Cancelled,
    Failed,
}

/// A receive that was posted.
pub struct Post {
    pub tag: u64,
    pub ignore: u64,
    pub buf: Buf,
    pub multi: bool,
    pub gone: Gone,
    /// A multi-receive buffer that was cancelled while messages were coming in: it takes no more, and ends behind the last of them.
    pub leaving: bool,
    /// Numbers of the messages that it got, in order of completion.
    pub got: Vec<usize>,
    pub released: bool,
}

impl Post {
    /// Whether it may still get something.
    pub fn waits(&self) -> bool {
        self.gone == Gone::No && if self.multi { !self.released } else { self.got.is_empty() }
    }
}

/// A message that a peek reserved.
pub struct Claim {
    pub ctx: usize,
    pub message: usize,
    pub buf: Buf,
    pub posted: bool,
}

/// The messages from one engine to another, and the receives for them.
pub struct Flow {
    pub from: usize,
    pub to: usize,
    /// Receives may leave the source open: nobody else sends to that engine.
    pub open: bool,
    /// Whether multi-receive buffers are used, or messages taken by peeks: one that is too long for the rest of a buffer retires
    /// it, so whether it was taken before or after makes a difference that the model does not know.
    pub multi: bool,
    pub out: Vec<Sent>,
    pub posts: Vec<Post>,
    pub claims: Vec<Claim>,
    /// Messages that were taken by a claim or dropped by a peek.
    pub taken: BTreeSet<usize>,
    pub sends_open: usize,
    /// Messages and receives before these have been compared and are over.
    pub settled: (usize, usize),
    /// Sender and receiver have lost each other.
    pub lost: bool,
    /// And know it.
    pub over: bool,
}

impl Flow {
    /// Whether a receive has no message yet.
    pub fn waits(&self) -> bool {
        self.posts.iter().any(|post| post.gone == Gone::No && post.got.is_empty() && !post.released)
    }

    pub fn new(from: usize, to: usize, open: bool, multi: bool) -> Flow {
        Flow {
            from,
            to,
            open,
            multi,
            out: Vec::new(),
            posts: Vec::new(),
            claims: Vec::new(),
            taken: BTreeSet::new(),
            sends_open: 0,
            settled: (0, 0),
            lost: false,
            over: false,
        }
    }

    /// What message `number` contains.
    pub fn content(&self, number: usize, n: usize) -> Vec<u8> {
        pattern(n, number * 5 + self.from * 3 + self.to)
    }

    /// What each receive gets, and what is left over. `came`: leaves out messages that did not.
    pub fn oracle(&self, came: impl Fn(usize) -> bool) -> (Vec<Vec<usize>>, Vec<usize>) {
        let mut got = vec![Vec::new(); self.posts.len()];
        // Of a multi-receive buffer: how much is used; of another: all or nothing.
        let mut used = vec![0usize; self.posts.len()];
        let mut full = vec![false; self.posts.len()];
        let mut left = Vec::new();
        'message: for (number, m) in self.out.iter().enumerate().skip(self.settled.0) {
            if self.taken.contains(&number) || !came(number) {
                continue;
            }
            for (i, p) in self.posts.iter().enumerate().skip(self.settled.1) {
                // A buffer that was cancelled took nothing after that; nor did one that was retired by a message of which no more
                // came than that it did not fit.
                let over = p.gone != Gone::No || self.lost && p.released;
                if full[i] || (m.tag ^ p.tag) & !p.ignore != 0 || (over && got[i].len() == p.got.len()) {
                    continue;
                }
                if p.multi {
                    let rest = p.buf.len() - used[i];
                    if used[i] > 0 && m.buf.len() > rest {
                        full[i] = true;
                        continue;
                    }
                    used[i] = (used[i] + m.buf.len().min(rest)).next_multiple_of(ALIGN).min(p.buf.len());
                    full[i] = p.buf.len() - used[i] < MIN_LEFT;
                } else {
                    full[i] = true;
                }
                got[i].push(number);
                continue 'message;
            }
            left.push(number);
        }
        (got, left)
    }

    /// What each receive got, sorted, without those that are over.
    pub fn got(&self) -> Vec<Vec<usize>> {
        let one = |(i, p): (usize, &Post)| {
            let mut got = if i < self.settled.1 { Vec::new() } else { p.got.clone() };
            got.sort_unstable();
            got
        };
        self.posts.iter().enumerate().map(one).collect()
    }

    /// The bytes of a received message, whole or cut off.
    pub fn check_payload(&self, at: &str, e: &Event, buf: &[u8]) {
        let c: Completion = match e {
            Ok(c) => *c,
            Err(e) => e.c,
        };
        let number = c.data as usize;
        let sent = self.out.get(number).unwrap_or_else(|| panic!("{at}: a message that was never sent: {e:?}"));
        let total = sent.buf.len();
        match e {
            Ok(c) => assert_eq!((c.len, c.tag), (total, sent.tag), "{at}: {e:?}"),
            Err(e) => assert_eq!((e.error, e.c.len + e.olen, e.c.tag), (Error::Truncated, total, sent.tag), "{at}: {e:?}"),
        }
        assert_eq!(&buf[..c.len], &self.content(number, total)[..c.len], "{at}: {e:?}");
    }
}

/// A size; all protocols get their share.
pub fn size(rng: &mut Rng) -> usize {
    match rng.below(6) {
        0 => 0,
        1 => rng.range(1, 65),
        2 => rng.range(65, 260),
        3 => rng.range(260, 4200),
        4 => rng.range(1000, 20_000),
        // More than the receiver copies in a turn, so that the sender gets its part.
        _ if rng.one_in(12) => rng.range(270_000, 600_000),
        _ => rng.range(20_000, 90_000) >> rng.below(4),
    }
}

/// `buf` in pieces.
pub fn split(buf: &mut [u8], parts: usize, rng: &mut Rng) -> Vec<rustmx::UserSeg> {
    let mut rest = buf;
    let mut iov = Vec::new();
    for _ in 1..parts {
        let at = rng.range(0, rest.len() + 1);
        let (a, b) = rest.split_at_mut(at);
        iov.push(seg(a));
        rest = b;
    }
    iov.push(seg(rest));
    iov
}
