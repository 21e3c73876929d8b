//! The segment being written, and the one that readers see.

use std::collections::VecDeque;

use tailwater_env::Instant;
use tailwater_format::{
    AppendedTo, DurableTo, EntryId, Offset, Position, SegmentId, SegmentNumber, Term, TransactionId,
};

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
    pub(super) length: AppendedTo<Position>,
    /// Bytes that the cells' writer has: they are durable here, or in a copy at the stream's source.
    pub(super) shadowed: DurableTo<Position>,
    pub(super) next_entry: EntryId,
    pub(super) base_offset: Offset,
    pub(super) first_transaction_id: TransactionId,
    /// Bytes that the journal synced, at most `length`; where the segment is sealed if the rest is lost.
    pub(super) synced: DurableTo<Position>,
    /// Offset after the records in them.
    pub(super) synced_next: DurableTo<Offset>,
    /// Running transaction id after the records in them.
    pub(super) synced_transaction_id: TransactionId,
}

impl ShardOpenSegment {
    /// Whether all that the store took is synced.
    pub(super) fn is_synced(&self) -> bool {
        self.synced.get() == self.length.get()
    }
}

/// The newest segment as readers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visible {
    pub(super) number: SegmentNumber,
    pub(super) term: Term,
    pub(super) base_offset: Offset,
    /// With `interval` this is what was written.
    pub(super) durable: DurableTo<Position>,
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
        // A copy that began anew behind a gap goes on in the coming one.
        let Some(last) = completed.back().filter(|last| last.next_offset == next_offset) else {
            return Self::coming(record.next_segment, record.term.next(), next_offset);
        };
        let previous = completed.len().checked_sub(2).map(|index| completed[index]);
        Self {
            number: last.number,
            term: last.term,
            base_offset: last.base_offset,
            durable: DurableTo::new(last.length),
            sealed: true,
            previous: previous.map(|segment| (segment.number, segment.term, segment.length)),
            exists: true,
        }
    }

    /// The coming segment is of this term.
    pub(super) fn will_have(&mut self, term: Term) {
        if !self.exists {
            self.term = term;
        }
    }

    /// The coming segment is of this term, and of this number at least.
    pub(super) fn will_be(&mut self, number: SegmentNumber, term: Term) {
        self.will_have(term);
        if !self.exists {
            self.number = self.number.max(number);
        }
    }

    /// What readers see of a shard whose next segment will most likely have this name.
    pub(super) fn coming(number: SegmentNumber, term: Term, base_offset: Offset) -> Self {
        Self {
            number,
            term,
            base_offset,
            durable: DurableTo::new(Position(0)),
            sealed: false,
            previous: None,
            exists: false,
        }
    }

    /// An entry of `segment` that begins with offset `base_offset` is there, and ends at `position`; the store took
    /// `appended`.
    pub(super) fn reach(
        &mut self,
        segment: SegmentId,
        base_offset: Offset,
        position: Position,
        appended: AppendedTo<Position>,
    ) {
        if self.exists && (self.number, self.term) == (segment.number, segment.term) {
            assert!(position > self.durable.get() && !self.sealed, "{segment}: readers were shown its end");
            self.durable.advance(position, appended);
            return;
        }
        assert!(!self.exists || self.number < segment.number, "{segment}: behind the newest one");
        let previous = self.exists.then_some((self.number, self.term, self.durable.get()));
        let mut durable = DurableTo::new(Position(0));
        durable.advance(position, appended);
        *self = Self {
            number: segment.number,
            term: segment.term,
            base_offset,
            durable,
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
