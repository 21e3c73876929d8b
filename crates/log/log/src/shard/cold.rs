//! What a shard decides about cold storage: when a copied segment leaves the store, when a copy goes, and what comes
//! back.
//!
//! ```text
//!   completed --Copied--> copied --(cold_after)--> released --(retention, truncation)--> truncated --(kept_ms)--> gone
//!                            \---(retention, truncation)----------------------------------^   |
//!                                                     released <------------Restore-----------/
//! ```
//!
//! Each step is a commit first, and happens to bytes behind it:
//! - A segment leaves the store only when metadata names its copy, which was read back and compared before.
//! - A copy goes only when no record names it any more.
//!
//! So a crash between the two leaves bytes too many, never too few: a start deletes a released segment that is still in
//! the store, and a sweep removes copies that nothing names.

use tailwater_cold::ColdCopy;
use tailwater_format::{Offset, SegmentNumber, Term};
use tokio::sync::oneshot;

use super::{Output, Shard, ShardPhase};
use crate::error::StreamError;
use crate::limits::COMMIT_COLD_MAX;
use crate::planted::ShardMistake;
use crate::retention;
use crate::stream::{SegmentCold, SegmentRecord, TruncatedRecord};

/// How the node's cold storage is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCold {
    /// How long the copy of a removed segment is kept, and how long retention leaves a restored one alone, in ms. With
    /// 0 it goes with its segment.
    pub kept_ms: u64,
}

/// A segment was copied to cold storage, read back and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentCopied {
    /// Its number.
    pub number: SegmentNumber,
    /// Its term.
    pub term: Term,
    /// The copy.
    pub copy: ColdCopy,
}

/// Somebody wants records back that were removed.
#[derive(Debug)]
pub struct RestoreRequest {
    /// The first offset to bring back, if it is there; else the first one behind it that is.
    pub from: Offset,
    /// Answered with the first offset that is there then.
    pub reply: oneshot::Sender<Result<Offset, StreamError>>,
}

/// What a restoring change puts.
pub(super) struct Restoring {
    /// Oldest first.
    pub(super) segments: Vec<SegmentRecord>,
    pub(super) log_start: Offset,
}

impl Shard {
    /// The shard of a node that has cold storage.
    #[must_use]
    pub fn with_cold(mut self, cold: Option<ShardCold>) -> Self {
        self.cold = cold;
        self
    }

    /// How long removed and restored segments are kept, in ms.
    pub(super) fn kept_ms(&self) -> u64 {
        self.cold.map_or(0, |cold| cold.kept_ms)
    }

    /// Takes in that a segment was copied. One that metadata has not, or that has a copy, needs none.
    pub(super) fn copied(&mut self, copied: SegmentCopied, out: &mut Vec<Output>) {
        if matches!(self.state, ShardPhase::Lost | ShardPhase::Deleted) {
            return;
        }
        let is_it = |segment: &&SegmentRecord| {
            (segment.number, segment.term) == (copied.number, copied.term) && segment.cold.is_none()
        };
        let Some(segment) = self.saved().find(is_it) else { return };
        let cold = SegmentCold { copy: copied.copy, is_released: false, restored_ms: None };
        let segment = SegmentRecord { cold: Some(cold), ..*segment };
        if self.planted == ShardMistake::LeavesBeforeNamed {
            out.push(Output::Delete(self.segment_id(&segment)));
        }
        self.changes.update(segment);
    }

    /// Bytes of the segments that are not completed.
    pub(super) fn open_bytes(&self) -> u64 {
        self.rolling.iter().chain(&self.open).map(|open| open.length.get().0).sum()
    }

    /// Completed segments that metadata has, oldest first.
    fn saved(&self) -> impl Iterator<Item = &SegmentRecord> + Clone {
        self.completed.iter().take(self.completed.len() - self.changes.unsaved())
    }

