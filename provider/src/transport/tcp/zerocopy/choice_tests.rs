//! The choice against modelled links: which way it takes, and what it loses.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn choice(registers: bool) -> Choice {
    let mut choice = Choice::default();
    choice.registers(registers);
    choice
}

const LONGEST: usize = 2 << 20;

/// A network as the sender's thread feels it: nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Link {
    call: f64,
    copy_kib: f64,
    pin_kib: f64,
    /// Out of a registered buffer.
    held_kib: f64,
    notice: f64,
    copies: bool,
    /// Payloads after which a notice comes.
    late: usize,
    /// Of a hundred payloads so many lie in registered buffers, or would; and so many of these have to be registered.
    held: u64,
    registers: u64,
    register: f64,
}

impl Link {
    fn cost(&self, way: Way, len: usize) -> f64 {
        let kib = len as f64 / 1024.0;
        let copy = if self.copies { self.copy_kib * kib } else { 0.0 };
        match way {
            Way::Copied => self.call + self.copy_kib * kib,
            Way::Lent => 2.0 * self.call + self.pin_kib * kib + copy,
            Way::Registered => 2.0 * self.call + self.held_kib * kib + copy,
        }
    }

    /// With the notice, and what registering costs in the long run.
    fn whole(&self, way: Way, len: usize) -> f64 {
        let notice = if way == Way::Copied { 0.0 } else { self.notice };
        let register = if way == Way::Registered { self.register * self.registers as f64 / 100.0 } else { 0.0 };
        self.cost(way, len) + notice + register
    }

    fn ways(held: bool) -> impl Iterator<Item = Way> {
        WAYS.into_iter().take(2 + usize::from(held))
    }

    /// What the worst way takes for the longest payload.
    fn worst(&self) -> f64 {
        Link::ways(self.held > 0).map(|way| self.whole(way, LONGEST)).fold(0.0, f64::max)
    }

    /// What the best of the ways that there are takes.
    fn best(&self, len: usize, held: bool) -> f64 {
        Link::ways(held).map(|way| self.whole(way, len)).fold(f64::MAX, f64::min)
    }
}

fn link() -> impl Strategy<Value = Link> {
    let kib = (10.0..300.0f64, 1.0..300.0f64, 1.0..300.0f64);
    let held = prop_oneof![Just(0u64), Just(100), 1u64..100];
    (200.0..3000.0f64, kib, 0.0..5000.0f64, any::<bool>(), 0usize..40, held).prop_map(
        |(call, kib, notice, copies, late, held)| {
            let (copy_kib, pin_kib, held_kib) = kib;
            Link { call, copy_kib, pin_kib, held_kib, notice, copies, late, held, registers: 0, register: 0.0 }
        },
    )
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
    /// What was lent: when it is answered, how it left, its bytes, and whether they were copied.
    due: VecDeque<(usize, Way, usize, bool)>,
    sent: usize,
    spent: f64,
    best: f64,
    by: Each<usize>,
}

impl Sender {
    fn new(seed: u64) -> Sender {
        let (choice, chance) = (choice(true), Chance(seed));
        Sender { choice, chance, due: VecDeque::new(), sent: 0, spent: 0.0, best: 0.0, by: Each::default() }
    }

    fn lent(&self) -> usize {
        self.by[Way::Lent] + self.by[Way::Registered]
    }

    /// From the shortest one that is looked at to [`LONGEST`], as many between 32 and 64 KiB as between 64 and 128.
    fn len(&mut self) -> usize {
        let doublings = (LONGEST / LEAST).ilog2();
        let least = LEAST << self.chance.below(doublings.into());
        least + self.chance.below(least as u64 + 1) as usize
    }

    /// Sends `count` payloads of random sizes, and forgets what was spent before.
    fn send(&mut self, link: &Link, count: usize) {
        (self.spent, self.best, self.by) = (0.0, 0.0, Each::default());
        for _ in 0..count {
            let len = self.len();
            let held = self.chance.below(100) < link.held;
            let considered = self.choice.considers(len);
            let way = if considered { self.choice.next(len, held) } else { Way::Copied };
            assert!(held || way != Way::Registered, "it lies in no such buffer");
            let shake = 0.8 + self.chance.below(401) as f64 / 1000.0;
            let spike = if self.sent % 50 == 7 { 20.0 } else { 1.0 };
            if way == Way::Registered && self.chance.below(100) < link.registers {
                self.choice.registered(link.register as u64);
            }
            if considered {
                self.choice.took(way, len, (link.cost(way, len) * shake * spike) as u64);
            }
            self.spent += link.whole(way, len);
            self.best += link.best(len, held);
            self.by[way] += 1;
            if way != Way::Copied {
                self.due.push_back((self.sent + link.late, way, len, link.copies));
            }
            self.sent += 1;
            while let Some((_, way, len, copied)) = self.due.pop_front_if(|(at, ..)| *at < self.sent) {
                self.choice.answered(way, 1, len, if copied { len } else { 0 }, link.notice as u64);
            }
        }
    }
}

