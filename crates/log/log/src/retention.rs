//! Which segments roll, and which may go.
//!
//! Only whole completed segments are deleted, oldest first, and never the open one: a shard whose records have
//! all expired rolls its open segment first ([`roll_age_ms`]), and then it is a completed one.

use tailwater_format::Offset;

use crate::config::StreamConfig;
use crate::stream::SegmentRecord;

/// Length in bytes beyond which the open segment is completed. A segment larger than what is to be kept would
/// keep everything, so retention bounds it too.
pub fn roll_bytes(config: &StreamConfig) -> u64 {
    config.segment_bytes.min(config.retention_bytes.unwrap_or(u64::MAX))
}

/// Age in ms at which the open segment, if it has records, is completed; likewise.
pub fn roll_age_ms(config: &StreamConfig) -> u64 {
    config.segment_ms.min(config.retention_ms.unwrap_or(u64::MAX))
}

/// How many of the `completed` segments, from the oldest on, retention gives up at wall time `now_ms`, when
/// the open segment holds `open_bytes`. Those sealed in the future (the clock went back) are kept, and those that were
/// restored less than `restored_ms` ago with all behind them.
pub fn expired<'a>(
    config: &StreamConfig,
    completed: impl DoubleEndedIterator<Item = &'a SegmentRecord> + Clone,
    open_bytes: u64,
    restored_ms: u64,
    now_ms: i64,
) -> usize {
    let is_restored = |segment: &SegmentRecord| {
        let restored_at = segment.cold.and_then(|cold| cold.restored_ms);
        restored_at.is_some_and(|at| !is_past(at, restored_ms, now_ms))
    };
    let restored = completed.clone().position(is_restored);
    let by_time = config.retention_ms.map_or(0, |keep_ms| {
        completed.clone().take_while(|segment| is_past(segment.sealed_ms, keep_ms, now_ms)).count()
    });
    let by_bytes = config.retention_bytes.map_or(0, |keep_bytes| {
        let mut left =
            completed.clone().fold(open_bytes, |sum, segment| sum.saturating_add(segment.length.0));
        completed
            .take_while(|segment| {
                left = left.saturating_sub(segment.length.0);
                left >= keep_bytes
            })
            .count()
    });
    by_time.max(by_bytes).min(restored.unwrap_or(usize::MAX))
}

/// How many of the `completed` segments, from the oldest on, are to be in cold storage alone at wall time `now_ms`,
/// when the open segment holds `open_bytes`, once they are there.
pub fn released<'a>(
    config: &StreamConfig,
    completed: impl Iterator<Item = &'a SegmentRecord> + Clone,
    open_bytes: u64,
    now_ms: i64,
) -> usize {
    let by_time = config.cold_after_ms.map_or(0, |after_ms| {
        completed.clone().take_while(|segment| is_past(segment.sealed_ms, after_ms, now_ms)).count()
    });
    let by_bytes = config.cold_after_bytes.map_or(0, |keep_bytes| {
        let here = |segment: &SegmentRecord| if segment.is_released() { 0 } else { segment.length.0 };
        let mut left = completed.clone().fold(open_bytes, |sum, segment| sum.saturating_add(here(segment)));
        completed
            .take_while(|segment| {
                left = left.saturating_sub(here(segment));
                left >= keep_bytes
            })
            .count()
    });
    by_time.max(by_bytes)
}

/// Whether at wall time `now_ms` so many ms have passed since `begin_ms`.
fn is_past(begin_ms: i64, ms: u64, now_ms: i64) -> bool {
    now_ms.saturating_sub(begin_ms) >= i64::try_from(ms).unwrap_or(i64::MAX)
}

/// How many of the `completed` segments, from the oldest on, lie wholly before `log_start`.
pub fn below<'a>(completed: impl Iterator<Item = &'a SegmentRecord>, log_start: Offset) -> usize {
    completed.take_while(|segment| segment.next_offset <= log_start).count()
}

#[cfg(test)]
mod tests {
    use tailwater_format::{Position, SegmentNumber, Term, TransactionId};

    use super::*;

    /// Ten segments of 100 bytes and 10 records; segment n sealed at (n + 1) * 1,000 ms.
    fn segments() -> Vec<SegmentRecord> {
        (0..10)
            .map(|n| SegmentRecord {
                number: SegmentNumber(n),
                term: Term(1),
                base_offset: Offset(n * 10),
                next_offset: Offset(n * 10 + 10),
                length: Position(100),
                first_transaction_id: TransactionId(0),
                last_transaction_id: TransactionId(0),
                created_ms: n as i64 * 1_000,
                sealed_ms: n as i64 * 1_000 + 1_000,
                cold: None,
            })
            .collect()
    }

