//! How payload leaves: what the next one of a connection is to do, from what the last ones cost. Arithmetic only.
//!
//! A copy costs the sender's thread by the byte. Without one it pays for holding pages and for the kernel's notices, and gets its memory back
//! later; out of a registered buffer it pays for the notices only, and for registering, once. What is least depends on the machine, the network card and
//! the size; and where the kernel has to copy all the same (a loopback interface, a veth pair, somebody who listens), it is always the copy. So all
//! ways are tried, few times and ever more seldom; the notices say whether it copied. What other connections of the same link found is taken for what was seen here
//! ([`Choice::from_others`]), until this connection has as many samples of its own.

use super::samples::Samples;
use crate::transport::tcp::lessons::{self, By, Copies};
use std::fmt;

/// Sizes that are told apart: from these bytes on. Fine ones: what a call costs beside its bytes is spread over few or many, and within a class a KiB should
/// cost much the same, else some samples say more of their sizes than of the way.
pub(in super::super) const CLASSES: [usize; 6] = [LEAST, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Shorter payload is always copied: pinning some pages costs what copying them does.
pub(super) const LEAST: usize = 32 << 10;
/// Shorter payload is copied inside a host: to send its pages, and to say that they were read, takes two system calls more for each, where copies leave together.
pub(super) const LEAST_OF_PAGES: usize = 128 << 10;
/// Where copies are usual, each so many payloads are looked at; the others leave together.
const LOOK: u32 = 8;
/// Trials in a row of a way that is not used: as many as show that it became better, though one of them meets a bad moment.
const BURST: u32 = super::samples::COUNTS as u32 + 2;
/// Payloads that may be passed over in such a row, because the way cannot be used for them, or is used for them anyway.
const PASSED: u32 = 8 * BURST;
/// Payloads between such trials: at least, and at most. In between the times grow, and trials of one way may cost this part of the whole.
const EVERY: [u32; 2] = [64, 1 << 16];
const LOSS: f64 = 0.01;
/// What is without a copy must cost at most this part of what is used before it is used instead: the memory comes back later.
const WORTH: f64 = 0.9;
/// Trials of one way that may be under way without an answer.
const UNANSWERED: u32 = 4;
/// Payloads that are looked at, one after the other, until one lies in a registered buffer; then only now and then.
const HOPE: u32 = 64;
/// What a buffer is registered for serves so many payloads, until it is known better.
const SERVES: f64 = 8.0;
/// Payloads that leave otherwise after the kernel copied all the same or refused, before it is tried again: at first (then twice as many), and at most.
const PAUSE: [u64; 2] = [4096, 1 << 40];
/// As many refusals in a row are a reason to pause.
const REFUSALS: u32 = 3;

/// How a payload leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Way {
    /// The kernel copies it.
    Copied,
    /// It is read where it is: by the kernel (`MSG_ZEROCOPY`), or inside a host by the receiver (pages).
    Lent,
    /// The same, out of a buffer that it has pinned before (`IORING_OP_SEND_ZC`).
    Registered,
}

const WAYS: [Way; lessons::WAYS] = [Way::Copied, Way::Lent, Way::Registered];

/// What is known of each way.
#[derive(Clone, Copy, Default)]
struct Each<T>([T; WAYS.len()]);

impl<T> std::ops::Index<Way> for Each<T> {
    type Output = T;
    fn index(&self, way: Way) -> &T {
        &self.0[way as usize]
    }
}

impl<T> std::ops::IndexMut<Way> for Each<T> {
    fn index_mut(&mut self, way: Way) -> &mut T {
        &mut self.0[way as usize]
    }
}

/// Why the kernel did not take a payload without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refusal {
    /// More would be pinned or waited for than may be.
    Limits,
    /// The memory is of a kind that it cannot pin.
    Memory,
}

/// What is thought of a way without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// Not enough is known.
    Trying,
    /// It is used for payload of some size.
    Pays,
    /// It costs more than another way, for all sizes that were seen.
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
            Verdict::Costs => "it takes no less of the sender's time than a copy, or than another way without one",
            Verdict::Copies => "the kernel copied all the same, as for interfaces without a network card behind them",
            Verdict::Refused(Refusal::Limits) => {
                "the kernel would not pin so much: raise the limit of locked memory (ulimit -l) or net.core.optmem_max"
            }
            Verdict::Refused(Refusal::Memory) => "the kernel cannot pin the memory that the messages are in",
        })
    }
}

/// One way for payload of some sizes.
#[derive(Clone, Copy)]
struct Tried {
    samples: Samples,
    /// While it is not used: payloads until it is tried, trials that are left, payloads that may still be passed over meanwhile, and payloads between trials.
    until: u32,
    trials: u32,
    passes: u32,
    every: u32,
}

