//! What the domain tells about itself: counters, and how an operation would go (`capi` hands both to C, see `include/`).

use super::Domain;
pub use crate::endpoint::{Movement, Plan, Telling, Told, lending};
use crate::error::{Error, Result};
use crate::stats::Stats;
use crate::types::{Addr, EpId};

impl Domain {
    /// How `len` bytes would go from an endpoint to the peer of a handle, if they went now.
    ///
    /// # Errors
    /// Why they cannot go there at all.
    pub fn ep_plan(&mut self, ep: EpId, to: Addr, what: Movement, len: usize) -> Result<Plan> {
        self.eps.get_mut(ep.0).ok_or(Error::Invalid)?.plan(to, what, len)
    }

    /// What an endpoint did so far: which way how much went, what was refused and why, in whole lines; empty if it was not used.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such endpoint.
    pub fn ep_history(&self, ep: EpId, telling: Telling) -> Result<String> {
        Ok(self.eps.get(ep.0).ok_or(Error::Invalid)?.history(telling))
    }

    /// Where other hosts reach an endpoint, best first, and why there; empty: they do not.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such endpoint.
    pub fn ep_addresses(&self, ep: EpId) -> Result<Vec<Told>> {
        Ok(self.eps.get(ep.0).ok_or(Error::Invalid)?.addresses())
    }

    /// What the open endpoints did so far, together.
    pub fn stats(&self) -> Stats {
        self.eps.iter().fold(Stats::default(), |sum, (_, ep)| sum.plus(&ep.stats()))
    }
}
