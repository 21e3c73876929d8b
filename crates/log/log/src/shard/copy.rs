//! What only a shard that is a copy does: it takes its source's entries in their places, and goes on behind what the
//! source has removed.
//!
//! What it takes is durable at its source. So whoever copies from here may have it before it is durable here, and so
//! may the cells: readers there are contradicted by nothing, as the source has it. A segment is shown ahead once its
//! first entry is durable: from then on no other one will ever have its name. What a crash takes from its end comes
//! again, at the same offsets, in the next segment.
//!
//! Offsets, terms and batches are the source's. Segments are not: a start ends the one that was written, as it does in
//! any shard, and its number is used once, also by one without entries. Such a segment stays in the store until
//! metadata has left its number behind, as a start that did not find it would use the number again, in the same term.
//! It is sealed without entries: where a sync failed, the store begins no other segment of the term before that.

use std::sync::Arc;

use tailwater_env::Instant;
use tailwater_format::{AppendedTo, DurableTo, Offset, SegmentId, SegmentNumber, Term};

use super::{CopiedTo, CopyBegin, Flush, Output, Shard, ShardPhase, StoreAppend, Visible};
use crate::batches::Accepted;
use crate::error::{AppendError, StreamError};

impl Shard {
    /// Takes in an entry of the source: into the buffer, or refused if it is not the next one.
    pub(super) fn append_copied(
        &mut self,
        now: Instant,
        wall_ms: i64,
        append: StoreAppend,
        copied: CopiedTo,
        out: &mut Vec<Output>,
    ) {
        let StoreAppend { batches, waiter, .. } = append;
        if let Err(error) = self.check_copied(now, copied) {
            out.push(Output::Reply(waiter, Err(error)));
            return;
        }
        if self.state == ShardPhase::Resting {
            self.claim_copied(copied.term);
        }
        if self.buffer.is_empty() {
            self.buffer_since = now;
        }
        self.take(Accepted {
            base_offset: copied.base_offset,
            first_transaction_id: self.transaction_id.max(batches.first_timestamp),
            transaction_id: self.transaction_id.max(batches.max_timestamp),
            append_time_ms: wall_ms,
            accepted_at: now,
            batches,
            copied: Some(copied.term),
            waiter,
        });
    }

    /// The same shard as that of a copy, before [`super::ShardInput::Opened`].
    pub(crate) fn of_copy(mut self) -> Self {
        self.is_copy = true;
        self.show_coming();
        let next = self.next_number();
        let is_empty = |output: &mut Output| matches!(output, Output::Delete(id) if id.number >= next);
        for output in self.undone.extract_if(.., is_empty) {
            if let Output::Delete(id) = output {
                self.empty.push(id);
            }
        }
        self
    }

    /// Shows the coming segment of a copy. It is of the source's term, which may be the same one: a term that was told
    /// may not go back.
    pub(super) fn show_coming(&mut self) {
        self.visible.will_be(self.unused, self.changes.record().term);
    }

    /// Deletes segments without entries whose numbers no start will use again.
    pub(super) fn delete_empty(&mut self, out: &mut Vec<Output>) {
        let next = self.changes.record().next_segment;
        out.extend(self.empty.extract_if(.., |id| id.number < next).map(Output::Delete));
    }

    /// The store took an entry, which is about to be in flight.
    pub(super) fn took(&self, entry: &Flush, out: &mut Vec<Output>) {
        if entry.appends[0].copied.is_some() {
            let (base_offset, next_offset, bytes) =
                (entry.base_offset, entry.next_offset, entry.bytes.clone());
            out.push(Output::Took { base_offset, next_offset, bytes });
        }
    }

    /// Hands what is in flight of a copy's segment to the cells' writer, if readers see the segment.
    pub(super) fn shadow_ahead(&mut self, segment: SegmentId, out: &mut Vec<Output>) {
        if !self.visible.is(segment)
            || self.in_flight.back().is_none_or(|last| last.appends[0].copied.is_none())
        {
            return;
        }
        let open = self.segment(segment);
        let (mut shadowed, appended) = (open.shadowed, open.length);
        // Looked for from the newest on: with a disk that stands still there are many.
        let is_shadowed = |entry: &Flush| entry.segment == segment && entry.from < shadowed.get();
        let last = self.in_flight.iter().rposition(is_shadowed);
        let rest = self.in_flight.range(last.map_or(0, |last| last + 1)..);
        for entry in rest.filter(|entry| entry.segment == segment) {
            assert_eq!(entry.from, shadowed.get(), "{segment}: it is shown in order and without gaps");
            shadowed.advance(entry.end(), appended);
            out.push(Output::Ahead {
                segment,
                bytes: entry.bytes.clone(),
                source_durable: shadowed,
                accepted_at: entry.appends[0].accepted_at,
            });
        }
        self.segment_mut(segment).shadowed = shadowed;
    }

