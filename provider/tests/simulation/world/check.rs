//! Ends of one world: everything that can complete does, and is compared with the model; engines die, close, and start anew.

use super::{Engine, PATIENCE, World, config, open};
use crate::model::{Flow, Gone};
use rustmx::OpFlags;
use std::sync::atomic::Ordering;

impl World {
    /// Receives or drops all claims.
    fn clear_claims(&mut self, f: usize) {
        while self.engines[self.flows[f].to].alive && self.flows[f].claims.iter().any(|c| !c.posted) {
            self.claimed(f);
        }
    }

    /// Lets everything that can complete complete, and compares.
    pub fn settle(&mut self) {
        let whole: Vec<usize> = (0..self.flows.len()).filter(|f| !self.flows[*f].lost).collect();
        for &f in &whole {
            self.clear_claims(f);
        }
        for &f in &whole {
            for round in 0.. {
                let flow = &self.flows[f];
                // Each time: what a buffer gets that was cancelled amid messages is known when they are whole.
                let (want, _) = flow.oracle(|_| true);
                let got = flow.got();
                if got == want && flow.claims.is_empty() {
                    break;
                }
                if round == PATIENCE {
                    let differ: Vec<_> = want.iter().zip(got).enumerate().filter(|(_, (w, g))| *w != g).collect();
                    panic!("{}, flow {f}: receive, (should, did): {differ:?}", self.at());
                }
                self.wait(round);
            }
        }
        // What is posted still can be cancelled; what was not asked for is still there, in order.
        for &f in &whole {
            self.cancel_all(f);
            let (_, left) = self.flows[f].oracle(|_| true);
            for want in left {
                let mut found = None;
                for round in 0..PATIENCE {
                    found = self.peek(f, 0, u64::MAX, OpFlags::DISCARD);
                    if found.is_some() {
                        break;
                    }
                    self.wait(round);
                }
                assert_eq!(found, Some(want), "{}, flow {f}: unexpected messages lost or out of order", self.at());
            }
        }
        self.until("what is not lent any more is not recalled", |w| {
            w.net.lock().owes_recall().is_none_or(|(a, b)| w.have_lost(a, b))
        });
        self.until("sends never complete", |w| w.flows.iter().all(|f| f.lost || f.sends_open == 0));
        for &f in &whole {
            assert_eq!(self.peek(f, 0, u64::MAX, OpFlags::empty()), None, "{}: a message out of nothing", self.at());
            let flow = &mut self.flows[f];
            flow.settled = (flow.out.len(), flow.posts.len());
        }
    }

    fn cancel_all(&mut self, f: usize) {
        if self.is_dead(f) {
            return;
        }
        for number in 0..self.flows[f].posts.len() {
            if self.flows[f].posts[number].waits() {
                self.cancel(f, number);
                let p = &self.flows[f].posts[number];
                let (gone, multi) = (p.gone, p.multi);
                assert_eq!(gone, Gone::Cancelled, "{}: receive {number} cannot be cancelled (multi: {multi})", self.at());
            }
        }
    }

    fn have_lost(&self, a: usize, b: usize) -> bool {
        self.flows.iter().any(|f| f.lost && [(a, b), (b, a)].contains(&(f.from, f.to)))
    }

    /// Engines `a` and `b` have lost each other, or will in a moment.
    pub fn lose(&mut self, a: usize, b: usize) {
        for flow in &mut self.flows {
            flow.lost |= (flow.from, flow.to) == (a, b) || (flow.from, flow.to) == (b, a);
        }
    }

