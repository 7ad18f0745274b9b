//! The fabric as the engines see it: the traits of `transport`, and nothing else. Does what `transport/tcp/mod.rs` does, over packets.

use super::fabric::{Call, Fabric, Shared};
use super::line::Talk;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustmx::mem::shared::{Heap, SharedMem};
use rustmx::shm::{
    bell,
    segment::{self, Shape},
};
use rustmx::sys::event::EventFd;
use rustmx::sys::wake::Wake;
use rustmx::transport::tcp::{HEALTH_EVERY, OWED_FOR};
use rustmx::transport::{Door, Event, Handed, Line, NoCall, Place, Reach, Venue};
use rustmx::wire::hello::Refusal;
use rustmx::{Error, Name};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Sockets of which one turn hears.
const EVENTS: usize = 64;
/// The address of the first host.
const FIRST: u32 = 0x0a00_0001;

/// The venue as one process sees it.
pub struct At {
    pub fabric: Shared,
    pub host: usize,
}

impl Venue for At {
    fn open(&self, _name: &Name) -> Result<Box<dyn Door>, Error> {
        let ip = Ipv4Addr::from(FIRST + self.host as u32).into();
        let place = Place { addresses: [(ip, 0)].into_iter().collect(), port: 9000 };
        Ok(Box::new(DoorAt { fabric: self.fabric.clone(), host: self.host, place, strangers: HashMap::new() }))
    }

    fn random(&self) -> u64 {
        self.fabric.lock().random()
    }
}

struct DoorAt {
    fabric: Shared,
    host: usize,
    place: Place,
    strangers: HashMap<(usize, usize), Arc<Talk>>,
}

/// The host that an endpoint runs on.
fn host_of(name: &Name) -> Option<usize> {
    match name.ip() {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(FIRST).map(|n| n as usize),
        IpAddr::V6(_) => None,
    }
}

impl DoorAt {
    /// Reads every socket that has something, as far as a turn goes, and takes calls.
    fn look(&mut self, events: &mut Vec<Event>) -> usize {
        let mut work = 0;
        for _ in 0..EVENTS {
            let mut fabric = self.fabric.lock();
            let Some(at) = fabric.hosts[self.host].ready.pop_front() else { break };
            drop(fabric);
            work += 1;
            self.read(at, events);
        }
        work + self.accept(events)
    }

    fn read(&mut self, at: (usize, usize), events: &mut Vec<Event>) {
        let (peer, hello) = self.fabric.lock().read(at);
        events.extend(peer.map(Event::Peer));
        let Some(hello) = hello else { return };
        let Some(line) = self.strangers.remove(&at) else { return };
        let mut fabric = self.fabric.lock();
        fabric.hosts[self.host].strangers -= 1;
        match Name::from_bytes(&hello.from) {
            Ok(from) => {
                // Who calls need not be called.
                if let Some(ours) = fabric.hosts[self.host].calls.remove(&from) {
                    fabric.told.crossed += 1;
                    fabric.lines[ours.line].failed = true;
                }
                fabric.greeted(at, &hello);
                if let Some(greeting) = fabric.admit(at) {
                    events.push(Event::Call { line, pid: 0, greeting });
                }
            }
            Err(_) => {
                drop(fabric);
                line.turn_away(Refusal::Malformed);
            }
        }
    }

    fn accept(&mut self, events: &mut Vec<Event>) -> usize {
        let mut work = 0;
        loop {
            let mut fabric = self.fabric.lock();
            let (most, cost) = (fabric.terms.strangers, fabric.terms.accept);
            if self.strangers.len() >= most {
                return work;
            }
            let Some(line) = fabric.hosts[self.host].backlog.pop_front() else { return work };
            fabric.spend(self.host, cost);
            let half = &mut fabric.lines[line].ends[1].half;
            (half.accepted, half.stranger) = (true, true);
            let spoke = !fabric.lines[line].ends[1].inbox.is_empty();
            fabric.hosts[self.host].strangers += 1;
            drop(fabric);
            self.strangers.insert((line, 1), Arc::new(Talk { fabric: self.fabric.clone(), at: (line, 1) }));
            work += 1;
            if spoke {
                self.read((line, 1), events);
            }
        }
    }
}

