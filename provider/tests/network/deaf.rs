//! A listener that hears nothing: what comes for it is dropped (a socket filter, which rustix does not have).

use crate::common::Node;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::net::SocketAddr;

/// The listener at a port of this process.
fn listener(port: u16) -> BorrowedFd<'static> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let numbers = fds.filter_map(|f| f.file_name().to_string_lossy().parse().ok());
    let mut found = numbers.filter_map(|number| {
        // SAFETY: other tests of this process may close it meanwhile, and another may get its number: then these calls fail, and nothing is closed.
        #[expect(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let near = rustix::net::getsockname(fd).ok().and_then(|a| SocketAddr::try_from(a).ok())?;
        (near.port() == port && rustix::net::sockopt::socket_acceptconn(fd).ok()?).then_some(fd)
    });
    found.next().expect("a listener")
}

/// Whoever calls `node` gets no answer, as if his packets were lost; or gets one again.
pub fn deaf(node: &Node, on: bool) {
    let nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let mut code = [nothing];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    let (option, fd) = (if on { libc::SO_ATTACH_FILTER } else { libc::SO_DETACH_FILTER }, listener(node.name().port()));
    // SAFETY: the kernel copies the program, which is there, and of as many instructions as it says.
    #[expect(unsafe_code)]
    let done = unsafe {
        let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), len)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