impl Default for Tried {
    fn default() -> Tried {
        Tried { samples: Samples::default(), until: EVERY[0], trials: 0, passes: 0, every: EVERY[0] }
    }
}

/// Payload of some sizes.
#[derive(Clone, Copy)]
struct Class {
    ways: Each<Tried>,
    /// What is used for payload that lies in no registered buffer, and for such that does.
    usual: [Way; 2],
    hope: u32,
}

impl Class {
    fn new() -> Class {
        Class { ways: Each::default(), usual: [Way::Copied; 2], hope: HOPE }
    }

    fn lacks(&self, way: Way) -> bool {
        !self.ways[way].samples.are_enough()
    }

    fn considers(&mut self, open: &Each<bool>) -> bool {
        let hopes = |way| way != Way::Registered || self.hope > 0;
        let mut others = WAYS.into_iter().filter(|way| open[*way]);
        if others.any(|way| self.lacks(way) && hopes(way) || self.ways[way].trials > 0) {
            return true;
        }
        let mut next = u32::MAX;
        for way in WAYS.into_iter().filter(|way| open[*way] && self.usual != [*way; 2]) {
            let until = &mut self.ways[way].until;
            *until = until.saturating_sub(1);
            next = next.min(*until);
        }
        self.usual != [Way::Copied; 2] || next.is_multiple_of(LOOK)
    }

    /// `open`: what may be used at all; `held`: the payload lies in a registered buffer, or may. Also whether that way is not known yet.
    fn next(&mut self, open: &Each<bool>, held: bool) -> (Way, bool) {
        let may = |way: Way| open[way] && (way != Way::Registered || held);
        if self.lacks(Way::Registered) && open[Way::Registered] {
            self.hope = if held { HOPE } else { self.hope.saturating_sub(1) };
        }
        // Turn and turn about, so that all meet the same circumstances.
        let new = WAYS.into_iter().filter(|way| may(*way) && self.lacks(*way)).min_by_key(|way| self.ways[*way].samples.count);
        if let Some(way) = new {
            return (way, true);
        }
        let usual = self.usual[usize::from(may(Way::Registered))];
        let usual = if may(usual) { usual } else { Way::Copied };
        let mut trial = None;
        for way in WAYS.into_iter().filter(|way| open[*way]) {
            if way != usual && self.ways[way].until == 0 {
                let affordable = self.affordable(way, usual);
                let tried = &mut self.ways[way];
                (tried.trials, tried.passes) = (BURST, PASSED);
                tried.every = (tried.every * 2).max(affordable).min(EVERY[1]);
                tried.until = tried.every;
            }
            let tried = &mut self.ways[way];
            if tried.trials == 0 {
                continue;
            }
            if way == usual || !may(way) {
                // What is due and is no news for this payload, or cannot be used for it, waits for one of the other kind, but not for ever: all are looked at meanwhile.
                tried.passes = tried.passes.saturating_sub(1);
                tried.trials = if tried.passes == 0 { 0 } else { tried.trials };
            } else if trial.is_none() {
                tried.trials -= 1;
                trial = Some(way);
            }
        }
        (trial.unwrap_or(usual), false)
    }

    /// Payloads after which a few trials of a way have cost no more than they may.
    fn affordable(&self, way: Way, usual: Way) -> u32 {
        let [Some(other), Some(usual)] = [way, usual].map(|way| self.ways[way].samples.cost()) else { return EVERY[0] };
        (f64::from(BURST) * (other / usual.max(1e-3) - 1.0) / LOSS) as u32
    }

    fn decide(&mut self) {
        let Some(copied) = self.ways[Way::Copied].samples.cost() else { return };
        for held in [false, true] {
            let used = self.usual[usize::from(held)];
            let mut best = (Way::Copied, copied);
            for way in [Way::Lent, Way::Registered].into_iter().take(1 + usize::from(held)) {
                let Some(cost) = self.ways[way].samples.cost() else { continue };
                let seems = if way == used { cost } else { cost / WORTH };
                if seems < best.1 {
                    best = (way, seems);
                }
            }
            if best.0 != used {
                self.usual[usize::from(held)] = best.0;
                // What was used until now is soon looked at again: some bad moments may have been the reason. Not the third way: where two are worth the same they
                // take turns, and it would be tried each time.
                for way in [used, best.0] {
                    let tried = &mut self.ways[way];
                    *tried = Tried { samples: tried.samples, ..Tried::default() };
                }
            }
        }
    }

    /// Nothing is known of a way.
    fn forget(&mut self, way: Way) {
        self.ways[way] = Tried::default();
        self.hope = HOPE;
        for used in &mut self.usual {
            *used = if *used == way { Way::Copied } else { *used };
        }
        self.decide();
    }
}