proptest! {
    /// The best way is found soon, and little is lost meanwhile and ever after.
    #[test]
    fn the_cheapest_way_is_taken(link in link(), seed: u64) {
        let mut sender = Sender::new(seed);
        sender.send(&link, 2000);
        // The later notices come the longer is copied: few trials are under way at a time.
        let learning = (40 + link.late) as f64 * link.worst();
        prop_assert!(sender.spent < 1.15 * sender.best + learning, "{link:?}: {} of {}", sender.spent, sender.best);
        sender.send(&link, 10_000);
        prop_assert!(sender.spent < 1.2 * sender.best + 40.0 * link.worst(), "{link:?}: {} instead of {}, {}", sender.spent, sender.best, sender.choice.says(Way::Registered));
    }

    /// Where the kernel copies, it is tried a few times and then hardly ever.
    #[test]
    fn a_kernel_that_copies_is_left_alone(link in link(), seed: u64) {
        let link = Link { copies: true, ..link };
        let mut sender = Sender::new(seed);
        sender.send(&link, 4000);
        prop_assert!(sender.lent() <= 2 * UNANSWERED as usize + link.late, "{}", sender.lent());
        prop_assert_eq!([Way::Lent, Way::Registered].map(|way| sender.choice.verdict(way)), [Verdict::Copies; 2]);
        sender.send(&link, 100_000);
        prop_assert!(sender.lent() < 6 * (2 * UNANSWERED as usize + link.late), "{}", sender.lent());
    }
}

const CARD: Link = Link {
    call: 1000.0,
    copy_kib: 100.0,
    pin_kib: 10.0,
    held_kib: 2.0,
    notice: 500.0,
    copies: false,
    late: 5,
    held: 0,
    registers: 0,
    register: 0.0,
};

#[test]
fn a_network_card_pays() {
    let mut sender = Sender::new(7);
    sender.send(&CARD, 1000);
    assert_eq!(sender.choice.verdict(Way::Lent), Verdict::Pays);
    assert_eq!(sender.choice.verdict(Way::Registered), Verdict::Trying);
    assert!(sender.lent() > 850, "{} of 1000", sender.lent());
    let told = sender.choice.says(Way::Lent);
    assert!(told.contains("less of the sender's time than a copy; from 32768 bytes on"), "{told}");
}

/// Each of the ways where it is the cheapest, and what is left for payload that lies in no registered buffer.
#[test]
fn each_way_has_its_links() {
    for (link, used) in [
        (Link { held: 100, ..CARD }, Way::Registered),
        (Link { held: 100, held_kib: 60.0, ..CARD }, Way::Lent),
        (Link { held: 100, held_kib: 150.0, pin_kib: 120.0, ..CARD }, Way::Copied),
        (Link { held: 100, pin_kib: 150.0, ..CARD }, Way::Registered),
    ] {
        let mut sender = Sender::new(5);
        sender.send(&link, 1000);
        sender.send(&link, 4000);
        assert!(sender.by[used] > 3700, "{link:?}: {:?}", sender.by.0);
    }
    let mut sender = Sender::new(5);
    sender.send(&Link { held: 50, pin_kib: 30.0, ..CARD }, 1000);
    sender.send(&Link { held: 50, pin_kib: 30.0, ..CARD }, 4000);
    assert!(sender.by[Way::Registered] > 1800 && sender.by[Way::Lent] > 1700, "{:?}", sender.by.0);
}

/// To register is part of the cost: where almost every payload needs it, it does not pay.
#[test]
fn what_is_registered_for_little_does_not_pay() {
    let dear = Link { held: 100, registers: 95, register: 100_000.0, ..CARD };
    let mut sender = Sender::new(9);
    sender.send(&dear, 1000);
    sender.send(&dear, 4000);
    assert!(sender.by[Way::Registered] < 200, "{:?}", sender.by.0);
    let mut sender = Sender::new(9);
    sender.send(&Link { registers: 1, register: 20_000.0, pin_kib: 30.0, ..dear }, 1000);
    sender.send(&Link { registers: 1, register: 20_000.0, pin_kib: 30.0, ..dear }, 4000);
    assert!(sender.by[Way::Registered] > 3500, "{:?}", sender.by.0);
}

