//! Whether whoever sends something will send more at once (`docs/adr/0019-tcp.md`, "Messages leave together").
//!
//! The first message after a turn leaves at once: nobody knows whether there will be a second one. Of a program that sends a window of messages between its turns each time that is a
//! system call, and an acknowledgement of the other side's kernel, for one message. So where it went like that again and again the first one is *held*, too, and
//! leaves with those behind it.
//!
//! That is a guess, and a wrong one makes a message late: by as long as it takes the program to send another one or to take a turn, at most by the
//! milliseconds after which somebody takes a turn for it (`sys/absence.rs`). So it is made only after several bursts in a row of which not only the number was right, but in which the second message came *soon* after the first: an answer
//! that is followed by the next window later, when receives have been posted, is none's first. And what a wrong one costs is paid seldom: each doubles how many it takes.

/// Messages behind the first one that make a burst.
const MANY: u64 = 7;
/// Bursts in a row before time is taken: what does not come in bursts is spared the clock.
const TIMED: u32 = 4;
/// Bursts in a row, in time, before one is held: at first, and at most.
const NEEDED: [u32; 2] = [4, 1 << 12];
/// Bursts that were rightly held, in a row, after which an earlier mistake is forgotten.
const FORGIVEN: u32 = 256;
/// Nanoseconds between the first message and the second one: half of what a system call that sends takes. Later than that a message is not to wait for another.
const SOON: u64 = 1000;

/// What of one connection's sending is known.
pub(super) struct Bursts {
    /// Bursts up to now, one behind the other.
    streak: u32,
    needed: u32,
    /// Whether the time from the first message to the second one is to be known.
    timed: bool,
    /// When the first one was written, until there is a second one.
    began: Option<u64>,
    /// Whether the second one was not soon, and whether it was.
    late: bool,
    soon: bool,
    /// The first one was held, whether or not it has left since.
    guessed: bool,
    /// Right guesses in a row.
    right: u32,
    /// It is still here.
    held: bool,
}

impl Bursts {
    pub fn new() -> Bursts {
        Bursts {
            streak: 0,
            needed: NEEDED[0],
            timed: false,
            began: None,
            late: false,
            soon: false,
            guessed: false,
            right: 0,
            held: false,
        }
    }

    /// The first message since a turn; `behind`: how many followed the first one of the turn before in which there was any; `short`: it is all in the ring.
    /// Whether it is held.
    pub fn begin(&mut self, behind: u64, short: bool) -> bool {
        self.judge(behind >= MANY && !self.late);
        (self.late, self.soon, self.began) = (false, false, None);
        self.timed = short && self.streak >= TIMED;
        self.guessed = self.timed && self.streak >= TIMED + self.needed;
        self.held = self.guessed;
        self.held
    }

    /// That has been sent, if it was to be: the program goes on.
    pub fn begun(&mut self, now: impl FnOnce() -> u64) {
        self.began = std::mem::take(&mut self.timed).then(now);
    }

    fn judge(&mut self, burst: bool) {
        if burst {
            // Of which no time was taken, for there was payload, no more than so many count.
            let most = if self.soon { u32::MAX } else { TIMED };
            self.streak = self.streak.saturating_add(1).min(most);
            self.right += u32::from(self.guessed);
            if self.right == FORGIVEN {
                (self.right, self.needed) = (0, NEEDED[0]);
            }
        } else {
            self.streak = 0;
            if self.guessed {
                (self.right, self.needed) = (0, (2 * self.needed).min(NEEDED[1]));
            }
        }
    }

    /// Another message in the same turn; `short`: it is all in the ring. Whether what is held leaves now.
    pub fn goes_on(&mut self, short: bool, now: impl FnOnce() -> u64) -> bool {
        if let Some(began) = self.began.take() {
            self.late = !short || now().saturating_sub(began) > SOON;
            self.soon = !self.late;
        }
        self.held && (self.late || !short)
    }

    /// Everything that was here leaves.
    #[inline]
    pub fn left(&mut self) {
        self.held = false;
    }

