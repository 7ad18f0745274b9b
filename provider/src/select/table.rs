//! Building the table: what the shipped sizes say, or measured costs (`plan.rs`) where there are some, within what the user set; and over
//! it what the user forces.

use super::model::{Case, Memory, PeerClass};
use super::plan::{Menu, plan};
use super::{MAX_ROWS, Origin, Row, Tuned};
use crate::config::Config;
use crate::config::force::{Forced, Part, Way};
use crate::protocol::single::LEAST_CHUNK;
use crate::types::{INLINE_MAX, MAX_MSG, ProtoId};

/// A part that can be carried, with all sizes known.
struct Claim {
    way: Way,
    sizes: std::ops::RangeInclusive<usize>,
}

/// The most payload that a header can tell of one record.
const RECORD_MAX: usize = u16::MAX as usize;

/// Where the ways of an unforced table begin, and how far each way reaches.
struct Limits {
    eager: usize,
    record: usize,
    syscall: usize,
    share: usize,
    kernel: bool,
    mapped: usize,
    mapped_share: usize,
    lend: bool,
    given: Given,
}

/// Which of these sizes the user said.
struct Given {
    eager: bool,
    syscall: bool,
    share: bool,
    mapped: bool,
}

impl Limits {
    fn new(config: &Config, record_max: usize, peers: PeerClass) -> Limits {
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let record = record_max.min(RECORD_MAX);
        let far = peers == PeerClass::Network;
        let (eager_max, eager_name) = if far { (config.tcp_eager_max, "tcp_eager_max") } else { (config.eager_max, "eager_max") };
        let (share, kernel, lend) = (bytes(config.share_min), config.cma == 0 && !far, config.lend != 2 && !far);
        let given = Given {
            eager: config.says(eager_name),
            syscall: config.says("syscall_min"),
            share: config.says("share_min"),
            mapped: config.says("mapped_min") || config.says("mapped_share_min"),
        };
        // Who says from where on the kernel copies means that, also where a record would reach further if nobody said anything.
        let least =
            if given.syscall && !given.eager && kernel { bytes(config.syscall_min).saturating_sub(1) } else { usize::MAX };
        let eager = bytes(eager_max).min(record).min(least).max(INLINE_MAX);
        let syscall = bytes(config.syscall_min).clamp(eager + 1, MAX_MSG);
        let (mapped, mapped_share) = (bytes(config.mapped_min).clamp(INLINE_MAX + 1, MAX_MSG), bytes(config.mapped_share_min));
        Limits { eager, record, syscall, share, kernel, mapped, mapped_share, lend, given }
    }

    /// How a message goes that nothing else is said about.
    fn plain(&self, len: usize) -> Way {
        match len {
            n if n <= INLINE_MAX => Way::Inline,
            n if n <= self.eager => Way::Eager,
            n if n >= self.syscall && self.kernel && n >= self.share => Way::Shared,
            n if n >= self.syscall && self.kernel => Way::Alone,
            _ => Way::Stream,
        }
    }

    /// Whether a way is in question for a size: the engine can carry it so, and short messages have one way only.
    fn can(&self, way: Way, len: usize) -> bool {
        match way {
            Way::Inline => len <= INLINE_MAX,
            _ if len <= INLINE_MAX => false,
            Way::Eager => len <= self.record,
            Way::Stream => true,
            Way::Syscall | Way::Alone | Way::Shared => self.kernel,
            // Have rows of their own.
            Way::Mapped | Way::MappedAlone | Way::MappedShared => false,
        }
    }

    /// Whether the sizes that the user set leave a way in question for a size. What [`plain`](Self::plain) says they always leave.
    fn may(&self, way: Way, len: usize) -> bool {
        let is = |wanted: bool, so: bool| wanted == so;
        let eager = !self.given.eager || is(len <= self.eager, way == Way::Eager);
        let silent = !self.given.syscall || !self.kernel || (self.given.eager && len <= self.eager);
        let kernel = silent || is(len >= self.syscall, way.needs_kernel());
        let share = !self.given.share || !way.needs_kernel() || is(len >= self.share, way == Way::Shared);
        len <= INLINE_MAX || eager && kernel && share
    }

    /// Who says how a size goes of which nothing is forced.
    fn origin(&self, len: usize, measured: bool) -> Origin {
        let taken = |way: &Way| self.can(*way, len) && !self.may(*way, len);
        let choice = Way::CARRIERS.iter().filter(|w| self.can(**w, len)).count() > 1;
        match measured {
            _ if Way::CARRIERS.iter().any(taken) => Origin::Set,
            true if choice => Origin::Profile,
            _ => Origin::Shipped,
        }
    }

