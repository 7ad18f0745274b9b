//! The net as the engines see it: the traits of `transport`, and nothing else.

use super::{CONTROL, End, Packet, Shared, SimBell, WAY, Way, pid};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::{Heap, SharedMem};
use rustmx::shm::bell::{self, Bell};
use rustmx::shm::layout::{CONTROL_LINES, LINE, ring_lines};
use rustmx::shm::ring::Consumer;
use rustmx::shm::segment::{self, Shape};
use rustmx::sys::event::EventFd;
use rustmx::sys::wake::Wake;
use rustmx::transport::{Door, Event, Greeting, Handed, Lendable, Line, NoCall, Reach, Reply, Venue};
use rustmx::types::PeerId;
use rustmx::wire::hello::{Hello, Refusal};
use rustmx::wire::loan::Loan;
use rustmx::{Error, Name};
use std::collections::VecDeque;
use std::sync::Arc;

/// The venue as one process sees it.
pub struct At {
    pub net: Shared,
    pub node: usize,
}

impl Venue for At {
    fn open(&self, name: &Name) -> Result<Box<dyn Door>, Error> {
        let mut net = self.net.lock();
        let listens = name.socket_name();
        if net.places.iter().any(|p| p.alive && p.listens.as_ref() == Some(&listens)) {
            return Err(Error::AddressInUse);
        }
        net.places[self.node].listens = Some(listens);
        Ok(Box::new(DoorAt { net: self.net.clone(), node: self.node }))
    }

    fn random(&self) -> u64 {
        self.net.lock().rng.next()
    }
}

/// The door of an endpoint.
struct DoorAt {
    net: Shared,
    node: usize,
}

impl Door for DoorAt {
    fn reach(&self, _name: &Name) -> Result<Reach, Error> {
        Ok(Reach::Host)
    }

    fn call(&mut self, name: &Name, _reach: Reach) -> Result<(Arc<dyn Line>, u32), NoCall> {
        let mut net = self.net.lock();
        let node = self.node;
        if !net.places[node].alive {
            return Err(NoCall::Never(Error::Refused));
        }
        let listens = name.socket_name();
        let callee = net.places.iter().position(|p| p.alive && p.listens.as_ref() == Some(&listens));
        let Some(callee) = callee else {
            let later = name.is_contact();
            return Err(if later { NoCall::Later } else { NoCall::Never(Error::Refused) });
        };
        let busy = net.weather.busy;
        if net.chance(busy) {
            net.told.busy += 1;
            net.note(format_args!("{node} calls {callee}, who is busy"));
            return Err(NoCall::Later);
        }
        net.told.calls += 1;
        net.note(format_args!("{node} calls {callee}"));
        let end = |node, stranger| End { node, open: true, inbox: VecDeque::new(), last_due: 0, watched: None, stranger };
        net.lines.push([end(node, false), end(callee, true)]);
        let at = net.lines.len() - 1;
        Ok((Arc::new(Talk { net: self.net.clone(), at, end: 0 }), pid(callee)))
    }

    fn poll(&mut self, now: u64, events: &mut Vec<Event>) -> bool {
        let mut net = self.net.lock();
        for at in 0..net.lines.len() {
            for end in 0..2 {
                let here = &net.lines[at][end];
                if here.node != self.node || !here.open || here.inbox.front().is_none_or(|p| p.0 > now) {
                    continue;
                }
                if let Some(peer) = here.watched {
                    events.push(Event::Peer(peer));
                }
                if !here.stranger {
                    continue;
                }
                let caller = net.lines[at][1 - end].node;
                match net.hear(at, end) {
                    Some(Packet::Hello(greeting)) => {
                        net.lines[at][end].stranger = false;
                        net.note(format_args!("{} hears a call of {caller}", self.node));
                        let line = Arc::new(Talk { net: self.net.clone(), at, end });
                        events.push(Event::Call { line, pid: pid(caller), greeting });
                    }
                    Some(_) => net.lines[at][end].open = false,
                    None => {}
                }
            }
        }
        !events.is_empty()
    }

    /// Nothing has its time here.
    fn tend(&mut self, _now: u64, _events: &mut Vec<Event>) {}

    fn segment(&mut self, _reach: Reach, shape: Shape) -> Result<(Handed, SharedMem), Errno> {
        let mut net = self.net.lock();
        let (written, shown) = (segment::private(shape.ring), segment::private(shape.ring));
        shown.word(WAY).store(net.ways.len() as u64, Ordering::Relaxed);
        let lines = ring_lines(shape.ring);
        let ring = written.slice(CONTROL_LINES * LINE, lines as usize * LINE);
        net.ways.push(Way {
            owner: self.node,
            to: None,
            written: written.clone(),
            shown: shown.clone(),
            rx: Consumer::new(ring, lines),
            control: [0; CONTROL.len()],
            queue: VecDeque::new(),
            last_due: 0,
            heard: false,
            whole: Vec::new(),
        });
        Ok((Handed::Own(shown), written))
    }

    fn bell(&mut self) -> Result<(Handed, SharedMem), Errno> {
        let [own, rung] = [(); 2].map(|()| SharedMem::new(Heap::new(bell::BYTES)));
        let made = SimBell { rung: Bell::new(rung.clone()), own: Bell::new(own.clone()), queue: VecDeque::new() };
        self.net.lock().bells.push(made);
        Ok((Handed::Own(rung), own))
    }

    fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error> {
        Ok(Arc::new(EventFd::new().map_err(|_| Error::NoResources)?))
    }

    fn lendable(&mut self, address: usize, _: usize) -> Option<Lendable> {
        self.net.lock().places[self.node].arenas.iter().find_map(|arena| arena.lendable(address))
    }

