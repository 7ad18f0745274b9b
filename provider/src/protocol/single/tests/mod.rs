//! Both sides of the protocol over real links, in one process: the kernel copies from us to us.

use super::means::FRESH;
use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::mem::pool::Pool;
use crate::mem::remote;
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::{UserSeg, gather_into, of_slice, scatter_bytes, total_len};
use crate::protocol::Streams;
use crate::region::table::Table;
use crate::request::Special;
use crate::shm::layout::{BACK, FRONT};
use crate::shm::segment;
use crate::shm::split::{MAX_CHUNKS, MAX_NUMBER};
use crate::types::{CompFlags, Level, UserCtx};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Whether the kernel lets a process read itself; some sandboxes do not.
fn kernel_allows() -> bool {
    let here = 1u64;
    remote::fetch_words(std::process::id(), &raw const here as u64, &mut [0]).is_ok()
}

struct Side {
    mine: SharedMem,
    link: Link,
    streams: Streams,
    copies: Copies,
    pool: Pool,
    sent: Vec<usize>,
    received: Vec<Received>,
    held: Vec<(u32, Envelope)>,
    /// Bytes that this side copied.
    moved: u64,
    /// Receives by tag, for messages that are expected.
    posted: Vec<Option<RecvReq>>,
    /// Its memory that the other side can map.
    arena: Arena,
}

/// Memory of one side.
struct Arena {
    memory: SharedMem,
    /// Whether the other side was lent it.
    lent: bool,
}

const ARENA: usize = 4 << 20;

impl Lender for Arena {
    fn lend(&mut self, iov: &[UserSeg], _: bool) -> u32 {
        let base = self.memory.as_user(0, 0).address();
        let inside = |s: &UserSeg| s.is_empty() || s.address() >= base && s.address() + s.len() <= base + ARENA;
        u32::from(self.lent && iov.iter().all(inside))
    }
}

fn req(ctx: usize) -> SendReq {
    SendReq { ctx: UserCtx(ctx), level: Level::Transmit, report: true, special: Special::NOTHING, flags: CompFlags::SEND }
}

fn want(ctx: usize, iov: &[UserSeg]) -> RecvReq {
    RecvReq { ctx: UserCtx(ctx), report: true, iov: iov.into(), cap: total_len(iov), special: Special::NOTHING }
}

fn sides(share_min: usize) -> (Side, Side) {
    let (a, b) = (segment::private(1 << 16), segment::private(1 << 16));
    let side = |mine: &SharedMem, theirs: &SharedMem| {
        let mut link = Link::new(mine.clone(), 1 << 17);
        link.attach(theirs.clone(), None);
        let mut copies = Copies::default();
        copies.allow_kernel();
        copies.share_between(&[share_min], &[share_min]);
        copies.set_sharing(Sharing::Always);
        Side {
            mine: mine.clone(),
            link,
            streams: Streams::new(4096),
            copies,
            pool: Pool::default(),
            sent: Vec::new(),
            received: Vec::new(),
            held: Vec::new(),
            moved: 0,
            posted: Vec::new(),
            arena: Arena { memory: SharedMem::new(Heap::new(ARENA)), lent: false },
        }
    };
    (side(&a, &b), side(&b, &a))
}

/// How one side's memory is lent to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    No,
    /// It could not be mapped there.
    Unmapped,
    ToRead,
    ToWrite,
}

fn lent() -> impl Strategy<Value = Lent> {
    prop_oneof![Just(Lent::No), Just(Lent::Unmapped), Just(Lent::ToRead), Just(Lent::ToWrite)]
}

/// `from` lends its arena to `to`.
fn lend(from: &mut Side, to: &mut Side, how: Lent) {
    from.arena.lent = how != Lent::No;
    let base = from.arena.memory.as_user(0, 0).address() as u64;
    let loan = Loan::new(from.arena.memory.clone(), base, how == Lent::ToWrite);
    if from.arena.lent {
        assert!(to.copies.may_lend(1, ARENA) && to.copies.lent(1, (how != Lent::Unmapped).then_some(loan)));
    }
}

fn message(tag: usize, iov: &[UserSeg]) -> Message<'_> {
    Message { tagged: true, tag: tag as u64, data: None, iov, bytes: &[], len: total_len(iov), lent: 0 }
}

