//! From which port a call leaves.
//!
//! Where a process may use few ports it calls from the one that it listens at, too: what the kernel tells connections apart by is both ends, and at the other
//! end of each call is another place. The kernel (`inet_bind_conflict` of `net/ipv4/inet_connection_sock.c`) lets a socket have the port of one that listens
//! only if both have `SO_REUSEPORT` at that moment, and are of one user. Two that listen with it would share the calls that come, unseen: so a listener takes
//! its port without it, as long as that is refused if anybody else listens there, and [shares](share) it afterwards.
//!
//! **Of two places there is one connection.** If the other side has called from its port to ours already, ours cannot call from here to there: `EADDRNOTAVAIL`,
//! and its call is what was wanted. If both call at the same moment, the two calls become one connection (a simultaneous open, RFC 9293, section 3.5), on
//! which both believe that they have called. What lingers of an earlier connection (`TIME_WAIT`) is no obstacle to a call from a port that was asked
//! for, as long as both have timestamps (`tcp_twsk_unique`), which is the default.

use super::tcp::{own_address, prepare, socket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// Ports that a call may leave from.
#[derive(Clone, Debug)]
pub struct Ports {
    /// One where this process listens, and that is [shared](share): it is tried first.
    pub own: Option<u16>,
    /// Those of them at which nobody listens.
    pub others: RangeInclusive<u16>,
}

/// Calls of this process may leave from the port at which `listener` listens.
///
/// # Errors
/// What the kernel says.
pub fn share(listener: impl AsFd) -> Result<(), Errno> {
    sockopt::set_socket_reuseport(listener, true)
}

/// Why a port was refused with `EACCES`, for people; `None`: another reason.
pub fn reserved(port: u16) -> Option<String> {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let first = std::fs::read_to_string(SETTING).ok().and_then(|n| n.trim().parse().ok()).unwrap_or(1024);
    (port < first).then(|| format!("ports below {first} are root's (net.ipv4.ip_unprivileged_port_start)"))
}

/// Begins to connect to `to`, from one of these ports if they are given, else from any; the others are tried from some place on that `start` says.
/// [`connected`](super::tcp::connected) tells how it went.
///
/// # Errors
/// `EADDRNOTAVAIL` if only our own is left, and there is a connection between it and `to` already, or one is being made; `EADDRINUSE` if none is left.
pub fn connect(to: SocketAddr, from: Option<&Ports>, start: u16) -> Result<OwnedFd, Errno> {
    let Some(Ports { own, others }) = from else { return connect_from(to, None) };
    let own = own.map(|port| (port, true));
    let count = u32::from(others.end() - others.start()) + 1;
    let others = (0..count).map(|i| (others.start() + ((u32::from(start) + i) % count) as u16, false));
    let mut taken = false;
    for (port, shared) in own.into_iter().chain(others) {
        match connect_from(to, Some((port, shared))) {
            Err(Errno::ADDRNOTAVAIL) => taken |= shared,
            // Somebody listens there.
            Err(Errno::ADDRINUSE | Errno::ACCESS) => {}
            done => return done,
        }
    }
    Err(if taken { Errno::ADDRNOTAVAIL } else { Errno::ADDRINUSE })
}

fn connect_from(to: SocketAddr, port: Option<(u16, bool)>) -> Result<OwnedFd, Errno> {
    let fd = socket(&to)?;
    if let Some((port, shared)) = port {
        // Several connections may leave from one port if they go to different places.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if shared {
            share(&fd)?;
        }
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        rustix::net::bind(&fd, &SocketAddr::new(any, port))?;
    }
    prepare(&fd)?;
    match rustix::net::connect(&fd, &to) {
        // Who calls the port that he calls from, at an address of this host, has himself on the line.
        Ok(()) | Err(Errno::INPROGRESS) if is_to_itself(&fd, &to, port) => Err(Errno::ADDRINUSE),
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(why) => Err(why),
    }
}

fn is_to_itself(fd: &OwnedFd, to: &SocketAddr, port: Option<(u16, bool)>) -> bool {
    port.is_some_and(|(port, _)| port == to.port()) && own_address(fd).is_ok_and(|own| own.ip() == to.ip())
}

#[cfg(test)]
mod tests {
    use super::super::tcp::{accept, connected, listen, peer_address};
    use super::*;

    fn listener() -> (OwnedFd, SocketAddr) {
        let fd = listen(([127, 0, 0, 1], 0).into()).expect("listen");
        let at = own_address(&fd).expect("name");
        (fd, at)
    }

    /// Calls can leave from there only.
    fn only(own: SocketAddr) -> Ports {
        Ports { own: Some(own.port()), others: own.port()..=own.port() }
    }

    /// Calls cannot leave from where we listen.
    fn others(range: &RangeInclusive<u16>) -> Ports {
        Ports { own: None, others: range.clone() }
    }

    /// A port that calls can leave from, of the kernel's choice if it is 0. It is given to nobody else while what is returned is there, which does not listen: a listener that was
    /// closed lives on for a moment in a child that another test makes just then.
    fn free(port: u16) -> Option<(OwnedFd, u16)> {
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let fd = socket(&at).expect("socket");
        sockopt::set_socket_reuseaddr(&fd, true).expect("option");
        rustix::net::bind(&fd, &at).ok()?;
        let port = own_address(&fd).expect("name").port();
        Some((fd, port))
    }