    /// The sizes of a part, if its way can carry them; else why not.
    fn claim(&self, part: &Part) -> Result<Claim, String> {
        let most = match part.way {
            Way::Inline => INLINE_MAX,
            Way::Eager => self.record,
            Way::Stream => MAX_MSG,
            way if way.needs_loan() && self.lend => MAX_MSG,
            Way::Mapped | Way::MappedAlone | Way::MappedShared => return Err("FI_RUSTMX_LEND=never forbids it".into()),
            Way::Syscall | Way::Alone | Way::Shared if self.kernel => MAX_MSG,
            Way::Syscall | Way::Alone | Way::Shared => {
                return Err("FI_RUSTMX_CMA=never forbids to ask the kernel for copies".into());
            }
        };
        let (from, to) = (part.from.unwrap_or(0), part.to.unwrap_or(most as u64));
        match (usize::try_from(from), usize::try_from(to)) {
            (Ok(from), Ok(to)) if from <= most && to <= most => Ok(Claim { way: part.way, sizes: from..=to }),
            _ => Err(match part.way {
                Way::Inline => format!("inline carries at most {INLINE_MAX} bytes, what fits beside the header"),
                Way::Eager if from.max(to) <= RECORD_MAX as u64 => {
                    format!("eager carries at most {most} bytes, one record of the ring (FI_RUSTMX_RING_SIZE makes it longer)")
                }
                Way::Eager if most == RECORD_MAX => format!("eager carries at most {most} bytes"),
                Way::Eager => format!("eager carries at most {most} bytes, and {RECORD_MAX} by the longest ring"),
                _ => format!("no message is longer than {MAX_MSG} bytes"),
            }),
        }
    }

    fn row(&self, from: usize, way: Way, origin: Origin) -> Row {
        let (proto, shared) = match way {
            Way::Inline => (ProtoId::Inline, false),
            Way::Eager => (ProtoId::Eager, false),
            Way::Stream => (ProtoId::Stream, false),
            Way::Syscall => (ProtoId::Syscall, from >= self.share),
            Way::Alone => (ProtoId::Syscall, false),
            Way::Shared => (ProtoId::Syscall, true),
            Way::Mapped => (ProtoId::Mapped, from >= self.mapped_share),
            Way::MappedAlone => (ProtoId::Mapped, false),
            Way::MappedShared => (ProtoId::Mapped, true),
        };
        Row { from, up_to: MAX_MSG, proto, shared, lent: way.needs_loan(), origin }
    }

    /// The rows of a table of which nothing is forced.
    fn unforced(&self, tuned: Option<Tuned>) -> Vec<Row> {
        let mut borders = vec![0, INLINE_MAX + 1, self.eager + 1, self.record + 1, self.syscall, self.share];
        borders.retain(|b| *b <= MAX_MSG);
        borders.sort_unstable();
        borders.dedup();
        let shipped = || borders.iter().map(|from| (*from, self.plain(*from), false)).collect();
        let steps: Vec<(usize, Way, bool)> = tuned.map_or_else(shipped, |tuned| {
            let menu = Menu {
                borders: &borders,
                shipped: &|len| self.plain(len),
                possible: &|way, len| self.can(way, len) && self.may(way, len) && helps(way, len),
            };
            plan(tuned.model, tuned.case, &menu, &|steps| steps.len() <= MOST_STEPS)
                .0
                .into_iter()
                .map(|s| (s.from, s.way, s.measured))
                .collect()
        });
        // A step may go on over sizes of which the user said something.
        let mut rows = Vec::new();
        for from in with_all(steps.iter().map(|s| s.0), &borders) {
            let (_, way, measured) = steps[steps.partition_point(|s| s.0 <= from) - 1];
            push(&mut rows, self.row(from, way, self.origin(from, measured)));
        }
        rows
    }

    /// How messages in lent memory go of which nothing is forced: first sizes, ways, and whether that was measured. They are mapped, or go as
    /// others do, by `plain`.
    fn lent_steps(&self, plain: &[Row], tuned: Option<Tuned>) -> Vec<(usize, Way, bool)> {
        let as_others = |len: usize| plain[plain.partition_point(|r| r.from <= len) - 1].way();
        let shipped = |len: usize| match len {
            n if !self.lend || n < self.mapped => as_others(n),
            n if n < self.mapped_share => Way::MappedAlone,
            _ => Way::MappedShared,
        };
        let borders = with_all(plain.iter().map(|r| r.from), &[self.mapped, self.mapped_share.max(self.mapped)]);
        // The user's sizes are about mapping or not, from when on, and by whom: nothing is left to be chosen.
        let Some(tuned) = tuned.filter(|_| self.lend && !self.given.mapped) else {
            return borders.iter().map(|from| (*from, shipped(*from), false)).collect();
        };
        let mapped = [Way::MappedAlone, Way::MappedShared];
        let possible = |way: Way, len: usize| mapped.contains(&way) && len > INLINE_MAX && helps(way, len);
        let menu =
            Menu { borders: &borders, shipped: &shipped, possible: &|way, len| possible(way, len) || way == as_others(len) };
        let case = Case { memory: Memory::Exported, ..tuned.case };
        let steps = plan(tuned.model, case, &menu, &|steps| steps.iter().filter(|s| s.way.needs_loan()).count() <= MOST_LENT).0;
        // What goes as others do is said there.
        steps.into_iter().map(|s| (s.from, s.way, s.measured && s.way.needs_loan())).collect()
    }
}

