//! What threads sleep on until something happens in a domain.
//!
//! A [`Waiter`] is one descriptor, an epoll(7) instance over two things: the *door*, readable while a socket of the domain's
//! endpoints has something to say (a peer that wakes us, calls, or is gone), and the *news*, an event that is raised
//! when another thread of this process does what a sleeper may wait for. News are edges: each waiter takes its own, so that no
//! sleeper can take the wake-up of another.

use crate::error::{Error, Result};
use crate::sys::event::EventFd;
use crate::sys::poller::Poller;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const NEWS: u64 = 0;
const DOOR: u64 = 1;

/// The event of a domain. It has a descriptor only once somebody waits.
#[derive(Debug, Default)]
pub struct News(OnceLock<EventFd>);

impl News {
    /// Wakes everybody who sleeps on the domain.
    pub fn raise(&self) {
        if let Some(event) = self.0.get() {
            event.raise();
        }
    }

    fn event(&self) -> Result<&EventFd> {
        if self.0.get().is_none() {
            let event = EventFd::new().map_err(|_| Error::NoResources)?;
            let _ = self.0.set(event);
        }
        self.0.get().ok_or(Error::NoResources)
    }
}

/// What one queue, counter or thread sleeps on.
#[derive(Debug)]
pub struct Waiter {
    poller: Poller,
    news: Arc<News>,
}

impl Waiter {
    /// Over `news` and `door`.
    ///
    /// # Errors
    /// [`Error::NoResources`] without descriptors.
    pub fn new(news: &Arc<News>, door: impl AsFd) -> Result<Waiter> {
        let poller = Poller::new().map_err(|_| Error::NoResources)?;
        poller.add_edge(news.event()?, NEWS).map_err(|_| Error::NoResources)?;
        poller.add(door, DOOR).map_err(|_| Error::NoResources)?;
        Ok(Waiter { poller, news: news.clone() })
    }

    /// Sleeps until something happens, at most `limit` (`None`: for ever). It may wake for nothing.
    pub fn sleep(&self, limit: Option<Duration>) {
        self.poller.sleep(limit);
    }

    /// Forgets the news up to now: whoever calls this looks afterwards at what it waits for.
    pub fn settle(&self) {
        self.poller.sleep(Some(Duration::ZERO));
    }

    /// Wakes everybody who sleeps on the domain.
    pub fn wake_all(&self) {
        self.news.raise();
    }
}

/// Readable when it is time to look (poll(2), epoll(7)).
impl AsFd for Waiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it sleeps through.
    fn sleeps(w: &Waiter) -> bool {
        !w.poller.sleep(Some(Duration::from_millis(20)))
    }

    #[test]
    fn every_waiter_gets_the_news_once() {
        let (news, door) = (Arc::new(News::default()), Poller::new().expect("door"));
        news.raise();
        let waiters = [0; 2].map(|_| Waiter::new(&news, &door).expect("waiter"));
        for w in &waiters {
            w.settle();
            assert!(sleeps(w));
        }
        news.raise();
        for w in &waiters {
            assert!(!sleeps(w), "one took the news of the other");
            assert!(sleeps(w));
        }
        let event = EventFd::new().expect("event");
        door.add(&event, 7).expect("add");
        event.raise();
        for w in &waiters {
            assert!(!sleeps(w) && !sleeps(w), "the door stays open");
        }
        event.lower();
        assert!(sleeps(&waiters[0]));
    }
}