    /// The first message leaves at once for another reason: nothing was guessed.
    pub fn withdraw(&mut self) {
        self.guessed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Turns of which each has so many messages, the second one so long after the first. Of each whether the first one was held.
    fn held(bursts: &mut Bursts, turns: &[(u64, u64)]) -> Vec<bool> {
        let mut last = 0;
        let turn = |&(messages, gap): &(u64, u64)| {
            let held = bursts.begin(std::mem::replace(&mut last, messages - 1), true);
            bursts.begun(|| 5000);
            let sent = messages > 1 && bursts.goes_on(true, || 5000 + gap);
            assert_eq!(sent, held && messages > 1 && gap > SOON, "what is held leaves as soon as it is late");
            held
        };
        turns.iter().map(turn).collect()
    }

    #[test]
    fn bursts_are_held_after_some_in_time() {
        let needed = (TIMED + NEEDED[0]) as usize;
        let was = held(&mut Bursts::new(), &[(64, 100); 100]);
        assert!(!was[..=needed - 1].contains(&true) && was[needed..].iter().all(|held| *held), "{was:?}");
    }

    #[test]
    fn what_is_no_burst_is_never_held_and_not_timed() {
        let mut bursts = Bursts::new();
        for _ in 0..1000 {
            assert!(!bursts.begin(MANY - 1, true));
            bursts.begun(|| panic!("the clock is read for what is no burst"));
        }
        // An answer, and the next window when the receives are posted.
        assert!(!held(&mut Bursts::new(), &[(64, SOON + 1); 1000]).contains(&true));
        // Long messages.
        let mut bursts = Bursts::new();
        for _ in 0..1000 {
            assert!(!bursts.begin(63, false));
            bursts.begun(|| panic!("payload is not held"));
        }
        assert!(!bursts.begin(63, true), "nor what follows it, of which no time was taken yet");
    }

    #[test]
    fn payload_behind_what_is_held_takes_it_along() {
        let mut bursts = Bursts::new();
        assert!(held(&mut bursts, &[(64, 100); 20])[19]);
        assert!(bursts.begin(63, true));
        bursts.begun(|| 0);
        assert!(!bursts.goes_on(true, || 1) && bursts.goes_on(false, || 2));
        bursts.left();
        assert!(!bursts.goes_on(false, || 3), "nothing is held any more");
    }

    /// A program that does what is worst: as soon as its message is held it sends no other.
    #[test]
    fn who_is_guessed_wrongly_again_and_again_is_left_alone() {
        let (mut bursts, mut last, mut wrong) = (Bursts::new(), 0, 0);
        for _ in 0..1 << 16 {
            let held = bursts.begin(last, true);
            bursts.begun(|| 0);
            wrong += u32::from(held);
            last = if held { 0 } else { MANY };
            bursts.goes_on(true, || 1);
        }
        assert!((10..=30).contains(&wrong), "{wrong} of 65536 late");
    }

    /// Many right guesses make up for a wrong one, fewer do not.
    #[test]
    fn a_mistake_is_forgiven_after_a_while() {
        // Bursts until one is held again.
        let again = |rights: u32| {
            let mut bursts = Bursts::new();
            held(&mut bursts, &vec![(64, 100); (TIMED + NEEDED[0] + 10) as usize]);
            held(&mut bursts, &[(1, 0); 3]);
            held(&mut bursts, &vec![(64, 100); (TIMED + 2 * NEEDED[0] + rights) as usize]);
            held(&mut bursts, &[(1, 0)]);
            held(&mut bursts, &[(64, 100); 1000]).iter().position(|held| *held)
        };
        assert!(again(FORGIVEN / 2) > again(FORGIVEN + 1), "{:?} {:?}", again(FORGIVEN / 2), again(FORGIVEN + 1));
    }

    proptest! {
        /// One is held only after as many bursts in time as it takes, each of them the last ones.
        #[test]
        fn nothing_is_held_without_reason(turns in prop::collection::vec((1u64..12, 800u64..1100), 1..400)) {
            let was = held(&mut Bursts::new(), &turns);
            for (at, _) in was.iter().enumerate().filter(|(_, held)| **held) {
                let needed = (TIMED + NEEDED[0]) as usize;
                prop_assert!(at >= needed);
                let before = &turns[at - needed..at];
                prop_assert!(before.iter().all(|(messages, _)| *messages > MANY), "{before:?}");
                // The first of them were not timed, or not needed in time.
                prop_assert!(before[TIMED as usize + 1..].iter().all(|(_, gap)| *gap <= SOON), "{before:?}");
            }
        }
    }
}
