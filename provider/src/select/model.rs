//! What a message costs by each way, from measured points. Pure arithmetic; choosing by it is `plan.rs`, the file that keeps it
//! `profile.rs`.
//!
//! A cost is asked for a [`Case`]: what the engine can tell before it sends. What it cannot tell, whether the source buffer was
//! rewritten since it was last sent ([`Source`]), weighs half and half: a table for one of them would be tuned for a benchmark.

use crate::config::force::Way;
use crate::protocol::single::LEAST_CHUNK;
use crate::types::MAX_MSG;

/// Enums that have names in files.
macro_rules! words {
    ($( $(#[$about:meta])* $name:ident { $( $(#[$what:meta])* $word:ident = $text:literal, )+ } )+) => { $(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[$what])* $word, )+ }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$( $name::$word, )+];

            /// Its name in files and for people.
            pub fn name(self) -> &'static str {
                match self { $( $name::$word => $text, )+ }
            }

            /// The one with this name.
            pub fn named(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|w| w.name() == name)
            }
        }
    )+ };
}

words! {
    /// What is done.
    Operation {
        /// A message.
        Send = "send",
        /// Bytes are read from a peer's memory.
        Read = "read",
        /// Bytes are written to a peer's memory.
        Write = "write",
        /// Values are combined with a peer's memory.
        Atomic = "atomic",
    }
    /// Who carries out an operation that is no message.
    Mover {
        /// The initiator, by the kernel.
        Direct = "direct",
        /// The target's engine, which is asked by records.
        Target = "one_sided",
    }
    /// To whom.
    PeerClass {
        /// A process of this host.
        SameHost = "same host",
        /// A process of another host, or one that is to be reached as if it were.
        Network = "network",
    }
    /// What is known of the buffers: the class that a table is for.
    Memory {
        /// Memory of one process; others reach it through the kernel only.
        Private = "private",
        /// Memory of the preloaded heap, which others map (`docs/adr/0017-lending.md`).
        Exported = "exported",
    }
    /// What became of the source since it was last sent. Nobody can tell when a message is sent.
    Source {
        /// Nothing: its lines are still in both caches.
        Reused = "reused",
        /// It was rewritten: its lines are in the sender's cache only.
        Fresh = "fresh",
    }
}

/// What a table is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is done.
    pub operation: Operation,
    /// To whom.
    pub peer: PeerClass,
    /// With which buffers.
    pub memory: Memory,
    /// Whether both sides have to share one core.
    pub crowded: bool,
    /// From how many nanoseconds of one side's on both copy ([`super::Worth`]); `None`: whatever it takes.
    pub worth: Option<[u64; 2]>,
}

impl Case {
    /// A message from private memory to a process of this host, each with a core.
    pub const MESSAGE: Case =
        Case { operation: Operation::Send, peer: PeerClass::SameHost, memory: Memory::Private, crowded: false, worth: None };

    /// A message to another host.
    pub const NETWORK: Case = Case { peer: PeerClass::Network, ..Case::MESSAGE };
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes of the message.
    pub size: usize,
    /// Nanoseconds one way, a median.
    pub ns: f64,
    /// How far the middle half of the rounds is apart, as a part of the median.
    pub spread: f64,
}

/// A time that was measured, or follows from measured ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: f64,
    /// As of [`Point`].
    pub spread: f64,
}

/// Times by size: at least one, sizes ascending.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<Point>,
}

/// Widest spread that is kept; twice a time says as little as a thousand times.
pub const MOST_SPREAD: f64 = 1e3;

/// Most points of a curve.
pub const MOST_POINTS: usize = 64;

