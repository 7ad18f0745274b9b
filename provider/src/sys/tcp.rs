//! TCP sockets (tcp(7)) that never block, and what the kernel knows of a connection's health.
//!
//! Bytes go from and to lists of [`Piece`]s, so that a header in our memory, lines of a ring and the application's buffer travel in one
//! system call and are copied by the kernel only.
#![expect(unsafe_code)]
// UNSAFETY: hands addresses of memory to sendmsg(2) and recvmsg(2); reads what getsockopt(2) and ioctl(2) write.

use super::inherited::let_go;
pub use super::ports::{Ports, connect};
use crate::mem::shared::SharedMem;
use crate::mem::user::UserSeg;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// Connections that may wait to be accepted (capped by net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// Idle seconds before the kernel asks the other one whether it is still there, and between later questions.
const KEEPALIVE: [u64; 2] = [3, 1];

pub(super) fn socket(to: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None).map(let_go)
}

/// Listens at `at`; at the unspecified IPv6 address for both families. Port 0: any. `EADDRINUSE` if somebody else does.
pub fn listen(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = socket(&at)?;
    // A port whose last owner's connections linger may be used again.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, !at.ip().is_unspecified())?;
    }
    rustix::net::bind(&fd, &at)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Nobody listens at `listener` any more, also if a child by raw clone(2) has it, too: who calls is refused.
pub fn stop_listening(listener: &OwnedFd) {
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Read);
}

/// Whether the other side has hung up already.
pub fn is_hung_up(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::RDHUP)];
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && fds[0].revents().intersects(ended)
}

/// Whether the other side has broken the connection off, and not only said its last word. (What waits on the error queue, like a notice of `MSG_ZEROCOPY`, is no such thing.)
pub fn is_reset(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// Whether a connection that was begun is there; an error if it failed.
pub fn connected(fd: &OwnedFd) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    let ready = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if ready == 0 {
        return Ok(false);
    }
    match sockopt::socket_error(fd)? {
        Ok(()) => Ok(true),
        Err(why) => Err(why),
    }
}

/// Takes the next connection; `EAGAIN` if there is none.
pub fn accept(listener: &OwnedFd) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
    let (fd, from) = rustix::net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let fd = let_go(fd);
    prepare(&fd)?;
    Ok((fd, from.and_then(|a| SocketAddr::try_from(a).ok())))
}

/// What every connection has: no waiting for more to send, and questions while it is idle.
pub(super) fn prepare(fd: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(KEEPALIVE[0]))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(KEEPALIVE[1]))
}

/// Milliseconds between questions to a peer that does not answer, or has no room, for the kernel's own bounds (tcp(7): 1 s to 120 s).
const RTO_MAX: core::ops::RangeInclusive<u64> = 1_000..=120_000;
/// `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// After how many unanswered questions an idle connection counts as broken, for a bound of `millis`.
///
/// While there is something to be sent the kernel asks, too: again what is not acknowledged, or whether there is room now. The pauses double,
/// up to two minutes; here they end at a third of `millis`, so that a silence of `millis` means something. Linux before 6.15 cannot
/// do that: there a peer that has no room, and whose host goes, is noticed up to two minutes later, if nobody asks besides.
///
/// Returns whether the kernel can.
pub fn set_patience(fd: &OwnedFd, millis: u64) -> Result<bool, Errno> {
    let pause = (millis / 3).clamp(*RTO_MAX.start(), *RTO_MAX.end()) as libc::c_int;
    let len = size_of_val(&pause) as libc::socklen_t;
    // SAFETY: the kernel reads an int. An older one knows no such option, and does nothing.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, (&raw const pause).cast(), len) };
    let idle = (millis / 3000).clamp(1, KEEPALIVE[0]);
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(idle))?;
    let asks = (millis / 1000).saturating_sub(idle) / KEEPALIVE[1];
    sockopt::set_tcp_keepcnt(fd, asks.clamp(1, 120) as u32)?;
    Ok(done == 0)
}

/// Congestion control of connections that do not leave the host (tcp(7), TCP_CONGESTION).
const NEAR: &str = "reno";
/// Microseconds of a round trip between two namespaces: a packet takes some ten, a loaded machine some hundred.
const NEXT_DOOR: u32 = 1000;