/// A way that is not used for a while.
#[derive(Clone, Copy)]
struct Rest {
    /// Payloads until it is tried again, how many the next time, and why; refusals in a row.
    left: u64,
    next: u64,
    why: Option<Verdict>,
    refusals: u32,
}

impl Default for Rest {
    fn default() -> Rest {
        Rest { left: 0, next: PAUSE[0], why: None, refusals: 0 }
    }
}

/// What notices said of one way: calls that they were about, and nanoseconds that it took to read them. Old ones fade.
#[derive(Clone, Copy, Default)]
struct Told {
    calls: f64,
    reading: f64,
}

/// What is known of one connection.
pub(super) struct Choice {
    classes: [Class; CLASSES.len()],
    /// Whether buffers can be registered at all.
    registers: bool,
    rests: Each<Rest>,
    told: Each<Told>,
    /// Bytes that notices were about, and those that were copied all the same. Old ones fade.
    answered: f64,
    copied: f64,
    /// Nanoseconds of registering, and payloads that left out of registered buffers. Old ones fade.
    registering: f64,
    served: f64,
    /// Payloads since the last notice.
    unanswered: Each<u32>,
    /// Who found what it began with.
    began_by: Option<By>,
    /// It was seen here that the kernel copies; something was seen of which nobody was told.
    saw_copies: bool,
    untold: bool,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice {
            classes: [Class::new(); CLASSES.len()],
            registers: false,
            rests: Each::default(),
            told: Each::default(),
            answered: 0.0,
            copied: 0.0,
            registering: 0.0,
            served: SERVES,
            unanswered: Each::default(),
            began_by: None,
            saw_copies: false,
            untold: false,
        }
    }
}

impl Choice {
    /// One that begins with what others found. Where the kernel copied, nothing is tried for a while; else as if the last samples had been taken here.
    pub fn from_others(known: &Copies, by: By) -> Choice {
        let mut choice = Choice { began_by: Some(by), ..Choice::default() };
        if known.copied {
            choice.rest(Way::Lent, Verdict::Copies);
            choice.rest(Way::Registered, Verdict::Copies);
            return choice;
        }
        for (class, costs) in choice.classes.iter_mut().zip(known.costs) {
            for (way, cost) in WAYS.into_iter().zip(costs).filter(|(_, cost)| *cost > 0.0) {
                class.ways[way].samples = Samples::from_others(cost);
            }
            class.decide();
        }
        choice
    }

    /// What was seen here; `None`: too little.
    fn found(&self) -> Option<Copies> {
        let copied = self.saw_copies && self.rests[Way::Lent].why == Some(Verdict::Copies);
        let costs = self.classes.map(|class| WAYS.map(|way| class.ways[way].samples.own_cost().unwrap_or(0.0)));
        let compared = costs.iter().any(|[copied, others @ ..]| *copied > 0.0 && others.iter().any(|cost| *cost > 0.0));
        (copied || compared).then_some(Copies { copied, costs: if copied { Default::default() } else { costs } })
    }

    /// The same, if there is something new.
    pub fn news(&mut self) -> Option<Copies> {
        if std::mem::take(&mut self.untold) { self.found() } else { None }
    }

    /// Who found what it goes by.
    pub fn by(&self) -> Option<By> {
        if self.found().is_some() { Some(By::Here) } else { self.began_by }
    }

    /// Whether buffers can be registered at all; else nothing leaves out of such.
    pub fn registers(&mut self, can: bool) {
        self.registers = can;
    }

    /// What may be used.
    fn open(&self) -> Each<bool> {
        Each([true, self.rests[Way::Lent].left == 0, self.registers && self.rests[Way::Registered].left == 0])
    }

    fn only_copies(&self) -> bool {
        let open = self.open();
        !open[Way::Lent] && !open[Way::Registered]
    }

    /// Whether [`next`](Self::next) is to be asked about the next payload, of `len` bytes; else it is copied. Those it is asked about leave one by one.
    pub fn considers(&mut self, len: usize) -> bool {
        let open = self.open();
        for rest in &mut self.rests.0 {
            rest.left = rest.left.saturating_sub(1);
        }
        let rests = !open[Way::Lent] && !open[Way::Registered];
        !rests && self.class(len).is_some_and(|class| class.considers(&open))
    }

    /// How that payload is to leave. `held`: it lies in a registered buffer, or in one that could be registered because it came again.
    pub fn next(&mut self, len: usize, held: bool) -> Way {
        let open = self.open();
        if self.only_copies() {
            return Way::Copied;
        }
        let Some(class) = self.class(len) else { return Way::Copied };
        let (way, new) = class.next(&open, held);
        if way != Way::Copied {
            if new && self.unanswered[way] >= UNANSWERED {
                return Way::Copied;
            }
            self.unanswered[way] += 1;
        }
        way
    }

