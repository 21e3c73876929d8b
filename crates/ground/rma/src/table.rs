//! A server's regions as one connection knows them.

use std::sync::Arc;

use crate::connection::{OpError, ReadOp, RegionId, RegionInfo};
use crate::limits::{READ_BYTES_MAX, REGIONS_MAX};
use crate::region::Region;
use crate::service::Service;

/// The regions of a service at one moment; a region's id is its place.
#[derive(Clone, Debug)]
pub(crate) struct RegionTable(Arc<[Arc<Region>]>);

impl RegionTable {
    /// # Panics
    /// If the service has more than [`REGIONS_MAX`] regions.
    pub(crate) fn of(service: &dyn Service) -> Self {
        let regions = service.regions();
        assert!(regions.len() <= REGIONS_MAX, "{} regions, {REGIONS_MAX} is the limit", regions.len());
        Self(regions.into())
    }

    pub(crate) fn regions(&self) -> &[Arc<Region>] {
        &self.0
    }

    /// Whether the other one's regions are the same ones, and at the same places in memory.
    pub(crate) fn is_same_memory(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&*other.0).all(|(one, two)| Arc::ptr_eq(one, two))
    }

    pub(crate) fn infos(&self) -> Vec<RegionInfo> {
        let ids = (0..).map(RegionId);
        ids.zip(self.0.iter()).map(|(id, region)| region.info(id)).collect()
    }

    /// The region that `op` may read from.
    #[inline]
    pub(crate) fn find(&self, op: &ReadOp) -> Result<&Arc<Region>, OpError> {
        let region = self.0.get(op.region.0 as usize);
        let region =
            region.filter(|region| region.generation() == op.generation).ok_or(OpError::StaleRegion)?;
        if op.len > READ_BYTES_MAX || !region.contains(op.offset, op.len) {
            return Err(OpError::OutOfBounds);
        }
        Ok(region)
    }
}
