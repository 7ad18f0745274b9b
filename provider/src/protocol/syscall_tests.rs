//! Both sides of the protocol over real links, in one process: the kernel copies from us to us.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::mem::pool::Pool;
use crate::mem::shared::SharedMem;
use crate::mem::user::{UserSeg, of_slice, total_len};
use crate::protocol::Streams;
use crate::region::table::Table;
use crate::request::Special;
use crate::shm::layout::BACK;
use crate::shm::segment;
use crate::types::{CompFlags, Level, UserCtx};
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
    received: Vec<Received>,
    held: Vec<(u32, Envelope)>,
    /// Bytes that this side copied.
    moved: u64,
    /// Receives by tag, for messages that are expected.
    posted: Vec<Option<RecvReq>>,
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
        copies.share_between(&[share_min]);
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
        }
    };
    (side(&a, &b), side(&b, &a))
}

fn message(tag: usize, iov: &[UserSeg]) -> Message<'_> {
    Message { tagged: true, tag: tag as u64, data: None, iov, bytes: &[], len: total_len(iov) }
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
        self.copies.push(&mut self.link, false, &mut ended).expect("sound");
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
                let said = Syscall::announced(&mut self.wire(), &header)?;
                match self.posted.get_mut(said.env.tag as usize).and_then(Option::take) {
                    Some(req) => match Syscall::place(&mut self.wire(), &header, &said, &req)? {
                        Placed::Whole(placed) => self.received.push(Received { req, env: said.env, placed }),
                        Placed::Offered(id) => self.received.extend(self.copies.adopt(id, req)),
                        Placed::Part(_) => panic!("not a stream"),
                    },
                    None => {
                        let Held::Offer(id) = Syscall::hold(&mut self.wire(), &header, &said)? else { return Err(Corrupt) };
                        self.held.push((id, said.env));
                    }
                }
            }
            Kind::Accept => self.copies.on_accept(&self.link, &header)?,
            Kind::Fin => self.sent.push(self.copies.on_fin(&header)?.ctx.0),
            Kind::Done => {
                let mut ended = Ended::default();
                self.copies.on_done(&header, &mut ended)?;
                self.take(ended);
            }
            Kind::Cts => {
                if let Some(Returned { iov, total, wanted, req }) = self.copies.on_cts(&header)? {
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

fn cut(bytes: &mut [u8], pieces: usize) -> Vec<UserSeg> {
    let n = bytes.len().div_ceil(pieces).max(1);
    bytes.chunks_mut(n).map(of_slice).collect()
}

#[derive(Clone, Debug)]
struct Plan {
    len: usize,
    cap: usize,
    pieces: (usize, usize),
    /// Whether the receive comes first.
    early: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let len = prop_oneof![1usize..5000, 1usize..300_000];
    (len, 0usize..310_000, any::<bool>(), 1usize..7, 1usize..12, any::<bool>()).prop_map(|(len, cap, whole, a, b, early)| Plan {
        len,
        cap: if whole { len } else { cap },
        pieces: (a, b),
        early,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whoever gets whatever turns, and whatever the kernel forbids: every message arrives, whole or cut to its buffer, once.
    #[test]
    fn all_bytes_arrive(
        plans in proptest::collection::vec(plan(), 1..5), turns in proptest::collection::vec(0u8..5, 0..60), share_min in 1usize..200_000,
        ab in reach(), ba in reach(),
    ) {
        if !kernel_allows() {
            return Ok(());
        }
        let (mut a, mut b) = sides(share_min);
        let table = Table::default();
        aim(&mut a, ab, &table);
        aim(&mut b, ba, &table);
        let bytes = |i: usize, n: usize| -> Vec<u8> { (0..n).map(|k| (k * 7 + k / 255 + i * 31) as u8).collect() };
        let mut from: Vec<Vec<u8>> = plans.iter().enumerate().map(|(i, p)| bytes(i, p.len)).collect();
        let mut to: Vec<Vec<u8>> = plans.iter().map(|p| vec![0xee; p.cap]).collect();
        let mut late = Vec::new();
        for (i, (p, to)) in plans.iter().zip(&mut to).enumerate() {
            let want = want(i, &cut(to, p.pieces.1));
            b.posted.push(if p.early { Some(want) } else { late.push((i, want)); None });
        }
        for (i, (p, from)) in plans.iter().zip(&mut from).enumerate() {
            let iov = cut(from, p.pieces.0);
            let started = Syscall::start(&mut a.wire(), &message(i, &iov), &req(i));
            if matches!(ab, Reach::Unseen | Reach::Off) {
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
            prop_assert!(to[i][..r.placed] == from[i][..r.placed], "message {}", i);
            prop_assert!(to[i][r.placed..].iter().all(|b| *b == 0xee), "message {} ran over", i);
        }
        prop_assert!(a.moved == 0 || ab == Reach::Everything, "{:?} wrote", ab);
        prop_assert!(b.moved == 0 || ba == Reach::Everything, "{:?} read", ba);
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
    Syscall::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(0)).expect("started");
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
            side.copies.push(&mut side.link, false, &mut ended).expect("sound");
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
    b.copies.write_notes(&mut b.link).expect("room");
    let mut stored = 0;
    for _ in 0..100 {
        a.drain().expect("sound");
        let mut ended = Ended::default();
        a.copies.push(&mut a.link, false, &mut ended).expect("sound");
        stored += ended.stored;
    }
    assert_eq!(stored, 1 << 20);
    while b.received.is_empty() {
        b.push();
        b.drain().expect("sound");
    }
    assert!(from == to);
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
    let again = Syscall::start(&mut a.wire(), &message(0, &[of_slice(&mut from)]), &req(1));
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
        (done(0, 0), done(4, 0), done(3, 1)),
        (kernel_allows().then_some(false), kernel_allows().then_some(false), kernel_allows().then_some(false))
    );
    assert_ne!(done(5, 0), Some(false), "more chunks than there are");
    assert_ne!(done(4, 1), Some(false), "chunks that we copied");
}

/// A sender that claims everything and says nothing holds up its own message only, and a number that it has not got holds up nothing.
#[test]
fn a_sender_that_claims_and_never_comes() {
    let Some((a, mut b, _from, _to, _table)) = shared(100_000) else { return };
    a.mine.word(BACK).store(1 << 24 | 4, Ordering::Relaxed);
    for _ in 0..10 {
        b.push();
    }
    assert!(b.received.is_empty() && !b.copies.has_work());
}
