//! The venue of a real machine: abstract sockets for peers of this host, TCP for the others, behind one door.

use super::access::Access;
use crate::cache::Oversight;
use crate::cache::own::OwnMemory;
use crate::cache::ranges::Budget;
use crate::config::Config;
use crate::config::echo::shown;
use crate::config::network::{Secret, ZeroCopy};
use crate::error::Error;
use crate::log::Log;
use crate::mem::shared::SharedMem;
use crate::peer::name::{Addresses, Name};
use crate::shm::bell;
use crate::shm::segment::{self, Shape};
use crate::sys::absence::Absence;
use crate::sys::interfaces::Interface;
use crate::sys::tracer::{self, LetIn};
use crate::sys::wake::Wake;
use crate::sys::{host, interfaces, memfd, ports, shortage};
use crate::transport::local::{Local, Other};
use crate::transport::tcp::{Guard, Lessons, Tcp, Terms, no_port};
use crate::transport::{Door, Event, Handed, Lendable, Line, NoCall, NotLendable, Place, Reach, Tale, Venue};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

/// This machine, as far as a configuration lets it be used.
pub struct Machine {
    shm: bool,
    open_rings: bool,
    oversight: Oversight,
    budget: Budget,
    network: bool,
    iface: Option<String>,
    announced: Option<IpAddr>,
    terms: Terms,
    access: Access,
    log: Log,
}

/// Who may copy out of and into this process's memory.
pub fn let_in(config: &Config) -> LetIn {
    [LetIn::Launcher, LetIn::Any, LetIn::Nobody][config.yama as usize]
}

impl Machine {
    /// For a configuration. If the kernel may copy, those that the configuration names may from now on read and write this process's memory.
    pub fn new(config: &Config, log: Log) -> Machine {
        if config.cma == 0 && config.shm != 0 {
            tracer::let_in(let_in(config));
        }
        Machine {
            shm: config.shm != 0,
            open_rings: config.opens_rings(),
            oversight: Oversight::Monitored,
            budget: Budget::of(config.cache_count, config.cache_bytes),
            network: config.tcp != 0,
            iface: config.iface.name().map(str::to_owned),
            announced: config.iface.announced(),
            terms: Terms {
                at: Addresses::new(),
                ports: config.port_range.ports(),
                patience: config.peer_timeout,
                lanes: config.tcp_lanes as usize,
                guard: None,
                zerocopy: ZeroCopy::of(config.tcp_zerocopy),
                afar: false,
            },
            access: Access::new(config, log.clone()),
            log,
        }
    }

    /// Who tells its doors what becomes of memory that they lend. **For tests only**, which show that without the monitor bytes are wrong.
    pub fn overseen(self, oversight: Oversight) -> Machine {
        Machine { oversight, ..self }
    }

    /// Connections within this host count as such to others. **For tests only**, which have but one host to learn something of.
    pub fn afar(self) -> Machine {
        Machine { terms: Terms { afar: true, ..self.terms }, ..self }
    }

    /// The addresses that others are told, best first: that of the service, those of the interface that the user names, or the best ones.
    fn addresses(&self, name: &Name) -> Result<Addresses, Error> {
        if let Some(service) = name.service().filter(|s| !s.ip.is_unspecified()) {
            return Ok([(service.ip, service.scope_id)].into_iter().collect());
        }
        let all = interfaces::all();
        let Some(iface) = &self.iface else {
            let best = interfaces::worth_telling(&all).map(|i| (i.ip, i.scope_id)).collect::<Addresses>();
            return Ok(if best.is_empty() { [(IpAddr::from([127, 0, 0, 1]), 0)].into_iter().collect() } else { best });
        };
        let named: Vec<_> = all.iter().filter(|i| i.name == *iface || i.ip.to_string() == *iface).cloned().collect();
        if !named.is_empty() {
            let all: Addresses = interfaces::worth_telling(&named).map(|i| (i.ip, i.scope_id)).collect();
            // It is listened at these only, so no more of them than others can be told.
            return Ok(name.at(&all, 1).addresses());
        }
        self.log.insist(|| no_interface(iface, &all));
        Err(Error::Invalid)
    }

