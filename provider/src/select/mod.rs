//! Which protocol carries a message: a table from size to protocol, built when the endpoint opens, able to print itself.
//!
//! The only place that compares sizes to choose. What the user forces (`FI_RUSTMX_PROTOCOL`) is worked into the table when it is
//! built, so a message pays nothing for it.

mod table;

use crate::config::Config;
use crate::config::force::Way;
use crate::protocol::Protocol;
use crate::protocol::{eager::Eager, inline::Inline, stream::Stream};
use crate::shm::{layout, segment};
use crate::types::{MAX_MSG, ProtoId};
use crate::wire::header::HEAD;
use std::fmt;

/// One row: sizes from `from` up to and including `up_to` go by `proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// First size of the row.
    pub from: usize,
    /// Last size of the row.
    pub up_to: usize,
    /// Who carries it.
    pub proto: ProtoId,
    /// Of single copies: whether both sides make them. The receiver's table decides that.
    pub shared: bool,
    /// Only for messages that lie in memory which was lent to the receiver. They are looked up among these rows first.
    pub lent: bool,
    /// Whether the user forces this.
    pub forced: bool,
}

/// Most rows of a table: each forced part brings at most two borders, in both halves.
pub const MAX_ROWS: usize = 32;

/// What the table says of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The row's index, less than [`MAX_ROWS`].
    pub row: u8,
    /// Who carries it.
    pub proto: ProtoId,
    /// The row says otherwise.
    pub turned: bool,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Shorter messages go inline by the first row: one comparison for those that count nanoseconds. 0 if they do not.
    inline_below: usize,
    /// Shorter messages are not looked for in lent memory.
    lent_from: usize,
    /// Those for all messages, and then those for lent memory.
    rows: Box<[Row]>,
    /// How many the first are.
    plain: usize,
}

/// Most payload that one record may carry, for a configured ring size.
pub fn record_max(config: &Config) -> usize {
    layout::ring_lines(segment::bytes_for(config.ring_size)) as usize / 4 * layout::LINE - HEAD
}

/// What of `FI_RUSTMX_PROTOCOL` cannot be done with this configuration and is ignored, and why: one sentence for the user.
pub fn complaint(config: &Config) -> Option<String> {
    let (_, refused) = table::build(config, record_max(config));
    let why = refused.iter().map(|(part, why)| format!("`{part}`: {why}")).collect::<Vec<_>>().join("; ");
    (!refused.is_empty()).then(|| format!("FI_RUSTMX_PROTOCOL={}: ignored is {why}", config.protocol))
}

impl Selection {
    /// For a configuration and the most payload one record may carry.
    pub fn new(config: &Config, record_max: usize) -> Selection {
        let (rows, _) = table::build(config, record_max);
        let inline_below = rows.first().filter(|r| r.proto == ProtoId::Inline).map_or(0, |r| r.up_to + 1);
        let plain = rows.iter().filter(|r| !r.lent).count();
        let lent_from = rows.get(plain).map_or(usize::MAX, |r| r.from);
        Selection { inline_below, lent_from, rows, plain }
    }

    /// The protocol for a message of `len` bytes; `at_once`: a short one (`INJECT_MAX`), whose buffer is the caller's again when the
    /// call returns, which only inline can promise.
    #[inline]
    pub fn choose(&self, len: usize, at_once: bool) -> Pick {
        if len < self.inline_below {
            return Pick { row: 0, proto: ProtoId::Inline, turned: false };
        }
        let at = self.rows[..self.plain].iter().position(|r| len <= r.up_to).unwrap_or(self.plain - 1);
        let proto = self.rows[at].proto;
        let turned = at_once && proto != ProtoId::Inline;
        Pick { row: at as u8, proto: if turned { ProtoId::Inline } else { proto }, turned }
    }

    /// The protocol for a message of `len` bytes if it lies in memory that was lent to the receiver; `None`: as any other.
    #[inline]
    pub fn choose_lent(&self, len: usize) -> Option<Pick> {
        if len < self.lent_from {
            return None;
        }
        let at = self.plain + self.rows[self.plain..].iter().position(|r| (r.from..=r.up_to).contains(&len))?;
        Some(Pick { row: at as u8, proto: self.rows[at].proto, turned: false })
    }

