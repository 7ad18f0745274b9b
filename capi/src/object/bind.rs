//! `fi_ep_bind`: what an endpoint reports to, resolves names with and shares (fi_endpoint(3)).
#![expect(unsafe_code)]
// UNSAFETY: receives C handles; casts them through boundary.rs only.

use super::Uses;
use super::av::Av;
use super::cell::DomainCell;
use super::cntr::Cntr;
use super::cq::Cq;
use super::ep::Ep;
use super::eq::Eq;
use super::shared::{Srx, Stx};
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{Answer, class_of, object, refuse};
use rustmx::CntrEvents;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Ep {
    /// # Safety
    /// `other` is a live object.
    pub(super) unsafe fn bind(&self, other: *mut fid, flags: u64) -> Answer<()> {
        // SAFETY: live objects (caller) of the class found.
        let uses = unsafe {
            match class_of(other)? {
                FI_CLASS_CQ => self.bind_cq(object(other)?, flags)?,
                FI_CLASS_CNTR => self.bind_cntr(object(other)?, flags)?,
                FI_CLASS_AV => {
                    let av = object::<Av, _>(other)?;
                    if flags != 0 {
                        return refuse(FI_EBADFLAGS);
                    }
                    self.same_domain(&av.cell)?;
                    self.cell.control()?.ep_bind_av(self.id, av.table.clone())?;
                    Some(av.uses.clone())
                }
                // Nothing is reported there for connectionless endpoints, but clients bind one all the same.
                FI_CLASS_SRX_CTX | FI_CLASS_STX_CTX if flags != 0 => return refuse(FI_EBADFLAGS),
                FI_CLASS_SRX_CTX => self.bind_srx(object(other)?)?,
                FI_CLASS_STX_CTX => self.bind_stx(object(other)?)?,
                FI_CLASS_EQ => Some(object::<Eq, _>(other)?.uses.clone()),
                _ => return refuse(FI_EINVAL),
            }
        };
        self.bound.lock().extend(uses);
        Ok(())
    }

    fn bind_cq(&self, cq: &Cq, flags: u64) -> Answer<Option<Uses>> {
        if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 {
            return refuse(FI_EBADFLAGS);
        }
        self.same_domain(&cq.cell)?;
        let (transmit, recv) = (flags & FI_TRANSMIT != 0, flags & FI_RECV != 0);
        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
        self.cell.control()?.ep_bind_cq(self.id, cq.id, transmit, recv, selective)?;
        Ok(None)
    }

    fn bind_cntr(&self, cntr: &Cntr, flags: u64) -> Answer<Option<Uses>> {
        let Some(events) = CntrEvents::from_bits(flags) else { return refuse(FI_EBADFLAGS) };
        self.same_domain(&cntr.cell)?;
        self.cell.control()?.ep_bind_cntr(self.id, cntr.id, events)?;
        Ok(None)
    }

    fn bind_srx(&self, srx: &Srx) -> Answer<Option<Uses>> {
        self.same_domain(&srx.cell)?;
        self.cell.control()?.ep_bind_srx(self.id, srx.id)?;
        self.has_shared.1.store(true, Ordering::Release);
        self.adjusted.receives.store(true, Ordering::Release);
        Ok(None)
    }

    fn bind_stx(&self, stx: &Stx) -> Answer<Option<Uses>> {
        self.same_domain(&stx.cell)?;
        if self.has_shared.0.swap(true, Ordering::AcqRel) {
            return refuse(FI_EOPBADSTATE);
        }
        Ok(Some(stx.uses.clone()))
    }

    /// `-FI_EDOMAIN` for what belongs to another domain.
    pub(crate) fn same_domain(&self, cell: &Arc<DomainCell>) -> Answer<()> {
        if Arc::ptr_eq(cell, &self.cell) { Ok(()) } else { refuse(FI_EDOMAIN) }
    }
}
