//! Whom we call: peers, and lanes to them (`call.rs` has one call).

use super::call::{Call, Stand, refused};
use super::connection::{Connection, Origin};
use super::{Tcp, no_port};
use crate::error::Error;
use crate::log::{Kind, Log};
use crate::peer::name::Name;
use crate::sys::tcp::{self, Ports};
use crate::sys::{host, limits, shortage};
use crate::transport::NoCall;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// Nanoseconds after which a call that nobody asks about any more is given up.
pub(super) const CALL_PATIENCE: u64 = 60_000_000_000;
/// Nanoseconds between looks at who was not taken in time. Far less than the pauses of a call: these are to differ between processes.
const REDIAL_EVERY: u64 = 10_000_000;

impl Tcp {
    /// Calls `name`. The connection is made while others work: until it is there the answer is [`NoCall::Soon`].
    pub fn call(&mut self, name: &Name, log: &Log) -> Result<Arc<Connection>, NoCall> {
        self.calls.extend(self.office.astray.lock().drain(..));
        let mut call = self.calls.remove(name).unwrap_or_else(|| Call::new(name));
        let (ports, random) = (self.ports(), &mut self.random);
        let stand = call.look(self.clock.now(), |to| {
            *random = random.wrapping_add(1);
            limits::with_descriptors(|| tcp::connect(to, ports.as_ref(), *random))
        });
        match stand {
            Stand::Soon => {
                // Somebody waits for it.
                call.since = 0;
                self.calls.insert(*name, call);
                Err(NoCall::Soon)
            }
            // Who connected long ago and then computed has said no hello in time: the call begins anew.
            Stand::Connected(fd, _) if tcp::is_hung_up(&fd) && !call.has_more() => Err(NoCall::Later),
            Stand::Connected(fd, to) => {
                let ours = ports.and_then(|ports| ports.own);
                let from_listener = ours.is_some() && ours == tcp::own_address(&fd).ok().map(|own| own.port());
                let origin = Origin { name: *name, to, call, by: None, from_listener };
                let connection = self.call_by(fd, Some(origin)).map_err(|why| {
                    shortage::tell(log, why, || format!("cannot connect to {name}"));
                    NoCall::Never(Error::NoResources)
                })?;
                self.let_stripe(&connection, Some(to));
                Ok(connection)
            }
            Stand::Failed(why) => {
                let no = refused(why, name);
                match no {
                    NoCall::Never(_) => self.tell(name, why, &call, log),
                    // Kept for what it has to tell, should its time be up. (Without a port left to call from: most likely it is calling us, by just that
                    // connection.)
                    _ => _ = self.calls.insert(*name, call.anew(name)),
                }
                Err(no)
            }
        }
    }

    /// Where calls leave from; `None`: from any port.
    fn ports(&self) -> Option<Ports> {
        let others = self.terms.ports.clone()?;
        let own = self.port();
        Some(Ports { own: others.contains(&own).then_some(own), others })
    }

    /// Why a call failed, also where the log is not shown: a job fails by it, and MPIs do not say why.
    fn tell(&self, name: &Name, why: Errno, call: &Call, log: &Log) {
        match (why, &self.terms.ports) {
            (Errno::ADDRINUSE, Some(range)) => log.insist_once(Kind::Ports, None, || no_port(range, "to call from")),
            _ if shortage::lack(why).is_some() => shortage::tell(log, why, || format!("cannot connect to {name}")),
            _ => log.insist_once(Kind::Contact, Some(name.ip()), || format!("cannot connect to {name}: {}", call.complaint())),
        }
    }

    /// The time for a call is up.
    pub fn give_up(&mut self, name: &Name, log: &Log) {
        if let Some(call) = self.calls.remove(name) {
            self.tell(name, Errno::TIMEDOUT, &call, log);
        }
    }

    /// Begins calls anew that were not taken in time ([`Call::redial`]).
    pub(super) fn redial(&mut self, now: u64) {
        if self.calls.is_empty() || now < self.redial_at {
            return;
        }
        self.redial_at = now + REDIAL_EVERY;
        let (ports, random, clock) = (self.ports(), &mut self.random, self.clock.now());
        self.calls.retain(|_, call| {
            call.since = if call.since == 0 { now } else { call.since };
            call.redial(clock, host::random, |to| {
                *random = random.wrapping_add(1);
                limits::with_descriptors(|| tcp::connect(to, ports.as_ref(), *random))
            });
            now.saturating_sub(call.since) < CALL_PATIENCE
        });
    }

    /// A connection that we made, to a peer (`origin`) or as a lane.
    pub(super) fn call_by(&mut self, fd: OwnedFd, origin: Option<Origin>) -> Result<Arc<Connection>, Errno> {
        let connection = self.add(fd.into(), origin, |poller, fd, token| poller.add(fd, token))?;
        if let Some(guard) = &self.terms.guard {
            // The kernel gives no random numbers.
            connection.guard(guard, true).map_err(|_| Errno::NOSYS)?;
        }
        Ok(connection)
    }

    /// Long messages may go by several connections, where that can pay.
    pub(super) fn let_stripe(&self, connection: &Connection, reached: Option<SocketAddr>) {
        // Inside of a host nothing limits a stream but the cores that copy.
        if self.terms.lanes > 1 || self.terms.lanes == 0 && !connection.stream().is_near() {
            connection.may_stripe(self.terms.lanes, reached);
        }
    }

    /// Calls for lanes that `first` wants.
    pub(super) fn dial_lanes(&mut self, first: &Arc<Connection>) {
        while let Some(to) = first.wanted_lane() {
            // The connection from the port that we listen at is for a peer.
            let (ports, random) = (self.ports().map(|ports| Ports { own: None, ..ports }), self.random.wrapping_add(1));
            self.random = random;
            // Other peers need descriptors more.
            let fd = tcp::connect(to, ports.as_ref(), random).ok().filter(limits::has_plenty);
            let carrier = fd.and_then(|fd| self.call_by(fd, None).ok());
            if !carrier.is_some_and(|carrier| first.add_lane(&carrier, None)) {
                return first.no_lane();
            }
        }
    }
}
