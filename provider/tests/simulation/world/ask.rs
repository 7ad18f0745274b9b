//! Random operations of one world, noted in its flows.

use super::{FLOW, PEEK, SEND, World};
use crate::arena::Buf;
use crate::common::{Msg, Rng, Want, seg};
use crate::model::{Claim, Gone, Post, Sent, size, split};
use rustmx::{Addr, Error, INJECT_MAX, OpFlags, UserCtx};
use std::ops::Range;

/// Bytes of most messages where they are long.
const LONG: Range<usize> = 30_000..150_000;

/// A tag; of long messages mostly the same.
fn tag(long: bool, rng: &mut Rng) -> u64 {
    if long && !rng.one_in(4) { 1 } else { rng.below(4) }
}

/// Bytes of a message or a buffer, and its pieces.
fn shape(long: bool, rng: &mut Rng) -> (usize, usize) {
    if long && !rng.one_in(3) {
        return (rng.range(LONG.start, LONG.end), 1);
    }
    let n = size(rng);
    (n, 1 + rng.below(4) as usize)
}

impl World {
    /// One random operation.
    pub fn step(&mut self) {
        self.steps += 1;
        let f = self.rng.range(0, self.flows.len());
        if self.rng.one_in(500) && !self.net.lock().is_empty() {
            // From now on nobody copies for this engine.
            let n = self.rng.range(0, self.engines.len());
            self.net.lock().close_to_kernel(n);
        }
        if self.rng.one_in(if self.long { 300 } else { 30 }) {
            // Something of its memory is not what it was.
            let n = self.rng.range(0, self.engines.len());
            self.net.lock().end_arena(n);
        }
        let what = match self.rng.below(20) {
            0..8 if self.long => match (self.flows[f].waits(), self.flows[f].sends_open) {
                (false, _) => self.rng.pick(&[5, 5, 5, 0]),
                (true, 0) => 0,
                (true, _) => self.rng.pick(&[0, 19, 19, 19]),
            },
            what => what,
        };
        match what {
            0..5 => self.send(f),
            5..9 => self.post(f),
            9 => {
                let n = self.flows[f].posts.len();
                if n > 0 {
                    let number = self.rng.range(0, n);
                    self.cancel(f, number);
                }
            }
            10 => {
                let how = self.rng.pick(&[OpFlags::empty(), OpFlags::CLAIM, OpFlags::DISCARD]);
                let how = if self.flows[f].multi { OpFlags::empty() } else { how };
                let (tag, ignore) = (self.rng.below(4), self.rng.pick(&[0, u64::MAX, 1]));
                self.peek(f, tag, ignore, how);
            }
            11 => self.claimed(f),
            _ => {
                // One may stand still for long.
                let n = self.rng.range(0, self.engines.len());
                for _ in 0..self.rng.pick(&[1, 1, 3, 40]) {
                    self.turn(n);
                }
            }
        }
    }

    pub(super) fn is_dead(&self, f: usize) -> bool {
        !self.engines[self.flows[f].to].alive
    }

    pub fn send(&mut self, f: usize) {
        let World { flows, rng, engines, net, long, .. } = self;
        let flow = &mut flows[f];
        // What is sent to a contact while nobody is there would go to the next one there.
        if !engines[flow.from].alive || flow.over {
            return;
        }
        let (n, parts) = shape(*long, rng);
        let (tag, number) = (tag(*long, rng), flow.out.len());
        let level =
            rng.pick(&[OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE, OpFlags::INJECT]);
        let inject = n <= INJECT_MAX && level == OpFlags::INJECT;
        let level = if level == OpFlags::INJECT { OpFlags::empty() } else { level };
        let to = engines[flow.from].ways[flow.to].0;
        let ctx = SEND | f << FLOW | number;
        let msg = Msg { inject, ..Msg::new(to, tag).data(number as u64).ctx(ctx).with(level) };
        let buf = net.lock().buffer(flow.from, flow.content(number, n));
        flow.out.push(Sent { tag, buf, open: !inject, asks: level == OpFlags::DELIVERY_COMPLETE, delivered: false });
        let iov = split(&mut flow.out[number].buf, parts, rng);
        let (from, to) = (flow.from, flow.to);
        let sent = self.with(from, |node| node.sendv(msg, &iov, true));
        self.note(format_args!("{from} sends {n} bytes to {to}, number {number}, tag {tag}, {level:?}: {sent:?}"));
        let flow = &mut self.flows[f];
        match sent {
            Ok(()) => {
                flow.sends_open += usize::from(!inject);
                if inject {
                    flow.out[number].buf.fill(0);
                }
            }
            Err(Error::Again) => drop(flow.out.pop()),
            Err(e) if flow.lost => {
                assert!(matches!(e, Error::PeerGone | Error::Corrupt | Error::Refused | Error::TimedOut), "{e}");
                flow.out.pop();
            }
            Err(e) => panic!("{}: {e}", self.at()),
        }
    }