    /// To register a buffer took `ns` nanoseconds.
    pub fn registered(&mut self, ns: u64) {
        self.registering += ns as f64;
    }

    /// A payload of `len` bytes took the sender `ns` nanoseconds, without what [`registered`](Self::registered) was told.
    pub fn took(&mut self, way: Way, len: usize, ns: u64) {
        if self.only_copies() {
            return;
        }
        let told = self.told[way];
        let mut cost = ns as f64 + if told.calls > 0.0 { told.reading / told.calls } else { 0.0 };
        if way == Way::Registered {
            // Each payload bears its part of all that was registered.
            self.served += 1.0;
            cost += self.registering / self.served;
            if self.served > 2.0 * SERVES {
                (self.served, self.registering) = (self.served / 2.0, self.registering / 2.0);
            }
        }
        self.untold = true;
        let Some(class) = self.class(len) else { return };
        class.ways[way].samples.add(cost / (len as f64 / 1024.0));
        class.decide();
        // What was thought of it before it rested holds no more.
        (self.rests[way].refusals, self.rests[way].why) = (0, None);
    }

    /// The kernel is through with `len` bytes of so many calls of one way, `copied` of which it copied. To hear of it took `ns` nanoseconds.
    pub fn answered(&mut self, way: Way, calls: usize, len: usize, copied: usize, ns: u64) {
        self.unanswered[way] = 0;
        // Of the last 16 MiB or so half of the weight.
        if self.answered > (16 << 20) as f64 {
            let told = self.told.0.iter_mut().flat_map(|told| [&mut told.calls, &mut told.reading]);
            for sum in [&mut self.answered, &mut self.copied].into_iter().chain(told) {
                *sum /= 2.0;
            }
        }
        self.answered += len as f64;
        self.copied += copied as f64;
        self.told[way].calls += calls as f64;
        self.told[way].reading += ns as f64;
        // A little may be for somebody who listened for a moment.
        if self.copied > self.answered / 2.0 && self.copied >= (2 * LEAST) as f64 {
            // Nothing of what was found holds when it is tried again.
            self.classes = [Class::new(); CLASSES.len()];
            (self.answered, self.copied) = (0.0, 0.0);
            (self.saw_copies, self.untold) = (true, true);
            self.rest(Way::Lent, Verdict::Copies);
            self.rest(Way::Registered, Verdict::Copies);
        }
    }

    /// The kernel did not take it; it was copied.
    pub fn refused(&mut self, way: Way, why: Refusal) {
        self.withdrawn(way);
        self.rests[way].refusals += 1;
        if self.rests[way].refusals >= REFUSALS {
            self.rest(way, Verdict::Refused(why));
        }
    }

    /// What [`next`](Self::next) said does not come about, for reasons of the payload's: there is no notice to be waited for.
    pub fn withdrawn(&mut self, way: Way) {
        self.unanswered[way] = self.unanswered[way].saturating_sub(1);
    }

    /// What is thought of a way.
    pub fn verdict(&self, way: Way) -> Verdict {
        let known = self.classes.iter().any(|class| !class.lacks(way) && !class.lacks(Way::Copied));
        match self.rests[way].why {
            Some(why) => why,
            None if self.classes.iter().any(|class| class.usual.contains(&way)) => Verdict::Pays,
            None if known => Verdict::Costs,
            None => Verdict::Trying,
        }
    }

    fn rest(&mut self, way: Way, why: Verdict) {
        let rest = &mut self.rests[way];
        if rest.left == 0 {
            rest.left = rest.next;
            rest.next = (rest.next * 2).min(PAUSE[1]);
        }
        (rest.why, rest.refusals) = (Some(why), 0);
        self.told[way] = Told::default();
        self.unanswered[way] = 0;
        self.classes.iter_mut().for_each(|class| class.forget(way));
    }

    fn class(&mut self, len: usize) -> Option<&mut Class> {
        let at = CLASSES.iter().rposition(|from| len >= *from)?;
        self.classes.get_mut(at)
    }

    /// Payloads of which it is known what they took.
    #[cfg(test)]
    pub fn samples(&self, way: Way) -> usize {
        self.classes.iter().map(|class| class.ways[way].samples.count).sum()
    }

    /// What is thought of a way, and for each size that is known what a KiB takes, in nanoseconds.
    pub fn says(&self, way: Way) -> String {
        let mut says = self.verdict(way).to_string();
        for (class, from) in self.classes.iter().zip(CLASSES) {
            let [copied, this] = [Way::Copied, way].map(|way| class.ways[way].samples.cost());
            if let (Some(copied), Some(this)) = (copied, this) {
                says += &format!("; from {from} bytes on {this:.0} ns a KiB so and {copied:.0} with a copy");
            }
        }
        says
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
