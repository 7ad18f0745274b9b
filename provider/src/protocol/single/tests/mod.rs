//! Both sides of the protocol over real links, in one process: the kernel copies from us to us. Here is that every message arrives, whatever happens;
//! beside it who copies what, what is offered, what is kept, who is asked who he is, who is not there any more, what the helper thread does, receives that invite, one side that closes, and lies.

mod closing;
mod copier;
mod gone;
mod identity;
mod invited;
mod kept;
mod lies;
mod offers;
mod sharing;

use super::*;
use crate::mem::engine::Engine;
use crate::mem::pool::Pool;
use crate::mem::remote;
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::{UserSeg, gather_into, of_slice, scatter_bytes, total_len};
use crate::protocol::{self, Streams};
use crate::region::table::Table;
use crate::request::Special;
use crate::shm::segment;
use crate::transport::Anchor;
use crate::types::{CompFlags, Level, Presumed, UserCtx};
use proptest::prelude::*;

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
    /// Bytes of which the other side told how it copied them, for each of those.
    told: Vec<Option<Told>>,
    received: Vec<Received>,
    held: Vec<(Held, Envelope)>,
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
        share(&mut copies, None);
        copies.set_inviting(true);
        Side {
            mine: mine.clone(),
            link,
            streams: Streams::new(4096),
            copies,
            pool: Pool::default(),
            sent: Vec::new(),
            told: Vec::new(),
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
    let lent = super::Lent::new(Anchor::Own(from.arena.memory.clone()), base, how == Lent::ToWrite);
    let loan = lent.attach().expect("own");
    if from.arena.lent {
        assert!(to.copies.may_lend(1, ARENA) && to.copies.lent(1, (how != Lent::Unmapped).then_some((lent, loan))));
    }
}

