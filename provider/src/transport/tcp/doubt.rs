//! Whether the host of a peer is still there, where the kernel asks too seldom.
//!
//! Who has no room is asked by the kernel whether that is still so, after pauses that double up to two minutes. Kernels from Linux 6.15 on can be told to
//! pause less (`sys::tcp::set_patience`); with older ones a host that is gone would be noticed as late as that. No option makes them ask sooner and
//! leaves a peer alone that answers and has no room (`TCP_USER_TIMEOUT` ends it). So its host is asked by us, by ICMP ([`Questions`]).
//!
//! An answer comes from the kernel, as one to TCP's own questions does. But there are firewalls that drop such questions, all of them or beyond some
//! rate, and users that may not ask. So silence means something only of a host that has answered reliably in this doubt before, after several questions, and if it neither takes
//! nor refuses a call either; what was not asked while this process computed is no silence. Where nothing is known the kernel's own questions decide, as late as they come.

use crate::sys::ping::Questions;
use crate::sys::{limits, tcp};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::SocketAddr;

/// Nanoseconds between questions.
const PAUSE: u64 = 1_000_000_000;
/// Answers that make a host one that answers.
const ANSWERS: u32 = 3;
/// Questions in a row without an answer that make it silent.
const UNANSWERED: u32 = 4;
/// Of so many questions that it was asked before, one may be lost.
const LOST: u32 = 10;

/// What is known of a host by asking it.
#[derive(Default)]
struct Record {
    /// When it was asked last.
    asked_at: u64,
    /// Nanoseconds from the last question that was answered to the last one.
    silent: u64,
    /// Questions since the last answer, and those before it.
    open: u32,
    asked: u32,
    answers: u32,
}

impl Record {
    /// Whether it is time for a question.
    fn is_due(&self, now: u64) -> bool {
        self.asked_at == 0 || now.saturating_sub(self.asked_at) >= PAUSE
    }

    fn asked(&mut self, now: u64) {
        self.silent += self.pause(now);
        self.asked_at = now.max(1);
        self.open += 1;
    }

    /// How much the time since the last question counts: who computes between two questions has not asked in the meantime.
    fn pause(&self, now: u64) -> u64 {
        if self.asked_at == 0 { 0 } else { now.saturating_sub(self.asked_at).min(2 * PAUSE) }
    }

    fn answered(&mut self, answers: u32) {
        if answers > 0 {
            self.answers += answers;
            self.asked += std::mem::take(&mut self.open);
            self.silent = 0;
        }
    }

    /// For how many milliseconds it has been silent, if that means something.
    fn silence(&self, now: u64) -> Option<u64> {
        let reliable = self.answers >= ANSWERS && self.asked.saturating_sub(self.answers) <= self.asked / LOST;
        (reliable && self.open >= UNANSWERED).then(|| (self.silent + self.pause(now)) / 1_000_000)
    }
}

/// Questions without an answer before the host is called, too, and nanoseconds that it has to take the call or refuse it.
const CALL_AFTER: u32 = 2;
const CALL: u64 = 2_000_000_000;

/// The doubt about one peer's host.
pub(super) struct Doubt {
    /// `None`: it cannot be asked.
    questions: Option<Questions>,
    record: Record,
    /// Where the peer's connection ends.
    there: Option<SocketAddr>,
    /// A call of that place, and since when.
    call: Option<(Option<OwnedFd>, u64)>,
}

impl Doubt {
    /// About the host at the other end of a connection.
    pub fn about(connection: &OwnedFd) -> Doubt {
        let there = tcp::peer_address(connection);
        // Descriptors are for peers first.
        let may = there.filter(|_| limits::has_plenty(connection));
        let questions = may.and_then(|host| Questions::to(host, tcp::own_address(connection).ok()).ok());
        Doubt { questions, record: Record::default(), there, call: None }
    }

    /// Hears, and asks if it is time. For how many milliseconds the host has been silent, if that means something.
    pub fn look(&mut self, now: u64) -> Option<u64> {
        let questions = self.questions.as_mut()?;
        let answers = questions.answers();
        self.record.answered(answers);
        if self.record.is_due(now) {
            match questions.ask() {
                // That nobody is there is heard with the next question.
                Ok(()) | Err(Errno::HOSTUNREACH | Errno::HOSTDOWN) => self.record.asked(now),
                // What could not leave is no question.
                Err(_) => {}
            }
        }
        if answers > 0 || self.record.open < CALL_AFTER {
            self.call = None;
            return None;
        }
        let called = self.call_takes(now)?;
        self.record.silence(now).filter(|_| called >= CALL)
    }

