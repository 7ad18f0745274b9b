//! Which protocol carries a message: a table from size to protocol, built when the endpoint opens, able to print itself.
//!
//! The only place that compares sizes to choose, but for the short test in `endpoint::send`, whose border
//! is the last byte of the first row.

use crate::config::Config;
use crate::protocol::Protocol;
use crate::protocol::{eager::Eager, inline::Inline, stream::Stream, syscall::Syscall};
use crate::types::{INJECT_MAX, MAX_MSG, ProtoId};
use std::fmt;

/// One row: sizes up to and including `up_to` go by `proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Last size of the row.
    pub up_to: usize,
    /// Who carries it.
    pub proto: ProtoId,
    /// How it carries them.
    pub what: &'static str,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    rows: [Row; 4],
}

impl Selection {
    /// For a configuration and the most payload one record may carry.
    pub fn new(config: &Config, record_max: usize) -> Selection {
        let eager = usize::try_from(config.eager_max).unwrap_or(usize::MAX).min(record_max).max(INJECT_MAX);
        fn row<P: Protocol>(up_to: usize) -> Row {
            Row { up_to, proto: P::ID, what: P::WHAT }
        }
        let syscall = usize::try_from(config.syscall_min).unwrap_or(usize::MAX).clamp(eager + 1, MAX_MSG);
        let streamed = if config.cma == 0 { syscall - 1 } else { MAX_MSG };
        Selection {
            rows: [row::<Inline>(INJECT_MAX), row::<Eager>(eager), row::<Stream>(streamed), row::<Syscall>(MAX_MSG)],
        }
    }

    /// The protocol for a message of `len` bytes.
    #[inline]
    pub fn choose(&self, len: usize) -> ProtoId {
        self.rows.iter().find(|r| len <= r.up_to).map_or(ProtoId::Stream, |r| r.proto)
    }

    /// The row for a message of `len` bytes, with its first and last size.
    pub fn row(&self, len: usize) -> ((usize, usize), Row) {
        let at = self.rows.iter().position(|r| len <= r.up_to).unwrap_or(self.rows.len() - 1);
        let from = if at == 0 { 0 } else { self.rows[at - 1].up_to + 1 };
        ((from, self.rows[at].up_to), self.rows[at])
    }
}

/// The table as people read it.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut from = 0;
        for r in &self.rows {
            if r.up_to < from {
                continue;
            }
            let to = if r.up_to == MAX_MSG { "max".into() } else { r.up_to.to_string() };
            writeln!(f, "{:>8} .. {:<8} {:<8} {}", from, to, format!("{:?}", r.proto).to_lowercase(), r.what)?;
            from = r.up_to + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_and_text() {
        let s = Selection::new(&Config::default(), 6000);
        let at = |n| s.choose(n);
        assert_eq!([at(0), at(232)], [ProtoId::Inline; 2]);
        assert_eq!([at(233), at(4096)], [ProtoId::Eager; 2]);
        assert_eq!([at(4097), at((16 << 10) - 1)], [ProtoId::Stream; 2]);
        assert_eq!([at(16 << 10), at(MAX_MSG)], [ProtoId::Syscall; 2]);
        assert_eq!((s.row(233).0, s.row(4096).1.proto), ((233, 4096), ProtoId::Eager));
        let text = s.to_string();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("233 .. 4096     eager"), "{text}");
    }

    #[test]
    fn a_small_ring_limits_eager() {
        assert_eq!(Selection::new(&Config::default(), 1000).choose(1001), ProtoId::Stream);
        assert_eq!(Selection::new(&Config::default(), 10).choose(232), ProtoId::Inline);
    }

    #[test]
    fn without_the_kernels_help_streams_carry_the_rest() {
        let s = Selection::new(&Config { cma: 1, ..Config::default() }, 6000);
        assert_eq!(s.choose(MAX_MSG), ProtoId::Stream);
        assert_eq!(s.to_string().lines().count(), 3);
        let s = Selection::new(&Config { syscall_min: 4 << 10, ..Config::default() }, 6000);
        assert_eq!([s.choose(4096), s.choose(4097)], [ProtoId::Eager, ProtoId::Syscall], "eager comes first");
    }
}