impl Side {
    fn wire(&mut self) -> Wire<'_> {
        Wire { link: &mut self.link, streams: &mut self.streams, copies: &mut self.copies, pool: &mut self.pool }
    }

    fn take(&mut self, ended: Ended) {
        self.received.extend(ended.received);
        self.moved += ended.fetched + ended.stored + std::mem::take(&mut self.copies.fetched);
        for Declined { id, env, req } in ended.declined {
            self.streams.expect(id, env, req);
        }
    }

    /// Writes and copies, as a turn of the engine does.
    fn push(&mut self) {
        let mut ended = Ended::default();
        self.copies.push(&mut self.link, &mut self.arena, &mut ended).expect("sound");
        self.take(ended);
        let sent = &mut self.sent;
        self.streams.push(&mut self.link, |req, _| sent.push(req.ctx.0)).expect("sound");
        self.link.tell();
    }

    /// Takes one record out of the ring.
    fn drain(&mut self) -> Result<bool, Corrupt> {
        let Some(header) = self.link.peek()? else { return Ok(false) };
        match header.kind {
            Kind::Offer => {
                let said = Single::announced(&mut self.wire(), &header)?;
                match self.posted.get_mut(said.env.tag as usize).and_then(Option::take) {
                    Some(req) => match Single::place(&mut self.wire(), &header, &said, &req)? {
                        Placed::Whole(placed) => self.received.push(Received { req, env: said.env, placed }),
                        Placed::Offered(id) => self.received.extend(self.copies.adopt(id, req)),
                        Placed::Part(_) => panic!("not a stream"),
                    },
                    None => {
                        let Held::Offer(id) = Single::hold(&mut self.wire(), &header, &said)? else { return Err(Corrupt) };
                        self.held.push((id, said.env));
                    }
                }
            }
            Kind::Accept => self.copies.on_accept(&self.link, &header)?,
            Kind::Fin => self.sent.push(self.copies.on_fin(&header)?.req.ctx.0),
            Kind::Done => {
                let mut ended = Ended::default();
                self.copies.on_done(&header, &mut ended)?;
                self.take(ended);
            }
            Kind::Cts => {
                if let Some(Returned { iov, total, wanted, req, .. }) = self.copies.on_cts(&header)? {
                    self.streams.start_asked(header.tag as u32, iov, total, wanted, req);
                } else {
                    self.streams.on_cts(&header)?;
                }
            }
            Kind::Data => {
                let received = self.streams.on_data(&mut self.link, &header)?;
                self.received.extend(received);
            }
            other => panic!("{other:?}"),
        }
        self.link.consume(&header);
        self.link.tell();
        Ok(true)
    }

    /// A receive for a message that came before it.
    fn receive_held(&mut self, tag: usize, req: RecvReq) -> Option<RecvReq> {
        let Some(at) = self.held.iter().position(|(_, env)| env.tag == tag as u64) else { return Some(req) };
        let (id, _) = self.held.remove(at);
        if let Delivery::Done(received) = deliver_held(&mut self.wire(), id, req) {
            self.received.push(received);
        }
        None
    }
}

/// What one side can do to the other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Everything,
    /// The kernel refuses.
    Forbidden,
    /// Another process has its number.
    Other,
    /// It has no number here.
    Unseen,
    /// The user does not want it.
    Off,
}

fn reach() -> impl Strategy<Value = Reach> {
    prop_oneof![4 => Just(Reach::Everything), 1 => Just(Reach::Forbidden), 1 => Just(Reach::Other), 1 => Just(Reach::Unseen), 1 => Just(Reach::Off)]
}

fn aim(side: &mut Side, reach: Reach, table: &Table) {
    let mut locator = table.locator();
    if reach == Reach::Other {
        locator.address += 64;
    }
    let seen = !matches!(reach, Reach::Unseen | Reach::Off);
    side.copies.reach(seen.then_some(Target { pid: std::process::id(), table: locator }));
    side.copies.on = reach != Reach::Off;
    (side.copies.no_read, side.copies.no_write) = (reach == Reach::Forbidden, reach == Reach::Forbidden);
}

fn cut(whole: UserSeg, pieces: usize) -> Vec<UserSeg> {
    let n = whole.len().div_ceil(pieces).max(1);
    (0..whole.len()).step_by(n).map(|at| whole.part(at, n)).collect()
}

