//! What only a shard that is a copy does: it takes its source's entries in their places, and goes on behind what the
//! source has removed.
//!
//! Offsets, terms and batches are the source's. Segments are not: a start ends the one that was written, as it does in
//! any shard, and its number is used once.

use std::sync::Arc;

use tailwater_env::Instant;
use tailwater_format::{Offset, SegmentNumber, Term};

use super::{CopiedTo, CopyBegin, Output, Shard, ShardPhase, StoreAppend, Visible};
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
        let current = self.buffer.back().and_then(|last| last.copied).unwrap_or(self.changes.record().term);
        if copied.term < current {
            return Err(AppendError::Term { current, given: copied.term });
        }
        let next = self.next_offset.get();
        if copied.base_offset != next {
            let why = format!("the copy goes on at offset {next}, not at {}", copied.base_offset);
            return Err(AppendError::Invalid(why.into()));
        }
        Ok(())
    }

    fn claim_copied(&mut self, term: Term) {
        self.state = ShardPhase::Claiming;
        self.changes.claim(term);
    }

    /// Whether what comes next is of a later term than `owned`, which is claimed then, and begins a segment.
    pub(super) fn waits_for_term(&mut self, owned: Term) -> bool {
        let Some(term) = self.buffer.front().and_then(|first| first.copied).filter(|term| *term != owned)
        else {
            return false;
        };
        assert!(term > owned, "{}: a term goes forward only", self.id);
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