    fn open_network(&self, name: &Name, guard: Option<Guard>) -> Result<Option<(Tcp, Place)>, Error> {
        if !self.network {
            return Ok(None);
        }
        let addresses = self.addresses(name)?;
        let (ip, _) = addresses[0];
        let at = if self.iface.is_some() { addresses.clone() } else { Addresses::new() };
        let terms = Terms { at, guard, ..self.terms.clone() };
        let port = name.service().map_or(0, |s| s.port);
        let who = name.identity().ok_or(Error::Invalid)?;
        match Tcp::open(terms, who, port, host::random()) {
            Ok(tcp) => {
                let mut addresses = self.announced.map_or(addresses, |ip| [(ip, 0)].into_iter().collect());
                if self.iface.is_some() && self.announced.is_none() {
                    addresses.retain(|(ip, _)| tcp.listens_at(*ip));
                }
                let place = Place { addresses, port: tcp.port() };
                Ok(Some((tcp, place)))
            }
            Err(kernel) => {
                let why = refused(kernel);
                let range = self.terms.ports.as_ref().filter(|_| port == 0);
                let denied = |lowest: u16| match ports::reserved(lowest).filter(|_| kernel == Errno::ACCESS) {
                    Some(helps) => format!("{kernel}; {helps}"),
                    None => shortage::told(kernel),
                };
                let tell = || match (kernel, range) {
                    (Errno::ADDRINUSE, Some(range)) => no_port(range, "to listen at"),
                    (Errno::ADDRINUSE, None) => format!("cannot listen at {ip} port {port}: {why}"),
                    (_, None) => format!("cannot listen at {ip} port {port}: {}", denied(port)),
                    (_, Some(range)) => {
                        let (first, last, why) = (range.start(), range.end(), denied(*range.start()));
                        format!("cannot listen at {ip} port {first}-{last} (FI_RUSTMX_PORT_RANGE): {why}")
                    }
                };
                // A job on several hosts fails by it, and MPIs do not say why.
                let say = |text: &dyn Fn() -> String| match (&self.terms.ports, shortage::lack(kernel)) {
                    (_, Some((kind, _))) => self.log.insist_once(kind, None, text),
                    (Some(_), None) => self.log.insist(text),
                    (None, None) => self.log.warn(text),
                };
                if self.shm && (port == 0 || ip.is_loopback()) {
                    say(&|| format!("peers on other hosts cannot be reached: {}", tell()));
                    return Ok(None);
                }
                say(&tell);
                Err(why)
            }
        }
    }
}

impl Venue for Machine {
    fn open(&self, name: &Name) -> Result<Box<dyn Door>, Error> {
        self.open_with_key(name, &Secret::default())
    }

    fn open_with_key(&self, name: &Name, key: &Secret) -> Result<Box<dyn Door>, Error> {
        let guard = self.access.guard(key)?;
        let local = Local::open(name, guard.as_ref().map(|g| g.key.clone())).map_err(|why| {
            if why != Errno::ADDRINUSE {
                shortage::tell(&self.log, why, || "cannot open an endpoint".into());
            }
            refused(why)
        })?;
        let mut network = self.open_network(name, guard)?;
        if let Some((tcp, place)) = &mut network {
            local.watch(Other::Network, tcp.as_fd()).map_err(|why| {
                shortage::tell(&self.log, why, || "cannot open an endpoint".into());
                Error::NoResources
            })?;
            tcp.watch_strangers(|fd| local.watch(Other::Strangers, fd));
            self.log.info(|| {
                let addresses: Vec<String> = place.addresses.iter().map(|(ip, _)| ip.to_string()).collect();
                format!("other hosts reach this endpoint at {} port {}", addresses.join(", "), place.port)
            });
        }
        let (tcp, place) = network.unzip();
        let nested = tcp.is_some();
        let memory = OwnMemory::new(self.oversight, self.budget);
        let log = self.log.clone();
        Ok(Box::new(Doors { open_rings: self.open_rings, local, tcp, place, shm: self.shm, nested, armed: false, log, memory }))
    }

    fn random(&self) -> u64 {
        host::random()
    }
}

