//! Seals and deletions in the store, which must happen some time and that nobody waits for.
//!
//! In a store that acknowledges by a journal each is a record there. One that the journal does not take (it is
//! full, or was lost with a failed sync) is tried again: until it is there, a restart finds the segment unsealed,
//! and seals it at the same length, or finds it at all, and deletes it.

use std::collections::VecDeque;

use tailwater_format::{Position, SegmentId};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_store::{StoreContract, StoreError};

use crate::follow::{Covered, look};

/// What is not done yet.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// Seals on their way to the disk.
    sealing: VecDeque<(JournalPosition, SegmentId, Position)>,
    refused_seals: Vec<(SegmentId, Position)>,
    refused_deletes: Vec<SegmentId>,
}

impl Upkeep {
    /// Seals a segment.
    pub(crate) fn seal(&mut self, store: &dyn StoreContract, id: SegmentId, length: Position) {
        match store.seal(&id, length) {
            Ok(Some(position)) => self.sealing.push_back((position, id, length)),
            Ok(None) => {}                    // the store sees to it
            Err(StoreError::Unknown(_)) => {} // deleted meanwhile
            Err(StoreError::Journal(_)) => self.refused_seals.push((id, length)),
            Err(error) => tracing::error!(%id, %length, %error, "a segment can't be sealed"),
        }
    }

    /// Deletes a segment.
    pub(crate) fn delete(&mut self, store: &dyn StoreContract, id: SegmentId) {
        match store.delete(&id) {
            Ok(()) | Err(StoreError::Unknown(_)) => {}
            Err(StoreError::Journal(_)) => self.refused_deletes.push(id),
            Err(error) => tracing::error!(%id, %error, "a segment can't be deleted"),
        }
    }

    /// Forgets a segment of which nothing was acknowledged.
    pub(crate) fn discard(&mut self, store: &dyn StoreContract, id: SegmentId) {
        match store.discard(&id) {
            Ok(()) | Err(StoreError::Unknown(_)) => {}
            // Only a store in which nobody else finds it has a journal.
            Err(StoreError::Journal(_)) => self.refused_deletes.push(id),
            Err(error) => tracing::error!(%id, %error, "a segment can't be discarded"),
        }
    }

    /// Whether nothing waits for the journal.
    pub(crate) fn is_idle(&self) -> bool {
        self.sealing.is_empty()
    }

    /// Tries again what was refused.
    pub(crate) fn retry(&mut self, store: &dyn StoreContract) {
        for (id, length) in std::mem::take(&mut self.refused_seals) {
            self.seal(store, id, length);
        }
        for id in std::mem::take(&mut self.refused_deletes) {
            self.delete(store, id);
        }
    }

    /// Forgets seals that are durable, and notes those that were lost.
    pub(crate) fn follow(&mut self, journal: &Journal, store: &dyn StoreContract) {
        if self.sealing.is_empty() {
            return;
        }
        let watermark = journal.durable();
        let mut lost = false;
        while let Some(&(position, id, length)) = self.sealing.front() {
            match look(&watermark, position) {
                Covered::NotYet => break,
                Covered::Yes => {}
                Covered::Never => {
                    lost = true;
                    self.refused_seals.push((id, length));
                }
            }
            self.sealing.pop_front();
        }
        if lost {
            self.retry(store);
        }
    }
}