/// Whether both ends of a connection are on this host, as far as their addresses tell.
pub fn is_near(fd: &OwnedFd) -> bool {
    let near = |own: SocketAddr| peer_address(fd).is_some_and(|other| own.ip() == other.ip() || other.ip().is_loopback());
    own_address(fd).is_ok_and(near)
}

/// Whether a connection to another network namespace of this kernel (a container's, say) is as short as it looks: if a round trip takes
/// long, something must be between them, like a network that somebody emulates.
pub fn is_next_door(fd: &OwnedFd) -> bool {
    !is_near(fd) && health(fd).and_then(|health| health.round_trip).is_some_and(|micros| micros < NEXT_DOOR)
}

/// From now on nothing is to be found out about the network. Between both ends on one host there is none that others share: the kernel does not have to find
/// out how much it bears, nor space packets in time as some of its ways to do that (BBR) would, for half of the bandwidth.
pub fn hurry(fd: &OwnedFd) {
    // Where it is not allowed the host's own choice stays.
    let _ = sockopt::set_tcp_congestion(fd, NEAR);
}

/// The host's own choice again: that of a new socket.
pub fn do_not_hurry(fd: &OwnedFd) {
    if let Some(choice) = own_address(fd).ok().and_then(|own| sockopt::tcp_congestion(socket(&own).ok()?).ok()) {
        let _ = sockopt::set_tcp_congestion(fd, &choice);
    }
}

/// The address that a socket has on this side.
pub fn own_address(fd: &OwnedFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(fd)?).map_err(|_| Errno::AFNOSUPPORT)
}

/// The address of the other side.
pub fn peer_address(fd: &OwnedFd) -> Option<SocketAddr> {
    rustix::net::getpeername(fd).ok()?.and_then(|a| SocketAddr::try_from(a).ok())
}

/// An address with the scope that a link-local one needs.
pub fn scoped(ip: IpAddr, scope_id: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if scope_id != 0 => SocketAddrV6::new(v6, port, 0, scope_id).into(),
        ip => SocketAddr::new(ip, port),
    }
}

/// A piece of memory that bytes come from or go to.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// `len` bytes at `at` of memory of ours.
    Own(&'a SharedMem, usize, usize),
    /// The application's.
    User(UserSeg),
}

impl Piece<'_> {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        match self {
            Piece::Own(_, _, len) => *len,
            Piece::User(seg) => seg.len(),
        }
    }

    pub(super) fn slice(&self) -> libc::iovec {
        match self {
            Piece::Own(mem, at, len) => libc::iovec { iov_base: mem.pointer(*at, *len).cast(), iov_len: *len },
            Piece::User(seg) => libc::iovec { iov_base: seg.address() as *mut _, iov_len: seg.len() },
        }
    }
}

/// Pieces that one call takes.
pub const MAX_PIECES: usize = 64;

/// Bytes up to which pieces of our own memory are better sent from one place, and received at one: the kernel needs longer to read a list than we
/// to copy so little (a ping-pong over the loopback interface, Zen 4: 4 KiB take 8.9 instead of 9.2 µs, 8 KiB 11.8 instead of 12.1). No record is longer
/// as long as `FI_RUSTMX_TCP_EAGER_MAX` is what is shipped.
pub const FLAT: usize = 9216;