impl Curve {
    /// From points, with all of them checked: whatever a file says, nothing that is computed from a curve is no number.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn new(points: Vec<Point>) -> Result<Curve, String> {
        if points.is_empty() || points.len() > MOST_POINTS {
            return Err(format!("{} points; 1 to {MOST_POINTS} make a curve", points.len()));
        }
        for p in &points {
            if !(1..=MAX_MSG).contains(&p.size) || !(1e-3..=1e15).contains(&p.ns) || !(0.0..=MOST_SPREAD).contains(&p.spread) {
                return Err(format!("the point {}, {}, {} is no size, time and spread", p.size, p.ns, p.spread));
            }
        }
        match points.windows(2).find(|pair| pair[0].size >= pair[1].size) {
            Some(pair) => Err(format!("size {} does not come after {}", pair[1].size, pair[0].size)),
            None => Ok(Curve { points }),
        }
    }

    /// As measured.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The time of a size. Between two points straight on logarithmic axes; below the first what that one took, since the way's own
    /// costs are left; above the last at that one's rate.
    pub fn at(&self, size: usize) -> Cost {
        let above = self.points.partition_point(|p| p.size <= size);
        let (low, high) = match (above.checked_sub(1).map(|i| self.points[i]), self.points.get(above)) {
            (None, Some(first)) => return Cost { ns: first.ns, spread: first.spread },
            (Some(last), None) => return Cost { ns: last.ns * (size as f64 / last.size as f64), spread: last.spread },
            (Some(low), Some(high)) => (low, *high),
            (None, None) => unreachable!("a curve has points"),
        };
        let part = (size as f64 / low.size as f64).ln() / (high.size as f64 / low.size as f64).ln();
        let between = |a: f64, b: f64| a + (b - a) * part;
        Cost { ns: between(low.ns.ln(), high.ns.ln()).exp(), spread: between(low.spread, high.spread) }
    }

    /// Whether a size is among the measured ones or no more than a doubling away.
    fn reaches(&self, size: usize) -> bool {
        let (first, last) = (self.points[0].size, self.points[self.points.len() - 1].size);
        size >= first / 2 && size <= last.saturating_mul(2)
    }
}

/// What a curve is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// What is done.
    pub operation: Operation,
    /// To whom.
    pub peer: PeerClass,
    /// With which buffers.
    pub memory: Memory,
    /// What became of the source.
    pub source: Source,
    /// Which way.
    pub way: Way,
}

/// What is known of two sources together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean of the logarithms of the times.
    pub ln: f64,
    /// How far the rounds of each are apart to one side, together.
    pub noise: f64,
}

/// What a curve of operations that are no messages is about: what is done, to whom, and by whom.
pub type DeedAbout = (Operation, PeerClass, Mover);

/// All curves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    curves: Vec<(About, Curve)>,
    /// Of operations that are no messages: told, and nothing is chosen by them (`one_sided.rs`).
    deeds: Vec<(DeedAbout, Curve)>,
    /// Times of messages are until the receiver has looked at all of them.
    pub until_read: bool,
}

/// Most curves of a model.
pub const MOST_CURVES: usize = 64;

impl Model {
    /// Adds a curve.
    ///
    /// # Errors
    /// What is wrong, for people: there is one already, or there are too many.
    pub fn add(&mut self, about: About, curve: Curve) -> Result<(), String> {
        if self.curves.iter().any(|(a, _)| *a == about) {
            return Err(format!("{} from {} sources is there twice", about.way.name(), about.source.name()));
        }
        if self.curves.len() == MOST_CURVES {
            return Err(format!("more than {MOST_CURVES} curves"));
        }
        self.curves.push((about, curve));
        Ok(())
    }

