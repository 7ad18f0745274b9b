//! Long puts and gets between hosts: their bytes go past the ring in *parts*, each from memory to memory ([`InPlace`](crate::transport::InPlace)).
//!
//! ```text
//! initiator                                     target
//!   PUT [key, addr | name, bytes]  part ──▶        check; the part lands in the region
//!   GET [key, addr, bytes] ──▶                     check
//!         the part lands in the buffer       ◀──   ANSWER [name, bytes]  part …
//! ```
//! * A part needs no credit and nobody asks for it: there is a place for it as soon as its record is read. It waits in the sockets until then.
//! * Records overtake parts, which follow each other. So what a record does by itself, after a put of ours, waits until the put's parts have left: what leaves later is read later. And what
//!   a record ends is over when all parts of it have come.
//! * A region may be closed while a part lands in it: then the rest is dropped. While one leaves out of it: then that is copied ([`OneSided::withdraw`](super::OneSided::withdraw)); also if
//!   its reader is about to write there.
#![expect(unsafe_code)]
// UNSAFETY: gives a buffer of its own to system calls, as an application does.

use crate::error::Error;
use crate::mem::user::{UserSeg, gather_into, landing_place, sending_place, window};
use crate::region::Regions;
use crate::request::Touched;
use crate::transport::link::{Class, Corrupt, Draft, Link, NotSent};
use crate::transport::{Bulk, Moved};
use crate::types::Access;
use crate::wire::header::{Header, Part, flag};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Bytes up to which records do it. (What of a longer operation is left behind a part, is a part.)
pub const SHORT: usize = 8 << 10;
/// Parts of puts, and of answers, that have not left: what comes behind them waits for no more than that.
const LEAVING: usize = 4;
/// Parts that have not come, of which we know. An honest peer has as many under way as may be leaving, and some of which we have not heard yet that they are there.
const COMING: usize = 256;
/// Bytes of such parts that land in buffers of ours: many times what is leaving at an honest peer.
const HELD: usize = 64 << 20;

/// What leaves.
enum Leaving {
    /// Of a put of ours.
    Put(u32),
    /// What a peer reads, where it is: key and memory.
    Answer(u64, UserSeg),
    /// A copy of that.
    Copied(#[expect(dead_code, reason = "kept until it has left")] Vec<u8>),
}

/// What comes.
pub(super) enum Coming {
    /// Of a peer's put, to one of our regions: operation and key.
    Put(u32, u64),
    /// The same to an address that only the peer vouches for: it lands in a buffer of ours, and where it belongs by the kernel, which knows what is mapped.
    Anywhere(Held),
    /// Of what we read: operation.
    Answer(u32),
}

/// A part of a put that lands in a buffer of ours.
pub(super) struct Held {
    pub op: u32,
    pub key: u64,
    pub addr: u64,
    bytes: Vec<u8>,
    /// What became of it in the memory that it is for.
    written: Option<Result<(), Error>>,
}

impl Held {
    /// All of it has come, and goes to where it belongs, if it is not there.
    pub fn write(&mut self, regions: &Regions) -> Result<(), Error> {
        *self.written.get_or_insert_with(|| {
            let reached = regions.reach(self.key, self.addr, self.bytes.len(), Access::REMOTE_WRITE);
            reached.and_then(|seg| regions.write_in(self.key, seg, &self.bytes))
        })
    }
}

/// A peer's put of which parts are coming.
#[derive(Default)]
pub(super) struct Late {
    coming: usize,
    failed: Option<Error>,
    /// Its last record was read.
    end: Option<Touched>,
}

/// Parts of one link, both directions.
#[derive(Default)]
pub(super) struct Parts {
    last_name: u32,
    leaving: FxHashMap<u32, Leaving>,
    /// Parts of puts among them.
    puts: usize,
    coming: FxHashMap<u32, Coming>,
    /// Of these the ones that land in buffers of ours, and are still to be written, in the order in which they come.
    held: VecDeque<u32>,
    held_bytes: usize,
    /// By the peer's name for the operation.
    late: FxHashMap<u32, Late>,
}

/// How much of `left` bytes, `sent` being those before them, goes as a part. `None`: records do it.
pub(super) fn part_of(link: &Link, left: usize, sent: usize) -> Option<usize> {
    (link.may_post() && left > 0 && (left > SHORT || sent > 0)).then_some(left.min(Part::MOST))
}

impl Parts {
    /// Whether nothing has to leave before a record that does something when it is read. (Parts are read in the order in which they leave.)
    pub fn have_left(&self) -> bool {
        self.puts == 0
    }

