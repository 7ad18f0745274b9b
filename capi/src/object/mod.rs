//! One file per kind of `fid`: open, bind, control, close, and the calls that are not on the data path.

pub(crate) mod av;
mod bind;
pub(crate) mod cell;
pub(crate) mod cntr;
pub(crate) mod cq;
pub(crate) mod domain;
pub(crate) mod ep;
pub(crate) mod eq;
mod ext;
pub(crate) mod fabric;
pub(crate) mod fid;
pub(crate) mod mr;
mod options;
pub(crate) mod poll;
pub(crate) mod progress;
pub(crate) mod shared;
pub(crate) mod wait;

use std::sync::Arc;

/// Counts who uses an object, so that closing it too early is refused with `-FI_EBUSY`.
#[derive(Clone, Default)]
pub(crate) struct Uses(Arc<()>);

impl Uses {
    /// Whether someone holds a clone.
    pub(crate) fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Waits of the blocking calls: a deadline from libfabric's timeout in milliseconds (negative: none).
pub(crate) struct Deadline(Option<std::time::Instant>);

impl Deadline {
    pub(crate) fn after(timeout: libc::c_int) -> Deadline {
        let limit = u64::try_from(timeout).ok().map(std::time::Duration::from_millis);
        Deadline(limit.and_then(|d| std::time::Instant::now().checked_add(d)))
    }

    pub(crate) fn passed(&self) -> bool {
        self.0.is_some_and(|at| std::time::Instant::now() >= at)
    }

    /// What is left of it, at most `limit`; `None`: for ever.
    pub(crate) fn rest(&self, limit: Option<std::time::Duration>) -> Option<std::time::Duration> {
        let rest = self.0.map(|at| at.saturating_duration_since(std::time::Instant::now()));
        match (rest, limit) {
            (Some(rest), Some(limit)) => Some(rest.min(limit)),
            (rest, limit) => rest.or(limit),
        }
    }

    pub(crate) fn at(&self) -> Option<std::time::Instant> {
        self.0
    }
}
