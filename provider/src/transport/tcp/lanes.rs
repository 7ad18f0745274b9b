//! By how many connections long messages go: as many as the user says, or as many as were measured to pay.
//!
//! Where each stream has a limit (a cloud's for each flow, a long path with losses) several carry more together; where the link is the limit,
//! or the receiver, they only cost. Nobody knows before. So twice as many are *tried* while long messages are sent: some of them go by the present
//! number, some by the other one, in turns, so that what others do on the network meets both alike. The other number is kept if it was clearly
//! quicker, and what is kept is compared with fewer now and then.
//!
//! Nothing here knows a socket: what is measured is handed in. So is what other connections of the same link found before ([`Policy::begin_with`]): then that many
//! carry from the start, and are compared with fewer, or more, as if this one had found it.

use super::lessons::Lanes;

/// Most connections of a pair, the first one included.
pub(super) const MOST: usize = 8;
/// Comparisons in a trial. One of them is a sample by either number.
const ROUNDS: usize = 5;
/// So much quicker more of them must be to be taken, in percent, and to be kept.
const WORTH_TAKING: f64 = 1.15;
const WORTH_KEEPING: f64 = 1.08;
/// In so many rounds of a trial they must be quicker.
const WINS: usize = 4;
/// Nanoseconds before the next trial, after the first one in vain; each time twice as long, up to the most.
const FIRST_REST: u64 = 2_000_000_000;
const LONGEST_REST: u64 = 30_000_000_000;

/// A trial for whose next sample so many bytes and nanoseconds were not enough is given up: the bytes arrive as soon as they leave, and then no connection is
/// the limit, or bursts are too short to be measured.
const VAIN: (usize, u64) = (256 << 20, 100_000_000);
/// What is given to a connection at once counts as no more than this: more of it is being measured long before its end.
const ONE: usize = VAIN.0 / 8;

/// Two numbers of connections, one after the other.
struct Trial {
    other: usize,
    /// The other number's turn.
    on_other: bool,
    /// What was under way by the number before is still in the first sample.
    settles: bool,
    /// Bytes for each nanosecond by the present number and the other one.
    rates: [Vec<f64>; 2],
    /// Bytes sent since the last sample, and when that was.
    unsampled: usize,
    since: u64,
}

/// What decides.
pub(super) struct Policy {
    /// The user's number.
    fixed: Option<usize>,
    /// No more than these can be had.
    limit: usize,
    present: usize,
    trial: Option<Trial>,
    /// When the next trial may begin, and how long the last rest was. Nanoseconds.
    rest_until: u64,
    rest: u64,
    /// The next trial is of fewer.
    fewer: bool,
    /// Bytes for each nanosecond by so many (less one) in the last trial that they were in; 0: in none.
    rates: [f64; MOST],
    /// Trials of its own that are over.
    trials: usize,
    /// One was given up.
    vain: bool,
}

impl Policy {
    /// `lanes` as in `FI_RUSTMX_TCP_LANES`: a number, or 0: what is measured.
    pub fn new(lanes: usize) -> Policy {
        let fixed = (lanes > 0).then(|| lanes.min(MOST));
        Policy {
            fixed,
            limit: fixed.unwrap_or(MOST),
            present: 1,
            trial: None,
            rest_until: 0,
            rest: FIRST_REST,
            fewer: false,
            rates: [0.0; MOST],
            trials: 0,
            vain: false,
        }
    }

    /// Others found `known` on this link. If nothing was measured here yet and something is to be, that many carry from now on, and the first trial is soon, but not
    /// at once: a short job has the use of it, a long one notices that the network is another one.
    pub fn begin_with(&mut self, known: &Lanes, now: u64) {
        if !self.measures() || self.trials > 0 || self.trial.is_some() {
            return;
        }
        self.present = known.number.clamp(1, self.limit);
        self.fewer = self.present > 1;
        self.rates = known.rates;
        self.rest_until = now + self.rest;
    }