    /// Adds a curve of an operation that is no message.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_deed(&mut self, about: DeedAbout, curve: Curve) -> Result<(), String> {
        let (operation, _, mover) = about;
        if self.deeds.iter().any(|(a, _)| *a == about) {
            return Err(format!("{} by {} is there twice", operation.name(), mover.name()));
        }
        // There are no more words than that.
        self.deeds.push((about, curve));
        Ok(())
    }

    /// What was measured of an operation that is no message.
    pub fn deed(&self, operation: Operation, peer: PeerClass, mover: Mover) -> Option<&Curve> {
        self.deeds.iter().find(|(a, _)| *a == (operation, peer, mover)).map(|(_, c)| c)
    }

    /// All of these.
    pub fn deeds(&self) -> &[(DeedAbout, Curve)] {
        &self.deeds
    }

    /// All of messages, in the order in which they came.
    pub fn curves(&self) -> &[(About, Curve)] {
        &self.curves
    }

    fn curve(&self, case: Case, way: Way, source: Source) -> Option<&Curve> {
        let about = About { operation: case.operation, peer: case.peer, memory: case.memory, source, way };
        self.curves.iter().find(|(a, _)| *a == about).map(|(_, c)| c)
    }

    /// The way by which messages from one kind of source go in the end, if the table gives them this one: where both may copy, a receiver asks
    /// for help only if it is worth it, as far as that is known.
    pub fn settled(&self, case: Case, way: Way, source: Source, size: usize) -> Way {
        let (Some(alone), Some(worth), false) = (way.unshared(), case.worth, case.crowded) else { return way };
        let copy = self.copy(case, alone, source, size);
        let pays = copy.is_none_or(|ns| ns >= worth[usize::from(alone.needs_loan())] as f64);
        if pays && size > LEAST_CHUNK { way } else { alone }
    }

    /// How long one side copies by a way of single copies, as it sees that itself: without what it takes until it hears of the message, which
    /// is about what a short message takes.
    pub fn copy(&self, case: Case, alone: Way, source: Source, size: usize) -> Option<f64> {
        let whole = self.curve(case, alone, source)?.at(size).ns;
        let start = self.curve(Case { memory: Memory::Private, ..case }, Way::Inline, source).map_or(0.0, |c| c.points[0].ns);
        Some((whole - start).max(0.0))
    }

    /// What a message costs by a way, if that was measured.
    pub fn cost(&self, case: Case, way: Way, source: Source, size: usize) -> Option<Cost> {
        let cost = self.curve(case, way, source)?.at(size);
        Some(Cost { ns: cost.ns * if case.crowded { overlap(way) } else { 1.0 }, ..cost })
    }

    /// What a way costs from all kinds of sources together, each as it [`settled`](Self::settled); `None` if one of them was not measured near
    /// this size.
    pub fn mean(&self, case: Case, way: Way, size: usize) -> Option<Mean> {
        let (mut ln, mut square) = (0.0, 0.0);
        for source in Source::ALL {
            self.curve(case, way, *source).filter(|c| c.reaches(size))?;
            let way = self.settled(case, way, *source, size);
            let cost = self.cost(case, way, *source, size)?;
            ln += cost.ns.ln();
            square += (cost.spread / 2.0).powi(2);
        }
        let sources = Source::ALL.len() as f64;
        Some(Mean { ln: ln / sources, noise: square.sqrt() / sources })
    }

    /// The sizes at which a way was measured.
    pub fn sizes(&self, case: Case, way: Way, source: Source) -> impl Iterator<Item = usize> {
        self.curve(case, way, source).into_iter().flat_map(|c| c.points()).map(|p| p.size)
    }

    /// The shortest and the longest size that was measured for a case.
    pub fn range(&self, case: Case) -> Option<(usize, usize)> {
        let of_case = |a: &About| (a.operation, a.peer, a.memory) == (case.operation, case.peer, case.memory);
        let sizes = || self.curves.iter().filter(|(a, _)| of_case(a)).flat_map(|(_, c)| c.points()).map(|p| p.size);
        Some((sizes().min()?, sizes().max()?))
    }
}