/// Circumstances change: a way that was good gets bad, and the other way round.
#[test]
fn it_changes_its_mind() {
    let dear = Link { pin_kib: 200.0, ..CARD };
    let mut sender = Sender::new(3);
    sender.send(&CARD, 3000);
    assert_eq!(sender.choice.verdict(Way::Lent), Verdict::Pays);
    sender.send(&dear, 500);
    assert_eq!(sender.choice.verdict(Way::Lent), Verdict::Costs, "at once: it is the way that is used");
    sender.send(&CARD, 3000);
    assert_eq!(sender.choice.verdict(Way::Lent), Verdict::Pays, "after some trials");
    // Buffers come again: there is a better way.
    sender.send(&Link { held: 100, ..CARD }, 1000);
    assert_eq!(sender.choice.verdict(Way::Registered), Verdict::Pays);
    sender.send(&Link { held: 100, held_kib: 150.0, ..CARD }, 500);
    assert_eq!([Way::Lent, Way::Registered].map(|way| sender.choice.verdict(way)), [Verdict::Pays, Verdict::Costs]);
    // Somebody begins to listen on the interface, and ends.
    sender.send(&Link { copies: true, ..CARD }, 500);
    assert_eq!(sender.choice.verdict(Way::Lent), Verdict::Copies);
    sender.send(&CARD, 2 * PAUSE[0] as usize);
    assert_eq!(sender.choice.verdict(Way::Lent), Verdict::Pays);
}

/// One way is refused, and the other one goes on.
#[test]
fn what_is_refused_is_not_asked_for_again_and_again() {
    for (refused, other) in [(Way::Lent, Way::Registered), (Way::Registered, Way::Lent)] {
        for why in [Refusal::Limits, Refusal::Memory] {
            let (mut choice, mut by) = (choice(true), Each::<u32>::default());
            for _ in 0..4000 {
                let way = if choice.considers(1 << 20) { choice.next(1 << 20, true) } else { Way::Copied };
                by[way] += 1;
                if way == refused {
                    choice.refused(way, why);
                    choice.took(Way::Copied, 1 << 20, 100_000);
                    continue;
                }
                choice.took(way, 1 << 20, if way == Way::Copied { 100_000 } else { 1000 });
                if way == other {
                    choice.answered(way, 1, 1 << 20, 0, 10);
                }
            }
            assert_eq!((by[refused], choice.verdict(refused)), (REFUSALS, Verdict::Refused(why)));
            assert!(by[other] > 3800 && choice.verdict(other) == Verdict::Pays, "{:?}", by.0);
        }
    }
}

/// Buffers that cannot be registered after all say nothing against those that can.
#[test]
fn what_is_withdrawn_is_not_waited_for() {
    let (mut choice, mut used) = (choice(true), 0);
    for round in 0..1000 {
        if !choice.considers(1 << 20) {
            continue;
        }
        let way = choice.next(1 << 20, true);
        if way == Way::Registered && round < 100 {
            choice.withdrawn(way);
            continue;
        }
        used += u32::from(way == Way::Registered);
        choice.took(way, 1 << 20, if way == Way::Registered { 1000 } else { 100_000 });
        if way != Way::Copied {
            choice.answered(way, 1, 1 << 20, 0, 10);
        }
    }
    assert!(used > 800, "{used}");
}

/// Without a ring only two ways are left, and where the second one is refused nothing is even looked at.
#[test]
fn what_cannot_be_had_is_never_chosen() {
    let (mut choice, mut looked) = (choice(false), 0);
    for _ in 0..4000 {
        if choice.considers(1 << 20) {
            looked += 1;
            match choice.next(1 << 20, true) {
                Way::Lent => choice.refused(Way::Lent, Refusal::Limits),
                Way::Registered => panic!("there are no registered buffers"),
                Way::Copied => {}
            }
        }
        choice.took(Way::Copied, 1 << 20, 1000);
    }
    assert!(looked < 20, "{looked}");
}

/// Two ways that are worth the same take turns, and each turn is no reason to try the third one.
#[test]
fn equals_do_not_make_the_dear_way_tried() {
    let mut sender = Sender::new(11);
    let equals = Link { held: 100, pin_kib: 1.0, held_kib: 1.0, copy_kib: 200.0, ..CARD };
    sender.send(&equals, 2000);
    sender.send(&equals, 10_000);
    let [copied, lent, registered] = sender.by.0;
    assert!(copied <= CLASSES.len() * BURST as usize && lent > 1000 && registered > 1000, "{:?}", sender.by.0);
}

