//! Whether to send without a copy: what the next payload of a connection is to do, from what the last ones cost. Arithmetic only.
//!
//! A copy costs the sender's thread by the byte. Without one it pays for pinning pages and for the kernel's notices, and gets its memory back
//! later; whether that is less depends on the machine, the network card and the size, and where the kernel has to copy all the same (a
//! loopback interface, a veth pair, somebody who listens), it never is. So both ways are tried, few times and ever more seldom; the
//! notices say whether it copied.

use std::fmt;

/// Sizes that are told apart: from these bytes on.
const CLASSES: [usize; 3] = [LEAST, 128 << 10, 512 << 10];
/// Shorter payload is always copied: pinning some pages costs what copying them does.
pub(super) const LEAST: usize = 32 << 10;
/// Samples of each way: the middle one counts.
const SAMPLES: usize = 7;
/// Where copies are usual, each so many payloads are looked at; the others leave together.
const LOOK: u32 = 8;
/// Trials in a row of the way that is not used: as many as move the middle.
const BURST: u32 = 4;
/// Payloads between such trials: at least, and at most. In between the times grow, and trials may cost this part of the whole.
const EVERY: [u32; 2] = [64, 1 << 16];
const LOSS: f64 = 0.02;
/// What is without a copy must cost at most this part of what a copy does before it is used: the memory comes back later.
const WORTH: f64 = 0.9;
/// Trials that may be under way without an answer.
const UNANSWERED: u32 = 4;
/// Payloads that are copied after the kernel copied all the same or refused, before it is tried again: at first (then twice as many), and at most.
const PAUSE: [u64; 2] = [4096, 1 << 40];
/// As many refusals in a row are a reason to pause.
const REFUSALS: u32 = 3;

/// How a payload leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Way {
    /// The kernel copies it.
    Copied,
    /// The kernel reads it where it is.
    Lent,
}

/// Why the kernel did not take a payload without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refusal {
    /// More would be pinned or waited for than may be.
    Limits,
    /// The memory is of a kind that it cannot pin.
    Memory,
}

/// What is thought of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// Not enough is known.
    Trying,
    /// It is used for payload of some size.
    Pays,
    /// It costs more than a copy, for all sizes that were seen.
    Costs,
    /// The kernel copies all the same.
    Copies,
    /// The kernel refuses.
    Refused(Refusal),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Trying => "too few long messages were sent to know whether it pays",
            Verdict::Pays => "it takes less of the sender's time than a copy",
            Verdict::Costs => "it takes no less of the sender's time than a copy",
            Verdict::Copies => "the kernel copied all the same, as for interfaces without a network card behind them",
            Verdict::Refused(Refusal::Limits) => {
                "the kernel would not pin so much: raise the limit of locked memory (ulimit -l) or net.core.optmem_max"
            }
            Verdict::Refused(Refusal::Memory) => "the kernel cannot pin the memory that the messages are in",
        })
    }
}

/// The last costs of one way, in nanoseconds for a KiB; without a copy with what the notice took.
#[derive(Clone, Copy, Default)]
struct Samples {
    last: [f64; SAMPLES],
    count: usize,
}

impl Samples {
    fn add(&mut self, cost: f64) {
        self.last[self.count % SAMPLES] = cost;
        self.count += 1;
    }

    /// The middle one, once there are enough.
    fn cost(&self) -> Option<f64> {
        let mut sorted = self.last;
        sorted.sort_by(f64::total_cmp);
        (self.count >= SAMPLES).then_some(sorted[SAMPLES / 2])
    }
}

/// Payload of some sizes.
#[derive(Clone, Copy)]
struct Class {
    copied: Samples,
    lent: Samples,
    lends: bool,
    /// Payloads until the other way is tried, and trials that are left.
    until_trial: u32,
    trials: u32,
    every: u32,
}

impl Class {
    const NEW: Class = Class {
        copied: Samples { last: [0.0; SAMPLES], count: 0 },
        lent: Samples { last: [0.0; SAMPLES], count: 0 },
        lends: false,
        until_trial: EVERY[0],
        trials: 0,
        every: EVERY[0],
    };

    fn usual(&self) -> Way {
        if self.lends { Way::Lent } else { Way::Copied }
    }

    fn other(&self) -> Way {
        if self.lends { Way::Copied } else { Way::Lent }
    }

    fn is_new(&self) -> bool {
        self.lent.count < SAMPLES || self.copied.count < SAMPLES
    }