fn message(pieces: &[Piece<'_>], slices: &mut SmallVec<[libc::iovec; 8]>) -> libc::msghdr {
    slices.extend(pieces.iter().take(MAX_PIECES).filter(|p| !p.is_empty()).map(Piece::slice));
    // SAFETY: a msghdr of zeros is one without name, control data and flags.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = slices.as_mut_ptr();
    message.msg_iovlen = slices.len() as _;
    message
}

fn count(done: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(done).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Sends as much of the pieces as the socket takes now. `EAGAIN` if it takes nothing.
pub fn send(fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
    send_with(fd, pieces, 0)
}

/// The same with further flags of send(2). With `MSG_ZEROCOPY` the application's memory is read after the call, too, until the kernel says
/// that it is through ([`super::zerocopy`]): until then its operation has not completed.
#[inline]
pub(super) fn send_with(fd: &OwnedFd, pieces: &[Piece<'_>], flags: libc::c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let mut slices = SmallVec::new();
    let message = message(pieces, &mut slices);
    // SAFETY: `message` names `slices`, which live to the end of the call; each names memory that is readable: of ours, checked by
    // `SharedMem::pointer` and kept by the borrow, or the application's, by the contract of `UserSeg::new`. What is not mapped is EFAULT.
    // (Not the C library's wrapper: that is a cancellation point: 3 % of a ping-pong's samples were in what that takes.)
    count(unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &message, flags) })
}

/// Sends `head` and these parts of `mem` (from, and how many bytes), [`FLAT`] bytes in all at most, as much as the socket takes now.
///
/// # Errors
/// `EAGAIN` if it takes none.
pub fn send_flat(fd: &OwnedFd, head: &[u8], mem: &SharedMem, parts: &[(usize, usize)]) -> Result<usize, Errno> {
    let (mut bytes, mut len) = ([MaybeUninit::uninit(); FLAT], head.len());
    assert!(len <= FLAT, "a head longer than all");
    for (to, from) in bytes.iter_mut().zip(head) {
        to.write(*from);
    }
    for &(at, more) in parts {
        mem.read_into(at, &mut bytes[len..len + more]);
        len += more;
    }
    // SAFETY: these were all written: the head, of which there is room for all, then one part behind the other.
    send_bytes(fd, unsafe { core::slice::from_raw_parts(bytes[..len].as_ptr().cast(), len) })
}

/// Sends `len` bytes of `mem` from `at` on, as many as the socket takes now: one place, which the kernel is quicker with than with a list.
///
/// # Errors
/// `EAGAIN` if it takes none.
pub fn send_own(fd: &OwnedFd, mem: &SharedMem, at: usize, len: usize) -> Result<usize, Errno> {
    let (from, none) = (mem.pointer(at, len), core::ptr::null::<u8>());
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `SharedMem::pointer` has checked that it is memory of ours, which the borrow keeps; the kernel has copied what it took when it comes back; no socket address is named.
    count(unsafe { libc::syscall(libc::SYS_sendto, fd.as_raw_fd(), from, len, flags, none, 0) })
}

/// Receives what is there into the pieces. 0 is the end; `EAGAIN` if there is nothing.
pub fn recv(fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
    let mut slices = SmallVec::new();
    let mut message = message(pieces, &mut slices);
    // SAFETY: as in `send`, for memory that is writable: rings and headers of ours are, and buffers of receives by the contract of
    // `UserSeg::new`; nobody holds a reference into either.
    count(unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}

/// Sends as many of these bytes as the socket takes now.
///
/// # Errors
/// `EAGAIN` if it takes none.
pub fn send_bytes(fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Receives what is there. 0 is the end.
///
/// # Errors
/// `EAGAIN` if there is nothing.
pub fn recv_bytes(fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    Ok(rustix::net::recv(fd, bytes, RecvFlags::DONTWAIT)?.0)
}

/// The same into memory that need not be initialised: what came.
///
/// # Errors
/// `EAGAIN` if there is nothing.
pub fn recv_into<'a>(fd: &OwnedFd, room: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8], Errno> {
    let ((got, _), _) = rustix::net::recv(fd, room, RecvFlags::DONTWAIT)?;
    Ok(got)
}

/// Receives what is there to `len` bytes of `mem` from `at` on: one place, which the kernel is quicker with than with a list. 0 is the end.
///
/// # Errors
/// `EAGAIN` if there is nothing.
pub fn recv_own(fd: &OwnedFd, mem: &SharedMem, at: usize, len: usize) -> Result<usize, Errno> {
    assert!(mem.is_writable());
    let (to, none) = (mem.pointer(at, len), core::ptr::null_mut::<u8>());
    // SAFETY: `SharedMem::pointer` has checked that it is memory of ours, which the borrow keeps; it is writable, and nobody holds a reference into it; no socket
    // address is asked for.
    count(unsafe { libc::syscall(libc::SYS_recvfrom, fd.as_raw_fd(), to, len, libc::MSG_DONTWAIT, none, none) })
}

/// Receives what is there behind what is in `bytes`, `room` bytes at most. How many came.
///
/// # Errors
/// `EAGAIN` if there is nothing.
pub fn recv_behind(fd: &OwnedFd, bytes: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
    bytes.reserve(room);
    let ((got, _), _) = rustix::net::recv(fd, &mut bytes.spare_capacity_mut()[..room], RecvFlags::DONTWAIT)?;
    let (got, before) = (got.len(), bytes.len());
    // SAFETY: recv(2) has written that many bytes behind the first ones, within the capacity that was reserved.
    unsafe { bytes.set_len(before + got) };
    Ok(got)
}

/// Bytes that the other side's kernel has not acknowledged yet (tcp(7), SIOCOUTQ).
pub fn unacknowledged(fd: &OwnedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if done == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// What the kernel knows of the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Something was sent, or asked, that has not been answered.
    pub waits: bool,
    /// Milliseconds since anything came from the other side's kernel. It acknowledges also when its process does not read.
    pub silent: u32,
    /// The other side has no room for what is to be sent (since Linux 4.6).
    pub no_room: bool,
    /// Packets with data that were sent (since Linux 4.6). The count goes round.
    pub segments: u32,
    /// Those of them that were sent again. So does this.
    pub again: u32,
    /// The shortest round trip so far in microseconds, if one is known (since Linux 4.6).
    pub round_trip: Option<u32>,
}

/// Asks the kernel (tcp(7), TCP_INFO). What an older one does not know is 0.
fn info(fd: &OwnedFd) -> Option<libc::tcp_info> {
    // SAFETY: all zeros is a value of this struct of integers.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of `info`.
    let done = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut len) };
    (done == 0).then_some(info)
}