    /// What was found here; `None`: nothing yet, or the other side did not let it be found.
    pub fn found(&self) -> Option<Lanes> {
        (self.trials > 0 && self.limit == MOST).then_some(Lanes { number: self.present, rates: self.rates })
    }

    /// What is known of the numbers by now, measured here or not.
    pub fn rates(&self) -> [f64; MOST] {
        self.rates
    }

    /// Trials of its own that are over.
    pub fn trials(&self) -> usize {
        self.trials
    }

    /// Connections that are used when nothing is tried.
    pub fn kept(&self) -> usize {
        self.fixed.unwrap_or(self.present).min(self.limit)
    }

    /// The user's number, if he says one.
    pub fn fixed(&self) -> Option<usize> {
        self.fixed
    }

    /// Connections that may be asked for.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether anything is to be measured, now or later.
    pub fn measures(&self) -> bool {
        self.fixed.is_none() && self.limit > 1
    }

    /// Connections that the next bytes are to go by.
    pub fn width(&self) -> usize {
        let width = match (&self.trial, self.fixed) {
            (_, Some(fixed)) => fixed,
            (Some(trial), _) if trial.on_other => trial.other,
            _ => self.present,
        };
        width.min(self.limit)
    }

    /// No more than `limit` can be had.
    pub fn cap(&mut self, limit: usize) {
        self.limit = self.limit.min(limit.max(1));
        self.present = self.present.min(self.limit);
        if self.trial.as_ref().is_some_and(|trial| trial.other > self.limit) {
            self.trial = None;
        }
    }

    /// Whether [samples](Self::sample) of what is sent at `now` are wanted. Much is being sent: a trial begins if it is time for one.
    pub fn is_curious(&mut self, now: u64) -> bool {
        if !self.measures() {
            return false;
        }
        if self.trial.is_none() && now >= self.rest_until {
            let (more, fewer) = ((self.present * 2).min(self.limit), self.present / 2);
            let other = if fewer > 0 && (self.fewer || more == self.present) { fewer } else { more };
            self.trial =
                Some(Trial { other, on_other: true, settles: true, rates: [Vec::new(), Vec::new()], unsampled: 0, since: now });
        }
        self.trial.is_some()
    }

    /// So many bytes arrived in so many nanoseconds by `width` connections.
    pub fn sample(&mut self, width: usize, bytes: u64, nanos: u64, now: u64) {
        if width != self.width() || nanos == 0 {
            return;
        }
        let Some(trial) = &mut self.trial else { return };
        (trial.unsampled, trial.since) = (0, now);
        if std::mem::replace(&mut trial.settles, false) {
            return;
        }
        trial.rates[usize::from(trial.on_other)].push(bytes as f64 / nanos as f64);
        trial.on_other = !trial.on_other;
        trial.settles = true;
        let [present, others] = &trial.rates;
        let rounds = present.len().min(others.len());
        // What cannot win any more is not tried to the end: its samples are the slow ones.
        let hopeless = trial.other > self.present && rounds - wins(others, present) > ROUNDS - WINS;
        if rounds == ROUNDS || hopeless {
            self.decide(now);
        }
    }

    /// So many bytes were given to connections that the trial, if there is one, has chosen; `now` tells when.
    pub fn sends(&mut self, bytes: usize, now: impl FnOnce() -> u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.unsampled += bytes.min(ONE);
        if trial.unsampled <= VAIN.0 {
            return;
        }
        let now = now();
        if now.saturating_sub(trial.since) > VAIN.1 {
            (self.fewer, self.vain) = (trial.other > self.present, true);
            self.trial = None;
            self.rest_for_now(now);
        }
    }

    /// Whether a trial was given up, for nothing could be measured.
    pub fn was_in_vain(&self) -> bool {
        self.vain
    }

