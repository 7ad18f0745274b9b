//! How long a message may be whose caller gets his buffer back at once.
//!
//! To copy such a message is to have sent it, as far as the caller is concerned: MPICH and Intel MPI spare themselves a request and its completion, a quarter to a third of the time of a message of
//! 256 bytes to 8 KiB (`docs/adr/0023-inject.md`). But it can only be copied: what would go better out of its own memory should not be sent so.

use super::{record_max, record_max_far};
use crate::config::Config;
use crate::config::force::Way;
use crate::sys::heap;
use crate::types::{INJECT_MAX, INLINE_MAX};

/// The longest message of the inject calls that clients are told of: as long as all that are no longer go by a copy anyway.
pub fn inject_max(config: &Config) -> usize {
    longest(config, config.lend != 2 && heap::heap().is_some())
}

/// `lends`: messages in the memory of most programs can be lent.
fn longest(config: &Config, lends: bool) -> usize {
    let before = |from: u64| from.saturating_sub(1);
    let lent = if lends || config.says("mapped_min") { before(config.mapped_min) } else { u64::MAX };
    let kernel = if config.cma == 0 { before(config.syscall_min.min(config.again_min)) } else { u64::MAX };
    // What is forced is meant for messages that can go so.
    let others = config.protocol.parts().iter().filter(|part| !matches!(part.way, Way::Inline | Way::Eager));
    let forced = others.map(|part| before(part.from.unwrap_or(0))).min().unwrap_or(u64::MAX);
    let record = record_max(config).min(record_max_far(config)) as u64;
    let said = [config.inject_max, config.eager_max, config.tcp_eager_max, record, lent, kernel, forced];
    let least = said.into_iter().min().unwrap_or(0);
    usize::try_from(least).unwrap_or(INJECT_MAX).clamp(INLINE_MAX, INJECT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PARAMS;
    use crate::config::processor::Processor;

    fn with(name: &str, value: &str) -> Config {
        let mut config = Config::default();
        let param = PARAMS.iter().find(|p| p.name == name).expect("a parameter");
        param.parse_into(&mut config, value).expect("a value");
        config
    }

    #[test]
    fn whatever_goes_by_a_copy_anyway() {
        for processor in Processor::ALL {
            let config = Config::on(processor);
            assert_eq!(longest(&config, false), INJECT_MAX, "{processor:?}");
            assert_eq!(longest(&config, true) as u64, (config.mapped_min - 1).min(INJECT_MAX as u64), "{processor:?}");
        }
        for (name, value, longest_is) in [
            ("inject_max", "1k", 1024),
            ("inject_max", "232", INLINE_MAX),
            ("eager_max", "3000", 3000),
            ("tcp_eager_max", "232", INLINE_MAX),
            ("syscall_min", "4k", 4095),
            ("mapped_min", "256", 255),
            ("again_min", "5000", 4999),
            ("protocol", "stream", INLINE_MAX),
            ("protocol", "inline", INJECT_MAX),
            ("protocol", "eager:1k-2k", INJECT_MAX),
            ("protocol", "eager:1k-2k,stream:2k-3k", 2047),
            ("protocol", "syscall:64k-", INJECT_MAX),
        ] {
            assert_eq!(longest(&with(name, value), false), longest_is, "{name}={value}");
        }
        assert_eq!(longest(&Config { cma: 1, ..with("syscall_min", "4k") }, false), INJECT_MAX, "the kernel is not asked");
    }
}