/// Asks the kernel how a connection is.
pub fn health(fd: &OwnedFd) -> Option<Health> {
    info(fd).map(|info| Health {
        // Questions to a peer without room are rare after a while, and answers to them neither end tcpi_backoff nor make what did not fit
        // acknowledged. An answer came if the last word was theirs.
        waits: info.tcpi_probes > 0 || info.tcpi_unacked > 0 && info.tcpi_last_data_sent < info.tcpi_last_ack_recv,
        // Data alone need not count as an acknowledgement.
        silent: info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv),
        no_room: info.tcpi_unacked == 0 && info.tcpi_notsent_bytes > 0,
        segments: info.tcpi_data_segs_out,
        again: info.tcpi_total_retrans,
        round_trip: Some(info.tcpi_min_rtt).filter(|micros| !matches!(*micros, 0 | u32::MAX)),
    })
}

/// Most bytes that the other side puts into one segment: what we told it (tcp(7), TCP_MAXSEG). `None`: it is no TCP.
pub fn segment(fd: &OwnedFd) -> Option<usize> {
    info(fd).and_then(|info| usize::try_from(info.tcpi_advmss).ok()).filter(|bytes| *bytes > 0)
}

/// Says that nothing more will be sent; what was sent still arrives.
pub fn finish(fd: impl AsFd) {
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::shared::Heap;

    fn pair() -> (OwnedFd, OwnedFd) {
        let listener = listen("[::]:0".parse().expect("address")).or_else(|_| listen(([0; 4], 0).into())).expect("listen");
        let port = own_address(&listener).expect("name").port();
        let a = connect(([127, 0, 0, 1], port).into(), None, 0).expect("connect");
        while !connected(&a).expect("connecting") {}
        (a, accept(&listener).expect("accept").0)
    }

    #[test]
    fn pieces_arrive_in_order_and_the_end_is_seen() {
        let (a, b) = pair();
        let (from, to) = (SharedMem::new(Heap::new(4096)), SharedMem::new(Heap::new(4096)));
        from.fill_bytes(8, b"one two ");
        let mut user = *b"three";
        // SAFETY: the array outlives the call.
        let seg = unsafe { UserSeg::new(user.as_mut_ptr(), user.len()) };
        assert_eq!(send(&a, &[Piece::Own(&from, 8, 4), Piece::Own(&from, 12, 4), Piece::User(seg)]), Ok(13));
        let mut got = 0;
        while got < 13 {
            match recv(&b, &[Piece::Own(&to, got, 5), Piece::Own(&to, got + 5, 100)]) {
                Ok(n) => got += n,
                Err(why) => assert_eq!(why, Errno::AGAIN),
            }
        }
        let mut bytes = Vec::new();
        to.append_to(0, 13, &mut bytes);
        assert_eq!(bytes, b"one two three");
        while unacknowledged(&a) > 0 {}
        assert!(health(&a).is_some_and(|h| !h.waits && h.silent < 10_000));
        finish(&a);
        while recv(&b, &[Piece::Own(&to, 0, 1)]) == Err(Errno::AGAIN) {}
        assert_eq!(recv(&b, &[Piece::Own(&to, 0, 1)]), Ok(0));
    }

    #[test]
    fn nobody_listens() {
        // Taken, so that no other test listens there meanwhile, and that the call does not leave from it.
        let taken = socket(&([127, 0, 0, 1], 0).into()).expect("socket");
        rustix::net::bind(&taken, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
        let port = own_address(&taken).expect("name").port();
        let refused = connect(([127, 0, 0, 1], port).into(), None, 0).and_then(|fd| {
            loop {
                if let done @ (Ok(true) | Err(_)) = connected(&fd) {
                    return done;
                }
            }
        });
        assert_eq!(refused, Err(Errno::CONNREFUSED));
    }

    /// What the kernel was told of connections, as it says itself.
    #[test]
    fn questions_to_a_silent_peer() {
        let (a, b) = pair();
        for fd in [&a, &b] {
            let seconds = [sockopt::tcp_keepidle(fd), sockopt::tcp_keepintvl(fd)].map(|d| d.expect("option").as_secs());
            assert_eq!((sockopt::socket_keepalive(fd), seconds), (Ok(true), KEEPALIVE));
            assert_eq!(sockopt::tcp_nodelay(fd), Ok(true));
        }
        // Milliseconds; seconds until the first question, how many there are, and at most how far apart they are while something waits.
        for (millis, idle, count, pause) in
            [(0, 1, 1, 1_000), (1_000, 1, 1, 1_000), (10_000, 3, 7, 3_333), (30_000, 3, 27, 10_000), (1_000_000, 3, 120, 120_000)]
        {
            set_patience(&a, millis).expect("options");
            let told = (sockopt::tcp_keepidle(&a).map(|d| d.as_secs()), sockopt::tcp_keepcnt(&a));
            assert_eq!(told, (Ok(idle), Ok(count)), "{millis} ms");
            let mut is: libc::c_int = 0;
            let mut len = size_of::<libc::c_int>() as libc::socklen_t;
            // SAFETY: the kernel writes an int.
            let known =
                unsafe { libc::getsockopt(a.as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, (&raw mut is).cast(), &mut len) };
            // The kernel counts ticks, of 10 ms at most.
            assert!(known != 0 || (pause..pause + 10).contains(&is), "{millis} ms: {is}");
        }
    }

    /// To any address of this host there is no network.
    #[test]
    fn connections_that_do_not_leave_the_host() {
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
        for i in crate::sys::interfaces::all() {
            let Ok(listener) = listen(scoped(i.ip, i.scope_id, 0)) else { continue };
            let a = connect(scoped(i.ip, i.scope_id, own_address(&listener).expect("name").port()), None, 0).expect("connect");
            while !connected(&a).expect("connecting") {}
            assert!(is_near(&a), "{}", i.ip);
            hurry(&a);
            if allowed.split_whitespace().any(|name| name == NEAR) {
                assert_eq!(sockopt::tcp_congestion(&a).as_deref(), Ok(NEAR), "{}", i.ip);
            }
        }
    }

    #[test]
    fn what_nobody_reads_is_not_acknowledged() {
        let (a, _b) = pair();
        while send_bytes(&a, &[1; 65536]).is_ok() {}
        assert!(unacknowledged(&a) > 0);
    }

    #[test]
    fn other_programs_inherit_no_connection() {
        let (a, b) = pair();
        let listener = listen(([127, 0, 0, 1], 0).into()).expect("listen");
        for fd in [&a, &b, &listener] {
            assert_eq!(rustix::io::fcntl_getfd(fd), Ok(rustix::io::FdFlags::CLOEXEC));
        }
    }
}