    /// A second opinion, for answers to questions may be rationed, and others ask, too: whoever is there takes a call or refuses it. For how many nanoseconds it has done neither; `None`: it
    /// did, and its silence meant nothing, or it cannot be called.
    fn call_takes(&mut self, now: u64) -> Option<u64> {
        let (fd, since) = self.call.take().unwrap_or((None, now));
        let nowhere = |why| matches!(why, Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN);
        let fd = match fd {
            Some(fd) => Some(fd),
            None => match tcp::connect(self.there?, None, 0) {
                Ok(fd) => Some(fd),
                Err(why) if nowhere(why) => None,
                Err(_) => return None,
            },
        };
        let fd = match fd {
            None => None,
            Some(fd) => match tcp::connected(&fd) {
                Ok(true) | Err(Errno::CONNREFUSED | Errno::CONNRESET) => {
                    self.record = Record::default();
                    return None;
                }
                Ok(false) => Some(fd),
                // The kernel tells an error once: the next look calls anew.
                Err(_) => None,
            },
        };
        self.call = Some((fd, since));
        Some(now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A host that answers what it is asked in these seconds, half a second later, and is looked at twice a second. When its silence reaches `limit` milliseconds.
    fn found_silent(answers: impl Fn(u64) -> bool, looks: impl Fn(u64) -> bool, limit: u64) -> Option<u64> {
        let mut record = Record::default();
        let mut coming = 0;
        for half in 2..240 {
            let now = half * SECOND / 2;
            if looks(half / 2) {
                record.answered(std::mem::take(&mut coming));
                if record.silence(now).is_some_and(|silence| silence >= limit) {
                    return Some(half / 2);
                }
                if record.is_due(now) {
                    record.asked(now);
                    coming += u32::from(answers(half / 2));
                }
            }
        }
        None
    }

    #[test]
    fn a_host_that_falls_silent_is_found_in_time() {
        for gone in [5, 30, 77] {
            let found = found_silent(|at| at < gone, |_| true, 8_000);
            // The last answer was to a question of the second before.
            assert_eq!(found, Some(gone - 1 + 8), "gone at {gone}");
        }
        // A short limit: some questions must be open all the same.
        assert_eq!(found_silent(|at| at < 30, |_| true, 1_000), Some(33));
    }

    #[test]
    fn one_that_answers_is_never_silent() {
        assert_eq!(found_silent(|_| true, |_| true, 1), None);
        // One question in twelve is lost.
        assert_eq!(found_silent(|at| at % 12 != 0, |_| true, 1_000), None);
    }

    #[test]
    fn who_never_answered_or_seldom_did_says_nothing_by_silence() {
        assert_eq!(found_silent(|_| false, |_| true, 1), None);
        assert_eq!(found_silent(|at| at < 3, |_| true, 1), None, "two answers");
        // A firewall lets a few of a minute through.
        assert_eq!(found_silent(|at| at % 7 == 0, |_| true, 4_000), None);
        assert_eq!(found_silent(|at| at % 4 != 0 && at < 40, |_| true, 4_000), None, "three of four is not reliable");
    }

    #[test]
    fn what_was_not_asked_is_no_silence() {
        // This process computes for a minute; the answer to its last question is there when it comes back, or was lost.
        assert_eq!(found_silent(|_| true, |at| !(20..80).contains(&at), 5_000), None);
        assert_eq!(found_silent(|at| at != 19, |at| !(20..80).contains(&at), 5_000), None);
        // It went in that minute: that is found as late after it as ever, but for what was asked before.
        let found = found_silent(|at| at < 19, |at| !(20..80).contains(&at), 8_000);
        assert_eq!(found, Some(80 + 8 - 3));
    }

    /// Whoever listens takes a call, or his host refuses it: then silence was none.
    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn who_takes_or_refuses_a_call_is_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("address");
        let silent = || Record { asked_at: SECOND, silent: 60 * SECOND, open: 60, asked: 10, answers: 10 };
        let doubt = || Doubt { questions: None, record: silent(), there: Some(there), call: None };
        let mut taken = doubt();
        assert!(taken.record.silence(2 * SECOND).is_some());
        while taken.call_takes(2 * SECOND).is_some() {}
        assert!(taken.record.silence(2 * SECOND).is_none() && taken.call.is_none());
        drop(listener);
        let mut refused = doubt();
        while refused.call_takes(2 * SECOND).is_some() {}
        assert!(refused.record.silence(2 * SECOND).is_none());
        // Where nobody can be called nothing is proved.
        let mut nowhere = Doubt { there: None, ..doubt() };
        assert_eq!((nowhere.call_takes(2 * SECOND), nowhere.look(2 * SECOND)), (None, None));
    }
}
