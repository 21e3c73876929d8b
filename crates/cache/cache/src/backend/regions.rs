//! A region as the table writes it: at one place in memory, and at a second one while it moves.
//!
//! While it moves, all that is written goes to both places, so that readers of either find the same:
//! 1. The second place is the new one. What is there already is copied to it, a part at a time.
//! 2. The places change roles: the new one is what the table reads, and what new readers are given.
//! 3. The old index's buckets are retired. They name no configuration from then on, so that no reader takes what is
//!    there for what the backend holds.
//! 4. The old place is left, and whoever moved the region empties it.

use super::*;

pub(in super::super) struct TableRegion {
    place: Arc<Region>,
    other: Option<Arc<Region>>,
}

impl TableRegion {
    pub(super) fn at(place: Arc<Region>) -> Self {
        Self { place, other: None }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        self.place.write(offset, bytes);
        if let Some(other) = &self.other {
            other.write(offset, bytes);
        }
    }

    pub(super) fn store_release_u64(&self, offset: u64, value: u64) {
        self.place.store_release_u64(offset, value);
        if let Some(other) = &self.other {
            other.store_release_u64(offset, value);
        }
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        self.place.read(offset, out);
    }
}

/// One of a table's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TablePart {
    Index,
    Data,
}

impl Table {
    fn part(&mut self, part: TablePart) -> &mut TableRegion {
        match part {
            TablePart::Index => &mut self.index,
            TablePart::Data => &mut self.data,
        }
    }

    /// From now on the table writes there, too: regions as long as its own. `false`, and nothing changed, if it has
    /// second places already: a move was dropped half-way, and the place that it left is still to be retired.
    pub(in super::super) fn begin_moving(&mut self, index: Arc<Region>, data: Arc<Region>) -> bool {
        if self.index.other.is_some() {
            return false;
        }
        self.index.other = Some(index);
        self.data.other = Some(data);
        true
    }

    /// Copies a part of a region to its second place; `copied` is room for it.
    pub(in super::super) fn copy_part(&mut self, part: TablePart, offset: u64, copied: &mut [u8]) {
        let region = self.part(part);
        if let Some(other) = &region.other {
            region.place.read(offset, copied);
            other.write(offset, copied);
        }
    }

    /// The second places are the table's, and what were its places are the second ones.
    pub(in super::super) fn switch_places(&mut self) {
        for region in [&mut self.index, &mut self.data] {
            if let Some(other) = &mut region.other {
                std::mem::swap(&mut region.place, other);
            }
        }
    }

    /// Has some buckets of the second place name no configuration. Nobody may name buckets meanwhile.
    pub(in super::super) fn retire_buckets(&self, buckets: Range<u64>) {
        if let Some(other) = &self.index.other {
            buckets.for_each(|bucket| other.store_release_u64(bucket_offset(bucket), 0));
        }
    }

    /// From now on the table writes at one place.
    pub(in super::super) fn end_moving(&mut self) {
        self.index.other = None;
        self.data.other = None;
    }

    /// Writes the index header, which is another one at the second place.
    pub(in super::super) fn write_header(&self, header: &[u8], at_other: &[u8]) {
        self.index.place.write(0, header);
        if let Some(other) = &self.index.other {
            other.write(0, at_other);
        }
    }
}