fn message(tag: usize, iov: &[UserSeg]) -> Message<'_> {
    Message {
        tagged: true,
        tag: tag as u64,
        data: None,
        iov,
        bytes: &[],
        len: total_len(iov),
        at_once: false,
        lent: 0,
        presumed: None,
    }
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
                        let held = Single::hold(&mut self.wire(), &header, &said)?;
                        self.held.push((held, said.env));
                    }
                }
            }
            Kind::Accept => self.copies.on_accept(&self.link, &header)?,
            Kind::Fin => {
                let Finished { req, told, .. } = self.copies.on_fin(&header)?;
                self.sent.push(req.ctx.0);
                self.told.push(told);
            }
            Kind::Done => {
                let mut ended = Ended::default();
                self.copies.on_done(&self.link, &header, &mut ended)?;
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
        self.link.count_heard(usize::from(header.kind.is_message()));
        self.link.consume(header.lines());
        self.link.tell();
        Ok(true)
    }

    /// A receive for a message that came before it.
    fn receive_held(&mut self, tag: usize, req: RecvReq) -> Option<RecvReq> {
        let Some(at) = self.held.iter().position(|(_, env)| env.tag == tag as u64) else { return Some(req) };
        let (held, env) = self.held.remove(at);
        if let Delivery::Done(received) = protocol::deliver_held(&mut self.wire(), held, env, req) {
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
    /// No process has it.
    Nobody,
    /// It has no number here.
    Unseen,
    /// The user does not want it.
    Off,
}

fn reach() -> impl Strategy<Value = Reach> {
    prop_oneof![4 => Just(Reach::Everything), 1 => Just(Reach::Forbidden), 1 => Just(Reach::Other), 1 => Just(Reach::Nobody), 1 => Just(Reach::Unseen), 1 => Just(Reach::Off)]
}

/// What it may come to while messages are under way.
fn lost() -> impl Strategy<Value = Reach> {
    prop_oneof![Just(Reach::Forbidden), Just(Reach::Other), Just(Reach::Nobody), Just(Reach::Unseen)]
}

fn aim(side: &mut Side, reach: Reach, table: &Table) {
    let mut locator = table.locator();
    if reach == Reach::Other {
        locator.address += 64;
    }
    let seen = !matches!(reach, Reach::Unseen | Reach::Off);
    let pid = if reach == Reach::Nobody { u32::MAX >> 1 } else { std::process::id() };
    side.copies.reach(seen.then_some(Target { pid, table: locator }));
    side.copies.on &= reach != Reach::Off;
    side.copies.no_read |= reach == Reach::Forbidden;
    side.copies.no_write |= reach == Reach::Forbidden;
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
    presumed: Option<Presumed>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let len = prop_oneof![1usize..5000, 1usize..300_000];
    let presumed = proptest::option::of(any::<bool>().prop_map(|tells| Presumed { same: true, tells, era: 0, sent_at: 0 }));
    let more = (any::<bool>(), any::<(bool, bool)>(), presumed);
    (len, 0usize..310_000, any::<bool>(), 1usize..7, 1usize..12, more).prop_map(
        |(len, cap, whole, a, b, (early, arenas, presumed))| Plan {
            len,
            cap: if whole { len } else { cap },
            pieces: (a, b),
            early,
            arenas,
            presumed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whoever gets whatever turns, whatever the kernel forbids and whatever memory is lent: every message arrives, whole or cut to its
    /// buffer, once.
    #[test]
    fn all_bytes_arrive(
        plans in proptest::collection::vec(plan(), 1..5), turns in proptest::collection::vec(0u8..7, 0..80), share_min in 1usize..200_000,
        ab in reach(), ba in reach(), lent_a in lent(), lent_b in lent(), engines in (any::<bool>(), any::<bool>()),
        later in (lost(), lost()),
    ) {
        if !kernel_allows() {
            return Ok(());
        }
        let (mut a, mut b) = sides(share_min);
        let table = Table::default();
        for side in [&mut a, &mut b] {
            side.copies.copy_by(Engines::new(Engine::Ahead, if engines.0 { 1 } else { usize::MAX }));
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
            let started = Single::start(&mut a.wire(), &Message { lent, presumed: p.presumed, ..message(i, &iov) }, &req(i));
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
                Some(5) => aim(&mut a, if ab == Reach::Off { ab } else { later.0 }, &table),
                Some(6) => aim(&mut b, if ba == Reach::Off { ba } else { later.1 }, &table),
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
        prop_assert!(a.moved == 0 || ba != Reach::Off || lent_b == Lent::ToWrite, "by the kernel, which the receiver does not want");
        prop_assert!(b.moved == 0 || ba == Reach::Everything || matches!(lent_a, Lent::ToRead | Lent::ToWrite), "{:?} read", ba);
        let unmapped = lent_a == Lent::Unmapped && plans.iter().any(|p| p.arenas.0);
        prop_assert_eq!(a.copies.takes_loans(), !unmapped, "what could not be mapped is told");
        prop_assert!(b.copies.kept == 0 && b.held.is_empty(), "{} bytes are kept", b.copies.kept);
        prop_assert!(a.copies.tx.is_empty() && b.copies.rx.is_empty() && !a.streams.has_work() && !b.streams.has_work());
    }
}

/// What is shared out; `None`: all that may be, whatever it is worth.
fn share(copies: &mut Copies, how: Option<Sharing>) {
    let forced: &[usize] = if how.is_none() { &[0] } else { &[] };
    copies.force_between(forced, forced);
    copies.set_sharing(how.unwrap_or_default());
}

/// One long message that both copy, posted first, until the receiver's first turn, in which A gets its ACCEPT.
#[expect(clippy::type_complexity, reason = "two sides, two buffers and the table that tells whose they are")]
fn shared(len: usize) -> Option<(Side, Side, Vec<u8>, Vec<u8>, Table)> {
    expected(len, None)
}

/// The same, shared or not.
#[expect(clippy::type_complexity, reason = "as above")]
fn expected(len: usize, sharing: Option<Sharing>) -> Option<(Side, Side, Vec<u8>, Vec<u8>, Table)> {
    if !kernel_allows() {
        return None;
    }
    let (mut a, mut b) = sides(1);
    share(&mut b.copies, sharing);
    let table = Table::default();
    aim(&mut a, Reach::Everything, &table);
    aim(&mut b, Reach::Everything, &table);
    let (mut from, mut to): (Vec<u8>, _) = ((0..len).map(|i| (i / 3) as u8).collect(), vec![0; len]);
    b.posted.push(Some(want(0, &[of_slice(&mut to)])));
    Single::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(0)).expect("started");
    assert!(b.drain().expect("sound"));
    Some((a, b, from, to, table))
}

/// Both go on until all messages are there.
fn until_received(a: &mut Side, b: &mut Side, messages: usize) {
    for _ in 0..1000 {
        for side in [&mut *b, &mut *a] {
            while side.drain().expect("sound") {}
            side.push();
        }
        if b.received.len() == messages {
            return;
        }
    }
    panic!("{} of {messages} messages came", b.received.len());
}