    /// After a loss: whatever waited has ended, and what came is what the model says of it.
    pub fn mourn(&mut self) {
        let lost: Vec<usize> = (0..self.flows.len()).filter(|f| self.flows[*f].lost).collect();
        let waits = |w: &World, f: &Flow| {
            f.lost && (w.engines[f.from].alive && f.sends_open > 0 || w.engines[f.to].alive && f.claims.iter().any(|c| c.posted))
        };
        self.until("something waits for one that is gone", |w| !w.flows.iter().any(|f| waits(w, f)));
        // Those who do not wait must hear of it, too.
        for _ in 0..600 {
            self.round();
        }
        for f in lost {
            self.flows[f].over = true;
            if self.is_dead(f) {
                continue;
            }
            self.clear_claims(f);
            self.until("a claim waits", |w| w.flows[f].claims.is_empty());
            self.cancel_all(f);
            let mut came: Vec<usize> = self.flows[f].posts.iter().flat_map(|p| p.got.clone()).collect();
            let mut last = None;
            let mut left = Vec::new();
            while let Some(found) = self.peek(f, 0, u64::MAX, OpFlags::DISCARD) {
                assert!(last < Some(found), "{}: {found} after {last:?}", self.at());
                last = Some(found);
                left.push(found);
            }
            for number in &left {
                self.flows[f].taken.remove(number);
            }
            came.extend(&left);
            let flow = &self.flows[f];
            if !self.engines[flow.from].alive {
                // What it had published before its end counts.
                let net = self.net.lock();
                let lost = net.whole(flow.from, flow.to).into_iter().find(|m| !came.contains(m) && !flow.taken.contains(m));
                drop(net);
                assert_eq!(lost, None, "{}, flow {f}: a message that had come is lost", self.at());
            }
            let delivered = flow.out.iter().enumerate().filter(|(_, sent)| sent.delivered).map(|(number, _)| number);
            let broken = delivered.into_iter().find(|m| !came.contains(m) && !flow.taken.contains(m));
            assert_eq!(broken, None, "{}, flow {f}: a message that was said to be delivered is not", self.at());
            let (want, over) = self.flows[f].oracle(|m| came.contains(&m));
            assert_eq!(self.flows[f].got(), want, "{}, flow {f}: after a loss", self.at());
            assert_eq!(left, over, "{}, flow {f}: after a loss", self.at());
        }
    }

    /// Engine `n` dies.
    pub fn kill(&mut self, n: usize) {
        let mut net = self.net.lock();
        net.kill(n);
        drop(net);
        self.engines[n].alive = false;
        for other in 0..self.engines.len() {
            self.lose(n, other);
        }
    }

    /// The cable of two that have talked is cut. Whether there were two.
    pub fn cut(&mut self) -> bool {
        let have_talked = |flow: &&Flow| flow.posts.iter().any(|post| !post.got.is_empty());
        let talked: Vec<_> = self.flows.iter().filter(have_talked).map(|flow| (flow.from, flow.to)).collect();
        if talked.is_empty() {
            return false;
        }
        let (a, b) = self.rng.pick(&talked);
        let reset = self.rng.one_in(2);
        self.note(format_args!("the cable of {a} and {b} is cut"));
        self.wires.cut(a, b, reset);
        self.lose(a, b);
        true
    }

    /// Engine `n` closes in good order; what it accepted may have been handed over or not.
    pub fn close(&mut self, n: usize) {
        for other in 0..self.engines.len() {
            self.lose(n, other);
        }
        self.note(format_args!("{n} closes"));
        self.with(n, |node| node.domain.ep_close(node.ep)).expect("close");
        self.engines[n].alive = false;
    }

    /// An engine that is gone is started anew where it was; its number. `None` if nobody could find it there.
    pub fn restart(&mut self, n: usize) -> Option<usize> {
        let at = self.engines[n].at.clone()?;
        // Calls of its contact that were tried again until now are given up, with what was to go there.
        self.clock.fetch_add(3_000_000_000, Ordering::Relaxed);
        (0..100).for_each(|_| self.round());
        let node = open(config(&mut self.rng), at.0.clone(), &self.clock, &self.net, None);
        let new = self.engines.len();
        // Others send to it now: nobody may leave the source open.
        (0..self.flows.len()).filter(|f| self.flows[*f].lost).collect::<Vec<_>>().into_iter().for_each(|f| self.cancel_all(f));
        self.flows.iter_mut().for_each(|f| f.open = false);
        let mut ways = Vec::new();
        for (i, engine) in self.engines.iter_mut().enumerate() {
            let way = node.av.insert(&engine.name);
            ways.push((way, way));
            let from = engine.node.av.insert(&node.name());
            engine.ways.push((engine.node.av.insert(&at.1), from));
            if engine.alive {
                let multi = self.rng.one_in(2);
                self.flows.extend([Flow::new(i, new, false, multi), Flow::new(new, i, false, multi)]);
            }
        }
        self.engines.push(Engine { name: node.name(), node, at: Some(at), alive: true, ways, peeks: 0, found: None });
        self.note(format_args!("{n} is started anew as {new}"));
        Some(new)
    }
}