    /// Offset after the last record that other clusters may copy: it is durable here, or, in a copy, at the source.
    pub(crate) fn copyable_next(&self) -> DurableTo<Offset> {
        match self.in_flight.back() {
            Some(last) if last.appends[0].copied.is_some() => DurableTo::new(last.next_offset),
            // What a copy shows has come from the source, whether or not it is synced here.
            _ if self.is_copy => self.acked_next,
            _ => DurableTo::new(self.synced_next()),
        }
    }

    /// Offset after the last record that was accepted: nothing is copyable beyond it.
    pub(crate) fn accepted_next(&self) -> AppendedTo<Offset> {
        self.next_offset
    }

    fn check_copied(&self, now: Instant, copied: CopiedTo) -> Result<(), AppendError> {
        match self.state {
            ShardPhase::Lost => return Err(AppendError::NotOwner),
            ShardPhase::Deleted => return Err(AppendError::NoStream),
            _ if self.closing => return Err(AppendError::Closed),
            ShardPhase::Resting => {
                if let Some(why) = self.changes.refusal(now) {
                    return Err(AppendError::Refused(Arc::clone(why)));
                }
            }
            ShardPhase::Claiming | ShardPhase::Owning(_) => {}
        }
        // First, as what is there already may be of an earlier term.
        let next = self.next_offset.get();
        if copied.base_offset != next {
            return Err(AppendError::NotNext { next, given: copied.base_offset });
        }
        let current = self.buffer.back().and_then(|last| last.copied).unwrap_or(self.changes.record().term);
        if copied.term < current {
            return Err(AppendError::Term { current, given: copied.term });
        }
        Ok(())
    }

    fn claim_copied(&mut self, term: Term) {
        self.state = ShardPhase::Claiming;
        self.changes.claim(term);
    }

    /// Whether what comes next is of a later term than `owned`. That is claimed, and begins a segment, once all of
    /// earlier terms is durable: what is in flight may be lost, and comes again in its own term.
    pub(super) fn waits_for_term(&mut self, owned: Term) -> bool {
        let Some(term) = self.buffer.front().and_then(|first| first.copied).filter(|term| *term != owned)
        else {
            return false;
        };
        assert!(term > owned, "{}: a term goes forward only", self.id);
        if self.is_in_flight() {
            return true;
        }
        self.rolling.extend(self.open.take());
        self.claim_copied(term);
        true
    }

    /// Goes on at a later offset: all there is becomes what was removed before it.
    pub(super) fn begin(&mut self, begin: CopyBegin, wall_ms: i64, out: &mut Vec<Output>) {
        let begun = self.begin_at(begin.offset, wall_ms, out);
        out.push(Output::Begun(begin, begun));
    }

    fn begin_at(&mut self, offset: Offset, wall_ms: i64, out: &mut Vec<Output>) -> Result<(), StreamError> {
        match self.state {
            ShardPhase::Deleted => return Err(StreamError::NoStream(self.id.stream.to_string())),
            ShardPhase::Lost => return Err(StreamError::NotOwner),
            _ if self.closing => return Err(StreamError::Closed),
            _ if offset <= self.acked_next.get() => return Ok(()),
            ShardPhase::Claiming => return Err(StreamError::Overloaded),
            ShardPhase::Resting | ShardPhase::Owning(_) => {}
        }
        if !self.buffer.is_empty() || self.writing.is_some() || self.is_in_flight() {
            return Err(StreamError::Overloaded);
        }
        self.rolling.extend(self.open.take());
        self.complete_rolled(wall_ms, out);
        let unused = self.next_number();
        self.unused = self.unused.max(unused);
        // The next entry claims its term again: with that, metadata knows where the shard goes on before it is written.
        self.state = ShardPhase::Resting;
        self.next_offset.advance(offset);
        self.acked_next.advance(offset, self.next_offset);
        self.changes.begin(offset);
        let number: SegmentNumber = self.unused;
        self.visible = Visible::coming(number, self.changes.record().term, offset);
        self.tail_changed = true;
        out.push(Output::Update(self.tail()));
        Ok(())
    }
}
