//! Questions to a host whether it is there: ICMP echo requests by the sockets that need no privilege (icmp(7), `net.ipv4.ping_group_range`). What
//! answers is its kernel, whatever its processes do.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use std::net::{IpAddr, SocketAddr};

/// Types of a request and of its answer: RFC 792, RFC 4443 section 4.
const ECHO: ([u8; 2], [u8; 2]) = ([8, 0], [128, 129]);

/// Bytes of a request without data.
const HEAD: usize = 8;
/// Answers that one look takes.
const MOST_AT_ONCE: usize = 64;

/// Questions to one host.
pub struct Questions {
    fd: OwnedFd,
    request: u8,
    answer: u8,
    number: u16,
}

impl Questions {
    /// To the host of this address, from the one `from`; ports are no matter.
    ///
    /// # Errors
    /// `EACCES`: this user may not ask. `ENETUNREACH` and others: there is no way to that host.
    pub fn to(host: SocketAddr, from: Option<SocketAddr>) -> Result<Questions, Errno> {
        let without_port = |mut at: SocketAddr| {
            at.set_ip(at.ip().to_canonical());
            at.set_port(0);
            at
        };
        let host = without_port(host);
        let (family, protocol, [request, answer]) = match host.ip() {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, ECHO.0),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, ECHO.1),
        };
        let fd =
            rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, Some(protocol))?;
        if let Some(from) = from {
            rustix::net::bind(&fd, &without_port(from))?;
        }
        rustix::net::connect(&fd, &host)?;
        Ok(Questions { fd, request, answer, number: 0 })
    }

    /// Asks once.
    ///
    /// # Errors
    /// Of send(2); also that the host could not be reached the last time.
    pub fn ask(&mut self) -> Result<(), Errno> {
        self.number = self.number.wrapping_add(1);
        let [high, low] = self.number.to_be_bytes();
        // The kernel fills in the sum and the number of the socket.
        let request: [u8; HEAD] = [self.request, 0, 0, 0, 0, 0, high, low];
        rustix::net::send(&self.fd, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
    }

    /// How many answers have come since the last look, as far as one look goes.
    pub fn answers(&self) -> u32 {
        let mut answers = 0;
        let mut bytes = [0; HEAD];
        for _ in 0..MOST_AT_ONCE {
            match rustix::net::recv(&self.fd, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((n, _)) => answers += u32::from(n == HEAD && bytes[0] == self.answer),
                Err(Errno::AGAIN) => break,
                // Somebody on the way says that the host cannot be reached: that is no answer.
                Err(_) => {}
            }
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    use std::net::Ipv6Addr;
    use std::time::{Duration, Instant};

    /// A network of this thread's own, in which everybody may ask if `all` says so; `None` if this user cannot have one.
    fn network(all: bool) -> Option<()> {
        #[expect(unsafe_code)]
        // SAFETY: only the network namespace of this thread changes, and no descriptor of this process.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.ok()?;
        let group = if all { "0 2147483647" } else { "1 0" };
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", group).expect("a network of our own");
        assert!(std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2").success());
        Some(())
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn a_host_answers_and_nobody_does_not() {
        if network(true).is_none() {
            return eprintln!("not tested: this user may not make a network namespace");
        }
        for host in ["127.0.0.1:7", "[::1]:7", "[::ffff:127.0.0.1]:7"] {
            let host = host.parse().expect("address");
            let mut questions = Questions::to(host, Some(host)).expect("a socket");
            assert_eq!(questions.answers(), 0, "nothing was asked");
            for asked in [1, 3] {
                (0..asked).for_each(|_| questions.ask().expect("asked"));
                let (mut answers, until) = (0, Instant::now() + Duration::from_secs(20));
                while answers < asked {
                    answers += questions.answers();
                    assert!(Instant::now() < until, "{host}: {answers} of {asked}");
                }
                assert_eq!((answers, questions.answers()), (asked, 0));
            }
        }
        // There is no way to others; and what is left of a port is no matter.
        assert!(Questions::to("192.0.2.1:7".parse().expect("address"), None).is_err());
        let nobody = SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 7));
        assert!(Questions::to(nobody, None).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn who_may_not_ask_is_told() {
        if network(false).is_none() {
            return eprintln!("not tested: this user may not make a network namespace");
        }
        assert_eq!(Questions::to("127.0.0.1:7".parse().expect("address"), None).err(), Some(Errno::ACCESS));
    }
}
