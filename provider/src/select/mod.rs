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
    /// Of the kernel's copies: whether both sides call it. The receiver's table decides that.
    pub shared: bool,
    /// Whether the user forces this.
    pub forced: bool,
}

/// Most rows of a table: each forced part brings at most two borders.
pub const MAX_ROWS: usize = 16;

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
    rows: Box<[Row]>,
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
        Selection { inline_below, rows }
    }

    /// The protocol for a message of `len` bytes; `at_once`: a short one (`INJECT_MAX`), whose buffer is the caller's again when the
    /// call returns, which only inline can promise.
    #[inline]
    pub fn choose(&self, len: usize, at_once: bool) -> Pick {
        if len < self.inline_below {
            return Pick { row: 0, proto: ProtoId::Inline, turned: false };
        }
        let at = self.rows.iter().position(|r| len <= r.up_to).unwrap_or(self.rows.len() - 1);
        let proto = self.rows[at].proto;
        let turned = at_once && proto != ProtoId::Inline;
        Pick { row: at as u8, proto: if turned { ProtoId::Inline } else { proto }, turned }
    }

    /// The row for a message of `len` bytes.
    pub fn row(&self, len: usize) -> Row {
        self.rows[usize::from(self.choose(len, false).row)]
    }

    /// All rows, by size.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The sizes at which the kernel's copies begin to be called by both sides, end to be, begin again, and so on.
    pub fn share_borders(&self) -> Vec<usize> {
        let mut borders = Vec::new();
        for row in &self.rows {
            if row.proto == ProtoId::Syscall && row.shared != (borders.len() % 2 == 1) {
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
        }
    }

    /// How it carries them, for people.
    pub fn what(&self) -> &'static str {
        match self.proto {
            ProtoId::Inline => Inline::WHAT,
            ProtoId::Eager => Eager::WHAT,
            ProtoId::Stream => Stream::WHAT,
            ProtoId::Syscall if self.shared => "one copy by the kernel, called by both sides at once",
            ProtoId::Syscall => "one copy by the kernel, called by one side",
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
        assert_eq!([s.row(16 << 10).shared, s.row((128 << 10) - 1).shared, s.row(128 << 10).shared], [false, false, true]);
        assert_eq!(s.share_borders(), [128 << 10]);
        let text = s.to_string();
        assert_eq!(text.lines().count(), 5, "{text}");
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
        assert_eq!(s.to_string().lines().count(), 3);
        assert!(s.share_borders().is_empty());
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
        assert_eq!((s.rows().len(), s.inline_below), (1, 0));
        assert_eq!([s.choose(0, false).proto, s.choose(MAX_MSG, false).proto], [ProtoId::Stream; 2]);
        assert!(s.to_string().contains("0 .. max      stream   fragments") && s.to_string().contains("(forced)"), "{s}");
        let s = forced("eager:0-4k,alone:64k-1m");
        let ways: Vec<(usize, Way, bool)> = s.rows().iter().map(|r| (r.from, r.way(), r.forced)).collect();
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
        assert_eq!(forced("inline").to_string().lines().count(), 5);
        assert_eq!(forced("shared:4k-8k,alone:1m-").share_borders(), [4096, 16 << 10, 128 << 10, 1 << 20]);
        assert_eq!(forced("shared").share_borders(), [0]);
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
            parts in proptest::collection::vec((0usize..6, 0u64..200_000, 0u64..200_000), 0..=Forced::MOST),
            never in any::<bool>(), sizes in proptest::collection::vec(0usize..300_000, 20),
        ) {
            let list: Vec<String> =
                parts.iter().map(|(w, a, b)| format!("{}:{}-{}", Way::ALL[*w].name(), a.min(b), a.max(b))).collect();
            let config = with(&list.join(","), Config { cma: u64::from(never), ..Config::default() });
            let (s, plain) = (Selection::new(&config, 6000), Selection::new(&Config { protocol: Forced::default(), ..config.clone() }, 6000));
            prop_assert!(s.rows().len() <= MAX_ROWS);
            prop_assert_eq!(s.rows()[0].from, 0);
            prop_assert_eq!(s.rows()[s.rows().len() - 1].up_to, MAX_MSG);
            for pair in s.rows().windows(2) {
                prop_assert_eq!(pair[0].up_to + 1, pair[1].from);
            }
            let possible = |way: Way, to: u64| match way {
                Way::Inline => to <= INJECT_MAX as u64,
                Way::Eager => to <= 6000,
                Way::Stream => true,
                _ => !never,
            };
            for n in sizes {
                let wanted = parts.iter().map(|(w, a, b)| (Way::ALL[*w], *a.min(b), *a.max(b)));
                let first = wanted.clone().find(|(way, from, to)| possible(*way, *to) && (*from..=*to).contains(&(n as u64)));
                let want = match first {
                    None => (plain.row(n).way(), false),
                    Some((Way::Syscall, ..)) if n < 128 << 10 => (Way::Alone, true),
                    Some((Way::Syscall, ..)) => (Way::Shared, true),
                    Some((way, ..)) => (way, true),
                };
                let row = s.row(n);
                prop_assert_eq!((row.way(), row.forced), want, "{} bytes in\n{}", n, s);
                let shared = s.share_borders().iter().filter(|b| n >= **b).count() % 2 == 1;
                prop_assert!(row.proto != ProtoId::Syscall || shared == row.shared);
            }
        }
    }
}