    /// The row for a message of `len` bytes that lies anywhere.
    pub fn row(&self, len: usize) -> Row {
        self.rows[usize::from(self.choose(len, false).row)]
    }

    /// All rows, by size.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The sizes at which what goes by `proto` begins to be copied by both sides, ends to be, begins again, and so on.
    pub fn share_borders(&self, proto: ProtoId) -> Vec<usize> {
        let mut borders = Vec::new();
        for row in &self.rows {
            if row.proto == proto && row.shared != (borders.len() % 2 == 1) {
                borders.push(row.from);
            }
        }
        borders
    }
}

impl Row {
    /// The way in one word, as `FI_RUSTMX_PROTOCOL` knows it.
    pub fn way(&self) -> Way {
        match self.proto {
            ProtoId::Inline => Way::Inline,
            ProtoId::Eager => Way::Eager,
            ProtoId::Stream => Way::Stream,
            ProtoId::Syscall if self.shared => Way::Shared,
            ProtoId::Syscall => Way::Alone,
            ProtoId::Mapped => Way::Mapped,
        }
    }

    /// How it carries them, for people.
    pub fn what(&self) -> &'static str {
        match self.proto {
            ProtoId::Inline => Inline::WHAT,
            ProtoId::Eager => Eager::WHAT,
            ProtoId::Stream => Stream::WHAT,
            ProtoId::Syscall if self.shared && self.forced => "one copy by the kernel, called by both sides at once",
            ProtoId::Syscall if self.shared => "one copy by the kernel, called by both sides at once where that pays",
            ProtoId::Syscall => "one copy by the kernel, called by one side",
            ProtoId::Mapped if self.shared && self.forced => {
                "out of lent memory: one copy without the kernel, by both sides at once"
            }
            ProtoId::Mapped if self.shared => {
                "out of lent memory: one copy without the kernel, by both sides at once where that pays"
            }
            ProtoId::Mapped => "out of lent memory: one copy without the kernel, by one side",
        }
    }

    /// Its sizes, as people read them: columns of fixed width.
    pub fn sizes(&self) -> String {
        let to = if self.up_to == MAX_MSG { "max".into() } else { self.up_to.to_string() };
        format!("{:>8} .. {to:<8}", self.from)
    }
}