/// A buffer: of its own, or in a side's arena.
struct Buffer {
    whole: UserSeg,
    _own: Vec<u8>,
}

impl Buffer {
    fn new(len: usize, arena: Option<(&Arena, &mut usize)>) -> Buffer {
        let mut own = Vec::new();
        let whole = match arena {
            Some((arena, at)) if *at + len <= ARENA => {
                *at += len;
                arena.memory.as_user(*at - len, len)
            }
            _ => {
                own.resize(len, 0);
                of_slice(&mut own)
            }
        };
        Buffer { whole, _own: own }
    }

    fn fill(self, byte: impl Fn(usize) -> u8) -> Buffer {
        let bytes: Vec<u8> = (0..self.whole.len()).map(byte).collect();
        scatter_bytes(&[self.whole], 0, &bytes);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        gather_into(&[self.whole], 0, self.whole.len(), &mut bytes);
        bytes
    }
}

#[derive(Clone, Debug)]
struct Plan {
    len: usize,
    cap: usize,
    pieces: (usize, usize),
    /// Whether the receive comes first.
    early: bool,
    /// Whether the buffers are in the sides' arenas.
    arenas: (bool, bool),
}

fn plan() -> impl Strategy<Value = Plan> {
    let len = prop_oneof![1usize..5000, 1usize..300_000];
    let more = (any::<bool>(), any::<(bool, bool)>());
    (len, 0usize..310_000, any::<bool>(), 1usize..7, 1usize..12, more).prop_map(|(len, cap, whole, a, b, (early, arenas))| Plan {
        len,
        cap: if whole { len } else { cap },
        pieces: (a, b),
        early,
        arenas,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whoever gets whatever turns, whatever the kernel forbids and whatever memory is lent: every message arrives, whole or cut to its
    /// buffer, once.
    #[test]
    fn all_bytes_arrive(
        plans in proptest::collection::vec(plan(), 1..5), turns in proptest::collection::vec(0u8..5, 0..60), share_min in 1usize..200_000,
        ab in reach(), ba in reach(), lent_a in lent(), lent_b in lent(), engines in (any::<bool>(), any::<bool>()),
    ) {
        if !kernel_allows() {
            return Ok(());
        }
        let (mut a, mut b) = sides(share_min);
        let table = Table::default();
        for side in [&mut a, &mut b] {
            side.copies.stream_from(if engines.0 { 1 } else { usize::MAX });
            side.copies.help_from(if engines.1 { 1 } else { usize::MAX });
        }
        aim(&mut a, ab, &table);
        aim(&mut b, ba, &table);
        lend(&mut a, &mut b, lent_a);
        lend(&mut b, &mut a, lent_b);
        let (mut at_a, mut at_b) = (0, 0);
        let from: Vec<Buffer> = plans.iter().enumerate().map(|(i, p)| {
            Buffer::new(p.len, p.arenas.0.then_some((&a.arena, &mut at_a))).fill(|k| (k * 7 + k / 255 + i * 31) as u8)
        }).collect();
        let to: Vec<Buffer> = plans.iter().map(|p| {
            Buffer::new(p.cap, p.arenas.1.then_some((&b.arena, &mut at_b))).fill(|_| 0xee)
        }).collect();
        let mut late = Vec::new();
        for (i, (p, to)) in plans.iter().zip(&to).enumerate() {
            let want = want(i, &cut(to.whole, p.pieces.1));
            b.posted.push(if p.early { Some(want) } else { late.push((i, want)); None });
        }
        for (i, (p, from)) in plans.iter().zip(&from).enumerate() {
            let iov = cut(from.whole, p.pieces.0);
            let lent = if a.copies.takes_loans() { a.arena.lend(&iov, false) } else { 0 };
            let started = Single::start(&mut a.wire(), &Message { lent, ..message(i, &iov) }, &req(i));
            if lent == 0 && matches!(ab, Reach::Unseen | Reach::Off) {
                // It offers nothing, since it could not help; streams have tests of their own.
                prop_assert_eq!(started, Err(Refused::Unable));
                return Ok(());
            }
            prop_assert_eq!(started, Ok(Started::Streaming));
        }
        let mut idle = 0;
        let mut turns = turns.into_iter();
        while idle < 3 {
            match turns.next() {
                Some(0) => a.push(),
                Some(1) => b.push(),
                Some(2) => { a.drain().expect("sound"); }
                Some(3) => { b.drain().expect("sound"); }
                turn => {
                    late = late.into_iter().filter_map(|(i, want)| b.receive_held(i, want).map(|want| (i, want))).collect();
                    if turn.is_none() {
                        let before = (a.sent.len(), b.received.len(), a.link.position(), b.link.position());
                        a.push();
                        b.push();
                        while a.drain().expect("sound") {}
                        while b.drain().expect("sound") {}
                        let now = (a.sent.len(), b.received.len(), a.link.position(), b.link.position());
                        idle = if before == now && !a.copies.has_work() && !b.copies.has_work() { idle + 1 } else { 0 };
                    }
                }
            }
        }
        a.sent.sort_unstable();
        prop_assert_eq!(&a.sent, &(0..plans.len()).collect::<Vec<_>>());
        prop_assert_eq!(b.received.len(), plans.len());
        for r in &b.received {
            let (i, p) = (r.req.ctx.0, &plans[r.req.ctx.0]);
            prop_assert_eq!(r.placed, p.len.min(p.cap));
            let (to, from) = (to[i].bytes(), from[i].bytes());
            prop_assert!(to[..r.placed] == from[..r.placed], "message {}", i);
            prop_assert!(to[r.placed..].iter().all(|b| *b == 0xee), "message {} ran over", i);
        }
        prop_assert!(a.moved == 0 || ab == Reach::Everything || lent_b == Lent::ToWrite, "{:?} wrote", ab);
        prop_assert!(b.moved == 0 || ba == Reach::Everything || matches!(lent_a, Lent::ToRead | Lent::ToWrite), "{:?} read", ba);
        let unmapped = lent_a == Lent::Unmapped && plans.iter().any(|p| p.arenas.0);
        prop_assert_eq!(a.copies.takes_loans(), !unmapped, "what could not be mapped is told");
        prop_assert!(a.copies.tx.is_empty() && b.copies.rx.is_empty() && !a.streams.has_work() && !b.streams.has_work());
    }
}

/// One long message, posted first, until the receiver's first turn: A has the ACCEPT in its ring.
#[expect(clippy::type_complexity, reason = "two sides, two buffers and the table that tells whose they are")]
fn shared(len: usize) -> Option<(Side, Side, Vec<u8>, Vec<u8>, Table)> {
    if !kernel_allows() {
        return None;
    }
    let (mut a, mut b) = sides(1);
    let table = Table::default();
    aim(&mut a, Reach::Everything, &table);
    aim(&mut b, Reach::Everything, &table);
    let (mut from, mut to): (Vec<u8>, _) = ((0..len).map(|i| (i / 3) as u8).collect(), vec![0; len]);
    b.posted.push(Some(want(0, &[of_slice(&mut to)])));
    Single::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(0)).expect("started");
    assert!(b.drain().expect("sound"));
    Some((a, b, from, to, table))
}

#[test]
fn both_sides_copy_if_both_are_there() {
    const LEN: usize = 8 << 20;
    let Some((mut a, mut b, from, to, _table)) = shared(LEN) else { return };
    let (mut fetched, mut stored) = (0, 0);
    while b.received.is_empty() {
        for side in [&mut b, &mut a] {
            let mut ended = Ended::default();
            side.copies.push(&mut side.link, &mut side.arena, &mut ended).expect("sound");
            fetched += ended.fetched;
            stored += ended.stored;
            side.take(ended);
            while side.drain().expect("sound") {}
        }
    }
    assert_eq!(fetched + stored, LEN as u64);
    assert!(fetched.abs_diff(stored) <= 2 * TURN.max(CHUNKS.1) as u64, "{fetched} and {stored}");
    assert!(from == to);
    b.push();
    a.drain().expect("sound");
    assert_eq!(a.sent, [0]);
}

#[test]
fn one_side_copies_all_if_the_other_computes() {
    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    while b.received.is_empty() {
        b.push();
    }
    assert!(from == to);
    // The sender comes back: it must not touch what is the application's again.
    drop(to);
    while a.sent.is_empty() {
        assert!(a.drain().expect("sound"));
        a.push();
    }
    while b.drain().expect("sound") {}

    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    b.copies.write_notes(&mut b.link, Some(&mut b.arena)).expect("room");
    let mut stored = 0;
    for _ in 0..100 {
        a.drain().expect("sound");
        let mut ended = Ended::default();
        a.copies.push(&mut a.link, &mut a.arena, &mut ended).expect("sound");
        stored += ended.stored;
    }
    assert_eq!(stored, 1 << 20);
    b.push();
    assert!(b.received.len() == 1 && from == to, "all is there, said or not");
}

/// It copied what one turn allows, and computes since: its part is there, and nobody need wait for its word.
#[test]
fn a_sender_that_leaves_in_the_middle() {
    let Some((mut a, mut b, from, to, _table)) = shared(1 << 20) else { return };
    b.copies.write_notes(&mut b.link, Some(&mut b.arena)).expect("room");
    a.drain().expect("sound");
    a.push();
    assert!(a.moved > 0 && a.moved < 1 << 20, "{} in one turn", a.moved);
    for _ in 0..10 {
        b.push();
    }
    assert!(b.received.len() == 1 && b.moved == (1 << 20) - a.moved);
    assert!(from == to);
    // It comes back to a buffer that is the application's.
    drop(to);
    let before = a.moved;
    for _ in 0..3 {
        a.push();
        while a.drain().expect("sound") {}
        while b.drain().expect("sound") {}
    }
    assert!(a.moved == before && a.sent == [0] && !a.copies.has_work() && !b.copies.has_work());
}

/// A peer that names memory which it did not lend for that, or addresses beside it, is not believed.
#[test]
fn lies_about_lent_memory() {
    let offer = |addr: u64, how: Lent| {
        let (mut a, mut b) = sides(1 << 20);
        lend(&mut a, &mut b, how);
        let base = a.arena.memory.as_user(0, 0).address() as u64;
        let bytes = emit_pieces(&[remote::Piece { addr: base.wrapping_add(addr), len: 5000 }]);
        let body = Offer { total: 5000, id: 1, lent: 1 }.emit();
        let draft = Draft {
            kind: Kind::Offer,
            flags: flag::TAGGED,
            tag: 0,
            data: 0,
            body,
            iov: &[],
            skip: 0,
            len: bytes.len(),
            bytes: &bytes,
        };
        a.link.send(&draft, Class::Envelope).expect("room");
        let mut to = vec![0; 5000];
        b.posted.push(Some(want(0, &[of_slice(&mut to)])));
        b.drain().is_ok()
    };
    assert!(offer(0, Lent::ToRead) && offer((ARENA - 5000) as u64, Lent::ToWrite));
    for bad in [(ARENA - 4999) as u64, ARENA as u64, u64::MAX, u64::MAX - 4999, 1 << 63] {
        assert!(!offer(bad, Lent::ToRead), "{bad}");
    }
    let (mut a, mut b) = sides(1);
    lend(&mut a, &mut b, Lent::ToRead);
    assert!(!b.copies.may_lend(1, 4096), "a number twice");
    assert!(!b.copies.may_lend(0, 4096) && !b.copies.may_lend(2, usize::MAX) && !b.copies.may_lend(2, 1 << 43));
    for number in 2..65 {
        assert!(b.copies.may_lend(number, 4096) && b.copies.lent(number, None));
    }
    assert!(!b.copies.may_lend(65, 4096) && !b.copies.lent(65, None));
}

#[test]
fn a_refusal_is_remembered_by_both() {
    let Some((mut a, mut b, mut from, to, _table)) = shared(100_000) else { return };
    a.copies.no_write = true;
    // What the kernel would answer: nobody here can make it.
    b.copies.no_read = true;
    b.copies.decline(1, true, &mut Ended::default());
    b.push();
    assert!(a.drain().expect("sound"), "the ACCEPT of a message that was declined since is not written");
    assert!(a.copies.is_refused());
    let again = Single::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(1));
    assert_eq!(again, Err(Refused::Unable));
    drop(to);
}

