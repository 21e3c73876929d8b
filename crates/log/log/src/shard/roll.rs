//! When a segment ends, and what becomes of it then.

use tailwater_env::Instant;
use tailwater_format::{ENTRY_HEADER_BYTES, Position};

use super::{Output, PRODUCERS_EXPIRE_EVERY, Reach, Shard, ShardOpenSegment, ShardPhase};
use crate::error::AppendError;
use crate::retention;
use crate::stream::SegmentRecord;

impl Shard {
    /// Ends the open segment if `bytes` more of batches would make it too long.
    pub(super) fn roll_if_full(&mut self, bytes: usize) {
        let entry_len = (ENTRY_HEADER_BYTES + bytes) as u64;
        let is_full = |open: &ShardOpenSegment| {
            open.length.get().0 > 0 && open.length.get().0 + entry_len > retention::roll_bytes(&self.config)
        };
        if self.open.as_ref().is_some_and(is_full) {
            self.rolling.extend(self.open.take());
        }
    }

    /// A segment's bytes are synced up to `reach`.
    pub(super) fn synced(&mut self, reach: Reach) {
        let appended = self.next_offset;
        let segment = self.rolling.iter_mut().chain(&mut self.open).find(|open| open.id == reach.segment);
        let segment = segment.expect("a segment is completed after its last entry is synced");
        assert!(reach.position > segment.synced.get(), "{}: an entry is synced once", reach.segment);
        assert!(reach.next_offset > segment.synced_next.get(), "{}: an entry has records", reach.segment);
        segment.synced.advance(reach.position, segment.length);
        segment.synced_next.advance(reach.next_offset, appended);
        segment.synced_transaction_id = reach.transaction_id;
    }

    /// Completes the segments that take no more entries and are synced to their end.
    pub(super) fn complete_rolled(&mut self, wall_ms: i64, out: &mut Vec<Output>) {
        while self.rolling.front().is_some_and(ShardOpenSegment::is_synced) {
            let segment = self.rolling.pop_front().expect("just looked at");
            self.complete(&segment, wall_ms, out);
        }
    }

    /// Ends a segment for ever at its synced length.
    pub(super) fn complete(&mut self, segment: &ShardOpenSegment, wall_ms: i64, out: &mut Vec<Output>) {
        let length = segment.synced.get();
        if length == Position(0) {
            // No reader saw it, no record of this owner's names it: the number is free, for a higher term.
            match segment.created {
                // Sealed, so that the store lets the next one of this term begin.
                true if self.is_copy => {
                    out.push(Output::Seal(segment.id, length));
                    self.empty.push(segment.id);
                }
                true => out.push(Output::Discard(segment.id)),
                false => {}
            }
            return;
        }
        let record = SegmentRecord {
            number: segment.id.number,
            term: segment.id.term,
            base_offset: segment.base_offset,
            next_offset: segment.synced_next.get(),
            length,
            first_transaction_id: segment.first_transaction_id,
            last_transaction_id: segment.synced_transaction_id,
            created_ms: segment.created_ms,
            sealed_ms: wall_ms,
            cold: None,
        };
        assert!(record.base_offset < record.next_offset, "{}: bytes are records", segment.id);
        let begun = self.changes.log_start();
        assert!(
            self.completed.back().is_none_or(|last| {
                let is_next = last.next_offset == record.base_offset;
                let is_anew = last.next_offset < record.base_offset && record.base_offset <= begun;
                last.number < record.number && (is_next || is_anew)
            }),
            "{}: a segment goes on where the last one ended, or a copy began anew",
            segment.id
        );
        self.completed.push_back(record);
        self.changes.completed(record);
        self.list_changed = true;
        if !segment.is_synced() {
            self.cut = Some(record.number);
        }
        out.push(Output::Seal(segment.id, length));
        if self.visible.is(segment.id) && self.visible.durable.get() == length {
            self.visible.sealed = true;
            self.tail_changed = true;
            out.push(Output::Update(self.tail()));
        }
    }

    /// Rolls by time, expires segments and producers.
    pub(super) fn tick(&mut self, now: Instant, wall_ms: i64, out: &mut Vec<Output>) {
        if matches!(self.state, ShardPhase::Deleted | ShardPhase::Lost) {
            return;
        }
        let roll_age_ms = u128::from(retention::roll_age_ms(&self.config));
        let is_old = |open: &ShardOpenSegment| {
            open.length.get().0 > 0 && now.since(open.created_at).as_millis() >= roll_age_ms
        };
        // An entry that the store has yet to take belongs to the open segment.
        if self.writing.is_none() && self.open.as_ref().is_some_and(is_old) {
            self.rolling.extend(self.open.take());
        }
        self.complete_rolled(wall_ms, out);

        let (open_bytes, kept_ms) = (self.open_bytes(), self.kept_ms());
        let count = retention::expired(&self.config, self.completed.iter(), open_bytes, kept_ms, wall_ms);
        if self.is_restoring() {
            // The log's start is being moved; the next tick looks again.
        } else if let Some(last) = count.checked_sub(1).and_then(|index| self.completed.get(index)) {
            self.changes.raise_log_start(last.next_offset);
        }
        self.tick_cold(wall_ms, out);
        if now >= self.producers_expire_at {
            self.producers_expire_at = now + PRODUCERS_EXPIRE_EVERY;
            self.producers.expire(wall_ms);
        }
    }

    /// While closing: completes the open segment once nothing is queued, and says when all is recorded.
    pub(super) fn finish(&mut self, wall_ms: i64, out: &mut Vec<Output>) {
        if !self.closing
            || self.is_closed
            || !self.buffer.is_empty()
            || self.writing.is_some()
            || self.is_in_flight()
        {
            return;
        }
        self.rolling.extend(self.open.take());
        self.complete_rolled(wall_ms, out);
        // What metadata can't take is not waited for: the next start finds the same in the store.
        if !self.changes.is_pending() || self.changes.is_refused() || self.state == ShardPhase::Lost {
            self.is_closed = true;
            out.push(Output::Closed);
        }
    }

    /// The stream is deleted: fails what waits and deletes the segments.
    pub(super) fn delete(&mut self, out: &mut Vec<Output>) {
        self.state = ShardPhase::Deleted;
        let in_flight = std::mem::take(&mut self.in_flight);
        for accepted in in_flight.into_iter().flat_map(|entry| entry.appends) {
            out.push(Output::Reply(accepted.waiter, Err(AppendError::NoStream)));
        }
        self.unsynced.clear();
        self.rolling.extend(self.open.take().filter(|open| open.created));
        for segment in std::mem::take(&mut self.rolling) {
            out.push(Output::Delete(segment.id));
        }
        out.extend(std::mem::take(&mut self.empty).into_iter().map(Output::Delete));
        for segment in std::mem::take(&mut self.completed) {
            self.take_in_removed(&segment, None, out);
        }
        for truncated in std::mem::take(&mut self.truncated) {
            let copy = truncated.segment.cold.map(|cold| cold.copy);
            out.extend(copy.map(|copy| Output::RemoveCopy(self.segment_id(&truncated.segment), copy)));
        }
        self.fail_unwritten(&AppendError::NoStream, out);
        let gone = crate::StreamError::NoStream(self.id.stream.to_string());
        self.changes.fail_truncations(&gone, out);
        self.fail_restore(&gone, out);
    }
}