/// How much longer a way takes when both sides share a core: two sides that work at the same time take turns then. Coarse: for long
/// messages, where the copies are all there is, and without what giving the core away costs, which all ways pay.
fn overlap(way: Way) -> f64 {
    match way {
        Way::Stream | Way::Shared | Way::MappedShared => 2.0,
        Way::Inline | Way::Eager | Way::Syscall | Way::Alone | Way::Mapped | Way::MappedAlone => 1.0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A curve of times by size.
    pub(in crate::select) fn curve(points: &[(usize, f64, f64)]) -> Curve {
        Curve::new(points.iter().map(|&(size, ns, spread)| Point { size, ns, spread }).collect()).expect("sound")
    }

    /// The same curve for each kind of source.
    pub(in crate::select) fn add(model: &mut Model, way: Way, points: &[(usize, f64, f64)]) {
        for source in Source::ALL {
            model.add(about(way, *source), curve(points)).expect("new");
        }
    }

    pub(in crate::select) fn about(way: Way, source: Source) -> About {
        About { operation: Operation::Send, peer: PeerClass::SameHost, memory: Memory::Private, source, way }
    }

    proptest! {
        /// Between its neighbours in size a time is between theirs; at a point it is the point's; everywhere it is a number.
        #[test]
        fn times_are_between_their_neighbours(
            steps in proptest::collection::vec((1usize..1_000_000, 1e-3f64..1e9, 0.0f64..10.0), 1..20), size in 0usize..30_000_000,
        ) {
            let mut at = 0;
            let points: Vec<_> = steps.iter().map(|&(step, ns, spread)| { at += step; (at, ns, spread) }).collect();
            let c = curve(&points);
            for &(size, ns, spread) in &points {
                let cost = c.at(size);
                prop_assert!((cost.ns / ns - 1.0).abs() < 1e-9 && (cost.spread - spread).abs() < 1e-9, "{cost:?}");
            }
            let cost = c.at(size);
            prop_assert!(cost.ns.is_finite() && cost.ns > 0.0 && cost.spread >= 0.0);
            let low = points.iter().rev().find(|p| p.0 <= size);
            let high = points.iter().find(|p| p.0 > size);
            match (low, high) {
                (Some(a), Some(b)) => {
                    prop_assert!(cost.ns >= a.1.min(b.1) * 0.999_999 && cost.ns <= a.1.max(b.1) * 1.000_001);
                    // Straight on logarithmic axes: at the geometric mean of the sizes the geometric mean of the times.
                    let middle = ((a.0 as f64) * (b.0 as f64)).sqrt();
                    let got = c.at(middle as usize).ns;
                    let (want, step) = ((a.1 * b.1).sqrt(), (b.1 / a.1).ln().abs() / (b.0 as f64 / a.0 as f64).ln());
                    prop_assert!((got / want).ln().abs() <= step / middle * 1.1 + 1e-9, "{got} {want}");
                }
                (None, Some(b)) => prop_assert_eq!(cost.ns, b.1),
                (Some(a), None) => prop_assert!((cost.ns - a.1 * size as f64 / a.0 as f64).abs() <= cost.ns * 1e-9),
                (None, None) => unreachable!(),
            }
        }
    }

    #[test]
    fn what_is_no_curve() {
        let bad = |points: &[(usize, f64, f64)]| {
            Curve::new(points.iter().map(|&(size, ns, spread)| Point { size, ns, spread }).collect()).expect_err("refused")
        };
        assert!(bad(&[]).contains("0 points") && bad(&vec![(1, 1.0, 0.0); 65]).contains("65 points"));
        assert!(bad(&[(4, 1.0, 0.0), (4, 2.0, 0.0)]).contains("4 does not come after 4"));
        for (size, ns, spread) in [
            (0, 1.0, 0.0),
            (MAX_MSG + 1, 1.0, 0.0),
            (1, 0.0, 0.0),
            (1, -1.0, 0.0),
            (1, f64::NAN, 0.0),
            (1, f64::INFINITY, 0.0),
            (1, 1.0, -0.1),
            (1, 1.0, f64::NAN),
        ] {
            assert!(bad(&[(size, ns, spread)]).contains("is no size"), "{size} {ns} {spread}");
        }
    }

    #[test]
    fn a_way_is_known_near_what_was_measured_from_every_source() {
        let mut model = Model::default();
        add(&mut model, Way::Stream, &[(1024, 500.0, 0.1), (4096, 1000.0, 0.2)]);
        model.add(about(Way::Alone, Source::Reused), curve(&[(1024, 400.0, 0.0)])).expect("new");
        assert!(model.add(about(Way::Alone, Source::Reused), curve(&[(1, 1.0, 0.0)])).expect_err("twice").contains("twice"));
        let known = |size| model.mean(Case::MESSAGE, Way::Stream, size).is_some();
        assert_eq!([511, 512, 2000, 8192, 8193].map(known), [false, true, true, true, false]);
        assert_eq!(model.mean(Case::MESSAGE, Way::Alone, 1024), None, "nothing is known of fresh sources");
        let mean = model.mean(Case::MESSAGE, Way::Stream, 4096).expect("known");
        assert!((mean.ln - 1000f64.ln()).abs() < 1e-12 && (mean.noise - 0.1 / 2f64.sqrt()).abs() < 1e-12, "{mean:?}");
        assert_eq!(model.range(Case::MESSAGE), Some((1024, 4096)));
        assert_eq!(Model::default().range(Case::MESSAGE), None);
    }

    #[test]
    fn on_one_core_what_two_did_at_once_takes_twice_as_long() {
        let mut model = Model::default();
        add(&mut model, Way::Alone, &[(1 << 20, 100.0, 0.0)]);
        add(&mut model, Way::Shared, &[(1 << 20, 60.0, 0.0)]);
        let crowded = Case { crowded: true, ..Case::MESSAGE };
        let ns = |case, way| model.cost(case, way, Source::Fresh, 1 << 20).expect("measured").ns;
        assert_eq!([ns(Case::MESSAGE, Way::Shared), ns(crowded, Way::Shared), ns(crowded, Way::Alone)], [60.0, 120.0, 100.0]);
    }

    #[test]
    fn words_are_found_by_their_names() {
        assert_eq!(
            Source::ALL.iter().map(|s| Source::named(s.name())).collect::<Vec<_>>(),
            [Some(Source::Reused), Some(Source::Fresh)]
        );
        assert_eq!((Operation::named("send"), Memory::named("nonsense")), (Some(Operation::Send), None));
    }
}
