//! The segment being written, and the one that readers see.

use std::collections::VecDeque;

use tailwater_env::Instant;
use tailwater_format::{EntryId, Offset, Position, SegmentId, SegmentNumber, Term, TransactionId};

use crate::stream::{SegmentRecord, ShardRecord};

/// A segment that is not completed.
#[derive(Debug)]
pub(super) struct ShardOpenSegment {
    pub(super) id: SegmentId,
    /// Whether the store has it; it is created with its first entry.
    pub(super) created: bool,
    pub(super) created_ms: i64,
    pub(super) created_at: Instant,
    /// Bytes that the store took.
    pub(super) length: Position,
    pub(super) next_entry: EntryId,
    pub(super) base_offset: Offset,
    pub(super) first_transaction_id: TransactionId,
    /// Bytes that the journal synced, at most `length`; where the segment is sealed if the rest is lost.
    pub(super) synced: Position,
    /// Offset after the records in them.
    pub(super) synced_next: Offset,
    /// Running transaction id after the records in them.
    pub(super) synced_transaction_id: TransactionId,
}

/// The newest segment as readers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visible {
    pub(super) number: SegmentNumber,
    pub(super) term: Term,
    pub(super) base_offset: Offset,
    pub(super) durable: Position,
    pub(super) sealed: bool,
    pub(super) previous: Option<(SegmentNumber, Term, Position)>,
    /// Whether it has an entry. If not, it is the name that the shard's next segment will most likely have.
    exists: bool,
}

impl Visible {
    /// What readers see of a shard without an open segment: the last completed one, or the coming one.
    pub(super) fn at_rest(
        completed: &VecDeque<SegmentRecord>,
        record: &ShardRecord,
        next_offset: Offset,
    ) -> Self {
        let Some(last) = completed.back() else {
            return Self {
                number: record.next_segment,
                term: record.term.next(),
                base_offset: next_offset,
                durable: Position(0),
                sealed: false,
                previous: None,
                exists: false,
            };
        };
        let previous = completed.len().checked_sub(2).map(|index| completed[index]);
        Self {
            number: last.number,
            term: last.term,
            base_offset: last.base_offset,
            durable: last.length,
            sealed: true,
            previous: previous.map(|segment| (segment.number, segment.term, segment.length)),
            exists: true,
        }
    }

    /// An entry of `segment` that begins with offset `base_offset` is there, and ends at `position`.
    pub(super) fn reach(&mut self, segment: SegmentId, base_offset: Offset, position: Position) {
        if self.exists && (self.number, self.term) == (segment.number, segment.term) {
            assert!(position > self.durable && !self.sealed, "{segment}: a watermark goes forward only");
            self.durable = position;
            return;
        }
        let previous = self.exists.then_some((self.number, self.term, self.durable));
        *self = Self {
            number: segment.number,
            term: segment.term,
            base_offset,
            durable: position,
            sealed: false,
            previous,
            exists: true,
        };
    }

    /// Whether this is the segment of that name.
    pub(super) fn is(&self, segment: SegmentId) -> bool {
        self.exists && (self.number, self.term) == (segment.number, segment.term)
    }
}
