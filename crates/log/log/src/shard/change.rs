//! What a shard has to tell metadata: claimed terms, completed segments, the first offset to keep.
//!
//! One commit is under way at a time, and everything that came up meanwhile goes into the next. Each replaces the
//! shard's record at the version that the last one left, so another owner's makes the next one fail with a
//! conflict rather than overwrite. A commit of which it is not known whether it took place is repeated as it
//! was; if it did, the conflict shows the very record, with this owner's random number in it. One that metadata can't
//! take is not repeated: whoever waits for it is told, and after a pause another one says what there is to say by then.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tailwater_env::Instant;
use tailwater_format::{Offset, SegmentId, SegmentNumber, ShardId, Term};

use super::{Output, Shard, ShardPhase, Truncation};
use crate::config::StreamDurability;
use crate::error::{AppendError, StreamError};
use crate::limits::{COMMIT_COLD_MAX, COMMIT_OPS_MAX, COMMIT_REFUSED_PAUSE, COMMIT_RETRY, TRUNCATIONS_MAX};
use crate::retention;
use crate::stream::{ProducersRecord, SegmentRecord, ShardRecord, TruncatedRecord};

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The shard.
    pub shard: ShardId,
    /// Its record, to be put at `version`.
    pub record: ShardRecord,
    /// The version of the record that is replaced; 0 if there must be none.
    pub version: u64,
    /// Completed segments to put.
    pub completed: Vec<SegmentRecord>,
    /// Segments whose records go.
    pub deleted: Vec<SegmentNumber>,
    /// The producers, whenever segments are completed.
    pub producers: Option<ProducersRecord>,
    /// Segments whose records are put anew: they were copied to cold storage, or leave the store.
    pub updated: Vec<SegmentRecord>,
    /// Those of the deleted ones whose copies are kept.
    pub truncated: Vec<TruncatedRecord>,
    /// Removed segments whose copies are kept no longer.
    pub forgotten: Vec<SegmentNumber>,
    /// Removed segments that come back. The log's start goes back with them.
    pub restored: Vec<SegmentRecord>,
}

/// Why a change was not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// The record has another version; this is it, if there is one.
    Conflict(Option<(ShardRecord, u64)>),
    /// It is not known whether it was committed.
    Unavailable(String),
    /// Metadata can't take it, now or later; nothing was changed.
    Refused(String),
}

/// What metadata knows, and what it has yet to be told.
#[derive(Debug)]
pub(super) struct Changes {
    record: ShardRecord,
    version: u64,
    /// The term that is to be claimed.
    claim: Option<Term>,
    /// Where a copy goes on behind a gap, until metadata knows.
    begin: Option<Offset>,
    log_start: Offset,
    completed: VecDeque<SegmentRecord>,
    truncations: Vec<Truncation>,
    /// Records of segments that metadata has, as they are to be.
    updates: BTreeMap<SegmentNumber, SegmentRecord>,
    /// How many of the removed segments, from the oldest on, are to be forgotten.
    forget: usize,
    committing: Option<Change>,
    /// Whether that claims the term that it has.
    is_claiming: bool,
    /// The last one, if it is not known whether it took place.
    uncertain: Option<Change>,
    /// Why metadata can't take the last one.
    refused: Option<Arc<str>>,
    /// Nothing is committed before this.
    retry_at: Instant,
    /// Random for each start of a log; in every record that this owner puts.
    owner: u64,
}

impl Changes {
    pub(super) fn new(owner: u64, record: ShardRecord, version: u64, unsaved: Vec<SegmentRecord>) -> Self {
        Self {
            record,
            version,
            claim: None,
            begin: None,
            log_start: record.log_start,
            completed: unsaved.into(),
            truncations: Vec::new(),
            updates: BTreeMap::new(),
            forget: 0,
            committing: None,
            is_claiming: false,
            uncertain: None,
            refused: None,
            retry_at: Instant::default(),
            owner,
        }
    }

    /// The record and its version, and the completed segments that metadata was not told of.
    pub(super) fn into_parts(self) -> (ShardRecord, u64, Vec<SegmentRecord>) {
        (self.record, self.version, self.completed.into())
    }

    /// As committed.
    pub(super) fn record(&self) -> &ShardRecord {
        &self.record
    }

    /// The first offset that readers may rely on: as committed.
    pub(super) fn log_start(&self) -> Offset {
        self.record.log_start
    }

    pub(super) fn claim(&mut self, term: Term) {
        self.claim = Some(term);
    }

    /// The copy goes on at `offset`, behind a gap.
    pub(super) fn begin(&mut self, offset: Offset) {
        assert!(offset > self.begun(), "a copy goes forward");
        self.begin = Some(offset);
        self.raise_log_start(offset);
    }

