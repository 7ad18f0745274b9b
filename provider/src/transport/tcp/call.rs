//! A call of a name with several addresses: attempts one after the other, each before the last one has failed, and the first that gets
//! through counts (RFC 8305, "happy eyeballs").
//!
//! What gets through is a connection. Who answers there is another matter: an address may be somebody else's, too. So a call is kept until a
//! hello of the right endpoint has come by the connection; if something else comes, the addresses that are left are tried. A hello
//! cannot be waited for by several connections at once: a rank that computes answers none of them for as long as it computes, and
//! would take the second one for an impostor.

use super::NoCall;
use crate::error::Error;
use crate::peer::name::Name;
use crate::sys::interfaces::{self, Interface, Kind};
use crate::sys::tcp;
use crate::transport::out_of_step;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// Nanoseconds that an attempt has for itself before the next one begins (RFC 8305, section 5).
const HEAD_START: u64 = 250_000_000;
/// Nanoseconds after which an attempt that is not taken is begun anew for the first time, more or less; doubled each time.
const REDIAL: u64 = 500_000_000;
/// Links on which a link-local address is looked for.
const MOST_LINKS: usize = 4;

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Failed(Errno),
    /// Something answered that is not the endpoint.
    Stranger,
}

struct Attempt {
    to: SocketAddr,
    fd: OwnedFd,
}

/// Where a call stands.
#[derive(Debug)]
pub(super) enum Stand {
    /// It is under way.
    Soon,
    /// Connected, to this address.
    Connected(OwnedFd, SocketAddr),
    /// All addresses were tried in vain: why, by the attempt that says most.
    Failed(Errno),
}

/// A call.
pub(super) struct Call {
    ahead: VecDeque<SocketAddr>,
    open: Vec<Attempt>,
    /// Tried in vain: from where, to where, what came of it.
    past: Vec<(Option<SocketAddr>, SocketAddr, End)>,
    /// When the last attempt began.
    begun: u64,
    /// Nanoseconds before what is not taken is begun anew: on average, and this time, once that is settled.
    patience: u64,
    this_time: Option<u64>,
    /// When it was first asked about; 0: not yet.
    pub since: u64,
    /// It was tried in vain, and begins anew.
    waits: bool,
}

impl Call {
    /// A call of all addresses of `name`.
    pub fn new(name: &Name) -> Call {
        let mut links = None;
        let mut ahead = VecDeque::new();
        for (ip, scope) in name.addresses() {
            match ip {
                // The number of the link is that of its host, and says nothing here.
                IpAddr::V6(v6) if v6.is_unicast_link_local() && !name.is_contact() => {
                    let links = links.get_or_insert_with(|| own_links(&interfaces::all()));
                    ahead.extend(links.iter().map(|link| tcp::scoped(ip, *link, name.port())));
                }
                _ => ahead.push_back(tcp::scoped(ip, scope, name.port())),
            }
        }
        Call::to(ahead)
    }

    fn to(ahead: VecDeque<SocketAddr>) -> Call {
        Call { ahead, open: Vec::new(), past: Vec::new(), begun: 0, patience: REDIAL, this_time: None, since: 0, waits: false }
    }

    /// The same call of `name` from its beginning; what came of it is kept for people until then.
    pub fn anew(self, name: &Name) -> Call {
        Call { past: self.past, since: self.since, waits: true, ..Call::new(name) }
    }

    /// Goes on, as far as that is possible without waiting. `now` in nanoseconds; `dial` begins to connect.
    pub fn look(&mut self, now: u64, mut dial: impl FnMut(SocketAddr) -> Result<OwnedFd, Errno>) -> Stand {
        loop {
            if let Some((fd, to)) = self.answered() {
                // Whoever lost the race hangs up; if this is not the endpoint, there is another try.
                self.ahead.extend(self.open.drain(..).map(|attempt| attempt.to));
                return Stand::Connected(fd, to);
            }
            if !self.open.is_empty() && (self.ahead.is_empty() || now.saturating_sub(self.begun) < HEAD_START) {
                return Stand::Soon;
            }
            let Some(to) = self.ahead.pop_front() else { return Stand::Failed(self.verdict()) };
            self.begun = now;
            if std::mem::take(&mut self.waits) {
                self.past.clear();
            }
            match dial(to) {
                Ok(fd) => self.open.push(Attempt { to, fd }),
                Err(why) => self.past.push((None, to, End::Failed(why))),
            }
        }
    }