    fn considers(&mut self) -> bool {
        if self.is_new() || self.trials > 0 {
            return true;
        }
        self.until_trial = self.until_trial.saturating_sub(1);
        self.lends || self.until_trial.is_multiple_of(LOOK)
    }

    fn next(&mut self) -> Way {
        if self.is_new() {
            // Turn and turn about, so that both meet the same circumstances.
            return if self.copied.count <= self.lent.count { Way::Copied } else { Way::Lent };
        }
        if self.until_trial == 0 {
            self.trials = BURST;
            self.every = (self.every * 2).max(self.affordable()).min(EVERY[1]);
            self.until_trial = self.every;
        }
        if self.trials > 0 {
            self.trials -= 1;
            return self.other();
        }
        self.usual()
    }

    /// Payloads after which a few trials of the other way have cost no more than they may.
    fn affordable(&self) -> u32 {
        let Some([copied, lent]) = self.costs() else { return EVERY[0] };
        let (usual, other) = if self.lends { (lent, copied) } else { (copied, lent) };
        (f64::from(BURST) * (other / usual.max(1e-3) - 1.0) / LOSS) as u32
    }

    /// What both cost.
    fn costs(&self) -> Option<[f64; 2]> {
        Some([self.copied.cost()?, self.lent.cost()?])
    }

    fn decide(&mut self) {
        let Some([copied, lent]) = self.costs() else { return };
        let lends = lent < copied * if self.lends { 1.0 } else { WORTH };
        if lends != self.lends {
            // Soon looked at again: some bad moments of the other way may have been the reason.
            (self.lends, self.trials, self.every, self.until_trial) = (lends, 0, EVERY[0], EVERY[0]);
        }
    }
}

/// What is known of one connection.
pub(super) struct Choice {
    classes: [Class; CLASSES.len()],
    /// Bytes that notices were about, and those that were copied all the same; calls that they were about, and nanoseconds that it took to read them.
    /// Old ones fade.
    answered: f64,
    copied: f64,
    calls: f64,
    reading: f64,
    /// Payloads lent since the last notice.
    unanswered: u32,
    refusals: u32,
    /// Payloads to be copied before it is tried again, how many the next time, and why.
    pause: u64,
    next_pause: u64,
    why: Option<Verdict>,
}

impl Choice {
    pub fn new() -> Choice {
        Choice {
            classes: [Class::NEW; CLASSES.len()],
            answered: 0.0,
            copied: 0.0,
            calls: 0.0,
            reading: 0.0,
            unanswered: 0,
            refusals: 0,
            pause: 0,
            next_pause: PAUSE[0],
            why: None,
        }
    }

    /// Whether [`next`](Self::next) is to be asked about the next payload, of `len` bytes; else it is copied. Those it is asked about leave one by one.
    pub fn considers(&mut self, len: usize) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        self.class(len).is_some_and(Class::considers)
    }

    /// How that payload is to leave.
    pub fn next(&mut self, len: usize) -> Way {
        self.why = None;
        let Some(class) = self.class(len) else { return Way::Copied };
        let (new, way) = (class.is_new(), class.next());
        if way == Way::Lent {
            if new && self.unanswered >= UNANSWERED {
                return Way::Copied;
            }
            self.unanswered += 1;
        }
        way
    }

    /// A payload of `len` bytes took the sender `ns` nanoseconds.
    pub fn took(&mut self, way: Way, len: usize, ns: u64) {
        if self.pause > 0 {
            return;
        }
        let notice = if self.calls > 0.0 { self.reading / self.calls } else { 0.0 };
        let Some(class) = self.class(len) else { return };
        let kib = len as f64 / 1024.0;
        match way {
            Way::Copied => class.copied.add(ns as f64 / kib),
            Way::Lent => class.lent.add((ns as f64 + notice) / kib),
        }
        class.decide();
        if way == Way::Lent {
            self.refusals = 0;
        }
    }

    /// The kernel is through with `len` bytes of so many calls, `copied` of which it copied. To hear of it took `ns` nanoseconds.
    pub fn answered(&mut self, calls: usize, len: usize, copied: usize, ns: u64) {
        self.unanswered = 0;
        // Of the last 16 MiB or so half of the weight.
        if self.answered > (16 << 20) as f64 {
            for sum in [&mut self.answered, &mut self.copied, &mut self.calls, &mut self.reading] {
                *sum /= 2.0;
            }
        }
        self.answered += len as f64;
        self.copied += copied as f64;
        self.calls += calls as f64;
        self.reading += ns as f64;
        // A little may be for somebody who listened for a moment.
        if self.copied > self.answered / 2.0 && self.copied >= (2 * LEAST) as f64 {
            self.pause(Verdict::Copies);
        }
    }

    /// The kernel did not take it; it was copied.
    pub fn refused(&mut self, why: Refusal) {
        self.refusals += 1;
        if self.refusals >= REFUSALS {
            self.pause(Verdict::Refused(why));
        }
    }

    pub fn verdict(&self) -> Verdict {
        let known = self.classes.iter().any(|class| class.costs().is_some());
        match self.why {
            Some(why) => why,
            None if self.classes.iter().any(|class| class.lends) => Verdict::Pays,
            None if known => Verdict::Costs,
            None => Verdict::Trying,
        }
    }

    /// Nothing of what was found holds when it is tried again.
    fn pause(&mut self, why: Verdict) {
        if self.pause == 0 {
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(PAUSE[1]);
        }
        self.why = Some(why);
        self.classes = [Class::NEW; CLASSES.len()];
        (self.answered, self.copied, self.calls, self.reading) = (0.0, 0.0, 0.0, 0.0);
        (self.unanswered, self.refusals) = (0, 0);
    }

    fn class(&mut self, len: usize) -> Option<&mut Class> {
        let at = CLASSES.iter().rposition(|from| len >= *from)?;
        self.classes.get_mut(at)
    }
}