/// Payload of one kind ends to come while a way is due to be tried for it: the other kind goes on trying what it may.
#[test]
fn a_kind_that_ends_stops_no_trials() {
    let both = Link { held: 90, pin_kib: 70.0, held_kib: 50.0, ..CARD };
    for begin in 300..700 {
        let mut sender = Sender::new(13);
        sender.send(&both, begin);
        sender.send(&Link { copy_kib: 1.0, held: 0, ..both }, 12_000);
        sender.send(&Link { copy_kib: 1.0, held: 0, ..both }, 1000);
        assert!(sender.by[Way::Copied] > 900, "{begin}: {:?}", sender.by.0);
    }
}

#[test]
fn short_payload_is_copied() {
    let mut choice = choice(true);
    assert!((0..1000).all(|_| !choice.considers(LEAST - 1)));
    assert_eq!(choice.verdict(Way::Lent), Verdict::Trying);
}

/// What a connection of some link found out.
fn found(link: &Link, seed: u64) -> Copies {
    let mut sender = Sender::new(seed);
    sender.send(link, 3000);
    sender.choice.found().expect("enough was sent")
}

/// A connection that begins with it.
fn next(known: &Copies, seed: u64) -> Sender {
    let mut choice = Choice::from_others(known, By::Job(1));
    choice.registers(true);
    Sender { choice, ..Sender::new(seed) }
}

proptest! {
    /// Who begins with what another connection found loses nothing at the start, and no more than others ever after, though all is another link by then.
    #[test]
    fn what_others_found_is_where_it_begins(link in link(), other in link(), seed: u64) {
        // What only few payloads could do the others may not have found out.
        let [link, other] = [link, other].map(|link| Link { held: if link.held < 50 { 0 } else { 100 }, ..link });
        let known = found(&link, seed);
        prop_assert_eq!(known.copied, link.copies);
        let mut same = next(&known, seed);
        same.send(&link, 60);
        // As long as nothing is tried for comparison. What differs by less than it is worth is no mistake, nor what shakes.
        prop_assert!(same.spent < 1.6 * same.best, "{link:?}: {} of {}", same.spent, same.best);
        same.send(&link, 10_000);
        prop_assert!(same.spent < 1.2 * same.best + 40.0 * link.worst(), "{link:?}: {} of {}", same.spent, same.best);
        // Where the kernel copied nothing is tried for 4096 payloads. (Where only some lie in registered buffers, what the others could do instead is tried as seldom
        // as the buffers, which leave for less, can afford it: there a change may stay unnoticed for longer than this.)
        let mut moved = next(&known, seed);
        moved.send(&other, 4000 * CLASSES.len());
        moved.send(&other, 10_000);
        prop_assert!(moved.spent < 1.2 * moved.best + 40.0 * other.worst(), "{other:?} after {link:?}: {} of {}", moved.spent, moved.best);
    }

    /// A kernel that copied is not asked again before a long time, but it is.
    #[test]
    fn where_the_kernel_copied_nothing_is_tried(link in link(), seed: u64) {
        let known = Copies { copied: true, ..Copies::default() };
        let mut sender = next(&known, seed);
        sender.send(&link, PAUSE[0] as usize);
        prop_assert_eq!(sender.lent(), 0);
        prop_assert_eq!((sender.choice.verdict(Way::Lent), sender.choice.by(), sender.choice.found()), (Verdict::Copies, Some(By::Job(1)), None));
        sender.send(&link, 4 * PAUSE[0] as usize);
        prop_assert!(sender.lent() > 0);
        prop_assert_eq!(sender.choice.by(), Some(By::Here));
    }
}

/// What is passed on was seen here: what one began with is not passed on as if it had been.
#[test]
fn hearsay_is_not_passed_on() {
    let known = found(&CARD, 7);
    assert!(
        !known.copied && known.costs.iter().all(|[copied, lent, held]| *lent > 0.0 && copied > lent && *held == 0.0),
        "{known:?}"
    );
    let mut sender = next(&known, 8);
    assert_eq!((sender.choice.verdict(Way::Lent), sender.choice.by()), (Verdict::Pays, Some(By::Job(1))));
    sender.send(&CARD, 100);
    assert!(sender.lent() > 85, "it pays from the start: {}", sender.lent());
    assert_eq!((sender.choice.news(), sender.choice.by()), (None, Some(By::Job(1))), "no copy was compared with here");
    sender.send(&CARD, 10_000);
    assert_eq!(sender.choice.by(), Some(By::Here));
    assert!(sender.choice.news().is_some() && sender.choice.news().is_none(), "told once");
}