    /// The next trial is to be later.
    fn rest_for_now(&mut self, now: u64) {
        self.rest_until = now + self.rest;
        self.rest = (2 * self.rest).min(LONGEST_REST);
    }

    fn decide(&mut self, now: u64) {
        let Some(Trial { other, rates: [present, others], .. }) = self.trial.take() else { return };
        (self.rates[self.present - 1], self.rates[other - 1]) = (median(&present), median(&others));
        self.trials += 1;
        let more = other > self.present;
        let (many, few) = if more { (&others, &present) } else { (&present, &others) };
        let worth = if more { WORTH_TAKING } else { WORTH_KEEPING };
        let many_pay = median(many) > worth * median(few) && (!more || wins(many, few) >= WINS);
        if many_pay == more {
            // Perhaps further on that way it is better still.
            (self.present, self.fewer) = (other, !more);
            (self.rest, self.rest_until) = (FIRST_REST, now);
        } else {
            self.fewer = more;
            self.rest_for_now(now);
        }
    }
}

/// In how many rounds `these` were quicker.
fn wins(these: &[f64], those: &[f64]) -> usize {
    these.iter().zip(those).filter(|(these, those)| these > those).count()
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random numbers that are the same each time.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as f64 / f64::from(1u32 << 31)
        }

        /// About 1, mostly within two times `spread`.
        fn noise(&mut self, spread: f64) -> f64 {
            let sum: f64 = (0..6).map(|_| self.roll() - 0.5).sum();
            (1.0 + spread * sum * 1.41).max(0.05)
        }
    }

    /// Nanoseconds of a sample.
    const SAMPLE: u64 = 20_000_000;

    /// Sends for `seconds`; `rate` says what `width` connections carry at a moment. Bytes that went, and those of the best number by itself.
    fn run(policy: &mut Policy, seconds: u64, mut rate: impl FnMut(usize, u64) -> f64) -> (f64, f64) {
        let (mut went, mut alone) = (0.0, [0.0; MOST + 1]);
        for now in (0..seconds * 1_000_000_000).step_by(SAMPLE as usize) {
            let curious = policy.is_curious(now);
            let width = policy.width();
            let bytes = rate(width, now) * SAMPLE as f64;
            went += bytes;
            for width in [1, 2, 4, 8] {
                alone[width] += rate(width, now) * SAMPLE as f64;
            }
            if curious {
                policy.sample(width, bytes as u64, SAMPLE, now);
            }
        }
        (went, alone.into_iter().fold(0.0, f64::max))
    }

    /// One stream reaches `one`, all together `all`.
    fn link(one: f64, all: f64) -> impl Fn(usize, u64) -> f64 {
        move |width, _| (one * width as f64).min(all)
    }

    #[test]
    fn as_many_as_the_link_bears() {
        for (one, all, best) in [(1.0, 1.0, 1), (1.0, 1.1, 1), (1.0, 2.0, 2), (1.0, 2.1, 2), (1.0, 4.0, 4), (1.0, 100.0, 8)] {
            let mut policy = Policy::new(0);
            let (went, ideal) = run(&mut policy, 600, link(one, all));
            assert_eq!(policy.present, best, "{one} of {all}");
            // What is not clearly quicker is not taken.
            let least = if all > best as f64 * one && best < MOST { 0.97 / WORTH_TAKING } else { 0.97 };
            assert!(went > least * ideal, "{one} of {all}: {:.3} of the best", went / ideal);
        }
    }

    /// More connections are in each other's way.
    #[test]
    fn where_more_are_slower_few_are_tried_again() {
        let mut policy = Policy::new(0);
        let (went, ideal) = run(&mut policy, 600, |width, _| 1.0 / width as f64);
        assert_eq!(policy.present, 1);
        assert!(went > 0.985 * ideal, "{:.4}", went / ideal);
    }

    #[test]
    fn noise_does_not_hide_what_pays_and_costs_little_where_nothing_does() {
        for seed in 0..40 {
            let mut dice = Dice(seed);
            let (went, ideal) = run(&mut Policy::new(0), 600, |width, _| (width as f64).min(4.0) * dice.noise(0.25));
            assert!(went > 0.9 * ideal, "seed {seed}: {:.3}", went / ideal);
            let mut dice = Dice(seed);
            let (went, ideal) = run(&mut Policy::new(0), 600, |width, _| (1.0 - 0.02 * width as f64) * dice.noise(0.25));
            assert!(went > 0.93 * ideal, "seed {seed}: {:.3}", went / ideal);
        }
    }

    /// Two rounds lost are enough: five would have to be tried by the number that is slower.
    #[test]
    fn a_trial_ends_as_soon_as_it_is_in_vain() {
        let mut policy = Policy::new(0);
        let mut samples = 0;
        for now in (0..FIRST_REST).step_by(SAMPLE as usize) {
            if policy.is_curious(now) {
                let width = policy.width();
                policy.sample(width, 1000 / width as u64, SAMPLE, now);
                samples += 1;
            }
        }
        // Two rounds of two numbers, each with one sample that is thrown away.
        assert_eq!((policy.present, samples), (1, 8));
    }

    /// Others come and go on the link, and take what they take for some seconds.
    #[test]
    fn on_a_link_that_others_share() {
        for seed in 0..40 {
            let (mut dice, mut others, mut until) = (Dice(seed), 0.0, 0);
            let (went, ideal) = run(&mut Policy::new(0), 600, |width, now| {
                if now >= until {
                    (others, until) = (0.7 * dice.roll(), now + (dice.roll() * 5e9) as u64);
                }
                (0.3 * width as f64).min(1.0 - others) * dice.noise(0.1)
            });
            assert!(went > 0.8 * ideal, "seed {seed}: {:.3}", went / ideal);
        }
    }

    /// A link that was free gets narrow, and wide again.
    #[test]
    fn what_was_measured_is_measured_again() {
        let mut policy = Policy::new(0);
        let seconds = |now: u64| now / 1_000_000_000;
        let (went, _) = run(&mut policy, 1800, |width, now| match seconds(now) {
            600..1200 => 1.0 / width as f64,
            _ => (width as f64).min(4.0),
        });
        assert_eq!(policy.present, 4);
        let ideal = (4.0 * 1200.0 + 600.0) * 1e9;
        assert!(went > 0.85 * ideal, "{:.3}", went / ideal);
    }

    /// What one connection found is where the next one begins: it has the whole link at once, and nothing is tried for a while.
    #[test]
    fn what_others_found_is_where_it_begins() {
        let mut first = Policy::new(0);
        assert_eq!(first.found(), None);
        let (slow, _) = run(&mut first, 2, link(1.0, 4.0));
        let known = first.found().expect("a trial is over");
        assert_eq!((known.number, known.rates[0], known.rates[3]), (4, 1.0, 4.0));
        let mut second = Policy::new(0);
        second.begin_with(&known, 0);
        assert_eq!((second.width(), second.found()), (4, None), "nothing was found here");
        let (quick, ideal) = run(&mut second, 2, link(1.0, 4.0));
        assert!(quick == ideal && slow < 0.9 * ideal, "{slow} and {quick} of {ideal}");
        let (went, ideal) = run(&mut second, 600, link(1.0, 4.0));
        assert!(went > 0.97 * ideal && second.present == 4, "{:.3}", went / ideal);
    }

    /// A link of the same name that is another one by now.
    #[test]
    fn what_holds_no_more_is_found_to_be_so() {
        for (known, link, best) in [(8, link(1.0, 1.0), 1), (1, link(1.0, 4.0), 4), (4, link(1.0, 100.0), 8)] {
            let mut policy = Policy::new(0);
            policy.begin_with(&Lanes { number: known, ..Lanes::default() }, 0);
            let (went, ideal) = run(&mut policy, 600, link);
            assert_eq!((policy.present, policy.found().map(|lanes| lanes.number)), (best, Some(best)), "from {known}");
            assert!(went > 0.95 * ideal, "from {known}: {:.3}", went / ideal);
        }
        // More are in each other's way.
        let mut policy = Policy::new(0);
        policy.begin_with(&Lanes { number: 8, ..Lanes::default() }, 0);
        let (went, ideal) = run(&mut policy, 600, |width, _| 1.0 / width as f64);
        assert!(policy.present == 1 && went > 0.97 * ideal, "{} and {:.3}", policy.present, went / ideal);
    }

    /// The user's number, what the other side allows, and what was measured here go before it.
    #[test]
    fn what_others_found_is_no_order() {
        let known = |number| Lanes { number, ..Lanes::default() };
        let mut fixed = Policy::new(2);
        fixed.begin_with(&known(8), 0);
        assert_eq!((fixed.width(), fixed.found()), (2, None));
        let mut capped = Policy::new(0);
        capped.cap(2);
        for odd in [0, 1, 2, 3, 8, usize::MAX] {
            capped.begin_with(&known(odd), 0);
            assert_eq!(capped.width(), odd.clamp(1, 2));
        }
        run(&mut capped, 10, link(1.0, 4.0));
        assert_eq!((capped.width(), capped.found()), (2, None), "more could not be tried");
        let mut own = Policy::new(0);
        run(&mut own, 10, link(1.0, 1.0));
        own.begin_with(&known(8), 0);
        assert_eq!(own.width(), 1);
    }

    /// Where nothing can be measured the other number must not carry for ever (it did), nor for long each time it is tried.
    #[test]
    fn a_trial_that_gets_no_samples_ends() {
        const STEP: usize = 1 << 20;
        let mut policy = Policy::new(0);
        let (mut others, mut all) = (0, 0);
        // A MiB each millisecond, for ten minutes.
        for now in (0..600_000_000_000u64).step_by(1_000_000) {
            policy.is_curious(now);
            policy.sends(STEP, || now);
            others += usize::from(policy.width() != 1);
            all += 1;
        }
        assert!((1..all / 50).contains(&others), "{others} of {all} by another number");
        assert_eq!((policy.trials(), policy.found()), (0, None), "nothing was found");
        // Samples now and then keep a trial alive.
        let mut policy = Policy::new(0);
        assert!(policy.is_curious(0));
        for now in (1..=4 * ROUNDS as u64).map(|i| i * 1_000_000_000) {
            (0..100).for_each(|_| policy.sends(STEP, || now));
            (0..4).for_each(|_| policy.sends(usize::MAX, || now));
            policy.sample(policy.width(), 1000 * policy.width() as u64, 1000, now);
        }
        assert_eq!((policy.trials(), policy.kept(), policy.was_in_vain()), (1, 2, false));
        // A window that is given at once has not taken long.
        let mut policy = Policy::new(0);
        assert!(policy.is_curious(0));
        (0..1000).for_each(|_| policy.sends(usize::MAX, || 50_000_000));
        assert_eq!((policy.width(), policy.was_in_vain()), (2, false));
        policy.sends(1, || 150_000_000);
        assert_eq!((policy.width(), policy.was_in_vain()), (1, true));
    }

    #[test]
    fn what_the_user_says_counts_and_what_cannot_be_had_does_not() {
        for lanes in 1..=MOST {
            let mut policy = Policy::new(lanes);
            assert!(!policy.is_curious(0));
            assert_eq!((policy.width(), policy.limit()), (lanes, lanes));
            policy.cap(2);
            assert_eq!(policy.width(), lanes.min(2));
        }
        let mut policy = Policy::new(0);
        assert!(policy.is_curious(0));
        assert_eq!(policy.width(), 2);
        policy.cap(1);
        assert!(!policy.is_curious(1 << 60));
        assert_eq!(policy.width(), 1);
    }
}