/// For each size that is known what a KiB takes, in nanoseconds.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verdict())?;
        for (class, from) in self.classes.iter().zip(CLASSES) {
            if let Some([copied, lent]) = class.costs() {
                write!(f, "; from {from} bytes on {lent:.0} ns a KiB without and {copied:.0} with")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A network as the sender's thread feels it: nanoseconds.
    #[derive(Clone, Copy, Debug)]
    struct Link {
        call: f64,
        copy_kib: f64,
        pin_kib: f64,
        notice: f64,
        copies: bool,
        /// Payloads after which a notice comes.
        late: usize,
    }

    impl Link {
        fn cost(&self, way: Way, len: usize) -> f64 {
            let kib = len as f64 / 1024.0;
            match way {
                Way::Copied => self.call + self.copy_kib * kib,
                Way::Lent if self.copies => 2.0 * self.call + (self.pin_kib + self.copy_kib) * kib,
                Way::Lent => 2.0 * self.call + self.pin_kib * kib,
            }
        }

        fn with_notice(&self, way: Way, len: usize) -> f64 {
            self.cost(way, len) + if way == Way::Lent { self.notice } else { 0.0 }
        }

        /// What the worse of both ways takes for the longest payload.
        fn worst(&self) -> f64 {
            self.with_notice(Way::Copied, 1 << 20).max(self.with_notice(Way::Lent, 1 << 20))
        }

        /// What the better of both ways takes.
        fn best(&self, len: usize) -> f64 {
            self.with_notice(Way::Copied, len).min(self.with_notice(Way::Lent, len))
        }
    }

    fn link() -> impl Strategy<Value = Link> {
        (200.0..3000.0f64, 10.0..300.0f64, 1.0..300.0f64, 0.0..5000.0f64, any::<bool>(), 0usize..40)
            .prop_map(|(call, copy_kib, pin_kib, notice, copies, late)| Link { call, copy_kib, pin_kib, notice, copies, late })
    }

    /// Random numbers from a seed (splitmix64).
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) % n
        }
    }

    /// A sender on a link that shakes by 20 %, and every fiftieth time takes 20 times as long.
    struct Sender {
        choice: Choice,
        chance: Chance,
        /// What was lent: when it is answered, its bytes, and whether they were copied.
        due: VecDeque<(usize, usize, bool)>,
        sent: usize,
        spent: f64,
        best: f64,
        lent: usize,
    }

    impl Sender {
        fn new(seed: u64) -> Sender {
            let (choice, chance) = (Choice::new(), Chance(seed));
            Sender { choice, chance, due: VecDeque::new(), sent: 0, spent: 0.0, best: 0.0, lent: 0 }
        }

        /// Sends `count` payloads of random sizes, and forgets what was spent before.
        fn send(&mut self, link: &Link, count: usize) {
            (self.spent, self.best, self.lent) = (0.0, 0.0, 0);
            for _ in 0..count {
                let len = [LEAST, 100_000, 128 << 10, 300_000, 1 << 20][self.chance.below(5) as usize];
                let considered = self.choice.considers(len);
                let way = if considered { self.choice.next(len) } else { Way::Copied };
                let shake = 0.8 + self.chance.below(401) as f64 / 1000.0;
                let spike = if self.sent % 50 == 7 { 20.0 } else { 1.0 };
                if considered {
                    self.choice.took(way, len, (link.cost(way, len) * shake * spike) as u64);
                }
                self.spent += link.with_notice(way, len);
                self.best += link.best(len);
                if way == Way::Lent {
                    self.lent += 1;
                    self.due.push_back((self.sent + link.late, len, link.copies));
                }
                self.sent += 1;
                while let Some((_, len, copied)) = self.due.pop_front_if(|(at, ..)| *at < self.sent) {
                    self.choice.answered(1, len, if copied { len } else { 0 }, link.notice as u64);
                }
            }
        }
    }

    proptest! {
        /// The better way is found soon, and little is lost meanwhile and ever after.
        #[test]
        fn the_cheaper_way_is_taken(link in link(), seed: u64) {
            let mut sender = Sender::new(seed);
            sender.send(&link, 2000);
            prop_assert!(sender.spent < 1.15 * sender.best + 40.0 * link.worst(), "{} of {}", sender.spent, sender.best);
            sender.send(&link, 10_000);
            prop_assert!(sender.spent < 1.2 * sender.best + 40.0 * link.worst(), "{link:?}: {} instead of {}, {}", sender.spent, sender.best, sender.choice);
        }

        /// Where the kernel copies, it is tried a few times and then hardly ever.
        #[test]
        fn a_kernel_that_copies_is_left_alone(link in link(), seed: u64) {
            let link = Link { copies: true, ..link };
            let mut sender = Sender::new(seed);
            sender.send(&link, 4000);
            prop_assert!(sender.lent <= 2 * UNANSWERED as usize + link.late, "{}", sender.lent);
            prop_assert_eq!(sender.choice.verdict(), Verdict::Copies);
            sender.send(&link, 100_000);
            prop_assert!(sender.lent < 6 * (2 * UNANSWERED as usize + link.late), "{}", sender.lent);
        }
    }

    const CARD: Link = Link { call: 1000.0, copy_kib: 100.0, pin_kib: 10.0, notice: 500.0, copies: false, late: 5 };

    #[test]
    fn a_network_card_pays() {
        let mut sender = Sender::new(7);
        sender.send(&CARD, 1000);
        assert_eq!(sender.choice.verdict(), Verdict::Pays);
        assert!(sender.lent > 850, "{} of 1000", sender.lent);
        let told = sender.choice.to_string();
        assert!(told.contains("less of the sender's time than a copy; from 32768 bytes on"), "{told}");
    }

    /// Circumstances change: a way that was good gets bad, and the other way round.
    #[test]
    fn it_changes_its_mind() {
        let dear = Link { pin_kib: 200.0, ..CARD };
        let mut sender = Sender::new(3);
        sender.send(&CARD, 3000);
        assert_eq!(sender.choice.verdict(), Verdict::Pays);
        sender.send(&dear, 500);
        assert_eq!(sender.choice.verdict(), Verdict::Costs, "at once: it is the way that is used");
        sender.send(&CARD, 3000);
        assert_eq!(sender.choice.verdict(), Verdict::Pays, "after some trials");
        // Somebody begins to listen on the interface, and ends.
        sender.send(&Link { copies: true, ..CARD }, 500);
        assert_eq!(sender.choice.verdict(), Verdict::Copies);
        sender.send(&CARD, 2 * PAUSE[0] as usize);
        assert_eq!(sender.choice.verdict(), Verdict::Pays);
    }

    #[test]
    fn what_is_refused_is_not_asked_for_again_and_again() {
        for why in [Refusal::Limits, Refusal::Memory] {
            let mut choice = Choice::new();
            let mut asked = 0;
            for _ in 0..4000 {
                if choice.considers(1 << 20) && choice.next(1 << 20) == Way::Lent {
                    asked += 1;
                    choice.refused(why);
                }
                choice.took(Way::Copied, 1 << 20, 1000);
            }
            assert_eq!((asked, choice.verdict()), (REFUSALS, Verdict::Refused(why)));
        }
    }

    #[test]
    fn short_payload_is_copied() {
        let mut choice = Choice::new();
        assert!((0..1000).all(|_| !choice.considers(LEAST - 1)));
        assert_eq!(choice.verdict(), Verdict::Trying);
    }
}