    /// Begins attempts anew that were not taken in time, once all addresses are being tried. The kernel by itself asks again after 1, 3 and 7 s,
    /// and thousands that were turned away by one full backlog would ask in step and be turned away again. So each does this at times of its own, by
    /// `random` numbers.
    pub fn redial(&mut self, now: u64, random: impl FnOnce() -> u64, mut dial: impl FnMut(SocketAddr) -> Result<OwnedFd, Errno>) {
        if !self.ahead.is_empty() {
            return;
        }
        let patience = *self.this_time.get_or_insert_with(|| out_of_step(self.patience, random()));
        if now.saturating_sub(self.begun) < patience {
            return;
        }
        (self.begun, self.patience, self.this_time) = (now, 2 * self.patience, None);
        for Attempt { to, fd } in std::mem::take(&mut self.open) {
            if tcp::connected(&fd) != Ok(false) {
                self.open.push(Attempt { to, fd });
                continue;
            }
            // Before: from the same port to the same place there is one connection.
            drop(fd);
            match dial(to) {
                Ok(fd) => self.open.push(Attempt { to, fd }),
                Err(why) => self.past.push((None, to, End::Failed(why))),
            }
        }
    }

    /// The first attempt that got through; those that failed are put aside.
    fn answered(&mut self) -> Option<(OwnedFd, SocketAddr)> {
        let mut at = 0;
        while let Some(attempt) = self.open.get(at) {
            match tcp::connected(&attempt.fd) {
                Ok(true) => {
                    let Attempt { to, fd } = self.open.remove(at);
                    return Some((fd, to));
                }
                Ok(false) => at += 1,
                Err(why) => {
                    let Attempt { to, fd } = self.open.remove(at);
                    self.past.push((tcp::own_address(&fd).ok(), to, End::Failed(why)));
                }
            }
        }
        None
    }

    /// Who answered at `to` is not the endpoint. Whether there are addresses left.
    pub fn was_stranger(&mut self, from: Option<SocketAddr>, to: SocketAddr) -> bool {
        self.past.push((from, to, End::Stranger));
        self.has_more()
    }

