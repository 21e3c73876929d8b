//! A store that goes on in segments which it found at its start.

use tailwater_format::{Position, SegmentId};
use tailwater_journal::{JournalAppendOptions, JournalPosition};
use tailwater_store::{SegmentStore, StoreError, TAG};

/// Puts the record of an append into the journal, as the store does for a segment that takes appends: kind 2,
/// version 1, shard, stream, segment number, term, position, and the entry.
pub(super) fn append_all_the_same(
    store: &SegmentStore,
    id: &SegmentId,
    position: Position,
    entry: &[u8],
) -> Result<JournalPosition, StoreError> {
    let mut header = vec![2, 1, 0, 0];
    header.extend_from_slice(&id.shard.shard.0.to_le_bytes());
    header.extend_from_slice(id.shard.stream.0.as_bytes());
    header.extend_from_slice(&id.number.0.to_le_bytes());
    header.extend_from_slice(&id.term.0.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&position.0.to_le_bytes());
    let journal = store.journal();
    let append = JournalAppendOptions::new(journal.incarnation());
    journal.append(TAG, &[&header, entry], append).map_err(StoreError::Journal)
}
