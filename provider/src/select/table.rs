//! Building the table: what the sizes of the configuration say, and over it what the user forces.

use super::{MAX_ROWS, Row};
use crate::config::Config;
use crate::config::force::{Forced, Part, Way};
use crate::types::{INJECT_MAX, MAX_MSG, ProtoId};

/// A part that can be carried, with all sizes known.
struct Claim {
    way: Way,
    sizes: std::ops::RangeInclusive<usize>,
}

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
}

impl Limits {
    fn new(config: &Config, record_max: usize) -> Limits {
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let record = record_max.min(usize::from(u16::MAX));
        let eager = bytes(config.eager_max).min(record).max(INJECT_MAX);
        let syscall = bytes(config.syscall_min).clamp(eager + 1, MAX_MSG);
        let mapped = bytes(config.mapped_min).clamp(INJECT_MAX + 1, MAX_MSG);
        let (share, mapped_share) = (bytes(config.share_min), bytes(config.mapped_share_min));
        Limits { eager, record, syscall, share, kernel: config.cma == 0, mapped, mapped_share, lend: config.lend != 2 }
    }

    /// How a message goes that lies in memory which was lent; `None`: as any other.
    fn lent(&self, len: usize, claim: Option<&Claim>) -> Option<Way> {
        let mapped = claim.map_or(self.lend && len >= self.mapped, |c| c.way == Way::Mapped);
        (mapped && len > INJECT_MAX).then_some(Way::Mapped)
    }

    /// How a message goes that nothing is said about.
    fn plain(&self, len: usize) -> Way {
        match len {
            n if n <= INJECT_MAX => Way::Inline,
            n if n <= self.eager => Way::Eager,
            n if n >= self.syscall && self.kernel => Way::Syscall,
            _ => Way::Stream,
        }
    }

    /// The sizes of a part, if its way can carry them; else why not.
    fn claim(&self, part: &Part) -> Result<Claim, String> {
        let most = match part.way {
            Way::Inline => INJECT_MAX,
            Way::Eager => self.record,
            Way::Stream => MAX_MSG,
            Way::Mapped if self.lend => MAX_MSG,
            Way::Mapped => return Err("FI_RUSTMX_LEND=never forbids it".into()),
            Way::Syscall | Way::Alone | Way::Shared if self.kernel => MAX_MSG,
            Way::Syscall | Way::Alone | Way::Shared => {
                return Err("FI_RUSTMX_CMA=never forbids to ask the kernel for copies".into());
            }
        };
        let (from, to) = (part.from.unwrap_or(0), part.to.unwrap_or(most as u64));
        match (usize::try_from(from), usize::try_from(to)) {
            (Ok(from), Ok(to)) if from <= most && to <= most => Ok(Claim { way: part.way, sizes: from..=to }),
            _ => Err(match part.way {
                Way::Inline => format!("inline carries at most {INJECT_MAX} bytes, what fits beside the header"),
                Way::Eager => {
                    format!("eager carries at most {most} bytes, one record of the ring (FI_RUSTMX_RING_SIZE makes it longer)")
                }
                _ => format!("no message is longer than {MAX_MSG} bytes"),
            }),
        }
    }

    fn row(&self, from: usize, way: Way, forced: bool) -> Row {
        let (proto, shared) = match way {
            Way::Inline => (ProtoId::Inline, false),
            Way::Eager => (ProtoId::Eager, false),
            Way::Stream => (ProtoId::Stream, false),
            Way::Syscall => (ProtoId::Syscall, from >= self.share),
            Way::Alone => (ProtoId::Syscall, false),
            Way::Shared => (ProtoId::Syscall, true),
            Way::Mapped => (ProtoId::Mapped, from >= self.mapped_share),
        };
        Row { from, up_to: MAX_MSG, proto, shared, lent: way == Way::Mapped, forced }
    }
}

/// The rows, and the forced parts that are ignored with the reason of each.
pub(super) fn build(config: &Config, record_max: usize) -> (Box<[Row]>, Vec<(String, String)>) {
    const { assert!(MAX_ROWS > 5 + 2 + 2 * 2 * Forced::MOST) };
    let limits = Limits::new(config, record_max);
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
    let mut borders = vec![0, INJECT_MAX + 1, limits.eager + 1, limits.syscall, limits.share, limits.mapped, limits.mapped_share];
    borders.extend(claims.iter().flat_map(|c| [*c.sizes.start(), c.sizes.end() + 1]));
    borders.retain(|b| *b <= MAX_MSG);
    borders.sort_unstable();
    let plain = borders.iter().map(|&from| {
        // Only lent memory can be mapped: for other messages of these sizes the rest of the list counts.
        let claim = claims.iter().find(|c| c.way != Way::Mapped && c.sizes.contains(&from));
        let (way, forced) = claim.map_or((limits.plain(from), false), |c| (c.way, true));
        (from, Some((way, forced)))
    });
    let lent = borders.iter().map(|&from| {
        let claim = claims.iter().find(|c| c.sizes.contains(&from));
        (from, limits.lent(from, claim).map(|way| (way, claim.is_some())))
    });
    let mut rows = joined(&limits, plain);
    rows.extend(joined(&limits, lent));
    (rows.into(), refused)
}

/// The rows of ways that begin at these borders, in order, neighbours that are alike as one; where there is no way there is no row.
fn joined(limits: &Limits, begins: impl Iterator<Item = (usize, Option<(Way, bool)>)>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (from, way) in begins {
        let row = way.map(|(way, forced)| limits.row(from, way, forced));
        let last = rows.last_mut().filter(|last| last.up_to == MAX_MSG);
        match (last, row) {
            (Some(last), _) if last.from == from => {}
            (Some(last), Some(row)) if (last.proto, last.shared, last.forced) == (row.proto, row.shared, row.forced) => {}
            (Some(last), row) => {
                last.up_to = from - 1;
                rows.extend(row);
            }
            (None, row) => rows.extend(row),
        }
    }
    rows
}

/// Whether others have every size of a claim.
fn is_covered(others: &[Claim], claim: &Claim) -> bool {
    let mut at = *claim.sizes.start();
    while at <= *claim.sizes.end() {
        match others.iter().find(|o| (o.way != Way::Mapped || claim.way == Way::Mapped) && o.sizes.contains(&at)) {
            Some(other) => at = other.sizes.end() + 1,
            None => return false,
        }
    }
    true
}
