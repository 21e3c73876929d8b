//! What a shard is after a start: metadata's records and the store's segments brought together.
//!
//! | metadata says | the store has | then |
//! |---|---|---|
//! | completed, length L | the segment, at least L long | it is sealed at L |
//! | completed | nothing, or less | the shard can't be opened: bytes are gone |
//! | completed, and only in cold storage | nothing | it is read there |
//! | the same | the segment | deleted: it has left the store |
//! | nothing, number below the next | the segment | deleted: retention or a higher term got rid of it |
//! | nothing, number from the next on | less than it once had | the shard can't be opened: bytes are gone |
//! | the same | entries that continue the shard | sealed at their length, recorded |
//! | the same | no entries | deleted; the number is used again with a higher term, but not by a copy |
//! | the same | entries that do not continue the shard | the shard can't be opened |
//! | a start of the log behind all that there is | whatever | the shard can't be opened: bytes are gone |

use std::collections::BTreeMap;

use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, Term, TransactionId};

use super::Output;
use crate::stream::{SegmentRecord, ShardRecord, StreamRecord, TruncatedRecord};

/// A segment that the store recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentsFound {
    /// Its name.
    pub id: SegmentId,
    /// Its length, which ends with an entry.
    pub length: Position,
    /// Whether the store has it sealed at that length.
    pub sealed: bool,
    /// What its entries say; `None` if it has none.
    pub content: Option<FoundContent>,
    /// What of it the disk has lost, in words.
    pub damaged: Option<String>,
}

/// What a segment's entries say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundContent {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Offset after the last one.
    pub next_offset: Offset,
    /// Running transaction id of the first entry.
    pub first_transaction_id: TransactionId,
    /// Running transaction id of the last entry.
    pub last_transaction_id: TransactionId,
}

/// A shard as it is after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// As in metadata.
    pub record: ShardRecord,
    /// The version of that record; 0 if there is none.
    pub version: u64,
    /// All completed segments, oldest first.
    pub completed: Vec<SegmentRecord>,
    /// Those of them, the newest, that metadata has yet to be told of.
    pub unsaved: Vec<SegmentRecord>,
    /// Segments to seal in the store.
    pub seals: Vec<(SegmentId, Position)>,
    /// Segments to delete in the store.
    pub deletes: Vec<SegmentId>,
    /// The first number that no segment has, not even one that is deleted.
    pub unused: SegmentNumber,
    /// Removed segments whose cold copies are kept, oldest first.
    pub truncated: Vec<TruncatedRecord>,
}

impl Recovered {
    /// A shard of `stream` that has nothing yet.
    pub(crate) fn fresh(stream: &StreamRecord) -> Self {
        Self { record: stream.numbered(ShardRecord::default()), ..Self::default() }
    }

    /// The term of a source that was moved here goes up to where its next one begins. Its copies' terms do not.
    pub(crate) fn lift_term(&mut self, stream: &StreamRecord) {
        if stream.source.is_none() {
            let before_first = Term(stream.term_min.0.saturating_sub(1));
            self.record.term = self.record.term.max(before_first);
        }
    }

    /// What is to be done in the store, for the shard's owner. Nobody waits for it: a journal that takes no records, as
    /// on a full disk, does not keep a log from being opened and read.
    pub(super) fn undone(&self) -> Vec<Output> {
        let seals = self.seals.iter().map(|&(id, length)| Output::Seal(id, length));
        seals.chain(self.deletes.iter().copied().map(Output::Delete)).collect()
    }
}

/// Brings together what metadata (`record` at `version`, the completed segments oldest first) and the store say of
/// a shard, at wall time `now_ms`. The error says what does not fit.
pub fn recover(
    shard: ShardId,
    record: ShardRecord,
    version: u64,
    recorded: Vec<SegmentRecord>,
    found: &[SegmentsFound],
    now_ms: i64,
) -> Result<Recovered, String> {
    let mut recovered = Recovered { record, version, ..Recovered::default() };
    let mut found: BTreeMap<(SegmentNumber, Term), SegmentsFound> =
        found.iter().map(|found| ((found.id.number, found.id.term), found.clone())).collect();

    recovered.unused = found.keys().map(|(number, _)| number.next()).max().unwrap_or_default();

    for segment in recorded {
        let id = SegmentId { shard, number: segment.number, term: segment.term };
        if segment.is_released() {
            let left = found.remove(&(segment.number, segment.term));
            recovered.deletes.extend(left.map(|left| left.id));
            recovered.completed.push(segment);
            continue;
        }
        let Some(stored) = found.remove(&(segment.number, segment.term)) else {
            return Err(format!("segment {id} of {} bytes is missing in the store", segment.length));
        };
        if stored.length < segment.length {
            return Err(format!("segment {id} has {} of {} bytes", stored.length, segment.length));
        }
        if !stored.sealed || stored.length > segment.length {
            recovered.seals.push((id, segment.length));
        }
        recovered.completed.push(segment);
    }

    let mut next_offset = record.next_offset;
    let mut next_number = record.next_segment;
    let mut transaction_id = record.transaction_id;
    // Terms of one number in reverse, so that the highest one with entries is the one that counts.
    for ((number, _), stored) in found.iter().filter(|((number, _), _)| *number < record.next_segment) {
        debug_assert!(*number < record.next_segment);
        recovered.deletes.push(stored.id);
    }
    found.retain(|(number, _), _| *number >= record.next_segment);
    // What is left of it, or nothing, would look like all that there ever was, and its offsets be given again.
    if let Some((id, why)) = found.values().find_map(|stored| Some((stored.id, stored.damaged.as_ref()?))) {
        return Err(format!("segment {id} is not whole: {why}"));
    }
    while let Some((&(number, _), _)) = found.first_key_value() {
        let mut terms: Vec<SegmentsFound> = Vec::new();
        while let Some(entry) = found.first_entry().filter(|entry| entry.key().0 == number) {
            terms.push(entry.remove());
        }
        let newest = terms.iter().rposition(|found| found.content.is_some());
        for (index, stored) in terms.iter().enumerate() {
            match stored.content {
                Some(content) if Some(index) == newest => {
                    if content.base_offset != next_offset || number < next_number {
                        return Err(format!(
                            "segment {} begins with offset {}, but the shard goes on with segment {next_number} \
                             at offset {next_offset}",
                            stored.id, content.base_offset
                        ));
                    }
                    let segment = SegmentRecord {
                        number,
                        term: stored.id.term,
                        base_offset: content.base_offset,
                        next_offset: content.next_offset,
                        length: stored.length,
                        first_transaction_id: transaction_id.max(content.first_transaction_id),
                        last_transaction_id: content.last_transaction_id,
                        created_ms: now_ms,
                        sealed_ms: now_ms,
                        cold: None,
                    };
                    next_offset = segment.next_offset;
                    next_number = number.next();
                    transaction_id = segment.last_transaction_id;
                    if !stored.sealed {
                        recovered.seals.push((stored.id, stored.length));
                    }
                    recovered.completed.push(segment);
                    recovered.unsaved.push(segment);
                }
                _ => recovered.deletes.push(stored.id),
            }
        }
    }
    if record.log_start > next_offset {
        return Err(format!(
            "the shard begins at offset {}, but ends at offset {next_offset}",
            record.log_start
        ));
    }
    assert!(
        recovered.unsaved.len() <= recovered.completed.len(),
        "what metadata lacks is part of all there is"
    );
    Ok(recovered)
}
