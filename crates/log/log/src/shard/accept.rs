//! Accepting appends: who may, at which offset, with which transaction id.

use std::sync::Arc;

use tailwater_env::Instant;
use tailwater_format::Offset;

use super::{Duplicate, Output, Shard, ShardPhase, StoreAppend};
use crate::batches::Accepted;
use crate::error::AppendError;
use crate::producer::Verdict;

impl Shard {
    /// Takes in an append: into the buffer, or answered at once.
    pub(super) fn append(&mut self, now: Instant, wall_ms: i64, append: StoreAppend, out: &mut Vec<Output>) {
        match self.check(now, &append) {
            Ok(Verdict::Append) => self.accept(now, wall_ms, append),
            Ok(Verdict::Duplicate(base_offset)) => {
                let next_offset = Offset(base_offset.0 + u64::from(append.batches.records));
                self.duplicates.push(Duplicate {
                    base_offset,
                    next_offset,
                    append_time_ms: wall_ms,
                    waiter: append.waiter,
                });
                self.release_duplicates(out);
            }
            Ok(Verdict::Refused(error)) => out.push(Output::Reply(append.waiter, Err(error.into()))),
            Err(error) => out.push(Output::Reply(append.waiter, Err(error))),
        }
    }

    fn check(&self, now: Instant, append: &StoreAppend) -> Result<Verdict, AppendError> {
        let current = match self.state {
            ShardPhase::Owning(term) => term,
            ShardPhase::Resting | ShardPhase::Claiming => self.changes.record().term.next(),
            ShardPhase::Lost => return Err(AppendError::NotOwner),
            ShardPhase::Deleted => return Err(AppendError::NoStream),
        };
        if self.closing {
            return Err(AppendError::Closed);
        }
        if self.state == ShardPhase::Resting
            && let Some(why) = self.changes.refusal(now)
        {
            return Err(AppendError::Refused(Arc::clone(why)));
        }
        if let Some(given) = append.expected_term.filter(|given| *given != current) {
            return Err(AppendError::Term { current, given });
        }
        let verdict = append.batches.claim.map_or(Verdict::Append, |claim| self.producers.check(claim));
        if verdict == Verdict::Append
            && let Some(given) = append.batches.explicit
            && given < self.transaction_id
        {
            return Err(AppendError::TransactionId { given, last: self.transaction_id });
        }
        Ok(verdict)
    }

    fn accept(&mut self, now: Instant, wall_ms: i64, append: StoreAppend) {
        if self.state == ShardPhase::Resting {
            self.state = ShardPhase::Claiming;
            self.changes.claim(self.changes.record().term.next());
        }
        if self.buffer.is_empty() {
            self.buffer_since = now;
        }
        let StoreAppend { mut batches, waiter, .. } = append;
        batches.raise_append_time(self.append_time_ms);
        self.append_time_ms = batches.append_time_ms.unwrap_or(self.append_time_ms);
        if let Some(claim) = batches.claim {
            self.producers.accept(claim, self.next_offset.get());
        }
        let accepted = Accepted {
            base_offset: self.next_offset.get(),
            first_transaction_id: self.transaction_id.max(batches.first_timestamp),
            transaction_id: self.transaction_id.max(batches.max_timestamp),
            append_time_ms: batches.append_time_ms.unwrap_or(wall_ms),
            accepted_at: now,
            batches,
            copied: None,
            waiter,
        };
        self.take(accepted);
    }

    /// Puts an append that has its place into the buffer.
    pub(super) fn take(&mut self, accepted: Accepted) {
        assert!(accepted.batches.records > 0, "{}: an empty append is refused before", self.id);
        self.next_offset.advance(accepted.next_offset());
        self.transaction_id = accepted.transaction_id;
        self.buffer_bytes += accepted.batches.bytes.len();
        self.buffer.push_back(accepted);
    }
}