    /// Sends a part of a put: the record, as drafted but for what it says of the part, and the bytes. Whether it has left.
    pub fn put(
        &mut self,
        link: &mut Link,
        op: u32,
        draft: &Draft<'_>,
        bytes: (&[UserSeg], usize, usize),
    ) -> Result<bool, NotSent> {
        if self.puts >= LEAVING {
            return Err(NotSent::Full);
        }
        let (iov, skip, len) = bytes;
        let (name, moved) = self.send(link, draft, &window(iov, skip, len), len, Link::post)?;
        if moved == Moved::Later {
            self.leaving.insert(name, Leaving::Put(op));
            self.puts += 1;
        }
        Ok(moved == Moved::AtOnce)
    }

    /// Whether a part of an answer may leave now.
    pub fn may_answer(&self) -> bool {
        self.leaving.len() - self.puts < LEAVING
    }

    /// Whether no answer is leaving.
    pub fn have_been_read(&self) -> bool {
        self.leaving.len() == self.puts
    }

    /// Sends a part of an answer, out of a region.
    pub fn answer(&mut self, link: &mut Link, draft: &Draft<'_>, (key, seg): (u64, UserSeg)) -> Result<(), NotSent> {
        let (name, moved) = self.send(link, draft, &[seg], seg.len(), Link::post_fickle)?;
        if moved == Moved::Later {
            self.leaving.insert(name, Leaving::Answer(key, seg));
        }
        Ok(())
    }

    /// This memory is about to be written by the same peer, or is a region's of this key, which is closed: what leaves out of it is copied.
    pub fn keep(&mut self, link: &Link, is_meant: impl Fn(u64, &UserSeg) -> bool) {
        for (name, leaving) in &mut self.leaving {
            if let Leaving::Answer(key, seg) = leaving
                && is_meant(*key, seg)
            {
                let mut bytes = Vec::with_capacity(seg.len());
                gather_into(&[*seg], 0, seg.len(), &mut bytes);
                // SAFETY: as in `answer_copied`.
                link.relocate(*name, unsafe { sending_place(&bytes) });
                *leaving = Leaving::Copied(bytes);
            }
        }
    }

    /// Sends a part of an answer that was copied.
    pub fn answer_copied(&mut self, link: &mut Link, draft: &Draft<'_>, bytes: Vec<u8>) -> Result<(), NotSent> {
        // SAFETY: on the heap wherever the vector goes; it stays in `leaving`, where nobody looks at it, until the part has left or the peer's lines are forgotten, which
        // read nothing after that (`abort`; `endpoint/depart.rs`).
        let iov = [unsafe { sending_place(&bytes) }];
        let (name, moved) = self.send(link, draft, &iov, bytes.len(), Link::post)?;
        if moved == Moved::Later {
            self.leaving.insert(name, Leaving::Copied(bytes));
        }
        Ok(())
    }