/// Begins calls anew that were not taken in time.
fn redial(fabric: &mut Fabric, host: usize, now: u64) {
    let calls: Vec<(Name, Call)> = fabric.hosts[host].calls.iter().map(|(name, call)| (*name, *call)).collect();
    for (name, call) in &calls {
        let Some(callee) = host_of(name) else { continue };
        if call.patience == 0 || fabric.lines[call.line].connected || now < call.since + call.patience {
            continue;
        }
        fabric.lines[call.line].failed = true;
        fabric.told.redials += 1;
        let line = fabric.call(host, callee);
        let since = fabric.time(host);
        fabric.hosts[host].calls.insert(*name, Call { line, since, patience: 2 * call.patience });
    }
    if !calls.is_empty() {
        fabric.look(host, now + HEALTH_EVERY);
    }
}

impl Door for DoorAt {
    fn place(&self) -> Option<&Place> {
        Some(&self.place)
    }

    fn reach(&self, _name: &Name) -> Result<Reach, Error> {
        Ok(Reach::Network)
    }

    fn call(&mut self, name: &Name, _reach: Reach) -> Result<(Arc<dyn Line>, u32), NoCall> {
        let mut fabric = self.fabric.lock();
        let callee = host_of(name).filter(|h| *h < fabric.hosts.len()).ok_or(NoCall::Never(Error::Unreachable))?;
        let Some(&Call { line, .. }) = fabric.hosts[self.host].calls.get(name) else {
            let line = fabric.call(self.host, callee);
            let (since, patience) = (fabric.time(self.host), fabric.terms.redial);
            fabric.hosts[self.host].calls.insert(*name, Call { line, since, patience });
            let health_at = fabric.hosts[self.host].health_at;
            fabric.visit(self.host, health_at.max(since));
            return Err(NoCall::Soon);
        };
        if fabric.lines[line].failed {
            fabric.hosts[self.host].calls.remove(name);
            return Err(NoCall::Never(Error::TimedOut));
        }
        if !fabric.lines[line].connected {
            return Err(NoCall::Soon);
        }
        fabric.hosts[self.host].calls.remove(name);
        Ok((Arc::new(Talk { fabric: self.fabric.clone(), at: (line, 0) }), 0))
    }

    fn turn(&mut self, _now: u64, _look: bool, events: &mut Vec<Event>) -> (usize, bool) {
        let mut fabric = self.fabric.lock();
        let cost = fabric.terms.io[2];
        let host = &mut fabric.hosts[self.host];
        host.turn += 1;
        let dirty = std::mem::take(&mut host.dirty);
        if !dirty.is_empty() || !host.ready.is_empty() || !host.backlog.is_empty() {
            host.spent += cost;
        }
        for at in dirty {
            fabric.flush_dirty(at);
        }
        drop(fabric);
        (self.look(events), false)
    }

    fn has_turns(&self) -> bool {
        let fabric = self.fabric.lock();
        let host = &fabric.hosts[self.host];
        host.turn > 0 || !host.calls.is_empty() || !host.backlog.is_empty() || !self.strangers.is_empty()
    }

    fn poll(&mut self, now: u64, events: &mut Vec<Event>) -> bool {
        let mut fabric = self.fabric.lock();
        let host = &mut fabric.hosts[self.host];
        (host.looks, host.looked_at) = (false, now);
        let owing = std::mem::take(&mut host.owing);
        let (due, wait): (Vec<_>, Vec<_>) = owing.into_iter().partition(|o| now.saturating_sub(o.2) >= OWED_FOR);
        due.into_iter().for_each(|o| fabric.pay((o.0, o.1)));
        if let Some(first) = wait.iter().map(|o| o.2).min() {
            fabric.look(self.host, first + OWED_FOR);
        }
        fabric.hosts[self.host].owing = wait;
        if now >= fabric.hosts[self.host].health_at {
            fabric.hosts[self.host].health_at = now + HEALTH_EVERY;
            redial(&mut fabric, self.host, now);
        }
        let first = fabric.hosts[self.host].turn == 0;
        drop(fabric);
        if first {
            self.look(events);
        }
        !events.is_empty()
    }

    fn segment(&mut self, _reach: Reach, shape: Shape) -> Result<(Handed, SharedMem), Errno> {
        let mem = segment::private(shape.ring);
        Ok((Handed::Own(mem.clone()), mem))
    }

    fn bell(&mut self) -> Result<(Handed, SharedMem), Errno> {
        let mem = SharedMem::new(Heap::new(bell::BYTES));
        Ok((Handed::Own(mem.clone()), mem))
    }

    fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error> {
        Ok(Arc::new(EventFd::new().map_err(|_| Error::NoResources)?))
    }

    fn kernel_pid(&self, _pid: u32) -> u32 {
        0
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