    /// Whether there are addresses that were not tried.
    pub fn has_more(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// What this process lacks says most, then who was reached and refused, then that nobody was reached.
    fn verdict(&self) -> Errno {
        let reasons = || {
            self.past.iter().map(|(_, _, end)| match end {
                End::Failed(why) => *why,
                End::Stranger => Errno::CONNREFUSED,
            })
        };
        let own = |why: &Errno| matches!(*why, Errno::ADDRINUSE | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS);
        let nowhere = |why: &Errno| matches!(*why, Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::AFNOSUPPORT);
        let best = reasons().find(own).or_else(|| reasons().find(|why| !nowhere(why)));
        best.or_else(|| reasons().next()).unwrap_or(Errno::HOSTUNREACH)
    }

    /// What was tried, and what to do, for people.
    pub fn complaint(&self) -> String {
        let ends = || self.past.iter().map(|(_, _, end)| *end);
        let failed = |whys: &[Errno]| ends().any(|end| matches!(end, End::Failed(why) if whys.contains(&why)));
        let mut advice = Vec::new();
        if !self.open.is_empty() || failed(&[Errno::TIMEDOUT]) {
            advice.push(
                "let its port pass in firewalls and security groups, both ways (FI_RUSTMX_PORT_RANGE sets which ports there are)",
            );
        }
        if failed(&[Errno::CONNREFUSED, Errno::CONNRESET]) {
            advice.push("see whether that process ended, and whether a firewall refuses");
        }
        // Any of these may be an address that its host should not have told.
        let elsewhere = failed(&[Errno::HOSTUNREACH, Errno::NETUNREACH]) || ends().any(|end| end == End::Stranger);
        if elsewhere || !self.open.is_empty() || failed(&[Errno::TIMEDOUT]) {
            advice.push("if this host does not reach these addresses, say on that host which of its interfaces others reach (FI_RUSTMX_IFACE)");
        }
        let advice = advice.join("; ");
        format!("{}{}{advice}", self.story(), if advice.is_empty() { "" } else { ". What to do: " })
    }

    /// What was tried, for people: both ends of each attempt, and what came of it.
    fn story(&self) -> String {
        let mut text = String::new();
        let open = self.open.iter().map(|a| (tcp::own_address(&a.fd).ok(), a.to, None));
        let past = self.past.iter().map(|(from, to, end)| (*from, *to, Some(*end)));
        for (from, to, end) in past.chain(open) {
            let _ = write!(text, "{}{to}", if text.is_empty() { "" } else { "; " });
            if let Some(from) = from.filter(|f| !f.ip().is_unspecified()) {
                let _ = write!(text, " from {}", from.ip());
            }
            let _ = match end {
                None => write!(text, " timed out: is the port open?"),
                Some(End::Stranger) => write!(text, " is somebody else's"),
                Some(End::Failed(Errno::CONNREFUSED)) => write!(text, " refused: nothing listens there"),
                Some(End::Failed(Errno::TIMEDOUT)) => write!(text, " timed out: is the port open?"),
                Some(End::Failed(Errno::NETUNREACH)) => write!(text, ": this host has no way to that network"),
                Some(End::Failed(Errno::HOSTUNREACH)) => write!(text, ": that host does not answer"),
                Some(End::Failed(Errno::ADDRNOTAVAIL)) => {
                    write!(
                        text,
                        ": there is a connection to there already from each port that may be used (of FI_RUSTMX_PORT_RANGE, else of \
                         net.ipv4.ip_local_port_range): give more"
                    )
                }
                Some(End::Failed(why)) => write!(text, ": {why}"),
            };
        }
        self.ahead
            .iter()
            .filter(|_| !self.waits)
            .for_each(|to| _ = write!(text, "{}{to} was not tried", if text.is_empty() { "" } else { "; " }));
        text
    }
}

/// The links of this host on which a link-local address of another one may be.
fn own_links(all: &[Interface]) -> Vec<u32> {
    let mut links = Vec::new();
    for interface in all.iter().filter(|i| i.kind == Kind::Card && i.ip.is_ipv6() && i.is_link_local()) {
        if links.len() < MOST_LINKS && !links.contains(&interface.scope_id) {
            links.push(interface.scope_id);
        }
    }
    links
}

/// Why a call did not go through.
pub(super) fn refused(why: Errno, name: &Name) -> NoCall {
    match why {
        Errno::AGAIN | Errno::INTR | Errno::ADDRNOTAVAIL => NoCall::Later,
        // A service may start late; an endpoint that was named has been there, so it is gone.
        Errno::CONNREFUSED | Errno::CONNRESET if name.is_contact() => NoCall::Later,
        Errno::CONNREFUSED | Errno::CONNRESET => NoCall::Never(Error::Refused),
        Errno::TIMEDOUT => NoCall::Never(Error::TimedOut),
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::ACCESS | Errno::PERM => NoCall::Never(Error::Unreachable),
        Errno::ADDRINUSE | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => NoCall::Never(Error::NoResources),
        _ => NoCall::Never(Error::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// A place of this host where somebody listens, or nobody does.
    fn listener(last: u8, port: u16) -> (OwnedFd, SocketAddr) {
        let fd = tcp::listen(SocketAddr::new(Ipv4Addr::new(127, 7, 7, last).into(), port)).expect("listen");
        let at = tcp::own_address(&fd).expect("name");
        (fd, at)
    }

    fn closed(last: u8) -> SocketAddr {
        listener(last, 0).1
    }

    /// A connection that gets no answer, as if packets were dropped: a socket that was never connected.
    fn silent() -> OwnedFd {
        let (fd, other) = std::os::unix::net::UnixStream::pair().expect("pair");
        fd.set_nonblocking(true).expect("nonblocking");
        // It takes no output, so it does not seem connected.
        use std::io::Write as _;
        while (&fd).write(&[0; 65536]).is_ok() {}
        std::mem::forget(other);
        fd.into()
    }

    fn until_it_stands(call: &mut Call, now: u64, mut dial: impl FnMut(SocketAddr) -> Result<OwnedFd, Errno>) -> Stand {
        for _ in 0..100_000 {
            match call.look(now, &mut dial) {
                Stand::Soon => std::thread::yield_now(),
                stand => return stand,
            }
        }
        panic!("it does not get on: {}", call.story())
    }

    fn dial(to: SocketAddr) -> Result<OwnedFd, Errno> {
        tcp::connect(to, None, 0)
    }

    #[test]
    fn who_refuses_is_followed_by_the_next_at_once() {
        let (_listener, at) = listener(3, 0);
        let refusing = [closed(1), closed(2)];
        let mut call = Call::to([refusing[0], refusing[1], at].into());
        let Stand::Connected(_, to) = until_it_stands(&mut call, 0, dial) else { panic!("{}", call.story()) };
        assert_eq!(to, at);
        assert!(!call.has_more());
        let story = call.story();
        assert!(story.contains(&refusing[0].to_string()) && story.contains(&refusing[1].to_string()), "{story}");
    }

    #[test]
    fn who_is_silent_has_a_head_start_and_the_first_that_answers_counts() {
        let (_listener, at) = listener(3, 0);
        let mut call = Call::to([closed(1), closed(2), at].into());
        let begun = std::cell::RefCell::new(Vec::new());
        let dial = |to: SocketAddr| {
            begun.borrow_mut().push(to);
            if to == at { tcp::connect(to, None, 0) } else { Ok(silent()) }
        };
        let ms = |n: u64| n * 1_000_000;
        for (now, attempts) in [(ms(1000), 1), (ms(1249), 1), (ms(1250), 2), (ms(1499), 2)] {
            assert!(matches!(call.look(now, dial), Stand::Soon), "at {now}");
            assert_eq!(begun.borrow().len(), attempts, "at {now}");
        }
        let Stand::Connected(_, to) = until_it_stands(&mut call, ms(1500), dial) else { panic!("{}", call.story()) };
        assert_eq!(to, at);
        // The others hang up, and may be tried if this was somebody else.
        assert!(call.open.is_empty() && call.ahead.len() == 2);
        assert!(call.was_stranger(None, to));
        assert!(call.story().contains("somebody else's"));
    }

    #[test]
    fn what_all_attempts_came_to() {
        let port = closed(1);
        let fails = |whys: &[Errno]| {
            let mut call = Call::to(whys.iter().map(|_| port).collect());
            let mut whys = whys.iter();
            let Stand::Failed(why) = call.look(0, |_| Err(*whys.next().expect("one each"))) else { panic!("nobody is there") };
            why
        };
        assert_eq!(fails(&[Errno::NETUNREACH, Errno::CONNREFUSED]), Errno::CONNREFUSED);
        assert_eq!(fails(&[Errno::TIMEDOUT, Errno::NETUNREACH, Errno::MFILE]), Errno::MFILE);
        assert_eq!(fails(&[Errno::NETUNREACH, Errno::HOSTUNREACH]), Errno::NETUNREACH);
        assert_eq!(fails(&[]), Errno::HOSTUNREACH);
    }

    #[test]
    fn a_story_names_both_ends() {
        let (at, refusing) = (listener(4, 0).1, closed(5));
        let mut call = Call::to([refusing, at].into());
        let _ = call.look(0, |to| if to == at { Ok(silent()) } else { dial(to) });
        while call.past.is_empty() {
            let _ = call.look(0, |_| Ok(silent()));
        }
        let story = call.story();
        assert!(story.contains(&format!("{refusing} from 127.0.0.1 refused: nothing listens there")), "{story}");
        assert!(story.contains(&format!("{at} timed out: is the port open?")), "{story}");
    }

    /// Many that were turned away at the same moment come again at moments of their own, and all of them ever more seldom.
    #[test]
    fn who_is_not_taken_comes_again_out_of_step() {
        const CALLERS: u64 = 50;
        const TIMES: usize = 5;
        let (at, silent) = (SocketAddr::from(([127, 7, 7, 6], 9)), silent());
        let came: Vec<Vec<u64>> = (0..CALLERS)
            .map(|caller| {
                let mut call = Call::to([at].into());
                assert!(matches!(call.look(0, |_| Ok(silent.try_clone().expect("descriptor"))), Stand::Soon));
                let (mut random, mut came) = (caller, Vec::new());
                for now in (0..20_000).map(|ms| ms * 1_000_000) {
                    let numbers = || {
                        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                        (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
                    };
                    call.redial(now, numbers, |_| {
                        came.push(now / 1_000_000);
                        Ok(silent.try_clone().expect("descriptor"))
                    });
                }
                came
            })
            .collect();
        for time in 0..TIMES - 1 {
            let pause = 500 << time;
            let since = |came: &[u64]| came[time] - if time == 0 { 0 } else { came[time - 1] };
            assert!(came.iter().all(|came| (pause / 2..=pause * 3 / 2).contains(&since(came))), "{came:?}");
            // In any eighth of that time there are a quarter of them at most.
            let most = (0..8).map(|part| {
                let from = pause / 2 + part * pause / 8;
                came.iter().filter(|came| (from..from + pause / 8).contains(&since(came))).count()
            });
            assert!(most.max() <= Some(CALLERS as usize / 4), "{time}: {came:?}");
        }
    }

    #[test]
    fn link_local_addresses_are_looked_for_on_all_cards() {
        let card = |ip: &str, scope_id, kind| Interface {
            name: "eth".into(),
            ip: ip.parse().expect("ip"),
            scope_id,
            kind,
            has_default_route: false,
        };
        let all = [
            card("fd00::1", 0, Kind::Card),
            card("fe80::1", 3, Kind::Card),
            card("fe80::2", 3, Kind::Card),
            card("fe80::3", 5, Kind::Card),
            card("fe80::4", 7, Kind::Bridge),
        ];
        assert_eq!(own_links(&all), [3, 5]);
        let far = Name::new(1, 0, 1, None).at(&[("fe80::9".parse().expect("ip"), 99)], 4711);
        assert!(Call::new(&far).ahead.iter().all(|to| !to.to_string().contains("%99")));
        let near = Name::contact("fe80::9".parse().expect("ip"), 99, 4711);
        assert!(Call::new(&near).ahead.iter().all(|to| to.to_string().contains("%99")));
    }
}