    fn keep(ms: Option<u64>, bytes: Option<u64>) -> StreamConfig {
        StreamConfig { retention_ms: ms, retention_bytes: bytes, ..StreamConfig::default() }
    }

    #[test]
    fn a_segment_expires_its_retention_after_it_was_sealed() {
        let config = keep(Some(5_000), None);
        assert_eq!(expired(&config, segments().iter(), 0, 0, 5_999), 0);
        assert_eq!(expired(&config, segments().iter(), 0, 0, 6_000), 1);
        assert_eq!(expired(&config, segments().iter(), 0, 0, 8_500), 3);
        assert_eq!(expired(&config, segments().iter(), 0, 0, i64::MAX), 10);
    }

    #[test]
    fn at_least_the_bytes_to_keep_are_kept() {
        for (keep_bytes, open, expected) in [
            (1_000, 0, 0),
            (999, 0, 0),
            (900, 0, 1),
            (250, 0, 7),
            (250, 100, 8),
            (100, 100, 10),
            (100, 5_000, 10),
        ] {
            let config = keep(None, Some(keep_bytes));
            assert_eq!(expired(&config, segments().iter(), open, 0, 0), expected, "{keep_bytes} {open}");
        }
    }

    #[test]
    fn the_stricter_limit_wins_and_none_keeps_all() {
        assert_eq!(expired(&keep(Some(5_000), Some(900)), segments().iter(), 0, 0, 8_500), 3);
        assert_eq!(expired(&keep(Some(5_000), Some(250)), segments().iter(), 0, 0, 8_500), 7);
        assert_eq!(expired(&keep(None, None), segments().iter(), 1 << 60, 0, i64::MAX), 0);
    }

    #[test]
    fn a_clock_that_went_back_deletes_nothing() {
        assert_eq!(expired(&keep(Some(1), None), segments().iter(), 0, 0, -1), 0);
    }

    #[test]
    fn what_was_restored_stays_for_a_while_with_all_behind_it() {
        let mut segments = segments();
        segments[3].cold = Some(crate::stream::SegmentCold {
            copy: tailwater_cold::ColdCopy(1),
            is_released: true,
            restored_ms: Some(20_000),
        });
        let config = keep(Some(5_000), Some(100));
        for (now_ms, expected) in [(20_000, 3), (20_099, 3), (20_100, 10)] {
            assert_eq!(expired(&config, segments.iter(), 100, 100, now_ms), expected, "{now_ms}");
        }
    }

    #[test]
    fn segments_leave_the_store_by_their_age_or_by_what_is_left_there() {
        let after = |ms, bytes| StreamConfig {
            cold: true,
            cold_after_ms: ms,
            cold_after_bytes: bytes,
            ..StreamConfig::default()
        };
        let mut segments = segments();
        assert_eq!(released(&after(None, None), segments.iter(), 0, i64::MAX), 0);
        assert_eq!(released(&after(Some(5_000), None), segments.iter(), 0, 8_500), 3);
        assert_eq!(released(&after(None, Some(900)), segments.iter(), 0, 0), 1);
        assert_eq!(released(&after(Some(0), Some(900)), segments.iter(), 0, -1), 1);
        // What has left already does not count twice.
        let copy = tailwater_cold::ColdCopy(1);
        segments[0].cold = Some(crate::stream::SegmentCold { copy, is_released: true, restored_ms: None });
        assert_eq!(released(&after(None, Some(900)), segments.iter(), 0, 0), 1);
        assert_eq!(released(&after(None, Some(900)), segments.iter(), 100, 0), 2);
    }

    #[test]
    fn truncation_deletes_only_what_lies_wholly_before_it() {
        let segments = segments();
        assert_eq!(below(segments.iter(), Offset(0)), 0);
        assert_eq!(below(segments.iter(), Offset(9)), 0);
        assert_eq!(below(segments.iter(), Offset(10)), 1);
        assert_eq!(below(segments.iter(), Offset(1_000)), 10);
    }

    #[test]
    fn a_segment_rolls_before_it_could_outlive_its_records() {
        let config =
            StreamConfig { segment_ms: 1_000, segment_bytes: 1 << 20, ..keep(Some(10), Some(8 << 10)) };
        assert_eq!((roll_age_ms(&config), roll_bytes(&config)), (10, 8 << 10));
        let config = StreamConfig { segment_ms: 1_000, segment_bytes: 1 << 20, ..keep(None, None) };
        assert_eq!((roll_age_ms(&config), roll_bytes(&config)), (1_000, 1 << 20));
    }
}
