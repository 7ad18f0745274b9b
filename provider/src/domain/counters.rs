//! The counters of a domain (fi_cntr(3)).

use super::Domain;
use crate::completion::counter::Counter;
use crate::error::{Error, Result};
use crate::types::CntrId;

impl Domain {
    /// Opens a counter.
    pub fn cntr_open(&mut self) -> CntrId {
        CntrId(self.cntrs.open())
    }

    /// Closes a counter.
    ///
    /// # Errors
    /// [`Error::Busy`] while an endpoint is bound to it.
    pub fn cntr_close(&mut self, cntr: CntrId) -> Result<()> {
        match self.cntrs.get(cntr.0) {
            Some(c) if c.bound > 0 => Err(Error::Busy),
            Some(_) => {
                self.cntrs.close(cntr.0);
                Ok(())
            }
            None => Err(Error::Invalid),
        }
    }

    /// Somebody is bound to it.
    pub(super) fn count_binding(&mut self, cntr: CntrId) {
        if let Some(c) = self.cntrs.get_mut(cntr.0) {
            c.bound += 1;
        }
    }

    /// He is no more.
    pub(super) fn count_unbinding(&mut self, cntr: CntrId) {
        if let Some(c) = self.cntrs.get_mut(cntr.0) {
            c.bound -= 1;
        }
    }

    /// Makes progress and returns the count of successes.
    pub fn cntr_read(&mut self, cntr: CntrId) -> u64 {
        self.progress();
        self.cntrs.get(cntr.0).map_or(0, |c| c.ok)
    }

    /// Makes progress and returns the count of failures.
    pub fn cntr_read_err(&mut self, cntr: CntrId) -> u64 {
        self.progress();
        self.cntrs.get(cntr.0).map_or(0, |c| c.err)
    }

    pub(super) fn cntr(&mut self, cntr: CntrId, change: impl FnOnce(&mut Counter)) {
        if let Some(c) = self.cntrs.get_mut(cntr.0) {
            change(c);
            self.rouse();
        }
    }

    /// The client changes a counter: deferred work may be due.
    fn set_by_client(&mut self, cntr: CntrId, change: impl FnOnce(&mut Counter)) {
        self.cntr(cntr, change);
        if !self.deferred.is_empty() && !self.owner.is_elsewhere() {
            self.run_deferred();
        }
    }

    /// Adds to the successes.
    pub fn cntr_add(&mut self, cntr: CntrId, n: u64) {
        self.set_by_client(cntr, |c| c.ok = c.ok.wrapping_add(n));
    }

    /// Adds to the failures.
    pub fn cntr_add_err(&mut self, cntr: CntrId, n: u64) {
        self.set_by_client(cntr, |c| c.err = c.err.wrapping_add(n));
    }

    /// Sets the successes.
    pub fn cntr_set(&mut self, cntr: CntrId, n: u64) {
        self.set_by_client(cntr, |c| c.ok = n);
    }

    /// Sets the failures.
    pub fn cntr_set_err(&mut self, cntr: CntrId, n: u64) {
        self.set_by_client(cntr, |c| c.err = n);
    }
}