    /// Where the shard goes on behind all segments that metadata was told of.
    pub(super) fn begun(&self) -> Offset {
        self.begin.unwrap_or(self.record.next_offset).max(self.record.next_offset)
    }

    pub(super) fn completed(&mut self, segment: SegmentRecord) {
        let last = self.completed.back().map_or(self.record.next_offset, |last| last.next_offset);
        assert_eq!(
            segment.base_offset,
            last.max(self.record.next_offset),
            "a segment goes on where the last one ended"
        );
        self.completed.push_back(segment);
    }

    /// How many completed segments metadata was not told of.
    pub(super) fn unsaved(&self) -> usize {
        self.completed.len()
    }

    /// The record of a segment that metadata has is to be this one.
    pub(super) fn update(&mut self, segment: SegmentRecord) {
        self.updates.insert(segment.number, segment);
    }

    /// Metadata has this record of a segment.
    pub(super) fn updated(&mut self, segment: &SegmentRecord) {
        if self.updates.get(&segment.number) == Some(segment) {
            self.updates.remove(&segment.number);
        }
    }

    /// So many of the removed segments are to be forgotten.
    pub(super) fn forget(&mut self, count: usize) {
        self.forget = count;
    }

    /// One of them is.
    pub(super) fn forgot(&mut self) {
        self.forget = self.forget.saturating_sub(1);
    }

    pub(super) fn raise_log_start(&mut self, log_start: Offset) {
        self.log_start = self.log_start.max(log_start);
    }

    /// The shard ends at `end` by now: what lay behind it is lost and can't be truncated, what lies before it still
    /// can.
    pub(super) fn cut_log_start(&mut self, end: Offset, out: &mut Vec<Output>) {
        let end = end.max(self.record.log_start);
        self.log_start = self.log_start.min(end);
        for truncation in &mut self.truncations {
            truncation.before = truncation.before.min(end);
        }
        self.answer_truncations(out);
    }

    /// Whether a commit is under way, or one of which it is not known whether it took place.
    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some() || self.uncertain.is_some()
    }

    /// Whether something waits to be committed or answered.
    pub(super) fn is_pending(&self) -> bool {
        self.committing.is_some() || self.uncertain.is_some() || self.has_news(self.log_start)
    }

    /// Whether there is something to tell metadata, if the log starts at `log_start`.
    fn has_news(&self, log_start: Offset) -> bool {
        self.claim.is_some()
            || self.begin.is_some()
            || !self.completed.is_empty()
            || !self.updates.is_empty()
            || self.forget > 0
            || log_start > self.record.log_start
    }

    /// The first offset that is to be kept, once that may be recorded.
    pub(super) fn wanted_log_start(&self) -> Offset {
        self.log_start
    }

    /// Whether records are to be removed, of which metadata has not been told.
    pub(super) fn is_truncating(&self) -> bool {
        self.log_start > self.record.log_start
    }

    /// Why nothing can be committed for a while, if metadata can't take it.
    pub(super) fn refusal(&self, now: Instant) -> Option<&Arc<str>> {
        self.refused.as_ref().filter(|_| now < self.retry_at)
    }

    /// Whether metadata could not take the last one.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// When to repeat a commit that was not answered.
    pub(super) fn retry_deadline(&self) -> Option<Instant> {
        self.uncertain.as_ref().map(|_| self.retry_at)
    }

    /// Answers the truncations that are recorded.
    fn answer_truncations(&mut self, out: &mut Vec<Output>) {
        let log_start = self.record.log_start;
        for truncation in self.truncations.extract_if(.., |waiting| waiting.before <= log_start) {
            out.push(Output::Truncated(truncation, Ok(log_start)));
        }
    }

    pub(super) fn fail_truncations(&mut self, error: &StreamError, out: &mut Vec<Output>) {
        for truncation in self.truncations.drain(..) {
            out.push(Output::Truncated(truncation, Err(error.clone())));
        }
    }
}

impl Shard {
    /// Takes in a truncation: recorded with the next change, or answered at once.
    pub(super) fn truncate(&mut self, now: Instant, truncation: Truncation, out: &mut Vec<Output>) {
        let refused = match self.state {
            ShardPhase::Deleted => Some(StreamError::NoStream(self.id.stream.to_string())),
            ShardPhase::Lost => Some(StreamError::NotOwner),
            _ if self.closing => Some(StreamError::Closed),
            _ if self.changes.truncations.len() >= TRUNCATIONS_MAX || self.is_restoring() => {
                Some(StreamError::Overloaded)
            }
            _ if truncation.before > self.acked_next.get() => {
                Some(StreamError::BeyondEnd { end: self.acked_next.get(), given: truncation.before })
            }
            _ => None,
        };
        if let Some(error) = refused {
            out.push(Output::Truncated(truncation, Err(error)));
        } else if truncation.before <= self.changes.record.log_start {
            out.push(Output::Truncated(truncation, Ok(self.changes.record.log_start)));
        } else if let Some(why) = self.changes.refusal(now) {
            out.push(Output::Truncated(truncation, Err(StreamError::Refused(why.to_string()))));
        } else {
            self.changes.raise_log_start(truncation.before);
            self.changes.truncations.push(truncation);
        }
    }

