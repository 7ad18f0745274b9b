//! One `epoll(7)` instance: which descriptors have something to say.

use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Watches descriptors for input and for the end of the other side. Level-triggered.
#[derive(Debug)]
pub struct Poller {
    fd: OwnedFd,
}

impl Poller {
    /// An empty set.
    pub fn new() -> Result<Poller, Errno> {
        Ok(Poller { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches `fd`; events carry `token`.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
    }

    /// Watches `fd` for output that is possible, too: until it is [retagged](Self::retag) it counts as ready while it takes some.
    pub fn add_with_output(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::OUT;
        epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Watches `fd` for edges: each time that input comes in, not as long as some is there.
    pub fn add_edge(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Gives the watched `fd` another token.
    pub fn retag(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
    }

    /// Whether the watched `fd` counts as ready, too, while it takes output.
    pub fn watch_output(&self, fd: impl AsFd, token: u64, on: bool) {
        let output = if on { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | output;
        let _ = epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), flags);
    }

    /// Stops watching `fd`, which stays open.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.fd, fd);
    }

    /// The tokens of descriptors that are ready now; never waits.
    pub fn ready(&self, tokens: &mut Vec<u64>) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 64];
        tokens.clear();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((events, _)) = epoll::wait(&self.fd, &mut events, Some(&zero)) {
            tokens.extend(events.iter().map(|e| e.data.u64()));
        }
    }

    /// Sleeps until a descriptor is ready, a signal is handled, or `limit` has passed (`None`: for ever). Edges are taken.
    /// Whether a descriptor was ready.
    pub fn sleep(&self, limit: Option<Duration>) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
        let limit =
            limit.map(|d| Timespec { tv_sec: d.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() });
        epoll::wait(&self.fd, &mut events, limit.as_ref()).is_ok_and(|(events, _)| !events.is_empty())
    }
}

/// Readable while a watched descriptor is ready.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None).expect("sockets")
    }

    fn ready(poller: &Poller) -> Vec<u64> {
        let mut tokens = vec![77];
        poller.ready(&mut tokens);
        tokens
    }

    #[test]
    fn input_and_ends_are_seen_for_as_long_as_they_are_there() {
        let (poller, (a, b)) = (Poller::new().expect("poller"), pair());
        poller.add(&a, 5).expect("added");
        assert_eq!(poller.add(&a, 6), Err(Errno::EXIST));
        assert!(ready(&poller).is_empty() && !poller.sleep(Some(Duration::ZERO)));
        rustix::io::write(&b, b"x").expect("written");
        assert_eq!((ready(&poller), ready(&poller)), (vec![5], vec![5]));
        assert!(poller.sleep(None));
        poller.retag(&a, 6).expect("retagged");
        assert_eq!(ready(&poller), [6]);
        rustix::io::read(&a, &mut [0u8; 1][..]).expect("read");
        assert!(ready(&poller).is_empty());
        poller.watch_output(&a, 7, true);
        assert_eq!(ready(&poller), [7], "there is room");
        poller.watch_output(&a, 7, false);
        assert!(ready(&poller).is_empty(), "room is of no interest any more");
        rustix::net::shutdown(&b, rustix::net::Shutdown::Write).expect("shut");
        assert_eq!(ready(&poller), [7], "the end of what the other side says");
        poller.remove(&a);
        assert!(ready(&poller).is_empty());
    }

    #[test]
    fn an_edge_is_seen_once() {
        let (poller, (a, b)) = (Poller::new().expect("poller"), pair());
        poller.add_edge(&a, 1).expect("added");
        for _ in 0..2 {
            rustix::io::write(&b, b"x").expect("written");
            assert_eq!((ready(&poller), ready(&poller)), (vec![1], vec![]));
        }
    }
}