/// Lies of a receiver to a sender and of a sender to a receiver: each is noticed.
#[test]
fn lies() {
    let here = 0u8;
    let at = &raw const here as u64;
    let piece = |len: usize| emit_pieces(&[remote::Piece { addr: at, len }]);
    let good = (1, 50_000, [1, 1 << 16], piece(50_000));
    let lie = |(id, wanted, body, bytes): (u64, u64, [u64; 2], smallvec::SmallVec<[u8; MAX_PIECES * 16]>)| {
        let (mut a, mut b, _from, _to, _table) = shared(100_000)?;
        let draft = Draft {
            kind: Kind::Accept,
            flags: 0,
            tag: id,
            data: wanted,
            body,
            iov: &[],
            skip: 0,
            len: bytes.len(),
            bytes: &bytes,
        };
        b.link.send(&draft, Class::Control).expect("room");
        Some(a.drain().is_err())
    };
    assert_ne!(lie(good.clone()), Some(true));
    for (what, told) in [
        ("no such offer", (2, good.1, good.2, good.3.clone())),
        ("no id", (1 << 32, good.1, good.2, good.3.clone())),
        ("more than there is", (1, 100_001, [1, 1 << 17], piece(100_001))),
        ("nothing", (1, 0, good.2, good.3.clone())),
        ("tiny chunks", (1, good.1, [1, 64], good.3.clone())),
        ("no number", (1, good.1, [0, 1 << 16], good.3.clone())),
        ("a number out of range", (1, good.1, [MAX_NUMBER + 1, 1 << 16], good.3.clone())),
        ("less room than bytes", (1, good.1, good.2, piece(49_999))),
        ("half a piece", (1, good.1, good.2, good.3[..8].into())),
    ] {
        assert_ne!(lie(told), Some(false), "{what}");
    }
    let done = |chunks: u64, first: u32| {
        let (mut a, mut b, _from, _to, _table) = shared(100_000)?;
        for _ in 0..first {
            b.copies.copy_front(&b.link, &mut Ended::default());
        }
        let draft =
            Draft { kind: Kind::Done, flags: 0, tag: 1, data: chunks, body: [0; 2], iov: &[], skip: 0, len: 0, bytes: &[] };
        a.link.send(&draft, Class::Control).expect("room");
        Some(b.drain().is_err())
    };
    assert_eq!(
        (done(0, 0), done(2, 0), done(1, 1)),
        (kernel_allows().then_some(false), kernel_allows().then_some(false), kernel_allows().then_some(false))
    );
    assert_ne!(done(3, 0), Some(false), "more chunks than there are");
    assert_ne!(done(2, 1), Some(false), "chunks that we copied");
}