    fn lend(&mut self, memory: &Lendable, _: bool) -> Option<Handed> {
        let net = self.net.lock();
        let arena = net.places[self.node].arenas.iter().find(|arena| arena.number == memory.number);
        Some(Handed::Own(arena.expect("asked for a moment ago").memory()))
    }

    fn ended(&mut self) -> Option<u32> {
        self.net.lock().places[self.node].ended.pop_front()
    }

    fn kernel_pid(&self, pid: u32) -> u32 {
        let net = self.net.lock();
        let open = net.places.iter().enumerate().any(|(i, p)| super::pid(i) == pid && p.alive && !p.closed_to_kernel);
        // No process has the other number.
        if open { std::process::id() } else { u32::MAX >> 1 }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The endpoint is gone: who called and was not heard is hung up on.
impl Drop for DoorAt {
    fn drop(&mut self) {
        let mut net = self.net.lock();
        if !net.places[self.node].alive {
            return;
        }
        net.places[self.node].listens = None;
        net.collect(self.node);
        for at in 0..net.lines.len() {
            for end in 0..2 {
                let here = &net.lines[at][end];
                if here.node == self.node && here.stranger && here.open {
                    net.hang_up(at, end);
                }
            }
        }
    }
}

/// One end of a conversation.
struct Talk {
    net: Shared,
    at: usize,
    end: usize,
}

impl Wake for Talk {
    fn wake(&self) {
        let mut net = self.net.lock();
        let node = net.lines[self.at][self.end].node;
        if net.places[node].alive && net.lines[self.at][1 - self.end].open {
            net.collect(node);
            let seq = net.places[node].published;
            net.say(self.at, self.end, seq, Packet::Wake);
        }
    }
}

impl Line for Talk {
    fn greet(&self, hello: &Hello, segment: &Handed, bell: &Handed) -> Result<(), NoCall> {
        let mut net = self.net.lock();
        let (node, other) = (net.lines[self.at][self.end].node, net.lines[self.at][1 - self.end].node);
        if !net.lines[self.at][1 - self.end].open || !net.places[node].alive {
            // Whoever sees that it has ended sees all that it wrote before.
            net.flush(other, u64::MAX);
            return Err(NoCall::Never(Error::PeerGone));
        }
        let mute = net.weather.mute;
        if net.chance(mute) {
            net.told.mute += 1;
            net.note(format_args!("{node} cannot say hello to {other} now"));
            return Err(NoCall::Later);
        }
        let (Handed::Own(segment), Handed::Own(bell)) = (segment, bell) else { return Err(NoCall::Never(Error::Unsupported)) };
        net.collect(node);
        net.note(format_args!("{node} says hello to {other}"));
        let way = segment.word(WAY).load(Ordering::Relaxed) as usize;
        net.ways[way].to = Some(other);
        let seq = net.places[node].published;
        let greeting = Greeting { hello: *hello, segment: Handed::Own(segment.clone()), bell: Handed::Own(bell.clone()) };
        net.say(self.at, self.end, seq, Packet::Hello(Box::new(greeting)));
        Ok(())
    }

    fn lend(&self, loan: &Loan, memory: &Handed) -> Result<(), NoCall> {
        let mut net = self.net.lock();
        let (node, other) = (net.lines[self.at][self.end].node, net.lines[self.at][1 - self.end].node);
        if !net.lines[self.at][1 - self.end].open || !net.places[node].alive {
            return Err(NoCall::Never(Error::PeerGone));
        }
        let (mute, thin) = (net.weather.mute, net.weather.thin);
        if net.chance(mute) {
            net.told.mute += 1;
            return Err(NoCall::Later);
        }
        let Handed::Own(memory) = memory else { return Err(NoCall::Never(Error::Unsupported)) };
        let lost = net.chance(thin);
        net.collect(node);
        net.note(format_args!("{node} lends memory {} to {other}, lost: {lost}", loan.number));
        net.told.lent += 1;
        net.told.lost_loans += u64::from(lost);
        net.loans.push((node, other, loan.number.get()));
        let seq = net.places[node].published;
        net.say(self.at, self.end, seq, Packet::Loan(*loan, (!lost).then(|| memory.clone())));
        Ok(())
    }

    fn hear(&self) -> Reply {
        let mut net = self.net.lock();
        let (node, other) = (net.lines[self.at][self.end].node, net.lines[self.at][1 - self.end].node);
        let Some(packet) = net.hear(self.at, self.end) else { return Reply::Nothing };
        match packet {
            Packet::Hello(greeting) => {
                net.note(format_args!("{node} hears the answer of {other}"));
                Reply::Greeting(greeting)
            }
            Packet::Wake => Reply::Wake,
            Packet::Loan(loan, memory) => {
                net.note(format_args!("{node} hears of memory {} of {other}", loan.number));
                Reply::Loan(loan, memory.map(Handed::Own))
            }
            Packet::End => {
                net.note(format_args!("{node} hears the end of {other}"));
                Reply::Ended
            }
            Packet::Refusal(why) => Reply::Refused(why.error()),
        }
    }

    fn turn_away(&self, why: Refusal) {
        let mut net = self.net.lock();
        let seq = net.places[net.lines[self.at][self.end].node].published;
        net.say(self.at, self.end, seq, Packet::Refusal(why));
    }

    fn watch(&self, peer: PeerId) {
        self.net.lock().lines[self.at][self.end].watched = Some(peer);
    }

    fn forget(&self) {
        self.net.lock().lines[self.at][self.end].watched = None;
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let mut net = self.net.lock();
        let here = &net.lines[self.at][self.end];
        if here.open && net.places[here.node].alive {
            let node = here.node;
            net.collect(node);
            net.hang_up(self.at, self.end);
        }
    }
}
