//! Abstract unix sockets of type `SOCK_SEQPACKET` (unix(7)): message borders, credentials of the other side, descriptors in
//! flight, and an end-of-file however the other process ends. Everything is non-blocking and close-on-exec, and no forked child keeps it.
#![expect(unsafe_code)]
// UNSAFETY: reads what getsockopt(2) writes.

use super::inherited::let_go;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Descriptors that one message may carry.
pub const MAX_FDS: usize = 2;

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map(let_go)
}

/// Listens at an abstract name. `EADDRINUSE` if somebody else does.
pub fn listen(name: &str) -> Result<OwnedFd, Errno> {
    let fd = reserve(name)?;
    start(&fd)?;
    Ok(fd)
}

/// Takes an abstract name without listening yet: who connects is refused. `EADDRINUSE` if somebody else has it.
pub fn reserve(name: &str) -> Result<OwnedFd, Errno> {
    let fd = socket()?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(fd)
}

/// Listens at a name that was reserved.
pub fn start(fd: impl AsFd) -> Result<(), Errno> {
    // Capped by net.core.somaxconn; when it is full, connecting peers try again.
    rustix::net::listen(fd, 4096)
}

/// Connects to an abstract name. `EAGAIN`: the backlog is full, try again; `ECONNREFUSED`: nobody listens.
pub fn connect(name: &str) -> Result<OwnedFd, Errno> {
    let fd = socket()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(fd)
}

/// Takes the next connection, `EAGAIN` if there is none.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).map(let_go)
}

/// Who is at the other end, by the kernel's word (SO_PEERCRED).
#[derive(Clone, Copy, Debug)]
pub struct PeerCred {
    /// Process id, as seen from here; 0 if it lives in a namespace we cannot see.
    pub pid: i32,
    /// Whether it runs as our effective user.
    pub same_user: bool,
}

/// Credentials of the other end. (rustix takes it that there is a process id, and there is none of a process in another PID namespace than ours and those below.)
pub fn peer_cred(fd: impl AsFd) -> Result<PeerCred, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: a place of the size that is said, of numbers only, for what the kernel writes.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len) };
    if done != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(PeerCred { pid: cred.pid, same_user: cred.uid == rustix::process::geteuid().as_raw() })
}

/// Sends one message with descriptors.
pub fn send(fd: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let n = rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if n == bytes.len() { Ok(()) } else { Err(Errno::MSGSIZE) }
}

/// A received message.
pub struct Received {
    /// Its length; 0 is end-of-file.
    pub len: usize,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    /// Further ones did not fit into the table of this process.
    pub lost: bool,
}

/// Receives one message into `buf`; `EAGAIN` if there is none, `EMSGSIZE` if it is longer than `buf`.
pub fn recv(fd: impl AsFd, buf: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC)?;
    let fds = control
        .drain()
        .filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if got.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    let lost = got.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    Ok(Received { len: got.bytes, fds, lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_its_descriptor_outlive_the_sender() {
        let name = format!("rustmx-test/{:x}", crate::sys::host::random());
        assert_eq!(connect(&name).expect_err("nobody"), Errno::CONNREFUSED);
        let listener = listen(&name).expect("listen");
        assert_eq!(listen(&name).expect_err("taken"), Errno::ADDRINUSE);
        assert_eq!(accept(&listener).expect_err("nobody yet"), Errno::AGAIN);
        {
            let tx = connect(&name).expect("connect");
            assert!(peer_cred(&tx).expect("cred").same_user);
            let (memfd, _map) = crate::sys::memfd::create("t", 4096, true).expect("memfd");
            send(&tx, b"hello", &[memfd.as_fd()]).expect("send");
            send(&tx, &[1; 17], &[]).expect("send");
        }
        let rx = accept(&listener).expect("accept");
        let mut buf = [0; 16];
        let got = recv(&rx, &mut buf).expect("recv");
        assert_eq!((&buf[..got.len], got.fds.len()), (&b"hello"[..], 1));
        let flags = rustix::io::fcntl_getfd(&got.fds[0]).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "programs that are started do not get it");
        crate::sys::memfd::attach(&got.fds[0], 4096, false).expect("still there");
        assert_eq!(recv(&rx, &mut buf).map(|got| got.len).expect_err("too long"), Errno::MSGSIZE);
        assert_eq!(recv(&rx, &mut buf).expect("eof").len, 0);
    }
}