/// A sender that claims everything, copies nothing and says nothing holds up its own message only.
#[test]
fn a_sender_that_claims_and_never_comes() {
    let Some((a, mut b, _from, _to, _table)) = shared(100_000) else { return };
    a.mine.word(BACK).store(1 << 24 | 4, Ordering::Relaxed);
    for _ in 0..10 {
        b.push();
    }
    assert!(b.received.is_empty() && b.copies.copying.is_empty());
    let mut ended = Ended::default();
    assert_eq!(b.copies.push(&mut b.link, &mut b.arena, &mut ended), Ok(0), "who waits may give its core away");
}

/// Messages of 3000 bytes, the first of which is expected: what becomes of it and of the second if the table at hand is not the sender's.
fn of_a_process_that_may_be_another(since: u64, waited: u64) -> (bool, bool) {
    let (mut a, mut b) = sides(usize::MAX);
    let (table, now) = (Table::default(), Arc::new(AtomicU64::new(5 * FRESH)));
    aim(&mut a, Reach::Everything, &table);
    aim(&mut b, Reach::Other, &table);
    b.copies.set_clock(Clock::Manual(now.clone()), [0; 2]);
    let (mut from, mut to) = (vec![7u8; 3000], [vec![0u8; 3000], vec![0u8; 3000]]);
    let [first, second] = &mut to;
    b.posted = vec![Some(want(0, &[of_slice(first)])), None];
    for i in 0..2 {
        Single::start(&mut a.wire(), &message(i, &[of_slice(&mut from)]), &req(i)).expect("offered");
    }
    b.copies.heard(since);
    while b.drain().expect("sound") {}
    b.push();
    let at_once = b.received.len() == 1;
    now.fetch_add(waited, std::sync::atomic::Ordering::Relaxed);
    // What is heard meanwhile says nothing of when that message was written.
    b.copies.heard(now.load(std::sync::atomic::Ordering::Relaxed));
    assert!(b.receive_held(1, want(1, &[of_slice(second)])).is_none());
    b.push();
    (at_once, b.received.len() == 1 + usize::from(at_once))
}

