//! Memory that reads come into: slots of one mapping, lent one by one.
//!
//! Their number bounds the reads that are under way. What comes into a slot is copied out of it by whoever asked, so
//! that a read that was given up writes to nobody's memory.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::limits::{FABRIC_SLOT_BYTES, FABRIC_SLOTS};
use crate::mapping::Mapping;

/// The slots of one endpoint.
#[derive(Debug)]
pub(crate) struct SlotPool {
    memory: Mapping,
    /// The one that was used last is lent first.
    free: Mutex<Vec<usize>>,
    /// As many as are free.
    permits: Semaphore,
}

impl SlotPool {
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            memory: Mapping::anonymous(FABRIC_SLOTS * FABRIC_SLOT_BYTES)?,
            free: Mutex::new((0..FABRIC_SLOTS).rev().collect()),
            permits: Semaphore::new(FABRIC_SLOTS),
        }))
    }

    /// One, if any is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<FabricSlot> {
        self.permits.try_acquire().ok()?.forget();
        Some(self.lend())
    }

    /// One, as soon as there is one; `None` once no more are lent.
    pub(crate) async fn take(self: &Arc<Self>) -> Option<FabricSlot> {
        self.permits.acquire().await.ok()?.forget();
        Some(self.lend())
    }

    /// Lends no more.
    pub(super) fn close(&self) {
        self.permits.close();
    }

    fn lend(self: &Arc<Self>) -> FabricSlot {
        let place = self.free.lock().pop().expect("as many as there are permits");
        FabricSlot { place, pool: Arc::clone(self) }
    }

    /// All of them.
    pub(super) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Where the first `len` bytes of a slot are.
    ///
    /// # Panics
    /// If it does not have as many.
    pub(super) fn slot_memory(&self, place: usize, len: usize) -> *mut u8 {
        assert!(place < FABRIC_SLOTS && len <= FABRIC_SLOT_BYTES, "{len} bytes do not lie in slot {place}");
        self.memory.as_ptr().wrapping_add(place * FABRIC_SLOT_BYTES)
    }
}

/// One slot, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct FabricSlot {
    place: usize,
    pool: Arc<SlotPool>,
}

impl FabricSlot {
    /// Its place in the pool.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    pub(super) fn is_of(&self, pool: &Arc<SlotPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Copies its first bytes.
    ///
    /// # Panics
    /// If `out` is longer than a slot.
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() <= FABRIC_SLOT_BYTES, "{} bytes do not lie in a slot", out.len());
        self.pool.memory.read(self.place * FABRIC_SLOT_BYTES, out);
    }
}

impl Drop for FabricSlot {
    fn drop(&mut self) {
        self.pool.free.lock().push(self.place);
        self.pool.permits.add_permits(1);
    }
}