/// The table as people read it.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for r in &self.rows {
            let forced = if r.forced { " (forced)" } else { "" };
            writeln!(f, "{} {:<8} {}{forced}", r.sizes(), r.proto.name(), r.what())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::force::Forced;
    use crate::types::INJECT_MAX;
    use proptest::prelude::*;

    fn with(list: &str, config: Config) -> Config {
        let (protocol, complaints) = Forced::parse(list);
        assert!(complaints.is_empty(), "{complaints:?}");
        Config { protocol, ..config }
    }

    fn plain(s: &Selection) -> Vec<Row> {
        s.rows().iter().copied().filter(|r| !r.lent).collect()
    }

    fn forced(list: &str) -> Selection {
        Selection::new(&with(list, Config::default()), 6000)
    }

    #[test]
    fn borders_and_text() {
        let s = Selection::new(&Config::default(), 6000);
        let at = |n| s.choose(n, false).proto;
        assert_eq!([at(0), at(232)], [ProtoId::Inline; 2]);
        assert_eq!([at(233), at(4096)], [ProtoId::Eager; 2]);
        assert_eq!([at(4097), at((16 << 10) - 1)], [ProtoId::Stream; 2]);
        assert_eq!([at(16 << 10), at(MAX_MSG), at(usize::MAX)], [ProtoId::Syscall; 3]);
        assert_eq!((s.row(233).from, s.row(4096).up_to, s.row(4096).proto), (233, 4096, ProtoId::Eager));
        assert_eq!([s.row(16 << 10).shared, s.row((64 << 10) - 1).shared, s.row(64 << 10).shared], [false, false, true]);
        assert_eq!(s.share_borders(ProtoId::Syscall), [64 << 10]);
        let text = s.to_string();
        assert_eq!(text.lines().count(), 7, "{text}");
        assert_eq!(s.choose_lent((4 << 10) - 1), None);
        assert_eq!(s.choose_lent(4 << 10).map(|p| (p.row, p.proto)), Some((5, ProtoId::Mapped)));
        assert_eq!(s.choose_lent(64 << 10).map(|p| s.rows()[usize::from(p.row)].shared), Some(true));
        assert_eq!(s.share_borders(ProtoId::Mapped), [32 << 10]);
        assert!(text.contains("233 .. 4096     eager") && !text.contains("forced"), "{text}");
    }

    #[test]
    fn a_small_ring_limits_eager() {
        assert_eq!(Selection::new(&Config::default(), 1000).choose(1001, false).proto, ProtoId::Stream);
        assert_eq!(Selection::new(&Config::default(), 10).choose(232, false).proto, ProtoId::Inline);
    }

    #[test]
    fn without_the_kernels_help_streams_carry_the_rest() {
        let s = Selection::new(&Config { cma: 1, ..Config::default() }, 6000);
        assert_eq!(s.choose(MAX_MSG, false).proto, ProtoId::Stream);
        assert_eq!(plain(&s).len(), 3);
        assert_eq!(s.choose_lent(1 << 20).map(|p| p.proto), Some(ProtoId::Mapped), "that needs no help");
        let s = Selection::new(&Config { lend: 2, ..Config::default() }, 6000);
        assert_eq!((s.rows().len(), s.choose_lent(MAX_MSG)), (5, None));
        let s = Selection::new(&Config { cma: 1, ..Config::default() }, 6000);
        assert!(s.share_borders(ProtoId::Syscall).is_empty());
        let s = Selection::new(&Config { syscall_min: 4 << 10, ..Config::default() }, 6000);
        assert_eq!(
            [s.choose(4096, false).proto, s.choose(4097, false).proto],
            [ProtoId::Eager, ProtoId::Syscall],
            "eager comes first"
        );
    }

    #[test]
    fn forced_parts_are_in_the_table_and_marked() {
        let s = forced("stream");
        assert_eq!((s.rows().len(), s.inline_below, s.choose_lent(1 << 20)), (1, 0, None));
        assert_eq!([s.choose(0, false).proto, s.choose(MAX_MSG, false).proto], [ProtoId::Stream; 2]);
        assert!(s.to_string().contains("0 .. max      stream   fragments") && s.to_string().contains("(forced)"), "{s}");
        let s = forced("eager:0-4k,alone:64k-1m");
        let ways: Vec<(usize, Way, bool)> = plain(&s).iter().map(|r| (r.from, r.way(), r.forced)).collect();
        assert_eq!(
            ways,
            [
                (0, Way::Eager, true),
                (4097, Way::Stream, false),
                (16 << 10, Way::Alone, false),
                (64 << 10, Way::Alone, true),
                ((1 << 20) + 1, Way::Shared, false),
            ]
        );
        // Without sizes: as far as it carries.
        let s = forced("eager");
        assert_eq!([s.choose(6000, false).proto, s.choose(6001, false).proto], [ProtoId::Eager, ProtoId::Stream]);
        assert_eq!(plain(&forced("inline")).len(), 5);
        let s = forced("mapped:1k-8k,stream:-1m");
        assert_eq!([1023, 1024, 8192, 8193, 1 << 20].map(|n| s.choose_lent(n).is_some()), [false, true, true, false, false]);
        assert!(s.choose_lent((1 << 20) + 1).is_some() && s.choose(1024, false).proto == ProtoId::Stream);
        assert_eq!(forced("shared:4k-8k,alone:1m-").share_borders(ProtoId::Syscall), [4096, 16 << 10, 64 << 10, 1 << 20]);
        assert_eq!(forced("shared").share_borders(ProtoId::Syscall), [0]);
    }

    #[test]
    fn what_cannot_be_is_told_and_ignored() {
        let default = Selection::new(&Config::default(), 6000);
        let record = record_max(&Config::default());
        for (list, why) in [
            ("inline:0-4k", "carries at most 232 bytes"),
            ("inline:1k-", "carries at most 232 bytes"),
            ("eager:0-64k", "FI_RUSTMX_RING_SIZE"),
            ("stream:0-9223372036854775807", "no message is longer"),
            ("mapped:0-9223372036854775807", "no message is longer"),
        ] {
            let config = with(list, Config::default());
            let told = complaint(&config).expect("a complaint");
            assert!(told.contains(why) && told.contains(list), "{told}");
            assert_eq!(Selection::new(&config, 6000).rows(), default.rows(), "{list}");
        }
        let never = with("syscall:64k-,eager:0-4k", Config { cma: 1, ..Config::default() });
        let told = complaint(&never).expect("a complaint");
        assert!(told.contains("`syscall:64k-`: FI_RUSTMX_CMA=never") && !told.contains("`eager"), "{told}");
        assert_eq!(Selection::new(&never, 6000).choose(0, false).proto, ProtoId::Eager, "the other part counts");
        let told = complaint(&with("mapped", Config { lend: 2, ..Config::default() })).expect("a complaint");
        assert!(told.contains("FI_RUSTMX_LEND=never"), "{told}");
        let hidden = complaint(&with("stream:1k-4m,eager:2k-3k", Config::default())).expect("a complaint");
        assert!(hidden.contains("`eager:2k-3k`: earlier parts"), "{hidden}");
        assert_eq!(complaint(&with("eager:0-4k,stream:4k-", Config::default())), None, "a common border is no mistake");
        assert_eq!(complaint(&Config::default()), None);
        assert!(record > 4096);
    }

    proptest! {
        /// Whatever the list: the table has no gaps, is not too long, and each size goes as the first part that has it says.
        #[test]
        fn the_first_part_that_has_a_size_counts(
            parts in proptest::collection::vec((0usize..7, 0u64..200_000, 0u64..200_000), 0..=Forced::MOST),
            never in any::<bool>(), sizes in proptest::collection::vec(0usize..300_000, 20),
        ) {
            let list: Vec<String> =
                parts.iter().map(|(w, a, b)| format!("{}:{}-{}", Way::ALL[*w].name(), a.min(b), a.max(b))).collect();
            let config = with(&list.join(","), Config { cma: u64::from(never), ..Config::default() });
            let (s, usual) = (Selection::new(&config, 6000), Selection::new(&Config { protocol: Forced::default(), ..config.clone() }, 6000));
            prop_assert!(s.rows().len() <= MAX_ROWS);
            let rows = plain(&s);
            prop_assert_eq!(rows[0].from, 0);
            prop_assert_eq!(rows[rows.len() - 1].up_to, MAX_MSG);
            for pair in rows.windows(2) {
                prop_assert_eq!(pair[0].up_to + 1, pair[1].from);
            }
            let possible = |way: Way, to: u64| match way {
                Way::Inline => to <= INJECT_MAX as u64,
                Way::Eager => to <= 6000,
                Way::Stream | Way::Mapped => true,
                _ => !never,
            };
            for n in sizes {
                let wanted = parts.iter().map(|(w, a, b)| (Way::ALL[*w], *a.min(b), *a.max(b)));
                let mut has_it = wanted.filter(|(way, from, to)| possible(*way, *to) && (*from..=*to).contains(&(n as u64)));
                let first = has_it.clone().next();
                let mapped = first.map_or(n >= 4 << 10, |(way, ..)| way == Way::Mapped) && n > INJECT_MAX;
                prop_assert_eq!(s.choose_lent(n).is_some(), mapped, "{} bytes of lent memory in\n{}", n, s);
                let want = match has_it.find(|(way, ..)| *way != Way::Mapped) {
                    None => (usual.row(n).way(), false),
                    Some((Way::Syscall, ..)) if n < 64 << 10 => (Way::Alone, true),
                    Some((Way::Syscall, ..)) => (Way::Shared, true),
                    Some((way, ..)) => (way, true),
                };
                let row = s.row(n);
                prop_assert_eq!((row.way(), row.forced), want, "{} bytes in\n{}", n, s);
                let shared = s.share_borders(ProtoId::Syscall).iter().filter(|b| n >= **b).count() % 2 == 1;
                prop_assert!(row.proto != ProtoId::Syscall || shared == row.shared);
            }
        }
    }
}
