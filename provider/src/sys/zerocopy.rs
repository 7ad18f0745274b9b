//! Sending out of the application's memory without a copy by the kernel (`MSG_ZEROCOPY`, Documentation/networking/msg_zerocopy.rst).
//!
//! The kernel keeps the pages of what it takes until the other side's kernel has acknowledged it, and then says so: on the socket's error
//! queue, where each call that took something has a number, counted from 0 in 32 bits. Until then the bytes must stay as they are: what the
//! application changes would leave changed, also when it is sent again.
#![expect(unsafe_code)]
// UNSAFETY: reads what recvmsg(2) and uname(2) write; hands options and an address to setsockopt(2) and connect(2).

use super::tcp::{self, Piece};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::OnceLock;

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of linux/errqueue.h.
const ORIGIN: u8 = 5;
const COPIED: u8 = 1;

/// The first Linux on which a page that the kernel reads for us stays as it is although a child (fork(2)) writes to its own copy: before, the
/// child was given the page itself if the parent had left it (CVE-2020-29374).
const SOUND: (u32, u32) = (5, 9);

/// What the kernel says of calls that it is through with: the memory is the application's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The first of these calls, and the last one.
    pub calls: [u32; 2],
    /// It copied what they sent all the same.
    pub copied: bool,
}

/// The numbers at the beginning of a release, such as 6.18 of `6.18.44-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The version of this kernel.
pub(super) fn kernel() -> Option<(u32, u32)> {
    static KERNEL: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *KERNEL.get_or_init(|| {
        // SAFETY: all zeros is a value of this struct of bytes.
        let mut name: libc::utsname = unsafe { core::mem::zeroed() };
        // SAFETY: the kernel writes `name`, which lives to the end of the call.
        let done = unsafe { libc::uname(&raw mut name) };
        let release: Vec<u8> = name.release.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
        if done == 0 { version(&String::from_utf8_lossy(&release)) } else { None }
    })
}

/// Whether this kernel keeps the pages as they are whoever forks.
pub fn is_sound() -> bool {
    kernel().is_some_and(|version| version >= SOUND)
}

/// Makes [`send`] possible on a TCP socket.
///
/// # Errors
/// `EOPNOTSUPP`: not with this kernel; what setsockopt(2) says.
pub fn allow(fd: &OwnedFd) -> Result<(), Errno> {
    if !is_sound() {
        return Err(Errno::OPNOTSUPP);
    }
    let (on, len): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel reads an int.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), len) };
    if done == 0 { Ok(()) } else { Err(last()) }
}

/// As [`tcp::send`], without a copy where the kernel can. A call that takes something has the next number; one that fails has none.
///
/// # Errors
/// `ENOBUFS`: more would be pinned, or waited for, than this user or socket may have; `EFAULT`: it is memory that cannot be pinned, or none.
pub fn send(fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
    tcp::send_with(fd, pieces, libc::MSG_ZEROCOPY)
}

/// As [`tcp::send`], when more follows at once that belongs into the same packets.
///
/// # Errors
/// As there.
pub fn send_before(fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
    tcp::send_with(fd, pieces, libc::MSG_MORE)
}

/// Takes all that the kernel has to say on calls that it is through with. Something else on the queue is thrown away.
pub fn notices(fd: &OwnedFd, mut each: impl FnMut(Notice)) {
    while let Ok(notice) = next(fd) {
        notice.into_iter().for_each(&mut each);
    }
}

/// Room for one control message: a `sock_extended_err` and an IPv6 address behind it, aligned for a header.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// The next entry of the error queue: of a socket for IPv6 also if it carries IPv4.
fn next(fd: &OwnedFd) -> Result<Option<Notice>, Errno> {
    let mut control = Control([0; 128]);
    // SAFETY: a msghdr of zeros is one without name, data and flags.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: `message` names `control`, which lives to the end of this function, and no other memory.
    let done = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if done < 0 {
        return Err(last());
    }
    // SAFETY: the kernel has set `msg_controllen` to what it wrote of `control`; the first header, if there is one, lies inside.
    let Some(header) = (unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }) else { return Ok(None) };
    let ours =
        matches!((header.cmsg_level, header.cmsg_type), (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR));
    // SAFETY: makes a length of a length.
    let whole = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) };
    if !ours || header.cmsg_len < whole as _ {
        return Ok(None);
    }
    // SAFETY: the kernel wrote a header of this kind, and behind it at least as many bytes as the struct of integers has.
    let said = unsafe { libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned() };
    let notice = Notice { calls: [said.ee_info, said.ee_data], copied: said.ee_code & COPIED != 0 };
    Ok((said.ee_origin == ORIGIN && said.ee_errno == 0).then_some(notice))
}

/// Breaks a connection off: the other side gets a reset, and what has not left leaves no more. The socket stays open and has the last notices.
pub fn break_off(fd: &OwnedFd) {
    // SAFETY: all zeros is a value of this struct of integers.
    let mut nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
    nobody.sa_family = libc::AF_UNSPEC as _;
    // SAFETY: the kernel reads `nobody`, whose size it is told.
    let _ = unsafe { libc::connect(fd.as_raw_fd(), &raw const nobody, size_of_val(&nobody) as libc::socklen_t) };
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::user::UserSeg;

    #[test]
    fn releases() {
        assert_eq!([version("6.18.44-fc"), version("5.8"), version("5.10-rc1")], [Some((6, 18)), Some((5, 8)), Some((5, 10))]);
        assert_eq!([version(""), version("6"), version("x.1")], [None; 3]);
        let sound = [(4, 19), (5, 8), (5, 9), (5, 10), (6, 0)].map(|version| version >= SOUND);
        assert_eq!(sound, [false, false, true, true, true]);
    }

    /// By IPv4, by IPv4 on a socket for IPv6, and by IPv6: each call is answered once, the last ones when the connection is broken off.
    #[test]
    fn every_call_is_answered() {
        for at in ["127.0.0.1:0", "[::ffff:127.0.0.1]:0", "[::1]:0"] {
            let Ok(listener) = tcp::listen(at.parse().expect("address")) else { continue };
            let a = tcp::connect(tcp::own_address(&listener).expect("name"), None, 0).expect("connect");
            while !tcp::connected(&a).expect("connecting") {}
            let b = tcp::accept(&listener).expect("accept").0;
            if allow(&a).is_err() {
                return;
            }
            let mut bytes = vec![7u8; 300_000];
            // SAFETY: the memory outlives the calls, and what the kernel keeps of it: it is answered below.
            let seg = unsafe { UserSeg::new(bytes.as_mut_ptr(), bytes.len()) };
            let mut sent = 0;
            loop {
                match send(&a, &[Piece::User(seg)]) {
                    Ok(_) => sent += 1,
                    Err(why) => break assert!(matches!(why, Errno::AGAIN | Errno::NOBUFS), "{why}"),
                }
            }
            let mut answered = vec![0; sent];
            break_off(&a);
            while answered.contains(&0) {
                notices(&a, |n| (n.calls[0]..=n.calls[1]).for_each(|call| answered[call as usize] += 1));
            }
            assert!(sent > 0 && answered.iter().all(|n| *n == 1), "{at}: {answered:?}");
            // The other side reads what it has, and then that it was broken off.
            let mut got = [0; 4096];
            while matches!(tcp::recv_bytes(&b, &mut got), Ok(1..) | Err(Errno::AGAIN)) {}
        }
    }
}