    fn send(
        &mut self,
        link: &mut Link,
        draft: &Draft<'_>,
        iov: &[UserSeg],
        len: usize,
        post: fn(&Link, Bulk<'_>) -> Option<Moved>,
    ) -> Result<(u32, Moved), NotSent> {
        let name = Part::NAMES | self.last_name.wrapping_add(1);
        let part = Part { name, len: len as u32 }.emit();
        // The part follows at once.
        link.set_quiet(true);
        let sent = link.send(
            &Draft { flags: draft.flags | flag::IN_PLACE, iov: &[], skip: 0, len: Part::BYTES, bytes: &part, ..*draft },
            Class::Envelope,
        );
        link.set_quiet(false);
        sent?;
        self.last_name = name;
        // There is a way: `part_of` has looked.
        let moved = post(link, Bulk { id: name, iov, skip: 0, len, promised: len }).ok_or(NotSent::Corrupt)?;
        Ok((name, moved))
    }

    /// A part has left. Which operation of ours it was of, if it was of one.
    pub fn left(&mut self, name: u32) -> Option<u32> {
        match self.leaving.remove(&name)? {
            Leaving::Put(op) => {
                self.puts -= 1;
                Some(op)
            }
            Leaving::Answer(..) | Leaving::Copied(_) => None,
        }
    }

    /// What the record at the head says of a part, if that is how its bytes come.
    pub fn announced(&self, link: &Link, header: &Header) -> Result<Option<Part>, Corrupt> {
        if header.flags & flag::IN_PLACE == 0 {
            return Ok(None);
        }
        let mut word = [0];
        if usize::from(header.len) != Part::BYTES || link.payload_words(header, &mut word) != 1 || !link.is_in_place() {
            return Err(Corrupt);
        }
        let part = Part::parse(word[0]).map_err(|_| Corrupt)?;
        let sound = !self.coming.contains_key(&part.name) && self.coming.len() < COMING;
        if sound { Ok(Some(part)) } else { Err(Corrupt) }
    }

    /// It goes there, or, if that is nothing, nowhere. Whether it is there already.
    pub fn expect(&mut self, link: &Link, part: Part, to: &[UserSeg], what: Coming) -> Result<bool, Corrupt> {
        let (name, len) = (part.name, part.len as usize);
        match link.expect_exactly(Bulk { id: name, iov: to, skip: 0, len, promised: len }) {
            Some(Moved::AtOnce) => Ok(true),
            Some(Moved::Later) => {
                self.coming.insert(name, what);
                Ok(false)
            }
            None => Err(Corrupt),
        }
    }

    /// Whether parts are held: what comes behind them is to be held, too, lest it be written before them.
    pub fn are_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// [`expect`](Self::expect) of a part to [anywhere](Coming::Anywhere); what is held of it, if it is there already.
    pub fn hold(
        &mut self,
        link: &Link,
        regions: &Regions,
        part: Part,
        (op, key, addr): (u32, u64, u64),
    ) -> Result<Option<Held>, Corrupt> {
        let (name, len) = (part.name, part.len as usize);
        if self.held_bytes + len > HELD {
            return Err(Corrupt);
        }
        let mut bytes = Vec::new();
        // SAFETY: on the heap wherever the vector goes; it stays in `coming`, where nobody looks at it, until all of the part has come or the peer's lines are forgotten, which put nothing anywhere
        // after that (`abort`; `endpoint/depart.rs`).
        let to = unsafe { landing_place(&mut bytes, len) };
        let held = Held { op, key, addr, bytes, written: None };
        match link.expect_exactly(Bulk { id: name, iov: &[to], skip: 0, len, promised: len }) {
            Some(Moved::AtOnce) => {
                self.settle(regions);
                Ok(Some(held))
            }
            Some(Moved::Later) => {
                self.coming.insert(name, Coming::Anywhere(held));
                self.held.push_back(name);
                self.held_bytes += len;
                Ok(None)
            }
            None => Err(Corrupt),
        }
    }

    /// All parts that were announced have come, though we may not have heard so: what is held of them goes to where it belongs, in order.
    #[inline]
    pub fn settle(&mut self, regions: &Regions) {
        while let Some(name) = self.held.pop_front() {
            self.write(regions, name);
        }
    }

    #[cold]
    fn write(&mut self, regions: &Regions, name: u32) {
        if let Some(Coming::Anywhere(held)) = self.coming.get_mut(&name) {
            self.held_bytes -= held.bytes.len();
            let _ = held.write(regions);
        }
    }

    /// A part has come, and with it all that were announced before. What it was of.
    pub fn came(&mut self, regions: &Regions, name: u32) -> Option<Coming> {
        if self.held.contains(&name) {
            while let Some(first) = self.held.pop_front() {
                self.write(regions, first);
                if first == name {
                    break;
                }
            }
        }
        self.coming.remove(&name)
    }

    /// The peer's put, one of whose parts is announced.
    pub fn begin(&mut self, op: u32, failed: Option<Error>) -> Result<(), Corrupt> {
        if self.late.len() > COMING {
            return Err(Corrupt);
        }
        let late = self.late.entry(op).or_default();
        late.coming += 1;
        late.failed = late.failed.or(failed);
        Ok(())
    }

    /// One of its parts has come, and this is what became of it.
    pub fn ends_one(&mut self, op: u32, outcome: Result<(), Error>) {
        if let Some(late) = self.late.get_mut(&op) {
            late.coming -= 1;
            late.failed = late.failed.or(outcome.err());
        }
    }

    /// Its last record was read, and so much is known of it by that. Returns whether it was a put of parts.
    pub fn closes(&mut self, op: u32, touched: Touched, failed: Option<Error>) -> bool {
        let Some(late) = self.late.get_mut(&op) else { return false };
        late.failed = late.failed.or(failed);
        late.end = Some(touched);
        true
    }

    /// What became of it, if it is over.
    pub fn outcome(&mut self, op: u32) -> Option<(Touched, Result<(), Error>)> {
        let late = self.late.get(&op)?;
        let touched = late.end.filter(|_| late.coming == 0)?;
        let failed = self.late.remove(&op)?.failed;
        Some((touched, failed.map_or(Ok(()), Err)))
    }

    /// A region is closed: nothing lands there any more, and nothing leaves out of it.
    pub fn withdraw(&mut self, link: &Link, key: u64) {
        self.keep(link, |of, _| of == key);
        for (name, coming) in &self.coming {
            if let Coming::Put(op, of) = coming
                && *of == key
            {
                link.disown(*name);
                if let Some(late) = self.late.get_mut(op) {
                    late.failed = late.failed.or(Some(Error::NoKey));
                }
            }
        }
    }

    /// Whether something of ours has not left.
    pub fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The peer's lines are forgotten: nothing reads what was leaving, nothing lands.
    pub fn abort(&mut self) {
        *self = Parts::default();
    }
}
