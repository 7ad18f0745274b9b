//! Which copy engines are used for what: by the user's word, and where none is said by what was measured (`docs/adr/0018-copy-engines.md`).

use super::crowd::Crowd;
use crate::config::Config;

/// Bytes of the shortest message in mapped memory that `FI_RUSTMX_COPY=streaming` copies past the caches: shorter ones lie in the nearest cache.
const STREAM_FROM: usize = 64 << 10;

/// Bytes of the shortest one that goes that way. `auto`: none, for it pays only if nobody reads what arrives.
pub(super) fn stream_from(config: &Config) -> usize {
    if config.copy == 2 { STREAM_FROM } else { usize::MAX }
}

/// Bytes of the shortest message that the helper thread copies, too.
pub(super) fn help_from(config: &Config, crowd: &Crowd) -> usize {
    match config.copy_thread {
        0 => usize::MAX,
        1 if !crowd.has_room() => usize::MAX,
        _ => config.copy_thread_min as usize,
    }
}
