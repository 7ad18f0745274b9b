//! Operations of every kind that wait for a peer, and how each of them ends.

use crate::common::{Deadline, Event, Msg, Node, Want, pattern, seg};
use rustmx::{
    Access, Addr, AtomicArgs, AtomicForm, AtomicOp, AtomicType, Error, Name, OpFlags, Order, Region, RemoteSeg, RmaArgs, UserCtx,
};

/// Their contexts are the places here. The last two are in the middle, see [`Waiter::is_sent_to`].
const NAMES: [&str; 8] =
    ["receive", "send", "long send", "read", "write", "atomic", "long receive under way", "long send under way"];
/// Those that [`Waiter::begin`] takes.
pub const KINDS: usize = 6;

const KEY: u64 = 1;
/// More than one record.
const BYTES: usize = 100_000;
/// More than the sockets of four connections hold (some 10 MiB each, by the shipped tcp_rmem and tcp_wmem).
const LONG: usize = 64 << 20;
/// What nobody sends, what nobody receives, and what is on its way.
const NEVER: u64 = 1001;
const LOST: u64 = 1002;
const STREAM: u64 = 1003;

/// An endpoint with operations that wait for one peer. It goes before the memory that they, and its peers, may touch.
pub struct Waiter {
    pub node: Node,
    #[expect(dead_code, reason = "peers reach it")]
    memory: Vec<u8>,
    never: [u8; 8],
    lost: [u8; 100],
    long: Vec<u8>,
    into: Vec<u8>,
    read: Vec<u8>,
    written: Vec<u8>,
    one: [u8; 8],
    old: [u8; 8],
    open: Vec<usize>,
}

impl Waiter {
    /// Its peers may read and write some memory of it.
    pub fn new(mut node: Node) -> Box<Waiter> {
        let mut memory = pattern(BYTES, 1);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = Region { memory: seg(&mut memory), access, by_address: false };
        node.domain.mr_register(Some(KEY), region).expect("registered");
        Box::new(Waiter {
            node,
            memory,
            never: [0; 8],
            lost: [1; 100],
            long: pattern(LONG >> 10, 2).repeat(1 << 10),
            into: vec![0; LONG],
            read: vec![0; BYTES],
            written: pattern(BYTES, 3),
            one: 1u64.to_ne_bytes(),
            old: [0; 8],
            open: Vec::new(),
        })
    }

    /// `other` sends something long to us, who have `from` for it: returns when part of it is here. Both have an operation more.
    pub fn is_sent_to(&mut self, from: Addr, other: &mut Waiter, to: Addr) {
        self.into.fill(0);
        self.node.recv(Want::tag(STREAM).from(from).ctx(KINDS), &mut self.into).expect("recv");
        other.begin(to, KINDS + 1);
        let until = Deadline::new(20);
        // What is written to it nobody sees here.
        while std::hint::black_box(&self.into)[0..100] != other.long[0..100] {
            assert!(self.node.poll().is_empty() && other.node.poll().is_empty(), "all of it was taken");
            until.check(|| "nothing comes".into());
        }
        self.open.push(KINDS);
    }

    /// Begins an operation of each kind; the peer must do nothing from now on.
    pub fn begin_all(&mut self, to: Addr) {
        (0..KINDS).for_each(|kind| self.begin(to, kind));
    }

    pub fn begin(&mut self, to: Addr, kind: usize) {
        let place = |addr, len| [RemoteSeg { addr, len, key: KEY }];
        let node = &mut self.node;
        let ctx = UserCtx(kind);
        let flags = Some(OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE);
        let begun = match kind {
            0 => node.recv(Want::tag(NEVER).from(to).ctx(kind), &mut self.never),
            1 => node.send(Msg::new(to, LOST).ctx(kind).with(OpFlags::DELIVERY_COMPLETE), &mut self.lost),
            2 => node.send(Msg::new(to, LOST).ctx(kind), &mut self.long),
            3 | 4 => {
                let write = kind == 4;
                let iov = [seg(if write { &mut self.written } else { &mut self.read })];
                let places = &place(0, BYTES);
                let args = RmaArgs { to, write, iov: &iov, places, data: None, ctx, flags, inject: false };
                node.domain.rma(node.ep, &args)
            }
            5 => {
                let order = Order { op: AtomicOp::Sum, kind: AtomicType::U64, form: AtomicForm::Fetch };
                let (operands, results) = (&[seg(&mut self.one)], &[seg(&mut self.old)]);
                let places = &place(0, 8);
                let args = AtomicArgs { to, order, operands, comparands: &[], results, places, ctx, flags, inject: false };
                node.domain.atomic(node.ep, &args)
            }
            // Not over when it has left.
            _ => node.send(Msg::new(to, STREAM).ctx(kind).with(OpFlags::DELIVERY_COMPLETE), &mut self.long),
        };
        begun.unwrap_or_else(|why| panic!("{}: {why}", NAMES[kind]));
        self.open.push(kind);
    }

    /// What still waits.
    pub fn open(&self) -> Vec<&'static str> {
        self.open.iter().map(|kind| NAMES[*kind]).collect()
    }

    /// A turn: whatever ends ends once, with one of these errors, which names the peer.
    #[track_caller]
    pub fn look(&mut self, peer: &Name, errors: &[Error]) {
        for event in self.node.poll() {
            self.ended(event, peer, errors);
        }
    }

    /// This is how an operation ended: as [`look`](Self::look) says.
    #[track_caller]
    pub fn ended(&mut self, event: Event, peer: &Name, errors: &[Error]) {
        let e = event.expect_err("the peer did nothing");
        let at = self.open.iter().position(|kind| *kind == e.c.ctx.0);
        let at = at.unwrap_or_else(|| panic!("nobody waits for that: {e:?}"));
        let kind = self.open.swap_remove(at);
        assert!(errors.contains(&e.error) && e.peer == Some(*peer), "{}: {e:?}", NAMES[kind]);
    }
}