    pub fn post(&mut self, f: usize) {
        if self.is_dead(f) {
            return;
        }
        let World { flows, rng, engines, net, long, .. } = self;
        let flow = &mut flows[f];
        let (n, parts) = shape(*long, rng);
        // Most long ones take any message.
        let n = if *long && !rng.one_in(4) { n.max(LONG.end) } else { n };
        let multi = flow.multi && rng.one_in(6);
        let n = if multi { rng.range(200, 20_000) } else { n };
        let post = Post {
            tag: tag(*long, rng),
            ignore: rng.pick(&[0, 0, u64::MAX, 1, 2]),
            buf: net.lock().buffer(flow.to, vec![0xee; n]),
            multi,
            gone: Gone::No,
            leaving: false,
            got: Vec::new(),
            released: false,
        };
        let number = flow.posts.len();
        let source = engines[flow.to].ways[flow.from].1;
        let from = if flow.open && rng.one_in(2) { Addr::UNSPEC } else { source };
        let ctx = f << FLOW | number;
        let mut want = Want { from, ignore: post.ignore, ..Want::tag(post.tag) }.ctx(ctx);
        if multi {
            want = want.with(OpFlags::MULTI_RECV);
        }
        flow.posts.push(post);
        let iov = split(&mut flow.posts[number].buf, if multi { 1 } else { parts }, rng);
        let to = flow.to;
        let posted = self.with(to, |node| node.recvv(want, &iov, true));
        self.note(format_args!("{to} posts {number} of flow {f}, tag {}, {n} bytes: {posted:?}", want.tag));
        if posted.is_err() {
            assert!(self.flows[f].lost, "{}: {posted:?}", self.at());
            self.flows[f].posts.pop();
        }
    }

    pub fn cancel(&mut self, f: usize, number: usize) {
        if self.is_dead(f) {
            return;
        }
        let to = self.flows[f].to;
        let post = &self.flows[f].posts[number];
        let ended = post.gone != Gone::No || post.released;
        let had = !post.multi && !post.got.is_empty();
        let cancelled = self.with(to, |node| node.domain.cancel(node.ep, UserCtx(f << FLOW | number)));
        assert!(cancelled.is_err() || !(ended || had), "{}: cancelled what had ended", self.at());
        self.turn(to);
        let at = self.at();
        let post = &mut self.flows[f].posts[number];
        if post.multi && post.gone == Gone::No && !ended && cancelled.is_ok() {
            assert!(!std::mem::replace(&mut post.leaving, true), "{at}: cancelled twice");
            return;
        }
        assert_eq!(post.gone == Gone::Cancelled && !ended && !post.leaving, cancelled.is_ok(), "{at}");
    }

    /// What a peek finds.
    pub fn peek(&mut self, f: usize, tag: u64, ignore: u64, how: OpFlags) -> Option<usize> {
        if self.is_dead(f) {
            return None;
        }
        let (to, from) = (self.flows[f].to, self.flows[f].from);
        let engine = &mut self.engines[to];
        engine.peeks += 1;
        let ctx = PEEK | f << FLOW | engine.peeks;
        let source = if self.flows[f].open { Addr::UNSPEC } else { engine.ways[from].1 };
        let want = Want { ignore, from: source, ..Want::tag(tag) }.ctx(ctx).with(OpFlags::PEEK | how);
        self.with(to, |node| node.recvv(want, &[], true)).expect("peek");
        self.turn(to);
        let at = self.at();
        let found = self.engines[to].found.take().unwrap_or_else(|| panic!("{at}: a peek says at once what it found"));
        if let Some(message) = found {
            let flow = &mut self.flows[f];
            let sent = &flow.out[message];
            assert!((sent.tag ^ tag) & !ignore == 0 && !flow.taken.contains(&message), "{at}: found {message}");
            assert!(flow.posts.iter().all(|p| !p.got.contains(&message)), "{at}: found {message}, which was received");
            if how != OpFlags::empty() {
                flow.taken.insert(message);
            }
            if how == OpFlags::CLAIM {
                flow.claims.push(Claim { ctx, message, buf: Buf::Own(Vec::new()), posted: false });
            }
        }
        found
    }

    /// Receives or drops what was claimed, in any order.
    pub fn claimed(&mut self, f: usize) {
        let flow = &mut self.flows[f];
        let open: Vec<usize> = (0..flow.claims.len()).filter(|i| !flow.claims[*i].posted).collect();
        if open.is_empty() || !self.engines[flow.to].alive {
            return;
        }
        let i = self.rng.pick(&open);
        let discard = self.rng.one_in(3);
        let (ctx, to, lost) = (flow.claims[i].ctx, flow.to, flow.lost);
        if discard {
            flow.claims.swap_remove(i);
            let want = Want::any().ctx(ctx).with(OpFlags::CLAIM | OpFlags::DISCARD);
            let dropped = self.with(to, |node| node.recvv(want, &[], true));
            assert!(dropped.is_ok() || lost, "{}", self.at());
            self.turn(to);
            self.engines[to].found = None;
            return;
        }
        let n = size(&mut self.rng);
        let claim = &mut flow.claims[i];
        claim.buf = self.net.lock().buffer(to, vec![0xee; n]);
        claim.posted = true;
        let iov = [seg(&mut claim.buf)];
        let received = self.with(to, |node| node.recvv(Want::any().ctx(ctx).with(OpFlags::CLAIM), &iov, true));
        assert!(received.is_ok() || lost, "{}", self.at());
        if received.is_err() {
            self.flows[f].claims.swap_remove(i);
        }
    }
}