#[test]
fn who_was_heard_of_a_moment_ago_is_not_asked_for_its_table() {
    if !kernel_allows() {
        return;
    }
    let now = 5 * FRESH;
    for (since, waited, copied) in [
        (0, 0, (false, false)),
        (now - FRESH, 0, (false, false)),
        (now - FRESH + 1, 0, (true, true)),
        (now - FRESH + 1, 1, (true, false)),
        (now, FRESH - 1, (true, true)),
        (now, FRESH, (true, false)),
    ] {
        assert_eq!(of_a_process_that_may_be_another(since, waited), copied, "{since} {waited}");
    }
}

#[test]
fn a_sender_asks_for_the_table_unless_it_heard_of_the_receiver_a_moment_ago() {
    let now = 5 * FRESH;
    for (since, writes) in [(0, false), (now - FRESH, false), (now - FRESH + 1, true)] {
        let Some((mut a, mut b, from, to, table)) = shared(1 << 20) else { return };
        b.push();
        aim(&mut a, Reach::Other, &table);
        a.copies.set_clock(Clock::Manual(Arc::new(AtomicU64::new(now))), [0; 2]);
        a.copies.heard(since);
        a.drain().expect("sound");
        a.push();
        assert_eq!(a.moved > 0, writes, "{since}");
        drop((b, from, to));
    }
}