    /// Whether removed records come back: the log's start is not moved by anything else meanwhile.
    pub(super) fn is_restoring(&self) -> bool {
        let changes = [&self.changes.committing, &self.changes.uncertain];
        self.restore.is_some() || changes.into_iter().flatten().any(|change| !change.restored.is_empty())
    }

    /// The next commit, if one is due.
    pub(super) fn next_change(&mut self, now: Instant, wall_ms: i64) -> Option<Change> {
        let changes = &self.changes;
        if changes.committing.is_some() || now < changes.retry_at {
            return None;
        }
        if matches!(self.state, ShardPhase::Lost | ShardPhase::Deleted) {
            return None;
        }
        self.changes.refused = None;
        let changes = &self.changes;
        if changes.uncertain.is_some() {
            self.changes.is_claiming = false;
            self.changes.committing = self.changes.uncertain.take();
            return self.changes.committing.clone();
        }
        // Not what a loss may take back: a change that is repeated behind it would have the log start behind its end.
        let mut log_start = changes.log_start.min(self.synced_next()).max(changes.record.log_start);
        let restoring = self.restore.as_ref().map(|wish| self.restoring(wish.from, wall_ms));
        if let Some(restoring) = &restoring {
            log_start = restoring.log_start;
        }
        let below = retention::below(self.completed.iter(), log_start);
        // Those that metadata was never told of are told first, and go with the next change.
        let saved = self.completed.len() - changes.completed.len();
        let gone = self.completed.iter().take(below.min(saved)).take_while(|segment| self.may_go(segment));
        let deleted: Vec<SegmentNumber> =
            gone.map(|segment| segment.number).take(COMMIT_OPS_MAX / 4).collect();
        if !changes.has_news(log_start) && deleted.is_empty() && restoring.is_none() {
            return None;
        }
        let updated = changes.updates.values().filter(|segment| !deleted.contains(&segment.number));
        let updated: Vec<SegmentRecord> = updated.take(COMMIT_COLD_MAX).copied().collect();
        let truncated = self.kept_of(&deleted, wall_ms);
        // While some come back, the others stay.
        let forget = if restoring.is_some() { 0 } else { changes.forget.min(COMMIT_COLD_MAX) };
        let forgotten = self.truncated.iter().take(forget).map(|truncated| truncated.segment.number);
        let forgotten: Vec<SegmentNumber> = forgotten.collect();
        let restored = restoring.map_or(Vec::new(), |restoring| restoring.segments);
        let completed: Vec<SegmentRecord> =
            changes.completed.iter().take(COMMIT_OPS_MAX / 4).copied().collect();
        let mut record = ShardRecord { log_start, owner: changes.owner, ..changes.record };
        if let Some(term) = changes.claim {
            record.term = term;
        }
        if let Some(last) = completed.last() {
            record.next_segment = last.number.next();
            record.next_offset = last.next_offset;
            record.transaction_id = last.last_transaction_id;
        }
        if let Some(begin) = changes.begin {
            record.next_offset = begin;
            record.next_segment = record.next_segment.max(self.unused);
        }
        let all_told = completed.len() == changes.completed.len() && self.rolling.is_empty();
        if self.is_copy && changes.claim.is_some() && all_told && self.open.is_none() {
            record.next_segment = record.next_segment.max(self.unused);
        }
        let producers = (!completed.is_empty()).then(|| {
            // What is acknowledged, and not yet synced, may be lost: then other batches get its offsets.
            let upto = match self.config.durability {
                StreamDurability::Fsync => self.acked_next.get(),
                StreamDurability::Interval => self.completed_end().0,
            };
            ProducersRecord { term: record.term, upto, producers: self.producers.snapshot(upto) }
        });
        assert!(record.next_offset <= self.acked_next.get(), "{}: only what is acked is recorded", self.id);
        assert!(log_start <= self.acked_next.get(), "{}: only what is acked is removed", self.id);
        assert!(record.next_segment >= changes.record.next_segment, "{}: numbers go forward only", self.id);
        let change = Change {
            shard: self.id,
            record,
            version: changes.version,
            completed,
            deleted,
            producers,
            updated,
            truncated,
            forgotten,
            restored,
        };
        self.changes.is_claiming = self.changes.claim.is_some();
        self.changes.committing = Some(change.clone());
        Some(change)
    }