    /// Finds out which segments leave the store, and which copies go.
    pub(super) fn tick_cold(&mut self, wall_ms: i64, out: &mut Vec<Output>) {
        if self.config.cold && self.cold.is_some() {
            let open_bytes = self.open_bytes();
            let count = retention::released(&self.config, self.saved(), open_bytes, wall_ms);
            let due = self.saved().take(count).filter(|segment| !segment.is_released());
            // One that metadata names no copy of stays.
            let due = due.filter_map(|segment| {
                let cold = SegmentCold { is_released: true, ..segment.cold? };
                Some(SegmentRecord { cold: Some(cold), ..*segment })
            });
            let due: Vec<SegmentRecord> = due.take(COMMIT_COLD_MAX).collect();
            due.into_iter().for_each(|segment| self.changes.update(segment));
        }
        let kept_ms = self.kept_ms();
        let is_over = |truncated: &&TruncatedRecord| {
            let age_ms = wall_ms.saturating_sub(truncated.truncated_ms);
            u64::try_from(age_ms).is_ok_and(|age_ms| age_ms >= kept_ms)
        };
        // Without cold storage there is nothing that a copy could be removed from.
        let over = if self.cold.is_some() { self.truncated.iter().take_while(is_over).count() } else { 0 };
        if self.planted == ShardMistake::CopyGoesFirst {
            for truncated in self.truncated.iter().take(over) {
                let copy = truncated.segment.cold.map(|cold| cold.copy);
                out.extend(copy.map(|copy| Output::RemoveCopy(self.segment_id(&truncated.segment), copy)));
            }
        }
        self.changes.forget(over);
    }

    /// Whether a segment may be removed that retention or a truncation gave up: not before it is copied, if its copy is
    /// to be kept.
    pub(super) fn may_go(&self, segment: &SegmentRecord) -> bool {
        !self.config.cold
            || self.kept_ms() == 0
            || segment.cold.is_some()
            || self.planted == ShardMistake::RemovedWithoutCopy
    }

    /// What becomes of removed segments: those whose copies are kept.
    pub(super) fn kept_of(&self, deleted: &[SegmentNumber], wall_ms: i64) -> Vec<TruncatedRecord> {
        // What has a copy is kept where nobody can say for how long, too.
        if self.cold.is_some() && self.kept_ms() == 0 {
            return Vec::new();
        }
        let kept = self.completed.iter().take(deleted.len()).filter(|segment| segment.cold.is_some());
        kept.map(|segment| TruncatedRecord { segment: *segment, truncated_ms: wall_ms }).collect()
    }

    /// Takes in a wish to have removed records back: put with the next change.
    pub(super) fn restore(&mut self, wish: RestoreRequest, out: &mut Vec<Output>) {
        match self.check_restore(&wish) {
            Err(error) => out.push(Output::Restored(wish, Err(error))),
            Ok(()) => self.restore = Some(wish),
        }
    }

    fn check_restore(&self, wish: &RestoreRequest) -> Result<(), StreamError> {
        match self.state {
            ShardPhase::Deleted => return Err(StreamError::NoStream(self.id.stream.to_string())),
            ShardPhase::Lost => return Err(StreamError::NotOwner),
            _ if self.closing => return Err(StreamError::Closed),
            _ if self.cold.is_none() => return Err(crate::ConfigError::NoCold.into()),
            _ if self.restore.is_some() || self.changes.is_truncating() => {
                return Err(StreamError::Overloaded);
            }
            _ => {}
        }
        let log_start = self.changes.log_start();
        let is_leaving = |segment: &SegmentRecord| segment.next_offset <= log_start;
        if self.completed.front().is_some_and(is_leaving) {
            return Err(StreamError::Unavailable(
                "segments that were removed wait to be copied to cold storage; try again when they are"
                    .to_owned(),
            ));
        }
        if self.restoring(wish.from, 0).log_start >= log_start {
            return Err(StreamError::NothingToRestore { log_start, from: wish.from });
        }
        Ok(())
    }