    fn settled(fd: &OwnedFd) -> Result<(), Errno> {
        while !connected(fd)? {}
        Ok(())
    }

    #[test]
    fn a_port_is_listened_at_and_called_from() {
        let [(own, at), (other, there), (_third, elsewhere)] = [(); 3].map(|()| listener());
        // Nobody can call from there before that is allowed.
        assert_eq!(connect(there, Some(&only(at)), 0).err(), Some(Errno::ADDRINUSE));
        share(&own).expect("shared");
        let call = connect(there, Some(&only(at)), 0).expect("call");
        settled(&call).expect("connected");
        let (taken, from) = accept(&other).expect("accept");
        assert_eq!((from, peer_address(&call)), (Some(at), Some(there)));
        // Between two places there is one connection, whoever called; another place can be called.
        assert_eq!(connect(there, Some(&only(at)), 0).err(), Some(Errno::ADDRNOTAVAIL));
        share(&other).expect("shared");
        assert_eq!(connect(at, Some(&only(there)), 0).err(), Some(Errno::ADDRNOTAVAIL));
        settled(&connect(elsewhere, Some(&only(at)), 0).expect("call")).expect("connected");
        // Nobody calls himself.
        assert_eq!(connect(at, Some(&only(at)), 0).err(), Some(Errno::ADDRINUSE));
        // And calls still come.
        settled(&connect(at, None, 0).expect("call")).expect("connected");
        accept(&own).expect("accept");
        // What lingers of a connection is not in the way of the next one, whichever side it lingers at.
        let mut ends = [call, taken];
        for side in 0..4 {
            let [call, taken] = ends;
            let (first, second) = if side % 2 == 0 { (call, taken) } else { (taken, call) };
            drop(first);
            drop(second);
            let call = match connect(there, Some(&only(at)), 0) {
                // Loopback is quick, and not at once.
                Err(Errno::ADDRNOTAVAIL) => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    connect(there, Some(&only(at)), 0)
                }
                other => other,
            };
            let call = call.expect("call");
            settled(&call).expect("connected");
            ends = [call, accept(&other).expect("accept").0];
        }
    }

    #[test]
    fn ports_that_root_alone_has_are_told() {
        let first: u16 = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
            .map_or(1024, |n| n.trim().parse().expect("a number"));
        assert_eq!((reserved(first), reserved(u16::MAX)), (None, None));
        let told = first.checked_sub(1).map(|port| reserved(port).expect("root's"));
        assert!(told.is_none_or(|told| told.contains(&first.to_string()) && told.contains("ip_unprivileged_port_start")));
    }

    /// The kernel would share calls among listeners that have the option.
    #[test]
    fn nobody_else_listens_at_a_shared_port() {
        let [(own, at), (_other, there)] = [(); 2].map(|()| listener());
        share(&own).expect("shared");
        let _call = connect(there, Some(&only(at)), 0).expect("call");
        let any = SocketAddr::new([0; 16].into(), at.port());
        for place in [at, SocketAddr::new([0; 4].into(), at.port()), any] {
            assert_eq!(listen(place).err(), Some(Errno::ADDRINUSE), "{place}");
        }
        // Not one that had the port before, either, and listens only now.
        let early = socket(&there).expect("socket");
        sockopt::set_socket_reuseaddr(&early, true).expect("option");
        assert_eq!(rustix::net::bind(&early, &at), Err(Errno::ADDRINUSE));
    }

    #[test]
    fn of_a_range_those_are_tried_where_nobody_listens() {
        let (_own, at) = listener();
        let (_other, there) = listener();
        let (_kept, free) = free(0).expect("a port");
        // Not shared, so not to be had.
        let ports = Ports { own: Some(at.port()), others: free..=free };
        let call = connect(there, Some(&ports), 7).expect("call");
        assert_eq!(own_address(&call).map(|own| own.port()), Ok(free));
    }

    #[test]
    fn ports_of_a_range_are_used_up() {
        let listener = listen(([127, 0, 0, 1], 0).into()).expect("listen");
        let to = own_address(&listener).expect("name");
        let range = 47_301..=47_302;
        let open = [0, 1, 2].map(|i| connect(to, Some(&others(&range)), i));
        let ports = open.iter().flatten().map(|fd| own_address(fd).expect("name").port());
        assert!(ports.clone().all(|p| range.contains(&p)) && ports.count() <= 2);
        assert_eq!(open[2].as_ref().err(), Some(&Errno::ADDRINUSE), "two ports, three connections to one place");
    }

    /// A port on which another program listens is passed over.
    #[test]
    fn ports_that_are_taken_are_passed_over() {
        let listens = |port| listen(([0; 4], port).into()).ok();
        let (_taken, _kept, range) = (20_000..30_000)
            .step_by(2)
            .find_map(|port| Some((listens(port)?, free(port + 1)?, port..=port + 1)))
            .expect("two free ports");
        for start in [0, 1] {
            let listener = listen(([127, 0, 0, 1], 0).into()).expect("listen");
            let open = connect(own_address(&listener).expect("name"), Some(&others(&range)), start).expect("the other one");
            assert_eq!(own_address(&open).map(|own| own.port()), Ok(*range.end()));
        }
    }
}