    /// Takes in how a commit ended: with the record's new version, or not.
    pub(super) fn committed(
        &mut self,
        now: Instant,
        result: Result<u64, ChangeError>,
        out: &mut Vec<Output>,
    ) {
        let Some(change) = self.changes.committing.take() else { return };
        if self.state == ShardPhase::Deleted {
            return;
        }
        let version = match result {
            Ok(version) => version,
            Err(ChangeError::Conflict(Some((record, version)))) if record == change.record => version,
            Err(ChangeError::Conflict(_)) => {
                self.state = ShardPhase::Lost;
                self.changes.claim = None;
                self.fail_unwritten(&AppendError::NotOwner, out);
                self.changes.fail_truncations(&StreamError::NotOwner, out);
                self.fail_restore(&StreamError::NotOwner, out);
                return;
            }
            Err(ChangeError::Refused(why)) => {
                let why: Arc<str> = why.into();
                self.changes.retry_at = now + COMMIT_REFUSED_PAUSE;
                self.changes.refused = Some(Arc::clone(&why));
                self.changes.claim = None;
                // Whoever is told that nothing was removed should not find it removed later. Retention asks again.
                self.changes.log_start = self.changes.record.log_start;
                // Likewise of copies: whoever made one looks again.
                self.changes.updates.clear();
                if self.state == ShardPhase::Claiming {
                    self.state = ShardPhase::Resting;
                    self.fail_unwritten(&AppendError::Refused(Arc::clone(&why)), out);
                }
                self.changes.fail_truncations(&StreamError::Refused(why.to_string()), out);
                self.fail_restore(&StreamError::Refused(why.to_string()), out);
                return;
            }
            Err(ChangeError::Unavailable(why)) => {
                self.changes.retry_at = now + COMMIT_RETRY;
                self.changes.uncertain = Some(change);
                self.changes.claim = None;
                if self.state == ShardPhase::Claiming {
                    self.state = ShardPhase::Resting;
                    self.fail_unwritten(&AppendError::Unavailable(format!("metadata: {why}").into()), out);
                }
                self.changes.fail_truncations(&StreamError::Unavailable(why.clone()), out);
                self.fail_restore(&StreamError::Unavailable(why), out);
                return;
            }
        };
        let is_restore = change.record.log_start < self.changes.record.log_start;
        assert!(
            !is_restore || self.cold.is_some(),
            "{}: a log start goes back only where removed records are kept",
            self.id
        );
        assert!(change.record.term >= self.changes.record.term, "a term goes forward only");
        assert!(change.record.next_offset >= self.changes.record.next_offset, "what is completed stays so");
        assert!(
            change.completed.iter().eq(self.changes.completed.range(..change.completed.len())),
            "{}: {}",
            self.id,
            "what was committed is the oldest that metadata was not told of"
        );
        let moved = change.record.log_start != self.changes.record.log_start;
        // A copy claims its source's term again after a restart: that it is the same says nothing.
        let claimed = self.changes.is_claiming || change.record.term > self.changes.record.term;
        self.changes.record = change.record;
        self.changes.version = version;
        self.changes.completed.drain(..change.completed.len());
        self.delete_empty(out);
        if self.changes.begin == Some(change.record.next_offset) {
            self.changes.begin = None;
        }
        let is_known = |cut| change.completed.iter().any(|segment| segment.number == cut);
        if self.cut.is_some_and(is_known) {
            self.cut = None;
            self.list_changed = true;
            self.tail_changed = true;
            out.push(Output::Update(self.tail()));
        }
        if claimed {
            self.changes.claim = None;
            // Nothing was written in this term, even if those who made us claim it were refused meanwhile.
            if matches!(self.state, ShardPhase::Claiming | ShardPhase::Resting) {
                self.state = ShardPhase::Owning(change.record.term);
            }
        }
        if moved {
            self.tail_changed = true;
            out.push(Output::Update(self.tail()));
        }
        self.take_in_segments(change, is_restore, out);
        self.answer_restore(out);
        self.changes.answer_truncations(out);
    }

    /// What a change that was committed does to segments and their copies.
    fn take_in_segments(&mut self, change: Change, is_restore: bool, out: &mut Vec<Output>) {
        for segment in change.updated {
            self.take_in_updated(segment, out);
        }
        for number in change.deleted {
            let segment = self.completed.pop_front().expect("only this deletes completed segments");
            assert_eq!(segment.number, number, "{}: the oldest go first", self.id);
            self.list_changed = true;
            self.changes.updates.remove(&number);
            let kept = change.truncated.iter().find(|kept| kept.segment.number == number);
            self.take_in_removed(&segment, kept, out);
        }
        self.take_in_forgotten(&change.forgotten, out);
        self.take_in_restored(change.restored, out);
        if is_restore {
            self.changes.log_start = self.changes.record.log_start;
        }
    }

    pub(super) fn segment_id(&self, segment: &SegmentRecord) -> SegmentId {
        SegmentId { shard: self.id, number: segment.number, term: segment.term }
    }
}