/// The rows for messages in lent memory; where there is none, they go as others do. `plain` are the rows of those, without what is forced.
fn lent(limits: &Limits, claims: &[Claim], plain: &[Row], tuned: Option<Tuned>) -> Vec<Row> {
    let steps = limits.lent_steps(plain, tuned);
    let mut borders: Vec<usize> = claims.iter().flat_map(|c| [*c.sizes.start(), c.sizes.end() + 1]).collect();
    borders.push(limits.mapped_share);
    borders.retain(|b| (INLINE_MAX + 1..=MAX_MSG).contains(b));
    let mut rows: Vec<Row> = Vec::new();
    for from in with_all(steps.iter().map(|s| s.0.max(INLINE_MAX + 1)), &borders) {
        let (way, origin) = match claims.iter().find(|c| c.sizes.contains(&from)) {
            Some(claim) => (claim.way, Origin::Forced),
            None => {
                let (_, way, measured) = steps[steps.partition_point(|s| s.0 <= from) - 1];
                let said = if limits.given.mapped { Origin::Set } else { Origin::Shipped };
                (way, if measured { Origin::Profile } else { said })
            }
        };
        let open = rows.last_mut().filter(|last| last.up_to == MAX_MSG);
        if !way.needs_loan() {
            if let Some(last) = open {
                last.up_to = from - 1;
            }
        } else if open.is_some() {
            push(&mut rows, limits.row(from, way, origin));
        } else {
            rows.push(limits.row(from, way, origin));
        }
    }
    rows
}

/// Whether there is something for a second side to do, if the way has one.
fn helps(way: Way, len: usize) -> bool {
    way.unshared().is_none() || len > LEAST_CHUNK
}

/// Most steps of a plan. Where the user set sizes, a step may become several rows: the borders of [`Limits`] are six.
const MOST_STEPS: usize = 7;
/// Most steps of a plan by which messages are mapped.
const MOST_LENT: usize = 4;

/// Both, ascending, each once.
fn with_all(some: impl Iterator<Item = usize>, others: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = some.chain(others.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Adds a row that begins where the last one is to end, or makes that one longer.
fn push(rows: &mut Vec<Row>, row: Row) {
    match rows.last_mut() {
        Some(last) if (last.proto, last.shared, last.origin) == (row.proto, row.shared, row.origin) => {}
        Some(last) => {
            last.up_to = row.from - 1;
            rows.push(row);
        }
        None => rows.push(row),
    }
}

/// The rows, and the forced parts that are ignored with the reason of each.
pub(super) fn build(
    config: &Config,
    record_max: usize,
    peers: PeerClass,
    tuned: Option<Tuned>,
) -> (Box<[Row]>, Vec<(String, String)>) {
    // A forced part brings two borders to the one half and cuts a row of the other in two; or, if it is of lent memory, three to that half.
    const { assert!(MAX_ROWS >= MOST_STEPS + 6 + MOST_LENT + 3 * Forced::MOST) };
    let limits = Limits::new(config, record_max, peers);
    let (mut claims, mut refused): (Vec<Claim>, _) = (Vec::new(), Vec::new());
    for part in config.protocol.parts() {
        match limits.claim(part) {
            Ok(claim) if is_covered(&claims, &claim) => {
                refused.push((part.to_string(), "earlier parts of the list take all of these sizes".into()));
            }
            Ok(claim) => claims.push(claim),
            Err(why) => refused.push((part.to_string(), why)),
        }
    }
    let unforced = limits.unforced(tuned);
    let mut borders: Vec<usize> = claims.iter().flat_map(|c| [*c.sizes.start(), c.sizes.end() + 1]).collect();
    borders.push(limits.share);
    borders.retain(|b| *b <= MAX_MSG);
    let mut rows: Vec<Row> = Vec::new();
    for from in with_all(unforced.iter().map(|r| r.from), &borders) {
        // Only lent memory can be mapped: for other messages of these sizes the rest of the list counts.
        let row = match claims.iter().find(|c| !c.way.needs_loan() && c.sizes.contains(&from)) {
            Some(claim) => limits.row(from, claim.way, Origin::Forced),
            None => Row { from, up_to: MAX_MSG, ..unforced[unforced.partition_point(|r| r.from <= from) - 1] },
        };
        push(&mut rows, row);
    }
    rows.extend(lent(&limits, &claims, &unforced, tuned));
    (rows.into(), refused)
}

/// Whether others have every size of a claim.
fn is_covered(others: &[Claim], claim: &Claim) -> bool {
    let mut at = *claim.sizes.start();
    while at <= *claim.sizes.end() {
        match others.iter().find(|o| (!o.way.needs_loan() || claim.way.needs_loan()) && o.sizes.contains(&at)) {
            Some(other) => at = other.sizes.end() + 1,
            None => return false,
        }
    }
    true
}
