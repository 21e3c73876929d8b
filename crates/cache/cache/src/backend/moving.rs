//! How a backend's regions move to another place in memory, for a reader that has mapped them and lost the right to.
//!
//! A mapping can't be taken from a process that has it. So the backend goes on elsewhere, and empties the place that
//! the process can read. Everybody else reads on: whoever reads through a server is not told, and who has mapped the
//! regions finds in the header of the old ones that they have moved, connects again, and reads the old ones until then.
//! What a reader finds at either place is the same, until the old buckets are retired ([`super::table`]).
//!
//! A region that has moved keeps its id, its length and its generation, which stands for this start of the backend.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tailwater_rma::{Region, ServiceAdmission};

use super::Backend;
use super::table::Table;
use super::table::regions::TablePart;
use crate::layout::{DATA_KIND, HEADER_USED_BYTES, INDEX_KIND, IndexHeader};
use crate::limits::{MOVED_BYTES_PER_PAUSE, MOVED_BYTES_PER_STEP, MOVED_PAUSE, OLD_PLACE_KEPT};

/// The regions that new readers are given.
#[derive(Clone)]
pub(super) struct ServedRegions {
    pub(super) index: Arc<Region>,
    pub(super) data: Arc<Region>,
}

impl Backend {
    pub(super) fn served(&self) -> ServedRegions {
        self.served.read().clone()
    }

    /// Moves the regions to another place in memory, and empties the old one: about [`OLD_PLACE_KEPT`] and what it
    /// takes to copy the regions. `admission` is that of the server of this backend. To be called from a task that may
    /// block.
    ///
    /// The memory of the old place is given back when nobody has it mapped any more.
    ///
    /// # Errors
    /// If there is no memory for the new place, and after a move that was dropped half-way. The regions are where they
    /// were then.
    ///
    /// # Cancel safety
    /// If it is dropped half-way, the backend goes on, and writes at both places until it ends. It is not moved again.
    pub async fn move_regions(&self, admission: &ServiceAdmission) -> io::Result<()> {
        let Some(_moving) = MovingGuard::begin(&self.is_moving) else {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the regions are being moved already"));
        };
        let new = self.begin_move()?;
        let mut copied = 0;
        for (part, region) in [(TablePart::Index, &new.index), (TablePart::Data, &new.data)] {
            let mut offset = 0;
            let mut room = vec![0; MOVED_BYTES_PER_STEP];
            while offset < region.len() {
                let len = (region.len() - offset).min(MOVED_BYTES_PER_STEP as u64);
                self.table.lock().copy_part(part, offset, &mut room[..len as usize]);
                offset += len;
                copied += len;
                if copied >= MOVED_BYTES_PER_PAUSE {
                    copied = 0;
                    self.env.sleep(MOVED_PAUSE).await;
                }
            }
        }
        let old = self.switch_places(new);
        self.moves.fetch_add(1, Ordering::Relaxed);
        admission.regions_moved();
        self.env.sleep(OLD_PLACE_KEPT).await;
        admission.hang_up_on_moved();
        self.retire();
        empty(&old.index);
        empty(&old.data);
        Ok(())
    }

    /// How often the regions have moved since the start: as many places were left, each of which takes as much memory
    /// as the backend for as long as any process has it mapped.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// From now on all is written at a second place, too.
    pub(super) fn begin_move(&self) -> io::Result<ServedRegions> {
        let before = self.served();
        let backing = self.config.backing;
        let again = |name, old: &Region, kind| {
            Region::create_with_generation(name, old.len(), kind, backing, old.generation())
        };
        let index = again("cache-index", &before.index, INDEX_KIND)?;
        let data = again("cache-data", &before.data, DATA_KIND)?;
        let new = ServedRegions { index: Arc::new(index), data: Arc::new(data) };
        match self.table.lock().begin_moving(Arc::clone(&new.index), Arc::clone(&new.data)) {
            true => Ok(new),
            false => {
                Err(io::Error::new(io::ErrorKind::ResourceBusy, "a move of the regions was left half-way"))
            }
        }
    }

    /// The second place, which has all by now, is what new readers are given; answers the old one.
    pub(super) fn switch_places(&self, new: ServedRegions) -> ServedRegions {
        // Held so that nobody else writes the headers meanwhile.
        let mut table = self.table.lock();
        let [header, moved] = self.headers(&table);
        table.write_header(&header, &header);
        let old = std::mem::replace(&mut *self.served.write(), new);
        table.switch_places();
        // Only now: whoever reads it connects again, and would be given the old ones before.
        table.write_header(&header, &moved);
        old
    }

    /// Nobody takes what is at the old place for anything from now on, and nothing is written there any more.
    pub(super) fn retire(&self) {
        // Held so that nobody names buckets meanwhile.
        let newest = self.told.newest.lock();
        self.for_all_buckets(|buckets| self.table.lock().retire_buckets(buckets));
        self.table.lock().end_moving();
        drop(newest);
    }

    /// Writes the index header as things are.
    pub(super) fn write_header(&self) {
        // Held while it is written: two may want to.
        let table = self.table.lock();
        let [header, moved] = self.headers(&table);
        // While the second place is the new one, nobody reads it there.
        table.write_header(&header, &moved);
    }

    /// The index header as things are: where the regions are, and where they were.
    fn headers(&self, table: &Table) -> [[u8; HEADER_USED_BYTES]; 2] {
        let header = IndexHeader {
            config_id: self.config_id(),
            buckets: self.config.buckets,
            data_generation: self.served.read().data.generation(),
            is_filled: table.is_filled(),
            has_moved: false,
        };
        [header.encode(), IndexHeader { has_moved: true, ..header }.encode()]
    }
}

/// Only its own process writes to a region, and nothing but this to one that was left.
fn empty(region: &Region) {
    let zeros = vec![0; MOVED_BYTES_PER_STEP];
    let mut offset = 0;
    while offset < region.len() {
        let len = (region.len() - offset).min(zeros.len() as u64);
        region.write(offset, &zeros[..len as usize]);
        offset += len;
    }
}

/// That the regions are being moved.
struct MovingGuard<'a>(&'a AtomicBool);

impl<'a> MovingGuard<'a> {
    fn begin(is_moving: &'a AtomicBool) -> Option<Self> {
        (!is_moving.swap(true, Ordering::Acquire)).then_some(Self(is_moving))
    }
}

impl Drop for MovingGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