#[test]
fn the_helper_copies_what_the_receiver_does_not_get_round_to() {
    const LEN: usize = 8 << 20;
    let Some((a, mut b, from, to, _table)) = shared(LEN) else { return };
    b.copies.help_from(LEN);
    let mut ended = Ended::default();
    b.copies.push(&mut b.link, &mut b.arena, &mut ended).expect("sound");
    let chunks = (LEN / CHUNKS.1) as u64;
    // The receiver computes; the sender is not there.
    let claimed = |b: &Side| b.mine.word(FRONT).load(Ordering::Relaxed) & u64::from(MAX_CHUNKS);
    while claimed(&b) < chunks {
        std::thread::yield_now();
    }
    while ended.received.is_empty() {
        b.copies.push(&mut b.link, &mut b.arena, &mut ended).expect("sound");
    }
    assert_eq!((ended.fetched, from == to), (LEN as u64, true));
    assert!(ended.helped >= LEN as u64 - 2 * TURN.max(CHUNKS.1) as u64, "{} helped", ended.helped);
    assert!(b.copies.help.id.is_none() && !b.copies.has_work());
    drop(a);
}

#[test]
fn the_helper_lets_go_when_the_peer_is_gone() {
    for _ in 0..5 {
        let Some((a, mut b, _from, mut to, _table)) = shared(8 << 20) else { return };
        b.copies.help_from(1);
        b.push();
        // It may have been so quick that nothing is left to be broken off.
        let in_hand = usize::from(b.copies.help.id.is_some());
        assert_eq!((b.copies.abort().recvs.len(), b.received.len()), (in_hand, 1 - in_hand));
        // The application has its buffer again.
        to.fill(0xee);
        for _ in 0..100 {
            std::thread::yield_now();
        }
        assert!(to.iter().all(|byte| *byte == 0xee));
        drop(a);
    }
}

#[test]
fn a_sender_that_leaves_the_rest_to_receiver_and_helper() {
    let Some((mut a, mut b, from, to, _table)) = shared(8 << 20) else { return };
    b.copies.help_from(1);
    b.push();
    a.drain().expect("sound");
    // One turn, then its process may not write any more.
    a.push();
    let stored = a.moved;
    a.copies.no_write = true;
    while b.received.is_empty() {
        a.push();
        b.push();
        while b.drain().expect("sound") {}
    }
    assert_eq!((a.moved, b.moved + a.moved, from == to), (stored, 8 << 20, true));
}

#[test]
fn lies_about_what_the_helper_copied() {
    let Some((a, mut b, _from, _to, _table)) = shared(8 << 20) else { return };
    b.copies.help_from(1);
    b.push();
    // It may be so quick that it has all of it.
    let Some(id) = b.copies.help.id else { return };
    let done = |chunks| Header { kind: Kind::Done, flags: 0, len: 0, ack: 0, tag: id.into(), data: chunks };
    for chunks in [17, u64::MAX, 16] {
        assert!(b.copies.on_done(&done(chunks), &mut Ended::default()).is_err(), "{chunks} of 16, of which one at least is here");
    }
    b.copies.abort();
    drop(a);
}
