//! Puts the parts of one snapshot together, from the records of all.

use bytes::Bytes;

use super::{SnapshotManifest, SnapshotPart, SnapshotRecord, SnapshotTotals};
use crate::Offset;

/// Why a snapshot that has a manifest is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotTorn {
    /// A part is not where it should be.
    #[error("part {number} of {parts} is not there")]
    Missing {
        /// Which part.
        number: u32,
        /// How many the manifest tells of.
        parts: u32,
    },
    /// The parts are not those of which the manifest tells.
    #[error("its parts are not those of its manifest: {found:?}")]
    Other {
        /// What they have together.
        found: SnapshotTotals,
    },
}

/// Takes the records from a snapshot's first part on, in order, and picks out its parts.
///
/// What holds: it says that a snapshot is whole only after all of its parts, each once and in order, whose checksum is
/// that of the manifest. Parts are handed out before that, so that nobody has to keep them.
#[derive(Clone, Debug)]
pub struct SnapshotAssembly {
    manifest: SnapshotManifest,
    /// Where the manifest is.
    end: Offset,
    found: SnapshotTotals,
}

impl SnapshotAssembly {
    /// For the snapshot whose manifest is at `end`.
    pub fn new(end: Offset, manifest: SnapshotManifest) -> Self {
        Self { manifest, end, found: SnapshotTotals::default() }
    }

    /// Takes the record at an offset: a part of the snapshot that comes next, or nothing. A record of another snapshot,
    /// or of anything else, is left out, and so is a part that comes again, as a writer sends it that was not answered.
    pub fn take(&mut self, offset: Offset, value: &Bytes) -> Result<Option<SnapshotPart>, SnapshotTorn> {
        let parts = self.manifest.totals.parts;
        if self.is_whole() {
            return Ok(None);
        }
        if offset >= self.end {
            return Err(SnapshotTorn::Missing { number: self.found.parts, parts });
        }
        let part = match SnapshotRecord::decode(value) {
            Ok(SnapshotRecord::Part(part)) if part.id == self.manifest.id => part,
            _ => return Ok(None),
        };
        if part.number < self.found.parts {
            return Ok(None);
        }
        if part.number > self.found.parts {
            return Err(SnapshotTorn::Missing { number: self.found.parts, parts });
        }
        self.found.add(value, part.count);
        if self.found.parts == parts && self.found != self.manifest.totals {
            return Err(SnapshotTorn::Other { found: self.found });
        }
        Ok(Some(part))
    }

    /// Whether all parts were taken, and are those of the manifest.
    pub fn is_whole(&self) -> bool {
        self.found == self.manifest.totals
    }
}