/// What to say of a name that no interface has, nor address.
fn no_interface(wanted: &str, all: &[Interface]) -> String {
    let there: Vec<String> = all.iter().map(|i| format!("{} ({})", i.name, i.ip)).collect();
    let there = if there.is_empty() { "none".into() } else { there.join(", ") };
    // A container or a network namespace begins without.
    let helps = match all.iter().any(|i| i.kind == interfaces::Kind::Loopback) {
        true => "",
        false => "; not even the loopback interface is up: `ip link set lo up` helps",
    };
    format!("FI_RUSTMX_IFACE={}: no such interface or address is up; there are {there}{helps}", shown(wanted))
}

/// Why it cannot be listened somewhere.
fn refused(why: Errno) -> Error {
    match why {
        Errno::ADDRINUSE | Errno::ACCESS => Error::AddressInUse,
        _ => Error::NoResources,
    }
}

/// The door of one endpoint.
struct Doors {
    open_rings: bool,
    local: Local,
    tcp: Option<Tcp>,
    place: Option<Place>,
    shm: bool,
    /// The poller of the network is watched by the one of this host.
    nested: bool,
    /// Somebody sleeps, or may: it stays watched.
    armed: bool,
    log: Log,
    memory: OwnMemory,
}

/// Whether an address is one of this host's: the kernel lets us bind to it.
fn own_address(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

impl Doors {
    /// Those that call from other hosts and those that have called; whether the pollers of these have something: `network`, `strangers`.
    fn serve(&mut self, [network, strangers]: [bool; 2], now: u64, events: &mut Vec<Event>) {
        if let Some(tcp) = &mut self.tcp {
            if network {
                tcp.look(now, events);
            }
            tcp.hear_strangers(now, strangers, events);
            tcp.look_after(now, events);
            // Who watched may have closed.
            tcp.watch_strangers(|fd| self.local.watch(Other::Strangers, fd));
            if !self.nested && !tcp.has_connections() {
                // No turns are taken any more, and somebody may call.
                self.nested = self.local.watch(Other::Network, tcp.as_fd()).is_ok();
            }
        }
    }
}

impl Door for Doors {
    fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    fn listening(&self) -> usize {
        self.tcp.as_ref().map_or(0, Tcp::endpoints)
    }

    fn reach(&self, name: &Name) -> Result<Reach, Error> {
        if self.shm && name.takes_memory() && name.is_local_to(host::id(), own_address) {
            Ok(Reach::Host)
        } else if self.tcp.is_some() && name.port() != 0 {
            Ok(Reach::Network)
        } else {
            Err(Error::Unreachable)
        }
    }

    fn call(&mut self, name: &Name, reach: Reach) -> Result<(Arc<dyn Line>, u32), NoCall> {
        match (reach, &mut self.tcp) {
            (Reach::Host, _) => self.local.call(name, &self.log),
            (Reach::Network, Some(tcp)) => tcp.call(name, &self.log).map(|line| (line as Arc<dyn Line>, 0)),
            (Reach::Network, None) => Err(NoCall::Never(Error::Unreachable)),
        }
    }

    fn give_up(&mut self, name: &Name) {
        if let Some(tcp) = &mut self.tcp {
            tcp.give_up(name, &self.log);
        }
    }

    fn poll(&mut self, now: u64, events: &mut Vec<Event>) -> bool {
        let ready = self.local.poll(now, events);
        self.serve(ready, now, events);
        if let Some(tcp) = self.tcp.as_mut().filter(|tcp| !self.nested && tcp.has_connections()) {
            // A turn mostly reads one of them only, and whoever takes few turns would seldom come to the others.
            tcp.ask(now, events);
        }
        ready.contains(&true) || !events.is_empty()
    }

    fn tend(&mut self, now: u64, events: &mut Vec<Event>) {
        self.serve([false; 2], now, events);
    }

    fn turn(&mut self, now: u64, look: bool, events: &mut Vec<Event>) -> (usize, bool) {
        let Some(tcp) = &mut self.tcp else { return (0, false) };
        if self.nested && !self.armed && tcp.has_connections() {
            // Every turn asks it anyway, and a poller in a poller costs each sender some more.
            self.local.forget(tcp.as_fd());
            self.nested = false;
        }
        (tcp.turn(now, look, events), tcp.is_held_up())
    }

    fn has_turns(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_connections())
    }

    fn longest_nap(&self) -> Option<u64> {
        self.tcp.as_ref().and_then(Tcp::longest_nap)
    }

    fn note_at(&mut self, absence: &Arc<Absence>) {
        if let Some(tcp) = &mut self.tcp {
            tcp.note_at(absence);
        }
    }

    fn learn(&mut self, lessons: &Arc<Lessons>) {
        if let Some(tcp) = &mut self.tcp {
            tcp.learn(lessons);
        }
    }

    fn keeps_back(&self) -> bool {
        self.tcp.as_ref().is_some_and(Tcp::keeps_back)
    }

    fn is_held_up(&self) -> bool {
        self.tcp.as_ref().is_some_and(Tcp::is_held_up)
    }

    fn lanes(&self) -> (u64, u64) {
        self.tcp.as_ref().map_or((0, 0), Tcp::lanes)
    }

    fn zerocopy(&self) -> [u64; 3] {
        self.tcp.as_ref().map_or([0; 3], |tcp| {
            let sums = tcp.zerocopies();
            [sums.lent, sums.registered, sums.copied]
        })
    }

    fn tales(&self) -> Vec<Tale> {
        self.tcp.as_ref().map(|tcp| tcp.zerocopies().tales()).unwrap_or_default()
    }

    fn arm(&mut self) {
        self.armed = true;
        if let Some(tcp) = &mut self.tcp {
            tcp.arm();
            if !self.nested {
                self.nested = self.local.watch(Other::Network, tcp.as_fd()).is_ok();
            }
        }
    }

    fn disarm(&mut self) {
        self.armed = false;
        if let Some(tcp) = &mut self.tcp {
            tcp.disarm();
        }
    }

    fn part(&mut self) -> bool {
        self.tcp.as_mut().is_none_or(|tcp| tcp.part())
    }

    fn segment(&mut self, reach: Reach, shape: Shape) -> Result<(Handed, SharedMem), Errno> {
        if reach == Reach::Network {
            let mem = segment::private(shape.ring);
            return Ok((Handed::Own(mem.clone()), mem));
        }
        let (fd, mem) = segment::create(shape, self.open_rings)?;
        Ok((Handed::Descriptor(fd), mem))
    }

    fn bell(&mut self) -> Result<(Handed, SharedMem), Errno> {
        let (fd, map) = memfd::create("rustmx-bell", bell::BYTES, false)?;
        Ok((Handed::Descriptor(fd), SharedMem::new(map)))
    }

    fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error> {
        self.local.own_waker()
    }

    fn kernel_pid(&self, pid: u32) -> u32 {
        pid
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.local.as_fd())
    }

    fn lendable(&mut self, address: usize, len: usize) -> Option<Lendable> {
        self.memory.at(address, len)
    }

    fn why_not_lendable(&self, address: usize) -> NotLendable {
        self.memory.why_not(address)
    }

    fn as_before(&mut self, address: usize) -> u8 {
        self.memory.as_before(address)
    }

    fn lend(&mut self, memory: &Lendable, writable: bool) -> Option<Handed> {
        self.memory.open(memory, writable).map(Handed::Descriptor)
    }

    fn ended(&mut self) -> Option<u32> {
        self.memory.ended()
    }

    fn kept(&self) -> (usize, usize) {
        self.memory.kept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_interfaces_there_are_is_told_also_if_there_are_none() {
        let of = |name: &str, kind| Interface {
            name: name.into(),
            ip: [127, 0, 0, 1].into(),
            scope_id: 0,
            kind,
            has_default_route: false,
        };
        let (lo, eth) = (of("lo", interfaces::Kind::Loopback), of("eth0", interfaces::Kind::Card));
        let told = no_interface("no\ne", &[eth.clone(), lo]);
        assert_eq!(
            told,
            "FI_RUSTMX_IFACE=no\\ne: no such interface or address is up; there are eth0 (127.0.0.1), lo (127.0.0.1)"
        );
        for there in [&[][..], &[eth]] {
            assert!(no_interface("127.0.0.1", there).ends_with("`ip link set lo up` helps"));
        }
        assert!(no_interface("127.0.0.1", &[]).contains("there are none; "));
    }
}