    /// What comes back with one change, the newest first: so there never is a gap.
    pub(super) fn restoring(&self, from: Offset, wall_ms: i64) -> Restoring {
        let open = self.rolling.front().or(self.open.as_ref()).map(|open| open.base_offset);
        let first = self.completed.front().map(|first| first.base_offset).or(open);
        let mut first = first.unwrap_or(self.acked_next.get());
        let mut segments = Vec::new();
        for truncated in self.truncated.iter().rev() {
            let segment = truncated.segment;
            // A copy that went on behind a gap, or a segment without a copy, ends what can be had.
            if segment.next_offset != first || first <= from || segments.len() >= COMMIT_COLD_MAX {
                break;
            }
            let Some(cold) = segment.cold else { break };
            first = segment.base_offset;
            // It left the store when it was removed, if not before.
            let cold = SegmentCold { is_released: true, restored_ms: Some(wall_ms), ..cold };
            segments.push(SegmentRecord { cold: Some(cold), ..segment });
        }
        segments.reverse();
        let log_start = first.max(from).min(self.changes.log_start());
        Restoring { segments, log_start }
    }

    /// Whoever wants records back is told why they do not come.
    pub(super) fn fail_restore(&mut self, error: &StreamError, out: &mut Vec<Output>) {
        out.extend(self.restore.take().map(|wish| Output::Restored(wish, Err(error.clone()))));
    }

    /// Tells whoever wanted records back, once all of them are.
    pub(super) fn answer_restore(&mut self, out: &mut Vec<Output>) {
        let log_start = self.changes.log_start();
        let Some(wish) = self.restore.take() else { return };
        if self.restoring(wish.from, 0).log_start >= log_start {
            out.push(Output::Restored(wish, Ok(log_start)));
        } else {
            self.restore = Some(wish);
        }
    }

    /// The copies of a change that was committed: which readers are given, which are kept without, and which go.
    pub(super) fn take_in_removed(
        &mut self,
        segment: &SegmentRecord,
        kept: Option<&TruncatedRecord>,
        out: &mut Vec<Output>,
    ) {
        let id = self.segment_id(segment);
        if !segment.is_released() {
            out.push(Output::Delete(id));
        }
        match (segment.cold, kept) {
            (Some(_), Some(kept)) => {
                self.truncated.push_back(*kept);
                out.push(Output::HideCopy(id));
            }
            (Some(cold), None) => out.push(Output::RemoveCopy(id, cold.copy)),
            (None, _) => {}
        }
    }

    /// A record that was put anew.
    pub(super) fn take_in_updated(&mut self, segment: SegmentRecord, out: &mut Vec<Output>) {
        self.changes.updated(&segment);
        let id = self.segment_id(&segment);
        let Some(place) = self.completed.iter_mut().find(|before| before.number == segment.number) else {
            return;
        };
        let before = std::mem::replace(place, segment);
        self.list_changed = true;
        if let (None, Some(cold)) = (before.cold, segment.cold) {
            out.push(Output::NameCopy(id, cold.copy, segment.length));
        }
        if segment.is_released() && !before.is_released() {
            out.push(Output::Delete(id));
        }
    }

    /// Segments that are back.
    pub(super) fn take_in_restored(&mut self, segments: Vec<SegmentRecord>, out: &mut Vec<Output>) {
        for segment in segments.into_iter().rev() {
            let truncated = self.truncated.pop_back().expect("only this brings them back");
            assert_eq!(truncated.segment.number, segment.number, "{}: the newest come first", self.id);
            let cold = segment.cold.expect("it has a copy");
            out.push(Output::NameCopy(self.segment_id(&segment), cold.copy, segment.length));
            self.completed.push_front(segment);
            self.list_changed = true;
            // Which of the others are to be forgotten is found anew.
            self.changes.forget(0);
        }
    }

    /// Copies that no record names any more.
    pub(super) fn take_in_forgotten(&mut self, forgotten: &[SegmentNumber], out: &mut Vec<Output>) {
        for number in forgotten {
            let truncated = self.truncated.pop_front().expect("only this forgets them");
            assert_eq!(truncated.segment.number, *number, "{}: the oldest go first", self.id);
            self.changes.forgot();
            if let Some(cold) = truncated.segment.cold {
                out.push(Output::RemoveCopy(self.segment_id(&truncated.segment), cold.copy));
            }
        }
    }
}
